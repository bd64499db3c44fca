//! Policies side by side: on CARMA's traces beside bound and search, on made-up traces by load, and on a few days of Philly.

use crate::Error;
use crate::figures::{Figures, alone, late};
use crate::limits::SHARING;
use crate::threads::on_threads;
use crate::traces::{self, MACHINE, Named};
use carma_core::model::SharingMode;
use carma_core::policy::presets;
use carma_core::units::Millis;
use carma_sim::event::baselines::Baseline;
use carma_sim::event::knowledge::{Errors, Knowledge, RunTimesKnown, TasksKnown};
use carma_sim::event::outcome::RunResult;
use carma_sim::event::{Cluster, Setup, play};
use carma_sim::trace::draw::{Mix, assign};
use carma_sim::trace::import::{Format, import_file};
use carma_sim::trace::synthesize::{Arrivals, Synthesis, synthesize};
use carma_sim::trace::{Catalogue, Trace, TraceError, Workload};
use serde::Serialize;
use std::path::Path;
use std::time::Instant;

/// The tables, in their order.
pub const TABLES: [&str; 5] = ["traces", "synthetic", "philly", "objectives", "gaps"];

/// Policies that are compared where there are many runs; those that there are not are left out.
pub const FEW: [&str; 6] = ["exclusive", "or-magm", "magm", "gandiva", "carma", "adaptive"];

/// How much is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Threads that run.
    pub threads: usize,
    /// Seed of start-up times and of what is drawn.
    pub seed: u64,
    /// Made-up traces for each load and mix.
    pub repeats: u64,
    /// Jobs in each of them.
    pub jobs: u32,
    /// Days of Philly.
    pub days: u64,
}

impl Size {
    /// What the page is made with.
    #[must_use]
    pub const fn whole(threads: usize, seed: u64) -> Self {
        Self { threads, seed, repeats: 10, jobs: 120, days: 4 }
    }

    /// A little of each, for tests.
    #[must_use]
    pub const fn quick(threads: usize, seed: u64) -> Self {
        Self { threads, seed, repeats: 1, jobs: 30, days: 1 }
    }
}

/// One policy over one or more workloads.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Its name.
    pub policy: String,
    /// Geometric means of the figures.
    pub figures: Figures,
    /// Mean number of attempts out of memory.
    pub oom: f64,
    /// The most of one workload.
    pub most_oom: u64,
    /// Jobs that did not complete although they did on exclusive GPUs, in all.
    pub lost: u64,
    /// The most by which a job first started later than on exclusive GPUs, over exclusive's makespan; not below 0.
    pub later: f64,
    /// The highest mean JCT of any workload over that on exclusive GPUs.
    pub worst_jct: f64,
}

/// All policies on CARMA's traces under one way of sharing.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Traces {
    /// How jobs share.
    pub sharing: String,
    /// One a policy.
    pub rows: Vec<Row>,
}

/// Policies on made-up traces of one load on one cluster.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Load {
    /// The cluster.
    pub cluster: String,
    /// GPU time that the jobs take alone, over the GPUs' time from the first arrival to the last.
    pub load: f64,
    /// Traces.
    pub traces: usize,
    /// One a policy.
    pub rows: Vec<Row>,
}

/// Policies on some days of Philly.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Philly {
    /// The cluster.
    pub cluster: String,
    /// Jobs.
    pub jobs: usize,
    /// Whether the arrivals are Philly's; otherwise independent ones in their place, as many in as long.
    pub recorded: bool,
    /// Mean time from arrival to end on exclusive GPUs, seconds.
    pub exclusive_jct_s: f64,
    /// One a policy, with the seconds that its run took.
    pub rows: Vec<(Row, f64)>,
}

/// Who decides.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Contender {
    pub(crate) name: String,
    who: Who,
}

