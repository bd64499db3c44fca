//! Whatever a task prints or sends, reading it ends and never in a panic. Runs as tests on random input from a seed, and under
//! libFuzzer with `cargo bolero test`.

use bolero::TypeGenerator;
use carma_interference::kernels;
use carma_interference::measured::{Line, Measured, read_log};
use carma_interference::profile::Profiles;
use carma_interference::rate::beat;
use carma_interference::rate::printed::Printed;
use carma_interference::rate::tally::Tally;
use carma_seeded::check;

const ITERATIONS: usize = 3000;

/// Pieces of which output of trainings is made, and what breaks them.
const PIECES: &[&str] = &[
    "\r",
    "\n",
    "\x08\x08",
    "\x1b[",
    "\x1b[2K",
    "\x1b[32m",
    "\x1b]0;",
    "\x07",
    " ",
    "/",
    "[",
    "]",
    "<",
    ">",
    "|",
    "0",
    "1",
    "45",
    "450/1000",
    "999999999999999999999",
    "1,200",
    "1.5",
    ".5",
    "4.50M",
    "-3",
    "nan",
    "00:12",
    "1:02:03",
    "it/s",
    "s/it",
    "ms/step",
    "samples/s",
    "tokens/sec: ",
    "step ",
    "Step: ",
    "iter=",
    "Epoch ",
    "'epoch': ",
    "{",
    "}",
    "ETA: 5s",
    "[==>..]",
    "━━━╸",
    "•",
    "Unknown",
    "kB/s",
    "%|██▌  | ",
    "?",
    ", loss=0.3",
    "of",
    "é",
    "\u{ff11}",
    "\0",
];

#[derive(Debug, Clone, TypeGenerator)]
enum Piece {
    Known(u8),
    Raw(u8),
}

fn text(pieces: &[Piece]) -> Vec<u8> {
    pieces
        .iter()
        .flat_map(|piece| match piece {
            Piece::Known(at) => PIECES[usize::from(*at) % PIECES.len()].as_bytes().to_vec(),
            Piece::Raw(byte) => vec![*byte],
        })
        .collect()
}

#[test]
fn printed_progress() {
    check!(ITERATIONS).with_type::<(Vec<Piece>, u8, Vec<u16>)>().for_each(|(pieces, cut, times)| {
        let bytes = text(pieces);
        let (a, b) = bytes.split_at(usize::from(*cut).min(bytes.len()));
        let (mut cut_up, mut whole, mut tally) = (Vec::new(), Vec::new(), Tally::new());
        let mut printed = Printed::new();
        printed.feed(0.0, a, &mut cut_up);
        printed.feed(0.05, b, &mut cut_up);
        printed.finish(&mut cut_up);
        let mut printed = Printed::new();
        printed.feed(0.0, &bytes, &mut whole);
        printed.finish(&mut whole);
        let said = |reports: &[carma_interference::rate::printed::Report]| -> Vec<_> {
            reports.iter().map(|report| report.said.clone()).collect()
        };
        assert_eq!(said(&cut_up), said(&whole), "it matters where the output was cut");
        for (mut report, time) in whole.into_iter().zip(times.iter().chain(std::iter::repeat(&7))) {
            report.at_s = f64::from(*time);
            tally.printed(&report);
        }
        for (from, to) in [(0.0, 100.0), (100.0, 0.0), (f64::NAN, 1.0)] {
            if let Some(rate) = tally.best(from, to) {
                assert!(rate.rate.per_s.is_finite() && rate.rate.per_s > 0.0, "{rate:?}");
            }
        }
        if let Some(done) = tally.done(&[(3.0, 9.0), (20.0, 1e9)], Some(5.0)) {
            assert!((0.0..=1.0).contains(&done.share), "{done:?}");
            assert!(done.left_s(1e9).is_none_or(|left| left.is_finite() && left >= 0.0), "{done:?}");
        }
    });
}

#[test]
fn heartbeats() {
    check!(ITERATIONS).with_type::<(Vec<Piece>, bool)>().for_each(|(pieces, is_start)| {
        let bytes = text(pieces);
        let mut tally = Tally::new();
        if let Some(beat) = beat::datagram(&bytes) {
            tally.beat(0.0, "7", &beat);
        }
        let _ = beat::file(&bytes, *is_start);
    });
}

