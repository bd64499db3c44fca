//! KACE's trainer, and what it learned as a scorer of the protocols.

use super::features::{measured, scale_of};
use super::forest::Search;
use super::protocol::Case;
use super::score::{Fitted, Scorer};
use super::shuffle::four_fifths;
use super::table::Collocation;
use super::{Error, forest, linear, network};
use carma_interference::kace::features::{Aggregation, Normalisation, Target};
use carma_interference::kace::trained::{Regression, Trained};
use carma_nn::Rng;
use serde::{Deserialize, Serialize};

/// Which regression.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RegressionKind {
    /// Linear regression: KACE's choice for its accuracy and time.
    Lr,
    /// A random forest after a randomised search.
    Rf,
    /// A neural network, 128-64-32-1.
    Nn,
}

/// How it learns.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    /// Which regression.
    pub kind: RegressionKind,
    /// How features are aggregated.
    pub aggregation: Aggregation,
    /// What is predicted.
    pub target: Target,
    /// How test rows are normalised.
    pub normalisation: Normalisation,
    /// Learn from four fifths of the training rows, as the artifact (which looks at the rest and forgets it).
    pub four_fifths: bool,
    /// Of forests.
    pub search: Search,
    /// Of forests and networks.
    pub seed: u64,
}

impl Options {
    /// As the artifact does it.
    #[must_use]
    pub const fn artifact(kind: RegressionKind) -> Self {
        Self {
            kind,
            aggregation: Aggregation::Artifact,
            target: Target::SumThroughput,
            normalisation: Normalisation::Artifact,
            four_fifths: true,
            search: Search::QUICK,
            seed: 42,
        }
    }

    /// The same learning from all training rows, and without a look at what test rows have in common.
    #[must_use]
    pub const fn honest(kind: RegressionKind) -> Self {
        Self { normalisation: Normalisation::Honest, four_fifths: false, ..Self::artifact(kind) }
    }
}

/// The artifact's seed of the inner division.
const INNER_SEED: u32 = 30;

/// A trainer.
#[derive(Debug, Clone)]
pub struct Kace {
    /// Names of the features of the rows that it will be shown.
    pub features: Vec<String>,
    /// Positions of those that it learns from.
    learn: Vec<usize>,
    /// How it learns.
    pub options: Options,
}

impl Kace {
    /// For rows of these features.
    #[must_use]
    pub fn new(features: &[String], options: Options) -> Self {
        Self { features: features.to_vec(), learn: (0..features.len()).collect(), options }
    }

    /// The same that learns from these features alone.
    ///
    /// # Errors
    /// One that the rows do not have.
    pub fn learning(mut self, names: &[String]) -> Result<Self, Error> {
        let at = |name: &String| {
            self.features.iter().position(|known| known == name).ok_or_else(|| {
                let what = format!("there is none of this name; there are: {}", self.features.join(", "));
                Error::new(format!("feature `{name}`"), what)
            })
        };
        self.learn = names.iter().map(at).collect::<Result<_, _>>()?;
        Ok(self)
    }

    /// A row with the features that it learns from, in their order: what its model is asked with.
    #[must_use]
    pub fn shown(&self, row: &Collocation) -> Collocation {
        let mut row = row.clone();
        for member in &mut row.members {
            member.features = self.learn.iter().filter_map(|at| member.features.get(*at).copied()).collect();
        }
        row
    }

    /// Trains on these rows.
    ///
    /// # Errors
    /// Too few rows (fewer than 2 in the four fifths), or progress is to be predicted without a throughput alone.
    pub fn train(&self, rows: &[&Collocation]) -> Result<Trained, Error> {
        let o = &self.options;
        let rows: Vec<&Collocation> = if o.four_fifths {
            four_fifths(INNER_SEED, rows.len()).into_iter().map(|i| rows[i]).collect()
        } else {
            rows.to_vec()
        };
        if rows.len() < 2 {
            let what = format!(
                "{} collocations to learn from; give it 2 or more, tens for a useful one",
                rows.len()
            );
            return Err(Error::new("training", what));
        }
        let names: Vec<String> = self.learn.iter().filter_map(|at| self.features.get(*at).cloned()).collect();
        let x: Vec<Vec<f64>> = rows.iter().map(|r| o.aggregation.row(&names, &self.shown(r))).collect();
        let y: Vec<f64> =
            rows.iter().map(|r| measured(o.target, &self.features, r)).collect::<Result<_, _>>()?;
        let scale = scale_of(&x);
        let target_scale = scale_of(&y.iter().map(|v| vec![*v]).collect::<Vec<_>>());
        let x: Vec<Vec<f64>> = x.iter().map(|r| scale.apply(r)).collect();
        let y: Vec<f64> = y.iter().flat_map(|v| target_scale.apply(&[*v])).collect();
        let mut rng = Rng::new(o.seed, 5);
        let model = match o.kind {
            RegressionKind::Lr => Regression::Lr(linear::fit(&x, &y)),
            RegressionKind::Rf => Regression::Rf(forest::search(&x, &y, o.search, &mut rng)),
            RegressionKind::Nn => Regression::Nn(network::train(&x, &y, &mut rng)),
        };
        Ok(Trained {
            features: names,
            aggregation: o.aggregation,
            target: o.target,
            normalisation: o.normalisation,
            rows: rows.len(),
            scale,
            target_scale,
            model,
        })
    }
}

