//! Published formulas against the numbers that their users published.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use carma_lab_memory::bench::{Data, Outcome, Pair, score, timm};
use carma_memory::formula::{Totals, horus, quick};
use carma_memory::{MiB, ModelTask, Platform, summary};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A file of the shared data, or a printed line that it is not there.
fn shared(name: &str) -> Option<PathBuf> {
    Data::of_repository(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")))
        .shared(name)
        .map_err(|why| eprintln!("skipped: {why}"))
        .ok()
}

/// Fully connected nets on MNIST: 784 inputs, hidden layers, 10 outputs, batch 32.
#[test]
fn horus_is_the_sheet_of_fully_connected_nets_to_the_last_digit() {
    let Some(path) = shared("gpumemnet/horus_fc_mnist.csv") else { return };
    let mut rows = 0;
    let mut pairs: BTreeMap<u32, Vec<Pair>> = BTreeMap::new();
    for line in csv::Reader::from_path(path).unwrap().records() {
        let line = line.unwrap();
        let number = |i: usize| line[i].parse::<f64>().unwrap();
        let (n, layers) = (number(1) as u64, number(2) as u64);
        let totals = Totals {
            activations: n * layers + 10,
            parameters: 785 * n + (layers - 1) * (n * n + n) + 10 * (n + 1),
            batch: 32,
        };
        let wanted = number(4);
        let found = horus::gib_thousands(totals);
        assert!((found / wanted - 1.0).abs() < 1e-9, "{n} neurons, {layers} layers: {found}, sheet {wanted}");
        for variant in [horus::Variant::Plain, horus::Variant::Plus800, horus::Variant::Plus1000] {
            pairs.entry(variant.added_mib()).or_default().push(Pair {
                label: format!("{n} x {layers}"),
                measured_mib: number(0),
                estimated_mib: wanted + f64::from(variant.added_mib()),
                upper_mib: None,
            });
        }
        rows += 1;
    }
    assert_eq!(rows, 429);
    let mre = |added: u32| score(&pairs[&added]).unwrap();
    println!(
        "fully connected nets on MNIST: MRE {:.1} %, with 800 {:.1} %, with 1000 {:.1} %",
        mre(0).mre * 100.0,
        mre(800).mre * 100.0,
        mre(1000).mre * 100.0
    );
    assert!((mre(1000).mre - 1.68).abs() < 0.01, "the reference says 169 %");
}

/// CARMA's task files: for two batch sizes of one model, what does not grow with the batch is
/// `4 P + 800 MiB`, however the authors counted activations.
#[test]
fn horus_is_the_line_of_the_task_files() {
    let Some(folder) = shared("carma/tasks") else { return };
    // By command without numbers of variants: summary's P, and (batch, Horus) points.
    let mut models: BTreeMap<(String, u64), BTreeMap<u64, f64>> = BTreeMap::new();
    for entry in std::fs::read_dir(&folder).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let (Some(file), Some(Ok(batch)), Some(Ok(published))) =
            (lines.get(3), lines.get(5).map(|l| l.parse::<u64>()), lines.get(9).map(|l| l.parse::<f64>()))
        else {
            continue;
        };
        // 40000 stands for "no estimate".
        if published >= 40_000.0 {
            continue;
        }
        let Ok(text) = std::fs::read_to_string(folder.join("../summaries").join(file)) else { continue };
        let Some(parameters) = summary::parse(&text).ok().and_then(|s| s.totals.params) else { continue };
        let name: String = file.chars().take_while(|c| !c.is_ascii_digit()).collect();
        models.entry((name, parameters)).or_default().insert(batch, published);
    }
    let mut checked = 0;
    for ((name, parameters), points) in models {
        let (Some((b1, h1)), Some((b2, h2))) = (points.first_key_value(), points.last_key_value()) else {
            continue;
        };
        if b1 == b2 {
            continue;
        }
        let (b1, b2) = (*b1 as f64, *b2 as f64);
        let a_sample = (h2 - h1) / (b2 - b1);
        let fixed = h1 - b1 * a_sample;
        let none = Totals { activations: 0, parameters, batch: 0 };
        let ours = horus::mib(none, horus::Variant::Plus800);
        assert!((fixed - ours).abs() < 2.0, "{name}: {fixed:.1} MiB beside the batch, ours {ours:.1}");
        // With the activations that follow from the slope, every point is hit.
        let activations = ((a_sample * 1_048_576.0 / 4.0) - parameters as f64) as u64;
        for (batch, published) in points {
            let ours = horus::mib(Totals { activations, parameters, batch }, horus::Variant::Plus800);
            assert!((ours - published).abs() < 2.0, "{name} batch {batch}: {published}, ours {ours}");
            checked += 1;
        }
    }
    assert!(checked >= 15, "{checked} points checked");
}

