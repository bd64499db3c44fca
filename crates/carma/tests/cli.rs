//! The binary against a daemon that gives canned answers: exit codes, what is sent, what is printed.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, its helpers too"
)]

use carma_api::wire::{LOG_AT, LOG_END};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// What was asked: method and path, body.
type Asked = (String, Value);
/// What to answer to a method and path; the first that matches is used up unless it is the last.
type Answers = Vec<(String, VecDeque<(u16, Value)>)>;

/// A daemon that knows a few answers.
struct Daemon {
    dir: TempDir,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Daemon {
    fn start(answers: &[(&str, u16, Value)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("s")).unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let mut table: Answers = Vec::new();
        for (what, status, body) in answers {
            let answer = (*status, body.clone());
            match table.iter_mut().find(|(known, _)| known == what) {
                Some((_, queue)) => queue.push_back(answer),
                None => table.push(((*what).to_owned(), [answer].into())),
            }
        }
        let (table, log) = (Arc::new(Mutex::new(table)), Arc::clone(&asked));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (table, log) = (Arc::clone(&table), Arc::clone(&log));
                std::thread::spawn(move || serve(&stream.unwrap(), &table, &log));
            }
        });
        Self { dir, asked }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    fn carma(&self, args: &[&str]) -> Output {
        carma(&self.socket(), args).output().unwrap()
    }

    fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    fn paths(&self) -> Vec<String> {
        self.asked().into_iter().map(|(path, _)| path).collect()
    }

    fn until_asked(&self, what: &str) {
        let start = Instant::now();
        while !self.paths().iter().any(|path| path == what) {
            assert!(start.elapsed() < Duration::from_secs(20), "never asked: {what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Status of an answer in whose place the connection breaks.
const BREAKS: u16 = 0;

/// One connection, as many requests as the client makes.
fn serve(stream: &UnixStream, table: &Mutex<Answers>, log: &Mutex<Vec<Asked>>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|n| *n > 0)?;
        let what = line.trim_end().strip_suffix(" HTTP/1.1")?.to_owned();
        let mut length = 0;
        loop {
            let mut header = String::new();
            reader.read_line(&mut header).ok()?;
            if let Some(value) = header.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
            if header == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        log.lock().unwrap().push((what.clone(), serde_json::from_slice(&body).unwrap_or(Value::Null)));
        let (status, body) = table
            .lock()
            .unwrap()
            .iter_mut()
            .find(|(known, _)| *known == what)
            .and_then(|(_, queue)| if queue.len() > 1 { queue.pop_front() } else { queue.front().cloned() })
            .unwrap_or_else(|| (404, error("not_found", &format!("nothing is known of {what}"))));
        if status == BREAKS {
            return None;
        }
        let place = |name: &str, key: &str| body[key].as_u64().map(|n| format!("{name}: {n}\r\n"));
        let headers = [place(LOG_AT, "at"), place(LOG_END, "end")].map(Option::unwrap_or_default).concat();
        let body = body["bytes"].as_str().map_or_else(|| body.to_string(), str::to_owned);
        let mut stream = stream;
        write!(stream, "HTTP/1.1 {status} X\r\n{headers}content-length: {}\r\n\r\n{body}", body.len())
            .ok()?;
    }
}

fn carma(socket: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_carma"));
    command
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("CARMA_SOCKET", socket)
        .args(args)
        .stdin(Stdio::null());
    command
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn outcomes(all: &[Value]) -> Value {
    json!({"version": 1, "outcomes": all})
}

fn error(code: &str, text: &str) -> Value {
    json!({"version": 1, "code": code, "error": text})
}

fn job(id: u64, state: &str) -> Value {
    json!({
        "id": id, "name": "train", "user": "alice", "state": state,
        "reason": {"code": "X", "text": "because"},
        "gpus": [0], "gpus_requested": 1, "sharing": "time-slice", "memory_reserved_mib": 1024,
        "memory_peak_mib": null, "attempts": 1, "priority": 0, "submitted_ms": 1_760_000_000_000_u64,
        "started_ms": 1_760_000_001_000_u64, "ended_ms": null, "exit_code": null,
    })
}

fn detail(id: u64, state: &str, exit_code: Option<i32>, log: &Path) -> Value {
    let mut job = job(id, state);
    job["exit_code"] = json!(exit_code);
    json!({
        "version": 1, "job": job, "command": ["true"], "cwd": "/", "log": log, "pid": null,
        "forecasts_mib": {}, "time_limit_ms": null, "attempts": [],
    })
}

/// The same of a job of whoever runs the tests: as root, no log of anybody else is read.
fn own(mut detail: Value) -> Value {
    let me = nix::unistd::User::from_uid(nix::unistd::geteuid()).unwrap().unwrap();
    detail["job"]["user"] = json!(me.name);
    detail
}

/// A piece of a log: it goes out as bytes, with its place in headers.
fn piece(at: u64, end: u64, bytes: &str) -> Value {
    json!({"at": at, "end": end, "bytes": bytes})
}

fn log_path(id: u64, from: u64) -> String {
    format!("GET /v1/jobs/{id}/log?from={from}&length=262144")
}

fn wait_path(id: u64) -> String {
    format!("GET /v1/jobs/{id}/wait?timeout_ms=25000")
}

#[test]
fn nobody_at_the_socket_is_69() {
    let dir = tempfile::tempdir().unwrap();
    for verb in [
        &["queue"][..],
        &["gpus", "--json"],
        &["submit", "true"],
        &["run", "true"],
        &["cancel", "1"],
        &["wait", "1"],
    ] {
        let output = carma(&dir.path().join("none"), verb).output().unwrap();
        assert_eq!(code(&output), 69, "{verb:?}");
        assert_eq!(out(&output), "");
        let text = err(&output);
        assert!(text.starts_with("carma: no carma daemon answers at "), "{text}");
        assert!(text.contains("\nhint: start one with `carma serve`"), "{text}");
        assert_eq!(text.lines().count(), 2, "{text}");
    }
}

#[test]
fn refusals_have_codes_of_their_own() {
    let of_bob = json!({
        "id": 1, "text": "job 1 belongs to bob", "refused": {"status": 403, "code": "not_allowed"},
    });
    let done = |id: u64| json!({"id": id, "text": "cancelled"});
    let daemon = Daemon::start(&[
        ("POST /v1/orders/cancel", 200, outcomes(std::slice::from_ref(&of_bob))),
        ("POST /v1/orders/cancel", 200, outcomes(&[done(2), done(3)])),
        ("POST /v1/orders/cancel", 200, outcomes(&[of_bob, done(2), done(3)])),
        ("POST /v1/jobs/1/requeue", 403, error("not_allowed", "job 1 belongs to bob")),
        ("POST /v1/jobs/2/requeue", 200, json!({"version": 1, "id": 2, "text": "put back"})),
        ("POST /v1/jobs", 503, error("no_capacity", "the queue is full")),
        ("POST /v1/gpus/9/drain", 404, error("not_found", "there is no GPU 9")),
    ]);
    let output = daemon.carma(&["cancel", "1-3"]);
    assert_eq!(code(&output), 77);
    assert_eq!(out(&output), "job 2: cancelled\njob 3: cancelled\n");
    assert!(err(&output).starts_with("carma: job 1 belongs to bob\n"), "{}", err(&output));
    // It had asked which of them wait.
    assert_eq!(daemon.paths().len(), 3, "a refusal does not stop the others");
    let output = daemon.carma(&["requeue", "1-3"]);
    assert_eq!(code(&output), 77);
    assert_eq!(out(&output), "job 2: put back\n");
    assert!(err(&output).starts_with("carma: job 1 belongs to bob\n"), "{}", err(&output));
    assert_eq!(daemon.paths().len(), 7, "nor where each has a request of its own");
    // On a terminal: what was done, then what was refused.
    let both = daemon.dir.path().join("both");
    let file = || fs::File::options().create(true).append(true).open(&both).unwrap();
    carma(&daemon.socket(), &["cancel", "1-3"]).stdout(file()).stderr(file()).status().unwrap();
    let text = fs::read_to_string(&both).unwrap();
    assert!(text.starts_with("job 2: cancelled\njob 3: cancelled\ncarma: job 1 belongs to bob\n"), "{text}");
    let output = daemon.carma(&["submit", "true"]);
    assert_eq!((code(&output), err(&output).as_str()), (75, "carma: the queue is full\n"));
    let output = daemon.carma(&["drain", "9"]);
    assert_eq!((code(&output), err(&output).as_str()), (1, "carma: there is no GPU 9\n"));
}

#[test]
fn equal_refusals_are_one_line_and_a_break_says_how_far_it_got() {
    let over = |id: u64| {
        let text = format!("job {id} is over already; see `carma show {id}`");
        json!({"id": id, "text": text, "refused": {"status": 409, "code": "conflict"}})
    };
    let all: Vec<_> = (1..=30)
        .map(|id| if id % 2 == 0 { over(id) } else { json!({"id": id, "text": "cancelled"}) })
        .collect();
    let done = |id: u64| json!({"version": 1, "id": id, "text": "put back"});
    let daemon = Daemon::start(&[
        ("GET /v1/jobs", 404, error("not_found", "no turn")),
        ("GET /v1/jobs", 404, error("not_found", "no turn")),
        ("GET /v1/jobs", 404, error("not_found", "no turn")),
        ("GET /v1/jobs", BREAKS, json!({})),
        ("POST /v1/orders/cancel", 200, outcomes(&all)),
        ("POST /v1/orders/cancel", 200, outcomes(&all[..20])),
        ("POST /v1/orders/cancel", BREAKS, json!({})),
        ("POST /v1/jobs/1/requeue", 200, done(1)),
        ("POST /v1/jobs/2/requeue", 409, error("conflict", "job 2 is PENDING")),
        ("POST /v1/jobs/3/requeue", BREAKS, json!({})),
    ]);
    let likewise = "carma: job 2 is over already; see `carma show 2`; likewise jobs 4,6,8,10,12,14,16,18,20";
    let output = daemon.carma(&["cancel", "1-30"]);
    assert_eq!((code(&output), out(&output).lines().count()), (1, 15));
    assert_eq!(err(&output), format!("{likewise},22,24,26,28,30\n"));
    let output = daemon.carma(&["cancel", "1-30"]);
    assert_eq!((code(&output), out(&output).lines().count()), (1, 10));
    let told = err(&output);
    assert!(told.starts_with(&format!("{likewise}\ncarma: the daemon at ")), "{told}");
    assert!(
        told.contains("; of 30 jobs 10 got the order, 10 were refused, 10 may not have got it\n"),
        "{told}"
    );
    let output = daemon.carma(&["requeue", "1-5"]);
    assert_eq!((code(&output), out(&output).as_str()), (1, "job 1: put back\n"));
    let told = err(&output);
    assert!(told.starts_with("carma: job 2 is PENDING\ncarma: the daemon at "), "{told}");
    assert!(told.contains("; of 5 jobs 1 got the order, 1 was refused, 3 may not have got it\n"), "{told}");
    let told = err(&daemon.carma(&["cancel", "1-5"]));
    assert!(told.contains("; of 5 jobs 0 got the order, 5 did not get it\n"), "{told}");
}

#[test]
fn usage_is_2_before_anyone_is_asked() {
    let daemon = Daemon::start(&[]);
    let dir = tempfile::tempdir().unwrap();
    let bad = dir.path().join("bad.toml");
    fs::write(&bad, "command = ['x']\ngpu_memory = '20G'\n").unwrap();
    let named = dir.path().join("named.toml");
    fs::write(&named, "command = ['x']\noutput = 'o'\n").unwrap();
    for args in [
        &["submit"][..],
        &["submit", "--gpu-memory", "20", "x"],
        &["submit", "--unknown", "x"],
        &["submit", "--file", bad.to_str().unwrap()],
        &["submit", "--rad", "/nowhere.rad"],
        &["submit", "--repeat", "2", "--output", "o", "x"],
        &["submit", "--repeat", "2", "--file", named.to_str().unwrap()],
        &["show", "seven"],
    ] {
        let output = daemon.carma(args);
        assert_eq!(code(&output), 2, "{args:?}: {}", err(&output));
    }
    for verb in ["show", "explain", "logs"] {
        let said = err(&daemon.carma(&[verb, "seven"]));
        assert!(said.contains("'seven' is not the number of a job; `carma queue`"), "{said}");
    }
    let output = daemon.carma(&["submit", "--file", bad.to_str().unwrap()]);
    assert!(err(&output).contains("bad.toml:2: unknown field `gpu_memory`"), "{}", err(&output));
    let odd = std::ffi::OsStr::from_bytes(b"x\xff");
    let output = carma(&daemon.socket(), &["submit", "--", "cat"]).arg(odd).output().unwrap();
    assert_eq!(code(&output), 2);
    assert!(err(&output).contains("an argument is not UTF-8"), "{}", err(&output));
    assert_eq!(daemon.paths(), Vec::<String>::new());
}

/// The socket comes from the environment here.
#[test]
fn what_the_environment_says_is_no_part_of_the_usage() {
    let daemon = Daemon::start(&[]);
    for args in [&["wait"][..], &["explain"], &["show", "1", "2"]] {
        let said = err(&daemon.carma(args));
        assert!(said.contains("Usage: carma ") && !said.contains("--socket"), "{said}");
    }
    // Where it was written it is.
    let said = err(&daemon.carma(&["wait", "--socket", "/s"]));
    assert!(said.contains("--socket <PATH>"), "{said}");
    let help = out(&daemon.carma(&["wait", "--help"]));
    assert!(help.contains("[env: CARMA_SOCKET]"), "{help}");
}

#[test]
fn gpus_of_the_daemon_that_make_no_sense_are_usage() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    for (args, part) in [
        (&["--gpus", "virtual:0xA100-40GB"][..], "--gpus: "),
        (&["--gpus", "auto", "--speed", "2"], "--speed is for virtual GPUs only"),
    ] {
        let mut command = carma(&dir.path().join("s"), &["serve", "--state", state.to_str().unwrap()]);
        let output = command.args(args).output().unwrap();
        assert_eq!(code(&output), 2, "{args:?}: {}", err(&output));
        assert!(err(&output).contains(part), "{args:?}: {}", err(&output));
        assert!(!state.exists(), "{args:?}");
    }
}

#[test]
fn a_user_without_jobs_is_named() {
    let of = |jobs: Value| {
        let reply = json!({"version": 1, "now_ms": 1, "jobs": jobs});
        let daemon = Daemon::start(&[("GET /v1/jobs", 200, reply)]);
        out(&daemon.carma(&["queue", "-u", "nobodyhere"]))
    };
    let told = of(json!([job(1, "RUNNING")]));
    assert!(told.starts_with("No jobs of nobodyhere run or wait; one of another user does."), "{told}");
    assert!(of(json!([])).starts_with("No jobs of nobodyhere run or wait; none of others do."));
}

#[test]
fn json_is_what_the_daemon_said() {
    // Keys that this client does not know pass, in the daemon's order.
    let jobs = json!({"version": 1, "now_ms": 5, "zeta": [1], "alpha": {"b": 1, "a": 2}, "jobs": [job(1, "RUNNING"), job(2, "PENDING")]});
    let gpus = json!({"version": 1, "now_ms": 5, "window_ms": 10, "gpus": []});
    let daemon = Daemon::start(&[
        ("GET /v1/jobs", 200, jobs.clone()),
        ("GET /v1/jobs?all=true", 200, jobs.clone()),
        ("GET /v1/gpus", 200, gpus.clone()),
        ("GET /v1/history?limit=50", 200, jobs.clone()),
    ]);
    for (args, sent) in [
        (&["queue", "--json"][..], &jobs),
        (&["queue", "--all", "--json"], &jobs),
        (&["gpus", "--json"], &gpus),
        (&["history", "--json"], &jobs),
    ] {
        let output = daemon.carma(args);
        assert_eq!(code(&output), 0, "{}", err(&output));
        assert_eq!(out(&output), serde_json::to_string_pretty(sent).unwrap() + "\n", "{args:?}");
    }
    let filtered: Value =
        serde_json::from_slice(&daemon.carma(&["queue", "--json", "--state", "pd"]).stdout).unwrap();
    assert_eq!(filtered["jobs"], json!([job(2, "PENDING")]));
    assert_eq!(filtered["version"], 1);
}

#[test]
fn a_submission_brings_its_surroundings() {
    let accepted =
        |id: u64| json!({"version": 1, "id": id, "log": format!("/logs/{id}.log"), "log_kept": false});
    let mut two = accepted(8);
    two["copies"] = json!([{"id": 9, "log": "/logs/9.log"}]);
    let daemon = Daemon::start(&[
        ("POST /v1/jobs", 200, accepted(7)),
        ("POST /v1/jobs?count=2", 200, two.clone()),
        ("POST /v1/jobs", 200, accepted(10)),
        ("POST /v1/jobs?count=2", 200, two),
        // Of one that is older, or had no time for more.
        ("POST /v1/jobs?count=2", 200, accepted(11)),
        ("POST /v1/jobs", 200, accepted(12)),
    ]);
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path().canonicalize().unwrap();
    let args = [
        "submit",
        "-G",
        "2",
        "--gpu-memory",
        "9.5G",
        "-t",
        "2h",
        "-J",
        "n",
        "-o",
        "o.txt",
        "--env",
        "A=b=c",
        "--hold",
        "--exclusive",
        "--sharing",
        "mps",
        "--mps-threads",
        "40",
        "--max-retries",
        "0",
        "--priority",
        "-2",
        "--",
        "python",
        "-u",
        "t.py",
    ];
    let output = carma(&daemon.socket(), &args)
        .current_dir(&here)
        .env("CARMA_JOB_ID", "3")
        .env("ODD", std::ffi::OsStr::from_bytes(b"\xff"))
        .output()
        .unwrap();
    assert_eq!(code(&output), 0, "{}", err(&output));
    assert_eq!(out(&output), "job 7 submitted; log: /logs/7.log\n");
    assert_eq!(err(&output), "carma: warning: not UTF-8 and so not in the job's environment: ODD\n");
    let mut sent = daemon.asked()[0].1.clone();
    // What it takes over from this session differs from machine to machine.
    let session = sent.as_object_mut().unwrap().remove("session").unwrap();
    assert!(session["umask"].is_u64() && session["limits"]["nofile"].is_object(), "{session}");
    // There is no such script; which PyTorch there is differs, too.
    let task = sent.as_object_mut().unwrap().remove("task").unwrap();
    assert_eq!(task["script"], "unread", "{task}");
    let expected = json!({
        "command": ["python", "-u", "t.py"], "cwd": here,
        "env": {"A": "b=c", "CARMA_SOCKET": daemon.socket(), "PATH": "/usr/bin:/bin"},
        "name": "n", "gpus": 2, "gpu_memory_mib": 9728, "exclusive": true, "sharing": "mps", "thread_pct": 40,
        "time_limit_ms": 7_200_000, "priority": -2, "max_retries": 0, "hold": true, "output": here.join("o.txt"),
        "measured_mib": null, "horus_mib": null, "faketensor_mib": null, "gpumemnet_mib": null,
    });
    assert_eq!(sent, expected);

    let output = daemon.carma(&["submit", "--parsable", "--repeat", "2", "true"]);
    assert_eq!(out(&output), "8\n9\n");
    let output = daemon.carma(&["submit", "--json", "true"]);
    assert_eq!(serde_json::from_slice::<Value>(&output.stdout).unwrap(), accepted(10));
    let output = daemon.carma(&["submit", "--json", "--repeat", "2", "true"]);
    let several: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(several, json!({"version": 1, "jobs": [accepted(8), accepted(9)]}));
    let output = daemon.carma(&["submit", "--json", "--repeat", "2", "true"]);
    let several: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(several, json!({"version": 1, "jobs": [accepted(11), accepted(12)]}));
}

#[test]
fn wait_returns_the_code_of_the_last_that_failed() {
    let log = Path::new("/l");
    let daemon = Daemon::start(&[
        (&wait_path(1), 200, detail(1, "RUNNING", None, log)),
        (&wait_path(1), 200, detail(1, "FAILED", Some(3), log)),
        (&wait_path(2), 200, detail(2, "CANCELLED", Some(0), log)),
        (&wait_path(3), 200, detail(3, "COMPLETED", Some(0), log)),
    ]);
    let output = daemon.carma(&["wait", "1"]);
    assert_eq!((code(&output), out(&output).as_str()), (3, "job 1 FAILED (exit code 3): because\n"));
    assert_eq!(code(&daemon.carma(&["wait", "2", "1", "3"])), 3);
    assert_eq!(code(&daemon.carma(&["wait", "1-3"])), 1);
    assert_eq!(code(&daemon.carma(&["wait", "3"])), 0);
    assert_eq!(code(&daemon.carma(&["wait", "4", "3"])), 1);
}

#[test]
fn run_shows_the_output_and_returns_the_code() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("7.log");
    let daemon = Daemon::start(&[
        ("POST /v1/jobs", 200, json!({"version": 1, "id": 7, "log": log})),
        ("GET /v1/jobs/7", 200, detail(7, "PENDING", None, &log)),
        (&wait_path(7), 200, detail(7, "RUNNING", None, &log)),
        (&wait_path(7), 200, detail(7, "RUNNING", None, &log)),
        (&wait_path(7), 200, detail(7, "FAILED", Some(139), &log)),
    ]);
    let child = carma(&daemon.socket(), &["run", "--", "x"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The log comes later than the job.
    daemon.until_asked(&wait_path(7));
    fs::write(&log, "step 1\nlast words\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(out(&output), "step 1\nlast words\n");
    assert_eq!(code(&output), 139, "{}", err(&output));
    let said = err(&output);
    assert!(said.starts_with("carma: job 7 submitted; log: "), "{said}");
    assert!(said.ends_with("carma: job 7 FAILED (exit code 139): because\n"), "{said}");
}

#[test]
fn the_end_of_the_output_is_waited_for() {
    let log = Path::new("/carma/7.log");
    let mut kept = detail(7, "RUNNING", None, log);
    kept["log_kept"] = json!(true);
    let (waits, begins, goes_on, ends) = (wait_path(7), log_path(7, 0), log_path(7, 4), log_path(7, 8));
    let answers = [
        ("POST /v1/jobs", 200, json!({"version": 1, "id": 7, "log": log, "log_kept": true})),
        ("GET /v1/jobs/7", 200, kept),
        (waits.as_str(), 200, detail(7, "COMPLETED", Some(0), log)),
        (begins.as_str(), 200, piece(0, 8, "one\n")),
        (ends.as_str(), 200, piece(8, 8, "")),
    ];
    for follow in [&["run", "x"][..], &["logs", "-f", "7"]] {
        // Busy for longer than it takes to hear that the job is over.
        let mut busy = answers.to_vec();
        busy.extend((0..8).map(|_| (goes_on.as_str(), 503, error("busy", "too much to do"))));
        busy.push((&goes_on, 200, piece(4, 8, "two\n")));
        let output = Daemon::start(&busy).carma(follow);
        assert_eq!((out(&output).as_str(), code(&output)), ("one\ntwo\n", 0), "{follow:?} {}", err(&output));
        // There is no more of a log that was removed.
        let mut removed = answers.to_vec();
        removed.push((&goes_on, 404, error("no_log", "job 7 has no output yet, or its log was removed")));
        let output = Daemon::start(&removed).carma(follow);
        assert_eq!((out(&output).as_str(), code(&output)), ("one\n", 0), "{follow:?} {}", err(&output));
    }
}

#[test]
fn an_interrupt_cancels_and_a_second_one_leaves() {
    let log = Path::new("/nowhere/7.log");
    let daemon = Daemon::start(&[
        ("POST /v1/jobs", 200, json!({"version": 1, "id": 7, "log": log})),
        (&wait_path(7), 200, detail(7, "RUNNING", None, log)),
        ("GET /v1/jobs/7", 200, detail(7, "RUNNING", None, log)),
        ("POST /v1/jobs/7/cancel", 200, json!({"version": 1, "id": 7, "text": "being cancelled"})),
    ]);
    let mut child =
        carma(&daemon.socket(), &["run", "x"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let interrupt = || {
        let done = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
        assert!(done.success());
    };
    daemon.until_asked(&wait_path(7));
    interrupt();
    daemon.until_asked("POST /v1/jobs/7/cancel");
    interrupt();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("job 7: being cancelled; Ctrl-C again leaves at once"), "{said}");
    assert!(said.contains("left job 7"), "{said}");
}

#[test]
fn logs_come_from_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("7.log");
    fs::write(&log, "a\nb\nc\n").unwrap();
    let mut foreign = detail(8, "RUNNING", None, &log);
    foreign["log"] = json!("");
    let mut waiting = own(detail(6, "PENDING", None, &dir.path().join("6.log")));
    waiting["job"]["started_ms"] = Value::Null;
    // One of which carma keeps the log.
    let mut kept = detail(4, "PENDING", None, &dir.path().join("4.log"));
    (kept["job"]["started_ms"], kept["log_kept"]) = (Value::Null, json!(true));
    let no_log = error("no_log", "job 4 has no output yet, or its log was removed");
    let (begins, end) = (log_path(4, 0), format!("GET /v1/jobs/4/log?from={}&length=1", u64::MAX));
    let daemon = Daemon::start(&[
        ("GET /v1/jobs/4", 200, kept),
        (&begins, 404, no_log.clone()),
        (&end, 404, no_log),
        ("GET /v1/jobs/7", 200, own(detail(7, "RUNNING", None, &log))),
        (&wait_path(7), 200, own(detail(7, "COMPLETED", Some(0), &log))),
        ("GET /v1/jobs/5", 200, own(detail(5, "COMPLETED", Some(0), &dir.path().join("5.log")))),
        ("GET /v1/jobs/6", 200, waiting),
        ("GET /v1/jobs/8", 200, foreign),
    ]);
    assert_eq!(out(&daemon.carma(&["logs", "7"])), "a\nb\nc\n");
    assert_eq!(out(&daemon.carma(&["logs", "7", "--tail", "1"])), "c\n");
    let output = daemon.carma(&["logs", "-f", "-n", "2", "7"]);
    assert_eq!(
        (out(&output).as_str(), err(&output).as_str()),
        ("b\nc\n", "carma: job 7 COMPLETED (exit code 0)\n")
    );
    let output = daemon.carma(&["logs", "8"]);
    assert_eq!((code(&output), err(&output).as_str()), (77, "carma: the log of job 8 belongs to alice\n"));
    let output = daemon.carma(&["logs", "6"]);
    assert_eq!(code(&output), 1);
    assert!(err(&output).starts_with("carma: job 6 has no output: PENDING, because\n"), "{}", err(&output));
    for words in [&["logs", "4"][..], &["logs", "4", "--tail", "3"]] {
        let output = daemon.carma(words);
        assert_eq!(code(&output), 1);
        let said = err(&output);
        assert!(said.starts_with("carma: job 4 has no output: PENDING, because\nhint: "), "{words:?} {said}");
    }
    let output = daemon.carma(&["logs", "5"]);
    assert_eq!(code(&output), 1);
    assert!(err(&output).contains("is gone"), "{}", err(&output));
}

#[test]
fn a_reader_who_has_enough_is_no_error() {
    let many: Vec<Value> = (0..5000).map(|id| job(id, "RUNNING")).collect();
    let daemon = Daemon::start(&[("GET /v1/jobs", 200, json!({"version": 1, "now_ms": 0, "jobs": many}))]);
    for args in [&["queue"][..], &["queue", "--json"]] {
        assert_eq!(closed(&daemon, args), (0, String::new()), "{args:?}");
    }
}

/// The exit code where standard output is closed before anything can be written to it, and what standard error says.
fn closed(daemon: &Daemon, args: &[&str]) -> (i32, String) {
    let mut child =
        carma(&daemon.socket(), args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    (code(&output), err(&output))
}

#[test]
fn orders_are_given_also_where_nobody_reads_what_was_done() {
    let log = Path::new("/l");
    let cancelled = |id: u64| json!({"id": id, "text": "cancelled"});
    let requeued = |id: u64| json!({"version": 1, "id": id, "text": "requeued"});
    let accepted = json!({"version": 1, "id": 7, "log": "/l"});
    let daemon = Daemon::start(&[
        ("POST /v1/orders/cancel", 200, outcomes(&[cancelled(1)])),
        ("POST /v1/orders/cancel", 200, outcomes(&[cancelled(2), cancelled(3)])),
        ("POST /v1/orders/cancel", 200, outcomes(&[cancelled(1)])),
        ("POST /v1/orders/cancel", 200, outcomes(&[cancelled(2), cancelled(3)])),
        ("POST /v1/jobs/1/requeue", 200, requeued(1)),
        ("POST /v1/jobs/2/requeue", 200, requeued(2)),
        ("POST /v1/jobs?count=3", 200, accepted.clone()),
        ("POST /v1/jobs?count=2", 200, accepted.clone()),
        ("POST /v1/jobs", 200, accepted),
        (&wait_path(1), 200, detail(1, "COMPLETED", Some(0), log)),
        (&wait_path(2), 200, detail(2, "FAILED", Some(3), log)),
    ]);
    let silent = |code: i32| (code, String::new());
    assert_eq!(closed(&daemon, &["cancel", "1-3"]), silent(0));
    assert_eq!(daemon.paths().len(), 3);
    assert_eq!(closed(&daemon, &["requeue", "1-2"]), silent(0));
    assert_eq!(daemon.paths().len(), 6);
    assert_eq!(closed(&daemon, &["submit", "--repeat", "3", "true"]), silent(0));
    assert_eq!(daemon.paths().len(), 9);
    assert_eq!(closed(&daemon, &["wait", "1", "2"]), silent(3));
    assert_eq!(closed(&daemon, &["wait", "--json", "1", "2"]), silent(3));
    // A disk that is full stops none of them, and is told.
    let full = || fs::File::options().write(true).open("/dev/full").unwrap();
    let output = carma(&daemon.socket(), &["cancel", "1-3"]).stdout(full()).output().unwrap();
    assert_eq!(daemon.paths().iter().filter(|path| path.ends_with("/cancel")).count(), 4);
    assert_eq!(code(&output), 1);
    assert!(err(&output).starts_with("carma: cannot write the output: "), "{}", err(&output));
}

#[test]
fn run_without_a_reader_does_not_pass_for_success() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("7.log");
    fs::write(&log, "step 1\n").unwrap();
    let daemon = Daemon::start(&[
        ("POST /v1/jobs", 200, json!({"version": 1, "id": 7, "log": log})),
        (&wait_path(7), 200, detail(7, "RUNNING", None, &log)),
    ]);
    let (code, said) = closed(&daemon, &["run", "x"]);
    assert_eq!(code, 141, "{said}");
    assert!(said.contains("job 7 goes on; `carma logs -f 7` follows it"), "{said}");
}

#[test]
fn names_cannot_write_to_the_terminal() {
    let mut evil = job(1, "RUNNING");
    evil["name"] = json!("\u{1b}]0;owned\u{7}x");
    let daemon = Daemon::start(&[
        ("GET /v1/jobs", 200, json!({"version": 1, "now_ms": 0, "jobs": [evil]})),
        ("GET /v1/gpus", 500, error("internal", "\u{1b}[2J")),
    ]);
    assert!(!daemon.carma(&["queue"]).stdout.contains(&0x1b));
    assert!(!daemon.carma(&["gpus"]).stderr.contains(&0x1b));
}

#[test]
fn a_daemon_that_talks_nonsense_is_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let listener = UnixListener::bind(&socket).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream.unwrap().write_all(b"SSH-2.0-nonsense\r\n");
        }
    });
    let output = carma(&socket, &["queue"]).output().unwrap();
    assert_eq!(code(&output), 1);
    assert!(err(&output).contains("broke off or sent something unexpected"), "{}", err(&output));
    let output = carma(&socket, &["submit", "true"]).output().unwrap();
    assert!(err(&output).contains("hint: the job may have been accepted"), "{}", err(&output));
}

