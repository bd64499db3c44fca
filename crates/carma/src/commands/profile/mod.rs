//! `carma profile`: what a task does alone on a GPU, and how fast it goes.
//!
//! Needs no daemon: it reads the GPU itself, and only asks a daemon, if there is one, whether the GPU is free.

mod file;
mod kernels;
mod machine;
mod table;
mod task;
mod watch;

use super::Context;
use super::stream::{Event, Events};
use crate::cli::profile::ProfileArgs;
use carma_cli::failure::{Failure, Outcome};
use carma_cli::{Folder, Screen, print, print_json};
use carma_gpu::SharingRequest;
use carma_interference::profile::{Profile, Profiles, RateSource, VERSION};
use carma_interference::solo::{NoProfile, Options};
use machine::{Chosen, Machine};
use std::collections::BTreeSet;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use task::Bell;
use tokio::signal::unix::SignalKind;
use watch::{Request, Watched, watch};

/// What a shell shows for a program that SIGINT ended.
const INTERRUPTED: u8 = 130;

/// Runs the verb.
pub(crate) fn run(context: &Context, args: &ProfileArgs) -> Outcome {
    let name = name(args)?;
    if let Some(file) = &args.output {
        file::check(file, args.append)?;
    }
    let ncu = if args.kernels { Some(kernels::find(args.ncu.as_deref())?) } else { None };
    let dir = Folder::in_memory("carma-profile")?;
    let mut machine = Machine::open(&args.gpus, &dir.0)?;
    if ncu.is_some() && machine.is_virtual() {
        return Err(Failure::usage("--kernels: virtual GPUs run no kernels"));
    }
    let chosen = machine.choose(context, args.gpu.as_deref(), args.shared_ok)?;
    if chosen.open_to_daemon {
        let index = chosen.gpu.index;
        say(&format!(
            "the carma daemon may start a job on GPU {index} meanwhile; `carma drain {index}` keeps it off"
        ));
    }
    let interrupts = Arc::new(AtomicU32::new(0));
    let bell = Bell::new().map_err(|e| Failure::new(format!("no event descriptor: {e}")))?;
    catch_signals(&interrupts, &bell)?;
    let mut runs = Runs { args, machine, chosen, dir: &dir.0, interrupts: &interrupts, bell: &bell };
    let outcome = runs.all(&name, ncu.as_deref());
    runs.machine.sharing.shutdown();
    if interrupts.load(Ordering::Acquire) > 0 {
        say("interrupted; no profile was made");
        return Ok(INTERRUPTED);
    }
    let mut profile = outcome?;
    profile.gpu = Some(runs.chosen.gpu.name.clone());
    profile.class.clone_from(&args.class);
    // What is printed survives a full disk.
    let saved = args.output.as_ref().map_or(Ok(()), |file| file::save(file, &profile));
    if args.json {
        let profiles = Profiles { version: VERSION, gpu: profile.gpu.clone(), tasks: vec![profile] };
        print_json(&serde_json::to_value(&profiles).map_err(|e| Failure::new(e.to_string()))?)?;
    } else {
        let command: Vec<String> =
            args.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let gpu = format!("{} {}", runs.chosen.gpu.index, runs.chosen.gpu.name);
        let text = table::render(&profile, &gpu, &command, runs.machine.is_virtual(), &Screen::stdout());
        print(&format!("\n{text}"))?;
    }
    saved.map(|()| 0)
}

/// A line of our own between those of the command.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "carma: {}", carma_cli::clean(text));
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

fn catch_signals(interrupts: &Arc<AtomicU32>, bell: &Bell) -> Result<(), Failure> {
    let failed = |e| Failure::new(format!("cannot catch signals: {e}"));
    let events = Events::new();
    events.catch_signals(&[SignalKind::hangup(), SignalKind::quit()]).map_err(failed)?;
    let (interrupts, bell) = (Arc::clone(interrupts), bell.clone());
    std::thread::Builder::new()
        .name("interrupts".into())
        .spawn(move || {
            while let Some(event) = events.next() {
                if matches!(event, Event::Interrupt) {
                    interrupts.fetch_add(1, Ordering::AcqRel);
                    bell.ring();
                }
            }
        })
        .map_err(failed)?;
    Ok(())
}

/// Everything that is measured of one command.
struct Runs<'a> {
    args: &'a ProfileArgs,
    machine: Machine,
    chosen: Chosen,
    dir: &'a Path,
    interrupts: &'a AtomicU32,
    bell: &'a Bell,
}

