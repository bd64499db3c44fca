//! [`Mps`] against `fake-mps-control`, a stand-in for NVIDIA's control program.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use carma_core::units::MiB;
use carma_gpu::{Mps, MpsOptions, Sharing, SharingRequest};
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A folder with the stand-in under the real name, and carma's MPS directory beside it. The
/// stand-in's daemons end by themselves once the folder is gone.
struct Bench {
    root: TempDir,
}

impl Bench {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::set_permissions(root.path(), Permissions::from_mode(0o755)).unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake-mps-control");
        // Not fs::copy: while this process has the file open for writing, a child forked by another
        // test has it too, and running it fails with "text file busy".
        let mut copy = Command::new("install");
        copy.args(["-m", "755"]).arg(source).arg(root.path().join("nvidia-cuda-mps-control"));
        assert!(copy.status().unwrap().success());
        Self { root }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn options(&self) -> MpsOptions {
        MpsOptions {
            control: self.path("nvidia-cuda-mps-control"),
            timeout: Duration::from_secs(10),
            patience: Duration::from_secs(10),
            ..MpsOptions::new(self.path("m"))
        }
    }

    fn mps(&self) -> Mps {
        Mps::new(self.options())
    }

    fn pipe(&self, uid: u32, file: &str) -> PathBuf {
        self.path(&format!("m/{uid}/pipe/{file}"))
    }

    fn log(&self, uid: u32, file: &str) -> String {
        fs::read_to_string(self.path(&format!("m/{uid}/log/{file}"))).unwrap_or_default()
    }

    fn starts(&self, uid: u32) -> usize {
        self.log(uid, "starts").lines().count()
    }

    fn daemon(&self, uid: u32) -> u32 {
        fs::read_to_string(self.pipe(uid, "nvidia-cuda-mps-control.pid")).unwrap().trim().parse().unwrap()
    }
}

fn me() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// False, and says why, where a test needs root.
fn root_or_skip(test: &str) -> bool {
    if me() != 0 {
        eprintln!("skipped {test}: starting daemons as other users needs root");
    }
    me() == 0
}

fn request(uid: u32) -> SharingRequest {
    SharingRequest { uid, gid: uid, gpus: vec!["GPU-a".into()], cap: None, thread_percent: None }
}

/// Gone, or a zombie that another has to reap.
fn dead(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .map_or(true, |stat| stat.rsplit(')').next().unwrap().trim_start().starts_with('Z'))
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !done() {
        assert!(Instant::now() < end, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_daemon_is_started_once_and_adopted_after_a_restart() {
    let bench = Bench::new();
    let mps = bench.mps();
    let grant = mps.prepare(&request(me())).unwrap();
    mps.prepare(&request(me())).unwrap();
    bench.mps().prepare(&request(me())).unwrap();

    let starts = bench.log(me(), "starts");
    assert_eq!(bench.starts(me()), 1, "{starts}");
    // Neither an outer CUDA_VISIBLE_DEVICES nor anything else of our environment gets through.
    assert!(starts.contains("args=-d visible=unset cargo=unset"), "{starts}");
    assert!(mps.is_own_process(bench.daemon(me())));
    assert!(!mps.is_own_process(std::process::id()));
    assert_eq!(
        grant.env,
        [
            (
                "CUDA_MPS_PIPE_DIRECTORY".to_owned(),
                bench.path(&format!("m/{}/pipe", me())).display().to_string()
            ),
            (
                "CUDA_MPS_LOG_DIRECTORY".to_owned(),
                bench.path(&format!("m/{}/log", me())).display().to_string()
            ),
        ]
    );
    for dir in ["pipe", "log"] {
        let found = fs::metadata(bench.path(&format!("m/{}/{dir}", me()))).unwrap();
        assert_eq!((found.mode() & 0o7777, found.uid()), (0o700, me()));
    }
}

#[test]
fn many_threads_start_one_daemon() {
    let bench = Bench::new();
    let mps = bench.mps();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| mps.prepare(&request(me())).unwrap());
        }
    });
    assert_eq!(bench.starts(me()), 1);
}

