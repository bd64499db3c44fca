//! The state directory and the journal: who may read them, and what happens when they are damaged, gone or full.

use crate::support::{CARMA, Daemon, Setup, as_other, is_root, job, open_to_all, stderr, stdout, until};
use carma_api::ClientError;
use carma_api::wire::SubmitReply;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const ONE: &str = "virtual:1xA100-40GB";

fn state(daemon: &Daemon) -> PathBuf {
    daemon.dir.path().join("state")
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())).mode() & 0o7777
}

/// A daemon that is expected not to start.
fn refused(args: &[&str], cwd: &Path) -> Output {
    let output = Command::new(CARMA).args(args).current_dir(cwd).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    output
}

/// What `carma serve` says that is expected not to start on a daemon's state directory.
fn refusal(daemon: &Daemon) -> String {
    let socket = daemon.dir.path().join("other");
    let args = ["--socket", socket.to_str().unwrap(), "serve", "--gpus", ONE, "--state", "state"];
    stderr(&refused(&args, daemon.dir.path()))
}

fn journal(daemon: &Daemon, args: &[&str]) -> Output {
    let state = state(daemon);
    Command::new(CARMA).arg("journal").args(args).arg("--state").arg(state).output().unwrap()
}

/// Without `--state` it is the journal of the daemon that answers, and the first line says which that is.
#[test]
fn the_journal_that_is_checked_is_that_of_the_daemon_which_answers() {
    let daemon = Setup::new(ONE).start();
    let (text, dir) = (stdout(&daemon.carma(&["journal", "check"])), state(&daemon));
    assert!(text.starts_with(&format!("{}:\n", dir.join("carma.db").display())), "{text}");
    let json: serde_json::Value =
        serde_json::from_slice(&daemon.carma(&["journal", "check", "--json"]).stdout).unwrap();
    assert_eq!(json["state_dir"], dir.display().to_string());
    // A daemon that finds the socket taken leaves no directory behind.
    let socket = daemon.socket();
    let args = ["--socket", socket.to_str().unwrap(), "serve", "--gpus", ONE, "--state", "never"];
    let error = stderr(&refused(&args, daemon.dir.path()));
    assert!(error.contains("another daemon answers at"), "{error}");
    assert!(!daemon.dir.path().join("never").exists());
}

fn in_order(daemon: &Daemon) {
    let output = journal(daemon, &["check"]);
    assert_eq!(output.status.code(), Some(0), "{}", stdout(&output));
}

#[test]
fn the_journal_is_the_daemons_alone() {
    let mut daemon = Setup::new(ONE).start();
    let id = daemon.shell("sleep 600");
    daemon.in_state(id, "RUNNING");
    let state = state(&daemon);
    let files = ["carma.db", "carma.db-wal", "carma.db-shm", "carma.db.head", "lock", "reserve"];
    let private = |daemon: &Daemon| {
        assert_eq!(mode(&state), 0o700);
        for file in files {
            assert_eq!(mode(&state.join(file)), 0o600, "{file}");
        }
        for dir in ["run", "logs"] {
            assert_eq!(mode(&state.join(dir)), 0o700, "{dir}");
        }
        // What jobs need is elsewhere, and nobody can list it.
        let runtime = PathBuf::from(daemon.status().runtime_dir);
        assert!(!runtime.starts_with(&state), "{}", runtime.display());
        assert_eq!(mode(&runtime), 0o711);
        assert!(fs::metadata(runtime.join("virtual-gpus.sock")).unwrap().file_type().is_socket());
        runtime
    };
    let runtime = private(&daemon);
    // An older daemon left everything open.
    daemon.kill();
    let open = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    open(&state, 0o711);
    for file in files.iter().filter(|file| state.join(file).exists()) {
        open(&state.join(file), 0o644);
    }
    daemon.restart(&[]);
    assert_eq!(private(&daemon), runtime, "jobs that run keep the names");
    daemon.carma(&["cancel", &id.to_string()]);
    daemon.end_of(id);
}

