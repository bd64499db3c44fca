//! KACE's trainer and predictor, and Xu et al. with their features in its place.

use super::features::{Aggregation, Normalisation, Scale, Target};
use super::forest::{Forest, Search};
use super::linear::Linear;
use super::network::Network;
use super::protocol::Case;
use super::score::{Fitted, Scorer};
use super::shuffle::four_fifths;
use super::table::{Member, Row};
use super::{Artifact, Error};
use carma_nn::Rng;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Which regression.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
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
    pub kind: Kind,
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
    pub const fn artifact(kind: Kind) -> Self {
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
    pub const fn honest(kind: Kind) -> Self {
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
    /// How it learns.
    pub options: Options,
}

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
    pub model: Model,
}

/// A regression.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Model {
    /// See [`Kind::Lr`].
    Lr(Linear),
    /// See [`Kind::Rf`].
    Rf(Forest),
    /// See [`Kind::Nn`].
    Nn(Network),
}

impl Model {
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
            Self::Lr(m) => {
                m.weights.len() == features
                    && m.weights.iter().all(|w| w.is_finite())
                    && m.intercept.is_finite()
            }
            Self::Rf(m) => m.is_whole(features),
            Self::Nn(m) => m.features() == features && m.is_finite(),
        }
    }
}

impl Kace {
    /// For rows of these features.
    #[must_use]
    pub fn new(features: &[String], options: Options) -> Self {
        Self { features: features.to_vec(), options }
    }

