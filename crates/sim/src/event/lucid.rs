//! Lucid's sharing score where a catalogue does not give it.

use crate::trace::Task;

/// GPU utilisation below which a task is tiny, and below which it is medium. The two cuts that agree
/// best with the 66 labels that Lucid publishes (53 of 66; Lucid's own tree also looks at memory).
const CUTS: [f64; 2] = [0.25, 0.58];

/// 0 tiny, 1 medium, 2 jumbo, from the share of time with a kernel resident; jumbo when not known.
pub(super) fn score(task: &Task) -> u8 {
    let Some(util) = task.activity.gract else {
        return 2;
    };
    u8::from(util >= CUTS[0]) + u8::from(util >= CUTS[1])
}
