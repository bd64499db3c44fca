//! How fast and how light the service is: the release binary, real processes, virtual GPUs.
//!
//! `cargo bench -p carma --bench service`, or `make bench`, which fetches the peers first. Arguments
//! choose sections: `launches peers latency idle queued listing`; `--quick` makes fewer of everything,
//! for a first look. Nothing here is a test: targets are printed beside what was measured.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a benchmark that cannot measure may end at once"
)]

mod daemon;
mod machine;
mod peers;

use carma_api::wire::{GpusReply, JobsReply, StatusReply};
use daemon::{Daemon, true_job};
use machine::{Summary, quiet};
use std::time::{Duration, Instant};

const GPUS: &str = "virtual:8xA100-40GB";

/// How much of everything.
#[derive(Debug, Clone, Copy)]
struct Amounts {
    jobs: u64,
    launch_repeats: usize,
    peer_repeats: usize,
    latencies: u64,
    idle: Duration,
    queued: u64,
    listed: u64,
    listings: usize,
}

const FULL: Amounts = Amounts {
    jobs: 1000,
    launch_repeats: 5,
    peer_repeats: 3,
    latencies: 300,
    idle: Duration::from_secs(20),
    queued: 100_000,
    listed: 10_000,
    listings: 10,
};

const QUICK: Amounts = Amounts {
    jobs: 200,
    launch_repeats: 2,
    peer_repeats: 1,
    latencies: 50,
    idle: Duration::from_secs(3),
    queued: 5_000,
    listed: 2_000,
    listings: 3,
};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let amounts = if args.iter().any(|a| a == "--quick") { QUICK } else { FULL };
    let chosen: Vec<&String> = args.iter().filter(|a| !a.starts_with("--")).collect();
    let wanted = |name: &str| chosen.is_empty() || chosen.iter().any(|c| *c == name);

    machine::print();
    if wanted("launches") {
        launches(amounts);
    }
    if wanted("peers") {
        peers::side_by_side(amounts.jobs, amounts.peer_repeats);
    }
    if wanted("latency") {
        latency(amounts);
    }
    if wanted("idle") {
        idle(amounts);
    }
    if wanted("queued") {
        queued(amounts);
    }
    if wanted("listing") {
        listing(amounts);
    }
    daemon::clean_up();
}

fn heading(text: &str) {
    println!("\n{text}");
    println!("  {}", quiet());
}

fn row(what: &str, value: &str, target: &str) {
    println!("  {what:<54} {value:<44} {target}");
}

/// One client, one connection, first submit to last exit record.
fn launches(amounts: Amounts) {
    let n = amounts.jobs;
    heading(&format!(
        "Launch rate: {n} x /bin/true, --gpu-memory 1G, {GPUS}, one client, one connection; {} repeats, jobs/s",
        amounts.launch_repeats
    ));
    for (sync, target) in [("full", "target 400 or more"), ("normal", "")] {
        let mut rates = Vec::new();
        let mut submits = Vec::new();
        for _ in 0..amounts.launch_repeats {
            let daemon = Daemon::start(GPUS, &format!("[journal]\nsync = '{sync}'\n"));
            let mut client = daemon.client();
            let job = true_job(false);
            let started = Instant::now();
            for _ in 0..n {
                daemon::submit(&mut client, &job);
            }
            submits.push(n as f64 / started.elapsed().as_secs_f64());
            daemon.until_over(n);
            rates.push(n as f64 / started.elapsed().as_secs_f64());
            daemon.all_completed(n);
        }
        let what = match sync {
            "full" => "sync = full (default: survives a power cut)",
            _ => "sync = normal (survives all but a power cut)",
        };
        row(what, &Summary::of(rates).text("", 0), target);
        row("  of which submitting alone", &Summary::of(submits).text("", 0), "");
    }
}

/// From acceptance to the running command, when a GPU is idle.
fn latency(amounts: Amounts) {
    let n = amounts.latencies;
    heading(&format!("Submit to spawn: {n} single jobs, each when all GPUs are idle again"));
    let daemon = Daemon::start(GPUS, "");
    let mut client = daemon.client();
    let job = true_job(false);
    let mut answers = Vec::new();
    for i in 1..=n {
        let started = Instant::now();
        daemon::submit(&mut client, &job);
        answers.push(started.elapsed().as_secs_f64() * 1000.0);
        daemon.until_over(i);
        std::thread::sleep(Duration::from_millis(20));
    }
    let status: StatusReply = client.get("/v1/status").unwrap();
    let launches = status.launches;
    assert_eq!(launches.count, n, "every job was launched once");
    let ms = |us: u64| format!("{:.1} ms", us as f64 / 1000.0);
    row("acceptance to running command, p50", &ms(launches.submit_to_spawn_p50_us), "");
    row("acceptance to running command, p99", &ms(launches.submit_to_spawn_p99_us), "target below 50 ms");
    let answers = Summary::of(answers);
    row("client: request to answer (on disk), p50", &format!("{:.1} ms", answers.at(0.50)), "");
    row("client: request to answer (on disk), p99", &format!("{:.1} ms", answers.at(0.99)), "");
}

