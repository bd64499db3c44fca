//! How fast the event engine is: the traces of the CARMA evaluation, and Microsoft's Philly trace.
//!
//! `cargo bench -p carma-sim --bench simulate`. Plain timing on one core, no statistics library: medians
//! of repeated runs. Targets: T1 below 10 ms and a million events a second on small traces; Philly
//! (82,247 jobs, 2,500 GPUs) below 10 s; `sjf-bsbf` and `eaco` below 2 s on 8,046 of its jobs and 66 GPUs.
//! Arguments: `--quick` repeats less; a word runs only the lines that contain it.
//!
//! # What others publish
//! Gavel's simulator (Python; the log in its EXPERIMENTS.md, commit 0296517): on 108 GPUs six runs of
//! some 5,000 jobs each under AlloX, side by side, took 218 to 252 s, about 20 jobs a second and core.
//! Muri's (Python, after Tiresias'; simulator/README.md) says "about 2 days" for the script of its
//! figure 9. Both policies solve a matching again and again, on machines that are not named: this is what
//! a researcher waits, no comparison of two engines.
#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a benchmark reads the clock and the machine's name; a failure may end it"
)]

use carma_core::model::SharingMode;
use carma_core::policy::presets;
use carma_core::units::{MiB, Millis};
use carma_hardware::GpuTypes;
use carma_sim::event::baselines::{Baseline, baseline};
use carma_sim::event::outcome::RunResult;
use carma_sim::event::{Cluster, Setup, play};
use carma_sim::trace::{Activity, Catalogue, Trace, TraceJob, Workload, read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

fn shared(name: &str) -> Option<PathBuf> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data").join(name);
    if !file.is_file() {
        println!("skipped: ../shared/data/{name} is absent");
        return None;
    }
    Some(file)
}

/// One of the traces of the CARMA evaluation.
fn published(name: &str) -> Option<Workload> {
    let catalogue = Catalogue::read_file(&shared("carma/workloads.csv")?).unwrap();
    let trace = read::trace_file(&shared("carma/philly_evaluation_arrivals.csv")?, Some(name)).unwrap();
    Some(Workload::resolve(&trace, Some(&catalogue)).unwrap())
}

/// The Philly trace. It says nothing of memory or activity: each job gets one of eight mixes, by its
/// place in the trace.
fn philly() -> Option<Workload> {
    let file = std::fs::File::open(shared("petuum__adaptdl/philly.csv.gz")?).unwrap();
    let mut table = csv::Reader::from_reader(flate2::read::GzDecoder::new(file));
    let mut rows: Vec<(i64, f64, u32, Arc<str>)> = Vec::new();
    for row in table.records() {
        let row = row.unwrap();
        let at: jiff::civil::DateTime = row[0].parse().unwrap();
        let at = at.to_zoned(jiff::tz::TimeZone::UTC).unwrap().timestamp().as_second();
        rows.push((at, row[1].parse().unwrap(), row[2].parse().unwrap(), row[4].into()));
    }
    rows.sort_by_key(|row| row.0);
    let begin = rows.first()?.0;
    let jobs = (0..).zip(rows).map(|(n, (at, duration, gpus, user)): (u64, _)| {
        let part = (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 61) as f64;
        TraceJob {
            threads: None,
            line: n + 1,
            id: n.to_string().into(),
            arrival: Millis::secs((at - begin).unsigned_abs()),
            task: None,
            duration: Some(Millis((duration * 1000.0).max(1.0) as u64)),
            gpus: Some(gpus.max(1)),
            user,
            memory: Some(MiB(1_000 + (part * 1_500.0) as u64)),
            activity: Activity {
                smact: Some(0.1 + part * 0.1),
                smocc: Some(0.05 + part * 0.05),
                drama: Some(0.05 + part * 0.05),
                ..Activity::default()
            },
        }
    });
    let trace = Trace { name: "philly".into(), file: None, jobs: jobs.collect(), notes: Vec::new() };
    Some(Workload::resolve(&trace, None).unwrap())
}

