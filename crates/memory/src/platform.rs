//! Where a task will run: the GPU, the framework, the CUDA context that they cost.

use crate::alloc::Settings;
use serde::{Deserialize, Serialize};

/// A type of GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// As in carma's GPU models: `A100-40GB`, `H200`.
    pub name: String,
    /// Compute capability, major and minor: decides the size of cuBLAS workspaces.
    pub compute_capability: (u8, u8),
    /// All of its memory, MiB.
    pub total_mib: u64,
}

/// GPU, framework, context, and settings of the allocator.
#[derive(Debug, Clone, PartialEq)]
pub struct Platform {
    /// The GPU.
    pub gpu: Gpu,
    /// Version of PyTorch, major and minor.
    pub torch: (u32, u32),
    /// CUDA context of one process, MiB.
    pub context_mib: u64,
    /// Where the context's size comes from: probed, learned, or which row of the table.
    pub context_source: String,
    /// Settings of the caching allocator (`PYTORCH_ALLOC_CONF`).
    pub alloc: Settings,
}

/// A row of the table.
struct Row {
    name: &'static str,
    /// Other names, as [`normal`] makes them.
    aliases: &'static [&'static str],
    compute_capability: (u8, u8),
    /// As `nvidia-smi` shows it.
    total_mib: u64,
    /// With lazy loading of kernels, after a matrix product and a convolution.
    context_mib: u64,
    source: &'static str,
}

const ASSUMED: &str = "assumed: between an A100's and an H200's";
/// Where nothing is known: what a large GPU has, rather too much than too little.
const UNKNOWN_CONTEXT_MIB: u64 = 700;
/// PyTorch before 1.13 loads all kernels at the start (CUDA before 11.7).
const LAZY_SINCE: (u32, u32) = (1, 13);
/// Measured so on the A100 of GPUMemNet's campaign (reference, section 4); no other GPU is known.
const EAGER_CONTEXT_MIB: u64 = 1429;
/// From here on cuBLASLt shares the workspace of cuBLAS (`TORCH_CUBLASLT_UNIFIED_WORKSPACE`).
const LT_SHARES_SINCE: (u32, u32) = (2, 8);

const fn row(
    name: &'static str,
    aliases: &'static [&'static str],
    compute_capability: (u8, u8),
    total_mib: u64,
    context_mib: u64,
    source: &'static str,
) -> Row {
    Row { name, aliases, compute_capability, total_mib, context_mib, source }
}

/// GPU types, with the names of carma's GPU models first. The context of the H200 stands here alone.
const TABLE: &[Row] = &[
    row(
        "H200",
        &["H200141GB"],
        (9, 0),
        143_771,
        758,
        "measured: 742 to 764 MiB in fresh processes that trained (docs/research/datasets.md), driver 580, PyTorch 2.11",
    ),
    row(
        "H100-80GB",
        &["H100", "H10080GB"],
        (9, 0),
        81_559,
        758,
        "assumed: as on the H200, the same architecture; 616 MiB are reported for a datacentre GPU (LMCache#4019)",
    ),
    row(
        "A100-40GB",
        &["A100", "A10040GB"],
        (8, 0),
        40_960,
        524,
        "measured less simulated, twelve tasks of CARMA's campaign of September 2025 (reference, section 4)",
    ),
    row("A100-80GB", &["A10080GB"], (8, 0), 81_920, 524, "assumed: as on the A100-40GB, the same chip"),
    row("A30", &["A3024GB"], (8, 0), 24_576, 450, ASSUMED),
    row("A10", &["A10G", "A1024GB"], (8, 6), 23_028, 450, ASSUMED),
    row("A40", &["A4048GB"], (8, 6), 46_068, 450, ASSUMED),
    row("L4", &["L424GB"], (8, 9), 23_034, 450, ASSUMED),
    row(
        "L40S",
        &["L40", "L40S48GB"],
        (8, 9),
        46_068,
        426,
        "426 MiB on an RTX 6000 Ada, the same chip, PyTorch 2.10 (unsloth-zoo#1053)",
    ),
    row("T4", &["T416GB"], (7, 5), 15_360, 450, ASSUMED),
    row(
        "V100-16GB",
        &["V100", "V10016GB"],
        (7, 0),
        16_384,
        450,
        "assumed; 300-400 MiB are reported for PyTorch 1.1 (pytorch#20532)",
    ),
    row(
        "V100-32GB",
        &["V10032GB"],
        (7, 0),
        32_768,
        450,
        "assumed; 300-400 MiB are reported for PyTorch 1.1 (pytorch#20532)",
    ),
    row("P100-16GB", &["P100", "P10016GB"], (6, 0), 16_384, 450, ASSUMED),
    row("RTX6000-Ada", &["RTX6000ADA"], (8, 9), 49_140, 426, "426 MiB, PyTorch 2.10 (unsloth-zoo#1053)"),
    row("RTX-A6000", &["RTXA6000", "A6000"], (8, 6), 49_140, 450, ASSUMED),
    row(
        "RTX-3090",
        &["RTX3090"],
        (8, 6),
        24_576,
        450,
        "assumed; 256 MiB are reported before any kernel ran (InvokeAI#9413)",
    ),
    row(
        "RTX-4090",
        &["RTX4090"],
        (8, 9),
        24_564,
        450,
        "assumed: as on the RTX 6000 Ada, the same chip, and a little more",
    ),
    row("RTX-2080Ti", &["RTX2080TI"], (7, 5), 11_264, 450, ASSUMED),
];

