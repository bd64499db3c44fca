//! Data of Lucid, iGniter and Gavel, and KACE's thread splits, as data sets.

use super::set::{Set, Together};
use crate::kace::cells::Cells;
use crate::kace::{Error, unread};
use carma_interference::group::{GpuType, Mode};
use carma_interference::profile::{Kernels, Metrics, Profile, Rate, RateSource, Stat};
use std::collections::BTreeMap;
use std::path::Path;

fn rate(per_s: f64) -> Option<Rate> {
    // Measured by the same people in the same campaign: as good as our own.
    (per_s.is_finite() && per_s > 0.0).then_some(Rate {
        per_s,
        source: Some(RateSource::Printed),
        ..Rate::default()
    })
}

/// Tasks by name, in the order of their first mention.
#[derive(Default)]
struct Index {
    at: BTreeMap<String, usize>,
    tasks: Vec<Profile>,
    families: Vec<String>,
}

impl Index {
    fn put(&mut self, profile: Profile, family: &str) -> usize {
        if let Some(at) = self.at.get(&profile.name) {
            return *at;
        }
        self.at.insert(profile.name.clone(), self.tasks.len());
        self.tasks.push(profile);
        self.families.push(family.to_owned());
        self.tasks.len() - 1
    }

    fn set(self, gpu: &str, rows: Vec<Together>, place: &Path) -> Result<Set, Error> {
        let set = Set {
            gpu: GpuType::named(gpu),
            tasks: self.tasks,
            families: self.families,
            rows,
            sessions: Vec::new(),
        };
        set.checked(&place.display().to_string())
    }
}

/// Lucid (ASPLOS 2023): 1,388 pairs on one RTX 3090, plain processes; nvidia-smi's numbers of each task alone.
/// Families are models.
pub(crate) fn lucid(folder: &Path) -> Result<Set, Error> {
    let solo = Cells::read(folder, "single_data.csv")?;
    let mut index = Index::default();
    let key = |model: &str, data: &str, batch: &str, amp: &str| format!("{model}/{data}/{batch}/amp{amp}");
    let [model, data, batch, amp, speed, util, mem, memory] =
        ["model", "dataset", "batchsize", "amp", "speed", "gpu_util", "gmem_util", "gmem"]
            .map(|c| solo.column(c));
    let (model, data, batch, amp) = (model?, data?, batch?, amp?);
    let (speed, util, mem, memory) = (speed?, util?, mem?, memory?);
    for row in solo.rows() {
        let name = key(row.text(model)?, row.text(data)?, row.text(batch)?, row.text(amp)?);
        let metrics = Metrics {
            gpu_util_pct: Some(Stat::of(row.positive(util, false)?.min(100.0))),
            mem_util_pct: Some(Stat::of(row.positive(mem, false)?.min(100.0))),
            memory_mib: Some(Stat::of(row.positive(memory, true)?)),
            ..Metrics::default()
        };
        let profile = Profile { name, rate: rate(row.positive(speed, true)?), metrics, ..Profile::default() };
        index.put(profile, row.text(model)?);
    }
    let pairs = Cells::read(folder, "colocate_info.csv")?;
    let columns: Vec<usize> = ["model", "dataset", "batchsize", "amp", "speed"]
        .iter()
        .flat_map(|c| [1, 2].map(|i| pairs.column(&format!("{c}{i}"))))
        .collect::<Result<_, _>>()?;
    let mut rows = Vec::new();
    for row in pairs.rows() {
        let mut tasks = Vec::new();
        let mut progress = Vec::new();
        for i in 0..2 {
            let text = |c: usize| row.text(columns[2 * c + i]);
            let name = key(text(0)?, text(1)?, text(2)?, text(3)?);
            let at = index.at.get(&name).copied();
            tasks.push(at.ok_or_else(|| {
                Error::new(row.place(columns[i]), format!("`{name}` was not measured alone"))
            })?);
            progress.push(row.positive(columns[8 + i], true)?);
        }
        rows.push(Together { tasks, sharing: Mode::TimeSlice, threads: Vec::new(), progress });
    }
    index.set("RTX 3090", rows, folder)
}

