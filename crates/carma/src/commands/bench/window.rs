//! One window: the members run together from a common start, the GPU is read meanwhile.

use super::count::{Counted, count};
use super::host::Host;
use super::machine::Gpu;
use super::processes;
use super::processors::Processors;
use super::resident::{News, Resident};
use carma_core::reading::{Activity, GpuReading};
use carma_core::units::Fraction;
use carma_interference::measured::Combination;
use carma_interference::profile::{Metrics, RateSource, Stat};
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
                    window.rates.push(rounded(counted.per_s));
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
    for ((member, before), after) in members.iter().zip(&before.1).zip(&after.1) {
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
        if after.pids.is_empty() && !gone.iter().any(|(at, _)| members[*at].name == member.name) {
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

/// Four significant digits are more than a window gives.
fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let digits = 10_f64.powf(5.0 - value.abs().log10().floor());
    (value * digits).round() / digits
}

/// Readings of the GPU over a window.
#[derive(Debug, Default)]
struct Samples {
    /// Seconds, and what was seen over them.
    spans: Vec<(f64, GpuReading)>,
    first: Option<(Instant, GpuReading)>,
    last: Option<Instant>,
}

impl Samples {
    /// What was before the window is left out: readings are differences to the one before.
    fn begin(&mut self, reading: Option<GpuReading>) {
        let now = Instant::now();
        self.last = Some(now);
        self.first = reading.map(|reading| (now, reading));
    }

    fn add(&mut self, reading: Option<GpuReading>) {
        let now = Instant::now();
        if let (Some(last), Some(reading)) = (self.last, reading) {
            self.spans.push((now.duration_since(last).as_secs_f64(), reading));
        }
        self.last = Some(now);
    }

    fn memory_of(&self, pids: &[u32]) -> Option<u64> {
        let (_, last) = self.spans.last()?;
        let held = last.processes.as_ref()?.iter().filter(|process| pids.contains(&process.pid));
        let memory: Vec<u64> = held.filter_map(|process| Some(process.memory?.0)).collect();
        (!memory.is_empty()).then(|| memory.iter().sum())
    }

    /// Mean weighted by time, and how it varied.
    fn stat(&self, pick: impl Fn(&GpuReading) -> Option<f64>) -> Option<Stat> {
        let seen: Vec<(f64, f64)> =
            self.spans.iter().filter_map(|(span, reading)| Some((*span, pick(reading)?))).collect();
        let total: f64 = seen.iter().map(|(span, _)| span).sum();
        if total <= 0.0 {
            return None;
        }
        let mean = seen.iter().map(|(span, value)| span * value).sum::<f64>() / total;
        let variance = seen.iter().map(|(span, value)| span * (value - mean).powi(2)).sum::<f64>() / total;
        let mut values: Vec<f64> = seen.iter().map(|(_, value)| *value).collect();
        values.sort_by(f64::total_cmp);
        let at = (values.len() as f64 * 0.95).ceil() as usize;
        let p95 = values.get(at.saturating_sub(1)).copied().map(rounded);
        let cv = (mean > 0.0).then(|| rounded(variance.sqrt() / mean));
        Some(Stat { mean: rounded(mean), p95, cv })
    }

    /// `speed`: virtual seconds a second, 1 on a real GPU.
    fn tell(&self, window: &mut Combination, speed: f64) {
        let share = |pick: fn(&Activity) -> Option<Fraction>| {
            self.stat(|reading| pick(&reading.activity).map(|share| share.to_f64() * 100.0))
        };
        // NVML's own windows for these two are long: only the last reading is of this one.
        let coarse = |pick: fn(&Activity) -> Option<Fraction>| {
            let (_, last) = self.spans.last()?;
            Some(Stat::of(pick(&last.activity)?.to_f64() * 100.0))
        };
        window.activity = Metrics {
            gract_pct: share(|a| a.gract),
            smact_pct: share(|a| a.smact),
            smocc_pct: share(|a| a.smocc),
            drama_pct: share(|a| a.drama),
            tensor_pct: share(|a| a.tensor),
            fp64_pct: share(|a| a.fp64),
            fp32_pct: share(|a| a.fp32),
            fp16_pct: share(|a| a.fp16),
            pcie_rx_mib_s: self.stat(|r| r.activity.pcie_rx_mib_s.map(f64::from)),
            pcie_tx_mib_s: self.stat(|r| r.activity.pcie_tx_mib_s.map(f64::from)),
            power_w: self.stat(|r| r.power_mw.map(|mw| f64::from(mw) / 1000.0)),
            sm_clock_mhz: self.stat(|r| r.sm_clock_mhz.map(f64::from)),
            gpu_util_pct: coarse(|a| a.gpu_util),
            mem_util_pct: coarse(|a| a.mem_util),
            ..Metrics::default()
        };
        window.power_w = window.activity.power_w.map(|power| power.mean);
        let ends = self.first.as_ref().zip(self.spans.last()).zip(self.last);
        if let Some((((begin, first), (_, last)), end)) = ends
            && let (Some(before), Some(after)) = (first.energy_mj, last.energy_mj)
        {
            let span = end.duration_since(*begin).as_secs_f64();
            match after.checked_sub(before) {
                Some(mj) if span > 0.0 => {
                    let joules = mj as f64 / 1000.0;
                    window.power_w = Some(rounded(joules / span / speed));
                    window.energy_j = Some(rounded(joules / span * window.window_s));
                }
                Some(_) => {}
                None => window.remarks.push(format!(
                    "the GPU's energy counter ran backwards, from {before} to {after} mJ; power is the mean of the \
                     readings"
                )),
            }
        }
    }
}
