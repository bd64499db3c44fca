//! What a pending job wants of a GPU, in the terms of the policy in force.
//!
//! Computed once for each job and plan. Whether a GPU gives it is in [`super::slot`].

use super::search::Slots;
use crate::ledger::Reservation;
use crate::model::{Floor, Job, JobId, SharingMode};
use crate::policy::{MemoryScreen, NeedSource};
use crate::progress::Class;
use crate::reading::GpuInfo;
use crate::slowdown::{self, NARROWER};
use crate::spec::MOST_UNKNOWN_S;
use crate::state::{Blind, Blinds, Share, Startup, State};
use crate::units::{Fraction, MiB, Millis};

/// What a pending job wants of a GPU.
#[derive(Clone, Copy)]
pub(super) struct Want {
    pub(super) job: JobId,
    pub(super) gpus: u32,
    /// Only idle GPUs.
    pub(super) idle_only: bool,
    /// A GPU with less memory than this cannot do.
    pub(super) least_capacity: MiB,
    /// Memory that must be available for sharing, guard included.
    pub(super) need: Option<MiB>,
    /// The part of it that the policy adds to be safe.
    pub(super) guard: MiB,
    /// What is reserved.
    pub(super) reservation: Reservation,
    /// All of this is for one GPU, and in proportion on others: its program takes a share.
    pub(super) share: Option<Share>,
    pub(super) source: Option<NeedSource>,
    /// How it shares where that can be had.
    pub(super) sharing: SharingMode,
    /// Its server under MPS.
    pub(super) server: u32,
    /// Whether neighbours are refused afterwards.
    pub(super) alone: bool,
    /// What it adds to the load that the policy limits; `None`: not known.
    pub(super) load: Option<u32>,
    /// It has a limit of slowdown.
    pub(super) limited: bool,
    /// No other job stands for it: it has a limit of slowdown, was evicted before, or takes a share of the GPU.
    pub(super) particular: bool,
    /// What it does beside others, as far as predictions go.
    pub(super) class: Class,
    /// It may be given fewer threads than all, for the sake of others' limits.
    pub(super) may_be_narrowed: bool,
    /// And would be.
    pub(super) narrowed: bool,
    /// The floor of progress that is asked of it for its own sake, where that is below the policy's.
    pub(super) floor: Option<Fraction>,
    /// It has waited for long, and nothing is known of how long it runs: it is tried, so that something is.
    pub(super) is_tried: bool,
    /// Nothing is known of its memory, and the policy gives it a part of what is free.
    pub(super) blind: Option<Blind>,
    /// A job before it of which no more is known waits for room, and what of this one is known does not count: what it would get by that.
    pub(super) behind: Option<(JobId, Blind)>,
    /// Of idle GPUs it gets the largest: nothing says how much it takes.
    pub(super) largest_first: bool,
    /// It would have started by now without sharing.
    pub(super) overdue: bool,
    /// GPUs are kept for it until there are enough: it is overdue, or an operator's urgent job.
    pub(super) holds: bool,
    /// How it starts up.
    pub(super) start: Startup,
    /// It hardly takes longer than this alone: rounded up to a power of two, so that many jobs are alike. `None`: not known.
    pub(super) takes: Option<Millis>,
    /// The same where a GPU is lent that is kept for another job.
    pub(super) lent: Option<Millis>,
}

/// All that a GPU's answer to a job depends on, besides the memory that the job needs free.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WantKind {
    pub(super) idle_only: bool,
    pub(super) sharing: SharingMode,
    pub(super) forecast: bool,
    /// Memory of the smallest GPUs that are large enough: stands for all needs between two sizes.
    pub(super) size: MiB,
    /// Whether it wants several GPUs, where some are MIG instances.
    pub(super) several: bool,
    pub(super) load: Option<u32>,
    /// Its class, where predictions count.
    pub(super) class: Option<Class>,
    /// Whether it would get fewer threads than all, for the sake of others' limits.
    pub(super) narrowed: bool,
    /// [`Want::floor`], where predictions count.
    pub(super) floor: Option<Fraction>,
    /// [`Want::is_tried`], where predictions count.
    pub(super) is_tried: bool,
    /// Its MPS server, where predictions count and some GPU has jobs of that server, or takes none of its clients after a fault.
    pub(super) server: Option<u32>,
    pub(super) overdue: bool,
    /// How it starts up, where predictions count.
    pub(super) start: Startup,
    pub(super) blind: Option<Blind>,
    /// [`Want::takes`], where predictions count, or GPUs are kept that a job may have that is over in time.
    pub(super) takes: Option<Millis>,
    /// The job itself, where its answers are its own.
    pub(super) job: Option<JobId>,
}

impl Want {
    /// Whether it could have this GPU, were it free.
    pub(super) fn suits(&self, info: &GpuInfo) -> bool {
        info.memory >= self.least_capacity && (self.gpus == 1 || !info.is_mig())
    }

