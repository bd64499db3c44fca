//! `carma simulate`: a trace under one or more policies.

use super::predict::kace_model;
use super::report::{now, write_page};
use super::trace::{catalogue_of, keep_apart};
use crate::cli::SimulateArgs;
use carma_cli::failure::{Failure, Outcome};
use carma_cli::{Column, Screen, blocks, clean, print, print_json, shell_line, spared_line, wrap};
use carma_core::model::SharingMode;
use carma_core::policy::{Order, Policy, RecoveryMethod, presets};
use carma_hardware::GpuTypes;
use carma_sim::event::baselines::{self, Baseline};
use carma_sim::event::knowledge::{Knowledge, RunTimesKnown, TasksKnown, without_forecast};
use carma_sim::event::outcome::RunResult;
use carma_sim::event::sweep::{self, SetError};
use carma_sim::event::{Cluster, Setup, simulate_all};
use carma_sim::gpu::add_file;
use carma_sim::report::html::{Origin, PageInput, page};
use carma_sim::report::json::{Detail, Normalised, PolicyRow, SimulateReply};
use carma_sim::report::seeds::{self, Interval};
use carma_sim::trace::{TOLD_AS_MEASURED, Trace, TraceError, WorkJob, Workload, read};
use indicatif::{ProgressBar, ProgressStyle};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::num::NonZero;
use std::path::Path;
use std::sync::Arc;

/// How many names of tasks a note lists.
const LISTED: usize = 5;

/// Runs the verb.
pub(crate) fn run(args: &SimulateArgs) -> Outcome {
    if let Some(page) = &args.html {
        let read = args.catalogue.iter().chain(&args.gpu_model).chain(&args.kace_model).chain([&args.trace]);
        keep_apart("--html", page, read.map(|file| file.as_path()))?;
    }
    let built_in = GpuTypes::built_in();
    let mut types = built_in.clone();
    let mut replaced: BTreeMap<Arc<str>, &Path> = BTreeMap::new();
    for file in &args.gpu_model {
        let name = add_file(&mut types, file).map_err(|e| Failure::usage(e.to_string()))?;
        if built_in.iter().any(|gpu| gpu.name.eq_ignore_ascii_case(&name)) {
            replaced.insert(name, file.as_path());
        }
    }
    let cluster = Cluster::parse(&args.cluster, &types)
        .map_err(|e| Failure::usage(e.to_string()).hint(format!("GPU types: {}", types.names())))?;
    let shown = described(&cluster, &replaced);
    let setups = setups(args)?;
    let (trace, workload) = load(args)?;
    let groups = play(args, &workload, &cluster, &setups)?;
    let rows = rows(&groups, args.detail);
    let mut notes = workload.notes.clone();
    if args.undeclared {
        notes.retain(|note| !note.starts_with(TOLD_AS_MEASURED));
    }
    notes.extend(not_for_baselines(args, &setups));
    notes.extend(unforecast(&workload, &setups));
    notes.extend(remarks(&args.trace, &workload, &cluster, &groups));
    if let Some(file) = &args.html {
        let runs: Vec<RunResult> = groups.iter().filter_map(|runs| runs.first().cloned()).collect();
        if args.seeds > 1 {
            notes.push(format!("Of {} seeds, this page shows the first.", args.seeds));
        }
        let text = page(&PageInput {
            origin: Origin::Simulated,
            title: &format!("{} on {shown}", trace.name),
            trace: &trace.name,
            cluster: &shown,
            command: &command(),
            date: &now(),
            notes: &notes,
            runs: &runs,
            joules: &[],
        });
        write_page(file, &text)?;
    }
    let mut reply = SimulateReply::new(trace.name, shown, notes, &[], false);
    reply.command = Some(command());
    reply.rows = rows;
    if args.json {
        print_json(&serde_json::to_value(&reply).map_err(|e| Failure::new(e.to_string()))?)?;
    } else {
        print(&render(&reply, workload.jobs.len(), &Screen::stdout()))?;
    }
    Ok(0)
}

