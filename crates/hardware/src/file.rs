//! The form of a type's file, and what is checked when one is read.

use super::facts::{Context, Fact, Facts, Known, Prediction, Unmeasured};
use super::{Capacities, GpuType, MigProfile, Power, Prior, Startup, Waiting, names};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Constant {
    value: f64,
    /// Not in the model's tables, whose sources begin with such a word.
    known: Option<Known>,
    source: String,
}

/// A group of constants: a key of the file for each.
type Group = BTreeMap<String, Constant>;

/// A model. What [`FactsFile`] has beside it may be there.
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
    compute_capability: Option<Constant>,
    names: Option<Names>,
    context: Option<ContextTable>,
    prediction: Option<PredictionTable>,
}

/// What is known of a type: all but the model, which is read as a [`File`].
#[derive(Deserialize)]
struct FactsFile {
    name: String,
    memory_mib: Constant,
    compute_capability: Constant,
    names: Names,
    context: ContextTable,
    prediction: Option<PredictionTable>,
    /// Tables of the model.
    #[serde(flatten)]
    model: BTreeMap<String, toml::Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Names {
    /// As NVML spells them.
    nvml: Vec<String>,
    /// As people do.
    #[serde(default)]
    also: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ContextTable {
    training_mib: Constant,
    inference_mib: Option<Constant>,
    forward_products_mib: Option<Constant>,
    backward_products_mib: Option<Constant>,
    eager_mib: Option<Constant>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PredictionTable {
    chip: Option<String>,
    time_slice_gract: Option<Constant>,
    mps_sm: Option<Constant>,
    idle_w: Option<Constant>,
    pcie_mib_s: Constant,
    /// In the file for unmeasured types alone.
    prior: Option<Group>,
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

/// Constants of sharing that a type may leave out, with the range of each. What is left out is as in the file for
/// unmeasured types.
const SHARING: [(&str, f64, f64); 10] = [
    ("time_slice.overlap", 0.001, 0.999),
    ("time_slice.overlap_engine", -20.0, 20.0),
    ("time_slice.wait_s", 0.0, 1.0),
    ("mps.overlap", 0.001, 0.999),
    ("mps.overlap_engine", -20.0, 20.0),
    ("mps.wait_s", 0.0, 1.0),
    ("mps.crowding", 0.0, 3.0),
    ("mps.weight_free_sms", 0.0, 10.0),
    ("mps.weight_tensor", 0.0, 10.0),
    ("activity.steps_per_s", 0.0, 1e5),
];

/// Constants of the predictor's prior, with the range of each.
const PRIOR: [(&str, f64, f64); 11] = [
    ("time_slice_overlap", 0.001, 0.999),
    ("time_slice_overlap_engine", -20.0, 20.0),
    ("time_slice_wait_s", 1e-6, 1.0),
    ("mps_overlap", 0.001, 0.999),
    ("mps_overlap_engine", -20.0, 20.0),
    ("mps_wait_s", 1e-6, 1.0),
    ("mps_crowding", 1e-3, 3.0),
    ("mps_weight_registers", 0.0, 10.0),
    ("mps_weight_free_sms", 0.0, 10.0),
    ("mps_weight_traffic", 0.0, 10.0),
    ("mps_weight_tensor", 0.0, 10.0),
];

/// The keys of all constants (not of the MIG profiles, which have one source together).
pub(super) fn keys() -> impl Iterator<Item = &'static str> {
    CONSTANTS.iter().chain(&SHARING).map(|(key, ..)| *key)
}

fn read<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, String> {
    toml::from_str(text).map_err(|e| {
        let before = text.get(..e.span().map_or(0, |s| s.start)).unwrap_or_default();
        let number = before.matches('\n').count();
        let line = text.lines().nth(number).unwrap_or_default().trim();
        format!("line {}, `{line}`: {}", number + 1, e.message())
    })
}

fn sound(name: &str) -> Result<(), String> {
    let sound = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > 64 || !name.chars().all(sound) {
        let name: String = name.chars().take(64).collect();
        return Err(format!("name `{name}`: 1 to 64 letters, digits, `-`, `_` or `.`"));
    }
    Ok(())
}

/// A constant of those that are not the model's.
fn fact(constant: Constant, key: &str, least: f64, most: f64) -> Result<Fact, String> {
    let Constant { value, known, source } = constant;
    if !(least..=most).contains(&value) {
        return Err(format!("{key} = {value} is not from {least} to {most}"));
    }
    if source.trim().is_empty() {
        return Err(format!("{key} has no source"));
    }
    let known = known.ok_or_else(|| format!("{key} lacks known = measured, fitted, published or assumed"))?;
    Ok(Fact { value, known, source })
}

/// Compute capability, major and minor, of a number such as 8.6.
fn capability(constant: Constant) -> Result<(u8, u8), String> {
    let tenths = (fact(constant, "compute_capability", 1.0, 25.0)?.value * 10.0).round() as u8;
    Ok((tenths / 10, tenths % 10))
}

impl Names {
    /// What all names of the type have in common.
    fn keys(&self, name: &str) -> Result<Vec<String>, String> {
        let mut keys = Vec::new();
        for name in self.nvml.iter().chain(&self.also).map(String::as_str).chain([name]) {
            let key = names::type_key(name);
            if key.is_empty() {
                return Err(format!("names: `{name}` tells no type"));
            }
            keys.push(key);
        }
        keys.sort_unstable();
        keys.dedup();
        Ok(keys)
    }
}

impl ContextTable {
    fn checked(self) -> Result<Context, String> {
        let of = |constant, key| fact(constant, key, 0.0, 1e6);
        let may = |constant: Option<Constant>, key| constant.map(|c| of(c, key)).transpose();
        Ok(Context {
            training_mib: of(self.training_mib, "context.training_mib")?,
            inference_mib: may(self.inference_mib, "context.inference_mib")?,
            forward_products_mib: may(self.forward_products_mib, "context.forward_products_mib")?,
            backward_products_mib: may(self.backward_products_mib, "context.backward_products_mib")?,
            eager_mib: may(self.eager_mib, "context.eager_mib")?,
        })
    }
}

impl PredictionTable {
    /// What it does not say is the model's.
    fn checked(self, model: &GpuType) -> Result<Prediction, String> {
        let or = |constant: Option<Constant>, key, model: f64| {
            constant.map_or(Ok(model), |c| fact(c, key, 0.1, 3.0).map(|fact| fact.value))
        };
        let idle = self.idle_w.map(|c| fact(c, "prediction.idle_w", 0.0, model.power.cap_w)).transpose()?;
        Ok(Prediction {
            chip: self.chip.ok_or("prediction.chip is missing")?.to_uppercase().into(),
            capacities: Capacities {
                time_slice_gract: or(
                    self.time_slice_gract,
                    "prediction.time_slice_gract",
                    model.capacities.time_slice_gract,
                )?,
                mps_sm: or(self.mps_sm, "prediction.mps_sm", model.capacities.mps_sm)?,
                ..model.capacities
            },
            power: idle.map(|idle| Power { idle_w: idle.value, ..model.power }),
            pcie_mib_s: fact(self.pcie_mib_s, "prediction.pcie_mib_s", 1.0, 1e7)?.value,
        })
    }
}

/// Reads what is known of a type, and its model where any of its tables is there.
pub(super) fn parse_facts(text: &str) -> Result<Facts, String> {
    let file: FactsFile = read(text)?;
    sound(&file.name)?;
    let model = if file.model.is_empty() { None } else { Some(parse(text)?) };
    // The model's file may leave out how its memory is known.
    let memory = Constant { known: file.memory_mib.known.or(Some(Known::Published)), ..file.memory_mib };
    let prediction = match (file.prediction, &model) {
        (None, _) => None,
        (Some(table), Some(model)) => Some(table.checked(model)?),
        (Some(_), None) => return Err("prediction needs the tables of a model".to_owned()),
    };
    Ok(Facts {
        memory_mib: fact(memory, "memory_mib", 1.0, 1e9)?.value as u64,
        compute_capability: capability(file.compute_capability)?,
        keys: file.names.keys(&file.name)?,
        nvml: file.names.nvml,
        context: file.context.checked()?,
        prediction,
        model,
        name: file.name.into(),
    })
}

/// Reads what is taken for GPUs that nobody has measured.
pub(super) fn parse_unmeasured(text: &str) -> Result<Unmeasured, String> {
    let File { context, prediction, .. } = read(text)?;
    let context = context.ok_or("context is missing")?.checked()?;
    let prediction = prediction.ok_or("prediction is missing")?;
    let prior = prediction.prior.ok_or("prediction.prior is missing")?;
    Ok(Unmeasured {
        // Nothing is left out in this one.
        model: parse_with(text, None)?,
        prior: self::prior(prior)?,
        pcie_mib_s: fact(prediction.pcie_mib_s, "prediction.pcie_mib_s", 1.0, 1e7)?.value,
        training_mib: context.training_mib,
        eager_mib: context.eager_mib.ok_or("context.eager_mib is missing")?,
    })
}

/// The predictor's prior.
fn prior(mut table: Group) -> Result<Prior, String> {
    let mut values = BTreeMap::new();
    for (key, least, most) in PRIOR {
        let at = format!("prediction.prior.{key}");
        let constant = table.remove(key).ok_or_else(|| format!("{at} is missing"))?;
        values.insert(key, fact(constant, &at, least, most)?.value);
    }
    if let Some(unknown) = table.keys().next() {
        return Err(format!("unknown key prediction.prior.{unknown}"));
    }
    let of = |key: &str| values.get(key).copied().unwrap_or(0.0);
    let waiting = |mode: &str| Waiting {
        overlap: of(&format!("{mode}_overlap")),
        overlap_engine: of(&format!("{mode}_overlap_engine")),
        wait_s: of(&format!("{mode}_wait_s")),
    };
    Ok(Prior {
        time_slice: waiting("time_slice"),
        mps: waiting("mps"),
        crowding: of("mps_crowding"),
        weights: ["registers", "free_sms", "traffic", "tensor"].map(|x| of(&format!("mps_weight_{x}"))),
    })
}

/// Reads a model; the error says what is wrong and where.
pub(super) fn parse(text: &str) -> Result<GpuType, String> {
    parse_with(text, Some(&Unmeasured::get().model))
}

/// The same, with a type that has what this one may leave out; `None`: it may leave out nothing.
fn parse_with(text: &str, unmeasured: Option<&GpuType>) -> Result<GpuType, String> {
    let file: File = read(text)?;
    sound(&file.name)?;
    // What a model does not need has to be in order where it is there.
    file.compute_capability.map(capability).transpose()?;
    file.names.map(|names| names.keys(&file.name)).transpose()?;
    file.context.map(ContextTable::checked).transpose()?;
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
    for (key, least, most) in CONSTANTS.into_iter().chain(SHARING) {
        let Some(constant) = constants.get(key) else {
            if unmeasured.is_some() && SHARING.iter().any(|(may, ..)| *may == key) {
                continue;
            }
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
    let or = |key: &str, left_out: fn(&Capacities) -> f64| match (constants.get(key), unmeasured) {
        (Some(constant), _) => constant.value,
        (None, unmeasured) => unmeasured.map_or(0.0, |gpu| left_out(&gpu.capacities)),
    };
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
            time_slice: Waiting {
                overlap: or("time_slice.overlap", |c| c.time_slice.overlap),
                overlap_engine: or("time_slice.overlap_engine", |c| c.time_slice.overlap_engine),
                wait_s: or("time_slice.wait_s", |c| c.time_slice.wait_s),
            },
            mps: Waiting {
                overlap: or("mps.overlap", |c| c.mps.overlap),
                overlap_engine: or("mps.overlap_engine", |c| c.mps.overlap_engine),
                wait_s: or("mps.wait_s", |c| c.mps.wait_s),
            },
            crowding: or("mps.crowding", |c| c.crowding),
            weight_free_sms: or("mps.weight_free_sms", |c| c.weight_free_sms),
            weight_tensor: or("mps.weight_tensor", |c| c.weight_tensor),
            steps_per_s: or("activity.steps_per_s", |c| c.steps_per_s),
            part_sm: 1.0,
            part_dram: 1.0,
        },
        gract_exponent: of("activity.gract_exponent"),
        startup,
        mig: file.mig.map_or_else(|| Ok(Vec::new()), profiles)?,
        sources: Arc::new({
            let left_out = unmeasured.map(|gpu| (*gpu.sources).clone()).unwrap_or_default();
            let left_out = left_out.into_iter().filter(|(key, _)| SHARING.iter().any(|(may, ..)| may == key));
            let said = constants.into_iter().map(|(key, constant)| (key, constant.source));
            left_out.chain(said).collect()
        }),
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
