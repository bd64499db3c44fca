//! The document that `carma simulate --json` prints and `carma report` reads back.
//!
//! Keys end in their unit: `_s` seconds, `_j` joules, `_w` watts, `_mib` mebibytes. A figure that is
//! not known, or not a number, is `null`. The document holds no date: the same run gives the same
//! bytes.

use crate::event::outcome::{End, GpuSeries, JobOutcome, Oom, RunResult, Stretch, Summary};
use carma_core::units::{MiB, Millis};
use serde::{Deserialize, Serialize};

/// Version of the document. Keys may be added to it; it changes when one is removed or means
/// something else.
pub const VERSION: u32 = 1;

/// What a simulation came to, as a document.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SimulateReply {
    /// [`VERSION`].
    pub version: u32,
    /// Always `true`: a model, never a measurement.
    pub simulated: bool,
    /// Name of the trace.
    pub trace: String,
    /// The GPUs, as on the command line.
    pub cluster: String,
    /// The command that made this, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// What a reader should know: assumptions, what was left out.
    #[serde(default)]
    pub notes: Vec<String>,
    /// One for each policy; the first is what the others are compared with.
    pub rows: Vec<PolicyRow>,
}

impl SimulateReply {
    /// The document of these runs; with `detail` also every job, stretch, crash and series.
    #[must_use]
    pub fn new(
        trace: impl Into<String>,
        cluster: impl Into<String>,
        notes: Vec<String>,
        runs: &[RunResult],
        detail: bool,
    ) -> Self {
        let first = runs.first().map(|r| &r.summary);
        let row = |run: &RunResult| PolicyRow {
            normalised: first.map(|base| Normalised::of(base, &run.summary)).unwrap_or_default(),
            detail: detail.then(|| Detail::from(run)),
            ..PolicyRow::from(run)
        };
        Self {
            version: VERSION,
            simulated: true,
            trace: trace.into(),
            cluster: cluster.into(),
            command: None,
            notes,
            rows: runs.iter().map(row).collect(),
        }
    }

    /// Reads a document.
    ///
    /// # Errors
    /// When it is not JSON, not such a document, of another version, or contradicts itself.
    pub fn read(bytes: &[u8]) -> Result<Self, ReadError> {
        /// Enough to tell a document of another version from a broken one.
        #[derive(Deserialize)]
        struct Head {
            version: Option<serde_json::Value>,
            simulated: Option<bool>,
        }
        // A list would do for a struct.
        if bytes.trim_ascii_start().first().is_some_and(|b| *b != b'{') {
            return Err(ReadError::NoReply);
        }
        let head: Head = serde_json::from_slice(bytes)?;
        match head.version {
            None => return Err(ReadError::NoReply),
            Some(v) if v != VERSION => return Err(ReadError::Version { found: v.to_string() }),
            Some(_) => {}
        }
        if head.simulated != Some(true) {
            // Other verbs print documents of version 1 too.
            return Err(ReadError::NoReply);
        }
        let reply: Self = serde_json::from_slice(bytes)?;
        for (i, row) in reply.rows.iter().enumerate() {
            row.check().map_err(|(place, why)| ReadError::Senseless {
                place: format!("rows[{i}].detail.{place}"),
                why,
            })?;
        }
        Ok(reply)
    }

    /// The runs, as far as the document tells.
    #[must_use]
    pub fn runs(&self) -> Vec<RunResult> {
        self.rows.iter().map(RunResult::from).collect()
    }
}

/// Why a document cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Not JSON, or a key is missing or of another type.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// Something else.
    #[error(
        "it is not what `carma simulate --json` prints: an object with \"version\" and \"simulated\": true"
    )]
    NoReply,
    /// From a later or an earlier carma.
    #[error("its \"version\" is {found}; this carma reads version {VERSION}")]
    Version {
        /// What it says.
        found: String,
    },
    /// A value that contradicts another.
    #[error("{place}: {why}")]
    Senseless {
        /// Path within the document.
        place: String,
        /// What is wrong.
        why: String,
    },
}

