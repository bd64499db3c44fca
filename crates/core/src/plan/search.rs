//! The search over all GPUs: those that do for a job, the order among them, and the reason for the choice.
//!
//! Which job is looked at next is in [`super::place`].

use super::given::Given;
use super::slot::{Bar, Slot, closed, cooldowns};
use super::want::{Want, WantKind};
use crate::explain::{NoGpu, OfTheGpu, Reason};
use crate::ledger::Reservation;
use crate::model::{GpuId, Job, JobId, Placement, SharingMode};
use crate::policy::{NeedSource, Options, Order, Progress};
use crate::slowdown::{Class, limit, parted_from};
use crate::spec::BRIEF_UNKNOWN_S;
use crate::state::{Blind, Startup, State};
use crate::units::{Fraction, MiB, Millis};
use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A place that was found.
pub(super) struct Found {
    slots: Vec<usize>,
    given: Given,
    pub(super) reason: Reason,
}

pub(super) struct Slots<'a> {
    pub(super) slots: Vec<Slot<'a>>,
    pub(super) options: &'a Options,
    pub(super) now: Millis,
    pub(super) ring: u32,
    /// Whether some are MIG instances.
    any_slice: bool,
    /// Memory sizes of the GPUs, each once, ascending.
    sizes: Vec<MiB>,
    /// The GPUs by their memory, largest first, those of a size in index order.
    by_size: Vec<usize>,
    /// MPS servers that have jobs on some GPU by themselves, where predictions count.
    servers: BTreeSet<u32>,
    /// MPS servers that take no clients on some GPU yet, after a fault.
    cooling: BTreeSet<u32>,
    /// A tenant of some GPU has a limit of slowdown: kept here, since every job in the queue asks.
    pub(super) limited: bool,
    /// Jobs that a tenant of some GPU was evicted from: what the GPUs answer them is their own.
    parted_from: BTreeSet<JobId>,
    /// Some GPUs are kept for a job that can have them only later.
    any_lent: bool,
    /// Time until each open GPU is idle, shortest first. Computed at its first use.
    empty: OnceCell<Vec<(Millis, usize)>>,
    /// Jobs that GPUs are kept for.
    kept: BTreeSet<JobId>,
    /// What [`Self::with_room`] goes by, since a GPU was last given away, kept or lent.
    open: RefCell<BTreeMap<OpenTo, Vec<MiB>>>,
}

/// All that it depends on which GPUs are open to a job, besides the memory that one of known need must find free.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct OpenTo {
    blind: Option<Blind>,
    sharing: SharingMode,
    /// Of a program that takes a share of its GPU.
    share: Option<JobId>,
    size: usize,
    several: bool,
    /// What counts where GPUs that are kept are lent: how long it takes, its floor, its class, its server.
    lent: Option<(Option<Millis>, Option<Fraction>, Class, u32)>,
    /// The job itself, where GPUs are kept for it.
    job: Option<JobId>,
}

impl<'a> Slots<'a> {
    pub(super) fn new(state: &'a State, now: Millis) -> Self {
        let options = state.options();
        let gpus = state.order().iter().filter_map(|id| Some((*id, state.gpu(*id)?)));
        let mut slots: Vec<_> = gpus.map(|(id, gpu)| Slot::new(id, gpu, state, now)).collect();
        let mut sizes: Vec<MiB> = slots.iter().map(|s| s.gpu.info.memory).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let mut by_size: Vec<usize> = (0..slots.len()).collect();
        by_size.sort_by_key(|at| std::cmp::Reverse(slots[*at].gpu.info.memory));
        let limited = slots.iter().any(|slot| slot.limited.is_some());
        let mut set_aside = state.halted_jobs();
        let wanted = limited
            || options.max_slowdown.is_some()
            || state.queue().any_limited()
            || set_aside.any(|job| limit(state, job).is_some());
        if wanted || options.policy.goes_by_predictions() {
            slots.iter_mut().for_each(Slot::look_beside);
        }
        let servers = slots.iter().filter_map(Slot::server).collect();
        let cooling = slots.iter().flat_map(|slot| cooldowns(slot.gpu, options, now));
        let cooling = cooling.map(|(server, _)| server).collect();
        let any_slice = slots.iter().any(|slot| slot.gpu.info.is_mig());
        let tenants =
            slots.iter().flat_map(|slot| &slot.gpu.tenants).filter_map(|tenant| state.job(tenant.job));
        let parted_from = tenants.flat_map(parted_from).collect();
        Self {
            slots,
            options,
            now,
            ring: state.ring(),
            any_slice,
            sizes,
            by_size,
            servers,
            cooling,
            limited,
            parted_from,
            any_lent: false,
            empty: OnceCell::new(),
            kept: BTreeSet::new(),
            open: RefCell::default(),
        }
    }

