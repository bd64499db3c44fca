//! Why a GPU does not do for a job, and what holds its memory.
//!
//! The words are carma's own but for what a driver says; [`super::public`] takes that out.

use super::Objection;
use crate::policy::{GateVerdict, Pack};
use crate::spec::JobId;
use crate::units::{Fraction, MiB, Millis};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// A holder of GPU memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Holder {
    /// One of our jobs: what is reserved for it or what it takes, whichever is more.
    Job {
        /// Number of the job.
        job: JobId,
        /// How much.
        memory: MiB,
        /// What of that it was seen to take; `None`: not known yet. Journals from before carma kept it do not say.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        has: Option<MiB>,
        /// How long it has had the GPU without a process on it, where that is longer than most start up.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        untouched_for: Option<Millis>,
    },
    /// A process that carma did not start.
    Foreign {
        /// Its pid.
        pid: u32,
        /// Its owner.
        user: Option<Arc<str>>,
        /// How much, where known.
        memory: Option<MiB>,
    },
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Job { job, memory, has, untouched_for } => match (has, untouched_for) {
                (Some(has), _) if has >= memory || has.to_string() == memory.to_string() => {
                    write!(f, "{memory} held by job {job}")
                }
                (Some(has), _) => write!(f, "{memory} reserved for job {job} (it has {has})"),
                (None, Some(time)) => {
                    write!(f, "{memory} reserved for job {job}, which has not touched the GPU for {time}")
                }
                (None, None) => write!(f, "{memory} reserved for job {job}"),
            },
            Self::Foreign { pid, user, memory } => {
                match memory {
                    Some(memory) => write!(f, "{memory} held by pid {pid}")?,
                    None => write!(f, "unknown memory held by pid {pid}")?,
                }
                if let Some(user) = user {
                    write!(f, " of {user}")?;
                }
                f.write_str(", not ours")
            }
        }
    }
}

/// Why one GPU did not do for a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// It is gone from the machine.
    Gone,
    /// It does not answer.
    Unhealthy {
        /// What it says.
        why: String,
    },
    /// The administrator took it out of use.
    Drained {
        /// Name of the user who asked for it.
        by: Arc<str>,
    },
    /// It has not been looked at, or not lately: unknown is not free.
    Stale {
        /// Age of the last reading.
        age: Option<Millis>,
    },
    /// The policy or the job wants an idle GPU, and this one is in use.
    Busy {
        /// The jobs and processes that are there.
        holders: Vec<Holder>,
    },
    /// A job that wants no neighbours is on it.
    Exclusive {
        /// Number of the job.
        job: JobId,
    },
    /// It has less memory in all than the job needs.
    TooSmall {
        /// What it has.
        memory: MiB,
    },
    /// A MIG instance, and the job wants several GPUs.
    Slice,
    /// Not enough memory.
    Memory {
        /// Available for placement.
        free: MiB,
        /// What has the rest.
        holders: Vec<Holder>,
    },
    /// A job on it is still starting, and for it or for the newcomer there is no forecast.
    Starting {
        /// Number of the job.
        job: JobId,
        /// Since when its activity was seen; `None`: not yet.
        active_for: Option<Millis>,
        /// How long it must have been seen.
        window: Millis,
    },
    /// A job on it took more than was expected, and may go on to.
    Rising {
        /// Number of the job.
        job: JobId,
        /// What it holds.
        holds: MiB,
        /// What was expected; nothing, where nothing was known.
        forecast: MiB,
        /// For how long its memory must be still.
        window: Millis,
    },
    /// Too busy, or a metric that the gate needs is missing.
    Gate(GateVerdict),
    /// As many jobs are on it as the policy puts together.
    Full {
        /// The most.
        most: u32,
    },
    /// The policy does not put these jobs together.
    Pack {
        /// By which rule.
        rule: Pack,
        /// Load of the jobs that are there, in the rule's unit; `None`: not known.
        load: Option<u32>,
        /// Load of the newcomer.
        newcomer: Option<u32>,
    },
    /// Kept for a job that would have started by now without sharing.
    Held {
        /// That job.
        job: JobId,
    },
    /// The MPS server was torn down by a fault and takes no clients yet.
    MpsCooldown {
        /// Time left.
        left: Millis,
    },
    /// What predictions, limits of slowdown and earlier experience have against it.
    #[serde(untagged)]
    Progress(Objection),
}

