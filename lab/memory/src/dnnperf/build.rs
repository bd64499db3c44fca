//! Graphs of the random models of carma's data sets, from their rows (docs/research/datasets.md; the same models as
//! `dataset/python/families.py` makes in PyTorch).

use carma_memory::Error;
use carma_memory::graph::{Builder, Graph, Keeps, Norm, Number, Op, ParamId, TensorId};
use std::collections::BTreeMap;

/// A row: cells by column.
pub type Cells = BTreeMap<String, String>;

/// The graph of a row's model, with its batch and its loss.
///
/// # Errors
/// A cell that is missing or not as expected, an unknown family or block; says which.
pub fn graph(cells: &Cells) -> Result<Graph, Error> {
    let row = Row { cells };
    match row.cell("family") {
        "mlp" => mlp(&row),
        "cnn" => cnn(&row),
        "transformer" => transformer(&row),
        other => Err(Error::bad("family", format!("`{other}` is none of mlp, cnn, transformer"))),
    }
}

struct Row<'a> {
    cells: &'a Cells,
}

impl Row<'_> {
    fn cell(&self, column: &str) -> &str {
        self.cells.get(column).map(|c| c.trim()).unwrap_or_default()
    }

    fn number(&self, column: &str) -> Result<u64, Error> {
        let cell = self.cell(column);
        // An empty cell is the default, which is 0 or stands for "none".
        if cell.is_empty() { Ok(0) } else { size(column, cell) }
    }

    fn flag(&self, column: &str) -> bool {
        self.cell(column).eq_ignore_ascii_case("true")
    }

    fn dropout(&self) -> bool {
        self.cell("dropout").parse::<f64>().is_ok_and(|p| p > 0.0)
    }
}

/// A size in a cell. At most 2^32 - 1, so that sums and products of two stay within 64 bits.
fn size(column: &str, text: &str) -> Result<u64, Error> {
    let bad = |_| Error::bad(column, format!("`{text}` is no whole number below 2^32"));
    text.parse::<u32>().map(u64::from).map_err(bad)
}

/// What autograd keeps of a function, by its class in PyTorch.
fn keeps(function: &str) -> Keeps {
    match function {
        "ReLU" | "Tanh" | "Sigmoid" => Keeps::Output,
        "Identity" => Keeps::Nothing,
        _ => Keeps::Input,
    }
}

/// An elementwise function; PReLU has a parameter.
fn act(b: &mut Builder, function: &str, inplace: bool, x: TensorId) -> Result<TensorId, Error> {
    let keeps = keeps(function);
    if function != "PReLU" {
        return b.activation("act", keeps, inplace, x);
    }
    let (slope, shape) = (b.param("act.weight", &[1])?, b.shape(x).to_vec());
    b.node("act", Op::Activation { keeps, inplace }, &[x], &[slope], &shape, Number::Float)
}

/// The loop around a model: labels, cross entropy.
fn finish(mut b: Builder, out: TensorId) -> Result<Graph, Error> {
    let mut labels = b.shape(out).to_vec();
    labels.pop();
    let labels = b.input("labels", &labels, Number::Int64)?;
    b.node("loss", Op::CrossEntropy, &[out, labels], &[], &[1], Number::Float)?;
    Ok(b.finish(vec![out]))
}

fn mlp(row: &Row<'_>) -> Result<Graph, Error> {
    let mut b = Builder::new("mlp");
    let function = row.cell("activation");
    let mut x = b.input("input", &[row.number("batch_size")?, row.number("inputs")?], Number::Float)?;
    for (i, width) in row.cell("widths").split('-').enumerate() {
        let width = size("widths", width)?;
        x = b.linear(&format!("linear{i}"), x, width, true)?;
        if row.flag("batch_norm") {
            x = b.norm(&format!("norm{i}"), Norm::Batch, x, width, true)?;
        }
        x = act(&mut b, function, row.flag("inplace"), x)?;
        if row.dropout() {
            x = b.like(&format!("drop{i}"), Op::Dropout { inplace: false }, &[x])?;
        }
    }
    let out = b.linear("last", x, row.number("outputs")?, true)?;
    finish(b, out)
}

