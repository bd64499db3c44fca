//! The run of a script: the model comes to the GPU, then step after step.

use super::plan::{Plan, Types, scaled};
use super::store::{Holdings, Storage, StorageKind, Store};
use super::{Script, Sink};
use crate::alloc::Event;
use crate::graph::{Graph, Op, ParamId, TensorId};
use crate::{Error, Mode, ModelTask, Platform};

/// More than any GPU holds: a run that needs more is refused.
const MOST_BYTES: u64 = 1 << 50;

/// State of a run. Vectors are indexed by tensor, parameter or node.
pub(super) struct Player<'a, 's> {
    pub(super) graph: &'a Graph,
    pub(super) task: &'a ModelTask,
    pub(super) plan: Plan,
    pub(super) store: Store<'a, 's>,
    pub(super) params: Vec<Storage>,
    pub(super) param_grads: Vec<Option<Storage>>,
    /// Under autocast: 16-bit copies of weights, until autocast ends.
    pub(super) casts: Vec<Option<Storage>>,
    pub(super) state: Vec<Storage>,
    pub(super) elements: Vec<u64>,
    pub(super) width: Vec<u64>,
    /// Tensors that the forward pass or Python refers to.
    pub(super) value: Vec<Option<Storage>>,
    pub(super) readers: Vec<u32>,
    pub(super) grads: Vec<Option<Storage>>,
    /// What autograd keeps of each node.
    pub(super) saved: Vec<Vec<Storage>>,
    /// With checkpoints: what a block read from outside, to run again.
    pub(super) checkpoints: Vec<Vec<(TensorId, Storage)>>,
    /// Whether autograd records what runs.
    pub(super) recording: bool,
    pub(super) backward: bool,
    workspaces: [bool; 2],
    /// Bytes of cuBLASLt's own workspace; 0 where it shares cuBLAS'.
    pub(super) lt_workspace: u64,
    frees_inputs_first: bool,
    /// Variables of the script that keep the last step's tensors until they are assigned again.
    inputs: Vec<Storage>,
    outputs: Vec<Storage>,
    losses: Vec<Storage>,
    /// With several GPUs.
    pub(super) parallel: super::parallel::Shards,
}

impl<'a, 's> Player<'a, 's> {
    pub(super) fn new(
        graph: &'a Graph,
        task: &'a ModelTask,
        platform: &Platform,
        script: &Script,
        sink: &'a mut Sink<'s>,
    ) -> Result<Self, Error> {
        let plan = Plan::new(graph, task)?;
        let (tensors, params, nodes) = (graph.tensors.len(), graph.params.len(), graph.nodes.len());
        Ok(Self {
            parallel: super::parallel::Shards::new(graph, task),
            graph,
            task,
            plan,
            store: Store::new(sink),
            params: Vec::with_capacity(params),
            param_grads: vec![None; params],
            casts: vec![None; params],
            state: Vec::new(),
            elements: vec![0; tensors],
            width: vec![4; tensors],
            value: vec![None; tensors],
            readers: vec![0; tensors],
            grads: vec![None; tensors],
            saved: vec![Vec::new(); nodes],
            checkpoints: vec![Vec::new(); nodes],
            recording: false,
            backward: false,
            workspaces: [false; 2],
            lt_workspace: platform.lt_workspace_bytes(),
            frees_inputs_first: script.frees_inputs_first,
            inputs: Vec::new(),
            outputs: Vec::new(),
            losses: Vec::new(),
        })
    }

    /// The whole script.
    pub(super) fn play(&mut self, script: &Script) -> Result<(), Error> {
        self.place_model()?;
        if let Some(batch) = script.dummy_batch {
            self.store.mark("dummy forward")?;
            self.dummy(batch)?;
        }
        self.optimizer_made()?;
        for batch in script.batches(self.task) {
            self.step(batch)?;
        }
        Ok(())
    }

    /// Everything goes: what remains are parameters, state, and what stays for good.
    pub(super) fn finish(&mut self) -> Result<(), Error> {
        self.store.mark("end")?;
        for variables in [&mut self.inputs, &mut self.outputs, &mut self.losses] {
            self.store.release_all(variables.drain(..))?;
        }
        self.zero_grad()
    }

