//! Virtual GPUs with virtual tasks, as threads and as processes, over real sockets. No test asserts
//! how fast the machine is: what must happen is waited for, and virtual time has wide margins.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests, which clippy does not take for tests"
)]

use carma_core::reading::{GpuReading, Health};
use carma_core::units::{MiB, Millis};
use carma_gpu::checkpoint::steps::{resume, suspend};
use carma_gpu::checkpoint::swap;
use carma_gpu::{Checkpoint, Probe, ProcessState, Sharing, SharingRequest};
use carma_hardware::GpuType;
use carma_virtual_gpu::protocol::{ClientMessage, HostMessage, MOST_LINE};
use carma_virtual_gpu::task::{Growth, TaskEnv, TaskSpec, run};
use carma_virtual_gpu::{
    ENV_SOCKET, StartError, TaskDemand, VirtualCheckpoint, VirtualGpus, VirtualProbe, VirtualSpec, control,
};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const DEADLINE: Duration = Duration::from_secs(30);

struct Rig {
    dir: TempDir,
    gpus: Option<VirtualGpus>,
}

impl Rig {
    fn new(spec: &str, speed: f64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let gpus = Some(host(spec, &dir.path().join("s"), speed));
        Self { dir, gpus }
    }

    fn gpus(&self) -> &VirtualGpus {
        self.gpus.as_ref().unwrap()
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    fn env(&self, devices: &str, extra: &[(String, String)]) -> TaskEnv {
        let mut vars = self.gpus().env_for_jobs();
        vars.push(("CUDA_VISIBLE_DEVICES".to_owned(), devices.to_owned()));
        vars.extend_from_slice(extra);
        TaskEnv::from_vars(|name| vars.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone()))
            .unwrap()
    }

    fn mps(&self, cap: Option<MiB>) -> Vec<(String, String)> {
        let uuid = self.gpus().inventory()[0].uuid.clone();
        let request = SharingRequest { uid: 0, gid: 0, gpus: vec![uuid], cap, thread_percent: None };
        self.gpus().mps().prepare(&request).unwrap().env
    }
}

fn host(spec: &str, socket: &Path, speed: f64) -> VirtualGpus {
    VirtualGpus::start(&spec.parse::<VirtualSpec>().unwrap(), socket, speed).unwrap()
}

struct Ended {
    code: u8,
    out: String,
    err: String,
}

impl Ended {
    /// What the task says it took, virtual seconds.
    fn took(&self) -> f64 {
        let done = self.out.lines().last().unwrap();
        let (_, took) = done.split_once(" in ").unwrap();
        took.split(' ').next().unwrap().parse().unwrap()
    }
}

fn start(spec: TaskSpec, env: TaskEnv) -> JoinHandle<Ended> {
    std::thread::spawn(move || {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let code = run(&spec, &env, &mut out, &mut err);
        Ended { code, out: String::from_utf8(out).unwrap(), err: String::from_utf8(err).unwrap() }
    })
}

fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + DEADLINE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < until, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn read(probe: &mut VirtualProbe, gpu: usize) -> GpuReading {
    probe.tick(Millis::ZERO).gpus[gpu].clone()
}

fn wait_for_memory(probe: &mut VirtualProbe, gpu: usize, memory: MiB) {
    wait_for(&format!("{memory} on GPU {gpu}"), || {
        (read(probe, gpu).memory_used == Some(memory)).then_some(())
    });
}

/// A client that speaks the protocol by hand.
struct Raw {
    stream: UnixStream,
    lines: BufReader<UnixStream>,
}

impl Raw {
    fn connect(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let lines = BufReader::new(stream.try_clone().unwrap());
        Self { stream, lines }
    }

    fn task(socket: &Path, gpus: &[&str], sm: f64, mps: bool) -> Self {
        let mut raw = Self::connect(socket);
        raw.say(&ClientMessage::Hello {
            v: 1,
            gpus: gpus.iter().map(|gpu| (*gpu).to_owned()).collect(),
            demand: TaskDemand { gract: sm, sm, occupancy: sm / 2.0, dram: sm / 4.0 },
            mps,
            thread_percent: None,
            caps_mib: Vec::new(),
            held_mib: Vec::new(),
            active: true,
            hold: None,
        });
        assert!(matches!(raw.hear(), Some(HostMessage::Welcome { .. })));
        raw
    }

    fn say(&mut self, message: &ClientMessage) {
        let mut line = serde_json::to_vec(message).unwrap();
        line.push(b'\n');
        self.stream.write_all(&line).unwrap();
    }

    /// The next message; `None` when the host has closed.
    fn hear(&mut self) -> Option<HostMessage> {
        let mut line = String::new();
        match self.lines.read_line(&mut line) {
            Ok(0) | Err(_) => None,
            Ok(_) => Some(serde_json::from_str(&line).unwrap()),
        }
    }

