//! Time of a forecast and of an update: `cargo bench -p carma-interference --bench predict`.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a benchmark reads the clock and the machine's name; a failure may end it"
)]

#[path = "../../memory/benches/timing/mod.rs"]
mod timing;

use carma_interference::group::{GpuType, Group, Member, Mode};
use carma_interference::online::{Observed, SlowdownModel};
use carma_interference::profile::{Metrics, Profile, Rate, RateSource, Stat};

/// Calls in one timed run: one call is too short for the clock.
const CALLS: u32 = 2_000;
const REPEATS: usize = 21;

fn main() {
    timing::header(REPEATS);
    let gpu = GpuType::named("NVIDIA H200");
    let profiles: Vec<Profile> = (0..40).map(task).collect();
    let mut model = SlowdownModel::new();
    // A model that knows forty classes.
    for pair in profiles.windows(2) {
        let members = [Member::of(&pair[0]), Member::of(&pair[1])];
        let group = Group { gpu: &gpu, sharing: Mode::Mps, members: &members };
        model.observe(&group, &Observed::Progress(vec![Some(0.7), Some(0.8)])).unwrap();
    }
    for k in [1, 2, 3, 4, 8] {
        let members: Vec<Member<'_>> = profiles.iter().take(k).map(Member::of).collect();
        let group = Group { gpu: &gpu, sharing: Mode::Mps, members: &members };
        let observed = Observed::Progress(vec![Some(0.9 / k as f64); k]);
        let predict = timing::median(REPEATS, || {
            for _ in 0..CALLS {
                std::hint::black_box(model.predict(std::hint::black_box(&group)).unwrap());
            }
        });
        let mut learner = model.clone();
        let update = timing::median(REPEATS, || {
            for _ in 0..CALLS {
                std::hint::black_box(learner.observe(std::hint::black_box(&group), &observed).unwrap());
            }
        });
        let micros = |time: std::time::Duration| time.as_secs_f64() * 1e6 / f64::from(CALLS);
        println!("{k} members: forecast {:.1} us, update {:.1} us", micros(predict), micros(update));
    }
    let bytes = model.to_json().unwrap().len();
    println!("model of {} classes: {} KiB as a file", profiles.len(), bytes / 1024);
}

fn task(i: u32) -> Profile {
    let part = f64::from(i % 10) / 10.0;
    Profile {
        name: format!("task {i}"),
        rate: Some(Rate { per_s: 10.0, source: Some(RateSource::Heartbeat), ..Rate::default() }),
        metrics: Metrics {
            gract_pct: Some(Stat::of(30.0 + 70.0 * part)),
            smact_pct: Some(Stat::of(10.0 + 80.0 * part)),
            smocc_pct: Some(Stat::of(5.0 + 40.0 * part)),
            drama_pct: Some(Stat::of(40.0 * part)),
            tensor_pct: Some(Stat::of(20.0 * part)),
            memory_mib: Some(Stat::of(2000.0)),
            ..Metrics::default()
        },
        ..Profile::default()
    }
}
