//! The protocol by which a job's command is started once, and its end told truly, whatever dies: a
//! model of it, small enough that every order of events is tried. Not shipped.
//!
//! # What stands for what
//!
//! | model | code |
//! |---|---|
//! | [`Job`] in [`State::journal`] | what `State::apply` makes of the journal's inputs |
//! | [`Job`] in [`Daemon::view`] | the state that the engine's thread owns; equal to the journal but in a mutation |
//! | [`Action::Live`] | `run/adopt`: a start of the daemon, a nonce and a directory `run/LIFE/` of its own, the journal replayed |
//! | [`Action::Decide`] | input `Decided(Launch)`, committed before `perform` sees it |
//! | [`Action::Spawn`], [`Action::WatchFails`] | `run/launch`: the supervisor's process; and a failure after it is there (`pidfd_open`) |
//! | [`Action::Claim`] | `run/record`: the hard link to `run/LIFE/JOB.ATTEMPT.record` by the supervisor |
//! | [`Action::StartCommand`] | `run/supervise`: the look at the blocked SIGTERM, the command's process in the record, the command let go |
//! | [`Action::Hello`] | `run/watch`: the line in the pipe, input `Running` |
//! | [`Action::Forward`] | `run/supervise`: SIGTERM is passed on to the command, unless that has ended |
//! | [`Action::Exit`] | the command ends |
//! | [`Action::Record`] | `run/supervise`: the exit, and whether the command was asked for it, is appended to the record, the supervisor ends |
//! | [`Action::See`], [`Action::Reread`], [`Action::SeeOrphan`] | `run/watch`: the pidfd is readable, the record is read, input `Exited` |
//! | [`Action::RemoveRecord`], [`Action::Sweep`] | the record goes once the journal has the end; a life's directory, once nothing decided in it is under way |
//! | [`Action::Adopt`], [`Action::Open`] | `run/adopt`: exit record, claim, fence; then the supervisor's pidfd |
//! | [`Action::Cancel`], [`Action::Requeue`] | inputs of users; committed at once |
//! | [`Action::EndAttempt`] | `perform`, `EndAttempt`: fenced if nobody has claimed, signalled otherwise; then the user is answered |
//! | [`Action::KillSupervisor`], [`Action::DaemonDies`], [`Action::MachineDies`] | `kill -9`, and the power |
//! | [`Action::Restore`] | the operator puts another journal in place, which uses numbers again |
//!
//! # What is left out
//!
//! A commit is one step: SQLite sees to that. The claim is one step: a hard link is. The supervisor's last
//! look at its signals and the command's start are one step: what lies between them is a few system
//! calls. That step also holds the entry of the command's process in the record, since the command is let
//! go only once the entry is written; [`Mutation::LetGoBeforeRecorded`] shows what happens otherwise.
//!
//! Nothing is undone and no state comes again, so each order of events ends; a test makes sure of it.
//! "No job is stuck" is therefore a property of the states in which nothing more can happen.

mod properties;
mod step;

pub use properties::NAMES;

use std::collections::BTreeMap;

/// The most attempts of a job.
pub const ATTEMPTS: usize = 2;

/// How the code could be wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    /// An attempt without a claim is decided anew, and nothing is put in the way of its supervisor.
    NoFence,
    /// What was decided is carried out before the journal has it.
    DecideWithoutCommit,
    /// A record counts for an attempt of that number, whichever life it lies in.
    BelieveAnotherLife,
    /// The fence alone is removed once the attempt is over; the directory stays.
    RemoveFenceAlone,
    /// A life's directory is removed while an attempt of it is under way.
    SweepUnderWay,
    /// When the supervisor is found dead, the record is not read again.
    ReadOnce,
    /// A process is believed to be the recorded one though the machine was started anew.
    BelieveAnotherBoot,
    /// A failure after the spawn is told as "not started", and nothing is fenced.
    NotFencedAfterSpawn,
    /// A claim without a command counts as an end that nobody saw.
    UnknownWithoutCommand,
    /// The command runs before its process stands in the record.
    LetGoBeforeRecorded,
    /// A cancel is answered before the attempt is fenced or signalled.
    AnswerBeforeEnd,
    /// The supervisor starts the command without a look at its signals.
    IgnoreSignal,
    /// An attempt that a daemon's death kept from starting counts as a failed launch.
    ChargeDeaths,
    /// The claim is written over whatever is there, rather than linked.
    ClaimOverwrites,
    /// What ends after its end was decided counts as ended by that, whether or not the signal had come to it.
    DecidedIsAsked,
}

