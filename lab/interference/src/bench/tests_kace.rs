//! KACE's artifact: its own splits, unseen targets, errors of each task, more members, thread splits.

use super::baselines;
use super::kace::{Columns, Online, Tables, gpu, sound_set};
use super::set::{Set, Together};
use super::stats::Clustered;
use super::{COVERED, Data, Line, MAPE, ORACLE, errors_lines};
use crate::kace::protocol::{self, Protocol, is_sound};
use crate::kace::score::{self, Scored};
use crate::kace::table::Table;
use crate::kace::{Artifact, Error};
use carma_interference::online::SlowdownModel;
use std::collections::BTreeMap;
use std::path::PathBuf;

const PART: &str = "kace";
/// Orders of learning where the protocol has none of its own.
const REPEATS: u64 = 8;

fn folder(data: &Data) -> PathBuf {
    data.shared.join("nba556677go__KACE-artifact")
}

fn by_target(scored: &[Scored], only: impl Fn(&Scored) -> bool) -> Clustered {
    let mut values = Clustered::default();
    scored.iter().filter(|s| only(s)).for_each(|s| values.add(&s.target, s.ratio));
    values
}

pub(super) fn kace(data: &Data) -> Result<Vec<Line>, Error> {
    let artifact = Artifact::new(folder(data));
    let tables = Tables::read(&artifact)?;
    let mut lines = seen(&artifact, &tables.pairs, data)?;
    let named = [("k=2", &tables.pairs), ("k=3", &tables.triples), ("k=4", &tables.quadruples)];
    let limits = [(90.0, 97.0, 88.8), (97.0, 99.5, 95.8), (95.0, 99.5, 91.4)];
    for ((k, table), (all, sound, published)) in named.into_iter().zip(limits) {
        let label = format!("unseen {k}");
        lines.extend(unseen(&label, table, data, Some((all, published)))?);
        let label = format!("unseen {k}, sound solo rates only");
        lines.extend(unseen(&label, &table.without(|w| !is_sound(w)), data, Some((sound, 0.0)))?);
    }
    lines.extend(errors(&named, data.threads)?);
    lines.extend(more_members(&tables)?);
    Ok(lines)
}

fn seen(artifact: &Artifact, pairs: &Table, data: &Data) -> Result<Vec<Line>, Error> {
    let splits = artifact.splits(pairs)?;
    let protocol = protocol::seen(pairs, &splits);
    let mut lines = Vec::new();
    for (who, nsight, unknown) in [
        ("ours", true, false),
        ("ours, nvidia-smi alone", false, false),
        ("ours, capacity 1.0 as prior", true, true),
    ] {
        let columns = Columns::of(pairs, nsight)?;
        let mut gpu = gpu();
        if unknown {
            gpu.capacities.mps_sm = 1.0;
        }
        let online = Online { columns: &columns, gpu };
        let scored = score::evaluate(&online, &protocol, data.threads)?;
        for n in 2..=10 {
            let rows: Vec<usize> = splits.iter().filter(|s| s.n_occur == n).map(|s| s.train.len()).collect();
            let mean = rows.iter().sum::<usize>() / rows.len().max(1);
            if who != "ours" && n != 3 && n != 8 {
                continue;
            }
            let label = format!("seen k=2, {mean} pairs to learn from");
            let line =
                Line::new(PART, label, who, ORACLE).of(&by_target(&scored, |s| s.n_occur == Some(n)), 5);
            lines.push(match (who, n) {
                ("ours", 3) => line.at_least(93.5).note("KACE published 90.6"),
                ("ours", 8) => line.at_least(96.5).note("KACE's log 93.0"),
                _ => line,
            });
        }
    }
    Ok(lines)
}

/// `limit`: what to reach, and what KACE published (0: nothing).
fn unseen(label: &str, table: &Table, data: &Data, limit: Option<(f64, f64)>) -> Result<Vec<Line>, Error> {
    let protocol = protocol::unseen(label, table)?;
    let mut lines = Vec::new();
    for (who, nsight) in [("ours", true), ("ours, nvidia-smi alone", false)] {
        let columns = Columns::of(table, nsight)?;
        let online = Online { columns: &columns, gpu: gpu() };
        let all = score::evaluate(&online, &protocol, data.threads)?;
        let line = Line::new(PART, label, who, ORACLE).of(&by_target(&all, |_| true), 1);
        lines.push(match limit {
            Some((least, published)) if nsight => {
                let line = line.at_least(least);
                if published > 0.0 { line.note(format!("KACE published {published}")) } else { line }
            }
            _ => line,
        });
    }
    lines.push(share_line(label, table, &protocol, data)?);
    let random = score::random(&protocol);
    lines.push(Line::new(PART, label, "random", ORACLE).of(&by_target(&random, |_| true), 1));
    Ok(lines)
}