/// A figure of this process from the kernel, MiB.
fn memory_mib(key: &str) -> f64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kib.unwrap_or(0.0) / 1024.0
}

struct Bench {
    repeats: usize,
    only: Option<String>,
}

impl Bench {
    fn line(&self, workload: &Workload, spec: &str, policy: &str, sharing: SharingMode, repeats: usize) {
        let label = format!("{} {spec} {policy} {sharing}", workload.name);
        if self.only.as_ref().is_some_and(|only| !label.contains(only)) {
            return;
        }
        let cluster = Cluster::parse(spec, &GpuTypes::built_in()).unwrap();
        let setup = match presets::by_name(policy) {
            Some(policy) => Setup::new(policy, sharing, None, 7),
            None => Setup::for_baseline(baseline(policy).unwrap(), sharing, 7),
        };
        let mut times = Vec::new();
        let mut last: Option<RunResult> = None;
        for _ in 0..repeats {
            let started = Instant::now();
            let run = play(workload, &cluster, &setup, &|_| ()).unwrap();
            times.push(started.elapsed().as_secs_f64());
            last = Some(run);
        }
        times.sort_by(f64::total_cmp);
        let (median, Some(run)) = (times[times.len() / 2], last) else { return };
        println!(
            "  {label:<46} {:>10.3} ms  {:>9} events  {:>6.2} M events/s  {:>9.0} jobs/s  done {:>6}  oom {:>5}  wait {:>8.1} min",
            median * 1e3,
            run.events,
            run.events as f64 / median / 1e6,
            run.summary.jobs as f64 / median,
            run.summary.completed,
            run.summary.oom,
            run.summary.wait_s.mean / 60.0,
        );
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let quick = args.iter().any(|arg| arg == "--quick");
    let only = args.into_iter().find(|arg| !arg.starts_with("--"));
    let bench = Bench { repeats: if quick { 5 } else { 101 }, only };
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name"));
    let today =
        jiff::Timestamp::try_from(SystemTime::now()).unwrap().to_zoned(jiff::tz::TimeZone::UTC).date();
    println!(
        "machine: {}, one core of {}; {today}; carma {}; profile {}; medians of {} runs (Philly: {})",
        model.map_or("unknown", |m| m.trim_start_matches([' ', '\t', ':'])),
        std::thread::available_parallelism().map_or(0, usize::from),
        env!("CARGO_PKG_VERSION"),
        if cfg!(debug_assertions) { "debug" } else { "release" },
        bench.repeats,
        if quick { 1 } else { 3 },
    );
    for name in ["philly_trace-t1", "philly_trace-t2"] {
        let Some(workload) = published(name) else { continue };
        for policy in presets::NAMES {
            bench.line(&workload, "4xA100-40GB", policy, SharingMode::Mps, bench.repeats);
        }
    }
    if let Some(workload) = philly() {
        println!("  Philly: {} jobs, read; {:.0} MiB resident", workload.jobs.len(), memory_mib("VmRSS"));
        let few = if quick { 1 } else { 3 };
        for (spec, policy) in [
            ("2500xV100-16GB", "exclusive"),
            ("2500xV100-16GB", "or-magm"),
            ("2500xV100-16GB", "magm"),
            ("2500xV100-16GB", "carma"),
            ("600xV100-16GB", "or-magm"),
            ("600xV100-16GB", "magm"),
        ] {
            bench.line(&workload, spec, policy, SharingMode::Mps, few);
        }
        // A server room of a few racks under long queues.
        let first = workload.jobs.into_iter().filter(|job| job.gpus <= 66).take(8_046);
        let workload = Workload { name: "philly-8046".into(), jobs: first.collect(), ..workload };
        for baseline in Baseline::ALL.into_iter().filter(|baseline| *baseline != Baseline::Miso) {
            bench.line(&workload, "66xV100-16GB", baseline.name(), SharingMode::Mps, few);
        }
    }
    println!("  most memory resident at any time: {:.0} MiB", memory_mib("VmHWM"));
}