    /// Learns.
    ///
    /// # Errors
    /// Too few rows (fewer than 2 in the four fifths), or progress is to be predicted without a throughput alone.
    pub fn train(&self, rows: &[&Row]) -> Result<Trained, Error> {
        let o = &self.options;
        let rows: Vec<&Row> = if o.four_fifths {
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
        let x: Vec<Vec<f64>> = rows.iter().map(|r| o.aggregation.row(&self.features, r)).collect();
        let y: Vec<f64> = rows.iter().map(|r| o.target.of(&self.features, r)).collect::<Result<_, _>>()?;
        let scale = Scale::of(&x);
        let target_scale = Scale::of(&y.iter().map(|v| vec![*v]).collect::<Vec<_>>());
        let x: Vec<Vec<f64>> = x.iter().map(|r| scale.apply(r)).collect();
        let y: Vec<f64> = y.iter().flat_map(|v| target_scale.apply(&[*v])).collect();
        let mut rng = Rng::new(o.seed, 5);
        let model = match o.kind {
            Kind::Lr => Model::Lr(Linear::fit(&x, &y)),
            Kind::Rf => Model::Rf(Forest::search(&x, &y, o.search, &mut rng)),
            Kind::Nn => Model::Nn(Network::train(&x, &y, &mut rng)),
        };
        Ok(Trained {
            features: self.features.clone(),
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
    fn fit<'s>(&'s self, train: &[&Row]) -> Result<Box<dyn Fitted + 's>, Error> {
        Ok(Box::new(self.train(train)?))
    }
}

impl Fitted for Trained {
    fn scores(&self, case: &Case<'_>) -> Result<Vec<f64>, Error> {
        let rows: Vec<Vec<f64>> = case.test.iter().map(|r| self.aggregation.row(&self.features, r)).collect();
        let own = Scale::of(&rows);
        let scale = match self.normalisation {
            Normalisation::Artifact => &own,
            Normalisation::Honest => &self.scale,
        };
        Ok(rows.iter().map(|r| self.model.predict(&scale.apply(r))).collect())
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

impl Trained {
    /// What is predicted for one collocation, by the statistics of training: items/s, or summed progress. Not finite
    /// where the numbers of the model or of the row are too large: see [`Trained::forecast`].
    #[must_use]
    pub fn predict(&self, row: &Row) -> f64 {
        let x = self.scale.apply(&self.aggregation.row(&self.features, row));
        let (mean, deviation) = (self.target_scale.mean.first(), self.target_scale.deviation.first());
        mean.copied().unwrap_or(0.0) + deviation.copied().unwrap_or(0.0) * self.model.predict(&x)
    }

    /// As [`Trained::predict`], but always a finite number.
    ///
    /// # Errors
    /// The prediction is not finite; the message names the collocation.
    pub fn forecast(&self, row: &Row) -> Result<f64, Error> {
        let value = self.predict(row);
        if value.is_finite() {
            return Ok(value);
        }
        let names: Vec<&str> = row.members.iter().map(|m| m.workload.as_str()).collect();
        let what = "the model's prediction is no finite number: its weights, or the features given to it, are too \
                    large; check the features, or train it again with `carma kace train`";
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
        let again = "train it again with `carma kace train`";
        let bad =
            |e: serde_json::Error| Error::new(place, format!("no model of `carma kace train`: {e}; {again}"));
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

/// Xu et al. (HotCloud 2019) as KACE's artifact rebuilt them: a random forest on PCIe bandwidths, kernel lengths,
/// threads and utilisations. **For comparison offline only**: kernel length as a predictor of placement is covered
/// by US patent 11113093; nothing in carma places tasks by it.
#[derive(Debug, Clone)]
pub struct XuOffline {
    solo: BTreeMap<String, Vec<f64>>,
    kace: Kace,
}

impl XuOffline {
    /// From the artifact's solo profiles of Xu et al.'s features.
    ///
    /// # Errors
    /// Their files are absent or wrong.
    pub fn new(artifact: &Artifact, options: Options) -> Result<Self, Error> {
        let (features, solo) = artifact.solo_hotcloud()?;
        Ok(Self { solo, kace: Kace::new(&features, options) })
    }

    fn row(&self, row: &Row) -> Result<Row, Error> {
        let member = |m: &Member| {
            let features = self.solo.get(&m.workload).cloned().ok_or_else(|| {
                Error::new(
                    &m.workload,
                    "no solo profile with the features of Xu et al. in ncu_solo_features_hotcloud.csv",
                )
            })?;
            Ok(Member { features, ..m.clone() })
        };
        Ok(Row { members: row.members.iter().map(member).collect::<Result<_, Error>>()? })
    }
}

struct XuFitted<'s> {
    xu: &'s XuOffline,
    trained: Trained,
}

impl Scorer for XuOffline {
    fn fit<'s>(&'s self, train: &[&Row]) -> Result<Box<dyn Fitted + 's>, Error> {
        let rows: Vec<Row> = train.iter().map(|r| self.row(r)).collect::<Result<_, _>>()?;
        let trained = self.kace.train(&rows.iter().collect::<Vec<_>>())?;
        Ok(Box::new(XuFitted { xu: self, trained }))
    }
}

impl Fitted for XuFitted<'_> {
    fn scores(&self, case: &Case<'_>) -> Result<Vec<f64>, Error> {
        let rows: Vec<Row> = case.test.iter().map(|r| self.xu.row(r)).collect::<Result<_, _>>()?;
        self.trained.scores(&Case { target: case.target, test: rows.iter().collect() })
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

    fn train(kind: Kind) -> (Table, Trained) {
        let table = table();
        let rows: Vec<&Row> = table.rows.iter().collect();
        let options = Options { search: Search { candidates: 2, ..Search::QUICK }, ..Options::honest(kind) };
        let trained = Kace::new(&table.features, options).train(&rows).unwrap();
        (table, trained)
    }

    #[test]
    fn models_come_back_from_their_files() {
        for kind in [Kind::Lr, Kind::Rf, Kind::Nn] {
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
    fn predictions_that_are_no_number_are_refused() {
        for kind in [Kind::Lr, Kind::Rf, Kind::Nn] {
            let (table, mut trained) = train(kind);
            assert_eq!(trained.forecast(&table.rows[0]), Ok(trained.predict(&table.rows[0])), "{kind:?}");
            // Finite, so the file is read; what is predicted with it is not.
            trained.target_scale.deviation = vec![f64::MAX];
            trained.target_scale.mean = vec![f64::MAX];
            let again = Trained::read("m.json", &trained.write("t.csv").unwrap()).unwrap();
            let worst = table.rows.iter().find(|r| !again.predict(r).is_finite()).unwrap();
            let error = again.forecast(worst).unwrap_err().to_string();
            assert!(
                error.contains(&worst.members[0].workload) && error.contains("no finite number"),
                "{error}"
            );
            trained.scale.mean[0] = f64::INFINITY;
            assert!(trained.write("t.csv").unwrap_err().to_string().contains("not finite"), "{kind:?}");
        }
    }

    #[test]
    fn files_of_another_version_and_damaged_ones_are_refused() {
        let text = train(Kind::Lr).1.write("t.csv").unwrap();
        for (from, to, said) in [
            ("\"version\":1", "\"version\":2", "version 2, this carma reads version 1; train it again"),
            ("carma-kace", "carma-cake", "a file of `carma-cake`"),
            ("\"deviation\":[", "\"deviation\":[1.0,", "do not fit together"),
            ("{\"format\"", "[", "no model of `carma kace train`"),
        ] {
            let error = Trained::read("m.json", &text.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.starts_with("m.json: ") && error.contains(said), "{error}");
        }
    }

    #[test]
    fn too_few_rows_are_refused() {
        let table = table();
        let kace = Kace::new(&table.features, Options::artifact(Kind::Lr));
        let error = kace.train(&[&table.rows[0]]).unwrap_err().to_string();
        assert!(error.contains("0 collocations to learn from"), "{error}");
        let no_solo =
            Kace::new(&table.features[..1], Options { target: Target::SumProgress, ..kace.options });
        assert!(no_solo.train(&table.rows.iter().collect::<Vec<_>>()).is_err());
    }
}
