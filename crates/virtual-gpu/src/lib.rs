//! Virtual GPUs that behave: memory that fills and runs out, tenants that slow each other down by the
//! share law, activity, power and energy that follow, faults that spread, a GPU that falls off.
//!
//! A test double and a demo. Nothing here is a measurement, and every name says "virtual".
//!
//! - [`VirtualGpus`] hosts the model inside the daemon. Its one thread sleeps until a task or a
//!   control client says something; reading the GPUs costs nothing between ticks.
//! - Tasks are real processes ([`task`]) that connect to the host's Unix socket and
//!   speak [`protocol`]. Each integrates its own progress, so a host that is killed and started again
//!   loses nothing: tasks go on at their last rate, come back within [`RECONNECT`] and say what they
//!   hold. Until then the new host does not know them and its GPUs look empty.
//! - [`VirtualProbe`], [`VirtualMps`] and [`VirtualCheckpoint`] are the three traits through which the daemon sees any GPU.
//! - [`control`] injects faults from outside.
//!
//! # What is modelled, and how
//! - **Time**: virtual seconds = real seconds times the speed.
//! - **Memory**: an idle GPU uses 0 MiB, and all of its memory can be had. A process on a GPU holds
//!   at least [`context`] there, which is part of what it was told to take.
//! - **Progress and activity**: `carma_interference::share`, time-sliced between processes and
//!   between users, packed between the MPS clients of one user. A process on several GPUs goes at the
//!   pace of the slowest. Counters are averages since the probe's last tick.
//! - **Without activity**: GPUs that are `@no-activity` do the same, and tell of it what NVML does before Hopper: time with a
//!   kernel resident as utilisation, memory, power and energy.
//! - **Power**: `carma_interference::power` with the factors of the [`carma_hardware::GpuType`];
//!   where a load asks for more than the limit, the clock falls and tenants slow down. Energy is its
//!   integral over virtual time and starts again from 0 with the host.
//! - **Not modelled**: temperature, PCIe, tensor and FP pipes, MIG, host memory, the driver's
//!   own memory, the seconds that an MPS server takes to come back after a fault.

mod checkpoint;
pub mod control;
mod host;
mod mps;
mod physics;
mod probe;
pub mod protocol;
mod spec;
pub mod task;

pub use checkpoint::VirtualCheckpoint;
pub use mps::VirtualMps;
pub(crate) use mps::{ENV_MEMORY_LIMIT, ENV_THREADS};
pub use physics::TaskDemand;
pub use probe::VirtualProbe;
pub use spec::{MOST_GPUS, SpecError, VirtualGpu, VirtualSpec, known_types};

use carma_core::reading::{GpuInfo, GpuKind};
use carma_core::units::MiB;
use host::{Host, Shared};
use physics::Physics;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Environment variable with the host's socket: where virtual tasks connect.
pub const ENV_SOCKET: &str = "CARMA_VIRTUAL_GPUS";
/// Environment variable with the speed: virtual seconds per real second.
pub const ENV_SPEED: &str = "CARMA_VIRTUAL_SPEED";
/// Environment variable that is `1` for clients of virtual MPS.
pub const ENV_MPS: &str = "CARMA_VIRTUAL_MPS";

/// Memory of a process' context on each of its GPUs, whatever their type.
#[must_use]
pub fn context() -> MiB {
    MiB(carma_hardware::Unmeasured::get().model.context_mib)
}

/// How often a task that lost its host tries to reach one again, in real time.
pub const RECONNECT: Duration = Duration::from_millis(200);

/// Most virtual seconds per real second. Beyond it a task's messages take longer than its work.
pub const MOST_SPEED: f64 = 100_000.0;

/// Why virtual GPUs cannot be hosted.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The speed is not a positive number, or absurdly high.
    #[error("speed {0} of virtual GPUs: it must be above 0 and at most {MOST_SPEED}")]
    Speed(f64),
    /// Another host answers at the socket.
    #[error("virtual GPUs: another process already hosts some at {}", .0.display())]
    InUse(PathBuf),
    /// The socket cannot be made.
    #[error("virtual GPUs: cannot listen at {}: {why}", .socket.display())]
    Socket {
        /// Path of the socket.
        socket: PathBuf,
        /// What failed.
        why: String,
    },
    /// The thread cannot be started or lacks a system resource.
    #[error("virtual GPUs: {0}")]
    System(String),
}

/// No virtual GPU has this UUID or index.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no virtual GPU `{0}`")]
pub struct UnknownGpu(pub String);

