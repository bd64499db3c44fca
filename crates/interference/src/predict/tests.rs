use super::*;
use crate::profile::{Metrics, Profile, Rate, RateSource, Stat};
use std::collections::BTreeMap;

fn task(name: &str, smact: f64, rate_by_threads_pct: BTreeMap<u8, f64>) -> Profile {
    Profile {
        name: name.into(),
        rate: Some(Rate { per_s: 10.0, source: Some(RateSource::Heartbeat), ..Rate::default() }),
        metrics: Metrics {
            gract_pct: Some(Stat::of(99.0)),
            smact_pct: Some(Stat::of(smact)),
            ..Metrics::default()
        },
        rate_by_threads_pct,
        ..Profile::default()
    }
}

#[test]
fn the_best_split_follows_the_curves() {
    let gpu = GpuType::named("H200");
    let curve =
        |knee: f64| (1..=10_u8).map(|i| (i * 10, 10.0 * (f64::from(i) / 10.0 / knee).min(1.0))).collect();
    let a = task("a", 99.0, curve(1.0));
    // Thirty per cent are all that it can use.
    let b = task("b", 30.0, curve(0.3));
    let members = [Member::of(&a), Member::of(&b)];
    let split = best_split(&SlowdownModel::new(), &gpu, &members, Objective::MaxMin).unwrap();
    let pct: Vec<Option<f64>> = split.iter().map(|m| m.threads_pct).collect();
    assert!(pct == [Some(70.0), Some(30.0)] || pct == [Some(80.0), Some(20.0)], "{pct:?}");
    let three = [Member::of(&a), Member::of(&b), Member::of(&b)];
    let split = best_split(&SlowdownModel::new(), &gpu, &three, Objective::WeightedSpeedup);
    let split = split.unwrap();
    assert!(
        split.iter().all(|m| m.threads_pct.is_none())
            || split.iter().filter_map(|m| m.threads_pct).sum::<f64>() == 100.0
    );
    let one = best_split(&SlowdownModel::new(), &gpu, &members[..1], Objective::MaxMin);
    assert!(one.unwrap_err().to_string().contains("2 to 5"));
}
