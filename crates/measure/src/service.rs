//! A daemon of our own: carma's program as a child that serves in a folder of ours.

use crate::Error;
use carma_api::Client;
use carma_api::wire::{JobsReply, MOST_AT_ONCE, OrdersReply, OrdersRequest, StatusReply};
use rustix::process::{Signal, getpid, kill_process};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long it may take to answer.
const START: Duration = Duration::from_secs(30);
/// How long jobs may take to end that are cancelled since their owner is gone.
const CANCELLED: Duration = Duration::from_secs(40);
/// The most that is read of the end of its log, bytes.
const LOG_END: u64 = 64 << 10;
/// How long it may take to end, its jobs with it.
const END: Duration = Duration::from_secs(50);

/// What a daemon is started with.
#[derive(Debug, Clone)]
pub struct Setup<'a> {
    /// carma's program.
    pub carma: &'a Path,
    /// Its socket, a short path.
    pub socket: PathBuf,
    /// Where its state is kept.
    pub state: PathBuf,
    /// Where its log grows.
    pub log: PathBuf,
    /// The GPUs, as `carma serve --gpus` has them.
    pub gpus: &'a str,
    /// Virtual seconds a second.
    pub speed: u32,
    /// The policy.
    pub policy: &'a str,
    /// `mps` or `time-slice`.
    pub sharing: &'a str,
    /// Its configuration; without one that of the machine counts.
    pub config: Option<&'a Path>,
}

/// A daemon that ends with its owner, and its jobs with it, however that one ends: its standard input is a pipe of ours.
#[derive(Debug)]
pub struct Service {
    child: Child,
    log: PathBuf,
}

