//! A real daemon in a directory of its own, on virtual GPUs.

use carma_api::Client;
use carma_api::wire::{GpusReply, JobDetail, JobView, JobsReply, StatusReply, SubmitReply, SubmitRequest};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The binary under test.
pub(crate) const CARMA: &str = env!("CARGO_BIN_EXE_carma");

/// Longest that anything is waited for: generous, since nothing here measures speed.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until something is so.
#[track_caller]
pub(crate) fn until<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(value) = check() {
            return value;
        }
        assert!(started.elapsed() < PATIENCE, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether the tests run as root; says so where that matters.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// How to start a daemon.
pub(crate) struct Setup {
    pub(crate) gpus: &'static str,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) config: String,
    /// Where the state goes, if not beside the socket.
    pub(crate) state: Option<PathBuf>,
    /// Run as this user (root only).
    pub(crate) user: Option<&'static str>,
    /// A program that executes the daemon, and its arguments before the daemon's.
    pub(crate) wrapper: Vec<String>,
}

impl Setup {
    pub(crate) fn new(gpus: &'static str) -> Self {
        Self {
            gpus,
            args: Vec::new(),
            env: Vec::new(),
            config: String::new(),
            state: None,
            user: None,
            wrapper: Vec::new(),
        }
    }

    pub(crate) fn args(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(ToString::to_string));
        self
    }

    pub(crate) fn env(mut self, key: &str, value: &str) -> Self {
        self.env.push((key.into(), value.into()));
        self
    }

    pub(crate) fn config(mut self, text: &str) -> Self {
        self.config = text.into();
        self
    }

    pub(crate) fn start(self) -> Daemon {
        // Not in a directory that only its owner may enter: other users' clients come here too.
        let dir = tempfile::Builder::new().prefix("carma-e2e-").tempdir().unwrap();
        open_to_all(dir.path());
        Daemon::start_in(self, dir)
    }
}

pub(crate) fn open_to_all(dir: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o777)).unwrap();
}

/// The binary under test in a directory of the test: where it was built may lie below a home that only its owner may enter.
fn binary_for_all(dir: &Path) -> PathBuf {
    let binary = dir.join("carma");
    if !binary.exists() {
        std::fs::hard_link(CARMA, &binary).or_else(|_| std::fs::copy(CARMA, &binary).map(drop)).unwrap();
    }
    binary
}

/// A program as another user (root only).
pub(crate) fn as_other(user: &str, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", user, "--regid", user, "--init-groups"]).arg(program);
    command
}

/// A running daemon; killed when dropped, with everything that it started.
pub(crate) struct Daemon {
    setup: Setup,
    pub(crate) dir: TempDir,
    child: Child,
}

impl Daemon {
    fn start_in(setup: Setup, dir: TempDir) -> Self {
        std::fs::write(dir.path().join("carma.toml"), &setup.config).unwrap();
        let child = Self::spawn(&setup, dir.path());
        let mut daemon = Self { setup, dir, child };
        daemon.wait_until_up();
        daemon
    }

    fn spawn(setup: &Setup, dir: &Path) -> Child {
        let log = std::fs::File::options().create(true).append(true).open(dir.join("daemon.log")).unwrap();
        let mut command = match setup.user {
            Some(user) => as_other(user, binary_for_all(dir)),
            None => match &setup.wrapper[..] {
                [] => Command::new(CARMA),
                [program, args @ ..] => {
                    let mut command = Command::new(program);
                    command.args(args).arg(CARMA);
                    command
                }
            },
        };
        command
            .arg("--socket")
            .arg(dir.join("s"))
            .args(["serve", "--gpus", setup.gpus, "--state"])
            .arg(setup.state.clone().unwrap_or_else(|| dir.join("state")))
            .arg("--config")
            .arg(dir.join("carma.toml"))
            .args(&setup.args)
            .env_remove("CARMA_FAULT")
            .envs(setup.env.iter().map(|(k, v)| (k, v)))
            .env("CARMA_LOG", "info")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap()
    }

    fn wait_until_up(&mut self) {
        let socket = self.socket();
        until(&format!("the daemon to answer; its log:\n{}", self.log()), || {
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("the daemon ended with {status}:\n{}", self.log());
            }
            // An answer, not a connection: a child that the killed one had not quite started holds its socket for a moment.
            let answered = Client::connect(&socket).and_then(|mut client| client.get("/v1/status"));
            answered.ok().map(|_: StatusReply| ())
        });
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    /// Where its virtual GPUs listen.
    pub(crate) fn virtual_gpus(&self) -> PathBuf {
        Path::new(&self.status().runtime_dir).join("virtual-gpus.sock")
    }

