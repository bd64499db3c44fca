//! A recorded run as the pages of the simulator show one, and what the same jobs would have done with GPUs to themselves.

use super::recorded::{Ran, Recorded, Span};
use carma_api::record::{GpuRow, RecordedGpu, Row};
use carma_api::wire::AttemptView;
use carma_core::policy::presets;
use carma_core::units::{MiB, Millis};
use carma_hardware::{Facts, GpuTypes};
use carma_sim::event::outcome::{
    ActiveMeans, End, GpuSeries, JobOutcome, RunResult, Spread, Stretch, Summary, jain,
};
use carma_sim::event::{Cluster, Setup, simulate};
use carma_sim::report::html::JobEnergy;
use carma_sim::trace::{Activity, Trace, TraceJob, Workload};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The policy that is compared with.
const EXCLUSIVE: &str = "exclusive";

/// The run as it was.
pub(super) fn recorded(of: &Recorded) -> RunResult {
    let (jobs, stretches) = outcomes(&of.jobs, of.span);
    let mut summary = of_jobs(&jobs, &stretches);
    of_gpus(&mut summary, of);
    RunResult {
        policy: format!("{}, as it ran", of.policy),
        precondition: String::new(),
        sharing: of.sharing.to_string(),
        seed: 0,
        summary,
        events: 0,
        jobs,
        stretches,
        ooms: Vec::new(),
        step_s: of.step.0 as f64 / 1000.0,
        series: series(of),
    }
}

/// A time of the daemon's clock from the beginning of a span on, within it.
fn within(at: u64, span: Span) -> Millis {
    Millis(at.clamp(span.since, span.until) - span.since)
}

/// How an attempt ended.
fn end(attempt: &AttemptView) -> End {
    match attempt.verdict.as_ref().map(|verdict| verdict.code.as_str()) {
        None => End::Running,
        Some("Completed") => End::Completed,
        Some("OutOfMemory" | "OutOfMemoryRetry") => End::OutOfMemory,
        Some("Evicted") => End::Evicted,
        Some("GrowthGuard") => End::GrowthGuard,
        Some("Requeued") => End::Preempted,
        Some(_) => End::Failed,
    }
}

/// Time alone that would have brought as much, over the time on GPUs; `None`: not known.
fn pace(attempt: &AttemptView) -> Option<f64> {
    let (progress, held) = attempt.progress_gpu_s.zip(attempt.held_gpu_s)?;
    (held > 0.0 && progress > 0.0).then(|| (progress / held).min(1.0))
}

/// Jobs and their stretches on GPUs, all from the beginning of the span on and within it: of what began before, the part that
/// lies in it counts.
fn outcomes(ran: &[Ran], span: Span) -> (Vec<JobOutcome>, Vec<Stretch>) {
    let (mut jobs, mut stretches) = (Vec::new(), Vec::new());
    for (at, Ran { row, attempts }) in (0..).zip(ran) {
        let mut mine: Vec<(Stretch, Option<f64>)> = Vec::new();
        for attempt in attempts {
            let Some(start) = attempt.started_ms else { continue };
            let until = attempt.ended_ms.unwrap_or(span.until);
            if until <= span.since || start >= span.until {
                continue;
            }
            let how = if until > span.until { End::Running } else { end(attempt) };
            let stretch = Stretch {
                job: at,
                attempt: attempt.attempt,
                gpus: attempt.gpus.clone(),
                start: within(start, span),
                end: within(until, span),
                how,
                shared: attempt.placed.code == "PlacedShared",
            };
            mine.push((stretch, pace(attempt)));
        }
        let length = |stretch: &Stretch| stretch.end.since(stretch.start);
        let exec = mine.iter().map(|(stretch, _)| length(stretch).0).sum();
        let last = mine.last();
        let solo = last.map(|(stretch, pace)| length(stretch).0 as f64 * pace.unwrap_or(1.0));
        let ended = row.ended_ms.filter(|ended| *ended <= span.until && row.state == "COMPLETED");
        jobs.push(JobOutcome {
            id: row.id.to_string(),
            task: row.name.clone(),
            user: row.user.clone(),
            gpus: row.gpus_requested,
            arrival: within(row.submitted_ms, span),
            first_start: mine.first().map(|(stretch, _)| stretch.start),
            last_start: last.map(|(stretch, _)| stretch.start),
            end: ended.map(|ended| within(ended, span)),
            exec: Millis(exec),
            solo: Millis(solo.unwrap_or(0.0).round() as u64),
            attempts: u32::try_from(mine.len()).unwrap_or(u32::MAX),
            ooms: u32::try_from(mine.iter().filter(|(s, _)| s.how == End::OutOfMemory).count())
                .unwrap_or(u32::MAX),
        });
        stretches.extend(mine.into_iter().map(|(stretch, _)| stretch));
    }
    stretches.sort_by_key(|stretch| (stretch.start, stretch.job));
    (jobs, stretches)
}