/// A daemon with nothing to do. The virtual GPUs' own model runs inside it and is counted.
fn idle(amounts: Amounts) {
    heading(&format!("Idle daemon: {GPUS}, 10 Hz, {} s", amounts.idle.as_secs()));
    let daemon = Daemon::start(GPUS, "");
    std::thread::sleep(Duration::from_secs(2));
    let before = daemon.cpu();
    let started = Instant::now();
    std::thread::sleep(amounts.idle);
    let used = daemon.cpu() - before;
    let share = used.as_secs_f64() / started.elapsed().as_secs_f64() * 100.0;
    // It was awake: the latest reading is as fresh as 10 Hz makes it.
    let reply: GpusReply = daemon.client().get("/v1/gpus").unwrap();
    assert!(reply.gpus.iter().all(|gpu| gpu.age_ms.is_some_and(|age| age < 300)), "the GPUs are sampled");
    row("CPU time, % of one core", &format!("{share:.2} %"), "target below 1 %");
    row("resident", &format!("{:.1} MiB", daemon.resident_mib()), "");
}

/// What a long queue weighs.
fn queued(amounts: Amounts) {
    let n = amounts.queued;
    heading(&format!("Memory: {n} queued jobs, 64 connections, default durability"));
    for held in [true, false] {
        let what = if held { "held" } else { "pending behind 8 exclusive jobs" };
        let daemon = Daemon::start(GPUS, "");
        if !held {
            daemon.fill(8);
        }
        let empty = daemon.resident_mib();
        let started = Instant::now();
        daemon.submit_many(n, 64, held);
        let rate = n as f64 / started.elapsed().as_secs_f64();
        std::thread::sleep(Duration::from_secs(3));
        let resident = daemon.resident_mib();
        let peak = daemon.peak_mib();
        row(
            &format!("{what}: resident"),
            &format!("{resident:.1} MiB ({empty:.1} empty; most so far {peak:.1})"),
            "target below 100 MiB",
        );
        row(&format!("{what}: accepted"), &format!("{rate:.0} jobs/s"), "");
        let cpu = daemon.cpu();
        std::thread::sleep(Duration::from_secs(10));
        let share = (daemon.cpu() - cpu).as_secs_f64() * 10.0;
        row(&format!("{what}: CPU time at rest"), &format!("{share:.1} % of one core"), "");
        let (bytes, took) = daemon.get_raw("/v1/jobs");
        row(
            &format!("{what}: after one listing of all"),
            &format!(
                "{:.1} MiB (most {:.1}); {:.0} MiB in {:.0} ms",
                daemon.resident_mib(),
                daemon.peak_mib(),
                bytes as f64 / f64::from(1 << 20),
                took.as_secs_f64() * 1000.0
            ),
            "",
        );
    }
}

/// `carma queue` of a long queue.
fn listing(amounts: Amounts) {
    let n = amounts.listed;
    heading(&format!("carma queue: {n} pending jobs, 8 running; {} runs", amounts.listings));
    let daemon = Daemon::start(GPUS, "");
    daemon.fill(8);
    daemon.submit_many(n, 64, false);
    let reply: JobsReply = daemon.client().get("/v1/jobs").unwrap();
    assert_eq!(reply.jobs.len() as u64, n + 8);
    let mut size = 0;
    let mut raw = Vec::new();
    let mut commands = Vec::new();
    let mut json = Vec::new();
    for _ in 0..amounts.listings {
        let (bytes, took) = daemon.get_raw("/v1/jobs");
        size = bytes;
        raw.push(took.as_secs_f64() * 1000.0);
        commands.push(daemon.time_command(&["queue"]).as_secs_f64() * 1000.0);
        json.push(daemon.time_command(&["queue", "--json"]).as_secs_f64() * 1000.0);
        std::thread::sleep(Duration::from_millis(200));
    }
    let status: StatusReply = daemon.client().get("/v1/status").unwrap();
    row("carma queue > FILE, wall time", &Summary::of(commands).text(" ms", 1), "target below 100 ms");
    row("carma queue --json > FILE, wall time", &Summary::of(json).text(" ms", 1), "");
    let kib = size / 1024;
    row(&format!("GET /v1/jobs alone ({kib} KiB)"), &Summary::of(raw).text(" ms", 1), "");
    let plan = status.launches.plan_p99_us as f64 / 1000.0;
    row("one plan inside the daemon, p99 since its start", &format!("{plan:.1} ms"), "");
}
