//! Several GPUs, as seen from the first: gathered outputs and reduced gradients (`DataParallel`),
//! buckets (`DistributedDataParallel`), shards (ZeRO, FSDP).

use super::player::Player;
use super::store::{Storage, StorageKind};
use crate::graph::{Graph, ParamId};
use crate::{Error, MIB, ModelTask, Parallel};

/// First bucket of `DistributedDataParallel`, bytes (`kDefaultFirstBucketBytes`).
const FIRST_BUCKET: u64 = MIB;
/// Further buckets (`bucket_cap_mb`).
const BUCKET: u64 = 25 * MIB;

/// What the strategy needs to know during a run.
#[derive(Debug)]
pub(super) struct Shards {
    strategy: Parallel,
    gpus: u64,
    /// Under stage 3: whole parameters of the groups in use.
    gathered: Vec<Option<Storage>>,
    /// Groups whose parameters are gathered, the older first; two at a time, as one is prefetched.
    groups: Vec<Group>,
    /// Whole gradients that are still to be reduced.
    pending: Vec<ParamId>,
    stays: Vec<Storage>,
}

#[derive(Debug)]
struct Group {
    id: (bool, u32),
    params: Vec<ParamId>,
}

impl Shards {
    pub(super) fn new(graph: &Graph, task: &ModelTask) -> Self {
        let gpus = u64::from(task.gpus.max(1));
        Self {
            strategy: if gpus > 1 { task.parallel } else { Parallel::None },
            gpus,
            gathered: vec![None; graph.params.len()],
            groups: Vec::new(),
            pending: Vec::new(),
            stays: Vec::new(),
        }
    }

    /// What of a parameter lies here between uses.
    pub(super) fn shard(&self, bytes: u64) -> u64 {
        if self.strategy == Parallel::Zero3 { self.part(bytes) } else { bytes }
    }

    /// One GPU's part.
    pub(super) const fn part(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.gpus)
    }

    /// Samples that this GPU computes.
    pub(super) const fn share(&self, batch: u64) -> u64 {
        if self.data_parallel() { batch.div_ceil(self.gpus) } else { batch }
    }

    pub(super) const fn data_parallel(&self) -> bool {
        matches!(self.strategy, Parallel::DataParallel)
    }

    const fn splits(&self) -> bool {
        matches!(self.strategy, Parallel::Zero2 | Parallel::Zero3)
    }
}

impl Player<'_, '_> {
    /// The parameter as an operator sees it.
    pub(super) fn resident(&self, param: ParamId) -> Storage {
        self.parallel.gathered[param.0 as usize].unwrap_or(self.params[param.0 as usize])
    }

    pub(super) fn splits_gradients(&self) -> bool {
        self.parallel.splits()
    }

    /// `DistributedDataParallel`'s constructor: flat buckets over the gradients, in reverse order.
    pub(super) fn buckets_made(&mut self) -> Result<(), Error> {
        if self.parallel.strategy != Parallel::Ddp {
            return Ok(());
        }
        let (mut filled, mut capacity) = (0, FIRST_BUCKET);
        for at in (0..self.graph.params.len()).rev() {
            let param = ParamId(at as u32);
            if self.trainable(param) {
                filled += self.param_bytes(param);
            }
            if filled > 0 && (filled >= capacity || at == 0) {
                let bucket = self.new_storage(filled, StorageKind::Communication)?;
                self.parallel.stays.push(bucket);
                (filled, capacity) = (0, BUCKET);
            }
        }
        Ok(())
    }