    /// `blinds`: what jobs of unknown memory get in this plan.
    pub(super) fn of(state: &State, job: &Job, now: Millis, blinds: Option<&Blinds<'_>>) -> Self {
        let options = state.options();
        let policy = &options.policy;
        let forecast = options.forecast(&job.spec);
        let given = match policy.memory {
            MemoryScreen::None => None,
            MemoryScreen::Floor(least) => Some((least, NeedSource::PolicyFloor)),
            MemoryScreen::Forecast { .. } => forecast,
        };
        let (reservation, forecast) = state.reservation_from(forecast.map(|(m, _)| m), job.floor);
        let shares = state.sharing_for(job);
        let alone = shares.is_none();
        let floor = match job.floor {
            Some(Floor::Memory(m)) => m,
            Some(Floor::ExclusiveGpu) | None => MiB::ZERO,
        };
        let source = match given {
            Some((m, source)) if m >= floor => Some(source),
            _ => (floor > MiB::ZERO).then_some(NeedSource::OutOfMemory),
        };
        let (need, guard) = match policy.memory {
            MemoryScreen::None => (job.floor.is_some().then_some(floor), MiB::ZERO),
            MemoryScreen::Floor(least) => (Some(least.max(floor)), MiB::ZERO),
            MemoryScreen::Forecast { guard, .. } => (forecast.map(|m| m + guard), guard),
        };
        let limited = slowdown::limit(state, job).is_some();
        let share = state.share_for(job);
        let overdue = state.is_overdue(job, now);
        let blinds = blinds.filter(|_| !alone && reservation == Reservation::Whole);
        let sharing = shares.unwrap_or(SharingMode::Exclusive);
        let blind = blinds.map(|blinds| blinds.of_job(job, sharing));
        let is_unknown = reservation == Reservation::Whole && blind.is_none_or(Blind::is_unknown);
        Self {
            job: job.spec.id,
            gpus: job.spec.request.gpus,
            idle_only: alone || (reservation == Reservation::Whole && blind.is_none()),
            // A GPU that is known to be too small would not do.
            least_capacity: floor.max(state.least_capacity(job)),
            need,
            guard,
            reservation,
            share,
            source,
            sharing,
            server: state.server_of(job),
            alone,
            load: policy.pack.load(job.spec.profile),
            limited,
            particular: limited || share.is_some() || slowdown::was_parted(job),
            class: job.class(),
            may_be_narrowed: slowdown::may_be_narrowed(state, job),
            narrowed: false,
            floor: None,
            is_tried: false,
            blind,
            behind: None,
            largest_first: policy.blind && (is_unknown || job.floor == Some(Floor::ExclusiveGpu)),
            overdue,
            holds: overdue || (policy.line.is_by_length() && job.is_urgent()),
            takes: job.spec.most_run_s().map(|most| rounded_up(Millis::secs(most))),
            lent: job.spec.most_lent_run_s().map(|most| rounded_up(Millis::secs(most))),
            start: if policy.progress.is_some() { state.startup(job) } else { Startup::default() },
        }
    }

    /// The same while this job waits for room, of whose memory nothing at all is known.
    pub(super) fn behind_unknown(self, waits: JobId) -> Self {
        let blind = self.blind.map(Blind::unknown);
        let behind = self.blind.filter(|own| blind != Some(*own)).map(|own| (waits, own));
        Self { blind, behind, ..self }
    }

    /// The same of a job that has waited for long and would go on waiting: for this floor, and taken to run no longer than expected. By what nine
    /// of ten such jobs take, one of minutes among some of days would wait for days.
    pub(super) fn after_waiting(self, job: &Job, floor: Fraction) -> Self {
        let sooner = |most: Option<Millis>, expected_s| {
            let expected = rounded_up(Millis::secs(expected_s));
            Some(most.map_or(expected, |most| most.min(expected)))
        };
        let (takes, lent) = (sooner(self.takes, job.spec.run_s()), sooner(self.lent, job.spec.known_run_s()));
        Self { floor: Some(floor), takes, lent, is_tried: !job.spec.is_run_known(), ..self }
    }

    /// How long it runs at most, and if nothing is known of that, as long as such a job may run: else nothing would ever be known of it.
    pub(super) fn takes_at_most(&self) -> Millis {
        self.takes.unwrap_or(Millis::secs(MOST_UNKNOWN_S))
    }

    /// The same where a GPU is lent that is kept for another job.
    pub(super) fn lent_at_most(&self) -> Millis {
        self.lent.unwrap_or(Millis::secs(MOST_UNKNOWN_S))
    }

    /// Whether it waits for room as a job of whose memory nothing at all is known.
    pub(super) fn waits_as_unknown(&self, slots: &Slots<'_>) -> bool {
        self.blind.is_some_and(Blind::is_unknown) && slots.is_full_for(self)
    }

    /// The same with fewer threads under MPS, most first, if it may be given those for the sake of others' limits.
    pub(super) fn narrower(&self) -> impl Iterator<Item = Self> {
        let may = self.may_be_narrowed && self.sharing == SharingMode::Mps;
        let percents = NARROWER.into_iter().filter(move |_| may);
        let narrowed = |percent| Class { threads: Some(percent), ..self.class };
        percents.map(move |percent| Self { class: narrowed(percent), narrowed: true, ..*self })
    }

    /// The same with all threads.
    pub(super) fn with_all_threads(&self) -> Self {
        let class = Class { threads: None, ..self.class };
        Self { class: if self.narrowed { class } else { self.class }, narrowed: false, ..*self }
    }

    /// What is reserved on a GPU of this much memory.
    pub(super) fn reserved_on(&self, memory: MiB) -> Option<MiB> {
        self.reservation.memory().map(|m| Share::on(self.share, m, memory))
    }

    /// What must be available on a GPU of this much memory for sharing it, guard included.
    pub(super) fn need_on(&self, memory: MiB) -> Option<MiB> {
        self.need.map(|need| Share::on(self.share, need - self.guard, memory) + self.guard)
    }
}

/// To a power of two.
fn rounded_up(time: Millis) -> Millis {
    Millis(time.0.checked_next_power_of_two().unwrap_or(u64::MAX))
}
