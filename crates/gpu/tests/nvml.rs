//! The NVML probe against a fake NVIDIA driver, loaded as the real one would be.

#![allow(clippy::unwrap_used, clippy::panic, reason = "in a test a panic is the report")]

use carma_core::reading::{Activity, GpuKind, GpuReading, Health, ProcessReading};
use carma_core::units::{Fraction, MiB, Millis};
use carma_gpu::nvml::{self, parse_visible};
use carma_gpu::{NvmlOptions, NvmlProbe, Probe, ProbeError};
use fake_nvml::{FakeGpm, FakeGpu, FakeMig, FakeProcess, Fault, State};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Short, for the tests that miss it.
const DEADLINE: Duration = Duration::from_millis(250);
/// More than two GPM samples must lie apart.
const APART: Duration = Duration::from_millis(110);

/// A machine with a driver of its own.
struct Machine {
    folder: tempfile::TempDir,
    library: PathBuf,
}

impl Machine {
    fn with(state: &State) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let library = fake_nvml::stage(folder.path(), state).unwrap();
        Self { folder, library }
    }

    fn now(&self, state: &State) {
        fake_nvml::set_state(self.folder.path(), state).unwrap();
    }

    fn options(&self) -> NvmlOptions {
        NvmlOptions {
            library: Some(self.library.clone()),
            // Never missed, however busy the machine that runs the tests.
            deadline: Duration::from_secs(30),
            ..NvmlOptions::default()
        }
    }

    fn open(&self) -> NvmlProbe {
        nvml::open(&self.options()).unwrap()
    }

    fn limited(&self, visible: &str) -> Result<NvmlProbe, ProbeError> {
        nvml::open(&NvmlOptions { visible: Some(parse_visible(visible)), ..self.options() })
    }
}

fn gpu(uuid: &str) -> FakeGpu {
    FakeGpu { uuid: uuid.to_owned(), ..FakeGpu::default() }
}

fn process(pid: u32, mib: u64) -> FakeProcess {
    FakeProcess { pid, used_mib: Some(mib), ..FakeProcess::default() }
}

fn returns(code: u32) -> Fault {
    Fault { code: Some(code), ..Fault::default() }
}

fn hangs_for_a_minute() -> Fault {
    Fault { hang_ms: Some(60_000), ..Fault::default() }
}

fn read(probe: &mut dyn Probe) -> Vec<GpuReading> {
    probe.tick(Millis(7)).gpus
}

