//! A policy is data: an order, a memory screen, a gate, a few options. [`presets`] holds the
//! published ones under their names.

pub mod presets;

use crate::spec::{Basis, Estimator, Forecasts, NewJob, Profile, SharingMode};
use crate::units::{Fraction, MiB, Millis};
use crate::windows::{Metric, Risk, WindowSummary};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

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
    /// The one where the job adds most to the sum of progress, as foreseen ([`crate::slowdown`]).
    Speedup,
}

impl Order {
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
            Self::Speedup => "most progress gained, as foreseen",
        }
    }
}

/// Which of a job's forecasts a policy believes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ForecastSource {
    /// Measured in an earlier run, else declared: the papers' oracle.
    Measured,
    /// Runs of the same program; else declared by the user or computed by carma, whichever is more;
    /// else measured, else GPUMemNet's.
    Best,
    /// The Horus formula, else declared.
    Horus,
    /// Fake tensors, else declared.
    Faketensor,
    /// GPUMemNet, else declared.
    Gpumemnet,
}

impl ForecastSource {
    /// Whose word is taken, for people.
    #[must_use]
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Measured => "measured peak",
            Self::Best => "best forecast",
            Self::Horus => "Horus' estimate",
            Self::Faketensor => "FakeTensor's estimate",
            Self::Gpumemnet => "GPUMemNet's estimate",
        }
    }

    /// The estimator whose word is taken, if it is one's alone.
    const fn estimator(self) -> Option<Estimator> {
        Some(match self {
            Self::Best => return None,
            Self::Measured => Estimator::Measured,
            Self::Horus => Estimator::Horus,
            Self::Faketensor => Estimator::Faketensor,
            Self::Gpumemnet => Estimator::Gpumemnet,
        })
    }

    /// The forecast for one GPU and where it comes from.
    #[must_use]
    pub fn pick(self, f: &Forecasts) -> Option<(MiB, NeedSource)> {
        let declared = || f.declared.map(|m| (m, NeedSource::Declared));
        let said_by = |estimator| f.estimates.of(estimator).map(|m| (m, NeedSource::from(estimator)));
        if let Some(estimator) = self.estimator() {
            return said_by(estimator).or_else(declared);
        }
        let computed =
            f.computed.map(|c| (c.upper, NeedSource::Computed { basis: c.basis, coverage: c.coverage }));
        match f.computed {
            Some(c) if c.basis.is_measured() => computed,
            // Nothing of it was measured yet: the user's word is not overruled downwards.
            _ => {
                let measured = said_by(Estimator::Measured);
                declared()
                    .or(measured)
                    .filter(|(m, _)| measured.is_some() || f.computed.is_none_or(|c| c.upper <= *m))
                    .or(computed)
                    .or_else(|| said_by(Estimator::Gpumemnet))
            }
        }
    }
}

/// Where the memory that a job is said to need comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NeedSource {
    /// The user said so.
    Declared,
    /// Measured in an earlier run.
    Measured,
    /// The Horus formula.
    Horus,
    /// Fake tensors.
    Faketensor,
    /// GPUMemNet.
    Gpumemnet,
    /// Computed by carma: a bound.
    Computed {
        /// From what.
        basis: Basis,
        /// Probability with which it is meant to hold, percent.
        coverage: u8,
    },
    /// Raised by an out-of-memory.
    OutOfMemory,
    /// The policy asks the same of every job.
    PolicyFloor,
}

impl From<Estimator> for NeedSource {
    fn from(estimator: Estimator) -> Self {
        match estimator {
            Estimator::Measured => Self::Measured,
            Estimator::Horus => Self::Horus,
            Estimator::Faketensor => Self::Faketensor,
            Estimator::Gpumemnet => Self::Gpumemnet,
        }
    }
}

impl fmt::Display for NeedSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Computed { basis, coverage } => {
                return write!(f, "{basis}, upper bound at {coverage} %");
            }
            Self::Declared => "declared",
            Self::Measured => "measured",
            Self::Horus => "estimated by Horus",
            Self::Faketensor => "estimated by fake tensors",
            Self::Gpumemnet => "estimated by GPUMemNet",
            Self::OutOfMemory => "raised after out-of-memory",
            Self::PolicyFloor => "the policy's floor",
        })
    }
}

/// Which GPUs have enough memory for a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryScreen {
    /// Any: out-of-memory is left to recovery.
    None,
    /// Those with at least this much available, whatever the job.
    Floor(MiB),
    /// Those with the forecast plus a guard available. A job without a forecast gets an idle GPU,
    /// and nobody joins it before it has settled.
    Forecast {
        /// Which forecast.
        source: ForecastSource,
        /// Added to it.
        guard: MiB,
    },
}

/// Which GPUs are too busy to be shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Gate {
    /// None is.
    None,
    /// Those with risk(SMACT) >= smact AND (risk(SMOCC) >= smocc OR risk(DRAMA) >= drama).
    Thresholds {
        /// Formula.
        risk: Risk,
        /// Limit of SMACT.
        smact: Fraction,
        /// Limit of SMOCC.
        smocc: Fraction,
        /// Limit of DRAMA.
        drama: Fraction,
    },
    /// Those whose worst metric has at least this risk.
    Score {
        /// Formula.
        risk: Risk,
        /// Limit.
        limit: Fraction,
    },
}