/// Builds convolutional blocks.
struct Cnn<'a> {
    b: Builder,
    normed: bool,
    function: &'a str,
    inplace: bool,
}

impl Cnn<'_> {
    fn conv(
        &mut self,
        x: TensorId,
        outs: u64,
        kernel: u64,
        stride: u64,
        groups: u64,
    ) -> Result<TensorId, Error> {
        let shape = self.b.shape(x).to_vec();
        let [batch, _, side, _] = shape[..] else {
            return Err(Error::bad("blocks", "a convolution of what has no image"));
        };
        // Padding of half a kernel.
        let side = (side + 2 * (kernel / 2)).saturating_sub(kernel) / stride.max(1) + 1;
        self.b.conv("conv", x, &[batch, outs, side, side], &[kernel, kernel], groups, !self.normed)
    }

    fn norm(&mut self, x: TensorId) -> Result<TensorId, Error> {
        let width = self.b.shape(x).get(1).copied().unwrap_or(1);
        if self.normed { self.b.norm("norm", Norm::Batch, x, width, true) } else { Ok(x) }
    }

    fn act(&mut self, x: TensorId, inplace: bool) -> Result<TensorId, Error> {
        act(&mut self.b, self.function, inplace, x)
    }

    fn pool(&mut self, op: Op, x: TensorId) -> Result<TensorId, Error> {
        let mut shape = self.b.shape(x).to_vec();
        shape.iter_mut().skip(2).for_each(|side| *side /= 2);
        self.b.node("pool", op, &[x], &[], &shape, Number::Float)
    }

    fn full(
        &mut self,
        x: TensorId,
        outs: u64,
        kernel: u64,
        stride: u64,
        groups: u64,
    ) -> Result<TensorId, Error> {
        let x = self.conv(x, outs, kernel, stride, groups)?;
        let x = self.norm(x)?;
        self.act(x, self.inplace)
    }

    fn block(&mut self, word: &str, x: TensorId, dropout: bool) -> Result<TensorId, Error> {
        let block = Block::parse(word)?;
        let channels = self.b.shape(x).get(1).copied().unwrap_or(1);
        let y = match block.kind {
            'p' => return self.pool(Op::MaxPool, x),
            'c' => self.full(x, block.outs, block.kernel, block.stride, 1)?,
            's' => {
                let y = self.full(x, channels, block.kernel, block.stride, channels)?;
                self.full(y, block.outs, 1, 1, 1)?
            }
            'r' => {
                let y = self.full(x, block.outs, 3, block.stride, 1)?;
                let y = self.conv(y, block.outs, 3, 1, 1)?;
                let y = self.norm(y)?;
                let skip = if channels == block.outs && block.stride == 1 {
                    x
                } else {
                    let skip = self.conv(x, block.outs, 1, block.stride, 1)?;
                    self.norm(skip)?
                };
                let y = self.b.like("add", Op::Add { inplace: false }, &[y, skip])?;
                self.act(y, self.inplace)?
            }
            't' => {
                let y = self.conv(x, block.outs, 1, 1, 1)?;
                self.pool(Op::AvgPool, y)?
            }
            _ => {
                let y = self.norm(x)?;
                let y = self.act(y, self.inplace && self.normed)?;
                let y = self.conv(y, block.outs, 3, 1, 1)?;
                let mut shape = self.b.shape(x).to_vec();
                if let Some(width) = shape.get_mut(1) {
                    *width += block.outs;
                }
                self.b.node("cat", Op::Cat, &[x, y], &[], &shape, Number::Float)?
            }
        };
        if dropout && matches!(block.kind, 'c' | 's') {
            return self.b.like("drop", Op::Dropout { inplace: false }, &[y]);
        }
        Ok(y)
    }
}

/// A word such as `c64k3s1`.
struct Block {
    kind: char,
    outs: u64,
    kernel: u64,
    stride: u64,
}

