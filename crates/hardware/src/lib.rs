//! Facts of GPU types: one TOML file each, in which every number says where it comes from.
//!
//! The files of the types that carma knows are built in (`crates/hardware/gpus/`); a user's file for a
//! name replaces the built-in one ([`GpuTypes::add`]). What the constants mean, how they were fitted and
//! how far off they are is in `docs/research/gpu-models.md`.
//!
//! The laws that use the constants are not here: who knows one takes them into types of its own.
//!
//! # A file
//! ```toml
//! name = "A100-40GB"
//! memory_mib = { value = 40960, source = "total that nvidia-smi shows" }
//! # ... and the tables [power], [time_slice], [mps], [pcie], [activity], [startup], perhaps [mig]
//! ```
//! A constant is `{ value = NUMBER, source = "TEXT" }`; in `[mig]` one `source` stands for all.

mod constants;
mod file;
mod mig;
mod startup;

pub use constants::{Capacities, Power};
pub use mig::MigProfile;
pub use startup::Startup;

use std::collections::BTreeMap;
use std::sync::Arc;

/// The files of the types that carma knows.
const BUILT_IN: [(&str, &str); 12] = [
    ("a100-40gb.toml", include_str!("../gpus/a100-40gb.toml")),
    ("a100-80gb.toml", include_str!("../gpus/a100-80gb.toml")),
    ("h100-80gb.toml", include_str!("../gpus/h100-80gb.toml")),
    ("h200.toml", include_str!("../gpus/h200.toml")),
    ("v100-16gb.toml", include_str!("../gpus/v100-16gb.toml")),
    ("v100-32gb.toml", include_str!("../gpus/v100-32gb.toml")),
    ("l40s.toml", include_str!("../gpus/l40s.toml")),
    ("l4.toml", include_str!("../gpus/l4.toml")),
    ("a40.toml", include_str!("../gpus/a40.toml")),
    ("a30.toml", include_str!("../gpus/a30.toml")),
    ("a10.toml", include_str!("../gpus/a10.toml")),
    ("t4.toml", include_str!("../gpus/t4.toml")),
];

/// The text of the built-in file of a type, by the type's full name (upper or lower case).
#[must_use]
pub fn built_in_text(name: &str) -> Option<&'static str> {
    let file = format!("{}.toml", name.to_ascii_lowercase());
    BUILT_IN.iter().find(|(known, _)| *known == file).map(|(_, text)| *text)
}

/// `CUSTOM-<n>GB` with n from 1 to this.
const MOST_CUSTOM_GIB: u64 = 1024;

/// A type of GPU, or a MIG instance of one.
#[derive(Debug, Clone, PartialEq)]
pub struct GpuType {
    /// Name, e.g. `A100-40GB`; of a MIG instance `A100-40GB/3g.20gb`.
    pub name: Arc<str>,
    /// Memory, MiB. All of it can be allocated: the driver's own reserve is not in it.
    pub memory_mib: u64,
    /// Memory of a process' context before it allocates anything, MiB.
    pub context_mib: u64,
    /// Power with no process on it, watts: its clock is down then. Of a MIG instance its share.
    pub empty_w: f64,
    /// Power and clock with processes on it.
    pub power: Power,
    /// How much several tasks can use together.
    pub capacities: Capacities,
    /// `e` in GRACT = SMACT^e, for tasks of which only SMACT is known.
    pub gract_exponent: f64,
    /// From start to the first GPU activity.
    pub startup: Startup,
    /// MIG instances that it can be cut into; empty: none.
    pub mig: Vec<MigProfile>,
    /// Where each constant comes from, by its key in the file (`power.idle_w`).
    pub sources: Arc<BTreeMap<String, String>>,
}

impl GpuType {
    /// Reads a type. `file` is what messages call it.
    ///
    /// # Errors
    /// Says what is wrong and where: TOML that does not parse (with its line), a missing or unknown
    /// key, a constant without a source, a value out of range.
    pub fn parse(text: &str, file: &str) -> Result<Self, FileError> {
        file::parse(text).map_err(|why| FileError { file: file.to_owned(), why })
    }

    /// The built-in type of a name ([`GpuTypes::find`]).
    ///
    /// # Errors
    /// An unknown or ambiguous name.
    pub fn find(name: &str) -> Result<Self, String> {
        GpuTypes::built_in().find(name)
    }

