//! `carma profile` on virtual GPUs, and through NVML on a library that stands in for the driver's.

use crate::support::{CARMA, Setup, job, stderr, stdout, until};
use carma_interference::profile::{Profile, Profiles, RateSource};
use fake_nvml::{FakeGpm, FakeGpu, FakeProcess, Fault, State, set_state, stage};
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;
use tempfile::TempDir;

const VIRTUAL: [&str; 3] = ["profile", "--gpus", "virtual:1xH200"];

/// Runs `carma profile` where no daemon is.
fn profile(args: &[&str]) -> Command {
    let mut command = Command::new(CARMA);
    command.args(args).env("CARMA_SOCKET", "/nonexistent/carma.sock").stdin(Stdio::null());
    command
}

/// A virtual task under `carma profile` on a virtual GPU.
fn on_virtual(options: &[&str], task: &[&str]) -> Output {
    profile(&[&VIRTUAL[..], options, &["--", CARMA, "virtual-task", "--startup=300ms"], task].concat())
        .output()
        .unwrap()
}

#[track_caller]
fn only(output: &Output) -> Profile {
    assert!(output.status.success(), "{}", stderr(output));
    let mut profiles = Profiles::read(&stdout(output)).unwrap();
    assert_eq!(profiles.tasks.len(), 1);
    profiles.tasks.remove(0)
}

/// Whether a process with this word on its command line is alive.
fn alive(word: &str) -> bool {
    std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let read = |name: &str| std::fs::read(entry.path().join(name)).unwrap_or_default();
        let line = String::from_utf8_lossy(&read("cmdline")).into_owned();
        // Ours, which has the word too, is the one that says `profile`.
        line.split('\0').any(|part| part == word) && !line.contains("\0profile\0")
    })
}

#[test]
fn the_rate_comes_from_the_best_source_there_is() {
    for (progress, source, unit) in [
        ("datagrams", RateSource::Heartbeat, "steps"),
        ("file", RateSource::Heartbeat, "steps"),
        ("bar", RateSource::Printed, "it"),
        ("silent", RateSource::Activity, "SM-seconds"),
    ] {
        let options = ["--seconds=2", "--warmup=0.3", "--json", "-J", progress];
        let output =
            on_virtual(&options, &["--memory=6G", "--sm=0.6", "--work=600s", "--progress", progress]);
        let profile = only(&output);
        let rate = profile.rate.clone().unwrap();
        assert_eq!((rate.source, rate.unit.as_deref()), (Some(source), Some(unit)), "{profile:?}");
        // Ten steps a second, or 0.6 of the SMs.
        let expected = if progress == "silent" { 0.6 } else { 10.0 };
        assert!((0.6..1.4).contains(&(rate.per_s / expected)), "{profile:?}");
        let smact = profile.metrics.smact_pct.unwrap().mean;
        assert!((smact - 60.0).abs() < 3.0, "{smact}");
        assert_eq!(profile.metrics.memory_mib.unwrap().mean, 6144.0);
        assert!(profile.metrics.host_memory_mib.is_some() && profile.metrics.tensor_pct.is_none());
        assert_eq!((profile.name.as_str(), profile.gpu.as_deref()), (progress, Some("Virtual H200")));
        assert!(stderr(&output).contains("a model, not a measurement"), "the command's output is not lost");
    }
}

