//! The rules on random graphs: whatever is allocated is freed, nothing twice; more samples take more; no
//! graph, however wrong, ends in a panic.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests")]

use carma_memory::alloc::{Caching, Event, Settings};
use carma_memory::graph::{self, Builder, Graph, Keeps, Node, Norm, Number, Op, Script, Tensor, TensorId};
use carma_memory::{Attention, Error, Mode, ModelTask, Optimizer, Parallel, Platform, Precision};
use proptest::prelude::*;
use std::collections::HashMap;

/// A network of linear layers, convolutions and what stands between them; each number of `choices` adds a
/// layer. `width` stays the same, so that any two tensors can be added.
fn network(choices: &[u8], batch: u64, width: u64, blocks: bool) -> Result<Graph, Error> {
    let mut b = Builder::new("random");
    let mut x = b.input("x", &[batch, width, 4, 4], Number::Float)?;
    let labels = b.input("labels", &[batch], Number::Int64)?;
    let mut earlier = x;
    for (at, choice) in choices.iter().enumerate() {
        if blocks && at % 3 == 0 {
            b.begin_block();
        }
        let name = format!("layer{at}");
        let shape = b.shape(x).to_vec();
        let before = x;
        x = match choice % 18 {
            0 => b.conv(&name, x, &shape, &[3, 3], 1, true)?,
            1 => b.conv(&name, x, &shape, &[3, 3], width, false)?,
            2 => b.norm(&name, Norm::Batch, x, width, true)?,
            3 => b.norm(&name, Norm::Layer, x, 4, true)?,
            4 => b.norm(&name, Norm::Rms, x, 4, false)?,
            5 => b.activation(&name, Keeps::Output, true, x)?,
            6 => b.activation(&name, Keeps::Input, true, x)?,
            7 => b.activation(&name, Keeps::Input, false, x)?,
            8 => b.like(&name, Op::Dropout { inplace: false }, &[x])?,
            9 => b.like(&name, Op::Dropout { inplace: true }, &[x])?,
            10 => b.like(&name, Op::Add { inplace: false }, &[x, earlier])?,
            11 => b.like(&name, Op::Add { inplace: true }, &[x, earlier])?,
            12 => b.like(&name, Op::Mul, &[x, earlier])?,
            13 => b.like(&name, Op::Softmax, &[x])?,
            14 => b.linear(&name, x, 4, true)?,
            15 => {
                let parts = b.parts(&name, x, &[&[batch, width, 2, 4], &[batch, width, 2, 4]])?;
                b.node(&name, Op::Cat, &parts, &[], &shape, Number::Float)?
            }
            16 => {
                let rows = b.view(&name, x, &[batch, 4 * width, 4])?;
                let attention = Op::Attention { heads: 2, dropout: true, mask: choice % 2 == 0 };
                let y = b.node(
                    &name,
                    attention,
                    &[rows, rows, rows],
                    &[],
                    &[batch, 4 * width, 4],
                    Number::Float,
                )?;
                b.view(&name, y, &shape)?
            }
            _ => b.node(&name, Op::Unknown, &[x], &[], &shape, Number::Float)?,
        };
        if choice % 5 == 0 {
            earlier = before;
        }
    }
    b.end_block();
    let pooled = b.node("pool", Op::AvgPool, &[x], &[], &[batch, width, 1, 1], Number::Float)?;
    let flat = b.view("flat", pooled, &[batch, width])?;
    let logits = b.linear("fc", flat, 10, true)?;
    b.node("loss", Op::CrossEntropy, &[logits, labels], &[], &[], Number::Float)?;
    Ok(b.finish(vec![logits]))
}

/// What a sequence of events amounts to, checked on the way.
#[derive(Default)]
struct Ledger {
    live: HashMap<u64, u64>,
    now: u64,
    most: u64,
}

impl Ledger {
    fn take(&mut self, event: &Event) {
        match event {
            Event::Alloc { handle, bytes } => {
                assert_eq!(self.live.insert(*handle, *bytes), None, "handle {handle} is in use");
                self.now += bytes;
                self.most = self.most.max(self.now);
            }
            Event::Free { handle } => {
                self.now -= self.live.remove(handle).expect("a storage is freed that is not there");
            }
            _ => {}
        }
    }

