//! Jobs leave their GPUs and come back, by the driver's checkpoint calls.
//!
//! A call may hang for ever. So each errand is run by a process of its own, carma itself, re-executed, which is given up at
//! its deadline; what it had begun is undone by another. In the *book*, a file beside the attempt's record, it says which
//! processes it is about before it touches one: so a daemon that starts anew can have an errand done to its end. One errand
//! at a time has the book.

mod errand;
pub mod host;

pub use errand::{ARGUMENT, main};

use super::cgroup::Group;
use super::checkpoint::members;
use carma_core::model::{JobId, ProcessRef};
use carma_core::units::MiB;
use carma_gpu::checkpoint::cuda;
use carma_gpu::checkpoint::steps::Failed;
use carma_gpu::checkpoint::swap;
use errand::{Answer, Errand, Work, may_have_touched};
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a process may take to finish its work on the GPU. It stands still meanwhile.
const LOCK: Duration = Duration::from_secs(10);
/// What an errand may take beside: a driver that wakes sleeping GPUs needs seconds.
const BASE: Duration = Duration::from_secs(20);
/// What it may take for each GiB. Measured on H200s: .75 s at most to leave the GPU, .2 s to come back.
const PER_GIB: Duration = Duration::from_secs(3);
/// How long processes on a GPU are looked for.
const SEEN: Duration = Duration::from_secs(5);
/// Between two looks whether something is there.
const POLL: Duration = Duration::from_millis(10);
/// Longest answer that is read, bytes.
const LONGEST: u64 = 1 << 16;

/// Whose calls suspend processes.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Driver {
    /// The CUDA driver's.
    Cuda,
    /// Those of the virtual GPUs that are hosted at this socket.
    Virtual(PathBuf),
}

impl Driver {
    /// The machine's driver.
    ///
    /// # Errors
    /// In words, where it cannot suspend processes.
    pub fn find() -> Result<Self, String> {
        cuda::open(None).map(|_| Self::Cuda)
    }

    /// Whether it puts processes back on other GPUs, too.
    #[must_use]
    pub fn moves(&self) -> bool {
        match self {
            Self::Cuda => cuda::open(None).is_ok_and(|cuda| cuda.moves()),
            Self::Virtual(_) => true,
        }
    }

    /// Whether what leaves a GPU goes to the host's memory.
    #[must_use]
    pub const fn takes_host_memory(&self) -> bool {
        matches!(self, Self::Cuda)
    }
}

/// A job that is to leave its GPUs or to come back.
pub struct Subject {
    /// Number of the job.
    pub job: JobId,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// Its supervisor.
    pub supervisor: ProcessRef,
    /// Its first process.
    pub child: Option<ProcessRef>,
    /// Its cgroup, where it has one.
    pub group: Option<Group>,
    /// Its book.
    pub book: PathBuf,
    /// What it holds, or held, on its GPUs.
    pub memory: MiB,
}

/// What is to be done with it.
pub enum What {
    /// It leaves its GPUs. UUIDs of those.
    Suspend(Vec<Arc<str>>),
    /// It comes back.
    Resume {
        /// UUID of the GPU that it was on.
        from: Arc<str>,
        /// UUID of the GPU that it comes back to.
        to: Arc<str>,
        /// UUIDs of all GPUs that carma uses.
        all: Vec<Arc<str>>,
    },
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It has left its GPUs, and takes so much memory of the host.
    Suspended(MiB),
    /// It runs again.
    Resumed,
    /// Nothing has changed; or, where it is stuck, its state is unknown.
    Failed {
        /// The cause, in words.
        why: String,
        /// Whether it is stuck.
        stuck: bool,
    },
}

/// Where outcomes go.
pub type Report = Arc<dyn Fn(JobId, u32, Outcome) + Send + Sync>;

/// Says which processes are on GPUs of these UUIDs, by a look from now: it may take its time.
pub type OnGpus = Arc<dyn Fn(&[Arc<str>]) -> Vec<u32> + Send + Sync>;