    fn rate(&mut self) -> f64 {
        match self.hear() {
            Some(HostMessage::Rate { progress }) => progress,
            other => panic!("expected a rate, not {other:?}"),
        }
    }
}

#[test]
fn memory_fills_while_a_task_starts_and_is_free_when_it_ends() {
    let rig = Rig::new("virtual:2xA100-40GB", 20.0);
    let mut probe = rig.gpus().probe();
    assert_eq!(read(&mut probe, 0).memory_used, Some(MiB::ZERO));
    let spec = TaskSpec { memory: MiB::gib(9), startup_s: 5.0, work_s: 1e6, ..TaskSpec::default() };
    let uuid = rig.gpus().inventory()[1].uuid.to_string();
    assert_eq!(uuid, "GPU-virtual-a100-40gb-1");
    // The thread lives until its GPU is dropped below.
    let task = start(spec, rig.env(&uuid, &[]));
    let mut seen = Vec::new();
    wait_for("all of its memory", || {
        let used = read(&mut probe, 1).memory_used.unwrap();
        if seen.last() != Some(&used) {
            seen.push(used);
        }
        (used == MiB::gib(9)).then_some(())
    });
    assert!(seen.is_sorted(), "{seen:?}");
    assert_eq!(read(&mut probe, 0).memory_used, Some(MiB::ZERO), "the other GPU is none of its business");
    let processes = read(&mut probe, 1).processes.unwrap();
    assert_eq!((processes[0].pid, processes[0].memory), (std::process::id(), Some(MiB::gib(9))));
    let active = wait_for("activity", || read(&mut probe, 1).activity.smact.filter(|s| s.0 == 5000));
    assert_eq!(active.to_string(), "0.50");
    let reading = read(&mut probe, 1);
    assert!(reading.power_mw > Some(55_000) && reading.activity.gract > reading.activity.smact);
    assert!(reading.activity.tensor.is_none(), "what is not modelled is unknown");
    control::drop_gpu(&rig.socket(), "1").unwrap();
    assert_eq!(task.join().unwrap().code, 1);
}

#[test]
fn a_task_alone_takes_its_work_and_its_start() {
    let rig = Rig::new("virtual:1xH200", 100.0);
    let spec = TaskSpec { work_s: 60.0, exit_code: 3, ..TaskSpec::default() };
    let ended = start(spec, rig.env("0", &[])).join().unwrap();
    assert_eq!(ended.code, 3);
    assert!(ended.err.contains("Traceback") && ended.err.contains("exit code 3"), "{}", ended.err);
    assert!((61.9..200.0).contains(&ended.took()), "{}", ended.out);
    assert!(ended.out.starts_with("virtual task: 1.0 GiB on each of 1 x Virtual H200"), "{}", ended.out);
    assert!(
        ended.out.contains("not a measurement") && ended.out.contains("/600  10.0 it/s"),
        "{}",
        ended.out
    );
    // Of the first 5 s ten lines, then one a second; one that wakes late leaves some out.
    assert!((50..=70).contains(&ended.out.lines().count()), "{}", ended.out);
    wait_for("free memory", || {
        (read(&mut rig.gpus().probe(), 0).memory_used == Some(MiB::ZERO)).then_some(())
    });
}

#[test]
fn long_work_prints_a_bounded_number_of_lines() {
    let rig = Rig::new("virtual:1xH200", 100_000.0);
    let spec = TaskSpec { work_s: 100_000.0, ..TaskSpec::default() };
    let ended = start(spec, rig.env("0", &[])).join().unwrap();
    assert_eq!(ended.code, 0);
    assert!(ended.out.lines().count() <= 204, "{}", ended.out.lines().count());
}

#[test]
fn a_cap_is_hard_and_hurts_only_its_owner() {
    let rig = Rig::new("virtual:1xA100-40GB", 100.0);
    let env = rig.env("0", &rig.mps(Some(MiB::gib(3))));
    let ended = start(TaskSpec { memory: MiB::gib(9), ..TaskSpec::default() }, env).join().unwrap();
    assert_eq!(ended.code, 1);
    assert!(ended.err.contains("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.07 GiB. GPU 0 has a total capacity of 3.00 GiB"), "{}", ended.err);
    // The cap is of MPS: a plain process does not know it.
    let plain = rig.mps(Some(MiB::gib(3))).into_iter().filter(|(name, _)| name != "CARMA_VIRTUAL_MPS");
    let env = rig.env("0", &plain.collect::<Vec<_>>());
    let spec = TaskSpec { memory: MiB::gib(9), work_s: 1.0, ..TaskSpec::default() };
    assert_eq!(start(spec, env).join().unwrap().code, 0);
}

