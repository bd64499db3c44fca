//! Our own measurements as data sets: files of `carma bench interference`, and the older tables of eight
//! tasks (`bench/h200/collocation.py`).

use super::set::{Set, Together};
use crate::kace::cells::MAX_BYTES;
use crate::kace::{Error, unread};
use carma_interference::group::{GpuType, Mode};
use carma_interference::measured::{Combination, Measured, Warm, median};
use carma_interference::profile::{Metrics, Profile, Rate, RateSource, Stat};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Files of a folder with that beginning, sorted.
pub(crate) fn files(folder: &Path, begins: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut all: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).collect();
    all.retain(|path| {
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        name.starts_with(begins) && (name.ends_with(".json") || name.ends_with(".log.jsonl"))
    });
    all.sort();
    all
}

/// A text that may be packed.
pub(crate) fn text(path: &Path) -> Result<String, Error> {
    let bytes = carma_files::read_unpacked(path, MAX_BYTES).map_err(unread)?;
    String::from_utf8(bytes).map_err(|e| Error::new(path.display().to_string(), format!("not text: {e}")))
}

fn read(path: &Path) -> Result<String, Error> {
    carma_files::read_text(path, carma_files::MOST).map_err(unread)
}

/// A metric of a window.
pub(super) type Pick<'a> = &'a dyn Fn(&Metrics) -> Option<Stat>;

/// Metrics that the bench goes by, each as `of` makes it of the windows; others as they are.
pub(super) fn shown(of: &dyn Fn(Pick<'_>) -> Option<Stat>, others: Metrics) -> Metrics {
    Metrics {
        gract_pct: of(&|m| m.gract_pct),
        smact_pct: of(&|m| m.smact_pct),
        smocc_pct: of(&|m| m.smocc_pct),
        drama_pct: of(&|m| m.drama_pct),
        tensor_pct: of(&|m| m.tensor_pct),
        pcie_rx_mib_s: of(&|m| m.pcie_rx_mib_s),
        pcie_tx_mib_s: of(&|m| m.pcie_tx_mib_s),
        gpu_util_pct: of(&|m| m.gpu_util_pct),
        mem_util_pct: of(&|m| m.mem_util_pct),
        ..others
    }
}

/// What each task did alone: medians over the plain solo windows.
struct Alone<'a>(Vec<&'a Combination>);

impl<'a> Alone<'a> {
    fn of(measured: &'a Measured) -> Self {
        let plain = |w: &&Combination| w.k() == 1 && w.failed.is_none() && !w.is_split();
        Self(measured.combinations.iter().filter(plain).collect())
    }

    fn windows(&self, task: &str) -> impl Iterator<Item = &'a Combination> + Clone {
        let task = task.to_owned();
        self.0.clone().into_iter().filter(move |w| w.members.contains(&task))
    }

    /// In the window's session under its sharing, else in all sessions under that.
    fn rate(&self, task: &str, window: &Combination) -> Option<f64> {
        let here = |session: bool| {
            let windows = self.windows(task).filter(|w| w.sharing == window.sharing);
            let windows = windows.filter(|w| !session || w.session == window.session);
            median(windows.filter_map(|w| w.rates.first().copied()).filter(|r| *r > 0.0).collect())
        };
        here(true).or_else(|| here(false))
    }

    /// The file's profile with the medians of all plain solo windows: alone it does not matter how one would share.
    fn profile(&self, file: &Profile) -> Profile {
        let windows = self.windows(&file.name);
        let of = |pick: Pick<'_>| {
            let means = windows.clone().filter_map(|w| pick(&w.activity)).map(|s| s.mean).collect();
            median(means).map(Stat::of).or_else(|| pick(&file.metrics))
        };
        let metrics = shown(&of, file.metrics);
        let per_s = median(windows.filter_map(|w| w.rates.first().copied()).collect());
        let rate = file.rate.clone().map(|rate| Rate { per_s: per_s.unwrap_or(rate.per_s), ..rate });
        Profile { metrics, rate, ..file.clone() }
    }
}

