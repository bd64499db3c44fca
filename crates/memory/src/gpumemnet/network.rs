//! A trained ensemble.

use super::features::{FeatureSet, Features};
use super::measured::{Fingerprint, Sample};
use super::net::{Batch, Member, Scaling, Shape, Table};
use super::outlook::{Coverage, Form, Head, Outlook, Target};
use super::{Ensemble, Family, ModelLayers};
use crate::{Estimate, ModelTask, Platform};
use carma_nn::{Learner as _, Logistic, Mat, softmax_class};
use serde::{Deserialize, Serialize};

/// Everything about an ensemble but its numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Card {
    /// Family of the tasks.
    pub family: Family,
    /// Design of the networks.
    pub ensemble: Ensemble,
    /// What they are fed.
    pub features: FeatureSet,
    /// What their last layer says.
    pub head: Head,
    /// Seed of the training, and of the folds.
    pub seed: u64,
    /// The data.
    pub trained_on: Fingerprint,
    /// How memory became the number that they learned.
    pub target: Target,
    /// Scaling of the features of the whole.
    pub whole: Scaling,
    /// Scaling of the features of a token.
    pub tokens: Scaling,
    /// Sizes of each network.
    pub members: Vec<Shape>,
    /// Calibrated coverage.
    pub coverage: Coverage,
}

/// A trained ensemble of one family.
#[derive(Debug, Clone, PartialEq)]
pub struct Network {
    /// Everything but its numbers.
    pub card: Card,
    /// Its networks.
    pub members: Vec<Member>,
}

impl Network {
    /// Which data it was trained on.
    #[must_use]
    pub fn trained_on(&self) -> &Fingerprint {
        &self.card.trained_on
    }

    /// Its family.
    #[must_use]
    pub const fn family(&self) -> Family {
        self.card.family
    }

    /// Its design.
    #[must_use]
    pub const fn ensemble(&self) -> Ensemble {
        self.card.ensemble
    }

    /// What its last layer says.
    #[must_use]
    pub const fn head(&self) -> Head {
        self.card.head
    }

    /// Its features.
    #[must_use]
    pub const fn features(&self) -> FeatureSet {
        self.card.features
    }

    /// The distribution of a task's memory on the platform that it was trained on.
    #[must_use]
    pub fn outlook(&self, model: &ModelLayers, task: &ModelTask) -> Outlook {
        let features = self.card.features.of(self.card.ensemble, self.card.family, model, task);
        let features = [features];
        let table = Table::new(features.iter(), &self.card.whole, &self.card.tokens);
        self.outlooks(&features, &table.all()).swap_remove(0)
    }

    /// As [`Network::outlook`], for many at once; no task changes what is said of another.
    #[must_use]
    pub fn outlook_all(&self, samples: &[&Sample]) -> Vec<Outlook> {
        let card = &self.card;
        let of = |s: &&Sample| card.features.of(card.ensemble, card.family, &s.model, &s.task);
        let mut all = Vec::with_capacity(samples.len());
        // Some hundred at a time bound the memory that this takes.
        for part in samples.chunks(256) {
            let features: Vec<Features> = part.iter().map(of).collect();
            let table = Table::new(features.iter(), &card.whole, &card.tokens);
            all.extend(self.outlooks(&features, &table.all()));
        }
        all
    }

    fn outlooks(&self, features: &[Features], batch: &Batch) -> Vec<Outlook> {
        let outputs: Vec<Mat> = self.members.iter().map(|m| m.infer(batch)).collect();
        let sizes = self.card.features.sizes();
        let one = |(s, features): (usize, &Features)| Outlook {
            form: combine(self.card.head, &outputs, s),
            target: self.card.target,
            beyond: self.card.whole.beyond(&features.whole, sizes),
        };
        features.iter().enumerate().map(one).collect()
    }

    /// The answer at a coverage (0.95: `upper` is enough for 95 of 100 tasks like those of the training data).
    #[must_use]
    pub fn estimate(
        &self,
        model: &ModelLayers,
        task: &ModelTask,
        platform: &Platform,
        coverage: f64,
    ) -> Estimate {
        let outlook = self.outlook(model, task);
        let card = &self.card;
        let mut reasons = vec![
            format!(
                "{} ensemble of {} networks, trained on {} ({} tasks, {} of them lower bounds)",
                card.ensemble,
                self.members.len(),
                card.trained_on.name,
                card.trained_on.rows,
                card.trained_on.lower_bounds
            ),
            format!("upper covers {:.0} % of tasks like those", coverage * 100.0),
        ];
        reasons.extend(outlook.beyond_reason());
        let source = format!("gpumemnet/{}", card.ensemble);
        outlook.estimate((&card.coverage, coverage), platform, source, card.family.to_string(), reasons)
    }
}

/// One distribution of the members' outputs. Where members disagree, the distribution is wider.
fn combine(head: Head, outputs: &[Mat], sample: usize) -> Form {
    let n = outputs.len().max(1) as f64;
    match head {
        Head::Logistic => Form::pooled(outputs.iter().map(|o| Logistic::of(o, sample))),
        Head::Classes { width_mib, .. } => {
            let mut sum = outputs.first().cloned().unwrap_or_default();
            outputs.iter().skip(1).for_each(|o| sum.add(o));
            sum.data.iter_mut().for_each(|v| *v /= n as f32);
            let probabilities = softmax_class(&sum, sample).into_iter().map(f64::from).collect();
            Form::Classes { probabilities, width: width_mib as f64 }
        }
    }
}
