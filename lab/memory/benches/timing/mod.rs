//! What the benches share: where and when, and medians of repeats.

use std::time::{Duration, Instant};

/// Prints the machine, the date, and the number of repeats behind each median.
pub(crate) fn header(repeats: usize) {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name"));
    println!(
        "machine: {}, one core of {}; {}; carma {}; profile {}; medians of {repeats} runs",
        model.map_or("unknown", |m| m.trim_start_matches([' ', '\t', ':'])),
        std::thread::available_parallelism().map_or(0, usize::from),
        jiff::Timestamp::now().strftime("%Y-%m-%d"),
        env!("CARGO_PKG_VERSION"),
        if cfg!(debug_assertions) { "debug" } else { "release" },
    );
}

/// The median of so many runs.
pub(crate) fn median(repeats: usize, mut run: impl FnMut()) -> Duration {
    let mut times: Vec<Duration> = (0..repeats)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[repeats / 2]
}