#[test]
fn caps_name_exactly_the_devices_that_the_client_sees() {
    let bench = Bench::new();
    let mps = bench.mps();
    let env = |request: SharingRequest, name: &str| {
        let env = mps.prepare(&request).unwrap().env;
        env.into_iter().find(|(n, _)| n == name).map(|(_, value)| value)
    };
    let capped = SharingRequest { cap: Some(MiB(3072)), thread_percent: Some(25), ..request(me()) };
    assert_eq!(env(capped.clone(), "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE").unwrap(), "25");
    // One device of four: an entry for any other would void the cap.
    let limit = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";
    assert_eq!(env(capped.clone(), limit).unwrap(), "0=3072M");
    let two = SharingRequest { gpus: vec!["GPU-c".into(), "GPU-a".into()], ..capped };
    assert_eq!(env(two, limit).unwrap(), "0=3072M,1=3072M");
    assert_eq!(env(request(me()), limit), None);
}

#[test]
fn a_daemon_that_died_is_replaced() {
    let bench = Bench::new();
    let mps = bench.mps();
    mps.prepare(&request(me())).unwrap();
    let first = bench.daemon(me());
    let pid = rustix::process::Pid::from_raw(first.cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    wait_for("the daemon's death", || dead(first));

    mps.prepare(&request(me())).unwrap();
    assert_eq!(bench.starts(me()), 2);
    assert_ne!(bench.daemon(me()), first);
}

/// As the real one while it starts the server of its first client.
#[test]
fn a_launch_does_not_wait_for_a_daemon_that_is_busy() {
    let bench = Bench::new();
    let patience = Duration::from_millis(100);
    let mps = Mps::new(MpsOptions { timeout: Duration::from_secs(1), patience, ..bench.options() });
    mps.prepare(&request(me())).unwrap();
    fs::write(bench.pipe(me(), "hang"), "").unwrap();
    for _ in 0..3 {
        mps.prepare(&request(me())).expect("it waits for no answer");
    }
    assert_eq!(bench.starts(me()), 1);
    let hung = || fs::read_to_string(bench.pipe(me(), "hung")).unwrap_or_default();
    wait_for("a question beside the launch", || hung().ends_with('\n'));
    let asked = hung();
    wait_for("its end", || !Path::new(&format!("/proc/{}", asked.trim())).exists());
}

#[test]
fn a_daemon_that_hangs_is_an_error_in_time_and_leaves_nothing_behind() {
    let bench = Bench::new();
    bench.mps().prepare(&request(me())).unwrap();
    fs::write(bench.pipe(me(), "hang"), "").unwrap();
    let mps = Mps::new(MpsOptions { timeout: Duration::from_millis(500), ..bench.options() });

    let begun = Instant::now();
    let error = mps.prepare(&request(me())).unwrap_err().to_string();
    assert!(begun.elapsed() < Duration::from_secs(3), "took {:?}", begun.elapsed());
    assert!(error.contains("get_server_list") && error.contains("no answer within 0.5 s"), "{error}");
    assert!(mps.terminate_clients(me(), &[1]).is_err());
    assert_eq!(bench.starts(me()), 1, "a second daemon beside one that may have clients");

    let hung = fs::read_to_string(bench.pipe(me(), "hung")).unwrap();
    wait_for("reaping", || !Path::new(&format!("/proc/{}", hung.trim())).exists());
}

#[test]
fn endless_output_is_cut() {
    let bench = Bench::new();
    fs::write(bench.path("babble"), "").unwrap();
    let begun = Instant::now();
    let error = bench.mps().prepare(&request(me())).unwrap_err().to_string();
    assert!(error.contains("printed too much") && begun.elapsed() < Duration::from_secs(5), "{error}");
}

#[test]
fn a_missing_program_says_where_it_comes_from() {
    let bench = Bench::new();
    let mps = Mps::new(MpsOptions { control: "carma-no-such-program".into(), ..bench.options() });
    let error = mps.prepare(&request(me())).unwrap_err().to_string();
    assert!(
        error.contains("carma-no-such-program") && error.contains("comes with the NVIDIA driver"),
        "{error}"
    );
}

#[test]
fn a_failed_start_passes_on_what_the_program_said() {
    let bench = Bench::new();
    fs::write(bench.path("fail"), "").unwrap();
    let error = bench.mps().prepare(&request(me())).unwrap_err().to_string();
    assert!(error.contains("told to fail"), "{error}");
}

#[test]
fn a_path_too_long_for_a_socket_is_refused() {
    let bench = Bench::new();
    let mps = Mps::new(MpsOptions { dir: bench.path(&"long".repeat(20)), ..bench.options() });
    let error = mps.prepare(&request(me())).unwrap_err().to_string();
    assert!(error.contains("shorter state directory"), "{error}");
}

#[test]
fn an_ordinary_user_cannot_prepare_for_others() {
    if me() == 0 {
        eprintln!("skipped: root can");
        return;
    }
    let error = Bench::new().mps().prepare(&request(me() + 1)).unwrap_err().to_string();
    assert!(error.contains("only root"), "{error}");
}

#[test]
fn only_the_jobs_own_clients_are_terminated() {
    let bench = Bench::new();
    let mps = bench.mps();
    assert_eq!(mps.terminate_clients(me(), &[100]).unwrap(), 0);
    assert_eq!(mps.clients(me(), &[100]).unwrap(), []);
    assert!(!bench.path("m").exists(), "nothing is made or started for this");

    mps.prepare(&request(me())).unwrap();
    assert_eq!(mps.terminate_clients(me(), &[100]).unwrap(), 0);
    fs::write(bench.pipe(me(), "servers"), "40\n50\n").unwrap();
    fs::write(bench.pipe(me(), "clients.40"), "100\n101\n").unwrap();
    fs::write(bench.pipe(me(), "clients.50"), "102\n103\n").unwrap();
    assert_eq!(mps.clients(me(), &[99, 100, 103]).unwrap(), [100, 103]);
    assert_eq!(mps.terminate_clients(me(), &[99, 100, 103]).unwrap(), 2);
    assert_eq!(bench.log(me(), "terminated"), "40 100\n50 103\n");
}

#[test]
fn shutdown_quits_idle_daemons_and_leaves_those_with_clients() {
    let bench = Bench::new();
    bench.mps().prepare(&request(me())).unwrap();
    let daemon = bench.daemon(me());
    fs::write(bench.pipe(me(), "servers"), "40\n").unwrap();
    fs::write(bench.pipe(me(), "clients.40"), "100\n").unwrap();
    // Of an earlier carma: this one has not prepared anything.
    let mps = bench.mps();
    mps.shutdown(&[]);
    assert!(!dead(daemon), "a job was using it");

    fs::write(bench.pipe(me(), "clients.40"), "").unwrap();
    mps.shutdown(&[me()]);
    assert!(!dead(daemon), "a job is about to use it");
    mps.shutdown(&[me() + 1]);
    wait_for("the daemon's end", || dead(daemon));
}

#[test]
fn an_outer_limit_reaches_the_daemon() {
    let bench = Bench::new();
    let mps = Mps::new(MpsOptions { gpus: vec!["GPU-a".into(), "GPU-b".into()], ..bench.options() });
    mps.prepare(&request(me())).unwrap();
    assert!(bench.log(me(), "starts").contains("visible=GPU-a,GPU-b"), "{}", bench.log(me(), "starts"));
}

#[test]
fn each_user_has_a_daemon_of_his_own() {
    if !root_or_skip("each_user_has_a_daemon_of_his_own") {
        return;
    }
    let bench = Bench::new();
    let mps = bench.mps();
    for uid in [1, 65534] {
        mps.prepare(&request(uid)).unwrap();
        let starts = bench.log(uid, "starts");
        assert!(starts.starts_with(&format!("uid={uid} gid={uid} groups={uid} ")), "{starts}");
        let home = fs::metadata(bench.path(&format!("m/{uid}"))).unwrap();
        assert_eq!((home.uid(), home.mode() & 0o7777), (0, 0o711), "the user could put links here");
        let pipe = fs::metadata(bench.pipe(uid, "")).unwrap();
        assert_eq!((pipe.uid(), pipe.gid(), pipe.mode() & 0o7777), (uid, uid, 0o700));
    }
    assert_ne!(bench.daemon(1), bench.daemon(65534));

    // A daemon of one that hangs is the other's business in no way.
    fs::write(bench.pipe(1, "hang"), "").unwrap();
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| {
            Mps::new(MpsOptions { timeout: Duration::from_secs(3), ..bench.options() }).prepare(&request(1))
        });
        let begun = Instant::now();
        mps.prepare(&request(65534)).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(3) && !slow.is_finished());
        assert!(slow.join().unwrap().is_err());
    });
}

