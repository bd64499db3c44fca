//! The bound on mean time from arrival to end.
//!
//! Give the GPUs' time a price `f(t)` for each of several sets of prices of progress. What a schedule does at `t` is worth at
//! most the number of GPUs under each of them, so that for any `f >= 0`
//!
//! ```text
//! sum of C_j  >=  sum over jobs of [ least over schedules of j alone of C_j + cost of its progress at f ]  -  GPUs * integral of f
//! ```
//!
//! (Lagrange). A job alone goes at a rate of at most 1 from its arrival and start-up on; it takes the cheapest time before its
//! end, and its end where the sum of both is least. That is computed exactly, as `f` is constant over steps. `f` is improved by
//! subgradients; whatever it is, the bound holds.

use super::prices::Speeds;
use crate::Error;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// One job as the bound sees it; seconds since the first arrival.
#[derive(Debug, Clone, Copy)]
pub(super) struct Job {
    pub(super) member: usize,
    pub(super) gpus: f64,
    pub(super) arrival: f64,
    /// Before this it makes no progress.
    pub(super) release: f64,
    /// Progress that it must make.
    pub(super) work: f64,
    /// Before this it does not end.
    pub(super) earliest: f64,
}

/// Steps over the horizon.
const STEPS: usize = 480;
/// Rounds of subgradients between two sets of prices.
const ROUNDS: usize = 250;
/// Sets of prices.
const PRICES: usize = 14;
/// Windows of which each may bring a set of prices.
const WINDOWS: usize = 8;

/// Time that is taken, by its price; the dearest is the largest.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Taken {
    price: f64,
    amount: f64,
}

impl Eq for Taken {}

impl PartialOrd for Taken {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Taken {
    fn cmp(&self, other: &Self) -> Ordering {
        self.price.total_cmp(&other.price).then(self.amount.total_cmp(&other.amount))
    }
}

/// Least mean of the times from arrival to end, seconds. `horizon`: after it the GPUs' time costs nothing. `reached`: what
/// some schedule has, which sets the size of steps.
pub(super) fn mean(
    speeds: &Speeds,
    jobs: &[Job],
    gpus: f64,
    horizon: f64,
    reached: f64,
    first: Vec<f64>,
) -> Result<f64, Error> {
    if jobs.is_empty() {
        return Ok(0.0);
    }
    let dt = horizon.max(1.0) / STEPS as f64;
    let mut it = Prices { speeds, jobs, gpus, dt, values: vec![first], at: vec![vec![0.0; STEPS]] };
    let target = reached * jobs.len() as f64 + jobs.iter().map(|job| job.arrival).sum::<f64>();
    let mut best = (f64::NEG_INFINITY, it.at.clone());
    for round in 0..PRICES {
        let progress = it.improve(target, &mut best);
        if round + 1 < PRICES {
            it.at.clone_from(&best.1);
            if !it.add(&progress)? {
                break;
            }
            best.1.clone_from(&it.at);
        }
    }
    let arrivals: f64 = jobs.iter().map(|job| job.arrival).sum();
    Ok((best.0 - arrivals) / jobs.len() as f64)
}

struct Prices<'a> {
    speeds: &'a Speeds,
    jobs: &'a [Job],
    gpus: f64,
    dt: f64,
    /// Sets of prices of progress.
    values: Vec<Vec<f64>>,
    /// Price of the GPUs' time of each set and step.
    at: Vec<Vec<f64>>,
}

