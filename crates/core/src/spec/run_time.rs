//! How long a job is expected to run.

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
    /// None of them has come to its end: the times are what the counts of so many running jobs say (`step 300/1000`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub counted: bool,
    /// It is known, not estimated: what a simulation that tells true run times says. One run of a command, from which all three
    /// times are read, is an estimate.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exact: bool,
}

impl RunTime {
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
    fn a_few_long_runs_make_the_mean_longer_than_most() {
        let of = |low_s, median_s, high_s| {
            RunTime { low_s, median_s, high_s, basis: RunsOf::User, runs: 9, counted: false, exact: false }
                .mean_s()
        };
        assert_eq!((of(60, 60, 60), of(0, 0, 0)), (60, 0));
        assert_eq!(of(60, 600, 14_400), 3053);
        assert_eq!(of(u64::MAX, u64::MAX, u64::MAX), u64::MAX);
    }
}
