//! The measurements that models are fitted to, read where they lie.

use carma_files::MOST;
use carma_interference::measured::{Measured, Solos};
use carma_interference::profile::{Metrics, Stat};
use carma_interference::share::{Demand, Mode, Tenant};
use carma_stats::{mean, median};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Tasks that shared a GPU, and how fast each of them went.
#[derive(Debug, Clone, PartialEq)]
pub struct Together {
    /// For people.
    pub label: String,
    /// The kinds of task in it, without repeats: what is left out together.
    pub families: Vec<String>,
    /// How they shared.
    pub mode: Mode,
    /// What each does alone.
    pub tenants: Vec<Tenant>,
    /// Speed of each over its speed alone.
    pub progress: Vec<f64>,
}

impl Together {
    /// Total progress: how many times the work of one exclusive GPU.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.progress.iter().sum()
    }
}

/// Activity and power seen together.
#[derive(Debug, Clone, PartialEq)]
pub struct Powered {
    /// For people.
    pub label: String,
    /// The kinds of task in it.
    pub families: Vec<String>,
    /// What the counters showed, shares of the peak.
    pub activity: Demand,
    /// Mean power, watts.
    pub watts: f64,
    /// SM clock over the highest seen, where it was read.
    pub clock: Option<f64>,
}

/// The folder with other people's data, beside this checkout of the repository (empty: the folder in which
/// the program was started); `None`: it is not there.
#[must_use]
pub fn shared(root: &Path) -> Option<PathBuf> {
    Some(root.join("../shared/data")).filter(|folder| folder.is_dir())
}

/// MISO's solo progress of one task on one kind of MIG instance of an A100-40GB.
#[derive(Debug, Clone, PartialEq)]
pub struct SliceRow {
    /// Model and batch size.
    pub task: String,
    /// The profile, e.g. `3g.20gb`.
    pub slice: String,
    /// nvidia-smi's GPU utilisation of the task on the whole GPU, 0 to 1.
    pub util_sm: f64,
    /// nvidia-smi's memory utilisation of the task on the whole GPU, 0 to 1.
    pub util_mem: f64,
    /// Speed on the instance over speed on 7g.
    pub progress: f64,
}

/// The rows of MISO (SoCC 2022, MIT licence) for 1g to 4g, from the folder with other people's data; `None`
/// where they aren't there.
#[must_use]
pub fn miso_slices(shared: &Path) -> Option<Vec<SliceRow>> {
    let folder = shared.join("boringlee24__socc22-miso");
    let read = |file: &str| {
        let mut reader = csv::Reader::from_reader(carma_files::open_bounded(&folder.join(file), MOST).ok()?);
        Some(reader.records().filter_map(Result::ok).collect::<Vec<_>>())
    };
    let number = |record: &csv::StringRecord, at: usize| record.get(at).and_then(|v| v.parse::<f64>().ok());
    let task = |record: &csv::StringRecord| {
        format!("{} {}", record.get(0).unwrap_or_default(), record.get(1).unwrap_or_default())
    };
    let mut util = BTreeMap::new();
    for record in read("solo_a100_nvidia_smi.csv")? {
        util.insert(task(&record), (number(&record, 2)? / 100.0, number(&record, 3)? / 100.0));
    }
    // model, batch, slice, iterations, mean seconds
    let latencies = read("solo_a100_mig_iteration_latency.csv")?;
    let mut whole = BTreeMap::new();
    for record in &latencies {
        if record.get(2) == Some("7g.40gb") {
            whole.insert(task(record), number(record, 4)?);
        }
    }
    let mut rows = Vec::new();
    for record in &latencies {
        let slice = record.get(2).unwrap_or_default();
        let task = task(record);
        if slice == "7g.40gb" {
            continue;
        }
        if let (Some(&(util_sm, util_mem)), Some(&alone), Some(seconds)) =
            (util.get(&task), whole.get(&task), number(record, 4))
        {
            let slice = slice.to_owned();
            rows.push(SliceRow { task, slice, util_sm, util_mem, progress: alone / seconds });
        }
    }
    Some(rows)
}

/// Power of MISO's tasks alone on a whole A100: nvidia-smi's utilisation for GRACT (SMACT from it by
/// `gract_exponent`), its memory utilisation for DRAM. `None` where the data isn't there.
#[must_use]
pub fn miso_power(shared: &Path, gract_exponent: f64) -> Option<Vec<Powered>> {
    let path = shared.join("boringlee24__socc22-miso/solo_a100_nvidia_smi.csv");
    let mut rows = Vec::new();
    let mut reader = csv::Reader::from_reader(carma_files::open_bounded(&path, MOST).ok()?);
    for record in reader.records().filter_map(Result::ok) {
        let number = |at: usize| record.get(at).and_then(|v| v.parse::<f64>().ok());
        let (gract, dram) = (number(2)? / 100.0, number(3)? / 100.0);
        let model = record.get(0)?.to_owned();
        rows.push(Powered {
            label: format!("{model} {}", record.get(1)?),
            families: vec![model],
            activity: Demand { gract, sm: gract.powf(1.0 / gract_exponent), dram, ..Demand::default() },
            watts: number(5)?,
            clock: None,
        });
    }
    Some(rows)
}

