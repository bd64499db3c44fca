//! `carma estimate`: how much GPU memory a task will need.

use super::signals::INTERRUPTED;
use super::spoken::Spoken;
use super::tracer::{self, Shows, Traced};
use super::{Context, dry_run, expect, submit};
use crate::cli::EstimateArgs;
use crate::cli::memory::{ModelArgs, PlatformArgs};
use crate::lab::LabNetworks;
use carma_api::Client;
use carma_api::wire::{GpusReply, MemoryReply};
use carma_cli::failure::{Failure, Outcome};
use carma_cli::{Column, Screen, Table, print, print_json};
use carma_files::MOST;
use carma_memory::activity::{Activity, Range};
use carma_memory::alloc::Settings;
use carma_memory::estimators::{self, Answer, Known};
use carma_memory::hf::Config;
use carma_memory::hf::safetensors::Weights;
use carma_memory::trace::Replay;
use carma_memory::{Error, Estimate, MiB, ModelTask, Platform, Precision, Tier};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Most that is read of an ONNX file: its format has no larger ones, and they may hold all weights of a model.
const MOST_ONNX: u64 = 2 << 30;

/// Runs the verb.
pub(crate) fn run(context: &Context, args: &EstimateArgs) -> Outcome {
    let mut known = read(&args.model)?;
    known.declared_mib = args.gpu_memory;
    known.faketensor_mib = args.faketensor_peak.map(|m| m.0 as f64);
    known.authors = args.gpumemnet_weights.clone().map(|weights| Arc::new(LabNetworks { weights }) as _);
    known.asked.batch = args.task.batch_size;
    // What was measured under FakeTensorMode is for the estimators of that name.
    let says_something =
        known.says_something() || known.declared_mib.is_some() || known.faketensor_mib.is_some();
    if args.command.is_empty() && !says_something {
        return Err(Failure::usage("nothing says what the model is").hint(
            "give --summary, --hf-config, --safetensors, --onnx or --trace, or the command after `--`, of which a dry run is made",
        ));
    }
    let platform = platform(context, &args.platform)?;
    let (task, traced) = if args.command.is_empty() {
        (args.task.task(args.gpus.unwrap_or(1)), None)
    } else {
        of_command(args, &mut known, &platform)?
    };
    let mut answers = estimators::run(&args.estimator, &known, &task, &platform)
        .map_err(|e| Failure::usage(e.to_string()))?;
    let stored = other_type(&known, args.task.precision);
    let one = known.asked.batch.is_none().then(|| "for a batch of 1: --batch-size was not said".to_owned());
    for Answer { estimator, result } in &mut answers {
        let Ok(estimate) = result else { continue };
        estimate.reasons.extend(stored.clone());
        // These do not go by the batch that was asked for.
        let measured = known.faketensor_mib.is_some() && estimator.starts_with("faketensor");
        if !measured && !matches!(estimate.tier, Tier::Trace | Tier::Share | Tier::Declared) {
            estimate.reasons.extend(one.clone());
        }
    }
    if let [Answer { result: Err(error), .. }] = &answers[..] {
        return Err(no_estimate(error, &known));
    }
    let activity = estimators::activity(&known, &task, &platform).ok();
    if args.json {
        let mut value = json(&answers, &task, &platform);
        value["activity"] = serde_json::json!(activity);
        match &traced {
            Some(Ok(traced)) => value["trace"] = of_trace(&traced.replay),
            Some(Err(failed)) => value["trace_failed"] = failed.message.clone().into(),
            None => {}
        }
        print_json(&value)?;
    } else {
        let screen = Screen::stdout();
        print(&render(&answers, &platform, &screen))?;
        if let Some(activity) = &activity {
            print(&alone(activity, &screen))?;
        }
    }
    let interrupted = matches!(traced, Some(Ok(Traced { interrupted: true, .. })));
    Ok(if interrupted { INTERRUPTED } else { 0 })
}

/// That the only estimator asked has no answer. What is missing or wrong on the command line is the user's to mend.
fn no_estimate(error: &Error, known: &Known) -> Failure {
    let text = error.to_string();
    match error {
        Error::Missing { .. } if known.faketensor_mib.is_some() => Failure::usage(text)
            .hint("--faketensor-peak is for `--estimator faketensor`, which goes by that number alone"),
        _ if error.is_of_option() => Failure::usage(text),
        _ => Failure::new(text),
    }
}

/// What the command says, and a dry run of it: none where its program takes a share of the GPU whatever it runs, nor
/// where a trace is given.
type OfCommand = (ModelTask, Option<Result<Traced, Failure>>);

