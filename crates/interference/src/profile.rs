//! Solo profiles: what a task does to a GPU that it has for itself, and how fast it goes then.
//!
//! The file format (`docs/interference.md` shows one whole) is JSON:
//!
//! ```json
//! {
//!   "version": 1,
//!   "gpu": "NVIDIA H200",
//!   "tasks": [
//!     { "name": "a", "rate": 12.5, "metrics": { "smact_pct": 41.2, "smocc_pct": { "mean": 17.0, "p95": 20.1 } } }
//!   ]
//! }
//! ```

mod wrong;

use carma_core::reading::GpuReading;
use carma_core::units::Fraction;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Version of the file format that this program writes, and the newest that it reads.
pub const VERSION: u32 = 1;
/// First words of a task's remarks on what a file says of it and this program does not know.
pub const NOT_READ: &str = "not read: ";

/// A file of solo profiles.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Profiles {
    /// Version of the format.
    pub version: u32,
    /// Product name of the GPU that they were measured on, for those that do not say it themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    /// One entry a task; names differ.
    pub tasks: Vec<Profile>,
}

/// What one task does alone.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Profile {
    /// Its name, unique in a file.
    pub name: String,
    /// Tasks of one class share what is learned of them; `None`: its name is its class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// GPU that it was measured on; `None`: the file's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    /// How fast it goes alone; `None`: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// What it uses alone.
    #[serde(default)]
    pub metrics: Metrics,
    /// Its speed alone at a share of the SMs' threads (`CUDA_MPS_ACTIVE_THREAD_PERCENTAGE`): percent to
    /// rate, in the unit of `rate`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub rate_by_threads_pct: BTreeMap<u8, f64>,
    /// What Nsight Compute saw of its kernels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernels: Option<Kernels>,
    /// The 99th percentile of its requests' latency alone, milliseconds; `None`: it serves none, or does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_p99_ms: Option<f64>,
    /// How long it was watched, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watched_s: Option<f64>,
    /// GPU memory over time, whenever it changed: seconds since the start, MiB. At most 64 points.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory_over_time: Vec<(f64, f64)>,
    /// What the reader should know, e.g. gaps in the samples.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
}

/// How fast a task goes. In a file a plain number is a rate of unknown unit and source.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Rate {
    /// Units of work a second.
    pub per_s: f64,
    /// What is counted: `steps`, `it`, `epochs`, `SM-seconds`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// Where the number comes from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<RateSource>,
    /// Whether the task says that it is not its main work: it evaluates, loads or prepares.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub aside: bool,
    /// Which of the counts of that unit; `None`: not known, or the task has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bar: Option<Bar>,
    /// Time in which it is silent of its own, without neighbours, and which is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pauses: Option<Pauses>,
}

/// What tells a printed count from others of its unit.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Bar {
    /// The words before its number, in lower case without figures; it may have none.
    #[serde(default)]
    pub label: String,
    /// Of one without words, how many there are to be, if that was told at its beginning: bars of training and of evaluation are seldom
    /// equally long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<f64>,
    /// How many steps or epochs the task was told to do (`--steps 300`): a length that goes by it is another in another run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iterations: Option<f64>,
}

impl Bar {
    /// Lengths that differ by this share at most are one: epochs may differ a little.
    const ALIKE: f64 = 0.1;

    /// Whether both are one.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        let lengths = match (self.total, other.total) {
            (Some(a), Some(b)) => Self::are_alike(a, b) || self.is_longer_by_iterations(other, a / b),
            (a, b) => a.is_none() && b.is_none(),
        };
        lengths && self.label == other.label
    }

    /// Whether it is so many times as long as another because the task was told to do so many times as much.
    fn is_longer_by_iterations(&self, other: &Self, times: f64) -> bool {
        self.iterations.zip(other.iterations).is_some_and(|(a, b)| Self::are_alike(a / b, times))
    }

    /// Whether two lengths may be of one bar.
    #[must_use]
    pub fn are_alike(a: f64, b: f64) -> bool {
        (a - b).abs() <= Self::ALIKE * a.max(b)
    }
}

