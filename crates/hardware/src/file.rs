//! The form of a type's file, and what is checked when one is read.

use super::{Capacities, GpuType, MigProfile, Power, Startup};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Constant {
    value: f64,
    source: String,
}

/// A group of constants: a key of the file for each.
type Group = BTreeMap<String, Constant>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    memory_mib: Constant,
    context_mib: Constant,
    power: Group,
    time_slice: Group,
    mps: Group,
    pcie: Group,
    activity: Group,
    startup: Group,
    mig: Option<Mig>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mig {
    source: String,
    profiles: Vec<Profile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Profile {
    name: String,
    compute: u8,
    memory: u8,
    memory_mib: u64,
    most: u8,
}

/// The constants of a file with the range of each.
const CONSTANTS: [(&str, f64, f64); 21] = [
    ("memory_mib", 1.0, 1e9),
    ("context_mib", 0.0, 1e6),
    ("power.empty_w", 0.0, 1e5),
    ("power.idle_w", 0.0, 1e5),
    ("power.cap_w", 1.0, 1e5),
    ("power.gract", 0.0, 10.0),
    ("power.smact", 0.0, 10.0),
    ("power.dram", 0.0, 10.0),
    ("power.tensor", 0.0, 10.0),
    ("power.clock_exponent", 0.5, 10.0),
    ("time_slice.gract", 0.1, 2.0),
    ("mps.sm", 0.1, 3.0),
    ("mps.dram", 0.1, 3.0),
    ("mps.tensor", 0.1, 3.0),
    ("pcie.capacity", 0.1, 3.0),
    ("activity.gract_exponent", 0.0, 1.0),
    ("startup.least_s", 0.0, 1e5),
    ("startup.median_s", 0.0, 1e5),
    ("startup.p90_s", 0.0, 1e5),
    ("startup.p95_s", 0.0, 1e5),
    ("startup.most_s", 0.0, 1e5),
];

/// The keys of all constants (not of the MIG profiles, which have one source together).
pub(super) fn keys() -> impl Iterator<Item = &'static str> {
    CONSTANTS.iter().map(|(key, ..)| *key)
}

/// Reads a file; the error says what is wrong and where.
pub(super) fn parse(text: &str) -> Result<GpuType, String> {
    let file: File = toml::from_str(text).map_err(|e| e.to_string().trim_end().to_owned())?;
    let sound = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if file.name.is_empty() || file.name.len() > 64 || !file.name.chars().all(sound) {
        return Err(format!(
            "name `{}`: 1 to 64 letters, digits, `-`, `_` or `.`",
            file.name.chars().take(64).collect::<String>()
        ));
    }
    let mut constants = BTreeMap::from([
        ("memory_mib".to_owned(), file.memory_mib),
        ("context_mib".to_owned(), file.context_mib),
    ]);
    for (table, group) in [
        ("power", file.power),
        ("time_slice", file.time_slice),
        ("mps", file.mps),
        ("pcie", file.pcie),
        ("activity", file.activity),
        ("startup", file.startup),
    ] {
        constants.extend(group.into_iter().map(|(key, constant)| (format!("{table}.{key}"), constant)));
    }
    if let Some(unknown) = constants.keys().find(|key| !keys().any(|known| known == *key)) {
        return Err(format!("unknown key {unknown}"));
    }
    for (key, least, most) in CONSTANTS {
        let Some(constant) = constants.get(key) else {
            return Err(format!("{key} is missing"));
        };
        // Not a number is in no range.
        if !(least..=most).contains(&constant.value) {
            return Err(format!("{key} = {} is not from {least} to {most}", constant.value));
        }
        if constant.source.trim().is_empty() {
            return Err(format!("{key} has no source"));
        }
    }
    let of = |key: &str| constants.get(key).map_or(0.0, |constant| constant.value);
    if of("power.cap_w") <= of("power.idle_w") {
        return Err(format!(
            "power.cap_w = {} is not above power.idle_w = {}",
            of("power.cap_w"),
            of("power.idle_w")
        ));
    }
    let startup = Startup {
        least_s: of("startup.least_s"),
        median_s: of("startup.median_s"),
        p90_s: of("startup.p90_s"),
        p95_s: of("startup.p95_s"),
        most_s: of("startup.most_s"),
    };
    let ascending = [startup.least_s, startup.median_s, startup.p90_s, startup.p95_s, startup.most_s];
    if !ascending.is_sorted() {
        return Err("startup: the times must ascend from least_s to most_s".to_owned());
    }
    Ok(GpuType {
        name: file.name.into(),
        memory_mib: of("memory_mib") as u64,
        context_mib: of("context_mib") as u64,
        empty_w: of("power.empty_w"),
        power: Power {
            idle_w: of("power.idle_w"),
            cap_w: of("power.cap_w"),
            gract: of("power.gract"),
            smact: of("power.smact"),
            dram: of("power.dram"),
            tensor: of("power.tensor"),
            clock_exponent: of("power.clock_exponent"),
        },
        capacities: Capacities {
            time_slice_gract: of("time_slice.gract"),
            mps_sm: of("mps.sm"),
            mps_dram: of("mps.dram"),
            mps_tensor: of("mps.tensor"),
            pcie: of("pcie.capacity"),
            part_sm: 1.0,
            part_dram: 1.0,
        },
        gract_exponent: of("activity.gract_exponent"),
        startup,
        mig: file.mig.map_or_else(|| Ok(Vec::new()), profiles)?,
        sources: Arc::new(constants.into_iter().map(|(key, constant)| (key, constant.source)).collect()),
    })
}

fn profiles(mig: Mig) -> Result<Vec<MigProfile>, String> {
    if mig.source.trim().is_empty() {
        return Err("mig has no source".to_owned());
    }
    mig.profiles
        .into_iter()
        .map(|profile| {
            let Profile { name, compute, memory, memory_mib, most } = profile;
            if !(1..=7).contains(&compute) || !(1..=8).contains(&memory) || !(1..=7).contains(&most) {
                return Err(format!("mig profile {name}: compute and most are 1 to 7, memory is 1 to 8"));
            }
            if memory_mib == 0 {
                return Err(format!("mig profile {name}: memory_mib is 0"));
            }
            Ok(MigProfile { name: name.into(), compute, memory_slices: memory, memory_mib, most })
        })
        .collect()
}