#[test]
fn a_full_gpu_refuses_and_names_who_holds_it() {
    let rig = Rig::new("virtual:1xA100-40GB", 1000.0);
    let mut neighbour = Raw::task(&rig.socket(), &["0"], 0.1, false);
    neighbour.rate();
    neighbour.say(&ClientMessage::Alloc { id: 5, gpu: 0, mib: 30 * 1024 });
    assert_eq!(neighbour.hear(), Some(HostMessage::Allocated { id: 5, held_mib: 30 * 1024 }));
    let ended =
        start(TaskSpec { memory: MiB::gib(11), ..TaskSpec::default() }, rig.env("0", &[])).join().unwrap();
    assert_eq!(ended.code, 1);
    let holder = format!("Process {} has 30.00 GiB memory in use.", std::process::id());
    assert!(
        ended.err.contains("GPU 0 has a total capacity of 40.00 GiB of which") && ended.err.contains(&holder),
        "{}",
        ended.err
    );
    // One that grows later fails later, with what it had printed until then.
    let grow = Some(Growth { after_s: 20.0, over_s: 0.0, to: MiB::gib(12) });
    let spec = TaskSpec { memory: MiB::gib(5), grow, ..TaskSpec::default() };
    let ended = start(spec, rig.env("0", &[])).join().unwrap();
    assert!(
        ended.code == 1 && ended.out.contains("step ") && ended.err.contains("Tried to allocate 7.00 GiB"),
        "{}",
        ended.err
    );
}

#[test]
fn rates_follow_the_law_and_come_when_neighbours_do() {
    let rig = Rig::new("virtual:1xCUSTOM-40GB+1xH200", 1.0);
    let mut one = Raw::task(&rig.socket(), &["0"], 1.0, false);
    assert_eq!(one.rate(), 1.0);
    let mut two = Raw::task(&rig.socket(), &["GPU-virtual-custom-40gb-0"], 1.0, false);
    assert_eq!((one.rate(), two.rate()), (0.5, 0.5));
    drop(two);
    assert_eq!(one.rate(), 1.0);
    // Hopper loses what it was measured to lose.
    let mut three = Raw::task(&rig.socket(), &["1"], 1.0, false);
    let mut four = Raw::task(&rig.socket(), &["1"], 1.0, false);
    assert_eq!(three.rate(), 1.0);
    let half = GpuType::find("H200").unwrap().capacities.time_slice_gract / 2.0;
    assert!((three.rate() - half).abs() < 1e-9 && (four.rate() - half).abs() < 1e-9);
}

#[test]
fn a_gpu_without_activity_tells_utilisation_memory_and_power() {
    let rig = Rig::new("virtual:1xA100-40GB@no-activity+1xA100-40GB", 1.0);
    assert_eq!(rig.gpus().inventory().iter().map(|gpu| gpu.has_activity).collect::<Vec<_>>(), [false, true]);
    let _there = ["0", "1"].map(|gpu| Raw::task(&rig.socket(), &[gpu], 0.5, false));
    let mut probe = rig.gpus().probe();
    let (plain, fine) = wait_for("both to be busy", || {
        let (plain, fine) = (read(&mut probe, 0), read(&mut probe, 1));
        let busy = |r: &GpuReading| r.activity.gpu_util.is_some_and(|util| util.to_f64() > 0.1);
        (busy(&plain) && busy(&fine)).then_some((plain, fine))
    });
    let told = |r: &GpuReading| {
        let a = &r.activity;
        [a.gract, a.smact, a.smocc, a.drama].map(|metric| metric.is_some())
    };
    assert_eq!((told(&plain), told(&fine)), ([false; 4], [true; 4]));
    assert!(plain.memory_used.is_some() && plain.energy_mj.is_some() && plain.power_mw > Some(0));
}

#[test]
fn tasks_that_share_take_longer() {
    let rig = Rig::new("virtual:1xA100-40GB", 40.0);
    let spec = TaskSpec { sm: 1.0, work_s: 80.0, startup_s: 0.0, ..TaskSpec::default() };
    let tasks = [start(spec.clone(), rig.env("0", &[])), start(spec, rig.env("0", &[]))];
    let took = tasks.map(|task| task.join().unwrap().took());
    // Both need 160 s of the GPU together; the last to end has waited for nearly all of that.
    let longest = took[0].max(took[1]);
    assert!((120.0..240.0).contains(&longest), "{took:?}");
}

