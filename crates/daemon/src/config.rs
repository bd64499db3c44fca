//! The configuration file: TOML, unknown keys refused by name and place.

pub mod limits;

use carma_api::parse;
use carma_core::model::SharingMode;
use carma_core::policy::{Gate, MemoryScreen, Options, Order, RecoveryMethod, presets};
use carma_core::units::{Fraction, MiB, Millis};
use carma_core::windows::Risk;
use carma_files::Why;
use limits::LimitsConfig;
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}:{line}: {what}", file.display())]
pub struct ConfigError {
    /// Which file.
    pub file: PathBuf,
    /// Line, from 1.
    pub line: usize,
    /// What was found and what was expected.
    pub what: String,
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

/// The file. Every key is optional.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Config {
    /// Unix socket that clients use.
    pub socket: Option<PathBuf>,
    /// Directory of the journal, the logs and everything else that carma keeps.
    pub state_dir: Option<PathBuf>,
    /// `auto`, `nvml` or `virtual:...`.
    pub gpus: Option<String>,
    /// Name of a policy preset.
    pub policy: Option<String>,
    /// Sharing mode of jobs that do not ask for one.
    pub sharing: Option<SharingMode>,
    /// Group whose members may do what root may: a name or a number; `carma-operators` where there is such a group.
    pub operators: Option<String>,
    /// Changes to the preset's gate.
    pub gate: GateConfig,
    /// Forecasts of memory: `[memory]`.
    pub memory: MemoryConfig,
    /// Sampling and windows.
    pub sampling: SamplingConfig,
    /// The queue.
    pub queue: QueueConfig,
    /// Out-of-memory and faults.
    pub recovery: RecoveryConfig,
    /// The MPS daemons: `[mps]`.
    pub mps: MpsConfig,
    /// Running jobs.
    pub jobs: JobsConfig,
    /// What one user may have.
    pub limits: LimitsConfig,
    /// The journal.
    pub journal: JournalConfig,
}

/// Changes to the preset's gate.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct GateConfig {
    /// Risk formula.
    pub risk: Option<Risk>,
    /// Limit of SMACT, 0 to 1.
    pub smact: Option<f64>,
    /// Limit of SMOCC, 0 to 1.
    pub smocc: Option<f64>,
    /// Limit of DRAMA, 0 to 1.
    pub drama: Option<f64>,
    /// `false`: no gate.
    pub enabled: Option<bool>,
}

/// Forecasts of memory: `[memory]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct MemoryConfig {
    /// Kept free on each GPU.
    pub reserve: Option<Size>,
    /// Added to a forecast.
    pub guard: Option<Size>,
    /// Added to a settled job's peak, percent.
    pub margin_percent: Option<u64>,
    /// Added at least.
    pub margin_min: Option<Size>,
    /// Estimators whose answers count, of those that clients send; which of them is best is told by
    /// what each rests on. `[]`: runs and the users' numbers only.
    pub estimators: Option<Vec<String>>,
    /// Probability with which a bound should hold, where enough runs tell; above 0.5, below 1.
    pub coverage: Option<f64>,
    /// On top of the largest peak of the same command, percent; from the third run on at most 2.
    pub exact_margin_percent: Option<u64>,
    /// On top of what is scaled from other runs of the same program, percent.
    pub scaled_margin_percent: Option<u64>,
    /// On top where memory goes on growing, percent.
    pub growing_margin_percent: Option<u64>,
}

/// Sampling and windows.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct SamplingConfig {
    /// Samples a second; 10 by default.
    pub hz: Option<u32>,
    /// How far the windows reach back.
    pub window: Option<Span>,
    /// When a tenant without GPU activity no longer keeps its GPU closed.
    pub startup_patience: Option<Span>,
    /// A reading older than this is no reading.
    pub stale_after: Option<Span>,
}

/// The queue.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct QueueConfig {
    /// `true`: nobody overtakes a job that waits.
    pub strict_fifo: Option<bool>,
    /// How long a waiting job may be overtaken.
    pub overtake_for: Option<Span>,
    /// The most jobs on one GPU; 0: no limit.
    pub most_jobs: Option<u32>,
    /// `false`: the policy's order decides among idle GPUs too.
    pub idle_first: Option<bool>,
    /// Another order among the GPUs that would do, e.g. `speedup`.
    pub order: Option<Order>,
}

/// Out-of-memory and faults.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct RecoveryConfig {
    /// `graded` or `exclusive`.
    pub method: Option<RecoveryMethod>,
    /// Retries of jobs that do not say.
    pub max_retries: Option<u32>,
    /// Faults within this time belong together.
    pub fault_window: Option<Span>,
}

/// The MPS daemons: `[mps]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct MpsConfig {
    /// `false`: no hard memory limits.
    pub caps: Option<bool>,
    /// `true`: one server for all users.
    pub multi_user: Option<bool>,
    /// The control program.
    pub control: Option<PathBuf>,
    /// After a fault, no new client for this long.
    pub cooldown: Option<Span>,
}

