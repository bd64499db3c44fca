//! `carma submit`: a job from the command line or a file, with the caller's surroundings.

use super::expect::{self, Modelled, Source};
use super::printed::Printed;
use super::signals::{self, INTERRUPTED};
use super::tracer::{self, Shows, Traced};
use super::{Context, directories, dry_run, stream};
use crate::cli::memory::TracerArgs;
use crate::cli::{JobArgs, SubmitArgs};
use carma_api::job_file::{self, Described};
use carma_api::wire::{MOST_AT_ONCE, ResourceLimit, Session, SubmitReply, SubmitRequest};
use carma_api::{Client, MAX_BODY, output};
use carma_cli::failure::{Failure, Outcome};
use carma_cli::{clean, print_json};
use carma_core::state::Unbounded;
use carma_core::units::MiB;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Seconds after which the dry run of a job is stopped; what was seen until then counts.
const DRY_RUN: u32 = 600;

/// Submits a job, or those of a file.
pub(crate) fn run(context: &Context, args: &SubmitArgs) -> Outcome {
    let mut requests = requests(&args.job, &args.rad, &Surroundings::of_caller()?)?;
    // Also where the job's file says so.
    let several = args.repeat > 1 || requests.len() > 1;
    let one_file = |(request, _): &(SubmitRequest, Modelled)| {
        request.output.as_deref().is_some_and(|file| !output::tells_jobs_apart(file))
    };
    if several && requests.iter().any(one_file) {
        return Err(Failure::usage("--output names one file, and several jobs would write to it").hint(
            "write %j where the job's number goes, or leave it out: each job then gets a log of its own",
        ));
    }
    if several && requests.iter().any(|(request, _)| request.checkpoint_dir.is_some()) {
        return Err(Failure::usage(
            "--checkpoint-dir names one directory, and several jobs would save in it",
        )
        .hint("leave it out: each job with a --checkpoint-signal then gets a directory of its own"));
    }
    directories::warn(requests.iter().map(|(request, _)| request));
    let shows = if args.parsable || args.json { Shows::Nothing } else { Shows::Progress };
    for (request, modelled) in &mut requests {
        request.hold |= args.hold;
        dry_run(context, &args.job, request, modelled, shows)?;
    }
    let mut client = context.client()?;
    for (request, modelled) in &mut requests {
        expect::fill(&mut client, request, modelled)?;
    }
    let (mut accepted, mut told, mut printed) = (Vec::new(), None, Printed::default());
    let all = requests.len() * args.repeat as usize;
    let (mut taken, mut outcome) = (0, Ok(0));
    let stopped = if all > 1 { signals::stopped_between_requests()? } else { Arc::default() };
    'all: for (nth, (request, _)) in requests.iter().enumerate() {
        let until = (nth + 1) * args.repeat as usize;
        while taken < until {
            if stopped.load(Ordering::Relaxed) {
                let interrupted = Failure { code: INTERRUPTED, ..Failure::new("interrupted") };
                outcome = Err(after(interrupted, taken, all));
                break 'all;
            }
            match send(&mut client, request, until - taken) {
                Ok(reply) => {
                    for reply in reply.each() {
                        taken += 1;
                        if args.json {
                            accepted.push(reply);
                        } else {
                            printed.add(|| say(&reply, args.parsable, &mut told));
                        }
                    }
                }
                Err(failure) => {
                    outcome = Err(after(failure, taken, all));
                    break 'all;
                }
            }
        }
    }
    // Those that were accepted before a failure stay accepted, so their numbers must be told.
    match (args.json, &accepted[..]) {
        (false, _) | (true, []) => {}
        (true, [one]) if requests.len() == 1 && args.repeat == 1 => {
            printed.add(|| print_json(&serde_json::json!(one)));
        }
        (true, several) => {
            printed.add(|| print_json(&serde_json::json!({"version": carma_api::VERSION, "jobs": several})));
        }
    }
    outcome.map(|code| printed.end(code))
}

/// A failure that came after so many of all jobs were taken.
fn after(failure: Failure, taken: usize, all: usize) -> Failure {
    let message = match failure.message {
        Some(text) if taken > 0 => Some(format!("{text}; {taken} of {all} jobs were submitted before")),
        message => message,
    };
    Failure { message, ..failure }
}

