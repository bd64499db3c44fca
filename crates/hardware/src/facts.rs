//! What is known of a type, whether or not there is a model of it.

use crate::{BUILT_IN, Capacities, FileError, GpuType, Power, Prior, file, names};
use serde::Deserialize;
use std::sync::{Arc, LazyLock};

/// How a fact is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Known {
    /// Read off the GPU itself.
    Measured,
    /// Made of measurements by a fit or a reckoning.
    Fitted,
    /// A data sheet, a paper or a report says so.
    Published,
    /// Nobody knows; the source says why this was taken.
    Assumed,
}

/// A number, and where it comes from.
#[derive(Debug, Clone, PartialEq)]
pub struct Fact {
    /// The number.
    pub value: f64,
    /// How it is known.
    pub known: Known,
    /// Where it comes from.
    pub source: String,
}

/// Memory of one PyTorch process on a real GPU before it allocates, MiB. It is not what a simulated
/// process has ([`GpuType::context_mib`]).
#[derive(Debug, Clone, PartialEq)]
pub struct Context {
    /// In training, with lazy loading of kernels, after a matrix product and a convolution.
    pub training_mib: Fact,
    /// In inference, likewise.
    pub inference_mib: Option<Fact>,
    /// Of it, what the first matrix product brings: without one, as in a model of convolutions alone, it is not there.
    pub forward_products_mib: Option<Fact>,
    /// Of it, what the first matrix product of a backward pass brings.
    pub backward_products_mib: Option<Fact>,
    /// Where all kernels are loaded at the start.
    pub eager_mib: Option<Fact>,
}

/// What the predictor of slowdown knows of a chip.
#[derive(Debug, Clone, PartialEq)]
pub struct Prediction {
    /// The chip's name, a word of its products' names.
    pub chip: Arc<str>,
    /// What several tasks can use together: the model's, but for what the file says otherwise.
    pub capacities: Capacities,
    /// Its power; `None`: no clock is lowered.
    pub power: Option<Power>,
    /// Rate of its host link in one direction, MiB/s.
    pub pcie_mib_s: f64,
}

/// What is known of a type of GPU.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    /// Name, e.g. `A100-40GB`.
    pub name: Arc<str>,
    /// All of its memory as `nvidia-smi` shows it, MiB.
    pub memory_mib: u64,
    /// Compute capability, major and minor.
    pub compute_capability: (u8, u8),
    /// Its products as NVML spells them.
    pub nvml: Vec<String>,
    /// CUDA context.
    pub context: Context,
    /// Of the chip, in one file of those that have it.
    pub prediction: Option<Prediction>,
    /// The model; `None`: it cannot be simulated.
    pub model: Option<GpuType>,
    /// What [`names::type_key`] makes of its names.
    pub(crate) keys: Vec<String>,
}

impl Facts {
    /// Reads a file of which everything but the model has to be there. `file` is what messages call it.
    ///
    /// # Errors
    /// Says what is wrong and where.
    pub fn parse(text: &str, file: &str) -> Result<Self, FileError> {
        file::parse_facts(text).map_err(|why| FileError { file: file.to_owned(), why })
    }

    /// Of every type that carma knows.
    #[must_use]
    pub fn all() -> &'static [Self] {
        static ALL: LazyLock<Vec<Facts>> = LazyLock::new(|| {
            // A test parses every one of them, so that nothing is left out here.
            BUILT_IN.iter().filter_map(|(file, text)| Facts::parse(text, file).ok()).collect()
        });
        &ALL
    }

    /// Of the type of that product (`NVIDIA A100-SXM4-40GB`) or name (`a100-40gb`).
    #[must_use]
    pub fn of_product(name: &str) -> Option<&'static Self> {
        let key = names::type_key(name);
        Self::all().iter().find(|facts| facts.keys.contains(&key))
    }
}

/// The chip of that product, and what the predictor knows of it; `None`: it was never measured.
#[must_use]
pub fn predicted(product: &str) -> (String, Option<&'static Prediction>) {
    let known = || Facts::all().iter().filter_map(|facts| facts.prediction.as_ref());
    let chip = names::chip(product, known().map(|prediction| &*prediction.chip));
    let prediction = known().find(|prediction| *prediction.chip == *chip);
    (chip, prediction)
}

/// What is taken for a GPU that nobody has measured, and of every type where no type is known.
#[derive(Debug)]
pub struct Unmeasured {
    /// Its model. The memory stands for the size that a name says.
    pub model: GpuType,
    /// What the predictor of slowdown believes of the law's constants, whatever the type.
    pub prior: Prior,
    /// Rate of its host link in one direction, MiB/s.
    pub pcie_mib_s: f64,
    /// CUDA context of a real GPU that no file names, in training.
    pub training_mib: Fact,
    /// CUDA context of any type where all kernels are loaded at the start.
    pub eager_mib: Fact,
}

