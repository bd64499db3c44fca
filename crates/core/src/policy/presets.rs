//! The published policies, with their exact numbers, and carma's own.
//!
//! Numbers: CARMA's published source and the later AEGIS artifact (arXiv 2508.19073). All of the original's policies take idle GPUs first, are strict FIFO and keep 512 MiB
//! of each GPU free.

use super::{
    ForecastSource, Gate, Line, MemoryScreen, Objective, Order, Pack, Policy, Progress, RecoveryMethod,
    Weighing,
};
use crate::spec::Estimator;
use crate::units::{Fraction, MiB, Millis};
use crate::windows::Risk;

/// Memory that the original subtracts from what the driver calls free.
const RESERVE: MiB = MiB(512);
/// What the original adds to a forecast.
const GUARD: MiB = MiB(2048);
/// What its successor adds.
const AEGIS_GUARD: MiB = MiB(512);
/// Least memory for the policies without forecast.
const FLOOR: MiB = MiB(5120);

/// The gate of CARMA: .80 AND (.45 OR .40).
const CARMA_GATE: Gate = Gate::Thresholds {
    risk: Risk::Carma,
    smact: Fraction::percent(80),
    smocc: Fraction::percent(45),
    drama: Fraction::percent(40),
};

/// The gate of its successor: .65 AND (.35 OR .50).
const AEGIS_GATE: Gate = Gate::Thresholds {
    risk: Risk::Carma,
    smact: Fraction::percent(65),
    smocc: Fraction::percent(35),
    drama: Fraction::percent(50),
};

/// The most jobs that carma's own policy puts on one GPU. Measured on an H200, eight tasks under MPS and
/// time-sliced: pairs get 1.4 times the work of one task done, triples and quadruples 1.5, and seven
/// small tasks no more than four; each more only makes all of them slower. A gate sees a neighbour only
/// once it is at work, so it can't stop a burst of arrivals; this does.
const MOST_JOBS: u32 = 4;

/// Names of all presets, in the order of listings.
pub const NAMES: &[&str] = &[
    "adaptive",
    "adaptive:makespan",
    "adaptive:energy",
    "adaptive:fair",
    "carma",
    "exclusive",
    "oracle-ff",
    "oracle-bf",
    "oracle-magm",
    "oracle-lug",
    "or-rr",
    "or-magm",
    "or-lug",
    "est-magm",
    "est-lug",
    "aegis",
    "aegis-oracle",
    "aegis-est",
    "magm",
    "lug",
    "lucid",
    "horus",
    "kace",
];

/// By fixed thresholds: believe the best forecast, share behind the successor's gate with a few others
/// at most, let small jobs overtake a waiting one for half an hour at most. The default before `adaptive`.
#[must_use]
pub fn carma() -> Policy {
    Policy {
        name: "carma".into(),
        order: Order::Magm,
        memory: MemoryScreen::Forecast { source: ForecastSource::Best, guard: AEGIS_GUARD },
        gate: AEGIS_GATE,
        pack: Pack::Any,
        line: Line::Arrival,
        bound: Fraction::ONE,
        slack: Fraction::ZERO,
        weighing: Weighing::Root,
        progress: None,
        blind: false,
        most_jobs: Some(MOST_JOBS),
        idle_first: true,
        backfill: Some(Millis::secs(1800)),
        reserve: RESERVE,
    }
}

/// carma's default: shortest first with a bound on every job's start; jobs share a GPU where each is predicted to keep a fair part of its speed
/// and their total progress grows. Each objective but the first changes what it says here, by what was measured: docs/research/policies.md.
#[must_use]
pub fn adaptive(objective: Objective) -> Policy {
    let jct = Policy {
        name: "adaptive".into(),
        order: Order::Speedup,
        memory: MemoryScreen::Forecast { source: ForecastSource::Best, guard: MiB::ZERO },
        gate: Gate::None,
        pack: Pack::Any,
        line: Line::Shortest,
        bound: Fraction::ONE,
        slack: Fraction::percent(50),
        weighing: Weighing::Root,
        progress: Some(Progress { floor: Fraction::percent(50), gain: Fraction::percent(20) }),
        blind: true,
        most_jobs: None,
        idle_first: true,
        backfill: None,
        reserve: RESERVE,
    };
    let name = format!("{}:{}", jct.name, objective.name());
    match objective {
        Objective::Jct => jct,
        // Long jobs that start last are the tail. Keeping GPUs for those that are overdue costs as much as it saves.
        Objective::Makespan => Policy {
            name,
            line: Line::Longest,
            bound: Fraction::percent(200),
            slack: Fraction::ZERO,
            progress: Some(Progress { floor: Fraction::percent(30), gain: Fraction::percent(20) }),
            ..jct
        },
        Objective::Energy => Policy { name, order: Order::Packed, idle_first: false, ..jct },
        Objective::Fair => Policy { name, weighing: Weighing::Square, ..jct },
    }
}

