//! `carma logs`: a job's output, by way of the daemon or from its file.

use super::Context;
use super::follow::{Follower, KeptLog, Log, Owner, open_log, tail_start};
use super::stream::{self, Attendant, Ending, Events, say};
use super::wait::{end_line, is_over};
use crate::cli::LogsArgs;
use carma_api::ClientError;
use carma_api::wire::JobDetail;
use carma_cli::failure::{Failure, NOT_ALLOWED, Outcome};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::Path;

/// Prints the log.
pub(crate) fn run(context: &Context, args: &LogsArgs) -> Outcome {
    let detail: JobDetail = context.client()?.get(&format!("/v1/jobs/{}", args.id))?;
    if detail.log.is_empty() {
        let text = format!("the log of job {} belongs to {}", args.id, detail.job.user);
        return Err(Failure { code: NOT_ALLOWED, ..Failure::new(text) });
    }
    let follow = args.follow && !is_over(&detail.job);
    let mut log = if detail.log_kept {
        match kept(context, &detail, args, follow)? {
            Some(log) => Log::Kept(log),
            None => return Ok(0),
        }
    } else {
        match file(&detail, args, follow)? {
            Some(follower) => Log::File(follower),
            None => return Ok(0),
        }
    };
    let events = Events::new();
    events
        .wait_for(context.socket.clone(), args.id)
        .map_err(|e| Failure::new(format!("cannot follow a job: {e}")))?;
    match stream::copy(context, args.id, &mut log, &events, &mut Reader)? {
        Ending::Over(detail) => {
            say(&end_line(&detail.job));
            Ok(0)
        }
        Ending::Cut(detail, failure) => {
            say(&end_line(&detail.job));
            Err(failure)
        }
        Ending::Left(code) => Ok(code),
    }
}

/// Prints a log that carma keeps, or makes ready to follow it.
fn kept(
    context: &Context,
    detail: &JobDetail,
    args: &LogsArgs,
    follow: bool,
) -> Result<Option<KeptLog>, Failure> {
    let mut log = KeptLog::new(&context.socket, args.id);
    if let Some(lines) = args.tail {
        match log.seek_tail(lines) {
            Ok(()) => {}
            // It comes when the job starts.
            Err(ClientError::Refused { code, .. }) if follow && code == "no_log" => {}
            Err(error) => return Err(refused(detail, error)),
        }
    }
    if follow {
        return Ok(Some(log));
    }
    log.print(&mut io::stdout().lock(), |error| refused(detail, error))?;
    if log.is_empty() { was_started(detail).map(|()| None) } else { Ok(None) }
}

/// Prints a log that is a file of the user's, or makes ready to follow it.
fn file(detail: &JobDetail, args: &LogsArgs, follow: bool) -> Result<Option<Follower>, Failure> {
    let path = Path::new(&detail.log);
    let owner = Owner::of(&detail.job.user)?;
    match open_log(path, detail.pid, owner) {
        Ok(file) => {
            let start = args.tail.map_or(Ok(0), |lines| tail_start(&file, lines));
            let start = start.map_err(|e| unreadable(detail, &e))?;
            if !follow {
                let printed = print_from(file, start, detail)?;
                return if printed == 0 { was_started(detail).map(|()| None) } else { Ok(None) };
            }
            Ok(Some(Follower::resume(path, owner, file, start)))
        }
        // It comes when the job starts, or is found through the job's process.
        Err(e) if follow && e.kind() == ErrorKind::NotFound => Ok(Some(Follower::new(path, owner))),
        Err(e) => Err(unreadable(detail, &e)),
    }
}

/// Someone who only reads: Ctrl-C ends the reading by itself.
struct Reader;

impl Attendant for Reader {
    fn waiting(&mut self, _: &JobDetail) {}

    fn interrupted(&mut self) -> Option<u8> {
        None
    }
}

/// Prints what is there now, and not what a busy job adds meanwhile. Returns how many bytes that were.
fn print_from(mut file: File, start: u64, detail: &JobDetail) -> Result<u64, Failure> {
    let failed = |e: io::Error| unreadable(detail, &e);
    let length = file.metadata().map_err(failed)?.len();
    file.seek(SeekFrom::Start(start)).map_err(failed)?;
    let mut out = io::stdout().lock();
    let printed = io::copy(&mut file.take(length.saturating_sub(start)), &mut out)?;
    out.flush()?;
    Ok(printed)
}

/// Of a job without a line of output: a command that was never started has none for a reason.
fn was_started(detail: &JobDetail) -> Result<(), Failure> {
    if detail.job.reason.code == "NotStarted" { Err(no_output(detail)) } else { Ok(()) }
}

fn unreadable(detail: &JobDetail, error: &io::Error) -> Failure {
    let job = &detail.job;
    match error.kind() {
        ErrorKind::NotFound if job.started_ms.is_none() => no_output(detail),
        ErrorKind::NotFound => {
            Failure::new(format!("the log of job {} is gone: {} was deleted", job.id, detail.log))
        }
        ErrorKind::PermissionDenied => Failure {
            code: NOT_ALLOWED,
            ..Failure::new(format!("you may not read the log of job {}: {}", job.id, detail.log))
        },
        _ => Failure::new(format!("the log of job {} cannot be read: {}: {error}", job.id, detail.log)),
    }
}

/// What the daemon refused, with what is known of the job where it has no log.
fn refused(detail: &JobDetail, error: ClientError) -> Failure {
    let no_log = matches!(&error, ClientError::Refused { code, .. } if code == "no_log");
    match detail.job.started_ms {
        None if no_log => no_output(detail),
        Some(_) if no_log => waits_for(detail, error.into()),
        _ => error.into(),
    }
}

/// Of a job that was never started.
fn no_output(detail: &JobDetail) -> Failure {
    let job = &detail.job;
    let text = format!("job {} has no output: {}, {}", job.id, job.state, job.reason.text);
    waits_for(detail, Failure::new(text))
}

/// Says how to wait for output, where there may be some.
fn waits_for(detail: &JobDetail, failure: Failure) -> Failure {
    if is_over(&detail.job) {
        return failure;
    }
    failure.hint(format!("`carma logs -f {}` waits for it", detail.job.id))
}
