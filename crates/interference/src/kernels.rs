//! Reads what Nsight Compute says of a task's kernels: KACE's features (SoCC 2024).
//!
//! `ncu --csv --page details --section SpeedOfLight --section LaunchStats` prints a row for each launch and metric.
//! Figures are quoted and bear thousands separators; units differ from row to row; between the rows stand lines of
//! the profiler (`==PROF==`) and perhaps of the program.

use crate::profile::Kernels;
use std::collections::BTreeMap;

/// Most launches that are read; more are passed over.
const MOST_LAUNCHES: usize = 100_000;

/// What was read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Summary {
    /// Means over launches, weighted by their duration.
    pub kernels: Kernels,
    /// Launches that count.
    pub launches: usize,
    /// Launches that were left out: without a duration.
    pub left_out: usize,
}

/// Why there is nothing to sum up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unreadable {
    /// No table: the profiler failed, or profiled nothing. Its last words.
    NoTable(String),
    /// A table without a row that counts.
    NoLaunch,
    /// No launch has this metric.
    Missing(&'static str),
}

impl std::fmt::Display for Unreadable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoTable(words) if words.is_empty() => f.write_str("Nsight Compute wrote nothing"),
            Self::NoTable(words) => write!(f, "Nsight Compute wrote no table; its last words: {words}"),
            Self::NoLaunch => {
                f.write_str("Nsight Compute's table holds no launch of a kernel with a duration")
            }
            Self::Missing(metric) => {
                write!(f, "no launch in Nsight Compute's table has the metric `{metric}`")
            }
        }
    }
}

impl std::error::Error for Unreadable {}

#[derive(Debug, Clone, Copy, Default)]
struct Launch {
    seconds: Option<f64>,
    block: Option<f64>,
    grid: Option<f64>,
    registers: Option<f64>,
    shared: Option<f64>,
    sm: Option<f64>,
    dram: Option<f64>,
    memory: Option<f64>,
}

/// Reads the profiler's log.
///
/// # Errors
/// A log without a table, without a launch that counts, or without one of the metrics.
pub fn read(log: &str) -> Result<Summary, Unreadable> {
    let lines: Vec<&str> = log.lines().collect();
    let is_header = |line: &&str| line.contains("\"Metric Name\"") && line.contains("\"ID\"");
    let Some(start) = lines.iter().position(is_header) else {
        return Err(Unreadable::NoTable(last_words(&lines)));
    };
    // Rows begin with a quote; other lines are the profiler's or the program's.
    let table =
        lines[start..].iter().filter(|line| line.starts_with('"')).fold(String::new(), |mut table, line| {
            table.push_str(line);
            table.push('\n');
            table
        });
    let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(table.as_bytes());
    let columns = reader.headers().cloned().unwrap_or_default();
    let column = |name: &str| columns.iter().position(|column| column == name);
    let missing = || Unreadable::NoTable(last_words(&lines));
    let id = column("ID").ok_or_else(missing)?;
    let name = column("Metric Name").ok_or_else(missing)?;
    let value = column("Metric Value").ok_or_else(missing)?;
    let (process, unit) = (column("Process ID"), column("Metric Unit"));
    let sizes = [column("Block Size"), column("Grid Size")];
    let mut launches: BTreeMap<(String, String), Launch> = BTreeMap::new();
    for row in reader.records().filter_map(Result::ok) {
        // A header again, of another process.
        if row.get(id) == Some("ID") {
            continue;
        }
        let text = |at: Option<usize>| at.and_then(|at| row.get(at)).unwrap_or_default();
        let key = (text(process).to_owned(), text(Some(id)).to_owned());
        if launches.len() >= MOST_LAUNCHES && !launches.contains_key(&key) {
            continue;
        }
        let launch = launches.entry(key).or_default();
        launch.block = launch.block.or_else(|| product(text(sizes[0])));
        launch.grid = launch.grid.or_else(|| product(text(sizes[1])));
        let Some(figure) = number(text(Some(value))) else { continue };
        launch.take(text(Some(name)), figure, text(unit));
    }
    sum_up(launches.into_values())
}

