//! Reading printed summaries: the three dialects, and whatever else a file may hold.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use bolero::TypeGenerator;
use carma_memory::summary::{Dialect, MAX_BYTES, parse, parse_bytes};
use carma_seeded::check;
use std::path::{Path, PathBuf};

fn shared(folder: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data").join(folder);
    if !path.exists() {
        println!("skipped: ../shared/data/{folder} is absent");
        return None;
    }
    Some(path)
}

#[test]
fn torchsummary_rows() {
    let text = "\
----------------------------------------------------------------
        Layer (type)               Output Shape         Param #
================================================================
            Conv2d-1         [-1, 32, 112, 112]             864
DepthwiseSeparableConv-18           [-1, 16, 16, 16]               0
MultiheadAttention-7  [[-1, 197, 768], [-1, 197, 197]]               0
================================================================
Total params: 864
Trainable params: 800
Non-trainable params: 64
----------------------------------------------------------------
Input size (MB): 0.57
";
    let s = parse(text).unwrap();
    assert_eq!(s.dialect, Dialect::Torchsummary);
    assert_eq!(s.layers.len(), 3);
    assert_eq!(s.layers[0].outputs, vec![vec![-1, 32, 112, 112]]);
    assert_eq!(s.layers[0].activations(), Some(32 * 112 * 112));
    assert_eq!(s.layers[1].kind, "DepthwiseSeparableConv");
    assert_eq!(s.layers[2].outputs, vec![vec![-1, 197, 768], vec![-1, 197, 197]]);
    assert_eq!((s.totals.params, s.totals.frozen), (Some(864), Some(64)));
    assert_eq!(s.doubts, Vec::<String>::new());
}

#[test]
fn torchinfo_rows_by_the_header() {
    let text = "\
==========================================================================================
Layer (type (var_name):depth-idx)        Kernel Shape   Input Shape      Output Shape   Param #   Trainable
==========================================================================================
Net (Net)                                --   [8, 3, 32, 32]   [8, 10]   --   Partial
├─Sequential (body): 1-1                 --   [8, 3, 32, 32]   [8, 16, 32, 32]   --   False
│    └─Conv2d (0): 2-1                   [3, 3]   [8, 3, 32, 32]   [8, 16, 32, 32]   (448)   False
│    └─ReLU (1): 2-2                     --   [8, 16, 32, 32]   [8, 16, 32, 32]   --   --
│    └─Conv2d (0): 2-3                   [3, 3]   [8, 3, 32, 32]   [8, 16, 32, 32]   (recursive)   False
├─Linear (fc): 1-2                       --   [8, 16384]   [8, 10]   163,850   True
==========================================================================================
Total params: 164,298
Trainable params: 163,850
Non-trainable params: 448
";
    let s = parse(text).unwrap();
    assert_eq!(s.dialect, Dialect::Torchinfo);
    let depths: Vec<usize> = s.layers.iter().map(|l| l.depth).collect();
    assert_eq!(depths, [0, 1, 2, 2, 2, 1]);
    let conv = &s.layers[2];
    assert_eq!((conv.attribute.as_str(), conv.params, conv.trainable), ("0", 448, Some(false)));
    assert_eq!(conv.numbers("kernel_size"), [3, 3]);
    assert!(s.layers[4].recursive);
    assert!(s.is_container(1) && !s.is_container(2));
    assert_eq!(s.doubts, Vec::<String>::new());
}

#[test]
fn torchinfo_in_ascii_and_without_depth() {
    let text = "\
==========================================================
Layer (type:depth-idx)    Output Shape              Param #
==========================================================
Net                       [2, 10]                   --
+ Sequential: 1-1         [2, 16]                   --
|    + Linear: 2-1        [2, 16]                   272
|    |    + Tanh: 3-1     [2, 16]                   --
+ Linear                  [2, 10]                   170
";
    let s = parse(text).unwrap();
    let depths: Vec<usize> = s.layers.iter().map(|l| l.depth).collect();
    assert_eq!(depths, [0, 1, 2, 3, 1]);
    assert_eq!(s.doubts.len(), 1, "the totals are missing: {:?}", s.doubts);
}

#[test]
fn trees_with_and_without_counts() {
    let text = "\
Some log line before
Bert(
  (emb): Embedding(100, 8, padding_idx=0), 800 params
  (layer): ModuleList(
    (0-2): 3 x Layer(
      (fc): Linear(in_features=8, out_features=16, bias=True)
      (act): GELU(approximate='none')
    )
  )
), 1,232 params
Total params: 1,232
";
    let s = parse(text).unwrap();
    assert_eq!(s.dialect, Dialect::Modelsummary);
    let names: Vec<&str> = s.layers.iter().map(|l| l.name.as_str()).collect();
    assert_eq!(names[..5], ["", "emb", "layer", "layer.0", "layer.0.fc"]);
    assert_eq!(names[names.len() - 1], "layer.2.act");
    assert_eq!(s.layers.len(), 12);
    assert_eq!((s.layers[0].params, s.layers[1].params), (1232, 800));
    assert_eq!(s.layers[1].number("0"), Some(100));
    assert_eq!(s.layers[4].number("out_features"), Some(16));
    assert_eq!(s.layers[4].flag("bias"), Some(true));
}

