//! How long a job is expected to run.

use crate::units::is_zero;
use serde::{Deserialize, Serialize};
use std::fmt;

/// How long a job is expected to run alone on its GPUs, seconds, from what earlier runs took. Floats went into it somewhere;
/// what is kept and replayed are these integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunTime {
    /// With 10 % probability it is over by then.
    pub low_s: u64,
    /// Half of such runs are over by then.
    pub median_s: u64,
    /// With 90 % probability it is over by then.
    pub high_s: u64,
    /// Whose runs these are.
    pub basis: RunsOf,
    /// How many of those came to their end.
    pub runs: u32,
    /// Of how many commands those are. 0: journals from before carma kept it do not say.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub commands: u32,
    /// None of them has come to its end: the times are what the counts of so many running jobs say (`step 300/1000`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub counted: bool,
    /// They are of the same command with another number of steps or epochs, and their times were scaled by it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub scaled: bool,
    /// It is known, not estimated: what a simulation that tells true run times says. One run of a command, from which all three
    /// times are read, is an estimate.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exact: bool,
}

/// The least number of commands that say between which times most others lie: runs of one are more like each other.
const COMMANDS: u32 = 5;
/// The same of those that differ in their length alone.
const LENGTHS: u32 = 2;

impl RunTime {
    /// What one run that took so many seconds says.
    #[must_use]
    pub const fn of(seconds: u64, basis: RunsOf) -> Self {
        Self {
            low_s: seconds,
            median_s: seconds,
            high_s: seconds,
            basis,
            runs: 1,
            commands: 1,
            counted: false,
            scaled: false,
            exact: false,
        }
    }

    /// Whether it rests on runs of so few other commands that its bounds say nothing of this one.
    #[must_use]
    pub fn is_guess(&self) -> bool {
        let least = if self.scaled { LENGTHS } else { COMMANDS };
        !matches!(self.basis, RunsOf::Command | RunsOf::Shared) && !self.exact && self.commands < least
    }

    /// Whether it is a guess from what other programs took: any time limit says more of this one.
    #[must_use]
    pub fn is_of_others(&self) -> bool {
        self.is_guess() && matches!(self.basis, RunsOf::User | RunsOf::All)
    }

    /// The same of a job that has run for so many seconds without coming to its end: not less, and where that is longer than half of such runs, as
    /// long again.
    #[must_use]
    pub fn beyond(self, ran_s: u64) -> Self {
        if self.exact || ran_s <= self.low_s {
            return self;
        }
        let median_s = if self.median_s < ran_s { 2 * ran_s } else { self.median_s };
        let high_s = if self.high_s < ran_s { 4 * ran_s } else { self.high_s.max(median_s) };
        Self { low_s: ran_s, median_s, high_s, ..self }
    }

    /// The mean of such runs, from three quantiles: the median and those of 5 and 95 %, where the bounds are read from few runs to hold
    /// for 10 and 90 % (Pearson and Tukey, Biometrika 52, 1965). Most runs are shorter: a few take very long.
    #[must_use]
    pub fn mean_s(&self) -> u64 {
        let parts = [(185, self.low_s), (630, self.median_s), (185, self.high_s)];
        let sum: u128 = parts.into_iter().map(|(weight, seconds)| weight * u128::from(seconds)).sum();
        u64::try_from(sum / 1000).unwrap_or(u64::MAX)
    }
}

/// Whose runs a forecast of run time rests on, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunsOf {
    /// The same command of the same user.
    Command,
    /// The same command of any user: equal arguments and scripts.
    Shared,
    /// The same program of the same user, with other arguments.
    Program,
    /// The same user.
    User,
    /// All users.
    All,
}

impl fmt::Display for RunTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = match (self.counted, self.runs) {
            (false, 1) => "run",
            (false, _) => "runs",
            (true, 1) => "running job's count",
            (true, _) => "running jobs' counts",
        };
        let whose = match self.basis {
            RunsOf::Command => "this command",
            RunsOf::Shared => "this command by any user",
            RunsOf::Program if self.scaled => "this command for another number of steps or epochs",
            RunsOf::Program => "this program with other arguments",
            RunsOf::User => "other programs of this user",
            RunsOf::All => "jobs of all users",
        };
        write!(f, "{} {runs} of {whose}", self.runs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_was_cut_off_says_that_the_job_takes_longer() {
        let run = RunTime { low_s: 60, high_s: 1000, runs: 3, ..RunTime::of(240, RunsOf::Command) };
        let told = |run: RunTime| (run.low_s, run.median_s, run.high_s);
        assert_eq!(told(run.beyond(30)), (60, 240, 1000));
        assert_eq!(told(run.beyond(100)), (100, 240, 1000));
        assert_eq!(told(run.beyond(490)), (490, 980, 1000));
        assert_eq!(told(run.beyond(900)), (900, 1800, 1800));
        assert_eq!(told(run.beyond(2000)), (2000, 4000, 8000));
        assert_eq!(told(RunTime { exact: true, ..run }.beyond(2000)), (60, 240, 1000));
    }

    #[test]
    fn runs_of_few_other_commands_are_a_guess() {
        let of = |basis, commands| RunTime { runs: 20, commands, ..RunTime::of(327, basis) }.is_guess();
        assert!(of(RunsOf::User, 1) && of(RunsOf::Program, 4) && of(RunsOf::All, 0));
        assert!(!of(RunsOf::User, 5) && !of(RunsOf::Command, 1) && !of(RunsOf::Shared, 1));
    }

    #[test]
    fn a_guess_lends_nothing_and_a_time_limit_says_more() {
        use crate::spec::{Forecasts, JobId, NewJob, Profile, Request, USUAL_RUN_S, User};
        let run = RunTime::of(1, RunsOf::All);
        let told = |run_time, limit_s: Option<u64>| {
            let job = NewJob {
                id: JobId(1),
                user: User::new(1, "a"),
                name: "j".into(),
                command_key: 1,
                program_key: None,
                request: Request { time_limit: limit_s.map(crate::units::Millis::secs), ..Request::of(1) },
                forecasts: Forecasts::default(),
                profile: Profile::default(),
                run_time: Some(run_time),
                hold: false,
            };
            (job.most_lent_run_s(), job.run_s(), job.mean_run_s(), job.known_run_s())
        };
        // One `true` has run on the machine.
        assert_eq!(told(run, None), (None, 1, 1, USUAL_RUN_S));
        assert_eq!(told(run, Some(600)), (Some(600), 600, 600, 600));
        for told_by in [RunTime { commands: 5, ..run }, RunTime { basis: RunsOf::Program, ..run }] {
            assert_eq!(told(told_by, None), (Some(1), 1, 1, 1));
            assert_eq!(told(told_by, Some(600)), (Some(1), 1, 1, 1));
        }
    }

    #[test]
    fn a_few_long_runs_make_the_mean_longer_than_most() {
        let of = |low_s, median_s, high_s| {
            RunTime { low_s, high_s, ..RunTime::of(median_s, RunsOf::User) }.mean_s()
        };
        assert_eq!((of(60, 60, 60), of(0, 0, 0)), (60, 0));
        assert_eq!(of(60, 600, 14_400), 3053);
        assert_eq!(of(u64::MAX, u64::MAX, u64::MAX), u64::MAX);
    }
}
