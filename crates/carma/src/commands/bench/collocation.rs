//! `carma bench collocation`: how much more work a GPU gets done when several trainings share it.

mod page;

use super::render::left;
use super::{no_file, say, unmeasured};
use crate::cli::bench::CollocationArgs;
use crate::commands::signals;
use carma_cli::failure::{Failure, GENERAL, Outcome};
use carma_cli::{Column, Screen, Table, clean, print, print_json};
use carma_files::{Folder, replace};
use carma_interference::measured::Measured;
use carma_interference::share::Mode;
use carma_measure::collocation::{Row, bundled, rows};
use carma_measure::interference::{HELPER, Ladder, Measurement, Options};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Trainings of the hyper-parameter search that the papers' authors show on their poster.
const SEARCH: u32 = 24;

/// Runs the verb.
pub(super) fn run(args: &CollocationArgs) -> Outcome {
    no_file(&args.output)?;
    without_streams(args)?;
    std::fs::create_dir_all(&args.output)
        .map_err(|e| Failure::usage(format!("--output {}: {e}", args.output.display())))?;
    let measurement = Measurement::plan(options(args)?).map_err(unmeasured)?;
    let stopped = signals::stopped()?;
    let folder = Folder::with(&[HELPER]).map_err(|e| Failure::new(e.to_string()))?;
    let measured = measurement.run(&folder.0, &stopped, &say).map_err(unmeasured)?;
    let rows = rows(&measured);
    let value = serde_json::to_value(&rows).map_err(|e| Failure::new(e.to_string()))?;
    let text = serde_json::to_vec_pretty(&value).map_err(|e| Failure::new(e.to_string()))?;
    for (name, bytes) in
        [("summary.json", &text[..]), ("index.html", page::page(&measured, &rows).as_bytes())]
    {
        let path = args.output.join(name);
        replace(&path, bytes).map_err(|e| Failure::new(format!("cannot write {}: {e}", path.display())))?;
    }
    if args.json {
        print_json(&value)?;
    } else {
        print(&render(&measured, &rows, &args.output, &Screen::stdout()))?;
    }
    Ok(if stopped.load(Ordering::Relaxed) { GENERAL } else { 0 })
}

fn is_virtual(args: &CollocationArgs) -> bool {
    args.gpus.starts_with("virtual:")
}

/// Says that streams cannot be measured where that is so; in a file of one's own they are tasks like others.
fn without_streams(args: &CollocationArgs) -> Result<(), Failure> {
    if !is_virtual(args) || args.tasks.is_some() || args.ways.iter().all(|way| way != "streams") {
        return Ok(());
    }
    let why = "virtual GPUs have no model of models that share a process";
    if args.ways.iter().all(|way| way == "streams") {
        return Err(Failure::usage(format!("streams cannot be measured: {why}"))
            .hint("name another of --ways, or measure on a real GPU"));
    }
    say(&format!("streams is left out: {why}"));
    Ok(())
}

fn options(args: &CollocationArgs) -> Result<Options, Failure> {
    let asked: Option<Vec<usize>> =
        args.counts.as_ref().map(|counts| counts.iter().map(|count| usize::from(*count)).collect());
    let most = asked.iter().flatten().copied().max();
    let counts = asked.unwrap_or_else(|| (2..=7).collect());
    let has = |way: &str| args.ways.iter().any(|wanted| wanted == way);
    let streams = if has("streams") { counts.clone() } else { Vec::new() };
    let this = std::env::current_exe().map_err(|e| Failure::new(format!("cannot find this program: {e}")))?;
    let carma = is_virtual(args).then_some(this);
    let (tasks, only) = match &args.tasks {
        Some(tasks) => (tasks.clone(), args.only.clone()),
        None => {
            let file = bundled(&args.output, &args.only, &streams, most, carma.as_deref());
            (file.map_err(unmeasured)?, Vec::new())
        }
    };
    let modes = [("time-slice", Mode::TimeSlice), ("mps", Mode::Mps)];
    let sharing = modes.into_iter().filter(|(way, _)| has(way)).map(|(_, mode)| mode).collect();
    Ok(Options {
        tasks,
        only,
        output: args.output.join("measured.json"),
        solo: true,
        pairs: false,
        triples: 0,
        quads: 0,
        groups: None,
        threads: Vec::new(),
        splits: Vec::new(),
        split_pairs: 0,
        ladder: Some(Ladder { counts, asked: args.counts.is_some(), sharing, threads: has("threads") }),
        sharing: Vec::new(),
        // Alone, and streams, which are a task alone: at the start and at the end at least.
        solo_rounds: usize::try_from(args.repeat.max(2)).unwrap_or(2),
        repeat: args.repeat,
        seed: 1,
        window_s: Some(args.window),
        budget: args.budget.map(|budget| Duration::from_millis(budget.0)),
        retry_failed: true,
        logs: Some(args.output.join("logs")),
        gpus: args.gpus.clone(),
        gpu: args.gpu.clone(),
        speed: args.speed,
        mps_control: args.mps_control.clone(),
    })
}

