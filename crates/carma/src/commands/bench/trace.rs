//! `carma bench trace`: what policies make of a trace of tasks, measured.

mod page;
mod render;

use super::{no_file, unmeasured};
use crate::cli::bench::TraceArgs;
use crate::commands::{signals, virtual_task};
use carma_cli::failure::{Failure, Outcome};
use carma_cli::{Screen, print, print_json};
use carma_core::units::Millis;
use carma_files::{Folder, replace};
use carma_measure::trace::{Bench, Options, Play, Summary, Wanted, bundled, discard, merge};
use carma_sim::trace::read;
use carma_sim::trace::synthesize::{Arrivals, times};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What is played where no policy is named.
const POLICIES: [&str; 4] = ["exclusive", "or-magm", "adaptive", "adaptive+history"];
/// Jobs, and the mean time between two, where nothing else is said.
const JOBS: u32 = 48;
const MEAN_GAP: Millis = Millis::secs(2);

/// Runs the verb.
pub(super) fn run(args: &TraceArgs) -> Outcome {
    no_file(&args.output)?;
    if !args.merge.is_empty() {
        let plays = merge(&args.merge).map_err(unmeasured)?;
        finish(args, &plays, &[])?;
        return Ok(0);
    }
    let is_new = !args.output.exists();
    played(args).inspect_err(|_| {
        if is_new {
            discard(&args.output);
        }
    })
}

fn played(args: &TraceArgs) -> Outcome {
    let say = |line: &str| eprintln!("{line}");
    let bench = Bench::plan(options(args)?, &say).map_err(unmeasured)?;
    let stopped = signals::stopped()?;
    let sockets = Folder::with(&[]).map_err(|e| Failure::new(e.to_string()))?;
    let outcome = bench.run(&sockets.0, &stopped, &say).map_err(unmeasured)?;
    finish(args, &outcome.plays, &outcome.left)?;
    if outcome.plays.iter().all(|play| play.cut.is_some()) {
        return Err(Failure::new(format!("no play was over: {}", outcome.left.join("; "))));
    }
    all_completed(&outcome.plays, &args.add)
}

/// Whether all jobs completed but for those that are meant to fail.
fn all_completed(plays: &[Play], meant_to_fail: &[String]) -> Outcome {
    let jobs = plays.iter().filter(|play| play.cut.is_none()).flat_map(|play| &play.jobs);
    let mut failed: BTreeMap<&str, usize> = BTreeMap::new();
    for job in jobs.filter(|job| job.state != "COMPLETED" && !meant_to_fail.contains(&job.kind)) {
        *failed.entry(&job.kind).or_default() += 1;
    }
    if failed.is_empty() {
        return Ok(0);
    }
    let kinds: Vec<String> = failed.iter().map(|(kind, jobs)| format!("{jobs} of {kind}")).collect();
    let all: usize = failed.values().sum();
    let jobs = if all == 1 { "job" } else { "jobs" };
    Err(Failure::new(format!("{all} {jobs} did not complete: {}", kinds.join(", ")))
        .hint("`failed` in summary.json says in which play and why; what they printed is in state/NAME/logs"))
}

/// Prints the table and writes the rows of jobs and the page.
fn finish(args: &TraceArgs, plays: &[Play], left: &[String]) -> Result<(), Failure> {
    let Some(summary) = Summary::of(plays) else {
        return Err(Failure::new(format!("nothing was played: {}", left.join("; "))));
    };
    let written = |path: &Path, bytes: &[u8]| {
        replace(path, bytes).map_err(|e| Failure::new(format!("cannot write {}: {e}", path.display())))
    };
    std::fs::create_dir_all(&args.output)
        .map_err(|e| Failure::new(format!("--output {}: {e}", args.output.display())))?;
    let value = serde_json::to_value(&summary).map_err(|e| Failure::new(e.to_string()))?;
    let text = serde_json::to_vec_pretty(&value).map_err(|e| Failure::new(e.to_string()))?;
    written(&args.output.join("summary.json"), &text)?;
    let rows = render::rows(plays).map_err(|e| Failure::new(e.to_string()))?;
    written(&args.output.join("jobs.csv"), &rows)?;
    written(&args.output.join("index.html"), page::page(&summary, plays).as_bytes())?;
    if args.json {
        return print_json(&value);
    }
    Ok(print(&render::render(&summary, left, &args.output, &Screen::stdout()))?)
}

