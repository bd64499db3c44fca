//! Models that PyTorch exported (without their weights; `onnx/make.py` makes them), against traces of the
//! same models.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use carma_memory::estimators::{Known, run};
use carma_memory::graph::{Graph, replay};
use carma_memory::{MIB, ModelTask, Platform, Tier, onnx};
use std::path::Path;

/// File, parameters as PyTorch counts them, and allocated and reserved MiB of the trace: `carma trace-model
/// --entry make:NAME --batch-size 16 [--seq-len 128 | --shape 3,224,224]`, replayed for an A100, PyTorch 2.11.0.
const MODELS: &[(&str, u64, u64, u64)] = &[
    ("resnet18.eval", 11_689_512, 524, 704),
    ("resnet18.old", 11_689_512, 524, 704),
    ("vgg11.train", 132_863_336, 2790, 3708),
    ("bert.train", 38_637_114, 1646, 1848),
    ("gpt2.eval", 53_561_088, 2560, 2970),
];

fn file(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/onnx/{name}.onnx"))).unwrap()
}

fn task(name: &str) -> ModelTask {
    let tokens = name.starts_with("bert") || name.starts_with("gpt2");
    ModelTask { batch_size: 16, seq_len: tokens.then_some(128), ..ModelTask::default() }
}

fn read(name: &str) -> Graph {
    onnx::graph(&file(name), &task(name)).unwrap()
}

#[test]
fn close_to_the_trace() {
    let platform = Platform::lookup("A100-40GB", (2, 11)).unwrap();
    for (name, parameters, allocated, reserved) in MODELS {
        let graph = read(name);
        let peak = replay(&graph, &task(name), &platform).unwrap().peak;
        let error = |ours: u64, theirs: u64| ours as f64 / MIB as f64 / theirs as f64 - 1.0;
        let (a, r) = (error(peak.max_allocated, *allocated), error(peak.max_reserved, *reserved));
        println!("{name}: allocated {:+.1} %, reserved {:+.1} % of the trace", a * 100.0, r * 100.0);
        // A trace sums the gradients of a residual block into new tensors, as autograd does under a dispatch
        // mode; PyTorch alone, and the rules, add them in place. Segments fragment otherwise by that.
        let reserved_within = if name.starts_with("resnet") { 0.13 } else { 0.03 };
        assert!(a.abs() < 0.02 && r.abs() < reserved_within, "{name}: {a} {r}");
        let missing = 1.0 - graph.parameters() as f64 / *parameters as f64;
        assert!(missing.abs() < 1e-3, "{name}: {} parameters", graph.parameters());
    }
}

#[test]
fn everything_in_them_is_known() {
    for (name, ..) in MODELS {
        let doubts = read(name).doubts;
        assert!(doubts.iter().all(|d| !d.contains("not known")), "{name}: {doubts:?}");
    }
    assert!(read("resnet18.eval").doubts[0].contains("folded into 20 convolutions"));
    assert_eq!(read("resnet18.old").doubts, [""; 0], "the older exporter leaves it");
    assert!(read("vgg11.train").doubts.is_empty(), "its convolutions have biases of their own");
}

#[test]
fn estimators_take_it() {
    let known = Known { onnx: Some(file("resnet18.eval")), ..Known::default() };
    let platform = Platform::lookup("A100-40GB", (2, 11)).unwrap();
    let task = task("resnet18");
    let one = |name: &str| run(name, &known, &task, &platform).unwrap().pop().unwrap().result.unwrap();
    let (ours, dnnmem) = (one("allocator/onnx"), one("dnnmem"));
    assert_eq!((ours.tier, dnnmem.tier), (Tier::Graph, Tier::Formula));
    assert_eq!((ours.need_mib, ours.use_mib), (dnnmem.need_mib, dnnmem.use_mib));
    assert!(dnnmem.upper_mib > dnnmem.use_mib && dnnmem.reasons[0].contains("DNNMem"));
    assert!(run("dnnmem", &Known::default(), &task, &platform).unwrap()[0].result.is_err());
    let cut = Known { onnx: Some(file("resnet18.eval")[..5000].to_vec()), ..Known::default() };
    let error = run("dnnmem", &cut, &task, &platform).unwrap().pop().unwrap().result.unwrap_err();
    assert!(error.to_string().contains("truncated"), "{error}");
}
