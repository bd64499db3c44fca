//! Jobs that save their work before they go back into the queue.

use crate::support::{Daemon, Setup, job, stderr, stdout, until};
use crate::users::{ready, submit_as};
use carma_api::wire::{CheckpointSignal, SubmitRequest};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

const ONE: &str = "virtual:1xA100-40GB";

/// A line for bash that is asked to save by SIGUSR1, with a home in the daemon's directory.
fn saves(daemon: &Daemon, line: &str, grace_ms: u64) -> SubmitRequest {
    let home = daemon.dir.path().join("home");
    std::fs::create_dir_all(&home).unwrap();
    let mut request = job(&["/bin/bash", "-c", line]);
    request.env.insert("HOME".into(), home.display().to_string());
    request.checkpoint_signal = Some(CheckpointSignal::Usr1);
    request.grace_ms = Some(grace_ms);
    request
}

#[track_caller]
fn says(daemon: &Daemon, id: u64, text: &str) {
    until(&format!("job {id} to say '{text}'; the daemon's log:\n{}", daemon.log()), || {
        // Its log is there once it has begun.
        let log = std::fs::read_to_string(daemon.show(id).log).unwrap_or_default();
        log.contains(text).then_some(())
    });
}

#[track_caller]
fn requeue(daemon: &Daemon, id: u64) -> String {
    let output = daemon.carma(&["requeue", &id.to_string()]);
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output)
}

fn dir_of(daemon: &Daemon, id: u64) -> PathBuf {
    daemon.show(id).checkpoint.unwrap().dir.unwrap().into()
}

/// It counts, and goes on counting where it was.
const COUNTS: &str = "
    at=$CARMA_CHECKPOINT_DIR/count
    n=0; [ $CARMA_RESTART -gt 0 ] && n=$(cat $at)
    echo restart $CARMA_RESTART from $n
    save() { echo $((n + 41)) > $at; echo saved; exit 0; }
    trap save USR1
    [ $n -eq 41 ] && { echo done; exit 0; }
    echo ready; while :; do sleep 0.02; done";

/// `kill -9` of the daemon right after `carma requeue`.
#[test]
fn a_job_saves_its_work_though_the_daemon_dies_before_it_has_asked() {
    let mut daemon = Setup::new(ONE).start();
    let id = daemon.submit(saves(&daemon, COUNTS, 3_600_000));
    says(&daemon, id, "ready");
    daemon.kill();
    daemon.restart(&[("CARMA_FAULT", "after-ending")]);
    // It dies before it has answered.
    daemon.carma(&["requeue", &id.to_string()]);
    daemon.wait_dead();
    daemon.restart(&[]);
    let over = daemon.end_of(id);
    assert_eq!((over.job.state.as_str(), over.attempts.len()), ("COMPLETED", 2), "{}", daemon.log());
    assert!(daemon.output(id).ends_with("restart 1 from 41\ndone\n"), "{}", daemon.output(id));
}

#[test]
fn a_job_saves_its_work_and_goes_on_where_it_was() {
    let daemon = Setup::new(ONE).start();
    let id = daemon.submit(saves(&daemon, COUNTS, 3_600_000));
    says(&daemon, id, "ready");
    let dir = dir_of(&daemon, id);
    let parts: Vec<_> =
        dir.strip_prefix(daemon.dir.path().join("home/.local/state/carma")).unwrap().iter().collect();
    assert!(
        parts.len() == 2 && parts[0].len() == 8 && *parts[1] == *format!("job-{id}"),
        "{}",
        dir.display()
    );
    assert_eq!(std::fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);
    let show = stdout(&daemon.carma(&["show", &id.to_string()]));
    assert!(show.contains("by SIGUSR1, 1 h at most, in") && show.contains(&format!("job-{id}")), "{show}");

    let told = requeue(&daemon, id);
    assert!(told.contains("asked to save its work, for which it has 1 h"), "{told}");
    // Whether it was saved or done only carma knows: code 0 after the signal is saved.
    let over = daemon.end_of(id);
    assert_eq!((over.job.state.as_str(), over.attempts.len()), ("COMPLETED", 2), "{}", daemon.log());
    let first = &over.attempts[0];
    assert_eq!((first.verdict.as_ref().unwrap().code.as_str(), first.exit_code), ("Requeued", Some(0)));
    let output = daemon.output(id);
    assert!(output.contains("restart 0 from 0\nready\nsaved\n"), "{output}");
    assert!(output.ends_with("restart 1 from 41\ndone\n"), "{output}");
    // What it left is its user's to keep.
    assert_eq!(std::fs::read_to_string(dir.join("count")).unwrap(), "41\n");
    assert!(daemon.log().contains(&format!("job {id} is asked to save its work: SIGUSR1 to")));
}