/// Silences of a task alone: it evaluates or saves between its steps, say, and tells nothing of that.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Pauses {
    /// Time between two counts beyond which it pauses, seconds.
    pub over_s: f64,
    /// The longest that was seen, seconds.
    pub longest_s: f64,
}

impl Rate {
    /// Whether both are rates of one count, so that one is a part of the other. What is not known of either is no difference.
    #[must_use]
    pub fn counts_like(&self, other: &Self) -> bool {
        let bars = self.bar.as_ref().zip(other.bar.as_ref()).is_none_or(|(a, b)| a.is(b));
        bars && (&self.unit, self.source, self.aside) == (&other.unit, other.source, other.aside)
    }
}

/// Where a rate comes from, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RateSource {
    /// The task counts its steps: a heartbeat file or the `CARMA_PROGRESS` socket.
    Heartbeat,
    /// What the task prints.
    Printed,
    /// Nothing of the task's own: how busy the SMs are stands for how fast it goes.
    Activity,
}

impl fmt::Display for RateSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Heartbeat => "heartbeat",
            Self::Printed => "printed progress",
            Self::Activity => "activity of the GPU",
        })
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Default, Deserialize)]
        struct Whole {
            per_s: f64,
            #[serde(default)]
            unit: Option<String>,
            #[serde(default)]
            source: Option<RateSource>,
            #[serde(default)]
            aside: bool,
            #[serde(default)]
            bar: Option<Bar>,
            #[serde(default)]
            pauses: Option<Pauses>,
        }
        impl From<f64> for Whole {
            fn from(per_s: f64) -> Self {
                Self { per_s, ..Self::default() }
            }
        }
        let Whole { per_s, unit, source, aside, bar, pauses } =
            wrong::number_or_object(deserializer, "a number or an object with `per_s`")?;
        Ok(Self { per_s, unit, source, aside, bar, pauses })
    }
}

/// One metric over a window. In a file a plain number is a mean.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Stat {
    /// Arithmetic mean.
    pub mean: f64,
    /// 95th percentile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p95: Option<f64>,
    /// Coefficient of variation: standard deviation over mean.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cv: Option<f64>,
}

impl Stat {
    /// A mean of which no more is known.
    #[must_use]
    pub const fn of(mean: f64) -> Self {
        Self { mean, p95: None, cv: None }
    }

    /// Of a window's samples: mean, 95th percentile (linear interpolation) and population CV. What is not a number is
    /// left out; `None` when nothing is left.
    #[must_use]
    pub fn from_values(values: &[f64]) -> Option<Self> {
        let mut values: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
        if values.is_empty() {
            return None;
        }
        values.sort_by(f64::total_cmp);
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
        let cv = if mean == 0.0 { 0.0 } else { variance.sqrt() / mean.abs() };
        Some(Self { mean, p95: carma_stats::quantile(&values, 0.95), cv: Some(cv) })
    }
}

impl<'de> Deserialize<'de> for Stat {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Whole {
            mean: f64,
            #[serde(default)]
            p95: Option<f64>,
            #[serde(default)]
            cv: Option<f64>,
        }
        impl From<f64> for Whole {
            fn from(mean: f64) -> Self {
                Self { mean, p95: None, cv: None }
            }
        }
        let Whole { mean, p95, cv } =
            wrong::number_or_object(deserializer, "a number or an object with `mean`")?;
        Ok(Self { mean, p95, cv })
    }
}