fn render(measured: &Measured, rows: &[Row], output: &Path, screen: &Screen) -> String {
    let mut text = format!("{}: {} windows\n", measured.machine.gpu, measured.combinations.len());
    if measured.machine.gpu.starts_with("Virtual") {
        text.push_str("Virtual GPUs are a model, not a measurement.\n");
    }
    let number =
        |value: Option<f64>, digits: usize| value.map_or_else(|| "-".into(), |v| format!("{v:.digits$}"));
    let columns = vec![
        Column::Left("TRAINING"),
        Column::Left("SHARED BY"),
        Column::Right("K"),
        Column::Right("SAMPLES/S"),
        Column::Right("GAIN"),
        Column::Right("EPOCH S"),
        Column::Right("W"),
        Column::Right("KJ/EPOCH"),
        Column::Right("SMACT%"),
        Column::Right("MIB"),
    ];
    let mut table = Table::new(columns, screen);
    for row in rows {
        table.row([
            row.family.clone(),
            row.way.clone(),
            row.count.to_string(),
            number(Some(row.per_s), 0),
            number(row.gain, 2),
            number(row.epoch_s, 0),
            number(row.power_w, 0),
            number(row.epoch_kj, 1),
            number(row.smact_pct, 0),
            number(row.memory_mib, 0),
        ]);
    }
    let _ = write!(text, "\n{}", table.render());
    text.push_str(
        "\nGAIN: samples a second of all, over one alone. EPOCH S, KJ/EPOCH: of each of them, from the rates of the windows.\n",
    );
    for line in best(rows).values() {
        let _ = writeln!(text, "{line}");
    }
    let failed = measured.combinations.iter().filter(|w| w.failed.is_some());
    for window in failed {
        let why: String = window.failed.as_deref().unwrap_or_default().chars().take(200).collect();
        let (name, why) = (clean(&window.members[0]), clean(&why));
        let _ = writeln!(text, "failed: {} x {name}, {}: {why}", window.k(), window.sharing);
    }
    let _ =
        writeln!(text, "\nPage: {}; windows: measured.json beside it", output.join("index.html").display());
    text.extend(left(measured));
    text
}

/// Of each training the way that gets the most done, and what a search over hyper-parameters gains by it.
fn best(rows: &[Row]) -> BTreeMap<&str, String> {
    let mut best: BTreeMap<&str, &Row> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.gain.is_some()) {
        let known = best.entry(&row.family).or_insert(row);
        if row.gain > known.gain {
            *known = row;
        }
    }
    let line = |row: &Row| {
        let gain = row.gain.unwrap_or(1.0);
        let hours = |k: usize, epoch_s: f64| f64::from(SEARCH) / k as f64 * epoch_s / 3600.0;
        let alone = rows.iter().find(|other| other.family == row.family && other.way == "alone");
        let search = alone.and_then(|alone| Some((hours(1, alone.epoch_s?), hours(row.count, row.epoch_s?))));
        let search = search.map_or_else(String::new, |(one, shared)| {
            format!("; {SEARCH} trainings of an epoch each take {shared:.2} h where one after the other takes {one:.2} h")
        });
        format!(
            "{}: the most by {} with {}, {gain:.2} times one alone{search}",
            row.family, row.way, row.count
        )
    };
    best.into_iter().map(|(family, row)| (family, line(row))).collect()
}
