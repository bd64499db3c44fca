//! A process that uses virtual GPUs as a training script uses real ones: it fills memory, computes at
//! the pace that its neighbours leave it, prints steps, and dies in PyTorch's words.
//!
//! It does no work. What it prints are numbers of a model and it says so in its first line.

mod pace;

use crate::protocol::{ClientMessage, GpuNote, HostMessage, Lines, ProcessNote, VERSION, line};
use crate::{ENV_MEMORY_LIMIT, ENV_THREADS};
use crate::{ENV_MPS, ENV_SOCKET, ENV_SPEED, MOST_SPEED, RECONNECT, TaskDemand, context};
use carma_core::units::MiB;
use carma_gpu::ProcessState;
use pace::{ENV_BENCH, Pace};
use rustix::event::{PollFd, PollFlags, poll};
use std::collections::{BTreeMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What a virtual task does. Times are virtual seconds; shares are 0 to 1.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskSpec {
    /// Memory that the process takes on each of its GPUs, its context (450 MiB) included. Less than
    /// that takes the context alone.
    pub memory: MiB,
    /// SM activity when alone.
    pub sm: f64,
    /// Share of time with a kernel resident when alone (GRACT); what time-slicing divides. `None`:
    /// `sm^0.6`, which fits both tasks of the H200 table (0.22 -> 0.40, 0.55 -> 0.71).
    pub gract: Option<f64>,
    /// Warp occupancy when alone. `None`: 0.35 of `sm` (assumed; 0.33 and 0.41 in the H200 table).
    pub occupancy: Option<f64>,
    /// DRAM activity when alone, of the theoretical peak. `None`: 0.3 of `sm` (assumed; 0.21 and
    /// 0.40 in the H200 table).
    pub dram: Option<f64>,
    /// Work, seconds that it takes when alone.
    pub work_s: f64,
    /// Time until memory is full and the work begins. Memory comes in eight equal steps after the
    /// context.
    pub startup_s: f64,
    /// The context comes after two fifths of the start-up and the memory in its last tenth, as of PyTorch tasks on H200s
    /// (docs/research/h200.md); otherwise the memory comes from the start on.
    pub loads_late: bool,
    /// Raises a fatal fault (an illegal address) when this much work is done, seconds when alone;
    /// never, when that is more than `work_s`.
    pub fault_after: Option<f64>,
    /// Takes more memory later.
    pub grow: Option<Growth>,
    /// Exit code at the end of the work. Other than 0 it comes with a Python traceback.
    pub exit_code: u8,
    /// How it tells of its steps.
    pub progress: Progress,
    /// The task is a server: it prints the latency of each request (a step). Latency alone, microseconds.
    pub latency_us: Option<u32>,
    /// Lets SIGTERM pass without effect. Works when no other thread of the process takes signals:
    /// call [`run`] before any is started.
    pub ignore_term: bool,
}

/// How long a task takes, in real time, to notice that a neighbour's fault ended its GPU context:
/// about a training step.
const NOTICES_FAULT: Duration = Duration::from_millis(100);

impl Default for TaskSpec {
    /// 1 GiB, half of the SMs, 30 s of work after 2 s of start-up.
    fn default() -> Self {
        Self {
            memory: MiB::gib(1),
            sm: 0.5,
            gract: None,
            occupancy: None,
            dram: None,
            work_s: 30.0,
            startup_s: 2.0,
            loads_late: false,
            fault_after: None,
            grow: None,
            exit_code: 0,
            progress: Progress::Lines,
            latency_us: None,
            ignore_term: false,
        }
    }
}

/// How a task tells of its steps, ten a second of work when alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// A line now and then: `step 50/300  10.0 it/s`.
    Lines,
    /// A bar that is drawn anew at each step, as tqdm does.
    Bar,
    /// An empty datagram a step to this socket (`CARMA_PROGRESS`).
    Datagrams(PathBuf),
    /// The count, written over itself in this file (`CARMA_HEARTBEAT`).
    File(PathBuf),
    /// Not at all.
    Silent,
}

/// Memory that a task takes later, as one with a larger batch or a fragmented heap does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Growth {
    /// When it begins: work done, seconds when alone.
    pub after_s: f64,
    /// How long it takes, in equal steps: work, seconds when alone. At once, when that is nothing.
    pub over_s: f64,
    /// What it then holds on each GPU. Not less than before.
    pub to: MiB,
}

