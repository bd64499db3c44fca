//! The online learner: predicts groups, learns from what was observed of them, is kept in a file.
//!
//! ```
//! use carma_interference::online::{Observed, SlowdownModel};
//! use carma_interference::group::{GpuType, Group, Member, Mode};
//! use carma_interference::profile::Profiles;
//!
//! let file = r#"{"version": 1, "gpu": "NVIDIA H200", "tasks": [
//!     {"name": "a", "rate": 10.0, "metrics": {"gract_pct": 99, "smact_pct": 80}},
//!     {"name": "b", "rate": 300.0, "metrics": {"gract_pct": 30, "smact_pct": 10}}]}"#;
//! let profiles = Profiles::read(file)?;
//! let members = [Member::of(profiles.task("a")?), Member::of(profiles.task("b")?)];
//! let gpu = GpuType::named("NVIDIA H200");
//! let group = Group { gpu: &gpu, sharing: Mode::Mps, members: &members };
//! let mut model = SlowdownModel::new();
//! let before = model.predict(&group)?;
//! model.observe(&group, &Observed::Rates(vec![Some(9.0), Some(200.0)]))?;
//! let after = model.predict(&group)?;
//! // Two thirds of its speed alone were observed of `b`.
//! let off = |progress: f64| (progress - 200.0 / 300.0).abs();
//! assert!(off(after.tasks[1].progress.expected) < off(before.tasks[1].progress.expected));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod conformal;
mod domain;
mod features;
mod local;
mod matrix;
mod prior;
mod seen;

use crate::group::{BadGroup, Bounded, Forecast, Group, Mode, TaskForecast};
use crate::power::{Power, PowerLaw as _};
use crate::share::Demand;
use conformal::Kind;
use domain::{Domain, Label, Row, Seat};
pub(crate) use features::steps_per_s;
use features::{Features, WEIGHT_NAMES};
use seen::Seen;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Version of the model file that this program writes and reads.
pub const VERSION: u32 = 4;

/// The predictor: the prior of every GPU type, and what was learned of tasks on them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SlowdownModel {
    version: u32,
    domains: BTreeMap<String, Domain>,
    /// Windows of files that were learned from.
    #[serde(default, skip_serializing_if = "Seen::is_empty")]
    known: Seen,
}

impl Default for SlowdownModel {
    fn default() -> Self {
        Self::new()
    }
}

/// What was observed of a group, in the order of its members; `None`: not that one.
#[derive(Debug, Clone, PartialEq)]
pub enum Observed {
    /// Rates in the unit of the solo rate. A member without one has its solo rate learned.
    Rates(Vec<Option<f64>>),
    /// Speed together over speed alone.
    Progress(Vec<Option<f64>>),
}

/// What became of an observation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Learned {
    /// Members that were learned from.
    pub used: usize,
    /// Members that were not, and why.
    pub skipped: Vec<String>,
}

/// Why a model file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadModel(pub String);

impl fmt::Display for BadModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadModel {}

/// A measured progress beyond these is a fault of measurement.
const PROGRESS: std::ops::RangeInclusive<f64> = 1e-4..=4.0;
/// The same for rates, units a second.
const RATES: std::ops::RangeInclusive<f64> = 1e-9..=1e12;
/// Predicted progress never leaves these.
const LEAST: f64 = 1e-4;
const MOST: f64 = 1.2;

struct Ready {
    key: String,
    features: Vec<Features>,
    clock: Vec<f64>,
    asked_w: Option<(f64, f64)>,
}

impl SlowdownModel {
    /// Nothing learned yet: the prior.
    #[must_use]
    pub fn new() -> Self {
        Self { version: VERSION, domains: BTreeMap::new(), known: Seen::default() }
    }

    /// What comes with this program: what was learned of whole GPU types, not of single tasks, from our own
    /// measurements (`docs/research/interference.md`). The prior where there is nothing.
    #[must_use]
    pub fn shipped() -> Self {
        Self::read(include_str!("../../models/shipped.json")).unwrap_or_default()
    }