/// The share law on SM busy and the solo rate as imported.
fn share_line(label: &str, table: &Table, protocol: &Protocol<'_>, data: &Data) -> Result<Line, Error> {
    use carma_interference::group::{Group, Member, Mode, Objective};
    use carma_interference::predict::policy::Policy;
    let columns = Columns::of(table, false)?;
    let gpu = gpu();
    let share = score::per_case(|_, case| {
        let score = |row: &&crate::kace::table::Collocation| {
            let profiles: Vec<_> =
                row.members.iter().map(|m| columns.profile(&m.workload, &m.features)).collect();
            let members: Vec<Member<'_>> = profiles.iter().map(Member::of).collect();
            let group = Group { gpu: &gpu, sharing: Mode::Mps, members: &members };
            let bad = |e: carma_interference::predict::policy::Lacks| {
                Error::new(row.key().join(" + "), e.to_string())
            };
            Policy::Share.score(&group, Objective::Throughput).map_err(bad)
        };
        case.test.iter().map(score).collect()
    });
    let scored = score::evaluate(&share, protocol, data.threads)?;
    Ok(Line::new(PART, label, "share law, nothing learned", ORACLE).of(&by_target(&scored, |_| true), 1))
}

fn errors(named: &[(&str, &Table); 3], threads: usize) -> Result<Vec<Line>, Error> {
    let mut lines = Vec::new();
    for (k, table) in named {
        let set = sound_set(table, true)?;
        let prior = set.prior();
        lines.push(
            Line::new(PART, format!("slowdown {k}, nothing learned"), "ours", MAPE).of(&prior.error, 1),
        );
        let share = baselines::share_errors(&set);
        lines
            .push(Line::new(PART, format!("slowdown {k}, nothing learned"), "share law", MAPE).of(&share, 1));
        let cold = set.cold(&set.folds(threads));
        let [error, covered] =
            errors_lines(PART, &format!("slowdown {k}, family held out"), "ours", &cold, 1);
        lines.extend([error.at_most(20.0), covered.within(88.0, 92.0)]);
        let smi = sound_set(table, false)?;
        let smi = smi.cold(&smi.folds(threads));
        let label = format!("slowdown {k}, family held out");
        lines.push(Line::new(PART, label, "ours, nvidia-smi alone", MAPE).of(&smi.error, 1));
        let after = set.online(50, REPEATS);
        let label = format!("slowdown {k}, after 50 observations");
        let [error, covered] = errors_lines(PART, &label, "ours", &after, REPEATS);
        lines.extend([error.at_most(15.0), covered.within(88.0, 92.0)]);
    }
    let sets: Vec<Set> = named.iter().map(|(_, table)| sound_set(table, true)).collect::<Result<_, _>>()?;
    let all = together(&sets);
    let cold = all.cold(&all.folds(threads));
    let [error, covered] = errors_lines(PART, "slowdown k=2, 3, 4 mixed, family held out", "ours", &cold, 1);
    lines.extend([error.at_most(20.0), covered.within(88.0, 92.0)]);
    let after = all.online(50, REPEATS);
    let [error, covered] =
        errors_lines(PART, "slowdown k=2, 3, 4 mixed, after 50 observations", "ours", &after, REPEATS);
    lines.extend([error.at_most(15.0), covered.within(88.0, 92.0)]);
    Ok(lines)
}

/// Sets of the same GPU as one.
fn together(sets: &[Set]) -> Set {
    let mut all =
        Set { gpu: gpu(), tasks: Vec::new(), families: Vec::new(), rows: Vec::new(), sessions: Vec::new() };
    for set in sets {
        let mut at = Vec::with_capacity(set.tasks.len());
        for (task, family) in set.tasks.iter().zip(&set.families) {
            at.push(all.tasks.iter().position(|t| t.name == task.name).unwrap_or_else(|| {
                all.tasks.push(task.clone());
                all.families.push(family.clone());
                all.tasks.len() - 1
            }));
        }
        all.rows.extend(
            set.rows
                .iter()
                .map(|r| Together { tasks: r.tasks.iter().map(|t| at[*t]).collect(), ..r.clone() }),
        );
    }
    all
}

/// Learned from all pairs, then from a few triples or quadruples.
fn more_members(tables: &Tables) -> Result<Vec<Line>, Error> {
    let pairs = sound_set(&tables.pairs, true)?;
    let mut lines = Vec::new();
    for (k, table) in [("k=3", &tables.triples), ("k=4", &tables.quadruples)] {
        let set = sound_set(table, true)?;
        // One list of tasks for both.
        let both = together(&[pairs.clone(), set]);
        let of = |k: usize| Set {
            rows: both.rows.iter().filter(|r| (r.tasks.len() == 2) == (k == 2)).cloned().collect(),
            ..both.clone()
        };
        let (before, after) = (of(2), of(3));
        for observations in [0, 3, 10, 30] {
            let label = format!("slowdown {k} from all pairs and {observations} of {k}");
            let errors = after.transfer(&before, observations, REPEATS);
            lines.push(Line::new(PART, &label, "ours", MAPE).of(&errors.error, REPEATS));
            lines.push(Line::new(PART, &label, "ours", COVERED).of(&errors.covered, REPEATS));
            let mut chosen = Clustered::default();
            for seed in 0..REPEATS {
                let model = after.taught_after(&before, observations, seed);
                let score = |model: &SlowdownModel, row: &Together| {
                    after
                        .predict(model, row)
                        .map_or(0.0, |f| f.value(carma_interference::group::Objective::Throughput))
                };
                let value = |row: &Together| after.throughput(row);
                chosen.extend(after.choices(&model, |_| true, value, score));
            }
            lines.push(Line::new(PART, &label, "ours", ORACLE).of(&chosen, REPEATS));
        }
    }
    Ok(lines)
}

