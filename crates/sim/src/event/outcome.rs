//! What a simulated run came to.

use carma_core::units::{MiB, Millis};
use serde::{Deserialize, Serialize};

/// How an attempt of a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// The work was done.
    Completed,
    /// It ran out of GPU memory.
    OutOfMemory,
    /// The policy took it off its GPUs; it goes on later.
    Preempted,
    /// It slowed a job down beyond that one's limit; it begins anew elsewhere.
    #[serde(alias = "undone")]
    Evicted,
    /// Its GPU was about to run full; it begins anew.
    GrowthGuard,
    /// Of a recorded run: its user put it back into the queue; it begins anew.
    Requeued,
    /// Of a recorded run: it failed, was cancelled, or reached its time limit.
    Failed,
    /// Of a recorded run: it went on beyond what is shown.
    Running,
    /// Of a recorded run: it was suspended, or moved to another GPU; the attempt goes on later.
    Suspended,
}

/// One stretch of a job on its GPUs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stretch {
    /// Position of the job in the trace.
    pub job: u32,
    /// From 1.
    pub attempt: u32,
    /// Indices of its GPUs.
    pub gpus: Vec<u32>,
    /// When it started.
    pub start: Millis,
    /// When it ended.
    pub end: Millis,
    /// How it ended.
    pub how: End,
    /// Whether it began on a GPU that others were on.
    pub shared: bool,
}

/// One job at the end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobOutcome {
    /// Name in the trace.
    pub id: String,
    /// Task, where known.
    pub task: String,
    /// Who submitted it.
    pub user: String,
    /// Number of GPUs.
    pub gpus: u32,
    /// When it came.
    pub arrival: Millis,
    /// When its first attempt started; `None`: never.
    pub first_start: Option<Millis>,
    /// When its last attempt started.
    pub last_start: Option<Millis>,
    /// When it ended; `None`: never (it asks for more than the cluster has, or could not be recovered).
    pub end: Option<Millis>,
    /// Time on GPUs, all attempts.
    pub exec: Millis,
    /// Run time alone.
    pub solo: Millis,
    /// Number of attempts.
    pub attempts: u32,
    /// Attempts that ran out of memory.
    pub ooms: u32,
}

/// One out-of-memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Oom {
    /// Time of it, on the journal's clock.
    pub at: Millis,
    /// The user: position in the trace.
    pub job: u32,
    /// Task, where known.
    pub task: String,
    /// Index of the GPU.
    pub gpu: u32,
    /// What it asked for, in all.
    pub wanted: MiB,
    /// What was free besides what it held.
    pub free: MiB,
    /// Run time lost: all of the attempt, also before it was suspended or preempted.
    pub lost: Millis,
}

/// Mean activity of one GPU over equal steps of time.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct GpuSeries {
    /// SM activity, 0 to 1.
    pub smact: Vec<f32>,
    /// Memory in use, MiB.
    pub memory_mib: Vec<f32>,
    /// Power, watts.
    pub power_w: Vec<f32>,
}

/// How a quantity is spread over the jobs, seconds (or a ratio).
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Spread {
    /// Arithmetic mean.
    pub mean: f64,
    /// Median: the middle value, or the mean of the two.
    pub median: f64,
    /// 95th percentile.
    pub p95: f64,
    /// Largest value.
    pub max: f64,
}

impl Spread {
    /// Of these values; of none all is 0.
    #[must_use]
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let Some(max) = values.last().copied() else {
            return Self::default();
        };
        let at = |q: f64| carma_stats::quantile(&values, q).unwrap_or_default();
        Self { mean: values.iter().sum::<f64>() / values.len() as f64, median: at(0.5), p95: at(0.95), max }
    }
}

/// Jain's fairness index of the means per user, each a sum and how many it is of: `(sum x)^2 / (n sum x^2)`, 1 when all are
/// alike. Users without anything do not count.
#[must_use]
pub fn jain(users: &[(f64, u64)]) -> f64 {
    let means: Vec<f64> = users.iter().filter(|(_, n)| *n > 0).map(|(sum, n)| sum / *n as f64).collect();
    let (sum, squares) = means.iter().fold((0.0, 0.0), |(a, b), x| (a + x, b + x * x));
    if squares > 0.0 { sum * sum / (means.len() as f64 * squares) } else { 1.0 }
}

