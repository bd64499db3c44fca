//! The configuration file: TOML, unknown keys refused by name and place.

pub mod keys;
pub mod limits;

use crate::error::ServeError;
use crate::layout;
use carma_api::parse;
use carma_core::model::SharingMode;
use carma_core::policy::{
    Gate, Line, MemoryScreen, Objective, Options, Order, Policy, RecoveryMethod, presets,
};
use carma_core::units::{Fraction, MiB, Millis};
use carma_core::windows::Risk;
use carma_files::Why;
use carma_interference::kace::trained::Trained;
use carma_virtual_gpu::{SpecError, VirtualSpec};
use keys::{Key, Kind, Section, Value, section};
use limits::LimitsConfig;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use toml::de::DeTable;

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}{}: {what}", file.display(), line.map_or_else(String::new, |line| format!(":{line}")))]
pub struct ConfigError {
    /// Which file.
    pub file: PathBuf,
    /// Line, from 1; `None`: the file could not be read.
    pub line: Option<usize>,
    /// What was found and what was expected.
    pub what: String,
}

/// A value that is well-formed and makes no sense.
#[derive(Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Names of the tables that it is in, and its key.
    pub at: Vec<String>,
    /// What is wrong with it.
    pub what: String,
}

impl Mistake {
    fn new(at: &[&str], what: impl Into<String>) -> Self {
        Self { at: at.iter().map(ToString::to_string).collect(), what: what.into() }
    }

    /// Its line in the file, from 1; of what is not written there, that of the table.
    fn line(&self, text: &str) -> usize {
        let mut start = 0;
        if let Ok(file) = DeTable::parse(text) {
            let mut table = Some(file.get_ref());
            for name in &self.at {
                let Some(found) = table.and_then(|table| table.get(name.as_str())) else { break };
                start = found.span().start;
                table = found.get_ref().as_table();
            }
        }
        carma_files::line_at(text, start)
    }

    fn in_file(self, file: &Path, text: &str) -> ConfigError {
        ConfigError { file: file.to_owned(), line: Some(self.line(text)), what: self.what }
    }
}

/// Memory size as users write it.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
pub struct Size(pub MiB);

impl TryFrom<String> for Size {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        parse::memory(&text).map(Self)
    }
}

/// Half-lives and periods that make sense.
const LONG: std::ops::RangeInclusive<Millis> = Millis::secs(60)..=Millis::secs(3650 * 86_400);

/// Time span as users write it.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
pub struct Span(pub Millis);

impl TryFrom<String> for Span {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        parse::duration(&text).map(Self)
    }
}

section! {
    /// The file. Every key is optional.
    pub struct Config "" {
        /// The Unix socket that clients use. Default: `/run/carma/carma.sock` of root's daemon, of a user's own
        /// `$XDG_RUNTIME_DIR/carma/carma.sock`, else `~/.local/state/carma/carma.sock`.
        pub socket: PathBuf = Example("\"/run/carma/carma.sock\""),
        /// Directory of the journal, of the logs of jobs that name none, and of everything else that carma keeps. It
        /// must be on a local disk. Default: `/var/lib/carma` of root's daemon, `~/.local/state/carma` of a user's own.
        pub state_dir: PathBuf = Example("\"/var/lib/carma\""),
        /// The GPUs: `auto` and `nvml` are those of the machine, `virtual:4xA100-40GB` is a model.
        pub gpus: String = Is("\"auto\""),
        /// The policy: a name of docs/policies.md.
        pub policy: String = Is("\"adaptive\""),
        /// For the policy `kace`: the model by which it predicts, a file that `carma lab kace train` wrote. Default: the one
        /// that carma ships (docs/research/kace.md).
        pub kace_model: PathBuf = Example("\"/etc/carma/kace.json\""),
        /// How jobs share a GPU that do not say.
        pub sharing: SharingMode = Is("\"mps\""),
        /// Group (name or number) whose members may do what root may. Default: `carma-operators`, if there is such a
        /// group. A daemon of a user's own has no operators.
        pub operators: String = Example("\"carma-operators\""),
    } and {
        /// Changes to the gate of the policy.
        pub gate: GateConfig,
        /// Forecasts of GPU memory.
        pub memory: MemoryConfig,
        /// Sampling and windows.
        pub sampling: SamplingConfig,
        /// The queue.
        pub queue: QueueConfig,
        /// Out-of-memory and faults.
        pub recovery: RecoveryConfig,
        /// The MPS daemons.
        pub mps: MpsConfig,
        /// Running jobs.
        pub jobs: JobsConfig,
        /// What one user may have.
        pub limits: LimitsConfig,
        /// The journal.
        pub journal: JournalConfig,
        /// What is recorded of the GPUs.
        pub recorder: RecorderConfig,
    }
}

