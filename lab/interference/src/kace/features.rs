//! What training takes from a table: the target that was measured, and how its columns are scaled.

use super::Error;
use super::table::{Collocation, SOLO};
use carma_interference::kace::features::{Scale, Target};

/// What was measured of a row whose members have the features `names`.
///
/// # Errors
/// Progress is asked for and the table has no throughput alone.
pub fn measured(target: Target, names: &[String], row: &Collocation) -> Result<f64, Error> {
    match target {
        Target::SumThroughput => Ok(row.sum()),
        Target::SumProgress => {
            let solo = names.iter().position(|n| n == SOLO).ok_or_else(|| {
                Error::new("the sum of progress", format!("needs the throughput alone, a feature `{SOLO}`"))
            })?;
            Ok(row.members.iter().map(|m| m.throughput / m.features[solo]).sum())
        }
    }
}

/// Mean and standard deviation of the columns of these rows, all as long as the first.
#[must_use]
pub fn scale_of(rows: &[Vec<f64>]) -> Scale {
    let columns = rows.first().map_or(0, Vec::len);
    let n = rows.len() as f64;
    let column = |c: usize| rows.iter().map(move |r| r[c]);
    let mean: Vec<f64> = (0..columns).map(|c| column(c).sum::<f64>() / n).collect();
    let deviation = |(c, mean): (usize, &f64)| {
        let varies = rows.windows(2).any(|w| w[0][c] != w[1][c]);
        if !varies {
            return 0.0;
        }
        (column(c).map(|v| (v - mean) * (v - mean)).sum::<f64>() / (n - 1.0)).sqrt()
    };
    Scale { deviation: mean.iter().enumerate().map(deviation).collect(), mean }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kace::table::Table;

    #[test]
    fn progress_needs_the_throughput_alone() {
        let text = "workload1,workload2,w1throughput,w2throughput,w1sm%,w2sm%,w1exclusive_throughput,\
            w2exclusive_throughput\na,b,1,2,10,30,2,8\n";
        let table = Table::parse("t", text.as_bytes()).unwrap();
        let row = &table.rows[0];
        assert_eq!(measured(Target::SumThroughput, &table.features, row), Ok(3.0));
        assert_eq!(measured(Target::SumProgress, &table.features, row), Ok(0.75));
        assert!(measured(Target::SumProgress, &table.features[..1], row).is_err());
    }

    #[test]
    fn columns_that_do_not_vary_become_0() {
        let scale = scale_of(&[vec![1.0, 7.3], vec![3.0, 7.3]]);
        assert_eq!(scale.apply(&[2.0, 9.0]), [0.0, 0.0]);
        assert!((scale.apply(&[4.0, 9.0])[0] - 2.0 / 2.0_f64.sqrt()).abs() < 1e-12);
        assert_eq!(scale_of(&[vec![5.0]]).apply(&[6.0]), [0.0]);
    }
}
