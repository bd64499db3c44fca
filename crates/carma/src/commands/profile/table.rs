//! A profile for people.

use carma_cli::{Block, Column, Screen, Table, figure, shell_line, wrap};
use carma_interference::profile::{Profile, RateSource, Stat};
use std::fmt::Write as _;

/// What the table says of a metric: its name in a file, here, and what its figures are in.
const ROWS: [(&str, &str, &str); 17] = [
    ("gract_pct", "GRACT", "%"),
    ("smact_pct", "SMACT", "%"),
    ("smocc_pct", "SMOCC", "%"),
    ("drama_pct", "DRAMA", "%"),
    ("tensor_pct", "tensor", "%"),
    ("fp64_pct", "FP64", "%"),
    ("fp32_pct", "FP32", "%"),
    ("fp16_pct", "FP16", "%"),
    ("pcie_rx_mib_s", "PCIe to GPU", "MiB/s"),
    ("pcie_tx_mib_s", "PCIe from GPU", "MiB/s"),
    ("power_w", "power", "W"),
    ("sm_clock_mhz", "SM clock", "MHz"),
    ("gpu_util_pct", "GPU utilisation", "%"),
    ("mem_util_pct", "memory utilisation", "%"),
    ("memory_mib", "GPU memory, peak", "MiB"),
    ("cpu_pct", "host CPU", "% of a core"),
    ("host_memory_mib", "host memory", "MiB"),
];

