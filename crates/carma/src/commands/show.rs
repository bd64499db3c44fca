//! `carma show`: everything about a job.

use super::Context;
use super::queue::{gpu_list, named_gpus};
use super::usage::energy;
use crate::cli::ShowArgs;
use carma_api::wire::{
    AttemptView, CheckpointView, EstimateView, HostLimitsView, HostView, JobDetail, JobView, LimitKeptView,
    RateView, RunTimeView,
};
use carma_cli::failure::Outcome;
use carma_cli::{Block, Column, Screen, Table, clean, shell_line, span, stamp, wrap};
use carma_core::units::{MiB, Millis};
use std::fmt::Write as _;

/// What stands where others may not know.
const PRIVATE: &str = "only its owner, operators and root may know";

/// Shows the job.
pub(crate) fn run(context: &Context, args: &ShowArgs) -> Outcome {
    context.listing(&format!("/v1/jobs/{}", args.id), args.json, render)
}

fn render(detail: &JobDetail, screen: &Screen) -> String {
    let job = &detail.job;
    let mut block = Block::default();
    block.line("job", format!("{} ({})", job.id, job.name));
    block.line("user", &job.user).line("state", &job.state).line("reason", &job.reason.text);
    block.line_if("exit code", job.exit_code.map(|c| c.to_string()));
    // No job is without a command, and each begins in some directory.
    let private = || PRIVATE.to_owned();
    let command = if detail.command.is_empty() { private() } else { shell_line(&detail.command) };
    let directory = if detail.cwd.is_empty() { private() } else { detail.cwd.clone() };
    block.line("command", command).line("directory", directory);
    let log = match (detail.log.is_empty(), detail.log_kept) {
        (true, _) => private(),
        (false, true) => format!("carma logs {}", job.id),
        (false, false) => detail.log.clone(),
    };
    block.line("log", log);
    block.line_if("pid", detail.pid.map(|p| p.to_string()));
    block.line("GPUs", placement(job, &detail.attempts));
    block.line("memory", memory(job) + &overruled(detail).unwrap_or_default());
    block.line_if("limits", limits(detail.host_limits));
    block.line_if("saves", detail.checkpoint.as_ref().map(|saves| checkpoint(saves, screen)));
    block.line_if("host", detail.attempts.iter().rev().find_map(|a| a.host).map(host));
    block.line_if("forecasts", forecasts(detail));
    block.line_if("expected", detail.estimate.as_ref().map(expected));
    block.line_if("rate", detail.rate.as_ref().map(rate));
    block.line_if("slowdown", slowdown(job));
    block.line_if("latency", latency(detail));
    block.line_if("energy", energy_of(detail));
    block.line_if("run time", forecast(job));
    block.line_if("left", left(job));
    block.line_if("time limit", detail.time_limit_ms.map(|t| Millis(t).to_string()));
    block.line("priority", job.priority.to_string());
    block.line("submitted", stamp(job.submitted_ms, screen));
    block.line_if("started", job.started_ms.map(|t| stamp(t, screen)));
    block.line_if("ended", job.ended_ms.map(|t| stamp(t, screen)));
    let suspended = Millis(job.suspended_ms.unwrap_or(0));
    if let (Some(from), Some(to)) = (job.started_ms, job.ran_until()) {
        block.line("ran for", Millis(to).since(Millis(from)).since(suspended).to_string());
    }
    block.line_if("suspended", job.suspended_ms.map(|_| suspended.to_string()));
    let mut text = block.render(screen);
    if let Some(estimate) = &detail.estimate {
        text.push_str(&reasons(estimate, screen));
    }
    text.push_str(&attempts(&detail.attempts, screen));
    text
}

/// Whether it is suspended, and so has no GPU.
pub(crate) fn is_off(job: &JobView) -> bool {
    job.state == "SUSPENDED" && job.gpus.is_empty()
}

/// Of one that is suspended, the GPUs that it left.
pub(crate) fn left_gpus(job: &JobView, attempts: &[AttemptView]) -> Option<String> {
    attempts.last().filter(|_| is_off(job)).map(|last| gpu_list(&last.gpus))
}

