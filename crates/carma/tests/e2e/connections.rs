//! Connections that a user holds, idle, slow or full of garbage, harm no other user; and a client never waits for ever.

use crate::support::{Daemon, Setup, job, stderr, until};
use crate::users::{as_user, ready, submit_as};
use carma_api::wire::SubmitRequest;
use carma_api::{Client, ClientError};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Connections that a user holds until this is dropped.
struct Held {
    streams: Arc<Vec<UnixStream>>,
    over: Arc<AtomicBool>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for stream in self.streams.iter() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Opens connections as another user, and sends something over each. Whether the daemon keeps them is its business.
fn hold(daemon: &Daemon, user: &str, wanted: usize, what: &str) -> Held {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let socket = daemon.socket();
    let connect = || (0..wanted).map(|_| UnixStream::connect(&socket).unwrap()).collect::<Vec<_>>();
    let streams = Arc::new(as_user(user, connect));
    let said: &[u8] = match what {
        "garbage" => &[0, 255, 13, 10, 7, 200].repeat(500),
        "slow" => b"G",
        "half" => b"POST /v1/jobs HTTP/1.1\r\nhost: carma\r\ncontent-length: 1000\r\n\r\n{",
        _ => b"",
    };
    for mut stream in streams.iter() {
        // Closed already, perhaps.
        let _ = stream.write_all(said);
    }
    let over = Arc::new(AtomicBool::new(false));
    if what == "slow" {
        let (streams, over) = (streams.clone(), over.clone());
        std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                for mut stream in streams.iter() {
                    let _ = stream.write_all(b"E");
                }
                std::thread::sleep(Duration::from_secs(1));
            }
        });
    }
    Held { streams, over }
}

/// A daemon with few descriptors: `ulimit -n`.
fn with_descriptors(number: u32, hard_too: bool) -> Daemon {
    let which = if hard_too { "" } else { "S" };
    let mut setup = Setup::new("virtual:4xA100-40GB");
    setup.wrapper = vec!["sh".into(), "-c".into(), format!("ulimit -{which}n {number}; exec \"$0\" \"$@\"")];
    setup.start()
}

fn descriptors(daemon: &Daemon) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().count()
}

