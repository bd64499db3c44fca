//! The networks of GPUMemNet's authors, which another program runs: their checkpoints are pickles, and no reader of pickles
//! belongs into a service of root's.

use super::{Ensemble, ModelLayers};
use crate::{Error, Estimate, ModelTask};
use serde::{Deserialize, Serialize};
use std::fmt::Debug;

/// Something that runs the authors' networks.
pub trait AuthorsNetworks: Debug + Send + Sync {
    /// Their answer: the upper edge of a class, MiB, which is what their manager reserves.
    ///
    /// # Errors
    /// The checkpoint of this family and design is not there, or is none.
    fn estimate(&self, ensemble: Ensemble, model: &ModelLayers, task: &ModelTask) -> Result<Estimate, Error>;
}

/// What `carma` asks `carma-lab`, as JSON on its standard input.
#[derive(Debug, Serialize, Deserialize)]
pub struct Question {
    /// Which design.
    pub ensemble: Ensemble,
    /// The model.
    pub model: ModelLayers,
    /// How it is run.
    pub task: ModelTask,
}

/// What `carma-lab` answers, as JSON on its standard output.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The estimate.
    Estimate(Estimate),
    /// Why there is none.
    Refused {
        /// File, layer or field.
        place: String,
        /// What is wrong there.
        what: String,
    },
}

impl Answer {
    /// As a result.
    ///
    /// # Errors
    /// There is no estimate.
    pub fn into_result(self) -> Result<Estimate, Error> {
        match self {
            Self::Estimate(estimate) => Ok(estimate),
            Self::Refused { place, what } => Err(Error::Bad { place, what }),
        }
    }
}

impl From<Result<Estimate, Error>> for Answer {
    fn from(result: Result<Estimate, Error>) -> Self {
        match result {
            Ok(estimate) => Self::Estimate(estimate),
            Err(Error::Bad { place, what }) => Self::Refused { place, what },
            Err(other) => Self::Refused { place: "carma-lab".to_owned(), what: other.to_string() },
        }
    }
}
