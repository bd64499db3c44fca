//! `carma bench trace`: policies in turn, each with a daemon of its own.

use crate::support::{CARMA, stderr, stdout, until};
use carma_measure::trace::{Play, Summary};
use fake_nvml::{FakeGpm, FakeGpu, FakeProcess, State, stage};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// Three kinds, one of them on two GPUs.
const TASKS: &str = r#"
[[task]]
name = "small"
class = "light"
command = ["/no/such/program"]
virtual = ["--memory=1G", "--sm=0.2", "--work=20s", "--startup=2s"]
weight = 2

[[task]]
name = "large"
class = "heavy"
command = ["/no/such/program"]
virtual = ["--memory=9G", "--sm=0.6", "--work=30s", "--startup=2s"]

[[task]]
name = "faults"
weight = 0
command = ["/no/such/program"]
virtual = ["--memory=1G", "--sm=0.2", "--work=60s", "--startup=2s", "--fault-after=4s"]

[[task]]
name = "two"
gpus = 2
command = ["/no/such/program"]
virtual = ["--memory=4G", "--sm=0.4", "--work=20s", "--startup=2s"]
"#;

struct Bench {
    dir: TempDir,
    args: Vec<String>,
}

impl Bench {
    fn new(tasks: &str, args: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("tasks.toml"), tasks).unwrap();
        Self { dir, args: args.iter().map(ToString::to_string).collect() }
    }

    /// On two virtual GPUs, fast.
    fn on_virtual(args: &[&str]) -> Self {
        let mut all =
            vec!["--gpus", "virtual:2xA100-40GB", "--speed", "60", "--mean-gap", "1s", "--jobs", "8"];
        all.extend(args);
        Self::new(TASKS, &all)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, out: &str, more: &[&str]) -> Command {
        let mut command = Command::new(CARMA);
        command.args(["bench", "trace", "--tasks"]).arg(self.path("tasks.toml"));
        command.arg("-o").arg(self.path(out)).args(&self.args).args(more);
        command
    }

    fn run(&self, out: &str, more: &[&str]) -> Output {
        let output = self.command(out, more).output().unwrap();
        assert!(output.status.success(), "{}\n{}", stdout(&output), stderr(&output));
        output
    }

    fn play(&self, out: &str, name: &str) -> Play {
        let path = self.path(out).join("plays").join(name);
        serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap()
    }
}

/// How many processes were started with this in their command lines.
fn processes_with(part: &str) -> usize {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let has = |e: std::fs::DirEntry| {
        std::fs::read(e.path().join("cmdline")).is_ok_and(|c| String::from_utf8_lossy(&c).contains(part))
    };
    entries.map(has).filter(|has| *has).count()
}

fn merged(folders: &[&Path], out: &Path) -> Output {
    Command::new(CARMA).args(["bench", "trace", "-o"]).arg(out).arg("--merge").args(folders).output().unwrap()
}

