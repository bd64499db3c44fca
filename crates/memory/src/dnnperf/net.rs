//! The network: rounds of attention between neighbours, the mean over nodes, a perceptron.

use super::nodes::{EDGE, NODE, WHOLE};
use carma_nn::{LayerNorm, Learner, Linear, Mat, Mlp, MlpCache, Module, NormCache, Rng, Segments, Weights};
use carma_nn::{relu, relu_backward};
use serde::{Deserialize, Serialize};

/// Graphs as one: nodes and edges of all.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    /// `[node features, nodes]`.
    pub nodes: Mat,
    /// `[edge features, edges]`.
    pub edges: Mat,
    /// From and to of each edge, sorted by to.
    pub ends: Vec<(usize, usize)>,
    /// `[features of the whole, graphs]`.
    pub whole: Mat,
    /// Nodes of each graph.
    pub segments: Segments,
}

/// Sizes of a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Width of a node inside.
    pub width: usize,
    /// Rounds of messages.
    pub rounds: usize,
}

/// One round: every node hears from its neighbours, those more that its attention prefers.
#[derive(Debug, Clone, PartialEq)]
struct Round {
    /// Of a neighbour and the edge to it, the message.
    message: Linear,
    /// Of a message and its receiver, the attention score.
    score: Linear,
    /// Of a node and what it heard, the node.
    update: Linear,
    norm: LayerNorm,
}

struct RoundCache {
    heard: Mat,
    message_in: Mat,
    message: Mat,
    score_in: Mat,
    attention: Vec<f32>,
    update_in: Mat,
    updated: Mat,
    norm: NormCache,
}

/// The network.
#[derive(Debug, Clone, PartialEq)]
pub struct GraphNet {
    embed: Linear,
    rounds: Vec<Round>,
    head: Mlp,
}

/// What the backward pass needs.
pub struct Cache {
    embedded: Mat,
    rounds: Vec<RoundCache>,
    head: MlpCache,
}

/// Columns of `x` at the given places.
fn gather(x: &Mat, places: impl ExactSizeIterator<Item = usize> + Clone) -> Mat {
    let mut y = Mat::zeros(x.rows, places.len());
    for r in 0..x.rows {
        let row = x.row(r);
        for (to, from) in y.row_mut(r).iter_mut().zip(places.clone()) {
            *to = row[from];
        }
    }
    y
}

/// Adds columns of `y` to those of `x` at the given places.
fn scatter(x: &mut Mat, y: &Mat, places: impl Iterator<Item = usize> + Clone) {
    for r in 0..x.rows.min(y.rows) {
        let from = y.row(r);
        let row = x.row_mut(r);
        for (v, to) in from.iter().zip(places.clone()) {
            row[to] += v;
        }
    }
}

/// Rows `from..to`.
fn part(x: &Mat, from: usize, to: usize) -> Mat {
    Mat { rows: to - from, cols: x.cols, data: x.data[from * x.cols..to * x.cols].to_vec() }
}

impl Round {
    fn new(width: usize, rng: &mut Rng) -> Self {
        Self {
            message: Linear::new(width + EDGE, width, rng),
            score: Linear::new(2 * width, 1, rng),
            update: Linear::new(2 * width, width, rng),
            norm: LayerNorm::new(width),
        }
    }

    fn forward(&self, x: &Mat, batch: &Batch) -> (Mat, RoundCache) {
        let from = batch.ends.iter().map(|(from, _)| *from);
        let to = batch.ends.iter().map(|(_, to)| *to);
        let message_in = gather(x, from).stack(&batch.edges);
        let mut message = self.message.forward(&message_in);
        relu(&mut message);
        let score_in = message.clone().stack(&gather(x, to.clone()));
        let attention = softmax_by(self.score.forward(&score_in).data, &batch.ends);
        let mut weighted = message.clone();
        for r in 0..weighted.rows {
            weighted.row_mut(r).iter_mut().zip(&attention).for_each(|(m, a)| *m *= a);
        }
        let mut heard = Mat::zeros(x.rows, x.cols);
        scatter(&mut heard, &weighted, to);
        let update_in = x.clone().stack(&heard);
        let mut updated = self.update.forward(&update_in);
        relu(&mut updated);
        let mut sum = updated.clone();
        sum.add(x);
        let (y, norm) = self.norm.forward(&sum);
        (y, RoundCache { heard, message_in, message, score_in, attention, update_in, updated, norm })
    }

