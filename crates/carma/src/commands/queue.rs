//! `carma queue`: running and waiting jobs.

use super::{Context, unwritten};
use crate::cli::QueueArgs;
use carma_api::wire::{JobView, JobsReply, LeftView};
use carma_cli::failure::Outcome;
use carma_cli::{Column, Screen, clean, print, print_json, span, spared_line, sparing_after_names};
use carma_core::units::Millis;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Columns that a narrow screen may go without, the most needed first.
const SPARED: [&str; 4] = ["TIME", "USER", "LEFT", "DONE"];

/// Lines that a reason may take on a terminal; `explain` has the whole of it.
const REASON_LINES: usize = 2;

/// Lists the jobs.
pub(crate) fn run(context: &Context, args: &QueueArgs) -> Outcome {
    let mut client = context.client()?;
    let wants_finished = args.state.iter().any(|s| rank(s) == FINISHED);
    let path = if args.all || wants_finished { "/v1/jobs?all=true" } else { "/v1/jobs" };
    if args.json {
        let mut reply: Value = client.get(path)?;
        if let Some(Value::Array(jobs)) = reply.get_mut("jobs") {
            let word =
                |job: &Value, key: &str| job.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
            jobs.retain(|job| wanted(args, &word(job, "user"), &word(job, "state")));
        }
        print_json(&reply)?;
        return Ok(0);
    }
    let mut reply: JobsReply = client.get(path)?;
    let total = reply.jobs.len();
    reply.jobs.retain(|job| wanted(args, &job.user, &job.state));
    if let Some(user) = args.user.as_deref().filter(|_| reply.jobs.is_empty() && args.state.is_empty()) {
        print(&none_of(user, total, args.all))?;
        return Ok(0);
    }
    let screen = Screen::stdout();
    let screen = if args.wide { screen.unlimited() } else { screen };
    let screen = if args.each { Screen { height: None, ..screen } } else { screen };
    print(&render(reply, total, &screen))?;
    Ok(0)
}

/// That a user has no jobs, which may be since the name is wrong. `others`: number of jobs of others.
fn none_of(user: &str, others: usize, all: bool) -> String {
    let all = if all { ", or ended in the last hour" } else { "" };
    let others = match others {
        0 => "none of others do".to_owned(),
        1 => "one of another user does".to_owned(),
        n => format!("{n} of others do"),
    };
    format!(
        "No jobs of {} run or wait{all}; {others}. `carma history` shows jobs that are over, with the names of their users.\n",
        clean(user)
    )
}

fn wanted(args: &QueueArgs, user: &str, state: &str) -> bool {
    args.user.as_deref().is_none_or(|u| u == user)
        && (args.state.is_empty() || args.state.iter().any(|s| s == state))
}

const SUSPENDED: u8 = 1;
const WAITS: u8 = 2;
const FINISHED: u8 = 3;

/// Running jobs come first, then those that are suspended, then those that wait.
fn rank(state: &str) -> u8 {
    match state {
        "RUNNING" => 0,
        "SUSPENDED" => SUSPENDED,
        "PENDING" => WAITS,
        _ => FINISHED,
    }
}

/// `total`: number of jobs before a filter.
fn render(mut reply: JobsReply, total: usize, screen: &Screen) -> String {
    let standing = unwritten(reply.unwritten.as_ref(), reply.now_ms, screen);
    if reply.jobs.is_empty() {
        return standing
            + &if total == 0 {
                "No jobs. Submit one with `carma submit -- CMD`; `carma history` shows those that are over.\n"
                    .into()
            } else {
                format!("None of the {total} job(s) match.\n")
            };
    }
    // Stable: within a rank the daemon's order says which is next.
    reply.jobs.sort_by_key(|job| rank(&job.state));
    let text = standing.clone() + &table(&reply, screen, false);
    // The prompt needs a line, too.
    let fits = |height: u16| text.lines().count() < usize::from(height);
    if screen.height.is_none_or(fits) { text } else { standing + &table(&reply, screen, true) }
}

