//! Tasks that were never seen alone: what is assumed of them is learned from what the GPU did under several of them.

use super::set::{Errors, Set, Together};
use super::stats::{Clustered, Dice};
use super::tests_new::of;
use super::{Data, Line, errors_lines};
use crate::kace::Error;
use carma_interference::assumed::{refined, typical};
use carma_interference::group::{Group, Member, Mode};
use carma_interference::measured::{Combination, Measured};
use carma_interference::online::SlowdownModel;
use carma_interference::profile::Profile;

const PART: &str = "never-alone";
/// What the method was chosen by, and what it was scored on once it was fixed.
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
const SEEN: [usize; 4] = [0, 5, 20, 60];
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
        let measured =
            Measured::read(&crate::own::text(&path)?).map_err(|e| Error::new(&place, e.to_string()))?;
        for sharing in [Mode::Mps, Mode::TimeSlice] {
            let (set, _) = of(&measured, sharing);
            lines.extend(score(&set.checked(&place)?, &measured, sharing, file));
        }
    }
    Ok(lines)
}

fn score(set: &Set, measured: &Measured, sharing: Mode, file: &str) -> Vec<Line> {
    let model = SlowdownModel::shipped();
    let label = |what: &str| format!("{file}, {sharing}: {what}");
    let mut lines = Vec::new();
    for seen in SEEN {
        let (mut errors, mut judged, mut off) = (Errors::default(), Judged::default(), Clustered::default());
        for seed in 0..ORDERS {
            let mut rows: Vec<_> = set.rows.clone();
            Dice::new(seed).shuffle(&mut rows);
            let (first, rest) = rows.split_at(seen.min(rows.len()));
            let mut told = Set { tasks: vec![typical(); set.tasks.len()], ..set.clone() };
            for (profile, task) in told.tasks.iter_mut().zip(&set.tasks) {
                profile.name.clone_from(&task.name);
            }
            for row in first {
                let named: Vec<&str> = row.tasks.iter().map(|task| set.tasks[*task].name.as_str()).collect();
                let Some(window) = measured.combinations.iter().find(|w| is(w, &named, sharing)) else { continue };
                for _ in 0..ROUNDS {
                    learn(&mut told, &model, row.tasks.as_slice(), sharing, window);
                }
            }
            for (guess, task) in told.tasks.iter().zip(&set.tasks) {
                let smact = |p: &Profile| p.metrics.smact_pct.map_or(0.0, |s| s.mean / 100.0);
                off.add(&task.name, (smact(guess) - smact(task)).abs());
            }
            judged.add(&told, &model, rest);
            told.rows = rest.to_vec();
            errors.extend(told.told(&model));
        }
        let who = format!("{seen} companies seen");
        lines.extend(errors_lines(PART, &label("slowdown"), &who, &errors, ORDERS).into_iter().take(1));
        lines.extend(judged.lines(&label, &who, ORDERS));
        lines.push(Line::new(PART, label("SMACT alone, points off"), &who, "points").of(&off, ORDERS));
    }
    let mut judged = Judged::default();
    judged.add(set, &model, &set.rows);
    let told = errors_lines(PART, &label("slowdown"), "profiles alone", &set.told(&model), 1);
    lines.extend(told.into_iter().take(1));
    lines.extend(judged.lines(&label, "profiles alone", 1));
    lines
}

fn is(window: &Combination, named: &[&str], sharing: Mode) -> bool {
    let mut members: Vec<&str> = window.members.iter().map(String::as_str).collect();
    let mut named = named.to_vec();
    members.sort_unstable();
    named.sort_unstable();
    window.failed.is_none() && window.sharing == sharing && !window.is_split() && members == named
}

/// One look at a company.
fn learn(told: &mut Set, model: &SlowdownModel, tasks: &[usize], sharing: Mode, window: &Combination) {
    let profiles: Vec<Profile> = tasks.iter().map(|task| told.tasks[*task].clone()).collect();
    let members: Vec<Member<'_>> = profiles.iter().map(Member::of).collect();
    let group = Group { gpu: &told.gpu, sharing, members: &members };
    let assumed = vec![true; tasks.len()];
    let Some(metrics) = refined(model, &group, &assumed, &window.activity) else { return };
    for (task, metrics) in tasks.iter().zip(metrics) {
        told.tasks[*task].metrics = metrics;
    }
}

/// Sets that keep the floor, as predicted and as measured, by number of members.
#[derive(Default)]
struct Judged {
    /// 1 where both say the same.
    rightly: Clustered,
    /// Of those that are predicted to keep it: 1 where they do.
    kept: Clustered,
    /// Of those that keep it: 1 where that is predicted.
    found: Clustered,
}

impl Judged {
    fn add(&mut self, set: &Set, model: &SlowdownModel, rows: &[Together]) {
        for row in rows {
            let Some(forecast) = set.predict(model, row) else { continue };
            let said = forecast.tasks.iter().all(|task| task.progress.expected >= FLOOR);
            let was = row.progress.iter().all(|progress| *progress >= FLOOR);
            let of = row.tasks.len().to_string();
            let number = |is: bool| f64::from(u8::from(is));
            self.rightly.add(&of, number(said == was));
            if said {
                self.kept.add(&of, number(was));
            }
            if was {
                self.found.add(&of, number(said));
            }
        }
    }

    fn lines(&self, label: &dyn Fn(&str) -> String, who: &str, repeats: u64) -> [Line; 3] {
        let line = |what: &str, values| Line::new(PART, label(what), who, "%").of(values, repeats);
        [
            line("floor judged rightly", &self.rightly),
            line("let in, and keep it", &self.kept),
            line("keep it, and let in", &self.found),
        ]
    }
}
