//! How far tasks on one GPU slow each other down, from what each does alone: the law of [`crate::law`], for the simulator and
//! virtual GPUs.
//!
//! Every task has a *demand*: the share of each resource that it uses when it runs alone on the whole GPU. Of that and of the
//! constants of a type of GPU ([`Capacities`]) comes what the law divides by:
//!
//! ```text
//! g    = GRACT                                        share of its time with a kernel on the GPU
//! a    = SMACT / GRACT                                SMs that its kernels fill while they run; DRAM, tensor pipes likewise
//! w    = weight (1 - a)^-f e^(t tensor^4)   under MPS; its weight alone under time-slicing
//! o    = logistic(logit(overlap) + overlap_engine (g - 0.7))
//! ```
//!
//! On a part of a GPU (a MIG instance) kernels that filled more than the part take longer and host time stays; the law divides
//! the part by what the task does there alone, and its progress is
//!
//! ```text
//! 1 / (1 - g + max(g, SMACT / part of SMs, DRAM / part of bandwidth)) * what the law says
//! ```
//!
//! A thread limit under MPS leaves it its measured speed alone, or what [`crate::law`] makes of SMs that its kernels lack.
//!
//! It has no memory and no noise. What the predictor learns of single tasks beside the law (their weights, how far their hosts
//! run ahead) is not known here: on H200s each task's own progress is off by a tenth to a fifth, the sum of a set by a twentieth
//! (`docs/research/gpu-models.md`).
//!
//! # Power
//! When the set asks for more power than the board may draw, clocks fall and everyone slows down:
//! that factor belongs to the type of GPU (module `power`), and is multiplied in where both are known.

pub use crate::mode::Mode;
pub use carma_hardware::Capacities;

use crate::law::{self, Client, Constants};
use carma_hardware::Waiting;

/// What a task uses of a GPU when it has it for itself, or what a set of tasks uses together. Shares
/// of the device's peak, 0 to 1, under the meanings of DCGM's fields 1001-1005.
///
/// Write literals with `..Demand::default()`: resources may be added.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Demand {
    /// GRACT: share of time with any kernel resident. Never less than SMs, DRAM and tensor: a unit
    /// can't be active while the engine is not. [`share`] raises it where it is. A copy over PCIe
    /// needs no engine time.
    pub gract: f64,
    /// SMACT: share of the SMs' time with a warp resident.
    pub sm: f64,
    /// DRAM active: share of the *theoretical* bandwidth (about 0.8 can be had).
    pub dram: f64,
    /// Any tensor pipe active.
    pub tensor: f64,
    /// PCIe traffic, share of what the link can carry in its busier direction.
    pub pcie: f64,
}

/// One task on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Tenant {
    /// What it uses when alone.
    pub demand: Demand,
    /// Factor of the weight that its demand gives it in the division of a scarce resource; only ratios matter. 1 unless
    /// something is known. What is not positive and finite counts as 1.
    pub weight: f64,
    /// Upper limit on its share of the SMs, 0 to 1 (`CUDA_MPS_ACTIVE_THREAD_PERCENTAGE` / 100;
    /// on a MIG instance, of its SMs). `None`: no limit. Only MPS has such limits: time-slicing ignores it.
    pub sm_cap: Option<f64>,
    /// Its speed alone under `sm_cap`, over its speed alone without: [`curve_at`] of its measured
    /// curve. `None`: not measured, and its kernels are taken to lose nearly what they lack in SMs. Means nothing without
    /// `sm_cap`.
    pub capped_rate: Option<f64>,
    /// Steps a second alone, each of which ends with an answer that it waits for; 0 for one that never waits. `None`: not
    /// known, and [`Capacities::steps_per_s`] is taken.
    pub steps_per_s: Option<f64>,
}

impl Tenant {
    /// A tenant of weight 1 without a limit.
    #[must_use]
    pub const fn new(demand: Demand) -> Self {
        Self { demand, weight: 1.0, sm_cap: None, capped_rate: None, steps_per_s: None }
    }

    /// The same under MPS with a limit of `percent` of the threads. `curve` is its speed alone by
    /// percentage, as in [`curve_at`]; empty: not measured.
    #[must_use]
    pub fn with_threads(self, percent: f64, curve: &[(f64, f64)]) -> Self {
        Self { sm_cap: Some(percent / 100.0), capped_rate: curve_at(curve, percent), ..self }
    }
}