#[test]
fn tables_of_nsight_compute() {
    const CELLS: &[&str] = &[
        "0",
        "1",
        "Duration",
        "us",
        "nsecond",
        "3.00",
        "1,234.5",
        "n/a",
        "Grid Size",
        "Block Size",
        "%",
        "",
        "\"",
        "\n",
        "(256, 1, 1)",
        "Compute (SM) Throughput",
        "DRAM Throughput",
        "Memory Throughput",
        "Registers Per Thread",
        "Static Shared Memory Per Block",
        "Kbyte/block",
        "1e308",
        "ID",
        "Metric Name",
    ];
    check!(ITERATIONS).with_type::<Vec<(u8, u8, u8, u8, u8)>>().for_each(|rows| {
        let cell = |at: u8| CELLS[usize::from(at) % CELLS.len()];
        let mut log = "\"ID\",\"Grid Size\",\"Metric Name\",\"Metric Unit\",\"Metric Value\"\n".to_owned();
        for (a, b, c, d, e) in rows {
            let cells: Vec<String> = [a, b, c, d, e].iter().map(|at| format!("\"{}\"", cell(**at))).collect();
            log.push_str(&cells.join(","));
            log.push('\n');
        }
        if let Ok(summary) = kernels::read(&log) {
            assert!(summary.kernels.threads.is_finite() && summary.kernels.sm_throughput_pct.is_finite());
        }
    });
}

#[test]
fn files_of_profiles() {
    check!(ITERATIONS).with_type::<Vec<u8>>().for_each(|bytes| {
        let _ = Profiles::read(&String::from_utf8_lossy(bytes));
    });
}

#[test]
fn profiles_of_wrong_values_are_read_or_refused() {
    const PARTS: &[&str] = &[
        "NaN",
        "-Infinity",
        "1e999",
        "1",
        "-1",
        "null",
        "\"\\\"\"",
        "\"",
        "\\",
        "[",
        "]",
        "{",
        "}",
        ",",
        ":",
        "\"name\":\"a\",",
        "\"metrics\":",
        "{\"smact_pct\":",
        "{\"mean\":",
        "\"kernels\":",
        "\"rate\":",
        "é",
        "\u{feff}",
    ];
    check!(ITERATIONS).with_type::<Vec<u8>>().for_each(|picks| {
        let parts: String = picks.iter().map(|pick| PARTS[usize::from(*pick) % PARTS.len()]).collect();
        for text in [
            format!("{{\"version\":1,\"tasks\":[{{\"name\":\"a\",{parts}}}]}}"),
            format!("{{\"version\":1,\"tasks\":[{{\"name\":\"a\",\"metrics\":{{\"smact_pct\":{parts}}}}}]}}"),
        ] {
            if let Err(error) = Profiles::read(&text) {
                assert!(!error.0.is_empty());
            }
        }
    });
}

#[test]
fn a_log_of_measurements_is_read_or_refused() {
    const LINES: &[&str] = &[
        "{\"line\":\"header\",\"version\":1,\"machine\":{\"gpu\":\"g\",\"gpu_memory_mib\":1,\"cpus\":1},\"tasks\":[{\"name\":\"a\"}]}\n",
        "{\"line\":\"session\",\"number\":0,\"began\":\"\",\"sharing\":\"mps\",\"carma\":\"\",\"seed\":1}\n",
        "{\"line\":\"combination\",\"members\":[\"a\"],\"sharing\":\"mps\",\"rates\":[1.5],\"threads_pct\":[50]}\n",
        "{\"line\":\"combination\",\"members\":[\"a\",\"b\"],\"rates\":[0,-1e308,3]}\n",
        "{\"line\":\"combination\",\"members\":[],\"failed\":\"x\",\"rates\":[1e308,1e308]}\n",
        "{\"line\":\"combination\",\"members\":[\"a\"],\"rates\":[1e308]}\n",
        "{\"line\":\"combi",
        "\n",
        "nonsense\n",
    ];
    check!(ITERATIONS).with_type::<Vec<u8>>().for_each(|picks| {
        let text: String = picks.iter().map(|pick| LINES[usize::from(*pick) % LINES.len()]).collect();
        if let Ok(Some(log)) = read_log(&text) {
            assert!(log.whole <= text.len());
            let measured = log.assemble(0);
            // What is assembled is whole, or refused when it is read.
            let _ = Measured::read(&serde_json::to_string(&measured).unwrap());
        }
        let _ = serde_json::from_str::<Line>(&text);
    });
    check!(ITERATIONS).with_type::<Vec<u8>>().for_each(|bytes| {
        let text = String::from_utf8_lossy(bytes);
        let _ = (read_log(&text), Measured::is_meant(&text), Measured::read(&text));
    });
}
