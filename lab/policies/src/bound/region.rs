//! What the law can give to sets that are too large to be listed: linear rows that hold for all of them.
//!
//! The terms are those of `carma_interference::law`; here the sets have at least `k + 1` members. Write `x_c` for the total
//! progress of the members of class `c`.
//!
//! **Least presence.** `q_j >= least_j` whatever the others do, as a task's chance of having a kernel on the GPU is
//! `e / ((1 - o)(1 - g + e + d) + o max(1, e))`, which grows with `e >= g` and falls with the waiting `d`. Under MPS `d` is
//! bounded. Under time-slicing, with `t` the sum of the others' presences, `e >= g (1 + t)` and `d <= D t / C`; between
//! `g (1 + t) = 1` and infinity, and below, the quotient is a linear function over another, so that its least is at an end.
//!
//! **Capacity.** `x_i g_i = q_i r_i` and `r_i <= H / sum over j of q_j a_j w_j / w_i` (the load counts one's own kernels in
//! full, crowding only adds to it), so the sum of `x_i g_i a_i` is at most `H = C + (1 - C)+ quiet`. That `r_i` is not below
//! the chance that none of the others would run alone could break it; it does not where
//! `free (a_i + sum of a_j R_ij) <= C` for every set of `k` and more others, with `R_ij` the ratio of weights at the most
//! crowding. That is looked up for the sets of `k`; one more multiplies the left side by
//! `(1 - g_j) (1 + a_j R_ij / load)`, which is looked up to be at most 1 at the least load. Where that fails there is no such
//! row. DRAM and tensor pipes are divided by water-filling under MPS, which counts one's own in full as well: the sums of `x_i` times what
//! the kernels take are within their capacities.
//!
//! **Own progress.** `x_c` of one member is at most what the law gives it against the `k` least present others.
//!
//! **Memory.** There are at least `x_c / u_c` members of class `c`, with `u_c` the most that one of it can do.
//!
//! **Power.** Above the limit the clock is `1 / y` with `y^alpha = L`, the load over the limit, and the progress of each is
//! divided by `longer(y)`. The range of `y` is cut into pieces; in a piece `x_c longer_c(y_from)` obeys the rows above, and
//! `L >= gract G + sum of coefficients times x_c longer_c(y_from)` is at most `y_to^alpha`. `G` is a lower bound of the
//! engine's activity.
//!
//! The law is solved by rounds, to a change of `1e-7` of any `q`: the rows have `SLACK` for that.

use super::sets::{Member, Sets};
use carma_interference::law::Client;
use carma_interference::power::PowerLaw as _;
use carma_interference::share::{Mode, clients};
use carma_sim::event::clairvoyant::Known;
use carma_sim::gpu::Law;

/// Relative slack of every row: the law is solved to a little less.
const SLACK: f64 = 1e-3;
/// Pieces into which the range of the clock is cut, beside the full clock.
const PIECES: u32 = 10;
/// As in the law: bounds of crowding, of waiting, and of logarithms of ratios of weights.
const CROWDED: f64 = 3.0;
const BEFORE: f64 = 8.0;
const RATIO: f64 = 12.0;

/// Rows that hold at one range of clocks: the sum of `x_c` times the factor of `c` is at most the limit.
#[derive(Debug, Clone, Default)]
pub(super) struct Piece {
    pub(super) rows: Vec<(Vec<f64>, f64)>,
    /// Watts: a constant and what a unit of progress of each class adds, of which power is at least the sum or the limit.
    pub(super) watts: (f64, Vec<f64>),
}

