//! Training: fresh networks for each fold, members in parallel, each from its own seed.

use super::Data;
use carma_memory::Error;
use carma_memory::gpumemnet::features::Features;
use carma_memory::gpumemnet::net::{Member, Scaling, Shape, Table};
use carma_memory::gpumemnet::network::Card;
use carma_memory::gpumemnet::outlook::{Coverage, Target};
use carma_memory::gpumemnet::{Ensemble, FeatureSet, Head, Measured, Network, Sample, class_of};
use carma_memory::weights::{Fold, folds};
use carma_nn::{Logistic, Mat, Pace, Rng, Seen, descend, parallel, softmax_loss};
use std::num::NonZeroUsize;

/// Fewer tasks than this are not learned from.
const FEWEST: usize = 60;
/// One training task in so many is kept for early stopping and for calibration.
const VALIDATION: usize = 9;

/// How to train.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// The design.
    pub ensemble: Ensemble,
    /// The features.
    pub features: FeatureSet,
    /// What the last layer says.
    pub head: Head,
    /// Everything random comes from it: the same seed gives the same network on any number of threads.
    pub seed: u64,
    /// Most passes over the data.
    pub epochs: usize,
    /// Passes without a better validation loss before it stops.
    pub patience: usize,
    /// Adam's rate at the start; it falls to a fiftieth along a cosine.
    pub rate: f32,
    /// Tasks a step.
    pub batch: usize,
    /// Width of the first hidden layer.
    pub first: usize,
    /// Threads; `None`: as many as the machine has.
    pub threads: Option<NonZeroUsize>,
}

impl Options {
    /// With fewer passes for attention, for a comparison that does not take long; a little worse than
    /// [`Options::new`]. Perceptrons are quick, and need theirs.
    #[must_use]
    pub const fn brief(ensemble: Ensemble, seed: u64) -> Self {
        let epochs = match ensemble {
            Ensemble::Mlp => 250,
            Ensemble::Transformer => 20,
        };
        Self { epochs, ..Self::new(ensemble, seed) }
    }

    /// As shipped: extended features, logistic.
    #[must_use]
    pub const fn new(ensemble: Ensemble, seed: u64) -> Self {
        Self {
            ensemble,
            features: FeatureSet::Extended,
            head: Head::Logistic,
            seed,
            epochs: match ensemble {
                Ensemble::Mlp => 250,
                Ensemble::Transformer => 60,
            },
            patience: match ensemble {
                Ensemble::Mlp => 60,
                Ensemble::Transformer => 20,
            },
            rate: 0.01,
            batch: 64,
            first: 8,
            threads: None,
        }
    }
}

/// Trains a network for each fold on the others' tasks.
///
/// # Errors
/// Too few tasks.
pub fn cross_validate(data: &Data, options: &Options, count: usize) -> Result<Vec<Fold<Network>>, Error> {
    cross_validate_with(data, options, count, &|| {})
}

/// As [`cross_validate`]; `tick` is called for each network that is trained, of which a fold has
/// [`Ensemble::members`].
///
/// # Errors
/// As there.
pub fn cross_validate_with(
    data: &Data,
    options: &Options,
    count: usize,
    tick: &(dyn Fn() + Sync),
) -> Result<Vec<Fold<Network>>, Error> {
    let tests = folds(data.samples.len(), count, options.seed);
    let mut plans = Vec::with_capacity(count);
    for test in &tests {
        let mut is_test = vec![false; data.samples.len()];
        test.iter().for_each(|i| is_test[*i] = true);
        let rest: Vec<usize> = (0..data.samples.len()).filter(|i| !is_test[*i]).collect();
        plans.push(Plan::new(data, options, rest)?);
    }
    let networks = run(data, options, &plans, tick);
    Ok(tests.into_iter().zip(networks).map(|(test, network)| Fold { test, network }).collect())
}

/// Trains a network on all tasks. Its coverage comes from the folds, whose networks did not see the tasks
/// that they are asked about; without folds, from its validation tasks.
///
/// # Errors
/// Too few tasks.
pub fn train(data: &Data, options: &Options, folds: &[Fold<Network>]) -> Result<Network, Error> {
    let plan = Plan::new(data, options, (0..data.samples.len()).collect())?;
    let mut network = run(data, options, &[plan], &|| {}).swap_remove(0);
    if !folds.is_empty() {
        network.card.coverage = calibrate(data, folds);
    }
    Ok(network)
}

/// Coverage of a network trained on all tasks: from those of the folds, asked about tasks they did not see.
pub(super) fn calibrate(data: &Data, folds: &[Fold<Network>]) -> Coverage {
    let mut scores = Vec::with_capacity(data.samples.len());
    for fold in folds {
        let test: Vec<&Sample> = fold.test.iter().map(|i| &data.samples[*i]).collect();
        scores.extend(scores_of(&fold.network, &test));
    }
    Coverage::fit(scores)
}

/// Scores of what was measured; a lower bound counts as if it were the value, which a larger one would only
/// raise beyond every level that matters.
fn scores_of(network: &Network, samples: &[&Sample]) -> Vec<f64> {
    let outlooks = network.outlook_all(samples);
    outlooks.iter().zip(samples).map(|(o, s)| o.score(s.measured.mib())).collect()
}

