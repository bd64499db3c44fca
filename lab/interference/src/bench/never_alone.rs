//! Tasks that were never seen alone: what is assumed of them is learned from what the GPU did under several of them.
//!
//! A part of each file's sets is seen first, in random order; the same sets of the rest are scored whatever was seen.

use super::set::{Errors, Set, Together};
use super::stats::{Clustered, Dice};
use super::tests_new::of;
use super::{Data, Line, errors_lines, text};
use crate::kace::Error;
use carma_interference::assumed::{Part, SpeedRatio, refined, typical, weighed};
use carma_interference::group::Mode;
use carma_interference::measured::{Combination, Measured};
use carma_interference::online::SlowdownModel;
use carma_interference::profile::{Metrics, Profile};
use std::collections::BTreeMap;

const PART: &str = "never-alone";
/// Of our own H200. The first two chose the constants of the method; the others were scored when it was fixed.
const FILES: [&str; 4] = [
    "interference-h200.log.jsonl",
    "heavier-tasks-h200.log.jsonl",
    "new-tasks-h200.log.jsonl.gz",
    "later-tasks-h200.log.jsonl.gz",
];
/// Random orders of learning.
const ORDERS: u64 = 8;
/// Steps of learning in a company.
const ROUNDS: usize = 4;
/// Companies that are seen first.
const SEEN: [usize; 3] = [0, 20, 60];
/// Variance of the logarithm of a ratio of speeds, from counting: some tens of steps each.
const COUNTED: f64 = 0.001;
/// The share of its speed alone that `adaptive` keeps for each.
const FLOOR: f64 = 0.5;

pub(super) fn never_alone(data: &Data) -> Result<Vec<Line>, Error> {
    let mut lines = Vec::new();
    for file in FILES {
        let path = data.h200.join(file);
        let place = path.display().to_string();
        if !path.is_file() {
            lines.push(Line::new(PART, file, "-", "").note(format!("skipped: {place} is not there")));
            continue;
        }
        let measured = Measured::read(&text(&path)?).map_err(|e| Error::new(&place, e.to_string()))?;
        let name = file.split('.').next().unwrap_or(file);
        for sharing in [Mode::Mps, Mode::TimeSlice] {
            let set = of(&measured, sharing).0.checked(&place)?;
            lines.extend(score(&set, &activities(&measured, sharing), &format!("{name}, {sharing}")));
        }
    }
    Ok(lines)
}

/// What the GPU did under tasks together, by their names in order.
type Activities = BTreeMap<Vec<String>, Metrics>;

fn activities(measured: &Measured, sharing: Mode) -> Activities {
    let plain = |w: &&Combination| w.failed.is_none() && w.sharing == sharing && !w.is_split();
    let names = |w: &Combination| {
        let mut names = w.members.clone();
        names.sort_unstable();
        names
    };
    // Of several windows the first one.
    measured.combinations.iter().rev().filter(plain).map(|w| (names(w), w.activity)).collect()
}

/// The lines of one file and way of sharing.
fn score(set: &Set, activities: &Activities, label: &str) -> Vec<Line> {
    let model = SlowdownModel::shipped();
    let mut scores = SEEN.map(|_| Scores::default());
    let mut by_changes = SEEN.map(|_| Scores::default());
    let mut profiled = Scores::default();
    for seed in 0..ORDERS {
        let mut rows = set.rows.clone();
        Dice::new(seed).shuffle(&mut rows);
        let rest = rows.split_off(SEEN[SEEN.len() - 1].min(rows.len()));
        let known = Set { rows: rest, ..set.clone() };
        profiled.add(&known, set, &model);
        let unknown = |task: &Profile| Profile { name: task.name.clone(), ..typical() };
        let told = Set { tasks: set.tasks.iter().map(unknown).collect(), ..known };
        for (by_changes, scores) in [(false, &mut scores), (true, &mut by_changes)] {
            let (mut told, mut learned) = (told.clone(), 0);
            for (seen, scores) in SEEN.into_iter().zip(scores) {
                for at in learned..seen.min(rows.len()) {
                    learn(&mut told, &model, &rows[at], activities);
                    if let Some(before) = by_changes.then(|| nearest(&rows[..at], &rows[at])).flatten() {
                        learn_by_change(&mut told, &model, before, &rows[at]);
                    }
                }
                learned = seen;
                scores.add(&told, set, &model);
            }
        }
    }
    let seen = SEEN.iter().map(|seen| format!("{seen} companies seen"));
    let lines = seen.zip(&scores).flat_map(|(who, scores)| scores.lines(label, &who));
    let changes = SEEN.iter().map(|seen| format!("{seen} companies seen, and changes"));
    let changes = changes.zip(&by_changes).skip(1).flat_map(|(who, scores)| scores.lines(label, &who));
    lines.chain(changes).chain(profiled.lines(label, "profiles alone").into_iter().take(2)).collect()
}

