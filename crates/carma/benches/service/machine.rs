//! The machine, its quietness, and the summary of repeats.

use std::fs::{self, File};
use std::io::Write as _;
use std::process::Command;
use std::time::{Duration, Instant};

/// Repeats of one measurement, sorted.
pub(crate) struct Summary(Vec<f64>);

impl Summary {
    pub(crate) fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        Self(values)
    }

    /// The value at a quantile, by rank.
    pub(crate) fn at(&self, quantile: f64) -> f64 {
        let rank = (self.0.len() as f64 * quantile).ceil() as usize;
        self.0[rank.clamp(1, self.0.len()) - 1]
    }

    pub(crate) fn median(&self) -> f64 {
        self.at(0.5)
    }

    /// Median, least and most.
    pub(crate) fn text(&self, unit: &str, digits: usize) -> String {
        let (least, most) = (self.at(0.0), self.at(1.0));
        format!("median {:.digits$}{unit} (min {least:.digits$}, max {most:.digits$})", self.median())
    }
}

fn first_line(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok()?;
    String::from_utf8_lossy(&output.stdout).lines().next().map(str::to_owned)
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// Prints where, when and what is measured.
pub(crate) fn print() {
    let cpu = read("/proc/cpuinfo");
    let model = cpu.lines().find_map(|l| l.strip_prefix("model name")).unwrap_or(": unknown");
    let memory = read("/proc/meminfo");
    let memory_kib = memory.split_whitespace().nth(1).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
    let commit = first_line("git", &["rev-parse", "--short", "HEAD"]);
    println!("machine  {}", model.trim_start_matches([' ', '\t', ':']));
    println!(
        "         {} core(s), {} MiB memory, Linux {}",
        std::thread::available_parallelism().map_or(0, usize::from),
        memory_kib / 1024,
        read("/proc/sys/kernel/osrelease")
    );
    println!("disk     append of 4 KiB and fdatasync: {}", fsync_cost().text(" ms", 2));
    println!("date     {}", jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M UTC"));
    println!(
        "carma    {} at {}; profile {}",
        env!("CARGO_PKG_VERSION"),
        commit.as_deref().unwrap_or("an unknown commit"),
        if cfg!(debug_assertions) { "debug: these numbers mean nothing" } else { "release" }
    );
    println!("load     {} (1, 5, 15 min) at the start", read("/proc/loadavg"));
}

/// What durability costs here at least, where the daemons keep their state.
fn fsync_cost() -> Summary {
    let dir = tempfile::tempdir().unwrap();
    let mut file = File::create(dir.path().join("f")).unwrap();
    let times = (0..100).map(|_| {
        let started = Instant::now();
        file.write_all(&[7; 4096]).unwrap();
        file.sync_data().unwrap();
        started.elapsed().as_secs_f64() * 1000.0
    });
    Summary::of(times.collect())
}

/// Busy and total clock ticks of all cores.
fn ticks() -> (u64, u64) {
    let stat = read("/proc/stat");
    let line = stat.lines().next().unwrap_or_default();
    let fields: Vec<u64> = line.split_whitespace().skip(1).take(8).filter_map(|f| f.parse().ok()).collect();
    let total: u64 = fields.iter().sum();
    let idle: u64 = fields.iter().skip(3).take(2).sum();
    (total - idle, total)
}

/// Waits up to two minutes until the machine has been nearly idle for two seconds; says how it was.
pub(crate) fn quiet() -> String {
    let started = Instant::now();
    loop {
        let before = ticks();
        std::thread::sleep(Duration::from_secs(2));
        let after = ticks();
        let busy = 100.0 * (after.0 - before.0) as f64 / (after.1 - before.1).max(1) as f64;
        if busy < 5.0 {
            return format!("(before: CPUs {busy:.1} % busy)");
        }
        if started.elapsed() > Duration::from_secs(120) {
            return format!("(NOT QUIET: CPUs {busy:.1} % busy before it began)");
        }
    }
}
