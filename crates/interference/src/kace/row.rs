//! One collocation as KACE sees it: its members, and the features of each alone.

/// Throughput alone, items/s.
pub const SOLO: &str = "exclusive_throughput";
/// Time with any kernel resident, percent, by `nvidia-smi`.
pub const SM_BUSY: &str = "sm%";
/// Time in which DRAM was read or written, percent, by `nvidia-smi`.
pub const MEM_BUSY: &str = "mem%";
/// GPU memory, GB.
pub const MEMCAP: &str = "memcap";
/// Compute (SM) throughput by Nsight Compute, percent of the peak.
pub const NCU_SM: &str = "_Compute (SM) Throughput";

/// One collocation.
#[derive(Debug, Clone, PartialEq)]
pub struct Collocation {
    /// `k` of them, in the file's order.
    pub members: Vec<Member>,
}

/// One task of a collocation.
#[derive(Debug, Clone, PartialEq)]
pub struct Member {
    /// Its name, e.g. `bert-base-cased_batch2-train`.
    pub workload: String,
    /// Items/s in this collocation.
    pub throughput: f64,
    /// What is known of it alone.
    pub features: Vec<f64>,
}

impl Collocation {
    /// Items/s of all members: what KACE maximises.
    #[must_use]
    pub fn sum(&self) -> f64 {
        self.members.iter().map(|m| m.throughput).sum()
    }

    /// Whether a workload is a member.
    #[must_use]
    pub fn has(&self, workload: &str) -> bool {
        self.members.iter().any(|m| m.workload == workload)
    }

    /// The members' names, sorted: the same for every order of members.
    #[must_use]
    pub fn key(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.members.iter().map(|m| m.workload.as_str()).collect();
        names.sort_unstable();
        names
    }
}