#[test]
fn another_user_reads_nothing_of_it_and_locks_nothing() {
    if !is_root() || !Command::new("id").arg("carma-bob").output().unwrap().status.success() {
        eprintln!("SKIPPED: needs root and the user carma-bob, whom .ci/setup makes");
        return;
    }
    let daemon = Setup::new(ONE).start();
    let mut secret = job(&["/bin/true"]);
    secret.env.insert("TOKEN".into(), "hunter2".into());
    daemon.end_of(daemon.submit(secret));
    let state = state(&daemon);
    let bob = |line: &str| as_other("carma-bob", "sh").args(["-c", line]).current_dir("/").output().unwrap();
    for file in ["carma.db", "carma.db-wal", "carma.db-shm", "carma.db.head", "lock", "logs/1.log", "run"] {
        let output = bob(&format!("cat {0}/{file} || ls {0}/{file}", state.display()));
        assert!(!output.status.success() && output.stdout.is_empty(), "{file}");
    }
    let output = bob(&format!("flock --shared --nonblock {}/carma.db-shm true", state.display()));
    assert!(!output.status.success());
    let output = daemon.carma_as("carma-bob", &["journal", "check", "--state", state.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(77), "{}", stderr(&output));
    // He has his jobs as ever, whatever of the daemon's they need.
    let binary = daemon.binary_for_all();
    let task = [binary.to_str().unwrap(), "virtual-task", "--memory=2G", "--work=1s"];
    let submitted = daemon.carma_as("carma-bob", &[&["submit", "--parsable", "--"], &task[..]].concat());
    let id = stdout(&submitted).trim().parse().unwrap();
    assert_eq!(daemon.end_of(id).job.state, "COMPLETED", "{}", daemon.log());
}

#[test]
fn relative_paths_work() {
    let dir = tempfile::tempdir().unwrap();
    open_to_all(dir.path());
    let mut child = Command::new(CARMA)
        .args(["--socket", "rel/sock/s", "serve", "--gpus", ONE, "--state", "rel/state"])
        .current_dir(dir.path())
        .env("CARMA_LOG", "warn")
        .spawn()
        .unwrap();
    let socket = dir.path().join("rel/sock/s");
    until("the daemon to answer", || {
        carma_api::Client::connect(&socket)
            .and_then(|mut c| c.get("/v1/status"))
            .ok()
            .map(|_: serde_json::Value| ())
    });
    let expected = if is_root() { 0o755 } else { 0o700 };
    assert_eq!(mode(socket.parent().unwrap()), expected, "users come through a root daemon's");
    let carma = |args: &[&str]| {
        Command::new(CARMA).arg("--socket").arg(&socket).args(args).current_dir("/").output().unwrap()
    };
    let output = carma(&["run", "--", "sh", "-c", "echo ran; umask"]);
    assert_eq!(
        (output.status.code(), stdout(&output).as_str()),
        (Some(0), "ran\n0022\n"),
        "{}",
        stderr(&output)
    );
    // What the command finds out about its daemon is absolute too.
    let output = carma(&["run", "--", "sh", "-c", "echo $CARMA_SOCKET"]);
    assert_eq!(stdout(&output).trim(), socket.to_str().unwrap());
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn what_is_not_a_socket_is_not_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("precious");
    fs::write(&file, "data").unwrap();
    std::os::unix::fs::symlink(&file, dir.path().join("link")).unwrap();
    fs::create_dir(dir.path().join("dir")).unwrap();
    for name in ["precious", "link", "dir"] {
        let output = refused(&["--socket", name, "serve", "--gpus", ONE, "--state", "state"], dir.path());
        let text = stderr(&output);
        assert!(text.contains("not a socket") && text.contains("--socket"), "{text}");
        assert!(fs::symlink_metadata(dir.path().join(name)).is_ok(), "{name} is gone");
        assert!(!dir.path().join("state/carma.db").exists(), "nothing was begun");
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "data");
    let long = "x".repeat(120);
    let output = refused(&["--socket", &long, "serve", "--gpus", ONE, "--state", "state"], dir.path());
    assert!(stderr(&output).contains("at most 107 bytes"), "{}", stderr(&output));
}

/// Deletes or moves something under a running daemon.
fn nothing_is_accepted_after(loss: impl Fn(&Path)) {
    let mut daemon = Setup::new(ONE).start();
    let marks = daemon.dir.path().join("marks");
    fs::create_dir(&marks).unwrap();
    let line = format!("echo ran >> {}/$CARMA_JOB_ID", marks.display());
    let before = daemon.shell(&line);
    daemon.end_of(before);
    let mut client = daemon.client();
    loss(&state(&daemon));
    let answer = client.post::<SubmitReply>("/v1/jobs", &job(&["/bin/sh", "-c", &line]));
    match answer {
        Err(ClientError::Refused { status: 507, message, .. }) => {
            assert!(message.contains("was deleted or replaced") && message.contains("backup"), "{message}");
        }
        // The daemon looks by itself too, and may have left before.
        Err(_) => {}
        Ok(reply) => panic!("job {} was accepted and is kept nowhere", reply.id),
    }
    daemon.wait_dead();
    assert!(daemon.log().contains("was deleted or replaced while the daemon ran"), "{}", daemon.log());
    assert_eq!(fs::read_dir(&marks).unwrap().count(), 1, "nothing was started");
}

#[test]
fn a_deleted_state_directory_takes_no_jobs() {
    nothing_is_accepted_after(|state| fs::remove_dir_all(state).unwrap());
}

#[test]
fn a_replaced_state_directory_takes_no_jobs() {
    nothing_is_accepted_after(|state| {
        fs::rename(state, state.with_extension("old")).unwrap();
        fs::create_dir(state).unwrap();
        fs::copy(state.with_extension("old").join("carma.db"), state.join("carma.db")).unwrap();
        fs::create_dir(state.join("run")).unwrap();
    });
}

#[test]
fn a_deleted_run_directory_takes_no_jobs() {
    nothing_is_accepted_after(|state| fs::remove_dir_all(state.join("run")).unwrap());
}

#[test]
fn jobs_whose_records_were_deleted_are_not_started_again() {
    let mut daemon = Setup::new(ONE).start();
    let marks = daemon.dir.path().join("marks");
    let id = daemon.shell(&format!("echo ran >> {}; exec sleep 600", marks.display()));
    let pid = until("its pid", || daemon.show(id).pid);
    until("its mark", || marks.exists().then_some(()));
    daemon.kill();
    fs::remove_dir_all(state(&daemon).join("run")).unwrap();
    let error = refusal(&daemon);
    assert!(error.contains("records of attempts") && error.contains("--accept-loss"), "{error}");
    let asked = journal(&daemon, &["repair"]);
    assert_eq!(asked.status.code(), Some(1), "{}", stdout(&asked));
    assert!(stdout(&asked).contains("lost: the records of attempts"), "{}", stdout(&asked));
    let done = journal(&daemon, &["repair", "--accept-loss"]);
    assert!(done.status.success(), "{}", stderr(&done));
    daemon.restart(&[]);
    let over = daemon.end_of(id);
    assert_eq!((over.job.state.as_str(), over.job.reason.code.as_str()), ("FAILED", "ExitUnknown"));
    assert_eq!(fs::read_to_string(&marks).unwrap(), "ran\n");
    let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
    assert_eq!(daemon.end_of(daemon.shell("exit 3")).job.exit_code, Some(3));
}

#[test]
fn a_damaged_journal_is_refused_checked_and_repaired() {
    let mut daemon = Setup::new(ONE).start();
    for round in 0..3 {
        daemon.end_of(daemon.shell(&format!("exit {round}")));
    }
    let mut held = job(&["/bin/true"]);
    held.hold = true;
    let held = daemon.submit(held);
    in_order(&daemon);
    daemon.kill();
    in_order(&daemon);
    let db = rusqlite::Connection::open(state(&daemon).join("carma.db")).unwrap();
    db.execute_batch("DELETE FROM history WHERE id = 2; UPDATE inputs SET at_ms = at_ms + 1 WHERE seq = 3")
        .unwrap();
    drop(db);
    let error = refusal(&daemon);
    for words in
        ["cannot be trusted", "history has 2 rows of 3", "carma journal check", "carma journal repair"]
    {
        assert!(error.contains(words), "{words}: {error}");
    }
    let checked = journal(&daemon, &["check"]);
    assert_eq!(checked.status.code(), Some(1));
    let text = stdout(&checked);
    assert!(text.contains("broken  inputs        3 is not what was written"), "{text}");
    assert!(text.contains("ok      jobs          4 rows"), "{text}");
    let json = journal(&daemon, &["check", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((&json["version"], &json["ok"]), (&1.into(), &false.into()));
    let asked = journal(&daemon, &["repair"]);
    assert_eq!(asked.status.code(), Some(1));
    assert!(
        stdout(&asked).contains("lost: ") && stderr(&asked).contains("--accept-loss"),
        "{}",
        stderr(&asked)
    );
    let done = journal(&daemon, &["repair", "--accept-loss"]);
    assert!(done.status.success(), "{}{}", stdout(&done), stderr(&done));
    assert!(stdout(&done).contains("the files as they were are in"), "{}", stdout(&done));
    in_order(&daemon);
    daemon.restart(&[]);
    let new = daemon.shell("exit 7");
    assert!(new > held, "no number is used again: {new}");
    assert_eq!(daemon.end_of(new).job.exit_code, Some(7));
    in_order(&daemon);
}

#[test]
fn an_older_copy_is_refused_and_can_be_accepted() {
    let mut daemon = Setup::new(ONE).start();
    daemon.end_of(daemon.shell("exit 1"));
    let copy = daemon.dir.path().join("copy.db");
    // Beside the running daemon.
    let made = journal(&daemon, &["backup", copy.to_str().unwrap()]);
    assert!(made.status.success(), "{}", stderr(&made));
    assert_eq!(mode(&copy), 0o600);
    let again = journal(&daemon, &["backup", copy.to_str().unwrap()]);
    assert_eq!(again.status.code(), Some(1), "a backup replaces nothing");
    let last = daemon.shell("exit 2");
    daemon.end_of(last);
    let pid = daemon.pid().to_string();
    assert!(Command::new("kill").arg(&pid).status().unwrap().success());
    daemon.wait_dead();
    let db = state(&daemon).join("carma.db");
    fs::copy(&copy, &db).unwrap();
    for ending in ["-wal", "-shm"] {
        let _ = fs::remove_file(state(&daemon).join(format!("carma.db{ending}")));
    }
    let error = refusal(&daemon);
    assert!(error.contains("older copy") && error.contains("--accept-loss"), "{error}");
    let done = journal(&daemon, &["repair", "--accept-loss"]);
    assert!(done.status.success(), "{}", stderr(&done));
    daemon.restart(&[]);
    let new = daemon.shell("exit 3");
    assert_eq!(new, last + 1, "the number of the job that the copy does not know is not used again");
    daemon.end_of(new);
    // An empty file, or none.
    daemon.kill();
    fs::write(&db, "").unwrap();
    for ending in ["-wal", "-shm"] {
        let _ = fs::remove_file(state(&daemon).join(format!("carma.db{ending}")));
    }
    assert!(refusal(&daemon).contains("it is empty or missing"));
    fs::remove_file(&db).unwrap();
    assert!(refusal(&daemon).contains("it is empty or missing"));
    let busy = Setup::new(ONE).start();
    let output = journal(&busy, &["repair"]);
    assert!(
        !output.status.success() && stderr(&output).contains("another carma daemon uses"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn the_space_of_large_environments_comes_back() {
    let daemon = Setup::new(ONE).start();
    let db = state(&daemon).join("carma.db");
    let ids: Vec<u64> = (0..60)
        .map(|n| {
            let mut large = job(&["/bin/true"]);
            large.hold = true;
            // The system takes no more than 128 KiB of one.
            for part in 0..30 {
                large.env.insert(format!("LARGE_{part}"), format!("{n:08}").repeat(130_000 / 8));
            }
            daemon.submit(large)
        })
        .collect();
    let size = || fs::metadata(&db).unwrap().len() + fs::metadata(db.with_extension("db-wal")).unwrap().len();
    let full = size();
    assert!(full > 200 << 20, "{full}");
    for id in &ids {
        let cancelled: carma_api::wire::DoneReply =
            daemon.client().post(&format!("/v1/jobs/{id}/cancel"), &()).unwrap();
        assert_eq!(cancelled.id, *id);
    }
    until("the space to come back", || (size() < 48 << 20).then_some(()));
    // The latest can be submitted again, the first cannot, and the answer says so.
    let output = daemon.carma(&["requeue", &ids[59].to_string()]);
    assert!(output.status.success(), "{}", stderr(&output));
    let output = daemon.carma(&["requeue", &ids[0].to_string()]);
    assert!(!output.status.success());
    let text = stdout(&output) + &stderr(&output);
    assert!(text.contains("is no longer kept") && text.contains("keep-environments"), "{text}");
    in_order(&daemon);
}

/// A file system that is unmounted when dropped.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

/// A disk of 16 MiB. `None`: this environment does not allow to mount one.
fn small_disk(dir: &Path) -> Option<Mounted> {
    open_to_all(dir);
    let disk = dir.join("disk");
    fs::create_dir(&disk).unwrap();
    let mounted = is_root()
        && Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=16m,mode=755", "carma-reserve"])
            .arg(&disk)
            .output()
            .is_ok_and(|o| o.status.success());
    if !mounted {
        eprintln!("SKIPPED: this environment does not allow to mount a tmpfs");
    }
    mounted.then_some(Mounted(disk))
}

/// Takes all that is free on a disk.
fn fill(disk: &Mounted) -> PathBuf {
    let full = disk.0.join("full");
    let mut file = fs::File::create(&full).unwrap();
    for size in [1 << 20, 4096, 1] {
        while file.write_all(&vec![1; size]).is_ok() {}
    }
    full
}

#[test]
fn a_command_that_fails_on_a_full_disk_is_told_so() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = small_disk(dir.path()) else { return };
    let mut setup = Setup::new(ONE);
    setup.state = Some(disk.0.join("state"));
    let daemon = setup.start();
    let go = dir.path().join("go");
    let prints = daemon.shell(&format!("until [ -e {} ]; do sleep .1; done; echo done", go.display()));
    daemon.in_state(prints, "RUNNING");
    let full = fill(&disk);
    fs::write(&go, "").unwrap();
    let end = daemon.end_of(prints).job;
    assert_eq!(end.state, "FAILED");
    assert!(end.reason.text.contains("log: its disk is full"), "{}", end.reason.text);
    fs::remove_file(full).unwrap();
}

#[test]
fn a_daemon_starts_on_a_full_disk_by_the_reserve() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = small_disk(dir.path()) else { return };
    let mut setup = Setup::new(ONE);
    setup.state = Some(disk.0.join("state"));
    let mut daemon = setup.start();
    let (reserve, run) = (disk.0.join("state/reserve"), disk.0.join("state/run"));
    let running = daemon.shell("sleep 600");
    daemon.in_state(running, "RUNNING");
    let waiting = daemon.submit(carma_api::wire::SubmitRequest { hold: true, ..job(&["/bin/true"]) });
    daemon.kill();
    fs::remove_file(disk.0.join("state/carma.db-shm")).unwrap();
    let full = fill(&disk);
    let state = disk.0.join("state");
    let on_it = |args: &[&str]| Command::new(CARMA).args(args).arg("--state").arg(&state).output().unwrap();
    // SQLite has no room for its index of a journal that was not closed: that says nothing of what it holds.
    let output = on_it(&["journal", "check"]);
    let text = stdout(&output);
    assert!(text.contains("is full") && !text.contains("broken "), "{text}");
    assert!(!text.contains("journal repair"), "{text}");
    for args in [&["journal", "repair"][..], &["journal", "repair", "--accept-loss"]] {
        let output = on_it(args);
        assert!(!output.status.success() && stderr(&output).contains("is full"), "{}", stderr(&output));
        assert!(!state.join("repair.tmp").exists());
    }
    daemon.restart(&[]);
    assert_eq!(fs::metadata(&reserve).unwrap().len(), 0, "{}", daemon.log());
    assert!(daemon.log().contains("the journal's reserve of 1024 KiB is used"), "{}", daemon.log());
    daemon.in_state(running, "RUNNING");
    for id in [waiting, running] {
        daemon.carma(&["cancel", &id.to_string()]);
        assert_eq!(daemon.end_of(id).job.state, "CANCELLED");
    }
    // Without the reserve it says what is in the way, each time the same.
    daemon.kill();
    let mut rest = fs::File::options().append(true).open(&full).unwrap();
    while rest.write_all(&[1; 512]).is_ok() {}
    drop(rest);
    let left = || fs::read_dir(&run).unwrap().count();
    let before = left();
    let socket = dir.path().join("other");
    for _ in 0..3 {
        let serve = [
            "--socket",
            socket.to_str().unwrap(),
            "serve",
            "--gpus",
            ONE,
            "--state",
            state.to_str().unwrap(),
        ];
        let text = stderr(&refused(&serve, dir.path()));
        assert!(text.contains("is full") && text.contains("MiB on it"), "{text}");
        assert!(text.contains(state.to_str().unwrap()) && !text.contains("journal repair"), "{text}");
        assert_eq!(left(), before, "nothing is left behind");
    }
    fs::remove_file(full).unwrap();
    daemon.restart(&[]);
    drop(daemon);
    drop(disk);
}

#[test]
fn the_journal_has_a_reserve_that_no_log_can_take() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = small_disk(dir.path()) else { return };
    let mut setup = Setup::new(ONE).config("[journal]\nreserve = '32M'\n");
    setup.state = Some(disk.0.join("state"));
    let daemon = setup.start();
    let reserve = disk.0.join("state/reserve");
    assert_eq!(fs::metadata(&reserve).unwrap().len(), 1 << 20, "a sixteenth of the file system");
    // A log fills the disk. Before that is over, it would take what the reserve gives back.
    let full = dir.path().join("full");
    let line = format!("head -c 100000000 /dev/zero; : > {}; sleep 1; exit 3", full.display());
    let log = daemon.shell(&line);
    until("its log to fill the disk", || full.exists().then_some(()));
    let filler = daemon.show(log).log;
    assert!(fs::metadata(&filler).unwrap().len() > 10 << 20);
    let accepted: Vec<u64> = (0..20).map(|n| daemon.shell(&format!("exit {n}"))).collect();
    assert_eq!(accepted.len(), 20, "the journal goes on");
    assert_eq!(fs::metadata(&reserve).unwrap().len(), 0, "by the reserve");
    assert!(daemon.log().contains("the journal's reserve of 1024 KiB is used"), "{}", daemon.log());
    fs::write(filler, "").unwrap();
    assert_eq!(daemon.end_of(log).job.exit_code, Some(3));
    for (n, id) in accepted.into_iter().enumerate() {
        assert_eq!(daemon.end_of(id).job.exit_code, Some(i32::try_from(n).unwrap()));
    }
    drop(daemon);
    drop(disk);
}

#[test]
fn a_network_file_system_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (real, mount) = (dir.path().join("real"), dir.path().join("mount"));
    fs::create_dir(&real).unwrap();
    fs::create_dir(&mount).unwrap();
    let mounted = Command::new("bindfs").arg(&real).arg(&mount).output().is_ok_and(|o| o.status.success());
    if !mounted {
        eprintln!(
            "SKIPPED: no FUSE mount can be had here (Debian package bindfs); layout.rs has the table's own test"
        );
        return;
    }
    let _mounted = Mounted(mount);
    for state in ["mount", "mount/state/deep"] {
        let output = refused(&["--socket", "s", "serve", "--gpus", ONE, "--state", state], dir.path());
        let text = stderr(&output);
        assert!(text.contains("FUSE") && text.contains("local disk") && text.contains("--state"), "{text}");
    }
    assert_eq!(fs::read_dir(&real).unwrap().count(), 0, "nothing was left there");
}
