//! Who may do what to whose jobs. Needs root and two ordinary users, `carma-alice` and `carma-bob`.

use crate::support::{Daemon, Setup, as_other, is_root, stderr, stdout, until};
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
    assert_eq!(
        meta.uid(),
        0,
        "the log of a job that is over belongs to root, so that its user cannot write to it"
    );

    let id = submit_as(&daemon, "carma-alice", &["--", "sh", "-c", "echo secret; sleep 600"]);
    daemon.in_state(id, "RUNNING");
    let uid = stdout(&std::process::Command::new("id").args(["-u", "carma-alice"]).output().unwrap());
    assert_eq!(std::fs::metadata(daemon.show(id).log).unwrap().uid().to_string(), uid.trim());
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
    // Root may look, but its jobs would run as another user.
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
    let binary = daemon.binary_for_all();
    let mut words = vec!["--gpu-memory=3G", "--", binary.to_str().unwrap()];
    words.extend(task);
    let id = submit_as(&daemon, "carma-alice", &words);
    let rate = |daemon: &Daemon| daemon.show(id).rate.and_then(|rate| rate.per_s.zip(rate.source));
    let (per_s, source) = until("heartbeats to be counted", || rate(&daemon));
    assert!((7.0..=13.0).contains(&per_s) && source == "heartbeat", "{per_s} {source}");
    let pid = daemon.show(id).pid.unwrap();
    let environ = std::fs::read_to_string(format!("/proc/{pid}/environ")).unwrap();
    let socket = environ.split('\0').find_map(|pair| pair.strip_prefix("CARMA_PROGRESS=")).unwrap();
    let socket = std::path::PathBuf::from(socket);
    let bob = as_other("carma-bob", "test").arg("-e").arg(&socket).status().unwrap();
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

#[test]
fn what_a_user_names_is_opened_with_that_users_rights_alone() {
    if !ready() {
        return;
    }
    let daemon = Setup::new("virtual:4xA100-40GB").start();
    // Another's log, by its path: it is as it was, and is not even seen. While her job runs it belongs to her, then to root.
    let hers =
        submit_as(&daemon, "carma-alice", &["--", "sh", "-c", "echo secret; stat -Lc %u /dev/fd/1 >&2"]);
    daemon.end_of(hers);
    let log = daemon.show(hers).log;
    let text = daemon.output(hers);
    let owner: u32 = text.strip_prefix("secret\n").and_then(|uid| uid.trim().parse().ok()).expect(&text);
    assert!(owner > 0 && std::fs::metadata(&log).unwrap().uid() == 0);
    for target in [log.clone(), format!("{}/of-bob", std::path::Path::new(&log).parent().unwrap().display())]
    {
        let theft = submit_as(&daemon, "carma-bob", &["--output", &target, "--", "true"]);
        let over = daemon.end_of(theft);
        assert_eq!(over.job.reason.code, "NotStarted", "{}", over.job.reason.text);
    }
    assert_eq!((std::fs::metadata(&log).unwrap().uid(), daemon.output(hers)), (0, text.clone()));
    assert_eq!(stdout(&daemon.carma_as("carma-alice", &["logs", &hers.to_string()])), text);
    let seen = daemon.carma_as("carma-bob", &["logs", &hers.to_string()]);
    assert_eq!((seen.status.code(), stdout(&seen).as_str()), (Some(77), ""), "{}", stderr(&seen));
    let state = daemon.dir.path().join("state");
    let listing = as_other("carma-bob", "ls").arg(&state).output().unwrap();
    assert!(!listing.status.success(), "{}", stdout(&listing));

    // A directory below one that only she may enter.
    let home = daemon.dir.path().join("home");
    let inside = home.join("proj");
    std::fs::create_dir_all(&inside).unwrap();
    std::fs::write(inside.join("data.txt"), "hers").unwrap();
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&home, std::fs::Permissions::from_mode(0o700)).unwrap();
    std::os::unix::fs::chown(&home, Some(owner), Some(owner)).unwrap();
    let name = inside.display().to_string();
    let theft = submit_as(&daemon, "carma-bob", &["-D", &name, "--", "cat", "data.txt"]);
    let over = daemon.end_of(theft);
    assert_eq!(over.job.reason.code, "NotStarted", "{}", over.job.reason.text);
    let own = submit_as(&daemon, "carma-alice", &["-D", &name, "--", "cat", "data.txt"]);
    daemon.end_of(own);
    assert_eq!(daemon.output(own), "hers");

    // Who cannot enter it, or write there, is told at submission; it may be otherwise by the time the job starts.
    let warned = |user: &str, args: &[&str]| {
        let output = daemon.carma_as(user, &[&["submit", "--hold"], args, &["--", "true"]].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        stderr(&output)
    };
    let home = home.display();
    let said = warned("carma-bob", &["-D", &name, "--output", "/dev/null"]);
    assert!(
        said.contains(&format!("its directory {name} cannot be entered: you may not enter {home}\n")),
        "{said}"
    );
    let said = warned("carma-bob", &["--output", &format!("{name}/%j.out")]);
    assert!(said.contains(&format!("to {name}/%j.out: you may not enter {home}\n")), "{said}");
    let said = warned("carma-bob", &["--repeat", "3", "-D", "/usr", "--output", "%j.out"]);
    assert_eq!(said.matches("you may not make files in /usr\n").count(), 1, "{said}");
    assert_eq!(warned("carma-alice", &["-D", &name, "--output", "/dev/null"]), "");
}