fn seconds(time: Millis) -> f64 {
    time.0 as f64 / 1000.0
}

/// The figures of the jobs.
fn of_jobs(jobs: &[JobOutcome], stretches: &[Stretch]) -> Summary {
    let count = |how: End| stretches.iter().filter(|stretch| stretch.how == how).count() as u64;
    let mut summary = Summary {
        jobs: jobs.len() as u64,
        oom: count(End::OutOfMemory),
        oom_jobs: jobs.iter().filter(|job| job.ooms > 0).count() as u64,
        preemptions: count(End::Preempted),
        evictions: count(End::Evicted),
        growth_guard: count(End::GrowthGuard),
        ..Summary::default()
    };
    let lost = stretches.iter().filter(|stretch| stretch.how == End::OutOfMemory);
    summary.oom_lost_gpu_s = lost.map(|s| seconds(s.end.since(s.start)) * s.gpus.len() as f64).sum();
    let (mut wait, mut exec, mut jct, mut slowdown) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut users: BTreeMap<&str, [(f64, u64); 2]> = BTreeMap::new();
    for (at, job) in (0..).zip(jobs) {
        let (Some(end), Some(start)) = (job.end, job.last_start) else { continue };
        let last = stretches.iter().rev().find(|s| s.job == at && s.how == End::Completed);
        let ran = last.map_or(0.0, |stretch| seconds(stretch.end.since(stretch.start)));
        wait.push(seconds(start.since(job.arrival)));
        exec.push(seconds(job.exec));
        jct.push(seconds(end.since(job.arrival)));
        let of_user = users.entry(&job.user).or_default();
        of_user[0] = (of_user[0].0 + seconds(start.since(job.arrival)), of_user[0].1 + 1);
        if job.solo > Millis::ZERO {
            slowdown.push(ran / seconds(job.solo));
            of_user[1] =
                (of_user[1].0 + seconds(end.since(job.arrival)) / seconds(job.solo), of_user[1].1 + 1);
        }
    }
    summary.completed = wait.len() as u64;
    summary.not_completed = summary.jobs - summary.completed;
    let first = jobs.iter().map(|job| job.arrival).min().unwrap_or_default();
    let last = stretches.iter().map(|stretch| stretch.end).max().unwrap_or_default();
    summary.makespan_s = seconds(last.since(first));
    summary.wait_s = Spread::of(wait);
    summary.exec_s = Spread::of(exec);
    summary.jct_s = Spread::of(jct);
    summary.slowdown = Spread::of(slowdown);
    summary.oom_wait_s = f64::NAN;
    summary.users = users.len() as u64;
    let [waits, slowdowns]: [Vec<_>; 2] = [0, 1].map(|at| users.values().map(|user| user[at]).collect());
    summary.fairness_wait = jain(&waits);
    summary.fairness_slowdown = jain(&slowdowns);
    summary
}

/// A mean by time. Of nothing: not a number, which is shown as unknown.
#[derive(Default)]
struct Mean(f64, f64);

impl Mean {
    fn add(&mut self, value: Option<f64>, weight: u64) {
        if let Some(value) = value {
            self.0 += value * weight as f64;
            self.1 += weight as f64;
        }
    }