/// KACE's measured sets on a V100-32GB (SoCC 2024; no licence stated, read in place).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Kace {
    /// Pairs under MPS, campaign of May 2024.
    pub pairs_may: Vec<Together>,
    /// Pairs under MPS, campaign of June 2024.
    pub pairs_june: Vec<Together>,
    /// Triples under MPS.
    pub triples: Vec<Together>,
    /// Quadruples under MPS.
    pub quadruples: Vec<Together>,
    /// Pairs without MPS (inferred from the values, see the folder's PROVENANCE.md).
    pub time_sliced: Vec<Together>,
}

/// Progress above this is a fault of a table: about 0.1 % of KACE's cells.
const MOST_PROGRESS: f64 = 1.25;

/// Reads KACE's sets from the folder, without MPS thread limits. A set counts only if every member has
/// a sound solo rate and known utilisation. Demand: nvidia-smi's SM busy for GRACT and SMACT, its memory
/// busy for DRAM.
///
/// # Errors
/// A file that can't be read.
pub fn kace(folder: &Path) -> Result<Kace, String> {
    let reader = |name: &str| {
        let text = carma_files::read_unpacked(&folder.join(name), MOST).map_err(|e| e.to_string())?;
        Ok::<_, String>(csv::Reader::from_reader(std::io::Cursor::new(text)))
    };
    #[derive(Deserialize)]
    struct Solo {
        #[serde(rename = "Type")]
        workload: String,
        #[serde(rename = "sm%")]
        sm: f64,
        #[serde(rename = "mem%")]
        mem: f64,
    }
    let mut solo = BTreeMap::new();
    for row in reader("orig/baseline_labels_util.csv")?.deserialize::<Solo>() {
        let row = row.map_err(|e| format!("baseline_labels_util.csv: {e}"))?;
        let (sm, dram) = (row.sm / 100.0, row.mem / 100.0);
        solo.insert(row.workload, Demand { gract: sm, sm, dram, ..Demand::default() });
    }
    #[derive(Deserialize)]
    struct Row {
        campaign: String,
        source_file: String,
        coloc_id: String,
        k: usize,
        workload: String,
        mps_active_thread_pct: f64,
        throughput: f64,
        solo_throughput_100: Option<f64>,
        solo_valid: u8,
        sharing: String,
    }
    let mut sets: BTreeMap<(String, String, String), Vec<Row>> = BTreeMap::new();
    for row in reader("colocations_tidy.csv.gz")?.deserialize::<Row>() {
        let row = row.map_err(|e| format!("colocations_tidy.csv.gz: {e}"))?;
        let set = (row.campaign.clone(), row.source_file.clone(), row.coloc_id.clone());
        sets.entry(set).or_default().push(row);
    }
    let mut kace = Kace::default();
    for ((campaign, ..), rows) in sets {
        let Some(first) = rows.first().filter(|first| first.k == rows.len()) else {
            continue;
        };
        let mut together = Together {
            label: rows.iter().map(|row| row.workload.as_str()).collect::<Vec<_>>().join(" + "),
            families: Vec::new(),
            mode: if first.sharing.starts_with("time") { Mode::TimeSlice } else { Mode::Mps },
            tenants: Vec::new(),
            progress: Vec::new(),
        };
        for row in &rows {
            let sound = row.solo_valid == 1 && row.mps_active_thread_pct >= 100.0;
            let alone = row.solo_throughput_100.filter(|rate| sound && *rate > 0.0);
            if let (Some(alone), Some(&demand)) = (alone, solo.get(&row.workload)) {
                together.tenants.push(Tenant::new(demand));
                together.progress.push(row.throughput / alone);
            }
            // Model and kind: bert-base-cased train.
            let family = match (row.workload.split_once("_batch"), row.workload.rsplit_once('-')) {
                (Some((model, _)), Some((_, kind))) => format!("{model} {kind}"),
                _ => row.workload.clone(),
            };
            if !together.families.contains(&family) {
                together.families.push(family);
            }
        }
        let whole = together.progress.len() == rows.len();
        if !whole || together.progress.iter().any(|p| *p > MOST_PROGRESS || *p <= 0.0) {
            continue;
        }
        match (campaign.split('_').next().unwrap_or_default(), rows.len()) {
            ("A", 2) => kace.pairs_may.push(together),
            ("B", 2) => kace.pairs_june.push(together),
            ("B0", 2) => kace.time_sliced.push(together),
            ("C", 3) => kace.triples.push(together),
            ("D", 4) => kace.quadruples.push(together),
            _ => {}
        }
    }
    Ok(kace)
}

