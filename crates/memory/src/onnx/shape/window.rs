//! Shapes of convolutions, pooling, resizing and recurrent layers.

use super::{Call, Value};
use crate::onnx::model::NumberKind;

/// Size of a dimension after a window of `kernel` goes over it.
fn slide(size: u64, kernel: u64, stride: u64, dilation: u64, pads: u64, ceil: bool) -> Option<u64> {
    let reach = kernel.checked_sub(1)?.checked_mul(dilation)?.checked_add(1)?;
    let room = size.checked_add(pads)?.checked_sub(reach)?;
    let steps = if ceil { room.div_ceil(stride.max(1)) } else { room / stride.max(1) };
    steps.checked_add(1)
}

fn positive(ints: Option<&[i64]>, at: usize, default: u64) -> Option<u64> {
    match ints.and_then(|i| i.get(at)) {
        Some(v) => u64::try_from(*v).ok(),
        None => Some(default),
    }
}

impl Call<'_> {
    pub(super) fn window(&self) -> Option<Vec<Value>> {
        let x = self.input(0)?;
        let (batch, channels) = (*x.shape.first()?, *x.shape.get(1)?);
        let spatial = x.shape.get(2..)?;
        let shape = match self.node.op.as_str() {
            "GlobalAveragePool" | "GlobalMaxPool" => [vec![batch, channels], vec![1; spatial.len()]].concat(),
            "Conv" => {
                let w = &self.input(1)?.shape;
                let sizes = self.slid(spatial, w.get(2..)?)?;
                [vec![batch, *w.first()?], sizes].concat()
            }
            "ConvTranspose" => {
                let w = &self.input(1)?.shape;
                let out = w.get(1)?.checked_mul(positive_int(self.node.int("group"))?)?;
                [vec![batch, out], self.unslid(spatial, w.get(2..)?)?].concat()
            }
            "MaxPool" | "AveragePool" | "LpPool" => {
                let kernel: Vec<u64> = self
                    .node
                    .ints("kernel_shape")?
                    .iter()
                    .map(|k| u64::try_from(*k).ok())
                    .collect::<Option<_>>()?;
                [vec![batch, channels], self.slid(spatial, &kernel)?].concat()
            }
            "GridSample" => {
                let grid = &self.input(1)?.shape;
                [&[batch, channels][..], grid.get(1..grid.len().checked_sub(1)?)?].concat()
            }
            "DepthToSpace" | "SpaceToDepth" => {
                let block = positive_int(self.node.int("blocksize"))?;
                let square = block.checked_mul(block)?;
                let apart = self.node.op == "DepthToSpace";
                let side = |d: u64| if apart { d.checked_mul(block) } else { Some(d / block) };
                let depth = if apart { channels / square } else { channels.checked_mul(square)? };
                let sides = spatial.iter().map(|d| side(*d)).collect::<Option<Vec<_>>>()?;
                [vec![batch, depth], sides].concat()
            }
            _ => self.resized()?,
        };
        let value = Value::new(shape, x.kind);
        if self.node.op == "MaxPool" {
            let indices = Value::new(value.shape.clone(), NumberKind::Int);
            return Some(vec![value, indices]);
        }
        Some(vec![value])
    }

    fn slid(&self, spatial: &[u64], kernel: &[u64]) -> Option<Vec<u64>> {
        if spatial.len() != kernel.len() {
            return None;
        }
        let n = spatial.len();
        let (strides, dilations, pads) =
            (self.node.ints("strides"), self.node.ints("dilations"), self.node.ints("pads"));
        let ceil = self.node.int("ceil_mode") == Some(1);
        (0..n)
            .map(|i| {
                let stride = positive(strides, i, 1)?.max(1);
                match self.node.text("auto_pad") {
                    Some("SAME_UPPER" | "SAME_LOWER") => Some(spatial[i].div_ceil(stride)),
                    Some("VALID") => {
                        slide(spatial[i], kernel[i], stride, positive(dilations, i, 1)?, 0, ceil)
                    }
                    _ => {
                        let pads = positive(pads, i, 0)?.checked_add(positive(pads, n + i, 0)?)?;
                        slide(spatial[i], kernel[i], stride, positive(dilations, i, 1)?, pads, ceil)
                    }
                }
            })
            .collect()
    }

    fn unslid(&self, spatial: &[u64], kernel: &[u64]) -> Option<Vec<u64>> {
        if spatial.len() != kernel.len() {
            return None;
        }
        let n = spatial.len();
        if let Some(shape) = self.node.ints("output_shape") {
            let shape: Option<Vec<u64>> = shape.iter().map(|d| u64::try_from(*d).ok()).collect();
            return shape.filter(|s| s.len() == n);
        }
        let (strides, dilations, pads, more) = (
            self.node.ints("strides"),
            self.node.ints("dilations"),
            self.node.ints("pads"),
            self.node.ints("output_padding"),
        );
        (0..n)
            .map(|i| {
                let stride = positive(strides, i, 1)?;
                if matches!(self.node.text("auto_pad"), Some("SAME_UPPER" | "SAME_LOWER")) {
                    return spatial[i].checked_mul(stride);
                }
                let reach =
                    kernel[i].checked_sub(1)?.checked_mul(positive(dilations, i, 1)?)?.checked_add(1)?;
                let full = spatial[i]
                    .checked_sub(1)?
                    .checked_mul(stride)?
                    .checked_add(reach)?
                    .checked_add(positive(more, i, 0)?)?;
                full.checked_sub(positive(pads, i, 0)?.checked_add(positive(pads, n + i, 0)?)?)
            })
            .collect()
    }

    /// `Resize` and `Upsample`: sizes, else scales, wherever the version has them.
    fn resized(&self) -> Option<Vec<u64>> {
        let x = self.input(0)?;
        let rank = x.shape.len();
        let last = self.inputs.len().saturating_sub(1);
        let sizes = (self.node.op == "Resize" && last >= 3).then(|| self.input(3)).flatten();
        if let Some(sizes) = sizes.and_then(Value::ints).filter(|s| !s.is_empty()) {
            let mut shape = x.shape.clone();
            let axes: Vec<usize> = match self.node.ints("axes") {
                Some(axes) => axes.iter().map(|a| Self::axis(*a, rank)).collect::<Option<_>>()?,
                None => (0..rank).collect(),
            };
            for (axis, size) in axes.into_iter().zip(sizes) {
                shape[axis] = u64::try_from(size).ok()?;
            }
            // Sizes are whole shapes: the batch of the export stands first.
            if let (Some(first), Some(batch)) = (shape.first_mut(), x.shape.first()) {
                *first = *batch;
            }
            return Some(shape);
        }
        let place = if self.node.op == "Resize" && self.opset >= 11 { 2 } else { 1 };
        let scales = self.input(place)?.known.clone()?;
        if scales.len() != rank {
            return None;
        }
        Some(x.shape.iter().zip(scales).map(|(d, s)| (*d as f64 * s).floor() as u64).collect())
    }

    /// `LSTM`, `GRU`, `RNN`: `[sequence, batch, input]` in; all states, and the last.
    pub(super) fn recurrent(&self) -> Option<Vec<Value>> {
        let x = self.input(0)?;
        let [sequence, batch, _] = x.shape.as_slice() else { return None };
        let directions = *self.input(1)?.shape.first()?;
        let hidden = *self.input(2)?.shape.last()?;
        let all = Value::new(vec![*sequence, directions, *batch, hidden], x.kind);
        let last = Value::new(vec![directions, *batch, hidden], x.kind);
        Some(vec![all, last.clone(), last])
    }
}

fn positive_int(value: Option<i64>) -> Option<u64> {
    u64::try_from(value.unwrap_or(1)).ok().filter(|v| *v > 0)
}