/// One policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PolicyRow {
    /// Name of the policy, with what a sweep changed.
    pub policy: String,
    /// What must hold before a job may join others on a GPU, in words.
    #[serde(default)]
    pub precondition: String,
    /// How jobs share: `time-slice` or `mps`.
    pub sharing: String,
    /// Seed of the start-up times; of several, the first.
    pub seed: u64,
    /// Runs, with seeds from `seed` on, that the figures are means of.
    #[serde(default = "one")]
    pub seeds: u32,
    /// Events that were handled.
    #[serde(default)]
    pub events: u64,
    /// The figures.
    #[serde(flatten)]
    pub figures: Figures,
    /// The most by which a job first started later than under `exclusive`, of several seeds the worst; `null` where no
    /// row is `exclusive`.
    #[serde(default)]
    pub start_behind_exclusive_max_s: Option<f64>,
    /// The same in percent of `exclusive`'s makespan with that seed.
    #[serde(default)]
    pub start_behind_exclusive_max_pct: Option<f64>,
    /// Of several seeds: means with confidence intervals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over_seeds: Option<super::seeds::OverSeeds>,
    /// The figures over those of the first row.
    #[serde(default)]
    pub normalised: Normalised,
    /// Every job and what it did, where that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Detail>,
}

const fn one() -> u32 {
    1
}

impl PolicyRow {
    /// Whether what the detail refers to is there.
    fn check(&self) -> Result<(), (String, String)> {
        let Some(detail) = &self.detail else { return Ok(()) };
        let jobs = detail.jobs.len();
        let known = |job: u32| usize::try_from(job).is_ok_and(|job| job < jobs);
        let missing = |job: u32| format!("there is no job {job} among the {jobs}");
        if let Some((i, s)) = detail.stretches.iter().enumerate().find(|(_, s)| !known(s.job)) {
            return Err((format!("stretches[{i}].job"), missing(s.job)));
        }
        if let Some((i, s)) = detail.stretches.iter().enumerate().find(|(_, s)| s.end_s.0 < s.start_s.0) {
            return Err((format!("stretches[{i}]"), format!("it ends before it starts, for job {}", s.job)));
        }
        if let Some((i, o)) = detail.ooms.iter().enumerate().find(|(_, o)| !known(o.job)) {
            return Err((format!("ooms[{i}].job"), missing(o.job)));
        }
        if !detail.series.is_empty() && detail.step_s.unwrap_or(0.0) <= 0.0 {
            return Err(("step_s".into(), "the series need a step above 0".into()));
        }
        Ok(())
    }
}

impl PolicyRow {
    /// Says how much later jobs started than in the runs of `exclusive` with the same seeds, in the same order.
    #[must_use]
    pub fn beside_exclusive(self, runs: &[RunResult], exclusive: &[RunResult]) -> Self {
        let behind = || {
            runs.iter().zip(exclusive).map(|(run, base)| {
                let late_s = Seconds::from(run.latest_behind(base)).0;
                (late_s, late_s / base.summary.makespan_s * 100.0)
            })
        };
        let most = |values: &mut dyn Iterator<Item = f64>| values.filter(|v| v.is_finite()).reduce(f64::max);
        Self {
            start_behind_exclusive_max_s: most(&mut behind().map(|(late_s, _)| late_s)),
            start_behind_exclusive_max_pct: most(&mut behind().map(|(_, pct)| pct)),
            ..self
        }
    }
}

impl From<&RunResult> for PolicyRow {
    /// Without normalised figures and detail, which depend on other runs and on what was asked for.
    fn from(run: &RunResult) -> Self {
        Self {
            policy: run.policy.clone(),
            precondition: run.precondition.clone(),
            sharing: run.sharing.clone(),
            seed: run.seed,
            seeds: 1,
            events: run.events,
            figures: Figures::from(&run.summary),
            start_behind_exclusive_max_s: None,
            start_behind_exclusive_max_pct: None,
            over_seeds: None,
            normalised: Normalised::default(),
            detail: None,
        }
    }
}