impl Prices<'_> {
    /// Subgradient steps towards the target. Returns each member's mean rate by step, GPUs counted.
    fn improve(&mut self, target: f64, best: &mut (f64, Vec<Vec<f64>>)) -> Vec<Vec<f64>> {
        let members = self.speeds.members.len();
        let mut mean = vec![vec![0.0; STEPS]; members];
        let mut scale = 1.0;
        let mut since = 0;
        for round in 0..ROUNDS {
            let (bound, progress) = self.bound();
            if bound > best.0 {
                *best = (bound, self.at.clone());
                since = 0;
            } else {
                since += 1;
                if since >= 20 {
                    (scale, since) = (scale * 0.6, 0);
                    self.at.clone_from(&best.1);
                    continue;
                }
            }
            let keep = if round < 10 { 0.0 } else { 0.95 };
            for (mean, now) in mean.iter_mut().zip(&progress) {
                for (mean, now) in mean.iter_mut().zip(now) {
                    *mean = keep * *mean + (1.0 - keep) * now / self.dt;
                }
            }
            let mut gradient: Vec<Vec<f64>> = Vec::with_capacity(self.values.len());
            for values in &self.values {
                let used = |step: usize| progress.iter().zip(values).map(|(p, v)| p[step] * v).sum::<f64>();
                gradient.push((0..STEPS).map(|step| used(step) - self.gpus * self.dt).collect());
            }
            // What can't fall any more does not count for the length of the step.
            let mut square = 0.0;
            for (gradient, at) in gradient.iter_mut().zip(&self.at) {
                for (g, at) in gradient.iter_mut().zip(at) {
                    if *g < 0.0 && *at <= 0.0 {
                        *g = 0.0;
                    }
                    square += *g * *g;
                }
            }
            if square <= 0.0 {
                break;
            }
            let length = scale * (target - bound).max(1e-4 * target.abs()) / square;
            for (at, gradient) in self.at.iter_mut().zip(&gradient) {
                for (at, g) in at.iter_mut().zip(gradient) {
                    *at = (*at + length * g).max(0.0);
                }
            }
        }
        mean
    }

    /// The bound on the sum of ends at these prices, and each member's progress by step, GPUs counted.
    fn bound(&self) -> (f64, Vec<Vec<f64>>) {
        let members = self.speeds.members.len();
        let mut prices = vec![vec![0.0; STEPS]; members];
        for (values, at) in self.values.iter().zip(&self.at) {
            for (prices, value) in prices.iter_mut().zip(values) {
                for (price, at) in prices.iter_mut().zip(at) {
                    *price += at * value;
                }
            }
        }
        let mut progress = vec![vec![0.0; STEPS]; members];
        let mut sum = 0.0;
        for job in self.jobs {
            sum += alone(job, &prices[job.member], self.dt, &mut progress[job.member]);
        }
        let paid: f64 = self.at.iter().flatten().sum::<f64>() * self.dt * self.gpus;
        (sum - paid, progress)
    }

    /// Adds prices that the rates of some window break most. Whether there are any.
    fn add(&mut self, progress: &[Vec<f64>]) -> Result<bool, Error> {
        let each = STEPS / WINDOWS;
        let mut worst: Option<(f64, Vec<f64>)> = None;
        for window in 0..WINDOWS {
            let rates: Vec<f64> = progress
                .iter()
                .map(|of| of[window * each..(window + 1) * each].iter().sum::<f64>() / each as f64)
                .collect();
            let worth = |values: &[f64]| rates.iter().zip(values).map(|(r, v)| r * v).sum::<f64>();
            let known = self.values.iter().map(|values| worth(values)).fold(0.0, f64::max);
            // Where little goes on nothing can be gained.
            if rates.iter().sum::<f64>() < 0.5 * self.gpus {
                continue;
            }
            let values = self.speeds.prices(&rates)?;
            let gain = worth(&values) - known.max(self.gpus);
            if gain > 1e-3 * self.gpus && worst.as_ref().is_none_or(|(most, _)| gain > *most) {
                worst = Some((gain, values));
            }
        }
        let Some((_, values)) = worst else { return Ok(false) };
        self.values.push(values);
        self.at.push(vec![0.0; STEPS]);
        Ok(true)
    }
}

