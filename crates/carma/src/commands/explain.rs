//! `carma explain`: why a job waits and what would help, or why it went where it went and what it keeps there. On one screen.

use super::queue::named_gpus;
use super::{Context, show, unwritten};
use crate::cli::ShowArgs;
use carma_api::parse;
use carma_api::wire::{
    EndView, ExplainReply, GpuVerdict, JobView, NeighbourView, RelievedView, RunningView, TimeView,
    WaitingView,
};
use carma_cli::failure::Outcome;
use carma_cli::{Block, Column, Screen, Table, clip, time_of_day, wrap};
use carma_core::model::SharingMode;
use carma_core::units::{MiB, Millis};
use std::fmt::Write as _;

/// Lines that a sentence may take on a terminal; `carma show` has the whole of it.
const LINES: usize = 2;
/// Up to so many GPUs have a row each; of more, those with the same answer share one.
const MOST_ROWS: usize = 8;
/// Up to so many rows may take two lines.
const TALL_ROWS: usize = 4;
/// Attempts that are shown of a job that is over.
const ATTEMPTS: usize = 3;
/// Where the lines of a block begin, about.
const INDENT: usize = 11;

/// Explains the job.
pub(crate) fn run(context: &Context, args: &ShowArgs) -> Outcome {
    context.listing(&format!("/v1/jobs/{}/explain", args.id), args.json, render)
}

fn render(reply: &ExplainReply, screen: &Screen) -> String {
    let job = &reply.job;
    let short = |text: &str| clip(text, screen, INDENT, LINES);
    let mut block = Block::default();
    block.line("job", format!("{} ({}) of {}", job.id, job.name, job.user));
    block.line("state", state(reply));
    match &reply.running {
        Some(running) => {
            // Not only where it is and why: that is about to change, or did not.
            if matches!(job.reason.code.as_str(), "Ending" | "Suspending" | "Resuming" | "NotSuspended") {
                block.line("reason", short(&job.reason.text));
            }
            let unsupervised = "no: its supervisor was killed; what it prints is not followed, and its exit code will not be known";
            block.line_if("supervised", running.unsupervised.then(|| short(unsupervised)));
            block.line("why", short(&why(reply, running)));
            block.line("speed", short(&speed(job, running)));
            block.line_if("measured", measured(job, running).as_deref().map(short));
            block.line_if("undone", running.not_undone.as_deref().map(|why| short(&format!("no: {why}"))));
            block.line_if(
                "evicted",
                running.relieved.map(|relieved| short(&evicted(relieved, reply.now_ms, screen))),
            );
            block.line("memory", memory(reply, running));
            block.line("if OOM", short(&running.out_of_memory));
        }
        None => {
            block.line("reason", short(&job.reason.text));
        }
    }
    if let Some(waiting) = &reply.waiting {
        block.line("place", short(&format!("{} of {}; {}", ordinal(waiting.place), waiting.of, waiting.why)));
        // While a limit of its user, or that GPUs are drained, keeps it out no GPU is kept for it, and it does not wait for the first job
        // to end.
        let limited = matches!(job.reason.code.as_str(), "UserLimit" | "GpuDrained");
        let start = start(waiting, reply.now_ms, screen).filter(|_| !limited || waiting.stands);
        block.line_if("start", start.as_deref().map(short));
        // At the limit of its user only ends of that user's jobs are told.
        let of_user = job.reason.code == "UserLimit";
        let end = waiting.end.as_ref().filter(|end| !limited || of_user || !end.starts_on.is_empty());
        block.line_if("waits for", end.map(|end| short(&waits_for(end, waiting, of_user))));
        block.line_if("waits for", waiting.time.as_ref().map(|time| short(&by_time(time))));
    }
    block.line_if("expected", expected(reply).as_deref().map(short));
    // A place in the order of run times says it already.
    if reply.waiting.as_ref().is_none_or(|waiting| matches!(waiting.order.as_str(), "arrival" | "return")) {
        block.line_if("run time", show::forecast(job));
    }
    block.line_if("left", show::left(job).filter(|_| reply.running.is_some()));
    let mut text = unwritten(reply.unwritten.as_ref(), reply.now_ms, screen) + &block.render(screen);
    let is_back = reply.waiting.as_ref().is_some_and(is_return);
    text.push_str(&answers(&reply.gpus, is_back, screen));
    if !reply.sooner.is_empty() {
        text.push_str("\nIt would start now:\n");
        for help in &reply.sooner {
            for (i, line) in wrap(&clip(&help.text, screen, 4, LINES), screen, 4).iter().enumerate() {
                let _ = writeln!(text, "  {} {line}", if i == 0 { "-" } else { " " });
            }
        }
    }
    if let Some(running) = &reply.running {
        text.push_str(&beside(running, screen));
    }
    text.push_str(&attempts(reply, screen));
    text
}

/// Its state, for how long, where, under which policy.
fn state(reply: &ExplainReply) -> String {
    let job = &reply.job;
    let mut text = job.state.clone();
    let since = match &reply.waiting {
        Some(waiting) => Some((waiting.since_ms, reply.now_ms)),
        // The time in which it was suspended is not time that it ran.
        None => job.started_ms.map(|at| {
            (at.saturating_add(job.suspended_ms.unwrap_or(0)), job.ran_until().unwrap_or(reply.now_ms))
        }),
    };
    // Of one that is suspended the time since it left counts, also while it waits to come back.
    if let Some((since, until)) = since.filter(|_| job.state != "SUSPENDED") {
        let word = if job.ended_ms.is_some() { "after" } else { "for" };
        let _ = write!(text, " {word} {}", Millis(until).since(Millis(since)));
        if let Some(at) = job.waiting_since_ms.filter(|at| *at < since) {
            let all = Millis(until).since(Millis(at)).to_string();
            if !text.ends_with(&format!(" {all}")) {
                let _ = write!(text, ", {all} in all");
            }
        }
    }
    let left_at = reply.attempts.last().and_then(|last| last.spells.last()?.until_ms);
    if let Some(at) = left_at.filter(|_| job.state == "SUSPENDED") {
        let _ = write!(text, " for {}", Millis(reply.now_ms).since(Millis(at)));
    }
    if !job.gpus.is_empty() {
        let _ = write!(text, " on {}", named_gpus(&job.gpus));
        if let Some(sharing) = job.sharing {
            let _ = write!(text, " ({sharing})");
        }
    }
    if let Some(gpus) = show::left_gpus(job, &reply.attempts) {
        let _ = write!(text, ", it left GPU {gpus}");
    }
    let _ = write!(text, "; policy {}", reply.policy);
    text
}

