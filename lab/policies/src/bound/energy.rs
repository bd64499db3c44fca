//! The bound on energy.
//!
//! All GPUs draw what an empty one draws from the first arrival to the last end, and each set of jobs something more. With
//! prices `v` of progress, in joules a second, and a credit `c` between 0 and the power of an empty GPU, such that for every set
//! progress is worth at most its power less an empty GPU's and plus `c`,
//!
//! ```text
//! energy  >=  work at v  +  GPUs * (empty - c) * least makespan
//! ```
//!
//! A job on several GPUs may go slower than one of them alone would let it, at less power there: power is concave in its rate
//! (linear up to the limit), so that it is enough to look at it at full rate and at none. The engine's activity counts as what
//! the jobs show alone, as in the simulator.

use super::prices::{Speeds, most_in};
use crate::Error;
use carma_interference::power::PowerLaw as _;
use carma_interference::share::Demand;
use carma_sim::event::clairvoyant::Known;
use microlp::{ComparisonOp, OptimizationDirection, Problem, Variable};
use std::collections::BTreeMap;

const ROUNDS: usize = 60;
const ADDED: usize = 80;

/// One row: members and their progress, and the power of the set less an empty GPU's.
struct Row {
    progress: Vec<(usize, f64)>,
    watts: f64,
}

/// Least energy for so much work of each member, joules; `work` in seconds of progress, `gang`: whether members are on several
/// GPUs, `makespan`: the least, seconds.
pub(super) fn least(
    speeds: &Speeds,
    known: &Known,
    work: &[f64],
    gang: &[bool],
    makespan: f64,
) -> Result<f64, Error> {
    let Some((law, _)) = known.one_type() else { return Ok(0.0) };
    let (empty, gpus, power) = (known.empty_w(), known.cluster().len() as f64, law.power);
    let rows = rows(speeds, known, gang, empty);
    let mut used: BTreeMap<usize, ()> = BTreeMap::new();
    // Each alone, at first.
    used.extend(rows.iter().enumerate().filter(|(_, row)| row.progress.len() == 1).map(|(at, _)| (at, ())));
    let (mut values, mut credit) = (vec![0.0; work.len()], 0.0);
    for _ in 0..ROUNDS {
        let mut problem = Problem::new(OptimizationDirection::Maximize);
        let scale = 1.0 / (work.iter().sum::<f64>() + gpus * makespan).max(1e-9);
        let prices: Vec<Variable> =
            work.iter().map(|work| problem.add_var(work * scale, (0.0, 10.0 * power.cap_w))).collect();
        // Loading jobs hold a GPU at idle power.
        let low = (empty - power.idle_w).clamp(0.0, empty);
        let plus = problem.add_var(-gpus * makespan * scale, (low, empty));
        for at in used.keys() {
            let mut of: BTreeMap<usize, f64> = BTreeMap::new();
            rows[*at].progress.iter().for_each(|(member, p)| *of.entry(*member).or_default() += p);
            let mut row: Vec<(Variable, f64)> =
                of.into_iter().map(|(member, p)| (prices[member], p)).collect();
            row.push((plus, -1.0));
            problem.add_constraint(row.as_slice(), ComparisonOp::Le, rows[*at].watts);
        }
        for piece in &speeds.pieces {
            let none = vec![0.0; work.len()];
            for (base, each) in [(piece.watts.0, &piece.watts.1), (power.cap_w, &none)] {
                let duals: Vec<Variable> =
                    piece.rows.iter().map(|_| problem.add_var(0.0, (0.0, f64::INFINITY))).collect();
                for (at, price) in prices.iter().enumerate() {
                    let mut row = vec![(*price, 1.0)];
                    row.extend(
                        piece
                            .rows
                            .iter()
                            .zip(&duals)
                            .map(|((of, limit), dual)| (*dual, -of[at] / limit.max(1e-9))),
                    );
                    problem.add_constraint(row.as_slice(), ComparisonOp::Le, each[at]);
                }
                let mut sum: Vec<(Variable, f64)> = duals.iter().map(|dual| (*dual, 1.0)).collect();
                sum.push((plus, -1.0));
                problem.add_constraint(sum.as_slice(), ComparisonOp::Le, base - empty);
            }
        }
        let solved =
            problem.solve().map_err(|e| Error(format!("the linear program of the energy bound: {e}")))?;
        let Ok(solution) = solved.into_solution() else {
            return Err(Error("the linear program of the energy bound was not solved".to_owned()));
        };
        values = prices.iter().map(|price| solution.var_value(*price).max(0.0)).collect();
        credit = solution.var_value(plus).clamp(low, empty);
        let worth = |row: &Row| row.progress.iter().map(|(member, p)| values[*member] * p).sum::<f64>();
        let mut broken: Vec<(f64, usize)> = (0..)
            .zip(&rows)
            .map(|(at, row): (usize, &Row)| (worth(row) - row.watts - credit, at))
            .filter(|(over, at)| *over > 0.02 && !used.contains_key(at))
            .collect();
        if broken.is_empty() {
            break;
        }
        broken.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let mut often = vec![0; work.len()];
        let mut added = 0;
        for (_, at) in broken {
            if added < 8 || rows[at].progress.iter().all(|(member, _)| often[*member] < 6) {
                rows[at].progress.iter().for_each(|(member, _)| often[*member] += 1);
                used.insert(at, ());
                added += 1;
            }
            if added >= ADDED {
                break;
            }
        }
    }
    // What the solver left over is paid for by more credit, or by less for all progress: whichever costs less.
    let worth = |row: &Row| row.progress.iter().map(|(member, p)| values[*member] * p).sum::<f64>();
    let mut over = rows.iter().map(|row| worth(row) - row.watts - credit).fold(0.0, f64::max);
    let none = vec![0.0; work.len()];
    for piece in &speeds.pieces {
        for (base, each) in [(piece.watts.0, &piece.watts.1), (power.cap_w, &none)] {
            let more: Vec<f64> =
                values.iter().zip(each).map(|(value, each)| (value - each).max(0.0)).collect();
            over = over.max(most_in(piece, &more) - (base - empty + credit));
        }
    }
    let value: f64 = work.iter().zip(&values).map(|(work, value)| work * value).sum();
    let all = |value: f64, credit: f64| value + gpus * (empty - credit) * makespan;
    // Power is never below this.
    let lowest = power.idle_w.min(power.cap_w) - empty + credit;
    let scaled = if lowest > 0.0 { all(value * lowest / (lowest + over), credit) } else { 0.0 };
    let paid = if credit + over <= empty { all(value, credit + over) } else { 0.0 };
    Ok(scaled.max(paid).max(gpus * empty.min(power.idle_w) * makespan))
}