/// KACE's campaign of May 2024: which split of the threads gives the slowest task the most.
pub(super) fn splits(data: &Data) -> Result<Vec<Line>, Error> {
    const PART: &str = "splits";
    let set = super::others::kace_splits(&folder(data))?;
    let mut lines = divisions(PART, &set);
    let split = Set { rows: set.rows.iter().filter(|r| !is_even(r, 100.0)).cloned().collect(), ..set };
    let prior = split.prior();
    lines.extend(errors_lines(PART, "speed under a split, nothing learned", "ours", &prior, 1));
    let cold = split.cold(&split.folds(data.threads));
    lines.extend(errors_lines(PART, "speed under a split, family held out", "ours", &cold, 1));
    Ok(lines)
}

fn is_even(row: &Together, pct: f64) -> bool {
    row.threads.iter().all(|t| (t - pct).abs() < 1e-9)
}

fn divisions(part: &'static str, set: &Set) -> Vec<Line> {
    let mut pairs: BTreeMap<Vec<usize>, Vec<&Together>> = BTreeMap::new();
    for row in &set.rows {
        pairs.entry(row.tasks.clone()).or_default().push(row);
    }
    let has = |rows: &[&Together], pct: f64| rows.iter().any(|r| is_even(r, pct));
    pairs.retain(|_, rows| has(rows, 50.0) && has(rows, 100.0));
    let least = |r: &Together| r.progress.iter().copied().fold(f64::INFINITY, f64::min);
    // One model for all pairs of the same families, taught without either.
    let mut taught: BTreeMap<[&str; 2], SlowdownModel> = BTreeMap::new();
    for tasks in pairs.keys() {
        let key = families(set, tasks);
        taught.entry(key).or_insert_with(|| set.taught_without(&key));
    }
    let nothing = SlowdownModel::new();
    let by = |model: &SlowdownModel, row: &Together| {
        let forecast = set.predict(model, row);
        forecast.map_or(f64::NEG_INFINITY, |f| f.value(carma_interference::group::Objective::MaxMin))
    };
    let is = |yes: bool| f64::from(u8::from(yes));
    type Score<'a> = &'a dyn Fn(&Together) -> f64;
    let scores: [(&str, Score<'_>); 4] = [
        ("ours, nothing learned", &|row| by(&nothing, row)),
        ("ours, learned from other families", &|row| {
            taught.get(&families(set, &row.tasks)).map_or(f64::NEG_INFINITY, |model| by(model, row))
        }),
        ("equal split", &|row| is(is_even(row, 50.0))),
        ("no split", &|row| is(is_even(row, 100.0))),
    ];
    let mut lines = Vec::new();
    for with_none in [false, true] {
        let among = if with_none { "10/90 to 90/10 and none" } else { "10/90 to 90/10" };
        let label = format!("split for max-min among {among}, {} pairs", pairs.len());
        for (who, score) in &scores {
            let mut values = Clustered::default();
            for (tasks, rows) in &pairs {
                let splits = || rows.iter().filter(|r| with_none || !is_even(r, 100.0));
                let best = splits().map(|r| least(r)).fold(0.0, f64::max);
                let chosen = if *who == "no split" {
                    rows.iter().find(|r| is_even(r, 100.0))
                } else {
                    splits().max_by(|a, b| score(a).total_cmp(&score(b)))
                };
                if let Some(chosen) = chosen.filter(|_| best > 0.0) {
                    for task in tasks {
                        values.add(&set.tasks[*task].name, least(chosen) / best);
                    }
                }
            }
            let line = Line::new(part, &label, *who, ORACLE).of(&values, 1);
            lines.push(match (*who, with_none) {
                ("ours, nothing learned", false) => {
                    line.at_least(98.0).note("curves alone: 98.1 in the reference")
                }
                _ => line,
            });
        }
    }
    lines
}

/// Families of a pair.
fn families<'a>(set: &'a Set, tasks: &[usize]) -> [&'a str; 2] {
    let of = |i: usize| tasks.get(i).map_or("", |t| set.families[*t].as_str());
    [of(0), of(1)]
}
