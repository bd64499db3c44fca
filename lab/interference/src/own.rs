//! KACE on our own measurements: tables from files of `carma bench interference`, in which power was measured too.

use crate::bench::{of_measured, text};
use crate::kace::Error;
use crate::kace::features::measured;
use crate::kace::protocol::{Case, Protocol, Split};
use crate::kace::rules::Rule;
use crate::kace::score::{self, Scored, Scorer};
use crate::kace::table::{Collocation, MEM_BUSY, MEMCAP, SM_BUSY, SOLO, Table};
use crate::kace::trainer::{Kace, Options};
use carma_interference::group::{Group, Member, Mode};
use carma_interference::kace::features::Target;
use carma_interference::measured::{Measured, Warm};
use carma_interference::predict::policy::kace_row;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

/// What a profile without Nsight Compute holds of KACE's features.
const FEATURES: [&str; 4] = [SOLO, SM_BUSY, MEM_BUSY, MEMCAP];

/// Measured groups of two and more, and the watts of each.
#[derive(Debug, Clone)]
pub struct Own {
    /// A row a group, of every size: throughput is the mean progress over all windows of it, times the rate alone.
    pub table: Table,
    /// What is held out together with each task.
    families: BTreeMap<String, String>,
    /// Mean power of the GPU, by the names of a group in order; groups whose power was not read are missing.
    watts: BTreeMap<Vec<String>, f64>,
}

/// How good choices of partners are for tasks of a family that nothing was learned of.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Chosen {
    /// Tasks in a group.
    pub k: usize,
    /// Targets: those with two groups or more to choose from.
    pub targets: usize,
    /// What is maximised: `progress`, or `progress per joule`, as measured.
    pub objective: &'static str,
    /// Name of each way to choose, and what its choices reach of the best, percent.
    pub percent: Vec<(&'static str, f64)>,
}

/// What a group is worth.
type Worth<'a> = &'a (dyn Fn(&Collocation) -> f64 + Sync);

impl Own {
    /// Whether a file holds such measurements.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn is_meant(path: &Path) -> Result<bool, Error> {
        Ok(Measured::is_meant(&text(path)?))
    }

    /// Reads a file of `carma bench interference`, or its log.
    ///
    /// # Errors
    /// It cannot be read, is no such file, holds no group under this sharing, or a task that was not seen alone.
    pub fn read(path: &Path, sharing: Mode) -> Result<Self, Error> {
        let place = path.display().to_string();
        let file = Measured::read(&text(path)?).map_err(|e| Error::new(&place, e.to_string()))?;
        let set = of_measured(&file);
        let features = FEATURES.map(str::to_owned);
        let mut rows = Vec::new();
        for row in set.rows.iter().filter(|row| row.sharing == sharing && row.threads.is_empty()) {
            let members: Vec<Member<'_>> =
                row.tasks.iter().filter_map(|task| Some(Member::of(set.tasks.get(*task)?))).collect();
            let group = Group { gpu: &set.gpu, sharing, members: &members };
            let mut known = kace_row(&features, &group).map_err(|e| Error::new(&place, e.to_string()))?;
            for (member, progress) in known.members.iter_mut().zip(&row.progress) {
                member.throughput = progress * member.features[0];
            }
            rows.push(known);
        }
        let Some(k) = rows.iter().map(|row| row.members.len()).max() else {
            return Err(Error::new(place, format!("no group was measured under {sharing}")));
        };
        let table = Table { source: place, k, features: features.into(), rows };
        let names = set.tasks.iter().map(|task| task.name.clone());
        Ok(Self { table, families: names.zip(set.families).collect(), watts: watts(&file, sharing) })
    }

    /// Lets KACE choose partners for each task, having learned from groups without the task's family, and the rules of
    /// one line that it has to beat.
    ///
    /// # Errors
    /// Too few groups are left to learn from.
    pub fn choices(&self, learn: &[String], options: Options) -> Result<Vec<Chosen>, Error> {
        let names = &self.table.features;
        let options = Options { target: Target::SumProgress, ..options };
        let kace = Kace::new(names, options).learning(learn)?;
        let frugal = score::per_case(|train, case| self.per_joule(&kace, train, case));
        let least_busy = Rule::new(names, SM_BUSY, false)?;
        let progress = |row: &Collocation| measured(Target::SumProgress, names, row).unwrap_or(0.0);
        let per_joule = |row: &Collocation| self.watts(row).map_or(0.0, |watts| progress(row) / watts);
        let mut all = Vec::new();
        for k in 2..=self.table.k {
            let protocol = self.protocol(k);
            let objectives: [(&'static str, Worth<'_>); 2] =
                [("progress", &progress), ("progress per joule", &per_joule)];
            for (objective, worth) in objectives {
                let run = |scorer: &dyn Scorer| Ok(mean(&score::evaluate_by(scorer, &protocol, 1, worth)?));
                all.push(Chosen {
                    k,
                    targets: protocol.cases(),
                    objective,
                    percent: vec![
                        ("KACE", run(&kace)?),
                        ("KACE per predicted joule", run(&frugal)?),
                        ("lowest SM%", run(&least_busy)?),
                        ("random", mean(&score::random_by(&protocol, worth))),
                    ],
                });
            }
        }
        Ok(all)
    }

    /// A split each target: its family is in no row that is learned from.
    fn protocol(&self, k: usize) -> Protocol<'_> {
        let rows = &self.table.rows;
        let family = |name: &str| self.families.get(name).map_or(name.to_owned(), Clone::clone);
        let splits = self.table.workloads().into_iter().filter_map(|target| {
            let own = family(target);
            let akin = |row: &&Collocation| row.members.iter().any(|m| family(&m.workload) == own);
            let asked = |row: &&Collocation| row.members.len() == k && row.has(target);
            let test: Vec<&Collocation> =
                rows.iter().filter(asked).filter(|row| self.watts(row).is_some()).collect();
            (test.len() > 1).then(|| Split {
                n_occur: None,
                seed: None,
                train: rows.iter().filter(|row| !akin(row)).collect(),
                cases: vec![Case { target, test }],
            })
        });
        Protocol {
            name: format!("family held out, k={k}"),
            features: &self.table.features,
            splits: splits.collect(),
        }
    }

    /// Predicted progress over predicted watts, both by KACE's way.
    fn per_joule(&self, kace: &Kace, train: &[&Collocation], case: &Case<'_>) -> Result<Vec<f64>, Error> {
        let powered: Vec<Collocation> = train.iter().filter_map(|row| self.as_watts(row)).collect();
        let mut by_watts = kace.clone();
        by_watts.options.target = Target::SumThroughput;
        let (progress, watts) = (kace.train(train)?, by_watts.train(&powered.iter().collect::<Vec<_>>())?);
        let one = |row: &&Collocation| {
            let row = kace.shown(row);
            progress.predict(&row) / watts.predict(&row).max(1.0)
        };
        Ok(case.test.iter().map(one).collect())
    }

    fn watts(&self, row: &Collocation) -> Option<f64> {
        let names: Vec<String> = row.key().into_iter().map(str::to_owned).collect();
        self.watts.get(&names).copied().filter(|watts| *watts > 0.0)
    }

    /// The row with its watts, divided among the members, in place of their throughput.
    fn as_watts(&self, row: &Collocation) -> Option<Collocation> {
        let each = self.watts(row)? / row.members.len() as f64;
        let mut row = row.clone();
        row.members.iter_mut().for_each(|member| member.throughput = each);
        Some(row)
    }
}

