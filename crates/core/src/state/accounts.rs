//! What each user has had of the GPUs: time, the part of it that counts where several shared, progress and energy.
//!
//! A GPU's time is divided among its tenants in equal parts, so that what all users are charged is the time in which GPUs
//! had tenants. Progress is a job's time on a GPU times its speed there: 1 while it starts up and while all others there do, then as measured
//! beside its present neighbours, else as predicted when they came together, else 1 over the number of tenants. How energy is divided is in [`super::energy`]: what
//! a job is charged of it, its user is. Accounts are brought up to date when tenants, speeds or energy counters change; in
//! between, [`State::accounts_at`] and [`State::metered_at`] say what they will be.

use super::State;
use super::energy::{Load, Meter, Others, Tally};
use crate::explain::UserLimit;
use crate::ledger::{Gpu, Tenant};
use crate::model::{GpuId, Had, Job, JobId, SharingMode, User};
use crate::policy::{Allowance, Options};
use crate::progress::Measured;
use crate::units::{Fraction, Millis, is_zero};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What one user has had.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// Login name.
    pub name: Arc<str>,
    /// GPU time that jobs had: of one that two of them share, twice.
    pub held: Millis,
    /// GPU time by share: of a GPU with so many tenants, one over that for each.
    pub charged: Millis,
    /// Progress received, in basis points of a millisecond alone on a GPU.
    progress: u64,
    /// Energy by share, millijoules, as far as counters were read.
    pub energy_mj: u64,
    /// Of the time charged, that of which the energy is not known.
    pub unmetered: Millis,
    /// Energy that attempts which are over would have taken alone, millijoules: of those of which the power alone is known,
    /// and whose counters were read.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub alone_mj: u64,
    /// What those attempts took.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub alone_of_mj: u64,
    /// Time charged lately: it loses half of its weight with each half-life.
    decayed: Decayed,
    /// Beginning of the quota period that the next two are of.
    period: Millis,
    period_charged: Millis,
    period_energy_mj: u64,
}

impl Account {
    fn new(name: &Arc<str>) -> Self {
        Self {
            name: Arc::clone(name),
            held: Millis::ZERO,
            charged: Millis::ZERO,
            progress: 0,
            energy_mj: 0,
            unmetered: Millis::ZERO,
            alone_mj: 0,
            alone_of_mj: 0,
            decayed: Decayed::default(),
            period: Millis::ZERO,
            period_charged: Millis::ZERO,
            period_energy_mj: 0,
        }
    }

    /// Progress received: so much time alone on a GPU would have brought as much.
    #[must_use]
    pub const fn progress(&self) -> Millis {
        Millis(self.progress / Fraction::ONE.0 as u64)
    }

    /// Time charged, each part halved with every half-life that has passed since.
    #[must_use]
    pub fn decayed_at(&self, now: Millis, options: &Options) -> Millis {
        Millis(self.decayed.at(now, options.usage_half_life) / 1000)
    }

    /// Time charged and energy in the quota period of this time, millijoules.
    #[must_use]
    pub fn of_period(&self, now: Millis, options: &Options) -> (Millis, u64) {
        if self.period == options.period_of(now) {
            (self.period_charged, self.period_energy_mj)
        } else {
            (Millis::ZERO, 0)
        }
    }

    /// The quota that is used up in the quota period of this time, if one is.
    pub(crate) fn spent(&self, may: Allowance, now: Millis, options: &Options) -> Option<UserLimit> {
        let (used, energy_mj) = self.of_period(now, options);
        let (used_j, left) = (energy_mj / 1000, options.next_period(now).since(now));
        match (may.gpu_hours, may.energy_j) {
            (Some(most), _) if used >= Millis::secs(u64::from(most) * 3600) => {
                Some(UserLimit::GpuHours { used, most, left })
            }
            (_, Some(most_j)) if used_j >= most_j => Some(UserLimit::Energy { used_j, most_j, left }),
            _ => None,
        }
    }

    fn enter_period(&mut self, period: Millis) {
        if self.period != period {
            self.period = period;
            self.period_charged = Millis::ZERO;
            self.period_energy_mj = 0;
        }
    }

