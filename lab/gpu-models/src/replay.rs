//! A capacity through the simulator: the SM capacity of the A100 under MPS with which published policies,
//! replayed, take as long as published.
//!
//! AEGIS publishes makespans of many policies on three traces that are not public. CARMA's own T1 and T2
//! (60 tasks each on the same machine, mostly the same tasks) stand in for them. Four policies are fitted to;
//! all that one would like to predict is held out.

use super::data::{self, Together};
use super::{Error, Errors, Fitted, FittedRow, Fitting, HeldOut, Part, Places, light, total};
use crate::traces::{self, CLUSTER, H60, T1, T2, Traces};
use carma_hardware::{GpuType, GpuTypes};
use carma_sim::event::Cluster;
use carma_sim::event::outcome::Summary;
use carma_sim::trace::Workload;
use std::path::{Path, PathBuf};

const KEY: &str = "mps.sm";
/// What stands in for AEGIS' traces.
const STAND_INS: [&str; 2] = [T1, T2];
/// Seeds of the start-up times behind every mean.
const SEEDS: u64 = 5;
/// The grid, in hundredths.
const GRID: std::ops::RangeInclusive<u32> = 80..=130;
/// The source of the fitted value.
const SOURCE: &str = "fitted by `carma lab fit a100` on 2026-11-23 through the simulator: least squared error of makespan \
    over exclusive's for four policies of AEGIS (OR-LUG, OR-RR, MAGM, LUG; geometric means over its traces), grid \
    0.80-1.30. Those traces are not public: CARMA's T1 and T2 stand in for them. Two rows of EuroMLSys 2024 \
    contradict it (0.898, with assumed solo activity)";

/// The replayed workloads, and what exclusive needs for them.
pub(super) struct Replay {
    workloads: Vec<(Workload, f64)>,
    h60: Workload,
    threads: usize,
}

/// Where the traces are: the folder named, or the one beside the repository; `None`: not there.
fn folder(places: Places<'_>) -> Option<PathBuf> {
    let folder = places.named.map(Path::to_owned).or_else(|| Some(places.shared()?.join("carma")));
    folder.filter(|folder| folder.is_dir())
}

impl Replay {
    pub(super) fn read(folder: &Path, model: &GpuType) -> Result<Self, Error> {
        let traces = Traces::read(folder)?;
        let h60 = traces.workload(H60)?;
        let mut replay = Self { workloads: Vec::new(), h60, threads: traces::threads() };
        for name in STAND_INS {
            let workload = traces.workload(name)?;
            // Nothing is shared, so no capacity matters.
            let alone = mean(&replay.runs(&workload, model, "exclusive", SEEDS)?, |s| s.makespan_s);
            replay.workloads.push((workload, alone));
        }
        Ok(replay)
    }

    fn runs(
        &self,
        workload: &Workload,
        model: &GpuType,
        preset: &str,
        seeds: u64,
    ) -> Result<Vec<Summary>, Error> {
        let mut types = GpuTypes::built_in();
        types.add(model.clone());
        let cluster = Cluster::parse(CLUSTER, &types).map_err(|e| Error(e.to_string()))?;
        let setups = traces::seeds(&traces::preset(preset)?, seeds);
        traces::runs(workload, &cluster, &setups, self.threads)
    }

    /// Makespan over exclusive's, geometric mean over the stand-ins.
    pub(super) fn makespan(&self, model: &GpuType, preset: &str, seeds: u64) -> Result<f64, Error> {
        let mut logs = 0.0;
        for (workload, alone) in &self.workloads {
            logs += (mean(&self.runs(workload, model, preset, seeds)?, |s| s.makespan_s) / alone).ln();
        }
        Ok((logs / self.workloads.len().max(1) as f64).exp())
    }

    /// The four fitted policies' makespans, less what is published.
    pub(super) fn offs(&self, model: &GpuType, sm: f64, seeds: u64) -> Result<Vec<f64>, Error> {
        let model = with_sm(model, sm);
        data::AEGIS_FITTED
            .iter()
            .map(|(preset, published)| Ok(self.makespan(&model, preset, seeds)? - published))
            .collect()
    }
}

