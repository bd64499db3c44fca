//! What jobs took lately, for those of which nothing is known.

use crate::units::MiB;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// The latest commands that ran, each with the most memory that it was seen to take on a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Peaks(VecDeque<(u64, MiB)>);

/// Commands that are remembered.
const MOST: usize = 64;
/// Of fewer commands nothing is concluded.
const LEAST: usize = 10;

impl Peaks {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn add(&mut self, command: u64, peak: MiB) {
        let before = self.0.iter().position(|(known, _)| *known == command);
        let before = before.and_then(|at| self.0.remove(at)).map_or(MiB::ZERO, |(_, peak)| peak);
        self.0.push_back((command, peak.max(before)));
        if self.0.len() > MOST {
            self.0.pop_front();
        }
    }

    /// What none of them exceeded; `None`: too few have run.
    pub(super) fn most(&self) -> Option<MiB> {
        self.0.iter().map(|(_, peak)| *peak).max().filter(|_| self.0.len() >= LEAST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_counts_once_and_the_oldest_are_forgotten() {
        let mut peaks = Peaks::default();
        for command in 0..9 {
            peaks.add(command, MiB(1000));
            peaks.add(command, MiB(900));
        }
        assert_eq!(peaks.most(), None);
        peaks.add(9, MiB(9000));
        assert_eq!(peaks.most(), Some(MiB(9000)));
        (100..200).for_each(|command| peaks.add(command, MiB(7)));
        assert_eq!((peaks.most(), peaks.0.len()), (Some(MiB(7)), MOST));
    }
}
