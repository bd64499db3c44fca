//! Prices of progress: what a unit of progress of each class is worth, such that no set of jobs makes more than 1 a second on
//! a GPU.
//!
//! Any such prices bound what can be done: work is worth at least what the GPUs' time is. The best ones for some amount of
//! work are the dual solution of a linear program over all sets. They are found over the sets that matter, one after the
//! other, then scaled by the most that any set makes: however the solver rounds, no set makes more than 1.

use super::region::{self, Piece};
use super::sets::{Member, Sets};
use crate::Error;
use carma_sim::event::clairvoyant::Known;
use microlp::{ComparisonOp, OptimizationDirection, Problem, Variable};
use std::collections::BTreeMap;

/// Rounds in which sets are added, at most.
const ROUNDS: usize = 60;
/// Sets that are added in a round, at most.
const ADDED: usize = 80;
/// What a set may make beyond 1 while prices are looked for.
const ENOUGH: f64 = 1e-4;

/// What a GPU can do with the jobs of a workload.
#[derive(Debug, Clone)]
pub(super) struct Speeds {
    pub(super) members: Vec<Member>,
    /// Position among the members of each class of the known; `None`: no job of it counts.
    pub(super) member_of: Vec<Option<usize>>,
    pub(super) sets: Sets,
    /// Rows for larger sets, none where all are listed.
    pub(super) pieces: Vec<Piece>,
}

impl Speeds {
    /// `None`: the GPUs are not of one type, or parts of GPUs.
    pub(super) fn new(known: &Known, largest: usize) -> Option<Self> {
        let (law, memory) = known.one_type()?;
        let mut member_of = vec![None; known.classes().len()];
        let mut members: Vec<Member> = Vec::new();
        for job in known.jobs().iter().filter(|job| job.fits) {
            let at = *member_of[job.class].get_or_insert_with(|| {
                let least = known.classes()[job.class].least.0;
                members.push(Member { class: job.class as u16, count: 0, least });
                members.len() - 1
            });
            members[at].count += 1;
        }
        // In the order of classes, as the law is asked.
        let mut order: Vec<usize> = (0..members.len()).collect();
        order.sort_by_key(|at| members[*at].class);
        let members: Vec<Member> = order.iter().map(|at| members[*at]).collect();
        for (at, member) in members.iter().enumerate() {
            member_of[member.class as usize] = Some(at);
        }
        let sets = Sets::new(known, &members, memory.0, largest);
        let pieces =
            if sets.larger { region::pieces(known, law, memory.0, &members, &sets) } else { Vec::new() };
        Some(Self { members, member_of, sets, pieces })
    }

    /// The best prices for so much work of each member.
    pub(super) fn prices(&self, work: &[f64]) -> Result<Vec<f64>, Error> {
        let mut rows: BTreeMap<usize, ()> = BTreeMap::new();
        // Alone on a GPU: nobody's price is above 1.
        let mut values = vec![1.0; self.members.len()];
        for _ in 0..ROUNDS {
            let broken = self.broken(&values);
            let before = rows.len();
            rows.extend(broken.into_iter().map(|at| (at, ())));
            let solved = self.solve(work, rows.keys().copied())?;
            let same = rows.len() == before;
            values = solved;
            if same {
                break;
            }
        }
        let scale = self.most(&values).max(1e-12);
        Ok(values.into_iter().map(|value| value / scale).collect())
    }

    /// Sets that make too much: the worst of those that each member begins, and others.
    fn broken(&self, values: &[f64]) -> Vec<usize> {
        let mut worst: Vec<(f64, usize)> = (0..self.sets.len())
            .map(|at| (self.sets.worth(at, values), at))
            .filter(|(worth, _)| *worth > 1.0 + ENOUGH)
            .collect();
        worst.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let mut often = vec![0; self.members.len()];
        let mut chosen = Vec::new();
        for (_, at) in worst {
            // Not the same few again and again: cuts should differ.
            if self.sets.get(at).all(|(member, _)| often[member] < 6) || chosen.len() < 8 {
                self.sets.get(at).for_each(|(member, _)| often[member] += 1);
                chosen.push(at);
            }
            if chosen.len() >= ADDED {
                break;
            }
        }
        chosen
    }

