//! Grows random forests for regression (Breiman, 2001), and searches their settings at random as KACE's artifact does.

use carma_interference::kace::forest::{Forest, Node, Settings, Tree};
use carma_nn::Rng;

/// How much the search tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Search {
    /// Settings tried (the artifact: 100).
    pub candidates: usize,
    /// Trees times rows of a forest while it is tried, at least 25 trees and at most 100 (the artifact: 200 to 2,000
    /// trees, as the setting says). More trees only lower the noise of a comparison, and so do more rows.
    pub trial_budget: usize,
    /// Most trees of the forest that is kept.
    pub most_trees: usize,
}

impl Search {
    /// A minute for all of `carma lab kace eval` instead of the artifact's two minutes a forest.
    pub const QUICK: Self = Self { candidates: 16, trial_budget: 3000, most_trees: 200 };
    /// Folds of the cross-validation.
    const FOLDS: usize = 5;
}

/// Grows a forest.
#[must_use]
pub fn grow(x: &[Vec<f64>], y: &[f64], settings: Settings, rng: &mut Rng) -> Forest {
    let d = x.first().map_or(0, Vec::len);
    let tried = if settings.square_root { (d as f64).sqrt() } else { (d.max(1) as f64).log2() };
    let tried = (tried as usize).clamp(1, d.max(1));
    let ranks = ranks(x, d);
    let tree = |rng: &mut Rng| {
        let rows: Vec<usize> = if settings.bootstrap {
            (0..x.len()).map(|_| rng.below(x.len())).collect()
        } else {
            (0..x.len()).collect()
        };
        let mut grower = Grower {
            x,
            y,
            ranks: &ranks,
            settings,
            tried,
            order: (0..d).collect(),
            sorted: Vec::new(),
            nodes: Vec::new(),
        };
        grower.node(rows, 0, rng);
        Tree(grower.nodes)
    };
    let trees = (0..settings.trees).map(|_| tree(rng)).collect();
    Forest { settings, trees }
}

/// Draws settings from the artifact's grid, cross-validates each on five parts in the order of the rows by the
/// mean R2, and grows a forest of the best on all rows.
#[must_use]
pub fn search(x: &[Vec<f64>], y: &[f64], search: Search, rng: &mut Rng) -> Forest {
    let n = x.len();
    let (mut best, mut best_score) = (draw(rng), f64::NEG_INFINITY);
    for i in 0..search.candidates.max(1) {
        let candidate = if i == 0 { best } else { draw(rng) };
        let trial = Settings { trees: (search.trial_budget / n.max(1)).clamp(25, 100), ..candidate };
        let mut score = 0.0;
        for fold in 0..Search::FOLDS {
            let held = n * fold / Search::FOLDS..n * (fold + 1) / Search::FOLDS;
            let rest = || (0..n).filter(|i| !held.contains(i));
            let kept: Vec<Vec<f64>> = rest().map(|i| x[i].clone()).collect();
            let targets: Vec<f64> = rest().map(|i| y[i]).collect();
            let forest = grow(&kept, &targets, trial, rng);
            score += r2(held.clone().map(|i| (forest.predict(&x[i]), y[i])));
        }
        if score > best_score {
            (best, best_score) = (candidate, score);
        }
    }
    grow(x, y, Settings { trees: best.trees.min(search.most_trees), ..best }, rng)
}

/// Of each feature the place of each row's value among all its values; equal values have equal places.
fn ranks(x: &[Vec<f64>], features: usize) -> Vec<Vec<u32>> {
    let of = |f: usize| {
        let mut order: Vec<usize> = (0..x.len()).collect();
        order.sort_by(|a, b| x[*a][f].total_cmp(&x[*b][f]));
        let mut ranks = vec![0; x.len()];
        for w in order.windows(2) {
            ranks[w[1]] = ranks[w[0]] + u32::from(x[w[1]][f] > x[w[0]][f]);
        }
        ranks
    };
    (0..features).map(of).collect()
}

/// Share of the variance that is explained; at most 1.
fn r2(pairs: impl Iterator<Item = (f64, f64)> + Clone) -> f64 {
    let n = pairs.clone().count().max(1) as f64;
    let mean = pairs.clone().map(|(_, y)| y).sum::<f64>() / n;
    let total: f64 = pairs.clone().map(|(_, y)| (y - mean) * (y - mean)).sum();
    let left: f64 = pairs.map(|(p, y)| (y - p) * (y - p)).sum();
    if total > 0.0 { 1.0 - left / total } else { 0.0 }
}

/// Settings from the artifact's grid.
fn draw(rng: &mut Rng) -> Settings {
    let depth = rng.below(12);
    Settings {
        trees: 200 * (1 + rng.below(10)),
        square_root: rng.below(2) == 0,
        depth: (depth < 11).then_some(10 + 10 * depth),
        min_split: [2, 5, 10][rng.below(3)],
        min_leaf: [1, 2, 4][rng.below(3)],
        bootstrap: rng.below(2) == 0,
    }
}