/// What a gate says of one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GateVerdict {
    /// It may be shared.
    Open,
    /// It is too busy.
    Busy {
        /// risk(SMACT).
        smact: Fraction,
        /// risk(SMOCC).
        smocc: Fraction,
        /// risk(DRAMA).
        drama: Fraction,
        /// The limits that apply to the three.
        limits: [Fraction; 3],
    },
    /// A metric that the gate needs is not there: fail closed.
    Missing(Metric),
}

impl Gate {
    /// Judges a GPU by its windows. A missing metric closes the gate.
    #[must_use]
    pub fn judge(&self, window: &WindowSummary) -> GateVerdict {
        let (risk, limits) = match *self {
            Self::None => return GateVerdict::Open,
            Self::Thresholds { risk, smact, smocc, drama } => (risk, [smact, smocc, drama]),
            Self::Score { risk, limit } => (risk, [limit; 3]),
        };
        let mut values = [Fraction(0); 3];
        for (value, metric) in values.iter_mut().zip(Metric::ALL) {
            match window.get(metric) {
                Some(summary) => *value = risk.of(summary),
                None => return GateVerdict::Missing(metric),
            }
        }
        let [smact, smocc, drama] = values;
        let [a, o, d] = [0, 1, 2].map(|i| values[i] >= limits[i]);
        let busy = match self {
            Self::Score { .. } => a || o || d,
            Self::None | Self::Thresholds { .. } => a && (o || d),
        };
        if busy { GateVerdict::Busy { smact, smocc, drama, limits } } else { GateVerdict::Open }
    }
}

/// Which jobs may be together on a GPU, by what is known of each from a profile. A job without one
/// gets a GPU alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pack {
    /// Any.
    #[default]
    Any,
    /// Those whose sharing scores add up to at most so much (Lucid).
    Scores {
        /// Sum of the scores.
        sum: u32,
    },
    /// Those whose profiled GPU utilisation adds up to at most so much (Horus).
    Utilisation {
        /// Sum of the utilisations.
        sum: Fraction,
    },
}

impl Pack {
    fn is_any(&self) -> bool {
        *self == Self::Any
    }

    /// What is limited, for people.
    #[must_use]
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Any => "nothing",
            Self::Scores { .. } => "sharing scores",
            Self::Utilisation { .. } => "profiled GPU utilisation",
        }
    }

    /// A load as people write it.
    #[must_use]
    pub fn show(self, load: u32) -> String {
        match self {
            Self::Any | Self::Scores { .. } => load.to_string(),
            Self::Utilisation { .. } => Fraction(load).to_string(),
        }
    }

    /// What a job adds to the sum that is limited: a score, or basis points. `None`: not known.
    #[must_use]
    pub fn load(self, profile: Profile) -> Option<u32> {
        match self {
            Self::Any => Some(0),
            Self::Scores { .. } => profile.score.map(u32::from),
            Self::Utilisation { .. } => profile.gpu_util.map(|f| f.0),
        }
    }

    /// Whether a job with this load may join so many others with that load between them. `None`:
    /// the load of one of them is not known.
    #[must_use]
    pub fn allows(self, others: u32, load: Option<u32>, newcomer: Option<u32>) -> bool {
        if others == 0 {
            return true;
        }
        match self {
            Self::Any => true,
            Self::Scores { sum } => within(load, newcomer, sum),
            Self::Utilisation { sum } => within(load, newcomer, sum.0),
        }
    }
}

fn within(load: Option<u32>, newcomer: Option<u32>, most: u32) -> bool {
    matches!((load, newcomer), (Some(a), Some(b)) if a.saturating_add(b) <= most)
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
    /// The most jobs on one GPU; `None`: as many as the other rules let in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most_jobs: Option<u32>,
    /// Idle GPUs are taken first, in index order, whatever the order says.
    pub idle_first: bool,
    /// `None`: strict FIFO, the first job that does not fit stops all behind it. `Some(t)`: later
    /// jobs may overtake one that waits, until it has waited for `t`.
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
        if let Some(most) = self.most_jobs {
            parts.push(format!("at most {most} jobs"));
        }
        if parts.is_empty() { "none".into() } else { parts.join(", ") }
    }

    /// Whether a promise follows what is observed from the first look on. The published policies' do not.
    #[must_use]
    pub(crate) const fn follows_early(&self) -> bool {
        matches!(self.memory, MemoryScreen::Forecast { source: ForecastSource::Best, .. })
    }
}

/// How out-of-memory is recovered from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecoveryMethod {
    /// Raise the floor step by step.
    Graded,
    /// Retry on a GPU alone at once: CARMA's original method.
    Exclusive,
}

