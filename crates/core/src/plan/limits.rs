//! What users take while a plan is made and have had in this period, held against what they may have.
//!
//! A job that waits here waits for others of its own user, or for the next period, and blocks no other user.

use crate::explain::{Reason, UserLimit};
use crate::model::{Job, JobId};
use crate::policy::Line;
use crate::state::{Account, State, Usage};
use crate::units::Millis;
use std::collections::BTreeMap;

/// What users take while a plan is made, held against what they may have.
pub(super) struct Takes<'a> {
    state: &'a State,
    /// What this plan adds.
    added: BTreeMap<u32, Usage>,
    /// Jobs that wait for GPUs of their own user's and may not be overtaken by that user's others.
    first: BTreeMap<u32, JobId>,
    /// What users have had until now; looked up for the first job of a user with a quota.
    had: Option<BTreeMap<u32, Account>>,
    /// A job waits for the next period, and for nothing before it.
    pub(super) spent: bool,
}

impl<'a> Takes<'a> {
    pub(super) const fn new(state: &'a State) -> Self {
        Self { state, added: BTreeMap::new(), first: BTreeMap::new(), had: None, spent: false }
    }

    /// The quota that a user has spent, if there is one.
    fn quota(&mut self, uid: u32, now: Millis) -> Option<UserLimit> {
        let options = self.state.options();
        let may = options.allowances.of(uid);
        if may.gpu_hours.is_none() && may.energy_j.is_none() {
            return None;
        }
        self.had.get_or_insert_with(|| self.state.accounts_at(now)).get(&uid)?.spent(may, now, options)
    }

    /// Why a job waits for others of the same user or for the next period, if it does.
    pub(super) fn bars(&mut self, job: &Job, recovering: bool, now: Millis) -> Option<Reason> {
        let options = self.state.options();
        if options.allowances.is_unlimited() {
            return None;
        }
        let user = &job.spec.user;
        if let Some(limit) = self.quota(user.uid, now) {
            return Some(Reason::UserLimit { user: user.name.clone(), limit });
        }
        let may = options.allowances.of(user.uid);
        let first = self.first.get(&user.uid).copied();
        let has = self.state.usage(user.uid).with(self.added.get(&user.uid).copied().unwrap_or_default());
        let (jobs_left, gpus_left) = may.left(has.running, has.gpus);
        let wanted = job.spec.request.gpus;
        let limit = match (may.jobs, may.gpus) {
            (Some(most), _) if jobs_left == 0 => UserLimit::Jobs { most },
            (_, Some(most)) if gpus_left < wanted => UserLimit::Gpus { wanted, used: has.gpus, most },
            _ => return first.map(|job| Reason::Behind { job, overtaken_for: options.policy.backfill }),
        };
        // Else smaller jobs of the same user would keep a large one out for ever.
        let patient = match options.policy.line {
            Line::Arrival => options.policy.backfill.is_some_and(|limit| now.since(job.queued) <= limit),
            Line::Shortest | Line::Longest => !self.state.is_overdue(job, now),
        };
        let possible = matches!(limit, UserLimit::Gpus { wanted, most, .. } if wanted <= most);
        if possible && !patient && !recovering && first.is_none() {
            self.first.insert(user.uid, job.spec.id);
        }
        Some(Reason::UserLimit { user: user.name.clone(), limit })
    }

    pub(super) fn take(&mut self, job: &Job) {
        if !self.state.options().allowances.is_unlimited() {
            let new = Usage { waiting: 0, running: 1, gpus: job.spec.request.gpus };
            let added = self.added.entry(job.spec.user.uid).or_default();
            *added = added.with(new);
        }
    }
}