/// A row for each job; with `fold` jobs that wait for the same share one.
fn table(reply: &JobsReply, screen: &Screen, fold: bool) -> String {
    use Column::{Left, Right, State};
    let mut columns =
        vec![Right("ID"), Left("NAME"), Left("USER"), State("STATE"), Left("GPU"), Right("TIME")];
    // Where nothing is known of any job, nothing stands there.
    let counts = reply.jobs.iter().any(|job| job.done_pct.is_some());
    let ends = reply.jobs.iter().any(|job| job.left.is_some());
    columns.extend(counts.then_some(Right("DONE")));
    columns.extend(ends.then_some(Right("LEFT")));
    columns.push(Left("REASON"));
    let mut rows = Vec::new();
    let groups = groups(&reply.jobs, fold);
    let mut said: BTreeMap<String, u64> = BTreeMap::new();
    for group in &groups {
        let job = group[0];
        let one = group.len() == 1;
        let waits = group.iter().map(|job| time_in_state(job, reply.now_ms)).max().unwrap_or_default();
        let mut cells = vec![
            ids(group),
            if one { job.name.clone() } else { format!("{} jobs", group.len()) },
            job.user.clone(),
            job.state.clone(),
            gpu_list(&job.gpus),
            span(waits),
        ];
        let dash = || "-".to_owned();
        cells.extend(counts.then(|| job.done_pct.map_or_else(dash, |pct| format!("{pct} %"))));
        cells.extend(ends.then(|| job.left.as_ref().filter(|_| one).map_or_else(dash, left_of)));
        // A terminal is told once what many jobs wait for.
        let before = said.get(&job.reason.text).filter(|_| screen.width.is_some());
        cells.push(before.map_or_else(|| job.reason.text.clone(), |first| format!("as job {first}")));
        if rank(&job.state) == WAITS {
            said.entry(job.reason.text.clone()).or_insert(job.id);
        }
        rows.push(cells);
    }
    let (mut text, spared) = sparing_after_names(&columns, &rows, &SPARED, Some(REASON_LINES), screen);
    text.push_str(&footer(&reply.jobs));
    if groups.iter().any(|group| group.len() > 1) {
        text.push_str("Jobs that wait for the same share a row; `carma queue --each` lists each.\n");
    }
    if let Some(line) = spared_line(&spared) {
        let _ = writeln!(text, "{line}");
    }
    text
}

/// The rows: a job each; with `fold`, all that wait for the same and are of one user in one, where the first of them is.
fn groups(jobs: &[JobView], fold: bool) -> Vec<Vec<&JobView>> {
    let mut groups: Vec<Vec<&JobView>> = Vec::new();
    let mut at: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for job in jobs {
        let key = (job.user.as_str(), job.reason.text.as_str());
        match at.get(&key).filter(|_| fold && rank(&job.state) == WAITS) {
            Some(at) => groups[*at].push(job),
            None => {
                if rank(&job.state) == WAITS {
                    at.insert(key, groups.len());
                }
                groups.push(vec![job]);
            }
        }
    }
    groups
}

/// `7`, `12-48`; of others the first, and that there are more.
fn ids(group: &[&JobView]) -> String {
    let ids = || group.iter().map(|job| job.id);
    match (ids().min(), ids().max()) {
        (Some(first), Some(last)) if first == last => first.to_string(),
        (Some(first), Some(last)) if last - first + 1 == group.len() as u64 => format!("{first}-{last}"),
        (first, _) => format!("{},…", first.unwrap_or_default()),
    }
}

/// What is left of it: `~` where earlier runs say it and not the job itself.
fn left_of(left: &LeftView) -> String {
    let about = if left.counted { "" } else { "~" };
    format!("{about}{}", span(Millis::secs(left.left_s)))
}

/// How long it has run, waited, or ran.
fn time_in_state(job: &JobView, now_ms: u64) -> Millis {
    let until = Millis(job.ran_until().unwrap_or(now_ms));
    let from = match rank(&job.state) {
        WAITS => job.waiting_since_ms.unwrap_or(job.submitted_ms),
        _ => job.started_ms.unwrap_or(until.0),
    };
    // While it is suspended it does not run.
    until.since(Millis(from)).since(Millis(job.suspended_ms.unwrap_or(0)))
}

