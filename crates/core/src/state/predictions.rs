//! What is predicted of classes of jobs beside each other, and what was measured of jobs: that is kept as long as the
//! neighbours stay.
//!
//! What follows from it is the plan's.

use super::{Startup, State};
use crate::explain::Eviction;
use crate::input::Rejected;
use crate::ledger::Gpu;
use crate::model::{EndCause, GpuId, Job, JobId, Relief, SharingMode};
use crate::progress::{Class, Company, Kept, Measured, Outlook, Question, least_progress};
use crate::units::{Fraction, Millis};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::{BTreeMap, BTreeSet};

/// What is predicted, by the jobs that are there and the one that would join. Written as a list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Outlooks(BTreeMap<Company, Newcomers>);

/// What is predicted of jobs that might join a company, by class. The classes lie side by side: each plan looks many of them up.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Newcomers {
    /// Ascending.
    classes: Vec<Class>,
    /// One for each class.
    outlooks: Vec<Outlook>,
}

impl Newcomers {
    pub(crate) fn get(&self, class: Class) -> Option<&Outlook> {
        self.classes.binary_search(&class).ok().and_then(|at| self.outlooks.get(at))
    }

    fn set(&mut self, outlook: Outlook) {
        match self.classes.binary_search(&outlook.newcomer) {
            Ok(at) => self.outlooks[at] = outlook,
            Err(at) => {
                self.classes.insert(at, outlook.newcomer);
                self.outlooks.insert(at, outlook);
            }
        }
    }
}

/// What serves the jobs on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Server {
    /// Nothing is there.
    Unused,
    /// One MPS server serves all of them.
    One(u32),
    /// Several servers, or some are not under MPS: they take turns.
    Several,
}

impl Server {
    /// With one job more, which has this MPS server; `None`: it is not under MPS.
    pub(crate) fn with(self, joins: Option<u32>) -> Self {
        match (self, joins) {
            (Self::Unused, Some(server)) => Self::One(server),
            (Self::One(there), Some(server)) if there == server => self,
            _ => Self::Several,
        }
    }
}

/// Predictions that are kept, about. Of more, those of companies that are on no GPU are forgotten.
const MOST_OUTLOOKS: usize = 16_384;

impl Outlooks {
    pub(super) fn all(&self) -> impl Iterator<Item = &Outlook> {
        self.0.values().flat_map(|newcomers| &newcomers.outlooks)
    }

    fn add(&mut self, outlook: Outlook) {
        match self.0.get_mut(&outlook.there) {
            Some(newcomers) => newcomers.set(outlook),
            None => self.0.entry(outlook.there.clone()).or_default().set(outlook),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for Outlooks {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.all())
    }
}

impl<'de> Deserialize<'de> for Outlooks {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut outlooks = Self::default();
        Vec::<Outlook>::deserialize(from)?.into_iter().for_each(|outlook| outlooks.add(outlook));
        Ok(outlooks)
    }
}

/// Companies that are not to be brought together again, each with when it was found. Written as a list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Bad(BTreeMap<Company, Millis>);

/// Companies that are remembered as bad; of more, the oldest is forgotten.
const MOST_BAD: usize = 1024;

/// Companies in which one job's limit was exceeded that are remembered; of more, the oldest is forgotten.
const MOST_EXCEEDED: usize = 64;

impl Bad {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn add(&mut self, company: Company, now: Millis) {
        self.0.insert(company, now);
        if self.0.len() > MOST_BAD
            && let Some((oldest, _)) = self.0.iter().min_by_key(|(_, at)| **at)
        {
            let oldest = oldest.clone();
            self.0.remove(&oldest);
        }
    }
}

impl Serialize for Bad {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.0.iter())
    }
}

impl<'de> Deserialize<'de> for Bad {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(Self(Vec::<(Company, Millis)>::deserialize(from)?.into_iter().collect()))
    }
}