/// What one network is trained on.
struct Plan {
    fit: Vec<usize>,
    validation: Vec<usize>,
    features: Vec<Features>,
    card: Card,
}

impl Plan {
    fn new(data: &Data, options: &Options, mut rows: Vec<usize>) -> Result<Self, Error> {
        if rows.len() < FEWEST {
            let what = format!("{} tasks to learn from; at least {FEWEST} are needed", rows.len());
            return Err(Error::bad(&data.name, what));
        }
        Rng::new(options.seed, 2).shuffle(&mut rows);
        let validation = rows.split_off(rows.len() - rows.len() / VALIDATION);
        let sample = |i: &usize| &data.samples[*i];
        let features: Vec<Features> = data
            .samples
            .iter()
            .map(|s| options.features.of(options.ensemble, data.family, &s.model, &s.task))
            .collect();
        let scaled = options.features.scaled();
        let whole: Vec<&[f32]> = rows.iter().map(|i| features[*i].whole.as_slice()).collect();
        let tokens: Vec<&[f32]> =
            rows.iter().flat_map(|i| features[*i].tokens.iter().map(|(t, _)| t.as_slice())).collect();
        let (whole, tokens) = (Scaling::fit(&whole, scaled), Scaling::fit(&tokens, scaled));
        let target = Target::fit(data.context_mib, rows.iter().map(|i| sample(i).measured.mib()));
        let out = match options.head {
            Head::Logistic => 2,
            Head::Classes { count, .. } => count.max(2),
        };
        let members = Shape::members(options.ensemble, whole.active(), tokens.active(), out, options.first);
        let card = Card {
            family: data.family,
            ensemble: options.ensemble,
            features: options.features,
            head: options.head,
            seed: options.seed,
            trained_on: data.fingerprint(),
            target,
            whole,
            tokens,
            members,
            coverage: Coverage::default(),
        };
        Ok(Self { fit: rows, validation, features, card })
    }
}

/// Trains all members of all plans, several at once.
fn run(data: &Data, options: &Options, plans: &[Plan], tick: &(dyn Fn() + Sync)) -> Vec<Network> {
    let tables: Vec<Table> =
        plans.iter().map(|p| Table::new(p.features.iter(), &p.card.whole, &p.card.tokens)).collect();
    let jobs: Vec<(usize, usize)> = plans
        .iter()
        .enumerate()
        .flat_map(|(p, plan)| (0..plan.card.members.len()).map(move |m| (p, m)))
        .collect();
    let mut members = parallel(&jobs, threads(options.threads), |&(p, m)| {
        let member = train_member(data, options, &plans[p], &tables[p], m);
        tick();
        member
    })
    .into_iter();
    let mut networks = Vec::with_capacity(plans.len());
    for plan in plans {
        let members = members.by_ref().take(plan.card.members.len()).collect();
        let mut network = Network { card: plan.card.clone(), members };
        let validation: Vec<&Sample> = plan.validation.iter().map(|i| &data.samples[*i]).collect();
        network.card.coverage = Coverage::fit(scores_of(&network, &validation));
        networks.push(network);
    }
    networks
}

/// Threads that train: as many as were asked for, or as there are processors.
pub(crate) fn threads(asked: Option<NonZeroUsize>) -> usize {
    asked.or_else(|| std::thread::available_parallelism().ok()).map_or(1, NonZeroUsize::get)
}

/// Loss and gradient of the outputs for some tasks.
fn loss(head: Head, target: &Target, samples: &[&Sample], output: &Mat) -> (f32, Mat) {
    match head {
        Head::Logistic => {
            let seen: Vec<Seen<f32>> = samples
                .iter()
                .map(|s| match s.measured {
                    Measured::Peak(mib) => Seen::Value(target.of(mib)),
                    Measured::AtLeast(mib) => Seen::AtLeast(target.of(mib)),
                })
                .collect();
            Logistic::loss(output, &seen)
        }
        Head::Classes { width_mib, count } => {
            let class = |mib| class_of(mib, width_mib, count - 1);
            let seen: Vec<Seen<usize>> = samples
                .iter()
                .map(|s| match s.measured {
                    Measured::Peak(mib) => Seen::Value(class(mib)),
                    Measured::AtLeast(mib) => Seen::AtLeast(class(mib)),
                })
                .collect();
            softmax_loss(output, &seen)
        }
    }
}

fn train_member(data: &Data, options: &Options, plan: &Plan, table: &Table, number: usize) -> Member {
    let mut rng = Rng::new(options.seed, 1000 + number as u64);
    let mut member = Member::new(&plan.card.members[number], &mut rng);
    let pace =
        Pace { epochs: options.epochs, patience: options.patience, rate: options.rate, batch: options.batch };
    let samples = |which: &[usize]| which.iter().map(|i| &data.samples[*i]).collect::<Vec<_>>();
    descend(
        &mut member,
        pace,
        &mut rng,
        &plan.fit,
        &plan.validation,
        |which| table.batch(which),
        |which, output| loss(options.head, &plan.card.target, &samples(which), output),
    );
    member
}
