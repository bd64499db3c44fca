//! A daemon to measure, in a directory of its own.

use carma_api::Client;
use carma_api::wire::{DoneReply, JobsReply, StatusReply, SubmitReply, SubmitRequest};
use rusqlite::{Connection, OpenFlags};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Directories of earlier measurements, kept to the end: some file systems (ext4 without a journal)
/// do not reuse the inodes of files deleted within the last minute, and search past them for each new
/// file, so that cleaning up after one repeat would slow the next.
static SPENT: Mutex<Vec<TempDir>> = Mutex::new(Vec::new());

/// Keeps a directory until [`clean_up`].
pub(crate) fn keep(dir: TempDir) {
    SPENT.lock().unwrap().push(dir);
}

/// Removes all directories.
pub(crate) fn clean_up() {
    SPENT.lock().unwrap().clear();
}

/// The binary that is measured.
pub(crate) const CARMA: &str = env!("CARGO_BIN_EXE_carma");

/// Nothing here takes this long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(600);

/// The environment that every client here has, carma's and the peers' alike.
pub(crate) const ENVIRONMENT: [(&str, &str); 2] =
    [("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"), ("LANG", "C.UTF-8")];

/// Waits until something is so, looking often enough for milliseconds.
pub(crate) fn until(what: &str, pause: Duration, mut check: impl FnMut() -> bool) {
    let started = Instant::now();
    while !check() {
        assert!(started.elapsed() < PATIENCE, "waited in vain: {what}");
        std::thread::sleep(pause);
    }
}

/// The job of the launch rates.
pub(crate) fn true_job(hold: bool) -> SubmitRequest {
    SubmitRequest {
        command: vec!["/bin/true".into()],
        cwd: "/".into(),
        env: ENVIRONMENT.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
        gpu_memory_mib: Some(1024),
        hold,
        ..SubmitRequest::default()
    }
}

pub(crate) fn submit(client: &mut Client, job: &SubmitRequest) -> u64 {
    let reply: SubmitReply = client.post("/v1/jobs", job).unwrap();
    reply.id
}

/// A running daemon; killed when dropped, with the jobs that still run.
pub(crate) struct Daemon {
    /// Taken when dropped.
    dir: Option<TempDir>,
    child: Child,
    /// Reads the journal beside the daemon: counting there costs the daemon nothing.
    journal: Connection,
}

impl Daemon {
    pub(crate) fn start(gpus: &str, config: &str) -> Self {
        let dir = tempfile::Builder::new().prefix("carma-bench-").tempdir().unwrap();
        fs::write(dir.path().join("carma.toml"), config).unwrap();
        let log = File::create(dir.path().join("daemon.log")).unwrap();
        let child = Command::new(CARMA)
            .arg("--socket")
            .arg(dir.path().join("s"))
            .args(["serve", "--gpus", gpus, "--policy", "carma", "--state"])
            .arg(dir.path().join("state"))
            .arg("--config")
            .arg(dir.path().join("carma.toml"))
            .env("CARMA_LOG", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let socket = dir.path().join("s");
        until("the daemon to answer", Duration::from_millis(10), || Client::connect(&socket).is_ok());
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let journal = Connection::open_with_flags(dir.path().join("state/carma.db"), flags).unwrap();
        // GPUs that were never looked at take no job.
        std::thread::sleep(Duration::from_millis(300));
        Self { dir: Some(dir), child, journal }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.as_ref().unwrap().path().join(name)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path("s")
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(&self.socket()).unwrap()
    }

    fn count(&self, table: &str) -> u64 {
        self.journal
            .prepare_cached(&format!("SELECT count(*) FROM {table}"))
            .and_then(|mut query| query.query_row([], |row| row.get(0)))
            .unwrap()
    }

    /// Waits until the history has `n` jobs: until as many exit records are on disk.
    pub(crate) fn until_over(&self, n: u64) {
        until("jobs to end", Duration::from_millis(2), || self.count("history") >= n);
    }

    pub(crate) fn all_completed(&self, n: u64) {
        assert_eq!(self.count("history WHERE state = 'COMPLETED'"), n, "every job ran once and well");
    }

    /// Occupies GPUs with exclusive jobs that outlast everything.
    pub(crate) fn fill(&self, gpus: u64) {
        let job = SubmitRequest {
            command: vec!["/bin/sleep".into(), "3600".into()],
            exclusive: true,
            ..true_job(false)
        };
        let mut client = self.client();
        for _ in 0..gpus {
            submit(&mut client, &job);
        }
        until("the GPUs to be occupied", Duration::from_millis(50), || {
            let status: StatusReply = client.get("/v1/status").unwrap();
            status.jobs.get("RUNNING") == Some(&gpus)
        });
    }

    /// Submits from several connections at once.
    pub(crate) fn submit_many(&self, n: u64, connections: u64, hold: bool) {
        let job = true_job(hold);
        std::thread::scope(|scope| {
            for i in 0..connections {
                let mut client = self.client();
                let share = n / connections + u64::from(i < n % connections);
                let job = &job;
                scope.spawn(move || {
                    for _ in 0..share {
                        submit(&mut client, job);
                    }
                });
            }
        });
    }

    /// A listing as bytes, nothing parsed: its length and the time from connecting to its end.
    pub(crate) fn get_raw(&self, path: &str) -> (usize, Duration) {
        let started = Instant::now();
        let mut stream = UnixStream::connect(self.socket()).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: carma\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer[..200]));
        (answer.len(), started.elapsed())
    }

    /// Wall time of the command line, its output in a file.
    pub(crate) fn time_command(&self, args: &[&str]) -> Duration {
        let out = File::create(self.path("out")).unwrap();
        let mut command = Command::new(CARMA);
        command.arg("--socket").arg(self.socket()).args(args).stdin(Stdio::null()).stdout(out);
        let started = Instant::now();
        assert!(command.status().unwrap().success());
        started.elapsed()
    }

    fn status_kib(&self, key: &str) -> f64 {
        let text = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = text.lines().find_map(|l| l.strip_prefix(key)).unwrap();
        line.trim_start_matches(':').split_whitespace().next().unwrap().parse().unwrap()
    }

    pub(crate) fn resident_mib(&self) -> f64 {
        self.status_kib("VmRSS") / 1024.0
    }

    pub(crate) fn peak_mib(&self) -> f64 {
        self.status_kib("VmHWM") / 1024.0
    }

    /// CPU time of the daemon since its start, all threads, user and system.
    pub(crate) fn cpu(&self) -> Duration {
        let text = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let (_, rest) = text.rsplit_once(')').unwrap();
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        let hz = rustix::param::clock_ticks_per_second();
        Duration::from_secs_f64(ticks as f64 / hz as f64)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Jobs outlive their daemon, so those that run are ended first.
        if let Ok(mut client) = Client::connect(&self.socket()) {
            let reply: Result<JobsReply, _> = client.get("/v1/jobs");
            let running: Vec<u64> = reply
                .map(|r| r.jobs.iter().filter(|j| j.state == "RUNNING").map(|j| j.id).collect())
                .unwrap_or_default();
            for gpu in 0..if running.is_empty() { 0 } else { 8 } {
                let _: Result<DoneReply, _> = client.post(&format!("/v1/gpus/{gpu}/drain"), &());
            }
            for id in &running {
                let _: Result<DoneReply, _> = client.post(&format!("/v1/jobs/{id}/cancel"), &());
            }
            if !running.is_empty() {
                self.until_over(running.len() as u64);
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        keep(self.dir.take().unwrap());
    }
}
