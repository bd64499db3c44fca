//! Where a task will run: the GPU, the framework, the CUDA context that they cost.

use crate::alloc::Settings;
use crate::{MiB, Mode};
use carma_hardware::{Fact, Facts, Unmeasured};
use serde::{Deserialize, Serialize};

/// A type of GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// As in carma's GPU models: `A100-40GB`, `H200`.
    pub name: String,
    /// Compute capability, major and minor: decides the size of cuBLAS workspaces.
    pub compute_capability: (u8, u8),
    /// All of its memory.
    pub total_mib: MiB,
}

/// GPU, framework, context, and settings of the allocator.
#[derive(Debug, Clone, PartialEq)]
pub struct Platform {
    /// The GPU.
    pub gpu: Gpu,
    /// Version of PyTorch, major and minor.
    pub torch: (u32, u32),
    /// CUDA context of one process that trains.
    pub context_mib: MiB,
    /// What of it does not come where something is not used.
    pub context_saves: ContextSaves,
    /// Where the context's size comes from: probed, learned, or which row of the table.
    pub context_source: String,
    /// Settings of the caching allocator (`PYTORCH_ALLOC_CONF`).
    pub alloc: Settings,
}

/// Memory that the context lacks where a process does not use something; zero where it was not measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ContextSaves {
    /// No backward pass.
    pub inference: MiB,
    /// No matrix product in a forward pass.
    pub forward_products: MiB,
    /// No matrix product in a backward pass, though there is one.
    pub backward_products: MiB,
}

/// What of a process decides its context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Uses {
    /// A backward pass.
    pub backward: bool,
    /// Matrix products: forward, backward.
    pub products: [bool; 2],
}

impl Uses {
    /// A model of which only the mode is known.
    #[must_use]
    pub const fn of(mode: Mode) -> Self {
        let backward = matches!(mode, Mode::Train);
        Self { backward, products: [true, backward] }
    }
}

/// PyTorch before 1.13 loads all kernels at the start (CUDA before 11.7).
const LAZY_SINCE: (u32, u32) = (1, 13);
/// From here on cuBLASLt shares the workspace of cuBLAS (`TORCH_CUBLASLT_UNIFIED_WORKSPACE`).
const LT_SHARES_SINCE: (u32, u32) = (2, 8);

impl Platform {
    /// The platform of a GPU type by name, with the context of the table. Names may be carma's or the
    /// driver's: `A100-40GB`, `NVIDIA A100-SXM4-40GB`.
    ///
    /// # Errors
    /// A name that the table does not have.
    pub fn lookup(name: &str, torch: (u32, u32)) -> Result<Self, crate::Error> {
        let Some(facts) = Facts::of_product(name) else {
            let names: Vec<_> = Facts::all().iter().map(|facts| &*facts.name).collect();
            return Err(crate::Error::bad(
                format!("GPU type `{name}`"),
                format!("not in the table; there are {}", names.join(", ")),
            ));
        };
        let context = &facts.context.training_mib;
        let mut platform = Self {
            gpu: Gpu {
                name: facts.name.to_string(),
                compute_capability: facts.compute_capability,
                total_mib: MiB(facts.memory_mib),
            },
            torch,
            context_mib: MiB(context.value as u64),
            context_saves: ContextSaves {
                inference: facts
                    .context
                    .inference_mib
                    .as_ref()
                    .map_or(MiB::ZERO, |fact| MiB(context.value as u64) - MiB(fact.value as u64)),
                forward_products: saved(facts.context.forward_products_mib.as_ref()),
                backward_products: saved(facts.context.backward_products_mib.as_ref()),
            },
            context_source: format!("table, {}: {}", facts.name, context.source),
            alloc: Settings::default(),
        };
        platform.loads_eagerly();
        Ok(platform)
    }

    /// The platform of a GPU that the table does not have: a wide context.
    #[must_use]
    pub fn unknown(gpu: Gpu, torch: (u32, u32)) -> Self {
        let context_source = format!("{} is not in the table: as much as a large GPU takes", gpu.name);
        let context_mib = MiB(Unmeasured::get().training_mib.value as u64);
        let context_saves = ContextSaves::default();
        let alloc = Settings::default();
        let mut platform = Self { gpu, torch, context_mib, context_saves, context_source, alloc };
        platform.loads_eagerly();
        platform
    }

    fn loads_eagerly(&mut self) {
        if self.torch < LAZY_SINCE {
            let eager = &Unmeasured::get().eager_mib;
            self.context_saves = ContextSaves::default();
            self.context_mib = MiB(eager.value as u64);
            self.context_source = format!(
                "PyTorch {}.{} loads all kernels at the start: {}",
                self.torch.0, self.torch.1, eager.source
            );
        }
    }

