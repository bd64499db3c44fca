//! Several users under `adaptive`: who waits for whom.

#![allow(clippy::unwrap_used, reason = "a test that fails says so by panicking")]

mod support;

use carma_core::model::SharingMode;
use carma_core::policy::{Allowance, Objective, presets};
use carma_core::units::Millis;
use carma_hardware::GpuTypes;
use carma_sim::event::knowledge::RunTimesKnown;
use carma_sim::event::outcome::JobOutcome;
use carma_sim::event::{Cluster, Setup, simulate};
use carma_sim::trace::{WorkJob, Workload};
use std::sync::Arc;
use support::task;

/// Jobs of one user: how many, the first when, and how long after each other, minutes.
struct Stream {
    user: u32,
    jobs: u32,
    from: u64,
    every: u64,
}

/// Three kinds of tasks, and run times from 10 to 45 minutes that repeat.
fn workload(streams: &[Stream]) -> Workload {
    let tasks = [task("light", 8, 0.3), task("medium", 14, 0.6), task("heavy", 22, 0.95)];
    let mut jobs = Vec::new();
    for stream in streams {
        for n in 0..stream.jobs {
            jobs.push(WorkJob {
                line: 0,
                id: format!("{}-{n}", stream.user).into(),
                arrival: Millis::secs(60 * (stream.from + u64::from(n) * stream.every)),
                duration: Millis::secs(60 * (10 + u64::from(n * 7 + stream.user * 3) % 36)),
                gpus: 1,
                user: stream.user,
                threads: None,
                task: Arc::clone(&tasks[(n + stream.user) as usize % tasks.len()]),
            });
        }
    }
    jobs.sort_by_key(|job| job.arrival);
    let users = streams.iter().map(|stream| stream.user).max().unwrap_or(0) + 1;
    Workload {
        name: "users".into(),
        users: (0..users).map(|user| format!("u{user}").into()).collect(),
        jobs: (1..).zip(jobs).map(|(line, job)| WorkJob { line, ..job }).collect(),
        notes: Vec::new(),
    }
}

/// The same jobs, all of one user.
fn as_one(workload: &Workload) -> Workload {
    let jobs = workload.jobs.iter().map(|job| WorkJob { user: 0, ..job.clone() });
    Workload { users: vec!["all".into()], jobs: jobs.collect(), ..workload.clone() }
}

fn setup(objective: Objective, shares: &[(u32, u32)]) -> Setup {
    let mut setup = Setup::new(presets::adaptive(objective), SharingMode::Mps, None, 7);
    setup.knowledge.run_times = RunTimesKnown::True;
    for (user, share) in shares {
        // The simulator numbers users from 1000 on.
        let allowance = setup.options.allowances.of(1000 + user);
        let allowance = Allowance { share: *share, ..allowance };
        setup.options.allowances.set(1000 + user, allowance);
    }
    setup
}

/// Mean wait and mean time to completion of each user's jobs, minutes, by whose jobs they are in the workload.
fn means(workload: &Workload, played: &Workload, setup: &Setup) -> Vec<(f64, f64)> {
    let cluster = Cluster::parse("4xA100-40GB", &GpuTypes::built_in()).unwrap();
    let run = simulate(played, &cluster, setup, &|_| ());
    assert_eq!(run.summary.not_completed, 0);
    let of = |user: u32| {
        let jobs =
            || workload.jobs.iter().zip(&run.jobs).filter(move |(job, _)| job.user == user).map(|(_, j)| j);
        let mean = |time: &dyn Fn(&JobOutcome) -> Millis| {
            jobs().map(|job| time(job).since(job.arrival).0 as f64 / 60_000.0).sum::<f64>()
                / jobs().count() as f64
        };
        (mean(&|job| job.first_start.unwrap()), mean(&|job| job.end.unwrap()))
    };
    (0..workload.users.len() as u32).map(of).collect()
}

fn print(what: &str, means: &[(f64, f64)]) {
    let text: Vec<String> = means
        .iter()
        .enumerate()
        .map(|(user, (wait, jct))| format!("u{user} waits {wait:.1}, is done after {jct:.1}"))
        .collect();
    println!("{what}: {} (means, minutes)", text.join("; "));
}

#[test]
fn ten_times_the_jobs_of_another_are_not_waited_for() {
    for later in [0, 10, 60] {
        let both = workload(&[
            Stream { user: 0, jobs: 100, from: 0, every: 0 },
            Stream { user: 1, jobs: 10, from: later, every: 0 },
        ]);
        let with = means(&both, &both, &setup(Objective::Jct, &[]));
        let without = means(&both, &as_one(&both), &setup(Objective::Jct, &[]));
        print(&format!("{later} min later, each user's own"), &with);
        print(&format!("{later} min later, all as one user's"), &without);
        let [(many, many_done), (few, _)] = with[..] else { unreachable!() };
        assert!(few * 2.5 < many && few * 2.5 < without[1].0, "{later}: {with:?} {without:?}");
        // Where running jobs did not tell how much memory their commands take, the one waited for 80 and the other for 254.
        assert!(few < 65.0 && many < 190.0, "{later}: {with:?}");
        // Who has many jobs loses little by that.
        assert!(many_done < without[0].1 * 1.25, "{later}: {with:?} {without:?}");
    }
}

#[test]
fn with_that_objective_who_has_had_less_waits_less() {
    let both = workload(&[
        Stream { user: 0, jobs: 100, from: 0, every: 0 },
        Stream { user: 1, jobs: 10, from: 10, every: 0 },
    ]);
    let [usual, fair] = [Objective::Jct, Objective::Fair].map(|it| means(&both, &both, &setup(it, &[])));
    print("10 min later, objective jct", &usual);
    print("10 min later, objective fair", &fair);
    assert!(fair[1].0 < usual[1].0 * 0.9 && fair[0].0 < usual[0].0 * 1.1, "{fair:?} {usual:?}");
}

#[test]
fn equal_users_wait_alike_and_a_larger_share_waits_less() {
    let streams = [0, 1].map(|user| Stream { user, jobs: 40, from: 0, every: 0 });
    let both = workload(&streams);
    let equal = means(&both, &both, &setup(Objective::Jct, &[]));
    let larger = means(&both, &both, &setup(Objective::Jct, &[(1, 3)]));
    print("equal shares", &equal);
    print("shares 1 and 3", &larger);
    assert!((equal[0].0 / equal[1].0 - 1.0).abs() < 0.2, "{equal:?}");
    // Bounds are later by half of the backlog among users, so that parts show less in them.
    assert!(larger[1].0 < equal[1].0 * 0.8 && larger[0].0 > larger[1].0 * 1.3, "{larger:?}");
    assert!(equal.iter().all(|(wait, _)| *wait < 135.0) && larger[0].0 < 155.0, "{equal:?} {larger:?}");
}

/// What is fair between users must not cost all of them: jobs are done as early as if all were one user's.
#[test]
fn many_users_are_served_as_early_as_one() {
    for users in [5u32, 20] {
        let streams = (0..users).map(|user| Stream {
            user,
            jobs: 120 / users,
            from: u64::from(user * 7 % 60),
            every: 10,
        });
        let all = workload(&streams.collect::<Vec<_>>());
        let done = |played: &Workload| {
            let means = means(&all, played, &setup(Objective::Jct, &[]));
            means.iter().map(|(_, done)| done).sum::<f64>() / means.len() as f64
        };
        let (with, without) = (done(&all), done(&as_one(&all)));
        println!("{users} users: done after {with:.1} min, {without:.1} as one user's");
        assert!(with < without * 1.05, "{users} users: {with} {without}");
    }
}
