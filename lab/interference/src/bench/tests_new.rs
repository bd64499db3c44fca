//! Tasks that nothing was learned from and nothing was tuned on: bench/h200/NEW_TASKS_DATA.md says how they are scored,
//! bench/h200/LATER_TASKS_DATA.md which they are.

use super::baselines;
use super::measured::{Pick, measured, shown};
use super::set::{Errors, Set, Together};
use super::stats::{Clustered, Dice};
use super::tests_h200::{NO_CURVES, forget_curves, less_known};
use super::{Data, Line, MAPE, ORACLE, errors_lines, text};
use crate::kace::Error;
use carma_interference::group::{GpuType, Mode, Objective};
use carma_interference::measured::{Combination, Measured, Warm, median};
use carma_interference::online::SlowdownModel;
use carma_interference::predict::policy::Policy;
use carma_interference::profile::{Metrics, Profile, Rate, Stat};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const PART: &str = "new-tasks";
/// A second test set, measured when the sixteen tasks of the first had been looked at.
const FILE: &str = "later-tasks-h200.log.jsonl.gz";
/// The first one, which is learned from since.
const FIRST: &str = "new-tasks-h200.log.jsonl.gz";
/// Requests a second that servers are sent.
const OFFERED: [(&str, f64); 3] =
    [("whisper_serve", 124.0), ("distilbert_serve", 398.0), ("resnet34_serve", 299.2)];
/// Random orders of learning.
const ORDERS: u64 = 8;

/// Pairs of its tasks of which one has fewer threads.
const LIMITED: &str = "limited-later-h200.log.jsonl.gz";

/// The scores, by way of sharing, and with fewer threads.
pub(super) fn new_tasks(data: &Data) -> Result<Vec<Line>, Error> {
    let path = data.h200.join(FILE);
    if !path.is_file() {
        return Ok(vec![
            Line::new(PART, "all", "-", "").note(format!("skipped: {} is not there", path.display())),
        ]);
    }
    let mut lines = Vec::new();
    for (sharing, set, stalled) in by_sharing(&path)? {
        lines.extend(score(&set, sharing, stalled));
    }
    let path = data.h200.join(LIMITED);
    if path.is_file() {
        lines.extend(with_fewer_threads(&path)?);
    }
    Ok(lines)
}

/// What comes with carma has learned from none of these tasks.
fn with_fewer_threads(path: &Path) -> Result<Vec<Line>, Error> {
    let mut set = measured(path)?.only(Mode::Mps, true);
    let test = format!("one of two with fewer threads, {} pairs", set.rows.len());
    let (shipped, nothing) = (SlowdownModel::shipped(), SlowdownModel::new());
    let lines = |who, set: &Set, model| errors_lines(PART, &test, who, &set.told(model), 1);
    let mut all = lines("ours, told what they cost each alone", &set, &shipped).to_vec();
    forget_curves(&mut set);
    all.extend(lines(NO_CURVES, &set, &shipped));
    all.extend(lines("ours, nothing learned", &set, &nothing));
    set.rows.iter_mut().for_each(|row| row.threads.clear());
    all.extend(lines("as if all had all threads", &set, &shipped));
    Ok(all)
}

/// The sets of the first test set, those of each way of sharing; none where they are not.
pub(super) fn first(data: &Data) -> Result<Vec<Set>, Error> {
    let path = data.h200.join(FIRST);
    if !path.is_file() {
        return Ok(Vec::new());
    }
    Ok(by_sharing(&path)?.into_iter().map(|(_, set, _)| set).collect())
}

/// A log's sets under each way of sharing, and how many windows were left out.
fn by_sharing(path: &Path) -> Result<Vec<(Mode, Set, usize)>, Error> {
    let place = path.display().to_string();
    let measured = Measured::read(&text(path)?).map_err(|e| Error::new(&place, e.to_string()))?;
    let one = |sharing| {
        let (set, stalled) = of(&measured, sharing);
        Ok((sharing, set.checked(&place)?, stalled))
    };
    [Mode::Mps, Mode::TimeSlice].into_iter().map(one).collect()
}

