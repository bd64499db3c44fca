//! Lucid's sharing score (ASPLOS 2023, packing analyse model): how much a task costs those that it shares a GPU with.
//!
//! Lucid labels the tasks that it has measured by the mean speed of their pairs, and has a decision tree learn the labels.
//! Here the speeds are predicted from the profiles, so that there is nothing to train.

use crate::group::{GpuType, Group, Member, Mode};
use crate::online::SlowdownModel;
use crate::profile::Profile;

/// Mean speed of pairs, over the speed alone, from which on a task is tiny, and medium.
const CUTS: [f64; 2] = [0.95, 0.85];
/// Tasks that a task is paired with, at most: of more, every so many-th.
pub const MOST_PARTNERS: usize = 32;

/// The score for a mean speed of pairs, over the speed alone: 0 tiny, 1 medium, 2 jumbo.
#[must_use]
pub fn label(mean_speed: f64) -> u8 {
    u8::from(mean_speed < CUTS[0]) + u8::from(mean_speed < CUTS[1])
}

/// The score of a task among those that are known of this GPU, itself included: by the predicted speed of both in the
/// pairs that it is part of. `None`: nothing can be predicted.
#[must_use]
pub fn score(
    model: &SlowdownModel,
    gpu: &GpuType,
    sharing: Mode,
    task: &Profile,
    known: &[&Profile],
) -> Option<u8> {
    let step = known.len().div_ceil(MOST_PARTNERS).max(1);
    let partners = known.iter().copied().step_by(step).chain(known.is_empty().then_some(task));
    let pairs = partners.filter_map(|partner| {
        let members = [Member::of(task), Member::of(partner)];
        Some(model.predict(&Group { gpu, sharing, members: &members }).ok()?.sum / 2.0)
    });
    let speeds: Vec<f64> = pairs.collect();
    (!speeds.is_empty()).then(|| label(speeds.iter().sum::<f64>() / speeds.len() as f64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{Metrics, Stat};

    #[test]
    fn the_more_a_task_slows_others_the_higher_it_scores() {
        let task = |sm: f64| Profile {
            name: sm.to_string(),
            metrics: Metrics {
                gract_pct: Some(Stat::of(sm)),
                smact_pct: Some(Stat::of(sm)),
                ..Metrics::default()
            },
            ..Profile::default()
        };
        let tasks = [5.0, 20.0, 50.0, 70.0, 95.0].map(task);
        let known: Vec<&Profile> = tasks.iter().collect();
        let (model, gpu) = (SlowdownModel::shipped(), GpuType::named("A100-40GB"));
        for sharing in [Mode::Mps, Mode::TimeSlice] {
            let scores: Vec<u8> =
                tasks.iter().map(|task| score(&model, &gpu, sharing, task, &known).unwrap()).collect();
            assert!(scores.is_sorted() && scores[4] == 2 && scores[0] < 2, "{sharing:?}: {scores:?}");
        }
        // Alone in the world, it is paired with itself.
        assert_eq!(score(&model, &gpu, Mode::Mps, &tasks[0], &[]), Some(0));
        assert_eq!(score(&model, &gpu, Mode::Mps, &tasks[4], &[]), Some(2));
        assert_eq!([0.99, 0.9, 0.8].map(label), [0, 1, 2]);
    }
}