/// Says that a job was accepted, and what is expected of its memory unless the job before was told the same.
fn say(reply: &SubmitReply, parsable: bool, told: &mut Option<String>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if parsable {
        writeln!(out, "{}", reply.id)
    } else {
        writeln!(out, "job {} submitted; {}", reply.id, log_of(reply))?;
        let news = expected(reply).filter(|line| told.as_ref() != Some(line));
        if let Some(line) = news {
            writeln!(out, "{line}")?;
            *told = Some(line);
        }
        Ok(())
    }
}

/// Runs a job for a few steps without a GPU first, where that is wanted: as this user, in the job's directory and
/// environment. What it shows goes to what is known of the job.
///
/// # Errors
/// A dry run that fails, unless the job is to be submitted all the same; one that the user stopped.
pub(crate) fn dry_run(
    context: &Context,
    args: &JobArgs,
    request: &SubmitRequest,
    modelled: &mut Modelled,
    shows: Shows,
) -> Result<(), Failure> {
    let Some(submit_anyway) = args.dry_run else { return Ok(()) };
    let say = |text: String| {
        if shows == Shows::Progress {
            stream::say(&text);
        }
    };
    if let Some(taker) = modelled.taker() {
        say(format!("no dry run: {}", taker.why));
        return Ok(());
    }
    let platform = expect::largest(&mut context.client()?, request)?;
    let launch = dry_run::launch(&request.command, &request.env, Path::new(&request.cwd));
    let traced = launch.and_then(|mut launch| {
        modelled.tell(&mut launch);
        let limits = TracerArgs { timeout: DRY_RUN, ..TracerArgs::default() };
        say(format!("dry run of `{}`, at most {DRY_RUN} s; Ctrl-C ends it", launch.program().join(" ")));
        tracer::trace(&launch, &limits, &platform, shows)
    });
    match traced {
        Ok(Traced { interrupted: true, .. }) => Err(Failure {
            code: INTERRUPTED,
            ..Failure::new("the dry run was interrupted, and nothing was submitted")
                .hint("without --dry-run the job is submitted at once")
        }),
        Ok(Traced { log, replay, took, .. }) => {
            let end = &replay.end;
            let partial = end.reason.as_ref().map(|why| format!("; incomplete: {why}")).unwrap_or_default();
            let tensors = MiB::from_bytes(replay.peak.max_allocated);
            say(format!(
                "dry run: {} optimizer steps in {} s; tensors take {tensors} at most, in {}{partial}",
                end.steps,
                took.as_secs(),
                replay.peak_at
            ));
            modelled.traced(log);
            Ok(())
        }
        Err(failure) if submit_anyway && failure.code != INTERRUPTED => {
            failure.tell();
            say("the dry run failed; the job is submitted without it".to_owned());
            Ok(())
        }
        Err(failure) => Err(Failure {
            message: failure.message.map(|text| format!("{text}; nothing was submitted")),
            hint: Some(failure.hint.unwrap_or_else(|| {
                "mend the command, or submit it without --dry-run; --dry-run=try submits whatever comes of it".to_owned()
            })),
            code: failure.code,
        }),
    }
}

/// Where a job's output is to be found.
pub(crate) fn log_of(reply: &SubmitReply) -> String {
    if reply.log_kept {
        format!("log: carma logs {}", reply.id)
    } else {
        format!("log: {}", clean(&reply.log))
    }
}

/// What is expected of a job's memory, in a line; and where that is nothing, what follows and how to know more.
pub(crate) fn expected(reply: &SubmitReply) -> Option<String> {
    let unbounded = reply.unbounded.map(|what| match what {
        Unbounded::Alone => {
            "it waits for a GPU without other jobs and has it alone until its memory has settled"
        }
        Unbounded::Limited => "it gets a part of a GPU, which is a hard limit",
        Unbounded::Free => "it gets what is free of a GPU until its memory has settled",
    });
    match &reply.estimate {
        Some(estimate) => {
            let bound = unbounded.map(|what| format!("; without a bound, so {what}")).unwrap_or_default();
            Some(format!(
                "memory: {} expected on each GPU, {} at most ({}, tier {}){bound}",
                MiB(estimate.use_mib),
                MiB(estimate.upper_mib),
                estimate.source,
                estimate.tier
            ))
        }
        None => unbounded.map(|what| {
            format!("memory: not known, so {what}; --dry-run or --gpu-memory SIZE tells it beforehand")
        }),
    }
}