/// A task's speed alone at an MPS thread percentage, over its speed alone without a limit.
///
/// `curve` holds (percent, share of the full speed) with ascending percentages. Piecewise linear
/// between them, from (0, 0) below the first and to (100, 1) above the last. `None` for an empty
/// curve. On KACE's V100 tables the solo curve alone gives the speed of a tenant of a partitioned GPU
/// within 10 % in three of four cases.
#[must_use]
pub fn curve_at(curve: &[(f64, f64)], percent: f64) -> Option<f64> {
    if curve.is_empty() || !percent.is_finite() {
        return None;
    }
    let mut from = (0.0, 0.0);
    for &to in curve.iter().chain(&[(100.0, 1.0)]) {
        if percent <= to.0 {
            let span = to.0 - from.0;
            let part = if span > 0.0 { ((percent - from.0) / span).clamp(0.0, 1.0) } else { 1.0 };
            return Some(from.1 + (to.1 - from.1) * part);
        }
        from = to;
    }
    Some(1.0)
}

/// What the law says of a set of tenants.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Progress of each tenant, in the order given: its speed over its speed alone, in (0, 1].
    pub progress: Vec<f64>,
    /// What they use together, in solo-equivalent units: the sum of demand times progress. `gract` is what a counter
    /// would show: under time-slicing the time lost to switching counts as busy; under MPS it is the chance that any
    /// of them has a kernel resident.
    pub used: Demand,
}

/// Processes that share engine time, some of them in MPS groups: what a GPU with two users' MPS
/// daemons and a lone process does.
#[derive(Debug, Clone, PartialEq)]
pub struct MixedOutcome {
    /// Progress of each tenant of each group, in the order given.
    pub progress: Vec<Vec<f64>>,
    /// As in [`Outcome::used`].
    pub used: Demand,
}

/// The law for tenants that all share in one mode.
///
/// Never fails: a demand or cap that is not a number, or negative, counts as 0; a weight that is not
/// positive and finite counts as 1. With a cap of 0 a tenant still makes a crawl of progress.
#[must_use]
pub fn share(mode: Mode, tenants: &[Tenant], capacities: &Capacities) -> Outcome {
    let mut progress = Vec::with_capacity(tenants.len());
    let used = share_into(mode, tenants, capacities, &mut Scratch::default(), &mut progress);
    Outcome { progress, used }
}

/// Room for [`share_into`] to work in; keep one and hand it in again and again.
#[derive(Debug, Clone, Default)]
pub struct Scratch {
    tenants: Vec<Ready>,
    clients: Vec<Client>,
    law: law::Scratch,
}

/// The largest change of the chance that a task has a kernel on the GPU at which the law counts as solved.
const SETTLED: f64 = 1e-7;

/// [`share`] without allocation once `scratch` and `progress` have grown: for simulators, which ask
/// a hundred thousand times a second. Replaces what is in `progress` and returns [`Outcome::used`].
pub fn share_into(
    mode: Mode,
    tenants: &[Tenant],
    capacities: &Capacities,
    scratch: &mut Scratch,
    progress: &mut Vec<f64>,
) -> Demand {
    let Scratch { tenants: ready, clients, law } = scratch;
    ready.clear();
    ready.extend(tenants.iter().map(|tenant| Ready::of(tenant, capacities)));
    clients.clear();
    clients.extend(ready.iter().zip(tenants).map(|(ready, tenant)| ready.client(mode, tenant, capacities)));
    let constants = match mode {
        Mode::TimeSlice => Constants {
            capacity: capacities.time_slice_gract,
            crowding: 0.0,
            wait_s: capacities.time_slice.wait_s,
        },
        Mode::Mps => Constants {
            capacity: capacities.mps_sm,
            crowding: capacities.crowding,
            wait_s: capacities.mps.wait_s,
        },
    };
    law::begin(clients, law);
    law::settle_to(SETTLED, mode, clients, constants, law, progress);
    let mut used = Demand::default();
    let mut quiet = 1.0;
    for (((tenant, client), p), q) in ready.iter().zip(&*clients).zip(progress).zip(&law.q) {
        used.gract += client.engine * *p;
        quiet *= (1.0 - q).max(0.0);
        *p = (*p * tenant.here).max(LEAST_PROGRESS);
        used.sm += tenant.alone.sm * *p;
        used.dram += tenant.alone.dram * *p;
        used.tensor += tenant.alone.tensor * *p;
        used.pcie += tenant.alone.pcie * *p;
    }
    used.gract = match mode {
        // The engine is busy while it switches, so a counter shows the loss as well.
        Mode::TimeSlice if clients.iter().filter(|c| c.engine > 0.0).count() > 1 => {
            (used.gract / constants.capacity.min(1.0)).min(1.0)
        }
        Mode::TimeSlice => used.gract,
        Mode::Mps => 1.0 - quiet,
    };
    used
}