/// SMACT, DRAM activity, watts.
type Active = (f64, f64, f64);

/// SMACT, DRAM activity and watts of AEGIS (successor of CARMA, A100-40GB, 60-task traces from Philly,
/// Helios-Saturn and Helios-Venus), means over active samples: its table of energy and utilisation.
pub(super) const AEGIS_POWER: [(&str, [Active; 3]); 5] = [
    ("exclusive", [(0.42, 0.26, 218.0), (0.43, 0.25, 213.0), (0.61, 0.26, 221.0)]),
    ("estimator-free", [(0.64, 0.38, 263.0), (0.61, 0.37, 262.0), (0.77, 0.34, 253.0)]),
    ("peak memory", [(0.64, 0.40, 267.0), (0.57, 0.37, 260.0), (0.59, 0.36, 257.0)]),
    ("Lucid", [(0.74, 0.32, 252.0), (0.68, 0.30, 242.0), (0.50, 0.30, 244.0)]),
    ("Horus", [(0.52, 0.29, 239.0), (0.49, 0.28, 232.0), (0.48, 0.29, 237.0)]),
];
/// The traces of [`AEGIS_POWER`].
pub(super) const AEGIS_TRACES: [&str; 3] = ["Philly", "Saturn", "Venus"];

/// CARMA v1 (arXiv 2508.19073 v1), figures of trace H60 digitised: SMACT and watts of the four GPUs of
/// a DGX Station A100, exclusive and collocated (MAGM + GPUMemNet). DRAM activity is not published.
pub(super) const H60_POWER: [(&str, [(f64, f64); 4]); 2] = [
    ("exclusive", [(0.604, 222.0), (0.555, 200.0), (0.669, 225.0), (0.605, 219.0)]),
    ("MAGM+GPUMemNet", [(0.893, 263.0), (0.812, 244.0), (0.817, 249.0), (0.886, 259.0)]),
];

/// EuroMLSys 2024 (arXiv 2209.06018, A100-40GB): total progress of 7 x ResNet26, CIFAR-10, batch 32, by
/// mode. Which figure belongs to which mode follows the talk's order MPS > MIG > streams.
pub(super) const RESNET26_X7: [(&str, f64); 3] = [("MPS", 5.35), ("MIG 7 x 1g", 2.9), ("streams", 1.98)];
/// The same paper: ResNet152, ImageNet, batch 32, in the best mode (1.15-1.17, number of tasks not known
/// to us; as many as fit, at least 2).
pub(super) const RESNET152_BEST: f64 = 1.16;
/// SMACT of ResNet26 alone on an A100, not published: mean of AEGIS' four ResNet-18 and ResNet-34 tasks on
/// CIFAR-100 at batch 32 (0.1736, 0.1743, 0.1799, 0.1784), the nearest that is.
pub(super) const RESNET26_SMACT: f64 = 0.1766;
/// SMACT of ResNet152 alone, not published: between AEGIS' ResNet-50 tasks at batch 32 and 128 (0.651,
/// 0.711).
pub(super) const RESNET152_SMACT: f64 = 0.68;

/// AEGIS: makespan over exclusive's, geometric mean over its three traces (not public), by preset: the four
/// rows that [`super::replay`] fits to.
pub(super) const AEGIS_FITTED: [(&str, f64); 4] =
    [("or-lug", 0.755), ("or-rr", 0.776), ("magm", 0.732), ("lug", 0.770)];
/// The same of the policies that are held out on purpose.
pub(super) const AEGIS_HELD_OUT: [(&str, f64); 7] = [
    ("aegis-oracle", 0.712),
    ("aegis", 0.730),
    ("aegis-est:horus", 0.733),
    ("aegis-est:gpumemnet", 0.737),
    ("aegis-est:faketensor", 0.794),
    ("lucid", 0.865),
    ("horus", 0.924),
];
/// CARMA v1 (arXiv 2508.19073 v1), abstract: its best set-up, MAGM with GPUMemNet's estimates, on H60 over
/// exclusive's: makespan -26.7 %, energy -14.2 %, SMACT +39.3 %.
pub(super) const H60_HEADLINE: [(&str, f64); 3] = [("makespan", 0.733), ("energy", 0.858), ("SMACT", 1.393)];

