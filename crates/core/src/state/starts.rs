//! How long commands took to start up lately, and what that is of the run of a job that is about to.
//!
//! During start-up (imports, loading, creation of the CUDA context) a job hardly uses its GPU: there is no interference with
//! its neighbours. Of a job of minutes that is a lot, of one of hours nothing.

use super::State;
use super::course::expected_run;
use super::latest::{Latest, OfCommand};
use crate::ledger::Tenant;
use crate::model::Job;
use crate::units::{Fraction, Millis};
use serde::{Deserialize, Serialize};

/// The latest commands that ran, each with how long it took to start up.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(from = "Latest<Start>", into = "Latest<Start>")]
pub(super) struct Starts {
    of: Latest<Start>,
    /// What is expected of a command that has not run; `None`: too few have.
    usual: Option<Millis>,
    /// The longest of them.
    longest: Millis,
}

/// How one command started up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Row", into = "Row")]
pub(super) struct Start {
    pub(super) command: u64,
    /// From its placement to its first step, as it was seen last; where no steps are seen, to its first memory on a GPU, which counts
    /// once it is over.
    pub(super) took: Millis,
    /// Whose it is; `None`: a journal of carma before 1 December 2026 did not say.
    pub(super) user: Option<u32>,
}

impl OfCommand for Start {
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
    Of(u64, Millis, u32),
    OfUnknown(u64, Millis),
}

impl From<Row> for Start {
    fn from(row: Row) -> Self {
        match row {
            Row::Of(command, took, user) => Self { command, took, user: Some(user) },
            Row::OfUnknown(command, took) => Self { command, took, user: None },
        }
    }
}

impl From<Start> for Row {
    fn from(Start { command, took, user }: Start) -> Self {
        user.map_or(Self::OfUnknown(command, took), |user| Self::Of(command, took, user))
    }
}

/// Of fewer commands nothing is concluded for others.
const LEAST: usize = 3;

/// Shares of a run are taken in so many parts, rounded down: jobs of one command whose run times are forecast a little
/// differently are to be answered alike, and what is less counts as nothing.
const PARTS: u64 = 16;
/// No more than so many of them: the rest is work that others may slow down.
const MOST_PARTS: u64 = PARTS / 2;

/// How a job starts up, as far as that is known and counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Startup {
    /// The part of its run alone that it is.
    pub share: Fraction,
    /// How long it takes.
    pub takes: Millis,
}

impl Startup {
    /// A job that goes on for no longer than this is taken to be over when this one works: three quarters of its start-up, since too
    /// many at work cost each of them more than too few cost the GPU.
    #[must_use]
    pub const fn others_over_by(self) -> Millis {
        Millis(self.takes.0 / 4 * 3)
    }
}

impl From<Latest<Start>> for Starts {
    fn from(of: Latest<Start>) -> Self {
        let mut took: Vec<Millis> = of.iter().map(|start| start.took).collect();
        took.sort_unstable();
        // A quarter of the commands is faster: taken to be longer than it is, a start-up would bring too many together.
        let usual = took.get(took.len() / 4).copied().filter(|_| took.len() >= LEAST);
        Self { usual, longest: took.last().copied().unwrap_or_default(), of }
    }
}

impl From<Starts> for Latest<Start> {
    fn from(starts: Starts) -> Self {
        starts.of
    }
}

impl Starts {
    pub(super) fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    pub(super) fn add(&mut self, start: Start) {
        let mut of = std::mem::take(&mut self.of);
        of.add(start);
        *self = of.into();
    }

    /// How long a command is expected to start up.
    fn expected(&self, command: u64) -> Option<Millis> {
        self.known(command).or(self.usual)
    }

    /// How long a command started up when it ran.
    pub(super) fn known(&self, command: u64) -> Option<Millis> {
        self.of.get(command).map(|known| known.took)
    }