/// Submits up to `copies` copies of a job. When this returns, those that the answer names are on the daemon's disk: at least one,
/// and as many as the daemon had time for.
///
/// # Errors
/// Refusals, and requests that are too large to send.
pub(crate) fn send(
    client: &mut Client,
    request: &SubmitRequest,
    copies: usize,
) -> Result<SubmitReply, Failure> {
    let size = serde_json::to_vec(request).map_or(0, |body| body.len());
    if size > MAX_BODY {
        let text = format!(
            "command and environment take {} KiB; the daemon reads at most {} KiB",
            size / 1024,
            MAX_BODY / 1024
        );
        return Err(Failure::usage(text).hint("put long argument lists into a file"));
    }
    let path = match copies {
        1 => "/v1/jobs".to_owned(),
        // A daemon that is older takes one.
        _ => format!("/v1/jobs?count={}", copies.min(MOST_AT_ONCE as usize)),
    };
    client.post(&path, request).map_err(|error| {
        let broken =
            matches!(error, carma_api::ClientError::Broken { .. } | carma_api::ClientError::Silent { .. });
        let failure = Failure::from(error);
        if broken {
            // Sending it again might run it twice, which is for the user to decide.
            failure.hint(match copies {
                1 => "the job may have been accepted: look at `carma queue` before you submit it again".to_owned(),
                _ => format!(
                    "up to {} further copies may have been accepted: they have higher numbers than those above in `carma queue`",
                    copies.min(MOST_AT_ONCE as usize)
                ),
            })
        } else {
            failure
        }
    })
}

/// What a job takes over from the process that submits it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Surroundings {
    cwd: PathBuf,
    env: BTreeMap<String, String>,
    session: Session,
}

impl Surroundings {
    /// The caller's directory and environment. Says on standard error what cannot be taken over.
    ///
    /// # Errors
    /// When there is no directory.
    pub(crate) fn of_caller() -> Result<Self, Failure> {
        let cwd = std::env::current_dir()
            .map_err(|e| Failure::new(format!("the directory you are in cannot be used: {e}")))?;
        let (env, left_out) = capture(std::env::vars_os());
        if !left_out.is_empty() {
            let text =
                format!("warning: not UTF-8 and so not in the job's environment: {}", left_out.join(", "));
            Failure::new(text).tell();
        }
        Ok(Self { cwd, env, session: session() })
    }
}

/// The mask and the limits of this process, which the job takes over as a command of this shell's would.
fn session() -> Session {
    use rustix::process::{Resource, getrlimit, umask};
    // There is no other way to read it than to set it, twice.
    let mask = umask(rustix::fs::Mode::from_raw_mode(0o077));
    umask(mask);
    let limits = [
        ("as", Resource::As),
        ("core", Resource::Core),
        ("cpu", Resource::Cpu),
        ("data", Resource::Data),
        ("fsize", Resource::Fsize),
        ("memlock", Resource::Memlock),
        ("nofile", Resource::Nofile),
        ("nproc", Resource::Nproc),
        ("rss", Resource::Rss),
        ("stack", Resource::Stack),
    ];
    let limits = limits.into_iter().map(|(name, resource)| {
        let limit = getrlimit(resource);
        (name.to_owned(), ResourceLimit { soft: limit.current, hard: limit.maximum })
    });
    Session { umask: Some(mask.as_raw_mode()), limits: limits.collect(), login: false }
}