    /// Time until as many GPUs as a job wants are idle, if no other takes them: without end where too many are kept for others. `None`: there
    /// are too few for it.
    fn idle_in(&self, want: &Want) -> Option<Millis> {
        let empty = self.empty.get_or_init(|| {
            let open = self.slots.iter().enumerate().filter(|(_, slot)| !slot.closed);
            let mut empty: Vec<_> = open.map(|(at, slot)| (slot.idle_in(), at)).collect();
            empty.sort_unstable();
            empty
        });
        let last = (want.gpus as usize).checked_sub(1)?;
        let suited = || empty.iter().filter(|(_, at)| want.suits(&self.slots[*at].gpu.info));
        suited().nth(last)?;
        let mut free = suited().filter(|(_, at)| self.slots[*at].held_from(want).is_none());
        Some(free.nth(last).map_or(Millis(u64::MAX), |(idle_in, _)| *idle_in))
    }

    /// The lower floor of progress that is asked of a job that has waited long for its run and would go on waiting, and from when on.
    pub(super) fn lower_floor(&self, job: &Job, want: &Want) -> Option<(Millis, Fraction)> {
        let rule = self.options.policy.progress.filter(|_| !want.alone)?;
        // Of one of which nothing is known that may be much less than it is taken to run, and its first run tells.
        let run = if job.spec.is_run_known() { job.spec.run_s() } else { BRIEF_UNKNOWN_S };
        let run = Millis::secs(run);
        let floor = rule.after_waiting(run, self.idle_in(want)?)?;
        Some((job.queued + Progress::patience(run), floor))
    }

    /// The smallest size of GPUs that are large enough for a job: stands for all needs between two sizes.
    fn size_for(&self, want: &Want) -> usize {
        self.sizes.partition_point(|size| *size < want.least_capacity)
    }

    pub(super) fn kind(&self, want: &Want) -> WantKind {
        let by_class = self.limited || self.options.policy.goes_by_predictions();
        // What is idle, and what is full, answers all alike.
        let class = (by_class && !want.idle_only && !self.is_full_for(want)).then_some(want.class);
        let by_server =
            self.cooling.contains(&want.server) || (class.is_some() && self.servers.contains(&want.server));
        WantKind {
            idle_only: want.idle_only,
            sharing: want.sharing,
            forecast: matches!(want.reservation, Reservation::Memory(_)),
            size: self.sizes.get(self.size_for(want)).copied().unwrap_or(MiB(u64::MAX)),
            several: want.gpus > 1 && self.any_slice,
            load: want.load,
            class,
            narrowed: want.narrowed,
            floor: class.and(want.floor),
            is_tried: class.is_some() && want.is_tried,
            server: by_server.then_some(want.server),
            overdue: want.overdue,
            start: class.map_or_else(Startup::default, |_| want.start),
            blind: want.blind,
            takes: want.takes.filter(|_| self.any_lent || class.is_some()),
            job: (want.particular || self.parted_from.contains(&want.job)).then_some(want.job),
        }
    }

    /// Whether no GPU has room for a job, whatever its class: one search then stands for many such jobs. Asked of each job in the queue.
    pub(super) fn is_full_for(&self, want: &Want) -> bool {
        self.with_room(want) == 0
    }

    /// Whether a search in vain for a job has cost next to nothing: it wants idle GPUs, or too few have room for it.
    pub(super) fn is_cheap(&self, want: &Want) -> bool {
        want.idle_only || self.with_room(want) < want.gpus as usize
    }

