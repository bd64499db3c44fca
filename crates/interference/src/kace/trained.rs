//! What KACE learned, as it is kept in a file, and what it predicts.

use super::Error;
use super::features::{Aggregation, Normalisation, Scale, Target};
use super::forest::Forest;
use super::linear::Linear;
use super::network::Network;
use super::row::Collocation;
use serde::{Deserialize, Serialize};

/// What was learned.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trained {
    /// Names of the features of the rows that it can be shown.
    pub features: Vec<String>,
    /// How they are aggregated.
    pub aggregation: Aggregation,
    /// What is predicted.
    pub target: Target,
    /// How the rows of a case are normalised.
    pub normalisation: Normalisation,
    /// Number of rows that it learned from.
    pub rows: usize,
    /// Of aggregated features in training.
    pub scale: Scale,
    /// Mean and standard deviation of the target in training.
    pub target_scale: Scale,
    /// The regression, between normalised numbers.
    pub model: Regression,
}

/// A regression.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Regression {
    /// Linear regression.
    Lr(Linear),
    /// A random forest.
    Rf(Forest),
    /// A neural network.
    Nn(Network),
}

impl Regression {
    /// For one normalised row.
    #[must_use]
    pub fn predict(&self, x: &[f64]) -> f64 {
        match self {
            Self::Lr(m) => m.predict(x),
            Self::Rf(m) => m.predict(x),
            Self::Nn(m) => m.predict(x),
        }
    }

    fn fits(&self, features: usize) -> bool {
        match self {
            Self::Lr(m) => m.is_whole(features),
            Self::Rf(m) => m.is_whole(features),
            Self::Nn(m) => m.is_whole(features),
        }
    }
}

/// First words of a model file.
const FORMAT: &str = "carma-kace";
/// Raised when features, models or layout change.
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct File<T> {
    format: String,
    version: u32,
    /// Name of the table.
    learned_from: String,
    trained: T,
}

/// What carma ships: learned from our own measurements by what `nvidia-smi` tells, `docs/research/kace.md`.
const SHIPPED: &str = include_str!("../../models/kace.json");

impl Trained {
    /// The model that carma ships. A test keeps it readable.
    #[must_use]
    pub fn shipped() -> Option<Self> {
        Self::read("the KACE model that carma ships", SHIPPED).ok()
    }

    /// What is predicted for one collocation, by the statistics of training: items/s, or summed progress. Not finite
    /// where the numbers of the model or of the row are too large: see [`Trained::forecast`].
    #[must_use]
    pub fn predict(&self, row: &Collocation) -> f64 {
        let x = self.scale.apply(&self.aggregation.row(&self.features, row));
        let (mean, deviation) = (self.target_scale.mean.first(), self.target_scale.deviation.first());
        mean.copied().unwrap_or(0.0) + deviation.copied().unwrap_or(0.0) * self.model.predict(&x)
    }

    /// As [`Trained::predict`], but always a finite number.
    ///
    /// # Errors
    /// The prediction is not finite; the message names the collocation.
    pub fn forecast(&self, row: &Collocation) -> Result<f64, Error> {
        let value = self.predict(row);
        if value.is_finite() {
            return Ok(value);
        }
        let names: Vec<&str> = row.members.iter().map(|m| m.workload.as_str()).collect();
        let what = "the model's prediction is no finite number: its weights, or the features given to it, are too \
                    large; check the features, or train it again with `carma lab kace train`";
        Err(Error::new(names.join(" + "), what))
    }

    fn is_whole(&self) -> bool {
        let columns = self.features.len();
        let fine = |s: &Scale, n: usize| {
            s.mean.len() == n
                && s.deviation.len() == n
                && s.mean.iter().chain(&s.deviation).all(|v| v.is_finite())
        };
        fine(&self.scale, columns) && fine(&self.target_scale, 1) && self.model.fits(columns)
    }

    /// The text of a model file.
    ///
    /// # Errors
    /// A number in it is not finite.
    pub fn write(&self, learned_from: &str) -> Result<String, Error> {
        if !self.is_whole() {
            let what = "what was learned holds numbers that are not finite; look for cells of the table that are far \
                        from all others";
            return Err(Error::new(learned_from, what));
        }
        let file = File {
            format: FORMAT.into(),
            version: VERSION,
            learned_from: learned_from.into(),
            trained: self,
        };
        serde_json::to_string(&file).map_err(|e| Error::new("model", format!("cannot be written: {e}")))
    }