/// Everything that the law can give to sets of more than `size` members.
pub(super) fn pieces(known: &Known, law: &Law, memory: u64, members: &[Member], sets: &Sets) -> Vec<Piece> {
    let tenants: Vec<_> = members.iter().map(|it| known.classes()[it.class as usize].tenant).collect();
    let clients = clients(known.mode(), &tenants, &law.capacities);
    let engine: Vec<f64> = tenants.iter().map(|it| it.demand.gract.clamp(0.0, 1.0)).collect();
    let facts = Facts::new(known.mode(), law, members, &clients, &engine, sets);
    let power = law.power;
    let span = (power.cap_w - power.idle_w).max(0.0);
    let all = power.gract.max(0.0) + power.smact.max(0.0) + power.dram.max(0.0) + power.tensor.max(0.0);
    let most =
        if all > 1.0 && power.clock_exponent > 0.0 { all.powf(1.0 / power.clock_exponent) } else { 1.0 };
    let steps = if most > 1.0 { PIECES } else { 0 };
    let y = |step: u32| 1.0 + (most - 1.0) * f64::from(step) / f64::from(PIECES);
    let piece = |step: u32| {
        // Piece 0 is the full clock.
        let (from, to) = if step == 0 { (1.0, 1.0) } else { (y(step - 1), y(step)) };
        let longer: Vec<f64> = tenants.iter().map(|it| power.longer(&it.demand, 1.0 / from)).collect();
        let times = |of: &[f64]| -> Vec<f64> { of.iter().zip(&longer).map(|(a, b)| a * b).collect() };
        let mut rows: Vec<(Vec<f64>, f64)> =
            facts.uses.iter().map(|(of, limit)| (times(of), limit * (1.0 + SLACK))).collect();
        let held = members.iter().zip(&facts.own).zip(&longer);
        let held = held.map(|((it, own), longer)| it.least as f64 * longer / own).collect();
        rows.push((held, memory as f64 * (1.0 + SLACK)));
        let load = if step == 0 { 1.0 } else { to.powf(power.clock_exponent) };
        if load < all {
            rows.push((times(&facts.load), (load - facts.engine).max(0.0) + SLACK));
        }
        let watts = (
            power.idle_w + span * facts.engine_watts,
            facts
                .watts
                .iter()
                .zip(&longer)
                .map(|(w, longer)| span * w * if step == 0 { 1.0 } else { *longer })
                .collect(),
        );
        Piece { rows, watts }
    };
    (0..=steps).map(piece).collect()
}

/// What the pieces are made of.
struct Facts {
    /// What a unit of progress of each class uses at the full clock, and how much there is: SMs or engine, DRAM, tensor.
    uses: Vec<(Vec<f64>, f64)>,
    /// The most progress of one of each class.
    own: Vec<f64>,
    /// Load over the power limit: what is always there, and of a unit of progress of each class.
    engine: f64,
    load: Vec<f64>,
    /// As above, for the power that is drawn: activity of the engine counts as jobs' own there.
    engine_watts: f64,
    watts: Vec<f64>,
}

impl Facts {
    fn new(
        mode: Mode,
        law: &Law,
        members: &[Member],
        clients: &[Client],
        counters: &[f64],
        sets: &Sets,
    ) -> Self {
        let Law { power, capacities } = law;
        let size = sets.size;
        let (capacity, wait_s, crowding) = match mode {
            Mode::TimeSlice => (capacities.time_slice_gract, capacities.time_slice.wait_s, 0.0),
            Mode::Mps => (capacities.mps_sm, capacities.mps.wait_s, capacities.crowding),
        };
        let present: Vec<f64> = clients.iter().map(|c| presence(mode, c, capacity, wait_s)).collect();
        let fill = |c: &Client| if mode == Mode::Mps { c.fill } else { 1.0 };
        let ratio = |i: &Client, j: &Client| {
            // Time slices are alike for all, but a weight of the catalogue's counts in either mode.
            (j.log_weight - i.log_weight).clamp(-RATIO, RATIO).exp()
        };
        // The least sum over `size` others of `i` that there are, and the largest product of `size`.
        let others = |i: usize, of: &dyn Fn(usize) -> f64| least(members, size, Some(i), of);
        let quiet = |count: usize| {
            let logs = least(members, count, None, &|j| -(1.0 - present[j]).max(1e-300).ln());
            (-logs).exp()
        };
        let most = capacity + (1.0 - capacity).max(0.0) * quiet(size);
        let bounded = mode == Mode::TimeSlice
            || (0..clients.len()).all(|i| {
                // The least load with so many others: each takes at least this, however heavy.
                let load =
                    fill(&clients[i]) + others(i, &|j| fill(&clients[j]) * ratio(&clients[i], &clients[j]));
                floor_is_low(sets, clients, i, (capacity, crowding), load)
            });
        let own = (0..clients.len()).map(|i| {
            let c = &clients[i];
            let taken = others(i, &|j| present[j] * fill(&clients[j]));
            let load = fill(c) + others(i, &|j| present[j] * fill(&clients[j]) * ratio(c, &clients[j]));
            let rate = if bounded { (most / load.max(1e-9)).min(1.0) } else { 1.0 };
            let wait = match mode {
                Mode::TimeSlice => (wait_s * c.steps_per_s - c.engine).max(0.0) * taken,
                Mode::Mps => wait_s * c.steps_per_s * (taken + fill(c) - 1.0).clamp(0.0, BEFORE),
            };
            let busy = c.engine / rate;
            let time = 1.0
                + (1.0 - c.overlap) * ((busy - c.engine).max(0.0) + wait)
                + c.overlap * (busy - 1.0).max(0.0);
            (1.0 / time * (1.0 + SLACK)).min(1.0)
        });
        let own = own.collect();
        // What the kernels take, as the law sees it.
        let sm: Vec<f64> = clients.iter().map(|c| c.engine * c.fill).collect();
        let dram: Vec<f64> = clients.iter().map(|c| c.engine * c.dram * capacities.mps_dram).collect();
        let tensor: Vec<f64> = clients.iter().map(|c| c.engine * c.tensor * capacities.mps_tensor).collect();
        let engine: Vec<f64> = clients.iter().map(|c| c.engine).collect();
        let mut uses = Vec::new();
        if bounded {
            uses.push((if mode == Mode::Mps { sm.clone() } else { engine.clone() }, most));
        }
        if mode == Mode::Mps {
            uses.push((dram.clone(), capacities.mps_dram));
            uses.push((tensor.clone(), capacities.mps_tensor));
        }
        // Activities count up to 1: where more of one can be had, each unit counts for less.
        let unit = |most: f64| 1.0 / most.max(1.0);
        let (sm_unit, other_unit) = match mode {
            Mode::Mps if bounded => (unit(most), 1.0),
            Mode::Mps => (0.0, 1.0),
            Mode::TimeSlice => (unit(most), unit(most)),
        };
        let part = |i: usize| {
            power.smact.max(0.0) * sm[i] * sm_unit
                + power.dram.max(0.0) * dram[i] * other_unit * unit(capacities.mps_dram)
                + power.tensor.max(0.0) * tensor[i] * other_unit * unit(capacities.mps_tensor)
        };
        let watts: Vec<f64> = (0..clients.len()).map(part).collect();
        // The chance that anyone has a kernel there, of as many as there are at least.
        let solo = least(members, size + 1, None, &|j| -(1.0 - counters[j]).max(1e-300).ln());
        let engine_watts = power.gract.max(0.0) * (1.0 - (-solo).exp());
        let (engine_load, load) = match mode {
            Mode::Mps => (power.gract.max(0.0) * (1.0 - quiet(size + 1)), watts.clone()),
            Mode::TimeSlice => {
                let a_unit = power.gract.max(0.0) / capacity.min(1.0) * unit(most / capacity.min(1.0));
                (0.0, watts.iter().zip(&engine).map(|(w, g)| w + a_unit * g).collect())
            }
        };
        Self { uses, own, engine: engine_load, load, engine_watts, watts }
    }
}

