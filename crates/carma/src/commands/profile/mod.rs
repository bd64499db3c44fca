//! `carma profile`: what a task does alone on a GPU, and how fast it goes.

mod table;

use super::signals::INTERRUPTED;
use super::stream::{Event, Events};
use super::{Context, unmeasured};
use crate::cli::profile::ProfileArgs;
use carma_cli::failure::{Failure, Outcome};
use carma_cli::{Screen, print, print_json};
use carma_files::Folder;
use carma_interference::profile::{Profiles, VERSION};
use carma_measure::profile::{self, Interrupts, Kernels, Options, Outlets, Profiler};
use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;
use tokio::signal::unix::SignalKind;

/// Runs the verb.
pub(crate) fn run(context: &Context, args: &ProfileArgs) -> Outcome {
    let name = name(args)?;
    if let Some(file) = &args.output {
        profile::check(file, args.append).map_err(unmeasured)?;
    }
    let options = options(context, args, name)?;
    let dir = Folder::in_memory("carma-profile").map_err(|e| Failure::new(e.to_string()))?;
    let mut profiler = Profiler::open(&options, &dir.0, &say).map_err(unmeasured)?;
    let interrupts = Interrupts::new().map_err(|e| Failure::new(format!("no event descriptor: {e}")))?;
    catch_signals(&interrupts)?;
    let outcome = profiler.run(&interrupts);
    if interrupts.count() > 0 {
        say("interrupted; no profile was made");
        return Ok(INTERRUPTED);
    }
    let (profile, failed) = outcome.map_err(unmeasured)?;
    // What is printed survives a full disk.
    let saved = args.output.as_ref().map_or(Ok(()), |file| profile::save(file, &profile));
    if args.json {
        let profiles = Profiles { version: VERSION, gpu: profile.gpu.clone(), tasks: vec![profile] };
        print_json(&serde_json::to_value(&profiles).map_err(|e| Failure::new(e.to_string()))?)?;
    } else {
        let command: Vec<String> =
            args.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let gpu = format!("{} {}", profiler.gpu().index, profiler.gpu().name);
        let text = table::render(&profile, &gpu, &command, profiler.is_virtual(), &Screen::stdout());
        print(&format!("\n{text}"))?;
    }
    saved.map_err(unmeasured)?;
    failed.map_or(Ok(0), |failed| Err(unmeasured(failed)))
}

/// What the arguments ask for. Nsight Compute is looked for here: that it is missing is said before anything runs.
fn options(context: &Context, args: &ProfileArgs, name: String) -> Result<Options, Failure> {
    let ncu = args.kernels.then(|| profile::find_ncu(args.ncu.as_deref())).transpose().map_err(unmeasured)?;
    Ok(Options {
        command: args.command.clone(),
        name,
        class: args.class.clone(),
        warm_up_s: args.warmup,
        window_s: args.seconds,
        patience_s: args.patience,
        grace: Duration::try_from_secs_f64(args.grace).unwrap_or_default(),
        keep_running: args.keep_running,
        rates_by_threads: args.rates_by_threads.clone(),
        kernels: ncu.map(|ncu| Kernels { ncu, skip: args.kernel_skip, count: args.kernel_count }),
        gpus: args.gpus.clone(),
        gpu: args.gpu.clone(),
        shared_ok: args.shared_ok,
        socket: context.socket.clone(),
        outlets: Outlets {
            // Where ours is for JSON, the command's goes beside it.
            standard: if args.json { || Box::new(io::stderr()) } else { || Box::new(io::stdout()) },
            error: || Box::new(io::stderr()),
        },
    })
}

/// A line of our own between those of the command.
fn say(text: &str) {
    let _ = writeln!(io::stderr().lock(), "carma: {}", carma_cli::clean(text));
}

/// The task's name: given, or that of the script or program.
fn name(args: &ProfileArgs) -> Result<String, Failure> {
    if let Some(name) = &args.name {
        return if name.trim().is_empty() {
            Err(Failure::usage("--name is empty"))
        } else {
            Ok(name.clone())
        };
    }
    let stem = |word: &std::ffi::OsString| {
        Path::new(word).file_stem().map(|stem| stem.to_string_lossy().into_owned())
    };
    let script = args.command.iter().skip(1).find(|word| word.to_string_lossy().ends_with(".py"));
    script
        .or_else(|| args.command.first())
        .and_then(stem)
        .ok_or_else(|| Failure::usage("the command is empty"))
}

fn catch_signals(interrupts: &Interrupts) -> Result<(), Failure> {
    let failed = |e| Failure::new(format!("cannot catch signals: {e}"));
    let events = Events::new();
    events.catch_signals(&[SignalKind::hangup(), SignalKind::quit()]).map_err(failed)?;
    let interrupts = interrupts.clone();
    std::thread::Builder::new()
        .name("interrupts".into())
        .spawn(move || {
            while let Some(event) = events.next() {
                if matches!(event, Event::Interrupt) {
                    interrupts.interrupt();
                }
            }
        })
        .map_err(failed)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Verb};
    use clap::Parser;

    fn args(words: &[&str]) -> ProfileArgs {
        match Cli::parse_from([&["carma", "profile"], words].concat()).verb {
            Verb::Profile(args) => *args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_task_is_named_after_its_script() {
        assert_eq!(name(&args(&["--", "/usr/bin/python3", "-u", "src/train.py", "a.py"])).unwrap(), "train");
        assert_eq!(name(&args(&["./bench.bin", "-x"])).unwrap(), "bench");
        assert_eq!(name(&args(&["-J", "x", "--", "python"])).unwrap(), "x");
        assert!(name(&args(&["-J", " ", "--", "python"])).is_err());
    }

    #[test]
    fn options_are_read() {
        let args = args(&[
            "--rates-by-threads",
            "25,50",
            "--seconds",
            "5",
            "-o",
            "f",
            "--append",
            "--",
            "x",
            "--json",
        ]);
        assert_eq!((args.rates_by_threads, args.seconds, args.json), (vec![25, 50], 5.0, false));
        for bad in [
            &["carma", "profile"][..],
            &["carma", "profile", "--append", "x"],
            &["carma", "profile", "--rates-by-threads", "0", "x"],
            &["carma", "profile", "--kernel-skip", "5", "x"],
            &["carma", "profile", "--keep-running", "--kernels", "x"],
        ] {
            assert!(Cli::try_parse_from(bad).is_err(), "{bad:?}");
        }
    }
}
