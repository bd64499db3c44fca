#![allow(clippy::unwrap_used)]

use super::{graph, proto};
use crate::graph::{Graph, Keeps, Norm, Op};
use crate::{Attention, Error, Mode, ModelTask};
use prost::Message as _;

/// A model under construction, as the exporters would write it.
#[derive(Default, Clone)]
struct File(proto::Graph, Vec<proto::Function>);

enum Attr {
    Int(i64),
    Ints(Vec<i64>),
}

impl File {
    fn info(name: &str, elem_type: i32, dims: &[&str]) -> proto::ValueInfo {
        let dim = |d: &&str| proto::Dim {
            value: Some(match d.parse() {
                Ok(n) => proto::DimValue::Number(n),
                Err(_) => proto::DimValue::Name((*d).to_owned()),
            }),
        };
        let shape = Some(proto::Shape { dim: dims.iter().map(dim).collect() });
        let tensor_type = Some(proto::TensorType { elem_type, shape });
        proto::ValueInfo { name: name.to_owned(), r#type: Some(proto::Type { tensor_type }) }
    }

    fn input(mut self, name: &str, dims: &[&str]) -> Self {
        self.0.input.push(Self::info(name, 1, dims));
        self
    }

    fn ids(mut self, name: &str, dims: &[&str]) -> Self {
        self.0.input.push(Self::info(name, 7, dims));
        self
    }

    /// A weight, whose data is not in the file.
    fn weight(mut self, name: &str, dims: &[i64]) -> Self {
        let name = name.to_owned();
        self.0.initializer.push(proto::Tensor {
            dims: dims.to_vec(),
            data_type: 1,
            name,
            ..proto::Tensor::default()
        });
        self
    }

    fn scalar(mut self, name: &str, value: f32) -> Self {
        let raw_data = value.to_le_bytes().to_vec();
        self.0.initializer.push(proto::Tensor {
            data_type: 1,
            raw_data,
            name: name.to_owned(),
            ..proto::Tensor::default()
        });
        self
    }

    fn ints(mut self, name: &str, values: &[i64]) -> Self {
        self.0.initializer.push(proto::Tensor {
            dims: vec![values.len() as i64],
            data_type: 7,
            int64_data: values.to_vec(),
            name: name.to_owned(),
            ..proto::Tensor::default()
        });
        self
    }

    fn node(mut self, op: &str, inputs: &[&str], output: &str, attributes: &[(&str, Attr)]) -> Self {
        self.0.node.push(node(op, inputs, output, attributes));
        self
    }

    fn output(mut self, name: &str) -> Self {
        self.0.output.push(proto::ValueInfo { name: name.to_owned(), r#type: None });
        self
    }

    fn bytes(self) -> Vec<u8> {
        let opset = proto::Opset { domain: String::new(), version: 18 };
        proto::ModelProto { graph: Some(self.0), opset_import: vec![opset], functions: self.1 }
            .encode_to_vec()
    }

    fn graph(self, task: &ModelTask) -> Graph {
        graph(&self.bytes(), task).unwrap()
    }
}

fn node(op: &str, inputs: &[&str], output: &str, attributes: &[(&str, Attr)]) -> proto::Node {
    let attribute = |(name, value): &(&str, Attr)| {
        let mut a = proto::Attribute { name: (*name).to_owned(), ..proto::Attribute::default() };
        match value {
            Attr::Int(i) => a.i = *i,
            Attr::Ints(ints) => a.ints.clone_from(ints),
        }
        a
    };
    let (op_type, domain) = match op.split_once("::") {
        Some((domain, op)) => (op, domain),
        None => (op, ""),
    };
    proto::Node {
        input: inputs.iter().map(|i| (*i).to_owned()).collect(),
        output: vec![output.to_owned()],
        name: String::new(),
        op_type: op_type.to_owned(),
        attribute: attributes.iter().map(attribute).collect(),
        domain: domain.to_owned(),
    }
}

fn train(batch_size: u64) -> ModelTask {
    ModelTask { batch_size, ..ModelTask::default() }
}

fn ops(graph: &Graph) -> Vec<&Op> {
    graph.nodes.iter().map(|n| &n.op).filter(|op| !matches!(op, Op::Input | Op::View)).collect()
}

/// Shape of the one output of the only node of its kind.
fn shape_of(graph: &Graph, find: impl Fn(&Op) -> bool) -> &[u64] {
    let found: Vec<_> = graph.nodes.iter().filter(|n| find(&n.op)).collect();
    assert_eq!(found.len(), 1, "{:?}", ops(graph));
    &graph.tensor(found[0].outputs[0]).shape
}

fn perceptron() -> File {
    File::default()
        .input("x", &["batch", "784"])
        .weight("fc1.weight", &[100, 784])
        .weight("fc1.bias", &[100])
        .weight("fc2.weight", &[10, 100])
        .node("Gemm", &["x", "fc1.weight", "fc1.bias"], "h", &[("transB", Attr::Int(1))])
        .node("Relu", &["h"], "r", &[])
        .node("Gemm", &["r", "fc2.weight"], "y", &[("transB", Attr::Int(1))])
        .output("y")
}

#[test]
fn a_perceptron_with_its_loss() {
    let g = perceptron().graph(&train(7));
    assert_eq!(g.parameters(), 78_400 + 100 + 1000);
    assert_eq!(g.family, "mlp");
    let relu = Op::Activation { keeps: Keeps::Output, inplace: false };
    assert_eq!(ops(&g), [&Op::Linear, &relu, &Op::Linear, &Op::CrossEntropy]);
    assert_eq!(g.tensor(g.outputs[0]).shape, [7, 10]);
    assert!(g.doubts.is_empty(), "{:?}", g.doubts);
    let inferring = perceptron().graph(&ModelTask { mode: Mode::Infer, ..train(7) });
    assert!(!ops(&inferring).contains(&&Op::CrossEntropy));
}

/// Conv, pooling, a reshape to fixed numbers with the export's batch of 4 in it.
#[test]
fn a_fixed_batch_is_replaced() {
    let file = |batch: &str, reshape: &[i64]| {
        File::default()
            .input("x", &[batch, "3", "32", "32"])
            .weight("c.weight", &[8, 3, 3, 3])
            .ints("shape", reshape)
            .weight("fc.weight", &[2048, 10])
            .node("Conv", &["x", "c.weight"], "conv2d", &[("pads", Attr::Ints(vec![1; 4]))])
            .node(
                "MaxPool",
                &["conv2d"],
                "p",
                &[("kernel_shape", Attr::Ints(vec![2, 2])), ("strides", Attr::Ints(vec![2, 2]))],
            )
            .node("Reshape", &["p", "shape"], "f", &[])
            .node("MatMul", &["f", "fc.weight"], "y", &[])
            .output("y")
    };
    for (batch, reshape) in
        [("4", &[4, -1][..]), ("4", &[4, 2048]), ("4", &[-1, 2048]), ("b", &[-1, 2048]), ("b", &[0, -1])]
    {
        let g = file(batch, reshape).graph(&train(16));
        assert_eq!(shape_of(&g, |op| *op == Op::Linear), [16, 10], "{batch} {reshape:?}");
        assert_eq!(shape_of(&g, |op| *op == Op::MaxPool), [16, 8, 16, 16]);
        assert!(g.doubts.is_empty(), "{:?}", g.doubts);
    }
}

/// Heads apart and together, with a batch of 2 in the middle of the shapes.
#[test]
fn a_fixed_batch_is_replaced_where_sequences_come_first() {
    let file = File::default()
        .input("x", &["2", "5", "12"])
        .ints("apart", &[5, 8, 3])
        .ints("together", &[10, 12])
        .ints("split", &[5, 2, 12])
        .node("Transpose", &["x"], "t", &[("perm", Attr::Ints(vec![1, 0, 2]))])
        .node("Reshape", &["t", "apart"], "a", &[])
        .node("Sigmoid", &["a"], "s", &[])
        .node("Reshape", &["s", "together"], "b", &[])
        .node("Exp", &["b"], "e", &[])
        .node("Reshape", &["e", "split"], "y", &[])
        .output("y");
    let g = file.graph(&train(6));
    let functions: Vec<_> = g
        .nodes
        .iter()
        .filter(|n| matches!(n.op, Op::Activation { .. }))
        .map(|n| g.tensor(n.outputs[0]).shape.clone())
        .collect();
    assert_eq!(functions, [vec![5, 24, 3], vec![30, 12]]);
    assert_eq!(g.tensor(g.outputs[0]).shape, [5, 6, 12]);
}

/// Sizes computed by the file itself: `x.view(x.shape[0], -1)` and a mask over `arange(S)`.
#[test]
fn sizes_that_the_file_computes() {
    let file = File::default()
        .ids("ids", &["batch", "sequence"])
        .weight("wte.weight", &[1000, 64])
        .ints("one", &[1])
        .ints("minus", &[-1])
        .node("Gather", &["wte.weight", "ids"], "e", &[])
        .node("Shape", &["ids"], "all", &[])
        .node("Gather", &["all", "zero"], "b", &[("axis", Attr::Int(0))])
        .node("Unsqueeze", &["b", "zeros"], "b1", &[])
        .node("Concat", &["b1", "minus"], "target", &[("axis", Attr::Int(0))])
        .node("Reshape", &["e", "target"], "flat", &[])
        .node("Relu", &["flat"], "y", &[])
        .output("y")
        .ints("zeros", &[0]);
    let mut file = file;
    file.0.initializer.push(proto::Tensor {
        data_type: 7,
        int64_data: vec![0],
        name: "zero".to_owned(),
        ..proto::Tensor::default()
    });
    let g = file.graph(&ModelTask { seq_len: Some(20), ..train(3) });
    assert_eq!(shape_of(&g, |op| matches!(op, Op::Activation { .. })), [3, 1280]);
    assert_eq!(shape_of(&g, |op| *op == Op::Embedding), [3, 20, 64]);
}

fn convolutions(outputs: [&str; 2], biases: [&str; 2]) -> File {
    File::default()
        .input("x", &["batch", "3", "8", "8"])
        .weight("a.weight", &[16, 3, 1, 1])
        .weight(biases[0], &[16])
        .weight("b.weight", &[16, 16, 1, 1])
        .weight(biases[1], &[16])
        .node("Conv", &["x", "a.weight", biases[0]], outputs[0], &[])
        .node("Relu", &[outputs[0]], "r", &[])
        .node("Conv", &["r", "b.weight", biases[1]], outputs[1], &[])
        .output(outputs[1])
}

#[test]
fn folded_batch_normalisation_is_put_back_where_names_tell() {
    let batch_norms = |g: &Graph| ops(g).iter().filter(|op| ***op == Op::Norm(Norm::Batch)).count();
    for file in [
        convolutions(["getitem", "getitem_3"], ["a.weight_bias", "b.weight_bias"]),
        convolutions(["c1", "c2"], ["a.weight_bias", "b.weight_bias"]),
    ] {
        let g = file.clone().graph(&train(2));
        assert_eq!(batch_norms(&g), 2);
        assert!(g.doubts.iter().any(|d| d.contains("folded into 2 convolutions")));
        // Scale, shift in place of the folded bias.
        assert_eq!(g.parameters(), 48 + 256 + 4 * 16);
        let g = file.graph(&ModelTask { mode: Mode::Infer, ..train(2) });
        assert_eq!((batch_norms(&g), g.doubts.len()), (0, 0));
    }
    let own = convolutions(["conv2d", "conv2d_1"], ["a.bias", "b.bias"]).graph(&train(2));
    assert_eq!((batch_norms(&own), own.doubts.len()), (0, 0));
    let nobody_knows = convolutions(["c1", "c2"], ["p", "q"]).graph(&train(2));
    assert_eq!(batch_norms(&nobody_knows), 0);
    assert!(nobody_knows.doubts[0].contains("2 convolutions with a bias of unknown origin"));
}

/// `softmax(q k^T / s + mask) v` with heads split and merged around it.
fn attention() -> File {
    let perm = |p: [i64; 4]| [("perm", Attr::Ints(p.to_vec()))];
    let mut file = File::default()
        .input("x", &["batch", "seq", "64"])
        .input("mask", &["batch", "1", "seq", "seq"])
        .ints("heads", &[0, 0, 4, 16])
        .ints("merged", &[0, 0, 64])
        .scalar("s", 0.25);
    for name in ["q", "k", "v"] {
        let (w, y, split, turned) =
            (format!("val_{name}"), format!("{name}1"), format!("{name}2"), format!("{name}3"));
        let order = if name == "k" { [0, 2, 3, 1] } else { [0, 2, 1, 3] };
        file = file
            .weight(&w, &[64, 64])
            .node("MatMul", &["x", &w], &y, &[])
            .node("Reshape", &[&y, "heads"], &split, &[])
            .node("Transpose", &[&split], &turned, &perm(order));
    }
    file.node("MatMul", &["q3", "k3"], "scores", &[])
        .node("Mul", &["scores", "s"], "scaled", &[])
        .node("Add", &["scaled", "mask"], "masked", &[])
        .node("Softmax", &["masked"], "p", &[])
        .node("MatMul", &["p", "v3"], "out", &[])
        .node("Transpose", &["out"], "back", &perm([0, 2, 1, 3]))
        .node("Reshape", &["back", "merged"], "y", &[])
        .output("y")
}

#[test]
fn attention_written_out_is_one_kernel_or_several_as_the_task_says() {
    let task = ModelTask { seq_len: Some(32), ..train(2) };
    let fused = attention().graph(&task);
    let found = fused.nodes.iter().find(|n| matches!(n.op, Op::Attention { .. })).unwrap();
    assert_eq!(found.op, Op::Attention { heads: 4, dropout: false, mask: true });
    // The key comes as it was before it was turned.
    assert!(found.inputs.iter().all(|id| *fused.tensor(*id).shape.last().unwrap() == 16));
    assert!(ops(&fused).iter().all(|op| !matches!(op, Op::Softmax | Op::MatMul)));
    assert!(fused.doubts.iter().any(|d| d.contains("without dropout")));
    let eager = attention().graph(&ModelTask { attention: Attention::Eager, ..task });
    assert_eq!(ops(&eager).iter().filter(|op| ***op == Op::MatMul).count(), 2);
    assert_eq!(shape_of(&eager, |op| *op == Op::Softmax), [2, 4, 32, 32]);
}

#[test]
fn functions_written_out_are_recognised() {
    let start = || File::default().input("x", &["batch", "8", "64"]).scalar("half", 0.5).scalar("one", 1.0);
    let gelu = start()
        .scalar("root2", std::f32::consts::SQRT_2)
        .node("Div", &["x", "root2"], "a", &[])
        .node("Erf", &["a"], "b", &[])
        .node("Add", &["b", "one"], "c", &[])
        .node("Mul", &["x", "c"], "d", &[])
        .node("Mul", &["d", "half"], "y", &[])
        .output("y");
    let silu = start().node("Sigmoid", &["x"], "a", &[]).node("Mul", &["x", "a"], "y", &[]).output("y");
    let mean = || [("axes", Attr::Ints(vec![-1]))];
    let norm = start()
        .scalar("two", 2.0)
        .scalar("eps", 1e-5)
        .weight("ln.weight", &[64])
        .weight("ln.bias", &[64])
        .node("ReduceMean", &["x"], "m", &mean())
        .node("Sub", &["x", "m"], "d", &[])
        .node("Pow", &["d", "two"], "q", &[])
        .node("ReduceMean", &["q"], "v", &mean())
        .node("Add", &["v", "eps"], "ve", &[])
        .node("Sqrt", &["ve"], "sd", &[])
        .node("Div", &["d", "sd"], "n", &[])
        .node("Mul", &["n", "ln.weight"], "w", &[])
        .node("Add", &["w", "ln.bias"], "y", &[])
        .output("y");
    let rms = start()
        .scalar("two", 2.0)
        .scalar("eps", 1e-5)
        .weight("norm.weight", &[64])
        .node("Pow", &["x", "two"], "q", &[])
        .node("ReduceMean", &["q"], "v", &mean())
        .node("Add", &["v", "eps"], "ve", &[])
        .node("Sqrt", &["ve"], "sd", &[])
        .node("Div", &["one", "sd"], "r", &[])
        .node("Mul", &["x", "r"], "n", &[])
        .node("Mul", &["norm.weight", "n"], "y", &[])
        .output("y");
    let input = Op::Activation { keeps: Keeps::Input, inplace: false };
    for (file, op, params) in [
        (gelu.clone(), input.clone(), 0),
        (silu, input, 0),
        (norm, Op::Norm(Norm::Layer), 128),
        (rms, Op::Norm(Norm::Rms), 64),
    ] {
        let g = file.graph(&train(2));
        assert_eq!(ops(&g), [&op, &Op::Loss]);
        assert_eq!(g.parameters(), params);
    }
    // What another node reads too cannot be within one kernel.
    let read_twice = gelu.output("b").graph(&train(2));
    assert!(ops(&read_twice).len() > 2);
}

#[test]
fn functions_of_the_file_are_put_in_place() {
    let mut file = File::default()
        .input("x", &["batch", "64"])
        .weight("w", &[64, 32])
        .node("local::Layer", &["x", "w"], "y", &[])
        .output("y");
    file.1.push(proto::Function {
        name: "Layer".to_owned(),
        domain: "local".to_owned(),
        input: vec!["a".to_owned(), "b".to_owned()],
        output: vec!["c".to_owned()],
        node: vec![node("MatMul", &["a", "b"], "t", &[]), node("Tanh", &["t"], "c", &[])],
        attribute_proto: Vec::new(),
    });
    let g = file.clone().graph(&train(3));
    assert_eq!(
        ops(&g),
        [&Op::Linear, &Op::Activation { keeps: Keeps::Output, inplace: false }, &Op::CrossEntropy]
    );
    assert_eq!(g.tensor(g.outputs[0]).shape, [3, 32]);
    // One that calls itself.
    file.1[0].node.push(node("local::Layer", &["a", "b"], "u", &[]));
    assert!(graph(&file.bytes(), &train(3)).unwrap_err().to_string().contains("call each other"));
}

#[test]
fn what_is_not_known_is_said() {
    let file = File::default()
        .input("x", &["batch", "3", "height", "64"])
        .node("custom::Warp", &["x"], "a", &[])
        .node("custom::Warp", &["a"], "y", &[])
        .output("y");
    let g = file.graph(&train(2));
    assert_eq!(ops(&g).iter().filter(|op| ***op == Op::Unknown).count(), 2);
    assert!(g.doubts.iter().any(|d| d.contains("custom::Warp (2 times)")), "{:?}", g.doubts);
    assert!(g.doubts.iter().any(|d| d.contains("dimension height is open and taken for 224")));
}

#[test]
fn bad_files_say_what_is_wrong() {
    let refused = |bytes: &[u8]| graph(bytes, &train(2)).unwrap_err();
    assert!(refused(b"").to_string().contains("empty"));
    assert!(refused(b"PK\x03\x04 not at all").to_string().contains("ONNX"));
    assert!(refused("Größe: 5\n\n".repeat(50).as_bytes()).to_string().contains("ONNX"));
    let whole = perceptron().bytes();
    for end in 1..whole.len() - 12 {
        let e = refused(&whole[..end]).to_string();
        assert!(e.contains("ONNX"), "{end}: {e}");
    }
    let absurd = File::default()
        .input("x", &["batch", "9000000000000000000", "4"])
        .node("Relu", &["x"], "y", &[])
        .output("y");
    assert!(matches!(refused(&absurd.bytes()), Error::Absurd { layer, .. } if layer == "input x"));
    let huge = perceptron().weight("w", &[i64::MAX, 4]).node("MatMul", &["y", "w"], "z", &[]).output("z");
    assert!(graph(&huge.bytes(), &train(2)).is_err());
    let negative = perceptron().weight("w", &[-1]);
    assert!(refused(&negative.bytes()).to_string().contains("tensor w"));
    let mut shapeless = perceptron();
    shapeless.0.input[0].r#type = None;
    assert!(refused(&shapeless.bytes()).to_string().contains("input x"));
}

#[test]
fn an_output_matrix_is_the_embedding_where_it_begins_and_ends_alike() {
    let file = |first: f32, last: f32, there: bool| {
        let mut file = File::default()
            .ids("ids", &["batch", "seq"])
            .weight("wte.weight", &[600, 16])
            .weight("val_1", &[16, 600]);
        for (tensor, ends) in file.0.initializer.iter_mut().zip([(1.0, 2.0), (first, last)]) {
            let mut data = vec![0.5_f32; 9600];
            (data[0], data[9599]) = ends;
            if there {
                tensor.raw_data = data.iter().flat_map(|v| v.to_le_bytes()).collect();
            }
        }
        file.node("Gather", &["wte.weight", "ids"], "e", &[])
            .node("MatMul", &["e", "val_1"], "y", &[])
            .output("y")
    };
    let task = ModelTask { seq_len: Some(8), ..train(2) };
    assert_eq!(file(1.0, 2.0, true).graph(&task).parameters(), 9600);
    assert_eq!(file(1.0, 2.5, true).graph(&task).parameters(), 2 * 9600);
    let nobody_knows = file(1.0, 2.0, false).graph(&task);
    assert_eq!(nobody_knows.parameters(), 2 * 9600);
    assert!(nobody_knows.doubts[0].contains("may be tied"));
}

/// Nothing looks through all nodes for each of them: this takes a second or two, and hours if something did.
#[test]
fn a_hundred_thousand_nodes() {
    let mut file = File::default().input("x", &["batch", "8"]).scalar("half", 0.5);
    for i in 0..25_000 {
        let name = |j: usize| if i + j == 0 { "x".to_owned() } else { format!("v{}", 4 * i + j) };
        file = file
            .node("Relu", &[&name(0)], &name(1), &[])
            .node("Mul", &[&name(1), "half"], &name(2), &[])
            .node("Cast", &[&name(2)], &name(3), &[])
            .node("Add", &[&name(3), &name(2)], &name(4), &[]);
    }
    let start = std::time::Instant::now();
    let g = file.output("v100000").graph(&train(2));
    assert!(g.nodes.len() > 70_000, "{}", g.nodes.len());
    assert!(start.elapsed().as_secs() < 60);
}

#[test]
fn a_node_that_reads_itself_is_refused() {
    let file = File::default().input("x", &["batch", "8"]).node("Cast", &["y"], "y", &[]).output("y");
    assert!(graph(&file.bytes(), &train(2)).unwrap_err().to_string().contains("made or read before"));
}

/// Whatever bytes: a graph or an error. Seeds are models with a few bytes changed, as random ones do not
/// get past the first field.
#[test]
fn hostile_bytes_never_panic() {
    let seeds =
        [perceptron().bytes(), attention().bytes(), convolutions(["getitem", "y"], ["p", "q"]).bytes()];
    carma_seeded::check!(3000).with_type::<(u8, u64, Vec<(u16, u8)>)>().for_each(|(seed, batch, changes)| {
        let mut bytes = seeds[usize::from(*seed) % seeds.len()].clone();
        for (at, byte) in changes.iter().take(6) {
            let at = usize::from(*at) % bytes.len();
            bytes[at] = *byte;
        }
        let task = ModelTask { batch_size: *batch, seq_len: Some(u64::from(*seed)), ..ModelTask::default() };
        let _ = graph(&bytes, &task);
    });
    carma_seeded::check!(3000).with_type::<Vec<u8>>().for_each(|bytes| {
        let _ = graph(bytes, &ModelTask::default());
    });
}

#[test]
fn a_model_in_which_nothing_takes_memory_is_refused() {
    let empty = File::default().input("x", &["0", "4"]).node("Relu", &["x"], "y", &[]).output("y");
    let known = crate::estimators::Known { onnx: Some(empty.bytes()), ..Default::default() };
    let platform = crate::Platform::lookup("H200", (2, 11)).unwrap();
    let task = ModelTask { mode: Mode::Infer, ..train(1) };
    let answers = crate::estimators::run("allocator/onnx", &known, &task, &platform).unwrap();
    let error = answers[0].result.as_ref().unwrap_err().to_string();
    assert!(error.contains("nothing in it takes memory"), "{error}");
}
