//! `carma bench`: what tasks do to each other on one GPU, and what policies make of many, measured.

mod collocation;
mod render;
mod trace;

use super::{signals, unmeasured};
use crate::cli::bench::{BenchVerb, InterferenceArgs};
use carma_cli::failure::{Failure, GENERAL, Outcome};
use carma_cli::{Screen, clean, print, print_json};
use carma_files::Folder;
use carma_measure::interference::{HELPER, Measurement, Options};
use std::path::Path;
use std::sync::atomic::Ordering;
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
    let stopped = signals::stopped()?;
    let folder = Folder::with(&[HELPER]).map_err(|e| Failure::new(e.to_string()))?;
    let measured = measurement.run(&folder.0, &stopped, &say).map_err(unmeasured)?;
    if args.json {
        let value = serde_json::to_value(&measured).map_err(|e| Failure::new(e.to_string()))?;
        print_json(&value)?;
    } else {
        print(&render::render(&measured, &args.output, &Screen::stdout()))?;
    }
    Ok(if stopped.load(Ordering::Relaxed) { GENERAL } else { 0 })
}

/// Refuses a file where results are to go, of which there are several.
fn no_file(output: &Path) -> Result<(), Failure> {
    if output.is_file() {
        let text = format!("--output {} is a file; name a folder", output.display());
        return Err(Failure::usage(text));
    }
    Ok(())
}

/// How far it is. Last words of tasks are among it.
fn say(line: &str) {
    eprintln!("{}", clean(line));
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
