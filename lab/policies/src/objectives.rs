//! The objectives of `adaptive` side by side: what each brings and costs, where four users share the GPUs.

use crate::Error;
use crate::compare::{LOADS, Size, drawn};
use crate::figures::{alone, geometric_mean, ratio};
use crate::threads::on_threads;
use crate::traces::{self, MACHINE, Named};
use carma_core::model::SharingMode;
use carma_core::policy::{Objective, presets};
use carma_core::units::Millis;
use carma_sim::event::knowledge::{Knowledge, RunTimesKnown};
use carma_sim::event::outcome::{RunResult, Summary};
use carma_sim::event::{Cluster, Setup, simulate};
use carma_sim::trace::{Catalogue, Workload};
use serde::Serialize;

/// Users of each trace.
const USERS: u32 = 4;

/// When each user of the bursts submits all of the own jobs, minutes, and how many of twelve these are.
const BURSTS: [(u64, usize); USERS as usize] = [(0, 6), (30, 3), (90, 2), (120, 1)];

/// One objective over the traces of a case.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Its name.
    pub objective: &'static str,
    /// Makespan over that on exclusive GPUs, as all figures but for those of users the geometric mean.
    pub makespan: f64,
    /// Mean JCT over that on exclusive GPUs.
    pub jct: f64,
    /// 95th percentile of the time on GPUs over the time alone.
    pub slowdown_p95: f64,
    /// Energy of all GPUs from the first arrival to the last end, over that on exclusive GPUs.
    pub energy: f64,
    /// Energy of the GPUs while jobs are on them, over that on exclusive GPUs.
    pub energy_busy: f64,
    /// [`evenness`] of what users got done, mean of the traces that have one.
    pub evenness: Option<f64>,
    /// Largest mean slowdown of a user (JCT over run time alone) over the smallest.
    pub spread: f64,
}

/// All objectives on some traces.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Case {
    /// Which traces.
    pub what: String,
    /// Whether the core knows each job's run time, and does not learn it from those that are over.
    pub true_run_times: bool,
    /// How many traces.
    pub traces: usize,
    /// One an objective.
    pub rows: Vec<Row>,
}

/// The objectives under MPS on the published traces with run times true and learned, on made-up traces by load, and where
/// each user submits all jobs at once.
///
/// # Errors
/// The catalogue lacks tasks of a weight.
pub fn objectives(named: &[Named], catalogue: &Catalogue, size: Size) -> Result<Vec<Case>, Error> {
    let cluster = traces::cluster(MACHINE)?;
    let published: Vec<Workload> = named.iter().map(|it| of_four_users(&it.workload)).collect();
    let mut cases = Vec::new();
    for true_run_times in [true, false] {
        cases.push(case("T1, T2, H60, M90", &published, &cluster, true_run_times, size)?);
    }
    for load in LOADS {
        let workloads: Vec<Workload> =
            drawn(catalogue, size, load, &cluster)?.iter().map(of_four_users).collect();
        cases.push(case(&format!("load {load:.1}"), &workloads, &cluster, true, size)?);
    }
    let workloads: Vec<Workload> = drawn(catalogue, size, 1.0, &cluster)?.iter().map(in_bursts).collect();
    cases.push(case("bursts", &workloads, &cluster, true, size)?);
    Ok(cases)
}

