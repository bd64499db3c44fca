//! Everything that was published of KACE, computed again from the artifact's tables, beside what was published.

mod divided;
mod interval;
mod published;

pub use divided::{Choice, Divided};
pub use interval::{Percent, percent};

use super::protocol::{self, Protocol};
use super::rules::{RULES, Rule};
use super::score::{self, Scored};
use super::table::{Collocation, Table};
use super::trainer::{Kace, Options, RegressionKind};
use super::xu::XuOffline;
use super::{Artifact, Error, Reported};
use carma_interference::kace::features::{Aggregation, Normalisation};
use carma_interference::power::Power;
use carma_nn::{Rng, parallel};
use serde::Serialize;

/// What to compute.
#[derive(Debug)]
pub struct Request<'a> {
    /// The tables.
    pub artifact: &'a Artifact,
    /// Power of a V100, modelled.
    pub power: Power,
    /// Threads to work on; results do not depend on it.
    pub threads: usize,
    /// KACE as the artifact divides and normalises rows.
    pub as_artifact: bool,
    /// KACE without a look at test rows.
    pub honest: bool,
}

/// What came out.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Choices of partners.
    pub experiments: Vec<Experiment>,
    /// Seen pairs by number of training pairs.
    pub by_training_pairs: Vec<BySize>,
    /// Linear regression on random halves of the quadruples: two published numbers rest on about half of them.
    pub random_halves: Vec<Halves>,
    /// Divisions of threads between pairs under MPS.
    pub divided: Vec<Divided>,
}

/// One protocol.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Experiment {
    /// As in the artifact's logs where it is there.
    pub id: &'static str,
    /// In words.
    pub name: String,
    /// Members of a collocation.
    pub k: usize,
    /// Collocations in the table.
    pub rows: usize,
    /// Mean number of collocations to learn from.
    pub learned_from: f64,
    /// Number of targets.
    pub targets: usize,
    /// Choices: targets times splits.
    pub cases: usize,
    /// One a policy.
    pub policies: Vec<Policy>,
}

/// How good one policy's choices are.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Policy {
    /// Its name.
    pub policy: String,
    /// Sum of throughput of the chosen collocation, percent of the best one's; interval clustered by target.
    #[serde(flatten)]
    pub pct: Percent,
    /// The same as published.
    pub published_pct: Option<f64>,
    /// Points above what was published.
    pub difference_points: Option<f64>,
    /// Choices that the logs have, and how many of them are worth the same to 9 digits here (by the first seed).
    pub same_as_logged: Option<(usize, usize)>,
    /// The mean by each seed, of what draws.
    pub by_seed_pct: Vec<f64>,
}

/// Seen pairs of one size of training set.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BySize {
    /// Occurrences of a workload.
    pub n_occur: u32,
    /// Mean number of training pairs.
    pub learned_from: f64,
    /// Policy, percent here, percent published.
    pub policies: Vec<(String, f64, Option<f64>)>,
}

/// KACE's linear regression over random halves of a table, percent.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Halves {
    /// As [`Experiment::id`].
    pub id: &'static str,
    /// How many halves.
    pub halves: usize,
    /// 2.5th, 50th and 97.5th percentile.
    pub percentiles_pct: (f64, f64, f64),
    /// What was published, percent.
    pub published_pct: Option<f64>,
}

/// Progress: steps done, steps in all.
pub type Progress<'a> = &'a (dyn Fn(usize, usize) + Sync);

/// Steps of [`run`].
const STEPS: usize = 14;

