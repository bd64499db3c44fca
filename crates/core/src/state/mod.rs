//! The state and the one way to change it.
//!
//! Here: what the state holds, what may be read of it, and which room takes which input. Each room below knows one kind
//! of input; none of them plans.

mod accounts;
mod attempts;
mod blind;
mod course;
mod devices;
mod energy;
mod index;
mod latest;
mod oom;
mod outcome;
mod peaks;
mod place;
mod predictions;
mod requests;
mod shadow;
mod starts;
mod suppose;
mod suspensions;
mod waiting;
mod weights;

pub use accounts::{Account, Metered};
pub(crate) use course::Course;
pub use energy::Tally;
use index::Index;
pub use index::Usage;
pub(crate) use place::Share;
pub use place::Unbounded;
pub(crate) use predictions::{Newcomers, Server};
pub(crate) use suspensions::{MOST_SPREADS, aside};
pub(crate) use waiting::JobKind;
pub use waiting::Queue;

use crate::explain::Reason;
use crate::input::{Action, Input, Rejected};
use crate::ledger::Gpu;
use crate::model::{Finished, GpuId, Job, JobId, Phase, User};
use crate::policy::Options;
use crate::progress::Company;

use crate::units::{MiB, Millis};
use accounts::Accounts;
pub(crate) use blind::{Blind, Blinds};
use peaks::{Peak, Peaks};
use predictions::{Bad, Outlooks};
use serde::{Deserialize, Serialize};
use shadow::Shadows;
use starts::Starts;
pub use starts::Startup;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use weights::Weights;

/// What applying an input brought to its end.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Applied {
    /// Jobs that are over and have left the state.
    pub finished: Vec<Finished>,
}

/// Everything that decisions depend on.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct State {
    now: Millis,
    options: Options,
    gpus: Vec<Gpu>,
    jobs: BTreeMap<JobId, Arc<Job>>,
    /// What is derived from jobs and GPUs.
    #[serde(skip)]
    index: Index,
    /// How much users' jobs weigh in the order of the queue.
    #[serde(default, skip_serializing_if = "Weights::is_none")]
    weights: Weights,
    /// Faults under MPS by command key.
    faulted: BTreeMap<u64, u32>,
    /// Commands that a fault was put down to, and that have ended well outside MPS since: once.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    cleared: BTreeSet<u64>,
    /// Jobs whose own fault was seen: jobs that died with them died of that.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    guilty: BTreeSet<JobId>,
    /// The index of the GPU with which the round-robin ring goes on.
    ring: u32,
    last_id: Option<JobId>,
    /// What is predicted of jobs beside each other. Journals of carma 0.1 have `outlooks`, which is not read any more.
    #[serde(default, skip_serializing_if = "Outlooks::is_empty")]
    predictions: Outlooks,
    /// When jobs would start without sharing.
    #[serde(default, skip_serializing_if = "Shadows::is_empty")]
    shadows: Shadows,
    /// What users have had.
    #[serde(default, skip_serializing_if = "Accounts::is_empty")]
    accounts: Accounts,
    /// What commands took lately.
    #[serde(default, skip_serializing_if = "Peaks::is_empty")]
    peaks: Peaks,
    /// How long commands started up lately.
    #[serde(default, skip_serializing_if = "Starts::is_empty")]
    starts: Starts,
    /// Companies in which a job was measured below the floor of the policy, or that did less together than one job alone, with when that was.
    #[serde(default, skip_serializing_if = "Bad::is_empty")]
    bad: Bad,
    /// Companies in which the limit of a job was exceeded: they are not brought together again while it is not over.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    exceeded: BTreeMap<JobId, Vec<Company>>,
    /// When MPS could last not be had, by its server.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    mps_failed: BTreeMap<u32, Millis>,
    /// What is applied was decided before: [`Self::replay`].
    #[serde(skip)]
    replays: bool,
}

impl State {
    /// Latest time seen. It never goes back: a clock that jumps back stands still here.
    #[must_use]
    pub const fn now(&self) -> Millis {
        self.now
    }

    /// The configuration in force.
    #[must_use]
    pub const fn options(&self) -> &Options {
        &self.options
    }

    /// All GPUs ever seen, by [`GpuId`].
    #[must_use]
    pub fn gpus(&self) -> &[Gpu] {
        &self.gpus
    }