fn case(
    what: &str,
    workloads: &[Workload],
    cluster: &Cluster,
    true_run_times: bool,
    size: Size,
) -> Result<Case, Error> {
    let run_times = if true_run_times { RunTimesKnown::True } else { RunTimesKnown::Learned };
    let knowledge = Knowledge { run_times, ..Knowledge::default() };
    let runs = on_threads(
        size.threads,
        workloads.len(),
        || (),
        |at, ()| {
            let workload = &workloads[at];
            let runs = Objective::ALL.map(|objective| {
                let setup = Setup::new(presets::adaptive(objective), SharingMode::Mps, None, size.seed);
                simulate(workload, cluster, &Setup { knowledge, ..setup }, &|_| ())
            });
            Ok((alone(workload, cluster, size.seed)?, runs))
        },
    );
    let runs = runs.into_iter().collect::<Result<Vec<_>, Error>>()?;
    let row = |(at, objective): (usize, Objective)| {
        let over = |of: &dyn Fn(&Summary) -> f64| {
            let each = runs.iter().map(|(base, runs)| ratio(of(&runs[at].summary), of(&base.summary)));
            geometric_mean(each)
        };
        let of_users = || runs.iter().zip(workloads).map(|((_, runs), workload)| (workload, &runs[at]));
        let evenness: Vec<f64> = of_users().filter_map(|(workload, run)| evenness(workload, run)).collect();
        Row {
            objective: objective.name(),
            makespan: over(&|s| s.makespan_s),
            jct: over(&|s| s.jct_s.mean),
            slowdown_p95: geometric_mean(runs.iter().map(|(_, runs)| runs[at].summary.slowdown.p95)),
            energy: over(&|s| s.energy_j),
            energy_busy: over(&|s| s.active.power_w * s.busy * s.makespan_s),
            evenness: (!evenness.is_empty()).then(|| evenness.iter().sum::<f64>() / evenness.len() as f64),
            spread: geometric_mean(of_users().map(|(workload, run)| spread(workload, run))),
        }
    };
    Ok(Case {
        what: what.to_owned(),
        true_run_times,
        traces: workloads.len(),
        rows: Objective::ALL.into_iter().enumerate().map(row).collect(),
    })
}

fn names() -> Vec<std::sync::Arc<str>> {
    (0..USERS).map(|user| format!("u{user}").into()).collect()
}

/// The same jobs, half of them of one user and the others of three.
fn of_four_users(workload: &Workload) -> Workload {
    let mut of = workload.clone();
    of.users = names();
    for (at, job) in (1u64..).zip(&mut of.jobs) {
        // Mixed by the golden ratio: neighbours in the trace are not of the same user, and the same in each run.
        let drawn = at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33;
        job.user = if drawn % 2 == 0 { 0 } else { 1 + (drawn / 2 % u64::from(USERS - 1)) as u32 };
    }
    of
}

/// The same jobs, each user's all at once.
fn in_bursts(workload: &Workload) -> Workload {
    let mut of = workload.clone();
    of.users = names();
    for (at, job) in of.jobs.iter_mut().enumerate() {
        let mut left = at % BURSTS.iter().map(|(_, jobs)| jobs).sum::<usize>();
        for (user, (minutes, jobs)) in (0..).zip(BURSTS) {
            if left < jobs {
                (job.user, job.arrival) = (user, Millis::secs(60 * minutes));
                break;
            }
            left -= jobs;
        }
    }
    of.jobs.sort_by_key(|job| job.arrival);
    of
}

/// Whose jobs together get how much done in an hour in which they wait, and another user's too: Jain's index over users, 1
/// where all get as much (Jain, Chiu and Hawe 1984). A job's work is its time alone times its GPUs, and goes on evenly from its first start to its end.
/// `None`: nowhere did two users wait for ten minutes.
fn evenness(workload: &Workload, run: &RunResult) -> Option<f64> {
    const LEAST: f64 = 600_000.0;
    // When, whose, one job more or less that waits, work that begins or ends per millisecond.
    let mut events: Vec<(u64, usize, i64, f64)> = Vec::new();
    for (job, it) in workload.jobs.iter().zip(&run.jobs) {
        let (Some(start), Some(end)) = (it.first_start, it.end) else { continue };
        let pace = f64::from(job.gpus) * job.duration.0 as f64 / end.since(start).0.max(1) as f64;
        let user = job.user as usize;
        events.extend([(it.arrival.0, user, 1, 0.0), (start.0, user, -1, pace), (end.0, user, 0, -pace)]);
    }
    events.sort_by_key(|(at, ..)| *at);
    #[derive(Clone, Copy, Default)]
    struct User {
        waits: i64,
        pace: f64,
        done: f64,
        time: f64,
    }
    let (mut users, mut last) = (vec![User::default(); workload.users.len()], 0);
    for (at, whose, waits, pace) in events {
        let span = (at - last) as f64;
        last = at;
        if users.iter().filter(|user| user.waits > 0).count() > 1 {
            for user in users.iter_mut().filter(|user| user.waits > 0) {
                user.done += user.pace * span;
                user.time += span;
            }
        }
        users[whose].waits += waits;
        users[whose].pace += pace;
    }
    let rates: Vec<f64> =
        users.iter().filter(|user| user.time >= LEAST).map(|user| user.done / user.time).collect();
    let (sum, squares) = (rates.iter().sum::<f64>(), rates.iter().map(|rate| rate * rate).sum::<f64>());
    (rates.len() > 1 && squares > 0.0).then(|| sum * sum / (rates.len() as f64 * squares))
}