#[test]
fn horus_on_published_models_stays_below_its_bound() {
    let Some(path) = shared("gpumemnet/results_plotter_data.csv") else { return };
    let mut pairs = Vec::new();
    for line in csv::Reader::from_path(path).unwrap().records() {
        let line = line.unwrap();
        let number = |i: usize| line[i].parse::<f64>().unwrap();
        let estimated_mib = number(5);
        // The bound over the published value is what the estimator gives for it.
        let e = horus::estimate(Totals { activations: 0, parameters: 1 << 30, batch: 1 }, "unknown");
        let factor = e.upper_mib.0 as f64 / e.use_mib.0 as f64;
        pairs.push(Pair {
            label: line[0].to_owned(),
            measured_mib: number(2),
            estimated_mib,
            upper_mib: Some(estimated_mib * factor),
        });
    }
    let s = score(&pairs).unwrap();
    println!(
        "18 published models: MRE {:.0} %, worst {:+.0} % ({})",
        s.mre * 100.0,
        s.worst * 100.0,
        s.worst_task
    );
    assert_eq!(s.n, 18);
    assert!((s.mre - 0.67).abs() < 0.01, "the reference says 67 %");
    assert_eq!(s.covered, Some(1.0));
}

#[test]
fn quick_formula_on_the_mlp_sets() {
    // Measured with a context of 1,429 MiB.
    let platform = Platform { context_mib: MiB(1429), ..Platform::lookup("A100-40GB", (2, 6)).unwrap() };
    for (file, limit) in [("gpumemnet/mlp_data_step1.csv", 0.02), ("gpumemnet/mlp_data_step2.csv", 0.02)] {
        let Some(path) = shared(file) else { continue };
        let mut reader = csv::Reader::from_path(path).unwrap();
        let headers = reader.headers().unwrap().clone();
        let column = |name: &str| headers.iter().position(|h| h.trim() == name).unwrap();
        let [a, p, b, m] =
            ["Total Activations", "Total Parameters", "Batch Size", "Max GPU Memory (MiB)"].map(column);
        let pairs: Vec<Pair> = reader
            .records()
            .map(|line| {
                let line = line.unwrap();
                let number = |i: usize| line[i].parse::<f64>().unwrap();
                let totals = Totals {
                    activations: number(a) as u64,
                    parameters: number(p) as u64,
                    batch: number(b) as u64,
                };
                let e = quick::estimate(totals, "mlp", &ModelTask::default(), &platform);
                Pair {
                    label: line[0].to_owned(),
                    measured_mib: number(m),
                    estimated_mib: e.use_mib.0 as f64,
                    upper_mib: Some(e.upper_mib.0 as f64),
                }
            })
            .collect();
        let s = score(&pairs).unwrap();
        println!("{file}: {} runs, MRE {:.2} %, covered {:.4}", s.n, s.mre * 100.0, s.covered.unwrap());
        assert!(s.n == 3000 && s.mre < limit, "{s:?}");
        assert!(s.covered.unwrap() > 0.99, "{s:?}");
    }
}

#[test]
fn timm_lines_of_the_bench() {
    let Some(_) = shared("gpumemnet/timm_faketensor.csv") else { return };
    for test in timm::run(&Data::of_repository(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")))) {
        let Outcome::Score(s) = &test.outcome else { panic!("{test:?}") };
        println!(
            "{}; {}: n {}, MRE {:.2} %, median {:.2} %, worst {:+.0} % ({}), covered {:?}, bound/measured {:?}",
            test.name,
            test.estimator,
            s.n,
            s.mre * 100.0,
            s.median * 100.0,
            s.worst * 100.0,
            s.worst_task,
            s.covered,
            s.tightness
        );
        assert!(test.targets.iter().all(|t| t.holds), "{test:?}");
    }
}
