//! The jobs that wait, in the order in which they are looked at.
//!
//! By arrival there is one line. By length there is one for each user, so that what a user has had lately can weigh on
//! all of that user's jobs at once; they are merged as they are read.

use super::shadow::Shadows;
use super::weights::UNWEIGHTED;
use crate::model::{Floor, Forecasts, Job, JobId, QueueKey, SharingMode};
use crate::policy::Line;
use crate::progress::Class;
use crate::units::{MiB, Millis};
use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BTreeMap, BinaryHeap, btree_map};
use std::sync::Arc;

/// Jobs with a bound on their start, the earliest bound first.
type ByDue = BTreeMap<(Millis, JobId), (QueueKey, Arc<Job>)>;

/// Pending jobs, indexed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Waiting {
    lines: BTreeMap<u32, BTreeMap<QueueKey, Arc<Job>>>,
    /// Each user's with a bound on their start, the earliest bound first.
    due: BTreeMap<u32, ByDue>,
    len: usize,
    /// How many have a limit of slowdown of their own.
    limited: usize,
    /// Of how many of each user nothing is known of their memory.
    blind: BTreeMap<u32, usize>,
    /// How many there are of each kind.
    kinds: BTreeMap<JobKind, usize>,
}

/// Jobs of one kind ask the same of predictions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct JobKind {
    class: Class,
    uid: u32,
    sharing: Option<SharingMode>,
    alone: bool,
    limited: bool,
    gpus: u32,
    /// Of one command, one that needs less may have room where another has none.
    declared: Option<MiB>,
    floor: Option<Floor>,
    /// What one of unknown memory gets goes by whether it has another attempt, and by what it held before.
    retries: (Option<u32>, u32),
    held: MiB,
}

impl JobKind {
    pub(crate) fn of(job: &Job) -> Self {
        let request = &job.spec.request;
        Self {
            class: job.class(),
            uid: job.spec.user.uid,
            sharing: request.sharing,
            alone: request.exclusive || job.floor == Some(Floor::ExclusiveGpu),
            limited: request.is_limited(),
            gpus: request.gpus,
            declared: job.spec.forecasts.declared,
            floor: job.floor,
            retries: (request.max_retries, job.charged_retries),
            held: job.least_capacity(),
        }
    }
}

/// The line that a job stands in.
fn line_of(job: &Job, line: Line) -> u32 {
    match line {
        Line::Arrival => 0,
        Line::Shortest | Line::Longest => job.spec.user.uid,
    }
}

fn is_blind(job: &Job) -> bool {
    job.floor.is_none() && job.spec.forecasts == Forecasts::default()
}

/// Counts one less of something, and forgets what there is none of.
fn one_less<K: Ord>(counts: &mut BTreeMap<K, usize>, key: K) {
    if let btree_map::Entry::Occupied(mut count) = counts.entry(key) {
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
        }
    }
}

impl Waiting {
    pub(super) fn insert(&mut self, job: &Arc<Job>, line: Line) {
        let of = self.lines.entry(line_of(job, line)).or_default();
        if of.insert(job.queue_key(line), Arc::clone(job)).is_none() {
            self.len += 1;
            self.limited += usize::from(job.spec.request.is_limited());
            if is_blind(job) {
                *self.blind.entry(job.spec.user.uid).or_default() += 1;
            }
            *self.kinds.entry(JobKind::of(job)).or_default() += 1;
        }
        if let Some(due) = job.due.filter(|_| line.is_by_length()) {
            let of = self.due.entry(job.spec.user.uid).or_default();
            of.insert((due, job.spec.id), (job.queue_key(line), Arc::clone(job)));
        }
    }

    pub(super) fn remove(&mut self, job: &Job, line: Line) {
        if let btree_map::Entry::Occupied(mut of) = self.lines.entry(line_of(job, line)) {
            if of.get_mut().remove(&job.queue_key(line)).is_some() {
                self.len -= 1;
                self.limited -= usize::from(job.spec.request.is_limited());
                if is_blind(job) {
                    one_less(&mut self.blind, job.spec.user.uid);
                }
                one_less(&mut self.kinds, JobKind::of(job));
            }
            if of.get().is_empty() {
                of.remove();
            }
        }
        if let (Some(due), btree_map::Entry::Occupied(mut of)) = (job.due, self.due.entry(job.spec.user.uid))
        {
            of.get_mut().remove(&(due, job.spec.id));
            if of.get().is_empty() {
                of.remove();
            }
        }
    }