fn of_command(args: &EstimateArgs, known: &mut Known, platform: &Platform) -> Result<OfCommand, Failure> {
    let words = args.command.iter().map(|word| submit::text(word, "the command"));
    let words = words.collect::<Result<Vec<_>, _>>()?;
    let text = |word: std::ffi::OsString| word.into_string().ok();
    let env = std::env::vars_os().filter_map(|(key, value)| Some((text(key)?, text(value)?))).collect();
    let cwd = std::env::current_dir()
        .map_err(|e| Failure::new(format!("cannot tell the current directory: {e}")))?;
    let spoken = Spoken::of(&words, &env, &cwd);
    let mut task = args.task.task(args.gpus.unwrap_or_else(|| spoken.gpus()));
    known.asked.batch = expect::batch_size(&args.task, &words);
    match known.asked.batch {
        Some(batch) => task.batch_size = batch,
        None if known.trace.is_none() => expect::forget_model(known),
        None => {}
    }
    spoken.lay_under(known, &mut task, &args.task);
    if known.taker.is_some() || known.trace.is_some() {
        return Ok((task, None));
    }
    let mut launch = dry_run::launch(&words, &env, &cwd)?;
    launch.tell(task.gpus, &known.asked);
    match tracer::trace(&launch, &args.tracer, platform, Shows::Output) {
        Ok(traced) => {
            known.trace = Some(traced.log.clone());
            Ok((task, Some(Ok(traced))))
        }
        // With something else known of the model, that is estimated from; the failure is told anyway.
        Err(failure) if known.has_model() && failure.code != INTERRUPTED => {
            failure.tell();
            Ok((task, Some(Err(failure))))
        }
        Err(failure) if failure.hint.is_some() => Err(failure),
        Err(failure) => {
            Err(failure.hint("`carma estimate --help` says from what else an estimate can be made"))
        }
    }
}

/// A replay as `--json` prints it.
pub(crate) fn of_trace(replay: &Replay) -> serde_json::Value {
    serde_json::json!({
        "what": replay.header.what,
        "torch": replay.header.torch,
        "events": replay.events,
        "peak_at": replay.peak_at,
        "end": replay.end,
    })
}