    /// Reads a model file.
    ///
    /// # Errors
    /// Text that is not JSON of this form, another version, or numbers that nothing can be predicted with.
    pub fn read(text: &str) -> Result<Self, BadModel> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let form = |e: serde_json::Error| BadModel(format!("not a model of interference: {e}"));
        let Versioned { version } = serde_json::from_str(text).map_err(form)?;
        if version != VERSION {
            return Err(BadModel(format!(
                "the model has version {version}, this program works with version {VERSION}; learn it again \
                 with `carma predict --observe`, or use the program that wrote it"
            )));
        }
        let model: Self = serde_json::from_str(text).map_err(form)?;
        if let Some((key, _)) = model.domains.iter().find(|(_, domain)| !domain.is_sound()) {
            return Err(BadModel(format!(
                "the model's part `{key}` has numbers that nothing can be predicted with; was the file edited?"
            )));
        }
        Ok(model)
    }

    /// The model as a file.
    ///
    /// # Errors
    /// None that is known: all numbers of a model are finite.
    pub fn to_json(&self) -> Result<String, BadModel> {
        serde_json::to_string(self).map_err(|e| BadModel(format!("the model cannot be written: {e}")))
    }

    /// Groups observed of this GPU type and way of sharing.
    #[must_use]
    pub fn observations(&self, group: &Group<'_>) -> u64 {
        self.domains.get(&key(group)).map_or(0, |d| d.seen)
    }

    /// Predicts a group. A few microseconds for a pair.
    ///
    /// # Errors
    /// As [`Group::check`].
    pub fn predict(&self, group: &Group<'_>) -> Result<Forecast, BadGroup> {
        group.check()?;
        let ready = ready(group);
        let domain = self.domain(&ready.key, group);
        let seats = seats(group, &ready.features);
        let guesses = domain.guess(group.sharing, &seats, group.is_split(), &ready.clock);
        let k = group.members.len();
        let kinds: Vec<Kind> =
            guesses.iter().zip(&seats).map(|(g, seat)| Kind::of(k, g.seen, seat.features.engine)).collect();
        // The reason names the widest.
        let bounds = kinds.iter().map(|kind| domain.bounds(*kind));
        let (factor, scores) = bounds.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or_default();
        let mut reasons = reasons(group, &domain, &ready, factor, scores);
        let tasks: Vec<TaskForecast> = group
            .members
            .iter()
            .zip(guesses.iter().zip(&kinds))
            .map(|(member, (guess, kind))| {
                let (factor, _) = domain.bounds(*kind);
                let bounded = |(mean, sd): (f64, f64), least: f64, most: f64| {
                    let at = |log: f64| log.clamp(-500.0, 500.0).exp().clamp(least, most);
                    Bounded { expected: at(mean), lower: at(mean - factor * sd), upper: at(mean + factor * sd) }
                };
                let progress = bounded(guess.progress, LEAST, MOST);
                let name = member.profile.name.clone();
                if guess.seen > 0 {
                    let [weight, load, speed] = guess.learned;
                    reasons.push(format!(
                        "{name}: learned from {} observations of its class: weight x {weight:.2}, load x {load:.2}, \
                         progress x {speed:.2}",
                        guess.seen
                    ));
                }
                if group.sharing == Mode::TimeSlice && kind.is_new_and_light() {
                    reasons.push(format!(
                        "{name}: seldom on the GPU; whether it queues its work ahead or waits for it in each step is not known \
                         before it was observed beside others, and under time-slicing that decides"
                    ));
                }
                if guess.doubted {
                    reasons.push(format!(
                        "{name}: its rates together contradict its solo rate, which is learned instead; profile it again"
                    ));
                }
                TaskForecast {
                    slowdown: 1.0 / progress.expected,
                    progress,
                    prior: guess.prior,
                    rate: guess.rate.map(|rate| bounded(rate, 0.0, f64::MAX)),
                    observations: guess.seen,
                    name,
                }
            })
            .collect();
        let sum = tasks.iter().map(|t| t.progress.expected).sum();
        let min = tasks.iter().map(|t| t.progress.expected).fold(f64::INFINITY, f64::min);
        Ok(Forecast { tasks, sum, min, reasons })
    }

    /// What is expected of each member's progress, as [`SlowdownModel::predict`] says, without bounds: one pass of the law in
    /// place of several for each member.
    ///
    /// # Errors
    /// As [`Group::check`].
    pub fn expect(&self, group: &Group<'_>) -> Result<Vec<f64>, BadGroup> {
        group.check()?;
        let ready = ready(group);
        let domain = self.domain(&ready.key, group);
        let seats = seats(group, &ready.features);
        let logs = domain.expect(group.sharing, &seats, group.is_split(), &ready.clock);
        Ok(logs.into_iter().map(|log| log.clamp(-500.0, 500.0).exp().clamp(LEAST, MOST)).collect())
    }

    /// Learns from what was observed of a group. Some tens of microseconds.
    ///
    /// Rates outside 1e-9 to 1e12, and progress outside 0.0001 to 4, are skipped: a task
    /// that ended in the window, a counter that ran backwards.
    ///
    /// # Errors
    /// As [`Group::check`], or as many values as there are not members.
    pub fn observe(&mut self, group: &Group<'_>, observed: &Observed) -> Result<Learned, BadGroup> {
        checked(group, observed)?;
        let (labels, learned) = labels(group, observed);
        if learned.used > 0 {
            let (key, row) = row(group, labels);
            let mut domain = self.domains.remove(&key).unwrap_or_else(|| self.begun(group));
            domain.learn(group.sharing, group.is_split(), row);
            self.domains.insert(key, domain);
        }
        Ok(learned)
    }

    /// Learns from many observations at once, in no order: for each GPU type and way of sharing the constants are fitted
    /// that hold for all tasks, with the numbers of the classes among them. What was learned before counts as the prior.
    /// Takes time in proportion to the observations and to the square of the classes; a second for a thousand of thirty.
    ///
    /// # Errors
    /// As [`SlowdownModel::observe`], of the first observation that has one; then nothing was learned.
    pub fn teach(&mut self, observations: &[(Group<'_>, Observed)]) -> Result<Vec<Learned>, BadGroup> {
        let mut all = Vec::with_capacity(observations.len());
        let mut rows: BTreeMap<String, (usize, Vec<Row>)> = BTreeMap::new();
        for (at, (group, observed)) in observations.iter().enumerate() {
            checked(group, observed)?;
            let (labels, learned) = labels(group, observed);
            if learned.used > 0 {
                let (key, row) = row(group, labels);
                rows.entry(key).or_insert((at, Vec::new())).1.push(row);
            }
            all.push(learned);
        }
        for (key, (first, rows)) in rows {
            let group = &observations[first].0;
            let mut domain = self.domains.remove(&key).unwrap_or_else(|| self.begun(group));
            domain.teach(group.sharing, group.is_split(), rows);
            self.domains.insert(key, domain);
        }
        Ok(all)
    }

    /// Takes the errors of another model's prediction of this observation for how far off predictions of new tasks are:
    /// one that has not learned from these tasks, nor from their like.
    ///
    /// # Errors
    /// As [`SlowdownModel::observe`].
    pub fn calibrate(&mut self, by: &Self, group: &Group<'_>, observed: &Observed) -> Result<(), BadGroup> {
        checked(group, observed)?;
        let (key, row) = row(group, labels(group, observed).0);
        let errors = by.domain(&key, group).errors(group.sharing, group.is_split(), &row);
        let begun = self.begun(group);
        self.domains.entry(key).or_insert(begun).calibrate(&errors);
        Ok(())
    }

    /// What was learned of a group's GPU type and way of sharing, or what that begins with.
    fn domain(&self, key: &str, group: &Group<'_>) -> Cow<'_, Domain> {
        self.domains.get(key).map_or_else(|| Cow::Owned(self.begun(group)), Cow::Borrowed)
    }

    /// Where learning of this GPU type and way of sharing begins: with what holds on another type, as far as it does; else
    /// with the prior.
    fn begun(&self, group: &Group<'_>) -> Domain {
        let kind = kind(group);
        let other =
            self.domains.iter().find(|(key, _)| key.split_once('/').is_some_and(|(_, rest)| rest == kind));
        match other {
            Some((_, domain)) => domain.elsewhere(group.gpu.capacity(group.sharing)),
            None => Domain::new(group.sharing, group.is_split(), group.gpu.capacity(group.sharing)),
        }
    }

    /// Whether the observation of this fingerprint ([`crate::measured::Measured::fingerprints`]) was learned from
    /// already, as [`SlowdownModel::remember`] was told.
    #[must_use]
    pub fn knows(&self, fingerprint: u64) -> bool {
        self.known.has(fingerprint)
    }

    /// Remembers that the observation of this fingerprint was learned from. Of more than 100,000 the oldest are
    /// forgotten.
    pub fn remember(&mut self, fingerprint: u64) {
        self.known.add(fingerprint);
    }

    /// Forgets every class and observation, and keeps what holds for all tasks of a GPU type.
    pub fn forget_all_classes(&mut self) {
        self.domains.values_mut().for_each(Domain::publish);
    }

    /// What predictions of these classes go by: nothing of other tasks, and no observation.
    #[must_use]
    pub fn of_classes(&self, classes: &BTreeSet<String>) -> Self {
        let domains = self.domains.iter().map(|(key, domain)| (key.clone(), domain.of_classes(classes)));
        Self { version: self.version, domains: domains.collect(), known: Seen::default() }
    }

    /// Forgets a class on all GPUs, e.g. because its program changed.
    pub fn forget(&mut self, class: &str) {
        self.domains.values_mut().for_each(|domain| domain.drop_class(class));
    }
}

/// What is learned apart: a GPU type and a way of sharing.
fn key(group: &Group<'_>) -> String {
    format!("{}/{}", group.gpu.name, kind(group))
}

/// The way of sharing in [`key`], and whether all that is known of its tasks is what nvidia-smi says: the law takes their
/// kernels to fill all SMs then, and other constants serve that best.
fn kind(group: &Group<'_>) -> String {
    let split = if group.is_split() { "/threads" } else { "" };
    let metrics = || group.members.iter().map(|member| &member.profile.metrics);
    let poor = metrics().all(|m| m.smact_pct.is_none() && m.gract_pct.is_none());
    format!("{}{split}{}", group.sharing, if poor { "/utilisation" } else { "" })
}

fn checked(group: &Group<'_>, observed: &Observed) -> Result<(), BadGroup> {
    group.check()?;
    let (Observed::Rates(values) | Observed::Progress(values)) = observed;
    if values.len() == group.members.len() {
        return Ok(());
    }
    Err(BadGroup(format!(
        "{} values were observed of {} members; expected one each, in their order",
        values.len(),
        group.members.len()
    )))
}

/// The measured values that can be learned from, as logarithms.
fn labels(group: &Group<'_>, observed: &Observed) -> (Vec<Option<Label>>, Learned) {
    let (Observed::Rates(values) | Observed::Progress(values)) = observed;
    let mut learned = Learned::default();
    let mut labels = Vec::with_capacity(values.len());
    for (value, member) in values.iter().zip(group.members) {
        let name = &member.profile.name;
        let label = match (value, observed) {
            (None, _) => None,
            (Some(v), Observed::Rates(_)) if RATES.contains(v) => Some(Label::Rate(v.ln())),
            (Some(v), Observed::Progress(_)) if PROGRESS.contains(v) => Some(Label::Progress(v.ln())),
            (Some(v), Observed::Rates(_)) => {
                learned.skipped.push(format!("{name}: a rate of {v} is no rate"));
                None
            }
            (Some(v), Observed::Progress(_)) => {
                learned.skipped.push(format!("{name}: a progress of {v} is no progress"));
                None
            }
        };
        learned.used += usize::from(label.is_some());
        labels.push(label);
    }
    (labels, learned)
}

fn seats<'a>(group: &'a Group<'_>, features: &'a [Features]) -> Vec<Seat<'a>> {
    let of = group.members.iter().zip(features);
    of.map(|(member, features)| Seat { class: member.profile.class(), features }).collect()
}