/// Our table of one H200 (2026-11-21, PyTorch 2.11, one run a row, 8 s windows): name, thread limit in
/// percent, mode, k, steps/s over all tasks, GRACT, SMACT, DRAM and tensor activity in percent, watts.
/// The rows with k = 1 are the tasks alone in that mode.
#[allow(clippy::type_complexity)]
pub(super) const H200_TABLE: [(&str, Option<f64>, Mode, usize, f64, [f64; 4], f64); 13] = [
    ("ResNet26", None, Mode::TimeSlice, 1, 87.7, [39.7, 22.4, 4.6, 2.8], 212.0),
    ("ResNet26", None, Mode::TimeSlice, 2, 193.8, [99.7, 49.5, 9.8, 6.4], 320.0),
    ("ResNet26", None, Mode::TimeSlice, 4, 206.7, [99.9, 53.3, 10.8, 6.4], 341.0),
    ("ResNet26", None, Mode::TimeSlice, 7, 205.2, [99.8, 53.1, 10.8, 6.3], 336.0),
    ("ResNet26", None, Mode::Mps, 1, 94.1, [43.3, 23.4, 4.9, 2.9], 217.0),
    ("ResNet26", None, Mode::Mps, 2, 178.4, [71.3, 44.6, 10.7, 6.0], 306.0),
    ("ResNet26", None, Mode::Mps, 4, 338.5, [99.9, 89.7, 26.7, 11.9], 523.0),
    ("ResNet26", None, Mode::Mps, 7, 343.9, [100.0, 96.7, 32.6, 12.3], 559.0),
    ("ResNet26", Some(25.0), Mode::Mps, 4, 314.6, [100.0, 59.0, 25.7, 9.8], 484.0),
    ("ResNet152", None, Mode::Mps, 1, 19.7, [75.9, 57.5, 23.3, 10.8], 426.0),
    ("ResNet152", None, Mode::Mps, 3, 31.3, [100.0, 96.3, 47.6, 18.0], 676.0),
    ("ResNet152", None, Mode::TimeSlice, 1, 18.7, [70.7, 54.5, 22.0, 10.2], 407.0),
    ("ResNet152", None, Mode::TimeSlice, 3, 23.0, [99.9, 72.7, 28.8, 12.9], 493.0),
];

/// What was measured on one H200.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct H200 {
    /// Sets of tasks that shared it (`collocation*.json`), one row a set and mode: the mean of repeats.
    pub together: Vec<Together>,
    /// The table's sets: an older run of another script with other tasks, for testing only.
    pub table: Vec<Together>,
    /// Tasks with a thread limit: the table's set of four, and tasks alone (`curves`).
    pub limited: Vec<Together>,
    /// Activity and power, tasks alone and the curves included; the mean of repeats.
    pub powered: Vec<Powered>,
    /// The table's activity and power, for testing only.
    pub table_powered: Vec<Powered>,
    /// Mean activity and power of whole runs of the service (`modes-*.json`), for testing only.
    pub runs: Vec<Powered>,
    /// SMACT and GRACT of tasks alone.
    pub solos: Vec<(String, f64, f64)>,
    /// The sets of [`logs`].
    pub sets: Vec<Together>,
    /// Of the sets measured twice: how far the second is off the first.
    pub repeats: Vec<Repeat>,
    /// What was read, for people.
    pub files: Vec<String>,
}

/// A set of tasks measured twice.
#[derive(Debug, Clone, PartialEq)]
pub struct Repeat {
    /// How they shared.
    pub mode: Mode,
    /// Total progress of the second over that of the first, less 1.
    pub total: f64,
    /// The same of each task's own progress.
    pub each: Vec<f64>,
}

fn share_of(percents: &[f64; 4]) -> Demand {
    let [gract, sm, dram, tensor] = percents.map(|p| p / 100.0);
    Demand { gract, sm, dram, tensor, pcie: 0.0 }
}

fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::TimeSlice => "time-slice",
        Mode::Mps => "MPS",
    }
}

/// A set of tasks: how they share, how many there are, their names.
type Set<'a> = (Mode, usize, &'a [String]);

/// Logs of `carma bench interference` on H200s. What is measured to test the predictor is not among them.
pub const LOGS: [&str; 2] = ["interference-h200.log.jsonl", "heavier-tasks-h200.log.jsonl"];

