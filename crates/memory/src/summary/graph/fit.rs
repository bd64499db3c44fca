//! Arithmetic of convolutions: which input fits an output and a number of weights.

/// How well an input fits, 0 the best, and what follows from it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Fit {
    pub(super) cost: f64,
    pub(super) groups: u64,
    /// Cells of the kernel.
    pub(super) area: u64,
    pub(super) bias: bool,
}

/// Longer strides are not believed.
const MOST_STRIDE: u64 = 64;

/// Kernels up to 31 x 31 and 1 x k.
fn area_cost(area: u64) -> Option<f64> {
    let root = area.isqrt();
    if root * root == area {
        return match root {
            1 | 3 | 5 | 7 => Some(0.0),
            2 | 4 | 8 | 14 | 16 | 32 | 9 | 11 | 13 => Some(0.1),
            r if r <= 64 => Some(0.6),
            _ => None,
        };
    }
    match area {
        2 | 4 | 5 | 7 | 11 | 15 | 21 | 31 | 63 | 3 => Some(1.0),
        // Cubes of 3-D convolutions.
        8 | 27 | 125 | 147 | 343 | 45 => Some(1.0),
        _ => None,
    }
}

/// Fits by channels: `weights` = out · in / groups · area, and perhaps a bias of `out`; with groups
/// only if asked for.
pub(super) fn channels(inner: u64, outer: u64, params: u64, grouped: bool) -> Option<Fit> {
    if inner == 0 || outer == 0 || params == 0 {
        return None;
    }
    let mut best: Option<Fit> = None;
    for bias in [false, true] {
        let Some(weights) = params.checked_sub(if bias { outer } else { 0 }) else { continue };
        if weights == 0 || !weights.is_multiple_of(outer) {
            continue;
        }
        let per = weights / outer;
        let mut offer = |groups: u64, area: u64, extra: f64| {
            if let Some(cost) = area_cost(area) {
                let cost = cost + extra + if bias { 0.05 } else { 0.0 };
                if best.is_none_or(|b| cost < b.cost) {
                    best = Some(Fit { cost, groups, area, bias });
                }
            }
        };
        if per.is_multiple_of(inner) {
            offer(1, per / inner, 0.0);
        }
        if !grouped {
            continue;
        }
        // Depthwise.
        if outer.is_multiple_of(inner) {
            let usual = [9, 25, 49, 81, 121, 3, 5, 7, 27].contains(&per);
            offer(
                inner,
                per,
                if per == 1 {
                    2.0
                } else if usual {
                    0.0
                } else {
                    1.0
                },
            );
        }
        // Groups: inner / groups = per / area, for the usual kernels.
        for area in [1, 9, 25, 49] {
            if per.is_multiple_of(area) {
                let width = per / area;
                if width > 0 && inner.is_multiple_of(width) {
                    let groups = inner / width;
                    if groups > 1 && groups < inner && outer.is_multiple_of(groups) {
                        offer(groups, area, if area == 1 { 3.2 } else { 3.0 });
                    }
                }
            }
        }
    }
    best
}

/// A kernel of one cell over all channels.
pub(super) fn pointwise(inner: u64, outer: u64, params: u64) -> Option<Fit> {
    let weights = inner.checked_mul(outer)?;
    let bias = params != weights;
    (params == weights || Some(params) == weights.checked_add(outer)).then_some(Fit {
        cost: 0.0,
        groups: 1,
        area: 1,
        bias,
    })
}

/// Whether an input of `inner` cells along a side can become `outer`; cost by how unusual.
pub(super) fn side(inner: u64, outer: u64, area: u64) -> Option<f64> {
    let kernel = if area.isqrt().pow(2) == area { area.isqrt() } else { area };
    if inner == 0 || outer == 0 {
        return None;
    }
    if outer > inner {
        // Padding beyond "same", as in AlexNet's or LeNet's first layers.
        return (outer - inner <= kernel.max(2)).then_some(1.0);
    }
    let stride = (inner as f64 / outer as f64).round().max(1.0) as u64;
    // A whole side in one step is a mean before a small kernel.
    if stride > MOST_STRIDE || outer == 1 && stride > kernel.saturating_mul(4) {
        return None;
    }
    if inner.div_ceil(stride) == outer {
        // Strides beyond the kernel leave cells out: unusual unless 1 x 1 in a shortcut. Even kernels
        // do not keep the size.
        let even = stride == 1 && kernel.is_multiple_of(2);
        return Some(if stride > kernel.max(2) { 1.5 } else { f64::from(u8::from(even)) });
    }
    // Without padding, or with less or more of it.
    let reach = inner + 2 * kernel;
    for stride in 1..=stride.saturating_add(1) {
        for padding in 0..=kernel.min(16) {
            let padded = inner + 2 * padding;
            if padded >= kernel && (padded - kernel) / stride + 1 == outer && padded <= reach {
                return Some(if padding == 0 { 0.2 } else { 0.4 });
            }
        }
    }
    None
}