section! {
    /// Changes to the gate of the policy: a GPU is not shared where SMACT reaches its limit and SMOCC or DRAMA does too.
    /// The defaults are those of the policy: `carma` has 0.65, 0.35 and 0.50. A policy without a gate (`adaptive`, `or-rr`)
    /// takes none of these keys but `enabled`.
    #[derive(Copy)]
    pub struct GateConfig "gate" {
        /// `false`: no gate, so that GPUs whose activity is not known are shared too.
        pub enabled: bool = Is("true"),
        /// How a window of samples becomes one number.
        pub risk: Risk = Example("\"carma\""),
        /// Limit of SMACT, 0 to 1.
        pub smact: f64 = Example("0.65"),
        /// Limit of SMOCC, 0 to 1.
        pub smocc: f64 = Example("0.35"),
        /// Limit of DRAMA, 0 to 1.
        pub drama: f64 = Example("0.50"),
    }
}

section! {
    /// GPU memory.
    pub struct MemoryConfig "memory" {
        /// Kept free on each GPU.
        pub reserve: Size = Is("\"512M\""),
        /// Added to a forecast. Default: the policy's; `carma` has 512 MiB, `adaptive` none.
        pub guard: Size = Example("\"512M\""),
        /// A settled job keeps its peak plus this, percent, at most 200, ...
        pub margin_percent: u64 = Is("10"),
        /// ... but at least plus this.
        pub margin_min: Size = Is("\"512M\""),
        /// Estimators whose answers count beside earlier runs, of those that clients send (docs/memory.md). `[]`: earlier
        /// runs and the users' numbers only.
        pub estimators: Vec<String> = Is("[\"allocator\", \"share\"]"),
        /// How often a bound should hold, where enough runs tell; above 0.5, below 1.
        pub coverage: f64 = Is("0.95"),
        /// Added to the largest peak of the same command, percent; at most 2 from the third run on.
        pub exact_margin_percent: u64 = Is("5"),
        /// Added to what is scaled from other runs of the same program, percent.
        pub scaled_margin_percent: u64 = Is("15"),
        /// Added where memory went on growing, percent.
        pub growing_margin_percent: u64 = Is("40"),
    }
}

section! {
    /// Looking at the GPUs.
    #[derive(Copy)]
    pub struct SamplingConfig "sampling" {
        /// Samples a second, 1 to 50.
        pub hz: u32 = Is("10"),
        /// How far the windows of activity reach back, and how long a start-up is watched.
        pub window: Span = Is("\"30s\""),
        /// A job that shows no GPU activity for this long no longer keeps its GPU closed to others.
        pub startup_patience: Span = Is("\"5m\""),
        /// An older reading is no reading.
        pub stale_after: Span = Is("\"5s\""),
    }
}