#[test]
fn in_multi_user_mode_all_share_one_daemon() {
    if !root_or_skip("in_multi_user_mode_all_share_one_daemon") {
        return;
    }
    let bench = Bench::new();
    let mps = Mps::new(MpsOptions { multi_user: true, ..bench.options() });
    let first = mps.prepare(&request(1)).unwrap();
    assert_eq!(first, mps.prepare(&request(65534)).unwrap());
    let starts = fs::read_to_string(bench.path("m/all/log/starts")).unwrap();
    assert_eq!(starts.lines().count(), 1);
    assert!(starts.contains("uid=0") && starts.contains("args=-d -multiuser-server"), "{starts}");
    assert_eq!(fs::metadata(bench.path("m/all/pipe")).unwrap().mode() & 0o7777, 0o711);
    mps.shutdown(&[]);
    assert!(!bench.path("m/all/pipe/nvidia-cuda-mps-control.pid").exists());
}

#[test]
fn a_closed_parent_directory_is_named() {
    if !root_or_skip("a_closed_parent_directory_is_named") {
        return;
    }
    let bench = Bench::new();
    fs::create_dir(bench.path("closed")).unwrap();
    fs::set_permissions(bench.path("closed"), Permissions::from_mode(0o700)).unwrap();
    let mps = Mps::new(MpsOptions { dir: bench.path("closed/m"), ..bench.options() });
    let error = mps.prepare(&request(1)).unwrap_err().to_string();
    assert!(error.contains("chmod o+x") && error.contains("closed:"), "{error}");
}