impl Runs<'_> {
    fn all(&mut self, name: &str, ncu: Option<&Path>) -> Result<Profile, Failure> {
        let watched = self.once(Vec::new())?;
        let mut profile = self.profile(name, &watched)?;
        drop(watched);
        // Each once, in the order given.
        let mut done = BTreeSet::new();
        for pct in self.args.rates_by_threads.iter().filter(|pct| done.insert(**pct)) {
            if self.interrupts.load(Ordering::Acquire) > 0 {
                break;
            }
            self.with_threads(*pct, &mut profile)?;
        }
        if let Some(ncu) = ncu
            && self.interrupts.load(Ordering::Acquire) == 0
        {
            say(&format!("running the command again under {}", ncu.display()));
            let mut env = self.machine.env.clone();
            env.push(("CUDA_VISIBLE_DEVICES".into(), self.chosen.gpu.uuid.to_string()));
            let summary = kernels::measure(ncu, self.args, &env, self.dir, self.interrupts, self.bell)?;
            profile.kernels = Some(summary.kernels);
            let left_out = match summary.left_out {
                0 => String::new(),
                n => format!(", {n} more were left out because they have no duration"),
            };
            profile.remarks.push(format!("kernels: {} launches{left_out}", summary.launches));
        }
        Ok(profile)
    }

    fn once(&mut self, env: Vec<(String, String)>) -> Result<Watched, Failure> {
        let args = self.args;
        let request = Request {
            command: &args.command,
            env,
            dir: self.dir,
            options: Options { warm_up_s: args.warmup, window_s: args.seconds, ..Options::default() },
            patience_s: args.patience,
            grace: Duration::try_from_secs_f64(args.grace).unwrap_or_default(),
            keep_running: args.keep_running,
            json: args.json,
            interrupts: self.interrupts,
            bell: self.bell,
        };
        watch(&mut self.machine, &self.chosen, &request)
    }

    /// What was seen as a profile, with what the reader should know of it.
    fn profile(&self, name: &str, watched: &Watched) -> Result<Profile, Failure> {
        let mut profile = watched
            .recorder
            .profile(name, watched.meter.tally())
            .map_err(|why| self.failure(&why, watched))?;
        if let Some(status) = watched.ended.filter(|status| !status.success()) {
            profile.remarks.push(format!("the command {}", ending(status)));
        }
        if watched.killed {
            profile.remarks.push(format!(
                "the command did not end within {} s of SIGTERM and was killed",
                self.args.grace
            ));
        }
        if !self.chosen.users.is_empty() {
            profile
                .remarks
                .push(format!("not alone: the GPU was in use by {}", self.chosen.users.join(", ")));
        }
        if !watched.others.is_empty() && self.chosen.users.is_empty() {
            let pids: Vec<String> = watched.others.iter().take(8).map(ToString::to_string).collect();
            profile
                .remarks
                .push(format!("not alone: other processes came to the GPU: pid {}", pids.join(", ")));
        }
        if !self.chosen.gpu.has_activity {
            profile.remarks.push(
                "this GPU does not tell SMACT, SMOCC and DRAMA (NVML's GPM needs Hopper or newer, and permission)".into(),
            );
        }
        if watched.unread > 0 {
            profile.remarks.push(format!(
                "it printed faster than that can be read: {:.1} MB were passed over",
                watched.unread as f64 / 1e6
            ));
        }
        match watched.meter.refused() {
            (0, 0) => {}
            (garbage, strangers) => profile.remarks.push(format!(
                "{garbage} heartbeats made no sense and {strangers} came from other users; none of them counts"
            )),
        }
        Ok(profile)
    }

    fn failure(&self, why: &NoProfile, watched: &Watched) -> Failure {
        let gpu = self.chosen.gpu.index;
        let end = watched.ended.map_or_else(String::new, |status| format!("; it {}", ending(status)));
        let failure = Failure::new(format!("no profile: {why}{end}"));
        match why {
            NoProfile::NeverUsed { .. } if watched.ended.is_some_and(|status| !status.success()) => {
                failure.hint("what it printed is above")
            }
            NoProfile::NeverUsed { .. } => failure.hint(format!(
                "it was given GPU {gpu} by CUDA_VISIBLE_DEVICES: does it choose another, or fall back to the CPU? A command that takes longer to begin needs --patience"
            )),
            NoProfile::TooShort { .. } => failure.hint("give it more to do (more steps, more epochs), or shorten --warmup"),
            NoProfile::Blind(_) => failure.hint("`carma doctor` may say why"),
        }
    }

    /// Adds the rate under MPS with a share of the threads.
    fn with_threads(&mut self, pct: u8, profile: &mut Profile) -> Result<(), Failure> {
        let request = SharingRequest {
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            gpus: vec![self.chosen.gpu.uuid.clone()],
            cap: None,
            thread_percent: Some(pct),
        };
        let grant = self.machine.sharing.prepare(&request).map_err(|e| {
            Failure::new(format!("--rates-by-threads: {e}"))
                .hint("`carma doctor` says whether MPS can be had here")
        })?;
        say(&format!("running the command again with {pct} % of the threads"));
        let watched = self.once(grant.env)?;
        if watched.interrupted {
            return Ok(());
        }
        let limited = self.profile(&profile.name, &watched)?;
        let same = |a: &carma_interference::profile::Rate, b: &carma_interference::profile::Rate| {
            a.source == b.source && a.unit == b.unit
        };
        match (&limited.rate, &profile.rate) {
            (Some(rate), Some(alone)) if same(rate, alone) => {
                if rate.source == Some(RateSource::Activity) && profile.rate_by_threads_pct.is_empty() {
                    profile.remarks.push(
                        "its rates by threads are activity, which a limit lowers by itself; a heartbeat gives its speed".into(),
                    );
                }
                profile.rate_by_threads_pct.insert(pct, rate.per_s);
            }
            _ => profile.remarks.push(format!(
                "with {pct} % of the threads it told no rate that could be compared, so there is none"
            )),
        }
        profile
            .remarks
            .extend(limited.remarks.iter().map(|remark| format!("with {pct} % of the threads: {remark}")));
        Ok(())
    }
}

/// How a command ended, in words.
fn ending(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with exit code {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
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