#[test]
fn policies_in_turn_with_history_and_again_where_the_last_call_ended() {
    let bench = Bench::on_virtual(&[]);
    let output = bench.run("out", &["--policy", "exclusive,adaptive+history"]);
    let table = stdout(&output);
    assert!(table.contains("2 x Virtual") && table.contains("a model, not a measurement"), "{table}");
    let plays: Vec<Play> = ["exclusive-1.json", "adaptive-1.json", "adaptive+history-1.json"]
        .iter()
        .map(|name| bench.play("out", name))
        .collect();
    let summary = Summary::of(&plays).unwrap();
    for policy in &summary.policies {
        let of = &policy.plays[0];
        assert_eq!((of.completed, of.jobs), (8, 8), "{policy:?}");
        assert!(of.energy_kj.unwrap() > 0.0 && of.smact.unwrap() > 0.0 && of.startup_s.unwrap() > 1.0);
        assert!(of.slowdown.is_some() && of.overhead_pct.is_none());
    }
    assert_eq!(summary.solo_s.len(), 3, "each kind ran alone");
    // Of a GPU that a policy gives to one job at a time, no two attempts overlap.
    let mut spans: Vec<(u32, f64, f64)> = Vec::new();
    for attempt in plays[0].jobs.iter().flat_map(|job| &job.attempts) {
        spans.extend(attempt.gpus.iter().map(|g| (*g, attempt.started_s.unwrap(), attempt.ended_s.unwrap())));
    }
    spans.sort_by(|a, b| a.partial_cmp(b).unwrap());
    assert!(spans.windows(2).all(|two| two[0].0 != two[1].0 || two[0].2 <= two[1].1), "{spans:?}");
    for play in &plays {
        assert!(play.jobs.iter().all(|job| job.told_mib.is_none()), "nothing is told");
    }
    // Eight jobs on two exclusive GPUs: most wait, and the reasons are recorded.
    let waited: Vec<_> = plays[0].jobs.iter().filter(|job| !job.waited_for().is_empty()).collect();
    assert!(waited.len() >= 4, "{:?}", plays[0].jobs);
    for job in waited {
        // Looks are late on a busy machine; none is later than the job's end.
        let life = job.ended_s.unwrap() - job.submitted_s;
        let said: f64 = job.waited_for().iter().map(|(_, s)| s).sum();
        assert!(said > 0.0 && said <= life + 1.0, "{life}: {:?}", job.said);
    }

    // Nothing goes on from it, and nothing failed.
    assert!(!bench.path("out/state").exists());

    // Again: nothing is played, and a policy that has to know memory takes the peaks that were seen.
    let output = bench.run("out", &["--policy", "exclusive,oracle-magm", "--json"]);
    assert!(!stderr(&output).contains("exclusive, play 1:"), "{}", stderr(&output));
    assert_eq!(bench.play("out", "exclusive-1.json").began, plays[0].began);
    let oracle = bench.play("out", "oracle-magm-1.json");
    assert!(oracle.jobs.iter().all(|job| job.told_mib.is_some_and(|mib| (900..10_000).contains(&mib))));
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["policies"].as_array().unwrap().len(), 4);

    // Another trace does not go into the same folder, and not into the same table.
    let output = bench.command("out", &["--policy", "exclusive", "--seed", "9"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = stderr(&output);
    assert!(said.contains("name another --output") && said.contains("has plays with another job"), "{said}");
    let mut command = bench.command("out", &["--policy", "exclusive"]);
    let args: Vec<_> =
        command.get_args().map(|arg| if arg == "60" { "20".into() } else { arg.to_owned() }).collect();
    command = Command::new(CARMA);
    let said = stderr(&command.args(args).output().unwrap());
    assert!(said.contains("has plays with another --speed (60 there, 20 here)"), "{said}");
    // Nor do plays under other conditions.
    let output =
        bench.command("out", &["--policy", "exclusive", "--sharing", "time-slice"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("another --sharing (mps, time-slice) than"), "{}", stderr(&output));
    bench.run("other", &["--policy", "exclusive", "--seed", "9"]);
    let (out, other, both) = (bench.path("out"), bench.path("other"), bench.path("both"));
    let refused = merged(&[&out, &other], &both);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("cannot be compared"), "{}", stderr(&refused));
    // The same play twice is one.
    let output = merged(&[&out, &out], &both);
    assert!(output.status.success() && both.join("index.html").is_file(), "{}", stderr(&output));
    let rows = std::fs::read_to_string(both.join("jobs.csv")).unwrap();
    assert_eq!(rows.lines().count(), 1 + 4 * 8);
    for code in plays[0].jobs.iter().flat_map(|job| job.waited_for()).map(|(code, _)| code) {
        assert!(rows.contains(&format!("{code}:")), "no job waited for {code}: {rows}");
    }
}

#[test]
fn what_the_budget_leaves_is_named() {
    let bench = Bench::on_virtual(&["--policy", "exclusive,adaptive"]);
    let output = bench.run("out", &[]);
    assert!(!stdout(&output).contains("Left"), "{}", stdout(&output));
    // The same trace again, of which one play is there: the other is known to take longer than what is left.
    std::fs::remove_file(bench.path("out").join("plays/adaptive-1.json")).unwrap();
    let output = bench.run("out", &["--budget", "16s"]);
    let table = stdout(&output);
    assert!(table.contains("Left") && table.contains("adaptive, play 1: it takes about"), "{table}");
    assert!(table.contains("it needs --budget") && !table.contains("goes on with it"), "{table}");
}

#[test]
fn a_killed_daemon_loses_nothing() {
    let bench = Bench::on_virtual(&["--policy", "adaptive", "--kill-daemon", "0.5"]);
    bench.run("out", &[]);
    let play = bench.play("out", "adaptive-1.json");
    assert_eq!((play.kills, play.jobs.len()), (1, 8));
    // One that the daemon had decided on when it was killed, and had not started, is tried again: that is no second run.
    for job in &play.jobs {
        let ran = job.attempts.iter().filter(|attempt| attempt.started_s.is_some()).count();
        assert_eq!((job.state.as_str(), ran), ("COMPLETED", 1), "{job:?}");
    }
}

#[test]
fn a_task_that_is_meant_to_fail_comes_by_name_and_its_victims_are_counted() {
    let bench = Bench::on_virtual(&["--policy", "or-rr", "--add", "faults", "--only", "small"]);
    let output = bench.run("out", &[]);
    let play = bench.play("out", "or-rr-1.json");
    let (faults, others): (Vec<_>, Vec<_>) = play.jobs.iter().partition(|job| job.kind == "faults");
    assert_eq!((faults.len(), others.len(), faults[0].state.as_str()), (1, 8, "FAILED"));
    assert!(others.iter().all(|job| job.kind == "small" && job.state == "COMPLETED"), "{others:?}");
    assert!(stdout(&output).contains("faults FAILED"), "{}", stdout(&output));
    // That of a name that the file has not comes with carma.
    bench.run("lent", &["--add", "illegal_address"]);
    let lent = bench.play("lent", "or-rr-1.json");
    let faulted = lent.jobs.iter().find(|job| job.kind == "illegal_address").unwrap();
    assert!(faulted.reason.contains("illegal memory access"), "{faulted:?}");
    let of = &Summary::of(&[play]).unwrap().policies[0].plays[0];
    assert_eq!((of.completed, of.jobs), (8, 9));
    // Of its state only what the jobs printed is left.
    let names = |folder: &str| -> Vec<_> {
        bench.path(folder).read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect()
    };
    assert_eq!(
        (names("out/state"), names("out/state/or-rr-1")),
        (vec!["or-rr-1".into()], vec!["logs".into()])
    );
    assert_eq!(names("out/state/or-rr-1/logs").len(), 9);
}

#[test]
fn the_state_that_history_rests_on_goes_when_it_was_played() {
    let bench = Bench::on_virtual(&["--add", "faults", "--only", "small"]);
    let state = bench.path("out/state/adaptive-1");
    bench.run("out", &["--policy", "adaptive+history"]);
    let names: Vec<_> = state.read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["logs"]);
    assert!(!bench.path("out/state/adaptive-1.taught").exists());
}

