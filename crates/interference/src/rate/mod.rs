//! How fast a task goes, from what it says of itself.
//!
//! - [`printed`] reads progress out of what a task prints: bars of tqdm, Keras, Lightning and the Hugging Face
//!   Trainer, `step 120/938`, `Epoch 3/10`, `812 samples/s`.
//! - [`beat`] reads one heartbeat: a datagram or the text of a heartbeat file.
//! - [`latency`] reads how long requests take, and keeps their percentiles.
//! - [`tally`] turns either into a rate over a window, with its quality.
//!
//! No clock, file or socket in here: times are seconds on the caller's clock, which must not run backwards.
//!
//! A rate is a difference of two counts over the time that passed between them *here*. Averages that a task prints
//! are its own business (of the whole run, of the last second, smoothed): they count only where it prints no counter.

pub mod beat;
pub mod latency;
mod line;
pub mod printed;
pub mod tally;

use serde::{Deserialize, Serialize};

/// What a task said of its progress.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Said {
    /// What is counted: `it`, `steps`, `epochs`, `samples`.
    pub unit: String,
    /// How many are done.
    pub count: Option<f64>,
    /// How many there are.
    pub total: Option<f64>,
    /// How many a second, by the task's own reckoning.
    pub per_s: Option<f64>,
    /// The words before the number, in lower case without figures: they tell one bar from another.
    pub label: String,
}

impl Said {
    /// Counters of one key are one counter. Bars without a name are told apart by their length: those of training
    /// and of evaluation are seldom equally long.
    pub(crate) fn key(&self) -> String {
        match self.total {
            Some(total) if self.label.is_empty() => format!("{} of {total}", self.unit),
            _ => self.key_of_any_length(),
        }
    }

    /// Whether it says which pass over the data it is, of how many: without that a bar of one is the whole.
    #[must_use]
    pub fn is_pass_of(&self) -> bool {
        self.unit == tally::EPOCHS && self.total.is_some()
    }

    /// The same where the length is not told.
    pub(crate) fn key_of_any_length(&self) -> String {
        format!("{} {}", self.unit, self.label)
    }

    /// What the words before the number say that it is.
    pub(crate) fn kind(&self) -> Kind {
        const PREPARING: [&str; 22] = [
            "loading",
            "downloading",
            "fetching",
            "sanity",
            "capturing",
            "tokenizing",
            "tokenizer",
            "building",
            "compiling",
            "resolving",
            "extracting",
            "scanning",
            "caching",
            "filtering",
            "grouping",
            "packing",
            "casting",
            "flattening",
            "preprocessing",
            "preparing",
            "verifying",
            "skipping",
        ];
        // What a task may also do for its living, unless it is done to a data set.
        const OF_DATA: [&str; 6] = ["adding", "applying", "converting", "generating", "saving", "truncating"];
        const DATA: [&str; 3] = ["dataset", "datasets", "split"];
        // A mean average precision is told of evaluations.
        const EVALUATING: [&str; 10] = [
            "val",
            "valid",
            "validation",
            "validating",
            "eval",
            "evaluation",
            "evaluating",
            "test",
            "testing",
            "map",
        ];
        let has = |of: &[&str]| self.label.split(' ').any(|word| of.contains(&word));
        // Hugging Face's datasets name the bars of `map` and `filter` after them.
        let maps = matches!(self.label.split(' ').next(), Some("map" | "filter"));
        if maps || has(&PREPARING) || (has(&OF_DATA) && has(&DATA)) {
            Kind::Preparing
        } else if has(&EVALUATING) {
            Kind::Evaluating
        } else {
            Kind::Work
        }
    }
}

/// What a count is of; what tells most of a task comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// The task's work, as far as is known.
    Work,
    /// It evaluates, which is work of a kind, and all that some tasks do.
    Evaluating,
    /// It loads, downloads, compiles or checks: its work is still to come.
    Preparing,
}