#[test]
fn a_gpu_is_emptied_of_jobs_under_mps_that_save_their_work() {
    let daemon = Setup::new("virtual:2xA100-40GB").args(&["--sharing", "mps"]).start();
    let carma = |args: &[&str], works: bool| {
        let output = daemon.carma(args);
        assert_eq!(output.status.success(), works, "{args:?}: {}{}", stdout(&output), stderr(&output));
        stdout(&output) + &stderr(&output)
    };
    carma(&["drain", "1"], true);
    let saving = SubmitRequest { gpu_memory_mib: Some(1 << 10), ..saves(&daemon, COUNTS, 3_600_000) };
    let saving = daemon.submit(saving);
    says(&daemon, saving, "ready");
    let other = job(&["/bin/sleep", "606"]);
    let other = daemon.submit(SubmitRequest { gpu_memory_mib: Some(1 << 10), ..other });
    assert_eq!(daemon.in_state(other, "RUNNING").job.gpus, [0]);
    carma(&["resume", "--gpu", "1"], true);

    // A GPU that is not there does not keep the other from being emptied, and is an error.
    let told = carma(&["drain", "--move", "0,9"], false);
    assert!(told.contains("GPU 0 is drained") && told.contains("there is no GPU 9"), "{told}");
    assert!(told.contains(&format!("job {saving} is asked to save its work")), "{told}");
    let stays = format!(
        "job {other} runs on until it ends (it is a client of MPS, which cannot be moved, and has no --checkpoint-signal)"
    );
    assert!(told.contains(&stays), "{told}");
    let over = daemon.end_of(saving);
    assert_eq!(
        (over.job.state.as_str(), over.job.gpus.as_slice()),
        ("COMPLETED", &[1][..]),
        "{}",
        daemon.log()
    );
    assert!(daemon.output(saving).ends_with("restart 1 from 41\ndone\n"), "{}", daemon.output(saving));
    // What runs on is no error.
    assert!(carma(&["drain", "--move", "0"], true).contains(&stays));
    assert_eq!(daemon.in_state(other, "RUNNING").attempts.len(), 1);
}

#[test]
fn an_empty_directory_goes_with_a_job_that_is_done() {
    let daemon = Setup::new(ONE).start();
    let id = daemon.submit(saves(&daemon, "[ -d $CARMA_CHECKPOINT_DIR ] && echo there", 60_000));
    let failed = daemon.submit(saves(&daemon, "exit 3", 60_000));
    let mut named = saves(&daemon, "[ -d $CARMA_CHECKPOINT_DIR ] && echo there", 60_000);
    let here = daemon.dir.path().join("named/below");
    (named.checkpoint_signal, named.grace_ms) = (None, None);
    named.checkpoint_dir = Some(here.display().to_string());
    let named = daemon.submit(named);
    let plain = daemon.submit(job(&["/bin/sh", "-c", "echo ${CARMA_CHECKPOINT_DIR-none} $CARMA_RESTART"]));
    for (id, code) in [(id, 0), (failed, 3), (named, 0), (plain, 0)] {
        assert_eq!(daemon.end_of(id).job.exit_code, Some(code), "{}", daemon.output(id));
    }
    assert_eq!((daemon.output(id).as_str(), daemon.output(named).as_str()), ("there\n", "there\n"));
    assert_eq!(daemon.output(plain), "none 0\n");
    assert!(!dir_of(&daemon, id).exists() && dir_of(&daemon, failed).exists());
    assert!(here.exists(), "a directory that the user has named stays");
    assert!(daemon.show(plain).checkpoint.is_none());
}

#[test]
fn who_does_not_end_within_the_grace_is_ended() {
    let daemon = Setup::new(ONE).start();
    let line = "trap 'echo asked' USR1; echo ready $CARMA_RESTART; [ $CARMA_RESTART = 1 ] && exit 0; \
                while :; do sleep 0.02; done";
    let id = daemon.submit(saves(&daemon, line, 1_000));
    says(&daemon, id, "ready 0");
    requeue(&daemon, id);
    says(&daemon, id, "asked");
    let over = daemon.end_of(id);
    let codes: Vec<_> = over.attempts.iter().map(|attempt| attempt.exit_code).collect();
    assert_eq!((over.job.state.as_str(), &codes[..]), ("COMPLETED", &[Some(143), Some(0)][..]));
}

