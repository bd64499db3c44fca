//! Means and medians.

/// Median; of an even number the mean of the two in the middle. NaN of nothing.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    match (values.get(n.wrapping_sub(1) / 2), values.get(n / 2)) {
        (Some(a), Some(b)) => f64::midpoint(*a, *b),
        _ => f64::NAN,
    }
}
