//! How several processes share one GPU: what must run beside them and which environment they get.

use carma_core::reading::GpuInfo;
use carma_core::units::MiB;
use std::sync::Arc;

/// What a job about to start asks of a sharing mode.
#[derive(Debug, Clone)]
pub struct SharingRequest {
    /// User that the job runs as.
    pub uid: u32,
    /// That user's primary group.
    pub gid: u32,
    /// Devices it was given, in the order of its `CUDA_VISIBLE_DEVICES`.
    pub gpus: Vec<Arc<str>>,
    /// Device memory that each process of the job may take on each GPU; `None`: no cap.
    pub cap: Option<MiB>,
    /// Share of the SMs' threads, percent; `None`: all.
    pub thread_percent: Option<u8>,
}

/// What the job gets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Grant {
    /// Environment to set for the job.
    pub env: Vec<(String, String)>,
}

/// Why a sharing mode cannot be had.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {why}")]
pub struct SharingError {
    /// What was tried.
    pub what: String,
    /// Why it failed, and what to do.
    pub why: String,
}

/// MPS, real or virtual. Time-slicing and exclusive use need nothing beside the job.
pub trait Sharing: Send + Sync {
    /// What keeps every job from sharing this GPU by MPS, as far as can be told before one starts; `None`: nothing.
    fn obstacle(&self, gpu: &GpuInfo) -> Option<String>;

    /// Makes sure that MPS runs for this user, and says what environment a client needs.
    ///
    /// # Errors
    /// When MPS cannot be started or does not answer: the caller falls back to time-slicing.
    fn prepare(&self, request: &SharingRequest) -> Result<Grant, SharingError>;

    /// Which of these processes are clients.
    ///
    /// # Errors
    /// When the control daemon does not answer.
    fn clients(&self, uid: u32, pids: &[u32]) -> Result<Vec<u32>, SharingError>;

    /// Ends the GPU work of a client through the control daemon, before it is signalled. `pids` are
    /// all processes of the job. Returns how many were clients.
    ///
    /// # Errors
    /// When the control daemon does not answer.
    fn terminate_clients(&self, uid: u32, pids: &[u32]) -> Result<usize, SharingError>;

    /// Whether a process that is of no job is the sharing machinery itself (an MPS server) rather than a task. A job's process
    /// can pass for one: ask first whose it is.
    fn is_own_process(&self, pid: u32) -> bool;

    /// Stops the daemons that have no client, but for those of users whose jobs go on: such a job may not have come to its first call
    /// of CUDA yet, and would run without MPS and without its hard limit. Called at shutdown.
    fn shutdown(&self, users_at_work: &[u32]);
}
