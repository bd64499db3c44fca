//! Shapes of operators that arrange: reshapes, slices, gathers, concatenations, reductions.

use super::{Call, Value, few};
use crate::onnx::model::{MOST_KNOWN, NumberKind};

impl Call<'_> {
    pub(super) fn arrange(&self) -> Option<Vec<Value>> {
        let one = |v: Value| Some(vec![v]);
        match self.node.op.as_str() {
            "Reshape" => one(self.reshape()?),
            "Flatten" => one(self.flatten()?),
            "Transpose" => one(self.transpose()?),
            "Squeeze" => one(self.squeeze()?),
            "Unsqueeze" => one(self.unsqueeze()?),
            "Concat" => one(self.concat()?),
            "Split" => self.split(),
            "Slice" => one(self.slice()?),
            "Gather" => one(self.gather()?),
            "GatherElements" => {
                let shape = self.input(1)?.shape.clone();
                one(Value::new(shape, self.input(0)?.kind))
            }
            "GatherND" => one(self.gather_nd()?),
            "Expand" => one(self.expand()?),
            "Tile" => one(self.tile()?),
            "Pad" => one(self.pad()?),
            "ArgMax" | "ArgMin" => {
                let v = self.reduce(Some(vec![self.node.int("axis").unwrap_or(0)]))?;
                one(Value::new(v.shape, NumberKind::Int))
            }
            "TopK" => self.top_k(),
            "OneHot" => {
                let mut shape = self.input(0)?.shape.clone();
                let depth = self.input(1)?.scalar()? as u64;
                let axis = self.node.int("axis").unwrap_or(-1);
                let at = Self::axis(axis, shape.len() + 1)?;
                shape.insert(at, depth);
                one(Value::new(shape, self.input(2)?.kind))
            }
            "ConstantOfShape" => {
                let shape = lengths(&self.input(0)?.ints()?)?;
                let kind = self.node.tensor("value").map_or(NumberKind::Float, |c| c.kind);
                one(Value::new(shape, kind))
            }
            "RandomNormalLike" | "RandomUniformLike" | "Bernoulli" | "EyeLike" => {
                one(Value::new(self.input(0)?.shape.clone(), self.input(0)?.kind))
            }
            op if op.starts_with("Reduce") => {
                let axes = self.list("axes", 1);
                one(self.reduce(axes)?)
            }
            _ => None,
        }
    }

    fn reshape(&self) -> Option<Value> {
        let x = self.input(0)?;
        let target = self.list("shape", 1)?;
        let keep_zero = self.node.int("allowzero") == Some(1);
        let mut shape = Vec::with_capacity(target.len());
        let mut open = None;
        for (at, d) in target.iter().enumerate() {
            shape.push(match *d {
                -1 => {
                    open = Some(at);
                    1
                }
                0 if !keep_zero => *x.shape.get(at)?,
                d => u64::try_from(d).ok()?,
            });
        }
        let all = x.shape.iter().try_fold(1_u64, |n, d| n.checked_mul(*d))?;
        let rest = shape.iter().try_fold(1_u64, |n, d| n.checked_mul(*d))?;
        if let Some(at) = open {
            shape[at] = all.checked_div(rest)?;
        }
        Some(x.reshaped(shape))
    }

    fn flatten(&self) -> Option<Value> {
        let x = self.input(0)?;
        let axis = self.node.int("axis").unwrap_or(1);
        let at = usize::try_from(if axis < 0 { axis + x.shape.len() as i64 } else { axis }).ok()?;
        let product = |dims: &[u64]| dims.iter().try_fold(1_u64, |n, d| n.checked_mul(*d));
        let (left, right) = x.shape.split_at_checked(at)?;
        Some(x.reshaped(vec![product(left)?, product(right)?]))
    }

    fn transpose(&self) -> Option<Value> {
        let x = self.input(0)?;
        let rank = x.shape.len();
        let shape: Vec<u64> = match self.node.ints("perm") {
            Some(perm) if perm.len() == rank => {
                perm.iter().map(|p| x.shape.get(usize::try_from(*p).ok()?).copied()).collect::<Option<_>>()?
            }
            Some(_) => return None,
            None => x.shape.iter().rev().copied().collect(),
        };
        let mut v = x.reshaped(shape);
        if rank > 1 {
            v.known = None;
        }
        Some(v)
    }

    fn squeeze(&self) -> Option<Value> {
        let x = self.input(0)?;
        let rank = x.shape.len();
        let axes: Vec<usize> = match self.list("axes", 1) {
            Some(axes) => axes.iter().map(|a| Self::axis(*a, rank)).collect::<Option<_>>()?,
            None => (0..rank).filter(|i| x.shape[*i] == 1).collect(),
        };
        let kept = x.shape.iter().enumerate().filter(|(i, _)| !axes.contains(i)).map(|(_, d)| *d);
        Some(x.reshaped(kept.collect()))
    }

    fn unsqueeze(&self) -> Option<Value> {
        let x = self.input(0)?;
        let axes = self.list("axes", 1)?;
        let rank = x.shape.len() + axes.len();
        let mut at: Vec<usize> = axes.iter().map(|a| Self::axis(*a, rank)).collect::<Option<_>>()?;
        at.sort_unstable();
        let mut shape = x.shape.clone();
        for axis in at {
            if axis > shape.len() {
                return None;
            }
            shape.insert(axis, 1);
        }
        Some(x.reshaped(shape))
    }

    fn concat(&self) -> Option<Value> {
        let x = self.input(0)?;
        let rank = x.shape.len();
        let axis = Self::axis(self.node.int("axis").unwrap_or(0), rank)?;
        let mut shape = x.shape.clone();
        let mut total = 0_u64;
        for v in self.inputs {
            let v = v.as_ref()?;
            if v.shape.len() != rank {
                return None;
            }
            total = total.checked_add(*v.shape.get(axis)?)?;
            // What was exported for one sample grows to the batch with its neighbours.
            shape.iter_mut().zip(&v.shape).for_each(|(a, b)| *a = (*a).max(*b));
        }
        *shape.get_mut(axis)? = total;
        let mut made = Value::new(shape, x.kind);
        if rank == 1 {
            let all: Option<Vec<&Vec<f64>>> =
                self.inputs.iter().map(|v| v.and_then(|v| v.known.as_ref())).collect();
            made.known = all.map(|lists| lists.into_iter().flatten().copied().take(MOST_KNOWN).collect());
        }
        Some(made)
    }

    fn split(&self) -> Option<Vec<Value>> {
        let x = self.input(0)?;
        let axis = Self::axis(self.node.int("axis").unwrap_or(0), x.shape.len())?;
        let n = self.node.outputs.len().max(1);
        let all = *x.shape.get(axis)?;
        let sizes: Vec<u64> = match self.list("split", 1) {
            Some(sizes) => lengths(&sizes)?,
            None => {
                let part = all.div_ceil(n as u64);
                (0..n as u64).map(|i| part.min(all.saturating_sub(i.saturating_mul(part)))).collect()
            }
        };
        if sizes.len() < n || sizes.iter().try_fold(0_u64, |s, d| s.checked_add(*d))? != all {
            return None;
        }
        let mut start = 0_usize;
        let made = sizes.into_iter().map(|size| {
            let mut v = x.reshaped(x.shape.clone());
            v.shape[axis] = size;
            let known = x.known.as_ref().filter(|_| x.shape.len() == 1);
            v.known = known.and_then(|k| Some(k.get(start..start.checked_add(size as usize)?)?.to_vec()));
            start = start.saturating_add(size as usize);
            v
        });
        Some(made.collect())
    }

    fn slice(&self) -> Option<Value> {
        let x = self.input(0)?;
        let rank = x.shape.len();
        let (starts, ends) = (self.list("starts", 1)?, self.list("ends", 2)?);
        let axes = self.list("axes", 3).unwrap_or_else(|| (0..starts.len() as i64).collect());
        let steps = self.input(4).map_or_else(|| Some(vec![1; starts.len()]), Value::ints)?;
        let mut v = x.reshaped(x.shape.clone());
        for (((start, end), axis), step) in starts.iter().zip(&ends).zip(&axes).zip(&steps) {
            let axis = Self::axis(*axis, rank)?;
            let size = i64::try_from(*x.shape.get(axis)?).ok()?;
            let from_end = |i: i64| if i < 0 { i.saturating_add(size) } else { i };
            let count = if *step > 0 {
                let (from, to) = (from_end(*start).clamp(0, size), from_end(*end).clamp(0, size));
                (to - from).max(0).checked_add(*step - 1)? / step
            } else if *step < 0 {
                let (from, to) = (from_end(*start).clamp(-1, size - 1), from_end(*end).clamp(-1, size - 1));
                (from - to).max(0).checked_add(step.checked_neg()? - 1)? / step.checked_neg()?
            } else {
                return None;
            };
            v.shape[axis] = u64::try_from(count).ok()?;
            if rank == 1 {
                let from = usize::try_from(from_end(*start).clamp(0, size)).ok()?;
                let every = usize::try_from(*step).ok();
                v.known = x.known.as_ref().zip(every).and_then(|(k, every)| {
                    Some(k.get(from..)?.iter().step_by(every.max(1)).take(count as usize).copied().collect())
                });
            }
        }
        if rank != 1 && v.shape != x.shape {
            v.known = None;
        }
        Some(v)
    }

    fn gather(&self) -> Option<Value> {
        let (x, indices) = (self.input(0)?, self.input(1)?);
        let axis = Self::axis(self.node.int("axis").unwrap_or(0), x.shape.len())?;
        let (before, after) = x.shape.split_at_checked(axis)?;
        let shape = [before, &indices.shape, after.get(1..)?].concat();
        let mut v = Value::new(shape, x.kind);
        if x.shape.len() == 1
            && let (Some(known), Some(at)) = (&x.known, &indices.known)
        {
            let n = known.len() as i64;
            let pick = |i: &f64| {
                let i = *i as i64;
                known.get(usize::try_from(if i < 0 { i + n } else { i }).ok()?).copied()
            };
            v.known = at.iter().map(pick).collect();
        }
        Some(v)
    }

    fn gather_nd(&self) -> Option<Value> {
        let (x, indices) = (self.input(0)?, self.input(1)?);
        let skip = usize::try_from(self.node.int("batch_dims").unwrap_or(0)).ok()?;
        let (depth, outer) = indices.shape.split_last()?;
        let rest = x.shape.get(skip.checked_add(usize::try_from(*depth).ok()?)?..)?;
        Some(Value::new([outer, rest].concat(), x.kind))
    }

    fn expand(&self) -> Option<Value> {
        let x = self.input(0)?;
        let target = self.input(1)?.ints()?;
        let rank = target.len().max(x.shape.len());
        let at = |i: usize| (i + x.shape.len()).checked_sub(rank).map_or(1, |j| x.shape[j]);
        let shape: Option<Vec<u64>> = (0..rank)
            .map(|i| match (i + target.len()).checked_sub(rank).map(|j| target[j]) {
                Some(d) if d >= 0 => Some(if d == 1 { at(i) } else { d as u64 }),
                // A dimension that stays.
                _ => Some(at(i)),
            })
            .collect();
        let shape = shape?;
        let known = x.scalar().and_then(|v| Some(vec![v; few(&shape)?]));
        Some(Value { shape, kind: x.kind, known, varies: x.varies })
    }

    fn tile(&self) -> Option<Value> {
        let x = self.input(0)?;
        let times = lengths(&self.input(1)?.ints()?)?;
        if times.len() != x.shape.len() {
            return None;
        }
        let shape = x.shape.iter().zip(&times).map(|(d, t)| d.checked_mul(*t)).collect::<Option<_>>()?;
        Some(Value::new(shape, x.kind))
    }

    fn pad(&self) -> Option<Value> {
        let x = self.input(0)?;
        let pads = match self.node.ints("paddings") {
            Some(pads) => pads.to_vec(),
            None => self.list("pads", 1)?,
        };
        let rank = x.shape.len();
        let axes: Vec<usize> = match self.input(3).and_then(Value::ints) {
            Some(axes) => axes.iter().map(|a| Self::axis(*a, rank)).collect::<Option<_>>()?,
            None => (0..rank).collect(),
        };
        let mut shape = x.shape.clone();
        for (i, axis) in axes.iter().enumerate() {
            let (begin, end) = (*pads.get(i)?, *pads.get(axes.len() + i)?);
            let size = i64::try_from(shape[*axis]).ok()?.checked_add(begin)?.checked_add(end)?;
            shape[*axis] = u64::try_from(size).ok()?;
        }
        Some(Value::new(shape, x.kind))
    }

    fn reduce(&self, axes: Option<Vec<i64>>) -> Option<Value> {
        let x = self.input(0)?;
        let rank = x.shape.len();
        let axes: Vec<usize> = match axes.filter(|a| !a.is_empty()) {
            Some(axes) => axes.iter().map(|a| Self::axis(*a, rank)).collect::<Option<_>>()?,
            None if self.node.int("noop_with_empty_axes") == Some(1) => Vec::new(),
            None => (0..rank).collect(),
        };
        let keep = self.node.int("keepdims").unwrap_or(1) == 1;
        let shape = x.shape.iter().enumerate();
        let shape = shape.filter_map(|(i, d)| match axes.contains(&i) {
            true => keep.then_some(1),
            false => Some(*d),
        });
        Some(Value::new(shape.collect(), x.kind))
    }

    fn top_k(&self) -> Option<Vec<Value>> {
        let x = self.input(0)?;
        let k = match self.node.int("k") {
            Some(k) => k,
            None => self.input(1)?.scalar()? as i64,
        };
        let axis = Self::axis(self.node.int("axis").unwrap_or(-1), x.shape.len())?;
        let mut shape = x.shape.clone();
        *shape.get_mut(axis)? = u64::try_from(k).ok()?;
        Some(vec![Value::new(shape.clone(), x.kind), Value::new(shape, NumberKind::Int)])
    }
}

fn lengths(ints: &[i64]) -> Option<Vec<u64>> {
    ints.iter().map(|d| u64::try_from(*d).ok()).collect()
}
