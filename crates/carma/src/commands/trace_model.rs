//! `carma trace-model`: a model from a function of the user's, traced without a GPU.

use super::Context;
use super::estimate::{self, platform};
use super::signals::INTERRUPTED;
use super::tracer::{self, Launch, Shows, option};
use crate::cli::memory::TraceModelArgs;
use carma_cli::failure::{Failure, Outcome};
use carma_cli::{Screen, print, print_json};
use carma_memory::estimators::Answer;
use carma_memory::{Mode, Optimizer, Parallel};
use std::ffi::OsString;

/// Runs the verb.
pub(crate) fn run(context: &Context, args: &TraceModelArgs) -> Outcome {
    let platform = platform(context, &args.platform)?;
    let task = args.task.task(1);
    for (given, what) in [
        (args.task.lora.is_some(), "--lora"),
        (args.task.gradient_checkpointing, "--gradient-checkpointing"),
        (args.task.attention.is_some(), "--attention"),
        (task.parallel != Parallel::None, "--parallel"),
    ] {
        if given {
            return Err(Failure::usage(format!("{what} is decided by the function that makes the model")));
        }
    }
    if task.optimizer == Optimizer::Adam8bit {
        return Err(Failure::usage("--optimizer adam8bit cannot be traced: its kernels need a GPU")
            .hint("--optimizer adam takes more, so what it takes is a bound"));
    }
    if !args.entry.contains(':') {
        return Err(Failure::usage(format!("--entry {}: expected MODULE:FUNCTION", args.entry)));
    }
    let mut words: Vec<OsString> = vec!["entry".into()];
    let numbers = [
        ("batch-size", args.task.batch_size),
        ("seq-len", args.task.seq_len),
        ("samples", args.task.samples),
    ];
    words.extend(numbers.iter().filter_map(|(name, n)| Some(option(name, n.as_ref()?.to_string()))));
    if !args.shape.is_empty() {
        let shape: Vec<String> = args.shape.iter().map(ToString::to_string).collect();
        words.push(option("shape", shape.join(",")));
    }
    words.push(option("optimizer", word(task.optimizer)));
    words.push(option("precision", word(task.precision)));
    words.push(option("mode", if task.mode == Mode::Infer { "infer" } else { "train" }));
    if task.channels_last {
        words.push("--channels-last".into());
    }
    words.extend(["--".into(), args.entry.clone().into()]);
    let launch = Launch { python: "python3".into(), words, ..Launch::default() };
    let traced = tracer::trace(&launch, &args.tracer, &platform, Shows::Output)?;
    let estimate = traced.replay.estimate(&task, &platform).map_err(|e| Failure::new(e.to_string()))?;
    let answers = [Answer { estimator: "allocator", result: Ok(estimate) }];
    if args.json {
        let mut value = estimate::json(&answers, &task, &platform);
        value["trace"] = estimate::of_trace(&traced.replay);
        print_json(&value)?;
    } else {
        print(&estimate::render(&answers, &platform, &Screen::stdout()))?;
    }
    Ok(if traced.interrupted { INTERRUPTED } else { 0 })
}

/// A choice in the words of the command line, which are also the tracer's.
fn word(choice: impl serde::Serialize) -> String {
    serde_json::to_value(choice).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}