    /// One GPU.
    #[must_use]
    pub fn gpu(&self, id: GpuId) -> Option<&Gpu> {
        self.gpus.get(id.0 as usize)
    }

    /// Handle of a GPU by UUID.
    #[must_use]
    pub fn gpu_id(&self, uuid: &str) -> Option<GpuId> {
        let at = self.gpus.iter().position(|g| &*g.info.uuid == uuid)?;
        u32::try_from(at).ok().map(GpuId)
    }

    /// Live jobs by number.
    #[must_use]
    pub const fn jobs(&self) -> &BTreeMap<JobId, Arc<Job>> {
        &self.jobs
    }

    /// One live job.
    #[must_use]
    pub fn job(&self, id: JobId) -> Option<&Job> {
        self.jobs.get(&id).map(|job| &**job)
    }

    /// Pending jobs in the order in which they are looked at.
    #[must_use]
    pub const fn queue(&self) -> Queue<'_> {
        Queue { waiting: &self.index.waiting, weights: &self.weights.of, shadows: &self.shadows }
    }

    /// When a job is due by its user's clock. A bound that an earlier policy made counts for nothing under one without bounds; it is kept
    /// with the job for when such a policy is in force again.
    fn due_of(&self, job: &Job) -> Option<Millis> {
        job.due.filter(|_| self.options.policy.line.is_by_length())
    }

    /// Whether the bound on a job's start has passed.
    #[must_use]
    pub fn is_overdue(&self, job: &Job, now: Millis) -> bool {
        let passed = |due: Millis| due <= now && due + self.shadows.lag(job.spec.user.uid, now) <= now;
        self.due_of(job).is_some_and(passed)
    }

    /// When the bound on a job's start passes or passed, if the same users wait until then. `None`: it has none, or its user's clock
    /// stands.
    #[must_use]
    pub fn bound_on_start(&self, job: &Job, now: Millis) -> Option<Millis> {
        let (due, uid) = (self.due_of(job)?, job.spec.user.uid);
        let lag = self.shadows.lag(uid, now);
        let left = (due + lag).since(now);
        if left > Millis::ZERO { self.shadows.after(uid, now, left) } else { Some(due + lag) }
    }

    /// Numbers of the jobs that are launching, running or being judged.
    #[must_use]
    pub const fn active(&self) -> &BTreeSet<JobId> {
        &self.index.active
    }

    /// Jobs that are launching, running or being judged.
    pub fn active_jobs(&self) -> impl Iterator<Item = &Job> {
        self.jobs_of(&self.index.active)
    }

    /// Jobs with a suspension under way.
    pub fn halted_jobs(&self) -> impl Iterator<Item = &Job> {
        self.jobs_of(&self.index.halted)
    }

    /// Active jobs that time alone may end, or that are being ended.
    pub(crate) fn ending_jobs(&self) -> impl Iterator<Item = &Job> {
        self.jobs_of(&self.index.ending)
    }

    /// Jobs that wait for a verdict.
    pub(crate) fn judging_jobs(&self) -> impl Iterator<Item = &Job> {
        self.jobs_of(&self.index.judging)
    }

    fn jobs_of<'a>(&'a self, ids: &'a BTreeSet<JobId>) -> impl Iterator<Item = &'a Job> {
        ids.iter().filter_map(|id| self.job(*id))
    }

    /// What a user's jobs take and wait for.
    #[must_use]
    pub fn usage(&self, uid: u32) -> Usage {
        self.index.usage.get(&uid).copied().unwrap_or_default()
    }

    /// Number of the next job.
    #[must_use]
    pub fn next_id(&self) -> JobId {
        JobId(self.last_id.map_or(1, |id| id.0 + 1))
    }

    /// Times that a command faulted under MPS.
    pub(crate) fn faults_of(&self, command_key: u64) -> u32 {
        self.faulted.get(&command_key).copied().unwrap_or(0)
    }

    /// How many faults a job died of in company that were put down to a job of which no fault of its own was seen since.
    pub(crate) fn unexplained_faults_of(&self, job: &Job) -> usize {
        let is_one = |verdict: &&Reason| match verdict {
            Reason::FaultVictim { culprit: Some(culprit), .. } => !self.guilty.contains(culprit),
            _ => false,
        };
        job.past.iter().map(|attempt| &attempt.verdict).filter(is_one).count()
    }

    /// What none of the commands exceeded that ran lately; `None`: too few have run.
    pub(crate) fn usual_memory(&self) -> Option<MiB> {
        self.peaks.most()
    }

    /// What no more than one in ten of the latest commands exceeded; `None`: too few have run.
    pub(crate) fn memory_of_most(&self) -> Option<MiB> {
        self.peaks.of_most()
    }

    /// What a quarter of the latest commands exceeded or met, those at work among them; `None`: too few are known.
    pub(crate) fn memory_taken_often(&self) -> Option<MiB> {
        let at_work = self.peaks_at_work().map(|(job, memory)| (job.spec.command_key, memory));
        self.peaks.often(at_work)
    }

    /// The most that jobs of a command are known to take on a GPU: those that run, and the latest that ran.
    pub(crate) fn taken_by(&self, command: u64) -> MiB {
        let tenants = self.gpus.iter().flat_map(|gpu| &gpu.tenants);
        let is_its = |job: JobId| self.job(job).is_some_and(|job| job.spec.command_key == command);
        let run = tenants.filter(|tenant| is_its(tenant.job)).filter_map(|tenant| tenant.peak);
        let ran = self.ran_lately().filter(|peak| peak.command == command).map(|peak| peak.memory);
        run.chain(ran).max().unwrap_or_default()
    }

    /// What jobs at work take, where that is a measure for others of their command.
    fn peaks_at_work(&self) -> impl Iterator<Item = (&Job, MiB)> {
        let tenants = self.gpus.iter().flat_map(|gpu| &gpu.tenants);
        let tenants = tenants.filter(|tenant| tenant.is_representative(self.now));
        tenants.filter_map(|tenant| Some((self.job(tenant.job)?, tenant.peak?)))
    }

    /// What the latest commands took that ran.
    fn ran_lately(&self) -> impl Iterator<Item = &Peak> {
        self.peaks.iter()
    }

    pub(crate) const fn ring(&self) -> u32 {
        self.ring
    }

    /// Numbers of the jobs with a suspension under way.
    #[must_use]
    pub const fn halted(&self) -> &BTreeSet<JobId> {
        &self.index.halted
    }

    /// GPUs in the order of their indices.
    pub(crate) fn order(&self) -> &[GpuId] {
        &self.index.order
    }

    /// Number of idle GPUs.
    #[must_use]
    pub fn idle_count(&self) -> usize {
        self.index.idle.len()
    }

    /// Idle GPUs, in the order of their indices.
    pub(crate) fn idle(&self) -> impl Iterator<Item = GpuId> {
        self.index.idle.iter().map(|(_, id)| *id)
    }

    /// The latest fatal fault under MPS on any GPU.
    pub(crate) const fn latest_fault(&self) -> Option<Millis> {
        self.index.latest_fault
    }

    /// Whether a user may do what root may.
    #[must_use]
    pub const fn is_admin(&self, by: &User) -> bool {
        by.operator || by.uid == 0 || by.uid == self.options.admin_uid
    }

    fn get(&self, id: JobId) -> Result<&Job, Rejected> {
        self.job(id).ok_or(Rejected::NoSuchJob(id))
    }

    /// Changes the state by one input.
    ///
    /// # Errors
    /// [`Rejected`] when the input makes no sense in this state; nothing has changed then.
    pub fn apply(&mut self, at: Millis, input: &Input) -> Result<Applied, Rejected> {
        let before = self.now;
        self.now = self.now.max(at);
        let mut applied = Applied::default();
        let result = self.dispatch(at, input, &mut applied);
        match result {
            Ok(()) => self.weigh(),
            Err(_) => self.now = before,
        }
        result.map(|()| applied)
    }

    /// The same of an input that a journal holds. What was launched runs, perhaps by the rules of an earlier version: it is there, whether
    /// or not these would have found room for it.
    ///
    /// # Errors
    /// As [`Self::apply`].
    pub fn replay(&mut self, at: Millis, input: &Input) -> Result<Applied, Rejected> {
        self.replays = true;
        let result = self.apply(at, input);
        self.replays = false;
        result
    }

    fn dispatch(&mut self, at: Millis, input: &Input, applied: &mut Applied) -> Result<(), Rejected> {
        match input {
            Input::Configured(options) => {
                // What was had until now counts by the options that were in force.
                self.charge_all();
                self.shadows.stop(self.now);
                if self.options.policy.progress != options.policy.progress {
                    // What was too slow for the old floor may do for the new one.
                    self.bad = Bad::default();
                }
                self.options = (**options).clone();
                self.rebuild_waiting();
                if self.options.policy.line.is_by_length() {
                    self.stop_clocks();
                }
                Ok(())
            }
            Input::Inventory(devices) => {
                self.inventory(devices);
                Ok(())
            }
            Input::Submitted(new) => self.submitted(new),
            Input::Observed { gpu, seen } => self.observed(at, *gpu, seen),
            Input::Unchanged(gpus) => self.unchanged(gpus),
            Input::Decided(action) => self.decided(action, applied),
            Input::Started { job, attempt, supervisor, child, sharing, note: _ } => {
                self.started(*job, *attempt, *supervisor, *child, *sharing)
            }
            Input::NotLaunched { job, attempt, why, pause } => {
                self.not_launched(*job, *attempt, why, *pause, applied)
            }
            Input::LaunchFailed { job, attempt, error, transient } => {
                self.launch_failed(*job, *attempt, error, *transient, applied)
            }
            Input::Exited { job, attempt, exit } => self.exited(*job, *attempt, exit, applied),
            Input::Forecast { job, computed, measured } => self.forecast(*job, *computed, *measured),
            Input::RunTime { job, run_time } => self.expect_run(*job, *run_time),
            Input::Profiled { job, profile } => self.profiled(*job, *profile),
            Input::Predicted(outlooks) => self.predicted(outlooks),
            Input::Learned => {
                self.learned();
                Ok(())
            }
            Input::Measured { job, attempt, progress, over, at_most, loading } => {
                self.measured(*job, *attempt, (*progress, *at_most), *over, *loading)
            }
            Input::Stepped { job, attempt, ago } => self.stepped(*job, *attempt, *ago),
            Input::Counted { job, attempt, share } => self.counted(*job, *attempt, *share),
            Input::CannotSave { job, attempt, why: _ } => self.cannot_save(*job, *attempt),
            Input::Suspended { job, attempt, host } => self.suspended(*job, *attempt, *host),
            Input::Resumed { job, attempt } => self.resumed(*job, *attempt),
            Input::SuspendFailed { job, attempt, why, stuck } => {
                self.suspend_failed(*job, *attempt, why, *stuck)
            }
            Input::Suspend { job, by } => self.suspend(*job, by),
            Input::Unsuspend { job, by } => self.unsuspend(*job, by),
            Input::Move { job, gpu, by } => self.move_to(*job, *gpu, by),
            Input::Cancel { job, by } => self.cancel(*job, by, applied),
            Input::Hold { job, by } => self.hold(*job, by),
            Input::Release { job, by } => self.release(*job, by),
            Input::Requeue { job, by } => self.requeue(*job, by),
            Input::Drain { gpu, by } => self.drain(*gpu, by, Some(by.name.clone())),
            Input::Resume { gpu, by } => self.drain(*gpu, by, None),
            Input::Foreseen(_) | Input::Tick => Ok(()),
        }
    }

    fn decided(&mut self, action: &Action, applied: &mut Applied) -> Result<(), Rejected> {
        match action {
            Action::Launch { job, placement } => self.place(*job, placement),
            Action::End { job, attempt, level, cause } => {
                let now = self.now;
                // With each further signal the cause comes again, and by then others may be together.
                if self.attempt_of(*job, *attempt)?.ending().is_none() {
                    self.taken_off(*job, cause, false);
                }
                self.end(*job, cause.clone())?;
                self.update(*job, |job| {
                    if let Phase::Running { ending: Some(ending), .. }
                    | Phase::Launching { ending: Some(ending), .. } = &mut job.phase
                    {
                        ending.sent = Some((*level, now));
                    }
                })
            }
            Action::Suspend { job, attempt, cause } => {
                self.suspending(*job, *attempt, cause.as_ref())?;
                cause.iter().for_each(|cause| self.taken_off(*job, cause, true));
                Ok(())
            }
            Action::Resume { job, attempt, gpus } => self.resuming(*job, *attempt, gpus),
            Action::SetState { job, state, reason } => self.judged(*job, *state, reason, applied),
        }
    }
}
