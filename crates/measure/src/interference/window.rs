//! One window: the members run together from a common start, the GPU is read meanwhile.

use super::count::{Counted, count};
use super::host::Host;
use super::machine::Gpu;
use super::processes;
use super::processors::Processors;
use super::protocol::News;
use super::resident::Resident;
use super::samples::{Samples, rounded};
use carma_interference::measured::Combination;
use carma_interference::profile::RateSource;
use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// From the order to go to the common start: all have heard it by then.
const LEAD_S: f64 = 0.02;
/// Between two readings of the GPU. NVML's counters need 0.1 s.
const SAMPLE: Duration = Duration::from_millis(120);

/// Lengths, seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Timing {
    pub(super) settle: f64,
    pub(super) window: f64,
    /// Longest wait for an answer.
    pub(super) answer: f64,
}

/// Seconds of `CLOCK_MONOTONIC`, which tasks read too.
pub(super) fn monotonic() -> f64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

fn sleep_until(at: f64) {
    let left = at - monotonic();
    if left > 0.0 {
        std::thread::sleep(Duration::from_secs_f64(left));
    }
}

/// Runs a window. `members` are all alive and idle. Those that are not any more afterwards are named, by their
/// index among `members`. The combination lacks names, session and repeat.
pub(super) fn run(
    gpu: &mut Gpu,
    members: &mut [&mut Resident],
    timing: Timing,
    processors: Option<&Processors>,
) -> (Combination, Vec<(usize, String)>) {
    let groups: Vec<u32> = members.iter().map(|member| member.group()).collect();
    let mut window = Combination { window_s: timing.window, ..Combination::default() };
    if let Some(processors) = processors {
        for (at, (group, member)) in processes::read(&groups).iter().zip(members.iter()).enumerate() {
            if let Err(e) = processors.give(at, &group.pids) {
                window.remarks.push(format!("{}: it cannot be bound to its processors: {e}", member.name));
            }
        }
    }
    let start = monotonic() + LEAD_S;
    let (from, until) = (start + timing.settle, start + timing.settle + timing.window);
    for member in members.iter() {
        member.go(start, from, until);
    }
    sleep_until(from);
    let mut samples = Samples::default();
    samples.begin(gpu.read());
    let mut host = Host::begin();
    let before = (Instant::now(), processes::read(&groups));
    while until - monotonic() > SAMPLE.as_secs_f64() * 1.5 {
        std::thread::sleep(SAMPLE);
        samples.add(gpu.read());
        host.look();
    }
    sleep_until(until);
    samples.add(gpu.read());
    let after = (Instant::now(), processes::read(&groups));
    let stolen = host.stolen_pct();
    let deadline = Instant::now() + Duration::from_secs_f64(timing.answer);
    let mut gone = Vec::new();
    window.host_mops = host.speed().map(rounded);
    window.host_stolen_pct = stolen.map(rounded);
    let mut failures = Vec::new();
    for (at, member) in members.iter_mut().enumerate() {
        match answer(member, deadline) {
            Ok(answer) => match answer.count(timing) {
                Ok(counted) => {
                    window.steps.push(rounded(counted.steps));
                    // Of virtual time, as the power is; so windows of other speeds can be compared.
                    window.rates.push(rounded(counted.per_s / gpu.speed()));
                    window.rate_sources.push(counted.source);
                }
                Err(why) => failures.push(format!("{}: {why}", member.name)),
            },
            Err(why) => {
                failures.push(format!("{} ended during the window: {why}", member.name));
                gone.push((at, why));
            }
        }
    }
    if !failures.is_empty() {
        window.failed = Some(failures.join("; "));
        (window.steps, window.rates) = (Vec::new(), Vec::new());
        window.rate_sources.clear();
    }
    if window.rate_sources.iter().all(|source| *source == RateSource::Heartbeat) {
        window.rate_sources.clear();
    }
    let span = after.0.duration_since(before.0).as_secs_f64();
    for (nth, ((member, before), after)) in members.iter().zip(&before.1).zip(&after.1).enumerate() {
        let memory = samples.memory_of(&after.pids);
        if memory.is_none() && member.memory_mib.is_some() {
            window
                .remarks
                .push(format!("{}: its memory is by its own word, without its context", member.name));
        }
        window.memory_mib.push(memory.or(member.memory_mib));
        let cpu = (span > 0.0 && !after.pids.is_empty()).then(|| (after.cpu_s - before.cpu_s) / span * 100.0);
        window.cpu_pct.push(cpu.map(|pct| rounded(pct.max(0.0))));
        window.host_memory_mib.push((!after.pids.is_empty()).then_some(after.memory_mib));
        if after.pids.is_empty() && !gone.iter().any(|(at, _)| *at == nth) {
            window.remarks.push(format!("{}: its processes cannot be found", member.name));
        }
    }
    samples.tell(&mut window, gpu.speed());
    (window, gone)
}

/// What a member says of a window.
enum Answer {
    /// When it finished its steps, seconds after the common start.
    Times(Vec<f64>),
    Counted(Result<Counted, String>),
}

impl Answer {
    fn count(self, timing: Timing) -> Result<Counted, String> {
        match self {
            Self::Times(times) => count(&times, timing.settle, timing.settle + timing.window),
            Self::Counted(counted) => counted,
        }
    }
}

fn answer(member: &mut Resident, deadline: Instant) -> Result<Answer, String> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match member.hear(left) {
            Some(News::Times(times)) => return Ok(Answer::Times(times)),
            Some(News::Counted(counted)) => return Ok(Answer::Counted(counted)),
            Some(News::Gone(why)) => return Err(why),
            Some(News::Hello | News::Ready(_)) => {}
            None if left.is_zero() => return Err("no answer in time; is one of its steps so long?".into()),
            None => {}
        }
    }
}