section! {
    /// The queue. The defaults are those of the policy; shown are those of `adaptive` with its first objective.
    #[derive(Copy)]
    pub struct QueueConfig "queue" {
        /// What `adaptive` is after: `jct` that jobs are done soon, in the mean; `makespan` that the last one is; `energy` that
        /// fewer GPUs are at work; `fair` that users who wait beside each other get as much done (docs/policies.md#objectives).
        pub objective: Objective = Is("\"jct\""),
        /// `true`: no job overtakes one that waits.
        pub strict_fifo: bool = Is("false"),
        /// How long a waiting job may be overtaken, where the policy's order is that of arrival.
        pub overtake_for: Span = Example("\"30m\""),
        /// The most jobs on one GPU; 0: no limit.
        pub most_jobs: u32 = Is("0"),
        /// `false`: the policy's order decides among idle GPUs too.
        pub idle_first: bool = Is("true"),
        /// Which of the GPUs that would do is taken. `speedup` takes the one on which the job adds most to the predicted
        /// sum of progress; `packed` does so too, and takes idle GPUs last; `throughput` the one whose jobs get most done together by KACE's prediction.
        pub order: Order = Is("\"speedup\""),
        /// `adaptive` lets a job join others only where it is predicted to keep this share of its speed alone; those that are there
        /// four fifths of it at any time, and six fifths over their whole run.
        pub floor: f64 = Is("0.5"),
        /// ... and where the sum of those shares grows by this much.
        pub gain: f64 = Is("0.2"),
        /// Where users are held against each other (docs/fairness.md), what one has had counts half as much after this long.
        pub usage_half_life: Span = Is("\"7d\""),
        /// How long a quota of `[limits]` is for. Periods follow each other from 1970-01-01 on.
        pub quota_period: Span = Is("\"30d\""),
    }
}

section! {
    /// Out-of-memory and faults.
    #[derive(Copy)]
    pub struct RecoveryConfig "recovery" {
        /// `graded` raises the memory of the next attempt step by step; `exclusive` gives it a GPU alone at once. Default: that of
        /// the policy's authors, `exclusive` for CARMA's (`oracle-`, `or-` and `est-`), else `graded`.
        pub method: RecoveryMethod = Is("\"graded\""),
        /// How often running out of GPU memory is retried, for jobs that do not say.
        pub max_retries: u32 = Is("5"),
        /// Faults under MPS within this time belong together.
        pub fault_window: Span = Is("\"20s\""),
    }
}

section! {
    /// The MPS daemons.
    pub struct MpsConfig "mps" {
        /// Hard limits of GPU memory from forecasts. Default: `true` under `adaptive` and `carma`; published policies have none.
        pub caps: bool = Is("true"),
        /// One server for all users; docs/sharing.md says what that gives up.
        pub multi_user: bool = Is("false"),
        /// Jobs on several GPUs share by MPS, too. The end of one of their processes is a fatal fault for the jobs beside them
        /// (docs/recovery.md); without this they are time-sliced, unless a job asks for `--sharing mps`. Default: `true`, with
        /// `multi-user` `false`.
        pub several_gpus: bool = Example("false"),
        /// NVIDIA's control program: a name on `PATH`, or a path.
        pub control: PathBuf = Is("\"nvidia-cuda-mps-control\""),
        /// After a fault a GPU gets no new MPS client for this long.
        pub cooldown: Span = Is("\"5s\""),
    }
}

section! {
    /// Running jobs.
    #[derive(Copy)]
    pub struct JobsConfig "jobs" {
        /// From SIGTERM to SIGKILL.
        pub kill_grace: Span = Is("\"10s\""),
        /// How much neighbours may slow down jobs that do not say, 1 to 1000: 1.5 is one and a half times their time
        /// alone. Default: no limit.
        pub max_slowdown: f64 = Example("1.5"),
        /// How long the progress of a job is measured before its limit counts as broken.
        pub slowdown_window: Span = Is("\"15s\""),
        /// Jobs may be suspended for the sake of others, where they would else be ended or make others wait. Needs a driver that can
        /// (`carma doctor`). Default: `true` under `adaptive` and `carma`; published policies suspend nothing.
        pub suspend: bool = Is("true"),
    }
}