    /// A job had a GPU from a time on for a span, of which `charged` is its part.
    fn charge(&mut self, from: Millis, span: Millis, charged: Millis, pace: Fraction, options: &Options) {
        self.held = self.held + span;
        self.charged = self.charged + charged;
        self.progress = self.progress.saturating_add(span.0.saturating_mul(u64::from(pace.0)));
        let to = from + span;
        self.decayed.add(to, span, charged, options.usage_half_life);
        let period = options.period_of(to);
        self.enter_period(period);
        let within = to.since(period.max(from));
        let part = u128::from(charged.0) * u128::from(within.0) / u128::from(span.0.max(1));
        self.period_charged = self.period_charged + Millis(u64::try_from(part).unwrap_or(u64::MAX));
    }

    fn power(&mut self, now: Millis, energy_mj: u64, options: &Options) {
        self.energy_mj = self.energy_mj.saturating_add(energy_mj);
        self.enter_period(options.period_of(now));
        self.period_energy_mj = self.period_energy_mj.saturating_add(energy_mj);
    }
}

/// An amount that loses half of itself with each half-life; kept in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Decayed {
    at: Millis,
    us: u64,
}

/// 1 in fixed point: 60 bits behind the point.
const ONE: u64 = 1 << 60;
/// The natural logarithm of 2 in fixed point.
const LN_2: u64 = 799_144_290_325_165_978;
/// Terms of the exponential's series: the next one is below the last bit for all exponents below the logarithm of 2.
const TERMS: u128 = 18;
/// Below this part of a half-life, time that was charged counts as if all of it lay in the middle: 6 in a million off.
const SHORT: u64 = 64;
/// Bits that are given up so that a product of time, half-life and a number below 1 has room.
const ROOM: u32 = 20;

/// 2 to the power of -`span`/`half_life`, in fixed point.
fn half_to(span: Millis, half_life: Millis) -> u64 {
    let half_life = u128::from(half_life.0.max(1));
    let (halvings, rest) = (u128::from(span.0) / half_life, u128::from(span.0) % half_life);
    if halvings >= 60 {
        return 0;
    }
    let exponent = rest * u128::from(LN_2) / half_life;
    let one = u128::from(ONE);
    // Horner's scheme: each step is below 1, so that nothing is below 0.
    let power = (1..=TERMS).rev().fold(one, |sum, term| one - ((exponent * sum) >> 60) / term);
    u64::try_from(power >> halvings).unwrap_or(ONE)
}

impl Decayed {
    fn at(self, now: Millis, half_life: Millis) -> u64 {
        let left = (u128::from(self.us) * u128::from(half_to(now.since(self.at), half_life))) >> 60;
        u64::try_from(left).unwrap_or(u64::MAX)
    }

    /// Adds time that was charged evenly over a span that ends now.
    fn add(&mut self, now: Millis, span: Millis, charged: Millis, half_life: Millis) {
        let us = u128::from(charged.0) * 1000;
        let left = if span.0 < half_life.0 / SHORT {
            us.saturating_mul(u128::from(half_to(Millis(span.0 / 2), half_life))) >> 60
        } else {
            // The mean of the power over the span.
            let lost = u128::from(ONE - half_to(span, half_life));
            let scaled = (us.saturating_mul(lost) >> ROOM).saturating_mul(u128::from(half_life.0));
            scaled / (u128::from(LN_2 >> ROOM) * u128::from(span.0.max(1)))
        };
        self.us = self.at(now, half_life).saturating_add(u64::try_from(left).unwrap_or(u64::MAX));
        self.at = now;
    }
}

/// A job on a GPU, as far as it is charged.
struct Part {
    pace: Fraction,
    /// Whether that was measured or predicted.
    known: bool,
    /// Whether it was measured, or the job is alone.
    measured: bool,
    /// End of its start-up.
    starts_until: Millis,
    /// Until then its speed is 1.
    full_until: Millis,
    load: Load,
}

/// The mean pace over a span from a time on, of which a first part goes at full speed.
fn over(pace: Fraction, full_until: Millis, from: Millis, span: Millis) -> Fraction {
    let full = full_until.since(from).min(span);
    let rest = u128::from(span.since(full).0) * u128::from(pace.0);
    let sum = u128::from(full.0) * u128::from(Fraction::ONE.0) + rest;
    Fraction(u32::try_from(sum / u128::from(span.0.max(1))).unwrap_or(pace.0))
}

/// A job that ends no longer than this after the last reading of the counter has no time of which the energy is not known:
/// looks are a tenth of a second apart, on the fast clock of virtual GPUs some seconds.
const UNREAD: Millis = Millis::secs(10);