    /// `model.to("cuda")`: parameters and buffers one by one.
    fn place_model(&mut self) -> Result<(), Error> {
        self.store.mark("model")?;
        for at in 0..self.graph.params.len() {
            let bytes = self.plan.param_bytes(self.graph, ParamId(at as u32));
            let bytes = self.parallel.shard(bytes);
            let storage = self.new_storage(bytes, StorageKind::Parameters)?;
            self.params.push(storage);
        }
        self.buckets_made()
    }

    fn step(&mut self, batch: u64) -> Result<(), Error> {
        self.store.mark("inputs")?;
        let train = self.task.mode == Mode::Train;
        // One GPU of nn.DataParallel computes its share of the batch; the first holds all of the batch.
        let share = self.parallel.share(batch);
        self.sizes(share);
        self.arrive(batch)?;
        if train {
            self.zero_grad()?;
        }
        self.store.mark("forward")?;
        self.recording = train;
        self.forward(batch)?;
        if train {
            self.store.mark("backward")?;
            self.backward = true;
            self.run_backward()?;
            self.backward = false;
            self.store.mark("optimizer step")?;
            self.optimizer_step()?;
        }
        Ok(())
    }

    /// Sizes of all tensors for a batch, and which nodes read them.
    fn sizes(&mut self, batch: u64) {
        for (elements, tensor) in self.elements.iter_mut().zip(&self.graph.tensors) {
            *elements = scaled(tensor, self.task.batch_size, batch);
        }
        self.readers.copy_from_slice(&self.plan.readers);
    }

    /// Batch and labels arrive, one by one; each takes the place of the last step's, if that is still
    /// there.
    fn arrive(&mut self, batch: u64) -> Result<(), Error> {
        let mut old = std::mem::take(&mut self.inputs).into_iter();
        if self.frees_inputs_first {
            self.store.release_all(old.by_ref())?;
        }
        for node in self.graph.nodes.iter().filter(|node| node.op == Op::Input) {
            for out in &node.outputs {
                let tensor = self.graph.tensor(*out);
                let width = Types::fixed(tensor.number).unwrap_or(self.plan.types.weight);
                let elements = scaled(tensor, self.task.batch_size, batch);
                let storage = self.new_storage(elements.saturating_mul(width), StorageKind::Inputs)?;
                self.width[out.0 as usize] = width;
                self.inputs.push(storage);
                self.value[out.0 as usize] = Some(self.store.hold(storage));
                if let Some(old) = old.next() {
                    self.store.release(old)?;
                }
                self.drop_unread(*out)?;
            }
        }
        self.store.release_all(old)
    }

    fn forward(&mut self, batch: u64) -> Result<(), Error> {
        let split = self.parallel.data_parallel();
        let checkpointed = self.recording && self.task.gradient_checkpointing;
        let mut at = 0;
        while at < self.graph.nodes.len() {
            if checkpointed && let Some(end) = self.block_end(at) {
                self.checkpoint(at..end)?;
                self.after(at..end, batch, split)?;
                at = end;
            } else {
                self.run_node(at)?;
                self.after(at..at + 1, batch, split)?;
                at += 1;
            }
        }
        self.end_of_autocast()?;
        self.scatter_done()?;
        let old = std::mem::take(&mut self.losses);
        for loss in &self.plan.losses {
            self.losses.extend(self.value[loss.0 as usize].take());
        }
        self.store.release_all(old)
    }

    /// When the model has returned, its outputs take the place of the last step's.
    fn after(&mut self, nodes: std::ops::Range<usize>, batch: u64, split: bool) -> Result<(), Error> {
        if !nodes.contains(&self.plan.last_output) {
            return Ok(());
        }
        if split {
            self.gather_outputs(batch)?;
        }
        let old = std::mem::take(&mut self.outputs);
        for output in &self.plan.outputs {
            if let Some(storage) = self.value[output.0 as usize] {
                self.outputs.push(self.store.hold(storage));
            }
        }
        self.store.release_all(old)?;
        for at in 0..self.plan.outputs.len() {
            let output = self.plan.outputs[at];
            // Losses have their own variable.
            self.read(output)?;
        }
        Ok(())
    }