fn unavailable(opened: Result<NvmlProbe, ProbeError>) -> String {
    match opened {
        Err(ProbeError::Unavailable(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_inventory_lists_whole_gpus_in_the_drivers_order() {
    let old = FakeGpu {
        name: "NVIDIA A100-SXM4-40GB".to_owned(),
        memory_total_mib: 40_960,
        gpm: None,
        ..gpu("GPU-b")
    };
    let machine = Machine::with(&State::of(vec![gpu("GPU-a"), old]));
    let probe = machine.open();
    let probe: Box<dyn Probe> = Box::new(probe);
    let [a, b] = probe.inventory() else { panic!("{:?}", probe.inventory()) };
    assert_eq!((&*a.uuid, a.index, a.name.as_str()), ("GPU-a", 0, "NVIDIA H200"));
    assert_eq!((a.memory, &a.kind, a.has_activity), (MiB(143_771), &GpuKind::Whole, true));
    assert_eq!((&*b.uuid, b.index, b.name.as_str()), ("GPU-b", 1, "NVIDIA A100-SXM4-40GB"));
    assert_eq!((b.memory, &b.kind, b.has_activity), (MiB(40_960), &GpuKind::Whole, false));
}

#[test]
fn memory_in_use_is_all_that_a_job_cannot_have() {
    let busy = FakeGpu {
        memory_used_mib: Some(20_000),
        reserved_mib: 600,
        power_mw: Some(523_400),
        energy_mj: Some(9_000_000_000_000),
        utilization: Some(100),
        memory_utilization: 37,
        sm_clock_mhz: Some(1_755),
        memory_clock_mhz: Some(2_619),
        ..gpu("GPU-a")
    };
    let state = State::of(vec![busy]);
    let machine = Machine::with(&state);
    let mut probe = machine.open();
    assert_eq!(probe.driver_version(), "580.159");
    let snapshot = probe.tick(Millis(7));
    assert_eq!(snapshot.at, Millis(7));
    let reading = &snapshot.gpus[0];
    assert_eq!(reading.health, Health::Ok);
    assert_eq!(reading.memory_used, Some(MiB(20_600)));
    assert_eq!(reading.power_mw, Some(523_400));
    assert_eq!(reading.energy_mj, Some(9_000_000_000_000));
    assert_eq!(reading.activity.gpu_util, Some(Fraction::ONE));
    assert_eq!(reading.activity.mem_util, Some(Fraction::percent(37)));
    assert_eq!((reading.sm_clock_mhz, reading.memory_clock_mhz), (Some(1_755), Some(2_619)));
    assert_eq!(reading.processes, Some(vec![]));

    // A driver that has only the older call tells the same.
    machine.now(&state.with_fault("nvmlDeviceGetMemoryInfo_v2", returns(13)));
    assert_eq!(read(&mut probe)[0].memory_used, Some(MiB(20_600)));
}

#[test]
fn each_process_is_listed_once() {
    let client = FakeProcess { mps: true, ..process(4_000_001, 1_300) };
    let screen = FakeProcess { graphics: true, ..process(4_000_002, 90) };
    let silent = FakeProcess { used_mib: None, ..process(4_000_003, 0) };
    let both = [process(4_000_004, 100), FakeProcess { graphics: true, ..process(4_000_004, 120) }];
    let processes = [vec![client, screen, silent], both.to_vec()].concat();
    let machine = Machine::with(&State::of(vec![FakeGpu { processes, ..gpu("GPU-a") }]));
    let found = read(&mut machine.open())[0].processes.clone();
    let held = |pid, mib: Option<u64>| ProcessReading { pid, memory: mib.map(MiB) };
    assert_eq!(
        found.unwrap(),
        [
            held(4_000_001, Some(1_300)),
            held(4_000_002, Some(90)),
            held(4_000_003, None),
            held(4_000_004, Some(120)),
        ]
    );
}

/// A job can take the name of the MPS server. Its process was left out once, and its memory was nobody's.
#[test]
fn a_process_with_the_name_of_the_mps_server_is_listed() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("nvidia-cuda-mps-server");
    std::fs::copy("/bin/sleep", &program).unwrap();
    // The child has its new name once exec is done, which spawn waits for.
    let mut named = Command::new(&program).arg("60").spawn().unwrap();
    let processes = vec![process(named.id(), 66)];
    let machine = Machine::with(&State::of(vec![FakeGpu { processes, ..gpu("GPU-a") }]));
    let found = read(&mut machine.open())[0].processes.clone();
    named.kill().unwrap();
    named.wait().unwrap();
    assert_eq!(found.unwrap(), [ProcessReading { pid: named.id(), memory: Some(MiB(66)) }]);
}

#[test]
fn a_list_that_is_not_whole_is_no_list() {
    let state = State::of(vec![FakeGpu { processes: vec![process(1, 5)], ..gpu("GPU-a") }]);
    let machine = Machine::with(&state);
    let mut probe = machine.open();
    let mut listed = |function: &str, code| {
        machine.now(&state.clone().with_fault(function, returns(code)));
        let reading = read(&mut probe).remove(0);
        assert_eq!(reading.health, Health::Ok);
        reading.processes.map(|processes| processes.len())
    };
    assert_eq!(listed("nvmlDeviceGetComputeRunningProcesses", 4), None);
    assert_eq!(listed("nvmlDeviceGetMPSComputeRunningProcesses", 4), None);
    // A device without such processes has none.
    assert_eq!(listed("nvmlDeviceGetGraphicsRunningProcesses", 3), Some(1));
}

#[test]
fn a_driver_that_has_only_the_older_list_of_processes_tells_the_same() {
    let client = FakeProcess { mps: true, ..process(1, 5) };
    let screen = FakeProcess { graphics: true, ..process(2, 7) };
    let state = State::of(vec![FakeGpu { processes: vec![client, screen], ..gpu("GPU-a") }]);
    let machine = Machine::with(&state);
    let mut probe = machine.open();
    let newest = read(&mut probe).remove(0).processes;
    assert_eq!(newest.as_ref().unwrap().len(), 2);
    let lists = ["Compute", "Graphics", "MPSCompute"];
    let before_510 = lists.iter().fold(state, |state, list| {
        state.with_fault(&format!("nvmlDeviceGet{list}RunningProcesses_v3"), returns(13))
    });
    machine.now(&before_510);
    assert_eq!(read(&mut probe).remove(0).processes, newest);
    // One that has neither tells nothing, rather than that there are none.
    machine.now(&before_510.with_fault("nvmlDeviceGetComputeRunningProcesses", returns(13)));
    assert_eq!(read(&mut probe).remove(0).processes, None);
}

#[test]
fn activity_is_the_difference_to_the_tick_before() {
    let at = |value| {
        let gpm = FakeGpm { fp64: None, tensor: Some(-1.0), ..FakeGpm::all(value) };
        State::of(vec![FakeGpu { gpm: Some(gpm), utilization: Some(40), ..gpu("GPU-a") }])
    };
    let machine = Machine::with(&at(20.0));
    let mut probe = machine.open();
    let mut activity = || read(&mut probe)[0].activity;
    let nothing_yet = Activity {
        gpu_util: Some(Fraction::percent(40)),
        mem_util: Some(Fraction(0)),
        ..Activity::default()
    };
    assert_eq!(activity(), nothing_yet);

    machine.now(&at(60.0));
    sleep(APART);
    let seen = activity();
    let mean = Some(Fraction::percent(40));
    assert_eq!((seen.gract, seen.smact, seen.smocc, seen.drama), (mean, mean, mean, mean));
    assert_eq!((seen.fp32, seen.fp16), (mean, mean));
    assert_eq!((seen.pcie_tx_mib_s, seen.pcie_rx_mib_s), (Some(40), Some(40)));
    assert_eq!((seen.fp64, seen.tensor), (None, None), "not supported; nonsense");

    machine.now(&at(250.0));
    sleep(APART);
    assert_eq!(activity().smact, Some(Fraction::ONE), "never more than all");
}

#[test]
fn samples_too_close_to_compare_are_not_compared() {
    let at = |value| State::of(vec![FakeGpu { gpm: Some(FakeGpm::all(value)), ..gpu("GPU-a") }]);
    let machine = Machine::with(&at(20.0));
    let mut probe = machine.open();
    read(&mut probe);
    sleep(APART);
    let began = Instant::now();
    let seen = read(&mut probe)[0].activity;
    assert_eq!(seen.smact, Some(Fraction::percent(20)));
    machine.now(&at(60.0));
    let again = read(&mut probe)[0].activity;
    // On a machine so busy that this took long, the samples were not too close.
    if began.elapsed() < Duration::from_millis(80) {
        assert_eq!(again, seen, "the last answer");
        sleep(APART);
        let mean = read(&mut probe)[0].activity.smact;
        assert_eq!(mean, Some(Fraction::percent(40)), "compared with the sample before");
    }
}

#[test]
fn a_failed_sample_starts_the_comparison_anew() {
    let state = State::of(vec![FakeGpu { gpm: Some(FakeGpm::all(50.0)), ..gpu("GPU-a") }]);
    let machine = Machine::with(&state);
    let mut probe = machine.open();
    let mut smact = || {
        sleep(APART);
        let reading = read(&mut probe).remove(0);
        assert_eq!(reading.health, Health::Ok);
        reading.activity.smact
    };
    assert_eq!((smact(), smact()), (None, Some(Fraction::percent(50))));
    machine.now(&state.clone().with_fault("nvmlGpmSampleGet", returns(999)));
    assert_eq!(smact(), None);
    machine.now(&state);
    assert_eq!((smact(), smact()), (None, Some(Fraction::percent(50))));
}

#[test]
fn what_a_gpu_does_not_tell_is_none() {
    let plain = FakeGpu {
        power_mw: None,
        energy_mj: None,
        utilization: None,
        sm_clock_mhz: None,
        memory_clock_mhz: None,
        gpm: None,
        ..gpu("GPU-a")
    };
    let machine = Machine::with(&State::of(vec![plain]));
    let mut probe = machine.open();
    read(&mut probe);
    sleep(APART);
    let reading = read(&mut probe).remove(0);
    assert_eq!(reading.health, Health::Ok);
    assert_eq!((reading.power_mw, reading.energy_mj, reading.sm_clock_mhz), (None, None, None));
    assert_eq!(reading.activity, Activity::default());

    // Counters that this user may not read are none, too.
    let forbidden = State::of(vec![gpu("GPU-a")]).with_fault("nvmlGpmSampleGet", returns(4));
    assert!(!Machine::with(&forbidden).open().inventory()[0].has_activity);
}

fn split() -> FakeGpu {
    let small = FakeMig {
        uuid: "MIG-1".to_owned(),
        gpu_instance_id: 9,
        processes: vec![process(4_000_001, 3_000)],
        gpm: Some(FakeGpm::all(30.0)),
        ..FakeMig::default()
    };
    let large = FakeMig {
        uuid: "MIG-2".to_owned(),
        profile: "3g.71gb".to_owned(),
        memory_total_mib: 71_000,
        gpu_instance_id: 2,
        ..FakeMig::default()
    };
    FakeGpu { mig: Some(vec![small, large]), ..gpu("GPU-b") }
}

#[test]
fn a_gpu_in_mig_mode_is_its_instances() {
    let machine = Machine::with(&State::of(vec![gpu("GPU-a"), split(), gpu("GPU-c")]));
    let mut probe = machine.open();
    let names: Vec<_> = probe.inventory().iter().map(|gpu| (gpu.index, &*gpu.uuid)).collect();
    assert_eq!(names, [(0, "GPU-a"), (1, "MIG-1"), (2, "MIG-2"), (3, "GPU-c")]);
    let large = &probe.inventory()[2];
    let kind = GpuKind::Mig { parent: "GPU-b".to_owned(), profile: "3g.71gb".to_owned() };
    assert_eq!((&large.kind, large.memory, large.has_activity), (&kind, MiB(71_000), true));

    read(&mut probe);
    sleep(APART);
    let small = read(&mut probe).remove(1);
    assert_eq!(small.health, Health::Ok);
    assert_eq!(small.memory_used, Some(MiB(3_000)));
    assert_eq!(small.processes.unwrap()[0].pid, 4_000_001);
    assert_eq!(small.activity.smact, Some(Fraction::percent(30)));
    assert_eq!(small.power_mw, None, "only the whole GPU's is known");

    machine.now(&State::of(vec![gpu("GPU-a"), FakeGpu { mig: None, ..split() }, gpu("GPU-c")]));
    let gone = read(&mut probe).remove(1);
    assert!(matches!(&gone.health, Health::Lost(why) if why.contains("MIG instance is gone")), "{gone:?}");
}

/// Each of them tells all of the memory as its own.
#[test]
fn an_instance_of_several_compute_instances_is_left_out() {
    let part = |uuid: &str, gpu_instance_id| FakeMig {
        uuid: uuid.to_owned(),
        gpu_instance_id,
        ..FakeMig::default()
    };
    let mig = Some(vec![part("MIG-1", 1), part("MIG-2", 2), part("MIG-3", 1), part("MIG-4", 3)]);
    let machine = Machine::with(&State::of(vec![FakeGpu { mig, ..gpu("GPU-a") }, gpu("GPU-b")]));
    let mut probe = machine.open();
    let names: Vec<_> = probe.inventory().iter().map(|gpu| (gpu.index, &*gpu.uuid)).collect();
    assert_eq!(names, [(0, "MIG-2"), (1, "MIG-4"), (2, "GPU-b")]);
    assert!(read(&mut probe).iter().all(|reading| reading.health == Health::Ok));

    let mig = Some(vec![part("MIG-1", 1), part("MIG-3", 1)]);
    let machine = Machine::with(&State::of(vec![FakeGpu { mig, ..gpu("GPU-a") }]));
    assert!(unavailable(nvml::open(&machine.options())).contains("no MIG instance that can be used"));
}

#[test]
fn a_gpu_that_is_switched_into_mig_mode_is_lost() {
    let whole = State::of(vec![gpu("GPU-a"), FakeGpu { mig: None, ..split() }]);
    let machine = Machine::with(&whole);
    let mut probe = machine.open();
    assert_eq!(read(&mut probe)[1].health, Health::Ok);
    machine.now(&State::of(vec![gpu("GPU-a"), split()]));
    let readings = read(&mut probe);
    assert_eq!(readings[0].health, Health::Ok);
    let lost = &readings[1];
    assert!(matches!(&lost.health, Health::Lost(why) if why.contains("in MIG mode now")), "{lost:?}");
    assert_eq!((lost.memory_used, &lost.processes), (None, &None));
    machine.now(&whole);
    assert_eq!(read(&mut probe)[1].health, Health::Ok, "switched back");

    // One that has no MIG mode is not asked again.
    let without = Machine::with(&whole.clone().with_fault("nvmlDeviceGetMigMode", returns(3)));
    let mut probe = without.open();
    let hangs = whole.with_fault("nvmlDeviceGetMigMode", hangs_for_a_minute());
    without.now(&hangs);
    assert_eq!(read(&mut probe)[1].health, Health::Ok);
}

#[test]
fn carma_stays_within_its_own_cuda_visible_devices() {
    let machine = Machine::with(&State::of(vec![gpu("GPU-a"), split(), gpu("GPU-c")]));
    let left = |visible| {
        let mut probe = machine.limited(visible).unwrap();
        let uuids: Vec<_> = probe.inventory().iter().map(|gpu| gpu.uuid.to_string()).collect();
        assert_eq!(read(&mut probe).len(), uuids.len());
        uuids.join(" ")
    };
    assert_eq!(left("2,0"), "GPU-a GPU-c");
    assert_eq!(left("1"), "MIG-1 MIG-2");
    assert_eq!(left("MIG-2,GPU-c"), "MIG-2 GPU-c");
    assert!(unavailable(machine.limited("0,7")).contains("\"7\" names no GPU here"));
    assert!(unavailable(machine.limited("")).contains("leaves carma no GPU"));
    let limited = machine.limited("2").unwrap();
    assert_eq!(limited.inventory()[0].index, 3, "its number stays");
    let hidden = |probe: &NvmlProbe| probe.hidden().iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(hidden(&limited).len(), 2, "{:?}", hidden(&limited));
    assert_eq!(hidden(&machine.limited("MIG-2,GPU-c").unwrap()), ["GPU-a"]);
    assert!(hidden(&machine.open()).is_empty());
}

#[test]
fn a_lost_gpu_does_not_hide_the_others() {
    let machine = Machine::with(&State::of(vec![gpu("GPU-a"), gpu("GPU-b")]));
    let mut probe = machine.open();
    machine.now(&State::of(vec![gpu("GPU-b")]));
    let readings = read(&mut probe);
    assert!(matches!(&readings[0].health, Health::Lost(why) if why.contains("fell off the bus")));
    assert_eq!(readings[0].memory_used, None);
    assert_eq!(readings[1].health, Health::Ok);

    // It may get lost between two calls.
    let state = State::of(vec![gpu("GPU-a"), gpu("GPU-b")]);
    machine.now(&state.clone().with_fault("nvmlDeviceGetPowerUsage", returns(16)));
    assert!(matches!(read(&mut probe)[1].health, Health::Lost(_)));

    // One that is lost already when carma starts is left out and keeps its number.
    let only_a = Fault { gpu: Some("GPU-a".to_owned()), ..returns(15) };
    machine.now(&state.with_fault("nvmlDeviceGetHandleByIndex", only_a));
    let inventory = machine.limited("0,1").unwrap().inventory().to_vec();
    assert_eq!(inventory.len(), 1);
    assert_eq!((&*inventory[0].uuid, inventory[0].index), ("GPU-b", 1));
}

#[test]
fn refused_permission_is_unreadable_and_not_an_empty_gpu() {
    let state = State::of(vec![gpu("GPU-a"), gpu("GPU-b")]);
    let machine = Machine::with(&state);
    let mut probe = machine.open();
    let only_a = Fault { gpu: Some("GPU-a".to_owned()), ..returns(4) };
    machine.now(&state.with_fault("nvmlDeviceGetMemoryInfo", only_a));
    let readings = read(&mut probe);
    assert!(matches!(&readings[0].health, Health::Unreadable(why) if why.contains("permission")));
    assert_eq!((readings[0].memory_used, &readings[0].processes), (None, &None));
    assert_eq!(readings[1].health, Health::Ok);
}

#[test]
fn a_hanging_call_costs_one_deadline_and_readings_resume_after_it() {
    let state = State::of(vec![gpu("GPU-a"), gpu("GPU-b"), gpu("GPU-c")]);
    let machine = Machine::with(&state);
    let options = NvmlOptions { deadline: DEADLINE, ..machine.options() };
    let mut probe = nvml::open(&options).unwrap();
    let only_b = Fault { gpu: Some("GPU-b".to_owned()), ..hangs_for_a_minute() };
    machine.now(&state.clone().with_fault("nvmlDeviceGetPowerUsage", only_b));

    let began = Instant::now();
    let readings = read(&mut probe);
    assert!(began.elapsed() >= DEADLINE && began.elapsed() < DEADLINE * 4, "{:?}", began.elapsed());
    assert_eq!(readings.len(), 3);
    assert_eq!(readings[0].health, Health::Ok, "read before the hang");
    for (reading, uuid) in readings[1..].iter().zip(["GPU-b", "GPU-c"]) {
        assert_eq!(&*reading.uuid, uuid);
        let Health::Unreadable(why) = &reading.health else { panic!("{reading:?}") };
        // The same words in every look: other words would be news.
        assert_eq!(why, "NVML does not answer: it waits for GPU 1 (GPU-b)");
    }

    let began = Instant::now();
    let unreadable = |reading: &GpuReading| matches!(reading.health, Health::Unreadable(_));
    for _ in 0..20 {
        assert!(read(&mut probe).iter().all(unreadable), "old readings are not passed off as new");
    }
    assert!(began.elapsed() < DEADLINE, "nobody waits again: {:?}", began.elapsed());

    machine.now(&state);
    let began = Instant::now();
    while read(&mut probe).iter().any(unreadable) {
        assert!(began.elapsed() < Duration::from_secs(10), "never came back");
        sleep(Duration::from_millis(5));
    }
    assert!(read(&mut probe).iter().all(|reading| reading.health == Health::Ok));
}

#[test]
fn opening_does_not_hang_either() {
    let state = State::of(vec![gpu("GPU-a")]).with_fault("nvmlInit", hangs_for_a_minute());
    let machine = Machine::with(&state);
    let options = NvmlOptions { open_deadline: DEADLINE, ..machine.options() };
    let error = nvml::open(&options).unwrap_err();
    assert_eq!(error.to_string(), "opening NVML: no answer for 0.2 s; does nvidia-smi answer?");
    machine.now(&State::default());
}

#[test]
fn without_a_driver_or_a_gpu_the_error_says_what_to_do() {
    let absent = NvmlOptions {
        library: Some(Path::new("/nonexistent/libnvidia-ml.so.1").to_owned()),
        ..NvmlOptions::default()
    };
    let why = unavailable(nvml::open(&absent));
    assert!(why.contains("/nonexistent/libnvidia-ml.so.1 cannot be loaded"), "{why}");
    assert!(why.contains("--gpus virtual:4xA100-40GB"), "{why}");

    let no_library = tempfile::NamedTempFile::new().unwrap();
    let broken = NvmlOptions { library: Some(no_library.path().to_owned()), ..absent };
    assert!(unavailable(nvml::open(&broken)).contains("cannot be loaded"));

    let machine = Machine::with(&State::default());
    assert!(unavailable(nvml::open(&machine.options())).contains("finds no GPU"));
    for (code, says) in [(9, "not loaded"), (18, "differ in version"), (4, "access rights")] {
        machine.now(&State::default().with_fault("nvmlInit", returns(code)));
        let why = unavailable(nvml::open(&machine.options()));
        assert!(why.contains(says) && why.contains("--gpus virtual"), "{why}");
    }

    let all_lost = State::of(vec![gpu("GPU-a")]).with_fault("nvmlDeviceGetUUID", returns(15));
    machine.now(&all_lost);
    assert!(unavailable(nvml::open(&machine.options())).contains("no GPU can be read: GPU 0:"));
}

#[test]
fn a_probe_leaves_nothing_behind_when_it_goes() {
    let machine = Machine::with(&State::of(vec![gpu("GPU-a")]));
    for _ in 0..3 {
        assert_eq!(read(&mut machine.open())[0].health, Health::Ok);
    }
}

/// What `pynvml`, an independent client, says; `None`, with the reason on the terminal, where it
/// is not installed.
fn pynvml(environment: &[(&str, &Path)]) -> Option<serde_json::Value> {
    let python = std::env::var("CARMA_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let why = match Command::new(&python).args(["-c", "import pynvml"]).output() {
        Ok(tried) if tried.status.success() => None,
        Ok(_) => Some("no module pynvml".to_owned()),
        Err(error) => Some(error.to_string()),
    };
    if let Some(why) = why {
        let hint = "pip install nvidia-ml-py, or name an interpreter in CARMA_TEST_PYTHON";
        // Not eprintln, which the test harness would hide.
        let mut terminal = std::io::stderr();
        writeln!(terminal, "SKIPPED: comparison with pynvml: {python}: {why}; {hint}").unwrap();
        return None;
    }
    let output = Command::new(&python)
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/pynvml_agrees.py"))
        .arg("0.2")
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

#[test]
fn pynvml_agrees() {
    let gpm = FakeGpm {
        gract: Some(99.5),
        smact: Some(89.7),
        smocc: Some(34.6),
        drama: Some(26.7),
        tensor: Some(11.9),
        fp64: None,
        fp32: Some(41.25),
        fp16: Some(0.0),
        pcie_tx: Some(310.0),
        pcie_rx: Some(17.0),
    };
    let client = FakeProcess { mps: true, ..process(4_000_001, 5_838) };
    let silent = FakeProcess { used_mib: None, ..process(4_000_002, 0) };
    let busy = FakeGpu {
        memory_used_mib: Some(6_000),
        power_mw: Some(523_000),
        energy_mj: Some(123_456_789_012),
        utilization: Some(100),
        processes: vec![client, silent],
        gpm: Some(gpm),
        ..gpu("GPU-a")
    };
    let old = FakeGpu { gpm: None, energy_mj: None, utilization: None, ..gpu("GPU-c") };
    let machine = Machine::with(&State::of(vec![busy, split(), old]));
    // Their library lies elsewhere, and is told where the state is.
    let elsewhere = Machine::with(&State::default());
    let state = machine.folder.path().join(fake_nvml::STATE_NAME);
    let environment = [("LD_LIBRARY_PATH", elsewhere.folder.path()), ("FAKE_NVML_STATE", &state)];
    let Some(theirs) = pynvml(&environment) else {
        return;
    };

    let mut probe = machine.open();
    read(&mut probe);
    sleep(APART);
    let ours = read(&mut probe);
    assert_eq!(theirs["driver_version"], probe.driver_version());
    let gpus = theirs["gpus"].as_array().unwrap();
    assert_eq!(gpus.len(), ours.len());
    for ((info, our), their) in probe.inventory().iter().zip(&ours).zip(gpus) {
        let mib = |bytes: &serde_json::Value| bytes.as_u64().map(MiB::from_bytes);
        assert_eq!(their["uuid"], *info.uuid);
        assert_eq!(their["name"], *info.name);
        assert_eq!(mib(&their["total_b"]), Some(info.memory));
        assert_eq!(mib(&their["in_use_b"]), our.memory_used);
        assert_eq!(mib(&their["in_use_v1_b"]), our.memory_used);
        assert_eq!(their["power_mw"].as_u64(), our.power_mw.map(u64::from));
        assert_eq!(their["energy_mj"].as_u64(), our.energy_mj);
        let held = |p: &serde_json::Value| ProcessReading {
            pid: p["pid"].as_u64().unwrap() as u32,
            memory: mib(&p["used_b"]),
        };
        let processes = their["processes"].as_array().unwrap().iter().map(held).collect();
        assert_eq!(our.processes, Some(processes));
        let share = |v: &serde_json::Value| Fraction::from_f64(v.as_f64()? / 100.0);
        assert_eq!(share(&their["utilization_pct"]), our.activity.gpu_util);
        let (a, gpm) = (our.activity, &their["gpm"]);
        assert_eq!(gpm.is_object(), info.has_activity);
        for (name, our) in [
            ("gract", a.gract),
            ("smact", a.smact),
            ("smocc", a.smocc),
            ("drama", a.drama),
            ("tensor", a.tensor),
            ("fp64", a.fp64),
            ("fp32", a.fp32),
            ("fp16", a.fp16),
        ] {
            assert_eq!(share(&gpm[name]), our, "{name}");
        }
        assert_eq!(gpm["pcie_tx"].as_f64(), a.pcie_tx_mib_s.map(f64::from));
        assert_eq!(gpm["pcie_rx"].as_f64(), a.pcie_rx_mib_s.map(f64::from));
    }
}

/// Run by hand on a machine with a GPU: `cargo test -p carma-gpu --test nvml -- --ignored --nocapture`.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn the_real_driver_is_read() {
    let mut probe = nvml::open(&NvmlOptions::default()).unwrap();
    println!("driver {}\n{:#?}", probe.driver_version(), probe.inventory());
    for _ in 0..3 {
        let began = Instant::now();
        let readings = read(&mut probe);
        println!("{readings:#?}\nread in {:?}", began.elapsed());
        for (info, reading) in probe.inventory().iter().zip(&readings) {
            assert_eq!(reading.health, Health::Ok);
            assert!(reading.memory_used.unwrap() <= info.memory);
        }
        sleep(Duration::from_secs(1));
    }
    let Some(theirs) = pynvml(&[]) else { return };
    println!("{theirs:#}");
    for (info, their) in probe.inventory().iter().zip(theirs["gpus"].as_array().unwrap()) {
        assert_eq!(their["uuid"], *info.uuid);
        assert_eq!(MiB(their["total_b"].as_u64().unwrap() >> 20), info.memory);
    }
}