    fn of(graph: &Graph, task: &ModelTask, script: &Script) -> Self {
        let mut ledger = Self::default();
        let mut allocator = Caching::new(Settings::default(), (9, 0));
        let mut before = allocator.peak();
        graph::events(graph, task, &platform(), script, &mut |event| {
            ledger.take(event);
            allocator.apply(event)?;
            let peak = allocator.peak();
            assert!(peak.allocated <= peak.reserved && peak.allocated >= ledger.now, "{peak:?}");
            assert!(peak.max_allocated >= before.max_allocated && peak.max_reserved >= before.max_reserved);
            before = peak;
            Ok(())
        })
        .unwrap();
        ledger
    }
}

fn platform() -> Platform {
    Platform::lookup("H200", (2, 11)).unwrap()
}

fn bytes_of_weight(precision: Precision) -> u64 {
    if matches!(precision, Precision::Bf16 | Precision::Fp16) { 2 } else { 4 }
}

fn precisions() -> impl Strategy<Value = Precision> {
    use Precision::{Bf16, Bf16Autocast, Fp16, Fp16Autocast, Fp32};
    prop::sample::select(vec![Fp32, Bf16, Fp16, Bf16Autocast, Fp16Autocast])
}

fn tasks() -> impl Strategy<Value = ModelTask> {
    let optimizers = prop::sample::select(vec![
        Optimizer::Sgd,
        Optimizer::SgdMomentum,
        Optimizer::Adam,
        Optimizer::AdamFused,
        Optimizer::Adam8bit,
        Optimizer::Rmsprop,
        Optimizer::Adagrad,
    ]);
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    (1..9_u64, optimizers, precisions(), flags, prop::option::of(1..40_u64)).prop_map(
        |(batch_size, optimizer, precision, (eager, gradient_checkpointing, infer), samples)| ModelTask {
            mode: if infer { Mode::Infer } else { Mode::Train },
            batch_size,
            samples,
            optimizer,
            precision,
            attention: if eager { Attention::Eager } else { Attention::Sdpa },
            gradient_checkpointing,
            ..ModelTask::default()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn what_remains_are_parameters_and_state(
        choices in prop::collection::vec(any::<u8>(), 0..14),
        width in 1..9_u64,
        task in tasks(),
        dummy in prop::option::of(1..4_u64),
    ) {
        let graph = network(&choices, task.batch_size, width, task.gradient_checkpointing).unwrap();
        let ledger = Ledger::of(&graph, &task, &Script { dummy_batch: dummy, ..Script::default() });
        let width = bytes_of_weight(task.precision);
        let all: u64 = graph.params.iter().map(|p| width * p.elements()).sum();
        let trained = || graph.params.iter().filter(|p| p.trainable).map(carma_memory::graph::Param::elements);
        let state: u64 = match task.optimizer {
            _ if task.mode == Mode::Infer => 0,
            Optimizer::Sgd => 0,
            Optimizer::SgdMomentum | Optimizer::Rmsprop | Optimizer::Adagrad => trained().map(|n| width * n).sum(),
            Optimizer::Adam | Optimizer::Adamw => trained().map(|n| 2 * width * n).sum(),
            Optimizer::AdamFused => trained().map(|n| 2 * width * n + 4).sum(),
            // All of these parameters are small: their states stay in 32 bits.
            Optimizer::Adam8bit => trained().map(|n| 8 * n).sum(),
        };
        prop_assert_eq!(ledger.now, all + state);
    }

    #[test]
    fn more_samples_take_more(
        choices in prop::collection::vec(any::<u8>(), 0..14),
        width in 1..9_u64,
        task in tasks(),
    ) {
        let more = ModelTask { batch_size: 2 * task.batch_size, samples: None, ..task.clone() };
        let task = ModelTask { samples: None, ..task };
        let most = |task: &ModelTask| {
            let graph = network(&choices, task.batch_size, width, task.gradient_checkpointing).unwrap();
            Ledger::of(&graph, task, &Script::default()).most
        };
        prop_assert!(most(&task) <= most(&more));
    }

    #[test]
    fn a_smaller_batch_is_the_larger_graph_scaled(
        choices in prop::collection::vec(any::<u8>(), 0..10),
        task in tasks(),
    ) {
        // The dummy forward of as many samples as the batch has is that batch's forward.
        let graph = network(&choices, task.batch_size, 4, false).unwrap();
        let small = network(&choices, 1, 4, false).unwrap();
        let one = ModelTask { batch_size: 1, samples: None, ..task.clone() };
        let of_small = Ledger::of(&small, &one, &Script { steps: 0, dummy_batch: Some(1), ..Script::default() });
        let task = ModelTask { samples: None, ..task };
        let scaled = Ledger::of(&graph, &task, &Script { steps: 0, dummy_batch: Some(1), ..Script::default() });
        prop_assert_eq!(of_small.most, scaled.most);
    }

    #[test]
    fn several_gpus(
        choices in prop::collection::vec(any::<u8>(), 0..10),
        task in tasks(),
        gpus in 2..5_u32,
        strategy in prop::sample::select(vec![Parallel::DataParallel, Parallel::Ddp, Parallel::Zero2, Parallel::Zero3]),
    ) {
        let graph = network(&choices, task.batch_size, 4, task.gradient_checkpointing).unwrap();
        let alone = Ledger::of(&graph, &task, &Script::default());
        let task = ModelTask { gpus, parallel: strategy, ..task };
        let ledger = Ledger::of(&graph, &task, &Script::default());
        match strategy {
            Parallel::Ddp => prop_assert!(ledger.most >= alone.most),
            Parallel::Zero3 => prop_assert!(ledger.now <= alone.now + 8 * graph.params.len() as u64),
            _ => {}
        }
    }

    #[test]
    fn wrong_graphs_are_refused_or_played(
        nodes in prop::collection::vec((any::<u8>(), prop::collection::vec(0..8_u32, 0..4), prop::collection::vec(0..8_u32, 0..3),
            prop::collection::vec(0..4_u32, 0..3)), 0..8),
        shapes in prop::collection::vec(prop::collection::vec(prop::sample::select(vec![0, 1, 3, 1 << 20, u64::MAX]), 0..4), 8),
        task in tasks(),
        rank in prop::option::of(0..3_u32),
    ) {
        let task = ModelTask { lora: rank.map(|rank| carma_memory::Lora { rank, targets: Vec::new() }), ..task };
        let ops = [
            Op::Input, Op::Linear, Op::Conv { groups: 0 }, Op::MatMul, Op::Norm(Norm::Batch), Op::Norm(Norm::Group),
            Op::Norm(Norm::Rms), Op::Activation { keeps: Keeps::Input, inplace: true }, Op::Softmax,
            Op::Dropout { inplace: true }, Op::MaxPool, Op::AvgPool, Op::Add { inplace: true }, Op::Mul, Op::Cat, Op::View,
            Op::Copy, Op::Embedding, Op::Attention { heads: 0, dropout: true, mask: false },
            Op::Recurrent { gates: u64::MAX, hidden: u64::MAX, layers: 2 }, Op::CrossEntropy, Op::Loss, Op::Unknown,
        ];
        let ids = |list: &[u32]| list.iter().map(|id| TensorId(*id)).collect::<Vec<_>>();
        let mut b = Builder::new("wrong");
        for at in 0..3 {
            b.param(format!("p{at}"), &[at, 5]).unwrap();
        }
        let mut graph = b.finish(Vec::new());
        graph.tensors = shapes.into_iter().map(|shape| Tensor { shape, number: Number::Float }).collect();
        for (op, inputs, outputs, params) in nodes {
            graph.nodes.push(Node {
                name: "n".to_owned(),
                op: ops[usize::from(op) % ops.len()].clone(),
                inputs: ids(&inputs),
                outputs: ids(&outputs),
                params: params.into_iter().map(carma_memory::graph::ParamId).collect(),
                block: (op % 3 == 0).then_some(u32::from(op)),
            });
        }
        let _ = graph::replay(&graph, &task, &platform());
    }
}

#[test]
fn an_absurd_layer_is_named() {
    let mut b = Builder::new("absurd");
    let x = b.input("x", &[1 << 20, 1 << 20], Number::Float).unwrap();
    let mut y = b.linear("first", x, 1 << 20, false).unwrap();
    for at in 0..300 {
        y = b.activation(&format!("gelu{at}"), Keeps::Input, false, y).unwrap();
    }
    let w = b.linear("fc", y, 1 << 20, false).unwrap();
    let graph = b.finish(vec![w]);
    let error =
        graph::replay(&graph, &ModelTask { batch_size: 1 << 20, ..ModelTask::default() }, &platform())
            .unwrap_err();
    assert!(error.to_string().contains("gelu"), "{error}");
}

#[test]
fn adapters_leave_the_rest_without_gradients() {
    let mut graph = network(&[0, 2, 5, 14], 4, 8, false).unwrap();
    for param in &mut graph.params {
        param.trainable = param.name.starts_with("fc");
    }
    let task = ModelTask { batch_size: 4, ..ModelTask::default() };
    let frozen = graph::replay(&graph, &task, &platform()).unwrap();
    let full = graph::replay(&network(&[0, 2, 5, 14], 4, 8, false).unwrap(), &task, &platform()).unwrap();
    assert!(frozen.peak.max_allocated < full.peak.max_allocated);
    assert!(
        frozen.holdings.of(graph::StorageKind::Gradients)
            < full.holdings.of(graph::StorageKind::Gradients).max(1)
    );
}

#[test]
fn adapters_are_put_beside_linear_layers() {
    let rank = |rank| Some(carma_memory::Lora { rank, targets: Vec::new() });
    for precision in [Precision::Fp32, Precision::Bf16Autocast, Precision::Bf16] {
        let task = ModelTask { batch_size: 4, precision, ..ModelTask::default() };
        let graph = network(&[14, 7, 14, 0], 4, 8, false).unwrap();
        let adapted = ModelTask { lora: rank(2), ..task.clone() };
        let made = graph.adapted(&adapted).unwrap().unwrap();
        // Two layers get one, from 4 to 4 features; the last layer gives the model's output and gets none.
        let trained: u64 = made.params.iter().filter(|p| p.trainable).map(graph::Param::elements).sum();
        assert_eq!(trained, 2 * 2 * (2 * 4));
        assert!(made.adapted(&adapted).unwrap().is_none());
        let ledger = Ledger::of(&graph, &adapted, &Script::default());
        let frozen: u64 = graph.params.iter().map(|p| bytes_of_weight(precision) * p.elements()).sum();
        assert_eq!(ledger.now, frozen + 3 * 4 * trained, "{precision:?}");
        let one = Ledger::of(&graph, &ModelTask { lora: rank(1), ..task.clone() }, &Script::default());
        assert!(one.most < ledger.most);
    }
}

#[test]
fn targets_that_no_layer_has_are_refused_with_those_that_there_are() {
    let graph = network(&[14, 7, 14, 0], 4, 8, false).unwrap();
    let with = |targets: &[&str]| {
        let targets = targets.iter().map(|t| (*t).to_owned()).collect();
        ModelTask {
            batch_size: 4,
            lora: Some(carma_memory::Lora { rank: 2, targets }),
            ..ModelTask::default()
        }
    };
    let of = |targets: &[&str]| graph::replay(&graph, &with(targets), &platform());
    let error = of(&["q_prj", "v_prj"]).unwrap_err().to_string();
    assert!(error.contains("q_prj or v_prj") && error.contains("--lora-targets"), "{error}");
    let name = graph.nodes.iter().find(|node| node.op == Op::Linear).unwrap().name.clone();
    assert!(error.contains(&name), "{error}: {name}");
    // One that is there is enough, as for PEFT; its word for all is none of the names.
    assert!(of(&[&name, "v_prj"]).is_ok());
    assert_eq!(of(&["all-linear"]).unwrap().peak, of(&[]).unwrap().peak);
}
