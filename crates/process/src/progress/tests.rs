use super::*;
use carma_interference::profile::RateSource;
use std::os::unix::net::UnixDatagram;

fn meter() -> (tempfile::TempDir, Meter) {
    let dir = tempfile::tempdir().unwrap();
    let meter = Meter::open(dir.path(), None).unwrap();
    (dir, meter)
}

fn value(meter: &Meter, name: &str) -> String {
    meter.env().into_iter().find(|(key, _)| key == name).unwrap().1
}

#[test]
fn heartbeats_by_datagram() {
    let (_dir, mut meter) = meter();
    let socket = UnixDatagram::unbound().unwrap();
    let path = value(&meter, ENV_SOCKET);
    for step in 0..20 {
        socket.send_to(b"", &path).unwrap();
        meter.poll(f64::from(step) * 0.1);
    }
    let rate = meter.tally().best(0.0, 2.0).unwrap();
    assert_eq!(rate.rate.source, Some(RateSource::Heartbeat));
    assert!((rate.rate.per_s - 10.0).abs() < 1e-9, "{rate:?}");
    for text in ["5/9 tokens", "nonsense", "-1", "8/9 tokens"] {
        socket.send_to(text.as_bytes(), &path).unwrap();
        meter.poll(3.0);
    }
    socket.send_to(&[b'1'; 4000], &path).unwrap();
    meter.poll(4.0);
    assert_eq!(meter.refused(), (3, 0));
    let latest = meter.tally().latest();
    let tokens = latest.iter().find(|latest| latest.unit == "tokens").unwrap();
    assert_eq!((tokens.count, tokens.total), (8.0, Some(9.0)));
}

#[test]
fn heartbeats_by_file() {
    let (_dir, mut meter) = meter();
    let path = value(&meter, ENV_FILE);
    meter.poll(0.0);
    for step in 0..20 {
        std::fs::write(&path, format!("{step}")).unwrap();
        meter.poll(1.0 + f64::from(step));
    }
    let latest = meter.tally().latest();
    assert_eq!((latest[0].count, latest[0].source), (19.0, RateSource::Heartbeat));
    assert!(meter.tally().best(0.0, 20.0).is_some());
    // Appended lines, a file put in its place, garbage, and no file at all.
    let text: String = (20..2000).map(|step| format!("{step}\n")).collect();
    std::fs::write(&path, &text).unwrap();
    meter.poll(30.0);
    assert_eq!(meter.tally().latest()[0].count, 1999.0);
    std::fs::write(format!("{path}.new"), "2000").unwrap();
    std::fs::rename(format!("{path}.new"), &path).unwrap();
    meter.poll(31.0);
    std::fs::write(&path, b"\xff\xfe").unwrap();
    meter.poll(32.0);
    assert_eq!((meter.tally().latest()[0].count, meter.refused()), (2000.0, (1, 0)));
    std::fs::remove_file(&path).unwrap();
    meter.poll(33.0);
    std::os::unix::fs::symlink("/etc/hostname", &path).unwrap();
    meter.poll(34.0);
    assert_eq!(meter.tally().latest()[0].count, 2000.0);
}

/// It lies in memory, in a directory that is not the task's: there its size is all that must be bounded.
#[test]
fn a_heartbeat_file_that_grows_is_cut() {
    use std::io::Write;
    use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
    let (_dir, mut meter) = meter();
    let path = value(&meter, ENV_FILE);
    let taken = || std::fs::metadata(&path).unwrap().blocks() * 512;
    let mut held = std::fs::File::options().append(true).open(&path).unwrap();
    // Counts that are appended, and more than that; the task may also close the file to others.
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o400)).unwrap();
    let counts: String = (0..200_000).map(|step| format!("{step}\n")).collect();
    held.write_all(counts.as_bytes()).unwrap();
    assert!(taken() >= 1 << 20);
    meter.poll(1.0);
    assert!(taken() <= 64 << 10, "{} bytes", taken());
    assert_eq!(meter.tally().latest()[0].count, 199_999.0);
    held.write_all(b"200000\n").unwrap();
    meter.poll(2.0);
    assert_eq!(meter.tally().latest()[0].count, 200_000.0);
    // Set aside beyond the end, and written far behind it.
    let flags = rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&held, flags, 1 << 30, 4 << 20).unwrap();
    meter.poll(3.0);
    assert!(taken() <= 64 << 10, "{} bytes", taken());
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let placed = std::fs::File::options().write(true).open(&path).unwrap();
    placed.write_all_at(&[b'x'; 1 << 20], 1 << 30).unwrap();
    meter.poll(4.0);
    assert!(taken() <= 64 << 10, "{} bytes", taken());
    std::fs::write(&path, "200001").unwrap();
    meter.poll(5.0);
    assert_eq!(meter.tally().latest()[0].count, 200_001.0);
}

#[test]
fn a_pipe_in_the_files_place_is_not_waited_for() {
    let (_dir, mut meter) = meter();
    let path = value(&meter, ENV_FILE);
    std::fs::remove_file(&path).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    meter.poll(0.0);
    assert!(meter.tally().latest().is_empty());
}

