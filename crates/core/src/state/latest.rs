//! The latest commands that ran, for jobs of which nothing is known.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// Commands that are remembered.
const MOST: usize = 64;

/// What is remembered of a command.
pub(super) trait OfCommand {
    /// The command.
    fn command(&self) -> u64;
    /// Whose it is; `None`: an earlier journal did not say.
    fn user(&self) -> Option<u32>;
}

/// The latest commands that ran, the oldest first, of no user so many that another's are forgotten for them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Latest<T>(VecDeque<T>);

impl<T> Default for Latest<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T: OfCommand> Latest<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter()
    }

    pub(super) fn get(&self, command: u64) -> Option<&T> {
        self.iter().find(|known| known.command() == command)
    }

    /// Takes in how a command ran just now, in place of how it did before.
    pub(super) fn add(&mut self, ran: T) {
        self.0.retain(|known| known.command() != ran.command());
        let by = ran.user();
        self.0.push_back(ran);
        if self.len() > MOST {
            self.forget_one(by);
        }
    }

    /// Forgets the oldest of the user who has the most, so that a sweep of one does not speak for all; of users who have as many, `by`.
    fn forget_one(&mut self, by: Option<u32>) {
        let mut counts: BTreeMap<Option<u32>, usize> = BTreeMap::new();
        self.iter().for_each(|known| *counts.entry(known.user()).or_default() += 1);
        let most = counts.into_iter().max_by_key(|(user, count)| (*count, *user == by)).map(|(user, _)| user);
        let oldest = self.0.iter().position(|known| Some(known.user()) == most);
        oldest.and_then(|at| self.0.remove(at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy)]
    struct Ran(u64, u32);

    impl OfCommand for Ran {
        fn command(&self) -> u64 {
            self.0
        }

        fn user(&self) -> Option<u32> {
            Some(self.1)
        }
    }

    #[test]
    fn a_command_counts_once_and_the_oldest_are_forgotten() {
        let mut latest = Latest::default();
        for command in [1, 2, 1] {
            latest.add(Ran(command, 1));
        }
        assert_eq!(latest.iter().map(|ran| ran.0).collect::<Vec<_>>(), [2, 1]);
        (100..200).for_each(|command| latest.add(Ran(command, 1)));
        assert_eq!((latest.len(), latest.iter().next().map(|ran| ran.0)), (MOST, Some(136)));
    }

    #[test]
    fn a_sweep_of_one_user_does_not_push_out_what_others_ran() {
        let mut latest = Latest::default();
        (0..20).for_each(|command| latest.add(Ran(command, 1)));
        (100..200).for_each(|command| latest.add(Ran(command, 2)));
        let known = |latest: &Latest<Ran>, command| latest.get(command).is_some();
        assert_eq!(latest.len(), MOST);
        assert_eq!([0, 19, 155, 156].map(|command| known(&latest, command)), [true, true, false, true]);
        // Of two with as many the oldest goes of the one who brings another: 22 of one, 21 of the others.
        let mut latest = Latest::default();
        (0..64).for_each(|command| latest.add(Ran(command, (command % 3) as u32)));
        latest.add(Ran(100, 1));
        assert_eq!([0, 1, 2].map(|command| known(&latest, command)), [true, false, true]);
    }
}