impl Launch {
    fn take(&mut self, name: &str, figure: f64, unit: &str) {
        let slot = match name {
            "Duration" | "gpu__time_duration.sum" => {
                self.seconds = scale(unit).map(|factor| figure * factor);
                return;
            }
            "Static Shared Memory Per Block" | "launch__shared_mem_per_block_static" => {
                self.shared = scale(unit).map(|factor| figure * factor);
                return;
            }
            "Block Size" | "launch__block_size" => &mut self.block,
            "Grid Size" | "launch__grid_size" => &mut self.grid,
            "Registers Per Thread" | "launch__registers_per_thread" => &mut self.registers,
            // `SOL SM` and the like: the names before version 2021.
            "Compute (SM) Throughput" | "SM [%]" | "SOL SM" => &mut self.sm,
            "DRAM Throughput" | "SOL DRAM" => {
                // Newer versions have a second one of this name, in bytes a second.
                if unit != "%" {
                    return;
                }
                &mut self.dram
            }
            "Memory Throughput" | "Memory [%]" | "SOL Memory" => {
                if unit != "%" {
                    return;
                }
                &mut self.memory
            }
            _ => return,
        };
        *slot = Some(figure);
    }
}

/// Seconds or bytes in a unit. `None`: unknown.
fn scale(unit: &str) -> Option<f64> {
    let unit = unit.split('/').next().unwrap_or_default().trim();
    Some(match unit {
        "s" | "second" | "sec" | "byte" | "bytes" | "B" => 1.0,
        "ms" | "msecond" | "millisecond" => 1e-3,
        "us" | "usecond" | "microsecond" => 1e-6,
        "ns" | "nsecond" | "nanosecond" => 1e-9,
        // Nsight Compute's prefixes are decimal.
        "Kbyte" | "KB" | "kB" => 1e3,
        "Mbyte" | "MB" => 1e6,
        _ => return None,
    })
}

/// `1,234.50`; also the German `1.234,50`, since the profiler follows the locale.
fn number(text: &str) -> Option<f64> {
    let text = text.trim();
    let plain = match (text.rfind(','), text.rfind('.')) {
        (Some(comma), Some(point)) if comma > point => text.replace('.', "").replace(',', "."),
        (Some(comma), None) if text.len() - comma != 4 => text.replace(',', "."),
        _ => text.replace(',', ""),
    };
    plain.parse().ok().filter(|value: &f64| value.is_finite() && *value >= 0.0)
}

/// `(256, 1, 1)` as 256.
fn product(text: &str) -> Option<f64> {
    let inside = text.trim().strip_prefix('(')?.strip_suffix(')')?;
    let sizes: Vec<f64> = inside.split(',').map(|part| part.trim().parse().ok()).collect::<Option<_>>()?;
    let product: f64 = sizes.iter().product();
    (product.is_finite() && product > 0.0).then_some(product)
}

fn sum_up(launches: impl Iterator<Item = Launch>) -> Result<Summary, Unreadable> {
    let (timed, untimed): (Vec<Launch>, Vec<Launch>) =
        launches.partition(|l| l.seconds.is_some_and(|s| s > 0.0));
    if timed.is_empty() {
        return Err(Unreadable::NoLaunch);
    }
    let mean = |name: &'static str, of: &dyn Fn(&Launch) -> Option<f64>| {
        let (mut sum, mut weight) = (0.0, 0.0);
        for launch in &timed {
            if let (Some(seconds), Some(value)) = (launch.seconds, of(launch)) {
                sum += seconds * value;
                weight += seconds;
            }
        }
        let mean = sum / weight;
        if weight > 0.0 && mean.is_finite() { Ok(mean) } else { Err(Unreadable::Missing(name)) }
    };
    let threads = |l: &Launch| Some(l.grid? * l.block?);
    let kernels = Kernels {
        threads: mean("Grid Size", &threads)?,
        sm_throughput_pct: mean("Compute (SM) Throughput", &|l| l.sm)?,
        dram_throughput_pct: mean("DRAM Throughput", &|l| l.dram)?,
        memory_throughput_pct: mean("Memory Throughput", &|l| l.memory)?,
        registers: mean("Registers Per Thread", &|l| Some(threads(l)? * l.registers?))?,
        static_shared_memory: mean("Static Shared Memory Per Block", &|l| Some(l.grid? * l.shared?))?,
    };
    Ok(Summary { kernels, launches: timed.len(), left_out: untimed.len() })
}