fn placement(job: &JobView, attempts: &[AttemptView]) -> String {
    if is_off(job) {
        let left = left_gpus(job, attempts).map(|gpus| format!("; it left GPU {gpus}"));
        return format!("none while it is suspended{}", left.unwrap_or_default());
    }
    if job.gpus.is_empty() {
        return format!("none yet, {} wanted", job.gpus_requested);
    }
    match job.sharing {
        Some(sharing) => format!("{} ({sharing})", gpu_list(&job.gpus)),
        None => gpu_list(&job.gpus),
    }
}

/// What is reserved for it, and what it took.
pub(crate) fn memory(job: &JobView) -> String {
    let known = |mib: Option<u64>| mib.map_or_else(|| "unknown".into(), |m| MiB(m).to_string());
    let reserved = match job.memory_reserved_mib {
        _ if is_off(job) => "none reserved, ".into(),
        // Nothing is reserved any more; it may be that no amount was.
        reserved if job.ended_ms.is_some() => {
            reserved.map_or_else(String::new, |mib| format!("{} were reserved, ", MiB(mib)))
        }
        reserved => format!("{} reserved, ", known(reserved)),
    };
    format!("{reserved}peak {} (on each GPU)", known(job.memory_peak_mib))
}

/// That what was declared is not what counts.
fn overruled(detail: &JobDetail) -> Option<String> {
    let declared = *detail.forecasts_mib.get("declared")?;
    let is_other = |reserved| reserved != declared;
    let differs = detail.declared_overruled && detail.job.memory_reserved_mib.is_some_and(is_other);
    differs.then(|| format!("; {} were declared, and what earlier runs took goes before that", MiB(declared)))
}

/// What it may take of the host.
fn limits(limits: HostLimitsView) -> Option<String> {
    let mut words = Vec::new();
    words.extend(limits.memory_mib.map(|mib| format!("{} of host memory", MiB(mib))));
    words.extend(limits.cpu_pct.map(|pct| format!("{} processors", f64::from(pct) / 100.0)));
    words.extend(limits.processes.map(|number| format!("{number} processes")));
    (!words.is_empty()).then(|| words.join(", "))
}

/// How it saves its work before it goes back into the queue, and where.
fn checkpoint(saves: &CheckpointView, screen: &Screen) -> String {
    let mut words = match (saves.signal, saves.grace_ms) {
        (Some(signal), Some(grace)) => format!("by {signal}, {} at most", Millis(grace)),
        _ => "it is not asked to".to_owned(),
    };
    match &saves.dir {
        Some(dir) => drop(write!(words, ", in {dir}")),
        None => words.push_str(", without a directory"),
    }
    if let Some(since) = saves.saving_since_ms {
        let _ = write!(words, "; asked {}", stamp(since, screen));
    }
    words
}

/// What its last attempt took of the host.
fn host(host: HostView) -> String {
    let mut words = Vec::new();
    if let Some(peak) = host.memory_peak_mib {
        words.push(format!("{} of memory at most", MiB(peak)));
    }
    if let Some(cpu) = host.cpu_ms {
        words.push(format!("{} on processors", Millis(cpu)));
    }
    if let Some(processes) = host.processes_peak {
        words.push(format!("{processes} processes at most"));
    }
    if host.oom_kills > 0 {
        words.push("killed for want of memory".to_owned());
    }
    words.join(", ")
}

/// How fast it goes, and where that number comes from.
fn rate(rate: &RateView) -> String {
    let unit = rate.unit.as_deref().unwrap_or("steps");
    let number = |per_s: f64| if per_s < 10.0 { format!("{per_s:.3}") } else { format!("{per_s:.1}") };
    let mut words = match (rate.per_s, rate.alone_per_s) {
        (Some(per_s), _) => format!("{} {unit}/s", number(per_s)),
        (None, Some(_)) if rate.progress.is_some() => "no progress in the last window".into(),
        // It counts, but did not, or too seldom, in the last window.
        (None, Some(_)) => "not known for the last window".into(),
        (None, None) if rate.source.is_some() => "not known for the last window".into(),
        (None, None) => "not known: it sends no heartbeat and prints no progress".into(),
    };
    if let Some(source) = rate.source.as_ref().filter(|_| rate.per_s.is_some()) {
        let _ = write!(words, " by {source}");
    }
    if let (Some(progress), Some(alone)) = (rate.progress, rate.alone_per_s) {
        let _ = write!(words, "; {progress:.2} of the {} alone", number(alone));
    }
    words
}