section! {
    /// The journal.
    #[derive(Copy)]
    pub struct JournalConfig "journal" {
        /// `full`: a job that was accepted survives a power cut. `normal`: it survives everything but that.
        pub sync: Sync = Is("\"full\""),
        /// Inputs kept after they are folded into a snapshot.
        pub keep_inputs: u64 = Is("100000"),
        /// Finished jobs kept in the history, with their logs; beyond, the oldest of the user who has most go.
        pub keep_jobs: u64 = Is("100000"),
        /// What the journal keeps of finished jobs at most, with their commands and without their environments; beyond, the oldest
        /// of the user who has most go, too.
        pub history_size: Size = Is("\"512M\""),
        /// Finished jobs whose environment is kept: `carma requeue` of one needs it.
        pub keep_environments: usize = Is("1000"),
        /// Space on the disk that is kept for the journal alone, so that a full disk does not stop it; at most a sixteenth
        /// of the disk.
        pub reserve: Size = Is("\"32M\""),
    }
}

section! {
    /// The recorder: a row a second of every GPU, of the jobs on it and of the host, for `carma report --last`.
    #[derive(Copy)]
    pub struct RecorderConfig "recorder" {
        /// `false`: nothing is recorded.
        pub enabled: bool = Is("true"),
        /// The most that the rows take on the disk; the oldest go first. Four GPUs with two jobs each take some 25 MiB a day. At
        /// most a sixteenth of the disk.
        pub size: Size = Is("\"256M\""),
    }
}

impl RecorderConfig {
    /// The most that rows take, bytes; 0: nothing is recorded.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        if self.enabled == Some(false) {
            return 0;
        }
        self.size.map_or(256 << 20, |size| size.0.0.saturating_mul(1 << 20))
    }
}

/// When the journal waits for the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sync {
    /// At every commit.
    Full,
    /// When SQLite checkpoints.
    Normal,
}

/// The largest configuration that is read, bytes: the one that lists every key has a few thousand.
const LARGEST: u64 = 1 << 20;

/// The largest model of KACE that is read, bytes: as much as `carma lab kace train` writes.
const LARGEST_MODEL: u64 = 256 << 20;

/// Reads and checks a configuration file.
///
/// # Errors
/// File, line and what was expected.
pub fn load(file: &Path) -> Result<Config, ConfigError> {
    read(file).map(|(config, _)| config)
}

/// Whether the daemon would start with a configuration file: also reads the files that it names.
///
/// # Errors
/// File, line and what was expected.
pub fn check(file: &Path) -> Result<Config, ConfigError> {
    let (config, text) = read(file)?;
    let mistake = |what| Mistake::new(&["kace-model"], what).in_file(file, &text);
    config.kace().map_err(mistake)?;
    let refused = |key, why: ServeError| Mistake::new(&[key], format!("{key}: {why}")).in_file(file, &text);
    let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
    if let Some(dir) = config.state_dir.as_ref().map(absolute) {
        layout::check_state_dir(&dir).map_err(|why| refused("state-dir", why))?;
    }
    if let Some(socket) = config.socket.as_ref().map(absolute) {
        layout::check_socket(&socket).map_err(|why| refused("socket", why))?;
    }
    Ok(config)
}

/// What GPUs are meant; `None`: those of the machine.
///
/// # Errors
/// What was expected.
pub(crate) fn virtual_gpus(gpus: &str) -> Result<Option<VirtualSpec>, String> {
    match gpus {
        "auto" | "nvml" => Ok(None),
        _ if gpus.starts_with("virtual:") => gpus.parse().map(Some).map_err(|e: SpecError| e.to_string()),
        _ => {
            let shown: String = gpus.chars().take(200).collect();
            Err(format!(
                "'{shown}' names no GPUs: expected auto, nvml or virtual:NxTYPE, e.g. virtual:4xA100-40GB"
            ))
        }
    }
}

