//! All estimators by name, over whatever is known of a task.

use crate::{Error, Estimate, Platform, Task};

/// What is known of a task's model. Each part is as read from a file, unparsed.
#[derive(Debug, Clone, Default)]
pub struct Known {
    /// Text of a printed summary.
    pub summary: Option<String>,
    /// `config.json` of Hugging Face.
    pub hf_config: Option<String>,
    /// Header of a safetensors file, or an index of several.
    pub safetensors: Option<Vec<u8>>,
    /// An ONNX model.
    pub onnx: Option<Vec<u8>>,
    /// Log of a traced run.
    pub trace: Option<Vec<u8>>,
    /// What the user asks for, MiB.
    pub declared_mib: Option<u64>,
    /// Peak under FakeTensorMode, MiB.
    pub faketensor_mib: Option<f64>,
}

/// An estimator's name and its answer.
#[derive(Debug)]
pub struct Answer {
    /// Name: `allocator`, `horus`, ...
    pub estimator: &'static str,
    /// The estimate, or why there is none.
    pub result: Result<Estimate, Error>,
}

/// An estimator: a name and a function of what is known.
type Estimator = (&'static str, fn(&Known, &Task, &Platform) -> Result<Estimate, Error>);

/// All of them, in the order of the listing.
const ESTIMATORS: &[Estimator] = &[];

/// Names of all estimators.
pub fn names() -> impl Iterator<Item = &'static str> {
    ESTIMATORS.iter().map(|(name, _)| *name)
}

/// Answers of all estimators, or of the one that is named.
///
/// # Errors
/// A name that no estimator has.
pub fn run(which: &str, known: &Known, task: &Task, platform: &Platform) -> Result<Vec<Answer>, Error> {
    let chosen: Vec<&Estimator> =
        ESTIMATORS.iter().filter(|(name, _)| which == "all" || which == *name).collect();
    if chosen.is_empty() {
        let names: Vec<_> = names().collect();
        return Err(Error::bad(
            format!("estimator `{which}`"),
            format!("there is none of this name; there are {}", names.join(", ")),
        ));
    }
    Ok(chosen
        .into_iter()
        .map(|(estimator, f)| Answer { estimator, result: f(known, task, platform) })
        .collect())
}
