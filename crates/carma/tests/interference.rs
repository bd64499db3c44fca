//! `carma bench interference` as a user types it: on virtual GPUs, and on a driver that is none.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, its helpers too"
)]

use carma_gpu_model::expected;
use carma_interference::measured::{Combination, Measured};
use carma_interference::share::Mode;
use fake_nvml::{FakeGpm, FakeGpu, State, stage};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

const CARMA: &str = env!("CARGO_BIN_EXE_carma");

/// A folder with a file of tasks.
struct Bench {
    dir: TempDir,
}

impl Bench {
    fn new(tasks: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("tasks.toml"), tasks).unwrap();
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(CARMA);
        command.args(["bench", "interference", "--tasks"]).arg(self.path("tasks.toml"));
        command.arg("-o").arg(self.path("out.json")).args(args);
        command
    }

    fn run(&self, args: &[&str]) -> (Measured, Output) {
        self.finish(self.command(args).args(["--gpus", "virtual:1xH200", "--speed", "20"]))
    }

    fn finish(&self, command: &mut Command) -> (Measured, Output) {
        let out = command.output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        (Measured::read(&fs::read_to_string(self.path("out.json")).unwrap()).unwrap(), out)
    }

    /// Fails because of what the user wrote; the message.
    fn refused(&self, args: &[&str]) -> String {
        let out = self.command(args).args(["--gpus", "virtual:1xH200"]).output().unwrap();
        assert_eq!(out.status.code(), Some(2), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stderr).unwrap()
    }
}

/// What tasks do alone: name, options.
const TASKS: [(&str, &str); 4] =
    [("small", "--sm 0.2"), ("half", "--sm 0.5"), ("big", "--sm 0.9"), ("dram", "--sm 0.3 --dram 0.6")];

fn virtual_task(name: &str, options: &str) -> String {
    let mut words = vec![CARMA, "virtual-task", "--startup", "0"];
    words.extend(options.split_whitespace());
    format!("[[task]]\nname = '{name}'\ncommand = {words:?}\n")
}

fn four() -> String {
    let tasks: String =
        TASKS.iter().map(|(name, options)| virtual_task(name, &format!("{options} --work 10d"))).collect();
    format!("window_s = 0.3\nsettle_s = 0.2\n{tasks}")
}

fn of(measured: &Measured, k: usize, sharing: Mode) -> Vec<&Combination> {
    measured.combinations.iter().filter(|w| w.k() == k && w.sharing == sharing).collect()
}

/// The model that virtual GPUs follow.
mod carma_gpu_model {
    use carma_hardware::GpuType;
    use carma_interference::power::PowerLaw as _;
    use carma_interference::share::{Demand, Mode, Tenant, share_mixed};
    use carma_sim::gpu::Law;
    use carma_virtual_gpu::task::TaskSpec;

    /// Progress of tasks, each of SM and DRAM activity and a share of the threads.
    pub(super) fn expected(tasks: &[(f64, Option<f64>, u8)], sharing: Mode) -> Vec<f64> {
        let law = Law::from(&GpuType::find("H200").unwrap());
        let tenants: Vec<Tenant> = tasks
            .iter()
            .map(|&(sm, dram, pct)| {
                let demand: Demand = TaskSpec { sm, dram, ..TaskSpec::default() }.demand().into();
                let tenant = Tenant::new(demand);
                if pct < 100 { tenant.with_threads(f64::from(pct), &[]) } else { tenant }
            })
            .collect();
        let groups: Vec<Vec<Tenant>> = match sharing {
            Mode::Mps => vec![tenants],
            Mode::TimeSlice => tenants.into_iter().map(|tenant| vec![tenant]).collect(),
        };
        let outcome = share_mixed(&groups, &law.capacities);
        let clock = law.power.clock(&outcome.used);
        let progress = outcome.progress.into_iter().flatten().zip(groups.iter().flatten());
        progress.map(|(progress, tenant)| progress / law.power.longer(&tenant.demand, clock)).collect()
    }
}

