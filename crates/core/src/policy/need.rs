//! How much memory a job is believed to need, and who says so.
//!
//! The forecasts themselves come with the job. How much goes on top to be safe is in [`super::options`].

use crate::spec::{Basis, Estimator, Forecasts, JobId};
use crate::units::MiB;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Which of a job's forecasts a policy believes. In journals it is `best`, or the estimator's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ForecastSource {
    /// Runs of the same program; else declared by the user or computed by carma, whichever is more;
    /// else measured, else GPUMemNet's.
    Best,
    /// One estimator's, else declared. Of [`Estimator::Measured`]: the papers' oracle.
    #[serde(untagged)]
    By(Estimator),
}

impl ForecastSource {
    /// Whose word is taken, for people.
    #[must_use]
    pub fn describe(self) -> String {
        match self {
            Self::Best => "best forecast".to_owned(),
            Self::By(Estimator::Measured) => "measured peak".to_owned(),
            Self::By(estimator) => format!("estimate by {}", estimator.describe()),
        }
    }

    /// The forecast for one GPU and where it comes from.
    #[must_use]
    pub fn pick(self, f: &Forecasts) -> Option<(MiB, NeedSource)> {
        let declared = || f.declared.map(|m| (m, NeedSource::Declared));
        let said_by = |estimator| f.estimates.of(estimator).map(|m| (m, NeedSource::By(estimator)));
        if let Self::By(estimator) = self {
            return said_by(estimator).or_else(declared);
        }
        let computed =
            f.computed.map(|c| (c.upper, NeedSource::Computed { basis: c.basis, coverage: c.coverage }));
        match f.computed {
            Some(c) if c.basis.is_measured() => computed,
            // Nothing of it was measured yet: the user's word is not overruled downwards.
            _ => {
                let measured = said_by(Estimator::Measured);
                declared()
                    .or(measured)
                    .filter(|(m, _)| measured.is_some() || f.computed.is_none_or(|c| c.upper <= *m))
                    .or(computed)
                    .or_else(|| said_by(Estimator::Gpumemnet))
            }
        }
    }
}

/// Where the memory that a job is said to need comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NeedSource {
    /// The user said so.
    Declared,
    /// Computed by carma: a bound.
    Computed {
        /// From what.
        basis: Basis,
        /// Probability with which it is meant to hold, percent.
        coverage: u8,
    },
    /// Raised by an out-of-memory.
    OutOfMemory,
    /// A suspended job is to have what it held, or what the growth guard gives it beyond that.
    Held,
    /// The policy asks the same of every job.
    PolicyFloor,
    /// Nothing is known of its memory, and the policy gives it so much of what is free.
    Part,
    /// The same, while a job of its command is at work that says how much is enough.
    AtWork,
    /// The same, where another of its command ran out of memory and is given so much since.
    Failed,
    /// The same, where jobs of its program with other arguments are at work or have run.
    Program,
    /// As if no more were known of it than of a job before it, which waits for room.
    Behind {
        /// That job.
        job: JobId,
        /// What is enough by what is known of it.
        enough: MiB,
    },
    /// An estimator; in journals its name alone.
    #[serde(untagged)]
    By(Estimator),
}

impl NeedSource {
    /// Whether it is worth a word where the GPU was idle: what the user or earlier runs said is no news there.
    pub(crate) const fn is_news(&self) -> bool {
        matches!(self, Self::Computed { .. } | Self::Part | Self::AtWork | Self::Failed | Self::Program)
    }
}

impl fmt::Display for NeedSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Computed { basis, coverage } => {
                return write!(f, "{basis}, upper bound at {coverage} %");
            }
            Self::By(Estimator::Measured) => "measured",
            Self::By(estimator) => return write!(f, "estimated by {}", estimator.describe()),
            Self::Declared => "declared",
            Self::Held => "by what it held",
            Self::OutOfMemory => "raised after out-of-memory",
            Self::PolicyFloor => "the policy's floor",
            Self::Part => "its memory is unknown",
            Self::AtWork => "by what a running job of its command takes",
            Self::Failed => "since a job of its command ran out of memory",
            Self::Program => "by what jobs of its program take",
            Self::Behind { job, enough } => {
                return write!(
                    f,
                    "held back for job {job}, of whose memory nothing is known; {enough} would be enough for this one"
                );
            }
        })
    }
}

/// What a job is given on a GPU of this capacity of whose memory nothing at all is known: 32 GiB, since no task of CARMA's
/// evaluation takes more, or a quarter of a large GPU; on a smaller one four fifths of it will do.
pub(crate) fn unknown_need(capacity: MiB) -> MiB {
    MiB::gib(32).max(capacity.percent(25)).min(capacity.percent(80))
}

/// Which GPUs have enough memory for a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryScreen {
    /// Any: out-of-memory is left to recovery.
    None,
    /// Those with at least this much available, whatever the job.
    Floor(MiB),
    /// Those with the forecast plus a guard available. A job without a forecast gets an idle GPU,
    /// and no other job joins it before it has settled.
    Forecast {
        /// Which forecast.
        source: ForecastSource,
        /// Added to it.
        guard: MiB,
    },
}