impl Block {
    fn parse(word: &str) -> Result<Self, Error> {
        let bad = || Error::bad("blocks", format!("`{word}` is no block"));
        let mut chars = word.chars();
        let kind = chars.next().filter(|k| "crdspt".contains(*k)).ok_or_else(bad)?;
        let rest = chars.as_str();
        let (rest, stride) = rest.split_once('s').unwrap_or((rest, ""));
        let (outs, kernel) = rest.split_once('k').unwrap_or((rest, ""));
        let number = |text: &str, default| {
            if text.is_empty() { Ok(default) } else { size("blocks", text) }
        };
        Ok(Self { kind, outs: number(outs, 0)?, kernel: number(kernel, 3)?, stride: number(stride, 1)? })
    }
}

fn cnn(row: &Row<'_>) -> Result<Graph, Error> {
    let mut cnn = Cnn {
        b: Builder::new("cnn"),
        normed: row.flag("batch_norm"),
        function: row.cell("activation"),
        inplace: row.flag("inplace"),
    };
    let (batch, side) = (row.number("batch_size")?, row.number("image")?);
    let channels = row.number("in_channels")?.max(1);
    let mut x = cnn.b.input("input", &[batch, channels, side, side], Number::Float)?;
    for word in row.cell("blocks").split('-') {
        x = cnn.block(word, x, row.dropout())?;
    }
    let width = cnn.b.shape(x).get(1).copied().unwrap_or(1);
    x = cnn.b.node("mean", Op::AvgPool, &[x], &[], &[batch, width, 1, 1], Number::Float)?;
    x = cnn.b.view("flatten", x, &[batch, width])?;
    for hidden in row.cell("head").split('-').filter(|h| !h.is_empty()) {
        x = cnn.b.linear("head", x, size("head", hidden)?, true)?;
        x = cnn.act(x, cnn.inplace)?;
        if row.dropout() {
            x = cnn.b.like("drop", Op::Dropout { inplace: false }, &[x])?;
        }
    }
    let out = cnn.b.linear("last", x, row.number("classes")?, true)?;
    finish(cnn.b, out)
}

/// Builds blocks of attention.
struct Blocks<'a> {
    b: Builder,
    wide: u64,
    heads: u64,
    kv_heads: u64,
    inner: u64,
    function: &'a str,
    dropout: bool,
    modern: bool,
    pre: bool,
    mask: bool,
}

