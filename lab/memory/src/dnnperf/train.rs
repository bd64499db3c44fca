//! Training on rows of carma's data sets.

use super::build::{Cells, graph};
use crate::gpumemnet::score::{Said, Score, summary};
use crate::gpumemnet::{self, Data};
use carma_memory::Error;
use carma_memory::dnnperf::net::{GraphNet, Shape};
use carma_memory::dnnperf::nodes::Numbers;
use carma_memory::dnnperf::{Card, Perf, batch};
use carma_memory::gpumemnet::net::Scaling;
use carma_memory::gpumemnet::outlook::{Coverage, Target};
use carma_memory::gpumemnet::{Fingerprint, Measured, Outlook, class_of};
use carma_memory::weights::{Fold, folds};
use carma_nn::{Logistic, Pace, Rng, Seen, descend, parallel};
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::Path;

const SHAPE: Shape = Shape { width: 8, rounds: 2 };
const MEMBERS: usize = 3;
const PACE: Pace = Pace { epochs: 60, patience: 20, rate: 0.01, batch: 64 };
/// Fewer tasks than this are not learned from.
const FEWEST: usize = 60;
/// One training task in so many is kept for early stopping and calibration.
const VALIDATION: usize = 9;

/// A measured graph.
#[derive(Debug, Clone, PartialEq)]
struct MeasuredGraph {
    /// Which of the files it is from.
    file: usize,
    numbers: Numbers,
    measured: Measured,
}

/// Measured graphs of some files.
#[derive(Debug, Clone, PartialEq)]
pub struct Graphs {
    tasks: Vec<MeasuredGraph>,
    context_mib: u64,
    from: Vec<Fingerprint>,
}

impl Graphs {
    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// The files, in order.
    #[must_use]
    pub fn files(&self) -> &[Fingerprint] {
        &self.from
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }
}

/// Reads data sets of carma and builds the graph of every measured row.
///
/// # Errors
/// A file can't be read, or a row has no graph.
pub fn read(files: &[impl AsRef<Path>]) -> Result<Graphs, Error> {
    let (mut tasks, mut from, mut contexts) = (Vec::new(), Vec::new(), Vec::new());
    for (at, file) in files.iter().enumerate() {
        let file = file.as_ref();
        let place = file.display().to_string();
        let bytes = crate::dataset::contents(file)?;
        let data = Data::read(file)?;
        let mut cells: BTreeMap<String, Cells> = BTreeMap::new();
        for row in csv::Reader::from_reader(bytes.as_slice()).deserialize::<Cells>() {
            let row = row.map_err(|e| Error::bad(&place, e.to_string()))?;
            cells.insert(row.get("id").cloned().unwrap_or_default(), row);
        }
        for sample in &data.samples {
            let row = cells.get(&sample.id).ok_or_else(|| Error::bad(&place, "rows without an id"))?;
            let graph =
                graph(row).map_err(|e| Error::bad(format!("{place}, row {}", sample.id), e.to_string()))?;
            tasks.push(MeasuredGraph {
                file: at,
                numbers: Numbers::of(&graph, &sample.task),
                measured: sample.measured,
            });
        }
        contexts.push(data.context_mib);
        from.push(data.fingerprint());
    }
    contexts.sort_unstable();
    let context_mib = carma_stats::high_median(&contexts).unwrap_or_default();
    Ok(Graphs { tasks, context_mib, from })
}

/// Trains a fresh ensemble for each fold.
///
/// # Errors
/// Too few tasks.
pub fn cross_validate(
    graphs: &Graphs,
    count: usize,
    seed: u64,
    threads: Option<NonZeroUsize>,
) -> Result<Vec<Fold<Perf>>, Error> {
    let tests = folds(graphs.len(), count, seed);
    let mut rest = Vec::with_capacity(count);
    for test in &tests {
        let mut is_test = vec![false; graphs.len()];
        test.iter().for_each(|i| is_test[*i] = true);
        rest.push((0..graphs.len()).filter(|i| !is_test[*i]).collect::<Vec<_>>());
    }
    let perfs = run(graphs, rest, seed, threads)?;
    Ok(tests.into_iter().zip(perfs).map(|(test, network)| Fold { test, network }).collect())
}

/// Trains an ensemble on all tasks; its coverage comes from the folds where there are some.
///
/// # Errors
/// Too few tasks.
pub fn train(
    graphs: &Graphs,
    folds: &[Fold<Perf>],
    seed: u64,
    threads: Option<NonZeroUsize>,
) -> Result<Perf, Error> {
    let mut perf = run(graphs, vec![(0..graphs.len()).collect()], seed, threads)?.swap_remove(0);
    if !folds.is_empty() {
        perf.card.coverage =
            Coverage::fit(folds.iter().flat_map(|f| scores(&f.network, graphs, &f.test)).collect());
    }
    Ok(perf)
}