impl Scorer for Kace {
    fn fit<'s>(&'s self, train: &[&Collocation]) -> Result<Box<dyn Fitted + 's>, Error> {
        Ok(Box::new(Asked { kace: self, trained: self.train(train)? }))
    }
}

/// What was learned, asked with rows of all features.
struct Asked<'a> {
    kace: &'a Kace,
    trained: Trained,
}

impl Fitted for Asked<'_> {
    fn scores(&self, case: &Case<'_>) -> Result<Vec<f64>, Error> {
        let rows: Vec<Collocation> = case.test.iter().map(|row| self.kace.shown(row)).collect();
        self.trained.scores(&Case { target: case.target, test: rows.iter().collect() })
    }
}

impl Fitted for Trained {
    fn scores(&self, case: &Case<'_>) -> Result<Vec<f64>, Error> {
        let rows: Vec<Vec<f64>> = case.test.iter().map(|r| self.aggregation.row(&self.features, r)).collect();
        let own = scale_of(&rows);
        let scale = match self.normalisation {
            Normalisation::Artifact => &own,
            Normalisation::Honest => &self.scale,
        };
        Ok(rows.iter().map(|r| self.model.predict(&scale.apply(r))).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kace::table::Table;

    fn table() -> Table {
        let mut text = String::from(
            "workload1,workload2,w1throughput,w2throughput,w1sm%,w2sm%,w1exclusive_throughput,w2exclusive_throughput\n",
        );
        for i in 1..40 {
            let (a, b) = (f64::from(i % 7) + 1.0, f64::from(i % 11) + 1.0);
            text.push_str(&format!(
                "a{i}_batch2-inf,b{i}_batch2-inf,{},{},{},{},{a},{b}\n",
                a,
                0.5 * b,
                10.0 * a,
                8.0 * b
            ));
        }
        Table::parse("t.csv", text.as_bytes()).unwrap()
    }

    fn train(kind: RegressionKind) -> (Table, Trained) {
        let table = table();
        let rows: Vec<&Collocation> = table.rows.iter().collect();
        let options = Options { search: Search { candidates: 2, ..Search::QUICK }, ..Options::honest(kind) };
        let trained = Kace::new(&table.features, options).train(&rows).unwrap();
        (table, trained)
    }

    #[test]
    fn models_come_back_from_their_files() {
        for kind in [RegressionKind::Lr, RegressionKind::Rf, RegressionKind::Nn] {
            let (table, trained) = train(kind);
            let text = trained.write("t.csv").unwrap();
            let again = Trained::read("m.json", &text).unwrap();
            for row in &table.rows {
                assert_eq!(again.predict(row), trained.predict(row), "{kind:?}");
            }
            let off: f64 = table.rows.iter().map(|r| (trained.predict(r) - r.sum()).abs()).sum::<f64>()
                / table.rows.len() as f64;
            assert!(off < 1.0, "{kind:?}: {off}");
        }
    }

    #[test]
    fn too_few_rows_are_refused() {
        let table = table();
        let kace = Kace::new(&table.features, Options::artifact(RegressionKind::Lr));
        let error = kace.train(&[&table.rows[0]]).unwrap_err().to_string();
        assert!(error.contains("0 collocations to learn from"), "{error}");
        let no_solo =
            Kace::new(&table.features[..1], Options { target: Target::SumProgress, ..kace.options });
        assert!(no_solo.train(&table.rows.iter().collect::<Vec<_>>()).is_err());
    }
}
