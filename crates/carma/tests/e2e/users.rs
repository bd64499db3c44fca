//! Who may do what to whose jobs. Needs root and two ordinary users, `carma-alice` and `carma-bob`.

use crate::support::{CARMA, Daemon, Setup, is_root, stderr, stdout, until};
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_res_gid, set_thread_res_uid};
use std::os::unix::fs::MetadataExt;

/// Whether the tests of this file can run; says why not.
pub(crate) fn ready() -> bool {
    let users = ["carma-alice", "carma-bob"];
    if !is_root() {
        eprintln!("SKIPPED: needs root to act as two users");
        return false;
    }
    let known = |user| std::process::Command::new("id").arg(user).output().is_ok_and(|o| o.status.success());
    if !users.into_iter().all(known) {
        eprintln!("SKIPPED: the users {users:?} do not exist; .ci/setup makes them");
        return false;
    }
    true
}

/// Does something on a thread that is another user's: what it connects to sees that user.
pub(crate) fn as_user<T: Send>(user: &str, work: impl FnOnce() -> T + Send) -> T {
    let id = |flag: &str| -> u32 {
        let output = std::process::Command::new("id").args([flag, user]).output().unwrap();
        stdout(&output).trim().parse().unwrap()
    };
    let (uid, gid) = (Uid::from_raw(id("-u")), Gid::from_raw(id("-g")));
    std::thread::scope(|scope| {
        let other = scope.spawn(move || {
            set_thread_res_gid(gid, gid, gid).unwrap();
            set_thread_res_uid(uid, uid, uid).unwrap();
            work()
        });
        other.join().unwrap()
    })
}

pub(crate) fn submit_as(daemon: &Daemon, user: &str, args: &[&str]) -> u64 {
    let mut words = vec!["submit", "--parsable"];
    words.extend(args);
    let output = daemon.carma_as(user, &words);
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output).trim().parse().unwrap()
}

#[test]
fn jobs_run_as_their_owners_and_are_theirs_alone() {
    if !ready() {
        return;
    }
    let daemon = Setup::new("virtual:2xA100-40GB").start();
    let who = submit_as(&daemon, "carma-alice", &["--", "sh", "-c", "id -un; id -gn; id -Gn; pwd"]);
    daemon.end_of(who);
    assert_eq!(daemon.output(who), "carma-alice\ncarma-alice\ncarma-alice\n/\n");
    let log = daemon.show(who).log;
    let meta = std::fs::metadata(&log).unwrap();
    assert_eq!(meta.mode() & 0o777, 0o600, "a log is its owner's alone");
    let uid = stdout(&std::process::Command::new("id").args(["-u", "carma-alice"]).output().unwrap());
    assert_eq!(meta.uid().to_string(), uid.trim());

    let id = submit_as(&daemon, "carma-alice", &["--", "sh", "-c", "echo secret; sleep 600"]);
    daemon.in_state(id, "RUNNING");
    until("its output", || daemon.output(id).contains("secret").then_some(()));
    let number = id.to_string();
    for verb in ["cancel", "hold", "requeue"] {
        let output = daemon.carma_as("carma-bob", &[verb, &number]);
        assert_eq!(output.status.code(), Some(77), "{verb}: {}", stderr(&output));
        assert!(stderr(&output).contains("carma-alice"), "{}", stderr(&output));
    }
    let output = daemon.carma_as("carma-bob", &["logs", &number]);
    assert!(!output.status.success() && !stdout(&output).contains("secret"), "{}", stderr(&output));
    let output = daemon.carma_as("carma-bob", &["show", &number, "--json"]);
    assert!(!stdout(&output).contains("secret"), "the command is its owner's too: {}", stdout(&output));
    let output = daemon.carma_as("carma-bob", &["drain", "0"]);
    assert_eq!(output.status.code(), Some(77));
    assert!(stdout(&daemon.carma_as("carma-bob", &["queue"])).contains("carma-alice"));
    assert_eq!(stdout(&daemon.carma_as("carma-alice", &["logs", &number])), "secret\n");
    assert!(daemon.carma_as("carma-alice", &["cancel", &number]).status.success());
    assert_eq!(daemon.end_of(id).job.state, "CANCELLED");
}