/// What must go on while `bob` does his worst: answers, submissions, launches and exits of others.
fn life_goes_on(daemon: &Daemon) {
    let ids: Vec<u64> =
        (0..6).map(|n| submit_as(daemon, "carma-alice", &["--", "sh", "-c", &format!("exit {n}")])).collect();
    for (n, id) in (0..).zip(ids) {
        let over = daemon.end_of(id);
        let wanted = if n == 0 { "COMPLETED" } else { "FAILED" };
        assert_eq!((over.job.state.as_str(), over.job.exit_code), (wanted, Some(n)), "{:?}", over.job.reason);
    }
    let output = daemon.carma_as("carma-alice", &["queue"]);
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn connections_that_one_user_holds_harm_nobody_else() {
    if !ready() {
        return;
    }
    // As it was when 1,100 of them ended other people's jobs: a soft limit of 1,024.
    let daemon = with_descriptors(1024, false);
    let running = submit_as(&daemon, "carma-alice", &["--", "sh", "-c", "sleep 5; exit 7"]);
    for what in ["idle", "slow", "garbage"] {
        let _held = hold(&daemon, "carma-bob", 1100, what);
        life_goes_on(&daemon);
        // He is served, too: his oldest idle connections make room.
        let output = daemon.carma_as("carma-bob", &["queue"]);
        assert!(output.status.success(), "{what}: {}", stderr(&output));
    }
    assert_eq!(daemon.end_of(running).job.exit_code, Some(7), "the end was seen");
    let log = daemon.log();
    assert!(log.contains("audit act=\"connect\"") && log.contains("too_many_connections"), "{log}");
}

#[test]
fn five_thousand_connections_find_a_daemon_with_few_descriptors() {
    if !ready() {
        return;
    }
    let daemon = with_descriptors(256, true);
    assert!(daemon.log().contains("descriptors: 256"), "{}", daemon.log());
    let _idle = hold(&daemon, "carma-bob", 5000, "idle");
    assert!(descriptors(&daemon) < 200, "{} descriptors", descriptors(&daemon));
    let _slow = hold(&daemon, "carma-bob", 1000, "slow");
    life_goes_on(&daemon);
    assert!(!daemon.log().contains("Too many open files"), "{}", daemon.log());
}

/// Connections whose requests are all being worked on cannot make room: the next one is told so.
#[test]
fn a_user_whose_connections_are_all_in_use_is_told_so() {
    if !ready() {
        return;
    }
    let daemon = with_descriptors(256, true);
    let id = submit_as(&daemon, "carma-bob", &["--hold", "--", "true"]);
    let waits: Vec<Child> = (0..8)
        .map(|_| {
            let mut wait = daemon.command_as("carma-bob", &["wait", &id.to_string()]);
            wait.stdout(Stdio::null()).spawn().unwrap()
        })
        .collect();
    // Until all eight have asked, a connection that has not asked yet may lose its place to one of them: it breaks off.
    let refusal = until("the ninth to be refused", || {
        let output = daemon.carma_as("carma-bob", &["queue"]);
        (output.status.code() == Some(75)).then_some(output)
    });
    assert!(stderr(&refusal).contains("you hold 8 connections"), "{}", stderr(&refusal));
    life_goes_on(&daemon);
    let cancelled = daemon.carma(&["cancel", &id.to_string()]);
    assert!(cancelled.status.success(), "{}", stderr(&cancelled));
    for mut wait in waits {
        assert!(wait.wait().unwrap().code().is_some());
    }
}

#[test]
fn jobs_get_answers_while_many_requests_of_one_user_are_half_sent() {
    if !ready() {
        return;
    }
    let daemon = with_descriptors(1024, true);
    // Heads that announce a body which never comes.
    let held = hold(&daemon, "carma-bob", 30, "half");
    life_goes_on(&daemon);
    // Each is told. Which requests had a turn, and which waited for one in vain, is up to the daemon.
    let mut answers = Vec::new();
    for mut stream in held.streams.iter() {
        let mut answer = String::new();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let _ = stream.read_to_string(&mut answer);
        answers.push(answer);
    }
    let late = answers.iter().filter(|a| a.contains("408") && a.contains("within 15 s")).count();
    let busy = answers.iter().filter(|a| a.contains("503") && a.contains("busy")).count();
    assert!(late > 0 && late + busy == answers.len(), "{answers:?}");
}

/// A request that is written here, on a connection of its own.
fn ask(daemon: &Daemon, request: &str) -> UnixStream {
    let mut stream = UnixStream::connect(daemon.socket()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(90))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    stream
}

fn answer_of(mut stream: UnixStream) -> String {
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

#[test]
fn submissions_that_are_refused_keep_nobody_waiting() {
    let daemon = Setup::new("virtual:1xA100-40GB").start();
    let body = format!(r#"{{"cwd":"/","command":["x"{}]}}"#, r#","x""#.repeat(900_000));
    let head = "POST /v1/jobs HTTP/1.1\r\nhost: carma\r\nconnection: close\r\ncontent-length";
    let request = format!("{head}: {}\r\n\r\n{body}", body.len());
    let over = AtomicBool::new(false);
    let (over, daemon, request) = (&over, &daemon, &request);
    std::thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let answer = answer_of(ask(daemon, request));
                    assert!(answer.contains(" 400 "), "{answer}");
                }
            });
        }
        std::thread::sleep(Duration::from_millis(500));
        let waits = (0..5).map(|_| {
            let asked = Instant::now();
            let status = daemon.client().get::<carma_api::wire::StatusReply>("/v1/status");
            status.map(|_| asked.elapsed())
        });
        let waits: Vec<_> = waits.collect();
        over.store(true, Ordering::Relaxed);
        let soon =
            |wait: &Result<Duration, _>| wait.as_ref().is_ok_and(|wait| *wait < Duration::from_secs(5));
        assert!(waits.iter().all(soon), "{waits:?}");
    });
}

#[test]
fn the_answer_of_a_request_that_has_waited_for_a_job_needs_a_turn() {
    let daemon = Setup::new("virtual:1xA100-40GB").start();
    let id = daemon.submit(SubmitRequest { hold: true, ..job(&["true"]) });
    let wait = |ms| {
        let head = "HTTP/1.1\r\nhost: carma\r\nconnection: close";
        ask(&daemon, &format!("GET /v1/jobs/{id}/wait?timeout_ms={ms} {head}\r\n\r\n"))
    };
    let waiting = wait(2000);
    // It has come, and all turns are taken by requests of which the rest does not come.
    std::thread::sleep(Duration::from_millis(500));
    let half = "POST /v1/jobs HTTP/1.1\r\nhost: carma\r\ncontent-length: 1000\r\n\r\n{";
    let held: Vec<UnixStream> = (0..16).map(|_| ask(&daemon, half)).collect();
    let answer = answer_of(waiting);
    assert!(answer.contains(" 503 ") && answer.contains("16 requests of yours"), "{answer}");
    drop(held);
    let answer = answer_of(wait(1));
    assert!(answer.contains(" 200 ") && answer.contains("\"PENDING\""), "{answer}");
}