/// A protocol to be checked, and how much may happen.
#[derive(Debug, Clone)]
pub struct Protocol {
    /// Number of jobs.
    pub jobs: usize,
    /// Lives of the daemon; it dies once less.
    pub lives: u8,
    /// Supervisors that are killed.
    pub supervisor_kills: u8,
    /// Deaths of the machine; each takes a life of the daemon.
    pub machine_deaths: u8,
    /// Cancels, of all jobs together.
    pub cancels: u8,
    /// Requeues, of all jobs together.
    pub requeues: u8,
    /// Failures after a spawn.
    pub watch_failures: u8,
    /// Journals that are put in place of another.
    pub restores: u8,
    /// What is wrong with it.
    pub mutation: Option<Mutation>,
}

impl Protocol {
    /// A protocol without faults, with three lives of the daemon; nothing else dies.
    #[must_use]
    pub const fn new(jobs: usize) -> Self {
        Self {
            jobs,
            lives: 3,
            supervisor_kills: 0,
            machine_deaths: 0,
            cancels: 0,
            requeues: 0,
            watch_failures: 0,
            restores: 0,
            mutation: None,
        }
    }

    fn is(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum End {
    /// Exit code 0.
    Zero,
    /// Another exit code.
    Other,
    /// The signal ended it.
    Signalled,
    /// Nobody saw it.
    Unknown,
}

/// What the journal says of an attempt that is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Over {
    /// Input `NotLaunched`: no command of it was started, and none will be.
    NotLaunched,
    /// Input `Exited`.
    Exited(End),
}

/// What became of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// State COMPLETED.
    Completed,
    /// State FAILED.
    Failed,
    /// State CANCELLED.
    Cancelled,
}

/// Where a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// It waits.
    Pending,
    /// An attempt is decided, and nobody has said hello.
    Launching,
    /// Its command is known to run.
    Running,
    /// It is over.
    Done(Outcome),
}

/// A job, as the journal has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Job {
    /// Where it is.
    pub phase: Phase,
    /// Number of the last attempt; 0: none yet.
    pub attempt: u8,
    /// Life in which that was decided.
    pub life: u8,
    /// A user has cancelled it.
    pub cancel: bool,
    /// A user wants it back in the queue.
    pub requeue: bool,
    /// Ends of its attempts.
    pub over: [Option<Over>; ATTEMPTS],
    /// Failed launches that it was charged with.
    pub charges: u8,
}

impl Job {
    const NEW: Self = Self {
        phase: Phase::Pending,
        attempt: 0,
        life: 0,
        cancel: false,
        requeue: false,
        over: [None; ATTEMPTS],
        charges: 0,
    };

    /// Whether an attempt of it is under way.
    #[must_use]
    pub const fn is_under_way(&self) -> bool {
        matches!(self.phase, Phase::Launching | Phase::Running)
    }
}

/// What a living daemon knows of the attempt that is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Watch {
    /// There is none.
    Idle,
    /// The launcher has it.
    Launching,
    /// It was under way when this life began, or could not be watched: its record is to be looked at.
    Adopting,
    /// It is claimed, and there was no exit record.
    SawClaim,
    /// Its supervisor is watched.
    Supervisor,
    /// Its supervisor is dead; the record is to be read again.
    SawDead,
    /// Its supervisor is dead, its command is watched.
    Orphan,
    /// A stranger is watched, who has the number of a process of before the machine died.
    Stranger,
}

/// The daemon.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Daemon {
    /// Whether it lives.
    pub alive: bool,
    /// Its life, from 1; 0: it was never started.
    pub life: u8,
    /// The jobs, as it has them in memory.
    pub view: Vec<Job>,
    /// What it knows of their attempts.
    pub watch: Vec<Watch>,
    /// Attempts that the launcher has still to spawn, a bit each.
    pub to_spawn: Vec<u8>,
    /// Whether it has done what a cancel or requeue asks for.
    pub told: Vec<bool>,
}

/// A supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Supervisor {
    /// It runs, and has not claimed.
    Spawned,
    /// It has claimed.
    Claimed,
    /// It has started the command.
    Started,
    /// It is dead.
    Gone,
}

