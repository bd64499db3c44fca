//! How far above its `use` an estimate is bounded for admission.

use crate::estimate::{FLOOR, times};
use crate::{MiB, Mode, ModelTask, Parallel, Tier};

/// Doubts up to which a model counts as understood but for some of it, and for much of it.
const FEW: usize = 5;
const MANY: usize = 16;

/// A relative margin on top of what the allocator is expected to hold, and why it is as wide.
#[derive(Debug, Clone, PartialEq)]
pub struct Margin {
    /// Share of reserved memory and workspaces.
    pub share: f64,
    /// A sentence.
    pub reason: String,
}

impl Margin {
    /// The margin of a tier, for a model with or without convolutions, widened by doubts and by what makes
    /// a peak elastic.
    #[must_use]
    pub fn of(tier: Tier, convolutional: bool, task: &ModelTask, doubts: usize) -> Self {
        let (mut share, mut reason) = base(tier, convolutional);
        let mut widen = |to: f64, why: &str| {
            if to > share {
                share = to;
                reason = format!("{:.0} %: {why}", to * 100.0);
            }
        };
        if doubts > 0 && tier == Tier::Trace {
            widen(0.15, "the program asked for numbers that a trace does not have");
        } else if doubts > 0 && tier >= Tier::Graph {
            let (to, why) = match doubts {
                0..=FEW => (0.40, "not all layers were understood"),
                _ if doubts <= MANY => (0.50, "several layers were not understood"),
                _ => (0.60, "most of the model was not understood"),
            };
            widen(to, why);
            // Training keeps what the text hides, and its sum is printed; a pass without gradients peaks at the widest.
            if task.mode == Mode::Infer && tier == Tier::Summary {
                widen(0.80, "what a layer that was not understood takes at its widest is not in the text");
            }
        }
        if task.parallel != Parallel::None && task.gpus > 1 {
            widen(0.40, "several GPUs, and no earlier run to go by");
        }
        if task.variable_length {
            widen(0.40, "batches of different lengths fragment memory, and the longest may come late");
        }
        if task.cudnn_benchmark {
            widen(0.40, "cudnn.benchmark tries algorithms with workspaces of any size");
        }
        Self { share, reason }
    }

    /// The bound for a task that is expected to hold so much beside the context.
    #[must_use]
    pub fn upper(&self, context: MiB, held: MiB) -> MiB {
        context + held + times(held, self.share) + FLOOR
    }
}

/// Margins by what an estimate rests on.
/// These bound 98 % of the real models that were measured on an H200, in the half of the families that was
/// set aside for tuning (docs/research/memory-estimation.md).
fn base(tier: Tier, convolutional: bool) -> (f64, String) {
    let (share, why) = match (tier, convolutional) {
        (Tier::Exact, _) => (0.05, "the same command ran before"),
        (Tier::Scaled, _) => (0.10, "the same program ran before, with other numbers"),
        (Tier::Share, _) => (0.05, "a share of the GPU that the program takes"),
        (Tier::Trace, true) => (0.10, "a trace; convolution workspaces vary"),
        (Tier::Trace, false) => (0.10, "a trace; attention and matrix products pick kernels of their own"),
        (Tier::Graph, _) => (0.15, "a graph of operators"),
        (Tier::Config, _) => (0.11, "the configuration of a known family"),
        (Tier::Summary, true) => (0.30, "a summary hides what happens between layers, and workspaces vary"),
        (Tier::Summary, false) => (0.20, "a summary of a model without convolutions"),
        (Tier::Formula | Tier::Declared, _) => (0.30, "a formula over a few numbers"),
    };
    (share, format!("{:.0} %: {why}", share * 100.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_widen_with_what_is_not_known() {
        let share = |tier, doubts| Margin::of(tier, false, &ModelTask::default(), doubts).share;
        assert_eq!([0, 1, 6, 17].map(|doubts| share(Tier::Summary, doubts)), [0.20, 0.40, 0.50, 0.60]);
        assert_eq!([0, 1, 17].map(|doubts| share(Tier::Trace, doubts)), [0.10, 0.15, 0.15]);
        assert_eq!([0, 17].map(|doubts| share(Tier::Exact, doubts)), [0.05, 0.05]);
    }
}
