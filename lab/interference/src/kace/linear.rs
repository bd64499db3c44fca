//! Linear regression: the least squares of least norm, which also exist where features are collinear or more than
//! rows.

use carma_interference::kace::linear::Linear;

/// Fits rows `x` to `y`. No row: everything 0.
#[must_use]
pub fn fit(x: &[Vec<f64>], y: &[f64]) -> Linear {
    let (n, d) = (x.len(), x.first().map_or(0, Vec::len));
    if n == 0 {
        return Linear { intercept: 0.0, weights: vec![0.0; d] };
    }
    let mean_y = y.iter().sum::<f64>() / n as f64;
    let means: Vec<f64> = (0..d).map(|c| x.iter().map(|r| r[c]).sum::<f64>() / n as f64).collect();
    let columns: Vec<Vec<f64>> = (0..d).map(|c| x.iter().map(|r| r[c] - means[c]).collect()).collect();
    let centred: Vec<f64> = y.iter().map(|v| v - mean_y).collect();
    let weights = least_norm(columns, &centred);
    let intercept = mean_y - weights.iter().zip(&means).map(|(w, m)| w * m).sum::<f64>();
    Linear { intercept, weights }
}

/// Least norm of all `w` that bring `sum of w_c column_c` nearest to `y`, by the singular values (one-sided Jacobi,
/// Hestenes 1958): columns are turned in pairs until all are orthogonal, `X V = U S`, then `w = V S^-1 U' y` without
/// the singular values that are 0 but for rounding.
fn least_norm(mut columns: Vec<Vec<f64>>, y: &[f64]) -> Vec<f64> {
    let d = columns.len();
    let mut v: Vec<Vec<f64>> =
        (0..d).map(|c| (0..d).map(|r| f64::from(u8::from(r == c))).collect()).collect();
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
    // Each sweep halves the number of wrong digits at least; 60 are beyond any need.
    for _ in 0..60 {
        let mut turned = false;
        for p in 0..d {
            for q in p + 1..d {
                let (a, b, c) = (
                    dot(&columns[p], &columns[p]),
                    dot(&columns[q], &columns[q]),
                    dot(&columns[p], &columns[q]),
                );
                if c == 0.0 || c.abs() <= 1e-15 * (a * b).sqrt() {
                    continue;
                }
                turned = true;
                let zeta = (b - a) / (2.0 * c);
                let t = zeta.signum() / (zeta.abs() + (1.0 + zeta * zeta).sqrt());
                let cos = 1.0 / (1.0 + t * t).sqrt();
                turn(&mut columns, p, q, cos, cos * t);
                turn(&mut v, p, q, cos, cos * t);
            }
        }
        if !turned {
            break;
        }
    }
    let squares: Vec<f64> = columns.iter().map(|c| dot(c, c)).collect();
    let largest = squares.iter().copied().fold(0.0, f64::max).sqrt();
    let smallest = largest * f64::EPSILON * y.len().max(d) as f64;
    let mut w = vec![0.0; d];
    for ((column, square), direction) in columns.iter().zip(&squares).zip(&v) {
        if square.sqrt() > smallest {
            let along = dot(column, y) / square;
            w.iter_mut().zip(direction).for_each(|(w, v)| *w += along * v);
        }
    }
    w
}

/// Turns columns `p` and `q`.
fn turn(columns: &mut [Vec<f64>], p: usize, q: usize, cos: f64, sin: f64) {
    let (left, right) = columns.split_at_mut(q);
    for (a, b) in left[p].iter_mut().zip(&mut right[0]) {
        (*a, *b) = (cos * *a - sin * *b, sin * *a + cos * *b);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn collinear_features_share_the_weight() {
        let x: Vec<Vec<f64>> = [0.0, 1.0, 2.0, 5.0].iter().map(|v| vec![*v, *v, 3.0]).collect();
        let y: Vec<f64> = x.iter().map(|r| 1.0 + 4.0 * r[0]).collect();
        let linear = fit(&x, &y);
        for (w, expected) in linear.weights.iter().zip([2.0, 2.0, 0.0]) {
            assert!((w - expected).abs() < 1e-12, "{linear:?}");
        }
        assert!((linear.predict(&[3.0, 3.0, 3.0]) - 13.0).abs() < 1e-12);
    }

    #[test]
    fn more_features_than_rows_fit_exactly() {
        let x = vec![vec![1.0, 2.0, 3.0, 4.0], vec![2.0, 1.0, 0.0, 1.0]];
        let linear = fit(&x, &[5.0, -1.0]);
        assert!((linear.predict(&x[0]) - 5.0).abs() < 1e-12 && (linear.predict(&x[1]) + 1.0).abs() < 1e-12);
        assert_eq!(fit(&[], &[]).predict(&[]), 0.0);
    }

    proptest! {
        #[test]
        fn residuals_are_orthogonal_to_features(
            x in prop::collection::vec(prop::collection::vec(-10.0..10.0_f64, 4), 1..20),
            seed in prop::collection::vec(-10.0..10.0_f64, 20),
        ) {
            let y = &seed[..x.len()];
            let linear = fit(&x, y);
            let residuals: Vec<f64> = x.iter().zip(y).map(|(r, y)| y - linear.predict(r)).collect();
            prop_assert!(residuals.iter().sum::<f64>().abs() < 1e-6);
            for c in 0..4 {
                let along: f64 = x.iter().zip(&residuals).map(|(r, e)| r[c] * e).sum();
                prop_assert!(along.abs() < 1e-6, "{along}");
            }
        }
    }
}