/// Which variables go to the job, and the names of those that cannot.
fn capture(vars: impl Iterator<Item = (OsString, OsString)>) -> (BTreeMap<String, String>, Vec<String>) {
    let (mut env, mut left_out) = (BTreeMap::new(), Vec::new());
    for (key, value) in vars {
        match (key.into_string(), value.into_string()) {
            // A job that is submitted from within a job must not be taken for that one; it may well
            // submit to the same daemon.
            (Ok(key), _) if key.starts_with("CARMA_") && key != "CARMA_SOCKET" => {}
            (Ok(key), Ok(value)) => {
                env.insert(key, value);
            }
            (Ok(key), Err(_)) => left_out.push(key),
            (Err(key), _) => left_out.push(key.to_string_lossy().into_owned()),
        }
    }
    (env, left_out)
}

/// The jobs that a command line describes: one, or one for each `.rad` file.
///
/// # Errors
/// Files that cannot be read, and what cannot be sent.
pub(crate) fn requests(
    args: &JobArgs,
    rad: &[PathBuf],
    around: &Surroundings,
) -> Result<Vec<(SubmitRequest, Modelled)>, Failure> {
    let bad_file = |e: job_file::FileError| Failure::usage(e.to_string());
    let with_model = |base: SubmitRequest, source: Source<'_>| {
        let mut request = complete(base, args, around)?;
        let modelled = expect::gather(&mut request, source, &args.model, &args.task, &around.cwd)?;
        Ok((request, modelled))
    };
    if rad.is_empty() {
        let Some(file) = &args.file else {
            return Ok(vec![with_model(SubmitRequest::default(), Source::Options)?]);
        };
        let Described { request, model } =
            job_file::read(file).and_then(|text| job_file::toml::parse(file, &text)).map_err(bad_file)?;
        return Ok(vec![with_model(request, Source::Toml(file, &model))?]);
    }
    // All are read before the first is sent: a slip in the last must not leave half of them queued.
    rad.iter()
        .map(|file| {
            let Described { request, model } =
                job_file::read(file).and_then(|text| job_file::rad::parse(file, &text)).map_err(bad_file)?;
            with_model(request, Source::Rad(file, &model))
        })
        .collect()
}

/// Lays the options and the surroundings over what a file says.
fn complete(base: SubmitRequest, args: &JobArgs, around: &Surroundings) -> Result<SubmitRequest, Failure> {
    let mut job = base;
    if !args.command.is_empty() {
        job.command = args.command.iter().map(|word| text(word, "an argument")).collect::<Result<_, _>>()?;
    }
    if let Some(line) = &args.wrap {
        job.command = vec!["/bin/sh".into(), "-c".into(), text(line, "--wrap")?];
        // Slurm's name for it; "sh" would say less.
        job.name.get_or_insert_with(|| "wrap".into());
    }
    let cwd = match &args.chdir {
        Some(dir) => around.cwd.join(dir),
        None => around.cwd.join(&job.cwd),
    };
    // Joining with nothing adds a slash.
    let cwd: PathBuf = cwd.components().collect();
    let output = args.output.clone().or_else(|| job.output.as_ref().map(PathBuf::from));
    job.output = output.map(|file| output_pattern(&cwd, &file)).transpose()?;
    let dir = args.checkpoint_dir.clone().or_else(|| job.checkpoint_dir.as_ref().map(PathBuf::from));
    job.checkpoint_dir = dir.map(|dir| text(cwd.join(dir).as_os_str(), "--checkpoint-dir")).transpose()?;
    job.cwd = text(cwd.as_os_str(), "the directory")?;

    let mut env = around.env.clone();
    env.append(&mut job.env);
    env.extend(args.env.iter().cloned());
    job.env = env;

    job.exclusive = (job.exclusive || args.exclusive) && !args.shared;
    job.name = args.name.clone().or(job.name);
    job.gpus = args.gpus.or(job.gpus);
    job.gpu_memory_mib = args.gpu_memory.map(|m| m.0).or(job.gpu_memory_mib);
    job.sharing = args.sharing.or(job.sharing);
    job.thread_pct = args.mps_threads.or(job.thread_pct);
    job.time_limit_ms = args.time.map(|t| t.0).or(job.time_limit_ms);
    job.priority = args.priority.unwrap_or(job.priority);
    job.max_retries = args.max_retries.or(job.max_retries);
    job.max_slowdown_pct = args.max_slowdown.or(job.max_slowdown_pct);
    job.latency_us = args.latency.or(job.latency_us);
    job.checkpoint_signal = args.checkpoint_signal.or(job.checkpoint_signal);
    job.grace_ms = args.grace.map(|g| g.0).or(job.grace_ms);
    job.host_memory_mib = args.mem.map(|m| m.0).or(job.host_memory_mib);
    job.host_cpu_pct = args.cpus.or(job.host_cpu_pct);
    job.host_processes = args.pids.or(job.host_processes);
    let login = args.login || job.session.login;
    job.session = Session { login, ..around.session.clone() };
    Ok(job)
}

