//! Convolutions: their weights tell what they read.

use super::fit::{self, Fit};
use super::flow::{Flow, elements};
use super::plan::Plan;
use super::row::{Dims, LayerRow};
use crate::Error;
use crate::graph::{Number, Op};

impl Flow<'_> {
    pub(super) fn conv(&mut self, row: &LayerRow, transposed: bool) -> Result<(), Error> {
        let Some(out) = row.output.clone().filter(|out| out.len() >= 3) else { return self.unknown(row) };
        let outer = out[1].max(1);
        let branch = self.branch(row);
        let at = match (branch, row.input.as_deref()) {
            (Some(at), _) => at,
            (None, Some(want)) => self.obtain(&row.name, want)?,
            (None, None) => self.conv_input(row, &out, transposed)?,
        };
        let inner = self.shape(at).get(1).copied().unwrap_or(1);
        let fit = self.fit(row, at, &out, transposed).map(|(fit, _)| fit);
        let at = if row.pooled && at != self.cur && fit.is_some_and(|f| f.area == 1) {
            // Inception pools what it reads in the last branch, by a function.
            let shape = self.shape(at).to_vec();
            let x = self.read(at);
            let id = self.b.node(
                &format!("{} (pool)", row.name),
                Op::AvgPool,
                &[x],
                &[],
                &shape,
                Number::Float,
            )?;
            self.push(id)
        } else {
            at
        };
        let groups = row.groups.or(fit.map(|f| f.groups)).unwrap_or(1).max(1);
        let bias = fit.is_some_and(|f| f.bias);
        let weights = row.params.saturating_sub(if bias { outer } else { 0 });
        let per = (inner / groups).max(1);
        let weight = if weights.is_multiple_of(outer * per) {
            vec![outer, per, weights / (outer * per)]
        } else {
            vec![weights]
        };
        let params = self.params(row, &[("weight", weight), ("bias", vec![outer])])?;
        let x = self.read(at);
        let mut shape = out;
        if let (Some(first), Some(real)) = (shape.first_mut(), self.shape(at).first()) {
            *first = *real;
        }
        let id = self.b.node(&row.name, Op::Conv { groups }, &[x], &params, &shape, Number::Float)?;
        let at = self.push(id);
        self.seen[at].product = true;
        Ok(())
    }

    /// How well a tensor fits as input of a convolution; the second cost is that of its sides.
    pub(super) fn fit(&self, row: &LayerRow, at: usize, out: &[u64], transposed: bool) -> Option<(Fit, f64)> {
        let shape = self.shape(at);
        if shape.len() != out.len() || shape.len() < 3 {
            return None;
        }
        let (weights, small) = (row.weights(out[1]), shape[2..].iter().all(|d| *d == 1));
        // A kernel over a single cell has one.
        let single = if small { fit::pointwise(shape[1], out[1], weights) } else { None };
        let fit = single.or_else(|| fit::channels(shape[1], out[1], weights, true))?;
        let mut cost = 0.0;
        for (inner, outer) in shape[2..].iter().zip(&out[2..]) {
            cost += if transposed {
                if outer >= inner { 0.0 } else { return None }
            } else {
                fit::side(*inner, *outer, fit.area)?
            };
        }
        Some((fit, cost))
    }

    pub(super) fn conv_input(
        &mut self,
        row: &LayerRow,
        out: &[u64],
        transposed: bool,
    ) -> Result<usize, Error> {
        let mut best: Option<(f64, usize)> = None;
        let mut offer = |cost: f64, at: usize| {
            if best.is_none_or(|(c, _)| cost < c) {
                best = Some((cost, at));
            }
        };
        if let Some((fit, sides)) = self.fit(row, self.cur, out, transposed) {
            offer(fit.cost + sides, self.cur);
            // No other would be better.
            if fit.cost + sides <= 0.5 {
                return Ok(self.cur);
            }
        }
        if let Some(map) = self.as_map(row, out) {
            return self.carry_out(&row.name, &map, &Plan::View(self.cur));
        }
        if self.seen[self.cur].halves
            && let Some(half) = self.half_of(row, out)
        {
            return self.carry_out(&row.name, &half, &Plan::Part(self.cur));
        }
        for (distance, at) in self.recent().enumerate() {
            if let Some((fit, sides)) = self.fit(row, at, out, transposed) {
                let open = match &self.seen[at] {
                    seen if seen.block_end => -0.1,
                    seen if seen.uses == 0 => 0.0,
                    _ => 0.1,
                };
                offer(fit.cost + sides + 0.5 + open + distance as f64 * 0.005, at);
            }
        }
        if let Some((cost, at)) = best
            && cost < 3.5
        {
            return Ok(at);
        }
        // Functional operators in between: a mean (squeeze and excitation), a concatenation, a chunk.
        for want in self.conv_wants(row, out) {
            let (cost, plan) = self.plan(&want);
            if cost < 5.0 {
                return self.carry_out(&row.name, &want, &plan);
            }
        }
        if let Some((_, at)) = best {
            return Ok(at);
        }
        let shape = self.shape(self.cur).to_vec();
        self.doubt(format!("{}: {} weights do not fit an input {shape:?}", row.name, row.params));
        Ok(self.cur)
    }

    /// Tokens or a map with the channels last, as the map that a convolution to `out` reads.
    pub(super) fn as_map(&self, row: &LayerRow, out: &[u64]) -> Option<Dims> {
        let cur = self.shape(self.cur);
        if out.len() != 4 || cur.len() < 3 {
            return None;
        }
        let channels = *cur.last()?;
        let fit = fit::channels(channels, out[1], row.params, true)?;
        if fit.cost > 1.0 {
            return None;
        }
        if cur.len() == 4 {
            let same = cur[0] == out[0] && fit::side(cur[1], out[2], fit.area)? < 1.0;
            return same.then(|| vec![cur[0], channels, cur[1], cur[2]]);
        }
        // Windows of the same map count as well.
        let cells = elements(cur) / out[0].max(1) / channels.max(1);
        let cells = if elements(cur) == out[0].saturating_mul(channels).saturating_mul(cells) {
            cells
        } else {
            return None;
        };
        (1..=32).find_map(|stride| {
            let (h, w) = (out[2].checked_mul(stride)?, out[3].checked_mul(stride)?);
            (h.checked_mul(w)? == cells).then(|| vec![out[0], channels, h, w])
        })
    }

    /// The shape of half of the last tensor's channels, if that fits.
    pub(super) fn half_of(&self, row: &LayerRow, out: &[u64]) -> Option<Dims> {
        let mut half = self.shape(self.cur).to_vec();
        *half.get_mut(1)? /= 2;
        let fit = fit::channels(half[1], *out.get(1)?, row.params, true)?;
        (fit.cost < 0.5).then_some(half)
    }

    /// Shapes of inputs that would fit, likeliest first.
    pub(super) fn conv_wants(&self, row: &LayerRow, out: &[u64]) -> Vec<Dims> {
        let outer = out.get(1).copied().unwrap_or(1).max(1);
        let mut wants = Vec::new();
        let cur = self.shape(self.cur);
        let mut sides: Vec<Vec<u64>> = Vec::new();
        if out.iter().skip(2).all(|d| *d == 1) {
            sides.push(out[2..].to_vec());
        }
        if cur.len() == out.len() {
            sides.push(cur[2..].to_vec());
        }
        sides.push(out[2.min(out.len())..].to_vec());
        sides.push(out[2.min(out.len())..].iter().map(|d| d.saturating_mul(2)).collect());
        for side in sides {
            let areas: &[u64] = match out.len() {
                3 => &[1, 3, 5, 7, 9],
                5 => &[27, 1, 8, 125],
                _ => &[1, 9, 25, 49],
            };
            for area in areas.iter().copied() {
                for bias in [0, outer] {
                    let weights = row.params.saturating_sub(bias);
                    if weights > 0 && weights.is_multiple_of(outer * area) {
                        let inner = weights / outer / area;
                        if inner > 1 || area == 1 || out.len() == 3 {
                            let mut want = vec![out[0], inner];
                            want.extend(&side);
                            wants.push(want);
                        }
                    }
                }
            }
            // Depthwise over a chunk.
            let mut want = vec![out[0], outer];
            want.extend(&side);
            wants.push(want);
        }
        wants
    }

    /// What a block came with, for the first layer of one of its branches side by side.
    pub(super) fn branch(&self, row: &LayerRow) -> Option<usize> {
        let entry = self.seen.iter().rposition(|s| s.block_end).unwrap_or(0);
        let fits = match (&row.input, &row.output) {
            (Some(want), _) => self.shape(entry) == want,
            (None, Some(out)) => self.shape(entry).len() == out.len(),
            _ => false,
        };
        (row.branch && fits).then_some(entry)
    }
}