#[test]
fn what_is_printed_counts_when_nothing_beats() {
    let (_dir, mut meter) = meter();
    for step in 0..20 {
        let line = format!("\r 5%|# | {step}/1000 [00:01<00:04, 9it/s]");
        meter.feed(f64::from(step) * 0.5, Output::Error, line.as_bytes());
        meter.feed(f64::from(step) * 0.5, Output::Standard, b"Epoch 1/3, not a li");
    }
    meter.poll(20.0);
    let rate = meter.tally().best(0.0, 9.5).unwrap();
    assert_eq!(rate.rate.source, Some(RateSource::Printed));
    assert!((rate.rate.per_s - 2.0).abs() < 1e-9, "{rate:?}");
}

/// A daemon that restarts finds tasks that run: what they write to stays, and what they send to is there all the time.
#[test]
fn a_meter_takes_over_from_an_earlier_one() {
    let dir = tempfile::tempdir().unwrap();
    let first = Meter::open(dir.path(), None).unwrap();
    let path = value(&first, ENV_FILE);
    std::fs::write(&path, "41").unwrap();
    // As a process that is killed leaves it.
    std::mem::forget(first);
    let inode = || std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&path).unwrap());
    let before = inode();
    let mut second = Meter::open(dir.path(), None).unwrap();
    assert_eq!(inode(), before);
    second.poll(1.0);
    assert_eq!(second.tally().latest()[0].count, 41.0);
    UnixDatagram::unbound().unwrap().send_to(b"42", value(&second, ENV_SOCKET)).unwrap();
    second.poll(2.0);
    assert_eq!(second.tally().latest()[0].count, 42.0);
    let mut names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["beat", "p"]);
    // What is not its file is none.
    drop(second);
    std::os::unix::fs::symlink("/etc/hostname", &path).unwrap();
    let third = Meter::open(dir.path(), None).unwrap();
    assert!(std::fs::symlink_metadata(value(&third, ENV_FILE)).unwrap().is_file());
}

#[test]
fn strangers_are_refused() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can send as another user");
        return;
    }
    // A task of user 65534, to whose socket user 1 gets through (as root could let any user).
    let (_dir, mut meter) = {
        let dir = tempfile::tempdir().unwrap();
        let owner = Owner { uid: 65534, gid: 65534 };
        let meter = Meter::open(dir.path(), Some(owner)).unwrap();
        (dir, meter)
    };
    let path = value(&meter, ENV_SOCKET);
    use std::os::unix::fs::PermissionsExt;
    for open in [Path::new(&path), Path::new(&path).parent().unwrap()] {
        std::fs::set_permissions(open, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    let line =
        r#"socket(my $s, AF_UNIX, SOCK_DGRAM, 0); send($s, "5", 0, pack_sockaddr_un($ARGV[0])) or die $!"#;
    for user in ["65534", "1"] {
        let sent = std::process::Command::new("setpriv")
            .args(["--reuid", user, "--clear-groups", "perl", "-MSocket", "-e", line, &path])
            .status();
        match sent {
            Ok(status) if status.success() => {}
            other => {
                eprintln!("SKIPPED: cannot send as user {user}: {other:?}");
                return;
            }
        }
    }
    meter.poll(0.0);
    assert_eq!((meter.tally().latest().len(), meter.refused()), (1, (0, 1)));
}

#[test]
fn a_path_that_no_socket_can_have() {
    let dir = tempfile::tempdir().unwrap();
    let long = dir.path().join("x".repeat(120));
    std::fs::create_dir(&long).unwrap();
    let error = Meter::open(&long, None).unwrap_err().to_string();
    assert!(error.contains("choose a shorter directory"), "{error}");
    let error = Meter::open(&dir.path().join("absent"), None).unwrap_err().to_string();
    assert!(error.contains("absent/p") && error.contains("No such file"), "{error}");
}

/// The lines of the manual, as Python runs them.
#[test]
fn the_lines_of_the_manual() {
    let manual = include_str!("../../../../docs/profiling.md");
    let python = std::env::var("CARMA_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    for kind in ["file", "socket"] {
        let (_, rest) = manual.split_once(&format!("<!-- heartbeat: {kind} -->\n```python\n")).unwrap();
        let (line, _) = rest.split_once("\n```").unwrap();
        assert_eq!(line.lines().count(), 1);
        let (_dir, mut meter) = meter();
        let script = format!("import contextlib, os, socket\nfor step in range(1, 8):\n    {line}\n");
        let run = |env: Vec<(String, String)>| {
            std::process::Command::new(&python).args(["-c", &script]).envs(env).status()
        };
        match run(meter.env()) {
            Ok(status) => assert!(status.success(), "{kind}"),
            Err(e) => {
                eprintln!("SKIPPED: {python} cannot be started: {e}");
                return;
            }
        }
        meter.poll(1.0);
        assert_eq!(meter.tally().latest().first().map(|latest| latest.count), Some(7.0), "{kind}");
        assert!(run(Vec::new()).unwrap().success(), "without carma it does nothing");
        let env = meter.env();
        drop(meter);
        assert!(run(env).unwrap().success(), "a daemon that is gone costs no task");
    }
}