/// The pattern of an output file as an absolute path. A percent sign in the directory's name is one.
fn output_pattern(cwd: &Path, file: &Path) -> Result<String, Failure> {
    let pattern = text(file.as_os_str(), "--output")?;
    output::check(&pattern).map_err(Failure::usage)?;
    if file.is_absolute() {
        return Ok(pattern);
    }
    let dir = output::literal(&text(cwd.as_os_str(), "the directory")?);
    text(Path::new(&dir).join(pattern).as_os_str(), "--output")
}

pub(crate) fn text(word: &OsStr, what: &str) -> Result<String, Failure> {
    word.to_str().map(str::to_owned).ok_or_else(|| {
        let shown = Path::new(word).display();
        Failure::usage(format!("{what} is not UTF-8: {shown}"))
            .hint("carma keeps jobs as text; rename the file, or pass its name through a script")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use carma_api::wire::CheckpointSignal;
    use carma_core::model::SharingMode;
    use carma_core::units::Millis;
    use std::os::unix::ffi::OsStringExt;

    fn around() -> Surroundings {
        let env = [("PATH".to_owned(), "/bin".to_owned())].into();
        Surroundings { cwd: "/home/a".into(), env, session: Session::default() }
    }

    fn one(args: &JobArgs) -> SubmitRequest {
        requests(args, &[], &around()).unwrap().remove(0).0
    }

    fn command() -> JobArgs {
        JobArgs { command: vec!["python".into(), "t.py".into()], ..JobArgs::default() }
    }

    #[test]
    fn the_environment_comes_along_but_carmas_own() {
        let odd = OsString::from_vec(vec![b'x', 0xff]);
        let vars = [
            ("HOME".into(), "/home/a".into()),
            ("CARMA_JOB_ID".into(), "7".into()),
            ("CARMA_SOCKET".into(), "/s".into()),
            ("CARMANIA".into(), "yes".into()),
            ("ODD".into(), odd.clone()),
            (odd, "value".into()),
        ];
        let (env, left_out) = capture(vars.into_iter());
        assert_eq!(env.keys().collect::<Vec<_>>(), ["CARMANIA", "CARMA_SOCKET", "HOME"]);
        assert_eq!(left_out, ["ODD", "x\u{fffd}"]);
    }

    #[test]
    fn paths_are_absolute() {
        let mut args = command();
        assert_eq!(one(&args).cwd, "/home/a");
        assert_eq!(one(&args).output, None);
        args.output = Some("out.txt".into());
        assert_eq!(one(&args).output.as_deref(), Some("/home/a/out.txt"));
        args.chdir = Some("work".into());
        assert_eq!(one(&args).cwd, "/home/a/work");
        assert_eq!(one(&args).output.as_deref(), Some("/home/a/work/out.txt"));
        (args.chdir, args.output) = (Some("/x/".into()), Some("/dev/null".into()));
        assert_eq!((one(&args).cwd.as_str(), one(&args).output.as_deref()), ("/x", Some("/dev/null")));
        (args.chdir, args.output) = (Some("/x/50%j".into()), Some("slurm-%j.out".into()));
        assert_eq!(one(&args).output.as_deref(), Some("/x/50%%j/slurm-%j.out"));
        args.output = Some("/y/%j".into());
        assert_eq!(one(&args).output.as_deref(), Some("/y/%j"));
        args.output = Some("%A_%a.out".into());
        let refused = requests(&args, &[], &around()).unwrap_err();
        assert!(refused.message.unwrap().contains("'%A'"));
    }

    #[test]
    fn where_and_how_it_saves_its_work() {
        let mut args = command();
        assert_eq!((one(&args).checkpoint_signal, one(&args).checkpoint_dir), (None, None));
        args.checkpoint_signal = Some(CheckpointSignal::Usr1);
        args.grace = Some(Millis::secs(300));
        args.checkpoint_dir = Some("ckpt".into());
        args.chdir = Some("work".into());
        let job = one(&args);
        assert_eq!((job.checkpoint_signal, job.grace_ms), (Some(CheckpointSignal::Usr1), Some(300_000)));
        assert_eq!(job.checkpoint_dir.as_deref(), Some("/home/a/work/ckpt"));
    }

    #[test]
    fn the_name_of_a_log_writes_nothing_to_the_terminal() {
        let reply = serde_json::json!({"version": 1, "id": 3, "log": "/home/a/out\n\u{1b}[31mX"});
        let reply: SubmitReply = serde_json::from_value(reply).unwrap();
        assert_eq!(log_of(&reply), r"log: /home/a/out\n\u{1b}[31mX");
    }

    #[test]
    fn options_go_before_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("j.toml");
        let text = "command = ['python', 'a.py']\nname = 'file'\nexclusive = true\ngpu-memory = '20G'\ntime = '1h'\n\
                    cwd = 'sub'\npriority = 5\nenv = { PATH = '/file', A = 'file', B = 'file' }\n";
        std::fs::write(&file, text).unwrap();
        let mut args = JobArgs { file: Some(file), ..JobArgs::default() };
        let job = one(&args);
        assert_eq!((job.name.as_deref(), job.exclusive, job.priority), (Some("file"), true, 5));
        assert_eq!(job.cwd, "/home/a/sub");
        assert_eq!(job.env["PATH"], "/file");
        args.command = vec!["true".into()];
        args.name = Some("flag".into());
        args.shared = true;
        args.gpu_memory = Some(MiB::gib(8));
        args.time = Some(Millis::secs(60));
        args.priority = Some(0);
        args.sharing = Some(SharingMode::Mps);
        args.env = vec![("A".into(), "flag".into())];
        let job = one(&args);
        assert_eq!(job.command, ["true"]);
        assert_eq!((job.name.as_deref(), job.exclusive, job.priority), (Some("flag"), false, 0));
        assert_eq!((job.gpu_memory_mib, job.time_limit_ms), (Some(8192), Some(60_000)));
        assert_eq!((job.env["A"].as_str(), job.env["B"].as_str()), ("flag", "file"));
    }

    #[test]
    fn a_line_for_the_shell() {
        let job = one(&JobArgs { wrap: Some("a | b".into()), ..JobArgs::default() });
        assert_eq!(job.command, ["/bin/sh", "-c", "a | b"]);
        assert_eq!(job.name.as_deref(), Some("wrap"));
    }

    #[test]
    fn all_files_are_read_first_and_mistakes_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let (good, bad) = (dir.path().join("good.rad"), dir.path().join("bad.rad"));
        std::fs::write(&good, "# x\nconda activate base\npython a.py\n\n\n\nexclusive\n2\n700\n").unwrap();
        std::fs::write(&bad, "# x\nconda activate base\npython a.py\n\n\n\nexclusive\nmany\n").unwrap();
        let args = JobArgs { gpu_memory: Some(MiB(900)), ..JobArgs::default() };
        let job = requests(&args, std::slice::from_ref(&good), &around()).unwrap().remove(0).0;
        assert_eq!((job.gpus, job.measured_mib, job.gpu_memory_mib), (Some(2), Some(700), Some(900)));
        assert_eq!((job.cwd.as_str(), job.env["PATH"].as_str()), ("/home/a", "/bin"));
        let failure = requests(&args, &[good, bad], &around()).unwrap_err();
        assert_eq!(failure.code, 2);
        assert!(failure.message.unwrap().contains("bad.rad:8: expected the number of GPUs"));
    }

    #[test]
    fn what_is_not_text_is_refused() {
        let mut args = command();
        args.command.push(OsString::from_vec(vec![b'x', 0xff]));
        assert_eq!(requests(&args, &[], &around()).unwrap_err().code, 2);
    }
}
