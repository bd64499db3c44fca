//! From windows to results: rates alone, progress, profiles.

use super::{Combination, Log, Measured, VERSION, Warm};
use crate::profile::{self, Metrics, Profile, Profiles, Rate, RateSource, Stat};
use crate::share::Mode;
use std::collections::BTreeMap;

/// Rates of tasks alone, without a limit on their threads.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Solos {
    /// By task, sharing and session.
    rates: BTreeMap<(String, Mode, u32), Vec<f64>>,
}

/// How far the solo rates of one task in one session lie apart.
#[derive(Debug, Clone, PartialEq)]
pub struct Drift {
    /// Name of the task.
    pub task: String,
    /// Under which sharing.
    pub sharing: Mode,
    /// In which session.
    pub session: u32,
    /// Largest less smallest, over their mean.
    pub spread: f64,
}

impl Solos {
    /// Those among these windows.
    #[must_use]
    pub fn of(windows: &[Combination]) -> Self {
        let mut solos = Self::default();
        for window in windows {
            if let ([task], [rate]) = (&window.members[..], &window.rates[..])
                && !window.is_split()
                && *rate > 0.0
            {
                let key = (task.clone(), window.sharing, window.session);
                solos.rates.entry(key).or_default().push(*rate);
            }
        }
        solos
    }

    /// Median rate of a task alone: in that session if it was measured there, else in all sessions of that
    /// sharing. The median, since one window of three may be off: a task that had not warmed up, a host that was
    /// busy with something else.
    #[must_use]
    pub fn rate(&self, task: &str, sharing: Mode, session: u32) -> Option<f64> {
        let here = self.rates.get(&(task.to_owned(), sharing, session));
        here.and_then(|rates| median(rates.clone())).or_else(|| self.overall(task, sharing))
    }

    /// Median rate of a task alone, over all sessions of that sharing.
    #[must_use]
    pub fn overall(&self, task: &str, sharing: Mode) -> Option<f64> {
        let all = self.rates.iter().filter(|((name, mode, _), _)| name == task && *mode == sharing);
        median(all.flat_map(|(_, rates)| rates.iter().copied()).collect())
    }

    /// What the repeated solo windows say of drift, those with at least two.
    #[must_use]
    pub fn drifts(&self) -> Vec<Drift> {
        let several = self.rates.iter().filter(|(_, rates)| rates.len() > 1);
        several
            .filter_map(|((task, sharing, session), rates)| {
                let (least, most) = rates.iter().fold((f64::INFINITY, 0.0_f64), |(least, most), rate| {
                    (least.min(*rate), most.max(*rate))
                });
                let spread = (most - least) / carma_stats::mean(rates.iter().copied())?;
                Some(Drift { task: task.clone(), sharing: *sharing, session: *session, spread })
            })
            .collect()
    }
}

/// Median of the finite values: host-bound tasks differ by a factor of 2 between windows, and one window that
/// something disturbed would move a mean. `None`: there is no finite value.
#[must_use]
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.retain(|v| v.is_finite());
    carma_stats::median(values)
}

impl Log {
    /// The results of what was measured so far; `left` windows were not.
    #[must_use]
    pub fn assemble(&self, left: usize) -> Measured {
        let solos = Solos::of(&self.combinations);
        let warm = Warm::of(&self.combinations);
        let mut combinations = self.combinations.clone();
        for window in &mut combinations {
            let rates = window.members.iter().zip(&window.rates);
            let progress: Option<Vec<f64>> = rates
                .map(|(task, rate)| Some(rate / solos.rate(task, window.sharing, window.session)?))
                .collect();
            window.progress = progress.unwrap_or_default();
        }
        let tasks = self.tasks.iter().map(|task| {
            let class = task.class.clone();
            Profile { class, ..profile_of(&task.name, &combinations, &solos, &warm) }
        });
        let profiles = Profiles {
            version: profile::VERSION,
            gpu: Some(self.machine.gpu.clone()),
            tasks: tasks.collect(),
        };
        Measured {
            version: VERSION,
            machine: self.machine.clone(),
            tasks: self.tasks.clone(),
            sessions: self.sessions.clone(),
            profiles,
            combinations,
            left,
        }
    }
}