fn demand(name: &str) -> (f64, Option<f64>) {
    match name {
        "small" => (0.2, None),
        "half" => (0.5, None),
        "big" => (0.9, None),
        "dram" => (0.3, Some(0.6)),
        other => panic!("{other}"),
    }
}

/// How far the windows are from the model. A busy machine may wake a task late, so not every window counts.
fn check_against_the_model(windows: &[&Combination]) {
    let mut errors = Vec::new();
    for window in windows {
        assert_eq!(window.failed, None, "{window:?}");
        let pct = |at: usize| window.threads_pct.get(at).copied().unwrap_or(100);
        let tasks = window.members.iter().enumerate().map(|(at, name)| {
            let (sm, dram) = demand(name);
            (sm, dram, pct(at))
        });
        let model = expected(&tasks.collect::<Vec<_>>(), window.sharing);
        assert_eq!(window.progress.len(), model.len(), "{window:?}");
        for (measured, model) in window.progress.iter().zip(model) {
            errors.push((measured - model).abs());
        }
    }
    errors.sort_by(f64::total_cmp);
    assert!(errors[errors.len() / 2] < 0.03, "median {}", errors[errors.len() / 2]);
    assert!(errors[errors.len() * 8 / 10] < 0.1, "{errors:?}");
}

#[test]
fn what_is_measured_is_what_the_model_of_the_virtual_gpu_says() {
    let bench = Bench::new(&four());
    let wanted = ["--sharing", "time-slice,mps", "--pairs", "--triples", "3", "--quads", "1"];
    let (measured, out) = bench.run(&wanted);
    assert_eq!((measured.left, measured.sessions.len()), (0, 2));
    assert_eq!(measured.combinations.iter().find_map(|w| w.failed.clone()), None);
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(said.lines().count(), 4, "of each mode that it starts and that it is ready, no more: {said}");
    for sharing in [Mode::TimeSlice, Mode::Mps] {
        let counts = [1, 2, 3, 4].map(|k| of(&measured, k, sharing).len());
        assert_eq!(counts, [12, 6, 3, 1], "solos at the start, in the middle and at the end");
        for k in [2, 3, 4] {
            check_against_the_model(&of(&measured, k, sharing));
        }
    }
    assert_eq!(measured.profiles.tasks.len(), 4);
    for profile in &measured.profiles.tasks {
        let (sm, _) = demand(&profile.name);
        let mean = |stat: Option<carma_interference::profile::Stat>| stat.unwrap().mean;
        assert!((mean(profile.metrics.smact_pct) - sm * 100.0).abs() < 10.0, "{profile:?}");
        assert_eq!(mean(profile.metrics.memory_mib), 1024.0);
        assert!(mean(profile.metrics.power_w) > 75.0 && profile.metrics.cpu_pct.is_some());
        // Ten steps a virtual second.
        assert!((profile.rate.as_ref().unwrap().per_s - 10.0).abs() < 1.0, "{profile:?}");
    }
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(text.contains("a model, not a measurement") && text.contains("least and most work"), "{text}");
    // Everything is there: nothing starts again.
    let (again, _) = bench.run(&wanted);
    assert_eq!(again, measured);
}

#[test]
fn threads_are_limited_alone_and_in_pairs() {
    let bench = Bench::new(&four());
    let wanted = [
        "--sharing",
        "mps",
        "--threads",
        "25,100",
        "--splits",
        "50/50,25/75",
        "--split-pairs",
        "3",
        "--only",
    ];
    let (measured, _) = bench.run(&[&wanted[..], &["half,big,dram"]].concat());
    assert_eq!(measured.combinations.iter().find_map(|w| w.failed.clone()), None);
    let split: Vec<&Combination> = measured.combinations.iter().filter(|w| w.is_split()).collect();
    assert_eq!(split.iter().filter(|w| w.k() == 1).count(), 3);
    assert_eq!(split.iter().filter(|w| w.k() == 2).count(), 6);
    check_against_the_model(&split);
    let curve = &measured.profiles.task("big").unwrap().rate_by_threads_pct;
    assert_eq!(curve.keys().copied().collect::<Vec<_>>(), [25, 100]);
    assert!(curve[&25] < curve[&100] * 0.5, "{curve:?}");
}

