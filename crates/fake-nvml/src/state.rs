//! What the fake driver says of its GPUs: the contents of the state file.
//!
//! Every field can be left out of the JSON; it then has the value of `Default`. `null` where a
//! number is optional means that the driver does not support the reading.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{Error, Result};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

/// A machine as its NVIDIA driver sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct State {
    /// Driver version, e.g. `580.159`.
    pub driver_version: String,
    /// The GPUs, in the order of their indices. One that a client holds a handle to and that is
    /// taken off this list has fallen off the bus.
    pub gpus: Vec<FakeGpu>,
    /// What goes wrong, by function: the exact symbol, or its name without `_v2`, `_v3` for all
    /// versions.
    pub faults: BTreeMap<String, Fault>,
}

/// How a function misbehaves. With both effects it hangs first and then returns the code.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Fault {
    /// UUID of the only GPU (with its MIG instances) or MIG instance concerned; `null`: all.
    pub gpu: Option<String>,
    /// The `nvmlReturn_t` to return, e.g. 3 not supported, 4 no permission, 15 GPU is lost.
    #[serde(rename = "return")]
    pub code: Option<u32>,
    /// Milliseconds to hang; the call comes back early when the fault is taken from the file.
    pub hang_ms: Option<u64>,
}

/// One GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FakeGpu {
    /// UUID, e.g. `GPU-0a...`.
    pub uuid: String,
    /// Product name.
    pub name: String,
    /// CUDA compute capability, major and minor.
    pub compute_capability: (i32, i32),
    /// Memory, MiB.
    pub memory_total_mib: u64,
    /// Memory in use without what the driver reserves, MiB; `null`: what the processes hold.
    pub memory_used_mib: Option<u64>,
    /// Memory that the driver keeps for itself, MiB.
    pub reserved_mib: u64,
    /// Power draw, milliwatts.
    pub power_mw: Option<u32>,
    /// Energy counter, millijoules.
    pub energy_mj: Option<u64>,
    /// "GPU utilisation", percent.
    pub utilization: Option<u32>,
    /// "Memory utilisation", percent; told together with the other.
    pub memory_utilization: u32,
    /// Clock of the SMs, MHz.
    pub sm_clock_mhz: Option<u32>,
    /// Clock of the memory.
    pub memory_clock_mhz: Option<u32>,
    /// Temperature, degrees Celsius.
    pub temperature: Option<u32>,
    /// Who holds memory on it.
    pub processes: Vec<FakeProcess>,
    /// GPM metrics; `null`: not supported, as before Hopper.
    pub gpm: Option<FakeGpm>,
    /// MIG instances; `null`: MIG mode is off.
    pub mig: Option<Vec<FakeMig>>,
}

/// A MIG instance (one compute instance that fills its GPU instance).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FakeMig {
    /// UUID, e.g. `MIG-0a...`.
    pub uuid: String,
    /// Profile name, e.g. `1g.18gb`.
    pub profile: String,
    /// Memory, MiB.
    pub memory_total_mib: u64,
    /// Memory in use, MiB; `null`: what the processes hold.
    pub memory_used_mib: Option<u64>,
    /// Who holds memory on it.
    pub processes: Vec<FakeProcess>,
    /// GPU instance id.
    pub gpu_instance_id: u32,
    /// GPM metrics; `null`: those of the GPU.
    pub gpm: Option<FakeGpm>,
}

/// A process that holds GPU memory.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FakeProcess {
    /// Process id.
    pub pid: u32,
    /// What it holds, MiB; `null`: the driver does not tell.
    pub used_mib: Option<u64>,
    /// An MPS client: listed as a compute process and as an MPS process.
    pub mps: bool,
    /// Listed as a graphics process instead of a compute process.
    pub graphics: bool,
}

/// What GPM reports: shares in percent (0..100), traffic in MiB/s; `null`: that metric is not
/// supported. A metric of two samples is the mean of what they held.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "the names are the metrics'")]
pub struct FakeGpm {
    pub gract: Option<f64>,
    pub smact: Option<f64>,
    pub smocc: Option<f64>,
    pub drama: Option<f64>,
    pub tensor: Option<f64>,
    pub fp64: Option<f64>,
    pub fp32: Option<f64>,
    pub fp16: Option<f64>,
    pub pcie_tx: Option<f64>,
    pub pcie_rx: Option<f64>,
}

impl Default for State {
    fn default() -> Self {
        Self { driver_version: "580.159".to_owned(), gpus: Vec::new(), faults: BTreeMap::new() }
    }
}

impl Default for FakeGpu {
    /// An idle H200.
    fn default() -> Self {
        Self {
            uuid: "GPU-00000000-0000-0000-0000-000000000000".to_owned(),
            name: "NVIDIA H200".to_owned(),
            compute_capability: (9, 0),
            memory_total_mib: 143_771,
            memory_used_mib: None,
            reserved_mib: 608,
            power_mw: Some(75_000),
            energy_mj: Some(0),
            utilization: Some(0),
            memory_utilization: 0,
            sm_clock_mhz: Some(1_980),
            memory_clock_mhz: Some(3_201),
            temperature: Some(30),
            processes: Vec::new(),
            gpm: Some(FakeGpm::all(0.0)),
            mig: None,
        }
    }
}

