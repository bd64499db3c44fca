//! A log through the allocator model.

use super::{End, Header, Reader, Status};
use crate::alloc::{Caching, Event, Peak};
use crate::allocator::{self, Footprint};
use crate::{Error, Estimate, MIB, ModelTask, Platform, Tier, Uses};
use std::collections::VecDeque;
use std::io::BufRead;

/// Widening where the program does otherwise than the trace shows.
const OTHERWISE: f64 = 0.40;
/// Why a program has no bound that asks for what is free.
const ASKS_FREE: &str = "the program asks how much memory is free (torch.cuda.mem_get_info) and may take as much, so its peak has no bound";
/// Why a compiled program takes more or less than a trace says.
pub const COMPILED: &str =
    "the program is compiled (torch.compile): fused kernels keep less, CUDA graphs and autotuning more";
/// From here on cuDNN's workspaces are as on the H200 where they were measured: kernels for tensor cores that copy fp32 too.
const TENSOR_CORES_COPY: (u8, u8) = (8, 0);

/// Steps at whose ends memory was higher than at the end before, and then it is still rising.
const RISES: usize = 3;
/// By at least so much: a list of losses takes 512 bytes a step.
const NOISE: u64 = 64 << 10;

/// Bytes at the ends of the last steps.
#[derive(Debug, Default)]
struct Ends(VecDeque<[u64; 2]>);

impl Ends {
    fn note(&mut self, peak: Peak) {
        if self.0.len() > RISES {
            self.0.pop_front();
        }
        self.0.push_back([peak.allocated, peak.reserved]);
    }

    /// By how much memory rose with each of the last steps, bytes: of what tensors take or of what is reserved, the more.
    fn rise(&self) -> Option<u64> {
        let rises = |of: usize| {
            let ends = || self.0.iter().map(move |end| end[of]);
            let all = ends().zip(ends().skip(1)).all(|(before, after)| after >= before + NOISE);
            let (first, last) = (self.0.front()?[of], self.0.back()?[of]);
            (all && self.0.len() > RISES).then(|| (last - first) / RISES as u64)
        };
        rises(0).max(rises(1))
    }
}

/// What a log amounts to on a platform.
#[derive(Debug, Clone, PartialEq)]
pub struct Replay {
    /// What wrote the log.
    pub header: Header,
    /// What ran; its status is partial where the log was cut off.
    pub end: End,
    /// Highest points of the allocator.
    pub peak: Peak,
    /// Input, output and weight of the largest convolution, bytes; 0 where what cuDNN takes for each was replayed.
    pub convolution_bytes: u64,
    /// Whether there are convolutions.
    pub convolutional: bool,
    /// What decides the context.
    pub uses: Uses,
    /// Events of the log.
    pub events: u64,
    /// The part of the run in which tensors took most: `backward`.
    pub peak_at: String,
    /// Events after which tensors never took more.
    pub risen_until: u64,
    /// By how much memory still rose with each step, bytes, where it did.
    pub rise: Option<u64>,
}

/// Replays all events of a log.
///
/// # Errors
/// A line that is no event, or an absurd size; with the line's number.
pub fn replay<R: BufRead>(reader: &mut Reader<R>, platform: &Platform) -> Result<Replay, Error> {
    let mut allocator = Caching::new(platform.alloc.clone(), platform.gpu.compute_capability);
    // Of several GPUs it is not known what is on which.
    if reader.header().options.gpus.is_none_or(|gpus| gpus < 2) {
        allocator = allocator.with_limit(platform.room().0.saturating_mul(MIB));
    }
    let mut ends = Ends::default();
    let (mut now, mut peak_at) = (String::from("start"), String::from("start"));
    let (mut highest, mut events, mut risen_until) = (0, 0, 0);
    let (mut steps, mut backwards) = (0, 0);
    let mut convolutional = false;
    let mut products = [false; 2];
    let knows_cudnn = platform.gpu.compute_capability >= TENSOR_CORES_COPY;
    while let Some(mut event) = reader.next_event()? {
        events += 1;
        match &event {
            Event::CublasWorkspace { thread } => products[usize::from(*thread != 0)] = true,
            Event::Convolution { .. } => convolutional = true,
            Event::Cudnn(convolution) => {
                convolutional = true;
                if knows_cudnn {
                    event = Event::Transient { bytes: convolution.workspace() };
                }
            }
            _ => {}
        }
        if let Event::Mark { name } = event {
            // A step is over when something else begins.
            if now == "step" {
                steps += 1;
                ends.note(allocator.peak());
            }
            backwards += u64::from(name == "backward");
            now = name;
            continue;
        }
        allocator.apply(&event)?;
        let most = allocator.peak().max_allocated;
        if most > highest {
            (highest, risen_until) = (most, events);
            if peak_at != now {
                peak_at.clone_from(&now);
            }
        }
    }
    let end = reader.end().cloned().unwrap_or_else(|| End {
        reason: Some(format!("the log was cut off after {steps} optimizer steps")),
        steps,
        backwards,
        ..End::default()
    });
    let uses = Uses { backward: end.steps + end.backwards > 0, products };
    Ok(Replay {
        header: reader.header().clone(),
        end,
        peak: allocator.peak(),
        convolution_bytes: allocator.largest_convolution(),
        convolutional,
        uses,
        events,
        peak_at,
        risen_until,
        rise: ends.rise(),
    })
}

