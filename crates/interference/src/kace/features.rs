//! One vector for a collocation, whatever its size: KACE's aggregation and normalisation.

use super::row::Collocation;
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
    pub fn row(self, names: &[String], row: &Collocation) -> Vec<f64> {
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

/// Mean and standard deviation of each column.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Scale {
    /// Mean of each feature in training.
    pub mean: Vec<f64>,
    /// Standard deviations (n - 1); 0 for a column that does not vary: it becomes 0.
    pub deviation: Vec<f64>,
}

impl Scale {
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
    use super::super::row::Member;
    use super::*;

    #[test]
    fn percentages_are_averaged_and_the_rest_is_summed() {
        let names = ["sm%", "_DRAM Throughput", "exclusive_throughput"].map(str::to_owned);
        let member = |features: [f64; 3]| Member {
            workload: "a".into(),
            throughput: 1.0,
            features: features.to_vec(),
        };
        let row = Collocation { members: vec![member([10.0, 40.0, 2.0]), member([30.0, 60.0, 8.0])] };
        assert_eq!(Aggregation::Artifact.row(&names, &row), [20.0, 100.0, 10.0]);
        assert_eq!(Aggregation::PercentagesAveraged.row(&names, &row), [20.0, 50.0, 10.0]);
    }

    #[test]
    fn columns_that_do_not_vary_become_0() {
        let scale = Scale { mean: vec![2.0, 7.3], deviation: vec![2.0, 0.0] };
        assert_eq!(scale.apply(&[5.0, 9.0]), [1.5, 0.0]);
    }
}
