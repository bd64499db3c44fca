//! The daemon as a service: what it tells the service manager, and the units in `packaging/`.

use crate::support::{Setup, job, stdout, until};
use carma_api::wire::SubmitRequest;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A service manager's end of the socket.
struct Manager {
    socket: UnixDatagram,
    path: PathBuf,
    _dir: tempfile::TempDir,
}

impl Manager {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        Self { socket, path, _dir: dir }
    }

    /// The next message; `None`: none came in that time.
    fn hears(&self, within: Duration) -> Option<String> {
        self.socket.set_read_timeout(Some(within)).unwrap();
        let mut buffer = [0; 512];
        let length = self.socket.recv(&mut buffer).ok()?;
        Some(String::from_utf8_lossy(&buffer[..length]).into_owned())
    }

    fn setup(&self, period_us: &str) -> Setup {
        Setup::new("virtual:1xA100-40GB")
            .env("NOTIFY_SOCKET", self.path.to_str().unwrap())
            .env("WATCHDOG_USEC", period_us)
    }
}

const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn the_service_manager_hears_of_the_start_of_life_and_of_the_end() {
    let manager = Manager::new();
    let daemon = manager.setup("200000").start();
    let mut heard = Vec::new();
    // The loop runs before clients are let in, so a sign of life may come first. Three more come while nothing happens.
    while heard.iter().filter(|m| *m == "WATCHDOG=1").count() < 4 || heard.iter().all(|m| m == "WATCHDOG=1") {
        heard.push(manager.hears(PATIENCE).expect("a message"));
    }
    let ready: Vec<&String> =
        heard.iter().filter(|m| m.starts_with("READY=1\nSTATUS=serves virtual:1x")).collect();
    assert_eq!(ready.len(), 1, "{heard:?}");

    // What is the daemon's own does not reach a job.
    let output = daemon.carma(&["run", "--", "env"]);
    let environment = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(environment.contains("CARMA_SOCKET="), "{environment}");
    assert!(!environment.contains("NOTIFY_SOCKET") && !environment.contains("WATCHDOG"), "{environment}");

    let pid = rustix::process::Pid::from_raw(daemon.pid().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    until("the end to be told", || {
        manager.hears(PATIENCE).filter(|message| message.starts_with("STOPPING=1\n"))
    });
}

/// systemd takes an end by SIGHUP for a clean one, after which it starts nothing again.
#[test]
fn signals_that_mean_nothing_to_it_do_not_end_the_daemon() {
    use rustix::process::Signal;
    let daemon = Setup::new("virtual:1xA100-40GB").start();
    let pid = rustix::process::Pid::from_raw(daemon.pid().cast_signed()).unwrap();
    for (signal, told) in
        [(Signal::HUP, "read at the start only"), (Signal::USR1, "SIGUSR1"), (Signal::USR2, "SIGUSR2")]
    {
        rustix::process::kill_process(pid, signal).unwrap();
        until(told, || daemon.log().contains(told).then_some(()));
    }
    // A job has them as they are.
    let output = daemon.carma(&["run", "--", "sh", "-c", "kill -HUP $$; exit 3"]);
    assert_ne!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(!daemon.log().contains("carma stops"), "{}", daemon.log());
}

/// Some service wrappers leave it so, and it stays so in all that they start.
#[test]
fn a_daemon_that_was_started_with_signals_ignored_sees_how_jobs_end() {
    let mut setup = Setup::new("virtual:1xA100-40GB");
    setup.wrapper = ["env", "--ignore-signal=CHLD", "--ignore-signal=HUP"].map(Into::into).into();
    let daemon = setup.start();
    let over = daemon.end_of(daemon.shell("sleep 1; exit 3"));
    assert_eq!(over.job.exit_code, Some(3), "{over:?}");
}

/// A namespace in which root is the only user, and may set no groups: Apptainer's `--fakeroot`, rootless containers.
#[test]
fn jobs_run_in_a_namespace_of_one_user() {
    let wrapper = ["unshare", "--map-root-user"];
    if !Command::new(wrapper[0]).args([wrapper[1], "true"]).status().is_ok_and(|status| status.success()) {
        println!("SKIPPED: no user namespace can be made on this machine");
        return;
    }
    let mut setup = Setup::new("virtual:1xA100-40GB");
    setup.wrapper = wrapper.map(Into::into).into();
    let daemon = setup.start();
    let checkpoints = daemon.dir.path().join("checkpoints").display().to_string();
    let output = Some(daemon.dir.path().join("output").display().to_string());
    let line = "echo $CARMA_CHECKPOINT_DIR";
    let request = SubmitRequest { output, ..job(&["/bin/sh", "-c", line]) };
    assert_eq!(daemon.end_of(daemon.submit(request)).job.state, "COMPLETED");
    let told = daemon.carma(&["run", "--checkpoint-dir", &checkpoints, "--", "/bin/sh", "-c", line]);
    assert!(stdout(&told).contains("checkpoints"), "{told:?}");
}

/// A clock that was wrong when the journal was written: here one that went faster.
#[test]
fn a_journal_that_is_ahead_of_the_clock_is_told_of() {
    let state = tempfile::tempdir().unwrap();
    let setup = |args: &[&str]| {
        let mut setup = Setup::new("virtual:1xA100-40GB").args(args);
        setup.state = Some(state.path().join("state"));
        setup
    };
    let ahead = "ahead of this machine's clock";
    let fast = setup(&["--speed", "10000"]).start();
    fast.end_of(fast.shell("sleep .2"));
    assert!(!fast.log().contains(ahead), "by design");
    drop(fast);
    let daemon = setup(&[]).start();
    assert!(daemon.log().contains(ahead), "{}", daemon.log());
    let told = stdout(&daemon.carma(&["doctor"]));
    assert!(told.contains(ahead), "{told}");
}

#[test]
fn a_hung_engine_gives_no_sign_of_life() {
    let manager = Manager::new();
    let mut daemon = manager.setup("200000").env("CARMA_FAULT", "hang-after-exit").start();
    until("a sign of life", || manager.hears(PATIENCE).filter(|message| message == "WATCHDOG=1"));
    assert!(daemon.carma(&["submit", "--", "true"]).status.success());
    // The thread that owns the state hangs once it sees the end; the other threads live, and say nothing. Ten
    // periods without a sign are a hang: systemd waits for one.
    let started = Instant::now();
    let mut silent = false;
    while !silent && started.elapsed() < PATIENCE {
        silent = manager.hears(Duration::from_secs(2)).is_none();
    }
    let lives = Path::new(&format!("/proc/{}/fd/0", daemon.pid())).exists();
    // It answers no client any more.
    daemon.kill();
    assert!(silent, "it goes on giving signs of life");
    assert!(lives, "the daemon lived");
}

/// `OOMScoreAdjust` of the unit is the daemon's alone.
#[test]
fn jobs_do_not_inherit_the_daemons_protection_from_running_out_of_memory() {
    let daemon = Setup::new("virtual:1xA100-40GB").start();
    // Any other value shows it: to go below 0 takes a capability that root may lack within a container.
    std::fs::write(format!("/proc/{}/oom_score_adj", daemon.pid()), "500").unwrap();
    let output = daemon.carma(&["run", "--", "cat", "/proc/self/oom_score_adj"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "0");
}

#[test]
fn the_units_are_well_formed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        println!("SKIPPED: there is no systemd-analyze on this machine");
        return;
    }
    for (unit, scope) in [("carma.service", "--system"), ("carma-user.service", "--user")] {
        // The program is not installed here: a copy of the unit names one that is there.
        let dir = tempfile::tempdir().unwrap();
        let text = std::fs::read_to_string(folder.join(unit)).unwrap();
        let copy = text.replace("/usr/local/bin/carma", "/bin/true");
        assert_ne!(copy, text, "{unit} names the program");
        std::fs::write(dir.path().join(unit), copy).unwrap();
        let output = Command::new("systemd-analyze")
            .args(["verify", "--man=no", scope])
            .arg(dir.path().join(unit))
            .env("XDG_RUNTIME_DIR", dir.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        // It also judges the units of the machine that this one refers to.
        let ours = said.lines().filter(|line| line.contains(unit));
        // systemd before 254 does not know it, says so, and goes on.
        let ours: Vec<&str> = ours.filter(|line| !line.contains("Unknown key 'DelegateSubgroup'")).collect();
        assert!(ours.is_empty(), "{unit}:\n{}", ours.join("\n"));
    }
}

/// Keys that the unit must set, and each with a remark before it that says why.
#[test]
fn each_setting_of_the_units_says_why() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    for (unit, wanted) in [
        (
            "carma.service",
            &[
                "UMask",
                "LimitNOFILE",
                "TasksMax",
                "OOMPolicy",
                "OOMScoreAdjust",
                "StateDirectory",
                "StateDirectoryMode",
                "RuntimeDirectory",
                "Delegate",
                "KillMode",
                "WatchdogSec",
                "Type",
            ][..],
        ),
        (
            "carma-user.service",
            &["UMask", "LimitNOFILE", "OOMPolicy", "Delegate", "KillMode", "WatchdogSec", "Type"],
        ),
    ] {
        let text = std::fs::read_to_string(folder.join(unit)).unwrap();
        // Wall time is read once. A user's units begin after it.
        let system = unit == "carma.service";
        assert_eq!(text.contains("\nWants=time-sync.target\nAfter=time-sync.target\n"), system, "{unit}");
        let service: Vec<&str> = text
            .lines()
            .skip_while(|line| *line != "[Service]")
            .skip(1)
            .take_while(|line| !line.starts_with('['))
            .collect();
        for key in wanted {
            assert!(service.iter().any(|line| line.starts_with(&format!("{key}="))), "{unit} lacks {key}");
        }
        // A remark stands before each group of settings.
        let mut explained = false;
        for line in service {
            if line.is_empty() {
                explained = false;
            } else if line.starts_with('#') {
                explained = true;
            } else {
                assert!(explained, "{unit}: nothing says why: {line}");
            }
        }
    }
}