#[test]
fn a_signal_ends_all_that_was_started() {
    let mark = format!("--work={}s", 40_000 + std::process::id());
    let tasks = format!("[[task]]\nname = 'long'\ncommand = ['true']\nvirtual = ['--memory=1G', '{mark}']\n");
    let bench = Bench::new(&tasks, &["--gpus", "virtual:1xH200", "--jobs", "2", "--policy", "adaptive"]);
    let bench = bench.command("out", &["--mean-gap", "1s"]);
    // As `nohup` starts it: a terminal that goes away does not end it.
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$0\" \"$@\""]).arg(bench.get_program()).args(bench.get_args());
    command.process_group(0);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until("a task to run", || (processes_with(&mark) > 0).then_some(()));
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap().trim();
    assert_eq!(u64::from_str_radix(ignored, 16).unwrap() & 1, 1, "{status}");
    let pid = rustix::process::Pid::from_child(&child);
    // All of the group, as on a terminal.
    rustix::process::kill_process_group(pid, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stdout(&output).contains("it was interrupted"), "{}", stdout(&output));
    let said = stderr(&output);
    assert!(said.contains("it was interrupted; ending ") && said.contains("up to 10 s"), "{said}");
    assert!(said.contains("no play was over"), "{said}");
    until("the tasks to end", || (processes_with(&mark) == 0).then_some(()));
}