/// What jobs, users and GPUs come to if energy counters are read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Metered {
    /// Users, by uid.
    pub users: BTreeMap<u32, Account>,
    /// Jobs that have GPUs: of the present attempt.
    pub jobs: BTreeMap<JobId, Had>,
    /// GPUs whose counter was read.
    pub gpus: BTreeMap<GpuId, Tally>,
}

/// What users have had.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Accounts {
    users: BTreeMap<u32, Account>,
    meters: BTreeMap<GpuId, Meter>,
    /// Jobs that have GPUs: what their present attempts had.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    jobs: BTreeMap<JobId, Had>,
}

impl Accounts {
    pub(super) fn is_empty(&self) -> bool {
        self.users.is_empty() && self.meters.is_empty()
    }

    pub(super) fn open(&mut self, user: &User) {
        let account = self.users.entry(user.uid).or_insert_with(|| Account::new(&user.name));
        if account.name != user.name {
            account.name = Arc::clone(&user.name);
        }
    }

    /// Time charged lately per share, microseconds.
    pub(super) fn lately(&self, uid: u32, now: Millis, options: &Options) -> u64 {
        let account = self.users.get(&uid);
        let us = account.map_or(0, |account| account.decayed.at(now, options.usage_half_life));
        us / u64::from(options.allowances.share_of(uid))
    }

    /// Whether a user has used a quota up, by what was charged until now.
    pub(super) fn has_spent(&self, uid: u32, now: Millis, options: &Options) -> bool {
        let may = options.allowances.of(uid);
        self.users.get(&uid).is_some_and(|account| account.spent(may, now, options).is_some())
    }

    /// What the present attempt of a job had of its GPUs, as far as it was charged.
    pub(super) fn had(&self, job: JobId) -> Had {
        self.jobs.get(&job).copied().unwrap_or_default()
    }

    fn charge(&mut self, gpu: GpuId, parts: Vec<Part>, others: Others, now: Millis, options: &Options) {
        // Of a GPU that no account knew before (journals of carma 0.1) it is not known since when.
        let meter = self.meters.entry(gpu).or_insert_with(|| Meter::from(now));
        let (from, span) = (meter.until, now.since(meter.until));
        meter.until = meter.until.max(now);
        if span == Millis::ZERO {
            return;
        }
        let among = parts.len() as u64;
        for (at, Part { pace, known, measured, starts_until, full_until, load }) in (0..).zip(&parts) {
            let pace = over(*pace, *full_until, from, span);
            // What does not divide evenly goes to the first, a millisecond each.
            let charged = Millis(span.0 / among + u64::from(at < span.0 % among));
            let Some(account) = self.users.get_mut(&load.uid) else { continue };
            account.charge(from, span, charged, pace, options);
            let had = self.jobs.entry(load.job).or_default();
            had.charge(span, pace, *known);
            if among == 1 && matches!(others, Others::None) {
                had.was_alone(span);
            }
            if !measured {
                had.was_unmeasured(span.since(full_until.since(from)));
            }
            if let Some(floor_mw) = meter.floor_mw() {
                had.starts(starts_until.since(from).min(span), floor_mw);
            }
            if meter.is_read() {
                meter.owes(load.job, load.uid, span, charged);
            } else {
                account.unmetered = account.unmetered + charged;
                had.unmetered = had.unmetered + span;
            }
        }
        if meter.is_read() {
            let loads: Vec<Load> = parts.into_iter().map(|part| part.load).collect();
            meter.passed(span, &loads, others);
        }
    }

    /// The energy counter of a GPU was read: what it has counted since is divided.
    fn read(&mut self, gpu: GpuId, energy_mj: u64, now: Millis, options: &Options) {
        let Some(meter) = self.meters.get_mut(&gpu) else { return };
        for paid in meter.read(energy_mj, now) {
            let Some(account) = self.users.get_mut(&paid.due.uid) else { continue };
            // One that moved away may be over by now: its user pays for it all the same.
            let had = self.jobs.get_mut(&paid.job);
            match paid.energy_mj {
                Some(energy_mj) => {
                    account.power(now, energy_mj, options);
                    had.into_iter().for_each(|had| had.energy_mj = had.energy_mj.saturating_add(energy_mj));
                }
                None => {
                    account.unmetered = account.unmetered + paid.due.charged;
                    had.into_iter().for_each(|had| had.unmetered = had.unmetered + paid.due.held);
                }
            }
        }
    }