/// Grows one tree.
struct Grower<'a> {
    x: &'a [Vec<f64>],
    y: &'a [f64],
    /// By feature and row; whole numbers are sorted faster than what they stand for.
    ranks: &'a [Vec<u32>],
    settings: Settings,
    /// Features tried at a node.
    tried: usize,
    /// All features, shuffled anew at every node.
    order: Vec<usize>,
    /// Rank and row of the node's rows, in one number.
    sorted: Vec<u64>,
    nodes: Vec<Node>,
}

impl Grower<'_> {
    /// Adds the node of these rows and all below; gives its index.
    fn node(&mut self, rows: Vec<usize>, depth: usize, rng: &mut Rng) -> u32 {
        let at = self.nodes.len();
        let mean = rows.iter().map(|i| self.y[*i]).sum::<f64>() / rows.len().max(1) as f64;
        self.nodes.push(Node::Leaf(mean));
        let equal = rows.windows(2).all(|w| self.y[w[0]] == self.y[w[1]]);
        let deep = self.settings.depth.is_some_and(|most| depth >= most);
        if equal || deep || rows.len() < self.settings.min_split {
            return at as u32;
        }
        if let Some((feature, threshold)) = self.best(&rows, rng) {
            let (low, high): (Vec<usize>, Vec<usize>) =
                rows.into_iter().partition(|i| self.x[*i][feature] <= threshold);
            let low = self.node(low, depth + 1, rng);
            let high = self.node(high, depth + 1, rng);
            self.nodes[at] = Node::Split(feature as u32, threshold, low, high);
        }
        at as u32
    }

    /// The feature and threshold that leave the least variance; features are tried in a random order, at least
    /// `tried` of them and more until one divides the rows at all.
    fn best(&mut self, rows: &[usize], rng: &mut Rng) -> Option<(usize, f64)> {
        let mut order = std::mem::take(&mut self.order);
        rng.shuffle(&mut order);
        let total: f64 = rows.iter().map(|i| self.y[*i]).sum();
        let n = rows.len();
        let mut best: Option<(f64, usize, f64)> = None;
        for (tries, feature) in order.iter().enumerate() {
            if tries >= self.tried && best.is_some() {
                break;
            }
            self.sorted.clear();
            let ranks = &self.ranks[*feature];
            self.sorted.extend(rows.iter().map(|i| u64::from(ranks[*i]) << 32 | *i as u64));
            self.sorted.sort_unstable();
            let row = |key: u64| (key & u64::from(u32::MAX)) as usize;
            let mut left = 0.0;
            for i in 0..n - 1 {
                let (key, next_key) = (self.sorted[i], self.sorted[i + 1]);
                left += self.y[row(key)];
                if key >> 32 == next_key >> 32
                    || i + 1 < self.settings.min_leaf
                    || n - i - 1 < self.settings.min_leaf
                {
                    continue;
                }
                // Least variance left is most of this.
                let right = total - left;
                let gain = left * left / (i + 1) as f64 + right * right / (n - i - 1) as f64;
                if best.is_none_or(|(most, ..)| gain > most) {
                    let (here, next) = (self.x[row(key)][*feature], self.x[row(next_key)][*feature]);
                    let middle = here + (next - here) / 2.0;
                    best = Some((gain, *feature, if middle < next { middle } else { here }));
                }
            }
        }
        self.order = order;
        best.map(|(_, feature, threshold)| (feature, threshold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data() -> (Vec<Vec<f64>>, Vec<f64>) {
        let mut rng = Rng::new(7, 0);
        let x: Vec<Vec<f64>> =
            (0..200).map(|_| rng.uniform(4, 1.0).into_iter().map(f64::from).collect()).collect();
        let y = x.iter().map(|r| if r[0] > 0.2 { 3.0 } else { r[1] }).collect();
        (x, y)
    }

    #[test]
    fn a_step_and_a_slope_are_learned() {
        let (x, y) = data();
        let forest =
            search(&x[..150], &y[..150], Search { candidates: 4, ..Search::QUICK }, &mut Rng::new(1, 1));
        let fit = r2((150..200).map(|i| (forest.predict(&x[i]), y[i])));
        assert!(fit > 0.85, "{fit}");
        assert!(forest.is_whole(4) && !forest.is_whole(1));
        let text = serde_json::to_string(&forest).unwrap();
        assert_eq!(serde_json::from_str::<Forest>(&text).unwrap().predict(&x[3]), forest.predict(&x[3]));
    }

    #[test]
    fn settings_are_kept() {
        let (x, y) = data();
        let settings = Settings {
            trees: 5,
            square_root: true,
            depth: Some(2),
            min_split: 2,
            min_leaf: 4,
            bootstrap: false,
        };
        let forest = grow(&x, &y, settings, &mut Rng::new(1, 1));
        assert_eq!(forest.trees.len(), 5);
        assert!(forest.trees.iter().all(|t| t.0.len() <= 7));
        let one = grow(&x[..1], &y[..1], settings, &mut Rng::new(1, 1));
        assert_eq!(one.predict(&x[9]), y[0]);
        assert_eq!(grow(&[], &[], settings, &mut Rng::new(1, 1)).predict(&[]), 0.0);
    }
}