    /// The context of a process that uses this much.
    #[must_use]
    pub fn context(&self, uses: Uses) -> MiB {
        let saves = &self.context_saves;
        let mut saved = if uses.backward { MiB::ZERO } else { saves.inference };
        if !uses.products[0] {
            saved += saves.forward_products;
        }
        if uses.backward && !uses.products[1] {
            saved += saves.backward_products;
        }
        self.context_mib - saved
    }

    /// What the allocator of one process can hold: what the context leaves of the GPU, and the share of it that
    /// `per_process_memory_fraction` sets.
    #[must_use]
    pub fn room(&self) -> MiB {
        let beside = self.gpu.total_mib - self.context_mib;
        self.fraction().map_or(beside, |fraction| fraction.min(beside))
    }

    /// The share that `per_process_memory_fraction` sets; PyTorch counts no context in it.
    pub(crate) fn fraction(&self) -> Option<MiB> {
        let total = self.gpu.total_mib.0 as f64;
        Some(MiB((self.alloc.memory_fraction? * total) as u64))
    }

    /// Bytes that cuBLASLt takes for each product with a bias, for as long as the product runs; none where
    /// it shares the workspace of cuBLAS. 1 MiB is right for GPUMemNet's campaign, to the MiB.
    #[must_use]
    pub fn lt_workspace_bytes(&self) -> u64 {
        if self.torch < LT_SHARES_SINCE { crate::MIB } else { 0 }
    }
}

fn saved(fact: Option<&Fact>) -> MiB {
    fact.map_or(MiB::ZERO, |fact| MiB(fact.value as u64))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// What is printed and reckoned with, of every kind: the table's, another's, none's, an old release's.
    #[test]
    fn facts_of_the_table_are_those_of_the_platform() {
        let h200 = Platform::lookup("NVIDIA H200", (2, 11)).unwrap();
        assert_eq!(
            h200.gpu,
            Gpu { name: "H200".into(), compute_capability: (9, 0), total_mib: MiB(143_771) }
        );
        assert_eq!(h200.context_mib, MiB(758));
        assert_eq!(
            h200.context_source,
            "table, H200: measured: 742 to 764 MiB in fresh processes that trained (docs/research/datasets.md), driver 580, PyTorch 2.11"
        );
        let a6000 = Platform::lookup("NVIDIA RTX A6000", (2, 11)).unwrap();
        assert_eq!(
            (a6000.gpu.compute_capability, a6000.gpu.total_mib, a6000.context_mib),
            ((8, 6), MiB(49_140), MiB(450))
        );
        assert_eq!(a6000.context_source, "table, RTX-A6000: assumed: between an A100's and an H200's");
        let none = Gpu { name: "Voodoo 2".into(), compute_capability: (9, 0), total_mib: MiB(12) };
        assert_eq!(Platform::unknown(none, (2, 11)).context_mib, MiB(700));
    }

    #[test]
    fn a_context_has_what_is_used() {
        let h200 = Platform::lookup("H200", (2, 11)).unwrap();
        let of = |backward, products| h200.context(Uses { backward, products }).0;
        assert_eq!([of(true, [true, true]), of(false, [true, false])], [758, 686]);
        // As measured of convolutions alone: 630 and 622.
        assert_eq!([of(true, [false, false]), of(false, [false, false])], [628, 620]);
        assert_eq!(Uses::of(Mode::Infer), Uses { backward: false, products: [true, false] });
        // Not measured there.
        let v100 = Platform::lookup("V100-16GB", (2, 11)).unwrap();
        assert_eq!(v100.context(Uses { backward: false, products: [false, false] }), v100.context_mib);
    }

    #[test]
    fn a_name_that_is_not_there_is_said() {
        let error = Platform::lookup("Voodoo 2", (2, 11)).unwrap_err().to_string();
        let types = "H200, H100-80GB, A100-40GB, A100-80GB, A30, A10, A40, L4, L40S, T4, V100-16GB, V100-32GB, \
            P100-16GB, RTX6000-Ada, RTX-A6000, RTX-3090, RTX-4090, RTX-2080Ti";
        assert!(error.contains("Voodoo 2") && error.contains(types), "{error}");
    }

    #[test]
    fn old_releases_load_all_kernels() {
        let old = Platform::lookup("H200", (1, 12)).unwrap();
        assert_eq!(old.context_mib, MiB(1429));
        assert_eq!(old.context_source, "PyTorch 1.12 loads all kernels at the start: as measured on an A100");
        assert_eq!(Platform::lookup("A100", (2, 6)).unwrap().context_mib, MiB(524));
    }
}
