//! The headline of CARMA's first version: MAGM with GPUMemNet against exclusive GPUs on H60.

use super::{Bench, SEEDS, interval, mean};
use crate::Error;
use crate::traces::{H60, preset};
use carma_core::model::Estimator;
use carma_core::policy::{ForecastSource, Gate, MemoryScreen, Policy};
use carma_core::units::{Fraction, MiB};
use carma_core::windows::Risk;
use carma_sim::event::outcome::Summary;
use carma_sim::report::seeds::Interval;
use serde::Serialize;

/// The table, and exclusive in absolute terms.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Headline {
    /// Published changes of makespan, energy and SMACT, percent of exclusive's.
    pub published_pct: [f64; 3],
    /// The policy as its papers and its code describe it.
    pub variants: Vec<Variant>,
    /// Exclusive as published, read off a figure.
    pub exclusive_published: Totals,
    /// Exclusive as simulated.
    pub exclusive_simulated: Totals,
}

/// One set-up.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Variant {
    /// What it is.
    pub setup: &'static str,
    /// Changes of makespan, energy and SMACT, percent of exclusive's.
    pub change_pct: [Interval; 3],
    /// Mean of attempts out of memory.
    pub oom: f64,
}

/// What a replay takes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Totals {
    /// From the first arrival to the last end, hours.
    pub makespan_h: f64,
    /// Mean SMACT, a share.
    pub smact: f64,
    /// Mean memory in use, GB.
    pub memory_gb: f64,
    /// Mean power of a GPU, watts.
    pub power_w: f64,
    /// Energy, megajoules.
    pub energy_mj: f64,
}

pub(super) fn table(bench: &Bench) -> Result<Headline, Error> {
    let workload = bench.traces.workload(H60)?;
    let exclusive = bench.seeds(&workload, &preset("exclusive")?, SEEDS)?;
    let second = preset("est-magm")?;
    // The first version: the estimate without a margin, and no gate.
    let first = Policy {
        name: "v1".into(),
        memory: MemoryScreen::Forecast { source: ForecastSource::By(Estimator::Gpumemnet), guard: MiB::ZERO },
        gate: Gate::None,
        ..second.clone()
    };
    let gated = Policy { gate: mean_gate(), ..first.clone() };
    let variants = [
        ("as in v1's code: estimate without margin, no gate", first),
        ("v1 with its other policies' gate, mean SMACT below .80", gated),
        ("as in v2's code: 2 GiB margin, gate .80 and (.45 or .40)", second),
    ];
    let variant = |(setup, policy): (&'static str, Policy)| {
        let runs = bench.seeds(&workload, &policy, SEEDS)?;
        let change = |of: fn(&Summary) -> f64| {
            Interval::of(runs.iter().zip(&exclusive).map(|(run, base)| (of(run) / of(base) - 1.0) * 100.0))
        };
        let change_pct = [change(|s| s.makespan_s), change(|s| s.energy_j), change(|s| s.smact)];
        Ok(Variant { setup, change_pct, oom: interval(&runs, |s| s.oom as f64).mean })
    };
    Ok(Headline {
        published_pct: [-26.7, -14.2, 39.3],
        variants: variants.into_iter().map(variant).collect::<Result<_, Error>>()?,
        exclusive_published: Totals {
            makespan_h: 10.65,
            smact: 0.608,
            memory_gb: 9.9,
            power_w: 216.0,
            energy_mj: 33.2,
        },
        exclusive_simulated: Totals {
            makespan_h: mean(&exclusive, |s| s.makespan_s) / 3600.0,
            smact: mean(&exclusive, |s| s.smact),
            memory_gb: mean(&exclusive, |s| s.memory_mib) * 1.048_576 / 1000.0,
            power_w: mean(&exclusive, |s| s.power_w),
            energy_mj: mean(&exclusive, |s| s.energy_j) / 1e6,
        },
    })
}

/// The first version's gate: the window's mean of SMACT alone.
fn mean_gate() -> Gate {
    // The other two conditions always hold.
    Gate::Thresholds {
        risk: Risk::Mean,
        smact: Fraction::percent(80),
        smocc: Fraction(0),
        drama: Fraction(0),
    }
}
