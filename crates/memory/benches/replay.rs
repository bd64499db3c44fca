//! How fast the main estimator is: events through the allocator's model, graphs through the rules, and the
//! way from a `config.json` to a number.
//!
//! `cargo bench -p carma-memory --bench replay`. Plain timing on one core, no statistics library: medians
//! of repeated runs. Targets: 22,000 events below 10 ms, a configuration below 5 ms.
#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a benchmark reads the clock and the machine's name; a failure may end it"
)]

mod timing;

use carma_memory::alloc::{Caching, Event};
use carma_memory::graph::{self, Builder, Graph, Keeps, Norm, Number, Op, Script};
use carma_memory::{Error, ModelTask, Optimizer, Platform, hf};
use std::time::Duration;
use timing::median;

const REPEATS: usize = 31;
const EVENTS: usize = 22_000;

/// A residual network of so many blocks over images of 224 x 224.
fn residual(blocks: u64, batch: u64) -> Result<Graph, Error> {
    let mut b = Builder::new("resnet");
    let x = b.input("x", &[batch, 3, 224, 224], Number::Float)?;
    let labels = b.input("labels", &[batch], Number::Int64)?;
    let mut x = b.conv("stem", x, &[batch, 64, 56, 56], &[7, 7], 1, false)?;
    for at in 0..blocks {
        let shape = [batch, 64, 56, 56];
        let identity = x;
        for conv in 0..3 {
            let name = format!("block{at}.{conv}");
            x = b.conv(&name, x, &shape, &[3, 3], 1, false)?;
            x = b.norm(&name, Norm::Batch, x, 64, true)?;
            x = b.activation(&name, Keeps::Output, true, x)?;
        }
        x = b.like("sum", Op::Add { inplace: true }, &[x, identity])?;
    }
    let pooled = b.node("pool", Op::AvgPool, &[x], &[], &[batch, 64, 1, 1], Number::Float)?;
    let flat = b.view("flat", pooled, &[batch, 64])?;
    let logits = b.linear("fc", flat, 1000, true)?;
    b.node("loss", Op::CrossEntropy, &[logits, labels], &[], &[], Number::Float)?;
    Ok(b.finish(vec![logits]))
}

fn line(what: &str, time: Duration, more: &str) {
    println!("{what:<58} {:>8.3} ms  {more}", time.as_secs_f64() * 1e3);
}

fn main() {
    timing::header(REPEATS);
    let platform = Platform::lookup("H200", (2, 11)).unwrap();
    let task = ModelTask { batch_size: 32, optimizer: Optimizer::SgdMomentum, ..ModelTask::default() };

    let graph = residual(200, 32).unwrap();
    let mut events: Vec<Event> = Vec::new();
    graph::events(&graph, &task, &platform, &Script::default(), &mut |event| {
        events.push(event.clone());
        Ok(())
    })
    .unwrap();
    events.truncate(EVENTS);
    let time = median(REPEATS, || {
        let mut allocator = Caching::new(platform.alloc.clone(), platform.gpu.compute_capability);
        for event in &events {
            allocator.apply(event).unwrap();
        }
        assert!(allocator.peak().max_reserved > 0);
    });
    line("events through the allocator's model", time, &format!("{} events; target 10 ms", events.len()));

    for blocks in [16, 50] {
        let graph = residual(blocks, 32).unwrap();
        let time = median(REPEATS, || {
            graph::replay(&graph, &task, &platform).unwrap();
        });
        line(
            &format!("rules and allocator, residual network of {} convolutions", 3 * blocks + 1),
            time,
            &format!("{} nodes, 3 steps", graph.nodes.len()),
        );
    }

    let bert = r#"{"model_type":"bert","architectures":["BertForMaskedLM"],"vocab_size":30522,"hidden_size":1024,
        "num_hidden_layers":24,"num_attention_heads":16,"intermediate_size":4096,"max_position_embeddings":512,
        "type_vocab_size":2,"hidden_act":"gelu","hidden_dropout_prob":0.1,"attention_probs_dropout_prob":0.1}"#;
    let llama = r#"{"model_type":"llama","architectures":["LlamaForCausalLM"],"vocab_size":32000,"hidden_size":4096,
        "num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":32,"intermediate_size":11008,
        "max_position_embeddings":4096,"hidden_act":"silu"}"#;
    for (name, text) in [("BERT-large", bert), ("Llama of 7 billion", llama)] {
        let task = ModelTask { batch_size: 4, seq_len: Some(512), ..ModelTask::default() };
        let time = median(REPEATS, || {
            let config = hf::Config::parse(text).unwrap();
            let graph = hf::graph(&config, &task).unwrap();
            graph::replay(&graph, &task, &platform).unwrap();
        });
        line(&format!("config.json to peaks, {name}"), time, "target 5 ms");
    }
}