#[test]
fn a_new_host_finds_the_tasks_of_the_old_one() {
    let mut rig = Rig::new("virtual:1xA100-40GB", 10.0);
    let spec = TaskSpec { memory: MiB::gib(7), sm: 0.5, work_s: 40.0, startup_s: 1.0, ..TaskSpec::default() };
    let task = start(spec, rig.env("0", &[]));
    wait_for_memory(&mut rig.gpus().probe(), 0, MiB::gib(7));
    wait_for("activity", || read(&mut rig.gpus().probe(), 0).activity.smact.filter(|s| s.0 == 5000));
    rig.gpus = None;
    // Time in which it could stand still.
    std::thread::sleep(Duration::from_secs(2));
    rig.gpus = Some(host("virtual:1xA100-40GB", &rig.socket(), 10.0));
    let mut probe = rig.gpus().probe();
    wait_for_memory(&mut probe, 0, MiB::gib(7));
    wait_for("activity", || read(&mut probe, 0).activity.smact.filter(|s| s.0 == 5000));
    let ended = task.join().unwrap();
    // Had it stood still while there was no host, it would have taken the 20 virtual s longer.
    assert_eq!(ended.code, 0);
    assert!(ended.took() < 55.0, "{}", ended.out);
}

#[test]
fn a_task_is_suspended_and_goes_on_where_it_was_or_on_another_gpu() {
    let mut rig = Rig::new("virtual:2xA100-40GB", 50.0);
    let spec =
        TaskSpec { memory: MiB::gib(7), sm: 0.5, work_s: 100.0, startup_s: 1.0, ..TaskSpec::default() };
    let task = start(spec, rig.env("0", &[]));
    let driver = VirtualCheckpoint::new(&rig.socket());
    let (me, lock) = ([std::process::id()], Duration::from_secs(20));
    let mut probe = rig.gpus().probe();
    wait_for("activity", || read(&mut probe, 0).activity.smact.filter(|s| s.0 == 5000));
    suspend(&driver, &me, lock).unwrap();
    assert_eq!(driver.state(me[0]), Ok(ProcessState::Checkpointed));
    let left = read(&mut probe, 0);
    assert_eq!((left.memory_used, left.processes.unwrap().len()), (Some(MiB::ZERO), 0));
    // 100 virtual seconds, which it does not take part in, half of them without a host.
    std::thread::sleep(Duration::from_secs(1));
    rig.gpus = None;
    std::thread::sleep(Duration::from_secs(1));
    rig.gpus = Some(host("virtual:2xA100-40GB", &rig.socket(), 50.0));
    let uuids: Vec<String> = rig.gpus().inventory().iter().map(|gpu| gpu.uuid.to_string()).collect();
    let pairs = swap(uuids.iter().map(String::as_str), &uuids[0], &uuids[1]);
    resume(&driver, &me, &pairs).unwrap();
    let mut probe = rig.gpus().probe();
    assert_eq!(read(&mut probe, 1).memory_used, Some(MiB::gib(7)));
    assert_eq!(read(&mut probe, 0).memory_used, Some(MiB::ZERO));
    let ended = task.join().unwrap();
    assert_eq!(ended.code, 0, "{}", ended.err);
    assert!((100.9..180.0).contains(&ended.took()), "{}", ended.out);
    assert!(driver.lock(me[0], lock).unwrap_err().why.contains("does not use a GPU"));
}

#[test]
fn what_cannot_be_suspended_is_refused() {
    let rig = Rig::new("virtual:1xA100-40GB", 10.0);
    let driver = VirtualCheckpoint::new(&rig.socket());
    let me = [std::process::id()];
    let client = Raw::task(&rig.socket(), &["0"], 0.5, true);
    let failed = suspend(&driver, &me, Duration::from_secs(20)).unwrap_err();
    assert!(failed.why.contains("an MPS client") && failed.stuck.is_none(), "{failed:?}");
    drop(client);
    // It hears what it is told, and never says that it has.
    let _deaf = Raw::task(&rig.socket(), &["0"], 0.5, false);
    wait_for("it to be known", || driver.state(me[0]).ok());
    let failed = suspend(&driver, &me, Duration::from_millis(50)).unwrap_err();
    assert!(failed.why.contains("no answer within 0.1 s"), "{failed:?}");
}

#[test]
fn a_task_without_a_host_finishes_by_itself() {
    let mut rig = Rig::new("virtual:1xA100-40GB", 50.0);
    let spec = TaskSpec { work_s: 50.0, startup_s: 0.0, ..TaskSpec::default() };
    let task = start(spec, rig.env("0", &[]));
    wait_for("activity", || read(&mut rig.gpus().probe(), 0).activity.smact.filter(|s| s.0 == 5000));
    rig.gpus = None;
    assert_eq!(task.join().unwrap().code, 0);
}