/// A file of `carma bench interference`. Repeats of one combination become one row, by the mean of progress;
/// windows that failed, those without a solo rate, and those in which a task was not yet warm are left out.
pub(crate) fn measured(path: &Path) -> Result<Set, Error> {
    let place = path.display().to_string();
    let measured = Measured::read(&text(path)?).map_err(|e| Error::new(&place, e.to_string()))?;
    of_measured(&measured).checked(&place)
}

pub(crate) fn of_measured(measured: &Measured) -> Set {
    let at: BTreeMap<&str, usize> =
        measured.tasks.iter().enumerate().map(|(i, t)| (t.name.as_str(), i)).collect();
    let (alone, warm) = (Alone::of(measured), Warm::of(&measured.combinations));
    let bare = |name: &str| Profile { name: name.to_owned(), ..Profile::default() };
    let tasks: Vec<Profile> = measured
        .tasks
        .iter()
        .map(|t| measured.profiles.task(&t.name).map_or_else(|_| bare(&t.name), |p| alone.profile(p)))
        .collect();
    let families = measured.tasks.iter().map(|t| t.family().to_owned()).collect();
    // Task and thread percentage of each member.
    type Seats = Vec<(usize, u8)>;
    // Session and progress.
    type Repeats = Vec<(u32, Vec<f64>)>;
    let mut groups: BTreeMap<(Mode, Seats), Repeats> = BTreeMap::new();
    for window in &measured.combinations {
        if window.failed.is_some() || window.k() < 2 || window.rates.len() != window.k() {
            continue;
        }
        let indices: Option<Vec<usize>> =
            window.members.iter().map(|m| at.get(m.as_str()).copied()).collect();
        if !warm.all(window) {
            continue;
        }
        let of = |(at, (m, r)): (usize, (&String, &f64))| {
            // Where no solo window is in the file its own progress must do.
            alone.rate(m, window).map(|solo| r / solo).or_else(|| window.progress.get(at).copied())
        };
        let progress: Option<Vec<f64>> =
            window.members.iter().zip(&window.rates).enumerate().map(of).collect();
        let (Some(indices), Some(progress)) = (indices, progress) else { continue };
        let pct = |i: usize| window.threads_pct.get(i).copied().filter(|_| window.is_split()).unwrap_or(100);
        let mut members: Vec<(usize, u8, f64)> =
            indices.iter().enumerate().map(|(i, t)| (*t, pct(i), progress[i])).collect();
        members.sort_by_key(|m| (m.0, m.1));
        // Without any progress in the window there is no ratio to predict.
        if members.iter().all(|m| m.2 > 0.0) {
            let key = (window.sharing, members.iter().map(|m| (m.0, m.1)).collect());
            let progress = members.iter().map(|m| m.2).collect();
            groups.entry(key).or_default().push((window.session, progress));
        }
    }
    // Means over the windows of a session, or of all.
    let rows = |session: Option<u32>| -> Vec<Together> {
        let of = |((sharing, members), repeats): (&(Mode, Seats), &Repeats)| {
            let here = repeats.iter().filter(|(of, _)| session.is_none_or(|session| session == *of));
            let repeats: Vec<&Vec<f64>> = here.map(|(_, progress)| progress).collect();
            let n = Some(repeats.len() as f64).filter(|n| *n > 0.0)?;
            let progress = (0..members.len()).map(|i| repeats.iter().map(|r| r[i]).sum::<f64>() / n);
            let split = members.iter().any(|m| m.1 < 100);
            let threads = if split { members.iter().map(|m| f64::from(m.1)).collect() } else { Vec::new() };
            Some(Together {
                tasks: members.iter().map(|m| m.0).collect(),
                sharing: *sharing,
                threads,
                progress: progress.collect(),
            })
        };
        groups.iter().filter_map(of).collect()
    };
    let sessions: BTreeSet<u32> = groups.values().flatten().map(|(session, _)| *session).collect();
    let sessions = sessions.into_iter().map(|session| rows(Some(session))).collect();
    Set { gpu: GpuType::named(&measured.machine.gpu), tasks, families, rows: rows(None), sessions }
}

#[derive(Deserialize)]
struct Older {
    groups: Vec<OlderWindow>,
}

/// Shares are 0 to 1 here.
#[derive(Deserialize)]
struct OlderWindow {
    mode: String,
    kind: String,
    tasks: Vec<String>,
    rates: Vec<f64>,
    gract: f64,
    smact: f64,
    smocc: f64,
    tensor: f64,
    dram: f64,
    pcie_rx_mib_s: f64,
    pcie_tx_mib_s: f64,
    memory_mib: f64,
}

