//! What tasks do to each other, as measured: the file that `carma bench interference` writes.
//!
//! ```json
//! {
//!   "version": 1,
//!   "machine": { "gpu": "NVIDIA H200", "gpu_memory_mib": 143771, "driver": "580.159", "cpus": 16, "kernel": "6.18" },
//!   "tasks": [ { "name": "a", "family": "resnet", "kind": "train", "batch": 32, "command": ["python3", "a.py"] } ],
//!   "sessions": [ { "number": 0, "began": "2026-11-21T16:00:00Z", "sharing": "mps", "carma": "0.1.0", "seed": 1 } ],
//!   "profiles": { "version": 1, "gpu": "NVIDIA H200", "tasks": [ { "name": "a", "rate": 12.5 } ] },
//!   "combinations": [
//!     { "members": ["a", "b"], "sharing": "mps", "repeat": 0, "session": 0, "at_s": 61.2, "window_s": 1.5,
//!       "steps": [12.1, 30.4], "rates": [8.07, 20.3], "progress": [0.65, 0.9], "activity": { "smact_pct": 88.0 },
//!       "power_w": 512.0, "energy_j": 768.0 },
//!     { "members": ["a", "c"], "sharing": "mps", "repeat": 0, "session": 0, "at_s": 63.3, "window_s": 1.5,
//!       "failed": "c ended during the window: exit code 1" }
//!   ],
//!   "left": 0
//! }
//! ```
//!
//! A window with one member is that task alone (*solo*): there are several of each in a session, at its
//! start, middle and end. `progress` is the rate over the median solo rate of the same task, under the same
//! sharing, in the same session if that has one, else in all.

mod assemble;
mod fingerprint;
mod log;
mod warm;

pub use assemble::{Drift, Solos, median};
pub use log::{Line, Log, read_log, text_of};
pub use warm::Warm;

use crate::profile::{Metrics, Profiles, RateSource};
use crate::share::Mode;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Version of the file format that this program writes, and the newest that it reads.
pub const VERSION: u32 = 1;

/// A file of measurements.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Version of the format.
    pub version: u32,
    /// Where the first session ran.
    pub machine: Machine,
    /// The tasks; names differ.
    pub tasks: Vec<TaskNote>,
    /// Calls of the tool, in order.
    pub sessions: Vec<Session>,
    /// What each task does alone: from the solo windows without thread limits, those of plain processes
    /// where there are any, otherwise those of MPS clients.
    pub profiles: Profiles,
    /// One entry a window, in order of time; solo windows included.
    pub combinations: Vec<Combination>,
    /// Windows that the last call left unmeasured because its time was over.
    #[serde(default)]
    pub left: usize,
}

/// Where it was measured.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Machine {
    /// Product name of the GPU. A virtual one says so: a model, not a measurement.
    pub gpu: String,
    /// Its memory.
    pub gpu_memory_mib: u64,
    /// Version of the driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Processors that the tasks had.
    pub cpus: usize,
    /// Version of the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
}

/// What a task is; how it was started.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TaskNote {
    /// Its name, unique in a file.
    pub name: String,
    /// Tasks of one family are held out together: the model without size or batch, e.g. `resnet`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family: Option<String>,
    /// Tasks of one class share what is learned of them; `None`: its name is its class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// `train`, `infer` or another word of its owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Batch size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<u32>,
    /// Models in the process, each with its part of the batch; `None`: one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<u32>,
    /// What a step is, and whatever else its owner says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub what: Option<String>,
    /// Program and arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
}

impl TaskNote {
    /// What is held out together with it.
    #[must_use]
    pub fn family(&self) -> &str {
        self.family.as_deref().or(self.class.as_deref()).unwrap_or(&self.name)
    }
}

/// One call of the tool under one sharing mode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// From 0.
    pub number: u32,
    /// When it began: RFC 3339, UTC.
    pub began: String,
    /// How the tasks shared the GPU.
    pub sharing: Mode,
    /// Version of carma.
    pub carma: String,
    /// Seed of the random triples and quadruples and of the order.
    pub seed: u64,
    /// UUID of the GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_uuid: Option<String>,
    /// Processors of its own that each member of a window had; `None`: all ran where the kernel put them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processors_each: Option<usize>,
}

/// One window: these tasks together, everything else resident and idle.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Combination {
    /// Names of the tasks; one that is named twice ran in two processes.
    pub members: Vec<String>,
    /// How they shared the GPU.
    #[serde(default)]
    pub sharing: Mode,
    /// Share of the SMs' threads of each member under MPS, percent, 100 for no limit; empty: no limits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub threads_pct: Vec<u8>,
    /// 0 for the first window of these members in the session, then 1 and so on.
    #[serde(default)]
    pub repeat: u32,
    /// In which session.
    #[serde(default)]
    pub session: u32,
    /// When it began, seconds since the session did.
    #[serde(default)]
    pub at_s: f64,
    /// Length, seconds; rates and activity are over this.
    #[serde(default)]
    pub window_s: f64,
    /// Steps counted, in the order of `members`, fractions at the window's edges. Few steps: an uncertain rate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<f64>,
    /// Steps a second, in the order of `members`; empty when the window failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rates: Vec<f64>,
    /// Where the rates come from, in the order of `members`; empty: all tasks count their steps themselves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rate_sources: Vec<RateSource>,
    /// Rate over the rate alone, in the order of `members`; empty when the window failed or a solo is missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub progress: Vec<f64>,
    /// How fast the host's processors were: millions of steps a second of a fixed loop, beside the members. Tasks bound
    /// by launches follow it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_mops: Option<f64>,
    /// Share of the host's processors that its hypervisor gave to others, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_stolen_pct: Option<f64>,
    /// Memory of each member's processes on the GPU, MiB, in the order of `members`. Where the driver does not know
    /// the processes (in some containers), what the task says that its tensors hold; a remark says so.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory_mib: Vec<Option<u64>>,
    /// Host CPU of each member's processes, 100 for one core, in the order of `members`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cpu_pct: Vec<Option<f64>>,
    /// Host memory of each member's processes, MiB, in the order of `members`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub host_memory_mib: Vec<Option<u64>>,
    /// Activity, power and clock of the whole GPU.
    #[serde(default)]
    pub activity: Metrics,
    /// Mean power over the window, from the energy counter where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_w: Option<f64>,
    /// Energy over the window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy_j: Option<f64>,
    /// Why there are no rates: which task ended, or did not answer, and how.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// What the reader should know, e.g. a counter that ran backwards.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
}

