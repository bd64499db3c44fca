//! What PyTorch would allocate and free to run a [`Graph`]: parameters as the model comes to the GPU, then
//! a few steps of training (or of inference), each event into the allocator's model as it happens.
//!
//! A step: the batch arrives, `zero_grad(set_to_none=True)`, forward (each operator's outputs are
//! allocated; what autograd does not keep and no later operation reads is freed), loss, backward in
//! reverse order, optimizer step. The script's variables keep the last step's batch, outputs and loss
//! until they are assigned again: that, and the partial batch at the end of an epoch, decides how the
//! allocator's segments fragment.

mod attention;
mod backward;
mod forward;
mod optimizer;
mod parallel;
mod parts;
mod plan;
mod player;
mod store;

pub use store::{Holdings, StorageKind};

use super::Graph;
use crate::alloc::{Caching, Event, Peak};
use crate::{Error, MIB, ModelTask, Platform};
use player::Player;

/// Takes the events of a run.
pub type Sink<'s> = dyn FnMut(&Event) -> Result<(), Error> + 's;

/// What the task's program does around the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Script {
    /// A first forward pass with another batch, as `torchsummary.summary` makes it with 2 samples.
    pub dummy_batch: Option<u64>,
    /// Steps before the partial batch, if there is one; two more follow it.
    pub steps: u64,
    /// Whether the last step's batch is gone before the next arrives. It is where the loop's variables
    /// take the loader's batch first (`for x, y in loader: x = x.to(device)`), and not where other names are
    /// used for what lies on the GPU.
    pub frees_inputs_first: bool,
}

impl Default for Script {
    /// Three steps: the optimizer's state comes in the first, and what the second leaves behind
    /// decides the third.
    fn default() -> Self {
        Self { dummy_batch: None, steps: 3, frees_inputs_first: true }
    }
}

impl Script {
    /// Batch sizes of the steps that are played.
    fn batches(&self, task: &ModelTask) -> Vec<u64> {
        let batch = task.batch_size.max(1);
        let mut batches = vec![batch; self.steps as usize];
        if let Some(samples) = task.samples.filter(|samples| *samples > 0) {
            // An epoch that is shorter than the steps that are played.
            batches.truncate(usize::try_from(samples / batch).unwrap_or(usize::MAX));
            if !samples.is_multiple_of(batch) {
                batches.push(samples % batch);
                if samples > batch {
                    batches.extend([batch; 2]);
                }
            }
        }
        batches
    }
}

/// The highest point of a phase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Phase {
    /// `model`, `forward`, `backward`, `optimizer step`, ...
    pub name: String,
    /// Most that was allocated in it, bytes.
    pub allocated: u64,
    /// Most that was reserved in it, bytes.
    pub reserved: u64,
}

/// What a run amounts to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replay {
    /// Highest points of the allocator.
    pub peak: Peak,
    /// Input, output and weight of the largest ungrouped convolution, bytes: bounds cuDNN's workspace.
    pub convolution_bytes: u64,
    /// Highest points by phase, in the order in which phases first came.
    pub phases: Vec<Phase>,
    /// What held how much when tensors were at their highest.
    pub holdings: Holdings,
    /// In which phase that was.
    pub phase: &'static str,
}

impl Replay {
    /// Sentences for people: where the peak is and what it is made of.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        if self.phase.is_empty() {
            return vec!["nothing in it takes memory".to_owned()];
        }
        vec![format!(
            "the peak is in the {}: {} (of {} MiB)",
            self.phase,
            self.holdings.describe(),
            self.holdings.total().div_ceil(MIB)
        )]
    }
}

/// Plays the usual script: see [`replay_script`].
///
/// # Errors
/// See [`replay_script`].
pub fn replay(graph: &Graph, task: &ModelTask, platform: &Platform) -> Result<Replay, Error> {
    replay_script(graph, task, platform, &Script::default())
}

/// Plays a script through the allocator's model. The graph's tensors have the batch of
/// [`ModelTask::batch_size`] in their first dimension; with [`crate::Parallel::DataParallel`] that of all GPUs.
///
/// # Errors
/// A graph that reads what was not made, or a size that no GPU holds (with the layer's name).
pub fn replay_script(
    graph: &Graph,
    task: &ModelTask,
    platform: &Platform,
    script: &Script,
) -> Result<Replay, Error> {
    let mut allocator = Caching::new(platform.alloc.clone(), platform.gpu.compute_capability);
    let mut phases: Vec<Phase> = Vec::new();
    let mut current = None;
    let (holdings, phase) = events(graph, task, platform, script, &mut |event| {
        allocator.apply(event)?;
        if let Event::Mark { name } = event {
            let at = phases.iter().position(|phase| phase.name == *name).unwrap_or(phases.len());
            if at == phases.len() {
                phases.push(Phase { name: name.clone(), allocated: 0, reserved: 0 });
            }
            current = Some(at);
        }
        if let Some(phase) = current.and_then(|at| phases.get_mut(at)) {
            let peak = allocator.peak();
            phase.allocated = phase.allocated.max(peak.allocated);
            phase.reserved = phase.reserved.max(peak.reserved);
        }
        Ok(())
    })?;
    Ok(Replay {
        peak: allocator.peak(),
        convolution_bytes: allocator.largest_convolution(),
        phases,
        holdings,
        phase,
    })
}

/// Gives each event of the script to `sink` as it happens; returns what held how much at the highest
/// point, and in which phase that was. At the end everything is freed but parameters, state, buckets
/// and workspaces.
///
/// # Errors
/// As for [`replay_script`], and what the sink returns.
pub fn events(
    graph: &Graph,
    task: &ModelTask,
    platform: &Platform,
    script: &Script,
    sink: &mut Sink<'_>,
) -> Result<(Holdings, &'static str), Error> {
    plan::check(graph)?;
    let adapted = graph.adapted(task)?;
    let graph = adapted.as_ref().unwrap_or(graph);
    let mut player = Player::new(graph, task, platform, script, sink)?;
    player.play(script)?;
    player.finish()?;
    Ok(player.highest())
}
