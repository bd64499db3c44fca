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
//! A constant is `{ value = NUMBER, source = "TEXT" }`; in `[mig]` one `source` stands for all. What is known of
//! a type beside its model is in [`Facts`]: `compute_capability`, `[names]`, `[context]`, `[prediction]`. There,
//! a constant also says how it is `known`. Types that only have this cannot be simulated.

mod constants;
mod facts;
mod file;
mod mig;
pub mod names;
mod startup;

pub use constants::{Capacities, Power, Prior, Waiting};
pub use facts::{Context, Fact, Facts, Known, Prediction, Unmeasured, predicted};
pub use mig::MigProfile;
pub use startup::Startup;

use std::collections::BTreeMap;
use std::sync::Arc;

/// The files of the types that carma knows.
const BUILT_IN: [(&str, &str); 18] = [
    ("h200.toml", include_str!("../gpus/h200.toml")),
    ("h100-80gb.toml", include_str!("../gpus/h100-80gb.toml")),
    ("a100-40gb.toml", include_str!("../gpus/a100-40gb.toml")),
    ("a100-80gb.toml", include_str!("../gpus/a100-80gb.toml")),
    ("a30.toml", include_str!("../gpus/a30.toml")),
    ("a10.toml", include_str!("../gpus/a10.toml")),
    ("a40.toml", include_str!("../gpus/a40.toml")),
    ("l4.toml", include_str!("../gpus/l4.toml")),
    ("l40s.toml", include_str!("../gpus/l40s.toml")),
    ("t4.toml", include_str!("../gpus/t4.toml")),
    ("v100-16gb.toml", include_str!("../gpus/v100-16gb.toml")),
    ("v100-32gb.toml", include_str!("../gpus/v100-32gb.toml")),
    ("p100-16gb.toml", include_str!("../gpus/p100-16gb.toml")),
    ("rtx6000-ada.toml", include_str!("../gpus/rtx6000-ada.toml")),
    ("rtx-a6000.toml", include_str!("../gpus/rtx-a6000.toml")),
    ("rtx-3090.toml", include_str!("../gpus/rtx-3090.toml")),
    ("rtx-4090.toml", include_str!("../gpus/rtx-4090.toml")),
    ("rtx-2080ti.toml", include_str!("../gpus/rtx-2080ti.toml")),
];

/// Those of which there is a model, in the order of the simulator's listings.
const OFFERED: [&str; 12] = [
    "A100-40GB",
    "A100-80GB",
    "H100-80GB",
    "H200",
    "V100-16GB",
    "V100-32GB",
    "L40S",
    "L4",
    "A40",
    "A30",
    "A10",
    "T4",
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
    /// Memory of a simulated process' context before it allocates anything, MiB.
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

    /// Any memory size of a GPU that nobody has measured.
    fn custom(gib: u64) -> Self {
        Self {
            name: format!("CUSTOM-{gib}GB").into(),
            memory_mib: gib * 1024,
            ..Unmeasured::get().model.clone()
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
    /// The types that carma has a model of.
    #[must_use]
    pub fn built_in() -> Self {
        // A test finds every one of them, so that nothing is left out here.
        let model = |name: &&str| Facts::all().iter().find(|f| *f.name == **name)?.model.clone();
        Self { types: OFFERED.iter().filter_map(model).collect() }
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
        if let Some(size) = name.to_ascii_uppercase().strip_prefix("CUSTOM-") {
            let gib = size.strip_suffix("GB").and_then(|n| n.parse::<u64>().ok());
            return match gib {
                Some(gib) if (1..=MOST_CUSTOM_GIB).contains(&gib) => Ok(GpuType::custom(gib)),
                _ => {
                    Err(format!("`{name}`: a custom GPU is CUSTOM-<n>GB with n from 1 to {MOST_CUSTOM_GIB}"))
                }
            };
        }
        names::pick(&self.types, name, |gpu| &gpu.name).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: &str = include_str!("../gpus/h200.toml");

    #[test]
    fn every_built_in_file_parses_and_is_called_like_its_type() {
        for (file, text) in BUILT_IN {
            let facts = Facts::parse(text, file).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(format!("{}.toml", facts.name.to_ascii_lowercase()), file);
            let offered = OFFERED.contains(&&*facts.name);
            assert_eq!((facts.model.is_some(), GpuType::find(&facts.name).is_ok()), (offered, offered));
        }
        assert_eq!(Facts::all().len(), BUILT_IN.len());
        assert!(GpuTypes::built_in().iter().map(|gpu| &*gpu.name).eq(OFFERED));
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
        }
        check(&include_str!("../gpus/unmeasured.toml").parse::<toml::Table>().unwrap().into(), "", false);
        for gpu in GpuTypes::built_in().iter().chain([&Unmeasured::get().model]) {
            assert_eq!(gpu.sources.len(), file::keys().count(), "{}", gpu.name);
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
        let text = H200.replace("value = 143771", "value = 100");
        types.add(GpuType::parse(&text, "mine.toml").unwrap());
        assert_eq!((types.iter().count(), types.find("H200").unwrap().memory_mib), (before, 100));
        let text = text.replace("name = \"H200\"", "name = \"B300\"");
        types.add(GpuType::parse(&text, "mine.toml").unwrap());
        assert_eq!(types.find("b300").unwrap().memory_mib, 100);
    }

    #[test]
    fn errors_say_what_and_where() {
        let good = H200;
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