#[test]
fn a_signal_after_a_play_that_was_over_changes_no_exit_code() {
    let tasks = "[[task]]\nname = 'short'\ncommand = ['true']\nvirtual = ['--memory=1G', '--work=3s']\n";
    let bench = Bench::new(tasks, &["--gpus", "virtual:1xH200", "--jobs", "2", "--mean-gap", "1s"]);
    let mut command = bench.command("out", &["--policy", "exclusive", "--policy", "adaptive"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until("the second play", || bench.path("out/state/adaptive-1").exists().then_some(()));
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT)
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(stdout(&output).contains("it was interrupted"), "{}", stdout(&output));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

#[test]
fn a_bench_that_is_killed_takes_its_daemon_and_its_tasks_along() {
    let mark = format!("--work={}s", 50_000 + std::process::id());
    let tasks = format!("[[task]]\nname = 'long'\ncommand = ['true']\nvirtual = ['--memory=1G', '{mark}']\n");
    let args = ["--gpus", "virtual:1xH200", "--jobs", "2", "--mean-gap", "1s", "--policy", "adaptive"];
    let bench = Bench::new(&tasks, &args);
    // The daemon is told it.
    let state = bench.path("out/state");
    let left = || processes_with(&mark) + processes_with(state.to_str().unwrap());
    let mut command = bench.command("out", &[]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until("a task to run", || (processes_with(&mark) > 0).then_some(()));
    assert!(processes_with(state.to_str().unwrap()) > 0);
    child.kill().unwrap();
    child.wait().unwrap();
    // The next call waits for the end of that daemon, whose state it is to remove.
    let output = bench.command("out", &["--longest", "1s"]).output().unwrap();
    assert!(stdout(&output).contains("it was not over after 1 s"), "{}", stdout(&output));
    // There is no table.
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("no play was over: adaptive, play 1: it was not"),
        "{}",
        stderr(&output)
    );
    until("all to end", || (left() == 0).then_some(()));
    assert!(!state.exists());
}

#[test]
fn jobs_of_a_daemon_that_dies_are_cancelled_or_still_known() {
    let mark = format!("--work={}s", 60_000 + std::process::id());
    let tasks = format!("[[task]]\nname = 'long'\ncommand = ['true']\nvirtual = ['--memory=1G', '{mark}']\n");
    let args = ["--gpus", "virtual:1xH200", "--jobs", "2", "--mean-gap", "1s", "--policy", "adaptive"];
    let bench = Bench::new(&tasks, &args);
    let (config, state) = (bench.path("carma.toml"), bench.path("out/state/adaptive-1"));
    let with_config = ["--config", config.to_str().unwrap()];
    let broken_off = |config_then: &str| {
        std::fs::write(&config, "").unwrap();
        let mut command = bench.command("out", &with_config);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        until("a task to run", || (processes_with(&mark) > 0).then_some(()));
        std::fs::write(&config, config_then).unwrap();
        let children = format!("/proc/{0}/task/{0}/children", child.id());
        let daemon: i32 = std::fs::read_to_string(children).unwrap().trim().parse().unwrap();
        let pid = rustix::process::Pid::from_raw(daemon).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        stderr(&output)
    };
    // It starts again, and cancels them.
    let said = broken_off("");
    assert!(said.contains("out/daemons/adaptive-1.log"), "{said}");
    until("the tasks to end", || (processes_with(&mark) == 0).then_some(()));
    assert!(!state.join("carma.db").exists());
    // It cannot start again.
    let said = broken_off("no configuration");
    let names = |path: &str| said.contains(path);
    assert!(names("may run on") && names(state.to_str().unwrap()) && names("adaptive-1.log"), "{said}");
    assert!(processes_with(&mark) > 0 && state.join("carma.db").exists());
    std::fs::write(&config, "").unwrap();
    let output = bench.command("out", &[&with_config[..], &["--longest", "1s"]].concat()).output().unwrap();
    assert!(stderr(&output).contains("no play was over"), "{}", stderr(&output));
    until("the tasks to end", || (processes_with(&mark) == 0).then_some(()));
}

#[test]
fn a_demo_that_is_interrupted_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let mark = dir.path().as_os_str().as_encoded_bytes();
    let mut command = Command::new(CARMA);
    command.arg("demo").env("TMPDIR", dir.path()).process_group(0);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Daemons, supervisors and tasks: all are told a path in it.
    let contains = |text: &[u8], part: &[u8]| text.windows(part.len()).any(|window| window == part);
    let others = || {
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        let others = all.filter(|entry| entry.file_name().to_str() != Some(&child.id().to_string()));
        let told = |entry: std::fs::DirEntry| {
            ["cmdline", "environ"]
                .map(|file| std::fs::read(entry.path().join(file)).unwrap_or_default())
                .concat()
        };
        others.map(told).filter(|told| contains(told, mark)).collect::<Vec<_>>()
    };
    until("a task to run", || others().iter().any(|told| contains(told, b"virtual-task")).then_some(()));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process_group(pid, rustix::process::Signal::INT).unwrap();
    until("all to end", || others().is_empty().then_some(()));
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("interrupted; the tasks were cancelled"), "{}", stderr(&output));
    assert_eq!(dir.path().read_dir().unwrap().count(), 0);
}

