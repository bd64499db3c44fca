//! What keeps a measurement from being made.

/// Why nothing was measured: what, where and why, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// Whose turn it is.
    pub kind: FailureKind,
    /// What, where, why.
    pub message: String,
    /// What to do.
    pub hint: Option<String>,
}

/// Whose turn it is after an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// The options, or a file that they name, make no sense: the user's.
    Usage,
    /// The GPU is in use: nobody's, until it is free.
    Busy,
    /// The machine, the GPU or the task failed.
    Failed,
}

impl Error {
    /// The machine, the GPU or the task failed.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { kind: FailureKind::Failed, message: message.into(), hint: None }
    }

    /// The options, or a file that they name, make no sense.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { kind: FailureKind::Usage, ..Self::new(message) }
    }

    /// The GPU is in use.
    pub(crate) fn busy(message: impl Into<String>) -> Self {
        Self { kind: FailureKind::Busy, ..Self::new(message) }
    }

    /// Adds what to do about it.
    pub(crate) fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}
