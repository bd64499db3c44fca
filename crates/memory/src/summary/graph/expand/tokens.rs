//! Blocks over tokens, or over maps with the channels last.

use super::Writer;
use crate::summary::graph::flow::elements;
use crate::summary::graph::row::{LayerRow, Step};

/// Swin's block on maps with the channels last: norm, attention in windows, norm, MLP.
pub(super) fn windows(row: &LayerRow, input: &[u64], out: &[u64], _act: &str) -> Option<Vec<Step>> {
    let c = *input.last()?;
    if input != out {
        return None;
    }
    let heads = (c / 32).max(1);
    let mlp = 8 * c * c + 5 * c;
    let attention = 4 * c * c + 4 * c;
    let v1 = attention + 169 * heads;
    let v2 = attention + 3 * 512 + 512 * heads + heads;
    for (kind, own) in [("ShiftedWindowAttention", v1), ("ShiftedWindowAttentionV2", v2)] {
        if own + mlp + 4 * c != row.params {
            continue;
        }
        let mut w = Writer::new(row, input.to_vec(), "GELU");
        w.layer_norm().same(kind, own).same("StochasticDepth", 0);
        w.layer_norm().linear(4 * c, true).same("GELU", 0).linear(c, true).same("StochasticDepth", 0);
        return w.done();
    }
    None
}

/// Blocks over tokens `[batch, tokens, width]`: attention, MLP, both.
pub(super) fn tokens(row: &LayerRow, input: &[u64], out: &[u64]) -> Option<Vec<Step>> {
    let (ci, co) = (*input.last()?, *out.last()?);
    let p = row.params;
    let w = || Writer::new(row, input.to_vec(), "GELU");
    // One linear layer.
    if p == ci * co + co || p == ci * co {
        let mut w = w();
        w.linear(co, p > ci * co);
        return w.done();
    }
    if input != out && elements(input) < elements(out) {
        return None;
    }
    let c = ci;
    let attention = 4 * c * c + 4 * c;
    // Query, key, value and output, with or without bias; a table of positions beside them. The output may
    // be printed as windows.
    let whole = elements(input) == elements(out) && ci == co;
    let table = p > attention && p < attention + attention / 4;
    if whole && row.kind.contains("ttention") && (p == attention || p == attention - 3 * c || table) {
        let mut w = w();
        w.same("MultiheadAttention", p);
        return w.done();
    }
    // MLP: c -> m -> c.
    let mlp = |left: u64| {
        let m = left.checked_sub(co)? / (c + co + 1);
        (m > 0 && m * (c + co + 1) + co == left).then_some(m)
    };
    if let Some(m) = mlp(p).filter(|m| *m >= c / 8 && *m <= 16 * c && !row.kind.contains("Block")) {
        let mut w = w();
        w.linear(m, true).same("GELU", 0).linear(co, true);
        return w.done();
    }
    // The whole block, with or without layer scale and bias of query, key and value.
    for (scale, bias) in [(0, 3 * c), (2 * c, 3 * c), (0, 0), (2 * c, 0)] {
        let Some(m) = p.checked_sub(4 * c * c + c + bias + 4 * c + scale).and_then(mlp) else { continue };
        if input != out || m < c / 2 || m > 16 * c {
            continue;
        }
        let mut w = w();
        w.layer_norm().same("MultiheadAttention", 4 * c * c + c + bias);
        if scale > 0 {
            w.same("LayerScale", c);
        }
        w.layer_norm().linear(m, true).same("GELU", 0).linear(c, true);
        if scale > 0 {
            w.same("LayerScale", c);
        }
        return w.done();
    }
    // Several of them with four times the width.
    let one = 12 * c * c + 13 * c;
    if input == out && p.is_multiple_of(one) && p / one <= 200 && p > one {
        let mut w = w();
        for _ in 0..p / one {
            w.hidden("TransformerBlock", input.to_vec(), input.to_vec(), one);
        }
        return w.done();
    }
    None
}