/// Running jobs.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct JobsConfig {
    /// From SIGTERM to SIGKILL.
    pub kill_grace: Option<Span>,
    /// How much neighbours may slow down jobs that do not say: 1.5 is one and a half times their time alone.
    pub max_slowdown: Option<f64>,
    /// How long a job's progress is measured before a limit counts as exceeded.
    pub slowdown_window: Option<Span>,
}

/// The journal.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct JournalConfig {
    /// `full`: a job that was accepted survives a power cut. `normal`: it survives anything but that.
    pub sync: Option<Sync>,
    /// Inputs kept after they are folded into a snapshot.
    pub keep_inputs: Option<u64>,
    /// Finished jobs kept in the history.
    pub keep_jobs: Option<u64>,
    /// Finished jobs of which the environment is kept, for `carma requeue`.
    pub keep_environments: Option<usize>,
    /// Space on its disk that is kept for it alone, so that a full disk does not stop it.
    pub reserve: Option<Size>,
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

/// Reads and checks a configuration file.
///
/// # Errors
/// File, line and what was expected.
pub fn load(file: &Path) -> Result<Config, ConfigError> {
    let fail = |line, what| ConfigError { file: file.to_owned(), line, what };
    let text = carma_files::read_text(file, LARGEST).map_err(|e| match e.why {
        Why::NotText { line, .. } => fail(line, e.why.to_string()),
        why => fail(1, why.to_string()),
    })?;
    let config: Config = toml::from_str(&text).map_err(|e| {
        let at = e.span().map_or(0, |s| s.start.min(text.len()));
        let line = text.as_bytes()[..at].iter().filter(|b| **b == b'\n').count() + 1;
        fail(line, e.message().to_owned())
    })?;
    // Values that are well-formed and make no sense, found by building what they configure.
    config.options(0).map_err(|(key, what)| {
        let line = text.lines().position(|l| l.trim_start().starts_with(key)).map_or(1, |i| i + 1);
        fail(line, what)
    })?;
    Ok(config)
}

fn fraction(key: &'static str, value: f64) -> Result<Fraction, (&'static str, String)> {
    Fraction::from_f64(value)
        .filter(|f| *f <= Fraction::ONE)
        .ok_or_else(|| (key, format!("{key} = {value} is not a share between 0 and 1")))
}

impl Config {
    /// The options of the core. `admin_uid` is the user that carma runs as.
    ///
    /// # Errors
    /// The key and what is wrong with its value.
    pub fn options(&self, admin_uid: u32) -> Result<Options, (&'static str, String)> {
        let mut options = Options { admin_uid, ..Options::default() };
        if let Some(name) = &self.policy {
            options.policy = presets::by_name(name).ok_or_else(|| {
                ("policy", format!("there is no policy '{name}'; there are {}", presets::NAMES.join(", ")))
            })?;
        }
        let policy = &mut options.policy;
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
        match self.queue.strict_fifo {
            Some(true) => policy.backfill = None,
            Some(false) if policy.backfill.is_none() => policy.backfill = Some(Millis::secs(1800)),
            Some(false) | None => {}
        }
        let set = |target: &mut Millis, value: Option<Span>| {
            if let Some(Span(value)) = value {
                *target = value;
            }
        };
        set(&mut options.window, self.sampling.window);
        set(&mut options.startup_patience, self.sampling.startup_patience);
        set(&mut options.stale_after, self.sampling.stale_after);
        set(&mut options.fault_window, self.recovery.fault_window);
        set(&mut options.mps_cooldown, self.mps.cooldown);
        set(&mut options.kill_grace, self.jobs.kill_grace);
        set(&mut options.slowdown_window, self.jobs.slowdown_window);
        if let Some(most) = self.jobs.max_slowdown {
            options.max_slowdown =
                Some(Fraction::from_f64(most).filter(|_| (1.0..=1000.0).contains(&most)).ok_or_else(
                    || ("max-slowdown", format!("max-slowdown = {most} is not a factor from 1 to 1000")),
                )?);
        }
        if let Some(sharing) = self.sharing {
            options.sharing = sharing;
        }
        options.caps = self.mps.caps.unwrap_or(options.caps);
        options.mps_multi_user = self.mps.multi_user.unwrap_or(options.mps_multi_user);
        options.margin_percent = self.memory.margin_percent.unwrap_or(options.margin_percent);
        options.margin_min = self.memory.margin_min.map_or(options.margin_min, |s| s.0);
        options.recovery = self.recovery.method.unwrap_or(options.recovery);
        options.max_retries = self.recovery.max_retries.unwrap_or(options.max_retries);
        self.check_memory()?;
        self.limits.check()?;
        options.allowances.for_all = self.limits.for_all_users().allowance();
        if self.operators.as_deref() == Some("") {
            return Err(("operators", "operators is empty: name a group, or leave the key out".into()));
        }
        if let Some(hz) = self.sampling.hz
            && !(1..=50).contains(&hz)
        {
            return Err(("hz", format!("hz = {hz}: samples a second must be 1 to 50")));
        }
        Ok(options)
    }