    fn solve(&self, work: &[f64], rows: impl Iterator<Item = usize>) -> Result<Vec<f64>, Error> {
        let total: f64 = work.iter().sum::<f64>().max(1e-9);
        let mut problem = Problem::new(OptimizationDirection::Maximize);
        let values: Vec<Variable> =
            work.iter().map(|work| problem.add_var(work / total, (0.0, 1.0))).collect();
        for at in rows {
            // One member may be there twice.
            let mut row: BTreeMap<usize, f64> = BTreeMap::new();
            self.sets.get(at).for_each(|(member, p)| *row.entry(member).or_default() += p);
            let row: Vec<(Variable, f64)> = row.into_iter().map(|(member, p)| (values[member], p)).collect();
            problem.add_constraint(row.as_slice(), ComparisonOp::Le, 1.0);
        }
        for piece in &self.pieces {
            let duals: Vec<Variable> =
                piece.rows.iter().map(|_| problem.add_var(0.0, (0.0, f64::INFINITY))).collect();
            // In units of the limit, so that all numbers are of one size.
            for (at, value) in values.iter().enumerate() {
                let mut row = vec![(*value, 1.0)];
                row.extend(
                    piece
                        .rows
                        .iter()
                        .zip(&duals)
                        .map(|((of, limit), dual)| (*dual, -of[at] / limit.max(1e-9))),
                );
                problem.add_constraint(row.as_slice(), ComparisonOp::Le, 0.0);
            }
            let sum: Vec<(Variable, f64)> = duals.iter().map(|dual| (*dual, 1.0)).collect();
            problem.add_constraint(sum.as_slice(), ComparisonOp::Le, 1.0);
        }
        let failed = |e: &dyn std::fmt::Display| Error(format!("the linear program of the bound: {e}"));
        let solution = problem.solve().map_err(|e| failed(&e))?.into_solution();
        let solution = solution.map_err(|_| failed(&"it was not solved"))?;
        Ok(values.iter().map(|value| solution.var_value(*value).max(0.0)).collect())
    }

    /// The most that any set makes at these prices, or more.
    pub(super) fn most(&self, values: &[f64]) -> f64 {
        let listed = (0..self.sets.len()).map(|at| self.sets.worth(at, values)).fold(0.0, f64::max);
        self.pieces.iter().map(|piece| most_in(piece, values)).fold(listed, f64::max)
    }
}

/// An upper bound of what progress within a piece's rows is worth: any duals give one. These are the best by the solver.
pub(super) fn most_in(piece: &Piece, values: &[f64]) -> f64 {
    let mut problem = Problem::new(OptimizationDirection::Minimize);
    let duals: Vec<Variable> =
        piece.rows.iter().map(|_| problem.add_var(1.0, (0.0, f64::INFINITY))).collect();
    for (at, value) in values.iter().enumerate() {
        let row: Vec<(Variable, f64)> = piece
            .rows
            .iter()
            .zip(&duals)
            .map(|((of, limit), dual)| (*dual, of[at] / limit.max(1e-9)))
            .collect();
        problem.add_constraint(row.as_slice(), ComparisonOp::Ge, *value);
    }
    let solved = problem.solve().ok().and_then(|it| it.into_solution().ok());
    let Some(solution) = solved else { return f64::INFINITY };
    let duals: Vec<f64> = duals.iter().map(|dual| solution.var_value(*dual).max(0.0)).collect();
    // However it rounded: what the duals cover of each value must be enough.
    let covered = |at: usize| -> f64 {
        piece.rows.iter().zip(&duals).map(|((of, limit), dual)| of[at] / limit.max(1e-9) * dual).sum()
    };
    let short = values.iter().enumerate().filter(|(_, value)| **value > 1e-9);
    let short = short.map(|(at, value)| value / covered(at).max(1e-12)).fold(1.0, f64::max);
    duals.iter().sum::<f64>() * short
}
