//! Lower bounds: no schedule of a workload on a cluster takes less time, or less energy, than this.
//!
//! They are *fluid*: jobs may be cut into parts, taken off and put back at no cost, and work on any GPU. What they keep of the
//! simulator's laws:
//!
//!  - A set of jobs on a GPU makes the progress that the law gives it (`carma_sim::gpu::Law`), and only sets whose memory fits
//!    can be there. That is turned into prices of progress ([`prices`](mod@prices)): no set makes more than 1 a second. Small sets
//!    are listed one by one, larger ones are held by rows that the law can't break ([`region`]).
//!  - A job goes at a rate of at most 1, not before its arrival and its start-up. Loading takes no share of a GPU.
//!  - A job on several GPUs goes at the pace of the slowest, so that on each of them it does at most what the law says there,
//!    and its work is to be done on each.
//!
//! So, with the work `W(a)` at those prices of all jobs that come from `a` on, the makespan is at least
//! `a + shortest start-up + W(a) / GPUs` for every arrival `a`, and at least each job's arrival and time alone. Mean JCT: module
//! [`jct`]. Energy: module [`energy`].
//!
//! Who they hold for: every scheduler that starts jobs on plain terms, preemption allowed. They say nothing of MIG instances,
//! limits on threads, weights and kernels that are held back: these change the law's rates. A job that lost an attempt (out of
//! memory, evicted) draws another start-up, which is part of its time alone: [`Starts::Any`] holds for those as well.
//! They hold for schedules in which every job that the cluster can hold completes.

mod energy;
mod jct;
mod prices;
mod region;
mod sets;

use crate::Error;
use carma_sim::event::clairvoyant::Known;
use carma_sim::event::outcome::Summary;
use jct::Job;
use prices::Speeds;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Which attempts complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Starts {
    /// The first of each job; it may be preempted and go on.
    First,
    /// Any.
    Any,
}

/// The least that is possible, or less.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Bound {
    /// From the first arrival to the last end, seconds.
    pub makespan_s: f64,
    /// Mean time from arrival to end, seconds.
    pub jct_s: f64,
    /// Energy of all GPUs from the first arrival to the last end, joules.
    pub energy_j: f64,
}

/// What a GPU can do with the jobs of a workload, from which bounds are made.
#[derive(Debug)]
pub struct Bounds<'a> {
    known: &'a Known,
    speeds: Speeds,
}

/// Milliseconds by which the simulator may end a job early: work is counted to half of one.
const ROUNDING_MS: f64 = 1.0;
/// What the law's solution may be off by, as a share.
const SLACK: f64 = 1e-5;

impl<'a> Bounds<'a> {
    /// Lists what a GPU can do.
    ///
    /// # Errors
    /// The GPUs are not of one type, or are MIG instances; jobs ask for shares of the threads.
    pub fn new(known: &'a Known) -> Result<Self, Error> {
        Self::listing(known, sets::LARGEST)
    }

