//! A recorded run as the pages of the simulator show one, and what the same jobs would have done with GPUs to themselves.

use super::recorded::{Ran, Recorded, Span};
use carma_api::record::{GpuRow, RecordedGpu, Row, TenantRow};
use carma_api::wire::{AttemptView, SpellView};
use carma_core::model::SharingMode;
use carma_core::policy::presets;
use carma_core::units::{MiB, Millis};
use carma_hardware::{Facts, GpuTypes};
use carma_sim::event::outcome::{
    ActiveMeans, End, GpuSeries, JobOutcome, RunResult, Spread, Stretch, Summary, jain,
};
use carma_sim::event::{Cluster, Setup, simulate};
use carma_sim::report::html::JobEnergy;
use carma_sim::trace::{Activity, Trace, TraceJob, Workload};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The policy that is compared with.
const EXCLUSIVE: &str = "exclusive";

/// The run as it was.
pub(super) fn recorded(of: &Recorded) -> RunResult {
    let (jobs, stretches) = outcomes(&of.jobs, of.span);
    let mut summary = of_jobs(&jobs, &stretches);
    of_gpus(&mut summary, of, busy_span(&jobs, &stretches, of.span));
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
        step_s: of.step.as_secs_f64(),
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
        Some("MadeRoom") => End::Preempted,
        Some("Requeued") => End::Requeued,
        Some(_) => End::Failed,
    }
}

/// Time alone that would have brought as much, over the time on GPUs; `None`: not known.
fn pace(attempt: &AttemptView) -> Option<f64> {
    let (progress, held) = attempt.progress_gpu_s.zip(attempt.held_gpu_s)?;
    (held > 0.0 && progress > 0.0).then(|| (progress / held).min(1.0))
}

/// The share of its time without a measured speed above which a job's time alone counts as a prediction.
const PREDICTED: f64 = 0.1;

/// Whether it is only predicted how fast a job went beside others.
fn is_predicted(last: &AttemptView) -> bool {
    last.unmeasured_gpu_s.unwrap_or(0.0) > PREDICTED * last.held_gpu_s.unwrap_or(0.0)
}

/// Jobs that completed, with their last attempts.
fn completed<'a>(
    of: &'a Recorded,
    run: &'a RunResult,
) -> impl Iterator<Item = (&'a Ran, &'a JobOutcome, &'a AttemptView)> {
    let over = of.jobs.iter().zip(&run.jobs).filter(|(_, outcome)| outcome.end.is_some());
    over.filter_map(|(job, outcome)| Some((job, outcome, job.attempts.last()?)))
}

/// Jobs that completed, of which it is only predicted how fast they went beside others.
pub(super) struct Guessed {
    /// How many.
    pub(super) jobs: usize,
    /// The mean slowdown of all that completed, had each kept no more than one over the number of jobs on its GPU while nothing was
    /// measured: as much as where jobs take turns.
    pub(super) slowdown_at_most: f64,
}

/// Of how many jobs that completed it is only predicted how fast they went, and what that comes to at most.
pub(super) fn guessed(of: &Recorded, run: &RunResult) -> Guessed {
    // Each job's part of its GPU, in equal parts.
    let mut parts: BTreeMap<u64, Mean> = BTreeMap::new();
    for gpu in of.finest().iter().flat_map(|row| &row.gpus) {
        for tenant in &gpu.tenants {
            let part = 1.0 / gpu.tenants.len() as f64;
            parts.entry(tenant.job).or_default().add(Some(part), tenant.span_ms);
        }
    }
    let (mut jobs, mut slowdowns) = (0, Mean::default());
    for (job, outcome, last) in completed(of, run) {
        let (held, unmeasured) = (last.held_gpu_s.unwrap_or(0.0), last.unmeasured_gpu_s.unwrap_or(0.0));
        jobs += usize::from(is_predicted(last));
        let part = parts.get(&job.row.id).map(Mean::get).filter(|part| part.is_finite()).unwrap_or(1.0);
        // What was predicted for that time is not told apart: no more than all of it.
        let least = |progress: f64| (progress - unmeasured).max(0.0) + (unmeasured * part).min(progress);
        let slowdown = last.progress_gpu_s.map(least).filter(|least| *least > 0.0).map(|least| held / least);
        slowdowns.add(Some(slowdown.unwrap_or(1.0).max(1.0)).filter(|_| outcome.solo > Millis::ZERO), 1);
    }
    Guessed { jobs, slowdown_at_most: slowdowns.get() }
}

/// The stretches of an attempt on GPUs as far as they lie in a span: one, or those between its suspensions.
fn stretches_of(attempt: &AttemptView, job: u32, span: Span) -> Vec<Stretch> {
    let Some(from_ms) = attempt.started_ms else { return Vec::new() };
    let whole = [SpellView { gpus: attempt.gpus.clone(), from_ms, until_ms: attempt.ended_ms }];
    let spells = if attempt.spells.is_empty() { &whole } else { &*attempt.spells };
    let over = attempt.ended_ms.is_some_and(|ended| ended <= span.until);
    let one = |(n, spell): (usize, &SpellView)| {
        let until = spell.until_ms.unwrap_or(span.until);
        let how = if until > span.until || spell.until_ms.is_none() {
            End::Running
        } else if over && n + 1 == spells.len() {
            end(attempt)
        } else {
            End::Suspended
        };
        (until > span.since && spell.from_ms < span.until).then(|| Stretch {
            job,
            attempt: attempt.attempt,
            gpus: spell.gpus.clone(),
            start: within(spell.from_ms, span),
            end: within(until, span),
            how,
            shared: attempt.placed.code == "PlacedShared",
        })
    };
    spells.iter().enumerate().filter_map(one).collect()
}

fn length(stretch: &Stretch) -> u64 {
    stretch.end.since(stretch.start).0
}