/// The cluster as written, and what of it is not as it usually is: types whose constants a file replaces.
fn described(cluster: &Cluster, replaced: &BTreeMap<Arc<str>, &Path>) -> String {
    let used = replaced.iter().filter(|(name, _)| cluster.has_type(name));
    let files: Vec<String> =
        used.map(|(name, file)| format!("{name}: constants of {}", file.display())).collect();
    match files[..] {
        [] => cluster.spec().to_owned(),
        _ => format!("{} ({})", cluster.spec(), files.join(", ")),
    }
}

/// What was typed.
fn command() -> String {
    let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    let mut words: Vec<String> = words.collect();
    if let Some(first) = words.first_mut() {
        *first = "carma".into();
    }
    shell_line(&words)
}

fn load(args: &SimulateArgs) -> Result<(Trace, Workload), Failure> {
    let bad = |e: TraceError| Failure::usage(e.to_string());
    let trace = read::trace_file(&args.trace, args.trace_name.as_deref()).map_err(bad)?;
    let catalogue = catalogue_of(&args.trace, args.catalogue.as_deref())?;
    let workload = Workload::resolve(&trace, catalogue.as_ref()).map_err(bad)?;
    Ok((trace, workload))
}

/// What decides: a preset of the core, or a policy that only the simulator can play.
enum Decider {
    Core(Policy),
    Baseline(Baseline),
}

fn decider(name: &str) -> Result<Decider, Failure> {
    if name.is_empty() {
        return Err(Failure::usage("--policy: a policy's name is empty (a comma too many?)"));
    }
    if let Some(policy) = presets::by_name(name) {
        return Ok(Decider::Core(policy));
    }
    if let Some(baseline) = baselines::baseline(name) {
        return Ok(Decider::Baseline(baseline));
    }
    Err(match baselines::not_task_level(name) {
        Some(error) => Failure::usage(error.to_string()),
        None => Failure::usage(format!("there is no policy `{name}`")).hint(format!(
            "policies of carma: {}; est-magm, est-lug and aegis-est take an estimator (est-magm:allocator). \
             For comparison: {}",
            presets::NAMES.join(", "),
            baselines::NAMES.join(", ")
        )),
    })
}

/// One entry for each row of the table: the runs that differ in the seed only.
fn setups(args: &SimulateArgs) -> Result<Vec<Vec<Setup>>, Failure> {
    let axes: Vec<sweep::Axis> = args
        .sweep
        .iter()
        .map(|text| sweep::Axis::parse(text))
        .collect::<Result<_, _>>()
        .map_err(Failure::usage)?;
    let points = sweep::grid(&axes).map_err(Failure::usage)?;
    let recovery = match args.recovery.as_deref() {
        Some("graded") => Some(RecoveryMethod::Graded),
        Some("exclusive") => Some(RecoveryMethod::Exclusive),
        _ => None,
    };
    let order = args.order.as_ref().map(|name| serde_json::from_value(name.as_str().into()));
    let order: Option<Order> = order.transpose().map_err(|e| Failure::usage(format!("--order: {e}")))?;
    let kace = args.kace_model.as_deref().map(kace_model).transpose()?.map(Arc::new);
    let knowledge = Knowledge {
        run_times: match args.run_times.as_str() {
            "true" => RunTimesKnown::True,
            "counted" => RunTimesKnown::Counted,
            _ => RunTimesKnown::Learned,
        },
        tasks: if args.undeclared { TasksKnown::Learned } else { TasksKnown::Catalogue },
        ..Knowledge::default()
    };
    let new = |policy: Policy| Setup {
        kace: kace.clone(),
        knowledge,
        ..Setup::new(policy, args.sharing, recovery, args.seed)
    };
    let mut groups = Vec::new();
    for name in &args.policy {
        let mut policy = match decider(name)? {
            Decider::Core(policy) => policy,
            Decider::Baseline(baseline) => {
                // It has none of the numbers that can be varied.
                groups.push(seeded(args, &Setup::for_baseline(baseline, args.sharing, args.seed)));
                continue;
            }
        };
        // A policy without neighbours has nothing to order by.
        let order = order.filter(|_| policy.order != Order::Exclusive);
        policy.order = order.unwrap_or(policy.order);
        // What does not apply to the first policy (exclusive has no gate) leaves it as one row.
        let (mut varied, mut lacks) = (false, false);
        for point in &points {
            let mut setup = new(policy.clone());
            if let (Some(_), Some(name)) = (order, &args.order) {
                let _ = write!(setup.label, " order={name}");
            }
            let mut applied = Ok(());
            for (key, value) in point {
                applied = applied.and_then(|()| sweep::set(&mut setup.options, key, *value));
                let _ = write!(setup.label, " {key}={value}");
            }
            match applied {
                Ok(()) => varied = true,
                Err(SetError::Lacks(_)) if policy.order == Order::Exclusive => {
                    lacks = true;
                    continue;
                }
                Err(why) => return Err(Failure::usage(why.to_string())),
            }
            groups.push(seeded(args, &setup));
        }
        if lacks && !varied {
            groups.push(seeded(args, &new(policy)));
        }
    }
    Ok(groups)
}

