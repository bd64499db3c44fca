//! One GPU or MIG instance: what it is and how it is read.

use super::gpm::{Gpm, share};
use super::visible::Names;
use carma_core::reading::{Activity, GpuInfo, GpuKind, GpuReading, Health, ProcessReading};
use carma_core::units::MiB;
use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::Clock;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::structs::device::MigMode;
use nvml_wrapper_sys::bindings::{NVML_DEVICE_MIG_ENABLE, nvmlMemory_t};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A device and what has to be remembered between its readings.
pub(super) struct Device<'n> {
    pub(super) info: GpuInfo,
    /// Index and UUID of the GPU, which is the device itself or the one that it is a slice of.
    gpu: (u32, String),
    nvml: nvml_wrapper::Device<'n>,
    gpm: Option<Gpm<'n>>,
    /// Whether it could be switched into MIG mode while it is read.
    may_split: bool,
}

impl<'n> Device<'n> {
    /// The devices on the GPU with number `gpu`: itself, or its MIG instances. Theirs are the
    /// numbers from `index` on. An instance of several compute instances is left out, with a warning in the log.
    pub(super) fn of_gpu(nvml: &'n Nvml, gpu: u32, index: u32) -> Result<Vec<Self>, NvmlError> {
        let device = nvml.device_by_index(gpu)?;
        let gpu = (gpu, device.uuid()?);
        let mode = device.mig_mode();
        if !mode.as_ref().is_ok_and(|mode| mode.current == NVML_DEVICE_MIG_ENABLE) {
            let gpm = Gpm::open(nvml, nvml.device_by_index(gpu.0)?, None);
            let whole = Self::new(device, GpuKind::Whole, gpu, gpm, index)?;
            let may_split = mode.err().is_none_or(|error| !is_missing(&error));
            return Ok(vec![Self { may_split, ..whole }]);
        }
        let mut instances = Vec::new();
        for slot in 0..device.mig_device_count()? {
            match device.mig_device_by_index(slot) {
                Ok(mig) => instances.push((gpu_instance_id(&mig).ok(), mig)),
                // Slots are numbered up to the most that fit; not all are filled.
                Err(NvmlError::NotFound | NvmlError::InvalidArg) => {}
                Err(error) => return Err(error),
            }
        }
        let mut parts = BTreeMap::new();
        for id in instances.iter().filter_map(|(id, _)| *id) {
            *parts.entry(id).or_insert(0) += 1;
        }
        // Each would be listed with all of the memory, which they have in common.
        parts.retain(|_, parts| *parts > 1);
        for (id, parts) in &parts {
            tracing::warn!(
                "GPU {}: its MIG instance {id} is left out, since its {parts} compute instances share one memory; give it a single one (nvidia-smi mig -cci) and restart carma",
                gpu.0
            );
        }
        let mut found = Vec::new();
        for (id, mig) in instances {
            if id.is_some_and(|id| parts.contains_key(&id)) {
                continue;
            }
            let kind = GpuKind::Mig { parent: gpu.1.clone(), profile: profile(&mig)? };
            let parent = nvml.device_by_index(gpu.0)?;
            let gpm = id.and_then(|id| Gpm::open(nvml, parent, Some(id)));
            found.push(Self::new(mig, kind, gpu.clone(), gpm, index + found.len() as u32)?);
        }
        Ok(found)
    }

    fn new(
        nvml: nvml_wrapper::Device<'n>,
        kind: GpuKind,
        gpu: (u32, String),
        gpm: Option<Gpm<'n>>,
        index: u32,
    ) -> Result<Self, NvmlError> {
        let info = GpuInfo {
            uuid: nvml.uuid()?.into(),
            index,
            name: nvml.name()?,
            // Rounded down, as memory in use is rounded up: never promise what is not there.
            memory: MiB(memory(&nvml)?.0 >> 20),
            kind,
            has_activity: gpm.is_some(),
            no_mps: no_mps(&nvml),
        };
        Ok(Self { info, gpu, nvml, gpm, may_split: false })
    }

