//! Virtual MPS: no daemon runs; an environment variable makes a virtual task a client.

use super::ENV_MPS;
use super::host::Shared;
use carma_core::reading::GpuInfo;
use carma_gpu::{Grant, Sharing, SharingError, SharingRequest};
use std::sync::Arc;

/// Limit on an MPS client's memory; the real one's name and form (`0=3072M,1=3072M`).
pub(crate) const ENV_MEMORY_LIMIT: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";
/// Limit on an MPS client's threads, percent; the real one's name.
pub(crate) const ENV_THREADS: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";

/// MPS on virtual GPUs. Clients of one user share a GPU's SMs and fall together when one faults.
#[derive(Debug)]
pub struct VirtualMps {
    shared: Arc<Shared>,
}

impl VirtualMps {
    pub(super) const fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }
}

impl Sharing for VirtualMps {
    fn obstacle(&self, _gpu: &GpuInfo) -> Option<String> {
        None
    }

    fn prepare(&self, request: &SharingRequest) -> Result<Grant, SharingError> {
        let refuse = |why: String| Err(SharingError { what: "virtual MPS".to_owned(), why });
        if !self.shared.mps_available() {
            return refuse("switched off by fault injection (control message `mps`)".to_owned());
        }
        if let Some(unknown) = request.gpus.iter().find(|gpu| !self.shared.knows(gpu)) {
            return refuse(format!("there is no virtual GPU `{unknown}`"));
        }
        let mut env = vec![(ENV_MPS.to_owned(), "1".to_owned())];
        if let Some(cap) = request.cap {
            // The process's own ordinals, no more: with one that it does not see, the real driver
            // drops all limits without a word.
            let limits: Vec<String> =
                (0..request.gpus.len()).map(|ordinal| format!("{ordinal}={}M", cap.0)).collect();
            env.push((ENV_MEMORY_LIMIT.to_owned(), limits.join(",")));
        }
        if let Some(percent) = request.thread_percent {
            env.push((ENV_THREADS.to_owned(), percent.to_string()));
        }
        Ok(Grant { env })
    }

    fn clients(&self, uid: u32, pids: &[u32]) -> Result<Vec<u32>, SharingError> {
        Ok(self.shared.clients(uid, pids))
    }

    fn terminate_clients(&self, uid: u32, pids: &[u32]) -> Result<usize, SharingError> {
        Ok(self.shared.terminate(uid, pids))
    }

    /// Never: virtual MPS has no process.
    fn is_own_process(&self, _pid: u32) -> bool {
        false
    }

    fn shutdown(&self, _users_at_work: &[u32]) {}
}