#[test]
fn a_job_takes_over_mask_and_limits_and_no_descriptor() {
    if !ready() {
        return;
    }
    let mut setup = Setup::new("virtual:2xA100-40GB");
    // As a shell or service manager might leave a file open.
    setup.wrapper = ["sh", "-c", "exec 9</etc/shadow \"$@\"", "sh"].map(str::to_owned).into();
    let daemon = setup.start();
    let line = "umask; ulimit -S -n; ls -l /proc/self/fd | grep -c shadow; exec 9</dev/null; ls /proc/self/fd | tr '\\n' ' '";
    let script = format!(
        "umask 027; ulimit -S -n 300; exec {} --socket {} submit --parsable -- sh -c {}",
        daemon.binary_for_all().display(),
        daemon.socket().display(),
        shell_word(line)
    );
    let output = as_other("carma-alice", "sh").args(["-c", &script]).current_dir("/").output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let id: u64 = stdout(&output).trim().parse().unwrap();
    assert_eq!(daemon.end_of(id).job.state, "COMPLETED");
    assert_eq!(daemon.output(id), "0027\n300\n0\n0 1 2 3 9 ");
}

fn shell_word(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[test]
fn a_login_shell_reads_the_profile() {
    if !ready() {
        return;
    }
    let daemon = Setup::new("virtual:2xA100-40GB").start();
    let profile = "/home/carma-alice/.profile";
    let before = std::fs::read(profile).ok();
    let write = "echo 'export FROM_PROFILE=yes' > ~/.profile";
    let id = submit_as(&daemon, "carma-alice", &["--env", "HOME=/home/carma-alice", "--", "sh", "-c", write]);
    daemon.end_of(id);
    let print =
        ["--env", "HOME=/home/carma-alice", "--", "sh", "-c", "echo \"[$FROM_PROFILE]\" \"$1\"", "x", "a b"];
    let with = submit_as(&daemon, "carma-alice", &[&["--login"], &print[..]].concat());
    let without = submit_as(&daemon, "carma-alice", &print);
    daemon.end_of(with);
    daemon.end_of(without);
    let said = (daemon.output(with), daemon.output(without));
    match before {
        Some(text) => std::fs::write(profile, text).unwrap(),
        None => std::fs::remove_file(profile).unwrap(),
    }
    assert_eq!(said, ("[yes] a b\n".to_owned(), "[] a b\n".to_owned()));
}

#[test]
fn a_user_without_an_entry_has_the_group_of_the_client_after_a_restart_too() {
    if !ready() {
        return;
    }
    let mut daemon = Setup::new("virtual:1xA100-40GB").start();
    let group = |daemon: &Daemon, gid: &str| {
        let mut client = std::process::Command::new("setpriv");
        client.args(["--reuid", "4000005555", "--regid", gid, "--clear-groups"]).arg(daemon.binary_for_all());
        client.arg("--socket").arg(daemon.socket()).current_dir("/");
        let output = client.args(["submit", "--parsable", "--", "id", "-g"]).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let id = stdout(&output).trim().parse().unwrap();
        daemon.end_of(id);
        daemon.output(id)
    };
    assert_eq!(group(&daemon, "4000006666"), "4000006666\n");
    daemon.kill();
    // It looks up whose jobs it knows, and has no client to take a group from.
    daemon.restart(&[]);
    assert_eq!(group(&daemon, "4000006666"), "4000006666\n");
    assert_eq!(group(&daemon, "4000007777"), "4000007777\n");
}