#[test]
fn a_shell_without_a_trap_is_passed_over() {
    let daemon = Setup::new(ONE).start();
    // The signal would kill the shell around it, and nothing would be saved.
    let inner = "trap 'echo saved; exit 0' USR1; echo ready; while :; do sleep 0.02; done";
    let line =
        format!("[ $CARMA_RESTART = 1 ] && exit 0; bash -c \"{inner}\"; echo the shell goes on; exit 7");
    let id = daemon.submit(saves(&daemon, &line, 3_600_000));
    says(&daemon, id, "ready");
    requeue(&daemon, id);
    let over = daemon.end_of(id);
    assert!(daemon.output(id).contains("ready\nsaved\nthe shell goes on\n"), "{}", daemon.output(id));
    let codes: Vec<_> = over.attempts.iter().map(|attempt| attempt.exit_code).collect();
    assert_eq!((over.job.state.as_str(), &codes[..]), ("COMPLETED", &[Some(7), Some(0)][..]));
}

#[test]
fn who_catches_no_signal_is_ended_at_once() {
    let daemon = Setup::new(ONE).start();
    let line = "echo ready $CARMA_RESTART; [ $CARMA_RESTART = 1 ] && exit 0; sleep 600; true";
    let id = daemon.submit(saves(&daemon, line, 3_600_000));
    says(&daemon, id, "ready 0");
    requeue(&daemon, id);
    let over = daemon.end_of(id);
    assert_eq!((over.job.state.as_str(), over.attempts[0].exit_code), ("COMPLETED", Some(143)));
    let log = daemon.log();
    assert!(log.contains("without saving its work: no process of it catches SIGUSR1"), "{log}");
}

#[test]
fn a_cancel_does_not_wait_for_what_is_saved() {
    let daemon = Setup::new(ONE).start();
    let line = "trap 'echo asked' USR1; echo ready; while :; do sleep 0.02; done";
    let id = daemon.submit(saves(&daemon, line, 3_600_000));
    says(&daemon, id, "ready");
    requeue(&daemon, id);
    says(&daemon, id, "asked");
    assert!(daemon.show(id).checkpoint.unwrap().saving_since_ms.is_some());
    assert_eq!(daemon.show(id).job.state, "RUNNING");
    assert!(daemon.carma(&["cancel", &id.to_string()]).status.success());
    assert_eq!(daemon.end_of(id).job.state, "CANCELLED");
    assert_eq!(daemon.output(id).matches("asked").count(), 1, "{}", daemon.output(id));
}

#[test]
fn a_daemon_that_is_killed_while_a_job_saves_asks_it_no_second_time() {
    let mut daemon = Setup::new(ONE).start();
    let go = daemon.dir.path().join("go");
    let line = format!(
        "[ $CARMA_RESTART = 1 ] && exit 0; trap 'echo asked; until [ -e {0} ]; do sleep 0.02; done; exit 0' USR1; \
         echo ready; while :; do sleep 0.02; done",
        go.display()
    );
    let id = daemon.submit(saves(&daemon, &line, 3_600_000));
    says(&daemon, id, "ready");
    requeue(&daemon, id);
    says(&daemon, id, "asked");
    daemon.kill();
    daemon.restart(&[]);
    assert!(daemon.show(id).checkpoint.unwrap().saving_since_ms.is_some());
    std::fs::write(&go, "").unwrap();
    let over = daemon.end_of(id);
    assert_eq!((over.job.state.as_str(), over.attempts.len()), ("COMPLETED", 2));
    assert_eq!(daemon.output(id).matches("asked").count(), 1, "{}", daemon.output(id));
}

