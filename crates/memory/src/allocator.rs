//! The estimator *allocator*: what a replay through the allocator model says of the whole process.

use crate::alloc::Peak;
use crate::estimate::BOUND;
use crate::margin::Margin;
use crate::{Estimate, ModelTask, Parts, Platform, Tier, Uses};

/// What a front end learned by replay.
#[derive(Debug, Clone, PartialEq)]
pub struct Footprint {
    /// Front end: `trace`, `onnx`, `hf-config`, `summary`.
    pub front_end: &'static str,
    /// What the front end's knowledge amounts to.
    pub tier: Tier,
    /// Family of the model.
    pub family: String,
    /// What decides the context.
    pub uses: Uses,
    /// Highest points of the allocator.
    pub peak: Peak,
    /// Input, output and weight of the largest convolution, bytes: bounds cuDNN's workspace
    /// (the copies that TF32 kernels make).
    pub convolution_bytes: u64,
    /// Whether workspaces of convolutions are in doubt, whatever their bound.
    pub convolutional: bool,
    /// What was not understood.
    pub doubts: Vec<String>,
    /// What people should know of the replay: where its peak is.
    pub notes: Vec<String>,
}

/// Context, allocator and workspaces together.
#[must_use]
pub fn estimate(footprint: &Footprint, task: &ModelTask, platform: &Platform) -> Estimate {
    let parts =
        Parts::of_replay(platform.context(footprint.uses), &footprint.peak, footprint.convolution_bytes);
    let margin = Margin::of(footprint.tier, footprint.convolutional, task, footprint.doubts.len());
    let held = parts.reserved_mib + parts.workspace_mib;
    let mut reasons = vec![
        format!(
            "allocator model: tensors take {} MiB at most, in segments of {} MiB",
            parts.allocated_mib.0, parts.reserved_mib.0
        ),
        format!("CUDA context {} MiB ({})", parts.context_mib.0, platform.context_source),
    ];
    if !parts.workspace_mib.is_zero() {
        reasons.push(format!("workspace of the largest convolution: up to {} MiB", parts.workspace_mib.0));
    }
    if let Some(backend) = &platform.alloc.foreign_backend {
        reasons.push(format!("the allocator is {backend}, for which this model does not hold"));
    }
    let unknown = &platform.alloc.unknown;
    if !unknown.is_empty() {
        let verbs = if unknown.len() == 1 {
            "is not known to this carma and changes"
        } else {
            "are not known to this carma and change"
        };
        reasons.push(format!(
            "`{}` among the allocator's settings {verbs} nothing here; a newer PyTorch may have more names, and refuses \
             others",
            unknown.join("`, `")
        ));
    }
    reasons.extend(footprint.notes.iter().cloned());
    reasons.push(format!("{BOUND}{}", margin.reason));
    reasons.extend(footprint.doubts.iter().map(|doubt| format!("not understood: {doubt}")));
    let mut estimate = Estimate {
        need_mib: parts.context_mib + parts.allocated_mib + parts.workspace_mib,
        use_mib: parts.context_mib + held,
        upper_mib: margin.upper(parts.context_mib, held),
        tier: footprint.tier,
        source: format!("allocator/{}", footprint.front_end),
        family: footprint.family.clone(),
        parts: Some(parts),
        elastic: false,
        reasons,
    };
    if platform.alloc.grows_without_end() {
        estimate.unbound(GROWS);
    }
    estimate
}

/// Measured with PyTorch 2.11 on an H200: a model of GPT-2's size held 7.4 GiB after the first step and 105 GiB after 40.
const GROWS: &str = "expandable_segments and max_split_size_mb together: PyTorch then takes more with each step, so its peak has \
    no bound; set one of the two";

/// Cuts an estimate of one process at the share of the GPU that its allocator may hold, where one is set.
pub(crate) fn within_fraction(estimate: &mut Estimate, platform: &Platform) {
    if let Some(most) = platform.fraction() {
        let context = estimate.parts.map_or(platform.context_mib, |parts| parts.context_mib);
        estimate.cut(context + most, "with this per_process_memory_fraction it will run out of memory");
    }
}
