//! Quantiles of weighted runs of which some were cut off.

/// A run with its weight.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Weighted {
    pub(crate) seconds: u64,
    /// It was cut off: the true time is at least this.
    pub(crate) cut: bool,
    pub(crate) weight: f64,
}

/// Quantiles, in the order of `shares` (rising), by the product-limit estimate of Kaplan and Meier with weights: the share
/// that runs on at a time is the product, over the ends up to then, of the part of the weight at risk that did not end.
/// Where the longest runs were all cut off, the rest of the distribution lies beyond them; its quantiles are the longest
/// run, which they are at least. `None` without a run.
pub(crate) fn quantiles<const N: usize>(runs: &mut [Weighted], shares: [f64; N]) -> Option<[u64; N]> {
    // At the same time ends come first: a run that was cut off then had not ended.
    runs.sort_by_key(|run| (run.seconds, run.cut));
    let longest = runs.last()?.seconds;
    let mut found = [longest; N];
    let mut next = 0;
    let mut at_risk: f64 = runs.iter().map(|run| run.weight).sum();
    let mut running = 1.0;
    for run in runs.iter() {
        if !run.cut && at_risk > 0.0 {
            running *= (1.0 - run.weight / at_risk).max(0.0);
            // Sums of weights are exact to a few parts in 10^16 times their number.
            while next < N && 1.0 - running >= shares[next] - 1e-9 {
                found[next] = run.seconds;
                next += 1;
            }
        }
        at_risk -= run.weight;
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(runs: &[(u64, bool, f64)]) -> Option<[u64; 3]> {
        let mut runs: Vec<Weighted> =
            runs.iter().map(|&(seconds, cut, weight)| Weighted { seconds, cut, weight }).collect();
        quantiles(&mut runs, [0.1, 0.5, 0.9])
    }

    #[test]
    fn without_cuts_they_are_those_of_the_weights() {
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[(7, false, 1.0)]), Some([7, 7, 7]));
        let ten: Vec<_> = (1..=10).map(|s| (s * 10, false, 1.0)).collect();
        assert_eq!(of(&ten), Some([10, 50, 90]));
        assert_eq!(of(&[(10, false, 1.0), (20, false, 8.0), (30, false, 1.0)]), Some([10, 20, 20]));
    }

    /// The example of Kaplan and Meier's method as any textbook computes it: of 5 runs one is cut off at 20.
    #[test]
    fn a_run_that_was_cut_off_moves_its_weight_to_longer_ones() {
        // 1 - 1/5 = .8 at 10; at 30 two of three remain: .8 * 2/3 = .533; at 40 .267; at 50 0.
        let runs = [(10, false, 1.0), (20, true, 1.0), (30, false, 1.0), (40, false, 1.0), (50, false, 1.0)];
        assert_eq!(of(&runs), Some([10, 40, 50]));
        // All longer runs were cut off: at least so long.
        assert_eq!(of(&[(10, false, 1.0), (60, true, 3.0)]), Some([10, 60, 60]));
        assert_eq!(of(&[(60, true, 1.0)]), Some([60, 60, 60]));
    }
}