    /// One forward of another size, as `torchsummary` makes: autograd records it and lets it go.
    fn dummy(&mut self, batch: u64) -> Result<(), Error> {
        self.sizes(batch);
        self.recording = self.task.mode == Mode::Train;
        for (at, node) in self.graph.nodes.iter().enumerate() {
            if self.plan.loss[at] {
                continue;
            }
            if node.op != Op::Input {
                self.run_node(at)?;
                continue;
            }
            for out in &node.outputs {
                let number = self.graph.tensor(*out).number;
                let width = Types::fixed(number).unwrap_or(self.plan.types.weight);
                self.width[out.0 as usize] = width;
                let bytes = self.elements[out.0 as usize].saturating_mul(width);
                self.value[out.0 as usize] = Some(self.new_storage(bytes, StorageKind::Inputs)?);
            }
        }
        self.end_of_autocast()?;
        for at in 0..self.value.len() {
            if let Some(storage) = self.value[at].take() {
                self.store.release(storage)?;
            }
        }
        for at in 0..self.saved.len() {
            self.forget(at)?;
        }
        self.scatter_done()
    }

    /// Runs a node: its rule, then inputs that no node reads any more go.
    pub(super) fn run_node(&mut self, at: usize) -> Result<(), Error> {
        let graph = self.graph;
        let node = &graph.nodes[at];
        self.gather(at)?;
        self.rule(at).map_err(|error| named(error, &node.name))?;
        for input in &node.inputs {
            self.read(*input)?;
        }
        for output in &node.outputs {
            self.drop_unread(*output)?;
        }
        Ok(())
    }

    /// A reader of the tensor is done.
    pub(super) fn read(&mut self, tensor: TensorId) -> Result<(), Error> {
        let readers = &mut self.readers[tensor.0 as usize];
        *readers = readers.saturating_sub(1);
        self.drop_unread(tensor)
    }

    fn drop_unread(&mut self, tensor: TensorId) -> Result<(), Error> {
        if self.readers[tensor.0 as usize] == 0
            && let Some(storage) = self.value[tensor.0 as usize].take()
        {
            self.store.release(storage)?;
        }
        Ok(())
    }

    pub(super) fn end_of_autocast(&mut self) -> Result<(), Error> {
        for at in 0..self.casts.len() {
            if let Some(storage) = self.casts[at].take() {
                self.store.release(storage)?;
            }
        }
        Ok(())
    }

    /// `zero_grad(set_to_none=True)`.
    fn zero_grad(&mut self) -> Result<(), Error> {
        for at in 0..self.param_grads.len() {
            if let Some(storage) = self.param_grads[at].take() {
                self.store.release(storage)?;
            }
        }
        Ok(())
    }

    /// What autograd kept of a node goes.
    pub(super) fn forget(&mut self, at: usize) -> Result<(), Error> {
        while let Some(storage) = self.saved[at].pop() {
            self.store.release(storage)?;
        }
        Ok(())
    }

    pub(super) fn new_storage(&mut self, bytes: u64, kind: StorageKind) -> Result<Storage, Error> {
        if bytes > MOST_BYTES || self.store.total() > MOST_BYTES {
            return Err(Error::Absurd {
                layer: kind.as_str().to_owned(),
                what: format!("{bytes} bytes on {} bytes", self.store.total()),
            });
        }
        self.store.new_storage(bytes, kind)
    }

    /// A matrix product runs: the first on each thread gets its workspace.
    pub(super) fn gemm(&mut self) -> Result<(), Error> {
        let thread = usize::from(self.backward);
        if !std::mem::replace(&mut self.workspaces[thread], true) {
            self.store.event(&Event::CublasWorkspace { thread: thread as u8 })?;
        }
        Ok(())
    }

    /// Where the block of node `at` ends, if it belongs to one.
    pub(super) fn block_end(&self, at: usize) -> Option<usize> {
        let block = self.graph.nodes[at].block?;
        let rest = &self.graph.nodes[at..];
        Some(at + rest.iter().position(|node| node.block != Some(block)).unwrap_or(rest.len()))
    }

    pub(super) fn param_bytes(&self, param: ParamId) -> u64 {
        self.plan.param_bytes(self.graph, param)
    }

    /// What held how much at the highest point, and its phase.
    pub(super) const fn highest(&self) -> (Holdings, &'static str) {
        self.store.most()
    }
}

/// An absurd size gets the name of its layer.
pub(super) fn named(error: Error, layer: &str) -> Error {
    match error {
        Error::Absurd { what, .. } => Error::Absurd { layer: layer.to_owned(), what },
        other => other,
    }
}
