//! The jobs that wait, in the order in which they are looked at.
//!
//! By arrival there is one line. By length there is one for each user, so that what a user has had lately can weigh on
//! all of that user's jobs at once; they are merged as they are read.

use super::shadow::Shadows;
use super::weights::UNWEIGHTED;
use crate::model::{Floor, Forecasts, Job, JobId, QueueKey, SharingMode};
use crate::policy::Line;
use crate::progress::Class;
use crate::units::Millis;
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
    /// Of how many nothing is known of their memory.
    blind: usize,
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

impl Waiting {
    pub(super) fn insert(&mut self, job: &Arc<Job>, line: Line) {
        let of = self.lines.entry(line_of(job, line)).or_default();
        if of.insert(job.queue_key(line), Arc::clone(job)).is_none() {
            self.len += 1;
            self.limited += usize::from(job.spec.request.is_limited());
            self.blind += usize::from(is_blind(job));
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
                self.blind -= usize::from(is_blind(job));
                if let btree_map::Entry::Occupied(mut kind) = self.kinds.entry(JobKind::of(job)) {
                    *kind.get_mut() -= 1;
                    if *kind.get() == 0 {
                        kind.remove();
                    }
                }
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

    /// Whether nobody waits.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.waiting.len == 0
    }

    /// Whether one of them has a limit of slowdown of its own.
    #[must_use]
    pub const fn any_limited(self) -> bool {
        self.waiting.limited > 0
    }

    /// Of how many nothing is known of their memory.
    #[must_use]
    pub(crate) const fn blind(self) -> usize {
        self.waiting.blind
    }

    /// Number of kinds of jobs.
    #[must_use]
    pub(crate) fn kinds(self) -> usize {
        self.waiting.kinds.len()
    }

    /// Keys in order.
    pub fn iter(self) -> impl Iterator<Item = &'a QueueKey> {
        self.jobs().map(|(key, _)| key)
    }

    /// Jobs in order, whatever the time.
    #[must_use]
    pub fn jobs(self) -> Merged<'a> {
        let mut merged = Merged { heap: BinaryHeap::new(), only: None };
        for (at, (user, jobs)) in self.waiting.lines.iter().enumerate() {
            let weight = self.weights.get(user).copied().unwrap_or(UNWEIGHTED);
            if self.waiting.lines.len() == 1 {
                merged.only = Some(jobs.iter());
            } else {
                merged.push(at, weight, jobs.iter());
            }
        }
        merged
    }

    /// Jobs of a priority above 0, which operators give; then those whose bound on the start has passed, the earliest bound first,
    /// each on its user's clock; then the others in order.
    pub fn line(self, now: Millis) -> impl Iterator<Item = (&'a QueueKey, &'a Job)> {
        // They stand at the head of each line, behind those that recover.
        let head = self.jobs().take_while(|(key, _)| key.recovery.0 || key.is_urgent());
        let mut first: Vec<_> = head.filter(|(key, _)| key.is_urgent()).collect();
        let mut overdue = Vec::new();
        for (user, jobs) in &self.waiting.due {
            let lag = self.shadows.lag(*user, now);
            let passed = Millis(now.0.saturating_sub(lag.0));
            let of = jobs.range(..=(passed, JobId(u64::MAX))).filter(|(_, (key, _))| !key.is_urgent());
            overdue.extend(of.map(|((due, job), (key, at))| ((*due + lag, *job), (key, &**at))));
        }
        overdue.sort_unstable_by_key(|(due, _)| *due);
        first.extend(overdue.into_iter().map(|(_, job)| job));
        // Of the others nothing is read but their keys: in a long queue each job is a miss of the cache.
        let mut seen: Vec<JobId> = first.iter().map(|(key, _)| key.id).collect();
        seen.sort_unstable();
        first.into_iter().chain(self.jobs().filter(move |(key, _)| seen.binary_search(&key.id).is_err()))
    }

    /// When the next bound passes, if the same users wait until then.
    #[must_use]
    pub fn next_due(self, now: Millis) -> Option<Millis> {
        let next = self.waiting.due.iter().filter_map(|(user, jobs)| {
            let clock = Millis(now.0.saturating_sub(self.shadows.lag(*user, now).0));
            let mut left = jobs.range((clock, JobId(u64::MAX))..).map(|((due, _), _)| due.since(clock));
            let left = left.find(|left| *left > Millis::ZERO)?;
            Some(self.shadows.after(*user, now, left))
        });
        next.min()
    }
}

type Rank = (Reverse<bool>, Reverse<i32>, u128, JobId);
type Jobs<'a> = btree_map::Iter<'a, QueueKey, Arc<Job>>;

/// Jobs of several lines in one order.
pub struct Merged<'a> {
    heap: BinaryHeap<Reverse<Head<'a>>>,
    only: Option<Jobs<'a>>,
}

/// The first of a line.
struct Head<'a> {
    rank: Rank,
    line: usize,
    weight: u64,
    next: (&'a QueueKey, &'a Job),
    rest: Jobs<'a>,
}

impl<'a> Merged<'a> {
    fn push(&mut self, line: usize, weight: u64, mut rest: Jobs<'a>) {
        if let Some((key, job)) = rest.next() {
            let rank = rank(key, weight);
            self.heap.push(Reverse(Head { rank, line, weight, next: (key, job), rest }));
        }
    }
}

fn rank(key: &QueueKey, weight: u64) -> Rank {
    (key.recovery, key.priority, u128::from(key.length) * u128::from(weight), key.id)
}

impl<'a> Iterator for Merged<'a> {
    type Item = (&'a QueueKey, &'a Job);

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(only) = &mut self.only {
            return only.next().map(|(key, job)| (key, &**job));
        }
        let mut first = self.heap.peek_mut()?;
        let Reverse(head) = &mut *first;
        let taken = head.next;
        match head.rest.next() {
            Some((key, job)) => {
                head.rank = rank(key, head.weight);
                head.next = (key, job);
            }
            None => drop(PeekMut::pop(first)),
        }
        Some(taken)
    }
}

impl PartialEq for Head<'_> {
    fn eq(&self, other: &Self) -> bool {
        (&self.rank, self.line) == (&other.rank, other.line)
    }
}

impl Eq for Head<'_> {}

impl PartialOrd for Head<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Head<'_> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (&self.rank, self.line).cmp(&(&other.rank, other.line))
    }
}
