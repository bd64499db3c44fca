//! Divisions of threads.

use super::super::partition::{Objective, Worth};
use super::super::{Artifact, Error};
use super::interval::{Percent, percent};
use carma_interference::power::Power;
use serde::Serialize;

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