/// These tenants in the law's terms: what [`share`] divides by, for code that bounds what it can say.
#[must_use]
pub fn clients(mode: Mode, tenants: &[Tenant], capacities: &Capacities) -> Vec<Client> {
    let client = |tenant: &Tenant| Ready::of(tenant, capacities).client(mode, tenant, capacities);
    tenants.iter().map(client).collect()
}

/// The law in two levels: the tenants of one group share by MPS, and the groups share engine time.
/// A group of one is a plain process (or a lone MPS client, which is the same). A group of several
/// counts as one with weight 1, because an MPS server is one client of the driver's time-slicer.
#[must_use]
pub fn share_mixed(groups: &[Vec<Tenant>], capacities: &Capacities) -> MixedOutcome {
    let inner: Vec<Outcome> = groups.iter().map(|group| share(Mode::Mps, group, capacities)).collect();
    let outer: Vec<Tenant> = groups
        .iter()
        .zip(&inner)
        .map(|(group, outcome)| {
            // Engine time and the link are what groups divide. SMs packed beyond 1 need no more time.
            let demand = Demand { gract: outcome.used.gract, pcie: outcome.used.pcie, ..Demand::default() };
            match (group.as_slice(), outcome.progress.as_slice()) {
                ([only], [progress]) => Tenant {
                    weight: only.weight,
                    steps_per_s: Some(only.steps_per_s.unwrap_or(capacities.steps_per_s) * progress),
                    ..Tenant::new(demand)
                },
                // While one of several waits for its answer another has kernels for the rest of the slice.
                _ => Tenant { steps_per_s: Some(0.0), ..Tenant::new(demand) },
            }
        })
        .collect();
    // What the groups ask for is what they got of this very part, so the part is not taken twice.
    let whole = Capacities { part_sm: 1.0, part_dram: 1.0, ..*capacities };
    let time = share(Mode::TimeSlice, &outer, &whole);
    let mut progress = Vec::with_capacity(groups.len());
    let mut used = Demand { gract: time.used.gract, ..Demand::default() };
    for (outcome, &share_of_time) in inner.iter().zip(&time.progress) {
        progress.push(outcome.progress.iter().map(|p| p * share_of_time).collect());
        used.sm += outcome.used.sm * share_of_time;
        used.dram += outcome.used.dram * share_of_time;
        used.tensor += outcome.used.tensor * share_of_time;
        used.pcie += outcome.used.pcie * share_of_time;
    }
    MixedOutcome { progress, used }
}

/// Progress is never quite 0, whatever caps say: a task of rate 0 would hang for ever.
const LEAST_PROGRESS: f64 = 1e-6;
/// Bounds that keep quotients of weights and demands finite and non-zero.
const MOST: f64 = 1e6;

/// Weights' features near their ends are noise: kernels that leave less than this of the SMs free count as leaving this.
const LEAST_FREE: f64 = 0.02;
/// Engine time at which [`carma_hardware::Waiting::overlap`] holds.
const MIDDLE_ENGINE: f64 = 0.7;

/// A tenant with its numbers put right.
#[derive(Debug, Clone, Copy)]
struct Ready {
    /// Its demand alone on the whole GPU.
    alone: Demand,
    /// Its speed alone on the part that there is, over that on the whole.
    here: f64,
}

fn bound(value: f64) -> f64 {
    if value.is_finite() { value.clamp(0.0, MOST) } else { 0.0 }
}

impl Ready {
    fn of(tenant: &Tenant, capacities: &Capacities) -> Self {
        let Demand { gract, sm, dram, tensor, pcie } = tenant.demand;
        let mut alone =
            Demand { gract: 0.0, sm: bound(sm), dram: bound(dram), tensor: bound(tensor), pcie: bound(pcie) };
        alone.gract = bound(gract).max(alone.sm).max(alone.dram).max(alone.tensor);
        let &Capacities { part_sm, part_dram, .. } = capacities;
        // Engine time for the work of one second alone: on a part of the GPU kernels that filled more
        // than the part take longer. Host time does not, so the task loses less than that.
        let mut here = 1.0;
        if part_sm < 1.0 || part_dram < 1.0 {
            let gract = alone.gract.min(1.0);
            let engine = gract.max(alone.sm.max(alone.tensor) / part_sm).max(alone.dram / part_dram);
            here = (1.0 / (1.0 - gract + engine)).clamp(LEAST_PROGRESS, 1.0);
        }
        Self { alone, here }
    }

