//! The real NVIDIA path, from NVML to decisions, on a library that stands in for the driver's.

use crate::support::{Daemon, Setup, is_root, job, stderr, stdout, until};
use fake_nvml::{FakeGpm, FakeGpu, FakeProcess, Fault, State, set_state, stage};
use std::path::Path;
use tempfile::TempDir;

fn h200(uuid: &str) -> FakeGpu {
    FakeGpu { uuid: uuid.into(), name: "NVIDIA H200".into(), ..FakeGpu::default() }
}

fn calm() -> FakeGpm {
    FakeGpm::all(10.0)
}

struct Machine {
    library: TempDir,
    state: State,
    daemon: Daemon,
}

impl Machine {
    fn start(gpus: Vec<FakeGpu>, change: impl FnOnce(Setup) -> Setup) -> Self {
        let library = tempfile::tempdir().unwrap();
        let state = State::of(gpus);
        stage(library.path(), &state).unwrap();
        let setup = Setup::new("nvml").env("LD_LIBRARY_PATH", library.path().to_str().unwrap());
        let daemon = change(setup).start();
        Self { library, state, daemon }
    }

    fn set(&mut self, change: impl FnOnce(&mut State)) {
        change(&mut self.state);
        set_state(self.library.path(), &self.state).unwrap();
    }
}

#[test]
fn readings_jobs_and_strangers() {
    let gpu = FakeGpu { gpm: Some(calm()), power_mw: Some(212_000), ..h200("GPU-a") };
    let mut machine = Machine::start(vec![gpu], |s| s.args(&["--policy", "oracle-magm"]));
    let mut request = job(&["/bin/sleep", "604"]);
    request.gpu_memory_mib = Some(20 * 1024);
    let id = machine.daemon.submit(request);
    let pid = until("the job's pid", || machine.daemon.show(id).pid);
    let stranger = std::process::id();
    machine.set(|state| {
        let process = |pid, mib| FakeProcess { pid, used_mib: Some(mib), ..FakeProcess::default() };
        state.gpus[0].processes = vec![process(pid, 9_000), process(stranger, 30_000)];
    });
    let gpu = until("both processes to be seen", || {
        let gpu = machine.daemon.gpus().gpus.remove(0);
        (gpu.foreign.len() == 1 && gpu.tenants.first()?.observed_mib.is_some()).then_some(gpu)
    });
    assert_eq!((gpu.kind.as_str(), gpu.uuid.as_str()), ("gpu", "GPU-a"));
    assert_eq!(gpu.tenants[0].observed_mib, Some(9_000));
    assert_eq!((gpu.foreign[0].pid, gpu.foreign[0].memory_mib), (stranger, Some(30_000)));
    assert_eq!(gpu.power_w, Some(212.0));
    until("activity", || machine.daemon.gpus().gpus[0].smact.filter(|s| (s - 0.1).abs() < 1e-6));
    let table = stdout(&machine.daemon.carma(&["gpus"]));
    assert!(table.contains("H200") && table.contains(&format!("pid {stranger}")), "{table}");
    assert!(!table.contains("irtual"), "a real GPU's path is not called virtual: {table}");
    // What does not fit waits, with the stranger named.
    let mut request = job(&["/bin/true"]);
    request.gpu_memory_mib = Some(110 * 1024);
    let waiting = machine.daemon.submit(request);
    let reason = until("the reason", || {
        let reason = machine.daemon.show(waiting).job.reason;
        (reason.code == "GpuMemory").then_some(reason.text)
    });
    assert!(reason.contains(&format!("held by pid {stranger}")) && reason.contains("not ours"), "{reason}");
    machine.set(|state| state.gpus[0].processes.clear());
    machine.daemon.carma(&["cancel", &id.to_string()]);
    assert_eq!(machine.daemon.end_of(waiting).job.state, "COMPLETED");
}

#[test]
fn where_activity_cannot_be_read_the_default_shares_by_what_is_typical() {
    let a100 = FakeGpu { name: "NVIDIA A100-SXM4-40GB".into(), gpm: None, ..h200("GPU-old") };
    let machine = Machine::start(vec![a100], |s| s);
    let mut request = job(&["/bin/sleep", "605"]);
    request.gpu_memory_mib = Some(2 * 1024);
    let first = machine.daemon.submit(request.clone());
    machine.daemon.in_state(first, "RUNNING");
    let second = machine.daemon.submit(request);
    machine.daemon.in_state(second, "RUNNING");
    // There is no MPS on this machine, and carma says so.
    let table = stdout(&machine.daemon.carma(&["gpus"]));
    assert!(table.contains("time-sliced, without MPS: nvidia-cuda-mps-control is not there"), "{table}");
    assert_eq!(machine.daemon.show(second).attempts[0].sharing.to_string(), "time-slice");
    machine.daemon.carma(&["cancel", &first.to_string(), &second.to_string()]);
}

