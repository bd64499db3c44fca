//! What jobs took lately, for those of which nothing is known.

use super::latest::{Latest, OfCommand};
use crate::units::MiB;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The latest commands that ran, each with the most memory that it was seen to take on a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Peaks(Latest<Peak>);

/// What one command took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Row", into = "Row")]
pub(super) struct Peak {
    pub(super) command: u64,
    /// [`crate::model::NewJob::program_key`].
    pub(super) program: Option<u64>,
    pub(super) memory: MiB,
    /// Whose it is; `None`: a journal of carma before 1 December 2026 did not say.
    pub(super) user: Option<u32>,
}

impl OfCommand for Peak {
    fn command(&self) -> u64 {
        self.command
    }

    fn user(&self) -> Option<u32> {
        self.user
    }
}

/// As it is stored.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Row {
    By(u64, MiB, Option<u64>, u32),
    /// In journals of carma before 1 December 2026.
    Of(u64, MiB, u64),
    /// Of a program that is not known, and in journals of carma before 28 November 2026.
    OfUnknown(u64, MiB),
}

impl From<Row> for Peak {
    fn from(row: Row) -> Self {
        let (command, memory, program, user) = match row {
            Row::By(command, memory, program, user) => (command, memory, program, Some(user)),
            Row::Of(command, memory, program) => (command, memory, Some(program), None),
            Row::OfUnknown(command, memory) => (command, memory, None, None),
        };
        Self { command, program, memory, user }
    }
}

impl From<Peak> for Row {
    fn from(Peak { command, program, memory, user }: Peak) -> Self {
        match (user, program) {
            (Some(user), program) => Self::By(command, memory, program, user),
            (None, Some(program)) => Self::Of(command, memory, program),
            (None, None) => Self::OfUnknown(command, memory),
        }
    }
}

/// Of fewer commands nothing is concluded.
const LEAST: usize = 10;
/// What is taken often is what one in so many took; of fewer commands nothing is concluded.
const OFTEN: usize = 4;

impl Peaks {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn add(&mut self, peak: Peak) {
        let before = *self.0.get(peak.command).unwrap_or(&peak);
        let (memory, program) = (peak.memory.max(before.memory), peak.program.or(before.program));
        self.0.add(Peak { memory, program, ..peak });
    }

    /// What none of them exceeded; `None`: too few have run.
    pub(super) fn most(&self) -> Option<MiB> {
        self.0.iter().map(|peak| peak.memory).max().filter(|_| self.0.len() >= LEAST)
    }

    /// What no more than one in ten of them exceeded; `None`: too few have run.
    pub(super) fn of_most(&self) -> Option<MiB> {
        let mut memory: Vec<MiB> = self.0.iter().map(|peak| peak.memory).collect();
        memory.sort_unstable();
        memory.get(memory.len() * 9 / 10).copied().filter(|_| memory.len() >= LEAST)
    }

    /// What one in four of them took or more, by command, together with those at work; `None`: these are fewer than four.
    pub(super) fn often(&self, at_work: impl Iterator<Item = (u64, MiB)>) -> Option<MiB> {
        let mut by_command = BTreeMap::new();
        for (command, memory) in self.iter().map(|peak| (peak.command, peak.memory)).chain(at_work) {
            let most = by_command.entry(command).or_insert(memory);
            *most = memory.max(*most);
        }
        let mut memory: Vec<MiB> = by_command.into_values().collect();
        memory.sort_unstable();
        // Of fewer than four this is behind the last.
        memory.get(memory.len() - memory.len() / OFTEN).copied()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Peak> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_counts_once_with_the_most_that_it_took() {
        let mut peaks = Peaks::default();
        let peak = |command, mib| Peak { command, program: None, memory: MiB(mib), user: Some(1) };
        for command in 0..9 {
            peaks.add(peak(command, 1000));
            peaks.add(peak(command, 900));
        }
        assert_eq!(peaks.most(), None);
        peaks.add(peak(9, 9000));
        assert_eq!(peaks.most(), Some(MiB(9000)));
        (100..200).for_each(|command| peaks.add(peak(command, 7)));
        assert_eq!(peaks.most(), Some(MiB(7)));
        // Those of another user are not pushed out by as many.
        peaks.add(Peak { user: Some(2), ..peak(10, 9000) });
        (200..300).for_each(|command| peaks.add(peak(command, 7)));
        assert_eq!(peaks.most(), Some(MiB(9000)));
    }

    #[test]
    fn what_most_took_is_what_one_in_ten_at_most_exceeded() {
        let mut peaks = Peaks::default();
        let add = |peaks: &mut Peaks, command| {
            peaks.add(Peak { command, program: None, memory: MiB(100 * command), user: None });
        };
        (1..=9).for_each(|command| add(&mut peaks, command));
        assert_eq!(peaks.of_most(), None);
        add(&mut peaks, 10);
        assert_eq!(peaks.of_most(), Some(MiB(1000)));
        (11..=20).for_each(|command| add(&mut peaks, command));
        assert_eq!(peaks.of_most(), Some(MiB(1900)));
    }

    #[test]
    fn what_is_taken_often_is_what_one_in_four_commands_took() {
        let mut peaks = Peaks::default();
        let often = |peaks: &Peaks, at_work: &[(u64, u64)]| {
            peaks
                .often(at_work.iter().map(|(command, memory)| (*command, MiB(*memory))))
                .map(|memory| memory.0)
        };
        for (command, memory) in [(1, 1000), (2, 2000), (3, 90_000)] {
            peaks.add(Peak { command, program: None, memory: MiB(memory), user: None });
        }
        // Of three nothing is concluded, and two jobs of one command are one.
        assert_eq!(often(&peaks, &[]), None);
        assert_eq!(often(&peaks, &[(3, 80_000)]), None);
        assert_eq!(often(&peaks, &[(4, 3000)]), Some(90_000));
        // One of five to seven is the largest of them, two of eight no longer.
        assert_eq!(often(&peaks, &[(4, 1), (5, 1), (6, 1), (7, 1)]), Some(90_000));
        assert_eq!(often(&peaks, &[(4, 1), (5, 1), (6, 1), (7, 1), (8, 1)]), Some(2000));
        assert_eq!(often(&peaks, &[(4, 1), (2, 70_000), (5, 1), (6, 1), (7, 1), (8, 1)]), Some(70_000));
    }

    #[test]
    fn rows_of_earlier_journals_are_read() {
        let written = "[[1,1000],[2,900,7],[3,800,null,1000],[4,700,7,1000]]";
        let peaks: Peaks = serde_json::from_str(written).unwrap();
        let told: Vec<_> = peaks.iter().map(|peak| (peak.program, peak.user)).collect();
        assert_eq!(told, [(None, None), (Some(7), None), (None, Some(1000)), (Some(7), Some(1000))]);
        assert_eq!(serde_json::to_string(&peaks).unwrap(), written);
    }
}
