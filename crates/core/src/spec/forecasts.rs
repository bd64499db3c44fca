//! What is known beforehand of a job's memory, by source.
//!
//! Which source is believed is the policy's. A new estimator is a new [`Estimator`] and nothing else here.

use crate::units::MiB;
use serde::de::{Error, IgnoredAny, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// What is known beforehand of the memory that a job needs on each of its GPUs, by source. In journals it is one map, in
/// which estimators stand under their names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Forecasts {
    /// The user said so (`--gpu-memory`).
    pub declared: Option<MiB>,
    /// What estimators said.
    pub estimates: Estimates,
    /// Computed at submission from earlier runs or from what is known of the model.
    pub computed: Option<Computed>,
}

/// An estimator of a job's memory before its submission, which gives one number. Beside [`Estimator::Measured`], these are the
/// estimators of `carma estimate`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Estimator {
    /// Measured in an earlier solo run: by carma, else line 8 of a `.rad` file.
    Measured,
    /// The Horus formula.
    Horus,
    /// PyTorch's fake tensors.
    Faketensor,
    /// GPUMemNet: its networks of carma's, else what a `.rad` file says (its class, upper edge).
    Gpumemnet,
    /// carma's allocator model, by the best front end that there is; its upper bound.
    Allocator,
    /// A few sums over the layers.
    Quick,
    /// The peak under PyTorch's fake tensors without correction.
    FaketensorRaw,
    /// DeepSpeed's formula of model states.
    Deepspeed,
    /// `LLMem`'s formula.
    Llmem,
    /// Accelerate's formula.
    Accelerate,
    /// `DNNMem`'s way, over an ONNX graph.
    Dnnmem,
    /// GPUMemNet's transformer networks.
    GpumemnetTransformer,
    /// The networks of GPUMemNet's authors.
    GpumemnetPublished,
    /// The transformer networks of GPUMemNet's authors.
    GpumemnetPublishedTransformer,
    /// `DNNPerf`'s graph model.
    Dnnperf,
}

impl Estimator {
    /// All, in the order of listings and journals.
    pub const ALL: [Self; 15] = [
        Self::Measured,
        Self::Horus,
        Self::Faketensor,
        Self::Gpumemnet,
        Self::Allocator,
        Self::Quick,
        Self::FaketensorRaw,
        Self::Deepspeed,
        Self::Llmem,
        Self::Accelerate,
        Self::Dnnmem,
        Self::GpumemnetTransformer,
        Self::GpumemnetPublished,
        Self::GpumemnetPublishedTransformer,
        Self::Dnnperf,
    ];

    /// The name in journals, on the wire, in listings and after a policy's colon. It never changes.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Horus => "horus",
            Self::Faketensor => "faketensor",
            Self::Gpumemnet => "gpumemnet",
            Self::Allocator => "allocator",
            Self::Quick => "quick",
            Self::FaketensorRaw => "faketensor-raw",
            Self::Deepspeed => "deepspeed",
            Self::Llmem => "llmem",
            Self::Accelerate => "accelerate",
            Self::Dnnmem => "dnnmem",
            Self::GpumemnetTransformer => "gpumemnet-transformer",
            Self::GpumemnetPublished => "gpumemnet-published",
            Self::GpumemnetPublishedTransformer => "gpumemnet-published-transformer",
            Self::Dnnperf => "dnnperf",
        }
    }

    /// The estimator of a name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|estimator| estimator.name() == name)
    }

    /// Who it is, in a sentence for people.
    #[must_use]
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Measured => "an earlier run",
            Self::Horus => "Horus",
            Self::Faketensor => "fake tensors",
            Self::Gpumemnet => "GPUMemNet",
            Self::Allocator => "the allocator model",
            Self::Quick => "the quick formula",
            Self::FaketensorRaw => "fake tensors, uncorrected",
            Self::Deepspeed => "DeepSpeed",
            Self::Llmem => "LLMem",
            Self::Accelerate => "Accelerate",
            Self::Dnnmem => "DNNMem",
            Self::GpumemnetTransformer => "GPUMemNet, transformer",
            Self::GpumemnetPublished => "GPUMemNet as published",
            Self::GpumemnetPublishedTransformer => "GPUMemNet as published, transformer",
            Self::Dnnperf => "DNNPerf",
        }
    }
}

/// One number of each estimator that gave one. A map of fixed size without a pointer, since a plan reads it for every job
/// in the queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Estimates([u32; Estimator::ALL.len()]);

/// No number. More MiB than that is kept as one less: no GPU has so much.
const SILENT: u32 = u32::MAX;

fn packed(says: Option<MiB>) -> u32 {
    says.map_or(SILENT, |mib| u32::try_from(mib.0).unwrap_or(SILENT).min(SILENT - 1))
}

const fn unpacked(kept: u32) -> Option<MiB> {
    if kept == SILENT { None } else { Some(MiB(kept as u64)) }
}

impl Default for Estimates {
    fn default() -> Self {
        Self([SILENT; Estimator::ALL.len()])
    }
}