#[test]
fn where_activity_cannot_be_read_a_gate_stays_closed() {
    let a100 = FakeGpu { name: "NVIDIA A100-SXM4-40GB".into(), gpm: None, ..h200("GPU-old") };
    let machine = Machine::start(vec![a100], |s| s.args(&["--policy", "carma"]));
    let mut request = job(&["/bin/sleep", "605"]);
    request.gpu_memory_mib = Some(2 * 1024);
    let first = machine.daemon.submit(request.clone());
    machine.daemon.in_state(first, "RUNNING");
    let second = machine.daemon.submit(request);
    let reason = until("the reason", || {
        let reason = machine.daemon.show(second).job.reason;
        (reason.code == "MetricMissing").then_some(reason.text)
    });
    assert!(reason.contains("SMACT"), "{reason}");
    let explain = stdout(&machine.daemon.carma(&["explain", &second.to_string()]));
    assert!(explain.contains("not shared"), "{explain}");
    let table = stdout(&machine.daemon.carma(&["gpus"]));
    let header = table.lines().find(|l| l.contains("GPU")).unwrap_or_default();
    assert!(!header.contains("SMACT"), "an absent column, not zeros: {table}");
    machine.daemon.carma(&["cancel", &first.to_string(), &second.to_string()]);
}

#[test]
fn a_driver_that_hangs_stops_placement_and_nothing_else() {
    let gpu = FakeGpu { gpm: Some(calm()), ..h200("GPU-a") };
    let mut machine = Machine::start(vec![gpu], |s| s);
    assert_eq!(machine.daemon.end_of(machine.daemon.shell("exit 0")).job.state, "COMPLETED");
    machine.set(|state| {
        let fault = Fault { hang_ms: Some(600_000), ..Fault::default() };
        state.faults.insert("nvmlDeviceGetMemoryInfo".into(), fault);
    });
    until("the GPU to be unreadable", || {
        (machine.daemon.gpus().gpus[0].status == "unreadable").then_some(())
    });
    let id = machine.daemon.shell("exit 0");
    let reason = until("the job to wait for it", || {
        let reason = machine.daemon.show(id).job.reason;
        (reason.code == "GpuUnavailable").then_some(reason.text)
    });
    assert!(reason.contains("NVML does not answer"), "{reason}");
    machine.set(|state| state.faults.clear());
    assert_eq!(machine.daemon.end_of(id).job.state, "COMPLETED");
}

#[test]
fn an_outer_limit_is_carmas_own() {
    let gpus = ["GPU-a", "GPU-b", "GPU-c"].map(|uuid| FakeGpu { gpm: Some(calm()), ..h200(uuid) });
    let machine = Machine::start(gpus.to_vec(), |s| s.env("CUDA_VISIBLE_DEVICES", "2,GPU-a"));
    let mut uuids: Vec<String> = machine.daemon.gpus().gpus.into_iter().map(|g| g.uuid).collect();
    uuids.sort();
    assert_eq!(uuids, ["GPU-a", "GPU-c"]);
}

#[test]
fn mig_instances_are_listed_and_given_out() {
    let mig = |uuid: &str, id| fake_nvml::FakeMig {
        uuid: uuid.into(),
        profile: "1g.18gb".into(),
        memory_total_mib: 16_384,
        gpu_instance_id: id,
        ..Default::default()
    };
    let gpu = FakeGpu { mig: Some(vec![mig("MIG-1", 7), mig("MIG-2", 8)]), ..h200("GPU-a") };
    let machine = Machine::start(vec![gpu], |s| s.args(&["--policy", "exclusive"]));
    let ids = [0, 1].map(|_| machine.daemon.shell("echo $CUDA_VISIBLE_DEVICES; sleep 0.5"));
    let mut seen = ids.map(|id| {
        machine.daemon.end_of(id);
        machine.daemon.output(id)
    });
    seen.sort();
    assert_eq!(seen, ["MIG-1\n", "MIG-2\n"]);
    let kinds: Vec<String> = machine.daemon.gpus().gpus.into_iter().map(|g| g.kind).collect();
    assert_eq!(kinds, ["mig", "mig"]);
}