    /// What the law divides by, in shares of the part that there is.
    fn client(&self, mode: Mode, tenant: &Tenant, capacities: &Capacities) -> Client {
        let Self { alone, here } = *self;
        let &Capacities { part_sm, part_dram, .. } = capacities;
        // Its host time alone is what it is on the whole GPU.
        let engine = 1.0 - (1.0 - alone.gract.min(1.0)) * here;
        let while_busy = |share: f64, of: f64| {
            if engine > 0.0 { (share * here / of / engine).clamp(0.0, 1.0) } else { 0.0 }
        };
        let fill = while_busy(alone.sm, part_sm);
        let tensor = while_busy(alone.tensor, part_sm * capacities.mps_tensor);
        let waiting = match mode {
            Mode::TimeSlice => capacities.time_slice,
            Mode::Mps => capacities.mps,
        };
        let weight = tenant.weight;
        let weight = if weight.is_finite() && weight > 0.0 { weight.clamp(1.0 / MOST, MOST) } else { 1.0 };
        let mut client = Client {
            engine,
            fill,
            dram: while_busy(alone.dram, part_dram * capacities.mps_dram),
            tensor,
            pcie: (alone.pcie * here / capacities.pcie).min(1.0),
            log_weight: weight.ln(),
            overlap: overlap(waiting, engine),
            steps_per_s: bound(tenant.steps_per_s.unwrap_or(capacities.steps_per_s)) * here,
            limit: 1.0,
            cap: 1.0,
        };
        if mode == Mode::Mps {
            client.log_weight += capacities.weight_tensor * tensor.powi(4)
                - capacities.weight_free_sms * (1.0 - fill).max(LEAST_FREE).ln();
            if let Some(cap) = tenant.sm_cap {
                client.cap = bound(cap).min(1.0);
                let guess = || law::limited(engine, fill, client.cap);
                client.limit = tenant.capped_rate.map_or_else(guess, bound).clamp(LEAST_PROGRESS, 1.0);
            }
        }
        client
    }
}

