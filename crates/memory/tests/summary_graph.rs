//! Whatever a summary says, a graph or an error comes of it, within bounded time.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use bolero::TypeGenerator;
use carma_memory::alloc::Settings;
use carma_memory::graph::replay;
use carma_memory::{Error, Gpu, MiB, ModelTask, Platform, summary};
use carma_seeded::check;
use std::time::{Duration, Instant};

const KINDS: &[&str] = &[
    "Conv2d",
    "ConvTranspose2d",
    "Conv1d",
    "BatchNorm2d",
    "LayerNorm",
    "ReLU",
    "SiLU",
    "Linear",
    "MaxPool2d",
    "AdaptiveAvgPool2d",
    "Dropout",
    "Softmax",
    "Identity",
    "Flatten",
    "Embedding",
    "LSTM",
    "MultiheadAttention",
    "Bottleneck",
    "MBConv",
    "SqueezeExcitation",
    "InceptionA",
    "Attention",
    "Sequential",
    "Strange",
    "_DenseLayer",
    "ShiftedWindowAttention",
    "RepVggBlock",
    "InvertedResidual",
    "BatchNormAct2d",
    "CNBlock",
    "SpatialGatingUnit",
];
const SIZES: &[i64] =
    &[-1, 0, 1, 2, 3, 4, 7, 8, 14, 28, 49, 56, 64, 96, 112, 128, 192, 197, 224, 256, 384, 768];
const COUNTS: &[u64] = &[
    0, 1, 64, 128, 192, 768, 864, 1728, 4096, 4160, 9408, 36_864, 110_592, 590_592, 2_362_368, 7_087_872,
    16_777_216,
];

#[derive(Debug, TypeGenerator)]
struct Row {
    kind: u8,
    depth: u8,
    dims: [u8; 4],
    input: [u8; 4],
    rank: u8,
    count: u8,
}

/// Beyond belief, now and then: one of these ends the reading.
fn size(n: u8) -> i64 {
    match n {
        253 => 1 << 31,
        254 => i64::MAX,
        255 => i64::MIN,
        n => pick(SIZES, n),
    }
}

fn count(n: u8) -> u64 {
    match n {
        254 => 1 << 40,
        255 => u64::MAX,
        n => pick(COUNTS, n),
    }
}

fn pick<T: Copy>(from: &[T], n: u8) -> T {
    from[usize::from(n) % from.len()]
}

fn shape(dims: [u8; 4], rank: u8) -> String {
    // The usual batch, or now and then another.
    let rest: Vec<String> = dims.iter().take(usize::from(rank % 4)).map(|d| size(*d).to_string()).collect();
    format!(
        "[{}{}{}]",
        if rank > 200 { 7 } else { 2 },
        if rest.is_empty() { "" } else { ", " },
        rest.join(", ")
    )
}

#[test]
fn whatever_the_layers_a_graph_or_an_error() {
    check!(3000).with_type::<(bool, Vec<Row>)>().for_each(|(tree, rows)| {
        let mut text = String::new();
        if *tree {
            text.push_str("Layer (type:depth-idx)  Input Shape  Output Shape  Param #\n");
            for (i, r) in rows.iter().enumerate() {
                let (kind, depth) = (pick(KINDS, r.kind), r.depth % 5);
                let (a, b) = (shape(r.input, r.rank), shape(r.dims, r.rank));
                text.push_str(&format!(
                    "{}└─{kind}: {depth}-{i}  {a}  {b}  {}\n",
                    "│    ".repeat(depth.into()),
                    count(r.count)
                ));
            }
            text.push_str("Forward/backward pass size (MB): 99999.9\n");
        } else {
            text.push_str("Layer (type)  Output Shape  Param #\n");
            for (i, r) in rows.iter().enumerate() {
                text.push_str(&format!(
                    "{}-{i}  {}  {}\n",
                    pick(KINDS, r.kind),
                    shape(r.dims, r.rank),
                    count(r.count)
                ));
            }
        }
        if let Ok(parsed) = summary::parse(&text) {
            let _ = summary::graph(&parsed, &ModelTask { batch_size: 4, ..ModelTask::default() });
        }
    });
}

