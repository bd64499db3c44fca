//! `carma run`: submit, follow the output, return the job's exit code.

use super::follow::{Follower, Log};
use super::signals::INTERRUPTED;
use super::stream::{self, Attendant, Ending, Events, say};
use super::submit::{Surroundings, dry_run, expected, requests, send};
use super::tracer::Shows;
use super::wait::{end_line, exit_code};
use super::{Context, directories, expect, order};
use crate::cli::RunArgs;
use carma_api::wire::{DoneReply, JobDetail};
use carma_api::{Client, output};
use carma_cli::failure::{Failure, Outcome};
use std::path::Path;

/// What a shell shows for a program that SIGPIPE ended.
const CLOSED: u8 = 141;

/// Runs the job. Standard output carries the job's output and nothing else.
pub(crate) fn run(context: &Context, args: &RunArgs) -> Outcome {
    let mut requests = requests(&args.job, args.rad.as_slice(), &Surroundings::of_caller()?)?;
    let Some((mut request, mut modelled)) = requests.pop() else {
        return Err(Failure::usage("there is nothing to run"));
    };
    directories::warn([&request]);
    dry_run(context, &args.job, &request, &mut modelled, Shows::Progress)?;
    let mut client = context.client()?;
    expect::fill(&mut client, &mut request, &modelled)?;
    let threads = |e| Failure::new(format!("cannot follow a job: {e}"));
    let events = Events::new();
    events.catch_signals(&[]).map_err(threads)?;
    // Jobs append to their files: what is in one already is not this job's.
    // A file that is named after the job is its own.
    let known = request.output.as_deref().and_then(output::same_for_all);
    let appended = known.and_then(|file| Follower::of_news(Path::new(&file)));
    let accepted = send(&mut client, &request, 1)?;
    let id = accepted.id;
    say(&format!("job {id} submitted; {}", super::submit::log_of(&accepted)));
    if let Some(expected) = expected(&accepted) {
        say(&expected);
    }
    events.wait_for(context.socket.clone(), id).map_err(threads)?;
    let mut follower = match appended {
        Some(file) => Log::File(file),
        None => Log::new(&context.socket, id, accepted.log_kept, Path::new(&accepted.log)),
    };
    let mut owner = Owner { context, id, interrupts: 0, told: String::new() };
    match stream::copy(context, id, &mut follower, &events, &mut owner) {
        Ok(Ending::Over(detail)) => {
            let code = exit_code(&detail.job);
            if code != 0 {
                say(&end_line(&detail.job));
            }
            Ok(code)
        }
        Ok(Ending::Cut(detail, failure)) => {
            say(&end_line(&detail.job));
            say(&format!("not all of its output was shown; `carma logs {id}` has it"));
            unshown(failure)
        }
        Ok(Ending::Left(code)) => Ok(code),
        Err(failure) => {
            say(&format!("job {id} goes on; `carma logs -f {id}` follows it, `carma cancel {id}` ends it"));
            unshown(failure)
        }
    }
}

/// How it ends without all of the output. Where standard output is closed, 0 would say that the job ended with 0.
fn unshown(failure: Failure) -> Outcome {
    if failure.is_closed_pipe() { Ok(CLOSED) } else { Err(failure) }
}

/// The user who started the job and may end it.
struct Owner<'a> {
    context: &'a Context,
    id: u64,
    interrupts: u32,
    /// The reason that was told last. Its numbers change all the time, its code seldom.
    told: String,
}

impl Attendant for Owner<'_> {
    fn waiting(&mut self, detail: &JobDetail) {
        let reason = &detail.job.reason;
        if detail.job.state == "PENDING" && reason.code != self.told {
            self.told.clone_from(&reason.code);
            say(&format!("job {} waits: {}", self.id, reason.text));
        }
    }

    fn interrupted(&mut self) -> Option<u8> {
        self.interrupts += 1;
        let id = self.id;
        if self.interrupts > 1 {
            say(&format!("left job {id}; `carma logs -f {id}` follows it again"));
            return Some(INTERRUPTED);
        }
        let path = format!("/v1/jobs/{id}/cancel");
        let cancelled = Client::connect(&self.context.socket)
            .and_then(|mut client| client.post::<DoneReply>(&path, &serde_json::json!({})));
        match cancelled {
            Ok(done) => say(&format!(
                "{}; Ctrl-C again leaves at once",
                order::line(order::Target::Jobs, id, &done.text)
            )),
            Err(error) => Failure::from(error).tell(),
        }
        None
    }
}
