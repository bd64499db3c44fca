//! The ledger: per GPU, what is reserved for each job and what is observed of it.
//!
//! Free for placement = capacity - sum of max(reserved, observed) per tenant - foreign - reserve.
//!
//! Which job may join a GPU is the plan's; here is only whether the reservations stay within the memory.

mod tenant;

pub use tenant::{Alone, Growth, Reservation, SeenMemory, Tenant};

use crate::look::{Foreign, Observation};
use crate::policy::Options;
use crate::reading::{GpuInfo, Health};
use crate::recovery::Glances;
use crate::spec::{JobId, SharingMode};
use crate::units::{MiB, Millis};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// After one job was sent away a GPU is closed for so many windows of slowdown at most: two minutes, since a job that tells no steps closes it
/// for as long (docs/research/tried.md).
const MOST_WINDOWS: u64 = 8;

/// A job that may have torn down the MPS server of its GPUs: it was held responsible for a fault, or it ran on several GPUs
/// and did not end well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspect {
    /// Which job.
    pub job: JobId,
    /// Whose server it was on: the user's id.
    pub uid: u32,
    /// Its command.
    pub command: u64,
    /// When it ended.
    pub at: Millis,
}

/// What is on a GPU besides our jobs for no longer than this passes: a short test by hand, a process that is slow to die.
const PASSES: Millis = Millis::secs(60);

/// One GPU: what it is, which jobs have it, how it was last seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// What it is.
    pub info: GpuInfo,
    /// Whether the inventory still names it.
    pub present: bool,
    /// Who took it out of use.
    pub drained_by: Option<std::sync::Arc<str>>,
    /// The jobs that have it, by number.
    pub tenants: Vec<Tenant>,
    /// How it was last seen.
    pub seen: Option<Observation>,
    /// How its memory looked in the last looks, for verdicts on jobs that run out of it.
    #[serde(default, skip_serializing_if = "Glances::is_empty")]
    pub recent: Glances,
    /// The last fatal fault of each MPS server, by what [`crate::state::State`] tells servers apart. None reaches another server's
    /// clients (measured on H200s, docs/research/h200.md).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub faults: BTreeMap<u32, Millis>,
    /// Jobs that lately may have caused one, for the verdict on others that die of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub suspects: Vec<Suspect>,
    /// When processes that are not ours were last seen beside tenants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub foreign_at: Option<Millis>,
    /// Since when every look has found something on it that is not ours to end, or could not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken_since: Option<Millis>,
    /// When a tenant last came or went.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed: Option<Millis>,
    /// More was learned since it was predicted what its tenants do beside each other.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub outdated: bool,
    /// When one of its tenants was last sent away since another fell below the policy's floor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relieved: Option<Millis>,
}

impl Gpu {
    /// A GPU without jobs that was not looked at yet.
    #[must_use]
    pub const fn new(info: GpuInfo) -> Self {
        Self {
            info,
            present: true,
            drained_by: None,
            tenants: Vec::new(),
            seen: None,
            recent: Glances::new(),
            faults: BTreeMap::new(),
            suspects: Vec::new(),
            foreign_at: None,
            taken_since: None,
            changed: None,
            outdated: false,
            relieved: None,
        }
    }

