//! What earlier runs teach: pure, without a file or a clock. The daemon feeds it ends of attempts,
//! keeps [`HistoryRow`]s in its database and asks it at each submission.
//!
//! Levels, from narrow to wide: the exact command on the same kind of
//! place; the same program with another batch size, edition or place, scaled by what a front end
//! simulates; and, for programs never seen, how far that front end is off for the family. A run that
//! was cut off (out of memory, at a cap, ended early) is a lower bound and never a measurement. CUDA
//! contexts are learned apart, so that what a task needs carries over to another GPU.
//!
//! All that is learned of runs is its user's alone: what a front end said of one comes with the request, and whoever sends it can
//! write what he likes. Only what a probe says of a context is everybody's.

mod context;
mod program;
mod ratio;
mod run;
mod signature;

pub use context::Context;
pub use program::{Anchor, Margins, Program, Sim, Told};
pub use ratio::{ENOUGH, Group};
pub use run::{Observed, Outcome};
pub use signature::{
    Facts, Named, Place, SETTINGS, Signature, UNREAD, configurations, doing, fingerprint, own_program,
};

use crate::{Estimate, MiB, Tier};
use program::Wanted;
use ratio::Ratio;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Programs that are remembered at most; of the user who has the most, the one used least lately is forgotten.
const PROGRAMS: usize = 4096;
/// Groups of ratios, and contexts of users, likewise; probed contexts at most.
const GROUPS: usize = 1024;

/// Which table of the history a row belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Table {
    /// [`Program`]s by key.
    Program,
    /// Samples of [`Group`]s, by user, front end, family, GPU and framework, and place in the group.
    Ratio,
    /// [`Context`]s by place, those that runs told by user and place.
    Context,
}

impl Table {
    /// As stored.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Program => "program",
            Self::Ratio => "ratio",
            Self::Context => "context",
        }
    }

    /// From what was stored.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Program, Self::Ratio, Self::Context].into_iter().find(|t| t.as_str() == word)
    }
}

/// A part of the history as it is stored: one changed thing, one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryRow {
    /// Which table.
    pub table: Table,
    /// Key in it.
    pub key: String,
    /// JSON; `None`: the row goes.
    pub body: Option<String>,
}

/// A run that is over.
#[derive(Debug, Clone, Copy)]
pub struct Run<'a> {
    /// What ran.
    pub signature: &'a Signature,
    /// GPU and framework that it ran on.
    pub place: &'a Place,
    /// What was seen of it.
    pub outcome: Outcome,
    /// The hard limit on its memory, where it had one.
    pub limit: Option<MiB>,
    /// Whether its command returned 0.
    pub completed: bool,
    /// Whether its memory went on growing.
    pub growing: bool,
    /// What front ends had said of it.
    pub estimates: &'a [Estimate],
}

/// What is asked.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// What will run.
    pub signature: &'a Signature,
    /// GPU and framework that it is asked for.
    pub place: &'a Place,
    /// What front ends say of it, best first.
    pub estimates: &'a [Estimate],
}

/// Everything learned.
#[derive(Debug, Clone, Default)]
pub struct History {
    programs: BTreeMap<u64, Program>,
    groups: BTreeMap<String, Group>,
    contexts: BTreeMap<String, Context>,
    /// Programs by when they were used last.
    by_use: BTreeSet<(u64, u64)>,
    updates: u64,
    changed: BTreeSet<(Table, String)>,
}

/// A context where nothing is known: between what drivers since 2022 take (docs/research/datasets.md and the sources in `carma-hardware`).
const CONTEXT: MiB = MiB(512);
/// Front ends this good say what is context and what is not.
const KNOWS_CONTEXT: Tier = Tier::Trace;