/// How good a fold is on the tasks of one file that it did not see, in classes of a width.
#[must_use]
pub fn score(graphs: &Graphs, fold: &Fold<Perf>, file: usize, width_mib: u64, coverage: f64) -> Score {
    let card = &fold.network.card;
    let context = card.target.context_mib as f64;
    let test: Vec<usize> = fold.test.iter().copied().filter(|i| graphs.tasks[*i].file == file).collect();
    let outlooks = outlooks(&fold.network, graphs, &test);
    let said = outlooks.iter().map(|o| Said {
        class: o.class(width_mib, 1000),
        middle: o.at(card.coverage.score(0.5)) + context,
        upper: o.at(card.coverage.score(coverage)) + context,
    });
    let measured: Vec<Measured> = test.iter().map(|i| graphs.tasks[*i].measured).collect();
    summary(said, &measured, |mib| class_of(mib, width_mib, 1000))
}

fn outlooks(perf: &Perf, graphs: &Graphs, which: &[usize]) -> Vec<Outlook> {
    let some = |part: &[usize]| -> Vec<&Numbers> { part.iter().map(|i| &graphs.tasks[*i].numbers).collect() };
    which.chunks(128).flat_map(|part| perf.outlooks(&some(part))).collect()
}

fn scores(perf: &Perf, graphs: &Graphs, which: &[usize]) -> Vec<f64> {
    let outlooks = outlooks(perf, graphs, which);
    outlooks.iter().zip(which).map(|(o, i)| o.score(graphs.tasks[*i].measured.mib())).collect()
}

fn run(
    graphs: &Graphs,
    plans: Vec<Vec<usize>>,
    seed: u64,
    threads: Option<NonZeroUsize>,
) -> Result<Vec<Perf>, Error> {
    let mut made = Vec::with_capacity(plans.len());
    for mut rows in plans {
        if rows.len() < FEWEST {
            let what = format!("{} tasks to learn from; at least {FEWEST} are needed", rows.len());
            return Err(Error::bad("graphs", what));
        }
        Rng::new(seed, 2).shuffle(&mut rows);
        let validation = rows.split_off(rows.len() - rows.len() / VALIDATION);
        made.push((card(graphs, &rows, seed), rows, validation));
    }
    let jobs: Vec<usize> = (0..made.len() * MEMBERS).collect();
    let mut members = parallel(&jobs, gpumemnet::threads(threads), |job| {
        let (card, rows, validation) = &made[job / MEMBERS];
        let mut rng = Rng::new(seed, 2000 + (job % MEMBERS) as u64);
        let mut net = GraphNet::new(card.shape, &mut rng);
        descend(
            &mut net,
            PACE,
            &mut rng,
            rows,
            validation,
            |which| batch(card, which.iter().map(|i| &graphs.tasks[*i].numbers)),
            |which, output| {
                let seen: Vec<Seen<f32>> = which
                    .iter()
                    .map(|i| match graphs.tasks[*i].measured {
                        Measured::Peak(mib) => Seen::Value(card.target.of(mib)),
                        Measured::AtLeast(mib) => Seen::AtLeast(card.target.of(mib)),
                    })
                    .collect();
                Logistic::loss(output, &seen)
            },
        );
        net
    })
    .into_iter();
    let mut perfs = Vec::with_capacity(made.len());
    for (card, _, validation) in made {
        let mut perf = Perf { card, members: members.by_ref().take(MEMBERS).collect() };
        perf.card.coverage = Coverage::fit(scores(&perf, graphs, &validation));
        perfs.push(perf);
    }
    Ok(perfs)
}

fn card(graphs: &Graphs, rows: &[usize], seed: u64) -> Card {
    let of = |i: &usize| &graphs.tasks[*i];
    let nodes: Vec<&[f32]> =
        rows.iter().flat_map(|i| of(i).numbers.nodes.iter().map(|n| n.as_slice())).collect();
    let edges: Vec<&[f32]> =
        rows.iter().flat_map(|i| of(i).numbers.edges.iter().map(|(_, _, e)| e.as_slice())).collect();
    let whole: Vec<&[f32]> = rows.iter().map(|i| of(i).numbers.whole.as_slice()).collect();
    Card {
        trained_on: graphs.from.clone(),
        seed,
        target: Target::fit(graphs.context_mib, rows.iter().map(|i| of(i).measured.mib())),
        node: Scaling::fit(&nodes, true),
        edge: Scaling::fit(&edges, true),
        whole: Scaling::fit(&whole, true),
        shape: SHAPE,
        members: MEMBERS,
        coverage: Coverage::default(),
    }
}
