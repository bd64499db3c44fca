//! Operators that are computed, as all that they read is known.

use super::{Call, Value, broadcast, few, fold};
use crate::onnx::model::NumberKind;

impl Call<'_> {
    /// What the node makes, with its values; `None` where something is not known or too large.
    pub(super) fn infer_known(&self) -> Option<Vec<Value>> {
        let one = |v: Value| Some(vec![v]);
        match self.node.op.as_str() {
            "Constant" => {
                let c = self.node.constant()?;
                one(Value { shape: c.shape, kind: c.kind, known: c.values, varies: false })
            }
            "Shape" => {
                let shape = &self.input(0)?.shape;
                let rank = shape.len() as i64;
                let at = |i: i64| (if i < 0 { i + rank } else { i }).clamp(0, rank) as usize;
                let (start, end) =
                    (at(self.node.int("start").unwrap_or(0)), at(self.node.int("end").unwrap_or(rank)));
                let part: Vec<f64> = shape.get(start..end.max(start))?.iter().map(|d| *d as f64).collect();
                one(Value::known(vec![part.len() as u64], NumberKind::Int, part))
            }
            "Size" => one(Value::known(Vec::new(), NumberKind::Int, vec![self.input(0)?.elements() as f64])),
            "Identity" => one(self.whole(0)?.clone()),
            "Cast" | "CastLike" => {
                let x = self.whole(0)?;
                let kind = self.cast_kind()?;
                let known = x.known.as_ref()?;
                let values = known.iter().map(|v| match kind {
                    NumberKind::Float => *v,
                    NumberKind::Int => v.trunc(),
                    NumberKind::Bool => f64::from(*v != 0.0),
                });
                one(Value::known(x.shape.clone(), kind, values.collect()))
            }
            "Range" => {
                let ends = [0, 1, 2].map(|i| self.input(i).and_then(Value::scalar));
                let [Some(start), Some(limit), Some(step)] = ends else { return None };
                let n = ((limit - start) / step).ceil().max(0.0);
                if !n.is_finite() {
                    return None;
                }
                let shape = vec![n as u64];
                let kind = self.input(0)?.kind;
                match few(&shape) {
                    Some(n) => {
                        one(Value::known(shape, kind, (0..n).map(|i| start + i as f64 * step).collect()))
                    }
                    None => one(Value::new(shape, kind)),
                }
            }
            "ConstantOfShape" => {
                let shape: Option<Vec<u64>> =
                    self.input(0)?.ints()?.iter().map(|d| u64::try_from(*d).ok()).collect();
                let (shape, fill) = (shape?, self.node.tensor("value"));
                let n = few(&shape)?;
                let value = fill.as_ref().and_then(|c| c.values.as_ref()?.first().copied()).unwrap_or(0.0);
                one(Value::known(shape, fill.map_or(NumberKind::Float, |c| c.kind), vec![value; n]))
            }
            "ReduceProd" | "ReduceSum" | "ReduceMax" | "ReduceMin" => {
                let x = self.whole(0)?;
                let values = x.known.as_ref()?;
                if x.shape.len() > 1 {
                    return None;
                }
                let reduced = match self.node.op.as_str() {
                    "ReduceProd" => values.iter().product(),
                    "ReduceSum" => values.iter().sum(),
                    "ReduceMax" => values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
                    _ => values.iter().copied().fold(f64::INFINITY, f64::min),
                };
                let shape = if self.node.int("keepdims").unwrap_or(1) == 1 {
                    vec![1; x.shape.len()]
                } else {
                    Vec::new()
                };
                one(Value::known(shape, x.kind, vec![reduced]))
            }
            "Where" => {
                let (c, a, b) = (self.whole(0)?, self.whole(1)?, self.whole(2)?);
                let shape = broadcast(&broadcast(&c.shape, &a.shape)?, &b.shape)?;
                let n = few(&shape)?;
                let [c, x, y] =
                    [fold::spread(c, &shape, n)?, fold::spread(a, &shape, n)?, fold::spread(b, &shape, n)?];
                let values = c.iter().zip(x).zip(y).map(|((c, x), y)| if *c != 0.0 { x } else { y });
                one(Value::known(shape, a.kind, values.collect()))
            }
            op => {
                if let Some(f) = fold::unary(op) {
                    let x = self.whole(0)?;
                    let values = x.known.as_ref()?.iter().map(|v| f(*v)).collect();
                    return one(Value::known(x.shape.clone(), x.kind, values));
                }
                let (f, compares) = fold::binary(op, self.input(0).map(|v| v.kind))?;
                let (a, b) = (self.whole(0)?, self.whole(1)?);
                if self.inputs.len() != 2 {
                    return None;
                }
                let shape = broadcast(&a.shape, &b.shape)?;
                let n = few(&shape)?;
                let (x, y) = (fold::spread(a, &shape, n)?, fold::spread(b, &shape, n)?);
                let values = x.iter().zip(y).map(|(x, y)| f(*x, y)).collect();
                one(Value::known(shape, if compares { NumberKind::Bool } else { a.kind }, values))
            }
        }
    }

    /// An input of which all elements are known.
    fn whole(&self, at: usize) -> Option<&Value> {
        self.input(at).filter(|v| v.known.as_ref().is_some_and(|k| k.len() as u64 == v.elements()))
    }
}