impl Refusal {
    /// How close the GPU came, for choosing which refusal to show first: higher is closer.
    const fn closeness(&self) -> u8 {
        match self {
            Self::Gone => 0,
            Self::Unhealthy { .. } => 1,
            Self::Drained { .. } => 2,
            Self::Stale { .. } => 3,
            Self::TooSmall { .. } | Self::Slice => 4,
            Self::Exclusive { .. } => 5,
            Self::Busy { .. } => 6,
            Self::Memory { .. } => 7,
            Self::Gate(_) => 8,
            Self::Full { .. } => 9,
            Self::Pack { .. } => 10,
            Self::Progress(objection) => objection.closeness(),
            Self::Held { .. } => 11,
            Self::Starting { .. } | Self::Rising { .. } => 12,
            Self::MpsCooldown { .. } => 13,
        }
    }

    /// What of the GPU itself keeps the job off it; `None`: what the jobs and processes there do, or rules on them.
    #[must_use]
    pub const fn of_the_gpu(&self) -> Option<OfTheGpu> {
        match self {
            Self::Gone | Self::Unhealthy { .. } | Self::Drained { .. } => Some(OfTheGpu::OutOfUse),
            Self::Stale { .. } => Some(OfTheGpu::Unread),
            Self::TooSmall { .. } | Self::Slice => Some(OfTheGpu::Unsuited),
            Self::Busy { .. }
            | Self::Exclusive { .. }
            | Self::Memory { .. }
            | Self::Starting { .. }
            | Self::Rising { .. }
            | Self::Gate(_)
            | Self::Full { .. }
            | Self::Pack { .. }
            | Self::Progress(_)
            | Self::Held { .. }
            | Self::MpsCooldown { .. } => None,
        }
    }
}

/// What of a GPU itself keeps a job off it, whatever is on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OfTheGpu {
    /// No job can have it until it is repaired or put back into use.
    OutOfUse,
    /// No job can have it until it is read again.
    Unread,
    /// This job can never have it.
    Unsuited,
}

pub(super) fn holders(f: &mut fmt::Formatter<'_>, holders: &[Holder]) -> fmt::Result {
    const SHOWN: usize = 3;
    for (i, holder) in holders.iter().take(SHOWN).enumerate() {
        write!(f, "{}{holder}", if i == 0 { ": " } else { "; " })?;
    }
    if holders.len() > SHOWN {
        write!(f, "; and {} more", holders.len() - SHOWN)?;
    }
    Ok(())
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("no longer in this machine"),
            Self::Unhealthy { why } => write!(f, "not usable: {why}"),
            Self::Drained { by } => write!(f, "drained by {by}"),
            Self::Stale { age: None } => f.write_str("not read yet"),
            Self::Stale { age: Some(age) } => write!(f, "last reading is {age} old"),
            Self::Busy { holders: h } if h.is_empty() => {
                f.write_str("its processes could not be read, so it may be in use")
            }
            Self::Busy { holders: h } => {
                f.write_str("in use")?;
                holders(f, h)
            }
            Self::TooSmall { memory } => write!(f, "it has only {memory} in all"),
            Self::Slice => f.write_str("it is a MIG instance, of which a process sees only one"),
            Self::Exclusive { job } => write!(f, "job {job} has it exclusively"),
            Self::Memory { free, holders: h } => {
                write!(f, "{free} free")?;
                holders(f, h)
            }
            Self::Starting { job, active_for: None, .. } => {
                write!(f, "job {job} is starting: no GPU activity seen yet")
            }
            Self::Starting { job, active_for: Some(active), window } => {
                write!(f, "job {job} is starting: seen active for {active} of {window}")
            }
            Self::Rising { job, holds, forecast, window } => {
                write!(f, "job {job} holds {holds}")?;
                match *forecast {
                    MiB::ZERO => f.write_str(", more than was reserved for it")?,
                    forecast => write!(f, " where {forecast} was expected")?,
                }
                write!(f, ": no job joins it until its memory has stood still for {window}")
            }
            Self::Gate(GateVerdict::Open) => f.write_str("gate open"),
            Self::Gate(GateVerdict::Busy { smact, smocc, drama, limits: [a, o, d] }) => {
                write!(
                    f,
                    "too busy: SMACT {smact} (limit {a}), SMOCC {smocc} (limit {o}), DRAMA {drama} (limit {d})"
                )
            }
            Self::Gate(GateVerdict::Missing(metric)) => {
                write!(f, "{} is not known here, so the GPU is not shared", metric.name())
            }
            Self::Full { most } => write!(f, "{most} jobs are on it, the most that the policy puts together"),
            Self::Pack { rule, load, newcomer } => f.write_str(&apart(*rule, *load, *newcomer)),
            Self::Held { job } => write!(f, "kept for job {job}, whose turn it is"),
            Self::Progress(objection) => write!(f, "{objection}"),
            Self::MpsCooldown { left } => {
                write!(f, "its MPS server restarts after a fault, {left} left")
            }
        }
    }
}