/// The least chance that a task has a kernel on the GPU, whatever the others are.
fn presence(mode: Mode, c: &Client, capacity: f64, wait_s: f64) -> f64 {
    let (g, o) = (c.engine, c.overlap);
    match mode {
        Mode::Mps => g / (o + (1.0 - o) * (1.0 + wait_s * c.steps_per_s * BEFORE)),
        Mode::TimeSlice => {
            let d = (wait_s * c.steps_per_s - g).max(0.0) / capacity.min(1.0);
            // Nobody else, just enough to fill the GPU's time, and without end.
            let middle = if g > 0.0 { 1.0 / ((1.0 - o) * (2.0 - g + d * (1.0 / g - 1.0)) + o) } else { 0.0 };
            let last = g / ((1.0 - o) * (g + d) + o * g).max(1e-12);
            g.min(middle).min(last)
        }
    }
}

/// Whether the chance that no other would run alone never lifts the rate of `i` above its share, with so many others as the
/// listed sets have at most, or more.
fn floor_is_low(
    sets: &Sets,
    clients: &[Client],
    i: usize,
    (capacity, crowding): (f64, f64),
    least: f64,
) -> bool {
    let taken: Vec<f64> = clients
        .iter()
        .map(|c| {
            let log = (c.log_weight - clients[i].log_weight).clamp(-RATIO, RATIO);
            c.fill * (log + crowding * CROWDED * log.max(0.0)).exp()
        })
        .collect();
    // One more never makes the product larger, so that it is enough to look at the largest listed sets.
    let falls = |(c, taken): (&Client, &f64)| (1.0 - c.engine) * (1.0 + taken / least.max(1e-9)) <= 1.0;
    if !clients.iter().zip(&taken).all(falls) {
        return false;
    }
    (0..sets.len()).filter(|at| sets.count(*at) == sets.size).all(|at| {
        let (free, load) = sets.get(at).fold((1.0, clients[i].fill), |(free, load), (j, _)| {
            (free * (1.0 - clients[j].engine), load + taken[j])
        });
        free * load <= capacity
    })
}

/// The least sum of so many members' numbers, none of them more often than there are jobs; `but`: one job is taken out.
/// Fewer than so many count as so many of the smallest.
fn least(members: &[Member], count: usize, but: Option<usize>, of: &dyn Fn(usize) -> f64) -> f64 {
    let jobs = |at: usize| members[at].count.saturating_sub(usize::from(but == Some(at)));
    let mut values: Vec<f64> =
        (0..members.len()).flat_map(|at| std::iter::repeat_n(of(at), jobs(at).min(count))).collect();
    values.sort_by(f64::total_cmp);
    values.iter().take(count).sum()
}