/// Why it is where it is, or was before it was suspended.
fn why(reply: &ExplainReply, running: &RunningView) -> String {
    match reply.attempts.last() {
        // That it was moved is what the daemon says then.
        Some(attempt) if reply.job.reason.code != "Moved" => show::placed(attempt, &running.placed),
        _ => running.placed.clone(),
    }
}

/// `1st`, `2nd`, `11th`.
fn ordinal(n: u64) -> String {
    match (n % 100, n % 10) {
        (11..=13, _) => format!("{n}th"),
        (_, 1) => format!("{n}st"),
        (_, 2) => format!("{n}nd"),
        (_, 3) => format!("{n}rd"),
        _ => format!("{n}th"),
    }
}

/// The bound on its start, or that GPUs are kept for it already.
fn start(waiting: &WaitingView, now_ms: u64, screen: &Screen) -> Option<String> {
    if waiting.stands {
        return Some("no bound while the quota of its user is spent".to_owned());
    }
    if waiting.urgent {
        return Some("urgent: GPUs are kept for it now".to_owned());
    }
    let at = |due_ms| time_of_day(due_ms, now_ms, screen);
    if waiting.overdue {
        let kept = match waiting.place {
            1 => "it is looked at first, and GPUs are kept for it",
            _ => "GPUs are kept for it, after those for the jobs before it",
        };
        return Some(match waiting.due_ms {
            Some(due_ms) => {
                let over = Millis(now_ms).since(Millis(due_ms));
                format!("{over} over its bound of {}: {kept}", at(due_ms))
            }
            None => format!("over the bound on its start, which rests on a guess: {kept}"),
        });
    }
    let due_ms = waiting.due_ms?;
    let at = at(due_ms);
    let left = Millis(due_ms).since(Millis(now_ms));
    Some(format!("by {at} (in {left}) if run times are as expected: from then on GPUs are kept for it"))
}

/// Whether it is suspended and comes back, and so in no queue.
fn is_return(waiting: &WaitingView) -> bool {
    waiting.order == "return"
}

/// Whose end it waits for.
fn waits_for(end: &EndView, waiting: &WaitingView, of_user: bool) -> String {
    let job = format!("job {} on {}", end.job, named_gpus(&end.gpus));
    if end.makes_room {
        return match &end.left {
            Some(left) => format!("{job} makes room for it, within {}", Millis::secs(left.left_s)),
            None => format!("{job} makes room for it, and is being suspended"),
        };
    }
    let goes = if is_return(waiting) { "come back to" } else { "start on" };
    let expected = match &end.left {
        Some(left) => format!("expected in about {} ({})", Millis::secs(left.left_s), left.source),
        None => "of which it is not known when".to_owned(),
    };
    if end.starts_on.is_empty() && of_user {
        format!("the end of a job of its user; the first is that of {job}, {expected}")
    } else if end.starts_on.is_empty() {
        format!("no single end is known to be enough; the first is that of {job}, {expected}")
    } else {
        // What others turn out to need may change the order, and where there is room.
        let supposed = if end.unknown > 0 { "if nothing else is learned " } else { "" };
        let on = named_gpus(&end.starts_on);
        format!("the end of {job}, {expected}; {supposed}it would {goes} {on} then")
    }
}

/// What it waits for that comes by time alone.
fn by_time(time: &TimeView) -> String {
    match time.left_s {
        Some(left) => format!("{}, in about {}", time.text, Millis::secs(left)),
        None => time.text.clone(),
    }
}

/// What carma expects of its memory, and the first reason for that.
fn expected(reply: &ExplainReply) -> Option<String> {
    let estimate = reply.estimate.as_ref()?;
    let why = estimate.reasons.first().map_or_else(String::new, |reason| format!(": {reason}"));
    Some(show::expected(estimate) + &why)
}

/// A share of a speed, as `0.81`.
fn share(pct: u32) -> String {
    format!("{:.2}", f64::from(pct) / 100.0)
}

/// What it keeps of its speed, and what it is to keep.
fn speed(job: &JobView, running: &RunningView) -> String {
    let mut words = Vec::new();
    let alone = running.neighbours.is_empty() && running.foreign == 0;
    let silent =
        running.silent_s.map(|seconds| format!("none: it told no step for {}", Millis::secs(seconds)));
    match (job.progress_pct, alone) {
        _ if silent.is_some() => {
            let no_neighbour =
                if alone { "" } else { ", and a neighbour slows a job down and does not stop it" };
            words.extend(silent.map(|silent| silent + no_neighbour));
        }
        (Some(pct), _) if job.progress_at_most => words.push(format!(
            "at most {} of its speed alone, which is not known: its command has gone {:.2} times as fast",
            share(pct),
            100.0 / f64::from(pct.max(1))
        )),
        (Some(pct), _) => words.push(format!("{} of its speed alone, as measured", share(pct))),
        (None, true) => words.push("its own: it is alone".to_owned()),
        (None, false) => words.push("not measured yet beside these neighbours".to_owned()),
    }
    words.extend(running.predicted_pct.map(|pct| format!("{} predicted", share(pct))));
    // No job may join one that has its GPU for itself.
    let for_itself = alone && job.sharing == Some(SharingMode::Exclusive);
    let kept = running.floor_pct.zip(running.whole_run_pct).filter(|_| !for_itself);
    words.extend(kept.map(|(floor, whole)| {
        let floors = format!("{}, at {} over its run", share(floor), share(whole));
        match job.progress_pct.is_some() || alone {
            true => format!("the policy keeps it at {floors}"),
            false if running.predicted_pct.is_some_and(|pct| pct < floor) => {
                format!("below the {} at which the policy keeps it once it is measured", share(floor))
            }
            false => format!("once it is measured the policy keeps it at {floors}"),
        }
    }));
    if show::awaits_latency(job) {
        words.push("no job may join it before its latency alone is measured".to_owned());
    } else {
        words.extend(job.max_slowdown_pct.map(|pct| match show::limit_of_latency(job) {
            Some(latency) => format!("{latency}: a slowdown of {} at most", share(pct)),
            None => format!("limit of slowdown {}", share(pct)),
        }));
    }
    words.join("; ")
}

