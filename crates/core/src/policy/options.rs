//! Everything that decisions depend on beside the policy: sharing, patience, margins, retries, allowances.
//!
//! An input like any other. Where it is configured is the daemon's.

use super::need::{ForecastSource, MemoryScreen, NeedSource};
use super::{Objective, Policy, presets};
use crate::spec::{NewJob, SharingMode};
use crate::units::{Fraction, MiB, Millis};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Margin on the peak of a job whose memory grows, percent.
const GROWING_MARGIN: u64 = 40;

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
    /// Sharing mode of jobs that do not ask for one; where MPS cannot be had, they are time-sliced. `Exclusive` is not a
    /// default but a policy.
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
    /// A settled job's reservation shrinks to its observed peak plus this percentage ...
    pub margin_percent: u64,
    /// ... but at least plus this.
    pub margin_min: MiB,
    /// Whether MPS servers are shared by users.
    pub mps_multi_user: bool,
    /// Whether jobs on several GPUs share by MPS, where the end of one of their processes is a fatal fault for others
    /// (docs/recovery.md); else they are time-sliced unless they ask for MPS themselves.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub mps_several_gpus: bool,
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
    /// How much neighbours may slow down jobs that do not say; `None`: by any factor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_slowdown: Option<Fraction>,
    /// How long a job's progress must have been measured, and how old a measurement may be, to exceed a limit.
    #[serde(default = "slowdown_window")]
    pub slowdown_window: Millis,
    /// Whether a policy may take running jobs off their GPUs for a while, by the driver's checkpoint calls, where it would
    /// else end them or have others wait. Set by the daemon, which knows the driver.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspends: bool,
    /// Whether it may then put them back on another GPU of the type.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub moves: bool,
    /// How much a user may have.
    #[serde(default, skip_serializing_if = "Allowances::is_unlimited")]
    pub allowances: Allowances,
    /// After this long what a user has had counts half as much, where users are held against each other.
    #[serde(default = "usage_half_life", skip_serializing_if = "is_usual_half_life")]
    pub usage_half_life: Millis,
    /// How long a quota is for. Periods follow each other from the Unix epoch on.
    #[serde(default = "quota_period", skip_serializing_if = "is_usual_period")]
    pub quota_period: Millis,
}

/// How much one user's jobs may have, at once and in a period; more of them wait. And the user's share where several wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allowance {
    /// Jobs that are starting or running; `None`: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jobs: Option<u32>,
    /// GPUs of all of them, one that two of them share counted twice; `None`: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<u32>,
    /// GPU-hours in a quota period, those on shared GPUs in part; `None`: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_hours: Option<u32>,
    /// Energy in a quota period, joules; `None`: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy_j: Option<u64>,
    /// How much of the GPUs is the user's, over what is another's, where several wait. 0 counts as 1.
    #[serde(default = "one_share", skip_serializing_if = "is_one_share")]
    pub share: u32,
}

const fn yes() -> bool {
    true
}

const fn is_yes(value: &bool) -> bool {
    *value
}

const fn one_share() -> u32 {
    1
}

const fn is_one_share(share: &u32) -> bool {
    *share == one_share()
}

impl Default for Allowance {
    fn default() -> Self {
        Self { jobs: None, gpus: None, gpu_hours: None, energy_j: None, share: one_share() }
    }
}

impl Allowance {
    /// How many more jobs and GPUs at once a user may have whose jobs that start or run are so many, on so many GPUs.
    pub(crate) fn left(self, jobs: u32, gpus: u32) -> (u32, u32) {
        let left = |most: Option<u32>, has| most.map_or(u32::MAX, |most| most.saturating_sub(has));
        (left(self.jobs, jobs), left(self.gpus, gpus))
    }
}

/// What each user may have.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Allowances {
    /// Of users who are not named below. Journals say "everybody".
    #[serde(default, rename = "everybody")]
    pub for_all: Allowance,
    /// Users with an allowance of their own, by uid.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub of: BTreeMap<u32, Allowance>,
}

