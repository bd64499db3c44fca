//! One file for each verb. A verb asks the daemon, renders the answer and returns an exit code.

mod bench;
mod cancel;
mod config;
mod demo;
mod directories;
mod doctor;
mod drain;
mod dry_run;
mod estimate;
mod expect;
mod explain;
mod follow;
mod gpus;
mod history;
mod hold;
mod journal;
mod lab;
mod logs;
mod move_job;
mod order;
mod packages;
mod predict;
mod printed;
mod profile;
mod queue;
mod release;
mod report;
mod requeue;
mod resume;
mod run;
mod serve;
mod show;
mod signals;
mod simulate;
mod spoken;
mod stream;
mod submit;
mod suspend;
mod trace;
mod trace_model;
mod tracer;
mod usage;
mod virtual_task;
mod wait;

pub(crate) use report::moment;

use crate::cli::{Cli, ConfigVerb, Verb};
use crate::places::default_socket;
use carma_api::Client;
use carma_api::wire::UnwrittenView;
use carma_cli::failure::{self, Failure, Outcome};
use carma_cli::{Screen, clean, print, print_json, time_of_day, wrap};
use carma_core::units::Millis;
use serde::de::DeserializeOwned;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

/// What every verb may need.
pub(crate) struct Context {
    /// The daemon's socket.
    pub(crate) socket: PathBuf,
}

impl Context {
    /// Connects to the daemon.
    fn client(&self) -> Result<Client, Failure> {
        Ok(Client::connect(&self.socket)?)
    }

    /// Asks for something and prints it: as the daemon sent it, or rendered.
    fn listing<T: DeserializeOwned>(
        &self,
        path: &str,
        json: bool,
        render: impl FnOnce(&T, &Screen) -> String,
    ) -> Outcome {
        let mut client = self.client()?;
        if json {
            print_json(&client.get(path)?)?;
        } else {
            print(&render(&client.get(path)?, &Screen::stdout()))?;
        }
        Ok(0)
    }
}

/// That the daemon can write nothing, if so: what is shown stands as of then, and what it says of GPUs is not why jobs wait.
fn unwritten(view: Option<&UnwrittenView>, now_ms: u64, screen: &Screen) -> String {
    let Some(UnwrittenView { since_ms, why, advice }) = view else { return String::new() };
    let text = format!(
        "Nothing is started or accepted since {} ({}): {why}. Jobs that run go on; what is shown of jobs is as of then. {advice}: \
         the daemon tries again by itself.",
        time_of_day(*since_ms, now_ms, screen),
        Millis(now_ms).since(Millis(*since_ms)),
    );
    wrap(&clean(&text), screen, 0).iter().map(|line| format!("{line}\n")).collect()
}

/// What kept a measurement from being made, with its exit code.
fn unmeasured(error: carma_measure::Error) -> Failure {
    let code = match error.kind {
        carma_measure::FailureKind::Usage => failure::USAGE,
        carma_measure::FailureKind::Busy => failure::NO_CAPACITY,
        carma_measure::FailureKind::Failed => failure::GENERAL,
    };
    Failure { code, message: Some(error.message), hint: error.hint }
}

/// Time by this machine's clock, ms since 1970.
fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Runs the verb and returns its exit code.
///
/// # Errors
/// What the verb fails of. A standard output that its reader closed counts as success.
pub(crate) fn dispatch(cli: Cli) -> Outcome {
    // An empty CARMA_SOCKET is as good as none.
    let given = cli.socket.clone().filter(|path| !path.as_os_str().is_empty());
    let context = Context { socket: given.clone().unwrap_or_else(default_socket) };
    let outcome = match cli.verb {
        Verb::Submit(args) => submit::run(&context, &args),
        Verb::Run(args) => run::run(&context, &args),
        Verb::Queue(args) => queue::run(&context, &args),
        Verb::Show(args) => show::run(&context, &args),
        Verb::Explain(args) => explain::run(&context, &args),
        Verb::Cancel(args) => cancel::run(&context, &args),
        Verb::Logs(args) => logs::run(&context, &args),
        Verb::Wait(args) => wait::run(&context, &args),
        Verb::Gpus(args) => gpus::run(&context, &args),
        Verb::History(args) => history::run(&context, &args),
        Verb::Usage(args) => usage::run(&context, &args),
        Verb::Hold(args) => hold::run(&context, &args),
        Verb::Release(args) => release::run(&context, &args),
        Verb::Requeue(args) => requeue::run(&context, &args),
        Verb::Drain(args) => drain::run(&context, &args),
        Verb::Move(args) => move_job::run(&context, &args),
        Verb::Suspend(args) => suspend::run(&context, &args),
        Verb::Resume(args) => resume::run(&context, &args),
        Verb::Config(ConfigVerb::Check(args)) => config::check(&args),
        Verb::Doctor(args) => doctor::run(&context, &args),
        Verb::Serve(args) => serve::run(given, &args),
        Verb::Journal(verb) => journal::run(&context, &verb),
        Verb::Estimate(args) => estimate::run(&context, &args),
        Verb::DryRun(args) => dry_run::run(&context, &args),
        Verb::TraceModel(args) => trace_model::run(&context, &args),
        Verb::Predict(args) => predict::run(&context, &args),
        Verb::Profile(args) => profile::run(&context, &args),
        Verb::Bench(verb) => bench::run(&verb),
        Verb::Simulate(args) => simulate::run(&args),
        Verb::Report(args) => report::run(&context, &args),
        Verb::Trace(verb) => trace::run(&context, &verb),
        Verb::Lab(args) => lab::run(&args),
        Verb::Demo => demo::run(),
        Verb::VirtualTask(args) => virtual_task::run(&args),
    };
    match outcome {
        Err(failure) if failure.is_closed_pipe() => Ok(failure.code),
        outcome => outcome,
    }
}

/// A name as a value in an address: whatever might mean something there is written as bytes.
fn encoded(name: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    name.bytes().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use carma_measure::{Error, FailureKind};

    #[test]
    fn what_cannot_be_written_stands_above_all_else() {
        let screen = Screen::of_width(Some(80));
        assert_eq!(unwritten(None, 0, &screen), "");
        let view = UnwrittenView {
            since_ms: 1_760_000_111_000,
            why: "the journal cannot be written: database or disk is full".into(),
            advice: "If the disk of /var/lib/carma is full, make room there".into(),
        };
        insta::assert_snapshot!(unwritten(Some(&view), 1_760_000_200_000, &screen), @r"
        Nothing is started or accepted since 08:55:11 (1 min 29 s): the journal cannot
        be written: database or disk is full. Jobs that run go on; what is shown of jobs
        is as of then. If the disk of /var/lib/carma is full, make room there: the
        daemon tries again by itself.
        ");
    }

    #[test]
    fn a_measurement_that_fails_has_a_code_with_a_meaning() {
        for (kind, code) in [(FailureKind::Usage, 2), (FailureKind::Busy, 75), (FailureKind::Failed, 1)] {
            let error = Error { kind, message: "what".into(), hint: Some("do".into()) };
            let failure = unmeasured(error);
            assert_eq!((failure.code, failure.message.as_deref()), (code, Some("what")));
            assert_eq!(failure.hint.as_deref(), Some("do"));
        }
    }
}
