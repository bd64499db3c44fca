//! What the daemon recorded in a span of time, and the jobs that ran then.

use super::run::busy;
use crate::commands::Context;
use carma_api::record::{Fold, RecordReply, RecordedGpu, Row};
use carma_api::wire::{AttemptView, JobDetail, JobView, JobsReply, StatusReply};
use carma_api::{Client, ClientError};
use carma_cli::failure::Failure;
use carma_core::model::SharingMode;
use carma_core::units::Millis;

/// Jobs whose attempts are asked for at most: each is a question of its own.
const JOBS: usize = 5000;
/// Jobs over that are asked for at first, and if those do not reach back far enough.
const HISTORY: [u64; 2] = [1000, 100_000];

/// A span of time, Unix milliseconds of the daemon's clock: after the first up to the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) since: u64,
    pub(super) until: u64,
}

/// A job that ran.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Ran {
    pub(super) row: JobView,
    pub(super) attempts: Vec<AttemptView>,
}

/// A recorded run.
#[derive(Debug, Clone)]
pub(super) struct Recorded {
    pub(super) span: Span,
    /// Length of a row.
    pub(super) step: Millis,
    pub(super) gpus: Vec<RecordedGpu>,
    /// As they are drawn.
    pub(super) rows: Vec<Row>,
    /// Shorter ones, from the first arrival to the last end, where those that are drawn are longer.
    pub(super) finer: Option<Vec<Row>>,
    pub(super) jobs: Vec<Ran>,
    pub(super) policy: String,
    pub(super) sharing: SharingMode,
    pub(super) now_ms: u64,
    /// When the oldest row begins that is kept, whatever was asked for.
    pub(super) first_ms: Option<u64>,
    /// Looks that were not recorded since the daemon started.
    pub(super) dropped_looks: u64,
    /// What a reader should know.
    pub(super) notes: Vec<String>,
}

impl Recorded {
    /// The rows that figures are taken from.
    pub(super) fn finest(&self) -> &[Row] {
        self.finer.as_ref().unwrap_or(&self.rows)
    }
}

/// What to ask for. Times are Unix milliseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    pub(super) last: Option<Millis>,
    pub(super) since: Option<u64>,
    pub(super) until: Option<u64>,
    /// `None`: as suits a drawing.
    pub(super) step: Option<Millis>,
    /// Whether jobs are wanted.
    pub(super) jobs: bool,
}

/// Rows of a drawing.
const POINTS: u64 = 600;
/// Rows of figures: they are of less time, and what a job does within a row is not told apart from what is before and after it.
const FIGURES: u64 = 3600;

/// Length of rows, milliseconds, that divide a span into so many. Whole seconds, so that rows end where steps do.
const fn length(span: Span, rows: u64) -> u64 {
    let seconds = (span.until - span.since).div_ceil(rows).div_ceil(1000);
    1000 * if seconds == 0 { 1 } else { seconds }
}

/// Asks for it.
///
/// # Errors
/// What the daemon refuses, and a span of no time.
pub(super) fn fetch(context: &Context, wanted: Wanted) -> Result<Recorded, Failure> {
    let mut client = context.client()?;
    let status: StatusReply = client.get("/v1/status")?;
    let live: JobsReply = client.get("/v1/jobs")?;
    let now = live.now_ms;
    let until = wanted.until.unwrap_or(now).min(now);
    let since = match (wanted.since, wanted.last) {
        (Some(since), _) => since,
        (None, Some(last)) => until.saturating_sub(last.0),
        (None, None) => 0,
    };
    if since >= until {
        return Err(Failure::usage(
            "the report would be of no time: --since is not before --until, or is yet to come",
        ));
    }
    let mut notes = Vec::new();
    let first = rows(&mut client, Span { since, until: since }, Millis::secs(1))?.first_ms;
    let since = match first {
        Some(first) if first > since && first < until => {
            notes.push("what was before is not recorded, or not kept any more".to_owned());
            first
        }
        _ => since,
    };
    let step =
        wanted.step.map_or(length(Span { since, until }, POINTS), |step| step.0.div_ceil(1000).max(1) * 1000);
    let span = Span { since: since / step * step, until };
    let reply = rows(&mut client, span, Millis(step))?;
    if reply.dropped_looks > 0 {
        notes.push(format!(
            "{} looks at the GPUs were not recorded since the daemon started: its disk was too slow",
            reply.dropped_looks
        ));
    }
    let jobs = if wanted.jobs { jobs(&mut client, &live, span, &mut notes)? } else { Vec::new() };
    let busy = busy(&jobs, span);
    let fine = Millis(length(busy, FIGURES));
    // With the row before them: what it says of counters is where they begin.
    let from = Span { since: busy.since.saturating_sub(fine.0), ..busy };
    let finer = if wanted.jobs && fine.0 < step { Some(rows(&mut client, from, fine)?.rows) } else { None };
    Ok(Recorded {
        span,
        step: Millis(step),
        gpus: reply.gpus,
        rows: reply.rows,
        finer,
        first_ms: reply.first_ms,
        dropped_looks: reply.dropped_looks,
        jobs,
        policy: status.policy,
        sharing: status.sharing,
        now_ms: now,
        notes,
    })
}