/// Where a task runs: what it finds in its environment.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskEnv {
    /// The host's socket (`CARMA_VIRTUAL_GPUS`).
    pub socket: PathBuf,
    /// Its GPUs (`CUDA_VISIBLE_DEVICES`): UUIDs or indices.
    pub devices: Vec<String>,
    /// Whether it is an MPS client (`CARMA_VIRTUAL_MPS=1`).
    pub mps: bool,
    /// Limit on its share of the SMs, percent (`CUDA_MPS_ACTIVE_THREAD_PERCENTAGE`).
    pub thread_percent: Option<u8>,
    /// Limit on its memory by ordinal (`CUDA_MPS_PINNED_DEVICE_MEM_LIMIT`).
    pub caps: BTreeMap<usize, MiB>,
    /// Virtual seconds per real second until the host says otherwise (`CARMA_VIRTUAL_SPEED`).
    pub speed: f64,
    /// How long it looks for a host before it gives up, in real time. Once it has had one it looks
    /// for ever.
    pub patience: Duration,
    /// The tool that starts and pauses it (`CARMA_BENCH`): it computes only in its windows.
    pub bench: Option<PathBuf>,
}

/// What is wrong with a task or its environment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TaskError {
    /// There are no virtual GPUs here.
    #[error(
        "virtual task: {ENV_SOCKET} is not set, so there are no virtual GPUs here. Submit it to a daemon that was \
         started with `--gpus virtual:...`, or set {ENV_SOCKET} to the socket of one"
    )]
    NoHost,
    /// The environment lists no GPU.
    #[error("RuntimeError: No CUDA GPUs are available")]
    NoGpus,
    /// A variable or option cannot be read.
    #[error("virtual task: {what} is `{value}`: {expected}")]
    Bad {
        /// Variable or option.
        what: &'static str,
        /// Its value.
        value: String,
        /// What it should be.
        expected: &'static str,
    },
}

impl TaskEnv {
    /// Reads it from variables, `std::env::var(name).ok()` for a process. Without
    /// `CUDA_VISIBLE_DEVICES` it takes the first GPU, as most scripts do.
    ///
    /// # Errors
    /// No socket, no GPU, or a variable that cannot be read.
    pub fn from_vars(var: impl Fn(&str) -> Option<String>) -> Result<Self, TaskError> {
        let socket = var(ENV_SOCKET).filter(|value| !value.is_empty()).ok_or(TaskError::NoHost)?;
        let devices: Vec<String> = match var("CUDA_VISIBLE_DEVICES") {
            None => vec!["0".to_owned()],
            Some(list) => {
                list.split(',').map(str::trim).filter(|gpu| !gpu.is_empty()).map(str::to_owned).collect()
            }
        };
        if devices.is_empty() || devices[0] == "-1" {
            return Err(TaskError::NoGpus);
        }
        let mps = var(ENV_MPS).is_some_and(|value| value == "1");
        let thread_percent = match var(ENV_THREADS) {
            None => None,
            Some(value) => match value.trim().parse::<f64>() {
                Ok(percent) if percent > 0.0 && percent <= 100.0 => Some(percent.ceil() as u8),
                _ => {
                    return Err(TaskError::Bad {
                        what: ENV_THREADS,
                        value,
                        expected: "a percentage above 0",
                    });
                }
            },
        };
        let caps = match var(ENV_MEMORY_LIMIT) {
            None => BTreeMap::new(),
            Some(value) => match memory_limits(&value) {
                Some(caps) => caps,
                None => {
                    return Err(TaskError::Bad {
                        what: ENV_MEMORY_LIMIT,
                        value,
                        expected: "like `0=3G,1=512M`",
                    });
                }
            },
        };
        let speed = match var(ENV_SPEED) {
            None => 1.0,
            Some(value) => match value.parse::<f64>() {
                Ok(speed) if speed > 0.0 && speed <= MOST_SPEED => speed,
                _ => {
                    return Err(TaskError::Bad { what: ENV_SPEED, value, expected: "a number above 0" });
                }
            },
        };
        Ok(Self {
            socket: socket.into(),
            devices,
            mps,
            thread_percent,
            caps,
            speed,
            patience: Duration::from_secs(30),
            bench: var(ENV_BENCH).filter(|value| !value.is_empty()).map(PathBuf::from),
        })
    }
}

/// `0=3G,1=512M` by ordinal.
fn memory_limits(text: &str) -> Option<BTreeMap<usize, MiB>> {
    text.split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .map(|part| {
            let (ordinal, size) = part.split_once('=')?;
            let (number, unit) = size.trim().split_at_checked(size.trim().len().checked_sub(1)?)?;
            let number: u64 = number.parse().ok()?;
            let mib = match unit {
                "G" | "g" => number.checked_mul(1024)?,
                "M" | "m" => number,
                _ => return None,
            };
            Some((ordinal.trim().parse().ok()?, MiB(mib)))
        })
        .collect()
}

