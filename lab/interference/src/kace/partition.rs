//! How to divide a GPU's threads between two tasks under MPS (`CUDA_MPS_ACTIVE_THREAD_PERCENTAGE`), chosen by their
//! solo scaling curves alone; what the choice is worth on the artifact's campaign A.
//!
//! KACE's talk names this as future work. The law: under a division a task goes about as fast as alone with so many
//! threads, so the curve of each says what every division will bring.

use super::Error;
use super::cells::Cells;
use carma_interference::power::{Power, PowerLaw as _};
use carma_interference::share::{Demand, curve_at};
use std::collections::BTreeMap;

/// Speed alone over full speed alone by thread percentage, ascending, by workload.
pub type Curves = BTreeMap<String, Vec<(f64, f64)>>;

/// A pair measured under several divisions.
#[derive(Debug, Clone, PartialEq)]
pub struct DividedPair {
    /// The two.
    pub workloads: [String; 2],
    /// Thread percentages, and the progress of each: throughput over throughput alone. 100 and 100 is no division.
    pub measured: Vec<([u8; 2], [f64; 2])>,
}

/// What a division is chosen for.
#[derive(Debug, Clone, Copy)]
pub enum Objective<'a> {
    /// The slower one's progress.
    MaxMin,
    /// The sum of progress.
    MaxSum,
    /// The sum of progress per joule. **Power is modelled**: the artifact measured none. Activity is each task's
    /// alone times its progress.
    WorkPerJoule(Power, [&'a Demand; 2]),
}

impl Objective<'_> {
    /// Its value at a progress of each.
    #[must_use]
    pub fn of(&self, progress: [f64; 2]) -> f64 {
        match self {
            Self::MaxMin => progress[0].min(progress[1]),
            Self::MaxSum => progress[0] + progress[1],
            Self::WorkPerJoule(power, alone) => {
                (progress[0] + progress[1]) / modelled_w(power, alone.iter().copied().zip(progress))
            }
        }
    }
}

/// Watts of tasks at a progress each, from what each does alone: activities add up, to 1 at most.
fn modelled_w<'a>(power: &Power, tasks: impl Iterator<Item = (&'a Demand, f64)>) -> f64 {
    let mut sum = Demand::default();
    for (alone, progress) in tasks {
        sum.gract += alone.gract * progress;
        sum.dram += alone.dram * progress;
    }
    power.drawn_w(&sum)
}

/// The best division of those offered by the solo curves, for an objective; `None` if one has no curve or nothing is
/// offered. Divisions of 100 and 100 are no divisions and are not considered.
#[must_use]
pub fn choose(
    offered: impl Iterator<Item = [u8; 2]>,
    curves: [&[(f64, f64)]; 2],
    objective: &Objective<'_>,
) -> Option<[u8; 2]> {
    let mut best: Option<(f64, [u8; 2])> = None;
    for pct in offered.filter(|pct| *pct != NONE) {
        let progress = [curve_at(curves[0], f64::from(pct[0]))?, curve_at(curves[1], f64::from(pct[1]))?];
        let value = objective.of(progress);
        if best.is_none_or(|(most, _)| value > most) {
            best = Some((value, pct));
        }
    }
    best.map(|(_, pct)| pct)
}

/// No division.
pub const NONE: [u8; 2] = [100, 100];
/// The equal division.
pub const EQUAL: [u8; 2] = [50, 50];

/// What choices on one pair are worth, over the best measured division.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Worth {
    /// By the solo curves.
    pub chosen: f64,
    /// 50 and 50.
    pub equal: f64,
    /// 100 and 100.
    pub none: f64,
    /// The best division over the best of all, no division included.
    pub divided: f64,
}

impl DividedPair {
    /// Whether the equal division and no division were measured, and another one: otherwise the pair can't be scored.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        let has = |pct| self.measured.iter().any(|(p, _)| *p == pct);
        has(EQUAL) && has(NONE) && self.measured.len() > 2
    }

    /// What choices are worth; `None` where it can't be said.
    #[must_use]
    pub fn worth(&self, curves: &Curves, objective: &Objective<'_>) -> Option<Worth> {
        let curve = |i: usize| curves.get(&self.workloads[i]).map(Vec::as_slice);
        let offered = self.measured.iter().map(|(pct, _)| *pct);
        let chosen = choose(offered, [curve(0)?, curve(1)?], objective)?;
        let at = |pct| self.measured.iter().find(|(p, _)| *p == pct).map(|(_, v)| objective.of(*v));
        let divisions = self.measured.iter().filter(|(pct, _)| *pct != NONE);
        let best = divisions.map(|(_, v)| objective.of(*v)).fold(0.0, f64::max);
        let (equal, none) = (at(EQUAL)?, at(NONE)?);
        (best > 0.0).then_some(Worth {
            chosen: at(chosen)? / best,
            equal: equal / best,
            none: none / best,
            divided: best / best.max(none),
        })
    }
}