    /// Before a node runs: under stage 3 its group's parameters are gathered, and the group before the
    /// last is let go; gradients of the group before are reduced.
    pub(super) fn gather(&mut self, at: usize) -> Result<(), Error> {
        if !self.parallel.splits() {
            return Ok(());
        }
        let graph = self.graph;
        let node = &graph.nodes[at];
        let id = node.block.map_or((false, at as u32), |block| (true, block));
        if node.params.is_empty() && node.block.is_none()
            || self.parallel.groups.iter().any(|group| group.id == id)
        {
            return Ok(());
        }
        self.reduce_pending()?;
        let mut params: Vec<ParamId> = if node.block.is_some() {
            graph.nodes.iter().filter(|n| n.block == node.block).flat_map(|n| &n.params).copied().collect()
        } else {
            node.params.clone()
        };
        params.sort_unstable();
        params.dedup();
        params.retain(|p| self.parallel.gathered[p.0 as usize].is_none());
        if self.parallel.strategy == Parallel::Zero3 {
            for param in &params {
                let bytes = self.param_bytes(*param);
                self.parallel.gathered[param.0 as usize] =
                    Some(self.new_storage(bytes, StorageKind::Communication)?);
            }
        }
        if self.parallel.groups.len() > 1 {
            let old = self.parallel.groups.remove(0);
            self.scatter(&old)?;
        }
        self.parallel.groups.push(Group { id, params });
        Ok(())
    }

    fn scatter(&mut self, group: &Group) -> Result<(), Error> {
        for param in &group.params {
            if let Some(storage) = self.parallel.gathered[param.0 as usize].take() {
                self.store.release(storage)?;
            }
        }
        Ok(())
    }

    /// The pass is over: nothing stays gathered.
    pub(super) fn scatter_done(&mut self) -> Result<(), Error> {
        while let Some(group) = self.parallel.groups.pop() {
            self.scatter(&group)?;
        }
        Ok(())
    }

    /// The gradient of a parameter is whole.
    pub(super) fn gradient_ready(&mut self, param: ParamId) -> Result<(), Error> {
        if self.parallel.splits() && !self.parallel.pending.contains(&param) {
            self.parallel.pending.push(param);
        }
        Ok(())
    }

    /// Reduce-scatter: a flat copy of what is pending, of which one part stays.
    fn reduce_pending(&mut self) -> Result<(), Error> {
        let pending = std::mem::take(&mut self.parallel.pending);
        if pending.is_empty() {
            return Ok(());
        }
        let all = pending.iter().map(|p| self.param_bytes(*p)).sum();
        let flat = self.new_storage(all, StorageKind::Communication)?;
        for param in pending {
            let part = self.parallel.part(self.param_bytes(param));
            let part = self.new_storage(part, StorageKind::Gradients)?;
            if let Some(whole) = self.param_grads[param.0 as usize].replace(part) {
                self.store.release(whole)?;
            }
        }
        self.store.release(flat)
    }

    /// After the backward pass. `DataParallel`: all replicas' gradients are added up into new tensors;
    /// this replica's own stay until that is done.
    pub(super) fn gradients_done(&mut self) -> Result<(), Error> {
        self.reduce_pending()?;
        self.scatter_done()?;
        if !self.parallel.data_parallel() {
            return Ok(());
        }
        let mut own = Vec::new();
        for at in 0..self.param_grads.len() {
            if let Some(grad) = self.param_grads[at] {
                own.push(grad);
                let bytes = self.param_bytes(ParamId(at as u32));
                self.param_grads[at] = Some(self.new_storage(bytes, StorageKind::Gradients)?);
            }
        }
        self.store.release_all(own)
    }

    /// `DataParallel`: the outputs of all replicas are put together here.
    pub(super) fn gather_outputs(&mut self, batch: u64) -> Result<(), Error> {
        // Where the model computes the loss itself, its other outputs come here only to be returned.
        let inside = self.plan.loss.get(self.plan.last_output) == Some(&true);
        for at in 0..self.plan.outputs.len() {
            let output = self.plan.outputs[at];
            let index = output.0 as usize;
            if self.plan.losses.contains(&output) || self.value[index].is_none() {
                continue;
            }
            let all = super::plan::scaled(self.graph.tensor(output), self.task.batch_size, batch);
            let whole = self.bytes_new(all.saturating_mul(self.width[index]))?;
            if let Some(part) = self.value[index].replace(whole) {
                self.store.release(part)?;
            }
            if !inside {
                self.elements[index] = all;
            }
        }
        Ok(())
    }
}
