//! The H200: our own measurements.

use super::data::{self, Powered, Repeat, Together};
use super::search::{Key, Problem, RESAMPLES, SEED};
use super::{
    Error, Errors, Fitted, FittedRow, Fitting, Held, HeldOut, Part, Places, fit_rows, light, progress, set,
    sharing, total, with, write,
};
use carma_hardware::GpuType;
use carma_interference::power::{Power, PowerLaw as _, clock_factor};
use carma_interference::share::{Capacities, Demand, Mode, Tenant, share};
use carma_sim::gpu::Law;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use std::collections::BTreeSet;
use std::path::Path;

/// The task whose kernels fill the GPU for so long that neighbours under MPS starve: sets with it do not
/// share by demand, and no capacity is fitted to them.
const STARVES: &str = "matmul";

pub(super) fn fit(fitting: &mut Fitting, places: Places<'_>) -> Result<(), Error> {
    let folder = places.named.map_or_else(|| places.root.join("bench/h200/results"), Path::to_owned);
    let found = data::h200(&folder).map_err(Error)?;
    if found.together.is_empty() {
        return Err(Error(format!("{}: no sets of tasks in it (collocation*.json)", folder.display())));
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

    sliced(fitting, &found, &source("the 9 sets of tasks that each fill the GPU"));
    mps(fitting, &found, &source("the 5 sets of tasks that each fill the GPU, without matmul,"));
    Ok(())
}

fn of(rows: &[Together], mode: Mode) -> Vec<Together> {
    rows.iter().filter(|set| set.mode == mode).cloned().collect()
}

/// Whether each of the tasks keeps the GPU busy by itself. A capacity is what such sets show: what is missing
/// beside a light task is not capacity but how long it waits for its turn.
fn saturated(set: &Together) -> bool {
    set.tenants.iter().all(|tenant| tenant.demand.gract >= SATURATED)
}

/// GRACT alone from which a task saturates: ours are at 0.99 and above, or at 0.5 and below.
const SATURATED: f64 = 0.9;

fn sliced(fitting: &mut Fitting, found: &data::H200, source: &str) {
    let rows = of(&found.together, Mode::TimeSlice);
    let (full, other): (Vec<Together>, Vec<Together>) = rows.iter().cloned().partition(saturated);
    let table = of(&found.table, Mode::TimeSlice);
    let keys = vec![fitting.key("time_slice.gract", 0.5, 1.5)];
    let held: [Held<'_, Together>; 2] = [(LIGHT, &other, true), (TABLE, &table, true)];
    let mut part =
        sharing(fitting, "Time-slice, sets of tasks that each fill the GPU", keys.clone(), &full, &held);
    part.held_out.push(by_size(fitting, &keys, &full, &rows));
    part.held_out.extend(noise(&found.repeats, Mode::TimeSlice));
    part.notes.push(instead(fitting, &keys, &rows, &part));
    fitting.take(part, source);
    let note = waiting_note(&fitting.model, &rows);
    if let Some(part) = fitting.parts.last_mut() {
        part.notes.push(note);
    }
}

fn mps(fitting: &mut Fitting, found: &data::H200, source: &str) {
    let (starving, rows): (Vec<Together>, Vec<Together>) =
        of(&found.together, Mode::Mps).into_iter().partition(|set| set.families.iter().any(|f| f == STARVES));
    let (full, other): (Vec<Together>, Vec<Together>) = rows.iter().cloned().partition(saturated);
    let table = of(&found.table, Mode::Mps);
    let keys = vec![fitting.key("mps.sm", 0.5, 1.6)];
    let held: [Held<'_, Together>; 4] = [
        (LIGHT, &other, true),
        ("sets with matmul, which break the law: kept out on purpose", &starving, true),
        (TABLE, &table, true),
        ("tasks under a thread limit, held out on purpose", &found.limited, true),
    ];
    let title = "MPS, sets of tasks that each fill the GPU, without matmul";
    let mut part = sharing(fitting, title, keys.clone(), &full, &held);
    part.held_out.push(by_size(fitting, &keys, &full, &rows));
    part.held_out.extend(noise(&found.repeats, Mode::Mps));
    part.notes.push(instead(fitting, &keys, &rows, &part));
    let wide = [keys, vec![fitting.key("mps.dram", 0.3, 1.6), fitting.key("mps.tensor", 0.2, 1.6)]].concat();
    part.notes.push(on_totals(fitting, &wide, |problem| {
        let full: Vec<&Together> = full.iter().collect();
        let left_out = Errors::of(&problem.leave_one_out(&full));
        format!(
            "DRAM and tensor capacity are not identified: fitted too ({}), the error with a kind of task left out is \
             {:.1} %. They keep their values",
            said(&wide, &problem.solve(&full)),
            left_out.mape * 100.0
        )
    }));
    let each = Errors::of(&each_errors(&after(fitting, &part), &starving));
    part.notes.push(format!(
        "Matmul's kernels fill the GPU for longer than its neighbours' and push them down to a tenth, which no \
         capacity can say: of each task's own progress in its sets MAPE {:.0} %, median {:.0} %. What is missing is \
         a weight of the task",
        each.mape * 100.0,
        each.median * 100.0
    ));
    fitting.take(part, source);
    let all: Vec<Together> = rows.into_iter().chain(starving).collect();
    let part = weights(fitting, &all);
    fitting.show(part);
}

/// The model with what a part found.
fn after(fitting: &Fitting, part: &Part) -> GpuType {
    let mut after = light(&fitting.model);
    for fitted in part.parameters.iter().filter(|fitted| fitted.identified) {
        set(&mut after, &fitted.key, fitted.value);
    }
    after
}

const LIGHT: &str = "sets with light tasks, held out on purpose";
const TABLE: &str = "the table of 2026-11-21: another run with other tasks, held out on purpose";

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

/// Fitted to sets of two, tested on all larger ones.
fn by_size(fitting: &Fitting, keys: &[Key], fitted: &[Together], all: &[Together]) -> HeldOut {
    let pairs: Vec<&Together> = fitted.iter().filter(|set| set.tenants.len() == 2).collect();
    let more = all.iter().filter(|set| set.tenants.len() > 2);
    on_totals(fitting, keys, |problem| {
        let values = problem.solve(&pairs);
        HeldOut {
            how: format!(
                "triples and quadruples with light tasks in them too, fitted to pairs ({})",
                said(keys, &values)
            ),
            errors: Errors::of(&problem.errors(&values, more)),
        }
    })
}

fn said(keys: &[Key], values: &[f64]) -> String {
    let said: Vec<String> =
        keys.iter().zip(values).map(|(key, value)| format!("{} {value:.3}", key.key)).collect();
    said.join(", ")
}

/// What a fit to all sets gives, and what it costs.
fn instead(fitting: &Fitting, keys: &[Key], rows: &[Together], part: &Part) -> String {
    let all: Vec<&Together> = rows.iter().collect();
    let (now, full): (_, Vec<Together>) =
        (after(fitting, part), rows.iter().filter(|s| saturated(s)).cloned().collect());
    let on = |model: &GpuType, sets: &[Together]| {
        let errors: Vec<f64> = sets.iter().map(|set| total(model, set) / set.total() - 1.0).collect();
        let each = Errors::of(&each_errors(model, sets));
        let total = Errors::of(&errors);
        format!(
            "{:.1} % (bias {:+.1} %), own progress {:.1} %",
            total.mape * 100.0,
            total.bias * 100.0,
            each.mape * 100.0
        )
    };
    on_totals(fitting, keys, |problem| {
        let values = problem.solve(&all);
        let then = with(&light(&fitting.model), keys, &values);
        let left_out = Errors::of(&problem.leave_one_out(&all));
        format!(
            "Fitted to all these sets instead: {}. Totals of all sets are then off by {}, by {:.1} % with a kind of task \
             left out; those of tasks that fill the GPU by {}. With what is taken: {} and {}",
            said(keys, &values),
            on(&then, rows),
            left_out.mape * 100.0,
            on(&then, &full),
            on(&now, rows),
            on(&now, &full),
        )
    })
}

/// With the problem of fitting these to totals.
fn on_totals<T>(fitting: &Fitting, keys: &[Key], then: impl FnOnce(&Problem<'_, Together>) -> T) -> T {
    let base = light(&fitting.model);
    then(&Problem {
        keys: keys.to_vec(),
        model: &|values: &[f64], set: &Together| total(&with(&base, keys, values), set),
        said: &|values, set| total(&with(&base, keys, values), set),
        measured: &Together::total,
        families: &|set| set.families.clone(),
    })
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

/// Errors of each task's own progress.
fn each_errors(model: &GpuType, sets: &[Together]) -> Vec<f64> {
    let of = |set: &Together| -> Vec<f64> {
        let said = progress(model, set.mode, &set.tenants);
        said.into_iter().zip(&set.progress).map(|(p, measured)| p / measured - 1.0).collect()
    };
    sets.iter().flat_map(of).collect()
}

/// The tasks of a set in the order of its tenants, from its label.
fn tasks(set: &Together) -> Vec<&str> {
    set.label.split_once(' ').map_or_else(Vec::new, |(_, tasks)| tasks.split(" + ").collect())
}

/// Ridge on the logarithm of a weight: a weight off 1 by a factor of e counts as much as a row whose
/// progress is off by a factor of 1.2. About (0.3 / 1.5)^2: the scatter of the rows over that of the weights.
const RIDGE: f64 = 0.04;
/// The largest weight is e to this, the smallest its inverse.
const MOST_LOG_WEIGHT: f64 = 4.0;

/// What weights are fitted to: a task's own progress in a set, or that weights are 1.
enum Weighed<'a> {
    Progress(&'a Together, Vec<usize>, usize),
    Prior(usize),
}

/// One weight for each kind of task, to see what the law lacks. Not for the GPU's file: they belong to tasks.
fn weights<'a>(fitting: &Fitting, sets: &'a [Together]) -> Part {
    let model = light(&fitting.model);
    let kinds: Vec<String> = {
        let all: BTreeSet<&String> = sets.iter().flat_map(|set| &set.families).collect();
        all.into_iter().cloned().collect()
    };
    let said = |values: &[f64], set: &Together, which: &[usize]| -> Vec<f64> {
        let tenants: Vec<Tenant> = (set.tenants.iter().zip(which))
            .map(|(tenant, &kind)| Tenant {
                weight: values.get(kind).copied().unwrap_or(0.0).exp(),
                ..*tenant
            })
            .collect();
        progress(&model, set.mode, &tenants)
    };
    let which = |set: &Together| -> Vec<usize> {
        tasks(set).iter().filter_map(|task| kinds.iter().position(|kind| kind == task)).collect()
    };
    // 1 + the logarithm of model over measured, against 1.
    let log = |values: &[f64], row: &Weighed<'_>| match row {
        Weighed::Progress(set, which, at) => {
            let said = said(values, set, which);
            1.0 + said.get(*at).zip(set.progress.get(*at)).map_or(0.0, |(p, measured)| (p / measured).ln())
        }
        Weighed::Prior(kind) => 1.0 + RIDGE.sqrt() * values.get(*kind).copied().unwrap_or(0.0),
    };
    let key = Key { key: "weight", start: 0.0, low: -MOST_LOG_WEIGHT, high: MOST_LOG_WEIGHT };
    let problem = Problem {
        keys: vec![key; kinds.len()],
        model: &log,
        said: &log,
        measured: &|_| 1.0,
        families: &|_| Vec::new(),
    };
    let solve = |sets: &[&'a Together]| {
        let mut rows: Vec<Weighed<'_>> = (0..kinds.len()).map(Weighed::Prior).collect();
        for &set in sets {
            rows.extend((0..set.tenants.len()).map(|at| Weighed::Progress(set, which(set), at)));
        }
        let values = problem.solve(&rows.iter().collect::<Vec<_>>());
        // Only ratios matter, and the ridge holds their level but weakly: their geometric mean is 1.
        let level = values.iter().sum::<f64>() / values.len().max(1) as f64;
        values.into_iter().map(|value| value - level).collect::<Vec<f64>>()
    };
    let errors = |values: &[f64], sets: &[&Together], total: bool| {
        let of = |set: &&Together| {
            let said = said(values, set, &which(set));
            if total {
                vec![said.iter().sum::<f64>() / set.total() - 1.0]
            } else {
                said.iter().zip(&set.progress).map(|(p, measured)| p / measured - 1.0).collect()
            }
        };
        Errors::of(&sets.iter().flat_map(of).collect::<Vec<f64>>())
    };
    let all: Vec<&Together> = sets.iter().collect();
    let (pairs, more): (Vec<&Together>, Vec<&Together>) =
        all.iter().copied().partition(|s| s.tenants.len() == 2);
    let values = solve(&all);
    let mut rng = Pcg64::seed_from_u64(SEED);
    // A tenth of the usual resamples: each is a search over eight values.
    let resampled: Vec<Vec<f64>> = (0..RESAMPLES.div_ceil(10))
        .map(|_| {
            let resample: Vec<&Together> =
                all.iter().filter_map(|_| all.get(rng.random_range(0..all.len())).copied()).collect();
            solve(&resample)
        })
        .collect();
    let parameters = kinds.iter().enumerate().map(|(at, kind)| {
        let of = || resampled.iter().filter_map(|values| values.get(at).copied());
        let value = values.get(at).copied().unwrap_or(0.0);
        let round = |log: f64| (log.exp() * 1e3).round() / 1e3;
        Fitted {
            key: format!("weight of {kind}"),
            value: round(value),
            before: 1.0,
            low: round(of().fold(value, f64::min)),
            high: round(of().fold(value, f64::max)),
            identified: true,
        }
    });
    let even = vec![0.0; kinds.len()];
    let from_pairs = solve(&pairs);
    let mut held_out = Vec::new();
    for (name, total) in [("total", true), ("each task's own progress", false)] {
        let mut held = |how: String, errors| held_out.push(HeldOut { how, errors });
        held(format!("{name}, all sets, weights 1"), errors(&even, &all, total));
        held(format!("{name}, all sets, weights fitted (in sample)"), errors(&values, &all, total));
        held(format!("{name}, triples and quadruples, weights 1"), errors(&even, &more, total));
        held(
            format!("{name}, triples and quadruples, weights fitted to pairs alone"),
            errors(&from_pairs, &more, total),
        );
    }
    let mut rows = Vec::new();
    for set in sets.iter().filter(|set| set.families.iter().any(|family| family == STARVES)) {
        let said = said(&values, set, &which(set));
        for ((task, measured), model) in tasks(set).into_iter().zip(&set.progress).zip(said) {
            rows.push(FittedRow {
                label: format!("{task} in {}", set.label),
                measured: *measured,
                model,
                held_out: false,
            });
        }
    }
    Part {
        title: "MPS with one weight for each kind of task, shown and not taken".to_owned(),
        unit: "own progress; sets with matmul shown".to_owned(),
        parameters: parameters.collect(),
        taken: false,
        in_sample: errors(&values, &all, false),
        held_out,
        rows,
        notes: vec![
            "Squared logarithms of own progress with a ridge on the weights' logarithms, capacities as above; the \
             interval is the range over resamples of sets. Weights belong to tasks and to the model that learns them, not \
             to the GPU's file"
                .to_owned(),
        ],
    }
}

/// Progress under time-slicing if the engine time of some tasks does not overlap with their host time: each
/// such task meets the others in turns, `1/p = 1 - g + g/a` with `a` the part of the engine it gets while
/// it wants it, and the others divide what is left. For comparison with the law only.
fn in_turns(model: &GpuType, tenants: &[Tenant], waits: &[bool]) -> Vec<f64> {
    let law = Law::from(model);
    let capacity = law.capacities.time_slice_gract;
    let demands: Vec<f64> = tenants.iter().map(|tenant| tenant.demand.gract.clamp(1e-3, 1.0)).collect();
    let mut progress = vec![1.0; tenants.len()];
    // Share of the time in which each wants the engine.
    let mut busy = demands.clone();
    for _ in 0..100 {
        let everyone: f64 = busy.iter().sum();
        let mut left = capacity;
        let mut others = Vec::new();
        for (at, &g) in demands.iter().enumerate() {
            if waits[at] {
                // Against one that always wants it: half of what the engine has for several.
                let longer = 1.0 + (everyone - busy[at]) * (2.0 / capacity - 1.0);
                let p = 1.0 / (1.0 - g + g * longer);
                progress[at] = f64::midpoint(progress[at], p);
                busy[at] = g * longer * progress[at];
                left -= g * progress[at];
            } else {
                others.push(Tenant::new(Demand { gract: g, ..Demand::default() }));
            }
        }
        let capacities = Capacities { time_slice_gract: left.max(0.05), ..law.capacities };
        // One alone shares with those that wait.
        if others.len() == 1 && others.len() < tenants.len() {
            others.push(Tenant::new(Demand { gract: 1e-6, ..Demand::default() }));
        }
        let mut served = share(Mode::TimeSlice, &others, &capacities).progress.into_iter();
        for (at, &g) in demands.iter().enumerate().filter(|(at, _)| !waits[*at]) {
            let p = served.next().unwrap_or(1.0);
            progress[at] = p;
            busy[at] = if p < 1.0 { 1.0 } else { g };
        }
    }
    let mut used = Demand::default();
    for (tenant, p) in tenants.iter().zip(&progress) {
        used.gract += tenant.demand.gract * p / capacity;
        used.sm += tenant.demand.sm * p;
        used.dram += tenant.demand.dram * p;
        used.tensor += tenant.demand.tensor * p;
    }
    let clock = law.power.clock(&used);
    progress.iter().zip(tenants).map(|(p, tenant)| p / law.power.longer(&tenant.demand, clock)).collect()
}

/// Errors of [`in_turns`] if these tasks wait, by set and tenant.
fn if_waiting(model: &GpuType, sets: &[Together], waits: &dyn Fn(&Together, usize) -> bool) -> String {
    let model = light(model);
    let (mut total, mut each) = (Vec::new(), Vec::new());
    for set in sets {
        let waits: Vec<bool> = (0..set.tenants.len()).map(|at| waits(set, at)).collect();
        let said = in_turns(&model, &set.tenants, &waits);
        total.push(said.iter().sum::<f64>() / set.total() - 1.0);
        each.extend(said.iter().zip(&set.progress).map(|(p, measured)| p / measured - 1.0));
    }
    let (total, each) = (Errors::of(&total), Errors::of(&each));
    format!(
        "{:.1} % (bias {:+.1} %) of totals and {:.1} % of own progress",
        total.mape * 100.0,
        total.bias * 100.0,
        each.mape * 100.0
    )
}

fn is_light(set: &Together, at: usize) -> bool {
    set.tenants.get(at).is_some_and(|tenant| tenant.demand.gract < SATURATED)
}

/// What [`in_turns`] would make of the sets under time-slicing that have a light task.
pub(super) fn light_waits(model: &GpuType, sets: &[Together]) -> String {
    let sets: Vec<Together> = sets.iter().filter(|set| !saturated(set)).cloned().collect();
    format!(
        "Sets with a light task (GRACT alone below {SATURATED}), {}: by the law off by {}; if light tasks wait for their \
         own kernels, by {}. Nothing is fitted to that",
        sets.len(),
        if_waiting(model, &sets, &|_, _| false),
        if_waiting(model, &sets, &is_light),
    )
}

/// Whether time-slicing is better described where light tasks wait for their own kernels.
fn waiting_note(model: &GpuType, sets: &[Together]) -> String {
    format!(
        "Light tasks are served first by this law. Those that wait for their own kernels or copies (vit_infer, loader, \
         bursty) are slowed all the same, the one that queues ahead (small_cnn) is not. If no task waits, as in the \
         law: {}; if every light one does: {}; if all of them but small_cnn do: {}. Solo counters do not tell which \
         tasks wait, so the law stays",
        if_waiting(model, sets, &|_, _| false),
        if_waiting(model, sets, &is_light),
        if_waiting(model, sets, &|set, at| is_light(set, at) && tasks(set).get(at) != Some(&"small_cnn")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_turns_is_the_law_where_none_waits_and_slower_where_one_does() {
        let model = GpuType::find("H200").unwrap();
        let tenant = |gract: f64| Tenant::new(Demand { gract, sm: 0.1, ..Demand::default() });
        let pair = [tenant(0.4), tenant(1.0)];
        let law = progress(&model, Mode::TimeSlice, &pair);
        let none = in_turns(&model, &pair, &[false, false]);
        assert!(law.iter().zip(&none).all(|(a, b)| (a - b).abs() < 1e-6), "{law:?} {none:?}");
        let c = model.capacities.time_slice_gract;
        let one = in_turns(&model, &pair, &[true, false]);
        assert!(
            (one[0] - 1.0 / (0.6 + 0.4 * 2.0 / c)).abs() < 1e-5 && (one[1] - (c - 0.4 * one[0])).abs() < 1e-5
        );
    }
}