/// The forecast of its run time. Where its own count says what is left, the two may differ, and of a job that is over it is known how long it
/// took, so that it is told how old that is.
pub(crate) fn forecast(job: &JobView) -> Option<String> {
    let text = run_time(job.run_time.as_ref()?);
    let counted = job.left.as_ref().is_some_and(|left| left.counted);
    Some(if counted || job.ended_ms.is_some() { format!("expected before it started: {text}") } else { text })
}

/// How long it is expected to run.
pub(crate) fn run_time(view: &RunTimeView) -> String {
    let time = |seconds: u64| Millis::secs(seconds).to_string();
    let (low, high) = (time(view.low_s), time(view.high_s));
    let range = match view.guess {
        true => ", which is a guess".to_owned(),
        false if low == high => String::new(),
        false => format!(", 80 % between {low} and {high}"),
    };
    format!("about {} alone on its GPUs{range} ({})", time(view.median_s), view.source)
}

/// How far it is.
pub(crate) fn left(job: &JobView) -> Option<String> {
    let left = job.left.as_ref()?;
    let done = job.done_pct.map_or_else(String::new, |pct| format!(", {pct} % done"));
    Some(format!("about {}{done} (by {})", Millis::secs(left.left_s), left.source))
}

/// What it took by its share of the counters, and would have taken alone.
fn energy_of(detail: &JobDetail) -> Option<String> {
    let mut text = energy(detail.job.energy_j?);
    if let Some(alone) = detail.job.energy_alone_j {
        let _ = write!(text, ", alone about {} for the same progress", energy(alone));
    }
    let unmetered: f64 = detail.attempts.iter().filter_map(|attempt| attempt.unmetered_gpu_s).sum();
    if unmetered > 0.0 {
        let time = Millis((unmetered * 1000.0) as u64);
        let _ = write!(text, "; without {time} on GPUs that no counter tells of");
    }
    Some(text)
}

/// Whether no job may join it before it is known how long its requests take alone: then its limit of slowdown says nothing.
pub(crate) fn awaits_latency(job: &JobView) -> bool {
    job.max_latency_ms.is_some() && job.latency_alone_ms.is_none()
}

/// `latency of at most 20 ms, 5.0 ms alone`, where its limit of slowdown is that of its latency and no other.
pub(crate) fn limit_of_latency(job: &JobView) -> Option<String> {
    let (most, alone) = (job.max_latency_ms?, job.latency_alone_ms?);
    let of_latency = (most / alone * 100.0).max(100.0);
    // It was rounded down, more than once.
    let is_it = job.max_slowdown_pct.is_some_and(|pct| f64::from(pct) > of_latency - 2.0);
    is_it.then(|| format!("latency of at most {}, {} alone", ms(most), ms(alone)))
}

fn ms(ms: f64) -> String {
    if ms < 10.0 { format!("{ms:.1} ms") } else { format!("{ms:.0} ms") }
}

/// Its limit, and what was measured.
fn slowdown(job: &JobView) -> Option<String> {
    let limit = job.max_slowdown_pct.filter(|_| !awaits_latency(job));
    let factor = |pct: u32| f64::from(pct) / 100.0;
    let measured = job.progress_pct.map(|pct| match pct {
        0 => "it stands still".to_owned(),
        pct if job.progress_at_most => format!("{:.2} at least, measured", 1.0 / factor(pct)),
        pct => format!("{:.2} measured", 1.0 / factor(pct)),
    });
    let kept = job.limit_kept.filter(|_| limit.is_some()).map(|kept| limit_kept(&kept));
    let of_latency = if limit_of_latency(job).is_some() { " (of its latency)" } else { "" };
    let limit = limit.map(|most| format!("limit {:.2}{of_latency}", factor(most)));
    let words: Vec<String> = [limit, measured, kept].into_iter().flatten().collect();
    (!words.is_empty()).then(|| words.join(", "))
}

/// How a limit was kept, in words.
fn limit_kept(kept: &LimitKeptView) -> String {
    let LimitKeptView { windows, beyond, longest, least_progress_pct } = *kept;
    let s = if windows == 1 { "" } else { "s" };
    match (beyond, least_progress_pct) {
        (0, _) => format!("kept in {windows} window{s}"),
        (_, 0) => format!("exceeded in {beyond} of {windows} window{s}, {longest} in a row (it stood still)"),
        (_, pct) => format!(
            "exceeded in {beyond} of {windows} window{s}, {longest} in a row ({:.2} at worst)",
            100.0 / f64::from(pct)
        ),
    }
}

