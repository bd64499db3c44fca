//! The thread that makes every call into NVML.

use super::device::Device;
use super::{NvmlOptions, visible};
use crate::probe::ProbeError;
use carma_core::reading::{GpuInfo, GpuReading};
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

const TRY_VIRTUAL: &str = "To try carma without a GPU, use --gpus virtual:4xA100-40GB";

/// What opening found.
pub(super) struct Opened {
    pub(super) inventory: Vec<GpuInfo>,
    pub(super) hidden: Vec<Arc<str>>,
    pub(super) driver_version: String,
}

/// Opens NVML, then answers each request with one reading a device, each as soon as it is there,
/// in the order of the inventory. Returns when the probe is gone.
pub(super) fn run(
    options: &NvmlOptions,
    opened: &Sender<Result<Opened, ProbeError>>,
    requests: &Receiver<()>,
    readings: &Sender<GpuReading>,
) {
    // Everything that borrows from the library lives and dies on this thread's stack. A failed
    // send means that the other side has given up waiting.
    let nvml = match init(options) {
        Ok(nvml) => nvml,
        Err(error) => return drop(opened.send(Err(error))),
    };
    let (mut devices, hidden) = match devices(&nvml, options) {
        Ok(found) => found,
        Err(error) => return drop(opened.send(Err(error))),
    };
    let found = Opened {
        inventory: devices.iter().map(|device| device.info.clone()).collect(),
        hidden,
        driver_version: nvml.sys_driver_version().unwrap_or_else(|_| "unknown".to_owned()),
    };
    if opened.send(Ok(found)).is_err() {
        return;
    }
    while requests.recv().is_ok() {
        for device in &mut devices {
            if readings.send(device.read()).is_err() {
                return;
            }
        }
    }
}

fn init(options: &NvmlOptions) -> Result<Nvml, ProbeError> {
    let mut builder = Nvml::builder();
    if let Some(library) = &options.library {
        builder.lib_path(library.as_os_str());
    }
    builder.init().map_err(|error| {
        let library = options
            .library
            .as_ref()
            .map_or_else(|| "libnvidia-ml.so.1".to_owned(), |path| path.display().to_string());
        let why = match error {
            NvmlError::LibloadingError(error) => format!(
                "the NVIDIA driver's library {library} cannot be loaded ({error}): the driver is \
                 not installed, or not passed into this container"
            ),
            NvmlError::DriverNotLoaded => format!(
                "{library} is there, but the NVIDIA kernel driver is not loaded; \
                 nvidia-smi may say why"
            ),
            NvmlError::LibRmVersionMismatch => format!(
                "{library} and the running NVIDIA kernel driver differ in version: the driver was \
                 updated. Reload it or reboot"
            ),
            NvmlError::NoPermission => format!(
                "{library} may not talk to the NVIDIA driver. Check the access rights of \
                 /dev/nvidiactl and /dev/nvidia*"
            ),
            error => format!("{library} cannot be initialised: {error}"),
        };
        ProbeError::Unavailable(format!("{why}. {TRY_VIRTUAL}"))
    })
}

/// The devices that carma may use, and the UUIDs of the GPUs that it may not.
fn devices<'n>(
    nvml: &'n Nvml,
    options: &NvmlOptions,
) -> Result<(Vec<Device<'n>>, Vec<Arc<str>>), ProbeError> {
    let what = "nvmlDeviceGetCount";
    let count = nvml.device_count().map_err(|error| ProbeError::Failed { what, why: error.to_string() })?;
    let (mut devices, mut unreadable, mut index) = (Vec::new(), Vec::new(), 0);
    for gpu in 0..count {
        match Device::of_gpu(nvml, gpu, index) {
            Ok(found) => {
                index += found.len() as u32;
                devices.extend(found);
            }
            Err(error) => {
                // It keeps its number, so that the others keep theirs.
                index += 1;
                tracing::warn!("GPU {gpu} is left out, it cannot be read: {error}");
                unreadable.push((gpu, error.to_string()));
            }
        }
    }
    if devices.is_empty() {
        let whys: Vec<_> = unreadable.iter().map(|(gpu, why)| format!("GPU {gpu}: {why}")).collect();
        let why = match (count, whys.as_slice()) {
            (0, _) => "the NVIDIA driver is there, but finds no GPU".to_owned(),
            (_, []) => {
                "every GPU is in MIG mode and has no MIG instance that can be used: create some".to_owned()
            }
            _ => format!("no GPU can be read: {}", whys.join("; ")),
        };
        return Err(ProbeError::Unavailable(format!("{why}. {TRY_VIRTUAL}")));
    }
    let Some(entries) = &options.visible else {
        return Ok((devices, Vec::new()));
    };
    let names: Vec<_> = devices.iter().map(Device::names).collect();
    let broken: Vec<u32> = unreadable.iter().map(|(gpu, _)| *gpu).collect();
    let keep = visible::select(entries, &names, &broken).map_err(ProbeError::Unavailable)?;
    if !keep.contains(&true) {
        let list = entries.join(",");
        return Err(ProbeError::Unavailable(format!(
            "CUDA_VISIBLE_DEVICES=\"{list}\" leaves carma no GPU; unset it or name some. {TRY_VIRTUAL}"
        )));
    }
    let uuids = |wanted: bool| {
        let of = names.iter().zip(&keep).filter(move |(_, keep)| **keep == wanted);
        of.map(|(names, _)| names.gpu_uuid).collect::<BTreeSet<_>>()
    };
    let hidden = uuids(false).difference(&uuids(true)).map(|uuid| (*uuid).into()).collect();
    let kept = devices.into_iter().zip(keep).filter_map(|(device, keep)| keep.then_some(device));
    Ok((kept.collect(), hidden))
}