impl Combination {
    /// Number of members.
    #[must_use]
    pub fn k(&self) -> usize {
        self.members.len()
    }

    /// Whether any member had a limit on its threads.
    #[must_use]
    pub fn is_split(&self) -> bool {
        self.threads_pct.iter().any(|&pct| pct < 100)
    }

    /// Progress of all members together: how many times the work of one exclusive GPU.
    #[must_use]
    pub fn total(&self) -> Option<f64> {
        (!self.progress.is_empty()).then(|| self.progress.iter().sum())
    }
}

/// Why a file cannot be used: where, what is wrong, what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadMeasurement(pub String);

impl fmt::Display for BadMeasurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadMeasurement {}

impl Measured {
    /// Whether a text is meant as one of measurements, sound or not: a log by its first line, a file by its key
    /// `combinations`.
    #[must_use]
    pub fn is_meant(text: &str) -> bool {
        let keys = || serde_json::from_str::<BTreeMap<String, IgnoredAny>>(text);
        log::is_log(text) || keys().is_ok_and(|keys| keys.contains_key("combinations"))
    }

    /// Reads a file, or the log that one grows from.
    ///
    /// # Errors
    /// Text that is not JSON of this form, a newer version, two tasks of one name, a window with members
    /// that are no task, or with numbers that make no sense; a profile that [`Profiles::read`] refuses.
    pub fn read(text: &str) -> Result<Self, BadMeasurement> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        if log::is_log(text)
            && let Some(log) = read_log(text)?
        {
            let measured = log.assemble(0);
            measured.check()?;
            return Ok(measured);
        }
        let form = |e: serde_json::Error| {
            BadMeasurement(format!(
                "not a file of measured interference: {e}; `carma bench interference` writes such files"
            ))
        };
        let Versioned { version } = serde_json::from_str(text).map_err(form)?;
        if version == 0 || version > VERSION {
            return Err(BadMeasurement(format!(
                "version {version} of the format is not known to this program, which reads version {VERSION}"
            )));
        }
        let measured: Self = serde_json::from_str(text).map_err(form)?;
        measured.check()?;
        Ok(measured)
    }

    /// Numbers and names that make no sense are named.
    ///
    /// # Errors
    /// As [`Measured::read`].
    pub fn check(&self) -> Result<(), BadMeasurement> {
        let mut names = BTreeSet::new();
        for task in &self.tasks {
            if !names.insert(task.name.as_str()) {
                return Err(BadMeasurement(format!(
                    "two tasks are named `{}`; names must differ",
                    task.name
                )));
            }
        }
        for profile in &self.profiles.tasks {
            profile.check().map_err(|e| BadMeasurement(format!("profiles: {e}")))?;
        }
        for (at, window) in self.combinations.iter().enumerate() {
            window.check(&names).map_err(|why| {
                BadMeasurement(format!("combination {at} ({}): {why}", window.members.join(" + ")))
            })?;
        }
        Ok(())
    }
}

impl Combination {
    fn check(&self, names: &BTreeSet<&str>) -> Result<(), String> {
        if self.members.is_empty() {
            return Err("it has no members".into());
        }
        if let Some(unknown) = self.members.iter().find(|name| !names.contains(name.as_str())) {
            return Err(format!("no task is named `{unknown}`"));
        }
        let k = self.k();
        let lengths = [
            ("threads_pct", self.threads_pct.len()),
            ("steps", self.steps.len()),
            ("rates", self.rates.len()),
            ("rate_sources", self.rate_sources.len()),
            ("progress", self.progress.len()),
            ("memory_mib", self.memory_mib.len()),
            ("cpu_pct", self.cpu_pct.len()),
            ("host_memory_mib", self.host_memory_mib.len()),
        ];
        for (name, length) in lengths {
            if length != 0 && length != k {
                return Err(format!("`{name}` has {length} values for {k} members"));
            }
        }
        if let Some(pct) = self.threads_pct.iter().find(|pct| !(1..=100).contains(*pct)) {
            return Err(format!("`threads_pct` has {pct}, expected 1 to 100"));
        }
        for (name, values) in [("steps", &self.steps), ("rates", &self.rates), ("progress", &self.progress)] {
            if let Some(value) = values.iter().find(|value| !(value.is_finite() && **value >= 0.0)) {
                return Err(format!("`{name}` has {value}, expected 0 or more"));
            }
        }
        if self.failed.is_none() && self.rates.is_empty() {
            return Err("it has neither `rates` nor `failed`".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
