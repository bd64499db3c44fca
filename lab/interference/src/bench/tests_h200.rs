//! Our own measurements on an H200.

use super::baselines;
use super::measured::{files, measured, older};
use super::set::{PARTS, Set, Together, teach};
use super::stats::Dice;
use super::{Data, Line, MAPE, ORACLE, errors_lines, tests_new};
use crate::kace::Error;
use carma_interference::group::{Mode, Objective};
use carma_interference::kace::features::Target;
use carma_interference::online::SlowdownModel;
use carma_interference::predict::policy::Policy;
use carma_interference::profile::{Metrics, Profile};
use carma_nn::parallel;
use std::collections::BTreeSet;

const PART: &str = "h200";
const REPEATS: u64 = 8;
/// Pairs of which one has fewer threads.
const LIMITED: &str = "limited-h200.log.jsonl.gz";

pub(super) fn h200(data: &Data) -> Result<Vec<Line>, Error> {
    let mut lines = Vec::new();
    let sets = sets(data)?;
    if sets.is_empty() {
        let why = format!("skipped: no collocation-*.json in {}", data.h200.display());
        lines.push(Line::new(PART, "eight tasks", "-", "").note(why));
    }
    if files(&data.h200, "interference").is_empty() {
        let why = format!(
            "skipped: no interference*.json in {}; `carma bench interference` writes it",
            data.h200.display()
        );
        lines.push(Line::new(PART, "measured by carma bench interference", "-", "").note(why));
    }
    for (at, (name, set)) in sets.iter().enumerate() {
        lines.extend(of_set(name, set, data.threads));
        let mut others = sets.clone();
        others.remove(at);
        if !others.is_empty() {
            lines.extend(out_of_the_box(name, set, &mut others, data.threads));
        }
    }
    Ok(lines)
}

/// All of our own records, each with its name.
fn sets(data: &Data) -> Result<Vec<(String, Set)>, Error> {
    let mut both = files(&data.h200, "collocation-time-slice");
    both.extend(files(&data.h200, "collocation-mps"));
    let mut sets = Vec::new();
    if !both.is_empty() {
        sets.push(("eight tasks".to_owned(), older(&both)?));
    }
    let logs = files(&data.h200, "interference").into_iter().chain(files(&data.h200, "heavier-tasks"));
    for path in logs {
        let name = path.file_stem().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        sets.push((name, measured(&path)?));
    }
    let limited = data.h200.join(LIMITED);
    if limited.is_file() {
        sets.push(("limited-h200.log".to_owned(), measured(&limited)?));
    }
    for set in tests_new::first(data)? {
        sets.push(("sixteen tasks".to_owned(), set));
    }
    Ok(sets)
}

/// A model that has learned from all of our own records and keeps what holds for every task of the GPU type: what comes
/// with carma.
///
/// # Errors
/// A record cannot be read, or there is none.
pub(super) fn learn(data: &Data) -> Result<SlowdownModel, Error> {
    let mut sets = sets(data)?;
    if sets.is_empty() {
        return Err(Error::new(
            data.h200.display().to_string(),
            "no collocation-*.json and no interference*.json",
        ));
    }
    Ok(taught_by(&mut sets, data.threads))
}

/// What every task has in common, learned from all rows of these sets under MPS; how far off it is about new tasks is known from
/// leaving out each fifth of the families. Under time-slicing constants learned so are no better than the prior's on any of our
/// records when it is left out, so that only bounds are learned there.
fn taught_by(sets: &mut [(String, Set)], threads: usize) -> SlowdownModel {
    let mut families = BTreeSet::new();
    for (name, set) in sets.iter_mut() {
        // Tasks of the same name in two sets are two tasks: another batch, another machine.
        for task in &mut set.tasks {
            task.class = Some(format!("{name}/{}", task.class()));
        }
        forget_curves(set);
        families.extend(set.families.iter().cloned());
    }
    // What nvidia-smi alone says of them is learned from apart.
    let poorer = sets.iter().flat_map(|(_, set)| {
        let less = less_known(set).into_iter().filter(|(who, _)| who.contains("nvidia-smi"));
        less.map(|(_, tasks)| Set { tasks, ..set.clone() })
    });
    let sets: Vec<Set> = sets.iter().map(|(_, set)| set.clone()).chain(poorer).collect();
    let taught = |left_out: &[&str]| {
        let rows = sets.iter().flat_map(|set| set.without(left_out).into_iter().map(move |row| (set, row)));
        let mut model = SlowdownModel::new();
        teach(&mut model, &rows.filter(|(_, row)| row.sharing == Mode::Mps).collect::<Vec<_>>());
        model
    };
    let parts: Vec<Vec<&str>> = (0..PARTS)
        .map(|part| families.iter().map(String::as_str).skip(part).step_by(PARTS).collect())
        .collect();
    let less = parallel(&parts, threads, |part| taught(part));
    let mut model = taught(&[]);
    // Pairs with fewer threads have bounds of their own: what is measured of them leaves the order of the others as it was.
    let (others, limited): (Vec<&Set>, Vec<&Set>) =
        sets.iter().partition(|set| set.rows.iter().any(|row| row.threads.is_empty()));
    for sets in [others, limited] {
        // In random order, since the last ones count.
        let mut rows: Vec<(&Set, &Together)> =
            sets.into_iter().flat_map(|set| set.rows.iter().map(move |row| (set, row))).collect();
        Dice::new(1).shuffle(&mut rows);
        for (set, row) in rows {
            for (part, less) in parts.iter().zip(&less) {
                set.calibrate(&mut model, less, row, part);
            }
        }
    }
    model.forget_all_classes();
    model
}