impl Blocks<'_> {
    fn norm(&mut self, x: TensorId) -> Result<TensorId, Error> {
        let norm = if self.modern { Norm::Rms } else { Norm::Layer };
        self.b.norm("norm", norm, x, self.wide, !self.modern)
    }

    fn drop(&mut self, x: TensorId) -> Result<TensorId, Error> {
        if self.dropout { self.b.like("drop", Op::Dropout { inplace: false }, &[x]) } else { Ok(x) }
    }

    fn attention(&mut self, x: TensorId, memory: TensorId) -> Result<TensorId, Error> {
        let (bias, head) = (!self.modern, self.wide / self.heads.max(1));
        let q = self.b.linear("query", x, self.heads * head, bias)?;
        let k = self.b.linear("key", memory, self.kv_heads * head, bias)?;
        let v = self.b.linear("value", memory, self.kv_heads * head, bias)?;
        let op = Op::Attention { heads: self.heads, dropout: self.dropout, mask: self.mask };
        let y = self.b.like("attention", op, &[q, k, v])?;
        self.b.linear("out", y, self.wide, bias)
    }

    fn feed(&mut self, x: TensorId) -> Result<TensorId, Error> {
        if self.modern {
            let gate = self.b.linear("gate", x, self.inner, false)?;
            let gate = self.b.activation("silu", Keeps::Input, false, gate)?;
            let up = self.b.linear("up", x, self.inner, false)?;
            let y = self.b.like("gated", Op::Mul, &[gate, up])?;
            return self.b.linear("down", y, self.wide, false);
        }
        let y = self.b.linear("wide", x, self.inner, true)?;
        let y = act(&mut self.b, self.function, false, y)?;
        self.b.linear("narrow", y, self.wide, true)
    }

    /// `x + f(norm(x))`, or `norm(x + f(x))`.
    fn around(
        &mut self,
        x: TensorId,
        f: impl FnOnce(&mut Self, TensorId) -> Result<TensorId, Error>,
    ) -> Result<TensorId, Error> {
        let inner = if self.pre { self.norm(x)? } else { x };
        let y = f(self, inner)?;
        let y = self.drop(y)?;
        let y = self.b.like("add", Op::Add { inplace: false }, &[x, y])?;
        if self.pre { Ok(y) } else { self.norm(y) }
    }

    /// A block; with cross attention where there is a memory.
    fn block(&mut self, x: TensorId, memory: Option<TensorId>) -> Result<TensorId, Error> {
        self.b.begin_block();
        let mut x = self.around(x, |this, y| this.attention(y, y))?;
        if let Some(memory) = memory {
            x = self.around(x, |this, y| this.attention(y, memory))?;
        }
        let x = self.around(x, Self::feed)?;
        self.b.end_block();
        Ok(x)
    }

    /// Tables of tokens and, except in modern models, of positions.
    fn tables(&mut self, vocab: u64, length: u64) -> Result<Vec<ParamId>, Error> {
        let mut tables = vec![self.b.param("tokens.weight", &[vocab, self.wide])?];
        if !self.modern {
            tables.push(self.b.param("positions.weight", &[length, self.wide])?);
        }
        Ok(tables)
    }

    fn embed(&mut self, tokens: TensorId, tables: &[ParamId]) -> Result<TensorId, Error> {
        let mut shape = self.b.shape(tokens).to_vec();
        shape.push(self.wide);
        let table = tables.get(..1).unwrap_or_default();
        let mut x = self.b.node("tokens", Op::Embedding, &[tokens], table, &shape, Number::Float)?;
        if let Some(positions) = tables.get(1) {
            let y =
                self.b.node("positions", Op::Embedding, &[], &[*positions], &shape[1..], Number::Float)?;
            x = self.b.like("add", Op::Add { inplace: false }, &[x, y])?;
        }
        self.drop(x)
    }
}

fn transformer(row: &Row<'_>) -> Result<Graph, Error> {
    let arch = row.cell("arch");
    let (batch, length, vocab) = (row.number("batch_size")?, row.number("seq_len")?, row.number("vocab")?);
    let heads = row.number("heads")?.max(1);
    let modern = arch == "llama";
    let mut blocks = Blocks {
        b: Builder::new("transformer"),
        wide: row.number("embedding")?,
        heads,
        kv_heads: Some(row.number("kv_heads")?).filter(|n| *n > 0).unwrap_or(heads),
        inner: row.number("ff")?,
        function: row.cell("activation"),
        dropout: row.dropout(),
        modern,
        pre: row.flag("norm_first"),
        mask: matches!(arch, "decoder" | "llama"),
    };
    let layers = row.number("layers")?;
    if layers > 1000 {
        return Err(Error::bad("layers", format!("{layers} blocks; at most 1000 are built")));
    }
    let tokens = blocks.b.input("tokens", &[batch, length], Number::Int64)?;
    let tables = blocks.tables(vocab, length)?;
    let mut x = blocks.embed(tokens, &tables)?;
    for _ in 0..layers {
        x = blocks.block(x, None)?;
    }
    if arch == "encoder-decoder" {
        let memory = x;
        x = blocks.embed(tokens, &tables)?;
        for _ in 0..layers {
            x = blocks.block(x, Some(memory))?;
        }
    }
    x = blocks.norm(x)?;
    let classes = row.number("classes")?;
    if classes > 0 {
        x = blocks.b.node("mean", Op::AvgPool, &[x], &[], &[batch, blocks.wide], Number::Float)?;
        let out = blocks.b.linear("head", x, classes, true)?;
        return finish(blocks.b, out);
    }
    let out = if row.flag("tied") {
        blocks.b.node("head", Op::Linear, &[x], &[], &[batch, length, vocab], Number::Float)?
    } else {
        blocks.b.linear("head", x, vocab, false)?
    };
    finish(blocks.b, out)
}