fn spread(workload: &Workload, run: &RunResult) -> f64 {
    let mut of = vec![(0.0, 0.0); workload.users.len()];
    for (job, it) in workload.jobs.iter().zip(&run.jobs) {
        if let Some(end) = it.end {
            let (sum, jobs) = &mut of[job.user as usize];
            *sum += ratio(end.since(it.arrival).0 as f64, job.duration.0 as f64);
            *jobs += 1.0;
        }
    }
    let means = || of.iter().filter(|(_, jobs)| *jobs > 0.0).map(|(sum, jobs)| sum / jobs);
    ratio(means().fold(0.0, f64::max), means().fold(f64::INFINITY, f64::min))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::made_up;
    use std::path::Path;

    fn workload(load: f64) -> (Workload, Cluster) {
        let text = "task,class,gpus,duration_s,memory_mib,smact\n\
                    light,light,1,300,2000,0.1\nmedium,medium,1,900,8000,0.5\nheavy,heavy,1,1800,20000,0.9\n";
        let catalogue = Catalogue::read(text.as_bytes(), Path::new("tasks.csv")).unwrap();
        let cluster = traces::cluster(MACHINE).unwrap();
        let size = Size { jobs: 120, ..Size::quick(1, 1) };
        (made_up(&catalogue, "65/27/8", size, 5, load, &cluster).unwrap(), cluster)
    }

    #[test]
    fn half_of_the_jobs_are_the_first_users_and_bursts_keep_all_jobs() {
        let (it, _) = workload(1.0);
        let four = of_four_users(&it);
        let first = four.jobs.iter().filter(|job| job.user == 0).count();
        assert!((it.jobs.len() / 3..=2 * it.jobs.len() / 3).contains(&first), "{first} of {}", it.jobs.len());
        let bursts = in_bursts(&it);
        let count = |user| bursts.jobs.iter().filter(|job| job.user == user).count();
        assert_eq!((0..USERS).map(count).sum::<usize>(), it.jobs.len());
        assert!(count(0) > count(1) && count(1) > count(2) && count(2) > count(3) && count(3) > 0);
    }

    #[test]
    fn evenness_is_one_over_the_users_where_one_gets_all() {
        let (mut it, cluster) = workload(1.0);
        it.jobs.truncate(4);
        it.users = names();
        let mut run = alone(&it, &cluster, 1).unwrap();
        // Two jobs run from the start, of one user or of two; two wait for them, of two users.
        let set = |run: &mut RunResult, at: usize, start, end| {
            run.jobs[at].arrival = Millis::ZERO;
            run.jobs[at].first_start = Some(Millis::secs(start));
            run.jobs[at].end = Some(Millis::secs(end));
        };
        for (at, (start, end)) in [(0, 3600), (0, 3600), (3600, 7200), (3600, 7200)].into_iter().enumerate() {
            set(&mut run, at, start, end);
            (it.jobs[at].duration, it.jobs[at].gpus) = (Millis::secs(3600), 1);
        }
        let even = |users: [u32; 4]| {
            let mut it = it.clone();
            it.jobs.iter_mut().zip(users).for_each(|(job, user)| job.user = user);
            evenness(&it, &run)
        };
        assert_eq!(even([0, 0, 0, 1]), Some(0.5));
        assert_eq!(even([0, 1, 0, 1]), Some(1.0));
        assert_eq!(even([0, 1, 0, 0]), None);
    }

    #[test]
    fn energy_keeps_gpus_idle_where_load_is_light() {
        let (it, cluster) = workload(0.6);
        let size = Size::quick(1, 1);
        let case = case("light", &[of_four_users(&it)], &cluster, true, size).unwrap();
        let row =
            |objective: Objective| case.rows.iter().find(|row| row.objective == objective.name()).unwrap();
        let (jct, energy) = (row(Objective::Jct), row(Objective::Energy));
        assert!(energy.energy_busy < jct.energy_busy, "{case:?}");
    }
}