impl TaskSpec {
    /// Whether it makes sense. [`run`] asks for itself.
    ///
    /// # Errors
    /// Names the option that makes no sense.
    pub fn check(&self) -> Result<(), TaskError> {
        let bad =
            |what, value: f64, expected| Err(TaskError::Bad { what, value: value.to_string(), expected });
        let shares = [
            ("sm", Some(self.sm)),
            ("gract", self.gract),
            ("occupancy", self.occupancy),
            ("dram", self.dram),
        ];
        for (what, share) in shares {
            if let Some(share) = share
                && !(0.0..=1.0).contains(&share)
            {
                return bad(what, share, "a share from 0 to 1");
            }
        }
        let (after, over) = (self.grow.map(|grow| grow.after_s), self.grow.map(|grow| grow.over_s));
        let times = [
            ("work", Some(self.work_s)),
            ("startup", Some(self.startup_s)),
            ("fault-after", self.fault_after),
            ("grow", after),
            ("grow-over", over),
        ];
        for (what, time) in times {
            if let Some(time) = time
                && !(0.0..=1e9).contains(&time)
            {
                return bad(what, time, "a time from 0 to 1e9 seconds");
            }
        }
        Ok(())
    }

    /// The work at which memory grows next, after so many steps, and to what.
    fn next_growth(&self, grown: u64) -> Option<(f64, MiB)> {
        let grow = self.grow?;
        let steps = if grow.over_s > 0.0 { GROWTH_STEPS } else { 1 };
        let step = grown + 1;
        let mark = grow.after_s + grow.over_s * step as f64 / steps as f64;
        let more = (grow.to - self.memory).in_proportion(MiB(step), MiB(steps));
        (step <= steps).then_some((mark, self.memory + more))
    }

    /// What it uses of a GPU when alone, with the assumed values where none is given.
    #[must_use]
    pub fn demand(&self) -> TaskDemand {
        let sm = self.sm;
        let dram = self.dram.unwrap_or(0.3 * sm);
        TaskDemand {
            gract: self.gract.unwrap_or(sm.powf(0.6)).max(sm).max(dram).min(1.0),
            sm,
            occupancy: self.occupancy.unwrap_or(0.35 * sm),
            dram,
        }
    }
}

/// Runs a task to its end and returns its exit code. Prints steps to `out`, and errors to `err` in the
/// words that PyTorch 2.11 uses. A failure to print stops nothing.
///
/// Ends when the work is done, memory is refused, a fault comes or a GPU is lost; while the host is
/// away it goes on at its last pace.
pub fn run(spec: &TaskSpec, env: &TaskEnv, out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    if let Err(e) = spec.check() {
        let _ = writeln!(err, "{e}");
        return EXIT_USAGE;
    }
    if spec.ignore_term {
        ignore_term(err);
    }
    let mut task = Task::new(spec, env, out);
    if let Some(path) = &env.bench {
        match Pace::connect(path) {
            Ok(pace) => task.pace = Some(pace),
            Err(e) => {
                let _ =
                    writeln!(err, "virtual task: nobody answers at {} ({ENV_BENCH}): {e}", path.display());
                return EXIT_ERROR;
            }
        }
    }
    let end = task.run();
    match end {
        End::Done => {
            if spec.exit_code != 0 {
                traceback(
                    err,
                    &format!("RuntimeError: virtual task told to end with exit code {}", spec.exit_code),
                );
            }
            spec.exit_code
        }
        End::Refused(message) => {
            traceback(err, &message);
            EXIT_ERROR
        }
        End::NoHost(message) => {
            let _ = writeln!(err, "{message}");
            EXIT_ERROR
        }
    }
}

const EXIT_ERROR: u8 = 1;
const EXIT_USAGE: u8 = 2;

/// Blocked, not ignored: a handler needs unsafe code, and a blocked signal never arrives either.
fn ignore_term(err: &mut dyn Write) {
    let mut set = nix::sys::signal::SigSet::empty();
    set.add(nix::sys::signal::Signal::SIGTERM);
    if let Err(e) = set.thread_block() {
        let _ = writeln!(err, "virtual task: cannot block SIGTERM: {e}");
    }
}

/// How a task ends.
enum End {
    /// Its work is done.
    Done,
    /// An exception, in PyTorch's words.
    Refused(String),
    /// It never found a host.
    NoHost(String),
}

/// Steps in which memory fills.
const FILL_STEPS: u64 = 8;
/// Steps in which memory grows later.
const GROWTH_STEPS: u64 = 64;
/// Steps of training per second of work when alone.
const STEPS_PER_SECOND: f64 = 10.0;
/// Shortest work between two lines of progress, virtual seconds when alone: as often as the trainings of `carma bench trace` print.
const LINE_EVERY_S: f64 = 1.0;
/// And more often while it has done no more than this, as a task of short steps would: carma sees that it makes steps.
const EARLY_S: f64 = 5.0;
/// Seconds of work between two of those lines.
const EARLY_LINE_EVERY_S: f64 = 0.5;
/// Most lines of progress.
const MOST_STEP_LINES: f64 = 200.0;
/// Work closer than this to a mark has reached it: sums of floats don't meet exactly.
const REACHED: f64 = 1e-9;

struct Request {
    /// Not before this virtual time since the start, seconds.
    at: f64,
    ordinal: usize,
    mib: u64,
}

