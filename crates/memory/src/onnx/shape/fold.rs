//! Arithmetic on known values.

use super::Value;
use crate::onnx::model::NumberKind;

/// Functions of one number.
pub(super) fn unary(op: &str) -> Option<fn(f64) -> f64> {
    Some(match op {
        "Neg" => |x| -x,
        "Abs" => f64::abs,
        "Floor" => f64::floor,
        "Ceil" => f64::ceil,
        "Round" => f64::round_ties_even,
        "Sqrt" => f64::sqrt,
        "Reciprocal" => |x| 1.0 / x,
        "Exp" => f64::exp,
        "Log" => f64::ln,
        "Not" => |x| f64::from(x == 0.0),
        _ => return None,
    })
}

/// A function of two numbers.
type Binary = fn(f64, f64) -> f64;

/// Functions of two numbers, and whether they compare.
pub(super) fn binary(op: &str, kind: Option<NumberKind>) -> Option<(Binary, bool)> {
    let number: Binary = match op {
        "Add" => |a, b| a + b,
        "Sub" => |a, b| a - b,
        "Mul" => |a, b| a * b,
        "Div" if kind == Some(NumberKind::Int) => |a, b| (a / b).trunc(),
        "Div" => |a, b| a / b,
        "Mod" => |a, b| a - b * (a / b).floor(),
        "Pow" => f64::powf,
        "Min" => f64::min,
        "Max" => f64::max,
        _ => {
            let compare: Binary = match op {
                "Equal" => |a, b| f64::from(a == b),
                "Less" => |a, b| f64::from(a < b),
                "Greater" => |a, b| f64::from(a > b),
                "LessOrEqual" => |a, b| f64::from(a <= b),
                "GreaterOrEqual" => |a, b| f64::from(a >= b),
                "And" => |a, b| f64::from(a != 0.0 && b != 0.0),
                "Or" => |a, b| f64::from(a != 0.0 || b != 0.0),
                _ => return None,
            };
            return Some((compare, true));
        }
    };
    Some((number, false))
}

/// A value's elements at the places of a larger shape.
pub(super) fn spread(v: &Value, shape: &[u64], n: usize) -> Option<Vec<f64>> {
    let known = v.known.as_ref()?;
    if known.len() == n {
        return Some(known.clone());
    }
    let rank = shape.len();
    (0..n)
        .map(|place| {
            // From the last dimension: the place's coordinate there, unless the value has one element in it.
            let (mut rest, mut at, mut step) = (place, 0, 1);
            for i in (0..rank).rev() {
                let size = usize::try_from(shape[i]).ok()?.max(1);
                let coordinate = rest % size;
                rest /= size;
                let Some(j) = (i + v.shape.len()).checked_sub(rank) else { continue };
                let own = usize::try_from(v.shape[j]).ok()?;
                if own != 1 {
                    at += coordinate * step;
                }
                step *= own;
            }
            known.get(at).copied()
        })
        .collect()
}
