//! The ledger: per GPU, what is promised to each job and what is observed of it.
//!
//! Free for placement = capacity - sum of max(promised, observed) per tenant - foreign - reserve.

use crate::look::{Foreign, Observation};
use crate::policy::Options;
use crate::reading::{GpuInfo, Health};
use crate::recovery::Glances;
use crate::spec::JobId;
use crate::units::{Fraction, MiB, Millis};
use crate::windows::{Metric, WindowSummary};
use serde::{Deserialize, Serialize};

/// Memory that carma has set aside for a tenant on one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Promise {
    /// This much.
    Memory(MiB),
    /// Everything: the need is unknown, so nobody joins before the job has settled.
    Whole,
    /// Nothing: the policy in force when it was placed ignores memory.
    None,
}

/// What a job did to a GPU while it had it for itself: sums over looks whose windows were full of it,
/// basis points. A metric that was missing once is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Alone {
    /// Looks.
    pub looks: u32,
    /// SM activity.
    pub smact: Option<u64>,
    /// Warp occupancy.
    pub smocc: Option<u64>,
    /// DRAM activity.
    pub drama: Option<u64>,
}

impl Alone {
    /// One look.
    fn look(window: &WindowSummary) -> Self {
        let mean = |metric| window.get(metric).map(|summary| u64::from(summary.mean.0));
        Self { looks: 1, smact: mean(Metric::Smact), smocc: mean(Metric::Smocc), drama: mean(Metric::Drama) }
    }

    /// Both together: another look, or another of the job's GPUs.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        let sum = |a: Option<u64>, b: Option<u64>| a.zip(b).map(|(a, b)| a + b);
        match (self.looks, other.looks) {
            (0, _) => other,
            (_, 0) => self,
            _ => Self {
                looks: self.looks.saturating_add(other.looks),
                smact: sum(self.smact, other.smact),
                smocc: sum(self.smocc, other.smocc),
                drama: sum(self.drama, other.drama),
            },
        }
    }

    /// Means of SMACT, SMOCC and DRAMA.
    #[must_use]
    pub fn means(&self) -> [Option<Fraction>; 3] {
        let mean = |sum: Option<u64>| {
            let mean = sum?.checked_div(u64::from(self.looks))?;
            u32::try_from(mean).ok().map(Fraction)
        };
        [mean(self.smact), mean(self.smocc), mean(self.drama)]
    }
}

/// One job on one GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenant {
    /// Which job.
    pub job: JobId,
    /// What is set aside.
    pub promise: Promise,
    /// The forecast or floor that the promise was made from.
    pub forecast: Option<MiB>,
    /// Whether the job wants no neighbours.
    pub exclusive: bool,
    /// Memory seen last.
    pub observed: Option<MiB>,
    /// Most memory seen.
    pub peak: Option<MiB>,
    /// When it was placed.
    pub placed: Millis,
    /// When it was first seen on the GPU.
    pub active_since: Option<Millis>,
    /// Whether its first window is full.
    pub settled: bool,
    /// Whether it ever had a neighbour (ours) or a foreign process beside it.
    pub shared: bool,
    /// What it did while it never had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alone: Option<Alone>,
    /// What it needs at the least, as computed beforehand: seen below that, it has not begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub needs: Option<MiB>,
    /// How its memory grows.
    #[serde(default, skip_serializing_if = "Growth::is_none")]
    pub growth: Growth,
}

/// How a tenant's memory grows, by looks at its peak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Growth {
    /// Peak at the last notable rise.
    #[serde(default, skip_serializing_if = "MiB::is_zero")]
    pub to: MiB,
    /// When that was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Millis>,
    /// Notable rises after the first minute.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub late: u32,
    /// When it was last seen to take more than was set aside for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exceeded: Option<Millis>,
}

const fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// With static shapes memory reaches its peak within the first steps, the first evaluation and the
/// first partial batch: within about this time (reference note on estimators, section 3.4).
const FIRST_MINUTE: Millis = Millis::secs(60);
/// So many rises after that are no evaluation and no last batch: the memory grows.
const GROWING: u32 = 3;
/// Margin on the peak of a job whose memory grows, percent.
const GROWING_MARGIN: u64 = 40;

impl Growth {
    fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Whether it rose again and again long after the start.
    #[must_use]
    pub const fn is_growing(&self) -> bool {
        self.late >= GROWING
    }

    fn look(&mut self, peak: MiB, now: Millis, active_since: Option<Millis>) {
        if peak <= self.to || peak - self.to < MiB(16).max(self.to.percent(1)) {
            return;
        }
        let late = active_since.is_some_and(|since| now.since(since) > FIRST_MINUTE);
        *self = Self { to: peak, at: Some(now), late: self.late.saturating_add(u32::from(late)), ..*self };
    }
}

