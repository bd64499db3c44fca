//! Divisions of threads, and partners for the sake of energy.

use super::super::partition::{Objective, Worth, work_per_joule};
use super::super::protocol;
use super::super::rules::Rule;
use super::super::score::{self, Scored};
use super::super::table::{Member, SM_BUSY, SOLO, Table};
use super::super::{Artifact, Error};
use super::interval::{Percent, percent};
use carma_interference::power::Power;
use carma_interference::share::Demand;
use serde::Serialize;
use std::collections::BTreeMap;

/// How good choices of a division are for one objective.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Divided {
    /// `max-min`, `max-sum` or `work per joule`.
    pub objective: &'static str,
    /// Whether power is modelled.
    pub modelled_power: bool,
    /// Pairs measured under divisions.
    pub pairs: usize,
    /// Pairs with both the equal division and none measured, and with a curve (and activity) of both tasks.
    pub usable: usize,
    /// Worth as a share of the best measured division.
    pub choices: Vec<Choice>,
}

/// One way to choose.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Choice {
    /// Its name.
    pub choice: &'static str,
    /// Percent of the best; interval clustered by the first task of the pair.
    #[serde(flatten)]
    pub pct: Percent,
}

/// Divisions chosen by solo curves, the equal one, and none, for three objectives.
pub(super) fn divisions(artifact: &Artifact, power: &Power) -> Result<Vec<Divided>, Error> {
    let pairs = artifact.divided_pairs()?;
    let curves = artifact.solo_curves()?;
    let activity = artifact.solo_activity()?;
    let of = |name: &'static str| {
        let mut worths: Vec<(&str, Worth)> = Vec::new();
        for pair in pairs.iter().filter(|p| p.is_usable()) {
            let objective = match name {
                "max-min" => Objective::MaxMin,
                "max-sum" => Objective::MaxSum,
                _ => {
                    let [a, b] = &pair.workloads;
                    let (Some(a), Some(b)) = (activity.get(a), activity.get(b)) else { continue };
                    Objective::WorkPerJoule(*power, [a, b])
                }
            };
            if let Some(worth) = pair.worth(&curves, &objective) {
                worths.push((&pair.workloads[0], worth));
            }
        }
        let choice = |choice, value: fn(&Worth) -> f64| Choice {
            choice,
            pct: percent(worths.iter().map(|(cluster, w)| (*cluster, value(w)))),
        };
        Divided {
            objective: name,
            modelled_power: name == "work per joule",
            pairs: pairs.len(),
            usable: worths.len(),
            choices: vec![
                choice("by solo curves", |w| w.chosen),
                choice("equal", |w| w.equal),
                choice("none", |w| w.none),
                choice("by solo curves, of the best with no division among them", |w| w.chosen * w.divided),
            ],
        }
    };
    Ok(["max-min", "max-sum", "work per joule"].into_iter().map(of).collect())
}

/// Partners for the sake of energy: summed progress per joule, percent of the best partner's.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EnergyPartner {
    /// Power is modelled, always.
    pub modelled_power: bool,
    /// Number of pairs.
    pub pairs: usize,
    /// Number of targets.
    pub targets: usize,
    /// Ways to choose.
    pub choices: Vec<Choice>,
}

/// Chooses among the measured pairs of a target: by predicted work per joule, at the progress of an equal share of
/// the SMs' busy time (no parameter, nothing learned); by its baselines.
pub(super) fn partners(artifact: &Artifact, power: &Power, table: &Table) -> Result<EnergyPartner, Error> {
    let activity = artifact.solo_activity()?;
    let (solo, busy) = (table.feature(SOLO)?, table.feature(SM_BUSY)?);
    let known = table.without(|w| !activity.contains_key(w));
    let protocol = protocol::unseen("energy", &known)?;
    let worth = |row: &super::Collocation| work_per_joule(power, &activity, solo, row).unwrap_or(0.0);
    let predicted = score::per_case(|_, case| {
        Ok(case.test.iter().map(|row| at_fair_share(power, &activity, solo, busy, &row.members)).collect())
    });
    let sum = score::per_case(|_, case| {
        Ok(case.test.iter().map(|row| fair_shares(busy, &row.members).iter().sum()).collect())
    });
    let least_busy = Rule::new(&known.features, SM_BUSY, false)?;
    let run = |scorer: &dyn score::Scorer| score::evaluate_by(scorer, &protocol, 1, &worth);
    let choice = |choice, scored: Vec<Scored>| Choice {
        choice,
        pct: percent(scored.iter().map(|s| (s.target.as_str(), s.ratio))),
    };
    let kace = super::Kace::new(&known.features, super::Options::honest(super::RegressionKind::Lr));
    Ok(EnergyPartner {
        modelled_power: true,
        pairs: known.rows.len(),
        targets: protocol.cases(),
        choices: vec![
            choice("predicted work per joule", run(&predicted)?),
            choice("predicted sum of progress", run(&sum)?),
            choice("least busy SMs", run(&least_busy)?),
            choice("KACE LR (sum of throughput), honest", run(&kace)?),
            choice("random", score::random_by(&protocol, &worth)),
        ],
    })
}

/// Progress of each at an equal share of the SMs' busy time.
fn fair_shares(busy: usize, members: &[Member]) -> Vec<f64> {
    let total: f64 = members.iter().map(|m| m.features[busy] / 100.0).sum();
    vec![1.0 / total.max(1.0); members.len()]
}

fn at_fair_share(
    power: &Power,
    activity: &BTreeMap<String, Demand>,
    solo: usize,
    busy: usize,
    members: &[Member],
) -> f64 {
    let shares = fair_shares(busy, members);
    let expected =
        members.iter().zip(shares).map(|(m, p)| Member { throughput: p * m.features[solo], ..m.clone() });
    work_per_joule(power, activity, solo, &super::Collocation { members: expected.collect() }).unwrap_or(0.0)
}
