//! Makes traces: arrivals by a process, tasks by a mix.

use super::draw::{Dice, Mix, Stream, Tasks};
use super::error::TraceError;
use super::{Activity, Catalogue, Trace, TraceJob};
use carma_core::units::Millis;
use std::sync::Arc;

/// No gap is longer than this many mean gaps.
pub const LONGEST_GAP: f64 = 30.0;

/// How jobs arrive. The first comes at 0 in all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrivals {
    /// Independently of one another: gaps are exponential.
    Poisson,
    /// Gaps anywhere from 0 to twice the mean.
    Uniform,
    /// Crowds and silences: gaps are hyper-exponential with balanced means and coefficient of variation
    /// 3. Of a hundred gaps 95 have half the mean on average, the others nine and a half times the mean.
    Bursty,
    /// All at once.
    Batch,
}

impl Arrivals {
    /// The process of this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "poisson" => Some(Self::Poisson),
            "uniform" => Some(Self::Uniform),
            "bursty" => Some(Self::Bursty),
            "batch" => Some(Self::Batch),
            _ => None,
        }
    }

    /// A gap, in means.
    fn gap(self, dice: &mut Dice) -> f64 {
        match self {
            Self::Poisson => dice.exponential().min(LONGEST_GAP),
            Self::Uniform => 2.0 * dice.unit(),
            Self::Bursty => {
                // For a coefficient of variation c: p = (1 + sqrt((c^2 - 1) / (c^2 + 1))) / 2; a gap is of
                // mean 1/(2p) with probability p, and of mean 1/(2(1-p)) otherwise.
                let p = (1.0 + 0.8_f64.sqrt()) / 2.0;
                let share = if dice.unit() < p { p } else { 1.0 - p };
                (dice.exponential() / (2.0 * share)).min(LONGEST_GAP)
            }
            Self::Batch => 0.0,
        }
    }
}

/// What to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Synthesis {
    /// Number of jobs.
    pub jobs: u32,
    /// Percentages of the weights.
    pub mix: Mix,
    /// How they arrive.
    pub arrivals: Arrivals,
    /// Mean time between two arrivals; gaps longer than [`LONGEST_GAP`] means are cut, which takes 2 %
    /// from the mean of bursty arrivals and nothing from the others'.
    pub mean_gap: Millis,
    /// Users `u1`, `u2`, ..., each job's drawn evenly.
    pub users: u32,
    /// The same seed makes the same trace on every machine. Arrivals, tasks and users are drawn
    /// independently: another number of users leaves the other two as they are.
    pub seed: u64,
}

/// When jobs come, without end. Of the same seed always the same.
pub fn times(arrivals: Arrivals, mean_gap: Millis, seed: u64) -> impl Iterator<Item = Millis> {
    let mut dice = Dice::new(seed, Stream::Arrivals);
    std::iter::successors(Some(Millis::ZERO), move |last| {
        // Each gap is rounded, so that the sum is exact.
        Some(*last + Millis((arrivals.gap(&mut dice) * mean_gap.0 as f64).round() as u64))
    })
}

/// Makes a trace of tasks of a catalogue.
///
/// # Errors
/// A weight of the mix without tasks, a task without run time, or more jobs or time than a trace holds.
pub fn synthesize(catalogue: &Catalogue, what: &Synthesis) -> Result<Trace, TraceError> {
    const MOST_JOBS: u32 = 10_000_000;
    const CENTURY: Millis = Millis::secs(3_155_760_000);
    if what.jobs == 0 || what.jobs > MOST_JOBS {
        return Err(TraceError::general(format!(
            "cannot make {} jobs; from 1 to {MOST_JOBS} it can be",
            what.jobs
        )));
    }
    let mut tasks = Tasks::new(catalogue, what.mix, what.seed)?;
    let mut users = Dice::new(what.seed, Stream::Users);
    let names: Vec<Arc<str>> = (1..=what.users.max(1)).map(|n| format!("u{n}").into()).collect();
    let mut jobs = Vec::with_capacity(what.jobs as usize);
    for (n, arrival) in (1..=what.jobs).zip(times(what.arrivals, what.mean_gap, what.seed)) {
        if arrival > CENTURY {
            return Err(TraceError::general(
                "the trace would last more than a hundred years; shorten the mean gap",
            ));
        }
        jobs.push(TraceJob {
            threads: None,
            line: 0,
            id: n.to_string().into(),
            arrival,
            task: Some(Arc::clone(&tasks.next().name)),
            duration: None,
            gpus: None,
            user: names.get(users.below(names.len() as u64) as usize).cloned().unwrap_or_default(),
            memory: None,
            activity: Activity::default(),
        });
    }
    Ok(Trace { name: "synthetic".into(), file: None, jobs, notes: Vec::new() })
}