/// Share of its steps that the host of a task with so much engine time queues ahead.
fn overlap(waiting: Waiting, engine: f64) -> f64 {
    let logit =
        (waiting.overlap / (1.0 - waiting.overlap)).ln() + waiting.overlap_engine * (engine - MIDDLE_ENGINE);
    1.0 / (1.0 + (-logit).exp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Of a task that never waits for an answer.
    fn tenant(gract: f64, sm: f64, dram: f64) -> Tenant {
        Tenant { steps_per_s: Some(0.0), ..Tenant::new(Demand { gract, sm, dram, ..Demand::default() }) }
    }

    fn h200() -> Capacities {
        carma_hardware::GpuType::find("H200").unwrap().capacities
    }

    fn total(mode: Mode, one: Tenant, k: usize) -> f64 {
        share(mode, &vec![one; k], &h200()).progress.iter().sum()
    }

    /// Solo rows of the H200 table, in the mode that the k > 1 rows use.
    const RESNET26_SLICED: (f64, f64, f64) = (0.397, 0.224, 0.046);
    const RESNET26_MPS: (f64, f64, f64) = (0.433, 0.234, 0.049);
    const RESNET152_SLICED: (f64, f64, f64) = (0.707, 0.545, 0.220);
    const RESNET152_MPS: (f64, f64, f64) = (0.759, 0.575, 0.233);

    /// What one NVIDIA H200 did at first (2026-11-21, PyTorch 2.11, one run each), total throughput over one task's. The
    /// constants were fitted to other tasks on other days; steps a second are those of the table.
    #[test]
    fn totals_agree_with_the_h200_table() {
        let rows = [
            ("ResNet26 time-slice 2", Mode::TimeSlice, RESNET26_SLICED, 2, 193.8 / 87.7),
            ("ResNet26 time-slice 4", Mode::TimeSlice, RESNET26_SLICED, 4, 206.7 / 87.7),
            ("ResNet26 time-slice 7", Mode::TimeSlice, RESNET26_SLICED, 7, 205.2 / 87.7),
            ("ResNet152 time-slice 3", Mode::TimeSlice, RESNET152_SLICED, 3, 23.0 / 18.7),
            ("ResNet26 MPS 2", Mode::Mps, RESNET26_MPS, 2, 178.4 / 94.1),
            ("ResNet26 MPS 4", Mode::Mps, RESNET26_MPS, 4, 338.5 / 94.1),
            ("ResNet26 MPS 7", Mode::Mps, RESNET26_MPS, 7, 343.9 / 94.1),
            ("ResNet152 MPS 3", Mode::Mps, RESNET152_MPS, 3, 31.3 / 19.7),
        ];
        for (name, mode, (gract, sm, dram), k, measured) in rows {
            let steps = if name.starts_with("ResNet26") { 87.7 } else { 18.7 };
            let law = total(mode, Tenant { steps_per_s: Some(steps), ..tenant(gract, sm, dram) }, k);
            // No task is faster beside others than alone: progress above 1 is noise.
            let off = law / f64::min(measured, k as f64) - 1.0;
            assert!(
                off.abs() < 0.15,
                "{name}: law {law:.2}, measured {measured:.2}, off {:.0} %",
                off * 100.0
            );
        }
    }

    /// The row with 25 % of the threads each: 3.34 times one task. Held to 25 %: kernels that wait for memory lose less than
    /// what they lack in SMs.
    #[test]
    fn a_thread_limit_agrees_with_the_h200_table() {
        let (gract, sm, dram) = RESNET26_MPS;
        let capped = Tenant { sm_cap: Some(0.25), ..tenant(gract, sm, dram) };
        let law = total(Mode::Mps, capped, 4);
        assert!((law / (314.6 / 94.1) - 1.0).abs() < 0.25, "law {law:.2}");
    }

    /// Counters: GRACT and SMACT as the table shows them, within 0.15 of full scale.
    #[test]
    fn counters_agree_with_the_h200_table() {
        let rows = [
            (Mode::TimeSlice, RESNET26_SLICED, 4, 0.999, 0.533),
            (Mode::TimeSlice, RESNET26_SLICED, 7, 0.998, 0.531),
            (Mode::TimeSlice, RESNET152_SLICED, 3, 0.999, 0.727),
            (Mode::Mps, RESNET26_MPS, 2, 0.713, 0.446),
            (Mode::Mps, RESNET26_MPS, 4, 0.999, 0.897),
            (Mode::Mps, RESNET26_MPS, 7, 1.000, 0.967),
            (Mode::Mps, RESNET152_MPS, 3, 1.000, 0.963),
        ];
        for (mode, (gract, sm, dram), k, gract_seen, sm_seen) in rows {
            let used = share(mode, &vec![tenant(gract, sm, dram); k], &h200()).used;
            assert!((used.gract - gract_seen).abs() < 0.15, "{mode:?} k={k}: GRACT {:.3}", used.gract);
            assert!((used.sm - sm_seen).abs() < 0.15, "{mode:?} k={k}: SMACT {:.3}", used.sm);
        }
    }

    #[test]
    fn tasks_that_fill_the_gpu_split_it_by_weight() {
        let heavy = Tenant { weight: 3.0, ..tenant(1.0, 1.0, 0.0) };
        for mode in [Mode::TimeSlice, Mode::Mps] {
            let capacities = Capacities { mps_sm: 1.0, crowding: 0.0, ..Capacities::prior() };
            let outcome = share(mode, &[heavy, tenant(1.0, 1.0, 0.0)], &capacities);
            assert!(close(&outcome.progress, &[0.75, 0.25]), "{:?}", outcome.progress);
        }
    }

    /// A light task whose steps are shorter than a slice waits for all of the others' slices before each.
    #[test]
    fn a_task_that_waits_for_its_answers_is_slower_than_one_that_does_not() {
        let (light, full) = (tenant(0.2, 0.1, 0.0), tenant(1.0, 1.0, 0.0));
        let of = |steps| {
            share(Mode::TimeSlice, &[Tenant { steps_per_s: steps, ..light }, full], &h200()).progress[0]
        };
        let [queues, waits, unknown] = [Some(0.0), Some(1000.0), None].map(of);
        assert!(waits < 0.7 * queues && waits < unknown && unknown < queues, "{waits} {unknown} {queues}");
    }

    #[test]
    fn dram_binds_where_sms_do_not() {
        let streaming = tenant(0.9, 0.3, 0.8);
        let outcome = share(Mode::Mps, &[streaming; 2], &Capacities::prior());
        // A little over what can be had: each meets the other as often as that runs on average.
        assert!((0.8..0.88).contains(&outcome.used.dram), "{outcome:?}");
    }

    #[test]
    fn two_groups_share_time_and_their_members_share_sms() {
        let one = tenant(1.0, 1.0, 0.0);
        let outcome = share_mixed(&[vec![one, one], vec![one]], &Capacities::prior());
        // Half of the time each; within the pair 1.15 is split in two.
        assert!((outcome.progress[1][0] - 0.5).abs() < 1e-9, "{:?}", outcome.progress);
        assert!((outcome.progress[0][0] - 0.5 * 0.575).abs() < 1e-9, "{:?}", outcome.progress);
        let alone = share_mixed(&[vec![one]], &h200());
        assert_eq!(alone.progress, vec![vec![1.0]]);
        assert!(share_mixed(&[], &h200()).progress.is_empty());
    }

    #[test]
    fn the_link_is_divided_in_both_modes() {
        let copying = Tenant::new(Demand { gract: 0.3, sm: 0.1, pcie: 0.8, ..Demand::default() });
        for mode in [Mode::TimeSlice, Mode::Mps] {
            let outcome = share(mode, &[copying; 2], &Capacities::prior());
            assert!((outcome.progress[0] - 0.625).abs() < 1e-12, "{mode:?}");
            assert!((outcome.used.pcie - 1.0).abs() < 1e-12);
        }
    }

    #[test]
    fn a_curve_is_read_between_its_points() {
        let curve = [(10.0, 0.3), (50.0, 0.9)];
        for (percent, rate) in [(0.0, 0.0), (5.0, 0.15), (10.0, 0.3), (30.0, 0.6), (75.0, 0.95), (100.0, 1.0)]
        {
            assert!((curve_at(&curve, percent).unwrap() - rate).abs() < 1e-12, "{percent}");
        }
        assert_eq!(curve_at(&[(20.0, 0.5), (100.0, 0.98)], 100.0), Some(0.98));
        assert_eq!(curve_at(&curve, 140.0), Some(1.0));
        assert_eq!((curve_at(&[], 50.0), curve_at(&curve, f64::NAN)), (None, None));
    }

    /// Products of matrices leave an LSTM beside them next to nothing, and more than half of its speed where they have half of the threads:
    /// .02 and .59 of it on an H200 (bench/h200/LIMITED_DATA.md).
    #[test]
    fn fewer_threads_keep_room_for_the_neighbours_of_a_heavy_task() {
        let lstm = tenant(1.0, 0.73, 0.08);
        let products = Tenant { weight: 30.0, ..tenant(1.0, 0.97, 0.2) };
        let beside = |products: Tenant| share(Mode::Mps, &[lstm, products], &h200()).progress[0];
        let (all, half, quarter) = (
            beside(products),
            beside(products.with_threads(50.0, &[])),
            beside(products.with_threads(25.0, &[])),
        );
        assert!(all < 0.1, "{all}");
        assert!((half / 0.586 - 1.0).abs() < 0.2 && (quarter / 0.727 - 1.0).abs() < 0.2, "{half} {quarter}");
    }

    #[test]
    fn a_measured_curve_beats_the_proportional_guess() {
        let full = tenant(1.0, 1.0, 0.3);
        let guessed = full.with_threads(50.0, &[]);
        let measured = full.with_threads(50.0, &[(50.0, 0.8), (100.0, 1.0)]);
        let guess = crate::law::limited(1.0, 1.0, 0.5);
        assert!((0.5..0.6).contains(&guess), "{guess}");
        let outcome = share(Mode::Mps, &[guessed, measured], &Capacities::prior());
        assert_eq!(outcome.progress, [guess, 0.8]);
        // Their limits give them SMs of their own: nothing is lost to each other.
        let outcome = share(Mode::Mps, &[guessed, measured], &h200());
        assert_eq!(outcome.progress, [guess, 0.8]);
        // Time-slicing knows no limits.
        assert_eq!(share(Mode::TimeSlice, &[measured], &Capacities::prior()).progress, [1.0]);
    }

    #[test]
    fn a_part_of_a_gpu_is_slower_in_proportion() {
        let part = Capacities { part_sm: 3.0 / 7.0, part_dram: 0.5, ..Capacities::prior() };
        let (large, small) = (tenant(1.0, 6.0 / 7.0, 0.2), tenant(0.5, 0.2, 0.1));
        for mode in [Mode::TimeSlice, Mode::Mps] {
            assert!((share(mode, &[large], &part).progress[0] - 0.5).abs() < 1e-12);
            assert_eq!(share(mode, &[small], &part).progress, [1.0]);
            // Two that fill it divide what they have there alone.
            let [whole, part] = [Capacities::prior(), part].map(|c| share(mode, &[large; 2], &c).progress[0]);
            assert!(part <= 0.5 * whole + 1e-9, "{mode:?}: {part} of {whole}");
        }
        // Half of its time is the host's; its kernels fill 0.8 of the SMs and take 28/15 as long.
        let bursty = tenant(0.5, 0.4, 0.1);
        let expected = 1.0 / (0.5 + 0.4 * 7.0 / 3.0);
        assert!((share(Mode::Mps, &[bursty], &part).progress[0] - expected).abs() < 1e-12);
        for tasks in [vec![bursty; 3], vec![small; 3], vec![bursty, large, Tenant::new(small.demand)]] {
            let sliced = share(Mode::TimeSlice, &tasks, &part).progress;
            let groups: Vec<Vec<Tenant>> = tasks.iter().map(|task| vec![*task]).collect();
            let mixed: Vec<f64> = share_mixed(&groups, &part).progress.into_iter().flatten().collect();
            assert!(close(&sliced, &mixed), "{sliced:?} {mixed:?}");
        }
    }

    #[test]
    fn scratch_is_not_remembered() {
        let mut scratch = Scratch::default();
        let mut progress = vec![0.0; 9];
        let many = [tenant(1.0, 1.0, 0.0); 5];
        share_into(Mode::Mps, &many, &Capacities::prior(), &mut scratch, &mut progress);
        let used = share_into(Mode::TimeSlice, &many[..2], &Capacities::prior(), &mut scratch, &mut progress);
        assert!(close(&progress, &[0.5; 2]), "{progress:?}");
        assert_eq!(used, share(Mode::TimeSlice, &many[..2], &Capacities::prior()).used);
    }

    #[test]
    fn nonsense_is_taken_for_nothing() {
        let bad = Tenant {
            demand: Demand { gract: f64::NAN, sm: -1.0, dram: f64::INFINITY, tensor: f64::NAN, pcie: -0.0 },
            weight: f64::NAN,
            sm_cap: Some(f64::NAN),
            capped_rate: None,
            steps_per_s: Some(f64::NAN),
        };
        for mode in [Mode::TimeSlice, Mode::Mps] {
            let outcome = share(mode, &[bad, tenant(0.5, 0.5, 0.1)], &h200());
            assert_eq!(outcome.progress, vec![1.0, 1.0]);
        }
    }

    fn any_tenant() -> impl Strategy<Value = Tenant> {
        (
            0.0..=1.0_f64,
            0.0..=1.0_f64,
            0.0..=0.8_f64,
            0.0..=1.0_f64,
            0.01..100.0_f64,
            prop::option::of(0.01..=1.0_f64),
        )
            .prop_map(|(gract, sm, dram, tensor, weight, sm_cap)| Tenant {
                demand: Demand { gract, sm, dram, tensor, pcie: tensor / 2.0 },
                weight,
                sm_cap,
                // Some with a measured speed under their limit.
                capped_rate: sm_cap.filter(|cap| *cap < 0.5).map(f64::sqrt),
                // Some that wait, some that do not, some of which nothing is known.
                steps_per_s: [None, Some(0.0), Some(1000.0 * weight)][(weight * 100.0) as usize % 3],
            })
    }

    /// Tasks that queue their steps: how long one waits for its answers is time in which it leaves the GPU to others.
    fn queueing(tenant: Tenant) -> Tenant {
        Tenant { steps_per_s: Some(0.0), ..tenant }
    }

    fn any_mode() -> impl Strategy<Value = Mode> {
        prop_oneof![Just(Mode::TimeSlice), Just(Mode::Mps)]
    }

    fn any_capacities() -> impl Strategy<Value = Capacities> {
        prop_oneof![Just(Capacities::prior()), Just(h200())]
    }

    fn close(a: &[f64], b: &[f64]) -> bool {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5)
    }

    proptest! {
        #[test]
        fn progress_is_a_share_and_use_stays_within_capacity(
            mode in any_mode(), c in any_capacities(), tenants in prop::collection::vec(any_tenant(), 0..12),
        ) {
            let Outcome { progress, used } = share(mode, &tenants, &c);
            prop_assert_eq!(progress.len(), tenants.len());
            prop_assert!(progress.iter().all(|&p| p > 0.0 && p <= 1.0));
            prop_assert!(used.gract <= 1.0 + 1e-9);
            // Under time-slicing a unit is active only while the engine is. Each meets the others as often as they run on
            // average, which is a little less than when they run by turns.
            let most = |capacity: f64| match mode {
                Mode::TimeSlice => 1.0,
                Mode::Mps if tenants.len() == 1 => capacity.max(1.0),
                Mode::Mps => capacity.max(tenants.iter().map(|t| t.demand.sm).fold(0.0, f64::max)),
            };
            // A measured curve may beat its thread limit, in these units.
            if tenants.iter().all(|t| t.capped_rate.is_none()) {
                prop_assert!(used.sm <= 1.1 * most(c.mps_sm), "{} of {}", used.sm, most(c.mps_sm));
            }
            prop_assert!(used.dram <= 1.1 * most(c.mps_dram), "{} of {}", used.dram, most(c.mps_dram));
            prop_assert!(used.tensor <= 1.1 * most(c.mps_tensor), "{} of {}", used.tensor, most(c.mps_tensor));
        }

        #[test]
        fn alone_is_full_speed(mode in any_mode(), c in any_capacities(), one in any_tenant()) {
            let one = Tenant { sm_cap: None, ..one };
            prop_assert_eq!(share(mode, &[one], &c).progress, vec![1.0]);
            prop_assert_eq!(share_mixed(&[vec![one]], &c).progress, vec![vec![1.0]]);
        }

        #[test]
        fn a_newcomer_never_speeds_anyone_up(
            mode in any_mode(), c in any_capacities(),
            mut tenants in prop::collection::vec(any_tenant().prop_map(queueing), 1..10),
            newcomer in any_tenant().prop_map(queueing),
        ) {
            let before = share(mode, &tenants, &c).progress;
            tenants.push(newcomer);
            let after = share(mode, &tenants, &c).progress;
            for (a, b) in after.iter().zip(&before) {
                prop_assert!(*a <= b + 1e-5, "{} > {}", a, b);
            }
        }

        /// The others wait for no step: one that is slower itself may leave those that do more of the GPU, or less.
        #[test]
        fn fewer_threads_of_one_never_slow_another(
            c in any_capacities(),
            mut tenants in prop::collection::vec(any_tenant().prop_map(queueing), 2..6),
            cap in 0.05..1.0_f64,
        ) {
            tenants[0].capped_rate = None;
            let before = share(Mode::Mps, &tenants, &c).progress;
            tenants[0].sm_cap = Some(tenants[0].sm_cap.unwrap_or(1.0) * cap);
            let after = share(Mode::Mps, &tenants, &c).progress;
            for (a, b) in after.iter().zip(&before).skip(1) {
                prop_assert!(*a >= b - 1e-5, "{} < {}", a, b);
            }
        }

        #[test]
        fn a_newcomer_to_any_group_never_speeds_anyone_up(
            c in any_capacities(),
            mut groups in prop::collection::vec(prop::collection::vec(any_tenant().prop_map(queueing), 1..4), 1..4),
            newcomer in any_tenant().prop_map(queueing), which in any::<prop::sample::Index>(),
        ) {
            // Equal weights: a group that grows from one to two falls back to weight 1.
            for tenant in groups.iter_mut().flatten() { tenant.weight = 1.0; }
            let before = share_mixed(&groups, &c).progress;
            let at = which.index(groups.len());
            groups[at].push(Tenant { weight: 1.0, ..newcomer });
            let after = share_mixed(&groups, &c).progress;
            for (a, b) in after.iter().zip(&before) {
                for (a, b) in a.iter().zip(b) {
                    prop_assert!(*a <= b + 1e-5, "{} > {}", a, b);
                }
            }
        }

        #[test]
        fn order_does_not_matter(
            mode in any_mode(), c in any_capacities(),
            (tenants, order) in prop::collection::vec(any_tenant(), 1..10).prop_flat_map(|tenants| {
                let order: Vec<usize> = (0..tenants.len()).collect();
                (Just(tenants), Just(order).prop_shuffle())
            }),
        ) {
            let straight = share(mode, &tenants, &c).progress;
            let shuffled: Vec<Tenant> = order.iter().map(|&i| tenants[i]).collect();
            let expected: Vec<f64> = order.iter().map(|&i| straight[i]).collect();
            prop_assert!(close(&share(mode, &shuffled, &c).progress, &expected));
        }

        #[test]
        fn only_ratios_of_weights_matter(
            mode in any_mode(), c in any_capacities(),
            tenants in prop::collection::vec(any_tenant(), 1..10), factor in 0.1..10.0_f64,
        ) {
            let scaled: Vec<Tenant> =
                tenants.iter().map(|t| Tenant { weight: t.weight * factor, ..*t }).collect();
            prop_assert!(close(&share(mode, &scaled, &c).progress, &share(mode, &tenants, &c).progress));
        }

        #[test]
        fn a_heavier_weight_never_hurts_its_owner(
            mode in any_mode(), c in any_capacities(),
            mut tenants in prop::collection::vec(any_tenant().prop_map(queueing), 1..10), factor in 1.0..10.0_f64,
        ) {
            let before = share(mode, &tenants, &c).progress[0];
            tenants[0].weight *= factor;
            let after = share(mode, &tenants, &c).progress[0];
            prop_assert!(after >= before - 1e-4, "{after} {before} {factor} {tenants:?}");
        }

        #[test]
        fn no_input_breaks_it(
            mode in any_mode(),
            raw in prop::collection::vec((any::<f64>(), any::<f64>(), any::<f64>(), any::<f64>(), any::<f64>(), any::<Option<f64>>()), 0..6),
        ) {
            let tenants: Vec<Tenant> = raw.into_iter().map(|(gract, sm, dram, tensor, weight, sm_cap)| Tenant {
                demand: Demand { gract, sm, dram, tensor, pcie: dram }, weight, sm_cap, capped_rate: sm_cap,
                steps_per_s: sm_cap,
            }).collect();
            let outcome = share(mode, &tenants, &h200());
            prop_assert!(outcome.progress.iter().all(|&p| p > 0.0 && p <= 1.0));
        }
    }
}
