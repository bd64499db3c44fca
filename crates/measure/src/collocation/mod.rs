//! How much more work one GPU gets done when several trainings share it, by how they share it and how many there are: the
//! figures of the papers that began this ("Profiling and monitoring deep learning training tasks", EuroMLSys 2023, and "An analysis
//! of collocation on GPUs for deep learning training", EuroMLSys 2024), on a GPU of one's own.
//!
//! The windows are those of [`crate::interference`], with a ladder of copies of each task; models that share one process, by
//! streams, are tasks of their own whose step is a batch of each.

use crate::Error;
use carma_interference::measured::{Combination, Measured, TaskNote};
use carma_interference::share::Mode;
use carma_stats::mean;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// What the bundled tasks run, besides the helper that a measurement brings.
const FILES: [(&str, &str); 2] = [
    ("carma_collocation.py", include_str!("carma_collocation.py")),
    ("interference_tasks.py", include_str!("../../../../bench/h200/interference_tasks.py")),
];

/// A training that comes with carma.
#[derive(Debug)]
pub struct Training {
    /// Its name.
    pub name: &'static str,
    model: &'static str,
    /// Pixels of a side.
    size: u32,
    batch: u32,
    /// Images of an epoch: of CIFAR-10, of `ImageNet`.
    pub epoch: u32,
    /// The most that run at once, unless more are asked for: 40 GB hold so many.
    copies: usize,
    /// On virtual GPUs: options of `carma virtual-task`; those of 32 and of 224 pixels were measured on an H200, the others are guesses.
    modelled: [&'static str; 4],
}

const CIFAR: u32 = 50_000;
const IMAGENET: u32 = 1_281_167;

/// The trainings, in the order in which they are measured.
pub const TRAININGS: [Training; 5] = [
    Training {
        name: "resnet26-cifar",
        model: "resnet26",
        size: 32,
        batch: 32,
        epoch: CIFAR,
        copies: 7,
        modelled: ["--memory=1950M", "--sm=0.22", "--gract=0.4", "--dram=0.046"],
    },
    Training {
        name: "resnet50-64px",
        model: "resnet50",
        size: 64,
        batch: 32,
        epoch: IMAGENET,
        copies: 7,
        modelled: ["--memory=2500M", "--sm=0.3", "--gract=0.5", "--dram=0.1"],
    },
    Training {
        name: "resnet152-64px",
        model: "resnet152",
        size: 64,
        batch: 32,
        epoch: IMAGENET,
        copies: 7,
        modelled: ["--memory=3500M", "--sm=0.35", "--gract=0.5", "--dram=0.12"],
    },
    Training {
        name: "resnet50-224px",
        model: "resnet50",
        size: 224,
        batch: 32,
        epoch: IMAGENET,
        copies: 4,
        modelled: ["--memory=4200M", "--sm=0.5", "--gract=0.65", "--dram=0.22"],
    },
    Training {
        name: "resnet152-224px",
        model: "resnet152",
        size: 224,
        batch: 32,
        epoch: IMAGENET,
        copies: 4,
        modelled: ["--memory=8500M", "--sm=0.57", "--gract=0.76", "--dram=0.23"],
    },
];

/// What the papers found on an A100 (40 GB): training, what shared it, times the throughput of one. The talks name the first three
/// in the order of MPS, MIG and streams; of the fourth, that it was about as much under two of them.
pub const THEIRS: [(&str, &str, f64); 5] = [
    ("resnet26-cifar", "mps", 5.35),
    ("resnet26-cifar", "mig", 2.9),
    ("resnet26-cifar", "streams", 1.98),
    ("resnet152-224px", "mps", 1.17),
    ("resnet50-64px", "mps", 3.5),
];

/// Writes the tasks below a folder of results: the file of tasks for a measurement of interference.
///
/// `streams`: how many models share a process, each number a task of its own; not on virtual GPUs, which have no model of it.
/// `most`: so many may run at once, if it is asked for.
/// `carma`: on virtual GPUs, the program that stands in for the trainings.
///
/// # Errors
/// A name that no training has; a file that cannot be written; a program whose path is not UTF-8.
pub fn bundled(
    results: &Path,
    only: &[String],
    streams: &[usize],
    most: Option<usize>,
    carma: Option<&Path>,
) -> Result<PathBuf, Error> {
    if let Some(name) = only.iter().find(|name| TRAININGS.iter().all(|t| t.name != name.as_str())) {
        let known = TRAININGS.map(|training| training.name).join(", ");
        return Err(Error::usage(format!(
            "no training is named `{}`; there are: {known}",
            name.escape_debug()
        )));
    }
    let program = match carma {
        Some(path) => Some(path.to_str().ok_or_else(|| {
            Error::new(format!("the path of this program, {}, is not UTF-8", path.display()))
        })?),
        None => None,
    };
    let mut text = String::from("startup_s = 200\n[env]\nOMP_NUM_THREADS = \"1\"\n");
    for training in TRAININGS.iter().filter(|t| only.is_empty() || only.iter().any(|name| name == t.name)) {
        let copies = most.unwrap_or(training.copies);
        training.write(&mut text, 1, copies, program)?;
        for &streams in streams.iter().filter(|n| program.is_none() && (2..=copies).contains(n)) {
            training.write(&mut text, streams, 1, None)?;
        }
    }
    let folder = results.join("tasks");
    let failed = |path: &Path, e: std::io::Error| Error::new(format!("cannot write {}: {e}", path.display()));
    std::fs::create_dir_all(&folder).map_err(|e| failed(&folder, e))?;
    let tasks = folder.join("tasks.toml");
    for (name, text) in [("tasks.toml", text.as_str())].into_iter().chain(FILES) {
        let path = folder.join(name);
        carma_files::replace(&path, text.as_bytes()).map_err(|e| failed(&path, e))?;
    }
    Ok(tasks)
}

impl Training {
    /// Its table in a file of tasks, of so many models in one process, and so many such processes at most.
    fn write(
        &self,
        text: &mut String,
        streams: usize,
        copies: usize,
        program: Option<&str>,
    ) -> Result<(), Error> {
        let words: Vec<String> = match program {
            Some(program) => [program, "virtual-task", "--work=30d", "--startup=2s"]
                .into_iter()
                .chain(self.modelled)
                .map(str::to_owned)
                .collect(),
            None => {
                let numbers = [("--size", self.size), ("--batch", self.batch)];
                let mut words = vec!["python3".to_owned(), "carma_collocation.py".into(), self.model.into()];
                words.extend(numbers.iter().map(|(option, n)| format!("{option}={n}")));
                words.push(format!("--streams={streams}"));
                words
            }
        };
        let name =
            if streams == 1 { self.name.to_owned() } else { format!("{} {streams} streams", self.name) };
        // JSON's strings are TOML's, but for what no path or option has.
        let words = serde_json::to_string(&words).map_err(|e| Error::new(e.to_string()))?;
        let _ = write!(
            text,
            "\n[[task]]\nname = \"{name}\"\nfamily = \"{}\"\nkind = \"train\"\nbatch = {}\nstreams = {streams}\ncopies = {copies}\ncommand = {words}\n",
            self.name,
            self.batch as usize * streams
        );
        Ok(())
    }
}

/// What a number of trainings came to when they shared the GPU in one way: means over the windows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// What was trained: the task, and for streams the task of one model.
    pub family: String,
    /// `alone`, `streams`, `time-slice`, `mps` or `mps, threads divided`.
    pub way: String,
    /// How many trainings.
    pub count: usize,
    /// Windows that were measured.
    pub windows: usize,
    /// Samples a second of all together; steps where the task says no batch.
    pub per_s: f64,
    /// Times the samples a second of one alone.
    pub gain: Option<f64>,
    /// How long an epoch takes each of them, seconds; where the samples of an epoch are known.
    pub epoch_s: Option<f64>,
    /// Power, W.
    pub power_w: Option<f64>,
    /// Energy of an epoch of one of them, kJ.
    pub epoch_kj: Option<f64>,
    /// SM active, percent.
    pub smact_pct: Option<f64>,
    /// Memory of all of them, MiB.
    pub memory_mib: Option<f64>,
}

