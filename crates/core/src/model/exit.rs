//! How a process ended, and what it took of the host.
//!
//! What that means for the job is the state's to say.

use crate::recovery::Evidence;
use crate::units::{MiB, Millis, is_zero};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitStatus {
    /// It returned this code.
    Code(i32),
    /// This signal killed it.
    Signal(i32),
    /// Not seen: the supervisor was gone.
    Unknown,
}

impl ExitStatus {
    /// The code a shell would show: 128 + signal for a killed process.
    #[must_use]
    pub const fn shell_code(self) -> Option<i32> {
        match self {
            Self::Code(code) => Some(code),
            Self::Signal(signal) => Some(128 + signal),
            Self::Unknown => None,
        }
    }
}

impl fmt::Display for ExitStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => match signal_name(*signal) {
                Some(name) => write!(f, "signal {signal} ({name})"),
                None => write!(f, "signal {signal}"),
            },
            Self::Unknown => f.write_str("exit status unknown"),
        }
    }
}

/// Names of the signals that end jobs in practice (Linux numbers).
const fn signal_name(signal: i32) -> Option<&'static str> {
    Some(match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        _ => return None,
    })
}

/// The end of an attempt, with what its log says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// How the first process ended.
    pub status: ExitStatus,
    /// What the tail of the log gives away.
    pub evidence: Option<Evidence>,
    /// The last line of the log of a command that failed at once, where that gives nothing away: it is no evidence, and tells its user most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_line: Option<Box<str>>,
    /// Set when the command never ran: why (no such program, directory gone, ...).
    pub not_started: Option<String>,
    /// With `not_started`: the machine lacked something (memory, descriptors, room on its disk), which is no fault of
    /// the job's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub machine: bool,
    /// With `not_started`: the user who submitted it does not exist any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_gone: Option<Box<UserGone>>,
    /// Whether something may have asked it to end, or to save its work, before it ended. An end that was decided may come too late for that.
    /// `None`: not known, as of supervisors from before carma recorded it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<bool>,
    /// What the attempt took of the host, where its cgroup tells.
    #[serde(default, skip_serializing_if = "HostUse::is_unknown")]
    pub host: HostUse,
    /// When it ended, where no daemon ran to see it and it is told of no later than its energy is known; `None`: when it is told of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Millis>,
}

/// At its start the uid of the user who submitted a job has no user, or one of another name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserGone {
    /// The user who has that uid now; `None`: no user has.
    pub now: Option<Arc<str>>,
}

impl Exit {
    /// An end of this kind, of which nothing more is known.
    #[must_use]
    pub const fn of(status: ExitStatus) -> Self {
        Self {
            status,
            evidence: None,
            last_line: None,
            not_started: None,
            machine: false,
            user_gone: None,
            asked: None,
            host: HostUse::UNKNOWN,
            ended: None,
        }
    }
}

/// What an attempt took of the host, from its cgroup (kernel documentation, `cgroup-v2.rst`). What the hierarchy has no
/// controller for is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct HostUse {
    /// Most memory that all its processes had together (`memory.peak`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_peak: Option<MiB>,
    /// The limit that was set (`memory.max`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<MiB>,
    /// Time on processors, user and system (`cpu.stat`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Millis>,
    /// Most processes and threads at once (`pids.peak`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes_peak: Option<u32>,
    /// Kills for want of memory (`oom_kill` in `memory.events`). Where the whole group is ended, the kernel counts its
    /// first process twice (Linux 6.1), so this is no number of processes.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub oom_kills: u32,
}

impl HostUse {
    const UNKNOWN: Self =
        Self { memory_peak: None, memory_limit: None, cpu: None, processes_peak: None, oom_kills: 0 };

    /// Whether nothing is known.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        *self == Self::UNKNOWN
    }
}
