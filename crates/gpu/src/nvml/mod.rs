//! NVIDIA GPUs, read through the driver's own library (NVML), loaded at run time: one binary runs
//! with and without a driver.
//!
//! Calls into NVML can hang while a GPU is failing, and then cannot be interrupted. So one thread
//! makes all of them, and [`NvmlProbe::tick`](crate::Probe::tick) waits for that thread only until
//! its deadline. carma reads; it never changes a MIG layout, a clock, a limit or a mode.

mod device;
mod gpm;
mod visible;
mod worker;

pub use visible::parse_visible;

use crate::probe::{Probe, ProbeError};
use carma_core::reading::{GpuInfo, GpuReading, Health, Snapshot};
use carma_core::units::Millis;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

/// How to reach NVML and what to read.
#[derive(Debug, Clone)]
pub struct NvmlOptions {
    /// The library to load; `None`: `libnvidia-ml.so.1`, where the dynamic loader finds it.
    pub library: Option<PathBuf>,
    /// The devices that carma itself is limited to, as [`parse_visible`] reads them from a
    /// `CUDA_VISIBLE_DEVICES` that carma was started with; `None`: all. An entry is an index in
    /// the driver's order (nvidia-smi's), or the UUID of a GPU or MIG instance or an unambiguous
    /// beginning of it. A GPU in MIG mode stands for all its instances. As in CUDA, an empty
    /// entry or `-1` ends the list.
    pub visible: Option<Vec<String>>,
    /// How long a tick waits for all devices together.
    pub deadline: Duration,
    /// How long [`open`] waits: a driver without persistence mode first wakes every GPU.
    pub open_deadline: Duration,
}

impl Default for NvmlOptions {
    fn default() -> Self {
        Self {
            library: None,
            visible: None,
            deadline: Duration::from_secs(2),
            open_deadline: Duration::from_secs(60),
        }
    }
}

/// Reads NVIDIA GPUs. See [`open`].
#[derive(Debug)]
pub struct NvmlProbe {
    inventory: Vec<GpuInfo>,
    hidden: Vec<Arc<str>>,
    driver_version: String,
    deadline: Duration,
    /// Asks the worker for one reading of each device; it ends when this is dropped.
    requests: Sender<()>,
    readings: Receiver<GpuReading>,
    /// When the last request was made.
    asked: Instant,
    /// How many readings of that request the worker still owes.
    owed: usize,
}

/// Loads NVML and takes the inventory: whole GPUs, and of a GPU in MIG mode its instances instead.
/// A device that cannot be read at all is left out, with a warning in the log.
///
/// # Errors
/// [`ProbeError::Unavailable`] says what was looked for and what to do: no library, no driver, no
/// GPU, or a limit that names a GPU that is not there. [`ProbeError::Failed`] when the driver
/// fails or does not answer.
pub fn open(options: &NvmlOptions) -> Result<NvmlProbe, ProbeError> {
    let (opened, opening) = channel();
    let (requests, asked) = channel();
    let (answers, readings) = channel();
    let for_worker = options.clone();
    let failed = |why| ProbeError::Failed { what: "opening NVML", why };
    std::thread::Builder::new()
        .name("nvml".to_owned())
        .spawn(move || worker::run(&for_worker, &opened, &asked, &answers))
        .map_err(|error| failed(format!("no thread for it: {error}")))?;
    let worker::Opened { inventory, hidden, driver_version } =
        opening.recv_timeout(options.open_deadline).map_err(|error| match error {
            RecvTimeoutError::Timeout => {
                let waited = options.open_deadline.as_secs_f64();
                failed(format!("no answer for {waited:.1} s; does nvidia-smi answer?"))
            }
            RecvTimeoutError::Disconnected => failed("the thread that calls it ended".to_owned()),
        })??;
    Ok(NvmlProbe {
        inventory,
        hidden,
        driver_version,
        deadline: options.deadline,
        requests,
        readings,
        asked: Instant::now(),
        owed: 0,
    })
}

impl NvmlProbe {
    /// UUIDs of the machine's other GPUs, which [`NvmlOptions::visible`] leaves out.
    #[must_use]
    pub fn hidden(&self) -> &[Arc<str>] {
        &self.hidden
    }

    /// Version of the driver, e.g. `580.159`.
    #[must_use]
    pub fn driver_version(&self) -> &str {
        &self.driver_version
    }

    /// Takes in what a late worker has answered since. Those readings are old, so nobody sees
    /// them. Returns whether the worker is free again.
    fn catch_up(&mut self) -> bool {
        while self.owed > 0 {
            match self.readings.try_recv() {
                Ok(_) => self.owed -= 1,
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return false,
            }
        }
        true
    }

    /// Readings of the devices that answered within the deadline, in the order of the inventory.
    fn ask(&mut self) -> Vec<GpuReading> {
        let mut answered = Vec::with_capacity(self.inventory.len());
        self.asked = Instant::now();
        self.owed = self.inventory.len();
        // A dead worker shows as a closed channel below.
        let _ = self.requests.send(());
        while self.owed > 0 {
            let left = self.deadline.saturating_sub(self.asked.elapsed());
            let Ok(reading) = self.readings.recv_timeout(left) else {
                break;
            };
            self.owed -= 1;
            answered.push(reading);
        }
        answered
    }

    /// Why the worker still owes readings: the same words as long as it hangs at the same GPU, since other words are news.
    fn silence(&self) -> String {
        let stuck = self.inventory.len().saturating_sub(self.owed);
        match self.inventory.get(stuck) {
            Some(gpu) => format!("NVML does not answer: it waits for GPU {} ({})", gpu.index, gpu.uuid),
            None => "NVML does not answer".to_owned(),
        }
    }
}

impl Probe for NvmlProbe {
    fn inventory(&self) -> &[GpuInfo] {
        &self.inventory
    }

    fn tick(&mut self, at: Millis) -> Snapshot {
        let was_late = self.owed > 0;
        // While the worker hangs, no more work is queued for it and nobody waits for it.
        let mut gpus = if self.catch_up() { self.ask() } else { Vec::new() };
        if self.owed > 0 {
            let why = self.silence();
            if !was_late {
                tracing::warn!("{why}; its GPUs count as unreadable until it does");
            }
            let missing = self.inventory.iter().skip(gpus.len());
            gpus.extend(
                missing.map(|gpu| GpuReading::empty(gpu.uuid.clone(), Health::Unreadable(why.clone()))),
            );
        } else if was_late {
            tracing::info!("NVML answers again");
        }
        Snapshot { at, gpus }
    }
}