/// The older tables of these files together: solos by their median, repeats by their mean.
pub(crate) fn older(paths: &[PathBuf]) -> Result<Set, Error> {
    let mut windows = Vec::new();
    for path in paths {
        let place = path.display().to_string();
        let file: Older = serde_json::from_str(&read(path)?)
            .map_err(|e| Error::new(&place, format!("not a table of collocation.py: {e}")))?;
        windows.extend(file.groups);
    }
    let mut solo: BTreeMap<&str, Vec<&OlderWindow>> = BTreeMap::new();
    for window in windows.iter().filter(|w| w.kind.starts_with("solo")) {
        if let [task] = &window.tasks[..] {
            solo.entry(task).or_default().push(window);
        }
    }
    let middle = |values: Vec<f64>| {
        let mut values = values;
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
    };
    // By the sharing in which it ran: their solo rates differ by some per cent.
    let mode_of = |w: &OlderWindow| if w.mode == "mps" { Mode::Mps } else { Mode::TimeSlice };
    let alone = |task: &str, mode: Mode| {
        let here = solo.get(task).into_iter().flatten().filter(|w| mode_of(w) == mode);
        middle(here.filter_map(|w| w.rates.first().copied()).collect())
    };
    let any = |task: &str| {
        Some(alone(task, Mode::TimeSlice)).filter(|r| r.is_finite()).unwrap_or_else(|| alone(task, Mode::Mps))
    };
    let names: Vec<&str> = solo.keys().copied().collect();
    let tasks = names.iter().map(|name| {
        let of = |pick: fn(&OlderWindow) -> f64| {
            let all = solo.get(name).into_iter().flatten().map(|w| pick(w)).collect();
            Some(Stat::of(middle(all)))
        };
        Profile {
            name: (*name).to_owned(),
            rate: Some(Rate {
                per_s: any(name),
                unit: Some("steps".into()),
                source: Some(RateSource::Heartbeat),
                ..Rate::default()
            }),
            metrics: Metrics {
                gract_pct: of(|w| w.gract * 100.0),
                smact_pct: of(|w| w.smact * 100.0),
                smocc_pct: of(|w| w.smocc * 100.0),
                tensor_pct: of(|w| w.tensor * 100.0),
                drama_pct: of(|w| w.dram * 100.0),
                pcie_rx_mib_s: of(|w| w.pcie_rx_mib_s),
                pcie_tx_mib_s: of(|w| w.pcie_tx_mib_s),
                memory_mib: of(|w| w.memory_mib),
                ..Metrics::default()
            },
            ..Profile::default()
        }
    });
    let tasks: Vec<Profile> = tasks.collect();
    let mut groups: BTreeMap<(Mode, Vec<usize>), Vec<Vec<f64>>> = BTreeMap::new();
    for window in windows.iter().filter(|w| w.tasks.len() > 1) {
        let mode = mode_of(window);
        let mut members: Vec<(usize, f64)> = window
            .tasks
            .iter()
            .zip(&window.rates)
            .filter_map(|(t, r)| Some((names.iter().position(|n| n == t)?, r / alone(t, mode))))
            .collect();
        members.sort_by_key(|m| m.0);
        if members.len() == window.tasks.len() && members.iter().all(|m| m.1.is_finite() && m.1 > 0.0) {
            let key = (mode, members.iter().map(|m| m.0).collect());
            groups.entry(key).or_default().push(members.iter().map(|m| m.1).collect());
        }
    }
    let rows = groups.into_iter().map(|((sharing, tasks), repeats)| {
        let n = repeats.len() as f64;
        let progress = (0..tasks.len()).map(|i| repeats.iter().map(|r| r[i]).sum::<f64>() / n).collect();
        Together { tasks, sharing, threads: Vec::new(), progress }
    });
    let rows = rows.collect();
    let families = names.iter().map(|n| (*n).to_owned()).collect();
    let set = Set { gpu: GpuType::named("NVIDIA H200"), tasks, families, rows, sessions: Vec::new() };
    set.checked("collocation-*.json")
}