/// Tasks that come with a later call, and calls with fewer tasks after that: everything stays readable.
#[test]
fn tasks_may_come_later() {
    let bench = Bench::new(&four());
    for only in ["small,half", "small,half,big", "small,half"] {
        bench.run(&["--only", only, "--pairs"]);
    }
    for name in ["out.json", "out.log.jsonl"] {
        let measured = Measured::read(&fs::read_to_string(bench.path(name)).unwrap()).unwrap();
        assert_eq!(measured.tasks.len(), 3, "{name}");
        assert_eq!(of(&measured, 2, Mode::TimeSlice).len(), 3, "{name}");
    }
    // While one measures, another one does not write into the same log.
    let log = fs::File::options().append(true).open(bench.path("out.log.jsonl")).unwrap();
    log.lock().unwrap();
    let out = bench.command(&["--gpus", "virtual:1xH200", "--solo"]).output().unwrap();
    assert!(String::from_utf8_lossy(&out.stderr).contains("another carma measures into"), "{out:?}");
}

#[test]
fn members_are_bound_to_processors_of_their_own() {
    let task = "import os, time
import carma_bench
pace = carma_bench.Pace(ahead=0)
while True:
    time.sleep(0.01)
    pace.step()
    print('processors', len(os.sched_getaffinity(0)), flush=True)
";
    let tasks = "window_s = 0.3\nsettle_s = 0.1\nprocessors_each = 1\n[[task]]\nname = 'a'\n\
                 command = ['python3', 'a.py']\n";
    let bench = Bench::new(tasks);
    fs::write(bench.path("a.py"), task).unwrap();
    let logs = bench.path("logs");
    let (measured, _) = bench.run(&["--solo", "--solo-rounds", "5", "--logs", logs.to_str().unwrap()]);
    assert_eq!(measured.sessions[0].processors_each, Some(1));
    assert_eq!(of(&measured, 1, Mode::TimeSlice).len(), 5);
    assert!(measured.combinations.iter().all(|w| w.remarks.iter().all(|r| !r.contains("processors"))));
    let said = fs::read_to_string(logs.join("a-time-slice.log")).unwrap();
    assert_eq!(said.lines().last(), Some("processors 1"));
    fs::write(bench.path("tasks.toml"), tasks.replace("each = 1", "each = 4000")).unwrap();
    let why = bench.refused(&["--solo"]);
    assert!(why.contains("1 members at a time would need 4000"), "{why}");
}

#[test]
fn what_was_cut_short_goes_on() {
    let bench = Bench::new(&four());
    // Eight of these seconds are kept for the end; the windows need nine.
    let wanted = ["--pairs", "--budget", "14"];
    let (first, out) = bench.run(&wanted);
    assert!(first.left > 0, "{first:?}");
    assert!(String::from_utf8_lossy(&out.stdout).contains(&format!("{} windows are left", first.left)));
    // Whatever ended it may have torn the last line.
    let log = bench.path("out.log.jsonl");
    let text = fs::read_to_string(&log).unwrap();
    fs::write(&log, &text[..text.len() - 10]).unwrap();
    let mut measured = first;
    for _ in 0..10 {
        measured = bench.run(&wanted).0;
        if measured.left == 0 {
            break;
        }
    }
    assert_eq!(measured.left, 0);
    let pairs = of(&measured, 2, Mode::TimeSlice);
    let distinct: BTreeSet<_> = pairs.iter().map(|w| w.members.clone()).collect();
    assert_eq!((pairs.len(), distinct.len()), (6, 6), "each pair once");
    assert!(measured.sessions.len() > 1);
    // Each session has its own solos.
    for session in &measured.sessions {
        assert!(measured.combinations.iter().any(|w| w.session == session.number && w.k() == 1));
    }
    // The file belongs to these tasks.
    fs::write(bench.path("tasks.toml"), four().replace("0.9", "0.8")).unwrap();
    assert!(bench.refused(&wanted).contains("task `big` is another"));
}