    /// Reads a model file's text; `place` names it in errors.
    ///
    /// # Errors
    /// No model file, one of another version, or damaged.
    pub fn read(place: &str, text: &str) -> Result<Self, Error> {
        #[derive(Deserialize)]
        struct Head {
            format: String,
            version: u32,
        }
        let again = "train it again with `carma lab kace train`";
        let bad = |e: serde_json::Error| {
            Error::new(place, format!("no model of `carma lab kace train`: {e}; {again}"))
        };
        let head: Head = serde_json::from_str(text).map_err(bad)?;
        if head.format != FORMAT {
            let what = format!("a file of `{}`, expected `{FORMAT}`; {again}", head.format.escape_debug());
            return Err(Error::new(place, what));
        }
        if head.version != VERSION {
            let what =
                format!("a model of version {}, this carma reads version {VERSION}; {again}", head.version);
            return Err(Error::new(place, what));
        }
        let file: File<Self> = serde_json::from_str(text).map_err(bad)?;
        let t = file.trained;
        if !t.is_whole() {
            return Err(Error::new(
                place,
                format!("a damaged model: its parts do not fit together; {again}"),
            ));
        }
        Ok(t)
    }
}

#[cfg(test)]
mod tests {
    use super::super::forest::{Node, Settings, Tree};
    use super::super::network::WIDTHS;
    use super::super::row::{Member, SM_BUSY};
    use super::*;

    /// One of each kind, for a table of one feature; all answer 1 in the units of training.
    fn models() -> [Regression; 3] {
        let settings = Settings {
            trees: 1,
            square_root: true,
            depth: None,
            min_split: 2,
            min_leaf: 1,
            bootstrap: false,
        };
        let mut weights = Vec::new();
        for (inp, out) in std::iter::once(1).chain(WIDTHS).zip(WIDTHS) {
            weights.extend(vec![0.0; inp * out]);
            weights.extend(vec![1.0; out]);
        }
        [
            Regression::Lr(Linear { intercept: 1.0, weights: vec![0.0] }),
            Regression::Rf(Forest { settings, trees: vec![Tree(vec![Node::Leaf(1.0)])] }),
            Regression::Nn(Network { features: 1, weights }),
        ]
    }

    fn trained(model: Regression) -> Trained {
        Trained {
            features: vec!["sm%".into()],
            aggregation: Aggregation::Artifact,
            target: Target::SumThroughput,
            normalisation: Normalisation::Honest,
            rows: 3,
            scale: Scale { mean: vec![50.0], deviation: vec![10.0] },
            target_scale: Scale { mean: vec![7.0], deviation: vec![2.0] },
            model,
        }
    }

    fn row() -> Collocation {
        let member = |name: &str| Member { workload: name.into(), throughput: 0.0, features: vec![40.0] };
        Collocation { members: vec![member("a"), member("b")] }
    }

    #[test]
    fn what_is_shipped_prefers_the_idle_to_the_busy() {
        let shipped = Trained::shipped().unwrap();
        let at = shipped.features.iter().position(|name| name == SM_BUSY).unwrap();
        let pair = |busy: f64| {
            let mut features = shipped.scale.mean.clone();
            features[at] = busy;
            let member = Member { workload: "a".into(), throughput: 0.0, features };
            shipped.predict(&Collocation { members: vec![member.clone(), member] })
        };
        assert!(pair(10.0) > pair(50.0) && pair(50.0) > pair(95.0));
    }

    #[test]
    fn models_come_back_from_their_files() {
        for trained in models().map(trained) {
            let again = Trained::read("m.json", &trained.write("t.csv").unwrap()).unwrap();
            assert_eq!((again.predict(&row()), &again), (9.0, &trained));
        }
    }

    #[test]
    fn predictions_that_are_no_number_are_refused() {
        for mut trained in models().map(trained) {
            assert_eq!(trained.forecast(&row()), Ok(9.0));
            // Finite, so the file is read; what is predicted with it is not.
            trained.target_scale = Scale { mean: vec![f64::MAX], deviation: vec![f64::MAX] };
            let again = Trained::read("m.json", &trained.write("t.csv").unwrap()).unwrap();
            let error = again.forecast(&row()).unwrap_err().to_string();
            assert!(error.starts_with("a + b: ") && error.contains("no finite number"), "{error}");
            trained.scale.mean[0] = f64::INFINITY;
            assert!(trained.write("t.csv").unwrap_err().to_string().contains("not finite"), "{trained:?}");
        }
    }

    #[test]
    fn files_of_another_version_and_damaged_ones_are_refused() {
        let [linear, ..] = models();
        let text = trained(linear).write("t.csv").unwrap();
        for (from, to, said) in [
            ("\"version\":1", "\"version\":2", "version 2, this carma reads version 1; train it again"),
            ("carma-kace", "carma-cake", "a file of `carma-cake`"),
            ("\"deviation\":[", "\"deviation\":[1.0,", "do not fit together"),
            ("{\"format\"", "[", "no model of `carma lab kace train`"),
        ] {
            let error = Trained::read("m.json", &text.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.starts_with("m.json: ") && error.contains(said), "{error}");
        }
    }
}
