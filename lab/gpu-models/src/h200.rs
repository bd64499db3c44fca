//! The H200: our own measurements.

use super::data::{self, Powered, Repeat, Together};
use super::search::{Key, Problem, RESAMPLES};
use super::{
    Error, Errors, FittedRow, Fitting, Held, HeldOut, Part, Places, fit_rows, light, own_progress, progress,
    total, with, write,
};
use carma_hardware::GpuType;
use carma_interference::power::{Power, PowerLaw as _, clock_factor};
use carma_interference::share::Mode;
use carma_sim::gpu::Law;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The task whose kernels fill the GPU for so long that neighbours under MPS starve.
const STARVES: &str = "matmul";

pub(super) fn fit(fitting: &mut Fitting, places: Places<'_>) -> Result<(), Error> {
    let folder = places.named.map_or_else(|| places.root.join("bench/h200/results"), Path::to_owned);
    let found = data::h200(&folder).map_err(Error)?;
    if found.together.is_empty() || found.sets.is_empty() {
        return Err(Error(format!(
            "{}: no sets of tasks in it (collocation*.json, {})",
            folder.display(),
            data::LOGS.join(", ")
        )));
    }
    fitting.data.push(format!("{}: {}", folder.display(), found.files.join(", ")));
    let source = |what: &str| {
        format!(
            "fitted by `carma lab fit h200` on 2026-11-21 to {what} of bench/h200/results/collocation-*.json (one H200)"
        )
    };
    let part = power(fitting, &found);
    let all = source("power and clocks of all rows");
    fitting.take(part, &all);
    let value = fitting.model.power.idle_w;
    let idle =
        format!("{all}; idle rows have all tasks resident and none running, no row is without processes");
    fitting.changes.push(write::Change { key: "power.idle_w".to_owned(), value, source: idle });
    let part = gract(fitting, &found.solos);
    fitting.take(part, &source("networks alone (the table in lab/gpu-models/src/data.rs, and those)"));

    let source = |mode: Mode| {
        let sets = of(&found.sets, mode).len();
        format!(
            "fitted by `carma lab fit h200` on 2026-11-23 to {sets} sets of 2 to 8 tasks of bench/h200/results/{{{}}} \
             (H200s)",
            data::LOGS.join(", ")
        )
    };
    sliced(fitting, &found, &source(Mode::TimeSlice));
    mps(fitting, &found, &source(Mode::Mps));
    Ok(())
}

fn of(rows: &[Together], mode: Mode) -> Vec<Together> {
    rows.iter().filter(|set| set.mode == mode).cloned().collect()
}

const EIGHT: &str = "sets of eight other tasks, another day (collocation*.json), held out on purpose";
const TABLE: &str = "the table of 2026-11-21: another run with other tasks, held out on purpose";