/// A task that fails until there is a file `ok` beside the file of tasks.
fn gated(name: &str, more: &str) -> String {
    let line = format!("[ -e ok ] || exit 3; exec {CARMA} virtual-task --startup=0 --sm=0.4 --work=10d");
    format!("[[task]]\nname = '{name}'\ncommand = ['/bin/sh', '-c', '{line}']\n{more}")
}

/// Windows of these members: how many, and how many of them failed.
fn counts(measured: &Measured, members: &[&str]) -> (usize, usize) {
    let of: Vec<_> = measured.combinations.iter().filter(|w| w.members == members).collect();
    (of.len(), of.iter().filter(|w| w.failed.is_some()).count())
}

/// `carma bench collocation` on a virtual GPU.
fn collocation() -> Command {
    let mut command = Command::new(CARMA);
    command.args(["bench", "collocation", "--gpus", "virtual:1xH200"]);
    command
}

#[test]
fn last_words_do_nothing_to_a_terminal() {
    let words = "command = ['/bin/sh', '-c', 'printf \"\\\\033]0;evil\\\\007 no memory\\\\n\" >&2; exit 1']";
    let bench = Bench::new(&format!("[[task]]\nname = 'loud'\nfamily = 'loud'\nbatch = 1\n{words}\n"));
    let of = |out: Output| String::from_utf8([out.stdout, out.stderr].concat()).unwrap();
    let alone = of(bench.run(&["--solo"]).1);
    let mut command = collocation();
    let out = command
        .arg("--tasks")
        .arg(bench.path("tasks.toml"))
        .arg("-o")
        .arg(bench.path("out"))
        .output()
        .unwrap();
    for said in [alone, of(out)] {
        assert!(said.contains("u{1b}]0;evil") && said.contains("no memory"), "{said:?}");
        assert!(!said.chars().any(|c| c.is_control() && c != '\n'), "{said:?}");
    }
}

#[test]
fn what_failed_alone_is_measured_again() {
    let bench = Bench::new(&format!("{}{}", four(), gated("later", "")));
    let solo = ["--solo", "--only", "small,later", "--window", "0.1"];
    let (first, _) = bench.run(&solo);
    assert_eq!((first.left, counts(&first, &["small"]), counts(&first, &["later"])), (0, (3, 0), (3, 3)));
    fs::write(bench.path("ok"), "").unwrap();
    // What failed counts as measured, unless it is to be measured again.
    let (same, _) = bench.run(&solo);
    assert_eq!(same, first);
    let (again, _) = bench.run(&[&solo[..], &["--retry-failed"]].concat());
    assert_eq!((again.left, counts(&again, &["small"]), counts(&again, &["later"])), (0, (3, 0), (3, 0)));
    assert!(again.profiles.task("later").unwrap().rate.is_some());
}

#[test]
fn solos_that_were_cut_short_go_on() {
    let bench = Bench::new(&four());
    let solo = ["--solo", "--only", "small", "--solo-rounds", "12", "--window", "0.1"];
    // Eight of these seconds are kept for the end; the windows need six.
    let (first, out) = bench.run(&[&solo[..], &["--budget", "11"]].concat());
    let (measured, _) = counts(&first, &["small"]);
    assert!(measured < 12 && first.left == 12 - measured, "{first:?}");
    assert!(String::from_utf8_lossy(&out.stdout).contains(&format!("{} windows are left", first.left)));
    let (all, _) = bench.run(&solo);
    assert_eq!((all.left, counts(&all, &["small"])), (0, (12, 0)));
}

