//! Means, medians and percentiles. There are several meanings of each, and numbers that are stored or published rest on one of
//! them: here each has a name of its own.
//!
//! Crates of the field have more of it, but none says which of the meanings it has for small samples; these are a line each.
//! The decision core depends on nothing and has its one percentile in `carma_core::windows`.

/// Arithmetic mean; `None` of nothing.
pub fn mean(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let (mut sum, mut count) = (0.0, 0.0);
    for value in values {
        sum += value;
        count += 1.0;
    }
    (count > 0.0).then(|| sum / count)
}

/// In ascending order, by `f64::total_cmp`.
#[must_use]
pub fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

/// Median: of an even number of values the mean of the two in the middle. `None` of nothing.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let values = sorted(values.into_iter().collect());
    let n = values.len();
    Some(f64::midpoint(*values.get(n.wrapping_sub(1) / 2)?, *values.get(n / 2)?))
}

/// High median: of an even number of values the upper of the two in the middle, so that it is a value that was seen.
#[must_use]
pub fn high_median<T: Copy>(sorted: &[T]) -> Option<T> {
    sorted.get(sorted.len() / 2).copied()
}

/// Low median: of an even number of values the lower of the two in the middle.
#[must_use]
pub fn low_median<T: Copy>(sorted: &[T]) -> Option<T> {
    sorted.get(sorted.len().checked_sub(1)? / 2).copied()
}

/// Quantile `q` (0 to 1) with linear interpolation between the closest ranks, as numpy's default (Hyndman and Fan 1996, type
/// 7). `None` of nothing.
#[must_use]
pub fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let rank = q * sorted.len().checked_sub(1)? as f64;
    let (low, high) = (*sorted.get(rank.floor() as usize)?, *sorted.get(rank.ceil() as usize)?);
    Some(low + (high - low) * (rank - rank.floor()))
}

/// The least value that at least `percent` of 100 values do not exceed (type 1: nearest rank). `None` of nothing.
#[must_use]
pub fn nearest_rank<T: Copy>(sorted: &[T], percent: usize) -> Option<T> {
    sorted.get((sorted.len() * percent).div_ceil(100).saturating_sub(1)).copied()
}

/// The rank, from 1, of the value that covers the next one with this probability: `ceil((n + 1) q)` (split conformal
/// prediction; Vovk, Gammerman, Shafer 2005). Beyond `n` nothing is known.
#[must_use]
pub fn conformal_rank(n: usize, coverage: f64) -> usize {
    (((n + 1) as f64 * coverage).ceil() as usize).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_and_even_numbers() {
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!((low_median(&[1, 2, 3, 4]), high_median(&[1, 2, 3, 4])), (Some(2), Some(3)));
        assert_eq!((low_median(&[1, 2, 3]), high_median(&[1, 2, 3])), (Some(2), Some(2)));
        assert_eq!((median([]), low_median::<u8>(&[]), high_median::<u8>(&[])), (None, None, None));
    }

    #[test]
    fn quantiles() {
        let ten: Vec<f64> = (1..=10).map(f64::from).collect();
        assert_eq!(quantile(&ten, 0.5), Some(5.5));
        assert_eq!((quantile(&ten, 0.0), quantile(&ten, 1.0)), (Some(1.0), Some(10.0)));
        assert!((quantile(&ten, 0.95).unwrap_or_default() - 9.55).abs() < 1e-12);
        assert_eq!((nearest_rank(&ten, 95), nearest_rank(&ten, 50)), (Some(10.0), Some(5.0)));
        assert_eq!((quantile(&[], 0.5), nearest_rank::<u8>(&[], 50), mean([])), (None, None, None));
        assert_eq!(mean([1.0, 2.0]), Some(1.5));
    }

    #[test]
    fn a_conformal_rank_lies_beyond_few_values() {
        assert_eq!([conformal_rank(19, 0.95), conformal_rank(18, 0.95), conformal_rank(0, 0.0)], [19, 19, 1]);
    }
}
