//! What the looks at a GPU say of the time around a death on it.
//!
//! GPUs are looked at ten times a second, and a job that dies allocates between two looks. So nothing here is a
//! number: memory that others held is an interval, from the least to the most that the looks allow.

use crate::look::{Foreign, Observation};
use crate::spec::JobId;
use crate::units::{MiB, Millis};
use serde::{Deserialize, Serialize};

/// Looks that are kept of a GPU at most.
const KEPT: usize = 32;
/// Looks of this last span count as around a death: a process that ran out of memory prints a traceback and closes
/// its context before it is gone.
const NEAR: Millis = Millis::secs(1);
/// So many of the last looks count in any case, however much time lies between two of them: the one after the death,
/// the one before, and the one before that, since the process may have outlived the failure by one look.
const LAST: usize = 3;

/// The memory of a GPU over a time in which every look saw the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Glance {
    /// First seen so.
    pub from: Millis,
    /// Last seen so.
    pub until: Millis,
    /// Memory in use by anyone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<MiB>,
    /// Memory of each job that has a process here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<(JobId, Option<MiB>)>,
    /// Processes that carma did not start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub foreign: Vec<Foreign>,
    /// Whether the process list could be read.
    pub processes_known: bool,
}

impl Glance {
    fn new(seen: &Observation, at: Millis) -> Self {
        Self {
            from: at,
            until: at,
            used: seen.used,
            jobs: seen.jobs.clone(),
            foreign: seen.foreign.clone(),
            processes_known: seen.processes_known,
        }
    }

    fn shows(&self, seen: &Observation) -> bool {
        self.used == seen.used
            && self.processes_known == seen.processes_known
            && self.jobs == seen.jobs
            && self.foreign == seen.foreign
    }

    fn lists(&self, job: JobId) -> bool {
        self.jobs.iter().any(|(j, _)| *j == job)
    }

    /// Of how many looks it is at least.
    const fn looks(&self) -> usize {
        if self.until.0 > self.from.0 { 2 } else { 1 }
    }

    /// Memory of a job, where it has a process here and the driver tells.
    fn of(&self, job: JobId) -> Option<MiB> {
        self.jobs.iter().find(|(j, _)| *j == job).and_then(|(_, memory)| *memory)
    }
}

/// The last looks at one GPU, the latest last.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Glances(Vec<Glance>);

impl Glances {
    /// No look yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes in a look, or what is known to be true at a time without one.
    pub(crate) fn take(&mut self, seen: &Observation, at: Millis) {
        if let Some(last) = self.0.last_mut()
            && last.shows(seen)
        {
            last.until = last.until.max(at);
            return;
        }
        // What is older than the window is of no more use, but for the looks that count in any case.
        let old = |glance: &Glance| at.since(glance.until) > NEAR;
        let spare = self.0.len().saturating_sub(LAST);
        let drop = self.0.iter().take(spare).take_while(|g| old(g)).count();
        self.0.drain(..drop.max((self.0.len() + 1).saturating_sub(KEPT)));
        self.0.push(Glance::new(seen, at));
    }

    /// The looks that say something of a death that is told of now, of a job that was placed then.
    fn near(&self, job: JobId, placed: Millis, now: Millis) -> &[Glance] {
        let glances = &self.0;
        let Some(last) = glances.last() else { return &[] };
        // Nothing is nearer than what was seen at the very instant.
        if last.until >= now && last.lists(job) {
            let before = glances.iter().take_while(|g| g.from < now).count();
            return &glances[before.min(glances.len() - 1)..];
        }
        let mut first = glances.len();
        let mut looks = 0;
        for (at, glance) in glances.iter().enumerate().rev() {
            if looks >= LAST && now.since(glance.until) > NEAR {
                break;
            }
            first = at;
            looks += glance.looks();
            // The first to count is how the GPU was when the job came.
            if glance.from <= placed {
                break;
            }
        }
        &glances[first..]
    }