    fn backward(&mut self, batch: &Batch, cache: &RoundCache, dy: &Mat) -> Mat {
        let width = cache.heard.rows;
        let from = batch.ends.iter().map(|(from, _)| *from);
        let to = batch.ends.iter().map(|(_, to)| *to);
        let mut dx = self.norm.backward(&cache.norm, dy);
        let mut dupdated = dx.clone();
        relu_backward(&cache.updated, &mut dupdated);
        let dinput = self.update.backward(&cache.update_in, &dupdated);
        dx.add(&dinput.top(width));
        // What was heard: each message times its attention.
        let dweighted = gather(&part(&dinput, width, 2 * width), to.clone());
        let mut dmessage = dweighted.clone();
        let mut dattention = vec![0.0; batch.ends.len()];
        for r in 0..width {
            for (e, d) in dmessage.row_mut(r).iter_mut().enumerate() {
                dattention[e] += *d * cache.message.at(r, e);
                *d *= cache.attention[e];
            }
        }
        let dscore = softmax_by_backward(&cache.attention, dattention, &batch.ends);
        let dscore = Mat { rows: 1, cols: dscore.len(), data: dscore };
        let dscore_in = self.score.backward(&cache.score_in, &dscore);
        dmessage.add(&dscore_in.top(width));
        scatter(&mut dx, &part(&dscore_in, width, 2 * width), to);
        relu_backward(&cache.message, &mut dmessage);
        let dmessage_in = self.message.backward(&cache.message_in, &dmessage);
        scatter(&mut dx, &dmessage_in.top(width), from);
        dx
    }
}

/// Ranges of edges with the same receiver.
fn receivers(ends: &[(usize, usize)]) -> impl Iterator<Item = std::ops::Range<usize>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let to = ends.get(at)?.1;
        let len = ends[at..].iter().take_while(|e| e.1 == to).count();
        at += len;
        Some(at - len..at)
    })
}

/// Softmax over the edges of each receiver.
fn softmax_by(mut scores: Vec<f32>, ends: &[(usize, usize)]) -> Vec<f32> {
    for range in receivers(ends) {
        let part = &mut scores[range];
        let most = part.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        part.iter_mut().for_each(|s| *s = (*s - most).exp());
        let total: f32 = part.iter().sum();
        part.iter_mut().for_each(|s| *s /= total);
    }
    scores
}

fn softmax_by_backward(p: &[f32], mut grad: Vec<f32>, ends: &[(usize, usize)]) -> Vec<f32> {
    for range in receivers(ends) {
        let along: f32 = grad[range.clone()].iter().zip(&p[range.clone()]).map(|(g, p)| g * p).sum();
        for e in range {
            grad[e] = p[e] * (grad[e] - along);
        }
    }
    grad
}

impl GraphNet {
    /// A network with random weights.
    pub fn new(shape: Shape, rng: &mut Rng) -> Self {
        Self {
            embed: Linear::new(NODE, shape.width, rng),
            rounds: (0..shape.rounds).map(|_| Round::new(shape.width, rng)).collect(),
            head: Mlp::new(shape.width + WHOLE, &[16, 8], 2, rng),
        }
    }
}

impl Learner for GraphNet {
    type Batch = Batch;
    type Cache = Cache;

    fn infer(&self, batch: &Batch) -> Mat {
        let mut x = self.embed.forward(&batch.nodes);
        relu(&mut x);
        let x = self.rounds.iter().fold(x, |x, round| round.forward(&x, batch).0);
        self.head.infer(&batch.segments.pool(&x).stack(&batch.whole))
    }

