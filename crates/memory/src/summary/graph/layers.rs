//! Layer by layer: the node or nodes of each.

use super::flow::{Flow, elements};
use super::plan::Plan;
use super::role::Role;
use super::row::{Dims, LayerRow};
use crate::graph::{Keeps, Norm, Number, Op, TensorId};
use crate::{Error, Mode};

/// Layers that stand for what a container hides.
const MAX_INSIDE: u64 = 64;
/// How much wider than its ends a hidden container is taken to be at its widest, as a transformer's MLP is. Without a backward
/// pass that is its peak.
const WIDENS: u64 = 4;

impl Flow<'_> {
    // --- layers ---

    pub(super) fn leaf(&mut self, row: &LayerRow) -> Result<(), Error> {
        self.step += 1;
        if row.role != Role::Identity {
            self.after_norm = matches!(row.role, Role::Norm(_));
            self.after_product = matches!(row.role, Role::Linear | Role::Conv { .. });
            self.after_activation = matches!(row.role, Role::Activation(Keeps::Output));
        }
        match row.role {
            Role::Conv { transposed } => self.conv(row, transposed),
            Role::Linear => self.linear(row),
            Role::MultiHead => self.multi_head(row),
            Role::Embedding => self.embedding(row),
            Role::Recurrent { gates } => self.recurrent(row, gates),
            Role::MaxPool => self.pool(row, Op::MaxPool),
            Role::AvgPool => self.pool(row, Op::AvgPool),
            Role::Identity => {
                self.note_heads(row);
                Ok(())
            }
            Role::Reshape | Role::Move => self.reshape(row),
            Role::Loss => Ok(()),
            Role::Norm(norm) => self.norm(row, norm),
            Role::Activation(keeps) => {
                // Models with known classes work in place, but not on what a shortcut reads as well.
                let shared = self.seen.get(self.cur).is_some_and(|s| s.block_end);
                let result = self.timm && matches!(row.kind.as_str(), "LeakyReLU" | "ELU" | "CELU" | "SELU");
                let keeps = if result { Keeps::Output } else { keeps };
                let inplace = keeps == Keeps::Output && !shared;
                self.elementwise(row, Op::Activation { keeps, inplace })
            }
            Role::Softmax => {
                self.elementwise(row, Op::Softmax)?;
                self.scores = false;
                Ok(())
            }
            Role::Dropout if self.dropout => self.elementwise(row, Op::Dropout { inplace: false }),
            // Dropout of attention is printed only where the scores are written out.
            Role::Dropout => match row.output.as_deref() {
                Some(want) if want.len() == 4 => {
                    if matches!(self.attention(want), Some(Plan::Scores(_))) {
                        self.cur = self.obtain(&row.name, want)?;
                    }
                    self.softmax(&row.name)
                }
                _ => Ok(()),
            },
            Role::DropPath => self.elementwise(row, Op::Copy),
            Role::Scale => self.scale(row),
            Role::Windows => self.windows(row),
            Role::Holder | Role::Block => self.unknown(row),
        }
    }

    pub(super) fn input_of(&mut self, row: &LayerRow, otherwise: Option<&[u64]>) -> Result<usize, Error> {
        match (row.input.as_deref(), otherwise) {
            (Some(want), _) if !want.is_empty() => self.obtain(&row.name, want),
            (_, Some(want)) => self.obtain(&row.name, want),
            _ => Ok(self.cur),
        }
    }

    pub(super) fn elementwise(&mut self, row: &LayerRow, op: Op) -> Result<(), Error> {
        let at = self.input_of(row, row.output.as_deref())?;
        let params = self.params(row, &[])?;
        let x = self.read(at);
        let shape = self.shape(at).to_vec();
        let id = self.b.node(&row.name, op, &[x], &params, &shape, Number::Float)?;
        self.push(id);
        Ok(())
    }

    pub(super) fn norm(&mut self, row: &LayerRow, norm: Norm) -> Result<(), Error> {
        let at = match self.branch(row).filter(|at| Some(self.shape(*at)) == row.output.as_deref()) {
            Some(at) => at,
            None => self.input_of(row, row.output.as_deref())?,
        };
        let features = if row.params > 0 && row.params.is_multiple_of(2) && norm != Norm::Rms {
            row.params / 2
        } else {
            row.params
        };
        let mut params = self.params(row, &[("weight", vec![features]), ("bias", vec![features])])?;
        if norm == Norm::Batch && !row.recursive {
            let channels = self.shape(at).get(1).copied().unwrap_or(features).max(1);
            params.push(self.b.buffer(format!("{}.running_mean", row.name), &[channels])?);
            params.push(self.b.buffer(format!("{}.running_var", row.name), &[channels])?);
            params.push(self.b.buffer(format!("{}.num_batches_tracked", row.name), &[2])?);
        }
        let x = self.read(at);
        let shape = self.shape(at).to_vec();
        let id = self.b.node(&row.name, Op::Norm(norm), &[x], &params, &shape, Number::Float)?;
        self.push(id);
        Ok(())
    }

    /// A factor a channel: the product keeps its input, since the factor is trained.
    pub(super) fn scale(&mut self, row: &LayerRow) -> Result<(), Error> {
        let at = self.input_of(row, row.output.as_deref())?;
        let params = if row.params > 0 {
            self.params(row, &[])?
        } else {
            // torchsummary counts only parameters that are called weight or bias.
            let channels = self.shape(at).last().copied().unwrap_or(1).max(1);
            vec![self.b.param(format!("{}.gamma", row.name), &[channels])?]
        };
        let x = self.read(at);
        let shape = self.shape(at).to_vec();
        let id = self.b.node(&row.name, Op::Mul, &[x], &params, &shape, Number::Float)?;
        self.push(id);
        Ok(())
    }

    pub(super) fn pool(&mut self, row: &LayerRow, op: Op) -> Result<(), Error> {
        let Some(out) = row.output.clone() else { return self.unknown(row) };
        let at = match row.input.as_deref() {
            Some(want) => self.obtain(&row.name, want)?,
            None => self.poolable(&out),
        };
        let x = self.read(at);
        // Pools of windows: the batch of the input.
        let mut shape = out;
        if let (Some(first), Some(real)) = (shape.first_mut(), self.shape(at).first()) {
            *first = *real;
        }
        let params = self.params(row, &[])?;
        let id = self.b.node(&row.name, op, &[x], &params, &shape, Number::Float)?;
        self.push(id);
        Ok(())
    }

    /// The last tensor if it has the channels, else the newest that has them and is large enough.
    pub(super) fn poolable(&self, out: &[u64]) -> usize {
        let fits = |s: &[u64]| {
            let same = s.len() == out.len() && s.len() >= 2 && s[1] == out[1];
            same && s.iter().zip(out).skip(2).all(|(a, b)| a >= b)
        };
        if fits(self.shape(self.cur)) {
            return self.cur;
        }
        self.recent().find(|i| fits(&self.seen[*i].shape)).unwrap_or(self.cur)
    }

    pub(super) fn reshape(&mut self, row: &LayerRow) -> Result<(), Error> {
        let Some(out) = row.output.clone() else { return Ok(()) };
        if let Some(want) = row.input.as_deref() {
            self.cur = self.obtain(&row.name, want)?;
        }
        let cur = self.shape(self.cur);
        if cur == out {
            return Ok(());
        }
        let x = self.read(self.cur);
        let same = elements(self.shape(self.cur)) == elements(&out);
        let id = if same && row.role == Role::Reshape {
            self.b.view(&row.name, x, &out)?
        } else {
            self.b.node(&row.name, Op::Copy, &[x], &[], &out, Number::Float)?
        };
        self.push(id);
        Ok(())
    }

    pub(super) fn linear(&mut self, row: &LayerRow) -> Result<(), Error> {
        let Some(out) = row.output.clone() else { return self.unknown(row) };
        let width = out.last().copied().unwrap_or(1).max(1);
        if row.attends && self.shape(self.cur) == out {
            // BEiT multiplies by the weights of query, key and value in a function.
            let x = self.read(self.cur);
            let mut wide = out.clone();
            wide[out.len() - 1] = width.saturating_mul(3);
            let weight = self.b.param(format!("{}.qkv", row.name), &[width.saturating_mul(3), width])?;
            let qkv = self.b.node(
                &format!("{} (qkv)", row.name),
                Op::Linear,
                &[x],
                &[weight],
                &wide,
                Number::Float,
            )?;
            self.attend(&row.name, &[qkv, qkv, qkv], &out)?;
        }
        let at = match row.input.as_deref() {
            Some(want) => self.obtain(&row.name, want)?,
            None => {
                let mut best: Option<(f64, Dims)> = None;
                for inner in [row.params.saturating_sub(width) / width, row.params / width] {
                    if inner == 0 || !row.params.is_multiple_of(width) {
                        continue;
                    }
                    let mut want = out.clone();
                    if let Some(last) = want.last_mut() {
                        *last = inner;
                    }
                    let (cost, _) = self.plan(&want);
                    if best.as_ref().is_none_or(|(c, _)| cost < *c) {
                        best = Some((cost, want));
                    }
                }
                match best {
                    Some((_, want)) => self.obtain(&row.name, &want)?,
                    None => self.cur,
                }
            }
        };
        let at = self.separate(row, at)?;
        let inner = self.shape(at).last().copied().unwrap_or(1);
        let params = self.params(row, &[("weight", vec![width, inner]), ("bias", vec![width])])?;
        let x = self.read(at);
        let mut shape = self.shape(at).to_vec();
        if let Some(last) = shape.last_mut() {
            *last = width;
        }
        let id = self.b.node(&row.name, Op::Linear, &[x], &params, &shape, Number::Float)?;
        let at = self.push(id);
        self.seen[at].product = true;
        Ok(())
    }

    pub(super) fn embedding(&mut self, row: &LayerRow) -> Result<(), Error> {
        let Some(out) = row.output.clone() else { return self.unknown(row) };
        let width = out.last().copied().unwrap_or(1).max(1);
        let ids_shape = &out[..out.len().saturating_sub(1)];
        let ids = self.b.input(&format!("{}.ids", row.name), ids_shape, Number::Int64)?;
        let params = self.params(row, &[("weight", vec![row.params / width, width])])?;
        let id = self.b.node(&row.name, Op::Embedding, &[ids], &params, &out, Number::Float)?;
        self.push(id);
        Ok(())
    }

    pub(super) fn recurrent(&mut self, row: &LayerRow, gates: u64) -> Result<(), Error> {
        let Some(out) = row.output.clone() else { return self.unknown(row) };
        let at = self.input_of(row, None)?;
        let hidden = out.last().copied().unwrap_or(1).max(1);
        let inner = self.shape(at).last().copied().unwrap_or(1);
        let one = gates
            .saturating_mul(hidden)
            .saturating_mul(inner.saturating_add(hidden).saturating_add(2))
            .max(1);
        let layers = (row.params / one).max(1);
        let params = self.params(row, &[])?;
        let x = self.read(at);
        let op = Op::Recurrent { gates, hidden, layers };
        let id = self.b.node(&row.name, op, &[x], &params, &out, Number::Float)?;
        self.push(id);
        Ok(())
    }

    /// Layers inside that are not printed: as many unknown ones as make their numbers.
    pub(super) fn inside(&mut self, row: &LayerRow, out: &[u64]) -> Result<(), Error> {
        let Some(hidden) = row.hidden else { return Ok(()) };
        let batch = self.task.batch_size.max(1);
        let own = elements(out) / batch;
        let rest = hidden.saturating_sub(own);
        let mut large = own.max(elements(self.shape(self.cur)) / batch).max(1);
        if self.task.mode == Mode::Infer {
            large = large.saturating_mul(WIDENS);
        }
        let count = rest.div_ceil(large).min(MAX_INSIDE);
        for i in 0..count {
            let x = self.read(self.cur);
            let shape = [batch, rest / count];
            let id =
                self.b.node(&format!("{}/{i}", row.name), Op::Unknown, &[x], &[], &shape, Number::Float)?;
            self.push(id);
        }
        Ok(())
    }

    /// A layer of which nothing is known: it keeps what it reads and what it makes.
    pub(super) fn unknown(&mut self, row: &LayerRow) -> Result<(), Error> {
        let out = row.output.clone().unwrap_or_else(|| self.shape(self.cur).to_vec());
        if self.seen.is_empty() {
            let id = self.b.input("input", &out, Number::Float)?;
            self.push(id);
        }
        if row.output.is_some()
            && row.kind.contains("Pool")
            && row.params == 0
            && out.len() == self.shape(self.cur).len()
            && out.len() > 2
        {
            return self.pool(row, Op::AvgPool);
        }
        if row.output.is_some() && row.params == 0 && self.shrinks(&out) {
            // A shortcut without weights into a smaller map.
            return self.pool(row, Op::AvgPool);
        }
        if row.params == 0 && out == self.shape(self.cur) {
            self.doubt(format!("{}: {} is not known; taken for nothing", row.name, row.kind));
            return Ok(());
        }
        self.doubt(format!("{}: {} is not known", row.name, row.kind));
        if let Some(want) = row.input.as_deref()
            && want != self.shape(self.cur)
            && let (cost, Plan::Use(at)) = self.plan(want)
            && cost < 3.0
        {
            self.cur = at;
        }
        self.inside(row, &out)?;
        let params = self.params(row, &[])?;
        let x = self.read(self.cur);
        let id = self.b.node(&row.name, Op::Unknown, &[x], &params, &out, Number::Float)?;
        self.push(id);
        Ok(())
    }

    /// The same channels on a smaller map.
    fn shrinks(&self, out: &[u64]) -> bool {
        let cur = self.shape(self.cur);
        let smaller =
            cur.len() == 4 && out.len() == 4 && cur[..2] == out[..2] && cur[2] > out[2] && cur[3] > out[3];
        smaller && out[2] > 0 && out[3] > 0
    }

    /// The loss, unless the task only infers.
    pub(super) fn loss(&mut self, outputs: &[usize]) -> Result<Vec<TensorId>, Error> {
        let mut returned = Vec::new();
        for at in outputs {
            let x = self.read(*at);
            let shape = self.shape(*at).to_vec();
            returned.push(x);
            if self.task.mode == Mode::Infer {
                continue;
            }
            let classes = shape.get(1).copied().unwrap_or(1);
            if shape.len() < 2 || classes <= 1 {
                let labels = self.b.input("targets", &shape, Number::Float32)?;
                self.b.node("loss", Op::Loss, &[x, labels], &[], &[], Number::Float32)?;
                continue;
            }
            // Over the classes, which stand second in maps: the log-softmax has the same size.
            let mut label_shape = shape.clone();
            let logits = if shape.len() > 2 {
                label_shape.remove(1);
                let mut last = label_shape.clone();
                last.push(classes);
                self.b.view("logits", x, &last)?
            } else {
                label_shape.pop();
                x
            };
            let labels = self.b.input("labels", &label_shape, Number::Int64)?;
            self.b.node("loss", Op::CrossEntropy, &[logits, labels], &[], &[], Number::Float32)?;
        }
        Ok(returned)
    }
}