/// The rows of all listed sets, at full rate and without what may wait for other GPUs.
fn rows(speeds: &Speeds, known: &Known, gang: &[bool], empty: f64) -> Vec<Row> {
    let Some((law, _)) = known.one_type() else { return Vec::new() };
    let demand: Vec<Demand> =
        speeds.members.iter().map(|it| known.classes()[it.class as usize].tenant.demand).collect();
    let mut rows = Vec::new();
    for at in 0..speeds.sets.len() {
        let clock = speeds.sets.clocks[at];
        let all: Vec<(usize, f64)> = speeds.sets.get(at).collect();
        let quiet: f64 = all.iter().map(|(member, _)| 1.0 - demand[*member].gract.clamp(0.0, 1.0)).product();
        let gangs: Vec<usize> = (0..all.len()).filter(|at| gang[all[*at].0]).collect();
        for mask in 0..1_usize << gangs.len() {
            let out =
                |at: &usize| gangs.iter().position(|gang| gang == at).is_some_and(|bit| mask >> bit & 1 == 1);
            let progress: Vec<(usize, f64)> =
                (0..all.len()).filter(|at| !out(at)).map(|at| all[at]).collect();
            let mut used = Demand { gract: 1.0 - quiet, ..Demand::default() };
            for (member, p) in &progress {
                let demand = &demand[*member];
                let longer = law.power.longer(demand, clock);
                used.sm += demand.sm * p * longer;
                used.dram += demand.dram * p * longer;
                used.tensor += demand.tensor * p * longer;
            }
            rows.push(Row { progress, watts: law.power.drawn_w(&used) - empty });
        }
    }
    rows
}
