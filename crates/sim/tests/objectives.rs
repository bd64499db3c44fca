//! What the objectives of `adaptive` trade against each other.

#![allow(clippy::unwrap_used, reason = "a test that fails says so by panicking")]

mod support;

use carma_core::model::SharingMode;
use carma_core::policy::{Objective, presets};
use carma_core::units::Millis;
use carma_hardware::GpuTypes;
use carma_sim::event::knowledge::RunTimesKnown;
use carma_sim::event::outcome::Summary;
use carma_sim::event::{Cluster, Setup, simulate};
use carma_sim::trace::{WorkJob, Workload};
use std::sync::Arc;
use support::task;

/// Jobs of three kinds that come so many seconds after each other, each for 10 to 45 minutes; every eighth four times as long.
fn workload(jobs: u64, every_s: u64) -> Workload {
    let tasks = [task("light", 4, 0.2), task("medium", 8, 0.4), task("heavy", 12, 0.7)];
    let job = |n: u64| WorkJob {
        line: n + 1,
        id: n.to_string().into(),
        arrival: Millis::secs(n * every_s),
        duration: Millis::secs(60 * (10 + n * 7 % 36) * if n % 8 == 7 { 4 } else { 1 }),
        gpus: 1,
        user: 0,
        threads: None,
        task: Arc::clone(&tasks[n as usize % tasks.len()]),
    };
    let (name, users) = ("objectives".into(), vec!["all".into()]);
    Workload { name, users, jobs: (0..jobs).map(job).collect(), notes: Vec::new() }
}

fn played(workload: &Workload, objective: Objective) -> Summary {
    let cluster = Cluster::parse("4xA100-40GB", &GpuTypes::built_in()).unwrap();
    let mut setup = Setup::new(presets::adaptive(objective), SharingMode::Mps, None, 7);
    setup.knowledge.run_times = RunTimesKnown::True;
    let run = simulate(workload, &cluster, &setup, &|_| ());
    assert_eq!(run.summary.not_completed, 0);
    run.summary
}

/// Joules of the GPUs while jobs are on them, over the number of GPUs.
fn busy_j(summary: &Summary) -> f64 {
    summary.active.power_w * summary.busy * summary.makespan_s
}

#[test]
fn for_energy_fewer_joules_on_busy_gpus_where_load_is_light() {
    let light = workload(60, 600);
    let [jct, energy] = [Objective::Jct, Objective::Energy].map(|it| played(&light, it));
    println!(
        "busy GPUs {:.3}, all {:.3}, JCT {:.3} of what they are for jct",
        busy_j(&energy) / busy_j(&jct),
        energy.energy_j / jct.energy_j,
        energy.jct_s.mean / jct.jct_s.mean
    );
    assert!(busy_j(&energy) < 0.97 * busy_j(&jct));
    // No job is below half of its speed.
    assert!(energy.slowdown.max < 2.2, "{}", energy.slowdown.max);
}

#[test]
fn for_the_makespan_the_last_job_ends_no_later_where_many_wait() {
    let heavy = workload(120, 20);
    let [jct, makespan] = [Objective::Jct, Objective::Makespan].map(|it| played(&heavy, it));
    println!(
        "makespan {:.3}, JCT {:.3} of what they are for jct",
        makespan.makespan_s / jct.makespan_s,
        makespan.jct_s.mean / jct.jct_s.mean
    );
    assert!(makespan.makespan_s <= jct.makespan_s);
}
