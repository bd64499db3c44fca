//! A policy is data: an order, a memory screen, a gate, a few options. [`presets`] holds the
//! published ones under their names.
//!
//! Nothing here places a job. The plan reads what a policy says.

mod gate;
mod need;
mod objective;
mod options;
mod pack;
pub mod presets;

pub use gate::{Gate, GateVerdict};
pub(crate) use need::unknown_need;
pub use need::{ForecastSource, MemoryScreen, NeedSource};
pub use objective::Objective;
pub use options::{Allowance, Allowances, Options, RecoveryMethod};
pub use pack::Pack;

use crate::units::{Fraction, MiB, Millis};
use serde::{Deserialize, Serialize};

/// Which of the GPUs that would do is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Idle GPUs only, in index order: no sharing.
    Exclusive,
    /// The next one on a ring over all GPUs.
    RoundRobin,
    /// The first in index order.
    FirstFit,
    /// The one with the least memory free.
    BestFit,
    /// MAGM, most available GPU memory.
    Magm,
    /// LUG, least utilised GPU: lowest risk of SMACT.
    Lug,
    /// The one whose jobs have the lowest sum of what [`Pack`] limits; then the most memory free.
    LeastLoad,
    /// The one where the job adds most to the sum of progress, as predicted ([`crate::slowdown`]).
    Speedup,
    /// The same among those that have jobs. Idle GPUs come last.
    Packed,
    /// The one whose jobs, the newcomer among them, are predicted to get most done together: KACE's rule. Where nothing is
    /// predicted no job joins.
    Throughput,
}

impl Order {
    /// Whether it goes by what is predicted of jobs beside each other.
    pub(crate) const fn is_predicted(self) -> bool {
        matches!(self, Self::Speedup | Self::Packed | Self::Throughput)
    }

    /// What the order prefers, for people.
    #[must_use]
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Exclusive => "idle GPUs only",
            Self::RoundRobin => "next in the ring",
            Self::FirstFit => "first that fits",
            Self::BestFit => "least memory free",
            Self::Magm => "most memory free",
            Self::Lug => "lowest SM activity",
            Self::LeastLoad => "lowest profiled load",
            Self::Speedup => "most progress gained, as predicted",
            Self::Packed => "GPUs in use first, most progress gained, as predicted",
            Self::Throughput => "most work done together, as predicted",
        }
    }
}

/// Which of the jobs that wait is looked at first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Line {
    /// The one that came first.
    #[default]
    Arrival,
    /// The one that is expected to take the fewest GPU-seconds. Every job has a bound on its start: when it would have
    /// started without sharing, all in the order of submission. Jobs over that bound go first, the earliest
    /// bound first, and GPUs are kept for those that find none.
    Shortest,
    /// The one that is expected to take the most GPU-seconds, with the same bound on every start.
    Longest,
}

impl Line {
    /// Whether it goes by what jobs are expected to take, weighted by user, with a bound on every start.
    #[must_use]
    pub const fn is_by_length(self) -> bool {
        matches!(self, Self::Shortest | Self::Longest)
    }

    fn is_arrival(&self) -> bool {
        *self == Self::Arrival
    }
}

/// How much it weighs what a user has had lately per share, over the mean of all users with jobs, where jobs go by length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Weighing {
    /// As its square root, from a quarter to 4.
    #[default]
    Root,
    /// As its square, from 1/256 to 256.
    Square,
}

impl Weighing {
    fn is_root(&self) -> bool {
        *self == Self::Root
    }
}

const fn whole() -> Fraction {
    Fraction::ONE
}

fn is_whole(bound: &Fraction) -> bool {
    *bound == whole()
}

fn is_zero(slack: &Fraction) -> bool {
    *slack == Fraction::ZERO
}

/// A job would wait long whose wait is so many times its run, and has waited long after so many. What they cost: docs/research/tried.md.
const LONG_WAIT: u64 = 8;
const PATIENCE: u64 = 2;

/// What must be predicted before a job joins others. Progress is speed beside the others over speed alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// What a job is expected to keep when it joins. Those that are there may be slower for a while ([`Self::dip`]), as long
    /// as they are not over their whole run ([`Self::whole_run`]).
    pub floor: Fraction,
    /// The sum of all jobs' expected progress grows by at least this much. Not asked of a job that is over the bound on
    /// its start.
    pub gain: Fraction,
}

impl Progress {
    /// What is asked of a newcomer that takes so long alone, would wait so long for a GPU of its own, and has waited for [`Self::patience`]. The
    /// floor is there for its sake: where it would wait for hours to run for minutes it is two fifths, at which it is done long before it would start
    /// alone. `None`: the floor as it is.
    pub(crate) fn after_waiting(self, run: Millis, wait: Millis) -> Option<Fraction> {
        (wait.0 / LONG_WAIT >= run.0).then_some(Fraction(self.floor.0 / 5 * 2))
    }

    /// How long a job waits for a place at the floor as it is.
    #[must_use]
    pub const fn patience(run: Millis) -> Millis {
        Millis(run.0.saturating_mul(PATIENCE))
    }

    /// The same with this floor, if there is one.
    #[must_use]
    pub fn with(self, floor: Option<Fraction>) -> Self {
        Self { floor: floor.unwrap_or(self.floor), ..self }
    }

