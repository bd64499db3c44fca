//! Whatever a model, a file of profiles or one of measurements holds, reading it ends and never in a panic, and
//! what was read can be predicted with. Runs as tests on random input from a seed, and under libFuzzer with
//! `cargo bolero test`.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use carma_interference::group::{GpuType, Group, Member, Mode, Objective};
use carma_interference::measured::Measured;
use carma_interference::online::{Observed, SlowdownModel};
use carma_interference::predict::policy::{Policy, kace_row};
use carma_interference::profile::Profiles;
use carma_seeded::check;

const ITERATIONS: usize = 1000;

const PROFILES: &str = r#"{"version":1,"gpu":"NVIDIA H200","tasks":[
{"name":"a","rate":31.4,"metrics":{"gract_pct":100,"smact_pct":{"mean":83,"p95":90,"cv":0.1},"smocc_pct":39.8,"drama_pct":44.7,
"tensor_pct":11,"memory_mib":7627,"pcie_rx_mib_s":44000},"rate_by_threads_pct":{"10":5,"50":20,"100":31.4}},
{"name":"b","class":"a","rate":{"per_s":487,"source":"activity"},"metrics":{"gpu_util_pct":36,"mem_util_pct":2},
"kernels":{"threads":1e5,"sm_throughput_pct":50,"dram_throughput_pct":9,"memory_throughput_pct":60,"registers":1e7,"static_shared_memory":0}},
{"name":"c"}]}"#;

const MEASURED: &str = r#"{"version":1,"machine":{"gpu":"NVIDIA H200","gpu_memory_mib":1,"cpus":1},
"tasks":[{"name":"a"},{"name":"b"}],"sessions":[],"profiles":{"version":1,"tasks":[{"name":"a","rate":2.0}]},
"combinations":[{"members":["a","b"],"sharing":"mps","threads_pct":[50,50],"rates":[1.0,2.0],"progress":[0.5,0.4],"window_s":1.5}],"left":0}"#;

/// Replaces bytes of a text: digits by what numbers are made of, anything by anything.
fn broken(text: &str, changes: &[(u16, u8)]) -> String {
    const NUMERALS: &[u8] = b"0123456789-+.eE";
    let mut bytes = text.as_bytes().to_vec();
    for (at, with) in changes {
        let at = usize::from(*at) % bytes.len();
        bytes[at] =
            if bytes[at].is_ascii_digit() { NUMERALS[usize::from(*with) % NUMERALS.len()] } else { *with };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn exercise(model: &SlowdownModel, profiles: &Profiles) {
    for name in ["H200", "V100", "?"] {
        let gpu = GpuType::named(name);
        for sharing in [Mode::TimeSlice, Mode::Mps] {
            for threads_pct in [None, Some(30.0)] {
                let members: Vec<Member<'_>> =
                    profiles.tasks.iter().map(|profile| Member { profile, threads_pct }).collect();
                let group = Group { gpu: &gpu, sharing, members: &members };
                let Ok(forecast) = model.predict(&group) else { continue };
                for task in &forecast.tasks {
                    let p = task.progress;
                    assert!(p.lower <= p.expected && p.expected <= p.upper, "{task:?}");
                    assert!(p.lower > 0.0 && p.upper.is_finite() && task.prior > 0.0, "{task:?}");
                }
                let mut learner = model.clone();
                let observed = Observed::Rates(vec![Some(3.0); members.len()]);
                learner.observe(&group, &observed).unwrap();
                assert!(SlowdownModel::read(&learner.to_json().unwrap()).is_ok());
                for policy in [Policy::Share, Policy::Memcap, Policy::Sm, Policy::Mem, Policy::Random] {
                    let _ = policy.score(&group, Objective::Throughput);
                }
                let _ = kace_row(&["sm%".to_owned(), "_Registers".to_owned(), "?".to_owned()], &group);
            }
        }
    }
}

#[test]
fn profiles() {
    check!(ITERATIONS).with_type::<Vec<(u16, u8)>>().for_each(|changes| {
        if let Ok(profiles) = Profiles::read(&broken(PROFILES, changes)) {
            exercise(&SlowdownModel::shipped(), &profiles);
        }
    });
}

#[test]
fn models() {
    let profiles = Profiles::read(PROFILES).unwrap();
    let gpu = GpuType::named("H200");
    let members: Vec<Member<'_>> = profiles.tasks.iter().map(Member::of).collect();
    let group = Group { gpu: &gpu, sharing: Mode::Mps, members: &members };
    let mut model = SlowdownModel::new();
    model.observe(&group, &Observed::Rates(vec![Some(20.0), Some(200.0), Some(1.0)])).unwrap();
    let text = model.to_json().unwrap();
    check!(ITERATIONS).with_type::<Vec<(u16, u8)>>().for_each(|changes| {
        if let Ok(model) = SlowdownModel::read(&broken(&text, changes)) {
            exercise(&model, &profiles);
        }
    });
    check!(ITERATIONS).with_type::<Vec<u8>>().for_each(|bytes| {
        let _ = SlowdownModel::read(&String::from_utf8_lossy(bytes));
    });
}

#[test]
fn measurements() {
    check!(ITERATIONS).with_type::<Vec<(u16, u8)>>().for_each(|changes| {
        let _ = Measured::read(&broken(MEASURED, changes)).map(|measured| measured.fingerprints("H200"));
    });
    assert!(Measured::read(MEASURED).is_ok());
}