/// Why a rule does not put jobs of these loads together.
fn apart(rule: Pack, load: Option<u32>, newcomer: Option<u32>) -> String {
    match (load, newcomer) {
        (Some(load), Some(newcomer)) => match rule {
            Pack::Any => "the policy keeps them apart".to_owned(),
            Pack::Scores { sum } | Pack::Utilisation { sum: Fraction(sum) } => format!(
                "{} {} there and {} of the newcomer are more than {}",
                rule.describe(),
                rule.show(load),
                rule.show(newcomer),
                rule.show(sum)
            ),
        },
        (_, None) => format!("the job's {} not known, so it gets a GPU alone", known_as(rule)),
        (None, Some(_)) => format!("{} of a job there not known, so it stays alone", known_as(rule)),
    }
}

const fn known_as(rule: Pack) -> &'static str {
    match rule {
        Pack::Any => "load is",
        Pack::Scores { .. } => "sharing score is",
        Pack::Utilisation { .. } => "GPU utilisation is",
    }
}

/// Why nothing was found for a job.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct NoGpu {
    /// GPUs that would have done, fewer than wanted.
    pub fitting: u32,
    /// Why each of the others did not, by GPU index.
    pub refusals: Vec<(u32, Refusal)>,
    /// Of a suspended job that comes back to the one GPU that it left, though there are others of its type: its number, for its user may
    /// move it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_by: Option<JobId>,
    /// A move of that job was tried, and another GPU would take it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub may_move: bool,
}

impl NoGpu {
    /// How many GPUs are left in the machine, where GPUs are gone and so many are wanted that they do not do.
    #[must_use]
    pub fn too_few_left(&self, wanted: u32) -> Option<usize> {
        let gone = self.refusals.iter().filter(|(_, refusal)| *refusal == Refusal::Gone).count();
        let left = self.refusals.len() - gone + self.fitting as usize;
        // Of one that comes back to its own GPU only that one is told.
        (wanted > 1 && gone > 0 && left < wanted as usize).then_some(left)
    }

    /// The refusal that came closest: among memory refusals the one with the most memory.
    #[must_use]
    pub fn closest(&self) -> Option<&(u32, Refusal)> {
        self.refusals.iter().max_by_key(|(index, refusal)| {
            let free = match refusal {
                Refusal::Memory { free, .. } => free.0,
                _ => 0,
            };
            (refusal.closeness(), free, std::cmp::Reverse(*index))
        })
    }
}