/// The profile as text.
pub(super) fn render(
    profile: &Profile,
    gpu: &str,
    command: &[String],
    is_virtual: bool,
    screen: &Screen,
) -> String {
    let mut block = Block::default();
    block.line("task", &profile.name).line("command", shell_line(command));
    block.line("GPU", if is_virtual { format!("{gpu}: a model, not a measurement") } else { gpu.to_owned() });
    block.line_if("watched", profile.watched_s.map(|s| format!("{s:.1} s")));
    let rate = profile.rate.as_ref().map_or_else(
        || "not known".to_owned(),
        |rate| {
            let unit = rate.unit.as_deref().unwrap_or("units");
            let source = match rate.source {
                Some(RateSource::Activity) => {
                    " (activity of the GPU; a heartbeat would count the task's own steps: docs/profiling.md)"
                        .to_owned()
                }
                Some(source) => format!(" ({source})"),
                None => String::new(),
            };
            format!("{} {unit}/s{source}", figure(rate.per_s))
        },
    );
    block.line("rate", rate);
    let mut text = block.render(screen);

    let metrics: Vec<(&str, Option<Stat>, f64)> = profile.metrics.iter().collect();
    let columns = vec![
        Column::Left("METRIC"),
        Column::Right("MEAN"),
        Column::Right("P95"),
        Column::Right("CV"),
        Column::Left("UNIT"),
    ];
    let mut table = Table::new(columns, screen);
    for (key, name, unit) in ROWS {
        let Some(stat) = metrics.iter().find(|(known, ..)| *known == key).and_then(|(_, stat, _)| *stat)
        else {
            continue;
        };
        let or_dash =
            |value: Option<f64>, digits: usize| value.map_or("-".to_owned(), |v| format!("{v:.digits$}"));
        let digits = usize::from(unit == "%" || unit == "W");
        table.row([
            name.to_owned(),
            or_dash(Some(stat.mean), digits),
            or_dash(stat.p95, digits),
            or_dash(stat.cv, 2),
            unit.to_owned(),
        ]);
    }
    let _ = write!(text, "\n{}", table.render());

    if !profile.rate_by_threads_pct.is_empty() {
        let columns = vec![Column::Right("THREADS"), Column::Right("RATE"), Column::Right("OF ALONE")];
        let mut table = Table::new(columns, screen);
        let alone = profile.rate.as_ref().map(|rate| rate.per_s).filter(|rate| *rate > 0.0);
        for (pct, rate) in &profile.rate_by_threads_pct {
            let of = alone.map_or("-".to_owned(), |alone| format!("{:.2}", rate / alone));
            table.row([format!("{pct} %"), figure(*rate), of]);
        }
        let _ = write!(text, "\n{}", table.render());
    }
    if let Some(kernels) = &profile.kernels {
        let columns = vec![Column::Left("KERNELS"), Column::Right("MEAN"), Column::Left("UNIT")];
        let mut table = Table::new(columns, screen);
        for (name, value, unit) in [
            ("threads", kernels.threads, ""),
            ("registers", kernels.registers, ""),
            ("static shared memory", kernels.static_shared_memory, "bytes"),
            ("SM throughput", kernels.sm_throughput_pct, "%"),
            ("DRAM throughput", kernels.dram_throughput_pct, "%"),
            ("memory throughput", kernels.memory_throughput_pct, "%"),
        ] {
            let shown = if unit == "%" { format!("{value:.1}") } else { format!("{value:.0}") };
            table.row([name.to_owned(), shown, unit.to_owned()]);
        }
        let _ = write!(text, "\n{}", table.render());
    }
    if !profile.remarks.is_empty() {
        text.push('\n');
        for remark in &profile.remarks {
            let lines = wrap(&format!("note: {}", carma_cli::clean(remark)), screen, 0);
            let _ = writeln!(text, "{}", lines.join("\n"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use carma_interference::profile::{Kernels, Metrics, Rate};

    fn profile() -> Profile {
        let stat = |mean: f64, p95: f64, cv: f64| Some(Stat { mean, p95: Some(p95), cv: Some(cv) });
        Profile {
            name: "resnet50".into(),
            rate: Some(Rate { per_s: 36.214, unit: Some("it".into()), source: Some(RateSource::Printed), ..Rate::default() }),
            metrics: Metrics {
                gract_pct: stat(97.31, 99.0, 0.021),
                smact_pct: stat(71.48, 74.9, 0.049),
                power_w: stat(412.34, 431.0, 0.031),
                sm_clock_mhz: stat(1980.0, 1980.0, 0.0),
                memory_mib: Some(Stat::of(5231.0)),
                cpu_pct: stat(131.0, 160.4, 0.124),
                ..Metrics::default()
            },
            rate_by_threads_pct: [(25, 14.51), (50, 25.34)].into(),
            kernels: Some(Kernels {
                threads: 262_144.4,
                sm_throughput_pct: 61.25,
                dram_throughput_pct: 30.0,
                memory_throughput_pct: 45.06,
                registers: 8_388_620.8,
                static_shared_memory: 1_024_000.0,
            }),
            watched_s: Some(20.0),
            remarks: vec!["the rate comes from 2 advances of the task's counter only; a longer window gives a better one".into()],
            ..Profile::default()
        }
    }

    fn text(profile: &Profile, width: Option<u16>) -> String {
        let command = ["python", "train.py", "--note=a b"].map(String::from);
        render(profile, "0 NVIDIA H200", &command, false, &Screen::of_width(width))
    }

    #[test]
    fn a_profile_for_people() {
        insta::assert_snapshot!(text(&profile(), Some(80)), @r"
        task:    resnet50
        command: python train.py '--note=a b'
        GPU:     0 NVIDIA H200
        watched: 20.0 s
        rate:    36.21 it/s (printed progress)

        METRIC             MEAN    P95    CV  UNIT
        GRACT              97.3   99.0  0.02  %
        SMACT              71.5   74.9  0.05  %
        power             412.3  431.0  0.03  W
        SM clock           1980   1980  0.00  MHz
        GPU memory, peak   5231      -     -  MiB
        host CPU            131    160  0.12  % of a core

        THREADS   RATE  OF ALONE
           25 %  14.51      0.40
           50 %  25.34      0.70

        KERNELS                  MEAN  UNIT
        threads                262144
        registers             8388621
        static shared memory  1024000  bytes
        SM throughput            61.2  %
        DRAM throughput          30.0  %
        memory throughput        45.1  %

        note: the rate comes from 2 advances of the task's counter only; a longer window
        gives a better one
        ");
    }

    #[test]
    fn a_profile_without_a_rate() {
        let bare = Profile { name: "a".into(), ..Profile::default() };
        assert!(text(&bare, None).contains("rate:    not known"), "{}", text(&bare, None));
        let rate = Rate {
            per_s: 0.415,
            unit: Some("SM-seconds".into()),
            source: Some(RateSource::Activity),
            ..Rate::default()
        };
        let proxy = text(&Profile { rate: Some(rate), ..bare }, None);
        assert!(proxy.contains("0.4150 SM-seconds/s (activity of the GPU; a heartbeat would"), "{proxy}");
    }

    #[test]
    fn every_metric_has_a_row() {
        let rows: Vec<&str> = ROWS.iter().map(|(key, ..)| *key).collect();
        assert_eq!(rows, Metrics::NAMES);
    }

    #[test]
    fn four_figures() {
        for (value, shown) in [
            (36.2144, "36.21"),
            (0.001_234_5, "0.001234"),
            (123_456.0, "123456"),
            (0.0, "0"),
            (9.9999, "10.000"),
        ] {
            assert_eq!(figure(value), shown);
        }
    }
}
