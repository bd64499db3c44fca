//! Runs a command once and watches it: the GPU ten times a second, its processes twice, its heartbeats and its output
//! whenever they come.

use super::interrupts::{Bell, Interrupts};
use super::machine::{Chosen, Machine};
use super::output::Outlets;
use super::task::Task;
use crate::Error;
use carma_core::reading::{GpuReading, Health, ProcessReading};
use carma_core::units::Millis;
use carma_gpu::Probe;
use carma_interference::profile::{Metrics, Stat};
use carma_interference::solo::{Look, Options, Phase, Recorder};
use carma_process::process;
use carma_process::progress::Meter;
use carma_process::usage::{Host, Usage};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Time between two readings of the GPU. NVML's counters want 100 ms.
const PACE: Duration = Duration::from_millis(100);
/// Time between two looks at the host.
const HOST_PACE: Duration = Duration::from_millis(500);
/// How long output is read at a time: readings and signals wait for it.
const READING: Duration = Duration::from_millis(20);
/// How long output may come after the command's end.
const LAST_OUTPUT: Duration = Duration::from_millis(500);
/// How long what the command left behind may take to end.
const LEFTOVER_GRACE: Duration = Duration::from_secs(2);

/// What to run, and how.
pub(super) struct Request<'a> {
    pub(super) command: &'a [OsString],
    /// On top of what the machine and the meter say.
    pub(super) env: Vec<(String, String)>,
    /// Where the meter puts its socket and file.
    pub(super) dir: &'a Path,
    pub(super) options: Options,
    /// How long to wait for the first activity.
    pub(super) patience_s: f64,
    pub(super) grace: Duration,
    pub(super) keep_running: bool,
    /// Where its output goes on to.
    pub(super) outlets: Outlets,
    pub(super) interrupts: &'a Interrupts,
}

/// What was seen.
pub(super) struct Watched {
    pub(super) recorder: Recorder,
    pub(super) meter: Meter,
    /// How the command ended by itself, before it was told to.
    pub(super) ended: Option<ExitStatus>,
    /// Bytes of its output that came too fast to be read.
    pub(super) unread: u64,
    /// Other processes that came to the GPU meanwhile.
    pub(super) others: BTreeSet<u32>,
    /// Whether the command had to be killed.
    pub(super) killed: bool,
    pub(super) interrupted: bool,
}

/// Runs it.
///
/// # Errors
/// A command that cannot be started, or a system without room for it.
pub(super) fn watch(machine: &mut Machine, chosen: &Chosen, request: &Request<'_>) -> Result<Watched, Error> {
    let meter = Meter::open(request.dir, None).map_err(|e| Error::new(e.to_string()))?;
    let mut env = machine.env.clone();
    env.push(("CUDA_DEVICE_ORDER".into(), "PCI_BUS_ID".into()));
    env.push(("CUDA_VISIBLE_DEVICES".into(), chosen.gpu.uuid.to_string()));
    env.extend(meter.env());
    env.extend(request.env.iter().cloned());
    let before: BTreeSet<u32> = process::descendants(std::process::id()).into_iter().collect();
    let is_mps = |pid: u32| {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|c| c.trim_end() == "nvidia-cuda-mps")
    };
    let not_its = Box::new(move |pid: u32| before.contains(&pid) || is_mps(pid));
    let task = Task::start(request.command, &env, request.outlets, request.interrupts.bell(), not_its)?;
    let start = Instant::now();
    let (sender, readings) = channel();
    let stop = AtomicBool::new(false);
    let (probe, at, bell) = (&mut machine.probe, chosen.at, request.interrupts.bell());
    let is_own = |pid| machine.sharing.is_own_process(pid);
    let watcher = Watcher {
        request,
        chosen,
        task,
        meter,
        recorder: Recorder::new(request.options, 0.0),
        usage: Usage::default(),
        host: None,
        pids: Vec::new(),
        others: BTreeSet::new(),
        start,
        is_own: &is_own,
    };
    std::thread::scope(|scope| {
        let sampling = std::thread::Builder::new()
            .name("sample".into())
            .spawn_scoped(scope, || sample(probe.as_mut(), at, &sender, &stop, bell))
            .map_err(|e| Error::new(format!("no thread to watch the GPU: {e}")))?;
        let watched = watcher.run(&readings);
        stop.store(true, Ordering::Release);
        let _ = sampling.join();
        watched
    })
}