fn still_rising(bytes: u64) -> String {
    let mib = bytes as f64 / MIB as f64;
    let digits = if mib < 10.0 { 1 } else { 0 };
    format!("memory was still rising at the end, by {mib:.digits$} MiB a step")
}

impl Replay {
    /// The replay as the estimator *allocator* takes it.
    #[must_use]
    pub fn footprint(&self) -> Footprint {
        let end = &self.end;
        let mut notes = vec![format!(
            "trace of `{}` with PyTorch {}: {} events, {} optimizer steps; tensors take most during {}",
            self.header.what,
            if self.header.torch.is_empty() { "?" } else { &self.header.torch },
            self.events,
            end.steps,
            self.peak_at
        )];
        if end.steps == 0 && end.backwards == 0 && end.status == Status::Complete && !end.untraced {
            notes.push("no backward pass was seen: this is inference".to_owned());
        }
        let mut doubts = Vec::new();
        if end.status == Status::Partial {
            let why = end.reason.as_deref().unwrap_or("no reason given");
            doubts.push(format!("the trace is incomplete, memory may rise further: {why}"));
        }
        if let Some(rise) = self.rise {
            doubts.push(still_rising(rise));
        }
        doubts.extend(end.doubts.iter().cloned());
        Footprint {
            front_end: "trace",
            tier: Tier::Trace,
            family: end.family(self.convolutional).to_owned(),
            uses: self.uses,
            peak: self.peak,
            convolutional: self.convolutional,
            // In logs of version 1 the workspaces of a pass without autograd are events of their own.
            convolution_bytes: if end.backwards == 0 { 0 } else { self.convolution_bytes },
            doubts,
            notes,
        }
    }

    /// Context, allocator and workspaces together.
    ///
    /// # Errors
    /// A run that failed, or that put nothing on a GPU.
    pub fn estimate(&self, task: &ModelTask, platform: &Platform) -> Result<Estimate, Error> {
        if self.end.status == Status::Failed {
            let why = self.end.reason.as_deref().unwrap_or("no reason given");
            return Err(Error::bad("trace", format!("the traced run failed: {why}")));
        }
        if self.peak.max_reserved < MIB {
            return Err(Error::bad("trace", "the traced run put nothing on a GPU"));
        }
        let task =
            ModelTask { cudnn_benchmark: task.cudnn_benchmark || self.end.cudnn_benchmark, ..task.clone() };
        let mut estimate = allocator::estimate(&self.footprint(), &task, platform);
        if let Some((share, good_for)) = self.incomplete() {
            estimate.widen(share, good_for);
        }
        if self.end.untraced {
            estimate.widen(
                1.0,
                "other processes of the program may work on a GPU, and the trace is of its first one: a lower bound",
            );
        }
        if let Some(rise) = self.rise {
            estimate.unbound(&format!("{}, so its peak has no bound", still_rising(rise)));
        }
        if self.end.asks_free {
            estimate.unbound(ASKS_FREE);
        }
        if self.end.compiled {
            estimate.widen(OTHERWISE, COMPILED);
        }
        if self.end.sharded {
            estimate.widen(
                OTHERWISE,
                "weights are shared out among processes (FSDP); the trace is of one that keeps all",
            );
        }
        Ok(estimate)
    }

    /// By how much a run that was stopped may still rise, and what its trace is good for.
    fn incomplete(&self) -> Option<(f64, &'static str)> {
        let end = &self.end;
        if end.status != Status::Partial {
            return None;
        }
        Some(match end.steps {
            0 if end.backwards == 0 && self.risen_until < self.events / 2 => {
                (0.30, "an incomplete trace without a backward pass, whose memory had stopped rising")
            }
            0 => (
                1.0,
                "an incomplete trace without an optimizer step is a lower bound: gradients and the optimizer's states may come",
            ),
            1 | 2 => (0.30, "an incomplete trace of one or two optimizer steps: later ones may take more"),
            _ => (0.15, "an incomplete trace of three optimizer steps or more: an evaluation may come"),
        })
    }
}