impl Default for FakeMig {
    /// An idle seventh of an H200.
    fn default() -> Self {
        Self {
            uuid: "MIG-00000000-0000-0000-0000-000000000000".to_owned(),
            profile: "1g.18gb".to_owned(),
            memory_total_mib: 16_384,
            memory_used_mib: None,
            processes: Vec::new(),
            gpu_instance_id: 7,
            gpm: None,
        }
    }
}

impl FakeGpm {
    /// Every metric at the same value.
    #[must_use]
    pub fn all(value: f64) -> Self {
        let v = Some(value);
        Self {
            gract: v,
            smact: v,
            smocc: v,
            drama: v,
            tensor: v,
            fp64: v,
            fp32: v,
            fp16: v,
            pcie_tx: v,
            pcie_rx: v,
        }
    }

    /// A metric by its number in NVML.
    pub(crate) fn metric(&self, id: u32) -> Option<f64> {
        match id {
            1 => self.gract,
            2 => self.smact,
            3 => self.smocc,
            5 => self.tensor,
            10 => self.drama,
            11 => self.fp64,
            12 => self.fp32,
            13 => self.fp16,
            20 => self.pcie_tx,
            21 => self.pcie_rx,
            _ => None,
        }
    }
}

/// `used`, or what the processes hold.
pub(crate) fn used_mib(used: Option<u64>, processes: &[FakeProcess]) -> u64 {
    let held = || processes.iter().filter_map(|p| p.used_mib);
    used.unwrap_or_else(|| held().fold(0, u64::saturating_add))
}

impl State {
    /// A machine with these GPUs.
    #[must_use]
    pub fn of(gpus: Vec<FakeGpu>) -> Self {
        Self { gpus, ..Self::default() }
    }

    /// Writes the state file atomically: a reader sees the old or the new one, whole.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        static WRITES: AtomicU32 = AtomicU32::new(0);
        let write = WRITES.fetch_add(1, Ordering::Relaxed);
        let new = path.with_extension(format!("{}-{write}.new", std::process::id()));
        std::fs::write(&new, serde_json::to_vec_pretty(self).map_err(Error::other)?)?;
        std::fs::rename(&new, path)
    }

    /// Adds a fault for a function (see [`State::faults`]).
    #[must_use]
    pub fn with_fault(mut self, function: &str, fault: Fault) -> Self {
        self.faults.insert(function.to_owned(), fault);
        self
    }

    /// The fault that concerns a call of `function` on a device with one of these `uuids`.
    pub(crate) fn fault(&self, function: &str, uuids: &[&str]) -> Option<&Fault> {
        let base = function.trim_end_matches(|c: char| c.is_ascii_digit());
        let base = base.strip_suffix("_v").unwrap_or(function);
        [function, base]
            .iter()
            .filter_map(|name| self.faults.get(*name))
            .find(|fault| fault.gpu.as_deref().is_none_or(|gpu| uuids.contains(&gpu)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_file_says_only_what_matters() {
        let state: State = serde_json::from_str(
            r#"{
                "gpus": [
                    {"uuid": "GPU-a", "memory_used_mib": 5838, "power_mw": 523000,
                     "processes": [{"pid": 4711, "used_mib": 5200, "mps": true}],
                     "gpm": {"gract": 99.9, "smact": 89.7, "smocc": 34.6, "drama": 26.7}},
                    {"uuid": "GPU-b", "gpm": null,
                     "mig": [{"uuid": "MIG-c", "profile": "1g.18gb", "gpu_instance_id": 9}]}
                ],
                "faults": {
                    "nvmlDeviceGetMemoryInfo": {"return": 15, "gpu": "GPU-b"},
                    "nvmlDeviceGetPowerUsage": {"hang_ms": 60000}
                }
            }"#,
        )
        .unwrap();
        assert_eq!(state.gpus[0].name, "NVIDIA H200");
        assert_eq!(used_mib(None, &state.gpus[0].processes), 5_200);
        let text = serde_json::to_string(&state).unwrap();
        assert_eq!(serde_json::from_str::<State>(&text).unwrap(), state);

        let code = |function, uuids: [&str; 2]| state.fault(function, &uuids).map(|f| f.code);
        assert_eq!(code("nvmlDeviceGetMemoryInfo_v2", ["GPU-b", "MIG-c"]), Some(Some(15)));
        assert_eq!(code("nvmlDeviceGetMemoryInfo", ["GPU-a", "GPU-a"]), None);
        assert_eq!(code("nvmlDeviceGetPowerUsage", ["GPU-a", "GPU-a"]), Some(None));
        assert!(serde_json::from_str::<State>(r#"{"gpus": [{"uid": 1}]}"#).is_err());
    }
}