#[test]
fn tasks_that_die_are_named_and_the_others_go_on() {
    let faulty = virtual_task("faulty", "--sm 0.5 --fault-after 2s");
    let short = virtual_task("short", "--sm 0.1 --work 2s");
    let bench = Bench::new(&format!("startup_s = 20\n{}{faulty}{short}", four()));
    let (measured, _) = bench.run(&["--pairs", "--sharing", "mps", "--only", "small,big,faulty,short"]);
    assert_eq!(measured.left, 0);
    let pairs = of(&measured, 2, Mode::Mps);
    assert_eq!(pairs.len(), 6, "none is dropped");
    for window in pairs {
        let bad: Vec<&String> = window.members.iter().filter(|m| *m == "faulty" || *m == "short").collect();
        match &window.failed {
            None => assert!(bad.is_empty() && window.progress.len() == 2, "{window:?}"),
            Some(why) => {
                assert!(window.rates.is_empty());
                assert!(!bad.is_empty(), "{why}");
                assert!(bad.iter().any(|name| why.contains(name.as_str())), "{why}");
            }
        }
    }
    let said: String = measured.combinations.iter().filter_map(|w| w.failed.clone()).collect();
    assert!(said.contains("illegal memory access"), "its last words: {said}");
    assert!(said.contains("short ended during the window: it ended with exit status: 0"), "{said}");
    assert!(measured.profiles.task("faulty").unwrap().rate.is_none());
    assert!(measured.profiles.task("big").unwrap().rate.is_some());
}

#[test]
fn bad_input_is_named() {
    let bench = Bench::new(&four());
    let with = |text: &str| {
        fs::write(bench.path("tasks.toml"), text).unwrap();
        bench.refused(&[])
    };
    assert!(with("").contains("no tasks"));
    assert!(with("[[task]]\nname = 'a'\n").contains("missing field `command`"));
    let twice = "[[task]]\nname = 'a'\ncommand = ['x']\n".repeat(2);
    assert!(with(&twice).contains("two tasks are named `a`"));
    assert!(with("window = 3\n").contains("unknown field"));
    assert!(with(&format!("window_s = nan\n{twice}")).contains("tasks.toml"));
    fs::write(bench.path("tasks.toml"), four()).unwrap();
    assert!(bench.refused(&["--only", "nobody"]).contains("`nobody`; there are: small, half"));
    let groups = bench.path("groups");
    fs::write(&groups, "small, big # a remark\n\nsmall, nobody\n").unwrap();
    assert!(
        bench.refused(&["--groups", groups.to_str().unwrap()]).contains("line 3: no task is named `nobody`")
    );
    fs::write(&groups, "small, small\n").unwrap();
    assert!(
        bench.refused(&["--groups", groups.to_str().unwrap()]).contains("occurs 2 times and has 1 copies")
    );
    fs::write(&groups, "small # alone\n").unwrap();
    assert!(bench.refused(&["--groups", groups.to_str().unwrap()]).contains("line 1: `small` is one task"));
    fs::write(bench.path("out.log.jsonl"), "nonsense\n").unwrap();
    let out = bench.command(&["--gpus", "virtual:1xH200"]).output().unwrap();
    assert!(String::from_utf8_lossy(&out.stderr).contains("out.log.jsonl: line 1"), "{out:?}");
}

/// A task in Python that sleeps for its steps, by our helper.
const SLEEPER: &str = "
import os, time
import carma_bench
print('pipe', os.environ.get('CUDA_MPS_PIPE_DIRECTORY', 'none'), os.environ['CUDA_VISIBLE_DEVICES'], flush=True)
pace = carma_bench.Pace(ahead=0)
while True:
    time.sleep(0.01)
    pace.step()
";
/// One whose counter runs backwards.
const LIAR: &str = r#"
import json, os, socket, time
s = socket.socket(socket.AF_UNIX); s.connect(os.environ["CARMA_BENCH"]); lines = s.makefile("r")
say = lambda **what: s.sendall(json.dumps(what).encode() + b"\n")
say(hello=1); lines.readline(); say(ready=1)
for line in lines:
    order = json.loads(line)
    if "quit" in order: break
    while time.monotonic() < order["go"]["until_s"]: time.sleep(0.01)
    say(times_us=[300000, 200000])