impl History {
    /// Puts a stored row back. Rows of a table come in the order of their keys.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn load(&mut self, row: &HistoryRow) -> Result<(), String> {
        let Some(body) = &row.body else { return Ok(()) };
        let broken = |e: serde_json::Error| format!("{} {}: {e}", row.table.as_str(), row.key);
        match row.table {
            Table::Program => {
                let key = u64::from_str_radix(&row.key, 16)
                    .map_err(|e| format!("program {}: not a key ({e})", row.key))?;
                let program: Program = serde_json::from_str(body).map_err(broken)?;
                let used = last_used(&program);
                self.updates = self.updates.max(used);
                self.by_use.insert((used, key));
                self.programs.insert(key, program);
            }
            Table::Ratio => {
                let (group, place) = sample_place(&row.key)
                    .ok_or_else(|| format!("ratio {}: not a group and a place", row.key))?;
                if owner(group).is_none() {
                    // Of an older version, which learned it from all users for all: any of them may have made it up.
                    self.changed.insert((row.table, row.key.clone()));
                    return Ok(());
                }
                let sample: ratio::Sample = serde_json::from_str(body).map_err(broken)?;
                self.updates = self.updates.max(sample.at);
                self.groups.entry(group.to_owned()).or_default().restore(place, sample);
            }
            Table::Context => {
                let mut context: Context = serde_json::from_str(body).map_err(broken)?;
                self.updates = self.updates.max(context.used);
                if owner(&row.key).is_none() && !context.keep_probed() {
                    self.changed.insert((row.table, row.key.clone()));
                    return Ok(());
                }
                self.contexts.insert(row.key.clone(), context);
            }
        }
        Ok(())
    }

    /// What changed since the last time, to be stored.
    ///
    /// # Errors
    /// What cannot be written as JSON, which nothing here should be.
    pub fn changes(&mut self) -> Result<Vec<HistoryRow>, String> {
        std::mem::take(&mut self.changed)
            .into_iter()
            .map(|(table, key)| {
                let body = match table {
                    Table::Program => {
                        let program = u64::from_str_radix(&key, 16).ok().and_then(|k| self.programs.get(&k));
                        program.map(serde_json::to_string)
                    }
                    Table::Ratio => {
                        let sample =
                            sample_place(&key).and_then(|(group, place)| self.groups.get(group)?.at(place));
                        sample.map(serde_json::to_string)
                    }
                    Table::Context => self.contexts.get(&key).map(serde_json::to_string),
                };
                let body = body.transpose().map_err(|e| format!("{} {key}: {e}", table.as_str()))?;
                Ok(HistoryRow { table, key, body })
            })
            .collect()
    }

    /// Programs by key.
    pub fn programs(&self) -> impl Iterator<Item = (u64, &Program)> {
        self.programs.iter().map(|(key, program)| (*key, program))
    }

    /// Ratios by user, and by front end, family, GPU and framework.
    pub fn groups(&self) -> impl Iterator<Item = (u32, &str, &Group)> {
        self.groups.iter().filter_map(|(key, group)| {
            let (user, key) = owner(key)?;
            Some((user, key, group))
        })
    }

    /// Contexts by the user whose runs told them (`None`: a probe did), and by GPU, driver and framework.
    pub fn contexts(&self) -> impl Iterator<Item = (Option<u32>, &str, &Context)> {
        self.contexts.iter().map(|(key, context)| match owner(key) {
            Some((user, key)) => (Some(user), key, context),
            None => (None, key.as_str(), context),
        })
    }

    /// The context of one process at a place, if a probe or enough runs of this user say. Of an unknown
    /// framework, the largest of that GPU and driver.
    #[must_use]
    pub fn context(&self, place: &Place, user: u32) -> Option<MiB> {
        let key = context_key(place);
        let here = format!("{}|{}|", part(&place.gpu), part(&place.driver));
        let at = |key: &str| self.contexts.get(key).and_then(Context::size);
        let near = |here: String| {
            let near = self.contexts.range(here.clone()..).take_while(move |(key, _)| key.starts_with(&here));
            near.filter_map(|(_, context)| context.size())
        };
        let own = at(&key).or_else(|| at(&owned(user, &key)));
        own.or_else(|| near(here.clone()).chain(near(owned(user, &here))).max())
    }

    /// Takes a probe of a context. `false`: the number cannot be one, and nothing changed.
    pub fn probe(&mut self, place: &Place, size: MiB) -> bool {
        let key = context_key(place);
        let probed = self.contexts.keys().filter(|key| owner(key).is_none()).count();
        if !self.contexts.contains_key(&key) && probed >= GROUPS {
            return false;
        }
        let good = self.contexts.entry(key.clone()).or_default().probe(size);
        if good {
            self.changed.insert((Table::Context, key));
        }
        good
    }

    /// Learns from a run that is over.
    pub fn learn(&mut self, run: &Run<'_>) {
        if run.outcome == Outcome::Ignored {
            return;
        }
        self.updates += 1;
        if let Outcome::Peak(peak) = run.outcome {
            self.learn_context(run, peak);
        }
        let context = self.context_for(run.place, run.signature.user, run.estimates);
        self.learn_program(run, context);
        if let Outcome::Peak(peak) = run.outcome {
            self.learn_ratios(run, peak, context);
        }
    }

    fn learn_context(&mut self, run: &Run<'_>, peak: MiB) {
        let exact = run.estimates.iter().find(|e| e.tier == KNOWS_CONTEXT);
        let Some(parts) = exact.and_then(|e| e.parts) else { return };
        if !parts.workspace_mib.is_zero() {
            // A bound of workspaces is no measurement: what is left would be too small.
            return;
        }
        let user = run.signature.user;
        let key = owned(user, &context_key(run.place));
        let context = self.contexts.entry(key.clone()).or_default();
        context.candidate(peak - parts.reserved_mib);
        context.used = self.updates;
        self.changed.insert((Table::Context, key));
        let theirs = || self.contexts.iter().filter_map(|(key, c)| Some((owner(key)?.0, c.used, key)));
        if theirs().count() > GROUPS
            && let Some(oldest) = oldest_of_most(theirs, user).cloned()
        {
            self.contexts.remove(&oldest);
            self.changed.insert((Table::Context, oldest));
        }
    }

    fn learn_program(&mut self, run: &Run<'_>, context: MiB) {
        let key = run.signature.program;
        if let Some(program) = self.programs.get(&key) {
            self.by_use.remove(&(last_used(program), key));
        } else if self.programs.len() >= PROGRAMS {
            self.forget_program(run.signature.user);
        }
        let program = self
            .programs
            .entry(key)
            .or_insert_with(|| Program::new(run.signature.user, run.signature.label.clone()));
        let sim = sim_of(run.estimates);
        let wanted = Wanted {
            content: run.signature.content,
            unread: run.signature.unread,
            batch: run.signature.batch,
            place: run.place,
            sim: sim.as_ref(),
            context_mib: context.0,
        };
        let anchor = program.anchor(&wanted, self.updates);
        anchor.growing |= run.growing;
        match run.outcome {
            Outcome::Peak(MiB(mib)) => {
                anchor.runs = anchor.runs.saturating_add(1);
                anchor.max_mib = anchor.max_mib.max(Some(mib));
                anchor.min_mib = Some(anchor.min_mib.map_or(mib, |min| min.min(mib)));
                anchor.sim = wanted.sim.cloned().or(anchor.sim.take());
                anchor.context_mib = context.0;
                if let Some(MiB(limit)) = run.limit {
                    anchor.ended_within(limit);
                }
            }
            Outcome::AtLeast(MiB(mib)) => match run.limit {
                // It kept below its limit, which may have held it down: more than it was seen to take need not be.
                Some(MiB(limit)) if run.completed => {
                    anchor.was_cut_off(mib.min(limit.saturating_sub(1)));
                    anchor.ended_within(limit);
                }
                _ => anchor.was_cut_off(mib),
            },
            Outcome::Settled(MiB(mib)) => anchor.stood_still(mib),
            Outcome::Ignored => {}
        }
        self.by_use.insert((self.updates, key));
        self.changed.insert((Table::Program, program_key(key)));
    }

    fn forget_program(&mut self, by: u32) {
        let all = || self.by_use.iter().filter_map(|at| Some((self.programs.get(&at.1)?.user, at.0, *at)));
        let Some(oldest) = oldest_of_most(all, by) else { return };
        self.by_use.remove(&oldest);
        self.programs.remove(&oldest.1);
        self.changed.insert((Table::Program, program_key(oldest.1)));
    }

    fn learn_ratios(&mut self, run: &Run<'_>, peak: MiB, context: MiB) {
        let user = run.signature.user;
        // What a program takes by its share differs from GPU to GPU: it is no error of the share.
        for estimate in run.estimates.iter().filter(|e| e.tier != Tier::Share) {
            let base = estimate.parts.map_or(MiB::ZERO, |p| p.context_mib);
            let context = if estimate.parts.is_some() { context } else { MiB::ZERO };
            let ratio = Ratio {
                measured: (peak - context).0,
                expected: (estimate.use_mib - base).0,
                upper: (estimate.upper_mib - base).0,
            };
            let Some(sample) = ratio.sample(self.updates, run.signature.program) else { continue };
            for key in group_keys(estimate, run.place, user) {
                let place = self.groups.entry(key.clone()).or_default().add(sample);
                self.changed.extend(place.map(|n| (Table::Ratio, sample_key(&key, n))));
            }
        }
        self.bound_groups(user);
    }

    fn bound_groups(&mut self, user: u32) {
        while self.groups.len() > GROUPS {
            let all = || self.groups.iter().filter_map(|(key, g)| Some((owner(key)?.0, g.used(), key)));
            let Some(oldest) = oldest_of_most(all, user).cloned() else { return };
            let samples = self.groups.remove(&oldest).map_or(0, |group| group.len());
            self.changed.extend((0..samples).map(|n| (Table::Ratio, sample_key(&oldest, n))));
        }
    }

    /// Context at a place: learned or probed, else a front end's, else a guess.
    pub(crate) fn context_for(&self, place: &Place, user: u32, estimates: &[Estimate]) -> MiB {
        let told = || estimates.iter().find_map(|e| e.parts).map(|p| p.context_mib);
        self.context(place, user).or_else(told).unwrap_or(CONTEXT)
    }

    /// What runs of the same program say, if there were any that reached their peak.
    #[must_use]
    pub fn tell(&self, ask: &Ask<'_>, margins: &Margins) -> Option<Told> {
        let sim = sim_of(ask.estimates);
        self.programs.get(&ask.signature.program)?.tell(&self.wanted(ask, sim.as_ref()), margins)
    }

    /// What runs that were cut off say: it takes at least this much.
    #[must_use]
    pub fn at_least(&self, ask: &Ask<'_>) -> Option<MiB> {
        self.programs.get(&ask.signature.program)?.at_least(&self.wanted(ask, None), false).map(MiB)
    }

    /// The same of no other edition of script and configuration.
    #[must_use]
    pub fn own_at_least(&self, ask: &Ask<'_>) -> Option<MiB> {
        self.programs.get(&ask.signature.program)?.at_least(&self.wanted(ask, None), true).map(MiB)
    }

    /// With what runs of the very command there made their steps before they were ended for another cause, where none that
    /// was cut off had as much.
    #[must_use]
    pub fn settled(&self, ask: &Ask<'_>) -> Option<MiB> {
        self.programs.get(&ask.signature.program)?.settled(&self.wanted(ask, None)).map(MiB)
    }

    fn wanted<'a>(&self, ask: &Ask<'a>, sim: Option<&'a Sim>) -> Wanted<'a> {
        Wanted {
            content: ask.signature.content,
            unread: ask.signature.unread,
            batch: ask.signature.batch,
            place: ask.place,
            sim,
            context_mib: self.context_for(ask.place, ask.signature.user, ask.estimates).0,
        }
    }

    /// How far an estimate is off as a rule for this user's programs: the middle, and what its bound must be multiplied with,
    /// each from the narrowest group that has enough runs; and how many runs that were.
    #[must_use]
    pub fn correction(&self, estimate: &Estimate, place: &Place, user: u32, coverage: f64) -> Correction {
        let mut correction = Correction::default();
        for key in group_keys(estimate, place, user) {
            let Some(group) = self.groups.get(&key) else { continue };
            correction.middle = correction.middle.or_else(|| group.median());
            if correction.upper.is_none()
                && let Some(upper) = group.quantile(coverage)
            {
                correction.upper = Some((upper, group.len()));
            }
        }
        correction
    }
}

