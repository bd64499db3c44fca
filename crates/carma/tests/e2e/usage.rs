//! `carma usage`: what users have had, who sees whose, and that a daemon that dies forgets nothing of it.

use crate::support::{Daemon, Setup, stderr, stdout, task, until};
use crate::users::{ready, submit_as};
use carma_api::wire::{UsageReply, UsageView};
use std::time::Duration;

fn usage(daemon: &Daemon, user: &str) -> UsageReply {
    let output = daemon.carma_as(user, &["usage", "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_str(&stdout(&output)).unwrap()
}

fn names(reply: &UsageReply) -> Vec<&str> {
    reply.users.iter().map(|row| row.user.as_str()).collect()
}

fn row(reply: &UsageReply, user: &str) -> UsageView {
    reply.users.iter().find(|row| row.user == user).unwrap().clone()
}

#[test]
fn users_see_what_they_have_had() {
    if !ready() {
        return;
    }
    let config = "policy = 'or-magm'\n[gate]\nenabled = false\n[sampling]\nwindow = '1s'\n[limits]\ngpu-hours = 100\n\
                  [limits.user.carma-alice]\nshare = 3\nenergy = '5 kWh'\n[limits.user.carma-bob]\ngpu-hours = 0\n";
    let mut daemon = Setup::new("virtual:1xA100-40GB").config(config).start();
    let carma = daemon.binary_for_all();
    let task = ["--", carma.to_str().unwrap(), "virtual-task", "--memory", "4G", "--work", "2s"];
    let first = submit_as(&daemon, "carma-alice", &task);
    daemon.in_state(first, "RUNNING");
    let second = submit_as(&daemon, "carma-alice", &["--", "sleep", "600"]);
    daemon.end_of(first);
    daemon.in_state(second, "RUNNING");
    let of_bob = submit_as(&daemon, "carma-bob", &["--", "true"]);
    let told = until("a reason", || {
        Some(daemon.show(of_bob).job.reason).filter(|reason| reason.code == "UserLimit")
    });
    let begin = "UserLimit(carma-bob has used 0.0 of 0 GPU-hours in this period; the next one begins in ";
    assert!(told.text.starts_with(begin), "{}", told.text);
    let of_another = stdout(&daemon.carma_as("carma-alice", &["queue", "--json"]));
    assert!(
        of_another.contains("carma-bob has used up a quota") && !of_another.contains("GPU-hours"),
        "{of_another}"
    );

    let alice = usage(&daemon, "carma-alice");
    assert_eq!(names(&alice), ["carma-alice"]);
    let others = alice.others.clone().unwrap();
    assert_eq!((others.users, others.waiting, others.held_gpu_s), (1, 1, 0.0));
    let had = row(&alice, "carma-alice");
    assert_eq!((had.running, had.waiting, had.share), (1, 0, 3));
    assert!(had.held_gpu_s >= had.charged_gpu_s && had.charged_gpu_s >= 2.0, "{had:?}");
    assert!(had.progress_gpu_s > 0.0 && had.progress_gpu_s <= had.held_gpu_s, "{had:?}");
    assert!(had.energy_j.is_some_and(|joules| joules > 0.0), "a virtual GPU has a counter: {had:?}");
    assert_eq!((had.quota_gpu_s, had.quota_energy_j), (Some(360_000.0), Some(18_000_000.0)));
    assert!((had.period_gpu_s - had.charged_gpu_s).abs() < 1e-6 && had.lately_gpu_s > 0.0, "{had:?}");

    // Others' accounts are theirs and the operators'.
    assert_eq!(names(&usage(&daemon, "carma-bob")), ["carma-bob"]);
    let output = daemon.carma_as("carma-bob", &["usage", "--user", "carma-alice"]);
    assert!(
        !output.status.success() && stderr(&output).contains("no account of 'carma-alice'"),
        "{}",
        stderr(&output)
    );
    let output = daemon.carma_as("carma-bob", &["usage"]);
    assert!(stdout(&output).contains("1 other user: 1 running"), "{}", stdout(&output));
    let all: UsageReply = serde_json::from_str(&stdout(&daemon.carma(&["usage", "--json"]))).unwrap();
    assert_eq!((names(&all), all.others.is_none()), (vec!["carma-alice", "carma-bob"], true));
    let one = stdout(&daemon.carma(&["usage", "--user", "carma-alice"]));
    assert!(one.contains("carma-alice") && !one.contains("carma-bob"), "{one}");

    // A daemon that dies and comes back goes on where it was, also for the time in which there was none.
    daemon.kill();
    daemon.restart(&[]);
    let later = row(&usage(&daemon, "carma-alice"), "carma-alice");
    assert!(later.charged_gpu_s > had.charged_gpu_s && later.share == 3, "{later:?}");
    // Its joules go on with the next reading of the counter.
    until("energy", || {
        Some(row(&usage(&daemon, "carma-alice"), "carma-alice")).filter(|row| row.energy_j >= had.energy_j)
    });
}

#[test]
fn the_joules_of_jobs_and_what_was_idle_are_what_the_counters_went_on_by() {
    let config = "policy = 'or-magm'\n[gate]\nenabled = false\n[sampling]\nwindow = '1s'\n";
    let daemon = Setup::new("virtual:2xA100-40GB").config(config).args(&["--speed", "10"]).start();
    let work = |work: &str, sm: &str| task(&["--memory=4G", work, sm], Some(6));
    let mut ids = vec![daemon.submit(work("--work=15s", "--sm=0.4"))];
    daemon.in_state(ids[0], "RUNNING");
    // What the counters said when the daemon began to divide. A reading is shown a moment before it is divided, so that a single
    // answer may have more: the least of some.
    let begun = |daemon: &Daemon| -> Vec<f64> {
        let one = || -> Vec<f64> {
            let gpus = daemon.gpus().gpus;
            gpus.iter().map(|gpu| gpu.energy_j.unwrap() - gpu.metered.as_ref().unwrap().counter_j).collect()
        };
        (0..20).map(|_| one()).fold(vec![f64::INFINITY; 2], |least, now| {
            std::thread::sleep(Duration::from_millis(20));
            least.into_iter().zip(now).map(|(a, b)| a.min(b)).collect()
        })
    };
    let before = begun(&daemon);
    ids.extend(["--sm=0.2", "--sm=0.6", "--sm=0.3"].map(|sm| daemon.submit(work("--work=30s", sm))));
    ids.iter().for_each(|id| drop(daemon.end_of(*id)));
    let last = daemon.submit(work("--work=40s", "--sm=0.5"));
    let so_far = until("some energy", || daemon.show(last).job.energy_j.filter(|joules| *joules > 0.0));
    assert!(daemon.end_of(last).job.energy_j.unwrap() >= so_far);

    let history: carma_api::wire::JobsReply = daemon.client().get("/v1/history").unwrap();
    let jobs: f64 = history.jobs.iter().map(|job| job.energy_j.unwrap()).sum();
    let reply: UsageReply = daemon.client().get("/v1/usage").unwrap();
    let of_users: f64 = reply.users.iter().map(|user| user.energy_j.unwrap()).sum();
    let of_gpus: f64 = reply.gpus.iter().map(|gpu| gpu.jobs_j).sum();
    assert!((jobs - of_users).abs() < 0.01 && (jobs - of_gpus).abs() < 0.01, "{jobs} {of_users} {of_gpus}");
    for gpu in &reply.gpus {
        assert!((gpu.jobs_j + gpu.idle_j + gpu.others_j - gpu.counter_j).abs() < 0.01, "{gpu:?}");
        assert!(gpu.idle_j > 0.0 && gpu.resets == 0, "{gpu:?}");
        // A process that is seen just as its job begins or ends may not be known as the job's in that look.
        assert!(gpu.others_j < 0.01 * gpu.counter_j, "{gpu:?}");
    }
    assert!(jobs > 0.3 * reply.gpus.iter().map(|gpu| gpu.counter_j).sum::<f64>(), "{reply:?}");
    // And the counters say so themselves.
    for (was, is) in before.iter().zip(begun(&daemon)) {
        let counter: f64 = reply.gpus.iter().map(|gpu| gpu.counter_j).sum();
        assert!((was - is).abs() < 0.01 * counter, "{before:?} {is} {counter}");
    }
    let text = stdout(&daemon.carma(&["show", &last.to_string()]));
    assert!(text.contains("energy:"), "{text}");
    assert!(stdout(&daemon.carma(&["gpus"])).contains("by jobs, "));
}