/// Computes everything. Files that are absent or wrong stop it: a table that is silently left out would look like a
/// result.
///
/// # Errors
/// As the readers of [`Artifact`] and [`score::evaluate`].
pub fn run(request: &Request<'_>, progress: Progress<'_>) -> Result<Report, Error> {
    let artifact = request.artifact;
    let logs = artifact.reported()?;
    let pairs = artifact.pairs()?;
    let splits = artifact.splits(&pairs)?;
    let triples = artifact.triples()?;
    let quadruples = artifact.quadruples()?;
    let quadruples4 = artifact.quadruples_batch4()?;
    let gpt2 = artifact.pairs_gpt2()?;
    let sound = |table: &Table| table.without(|w| !protocol::is_sound(w));
    let (pairs_sound, triples_sound, quadruples_sound) = (sound(&pairs), sound(&triples), sound(&quadruples));
    let xu = |seed| XuOffline::new(artifact, Options { seed, ..Options::artifact(RegressionKind::Rf) });
    let xu = SEEDS.into_iter().map(xu).collect::<Result<_, _>>()?;
    let runner = Runner { request, logs: &logs, xu };
    let done = std::cell::Cell::new(0);
    let step = || {
        done.set(done.get() + 1);
        progress(done.get(), STEPS);
    };
    progress(0, STEPS);

    let seen = protocol::seen(&pairs, &splits);
    let all = runner.experiment(&seen, &pairs, Models::ALL)?;
    step();
    let mut experiments = vec![
        runner.summary("k2_seen", "seen k=2, n=3", &seen, &pairs, &all, |s| s.n_occur == Some(3)),
        runner.summary("k2_seen", "seen k=2, n=2 to 10", &seen, &pairs, &all, |_| true),
    ];
    let by_training_pairs = runner.by_size(&seen, &all);
    let mut add = |id, protocol: &Protocol<'_>, table: &Table, models| -> Result<(), Error> {
        let all = runner.experiment(protocol, table, models)?;
        experiments.push(runner.summary(id, &protocol.name, protocol, table, &all, |_| true));
        step();
        Ok(())
    };
    add("k2_unseen", &protocol::unseen("unseen k=2", &pairs)?, &pairs, Models::ALL)?;
    add("k3_unseen", &protocol::unseen("unseen k=3", &triples)?, &triples, Models::ALL)?;
    add("k4_unseen", &protocol::unseen("unseen k=4", &quadruples)?, &quadruples, Models::XU)?;
    add("k4_batch4", &protocol::batch4(&quadruples, &quadruples4)?, &quadruples4, Models::LR)?;
    add("k4_batch2_only", &protocol::batch2_only(&quadruples)?, &quadruples, Models::LR)?;
    add("k2_gpt2", &protocol::unseen("unseen k=2 with GPT2-XL", &gpt2)?, &gpt2, Models::LR)?;
    for (id, name, table) in [
        ("k2_sound", "unseen k=2, sound rows", &pairs_sound),
        ("k3_sound", "unseen k=3, sound rows", &triples_sound),
        ("k4_sound", "unseen k=4, sound rows", &quadruples_sound),
    ] {
        add(id, &protocol::unseen(name, table)?, table, Models::LR)?;
    }
    for (id, name, table) in [
        ("k3_from_pairs", "unseen k=3 from pairs, sound rows", &triples_sound),
        ("k4_from_pairs", "unseen k=4 from pairs, sound rows", &quadruples_sound),
    ] {
        add(id, &protocol::unseen_from(name, &pairs_sound, table)?, table, Models::SIZES)?;
    }
    let mut random_halves = Vec::new();
    if request.as_artifact {
        random_halves.push(runner.halves("k4_unseen", &quadruples, |t| protocol::unseen("half", t))?);
        random_halves.push(runner.halves("k4_batch2_only", &quadruples, protocol::batch2_only)?);
    }
    step();
    let divided = divided::divisions(artifact, &request.power)?;
    step();
    Ok(Report { experiments, by_training_pairs, random_halves, divided })
}

/// Which models are asked beside linear regression and the rules.
#[derive(Clone, Copy)]
struct Models {
    /// Forest and network.
    learned: bool,
    /// Xu et al.
    xu: bool,
    /// Learned from collocations of another size: means and sums differ by more than a factor then.
    sizes_differ: bool,
}

impl Models {
    const ALL: Self = Self { learned: true, xu: true, sizes_differ: false };
    const XU: Self = Self { learned: false, ..Self::ALL };
    const LR: Self = Self { learned: false, xu: false, sizes_differ: false };
    const SIZES: Self = Self { sizes_differ: true, ..Self::LR };
}

/// A policy's choices.
struct Named {
    policy: String,
    /// The mean of all seeds.
    scored: Vec<Scored>,
    /// By seed, of what draws.
    seeds: Vec<Vec<Scored>>,
}

impl Named {
    fn new(policy: &str, scored: Vec<Scored>) -> Self {
        Self { policy: policy.to_owned(), scored, seeds: Vec::new() }
    }

    fn drawn(policy: &str, seeds: Vec<Vec<Scored>>) -> Self {
        Self { policy: policy.to_owned(), scored: score::averaged(&seeds), seeds }
    }