#[test]
fn limits_of_jobs_are_counted_where_there_are_any() {
    let bench = Bench::on_virtual(&["--policy", "adaptive+history", "--work", "3"]);
    let config = bench.path("carma.toml");
    std::fs::write(&config, "[sampling]\nwindow = '3s'\n[jobs]\nslowdown-window = '5s'\n").unwrap();
    let config = config.to_str().unwrap();
    let output = bench.run("out", &["--limit", "small=4,two=1s", "--config", config]);
    let table = stdout(&output);
    assert!(table.contains("WINDOWS") && table.contains("IN A ROW"), "{table}");
    let play = bench.play("out", "adaptive+history-1.json");
    let of = &Summary::of(std::slice::from_ref(&play)).unwrap().policies[0].plays[0];
    assert_eq!((of.completed, of.jobs), (8, 8), "{:?}", play.jobs);
    let limited = play.jobs.iter().filter(|job| job.kind != "large").count();
    assert_eq!(of.limited, limited);
    for job in &play.jobs {
        let kept = job.limit_kept.unwrap_or_default();
        assert!(kept.longest <= kept.beyond && kept.beyond <= kept.windows, "{job:?}");
        assert!(job.kind != "large" || kept.windows == 0, "{job:?}");
    }
    let rows = std::fs::read_to_string(bench.path("out").join("jobs.csv")).unwrap();
    assert!(rows.contains(",4.00,") && rows.contains(",1000ms,"), "{rows}");
    // Without limits there are no columns of them.
    let output = Bench::on_virtual(&["--policy", "exclusive", "--only", "small"]).run("out", &[]);
    assert!(!stdout(&output).contains("WINDOWS"), "{}", stdout(&output));
}