#[test]
fn a_directory_that_cannot_be_had() {
    let daemon = Setup::new(ONE).start();
    // One that the user has named: the job does not begin.
    let mut named = saves(&daemon, "echo began", 60_000);
    named.checkpoint_dir = Some("/dev/null/a\nb".into());
    let over = daemon.end_of(daemon.submit(named));
    assert_eq!((over.job.state.as_str(), over.job.reason.code.as_str()), ("FAILED", "NotStarted"));
    let text = &over.job.reason.text;
    assert!(text.contains("checkpoint directory /dev/null/a\\nb cannot be used: Not a directory"), "{text}");
    let file = daemon.dir.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    let mut named = saves(&daemon, "echo began", 60_000);
    named.checkpoint_dir = Some(file.display().to_string());
    assert_eq!(daemon.end_of(daemon.submit(named)).job.reason.code, "NotStarted");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");

    // One of its own: it goes on without.
    for home in [Some("/dev/null"), None] {
        let mut own = saves(&daemon, "echo ${CARMA_CHECKPOINT_DIR-none}", 60_000);
        own.env.insert("CARMA_CHECKPOINT_DIR".into(), "/elsewhere".into());
        match home {
            Some(home) => own.env.insert("HOME".into(), home.into()),
            None => own.env.remove("HOME"),
        };
        let id = daemon.submit(own);
        assert_eq!(daemon.end_of(id).job.state, "COMPLETED");
        let output = daemon.output(id);
        assert!(output.ends_with("\nnone\n"), "{output}");
        let why = if home.is_some() { "cannot be used (Not a directory" } else { "neither HOME nor" };
        assert!(output.starts_with("--- carma: ") && output.contains(why), "{output}");
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let daemon = Setup::new(ONE).start();
    for (args, text) in [
        (&["--grace", "2m"][..], "--checkpoint-signal USR1"),
        (&["--checkpoint-signal", "KILL"], "USR1, USR2, HUP, INT or TERM"),
        (&["--checkpoint-signal", "USR1", "--grace", "2h"], "1s to 1h"),
        (&["--repeat", "2", "--checkpoint-dir", "x"], "several jobs would save in it"),
    ] {
        let output = daemon.carma(&[&["submit"], args, &["--", "true"]].concat());
        assert!(!output.status.success() && stderr(&output).contains(text), "{}", stderr(&output));
    }
    let request = serde_json::json!({"command": ["true"], "cwd": "/", "checkpoint_signal": "STOP"});
    let refused = daemon.client().post::<serde_json::Value>("/v1/jobs", &request).unwrap_err();
    assert!(refused.to_string().contains("USR1, USR2, HUP, INT or TERM"), "{refused}");
    assert!(daemon.queue().jobs.is_empty());
}

#[test]
fn the_directory_is_its_owners() {
    if !ready() {
        return;
    }
    let daemon = Setup::new(ONE).start();
    let home = format!("HOME={}", daemon.dir.path().display());
    let line = "trap 'echo saved; id -u > $CARMA_CHECKPOINT_DIR/u; exit 0' USR1; echo ready $CARMA_RESTART; \
                [ $CARMA_RESTART = 1 ] && exit 0; while :; do sleep 0.02; done";
    let args = ["--checkpoint-signal", "usr1", "--env", &home, "--", "bash", "-c", line];
    let id = submit_as(&daemon, "carma-alice", &args);
    says(&daemon, id, "ready 0");
    let number = id.to_string();
    let seen = stdout(&daemon.carma_as("carma-bob", &["show", &number, "--json"]));
    assert!(seen.contains("\"state\"") && !seen.contains("checkpoint"), "{seen}");
    assert!(daemon.carma_as("carma-alice", &["requeue", &number]).status.success());
    assert_eq!(daemon.end_of(id).job.state, "COMPLETED");
    assert!(daemon.output(id).contains("saved"), "{}{}", daemon.output(id), daemon.log());
    let uid: u32 = stdout(&std::process::Command::new("id").args(["-u", "carma-alice"]).output().unwrap())
        .trim()
        .parse()
        .unwrap();
    let dir = dir_of(&daemon, id);
    let meta = std::fs::metadata(&dir).unwrap();
    assert_eq!((meta.uid(), meta.mode() & 0o777), (uid, 0o700));
    assert_eq!(std::fs::metadata(dir.parent().unwrap()).unwrap().uid(), uid);

    // Where only root may write, nothing is made for a user, nor is a link of the user's followed with root's rights.
    let closed = daemon.dir.path().join("closed");
    std::fs::create_dir(&closed).unwrap();
    std::os::unix::fs::symlink(&closed, daemon.dir.path().join("link")).unwrap();
    for place in ["closed/a", "link/a", "closed"] {
        let place = daemon.dir.path().join(place);
        let id = submit_as(
            &daemon,
            "carma-alice",
            &["--checkpoint-dir", &place.display().to_string(), "--", "true"],
        );
        let over = daemon.end_of(id);
        assert_eq!(over.job.reason.code, "NotStarted", "{}", place.display());
        assert!(over.job.reason.text.contains("Permission denied"), "{}", over.job.reason.text);
    }
    assert_eq!(std::fs::read_dir(&closed).unwrap().count(), 0);
}