/// A host of virtual GPUs. Ends when dropped: its thread stops and its socket is removed; tasks go on
/// by themselves and look for the next host.
#[derive(Debug)]
pub struct VirtualGpus {
    shared: Arc<Shared>,
    inventory: Arc<[GpuInfo]>,
    socket: PathBuf,
    thread: Option<JoinHandle<()>>,
}

impl VirtualGpus {
    /// Hosts virtual GPUs at a socket, `speed` virtual seconds per real second.
    ///
    /// The socket is open to every user of the machine, as GPUs are; only root and the host's own
    /// user may control. A socket that a dead host left behind is replaced. Path and name of a GPU
    /// depend on its type and its place in the specification only, so they survive restarts.
    ///
    /// # Errors
    /// A speed that makes no sense, a socket that another host serves or that cannot be made (its
    /// path may have 107 bytes at most), or no thread.
    pub fn start(spec: &VirtualSpec, socket: &Path, speed: f64) -> Result<Self, StartError> {
        if !(speed > 0.0 && speed <= MOST_SPEED) {
            return Err(StartError::Speed(speed));
        }
        let gpus = spec.gpus();
        let inventory: Arc<[GpuInfo]> = gpus
            .iter()
            .zip(0_u32..)
            .map(|(VirtualGpu { model, has_activity }, index)| GpuInfo {
                uuid: format!("GPU-virtual-{}-{index}", model.name.to_ascii_lowercase()).into(),
                index,
                name: format!("Virtual {}", model.name),
                memory: MiB(model.memory_mib),
                kind: GpuKind::Virtual,
                has_activity: *has_activity,
                no_mps: None,
            })
            .collect();
        let uuids = inventory.iter().map(|gpu| Arc::clone(&gpu.uuid));
        let physics = Physics::new(uuids.zip(gpus.into_iter().map(|gpu| gpu.model)));
        // Jobs run in directories of their own, so what they get must not be relative.
        let socket = std::path::absolute(socket)
            .map_err(|e| StartError::Socket { socket: socket.to_owned(), why: e.to_string() })?;
        let shared = Arc::new(Shared::new(physics, speed).map_err(|e| StartError::System(e.to_string()))?);
        let host = Host::listen(&socket, Arc::clone(&shared), Arc::clone(&inventory))?;
        let thread = std::thread::Builder::new()
            .name("virtual-gpus".to_owned())
            .spawn(move || host.run())
            .map_err(|e| StartError::System(format!("cannot start the host's thread: {e}")))?;
        Ok(Self { shared, inventory, socket, thread: Some(thread) })
    }

    /// The devices, in order. UUIDs look like `GPU-virtual-a100-40gb-0`.
    #[must_use]
    pub fn inventory(&self) -> &[GpuInfo] {
        &self.inventory
    }

    /// A probe that reads these GPUs. Each has averages of its own.
    #[must_use]
    pub fn probe(&self) -> VirtualProbe {
        VirtualProbe::new(Arc::clone(&self.shared), Arc::clone(&self.inventory))
    }

    /// Virtual MPS on these GPUs.
    #[must_use]
    pub fn mps(&self) -> VirtualMps {
        VirtualMps::new(Arc::clone(&self.shared))
    }

    /// Environment that every job needs so that virtual tasks in it find this host.
    #[must_use]
    pub fn env_for_jobs(&self) -> Vec<(String, String)> {
        vec![
            (ENV_SOCKET.to_owned(), self.socket.to_string_lossy().into_owned()),
            (ENV_SPEED.to_owned(), self.shared.speed().to_string()),
        ]
    }

    /// Where it listens, an absolute path.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Virtual seconds per real second.
    #[must_use]
    pub fn speed(&self) -> f64 {
        self.shared.speed()
    }

    /// Fault injection: a GPU (UUID or index) falls off the bus. It reads as lost and its tasks fail.
    ///
    /// # Errors
    /// When there is no such GPU.
    pub fn drop_gpu(&self, gpu: &str) -> Result<(), UnknownGpu> {
        self.shared.drop_gpu(gpu).map_err(|()| UnknownGpu(gpu.to_owned()))
    }

    /// A GPU that fell off comes back, empty.
    ///
    /// # Errors
    /// When there is no such GPU.
    pub fn restore_gpu(&self, gpu: &str) -> Result<(), UnknownGpu> {
        self.shared.restore_gpu(gpu).map_err(|()| UnknownGpu(gpu.to_owned()))
    }
}

impl Drop for VirtualGpus {
    fn drop(&mut self) {
        self.shared.stop();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread is reported by the runtime; there is nothing left to save here.
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.socket);
    }
}