    fn check_memory(&self) -> Result<(), (&'static str, String)> {
        let memory = &self.memory;
        if let Some(coverage) = memory.coverage.filter(|c| !(*c > 0.5 && *c < 1.0)) {
            let text = format!("coverage = {coverage} is not a probability above 0.5 and below 1");
            return Err(("coverage", text));
        }
        for (key, percent) in [
            ("exact-margin-percent", memory.exact_margin_percent),
            ("scaled-margin-percent", memory.scaled_margin_percent),
            ("growing-margin-percent", memory.growing_margin_percent),
        ] {
            if let Some(percent) = percent.filter(|p| *p > 200) {
                return Err((key, format!("{key} = {percent}: a margin is 0 to 200 percent")));
            }
        }
        // Those two are not estimates of a model; both count anyway.
        let names = carma_memory::estimators::names().filter(|name| !matches!(*name, "auto" | "declared"));
        let names: Vec<&str> = names.collect();
        let unknown = memory.estimators.iter().flatten().find(|name| !names.contains(&name.as_str()));
        if let Some(unknown) = unknown {
            let text = format!("there is no estimator `{unknown}`; there are {}", names.join(", "));
            return Err(("estimators", text));
        }
        Ok(())
    }

    fn apply_gate(&self, gate: &mut Gate) -> Result<(), (&'static str, String)> {
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
            return Err(("[gate]", "this policy has no gate to change; choose another policy".into()));
        };
        *risk = changes.risk.unwrap_or(*risk);
        for (key, limit, value) in [
            ("smact", smact, changes.smact),
            ("smocc", smocc, changes.smocc),
            ("drama", drama, changes.drama),
        ] {
            if let Some(value) = value {
                *limit = fraction(key, value)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let e = load(file.path()).unwrap_err();
        format!("{}: {}", e.line, e.what)
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        assert!(error("policy = 'carma'\npolcy = 1\n").starts_with("2: unknown field `polcy`"));
        assert!(
            error("\npolicy = 'oracle-rr'\n")
                .starts_with("2: there is no policy 'oracle-rr'; there are carma,")
        );
        assert!(error("[gate]\nsmact = 65\n").starts_with("2: smact = 65"));
        assert!(error("[memory]\nreserve = '512'\n").contains("has no unit"));
        assert!(error("[memory]\ncoverage = 95\n").starts_with("2: coverage = 95 is not a probability"));
        let text = error("[memory]\nestimators = ['allocator', 'orakel']\n");
        assert!(text.starts_with("2: there is no estimator `orakel`; there are allocator,"), "{text}");
        assert!(
            error("[memory]\nscaled-margin-percent = 900\n").starts_with("2: scaled-margin-percent = 900")
        );
        assert!(error("sharing = 'sometimes'\n").contains("unknown variant"));
    }

    /// Every key that the program knows, as `[section] key`, found by asking it: an unknown key is answered with those
    /// that are expected.
    fn keys() -> Vec<(String, String)> {
        fn expected(text: &str) -> Vec<String> {
            let error = toml::from_str::<Config>(text).unwrap_err().to_string();
            let list = error.split_once("expected ").unwrap_or_else(|| panic!("{text}: {error}")).1;
            list.split('`').skip(1).step_by(2).map(str::to_owned).collect()
        }
        let mut keys = Vec::new();
        for key in expected("no-such-key = 1") {
            // A section has keys of its own; anything else refuses a table.
            let inner = toml::from_str::<Config>(&format!("[{key}]"))
                .map(|_| expected(&format!("[{key}]\nno-such-key = 1")))
                .unwrap_or_default();
            match inner.is_empty() {
                true => keys.push((String::new(), key)),
                false => keys.extend(inner.into_iter().map(|inner| (key.clone(), inner))),
            }
        }
        keys
    }

    #[test]
    fn the_packaged_file_has_every_key_and_its_values_are_understood() {
        let text = include_str!("../../../packaging/carma.toml");
        let keys = keys();
        assert!(keys.len() > 50 && keys.contains(&("limits".into(), "gpus".into())), "{keys:?}");
        let mut missing = Vec::new();
        for (section, key) in &keys {
            let header = format!("# [{section}");
            let body = match section.as_str() {
                "" => text.split("\n# [").next().unwrap(),
                _ => text
                    .split(&format!("\n{header}"))
                    .skip(1)
                    .find(|rest| rest.starts_with(']'))
                    .unwrap_or(""),
            };
            let body = if section.is_empty() { body } else { body.split("\n# [").next().unwrap() };
            let table = text.contains(&format!("\n# [{section}.{key}."));
            if !table && !body.lines().any(|line| line.starts_with(&format!("# {key} = "))) {
                missing.push(format!("[{section}] {key}"));
            }
        }
        assert!(missing.is_empty(), "packaging/carma.toml does not name {missing:?}");
        // With the comment signs gone it is a configuration.
        let is_line = |line: &&str| {
            line.starts_with("[") || line.split_once(" = ").is_some_and(|(key, _)| !key.contains(' '))
        };
        let live: Vec<&str> =
            text.lines().filter_map(|line| line.strip_prefix("# ")).filter(is_line).collect();
        let config: Config = toml::from_str(&live.join("\n")).unwrap();
        config.options(0).unwrap();
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
