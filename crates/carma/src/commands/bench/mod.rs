//! `carma bench`: what tasks do to each other on one GPU, and what policies make of many, measured.

mod collocation;
mod render;
mod trace;

use super::unmeasured;
use crate::cli::bench::{BenchVerb, InterferenceArgs};
use carma_cli::failure::{Failure, GENERAL, Outcome};
use carma_cli::{Screen, print, print_json};
use carma_files::Folder;
use carma_measure::interference::{HELPER, Measurement, Options};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Runs the verb.
pub(crate) fn run(verb: &BenchVerb) -> Outcome {
    match verb {
        BenchVerb::Interference(args) => interference(args),
        BenchVerb::Collocation(args) => collocation::run(args),
        BenchVerb::Trace(args) => trace::run(args),
    }
}

fn interference(args: &InterferenceArgs) -> Outcome {
    let measurement = Measurement::plan(options(args)).map_err(unmeasured)?;
    let stopped = watch_signals()?;
    let folder = Folder::with(&[HELPER]).map_err(|e| Failure::new(e.to_string()))?;
    let measured = measurement.run(&folder.0, &stopped, &|line| eprintln!("{line}")).map_err(unmeasured)?;
    if args.json {
        let value = serde_json::to_value(&measured).map_err(|e| Failure::new(e.to_string()))?;
        print_json(&value)?;
    } else {
        print(&render::render(&measured, &args.output, &Screen::stdout()))?;
    }
    Ok(if stopped.load(Ordering::Relaxed) { GENERAL } else { 0 })
}

fn options(args: &InterferenceArgs) -> Options {
    Options {
        tasks: args.tasks.clone(),
        only: args.only.clone(),
        output: args.output.clone(),
        solo: args.solo,
        pairs: args.pairs,
        triples: args.triples,
        quads: args.quads,
        groups: args.groups.clone(),
        threads: args.threads.clone(),
        splits: args.splits.clone(),
        split_pairs: args.split_pairs,
        ladder: None,
        sharing: args.sharing.clone(),
        solo_rounds: usize::from(args.solo_rounds),
        repeat: args.repeat,
        seed: args.seed,
        window_s: args.window,
        budget: args.budget.map(Duration::from_secs_f64),
        retry_failed: args.retry_failed,
        logs: args.logs.clone(),
        gpus: args.gpus.clone(),
        gpu: args.gpu.clone(),
        speed: args.speed,
        mps_control: args.mps_control.clone(),
    }
}

/// Set by the first signal that asks us to end: the tasks must not be left behind.
pub(super) fn watch_signals() -> Result<Arc<AtomicBool>, Failure> {
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