struct Task<'a> {
    /// What starts and pauses it.
    pace: Option<Pace>,
    spec: &'a TaskSpec,
    env: &'a TaskEnv,
    out: &'a mut dyn Write,
    host: Option<(UnixStream, Lines)>,
    retry_at: Instant,
    give_up_at: Option<Instant>,
    gpus: Vec<GpuNote>,
    speed: f64,
    /// Real time up to which work and virtual time are summed.
    counted: Instant,
    /// Virtual time since the start, seconds.
    elapsed: f64,
    /// Work done, seconds when alone.
    work: f64,
    /// Pace that the host last said; `None` until it says one.
    rate: Option<f64>,
    active: bool,
    /// Where it is on its way off its GPUs and back.
    hold: ProcessState,
    /// Its GPUs.
    devices: Vec<String>,
    held: Vec<u64>,
    requests: VecDeque<Request>,
    /// Whether the first request was sent and not answered.
    asked: bool,
    next_id: u64,
    /// Steps in which memory has grown.
    grown: u64,
    next_line: f64,
    last_line: (f64, f64),
    /// Steps that were told of.
    told: f64,
    /// What heartbeats go out by; made with the first.
    beats: Option<Option<UnixDatagram>>,
}

impl<'a> Task<'a> {
    fn new(spec: &'a TaskSpec, env: &'a TaskEnv, out: &'a mut dyn Write) -> Self {
        let now = Instant::now();
        let mut task = Self {
            pace: None,
            spec,
            env,
            out,
            host: None,
            retry_at: now,
            give_up_at: now.checked_add(env.patience),
            gpus: Vec::new(),
            speed: env.speed,
            counted: now,
            elapsed: 0.0,
            work: 0.0,
            rate: None,
            active: false,
            hold: ProcessState::Running,
            devices: env.devices.clone(),
            held: vec![0; env.devices.len()],
            requests: VecDeque::new(),
            asked: false,
            next_id: 0,
            grown: 0,
            next_line: 0.0,
            last_line: (0.0, 0.0),
            told: 0.0,
            beats: None,
        };
        task.plan_fill();
        task
    }

    /// The context first, then the rest in equal steps until the start-up ends.
    fn plan_fill(&mut self) {
        let rest = (self.spec.memory - context()).0;
        for step in 0..=FILL_STEPS {
            let mib = match step {
                0 => context().0,
                _ => {
                    u64::try_from(u128::from(rest) * u128::from(step) / u128::from(FILL_STEPS))
                        .unwrap_or(u64::MAX)
                        - u64::try_from(u128::from(rest) * u128::from(step - 1) / u128::from(FILL_STEPS))
                            .unwrap_or(u64::MAX)
                }
            };
            if mib == 0 {
                continue;
            }
            let filled = step as f64 / FILL_STEPS as f64;
            let share = match (self.spec.loads_late, step) {
                (false, _) => filled,
                (true, 0) => 0.4,
                (true, _) => 0.9 + 0.1 * filled,
            };
            let at = self.spec.startup_s * share;
            for ordinal in 0..self.env.devices.len() {
                self.requests.push_back(Request { at, ordinal, mib });
            }
        }
    }

    fn run(mut self) -> End {
        loop {
            let now = Instant::now();
            self.count(now);
            if self.host.is_none() && now >= self.retry_at {
                self.connect(now);
            }
            if self.host.is_none() && self.give_up_at.is_some_and(|at| now >= at) {
                let socket = self.env.socket.display();
                return End::NoHost(format!(
                    "virtual task: no host of virtual GPUs answers at {socket} ({ENV_SOCKET}). Is the daemon running, with `--gpus virtual:...`?"
                ));
            }
            if let Some(end) = self.act() {
                return end;
            }
            let until = self.next_event();
            if let Some(end) = self.wait(until) {
                return end;
            }
        }
    }

    /// Adds what was done since the last time.
    fn count(&mut self, now: Instant) {
        let span = now.saturating_duration_since(self.counted).as_secs_f64() * self.speed;
        let since = std::mem::replace(&mut self.counted, now);
        // Before the first host there is no GPU to start on, and for one that is held time stands still.
        if self.gpus.is_empty() || self.is_held() {
            return;
        }
        self.elapsed += span;
        if self.active {
            let before = self.work;
            self.work += span * self.speed_now();
            if let Some(pace) = &mut self.pace {
                pace.count((before, since), (self.work, now));
            }
        }
    }

    fn is_held(&self) -> bool {
        self.hold != ProcessState::Running
    }

    /// Speed over the speed alone. A host that went away before it said a pace leaves full speed.
    fn speed_now(&self) -> f64 {
        self.rate.unwrap_or(if self.host.is_some() { 0.0 } else { 1.0 })
    }