/// Reads the GPU at a steady pace until told to stop.
fn sample(
    probe: &mut dyn Probe,
    at: usize,
    to: &Sender<(Instant, GpuReading)>,
    stop: &AtomicBool,
    bell: &Bell,
) {
    let mut next = Instant::now();
    while !stop.load(Ordering::Acquire) {
        if let Some(reading) = probe.tick(Millis::ZERO).gpus.into_iter().nth(at) {
            let _ = to.send((Instant::now(), reading));
            bell.ring();
        }
        next += PACE;
        let now = Instant::now();
        if next < now {
            // A slow driver must not be followed by a burst of reads.
            next = now + PACE / 2;
        }
        std::thread::sleep(next - now);
    }
}

struct Watcher<'a> {
    request: &'a Request<'a>,
    chosen: &'a Chosen,
    task: Task,
    meter: Meter,
    recorder: Recorder,
    usage: Usage,
    /// The latest look at the host that no reading has taken along yet.
    host: Option<Host>,
    pids: Vec<u32>,
    others: BTreeSet<u32>,
    start: Instant,
    is_own: &'a dyn Fn(u32) -> bool,
}

/// How the command is being ended.
struct Ending {
    since: Instant,
    killed: bool,
}

impl Watcher<'_> {
    fn run(mut self, readings: &Receiver<(Instant, GpuReading)>) -> Result<Watched, Error> {
        let mut host_due = self.start;
        let mut ended = None;
        let mut ending: Option<Ending> = None;
        let mut interrupts = 0;
        let mut more = false;
        loop {
            let due = host_due.saturating_duration_since(Instant::now());
            self.sleep(if more { Duration::ZERO } else { due })?;
            let now = Instant::now();
            if now >= host_due {
                host_due = now + HOST_PACE;
                self.pids = self.task.pids();
                self.host = Some(self.usage.look(self.at_s(now), &self.pids));
            }
            self.meter.poll(self.at_s(now));
            while let Ok((at, reading)) = readings.try_recv() {
                self.look(at, &reading);
            }
            more = self.read_output(now);
            if !self.recorder.was_active() && self.at_s(now) > self.request.patience_s {
                self.recorder.stop(self.at_s(now));
            }
            if let Some(status) = self.task.status() {
                if ending.is_none() {
                    self.recorder.end(self.at_s(now));
                    ended = Some(status);
                }
                break;
            }
            let wanted = self.request.interrupts.count();
            let is_over = self.recorder.phase() == Phase::Over && !self.request.keep_running;
            match &mut ending {
                None if wanted > 0 || is_over => {
                    self.recorder.stop(self.at_s(now));
                    self.task.signal(Signal::TERM);
                    ending = Some(Ending { since: now, killed: false });
                    interrupts = wanted;
                }
                // It does not want to, or the user does not want to wait.
                Some(how)
                    if !how.killed
                        && (now - how.since >= self.request.grace || wanted > interrupts.max(1)) =>
                {
                    how.killed = true;
                    self.task.signal(Signal::KILL);
                }
                _ => {}
            }
        }
        self.finish();
        Ok(Watched {
            recorder: self.recorder,
            meter: self.meter,
            ended,
            unread: self.task.unread(),
            others: self.others,
            killed: ending.is_some_and(|ending| ending.killed),
            interrupted: self.request.interrupts.count() > 0,
        })
    }

    fn at_s(&self, at: Instant) -> f64 {
        at.saturating_duration_since(self.start).as_secs_f64()
    }

    /// Until something happens, or it is time for another look at the host.
    fn sleep(&self, most: Duration) -> Result<(), Error> {
        let fds = &mut [
            PollFd::new(self.request.interrupts.bell(), PollFlags::IN),
            PollFd::new(&self.meter, PollFlags::IN),
            PollFd::new(&self.task, PollFlags::IN),
        ];
        let timeout = rustix::time::Timespec::try_from(most).ok();
        match poll(fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(Error::new(format!("cannot wait for the command: {e}"))),
        }
        self.request.interrupts.bell().hush();
        Ok(())
    }

    /// Takes in what it printed, for a moment. Returns whether there may be more.
    fn read_output(&mut self, since: Instant) -> bool {
        while let Some(piece) = self.task.piece(Duration::ZERO) {
            self.meter.feed(self.at_s(piece.at), piece.output, &piece.bytes);
            if since.elapsed() >= READING {
                return true;
            }
        }
        false
    }

    /// The last of its output, and the end of what it left behind.
    fn finish(&mut self) {
        let since = Instant::now();
        let mut open = 2;
        // Not until there is no more: what it left behind may print without end.
        while open > 0 && since.elapsed() < LAST_OUTPUT {
            let left = LAST_OUTPUT.saturating_sub(since.elapsed());
            let Some(piece) = self.task.piece(left) else { break };
            if piece.bytes.is_empty() {
                open -= 1;
            }
            self.meter.feed(self.at_s(piece.at), piece.output, &piece.bytes);
        }
        let since = Instant::now();
        let mut signal = Signal::TERM;
        while !self.task.pids().is_empty() {
            self.task.signal(signal);
            if since.elapsed() > LEFTOVER_GRACE {
                if signal == Signal::KILL {
                    break;
                }
                signal = Signal::KILL;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Takes in a reading of the GPU, with the latest look at the host.
    fn look(&mut self, at: Instant, reading: &GpuReading) {
        let at_s = self.at_s(at);
        let trouble = match &reading.health {
            Health::Ok => None,
            Health::Lost(why) | Health::Unreadable(why) => Some(why.clone()),
        };
        let mut metrics = Metrics::from(reading);
        metrics.memory_mib = self.memory(reading).map(Stat::of);
        if let Some(host) = self.host.take() {
            metrics.cpu_pct = host.cpu_pct.map(Stat::of);
            metrics.host_memory_mib = Some(Stat::of(host.memory_mib));
        }
        self.recorder.look(Look { at_s, metrics, trouble });
        if let Some((unit, done)) = self.recorder.work() {
            self.meter.activity(at_s, unit, done);
        }
        if let Some(first) = self.meter.tally().began_s() {
            self.recorder.counted(first);
        }
    }

    /// GPU memory of the task's processes, MiB. Also notes which others are there.
    fn memory(&mut self, reading: &GpuReading) -> Option<f64> {
        let before: Vec<u32> = self.chosen.before.processes.iter().flatten().map(|p| p.pid).collect();
        let there = reading.processes.as_deref().unwrap_or_default();
        // It may have started one since the last look at the host.
        if there.iter().any(|p| !self.pids.contains(&p.pid) && !before.contains(&p.pid)) {
            self.pids = self.task.pids();
        }
        let (own, others): (Vec<&ProcessReading>, Vec<&ProcessReading>) =
            there.iter().partition(|p| self.pids.contains(&p.pid));
        // In a container the driver's numbers of processes are not ours: what came with the task is then the task.
        let is_strange = |pid: u32| (before.contains(&pid) || !own.is_empty()) && !(self.is_own)(pid);
        let strangers: Vec<u32> = others.iter().map(|p| p.pid).filter(|pid| is_strange(*pid)).collect();
        let alone = strangers.is_empty();
        self.others.extend(strangers);
        let held: Option<u64> = own.iter().map(|p| p.memory.map(|memory| memory.0)).sum();
        if !own.is_empty() && held.is_some() {
            return held.map(|mib| mib as f64);
        }
        // What came since the start, where the driver does not tell it apart.
        let used = reading.memory_used?.0.checked_sub(self.chosen.before.memory_used?.0)?;
        alone.then_some(used as f64)
    }
}