#[test]
fn every_summary_of_the_seeds_is_read() {
    for folder in ["carma/summaries", "gpumemnet/summaries"] {
        let Some(folder) = shared(folder) else { continue };
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let s = parse(&std::fs::read_to_string(&path).unwrap()).unwrap();
            // Below two tables their authors kept notes; they are not layers.
            let bad: Vec<&String> = s.doubts.iter().filter(|d| d.contains("not understood")).collect();
            assert!(bad.is_empty(), "{}: {bad:?}", path.display());
        }
    }
}

#[test]
fn what_is_no_summary_is_refused() {
    for text in
        ["", "hello", "Слой (тип)   Форма\nСвёртка-1  [1, 2]", "\u{0}\u{1}\u{2}", "Layer (type)", "(((((("]
    {
        assert!(parse(text).is_err(), "{text:?}");
    }
    let long = "x".repeat(MAX_BYTES + 1);
    assert!(parse(&long).unwrap_err().to_string().contains("at most"));
    assert!(parse_bytes(&vec![0xff; MAX_BYTES * 2]).is_err());
}

#[test]
fn a_truncated_text_gives_what_is_there_and_a_doubt() {
    let text =
        "Net(\n  (a): Linear(in_features=4, out_features=4, bias=True)\n  (b): Sequential(\n    (c): Re";
    let s = parse(text).unwrap();
    assert_eq!(s.layers.len(), 3);
    assert!(s.doubts.iter().any(|d| d.contains("open modules")), "{:?}", s.doubts);
}

#[test]
fn repeated_modules_do_not_multiply_without_bound() {
    let mut text = String::from("Net(\n");
    for _ in 0..60 {
        text.push_str("(0-99): 100 x Block(\n");
    }
    text.push_str("(a): ReLU()\n");
    text.push_str(&")\n".repeat(61));
    let s = parse(&text).unwrap();
    assert!(s.layers.len() <= carma_memory::summary::MAX_LAYERS);
    assert!(s.doubts.iter().any(|d| d.contains("more than")), "{:?}", s.doubts);
}

/// Pieces of which hostile summaries are made.
const PIECES: &[&str] = &[
    "Layer (type)  Output Shape  Param #\n",
    "Layer (type:depth-idx)  Input Shape  Output Shape  Param #\n",
    "Conv2d-1  [-1, 64, 7, 7]  9,408\n",
    "├─Conv2d: 1-1  [8, 3, 8, 8]  [8, 64, 7, 7]  9,408\n",
    "│    └─Block: 2-1  --  --\n",
    "Net(\n",
    "(a): Linear(in_features=99999999999, out_features=2), 3 params\n",
    "(0-9): 10 x Block(\n",
    ")\n",
    "), 99999999999999999999999 params\n",
    "[-1, [[[",
    "9223372036854775807",
    "-9223372036854775808",
    "=====\n",
    "Total params: 1,2,3\n",
    "\u{2514}\u{2500}",
    "\n",
    " ",
    "(recursive)",
    "é",
];

#[derive(Debug, TypeGenerator)]
enum Piece {
    Known(u8),
    Raw(Vec<u8>),
}

#[test]
fn whatever_the_bytes_reading_ends() {
    check!(3000).with_type::<Vec<Piece>>().for_each(|pieces| {
        let mut bytes = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Known(n) => bytes.extend(PIECES[usize::from(*n) % PIECES.len()].as_bytes()),
                Piece::Raw(raw) => bytes.extend(raw),
            }
        }
        if let Ok(summary) = parse_bytes(&bytes) {
            assert!(!summary.layers.is_empty());
        }
    });
}

#[test]
fn sizes_that_no_layer_has_are_refused() {
    let of = |layer: &str| {
        parse(&format!("Net(\n  (fc): Linear(in_features=4, out_features=4, bias=True)\n  (a): {layer}\n)\n"))
    };
    for layer in [
        "Linear(in_features=-1, out_features=4, bias=True)",
        "Linear(in_features=0, out_features=4, bias=True)",
        "Linear(in_features=4, out_features=1e308, bias=True)",
        "Conv2d(-3, 64, kernel_size=(7, 7), stride=(2, 2))",
        "Embedding(0, 64)",
    ] {
        let error = of(layer).unwrap_err().to_string();
        assert!(error.contains("line 3") && error.contains("whole numbers from 1"), "{layer}: {error}");
    }
    for layer in [
        "LazyLinear(in_features=0, out_features=4, bias=True)",
        "Scale(0, in_features=(3, 4))",
        "Dropout(p=0)",
    ] {
        assert!(of(layer).is_ok(), "{layer}");
    }
}