/// The configuration and its text.
fn read(file: &Path) -> Result<(Config, String), ConfigError> {
    let fail = |line, what| ConfigError { file: file.to_owned(), line, what };
    let text = carma_files::read_text(file, LARGEST).map_err(|e| match e.why {
        Why::NotText { line, .. } => fail(Some(line), e.why.to_string()),
        why => fail(None, why.to_string()),
    })?;
    let config: Config = toml::from_str(&text).map_err(|e| {
        fail(Some(carma_files::line_at(&text, e.span().map_or(0, |s| s.start))), e.message().to_owned())
    })?;
    // Values that are well-formed and make no sense, found by building what they configure.
    let gpus = || config.gpus.as_deref().map_or(Ok(None), virtual_gpus);
    let built = config.options(0).and_then(|_| gpus().map_err(|what| Mistake::new(&["gpus"], what)));
    built.map_err(|mistake| mistake.in_file(file, &text))?;
    Ok((config, text))
}

fn fraction(section: &str, key: &str, value: f64) -> Result<Fraction, Mistake> {
    Fraction::from_f64(value).filter(|f| *f <= Fraction::ONE).ok_or_else(|| {
        Mistake::new(&[section, key], format!("{key} = {value} is not a share between 0 and 1"))
    })
}

impl Config {
    /// The options of the core. `admin_uid` is the user that carma runs as.
    ///
    /// # Errors
    /// The first value that makes no sense.
    pub fn options(&self, admin_uid: u32) -> Result<Options, Mistake> {
        let mut options = Options { admin_uid, ..Options::of(self.preset()?) };
        self.apply_policy(&mut options.policy)?;
        self.apply_times(&mut options)?;
        options.suspends = self.jobs.suspend.unwrap_or(options.suspends);
        if let Some(most) = self.jobs.max_slowdown {
            let factor = Fraction::from_f64(most).filter(|_| (1.0..=1000.0).contains(&most));
            options.max_slowdown = Some(factor.ok_or_else(|| {
                let text = format!("max-slowdown = {most} is not a factor from 1 to 1000");
                Mistake::new(&["jobs", "max-slowdown"], text)
            })?);
        }
        if let Some(sharing) = self.sharing {
            options.sharing = sharing;
        }
        options.caps = self.mps.caps.unwrap_or(options.caps);
        options.mps_multi_user = self.mps.multi_user.unwrap_or(options.mps_multi_user);
        // Of one user's jobs none ends another user's.
        options.mps_several_gpus = self.mps.several_gpus.unwrap_or(!options.mps_multi_user);
        options.margin_percent = self.memory.margin_percent.unwrap_or(options.margin_percent);
        options.margin_min = self.memory.margin_min.map_or(options.margin_min, |s| s.0);
        options.recovery = self.recovery.method.unwrap_or(options.recovery);
        options.max_retries = self.recovery.max_retries.unwrap_or(options.max_retries);
        self.check_memory()?;
        self.limits.check()?;
        options.allowances.for_all = self.limits.for_all_users().allowance();
        self.check_others()?;
        Ok(options)
    }

    /// The policy by itself.
    fn preset(&self) -> Result<Policy, Mistake> {
        let name = self.policy.as_deref().unwrap_or("adaptive");
        let policy = presets::by_name(name).ok_or_else(|| {
            let text = format!("there is no policy '{name}'; there are {}", presets::NAMES.join(", "));
            Mistake::new(&["policy"], text)
        })?;
        let Some(objective) = self.queue.objective else { return Ok(policy) };
        match &*policy.name {
            "adaptive" => Ok(presets::adaptive(objective)),
            // Both say the same.
            name if name == presets::adaptive(objective).name => Ok(policy),
            name => {
                let text = format!("objective: for the policy `adaptive` only, not for '{name}'");
                Err(Mistake::new(&["queue", "objective"], text))
            }
        }
    }