    /// GPUs that no other job has for itself and that have room for a job.
    fn with_room(&self, want: &Want) -> usize {
        let key = OpenTo {
            blind: want.blind,
            sharing: want.sharing,
            share: want.share.map(|_| want.job),
            size: self.size_for(want),
            several: want.gpus > 1,
            lent: self.any_lent.then_some((want.lent, want.floor, want.class, want.server)),
            job: self.kept.contains(&want.job).then_some(want.job),
        };
        // What it needs is the same everywhere, or what the key says.
        let everywhere = want.need.filter(|_| want.blind.is_none() && want.share.is_none());
        let mut open = self.open.borrow_mut();
        let free = open.entry(key).or_insert_with(|| {
            let open = self.slots.iter().filter(|slot| slot.is_open_to(want));
            let open = open.filter(|slot| everywhere.is_some() || slot.has_room(want));
            let mut free: Vec<MiB> = open.map(|slot| slot.free.unwrap_or_default()).collect();
            free.sort_unstable();
            free
        });
        free.len() - everywhere.map_or(0, |need| free.partition_point(|free| *free < need.max(MiB(1))))
    }

    /// GPUs for a job, if there are enough. Else the largest need with which a job of this kind, asking for as many GPUs, might
    /// still find them; placing others never raises it.
    pub(super) fn find(&self, want: &Want) -> Result<Found, Option<MiB>> {
        let policy = &self.options.policy;
        if policy.idle_first || want.idle_only {
            let idle = self.find_idle(want);
            if idle.is_some() || want.idle_only {
                return idle.ok_or(None);
            }
        }
        let wanted = want.gpus as usize;
        // After a search in vain it is remembered which need might still find room. GPUs without room are asked
        // nothing else, which would cost more.
        let (mut fitting, mut full) = (Vec::new(), Vec::new());
        // Fewer threads only where all of them would break a limit: a job keeps its lower number of threads when its
        // neighbours have gone.
        let meant = |slot: &Slot<'_>| !want.narrowed || slot.narrows(want).is_some();
        for (i, slot) in self.slots.iter().enumerate().filter(|(_, slot)| meant(slot)) {
            match slot.bars_shared(want) {
                None => fitting.push(i),
                Some(Bar::Memory) if want.blind.is_none() => full.push(i),
                Some(_) => {}
            }
        }
        if fitting.len() < wanted {
            // A need that never leaves room for the guard, or a gate that still sees the load of a
            // job that is gone, must not keep a job off an idle GPU.
            let idle = if policy.idle_first { None } else { self.find_idle(want) };
            return idle.ok_or_else(|| self.room(want, &fitting, &full));
        }
        if self.awaits_prediction(want) {
            fitting.retain(|i| !self.slots[*i].idle);
            if fitting.len() < wanted {
                return Err(self.room(want, &fitting, &full));
            }
        }
        // One that is kept for another job is taken where no others do.
        if fitting.iter().filter(|i| !self.is_kept_from(**i, want)).count() >= wanted {
            fitting.retain(|i| !self.is_kept_from(*i, want));
        }
        let candidates = u32::try_from(fitting.len()).unwrap_or(u32::MAX);
        // Ties keep the index order.
        if wanted == 1 {
            let best = fitting.into_iter().min_by_key(|i| self.rank(policy.order, *i, want));
            fitting = best.into_iter().collect();
        } else {
            fitting.sort_by_key(|i| (self.is_kept_from(*i, want), self.rank(policy.order, *i, want)));
            fitting.truncate(wanted);
        }
        let given = self.given(&fitting, want);
        let reason = self.shared_reason(want, policy.order, (&fitting, &given), candidates);
        Ok(Found { slots: fitting, given, reason })
    }

    /// Whether a job may do beside one that this plan has placed, of which nothing is predicted before the next plan. Until
    /// then no idle GPU is taken by a policy that takes those last.
    pub(super) fn awaits_prediction(&self, want: &Want) -> bool {
        self.options.policy.order == Order::Packed
            && self.slots.iter().any(|slot| slot.has_added() && slot.is_unpredicted(want))
    }

    /// Time until on some GPU one more job is taken to be over before one works that starts up like this.
    pub(super) fn next_over_before(&self, start: Startup) -> Option<Millis> {
        self.slots.iter().filter_map(|slot| slot.next_over_before(start)).min()
    }

