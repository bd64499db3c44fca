//! How long the learned estimators take for a task, over the summaries of all real models that were measured.
//!
//! `cargo bench -p carma-lab-memory --bench gpumemnet`. Plain timing on one core: for each model the median of some runs,
//! then the median and the slowest model. Target: below 1 ms for GPUMemNet's answer from a model that was read.
#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a benchmark reads the clock; a failure may end it"
)]

#[path = "../../../crates/memory/benches/timing/mod.rs"]
mod timing;

use carma_lab_memory::gpumemnet::Published;
use carma_memory::gpumemnet::{self, Ensemble, ModelLayers};
use carma_memory::{ModelTask, Platform, dnnperf, summary};
use flate2::read::MultiGzDecoder;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::{Duration, Instant};
use timing::median;

const REPEATS: usize = 11;

/// Prints the median over models, and the slowest.
fn line(what: &str, mut times: Vec<(Duration, &str)>) {
    times.sort_unstable();
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let (Some(middle), Some(slowest)) = (times.get(times.len() / 2), times.last()) else {
        println!("{what:<44} no model");
        return;
    };
    println!(
        "{what:<44} {:>8.3} ms  slowest {:.3} ms ({}), {} models",
        ms(middle.0),
        ms(slowest.0),
        slowest.1,
        times.len()
    );
}

fn main() {
    timing::header(REPEATS);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let file = File::open(root.join("bench/h200/results/memory-texts.jsonl.gz")).unwrap();
    let texts: Vec<(String, String)> = BufReader::new(MultiGzDecoder::new(file))
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(&line.unwrap()).unwrap())
        .filter(|text| text["dialect"] == "torchinfo")
        .map(|text| (text["model"].as_str().unwrap().to_owned(), text["text"].as_str().unwrap().to_owned()))
        .collect();
    let platform = Platform::lookup("H200", (2, 11)).unwrap();
    let task = ModelTask { batch_size: 16, seq_len: Some(512), ..ModelTask::default() };
    let start = Instant::now();
    gpumemnet::shipped().unwrap();
    dnnperf::shipped().unwrap();
    println!("{:<44} {:>8.3} ms", "weights, once a process", start.elapsed().as_secs_f64() * 1e3);

    let read = |text: &str| ModelLayers::of_summary(&summary::parse(text).unwrap(), &task).unwrap();
    let models: Vec<(&str, &str, ModelLayers)> =
        texts.iter().map(|(name, text)| (name.as_str(), text.as_str(), read(text))).collect();
    let over = |what: &str, run: &dyn Fn(&str, &ModelLayers)| {
        line(
            what,
            models.iter().map(|(name, text, model)| (median(REPEATS, || run(text, model)), *name)).collect(),
        );
    };
    over("summary to the networks' view of the model", &|text, _| {
        read(text);
    });
    for ensemble in Ensemble::ALL {
        over(&format!("gpumemnet, {ensemble} ensemble (target 1 ms)"), &|_, model| {
            gpumemnet::estimate_model(ensemble, model, &task, &platform).unwrap();
        });
    }
    let graphs: Vec<_> = texts
        .iter()
        .filter_map(|(name, text)| Some((name, summary::graph(&summary::parse(text).ok()?, &task).ok()?)))
        .collect();
    let times = graphs.iter().map(|(name, graph)| {
        (median(REPEATS, || drop(dnnperf::estimate(graph, &task, &platform).unwrap())), name.as_str())
    });
    line("dnnperf, from a graph", times.collect());
    let weights = root.join("../shared/data/gpumemnet/weights");
    if !weights.is_dir() {
        println!("published weights: skipped, ../shared/data/gpumemnet/weights is absent");
        return;
    }
    for ensemble in Ensemble::ALL {
        let mut times = Vec::new();
        for family in gpumemnet::Family::ALL {
            let network = Published::read(&weights, family, ensemble).unwrap();
            let of_family = models.iter().filter(|(_, _, m)| m.family == family);
            times.extend(
                of_family.map(|(name, _, m)| (median(REPEATS, || drop(network.estimate(m, &task))), *name)),
            );
        }
        line(&format!("published {ensemble} ensemble (target 1 ms)"), times);
    }
}