/// Jobs and their stretches on GPUs, all from the beginning of the span on and within it: of what began before, the part that
/// lies in it counts. Time in which a job was suspended is no time on GPUs.
fn outcomes(ran: &[Ran], span: Span) -> (Vec<JobOutcome>, Vec<Stretch>) {
    let (mut jobs, mut stretches) = (Vec::new(), Vec::new());
    for (at, Ran { row, attempts }) in (0..).zip(ran) {
        let there = |attempt: &&AttemptView| {
            let until = attempt.ended_ms.unwrap_or(span.until);
            until > span.since && attempt.started_ms.is_some_and(|start| start < span.until)
        };
        let there: Vec<&AttemptView> = attempts.iter().filter(there).collect();
        let mine: Vec<Stretch> = there.iter().flat_map(|attempt| stretches_of(attempt, at, span)).collect();
        let start = |attempt: &&AttemptView| attempt.started_ms.map(|start| within(start, span));
        let last = there.last();
        let solo = last.map_or(0.0, |last| {
            let ran: u64 = mine.iter().filter(|stretch| stretch.attempt == last.attempt).map(length).sum();
            ran as f64 * pace(last).unwrap_or(1.0)
        });
        let ended = row.ended_ms.filter(|ended| *ended <= span.until && row.state == "COMPLETED");
        jobs.push(JobOutcome {
            id: row.id.to_string(),
            task: row.name.clone(),
            user: row.user.clone(),
            gpus: row.gpus_requested,
            arrival: within(row.submitted_ms, span),
            first_start: there.first().and_then(start),
            last_start: last.and_then(start),
            end: ended.map(|ended| within(ended, span)),
            exec: Millis(mine.iter().map(length).sum()),
            solo: Millis(solo.round() as u64),
            attempts: u32::try_from(there.len()).unwrap_or(u32::MAX),
            ooms: u32::try_from(mine.iter().filter(|s| s.how == End::OutOfMemory).count())
                .unwrap_or(u32::MAX),
        });
        stretches.extend(mine);
    }
    stretches.sort_by_key(|stretch| (stretch.start, stretch.job));
    (jobs, stretches)
}

/// From the first arrival of these jobs to their last end, as far as the span reaches; without jobs, all of it.
pub(super) fn busy(jobs: &[Ran], span: Span) -> Span {
    let (jobs, stretches) = outcomes(jobs, span);
    busy_span(&jobs, &stretches, span)
}

fn busy_span(jobs: &[JobOutcome], stretches: &[Stretch], span: Span) -> Span {
    let first = jobs.iter().map(|job| job.arrival).min();
    let last = stretches.iter().map(|stretch| stretch.end).max();
    first.zip(last).map_or(span, |(first, last)| Span {
        since: span.since + first.0,
        until: span.since + last.0.max(first.0),
    })
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
    summary.oom_lost_gpu_s = lost.map(|s| s.end.since(s.start).as_secs_f64() * s.gpus.len() as f64).sum();
    let mut attempts: BTreeMap<(u32, u32), u64> = BTreeMap::new();
    for stretch in stretches {
        *attempts.entry((stretch.job, stretch.attempt)).or_default() += length(stretch);
    }
    let (mut wait, mut exec, mut jct, mut slowdown) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut users: BTreeMap<&str, [(f64, u64); 2]> = BTreeMap::new();
    for (at, job) in (0..).zip(jobs) {
        let of_user = users.entry(&job.user).or_default();
        let (Some(end), Some(start)) = (job.end, job.last_start) else { continue };
        let last = attempts.range((at, 0)..=(at, u32::MAX)).next_back();
        let ran = last.map_or(0.0, |(_, ran)| Millis(*ran).as_secs_f64());
        wait.push(start.since(job.arrival).as_secs_f64());
        exec.push(job.exec.as_secs_f64());
        jct.push(end.since(job.arrival).as_secs_f64());
        of_user[0] = (of_user[0].0 + start.since(job.arrival).as_secs_f64(), of_user[0].1 + 1);
        if job.solo > Millis::ZERO {
            slowdown.push(ran / job.solo.as_secs_f64());
            of_user[1] = (
                of_user[1].0 + end.since(job.arrival).as_secs_f64() / job.solo.as_secs_f64(),
                of_user[1].1 + 1,
            );
        }
    }
    summary.completed = wait.len() as u64;
    summary.not_completed = summary.jobs - summary.completed;
    let first = jobs.iter().map(|job| job.arrival).min();
    let last = stretches.iter().map(|stretch| stretch.end).max();
    summary.makespan_s = first.zip(last).map_or(f64::NAN, |(first, last)| last.since(first).as_secs_f64());
    [summary.wait_s, summary.exec_s, summary.jct_s, summary.slowdown] =
        [wait, exec, jct, slowdown].map(spread);
    summary.oom_wait_s = f64::NAN;
    summary.users = users.len() as u64;
    let [waits, slowdowns]: [Vec<_>; 2] = [0, 1].map(|at| users.values().map(|user| user[at]).collect());
    [summary.fairness_wait, summary.fairness_slowdown] = [waits, slowdowns].map(|of| fairness(&of));
    summary
}

/// Jain's index; where nothing is known of any user, nor is it.
fn fairness(users: &[(f64, u64)]) -> f64 {
    if users.iter().all(|(_, n)| *n == 0) { f64::NAN } else { jain(users) }
}