/// Has errands done, each on a thread of its own.
pub struct Suspender {
    /// Whose calls; or why there are none, in words.
    pub driver: Result<Driver, String>,
    /// UUIDs of the machine's GPUs that carma may not use.
    pub hidden: Vec<Arc<str>>,
    /// Tells which processes are on GPUs.
    pub on_gpus: OnGpus,
    /// Takes the outcomes.
    pub report: Report,
}

impl Suspender {
    /// Has a job leave its GPUs or come back.
    pub fn begin(&self, subject: Subject, what: What) {
        let (job, attempt) = (subject.job, subject.attempt);
        let fail = |why: String| (self.report)(job, attempt, Outcome::Failed { why, stuck: false });
        let driver = match &self.driver {
            Ok(driver) => driver.clone(),
            Err(why) => return fail(why.clone()),
        };
        let mut what = what;
        if let What::Resume { all, .. } = &mut what {
            all.extend(self.hidden.iter().cloned());
        }
        let (on_gpus, report) = (self.on_gpus.clone(), self.report.clone());
        let work = move || {
            let outcome = carry_out(&driver, &on_gpus, &subject, &what);
            match &outcome {
                Outcome::Failed { why, stuck: true } => tracing::error!("job {job} is stuck: {why}"),
                Outcome::Failed { why, stuck: false } => tracing::warn!("job {job}: {why}"),
                Outcome::Suspended(_) | Outcome::Resumed => {}
            }
            report(job, attempt, outcome);
        };
        if let Err(e) = std::thread::Builder::new().name("suspend".into()).spawn(work) {
            fail(format!("no thread can be had: {e}"));
        }
    }
}

fn carry_out(driver: &Driver, on_gpus: &OnGpus, subject: &Subject, what: &What) -> Outcome {
    let (work, processes) = match what {
        What::Suspend(gpus) => (Work::Suspend { lock: LOCK }, own(on_gpus, gpus, subject)),
        What::Resume { from, to, .. } if from == to => (Work::Resume { pairs: Vec::new() }, Vec::new()),
        What::Resume { from, to, all } => {
            (Work::Resume { pairs: swap(all.iter().map(|uuid| &**uuid), from, to) }, Vec::new())
        }
    };
    let gib = u32::try_from(subject.memory.0.div_ceil(1024)).unwrap_or(u32::MAX);
    let deadline = BASE
        .saturating_add(PER_GIB.saturating_mul(gib))
        .saturating_add(LOCK.saturating_mul(u32::try_from(processes.len()).unwrap_or(u32::MAX)));
    let errand = Errand {
        driver: driver.clone(),
        work,
        processes,
        group: subject.group.as_ref().map(|group| group.dir().to_owned()),
        book: subject.book.clone(),
    };
    have_done(|errand| run(errand, deadline), subject, &errand)
}

/// Has an errand done, by `run`, and what is needed after one that was not.
fn have_done(
    run: impl Fn(&Errand) -> Result<Answer, NoAnswer>,
    subject: &Subject,
    errand: &Errand,
) -> Outcome {
    let suspends = matches!(errand.work, Work::Suspend { .. });
    let first = run(errand);
    // Of one that was to leave, and of which nothing was touched yet, there is nothing to undo. An errand that did not come
    // as far as the driver may follow one that did, of a daemon that was killed.
    let to_undo = match &first {
        _ if !suspends => None,
        Err(NoAnswer::GivenUp(why)) => Some(why.clone()),
        Err(NoAnswer::NotStarted(why)) => may_have_touched(&subject.book).then(|| why.clone()),
        Ok(Answer::Failed(failed)) => may_have_touched(&subject.book).then(|| said(failed)),
        Ok(Answer::Done(_)) => None,
    };
    if let Some(why) = to_undo {
        // It goes on where it was.
        let more = match run(&Errand { work: Work::Undo, processes: Vec::new(), ..errand.clone() }) {
            Ok(Answer::Done(_)) => return Outcome::Failed { why, stuck: false },
            Ok(Answer::Failed(more)) => more.why,
            Err(more) => more.why(),
        };
        let stuck = may_have_touched(&subject.book);
        return Outcome::Failed { why: format!("{why}; then {more}"), stuck };
    }
    let answer = match first {
        // One that was to come back does: what is missing is done.
        Err(NoAnswer::GivenUp(why)) => match run(&Errand { processes: Vec::new(), ..errand.clone() }) {
            Ok(answer) => answer,
            Err(more) => {
                return Outcome::Failed { why: format!("{why}; then {}", more.why()), stuck: true };
            }
        },
        Err(NoAnswer::NotStarted(why)) => return Outcome::Failed { why, stuck: false },
        Ok(answer) => answer,
    };
    match answer {
        Answer::Done(took) => {
            let done = if suspends { "is suspended" } else { "runs again" };
            tracing::info!("job {} {done}: {took:?}", subject.job);
            let host = if errand.driver.takes_host_memory() { subject.memory } else { MiB::ZERO };
            if suspends { Outcome::Suspended(host) } else { Outcome::Resumed }
        }
        Answer::Failed(failed) => Outcome::Failed { why: said(&failed), stuck: failed.stuck.is_some() },
    }
}