#[test]
fn steadiness_is_waited_for_and_people_get_a_table() {
    let output = on_virtual(&["--seconds=1"], &["--sm=0.5", "--work=600s", "--progress=bar"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    for part in
        ["Virtual H200: a model, not a measurement", "it/s (printed progress)", "SMACT              50.0"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("not steady"), "{text}");
}

#[test]
fn profiles_gather_in_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tasks.json");
    let path = file.to_str().unwrap();
    let quick = ["--seconds=0.5", "--warmup=0", "-o", path];
    let measure = |more: &[&str], sm: &str| on_virtual(&[&quick[..], more].concat(), &["--work=600s", sm]);
    assert!(measure(&["-J", "a"], "--sm=0.2").status.success());
    let refused = measure(&["-J", "b"], "--sm=0.4");
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("--append adds to them"), "{}", stderr(&refused));
    for (name, sm) in [("b", "--sm=0.4"), ("a", "--sm=0.8")] {
        assert!(measure(&["-J", name, "--append"], sm).status.success());
    }
    let profiles = Profiles::read(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let seen: Vec<_> =
        profiles.tasks.iter().map(|t| (t.name.as_str(), t.metrics.smact_pct.unwrap().mean.round())).collect();
    assert_eq!(seen, [("a", 80.0), ("b", 40.0)]);
    // A full disk costs the file and not the profile.
    let full = on_virtual(&["--seconds=0.5", "--warmup=0", "-o", "/dev/full"], &["--work=600s"]);
    assert_eq!(full.status.code(), Some(1));
    assert!(
        stderr(&full).contains("/dev/full: No space left") && stdout(&full).contains("SMACT"),
        "{}",
        stderr(&full)
    );
}

#[test]
fn a_command_that_ends_early() {
    let options = ["--warmup=0.2", "--json", "--seconds=30"];
    let over = only(&on_virtual(&options, &["--work=4s", "--progress=bar"]));
    assert!(over.remarks.iter().any(|remark| remark.contains("ended")), "{:?}", over.remarks);
    assert!((over.metrics.smact_pct.unwrap().mean - 50.0).abs() < 5.0);
    let failed = only(&on_virtual(&options, &["--work=4s", "--exit-code=3"]));
    assert!(failed.remarks.iter().any(|remark| remark.contains("exit code 3")), "{:?}", failed.remarks);
    let short = on_virtual(&options, &["--work=500ms"]);
    assert_eq!(short.status.code(), Some(1));
    assert!(stderr(&short).contains("give it more to do"), "{}", stderr(&short));
}

#[test]
fn a_command_that_is_killed() {
    let args =
        [&VIRTUAL[..], &["--warmup=0.2", "--json", "--seconds=30", "--", "timeout", "-s", "KILL", "5"]]
            .concat();
    let killed =
        profile(&args).args([CARMA, "virtual-task", "--startup=0s", "--work=600s"]).output().unwrap();
    let killed = only(&killed);
    assert!(
        killed
            .remarks
            .iter()
            .any(|remark| remark.contains("was ended by signal 9") || remark.contains("exit code 137")),
        "{:?}",
        killed.remarks
    );
    assert!(killed.rate.is_some());
}

#[test]
fn a_command_that_never_uses_the_gpu() {
    let args = [&VIRTUAL[..], &["--", "/bin/sh", "-c", "echo working; sleep 0.5; exit 3"]].concat();
    let output = profile(&args).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("never used the GPU") && stderr(&output).contains("exit code 3"),
        "{}",
        stderr(&output)
    );
    assert_eq!(stdout(&output), "working\n");
    let args = [&VIRTUAL[..], &["--patience=0.5", "--", "sleep", "60616"]].concat();
    let output = profile(&args).output().unwrap();
    assert!(
        stderr(&output).contains("CUDA_VISIBLE_DEVICES") && stderr(&output).contains("--patience"),
        "{}",
        stderr(&output)
    );
    assert!(!alive("60616"));
    let output = profile(&[&VIRTUAL[..], &["--", "/nonexistent/program"]].concat()).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("cannot start '/nonexistent/program'"), "{}", stderr(&output));
}