/// Reads the files that the options name, with the caller's rights.
///
/// # Errors
/// Files that cannot be read, are too large, or are not what they are given as.
pub(crate) fn read(model: &ModelArgs) -> Result<Known, Failure> {
    let bytes = |file: &Option<_>| file.as_deref().map(|path| read_file(path, MOST)).transpose();
    let text = |file: &Option<_>| -> Result<Option<String>, Failure> {
        // Bytes that are no UTF-8 stay in view as such; the readers judge what they see.
        Ok(bytes(file)?.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    };
    let config = model
        .hf_config
        .as_ref()
        .map(|path| if path.is_dir() { path.join("config.json") } else { path.clone() });
    let path = |file: Option<&PathBuf>| file.map(|path| path.display().to_string());
    let known = Known {
        summary: text(&model.summary)?,
        hf_config: text(&config)?,
        safetensors: model
            .safetensors
            .as_deref()
            .map(|path| Weights::open(path).map_err(|e| Failure::usage(e.to_string())))
            .transpose()?,
        onnx: model.onnx.as_deref().map(|path| read_file(path, MOST_ONNX)).transpose()?,
        trace: bytes(&model.trace)?,
        files: [
            ("summary", path(model.summary.as_ref())),
            // Without a configuration its dimensions are read off the weights.
            ("hf-config", path(config.as_ref().or(model.safetensors.as_ref()))),
            ("onnx", path(model.onnx.as_ref())),
            ("trace", path(model.trace.as_ref())),
        ]
        .into_iter()
        .filter_map(|(reader, path)| Some((reader, path?)))
        .collect(),
        ..Known::default()
    };
    known.check().map_err(|e| Failure::usage(e.to_string()))?;
    Ok(known)
}

fn read_file(path: &Path, most: u64) -> Result<Vec<u8>, Failure> {
    carma_files::read(path, most).map_err(|e| Failure::usage(e.to_string()))
}

/// The platform that the options name. A daemon that answers knows the type of GPU 0, and contexts that it
/// learned or that were probed; without one the type must be said, and the context is the table's.
///
/// # Errors
/// An unknown GPU type, settings that PyTorch would refuse.
pub(crate) fn platform(context: &Context, args: &PlatformArgs) -> Result<Platform, Failure> {
    let usage = |e: Error| Failure::usage(e.to_string());
    let torch = args.torch.unwrap_or((2, 11));
    let unsaid = args.gpu.is_none() || args.context_mib.is_none();
    let mut daemon = if unsaid { context.client().ok() } else { None };
    let mut platform = if let Some(name) = &args.gpu {
        Platform::lookup(name, torch).map_err(usage)?
    } else {
        let gpus: Option<GpusReply> = daemon.as_mut().and_then(|daemon| daemon.get("/v1/gpus").ok());
        let first = gpus.and_then(|reply| reply.gpus.into_iter().next());
        let first = first.ok_or_else(|| {
            Failure::usage("which type of GPU? no daemon answers that could say")
                .hint("say --gpu H200 or another type")
        })?;
        super::expect::platform_named(&first.name, MiB(first.memory_mib), torch)
    };
    if let Some(mib) = args.context_mib {
        platform.context_mib = MiB(mib);
        platform.context_source = "as given".to_owned();
    } else if let Some(context) = daemon.as_mut().and_then(|daemon| learned(daemon, &platform)) {
        platform.context_mib = context;
        platform.context_source = "as the daemon measured it on this machine".to_owned();
    }
    let variable = || Settings::variable(|key| std::env::var(key).ok());
    if let Some(text) = args.alloc_conf.clone().or_else(variable) {
        platform.alloc = Settings::parse(&text).map_err(usage)?;
    }
    Ok(platform)
}

/// The context that the daemon knows for this type of GPU and framework, by a probe if there was one; the largest of its drivers'.
fn learned(daemon: &mut Client, platform: &Platform) -> Option<MiB> {
    let reply: MemoryReply = daemon.get("/v1/memory").ok()?;
    let (major, minor) = platform.torch;
    let framework = format!("torch {major}.{minor}");
    let here = |name: &str| super::expect::platform_named(name, platform.gpu.total_mib, platform.torch).gpu;
    let known = reply.contexts.iter().filter(|c| c.framework == framework && here(&c.gpu) == platform.gpu);
    // Root sees what runs of any user told.
    known.filter_map(|c| Some((c.probed, c.mib?))).max().map(|(_, mib)| MiB(mib))
}

/// What to say where the numbers' type was not given and the configuration has another than the default.
fn other_type(known: &Known, said: Option<Precision>) -> Option<String> {
    if said.is_some() {
        return None;
    }
    let stored = Config::parse(known.hf_config.as_deref()?).ok()?.dtype?;
    (stored != Precision::default()).then(|| {
        format!(
            "reckoned in 32 bits; the configuration is in {stored}, as which transformers 5 loads it unless told \
             otherwise: --precision {stored}"
        )
    })
}

/// The answers as `--json` prints them.
pub(crate) fn json(answers: &[Answer], task: &ModelTask, platform: &Platform) -> serde_json::Value {
    let estimates: Vec<_> = answers
        .iter()
        .map(|answer| match &answer.result {
            Ok(estimate) => {
                let mut value = serde_json::json!({"estimator": answer.estimator});
                if let (Some(to), serde_json::Value::Object(from)) =
                    (value.as_object_mut(), serde_json::json!(estimate))
                {
                    to.extend(from);
                }
                value
            }
            Err(error) => serde_json::json!({"estimator": answer.estimator, "error": error.to_string()}),
        })
        .collect();
    serde_json::json!({
        "version": carma_api::VERSION,
        "gpu": platform.gpu.name,
        "context_mib": platform.context_mib,
        "task": task,
        "estimates": estimates,
    })
}

/// What the task will do to a GPU that it has for itself, as a table.
fn alone(activity: &Activity, screen: &Screen) -> String {
    let columns = vec![Column::Left("ALONE"), Column::Right("EXPECTED"), Column::Right("90 % BOUNDS")];
    let mut table = Table::new(columns, screen);
    for (name, Range { expected, lower, upper }) in
        [("SMACT", activity.smact), ("SMOCC", activity.smocc), ("DRAMA", activity.drama)]
    {
        table.row([name.to_owned(), format!("{expected:.2}"), format!("{lower:.2}-{upper:.2}")]);
    }
    let Range { expected, lower, upper } = activity.step_ms;
    table.row(["step".to_owned(), format!("{expected:.1} ms"), format!("{lower:.1}-{upper:.1} ms")]);
    format!("\n{}", table.render())
}

/// The answers as a table, with the reasons of a single one.
pub(crate) fn render(answers: &[Answer], platform: &Platform, screen: &Screen) -> String {
    let mut text = format!("GPU memory on one {}, MiB\n\n", platform.gpu.name);
    let mut table = Table::new(
        vec![
            Column::Left("ESTIMATOR"),
            Column::Right("NEED"),
            Column::Right("USE"),
            Column::Right("UPPER"),
            Column::Left("TIER"),
            Column::Left("SOURCE"),
        ],
        screen,
    );
    for Answer { estimator, result } in answers {
        let name = (*estimator).to_owned();
        match result {
            Ok(Estimate { need_mib, use_mib, upper_mib, tier, source, .. }) => table.row([
                name,
                need_mib.0.to_string(),
                use_mib.0.to_string(),
                upper_mib.0.to_string(),
                tier.to_string(),
                source.clone(),
            ]),
            Err(error) => table.row([
                name,
                "-".to_owned(),
                "-".to_owned(),
                "-".to_owned(),
                "-".to_owned(),
                error.to_string(),
            ]),
        }
    }
    text.push_str(&table.render());
    if let [Answer { result: Ok(estimate), .. }] = answers {
        text.push('\n');
        for reason in &estimate.reasons {
            let _ = writeln!(text, "- {reason}");
        }
    }
    text
}