/// What went wrong, in words.
fn said(failed: &Failed) -> String {
    match &failed.stuck {
        Some(more) => format!("{}; and it cannot go back: {more}", failed.why),
        None => failed.why.clone(),
    }
}

/// The job's processes on these GPUs. Where none is seen it is looked again for a while: after a restart of the daemon,
/// processes may not have found the virtual GPUs again yet.
fn own(on_gpus: &OnGpus, gpus: &[Arc<str>], subject: &Subject) -> Vec<ProcessRef> {
    let since = Instant::now();
    loop {
        let members = members(subject.supervisor, subject.child, subject.group.as_ref());
        let mut pids = on_gpus(gpus);
        pids.sort_unstable();
        pids.dedup();
        // As they were when they were found to be the job's: a number may be another process's by now.
        let own = pids
            .into_iter()
            .filter_map(|pid| Some(ProcessRef { pid, start_ticks: members.get(&pid)?.start_ticks }));
        let own: Vec<ProcessRef> = own.collect();
        if !own.is_empty() || since.elapsed() >= SEEN {
            return own;
        }
        std::thread::sleep(POLL);
    }
}

/// Why an errand has no answer, in words.
#[derive(Debug, Clone)]
enum NoAnswer {
    /// Nothing was done.
    NotStarted(String),
    /// How far it came is not known.
    GivenUp(String),
}

impl NoAnswer {
    fn why(self) -> String {
        let (Self::NotStarted(why) | Self::GivenUp(why)) = self;
        why
    }
}

/// Has an errand done by a process of its own.
fn run(errand: &Errand, deadline: Duration) -> Result<Answer, NoAnswer> {
    let none = |e: io::Error| format!("the process that calls the driver cannot be started: {e}");
    let mut child = spawn(errand).map_err(|e| NoAnswer::NotStarted(none(e)))?;
    let since = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => {
                let mut text = Vec::new();
                let answer = child.stdout.take().map(|out| out.take(LONGEST).read_to_end(&mut text));
                let told = answer.and_then(|_| serde_json::from_slice(&text).ok());
                let why = || format!("the process that calls the driver ended with {status}");
                return told.ok_or_else(|| NoAnswer::GivenUp(why()));
            }
            Ok(None) if since.elapsed() < deadline => std::thread::sleep(POLL),
            Ok(None) | Err(_) => {
                let _ = child.kill();
                // One that hangs in the kernel ends when the kernel lets it.
                let reap = move || drop(child.wait());
                let _ = std::thread::Builder::new().name("give up".into()).spawn(reap);
                let why = format!("the driver has not answered within {} s", deadline.as_secs());
                return Err(NoAnswer::GivenUp(why));
            }
        }
    }
}