    /// A job leaves its GPUs, charged up to now. `power_mw`: what a GPU draws under it alone. Returns what it had of them.
    fn leave(&mut self, job: JobId, uid: u32, gpus: &[GpuId], power_mw: Option<u32>) -> Had {
        let mut had = self.jobs.remove(&job).unwrap_or_default();
        let account = &mut self.users.get_mut(&uid);
        for gpu in gpus {
            let due = self.meters.get_mut(gpu).and_then(|meter| meter.leave(job));
            let Some(due) = due.filter(|due| due.held > UNREAD) else { continue };
            had.unmetered = had.unmetered + due.held;
            if let Some(account) = account {
                account.unmetered = account.unmetered + due.charged;
            }
        }
        if let (Some(account), Some(power), true) = (account, power_mw, had.unmetered == Millis::ZERO) {
            account.alone_mj = account.alone_mj.saturating_add(had.alone_mj(power));
            account.alone_of_mj = account.alone_of_mj.saturating_add(had.energy_mj);
        }
        had
    }
}

impl State {
    /// What each user has had, by uid, up to this time.
    #[must_use]
    pub fn accounts_at(&self, now: Millis) -> BTreeMap<u32, Account> {
        self.metered_at(now, &BTreeMap::new()).users
    }

    /// What users and jobs have had, and where the energy of GPUs went, up to this time, if energy counters say this now.
    #[must_use]
    pub fn metered_at(&self, now: Millis, counters: &BTreeMap<GpuId, u64>) -> Metered {
        let mut accounts = self.accounts.clone();
        let taken: BTreeSet<GpuId> = self.taken().chain(counters.keys().copied()).collect();
        for gpu in taken {
            let (parts, others) = self.parts(gpu);
            accounts.charge(gpu, parts, others, now, &self.options);
            if let Some(energy_mj) = counters.get(&gpu) {
                accounts.read(gpu, *energy_mj, now, &self.options);
            }
        }
        let read = accounts.meters.into_iter().filter(|(_, meter)| meter.is_read());
        let gpus = read.map(|(gpu, meter)| (gpu, meter.tally)).collect();
        Metered { users: accounts.users, jobs: accounts.jobs, gpus }
    }

    /// GPUs that have tenants.
    fn taken(&self) -> impl Iterator<Item = GpuId> {
        (0..).map(GpuId).zip(&self.gpus).filter(|(_, gpu)| !gpu.tenants.is_empty()).map(|(id, _)| id)
    }

    /// Whom the time and the energy of a GPU are charged to.
    fn parts(&self, id: GpuId) -> (Vec<Part>, Others) {
        let Some(gpu) = self.gpu(id) else { return (Vec::new(), Others::None) };
        let part = |tenant: &Tenant| {
            let job = self.job(tenant.job)?;
            let (pace, known) = self.pace(job);
            Some(Part {
                pace,
                known,
                measured: self.is_measured(job),
                starts_until: self.starts_until(job, tenant),
                full_until: self.full_until(job, tenant),
                load: load(gpu, job, pace),
            })
        };
        (gpu.tenants.iter().filter_map(part).collect(), Others::on(gpu))
    }

    /// What part each job on a GPU has of what the GPU does, as energy is divided. `None`: it is not known of one of them.
    #[must_use]
    pub fn activity_shares(&self, id: GpuId) -> Vec<(JobId, Option<Fraction>)> {
        let (parts, _) = self.parts(id);
        let sum = parts.iter().map(|part| part.load.activity).sum::<Option<u64>>();
        let share = |part: &Part| match (sum, part.load.activity) {
            _ if parts.len() == 1 => Some(Fraction::ONE),
            (Some(sum), Some(own)) => {
                let share = (u128::from(own) * u128::from(Fraction::ONE.0)).checked_div(u128::from(sum))?;
                u32::try_from(share).ok().map(Fraction)
            }
            _ => None,
        };
        parts.iter().map(|part| (part.load.job, share(part))).collect()
    }

    /// How many more jobs and GPUs the limits and quotas of a user allow now; by what was charged until now, where plans look at what will
    /// have been.
    pub(crate) fn allowed_more(&self, uid: u32) -> (u32, u32) {
        let options = &self.options;
        if options.allowances.is_unlimited() {
            return (u32::MAX, u32::MAX);
        }
        if self.accounts.has_spent(uid, self.now, options) {
            return (0, 0);
        }
        let has = self.usage(uid);
        options.allowances.of(uid).left(has.running, has.gpus)
    }