/// Everything else that decisions depend on. An input like any other, so that a replay knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Options {
    /// The policy in force.
    pub policy: Policy,
    /// Sharing mode of jobs that do not ask for one; `Exclusive` is not a default but a policy.
    pub sharing: SharingMode,
    /// Whether MPS clients get a hard memory limit from their forecast.
    pub caps: bool,
    /// How far the activity windows reach back, and how long a job must have been seen active
    /// before its GPU counts as settled.
    pub window: Millis,
    /// A tenant that shows no GPU activity for this long no longer keeps its GPU closed.
    pub startup_patience: Millis,
    /// A reading older than this is no reading.
    pub stale_after: Millis,
    /// A settled job's promise shrinks to its observed peak plus this percentage ...
    pub margin_percent: u64,
    /// ... but at least plus this.
    pub margin_min: MiB,
    /// Whether MPS servers are shared by users.
    pub mps_multi_user: bool,
    /// The user that carma runs as, who may do what root may.
    pub admin_uid: u32,
    /// From the polite signal to the kill.
    pub kill_grace: Millis,
    /// How recovery works.
    pub recovery: RecoveryMethod,
    /// Out-of-memory retries for jobs that do not say.
    pub max_retries: u32,
    /// Requeues without charge before the job gets a GPU alone.
    pub max_free_retries: u32,
    /// Faults on one GPU within this time of the first belong together.
    pub fault_window: Millis,
    /// After a fatal fault, the MPS server takes no new client for about this long.
    pub mps_cooldown: Millis,
    /// How much neighbours may slow down jobs that do not say; `None`: nothing is promised.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_slowdown: Option<Fraction>,
    /// How long a job's progress must have been measured, and how old a measurement may be, to break a promise.
    #[serde(default = "slowdown_window")]
    pub slowdown_window: Millis,
    /// How much a user may have at once.
    #[serde(default, skip_serializing_if = "Allowances::is_unlimited")]
    pub allowances: Allowances,
}

/// How much one user's jobs may have at once; more of them wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Allowance {
    /// Jobs that are starting or running; `None`: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jobs: Option<u32>,
    /// GPUs of all of them, one that two of them share counted twice; `None`: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<u32>,
}

/// What each user may have at once.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Allowances {
    /// Who is not named below.
    #[serde(default)]
    pub everybody: Allowance,
    /// Users with an allowance of their own, by uid.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub of: BTreeMap<u32, Allowance>,
}

impl Allowances {
    /// What a user may have.
    #[must_use]
    pub fn of(&self, uid: u32) -> Allowance {
        self.of.get(&uid).copied().unwrap_or(self.everybody)
    }

    /// Whether nobody is limited.
    #[must_use]
    pub fn is_unlimited(&self) -> bool {
        *self == Self::default()
    }

    /// Says what a user may have; `true`: that is news.
    pub fn set(&mut self, uid: u32, allowance: Allowance) -> bool {
        if self.of(uid) == allowance {
            return false;
        }
        if allowance == self.everybody {
            self.of.remove(&uid);
        } else {
            self.of.insert(uid, allowance);
        }
        true
    }
}

/// Long enough for a few steps of most tasks; what journals of before promises take it to be.
const fn slowdown_window() -> Millis {
    Millis::secs(15)
}

impl Options {
    /// What the policy believes a job needs on each GPU. Where the `carma` policy ([`ForecastSource::Best`])
    /// has only an estimate or an earlier run that the user names to go by, the margin is added: runs of
    /// one command differ by a few percent, and what is reserved is also a hard limit under MPS. What a
    /// user declares is taken at its word, and what carma computed is a bound already. A job that only a
    /// hard limit bounds has no forecast where it gets none.
    #[must_use]
    pub fn forecast(&self, job: &NewJob) -> Option<(MiB, NeedSource)> {
        let f = &job.forecasts;
        let MemoryScreen::Forecast { source, .. } = self.policy.memory else {
            // Exclusive GPUs need no forecast, and the recovery-only policies ignore it.
            return None;
        };
        let (need, from) = source.pick(f)?;
        let computed = matches!(from, NeedSource::Computed { .. });
        let limited = || self.caps && job.request.sharing.unwrap_or(self.sharing) == SharingMode::Mps;
        if computed && f.computed.is_some_and(|c| c.elastic) && !limited() {
            return None;
        }
        let exact = source != ForecastSource::Best || computed || from == NeedSource::Declared;
        Some((if exact { need } else { need + self.margin(need) }, from))
    }

    /// What is added to a peak that was seen, to be safe.
    #[must_use]
    pub fn margin(&self, peak: MiB) -> MiB {
        peak.percent(self.margin_percent).max(self.margin_min)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            policy: presets::default_policy(),
            sharing: SharingMode::TimeSlice,
            caps: true,
            window: Millis::secs(30),
            startup_patience: Millis::secs(300),
            stale_after: Millis::secs(5),
            margin_percent: 10,
            margin_min: MiB(512),
            mps_multi_user: false,
            admin_uid: 0,
            kill_grace: Millis::secs(10),
            recovery: RecoveryMethod::Graded,
            max_retries: 5,
            max_free_retries: 3,
            fault_window: Millis::secs(20),
            mps_cooldown: Millis::secs(5),
            max_slowdown: None,
            slowdown_window: slowdown_window(),
            allowances: Allowances::default(),
        }
    }
}
