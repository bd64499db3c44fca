//! The recorded traces of the CARMA campaign, replayed: they stay readable, and near what was measured.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use carma_lab_memory::bench::traces::{self, replay_file};
use carma_lab_memory::bench::{Data, Outcome};
use carma_memory::trace::Status;
use carma_memory::{MIB, Platform};
use std::path::Path;

#[test]
fn recorded_logs_replay() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/h200/results/traces/campaign");
    let platform = Platform::lookup("A100-40GB", (2, 8)).unwrap();
    let mut logs = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "gz") {
            continue;
        }
        let run = replay_file(&path, &platform).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        assert_eq!((run.end.status, run.end.steps), (Status::Complete, 3), "{name}");
        // What a run leaves behind at its end is freed: the log is whole and its frees match.
        assert!(run.peak.allocated < 32 * MIB, "{name}: {} MiB left", run.peak.allocated / MIB);
        let reserved = run.peak.max_reserved / MIB;
        match name.as_str() {
            "resnet50-32.trace.gz" => assert_eq!((reserved, run.end.parameters), (3314, 25_557_032)),
            "vgg-128.trace.gz" => assert_eq!((reserved, run.end.parameters), (16_034, 138_357_544)),
            "BERT_large-8.trace.gz" => assert_eq!((reserved, run.convolution_bytes), (12_094, 0)),
            _ => {}
        }
        logs += 1;
    }
    assert_eq!(logs, 33);
}

#[test]
fn traces_keep_their_targets() {
    let data = Data::of_repository(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")));
    for test in traces::run(&data) {
        match &test.outcome {
            Outcome::Skipped { reason } => println!("{}: SKIPPED, {reason}", test.name),
            Outcome::Score(score) => println!(
                "{} {}: n {}, MRE {:.2} %, worst {:+.1} % ({})",
                test.name,
                test.estimator,
                score.n,
                score.mre * 100.0,
                score.worst * 100.0,
                score.worst_task
            ),
            Outcome::Figures { figures } => println!("{}: {figures:?}", test.name),
        }
        // Times are for release builds.
        let timing = matches!(test.outcome, Outcome::Figures { .. });
        for target in test.targets.iter().filter(|_| !timing) {
            assert!(target.holds, "{}: {}", test.name, target.text);
        }
    }
}
