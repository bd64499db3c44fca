//! `carma logs`: a job's output, from its file.

use super::Context;
use super::follow::{Follower, open_log, tail_start};
use super::stream::{self, Attendant, Ending, Events, say};
use super::wait::{epitaph, is_over};
use crate::cli::LogsArgs;
use crate::failure::{Failure, NOT_ALLOWED, Outcome};
use carma_api::wire::JobDetail;
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
    let path = Path::new(&detail.log);
    let follow = args.follow && !is_over(&detail.job);
    let mut follower = match open_log(path, detail.pid) {
        Ok(file) => {
            let start = args.tail.map_or(Ok(0), |lines| tail_start(&file, lines));
            let start = start.map_err(|e| unreadable(&detail, &e))?;
            if !follow {
                return print_from(file, start, &detail);
            }
            Follower::resume(path, file, start)
        }
        // It comes when the job starts, or is found through the job's process.
        Err(e) if follow && e.kind() == ErrorKind::NotFound => Follower::new(path),
        Err(e) => return Err(unreadable(&detail, &e)),
    };
    let events = Events::new();
    events
        .wait_for(context.socket.clone(), args.id)
        .map_err(|e| Failure::new(format!("cannot follow a job: {e}")))?;
    if let Ending::Over(detail) = stream::copy(context, args.id, &mut follower, &events, &mut Reader)? {
        say(&epitaph(&detail.job));
    }
    Ok(0)
}

/// Someone who only reads: Ctrl-C ends the reading by itself.
struct Reader;

impl Attendant for Reader {
    fn waiting(&mut self, _: &JobDetail) {}

    fn interrupted(&mut self) -> Option<u8> {
        None
    }
}

/// Prints what is there now, and not what a busy job adds meanwhile.
fn print_from(mut file: File, start: u64, detail: &JobDetail) -> Outcome {
    let failed = |e: io::Error| unreadable(detail, &e);
    let length = file.metadata().map_err(failed)?.len();
    file.seek(SeekFrom::Start(start)).map_err(failed)?;
    let mut out = io::stdout().lock();
    io::copy(&mut file.take(length.saturating_sub(start)), &mut out)?;
    out.flush()?;
    Ok(0)
}

fn unreadable(detail: &JobDetail, error: &io::Error) -> Failure {
    let job = &detail.job;
    match error.kind() {
        ErrorKind::NotFound if job.started_ms.is_none() => {
            Failure::new(format!("job {} has no output: {}, {}", job.id, job.state, job.reason.text))
                .hint(format!("`carma logs -f {}` waits for it", job.id))
        }
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