    /// The largest need that as many of these GPUs have free as the job wants.
    fn room(&self, want: &Want, fitting: &[usize], full: &[usize]) -> Option<MiB> {
        let free = fitting.iter().chain(full).map(|i| self.slots[*i].free.unwrap_or_default());
        let mut free: Vec<MiB> = free.collect();
        let last = (want.gpus as usize).checked_sub(1).filter(|last| *last < free.len())?;
        let (_, room, _) = free.select_nth_unstable_by_key(last, |free| std::cmp::Reverse(*free));
        Some(*room)
    }

    /// What each GPU says to a job.
    pub(super) fn refusals(&self, want: &Want) -> NoGpu {
        let mut refusals = Vec::new();
        for slot in &self.slots {
            let bar = if want.idle_only { slot.bars_idle(want) } else { slot.bars_shared(want) };
            if let Some(bar) = bar {
                let refusal = slot.refusal(bar, want, self.options, self.now);
                refusals.push((slot.gpu.info.index, refusal));
            }
        }
        NoGpu {
            fitting: u32::try_from(self.slots.len() - refusals.len()).unwrap_or(u32::MAX),
            refusals,
            ..NoGpu::default()
        }
    }

    /// Why nothing was found for a job. Of unknown memory it needs what it would on the smallest GPU.
    pub(super) fn none_for(&self, want: &Want, detail: Arc<NoGpu>) -> Reason {
        let blind = want.blind.zip(self.sizes.first()).map(|(blind, memory)| {
            let least = blind.least_on(*memory, want.sharing);
            let enough = |(job, own): (JobId, Blind)| (job, own.least_on(*memory, want.sharing));
            let source = match want.behind.map(enough).filter(|(_, enough)| *enough < least) {
                Some((job, enough)) => NeedSource::Behind { job, enough },
                None => blind.source(want.sharing),
            };
            (least, source)
        });
        let (need, guard, source) = match blind {
            Some((least, source)) => (Some(least), MiB::ZERO, Some(source)),
            None => (want.need, want.guard, want.source),
        };
        Reason::NoGpu { gpus: want.gpus, need, guard, source, detail }
    }

    /// Whether an idle GPU is left that is reserved for no job.
    pub(super) fn has_idle(&self) -> bool {
        self.slots.iter().any(|slot| slot.idle && !slot.closed && (slot.held().is_none() || slot.is_lent()))
    }

    /// Idle GPUs that a job may have, the first in index order or the largest first, those that are kept for another last; as many as it
    /// wants at most.
    fn idle_for(&self, want: &Want) -> impl Iterator<Item = usize> {
        let may_have = move |i: &usize| self.slots[*i].bars_idle(want).is_none();
        let own = move |i: &usize| !self.is_kept_from(*i, want);
        let in_order = move |i: usize| if want.largest_first { self.by_size[i] } else { i };
        let all = move || (0..self.slots.len()).map(in_order).filter(may_have);
        // Only what is lent is kept from a job that may have it.
        let lent = all().filter(move |i| self.any_lent && !own(i));
        all().filter(own).chain(lent).take(want.gpus as usize)
    }

    /// Whether a GPU is kept for another job.
    fn is_kept_from(&self, at: usize, want: &Want) -> bool {
        self.slots[at].held().is_some_and(|job| job != want.job)
    }

    /// Whether there are enough of them.
    pub(super) fn has_idle_for(&self, want: &Want) -> bool {
        self.idle_for(want).count() == want.gpus as usize
    }

    /// The first idle GPUs in that order, if there are enough.
    fn find_idle(&self, want: &Want) -> Option<Found> {
        let slots: Vec<usize> = self.idle_for(want).collect();
        (slots.len() == want.gpus as usize).then(|| {
            let given = self.given(&slots, want);
            Found { slots, reason: given.reason_idle(want), given }
        })
    }

    /// What a job is given of these.
    fn given(&self, chosen: &[usize], want: &Want) -> Given {
        let slots = chosen.iter().map(|i| &self.slots[*i]);
        Given::of(slots.map(|slot| (slot.id, slot.gpu, slot.free)), want)
    }