"#;

#[test]
fn on_nvidias_driver_by_the_python_helper_plain_and_as_mps_clients() {
    let library = tempfile::tempdir().unwrap();
    let gpu = FakeGpu {
        uuid: "GPU-a".into(),
        gpm: Some(FakeGpm::all(40.0)),
        power_mw: Some(312_000),
        sm_clock_mhz: Some(1_755),
        utilization: Some(90),
        memory_utilization: 30,
        energy_mj: None,
        ..FakeGpu::default()
    };
    let gpus = vec![FakeGpu { uuid: "GPU-other".into(), ..FakeGpu::default() }, gpu];
    stage(library.path(), &State::of(gpus)).unwrap();
    let control = library.path().join("nvidia-cuda-mps-control");
    let fake = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpu/tests/fake-mps-control");
    fs::copy(fake, &control).unwrap();
    let task =
        |name: &str, script: &str| format!("[[task]]\nname = '{name}'\ncommand = ['python3', '{script}']\n");
    let tasks = format!(
        "gpu = 'GPU-a'\nsharing = ['time-slice', 'mps']\nwindow_s = 0.3\nsettle_s = 0.1\nstartup_s = 20\n{}{}{}",
        task("a", "sleeper.py"),
        task("b", "sleeper.py"),
        task("liar", "liar.py")
    );
    let bench = Bench::new(&tasks);
    fs::write(bench.path("sleeper.py"), SLEEPER).unwrap();
    fs::write(bench.path("liar.py"), LIAR).unwrap();
    let logs = bench.path("logs");
    let mut command = bench.command(&["--pairs", "--logs", logs.to_str().unwrap(), "--mps-control"]);
    command.arg(&control).env("LD_LIBRARY_PATH", library.path()).env_remove("CUDA_VISIBLE_DEVICES");
    let (measured, _) = bench.finish(&mut command);
    assert_eq!(measured.machine.gpu, "NVIDIA H200");
    assert_eq!(measured.machine.driver.as_deref(), Some("580.159"));
    for sharing in [Mode::TimeSlice, Mode::Mps] {
        let pairs = of(&measured, 2, sharing);
        assert_eq!(pairs.len(), 3);
        for window in pairs {
            if window.members.contains(&"liar".to_owned()) {
                let why = window.failed.as_deref().unwrap();
                assert!(
                    why.contains("liar: its counter ran backwards: step 1 at 0.3 s, step 2 at 0.2 s"),
                    "{why}"
                );
                continue;
            }
            assert_eq!(window.failed, None);
            // A hundred a second at most; how many fewer depends on the machine.
            assert!(window.rates.iter().all(|rate| *rate > 0.0 && *rate < 101.0), "{window:?}");
            let activity = &window.activity;
            assert_eq!(activity.smact_pct.unwrap().mean, 40.0);
            assert_eq!(activity.sm_clock_mhz.unwrap().mean, 1755.0);
            assert_eq!(activity.mem_util_pct.unwrap().mean, 30.0);
            assert_eq!((window.power_w, window.energy_j), (Some(312.0), None), "no energy counter here");
            assert!(window.cpu_pct.iter().all(Option::is_some), "{window:?}");
        }
    }
    let printed = |name: &str| fs::read_to_string(logs.join(name)).unwrap();
    assert_eq!(printed("a-time-slice.log"), "pipe none GPU-a\n");
    let client = printed("a-mps.log");
    assert!(client.contains("/mps/") && client.ends_with("GPU-a\n"), "{client}");
}