impl fmt::Debug for Estimates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl Estimates {
    /// What each estimator says.
    #[must_use]
    pub fn by(mut says: impl FnMut(Estimator) -> Option<MiB>) -> Self {
        Self(Estimator::ALL.map(|estimator| packed(says(estimator))))
    }

    /// What an estimator said.
    #[must_use]
    pub const fn of(&self, estimator: Estimator) -> Option<MiB> {
        unpacked(self.0[estimator as usize])
    }

    /// The same with another word of one estimator.
    #[must_use]
    pub fn with(mut self, estimator: Estimator, says: Option<MiB>) -> Self {
        self.0[estimator as usize] = packed(says);
        self
    }

    /// Those that said something, in order.
    pub fn iter(&self) -> impl Iterator<Item = (Estimator, MiB)> {
        Estimator::ALL
            .into_iter()
            .zip(self.0)
            .filter_map(|(estimator, kept)| Some((estimator, unpacked(kept)?)))
    }
}

impl Forecasts {
    /// What runs of the same program took at the least, on each GPU: below that it cannot run.
    #[must_use]
    pub fn known(&self) -> MiB {
        let runs =
            self.computed.filter(|computed| computed.basis.is_measured()).map(|computed| computed.need);
        runs.max(self.estimates.of(Estimator::Measured)).unwrap_or_default()
    }
}

impl Serialize for Forecasts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if let Some(declared) = self.declared {
            map.serialize_entry("declared", &declared)?;
        }
        for (estimator, says) in self.estimates.iter() {
            map.serialize_entry(estimator.name(), &says)?;
        }
        if let Some(computed) = &self.computed {
            map.serialize_entry("computed", computed)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Forecasts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ByName)
    }
}

/// Reads forecasts by name. A name that is not known is passed over, so that an older carma reads what a newer one wrote.
struct ByName;

impl<'de> Visitor<'de> for ByName {
    type Value = Forecasts;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("forecasts by source")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Forecasts, A::Error> {
        let (mut declared, mut computed) = (None, None);
        let mut says: [Option<Option<MiB>>; Estimator::ALL.len()] = [None; Estimator::ALL.len()];
        while let Some(name) = map.next_key::<String>()? {
            match (name.as_str(), Estimator::named(&name)) {
                (_, Some(estimator)) => {
                    set(&mut says[estimator as usize], estimator.name(), map.next_value()?)?
                }
                ("declared", None) => set(&mut declared, "declared", map.next_value()?)?,
                ("computed", None) => set(&mut computed, "computed", map.next_value()?)?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        let estimates = Estimates::by(|estimator| says[estimator as usize].flatten());
        Ok(Forecasts { declared: declared.flatten(), estimates, computed: computed.flatten() })
    }
}

/// A name that stands there twice is a mistake.
fn set<T, E: Error>(slot: &mut Option<T>, name: &'static str, value: T) -> Result<(), E> {
    match slot.replace(value) {
        Some(_) => Err(E::duplicate_field(name)),
        None => Ok(()),
    }
}

/// What carma itself computed of a job's memory on each of its GPUs. A float went into it somewhere;
/// what is kept and replayed are these integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Computed {
    /// Below this it cannot run.
    pub need: MiB,
    /// What it takes when memory is free.
    pub likely: MiB,
    /// The bound for admission. It has its margin.
    pub upper: MiB,
    /// What it rests on.
    pub basis: Basis,
    /// Probability with which the bound is meant to hold, percent.
    pub coverage: u8,
    /// Nothing but a hard limit bounds what it may take: `cudnn.benchmark`, several GPUs never seen.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub elastic: bool,
    /// A share, computed for a GPU of so much memory: in proportion on another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of_gpu: Option<MiB>,
}

impl Computed {
    /// Whether it is what earlier runs took, and another amount than was declared, which it goes before.
    #[must_use]
    pub fn overrules(&self, declared: MiB) -> bool {
        self.basis.is_measured() && self.upper != declared
    }
}

/// What a computed forecast rests on, best first. `carma_memory::Tier` has the user's own number too, which is no
/// computed forecast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    /// The same command ran before on the same kind of GPU.
    Exact,
    /// The same program ran before, with another batch size or on another GPU.
    Scaled,
    /// The program's own settings: it takes a share of the GPU, whatever its model.
    Share,
    /// A recorded sequence of allocations.
    Trace,
    /// A graph of operators.
    Graph,
    /// The configuration of a known family.
    Config,
    /// A printed summary.
    Summary,
    /// A few numbers and a formula or a trained network.
    Formula,
}

impl Basis {
    /// Whether runs of the same program were measured.
    #[must_use]
    pub const fn is_measured(self) -> bool {
        matches!(self, Self::Exact | Self::Scaled)
    }
}

impl fmt::Display for Basis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exact => "earlier runs of the same command",
            Self::Scaled => "earlier runs of the same program, scaled",
            Self::Share => "the share of the GPU that the program takes",
            Self::Trace => "allocator model from a trace",
            Self::Graph => "allocator model from the graph",
            Self::Config => "allocator model from the configuration",
            Self::Summary => "allocator model from the summary",
            Self::Formula => "a formula",
        })
    }
}