/// How far a front end is off.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Correction {
    /// Median of measured / expected.
    pub middle: Option<f64>,
    /// What its bound must be multiplied with to hold, and from how many runs.
    pub upper: Option<(f64, usize)>,
}

/// The best simulation among estimates: one that says what is context.
fn sim_of(estimates: &[Estimate]) -> Option<Sim> {
    let best = estimates.iter().filter(|e| e.parts.is_some()).min_by_key(|e| e.tier)?;
    let context = best.parts.map_or(MiB::ZERO, |p| p.context_mib);
    Some(Sim { source: best.source.clone(), net_mib: (best.use_mib - context).0 })
}

fn last_used(program: &Program) -> u64 {
    program.anchors.iter().map(|a| a.used).max().unwrap_or_default()
}

fn program_key(key: u64) -> String {
    format!("{key:016x}")
}

/// A word of a key: without what parts words, and not longer than sense.
fn part(word: &str) -> String {
    word.chars().filter(|c| !matches!(c, '|' | '#') && !c.is_control()).take(80).collect()
}

fn context_key(place: &Place) -> String {
    format!("{}|{}|{}", part(&place.gpu), part(&place.driver), part(&place.framework))
}

/// A key of what is one user's. No part of a key has a `#`.
fn owned(user: u32, key: &str) -> String {
    format!("{user}#{key}")
}