/// A command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Command {
    /// Not started.
    None,
    /// It runs; whether it was signalled.
    Alive(bool),
    /// It has ended; whether it was signalled before.
    Ended(End, bool),
}

/// The processes of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Run {
    /// The supervisor.
    pub supervisor: Supervisor,
    /// Whether SIGTERM waits for the supervisor.
    pub signal: bool,
    /// The command.
    pub command: Command,
    /// Whether a hello lies in the pipe to the life that spawned it.
    pub hello: bool,
}

/// A record's exit entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Written {
    /// Nothing was started, since a signal had come.
    NotStarted,
    /// The command's end, and whether it was signalled before.
    Ended(End, bool),
}

/// A record file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Record {
    /// The daemon's.
    Fence,
    /// A supervisor's.
    Claimed {
        /// Whether the command's process stands in it.
        command: bool,
        /// The exit.
        exit: Option<Written>,
        /// The boot in which it was written.
        boot: u8,
    },
}

/// An attempt: life in which it was decided, job, number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Life, from 1.
    pub life: u8,
    /// Job, from 0.
    pub job: usize,
    /// Attempt, from 1.
    pub attempt: u8,
}

/// What only the checker knows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Ghost {
    /// First life of this journal.
    pub since: u8,
    /// How often commands were started, by job and attempt.
    pub starts: Vec<[u8; ATTEMPTS]>,
    /// Ends that stood in a record, by job and attempt, and whether the command was signalled before.
    pub written: Vec<[Option<(End, bool)>; ATTEMPTS]>,
    /// Jobs whose cancel was answered.
    pub answered: Vec<bool>,
    /// A command was started after its job's cancel was answered.
    pub late_start: bool,
}

/// A state of the whole model: disk, daemon, supervisors, jobs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    /// What is on disk.
    pub journal: Vec<Job>,
    /// The daemon.
    pub daemon: Daemon,
    /// Lives whose directories are there, a bit each.
    pub directories: u8,
    /// Record files.
    pub records: BTreeMap<Key, Record>,
    /// Processes of the attempts.
    pub runs: BTreeMap<Key, Run>,
    /// Boot of the machine.
    pub boot: u8,
    /// What may still happen: supervisors killed, machine deaths, cancels, requeues, failures after a spawn, journals.
    pub left: [u8; 6],
    /// What only the checker knows.
    pub ghost: Ghost,
}

/// What may happen. Jobs are counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The daemon starts: a fresh life, its directory on disk, the journal replayed.
    Live,
    /// The next attempt of a job is decided, and in the journal.
    Decide(usize),
    /// The launcher spawns a supervisor for an attempt.
    Spawn(usize, u8),
    /// The same, but it cannot be watched.
    WatchFails(usize, u8),
    /// A supervisor claims, or finds that it may not and ends.
    Claim(Key),
    /// A supervisor looks at its signals, and starts the command unless one has come.
    StartCommand(Key),
    /// In a mutation only: the command's process comes into the record late.
    RecordCommand(Key),
    /// The daemon reads a hello.
    Hello(usize),
    /// A supervisor passes a signal on to its command.
    Forward(Key),
    /// A command ends.
    Exit(Key, End),
    /// A supervisor leaves the exit record and ends.
    Record(Key),
    /// The daemon sees that a supervisor has ended.
    See(usize),
    /// The daemon reads the record of a supervisor that is dead.
    Reread(usize),
    /// The daemon sees that a command without a supervisor has ended.
    SeeOrphan(usize),
    /// The daemon looks at the record of an attempt that was under way.
    Adopt(usize),
    /// It looks whether the supervisor that claimed lives.
    Open(usize),
    /// The daemon removes a record that the journal does not need any more.
    RemoveRecord(Key),
    /// The daemon removes the directory of a life.
    Sweep(u8),
    /// A user cancels.
    Cancel(usize),
    /// A user wants a job back in the queue.
    Requeue(usize),
    /// The daemon does what a cancel or requeue asks for, and answers.
    EndAttempt(usize),
    /// A supervisor is killed.
    KillSupervisor(Key),
    /// The daemon is killed.
    DaemonDies,
    /// The machine loses power; whether records that were not yet safe are lost.
    MachineDies(bool),
    /// Another journal is put in place of this one while no daemon runs.
    Restore,
}
