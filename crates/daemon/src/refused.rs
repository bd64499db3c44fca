//! Why a request was refused: what every refusal says.

use carma_core::input::Rejected;
use carma_core::model::JobId;

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// HTTP status.
    pub status: u16,
    /// Stable word.
    pub code: &'static str,
    /// What, where, why, what to do.
    pub text: String,
}

impl Refused {
    /// A refusal.
    #[must_use]
    pub fn new(status: u16, code: &'static str, text: impl Into<String>) -> Self {
        Self { status, code, text: text.into() }
    }

    /// Neither the state nor the journal has this job; `next`: the number that the next job gets.
    #[must_use]
    pub fn no_such_job(id: JobId, next: JobId) -> Self {
        let text = if (JobId(1)..next).contains(&id) {
            format!("job {id} is over and no longer kept (journal.keep-jobs, journal.history-size)")
        } else {
            format!("there is no job {id}")
        };
        Self::new(404, "not_found", text)
    }
}

impl From<Rejected> for Refused {
    fn from(rejected: Rejected) -> Self {
        let (status, code) = match rejected {
            Rejected::NoSuchJob(_) | Rejected::NoSuchGpu => (404, "not_found"),
            Rejected::NotAllowed { .. } | Rejected::HeldByOperator { .. } | Rejected::AdminOnly => {
                (403, "not_allowed")
            }
            Rejected::BadRequest(_)
            | Rejected::TooManyGpus { .. }
            | Rejected::Slices { .. }
            | Rejected::TooMuchMemory { .. } => (400, "bad_request"),
            Rejected::Duplicate(_) | Rejected::WrongState { .. } | Rejected::StaleAttempt { .. } => {
                (409, "conflict")
            }
        };
        Self::new(status, code, rejected.to_string())
    }
}