#[test]
fn garbage_is_answered_and_harms_nobody() {
    let rig = Rig::new("virtual:1xA100-40GB", 1.0);
    let mut good = Raw::task(&rig.socket(), &["0"], 1.0, false);
    assert_eq!(good.rate(), 1.0);
    let hello = r#"{"type":"hello","v":1,"gpus":["0"],"demand":{"gract":1,"sm":1,"occupancy":1,"dram":1}}"#;
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (b"\n".to_vec(), "unreadable"),
        (b"\xff\xfe\0\0garbage\n".to_vec(), "unreadable"),
        (b"[[[[[[[[\n".to_vec(), "unreadable"),
        ("[".repeat(100_000).into_bytes().into_iter().chain(*b"\n").collect(), "unreadable"),
        (b"{\"v\":2,\"type\":\"hello\"}\n".to_vec(), "version 2"),
        (b"{\"type\":\"hello\"}\n".to_vec(), "lacks the version"),
        (b"{\"v\":1,\"type\":\"conquer\"}\n".to_vec(), "conquer"),
        (b"{\"v\":1,\"type\":\"fault\"}\n".to_vec(), "hello"),
        (hello.replace("\"0\"", "\"GPU-x\"").into_bytes().into_iter().chain(*b"\n").collect(), "GPU-x"),
        (hello.replace("\"0\"", "\"0\",\"0\"").into_bytes().into_iter().chain(*b"\n").collect(), "twice"),
        (hello.replace("\"sm\":1", "\"sm\":1e9").into_bytes().into_iter().chain(*b"\n").collect(), "share"),
        (hello.replace("[\"0\"]", "[]").into_bytes().into_iter().chain(*b"\n").collect(), "1 to 4096"),
        (format!("{hello}\n{hello}\n").into_bytes(), "second"),
        (format!("{hello}\n{{\"type\":\"alloc\",\"id\":1,\"gpu\":7,\"mib\":1}}\n").into_bytes(), "GPU 7"),
        (vec![b'x'; MOST_LINE + 2], "longer"),
        (vec![b'x'; 4 * MOST_LINE], "longer"),
    ];
    for (bytes, expected) in cases {
        let mut raw = Raw::connect(&rig.socket());
        // The host may close before it has read everything.
        let _ = raw.stream.write_all(&bytes);
        let answers: Vec<HostMessage> = std::iter::from_fn(|| raw.hear()).collect();
        let Some(HostMessage::Error { message }) = answers.last() else { panic!("{expected}: {answers:?}") };
        assert!(message.contains(expected), "{expected}: {message}");
    }
    // Half a message, and none.
    let mut half = Raw::connect(&rig.socket());
    half.stream.write_all(&hello.as_bytes()[..20]).unwrap();
    drop(half);
    drop(Raw::connect(&rig.socket()));
    good.say(&ClientMessage::Alloc { id: 1, gpu: 0, mib: 100 });
    let answer = std::iter::from_fn(|| good.hear()).find(|m| !matches!(m, HostMessage::Rate { .. }));
    assert_eq!(answer, Some(HostMessage::Allocated { id: 1, held_mib: 100 }));
    wait_for("the others to be gone", || {
        let used = read(&mut rig.gpus().probe(), 0).memory_used;
        (used == Some(MiB(100))).then_some(())
    });
}

#[test]
fn a_client_that_never_reads_is_cut_off() {
    let rig = Rig::new("virtual:1xA100-40GB", 1.0);
    let mut deaf = Raw::task(&rig.socket(), &["0"], 1.0, false);
    deaf.stream.set_write_timeout(Some(DEADLINE)).unwrap();
    let request = b"{\"type\":\"alloc\",\"id\":1,\"gpu\":0,\"mib\":0}\n".repeat(1000);
    wait_for("the end of the connection", || deaf.stream.write_all(&request).err());
    let mut other = Raw::task(&rig.socket(), &["0"], 1.0, false);
    assert_eq!(other.rate(), 1.0, "the cut off client no longer counts");
}