impl Allowances {
    /// What a user may have.
    #[must_use]
    pub fn of(&self, uid: u32) -> Allowance {
        self.of.get(&uid).copied().unwrap_or(self.for_all)
    }

    /// A user's share.
    #[must_use]
    pub fn share_of(&self, uid: u32) -> u32 {
        self.of(uid).share.max(1)
    }

    /// Whether no user has a limit, and all have the same share.
    #[must_use]
    pub fn is_unlimited(&self) -> bool {
        *self == Self::default()
    }

    /// Says what a user may have; `true`: that is news.
    pub fn set(&mut self, uid: u32, allowance: Allowance) -> bool {
        if self.of(uid) == allowance {
            return false;
        }
        if allowance == self.for_all {
            self.of.remove(&uid);
        } else {
            self.of.insert(uid, allowance);
        }
        true
    }
}

/// Long enough for a few steps of most tasks; what journals from before there were limits take it to be.
const fn slowdown_window() -> Millis {
    Millis::secs(15)
}

/// A week.
const fn usage_half_life() -> Millis {
    Millis::secs(7 * 86_400)
}

fn is_usual_half_life(span: &Millis) -> bool {
    *span == usage_half_life()
}

/// About a month.
const fn quota_period() -> Millis {
    Millis::secs(30 * 86_400)
}

fn is_usual_period(span: &Millis) -> bool {
    *span == quota_period()
}

impl Options {
    /// When the quota period began in which a time lies.
    #[must_use]
    pub fn period_of(&self, at: Millis) -> Millis {
        Millis(at.0 - at.0 % self.quota_period.0.max(1))
    }

    /// When the next quota period begins.
    #[must_use]
    pub fn next_period(&self, now: Millis) -> Millis {
        self.period_of(now) + Millis(self.quota_period.0.max(1))
    }

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

    /// The memory of the GPU for which the forecast is a share, where it is one.
    pub(crate) fn share_of(&self, job: &NewJob) -> Option<MiB> {
        match self.forecast(job)? {
            (_, NeedSource::Computed { .. }) => job.forecasts.computed?.of_gpu,
            _ => None,
        }
    }

    /// What is added to a peak that was seen, to be safe.
    #[must_use]
    pub fn margin(&self, peak: MiB) -> MiB {
        peak.percent(self.margin_percent).max(self.margin_min)
    }

    /// The same for a job whose memory grows.
    pub(crate) fn growing_margin(&self, peak: MiB) -> MiB {
        self.margin(peak).max(peak.percent(GROWING_MARGIN))
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            policy: presets::adaptive(Objective::default()),
            sharing: SharingMode::Mps,
            caps: true,
            window: Millis::secs(30),
            startup_patience: Millis::secs(300),
            stale_after: Millis::secs(5),
            margin_percent: 10,
            margin_min: MiB(512),
            mps_multi_user: false,
            mps_several_gpus: true,
            admin_uid: 0,
            kill_grace: Millis::secs(10),
            recovery: RecoveryMethod::Graded,
            max_retries: 5,
            max_free_retries: 3,
            fault_window: Millis::secs(20),
            mps_cooldown: Millis::secs(5),
            max_slowdown: None,
            slowdown_window: slowdown_window(),
            suspends: false,
            moves: false,
            allowances: Allowances::default(),
            usage_half_life: usage_half_life(),
            quota_period: quota_period(),
        }
    }
}

impl Options {
    /// The defaults under a policy, as its authors ran it: recovery from out-of-memory by their method, hard limits of memory and
    /// suspension under carma's own policies only.
    #[must_use]
    pub fn of(policy: Policy) -> Self {
        let ours = presets::is_ours(&policy.name);
        let recovery = presets::recovery_of(&policy.name);
        Self { policy, recovery, caps: ours, suspends: ours, moves: ours, ..Self::default() }
    }

    /// The MPS server of a user's jobs: jobs of one server run side by side, those of several take turns (docs/sharing.md).
    pub(crate) const fn server_of(&self, uid: u32) -> u32 {
        if self.mps_multi_user { 0 } else { uid }
    }
}