    fn shared_reason(
        &self,
        want: &Want,
        order: Order,
        (chosen, given): (&[usize], &Given),
        candidates: u32,
    ) -> Reason {
        if chosen.iter().all(|i| self.slots[*i].idle) {
            return given.reason_idle(want);
        }
        let beside = |slot: &Slot<'_>| slot.tenants + u32::try_from(slot.gpu.foreign().len()).unwrap_or(0);
        let slots = chosen.iter().map(|i| &self.slots[*i]);
        let Some(fullest) = slots.min_by_key(|slot| (std::cmp::Reverse(beside(slot)), slot.free)) else {
            return given.reason_idle(want);
        };
        let gpus = given.indices.clone();
        let (need, source) = given.reserved(want);
        Reason::PlacedShared {
            fullest: (gpus.len() > 1).then_some(fullest.gpu.info.index),
            gpus,
            need,
            source,
            free: fullest.free.unwrap_or_default(),
            neighbours: beside(fullest),
            smact: fullest.smact,
            order,
            candidates,
            sharing: given.sharing,
            predicted: fullest.predicted(want),
            over: fullest.over_before(want),
            threads: chosen.iter().find_map(|i| self.slots[*i].narrows(want)),
            floor: chosen.iter().find_map(|i| self.slots[*i].joins_at_lower_floor(want)),
        }
    }

    /// Place of a GPU in the policy's order, least first; of idle ones the largest for a job of which it is not known what it takes.
    fn rank(&self, order: Order, at: usize, want: &Want) -> (u64, std::cmp::Reverse<MiB>) {
        let slot = &self.slots[at];
        let is_by_size = want.largest_first && slot.idle;
        let size = if is_by_size { slot.gpu.info.memory } else { MiB::ZERO };
        (self.rank_by(order, slot, want), std::cmp::Reverse(size))
    }

    fn rank_by(&self, order: Order, slot: &Slot<'_>, want: &Want) -> u64 {
        let free = slot.free.unwrap_or_default().0;
        match order {
            Order::Exclusive | Order::FirstFit => 0,
            Order::RoundRobin => u64::from(slot.gpu.info.index < self.ring),
            Order::BestFit => free,
            Order::Magm => u64::MAX - free,
            // Unknown activity counts as full.
            Order::Lug => u64::from(slot.smact.unwrap_or(Fraction::ONE).0),
            Order::Speedup | Order::Throughput if slot.idle => 0,
            Order::Packed if slot.idle => u64::from(u32::MAX),
            // Where nothing is predicted, nothing is gained.
            Order::Speedup | Order::Packed => {
                let gain = slot.outlook(want).map_or(0, |outlook| outlook.gain().0);
                let least = self.options.policy.progress.map_or(0, |rule| rule.gain.0);
                // A job that is overdue may join others for less than the least gain, but not while a GPU is idle.
                let after_idle = order == Order::Packed && gain < least;
                u64::from(u32::MAX - gain) + if after_idle { u64::from(u32::MAX) + 1 } else { 0 }
            }
            Order::Throughput => {
                let all = slot.outlook(want).and_then(|outlook| outlook.throughput).unwrap_or(i64::MIN);
                // Ascending, as least comes first.
                i64::MAX.abs_diff(all)
            }
            // Less than 2^44 MiB is free on any GPU.
            Order::LeastLoad => {
                let load = u64::from(slot.load.unwrap_or(u32::MAX).min(0xF_FFFF));
                (load << 44) | ((1 << 44) - 1 - free.min((1 << 44) - 1))
            }
        }
    }

    /// Gives a job the GPUs that were found.
    pub(super) fn place(&mut self, job: &Job, want: &Want, found: Found) -> Placement {
        let Found { slots, given, reason } = found;
        self.limited |= want.limited;
        // Where it keeps the policy's, the lower one that it might have joined with is of no use to it.
        let floor = if let Reason::PlacedShared { floor, .. } = reason { floor } else { None };
        let want = &Want { floor, ..*want };
        for i in slots {
            self.goes_on_after(i);
            self.take(i, job.spec.id, want, given.part);
            // Of thousands of GPUs the others stay as they are.
            if let Some(empty) = self.empty.get_mut() {
                empty.retain(|(_, at)| *at != i);
                let anew = (self.slots[i].idle_in(), i);
                empty.insert(empty.partition_point(|entry| *entry < anew), anew);
            }
        }
        given.placement(self.options, job, want, self.now, reason)
    }

