//! Gandiva (Xiao et al., OSDI 2018), sections 3.2 and 4: introspective packing.
//!
//! A job gets idle GPUs where there are. Where there are none (packing is for overload only) it is
//! packed onto the least utilised GPUs on which the profiled memory of all fits. After a while the
//! mini-batch rates are read: when their sum, each over the rate alone, beats 1, which is what time
//! slicing would give, the packing stays; otherwise the newcomer is taken off, goes on later where it
//! was, and the same tasks are not packed together again. It then tries the next least utilised GPU.
//!
//! Our reading:
//!  - What does not fit waits in the order of arrival, and any that can start does.
//!  - Rates are read [`PROFILE`] after all of the GPU's jobs work: the paper's quantum of time slicing.
//!  - A third job on a GPU is judged by the same test, against the set of all tasks there.
//!  - Utilisation is that of the jobs alone, summed. One packing is tried on a GPU at a time.
//!  - Left out: time slicing by suspension and resumption. In the paper jobs that do not fit together take turns of
//!    about a minute; here the later ones wait, so that where nothing fits together this is exclusive. In the mean
//!    that costs nothing where jobs are about equally long, and much where short ones wait for a long one.
//!  - Left out, too: migration to better places, and growing onto idle GPUs.

use super::desk::{Desk, LOOKAHEAD};
use crate::event::scheduler::{Decision, Fate, Left, Scheduler};
use crate::event::world::{GpuIndex, JobIndex, Stage, World};
use carma_core::units::Millis;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// How long a packing is watched before it is judged.
const PROFILE: Millis = Millis::secs(60);
/// What time slicing would give: the sum of rates that a packing must beat.
const TIME_SLICING: f64 = 1.0;

pub(super) struct Gandiva {
    desk: Desk,
    /// Newcomers on trial, and since when all on their GPUs have been at work.
    trials: BTreeMap<JobIndex, Option<Millis>>,
    /// Tasks that did not do well together: their names, sorted.
    failed: BTreeSet<Vec<Arc<str>>>,
    /// Whether a waiting job may start that could not before.
    news: bool,
}

impl Gandiva {
    pub(super) const fn new(desk: Desk) -> Self {
        Self { desk, trials: BTreeMap::new(), failed: BTreeSet::new(), news: false }
    }

    /// Judges the packings that have been watched for long enough.
    fn judge(&mut self, now: Millis, world: &World, decisions: &mut Vec<Decision>) {
        let on_trial: Vec<JobIndex> = self.trials.keys().copied().collect();
        for job in on_trial {
            let gpus = self.desk.on[job as usize].clone();
            let tenants = |gpu: &GpuIndex| self.desk.board[*gpu as usize].iter();
            if gpus.iter().all(|gpu| tenants(gpu).len() < 2) {
                self.trials.remove(&job);
                self.news = true;
                continue;
            }
            let at_work = |job: &JobIndex| world.jobs[*job as usize].stage == Stage::Active;
            if !gpus.iter().flat_map(tenants).all(at_work) {
                continue;
            }
            let since = *self.trials.entry(job).or_default().get_or_insert(now);
            if now < since + PROFILE {
                continue;
            }
            let rate = |gpu: &GpuIndex| tenants(gpu).map(|job| world.jobs[*job as usize].rate).sum::<f64>();
            let loses = |gpu: &&GpuIndex| tenants(gpu).len() > 1 && rate(gpu) <= TIME_SLICING;
            let failed: Vec<Vec<Arc<str>>> =
                gpus.iter().filter(loses).map(|gpu| self.desk.tasks_on(*gpu, None)).collect();
            self.trials.remove(&job);
            self.news = true;
            if !failed.is_empty() {
                self.failed.extend(failed);
                decisions.push(self.desk.preempt(job));
            }
        }
    }

    fn place(&mut self, decisions: &mut Vec<Decision>) {
        let waiting: Vec<JobIndex> = self.desk.waiting.iter().copied().take(LOOKAHEAD).collect();
        for job in waiting {
            let desk = &self.desk;
            let idle = desk.gpus().filter(|gpu| desk.is_idle(*gpu) && desk.joins(job, *gpu));
            let gpus = desk.pick(job, idle).or_else(|| {
                let under_trial = |gpu: &GpuIndex| {
                    desk.board[*gpu as usize].iter().any(|tenant| self.trials.contains_key(tenant))
                };
                let will_do = |gpu: &GpuIndex| {
                    desk.joins(job, *gpu)
                        && (desk.is_idle(*gpu)
                            || !under_trial(gpu)
                                && !self.failed.contains(&self.desk.tasks_on(*gpu, Some(job))))
                };
                desk.pick_least_utilised(job, desk.gpus().filter(will_do))
            });
            let Some(gpus) = gpus else { continue };
            if gpus.iter().any(|gpu| !desk.is_idle(*gpu)) {
                self.trials.insert(job, None);
            }
            let terms = self.desk.terms(1.0);
            decisions.push(self.desk.start(job, gpus, terms));
        }
    }
}

impl Scheduler for Gandiva {
    fn came(&mut self, _now: Millis, job: JobIndex, _world: &World) -> Fate {
        self.news = true;
        self.desk.came(job)
    }

    fn left(&mut self, _now: Millis, job: JobIndex, how: Left, _world: &World) -> Fate {
        self.trials.remove(&job);
        self.news = true;
        self.desk.left(job, how)
    }

    fn changed(&mut self, _now: Millis, _gpu: GpuIndex, _world: &World) {}

    fn decide(&mut self, now: Millis, world: &World) -> Vec<Decision> {
        let mut decisions = Vec::new();
        self.judge(now, world, &mut decisions);
        if std::mem::take(&mut self.news) {
            self.place(&mut decisions);
        }
        decisions
    }

    fn wake(&self) -> Option<Millis> {
        self.trials.values().flatten().map(|since| *since + PROFILE).min()
    }
}