/// What its requests take, and may take.
fn latency(detail: &JobDetail) -> Option<String> {
    let most = detail.job.max_latency_ms?;
    let rate = detail.rate.as_ref();
    let now = match rate.and_then(|rate| Some((rate.latency_p99_ms?, rate.requests))) {
        Some((p99, Some(requests))) => format!("p99 {} of {requests} requests", ms(p99)),
        Some((p99, None)) => format!("p99 {} by its own count", ms(p99)),
        None => "no requests were heard of lately".to_owned(),
    };
    let alone = detail.job.latency_alone_ms.map_or_else(
        || "not measured alone yet, so that no job may join it".to_owned(),
        |alone| format!("{} alone", ms(alone)),
    );
    Some(format!("{now}; at most {}; {alone}", ms(most)))
}

fn forecasts(detail: &JobDetail) -> Option<String> {
    let words: Vec<String> =
        detail.forecasts_mib.iter().map(|(source, mib)| format!("{} {source}", MiB(*mib))).collect();
    (!words.is_empty()).then(|| words.join(", "))
}

/// What carma expects of a job's memory, in a line.
pub(crate) fn expected(estimate: &EstimateView) -> String {
    // Only runs that were cut off are known: a bound with a probability there is none.
    if estimate.elastic && estimate.source == "history" {
        let EstimateView { use_mib, source, tier, .. } = estimate;
        return format!("more than {}, how much more is not known ({source}, tier {tier})", MiB(*use_mib));
    }
    let coverage = estimate.coverage_pct.map_or_else(String::new, |p| format!(", upper bound at {p} %"));
    let elastic = if estimate.elastic { "; only a hard limit bounds it" } else { "" };
    format!(
        "{} to {}{coverage}, cannot run below {}{elastic} ({}, tier {})",
        MiB(estimate.use_mib),
        MiB(estimate.upper_mib),
        MiB(estimate.need_mib),
        estimate.source,
        estimate.tier
    )
}

/// How that came about.
pub(crate) fn reasons(estimate: &EstimateView, screen: &Screen) -> String {
    let mut text = String::from("\nWhy so much memory is expected:\n");
    for reason in &estimate.reasons {
        for (i, line) in wrap(&clean(reason), screen, 4).iter().enumerate() {
            let _ = writeln!(text, "  {} {line}", if i == 0 { "-" } else { " " });
        }
    }
    if estimate.reasons.is_empty() { String::new() } else { text }
}

/// Why it went where it started; and of an attempt that was moved, where to.
pub(crate) fn placed(attempt: &AttemptView, why: &str) -> String {
    let moves = attempt.spells.windows(2).filter(|two| two[0].gpus != two[1].gpus);
    let moves: Vec<String> = moves.map(|two| format!("to {}", named_gpus(&two[1].gpus))).collect();
    if moves.is_empty() {
        return why.to_owned();
    }
    format!("at its start: {why}; moved since {}", moves.join(", then "))
}