#[test]
fn tens_of_thousands_of_layers_take_bounded_time() {
    let mut text = String::from("Layer (type)  Output Shape  Param #\n");
    for i in 0..60_000 {
        let kind = ["Conv2d", "BatchNorm2d", "Bottleneck", "SqueezeExcitation"][i % 4];
        let (c, p) = (64 + 8 * (i % 29), 9408 + 64 * (i % 97));
        text.push_str(&format!("{kind}-{i}  [-1, {c}, 7, 7]  {p}\n"));
    }
    let started = Instant::now();
    let parsed = summary::parse(&text).unwrap();
    assert!(parsed.doubts.iter().any(|d| d.contains("more than")), "{:?}", parsed.doubts);
    let _ = summary::graph(&parsed, &ModelTask { batch_size: 8, ..ModelTask::default() });
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
}

#[test]
fn absurd_shapes_are_refused_by_name() {
    for (row, batch) in [
        ("Conv2d-1  [-1, 64, 4000000, 4000000]  9,408", 1),
        ("Conv2d-1  [-1, 64, 112, 112]  18,446,744,073,709,551,615", 1),
        ("Conv2d-1  [-1, 64, -5, 112]  9,408", 1),
        ("Conv2d-1  [-1, 64, 112, 112]  9,408", u64::MAX),
        ("Conv2d-1  [-1, 64, 9223372036854775807, 9223372036854775807]  9,408", 8),
    ] {
        let parsed = summary::parse(&format!("Layer (type)  Output Shape  Param #\n{row}\n")).unwrap();
        let error =
            summary::graph(&parsed, &ModelTask { batch_size: batch, ..ModelTask::default() }).unwrap_err();
        assert!(matches!(error, Error::Absurd { .. }), "{error}");
        assert!(error.to_string().contains("Conv2d-1"), "{error}");
    }
    let parsed = summary::parse("Layer (type)  Output Shape  Param #\nLinear-1  [-1, 10]  110\n").unwrap();
    let error = summary::graph(&parsed, &ModelTask { batch_size: 0, ..ModelTask::default() }).unwrap_err();
    assert!(error.to_string().contains("batch size"), "{error}");
}

#[test]
fn damaged_texts_of_real_models() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/summaries");
    let mut texts: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap())
        .collect();
    texts.sort();
    let ends = std::sync::atomic::AtomicUsize::new(0);
    let task = ModelTask { batch_size: 4, ..ModelTask::default() };
    let platform = Platform {
        gpu: Gpu { name: "H200".into(), compute_capability: (9, 0), total_mib: MiB(143_771) },
        torch: (2, 11),
        context_mib: MiB(0),
        context_saves: carma_memory::ContextSaves::default(),
        context_source: String::new(),
        alloc: Settings::default(),
    };
    check!(1000).with_type::<(u8, Vec<(u16, u8, u8)>)>().for_each(|(which, changes)| {
        let mut lines: Vec<String> =
            texts[usize::from(*which) % texts.len()].lines().map(str::to_owned).collect();
        for (at, what, with) in changes {
            let at = usize::from(*at) % lines.len();
            let other = (at * 7 + usize::from(*with)) % lines.len();
            match what % 6 {
                0 => lines[at].clear(),
                1 => lines.swap(at, other),
                2 => lines[at] = lines[other].clone(),
                3 => {
                    let digit = char::from(b'0' + with % 10);
                    lines[at] = lines[at].replacen(|c: char| c.is_ascii_digit(), &digit.to_string(), 1);
                }
                4 => {
                    let keep = lines[at].chars().count() * usize::from(*with) / 255;
                    lines[at] = lines[at].chars().take(keep).collect();
                }
                _ => lines[at] = lines[at].replace("1, ", "99999999, "),
            }
        }
        if let Ok(parsed) = summary::parse(&lines.join("\n"))
            && let Ok(graph) = summary::graph(&parsed, &task)
        {
            let _ = replay(&graph, &task, &platform);
            ends.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    });
    // Damage is survived more often than not; else this would test the first check alone.
    let ends = ends.into_inner();
    assert!(ends > 300, "{ends}");
}