    /// Whether jobs stand in the line of a user.
    pub(super) fn has(&self, uid: u32) -> bool {
        self.lines.contains_key(&uid)
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// The pending jobs, in the order in which they are looked at.
#[derive(Debug, Clone, Copy)]
pub struct Queue<'a> {
    pub(super) waiting: &'a Waiting,
    /// Weight of each user's jobs, where it is not one: more lets them wait.
    pub(super) weights: &'a BTreeMap<u32, u64>,
    /// The clocks that bounds on starts are on.
    pub(super) shadows: &'a Shadows,
}

impl<'a> Queue<'a> {
    /// Number of jobs.
    #[must_use]
    pub const fn len(self) -> usize {
        self.waiting.len
    }

    /// Whether no job waits.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.waiting.len == 0
    }

    /// Number of users whose jobs wait, where each has a line.
    pub(crate) fn users(self) -> usize {
        self.waiting.lines.len()
    }

    /// Whether one of them has a limit of slowdown of its own.
    pub(crate) const fn any_limited(self) -> bool {
        self.waiting.limited > 0
    }

    /// Of how many of each user nothing is known of their memory.
    pub(crate) fn blind(self) -> impl Iterator<Item = (u32, usize)> + use<'a> {
        self.waiting.blind.iter().map(|(uid, count)| (*uid, *count))
    }

    /// Number of kinds of jobs of some users, counted up to `most`.
    pub(crate) fn kinds_of(self, whose: impl Fn(u32) -> bool, most: usize) -> usize {
        self.waiting.kinds.keys().filter(|kind| whose(kind.uid)).take(most).count()
    }

    /// Keys in order.
    pub fn iter(self) -> impl Iterator<Item = &'a QueueKey> {
        self.jobs().map(|(key, _)| key)
    }

    /// Jobs in order, whatever the time.
    pub fn jobs(self) -> impl Iterator<Item = (&'a QueueKey, &'a Job)> {
        self.jobs_due_after(|_| true, |_| None)
    }

    /// Those of some users whose bound on the start, if they have one, is later than this.
    fn jobs_due_after(
        self,
        whose: impl Fn(u32) -> bool,
        passed: impl Fn(u32) -> Option<Millis>,
    ) -> impl Iterator<Item = (&'a QueueKey, &'a Job)> {
        let lines = self.waiting.lines.iter().filter(move |(user, _)| whose(**user));
        Merge::new(lines.map(|(user, jobs)| {
            let weight = self.weights.get(user).copied().unwrap_or(UNWEIGHTED);
            let passed = passed(*user);
            let of = jobs.iter().filter(move |(key, _)| passed.is_none_or(|passed| key.due > passed));
            of.map(move |(key, job)| (rank(key, weight), (key, &**job)))
        }))
    }

    /// A user's clock: bounds on starts up to it have passed.
    fn clock(self, uid: u32, now: Millis) -> Millis {
        Millis(now.0.saturating_sub(self.shadows.lag(uid, now).0))
    }

    /// Jobs of some users whose bound on the start has passed, the earliest bound first, with that bound as of now, and the user.
    fn overdue_since(
        self,
        now: Millis,
        whose: impl Fn(u32) -> bool,
    ) -> impl Iterator<Item = (Millis, u32, &'a QueueKey, &'a Job)> {
        let lines = self.waiting.due.iter().filter(move |(user, _)| whose(**user));
        Merge::new(lines.map(|(user, jobs)| {
            let lag = self.shadows.lag(*user, now);
            let of = jobs.range(..=(self.clock(*user, now), JobId(u64::MAX)));
            of.map(move |((due, id), (key, job))| {
                let due = *due + lag;
                ((due, *id), (due, *user, key, &**job))
            })
        }))
    }

    /// Jobs of a priority above 0, which operators give; then those whose bound on the start has passed, the earliest bound first,
    /// each on its user's clock; then the others in order. Of those that are not looked at nothing is read but their keys: in a long
    /// queue each job is a miss of the cache.
    pub fn line(self, now: Millis) -> impl Iterator<Item = (&'a QueueKey, &'a Job)> {
        self.line_of(now, |_| true)
    }

    /// The same of some users alone, where each has a line.
    pub(crate) fn line_of(
        self,
        now: Millis,
        whose: impl Fn(u32) -> bool + Copy + 'a,
    ) -> impl Iterator<Item = (&'a QueueKey, &'a Job)> {
        // They stand at the head of each line, behind those that recover.
        let head =
            self.jobs_due_after(whose, |_| None).take_while(|(key, _)| key.recovery.0 || key.is_urgent());
        let urgent: Vec<_> = head.filter(|(key, _)| key.is_urgent()).collect();
        let others = self.jobs_due_after(whose, move |user| Some(self.clock(user, now)));
        let overdue = self.overdue_since(now, whose).map(|(.., key, job)| (key, job));
        let others = overdue.chain(others).filter(|(key, _)| !key.is_urgent());
        urgent.into_iter().chain(others)
    }

    /// When the next bound passes, if the same users wait until then.
    pub(crate) fn next_due(self, now: Millis) -> Option<Millis> {
        let next = self.waiting.due.iter().filter_map(|(user, jobs)| {
            let clock = self.clock(*user, now);
            let mut left = jobs.range((clock, JobId(u64::MAX))..).map(|((due, _), _)| due.since(clock));
            let left = left.find(|left| *left > Millis::ZERO)?;
            self.shadows.after(*user, now, left)
        });
        next.min()
    }

    /// When the order of the jobs that are over their bounds changes, if the same users wait until then: the clocks of users go
    /// by their shares.
    pub(crate) fn next_turn(self, now: Millis) -> Option<Millis> {
        if self.shadows.go_alike() {
            return None;
        }
        // Of jobs that change places, two that are next to each other are the first.
        // Jobs of users whose clocks stand are passed by the others at any time, and may start at none.
        let goes = |user: u32| !self.shadows.stands(user);
        let overdue = || self.overdue_since(now, goes).take(MOST_IN_TURN).map(|(due, user, ..)| (due, user));
        let pairs = overdue().zip(overdue().skip(1));
        let turns = pairs.filter_map(|((sooner, of), (later, by))| {
            self.shadows.overtakes(of, by, now, later.since(sooner))
        });
        turns.min()
    }
}