    /// What is compared with the logs choice by choice.
    fn first(&self) -> &[Scored] {
        self.seeds.first().map_or(&self.scored, |s| s)
    }
}

/// Seeds of forests: one forest's mean is off by a point or two. The first is the artifact's.
const SEEDS: [u64; 5] = [42, 43, 44, 45, 46];

/// Large tables take longer and leave less to chance.
fn seeds(table: &Table) -> usize {
    if table.rows.len() > 300 { 2 } else { SEEDS.len() }
}

struct Runner<'a> {
    request: &'a Request<'a>,
    logs: &'a [Reported],
    xu: Vec<XuOffline>,
}

impl Runner<'_> {
    /// Choices of all policies.
    fn experiment(
        &self,
        protocol: &Protocol<'_>,
        table: &Table,
        models: Models,
    ) -> Result<Vec<Named>, Error> {
        let threads = self.request.threads;
        let kace =
            |options: Options| score::evaluate(&Kace::new(&table.features, options), protocol, threads);
        let mut all: Vec<Named> = Vec::new();
        if self.request.as_artifact {
            all.push(Named::new("KACE LR", kace(Options::artifact(RegressionKind::Lr))?));
            if models.learned {
                let forest = |seed| kace(Options { seed, ..Options::artifact(RegressionKind::Rf) });
                let forests = SEEDS.into_iter().take(seeds(table)).map(forest).collect::<Result<_, _>>()?;
                all.push(Named::drawn("KACE RF", forests));
                all.push(Named::drawn("KACE NN", vec![kace(Options::artifact(RegressionKind::Nn))?]));
            }
        }
        if self.request.honest {
            let own =
                Options { normalisation: Normalisation::Honest, ..Options::artifact(RegressionKind::Lr) };
            all.push(Named::new("KACE LR, honest z-score", kace(own)?));
            all.push(Named::new("KACE LR, honest, all rows", kace(Options::honest(RegressionKind::Lr))?));
            if models.sizes_differ {
                let aggregation = Aggregation::PercentagesAveraged;
                let averaged = kace(Options { aggregation, ..Options::honest(RegressionKind::Lr) })?;
                all.push(Named::new("KACE LR, honest, all rows, all percentages averaged", averaged));
            }
        }
        if models.xu {
            let seeds = self.xu.iter().take(seeds(table)).map(|xu| score::evaluate(xu, protocol, threads));
            all.push(Named::drawn("Xu et al. (offline only)", seeds.collect::<Result<_, _>>()?));
        }
        let mut rules: Vec<Named> = Vec::new();
        for (name, feature, highest) in RULES {
            let rule = Rule::new(&table.features, feature, highest)?;
            rules.push(Named::new(name, score::evaluate(&rule, protocol, threads)?));
        }
        let papers: Vec<&[Scored]> = rules.iter().take(3).map(|r| r.scored.as_slice()).collect();
        all.push(Named::new("best rule (hindsight)", score::best_of(&papers)));
        all.extend(rules);
        all.push(Named::new("random", score::random(protocol)));
        Ok(all)
    }

    fn summary(
        &self,
        id: &'static str,
        name: &str,
        protocol: &Protocol<'_>,
        table: &Table,
        all: &[Named],
        keep: impl Fn(&Scored) -> bool,
    ) -> Experiment {
        let splits: Vec<&protocol::Split<'_>> = protocol
            .splits
            .iter()
            .enumerate()
            .filter(|(i, _)| all.first().is_some_and(|n| n.scored.iter().any(|c| c.split == *i && keep(c))))
            .map(|(_, s)| s)
            .collect();
        let mut targets: Vec<&str> = splits.iter().flat_map(|s| &s.cases).map(|c| c.target).collect();
        let cases = targets.len();
        targets.sort_unstable();
        targets.dedup();
        let learned: usize = splits.iter().map(|s| s.train.len()).sum();
        let policy = |named: &Named| {
            let policy = &named.policy;
            let scored = named.scored.iter().filter(|s| keep(s));
            let pct = percent(scored.map(|s| (s.target.as_str(), s.ratio)));
            let logged: Vec<(f64, f64)> = named
                .first()
                .iter()
                .filter(|s| keep(s))
                .filter_map(|s| Some((s.ratio, published::of_case(self.logs, id, policy, s)?)))
                .collect();
            let from_logs = (!logged.is_empty())
                .then(|| 100.0 * logged.iter().map(|(_, p)| p).sum::<f64>() / logged.len() as f64);
            let published_pct = from_logs.or_else(|| published::mean_pct(id, policy));
            Policy {
                policy: policy.clone(),
                pct,
                published_pct,
                difference_points: published_pct.map(|p| pct.mean_pct - p),
                same_as_logged: (!logged.is_empty()).then(|| {
                    (logged.len(), logged.iter().filter(|(here, there)| (here - there).abs() < 1e-9).count())
                }),
                by_seed_pct: named.seeds.iter().map(|s| mean_pct(s, &keep)).collect(),
            }
        };
        Experiment {
            id,
            name: name.to_owned(),
            k: table.k,
            rows: table.rows.len(),
            learned_from: learned as f64 / splits.len().max(1) as f64,
            targets: targets.len(),
            cases,
            policies: all.iter().map(policy).collect(),
        }
    }

    fn by_size(&self, seen: &Protocol<'_>, all: &[Named]) -> Vec<BySize> {
        let mut sizes: Vec<u32> = seen.splits.iter().filter_map(|s| s.n_occur).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let of = |n_occur: u32| {
            let splits = seen.splits.iter().filter(|s| s.n_occur == Some(n_occur));
            let (count, rows) = splits.fold((0, 0), |(c, r), s| (c + 1, r + s.train.len()));
            let policy = |Named { policy, scored, .. }: &Named| {
                let own = scored.iter().filter(|s| s.n_occur == Some(n_occur));
                let logged: Vec<f64> =
                    own.filter_map(|s| published::of_case(self.logs, "k2_seen", policy, s)).collect();
                let published =
                    (!logged.is_empty()).then(|| 100.0 * logged.iter().sum::<f64>() / logged.len() as f64);
                (policy.clone(), mean_pct(scored, &|s| s.n_occur == Some(n_occur)), published)
            };
            BySize {
                n_occur,
                learned_from: f64::from(rows as u32) / f64::from(count.max(1)),
                policies: all.iter().map(policy).collect(),
            }
        };
        sizes.into_iter().map(of).collect()
    }

    /// Linear regression as the artifact on random halves of a table.
    fn halves(
        &self,
        id: &'static str,
        table: &Table,
        protocol: impl for<'h> Fn(&'h Table) -> Result<Protocol<'h>, Error> + Sync,
    ) -> Result<Halves, Error> {
        const HALVES: usize = 200;
        let kace = Kace::new(&table.features, Options::artifact(RegressionKind::Lr));
        let seeds: Vec<u64> = (0..HALVES as u64).collect();
        let one = |seed: &u64| {
            let mut at: Vec<usize> = (0..table.rows.len()).collect();
            Rng::new(*seed, 4).shuffle(&mut at);
            at.truncate(table.rows.len() / 2);
            at.sort_unstable();
            let rows: Vec<Collocation> = at.iter().map(|i| table.rows[*i].clone()).collect();
            let half = Table { rows, ..table.clone() };
            Ok(score::mean_of(&score::evaluate(&kace, &protocol(&half)?, 1)?))
        };
        let means = parallel(&seeds, self.request.threads, one);
        let mut means: Vec<f64> = means.into_iter().collect::<Result<_, Error>>()?;
        means.sort_by(f64::total_cmp);
        let at = |q: f64| 100.0 * means[((HALVES - 1) as f64 * q).round() as usize];
        let logged = self.logs.iter().filter(|r| r.experiment == id && r.model == "KACE");
        let logged: Vec<f64> = logged.map(|r| r.ratio).collect();
        let from_logs =
            (!logged.is_empty()).then(|| 100.0 * logged.iter().sum::<f64>() / logged.len() as f64);
        let published_pct = from_logs.or_else(|| published::mean_pct(id, "KACE LR"));
        Ok(Halves { id, halves: HALVES, percentiles_pct: (at(0.025), at(0.5), at(0.975)), published_pct })
    }
}

fn mean_pct(scored: &[Scored], keep: &dyn Fn(&Scored) -> bool) -> f64 {
    let (sum, n) = scored.iter().filter(|s| keep(s)).fold((0.0, 0), |(sum, n), s| (sum + s.ratio, n + 1));
    100.0 * sum / f64::from(n.max(1))
}