    /// What an entry of `CUDA_VISIBLE_DEVICES` may call it.
    pub(super) fn names(&self) -> Names<'_> {
        Names { gpu: self.gpu.0, gpu_uuid: &self.gpu.1, uuid: &self.info.uuid }
    }

    /// Reads the device now.
    pub(super) fn read(&mut self) -> GpuReading {
        self.try_read().unwrap_or_else(|error| {
            let slice = self.info.is_mig();
            let health = match error {
                NvmlError::GpuLost | NvmlError::ResetRequired => Health::Lost(error.to_string()),
                NvmlError::InvalidArg | NvmlError::NotFound if slice => Health::Lost(format!(
                    "the MIG instance is gone ({error}); restart carma to see the new layout"
                )),
                _ => Health::Unreadable(format!("its memory cannot be read: {error}")),
            };
            GpuReading::empty(self.info.uuid.clone(), health)
        })
    }

    /// Fails if the device is lost or its memory, without which nothing can be decided, is unknown.
    fn try_read(&mut self) -> Result<GpuReading, NvmlError> {
        let is_split = |mode: MigMode| mode.current == NVML_DEVICE_MIG_ENABLE;
        if self.may_split && optional(self.nvml.mig_mode())?.is_some_and(is_split) {
            let why = "it is in MIG mode now; restart carma to see its instances";
            return Ok(GpuReading::empty(self.info.uuid.clone(), Health::Lost(why.to_owned())));
        }
        let (total, free) = memory(&self.nvml)?;
        let activity = match &mut self.gpm {
            Some(gpm) => optional(gpm.read())?.unwrap_or_default(),
            None => Activity::default(),
        };
        let utilization = optional(self.nvml.utilization_rates())?;
        Ok(GpuReading {
            uuid: self.info.uuid.clone(),
            health: Health::Ok,
            memory_used: Some(MiB::from_bytes(total.saturating_sub(free))),
            activity: Activity {
                gpu_util: utilization.as_ref().and_then(|rates| share(f64::from(rates.gpu))),
                mem_util: utilization.as_ref().and_then(|rates| share(f64::from(rates.memory))),
                ..activity
            },
            power_mw: optional(self.nvml.power_usage())?,
            energy_mj: optional(self.nvml.total_energy_consumption())?,
            sm_clock_mhz: optional(self.nvml.clock_info(Clock::SM))?,
            memory_clock_mhz: optional(self.nvml.clock_info(Clock::Memory))?,
            processes: optional(processes(&self.nvml))?,
        })
    }
}

/// A reading that may be missing. That the GPU is lost is not a missing reading.
fn optional<T>(answer: Result<T, NvmlError>) -> Result<Option<T>, NvmlError> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(error @ (NvmlError::GpuLost | NvmlError::ResetRequired)) => Err(error),
        Err(_) => Ok(None),
    }
}

/// Whether an error says that this driver or device does not have the function.
fn is_missing(error: &NvmlError) -> bool {
    use NvmlError::{FailedToLoadSymbol, FunctionNotFound, NotSupported};
    matches!(error, NotSupported | FunctionNotFound | FailedToLoadSymbol(_))
}

/// The answer of a call, or of the one that came before it where the driver does not have it.
fn or_older<T>(
    answer: Result<T, NvmlError>,
    older: impl FnOnce() -> Result<T, NvmlError>,
) -> Result<T, NvmlError> {
    match answer {
        Err(error) if is_missing(&error) => older(),
        answer => answer,
    }
}

/// Why a device cannot do MPS as carma uses it: before Volta clients share one address space and have no limit of memory
/// (NVIDIA's MPS documentation, "Volta MPS").
fn no_mps(device: &nvml_wrapper::Device<'_>) -> Option<Arc<str>> {
    let version = device.cuda_compute_capability().ok().filter(|version| version.major < 7)?;
    let (major, minor) = (version.major, version.minor);
    Some(
        format!(
            "a GPU of compute capability {major}.{minor} shares by MPS without memory limits; 7.0 has them"
        )
        .into(),
    )
}