fn spawn(errand: &Errand) -> io::Result<Child> {
    let mut stdin = File::from(memfd_create("carma-errand", MemfdFlags::CLOEXEC)?);
    stdin.write_all(&serde_json::to_vec(errand).map_err(io::Error::other)?)?;
    stdin.rewind()?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("carma-suspend").arg(ARGUMENT).env_clear();
    // Where the driver's library lies, if not where the system looks.
    if let Some(path) = std::env::var_os("LD_LIBRARY_PATH") {
        command.env("LD_LIBRARY_PATH", path);
    }
    command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::inherit()).current_dir("/").spawn()
}

#[cfg(test)]
mod tests {
    use super::*;
    use carma_gpu::checkpoint::steps::Took;
    use carma_process::process;
    use std::cell::RefCell;

    const ME: ProcessRef = ProcessRef { pid: 1, start_ticks: 1 };

    #[test]
    fn a_process_is_the_one_that_was_found_to_be_the_jobs() {
        let child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let found = process::identify(child.id()).unwrap();
        let child = std::sync::Mutex::new(child);
        // It ends while the GPUs are looked at; another might have its number by then.
        let look: OnGpus = Arc::new(move |_| {
            let mut child = child.lock().unwrap();
            child.kill().unwrap();
            child.wait().unwrap();
            vec![found.pid]
        });
        let subject = Subject {
            job: JobId(1),
            attempt: 1,
            supervisor: process::identify(std::process::id()).unwrap(),
            child: None,
            group: None,
            book: PathBuf::new(),
            memory: MiB(1),
        };
        assert_eq!(own(&look, &[], &subject), [found]);
    }

    /// What came of a suspension whose errands, the undoing one with them, end so; and how many there were.
    fn outcome(named: bool, answers: &[Result<Answer, NoAnswer>]) -> (Outcome, usize) {
        let dir = tempfile::tempdir().unwrap();
        let book = dir.path().join("1.1.suspend");
        let list = if named { vec![ME] } else { Vec::new() };
        std::fs::write(&book, serde_json::to_vec(&list).unwrap()).unwrap();
        let subject = Subject {
            job: JobId(1),
            attempt: 1,
            supervisor: ME,
            child: None,
            group: None,
            book: book.clone(),
            memory: MiB(1),
        };
        let driver = Driver::Virtual(PathBuf::new());
        let work = Work::Suspend { lock: LOCK };
        let errand = Errand { driver, work, processes: vec![ME], group: None, book };
        let (left, run) = (RefCell::new(answers.to_vec()), RefCell::new(0));
        let outcome = have_done(
            |errand| {
                assert_eq!(matches!(errand.work, Work::Undo), *run.borrow() > 0);
                *run.borrow_mut() += 1;
                left.borrow_mut().remove(0)
            },
            &subject,
            &errand,
        );
        (outcome, run.into_inner())
    }

    #[test]
    fn what_an_earlier_errand_may_have_done_is_undone_where_this_one_cannot_go_on() {
        let none = || Err(NoAnswer::NotStarted("no process".into()));
        let failed = |stuck: Option<&str>| {
            Ok(Answer::Failed(Failed { why: "no driver".into(), stuck: stuck.map(str::to_owned) }))
        };
        let done = || Ok(Answer::Done(Took::default()));
        let stuck = |(outcome, run)| match outcome {
            Outcome::Failed { stuck, .. } => (stuck, run),
            other => panic!("{other:?}"),
        };
        for first in [none(), failed(None), failed(Some("it is checkpointed"))] {
            assert_eq!(stuck(outcome(true, &[first.clone(), done()])), (false, 2), "{first:?}");
            assert_eq!(stuck(outcome(true, &[first.clone(), none()])), (true, 2), "{first:?}");
            assert_eq!(stuck(outcome(true, &[first.clone(), failed(None)])), (true, 2), "{first:?}");
        }
        // Of which nothing was touched, it runs on.
        for first in [none(), failed(None)] {
            assert_eq!(stuck(outcome(false, &[first])), (false, 1));
        }
        assert!(matches!(outcome(true, &[done()]), (Outcome::Suspended(_), 1)));
    }
}