fn seeded(args: &SimulateArgs, setup: &Setup) -> Vec<Setup> {
    let seeds = (0..u64::from(args.seeds)).map(|i| args.seed.wrapping_add(i));
    let one =
        |(i, seed)| Setup { seed, record: i == 0 && (args.detail || args.html.is_some()), ..setup.clone() };
    seeds.enumerate().map(one).collect()
}

/// Makes all runs, with a progress bar on a terminal if it takes a while.
fn play(
    args: &SimulateArgs,
    workload: &Workload,
    cluster: &Cluster,
    groups: &[Vec<Setup>],
) -> Result<Vec<Vec<RunResult>>, Failure> {
    let setups: Vec<Setup> = groups.iter().flatten().cloned().collect();
    let threads = match args.threads {
        Some(n) => n as usize,
        None => std::thread::available_parallelism().map_or(1, NonZero::get),
    };
    let bar = ProgressBar::new(workload.jobs.len() as u64 * setups.len() as u64);
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} jobs simulated, {eta} left")
        .map_err(|e| Failure::new(e.to_string()))?;
    bar.set_style(style);
    let results = simulate_all(workload, cluster, &setups, threads, &|jobs| bar.inc(jobs));
    bar.finish_and_clear();
    let results = results.map_err(|e| Failure::usage(e.to_string()))?;
    let mut results = results.into_iter();
    Ok(groups.iter().map(|group| results.by_ref().take(group.len()).collect()).collect())
}

fn rows(groups: &[Vec<RunResult>], detail: bool) -> Vec<PolicyRow> {
    let mut rows: Vec<PolicyRow> = Vec::new();
    // What a sweep changed is in the label; nothing of it changes what a GPU for each job does.
    let is_exclusive = |run: &RunResult| run.policy.split(' ').next() == Some("exclusive");
    let exclusive = groups.iter().find(|runs| runs.first().is_some_and(is_exclusive));
    for runs in groups {
        let Some(mut row) = seeds::row(runs) else { continue };
        if let Some(exclusive) = exclusive {
            row = row.beside_exclusive(runs, exclusive);
        }
        row.detail = runs.first().filter(|_| detail).map(Detail::from);
        let base = rows.first().unwrap_or(&row);
        row.normalised = Normalised::of(&(&base.figures).into(), &(&row.figures).into());
        rows.push(row);
    }
    rows
}

/// Options that were given and change nothing of what a baseline does.
fn not_for_baselines(args: &SimulateArgs, groups: &[Vec<Setup>]) -> Option<String> {
    let given = [
        ("--order", args.order.is_some()),
        ("--recovery", args.recovery.is_some()),
        ("--undeclared", args.undeclared),
        ("--sweep", !args.sweep.is_empty()),
    ];
    let options: Vec<&str> = given.into_iter().filter_map(|(option, is)| is.then_some(option)).collect();
    let setups = groups.iter().filter_map(|setups| setups.first());
    let names: BTreeSet<&str> = setups.filter_map(|setup| Some(setup.baseline?.name())).collect();
    if options.is_empty() || names.is_empty() {
        return None;
    }
    let does = if options.len() == 1 { "does" } else { "do" };
    let names: Vec<&str> = names.into_iter().collect();
    Some(format!("{} {does} not apply to {}", options.join(", "), names.join(", ")))
}