#[test]
fn a_virtual_task_needs_virtual_gpus() {
    let output = carma(Path::new("/nowhere"), &["virtual-task", "--memory", "9G"]).output().unwrap();
    assert_eq!(code(&output), 1);
    assert!(err(&output).contains("CARMA_VIRTUAL_GPUS is not set"), "{}", err(&output));
}

#[test]
fn a_doctor_always_has_an_opinion() {
    let output = carma(Path::new("/nowhere/s"), &["doctor", "--json"]).output().unwrap();
    assert_eq!(code(&output), 0, "{}", err(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["version"], 1);
    assert_eq!(report["findings"][0]["about"], "daemon");
    assert_eq!(report["findings"][0]["level"], "warn");
}

#[test]
fn a_configuration_is_checked() {
    let dir = tempfile::tempdir().unwrap();
    let (good, bad) = (dir.path().join("good.toml"), dir.path().join("bad.toml"));
    fs::write(&good, "").unwrap();
    fs::write(&bad, "\npolcy = 'x'\n").unwrap();
    let check = |file: &Path| carma(Path::new("/nowhere"), &["config", "check"]).arg(file).output().unwrap();
    assert_eq!(code(&check(&good)), 0);
    // Limits of a user or group that there is not keep no daemon from its start.
    let limits = "[limits.user.no-such-user]\ngpus = 1\n[limits.user.0]\ngpus = 1\n[limits.group.no-such-group]\ngpus = 1\n";
    fs::write(&good, limits).unwrap();
    let output = check(&good);
    let said = out(&output);
    assert_eq!((code(&output), said.lines().count()), (0, 3), "{said}");
    for part in ["there is no user no-such-user", "there is no group no-such-group", "no other mistakes"] {
        assert!(said.contains(part), "{said}");
    }
    fs::write(&good, "socket = 'relative.sock'\nstate-dir = '/nowhere/state'\n").unwrap();
    let output = check(&good);
    assert_eq!((code(&output), out(&output).lines().count()), (0, 2), "{}", out(&output));
    assert!(out(&output).contains("socket = 'relative.sock' is found from"), "{}", out(&output));
    let output = check(&bad);
    assert_eq!(code(&output), 2);
    assert!(err(&output).contains("bad.toml:2: unknown field `polcy`"), "{}", err(&output));
    assert_eq!(code(&check(Path::new("/nowhere.toml"))), 2);
    // With these the daemon does not start, either.
    fs::create_dir(dir.path().join("full")).unwrap();
    fs::write(dir.path().join("full/thesis.tex"), "").unwrap();
    let full = format!("\nstate-dir = '{}/full'\n", dir.path().display());
    for (text, line) in [
        ("gpus = 'virtual:9xFOO'\n", 1),
        ("policy = 'kace'\nkace-model = '/nowhere'\n", 2),
        (&full, 2),
        ("state-dir = '/proc/x'\n", 1),
        ("\n\nsocket = '/proc'\n", 3),
    ] {
        fs::write(&bad, text).unwrap();
        let output = check(&bad);
        assert_eq!(code(&output), 2, "{text}");
        assert!(err(&output).contains(&format!("bad.toml:{line}: ")), "{}", err(&output));
    }
}
