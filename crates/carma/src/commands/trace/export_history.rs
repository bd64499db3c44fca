//! `carma trace export-history`: what the daemon ran becomes a trace and a catalogue.

use super::{report, save_catalogue, save_trace, tasks_beside};
use crate::cli::TraceExportArgs;
use crate::commands::Context;
use carma_api::ClientError;
use carma_api::wire::{JobDetail, JobView, JobsReply, StatusReply};
use carma_cli::failure::{Failure, Outcome};
use carma_cli::print;
use carma_core::model::{Estimates, Forecasts};
use carma_core::units::{MiB, Millis};
use carma_sim::trace::{Activity, Catalogue, CatalogueTask, Trace, TraceJob};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Exports it.
pub(crate) fn run(context: &Context, args: &TraceExportArgs) -> Outcome {
    let mut client = context.client()?;
    let status: StatusReply = client.get("/v1/status")?;
    // All there is: the daemon bounds its history itself.
    let reply: JobsReply = client.get(&format!("/v1/history?limit={}", u32::MAX))?;
    let mut details = BTreeMap::new();
    for job in within(&reply, args.last).filter(|job| job.state == "COMPLETED") {
        match client.get::<JobDetail>(&format!("/v1/jobs/{}", job.id)) {
            Ok(detail) => {
                details.insert(job.id, detail);
            }
            // Forgotten between the two questions; the row will do.
            Err(ClientError::Refused { status: 404, .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let Some(mut history) = convert(&reply, &details, args.last) else {
        let within =
            args.last.map_or_else(String::new, |last| format!(" of those submitted in the last {last}"));
        return Err(Failure::new(format!("the daemon's history holds no completed job{within}"))
            .hint("`carma history` shows what it holds"));
    };
    if status.gpus.starts_with("virtual") {
        history
            .notes
            .insert(0, "the daemon's GPUs are virtual: what was recorded is a model's, not a GPU's".into());
    }
    let tasks = tasks_beside(&args.output);
    save_trace(&history.trace, &args.output)?;
    save_catalogue(&history.catalogue, &tasks)?;
    print(&report(&history.trace, &args.output, Some(&tasks), &history.notes))?;
    Ok(0)
}

struct History {
    trace: Trace,
    catalogue: Catalogue,
    notes: Vec<String>,
}

/// Those that were submitted within the last so much.
fn within(reply: &JobsReply, last: Option<Millis>) -> impl Iterator<Item = &JobView> {
    let since = last.map_or(Millis::ZERO, |last| Millis(reply.now_ms).since(last));
    reply.jobs.iter().filter(move |job| job.submitted_ms >= since.0)
}

/// `None`: no job of them completed.
fn convert(reply: &JobsReply, details: &BTreeMap<u64, JobDetail>, last: Option<Millis>) -> Option<History> {
    let mut skipped: BTreeMap<&str, u64> = BTreeMap::new();
    let mut unread = 0_u64;
    let mut jobs = Vec::new();
    let mut tasks: BTreeMap<Arc<str>, CatalogueTask> = BTreeMap::new();
    let mut modes = BTreeSet::new();
    for job in within(reply, last) {
        if job.state != "COMPLETED" {
            *skipped.entry(job.state.as_str()).or_default() += 1;
            continue;
        }
        let detail = details.get(&job.id);
        let attempt = detail.and_then(|detail| detail.attempts.last());
        let (started, ended) =
            attempt.map_or((job.started_ms, job.ended_ms), |attempt| (attempt.started_ms, attempt.ended_ms));
        let suspended = Millis(attempt.map_or(job.suspended_ms, |attempt| attempt.suspended_ms).unwrap_or(0));
        let ran = started.zip(ended).map(|(from, to)| Millis(to).since(Millis(from)).since(suspended));
        let Some(ran) = ran.filter(|ran| *ran > Millis::ZERO) else {
            *skipped.entry("no run time recorded").or_default() += 1;
            continue;
        };
        let name: Arc<str> = task_name(job, detail, &mut unread).into();
        let gpus = job.gpus_requested.max(1);
        let peak = job.memory_peak_mib.map(MiB);
        let task = tasks.entry(Arc::clone(&name)).or_insert_with(|| CatalogueTask {
            name: Arc::clone(&name),
            model: detail.map(|d| short(&d.command.join(" "))).unwrap_or_default(),
            gpus,
            forecasts: detail.map(forecasts).unwrap_or_default(),
            ..CatalogueTask::default()
        });
        let alone = detail.into_iter().flat_map(|d| &d.attempts).filter_map(|a| a.alone_bp).next_back();
        if let Some(alone) = alone {
            let [smact, smocc, drama] = alone.map(|bp| bp.map(|bp| f64::from(bp) / 10_000.0));
            task.activity = Activity { smact, smocc, drama, ..task.activity };
        }
        // The most that any of its runs took.
        if peak > task.memory.first().copied() {
            task.memory = peak.into_iter().collect();
        }
        // The shortest run was the least disturbed one.
        task.duration = Some(task.duration.map_or(ran, |before| before.min(ran)));
        modes.extend(job.sharing.map(|mode| mode.to_string()));
        jobs.push((
            job.submitted_ms,
            TraceJob {
                threads: None,
                line: 0,
                id: job.id.to_string().into(),
                arrival: Millis::ZERO,
                task: Some(name),
                duration: Some(ran),
                gpus: Some(gpus),
                user: job.user.as_str().into(),
                memory: None,
                activity: Activity::default(),
            },
        ));
    }
    // Newest first in the history.
    jobs.sort_by_key(|(at, job)| (*at, job.id.parse::<u64>().ok()));
    let first = jobs.first().map(|(at, _)| Millis(*at))?;
    let jobs =
        jobs.into_iter().map(|(at, job)| TraceJob { arrival: Millis(at).since(first), ..job }).collect();

    let mut notes: Vec<String> =
        skipped.into_iter().map(|(state, n)| format!("{n} left out: {state}")).collect();
    let modes: Vec<String> = modes.into_iter().collect();
    let modes = if modes.is_empty() { String::new() } else { format!(" (sharing: {})", modes.join(", ")) };
    notes.push(format!(
        "run times are as run{modes}, slowed by what shared the GPU; a task's is its shortest"
    ));
    let unseen = tasks.values().filter(|task| task.activity.smact.is_none()).count();
    if unseen > 0 {
        notes.push(format!(
            "activity is known of jobs that had a GPU for themselves for a full window; of {unseen} of {} tasks it is not, and a simulation has to assume it",
            tasks.len()
        ));
    }
    let unknown = tasks.values().filter(|task| task.memory.is_empty()).count();
    if unknown > 0 {
        notes.push(format!("memory was never seen of {unknown} of {} tasks", tasks.len()));
    }
    if unread > 0 {
        notes.push(format!(
            "commands that you may not read, or that are forgotten: {unread}; there, jobs of one name and user are one task"
        ));
    }
    let tasks = tasks.into_iter().map(|(name, task)| (name, Arc::new(task))).collect();
    Some(History {
        trace: Trace { name: "history".into(), file: None, jobs, notes: Vec::new() },
        catalogue: Catalogue { tasks, notes: Vec::new() },
        notes,
    })
}

/// Jobs of the same name, command and number of GPUs are one task.
fn task_name(job: &JobView, detail: Option<&JobDetail>, unread: &mut u64) -> String {
    let name = short(&job.name);
    let name = match detail.filter(|detail| !detail.command.is_empty()) {
        Some(detail) => format!("{name}-{:08x}", fnv1a(&detail.command)),
        None => {
            *unread += 1;
            format!("{name}-{}", job.user)
        }
    };
    // On several it takes another time, and other memory of each.
    if job.gpus_requested > 1 { format!("{name}-{}gpu", job.gpus_requested) } else { name }
}

/// A name as a trace reads it again: without blanks at its ends and control characters, and so short that something may stand
/// behind it.
fn short(name: &str) -> String {
    let shown = |c: char| if c.is_control() { ' ' } else { c };
    let mut name: String = name.chars().map(shown).collect::<String>().trim().to_owned();
    name.truncate(name.floor_char_boundary(200));
    name.truncate(name.trim_end().len());
    name
}

/// The FNV-1a hash of 32 bits, the same in every version of carma.
fn fnv1a(words: &[String]) -> u32 {
    let bytes = words.iter().flat_map(|word| word.bytes().chain([0]));
    bytes.fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

fn forecasts(detail: &JobDetail) -> Forecasts {
    let of = |source: &str| detail.forecasts_mib.get(source).copied().map(MiB);
    Forecasts {
        declared: of("declared"),
        estimates: Estimates::by(|estimator| of(estimator.name())),
        computed: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::queue::tests::job;
    use carma_api::wire::HostLimitsView;
    use carma_sim::trace::write;
    use std::path::Path;

    fn detail(job: &JobView, command: &[&str]) -> JobDetail {
        JobDetail {
            version: 1,
            job: job.clone(),
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            cwd: String::new(),
            log: String::new(),
            log_kept: true,
            pid: None,
            forecasts_mib: BTreeMap::from([("declared".to_owned(), 2048)]),
            declared_overruled: false,
            estimate: None,
            rate: None,
            time_limit_ms: None,
            host_limits: HostLimitsView::default(),
            checkpoint: None,
            attempts: vec![],
        }
    }

    #[test]
    fn runs_on_another_number_of_gpus_are_another_task() {
        let done = |id, gpus| {
            let mut done = job(id, "COMPLETED", "Completed", "completed");
            done.name = "train".into();
            (done.gpus_requested, done.submitted_ms) = (gpus, 1000 * id);
            (done.started_ms, done.ended_ms) = (Some(1000 * id), Some(1000 * id + 8000 / u64::from(gpus)));
            done
        };
        let jobs = vec![done(2, 4), done(1, 1)];
        let details = jobs.iter().map(|job| (job.id, detail(job, &["python", "train.py"]))).collect();
        let reply = JobsReply { version: 1, now_ms: 10_000, jobs, unwritten: None };
        let history = convert(&reply, &details, None).unwrap();
        let tasks = history.catalogue.tasks.values();
        let tasks: Vec<_> = tasks.map(|task| (&*task.name, task.gpus, task.duration)).collect();
        assert_eq!(
            tasks,
            [("train-0b70e696", 1, Some(Millis(8000))), ("train-0b70e696-4gpu", 4, Some(Millis(2000)))]
        );
    }

    #[test]
    fn completed_jobs_become_a_trace_and_a_catalogue() {
        let done = |id, peak, submitted| {
            let mut done = job(id, "COMPLETED", "Completed", "completed");
            done.name = "train".into();
            (done.memory_peak_mib, done.submitted_ms) = (peak, submitted);
            // Suspended for longer than it ran.
            (done.started_ms, done.suspended_ms) = (Some(submitted + 1000), Some(9000));
            done.ended_ms = Some(submitted + 10_000 + 500 * id);
            done
        };
        let mut failed = done(4, None, 5000);
        failed.state = "FAILED".into();
        let jobs = vec![failed, done(3, None, 9000), done(2, Some(900), 7500), done(1, Some(1100), 5000)];
        let details = jobs[2..]
            .iter()
            .map(|job| (job.id, detail(job, &["python", "train.py"])))
            .collect::<BTreeMap<_, _>>();
        let reply = JobsReply { version: 1, now_ms: 10_000, jobs, unwritten: None };
        let history = convert(&reply, &details, None).unwrap();
        let text = |write: &dyn Fn(&mut Vec<u8>)| {
            let mut text = Vec::new();
            write(&mut text);
            String::from_utf8(text).unwrap()
        };
        insta::assert_snapshot!(text(&|out| write::trace(&history.trace, out).unwrap()), @r"
        job,arrival_s,task,duration_s,gpus,user
        1,0,train-0b70e696,0.5,1,alice
        2,2.5,train-0b70e696,1,1,alice
        3,4,train-alice,1.5,1,alice
        ");
        insta::assert_snapshot!(text(&|out| write::catalogue(&history.catalogue, out).unwrap()), @r"
        task,model,gpus,duration_s,memory_mib,declared_mib
        train-0b70e696,python train.py,1,0.5,1100,2048
        train-alice,,1,1.5,,
        ");
        insta::assert_snapshot!(history.notes.join("\n"), @r"
        1 left out: FAILED
        run times are as run, slowed by what shared the GPU; a task's is its shortest
        activity is known of jobs that had a GPU for themselves for a full window; of 2 of 2 tasks it is not, and a simulation has to assume it
        memory was never seen of 1 of 2 tasks
        commands that you may not read, or that are forgotten: 1; there, jobs of one name and user are one task
        ");
        // Names that differ in what no trace keeps are one task.
        let named = |id, name: &str| {
            let mut named = done(id, None, 5000);
            named.name = name.into();
            named
        };
        let jobs = vec![named(1, " a\tb"), named(2, "a\u{7}b "), named(3, "a b")];
        let details = jobs.iter().map(|job| (job.id, detail(job, &["x"]))).collect();
        let history = convert(&JobsReply { jobs, ..reply.clone() }, &details, None).unwrap();
        let written = text(&|out| write::catalogue(&history.catalogue, out).unwrap());
        let read = Catalogue::read(written.as_bytes(), Path::new("c.csv")).unwrap();
        assert_eq!((history.catalogue.tasks.len(), read.tasks.len()), (1, 1), "{written}");
        let details = BTreeMap::new();
        let last = convert(&reply, &details, Some(Millis(2000))).unwrap();
        assert_eq!(last.trace.jobs.len(), 1);
        assert!(convert(&reply, &details, Some(Millis(500))).is_none());
    }
}