    pub(crate) fn status(&self) -> StatusReply {
        self.client().get("/v1/status").unwrap()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("daemon.log")).unwrap_or_default()
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(&self.socket()).unwrap()
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Politely, as a service manager does.
    pub(crate) fn stop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        self.wait_dead();
    }

    /// Waits until a fault point has killed it.
    pub(crate) fn wait_dead(&mut self) {
        until("the daemon to die", || self.child.try_wait().unwrap());
    }

    /// Starts it again in the same directory, with another environment.
    pub(crate) fn restart(&mut self, env: &[(&str, &str)]) {
        self.setup.env = env.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        self.child = Self::spawn(&self.setup, self.dir.path());
        self.wait_until_up();
    }

    /// Starts it again with its state elsewhere.
    pub(crate) fn restart_at(&mut self, state: PathBuf) {
        self.setup.state = Some(state);
        self.restart(&[]);
    }

    /// Starts it again where it may die at once.
    pub(crate) fn spawn_again(&mut self, env: &[(&str, &str)]) {
        self.setup.env = env.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        self.child = Self::spawn(&self.setup, self.dir.path());
    }

    /// Runs the command line against it.
    pub(crate) fn carma(&self, args: &[&str]) -> Output {
        Command::new(CARMA).arg("--socket").arg(self.socket()).args(args).output().unwrap()
    }

    /// The same as another user (root only).
    pub(crate) fn carma_as(&self, user: &str, args: &[&str]) -> Output {
        self.command_as(user, args).output().unwrap()
    }

    /// What [`Daemon::carma_as`] runs.
    pub(crate) fn command_as(&self, user: &str, args: &[&str]) -> Command {
        let mut command = as_other(user, self.binary_for_all());
        command.arg("--socket").arg(self.socket()).args(args).current_dir("/");
        command
    }

    /// The binary under test where every user may execute it.
    pub(crate) fn binary_for_all(&self) -> PathBuf {
        binary_for_all(self.dir.path())
    }

    /// Submits a shell line.
    pub(crate) fn shell(&self, line: &str) -> u64 {
        self.submit(job(&["/bin/sh", "-c", line]))
    }

    pub(crate) fn submit(&self, request: SubmitRequest) -> u64 {
        let reply: SubmitReply = self.client().post("/v1/jobs", &request).unwrap();
        reply.id
    }

    pub(crate) fn show(&self, id: u64) -> JobDetail {
        self.client().get(&format!("/v1/jobs/{id}")).unwrap()
    }

    pub(crate) fn queue(&self) -> JobsReply {
        self.client().get("/v1/jobs").unwrap()
    }

    pub(crate) fn gpus(&self) -> GpusReply {
        self.client().get("/v1/gpus").unwrap()
    }

    /// Waits for a job's end.
    #[track_caller]
    pub(crate) fn end_of(&self, id: u64) -> JobDetail {
        until(&format!("job {id} to end; the daemon's log:\n{}", self.log()), || {
            let detail = self.show(id);
            detail.job.ended_ms.is_some().then_some(detail)
        })
    }

    /// Waits until a job is in a state.
    #[track_caller]
    pub(crate) fn in_state(&self, id: u64, state: &str) -> JobDetail {
        until(&format!("job {id} to be {state}"), || {
            let detail = self.show(id);
            let JobView { state: now, ended_ms, .. } = &detail.job;
            assert!(
                ended_ms.is_none() || now == state,
                "job {id} is {now}, not {state}; the daemon's log:\n{}",
                self.log()
            );
            (now == state).then_some(detail)
        })
    }

    /// What a job printed.
    pub(crate) fn output(&self, id: u64) -> String {
        std::fs::read_to_string(self.show(id).log).unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let live: Vec<u64> = Client::connect(&self.socket())
            .ok()
            .and_then(|mut c| c.get::<JobsReply>("/v1/jobs").ok())
            .map(|reply| reply.jobs.iter().map(|j| j.id).collect())
            .unwrap_or_default();
        if let Ok(mut client) = Client::connect(&self.socket()) {
            for id in live {
                let _: Result<carma_api::wire::DoneReply, _> =
                    client.post(&format!("/v1/jobs/{id}/cancel"), &());
            }
        }
        // They end through this daemon; what ignores the polite signal is beyond a test's patience.
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(3)
            && Client::connect(&self.socket())
                .ok()
                .and_then(|mut c| c.get::<JobsReply>("/v1/jobs").ok())
                .is_some_and(|reply| !reply.jobs.is_empty())
        {
            std::thread::sleep(Duration::from_millis(20));
        }
        // Politely first: it takes its cgroup and its runtime directory with it.
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            let pid = rustix::process::Pid::from_child(&self.child);
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            let asked = Instant::now();
            while asked.elapsed() < Duration::from_secs(2) && self.child.try_wait().is_ok_and(|e| e.is_none())
            {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A submission with a small environment.
pub(crate) fn job(command: &[&str]) -> SubmitRequest {
    SubmitRequest {
        command: command.iter().map(ToString::to_string).collect(),
        cwd: "/".into(),
        env: [("PATH".to_owned(), "/usr/bin:/bin".to_owned())].into(),
        ..SubmitRequest::default()
    }
}

/// A virtual task.
pub(crate) fn task(args: &[&str], declared_gib: Option<u64>) -> SubmitRequest {
    let mut words = vec![CARMA, "virtual-task"];
    words.extend(args);
    SubmitRequest { gpu_memory_mib: declared_gib.map(|g| g * 1024), ..job(&words) }
}

/// A job that settles at less than 5 GiB, and then one that takes 30 GiB and grows to 38: their numbers.
pub(crate) fn one_that_grows_beside(daemon: &Daemon, older: &[&str]) -> (u64, u64) {
    let older = daemon.submit(task(older, None));
    until("the older one to settle", || {
        let gpus = daemon.gpus().gpus;
        gpus[0].tenants.first().filter(|tenant| tenant.reserved_mib < Some(5 * 1024)).map(drop)
    });
    let younger =
        ["--memory=30G", "--sm=0.2", "--work=25s", "--startup=0s", "--grow-to=38G", "--grow-after=1s"];
    let younger = daemon.submit(task(&[&younger[..], &["--grow-over=20s"]].concat(), None));
    (older, younger)
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}
