//! What a user may see of another user's jobs: who, where, when, how much; never a word of the job's own.

use crate::support::{Daemon, Setup, stderr, stdout, until};
use crate::users::{as_user, ready, submit_as};
use carma_api::Client;
use std::process::Command;

/// In the command, the directory, the name, the environment, the log and the reason of the failure.
const SECRET: &str = "sesame-0815";

/// Jobs of alice in every state, each with the secret wherever a user can put one.
fn jobs_with_secrets(daemon: &Daemon) -> Vec<u64> {
    let home = format!("/tmp/carma-e2e-{SECRET}-{}", daemon.pid());
    let script = format!("{home}/{SECRET}.sh");
    std::fs::create_dir_all(&home).unwrap();
    std::fs::write(
        &script,
        format!("#!/bin/sh\necho 'ValueError: db password is {SECRET}' >&2\nexec sh -c \"$1\"\n"),
    )
    .unwrap();
    let chmod = Command::new("chmod").args(["-R", "755", &home]).status().unwrap();
    assert!(chmod.success());
    let env = format!("PASSWORD={SECRET}");
    let submit = |options: &[&str], command: &[&str]| {
        let mut words = vec!["--env", &env, "--chdir", &home];
        words.extend(options);
        words.push("--");
        words.extend(command);
        submit_as(daemon, "carma-alice", &words)
    };
    let mut ids = vec![
        submit(&[], &[&script, "exit 3"]),
        submit(
            &["--name", SECRET],
            &[&script, "echo CUDA error: an illegal memory access was encountered; exit 1"],
        ),
        submit(&[], &[&script, "echo torch.OutOfMemoryError: CUDA out of memory; exit 1"]),
        submit(&[], &[&script, "echo DefaultCPUAllocator: can\\'t allocate memory; exit 1"]),
        submit(&[], &[&format!("{home}/no-such-{SECRET}")]),
        submit(&["--output", &format!("{home}/no/{SECRET}.log")], &["true"]),
    ];
    // Those that follow stay on all GPUs: what came before would wait for them.
    for id in &ids {
        until("a failure", || daemon.show(*id).job.exit_code.or(daemon.show(*id).job.ended_ms.map(|_| 0)));
    }
    ids.extend([
        submit(&[], &[&script, "sleep 600"]),
        submit(&["--exclusive"], &[&script, "sleep 600"]),
        submit(&["--hold", "--name", SECRET], &[&script, "true"]),
    ]);
    daemon.in_state(ids[6], "RUNNING");
    daemon.in_state(ids[7], "RUNNING");
    // It waits for these: had it come before they ran it could be before them.
    ids.push(submit(&["--exclusive", "--name", SECRET], &[&script, "true"]));
    until("its output", || daemon.output(ids[6]).contains(SECRET).then_some(()));
    ids
}

/// Everything that can be asked.
fn paths(ids: &[u64]) -> Vec<String> {
    let mut paths: Vec<String> =
        ["/v1/status", "/v1/jobs", "/v1/jobs?all=true", "/v1/gpus", "/v1/history", "/v1/memory", "/v1/usage"]
            .map(str::to_owned)
            .to_vec();
    for id in ids {
        paths.push(format!("/v1/jobs/{id}"));
        paths.push(format!("/v1/jobs/{id}/explain"));
        paths.push(format!("/v1/jobs/{id}/wait?timeout_ms=1"));
        paths.push(format!("/v1/slowdowns?jobs={id}"));
    }
    paths
}

/// What the socket answers a user.
fn ask_as(daemon: &Daemon, user: &str, path: &str) -> String {
    let socket = daemon.socket();
    let answer: serde_json::Value = as_user(user, || {
        Client::connect(&socket).unwrap().get(path).unwrap_or_else(|e| panic!("{path}: {e}"))
    });
    answer.to_string()
}