/// Total and free memory, bytes. In use is the difference: NVML's own `used` leaves out (since
/// version 2 of the call) what the driver keeps for itself, which no job can have either.
fn memory(device: &nvml_wrapper::Device<'_>) -> Result<(u64, u64), NvmlError> {
    or_older(device.memory_info().map(|info| (info.total, info.free)), || memory_v1(device))
}

#[expect(unsafe_code, reason = "nvml-wrapper has no safe call for drivers before version 510")]
fn memory_v1(device: &nvml_wrapper::Device<'_>) -> Result<(u64, u64), NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetMemoryInfo.as_ref())?;
    let mut info = nvmlMemory_t { total: 0, free: 0, used: 0 };
    // SAFETY: the handle is of the same library, and `info` outlives the call.
    nvml_try(unsafe { call(device.handle(), &raw mut info) })?;
    Ok((info.total, info.free))
}

#[expect(unsafe_code, reason = "nvml-wrapper has no safe call for it")]
fn gpu_instance_id(mig: &nvml_wrapper::Device<'_>) -> Result<u32, NvmlError> {
    let call = nvml_sym(mig.nvml().lib().nvmlDeviceGetGpuInstanceId.as_ref())?;
    let mut id = 0;
    // SAFETY: the handle is of the same library, and `id` outlives the call.
    nvml_try(unsafe { call(mig.handle(), &raw mut id) })?;
    Ok(id)
}

/// Profile name, e.g. `1g.18gb`: NVML's name of an instance ends in `MIG 1g.18gb`.
fn profile(mig: &nvml_wrapper::Device<'_>) -> Result<String, NvmlError> {
    if let Some((_, profile)) = mig.name()?.rsplit_once("MIG ") {
        return Ok(profile.to_owned());
    }
    let has = mig.attributes()?;
    Ok(format!("{}g.{}gb", has.gpu_instance_slice_count, has.memory_size_mb.div_ceil(1024)))
}

/// What holds the device: compute, graphics and MPS processes, each once. The MPS server is among them: only who knows the
/// jobs can tell it from a job that has taken its name.
fn processes(device: &nvml_wrapper::Device<'_>) -> Result<Vec<ProcessReading>, NvmlError> {
    // Drivers before version 510 have the second version of the calls only. MPS clients are in its list of compute processes.
    let compute = || or_older(device.running_compute_processes(), || device.running_compute_processes_v2());
    let graphics =
        || or_older(device.running_graphics_processes(), || device.running_graphics_processes_v2());
    let mut found = list(compute)?;
    for more in [list(graphics), list(|| device.mps_running_compute_processes())] {
        match more {
            Ok(more) => found.extend(more),
            Err(error) if is_missing(&error) => {}
            // Part of a list passed off as the whole would hide a process.
            Err(error) => return Err(error),
        }
    }
    let mut held = BTreeMap::new();
    for process in found {
        let memory = match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(MiB::from_bytes(bytes)),
            UsedGpuMemory::Unavailable => None,
        };
        // An MPS client is in two lists with the same memory: not a sum.
        let known = held.entry(process.pid).or_insert(memory);
        *known = memory.max(*known);
    }
    Ok(held.into_iter().map(|(pid, memory)| ProcessReading { pid, memory }).collect())
}

/// NVML is asked for the length of a list before the list: processes that start in between make it
/// too long for its buffer.
fn list(call: impl Fn() -> Result<Vec<ProcessInfo>, NvmlError>) -> Result<Vec<ProcessInfo>, NvmlError> {
    let mut answer = call();
    for _ in 0..3 {
        if !matches!(answer, Err(NvmlError::InsufficientSize(_))) {
            break;
        }
        answer = call();
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_outgrows_its_buffer_is_asked_for_again_but_not_for_ever() {
        let asked = std::cell::Cell::new(0);
        let too_long_until = |n| {
            asked.set(asked.get() + 1);
            if asked.get() < n { Err(NvmlError::InsufficientSize(None)) } else { Ok(Vec::new()) }
        };
        assert!(list(|| too_long_until(3)).is_ok());
        assert_eq!(asked.replace(0), 3);
        assert!(list(|| too_long_until(usize::MAX)).is_err());
        assert_eq!(asked.get(), 4);
    }
}