impl From<&PolicyRow> for RunResult {
    fn from(row: &PolicyRow) -> Self {
        let empty = Detail::default();
        let detail = row.detail.as_ref().unwrap_or(&empty);
        let unknown = |values: &[Option<f32>]| values.iter().map(|v| v.unwrap_or(f32::NAN)).collect();
        Self {
            policy: row.policy.clone(),
            precondition: row.precondition.clone(),
            sharing: row.sharing.clone(),
            seed: row.seed,
            summary: Summary::from(&row.figures),
            events: row.events,
            jobs: detail.jobs.iter().map(JobOutcome::from).collect(),
            stretches: detail.stretches.iter().map(Stretch::from).collect(),
            ooms: detail.ooms.iter().map(Oom::from).collect(),
            step_s: detail.step_s.unwrap_or(0.0),
            series: detail
                .series
                .iter()
                .map(|s| GpuSeries {
                    smact: unknown(&s.smact),
                    memory_mib: unknown(&s.memory_mib),
                    power_w: unknown(&s.power_w),
                })
                .collect(),
        }
    }
}

/// Declares the figures once: their key, where they are in a [`Summary`], and what they are.
macro_rules! figures {
    (
        counts { $($(#[$count_doc:meta])* $count:ident,)* }
        numbers { $($(#[$doc:meta])* $key:ident = $($path:ident).+,)* }
    ) => {
        /// The figures of a [`Summary`], flat, so that rows make a table as they are.
        #[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
        pub struct Figures {
            $($(#[$count_doc])* #[serde(default)] pub $count: u64,)*
            $($(#[$doc])* #[serde(default)] pub $key: Option<f64>,)*
        }

        impl Figures {
            /// Means over runs; counts are rounded.
            #[must_use]
            pub fn mean(of: &[Self]) -> Self {
                let n = of.len().max(1) as f64;
                let count = |f: fn(&Self) -> u64| (of.iter().map(f).sum::<u64>() as f64 / n).round() as u64;
                let number = |f: fn(&Self) -> Option<f64>| {
                    of.iter().map(f).sum::<Option<f64>>().map(|sum| sum / n)
                };
                Self {
                    $($count: count(|figures| figures.$count),)*
                    $($key: number(|figures| figures.$key),)*
                }
            }
        }

        impl From<&Summary> for Figures {
            fn from(summary: &Summary) -> Self {
                let summary = summary.told();
                Self {
                    $($count: summary.$count,)*
                    $($key: Some(summary.$($path).+).filter(|v| v.is_finite()),)*
                }
            }
        }

        impl From<&Figures> for Summary {
            /// What is not known is not a number, and shown as such: 0 would be a claim.
            fn from(figures: &Figures) -> Self {
                let mut summary = Self::default();
                $(summary.$count = figures.$count;)*
                $(summary.$($path).+ = figures.$key.unwrap_or(f64::NAN);)*
                summary
            }
        }
    };
}

figures! {
    counts {
        /// Jobs in the trace.
        jobs,
        /// Jobs that completed.
        completed,
        /// Jobs that never could.
        not_completed,
        /// Attempts that ran out of memory.
        oom,
        /// Jobs that they happened to.
        oom_jobs,
        /// Attempts that the policy took back.
        preemptions,
        /// Attempts that were ended because they slowed a neighbour down beyond its limit.
        #[serde(alias = "undone")]
        evictions,
        /// Attempts that were ended before they ran a GPU full.
        growth_guard,
        /// Number of users.
        users,
    }
    numbers {
        /// From the first arrival to the last end.
        makespan_s = makespan_s,
        /// From arrival to the start of the attempt that completed: mean.
        wait_mean_s = wait_s.mean,
        /// Median over jobs, seconds.
        wait_median_s = wait_s.median,
        /// 95th percentile.
        wait_p95_s = wait_s.p95,
        /// Largest of all jobs, seconds.
        wait_max_s = wait_s.max,
        /// Time on GPUs, all attempts: mean.
        exec_mean_s = exec_s.mean,
        /// Median over jobs, seconds.
        exec_median_s = exec_s.median,
        /// 95th percentile.
        exec_p95_s = exec_s.p95,
        /// Largest of all jobs, seconds.
        exec_max_s = exec_s.max,
        /// From arrival to the end: mean.
        jct_mean_s = jct_s.mean,
        /// Median over jobs, seconds.
        jct_median_s = jct_s.median,
        /// 95th percentile.
        jct_p95_s = jct_s.p95,
        /// Largest of all jobs, seconds.
        jct_max_s = jct_s.max,
        /// Time on GPUs of the attempt that completed over the run time alone: mean.
        slowdown_mean = slowdown.mean,
        /// Median over jobs.
        slowdown_median = slowdown.median,
        /// 95th percentile.
        slowdown_p95 = slowdown.p95,
        /// Largest of all jobs.
        slowdown_max = slowdown.max,
        /// GPU time that attempts which ran out of memory had used.
        oom_lost_gpu_s = oom_lost_gpu_s,
        /// Mean wait of their jobs from the first failure to the start that completed.
        oom_wait_s = oom_wait_s,
        /// Energy of all GPUs over the makespan.
        energy_j = energy_j,
        /// Energy per completed job.
        energy_per_job_j = energy_per_job_j,
        /// SM activity, mean over all GPUs and the makespan.
        smact = smact,
        /// Warp occupancy, likewise.
        smocc = smocc,
        /// DRAM activity, likewise.
        drama = drama,
        /// Memory in use, likewise.
        memory_mib = memory_mib,
        /// Power of a GPU, likewise.
        power_w = power_w,
        /// SM activity over the time that a GPU has a job.
        active_smact = active.smact,
        /// Warp occupancy, likewise.
        active_smocc = active.smocc,
        /// DRAM activity, likewise.
        active_drama = active.drama,
        /// Memory in use, likewise.
        active_memory_mib = active.memory_mib,
        /// Power of a GPU, likewise.
        active_power_w = active.power_w,
        /// Mean number of jobs on a GPU that has any.
        jobs_per_gpu = jobs_per_gpu,
        /// Share of GPU time with a job.
        busy = busy,
        /// Jain's index over users of the mean wait.
        fairness_wait = fairness_wait,
        /// Jain's index over users of the mean slowdown, wait included.
        fairness_slowdown = fairness_slowdown,
    }
}

/// Figures over those of the first row; `null` where the first has none or 0.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Normalised {
    /// Makespan over that of the first row.
    pub makespan: Option<f64>,
    /// Mean wait.
    pub wait_mean: Option<f64>,
    /// Median wait.
    pub wait_median: Option<f64>,
    /// 95th percentile of the wait.
    pub wait_p95: Option<f64>,
    /// Mean time on GPUs.
    pub exec_mean: Option<f64>,
    /// Mean job completion time.
    pub jct_mean: Option<f64>,
    /// 95th percentile of the job completion time.
    pub jct_p95: Option<f64>,
    /// Mean slowdown.
    pub slowdown_mean: Option<f64>,
    /// 95th percentile of the slowdown.
    pub slowdown_p95: Option<f64>,
    /// Energy over that of the first row.
    pub energy: Option<f64>,
    /// SM activity.
    pub smact: Option<f64>,
    /// Warp occupancy.
    pub smocc: Option<f64>,
    /// DRAM activity.
    pub drama: Option<f64>,
    /// Memory in use.
    pub memory: Option<f64>,
    /// Mean power.
    pub power: Option<f64>,
    /// Jobs on a GPU that has any.
    pub jobs_per_gpu: Option<f64>,
}

impl Normalised {
    /// `run` over `base`.
    #[must_use]
    pub fn of(base: &Summary, run: &Summary) -> Self {
        Self {
            makespan: ratio(base.makespan_s, run.makespan_s),
            wait_mean: ratio(base.wait_s.mean, run.wait_s.mean),
            wait_median: ratio(base.wait_s.median, run.wait_s.median),
            wait_p95: ratio(base.wait_s.p95, run.wait_s.p95),
            exec_mean: ratio(base.exec_s.mean, run.exec_s.mean),
            jct_mean: ratio(base.jct_s.mean, run.jct_s.mean),
            jct_p95: ratio(base.jct_s.p95, run.jct_s.p95),
            slowdown_mean: ratio(base.slowdown.mean, run.slowdown.mean),
            slowdown_p95: ratio(base.slowdown.p95, run.slowdown.p95),
            energy: ratio(base.energy_j, run.energy_j),
            smact: ratio(base.smact, run.smact),
            smocc: ratio(base.smocc, run.smocc),
            drama: ratio(base.drama, run.drama),
            memory: ratio(base.memory_mib, run.memory_mib),
            power: ratio(base.power_w, run.power_w),
            jobs_per_gpu: ratio(base.jobs_per_gpu, run.jobs_per_gpu),
        }
    }
}

/// `value / base`, where that is a number.
fn ratio(base: f64, value: f64) -> Option<f64> {
    Some(value / base).filter(|r| r.is_finite())
}

/// A time in seconds, exact to the millisecond.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seconds(pub f64);

impl From<Millis> for Seconds {
    fn from(time: Millis) -> Self {
        Self(time.as_secs_f64())
    }
}

impl From<Seconds> for Millis {
    /// Negative times and what is no number become 0, times too long the longest.
    fn from(time: Seconds) -> Self {
        Self((time.0 * 1000.0).round() as u64)
    }
}

/// Every job and what it did.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Detail {
    /// Every job, in the order of the trace.
    pub jobs: Vec<JobRow>,
    /// Every stretch of a job on GPUs, by start.
    pub stretches: Vec<StretchRow>,
    /// Every out-of-memory, by time.
    #[serde(default)]
    pub ooms: Vec<OomRow>,
    /// Step of the series; 0 when there are none.
    #[serde(default)]
    pub step_s: Option<f64>,
    /// Mean activity of each GPU over steps from the first arrival on.
    #[serde(default)]
    pub series: Vec<SeriesRow>,
}

impl From<&RunResult> for Detail {
    fn from(run: &RunResult) -> Self {
        let known = |values: &[f32]| values.iter().map(|v| Some(*v).filter(|v| v.is_finite())).collect();
        Self {
            jobs: run.jobs.iter().map(JobRow::from).collect(),
            stretches: run.stretches.iter().map(StretchRow::from).collect(),
            ooms: run.ooms.iter().map(OomRow::from).collect(),
            step_s: Some(run.step_s).filter(|s| s.is_finite()),
            series: run
                .series
                .iter()
                .map(|s| SeriesRow {
                    smact: known(&s.smact),
                    memory_mib: known(&s.memory_mib),
                    power_w: known(&s.power_w),
                })
                .collect(),
        }
    }
}

/// One job at the end. Times count from the beginning of the trace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobRow {
    /// Name in the trace.
    pub id: String,
    /// Task, where known; else empty.
    #[serde(default)]
    pub task: String,
    /// Who submitted it.
    #[serde(default)]
    pub user: String,
    /// Number of GPUs.
    pub gpus: u32,
    /// When it came.
    pub arrival_s: Seconds,
    /// When its first attempt started; `null`: never.
    pub first_start_s: Option<Seconds>,
    /// When its last attempt started.
    pub last_start_s: Option<Seconds>,
    /// When it ended; `null`: never.
    pub end_s: Option<Seconds>,
    /// Time on GPUs, all attempts.
    pub exec_s: Seconds,
    /// Run time alone.
    pub solo_s: Seconds,
    /// Number of attempts.
    pub attempts: u32,
    /// Attempts that ran out of memory.
    pub ooms: u32,
}

impl From<&JobOutcome> for JobRow {
    fn from(job: &JobOutcome) -> Self {
        Self {
            id: job.id.clone(),
            task: job.task.clone(),
            user: job.user.clone(),
            gpus: job.gpus,
            arrival_s: job.arrival.into(),
            first_start_s: job.first_start.map(Seconds::from),
            last_start_s: job.last_start.map(Seconds::from),
            end_s: job.end.map(Seconds::from),
            exec_s: job.exec.into(),
            solo_s: job.solo.into(),
            attempts: job.attempts,
            ooms: job.ooms,
        }
    }
}

impl From<&JobRow> for JobOutcome {
    fn from(job: &JobRow) -> Self {
        Self {
            id: job.id.clone(),
            task: job.task.clone(),
            user: job.user.clone(),
            gpus: job.gpus,
            arrival: job.arrival_s.into(),
            first_start: job.first_start_s.map(Millis::from),
            last_start: job.last_start_s.map(Millis::from),
            end: job.end_s.map(Millis::from),
            exec: job.exec_s.into(),
            solo: job.solo_s.into(),
            attempts: job.attempts,
            ooms: job.ooms,
        }
    }
}

/// One stretch of a job on its GPUs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StretchRow {
    /// Position of the job in the trace.
    pub job: u32,
    /// From 1.
    pub attempt: u32,
    /// Indices of its GPUs.
    pub gpus: Vec<u32>,
    /// When it started.
    pub start_s: Seconds,
    /// When it ended.
    pub end_s: Seconds,
    /// How it ended: `completed`, `out_of_memory`, `preempted`, `evicted` or `growth_guard`.
    pub how: End,
    /// Whether it began on a GPU that others were on.
    #[serde(default)]
    pub shared: bool,
}

impl From<&Stretch> for StretchRow {
    fn from(stretch: &Stretch) -> Self {
        Self {
            job: stretch.job,
            attempt: stretch.attempt,
            gpus: stretch.gpus.clone(),
            start_s: stretch.start.into(),
            end_s: stretch.end.into(),
            how: stretch.how,
            shared: stretch.shared,
        }
    }
}

impl From<&StretchRow> for Stretch {
    fn from(stretch: &StretchRow) -> Self {
        Self {
            job: stretch.job,
            attempt: stretch.attempt,
            gpus: stretch.gpus.clone(),
            start: stretch.start_s.into(),
            end: stretch.end_s.into(),
            how: stretch.how,
            shared: stretch.shared,
        }
    }
}

/// One out-of-memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OomRow {
    /// Time from the start of the run, seconds.
    pub at_s: Seconds,
    /// The user: position in the trace.
    pub job: u32,
    /// Task, where known; else empty.
    #[serde(default)]
    pub task: String,
    /// Index of the GPU.
    pub gpu: u32,
    /// What it asked for, in all.
    pub wanted_mib: MiB,
    /// What was free besides what it held.
    pub free_mib: MiB,
    /// Run time lost: all of the attempt, also before it was suspended or preempted.
    pub lost_s: Seconds,
}

impl From<&Oom> for OomRow {
    fn from(oom: &Oom) -> Self {
        Self {
            at_s: oom.at.into(),
            job: oom.job,
            task: oom.task.clone(),
            gpu: oom.gpu,
            wanted_mib: oom.wanted,
            free_mib: oom.free,
            lost_s: oom.lost.into(),
        }
    }
}

impl From<&OomRow> for Oom {
    fn from(oom: &OomRow) -> Self {
        Self {
            at: oom.at_s.into(),
            job: oom.job,
            task: oom.task.clone(),
            gpu: oom.gpu,
            wanted: oom.wanted_mib,
            free: oom.free_mib,
            lost: oom.lost_s.into(),
        }
    }
}

/// Mean activity of one GPU over equal steps of time; `null`: not known.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SeriesRow {
    /// SM activity, 0 to 1.
    pub smact: Vec<Option<f32>>,
    /// Memory in use.
    pub memory_mib: Vec<Option<f32>>,
    /// Power, watts.
    pub power_w: Vec<Option<f32>>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::example;

    fn reply(detail: bool) -> SimulateReply {
        let runs = example::runs(4, 60, &["exclusive", "magm"], 7);
        SimulateReply {
            command: Some("carma simulate".into()),
            ..SimulateReply::new("t", "4xA100-40GB", vec!["n".into()], &runs, detail)
        }
    }

    fn refused(text: &str) -> String {
        SimulateReply::read(text.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn runs_come_back_as_they_were() {
        let runs = example::runs(4, 60, &["exclusive", "magm", "random"], 7);
        assert!(runs.iter().any(|r| !r.ooms.is_empty()), "the example should hold crashes");
        let reply = SimulateReply::new("t", "4xA100-40GB", vec![], &runs, true);
        let bytes = serde_json::to_vec(&reply).unwrap();
        let read = SimulateReply::read(&bytes).unwrap();
        // Not `assert_eq`, which would print all of it.
        assert!(read == reply);
        assert!(read.runs() == runs);
        // Twice the same bytes.
        assert!(serde_json::to_vec(&read).unwrap() == bytes);
    }

    #[test]
    fn rows_are_flat_and_keys_bear_their_unit() {
        let value = serde_json::to_value(reply(true)).unwrap();
        let row = &value["rows"][1];
        for key in ["makespan_s", "wait_mean_s", "jct_p95_s", "energy_j", "memory_mib", "active_power_w"] {
            assert!(row[key].is_f64(), "{key}: {row}");
        }
        assert_eq!(row["seeds"], 1);
        assert_eq!(value["rows"][0]["normalised"]["makespan"], 1.0);
        let job = &row["detail"]["jobs"][0];
        assert!(job["arrival_s"].is_f64(), "{job}");
        assert!(row["detail"]["stretches"][0]["start_s"].is_f64());
        assert_eq!(value["version"], 1);
        assert_eq!(value["simulated"], true);
        assert!(value.get("date").is_none());
    }

    #[test]
    fn without_detail_the_figures_stay() {
        let reply = reply(false);
        let text = serde_json::to_string(&reply).unwrap();
        assert!(!text.contains("detail"));
        let runs = SimulateReply::read(text.as_bytes()).unwrap().runs();
        assert!(runs[0].jobs.is_empty() && runs[0].series.is_empty());
        assert_eq!(runs[0].summary, example::runs(4, 60, &["exclusive"], 7)[0].summary);
    }

    #[test]
    fn what_is_no_number_is_null_and_stays_unknown() {
        let mut runs = example::runs(1, 3, &["exclusive"], 7);
        runs[0].summary.energy_j = f64::NAN;
        runs[0].summary.wait_s.p95 = f64::INFINITY;
        runs[0].series[0].smact[0] = f32::NAN;
        let value = serde_json::to_value(SimulateReply::new("t", "c", vec![], &runs, true)).unwrap();
        let row = &value["rows"][0];
        assert!(row["energy_j"].is_null() && row["wait_p95_s"].is_null());
        assert!(row["normalised"]["energy"].is_null());
        assert!(row["detail"]["series"][0]["smact"][0].is_null());
        let back = SimulateReply::read(value.to_string().as_bytes()).unwrap().runs();
        assert!(back[0].summary.energy_j.is_nan() && back[0].summary.wait_s.p95.is_nan());
        assert!(back[0].series[0].smact[0].is_nan());
    }

    #[test]
    fn broken_documents_are_refused_with_the_place() {
        assert!(refused("{").contains("line 1"), "{}", refused("{"));
        assert!(refused("[1, true]").contains("carma simulate --json"), "{}", refused("[1, true]"));
        assert!(refused("hello").contains("carma simulate --json"));
        assert!(refused(&"[".repeat(100_000)).contains("carma simulate --json"));
        assert!(refused(&"{\"version\":".repeat(100_000)).contains("recursion"));
        assert!(refused("{}").contains("carma simulate --json"));
        assert!(refused(r#"{"version": 1, "jobs": []}"#).contains("carma simulate --json"));
        assert!(refused(r#"{"version": 2, "simulated": true}"#).contains("\"version\" is 2"));
        let missing = refused(r#"{"version": 1, "simulated": true, "trace": "t", "cluster": "c"}"#);
        assert!(missing.contains("missing field `rows`"), "{missing}");
        let mut value = serde_json::to_value(reply(true)).unwrap();
        value["rows"][1]["detail"]["stretches"][3]["job"] = 99.into();
        assert_eq!(
            refused(&value.to_string()),
            "rows[1].detail.stretches[3].job: there is no job 99 among the 60"
        );
        let mut value = serde_json::to_value(reply(true)).unwrap();
        value["rows"][0]["detail"]["stretches"][0]["start_s"] = 1e12.into();
        assert!(refused(&value.to_string()).contains("ends before it starts"));
        let mut value = serde_json::to_value(reply(true)).unwrap();
        value["rows"][0]["detail"]["step_s"] = serde_json::Value::Null;
        assert!(refused(&value.to_string()).contains("rows[0].detail.step_s"));
    }

    #[test]
    fn times_out_of_range_do_not_wrap() {
        assert_eq!(Millis::from(Seconds(-3.0)), Millis(0));
        assert_eq!(Millis::from(Seconds(f64::NAN)), Millis(0));
        assert_eq!(Millis::from(Seconds(1e300)), Millis(u64::MAX));
        assert_eq!(Millis::from(Seconds::from(Millis(86_400_001))), Millis(86_400_001));
    }
}