/// Where an observation is learned from, and it as that sees it.
fn row(group: &Group<'_>, labels: Vec<Option<Label>>) -> (String, Row) {
    let Ready { key, features, clock, .. } = ready(group);
    let classes = group.members.iter().map(|m| m.profile.class().to_owned());
    (key, Row { members: classes.zip(features).collect(), clock, labels })
}

fn ready(group: &Group<'_>) -> Ready {
    let features: Vec<Features> = group
        .members
        .iter()
        .map(|m| Features::of(m.profile, m.threads_pct, group.sharing, group.gpu))
        .collect();
    let (clock, asked_w) = match (&group.gpu.power, features.len()) {
        (Some(power), 2..) => clocks(power, &features),
        _ => (vec![0.0; features.len()], None),
    };
    Ready { key: key(group), features, clock, asked_w }
}

/// Log of what the power limit leaves each task, with the power asked for and the limit. The activity of
/// all together is at most what the device has.
fn clocks(power: &Power, features: &[Features]) -> (Vec<f64>, Option<(f64, f64)>) {
    let alone: Vec<Demand> = features
        .iter()
        .map(|f| Demand {
            // Under a thread limit the same work is spread over more time.
            gract: f.engine * f.limit + (1.0 - f.limit),
            sm: f.engine * f.fill * f.limit,
            dram: f.engine * f.dram * 0.8 * f.limit,
            tensor: f.engine * f.tensor * f.limit,
            pcie: f.pcie,
        })
        .collect();
    let total = |of: fn(&Demand) -> f64| alone.iter().map(of).sum::<f64>();
    // Together they use no more engine time than there is; the rest shrinks alike.
    let part = 1.0 / total(|d| d.gract).max(1.0);
    let together = Demand {
        gract: 1.0,
        sm: total(|d| d.sm) * part,
        dram: total(|d| d.dram) * part,
        tensor: total(|d| d.tensor) * part,
        pcie: 0.0,
    };
    let clock = power.clock(&together);
    let logs = alone.iter().map(|d| -power.longer(d, clock).ln()).collect();
    (logs, Some((power.asked_w(&together), power.cap_w)))
}