/// Policies that are `exclusive` for some jobs, since no forecast of memory that they go by is there: whose, and of which jobs.
fn unforecast(workload: &Workload, groups: &[Vec<Setup>]) -> Vec<String> {
    let mut notes = BTreeMap::new();
    let shares = |setup: &&Setup| setup.baseline.is_none() && setup.options.sharing != SharingMode::Exclusive;
    // A sweep has the same for each of its points.
    for setup in groups.iter().filter_map(|setups| setups.first()).filter(shares) {
        let Some((source, lacking)) = without_forecast(&workload.jobs, &setup.options, setup.knowledge)
        else {
            continue;
        };
        let names: BTreeSet<&str> = lacking.iter().map(|job| &*job.task.name).collect();
        let named: Vec<&str> = names.into_iter().filter(|name| !name.is_empty()).collect();
        let listed = named.iter().take(LISTED).copied().collect::<Vec<_>>().join(", ");
        let tasks = match named.len() {
            0 => String::new(),
            1 => format!(" (task {listed})"),
            n => format!(" ({n} tasks: {listed}{})", if n > LISTED { ", ..." } else { "" }),
        };
        let name = &setup.options.policy.name;
        let text = format!(
            "{name}: there is no {} of GPU memory for {} of {} jobs{tasks}; it starts them on idle GPUs only, as exclusive does",
            source.describe(),
            lacking.len(),
            workload.jobs.len()
        );
        notes.insert(name.clone(), text);
    }
    notes.into_values().collect()
}

/// What a reader should know of jobs that did not complete: where they stand in the trace, and why.
fn remarks(file: &Path, workload: &Workload, cluster: &Cluster, groups: &[Vec<RunResult>]) -> Vec<String> {
    let mut remarks = Vec::new();
    let at = |job: &WorkJob| format!("{}:{}: job `{}`", file.display(), job.line, job.id);
    let others = |n: usize| if n > 1 { format!(" (and {} more)", n - 1) } else { String::new() };
    let larger: Vec<&WorkJob> =
        workload.jobs.iter().filter(|job| job.gpus as usize > cluster.len()).collect();
    if let Some(job) = larger.first() {
        remarks.push(format!(
            "{} asks for {} GPUs, and the cluster has {}: left out{}",
            at(job),
            job.gpus,
            cluster.len(),
            others(larger.len())
        ));
    }
    let left_of = |run: &RunResult| -> Vec<(&WorkJob, bool)> {
        let left = workload.jobs.iter().zip(&run.jobs).filter(|(_, outcome)| outcome.end.is_none());
        let fit = left.filter(|(job, _)| job.gpus as usize <= cluster.len());
        fit.map(|(job, outcome)| (job, outcome.ooms > 0)).collect()
    };
    for runs in groups {
        // Other seeds may lose jobs where the first does not.
        let lost = runs.iter().map(|run| (run, left_of(run))).find(|(_, left)| !left.is_empty());
        if let Some((run, left)) = lost
            && let Some((job, out_of_memory)) = left.first()
        {
            let why = if *out_of_memory {
                "ran out of memory on a GPU of its own, or used up its retries"
            } else {
                "never found GPUs that it was allowed to have"
            };
            let seed = if runs.len() > 1 { format!(" with seed {}", run.seed) } else { String::new() };
            let others = others(left.len());
            remarks.push(format!(
                "under {}{seed}: {} {why}: it did not complete{others}",
                run.policy,
                at(job)
            ));
        }
    }
    remarks
}

fn hours(seconds: Option<f64>) -> String {
    match seconds {
        None => "-".into(),
        Some(s) if s < 600.0 => format!("{s:.0} s"),
        Some(s) if s < 7_200.0 => format!("{:.1} min", s / 60.0),
        Some(s) if s < 864_000.0 => format!("{:.2} h", s / 3600.0),
        Some(s) => format!("{:.1} d", s / 86_400.0),
    }
}

fn energy(joules: Option<f64>) -> String {
    match joules {
        None => "-".into(),
        Some(j) if j < 1e4 => format!("{j:.0} J"),
        Some(j) if j < 1e7 => format!("{:.1} kJ", j / 1e3),
        Some(j) if j < 1e9 => format!("{:.2} MJ", j / 1e6),
        Some(j) if j < 1e12 => format!("{:.2} GJ", j / 1e9),
        Some(j) => format!("{:.2} TJ", j / 1e12),
    }
}

