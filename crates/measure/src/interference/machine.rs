//! The GPU to measure on, real or virtual.

use super::Options;
use crate::Error;
use carma_core::reading::{GpuInfo, GpuReading};
use carma_core::units::Millis;
use carma_gpu::nvml::{self, NvmlOptions, parse_visible};
use carma_gpu::{Mps, MpsOptions, Probe, Sharing, SharingRequest};
use carma_interference::measured::Machine;
use carma_virtual_gpu::{VirtualGpus, VirtualSpec};
use std::path::Path;

/// One GPU.
pub(super) struct Gpu {
    pub(super) info: GpuInfo,
    pub(super) machine: Machine,
    /// What tasks need to find it.
    pub(super) env: Vec<(String, String)>,
    probe: Box<dyn Probe>,
    sharing: Box<dyn Sharing>,
    /// Hosts virtual GPUs as long as it lives.
    host: Option<VirtualGpus>,
}

impl Gpu {
    /// Opens the GPU that is meant. `folder` is for sockets.
    pub(super) fn open(options: &Options, which: Option<&str>, folder: &Path) -> Result<Self, Error> {
        let mut gpu = match options.gpus.as_str() {
            "nvml" | "auto" if options.speed.is_some() => {
                return Err(Error::usage("--speed is for virtual GPUs only: real time runs as it does"));
            }
            "nvml" | "auto" => Self::nvml(options, which, folder)?,
            spec if spec.starts_with("virtual:") => Self::virtual_gpu(options, spec, which, folder)?,
            other => {
                return Err(Error::usage(format!(
                    "--gpus {other}: expected nvml or virtual:NxTYPE, e.g. virtual:1xH200"
                )));
            }
        };
        gpu.machine = Machine {
            gpu: gpu.info.name.clone(),
            gpu_memory_mib: gpu.info.memory.0,
            cpus: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            kernel: std::fs::read_to_string("/proc/sys/kernel/osrelease").ok().map(|v| v.trim().to_owned()),
            ..gpu.machine
        };
        gpu.env.push(("CUDA_VISIBLE_DEVICES".into(), gpu.info.uuid.to_string()));
        Ok(gpu)
    }

    fn nvml(options: &Options, which: Option<&str>, folder: &Path) -> Result<Self, Error> {
        // An outer limit, of a Slurm allocation say, is ours too.
        let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok().map(|v| parse_visible(&v));
        let limited = visible.is_some();
        let open = |visible| {
            nvml::open(&NvmlOptions { visible, ..NvmlOptions::default() })
                .map_err(|e| Error::new(e.to_string()))
        };
        let probe = open(visible)?;
        let info = choose(probe.inventory(), which)?;
        let all: Vec<_> = probe.inventory().iter().map(|gpu| gpu.uuid.clone()).collect();
        // Only this one is read from now on: others would cost time.
        let probe = open(Some(vec![info.uuid.to_string()]))?;
        let mut mps = MpsOptions::new(folder.join("mps"));
        mps.control.clone_from(&options.mps_control);
        if limited {
            mps.gpus = all;
        }
        let driver = Some(probe.driver_version().to_owned());
        Ok(Self {
            info,
            machine: Machine { driver, ..Machine::default() },
            env: Vec::new(),
            probe: Box::new(probe),
            sharing: Box::new(Mps::new(mps)),
            host: None,
        })
    }

    fn virtual_gpu(options: &Options, spec: &str, which: Option<&str>, folder: &Path) -> Result<Self, Error> {
        let spec: VirtualSpec = spec.parse().map_err(|e| Error::usage(format!("--gpus: {e}")))?;
        let speed = f64::from(options.speed.unwrap_or(1));
        let host =
            VirtualGpus::start(&spec, &folder.join("gpus"), speed).map_err(|e| Error::new(e.to_string()))?;
        Ok(Self {
            info: choose(host.inventory(), which)?,
            machine: Machine::default(),
            env: host.env_for_jobs(),
            probe: Box::new(host.probe()),
            sharing: Box::new(host.mps()),
            host: Some(host),
        })
    }

    /// Virtual seconds a second; 1 for a real GPU.
    pub(super) fn speed(&self) -> f64 {
        self.host.as_ref().map_or(1.0, VirtualGpus::speed)
    }

    /// Reads the GPU; activity is that since the last time.
    pub(super) fn read(&mut self) -> Option<GpuReading> {
        let snapshot = self.probe.tick(Millis::ZERO);
        snapshot.gpus.into_iter().find(|reading| reading.uuid == self.info.uuid)
    }

    /// Whether a process is an MPS server, which holds memory and does nothing by itself.
    pub(super) fn is_own_process(&self, pid: u32) -> bool {
        self.sharing.is_own_process(pid)
    }

    /// Environment of an MPS client with that share of the threads; the daemon runs from now on.
    pub(super) fn mps(&self, pct: Option<u8>) -> Result<Vec<(String, String)>, Error> {
        let request = SharingRequest {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            gpus: vec![self.info.uuid.clone()],
            cap: None,
            thread_percent: pct,
        };
        let grant = self.sharing.prepare(&request).map_err(|e| {
            Error::new(format!("MPS cannot be had: {e}")).hint("--sharing time-slice measures without it")
        })?;
        Ok(grant.env)
    }

    /// Ends MPS once its clients have left.
    pub(super) fn end_mps(&self) {
        self.sharing.shutdown(&[]);
    }
}

fn choose(inventory: &[GpuInfo], which: Option<&str>) -> Result<GpuInfo, Error> {
    let found = match which {
        None => inventory.first(),
        Some(name) => inventory.iter().find(|gpu| *gpu.uuid == *name || gpu.index.to_string() == name),
    };
    found.cloned().ok_or_else(|| {
        let known: Vec<String> =
            inventory.iter().map(|gpu| format!("{} ({})", gpu.index, gpu.uuid)).collect();
        Error::usage(format!("there is no GPU `{}`; there are: {}", which.unwrap_or(""), known.join(", ")))
    })
}
