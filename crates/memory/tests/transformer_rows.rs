//! Synthetic transformers of GPUMemNet's data set: `nn.TransformerEncoder` under a table of tokens, as
//! far as nine published rows tell.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use carma_memory::graph::{self, Builder, Graph, Keeps, Norm, Number, Op, TensorId};
use carma_memory::{Error, MIB, ModelTask, Optimizer, Platform};

/// Context of that campaign, MiB.
const CONTEXT: f64 = 1429.0;

struct Row {
    classes: u64,
    width: u64,
    layers: u64,
    heads: u64,
    inner: u64,
    tokens: u64,
    vocab: u64,
    batch: u64,
}

/// One `nn.TransformerEncoderLayer` in training: query, key and value from one matrix and copied apart, the
/// norm after the sum.
fn layer(b: &mut Builder, row: &Row, at: &str, x: TensorId) -> Result<TensorId, Error> {
    let Row { width, heads, inner, tokens, batch, .. } = *row;
    let four = [batch, heads, tokens, width / heads];
    let packed = b.linear(&format!("{at}.in_proj"), x, 3 * width, true)?;
    let packed = b.like("contiguous", Op::Copy, &[packed])?;
    let parts = b.parts("qkv", packed, &[&four, &four, &four])?;
    let attention = Op::Attention { heads, dropout: true, mask: false };
    let y = b.node("attention", attention, &parts, &[], &four, Number::Float)?;
    let y = b.node("contiguous", Op::Copy, &[y], &[], &[batch, tokens, width], Number::Float)?;
    let y = b.linear(&format!("{at}.out_proj"), y, width, true)?;
    let dropout = Op::Dropout { inplace: false };
    let y = b.like("dropout1", dropout.clone(), &[y])?;
    let sum = b.like("sum", Op::Add { inplace: false }, &[x, y])?;
    let x = b.norm(&format!("{at}.norm1"), Norm::Layer, sum, width, true)?;
    let y = b.linear(&format!("{at}.linear1"), x, inner, true)?;
    let y = b.activation("relu", Keeps::Output, false, y)?;
    let y = b.like("dropout", dropout.clone(), &[y])?;
    let y = b.linear(&format!("{at}.linear2"), y, width, true)?;
    let y = b.like("dropout2", dropout, &[y])?;
    let sum = b.like("sum", Op::Add { inplace: false }, &[x, y])?;
    b.norm(&format!("{at}.norm2"), Norm::Layer, sum, width, true)
}

fn model(row: &Row) -> Result<Graph, Error> {
    let Row { classes, width, layers, tokens, vocab, batch, .. } = *row;
    let mut b = Builder::new("transformer");
    let ids = b.input("ids", &[batch, tokens], Number::Int64)?;
    let mut x = b.embedding("embedding", ids, vocab, width)?;
    for at in 0..layers {
        x = layer(&mut b, row, &format!("layers.{at}"), x)?;
    }
    let pooled = b.node("mean", Op::Copy, &[x], &[], &[batch, width], Number::Float)?;
    let logits = b.linear("fc", pooled, classes, true)?;
    let labels = b.input("labels", &[batch], Number::Int64)?;
    b.node("loss", Op::CrossEntropy, &[logits, labels], &[], &[1], Number::Float32)?;
    Ok(b.finish(vec![logits]))
}

#[test]
fn nine_rows() {
    let path =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data/gpumemnet/sample_transformer_rows.csv");
    if !std::path::Path::new(path).exists() {
        eprintln!("skipped: ../shared/data/gpumemnet/sample_transformer_rows.csv is not there");
        return;
    }
    let platform = Platform::lookup("A100-40GB", (2, 7)).unwrap();
    let (mut sum, mut of_prototype, mut rows) = (0.0, 0.0, 0.0);
    for record in csv::Reader::from_path(path).unwrap().records() {
        let record = record.unwrap();
        let n = |i: usize| record[i].parse::<u64>().unwrap();
        let row = Row {
            classes: n(0),
            width: n(1),
            layers: n(2),
            heads: n(3),
            inner: n(4),
            tokens: n(5),
            vocab: n(6),
            batch: n(7),
        };
        let task = ModelTask {
            batch_size: row.batch,
            samples: Some(n(8)),
            optimizer: Optimizer::Adam,
            ..ModelTask::default()
        };
        let peak = graph::replay(&model(&row).unwrap(), &task, &platform).unwrap().peak;
        let reserved = peak.max_reserved as f64 / MIB as f64;
        let (measured, prototype) = (n(9) as f64, n(11) as f64);
        let error = (reserved + CONTEXT) / measured - 1.0;
        println!("{record:?}: {reserved:.0} reserved, {:+.1} %", error * 100.0);
        sum += error.abs();
        of_prototype += (reserved / prototype - 1.0).abs();
        rows += 1.0;
    }
    println!("mean {:.2} %; from the prototype {:.2} %", sum / rows * 100.0, of_prototype / rows * 100.0);
    assert!(rows == 9.0 && sum / rows <= 0.02, "{}", sum / rows);
}