    /// Does what is due.
    fn act(&mut self) -> Option<End> {
        if self.is_held() {
            return None;
        }
        self.ask();
        if !self.active
            && self.requests.is_empty()
            && !self.gpus.is_empty()
            && self.elapsed >= self.spec.startup_s
            && self.may_run()
        {
            self.active = true;
            self.send(&ClientMessage::Active { active: true });
            self.last_line = (self.elapsed, self.work);
        }
        if !self.active {
            return None;
        }
        if self.pace.as_mut().is_some_and(Pace::end) {
            self.active = false;
            self.rate = None;
            self.send(&ClientMessage::Active { active: false });
            return None;
        }
        self.print_step();
        // One step after the other: what is held is known when the last one has come.
        if let Some((mark, to)) = self.spec.next_growth(self.grown)
            && self.requests.is_empty()
            && self.reached(mark)
        {
            self.grown += 1;
            for ordinal in 0..self.held.len() {
                let mib = to.0.saturating_sub(self.held[ordinal]);
                if mib > 0 {
                    self.requests.push_back(Request { at: 0.0, ordinal, mib });
                }
            }
            self.ask();
        }
        if self.spec.fault_after.is_some_and(|at| at < self.spec.work_s && self.reached(at)) {
            // Only now and then does a faulting process live to tell; the host must hear of it, so it
            // is told before the process ends.
            self.send(&ClientMessage::Fault);
            return Some(End::Refused(ILLEGAL_ADDRESS.to_owned()));
        }
        // Memory that was asked for has to come before the end.
        if self.reached(self.spec.work_s) && self.requests.is_empty() {
            // Without what the wake-up came late.
            let late = (self.work - self.spec.work_s).max(0.0) / self.speed_now().max(REACHED);
            let took = self.elapsed - late;
            let _ = writeln!(self.out, "done: {} virtual s of work in {took:.1} virtual s", self.spec.work_s);
            let _ = self.out.flush();
            return Some(End::Done);
        }
        None
    }

    /// Whether it may compute: always, unless it is started and paused from outside.
    fn may_run(&mut self) -> bool {
        let Some(pace) = &mut self.pace else { return true };
        pace.greet();
        let runs = pace.runs(self.counted);
        if runs {
            pace.begin(self.work);
        }
        runs
    }

    fn reached(&self, mark: f64) -> bool {
        self.work >= mark - REACHED * mark.max(1.0)
    }

    /// Asks for memory, one request at a time.
    fn ask(&mut self) {
        if self.asked || self.host.is_none() || self.gpus.is_empty() {
            return;
        }
        let Some(request) = self.requests.front().filter(|request| request.at <= self.elapsed) else {
            return;
        };
        let message = ClientMessage::Alloc { id: self.next_id, gpu: request.ordinal, mib: request.mib };
        self.asked = true;
        self.send(&message);
    }