    fn get(&self) -> f64 {
        if self.1 > 0.0 { self.0 / self.1 } else { f64::NAN }
    }
}

/// SMACT, SMOCC, DRAM activity, memory and power of a row.
fn five(gpu: &GpuRow) -> [Option<f64>; 5] {
    let read = &gpu.readings;
    [read.smact, read.smocc, read.drama, read.memory_used_mib, read.power_w]
}

/// The figures of the GPUs, over all of the time that was recorded.
fn of_gpus(summary: &mut Summary, of: &Recorded) {
    let (mut all, mut active): ([Mean; 5], [Mean; 5]) = Default::default();
    let (mut read, mut busy, mut tenants) = (0.0, 0.0, 0.0);
    for gpu in of.rows.iter().flat_map(|row| &row.gpus) {
        let taken: u64 = gpu.tenants.iter().map(|tenant| tenant.span_ms).max().unwrap_or(0);
        read += gpu.span_ms as f64;
        busy += taken as f64;
        tenants += gpu.tenants.iter().map(|tenant| tenant.span_ms as f64).sum::<f64>();
        for ((mean, active), value) in all.iter_mut().zip(&mut active).zip(five(gpu)) {
            mean.add(value, gpu.span_ms);
            active.add(value, taken);
        }
    }
    let [smact, smocc, drama, memory_mib, power_w] = all.map(|mean| mean.get());
    (summary.smact, summary.smocc, summary.drama) = (smact, smocc, drama);
    (summary.memory_mib, summary.power_w) = (memory_mib, power_w);
    let [smact, smocc, drama, memory_mib, power_w] = active.map(|mean| mean.get());
    summary.active = ActiveMeans { smact, smocc, drama, memory_mib, power_w };
    summary.jobs_per_gpu = if busy > 0.0 { tenants / busy } else { 0.0 };
    summary.busy = if read > 0.0 { busy / read } else { f64::NAN };
    let counted: Option<Vec<f64>> = of.gpus.iter().map(|gpu| energy(&of.rows, gpu.gpu)).collect();
    summary.energy_j = counted.filter(|of| !of.is_empty()).map_or(f64::NAN, |of| of.iter().sum());
    summary.energy_per_job_j = summary.energy_j / summary.completed as f64;
}

/// What the energy counter of a GPU went on by between the first row and the last, joules; `None`: it was not read twice. Where
/// it began anew, what it had counted since the row before is lost.
pub(super) fn energy(rows: &[Row], gpu: u32) -> Option<f64> {
    let read = rows.iter().flat_map(|row| &row.gpus).filter(|row| row.gpu == gpu);
    let counters: Vec<f64> = read.filter_map(|row| row.energy_j).collect();
    (counters.len() > 1).then(|| counters.windows(2).map(|pair| (pair[1] - pair[0]).max(0.0)).sum())
}

/// What was read of each GPU over time. What was not read is not a number: a gap.
fn series(of: &Recorded) -> Vec<GpuSeries> {
    let steps = usize::try_from((of.span.until - of.span.since).div_ceil(of.step.0)).unwrap_or(0);
    let one = |gpu: &RecordedGpu| {
        let gap = || vec![f32::NAN; steps];
        let mut series = GpuSeries { smact: gap(), memory_mib: gap(), power_w: gap() };
        for row in &of.rows {
            // A row ends where a step does.
            let at = row.at_ms.saturating_sub(of.span.since).div_ceil(of.step.0).checked_sub(1);
            let Some(at) = at.and_then(|at| usize::try_from(at).ok()).filter(|at| *at < steps) else {
                continue;
            };
            for read in row.gpus.iter().filter(|row| row.gpu == gpu.gpu) {
                let value = |value: Option<f64>| value.map_or(f32::NAN, |value| value as f32);
                series.smact[at] = value(read.readings.smact);
                series.memory_mib[at] = value(read.readings.memory_used_mib);
                series.power_w[at] = value(read.readings.power_w);
            }
        }
        series
    };
    of.gpus.iter().map(one).collect()
}