#[test]
fn thousands_of_short_connections_leave_nothing_behind() {
    let rig = Rig::new("virtual:8xA100-40GB", 1.0);
    let threads: Vec<_> = (0..4)
        .map(|gpu| {
            let socket = rig.socket();
            std::thread::spawn(move || {
                for _ in 0..500 {
                    let mut raw = Raw::task(&socket, &[&gpu.to_string()], 0.5, true);
                    raw.say(&ClientMessage::Alloc { id: 1, gpu: 0, mib: 10 });
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    let mut probe = rig.gpus().probe();
    wait_for("empty GPUs", || {
        let snapshot = probe.tick(Millis::ZERO);
        snapshot
            .gpus
            .iter()
            .all(|gpu| gpu.memory_used == Some(MiB::ZERO) && gpu.processes == Some(Vec::new()))
            .then_some(())
    });
}

#[test]
fn a_gpu_falls_off_and_comes_back() {
    let rig = Rig::new("virtual:2xA100-40GB", 10.0);
    let mut probe = rig.gpus().probe();
    let spec = TaskSpec { work_s: 1e6, startup_s: 0.0, ..TaskSpec::default() };
    let task = start(spec.clone(), rig.env("0,1", &[]));
    wait_for_memory(&mut probe, 1, MiB::gib(1));
    let error = control::drop_gpu(&rig.socket(), "GPU-virtual-none").unwrap_err().to_string();
    assert!(error.contains("GPU-virtual-none"), "{error}");
    rig.gpus().drop_gpu("GPU-virtual-a100-40gb-1").unwrap();
    let ended = task.join().unwrap();
    assert!(ended.code == 1 && ended.err.contains("CUDA error: GPU is lost"), "{}", ended.err);
    let lost = read(&mut probe, 1);
    assert!(matches!(lost.health, Health::Lost(_)) && lost.memory_used.is_none() && lost.power_mw.is_none());
    assert_eq!(read(&mut probe, 0).health, Health::Ok);
    let ended = start(spec, rig.env("1", &[])).join().unwrap();
    assert!(ended.err.contains("CUDA error: GPU is lost"), "{}", ended.err);
    control::restore_gpu(&rig.socket(), "1").unwrap();
    assert_eq!(read(&mut probe, 1).health, Health::Ok);
    let spec = TaskSpec { work_s: 1.0, startup_s: 0.0, ..TaskSpec::default() };
    assert_eq!(start(spec, rig.env("1", &[])).join().unwrap().code, 0);
}

#[test]
fn a_fault_under_mps_takes_the_neighbours_and_spares_plain_processes() {
    let rig = Rig::new("virtual:1xA100-40GB", 20.0);
    let mut probe = rig.gpus().probe();
    let long = TaskSpec { sm: 0.1, work_s: 1e6, startup_s: 0.0, ..TaskSpec::default() };
    let victim = start(long.clone(), rig.env("0", &rig.mps(None)));
    let mut plain = Raw::task(&rig.socket(), &["0"], 0.1, false);
    plain.rate();
    wait_for_memory(&mut probe, 0, MiB::gib(1));
    let culprit = TaskSpec { fault_after: Some(5.0), ..long };
    let culprit = start(culprit, rig.env("0", &rig.mps(None))).join().unwrap();
    let victim = victim.join().unwrap();
    for ended in [&culprit, &victim] {
        assert_eq!(ended.code, 1);
        assert!(
            ended
                .err
                .contains("torch.AcceleratorError: CUDA error: an illegal memory access was encountered")
        );
    }
    assert_eq!(culprit.err, victim.err, "nothing tells who began");
    plain.say(&ClientMessage::Alloc { id: 1, gpu: 0, mib: 1 });
    let answer = std::iter::from_fn(|| plain.hear()).find(|m| !matches!(m, HostMessage::Rate { .. }));
    assert_eq!(answer, Some(HostMessage::Allocated { id: 1, held_mib: 1 }));
}

#[test]
fn mps_clients_are_terminated_by_user_and_pid() {
    let rig = Rig::new("virtual:1xA100-40GB", 10.0);
    let mps = rig.gpus().mps();
    let uid = rustix::process::getuid().as_raw();
    let spec = TaskSpec { work_s: 1e6, startup_s: 0.0, ..TaskSpec::default() };
    let task = start(spec, rig.env("0", &rig.mps(None)));
    wait_for_memory(&mut rig.gpus().probe(), 0, MiB::gib(1));
    assert_eq!(mps.terminate_clients(uid + 1, &[std::process::id()]).unwrap(), 0);
    assert_eq!(mps.terminate_clients(uid, &[1]).unwrap(), 0);
    assert_eq!(mps.terminate_clients(uid, &[1, std::process::id()]).unwrap(), 1);
    let ended = task.join().unwrap();
    assert!(ended.code == 1 && ended.err.contains("CUDA error: MPS client terminated"), "{}", ended.err);
    assert!(!mps.is_own_process(std::process::id()));
}

#[test]
fn virtual_mps_grants_limits_and_can_be_switched_off() {
    let rig = Rig::new("virtual:2xA100-40GB", 1.0);
    let mps = rig.gpus().mps();
    let request = SharingRequest {
        uid: 0,
        gid: 0,
        gpus: vec!["GPU-virtual-a100-40gb-1".into()],
        cap: Some(MiB(3072)),
        thread_percent: Some(50),
    };
    let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    assert_eq!(
        mps.prepare(&request).unwrap().env,
        [
            pair("CARMA_VIRTUAL_MPS", "1"),
            pair("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=3072M"),
            pair("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "50"),
        ]
    );
    control::set_mps(&rig.socket(), false).unwrap();
    assert!(mps.prepare(&request).unwrap_err().to_string().contains("switched off"));
    control::set_mps(&rig.socket(), true).unwrap();
    let unknown = SharingRequest { gpus: vec!["GPU-x".into()], ..request };
    assert!(mps.prepare(&unknown).unwrap_err().to_string().contains("GPU-x"));
}

#[test]
fn energy_of_idle_gpus_is_idle_power_times_virtual_time() {
    let before = Instant::now();
    let rig = Rig::new("virtual:1xA100-40GB", 1000.0);
    let after = Instant::now();
    let mut probe = rig.gpus().probe();
    std::thread::sleep(Duration::from_millis(50));
    let least = after.elapsed().as_secs_f64();
    let reading = read(&mut probe, 0);
    let most = before.elapsed().as_secs_f64();
    let joules = reading.energy_mj.unwrap() as f64 / 1000.0;
    assert!((least * 55_000.0 * 0.999..=most * 55_000.0 * 1.001).contains(&joules), "{joules} J");
    assert_eq!(reading.power_mw, Some(55_000));
}

#[test]
fn a_socket_is_taken_over_from_the_dead_only() {
    let rig = Rig::new("virtual:1xT4", 1.0);
    let spec = "virtual:1xT4".parse::<VirtualSpec>().unwrap();
    assert!(matches!(VirtualGpus::start(&spec, &rig.socket(), 1.0), Err(StartError::InUse(_))));
    let file = rig.dir.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    assert!(matches!(VirtualGpus::start(&spec, &file, 1.0), Err(StartError::Socket { .. })));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    let stale = rig.dir.path().join("stale");
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    drop(VirtualGpus::start(&spec, &stale, 1.0).unwrap());
    assert!(!stale.exists());
    for speed in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(matches!(VirtualGpus::start(&spec, &stale, speed), Err(StartError::Speed(_))));
    }
    let long = rig.dir.path().join("x".repeat(200));
    assert!(matches!(VirtualGpus::start(&spec, &long, 1.0), Err(StartError::Socket { .. })));
}

#[test]
fn four_thousand_gpus_are_read() {
    let rig = Rig::new("virtual:4096xT4", 1.0);
    assert_eq!(rig.gpus().probe().tick(Millis::ZERO).gpus.len(), 4096);
}

// Processes: this test binary runs itself, with a role in its environment.

const ROLE: &str = "CARMA_TEST_ROLE";
/// Exit code of a control client that the host refused for who it is.
const REFUSED: u8 = 9;

/// Not a test by itself: what the processes below run.
#[test]
fn process() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let code = match role.as_str() {
        "host" => {
            let socket = PathBuf::from(std::env::var(ENV_SOCKET).unwrap());
            let _host = host("virtual:1xA100-40GB", &socket, 10.0);
            // Until it is killed, or the test ends and closes its end.
            let _ = std::io::stdin().read(&mut [0]);
            0
        }
        "task" => {
            let env = TaskEnv::from_vars(|name| std::env::var(name).ok()).unwrap();
            let work_s = std::env::var("WORK").unwrap().parse().unwrap();
            let fault_after = std::env::var("FAULT").ok().map(|at| at.parse().unwrap());
            let ignore_term = std::env::var("IGNORE_TERM").is_ok();
            let spec =
                TaskSpec { sm: 0.1, work_s, fault_after, startup_s: 0.0, ignore_term, ..TaskSpec::default() };
            run(&spec, &env, &mut std::io::stdout(), &mut std::io::stderr())
        }
        "drop" => match control::drop_gpu(Path::new(&std::env::var(ENV_SOCKET).unwrap()), "0") {
            Err(control::ControlError::Refused(why)) if why.contains("may not control") => REFUSED,
            _ => 0,
        },
        "many" => {
            let socket = std::env::var(ENV_SOCKET).unwrap();
            let mut streams: Vec<_> = (0..513).map(|_| UnixStream::connect(&socket).unwrap()).collect();
            // The last is turned away, which is its end; the first is served: no answer without a word.
            let closed = streams.pop().unwrap().read(&mut [0]).unwrap_or(0) == 0;
            streams[0].set_nonblocking(true).unwrap();
            let served = streams[0].read(&mut [0]).is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock);
            u8::from(!closed || !served)
        }
        other => panic!("role {other}"),
    };
    std::process::exit(i32::from(code));
}

/// A process of a role, killed at the end of the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    fn command(role: &str, socket: &Path) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "process", "--nocapture", "--test-threads=1"]);
        command.env(ROLE, role).env(ENV_SOCKET, socket).env("CUDA_VISIBLE_DEVICES", "0");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    fn host(socket: &Path) -> Self {
        let child = Self(Self::command("host", socket).spawn().unwrap());
        wait_for("the host", || UnixStream::connect(socket).ok());
        child
    }

    fn stderr(&mut self) -> String {
        let mut text = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        text
    }
}

#[test]
fn a_host_that_is_killed_and_started_again_finds_its_tasks_by_pid() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let mut killed = Process::host(&socket);
    let mut task = Process(Process::command("task", &socket).env("WORK", "60").spawn().unwrap());
    // Nothing to see the task by but its own words, so it is given time to be there.
    std::thread::sleep(Duration::from_millis(700));
    killed.0.kill().unwrap();
    killed.0.wait().unwrap();
    let second = host("virtual:1xA100-40GB", &socket, 10.0);
    let mut probe = second.probe();
    let pid = task.0.id();
    wait_for("the task", || {
        let processes = read(&mut probe, 0).processes.unwrap();
        processes.iter().any(|p| p.pid == pid && p.memory == Some(MiB::gib(1))).then_some(())
    });
    assert!(task.0.wait().unwrap().success());
}

#[test]
fn a_process_that_ignores_sigterm_ends_by_sigkill_only() {
    let rig = Rig::new("virtual:1xA100-40GB", 10.0);
    let mut probe = rig.gpus().probe();
    for ignores in [false, true] {
        let mut command = Process::command("task", &rig.socket());
        command.env("WORK", "1e6");
        if ignores {
            command.env("IGNORE_TERM", "1");
        }
        let mut task = Process(command.spawn().unwrap());
        let pid = rustix::process::Pid::from_child(&task.0);
        wait_for_memory(&mut probe, 0, MiB::gib(1));
        if ignores {
            // The test harness' main thread would take the signal here, which `carma virtual-task`
            // does not have: the mask of the thread that runs the task says what it would do.
            let blocked = wait_for("the mask", || thread_that_blocks_term(task.0.id()));
            assert!(blocked);
        } else {
            rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
            let status = task.0.wait().unwrap();
            assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(15));
        }
        drop(task);
        wait_for_memory(&mut probe, 0, MiB::ZERO);
    }
}

