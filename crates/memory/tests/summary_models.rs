//! Graphs of printed summaries against traces of the same models, and what the wiring makes of small texts.
//!
//! The texts in `data/summaries` were printed by torchsummary 1.5.1, torchinfo 1.8.0 and PyTorch 2.11 from models
//! of torchvision 0.26, timm 1.0.31 and transformers 5.23 with random weights. Expected bytes are what a trace of
//! three training steps on PyTorch's `meta` device allocates at most (batch 32, Adam, 32 bits), played through
//! the rules of the caching allocator.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use carma_memory::alloc::Settings;
use carma_memory::graph::{Graph, Op, replay};
use carma_memory::{Gpu, MIB, MiB, ModelTask, Platform, summary};
use std::path::Path;

fn text(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/summaries").join(name))
        .unwrap()
}

fn platform() -> Platform {
    Platform {
        gpu: Gpu { name: "A100-40GB".into(), compute_capability: (8, 0), total_mib: MiB(40_960) },
        torch: (2, 11),
        context_mib: MiB(0),
        context_saves: carma_memory::ContextSaves::default(),
        context_source: String::new(),
        alloc: Settings::default(),
    }
}

fn graph(text: &str, batch_size: u64) -> Graph {
    summary::graph(&summary::parse(text).unwrap(), &ModelTask { batch_size, ..ModelTask::default() }).unwrap()
}

fn count(graph: &Graph, wanted: fn(&Op) -> bool) -> usize {
    graph.nodes.iter().filter(|n| wanted(&n.op)).count()
}

#[test]
fn models_allocate_what_their_traces_do() {
    // Text, allocated MiB by the trace, parameters, how far off it may be.
    for (name, traced, parameters, tolerance) in [
        ("resnet18.torchsummary.txt", 855.9, 11_689_512, 0.01),
        ("googlenet.torchsummary.txt", 1641.3, 13_004_888, 0.03),
        ("shufflenet_v2_x1_0.torchsummary.txt", 698.4, 2_278_604, 0.05),
        ("squeezenet1_1.torchsummary.txt", 700.8, 1_235_496, 0.02),
        ("mnasnet1_0.torchsummary.txt", 1464.1, 4_383_312, 0.01),
        ("cifar_vgg16_bn.torchsummary.txt", 2592.5, 134_678_692, 0.01),
        // Its own parameters and the attention's are not in torchsummary's count.
        ("swin_t.torchsummary.txt", 3645.1, 28_288_354, 0.05),
        ("timm_deit_tiny_patch16_224.torchsummary.txt", 1013.4, 5_717_416, 0.03),
        // Cut at the third level: blocks are written out.
        ("efficientnet_b0.torchinfo.txt", 2824.0, 5_288_548, 0.02),
        ("densenet121.torchinfo.txt", 4139.2, 7_978_856, 0.05),
        ("regnet_y_400mf.torchinfo.txt", 1106.3, 4_344_144, 0.05),
        ("convnext_tiny.torchinfo.txt", 3722.2, 28_589_128, 0.05),
        // Cut above the blocks: what the printed total leaves.
        ("timm_swin_tiny_patch4_window7_224.torchinfo.txt", 3647.8, 28_288_354, 0.20),
        // Without shapes: an image of 224 is assumed.
        ("vgg16_bn.repr.txt", 5986.8, 138_365_992, 0.02),
    ] {
        let graph = graph(&text(name), 32);
        let task = ModelTask { batch_size: 32, ..ModelTask::default() };
        let replay = replay(&graph, &task, &platform()).unwrap();
        let allocated = replay.peak.max_allocated as f64 / MIB as f64;
        let error = allocated / traced - 1.0;
        println!("{name}: {allocated:.0} MiB, traced {traced}: {:+.1} %", error * 100.0);
        assert!(
            error.abs() <= tolerance,
            "{name}: {allocated:.0} MiB, traced {traced}: {:+.1} %",
            error * 100.0
        );
        let off = graph.parameters() as f64 / f64::from(parameters) - 1.0;
        assert!(off.abs() < 0.005, "{name}: {} parameters, {parameters} in truth", graph.parameters());
    }
}

#[test]
fn language_models_get_their_dimensions() {
    let of = |name: &str, seq_len| {
        let parsed = summary::parse(&text(name)).unwrap();
        summary::graph(&parsed, &ModelTask { batch_size: 4, seq_len, ..ModelTask::default() }).unwrap()
    };
    let gpt2 = of("gpt2.repr.txt", Some(256));
    assert_eq!((gpt2.family.as_str(), gpt2.parameters()), ("gpt2", 124_439_808));
    assert!(gpt2.doubts.iter().all(|d| !d.contains("sequence length")), "{:?}", gpt2.doubts);
    let assumed = of("gpt2.repr.txt", None);
    assert!(assumed.doubts.iter().any(|d| d.contains("sequence length")), "{:?}", assumed.doubts);
    // Grouped heads and the width of the MLP follow from the parameters of a layer whose inside is cut off.
    let llama = of("llama.torchinfo.txt", Some(256));
    assert_eq!((llama.family.as_str(), llama.parameters()), ("llama", 374_360_064));
    // A layer that runs three times, cut off; the only norm in sight is the narrower one of the head. The text counts the
    // table of tokens twice, which is also the output matrix.
    let albert = of("albert.torchinfo.txt", None);
    assert_eq!((albert.family.as_str(), albert.parameters()), ("albert", 74_952));
    assert_eq!(count(&albert, |op| matches!(op, Op::Attention { .. })), 3);
}

