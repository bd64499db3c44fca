//! The jobs on a GPU while a plan is made, and what is predicted of them if one more joins.
//!
//! What follows from a prediction is the policy's and the limits' ([`super::slot`]).

use super::want::Want;
use crate::ledger::{Gpu, Tenant};
use crate::model::{GpuId, Job, JobId, SharingMode};
use crate::policy::Progress;
use crate::progress::{Class, Company, Outlook, Pace, Predicted};
use crate::state::{Course, Newcomers, Server, Startup, State};
use crate::units::{Fraction, Millis};
use std::borrow::Cow;
use std::cell::OnceCell;

/// The jobs on a GPU, with those that this plan has placed there.
pub(super) struct Beside<'a> {
    state: &'a State,
    neighbours: Vec<Neighbour>,
    server: Server,
    /// As a newcomer finds them that takes turns with them, and as one that their MPS server serves.
    modes: [Mode<'a>; 2],
}

/// A job on the GPU.
pub(super) struct Neighbour {
    pub(super) job: JobId,
    class: Class,
    /// The floor with which it joined, where that is below the policy's.
    pub(super) floor: Option<Fraction>,
    /// Computed when they are needed: most plans need them of few jobs.
    course: OnceCell<Option<Course>>,
    ends_in: OnceCell<Option<Millis>>,
    /// What it keeps of its speed beside its present neighbours, as far as that was predicted.
    pace: Option<Fraction>,
    /// What the slowest of its other GPUs leaves it, as far as that was predicted.
    elsewhere: Option<Fraction>,
}

struct Mode<'a> {
    company: Company,
    /// Looked up when it is needed: of most GPUs in one mode at most.
    outlooks: OnceCell<Option<&'a Newcomers>>,
}

impl<'a> Beside<'a> {
    pub(super) fn new(state: &'a State, id: GpuId, gpu: &Gpu) -> Self {
        let neighbour = |tenant: &Tenant| {
            let job = state.job(tenant.job)?;
            let (course, ends_in) = (OnceCell::new(), OnceCell::new());
            let placed = job.placement();
            let floor = state.lower_floor(job);
            let others = placed.into_iter().flat_map(|placed| &placed.gpus).filter(|gpu| **gpu != id);
            let elsewhere = others.filter_map(|gpu| state.gpu(*gpu)?.tenant(tenant.job)?.pace).min();
            let (job, class, pace) = (tenant.job, job.class(), tenant.pace);
            Some(Neighbour { job, class, floor, course, ends_in, pace, elsewhere })
        };
        let neighbours = gpu.tenants.iter().filter_map(neighbour);
        let (server, companies) = state.companies(id, gpu);
        let modes = companies.map(|company| Mode { outlooks: OnceCell::new(), company });
        Self { state, neighbours: neighbours.collect(), server, modes }
    }

    /// A job is placed here; `server`: what serves it if it is under MPS.
    pub(super) fn join(&mut self, job: JobId, want: &Want, server: Option<u32>) {
        let (course, ends_in) = (OnceCell::from(None), OnceCell::from(None));
        let Want { class, floor, .. } = *want;
        self.neighbours.push(Neighbour { job, class, floor, course, ends_in, pace: None, elsewhere: None });
        self.server = self.server.with(server);
        for mode in &mut self.modes {
            mode.company = mode.company.with(class);
            if self.server == Server::Several {
                mode.company.sharing = SharingMode::TimeSlice;
            }
            mode.outlooks = OnceCell::new();
        }
    }

