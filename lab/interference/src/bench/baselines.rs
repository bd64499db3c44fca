//! What the predictor is compared with on data sets of profiles: scores of a combination, higher is better,
//! and KACE's linear regression.

use super::set::{Set, Together};
use super::stats::Clustered;
use crate::kace::table::{Collocation, MEM_BUSY, MEMCAP, SM_BUSY, SOLO};
use crate::kace::trainer::{Kace, Options, RegressionKind};
use carma_interference::group::{Group, Objective};
use carma_interference::kace::features::Target;
use carma_interference::kace::trained::Trained;
use carma_interference::online::SlowdownModel;
use carma_interference::predict::policy::{Policy, kace_row, share_progress};
use carma_nn::parallel;

fn with_group<T>(set: &Set, row: &Together, f: impl FnOnce(&Group<'_>) -> T) -> T {
    let members = set.members(row);
    f(&Group { gpu: &set.gpu, sharing: row.sharing, members: &members })
}

/// A policy without learning; a feature that is missing scores last.
pub(crate) fn fixed(policy: &Policy<'_>, set: &Set, row: &Together) -> f64 {
    with_group(set, row, |group| policy.score(group, Objective::WeightedSpeedup).unwrap_or(f64::NEG_INFINITY))
}

/// CARMA's cap: collocate while the sum of SMACT stays within 80 %; all that it allows are alike, and all that it
/// forbids.
pub(crate) fn cap80(set: &Set, row: &Together) -> f64 {
    let smact = |t: &usize| set.tasks[*t].metrics.smact_pct.map_or(100.0, |s| s.mean);
    f64::from(u8::from(row.tasks.iter().map(smact).sum::<f64>() <= 80.0))
}

/// Lucid's sharing score: 0 tiny, 1 medium, 2 jumbo by GPU utilisation; the least sum. The limits, 25 and 58 %,
/// tell the labels of Lucid's own 66 tasks best (53 of 66 right); its decision tree also looks at memory.
pub(crate) fn lucid(set: &Set, row: &Together) -> f64 {
    let score = |t: &usize| {
        let m = &set.tasks[*t].metrics;
        match m.gpu_util_pct.or(m.gract_pct).map_or(100.0, |s| s.mean) {
            ..25.0 => 0.0,
            ..58.0 => 1.0,
            _ => 2.0,
        }
    };
    -row.tasks.iter().map(score).sum::<f64>()
}

/// Absolute relative errors of the share law, by task.
pub(crate) fn share_errors(set: &Set) -> Clustered {
    let mut errors = Clustered::default();
    for row in &set.rows {
        if let Ok(progress) = with_group(set, row, share_progress) {
            for ((task, measured), said) in row.tasks.iter().zip(&row.progress).zip(progress) {
                errors.add(&set.tasks[*task].name, (said / measured - 1.0).abs());
            }
        }
    }
    errors
}

/// Absolute relative errors of the mean progress of the other families, by task.
pub(crate) fn constant_errors(set: &Set) -> Clustered {
    let mut errors = Clustered::default();
    for family in set.distinct_families() {
        let of = |row: &Together, own: bool| -> Vec<(usize, f64)> {
            let all = row.tasks.iter().copied().zip(row.progress.iter().copied());
            all.filter(|(t, _)| (set.families[*t] == family) == own).collect()
        };
        let others: Vec<f64> = set.rows.iter().flat_map(|r| of(r, false)).map(|(_, p)| p).collect();
        let mean = others.iter().sum::<f64>() / others.len().max(1) as f64;
        for (task, measured) in set.rows.iter().flat_map(|r| of(r, true)) {
            errors.add(&set.tasks[task].name, (mean / measured - 1.0).abs());
        }
    }
    errors
}

/// nvidia-smi's features and the rate alone: all that KACE has where there is no Nsight Compute.
fn features() -> Vec<String> {
    [SOLO, SM_BUSY, MEM_BUSY, MEMCAP].map(str::to_owned).to_vec()
}

fn kace_rows(set: &Set, row: &Together) -> Option<Collocation> {
    let mut kace = with_group(set, row, |group| kace_row(&features(), group)).ok()?;
    for (member, progress) in kace.members.iter_mut().zip(&row.progress) {
        // Throughput is the first feature, the rate alone, times progress.
        member.throughput = member.features.first()? * progress;
    }
    Some(kace)
}

/// KACE's linear regression with nvidia-smi's features, trained on all training rows of one sharing and k alike and
/// normalised honestly; choice for targets of held-out families, as [`Set::select`]. `None`: a profile lacks one.
pub(crate) fn kace_select(set: &Set, target: Target, threads: usize) -> Option<Clustered> {
    let rows: Vec<Collocation> = set.rows.iter().map(|r| kace_rows(set, r)).collect::<Option<_>>()?;
    let families = set.distinct_families();
    let parts = parallel(&families, threads, |family| {
        let away = |r: &Together| r.tasks.iter().all(|t| set.families[*t] != **family);
        let train: Vec<&Collocation> =
            set.rows.iter().zip(&rows).filter(|(r, _)| away(r)).map(|(_, row)| row).collect();
        let options = Options { target, ..Options::honest(RegressionKind::Lr) };
        let trained: Trained = Kace::new(&features(), options).train(&train).ok()?;
        let score = |_: &SlowdownModel, row: &Together| {
            kace_rows(set, row).map_or(f64::NEG_INFINITY, |r| trained.predict(&r))
        };
        Some(set.choices(&SlowdownModel::new(), |t| set.families[t] == **family, Together::sum, score))
    });
    let mut chosen = Clustered::default();
    chosen.extend(parts.into_iter().collect::<Option<Vec<_>>>()?.into_iter().flatten());
    Some(chosen)
}