/// Some looks at a company.
fn learn(told: &mut Set, model: &SlowdownModel, row: &Together, activities: &Activities) {
    let mut names: Vec<String> = row.tasks.iter().map(|task| told.tasks[*task].name.clone()).collect();
    names.sort_unstable();
    let Some(activity) = activities.get(&names) else { return };
    let assumed = vec![true; row.tasks.len()];
    for _ in 0..ROUNDS {
        let refined = refined(model, &told.group(row, &told.members(row)), &assumed, activity, &[]);
        for (task, metrics) in row.tasks.iter().zip(refined.unwrap_or_default()) {
            told.tasks[*task].metrics = metrics;
        }
    }
}

/// Tasks that one company has and another has not.
fn without<'a>(row: &'a Together, other: &'a Together) -> impl Iterator<Item = usize> + 'a {
    row.tasks.iter().copied().filter(|task| !other.tasks.contains(task))
}

/// Of the companies that were seen before, the one that became this one by the fewest tasks that came or left, one or two; some stay.
fn nearest<'a>(before: &'a [Together], row: &Together) -> Option<&'a Together> {
    let changes = |other: &Together| without(row, other).count() + without(other, row).count();
    let stays = |other: &Together| row.tasks.iter().any(|task| other.tasks.contains(task));
    let near = before.iter().filter(|other| (1..=2).contains(&changes(other)) && stays(other));
    near.min_by_key(|other| changes(other))
}

/// What one company became another by: what that cost or brought those that stayed.
fn learn_by_change(told: &mut Set, model: &SlowdownModel, before: &Together, after: &Together) {
    let ratio = |was: f64, is: f64| {
        (was > 0.0 && is > 0.0).then(|| SpeedRatio { ratio: is / was, variance: COUNTED })
    };
    let part = |(task, was): (&usize, &f64)| {
        let is = after.tasks.iter().zip(&after.progress).find(|(other, _)| *other == task);
        (*task, is.map_or(Part::Left, |(_, is)| Part::Stayed(ratio(*was, *is))))
    };
    let mut parts: Vec<(usize, Part)> = before.tasks.iter().zip(&before.progress).map(part).collect();
    parts.extend(without(after, before).map(|task| (task, Part::Came)));
    let all = Together { tasks: parts.iter().map(|(task, _)| *task).collect(), ..after.clone() };
    let parts: Vec<Part> = parts.into_iter().map(|(_, part)| part).collect();
    let meant = vec![true; parts.len()];
    let weighed = weighed(model, &told.group(&all, &told.members(&all)), &parts, &meant);
    for (task, metrics) in all.tasks.iter().zip(weighed.unwrap_or_default()) {
        told.tasks[*task].metrics = metrics;
    }
}

/// How far off what is said of the same sets is.
#[derive(Default)]
struct Scores {
    slowdown: Errors,
    /// 1 where a set is rightly said to keep the floor or not to, by number of members.
    floor: Clustered,
    /// Of SMACT alone, as shares, by task.
    smact: Clustered,
}

impl Scores {
    fn add(&mut self, told: &Set, truth: &Set, model: &SlowdownModel) {
        self.slowdown.extend(told.told(model));
        for row in &told.rows {
            let Some(forecast) = told.predict(model, row) else { continue };
            let said = forecast.tasks.iter().all(|task| task.progress.expected >= FLOOR);
            let was = row.progress.iter().all(|progress| *progress >= FLOOR);
            self.floor.add(&row.tasks.len().to_string(), f64::from(u8::from(said == was)));
        }
        for (told, task) in told.tasks.iter().zip(&truth.tasks) {
            let smact = |p: &Profile| p.metrics.smact_pct.map_or(f64::NAN, |s| s.mean / 100.0);
            self.smact.add(&task.name, (smact(told) - smact(task)).abs());
        }
    }

    fn lines(&self, label: &str, who: &str) -> [Line; 3] {
        let label = |what: &str| format!("{label}: {what}");
        let [slowdown, _] = errors_lines(PART, &label("slowdown"), who, &self.slowdown, ORDERS);
        [
            slowdown,
            Line::new(PART, label("floor judged rightly"), who, "%").of(&self.floor, ORDERS),
            Line::new(PART, label("SMACT alone, points off"), who, "points").of(&self.smact, ORDERS),
        ]
    }
}
