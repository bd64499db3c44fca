//! Lucid's sharing score where a catalogue does not give it.

use crate::gpu::Law;
use carma_interference::lucid::label;
use carma_interference::share::{Mode, Scratch, Tenant};

/// Tasks that a task is paired with, at most: of more, every so many-th.
const MOST_PARTNERS: usize = 256;

/// The score of each task by Lucid's own definition, with this GPU's law in place of its
/// measurements: 0 tiny, 1 medium, 2 jumbo by the mean speed of all pairs that the task is part of.
pub(super) fn scores(tasks: &[Tenant], law: &Law, mode: Mode) -> Vec<u8> {
    let (mut scratch, mut progress) = (Scratch::default(), Vec::new());
    let step = tasks.len().div_ceil(MOST_PARTNERS).max(1);
    let score = |task: &Tenant| {
        let (mut sum, mut pairs) = (0.0, 0);
        for partner in tasks.iter().step_by(step) {
            law.run(mode, &[*task, *partner], &mut scratch, &mut progress);
            sum += progress.iter().sum::<f64>() / 2.0;
            pairs += 1;
        }
        label(sum / f64::from(pairs.max(1)))
    };
    tasks.iter().map(score).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use carma_hardware::GpuType;
    use carma_interference::share::Demand;

    #[test]
    fn the_more_a_task_slows_others_the_higher_it_scores() {
        let law = Law::from(&GpuType::find("A100-40GB").unwrap());
        let task = |sm: f64| Tenant::new(Demand { gract: sm, sm, ..Demand::default() });
        let tasks: Vec<Tenant> = [0.1, 0.2, 0.6, 0.7, 0.95].map(task).into();
        let scores = scores(&tasks, &law, Mode::Mps);
        assert!(scores.is_sorted(), "{scores:?}");
        assert_eq!((scores[0], scores[4]), (0, 2));
    }
}
