//! What the GPUs are read to do during a play. Real ones are read here, since the daemon tells means over its window; of
//! virtual ones, which are in the daemon, that has to do.

use super::rows::{GpuSample, Machine, Sample};
use crate::Error;
use carma_api::Client;
use carma_api::wire::GpusReply;
use carma_core::reading::GpuReading;
use carma_core::units::Millis;
use carma_gpu::Probe;
use carma_gpu::nvml::{self, NvmlOptions, parse_visible};
use carma_virtual_gpu::VirtualSpec;
use std::time::{Duration, Instant};

/// The GPUs that tasks are played on.
pub(super) struct Gpus {
    pub(super) machine: Machine,
    /// Memory of the largest, if there is one.
    pub(super) largest_mib: Option<u64>,
    /// Of real GPUs.
    probe: Option<Box<dyn Probe>>,
}

impl Gpus {
    /// Opens them: those that the driver has (of them those in `CUDA_VISIBLE_DEVICES`), or a model.
    pub(super) fn open(spec: &str, speed: Option<u32>) -> Result<Self, Error> {
        let machine = Machine {
            cpus: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            kernel: std::fs::read_to_string("/proc/sys/kernel/osrelease").ok().map(|v| v.trim().to_owned()),
            speed: speed.unwrap_or(1),
            ..Machine::default()
        };
        if spec.starts_with("virtual:") {
            let spec: VirtualSpec = spec.parse().map_err(|e| Error::usage(format!("--gpus: {e}")))?;
            let gpus = spec.gpus();
            let machine = Machine {
                gpus: gpus.iter().map(|gpu| format!("Virtual {}", gpu.model.name)).collect(),
                gpu_memory_mib: gpus.first().map_or(0, |gpu| gpu.model.memory_mib),
                is_virtual: true,
                ..machine
            };
            let largest_mib = gpus.iter().map(|gpu| gpu.model.memory_mib).max();
            return Ok(Self { machine, largest_mib, probe: None });
        }
        if !matches!(spec, "auto" | "nvml") {
            return Err(Error::usage(format!(
                "--gpus {spec}: expected nvml or virtual:NxTYPE, e.g. virtual:4xA100-40GB"
            )));
        }
        if speed.is_some_and(|speed| speed != 1) {
            return Err(Error::usage("--speed is for virtual GPUs only: real time runs as it does"));
        }
        let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok().map(|list| parse_visible(&list));
        let probe = nvml::open(&NvmlOptions { visible, ..NvmlOptions::default() })
            .map_err(|e| Error::new(e.to_string()))?;
        let machine = Machine {
            gpus: probe.inventory().iter().map(|gpu| gpu.name.clone()).collect(),
            gpu_memory_mib: probe.inventory().first().map_or(0, |gpu| gpu.memory.0),
            driver: Some(probe.driver_version().to_owned()),
            ..machine
        };
        if machine.gpus.is_empty() {
            return Err(
                Error::new("there is no GPU here").hint("--gpus virtual:4xA100-40GB rehearses without one")
            );
        }
        let largest_mib = probe.inventory().iter().map(|gpu| gpu.memory.0).max();
        Ok(Self { machine, largest_mib, probe: Some(Box::new(probe)) })
    }

    /// How many there are.
    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.machine.gpus.len()).unwrap_or(u32::MAX)
    }

    /// Reads them. `at_s`: now, on the clock of the play.
    pub(super) fn sample(&mut self, client: &mut Client, at_s: f64) -> Result<Sample, Error> {
        let gpus = match &mut self.probe {
            Some(probe) => probe.tick(Millis::ZERO).gpus.iter().map(real).collect(),
            None => read(client)?.gpus.iter().map(modelled).collect(),
        };
        Ok(Sample { at_s, gpus })
    }
}

fn real(reading: &GpuReading) -> GpuSample {
    GpuSample {
        smact: reading.activity.smact.map(|share| share.to_f64()),
        power_w: reading.power_mw.map(|mw| f64::from(mw) / 1000.0),
        energy_j: reading.energy_mj.map(|mj| mj as f64 / 1000.0),
        used_mib: reading.memory_used.map(|used| used.0),
    }
}

fn modelled(gpu: &carma_api::wire::GpuView) -> GpuSample {
    GpuSample {
        smact: gpu.smact,
        power_w: gpu.power_w,
        energy_j: gpu.energy_j,
        used_mib: gpu.memory_used_mib,
    }
}

/// What the daemon says of its GPUs.
pub(super) fn read(client: &mut Client) -> Result<GpusReply, Error> {
    client.get("/v1/gpus").map_err(|e| Error::new(e.to_string()))
}

/// Waits until all GPUs can be read and no process is on them; the daemon's clock then, ms.
///
/// # Errors
/// The processes that are on them all the same.
pub(super) fn free(client: &mut Client, patience: Duration) -> Result<u64, Error> {
    let until = Instant::now() + patience;
    loop {
        let reply = read(client)?;
        let unread: Vec<String> = reply.gpus.iter().filter(|gpu| gpu.status != "ok").map(status).collect();
        let users: Vec<String> = reply.gpus.iter().flat_map(strangers).collect();
        if unread.is_empty() && users.is_empty() {
            return Ok(reply.now_ms);
        }
        if Instant::now() > until {
            return Err(if users.is_empty() {
                Error::new(format!("the GPUs cannot be read: {}", unread.join(", ")))
            } else {
                Error::busy(format!("the GPUs are in use: {}", users.join(", ")))
                    .hint("no other work may run meanwhile: wait, or name free GPUs in CUDA_VISIBLE_DEVICES")
            });
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn status(gpu: &carma_api::wire::GpuView) -> String {
    format!("GPU {} is {}", gpu.index, gpu.status_text.as_ref().unwrap_or(&gpu.status))
}

fn strangers(gpu: &carma_api::wire::GpuView) -> Vec<String> {
    let words = |f: &carma_api::wire::ForeignView| {
        let of = f.user.as_ref().map_or_else(String::new, |user| format!(" of {user}"));
        let held = f.memory_mib.map_or_else(String::new, |mib| format!(" ({mib} MiB)"));
        format!("pid {}{of}{held} on GPU {}", f.pid, gpu.index)
    };
    gpu.foreign.iter().map(words).collect()
}