/// The attempts as a table, and below it why each went where it went and what came of it.
pub(crate) fn attempts(attempts: &[AttemptView], screen: &Screen) -> String {
    if attempts.is_empty() {
        return "\nNot started yet.\n".into();
    }
    use Column::{Left, Right};
    let columns = vec![
        Right("ATTEMPT"),
        Left("GPU"),
        Left("SHARING"),
        Right("CAP"),
        Left("STARTED"),
        Right("RUN"),
        Right("PEAK"),
        Right("EXIT"),
    ];
    let dash = || "-".to_owned();
    let memory = |mib: Option<u64>| mib.map_or_else(dash, |m| MiB(m).to_string());
    let mut table = Table::new(columns, screen);
    for attempt in attempts {
        let ran = attempt.started_ms.zip(attempt.ended_ms);
        let suspended = Millis(attempt.suspended_ms.unwrap_or(0));
        table.row([
            attempt.attempt.to_string(),
            gpu_list(&attempt.gpus),
            attempt.sharing.to_string(),
            memory(attempt.cap_mib),
            attempt.started_ms.map_or_else(dash, |t| stamp(t, screen)),
            ran.map_or_else(dash, |(from, to)| span(Millis(to).since(Millis(from)).since(suspended))),
            memory(attempt.memory_peak_mib),
            attempt.exit_code.map_or_else(dash, |c| c.to_string()),
        ]);
    }
    let mut text = format!("\n{}", table.render());
    for attempt in attempts {
        let _ = writeln!(text, "attempt {}", attempt.attempt);
        let verdict = attempt.verdict.as_ref().map(|v| v.text.as_str());
        let placed = placed(attempt, &attempt.placed.text);
        for (key, value) in [("placed", Some(placed.as_str())), ("verdict", verdict)] {
            let Some(value) = value else { continue };
            for (i, line) in wrap(&clean(value), screen, 11).iter().enumerate() {
                let key = if i == 0 { format!("{key}:") } else { String::new() };
                let _ = writeln!(text, "  {key:<9}{line}");
            }
        }
    }
    text
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::queue::tests::job;
    use super::*;
    use carma_api::wire::{CheckpointSignal, LeftView, ReasonView, SpellView};
    use carma_core::model::SharingMode;

    #[test]
    fn a_rate_has_a_source_where_it_is_known() {
        let told = |per_s: Option<f64>, alone_per_s, progress| {
            let source = per_s.or(alone_per_s).map(|_| "printed progress".to_owned());
            rate(&RateView { per_s, alone_per_s, progress, source, ..RateView::default() })
        };
        assert_eq!(
            told(Some(5.0), Some(10.0), Some(0.5)),
            "5.000 steps/s by printed progress; 0.50 of the 10.0 alone"
        );
        assert_eq!(
            told(None, Some(10.0), Some(0.0)),
            "no progress in the last window; 0.00 of the 10.0 alone"
        );
        assert_eq!(told(None, Some(10.0), None), "not known for the last window");
        assert_eq!(told(None, None, None), "not known: it sends no heartbeat and prints no progress");
        let between = RateView { source: Some("printed progress".to_owned()), ..RateView::default() };
        assert_eq!(rate(&between), "not known for the last window");
    }

    #[test]
    fn a_limit_of_latency_is_told_from_one_of_slowdown() {
        let mut job = detail().job;
        (job.progress_pct, job.limit_kept) = (None, None);
        (job.max_latency_ms, job.latency_alone_ms, job.max_slowdown_pct) =
            (Some(20.0), Some(5.02), Some(398));
        assert_eq!(slowdown(&job).unwrap(), "limit 3.98 (of its latency)");
        job.max_slowdown_pct = Some(200);
        assert_eq!(slowdown(&job).unwrap(), "limit 2.00");
    }

    #[test]
    fn of_runs_that_were_cut_off_no_bound_is_made_up() {
        let estimate = EstimateView {
            tier: "scaled".into(),
            source: "history".into(),
            use_mib: 40_448,
            need_mib: 40_448,
            upper_mib: 44_493,
            coverage_pct: Some(95),
            elastic: true,
            ..EstimateView::default()
        };
        let told = "more than 39.5 GiB, how much more is not known (history, tier scaled)";
        assert_eq!(expected(&estimate), told);
        let peaks = EstimateView { elastic: false, ..estimate };
        assert!(expected(&peaks).starts_with("39.5 GiB to 43.5 GiB, upper bound at 95 %"));
    }

    #[test]
    fn what_is_private_and_what_was_overruled_is_said() {
        let mut detail = detail();
        (detail.command, detail.cwd, detail.log) = (Vec::new(), String::new(), String::new());
        let shown = render(&detail, &Screen::of_width(None));
        let of = |key: &str| {
            let line = shown.lines().find(|line| line.starts_with(key)).unwrap();
            line.split_once(':').unwrap().1.trim().to_owned()
        };
        assert_eq!([of("command"), of("directory"), of("log")], [PRIVATE; 3]);
        detail.forecasts_mib.insert("declared".into(), 3072);
        detail.job.memory_reserved_mib = Some(2150);
        for told in [true, false] {
            detail.declared_overruled = told;
            let shown = render(&detail, &Screen::of_width(None));
            let named =
                shown.contains("; 3.0 GiB were declared, and what earlier runs took goes before that\n");
            assert_eq!(named, told, "{shown}");
        }
    }

    pub(crate) fn detail() -> JobDetail {
        let mut job = job(
            7,
            "RUNNING",
            "PlacedShared",
            "GPU 0 shared by time-slice: need 10.0 GiB (declared), 20.5 GiB free beside 1 job(s)",
        );
        job.sharing = Some(SharingMode::TimeSlice);
        job.memory_reserved_mib = Some(10_240);
        job.attempts = 2;
        (job.energy_j, job.energy_alone_j) = (Some(14_200.0), Some(19_000.0));
        let reason = |code: &str, text: &str| ReasonView { code: code.into(), text: text.into() };
        let first = AttemptView {
            attempt: 1,
            gpus: vec![1],
            sharing: SharingMode::Mps,
            thread_pct: None,
            cap_mib: Some(8192),
            placed: reason("PlacedIdle", "GPU 1 was idle; 8.0 GiB reserved"),
            decided_ms: 1_760_000_000_500,
            started_ms: Some(1_760_000_001_000),
            ended_ms: Some(1_760_000_031_000),
            suspended_ms: None,
            spells: Vec::new(),
            exit_code: Some(1),
            memory_peak_mib: Some(8192),
            host: None,
            alone_bp: None,
            energy_j: Some(7_100.0),
            unmetered_gpu_s: Some(12.0),
            held_gpu_s: Some(30.0),
            progress_gpu_s: Some(30.0),
            unmeasured_gpu_s: None,
            verdict: Some(reason(
                "OutOfMemoryRetry",
                "out of GPU memory: culprit, it reached its own cap of 8.0 GiB; retried with at least 10.0 GiB (retry 1 of 3)",
            )),
        };
        let second = AttemptView {
            attempt: 2,
            gpus: vec![0],
            sharing: SharingMode::TimeSlice,
            thread_pct: None,
            cap_mib: None,
            placed: job.reason.clone(),
            started_ms: Some(1_760_000_060_000),
            ended_ms: None,
            exit_code: None,
            memory_peak_mib: None,
            unmetered_gpu_s: None,
            verdict: None,
            ..first.clone()
        };
        JobDetail {
            version: 1,
            job,
            command: ["python", "train.py", "--bs", "32", "--tag", "a b"].map(String::from).to_vec(),
            cwd: "/home/alice/work".into(),
            log: "/home/alice/.local/state/carma/logs/7.log".into(),
            log_kept: true,
            pid: Some(4242),
            forecasts_mib: [("declared".to_owned(), 8192), ("measured".to_owned(), 7000)].into(),
            declared_overruled: false,
            estimate: None,
            rate: None,
            time_limit_ms: Some(7_200_000),
            host_limits: HostLimitsView { cpu_pct: Some(450), ..HostLimitsView::default() },
            checkpoint: None,
            attempts: vec![first, second],
        }
    }

    #[test]
    fn a_job_in_its_second_attempt() {
        insta::assert_snapshot!(render(&detail(), &Screen::of_width(Some(90))), @r"
        job:        7 (train7)
        user:       alice
        state:      RUNNING
        reason:     GPU 0 shared by time-slice: need 10.0 GiB (declared), 20.5 GiB free beside 1
                    job(s)
        command:    python train.py --bs 32 --tag 'a b'
        directory:  /home/alice/work
        log:        carma logs 7
        pid:        4242
        GPUs:       0 (time-slice)
        memory:     10.0 GiB reserved, peak unknown (on each GPU)
        limits:     4.5 processors
        forecasts:  8.0 GiB declared, 6.8 GiB measured
        energy:     14.2 kJ, alone about 19.0 kJ for the same progress; without 12 s on GPUs that
                    no counter tells of
        time limit: 2 h
        priority:   0
        submitted:  2025-10-09T08:53:20+00:00
        started:    2025-10-09T08:54:20+00:00

        ATTEMPT  GPU  SHARING         CAP  STARTED                    RUN     PEAK  EXIT
              1  1    mps         8.0 GiB  2025-10-09T08:53:21+00:00  30s  8.0 GiB     1
              2  0    time-slice        -  2025-10-09T08:54:20+00:00    -        -     -
        attempt 1
          placed:  GPU 1 was idle; 8.0 GiB reserved
          verdict: out of GPU memory: culprit, it reached its own cap of 8.0 GiB; retried with at
                   least 10.0 GiB (retry 1 of 3)
        attempt 2
          placed:  GPU 0 shared by time-slice: need 10.0 GiB (declared), 20.5 GiB free beside 1
                   job(s)
        ");
    }

    #[test]
    fn how_it_saves_its_work() {
        let mut saves = CheckpointView {
            signal: Some(CheckpointSignal::Usr1),
            grace_ms: Some(120_000),
            dir: Some("/home/alice/.local/state/carma/01234567/job-7".into()),
            saving_since_ms: Some(1_760_000_070_000),
        };
        let screen = Screen::of_width(None);
        let text = "by SIGUSR1, 2 min at most, in /home/alice/.local/state/carma/01234567/job-7; asked 2025-10-09T08:54:30+00:00";
        assert_eq!(checkpoint(&saves, &screen), text);
        (saves.dir, saves.saving_since_ms) = (None, None);
        assert_eq!(checkpoint(&saves, &screen), "by SIGUSR1, 2 min at most, without a directory");
        let named = CheckpointView { dir: Some("/x".into()), ..CheckpointView::default() };
        assert_eq!(checkpoint(&named, &screen), "it is not asked to, in /x");
        let mut detail = detail();
        detail.checkpoint = Some(named);
        assert!(render(&detail, &screen).contains("\nsaves:      it is not asked to, in /x\n"));
    }

    #[test]
    fn what_is_expected_and_why() {
        let mut detail = detail();
        detail.attempts.clear();
        detail.forecasts_mib = [("computed".to_owned(), 12_698), ("declared".to_owned(), 8192)].into();
        detail.estimate = Some(EstimateView {
            need_mib: 8448,
            use_mib: 9830,
            upper_mib: 12_698,
            tier: "summary".into(),
            source: "allocator/summary".into(),
            coverage_pct: Some(95),
            reasons: vec![
                "allocator model: tensors take 7800 MiB at most, in segments of 9180 MiB".into(),
                "bound: 30 %: a summary hides what happens between layers".into(),
            ],
            ..EstimateView::default()
        });
        let text = render(&detail, &Screen::of_width(Some(70)));
        let from = text.find("forecasts:").unwrap();
        let until = text.find("time limit:").unwrap();
        insta::assert_snapshot!(&text[from..until], @r"
        forecasts:  12.4 GiB computed, 8.0 GiB declared
        expected:   9.6 GiB to 12.4 GiB, upper bound at 95 %, cannot run below
                    8.3 GiB (allocator/summary, tier summary)
        energy:     14.2 kJ, alone about 19.0 kJ for the same progress
        ");
        let why = reasons(detail.estimate.as_ref().unwrap(), &Screen::of_width(Some(60)));
        insta::assert_snapshot!(why.trim(), @r"
        Why so much memory is expected:
          - allocator model: tensors take 7800 MiB at most, in
            segments of 9180 MiB
          - bound: 30 %: a summary hides what happens between layers
        ");
        detail.estimate.as_mut().unwrap().reasons.clear();
        assert!(!render(&detail, &Screen::of_width(None)).contains("Why so much"));
    }

    #[test]
    fn a_job_that_is_or_was_suspended() {
        let mut detail = detail();
        detail.job.state = "SUSPENDED".into();
        (detail.job.gpus, detail.job.memory_reserved_mib) = (vec![], None);
        (detail.job.memory_peak_mib, detail.job.suspended_ms) = (Some(8192), Some(200_000));
        let text = render(&detail, &Screen::of_width(None));
        assert!(text.contains("\nGPUs:       none while it is suspended; it left GPU 0\n"), "{text}");
        assert!(text.contains("\nmemory:     none reserved, peak 8.0 GiB (on each GPU)\n"), "{text}");

        // 105 s of run, and 200 s in which it did not.
        let begun = detail.job.started_ms.unwrap();
        let ended = Some(begun + 305_000);
        detail.job.state = "COMPLETED".into();
        (detail.job.gpus, detail.job.ended_ms) = (vec![1], ended);
        let last = detail.attempts.last_mut().unwrap();
        (last.started_ms, last.ended_ms, last.suspended_ms) = (Some(begun), ended, Some(200_000));
        let text = render(&detail, &Screen::of_width(None));
        assert!(text.contains("\nran for:    1 min 45 s\nsuspended:  3 min 20 s\n"), "{text}");
        assert!(text.contains("  1m45s  ") && !text.contains("5m05s"), "{text}");
    }

    #[test]
    fn a_job_that_was_moved() {
        let mut detail = detail();
        let spell = |gpu: u32, from_ms: u64, until_ms| SpellView { gpus: vec![gpu], from_ms, until_ms };
        let last = detail.attempts.last_mut().unwrap();
        last.placed.text = "GPU 1 was idle".into();
        last.spells = vec![spell(1, 10, Some(20)), spell(1, 30, Some(40)), spell(0, 50, None)];
        let words = "attempt 2\n  placed:  at its start: GPU 1 was idle; moved since to GPU 0\n";
        let text = render(&detail, &Screen::of_width(None));
        assert!(text.contains(words), "{text}");
        let last = detail.attempts.last_mut().unwrap();
        last.spells.push(spell(2, 60, None));
        assert_eq!(placed(last, "idle"), "at its start: idle; moved since to GPU 0, then to GPU 2");
        last.spells.truncate(2);
        assert_eq!(placed(last, "idle"), "idle", "it came back to where it was");
    }

    #[test]
    fn memory_of_a_job_that_is_over() {
        let mut job = detail().job;
        (job.state, job.ended_ms) = ("COMPLETED".into(), Some(1_760_000_070_000));
        job.memory_peak_mib = Some(8192);
        assert_eq!(memory(&job), "10.0 GiB were reserved, peak 8.0 GiB (on each GPU)");
        job.memory_reserved_mib = None;
        assert_eq!(memory(&job), "peak 8.0 GiB (on each GPU)");
    }

    #[test]
    fn a_forecast_beside_a_count_is_told_to_be_older() {
        let mut job = detail().job;
        assert_eq!(forecast(&job), None);
        let source = "3 runs of this command".to_owned();
        job.run_time = Some(RunTimeView { low_s: 93, median_s: 93, high_s: 93, guess: false, source });
        let text = "about 1 min 33 s alone on its GPUs (3 runs of this command)";
        assert_eq!(forecast(&job).unwrap(), text);
        job.left = Some(LeftView { left_s: 323, counted: false, source: "3 runs of this command".into() });
        assert_eq!(forecast(&job).unwrap(), text);
        job.left = Some(LeftView { left_s: 323, counted: true, source: "its own count".into() });
        assert_eq!(forecast(&job).unwrap(), format!("expected before it started: {text}"));
        (job.left, job.ended_ms) = (None, Some(1_760_000_000_000));
        assert_eq!(forecast(&job).unwrap(), format!("expected before it started: {text}"));
    }

    #[test]
    fn one_time_is_no_range() {
        let mut view = RunTimeView {
            low_s: 59,
            median_s: 59,
            high_s: 59,
            guess: false,
            source: "3 runs of this command".into(),
        };
        assert_eq!(run_time(&view), "about 59 s alone on its GPUs (3 runs of this command)");
        view.high_s = 61;
        let range = "about 59 s alone on its GPUs, 80 % between 59 s and 1 min 1 s (3 runs of this command)";
        assert_eq!(run_time(&view), range);
        let guess = RunTimeView {
            guess: true,
            source: "4 runs of other programs of this user".into(),
            ..view.clone()
        };
        let text = "about 59 s alone on its GPUs, which is a guess (4 runs of other programs of this user)";
        assert_eq!(run_time(&guess), text);
        // What is printed counts, not what it is made of.
        let days = 86_400 * 20;
        (view.low_s, view.median_s, view.high_s) = (days, days, days + 1);
        assert!(!run_time(&view).contains("between"), "{}", run_time(&view));
    }

    #[test]
    fn a_job_of_somebody_else_that_waits() {
        let mut detail = detail();
        detail.job = job(8, "PENDING", "Resources", "Resources(needs 2 idle GPU(s); all 2 are in use)");
        detail.job.gpus_requested = 2;
        (detail.log, detail.pid, detail.attempts) = (String::new(), None, vec![]);
        detail.forecasts_mib.clear();
        insta::assert_snapshot!(render(&detail, &Screen::of_width(None)), @r"
        job:        8 (train8)
        user:       alice
        state:      PENDING
        reason:     Resources(needs 2 idle GPU(s); all 2 are in use)
        command:    python train.py --bs 32 --tag 'a b'
        directory:  /home/alice/work
        log:        only its owner, operators and root may know
        GPUs:       none yet, 2 wanted
        memory:     unknown reserved, peak unknown (on each GPU)
        limits:     4.5 processors
        time limit: 2 h
        priority:   0
        submitted:  2025-10-09T08:53:20+00:00

        Not started yet.
        ");
    }
}