/// The latest neighbour that was evicted for it, when and why.
fn evicted(relieved: RelievedView, now_ms: u64, screen: &Screen) -> String {
    let RelievedView { job, suspended, at_ms, slowdown_pct, limit_pct, times } = relieved;
    let more = if times > 1 { format!("; {times} times in all") } else { String::new() };
    format!(
        "job {job}{} at {} ({} ago), since this one was slowed down by {}, and {} is the most{more}",
        if suspended { ", which was suspended," } else { "" },
        time_of_day(at_ms, now_ms, screen),
        Millis(now_ms).since(Millis(at_ms)),
        share(slowdown_pct),
        share(limit_pct),
    )
}

/// Why its speed is not measured, and what follows.
fn measured(job: &JobView, running: &RunningView) -> Option<String> {
    let is_unknown = job.progress_pct.is_none() && running.silent_s.is_none();
    let why = running.unmeasured.as_deref().filter(|_| is_unknown)?;
    if running.unsupervised {
        return Some("no, nor will it be: what it prints is not followed".to_owned());
    }
    let kept = running.floor_pct.is_some() || job.max_slowdown_pct.is_some();
    let follows = if kept { "; until then no neighbour is taken off for its sake" } else { "" };
    Some(format!("no: {why}{follows}"))
}

fn memory(reply: &ExplainReply, running: &RunningView) -> String {
    let cap = reply.attempts.last().and_then(|attempt| attempt.cap_mib);
    let cap = cap.map_or_else(String::new, |mib| format!(", hard limit {}", MiB(mib)));
    let grows = if running.grows {
        "; it goes on growing, so that up to 40 % more than it took is reserved"
    } else {
        ""
    };
    show::memory(&reply.job) + &cap + grows
}

/// What each GPU says to a job that waits; to a suspended one that comes back (`is_back`), those that it may come back to.
fn answers(gpus: &[GpuVerdict], is_back: bool, screen: &Screen) -> String {
    let Some(first) = gpus.first() else { return String::new() };
    let mut groups: Vec<Vec<&GpuVerdict>> = Vec::new();
    for verdict in gpus {
        let same = |group: &&mut Vec<&GpuVerdict>| {
            let with = group[0];
            gpus.len() > MOST_ROWS && with.cause == verdict.cause && with.need_mib == verdict.need_mib
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(verdict),
            None => groups.push(vec![verdict]),
        }
    }
    let one_need = gpus.iter().all(|verdict| verdict.need_mib == first.need_mib);
    let predicted = gpus.iter().any(|verdict| !verdict.predicted.is_empty());
    use Column::{Left, Right};
    let mut columns = vec![Left("GPU"), Left("JOBS"), Right("FREE")];
    columns.extend((!one_need).then_some(Right("NEED")));
    columns
        .extend(predicted.then_some([Right("KEEPS"), Right("SLOWEST"), Right("GAIN")]).into_iter().flatten());
    columns.push(Left("ANSWER"));
    let lines = if groups.len() <= TALL_ROWS { 2 } else { 1 };
    let mut table = Table::new(columns, screen).at_most_lines(lines);
    let dash = || "-".to_owned();
    let memory = |mib: Option<u64>, exact| mib.map_or_else(dash, |mib| MiB(mib).text(exact));
    let free = |group: &[&GpuVerdict]| group.iter().filter_map(|verdict| verdict.free_mib).max();
    let exact = |group: &[&GpuVerdict]| {
        let both = free(group).zip(group[0].need_mib);
        both.is_some_and(|(free, need)| MiB(free).only_looks_like(MiB(need)))
    };
    for group in &groups {
        let exact = exact(group);
        let mut cells = vec![ranges(group), jobs_on(group), memory(free(group), exact)];
        cells.extend((!one_need).then(|| memory(group[0].need_mib, exact)));
        if predicted {
            cells.extend(predictions(group));
        }
        let same = group.iter().all(|verdict| verdict.brief == group[0].brief);
        cells.push(if same { group[0].brief.clone() } else { group[0].cause.clone() });
        table.row(cells);
    }
    let need = first.need_mib.filter(|_| one_need);
    let mut notes: Vec<String> = Vec::new();
    let exact = groups.iter().any(|group| exact(group));
    notes.extend(need.map(|mib| format!("it needs {} free", MiB(mib).text(exact))));
    notes.extend((groups.len() < gpus.len()).then(|| "best of each row".to_owned()));
    let notes = if notes.is_empty() { String::new() } else { format!(" ({})", notes.join("; ")) };
    let who = if is_back { "each GPU that it may come back to" } else { "each GPU" };
    let mut text = format!("\nWhat {who} says to it now{notes}:\n{}", table.render());
    // It takes the lines of two rows, and all of it fits a screen.
    if predicted && groups.len() + 2 <= MOST_ROWS {
        wrap(WHAT_IS_PREDICTED, screen, 0).iter().for_each(|line| text.extend([line, "\n"]));
    }
    text
}

/// What the columns are that only predictions have.
const WHAT_IS_PREDICTED: &str = "Predicted, of the speed alone: KEEPS this job, SLOWEST the slowest one there (its number); GAIN: how much more all get done together.";