    /// What of the policy is configured otherwise.
    fn apply_policy(&self, policy: &mut Policy) -> Result<(), Mistake> {
        self.apply_gate(&mut policy.gate)?;
        if let Some(Size(reserve)) = self.memory.reserve {
            policy.reserve = reserve;
        }
        if let (Some(Size(new)), MemoryScreen::Forecast { guard, .. }) =
            (self.memory.guard, &mut policy.memory)
        {
            *guard = new;
        }
        if let Some(order) = self.queue.order {
            policy.order = order;
        }
        if let Some(idle_first) = self.queue.idle_first {
            policy.idle_first = idle_first;
        }
        if let Some(Span(limit)) = self.queue.overtake_for {
            policy.backfill = Some(limit);
        }
        if let Some(most) = self.queue.most_jobs {
            policy.most_jobs = (most > 0).then_some(most);
        }
        for (key, value) in [("floor", self.queue.floor), ("gain", self.queue.gain)] {
            let Some(value) = value else { continue };
            let value = fraction("queue", key, value)?;
            let Some(progress) = &mut policy.progress else {
                let text = format!(
                    "{key}: the policy '{}' does not go by predicted progress; `adaptive` does",
                    policy.name
                );
                return Err(Mistake::new(&["queue", key], text));
            };
            *(if key == "floor" { &mut progress.floor } else { &mut progress.gain }) = value;
        }
        match self.queue.strict_fifo {
            Some(true) => (policy.line, policy.backfill) = (Line::Arrival, None),
            Some(false) if policy.backfill.is_none() && policy.line == Line::Arrival => {
                policy.backfill = Some(Millis::secs(1800));
            }
            Some(false) | None => {}
        }
        Ok(())
    }

    fn apply_times(&self, options: &mut Options) -> Result<(), Mistake> {
        let set = |target: &mut Millis, value: Option<Span>| {
            if let Some(Span(value)) = value {
                *target = value;
            }
        };
        set(&mut options.usage_half_life, self.queue.usage_half_life);
        set(&mut options.quota_period, self.queue.quota_period);
        for (key, span) in
            [("usage-half-life", options.usage_half_life), ("quota-period", options.quota_period)]
        {
            if !LONG.contains(&span) {
                let text = format!("{key} = {span} is not a time from 1 minute to 10 years");
                return Err(Mistake::new(&["queue", key], text));
            }
        }
        set(&mut options.window, self.sampling.window);
        set(&mut options.startup_patience, self.sampling.startup_patience);
        set(&mut options.stale_after, self.sampling.stale_after);
        set(&mut options.fault_window, self.recovery.fault_window);
        set(&mut options.mps_cooldown, self.mps.cooldown);
        set(&mut options.kill_grace, self.jobs.kill_grace);
        set(&mut options.slowdown_window, self.jobs.slowdown_window);
        Ok(())
    }

    /// Values that the core does not get.
    fn check_others(&self) -> Result<(), Mistake> {
        if self.operators.as_deref() == Some("") {
            return Err(Mistake::new(
                &["operators"],
                "operators is empty: name a group, or leave the key out",
            ));
        }
        if let Some(hz) = self.sampling.hz
            && !(1..=50).contains(&hz)
        {
            let text = format!("hz = {hz}: samples a second must be 1 to 50");
            return Err(Mistake::new(&["sampling", "hz"], text));
        }
        for (key, path) in [("socket", &self.socket), ("state-dir", &self.state_dir)] {
            if path.as_ref().is_some_and(|path| path.as_os_str().is_empty()) {
                return Err(Mistake::new(
                    &[key],
                    format!("{key} is empty: name a path, or leave the key out"),
                ));
            }
        }
        Ok(())
    }