    /// GRACT of a task of which only SMACT is known: `smact^e`, never less than SMACT.
    #[must_use]
    pub fn gract_of(&self, smact: f64) -> f64 {
        smact.clamp(0.0, 1.0).powf(self.gract_exponent).max(smact)
    }

    /// Any memory size: 50 W idle, 300 W limit, the share law's prior capacities, all assumed.
    fn custom(gib: u64) -> Self {
        let assumed = "assumed: a GPU that nobody has measured";
        let power = Power {
            idle_w: 50.0,
            cap_w: 300.0,
            gract: 0.2,
            smact: 0.2,
            dram: 1.2,
            tensor: 0.0,
            clock_exponent: 3.0,
        };
        Self {
            name: format!("CUSTOM-{gib}GB").into(),
            memory_mib: gib * 1024,
            context_mib: 450,
            empty_w: power.idle_w,
            power,
            capacities: Capacities {
                time_slice_gract: 1.0,
                mps_sm: 1.15,
                mps_dram: 0.8,
                mps_tensor: 1.0,
                pcie: 1.0,
                part_sm: 1.0,
                part_dram: 1.0,
            },
            gract_exponent: 0.57,
            startup: Startup { least_s: 4.1, median_s: 8.2, p90_s: 10.6, p95_s: 20.6, most_s: 55.5 },
            mig: Vec::new(),
            sources: Arc::new(file::keys().map(|key| (key.to_owned(), assumed.to_owned())).collect()),
        }
    }
}

/// What is wrong with a type's file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("GPU model {file}: {why}")]
pub struct FileError {
    /// The file.
    pub file: String,
    /// What is wrong, and where.
    pub why: String,
}

/// Types by name: the built-in ones, and a user's on top of them.
#[derive(Debug, Clone, Default)]
pub struct GpuTypes {
    types: Vec<GpuType>,
}

impl GpuTypes {
    /// The types that carma knows.
    #[must_use]
    pub fn built_in() -> Self {
        // A test parses every one of them, so that nothing is left out here.
        Self { types: BUILT_IN.iter().filter_map(|(file, text)| GpuType::parse(text, file).ok()).collect() }
    }

    /// Adds a type; it replaces one of the same name.
    pub fn add(&mut self, gpu: GpuType) {
        match self.types.iter_mut().find(|known| known.name.eq_ignore_ascii_case(&gpu.name)) {
            Some(known) => *known = gpu,
            None => self.types.push(gpu),
        }
    }

    /// The types, in order.
    pub fn iter(&self) -> impl Iterator<Item = &GpuType> {
        self.types.iter()
    }

    /// Names of the types for people, separated by commas.
    #[must_use]
    pub fn names(&self) -> String {
        let mut names: Vec<&str> = self.types.iter().map(|gpu| &*gpu.name).collect();
        names.push("CUSTOM-<n>GB");
        names.join(", ")
    }