impl State {
    /// Whether these and one that would join them, or some of them, were together before and one fell below the floor, or the limit of one
    /// that is not over yet was exceeded: with more beside it a job is no faster.
    pub(crate) fn is_bad(&self, there: &Company, joins: Class) -> bool {
        if self.bad.is_empty() && self.exceeded.is_empty() {
            return false;
        }
        let all = there.with(joins);
        self.bad.0.keys().chain(self.exceeded.values().flatten()).any(|bad| all.has_all_of(bad))
    }

    /// The GPUs on which a job is held up by the tenants beside it: of several those where it is predicted to be the slowest, since on the
    /// others it only keeps up with these. All that it shares, where that is not predicted.
    pub(crate) fn held_up_on(&self, job: &Job) -> Vec<GpuId> {
        let gpus = job.placement().map(|placed| &placed.gpus[..]).unwrap_or_default();
        let shared = gpus.iter().filter_map(|id| Some((*id, self.gpu(*id)?)));
        let shared: Vec<_> = shared.filter(|(_, gpu)| gpu.tenants.len() > 1).collect();
        let pace = |gpu: &Gpu| gpu.tenant(job.spec.id).and_then(|tenant| tenant.pace);
        let paces: Option<Vec<Fraction>> = shared.iter().map(|(_, gpu)| pace(gpu)).collect();
        let slowest = paces.and_then(|paces| paces.into_iter().min());
        let holds_up = |gpu: &Gpu| slowest.is_none() || pace(gpu) == slowest;
        shared.into_iter().filter(|(_, gpu)| holds_up(gpu)).map(|(id, _)| id).collect()
    }

    /// A job is taken off its GPUs; `suspended`: it keeps its work.
    pub(super) fn taken_off(&mut self, job: JobId, cause: &EndCause, suspended: bool) {
        self.remember_company(job, cause);
        self.relieve(job, cause, suspended);
    }

    /// Where a job goes because another was slowed down too much by those beside it, the classes with which it held that one up are
    /// not brought together again, if the policy goes by classes, and no job joins those that are left before they were measured. A limit
    /// of the other's own says nothing of jobs that come after it.
    fn remember_company(&mut self, gone: JobId, cause: &EndCause) {
        let EndCause::Evicted(eviction) = cause else { return };
        let slowed = eviction.job;
        if self.options.policy.progress.is_none() {
            return;
        }
        let Some(slowed_job) = self.job(slowed) else { return };
        let Some(sharing) = slowed_job.placement().map(|placed| placed.sharing) else { return };
        for id in self.held_up_on(slowed_job) {
            if let Some(gpu) = self.gpu(id).filter(|gpu| gpu.tenant(gone).is_some()) {
                let company = self.company(id, gpu, sharing);
                if eviction.is_by_policy() {
                    let now = self.now;
                    self.bad.add(company, now);
                    let _ = self.change_gpu(id, |gpu, _| gpu.relieved = Some(now));
                } else {
                    let of = self.exceeded.entry(slowed).or_default();
                    of.push(company);
                    let too_many = of.len().saturating_sub(MOST_EXCEEDED);
                    of.drain(..too_many);
                }
            }
        }
    }

    /// The job that was slowed down keeps which neighbour was evicted for it, and when.
    fn relieve(&mut self, evicted: JobId, cause: &EndCause, suspended: bool) {
        let EndCause::Evicted(Eviction { job: slowed, slowdown, limit, .. }) = *cause else { return };
        let placed = self.job(slowed).and_then(Job::placement).map(|placement| placement.at);
        let Some(since) = placed.filter(|_| slowed != evicted) else { return };
        let at = self.now;
        let _ = self.update(slowed, |job| {
            let before = job.relief.filter(|before| before.at >= since);
            let times = before.map_or(1, |before| before.times.saturating_add(1));
            job.relief = Some(Relief { evicted, suspended, at, slowdown, limit, times });
        });
    }