    /// The same where a command was seen at work beside others only: six fifths of the floor, 1 at most. Jobs that were only seen together on
    /// full GPUs look alike there, so that predictions for them are too high (docs/research/h200.md). For a command that was never seen the
    /// floor stays: its first run teaches.
    #[must_use]
    pub(crate) const fn unsure(self) -> Self {
        Self { floor: self.whole_run(), ..self }
    }

    /// What a job that is there is expected to keep at any time: four fifths of the floor.
    #[must_use]
    pub const fn dip(self) -> Fraction {
        Fraction(self.floor.0 / 5 * 4)
    }

    /// What a job that is there must be measured to keep: nine tenths of that. A floor holds in expectation, and what is measured is judged
    /// with a little patience.
    #[must_use]
    pub const fn least_measured(self) -> Fraction {
        Fraction(self.dip().0 / 10 * 9)
    }

    /// What a job that is there is expected to keep over its whole run, if its neighbours stay: six fifths of the floor, 1 at
    /// most. Both were chosen on CARMA's traces and made-up ones, for mean completion time at less slowdown.
    #[must_use]
    pub const fn whole_run(self) -> Fraction {
        let part = self.floor.0 / 5 * 6;
        if part < Fraction::ONE.0 { Fraction(part) } else { Fraction::ONE }
    }
}

/// Everything that decides where a job goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// Name, e.g. `or-magm`.
    pub name: String,
    /// Order among the GPUs that would do.
    pub order: Order,
    /// Memory screen.
    pub memory: MemoryScreen,
    /// Activity gate.
    pub gate: Gate,
    /// Which jobs go together.
    #[serde(default, skip_serializing_if = "Pack::is_any")]
    pub pack: Pack,
    /// Which job is looked at first.
    #[serde(default, skip_serializing_if = "Line::is_arrival")]
    pub line: Line,
    /// Where jobs go by length: the bound on a job's wait, over its wait without sharing.
    #[serde(default = "whole", skip_serializing_if = "is_whole")]
    pub bound: Fraction,
    /// What is added to it for a job that takes turns and whose run time is an estimate. Taking turns gains little, so that there is
    /// a line, and keeping GPUs for a job that only seems to be overdue costs all others in it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub slack: Fraction,
    /// Where jobs go by length: how much it weighs what users have had.
    #[serde(default, skip_serializing_if = "Weighing::is_root")]
    pub weighing: Weighing,
    /// What must be predicted of jobs that share; `None`: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// A job of whose memory nothing is known gets a part of what is free, beside others, with a hard limit where there is
    /// one; else it gets an idle GPU.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub blind: bool,
    /// The most jobs on one GPU; `None`: as many as the other rules let in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most_jobs: Option<u32>,
    /// Idle GPUs are taken first, in index order, whatever the order says.
    pub idle_first: bool,
    /// `None`: strict FIFO, the first job that does not fit stops all behind it. `Some(t)`: later
    /// jobs may overtake one that waits, until it has waited for `t`. Where jobs go by length, only the bound counts.
    pub backfill: Option<Millis>,
    /// Memory kept free on each GPU.
    pub reserve: MiB,
}

impl Policy {
    /// What must hold before a job may join others on a GPU, for people.
    #[must_use]
    pub fn precondition(&self) -> String {
        if self.order == Order::Exclusive {
            return "an idle GPU".into();
        }
        let mut parts = Vec::new();
        match self.memory {
            MemoryScreen::None => {}
            MemoryScreen::Floor(floor) => parts.push(format!("{floor} free")),
            MemoryScreen::Forecast { source, guard } => {
                let guard = if guard > MiB::ZERO { format!(" + {guard}") } else { String::new() };
                parts.push(format!("{}{guard} free", source.describe()));
            }
        }
        match self.gate {
            Gate::None => {}
            Gate::Thresholds { smact, smocc, drama, .. } => {
                parts.push(format!("SMACT below {smact} (or SMOCC below {smocc} and DRAMA below {drama})"));
            }
            Gate::Score { limit, .. } => parts.push(format!("activity score below {limit}")),
        }
        match self.pack {
            Pack::Any => {}
            Pack::Scores { sum } => parts.push(format!("{} up to {sum}", self.pack.describe())),
            Pack::Utilisation { sum } => parts.push(format!("{} up to {sum}", self.pack.describe())),
        }
        if self.order == Order::Throughput {
            parts.push("a prediction".to_owned());
        }
        if let Some(Progress { floor, gain }) = self.progress {
            parts.push(format!("predicted progress of each {floor} or more, of all {gain} more than before"));
        }
        if let Some(most) = self.most_jobs {
            parts.push(format!("at most {most} jobs"));
        }
        if parts.is_empty() { "none".into() } else { parts.join(", ") }
    }

    /// Whether it goes by what is predicted of jobs beside each other.
    #[must_use]
    pub const fn goes_by_predictions(&self) -> bool {
        self.order.is_predicted() || self.progress.is_some()
    }

    /// Whether what earlier runs took goes before what users declare. The published policies go by their estimators.
    #[must_use]
    pub const fn goes_by_runs(&self) -> bool {
        matches!(self.memory, MemoryScreen::Forecast { source: ForecastSource::Best, .. })
    }

    /// Whether a reservation follows what is observed from the first look on. The published policies' do not.
    #[must_use]
    pub(crate) const fn follows_early(&self) -> bool {
        self.goes_by_runs()
    }
}