/// Sets of two and more tasks without thread limits in a log; `None`: it is not there. Repeats become one row: the mean of
/// their progress. What a task does alone is the median of its windows alone under the same sharing, its steps a second
/// the median of all of them.
///
/// # Errors
/// A log that can't be read.
pub fn sets(log: &Path) -> Result<Option<Vec<Together>>, String> {
    if !log.is_file() {
        return Ok(None);
    }
    let text = carma_files::read_text(log, MOST).map_err(|e| e.to_string())?;
    let measured = Measured::read(&text).map_err(|e| format!("{}: {e}", log.display()))?;
    let solos = Solos::of(&measured.combinations);
    let alone = |task: &str, mode: Mode| {
        let own =
            measured.combinations.iter().filter(|w| w.k() == 1 && !w.is_split() && w.members[0] == task);
        let activities = own.filter(|w| w.sharing == mode).filter_map(|w| activity(&w.activity));
        let demand = combined(&activities.collect::<Vec<_>>(), median)?;
        let steps_per_s =
            median([Mode::TimeSlice, Mode::Mps].into_iter().filter_map(|m| solos.overall(task, m)));
        Some(Tenant { steps_per_s, ..Tenant::new(demand) })
    };
    let mut rows: BTreeMap<Set<'_>, Vec<&[f64]>> = BTreeMap::new();
    for window in
        measured.combinations.iter().filter(|w| w.k() > 1 && !w.is_split() && !w.progress.is_empty())
    {
        rows.entry((window.sharing, window.k(), &window.members)).or_default().push(&window.progress);
    }
    let mut sets = Vec::new();
    for ((mode, k, tasks), runs) in rows {
        let tenants: Option<Vec<Tenant>> = tasks.iter().map(|task| alone(task, mode)).collect();
        let progress: Option<Vec<f64>> = (0..k).map(|at| mean(runs.iter().map(|run| run[at]))).collect();
        let (Some(tenants), Some(progress)) = (tenants, progress) else { continue };
        let label = format!("{} {}", mode_name(mode), tasks.join(" + "));
        let family = |task: &String| {
            let note = measured.tasks.iter().find(|note| note.name == *task);
            note.map_or_else(|| task.clone(), |note| note.family().to_owned())
        };
        let families = kinds(&tasks.iter().map(family).collect::<Vec<_>>());
        sets.push(Together { label, families, mode, tenants, progress });
    }
    Ok(Some(sets))
}

fn activity(metrics: &Metrics) -> Option<Demand> {
    let share = |stat: Option<Stat>| stat.map(|stat| stat.mean / 100.0);
    let link = [metrics.pcie_rx_mib_s, metrics.pcie_tx_mib_s].into_iter().flatten().map(|stat| stat.mean);
    Some(Demand {
        gract: share(metrics.gract_pct)?,
        sm: share(metrics.smact_pct)?,
        dram: share(metrics.drama_pct)?,
        tensor: share(metrics.tensor_pct).unwrap_or(0.0),
        pcie: link.fold(0.0, f64::max) / PCIE5_MIB_S,
    })
}

/// The table's rows, and whatever lies in the folder with results: `collocation*.json` (sets of tasks,
/// solos, idle power, thread limits) and `modes-*.json` (runs).
///
/// # Errors
/// A file that can't be read or is not what its name says.
pub fn h200(folder: &Path) -> Result<H200, String> {
    let mut found = H200 { files: vec!["the table of 2026-11-21".to_owned()], ..H200::default() };
    for (task, limit, mode, k, rate, percents, watts) in H200_TABLE {
        let label =
            format!("{} {task} x{k}{}", mode_name(mode), if limit.is_some() { " at 25 %" } else { "" });
        let families = vec![task.to_owned()];
        let activity = share_of(&percents);
        found.table_powered.push(Powered {
            label: label.clone(),
            families: families.clone(),
            activity,
            watts,
            clock: None,
        });
        if k == 1 {
            found.solos.push((label, activity.sm, activity.gract));
            continue;
        }
        let alone = H200_TABLE.iter().find(|row| row.0 == task && row.2 == mode && row.3 == 1);
        let Some(alone) = alone else { continue };
        let mut tenant = Tenant::new(share_of(&alone.5));
        tenant.sm_cap = limit.map(|percent| percent / 100.0);
        tenant.steps_per_s = Some(alone.4);
        let progress = vec![rate / alone.4 / k as f64; k];
        let set = Together { label, families, mode, tenants: vec![tenant; k], progress };
        if limit.is_some() { found.limited.push(set) } else { found.table.push(set) }
    }
    for log in LOGS {
        if let Some(sets) = sets(&folder.join(log))? {
            found.files.push(log.to_owned());
            found.sets.extend(sets);
        }
    }
    let mut files: Vec<PathBuf> = match std::fs::read_dir(folder) {
        Ok(entries) => entries.filter_map(Result::ok).map(|entry| entry.path()).collect(),
        Err(_) if folder.is_file() => vec![folder.to_owned()],
        Err(e) => return Err(format!("{}: {e}", folder.display())),
    };
    // By what comes before `.json`: a second run after the first.
    files.sort_by_key(|path| path.file_stem().map(std::ffi::OsStr::to_owned));
    let mut collocations = Vec::new();
    for path in files {
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        if !name.ends_with(".json") {
            continue;
        }
        let read = || carma_files::read_text(&path, MOST).map_err(|e| e.to_string());
        let wrong = |e: serde_json::Error| format!("{}: {e}", path.display());
        if name.starts_with("modes") {
            runs(&name, &serde_json::from_str(&read()?).map_err(wrong)?, &mut found.runs);
        } else if name.starts_with("collocation") {
            collocations.push(serde_json::from_str(&read()?).map_err(wrong)?);
        } else {
            continue;
        }
        found.files.push(name);
    }
    collocation(collocations, &mut found);
    Ok(found)
}