/// `0-3,7`; of many the first, and how many.
fn ranges(group: &[&GpuVerdict]) -> String {
    const WIDTH: usize = 12;
    let all = parse::ranges(group.iter().map(|verdict| verdict.gpu.into()).collect());
    if all.len() <= WIDTH {
        return all;
    }
    format!("{},… ({})", all.split(',').next().unwrap_or_default(), group.len())
}

/// The jobs on a GPU, or how many; of several GPUs how many on each.
fn jobs_on(group: &[&GpuVerdict]) -> String {
    let count = |verdict: &GpuVerdict| verdict.jobs.len() + verdict.foreign as usize;
    let least = group.iter().map(|verdict| count(verdict)).min().unwrap_or_default();
    let most = group.iter().map(|verdict| count(verdict)).max().unwrap_or_default();
    match group {
        _ if most == 0 => "-".to_owned(),
        [one] if one.foreign == 0 && one.jobs.len() <= 3 => {
            one.jobs.iter().map(u64::to_string).collect::<Vec<_>>().join(",")
        }
        _ if least == most => format!("{most} on it"),
        _ => format!("{least}-{most} on it"),
    }
}

/// What it would keep, what the slowest would, and what all would gain: the best of the group.
fn predictions(group: &[&GpuVerdict]) -> [String; 3] {
    let best =
        group.iter().filter(|verdict| !verdict.predicted.is_empty()).max_by_key(|verdict| verdict.gain_pct);
    let Some(best) = best else { return ["-", "-", "-"].map(str::to_owned) };
    // The newcomer is the one that is not there yet.
    let own = best.predicted.iter().find(|task| !best.jobs.contains(&task.job));
    let slowest = best.predicted.iter().min_by_key(|task| task.progress_pct);
    let dash = || "-".to_owned();
    [
        own.map_or_else(dash, |task| share(task.progress_pct)),
        slowest.map_or_else(dash, |task| match best.jobs.contains(&task.job) {
            true => format!("{} ({})", share(task.progress_pct), task.job),
            false => format!("{} (it)", share(task.progress_pct)),
        }),
        best.gain_pct.map_or_else(dash, share),
    ]
}

/// Those beside a job that runs.
fn beside(running: &RunningView, screen: &Screen) -> String {
    let mut text = String::new();
    if !running.neighbours.is_empty() {
        use Column::{Left, Right};
        let columns = vec![
            Left("GPU"),
            Right("JOB"),
            Left("USER"),
            Right("RESERVED"),
            Right("MEMORY"),
            Right("PREDICTED"),
            Right("MEASURED"),
            Right("LIMIT"),
        ];
        let mut table = Table::new(columns, screen);
        let dash = || "-".to_owned();
        let memory = |mib: Option<u64>| mib.map_or_else(dash, |mib| MiB(mib).to_string());
        for NeighbourView {
            gpu,
            job,
            user,
            memory_reserved_mib,
            memory_mib,
            predicted_pct,
            progress_pct,
            progress_at_most,
            max_slowdown_pct,
        } in &running.neighbours
        {
            let bound = if *progress_at_most { "<=" } else { "" };
            table.row([
                gpu.to_string(),
                job.to_string(),
                user.clone(),
                memory(*memory_reserved_mib),
                memory(*memory_mib),
                predicted_pct.map_or_else(dash, share),
                progress_pct.map_or_else(dash, |pct| format!("{bound}{}", share(pct))),
                max_slowdown_pct.map_or_else(dash, share),
            ]);
        }
        let _ = write!(text, "\nBeside it, and what each keeps of its speed:\n{}", table.render());
    }
    if running.foreign > 0 {
        let processes = if running.foreign == 1 { "1 process" } else { "several processes" };
        let _ = writeln!(text, "{processes} on its GPUs that carma did not start; `carma gpus` shows them.");
    }
    text
}