impl Unmeasured {
    /// What the built-in file says.
    #[must_use]
    pub fn get() -> &'static Self {
        static UNMEASURED: LazyLock<Unmeasured> = LazyLock::new(|| {
            #[expect(clippy::expect_used, reason = "the file is built in, and tests read it")]
            file::parse_unmeasured(include_str!("../gpus/unmeasured.toml")).expect("unmeasured.toml")
        });
        &UNMEASURED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_belong_to_one_type() {
        let mut keys: Vec<_> =
            Facts::all().iter().flat_map(|f| f.keys.iter().map(move |key| (key, &f.name))).collect();
        keys.sort_unstable();
        let all = keys.len();
        keys.dedup_by_key(|(key, _)| *key);
        assert_eq!((keys.len(), all > 30), (all, true));
        for facts in Facts::all() {
            assert!(!facts.nvml.is_empty(), "{}", facts.name);
            for product in facts.nvml.iter().map(String::as_str).chain([&*facts.name]) {
                assert_eq!(Facts::of_product(product).unwrap().name, facts.name, "{product}");
            }
        }
    }

    #[test]
    fn a_chip_is_predicted_by_one_file() {
        let mut chips: Vec<_> =
            Facts::all().iter().filter_map(|f| f.prediction.as_ref()).map(|p| &*p.chip).collect();
        chips.sort_unstable();
        assert_eq!(chips, ["A100", "H200", "V100"]);
    }

    #[test]
    fn what_the_predictor_has_of_its_own_stands_beside_the_model() {
        let [h200, a100, v100] = ["H200", "A100", "V100"].map(|chip| predicted(chip).1.unwrap());
        let model = |name: &str| GpuType::find(name).unwrap();
        let fitted = model("H200").capacities;
        assert_eq!(h200.capacities, Capacities { time_slice_gract: 0.925, mps_sm: 0.941, ..fitted });
        assert_eq!(h200.power, Some(Power { idle_w: 106.0, ..model("H200").power }));
        assert_eq!((a100.capacities, a100.power), (model("A100-40GB").capacities, None));
        let fitted = model("V100-32GB").capacities;
        assert_eq!(v100.capacities, Capacities { time_slice_gract: 0.97, mps_sm: 1.15, ..fitted });
        assert_eq!([h200, a100, v100].map(|p| p.pcie_mib_s), [55_000.0, 25_000.0, 12_500.0]);
    }

    #[test]
    fn a_type_without_a_model_is_known_and_not_simulated() {
        let p100 = Facts::of_product("Tesla P100-PCIE-16GB").unwrap();
        assert_eq!((p100.memory_mib, p100.compute_capability, &p100.model), (16_384, (6, 0), &None));
        assert_eq!(GpuType::find("P100-16GB").unwrap_err(), "unknown GPU type `P100-16GB`");
    }

    #[test]
    fn unmeasured_gpus_have_what_large_ones_have() {
        let unmeasured = Unmeasured::get();
        assert_eq!((unmeasured.training_mib.value, unmeasured.eager_mib.value), (700.0, 1429.0));
        assert_eq!((unmeasured.model.context_mib, unmeasured.pcie_mib_s), (450, 12_500.0));
    }

    /// Types without waiting constants of their own take those measured on the H200.
    #[test]
    fn what_a_type_leaves_out_of_sharing_is_as_for_unmeasured_types() {
        let [h200, a100] = ["H200", "A100-40GB"].map(|name| GpuType::find(name).unwrap());
        let (said, left_out) = (h200.capacities, a100.capacities);
        let Capacities { time_slice_gract, mps_sm, .. } = left_out;
        assert_eq!(Capacities { time_slice_gract, mps_sm, ..said }, left_out);
        assert!(
            a100.sources["mps.crowding"].starts_with("assumed")
                && h200.sources["mps.crowding"].starts_with("fitted")
        );
        let text = include_str!("../gpus/h200.toml").replacen("crowding = {", "crowds = {", 1);
        assert!(GpuType::parse(&text, "x.toml").unwrap_err().to_string().contains("mps.crowds"));
        let text = include_str!("../gpus/h200.toml").replacen(
            "crowding = { value = 0",
            "crowding = { value = -1",
            1,
        );
        assert!(GpuType::parse(&text, "x.toml").unwrap_err().to_string().contains("mps.crowding"));
    }

    #[test]
    fn errors_say_what_and_where() {
        let good = include_str!("../gpus/h200.toml");
        for (from, to, part) in [
            ("known = \"measured\", source = \"measured: 742", "source = \"measured: 742", "known"),
            ("known = \"measured\"", "known = \"guessed\"", "guessed"),
            ("training_mib = { value = 758", "training_mib = { value = -1", "context.training_mib"),
            ("[context]", "[contxt]", "`context`"),
            ("\"H200 141GB\"", "\"NVIDIA GPU\"", "`NVIDIA GPU` tells no type"),
            ("nvml = [", "nvlm = [", "nvlm"),
            ("compute_capability = { value = 9.0", "compute_capability = { value = 90", "compute_capability"),
            ("chip = \"H200\"\n", "", "chip"),
            ("[mps]", "[mpz]", "mpz"),
        ] {
            assert!(good.contains(from), "{from}");
            let error = Facts::parse(&good.replacen(from, to, 1), "x.toml").unwrap_err().to_string();
            assert!(error.starts_with("GPU model x.toml: ") && error.contains(part), "{from}: {error}");
        }
        let p100 = include_str!("../gpus/p100-16gb.toml");
        let half = Facts::parse(&format!("{p100}[mps]\n"), "x.toml").unwrap_err().to_string();
        assert!(half.contains("missing field"), "{half}");
    }
}