#[test]
fn without_a_driver_the_daemon_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let output = std::process::Command::new(crate::support::CARMA)
        .arg("--socket")
        .arg(dir.path().join("s"))
        .args(["serve", "--state"])
        .arg(dir.path().join("state"))
        .output()
        .unwrap();
    if output.status.success() || Path::new("/dev/nvidiactl").exists() {
        eprintln!("SKIPPED: this machine has a driver");
        return;
    }
    assert!(stderr(&output).contains("--gpus virtual:"), "{}", stderr(&output));
}

#[test]
fn mps_daemons_are_started_for_the_job_and_capped() {
    let library = tempfile::tempdir().unwrap();
    let control = library.path().join("nvidia-cuda-mps-control");
    let fake = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpu/tests/fake-mps-control");
    std::fs::copy(fake, &control).unwrap();
    crate::support::open_to_all(library.path());
    let state = State::of(vec![FakeGpu { gpm: Some(calm()), ..h200("GPU-a") }]);
    stage(library.path(), &state).unwrap();
    let daemon = Setup::new("nvml")
        .env("LD_LIBRARY_PATH", library.path().to_str().unwrap())
        .args(&["--sharing", "mps"])
        .config(&format!("[mps]\ncontrol = '{}'\n", control.display()))
        .start();
    let mut request = job(&["/bin/sh", "-c", "env | grep MPS | sort"]);
    request.gpu_memory_mib = Some(3 * 1024);
    request.thread_pct = Some(25);
    let id = daemon.submit(request.clone());
    assert_eq!(daemon.end_of(id).job.state, "COMPLETED", "{}", daemon.log());
    let output = daemon.output(id);
    assert!(output.contains("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=3072M\n"), "{output}");
    assert!(output.contains("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25\n"), "{output}");
    assert!(output.contains("CUDA_MPS_PIPE_DIRECTORY="), "{output}");
    let detail = daemon.show(id);
    assert_eq!(detail.attempts[0].sharing.to_string(), "mps");
    // A control program that fails: time-slice, and the job runs.
    std::fs::write(library.path().join("fail"), "").unwrap();
    let pipes = Path::new(&daemon.status().runtime_dir).join("mps");
    for entry in std::fs::read_dir(pipes).unwrap().flatten() {
        let _ = std::fs::remove_file(entry.path().join("pipe/nvidia-cuda-mps-control.pid"));
    }
    let by_turns = || {
        // A control program that takes long to say that nothing runs is taken to be busy, for ten seconds.
        let over = daemon.end_of(daemon.submit(request.clone()));
        assert_eq!(over.job.state, "COMPLETED");
        (over.attempts[0].sharing.to_string() == "time-slice").then_some(())
    };
    until("a job that takes turns", by_turns);
    assert!(daemon.log().contains("MPS cannot be had"), "{}", daemon.log());
    if !is_root() {
        eprintln!("note: MPS daemons of other users were not tried, that needs root");
    }
}

#[test]
fn every_metric_that_is_read_is_shown() {
    let gpm = FakeGpm { fp64: None, ..FakeGpm::all(40.0) };
    let read = FakeGpu {
        gpm: Some(gpm),
        power_mw: Some(412_000),
        utilization: Some(97),
        memory_utilization: 31,
        ..h200("GPU-a")
    };
    let machine = Machine::start(vec![read], |s| s);
    let gpu = until("a sample", || {
        let reply: serde_json::Value =
            serde_json::from_str(&stdout(&machine.daemon.carma(&["gpus", "--json"]))).unwrap();
        let gpu = reply["gpus"][0].clone();
        (gpu["gract"].is_number() && gpu["smact"].is_number()).then_some(gpu)
    });
    for key in ["gract", "smact", "smocc", "drama", "tensor", "fp32", "fp16"] {
        assert!((gpu[key].as_f64().unwrap() - 0.4).abs() < 1e-6, "{key}: {gpu}");
    }
    for key in ["pcie_tx_mib_s", "pcie_rx_mib_s"] {
        assert_eq!(gpu[key], 40, "{key}: {gpu}");
    }
    assert_eq!((&gpu["gpu_util"], &gpu["mem_util"]), (&0.97.into(), &0.31.into()), "{gpu}");
    assert_eq!((&gpu["power_w"], &gpu["sm_clock_mhz"]), (&412.0.into(), &1980.into()), "{gpu}");
    assert!(gpu["fp64"].is_null(), "what is not known is no 0: {gpu}");
}