/// All rows of a span, part by part.
fn rows(client: &mut Client, span: Span, step: Millis) -> Result<RecordReply, Failure> {
    let mut all = RecordReply::default();
    let mut since = span.since;
    loop {
        let path = format!("/v1/record?since_ms={since}&until_ms={}&step_ms={}", span.until, step.0);
        let reply: RecordReply = client.get(&path)?;
        let next = reply.next_ms.filter(|next| *next > since);
        all = join(all, reply, step);
        match next {
            Some(next) => since = next,
            None => return Ok(all),
        }
    }
}

/// Two parts of an answer as one. The second knows nothing of GPUs that were gone by then. A row of very much is in both.
fn join(mut first: RecordReply, mut second: RecordReply, step: Millis) -> RecordReply {
    let bucket = |row: &Row| row.at_ms.div_ceil(step.0.max(1));
    if let Some(begun) =
        first.rows.pop_if(|row| second.rows.first().is_some_and(|s| bucket(s) == bucket(row)))
        && let Some(rest) = second.rows.first_mut()
    {
        let mut fold = Fold::default();
        [&begun, rest].into_iter().for_each(|part| fold.add(part));
        *rest = fold.take(rest.at_ms).unwrap_or_default();
    }
    let there = |gpu: &RecordedGpu| second.gpus.iter().any(|later| later.gpu == gpu.gpu);
    let mut gpus: Vec<RecordedGpu> = first.gpus.into_iter().filter(|gpu| !there(gpu)).collect();
    gpus.extend_from_slice(&second.gpus);
    gpus.sort_by_key(|gpu| gpu.gpu);
    RecordReply { gpus, rows: [first.rows, second.rows].concat(), ..second }
}

/// Jobs that were there in a span.
fn jobs(
    client: &mut Client,
    live: &JobsReply,
    span: Span,
    notes: &mut Vec<String>,
) -> Result<Vec<Ran>, Failure> {
    let mut over = Vec::new();
    for limit in HISTORY {
        let reply: JobsReply = client.get(&format!("/v1/history?limit={limit}"))?;
        over = reply.jobs;
        let reaches = over.last().is_none_or(|job| job.ended_ms.is_some_and(|ended| ended < span.since));
        if reaches || (over.len() as u64) < limit {
            break;
        }
    }
    let there =
        |job: &JobView| job.submitted_ms < span.until && job.ended_ms.is_none_or(|ended| ended > span.since);
    let mut rows: Vec<JobView> = over.into_iter().chain(live.jobs.clone()).filter(there).collect();
    rows.sort_by_key(|job| (job.submitted_ms, job.id));
    rows.dedup_by_key(|job| job.id);
    if rows.len() > JOBS {
        notes.push(format!("{} jobs were there; the report is of the last {JOBS}", rows.len()));
        rows.drain(..rows.len() - JOBS);
    }
    let mut jobs = Vec::new();
    for row in rows {
        if has_no_attempts(&row) {
            jobs.push(Ran { row, attempts: Vec::new() });
            continue;
        }
        match client.get::<JobDetail>(&format!("/v1/jobs/{}", row.id)) {
            Ok(detail) => jobs.push(Ran { row: detail.job, attempts: detail.attempts }),
            // Forgotten between the two questions.
            Err(ClientError::Refused { status: 404, .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(jobs)
}

/// Whether there is nothing to ask of a job: thousands may wait.
fn has_no_attempts(row: &JobView) -> bool {
    row.attempts == 0 && row.gpus.is_empty() && row.started_ms.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::queue::tests::job;

    #[test]
    fn jobs_that_never_began_are_not_asked_about() {
        let mut row = job(7, "PENDING", "Queued", "waits");
        (row.attempts, row.started_ms, row.gpus) = (0, None, Vec::new());
        assert!(has_no_attempts(&row));
        assert!(!has_no_attempts(&JobView { attempts: 1, ..row.clone() }));
        // One that is being launched.
        assert!(!has_no_attempts(&JobView { gpus: vec![0], ..row }));
    }

    #[test]
    fn gpus_of_all_parts_are_told() {
        let part = |gpus: &[u32], at_ms| RecordReply {
            gpus: gpus.iter().map(|gpu| RecordedGpu { gpu: *gpu, ..RecordedGpu::default() }).collect(),
            rows: vec![Row { at_ms, span_ms: 1, ..Row::default() }],
            next_ms: Some(at_ms),
            ..RecordReply::default()
        };
        let join_all = |parts: [RecordReply; 2], step: u64| {
            parts.into_iter().fold(RecordReply::default(), |all, part| join(all, part, Millis(step)))
        };
        let all = join_all([part(&[0, 1, 2], 1), part(&[0, 2], 2)], 1);
        let gpus: Vec<u32> = all.gpus.iter().map(|gpu| gpu.gpu).collect();
        let rows: Vec<u64> = all.rows.iter().map(|row| row.at_ms).collect();
        assert_eq!((gpus, rows, all.next_ms), (vec![0, 1, 2], vec![1, 2], Some(2)));
        let all = join_all([part(&[0], 1), part(&[0], 2)], 2);
        let rows: Vec<(u64, u64)> = all.rows.iter().map(|row| (row.at_ms, row.span_ms)).collect();
        assert_eq!(rows, [(2, 2)]);
    }
}