/// Jobs over their bounds whose order is watched: a plan rarely looks at more.
const MOST_IN_TURN: usize = 1024;

type Rank = (Reverse<bool>, Reverse<i32>, u128, JobId);

fn rank(key: &QueueKey, weight: u64) -> Rank {
    (key.recovery, key.priority, u128::from(key.length) * u128::from(weight), key.id)
}

/// Lines that are each in the order of their keys, in one order, as they are read.
struct Merge<K, V, I> {
    /// The key of the first of each line, and which line that is.
    first: BinaryHeap<Reverse<(K, usize)>>,
    /// The first of each line, and the rest.
    lines: Vec<(Option<V>, I)>,
}

impl<K: Ord, V, I: Iterator<Item = (K, V)>> Merge<K, V, I> {
    fn new(lines: impl Iterator<Item = I>) -> Self {
        let mut merge = Self { first: BinaryHeap::new(), lines: Vec::new() };
        for mut line in lines {
            if let Some((key, first)) = line.next() {
                merge.first.push(Reverse((key, merge.lines.len())));
                merge.lines.push((Some(first), line));
            }
        }
        merge
    }
}

impl<K: Ord, V, I: Iterator<Item = (K, V)>> Iterator for Merge<K, V, I> {
    type Item = V;

    fn next(&mut self) -> Option<V> {
        let mut least = self.first.peek_mut()?;
        let Reverse((key, at)) = &mut *least;
        let (first, rest) = self.lines.get_mut(*at)?;
        let Some((next_key, next)) = rest.next() else {
            PeekMut::pop(least);
            return first.take();
        };
        *key = next_key;
        first.replace(next)
    }
}