    /// The ring goes on behind this GPU.
    pub(super) fn goes_on_after(&mut self, at: usize) {
        if self.options.policy.order == Order::RoundRobin {
            self.ring = self.slots[at].gpu.info.index + 1;
        }
    }

    /// Gives a job one GPU.
    pub(super) fn take(&mut self, at: usize, job: JobId, want: &Want, part: Option<MiB>) {
        self.open.get_mut().clear();
        self.slots[at].take(job, want, part);
        self.servers.extend(self.slots[at].server());
    }

    /// Keeps a GPU for a job, unless it is kept for another.
    pub(super) fn hold_for(&mut self, gpu: GpuId, job: JobId) {
        self.open.get_mut().clear();
        self.kept.insert(job);
        self.slots.iter_mut().filter(|slot| slot.id == gpu).for_each(|slot| slot.hold_for(job));
    }

    /// Keeps as many GPUs for a job that is overdue or urgent as it wants: of those that could ever do and are kept
    /// for no other, those whose last job has the least to do. As no job comes to these, less and less is left
    /// there, and a later plan keeps another GPU in place of one of them only if less is left on that. Jobs that
    /// have taken longer than expected count as if nothing were left; of these GPUs, those whose last job came first
    /// are kept. Nothing is kept for a job where too few GPUs are in use for it, or would do once our jobs have left: it may wait for
    /// days. Returns whether more is kept than before.
    pub(super) fn hold(&mut self, want: &Want) -> bool {
        if !self.can_ever_fit(want) {
            return false;
        }
        let has = self.slots.iter().filter(|slot| slot.held() == Some(want.job)).count();
        let could =
            |slot: &&mut Slot<'_>| !slot.closed && slot.held().is_none() && slot.does_once_empty(want);
        let mut slots: Vec<&mut Slot<'_>> = self.slots.iter_mut().filter(could).collect();
        slots.sort_by_cached_key(|slot| {
            let last_came = slot.gpu.tenants.iter().map(|t| t.placed).max();
            // When processes that are not ours go, or a job ends that has just been placed, is not known at all.
            (!slot.gpu.foreign().is_empty(), slot.has_added(), slot.left(), last_came, slot.id)
        });
        let kept = slots.iter_mut().take((want.gpus as usize).saturating_sub(has));
        let more = kept.map(|slot| slot.hold_for(want.job)).count() > 0;
        if more {
            self.kept.insert(want.job);
            self.open.get_mut().clear();
        }
        more
    }

    /// Lets others have the GPUs that are kept for a job until the last of them is free, as far as is known (EASY backfilling: Lifka 1995). Returns
    /// whether some were not lent before.
    pub(super) fn lend(&mut self, want: &Want) -> bool {
        let kept = self.slots.iter().filter(|slot| slot.held() == Some(want.job));
        let times: Vec<_> =
            kept.map(|slot| (slot.idle_as_expected_in(), slot.waits_at_least(want))).collect();
        let until = times.iter().map(|(idle_in, _)| *idle_in).max();
        let until = until.filter(|_| times.len() == want.gpus as usize);
        let Some(until) = until.filter(|until| *until > Millis::ZERO) else { return false };
        self.any_lent = true;
        self.open.get_mut().clear();
        let kept = self.slots.iter_mut().filter(|slot| slot.held() == Some(want.job) && !slot.is_lent());
        // It can begin once the last of them does for it.
        let waits = times.into_iter().map(|(_, waits)| waits).max().unwrap_or_default();
        kept.map(|slot| slot.lend(until, waits)).count() > 0
    }

    /// Whether the job could ever be placed on the GPUs that are in use now, as far as it takes no more than our jobs' ends.
    pub(super) fn can_ever_fit(&self, want: &Want) -> bool {
        let out_of_use = |slot: &Slot<'_>| {
            let why = closed(slot.gpu, self.options, self.now);
            why.is_some_and(|why| why.of_the_gpu() == Some(OfTheGpu::OutOfUse))
        };
        let could = |slot: &&Slot<'_>| slot.does_once_empty(want) && !(slot.closed && out_of_use(slot));
        self.slots.iter().filter(could).count() >= want.gpus as usize
    }
}