/// Least of a job's end and the cost of its progress, at prices by step; adds its progress, GPUs counted.
fn alone(job: &Job, prices: &[f64], dt: f64, progress: &mut [f64]) -> f64 {
    let mut taken: BinaryHeap<Taken> = BinaryHeap::new();
    let (mut missing, mut cost) = (job.work, 0.0);
    // Sum of end and cost, the end, and the price up to which time is taken.
    let mut best = (f64::INFINITY, 0.0);
    let first = ((job.release / dt) as usize).min(prices.len());
    for step in first..=prices.len() {
        let begin = (step as f64 * dt).max(job.release);
        // After the last step time is free and without end.
        let (price, mut open) = prices
            .get(step)
            .map_or((0.0, f64::INFINITY), |price| (price * job.gpus, (step + 1) as f64 * dt - begin));
        if begin.max(job.earliest) >= best.0 {
            break;
        }
        let mut end = begin;
        let mut mine = 0.0;
        if missing > 0.0 {
            let amount = missing.min(open);
            (missing, open) = (missing - amount, open - amount);
            (cost, end, mine) = (cost + amount * price, end + amount, amount);
        }
        if missing <= 0.0 {
            let mut seen = (end.max(job.earliest) + cost, end.max(job.earliest));
            // Dearer time is given back for this, the dearest first; the later end is worth it while that saves more than it costs.
            while open > 0.0 {
                let Some(Taken { price: dear, amount }) = taken.pop() else { break };
                if dear <= price {
                    taken.push(Taken { price: dear, amount });
                    break;
                }
                let moved = amount.min(open);
                (open, end, mine) = (open - moved, end + moved, mine + moved);
                cost -= moved * (dear - price);
                if amount > moved {
                    taken.push(Taken { price: dear, amount: amount - moved });
                }
                let now = (end.max(job.earliest) + cost, end.max(job.earliest));
                if now.0 < seen.0 {
                    seen = now;
                }
            }
            if seen.0 < best.0 {
                best = seen;
            }
        }
        if mine > 0.0 {
            taken.push(Taken { price, amount: mine });
        }
    }
    fill(job, prices, dt, best.1, progress);
    best.0
}

/// Adds the progress of a job that takes the cheapest time before its end.
fn fill(job: &Job, prices: &[f64], dt: f64, end: f64, progress: &mut [f64]) {
    let first = ((job.release / dt) as usize).min(prices.len());
    let mut steps: Vec<(f64, f64, usize)> = (first..prices.len())
        .map(|step| {
            let (from, to) = ((step as f64 * dt).max(job.release), ((step + 1) as f64 * dt).min(end));
            (prices[step], to - from, step)
        })
        .take_while(|(_, open, _)| *open > 0.0)
        .collect();
    steps.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.2.cmp(&b.2)));
    let mut missing = job.work - (end - prices.len() as f64 * dt).max(0.0);
    for (_, open, step) in steps {
        let amount = open.min(missing);
        if amount <= 0.0 {
            break;
        }
        progress[step] += amount * job.gpus;
        missing -= amount;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(release: f64, work: f64) -> Job {
        Job { member: 0, gpus: 1.0, arrival: 0.0, release, work, earliest: 0.0 }
    }

    fn cost(job: &Job, prices: &[f64]) -> (f64, Vec<f64>) {
        let mut progress = vec![0.0; prices.len()];
        (alone(job, prices, 1.0, &mut progress), progress)
    }

    #[test]
    fn a_job_alone_takes_the_cheapest_time_and_ends_where_that_pays() {
        // Nothing costs anything: it ends as early as it can.
        assert_eq!(cost(&job(0.0, 2.0), &[0.0; 4]), (2.0, vec![1.0, 1.0, 0.0, 0.0]));
        assert_eq!(cost(&job(0.5, 2.0), &[0.0; 4]), (2.5, vec![0.5, 1.0, 0.5, 0.0]));
        // To wait for a second costs one, to go on at once three.
        assert_eq!(cost(&job(0.0, 1.0), &[3.0, 0.0, 0.0, 0.0]), (2.0, vec![0.0, 1.0, 0.0, 0.0]));
        assert_eq!(cost(&job(0.0, 1.0), &[0.5, 0.0, 0.0, 0.0]), (1.5, vec![1.0, 0.0, 0.0, 0.0]));
        // Half of the dear second is given back for half of the next.
        let (sum, progress) = cost(&job(0.0, 1.5), &[4.0, 0.0, 0.0, 0.0]);
        assert_eq!((sum, progress), (2.5, vec![0.0, 1.0, 0.5, 0.0]));
        // Beyond the last step time is free.
        assert_eq!(cost(&job(0.0, 1.0), &[9.0, 9.0]), (3.0, vec![0.0, 0.0]));
        // It does not end before it can.
        assert_eq!(cost(&Job { earliest: 3.0, ..job(0.0, 1.0) }, &[1.0, 0.0, 2.0, 2.0]).0, 3.0);
    }
}