    /// When something is due by itself; `None`: only a message can bring news.
    fn next_event(&self) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        let mut at = |instant: Option<Instant>| {
            if let Some(instant) = instant {
                next = Some(next.map_or(instant, |other| other.min(instant)));
            }
        };
        let virtually = |seconds: f64| {
            // Rounded up to a tenth of a millisecond, so that it is due when it fires.
            let real = Duration::try_from_secs_f64((seconds / self.speed).max(0.0)).unwrap_or(Duration::MAX);
            self.counted.checked_add(real.saturating_add(Duration::from_micros(100)))
        };
        if self.host.is_none() {
            at(Some(self.retry_at));
            at(self.give_up_at);
        }
        if self.gpus.is_empty() || self.is_held() {
            return next;
        }
        if !self.active {
            match self.requests.front() {
                Some(request) if !self.asked && self.host.is_some() => {
                    at(virtually(request.at - self.elapsed))
                }
                Some(_) => {}
                None if self.elapsed < self.spec.startup_s => {
                    at(virtually(self.spec.startup_s - self.elapsed));
                }
                None => at(self.pace.as_ref().and_then(Pace::starts)),
            }
        } else if self.speed_now() > 0.0 {
            let grow = self.spec.next_growth(self.grown).map(|(mark, _)| mark);
            let step = self.pace.as_ref().map(Pace::next_step);
            let marks = [Some(self.next_line), Some(self.spec.work_s), self.spec.fault_after, grow, step];
            for mark in marks.into_iter().flatten().filter(|&mark| !self.reached(mark)) {
                at(virtually((mark - self.work) / self.speed_now()));
            }
        }
        next
    }

    /// Sleeps until then or until the host says something, and takes that in.
    fn wait(&mut self, until: Option<Instant>) -> Option<End> {
        let timeout = until.map(|until| until.saturating_duration_since(Instant::now()));
        // A span beyond the type's range is as good as none.
        let timeout = timeout.and_then(|span| rustix::time::Timespec::try_from(span).ok());
        let streams = [self.host.as_ref().map(|(stream, _)| stream), self.pace.as_ref().map(Pace::stream)];
        let mut fds: Vec<PollFd<'_>> =
            streams.iter().flatten().map(|stream| PollFd::new(*stream, PollFlags::IN)).collect();
        if poll(&mut fds, timeout.as_ref()).is_err() {
            return None;
        }
        let mut spoke = fds.iter().map(|fd| !fd.revents().is_empty());
        let host = streams[0].is_some() && spoke.next() == Some(true);
        let tool = streams[1].is_some() && spoke.next() == Some(true);
        if tool && !self.pace.as_mut().is_some_and(Pace::listen) {
            return Some(End::Done);
        }
        if host { self.listen() } else { None }
    }

    fn listen(&mut self) -> Option<End> {
        let mut buffer = [0; 16 * 1024];
        let (stream, lines) = self.host.as_mut()?;
        match stream.read(&mut buffer) {
            Ok(n) if n > 0 => lines.push(&buffer[..n]),
            Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {
                return None;
            }
            _ => {
                self.lose();
                return None;
            }
        }
        while let Some((_, lines)) = self.host.as_mut() {
            let Ok(line) = lines.next() else {
                self.lose();
                return None;
            };
            let line = line?;
            let Ok(message) = serde_json::from_slice::<HostMessage>(&line) else {
                self.lose();
                return None;
            };
            if let Some(end) = self.hear(message) {
                return Some(end);
            }
        }
        None
    }

    fn hear(&mut self, message: HostMessage) -> Option<End> {
        match message {
            HostMessage::Welcome { speed, gpus, .. } => {
                self.count(Instant::now());
                self.speed = speed;
                self.give_up_at = None;
                let first = self.gpus.is_empty();
                self.gpus = gpus;
                if first {
                    self.print_start();
                }
                None
            }
            HostMessage::Allocated { id, held_mib } => {
                if self.asked && id == self.next_id {
                    self.asked = false;
                    self.next_id += 1;
                    if let Some(request) = self.requests.pop_front() {
                        self.held[request.ordinal] = held_mib;
                    }
                }
                None
            }
            HostMessage::OutOfMemory { total_mib, free_mib, held_mib, others, .. } => {
                let request = self.requests.front()?;
                let refused = Refused {
                    ordinal: request.ordinal,
                    wanted: request.mib,
                    total: total_mib,
                    free: free_mib,
                    held: held_mib,
                    others: &others,
                };
                Some(End::Refused(refused.message()))
            }
            HostMessage::Rate { progress } => {
                // What was done until now was done at the old pace.
                self.count(Instant::now());
                self.rate = Some(progress);
                None
            }
            HostMessage::Fault => {
                // A neighbour's fault is noticed when the process next waits for the GPU.
                std::thread::sleep(NOTICES_FAULT);
                Some(End::Refused(ILLEGAL_ADDRESS.to_owned()))
            }
            HostMessage::Terminated => Some(End::Refused(TERMINATED.to_owned())),
            HostMessage::Lost { .. } => Some(End::Refused(LOST.to_owned())),
            HostMessage::Error { message } => Some(End::Refused(format!(
                "RuntimeError: No CUDA GPUs are available (the host of the virtual GPUs says: {message})"
            ))),
            HostMessage::Hold { state, gpus } => {
                self.count(Instant::now());
                self.hold = state;
                self.devices = gpus;
                // Until the host says a pace.
                self.rate = None;
                self.send(&ClientMessage::Holds { state });
                None
            }
            HostMessage::State { .. } | HostMessage::Done => None,
        }
    }

    fn connect(&mut self, now: Instant) {
        let hello = ClientMessage::Hello {
            v: VERSION,
            gpus: self.devices.clone(),
            demand: self.spec.demand(),
            mps: self.env.mps,
            thread_percent: self.env.thread_percent,
            caps_mib: (0..self.env.devices.len()).map(|i| self.env.caps.get(&i).map(|cap| cap.0)).collect(),
            held_mib: self.held.clone(),
            active: self.active,
            hold: self.is_held().then_some(self.hold),
        };
        match UnixStream::connect(&self.env.socket) {
            Ok(stream) => {
                // A host that does not read for this long is as good as gone.
                let _ = stream.set_write_timeout(Some(Duration::from_secs(5)));
                self.host = Some((stream, Lines::default()));
                if self.active {
                    // Until the new host says otherwise.
                    self.rate = self.rate.or(Some(1.0));
                }
                self.send(&hello);
            }
            Err(_) => self.retry_at = now + RECONNECT,
        }
    }

    /// The host is gone. What it gave stays ours; what was asked is asked again.
    fn lose(&mut self) {
        self.count(Instant::now());
        self.host = None;
        self.asked = false;
        self.retry_at = Instant::now() + RECONNECT;
    }

    fn send(&mut self, message: &ClientMessage) {
        if let Some((stream, _)) = self.host.as_mut()
            && stream.write_all(&line(message)).is_err()
        {
            self.lose();
        }
    }

    /// Prints the latency of each new request, if the task is a server.
    fn tell_requests(&mut self, new: f64) {
        let Some(alone_us) = self.spec.latency_us else { return };
        let ms = f64::from(alone_us) / 1000.0 / self.speed_now().max(1e-3);
        for _ in 0..new as u64 {
            let _ = writeln!(self.out, "latency {ms:.3} ms");
        }
        let _ = self.out.flush();
    }

    /// Reports progress: `done` of `steps` steps, `new` of them since the last report. A missing listener is no error.
    fn tell_steps(&mut self, done: f64, new: f64, steps: f64) {
        match &self.spec.progress {
            Progress::Bar => {
                let pace = self.speed_now() * STEPS_PER_SECOND * self.speed;
                let bar = "\u{2588}".repeat((done / steps * 10.0) as usize);
                let clock = |s: f64| format!("{:02}:{:02}", (s / 60.0) as u64, (s % 60.0) as u64);
                let left = if pace > 0.0 { clock((steps - done) / pace) } else { "?".to_owned() };
                let _ = write!(
                    self.out,
                    "\r{:3.0}%|{bar:<10}| {done:.0}/{steps:.0} [{}<{left}, {pace:5.2}it/s]",
                    done / steps * 100.0,
                    clock(self.elapsed / self.speed),
                );
                let _ = self.out.flush();
            }
            Progress::Datagrams(socket) => {
                let sender = self.beats.get_or_insert_with(|| UnixDatagram::unbound().ok());
                for _ in 0..new as u64 {
                    let _ = sender.as_ref().map(|sender| sender.send_to(b"", socket));
                }
            }
            Progress::File(file) => {
                let _ = std::fs::write(file, format!("{done:.0}"));
            }
            Progress::Lines | Progress::Silent => {}
        }
    }

    fn print_start(&mut self) {
        let names: Vec<&str> = self.gpus.iter().map(|gpu| gpu.uuid.as_str()).collect();
        let name = self.gpus.first().map_or("", |gpu| gpu.name.as_str());
        let _ = writeln!(
            self.out,
            "virtual task: {} on each of {} x {name} ({}), {} s of work; a model, not a measurement",
            self.spec.memory.max(context()),
            names.len(),
            names.join(", "),
            self.spec.work_s,
        );
        let _ = self.out.flush();
    }

    fn print_step(&mut self) {
        if !self.reached(self.next_line) || self.work <= 0.0 {
            return;
        }
        let steps = (self.spec.work_s * STEPS_PER_SECOND).ceil().max(1.0);
        let share = if self.spec.work_s > 0.0 { (self.work / self.spec.work_s).min(1.0) } else { 1.0 };
        // Waking late, it may have done several at once.
        let done = (self.work * STEPS_PER_SECOND + REACHED).floor();
        let new = (done.min(steps) - self.told).max(0.0);
        self.told = done.min(steps);
        self.tell_requests(new);
        if self.spec.progress != Progress::Lines {
            self.tell_steps(self.told, new, steps);
            self.next_line = (done + 1.0) / STEPS_PER_SECOND;
            return;
        }
        let (since, before) = self.last_line;
        let span = self.elapsed - since;
        let pace = if span > 0.0 { (self.work - before) / span } else { self.speed_now() };
        let _ =
            writeln!(self.out, "step {:.0}/{steps:.0}  {:.1} it/s", share * steps, pace * STEPS_PER_SECOND);
        let _ = self.out.flush();
        self.last_line = (self.elapsed, self.work);
        let often = if self.work < EARLY_S { EARLY_LINE_EVERY_S } else { LINE_EVERY_S };
        let every = often.max(self.spec.work_s / MOST_STEP_LINES);
        self.next_line = ((self.work / every).floor() + 1.0) * every;
    }
}