/// Mean power over the windows of each group, those left out that failed or were not warm.
fn watts(file: &Measured, sharing: Mode) -> BTreeMap<Vec<String>, f64> {
    let warm = Warm::of(&file.combinations);
    let mut all: BTreeMap<Vec<String>, Vec<f64>> = BTreeMap::new();
    let whole = file.combinations.iter().filter(|w| w.failed.is_none() && !w.is_split() && warm.all(w));
    for window in whole.filter(|w| w.sharing == sharing) {
        if let Some(watts) = window.power_w {
            let mut names = window.members.clone();
            names.sort_unstable();
            all.entry(names).or_default().push(watts);
        }
    }
    all.into_iter().filter_map(|(names, watts)| Some((names, carma_stats::mean(watts)?))).collect()
}

fn mean(scored: &[Scored]) -> f64 {
    100.0 * score::mean_of(scored)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kace::trainer::RegressionKind;
    use carma_interference::kace::trained::Trained;

    /// As the model that carma ships was made: `docs/research/kace.md`.
    fn shipped() -> (Vec<String>, Options) {
        let options = Options { target: Target::SumProgress, ..Options::honest(RegressionKind::Lr) };
        ([SM_BUSY, MEM_BUSY, MEMCAP].map(str::to_owned).into(), options)
    }

    fn own() -> Own {
        let log = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../bench/h200/results/interference-h200.log.jsonl");
        Own::read(&log, Mode::Mps).unwrap()
    }

    #[test]
    fn the_model_that_is_shipped_is_learned_from_our_log() {
        let own = own();
        let (learn, options) = shipped();
        let rows: Vec<&Collocation> = own.table.rows.iter().collect();
        let kace = Kace::new(&own.table.features, options).learning(&learn).unwrap();
        let (trained, shipped) = (kace.train(&rows).unwrap(), Trained::shipped().unwrap());
        assert_eq!((shipped.features.as_slice(), shipped.rows), (learn.as_slice(), own.table.rows.len()));
        for row in rows {
            let (here, there) = (trained.predict(&kace.shown(row)), shipped.predict(&kace.shown(row)));
            assert!((here - there).abs() < 1e-9, "{:?}: {here}, shipped {there}", row.key());
        }
    }

    #[test]
    fn choices_are_better_than_by_lot_and_power_was_measured() {
        let own = own();
        let (learn, options) = shipped();
        let all = own.choices(&learn, options).unwrap();
        assert_eq!(all.iter().map(|line| (line.k, line.targets)).collect::<Vec<_>>(), {
            [2, 2, 3, 3, 4, 4].map(|k| (k, 17))
        });
        for line in all {
            let of = |name: &str| line.percent.iter().find(|(n, _)| *n == name).unwrap().1;
            assert!(of("KACE") > of("random") && of("lowest SM%") <= 100.0, "{line:?}");
        }
        assert!(own.watts.values().all(|watts| (50.0..750.0).contains(watts)));
        let alone = Own::read(Path::new(env!("CARGO_MANIFEST_DIR")), Mode::Mps);
        assert!(alone.is_err());
    }
}