fn with_sm(model: &GpuType, sm: f64) -> GpuType {
    let mut model = model.clone();
    super::set(&mut model, KEY, sm);
    model
}

fn mean(runs: &[Summary], of: fn(&Summary) -> f64) -> f64 {
    runs.iter().map(of).sum::<f64>() / runs.len().max(1) as f64
}

/// Root of the mean square, one left out where `without` says so.
fn rms(offs: &[f64], without: Option<usize>) -> f64 {
    let of: Vec<f64> =
        offs.iter().enumerate().filter(|(at, _)| Some(*at) != without).map(|(_, off)| off * off).collect();
    (of.iter().sum::<f64>() / of.len().max(1) as f64).sqrt()
}

/// The point of the least error.
fn least(profile: &[(f64, Vec<f64>)], without: Option<usize>) -> Option<f64> {
    let best = profile.iter().min_by(|a, b| rms(&a.1, without).total_cmp(&rms(&b.1, without)));
    best.map(|(sm, _)| *sm)
}

pub(super) fn fit(fitting: &mut Fitting, places: Places<'_>, euromlsys: &[Together]) -> Result<(), Error> {
    let Some(folder) = folder(places) else {
        fitting.data.push(
            "the capacity through the simulator is skipped and mps.sm stays: CARMA's traces are not at \
             ../shared/data/carma (name their folder with --data)"
                .to_owned(),
        );
        return Ok(());
    };
    // The search takes minutes without optimisation; a test of its own looks beside the built-in value.
    if cfg!(test) {
        return Ok(());
    }
    let base = fitting.model.clone();
    let replay = Replay::read(&folder, &base)?;
    fitting.data.push(format!("{}: T1, T2 and H60 of CARMA (arrivals and tasks)", folder.display()));
    let mut profile: Vec<(f64, Vec<f64>)> = Vec::new();
    for hundredths in GRID {
        let sm = f64::from(hundredths) / 100.0;
        profile.push((sm, replay.offs(&base, sm, SEEDS)?));
    }
    let value = least(&profile, None).unwrap_or(base.capacities.mps_sm);
    let without: Vec<f64> =
        (0..data::AEGIS_FITTED.len()).filter_map(|at| least(&profile, Some(at))).collect();
    let fitted = Fitted {
        key: KEY.to_owned(),
        value,
        before: base.capacities.mps_sm,
        low: without.iter().copied().fold(value, f64::min),
        high: without.iter().copied().fold(value, f64::max),
        identified: true,
    };
    let model = with_sm(&base, value);
    let mut rows = Vec::new();
    for (held_out, published) in [(false, &data::AEGIS_FITTED[..]), (true, &data::AEGIS_HELD_OUT[..])] {
        for (preset, measured) in published {
            let says = replay.makespan(&model, preset, SEEDS)?;
            rows.push(FittedRow { label: (*preset).to_owned(), measured: *measured, model: says, held_out });
        }
    }
    let errors = |rows: &[FittedRow], held_out| {
        let of: Vec<f64> =
            rows.iter().filter(|row| row.held_out == held_out).map(FittedRow::residual).collect();
        Errors::of(&of)
    };
    let in_sample = errors(&rows, false);
    let mut left_out = Vec::new();
    for (at, sm) in without.iter().enumerate() {
        let off = profile.iter().find(|(known, _)| known == sm).and_then(|(_, offs)| offs.get(at));
        if let (Some(off), Some((_, published))) = (off, data::AEGIS_FITTED.get(at)) {
            left_out.push(off / published);
        }
    }
    let mut held_out = vec![
        HeldOut { how: "leave one policy out, the others fitted".to_owned(), errors: Errors::of(&left_out) },
        HeldOut {
            how: "seven other policies of AEGIS, held out on purpose".to_owned(),
            errors: errors(&rows, true),
        },
    ];
    let other = |label: String, measured, model| FittedRow { label, measured, model, held_out: true };
    let of: fn(&Summary) -> [f64; 3] = |s| [s.makespan_s, s.energy_j, s.smact];
    let [with, without] =
        ["est-magm", "exclusive"].map(|preset| replay.runs(&replay.h60, &model, preset, SEEDS));
    let (with, without) = (with?, without?);
    let mut headline = Vec::new();
    for (at, (what, published)) in data::H60_HEADLINE.into_iter().enumerate() {
        let sum = |runs: &[Summary]| runs.iter().filter_map(|s| of(s).get(at).copied()).sum::<f64>();
        let says = sum(&with) / sum(&without);
        headline.push(other(format!("H60, est-magm over exclusive: {what}"), published, says));
    }
    held_out.push(HeldOut {
        how: "the headline of CARMA v1 on H60 (makespan, energy, SMACT), held out on purpose".to_owned(),
        errors: errors(&headline, true),
    });
    let small = light(&model);
    let euromlsys: Vec<FittedRow> = euromlsys
        .iter()
        .map(|set| other(format!("total progress, {}", set.label), set.total(), total(&small, set)))
        .collect();
    held_out.push(HeldOut {
        how: "EuroMLSys 2024 (total progress), held out on purpose".to_owned(),
        errors: errors(&euromlsys, true),
    });
    rows.extend(headline);
    rows.extend(euromlsys);
    let thinned: Vec<String> = profile
        .iter()
        .filter(|(sm, _)| *sm == value || ((sm * 100.0).round() as u32).is_multiple_of(5))
        .map(|(sm, offs)| format!("{:.4} at {sm:.2}", rms(offs, None)))
        .collect();
    let notes = vec![
        format!("Root of the mean squared difference by mps.sm: {}", thinned.join(", ")),
        "The interval is the range of the minima with one of the four policies left out. AEGIS' traces are not public: \
         CARMA's T1 and T2 stand in for them, so part of every difference is the traces'. The two rows of EuroMLSys 2024 \
         contradict the value"
            .to_owned(),
    ];
    let part = Part {
        title: "MPS: capacity through the simulator, four policies of AEGIS".to_owned(),
        unit: "over exclusive's; makespan, geometric mean over T1 and T2, where nothing else is said"
            .to_owned(),
        parameters: vec![fitted],
        taken: true,
        in_sample,
        held_out,
        rows,
        notes,
    };
    fitting.take(part, SOURCE);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::here;

    /// The built-in value is no worse than those around it, on one seed and few points.
    #[test]
    fn the_capacity_of_the_a100_is_as_fitted() {
        let Some(folder) = folder(here()) else {
            println!("skipped: the CARMA traces are not at ../shared/data/carma");
            return;
        };
        let model = GpuType::find("A100-40GB").unwrap();
        let replay = Replay::read(&folder, &model).unwrap();
        let sm = model.capacities.mps_sm;
        let at = |sm: f64| rms(&replay.offs(&model, sm, 1).unwrap(), None);
        let here = at(sm);
        for other in [sm - 0.1, sm + 0.12] {
            assert!(here < at(other), "{here} at {sm}, {} at {other}", at(other));
        }
    }

    #[test]
    fn the_least_error_is_found_with_one_row_left_out_or_none() {
        let profile = [(0.9, vec![0.1, -0.5]), (1.0, vec![0.2, 0.1]), (1.1, vec![0.05, 0.6])];
        assert_eq!(least(&profile, None), Some(1.0));
        assert_eq!(least(&profile, Some(1)), Some(1.1));
        assert_eq!(least(&[], None), None);
        assert!((rms(&[0.3, -0.4], None) - 0.125_f64.sqrt()).abs() < 1e-12);
    }

    #[test]
    fn without_the_traces_it_is_said_and_the_value_stays() {
        let mut fitting = Fitting {
            model: GpuType::find("A100-40GB").unwrap(),
            changes: Vec::new(),
            parts: Vec::new(),
            data: Vec::new(),
        };
        fit(&mut fitting, Places { named: Some("/nowhere".as_ref()), ..here() }, &[]).unwrap();
        assert!(fitting.changes.is_empty() && fitting.data[0].contains("mps.sm stays"));
    }
}