/// iGniter (TPDS 2023): 750 pairs of inference servers on a partitioned V100. Speed is 1 / latency; alone, by
/// thread percentage, from the solo table; as only one batch was measured with all threads, 80 % stand for them on
/// both sides of every ratio. Families are models.
pub(crate) fn igniter(folder: &Path) -> Result<Set, Error> {
    let solo = Cells::read(folder, "solo_v100_batch_x_mpspct.csv")?;
    let [model, batch, pct, latency, dram] =
        ["model", "batch", "mps_pct", "latency", "dram"].map(|c| solo.column(c));
    let (model, batch, pct, latency, dram) = (model?, batch?, pct?, latency?, dram?);
    // Speed and DRAM utilisation by percentage.
    type Curve = BTreeMap<u8, (f64, Option<f64>)>;
    let mut curves: BTreeMap<(String, u32), Curve> = BTreeMap::new();
    for row in solo.rows() {
        let key = (row.text(model)?.to_owned(), row.whole(batch)?);
        let at = row.positive(pct, true)?.round().clamp(1.0, 100.0) as u8;
        let traffic = row.maybe(dram).and_then(|text| text.parse::<f64>().ok());
        curves.entry(key).or_default().insert(at, (1000.0 / row.positive(latency, true)?, traffic));
    }
    let mut index = Index::default();
    let pairs = Cells::read(folder, "pair_interference_v100.csv")?;
    let at = |name: &str| pairs.column(name);
    let columns = [
        (at("model1")?, at("batch1")?, at("latency1_ms")?),
        (at("model2")?, at("batch2")?, at("latency2_ms")?),
    ];
    let split = at("mps_pct1")?;
    let mut rows = Vec::new();
    for row in pairs.rows() {
        let first = row.positive(split, true)?;
        let (mut tasks, mut threads, mut progress) = (Vec::new(), Vec::new(), Vec::new());
        for (i, (model, batch, latency)) in columns.into_iter().enumerate() {
            let key = (row.text(model)?.to_owned(), row.whole(batch)?);
            let name = format!("{}/{}", key.0, key.1);
            let curve = curves
                .get(&key)
                .ok_or_else(|| Error::new(row.place(model), format!("no solo rows of {name}")))?;
            let (full, traffic) = *curve.get(&80).ok_or_else(|| {
                Error::new(row.place(model), format!("no solo row of {name} with 80 % of the threads"))
            })?;
            let mut by_threads: BTreeMap<u8, f64> =
                curve.iter().map(|(pct, (speed, _))| (*pct, *speed)).collect();
            by_threads.insert(100, full);
            let profile = Profile {
                rate: rate(full),
                metrics: Metrics {
                    drama_pct: traffic.filter(|d| (0.0..=100.0).contains(d)).map(Stat::of),
                    ..Metrics::default()
                },
                rate_by_threads_pct: by_threads,
                name,
                ..Profile::default()
            };
            tasks.push(index.put(profile, &key.0));
            threads.push(if i == 0 { first } else { 100.0 - first });
            progress.push(1000.0 / row.positive(latency, true)? / full);
        }
        rows.push(Together { tasks, sharing: Mode::Mps, threads, progress });
    }
    index.set("unmeasured Volta 16GB", rows, folder)
}

/// Gavel (OSDI 2020): pairs of training jobs under MPS on one GPU type; nothing is known of a job but its rate
/// alone. Pairs that could not run (0) are left out. Families are models.
pub(crate) fn gavel(folder: &Path, worker: &str) -> Result<Set, Error> {
    let cells = Cells::read(folder, "motivation_pairs_tidy.csv")?;
    let at = |name: &str| cells.column(name);
    let kind = at("worker_type")?;
    let columns = [
        (at("job1")?, at("isolated_thr1")?, at("colocated_thr1")?),
        (at("job2")?, at("isolated_thr2")?, at("colocated_thr2")?),
    ];
    let mut index = Index::default();
    let mut rows = Vec::new();
    for row in cells.rows().filter(|row| row.maybe(kind) == Some(worker)) {
        let (mut tasks, mut progress) = (Vec::new(), Vec::new());
        for (job, alone, together) in columns {
            let name = row.text(job)?.to_owned();
            let family = name.split(" (").next().unwrap_or(&name).to_owned();
            let (alone, together) = (row.positive(alone, false)?, row.positive(together, false)?);
            if alone > 0.0 && together > 0.0 {
                tasks.push(index.put(Profile { name, rate: rate(alone), ..Profile::default() }, &family));
                progress.push(together / alone);
            }
        }
        // A job with itself is written twice over; both members behave alike.
        if tasks.len() == 2 {
            rows.push(Together { tasks, sharing: Mode::Mps, threads: Vec::new(), progress });
        }
    }
    index.set(worker, rows, folder)
}