/// Whose it is, and the key without that. `None`: everybody's.
fn owner(key: &str) -> Option<(u32, &str)> {
    let (user, key) = key.split_once('#')?;
    Some((user.parse().ok()?, key))
}

/// What goes where all users together have too much, of (whose, when used last, which): the oldest of the user who has the
/// most, so that no user drives out what others have. Of users who have as many, `by`, for whom room is made.
pub fn oldest_of_most<U: Ord + Copy, T: Ord, K, I: Iterator<Item = (U, T, K)>>(
    all: impl Fn() -> I,
    by: U,
) -> Option<K> {
    let mut counts: BTreeMap<U, usize> = BTreeMap::new();
    all().for_each(|(user, ..)| *counts.entry(user).or_default() += 1);
    let (most, _) = counts.into_iter().max_by_key(|(user, count)| (*count, *user == by))?;
    all().filter(|(user, ..)| *user == most).min_by(|a, b| a.1.cmp(&b.1)).map(|(.., key)| key)
}

/// Key of a sample as it is stored. Three digits, so that rows sort by place.
fn sample_key(group: &str, place: usize) -> String {
    format!("{group}#{place:03}")
}

/// Key of a stored sample: its group and its place there.
fn sample_place(key: &str) -> Option<(&str, usize)> {
    let (group, place) = key.rsplit_once('#')?;
    Some((group, place.parse().ok()?))
}

/// Groups of a user that an estimate belongs to, narrow to wide.
fn group_keys(estimate: &Estimate, place: &Place, user: u32) -> [String; 3] {
    let (source, family) = (part(&estimate.source), part(&estimate.family));
    [
        format!("{source}|{family}|{}|{}", part(&place.gpu), part(&place.framework)),
        format!("{source}|{family}"),
        source,
    ]
    .map(|key| owned(user, &key))
}

#[cfg(test)]
mod tests;