    /// Whether a job that waits may start now, as far as its user's limits and a pause of its own go.
    #[must_use]
    pub fn is_free_to_start(&self, job: &Job) -> bool {
        let (jobs, gpus) = self.allowed_more(job.spec.user.uid);
        jobs > 0 && gpus >= job.spec.request.gpus && job.not_before.is_none_or(|until| until <= self.now)
    }

    /// What the present attempt of a job that has GPUs had of them until now, as far as its time and its progress go.
    pub(super) fn had_until_now(&self, job: &Job) -> Had {
        let mut had = self.accounts.had(job.spec.id);
        let (pace, known) = self.pace(job);
        let gpus = job.placement().into_iter().flat_map(|placed| &placed.gpus);
        for (id, gpu) in gpus.filter_map(|id| Some((id, self.gpu(*id)?))) {
            let (Some(meter), Some(tenant)) = (self.accounts.meters.get(id), gpu.tenant(job.spec.id)) else {
                continue;
            };
            let (from, span) = (meter.until, self.now.since(meter.until));
            had.charge(span, over(pace, self.full_until(job, tenant), from, span), known);
        }
        had
    }

    /// How fast a job goes, over its speed alone: on several GPUs, as fast as on the slowest; and whether that was measured or
    /// predicted.
    pub(crate) fn pace(&self, job: &Job) -> (Fraction, bool) {
        if let Some(measured) = self.measured_over_window(job) {
            return (measured.progress.min(Fraction::ONE), true);
        }
        let gpus = job.placement().into_iter().flat_map(|placed| &placed.gpus);
        let on = |gpu: &GpuId| {
            let gpu = self.gpu(*gpu)?;
            let among = u32::try_from(gpu.tenants.len().max(1)).unwrap_or(u32::MAX);
            let predicted = gpu.tenant(job.spec.id).and_then(|tenant| tenant.pace);
            let pace = predicted.unwrap_or(Fraction(Fraction::ONE.0 / among)).min(Fraction::ONE);
            Some((pace, predicted.is_some()))
        };
        gpus.filter_map(on).min().unwrap_or((Fraction::ONE, false))
    }

    /// Until when a job on a GPU goes at full speed: to the end of its start-up there, or until the first of its neighbours has started, since
    /// a job that loads slows none down. Its present neighbours count.
    fn full_until(&self, job: &Job, tenant: &Tenant) -> Millis {
        let gpus = job.placement().into_iter().flat_map(|placed| &placed.gpus);
        let there = gpus.filter_map(|gpu| self.gpu(*gpu)).flat_map(|gpu| &gpu.tenants);
        let others = there.filter(|other| other.job != job.spec.id);
        let others = others.filter_map(|other| Some(self.starts_until(self.job(other.job)?, other)));
        self.starts_until(job, tenant).max(others.min().unwrap_or_default())
    }

    /// What was measured over a whole window of what neighbours leave a job: nothing of one that stood still.
    pub(crate) fn measured_over_window(&self, job: &Job) -> Option<Measured> {
        let window = self.options.slowdown_window;
        job.measured.filter(|measured| measured.over >= window && !measured.stood_still())
    }

    /// Whether [`Self::pace`] of a job is known and no prediction: it is measured, or there is no other on its GPUs.
    fn is_measured(&self, job: &Job) -> bool {
        let gpus = job.placement().into_iter().flat_map(|placed| &placed.gpus);
        self.measured_over_window(job).is_some()
            || gpus.filter_map(|id| self.gpu(*id)).all(|gpu| gpu.tenants.len() <= 1)
    }

    /// Brings the accounts of all GPUs up to date.
    pub(super) fn charge_all(&mut self) {
        let taken: Vec<GpuId> = self.taken().collect();
        self.charge(&taken);
    }