/// Of no values nothing is known.
fn spread(values: Vec<f64>) -> Spread {
    if values.is_empty() {
        return Spread { mean: f64::NAN, median: f64::NAN, p95: f64::NAN, max: f64::NAN };
    }
    Spread::of(values)
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

/// The figures of the GPUs, from the first arrival to the last end as in the simulator.
fn of_gpus(summary: &mut Summary, of: &Recorded, span: Span) {
    let rows = rows_of(of.finest(), span);
    let (mut all, mut active): ([Mean; 5], [Mean; 5]) = Default::default();
    let (mut read, mut busy, mut tenants) = (0.0, 0.0, 0.0);
    for gpu in rows.iter().flat_map(|row| &row.gpus) {
        let taken = gpu.busy_ms();
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
    summary.jobs_per_gpu = if busy > 0.0 { tenants / busy } else { f64::NAN };
    summary.busy = if read > 0.0 { busy / read } else { f64::NAN };
    let read: BTreeSet<u32> = rows.iter().flat_map(|row| &row.gpus).map(|gpu| gpu.gpu).collect();
    let rows = with_the_one_before(of.finest(), span);
    let counted: Option<Vec<f64>> = read.iter().map(|gpu| energy(rows, *gpu)).collect();
    summary.energy_j = counted.filter(|of| !of.is_empty()).map_or(f64::NAN, |of| of.iter().sum());
    let completed = if summary.completed > 0 { summary.completed as f64 } else { f64::NAN };
    summary.energy_per_job_j = summary.energy_j / completed;
}

/// Rows that end after a time, by where the first of them is.
fn first_after(rows: &[Row], at_ms: u64) -> usize {
    rows.partition_point(|row| row.at_ms <= at_ms)
}

/// Those of the rows that end after the beginning of a span, and no later than it.
pub(super) fn rows_of(rows: &[Row], span: Span) -> &[Row] {
    rows.get(first_after(rows, span.since)..first_after(rows, span.until)).unwrap_or_default()
}

/// With the row before them, where they follow it: a counter is told at the end of its row.
fn with_the_one_before(rows: &[Row], span: Span) -> &[Row] {
    let before = rows[..first_after(rows, span.since)].last();
    let since =
        before.filter(|row| row.at_ms + row.span_ms > span.since).map(|row| row.at_ms.saturating_sub(1));
    rows_of(rows, Span { since: since.unwrap_or(span.since), ..span })
}

/// What the energy counter of a GPU went on by between the first row and the last, joules; `None`: it was not read twice. Where
/// it began anew, what it had counted since the row before is lost.
fn energy(rows: &[Row], gpu: u32) -> Option<f64> {
    let read = rows.iter().flat_map(|row| &row.gpus).filter(|row| row.gpu == gpu);
    let counters: Vec<f64> = read.filter_map(|row| row.energy_j).collect();
    (counters.len() > 1).then(|| counters.windows(2).map(|pair| (pair[1] - pair[0]).max(0.0)).sum())
}

/// GPUs whose energy counter began anew in a span, and for how long rows are missing there at most, milliseconds.
pub(super) fn counters_anew(of: &Recorded, span: Span) -> (Vec<u32>, u64) {
    let rows = with_the_one_before(of.finest(), span);
    let (mut gpus, mut longest) = (Vec::new(), 0);
    for gpu in &of.gpus {
        let read = rows.iter().flat_map(|row| row.gpus.iter().map(move |gpu| (row, gpu)));
        let read = read.filter(|(_, read)| read.gpu == gpu.gpu);
        let counters: Vec<(&Row, f64)> = read.filter_map(|(row, read)| Some((row, read.energy_j?))).collect();
        for (before, after) in
            counters.windows(2).filter(|two| two[1].1 < two[0].1).map(|two| (two[0].0, two[1].0))
        {
            longest = longest.max(after.at_ms.saturating_sub(after.span_ms).saturating_sub(before.at_ms));
            gpus.push(gpu.gpu);
        }
    }
    gpus.dedup();
    (gpus, longest)
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
            unmetered_s: job.row.unmetered_gpu_s.unwrap_or(0.0),
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

/// What a job was seen to do in its last attempt. Times are the daemon's.
struct Seen {
    began: u64,
    /// When it was first seen with memory on a GPU; `None`: the driver did not tell.
    at_work: Option<u64>,
    /// Its part of SMACT, SMOCC and DRAM activity from then on: by its share of the activity, else in equal parts.
    parts: [Mean; 3],
}

impl Seen {
    fn works_at(&self, at: u64) -> bool {
        at > self.at_work.unwrap_or(self.began)
    }

    fn startup(&self) -> Millis {
        Millis(self.at_work.map_or(0, |at_work| at_work.saturating_sub(self.began)))
    }
}

fn seen(of: &Recorded) -> BTreeMap<u64, Seen> {
    let started = |job: &Ran| {
        let began = job.attempts.last()?.started_ms?;
        Some((job.row.id, Seen { began, at_work: None, parts: Default::default() }))
    };
    let mut jobs: BTreeMap<u64, Seen> = of.jobs.iter().filter_map(started).collect();
    for row in of.finest() {
        let tenants = row.gpus.iter().flat_map(|gpu| &gpu.tenants);
        for tenant in tenants.filter(|tenant| tenant.memory_mib.is_some_and(|mib| mib > 0.0)) {
            if let Some(job) = jobs.get_mut(&tenant.job).filter(|job| row.at_ms > job.began) {
                job.at_work.get_or_insert(row.at_ms.saturating_sub(row.span_ms).max(job.began));
            }
        }
    }
    for row in of.finest() {
        for gpu in &row.gpus {
            let [smact, smocc, drama, ..] = five(gpu);
            let works = |tenant: &&TenantRow| jobs.get(&tenant.job).is_none_or(|job| job.works_at(row.at_ms));
            let at_work: Vec<&TenantRow> = gpu.tenants.iter().filter(works).collect();
            for tenant in &at_work {
                let Some(job) = jobs.get_mut(&tenant.job) else { continue };
                let share = tenant.activity_share.unwrap_or(1.0 / at_work.len() as f64);
                for (mean, value) in job.parts.iter_mut().zip([smact, smocc, drama]) {
                    mean.add(value.map(|value| value * share), tenant.span_ms);
                }
            }
        }
    }
    jobs
}

/// The jobs of a record as a trace, by what was seen of them, and what that leaves out.
#[derive(Default)]
struct Traced<'a> {
    jobs: Vec<TraceJob>,
    /// How long each took to begin its work.
    startup: BTreeMap<&'a str, Millis>,
    /// Jobs that completed, and were over at once.
    at_once: usize,
    /// Jobs whose time alone is the time that they ran.
    as_run: usize,
    /// Jobs whose activity is a part of that of their GPUs.
    estimated: usize,
    /// Jobs of which SMACT, SMOCC and DRAM activity were not seen.
    unseen: [usize; 3],
}

impl<'a> Traced<'a> {
    /// Of the jobs that completed.
    fn of(of: &Recorded, run: &'a RunResult) -> Self {
        let seen = seen(of);
        let mut traced = Self::default();
        for (ran, outcome) in of.jobs.iter().zip(&run.jobs).filter(|(_, outcome)| outcome.end.is_some()) {
            if outcome.solo == Millis::ZERO {
                traced.at_once += 1;
                continue;
            }
            let pace = ran.attempts.last().and_then(pace);
            traced.as_run += usize::from(pace.is_none());
            let seen = seen.get(&ran.row.id);
            traced.startup.insert(&outcome.id, seen.map_or(Millis::ZERO, Seen::startup));
            let alone = ran.attempts.iter().rev().find_map(|attempt| attempt.alone_bp);
            let activity = match alone {
                Some(alone) => alone.map(|bp| bp.map(|bp| f64::from(bp) / 10_000.0)),
                None => {
                    traced.estimated += 1;
                    let part = |part: &Mean| {
                        Some(part.get() / pace.unwrap_or(1.0))
                            .filter(|part| part.is_finite())
                            .map(|part| part.min(1.0))
                    };
                    seen.map_or([None; 3], |seen| seen.parts.each_ref().map(part))
                }
            };
            for (jobs, seen) in traced.unseen.iter_mut().zip(activity) {
                *jobs += usize::from(seen.is_none());
            }
            // What was not seen counts as nothing here, and what rests on it is not told.
            let [smact, smocc, drama] = activity.map(|seen| seen.or(Some(0.0)));
            traced.jobs.push(TraceJob {
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
        traced.jobs.sort_by_key(|job| job.arrival);
        traced
    }
}

/// What the simulator says that the jobs which completed would have done had each had its GPUs alone, first come first served;
/// with what it rests on. `None`: it can't be said, with why.
pub(super) fn exclusive(of: &Recorded, run: &RunResult) -> (Option<RunResult>, Vec<String>) {
    let Some(cluster) = cluster(&of.gpus) else {
        let why = "what exclusive GPUs would have done is not simulated: not all GPUs are of a type that carma has a model of";
        return (None, vec![why.to_owned()]);
    };
    let Traced { jobs, startup, at_once, as_run, estimated, unseen } = Traced::of(of, run);
    if jobs.is_empty() {
        let why = if at_once > 0 { "all jobs that completed were over at once" } else { "no job completed" };
        return (None, vec![format!("{why}, so that there is nothing to compare with exclusive GPUs")]);
    }
    let count = jobs.len();
    let trace = Trace { name: "recorded".into(), file: None, jobs, notes: Vec::new() };
    let Some((mut workload, policy)) = Workload::resolve(&trace, None).ok().zip(presets::by_name(EXCLUSIVE))
    else {
        return (
            None,
            vec!["what exclusive GPUs would have done cannot be simulated of these jobs".to_owned()],
        );
    };
    for job in &mut workload.jobs {
        Arc::make_mut(&mut job.task).startup = startup.get(&*job.id).copied();
    }
    let setup = Setup { record: true, ..Setup::new(policy, SharingMode::Exclusive, None, 1) };
    let mut result = simulate(&workload, &cluster, &setup, &|_| ());
    let untold = forget(&mut result, unseen.map(|jobs| jobs > 0));
    let predicted = completed(of, run).filter(|(.., last)| is_predicted(last)).count();
    let is_guess = predicted as u64 * 2 > run.summary.completed;
    // The row says that the two are not of the same jobs.
    let all = run.summary.jobs;
    let part = if (count as u64) < all { format!(" ({count} of {all})") } else { String::new() };
    let guess = if is_guess { ", a guess" } else { "" };
    result.policy = format!("{EXCLUSIVE}, simulated{part}{guess}");
    let tasks: BTreeMap<&str, &str> = run.jobs.iter().map(|job| (&*job.id, &*job.task)).collect();
    for job in &mut result.jobs {
        job.task = tasks.get(&*job.id).copied().unwrap_or_default().to_owned();
    }
    let these = if at_once > 0 {
        format!("{count} of the {} jobs that completed (the others were over at once)", count + at_once)
    } else {
        format!("the {count} job{} that completed", if count == 1 { "" } else { "s" })
    };
    let mut notes = vec![format!(
        "{EXCLUSIVE}, simulated: {these} one after the other with GPUs to themselves, by the model of {}{}. Time alone is time here times \
         progress{}; activity is that seen alone{}{}",
        cluster.spec(),
        if part.is_empty() {
            String::new()
        } else {
            format!(
                ", while {all} were there: its figures and those of the run as it was are not of the same jobs"
            )
        },
        if as_run > 0 { format!("; of {as_run} it is the time here") } else { String::new() },
        if estimated > 0 { format!("; of {estimated} a part of that of the GPU") } else { String::new() },
        if untold.contains(&"power") { "" } else { ". Power is a model's" },
    )];
    if is_guess {
        notes.push(format!(
            "{EXCLUSIVE}, simulated, is a guess and likely too long: how long jobs take alone is only predicted of {predicted} of the {} that completed",
            run.summary.completed
        ));
    }
    if let [others @ .., last] = &*untold {
        let names =
            if others.is_empty() { (*last).to_owned() } else { format!("{} and {last}", others.join(", ")) };
        notes.push(format!(
            "{EXCLUSIVE}, simulated: activity could not be read of {} of the {count} jobs, so that nothing is told of {names}",
            unseen.iter().max().unwrap_or(&0)
        ));
    }
    notes.extend(workload.notes.iter().map(|note| format!("{EXCLUSIVE}, simulated: {note}")));
    (Some(result), notes)
}

/// Takes out of a simulated run what rests on activity that was not seen (SMACT, SMOCC, DRAM activity); the names of the figures.
fn forget(result: &mut RunResult, [smact, smocc, drama]: [bool; 3]) -> Vec<&'static str> {
    let of = &mut result.summary;
    let mut untold = Vec::new();
    let mut take = |unseen: bool, name: Option<&'static str>, figures: [&mut f64; 2]| {
        if unseen {
            figures.into_iter().for_each(|figure| *figure = f64::NAN);
            untold.extend(name);
        }
    };
    let power = smact || drama;
    take(smact, Some("SMACT"), [&mut of.smact, &mut of.active.smact]);
    take(smocc, Some("SMOCC"), [&mut of.smocc, &mut of.active.smocc]);
    take(drama, None, [&mut of.drama, &mut of.active.drama]);
    take(power, Some("energy"), [&mut of.energy_j, &mut of.energy_per_job_j]);
    take(power, Some("power"), [&mut of.power_w, &mut of.active.power_w]);
    for series in &mut result.series {
        let curves = [(smact, &mut series.smact), (power, &mut series.power_w)];
        curves.into_iter().filter(|(unseen, _)| *unseen).for_each(|(_, curve)| curve.fill(f32::NAN));
    }
    untold
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::commands::queue::tests::job;
    use crate::commands::report::{remarks_of, unit_of};
    use crate::commands::usage::Unit;
    use carma_api::record::Readings;
    use carma_api::wire::ReasonView;

    const START: u64 = 1_760_000_000_000;

    fn attempt(from_s: u64, until_s: Option<u64>, verdict: Option<&str>, pace: Option<f64>) -> AttemptView {
        let reason = |code: &str| ReasonView { code: code.into(), text: String::new() };
        let at = |s: u64| START + s * 1000;
        let held = until_s.map(|until| (until - from_s) as f64);
        AttemptView {
            attempt: 1,
            gpus: vec![0],
            sharing: SharingMode::Mps,
            thread_pct: None,
            cap_mib: None,
            placed: reason("PlacedShared"),
            decided_ms: at(from_s),
            started_ms: Some(at(from_s)),
            ended_ms: until_s.map(at),
            suspended_ms: None,
            spells: Vec::new(),
            exit_code: None,
            memory_peak_mib: None,
            host: None,
            alone_bp: None,
            energy_j: None,
            unmetered_gpu_s: None,
            held_gpu_s: held,
            progress_gpu_s: held.zip(pace).map(|(held, pace)| held * pace),
            unmeasured_gpu_s: None,
            verdict: verdict.map(reason),
        }
    }

    fn ran(id: u64, submitted_s: u64, mut attempts: Vec<AttemptView>) -> Ran {
        (1..).zip(&mut attempts).for_each(|(number, attempt)| attempt.attempt = number);
        let last = attempts.last().unwrap();
        let state = match last.verdict.as_ref().map(|verdict| verdict.code.as_str()) {
            None => "RUNNING",
            Some("Completed") => "COMPLETED",
            Some(_) => "FAILED",
        };
        let mut row = job(id, state, "", "");
        (row.submitted_ms, row.ended_ms) = (START + submitted_s * 1000, last.ended_ms);
        (row.energy_j, row.memory_peak_mib) = (Some(1000.0 * id as f64), Some(4096));
        Ran { row, attempts }
    }

    /// Ten minutes from the hundredth second on, in rows of ten seconds, with a gap of a minute.
    pub(in super::super) fn recorded_run(jobs: Vec<Ran>) -> Recorded {
        let span = Span { since: START + 100_000, until: START + 700_000 };
        let row = |n: u64| {
            let tenant =
                TenantRow { job: 1, span_ms: 10_000, activity_share: Some(0.5), ..TenantRow::default() };
            let readings = Readings { smact: Some(0.6), power_w: Some(200.0), ..Readings::default() };
            let gpu = GpuRow {
                gpu: 0,
                span_ms: 10_000,
                readings,
                energy_j: Some(n as f64 * 2000.0),
                busy_ms: None,
                tenants: vec![tenant],
            };
            Row { at_ms: span.since + n * 10_000, span_ms: 10_000, host: None, gpus: vec![gpu] }
        };
        let gpu =
            RecordedGpu { gpu: 0, name: "NVIDIA H200".into(), kind: "gpu".into(), ..RecordedGpu::default() };
        Recorded {
            span,
            step: Millis::secs(10),
            gpus: vec![gpu],
            rows: (1..=60).filter(|n| !(31..=36).contains(n)).map(row).collect(),
            finer: None,
            jobs,
            policy: "adaptive".into(),
            sharing: SharingMode::Mps,
            now_ms: span.until,
            first_ms: Some(span.since),
            dropped_looks: 0,
            notes: vec![],
        }
    }

    #[test]
    fn a_run_is_shown_as_it_was() {
        let jobs = vec![
            // It began before, and half of its time lies in the span; at four fifths of its speed alone.
            ran(1, 0, vec![attempt(50, Some(150), Some("Completed"), Some(0.8))]),
            ran(
                2,
                110,
                vec![
                    attempt(120, Some(140), Some("OutOfMemoryRetry"), None),
                    attempt(150, Some(160), Some("Requeued"), None),
                    attempt(170, Some(180), Some("MadeRoom"), None),
                    attempt(200, Some(300), Some("Completed"), None),
                ],
            ),
            ran(3, 120, vec![attempt(130, Some(160), Some("NonZeroExit"), Some(1.0))]),
            ran(4, 400, vec![attempt(500, None, None, None)]),
        ];
        let of = recorded_run(jobs);
        let run = recorded(&of);
        let series = &run.series[0];
        assert_eq!((series.smact.len(), series.smact[0], series.smact[35].is_nan()), (60, 0.6, true));
        let s = &run.summary;
        assert_eq!((s.jobs, s.completed, s.not_completed, s.oom, s.oom_jobs), (4, 2, 2, 1, 1));
        assert_eq!((s.makespan_s, s.wait_s.mean, s.jct_s.mean), (600.0, 45.0, 120.0));
        // 50 s at .8, and 100 s of which nothing is known.
        assert_eq!(run.jobs[0].solo, Millis::secs(40));
        assert_eq!((s.slowdown.max, s.slowdown.mean), (1.25, 1.125));
        let how: Vec<End> = run.stretches.iter().map(|stretch| stretch.how).collect();
        let mine = [End::OutOfMemory, End::Requeued, End::Preempted, End::Completed];
        assert_eq!(how, [&[End::Completed, mine[0], End::Failed][..], &mine[1..], &[End::Running]].concat());
        assert_eq!(s.preemptions, 1, "what its user did is none");
        // The counter goes on in the gap; means are of what was read.
        assert_eq!((s.energy_j, s.power_w, s.busy), (59.0 * 2000.0, 200.0, 1.0));
        assert!(s.drama.is_nan());

        let (exclusive, notes) = exclusive(&of, &run);
        let exclusive = exclusive.unwrap();
        // One GPU: the second begins when the first is done.
        assert_eq!((exclusive.summary.completed, exclusive.jobs[1].task.as_str()), (2, "train2"));
        assert!(
            exclusive.summary.makespan_s >= 140.0 && exclusive.summary.slowdown.max <= 1.05,
            "{exclusive:?}"
        );
        assert!(
            notes[0].contains("the 2 jobs that completed") && notes[0].contains("; of 1 it is the time here"),
            "{notes:?}"
        );
        // Half of .6 at .8 of its speed: .375 alone.
        let part = seen(&of)[&1].parts[0].get();
        assert!((part - 0.3).abs() < 1e-9, "{part}");
        assert_eq!(joules(&of).iter().map(|job| job.energy_j).sum::<f64>(), 10_000.0);
    }

    #[test]
    fn jobs_whose_speed_is_only_predicted_are_counted() {
        let beside = |unmeasured_gpu_s, pace| {
            let attempt = attempt(100, Some(300), Some("Completed"), Some(pace));
            AttemptView { unmeasured_gpu_s, ..attempt }
        };
        let mut of = recorded_run(vec![
            ran(1, 100, vec![beside(Some(180.0), 0.9)]),
            // Its first moments are no matter.
            ran(2, 100, vec![beside(Some(15.0), 0.5)]),
            ran(3, 100, vec![beside(None, 1.0)]),
            ran(4, 100, vec![AttemptView { ended_ms: None, verdict: None, ..beside(Some(180.0), 0.9) }]),
        ]);
        for gpu in of.rows.iter_mut().flat_map(|row| &mut row.gpus) {
            gpu.tenants.push(TenantRow { job: 2, span_ms: 10_000, ..TenantRow::default() });
        }
        let run = recorded(&of);
        let bound = guessed(&of, &run);
        assert_eq!(bound.jobs, 1);
        // Two were there: of 200 s the first had half of 180 at least, the second what was measured and half of 15.
        let each = [200.0 / 90.0, 200.0 / 92.5, 1.0];
        assert!((bound.slowdown_at_most - each.iter().sum::<f64>() / 3.0).abs() < 1e-9);
        let screen = carma_cli::Screen::of_width(None);
        let (exclusive, _) = exclusive(&of, &run);
        let text =
            crate::commands::report::summary(&of, &run, exclusive.as_ref(), Unit::of(1.0), &[], &screen);
        // What is measured of one and predicted of the other is marked: of what exclusive GPUs would have done all that is of time.
        assert!(
            text.contains("~1.")
                && text.contains("Of 1 of the 3 jobs that completed the speed")
                && text.contains("mean slowdown is 1.79 at most"),
            "{text}"
        );
        // Where that is most of them, exclusive GPUs are a guess.
        let most = recorded_run(vec![ran(1, 100, vec![beside(Some(180.0), 0.9)])]);
        let (guess, notes) = super::exclusive(&most, &recorded(&most));
        assert_eq!(guess.unwrap().policy, "exclusive, simulated, a guess");
        assert!(notes.iter().any(|note| note.contains("only predicted of 1 of the 1")), "{notes:?}");
        let of = recorded_run(vec![ran(2, 100, vec![beside(Some(15.0), 0.5)])]);
        let run = recorded(&of);
        let text = crate::commands::report::summary(&of, &run, None, Unit::of(1.0), &[], &screen);
        assert!(!text.contains('~') && !text.contains("predicted"), "{text}");
    }

    #[test]
    fn no_figure_of_exclusive_gpus_rests_on_an_assumption() {
        let job = ran(1, 100, vec![attempt(100, Some(300), Some("Completed"), Some(1.0))]);
        let mut of = recorded_run(vec![job]);
        for gpu in of.rows.iter_mut().flat_map(|row| &mut row.gpus) {
            (gpu.readings.smocc, gpu.readings.drama) = (Some(0.3), Some(0.2));
        }
        let told = |of: &Recorded| {
            let (run, notes) = exclusive(of, &recorded(of));
            (run.unwrap(), notes.join("; "))
        };
        let (seen, notes) = told(&of);
        assert!(seen.summary.energy_j > 0.0 && notes.contains("Power is a model's"), "{notes}");
        assert!(!notes.contains("nothing is told") && !notes.contains("assumed 0."), "{notes}");
        let unread = |of: &mut Recorded, change: fn(&mut Readings)| {
            of.rows.iter_mut().flat_map(|row| &mut row.gpus).for_each(|gpu| change(&mut gpu.readings));
        };
        unread(&mut of, |read| read.smocc = None);
        let (run, notes) = told(&of);
        assert!(run.summary.smocc.is_nan() && run.summary.energy_j == seen.summary.energy_j);
        assert!(notes.contains("so that nothing is told of SMOCC;"), "{notes}");
        unread(&mut of, |read| read.smact = None);
        let (run, notes) = told(&of);
        let s = run.summary;
        for unknown in
            [s.smact, s.active.smact, s.smocc, s.energy_j, s.energy_per_job_j, s.power_w, s.active.power_w]
        {
            assert!(unknown.is_nan(), "{s:?}");
        }
        assert_eq!((s.makespan_s, s.wait_s.mean, s.memory_mib, s.busy), {
            let s = &seen.summary;
            (s.makespan_s, s.wait_s.mean, s.memory_mib, s.busy)
        });
        assert!(run.series.iter().all(|of| of.smact.iter().chain(&of.power_w).all(|value| value.is_nan())));
        assert!(
            notes.contains("not be read of 1 of the 1 jobs")
                && notes.contains("so that nothing is told of SMACT, SMOCC, energy and power")
                && !notes.contains("assumed 0.")
                && !notes.contains("Power is a model's"),
            "{notes}"
        );
    }

    #[test]
    fn jobs_that_were_over_at_once_are_told_of() {
        let at_once = |id| ran(id, 150, vec![attempt(150, Some(150), Some("Completed"), None)]);
        let long = ran(1, 100, vec![attempt(100, Some(300), Some("Completed"), Some(1.0))]);
        let noted = |jobs: Vec<Ran>| {
            let of = recorded_run(jobs);
            exclusive(&of, &recorded(&of)).1.join("; ")
        };
        let notes = noted(vec![long, at_once(2), at_once(3)]);
        assert!(
            notes.contains("simulated: 1 of the 3 jobs that completed (the others were over at once)"),
            "{notes}"
        );
        assert!(noted(vec![at_once(2)]).contains("all jobs that completed were over at once"));
    }

    #[test]
    fn what_a_job_does_is_counted_from_its_first_memory_on() {
        let mut of = recorded_run(vec![
            ran(1, 100, vec![attempt(100, Some(300), Some("Completed"), Some(1.0))]),
            ran(2, 180, vec![attempt(200, Some(300), Some("Completed"), Some(1.0))]),
        ]);
        for row in &mut of.rows {
            let at = row.at_ms - START;
            let tenant = |job, from: u64| TenantRow {
                job,
                span_ms: 10_000,
                // The share of activity is not known, and no process is seen at first.
                memory_mib: (at > from).then_some(4096.0),
                ..TenantRow::default()
            };
            row.gpus[0].tenants =
                if at <= 200_000 { vec![tenant(1, 130_000)] } else { vec![tenant(1, 0), tenant(2, 240_000)] };
            row.gpus[0].readings.smact = Some(if at <= 130_000 { 0.0 } else { 0.6 });
            if at > 300_000 {
                row.gpus[0].tenants.clear();
            }
        }
        let seen = seen(&of);
        assert_eq!((seen[&1].startup(), seen[&2].startup()), (Millis::secs(30), Millis::secs(40)));
        // .6 for 110 s and half of it for 60; half of it for 60.
        let mean = (110.0 * 0.6 + 60.0 * 0.3) / 170.0;
        assert!(
            (seen[&1].parts[0].get() - mean).abs() < 1e-9 && (seen[&2].parts[0].get() - 0.3).abs() < 1e-9
        );
        let (exclusive, _) = exclusive(&of, &recorded(&of));
        let summary = exclusive.unwrap().summary;
        // 170 s and then 60 s of 300.
        assert!((summary.smact - (170.0 * mean + 60.0 * 0.3) / 300.0).abs() < 0.01, "{}", summary.smact);
        assert!((summary.memory_mib - 4096.0 * 230.0 / 300.0).abs() < 20.0, "{}", summary.memory_mib);
    }

    /// It was on these GPUs from and to these seconds.
    fn with_spells(attempt: AttemptView, spells: &[(u32, u64, Option<u64>)]) -> AttemptView {
        let at = |s: u64| START + s * 1000;
        let spell = |(gpu, from, until): &(u32, u64, Option<u64>)| SpellView {
            gpus: vec![*gpu],
            from_ms: at(*from),
            until_ms: until.map(at),
        };
        AttemptView { spells: spells.iter().map(spell).collect(), ..attempt }
    }

    #[test]
    fn time_in_which_a_job_was_suspended_is_no_time_on_gpus() {
        // 60 s on GPU 0, 200 s suspended, 45 s on GPU 1, all at its speed alone.
        let mut moved = attempt(110, Some(415), Some("Completed"), None);
        (moved.gpus, moved.held_gpu_s, moved.progress_gpu_s) = (vec![1], Some(105.0), Some(105.0));
        let moved = with_spells(moved, &[(0, 110, Some(170)), (1, 370, Some(415))]);
        let of = recorded_run(vec![ran(1, 110, vec![moved])]);
        let run = recorded(&of);
        let drawn = |run: &RunResult| -> Vec<(u32, u64, u64, End)> {
            let one = |s: &Stretch| (s.gpus[0], s.start.0 / 1000, s.end.0 / 1000, s.how);
            run.stretches.iter().map(one).collect()
        };
        assert_eq!(drawn(&run), [(0, 10, 70, End::Suspended), (1, 270, 315, End::Completed)]);
        let job = &run.jobs[0];
        assert_eq!((job.exec, job.solo, job.attempts), (Millis::secs(105), Millis::secs(105), 1));
        let s = &run.summary;
        assert_eq!((s.makespan_s, s.jct_s.mean, s.exec_s.mean), (305.0, 305.0, 105.0));
        assert_eq!((s.slowdown.mean, s.wait_s.mean), (1.0, 0.0));
        let (exclusive, _) = exclusive(&of, &run);
        let exclusive = exclusive.unwrap().summary;
        assert!((exclusive.makespan_s - 105.0).abs() < 1.0, "{exclusive:?}");
    }

    #[test]
    fn spells_are_cut_where_the_report_is() {
        // The report is from 100 to 700 s.
        let drawn = |attempt: AttemptView| -> Vec<(u64, u64, End)> {
            let run = recorded(&recorded_run(vec![ran(1, 0, vec![attempt])]));
            let job = &run.jobs[0];
            assert_eq!((job.attempts, job.first_start), (1, Some(Millis::ZERO)));
            run.stretches.iter().map(|s| (s.start.0 / 1000, s.end.0 / 1000, s.how)).collect()
        };
        let running = || attempt(50, None, None, None);
        // Suspended before, at its end, all the time, and over at its end.
        let spells = [(0, 50, Some(80)), (0, 150, Some(300)), (1, 400, None)];
        assert_eq!(
            drawn(with_spells(running(), &spells)),
            [(50, 200, End::Suspended), (300, 600, End::Running)]
        );
        assert_eq!(drawn(with_spells(running(), &spells[..2])), [(50, 200, End::Suspended)]);
        assert_eq!(drawn(with_spells(running(), &spells[..1])), []);
        let later = [(0, 50, Some(200)), (0, 800, None)];
        assert_eq!(drawn(with_spells(running(), &later)), [(0, 100, End::Suspended)]);
        // Cancelled while it was suspended: in the report, and after it.
        let cancelled = |ended| with_spells(attempt(50, Some(ended), Some("Cancelled"), None), &spells[..2]);
        assert_eq!(drawn(cancelled(650)), [(50, 200, End::Failed)]);
        assert_eq!(drawn(cancelled(750)), [(50, 200, End::Suspended)]);
    }

    #[test]
    fn what_is_not_known_is_no_zero_and_sums_name_their_jobs() {
        let mut never = ran(2, 300, vec![attempt(1, None, None, None)]);
        (never.attempts, never.row.state) = (vec![], "PENDING".into());
        let running = ran(1, 110, vec![attempt(110, None, None, None)]);
        let of = recorded_run(vec![running.clone(), never.clone()]);
        let s = recorded(&of).summary;
        assert_eq!((s.jobs, s.completed, s.oom), (2, 0, 0));
        for unknown in [
            s.wait_s.mean,
            s.jct_s.p95,
            s.exec_s.max,
            s.slowdown.median,
            s.fairness_wait,
            s.fairness_slowdown,
            s.energy_per_job_j,
        ] {
            assert!(unknown.is_nan(), "{s:?}");
        }
        assert!(s.energy_j > 0.0 && s.makespan_s == 590.0);

        let done = ran(3, 110, vec![attempt(120, Some(150), Some("Completed"), None)]);
        let of = recorded_run(vec![running, never, done.clone()]);
        let run = recorded(&of);
        let (some, notes) = exclusive(&of, &run);
        assert_eq!(some.unwrap().policy, "exclusive, simulated (1 of 3)");
        assert!(notes[0].contains(", while 3 were there: its figures"), "{notes:?}");
        let of = recorded_run(vec![done]);
        let (all, notes) = exclusive(&of, &recorded(&of));
        assert_eq!(all.unwrap().policy, "exclusive, simulated");
        assert!(!notes[0].contains("were there"), "{notes:?}");
    }

    #[test]
    fn energy_is_that_of_the_gpus_that_were_read() {
        let mut of = recorded_run(vec![]);
        of.gpus.push(RecordedGpu { gpu: 1, ..of.gpus[0].clone() });
        assert_eq!(recorded(&of).summary.energy_j, 59.0 * 2000.0);
        // One without a counter was at work, too.
        of.rows[0].gpus.push(GpuRow { gpu: 1, span_ms: 10_000, ..GpuRow::default() });
        assert!(recorded(&of).summary.energy_j.is_nan());
    }

    #[test]
    fn figures_do_not_depend_on_how_long_drawn_rows_are() {
        // Four jobs of 50 s, one after the other on one GPU, from the hundredth second of the report on; before and after them
        // the GPU is idle.
        let jobs = (0..4).map(|n| {
            let from = 200 + 50 * n;
            ran(n + 1, 200, vec![attempt(from, Some(from + 50), Some("Completed"), Some(1.0))])
        });
        let mut of = recorded_run(jobs.collect());
        let second = |second: u64| {
            let job = (100..300).contains(&second).then(|| 1 + (second - 100) / 50);
            let tenant = |job| TenantRow { job, span_ms: 1000, ..TenantRow::default() };
            let smact = Some(if job.is_some() { 0.6 } else { 0.0 });
            let watts = |second: u64| if (100..300).contains(&second) { 300.0 } else { 100.0 };
            let gpu = GpuRow {
                gpu: 0,
                span_ms: 1000,
                readings: Readings { smact, power_w: Some(watts(second)), ..Readings::default() },
                energy_j: Some((0..=second).map(watts).sum()),
                tenants: job.map(tenant).into_iter().collect(),
                ..GpuRow::default()
            };
            Row { at_ms: of.span.since + (second + 1) * 1000, span_ms: 1000, host: None, gpus: vec![gpu] }
        };
        let fine: Vec<Row> = (0..600).map(second).collect();
        let rows = |seconds: usize| -> Vec<Row> {
            let fold = |rows: &[Row]| {
                let mut fold = carma_api::record::Fold::default();
                rows.iter().for_each(|row| fold.add(row));
                fold.take(fold.latest_ms()).unwrap()
            };
            fine.chunks(seconds).map(fold).collect()
        };
        let busy = busy(&of.jobs, of.span);
        assert_eq!((busy.since - of.span.since, busy.until - of.span.since), (100_000, 300_000));
        let figures = |of: &Recorded| {
            let run = recorded(of);
            let s = &run.summary;
            (
                (s.jobs_per_gpu, s.busy, s.smact, s.active.smact, s.energy_j),
                remarks_of(of, &run, unit_of(&run, None)),
            )
        };
        let note = "the energy counters went on by 60.0 kJ in the time from the first arrival to the last end; the jobs took 10.0 kJ over all of their own time. What was idle: carma usage";
        let exact = ((1.0, 1.0, 0.6, 0.6, 200.0 * 300.0), vec![note.to_owned()]);
        (of.rows, of.finer) = (rows(60), Some(fine.clone()));
        assert_eq!(figures(&of), exact);
        // Where long rows are all there is: one job after the other is one at a time.
        of.finer = None;
        let ((at_a_time, ..), _) = figures(&of);
        assert_eq!(at_a_time, 1.0);
        (of.rows, of.step) = (rows(1), Millis::secs(1));
        assert_eq!(figures(&of), exact);
    }

    #[test]
    fn energy_that_was_lost_is_named_beside_the_sums() {
        let mut of = recorded_run(vec![ran(1, 100, vec![attempt(100, Some(690), Some("Completed"), None)])]);
        // After the gap of a minute the counter begins anew.
        for row in of.rows.iter_mut().filter(|row| row.at_ms > START + 460_000) {
            row.gpus[0].energy_j = Some((row.at_ms - START - 460_000) as f64 / 5.0);
        }
        of.jobs[0].row.unmetered_gpu_s = Some(61.0);
        let run = recorded(&of);
        assert_eq!(counters_anew(&of, of.span), (vec![0], 60_000));
        let note = remarks_of(&of, &run, unit_of(&run, None)).join("; ");
        assert!(
            note.contains("without what was not read before counters began anew (GPU 0, with up to 1 min of rows missing there);"),
            "{note}"
        );
        assert!(
            note.contains("all of their own time but for 1 min 1 s on GPUs that no counter tells of. What"),
            "{note}"
        );
    }

    #[test]
    fn only_what_was_not_read_is_a_gap() {
        let gap = |of: &Recorded| {
            let remarks = remarks_of(of, &recorded(of), Unit::of(0.0));
            remarks.into_iter().find(|remark| remark.contains("the rest is a gap"))
        };
        // A minute of ten, of which no job knows.
        let mut of = recorded_run(vec![]);
        assert!(gap(&of).unwrap().starts_with("GPU 0 was read for 90 % of the time of the report; "));
        of.jobs = vec![ran(1, 100, vec![attempt(100, Some(400), Some("Completed"), None)])];
        assert_eq!(gap(&of), None);
        of.jobs = vec![ran(1, 300, vec![attempt(300, Some(500), Some("Completed"), None)])];
        let found = gap(&of).unwrap();
        assert!(found.starts_with("GPU 0 was read for 70 % of the time from the first arrival"), "{found}");
        // Drawn rows of ten minutes begin long before the recorder did, and before the job.
        of.jobs = vec![ran(1, 0, vec![attempt(50, Some(400), Some("Completed"), None)])];
        of.span.since -= 400_000;
        of.step = Millis::secs(600);
        of.finer = Some(std::mem::take(&mut of.rows));
        assert_eq!(gap(&of), None);
    }

    #[test]
    fn nothing_ran_and_gpus_that_nobody_knows() {
        let mut of = recorded_run(vec![]);
        let run = recorded(&of);
        assert_eq!((run.summary.jobs, run.summary.energy_j), (0, 59.0 * 2000.0));
        assert!(exclusive(&of, &run).1[0].contains("no job completed"));
        of.gpus[0].name = "Abacus 3000".into();
        of.rows.clear();
        let run = recorded(&of);
        assert!(run.summary.energy_j.is_nan() && run.summary.busy.is_nan());
        assert!(exclusive(&of, &run).1[0].contains("not all GPUs"));
    }
}