impl Platform {
    /// The platform of a GPU type by name, with the context of the table. Names may be carma's or the
    /// driver's: `A100-40GB`, `NVIDIA A100-SXM4-40GB`.
    ///
    /// # Errors
    /// A name that the table does not have.
    pub fn lookup(name: &str, torch: (u32, u32)) -> Result<Self, crate::Error> {
        let normal = normal(name);
        let found = TABLE
            .iter()
            .find(|row| self::normal(row.name) == normal || row.aliases.contains(&normal.as_str()));
        let Some(row) = found else {
            let names: Vec<_> = TABLE.iter().map(|row| row.name).collect();
            return Err(crate::Error::bad(
                format!("GPU type `{name}`"),
                format!("not in the table; there are {}", names.join(", ")),
            ));
        };
        let mut platform = Self {
            gpu: Gpu {
                name: row.name.to_owned(),
                compute_capability: row.compute_capability,
                total_mib: row.total_mib,
            },
            torch,
            context_mib: row.context_mib,
            context_source: format!("table, {}: {}", row.name, row.source),
            alloc: Settings::default(),
        };
        platform.loads_eagerly();
        Ok(platform)
    }

    /// The platform of a GPU that the table does not have: a wide context.
    #[must_use]
    pub fn unknown(gpu: Gpu, torch: (u32, u32)) -> Self {
        let context_source = format!("{} is not in the table: as much as a large GPU takes", gpu.name);
        let mut platform =
            Self { gpu, torch, context_mib: UNKNOWN_CONTEXT_MIB, context_source, alloc: Settings::default() };
        platform.loads_eagerly();
        platform
    }

    fn loads_eagerly(&mut self) {
        if self.torch < LAZY_SINCE {
            self.context_mib = EAGER_CONTEXT_MIB;
            self.context_source = format!(
                "PyTorch {}.{} loads all kernels at the start: as measured on an A100",
                self.torch.0, self.torch.1
            );
        }
    }

    /// Bytes that cuBLASLt takes for each product with a bias, for as long as the product runs; none where
    /// it shares the workspace of cuBLAS. 1 MiB is right for GPUMemNet's campaign, to the MiB.
    #[must_use]
    pub fn lt_workspace_bytes(&self) -> u64 {
        if self.torch < LT_SHARES_SINCE { crate::MIB } else { 0 }
    }
}

/// Letters and digits of a GPU's name without the maker, the series and the board.
fn normal(name: &str) -> String {
    const IGNORED: &[&str] = &[
        "NVIDIA",
        "VIRTUAL",
        "TESLA",
        "GEFORCE",
        "QUADRO",
        "GPU",
        "SXM",
        "SXM2",
        "SXM3",
        "SXM4",
        "SXM5",
        "PCIE",
        "PCI",
        "E",
        "HBM2",
        "HBM2E",
        "HBM3",
        "HBM3E",
        "GENERATION",
    ];
    let upper = name.to_uppercase();
    let words = upper.split(|c: char| !c.is_ascii_alphanumeric());
    words.filter(|word| !IGNORED.contains(word)).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn names_of_the_driver_are_known() {
        for (driver, ours) in [
            ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
            ("NVIDIA A100 80GB PCIe", "A100-80GB"),
            ("NVIDIA H100 80GB HBM3", "H100-80GB"),
            ("NVIDIA H200", "H200"),
            ("Tesla V100-SXM2-32GB", "V100-32GB"),
            ("Tesla T4", "T4"),
            ("NVIDIA L40S", "L40S"),
            ("NVIDIA RTX 6000 Ada Generation", "RTX6000-Ada"),
            ("NVIDIA GeForce RTX 2080 Ti", "RTX-2080Ti"),
            ("a100-40gb", "A100-40GB"),
        ] {
            assert_eq!(Platform::lookup(driver, (2, 11)).unwrap().gpu.name, ours, "{driver}");
        }
        let error = Platform::lookup("Voodoo 2", (2, 11)).unwrap_err().to_string();
        assert!(error.contains("Voodoo 2") && error.contains("A100-40GB"), "{error}");
    }

    #[test]
    fn old_releases_load_all_kernels() {
        assert_eq!(Platform::lookup("A100", (1, 12)).unwrap().context_mib, EAGER_CONTEXT_MIB);
        assert_eq!(Platform::lookup("A100", (2, 6)).unwrap().context_mib, 524);
    }

    #[test]
    fn rows_have_names_of_their_own() {
        let mut names: Vec<String> = TABLE.iter().map(|row| normal(row.name)).collect();
        names.extend(TABLE.iter().flat_map(|row| row.aliases.iter().map(|a| (*a).to_owned())));
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        // An alias may repeat the row's own name.
        let repeated = TABLE.iter().filter(|row| row.aliases.contains(&normal(row.name).as_str())).count();
        assert_eq!(names.len() + repeated, all);
    }
}