/// Pairs of campaign A.
pub(super) fn read_pairs(cells: &Cells) -> Result<Vec<DividedPair>, Error> {
    let column = |name| cells.column(name);
    let (campaign, id, slot) = (column("campaign")?, column("coloc_id")?, column("slot")?);
    let (workload, pct) = (column("workload")?, column("mps_active_thread_pct")?);
    let (throughput, solo) = (column("throughput")?, column("solo_throughput_100")?);
    let mut all: Vec<DividedPair> = Vec::new();
    let mut index: BTreeMap<[String; 2], usize> = BTreeMap::new();
    let mut first: Option<(&str, String, u8, f64)> = None;
    for row in cells.rows() {
        if !row.text(campaign)?.starts_with("A_") {
            continue;
        }
        let percent = u8::try_from(row.whole(pct)?).ok().filter(|p| (1..=100).contains(p));
        let percent = percent.ok_or_else(|| Error::new(row.place(pct), "expected 1 to 100"))?;
        let progress = row.positive(throughput, false)? / row.alone(solo)?;
        let (name, which) = (row.text(workload)?.to_owned(), row.text(id)?);
        match (row.whole(slot)?, first.take()) {
            (1, None) => first = Some((which, name, percent, progress)),
            (2, Some((same, one, one_pct, one_progress))) if same == which => {
                let key = [one, name];
                let at = *index.entry(key.clone()).or_insert_with(|| {
                    all.push(DividedPair { workloads: key, measured: Vec::new() });
                    all.len() - 1
                });
                all[at].measured.push(([one_pct, percent], [one_progress, progress]));
            }
            _ => {
                let what = "expected the slots 1 and 2 of a collocation one after the other";
                return Err(Error::new(row.place(slot), what));
            }
        }
    }
    Ok(all)
}

/// Rows that do not have all ten speeds are left out: which percentage a lone value belongs to is not known.
pub(super) fn read_curves(cells: &Cells) -> Result<Curves, Error> {
    let workload = cells.column("workload")?;
    let percentages: Vec<u8> = (1..=10).map(|i| 10 * i).collect();
    let columns: Vec<usize> =
        percentages.iter().map(|p| cells.column(&p.to_string())).collect::<Result<_, _>>()?;
    let mut curves = Curves::new();
    for row in cells.rows() {
        if columns.iter().any(|c| row.maybe(*c).is_none()) {
            continue;
        }
        let rates = columns.iter().map(|c| row.positive(*c, true)).collect::<Result<Vec<f64>, _>>()?;
        let full = rates.last().copied().unwrap_or(1.0);
        let curve = percentages.iter().zip(&rates).map(|(p, r)| (f64::from(*p), r / full)).collect();
        curves.insert(row.text(workload)?.to_owned(), curve);
    }
    Ok(curves)
}

#[cfg(test)]
mod tests {
    use super::*;

    const POWER: Power = Power {
        idle_w: 50.0,
        cap_w: 250.0,
        gract: 0.5,
        smact: 0.0,
        dram: 1.0,
        tensor: 0.0,
        clock_exponent: 3.0,
    };

    fn pair() -> (DividedPair, Curves) {
        let tidy = "campaign,coloc_id,slot,workload,mps_active_thread_pct,throughput,solo_throughput_100\n\
            A_1,1,1,a,20,3,10\nA_1,1,2,b,80,8,10\nA_1,2,1,a,50,6,10\nA_1,2,2,b,50,7,10\n\
            A_1,3,1,a,100,7,10\nA_1,3,2,b,100,4,10\nB_1,4,1,a,100,7,10\nA_1,5,1,a,80,9,10\nA_1,5,2,b,20,6.5,10\n";
        let curves = "workload,10,20,30,40,50,60,70,80,90,100\n\
            a,1,2,3,4,5,6,7,8,9,10\nb,5,7,8,8,8,9,9,9,9,10\nc,3\n";
        let pairs = read_pairs(&Cells::parse("tidy.csv", tidy.as_bytes()).unwrap()).unwrap();
        assert_eq!(pairs.len(), 1);
        let curves = read_curves(&Cells::parse_ragged("curves.csv", curves.as_bytes()).unwrap()).unwrap();
        assert_eq!(curves.len(), 2);
        (pairs[0].clone(), curves)
    }

    #[test]
    fn divisions_are_chosen_by_curves_and_scored_by_measurement() {
        let (pair, curves) = pair();
        assert!(pair.is_usable());
        let fair = pair.worth(&curves, &Objective::MaxMin).unwrap();
        assert_eq!((fair.chosen, fair.equal, fair.divided), (1.0, 0.6 / 0.65, 1.0));
        assert_eq!(fair.none, 0.4 / 0.65);
        let sum = pair.worth(&curves, &Objective::MaxSum).unwrap();
        assert!((sum.chosen - 1.0).abs() < 1e-12 && (sum.equal - 1.3 / 1.55).abs() < 1e-12, "{sum:?}");
    }

    #[test]
    fn work_per_joule_prefers_the_frugal() {
        let (frugal, hungry) = (
            Demand { gract: 0.1, ..Demand::default() },
            Demand { gract: 1.0, dram: 0.5, ..Demand::default() },
        );
        let objective = Objective::WorkPerJoule(POWER, [&frugal, &hungry]);
        assert!(objective.of([0.9, 0.4]) > objective.of([0.4, 0.9]));
        let equal = Objective::WorkPerJoule(POWER, [&hungry, &hungry]);
        assert_eq!(equal.of([0.0, 0.0]), 0.0);
        // Idle power is shared by more work.
        assert!(equal.of([0.2, 0.2]) > equal.of([0.1, 0.1]));
    }

    #[test]
    fn halves_of_a_pair_are_refused() {
        for (rows, said) in [
            ("A_1,1,1,a,20,3,10\nA_1,2,2,b,80,8,10\n", "row 2, column `slot`"),
            ("A_1,1,2,a,20,3,10\n", "row 1, column `slot`"),
            ("A_1,1,1,a,0,3,10\n", "expected 1 to 100"),
            ("A_1,1,1,a,20,3,0\n", "row 1, column `solo_throughput_100`: 0: must be more than 0"),
        ] {
            let text = format!(
                "campaign,coloc_id,slot,workload,mps_active_thread_pct,throughput,solo_throughput_100\n{rows}"
            );
            let error = read_pairs(&Cells::parse("t", text.as_bytes()).unwrap()).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