/// An answer takes memory in proportion to what it lists, for as long as it is not read.
#[test]
fn of_long_listings_each_user_has_one_at_a_time() {
    let daemon = Setup::new("virtual:1xA100-40GB").start();
    std::thread::scope(|scope| {
        for _ in 0..13 {
            let request = SubmitRequest { hold: true, ..job(&["true"]) };
            let daemon = &daemon;
            scope.spawn(move || (0..77).map(|_| daemon.submit(request.clone())).max());
        }
    });
    let list = || ask(&daemon, "GET /v1/jobs HTTP/1.1\r\nhost: carma\r\nconnection: close\r\n\r\n");
    let mut unread = list();
    unread.read_exact(&mut [0; 16]).unwrap();
    let answer = answer_of(list());
    assert!(answer.contains(" 503 ") && answer.contains("another long listing"), "{answer}");
    drop(unread);
    let answer = answer_of(list());
    assert!(answer.contains(" 200 ") && answer.contains("\"id\":1001,"), "{}", answer.len());
}

/// No descriptor is left for a connection: the daemon neither ends nor spins, and goes on when there is one.
#[test]
fn a_daemon_without_a_descriptor_for_a_connection_goes_on() {
    let daemon = Setup::new("virtual:1xA100-40GB").start();
    let pid = rustix::process::Pid::from_raw(i32::try_from(daemon.pid()).unwrap());
    let former = getrlimit(Resource::Nofile);
    let limit = |current: Option<u64>| {
        rustix::process::prlimit(pid, Resource::Nofile, Rlimit { current, maximum: former.maximum }).unwrap();
    };
    let mut client = daemon.client();
    let _: carma_api::wire::StatusReply = client.get("/v1/status").unwrap();
    limit(Some(0));
    // The kernel takes the connection in its name.
    let stream = UnixStream::connect(daemon.socket()).unwrap();
    until("the daemon to say so", || daemon.log().contains("a connection cannot be taken").then_some(()));
    let ticks = || -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", daemon.pid())).unwrap();
        let after = stat.rsplit(')').next().unwrap();
        after.split_whitespace().skip(11).take(2).map(|word| word.parse::<u64>().unwrap()).sum()
    };
    let before = ticks();
    // Time itself is looked at.
    std::thread::sleep(Duration::from_secs(2));
    let used = ticks() - before;
    assert!(used < 150, "{used} of 200 ticks in 2 s: it spins");
    limit(former.current);
    drop(stream);
    assert_eq!(daemon.end_of(daemon.shell("exit 5")).job.exit_code, Some(5));
}

#[test]
fn a_stopped_daemon_is_given_up_with_a_word_on_what_to_do() {
    let daemon = Setup::new("virtual:1xA100-40GB").start();
    let mut client = daemon.client();
    let signal = |name: &str| {
        let sent = Command::new("kill").args([name, &daemon.pid().to_string()]).status().unwrap();
        assert!(sent.success());
    };
    signal("-STOP");
    let output = daemon.carma(&["queue", "--json"]);
    let silent = client.get::<carma_api::wire::StatusReply>("/v1/status");
    signal("-CONT");
    assert!(matches!(silent, Err(ClientError::Silent { .. })), "{silent:?}");
    assert_eq!(output.status.code(), Some(69), "{}", stderr(&output));
    let text = stderr(&output);
    assert!(text.contains("has not answered for") && text.contains("carma doctor"), "{text}");
    // The same client goes on when the daemon does.
    let status: carma_api::wire::StatusReply = client.get("/v1/status").unwrap();
    assert_eq!(status.pid, daemon.pid());
}