/// A policy by name. After a colon `adaptive` takes an [`Objective`] (`adaptive:energy`), and the estimating ones take any
/// [`Estimator`] (`est-magm:horus`; `gpumemnet` when none is named). `None` when there is no such policy, objective or estimator.
#[must_use]
pub fn by_name(name: &str) -> Option<Policy> {
    if let Some(objective) = name.strip_prefix("adaptive:") {
        return Objective::named(objective).map(adaptive);
    }
    let (base, estimator) = match name.split_once(':') {
        Some((base, estimator)) => (base, Some(estimator)),
        None => (name, None),
    };
    if estimator.is_some() && !matches!(base, "est-magm" | "est-lug" | "aegis-est") {
        return None;
    }
    // What was measured is the oracle's, under the oracle's name.
    let estimator = match estimator {
        None => Estimator::Gpumemnet,
        Some(name) => Estimator::named(name).filter(|named| *named != Estimator::Measured)?,
    };
    let estimate = ForecastSource::By(estimator);
    let measured = ForecastSource::By(Estimator::Measured);
    let forecast = |source, guard| MemoryScreen::Forecast { source, guard };
    let oracle = forecast(measured, GUARD);
    let mut pack = Pack::Any;
    let mut most_jobs = None;
    let profiled = forecast(measured, MiB::ZERO);
    let (order, memory, gate) = match base {
        "adaptive" => return Some(adaptive(Objective::default())),
        "carma" => return Some(carma()),
        "exclusive" => (Order::Exclusive, MemoryScreen::None, Gate::None),
        "oracle-ff" => (Order::FirstFit, oracle, CARMA_GATE),
        "oracle-bf" => (Order::BestFit, oracle, CARMA_GATE),
        "oracle-magm" => (Order::Magm, oracle, CARMA_GATE),
        "oracle-lug" => (Order::Lug, oracle, CARMA_GATE),
        "or-rr" => (Order::RoundRobin, MemoryScreen::None, Gate::None),
        "or-magm" => (Order::Magm, MemoryScreen::Floor(FLOOR), CARMA_GATE),
        "or-lug" => (Order::Lug, MemoryScreen::Floor(FLOOR), CARMA_GATE),
        "est-magm" => (Order::Magm, forecast(estimate, GUARD), CARMA_GATE),
        "est-lug" => (Order::Lug, forecast(estimate, GUARD), CARMA_GATE),
        "aegis" => (Order::Magm, MemoryScreen::Floor(FLOOR), AEGIS_GATE),
        "aegis-oracle" => (Order::Magm, forecast(measured, AEGIS_GUARD), AEGIS_GATE),
        "aegis-est" => (Order::Magm, forecast(estimate, AEGIS_GUARD), AEGIS_GATE),
        // The successor's two without their gate.
        "magm" => (Order::Magm, MemoryScreen::Floor(FLOOR), Gate::None),
        "lug" => (Order::Lug, MemoryScreen::Floor(FLOOR), Gate::None),
        // As the successor's authors built them for comparison (section f.4).
        "lucid" => {
            pack = Pack::Scores { sum: 2 };
            most_jobs = Some(2);
            (Order::LeastLoad, profiled, Gate::None)
        }
        "horus" => {
            pack = Pack::Utilisation { sum: Fraction::ONE };
            (Order::LeastLoad, profiled, Gate::None)
        }
        // KACE names partners and no conditions: memory and the number of jobs, up to which it was published, are ours.
        "kace" => {
            most_jobs = Some(MOST_JOBS);
            (Order::Throughput, forecast(ForecastSource::Best, AEGIS_GUARD), Gate::None)
        }
        _ => return None,
    };
    Some(Policy {
        name: name.to_owned(),
        order,
        memory,
        gate,
        pack,
        line: Line::Arrival,
        bound: Fraction::ONE,
        slack: Fraction::ZERO,
        weighing: Weighing::Root,
        progress: None,
        blind: false,
        most_jobs,
        idle_first: true,
        backfill: None,
        reserve: RESERVE,
    })
}

/// Whether a policy is carma's own, not a published one.
pub(super) fn is_ours(name: &str) -> bool {
    matches!(name.split(':').next(), Some("adaptive" | "carma"))
}

/// How the authors of a policy recovered from out-of-memory: CARMA retries on a GPU alone at once,
/// its successor and carma raise the floor step by step.
pub(super) fn recovery_of(name: &str) -> RecoveryMethod {
    let base = name.split(':').next().unwrap_or(name);
    match base {
        "oracle-ff" | "oracle-bf" | "oracle-magm" | "oracle-lug" | "or-rr" | "or-magm" | "or-lug"
        | "est-magm" | "est-lug" => RecoveryMethod::Exclusive,
        _ => RecoveryMethod::Graded,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Options;

    #[test]
    fn every_listed_name_exists_and_keeps_its_name() {
        for name in NAMES {
            assert_eq!(by_name(name).unwrap().name, *name);
        }
        for estimator in Estimator::ALL.into_iter().filter(|e| *e != Estimator::Measured) {
            let name = format!("est-lug:{}", estimator.name());
            let policy = by_name(&name).unwrap();
            let source = ForecastSource::By(estimator);
            assert_eq!((policy.name, policy.memory), (name, MemoryScreen::Forecast { source, guard: GUARD }));
        }
    }

    #[test]
    fn the_default_has_an_objective_and_its_short_name() {
        assert_eq!(by_name("adaptive:jct"), by_name("adaptive"));
        for objective in Objective::ALL {
            let policy = adaptive(objective);
            assert_eq!(by_name(&format!("adaptive:{}", objective.name())), Some(policy.clone()));
            assert_eq!(by_name(&policy.name), Some(policy));
        }
    }

    #[test]
    fn published_policies_run_as_their_authors_had_them() {
        for name in NAMES {
            let options = Options::of(by_name(name).unwrap());
            let ours = matches!(*name, "carma") || name.starts_with("adaptive");
            assert_eq!((options.caps, options.suspends, options.moves), (ours, ours, ours), "{name}");
            let original = ["or-", "oracle-", "est-"].iter().any(|start| name.starts_with(start));
            assert_eq!(options.recovery == RecoveryMethod::Exclusive, original, "{name}");
        }
    }

    #[test]
    fn a_misspelt_name_is_not_silently_exclusive() {
        for name in [
            "oracle-rr",
            "adaptive:",
            "adaptive:speed",
            "or-magm:horus",
            "est-magm:oracle",
            "est-magm:measured",
            "",
            "MAGM",
        ] {
            assert!(by_name(name).is_none(), "{name}");
        }
    }
}