#[test]
fn a_program_that_does_not_take_part_is_named() {
    let sleep = "[[task]]\nname = 'mute'\ncommand = ['/bin/sleep', '600']\n";
    let none = "[[task]]\nname = 'none'\ncommand = ['/nonexistent/program']\n";
    let bench = Bench::new(&format!("startup_s = 1\n{}{sleep}{none}", four()));
    let (measured, _) = bench.run(&["--solo", "--only", "small,mute,none"]);
    let why = |name: &str| {
        let window = measured.combinations.iter().find(|w| w.members == [name]).unwrap();
        window.failed.clone().unwrap_or_default()
    };
    assert_eq!(why("small"), "");
    assert!(why("mute").contains("did not connect to CARMA_BENCH within 1 s (startup_s)"), "{}", why("mute"));
    assert!(why("none").contains("/nonexistent/program cannot be started"), "{}", why("none"));
}

/// Counts on its own: by what it prints or by datagrams.
const STRANGER: &str = r#"
import os, socket, sys, time
beats = None
if "beats" in sys.argv:
    beats = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
for step in range(1, 1000000):
    time.sleep(0.02)
    if beats:
        beats.sendto(b"", socket.MSG_DONTWAIT, os.environ["CARMA_PROGRESS"])
    else:
        print(f"step {step}/1000000", flush=True)
"#;

#[test]
fn programs_that_know_nothing_of_carma_are_stopped_and_continued() {
    let task = |name: &str, word: &str| {
        format!("[[task]]\nname = '{name}'\nhold = 'stop'\ncommand = ['python3', 'stranger.py', '{word}']\n")
    };
    let silent = "[[task]]\nname = 'silent'\nhold = 'stop'\ncommand = ['/bin/sleep', '600']\n";
    let tasks = format!(
        "window_s = 1\nsettle_s = 0.1\nstartup_s = 20\n{}{}{}",
        task("prints", "lines"),
        task("beats", "beats"),
        silent
    );
    let bench = Bench::new(&tasks.replace("startup_s = 20", "startup_s = 8"));
    fs::write(bench.path("stranger.py"), STRANGER).unwrap();
    let (measured, _) = bench.run(&["--pairs"]);
    let pairs = of(&measured, 2, Mode::TimeSlice);
    assert_eq!(pairs.len(), 3);
    for window in pairs {
        if window.members.contains(&"silent".to_owned()) {
            let why = window.failed.as_deref().unwrap();
            assert!(why.contains("silent is not there: it told of no progress"), "{why}");
            continue;
        }
        assert_eq!(window.failed, None);
        // Fifty a second at most, 2.5 a virtual one: had the pauses counted, it would be far more or far fewer.
        assert!(window.rates.iter().all(|rate| *rate > 0.25 && *rate < 2.75), "{window:?}");
    }
    for name in ["prints", "beats"] {
        let cpu = measured.profiles.task(name).unwrap().rate.clone().unwrap();
        assert!(cpu.per_s > 0.25 && cpu.per_s < 2.75, "{cpu:?}");
    }
}

#[test]
fn collocation_measures_each_so_often_and_again_what_failed() {
    let net = virtual_task("net", "--sm 0.2 --work 10d") + "family = 'net'\nbatch = 1\ncopies = 2\n";
    let streams = gated("net 2 streams", "family = 'net'\nbatch = 2\nstreams = 2\n");
    let bench = Bench::new(&format!("settle_s = 0.1\n{net}{streams}"));
    let run = || {
        let mut command = collocation();
        command.args(["--speed", "20", "--window", "0.1"]);
        command.args(["--counts", "2", "--ways", "streams,time-slice", "--repeat", "4", "--tasks"]);
        let out = command.arg(bench.path("tasks.toml")).arg("-o").arg(bench.path("out")).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let measured = fs::read_to_string(bench.path("out/measured.json")).unwrap();
        (Measured::read(&measured).unwrap(), String::from_utf8(out.stdout).unwrap())
    };
    let of = |measured: &Measured| {
        [&["net"][..], &["net", "net"], &["net 2 streams"]].map(|members| counts(measured, members))
    };
    let (first, said) = run();
    assert_eq!((of(&first), first.left), ([(4, 0), (4, 0), (4, 4)], 4));
    assert!(said.contains("4 windows are left"), "{said}");
    fs::write(bench.path("ok"), "").unwrap();
    let (again, said) = run();
    assert_eq!((of(&again), again.left), ([(4, 0), (4, 0), (4, 0)], 0));
    assert!(said.contains("streams"), "{said}");
    assert_eq!(run().0, again);
}