#[test]
fn a_job_reads_and_writes_with_its_owners_rights() {
    if !ready() {
        return;
    }
    let daemon = Setup::new("virtual:2xA100-40GB").start();
    let secret = submit_as(
        &daemon,
        "carma-alice",
        &["--", "sh", "-c", "umask 077; echo mine > /home/carma-alice/secret"],
    );
    assert_eq!(daemon.end_of(secret).job.state, "COMPLETED");
    let theft = submit_as(&daemon, "carma-bob", &["--", "cat", "/home/carma-alice/secret"]);
    let over = daemon.end_of(theft);
    assert_eq!(over.job.state, "FAILED");
    assert!(!daemon.output(theft).contains("mine"));
    // Nor does root's daemon write where its user may not.
    let target = "/home/carma-alice/log";
    let write = submit_as(&daemon, "carma-bob", &["--output", target, "--", "echo", "vandal"]);
    let over = daemon.end_of(write);
    assert_eq!(over.job.reason.code, "NotStarted", "{}", over.job.reason.text);
    assert!(over.job.reason.text.contains("Permission denied"), "{}", over.job.reason.text);
    assert!(!std::path::Path::new(target).exists());
    let own = submit_as(&daemon, "carma-alice", &["--output", target, "--", "echo", "fine"]);
    daemon.end_of(own);
    assert_eq!(std::fs::read_to_string(target).unwrap(), "fine\n");
    for file in [target, "/home/carma-alice/secret"] {
        std::fs::remove_file(file).unwrap();
    }
}

#[test]
fn an_ordinary_users_daemon_serves_that_user() {
    if !ready() {
        return;
    }
    let mut setup = Setup::new("virtual:1xA100-40GB");
    setup.user = Some("carma-alice");
    let mut daemon = setup.start();
    let id = submit_as(&daemon, "carma-alice", &["--", "sh", "-c", "id -un; sleep 1; exit 4"]);
    let output = daemon.carma_as("carma-bob", &["queue"]);
    assert_eq!(output.status.code(), Some(77), "{}", stderr(&output));
    daemon.in_state(id, "RUNNING");
    daemon.kill();
    daemon.restart(&[]);
    assert_eq!(daemon.end_of(id).job.exit_code, Some(4));
    assert_eq!(daemon.output(id), "carma-alice\n");
    // Root may look, but its jobs would run as somebody else.
    let output = daemon.carma(&["submit", "--", "true"]);
    assert_eq!(output.status.code(), Some(77), "{}", stderr(&output));
}

#[test]
fn the_progress_of_a_users_job_is_counted_and_nobody_elses_word_is_taken() {
    if !ready() {
        return;
    }
    let mut daemon = Setup::new("virtual:1xA100-40GB").args(&["--speed", "10"]).start();
    let task = ["virtual-task", "--memory=2G", "--work=3000s", "--progress=datagrams"];
    let mut words = vec!["--gpu-memory=3G", "--", CARMA];
    words.extend(task);
    let id = submit_as(&daemon, "carma-alice", &words);
    let rate = |daemon: &Daemon| daemon.show(id).rate.and_then(|rate| rate.per_s.zip(rate.source));
    let (per_s, source) = until("heartbeats to be counted", || rate(&daemon));
    assert!((7.0..=13.0).contains(&per_s) && source == "heartbeat", "{per_s} {source}");
    let pid = daemon.show(id).pid.unwrap();
    let environ = std::fs::read_to_string(format!("/proc/{pid}/environ")).unwrap();
    let socket = environ.split('\0').find_map(|pair| pair.strip_prefix("CARMA_PROGRESS=")).unwrap();
    let socket = std::path::PathBuf::from(socket);
    let bob = std::process::Command::new("setpriv")
        .args(["--reuid", "carma-bob", "--regid", "carma-bob", "--init-groups", "test", "-e"])
        .arg(&socket)
        .status()
        .unwrap();
    assert!(!bob.success(), "another user reaches {}", socket.display());
    // A daemon that starts anew listens at the same place.
    daemon.kill();
    daemon.restart(&[]);
    until("heartbeats to be counted again", || rate(&daemon));
    let gone = daemon.carma(&["cancel", &id.to_string()]);
    assert!(gone.status.success(), "{}", stderr(&gone));
    daemon.end_of(id);
    until("its place to be cleared", || (!socket.parent().unwrap().exists()).then_some(()));
}
