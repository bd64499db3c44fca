//! Random groups of tasks.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use std::collections::{BTreeMap, BTreeSet};

/// `count` of the groups of `k` of `n` tasks: random, none twice, each task and then each pair about equally
/// often. All of them, if there are no more.
pub(super) fn draw(n: usize, k: usize, count: usize, seed: u64) -> Vec<Vec<usize>> {
    /// Candidates of which the best is taken.
    const TRIES: usize = 300;
    let possible = (0..k).try_fold(1_u128, |product, i| Some(product * (n.checked_sub(i)? as u128)));
    let possible = possible.unwrap_or(0) / (1..=k as u128).product::<u128>();
    let count = usize::try_from(possible).map_or(count, |possible| count.min(possible));
    let mut random = Pcg64::seed_from_u64(seed ^ (k as u64) << 32);
    let mut singles = vec![0_u64; n];
    let mut pairs: BTreeMap<(usize, usize), u64> = BTreeMap::new();
    let mut chosen: BTreeSet<Vec<usize>> = BTreeSet::new();
    let mut order = Vec::new();
    while order.len() < count {
        let mut best: Option<((u64, u64), Vec<usize>)> = None;
        for _ in 0..TRIES {
            let mut group = Vec::with_capacity(k);
            while group.len() < k {
                let task = random.random_range(0..n);
                if !group.contains(&task) {
                    group.push(task);
                }
            }
            group.sort_unstable();
            let often: u64 = group.iter().map(|&t| singles[t] * singles[t]).sum();
            let met: u64 = pairs_of(&group).map(|pair| pairs.get(&pair).copied().unwrap_or(0)).sum();
            if !chosen.contains(&group) && best.as_ref().is_none_or(|(cost, _)| (often, met) < *cost) {
                best = Some(((often, met), group));
            }
        }
        // None new among the tries: nearly all are taken, and more tries will find one.
        let Some((_, group)) = best else { continue };
        for &task in &group {
            singles[task] += 1;
        }
        for pair in pairs_of(&group) {
            *pairs.entry(pair).or_default() += 1;
        }
        chosen.insert(group.clone());
        order.push(group);
    }
    order
}

fn pairs_of(group: &[usize]) -> impl Iterator<Item = (usize, usize)> {
    group.iter().enumerate().flat_map(|(at, &a)| group[at + 1..].iter().map(move |&b| (a, b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_groups_are_distinct_and_even() {
        for (n, k, count) in [(17, 3, 60), (17, 4, 20), (12, 3, 60)] {
            let groups = draw(n, k, count, 1);
            assert_eq!(groups.len(), count);
            let distinct: BTreeSet<_> = groups.iter().cloned().collect();
            assert_eq!(distinct.len(), count);
            let times = |t: usize| groups.iter().filter(|g| g.contains(&t)).count();
            let (least, most) = ((0..n).map(times).min().unwrap(), (0..n).map(times).max().unwrap());
            assert!(most - least <= 2, "{n} {k}: {least} to {most}");
            assert_eq!(groups, draw(n, k, count, 1));
            assert_ne!(groups, draw(n, k, count, 2));
        }
        assert_eq!(draw(4, 3, 60, 1).len(), 4, "there are no more");
        assert_eq!(draw(2, 3, 60, 1).len(), 0);
    }
}