/// The sets under one way of sharing, and how many windows were left out since a task made no step in them.
pub(super) fn of(measured: &Measured, sharing: Mode) -> (Set, usize) {
    let warm = Warm::of(&measured.combinations);
    let sound = |w: &&Combination| {
        w.failed.is_none() && w.sharing == sharing && w.rates.len() == w.k() && !w.is_split()
    };
    let windows: Vec<&Combination> = measured.combinations.iter().filter(sound).collect();
    let alone = |task: &str| {
        let task = task.to_owned();
        windows.iter().filter(move |w| w.k() == 1 && w.members[0] == task)
    };
    let solo = |task: &str, session: u32| {
        let offered = OFFERED.iter().find(|(name, _)| *name == task).map(|(_, rate)| *rate);
        offered.or_else(|| median(alone(task).filter(|w| w.session == session).map(|w| w.rates[0]).collect()))
    };
    let mean = |values: Vec<f64>| carma_stats::mean(values);
    let profile = |name: &String| {
        let of = |pick: Pick<'_>| {
            mean(alone(name).filter_map(|w| pick(&w.activity)).map(|s| s.mean).collect()).map(Stat::of)
        };
        let memory =
            alone(name).filter_map(|w| w.memory_mib.first().copied().flatten()).map(|mib| mib as f64);
        let file = measured.profiles.task(name).cloned().unwrap_or_default();
        Profile {
            name: name.clone(),
            rate: file.rate.and_then(|rate| {
                Some(Rate { per_s: mean(alone(name).map(|w| w.rates[0]).collect())?, ..rate })
            }),
            metrics: Metrics {
                power_w: of(&|m| m.power_w),
                memory_mib: mean(memory.collect()).map(Stat::of),
                ..shown(&of, Metrics::default())
            },
            ..Profile::default()
        }
    };
    let names: Vec<String> = measured.tasks.iter().map(|task| task.name.clone()).collect();
    let tasks = names.iter().map(profile).collect();
    let families = measured.tasks.iter().map(|task| task.family().to_owned()).collect();
    let mut sets: BTreeMap<Vec<usize>, Vec<(u32, Vec<f64>)>> = BTreeMap::new();
    let mut stalled = 0;
    for window in windows.iter().filter(|w| w.k() > 1 && warm.all(w)) {
        let at = |member: &String| names.iter().position(|name| name == member);
        let of = |(member, rate): (&String, &f64)| Some((at(member)?, rate / solo(member, window.session)?));
        let Some(mut members) = window.members.iter().zip(&window.rates).map(of).collect::<Option<Vec<_>>>()
        else {
            continue;
        };
        members.sort_by_key(|(task, _)| *task);
        if members.iter().any(|(_, progress)| *progress <= 0.0) {
            stalled += 1;
            continue;
        }
        let (tasks, progress) = members.into_iter().unzip();
        let of: &mut Vec<(u32, Vec<f64>)> = sets.entry(tasks).or_default();
        of.push((window.session, progress));
    }
    let rows = |session: Option<u32>| -> Vec<Together> {
        let of = |(tasks, all): (&Vec<usize>, &Vec<(u32, Vec<f64>)>)| {
            let here: Vec<&Vec<f64>> =
                all.iter().filter(|(of, _)| session.is_none_or(|s| s == *of)).map(|(_, p)| p).collect();
            let progress: Option<Vec<f64>> =
                (0..tasks.len()).map(|i| carma_stats::mean(here.iter().map(|p| p[i]))).collect();
            Some(Together { tasks: tasks.clone(), sharing, threads: Vec::new(), progress: progress? })
        };
        sets.iter().filter_map(of).collect()
    };
    let sessions: BTreeSet<u32> = sets.values().flatten().map(|(session, _)| *session).collect();
    let sessions = sessions.into_iter().map(|session| rows(Some(session))).collect();
    let gpu = GpuType::named(&measured.machine.gpu);
    (Set { gpu, tasks, families, rows: rows(None), sessions }, stalled)
}

fn with(set: &Set, k: impl Fn(usize) -> bool) -> Set {
    let of = |rows: &Vec<Together>| rows.iter().filter(|row| k(row.tasks.len())).cloned().collect::<Vec<_>>();
    Set { rows: of(&set.rows), sessions: set.sessions.iter().map(of).collect(), ..set.clone() }
}

/// progress = min(1, .9 / sum of SMACT).
fn by_smact(set: &Set, row: &Together) -> f64 {
    let smact = |t: &usize| set.tasks[*t].metrics.smact_pct.map_or(1.0, |s| s.mean / 100.0);
    (0.9 / row.tasks.iter().map(smact).sum::<f64>()).min(1.0)
}

fn smact_errors(set: &Set) -> Clustered {
    let mut errors = Clustered::default();
    for row in &set.rows {
        let said = by_smact(set, row);
        for (task, measured) in row.tasks.iter().zip(&row.progress) {
            errors.add(&set.tasks[*task].name, (said / measured - 1.0).abs());
        }
    }
    errors
}

/// Learns from so many random sets, predicts the others.
fn after(set: &Set, shipped: &SlowdownModel, observations: usize) -> Errors {
    let mut errors = Errors::default();
    for seed in 0..ORDERS {
        let mut rows: Vec<&Together> = set.rows.iter().collect();
        Dice::new(seed).shuffle(&mut rows);
        let (first, rest) = rows.split_at(observations.min(rows.len()));
        let mut model = shipped.clone();
        first.iter().for_each(|row| set.observe(&mut model, row));
        let rest = Set { rows: rest.iter().copied().cloned().collect(), ..set.clone() };
        errors.extend(rest.told(&model));
    }
    errors
}