fn thread_that_blocks_term(pid: u32) -> Option<bool> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let mut blocked = false;
    for thread in threads.flatten() {
        let status = std::fs::read_to_string(thread.path().join("status")).ok()?;
        let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:"))?;
        blocked |= u64::from_str_radix(mask.trim(), 16).ok()? & (1 << 14) != 0;
    }
    blocked.then_some(true)
}

/// A role as another user, who may not be able to reach this binary where it was built.
fn as_user(rig: &Rig, uid: u32, role: &str) -> Command {
    let copy = rig.dir.path().join("tasks");
    if !copy.exists() {
        std::fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
        std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut command = Command::new(&copy);
    command.args(["--exact", "process", "--nocapture", "--test-threads=1"]).current_dir("/");
    command.env(ROLE, role).env(ENV_SOCKET, rig.socket()).env("CUDA_VISIBLE_DEVICES", "0").uid(uid).gid(uid);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// Any user could take all descriptors of the daemon.
#[test]
fn a_user_has_so_many_clients_at_most() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can run processes of another user");
        return;
    }
    let rig = Rig::new("virtual:1xA100-40GB", 10.0);
    // Twice: the places of clients that have gone are free.
    for _ in 0..2 {
        assert!(as_user(&rig, 20_001, "many").status().unwrap().success());
    }
}