/// What the jobs took, as far as the asker may know.
pub(super) fn joules(of: &Recorded) -> Vec<JobEnergy> {
    let one = |job: &Ran| {
        Some(JobEnergy {
            id: job.row.id.to_string(),
            task: job.row.name.clone(),
            user: job.row.user.clone(),
            energy_j: job.row.energy_j?,
            alone_j: job.row.energy_alone_j,
        })
    };
    of.jobs.iter().filter_map(one).collect()
}

/// The GPUs as the simulator calls them; `None`: not all are of a type that it knows, whole, and named by one name.
fn cluster(gpus: &[RecordedGpu]) -> Option<Cluster> {
    let mut parts: Vec<(u32, &str)> = Vec::new();
    for gpu in gpus {
        let name = &*Facts::of_product(&gpu.name).filter(|_| gpu.kind != "mig")?.model.as_ref()?.name;
        match parts.last_mut() {
            Some((count, last)) if *last == name => *count += 1,
            _ => parts.push((1, name)),
        }
    }
    let spec: Vec<String> = parts.iter().map(|(count, name)| format!("{count}x{name}")).collect();
    Cluster::parse(&spec.join("+"), &GpuTypes::built_in()).ok()
}

/// What the simulator says that the jobs which completed would have done had each had its GPUs alone, first come first served;
/// with what it rests on. `None`: it can't be said, with why.
pub(super) fn exclusive(of: &Recorded, run: &RunResult) -> (Option<RunResult>, Vec<String>) {
    let Some(cluster) = cluster(&of.gpus) else {
        let why = "what exclusive GPUs would have done is not simulated: not all GPUs are of a type that carma has a model of";
        return (None, vec![why.to_owned()]);
    };
    let mut measured = 0;
    let mut jobs = Vec::new();
    for (ran, outcome) in of.jobs.iter().zip(&run.jobs) {
        if outcome.end.is_none() || outcome.solo == Millis::ZERO {
            continue;
        }
        measured += u64::from(ran.attempts.last().and_then(pace).is_none());
        let alone = ran.attempts.iter().rev().find_map(|attempt| attempt.alone_bp);
        let [smact, smocc, drama] = alone.unwrap_or_default().map(|bp| bp.map(|bp| f64::from(bp) / 10_000.0));
        jobs.push(TraceJob {
            line: 0,
            id: outcome.id.as_str().into(),
            arrival: outcome.arrival,
            task: None,
            duration: Some(outcome.solo),
            gpus: Some(outcome.gpus.max(1)),
            user: outcome.user.as_str().into(),
            memory: ran.row.memory_peak_mib.map(MiB),
            threads: None,
            activity: Activity { smact, smocc, drama, ..Activity::default() },
        });
    }
    if jobs.is_empty() {
        return (
            None,
            vec!["no job completed, so that there is nothing to compare with exclusive GPUs".to_owned()],
        );
    }
    let count = jobs.len();
    jobs.sort_by_key(|job| job.arrival);
    let trace = Trace { name: "recorded".into(), file: None, jobs, notes: Vec::new() };
    let Some((workload, policy)) = Workload::resolve(&trace, None).ok().zip(presets::by_name(EXCLUSIVE))
    else {
        return (
            None,
            vec!["what exclusive GPUs would have done cannot be simulated of these jobs".to_owned()],
        );
    };
    let setup = Setup { record: true, ..Setup::new(policy, of.sharing, None, 1) };
    let mut result = simulate(&workload, &cluster, &setup, &|_| ());
    result.policy = format!("{EXCLUSIVE}, simulated");
    let mut notes = vec![format!(
        "{EXCLUSIVE}, simulated: what the {count} jobs that completed would have done one after the other with GPUs to \
         themselves, by the model of {}. How long each would have run alone is its time here times its speed over its speed \
         alone, as measured, else as predicted, else 1 over the number of jobs on the GPU{}; energy is a model's",
        Arc::<str>::from(cluster.spec()),
        if measured > 0 { format!("; of {measured} it is the time here") } else { String::new() },
    )];
    notes.extend(workload.notes.iter().map(|note| format!("{EXCLUSIVE}, simulated: {note}")));
    (Some(result), notes)
}
