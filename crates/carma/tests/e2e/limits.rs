//! `[limits]`: what one user may have, who is told so how, and that nobody else waits for it.

use crate::support::{Daemon, Setup, job, stderr, stdout};
use crate::users::{ready, submit_as};
use std::process::Output;

fn submit(daemon: &Daemon, user: &str, words: &[&str]) -> Output {
    let mut all = vec!["submit", "--parsable"];
    all.extend(words);
    daemon.carma_as(user, &all)
}

#[track_caller]
fn refused(output: &Output, code: i32, parts: &[&str]) {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{text}");
    for part in parts {
        assert!(text.contains(part), "no '{part}' in: {text}");
    }
}

fn ids(output: &Output) -> Vec<u64> {
    stdout(output).lines().map(|line| line.trim().parse().unwrap()).collect()
}

#[test]
fn nobody_goes_before_the_others_by_a_number() {
    if !ready() {
        return;
    }
    let daemon = Setup::new("virtual:1xA100-40GB").start();
    let output = submit(&daemon, "carma-bob", &["--priority", "2147483647", "--", "true"]);
    refused(&output, 77, &["priority 2147483647 is above 0", "limits.priority-max", "operators and root"]);
    let output = submit(&daemon, "carma-bob", &["--priority=-1001", "--", "true"]);
    refused(&output, 77, &["below -1000"]);
    let low = submit_as(&daemon, "carma-bob", &["--priority=-1000", "--", "true"]);
    assert_eq!(daemon.end_of(low).job.state, "COMPLETED");
    assert!(daemon.carma(&["submit", "--priority", "5", "--", "true"]).status.success(), "root may");
}

#[test]
fn a_user_has_so_many_jobs_waiting() {
    if !ready() {
        return;
    }
    let config = "[limits]\npending-jobs = 5\n[limits.user.carma-alice]\npending-jobs = 7\n\
                  [limits.group.carma-bob]\npending-jobs = 6\n";
    let mut daemon = Setup::new("virtual:1xA100-40GB").config(config).start();
    // In bulk: those that are accepted are told, the first that is too much ends it.
    let output = submit(&daemon, "carma-bob", &["--hold", "--repeat", "10", "--", "true"]);
    let told =
        ["you have 6 jobs waiting", "limits.pending-jobs", "cancel some", "6 of 10 jobs were submitted"];
    refused(&output, 75, &told);
    let of_bob = ids(&output);
    assert_eq!(of_bob.len(), 6);
    let output = submit(&daemon, "carma-alice", &["--hold", "--repeat", "10", "--", "true"]);
    refused(&output, 75, &["you have 7 jobs waiting"]);
    // The numbers hold after a restart, and a place is free when a job is gone.
    daemon.kill();
    daemon.restart(&[]);
    refused(&submit(&daemon, "carma-bob", &["--", "true"]), 75, &["6 jobs waiting"]);
    assert!(daemon.carma_as("carma-bob", &["cancel", &of_bob[0].to_string()]).status.success());
    assert!(submit(&daemon, "carma-bob", &["--hold", "--", "true"]).status.success());
    // Root has no limit.
    let output = daemon.carma(&["submit", "--hold", "--repeat", "20", "--", "true"]);
    assert!(output.status.success(), "{}", stderr(&output));
}

/// 60 held jobs with 3.9 MB of environment each made a database of 231 MiB.
#[test]
fn environments_take_so_much() {
    if !ready() {
        return;
    }
    let config = "[limits]\nenvironment = '1M'\nenvironment-total = '3M'\n";
    let mut daemon = Setup::new("virtual:1xA100-40GB").config(config).start();
    // The kernel passes at most 128 KiB in one variable.
    let variables = |of: usize, n: usize| -> Vec<String> {
        (0..n).map(|i| format!("--env=V{i}={of}{}", "x".repeat(100_000))).collect()
    };
    let submit = |daemon: &Daemon, of: usize, n: usize| {
        let variables = variables(of, n);
        let mut words: Vec<&str> = variables.iter().map(String::as_str).collect();
        words.extend(["--hold", "--", "true"]);
        submit(daemon, "carma-bob", &words)
    };
    refused(&submit(&daemon, 0, 11), 77, &["the job's environment takes", "limits.environment)"]);
    for of in 0..3 {
        let output = submit(&daemon, of, 9);
        assert!(output.status.success(), "{of}: {}", stderr(&output));
    }
    refused(&submit(&daemon, 3, 9), 75, &["limits.environment-total", "counts once"]);
    // The same environment again takes no more.
    for _ in 0..5 {
        assert!(submit(&daemon, 0, 9).status.success());
    }
    daemon.kill();
    daemon.restart(&[]);
    refused(&submit(&daemon, 3, 9), 75, &["environment-total"]);
    assert!(daemon.carma(&["cancel", "2"]).status.success());
    let output = submit(&daemon, 3, 9);
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn jobs_beyond_a_users_number_wait_and_keep_nobody_else_waiting() {
    if !ready() {
        return;
    }
    let config = "policy = 'exclusive'\n[limits]\ngpus = 2\n[limits.user.carma-alice]\nrunning-jobs = 1\n";
    let mut daemon = Setup::new("virtual:4xA100-40GB").config(config).start();
    refused(
        &submit(&daemon, "carma-bob", &["--gpus", "3", "--", "true"]),
        77,
        &["asks for 3 GPUs, and you may have 2 at once"],
    );
    let sleep = ["--", "sleep", "600"];
    let of_bob: Vec<u64> = (0..3).map(|_| submit_as(&daemon, "carma-bob", &sleep)).collect();
    let of_alice: Vec<u64> = (0..2).map(|_| submit_as(&daemon, "carma-alice", &sleep)).collect();
    for id in [of_bob[0], of_bob[1], of_alice[0]] {
        daemon.in_state(id, "RUNNING");
    }
    let reason = |daemon: &Daemon, id: u64| daemon.show(id).job.reason;
    let told = reason(&daemon, of_bob[2]);
    assert_eq!(told.code, "UserLimit");
    assert_eq!(told.text, "UserLimit(asks for 1 GPU; carma-bob has 2 of at most 2)");
    let told = reason(&daemon, of_alice[1]);
    assert_eq!(told.text, "UserLimit(carma-alice may have 1 job running at once)");
    // One GPU is free, for other users; the limits hold after a restart.
    let root = daemon.submit(job(&["true"]));
    assert_eq!(daemon.end_of(root).job.state, "COMPLETED");
    daemon.kill();
    daemon.restart(&[]);
    assert_eq!(reason(&daemon, of_bob[2]).code, "UserLimit");
    assert!(daemon.carma(&["cancel", &of_bob[0].to_string()]).status.success());
    daemon.in_state(of_bob[2], "RUNNING");
    assert_eq!(reason(&daemon, of_alice[1]).code, "UserLimit");
}
