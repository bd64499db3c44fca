//! Policies on made-up traces of given gaps between arrivals, on three clusters and under both ways of sharing.

use crate::Error;
use crate::compare::{Contender, MIXES, Row, Runs, Size, from_synthesis, rows, side_by_side};
use crate::figures::{geometric_mean, ratio};
use crate::limits::SHARING;
use crate::traces;
use carma_core::units::Millis;
use carma_sim::event::outcome::RunResult;
use carma_sim::trace::Catalogue;
use serde::Serialize;

/// The clusters.
const CLUSTERS: [&str; 3] = ["4xA100-40GB", "4xH200", "4xV100-32GB"];
/// Jobs of a trace and the mean gap between them, seconds.
const SHAPES: [(u32, u64); 4] = [(60, 120), (60, 60), (60, 300), (120, 150)];
/// The traces of a shape have the seeds after this one.
const SEEDS: u64 = 9100;
/// Those with the shortest makespan, which the makespan of `adaptive` is set against.
const SHORTEST: [&str; 2] = ["gandiva", "or-magm"];

/// Policies on all traces on one cluster.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Gaps {
    /// The cluster.
    pub cluster: String,
    /// How jobs share.
    pub sharing: String,
    /// Traces.
    pub traces: usize,
    /// One a policy.
    pub rows: Vec<Row>,
    /// One a shape.
    pub shapes: Vec<Shape>,
}

/// Traces of one shape: the makespan under `adaptive` over that under the better of `gandiva` and `or-magm`, by trace.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Shape {
    /// Jobs of a trace.
    pub jobs: u32,
    /// Mean gap between arrivals, seconds.
    pub gap_s: u64,
    /// Geometric mean.
    pub mean: f64,
    /// The largest.
    pub worst: f64,
}

/// A few policies, `adaptive` with other knowledge among them, on traces of CARMA's first mix.
///
/// # Errors
/// The catalogue lacks tasks of a weight.
pub fn gaps(catalogue: &Catalogue, size: Size) -> Result<Vec<Gaps>, Error> {
    // Fewer and smaller where the size is that of a try.
    let whole = Size::whole(size.threads, size.seed);
    let (repeats, smaller) = (size.repeats.min(8), whole.jobs / size.jobs.max(1));
    let shapes = SHAPES.map(|(jobs, gap)| (jobs / smaller.max(1), gap));
    let mut workloads = Vec::new();
    for (jobs, gap) in shapes {
        for seed in 1..=repeats {
            let seed = SEEDS + seed;
            workloads.push(from_synthesis(catalogue, MIXES[0], jobs, seed, Millis::secs(gap))?);
        }
    }
    let contenders = Contender::some();
    let mut tables = Vec::new();
    for spec in CLUSTERS {
        let cluster = traces::cluster(spec)?;
        for sharing in SHARING {
            let runs = side_by_side(&contenders, &workloads, &cluster, sharing, size)?;
            let makespan = |name: &str, runs: &[RunResult]| {
                let at = contenders.iter().position(|it| it.name == name);
                at.map_or(f64::INFINITY, |at| runs[at].summary.makespan_s)
            };
            let over = |runs: &[RunResult]| {
                let best = SHORTEST.iter().map(|name| makespan(name, runs)).fold(f64::INFINITY, f64::min);
                ratio(makespan("adaptive", runs), best)
            };
            let shape = |((jobs, gap_s), runs): ((u32, u64), &[Runs])| {
                let each: Vec<f64> = runs.iter().map(|(_, runs)| over(runs)).collect();
                let worst = each.iter().copied().fold(0.0, f64::max);
                Shape { jobs, gap_s, mean: geometric_mean(each.into_iter()), worst }
            };
            tables.push(Gaps {
                cluster: spec.to_owned(),
                sharing: sharing.to_string(),
                traces: workloads.len(),
                rows: rows(&contenders, &runs),
                shapes: shapes.into_iter().zip(runs.chunks(repeats as usize)).map(shape).collect(),
            });
        }
    }
    Ok(tables)
}
