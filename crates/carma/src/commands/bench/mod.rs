//! `carma bench interference`: what tasks do to each other on one GPU, measured.
//!
//! All tasks are started once, one process each, warmed up, and then wait. Any of them run together for a window
//! of a second or two from a common start, while the GPU is read; then they wait again. So a pair takes as long
//! as its window, not as long as two starts of a framework.

mod book;
mod count;
mod host;
mod machine;
mod plan;
mod processes;
mod processors;
mod render;
mod resident;
mod session;
mod stop;
mod tasks;
mod window;

use crate::cli::bench::{BenchVerb, InterferenceArgs};
use book::Book;
use carma_cli::failure::{Failure, GENERAL, Outcome};
use carma_cli::{Folder, Screen, print, print_json};
use carma_interference::share::Mode;
use machine::Gpu;
use plan::{Phase, Wanted, phases};
use processors::Processors;
use session::Stage;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tasks::{TaskFile, read_groups};
use window::Timing;

/// For Python: `import carma_bench`.
const HELPER: (&str, &str) = ("carma_bench.py", include_str!("carma_bench.py"));

/// Runs the verb.
pub(crate) fn run(verb: &BenchVerb) -> Outcome {
    match verb {
        BenchVerb::Interference(args) => interference(args),
    }
}

fn interference(args: &InterferenceArgs) -> Outcome {
    let began = Instant::now();
    let file = TaskFile::read(&args.tasks, &args.only)?;
    let phases = phases(&file.tasks, &wanted(args, &file)?);
    let most = phases.iter().flat_map(|phase| &phase.windows).map(|w| w.members.len()).max().unwrap_or(1);
    let divided = file.processors_each.map(|each| Processors::divided(each, most)).transpose();
    let processors = divided.map_err(|e| Failure::usage(format!("{}: {e}", args.tasks.display())))?;
    let stopped = watch_signals()?;
    let folder = Folder::with(&[HELPER])?;
    let which = args.gpu.clone().or_else(|| file.gpu.as_ref().map(ToString::to_string));
    let mut gpu = Gpu::open(args, which.as_deref(), &folder.0)?;
    warn_of_others(&mut gpu);
    let notes: Vec<_> = file.tasks.iter().map(tasks::Task::note).collect();
    let mut book = Book::open(&args.output, &gpu.machine, &notes)?;
    let logs = args.logs.clone().unwrap_or_else(|| folder.0.clone());
    std::fs::create_dir_all(&logs).map_err(|e| Failure::usage(format!("--logs {}: {e}", logs.display())))?;
    let mut stage = Stage {
        timing: Timing {
            settle: file.settle_s,
            window: args.window.unwrap_or(file.window_s),
            answer: file.answer_s,
        },
        gpu: &mut gpu,
        file: &file,
        processors: processors.as_ref(),
        deadline: args.budget.and_then(|seconds| began.checked_add(Duration::from_secs_f64(seconds))),
        stopped: &stopped,
        folder: &folder.0,
        logs: &logs,
        retry_failed: args.retry_failed,
        solo_rounds: usize::from(args.solo_rounds),
        seed: args.seed,
    };
    let mut outcome = Ok(());
    for phase in &phases {
        outcome = stage.measure(&mut book, phase);
        if outcome.is_err() {
            break;
        }
    }
    // What was measured before something failed is not lost.
    let left: usize = phases.iter().map(|phase: &Phase| stage.left(&book, phase)).sum();
    let measured = book.finish(left)?;
    outcome?;
    if args.json {
        let value = serde_json::to_value(&measured).map_err(|e| Failure::new(e.to_string()))?;
        print_json(&value)?;
    } else {
        print(&render::render(&measured, &args.output, &Screen::stdout()))?;
    }
    Ok(if stopped.load(Ordering::Relaxed) { GENERAL } else { 0 })
}

fn wanted(args: &InterferenceArgs, file: &TaskFile) -> Result<Wanted, Failure> {
    let groups = match &args.groups {
        Some(path) => read_groups(path, &file.tasks)?,
        None => Vec::new(),
    };
    let nothing = !args.solo
        && !args.pairs
        && args.triples + args.quads == 0
        && groups.is_empty()
        && args.threads.is_empty()
        && args.splits.is_empty();
    let mut sharing = if args.sharing.is_empty() { file.sharing.clone() } else { args.sharing.clone() };
    if sharing.is_empty() {
        sharing.push(Mode::TimeSlice);
    }
    sharing.dedup();
    Ok(Wanted {
        sharing,
        pairs: args.pairs || nothing,
        triples: args.triples,
        quads: args.quads,
        groups,
        threads: args.threads.clone(),
        splits: args.splits.clone(),
        split_pairs: args.split_pairs,
        repeat: args.repeat,
        seed: args.seed,
    })
}

/// Others on the GPU would be measured along.
fn warn_of_others(gpu: &mut Gpu) {
    let others: Vec<String> =
        gpu.read().and_then(|r| r.processes).unwrap_or_default().iter().map(|p| p.pid.to_string()).collect();
    if !others.is_empty() {
        eprintln!(
            "warning: processes {} use {} already; what they do is measured along",
            others.join(", "),
            gpu.info.name
        );
    }
}

/// Set by the first signal that asks us to end: the tasks must not be left behind.
fn watch_signals() -> Result<Arc<AtomicBool>, Failure> {
    use tokio::signal::unix::{SignalKind, signal};
    let stopped = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&stopped);
    let failed = |e: std::io::Error| Failure::new(format!("cannot watch for signals: {e}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let (ready, is_ready) = std::sync::mpsc::channel();
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            runtime.block_on(async {
                let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
                let [Ok(mut a), Ok(mut b), Ok(mut c)] = kinds.map(signal) else { return };
                let _ = ready.send(());
                tokio::select! { _ = a.recv() => {}, _ = b.recv() => {}, _ = c.recv() => {} }
                set.store(true, Ordering::Relaxed);
            });
        })
        .map_err(failed)?;
    is_ready.recv().map_err(|_| Failure::new("cannot watch for signals"))?;
    Ok(stopped)
}
