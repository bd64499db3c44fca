//! Models of GPU types: one TOML file each, in which every number says where it comes from.
//!
//! The files of the types that carma knows are built in (`crates/hardware/gpus/`); a user's file for a name
//! replaces the built-in one ([`GpuModels::add`]). What the parameters mean, how they were fitted and
//! how far off they are is in `docs/gpu-models.md`.
//!
//! # A file
//! ```toml
//! name = "A100-40GB"
//! memory_mib = { value = 40960, source = "total that nvidia-smi shows" }
//! # ... and the tables [power], [time_slice], [mps], [pcie], [activity], [startup], perhaps [mig]
//! ```
//! A constant is `{ value = NUMBER, source = "TEXT" }`; in `[mig]` one `source` stands for all.

mod file;
mod mig;
mod startup;

pub use mig::MigProfile;
pub use startup::Startup;

use carma_core::units::MiB;
use carma_interference::power::Power;
use carma_interference::share::{Capacities, Demand, Mode, Scratch, Tenant, share_into};
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

/// The text of the built-in file of a model.
#[must_use]
pub fn built_in_text(name: &str) -> Option<&'static str> {
    let file = format!("{}.toml", name.to_ascii_lowercase());
    BUILT_IN.iter().find(|(known, _)| *known == file).map(|(_, text)| *text)
}

/// `CUSTOM-<n>GB` with n from 1 to this.
const MOST_CUSTOM_GIB: u64 = 1024;

/// The model of a type of GPU, or of a MIG instance of one.
#[derive(Debug, Clone, PartialEq)]
pub struct GpuModel {
    /// Name, e.g. `A100-40GB`; of a MIG instance `A100-40GB/3g.20gb`.
    pub name: Arc<str>,
    /// Memory. All of it can be allocated: the driver's own reserve is not modelled.
    pub memory: MiB,
    /// Memory of a process' context, before it allocates anything.
    pub context: MiB,
    /// Power with no process on it, watts: its clock is down then. Of a MIG instance its share.
    pub empty_w: f64,
    /// Power and clock with processes on it.
    pub power: Power,
    /// Capacities of the share law.
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

/// What a GPU does with a set of tenants.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GpuState {
    /// What the tenants use together, as in `carma_interference::share::Outcome::used`, the clock's
    /// effect included. `gract` is what a counter shows.
    pub used: Demand,
    /// Power drawn, watts.
    pub power_w: f64,
    /// SM clock over the clock without a power limit, in (0, 1].
    pub clock: f64,
}

impl GpuModel {
    /// Reads a model. `file` is what messages call it.
    ///
    /// # Errors
    /// Says what is wrong and where: TOML that does not parse (with its line), a missing or unknown
    /// key, a constant without a source, a value out of range.
    pub fn parse(text: &str, file: &str) -> Result<Self, ModelError> {
        file::parse(text).map_err(|why| ModelError { file: file.to_owned(), why })
    }

    /// The built-in model of a name ([`GpuModels::find`]).
    ///
    /// # Errors
    /// An unknown or ambiguous name.
    pub fn find(name: &str) -> Result<Self, String> {
        GpuModels::built_in().find(name)
    }

    /// Power at an activity (shares, 0 to 1), watts: [`Power::drawn_w`].
    #[must_use]
    pub fn power_w(&self, gract: f64, smact: f64, dram: f64) -> f64 {
        self.power.drawn_w(&Demand { gract, sm: smact, dram, ..Demand::default() })
    }

    /// GRACT of a task of which only SMACT is known: `smact^e`, never less than SMACT.
    #[must_use]
    pub fn gract_of(&self, smact: f64) -> f64 {
        smact.clamp(0.0, 1.0).powf(self.gract_exponent).max(smact)
    }