macro_rules! metrics {
    ($($(#[doc = $doc:literal])+ $name:ident $([$alias:literal])? ..= $most:literal),+ $(,)?) => {
        /// What a task uses of its GPU and host when it is alone. `None`: not measured. Percentages are of the
        /// device's peak (DCGM's fields 1001-1008, NVML's GPM metrics), 0 to 100.
        #[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
        pub struct Metrics {
            $($(#[doc = $doc])+
            #[serde(default, skip_serializing_if = "Option::is_none" $(, alias = $alias)?)]
            pub $name: Option<Stat>,)+
        }

        impl Metrics {
            /// Names in a file.
            pub const NAMES: &[&str] = &[$(stringify!($name)),+];
            /// Other names that are read.
            const ALIASES: &[&str] = &[$($($alias,)?)+];

            /// Over the samples of a window, each of which holds single values as means. What no sample has is `None`.
            #[must_use]
            pub fn over(samples: &[Self]) -> Self {
                Self {
                    $($name: {
                        let values: Vec<f64> = samples.iter().filter_map(|s| Some(s.$name?.mean)).collect();
                        Stat::from_values(&values)
                    },)+
                }
            }

            /// Mean of the same moment on several GPUs. What one of them lacks is `None`.
            #[must_use]
            pub fn mean_of_all(gpus: &[Self]) -> Self {
                Self {
                    $($name: {
                        let sum: Option<f64> = gpus.iter().map(|g| Some(g.$name?.mean)).sum();
                        sum.filter(|_| !gpus.is_empty()).map(|sum| Stat::of(sum / gpus.len() as f64))
                    },)+
                }
            }

            /// Name, value and the largest sensible mean of each metric.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, Option<Stat>, f64)> {
                [$((stringify!($name), self.$name, $most)),+].into_iter()
            }
        }
    };
}

metrics! {
    /// Graphics or compute engine active.
    gract_pct ..= 100.0,
    /// SMACT: SM active, mean over the SMs.
    smact_pct ["sm_active_pct"] ..= 100.0,
    /// SMOCC: resident warps over the most that fit, mean over the SMs.
    smocc_pct ["sm_occupancy_pct"] ..= 100.0,
    /// DRAM active, of the theoretical bandwidth.
    drama_pct ["dram_active_pct"] ..= 100.0,
    /// Any tensor pipe active.
    tensor_pct ["tensor_active_pct"] ..= 100.0,
    /// FP64 pipe active.
    fp64_pct ..= 100.0,
    /// FP32 pipe active.
    fp32_pct ..= 100.0,
    /// FP16 pipe active.
    fp16_pct ..= 100.0,
    /// PCIe traffic to the GPU, MiB/s.
    pcie_rx_mib_s ..= 1e6,
    /// PCIe traffic from the GPU, MiB/s.
    pcie_tx_mib_s ..= 1e6,
    /// Power of the board.
    power_w ..= 1e5,
    /// Clock of the SMs.
    sm_clock_mhz ..= 1e5,
    /// `nvidia-smi`'s GPU utilisation: time with any kernel resident.
    gpu_util_pct ..= 100.0,
    /// `nvidia-smi`'s memory utilisation: time in which DRAM was read or written.
    mem_util_pct ..= 100.0,
    /// GPU memory of the task. Profiles of `carma profile` give its peak.
    memory_mib ..= 1e9,
    /// Host CPU of the task, 100 for one core.
    cpu_pct ..= 1e6,
    /// Host memory of the task.
    host_memory_mib ..= 1e9,
}

/// A reading as a sample.
impl From<&GpuReading> for Metrics {
    fn from(reading: &GpuReading) -> Self {
        let share = |value: Option<Fraction>| value.map(|value| Stat::of(f64::from(value.0) / 100.0));
        let number = |value: Option<u32>, unit: f64| value.map(|value| Stat::of(f64::from(value) / unit));
        let activity = &reading.activity;
        Self {
            gract_pct: share(activity.gract),
            smact_pct: share(activity.smact),
            smocc_pct: share(activity.smocc),
            drama_pct: share(activity.drama),
            tensor_pct: share(activity.tensor),
            fp64_pct: share(activity.fp64),
            fp32_pct: share(activity.fp32),
            fp16_pct: share(activity.fp16),
            pcie_rx_mib_s: number(activity.pcie_rx_mib_s, 1.0),
            pcie_tx_mib_s: number(activity.pcie_tx_mib_s, 1.0),
            power_w: number(reading.power_mw, 1000.0),
            sm_clock_mhz: number(reading.sm_clock_mhz, 1.0),
            gpu_util_pct: share(activity.gpu_util),
            mem_util_pct: share(activity.mem_util),
            ..Self::default()
        }
    }
}

/// What Nsight Compute saw: means over kernels, weighted by their duration. KACE's feature set (SoCC 2024).
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Kernels {
    /// Threads of a launch: grid times block.
    pub threads: f64,
    /// Compute (SM) throughput, percent of the peak.
    pub sm_throughput_pct: f64,
    /// DRAM throughput, percent of the peak.
    pub dram_throughput_pct: f64,
    /// Memory throughput, percent of the peak of its busiest unit.
    pub memory_throughput_pct: f64,
    /// Registers of a launch: threads times registers a thread.
    pub registers: f64,
    /// Static shared memory of a launch, bytes: grid times bytes a block.
    pub static_shared_memory: f64,
}

impl Kernels {
    /// Name, value and the largest sensible value of each.
    fn iter(&self) -> impl Iterator<Item = (&'static str, f64, f64)> {
        [
            ("threads", self.threads, 1e15),
            ("sm_throughput_pct", self.sm_throughput_pct, 105.0),
            ("dram_throughput_pct", self.dram_throughput_pct, 105.0),
            ("memory_throughput_pct", self.memory_throughput_pct, 105.0),
            ("registers", self.registers, 1e15),
            ("static_shared_memory", self.static_shared_memory, 1e15),
        ]
        .into_iter()
    }
}

/// Why a profile cannot be used: which task, what is wrong, what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadProfile(pub String);

impl fmt::Display for BadProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadProfile {}

impl Profile {
    /// Class under which it is learned.
    #[must_use]
    pub fn class(&self) -> &str {
        self.class.as_deref().unwrap_or(&self.name)
    }

    /// Its speed alone by thread percentage over its speed without a limit, for
    /// [`crate::share::curve_at`]: (percent, share), ascending. Empty where it was not measured.
    #[must_use]
    pub fn curve(&self) -> Vec<(f64, f64)> {
        let full = self.rate_by_threads_pct.get(&100).copied().or(self.rate.as_ref().map(|r| r.per_s));
        let Some(full) = full.filter(|full| *full > 0.0) else { return Vec::new() };
        self.rate_by_threads_pct.iter().map(|(pct, rate)| (f64::from(*pct), rate / full)).collect()
    }

    /// Numbers that make no sense are named.
    ///
    /// # Errors
    /// A name that is empty, a rate that is not above 0, a metric or a number of `kernels` outside its range, a
    /// thread percentage outside 1 to 100.
    pub fn check(&self) -> Result<(), BadProfile> {
        let bad = |what: String| Err(BadProfile(format!("task `{}`: {what}", self.name)));
        if self.name.trim().is_empty() {
            return Err(BadProfile("a task has no name; give each one of its own".into()));
        }
        if let Some(rate) = &self.rate
            && !(rate.per_s.is_finite() && rate.per_s > 0.0)
        {
            return bad(format!(
                "its rate alone is {}: a task that makes no progress alone has no slowdown; profile it again over a \
                 longer window, or leave `rate` out",
                rate.per_s
            ));
        }
        for (name, stat, most) in self.metrics.iter() {
            let Some(stat) = stat else { continue };
            let parts = [("", Some(stat.mean)), (".p95", stat.p95)];
            for (part, value) in parts.into_iter().filter_map(|(part, value)| Some((part, value?))) {
                // Counters that are read a little apart overshoot by a few per cent.
                if !(value.is_finite() && (0.0..=most * 1.05).contains(&value)) {
                    return bad(format!("{name}{part} is {value}, expected 0 to {most}"));
                }
            }
            if let Some(cv) = stat.cv
                && !(cv.is_finite() && cv >= 0.0)
            {
                return bad(format!("{name}.cv is {cv}, expected 0 or more"));
            }
        }
        for (name, value, most) in self.kernels.iter().flat_map(Kernels::iter) {
            if !(value.is_finite() && (0.0..=most).contains(&value)) {
                return bad(format!("kernels.{name} is {value:?}, expected 0 to {most:?}"));
            }
        }
        for (pct, rate) in &self.rate_by_threads_pct {
            if !((1..=100).contains(pct) && rate.is_finite() && *rate > 0.0) {
                return bad(format!(
                    "rate_by_threads_pct has {pct}: {rate}, expected a percentage from 1 to 100 and a rate above 0"
                ));
            }
        }
        Ok(())
    }
}

/// The keys of each task's `metrics` that are no metric.
fn unknown_metrics(text: &str) -> Vec<Vec<String>> {
    #[derive(Deserialize)]
    struct File {
        tasks: Vec<Task>,
    }
    #[derive(Deserialize)]
    struct Task {
        #[serde(default)]
        metrics: BTreeMap<String, IgnoredAny>,
    }
    let unknown = |task: Task| {
        let keys = task.metrics.into_keys();
        keys.filter(|key| ![Metrics::NAMES, Metrics::ALIASES].concat().contains(&key.as_str())).collect()
    };
    let file: Option<File> = serde_json::from_str(text).ok();
    file.into_iter().flat_map(|file| file.tasks).map(unknown).collect()
}

impl Profiles {
    /// Reads a file. Metrics that this program does not know, misspelt or newer, become remarks of their task that
    /// begin with [`NOT_READ`].
    ///
    /// # Errors
    /// Text that is not JSON of this form (the message names task and key), a newer version, two tasks of one name, or a task that
    /// [`Profile::check`] refuses.
    pub fn read(text: &str) -> Result<Self, BadProfile> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
            tasks: Option<IgnoredAny>,
        }
        // Editors of some systems put it first.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let form = |e: serde_json::Error| wrong::explain(text, &e);
        let Versioned { version, tasks } = serde_json::from_str(text).map_err(form)?;
        // A file of another kind has versions of its own: that it is no file of profiles is said below.
        if tasks.is_some() && (version == 0 || version > VERSION) {
            return Err(BadProfile(format!(
                "version {version} of the format is not known to this program, which reads version {VERSION}"
            )));
        }
        let mut profiles: Self = serde_json::from_str(text).map_err(form)?;
        let mut names = BTreeSet::new();
        let mut unknown = unknown_metrics(text).into_iter();
        for task in &mut profiles.tasks {
            task.check()?;
            for metric in unknown.next().into_iter().flatten() {
                let metric: String = metric.chars().take(60).collect();
                task.remarks.push(format!("{NOT_READ}metric `{metric}`, which this carma does not know"));
            }
            if !names.insert(task.name.clone()) {
                return Err(BadProfile(format!("two tasks are named `{}`; names must differ", task.name)));
            }
            if task.gpu.is_none() {
                task.gpu.clone_from(&profiles.gpu);
            }
        }
        Ok(profiles)
    }

    /// The task of that name.
    ///
    /// # Errors
    /// There is none; the message names those that there are.
    pub fn task(&self, name: &str) -> Result<&Profile, BadProfile> {
        self.tasks.iter().find(|task| task.name == name).ok_or_else(|| {
            let known: Vec<&str> = self.tasks.iter().map(|task| task.name.as_str()).collect();
            BadProfile(format!("no task is named `{name}`; there are: {}", known.join(", ")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(tasks: &str) -> Result<Profiles, BadProfile> {
        Profiles::read(&format!(r#"{{"version": 1, "gpu": "NVIDIA H200", "tasks": [{tasks}]}}"#))
    }

    #[test]
    fn numbers_and_objects_are_read_alike() {
        let profiles = read(
            r#"{"name": "a", "rate": 12.5, "metrics": {"smact_pct": 41, "sm_occupancy_pct": {"mean": 17, "p95": 20}},
                "rate_by_threads_pct": {"50": 10.0, "100": 12.5}},
               {"name": "b", "rate": {"per_s": 3.0, "unit": "steps", "source": "heartbeat"}, "gpu": "A100"}"#,
        )
        .unwrap();
        let a = profiles.task("a").unwrap();
        assert_eq!(a.metrics.smact_pct, Some(Stat::of(41.0)));
        assert_eq!(a.metrics.smocc_pct, Some(Stat { mean: 17.0, p95: Some(20.0), cv: None }));
        assert_eq!(a.metrics.drama_pct, None);
        assert_eq!(a.curve(), [(50.0, 0.8), (100.0, 1.0)]);
        assert_eq!(a.gpu.as_deref(), Some("NVIDIA H200"));
        let b = profiles.task("b").unwrap();
        assert_eq!(b.rate.as_ref().unwrap().source, Some(RateSource::Heartbeat));
        assert_eq!(b.gpu.as_deref(), Some("A100"));
        let again = Profiles::read(&serde_json::to_string(&profiles).unwrap()).unwrap();
        assert_eq!(again, profiles);
    }

    #[test]
    fn a_mark_of_byte_order_is_skipped() {
        let profiles = Profiles::read("\u{feff}{\"version\": 1, \"tasks\": [{\"name\": \"a\"}]}").unwrap();
        assert_eq!(profiles.tasks[0].name, "a");
    }

    #[test]
    fn metrics_that_are_not_known_are_remarked() {
        let profiles = read(
            r#"{"name": "a", "metrics": {"smact_pct": 1}},
               {"name": "b", "metrics": {"sm_act_pct": 41, "sm_active_pct": 40, "new": [{}]}, "remarks": ["short"]}"#,
        )
        .unwrap();
        assert!(profiles.tasks[0].remarks.is_empty(), "{:?}", profiles.tasks[0]);
        assert_eq!(
            profiles.tasks[1].remarks,
            [
                "short",
                "not read: metric `new`, which this carma does not know",
                "not read: metric `sm_act_pct`, which this carma does not know"
            ]
        );
        // Written and read again it is said once.
        assert_eq!(Profiles::read(&serde_json::to_string(&profiles).unwrap()).unwrap(), profiles);
    }

    #[test]
    fn kernels_that_make_no_sense_are_named() {
        let right =
            Kernels { threads: 3e5, sm_throughput_pct: 100.4, registers: 1.4e7, ..Kernels::default() };
        for (key, value, said) in [
            ("sm_throughput_pct", 106.0, Some("kernels.sm_throughput_pct is 106.0, expected 0 to 105.0")),
            ("dram_throughput_pct", -1.0, Some("kernels.dram_throughput_pct is -1.0")),
            ("memory_throughput_pct", 1e9, Some("kernels.memory_throughput_pct is 1000000000.0")),
            ("threads", 1e300, Some("kernels.threads is 1e300, expected 0 to 1000000000000000.0")),
            ("registers", -5.0, Some("kernels.registers is -5.0")),
            ("static_shared_memory", 2e15, Some("kernels.static_shared_memory is 2000000000000000.0")),
            ("static_shared_memory", 1e15, None),
        ] {
            let mut kernels = serde_json::json!(right);
            kernels[key] = value.into();
            let result = read(&serde_json::json!({"name": "a", "kernels": kernels}).to_string());
            match (said, result.map_err(|e| e.to_string())) {
                (Some(said), Err(error)) => {
                    assert!(error.starts_with("task `a`: ") && error.contains(said), "{error}");
                }
                (None, Ok(_)) => {}
                (said, result) => panic!("{said:?}: {result:?}"),
            }
        }
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        for (tasks, said) in [
            (r#"{"name": "a", "rate": 0}"#, "rate alone is 0"),
            (r#"{"name": "a", "metrics": {"smact_pct": 180}}"#, "smact_pct is 180, expected 0 to 100"),
            (r#"{"name": "a", "metrics": {"smact_pct": {"mean": 1, "p95": -3}}}"#, "smact_pct.p95 is -3"),
            (r#"{"name": "a", "metrics": {"smact_pct": {"mean": 1, "cv": -3}}}"#, "smact_pct.cv is -3"),
            (r#"{"name": "a"}, {"name": "a"}"#, "two tasks are named `a`"),
            (r#"{"name": " "}"#, "has no name"),
            (r#"{"name": "a", "rate_by_threads_pct": {"0": 1}}"#, "expected a percentage"),
            (r#"{"name": "a", "rate": "fast"}"#, "not a file of solo profiles"),
        ] {
            let error = read(tasks).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
        let newer = Profiles::read(r#"{"version": 7, "tasks": []}"#).unwrap_err().to_string();
        assert!(newer.contains("version 7"), "{newer}");
        let error = read(r#"{"name": "a"}"#).unwrap().task("x").unwrap_err().to_string();
        assert!(error.contains("`x`; there are: a"), "{error}");
    }
}