#[test]
fn no_listing_shows_a_word_of_another_users_job() {
    if !ready() {
        return;
    }
    let daemon = Setup::new("virtual:2xA100-40GB").start();
    let ids = jobs_with_secrets(&daemon);
    let mut seen = 0;
    for path in paths(&ids) {
        let of_bob = ask_as(&daemon, "carma-bob", &path);
        assert!(!of_bob.contains(SECRET), "bob asks {path}: {of_bob}");
        seen += usize::from(ask_as(&daemon, "carma-alice", &path).contains(SECRET));
    }
    // The secrets are there for her: queue, history and each job's detail at least.
    assert!(seen > ids.len(), "alice saw it in {seen} answers only");
    for words in [
        vec!["queue", "--all"],
        vec!["queue", "--all", "--json"],
        vec!["history"],
        vec!["history", "--json"],
        vec!["gpus"],
        vec!["gpus", "--json"],
        vec!["history", "export"],
    ] {
        let output = daemon.carma_as("carma-bob", &words);
        assert!(output.status.success(), "{words:?}: {}", stderr(&output));
        assert!(!stdout(&output).contains(SECRET) && !stderr(&output).contains(SECRET), "{words:?}");
    }
    for id in &ids {
        let number = id.to_string();
        for verb in ["show", "explain", "logs"] {
            let output = daemon.carma_as("carma-bob", &[verb, &number]);
            let told = stdout(&output) + &stderr(&output);
            assert!(!told.contains(SECRET), "{verb} {id}: {told}");
        }
    }
    // Of one that waits he sees where in the queue it is and what GPUs say to it; of one that runs beside whom.
    let explained = |id: u64| stdout(&daemon.carma_as("carma-bob", &["explain", &id.to_string()]));
    let waits = explained(ids[9]);
    assert!(waits.contains("1st of 1") && waits.contains(&format!("the end of job {}", ids[6])), "{waits}");
    assert!(explained(ids[6]).contains("it is alone"));
    // He sees whose it is, where it runs and how it ended.
    let of_bob = stdout(&daemon.carma_as("carma-bob", &["show", &ids[0].to_string(), "--json"]));
    for part in ["\"carma-alice\"", "\"FAILED\"", "\"exit_code\": 3", "the command failed: exit code 3"] {
        assert!(of_bob.contains(part), "{part}: {of_bob}");
    }
    // Neither does the daemon's log have a word of it, for submissions, failures and cancels.
    for id in &ids {
        daemon.carma(&["cancel", &id.to_string()]);
        daemon.end_of(*id);
    }
    assert!(!daemon.log().contains(SECRET), "{}", daemon.log());
    let _ = std::fs::remove_dir_all(format!("/tmp/carma-e2e-{SECRET}-{}", daemon.pid()));
}

/// Members of the group do what root may, under their own name; without the group bob is any user.
#[test]
fn operators_see_and_do_what_root_may() {
    if !ready() {
        return;
    }
    let daemon = Setup::new("virtual:1xA100-40GB").config("operators = \"carma-bob\"\n").start();
    let job = ["--env", &format!("A={SECRET}"), "--name", SECRET, "--", "sleep", "600"];
    let id = submit_as(&daemon, "carma-alice", &job);
    daemon.in_state(id, "RUNNING");
    let number = id.to_string();
    let refused = |user: &str, words: &[&str]| {
        let output = daemon.carma_as(user, words);
        assert_eq!(output.status.code(), Some(77), "{user} {words:?}: {}", stderr(&output));
    };
    let done = |user: &str, words: &[&str]| {
        let output = daemon.carma_as(user, words);
        assert!(output.status.success(), "{user} {words:?}: {}", stderr(&output));
        stdout(&output)
    };
    assert!(done("carma-bob", &["show", &number]).contains(SECRET));
    refused("carma-alice", &["drain", "0"]);
    done("carma-bob", &["drain", "0"]);
    done("carma-bob", &["resume", "0"]);
    done("carma-bob", &["requeue", &number]);
    refused("carma-alice", &["submit", "--priority", "1", "--", "true"]);
    let own = submit_as(&daemon, "carma-bob", &["--priority", "1", "--", "true"]);
    done("carma-bob", &["cancel", &number]);
    let over = daemon.end_of(id);
    assert_eq!(over.job.reason.text, "cancelled by carma-bob");
    assert_eq!(daemon.end_of(own).job.user, "carma-bob");
    let log = daemon.log();
    assert!(log.contains("act=\"cancel\"") && log.contains("operator=true"), "{log}");
    // What was decided by an operator is replayed without a user database.
    let socket = daemon.socket();
    let mut daemon = daemon;
    daemon.kill();
    std::fs::write(socket.with_file_name("carma.toml"), "").unwrap();
    daemon.restart(&[]);
    assert_eq!(daemon.show(id).job.state, "CANCELLED");
    let output = daemon.carma_as("carma-bob", &["drain", "0"]);
    assert_eq!(output.status.code(), Some(77), "{}", stderr(&output));
}