    /// The share law, power and clock together, for tenants that share in one mode. Replaces what is
    /// in `progress` by each tenant's speed over its speed alone on a whole GPU; allocates nothing
    /// once the buffers have grown.
    ///
    /// Power is asked for by the activity at the full clock; where that is more than the limit, the
    /// clock falls and slows what depends on it, DRAM and PCIe traffic with it.
    pub fn run(
        &self,
        mode: Mode,
        tenants: &[Tenant],
        scratch: &mut Scratch,
        progress: &mut Vec<f64>,
    ) -> GpuState {
        let mut used = share_into(mode, tenants, &self.capacities, scratch, progress);
        let power_w = self.power.drawn_w(&used);
        let clock = self.power.clock(&used);
        if clock < 1.0 {
            // Slower kernels are resident for longer: GRACT, SMACT and tensor activity stay.
            (used.dram, used.pcie) = (0.0, 0.0);
            for (tenant, p) in tenants.iter().zip(progress) {
                *p /= self.power.longer(&tenant.demand, clock);
                used.dram += tenant.demand.dram * *p;
                used.pcie += tenant.demand.pcie * *p;
            }
        }
        GpuState { used, power_w, clock }
    }

    /// Any memory size: 50 W idle, 300 W limit, the prior's capacities, all assumed.
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
            memory: MiB::gib(gib),
            context: MiB(450),
            empty_w: power.idle_w,
            power,
            capacities: Capacities::PRIOR,
            gract_exponent: 0.57,
            startup: Startup { least_s: 4.1, median_s: 8.2, p90_s: 10.6, p95_s: 20.6, most_s: 55.5 },
            mig: Vec::new(),
            sources: Arc::new(file::keys().map(|key| (key.to_owned(), assumed.to_owned())).collect()),
        }
    }
}

/// What is wrong with a model file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("GPU model {file}: {why}")]
pub struct ModelError {
    /// The file.
    pub file: String,
    /// What is wrong, and where.
    pub why: String,
}

/// Models by name: the built-in ones, and a user's on top of them.
#[derive(Debug, Clone, Default)]
pub struct GpuModels {
    models: Vec<GpuModel>,
}

/// The largest file of a GPU model that is read, bytes: the built-in ones have two thousand.
const LARGEST: u64 = 1 << 20;

impl GpuModels {
    /// The types that carma knows.
    #[must_use]
    pub fn built_in() -> Self {
        // A test parses every one of them, so that nothing is left out here.
        Self { models: BUILT_IN.iter().filter_map(|(file, text)| GpuModel::parse(text, file).ok()).collect() }
    }

    /// Adds a model; it replaces one of the same name.
    pub fn add(&mut self, model: GpuModel) {
        match self.models.iter_mut().find(|known| known.name.eq_ignore_ascii_case(&model.name)) {
            Some(known) => *known = model,
            None => self.models.push(model),
        }
    }

    /// Reads a file and adds its model.
    ///
    /// # Errors
    /// The file can't be read, or [`GpuModel::parse`] refuses it.
    pub fn add_file(&mut self, path: &std::path::Path) -> Result<(), ModelError> {
        let file = path.display().to_string();
        let text = carma_files::read_text(path, LARGEST)
            .map_err(|e| ModelError { file: file.clone(), why: e.why.to_string() })?;
        self.add(GpuModel::parse(&text, &file)?);
        Ok(())
    }

    /// The models, in order.
    pub fn iter(&self) -> impl Iterator<Item = &GpuModel> {
        self.models.iter()
    }

    /// Names of the types for people, separated by commas.
    #[must_use]
    pub fn names(&self) -> String {
        let mut names: Vec<&str> = self.models.iter().map(|model| &*model.name).collect();
        names.push("CUSTOM-<n>GB");
        names.join(", ")
    }

