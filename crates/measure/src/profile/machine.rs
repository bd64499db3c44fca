//! The GPUs to profile on, and whether one of them is free.

use crate::Error;
use carma_api::Client;
use carma_api::wire::GpusReply;
use carma_core::reading::{GpuInfo, GpuReading, Health};
use carma_core::units::Millis;
use carma_gpu::nvml::{self, NvmlOptions, parse_visible};
use carma_gpu::{Mps, MpsOptions, Probe, Sharing};
use carma_process::process;
use carma_virtual_gpu::{VirtualGpus, VirtualSpec};
use std::path::Path;

/// The GPUs, real or virtual.
pub(super) struct Machine {
    pub(super) probe: Box<dyn Probe>,
    pub(super) sharing: Box<dyn Sharing>,
    /// What a task needs in its environment to find them.
    pub(super) env: Vec<(String, String)>,
    /// Hosts virtual GPUs as long as it lives.
    hosted: Option<VirtualGpus>,
}

impl Machine {
    /// Opens the GPUs that `spec` names. `dir`: a short path, for sockets.
    pub(super) fn open(spec: &str, dir: &Path) -> Result<Self, Error> {
        if spec.starts_with("virtual:") {
            let spec: VirtualSpec = spec.parse().map_err(|e| Error::usage(format!("--gpus: {e}")))?;
            let host =
                VirtualGpus::start(&spec, &dir.join("v"), 1.0).map_err(|e| Error::new(e.to_string()))?;
            return Ok(Self {
                probe: Box::new(host.probe()),
                sharing: Box::new(host.mps()),
                env: host.env_for_jobs(),
                hosted: Some(host),
            });
        }
        if !matches!(spec, "auto" | "nvml") {
            return Err(Error::usage(format!(
                "--gpus {spec}: expected auto, nvml or virtual:NxTYPE, e.g. virtual:1xH200"
            )));
        }
        let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok().map(|list| parse_visible(&list));
        let probe = nvml::open(&NvmlOptions { visible, ..NvmlOptions::default() })
            .map_err(|e| Error::new(e.to_string()))?;
        Ok(Self {
            probe: Box::new(probe),
            sharing: Box::new(Mps::new(MpsOptions::new(dir.join("mps")))),
            env: Vec::new(),
            hosted: None,
        })
    }

    /// Whether the GPUs are a model.
    pub(super) const fn is_virtual(&self) -> bool {
        self.hosted.is_some()
    }

    /// Where in the inventory the GPU stands, and how it reads before anything is started.
    ///
    /// # Errors
    /// A name that fits none or several; a GPU that cannot be read, or that others use.
    pub(super) fn choose(
        &mut self,
        socket: &Path,
        name: Option<&str>,
        shared_ok: bool,
    ) -> Result<Chosen, Error> {
        let inventory = self.probe.inventory().to_vec();
        let readings = self.probe.tick(Millis::ZERO).gpus;
        let jobs = if self.is_virtual() { Vec::new() } else { daemons_view(socket) };
        let used_by = |at: usize| {
            let mut users: Vec<String> = readings.get(at).map(|r| self.strangers(r)).unwrap_or_default();
            let uuid = inventory.get(at).map(|gpu| &*gpu.uuid);
            if let Some((_, tenants, _)) = jobs.iter().find(|(known, ..)| Some(known.as_str()) == uuid) {
                users.extend(tenants.iter().map(|id| format!("job {id} of the carma daemon")));
            }
            users
        };
        let at = match name {
            Some(name) => named(&inventory, name)?,
            None => (0..inventory.len()).find(|at| used_by(*at).is_empty()).unwrap_or(0),
        };
        let gpu = inventory.get(at).cloned().ok_or_else(|| Error::new("there is no GPU here"))?;
        let before = readings.get(at).cloned().unwrap_or_else(|| {
            GpuReading::empty(gpu.uuid.clone(), Health::Unreadable("it gave no reading".to_owned()))
        });
        if let Health::Lost(why) | Health::Unreadable(why) = &before.health {
            return Err(Error::new(format!("GPU {} cannot be read: {why}", gpu.index)));
        }
        let users = used_by(at);
        if !users.is_empty() && !shared_ok {
            let message = format!("GPU {} ({}) is in use: {}", gpu.index, gpu.name, users.join(", "));
            return Err(Error::busy(message).hint("a profile is of a task alone: wait, choose another with --gpu, or measure anyway with --shared-ok"));
        }
        let drained = jobs.iter().find(|(uuid, ..)| *uuid == *gpu.uuid).map(|(_, _, drained)| *drained);
        Ok(Chosen { at, gpu, before, users, open_to_daemon: drained == Some(false) })
    }

    /// Processes on a GPU that are not the sharing machinery's, in words.
    fn strangers(&self, reading: &GpuReading) -> Vec<String> {
        let others = reading.processes.iter().flatten().filter(|p| !self.sharing.is_own_process(p.pid));
        others
            .map(|p| {
                let owner = process::owner(p.pid).map(process::user_name);
                let owner = owner.map_or_else(String::new, |owner| format!(" of {owner}"));
                let held = p.memory.map_or_else(String::new, |memory| format!(" ({memory})"));
                format!("pid {}{owner}{held}", p.pid)
            })
            .collect()
    }
}

/// A GPU to profile on.
#[derive(Debug, Clone)]
pub(super) struct Chosen {
    /// Its place in the inventory and in readings.
    pub(super) at: usize,
    pub(super) gpu: GpuInfo,
    /// How it read before anything was started.
    pub(super) before: GpuReading,
    /// What uses it already, in words.
    pub(super) users: Vec<String>,
    /// Whether a daemon may start jobs on it at any moment.
    pub(super) open_to_daemon: bool,
}

fn named(inventory: &[GpuInfo], name: &str) -> Result<usize, Error> {
    let fits = |gpu: &GpuInfo| match name.parse::<u32>() {
        Ok(index) => gpu.index == index,
        Err(_) => !name.is_empty() && gpu.uuid.starts_with(name),
    };
    let mut found = (0..inventory.len()).filter(|at| inventory.get(*at).is_some_and(fits));
    match (found.next(), found.next()) {
        (Some(at), None) => Ok(at),
        (first, _) => {
            let what = if first.is_some() { "names several GPUs" } else { "names no GPU" };
            let there: Vec<String> = inventory.iter().map(|g| format!("{} {}", g.index, g.uuid)).collect();
            Err(Error::usage(format!("--gpu {name} {what}; there are: {}", there.join(", "))))
        }
    }
}

/// What a daemon has on its GPUs: UUID, jobs, whether it is drained. Nothing where none answers.
fn daemons_view(socket: &Path) -> Vec<(String, Vec<u64>, bool)> {
    let reply = Client::connect(socket).and_then(|mut daemon| daemon.get::<GpusReply>("/v1/gpus"));
    let gpus = reply.map(|reply| reply.gpus).unwrap_or_default();
    gpus.into_iter()
        .filter(|gpu| gpu.kind != "virtual")
        .map(|gpu| {
            let jobs = gpu.tenants.iter().map(|tenant| tenant.job).collect();
            (gpu.uuid, jobs, gpu.status == "drained")
        })
        .collect()
}