fn score(set: &Set, sharing: Mode, stalled: usize) -> Vec<Line> {
    let (shipped, nothing) = (SlowdownModel::shipped(), SlowdownModel::new());
    let mut lines = Vec::new();
    type Size = (&'static str, fn(usize) -> bool, [f64; 2]);
    let sizes: [Size; 5] = [
        ("k=2", |k| k == 2, [10.0, 10.0]),
        ("k=3", |k| k == 3, [0.0, 0.0]),
        ("k=4", |k| k == 4, [0.0, 0.0]),
        ("k<=4", |k| k <= 4, [12.0, 10.0]),
        ("k=6-8", |k| k > 4, [18.0, 0.0]),
    ];
    for (name, size, most) in sizes {
        let part = with(set, size);
        let label = format!("{sharing}, {name}, {} sets: slowdown, all tasks new", part.rows.len());
        let [error, covered] = errors_lines(PART, &label, "ours, as shipped", &part.told(&shipped), 1);
        let most = most[usize::from(sharing == Mode::TimeSlice)];
        lines.push(if most > 0.0 { error.at_most(most) } else { error });
        lines.push(covered.within(88.0, 92.0));
        lines.push(
            Line::new(PART, &label, "ours, before anything was learned", MAPE)
                .of(&part.told(&nothing).error, 1),
        );
        lines.push(Line::new(PART, &label, "min(1, .9 / sum of SMACT)", MAPE).of(&smact_errors(&part), 1));
        lines.push(Line::new(PART, &label, "share law", MAPE).of(&baselines::share_errors(&part), 1));
        if let Some((errors, _)) = part.measured_again() {
            let who = "the same sets in another session";
            lines.push(Line::new(PART, &label, who, MAPE).of(&errors, 1).note("the noise of one session"));
        }
    }
    if let Some(line) = lines.first_mut() {
        line.note = format!("{stalled} windows in which a task made no step are left out");
    }
    for (observations, most) in [(10, 8.0), (40, 5.0)] {
        let label = format!("{sharing}, all sets: slowdown, after {observations} observations");
        let [error, covered] =
            errors_lines(PART, &label, "ours", &after(set, &shipped, observations), ORDERS);
        lines.extend([error.at_most(most), covered]);
    }
    for (who, tasks) in less_known(set) {
        let known = Set { tasks, ..set.clone() };
        for (name, size, most) in
            sizes.into_iter().filter(|(name, ..)| matches!(*name, "k=2" | "k<=4" | "k=6-8"))
        {
            let part = with(&known, size);
            let label = format!("{sharing}, {name}, {} sets: slowdown, all tasks new", part.rows.len());
            let [error, covered] = errors_lines(PART, &label, who, &part.told(&shipped), 1);
            let judged = most[0] > 0.0 && who.contains("nvidia-smi") && name == "k<=4";
            lines.extend([if judged { error.at_most(18.0) } else { error }, covered]);
        }
    }
    for (name, size, least) in [
        ("k=2", (|k| k == 2) as fn(usize) -> bool, 98.5),
        ("k=3-4", |k| k == 3 || k == 4, 99.5),
        ("k=6-8", |k| k > 4, 0.0),
    ] {
        let part = with(set, size);
        let label = format!("{sharing}, {name}: choice by sum of progress, all tasks new");
        let by = |model: &SlowdownModel, row: &Together| {
            part.predict(model, row).map_or(f64::NEG_INFINITY, |f| f.value(Objective::WeightedSpeedup))
        };
        let line =
            Line::new(PART, &label, "ours, as shipped", ORACLE).of(&part.choose(|row| by(&shipped, row)), 1);
        lines.push(if least > 0.0 { line.at_least(least) } else { line });
        let mut up_to_1 = Clustered::default();
        up_to_1.extend(part.choices(&shipped, |_| true, Together::sum_up_to_1, by));
        lines.push(Line::new(PART, &label, "ours, progress counted up to 1", ORACLE).of(&up_to_1, 1));
        type Score<'a> = &'a dyn Fn(&Together) -> f64;
        let others: [(&str, Score<'_>); 5] = [
            ("ours, before anything was learned", &|row| by(&nothing, row)),
            ("min(1, .9 / sum of SMACT)", &|row| by_smact(&part, row) * row.tasks.len() as f64),
            ("share law", &|row| baselines::fixed(&Policy::Share, &part, row)),
            ("Lucid's score", &|row| baselines::lucid(&part, row)),
            ("random", &|_| 0.0),
        ];
        for (who, score) in others {
            lines.push(Line::new(PART, &label, who, ORACLE).of(&part.choose(score), 1));
        }
        if let Some((_, chosen)) = part.measured_again() {
            let who = "the same sets in another session";
            lines.push(Line::new(PART, &label, who, ORACLE).of(&chosen, 1).note("in single sessions"));
        }
    }
    lines
}