/// How an attempt's memory was seen to grow, for those who learn from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenMemory {
    /// How long it was seen on its GPUs.
    pub active: Millis,
    /// How long before its end the peak last rose notably.
    pub still: Millis,
    /// Whether it rose again and again long after the start.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub growing: bool,
}

impl Tenant {
    /// Memory that this tenant takes from placement, on a GPU of this capacity.
    #[must_use]
    pub fn takes(&self, capacity: MiB) -> MiB {
        self.promised(capacity).max(self.observed.unwrap_or_default())
    }

    /// What is set aside for it on a GPU of this capacity.
    fn promised(&self, capacity: MiB) -> MiB {
        match self.promise {
            Promise::Memory(m) => m,
            Promise::Whole => capacity,
            Promise::None => MiB::ZERO,
        }
    }

    /// What goes on top of a peak that was seen.
    fn margin(&self, peak: MiB, options: &Options) -> MiB {
        let margin = options.margin(peak);
        if self.growth.is_growing() { margin.max(peak.percent(GROWING_MARGIN)) } else { margin }
    }

    /// Whether what it has not taken may be given to others. Without a computed need, as soon as it has
    /// settled. With one, carma knows better when it has begun: after the first minute, once its memory
    /// is still, and not while it holds less than it can run with (it loads data, or compiles).
    fn may_release(&self, peak: MiB, now: Millis, options: &Options) -> bool {
        let (Some(needs), Some(since)) = (self.needs, self.active_since) else { return true };
        let active = now.since(since);
        let still = self.growth.at.is_some_and(|at| now.since(at) >= options.window);
        let begun = peak >= needs.percent(75) || active >= options.startup_patience;
        active >= FIRST_MINUTE.max(options.window) && still && begun
    }

    /// How its memory was seen to grow, at its end.
    pub(crate) fn seen(&self, now: Millis) -> Option<SeenMemory> {
        let active = now.since(self.active_since?);
        let still = now.since(self.growth.at?);
        Some(SeenMemory { active, still, growing: self.growth.is_growing() })
    }

    /// Until when nobody else is admitted because it took more than was set aside for it.
    #[must_use]
    pub fn rising_until(&self, options: &Options) -> Option<Millis> {
        self.growth.exceeded.map(|at| at + options.window)
    }
}

/// One GPU: what it is, who has it, how it was last seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// What it is.
    pub info: GpuInfo,
    /// Whether the inventory still names it.
    pub present: bool,
    /// Who took it out of use.
    pub drained_by: Option<std::sync::Arc<str>>,
    /// Who has it, by job number.
    pub tenants: Vec<Tenant>,
    /// How it was last seen.
    pub seen: Option<Observation>,
    /// How its memory looked in the last looks, for verdicts on those who run out of it.
    #[serde(default, skip_serializing_if = "Glances::is_empty")]
    pub recent: Glances,
    /// The last fatal fault under MPS.
    pub last_fault: Option<Millis>,
    /// When a tenant last came or went.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed: Option<Millis>,
}

impl Gpu {
    /// A GPU that nobody has and nobody has looked at.
    #[must_use]
    pub const fn new(info: GpuInfo) -> Self {
        Self {
            info,
            present: true,
            drained_by: None,
            tenants: Vec::new(),
            seen: None,
            recent: Glances::new(),
            last_fault: None,
            changed: None,
        }
    }

    /// The tenancy of a job.
    #[must_use]
    pub fn tenant(&self, job: JobId) -> Option<&Tenant> {
        self.tenants.iter().find(|t| t.job == job)
    }

    /// Memory in use that is not ours: other people's processes and what the driver keeps.
    /// Zero before the first look; [`Gpu::free`] is `None` then.
    #[must_use]
    pub fn foreign_memory(&self) -> MiB {
        let used = self.seen.as_ref().and_then(|s| s.used).unwrap_or_default();
        used - self.tenants.iter().filter_map(|t| t.observed).sum()
    }

    /// Memory free for another placement, or `None` when the GPU's memory is not known.
    #[must_use]
    pub fn free(&self, reserve: MiB) -> Option<MiB> {
        self.seen.as_ref()?.used?;
        let taken: MiB = self.tenants.iter().map(|t| t.takes(self.info.memory)).sum();
        Some(self.info.memory - taken - self.foreign_memory() - reserve)
    }

    /// Processes that carma did not start.
    #[must_use]
    pub fn foreign(&self) -> &[Foreign] {
        self.seen.as_ref().map_or(&[], |s| &s.foreign)
    }

    /// Why jobs on it have lost it, if they have.
    pub(crate) fn lost(&self) -> Option<String> {
        match self.seen.as_ref().map(|s| &s.health) {
            _ if !self.present => Some("it is no longer in this machine".into()),
            Some(Health::Lost(why)) => Some(why.clone()),
            _ => None,
        }
    }