/// Solo speeds by thread percentage of the workloads that have all ten. Eleven rows hold a single value, some
/// without the commas of the others: those are no curves.
fn curves(path: &Path) -> Result<BTreeMap<String, BTreeMap<u8, f64>>, Error> {
    let place = path.display().to_string();
    let bad = |e: csv::Error| Error::new(&place, format!("cannot be read: {e}"));
    let file = carma_files::open_bounded(path, carma_files::MOST).map_err(unread)?;
    let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(file);
    let header = reader.headers().map_err(bad)?.clone();
    let mut curves = BTreeMap::new();
    for record in reader.records() {
        let record = record.map_err(bad)?;
        let speeds = header.iter().zip(&record).skip(1).filter_map(|(pct, speed)| {
            let speed = speed.parse::<f64>().ok().filter(|v| v.is_finite() && *v > 0.0)?;
            Some((pct.parse::<u8>().ok().filter(|pct| (1..=100).contains(pct))?, speed))
        });
        let curve: BTreeMap<u8, f64> = speeds.collect();
        if let (10.., Some(name)) = (curve.len(), record.get(0)) {
            curves.insert(name.to_owned(), curve);
        }
    }
    Ok(curves)
}

/// KACE's campaign of May 2024: pairs under MPS at splits 10/90 to 90/10 and at 100/100, with solo curves by
/// percentage. Only pairs of tasks with a whole curve.
pub(crate) fn kace_splits(folder: &Path) -> Result<Set, Error> {
    let curves = curves(&folder.join("orig/solo_mps_curve_baseline_steps_stage2.csv"))?;
    let util = Cells::read(folder, "orig/baseline_labels_util.csv")?;
    let (kind, sm) = (util.column("Type")?, util.column("sm%")?);
    let mut busy = BTreeMap::new();
    for row in util.rows() {
        if let Some(sm) = row.maybe(sm).and_then(|v| v.parse::<f64>().ok()) {
            busy.insert(row.text(kind)?.to_owned(), sm.clamp(0.0, 100.0));
        }
    }
    let nsight = Cells::read(folder, "ncu_solo_features.csv")?;
    let (kernel, registers) = (nsight.column("Type")?, nsight.column("Registers")?);
    let mut resident = BTreeMap::new();
    for row in nsight.rows() {
        resident.insert(row.text(kernel)?.to_owned(), row.positive(registers, false)?);
    }
    let cells = Cells::read(folder, "colocations_tidy.csv")?;
    let at = |name: &str| cells.column(name);
    let (campaign, id, task) = (at("campaign")?, at("coloc_id")?, at("workload")?);
    let (pct, speed, alone) = (at("mps_active_thread_pct")?, at("throughput")?, at("solo_throughput_100")?);
    let mut index = Index::default();
    let mut open: Option<(String, Together)> = None;
    let mut rows = Vec::new();
    for row in cells.rows().filter(|row| row.maybe(campaign).is_some_and(|c| c.starts_with("A_"))) {
        let key = row.text(id)?.to_owned();
        if open.as_ref().is_none_or(|(at, _)| *at != key) {
            rows.extend(open.take().map(|(_, together)| together));
            let none =
                Together { tasks: Vec::new(), sharing: Mode::Mps, threads: Vec::new(), progress: Vec::new() };
            open = Some((key, none));
        }
        let name = row.text(task)?;
        let (Some(curve), Some((_, together))) = (curves.get(name), open.as_mut()) else { continue };
        let alone = row.positive(alone, true)?;
        let profile = Profile {
            name: name.to_owned(),
            rate: rate(alone),
            metrics: Metrics { gpu_util_pct: busy.get(name).copied().map(Stat::of), ..Metrics::default() },
            rate_by_threads_pct: curve.clone(),
            // Of Nsight Compute's numbers the predictor takes this one.
            kernels: resident.get(name).map(|r| Kernels { registers: *r, ..Kernels::default() }),
            ..Profile::default()
        };
        let family = name.split("_batch").next().unwrap_or(name).to_owned();
        together.tasks.push(index.put(profile, &family));
        together.threads.push(row.positive(pct, true)?);
        together.progress.push(row.positive(speed, false)?.max(1e-6) / alone);
    }
    rows.extend(open.map(|(_, together)| together));
    rows.retain(|r| r.tasks.len() == 2);
    index.set("unmeasured Volta 32GB", rows, folder)
}
