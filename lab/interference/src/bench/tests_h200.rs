//! Our own measurements on an H200.

use super::baselines;
use super::measured::{files, measured, older};
use super::set::{Set, Together};
use super::stats::Dice;
use super::{Data, Line, MAPE, ORACLE, errors_lines};
use crate::kace::Error;
use carma_interference::group::{Mode, Objective};
use carma_interference::kace::features::Target;
use carma_interference::online::SlowdownModel;
use carma_interference::predict::policy::Policy;
use carma_interference::profile::{Metrics, Profile};

const PART: &str = "h200";
const ORDERS: u64 = 5;
const REPEATS: u64 = 8;

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
            lines.extend(out_of_the_box(name, set, &mut others));
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
    for path in files(&data.h200, "interference") {
        let name = path.file_stem().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        sets.push((name, measured(&path)?));
    }
    Ok(sets)
}

/// A model that has learned from all of our own records, in a random order, and keeps what holds for every task
/// of the GPU type: what comes with carma.
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
    Ok(taught_by(&mut sets))
}

/// What every task has in common, learned from all rows of these sets in a random order.
fn taught_by(sets: &mut [(String, Set)]) -> SlowdownModel {
    let mut order = Vec::new();
    for (at, (name, set)) in sets.iter_mut().enumerate() {
        // Tasks of the same name in two sets are two tasks.
        for task in &mut set.tasks {
            task.class = Some(format!("{name}/{}", task.class()));
        }
        order.extend((0..set.rows.len()).map(|row| (at, row)));
    }
    Dice::new(1).shuffle(&mut order);
    let mut model = SlowdownModel::new();
    for (at, row) in order {
        let set = &sets[at].1;
        set.observe(&mut model, &set.rows[row]);
    }
    model.forget_all_classes();
    model
}

/// What a user has who measured nothing: the predictor as it comes with carma, here learned from the other records, on
/// tasks that it never met.
fn out_of_the_box(name: &str, set: &Set, others: &mut [(String, Set)]) -> Vec<Line> {
    let model = taught_by(others);
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
            let cold = split.cold(ORDERS);
            lines.extend(errors_lines(PART, &format!("{label}: family held out"), "ours", &cold, ORDERS));
        }
    }
    lines
}

/// What it costs to know less of each task alone.
fn less_known(label: &str, set: &Set, threads: usize) -> Vec<Line> {
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
    let mut lines = Vec::new();
    for (who, keep) in kept {
        let tasks = set.tasks.iter().map(|t| Profile { metrics: keep(&t.metrics), ..t.clone() }).collect();
        let known = Set { tasks, ..set.clone() };
        if known.tasks.iter().all(|t| t.metrics.smact_pct.is_none() && t.metrics.gpu_util_pct.is_none()) {
            continue;
        }
        let test = format!("{label}: slowdown, family held out");
        lines.extend(errors_lines(PART, &test, who, &known.cold(ORDERS), ORDERS));
        let sum = |model: &SlowdownModel, row: &Together| {
            known.predict(model, row).map_or(f64::NEG_INFINITY, |f| f.value(Objective::WeightedSpeedup))
        };
        let chosen = known.select(ORDERS, threads, Together::sum, sum);
        let test = format!("{label}: choice by sum of progress, target's family held out");
        lines.push(Line::new(PART, test, who, ORACLE).of(&chosen, ORDERS));
    }
    lines
}

fn one(label: &str, set: &Set, threads: usize) -> Vec<Line> {
    let mut lines = Vec::new();
    let test = format!("{label}: slowdown, family held out");
    lines.extend(errors_lines(PART, &test, "ours", &set.cold(ORDERS), ORDERS));
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
    let ours = set.select(ORDERS, threads, Together::sum, sum);
    lines.push(Line::new(PART, &test, "ours", ORACLE).of(&ours, ORDERS).at_least(98.0));
    let ours = set.select(ORDERS, threads, Together::sum_up_to_1, sum);
    lines.push(
        Line::new(PART, &test, "ours, progress counted up to 1", ORACLE)
            .of(&ours, ORDERS)
            .note("nobody is faster in company than alone: more is noise"),
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
        let ours = set.select_in_sessions(ORDERS, threads, sum);
        lines.push(Line::new(PART, &again, "ours, target's family held out", ORACLE).of(&ours, ORDERS));
    }
    lines.extend(less_known(label, set, threads));
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