/// `0,1`, or `-` for none.
pub(crate) fn gpu_list(gpus: &[u32]) -> String {
    if gpus.is_empty() {
        return "-".into();
    }
    gpus.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// `GPU 3`, `GPUs 0,1`.
pub(crate) fn named_gpus(gpus: &[u32]) -> String {
    format!("GPU{} {}", if gpus.len() == 1 { "" } else { "s" }, gpu_list(gpus))
}

/// Reasons that only an order ends.
const HELD: [&str; 2] = ["Held", "UserGone"];

fn footer(jobs: &[JobView]) -> String {
    let count = |n: u8| jobs.iter().filter(|j| rank(&j.state) == n).count();
    let held = jobs.iter().filter(|j| j.state == "PENDING" && HELD.contains(&j.reason.code.as_str())).count();
    let (running, pending, finished) = (count(0), count(WAITS), count(FINISHED));
    let mut text = format!("{running} running, ");
    match count(SUSPENDED) {
        0 => {}
        suspended => drop(write!(text, "{suspended} suspended, ")),
    }
    let _ = write!(text, "{pending} pending");
    if held > 0 {
        let _ = write!(text, " ({held} held)");
    }
    if finished > 0 {
        let _ = write!(text, ", {finished} finished");
    }
    text.push('\n');
    text
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use carma_api::wire::ReasonView;

    pub(crate) fn job(id: u64, state: &str, code: &str, text: &str) -> JobView {
        let running = state != "PENDING";
        JobView {
            id,
            name: format!("train{id}"),
            user: "alice".into(),
            state: state.into(),
            reason: ReasonView { code: code.into(), text: text.into() },
            gpus: if running { vec![0] } else { vec![] },
            gpus_requested: 1,
            sharing: None,
            memory_reserved_mib: None,
            memory_peak_mib: None,
            host_memory_peak_mib: None,
            attempts: 0,
            max_slowdown_pct: None,
            max_latency_ms: None,
            latency_alone_ms: None,
            limit_kept: None,
            progress_pct: None,
            progress_at_most: false,
            run_time: None,
            done_pct: None,
            left: None,
            energy_j: None,
            energy_alone_j: None,
            unmetered_gpu_s: None,
            priority: 0,
            submitted_ms: 1_760_000_000_000,
            suspended_ms: None,
            started_ms: running.then_some(1_760_000_060_000),
            ran_until_ms: None,
            waited_ms: None,
            waiting_since_ms: None,
            ran_ms: None,
            ended_ms: (running && state != "RUNNING").then_some(1_760_000_100_000),
            exit_code: None,
        }
    }

    fn reply() -> JobsReply {
        let mut first = job(9, "RUNNING", "PlacedIdle", "GPU 0 was idle; 10.0 GiB reserved");
        first.gpus = vec![0, 1];
        JobsReply {
            version: 1,
            unwritten: None,
            now_ms: 1_760_000_200_000,
            jobs: vec![
                job(
                    12,
                    "PENDING",
                    "GpuMemory",
                    "GpuMemory(need 20.0 GiB; best is GPU 1 with 12.3 GiB: 9.1 GiB held by pid 4711 of bob, not ours)",
                ),
                job(3, "PENDING", "Held", "Held(by alice; `carma release` lets it go)"),
                first,
                job(1, "FAILED", "NonZeroExit", "the command failed: exit code 3"),
            ],
        }
    }

    #[test]
    fn a_job_that_waits_again_has_not_waited_while_it_ran() {
        let mut again = job(3, "PENDING", "GpuMemory", "");
        assert_eq!(time_in_state(&again, again.submitted_ms + 90_000), Millis::secs(90));
        again.waiting_since_ms = Some(again.submitted_ms + 88_000);
        assert_eq!(time_in_state(&again, again.submitted_ms + 90_000), Millis::secs(2));
    }

    #[test]
    fn a_narrow_screen_goes_without_columns() {
        let mut reply = reply();
        let left = Some(LeftView { left_s: 5400, counted: true, source: "that".into() });
        (reply.jobs[2].left, reply.jobs[2].done_pct) = (left, Some(41));
        insta::assert_snapshot!(render(reply, 4, &Screen::of_width(Some(60))), @r"
        ID  NAME     STATE    GPU   TIME  DONE  REASON
         9  train9   RUNNING  0,1  2m20s  41 %  GPU 0 was idle; 10.0
                                                GiB reserved
        12  train12  PENDING  -    3m20s     -  GpuMemory(need 20.0
                                                GiB; best is GPU 1…
         3  train3   PENDING  -    3m20s     -  Held(by alice;
                                                `carma release` let…
         1  train1   FAILED   0      40s     -  the command failed:
                                                exit code 3
        1 running, 2 pending (1 held), 1 finished
        Not shown, as this screen is narrow: USER, LEFT.
        ");
    }

    #[test]
    fn running_first_then_as_the_daemon_orders() {
        insta::assert_snapshot!(render(reply(), 4, &Screen::of_width(None)), @r"
        ID  NAME     USER   STATE    GPU   TIME  REASON
         9  train9   alice  RUNNING  0,1  2m20s  GPU 0 was idle; 10.0 GiB reserved
        12  train12  alice  PENDING  -    3m20s  GpuMemory(need 20.0 GiB; best is GPU 1 with 12.3 GiB: 9.1 GiB held by pid 4711 of bob, not ours)
         3  train3   alice  PENDING  -    3m20s  Held(by alice; `carma release` lets it go)
         1  train1   alice  FAILED   0      40s  the command failed: exit code 3
        1 running, 2 pending (1 held), 1 finished
        ");
    }

    #[test]
    fn how_far_jobs_are() {
        let mut reply = reply();
        let left = |left_s, counted| Some(LeftView { left_s, counted, source: "that".into() });
        reply.jobs[0].left = left(5400, false);
        reply.jobs[2].left = left(200, true);
        reply.jobs[2].done_pct = Some(41);
        insta::assert_snapshot!(render(reply, 4, &Screen::of_width(None)), @r"
        ID  NAME     USER   STATE    GPU   TIME  DONE    LEFT  REASON
         9  train9   alice  RUNNING  0,1  2m20s  41 %   3m20s  GPU 0 was idle; 10.0 GiB reserved
        12  train12  alice  PENDING  -    3m20s     -  ~1h30m  GpuMemory(need 20.0 GiB; best is GPU 1 with 12.3 GiB: 9.1 GiB held by pid 4711 of bob, not ours)
         3  train3   alice  PENDING  -    3m20s     -       -  Held(by alice; `carma release` lets it go)
         1  train1   alice  FAILED   0      40s     -       -  the command failed: exit code 3
        1 running, 2 pending (1 held), 1 finished
        ");
    }

    #[test]
    fn on_a_screen_of_80_columns() {
        insta::assert_snapshot!(render(reply(), 4, &Screen::of_width(Some(80))), @r"
        ID  NAME     USER   STATE    GPU   TIME  REASON
         9  train9   alice  RUNNING  0,1  2m20s  GPU 0 was idle; 10.0 GiB reserved
        12  train12  alice  PENDING  -    3m20s  GpuMemory(need 20.0 GiB; best is GPU 1
                                                 with 12.3 GiB: 9.1 GiB held by pid 471…
         3  train3   alice  PENDING  -    3m20s  Held(by alice; `carma release` lets it
                                                 go)
         1  train1   alice  FAILED   0      40s  the command failed: exit code 3
        1 running, 2 pending (1 held), 1 finished
        ");
    }

    /// One runs; of six that wait two are told the same, and three of another user something else.
    fn many() -> JobsReply {
        let same = "GpuBusy(closest is GPU 3: all there would get 0.12 more done together, and the policy asks for 0.20)";
        let other = "UserLimit(bob may have 2 jobs running at once)";
        let bobs = |id| JobView { user: "bob".into(), ..job(id, "PENDING", "UserLimit", other) };
        let mut jobs = vec![job(9, "RUNNING", "PlacedIdle", "GPU 0 was idle")];
        jobs.extend([job(10, "PENDING", "GpuBusy", same), bobs(12), job(11, "PENDING", "GpuBusy", same)]);
        jobs.extend([bobs(13), bobs(17), job(18, "PENDING", "Held", "Held(by root)")]);
        JobsReply { version: 1, now_ms: 1_760_000_200_000, jobs, unwritten: None }
    }

    #[test]
    fn a_terminal_is_told_once_what_many_wait_for() {
        insta::assert_snapshot!(render(many(), 7, &Screen::of_width(Some(80))), @r"
        ID  NAME     USER   STATE    GPU   TIME  REASON
         9  train9   alice  RUNNING  0    2m20s  GPU 0 was idle
        10  train10  alice  PENDING  -    3m20s  GpuBusy(closest is GPU 3: all there
                                                 would get 0.12 more done together, and…
        12  train12  bob    PENDING  -    3m20s  UserLimit(bob may have 2 jobs running
                                                 at once)
        11  train11  alice  PENDING  -    3m20s  as job 10
        13  train13  bob    PENDING  -    3m20s  as job 12
        17  train17  bob    PENDING  -    3m20s  as job 12
        18  train18  alice  PENDING  -    3m20s  Held(by root)
        1 running, 6 pending (1 held)
        ");
        let piped = render(many(), 7, &Screen::of_width(None));
        assert_eq!(
            (piped.matches("the policy asks for 0.20").count(), piped.matches("as job").count()),
            (2, 0)
        );
    }

    #[test]
    fn more_jobs_than_lines() {
        let screen = |height| Screen { height: Some(height), ..Screen::of_width(Some(80)) };
        insta::assert_snapshot!(render(many(), 7, &screen(10)), @r"
           ID  NAME     USER   STATE    GPU   TIME  REASON
            9  train9   alice  RUNNING  0    2m20s  GPU 0 was idle
        10-11  2 jobs   alice  PENDING  -    3m20s  GpuBusy(closest is GPU 3: all there
                                                    would get 0.12 more done together,…
         12,…  3 jobs   bob    PENDING  -    3m20s  UserLimit(bob may have 2 jobs
                                                    running at once)
           18  train18  alice  PENDING  -    3m20s  Held(by root)
        1 running, 6 pending (1 held)
        Jobs that wait for the same share a row; `carma queue --each` lists each.
        ");
        assert_eq!(render(many(), 7, &screen(13)), render(many(), 7, &Screen::of_width(Some(80))));
    }

    #[test]
    fn nothing_to_show() {
        let empty = JobsReply { version: 1, now_ms: 0, jobs: vec![], unwritten: None };
        assert!(render(empty.clone(), 0, &Screen::of_width(None)).contains("carma submit"));
        assert!(render(empty, 3, &Screen::of_width(None)).contains("None of the 3"));
    }
}