    /// How a job shares it that would share in this way where that can be had: without MPS, jobs take turns.
    #[must_use]
    pub const fn shares_by(&self, wanted: SharingMode) -> SharingMode {
        match wanted {
            SharingMode::Mps if self.info.no_mps.is_some() => SharingMode::TimeSlice,
            wanted => wanted,
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

    /// Until when, at the latest, no job joins after an eviction, so that the remaining jobs can be measured: some are never measured.
    /// `None`: none was evicted, or fewer than two jobs are left.
    pub(crate) fn relieved_until(&self, options: &Options) -> Option<Millis> {
        let relieved = self.relieved.filter(|_| self.tenants.len() > 1);
        relieved.map(|at| at + Millis(options.slowdown_window.0.saturating_mul(MOST_WINDOWS)))
    }

    /// Why jobs on it have lost it, if they have.
    pub(crate) fn lost(&self) -> Option<String> {
        match self.seen.as_ref().map(|s| &s.health) {
            _ if !self.present => Some("it is no longer in this machine".into()),
            Some(Health::Lost(why)) => Some(why.clone()),
            _ => None,
        }
    }

    /// Whether no process, ours or not, is on it. Unknown is not idle, and neither is a GPU where a
    /// process of a job that is over lingers.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.tenants.is_empty() && self.seen.as_ref().is_some_and(|seen| !self.has_others(seen))
    }

    /// Whether a look finds what does not leave with our jobs: processes that are not ours, or of a job that is over, or it cannot tell.
    fn has_others(&self, seen: &Observation) -> bool {
        let lingers = |(job, _): &(JobId, Option<MiB>)| self.tenant(*job).is_none();
        !seen.processes_known || !seen.foreign.is_empty() || seen.jobs.iter().any(lingers)
    }

    /// Until when what is on it besides our jobs may be gone at any time; past that it may stay for ever. `None`: there is nothing.
    #[must_use]
    pub fn passes_until(&self) -> Option<Millis> {
        self.taken_since.map(|since| since + PASSES)
    }

    /// Memory that a job finds here once our jobs have left, if what else is here stays.
    pub(crate) fn free_without_jobs(&self, reserve: MiB) -> MiB {
        // Where processes cannot be told, what is in use may all be our jobs'.
        let tells = self.tenants.is_empty() || self.seen.as_ref().is_some_and(|seen| seen.processes_known);
        self.info.memory - if tells { self.foreign_memory() } else { MiB::ZERO } - reserve
    }

    /// Whether the ledger allows one more tenant: no job wants to be alone, and the reservations stay
    /// within the memory. Beside tenants without a reservation nothing can be said of memory.
    pub(crate) fn has_room(&self, reservation: Reservation, exclusive: bool) -> bool {
        if self.tenants.is_empty() {
            return true;
        }
        if exclusive || self.tenants.iter().any(|t| t.exclusive) {
            return false;
        }
        let reservations = || self.tenants.iter().map(|t| t.reservation).chain([reservation]);
        if reservations().any(|p| p == Reservation::None) {
            return true;
        }
        let mut sum = MiB::ZERO;
        for reservation in reservations() {
            match reservation {
                Reservation::Memory(m) => sum += m.min(self.info.memory),
                Reservation::Whole | Reservation::None => return false,
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
    /// rather than showing it as a foreign process's until the next one.
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

    /// Takes a new look and lets the reservations follow what is observed.
    pub(crate) fn observe(&mut self, seen: Observation, options: &Options) {
        let now = seen.at;
        let has_foreign = !seen.foreign.is_empty();
        if has_foreign && !self.tenants.is_empty() {
            self.foreign_at = Some(now);
        }
        let mut came = false;
        for tenant in &mut self.tenants {
            tenant.shared |= has_foreign;
            let process = seen.jobs.iter().find(|(job, _)| *job == tenant.job);
            if seen.processes_known {
                tenant.observed = process.and_then(|(_, memory)| *memory);
            }
            tenant.peak = tenant.peak.max(tenant.observed);
            if process.is_some() && tenant.active_since.is_none() {
                tenant.active_since = Some(now);
                came = true;
            }
            if let Some(peak) = tenant.peak {
                tenant.growth.look(peak, now, tenant.active_since);
            }
        }
        if came {
            self.give_back(now);
        }
        if seen.processes_known {
            self.lend_untouched(now, options);
        }
        self.settle(now, options);
        if options.policy.follows_early() {
            self.raise(now, options);
        }
        // The window is full of it: no one else's end is in it, and nothing of its own start-up.
        let full = |since: Millis| now.since(since) >= options.window;
        if let [tenant] = self.tenants.as_mut_slice()
            && tenant.settled
            && self.changed.is_none_or(full)
            && self.foreign_at.is_none_or(full)
            && tenant.stepped.or(tenant.active_since).is_some_and(full)
        {
            tenant.alone = Some(tenant.alone.unwrap_or_default().with(Alone::look(&seen.window)));
        }
        self.recent.take(&seen, now);
        let is_taken = seen.health == Health::Ok && self.has_others(&seen);
        self.taken_since = is_taken.then(|| self.taken_since.unwrap_or(now));
        self.seen = Some(seen);
    }

    /// Memory of all tenants but one, of which each has so much.
    fn beside(&self, at: usize, of: impl Fn(&Tenant) -> Option<MiB>) -> MiB {
        let others = self.tenants.iter().enumerate().filter(|(i, _)| *i != at);
        others.filter_map(|(_, tenant)| of(tenant)).sum()
    }

    /// A job is to have so much from now on, as far as its hard limit and the others leave that.
    pub(crate) fn assure(&mut self, job: JobId, memory: MiB) {
        let Some(at) = self.tenants.iter().position(|tenant| tenant.job == job) else { return };
        let left = self.info.memory - self.beside(at, |tenant| Some(tenant.reserved(self.info.memory)));
        let tenant = &mut self.tenants[at];
        let most = tenant.limit.map_or(left, |limit| limit.min(left));
        tenant.assured = tenant.assured.max(memory.min(most));
        if let Reservation::Memory(reserved) = tenant.reservation {
            tenant.reservation = Reservation::Memory(reserved.max(tenant.assured));
        }
    }

    /// Of what is reserved for jobs that have not touched the GPU for long the most is for others. Their hard limits are as they were.
    fn lend_untouched(&mut self, now: Millis, options: &Options) {
        for tenant in &mut self.tenants {
            if let (Some(least), Reservation::Memory(reserved)) = (tenant.untouched, tenant.reservation)
                && tenant.untouched_for(now, options).is_some()
            {
                tenant.reservation = Reservation::Memory(reserved.min(least.max(tenant.assured)));
            }
        }
    }

    /// Jobs that have just come to the GPU, later than most, get back what was lent of their parts, as far as the others leave that.
    fn give_back(&mut self, now: Millis) {
        for at in 0..self.tenants.len() {
            let left = self.info.memory - self.beside(at, |tenant| Some(tenant.reserved(self.info.memory)));
            let tenant = &mut self.tenants[at];
            let came = tenant.untouched.is_some() && tenant.active_since == Some(now);
            if let (true, Some(limit), Reservation::Memory(reserved)) =
                (came, tenant.limit, tenant.reservation)
            {
                tenant.reservation = Reservation::Memory(reserved.max(limit.min(left)));
            }
        }
    }

    /// Raises reservations that were too small: to the job's hard limit where the others leave that, else to what it takes now and a
    /// margin as far as they do. Then no job is placed on the GPU for a window (see the plan), since it may take still more.
    fn raise(&mut self, now: Millis, options: &Options) {
        for at in 0..self.tenants.len() {
            let tenant = &self.tenants[at];
            let (Reservation::Memory(reserved), Some(observed)) = (tenant.reservation, tenant.observed)
            else {
                continue;
            };
            if observed <= reserved {
                continue;
            }
            let left = self.info.memory - self.beside(at, |tenant| Some(tenant.reserved(self.info.memory)));
            // It cannot exceed its hard limit: where all of that can be reserved, the GPU stays open to other jobs.
            let bounded = tenant.limit.filter(|limit| (observed..=left).contains(limit));
            let wanted = bounded.unwrap_or(observed + tenant.margin(observed, options));
            let tenant = &mut self.tenants[at];
            tenant.reservation = Reservation::Memory(reserved.max(wanted.min(left)));
            if bounded.is_none() {
                tenant.growth.exceeded = Some(now);
            }
        }
    }

    /// Marks tenants that have settled and shrinks their reservations.
    fn settle(&mut self, now: Millis, options: &Options) {
        for at in 0..self.tenants.len() {
            // One that was to have a part of what is free, and was then not held to it, may have taken more than the others leave.
            let left = self.info.memory - self.beside(at, |tenant| tenant.reservation.memory());
            let tenant = &mut self.tenants[at];
            let had_settled = tenant.settled;
            tenant.settled |= tenant.has_settled(now, options);
            let (true, Some(peak)) = (tenant.settled, tenant.peak) else {
                continue;
            };
            // What was reserved again, up to its hard limit, stays so until its memory stands still.
            let again = had_settled && tenant.limit.map(Reservation::Memory) == Some(tenant.reservation);
            if (again && !tenant.stands_still(now, options)) || !tenant.may_release(peak, now, options) {
                continue;
            }
            let taken = peak + tenant.margin(peak, options);
            let shrunk = taken.max(tenant.assured).min(self.info.memory);
            tenant.reservation = match tenant.reservation {
                Reservation::Memory(m) => Reservation::Memory(m.min(shrunk)),
                Reservation::Whole => Reservation::Memory(shrunk.min(left)),
                Reservation::None => Reservation::None,
            };
        }
    }
}