    /// Whether nobody, ours or not, is on it. Unknown is not idle, and neither is a GPU where a
    /// process of a job that is over lingers.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.tenants.is_empty()
            && self
                .seen
                .as_ref()
                .is_some_and(|s| s.processes_known && s.foreign.is_empty() && s.jobs.is_empty())
    }

    /// Whether the ledger allows one more tenant: nobody wants to be alone, and the promises stay
    /// within the memory. Beside tenants without a promise nothing can be said of memory.
    pub(crate) fn has_room(&self, promise: Promise, exclusive: bool) -> bool {
        if self.tenants.is_empty() {
            return true;
        }
        if exclusive || self.tenants.iter().any(|t| t.exclusive) {
            return false;
        }
        let promises = || self.tenants.iter().map(|t| t.promise).chain([promise]);
        if promises().any(|p| p == Promise::None) {
            return true;
        }
        let mut sum = MiB::ZERO;
        for promise in promises() {
            match promise {
                Promise::Memory(m) => sum += m.min(self.info.memory),
                Promise::Whole | Promise::None => return false,
            }
        }
        sum <= self.info.memory
    }

    /// Adds a tenant.
    pub(crate) fn add(&mut self, tenant: Tenant) {
        let at = self.tenants.partition_point(|t| t.job < tenant.job);
        self.tenants.insert(at, tenant);
        if self.tenants.len() > 1 {
            for tenant in &mut self.tenants {
                tenant.shared = true;
            }
        }
    }

    /// Removes a tenant. Its memory is gone with its processes, so the last look is corrected
    /// rather than showing it as somebody else's until the next one.
    pub(crate) fn remove(&mut self, job: JobId, now: Millis) -> Option<Tenant> {
        let at = self.tenants.iter().position(|t| t.job == job)?;
        let tenant = self.tenants.remove(at);
        if let Some(seen) = &mut self.seen {
            seen.jobs.retain(|(j, _)| *j != job);
            if let (Some(used), Some(observed)) = (&mut seen.used, tenant.observed) {
                *used = *used - observed;
            }
            self.recent.take(seen, now);
        }
        Some(tenant)
    }

    /// Takes a new look and lets the promises follow what is observed.
    pub(crate) fn observe(&mut self, seen: Observation, options: &Options) {
        let now = seen.at;
        let has_foreign = !seen.foreign.is_empty();
        for tenant in &mut self.tenants {
            tenant.shared |= has_foreign;
            let process = seen.jobs.iter().find(|(job, _)| *job == tenant.job);
            if seen.processes_known {
                tenant.observed = process.and_then(|(_, memory)| *memory);
            }
            tenant.peak = tenant.peak.max(tenant.observed);
            if process.is_some() && tenant.active_since.is_none() {
                tenant.active_since = Some(now);
            }
            if let Some(peak) = tenant.peak {
                tenant.growth.look(peak, now, tenant.active_since);
            }
        }
        self.settle(now, options);
        if options.policy.follows_early() {
            self.raise(now, options);
        }
        if let [tenant] = self.tenants.as_mut_slice()
            && tenant.settled
            && !tenant.shared
        {
            tenant.alone = Some(tenant.alone.unwrap_or_default().with(Alone::look(&seen.window)));
        }
        self.recent.take(&seen, now);
        self.seen = Some(seen);
    }

    /// Raises promises that were too small, as far as the others' leave room. Nobody is admitted for a
    /// window after that (see the plan): a job that has exceeded its forecast may go on to.
    fn raise(&mut self, now: Millis, options: &Options) {
        for at in 0..self.tenants.len() {
            let tenant = &self.tenants[at];
            let (Promise::Memory(promised), Some(observed)) = (tenant.promise, tenant.observed) else {
                continue;
            };
            if observed <= promised {
                continue;
            }
            let others = self.tenants.iter().enumerate().filter(|(i, _)| *i != at);
            let others: MiB = others.map(|(_, t)| t.promised(self.info.memory)).sum();
            let wanted = observed + tenant.margin(observed, options);
            let raised = promised.max(wanted.min(self.info.memory - others));
            let tenant = &mut self.tenants[at];
            tenant.promise = Promise::Memory(raised);
            tenant.growth.exceeded = Some(now);
        }
    }

    /// Marks tenants whose first window is full and shrinks their promises.
    fn settle(&mut self, now: Millis, options: &Options) {
        for tenant in &mut self.tenants {
            let full = tenant.active_since.is_some_and(|since| now.since(since) >= options.window);
            tenant.settled |= full;
            let (true, Some(peak)) = (tenant.settled, tenant.peak) else {
                continue;
            };
            if !tenant.may_release(peak, now, options) {
                continue;
            }
            let shrunk = (peak + tenant.margin(peak, options)).min(self.info.memory);
            tenant.promise = match tenant.promise {
                Promise::Memory(m) => Promise::Memory(m.min(shrunk)),
                Promise::Whole => Promise::Memory(shrunk),
                Promise::None => Promise::None,
            };
        }
    }
}