/// What a user has who measured nothing: the predictor as it comes with carma, here learned from the other records, on
/// tasks that it never met.
fn out_of_the_box(name: &str, set: &Set, others: &mut [(String, Set)], threads: usize) -> Vec<Line> {
    let model = taught_by(others, threads);
    let mut lines = Vec::new();
    for sharing in [Mode::TimeSlice, Mode::Mps] {
        let plain = set.only(sharing, false);
        if plain.rows.len() <= 3 {
            continue;
        }
        let label = format!("{name}, {sharing}, {} sets", plain.rows.len());
        let who = "ours, learned from the other tasks";
        let test = format!("{label}: slowdown, all of its tasks new");
        lines.extend(errors_lines(PART, &test, who, &plain.told(&model), 1));
        let sum = |row: &Together| {
            plain.predict(&model, row).map_or(f64::NEG_INFINITY, |f| f.value(Objective::WeightedSpeedup))
        };
        let test = format!("{label}: choice by sum of progress, all of its tasks new");
        lines.push(Line::new(PART, test, who, ORACLE).of(&plain.choose(sum), 1));
        for (who, tasks) in less_known(&plain) {
            let test = format!("{label}: slowdown, all of its tasks new");
            let known = Set { tasks, ..plain.clone() };
            lines.extend(errors_lines(PART, &test, who, &known.told(&model), 1));
        }
    }
    lines
}

fn of_set(name: &str, set: &Set, threads: usize) -> Vec<Line> {
    let mut lines = Vec::new();
    for sharing in [Mode::TimeSlice, Mode::Mps] {
        let plain = set.only(sharing, false);
        if plain.rows.len() > 3 {
            let label = format!("{name}, {sharing}, {} sets", plain.rows.len());
            lines.extend(one(&label, &plain, threads));
        }
        let split = set.only(sharing, true);
        if split.rows.len() > 3 {
            let label = format!("{name}, thread limits, {} sets", split.rows.len());
            lines.push(
                Line::new(PART, format!("{label}: nothing learned"), "ours", MAPE)
                    .of(&split.prior().error, 1),
            );
            let cold = split.cold(&split.folds(threads));
            lines.extend(errors_lines(PART, &format!("{label}: family held out"), "ours", &cold, 1));
            let mut uncurved = split.clone();
            forget_curves(&mut uncurved);
            let cold = uncurved.cold(&uncurved.folds(threads));
            let test = format!("{label}: family held out");
            lines.extend(errors_lines(PART, &test, NO_CURVES, &cold, 1));
        }
    }
    lines
}

/// As the daemon knows tasks: what they do alone with fewer threads is not measured.
pub(super) const NO_CURVES: &str = "ours, not told what fewer threads cost each alone";

/// See [`NO_CURVES`].
pub(super) fn forget_curves(set: &mut Set) {
    set.tasks.iter_mut().for_each(|task| task.rate_by_threads_pct.clear());
}

/// The tasks of a set with less known of each, where there is such: what is known, and the profiles.
pub(super) fn less_known(set: &Set) -> Vec<(&'static str, Vec<Profile>)> {
    type Keep = fn(&Metrics) -> Metrics;
    let kept: [(&str, Keep); 2] = [
        ("ours, SM and DRAM activity alone", |m| Metrics {
            smact_pct: m.smact_pct,
            drama_pct: m.drama_pct,
            ..Metrics::default()
        }),
        ("ours, nvidia-smi alone", |m| Metrics {
            gpu_util_pct: m.gpu_util_pct,
            mem_util_pct: m.mem_util_pct,
            power_w: m.power_w,
            memory_mib: m.memory_mib,
            ..Metrics::default()
        }),
    ];
    let of = |(who, keep): (&'static str, Keep)| {
        let tasks: Vec<Profile> =
            set.tasks.iter().map(|t| Profile { metrics: keep(&t.metrics), ..t.clone() }).collect();
        let none = tasks.iter().all(|t| t.metrics.smact_pct.is_none() && t.metrics.gpu_util_pct.is_none());
        (!none).then_some((who, tasks))
    };
    kept.into_iter().filter_map(of).collect()
}