/// How trainings that share no process share the GPU, in words.
fn way(window: &Combination) -> &'static str {
    match (window.k(), window.sharing) {
        (1, Mode::TimeSlice) => "alone",
        (_, Mode::TimeSlice) => "time-slice",
        (_, Mode::Mps) if window.is_split() => "mps, threads divided",
        (_, Mode::Mps) => "mps",
    }
}

/// The rows of a measurement of ladders.
#[must_use]
pub fn rows(measured: &Measured) -> Vec<Row> {
    let note = |name: &str| measured.tasks.iter().find(|task| task.name == name);
    let batch = |name: &str| note(name).and_then(|task| task.batch).unwrap_or(1);
    let streams = |name: &str| note(name).and_then(|task| task.streams).unwrap_or(1).max(1);
    // What one process of several models is compared with: the task of its family that is one of them.
    let single = |name: &str| {
        let (task, models) = (note(name).filter(|_| streams(name) > 1)?, streams(name));
        let is_one = |one: &&TaskNote| {
            streams(&one.name) == 1
                && one.family() == task.family()
                && u64::from(batch(&one.name)) * u64::from(models) == u64::from(batch(name))
        };
        measured.tasks.iter().find(is_one).map(|one| one.name.clone())
    };
    let single = |name: &str| single(name).unwrap_or_else(|| name.to_owned());
    let mut groups: BTreeMap<(usize, usize, &str, usize), Vec<&Combination>> = BTreeMap::new();
    let families: Vec<String> = {
        let mut seen = Vec::new();
        for name in measured.tasks.iter().map(|task| single(&task.name)) {
            if !seen.contains(&name) {
                seen.push(name);
            }
        }
        seen
    };
    const WAYS: [&str; 5] = ["alone", "streams", "time-slice", "mps", "mps, threads divided"];
    for window in measured.combinations.iter().filter(|w| w.failed.is_none() && !w.rates.is_empty()) {
        let Some(name) = window.members.first().filter(|name| window.members.iter().all(|m| m == *name))
        else {
            continue;
        };
        let family = single(name);
        let models = streams(name) as usize;
        let way = if models > 1 { "streams" } else { way(window) };
        let at = families.iter().position(|known| *known == family).unwrap_or(0);
        let rank = WAYS.iter().position(|known| *known == way).unwrap_or(0);
        groups.entry((at, rank, way, models * window.k())).or_default().push(window);
    }
    let mut rows: Vec<Row> = Vec::new();
    for ((at, _, way, count), windows) in groups {
        let family = families.get(at).cloned().unwrap_or_default();
        let of = |pick: &dyn Fn(&Combination) -> Option<f64>| mean(windows.iter().filter_map(|w| pick(w)));
        let samples = |w: &Combination| {
            Some(
                w.rates.iter().zip(&w.members).map(|(rate, name)| rate * f64::from(batch(name))).sum::<f64>(),
            )
        };
        let Some(per_s) = of(&samples).filter(|per_s| *per_s > 0.0) else { continue };
        let alone = rows.iter().find(|row| row.family == family && row.way == "alone").map(|row| row.per_s);
        let epoch = TRAININGS.iter().find(|training| training.name == family).map(|t| f64::from(t.epoch));
        let power_w = of(&|w| w.power_w);
        rows.push(Row {
            gain: if way == "alone" { Some(1.0) } else { alone.map(|alone| per_s / alone) },
            epoch_s: epoch.map(|images| images / (per_s / count as f64)),
            epoch_kj: epoch.zip(power_w).map(|(images, watts)| watts * images / per_s / 1000.0),
            smact_pct: of(&|w| w.activity.smact_pct.map(|s| s.mean)),
            memory_mib: of(&|w| {
                let held = w.memory_mib.iter().copied().collect::<Option<Vec<u64>>>()?;
                (!held.is_empty()).then(|| held.iter().sum::<u64>() as f64)
            }),
            windows: windows.len(),
            way: way.to_owned(),
            family,
            count,
            per_s,
            power_w,
        });
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use carma_interference::measured::{Log, Machine};

    fn window(name: &str, rates: &[f64], sharing: Mode, pct: u8) -> Combination {
        Combination {
            members: vec![name.into(); rates.len()],
            rates: rates.to_vec(),
            sharing,
            threads_pct: if pct < 100 { vec![pct; rates.len()] } else { Vec::new() },
            power_w: Some(200.0),
            memory_mib: vec![Some(1000); rates.len()],
            ..Combination::default()
        }
    }

    #[test]
    fn gains_are_over_one_alone_whatever_shares() {
        let task = |name: &str, batch, streams| TaskNote {
            name: name.into(),
            family: Some("resnet26-cifar".into()),
            batch: Some(batch),
            streams: Some(streams),
            ..TaskNote::default()
        };
        let (one, two) = ("resnet26-cifar", "resnet26-cifar 2 streams");
        let log = Log {
            machine: Machine::default(),
            tasks: vec![task(one, 32, 1), task(two, 64, 2)],
            sessions: Vec::new(),
            combinations: vec![
                window(one, &[90.0, 90.0], Mode::Mps, 100),
                window(one, &[80.0, 80.0], Mode::Mps, 50),
                window(one, &[100.0], Mode::TimeSlice, 100),
                window(one, &[60.0, 50.0], Mode::TimeSlice, 100),
                window(two, &[70.0], Mode::TimeSlice, 100),
                Combination { failed: Some("it ended".into()), ..window(one, &[], Mode::Mps, 100) },
            ],
            whole: 0,
        };
        let rows = rows(&log.assemble(0));
        let of: Vec<(&str, usize, f64)> =
            rows.iter().map(|row| (row.way.as_str(), row.count, row.gain.unwrap())).collect();
        let expected = [
            ("alone", 1, 1.0),
            ("streams", 2, 1.4),
            ("time-slice", 2, 1.1),
            ("mps", 2, 1.8),
            ("mps, threads divided", 2, 1.6),
        ];
        assert_eq!(of, expected);
        let mps = &rows[3];
        // 50,000 images at 2,880 a second for each of two; 200 W over what both do.
        assert!((mps.epoch_s.unwrap() - 50_000.0 / 2880.0).abs() < 1e-9);
        assert!((mps.epoch_kj.unwrap() - 0.2 * 50_000.0 / 5760.0).abs() < 1e-9);
        assert_eq!(mps.memory_mib, Some(2000.0));
    }

    /// A family is what is held out together: models of several sizes, and batches.
    #[test]
    fn another_model_of_the_family_is_no_stream_of_this_one() {
        let task = |name: &str, batch, streams| TaskNote {
            name: name.into(),
            family: Some("resnet".into()),
            batch: Some(batch),
            streams,
            ..TaskNote::default()
        };
        let alone = |name: &str, rate| window(name, &[rate], Mode::TimeSlice, 100);
        let log = Log {
            machine: Machine::default(),
            tasks: vec![
                task("resnet18", 128, None),
                task("resnet50", 64, None),
                task("resnet50 twice", 128, Some(2)),
                task("resnet101 twice", 64, Some(2)),
            ],
            sessions: Vec::new(),
            combinations: vec![
                alone("resnet18", 10.0),
                alone("resnet50", 10.0),
                alone("resnet50 twice", 6.0),
                alone("resnet101 twice", 5.0),
                window("resnet18", &[6.0, 6.0], Mode::TimeSlice, 100),
            ],
            whole: 0,
        };
        let rows = rows(&log.assemble(0));
        let of: Vec<(&str, &str, usize, Option<f64>)> =
            rows.iter().map(|row| (row.family.as_str(), row.way.as_str(), row.count, row.gain)).collect();
        let expected = [
            ("resnet18", "alone", 1, Some(1.0)),
            ("resnet18", "time-slice", 2, Some(1.2)),
            ("resnet50", "alone", 1, Some(1.0)),
            // 128 images, not those of ResNet-18.
            ("resnet50", "streams", 2, Some(1.2)),
            ("resnet101 twice", "streams", 2, None),
        ];
        assert_eq!(of, expected);
    }

    #[test]
    fn the_tasks_are_those_of_a_measurement() {
        let dir = tempfile::tempdir().unwrap();
        let text = |streams: &[usize], carma: Option<&Path>| {
            let path = bundled(dir.path(), &["resnet152-224px".into()], streams, None, carma).unwrap();
            std::fs::read_to_string(path).unwrap()
        };
        let real: toml::Table = text(&[2, 4, 7], None).parse().unwrap();
        let tasks = real["task"].as_array().unwrap();
        let batches: Vec<i64> = tasks.iter().map(|task| task["batch"].as_integer().unwrap()).collect();
        assert_eq!(batches, [32, 64, 128]);
        let modelled: toml::Table = text(&[2], Some(Path::new("/a \"b\"/carma"))).parse().unwrap();
        assert_eq!(modelled["task"][0]["command"][0].as_str(), Some("/a \"b\"/carma"));
        assert!(
            bundled(dir.path(), &["vgg".into()], &[], None, None)
                .unwrap_err()
                .message
                .contains("resnet26-cifar")
        );
        // As many as are asked for.
        let path = bundled(dir.path(), &["resnet152-224px".into()], &[6, 7], Some(7), None).unwrap();
        let asked: toml::Table = std::fs::read_to_string(path).unwrap().parse().unwrap();
        let copies = |of: &toml::Table| -> Vec<i64> {
            of["task"].as_array().unwrap().iter().map(|task| task["copies"].as_integer().unwrap()).collect()
        };
        assert_eq!((copies(&real), copies(&asked)), (vec![4, 1, 1], vec![7, 1, 1]));
    }
}