/// What the profiler said last, for a message.
fn last_words(lines: &[&str]) -> String {
    let said = lines.iter().rev().filter(|line| !line.trim().is_empty()).take(3);
    let mut said: Vec<&str> = said.map(|line| line.trim()).collect();
    said.reverse();
    said.join(" ").chars().take(400).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = r#""ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value""#;

    fn row(id: u32, name: &str, unit: &str, value: &str) -> String {
        format!(
            r#""{id}","4711","python3.11","127.0.0.1","void gemm<float, 128>(const T1 *, ""x"")","1","7","(256, 1, 1)","(1,024, 1, 1)","0","9.0","GPU Speed Of Light Throughput","{name}","{unit}","{value}""#
        )
    }

    fn launch(id: u32, duration: (&str, &str), grid: &str, sm: &str) -> Vec<String> {
        vec![
            row(id, "Duration", duration.1, duration.0),
            row(id, "Elapsed Cycles", "cycle", "1,234,567"),
            row(id, "Compute (SM) Throughput", "%", sm),
            row(id, "Memory Throughput", "%", "30.00"),
            row(id, "DRAM Throughput", "%", "20.00"),
            row(id, "Memory Throughput", "Tbyte/second", "1.20"),
            row(id, "Grid Size", "", grid),
            row(id, "Block Size", "", "256"),
            row(id, "Registers Per Thread", "register/thread", "32"),
            row(id, "Static Shared Memory Per Block", "Kbyte/block", "1.02"),
        ]
    }

    fn log(rows: &[String]) -> String {
        format!(
            "==PROF== Connected to process 4711 (/usr/bin/python3.11)\n==PROF== Profiling \"gemm\": 0%....100% - 9 passes\n\
             loss 0.3\n{HEADER}\n{}\n==PROF== Disconnected from process 4711\n",
            rows.join("\n")
        )
    }

    #[test]
    fn means_are_weighted_by_duration() {
        let mut rows = launch(0, ("3.00", "usecond"), "1,024", "80.00");
        rows.extend(launch(1, ("1,000.00", "nsecond"), "2,048", "40.00"));
        let summary = read(&log(&rows)).unwrap();
        assert_eq!((summary.launches, summary.left_out), (2, 0));
        let Kernels {
            threads,
            sm_throughput_pct,
            dram_throughput_pct,
            memory_throughput_pct,
            registers,
            static_shared_memory,
        } = summary.kernels;
        // Three quarters of the time in the first.
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9 * b, "{a} {b}");
        near(threads, (0.75 * 1024.0 + 0.25 * 2048.0) * 256.0);
        near(sm_throughput_pct, 70.0);
        near(dram_throughput_pct, 20.0);
        near(memory_throughput_pct, 30.0);
        near(registers, threads * 32.0);
        near(static_shared_memory, (0.75 * 1024.0 + 0.25 * 2048.0) * 1020.0);
    }

    #[test]
    fn what_is_missing_is_named() {
        let mut rows = launch(0, ("3.00", "us"), "8", "80.00");
        // One launch lacks its duration, another a metric.
        rows.push(row(1, "Compute (SM) Throughput", "%", "10.00"));
        rows.push(row(2, "Duration", "us", "1.00"));
        rows.push(row(2, "Registers Per Thread", "register/thread", "n/a"));
        let summary = read(&log(&rows)).unwrap();
        assert_eq!((summary.launches, summary.left_out), (2, 1));
        assert_eq!(summary.kernels.sm_throughput_pct, 80.0);
        rows.retain(|row| !row.contains("DRAM"));
        assert_eq!(read(&log(&rows)), Err(Unreadable::Missing("DRAM Throughput")));
        rows.retain(|row| !row.contains("Duration"));
        assert_eq!(read(&log(&rows)), Err(Unreadable::NoLaunch));
        let refused = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU \
                       Performance Counters on the target device 0.\n";
        let error = read(refused).unwrap_err().to_string();
        assert!(error.contains("ERR_NVGPUCTRPERM"), "{error}");
        assert_eq!(read("").unwrap_err().to_string(), "Nsight Compute wrote nothing");
    }

    #[test]
    fn figures_and_units() {
        for (text, value) in
            [("1,234.50", 1234.5), ("1.234,50", 1234.5), ("1,024", 1024.0), ("0,5", 0.5), ("7", 7.0)]
        {
            assert_eq!(number(text), Some(value), "{text}");
        }
        for bad in ["", "n/a", "-1", "inf", "NaN", "1e999"] {
            assert_eq!(number(bad), None, "{bad}");
        }
        assert_eq!(product("(256, 2, 1)"), Some(512.0));
        assert_eq!((product("256"), product("()"), product("(0, 1, 1)")), (None, None, None));
        assert_eq!((scale("msecond"), scale("byte/block"), scale("cycle")), (Some(1e-3), Some(1.0), None));
    }
}