#[test]
fn the_latency_of_a_server_alone_is_in_its_row() {
    let tasks = "[[task]]\nname = 'server'\ncommand = ['/no/such/program']\n\
                 virtual = ['--work=40s', '--startup=2s', '--latency=30ms', '--progress=lines']\n";
    let args = ["--gpus", "virtual:1xA100-40GB", "--speed", "8", "--jobs", "1", "--policy", "adaptive"];
    let bench = Bench::new(tasks, &args);
    bench.run("out", &["--limit", "server=90ms"]);
    let alone = bench.play("out", "adaptive-1.json").jobs[0].latency_alone_ms.unwrap();
    assert!((29.0..31.0).contains(&alone), "{alone}");
    let rows = std::fs::read_to_string(bench.path("out").join("jobs.csv")).unwrap();
    assert!(rows.contains(&format!(",{alone:.3}\n")), "{rows}");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let bench = Bench::on_virtual(&[]);
    for (args, part) in [
        (&["--policy", "fifo"][..], "no policy is called 'fifo'"),
        (&["--policy", "gandiva+history"], "of the simulator alone"),
        (&["--policy", "aegis-oracle"], "`memory`"),
        (&["--policy", "exclusive", "--only", "none"], "no task is named `none`"),
        (&["--policy", "exclusive", "--add", "none"], "no task is named `none`"),
        (&["--policy", "exclusive", "--arrivals", "/no/such.csv"], "--arrivals"),
        (&["--policy", "exclusive", "--named"], "names no tasks"),
        (&["--policy", "exclusive", "--trace-name", "x"], "--trace-name: the process poisson"),
        (&["--policy", "exclusive@mps"], "write exclusive"),
        (&["--policy", "exclusive+history"], "write exclusive"),
        (&["--policy", "exclusive", "--limit", "small"], "no NAME=FACTOR"),
        (&["--policy", "exclusive", "--limit", "none=2"], "--limit none=2: there is no such task"),
        (&["--policy", "exclusive", "--limit", "small=fast"], "is not a latency"),
        (&["--policy", "exclusive", "--budget", "soon"], "not a time span"),
        (&["--policy", "exclusive", "--budget", "14s"], "the least is 16 s"),
        (&["--policy", "exclusive", "--work", "0"], "no factor"),
    ] {
        let output = bench.command("out", args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(part), "{args:?}: {}", stderr(&output));
        assert!(!bench.path("out").exists(), "{args:?}");
    }
    // Of the tasks that come with carma to fail one is too large for these GPUs.
    let output = bench.command("out", &["--policy", "exclusive", "--add", "out_of_memory"]).output().unwrap();
    let said = stderr(&output);
    assert!(said.contains("out_of_memory is left out: its memory is 112640 MiB"), "{said}");
    assert!(
        said.contains("--add out_of_memory: that task cannot run here") && !bench.path("out").exists(),
        "{said}"
    );
    // Tasks that could only fail.
    let broken = "[[task]]\nname = 'gone'\ncommand = ['/no/such/prog']\n\
                  [[task]]\nname = 'model'\ncommand = ['true']\nvirtual = ['--nonsense']\n";
    let args = ["--gpus", "virtual:1xA100-40GB", "--jobs", "2", "--policy", "exclusive"];
    let failing = Bench::new(broken, &args);
    for (only, part) in [
        ("gone", "tasks.toml: task `gone`: its command /no/such/prog: No such file"),
        ("model", "tasks.toml: task `model`: virtual: unexpected argument '--nonsense' found"),
    ] {
        let output = failing.command("out", &["--only", only]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{only}: {}", stderr(&output));
        assert!(stderr(&output).contains(part), "{only}: {}", stderr(&output));
        assert!(!failing.path("out").exists());
    }
    // A play whose file was edited.
    std::fs::create_dir_all(bench.path("out/plays")).unwrap();
    std::fs::write(bench.path("out/plays/exclusive-1.json"), "{}").unwrap();
    let output = bench.command("out", &["--policy", "exclusive"]).output().unwrap();
    assert!(output.status.code() == Some(2) && stderr(&output).contains("is no play"), "{}", stderr(&output));
    assert!(stderr(&output).contains("delete the file"), "{}", stderr(&output));
}

#[test]
fn real_gpus_are_read_and_others_on_them_are_named() {
    let tasks = "[[task]]\nname = 'prints'\ncommand = ['sh', '-c', 'for i in 1 2 3; do echo step $i/{steps}; sleep .3; done']\n\
                 steps = 3\n[[task]]\nname = 'fails'\ncommand = ['sh', '-c', 'echo what is wrong; exit 3']\n";
    let bench = Bench::new(tasks, &["--policy", "exclusive", "--jobs", "4", "--arrivals", "batch"]);
    let library = tempfile::tempdir().unwrap();
    let gpu = FakeGpu {
        uuid: "GPU-a".into(),
        name: "NVIDIA H200".into(),
        gpm: Some(FakeGpm::all(40.0)),
        power_mw: Some(200_000),
        ..FakeGpu::default()
    };
    let mut state = State::of(vec![gpu]);
    stage(library.path(), &state).unwrap();
    let output = bench.command("out", &[]).env("LD_LIBRARY_PATH", library.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("2 jobs did not complete: 2 of fails"), "{}", stderr(&output));
    let table = stdout(&output);
    assert!(table.contains("1 x NVIDIA H200") && !table.contains("model"), "{table}");
    assert!(table.contains("2/4") && table.contains("what is wrong"), "{table}");
    let play = bench.play("out", "exclusive-1.json");
    assert!(
        play.jobs.iter().all(|job| (job.kind == "prints") == job.first_step_s.is_some()),
        "{:?}",
        play.jobs
    );
    let summary = Summary::of(&[play]).unwrap();
    let of = &summary.policies[0].plays[0];
    assert!((of.smact.unwrap() - 0.4).abs() < 1e-6 && of.overhead_pct.is_some(), "{of:?}");

    let stranger = FakeProcess { pid: std::process::id(), used_mib: Some(3000), ..FakeProcess::default() };
    state.gpus[0].processes = vec![stranger];
    stage(library.path(), &state).unwrap();
    let output = bench.command("busy", &[]).env("LD_LIBRARY_PATH", library.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(75), "{}", stderr(&output));
    assert!(stderr(&output).contains(&format!("in use: pid {}", std::process::id())), "{}", stderr(&output));
}

#[test]
fn tasks_that_do_not_use_virtual_gpus_are_named() {
    let plain = "[[task]]\nname = 'plain'\ncommand = ['/bin/true']\n";
    let args = ["--gpus", "virtual:1xA100-40GB", "--speed", "60", "--jobs", "4", "--mean-gap", "1s"];
    let bench = Bench::new(&format!("{TASKS}{plain}"), &args);
    let output = bench.run("out", &["--policy", "adaptive", "--only", "small,plain"]);
    let caveat =
        "1 kind has no `virtual` options (plain): it runs as it is and does not use the virtual GPUs";
    let (said, table) = (stderr(&output), stdout(&output));
    assert!(said.find(caveat) < said.find("1 of 1: adaptive") && said.contains(caveat), "{said}");
    assert!(table.contains(caveat) && table.contains("counts as 60 s in run time"), "{table}");
    let page = std::fs::read_to_string(bench.path("out").join("index.html")).unwrap();
    assert!(page.contains("does not use the virtual GPUs"));
    let output = bench.run("modelled", &["--policy", "adaptive", "--only", "small"]);
    assert!(!stderr(&output).contains("`virtual` options"), "{}", stderr(&output));
}