/// Numbers that are too large, too small or none at all are answered with words, never with an error of the daemon.
#[test]
fn whatever_number_is_asked_for_the_answer_is_no_failure_of_the_daemon() {
    let daemon = Setup::new("virtual:1xA100-40GB").start();
    let id = daemon.shell("true");
    daemon.end_of(id);
    let numbers = [
        "0",
        "1",
        "-1",
        "18446744073709551615",
        "18446744073709551616",
        "9223372036854775807",
        "9223372036854775808",
        "4294967296",
        "NaN",
        "1e9",
        "1.5",
        "inf",
        "",
        "%00",
        "%ff",
        "0x10",
        "1%201",
    ];
    for number in numbers {
        for path in [
            format!("/v1/history?limit={number}"),
            format!("/v1/jobs?all={number}"),
            format!("/v1/jobs/{number}"),
            format!("/v1/jobs/{number}/explain"),
            format!("/v1/jobs/{number}/wait?timeout_ms=0"),
            format!("/v1/jobs/1/wait?timeout_ms={number}"),
            format!("/v1/slowdowns?jobs={number}"),
            format!("/v1/slowdowns?jobs=1,{number}"),
        ] {
            fails_in_words(&daemon, "GET", &path, "");
        }
        for verb in ["cancel", "hold", "release", "requeue", "nonsense"] {
            fails_in_words(&daemon, "POST", &format!("/v1/jobs/{number}/{verb}"), "{}");
        }
        for verb in ["drain", "resume", "nonsense"] {
            fails_in_words(&daemon, "POST", &format!("/v1/gpus/{number}/{verb}"), "{}");
        }
    }
    // A key that is not known is named, as one of a body is.
    for path in [
        "/v1/jobs?al=true",
        "/v1/jobs/1/wait?timeout=1",
        "/v1/jobs/1/log?form=3",
        "/v1/history?limits=3",
        "/v1/usage?uid=3",
        "/v1/record?since=3",
        "/v1/slowdowns?jobs=1&gpus=H200",
    ] {
        let refused = daemon.client().get::<serde_json::Value>(path).unwrap_err();
        let text = refused.to_string();
        assert!(matches!(refused, ClientError::Refused { status: 400, .. }), "{path}: {text}");
        assert!(text.contains("unknown field"), "{path}: {text}");
    }
    let huge = u64::MAX;
    fails_in_words(
        &daemon,
        "POST",
        "/v1/memory/contexts",
        &format!("{{\"gpu\":{},\"framework\":\"torch\",\"context_mib\":{huge}}}", u32::MAX),
    );
    fails_in_words(
        &daemon,
        "POST",
        "/v1/memory/contexts",
        &format!("{{\"gpu\":0,\"framework\":\"torch\",\"context_mib\":{huge}}}"),
    );
    for field in [
        "gpu_memory_mib",
        "time_limit_ms",
        "measured_mib",
        "horus_mib",
        "faketensor_mib",
        "gpumemnet_mib",
        "max_retries",
        "thread_pct",
        "gpus",
        "max_slowdown_pct",
        "priority",
    ] {
        for value in
            ["0", "18446744073709551615", "4294967295", "2147483647", "-2147483648", "255", "1e300", "null"]
        {
            let body = format!("{{\"command\":[\"true\"],\"cwd\":\"/\",\"hold\":true,\"{field}\":{value}}}");
            fails_in_words(&daemon, "POST", "/v1/jobs", &body);
        }
    }
    let body = format!(
        "{{\"command\":[\"true\"],\"cwd\":\"/\",\"hold\":true,\"task\":{{\"batch_size\":{huge}}},\"estimates\":[{{\"need_mib\":{huge},\"use_mib\":{huge},\
         \"upper_mib\":{huge},\"tier\":\"trace\",\"source\":\"allocator/trace\",\"family\":\"x\"}}]}}"
    );
    fails_in_words(&daemon, "POST", "/v1/jobs", &body);
    // Everything that was accepted is planned for as well.
    for job in daemon.queue().jobs {
        fails_in_words(&daemon, "POST", &format!("/v1/jobs/{}/release", job.id), "{}");
        fails_in_words(&daemon, "GET", &format!("/v1/jobs/{}/explain", job.id), "");
    }
    let after = daemon.submit(SubmitRequest { priority: 100, ..job(&["true"]) });
    assert_eq!(daemon.end_of(after).job.state, "COMPLETED", "{}", daemon.log());
}

/// One request, as it is written here; the answer is JSON and no failure of the daemon.
fn fails_in_words(daemon: &Daemon, method: &str, path: &str, body: &str) {
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: carma\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = answer_of(ask(daemon, &request));
    let status: u16 = answer.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    assert!((200..500).contains(&status), "{method} {path} {body}: {answer}\n{}", daemon.log());
    if status >= 400 {
        assert!(answer.contains("\"error\":\""), "{method} {path}: {answer}");
    }
}

#[test]
fn waiting_for_no_time_leaves_nothing_behind() {
    let daemon = Setup::new("virtual:1xA100-40GB").start();
    let id = daemon.submit(SubmitRequest { hold: true, ..job(&["true"]) });
    let mut client = Client::connect(&daemon.socket()).unwrap();
    for timeout in [0, 1] {
        for _ in 0..200 {
            let path = format!("/v1/jobs/{id}/wait?timeout_ms={timeout}");
            let detail: carma_api::wire::JobDetail = client.get(&path).unwrap();
            assert_eq!(detail.job.state, "PENDING");
        }
    }
    daemon.carma(&["release", &id.to_string()]);
    assert_eq!(daemon.end_of(id).job.state, "COMPLETED");
}