#[derive(Debug, Clone, PartialEq)]
enum Who {
    Baseline(Baseline),
    /// A preset, and what the core is told of jobs.
    Preset(&'static str, Knowledge),
}

/// Forecasts that are wrong: progress by 30 %, run times by a factor of 2, memory by a quarter. The coins are those of a run's seed.
const WRONG: Errors = Errors { progress: 0.3, run_time: 1.0, memory: 0.25, seed: 0 };

/// `adaptive` as told other things than is usual, which is the tasks of the catalogue and what earlier jobs' run times teach.
fn told() -> [(&'static str, Knowledge); 6] {
    let knows = |run_times| Knowledge { run_times, ..Knowledge::default() };
    let (truth, counted) = (knows(RunTimesKnown::True), knows(RunTimesKnown::Counted));
    [
        ("true run times", truth),
        ("the same, wrong", Knowledge { errors: WRONG, ..truth }),
        ("learned run times, wrong", Knowledge { errors: WRONG, ..Knowledge::default() }),
        ("jobs count", counted),
        ("nothing declared", Knowledge { tasks: TasksKnown::Learned, ..Knowledge::default() }),
        ("nothing declared, jobs count", Knowledge { tasks: TasksKnown::Learned, ..counted }),
    ]
}

impl Contender {
    fn preset(name: &'static str) -> Self {
        Self { name: name.to_owned(), who: Who::Preset(name, Knowledge::default()) }
    }

    /// All presets and baselines.
    fn all() -> Vec<Self> {
        let presets = presets::NAMES.iter().map(|name| Self::preset(name));
        let baselines =
            Baseline::ALL.into_iter().map(|it| Self { name: it.name().to_owned(), who: Who::Baseline(it) });
        presets.chain(baselines).collect()
    }

    /// `adaptive` with other knowledge.
    fn told() -> impl Iterator<Item = Self> {
        told().into_iter().map(|(what, knowledge)| Self {
            name: format!("adaptive, {what}"),
            who: Who::Preset("adaptive", knowledge),
        })
    }

    /// Those of [`FEW`] that there are, in that order.
    fn few() -> Vec<Self> {
        let all = Self::all();
        FEW.iter().filter_map(|name| all.iter().find(|it| it.name == *name)).cloned().collect()
    }

    /// The better ones, and what `adaptive` does after another objective and with other knowledge that is true.
    pub(crate) fn some() -> Vec<Self> {
        let named = ["exclusive", "adaptive", "adaptive:makespan", "gandiva", "or-magm", "sjf-bsbf", "eaco"];
        let all: Vec<Self> = Self::all().into_iter().chain(Self::told()).collect();
        let told = ["adaptive, true run times", "adaptive, nothing declared"];
        named.iter().chain(&told).filter_map(|name| all.iter().find(|it| it.name == *name)).cloned().collect()
    }

    fn setup(&self, sharing: SharingMode, seed: u64) -> Result<Setup, Error> {
        match self.who {
            Who::Baseline(baseline) => Ok(Setup::for_baseline(baseline, sharing, seed)),
            Who::Preset(name, mut knowledge) => {
                knowledge.errors.seed = seed;
                let policy = presets::by_name(name).ok_or_else(|| Error(format!("no preset `{name}`")))?;
                Ok(Setup { knowledge, ..Setup::new(policy, sharing, None, seed) })
            }
        }
    }

    fn run(
        &self,
        workload: &Workload,
        cluster: &Cluster,
        sharing: SharingMode,
        seed: u64,
    ) -> Result<RunResult, Error> {
        let setup = self.setup(sharing, seed)?;
        play(workload, cluster, &setup, &|_| ()).map_err(|e| Error(e.to_string()))
    }
}

/// A run and what exclusive GPUs do.
struct Pair<'a> {
    run: &'a RunResult,
    exclusive: &'a RunResult,
}

fn row(name: &str, pairs: &[Pair]) -> Row {
    let figures: Vec<Figures> =
        pairs.iter().map(|it| Figures::of(&it.run.summary, &it.exclusive.summary)).collect();
    let lost = pairs.iter().map(|it| it.exclusive.summary.completed.saturating_sub(it.run.summary.completed));
    Row {
        policy: name.to_owned(),
        worst_jct: figures.iter().map(|it| it.jct).fold(0.0, f64::max),
        figures: Figures::geometric_mean(&figures),
        oom: pairs.iter().map(|it| it.run.summary.oom as f64).sum::<f64>() / pairs.len().max(1) as f64,
        most_oom: pairs.iter().map(|it| it.run.summary.oom).max().unwrap_or(0),
        lost: lost.sum(),
        later: pairs.iter().map(|it| late(it.run, it.exclusive)).fold(0.0, f64::max),
    }
}

/// A trace on exclusive GPUs, and under each contender.
pub(crate) type Runs = (RunResult, Vec<RunResult>);

/// Each workload on exclusive GPUs and under each contender.
pub(crate) fn side_by_side(
    contenders: &[Contender],
    workloads: &[Workload],
    cluster: &Cluster,
    sharing: SharingMode,
    size: Size,
) -> Result<Vec<Runs>, Error> {
    let one = |workload: &Workload| {
        let base = alone(workload, cluster, size.seed)?;
        let runs = contenders.iter().map(|it| it.run(workload, cluster, sharing, size.seed));
        Ok((base, runs.collect::<Result<Vec<_>, Error>>()?))
    };
    let runs = on_threads(size.threads, workloads.len(), || (), |at, ()| one(&workloads[at]));
    runs.into_iter().collect()
}

/// A row for each contender.
pub(crate) fn rows(contenders: &[Contender], runs: &[Runs]) -> Vec<Row> {
    let of = |(at, contender): (usize, &Contender)| {
        let pairs = runs.iter().map(|(exclusive, runs)| Pair { run: &runs[at], exclusive });
        row(&contender.name, &pairs.collect::<Vec<_>>())
    };
    contenders.iter().enumerate().map(of).collect()
}

/// Every preset and baseline on CARMA's traces, under each way of sharing, and `adaptive` with more, less and wrong knowledge.
///
/// # Errors
/// A policy that cannot be played there.
pub fn carma(named: &[Named], size: Size) -> Result<Vec<Traces>, Error> {
    let cluster = traces::cluster(MACHINE)?;
    let base =
        named.iter().map(|it| alone(&it.workload, &cluster, size.seed)).collect::<Result<Vec<_>, _>>()?;
    let contenders: Vec<Contender> = Contender::all().into_iter().chain(Contender::told()).collect();
    let work: Vec<(SharingMode, &Contender)> =
        SHARING.into_iter().flat_map(|mode| contenders.iter().map(move |it| (mode, it))).collect();
    let rows = on_threads(
        size.threads,
        work.len(),
        || (),
        |at, ()| {
            let (mode, contender) = work[at];
            let runs = named.iter().map(|it| contender.run(&it.workload, &cluster, mode, size.seed));
            let runs = runs.collect::<Result<Vec<_>, _>>()?;
            let pairs = runs.iter().zip(&base).map(|(run, exclusive)| Pair { run, exclusive });
            Ok(row(&contender.name, &pairs.collect::<Vec<_>>()))
        },
    );
    let rows = rows.into_iter().collect::<Result<Vec<Row>, Error>>()?;
    let tables = SHARING.into_iter().zip(rows.chunks(contenders.len()));
    Ok(tables.map(|(mode, rows)| Traces { sharing: mode.to_string(), rows: rows.to_vec() }).collect())
}

/// Clusters of the made-up traces.
const CLUSTERS: [&str; 2] = ["4xH200", "4xV100-32GB"];
/// Their mixes of light, medium and heavy tasks.
pub(crate) const MIXES: [&str; 2] = ["65/27/8", "83/17"];
/// Their loads.
pub(crate) const LOADS: [f64; 5] = [0.6, 1.0, 1.5, 2.2, 3.0];

/// A few policies on made-up traces under MPS, by load. The traces are the same on all clusters but for their arrivals.
///
/// # Errors
/// The catalogue lacks tasks of a weight.
pub fn synthetic(catalogue: &Catalogue, size: Size) -> Result<Vec<Load>, Error> {
    let contenders = Contender::few();
    let mut tables = Vec::new();
    for spec in CLUSTERS {
        let cluster = traces::cluster(spec)?;
        for load in LOADS {
            let workloads = drawn(catalogue, size, load, &cluster)?;
            let runs = side_by_side(&contenders, &workloads, &cluster, SharingMode::Mps, size)?;
            let rows = rows(&contenders, &runs);
            tables.push(Load { cluster: spec.to_owned(), load, traces: workloads.len(), rows });
        }
    }
    Ok(tables)
}

/// Made-up traces of a load, as many of each mix.
pub(crate) fn drawn(
    catalogue: &Catalogue,
    size: Size,
    load: f64,
    cluster: &Cluster,
) -> Result<Vec<Workload>, Error> {
    let seeds = (1..)
        .zip(MIXES)
        .flat_map(|(at, mix)| (0..size.repeats).map(move |n| (mix, size.seed.wrapping_add(1000 * at + n))));
    seeds.map(|(mix, seed)| made_up(catalogue, mix, size, seed, load, cluster)).collect()
}

/// A made-up trace of a load. Tasks do not depend on the gaps between arrivals, so that the gap can be set by what they take.
pub(crate) fn made_up(
    catalogue: &Catalogue,
    mix: &str,
    size: Size,
    seed: u64,
    load: f64,
    cluster: &Cluster,
) -> Result<Workload, Error> {
    let make = |gap| from_synthesis(catalogue, mix, size.jobs, seed, gap);
    let offered: f64 =
        make(Millis::secs(60))?.jobs.iter().map(|job| f64::from(job.gpus) * job.duration.0 as f64).sum();
    let gaps = f64::from(size.jobs.max(2) - 1);
    make(Millis((offered / (load * cluster.len() as f64) / gaps).round().max(1.0) as u64))
}

/// What `carma trace synthesize` makes, resolved.
pub(crate) fn from_synthesis(
    catalogue: &Catalogue,
    mix: &str,
    jobs: u32,
    seed: u64,
    mean_gap: Millis,
) -> Result<Workload, Error> {
    let mix = Mix::parse(mix).map_err(Error)?;
    let what = Synthesis { jobs, mix, arrivals: Arrivals::Poisson, mean_gap, users: 1, seed };
    let trace = synthesize(catalogue, &what).map_err(wrong)?;
    Workload::resolve(&trace, Some(catalogue)).map_err(wrong)
}

#[expect(clippy::needless_pass_by_value, reason = "what `map_err` hands over")]
fn wrong(error: TraceError) -> Error {
    Error(error.to_string())
}

/// Philly's arrivals from this day on.
const FROM: Millis = Millis::secs(30 * DAY_S);
const DAY_S: u64 = 86_400;
/// Jobs that come in four days from then on.
const JOBS: u32 = 8046;
/// The clusters.
const GPUS: [u32; 4] = [33, 50, 66, 100];

/// A few policies under MPS on days of Philly (adaptdl's copy, from day 30 of the trace on), its jobs replaced by the
/// catalogue's tasks at 65/27/8.
///
/// # Errors
/// A file that cannot be read; the catalogue lacks tasks of a weight.
pub fn philly(data: &Path, catalogue: &Catalogue, size: Size) -> Result<Vec<Philly>, Error> {
    let file = data.join("petuum__adaptdl/philly.csv.gz");
    let recorded = file.is_file();
    let mix = Mix::parse(MIXES[0]).map_err(Error)?;
    let span = Millis::secs(size.days * DAY_S);
    let mut trace: Trace = if recorded {
        let mut trace = import_file(Format::Philly, &file).map_err(wrong)?.trace;
        trace.keep_window(FROM, Some(span));
        trace
    } else {
        let jobs = JOBS * size.days as u32 / 4;
        let what = Synthesis {
            jobs,
            mix,
            arrivals: Arrivals::Poisson,
            mean_gap: Millis(span.0 / u64::from(jobs.max(1))),
            users: 1,
            seed: size.seed,
        };
        synthesize(catalogue, &what).map_err(wrong)?
    };
    assign(&mut trace, catalogue, mix, size.seed).map_err(wrong)?;
    let workload = Workload::resolve(&trace, Some(catalogue)).map_err(wrong)?;
    let contenders = Contender::few();
    let mut tables = Vec::new();
    for gpus in GPUS {
        let spec = format!("{gpus}xA100-40GB");
        let cluster = traces::cluster(&spec)?;
        let base = alone(&workload, &cluster, size.seed)?;
        let rows = on_threads(
            size.threads,
            contenders.len(),
            || (),
            |at, ()| {
                let begin = Instant::now();
                let run = contenders[at].run(&workload, &cluster, SharingMode::Mps, size.seed)?;
                let took = begin.elapsed().as_secs_f64();
                Ok((row(&contenders[at].name, &[Pair { run: &run, exclusive: &base }]), took))
            },
        );
        tables.push(Philly {
            cluster: spec,
            jobs: workload.jobs.len(),
            recorded,
            exclusive_jct_s: base.summary.jct_s.mean,
            rows: rows.into_iter().collect::<Result<_, Error>>()?,
        });
    }
    Ok(tables)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn catalogue() -> Catalogue {
        let text = "task,class,gpus,duration_s,memory_mib,smact\n\
                    light,light,1,300,2000,0.1\nmedium,medium,1,900,8000,0.5\nheavy,heavy,2,1800,20000,0.9\n";
        Catalogue::read(text.as_bytes(), Path::new("tasks.csv")).unwrap()
    }

    #[test]
    fn a_made_up_trace_offers_the_load() {
        let cluster = traces::cluster("4xH200").unwrap();
        let size = Size { jobs: 2000, ..Size::quick(1, 1) };
        for load in LOADS {
            let workload = made_up(&catalogue(), "65/27/8", size, 5, load, &cluster).unwrap();
            let offered: f64 =
                workload.jobs.iter().map(|job| f64::from(job.gpus) * job.duration.0 as f64).sum();
            let span = workload.jobs.last().unwrap().arrival.0 as f64 * 4.0;
            assert!((offered / span / load - 1.0).abs() < 0.1, "{} at {load}", offered / span);
        }
    }

    #[test]
    fn the_worst_start_is_the_one_that_is_latest_over_exclusive() {
        let cluster = traces::cluster("1xCUSTOM-40GB").unwrap();
        let workload = made_up(&catalogue(), "83/17", Size::quick(1, 1), 2, 2.0, &cluster).unwrap();
        let base = alone(&workload, &cluster, 1).unwrap();
        assert_eq!(late(&base, &base), 0.0);
        let mut run = base.clone();
        let at = run.jobs.iter().position(|job| job.first_start.is_some()).unwrap();
        let by = Millis((base.summary.makespan_s * 250.0) as u64);
        run.jobs[at].first_start = run.jobs[at].first_start.map(|start| start + by);
        assert!((late(&run, &base) - 0.25).abs() < 1e-3);
        let row = row("x", &[Pair { run: &run, exclusive: &base }]);
        assert_eq!((row.figures.makespan, row.figures.jct, row.lost), (1.0, 1.0, 0));
    }

    #[test]
    fn the_same_rows_come_of_any_number_of_threads() {
        let small = Size { jobs: 12, ..Size::quick(1, 1) };
        let one = synthetic(&catalogue(), small).unwrap();
        assert_eq!(synthetic(&catalogue(), Size { threads: 3, ..small }).unwrap(), one);
        assert_eq!(one.len(), CLUSTERS.len() * LOADS.len());
        for table in &one {
            assert_eq!((table.rows[0].policy.as_str(), table.traces), ("exclusive", MIXES.len()));
            let figures = table.rows[0].figures;
            assert!((figures.makespan - 1.0).abs() < 1e-9 && (figures.slowdown_p95 - 1.0).abs() < 1e-9);
        }
    }

    #[test]
    fn every_policy_has_a_name_and_those_of_the_few_that_there_are_come_in_their_order() {
        assert_eq!(Contender::all().len(), presets::NAMES.len() + Baseline::ALL.len());
        let few: Vec<String> = Contender::few().into_iter().map(|it| it.name).collect();
        assert!(few.iter().zip(FEW).all(|(name, known)| name == known) && few.len() >= 5, "{few:?}");
    }
}
