//! What a task said of its progress, on its way from the supervisor that heard it to the daemon that counts it.

use carma_interference::rate::Said;
use carma_interference::rate::beat::Beat;
use carma_interference::rate::latency::Told;
use carma_interference::rate::printed::Report;
use carma_interference::rate::tally::Tally;
use serde::{Deserialize, Serialize};

/// Something that a task said. Times are seconds on the clock of the process that heard it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// Heartbeats without a number.
    Steps {
        /// Time of it, seconds.
        at_s: f64,
        /// Which process.
        source: String,
        /// How many.
        steps: u64,
    },
    /// A heartbeat with a count.
    Count {
        /// Time of it, seconds.
        at_s: f64,
        /// Which process, or `file`.
        source: String,
        /// What it says.
        said: Said,
    },
    /// What a server said of its latency.
    Latency {
        /// Time of it, seconds.
        at_s: f64,
        /// What it says.
        told: Told,
    },
    /// Something that it printed.
    Printed {
        /// Time of it, seconds.
        at_s: f64,
        /// What it says.
        said: Said,
    },
}

impl Event {
    /// Puts its time onto another clock.
    #[must_use]
    pub fn at(mut self, clock: impl FnOnce(f64) -> f64) -> Self {
        let (Self::Steps { at_s, .. }
        | Self::Count { at_s, .. }
        | Self::Latency { at_s, .. }
        | Self::Printed { at_s, .. }) = &mut self;
        *at_s = clock(*at_s);
        self
    }

    /// Whether it says which pass over the data it is, of how many.
    #[must_use]
    pub fn is_pass_of(&self) -> bool {
        match self {
            Self::Count { said, .. } | Self::Printed { said, .. } => said.is_pass_of(),
            Self::Steps { .. } | Self::Latency { .. } => false,
        }
    }

    /// Counts it.
    pub fn count(self, tally: &mut Tally) {
        match self {
            Self::Steps { at_s, source, steps } => tally.steps(at_s, &source, steps),
            Self::Count { at_s, source, said } => tally.beat(at_s, &source, &Beat::Count(said)),
            Self::Latency { at_s, told } => tally.latency(at_s, told),
            Self::Printed { at_s, said } => tally.printed(&Report { at_s, said }),
        }
    }
}