#[derive(Deserialize)]
struct Runs {
    modes: Vec<Run>,
}

#[derive(Deserialize)]
struct Run {
    policy: String,
    sharing: String,
    smact: f64,
    drama: f64,
    gpu_util: f64,
    power_w: f64,
}

fn runs(name: &str, file: &Runs, into: &mut Vec<Powered>) {
    for run in &file.modes {
        into.push(Powered {
            label: format!("{name} {} {}", run.policy, run.sharing),
            families: vec!["runs".to_owned()],
            activity: Demand { gract: run.gpu_util, sm: run.smact, dram: run.drama, ..Demand::default() },
            watts: run.power_w,
            clock: None,
        });
    }
}

/// The file of `bench/h200/collocation.py`.
#[derive(Deserialize)]
struct Collocation {
    groups: Vec<Group>,
    #[serde(default)]
    curves: Vec<Point>,
}

#[derive(Deserialize)]
struct Group {
    mode: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    tasks: Vec<String>,
    #[serde(default)]
    rates: Vec<Option<f64>>,
    #[serde(flatten)]
    seen: Seen,
}

/// A task alone under an MPS thread limit.
#[derive(Deserialize)]
struct Point {
    task: String,
    percent: f64,
    rate: Option<f64>,
    #[serde(flatten)]
    seen: Seen,
}

/// What the counters showed over a window.
#[derive(Deserialize)]
struct Seen {
    gract: Option<f64>,
    smact: Option<f64>,
    dram: Option<f64>,
    tensor: Option<f64>,
    pcie_tx_mib_s: Option<f64>,
    pcie_rx_mib_s: Option<f64>,
    seconds: Option<f64>,
    energy_j: Option<f64>,
    power_w: Option<f64>,
    sm_clock_mhz: Option<f64>,
    power_capped: Option<f64>,
}

/// Task and percentage of the curve's point whose power is not used: 396 W between 476 W at 50 % and 684 W
/// at 100 %, while its speed and activity lie where they should.
const GLITCH: (&str, f64) = ("bert", 75.0);

/// What PCIe 5.0 x16 carries in one direction: 63 GB/s.
const PCIE5_MIB_S: f64 = 60_082.0;

impl Group {
    fn mode(&self) -> Mode {
        if self.mode.starts_with("mps") { Mode::Mps } else { Mode::TimeSlice }
    }
}

impl Seen {
    fn activity(&self) -> Option<Demand> {
        let pcie = self.pcie_tx_mib_s.unwrap_or(0.0).max(self.pcie_rx_mib_s.unwrap_or(0.0));
        Some(Demand {
            gract: self.gract?,
            sm: self.smact?,
            dram: self.dram?,
            tensor: self.tensor.unwrap_or(0.0),
            pcie: pcie / PCIE5_MIB_S,
        })
    }

    /// Mean power from the energy counter, watts. Readings (`power_w`) miss the phases of a task that
    /// computes and sleeps in turns; they count only where there is no counter.
    fn watts(&self) -> Option<f64> {
        let counted =
            self.energy_j.zip(self.seconds).filter(|(energy, seconds)| *energy > 0.0 && *seconds > 0.0);
        counted.map(|(energy, seconds)| energy / seconds).or(self.power_w)
    }
}

/// Each resource by itself.
fn combined(of: &[Demand], how: impl Fn(Vec<f64>) -> Option<f64>) -> Option<Demand> {
    let part = |f: fn(&Demand) -> f64| how(of.iter().map(f).collect());
    Some(Demand {
        gract: part(|d| d.gract)?,
        sm: part(|d| d.sm)?,
        dram: part(|d| d.dram)?,
        tensor: part(|d| d.tensor)?,
        pcie: part(|d| d.pcie)?,
    })
}

/// One row of activity and power from all windows of one kind. `fastest`: the highest clock, MHz.
fn powered(label: String, families: Vec<String>, seen: &[&Seen], fastest: f64) -> Option<Powered> {
    let activities: Vec<Demand> = seen.iter().filter_map(|seen| seen.activity()).collect();
    // A clock below the highest counts where the driver says that power is why.
    let capped = mean(seen.iter().filter_map(|seen| seen.power_capped)).is_none_or(|share| share > 0.5);
    let clock = mean(seen.iter().filter_map(|seen| seen.sm_clock_mhz));
    Some(Powered {
        label,
        families,
        activity: combined(&activities, mean)?,
        watts: mean(seen.iter().filter_map(|seen| seen.watts()))?,
        clock: clock.filter(|_| fastest > 0.0 && capped).map(|mhz| mhz / fastest),
    })
}