    /// The type of a name, upper or lower case; short names (`H100`) where only one fits;
    /// `CUSTOM-<n>GB`; `NAME/PROFILE` for a MIG instance (`A100-40GB/3g.20gb`).
    ///
    /// # Errors
    /// An unknown or ambiguous name.
    pub fn find(&self, name: &str) -> Result<GpuType, String> {
        if let Some((whole, profile)) = name.split_once('/') {
            let whole = self.find(whole)?;
            return whole.slice(profile).ok_or_else(|| {
                let known: Vec<&str> = whole.mig.iter().map(|p| &*p.name).collect();
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                format!("`{name}`: {} has no such MIG profile (it has: {known})", whole.name)
            });
        }
        let upper = name.to_ascii_uppercase();
        if let Some(size) = upper.strip_prefix("CUSTOM-") {
            let gib = size.strip_suffix("GB").and_then(|n| n.parse::<u64>().ok());
            return match gib {
                Some(gib) if (1..=MOST_CUSTOM_GIB).contains(&gib) => Ok(GpuType::custom(gib)),
                _ => {
                    Err(format!("`{name}`: a custom GPU is CUSTOM-<n>GB with n from 1 to {MOST_CUSTOM_GIB}"))
                }
            };
        }
        if let Some(exact) = self.types.iter().find(|gpu| gpu.name.eq_ignore_ascii_case(name)) {
            return Ok(exact.clone());
        }
        let family = format!("{upper}-");
        let mut members = self.types.iter().filter(|gpu| gpu.name.to_ascii_uppercase().starts_with(&family));
        match (members.next(), members.next()) {
            (Some(gpu), None) => Ok(gpu.clone()),
            (Some(one), Some(other)) => {
                Err(format!("GPU type `{name}` is ambiguous: {} or {}", one.name, other.name))
            }
            (None, _) => Err(format!("unknown GPU type `{name}`")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_file_parses_and_is_called_like_its_type() {
        for (file, text) in BUILT_IN {
            let gpu = GpuType::parse(text, file).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(format!("{}.toml", gpu.name.to_ascii_lowercase()), file);
        }
        assert_eq!(GpuTypes::built_in().iter().count(), BUILT_IN.len());
    }

    /// Every number stands in a table that has a source, itself or a parent.
    #[test]
    fn every_number_has_a_source() {
        fn check(value: &toml::Value, path: &str, sourced: bool) {
            match value {
                toml::Value::Table(table) => {
                    let source = table.get("source").and_then(toml::Value::as_str);
                    let sourced = sourced || source.is_some_and(|text| text.trim().len() >= 7);
                    for (key, value) in table {
                        check(value, &format!("{path}.{key}"), sourced);
                    }
                }
                toml::Value::Array(list) => list.iter().for_each(|value| check(value, path, sourced)),
                toml::Value::Integer(_) | toml::Value::Float(_) => assert!(sourced, "{path} has no source"),
                _ => {}
            }
        }
        for (file, text) in BUILT_IN {
            check(&text.parse::<toml::Table>().unwrap().into(), file, false);
            assert_eq!(GpuType::parse(text, file).unwrap().sources.len(), file::keys().count(), "{file}");
        }
    }

    #[test]
    fn names_are_forgiving_and_errors_are_not() {
        assert_eq!(&*GpuType::find("h200").unwrap().name, "H200");
        assert_eq!(&*GpuType::find("h100").unwrap().name, "H100-80GB");
        assert_eq!(GpuType::find("custom-24gb").unwrap().memory_mib, 24 * 1024);
        assert_eq!(&*GpuType::find("a100-40gb/3g.20gb").unwrap().name, "A100-40GB/3g.20gb");
        assert!(GpuType::find("A100").unwrap_err().contains("A100-40GB or A100-80GB"));
        assert!(GpuType::find("B200").unwrap_err().contains("`B200`"));
        assert!(GpuType::find("T4/1g.5gb").unwrap_err().contains("none"));
    }

    #[test]
    fn a_users_type_replaces_the_built_in_one() {
        let mut types = GpuTypes::built_in();
        let before = types.iter().count();
        let text = BUILT_IN[3].1.replace("value = 143771", "value = 100");
        types.add(GpuType::parse(&text, "mine.toml").unwrap());
        assert_eq!((types.iter().count(), types.find("H200").unwrap().memory_mib), (before, 100));
        let text = text.replace("name = \"H200\"", "name = \"B300\"");
        types.add(GpuType::parse(&text, "mine.toml").unwrap());
        assert_eq!(types.find("b300").unwrap().memory_mib, 100);
    }

    #[test]
    fn errors_say_what_and_where() {
        let good = BUILT_IN[3].1;
        let refuse = |from: &str, to: &str| {
            assert!(good.contains(from), "{from}");
            GpuType::parse(&good.replace(from, to), "x.toml").unwrap_err().to_string()
        };
        for (from, to, part) in [
            ("name = \"H200\"", "name = \"\"", "name"),
            ("name = \"H200\"", "name = \"a b\"", "name"),
            ("[power]", "[powr]", "powr"),
            ("value = 143771", "value = -1", "memory_mib"),
            ("value = 700.0", "value = 10.0", "cap_w"),
            ("value = 700.0", "value = nan", "power.cap_w"),
            ("idle_w = {", "idle = {", "idle"),
            ("[pcie]", "[pcie", "line"),
            ("compute = 3", "compute = 9", "3g.71gb"),
        ] {
            let error = refuse(from, to);
            assert!(error.starts_with("GPU model x.toml: ") && error.contains(part), "{error}");
        }
        let error = refuse("source = \"total that nvidia-smi shows\"", "source = \" \"");
        assert!(error.contains("memory_mib") && error.contains("source"), "{error}");
    }
}