struct Refused<'a> {
    ordinal: usize,
    wanted: u64,
    total: u64,
    free: u64,
    held: u64,
    others: &'a [ProcessNote],
}

impl Refused<'_> {
    /// PyTorch 2.11's sentence, with the numbers of the model. The allocator's own memory is what the
    /// process holds besides its context.
    fn message(&self) -> String {
        let others: String = self
            .others
            .iter()
            .map(|p| format!("Process {} has {} memory in use. ", p.pid, size(p.mib)))
            .collect();
        format!(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {}. GPU {} has a total capacity of {} of \
             which {} is free. {others}Including non-PyTorch memory, this process has {} memory in use. Of the \
             allocated memory {} is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated. If \
             reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to \
             avoid fragmentation.  See documentation for Memory Management  \
             (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)",
            size(self.wanted),
            self.ordinal,
            size(self.total),
            size(self.free),
            size(self.held),
            size(self.held.saturating_sub(context().0)),
        )
    }
}

/// As PyTorch prints sizes.
fn size(mib: u64) -> String {
    match mib {
        0 => "0 bytes".to_owned(),
        1..=1023 => format!("{mib}.00 MiB"),
        _ => format!("{:.2} GiB", mib as f64 / 1024.0),
    }
}

const ILLEGAL_ADDRESS: &str = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered
Search for `cudaErrorIllegalAddress' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information.
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
";
const TERMINATED: &str = "torch.AcceleratorError: CUDA error: MPS client terminated
Search for `cudaErrorMpsClientTerminated' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information.
";
const LOST: &str = "torch.AcceleratorError: CUDA error: GPU is lost
Search for `cudaErrorDevicesUnavailable' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information.
";

fn traceback(err: &mut dyn Write, exception: &str) {
    let text = format!(
        "Traceback (most recent call last):\n  File \"virtual_task.py\", line 1, in <module>\n    main()\n{exception}\n"
    );
    // One write, so that nothing comes between its lines in a shared log.
    let _ = err.write_all(text.as_bytes());
    let _ = err.flush();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(vars: &[(&str, &str)]) -> Result<TaskEnv, TaskError> {
        TaskEnv::from_vars(|name| {
            vars.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_environment_is_read_as_cuda_reads_it() {
        let plain = env(&[(ENV_SOCKET, "/s")]).unwrap();
        assert_eq!((plain.devices, plain.mps, plain.speed), (vec!["0".to_owned()], false, 1.0));
        let full = env(&[
            (ENV_SOCKET, "/s"),
            (ENV_SPEED, "60"),
            (ENV_MPS, "1"),
            (ENV_MEMORY_LIMIT, "0=3G,1=512M"),
            (ENV_THREADS, "25"),
            ("CUDA_VISIBLE_DEVICES", "GPU-virtual-h200-1, GPU-virtual-h200-0"),
        ])
        .unwrap();
        assert_eq!(full.devices, ["GPU-virtual-h200-1", "GPU-virtual-h200-0"]);
        assert_eq!(full.caps, BTreeMap::from([(0, MiB(3072)), (1, MiB(512))]));
        assert_eq!((full.mps, full.thread_percent, full.speed), (true, Some(25), 60.0));
    }

    #[test]
    fn a_bad_environment_is_named() {
        assert!(env(&[]).unwrap_err().to_string().contains("CARMA_VIRTUAL_GPUS is not set"));
        let with = |name, value| env(&[(ENV_SOCKET, "/s"), (name, value)]).unwrap_err().to_string();
        assert_eq!(with("CUDA_VISIBLE_DEVICES", ""), "RuntimeError: No CUDA GPUs are available");
        assert_eq!(with("CUDA_VISIBLE_DEVICES", "-1"), "RuntimeError: No CUDA GPUs are available");
        for bad in ["3G", "0=3", "0=", "=3G", "0=G", "x=1G", "0=99999999999999999999G", "0=\u{e9}"] {
            assert!(with(ENV_MEMORY_LIMIT, bad).contains(ENV_MEMORY_LIMIT), "{bad}");
        }
        assert!(with(ENV_SPEED, "0").contains(ENV_SPEED));
        assert!(with(ENV_THREADS, "0").contains(ENV_THREADS));
    }

    #[test]
    fn what_is_not_given_is_assumed_near_the_h200_table() {
        for (sm, gract) in [(0.224, 0.397), (0.545, 0.707)] {
            let demand = TaskSpec { sm, ..TaskSpec::default() }.demand();
            assert!((demand.gract - gract).abs() < 0.03, "{}", demand.gract);
        }
        let full = TaskSpec { sm: 1.0, ..TaskSpec::default() }.demand();
        assert_eq!(full.gract, 1.0);
    }

    #[test]
    fn absurd_options_are_refused_by_name() {
        for (spec, name) in [
            (TaskSpec { sm: 1.5, ..TaskSpec::default() }, "sm"),
            (TaskSpec { dram: Some(f64::NAN), ..TaskSpec::default() }, "dram"),
            (TaskSpec { work_s: -1.0, ..TaskSpec::default() }, "work"),
            (TaskSpec { startup_s: f64::INFINITY, ..TaskSpec::default() }, "startup"),
        ] {
            assert!(spec.check().unwrap_err().to_string().contains(name));
        }
    }

    #[test]
    fn refused_memory_reads_as_pytorch_says_it() {
        let others = [ProcessNote { pid: 1234, mib: 9216 }];
        let refused =
            Refused { ordinal: 0, wanted: 2048, total: 40_448, free: 1229, held: 30_003, others: &others };
        let message = refused.message();
        assert!(
            message.starts_with(
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of \
                 39.50 GiB of which 1.20 GiB is free. Process 1234 has 9.00 GiB memory in use. Including non-PyTorch \
                 memory, this process has 29.30 GiB memory in use. Of the allocated memory 28.86 GiB is allocated"
            ),
            "{message}"
        );
    }

    #[test]
    fn without_a_host_it_says_so_and_ends() {
        let mut env = env(&[(ENV_SOCKET, "/nonexistent/virtual.sock")]).unwrap();
        env.patience = Duration::from_millis(1);
        let (mut out, mut err) = (Vec::new(), Vec::new());
        assert_eq!(run(&TaskSpec::default(), &env, &mut out, &mut err), 1);
        let err = String::from_utf8(err).unwrap();
        assert!(err.contains("no host of virtual GPUs answers at /nonexistent/virtual.sock"), "{err}");
        assert!(out.is_empty());
    }
}