#[test]
fn what_ignores_sigterm_is_killed_and_nothing_stays_behind() {
    let options = ["--seconds=1", "--warmup=0", "--grace=0.3", "--json"];
    let stubborn = only(&on_virtual(&options, &["--work=60701s", "--ignore-term"]));
    assert!(stubborn.remarks.iter().any(|remark| remark.contains("was killed")), "{:?}", stubborn.remarks);
    assert!(!alive("--work=60701s"));
    // A child in a session of its own.
    let line = format!("setsid {CARMA} virtual-task --startup=0s --work=60702s & exec sleep 60702");
    let args = [&VIRTUAL[..], &options, &["--", "/bin/sh", "-c", &line]].concat();
    only(&profile(&args).output().unwrap());
    assert!(!alive("--work=60702s") && !alive("60702"));
}

#[test]
fn ctrl_c_ends_the_command_and_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tasks.json");
    let args = [&VIRTUAL[..], &["-o", file.to_str().unwrap(), "--", CARMA, "virtual-task", "--work=60703s"]]
        .concat();
    let mut carma = profile(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(carma.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert!(line.contains("a model, not a measurement"), "{line}");
    interrupt(&carma);
    let status = carma.wait().unwrap();
    let mut said = String::new();
    carma.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(status.code(), Some(130), "{said}");
    assert!(said.contains("interrupted; no profile was made"), "{said}");
    assert!(!file.exists() && !alive("--work=60703s"));
}

fn interrupt(child: &Child) {
    signal(child, Signal::INT);
}

fn signal(child: &Child, signal: Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_child(child), signal).unwrap();
}