/// The figures of a run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Summary {
    /// Jobs in the trace.
    pub jobs: u64,
    /// Jobs that completed.
    pub completed: u64,
    /// Jobs that never could: larger than the cluster, or out of memory on a GPU of their own.
    pub not_completed: u64,
    /// From the first arrival to the last end, seconds.
    pub makespan_s: f64,
    /// From arrival to the start of the attempt that completed (the published definition); of a simulated job that was taken
    /// off and went on, all time off its GPUs.
    pub wait_s: Spread,
    /// Time on GPUs, all attempts.
    pub exec_s: Spread,
    /// Job completion time: from arrival to the end.
    pub jct_s: Spread,
    /// Time on GPUs of the attempt that completed, over the run time alone.
    pub slowdown: Spread,
    /// Attempts that ran out of memory.
    pub oom: u64,
    /// Jobs that they happened to.
    pub oom_jobs: u64,
    /// GPU time that they had used, seconds.
    pub oom_lost_gpu_s: f64,
    /// Mean wait of those jobs from their first failure to the start that completed, seconds.
    pub oom_wait_s: f64,
    /// Attempts that the policy took back.
    pub preemptions: u64,
    /// Attempts that were ended because they slowed a neighbour down beyond its limit.
    #[serde(default, alias = "undone")]
    pub evictions: u64,
    /// Attempts that were ended before they ran a GPU full.
    #[serde(default)]
    pub growth_guard: u64,
    /// Energy of all GPUs over the makespan, joules.
    pub energy_j: f64,
    /// Energy per completed job, joules.
    pub energy_per_job_j: f64,
    /// Mean over all GPUs and the makespan.
    pub smact: f64,
    /// Mean over all GPUs and the makespan.
    pub smocc: f64,
    /// Mean over all GPUs and the makespan.
    pub drama: f64,
    /// Mean memory in use, MiB.
    pub memory_mib: f64,
    /// Mean power of a GPU, watts.
    pub power_w: f64,
    /// The same five over the time that a GPU has a job.
    pub active: ActiveMeans,
    /// Mean number of jobs on a GPU that has any.
    pub jobs_per_gpu: f64,
    /// Share of GPU time with a job.
    pub busy: f64,
    /// Jain's index over users of the mean wait (1: all wait alike).
    pub fairness_wait: f64,
    /// Jain's index over users of the mean slowdown, wait included: job completion time over the run
    /// time alone.
    pub fairness_slowdown: f64,
    /// Number of users.
    pub users: u64,
}

impl Summary {
    /// As it is told: what there is no job or no time to say anything of is not a number, and not 0 or 1.
    #[must_use]
    pub fn told(&self) -> Self {
        let mut told = self.clone();
        if self.completed == 0 {
            let none = Spread { mean: f64::NAN, median: f64::NAN, p95: f64::NAN, max: f64::NAN };
            (told.wait_s, told.exec_s, told.jct_s, told.slowdown) = (none, none, none, none);
            (told.fairness_wait, told.fairness_slowdown) = (f64::NAN, f64::NAN);
            told.energy_per_job_j = f64::NAN;
        }
        if self.makespan_s == 0.0 {
            for figure in [
                &mut told.makespan_s,
                &mut told.energy_j,
                &mut told.power_w,
                &mut told.smact,
                &mut told.smocc,
                &mut told.drama,
                &mut told.memory_mib,
                &mut told.jobs_per_gpu,
            ] {
                *figure = f64::NAN;
            }
        }
        told
    }
}

/// Means over the time that a GPU has a job.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct ActiveMeans {
    /// SM activity.
    pub smact: f64,
    /// Warp occupancy.
    pub smocc: f64,
    /// DRAM activity.
    pub drama: f64,
    /// Memory, MiB.
    pub memory_mib: f64,
    /// Power, watts.
    pub power_w: f64,
}

/// One policy on one trace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// Name of the policy, with what a sweep changed.
    pub policy: String,
    /// What must hold before a job may join others on a GPU, in words.
    #[serde(default)]
    pub precondition: String,
    /// How jobs share: `time-slice` or `mps`.
    pub sharing: String,
    /// Seed of the start-up times.
    pub seed: u64,
    /// The figures.
    pub summary: Summary,
    /// Events that were handled.
    pub events: u64,
    /// Every job, in the order of the trace.
    pub jobs: Vec<JobOutcome>,
    /// Every stretch of a job on GPUs, by start.
    pub stretches: Vec<Stretch>,
    /// Every out-of-memory, by time.
    pub ooms: Vec<Oom>,
    /// Step of the series, seconds; 0 when there are none.
    pub step_s: f64,
    /// Activity of each GPU; empty unless asked for.
    pub series: Vec<GpuSeries>,
}

impl RunResult {
    /// The most by which a job first started later than in that other run of the same trace, 0 if none did. Jobs that never
    /// started in one of them do not count.
    #[must_use]
    pub fn latest_behind(&self, other: &Self) -> Millis {
        let jobs = self.jobs.iter().zip(&other.jobs);
        let behind = jobs.filter_map(|(a, b)| Some(a.first_start?.since(b.first_start?)));
        behind.max().unwrap_or_default()
    }
}