/// The last attempts that are over: of a job that is not over the last one, as there is more to say of it.
fn attempts(reply: &ExplainReply, screen: &Screen) -> String {
    let current = usize::from(reply.running.is_some());
    let over = &reply.attempts[..reply.attempts.len().saturating_sub(current)];
    if over.is_empty() {
        return String::new();
    }
    let most = if reply.job.ended_ms.is_some() { ATTEMPTS } else { 1 };
    let earlier = over.len().saturating_sub(most);
    let mut text = show::attempts(&over[earlier..], screen);
    if earlier > 0 {
        let _ = writeln!(text, "{earlier} earlier: `carma show {}`", reply.job.id);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::queue::tests::job;
    use super::*;
    use carma_api::wire::{AttemptView, EstimateView, LeftView, ProgressView, SoonerView, SpellView};

    const NOW: u64 = 1_760_000_200_000;

    fn reply(job: JobView) -> ExplainReply {
        ExplainReply {
            unwritten: None,
            version: 1,
            now_ms: NOW,
            job,
            policy: "adaptive".into(),
            estimate: None,
            waiting: None,
            gpus: vec![],
            sooner: vec![],
            running: None,
            attempts: vec![],
        }
    }

    fn verdict(gpu: u32, jobs: &[u64], brief: &str, progress: &[(u64, u32)]) -> GpuVerdict {
        GpuVerdict {
            gpu,
            cause: brief.split(':').next().unwrap_or_default().to_owned(),
            brief: brief.into(),
            free_mib: Some(12_595 + u64::from(gpu) * 512),
            need_mib: Some(20_480),
            jobs: jobs.to_vec(),
            predicted: progress
                .iter()
                .map(|(job, pct)| ProgressView { job: *job, progress_pct: *pct })
                .collect(),
            gain_pct: (!progress.is_empty()).then_some(35),
            ..GpuVerdict::default()
        }
    }

    /// A job in the queue that everything can be said of.
    fn waits() -> ExplainReply {
        let reason = "GpuMemory(2 of 3 GPUs found; need 20.0 GiB (declared); best is GPU 1 with 12.3 GiB: 9.1 GiB held by pid 4711 of bob, not ours; 18.0 GiB held by job 3; and 2 more)";
        ExplainReply {
            unwritten: None,
            waiting: Some(WaitingView {
                place: 3,
                of: 41,
                since_ms: NOW - 200_000,
                order: "shortest".into(),
                why: "shortest first: 10 min on 1 GPU (2 runs of this command)".into(),
                run_s: 600,
                due_ms: Some(NOW + 1_500_000),
                overdue: false,
                stands: false,
                urgent: false,
                end: Some(EndView {
                    job: 7,
                    gpus: vec![2],
                    makes_room: false,
                    left: Some(LeftView { left_s: 740, counted: true, source: "its own count".into() }),
                    starts_on: vec![2],
                    unknown: 0,
                }),
                time: None,
            }),
            gpus: vec![
                verdict(0, &[3, 5], "too little memory: job 3 12.0 GiB, job 5 10.0 GiB", &[]),
                verdict(1, &[4, 6, 8, 9], "below the floor of 0.50: job 4", &[(12, 61), (4, 48), (6, 70)]),
                verdict(10, &[], "drained by root", &[]),
            ],
            sooner: vec![SoonerView {
                code: "GpuMemory".into(),
                text: "if it takes no more: cancelled and submitted again with --gpu-memory 12G (not 20.0 GiB): on GPU 1"
                    .into(),
                gpus: vec![1],
            }],
            ..reply(job(12, "PENDING", "GpuMemory", reason))
        }
    }

    #[test]
    fn a_suspended_job_that_comes_back() {
        let mut back = waits();
        (back.job.state, back.job.gpus) = ("SUSPENDED".into(), vec![]);
        let waiting = back.waiting.as_mut().unwrap();
        (waiting.order, waiting.place, waiting.of, waiting.due_ms) = ("return".into(), 1, 1, None);
        waiting.why = "suspended jobs that come back go before all that wait".into();
        (back.gpus, back.sooner) = (vec![back.gpus.remove(0)], vec![]);
        let text = render(&back, &Screen::of_width(None));
        assert!(text.contains("1st of 1; suspended jobs that come back"), "{text}");
        assert!(text.contains("; it would come back to GPU 2 then\n"), "{text}");
        assert!(text.contains("\nWhat each GPU that it may come back to says to it now ("), "{text}");
    }

    #[test]
    fn a_job_that_waits_again() {
        let mut again = waits();
        again.job.waiting_since_ms = Some(NOW - 240_000);
        let text = render(&again, &Screen::of_width(None));
        assert!(text.contains("PENDING for 3 min 20 s, 4 min in all; policy adaptive\n"), "{text}");
    }

    #[test]
    fn a_job_that_waits() {
        insta::assert_snapshot!(render(&waits(), &Screen::of_width(Some(80))), @r"
        job:       12 (train12) of alice
        state:     PENDING for 3 min 20 s; policy adaptive
        reason:    GpuMemory(2 of 3 GPUs found; need 20.0 GiB (declared); best is GPU 1
                   with 12.3 GiB: 9.1 GiB held by pid 4711 of bob, not ours; 18.0 GiB…
        place:     3rd of 41; shortest first: 10 min on 1 GPU (2 runs of this command)
        start:     by 09:21:40 (in 25 min) if run times are as expected: from then on
                   GPUs are kept for it
        waits for: the end of job 7 on GPU 2, expected in about 12 min 20 s (its own
                   count); it would start on GPU 2 then

        What each GPU says to it now (it needs 20.0 GiB free):
        GPU  JOBS         FREE  KEEPS   SLOWEST  GAIN  ANSWER
        0    3,5      12.3 GiB      -         -     -  too little memory: job 3 12.0
                                                       GiB, job 5 10.0 GiB
        1    4 on it  12.8 GiB   0.61  0.48 (4)  0.35  below the floor of 0.50: job 4
        10   -        17.3 GiB      -         -     -  drained by root
        Predicted, of the speed alone: KEEPS this job, SLOWEST the slowest one there
        (its number); GAIN: how much more all get done together.

        It would start now:
          - if it takes no more: cancelled and submitted again with --gpu-memory 12G
            (not 20.0 GiB): on GPU 1
        ");
    }

    #[test]
    fn a_job_that_waits_on_a_wider_screen() {
        insta::assert_snapshot!(render(&waits(), &Screen::of_width(Some(120))), @r"
        job:       12 (train12) of alice
        state:     PENDING for 3 min 20 s; policy adaptive
        reason:    GpuMemory(2 of 3 GPUs found; need 20.0 GiB (declared); best is GPU 1 with 12.3 GiB: 9.1 GiB held by pid 4711
                   of bob, not ours; 18.0 GiB held by job 3; and 2 more)
        place:     3rd of 41; shortest first: 10 min on 1 GPU (2 runs of this command)
        start:     by 09:21:40 (in 25 min) if run times are as expected: from then on GPUs are kept for it
        waits for: the end of job 7 on GPU 2, expected in about 12 min 20 s (its own count); it would start on GPU 2 then

        What each GPU says to it now (it needs 20.0 GiB free):
        GPU  JOBS         FREE  KEEPS   SLOWEST  GAIN  ANSWER
        0    3,5      12.3 GiB      -         -     -  too little memory: job 3 12.0 GiB, job 5 10.0 GiB
        1    4 on it  12.8 GiB   0.61  0.48 (4)  0.35  below the floor of 0.50: job 4
        10   -        17.3 GiB      -         -     -  drained by root
        Predicted, of the speed alone: KEEPS this job, SLOWEST the slowest one there (its number); GAIN: how much more all get
        done together.

        It would start now:
          - if it takes no more: cancelled and submitted again with --gpu-memory 12G (not 20.0 GiB): on GPU 1
        ");
    }

    #[test]
    fn every_line_fits_and_all_of_it_a_screen() {
        let mut reply = waits();
        reply.waiting.as_mut().unwrap().end.as_mut().unwrap().unknown = 3;
        for gpus in [8_u32, 100] {
            let brief =
                |gpu| if gpu % 7 == 0 { "drained by root" } else { "too little memory: job 3 12.0 GiB" };
            reply.gpus =
                (0..gpus).map(|gpu| verdict(gpu, &[3, 5], brief(gpu), &[(12, 61), (3, 48)])).collect();
            for width in [80_u16, 120] {
                let text = render(&reply, &Screen::of_width(Some(width)));
                assert!(text.lines().count() <= 24, "{gpus} GPUs:\n{text}");
                let fits = |line: &str| line.chars().count() <= usize::from(width);
                assert!(text.lines().all(fits), "{width}:\n{text}");
            }
        }
    }

    #[test]
    fn many_gpus_with_the_same_answer_share_a_row() {
        let mut gpus: Vec<GpuVerdict> = (0..9)
            .map(|gpu| verdict(gpu, &[u64::from(gpu)], "too little memory: job 3 12.0 GiB", &[]))
            .collect();
        gpus[4] = verdict(4, &[], "drained by root", &[]);
        gpus[7].need_mib = Some(30_000);
        insta::assert_snapshot!(answers(&gpus, false, &Screen::of_width(Some(80))), @r"
        What each GPU says to it now (best of each row):
        GPU        JOBS         FREE      NEED  ANSWER
        0-3,5-6,8  1 on it  16.3 GiB  20.0 GiB  too little memory: job 3 12.0 GiB
        4          -        14.3 GiB  20.0 GiB  drained by root
        7          7        15.8 GiB  29.3 GiB  too little memory: job 3 12.0 GiB
        ");
    }

    #[test]
    fn rounding_does_not_hide_what_is_missing() {
        let mut gpus = [verdict(0, &[3], "too little memory: job 3 12.0 GiB", &[])];
        (gpus[0].free_mib, gpus[0].need_mib) = (Some(20_470), Some(20_480));
        let text = answers(&gpus, false, &Screen::of_width(Some(80)));
        assert!(text.contains("(it needs 20480 MiB free)") && text.contains("  20470 MiB  "), "{text}");
    }

    #[test]
    fn bounds_that_have_passed_and_ends_that_are_not_known() {
        let mut waiting = waits().waiting.unwrap();
        (waiting.overdue, waiting.due_ms) = (true, Some(NOW - 90_000));
        let utc = Screen::of_width(None);
        assert_eq!(
            start(&waiting, NOW, &utc).unwrap(),
            "1 min 30 s over its bound of 08:55:10: GPUs are kept for it, after those for the jobs before it"
        );
        waiting.place = 1;
        assert_eq!(
            start(&waiting, NOW, &utc).unwrap(),
            "1 min 30 s over its bound of 08:55:10: it is looked at first, and GPUs are kept for it"
        );
        waiting.urgent = true;
        assert_eq!(start(&waiting, NOW, &utc).unwrap(), "urgent: GPUs are kept for it now");
        (waiting.stands, waiting.due_ms) = (true, None);
        assert!(start(&waiting, NOW, &utc).unwrap().starts_with("no bound while the quota"));
        let mut time = TimeView { text: "job 3 to have been active for 30 s".into(), left_s: Some(6) };
        assert_eq!(by_time(&time), "job 3 to have been active for 30 s, in about 6 s");
        time.left_s = None;
        assert_eq!(by_time(&time), "job 3 to have been active for 30 s");
        let mut end = EndView { job: 7, gpus: vec![0, 1], starts_on: vec![1], ..EndView::default() };
        assert_eq!(
            waits_for(&end, &WaitingView::default(), false),
            "the end of job 7 on GPUs 0,1, of which it is not known when; it would start on GPU 1 then"
        );
        let none = EndView { starts_on: vec![], ..end.clone() };
        assert_eq!(
            waits_for(&none, &WaitingView::default(), true),
            "the end of a job of its user; the first is that of job 7 on GPUs 0,1, of which it is not known when"
        );
        end.unknown = 3;
        let told = waits_for(&end, &WaitingView::default(), false);
        assert!(told.ends_with("; if nothing else is learned it would start on GPU 1 then"), "{told}");
        end.makes_room = true;
        assert_eq!(
            waits_for(&end, &WaitingView::default(), false),
            "job 7 on GPUs 0,1 makes room for it, and is being suspended"
        );
        end.left = Some(LeftView { left_s: 130, ..LeftView::default() });
        assert_eq!(
            waits_for(&end, &WaitingView::default(), false),
            "job 7 on GPUs 0,1 makes room for it, within 2 min 10 s"
        );
        let numbers = [1, 2, 3, 4, 11, 12, 13, 21, 112].map(ordinal);
        assert_eq!(numbers, ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "112th"]);
    }

    /// A job that runs beside another, in its second attempt.
    fn runs() -> ExplainReply {
        let detail = show::tests::detail();
        let mut job = detail.job;
        job.progress_pct = Some(81);
        job.max_slowdown_pct = Some(150);
        job.left = Some(LeftView { left_s: 600, counted: false, source: "2 runs of this command".into() });
        let estimate = EstimateView {
            tier: "exact".into(),
            source: "history".into(),
            use_mib: 4096,
            upper_mib: 4301,
            need_mib: 4096,
            reasons: vec!["2 runs of this command on H200 took 4096 MiB at most".into()],
            ..EstimateView::default()
        };
        ExplainReply {
            unwritten: None,
            estimate: Some(estimate),
            running: Some(RunningView {
                unsupervised: false,
            placed: "most progress gained, as predicted of 3 that would do; 20.5 GiB were free beside 1 other".into(),
                predicted_pct: Some(78),
                not_undone: None,
                silent_s: None,
                relieved: None,
                grows: false,
                floor_pct: Some(40),
                whole_run_pct: Some(60),
                unmeasured: None,
                out_of_memory: "fails beyond its hard limit of 10.0 GiB, no neighbour does; tried again with more memory, 1 of 5 retries used".into(),
                neighbours: vec![NeighbourView {
                    gpu: 0,
                    job: 5,
                    user: "bob".into(),
                    memory_reserved_mib: Some(12_288),
                    memory_mib: Some(11_000),
                    predicted_pct: Some(90),
                    progress_pct: None,
                    progress_at_most: false,
                    max_slowdown_pct: Some(130),
                }],
                foreign: 1,
            }),
            attempts: detail.attempts,
            ..reply(job)
        }
    }

    #[test]
    fn a_job_that_runs() {
        insta::assert_snapshot!(render(&runs(), &Screen::of_width(Some(80))), @r"
        job:      7 (train7) of alice
        state:    RUNNING for 2 min 20 s on GPU 0 (time-slice); policy adaptive
        why:      most progress gained, as predicted of 3 that would do; 20.5 GiB were
                  free beside 1 other
        speed:    0.81 of its speed alone, as measured; 0.78 predicted; the policy keeps
                  it at 0.40, at 0.60 over its run; limit of slowdown 1.50
        memory:   10.0 GiB reserved, peak unknown (on each GPU)
        if OOM:   fails beyond its hard limit of 10.0 GiB, no neighbour does; tried
                  again with more memory, 1 of 5 retries used
        expected: 4.0 GiB to 4.2 GiB, cannot run below 4.0 GiB (history, tier exact): 2
                  runs of this command on H200 took 4096 MiB at most
        left:     about 10 min (by 2 runs of this command)

        Beside it, and what each keeps of its speed:
        GPU  JOB  USER  RESERVED    MEMORY  PREDICTED  MEASURED  LIMIT
        0      5  bob   12.0 GiB  10.7 GiB       0.90         -   1.30
        1 process on its GPUs that carma did not start; `carma gpus` shows them.

        ATTEMPT  GPU  SHARING      CAP  STARTED                    RUN     PEAK  EXIT
              1  1    mps      8.0 GiB  2025-10-09T08:53:21+00:00  30s  8.0 GiB     1
        attempt 1
          placed:  GPU 1 was idle; 8.0 GiB reserved
          verdict: out of GPU memory: culprit, it reached its own cap of 8.0 GiB;
                   retried with at least 10.0 GiB (retry 1 of 3)
        ");
    }

    #[test]
    fn a_floor_is_not_said_to_be_kept_before_its_speed_is_measured() {
        let mut reply = runs();
        (reply.job.progress_pct, reply.job.max_slowdown_pct) = (None, None);
        let running = reply.running.as_mut().unwrap();
        running.predicted_pct = Some(24);
        running.unmeasured = Some("it tells no steps, as by heartbeats or printed progress".into());
        let lines = |reply: &ExplainReply| {
            let text = render(reply, &Screen::of_width(None));
            ["speed:", "measured:"].map(|of| {
                let line = text.lines().find(|line| line.starts_with(of));
                line.map(|line| line.split_once(':').unwrap().1.trim().to_owned())
            })
        };
        let why = "no: it tells no steps, as by heartbeats or printed progress";
        let [speed, measured] = lines(&reply).map(Option::unwrap);
        assert_eq!(
            speed,
            "not measured yet beside these neighbours; 0.24 predicted; below the 0.40 at which the policy keeps it once it is measured"
        );
        assert_eq!(measured, format!("{why}; until then no neighbour is taken off for its sake"));
        reply.running.as_mut().unwrap().predicted_pct = Some(78);
        let [speed, _] = lines(&reply).map(Option::unwrap);
        assert!(
            speed.ends_with("; once it is measured the policy keeps it at 0.40, at 0.60 over its run"),
            "{speed}"
        );
        // Under a policy without a floor, and without a limit of its own, nothing is ever undone.
        let running = reply.running.as_mut().unwrap();
        (running.floor_pct, running.whole_run_pct) = (None, None);
        assert_eq!(lines(&reply)[1].as_deref(), Some(why));
        reply.job.progress_pct = Some(81);
        assert_eq!(lines(&reply)[1], None);
    }

    #[test]
    fn an_upper_bound_of_a_neighbours_progress_is_no_measurement() {
        let mut running = runs().running.unwrap();
        (running.neighbours[0].progress_pct, running.neighbours[0].progress_at_most) = (Some(100), true);
        running.neighbours.push(NeighbourView {
            job: 6,
            progress_at_most: false,
            ..running.neighbours[0].clone()
        });
        insta::assert_snapshot!(beside(&running, &Screen::of_width(Some(80))), @r"
        Beside it, and what each keeps of its speed:
        GPU  JOB  USER  RESERVED    MEMORY  PREDICTED  MEASURED  LIMIT
        0      5  bob   12.0 GiB  10.7 GiB       0.90    <=1.00   1.30
        0      6  bob   12.0 GiB  10.7 GiB       0.90      1.00   1.30
        1 process on its GPUs that carma did not start; `carma gpus` shows them.
        ");
    }

    #[test]
    fn a_server_has_no_limit_before_its_latency_alone_is_known() {
        let mut job = show::tests::detail().job;
        (job.progress_pct, job.max_latency_ms, job.max_slowdown_pct) = (None, Some(20.0), Some(100));
        let said = |job: &JobView| speed(job, &RunningView::default());
        assert_eq!(
            said(&job),
            "its own: it is alone; no job may join it before its latency alone is measured"
        );
        (job.latency_alone_ms, job.max_slowdown_pct) = (Some(10.0), Some(200));
        assert_eq!(
            said(&job),
            "its own: it is alone; latency of at most 20 ms, 10 ms alone: a slowdown of 2.00 at most"
        );
        // A stricter limit of slowdown, or another user's job, of which only that is told.
        job.max_slowdown_pct = Some(130);
        assert_eq!(said(&job), "its own: it is alone; limit of slowdown 1.30");
        (job.max_latency_ms, job.latency_alone_ms) = (None, None);
        assert_eq!(said(&job), "its own: it is alone; limit of slowdown 1.30");
    }

    #[test]
    fn nothing_is_said_of_neighbours_that_may_not_come() {
        let mut job = show::tests::detail().job;
        (job.progress_pct, job.max_slowdown_pct) = (None, None);
        let running = RunningView { floor_pct: Some(40), whole_run_pct: Some(60), ..RunningView::default() };
        let shared = "its own: it is alone; the policy keeps it at 0.40, at 0.60 over its run";
        assert_eq!(speed(&job, &running), shared);
        job.sharing = Some(SharingMode::Exclusive);
        assert_eq!(speed(&job, &running), "its own: it is alone");
        let mut reply = runs();
        let running = reply.running.as_mut().unwrap();
        (running.grows, running.not_undone) = (true, Some("job 5, the last to come, stays".into()));
        let text = render(&reply, &Screen::of_width(None));
        assert!(text.contains("undone:   no: job 5, the last to come, stays\n"), "{text}");
        assert!(text.contains("; it goes on growing, so that up to 40 % more"), "{text}");
        let (job, at_ms, slowdown_pct, limit_pct) = (9, reply.now_ms - 120_000, 250, 166);
        let once = RelievedView { job, suspended: false, at_ms, slowdown_pct, limit_pct, times: 1 };
        let said = |relieved| evicted(relieved, reply.now_ms, &Screen::of_width(None));
        assert!(said(once).starts_with("job 9 at "), "{}", said(once));
        let why = " (2 min ago), since this one was slowed down by 2.50, and 1.66 is the most";
        assert!(said(once).ends_with(why), "{}", said(once));
        let again = said(RelievedView { suspended: true, times: 3, ..once });
        assert!(
            again.starts_with("job 9, which was suspended, at ") && again.ends_with("; 3 times in all"),
            "{again}"
        );
    }

    #[test]
    fn a_job_alone_in_its_first_attempt() {
        let mut reply = runs();
        reply.attempts.remove(0);
        reply.estimate = None;
        (reply.job.progress_pct, reply.job.max_slowdown_pct) = (None, None);
        reply.running = Some(RunningView {
            unsupervised: false,
            placed: "the GPU was idle".into(),
            out_of_memory: "fails when the GPU is full; tried again with more memory, 0 of 5 retries used"
                .into(),
            ..RunningView::default()
        });
        insta::assert_snapshot!(render(&reply, &Screen::of_width(Some(80))), @r"
        job:    7 (train7) of alice
        state:  RUNNING for 2 min 20 s on GPU 0 (time-slice); policy adaptive
        why:    the GPU was idle
        speed:  its own: it is alone
        memory: 10.0 GiB reserved, peak unknown (on each GPU)
        if OOM: fails when the GPU is full; tried again with more memory, 0 of 5 retries
                used
        left:   about 10 min (by 2 runs of this command)
        ");
    }

    #[test]
    fn a_job_that_makes_no_step_is_not_called_slow() {
        let mut reply = runs();
        let why = "none: it told no step for 3 min, and a neighbour slows a job down and does not stop it";
        // Before it was measured the first time, too.
        for progress_pct in [Some(0), None] {
            reply.job.progress_pct = progress_pct;
            let running = reply.running.as_mut().unwrap();
            (running.silent_s, running.unmeasured) = (Some(180), Some("it told too few steps".into()));
            let text = render(&reply, &Screen::of_width(None));
            assert!(text.contains(&format!("speed:    {why}; 0.78 predicted; ")), "{text}");
            assert!(!text.contains("measured:") && !text.contains("0.00"), "{text}");
        }
        let alone = RunningView { silent_s: Some(1500), ..RunningView::default() };
        reply.job.max_slowdown_pct = None;
        assert_eq!(speed(&reply.job, &alone), "none: it told no step for 25 min");
    }

    #[test]
    fn a_job_that_is_suspended() {
        let mut reply = runs();
        reply.job.state = "SUSPENDED".into();
        reply.job.gpus = vec![];
        reply.running.as_mut().unwrap().placed = "the GPU was idle".into();
        let spell = |gpu: u32, from_ms, until_ms| SpellView { gpus: vec![gpu], from_ms, until_ms };
        reply.attempts[1].spells = vec![spell(1, 10, Some(20)), spell(0, 30, Some(reply.now_ms - 21_000))];
        let text = render(&reply, &Screen::of_width(None));
        let words = "state:    SUSPENDED for 21 s, it left GPU 0; policy adaptive\n\
                     why:      at its start: the GPU was idle; moved since to GPU 0\n";
        assert!(text.contains(words), "{text}");
        reply.job.reason.code = "Moved".into();
        (reply.job.state, reply.job.gpus) = ("RUNNING".into(), vec![0]);
        reply.running.as_mut().unwrap().placed = "moved here from GPU 1 by alice".into();
        let text = render(&reply, &Screen::of_width(None));
        assert!(text.contains("why:      moved here from GPU 1 by alice\n"), "{text}");
    }

    #[test]
    fn a_job_that_is_being_suspended() {
        let mut reply = runs();
        assert!(!render(&reply, &Screen::of_width(None)).contains("reason:"));
        (reply.job.reason.code, reply.job.reason.text) =
            ("Suspending".into(), "it is being suspended".into());
        let text = render(&reply, &Screen::of_width(None));
        assert!(text.contains("\nreason:   it is being suspended\nwhy:      "), "{text}");
    }

    #[test]
    fn a_job_that_is_over() {
        let mut reply = runs();
        reply.running = None;
        reply.job = job(7, "FAILED", "NonZeroExit", "the command failed: exit code 3");
        let again = reply.attempts[0].clone();
        reply.attempts = (1..=5).map(|attempt| AttemptView { attempt, ..again.clone() }).collect();
        let text = render(&reply, &Screen::of_width(Some(100)));
        assert!(
            text.starts_with("job:      7 (train7) of alice\nstate:    FAILED after 40 s on GPU 0; policy"),
            "{text}"
        );
        assert!(
            !text.contains("attempt 2\n") && text.contains("\nattempt 3\n  placed:  GPU 1 was idle"),
            "{text}"
        );
        assert!(text.ends_with("2 earlier: `carma show 7`\n"), "{text}");
    }
}