/// What it costs to know less of each task alone.
fn cost_of_less(label: &str, set: &Set, threads: usize) -> Vec<Line> {
    let mut lines = Vec::new();
    for (who, tasks) in less_known(set) {
        let known = Set { tasks, ..set.clone() };
        let test = format!("{label}: slowdown, family held out");
        let folds = known.folds(threads);
        lines.extend(errors_lines(PART, &test, who, &known.cold(&folds), 1));
        let sum = |model: &SlowdownModel, row: &Together| {
            known.predict(model, row).map_or(f64::NEG_INFINITY, |f| f.value(Objective::WeightedSpeedup))
        };
        let chosen = known.select(&folds, Together::sum, sum);
        let test = format!("{label}: choice by sum of progress, target's family held out");
        lines.push(Line::new(PART, test, who, ORACLE).of(&chosen, 1));
    }
    lines
}

fn one(label: &str, set: &Set, threads: usize) -> Vec<Line> {
    let mut lines = Vec::new();
    let test = format!("{label}: slowdown, family held out");
    let folds = set.folds(threads);
    lines.extend(errors_lines(PART, &test, "ours", &set.cold(&folds), 1));
    lines.push(Line::new(PART, &test, "mean of the others", MAPE).of(&baselines::constant_errors(set), 1));
    let test = format!("{label}: slowdown, nothing learned");
    lines.push(Line::new(PART, &test, "ours", MAPE).of(&set.prior().error, 1));
    lines.push(Line::new(PART, &test, "share law", MAPE).of(&baselines::share_errors(set), 1));
    let test = format!("{label}: slowdown, after 40 observations");
    let [error, covered] = errors_lines(PART, &test, "ours", &set.online(40, REPEATS), REPEATS);
    lines.extend([error.at_most(15.0), covered]);
    let test = format!("{label}: choice by sum of progress, target's family held out");
    let sum = |model: &SlowdownModel, row: &Together| {
        set.predict(model, row).map_or(f64::NEG_INFINITY, |f| f.value(Objective::WeightedSpeedup))
    };
    let ours = set.select(&folds, Together::sum, sum);
    lines.push(Line::new(PART, &test, "ours", ORACLE).of(&ours, 1).at_least(98.0));
    let ours = set.select(&folds, Together::sum_up_to_1, sum);
    lines.push(
        Line::new(PART, &test, "ours, progress counted up to 1", ORACLE)
            .of(&ours, 1)
            .note("no task is faster beside others than alone: more is noise"),
    );
    if let Some((errors, chosen)) = set.measured_again() {
        let again = format!("{label}: slowdown in single sessions");
        let who = "the same windows in another session";
        lines.push(Line::new(PART, again, who, MAPE).of(&errors, 1));
        let again = format!("{label}: choice by sum of progress in single sessions");
        lines.push(
            Line::new(PART, &again, who, ORACLE)
                .of(&chosen, 1)
                .note("what having measured is worth next time"),
        );
        let ours = set.select_in_sessions(&folds, sum);
        lines.push(Line::new(PART, &again, "ours, target's family held out", ORACLE).of(&ours, 1));
    }
    lines.extend(cost_of_less(label, set, threads));
    let nothing = SlowdownModel::new();
    type Score<'a> = &'a dyn Fn(&Together) -> f64;
    let fixed: [(&str, Score<'_>); 6] = [
        ("ours, nothing learned", &|r| sum(&nothing, r)),
        ("share law", &|r| baselines::fixed(&Policy::Share, set, r)),
        ("CARMA's 80 % SMACT cap", &|r| baselines::cap80(set, r)),
        ("Lucid's score", &|r| baselines::lucid(set, r)),
        ("least memory", &|r| baselines::fixed(&Policy::Memcap, set, r)),
        ("random", &|_| 0.0),
    ];
    for (who, score) in fixed {
        lines.push(Line::new(PART, &test, who, ORACLE).of(&set.choose(score), 1));
    }
    for (who, target) in [
        ("KACE, nvidia-smi, as published", Target::SumThroughput),
        ("KACE, nvidia-smi, sum of progress", Target::SumProgress),
    ] {
        let line = Line::new(PART, &test, who, ORACLE);
        lines.push(match baselines::kace_select(set, target, threads) {
            Some(chosen) => line.of(&chosen, 1),
            None => line.note("skipped: a profile lacks a rate, utilisation or memory"),
        });
    }
    lines
}