/// Ends within half a minute, or is killed and `None`.
fn end_of(child: &mut Child) -> Option<std::process::ExitStatus> {
    for _ in 0..300 {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    None
}

#[test]
fn a_command_that_prints_without_end() {
    let flood = "yes 'step 1/2 iter 3/4 epoch 5/6 [7/8] 12 samples/s'";
    let task = format!("{CARMA} virtual-task --sm 0.5 --startup 0 --work 60704s");
    let start = |seconds: &str, line: &str| {
        let args = [&VIRTUAL[..], &[seconds, "--warmup=0.2", "--grace=1", "--json", "--", "/bin/sh", "-c"]];
        profile(&args.concat()).arg(line).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
    };
    // To the end of the window.
    let mut carma = start("--seconds=1", &format!("{task} & exec {flood}"));
    assert_eq!(end_of(&mut carma).and_then(|status| status.code()), Some(0));
    let measured = only(&carma.wait_with_output().unwrap());
    assert!((measured.metrics.smact_pct.unwrap().mean - 50.0).abs() < 5.0, "{measured:?}");
    // Until the user has had enough, of a command that never begins.
    let mut carma = start("--seconds=1", &format!("exec {flood}"));
    // All the while it reads: nothing that could be waited for.
    std::thread::sleep(Duration::from_secs(1));
    interrupt(&carma);
    assert_eq!(end_of(&mut carma).and_then(|status| status.code()), Some(130));
    // From what is left behind.
    let mut carma = start("--seconds=60", &format!("setsid {flood} & {task} & sleep 3"));
    assert_eq!(end_of(&mut carma).and_then(|status| status.code()), Some(0));
    assert!(!alive("60704s") && !alive("step 1/2 iter 3/4 epoch 5/6 [7/8] 12 samples/s"));
}

/// The folder in which the meter of this profile is.
fn folder(child: &Child) -> PathBuf {
    PathBuf::from(format!("/dev/shm/carma-profile-{}-0", child.id()))
}

#[test]
fn a_closed_terminal_ends_the_command_and_a_killed_profile_too() {
    let start = |word: &str| {
        let args = [&VIRTUAL[..], &["--", CARMA, "virtual-task", word]].concat();
        let mut carma = profile(&args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(carma.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(alive(word) && folder(&carma).is_dir(), "{line}");
        carma
    };
    for by in [Signal::HUP, Signal::QUIT] {
        let mut carma = start("--work=60705s");
        signal(&carma, by);
        assert_eq!(end_of(&mut carma).and_then(|status| status.code()), Some(130));
        assert!(!alive("--work=60705s") && !folder(&carma).exists());
    }
    let mut carma = start("--work=60706s");
    let left = folder(&carma);
    carma.kill().unwrap();
    carma.wait().unwrap();
    until("the command to be killed", || (!alive("--work=60706s")).then_some(()));
    // Of another that lives, and of one that is not seen but holds on to it.
    let lives = PathBuf::from(format!("/dev/shm/carma-profile-{}-7", std::process::id()));
    let held = PathBuf::from("/dev/shm/carma-profile-4294967290-7");
    [&lives, &held].iter().for_each(|dir| std::fs::create_dir(dir).unwrap());
    let lock = std::fs::File::open(&held).unwrap();
    lock.try_lock().unwrap();
    profile(&[&VIRTUAL[..], &["--", "true"]].concat()).output().unwrap();
    let there = [&left, &lives, &held].map(|dir| dir.is_dir());
    [&lives, &held].iter().for_each(|dir| std::fs::remove_dir(dir).unwrap());
    assert_eq!(there, [false, true, true]);
}

#[test]
fn a_command_may_go_on_after_the_window() {
    let output = on_virtual(&["--seconds=0.5", "--warmup=0", "--keep-running"], &["--work=3s"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).contains("done: 3 virtual s of work"), "{}", stdout(&output));
}

#[test]
fn rates_under_shares_of_the_threads() {
    let options = ["--seconds=1", "--warmup=0.2", "--json", "--rates-by-threads=25,50,50"];
    let output = on_virtual(&options, &["--sm=0.9", "--work=600s", "--progress=datagrams"]);
    let profile = only(&output);
    assert_eq!(stderr(&output).matches("again with 50 %").count(), 1, "{}", stderr(&output));
    let alone = profile.rate.clone().unwrap().per_s;
    let of = |pct: u8| profile.rate_by_threads_pct[&pct] / alone;
    assert!(of(25) < of(50) && of(50) < 0.9, "{profile:?}");
    assert_eq!(profile.curve().len(), 2);
}

#[test]
fn what_was_measured_is_kept_where_a_later_run_fails() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("p.json");
    // The third start fails: that with 50 % of the threads.
    let task = format!(
        "echo >>starts; [ $(wc -l <starts) -lt 3 ] || exit 3; exec {CARMA} virtual-task --startup=300ms --sm=0.9 --work=600s --progress=datagrams"
    );
    let options = ["--seconds=1", "--warmup=0.2", "--rates-by-threads=25,50", "-o", "p.json", "-J", "a"];
    let args = [&VIRTUAL[..], &options, &["--", "/bin/sh", "-c", &task]].concat();
    let output = profile(&args).current_dir(dir.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = stderr(&output);
    assert!(said.contains("with 50 % of the threads: no profile:") && said.contains("exit code 3"), "{said}");
    let kept = Profiles::read(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let kept = kept.task("a").unwrap();
    assert!(kept.rate.is_some() && kept.rate_by_threads_pct.keys().eq([&25]), "{kept:?}");
}

/// A machine with a driver's stand-in.
struct Machine {
    library: TempDir,
    state: State,
}

impl Machine {
    fn with(gpus: Vec<FakeGpu>) -> Self {
        let library = tempfile::tempdir().unwrap();
        let state = State::of(gpus);
        stage(library.path(), &state).unwrap();
        Self { library, state }
    }

    fn set(&mut self, change: impl FnOnce(&mut State)) {
        change(&mut self.state);
        set_state(self.library.path(), &self.state).unwrap();
    }

    fn profile(&self, args: &[&str]) -> Command {
        let mut command = profile(&[&["profile"], args].concat());
        command.env("LD_LIBRARY_PATH", self.library.path()).env_remove("CUDA_VISIBLE_DEVICES");
        command
    }
}

fn h200(uuid: &str) -> FakeGpu {
    FakeGpu { uuid: uuid.into(), ..FakeGpu::default() }
}

fn holds(pid: u32, mib: u64) -> FakeProcess {
    FakeProcess { pid, used_mib: Some(mib), ..FakeProcess::default() }
}

/// Tells its pid and its device, then prints steps.
const STEPS: &str =
    "echo $$ $CUDA_VISIBLE_DEVICES; i=0; while :; do i=$((i+1)); echo step $i/100000; sleep 0.1; done";

#[test]
fn through_nvml() {
    let mut machine = Machine::with(vec![h200("GPU-a"), h200("GPU-b")]);
    machine.set(|state| state.gpus[0].processes = vec![holds(std::process::id(), 30_000)]);
    let args = ["--seconds=4", "--warmup=0.5", "--json", "--", "/bin/sh", "-c", STEPS];
    let mut carma = machine.profile(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The command's output, on standard error because standard output is for JSON.
    let mut said = BufReader::new(carma.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    let (pid, gpu) = line.trim().split_once(' ').unwrap();
    assert_eq!(gpu, "GPU-b", "the first is in use");
    let pid = pid.parse().unwrap();
    machine.set(|state| {
        let gpu = &mut state.gpus[1];
        gpu.processes = vec![holds(pid, 5_200)];
        gpu.gpm = Some(FakeGpm { fp64: None, ..FakeGpm::all(40.0) });
        (gpu.power_mw, gpu.utilization, gpu.memory_utilization) = (Some(412_000), Some(97), 31);
    });
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    let profile = only(&carma.wait_with_output().unwrap());
    assert!(rest.contains("step 5/100000"), "{rest}");
    let mean = |stat: Option<carma_interference::profile::Stat>| stat.map(|stat| stat.mean.round());
    let m = &profile.metrics;
    assert_eq!(
        (mean(m.smact_pct), mean(m.smocc_pct), mean(m.drama_pct)),
        (Some(40.0), Some(40.0), Some(40.0))
    );
    assert_eq!((mean(m.tensor_pct), mean(m.fp16_pct), mean(m.fp64_pct)), (Some(40.0), Some(40.0), None));
    assert_eq!(
        (mean(m.pcie_rx_mib_s), mean(m.power_w), mean(m.sm_clock_mhz)),
        (Some(40.0), Some(412.0), Some(1980.0))
    );
    assert_eq!(
        (mean(m.gpu_util_pct), mean(m.mem_util_pct), mean(m.memory_mib)),
        (Some(97.0), Some(31.0), Some(5200.0))
    );
    let rate = profile.rate.clone().unwrap();
    assert_eq!((rate.source, rate.unit.as_deref()), (Some(RateSource::Printed), Some("steps")));
    assert_eq!(profile.gpu.as_deref(), Some("NVIDIA H200"));
}

#[test]
fn a_gpu_in_use_is_refused_or_said() {
    let mut machine = Machine::with(vec![FakeGpu { gpm: Some(FakeGpm::all(50.0)), ..h200("GPU-a") }]);
    machine.set(|state| state.gpus[0].processes = vec![holds(std::process::id(), 30_000)]);
    let refused = machine.profile(&["--", "/bin/sh", "-c", STEPS]).output().unwrap();
    assert_eq!(refused.status.code(), Some(75), "{}", stderr(&refused));
    let pid = format!("pid {}", std::process::id());
    assert!(
        stderr(&refused).contains(&pid) && stderr(&refused).contains("--shared-ok"),
        "{}",
        stderr(&refused)
    );
    let args = ["--shared-ok", "--seconds=1", "--warmup=0", "--json", "--", "/bin/sh", "-c", STEPS];
    let measured = only(&machine.profile(&args).output().unwrap());
    assert!(
        measured.remarks.iter().any(|r| r.contains("not alone") && r.contains(&pid)),
        "{:?}",
        measured.remarks
    );
    for (gpu, said) in [("7", "names no GPU"), ("GPU-x", "there are: 0 GPU-a")] {
        let output = machine.profile(&["--gpu", gpu, "--", "true"]).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(said), "{}", stderr(&output));
    }
}

#[test]
fn a_daemons_jobs_are_in_the_way_too() {
    let machine = Machine::with(vec![h200("GPU-a")]);
    let daemon = Setup::new("nvml").env("LD_LIBRARY_PATH", machine.library.path().to_str().unwrap()).start();
    let id = daemon.submit(job(&["/bin/sleep", "607"]));
    daemon.in_state(id, "RUNNING");
    let refused = machine.profile(&["--", "true"]).env("CARMA_SOCKET", daemon.socket()).output().unwrap();
    assert_eq!(refused.status.code(), Some(75), "{}", stderr(&refused));
    assert!(stderr(&refused).contains(&format!("job {id} of the carma daemon")), "{}", stderr(&refused));
    daemon.carma(&["cancel", &id.to_string()]);
    daemon.end_of(id);
    until("the GPU to be free", || daemon.gpus().gpus[0].tenants.is_empty().then_some(()));
    let args = ["--patience=0.3", "--", "true"];
    let warned = machine.profile(&args).env("CARMA_SOCKET", daemon.socket()).output().unwrap();
    assert!(stderr(&warned).contains("`carma drain 0` keeps it off"), "{}", stderr(&warned));
}

#[test]
fn a_driver_that_hangs_leaves_a_gap_that_is_said() {
    let mut machine = Machine::with(vec![FakeGpu { gpm: Some(FakeGpm::all(50.0)), ..h200("GPU-a") }]);
    let args = ["--seconds=6", "--warmup=0", "--json", "--", "/bin/sh", "-c", STEPS];
    let mut carma = machine.profile(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(carma.stderr.take().unwrap()).lines();
    said.find(|line| line.as_ref().is_ok_and(|line| line.starts_with("step 10/"))).unwrap().unwrap();
    let drain = std::thread::spawn(move || said.count());
    machine.set(|state| {
        let hang = Fault { hang_ms: Some(60_000), ..Fault::default() };
        state.faults.insert("nvmlDeviceGetMemoryInfo".into(), hang);
    });
    // The length of the gap.
    std::thread::sleep(Duration::from_millis(2500));
    machine.set(|state| state.faults.clear());
    let profile = only(&carma.wait_with_output().unwrap());
    drain.join().unwrap();
    let remark = profile.remarks.iter().find(|remark| remark.contains("no readings for"));
    assert!(remark.is_some_and(|remark| remark.contains("NVML does not answer")), "{:?}", profile.remarks);
    assert_eq!(profile.metrics.smact_pct.unwrap().mean.round(), 50.0);
}

/// Stands in for Nsight Compute: writes what it was asked, runs the program for a moment, and leaves a table.
const NCU: &str = r#"#!/bin/sh
echo "$@" >"${0%/*}/asked"
while [ $# -gt 0 ]; do
    case $1 in
    --log-file) log=$2; shift 2 ;;
    --csv) shift ;;
    -*) shift 2 ;;
    *) break ;;
    esac
done
echo "profiled: $@"
cat "${0%/*}/table" >"$log"
"#;

const TABLE: &str = r#"==PROF== Connected to process 4711
"ID","Process ID","Kernel Name","Block Size","Grid Size","Section Name","Metric Name","Metric Unit","Metric Value"
"0","4711","gemm","(256, 1, 1)","(1,024, 1, 1)","SOL","Duration","us","10.00"
"0","4711","gemm","(256, 1, 1)","(1,024, 1, 1)","SOL","Compute (SM) Throughput","%","62.10"
"0","4711","gemm","(256, 1, 1)","(1,024, 1, 1)","SOL","Memory Throughput","%","41.00"
"0","4711","gemm","(256, 1, 1)","(1,024, 1, 1)","SOL","DRAM Throughput","%","12.00"
"0","4711","gemm","(256, 1, 1)","(1,024, 1, 1)","LaunchStats","Grid Size","","1,024"
"0","4711","gemm","(256, 1, 1)","(1,024, 1, 1)","LaunchStats","Block Size","","256"
"0","4711","gemm","(256, 1, 1)","(1,024, 1, 1)","LaunchStats","Registers Per Thread","register/thread","32"
"0","4711","gemm","(256, 1, 1)","(1,024, 1, 1)","LaunchStats","Static Shared Memory Per Block","Kbyte/block","1.02"
==PROF== Disconnected from process 4711
"#;

#[test]
fn kernels_by_nsight_compute() {
    let machine = Machine::with(vec![FakeGpu { gpm: Some(FakeGpm::all(50.0)), ..h200("GPU-a") }]);
    let dir = tempfile::tempdir().unwrap();
    let ncu = dir.path().join("ncu");
    std::fs::write(&ncu, NCU).unwrap();
    std::fs::set_permissions(&ncu, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(dir.path().join("table"), TABLE).unwrap();
    let run = |more: &[&str]| {
        let options = ["--seconds=1", "--warmup=0", "--kernels", "--ncu", ncu.to_str().unwrap()];
        machine
            .profile(&[&options[..], more, &["--", "/bin/sh", "-c", STEPS, "-x"]].concat())
            .output()
            .unwrap()
    };
    let output = run(&["--json", "--kernel-skip=7", "--kernel-count=9"]);
    let kernels = only(&output).kernels.unwrap();
    assert_eq!((kernels.threads, kernels.sm_throughput_pct.round()), (1024.0 * 256.0, 62.0));
    assert_eq!(kernels.static_shared_memory.round(), 1024.0 * 1020.0);
    assert!(stderr(&output).contains("profiled: /bin/sh -c"), "{}", stderr(&output));
    let asked = std::fs::read_to_string(dir.path().join("asked")).unwrap();
    assert!(asked.contains("--launch-skip 7 --launch-count 9"), "{asked}");
    let table = run(&[]);
    assert!(
        stdout(&table).contains("SM throughput") && stdout(&table).contains("kernels: 1 launches"),
        "{}",
        stdout(&table)
    );

    std::fs::write(
        dir.path().join("table"),
        "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n",
    )
    .unwrap();
    let file = dir.path().join("k.json");
    let refused = run(&["-J", "steps", "-o", file.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("NVreg_RestrictProfilingToAdminUsers=0"), "{}", stderr(&refused));
    let kept = || Profiles::read(&std::fs::read_to_string(&file).unwrap()).unwrap().tasks.remove(0);
    assert!(kept().rate.is_some() && kept().kernels.is_none(), "{:?}", kept());
    // A number that no command would read again.
    let beyond = TABLE.replace("\"12.00\"", "\"106.2\"");
    std::fs::write(dir.path().join("table"), beyond).unwrap();
    let output = run(&["-J", "steps", "-o", file.to_str().unwrap(), "--append"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let remark = kept().remarks.into_iter().find(|remark| remark.contains("Nsight Compute said"));
    assert!(remark.is_some_and(|remark| remark.contains("dram_throughput_pct is 106.2")), "{:?}", kept());
    assert!(kept().kernels.is_none());
    let args = ["--kernels", "--ncu", "/nonexistent/ncu", "--", "true"];
    assert_eq!(machine.profile(&args).output().unwrap().status.code(), Some(2));
    let absent = machine.profile(&["--kernels", "--", "true"]).env("PATH", "/nonexistent").output().unwrap();
    if Path::new("/usr/local/cuda/bin/ncu").exists() || Path::new("/opt/nvidia/nsight-compute").exists() {
        eprintln!("SKIPPED: this machine has Nsight Compute");
        return;
    }
    assert!(stderr(&absent).contains("it comes with the CUDA toolkit"), "{}", stderr(&absent));
}