fn sliced(fitting: &mut Fitting, found: &data::H200, source: &str) {
    let rows = of(&found.sets, Mode::TimeSlice);
    let (eight, table) = (of(&found.together, Mode::TimeSlice), of(&found.table, Mode::TimeSlice));
    let held: [Held<'_, Together>; 2] = [(EIGHT, &eight, true), (TABLE, &table, true)];
    let keys = vec![fitting.key("time_slice.gract", 0.5, 1.5)];
    let mut part = sets(fitting, "Time-slice", keys, &rows, &held);
    part.held_out.extend(noise(&found.repeats, Mode::TimeSlice));
    fitting.take(part, source);
    let unknown: Vec<Together> = rows.into_iter().map(unknown_steps).collect();
    let keys = vec![fitting.key("activity.steps_per_s", 0.0, 1000.0)];
    let part = sets(fitting, "Time-slice, steps a second of no task known", keys, &unknown, &[]);
    fitting.take(part, source);
}

fn mps(fitting: &mut Fitting, found: &data::H200, source: &str) {
    let rows = of(&found.sets, Mode::Mps);
    let (eight, table) = (of(&found.together, Mode::Mps), of(&found.table, Mode::Mps));
    let (starving, eight): (Vec<Together>, Vec<Together>) =
        eight.into_iter().partition(|set| set.families.iter().any(|family| family == STARVES));
    let held: [Held<'_, Together>; 4] = [
        (EIGHT, &eight, true),
        ("those of them with matmul, held out on purpose", &starving, true),
        (TABLE, &table, true),
        ("tasks under a thread limit, held out on purpose", &found.limited, true),
    ];
    let keys = vec![
        fitting.key("mps.sm", 0.5, 1.6),
        fitting.key("mps.crowding", 0.0, 1.0),
        fitting.key("mps.weight_free_sms", 0.0, 3.0),
        fitting.key("mps.weight_tensor", 0.0, 4.0),
    ];
    let mut part = sets(fitting, "MPS", keys, &rows, &held);
    part.held_out.extend(noise(&found.repeats, Mode::Mps));
    fitting.take(part, source);
}

/// The set with the steps per second of its tasks unknown.
fn unknown_steps(mut set: Together) -> Together {
    for tenant in &mut set.tenants {
        tenant.steps_per_s = None;
    }
    set
}

/// An error of own progress beyond this counts less and less.
const ROBUST: f64 = 0.3;
/// How much the sum of a set counts beside the mean of its members.
const OF_SUMS: f64 = 3.0;

/// How far a model is off a set: the root of the mean square of the logarithms of own progress, and that of their sum.
fn off(model: &GpuType, set: &Together) -> f64 {
    let said = progress(model, set.mode, &set.tenants);
    let own = said.iter().zip(&set.progress).map(|(said, measured)| {
        let log = (said / measured).ln().abs();
        if log < ROBUST { log * log } else { ROBUST * (2.0 * log - ROBUST) }
    });
    let sum = (said.iter().sum::<f64>() / set.total()).ln();
    (own.sum::<f64>() / set.tenants.len() as f64 + OF_SUMS * sum * sum).sqrt()
}

/// Fits to own progress and to the sums of sets. Sets of each size count by the root of how many there are, so that the
/// pairs do not decide alone.
fn sets(
    fitting: &Fitting,
    title: &str,
    keys: Vec<Key>,
    rows: &[Together],
    held: &[Held<'_, Together>],
) -> Part {
    let base = light(&fitting.model);
    let of_size: BTreeMap<usize, usize> = rows.iter().fold(BTreeMap::new(), |mut sizes, set| {
        *sizes.entry(set.tenants.len()).or_default() += 1;
        sizes
    });
    let count = |set: &Together| of_size.get(&set.tenants.len()).map_or(1.0, |n| *n as f64).powf(-0.25);
    let of = keys.clone();
    let problem = Problem {
        keys,
        // What is minimised is the mean of (model / measured - 1)^2.
        model: &|values: &[f64], set: &Together| {
            set.total() * (1.0 + count(set) * off(&with(&base, &of, values), set))
        },
        said: &|values, set| total(&with(&base, &of, values), set),
        measured: &Together::total,
        // A tenth of the usual resamples: each is a search over hundreds of sets.
        resamples: RESAMPLES.div_ceil(10),
        families: &|set| set.families.clone(),
    };
    let all: Vec<&Together> = rows.iter().collect();
    let parameters = problem.fit(&all);
    let values: Vec<f64> = parameters.iter().map(|fitted| fitted.value).collect();
    let errors = |rows: &[Together]| Errors::of(&problem.errors(&values, rows));
    let mut held_out = Vec::new();
    // Minutes without optimisation.
    if !cfg!(test) {
        let how = "leave one family out, the others fitted".to_owned();
        held_out.push(HeldOut { how, errors: Errors::of(&problem.leave_one_out(&all)) });
    }
    held_out
        .extend(held.iter().map(|(how, rows, _)| HeldOut { how: (*how).to_owned(), errors: errors(rows) }));
    let fitted = with(&base, &of, &values);
    let row = |set: &Together, held_out| FittedRow {
        label: set.label.clone(),
        measured: set.total(),
        model: total(&fitted, set),
        held_out,
    };
    let mut shown: Vec<FittedRow> = rows.iter().map(|set| row(set, false)).collect();
    for (_, rows, _) in held.iter().filter(|(.., shown)| *shown) {
        shown.extend(rows.iter().map(|set| row(set, true)));
    }
    let sums = sums(&fitted, rows).into_iter();
    let sums = sums.map(|(k, said, measured)| format!("{k}: {said:.2} ({measured:.2})")).collect::<Vec<_>>();
    Part {
        title: title.to_owned(),
        unit: "total progress, exclusive GPUs; fitted to own progress and to totals".to_owned(),
        in_sample: errors(rows),
        parameters,
        taken: true,
        held_out,
        rows: shown,
        notes: vec![
            own_progress(&fitted, rows),
            format!("Mean total by the number of members, model (measured): {}", sums.join(", ")),
        ],
    }
}

/// Mean total progress by the number of members: the model's and the measured one.
fn sums(model: &GpuType, sets: &[Together]) -> Vec<(usize, f64, f64)> {
    let sizes: BTreeSet<usize> = sets.iter().map(|set| set.tenants.len()).collect();
    let of = |k: usize| sets.iter().filter(move |set| set.tenants.len() == k);
    let mean = |values: Vec<f64>| values.iter().sum::<f64>() / values.len().max(1) as f64;
    sizes
        .into_iter()
        .map(|k| {
            let said = mean(of(k).map(|set| total(model, set)).collect());
            (k, said, mean(of(k).map(Together::total).collect()))
        })
        .collect()
}

/// Power, and the clock where power holds it down, in one fit: a task that is always held down shows only
/// by its clock what it asks for.
fn power(fitting: &Fitting, found: &data::H200) -> Part {
    let keys = vec![
        fitting.key("power.idle_w", 40.0, 250.0),
        fitting.key("power.gract", 0.0, 1.0),
        fitting.key("power.smact", 0.0, 1.5),
        fitting.key("power.dram", 0.0, 2.5),
        fitting.key("power.tensor", 0.0, 2.0),
        fitting.key("power.clock_exponent", 0.5, 10.0),
    ];
    let base = Law::from(&fitting.model).power;
    let of = keys.clone();
    let part = |rows: &[(bool, Powered)], held: &[Held<'_, (bool, Powered)>]| {
        let at = |values: &[f64]| powered_by(base, &of, values);
        fit_rows(
            "Power and clock",
            "W; of rows called clock the share of the highest SM clock",
            of.clone(),
            rows,
            &|values, (clock, row)| {
                let power = at(values);
                let asked = power.asked_w(&row.activity);
                match (*clock, row.clock) {
                    (true, _) => clock_factor(asked, power.idle_w, power.cap_w, power.clock_exponent),
                    (false, Some(_)) => asked.min(power.cap_w),
                    (false, None) => asked,
                }
            },
            Some(&|values, (clock, row)| {
                let power = at(values);
                if *clock { power.clock(&row.activity) } else { power.drawn_w(&row.activity) }
            }),
            &|(clock, row)| if *clock { row.clock.unwrap_or(1.0) } else { row.watts },
            &|(_, row)| row.families.clone(),
            &|(clock, row)| if *clock { format!("clock, {}", row.label) } else { row.label.clone() },
            "kind of task",
            held,
        )
    };
    let watts = |rows: &[Powered]| rows.iter().map(|row| (false, row.clone())).collect::<Vec<_>>();
    let mut rows = watts(&found.powered);
    rows.extend(found.powered.iter().filter(|row| row.clock.is_some()).map(|row| (true, row.clone())));
    let (runs, table) = (watts(&found.runs), watts(&found.table_powered));
    let held: [Held<'_, (bool, Powered)>; 2] = [
        (TABLE, &table, true),
        ("means over whole runs of the service, GPU utilisation for GRACT (modes-*.json)", &runs, true),
    ];
    let mut part = part(&rows, &held);
    for (name, clock) in [("watts", false), ("clocks", true)] {
        let of: Vec<f64> = (part.rows.iter())
            .filter(|row| !row.held_out && row.label.starts_with("clock, ") == clock)
            .map(FittedRow::residual)
            .collect();
        let errors = Errors::of(&of);
        part.notes.push(format!(
            "In sample, {name} alone ({} rows): MAPE {:.1} %, bias {:+.1} %",
            errors.rows,
            errors.mape * 100.0,
            errors.bias * 100.0
        ));
    }
    part.notes.push(
        "Idle rows are of a GPU on which eleven processes hold memory and none computes, at the full clock; without \
         any process it draws less. Watts are the energy counter's. Not used: the power of bert at 75 % of the threads"
            .to_owned(),
    );
    part
}

fn powered_by(mut power: Power, keys: &[Key], values: &[f64]) -> Power {
    for (key, &value) in keys.iter().zip(values) {
        match key.key {
            "power.idle_w" => power.idle_w = value,
            "power.gract" => power.gract = value,
            "power.smact" => power.smact = value,
            "power.dram" => power.dram = value,
            "power.tensor" => power.tensor = value,
            _ => power.clock_exponent = value,
        }
    }
    power
}

/// Tasks that are no networks but made to do one thing: the guess of GRACT is for trainings of networks.
const MADE: [&str; 4] = ["elementwise", "matmul", "loader", "bursty"];

fn gract(fitting: &Fitting, solos: &[(String, f64, f64)]) -> Part {
    let (made, solos): (Vec<_>, Vec<_>) =
        solos.iter().cloned().partition(|(label, ..)| MADE.iter().any(|made| label.ends_with(made)));
    let held: [Held<'_, (String, f64, f64)>; 1] =
        [("elementwise, matmul, loader and bursty, which are no networks, held out on purpose", &made, true)];
    fit_rows(
        "GRACT guessed from SMACT, networks alone",
        "GRACT",
        vec![fitting.key("activity.gract_exponent", 0.05, 1.0)],
        &solos,
        &|values, (_, smact, _)| smact.powf(values.first().copied().unwrap_or(1.0)),
        None,
        &|(_, _, gract)| *gract,
        &|(label, ..)| vec![label.split_whitespace().nth(1).unwrap_or_default().to_owned()],
        &|(label, ..)| label.clone(),
        "kind of task",
        &held,
    )
}

/// How far two measurements of the same sets differ.
fn noise(repeats: &[Repeat], mode: Mode) -> Vec<HeldOut> {
    let of = || repeats.iter().filter(|repeat| repeat.mode == mode);
    let total: Vec<f64> = of().map(|repeat| repeat.total).collect();
    let each: Vec<f64> = of().flat_map(|repeat| repeat.each.iter().copied()).collect();
    let rows = [("total", total), ("each task's own progress", each)];
    let said = |(what, errors): (&str, Vec<f64>)| HeldOut {
        how: format!("noise: the second measurement against the first, {what}"),
        errors: Errors::of(&errors),
    };
    rows.into_iter().filter(|(_, errors)| !errors.is_empty()).map(said).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::each_errors;
    use crate::tests::here;

    /// Sets by log and sharing, as they are measured.
    fn measured(log: &str, mode: Mode) -> Vec<Together> {
        let sets = data::sets(&here().root.join("bench/h200/results").join(log)).unwrap().unwrap();
        of(&sets, mode)
    }

    /// The built-in constants say what was measured of sets of two to eight, also where it is not known how many steps the
    /// tasks make.
    #[test]
    fn sums_of_progress_are_as_measured() {
        let model = GpuType::find("H200").unwrap();
        for log in data::LOGS {
            for mode in [Mode::Mps, Mode::TimeSlice] {
                let sets = measured(log, mode);
                let unknown: Vec<Together> = sets.iter().cloned().map(unknown_steps).collect();
                for sets in [&sets, &unknown] {
                    let each = Errors::of(&each_errors(&model, sets));
                    println!("{log} {mode}: {:?}, own progress {:.3}", sums(&model, sets), each.mape);
                    for (k, said, measured) in sums(&model, sets) {
                        let off = said / measured - 1.0;
                        assert!(off.abs() < 0.10, "{log} {mode} k={k}: {said:.2}, measured {measured:.2}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_log_becomes_sets() {
        let sets = measured(data::LOGS[1], Mode::Mps);
        let sizes: Vec<usize> =
            (2..=8).map(|k| sets.iter().filter(|set| set.tenants.len() == k).count()).collect();
        assert_eq!(sizes, [80, 45, 45, 10, 10, 10, 10]);
        let vgg = sets.iter().find(|set| set.label.starts_with("MPS vgg16 + ")).unwrap();
        assert!((vgg.tenants[0].demand.gract - 0.99).abs() < 0.02, "{vgg:?}");
        assert!((vgg.tenants[0].steps_per_s.unwrap() - 25.2).abs() < 0.5, "{vgg:?}");
        assert_eq!(data::sets("/nowhere".as_ref()).unwrap(), None);
    }
}
