//! `carma wait`: until jobs are over.

use super::Context;
use super::printed::Printed;
use crate::cli::{IdRange, WaitArgs};
use carma_api::wire::{JobDetail, JobView};
use carma_api::{Client, ClientError};
use carma_cli::failure::{Failure, GENERAL, Outcome};
use carma_cli::{clean, print_json};
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long one request may wait; shorter than what proxies and idle timers tolerate.
const ONE_WAIT_MS: u32 = 25_000;
/// How long a daemon may be away (an upgrade, a restart) before we give up. Jobs survive that.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Pause between tries to reach a daemon that is away.
const RETRY: Duration = Duration::from_millis(300);

/// Waits for all of the jobs, and prints a line at the end of each. The exit code is that of the last job which did not
/// succeed, 0 if all did.
pub(crate) fn run(context: &Context, args: &WaitArgs) -> Outcome {
    // Whether it is there at all shows at once, without the patience for restarts.
    let mut client = Some(context.client()?);
    let mut code = 0;
    let (mut ended, mut printed) = (Vec::new(), Printed::default());
    for id in IdRange::all(&args.jobs.ids) {
        let detail = match until_over(&context.socket, id, client.take(), &mut |_| ()) {
            Ok(detail) => detail,
            Err(refusal @ ClientError::Refused { .. }) => {
                let failure = Failure::from(refusal);
                failure.tell();
                code = failure.code;
                continue;
            }
            Err(other) => return Err(other.into()),
        };
        let own = exit_code(&detail.job);
        if own != 0 {
            code = own;
        }
        if args.json {
            ended.push(detail.job);
        } else {
            printed.add(|| writeln!(io::stdout().lock(), "{}", end_line(&detail.job)));
        }
    }
    if args.json {
        printed.add(|| print_json(&serde_json::json!({"version": carma_api::VERSION, "jobs": ended})));
    }
    Ok(printed.end(code))
}

/// Waits until a job is over, through restarts of the daemon. `away` is told when the daemon goes
/// away (`true`) and when it is back (`false`).
///
/// # Errors
/// Refusals at once; a daemon that stays away, or busy, after a minute.
pub(crate) fn until_over(
    socket: &Path,
    id: u64,
    mut client: Option<Client>,
    away: &mut dyn FnMut(bool),
) -> Result<JobDetail, ClientError> {
    let path = format!("/v1/jobs/{id}/wait?timeout_ms={ONE_WAIT_MS}");
    let mut lost: Option<Instant> = None;
    loop {
        let asked = Instant::now();
        let answer = match client.take() {
            Some(client) => Ok(client),
            None => Client::connect(socket),
        }
        .and_then(|mut c| c.get::<JobDetail>(&path).inspect(|_| client = Some(c)));
        match answer {
            Ok(detail) => {
                if is_over(&detail.job) {
                    return Ok(detail);
                }
                if lost.take().is_some() {
                    away(false);
                }
                // An answer that came at once would make this a busy loop.
                std::thread::sleep(RETRY.saturating_sub(asked.elapsed()));
            }
            // Busy, or about to stop: it may be otherwise in a moment.
            Err(error @ ClientError::Refused { status, .. }) if status != 503 => return Err(error),
            Err(error) => {
                if lost.is_none() {
                    away(true);
                }
                if lost.get_or_insert(asked).elapsed() > PATIENCE {
                    return Err(error);
                }
                std::thread::sleep(RETRY);
            }
        }
    }
}

/// Whether nothing more comes.
pub(crate) fn is_over(job: &JobView) -> bool {
    !matches!(job.state.as_str(), "PENDING" | "RUNNING" | "SUSPENDED")
}

/// The job's own exit code where it says something; 1 for a job that did not complete and has no
/// code, or one that would pass for success.
pub(crate) fn exit_code(job: &JobView) -> u8 {
    match (job.state.as_str(), job.exit_code) {
        ("COMPLETED", code) => byte(code.unwrap_or(0)),
        (_, None | Some(0)) => GENERAL,
        (_, Some(code)) => byte(code),
    }
}

/// As the kernel cuts it, but never to 0.
fn byte(code: i32) -> u8 {
    match (code, code.to_le_bytes()[0]) {
        (0, _) => 0,
        (_, 0) => GENERAL,
        (_, byte) => byte,
    }
}

/// How a job ended, in a line.
pub(crate) fn end_line(job: &JobView) -> String {
    let code = job.exit_code.map(|c| format!(" (exit code {c})")).unwrap_or_default();
    let why = if job.state == "COMPLETED" { String::new() } else { format!(": {}", clean(&job.reason.text)) };
    format!("job {} {}{code}{why}", job.id, clean(&job.state))
}

#[cfg(test)]
mod tests {
    use super::super::queue::tests::job;
    use super::*;

    fn ended(state: &str, code: Option<i32>) -> JobView {
        JobView { exit_code: code, ..job(7, state, "X", "why") }
    }

    #[test]
    fn exit_codes_tell_the_truth() {
        for (state, code, shown) in [
            ("COMPLETED", Some(0), 0),
            ("COMPLETED", None, 0),
            ("FAILED", Some(3), 3),
            ("FAILED", None, 1),
            ("CANCELLED", Some(0), 1),
            ("TIMEOUT", Some(143), 143),
            ("OUT_OF_MEMORY", Some(1), 1),
            ("FAILED", Some(256), 1),
        ] {
            assert_eq!(exit_code(&ended(state, code)), shown, "{state} {code:?}");
        }
    }

    #[test]
    fn how_it_ended() {
        assert_eq!(end_line(&ended("COMPLETED", Some(0))), "job 7 COMPLETED (exit code 0)");
        assert_eq!(end_line(&ended("CANCELLED", None)), "job 7 CANCELLED: why");
    }
}
