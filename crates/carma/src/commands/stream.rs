//! A job's output as it comes, until the job is over: what `run` and `logs -f` share.

use super::Context;
use super::follow::{Log, Notice};
use super::signals;
use super::wait::{PATIENCE, until_over};
use carma_api::wire::JobDetail;
use carma_api::{Client, ClientError};
use carma_cli::failure::Failure;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use tokio::signal::unix::SignalKind;

/// How often the log is looked at. Not inotify, which says nothing on network file systems, where
/// homes and so logs often are.
const LOOK: Duration = Duration::from_millis(100);
/// How often the daemon is asked about a job that has no output yet.
const ASK: Duration = Duration::from_secs(1);

/// What happens besides new output.
#[derive(Debug)]
pub(crate) enum Event {
    /// The job is over.
    Over(Box<JobDetail>),
    /// Waiting for it failed.
    Failed(ClientError),
    /// The daemon went away, or is back.
    Away(bool),
    /// The user wants out: SIGINT or SIGTERM.
    Interrupt,
}

/// How a stream ended.
#[derive(Debug)]
pub(crate) enum Ending {
    /// The job is over, and all of its output was copied.
    Over(Box<JobDetail>),
    /// The job is over, and why the rest of its output could not be copied.
    Cut(Box<JobDetail>, Failure),
    /// The user left; the exit code to leave with.
    Left(u8),
}

/// Events and where they come from.
pub(crate) struct Events {
    sender: Sender<Event>,
    receiver: Receiver<Event>,
}

impl Events {
    /// No source yet.
    pub(crate) fn new() -> Self {
        let (sender, receiver) = channel();
        Self { sender, receiver }
    }

    /// From now on SIGINT, SIGTERM and these more are events ([`signals::catch`]).
    ///
    /// # Errors
    /// When the system gives no more threads or descriptors.
    pub(crate) fn catch_signals(&self, more: &[SignalKind]) -> io::Result<()> {
        let events = self.sender.clone();
        signals::catch(more, move || events.send(Event::Interrupt).is_ok())
    }

    /// The next event; `None` when no more can come.
    pub(crate) fn next(&self) -> Option<Event> {
        self.receiver.recv().ok()
    }

    /// From now on the end of the job is an event.
    ///
    /// # Errors
    /// When the system gives no more threads.
    pub(crate) fn wait_for(&self, socket: PathBuf, id: u64) -> io::Result<()> {
        let events = self.sender.clone();
        std::thread::Builder::new().name("wait".into()).spawn(move || {
            // The receiver is gone once the user has left.
            let last = match until_over(&socket, id, None, &mut |away| drop(events.send(Event::Away(away)))) {
                Ok(detail) => Event::Over(Box::new(detail)),
                Err(error) => Event::Failed(error),
            };
            let _ = events.send(last);
        })?;
        Ok(())
    }
}

/// What a stream does besides copying.
pub(crate) trait Attendant {
    /// The job is known to be in this state; told at most once a second, while there is no output.
    fn waiting(&mut self, detail: &JobDetail);

    /// The user wants out. Returns the exit code to leave with, or `None` to go on.
    fn interrupted(&mut self) -> Option<u8>;
}

/// Copies a job's output to standard output until the job is over.
///
/// # Errors
/// What the daemon refuses, a daemon that stays away, a standard output that takes no more.
pub(crate) fn copy(
    context: &Context,
    id: u64,
    follower: &mut Log,
    events: &Events,
    attendant: &mut dyn Attendant,
) -> Result<Ending, Failure> {
    let mut out = io::stdout();
    let mut pid = None;
    let mut client: Option<Client> = None;
    let mut asked = Instant::now();
    let mut over = None;
    // Since when the rest of the output cannot be had.
    let mut lost: Option<Instant> = None;
    loop {
        let pumped = match follower.pump(if over.is_some() { None } else { pid }, &mut out) {
            Ok(pumped) => pumped,
            Err(error) => match over {
                Some(detail) => return Ok(Ending::Cut(detail, error.into())),
                None => return Err(error.into()),
            },
        };
        match pumped.notice {
            Some(Notice::Truncated) => say("the log was cut short; it is shown again from its start"),
            Some(Notice::Replaced) => say("another file took the log's place; it is shown from its start"),
            None => {}
        }
        if !pumped.more
            && let Some(detail) = over.take()
        {
            let Some(failure) = pumped.failed else { return Ok(Ending::Over(detail)) };
            if lost.is_none() {
                say(&format!("job {id} is over, but the rest of its output cannot be had yet; trying again"));
            }
            if lost.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                return Ok(Ending::Cut(detail, failure));
            }
            over = Some(detail);
        } else {
            lost = None;
        }
        // Also while there is more: the user may have seen enough.
        match events.receiver.recv_timeout(if pumped.more { Duration::ZERO } else { LOOK }) {
            Ok(Event::Over(detail)) => over = Some(detail),
            Ok(Event::Failed(error)) => return Err(error.into()),
            Ok(Event::Away(true)) => say("the daemon does not answer; the job goes on, and so does its log"),
            Ok(Event::Away(false)) => say("the daemon is back"),
            Ok(Event::Interrupt) => {
                if let Some(code) = attendant.interrupted() {
                    return Ok(Ending::Left(code));
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            // Impossible while `events` holds a sender.
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Failure::new("nobody waits for the job any more"));
            }
        }
        if !follower.has_begun() && asked.elapsed() >= ASK {
            asked = Instant::now();
            // Failures show as events of the thread that waits; here the answer can do without.
            let answer = client.take().map_or_else(|| Client::connect(&context.socket), Ok);
            if let Ok(mut connected) = answer
                && let Ok(detail) = connected.get::<JobDetail>(&format!("/v1/jobs/{id}"))
            {
                pid = detail.pid;
                attendant.waiting(&detail);
                client = Some(connected);
            }
        }
    }
}

/// Tells the user something that is not the job's output.
pub(crate) fn say(text: &str) {
    Failure::new(text).tell();
}