    /// The jobs that are there, as a newcomer of this server finds them.
    fn mode(&self, server: Option<u32>) -> &Mode<'a> {
        let side_by_side = server.is_some() && self.server.with(server) != Server::Several;
        &self.modes[usize::from(side_by_side)]
    }

    pub(super) const fn server(&self) -> Server {
        self.server
    }

    /// The classes that are there, as a newcomer of this server finds them.
    pub(super) fn company(&self, server: Option<u32>) -> &Company {
        &self.mode(server).company
    }

    /// What is predicted if a job of this class and server joins.
    pub(super) fn outlook(&self, class: Class, server: Option<u32>) -> Option<&'a Outlook> {
        let mode = self.mode(server);
        (*mode.outlooks.get_or_init(|| self.state.outlooks_of(&mode.company)))?.get(class)
    }

    /// What is predicted of a newcomer and of the jobs that are there once it works, where some are over before.
    /// Where none is, and where that is not predicted, of all that are there `now`.
    pub(super) fn outlook_at_work(
        &self,
        now: &'a Outlook,
        server: Option<u32>,
        start: Startup,
    ) -> Cow<'a, Outlook> {
        let mut over =
            self.neighbours.iter().filter(|neighbour| self.is_over_before(neighbour, start)).peekable();
        if over.peek().is_none() {
            return Cow::Borrowed(now);
        }
        let there = self.company(server).without(over.map(|neighbour| neighbour.class));
        if there.classes.is_empty() {
            return Cow::Owned(Outlook::alone(there, now.newcomer));
        }
        let at_work = self.state.outlook(&there, now.newcomer);
        Cow::Borrowed(at_work.filter(|outlook| outlook.has_paces()).unwrap_or(now))
    }

    /// Whether a job is taken to be over before one works that starts up like this.
    pub(super) fn is_over_before(&self, neighbour: &Neighbour, start: Startup) -> bool {
        let by = start.others_over_by();
        by > Millis::ZERO && self.ends_in(neighbour).is_some_and(|ends_in| ends_in <= by)
    }

    /// The jobs that are taken to be over before one works that starts up like this, by number.
    pub(super) fn over_before(&self, start: Startup) -> Vec<JobId> {
        let over = self.neighbours.iter().filter(|neighbour| self.is_over_before(neighbour, start));
        let mut jobs: Vec<JobId> = over.map(|neighbour| neighbour.job).collect();
        jobs.sort_unstable();
        jobs
    }

    /// Time until one more of the jobs that are there now is taken to be over before such a newcomer works.
    pub(super) fn next_over_before(&self, start: Startup) -> Option<Millis> {
        let ends = self.neighbours.iter().filter_map(|neighbour| self.ends_in(neighbour));
        let until = ends.map(|ends_in| ends_in.since(start.others_over_by()));
        until.filter(|until| *until > Millis::ZERO).min()
    }

    /// Time until all jobs there are over or have left, as far as is known.
    pub(super) fn idle_in(&self) -> Millis {
        self.last(|neighbour, job| self.ends_in(neighbour).unwrap_or(Millis::secs(job.spec.run_s())))
    }

    /// The same, if no further job takes longer than expected.
    pub(super) fn idle_as_expected_in(&self) -> Millis {
        self.last(|neighbour, job| match self.ends_in(neighbour) {
            Some(_) => self.state.ends_as_expected_in(job),
            None => Millis::secs(job.spec.run_s()),
        })
    }

    /// The same, if each is left no more of its speed than it is to keep.
    pub(super) fn idle_at_least_speed_in(&self, rule: Progress) -> Millis {
        self.last(|neighbour, job| {
            let placed_now = || Millis::secs(job.spec.most_run_s().unwrap_or(job.spec.run_s()));
            let alone = self.course(neighbour).map_or_else(placed_now, Course::likely_left);
            alone.at_speed(rule.with(neighbour.floor).dip())
        })
    }

    /// When the last of the jobs that stay is over, by the time that is given for each.
    fn last(&self, ends_in: impl Fn(&Neighbour, &Job) -> Millis) -> Millis {
        let stays = |job: &&Job| job.ending().is_none() && job.suspension().is_none();
        let of =
            |neighbour: &Neighbour| Some(ends_in(neighbour, self.state.job(neighbour.job).filter(stays)?));
        self.neighbours.iter().filter_map(of).max().unwrap_or_default()
    }

    /// How long a job goes on; `None`: this plan has placed it.
    fn ends_in(&self, neighbour: &Neighbour) -> Option<Millis> {
        *neighbour.ends_in.get_or_init(|| Some(self.state.ends_in(self.state.job(neighbour.job)?)))
    }

    /// The job of this class: the newcomer, or one that is there.
    pub(super) fn who(&self, newcomer: JobId, joins: Class, class: Class) -> JobId {
        let there = || {
            self.neighbours.iter().find(|neighbour| neighbour.class == class).map(|neighbour| neighbour.job)
        };
        Some(newcomer).filter(|_| joins == class).or_else(there).unwrap_or(newcomer)
    }

    /// What is predicted of each job that is there if one joins.
    pub(super) fn paces(&self, outlook: &Outlook) -> impl Iterator<Item = (&Neighbour, Pace)> {
        self.neighbours.iter().filter_map(|neighbour| Some((neighbour, outlook.of(neighbour.class)?)))
    }

    /// What a job keeps of its speed beside its present neighbours; `None`: that is not predicted.
    pub(super) fn pace_now(&self, neighbour: &Neighbour) -> Option<Fraction> {
        let alone = self.neighbours.len() == 1;
        neighbour.pace.or(alone.then_some(Fraction::ONE))
    }

    /// Whether at this pace here a job would go no slower than another of its GPUs lets it.
    pub(super) fn is_held_elsewhere(&self, neighbour: &Neighbour, pace: Pace) -> bool {
        neighbour.elsewhere.is_some_and(|elsewhere| pace.expected >= elsewhere)
    }

    /// The same among these alone, of which it is one; `None`: that is not predicted.
    pub(super) fn pace_among(&self, neighbour: &Neighbour, stay: &Company) -> Option<Fraction> {
        if stay.classes.len() == self.neighbours.len() {
            return self.pace_now(neighbour);
        }
        let others = stay.without([neighbour.class]);
        if others.classes.is_empty() {
            return Some(Fraction::ONE);
        }
        let outlook = self.state.outlook(&others, neighbour.class).filter(|outlook| outlook.has_paces());
        outlook.map(|outlook| outlook.joins.expected)
    }

    /// How far a job is; `None`: this plan has placed it.
    pub(super) fn course(&self, neighbour: &Neighbour) -> Option<Course> {
        *neighbour.course.get_or_init(|| Some(self.state.course(self.state.job(neighbour.job)?)))
    }

    /// Time that the last job that is there takes from now on, if each is left no more of its speed than it is to
    /// keep; zero for one that has taken longer than expected. Without a rule, alone.
    pub(super) fn left(&self, rule: Option<Progress>) -> Millis {
        let least =
            |neighbour: &Neighbour| rule.map_or(Fraction::ONE, |rule| rule.with(neighbour.floor).dip());
        self.longest(|neighbour, course| course.left.at_speed(least(neighbour)))
    }

    /// Time that the last job that is there likely takes alone, also if it has taken longer than expected.
    pub(super) fn likely_left(&self) -> Millis {
        self.longest(|_, course| course.likely_left())
    }

    /// The jobs in the order of their ends, alone and as expected, each with the time until then. `None`: this plan has placed one.
    pub(super) fn ends(&self) -> Option<Vec<(Millis, JobId)>> {
        let left = |neighbour: &Neighbour| {
            Some((self.course(neighbour)?.as_expected().likely_left(), neighbour.job))
        };
        let mut ends: Vec<_> = self.neighbours.iter().map(left).collect::<Option<_>>()?;
        ends.sort_unstable();
        Some(ends)
    }

    fn longest(&self, of: impl Fn(&Neighbour, Course) -> Millis) -> Millis {
        let each =
            self.neighbours.iter().filter_map(|neighbour| Some(of(neighbour, self.course(neighbour)?)));
        each.max().unwrap_or_default()
    }

    /// What is predicted of each job that is there once a newcomer works that starts up like this, by job number.
    pub(super) fn predicted(&self, newcomer: JobId, outlook: &Outlook, start: Startup) -> Vec<Predicted> {
        let there = self.paces(outlook).filter(|(neighbour, _)| !self.is_over_before(neighbour, start));
        let there = there.map(|(neighbour, pace)| (neighbour.job, pace));
        let all = there.chain([(newcomer, outlook.joins)]);
        let mut tasks: Vec<Predicted> =
            all.map(|(job, Pace { expected, lower })| Predicted { job, expected, lower }).collect();
        tasks.sort_by_key(|task| task.job);
        tasks
    }
}