    /// How a command starts up that runs for so long in all.
    fn of_run(&self, command: u64, run: Millis) -> Startup {
        // Most jobs are long.
        if run.0 >= self.longest.0.saturating_mul(PARTS) {
            return Startup::default();
        }
        let takes = self.expected(command).unwrap_or_default();
        let parts = takes.0.saturating_mul(PARTS).checked_div(run.0).unwrap_or(0);
        if parts == 0 {
            return Startup::default();
        }
        let share = parts.min(MOST_PARTS) * u64::from(Fraction::ONE.0) / PARTS;
        Startup { share: Fraction(u32::try_from(share).unwrap_or(0)), takes: takes.min(Millis(run.0 / 2)) }
    }
}

impl State {
    /// How a job starts up: for half of its run at most.
    #[must_use]
    pub fn startup(&self, job: &Job) -> Startup {
        self.starts.of_run(job.spec.command_key, expected_run(job))
    }

    /// When the start-up of a job on a GPU ended or is expected to end: at its first step; until that is seen, once it has memory on the
    /// GPU, and not before its command is expected to.
    pub(super) fn starts_until(&self, job: &Job, tenant: &Tenant) -> Millis {
        tenant.stepped.unwrap_or_else(|| {
            let expected = self.starts.expected(job.spec.command_key).unwrap_or_default();
            tenant.active_since.unwrap_or(self.now()).max(tenant.placed + expected)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(took: &[(u64, u64)]) -> Starts {
        let mut starts = Starts::default();
        took.iter().for_each(|(command, took)| starts.add(start(*command, *took, 1)));
        starts
    }

    fn start(command: u64, took: u64, user: u32) -> Start {
        Start { command, took: Millis::secs(took), user: Some(user) }
    }

    #[test]
    fn a_command_takes_as_long_as_it_did_last() {
        let mut starts = of(&[(1, 10), (2, 20), (1, 30)]);
        assert_eq!(starts.expected(1), Some(Millis::secs(30)));
        assert_eq!(starts.expected(3), None);
        (100..200).for_each(|command| starts.add(start(command, 7, 1)));
        assert_eq!(starts.longest, Millis::secs(7));
    }

    #[test]
    fn a_sweep_of_one_user_does_not_speak_for_all() {
        let mut starts = Starts::default();
        (0..20).for_each(|command| starts.add(start(command, 10, 1)));
        (100..200).for_each(|command| starts.add(start(command, 3600, 2)));
        assert_eq!((starts.known(0), starts.known(155)), (Some(Millis::secs(10)), None));
        assert_eq!(
            (starts.known(156), starts.expected(9999)),
            (Some(Millis::secs(3600)), Some(Millis::secs(10)))
        );
    }

    #[test]
    fn rows_of_earlier_journals_are_read() {
        let written = "[[1,10000],[2,20000,1000]]";
        let starts: Starts = serde_json::from_str(written).expect("as written");
        let users: Vec<Option<u32>> = starts.of.iter().map(|start| start.user).collect();
        assert_eq!(users, [None, Some(1000)]);
        assert_eq!(serde_json::to_string(&starts).expect("numbers"), written);
    }

    #[test]
    fn others_are_expected_to_take_what_a_quarter_of_the_commands_takes_less_than() {
        let starts = of(&[(1, 10), (2, 20), (3, 12), (4, 300)]);
        assert_eq!(starts.expected(9), Some(Millis::secs(12)));
    }

    #[test]
    fn the_share_is_in_sixteenths_and_half_at_most() {
        let starts = of(&[(1, 10)]);
        let of = |run| starts.of_run(1, Millis::secs(run));
        let share = |run| of(run).share.0;
        assert_eq!([share(0), share(5), share(20), share(40), share(45)], [0, 5000, 5000, 2500, 1875]);
        assert_eq!([share(159), share(160), share(3600)], [625, 0, 0]);
        assert_eq!([of(12).takes, of(45).takes, of(160).takes].map(|t| t.0), [6_000, 10_000, 0]);
        assert_eq!(of(45).others_over_by().0, 7_500);
        assert_eq!(starts.of_run(2, Millis::secs(20)), Startup::default());
    }

    #[test]
    fn what_is_derived_is_derived_again() {
        let starts = of(&[(1, 10), (2, 20), (3, 30)]);
        let text = serde_json::to_string(&starts).expect("numbers");
        assert_eq!(serde_json::from_str::<Starts>(&text).expect("as written"), starts);
    }
}
