//! A log through the allocator model.

use super::{End, Header, Reader, Status};
use crate::alloc::{Caching, Event, Peak};
use crate::allocator::{self, Footprint};
use crate::{Error, Estimate, MIB, ModelTask, Platform, Tier};
use std::io::BufRead;

/// What a log amounts to on a platform.
#[derive(Debug, Clone, PartialEq)]
pub struct Replay {
    /// What wrote the log.
    pub header: Header,
    /// What ran; its status is partial where the log was cut off.
    pub end: End,
    /// Highest points of the allocator.
    pub peak: Peak,
    /// Input, output and weight of the largest convolution, bytes.
    pub convolution_bytes: u64,
    /// Events of the log.
    pub events: u64,
    /// The part of the run in which tensors took most: `backward`.
    pub peak_at: String,
}

/// Replays all events of a log.
///
/// # Errors
/// A line that is no event, or an absurd size; with the line's number.
pub fn replay<R: BufRead>(reader: &mut Reader<R>, platform: &Platform) -> Result<Replay, Error> {
    let mut allocator = Caching::new(platform.alloc.clone(), platform.gpu.compute_capability);
    let (mut now, mut peak_at) = (String::from("start"), String::from("start"));
    let (mut highest, mut events) = (0, 0);
    while let Some(event) = reader.next_event()? {
        events += 1;
        if let Event::Mark { name } = event {
            now = name;
            continue;
        }
        allocator.apply(&event)?;
        let most = allocator.peak().max_allocated;
        if most > highest {
            highest = most;
            if peak_at != now {
                peak_at.clone_from(&now);
            }
        }
    }
    let end = reader
        .end()
        .cloned()
        .unwrap_or_else(|| End { reason: Some("the log was cut off".to_owned()), ..End::default() });
    Ok(Replay {
        header: reader.header().clone(),
        end,
        peak: allocator.peak(),
        convolution_bytes: allocator.largest_convolution(),
        events,
        peak_at,
    })
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
        if end.steps == 0 && end.backwards == 0 {
            notes.push("no backward pass was seen: this is inference".to_owned());
        }
        let mut doubts = Vec::new();
        if end.status == Status::Partial {
            let why = end.reason.as_deref().unwrap_or("no reason given");
            doubts.push(format!("the trace is partial, memory may rise further: {why}"));
        }
        doubts.extend(end.doubts.iter().cloned());
        Footprint {
            front_end: "trace",
            tier: Tier::Trace,
            family: end.family(self.convolution_bytes > 0).to_owned(),
            peak: self.peak,
            // Without a backward pass the workspaces are events of their own.
            convolutional: self.convolution_bytes > 0,
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
        Ok(allocator::estimate(&self.footprint(), &task, platform))
    }
}