/// Three are started and one of them dies, whichever: those that fit are measured in the same call.
#[test]
fn collocation_measures_the_copies_that_fit_where_more_do_not() {
    let task = "--sm 0.2 --work 10d --memory 60G";
    let bench = Bench::new(&format!(
        "settle_s = 0.1\n{}family = 'net'\nbatch = 1\ncopies = 3\n",
        virtual_task("net", task)
    ));
    let mut command = collocation();
    command.args(["--speed", "20", "--window", "0.1"]);
    command.args(["--counts", "2,3", "--ways", "time-slice", "--repeat", "2", "--tasks"]);
    let out = command.arg(bench.path("tasks.toml")).arg("-o").arg(bench.path("out")).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let measured = Measured::read(&fs::read_to_string(bench.path("out/measured.json")).unwrap()).unwrap();
    let of = |copies| counts(&measured, &vec!["net"; copies]);
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!([of(1), of(2)], [(2, 0), (2, 0)], "{said}");
    assert!(of(3).0 == of(3).1 && of(3).1 > 0, "{said}");
}

#[test]
fn collocation_says_how_much_more_gets_done() {
    let dir = tempfile::tempdir().unwrap();
    let run = |more: &[&str]| {
        let mut command = collocation();
        command.args(["--speed", "10", "--window", "0.2"]);
        command
            .args(["--only", "resnet26-cifar", "--counts", "2,4", "--repeat", "1", "-o"])
            .arg(dir.path())
            .args(more);
        command.output().unwrap()
    };
    let out = run(&["--json"]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let rows: Vec<serde_json::Value> = serde_json::from_slice(&out.stdout).unwrap();
    let gain = |way: &str, count: u64| {
        let row = rows.iter().find(|row| row["way"] == way && row["count"] == count);
        row.unwrap_or_else(|| panic!("{way} {count}: {rows:?}"))["gain"].as_f64().unwrap()
    };
    // The law: several small tasks gain by MPS, less by turns.
    assert_eq!(gain("alone", 1), 1.0);
    assert!(gain("mps", 4) > 2.5 && gain("time-slice", 4) < gain("mps", 4), "{rows:?}");
    assert!(gain("mps, threads divided", 4) < gain("mps", 4), "{rows:?}");
    assert!(rows.iter().all(|row| row["way"] != "streams"), "virtual GPUs have no model of streams");
    assert!(String::from_utf8_lossy(&out.stderr).contains("streams is left out"));
    // Again: nothing is left to measure.
    let windows = || Measured::read(&fs::read_to_string(dir.path().join("measured.json")).unwrap()).unwrap();
    let before = windows().combinations.len();
    let out = run(&[]);
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(text.contains("a model, not a measurement") && text.contains("the most by mps with 4"), "{text}");
    assert_eq!(windows().combinations.len(), before);
    let page = fs::read_to_string(dir.path().join("index.html")).unwrap();
    assert!(page.contains("papers: 5.35 by mps") && page.contains("a model, not a measurement"));
    for way in ["mig", "streams"] {
        assert_eq!(run(&["--ways", way]).status.code(), Some(2), "{way}");
    }
    // More than any task may run at a time is no measurement of nothing.
    let tasks = dir.path().join("mine.toml");
    fs::write(&tasks, "[[task]]\nname = \"net\"\ncopies = 2\ncommand = [\"true\"]\n").unwrap();
    let out = collocation()
        .args(["--counts", "5,6", "--tasks"])
        .arg(&tasks)
        .arg("-o")
        .arg(dir.path().join("mine"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(said.contains("mine.toml: no task may run 5, 6 at a time; `copies` says how many may"), "{said}");
}