impl Service {
    /// Starts it and waits until it answers.
    ///
    /// # Errors
    /// It cannot be started, or ends: with the cause by its log.
    pub fn start(setup: &Setup<'_>) -> Result<(Self, Client), Error> {
        let failed =
            |what: &Path, e: std::io::Error| Error::new(format!("cannot write {}: {e}", what.display()));
        let log =
            File::options().create(true).append(true).open(&setup.log).map_err(|e| failed(&setup.log, e))?;
        // What an earlier daemon said is no cause.
        let from = log.metadata().map_or(0, |m| m.len());
        let mut command = Command::new(setup.carma);
        command.arg("--socket").arg(&setup.socket).args(["serve", "--gpus", setup.gpus]);
        command.args(["--policy", setup.policy, "--sharing", setup.sharing, "--state"]).arg(&setup.state);
        command.arg("--until-eof").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log);
        // Ctrl-C on a terminal is for its owner, who cancels the jobs first: without a daemon they would run on.
        command.process_group(0);
        if setup.speed > 1 {
            command.args(["--speed", &setup.speed.to_string()]);
        }
        if let Some(config) = setup.config {
            command.arg("--config").arg(config);
        }
        let child = command
            .spawn()
            .map_err(|e| Error::new(format!("cannot start {}: {e}", setup.carma.display())))?;
        let mut service = Self { child, log: setup.log.clone() };
        let until = Instant::now() + START;
        loop {
            if let Ok(mut client) = Client::connect(&setup.socket)
                && client.get::<StatusReply>("/v1/status").is_ok()
            {
                return Ok((service, client));
            }
            let has_ended = service.child.try_wait().is_ok_and(|ended| ended.is_some());
            if has_ended || Instant::now() > until {
                let length = std::fs::metadata(&service.log).map_or(0, |m| m.len());
                let said = tail(&service.log, LOG_END.min(length.saturating_sub(from)));
                let why = cause(&said).map(str::to_owned);
                // On a full disk it cannot say a word, and what a daemon before it said is the best there is.
                let why = why.unwrap_or_else(|| match last_error(&tail(&service.log, LOG_END)) {
                    Some(error) => format!(
                        "it did not say why; the last error in its log is of a daemon before it: {error}"
                    ),
                    None => "it did not say why".to_owned(),
                });
                let what = if has_ended {
                    "the daemon did not start".to_owned()
                } else {
                    format!("the daemon did not answer within {} s", START.as_secs())
                };
                return Err(Error::new(format!("{what}: {why}"))
                    .hint(format!("its log is {}", service.log.display())));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Kills it, as a crash does. Its jobs go on.
    pub fn kill(mut self) {
        // Before its standard input is closed, which `wait` does.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let until = Instant::now() + END;
        while self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            if Instant::now() > until {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// In such a daemon: when standard input has ended, cancels all jobs and then ends it as a service manager would.
///
/// # Errors
/// When the system gives no more threads.
pub fn end_with_owner(socket: PathBuf) -> std::io::Result<()> {
    let wait = move || {
        // It has nothing to say; what cannot be read has ended.
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        let until = Instant::now() + START;
        // The owner may end before there is a socket; jobs of a daemon that was killed may run by then.
        let mut client = Client::connect(&socket);
        while client.is_err() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(50));
            client = Client::connect(&socket);
        }
        let cancelled = client
            .map_err(|e| Error::new(e.to_string()))
            .and_then(|mut client| cancel_all(&mut client, CANCELLED));
        if let Err(e) = cancelled {
            eprintln!("carma: the process that started this daemon has ended, and its jobs may run on: {e}");
        }
        let _ = kill_process(getpid(), Signal::TERM);
    };
    std::thread::Builder::new().name("owner".into()).spawn(wait).map(drop)
}

/// Cancels all jobs and waits for their end, at most so long: they would outlive the daemon.
///
/// # Errors
/// The daemon does not answer, or jobs have not ended by then: which ones.
pub fn cancel_all(client: &mut Client, patience: Duration) -> Result<(), Error> {
    let until = Instant::now() + patience;
    let mut asked = BTreeSet::new();
    loop {
        let live: JobsReply = client.get("/v1/jobs").map_err(|e| Error::new(e.to_string()))?;
        if live.jobs.is_empty() {
            return Ok(());
        }
        // Some may have come while others were cancelled, and of many some are left for the next request.
        let ids: Vec<u64> = live.jobs.iter().map(|job| job.id).filter(|id| !asked.contains(id)).collect();
        for ids in ids.chunks(MOST_AT_ONCE as usize) {
            // Those that ended meanwhile cannot be cancelled.
            let reply = client.post::<OrdersReply>("/v1/orders/cancel", &OrdersRequest { ids: ids.to_vec() });
            asked.extend(reply.into_iter().flat_map(|reply| reply.outcomes).map(|outcome| outcome.id));
        }
        if Instant::now() > until {
            let left: Vec<String> = live.jobs.iter().map(|job| job.id.to_string()).collect();
            return Err(Error::new(format!(
                "these jobs have not ended within {} s: {}",
                patience.as_secs(),
                left.join(", ")
            ))
            .hint("a process of theirs may be stuck in the kernel, where nothing ends it; `ps` with state D shows it"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Why a daemon failed, by what it logged: its last error, else its last line.
fn cause(log: &str) -> Option<&str> {
    last_error(log).or_else(|| log.lines().map(str::trim).rfind(|line| !line.is_empty()))
}

/// The last error in a log.
fn last_error(log: &str) -> Option<&str> {
    // One that has no end was cut, by a full disk.
    let lines = log.split_inclusive('\n').filter(|line| line.ends_with('\n')).map(str::trim);
    lines.rev().find_map(|line| match line.split_once(" ERROR ") {
        Some((_, why)) => Some(why.trim_start()),
        // What ends it, it says without a time and a level before it, and after it what to do.
        None => line.strip_prefix("carma: "),
    })
}

/// The last bytes of a text file; nothing, where it cannot be read.
pub(crate) fn tail(path: &Path, most: u64) -> String {
    let read = || -> Option<Vec<u8>> {
        let mut file = carma_files::open(path).ok()?;
        let length = file.metadata().ok()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(most))).ok()?;
        let mut bytes = Vec::new();
        file.take(most).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    };
    String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;

    #[test]
    fn the_cause_is_the_last_error_alone_and_whole() {
        let full = "the journal cannot be written: database or disk is full; nothing was accepted or started, trying again";
        let log = format!(
            "cut off\n2026-11-29T23:38:57.1Z ERROR something else\n2026-11-29T23:38:57.9Z ERROR {full}\n\
             2026-11-29T23:38:58.0Z  INFO and so on\n2026-11-29T23:38:59.0Z ERROR the journal cannot b"
        );
        assert_eq!(cause(&log), Some(full));
        assert_eq!(cause("carma: no such file\nhint: name another\n"), Some("no such file"));
        assert_eq!(cause("thread panicked\n\n"), Some("thread panicked"));
        assert_eq!(cause(""), None);
    }

    /// As on a full disk.
    #[test]
    fn a_daemon_that_does_not_start_says_one_line_and_where_its_log_is() {
        let dir = tempfile::tempdir().unwrap();
        let carma = dir.path().join("carma");
        let script = "#!/bin/sh\nfor i in 1 2 3; do echo \"2026-11-29T23:38:57Z ERROR the disk is full, $i\" >&2; done\nexit 1\n";
        std::fs::write(&carma, script).unwrap();
        let runs = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&carma, runs).unwrap();
        let log = dir.path().join("log");
        std::fs::write(&log, "2026-11-28T00:00:00Z ERROR of a daemon before\n").unwrap();
        let setup = Setup {
            carma: &carma,
            socket: dir.path().join("s"),
            state: dir.path().join("state"),
            log: log.clone(),
            gpus: "virtual:1xH200",
            speed: 1,
            policy: "adaptive",
            sharing: "mps",
            config: None,
        };
        let refused = || Service::start(&setup).map(drop).unwrap_err();
        let said = refused();
        assert_eq!(said.message, "the daemon did not start: the disk is full, 3");
        assert_eq!(said.hint, Some(format!("its log is {}", log.display())));
        std::fs::write(&carma, "#!/bin/sh\nexit 1\n").unwrap();
        let said = refused().message;
        assert!(
            said.ends_with(
                "it did not say why; the last error in its log is of a daemon before it: the disk is full, 3"
            ),
            "{said}"
        );
        std::fs::remove_file(&log).unwrap();
        assert!(refused().message.ends_with("it did not say why"));
    }

    /// Serves this list of jobs until the client leaves; cancels none.
    fn serve(listener: &UnixListener, jobs: &serde_json::Value) {
        let (mut stream, _) = listener.accept().unwrap();
        let mut heard = BufReader::new(stream.try_clone().unwrap());
        let mut line = String::new();
        while heard.read_line(&mut line).is_ok_and(|read| read > 0) {
            let mut length = 0;
            let mut header = String::new();
            while heard.read_line(&mut header).is_ok_and(|read| read > 2) {
                if let Some(value) = header.to_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                header.clear();
            }
            heard.read_exact(&mut vec![0; length]).unwrap();
            let body = if line.starts_with("GET /v1/jobs ") { jobs.to_string() } else { "{}".into() };
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            stream.write_all((head + &body).as_bytes()).unwrap();
            line.clear();
        }
    }

    #[test]
    fn jobs_that_do_not_end_are_not_said_to_have_ended() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let job = |id: u64| {
            serde_json::json!({
                "id": id, "name": "x", "user": "u", "state": "COMPLETING",
                "reason": { "code": "Ending", "text": "it ends" }, "gpus": [], "gpus_requested": 1, "attempts": 1, "priority": 0, "submitted_ms": 1
            })
        };
        for (jobs, left) in [(vec![job(3), job(5)], Some("not ended within 0 s: 3, 5")), (Vec::new(), None)] {
            let listener = UnixListener::bind(&socket).unwrap();
            let reply = serde_json::json!({ "version": carma_api::VERSION, "now_ms": 1, "jobs": jobs });
            let server = std::thread::spawn(move || serve(&listener, &reply));
            let mut client = Client::connect(&socket).unwrap();
            let error = cancel_all(&mut client, Duration::ZERO).err().map(|e| e.message);
            assert_eq!(error.is_some(), left.is_some(), "{error:?}");
            assert!(error.unwrap_or_default().contains(left.unwrap_or_default()));
            drop(client);
            server.join().unwrap();
            std::fs::remove_file(&socket).unwrap();
        }
    }
}
