//! One vector for a collocation, whatever its size: KACE's aggregation and normalisation.

use super::Error;
use super::table::{Row, SOLO};
use serde::{Deserialize, Serialize};

/// How the members' features become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Aggregation {
    /// As the artifact: the mean where the name has a `%`, the sum otherwise. Nsight Compute's throughputs are
    /// percentages, but their names have no `%`: they are summed.
    #[default]
    Artifact,
    /// As the talk: the mean of all percentages, Nsight Compute's throughputs included, the sum of the rest.
    PercentagesAveraged,
}

/// What is predicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// Sum of the members' items/s, as in the paper.
    #[default]
    SumThroughput,
    /// Sum of the members' throughput over their throughput alone (`L2norm` in the artifact).
    SumProgress,
}

/// With what mean and standard deviation test rows are normalised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Normalisation {
    /// As the artifact: those of the test rows of the case themselves. A single row can't be scored then, and a
    /// prediction has no level.
    Artifact,
    /// Those of the training rows.
    #[default]
    Honest,
}

impl Aggregation {
    /// The aggregated features of a row, in the order of `names`.
    pub fn row(self, names: &[String], row: &Row) -> Vec<f64> {
        let k = row.members.len().max(1) as f64;
        let one = |(f, name): (usize, &String)| {
            let sum: f64 = row.members.iter().filter_map(|m| m.features.get(f)).sum();
            let percentage = name.contains('%')
                || (self == Self::PercentagesAveraged
                    && name.starts_with('_')
                    && name.ends_with(" Throughput"));
            if percentage { sum / k } else { sum }
        };
        names.iter().enumerate().map(one).collect()
    }
}

impl Target {
    /// What was measured.
    ///
    /// # Errors
    /// Progress is asked for and the table has no throughput alone.
    pub fn of(self, names: &[String], row: &Row) -> Result<f64, Error> {
        match self {
            Self::SumThroughput => Ok(row.sum()),
            Self::SumProgress => {
                let solo = names.iter().position(|n| n == SOLO).ok_or_else(|| {
                    Error::new(
                        "the sum of progress",
                        format!("needs the throughput alone, a feature `{SOLO}`"),
                    )
                })?;
                Ok(row.members.iter().map(|m| m.throughput / m.features[solo]).sum())
            }
        }
    }
}

/// Mean and standard deviation of each column.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Scale {
    /// Means.
    pub mean: Vec<f64>,
    /// Standard deviations (n - 1); 0 for a column that does not vary: it becomes 0.
    pub deviation: Vec<f64>,
}

impl Scale {
    /// Of these rows, all as long as the first.
    #[must_use]
    pub fn of(rows: &[Vec<f64>]) -> Self {
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
        Self { deviation: mean.iter().enumerate().map(deviation).collect(), mean }
    }

    /// A row in units of the standard deviation from the mean.
    #[must_use]
    pub fn apply(&self, row: &[f64]) -> Vec<f64> {
        let one = |((v, mean), deviation): ((&f64, &f64), &f64)| {
            if *deviation > 0.0 { (v - mean) / deviation } else { 0.0 }
        };
        row.iter().zip(&self.mean).zip(&self.deviation).map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kace::table::Table;

    #[test]
    fn percentages_are_averaged_and_the_rest_is_summed() {
        let text = "workload1,workload2,w1throughput,w2throughput,w1sm%,w2sm%,w1_DRAM Throughput,w2_DRAM Throughput,\
            w1exclusive_throughput,w2exclusive_throughput\na,b,1,2,10,30,40,60,2,8\n";
        let table = Table::parse("t", text.as_bytes()).unwrap();
        let row = &table.rows[0];
        assert_eq!(Aggregation::Artifact.row(&table.features, row), [20.0, 100.0, 10.0]);
        assert_eq!(Aggregation::PercentagesAveraged.row(&table.features, row), [20.0, 50.0, 10.0]);
        assert_eq!(Target::SumThroughput.of(&table.features, row), Ok(3.0));
        assert_eq!(Target::SumProgress.of(&table.features, row), Ok(0.75));
        assert!(Target::SumProgress.of(&table.features[..1], row).is_err());
    }

    #[test]
    fn columns_that_do_not_vary_become_0() {
        let scale = Scale::of(&[vec![1.0, 7.3], vec![3.0, 7.3]]);
        assert_eq!(scale.apply(&[2.0, 9.0]), [0.0, 0.0]);
        assert!((scale.apply(&[4.0, 9.0])[0] - 2.0 / 2.0_f64.sqrt()).abs() < 1e-12);
        assert_eq!(Scale::of(&[vec![5.0]]).apply(&[6.0]), [0.0]);
    }
}
