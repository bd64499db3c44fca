//! The weights that carma brings along, and the answer that rests on them.

use super::Bundle;
use crate::graph::Graph;
use crate::{Error, Estimate, ModelTask, Platform};
use std::sync::OnceLock;

/// Coverage of `upper` where nothing else is asked for.
const COVERAGE: f64 = 0.95;
/// The file; docs/research/gpumemnet.md says how it was made.
const FILE: &[u8] = include_bytes!("../../weights/h200-dnnperf.net");

/// The weights that carma brings along.
///
/// # Errors
/// They do not fit this carma: a mistake of its makers, which a test finds.
pub fn shipped() -> Result<&'static Bundle, Error> {
    static BUNDLE: OnceLock<Result<Bundle, String>> = OnceLock::new();
    let read = || Bundle::read("h200-dnnperf.net", FILE).map_err(|e| e.to_string());
    BUNDLE.get_or_init(read).as_ref().map_err(|e| Error::bad("weights in carma", e.as_str()))
}

/// How much memory a task will need, from its graph.
///
/// # Errors
/// This build has no weights of an ensemble that was trained on all tasks.
pub fn estimate(graph: &Graph, task: &ModelTask, platform: &Platform) -> Result<Estimate, Error> {
    let perf = shipped()?.whole.as_ref().ok_or_else(|| Error::Missing {
        estimator: "dnnperf",
        what: "weights, which this build has not; `carma lab gpumemnet train --kind dnnperf` makes some"
            .to_owned(),
    })?;
    Ok(perf.estimate(graph, task, platform, COVERAGE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shipped_is_written_as_it_was() {
        assert!(shipped().unwrap().write() == FILE);
    }
}