fn profile_of(task: &str, windows: &[Combination], solos: &Solos, warm: &Warm<'_>) -> Profile {
    let alone = |mode: Mode, split: bool| {
        let of = move |w: &&Combination| {
            w.members.len() == 1 && w.members[0] == task && w.sharing == mode && w.is_split() == split
        };
        windows.iter().filter(|w| w.failed.is_none()).filter(of).collect::<Vec<_>>()
    };
    let plain = alone(Mode::TimeSlice, false);
    let (mode, mut plain) =
        if plain.is_empty() { (Mode::Mps, alone(Mode::Mps, false)) } else { (Mode::TimeSlice, plain) };
    // Means: a window in which it had not warmed up would be among them, though the rate, a median, is that of the others.
    plain.retain(|window| warm.all(window));
    let told = plain.iter().find_map(|window| window.rate_sources.first().copied());
    let source = told.unwrap_or(RateSource::Heartbeat);
    let mut profile = Profile { name: task.to_owned(), ..Profile::default() };
    if let Some(per_s) = solos.overall(task, mode) {
        profile.rate =
            Some(Rate { per_s, unit: Some("steps".into()), source: Some(source), ..Rate::default() });
    } else {
        profile.remarks.push("it was not measured alone".into());
    }
    profile.metrics = metrics(&plain);
    profile.watched_s = Some(plain.iter().map(|w| w.window_s).sum());
    let mut by_threads: BTreeMap<u8, Vec<f64>> = BTreeMap::new();
    for window in alone(Mode::Mps, true) {
        if let ([pct], [rate]) = (&window.threads_pct[..], &window.rates[..])
            && *rate > 0.0
        {
            by_threads.entry(*pct).or_default().push(*rate);
        }
    }
    if let Some(full) = solos.overall(task, Mode::Mps)
        && !by_threads.is_empty()
    {
        by_threads.insert(100, vec![full]);
    }
    profile.rate_by_threads_pct =
        by_threads.into_iter().filter_map(|(pct, rates)| Some((pct, carma_stats::mean(rates)?))).collect();
    profile
}

/// Means over windows of equal length: of means and of 95th percentiles; the variation within windows.
fn metrics(windows: &[&Combination]) -> Metrics {
    let over = |pick: &dyn Fn(&Metrics) -> Option<Stat>| {
        let stats: Vec<Stat> = windows.iter().filter_map(|w| pick(&w.activity)).collect();
        Some(Stat {
            mean: carma_stats::mean(stats.iter().map(|s| s.mean))?,
            p95: carma_stats::mean(stats.iter().filter_map(|s| s.p95)),
            cv: carma_stats::mean(stats.iter().filter_map(|s| s.cv)),
        })
    };
    let of = |pick: &dyn Fn(&Combination) -> Option<f64>| {
        carma_stats::mean(windows.iter().filter_map(|w| pick(w))).map(Stat::of)
    };
    let first = |values: &[Option<u64>]| values.first().copied().flatten().map(|mib| mib as f64);
    Metrics {
        gract_pct: over(&|m| m.gract_pct),
        smact_pct: over(&|m| m.smact_pct),
        smocc_pct: over(&|m| m.smocc_pct),
        drama_pct: over(&|m| m.drama_pct),
        tensor_pct: over(&|m| m.tensor_pct),
        fp64_pct: over(&|m| m.fp64_pct),
        fp32_pct: over(&|m| m.fp32_pct),
        fp16_pct: over(&|m| m.fp16_pct),
        pcie_rx_mib_s: over(&|m| m.pcie_rx_mib_s),
        pcie_tx_mib_s: over(&|m| m.pcie_tx_mib_s),
        power_w: of(&|w| w.power_w).or_else(|| over(&|m| m.power_w)),
        sm_clock_mhz: over(&|m| m.sm_clock_mhz),
        gpu_util_pct: over(&|m| m.gpu_util_pct),
        mem_util_pct: over(&|m| m.mem_util_pct),
        memory_mib: of(&|w| first(&w.memory_mib)),
        cpu_pct: of(&|w| w.cpu_pct.first().copied().flatten()),
        host_memory_mib: of(&|w| first(&w.host_memory_mib)),
    }
}