fn kinds(tasks: &[String]) -> Vec<String> {
    let mut kinds = tasks.to_vec();
    kinds.sort();
    kinds.dedup();
    kinds
}

/// The rows of all files together. Repeats of a set, in one file or in several, become one row.
fn collocation(files: Vec<Collocation>, into: &mut H200) {
    let (mut groups, mut points) = (Vec::new(), Vec::new());
    for file in files {
        groups.extend(file.groups);
        points.extend(file.curves);
    }
    let seen = groups.iter().map(|group| &group.seen).chain(points.iter().map(|point| &point.seen));
    let fastest = seen.filter_map(|seen| seen.sm_clock_mhz).fold(0.0, f64::max);
    let mut sets: BTreeMap<(bool, usize, &[String]), Vec<&Group>> = BTreeMap::new();
    for group in groups.iter().filter(|group| !group.tasks.is_empty() || group.kind == "idle") {
        sets.entry((group.mode() == Mode::Mps, group.tasks.len(), &group.tasks)).or_default().push(group);
    }
    // Alone in the same mode: medians, because tasks bound by the host go faster one time than another.
    let mut alone: BTreeMap<(bool, &str), (Demand, f64)> = BTreeMap::new();
    for (&(mps, _, tasks), rows) in &sets {
        if let [task] = tasks {
            let activities: Vec<Demand> = rows.iter().filter_map(|row| row.seen.activity()).collect();
            let rate = median(rows.iter().filter_map(|row| row.rates.first().copied().flatten()));
            if let Some(found) = combined(&activities, median).zip(rate) {
                alone.insert((mps, task), found);
            }
        }
    }
    for (&(mps, _, tasks), rows) in &sets {
        let mode = if mps { Mode::Mps } else { Mode::TimeSlice };
        let names = if tasks.is_empty() { "idle".to_owned() } else { tasks.join(" + ") };
        let label = format!("{} {names}", mode_name(mode));
        let families = if tasks.is_empty() { vec!["idle".to_owned()] } else { kinds(tasks) };
        let seen: Vec<&Seen> = rows.iter().map(|row| &row.seen).collect();
        into.powered.extend(powered(label.clone(), families.clone(), &seen, fastest));
        let solo: Option<Vec<&(Demand, f64)>> =
            tasks.iter().map(|task| alone.get(&(mps, task.as_str()))).collect();
        let Some(solo) = solo else { continue };
        if let [(demand, _)] = solo.as_slice() {
            into.solos.push((label.clone(), demand.sm, demand.gract));
        }
        if tasks.len() < 2 {
            continue;
        }
        let runs: Vec<Vec<f64>> = rows
            .iter()
            .filter_map(|row| row.rates.iter().copied().collect::<Option<Vec<f64>>>())
            .filter(|rates| rates.len() == solo.len())
            .map(|rates| solo.iter().zip(rates).map(|((_, alone), rate)| rate / alone).collect())
            .collect();
        if let [first, second, ..] = runs.as_slice() {
            into.repeats.push(Repeat {
                mode,
                total: second.iter().sum::<f64>() / first.iter().sum::<f64>() - 1.0,
                each: second.iter().zip(first).map(|(b, a)| b / a - 1.0).collect(),
            });
        }
        let progress: Option<Vec<f64>> =
            (0..solo.len()).map(|at| mean(runs.iter().filter_map(|run| run.get(at).copied()))).collect();
        if let Some(progress) = progress {
            let tenants = solo
                .iter()
                .map(|(demand, rate)| Tenant { steps_per_s: Some(*rate), ..Tenant::new(*demand) })
                .collect();
            into.together.push(Together { label, families, mode, tenants, progress });
        }
    }
    for point in &points {
        let label = format!("MPS {} at {} %", point.task, point.percent);
        let families = vec![point.task.clone()];
        if (point.task.as_str(), point.percent) != GLITCH {
            into.powered.extend(powered(label.clone(), families.clone(), &[&point.seen], fastest));
        }
        let solo = alone.get(&(true, point.task.as_str()));
        if let Some(((demand, alone), rate)) = solo.zip(point.rate).filter(|_| point.percent < 100.0) {
            let tenant = Tenant { sm_cap: Some(point.percent / 100.0), ..Tenant::new(*demand) };
            let progress = vec![rate / alone];
            into.limited.push(Together { label, families, mode: Mode::Mps, tenants: vec![tenant], progress });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sound_sets_of_kace_are_read() {
        let Some(folder) = crate::tests::here()
            .shared()
            .map(|f| f.join("nba556677go__KACE-artifact"))
            .filter(|f| f.is_dir())
        else {
            println!("skipped: ../shared/data/nba556677go__KACE-artifact is not there");
            return;
        };
        let kace = kace(&folder).unwrap();
        assert_eq!(kace.triples.len(), 173);
        assert_eq!(kace.quadruples.len(), 368);
        assert_eq!((kace.pairs_june.len(), kace.time_sliced.len()), (166, 156));
        assert!(kace.triples.iter().all(|set| set.tenants.len() == 3 && set.mode == Mode::Mps));
        assert!(kace.time_sliced.iter().all(|set| set.mode == Mode::TimeSlice));
    }

    #[test]
    fn a_file_of_the_collocation_script_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let text = r#"{"date": "2026-11-21", "machine": {"cpus": 16}, "groups": [
            {"mode": "mps", "kind": "idle", "tasks": [], "rates": [], "gract": 0.0, "smact": 0.0, "dram": 0.0, "tensor": 0.0, "power_w": 80.0},
            {"mode": "mps", "kind": "solo", "tasks": ["a"], "repeat": 0, "rates": [10.0], "gract": 0.5, "smact": 0.3, "smocc": 0.1, "dram": 0.1, "tensor": 0.0, "pcie_tx_mib_s": 10.0, "pcie_rx_mib_s": 600.82, "power_w": 300.0, "sm_clock_mhz": 1980.0, "power_capped": 0.0},
            {"mode": "mps", "kind": "solo", "tasks": ["a"], "repeat": 1, "rates": [12.0], "gract": 0.5, "smact": 0.3, "dram": 0.1, "tensor": null, "power_w": 300.0, "sm_clock_mhz": 1980.0},
            {"mode": "mps", "kind": "self", "tasks": ["a", "a"], "rates": [10.0, 9.9], "gract": 0.9, "smact": 0.6, "dram": 0.2, "tensor": 0.0, "power_w": 690.0, "sm_clock_mhz": 1485.0, "power_capped": 1.0},
            {"mode": "mps", "kind": "pair", "tasks": ["a", "b"], "rates": [10.0, 9.9], "gract": null, "smact": null, "dram": null, "tensor": null, "power_w": null, "sm_clock_mhz": null}
        ], "curves": [], "failures": [], "incomplete": null}"#;
        std::fs::write(folder.path().join("collocation.json"), text).unwrap();
        let again = r#"{"groups": [
            {"mode": "mps", "kind": "self", "tasks": ["a", "a"], "rates": [11.0, 9.9], "gract": 0.9, "smact": 0.6, "dram": 0.2, "tensor": 0.0, "power_w": 9.0, "energy_j": 1380.0, "seconds": 2.0, "sm_clock_mhz": 1485.0, "power_capped": 1.0}
        ], "curves": [
            {"task": "a", "percent": 25, "rate": 5.5, "gract": 1.0, "smact": 0.2, "dram": 0.1, "tensor": 0.0, "power_w": 150.0},
            {"task": "a", "percent": 100, "rate": 11.0, "gract": 1.0, "smact": 0.2, "dram": 0.1, "tensor": 0.0, "power_w": 300.0}
        ]}"#;
        std::fs::write(folder.path().join("collocation-again.json"), again).unwrap();
        std::fs::write(folder.path().join("faults-1.json"), "not read").unwrap();
        let found = h200(folder.path()).unwrap();
        let idle = found.powered.first().unwrap();
        assert_eq!((idle.label.as_str(), idle.watts), ("MPS idle", 80.0));
        assert_eq!(found.together.len(), 1, "b never ran alone");
        let set = &found.together[0];
        assert_eq!(set.families, ["a"]);
        assert!((set.total() - (10.5 + 9.9) / 11.0).abs() < 1e-12, "the mean of both files");
        assert!((set.tenants[0].demand.pcie - 0.005).abs() < 1e-9);
        assert!((found.repeats[0].total - 1.0 / 19.9).abs() < 1e-12, "the second against the first");
        let pair = found.powered.iter().find(|row| row.label == "MPS a + a").unwrap();
        assert_eq!((pair.watts, pair.clock), (690.0, Some(0.75)), "of the energy counter where there is one");
        assert_eq!(found.powered.len(), 5);
        let limited = found.limited.last().unwrap();
        assert_eq!((limited.label.as_str(), limited.progress[0]), ("MPS a at 25 %", 0.5));
        assert_eq!(found.table.len(), 8);
        std::fs::write(folder.path().join("collocation-2.json"), "{}").unwrap();
        assert!(h200(folder.path()).unwrap_err().contains("collocation-2.json"));
    }
}