    fn charge<'a>(&mut self, gpus: impl IntoIterator<Item = &'a GpuId>) {
        for gpu in gpus {
            let (parts, others) = self.parts(*gpu);
            self.accounts.charge(*gpu, parts, others, self.now, &self.options);
        }
    }

    /// Tenants of these GPUs, or their speed, are about to change: what they had until now is charged. A tenant of several
    /// GPUs may go on at another speed on all of them.
    pub(super) fn charge_around(&mut self, gpus: &[GpuId]) {
        let tenants = gpus.iter().filter_map(|gpu| self.gpu(*gpu)).flat_map(|gpu| &gpu.tenants);
        let placed = tenants.filter_map(|tenant| self.job(tenant.job)?.placement());
        let around: BTreeSet<GpuId> = placed.flat_map(|placed| &placed.gpus).chain(gpus).copied().collect();
        self.charge(&around);
    }

    /// A look at a GPU is about to be taken in: what is reserved and what is seen may be otherwise then, and its energy until now
    /// is divided by what was. Without a counter nothing depends on it.
    pub(super) fn charge_as_it_was(&mut self, gpu: GpuId) {
        if self.accounts.meters.get(&gpu).is_some_and(Meter::is_read) {
            self.charge([&gpu]);
        }
    }

    /// The energy counter of a GPU was read.
    pub(super) fn metered(&mut self, gpu: GpuId, energy_mj: u64) {
        self.charge([&gpu]);
        self.accounts.read(gpu, energy_mj, self.now, &self.options);
    }

    /// A job leaves its GPUs. Returns what it had of them.
    pub(super) fn settle(&mut self, job: JobId, gpus: &[GpuId]) -> Had {
        self.charge_around(gpus);
        let Some(spec) = self.job(job).map(|job| &job.spec) else { return Had::default() };
        let (uid, power_mw) = (spec.user.uid, spec.profile.power_mw);
        self.accounts.leave(job, uid, gpus, power_mw)
    }

    /// Tenants of these GPUs are others now: what was predicted of them together is remembered with them.
    pub(super) fn predict_paces(&mut self, gpus: &[GpuId]) {
        for id in gpus {
            let paces = self.predicted_paces(*id);
            let _ = self.change_gpu(*id, |gpu, _| {
                for tenant in &mut gpu.tenants {
                    tenant.pace = paces.get(&tenant.job).copied();
                }
                gpu.outdated = false;
            });
        }
    }

    /// What jobs that share a GPU do beside each other may be predicted now, where it was not.
    pub(super) fn predict_paces_of_all(&mut self) {
        let gpus = (0..).map(GpuId).zip(&self.gpus).filter(|(_, gpu)| self.is_unpredicted(gpu));
        for gpu in gpus.map(|(id, _)| id).collect::<Vec<_>>() {
            if !self.predicted_paces(gpu).is_empty() {
                self.charge_around(&[gpu]);
                self.predict_paces(&[gpu]);
            }
        }
    }

    /// What was predicted of the tenants of a GPU beside each other.
    fn predicted_paces(&self, id: GpuId) -> BTreeMap<JobId, Fraction> {
        let Some(gpu) = self.gpu(id).filter(|gpu| gpu.tenants.len() > 1) else { return BTreeMap::new() };
        let company = self.company(id, gpu, SharingMode::Mps);
        // It was asked as a question about one of them that joins the others: whichever that was.
        let joined = (0..company.classes.len()).find_map(|at| {
            let mut there = company.clone();
            let newcomer = there.classes.remove(at);
            self.outlook(&there, newcomer).filter(|outlook| outlook.has_paces())
        });
        let Some(outlook) = joined else { return BTreeMap::new() };
        let pace = |job: &Job| {
            let class = job.class();
            if class == outlook.newcomer { Some(outlook.joins) } else { outlook.of(class) }
        };
        let jobs = gpu.tenants.iter().filter_map(|tenant| self.job(tenant.job));
        jobs.filter_map(|job| Some((job.spec.id, pace(job)?.expected))).collect()
    }
}