fn against(ratio: Option<f64>) -> String {
    // What rounds to nothing is neither more nor less.
    let percent =
        ratio.map(|ratio| (ratio - 1.0) * 100.0).map(|pct| if pct.abs() < 0.05 { 0.0 } else { pct });
    percent.map_or_else(|| "-".into(), |percent| format!("{percent:+.1} %"))
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".into(), |v| format!("{v:.digits$}"))
}

/// A column of the table: title, cell, and whether it compares with the first row, which a single row
/// need not.
type Figure = (&'static str, fn(&PolicyRow) -> String, bool);

const FIGURES: [Figure; 18] = [
    ("MAKESPAN", |row| hours(row.figures.makespan_s), false),
    ("VS FIRST", |row| against(row.normalised.makespan), true),
    ("WAIT", |row| hours(row.figures.wait_mean_s), false),
    (WAIT_MAX, |row| hours(row.figures.wait_max_s), false),
    ("JCT", |row| hours(row.figures.jct_mean_s), false),
    ("VS FIRST", |row| against(row.normalised.jct_mean), true),
    ("JCT P95", |row| hours(row.figures.jct_p95_s), false),
    ("RUN", |row| hours(row.figures.exec_mean_s), false),
    ("SLOWDOWN", |row| number(row.figures.slowdown_mean, 2), false),
    ("OOM", oom, false),
    (EVICTED, evicted, false),
    ("ENERGY", |row| energy(row.figures.energy_j), false),
    ("VS FIRST", |row| against(row.normalised.energy), true),
    ("SMACT", |row| number(row.figures.smact, 3), false),
    (
        "MEMORY",
        // Nothing at all is taken where the trace says of no job what it takes.
        |row| {
            let known = row.figures.memory_mib.filter(|mib| *mib > 0.0);
            known.map_or_else(|| "-".into(), |mib| format!("{:.1} GiB", mib / 1024.0))
        },
        false,
    ),
    ("JOBS/GPU", |row| number(row.figures.jobs_per_gpu, 2), false),
    ("FAIRNESS", |row| number(row.figures.fairness_slowdown, 2), false),
    ("LATER", later, true),
];

/// The longest wait of a job. It goes first where a screen is too narrow: a table more is worth less.
const WAIT_MAX: &str = "WAIT MAX";
/// Attempts that were ended for slowing a neighbour down. Most tables have none: it is left out there.
const EVICTED: &str = "EVICTED";

const LEGEND: &str = "WAIT, JCT (job completion time), RUN (time on GPUs, all attempts) and SLOWDOWN (against running alone) are means over jobs; WAIT MAX is the longest wait; SMACT and MEMORY over all GPUs and the makespan; FAIRNESS is Jain's index over users of JCT / time alone.";
const LEGEND_OF_EVICTED: &str = "EVICTED counts attempts that were ended for slowing another job down beyond its limit or the policy's floor: their time is in RUN, and not in SLOWDOWN.";
const LEGEND_OF_SEVERAL: &str =
    "LATER is the most by which a job first started later than under exclusive, over exclusive's makespan.";

fn later(row: &PolicyRow) -> String {
    row.start_behind_exclusive_max_pct.map_or_else(|| "-".into(), |pct| format!("{pct:.1} %"))
}

fn oom(row: &PolicyRow) -> String {
    counted(row.figures.oom, row.over_seeds.as_ref().map(|over| over.oom))
}

fn evicted(row: &PolicyRow) -> String {
    counted(row.figures.evictions, row.over_seeds.as_ref().map(|over| over.evictions))
}

/// A number of attempts, or, of several seeds, their mean.
fn counted(attempts: u64, over_seeds: Option<Interval>) -> String {
    over_seeds.map_or_else(|| attempts.to_string(), |over| format!("{:.1} ± {:.1}", over.mean, over.ci95))
}

fn any_evicted(rows: &[PolicyRow]) -> bool {
    let over_seeds = |row: &PolicyRow| row.over_seeds.as_ref().is_some_and(|over| over.evictions.most > 0.0);
    rows.iter().any(|row| row.figures.evictions > 0 || over_seeds(row))
}

/// The figures side by side, or, on a narrow screen, in tables one above the other; the longest wait where that takes no table of its own.
fn table(rows: &[PolicyRow], screen: &Screen) -> String {
    let [all, fewer] = [true, false].map(|longest_wait| table_with(rows, longest_wait, screen));
    if all.lines().count() <= fewer.lines().count() {
        return all;
    }
    fewer + &spared_line(&[WAIT_MAX]).map_or_else(String::new, |line| format!("{line}\n"))
}

fn table_with(rows: &[PolicyRow], longest_wait: bool, screen: &Screen) -> String {
    let all = FIGURES.iter().filter(|(title, ..)| {
        (*title != EVICTED || any_evicted(rows)) && (*title != WAIT_MAX || longest_wait)
    });
    let figures: Vec<&Figure> = all.filter(|(.., compares)| rows.len() > 1 || !compares).collect();
    let titles = figures.iter().map(|(title, ..)| Column::Right(title));
    let columns: Vec<Column> = std::iter::once(Column::Left("POLICY")).chain(titles).collect();
    let cells = |row: &PolicyRow| {
        std::iter::once(row.policy.clone()).chain(figures.iter().map(|(_, cell, _)| cell(row))).collect()
    };
    blocks(&columns, &rows.iter().map(cells).collect::<Vec<_>>(), screen)
}

/// How many jobs the figures are of.
fn jobs_of(rows: &[PolicyRow], jobs: usize) -> String {
    let completed = || rows.iter().map(|row| row.figures.completed);
    match (completed().min(), completed().max()) {
        (Some(least), Some(most)) if least != most => format!("{least} to {most} of {jobs} jobs"),
        (Some(all), _) if all != jobs as u64 => format!("{all} of {jobs} jobs"),
        _ if jobs == 1 => "1 job".to_owned(),
        _ => format!("{jobs} jobs"),
    }
}

fn render(reply: &SimulateReply, jobs: usize, screen: &Screen) -> String {
    let mut text = String::new();
    let sharing = match reply.rows.first().map(|row| row.sharing.as_str()) {
        Some("mps") => "MPS",
        Some(mode) => mode,
        None => "",
    };
    let seeds = reply.rows.first().map_or(1, |row| row.seeds);
    let seed = reply.rows.first().map_or(1, |row| row.seed);
    let seeds =
        if seeds > 1 { format!("means of {seeds} seeds from {seed}") } else { format!("seed {seed}") };
    let heading = format!(
        "{}: {} on {}, {sharing}, {seeds}. Simulated: a model, not a measurement.",
        clean(&reply.trace),
        jobs_of(&reply.rows, jobs),
        clean(&reply.cluster)
    );
    for line in wrap(&heading, screen, 0) {
        let _ = writeln!(text, "{line}");
    }
    text.push('\n');
    text.push_str(&table(&reply.rows, screen));
    text.push('\n');
    // With one policy there is nothing that others would be compared with.
    let several = reply.rows.len() > 1;
    let evicted = any_evicted(&reply.rows).then_some(LEGEND_OF_EVICTED);
    let parts = [Some(LEGEND), evicted, several.then_some(LEGEND_OF_SEVERAL)];
    let legend: Vec<&str> = parts.into_iter().flatten().collect();
    for line in wrap(&legend.join(" "), screen, 0) {
        let _ = writeln!(text, "{line}");
    }
    for note in &reply.notes {
        for (i, line) in wrap(&clean(&format!("note: {note}")), screen, 6).into_iter().enumerate() {
            let _ = writeln!(text, "{}{line}", if i == 0 { "" } else { "      " });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use carma_core::units::Millis;
    use carma_sim::event::simulate;
    use carma_sim::trace::CatalogueTask;

    #[test]
    fn the_heading_says_of_how_many_jobs_the_figures_are() {
        let row = |completed: u64| -> PolicyRow {
            let row = serde_json::json!({"policy": "p", "sharing": "mps", "seed": 1, "completed": completed});
            serde_json::from_value(row).unwrap()
        };
        let said = |completed: &[u64]| {
            let rows: Vec<PolicyRow> = completed.iter().copied().map(row).collect();
            jobs_of(&rows, 80)
        };
        assert_eq!(said(&[80, 80]), "80 jobs");
        assert_eq!(said(&[68, 68]), "68 of 80 jobs");
        assert_eq!(said(&[68, 80]), "68 to 80 of 80 jobs");
        assert_eq!(said(&[]), "80 jobs");
    }

    #[test]
    fn the_longest_wait_is_shown_where_it_takes_no_table_of_its_own() {
        let row = |policy: &str| -> PolicyRow {
            let row = serde_json::json!({"policy": policy, "sharing": "mps", "seed": 1, "completed": 1, "wait_max_s": 50.0});
            serde_json::from_value(row).unwrap()
        };
        let rows = [row("exclusive"), row("adaptive")];
        let said = "Not shown, as this screen is narrow: WAIT MAX.\n";
        assert!(table(&rows, &Screen::of_width(None)).contains("WAIT MAX"));
        let mut dropped = 0;
        for width in 60..200 {
            let screen = Screen::of_width(Some(width));
            let (shown, fewer) = (table(&rows, &screen), table_with(&rows, false, &screen));
            if let Some(rest) = shown.strip_suffix(said) {
                assert_eq!(rest, fewer, "{width}");
                dropped += 1;
            } else {
                assert!(shown.contains("  50 s"), "{width}: {shown}");
                assert_eq!(shown.lines().count(), fewer.lines().count(), "{width}");
            }
        }
        assert!(dropped > 0 && dropped < 70, "{dropped}");
    }

    #[test]
    fn small_figures_are_no_zeros() {
        let shown = [12.0, 12_345.0, 78.99e6, 2.5e9].map(|joules| energy(Some(joules)));
        assert_eq!(shown, ["12 J", "12.3 kJ", "78.99 MJ", "2.50 GJ"]);
        assert_eq!([0.9999, 1.0, 0.99].map(|r| against(Some(r))), ["+0.0 %", "+0.0 %", "-1.0 %"]);
    }

    #[test]
    fn a_job_that_only_another_seed_than_the_first_lost_is_noted() {
        let job = WorkJob {
            line: 5,
            id: "x".into(),
            arrival: Millis::ZERO,
            duration: Millis::secs(10),
            gpus: 1,
            user: 0,
            threads: None,
            task: Arc::new(CatalogueTask::default()),
        };
        let workload =
            Workload { name: "t".into(), users: vec!["-".into()], jobs: vec![job], notes: Vec::new() };
        let cluster = Cluster::parse("1xH200", &GpuTypes::built_in()).unwrap();
        let policy = presets::by_name("exclusive").unwrap();
        let run = |seed| {
            let setup = Setup::new(policy.clone(), SharingMode::Mps, None, seed);
            simulate(&workload, &cluster, &setup, &|_| ())
        };
        let mut runs = vec![run(1), run(2), run(3)];
        let noted = |runs: &[RunResult]| remarks(Path::new("t.csv"), &workload, &cluster, &[runs.to_vec()]);
        assert!(noted(&runs).is_empty());
        (runs[1].jobs[0].end, runs[1].jobs[0].ooms) = (None, 2);
        assert!(
            noted(&runs)[0].starts_with("under exclusive with seed 2: t.csv:5: job `x` ran out of memory")
        );
        // Where there is one seed, it is in the heading.
        assert!(noted(&runs[1..2])[0].starts_with("under exclusive: t.csv:5: job `x` ran out of memory"));
    }

    #[test]
    fn names_from_a_trace_do_not_reach_the_terminal_as_they_are() {
        let notes = vec!["t.csv:2: job `x\x1b]52;c;aGk=\x07` never found GPUs".to_owned()];
        let reply = SimulateReply::new("t\x1b[2J", "1xH200", notes, &[], false);
        let text = render(&reply, 1, &Screen::of_width(Some(80)));
        assert!(!text.contains(['\x1b', '\x07']), "{text:?}");
        assert!(text.contains("t\\u{1b}[2J: 1 job on 1xH200"), "{text:?}");
    }
}