    fn train(&mut self, batch: &Batch) -> (Mat, Cache) {
        let mut x = self.embed.forward(&batch.nodes);
        relu(&mut x);
        let embedded = x.clone();
        let mut rounds = Vec::with_capacity(self.rounds.len());
        for round in &self.rounds {
            let (y, cache) = round.forward(&x, batch);
            rounds.push(cache);
            x = y;
        }
        let (y, head) = self.head.train(batch.segments.pool(&x).stack(&batch.whole));
        (y, Cache { embedded, rounds, head })
    }

    fn backward(&mut self, batch: &Batch, cache: &Cache, grad: Mat) {
        let dinput = self.head.backward(&cache.head, &grad);
        let mut grad = batch.segments.spread(&dinput.top(self.embed.out));
        for (round, cache) in self.rounds.iter_mut().zip(&cache.rounds).rev() {
            grad = round.backward(batch, cache, &grad);
        }
        relu_backward(&cache.embedded, &mut grad);
        self.embed.backward(&batch.nodes, &grad);
    }
}

impl Module for GraphNet {
    fn weights(&mut self, visit: &mut dyn FnMut(&mut Weights)) {
        self.embed.weights(visit);
        for round in &mut self.rounds {
            round.message.weights(visit);
            round.score.weights(visit);
            round.update.weights(visit);
            round.norm.weights(visit);
        }
        self.head.weights(visit);
    }

    fn state(&mut self, visit: &mut dyn FnMut(&mut Vec<f32>)) {
        self.embed.state(visit);
        for round in &mut self.rounds {
            round.message.state(visit);
            round.score.state(visit);
            round.update.state(visit);
            round.norm.state(visit);
        }
        self.head.state(visit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use carma_nn::{Logistic, Seen, check::compare_gradients};

    /// Two graphs: a chain of three with a shortcut, and a pair.
    fn two(rng: &mut Rng) -> Batch {
        let mut some = |rows, cols| Mat { rows, cols, data: rng.uniform(rows * cols, 1.0) };
        Batch {
            nodes: some(NODE, 5),
            edges: some(EDGE, 6),
            ends: vec![(1, 0), (0, 1), (0, 2), (1, 2), (4, 3), (3, 4)],
            whole: some(WHOLE, 2),
            segments: Segments { ranges: vec![0..3, 3..5], count: vec![1.0; 5] },
        }
    }

    #[test]
    fn gradients() {
        let mut rng = Rng::new(3, 0);
        let batch = two(&mut rng);
        let mut net = GraphNet::new(Shape { width: 4, rounds: 2 }, &mut rng);
        // Batch normalisation over two graphs knows signs only: leave it out.
        net.head.hidden.clear();
        net.head.last = Linear::new(4 + WHOLE, 2, &mut rng);
        let seen = [Seen::Value(0.4), Seen::AtLeast(-0.3)];
        let compared = compare_gradients(&mut net, |net, back| {
            let (y, cache) = net.train(&batch);
            let (loss, grad) = Logistic::loss(&y, &seen);
            if back {
                net.backward(&batch, &cache, grad);
            }
            loss
        });
        assert!(compared.agree(), "{compared:?}");
    }

    #[test]
    fn a_graph_alone_and_renumbered_says_the_same() {
        let mut rng = Rng::new(5, 0);
        let batch = two(&mut rng);
        let net = GraphNet::new(Shape { width: 4, rounds: 2 }, &mut rng);
        let both = net.infer(&batch);
        // The first graph, its nodes in another order: 0 -> 2, 1 -> 0, 2 -> 1.
        let old = [1, 2, 0];
        let alone = Batch {
            nodes: gather(&batch.nodes, old.into_iter()),
            edges: gather(&batch.edges, [1, 2, 3, 0].into_iter()),
            ends: vec![(2, 0), (2, 1), (0, 1), (0, 2)],
            whole: gather(&batch.whole, [0].into_iter()),
            segments: Segments { ranges: std::iter::once(0..3).collect(), count: vec![1.0; 3] },
        };
        let one = net.infer(&alone);
        for r in 0..2 {
            assert!((one.at(r, 0) - both.at(r, 0)).abs() < 1e-5);
        }
    }
}