#[test]
fn shortcuts_gates_and_branches() {
    let head = "Layer (type)  Output Shape  Param #\n";
    let block = "\
Conv2d-1 [-1, 64, 56, 56] 9,408
BatchNorm2d-2 [-1, 64, 56, 56] 128
ReLU-3 [-1, 64, 56, 56] 0
MaxPool2d-4 [-1, 64, 28, 28] 0
Conv2d-5 [-1, 128, 14, 14] 73,728
BatchNorm2d-6 [-1, 128, 14, 14] 256
Conv2d-7 [-1, 128, 14, 14] 8,192
BatchNorm2d-8 [-1, 128, 14, 14] 256
ReLU-9 [-1, 128, 14, 14] 0
BasicBlock-10 [-1, 128, 14, 14] 0
AdaptiveAvgPool2d-11 [-1, 128, 1, 1] 0
Linear-12 [-1, 10] 1,290
";
    let g = graph(&format!("{head}{block}"), 8);
    assert_eq!(count(&g, |op| matches!(op, Op::Add { .. })), 1, "the block's sum");
    let node = |name: &str| g.nodes.iter().find(|n| n.name == name).unwrap();
    // The shortcut's 8,192 weights are 64 x 128: it reads what came into the block, not the last tensor.
    assert_eq!(node("Conv2d-7").inputs, node("Conv2d-5").inputs);
    assert_eq!(node("input").outputs.len(), 1);
    assert_eq!(g.tensor(node("input").outputs[0]).shape, [8, 3, 112, 112]);
    assert_eq!(count(&g, |op| *op == Op::CrossEntropy), 1);

    let gated = "\
Conv2d-1 [-1, 32, 56, 56] 864
SiLU-2 [-1, 32, 56, 56] 0
Conv2d-3 [-1, 8, 1, 1] 264
SiLU-4 [-1, 8, 1, 1] 0
Conv2d-5 [-1, 32, 1, 1] 288
Sigmoid-6 [-1, 32, 1, 1] 0
SqueezeExcite-7 [-1, 32, 56, 56] 0
Conv2d-8 [-1, 16, 56, 56] 512
";
    let g = graph(&format!("{head}{gated}"), 8);
    assert_eq!(count(&g, |op| *op == Op::Mul), 1, "the gate");
    assert_eq!(count(&g, |op| *op == Op::AvgPool), 1, "the mean before it is a function");

    let branches = "\
Conv2d-1 [-1, 64, 28, 28] 1,728
Conv2d-2 [-1, 32, 28, 28] 2,048
Conv2d-3 [-1, 16, 28, 28] 1,024
Conv2d-4 [-1, 48, 28, 28] 6,912
Branches-5 [-1, 80, 28, 28] 0
Conv2d-6 [-1, 10, 28, 28] 800
";
    let g = graph(&format!("{head}{branches}"), 8);
    let cat = g.nodes.iter().find(|n| n.op == Op::Cat).unwrap();
    let widths: Vec<u64> = cat.inputs.iter().map(|t| g.tensor(*t).shape[1]).collect();
    assert_eq!(widths, [32, 48], "{widths:?}");
}

#[test]
fn unknown_layers_are_listed_and_modelled() {
    let text = "\
Layer (type:depth-idx)  Input Shape  Output Shape  Param #
Net: 0-1  [4, 3, 32, 32]  [4, 10]  --
├─Conv2d: 1-1  [4, 3, 32, 32]  [4, 16, 32, 32]  432
├─Mystery: 1-2  [4, 16, 32, 32]  [4, 24, 32, 32]  12,345
├─Flatten: 1-3  [4, 24, 32, 32]  [4, 24576]  --
├─Linear: 1-4  [4, 24576]  [4, 10]  245,770
Total params: 258,547
";
    let g = graph(text, 16);
    assert!(g.doubts.iter().any(|d| d.contains("Mystery")), "{:?}", g.doubts);
    assert!(count(&g, |op| *op == Op::Unknown) >= 1);
    assert_eq!(g.parameters(), 258_547);
    let task = ModelTask { batch_size: 16, ..ModelTask::default() };
    let small = replay(&g, &task, &platform()).unwrap().peak.max_allocated;
    let large = replay(&graph(text, 64), &ModelTask { batch_size: 64, ..task }, &platform())
        .unwrap()
        .peak
        .max_allocated;
    assert!(large > small * 2, "{small} {large}");
}