fn options(args: &TraceArgs) -> Result<Options, Failure> {
    let carma =
        std::env::current_exe().map_err(|e| Failure::new(format!("cannot find this program: {e}")))?;
    let tasks = match &args.tasks {
        Some(tasks) => tasks.clone(),
        None => bundled(&args.output).map_err(unmeasured)?,
    };
    let mut policies = args.policy.clone();
    if policies.is_empty() {
        let known = POLICIES.map(str::parse::<Wanted>);
        policies = known.into_iter().collect::<Result<_, _>>().map_err(Failure::new)?;
    }
    Ok(Options {
        carma,
        check_virtual: virtual_task::check,
        tasks,
        only: args.only.clone(),
        add: args.add.clone(),
        limits: args.limit.clone(),
        policies,
        repeats: args.repeat,
        arrivals: arrivals(args)?,
        seed: args.seed,
        work: args.work,
        sharing: args.sharing,
        config: args.config.clone(),
        kill_after: args.kill_daemon,
        output: args.output.clone(),
        budget: args.budget.map(|budget| Duration::from_millis(budget.0)),
        longest_s: args.longest.as_secs_f64(),
        gpus: args.gpus.clone(),
        speed: args.speed,
    })
}

/// When jobs come, seconds, and which tasks where the trace says so.
fn arrivals(args: &TraceArgs) -> Result<Vec<(f64, Option<String>)>, Failure> {
    let seconds = Millis::as_secs_f64;
    if let Some(process) = Arrivals::parse(&args.arrivals) {
        if args.named {
            return Err(Failure::usage(format!("--named: the process {} names no tasks", args.arrivals)));
        }
        if args.trace_name.is_some() {
            let text = format!("--trace-name: the process {} is no file of traces", args.arrivals);
            return Err(Failure::usage(text).hint("name one with --arrivals FILE"));
        }
        let times = times(process, args.mean_gap.unwrap_or(MEAN_GAP), args.seed);
        return Ok(times.take(args.jobs.unwrap_or(JOBS) as usize).map(|at| (seconds(at), None)).collect());
    }
    let file = PathBuf::from(&args.arrivals);
    let mut trace = read::trace_file(&file, args.trace_name.as_deref()).map_err(|e| {
        Failure::usage(format!("--arrivals: {e}"))
            .hint("poisson, uniform, bursty, batch, or a file of arrivals")
    })?;
    trace.jobs.truncate(args.jobs.map_or(usize::MAX, |jobs| jobs as usize));
    let Some(first) = trace.jobs.first().map(|job| job.arrival) else {
        return Err(Failure::usage(format!("--arrivals {}: the trace has no jobs", file.display())));
    };
    let span = seconds(trace.jobs.last().map_or(first, |job| job.arrival)) - seconds(first);
    let gaps = (trace.jobs.len() - 1) as f64;
    let stretch = match args.mean_gap {
        Some(gap) if span > 0.0 => seconds(gap) * gaps / span,
        _ => 1.0,
    };
    let name = |task: &Option<std::sync::Arc<str>>| match task {
        Some(task) if args.named => Ok(Some(task.to_string())),
        None if args.named => Err(Failure::usage(format!("--named: {} names no tasks", file.display()))),
        _ => Ok(None),
    };
    trace
        .jobs
        .iter()
        .map(|job| Ok(((seconds(job.arrival) - seconds(first)) * stretch, name(&job.task)?)))
        .collect()
}