/// A client that takes 1 GiB, says so, and keeps the GPU busy; 4 GiB more must fail under its cap.
const CLIENT: &str = r#"
import ctypes, sys, time
cuda, context, small, large = ctypes.CDLL("libcuda.so.1"), *(ctypes.c_void_p() for _ in range(3))
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(small), ctypes.c_size_t(1 << 30)) == 0
print("capped" if cuda.cuMemAlloc_v2(ctypes.byref(large), ctypes.c_size_t(4 << 30)) == 2 else "free", flush=True)
end = time.monotonic() + 30
while time.monotonic() < end:
    failed = cuda.cuMemsetD8_v2(small, 0, ctypes.c_size_t(1 << 30)) or cuda.cuCtxSynchronize()
    if failed:
        sys.exit(f"CUDA error {failed}")
"#;

#[test]
#[ignore = "needs an NVIDIA GPU, its control program and python3"]
fn with_the_real_program() {
    let bench = Bench::new();
    let options = MpsOptions { control: "nvidia-cuda-mps-control".into(), ..bench.options() };
    let mps = Mps::new(options.clone());
    // By UUID and, on a machine of several, not the first: the cap must hold all the same.
    let list = Command::new("nvidia-smi").args(["--query-gpu=uuid", "--format=csv,noheader"]).output();
    let list = String::from_utf8(list.unwrap().stdout).unwrap();
    let gpu = list.lines().last().unwrap();
    let request = SharingRequest { cap: Some(MiB(3072)), gpus: vec![gpu.into()], ..request(me()) };
    let grant = mps.prepare(&request).unwrap();
    let daemon = bench.daemon(me());
    assert!(mps.is_own_process(daemon));
    let client = || {
        let mut client = Command::new("python3");
        client
            .args(["-c", CLIENT])
            .envs(grant.env.iter().cloned())
            .env("CUDA_VISIBLE_DEVICES", gpu)
            .stdout(Stdio::piped());
        client.spawn().unwrap()
    };
    let first_line = |child: &mut std::process::Child| {
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        line
    };
    let (mut one, mut two) = (client(), client());
    assert_eq!((first_line(&mut one), first_line(&mut two)), ("capped\n".into(), "capped\n".into()));

    // Another carma takes the daemon over, and leaves it while it has clients.
    let later = Mps::new(options);
    later.prepare(&request).unwrap();
    later.shutdown(&[]);
    assert_eq!(bench.daemon(me()), daemon);
    assert_eq!(later.terminate_clients(me(), &[1, one.id()]).unwrap(), 1);
    assert!(!one.wait().unwrap().success());
    assert!(two.try_wait().unwrap().is_none(), "the neighbour fell too");
    assert_eq!(later.terminate_clients(me(), &[two.id()]).unwrap(), 1);
    two.wait().unwrap();

    later.shutdown(&[]);
    wait_for("the daemon's end", || dead(daemon));
}