    /// The model of a name, upper or lower case; short names (`H100`) where only one fits;
    /// `CUSTOM-<n>GB`; `NAME/PROFILE` for a MIG instance (`A100-40GB/3g.20gb`).
    ///
    /// # Errors
    /// An unknown or ambiguous name.
    pub fn find(&self, name: &str) -> Result<GpuModel, String> {
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
                Some(gib) if (1..=MOST_CUSTOM_GIB).contains(&gib) => Ok(GpuModel::custom(gib)),
                _ => {
                    Err(format!("`{name}`: a custom GPU is CUSTOM-<n>GB with n from 1 to {MOST_CUSTOM_GIB}"))
                }
            };
        }
        if let Some(exact) = self.models.iter().find(|model| model.name.eq_ignore_ascii_case(name)) {
            return Ok(exact.clone());
        }
        let family = format!("{upper}-");
        let mut members =
            self.models.iter().filter(|model| model.name.to_ascii_uppercase().starts_with(&family));
        match (members.next(), members.next()) {
            (Some(model), None) => Ok(model.clone()),
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
    fn every_built_in_file_parses_and_is_called_like_its_model() {
        for (file, text) in BUILT_IN {
            let model = GpuModel::parse(text, file).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(format!("{}.toml", model.name.to_ascii_lowercase()), file);
        }
        assert_eq!(GpuModels::built_in().iter().count(), BUILT_IN.len());
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
            assert_eq!(GpuModel::parse(text, file).unwrap().sources.len(), file::keys().count(), "{file}");
        }
    }

    #[test]
    fn names_are_forgiving_and_errors_are_not() {
        assert_eq!(&*GpuModel::find("h200").unwrap().name, "H200");
        assert_eq!(&*GpuModel::find("h100").unwrap().name, "H100-80GB");
        assert_eq!(GpuModel::find("custom-24gb").unwrap().memory, MiB::gib(24));
        assert_eq!(&*GpuModel::find("a100-40gb/3g.20gb").unwrap().name, "A100-40GB/3g.20gb");
        assert!(GpuModel::find("A100").unwrap_err().contains("A100-40GB or A100-80GB"));
        assert!(GpuModel::find("B200").unwrap_err().contains("`B200`"));
        assert!(GpuModel::find("T4/1g.5gb").unwrap_err().contains("none"));
    }

    #[test]
    fn a_users_model_replaces_the_built_in_one() {
        let mut models = GpuModels::built_in();
        let before = models.iter().count();
        let text = BUILT_IN[3].1.replace("value = 143771", "value = 100");
        models.add(GpuModel::parse(&text, "mine.toml").unwrap());
        assert_eq!((models.iter().count(), models.find("H200").unwrap().memory), (before, MiB(100)));
        let text = text.replace("name = \"H200\"", "name = \"B300\"");
        models.add(GpuModel::parse(&text, "mine.toml").unwrap());
        assert_eq!(models.find("b300").unwrap().memory, MiB(100));
        assert!(
            models.add_file("/nowhere/x.toml".as_ref()).unwrap_err().to_string().contains("cannot be read")
        );
    }

    #[test]
    fn errors_say_what_and_where() {
        let good = BUILT_IN[3].1;
        let refuse = |from: &str, to: &str| {
            assert!(good.contains(from), "{from}");
            GpuModel::parse(&good.replace(from, to), "x.toml").unwrap_err().to_string()
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

    #[test]
    fn a_power_limit_slows_what_follows_the_clock() {
        let mut model = GpuModel::find("H200").unwrap();
        model.power = Power { idle_w: 50.0, cap_w: 350.0, gract: 0.3, smact: 1.2, dram: 0.0, ..model.power };
        let busy = Tenant::new(Demand { gract: 0.6, sm: 0.4, ..Demand::default() });
        let (mut scratch, mut progress) = (Scratch::default(), Vec::new());
        let alone = model.run(Mode::Mps, &[busy], &mut scratch, &mut progress);
        assert_eq!((alone.clock, progress[0]), (1.0, 1.0));
        let state = model.run(Mode::Mps, &[busy; 2], &mut scratch, &mut progress);
        let expected = (1.0_f64 / (0.3 * 0.84 + 1.2 * 0.8)).powf(1.0 / model.power.clock_exponent);
        assert!((state.clock - expected).abs() < 1e-12 && state.power_w == 350.0);
        assert!((progress[0] - expected).abs() < 1e-12);
        assert!((state.used.sm - 0.8).abs() < 1e-12);
    }
}