    /// All or nothing: a refused input changes nothing.
    pub(super) fn predicted(&mut self, outlooks: &[Outlook]) -> Result<(), Rejected> {
        for outlook in outlooks {
            self.gpu(outlook.there.kind).ok_or(Rejected::NoSuchGpu)?;
            if !outlook.there.classes.is_sorted() || !outlook.is_whole() {
                return Err(Rejected::BadRequest("a prediction must name every class that is there".into()));
            }
        }
        outlooks.iter().for_each(|outlook| self.predictions.add(outlook.clone()));
        self.predict_paces_of_all();
        if self.predictions.0.values().map(|newcomers| newcomers.classes.len()).sum::<usize>() > MOST_OUTLOOKS
        {
            self.forget_absent();
        }
        Ok(())
    }

    /// The MPS server of a job: see [`crate::policy::Options::server_of`].
    pub(crate) fn server_of(&self, job: &Job) -> u32 {
        self.options.server_of(job.spec.user.uid)
    }

    /// What serves these jobs, which are on one GPU.
    fn server_among<'a>(&self, jobs: impl Iterator<Item = &'a Job>) -> Server {
        jobs.fold(Server::Unused, |server, job| {
            let mps = job.placement().is_none_or(|placed| placed.sharing == SharingMode::Mps);
            server.with(mps.then(|| self.server_of(job)))
        })
    }

    /// How jobs share a GPU that they are on: side by side where one MPS server serves them all, else they take turns.
    #[must_use]
    pub fn sharing_among(&self, jobs: &[&Job]) -> SharingMode {
        match (jobs, self.server_among(jobs.iter().copied())) {
            ([job], _) => job.placement().map_or(SharingMode::Exclusive, |placed| placed.sharing),
            (_, Server::One(_)) => SharingMode::Mps,
            (_, Server::Unused | Server::Several) => SharingMode::TimeSlice,
        }
    }

    /// The jobs on a GPU, as far as predictions for one more go: as one finds them that takes turns with them, and one that
    /// their MPS server serves. And what serves them.
    pub(crate) fn companies(&self, id: GpuId, gpu: &Gpu) -> (Server, [Company; 2]) {
        let jobs = || gpu.tenants.iter().filter_map(|tenant| self.job(tenant.job));
        let server = self.server_among(jobs());
        let mut classes: Vec<Class> = jobs().map(Job::class).collect();
        classes.sort_unstable();
        let kind = self.index.kinds.get(id.0 as usize).copied().unwrap_or(id);
        let by_server = if server == Server::Several { SharingMode::TimeSlice } else { SharingMode::Mps };
        let turns = Company { kind, sharing: SharingMode::TimeSlice, classes: classes.clone() };
        (server, [turns, Company { kind, sharing: by_server, classes }])
    }

    /// The same for a job that shares in this way.
    pub(crate) fn company(&self, id: GpuId, gpu: &Gpu, sharing: SharingMode) -> Company {
        let (_, [turns, by_server]) = self.companies(id, gpu);
        if sharing == SharingMode::Mps { by_server } else { turns }
    }

    /// What is predicted of jobs that might join a company.
    pub(crate) fn outlooks_of(&self, there: &Company) -> Option<&Newcomers> {
        self.predictions.0.get(there)
    }

    /// What is predicted of a job of this class that might join.
    pub(crate) fn outlook(&self, there: &Company, newcomer: Class) -> Option<&Outlook> {
        self.outlooks_of(there)?.get(newcomer)
    }

    /// Whether it is not predicted what those on a GPU do beside each other, and some are so short that it counts when they end: what
    /// long ones do is measured soon enough. Or it was, and more is known now.
    pub(super) fn is_unpredicted(&self, gpu: &Gpu) -> bool {
        let is_short = |job: &Job| self.startup(job) != Startup::default();
        gpu.tenants.len() > 1
            && (gpu.outdated
                || (gpu.tenants.iter().all(|tenant| tenant.pace.is_none())
                    && gpu.tenants.iter().filter_map(|tenant| self.job(tenant.job)).any(is_short)))
    }

    /// More is known than when it was predicted what jobs do beside each other.
    pub(super) fn learned(&mut self) {
        self.forget_absent();
        for gpu in self.gpus.iter_mut().filter(|gpu| gpu.tenants.iter().any(|tenant| tenant.pace.is_some())) {
            gpu.outdated = true;
        }
    }

    /// The question what they do, if that was never asked.
    pub(crate) fn unpredicted(&self, id: GpuId, gpu: &Gpu) -> Option<Question> {
        if !self.is_unpredicted(gpu) {
            return None;
        }
        let mut there = self.company(id, gpu, SharingMode::Mps);
        let newcomer = there.classes.pop()?;
        let known = self.outlook(&there, newcomer).is_some();
        (!known).then_some(Question { there, newcomer, bounds: false })
    }

    /// All predictions.
    pub fn outlooks(&self) -> impl Iterator<Item = &Outlook> {
        self.predictions.all()
    }

    /// Those of companies that are on a GPU now: what is left of them once the predictor has learned.
    pub fn outlooks_there(&self) -> impl Iterator<Item = &Outlook> {
        let there = self.companies_there();
        let predictions = self.predictions.0.iter().filter(move |(company, _)| there.contains(company));
        predictions.flat_map(|(_, newcomers)| &newcomers.outlooks)
    }

    /// Forgets what is predicted of companies that are on no GPU.
    pub(super) fn forget_absent(&mut self) {
        let there = self.companies_there();
        self.predictions.0.retain(|company, _| there.contains(company));
    }

    fn companies_there(&self) -> BTreeSet<Company> {
        let shared = (0..).map(GpuId).zip(&self.gpus).filter(|(_, gpu)| !gpu.tenants.is_empty());
        shared.flat_map(|(id, gpu)| self.companies(id, gpu).1).collect()
    }

    /// A measurement that began before the neighbours changed tells nothing of the present ones.
    pub(super) fn measured(
        &mut self,
        id: JobId,
        attempt: u32,
        (progress, at_most): (Fraction, bool),
        over: Millis,
        loading: bool,
    ) -> Result<(), Rejected> {
        let now = self.now;
        let job = self.attempt_of(id, attempt)?;
        let placed = job.placement().into_iter().flat_map(|p| &p.gpus);
        let changed = placed.filter_map(|gpu| self.gpu(*gpu)?.changed).max();
        if changed.is_some_and(|at| now.since(at) < over) {
            return Err(Rejected::BadRequest(format!(
                "the neighbours of job {id} changed while its progress was measured"
            )));
        }
        // What it had until now went at the speed that was known until now.
        let gpus = job.placement().map(|placed| placed.gpus.clone()).unwrap_or_default();
        self.charge_around(&gpus);
        let window = self.options.slowdown_window;
        let limit = self.job(id).and_then(|job| job.limit(self.options.max_slowdown)).map(least_progress);
        // An upper bound shows that a limit was broken, and not that it was kept; so does a window in which a neighbour loads.
        let shown = limit.filter(|limit| over >= window && (!(at_most || loading) || progress < *limit));
        self.update(id, |job| {
            let before = job.measured.filter(|before| before.over >= window).map(|before| before.progress);
            let measured = Measured { at: now, progress, over, at_most, before };
            if let Some(limit) = shown.filter(|_| !measured.stood_still()) {
                job.kept = Some(Kept::with(job.kept, progress, limit));
            }
            job.measured = Some(measured);
        })
    }

    /// The neighbours on these GPUs are others now: what was measured beside the old ones is void.
    pub(super) fn regrouped(&mut self, gpus: &[GpuId]) {
        let now = self.now;
        let mut there: BTreeSet<JobId> = BTreeSet::new();
        for id in gpus {
            let _ = self.change_gpu(*id, |gpu, _| {
                gpu.changed = Some(now);
                there.extend(gpu.tenants.iter().map(|t| t.job));
            });
        }
        for id in there {
            if self.job(id).is_some_and(|job| job.measured.is_some()) {
                let _ = self.update(id, |job| job.measured = None);
            }
        }
    }
}