/// What a job asks of a GPU that it is on.
fn load(gpu: &Gpu, job: &Job, pace: Fraction) -> Load {
    let tenant = gpu.tenant(job.spec.id);
    let seen = tenant.is_some_and(|tenant| tenant.active_since.is_some());
    let is_known = gpu.seen.as_ref().is_some_and(|seen| seen.processes_known);
    let alone = tenant.and_then(|tenant| tenant.alone?.means()[0]).or(job.spec.profile.smact);
    let activity = match alone {
        _ if is_known && !seen => Some(0),
        Some(alone) => Some(u64::from(alone.0) * u64::from(pace.0)),
        None => None,
    };
    let memory = tenant.map_or(0, |tenant| tenant.takes(gpu.info.memory).0);
    Load { job: job.spec.id, uid: job.spec.user.uid, memory, activity }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Millis = Millis::secs(3600);
    const WEEK: Millis = Millis::secs(7 * 86_400);

    #[test]
    fn halves_are_halves() {
        assert_eq!(half_to(Millis::ZERO, WEEK), ONE);
        assert_eq!(half_to(WEEK, WEEK), ONE / 2);
        assert_eq!(half_to(Millis(WEEK.0 * 3), WEEK), ONE / 8);
        assert_eq!((half_to(Millis(u64::MAX), WEEK), half_to(WEEK, Millis::ZERO)), (0, 0));
        // The square root of a half, to the last of sixteen digits or so.
        let root = half_to(Millis(WEEK.0 / 2), WEEK) as f64 / ONE as f64;
        assert!((root - 0.5f64.sqrt()).abs() < 1e-15, "{root}");
        let ms = 1.0 - half_to(Millis(1), WEEK) as f64 / ONE as f64;
        assert!((ms * WEEK.0 as f64 / std::f64::consts::LN_2 - 1.0).abs() < 1e-6, "{ms}");
    }

    #[test]
    fn charges_fade_alike_however_often_they_are_counted() {
        let end = Millis(WEEK.0 * 2);
        let once = |pieces: u64| {
            let mut decayed = Decayed::default();
            let span = Millis(end.0 / pieces);
            (1..=pieces).for_each(|n| decayed.add(Millis(span.0 * n), span, span, WEEK));
            decayed.at(end, WEEK)
        };
        // Two half-lives of one GPU: a week over ln 2, three quarters of it.
        let exact = WEEK.0 as f64 * 1000.0 / std::f64::consts::LN_2 * 0.75;
        for pieces in [1, 7, 100, 10_000] {
            let counted = once(pieces) as f64;
            assert!((counted / exact - 1.0).abs() < 1e-5, "{pieces}: {counted} {exact}");
        }
    }

    fn accounts(parts: &[(u32, u32)]) -> Accounts {
        let mut accounts = Accounts::default();
        parts.iter().for_each(|(uid, _)| accounts.open(&User::new(*uid, format!("u{uid}"))));
        accounts
    }

    /// Jobs 1, 2 and so on of these users at these speeds.
    fn charge(accounts: &mut Accounts, parts: &[(u32, u32)], now: Millis, options: &Options) {
        let part = |(job, (uid, pace)): (u64, &(u32, u32))| {
            let load = Load { job: JobId(job), uid: *uid, memory: 1, activity: None };
            Part {
                pace: Fraction::percent(*pace),
                known: true,
                measured: *pace < 90,
                starts_until: Millis::ZERO,
                full_until: Millis::ZERO,
                load,
            }
        };
        accounts.charge(GpuId(0), (1..).zip(parts).map(part).collect(), Others::None, now, options);
    }

    #[test]
    fn time_progress_and_energy_are_divided() {
        let parts = [(1, 70), (2, 90), (2, 60)];
        let mut accounts = accounts(&parts);
        let options = Options::default();
        let gpu = GpuId(0);
        charge(&mut accounts, &[], HOUR, &options);
        accounts.read(gpu, 5_000, HOUR, &options);
        // An hour without a job, an hour for three jobs, and the counter goes on by 900 J in these two hours.
        charge(&mut accounts, &[], HOUR + HOUR, &options);
        charge(&mut accounts, &parts, Millis(HOUR.0 * 3), &options);
        accounts.read(gpu, 905_000, Millis(HOUR.0 * 3), &options);
        let (one, two) = (&accounts.users[&1], &accounts.users[&2]);
        assert_eq!((one.held, one.charged), (HOUR, Millis(HOUR.0 / 3)));
        assert_eq!((two.held, two.charged), (Millis(HOUR.0 * 2), Millis(HOUR.0 / 3 * 2)));
        assert_eq!((one.progress(), two.progress()), (Millis(HOUR.0 * 7 / 10), Millis(HOUR.0 * 15 / 10)));
        assert_eq!((one.energy_mj, two.energy_mj), (150_000, 300_000));
        assert_eq!((one.unmetered, two.unmetered), (Millis::ZERO, Millis::ZERO));
        let had = accounts.jobs[&JobId(2)];
        assert_eq!((had.held, had.progress(), had.energy_mj), (HOUR, Millis(HOUR.0 * 9 / 10), 150_000));
        // Of the second the speed was not measured.
        assert_eq!((had.unmeasured, accounts.jobs[&JobId(1)].unmeasured), (HOUR, Millis::ZERO));
        // The counter began anew.
        charge(&mut accounts, &parts, Millis(HOUR.0 * 4), &options);
        accounts.read(gpu, 7_000, Millis(HOUR.0 * 4), &options);
        assert_eq!(accounts.users[&1].energy_mj, 150_000);
        assert_eq!(accounts.users[&1].unmetered, Millis(HOUR.0 / 3));
        assert_eq!(accounts.jobs[&JobId(1)].unmetered, HOUR);
        // A job that is over pays up to the last reading; a long time after it is not known.
        charge(&mut accounts, &parts, Millis(HOUR.0 * 4) + UNREAD, &options);
        assert_eq!(accounts.leave(JobId(1), 1, &[gpu], None).unmetered, HOUR);
        charge(&mut accounts, &parts[1..], Millis(HOUR.0 * 5), &options);
        assert_eq!(accounts.leave(JobId(2), 2, &[gpu], Some(1)).unmetered, HOUR + HOUR);
        assert_eq!(accounts.users[&2].alone_of_mj, 0, "part of it is not known");
    }

    #[test]
    fn what_a_job_took_that_was_alone_is_what_it_takes_alone() {
        for beside in [false, true] {
            let mut accounts = accounts(&[(1, 100), (2, 100)]);
            let (options, gpu) = (Options::default(), GpuId(0));
            charge(&mut accounts, &[], Millis::secs(10), &options);
            accounts.read(gpu, 0, Millis::secs(10), &options);
            charge(&mut accounts, &[(1, 100)], Millis::secs(50), &options);
            accounts.read(gpu, 4_000_000, Millis::secs(50), &options);
            let both = [(1, 100), (2, 100)];
            charge(&mut accounts, if beside { &both } else { &both[..1] }, Millis::secs(60), &options);
            accounts.read(gpu, 7_000_000, Millis::secs(60), &options);
            let had = accounts.leave(JobId(1), 1, &[gpu], Some(200_000));
            let expected = if beside { (5_500_000, 10_000_000) } else { (7_000_000, 7_000_000) };
            assert_eq!((had.energy_mj, had.alone_mj(200_000)), expected, "beside another: {beside}");
        }
    }

    #[test]
    fn start_up_would_draw_the_floor_alone() {
        let mut accounts = accounts(&[(1, 50)]);
        let (options, gpu) = (Options::default(), GpuId(0));
        let starts = |accounts: &mut Accounts, now| {
            let load = Load { job: JobId(1), uid: 1, memory: 1, activity: None };
            let part = Part {
                pace: Fraction::percent(50),
                known: true,
                measured: false,
                starts_until: Millis::secs(50),
                full_until: Millis::secs(50),
                load,
            };
            accounts.charge(gpu, vec![part], Others::None, now, &options);
        };
        let alone = |accounts: &Accounts| accounts.jobs[&JobId(1)].alone_mj(300_000);
        // No floor is known: ten seconds at its power.
        charge(&mut accounts, &[], Millis::secs(10), &options);
        starts(&mut accounts, Millis::secs(20));
        assert_eq!(alone(&accounts), 3_000_000);
        // With nothing on it the GPU draws 100 W.
        accounts.read(gpu, 0, Millis::secs(20), &options);
        charge(&mut accounts, &[], Millis::secs(40), &options);
        accounts.read(gpu, 2_000_000, Millis::secs(40), &options);
        // Until the fiftieth second it starts, and so does no progress need to be measured.
        assert_eq!(accounts.jobs[&JobId(1)].unmeasured, Millis::ZERO);
        // Ten seconds of start-up, and half of thirty of work.
        starts(&mut accounts, Millis::secs(80));
        assert_eq!(alone(&accounts), 3_000_000 + 1_000_000 + 4_500_000);
        let twice = accounts.jobs[&JobId(1)].with(accounts.jobs[&JobId(1)]);
        assert_eq!(twice.alone_mj(300_000), 17_000_000);
    }

    #[test]
    fn a_period_counts_from_its_beginning() {
        let parts = [(1, 100)];
        let mut accounts = accounts(&parts);
        let options = Options { quota_period: Millis(HOUR.0 * 10), ..Options::default() };
        charge(&mut accounts, &[], HOUR, &options);
        charge(&mut accounts, &parts, Millis(HOUR.0 * 9), &options);
        let of = |accounts: &Accounts, at: u64| accounts.users[&1].of_period(Millis(HOUR.0 * at), &options).0;
        assert_eq!((of(&accounts, 9), of(&accounts, 10)), (Millis(HOUR.0 * 8), Millis::ZERO));
        charge(&mut accounts, &parts, Millis(HOUR.0 * 12), &options);
        assert_eq!((of(&accounts, 9), of(&accounts, 12)), (Millis::ZERO, Millis(HOUR.0 * 2)));
    }
}