    /// What is known of the time around the death of a job that is told of at `now`. `stale`: looks that are older
    /// than this say nothing.
    pub(crate) fn around(&self, job: JobId, placed: Millis, now: Millis, stale: Millis) -> Around {
        let near = self.near(job, placed, now);
        let Some(last) = near.last().filter(|last| now.since(last.until) <= stale) else {
            return Around::default();
        };
        // Without a look after the death, anything may have happened since the last one.
        let closed = (last.processes_known && !last.lists(job)) || last.until >= now;
        // A process that is seen once may be one of the job's own that was just started and is not known as that yet. One
        // that is seen twice is not.
        let seen_twice = |pid: u32| {
            let mut shows = near.iter().filter(|g| g.foreign.iter().any(|f| f.pid == pid));
            let first = shows.next();
            first.is_some_and(|first| first.from < shows.next_back().unwrap_or(first).until)
        };
        let is_stranger = |f: &Foreign| last.foreign.iter().any(|l| l.pid == f.pid) || seen_twice(f.pid);
        let others = closed.then(|| near.iter().try_fold(None, |span, g| widen(span, g, job, &is_stranger)));
        // To be named, it must have been there before the death, and after.
        let exact = last.lists(job) && last.until >= now;
        let named = last.foreign.iter().filter(|f| f.memory.is_some() && (exact || seen_twice(f.pid)));
        Around {
            held: near.iter().rev().find_map(|g| g.of(job)),
            used: near.iter().rev().find(|g| g.lists(job)).and_then(|g| g.used),
            others: others.flatten().flatten(),
            beside: near
                .iter()
                .any(|g| g.jobs.iter().any(|(j, _)| *j != job) || g.foreign.iter().any(is_stranger)),
            foreign: named.max_by_key(|f| f.memory).cloned(),
            looks: closed,
        }
    }

    /// By how much the memory of a job rose over the last two looks that differ, where it rose in each of them; else by
    /// nothing. `since`: from before that no look counts.
    pub(crate) fn rise(&self, job: JobId, since: Millis) -> MiB {
        let [.., first, second, last] = self.0.as_slice() else { return MiB::ZERO };
        match (first.of(job), second.of(job), last.of(job)) {
            (Some(a), Some(b), Some(c)) if a < b && b < c && first.until >= since => c - a,
            _ => MiB::ZERO,
        }
    }

    /// Most memory of a job in the looks around a death of another.
    pub(crate) fn most_of(&self, job: JobId, now: Millis) -> Option<MiB> {
        let near = self.0.iter().rev().enumerate();
        let near = near.take_while(|(at, g)| *at < LAST || now.since(g.until) <= NEAR);
        near.filter_map(|(_, g)| g.of(job)).max()
    }
}

/// Widens the span of what others held by a look. `None`: a look did not tell, so that nothing is known.
#[expect(clippy::option_option, reason = "the outer one ends the fold, the inner one is its start")]
fn widen(
    span: Option<Span>,
    glance: &Glance,
    job: JobId,
    is_stranger: &impl Fn(&Foreign) -> bool,
) -> Option<Option<Span>> {
    let used = glance.used?;
    let known = |memory: Option<MiB>| memory.unwrap_or_default();
    let most = match glance.lists(job) {
        // Where the driver does not tell what a process holds, all of it may be the others'.
        true => used - known(glance.of(job)),
        false => used,
    };
    let least = if glance.processes_known && (!glance.lists(job) || glance.of(job).is_some()) {
        // What came and went with the job may have been the job.
        most - glance.foreign.iter().filter(|f| !is_stranger(f)).map(|f| known(f.memory)).sum()
    } else {
        let others = glance.jobs.iter().filter(|(j, _)| *j != job).map(|(_, m)| known(*m)).sum::<MiB>();
        others.min(most)
    };
    let span = span.unwrap_or(Span { least, most });
    Some(Some(Span { least: span.least.min(least), most: span.most.max(most) }))
}

/// From the least to the most that it can have been, as far as the looks go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    /// Lower bound.
    pub least: MiB,
    /// Upper bound.
    pub most: MiB,
}

/// What the looks around a death say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Around {
    /// Memory that the job was last seen to hold.
    pub held: Option<MiB>,
    /// Memory in use by anyone at that time.
    pub used: Option<MiB>,
    /// Memory that all others held, the driver included. `None`: it is not known.
    pub others: Option<Span>,
    /// Whether others were seen: jobs, or processes that did not just come and go with the job.
    pub beside: bool,
    /// The largest process that carma did not start and that was there before the death and after it.
    pub foreign: Option<Foreign>,
    /// Whether there is a look from after the death (or from its instant).
    pub looks: bool,
}