    /// What keeps no daemon from its start, and is seldom meant.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        let paths = [("socket", &self.socket), ("state-dir", &self.state_dir)];
        let relative = paths.into_iter().filter_map(|(key, path)| {
            let path = path.as_ref().filter(|path| !path.is_absolute())?;
            Some(format!(
                "{key} = '{}' is found from the directory where the daemon is started; name it from / on",
                path.display()
            ))
        });
        relative.collect()
    }

    /// What the policy `kace` predicts with.
    ///
    /// # Errors
    /// The key, and why the file is no model.
    pub(crate) fn kace(&self) -> Result<Option<Trained>, String> {
        let Some(file) = &self.kace_model else { return Ok(Trained::shipped()) };
        let text = carma_files::read_text(file, LARGEST_MODEL).map_err(|e| e.to_string());
        let trained = text
            .and_then(|text| Trained::read(&file.display().to_string(), &text).map_err(|e| e.to_string()));
        trained.map(Some).map_err(|why| format!("kace-model: {why}"))
    }

    fn check_memory(&self) -> Result<(), Mistake> {
        let memory = &self.memory;
        if let Some(coverage) = memory.coverage.filter(|c| !(*c > 0.5 && *c < 1.0)) {
            let text = format!("coverage = {coverage} is not a probability above 0.5 and below 1");
            return Err(Mistake::new(&["memory", "coverage"], text));
        }
        for (key, percent) in [
            ("margin-percent", memory.margin_percent),
            ("exact-margin-percent", memory.exact_margin_percent),
            ("scaled-margin-percent", memory.scaled_margin_percent),
            ("growing-margin-percent", memory.growing_margin_percent),
        ] {
            if let Some(percent) = percent.filter(|p| *p > 200) {
                let text = format!("{key} = {percent}: a margin is 0 to 200 percent");
                return Err(Mistake::new(&["memory", key], text));
            }
        }
        // Those two are not estimates of a model; both count anyway.
        let names = carma_memory::estimators::names().filter(|name| !matches!(*name, "auto" | "declared"));
        let names: Vec<&str> = names.collect();
        let unknown = memory.estimators.iter().flatten().find(|name| !names.contains(&name.as_str()));
        if let Some(unknown) = unknown {
            let text = format!("there is no estimator `{unknown}`; there are {}", names.join(", "));
            return Err(Mistake::new(&["memory", "estimators"], text));
        }
        Ok(())
    }

    fn apply_gate(&self, gate: &mut Gate) -> Result<(), Mistake> {
        let changes = &self.gate;
        if changes.enabled == Some(false) {
            *gate = Gate::None;
            return Ok(());
        }
        let limits = changes.smact.is_some() || changes.smocc.is_some() || changes.drama.is_some();
        if !limits && changes.risk.is_none() {
            return Ok(());
        }
        let Gate::Thresholds { risk, smact, smocc, drama } = gate else {
            return Err(Mistake::new(&["gate"], "this policy has no gate to change; choose another policy"));
        };
        *risk = changes.risk.unwrap_or(*risk);
        for (key, limit, value) in [
            ("smact", smact, changes.smact),
            ("smocc", smocc, changes.smocc),
            ("drama", drama, changes.drama),
        ] {
            if let Some(value) = value {
                *limit = fraction("gate", key, value)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod reference;

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let e = load(file.path()).unwrap_err();
        format!("{}: {}", e.line.unwrap_or_default(), e.what)
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        assert!(error("policy = 'carma'\npolcy = 1\n").starts_with("2: unknown field `polcy`"));
        assert!(
            error("\npolicy = 'oracle-rr'\n")
                .starts_with("2: there is no policy 'oracle-rr'; there are adaptive,")
        );
        assert!(error("policy = 'carma'\n[gate]\nsmact = 65\n").starts_with("3: smact = 65"));
        assert!(error("\n[gate]\nsmact = 0.5\n").starts_with("2: this policy has no gate"));
        assert!(
            error("policy = 'carma'\n[queue]\nfloor = 0.4\n").starts_with("3: floor: the policy 'carma'")
        );
        let text = error("policy = 'carma'\n[queue]\nobjective = 'energy'\n");
        assert_eq!(text, "3: objective: for the policy `adaptive` only, not for 'carma'");
        let text = error("policy = 'adaptive:fair'\n[queue]\nobjective = 'energy'\n");
        assert_eq!(text, "3: objective: for the policy `adaptive` only, not for 'adaptive:fair'");
        let text = error("[queue]\nobjective = 'speed'\n");
        assert!(
            text.starts_with(
                "2: unknown variant `speed`, expected one of `jct`, `makespan`, `energy`, `fair`"
            ),
            "{text}"
        );
        assert!(error("[queue]\ngain = 2\n").starts_with("2: gain = 2 is not a share"));
        assert!(error("[memory]\nreserve = '512'\n").contains("has no unit"));
        assert!(error("[memory]\ncoverage = 95\n").starts_with("2: coverage = 95 is not a probability"));
        let text = error("[memory]\nestimators = ['allocator', 'orakel']\n");
        assert!(text.starts_with("2: there is no estimator `orakel`; there are allocator,"), "{text}");
        for key in ["margin-percent", "scaled-margin-percent"] {
            let text = error(&format!("[memory]\n{key} = 900\n"));
            assert_eq!(text, format!("2: {key} = 900: a margin is 0 to 200 percent"));
        }
        let text = error("[queue]\nquota-period = '5s'\n");
        assert_eq!(text, "2: quota-period = 5 s is not a time from 1 minute to 10 years");
        assert!(error("sharing = 'sometimes'\n").contains("unknown variant"));
        let text = error("\ngpus = 'nonsense'\n");
        assert!(
            text.starts_with("2: 'nonsense' names no GPUs: expected auto, nvml or virtual:NxTYPE"),
            "{text}"
        );
        let text = error("gpus = 'virtual:9xFOO'\n");
        assert!(text.starts_with("1: ") && text.contains("FOO"), "{text}");
        // Of keys that are in several tables the right one, however the table is written.
        let text = error("[limits]\nshare = 2\n[limits.user.bob]\nshare = 0\n");
        assert_eq!(text, "4: limits.user.bob: share 0 is not a share from 1 to 1000");
        let text = error("[limits]\nshare = 2\n[limits.group]\n'a.b' = { gpus = 1,\nshare = 0 }\n");
        assert_eq!(text, "5: limits.group.a.b: share 0 is not a share from 1 to 1000");
        let text = error("[limits]\npriority-max = -5\n[limits.user.bob]\npriority-min = -4\n");
        assert_eq!(text, "4: limits.user.bob: priority-min -4 is above priority-max -5");
        assert_eq!(error("\nsocket = ''\n"), "2: socket is empty: name a path, or leave the key out");
        assert!(error("state-dir = ''\n").starts_with("1: state-dir is empty"));
        for section in ["limits]\nlog-size", "journal]\nreserve", "recorder]\nsize", "memory]\nguard"] {
            let text = error(&format!("[{section} = '0M'\n"));
            assert!(text.starts_with("2: '0M' is not a sensible size"), "{text}");
        }
    }

    #[test]
    fn a_model_that_cannot_be_read_is_a_mistake() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "policy = 'kace'\nkace-model = '/nowhere'\n").unwrap();
        let error = check(file.path()).unwrap_err();
        assert_eq!(error.line, Some(2));
        assert!(error.what.starts_with("kace-model: ") && error.what.contains("/nowhere"), "{error}");
        std::fs::write(file.path(), "policy = 'kace'\n").unwrap();
        check(file.path()).unwrap();
    }

    #[test]
    fn an_objective_comes_before_single_values() {
        let policy = |text: &str| toml::from_str::<Config>(text).unwrap().options(0).unwrap().policy;
        assert_eq!(policy("[queue]\nobjective = 'jct'\n"), policy(""));
        let fair = policy("policy = 'adaptive:fair'\n");
        assert_eq!(policy("policy = 'adaptive:fair'\n[queue]\nobjective = 'fair'\n"), fair);
        let makespan = policy("[queue]\nobjective = 'makespan'\n");
        assert_eq!((&*makespan.name, makespan.line), ("adaptive:makespan", Line::Longest));
        let mut other = policy("[queue]\nobjective = 'makespan'\nfloor = 0.4\n");
        assert_eq!(other.progress.map(|rule| rule.floor), Some(Fraction::percent(40)));
        other.progress = makespan.progress;
        assert_eq!(other, makespan);
    }

    #[test]
    fn the_gate_of_a_preset_can_be_changed() {
        let config: Config = toml::from_str("policy = 'or-magm'\n[gate]\nsmact = 0.5\n").unwrap();
        let options = config.options(0).unwrap();
        assert!(matches!(
            options.policy.gate,
            Gate::Thresholds { smact: Fraction(5000), smocc: Fraction(4500), .. }
        ));
    }
}