#[test]
fn a_fault_spares_other_users() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can run processes of two users");
        return;
    }
    let rig = Rig::new("virtual:1xA100-40GB", 10.0);
    let mut probe = rig.gpus().probe();
    let role = |uid: u32, role: &str| as_user(&rig, uid, role);
    let spawn = |uid: u32, work: &str, fault: Option<&str>| {
        let mut command = role(uid, "task");
        command.envs(rig.mps(None)).env("WORK", work).stderr(Stdio::piped());
        if let Some(at) = fault {
            command.env("FAULT", at);
        }
        Process(command.spawn().unwrap())
    };
    let mut victim = spawn(20_001, "1e6", None);
    let mut stranger = spawn(20_002, "1e6", None);
    wait_for_memory(&mut probe, 0, MiB::gib(2));
    let mut culprit = spawn(20_001, "1e6", Some("5"));
    for process in [&mut culprit, &mut victim] {
        assert_eq!(process.0.wait().unwrap().code(), Some(1));
        assert!(process.stderr().contains("an illegal memory access was encountered"));
    }
    wait_for_memory(&mut probe, 0, MiB::gib(1));
    assert!(stranger.0.try_wait().unwrap().is_none(), "another user's task goes on");
    // Nor may a stranger control the host.
    let mut control = role(20_002, "drop").spawn().unwrap();
    assert_eq!(control.wait().unwrap().code(), Some(i32::from(REFUSED)));
    assert_eq!(read(&mut probe, 0).health, Health::Ok);
}