fn reasons(group: &Group<'_>, domain: &Domain, ready: &Ready, factor: f64, scores: usize) -> Vec<String> {
    let mut said = Vec::new();
    let gpu = group.gpu;
    let k = group.members.len();
    if !gpu.measured {
        said.push(format!(
            "GPU type {} was never measured: constants and bounds are those of another type",
            gpu.name
        ));
    }
    if k == 1 && !group.is_split() {
        said.push("alone on the GPU: nothing slows it down".to_owned());
    }
    let (capacity, theta) = domain.constants(k);
    if k > 1 {
        let asked: f64 = match group.sharing {
            Mode::TimeSlice => ready.features.iter().map(|f| f.engine).sum(),
            Mode::Mps => ready.features.iter().map(|f| f.engine * f.fill.min(f.cap)).sum(),
        };
        let what = match group.sharing {
            Mode::TimeSlice => "engine time",
            Mode::Mps => "SM activity",
        };
        said.push(format!("{what}: {asked:.2} asked for together, {capacity:.2} can be had"));
        if group.sharing == Mode::Mps {
            let dram: f64 = ready.features.iter().map(|f| f.engine * f.dram).sum();
            if dram > 0.8 {
                said.push(format!("DRAM: {:.0} % of what can be had is asked for together", dram * 100.0));
            }
            let shown = WEIGHT_NAMES.iter().zip(theta).filter(|(_, t)| t.abs() > 0.05);
            let shown: Vec<String> = shown.map(|(name, t)| format!("{name}^{t:.2}")).collect();
            if !shown.is_empty() {
                said.push(format!("weights: {} x what is learned of each class", shown.join(" x ")));
            }
        }
        if let Some((asked, cap)) = ready.asked_w.filter(|(asked, cap)| asked > cap) {
            said.push(format!("power: {asked:.0} W asked for, the limit is {cap:.0} W: the clock falls"));
        }
    }
    if group.is_split() {
        said.push("thread limits: speed alone at that percentage, times what neighbours cost".to_owned());
    }
    said.push(if domain.seen == 0 {
        "nothing was observed on this GPU type and way of sharing: the prior alone".to_owned()
    } else {
        format!("{} groups observed on this GPU type and way of sharing", domain.seen)
    });
    said.push(if scores == 0 {
        "90 % bounds: of the prior, not yet checked against observations".to_owned()
    } else {
        format!("90 % bounds: {factor:.2} standard deviations, from {scores} past errors")
    });
    said.extend(ready.features.iter().flat_map(|f| f.remarks.iter().cloned()));
    said
}

#[cfg(test)]
mod tests;