    /// The same with sets of up to so many jobs listed one by one, at least 1: the more, the closer.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn listing(known: &'a Known, largest: usize) -> Result<Self, Error> {
        if known.workload().jobs.iter().any(|job| job.threads.is_some()) {
            return Err(Error("there is no bound for jobs with shares of the SMs' threads".to_owned()));
        }
        let speeds = Speeds::new(known, largest)
            .ok_or_else(|| Error("there is a bound for whole GPUs of one type only".to_owned()))?;
        Ok(Self { known, speeds })
    }

    /// Size up to which sets of jobs are listed, their number, and whether there are larger ones.
    #[must_use]
    pub fn listed(&self) -> (usize, usize, bool) {
        (self.speeds.sets.size, self.speeds.sets.len(), self.speeds.sets.larger)
    }

    /// The most that any set of jobs on one GPU makes, at these prices by class of the known.
    #[must_use]
    pub fn most(&self, prices: &[f64]) -> f64 {
        let values: Vec<f64> = self
            .speeds
            .members
            .iter()
            .map(|it| prices.get(it.class as usize).copied().unwrap_or(0.0))
            .collect();
        self.speeds.most(&values)
    }

    /// The bound. `reached`: what some schedule does, which helps to find a better one and changes nothing else.
    ///
    /// # Errors
    /// A linear program that could not be solved.
    pub fn bound(&self, starts: Starts, reached: &Summary) -> Result<Bound, Error> {
        let jobs = self.jobs(starts);
        let gpus = self.known.cluster().len() as f64;
        let (makespan_s, values) = self.makespan(&jobs, gpus)?;
        let horizon = reached.makespan_s.max(makespan_s);
        let jct_s = jct::mean(&self.speeds, &jobs, gpus, horizon, reached.jct_s.mean, values)?;
        let alone = jobs.iter().map(|job| job.earliest - job.arrival).sum::<f64>() / jobs.len().max(1) as f64;
        let jct_s = jct_s.max(alone);
        let work = self.work(&jobs, 0.0);
        let mut gang = vec![false; self.speeds.members.len()];
        for job in jobs.iter().filter(|job| job.gpus > 1.0) {
            gang[job.member] = true;
        }
        let energy_j = energy::least(&self.speeds, self.known, &work, &gang, makespan_s)?;
        let less = 1.0 - SLACK;
        Ok(Bound { makespan_s: makespan_s * less, jct_s: jct_s * less, energy_j: energy_j * less })
    }

    /// What a unit of progress of each class of the known is worth where the makespan is to be short.
    ///
    /// # Errors
    /// As [`Self::bound`].
    pub fn values(&self) -> Result<Arc<[f64]>, Error> {
        let jobs = self.jobs(Starts::First);
        let (_, values) = self.makespan(&jobs, self.known.cluster().len() as f64)?;
        let of = |at: &Option<usize>| at.map_or(0.0, |at| values[at]);
        Ok(self.speeds.member_of.iter().map(of).collect())
    }

    /// Jobs that the cluster can hold, times since the first arrival.
    fn jobs(&self, starts: Starts) -> Vec<Job> {
        let begin = self.known.jobs().first().map_or(0, |job| job.arrival.0);
        let fitting = self.known.jobs().iter().filter(|job| job.fits);
        let one = |job: &carma_sim::event::clairvoyant::KnownJob| {
            let s = |ms: u64| ms as f64 / 1000.0;
            let (startup, longest) = match starts {
                Starts::First => (job.startup.0, job.startup.0),
                Starts::Any => (0, job.longest_startup.0),
            };
            let arrival = s(job.arrival.0 - begin);
            let work = (s(job.solo.0 - longest) - ROUNDING_MS / 1000.0).max(0.0);
            Some(Job {
                member: (*self.speeds.member_of.get(job.class)?)?,
                gpus: f64::from(job.gpus),
                arrival,
                release: arrival + s(startup),
                work,
                earliest: arrival + s(job.solo.0) - ROUNDING_MS / 1000.0,
            })
        };
        fitting.filter_map(one).collect()
    }

    /// Work of each member that comes from a time on, GPUs counted, seconds.
    fn work(&self, jobs: &[Job], from: f64) -> Vec<f64> {
        let mut work = vec![0.0; self.speeds.members.len()];
        for job in jobs.iter().filter(|job| job.arrival >= from) {
            work[job.member] += job.gpus * job.work;
        }
        work
    }

    /// The least makespan, seconds, and prices for the work from the arrival on that says most.
    fn makespan(&self, jobs: &[Job], gpus: f64) -> Result<(f64, Vec<f64>), Error> {
        let alone = jobs.iter().map(|job| job.earliest).fold(0.0, f64::max);
        let mut arrivals: Vec<f64> = jobs.iter().map(|job| job.arrival).collect();
        arrivals.dedup();
        let at = |from: f64, values: &[f64]| {
            let release = jobs.iter().filter(|job| job.arrival >= from).map(|job| job.release);
            let worth: f64 = self.work(jobs, from).iter().zip(values).map(|(work, value)| work * value).sum();
            release.fold(f64::INFINITY, f64::min) + worth / gpus
        };
        let mut values = self.speeds.prices(&self.work(jobs, 0.0))?;
        let first = values.clone();
        let mut best = alone;
        for _ in 0..4 {
            let most = arrivals
                .iter()
                .map(|from| (at(*from, &values), *from))
                .reduce(|a, b| if b.0 > a.0 { b } else { a });
            let Some((bound, from)) = most else { break };
            if bound <= best + 1e-6 {
                break;
            }
            best = bound;
            values = self.speeds.prices(&self.work(jobs, from))?;
        }
        Ok((best, first))
    }
}
