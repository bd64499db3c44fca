//! Recorded runs: the allocations of a user's own PyTorch program, replayed.
//!
//! [`TRACER`] is a Python program that runs a program on PyTorch's `meta` device, without a GPU, and writes
//! a log of what it would have allocated. [`read`] streams such a log, plain or compressed by gzip,
//! [`replay`] takes it through the allocator model.
//!
//! The log is text, one event a line; a line that begins with `{` is JSON:
//!
//! ```text
//! {"format":"carma-trace","version":2,"ids":"counted","torch":"2.11.0","what":"train.py --epochs 3"}
//! a 4096           a storage of 4096 bytes comes into being
//! f 0              the storage that came into being so many allocations ago (0: the last) is let go of
//! w 1              first matrix product on a thread (0 forward, 1 backward): a cuBLAS workspace
//! v f 4 0 0 1 1 1 8,3,32,32 16,3,3,3 8,16,32,32    a convolution runs, see [`crate::cudnn::Convolution::read`]
//! c 9502720        version 1: a convolution with so many bytes of input, output and weight
//! t 784            version 1: so many bytes are taken and given back at once: a workspace in a pass without autograd
//! e                torch.cuda.empty_cache()
//! m backward       a point in the run: batch, forward, backward, step
//! {"end":{"status":"complete","steps":3,"parameters":25557032}}
//! ```
//!
//! Without `"ids":"counted"` storages have numbers of their own: `a 12 4096`, `f 12`.
//! A log without its last line was cut off. Versions of the format only grow: a reader refuses a version
//! that it does not know.

mod belief;
mod header;
mod read;
mod replay;

pub use belief::Asked;
pub use header::{End, Header, Ids, Status, Told};
pub use read::{Reader, read};
pub use replay::{COMPILED, Replay, replay};

use crate::{Error, Estimate, ModelTask, Platform};

/// The tracer's files, to be written into one folder; the first is for `python3 carma_trace.py`.
pub const TRACER: [(&str, &str); 8] = [
    ("carma_trace.py", include_str!("python/carma_trace.py")),
    ("carma_trace_record.py", include_str!("python/carma_trace_record.py")),
    ("carma_trace_reserved.py", include_str!("python/carma_trace_reserved.py")),
    ("carma_trace_kernels.py", include_str!("python/carma_trace_kernels.py")),
    ("carma_trace_processes.py", include_str!("python/carma_trace_processes.py")),
    ("carma_trace_saves.py", include_str!("python/carma_trace_saves.py")),
    ("carma_trace_files.py", include_str!("python/carma_trace_files.py")),
    ("carma_trace_cuda.py", include_str!("python/carma_trace_cuda.py")),
];

/// Cuts an estimate at the whole GPU, which no program can exceed: one that tries how much it can take does so until it fails.
pub(crate) fn within_gpu(estimate: &mut Estimate, platform: &Platform) {
    estimate.cut(
        platform.gpu.total_mib,
        "on this GPU it runs out of memory, unless it goes on with less where that happens",
    );
}

/// Estimates from a recorded log, plain or compressed.
///
/// # Errors
/// A log that is none, that the tracer gave up on, or with absurd sizes.
pub fn estimate(log: &[u8], task: &ModelTask, platform: &Platform) -> Result<Estimate, Error> {
    estimate_for(log, &Asked::default(), task, platform)
}

/// The same, as far as the log is believed for what is asked.
///
/// # Errors
/// As [`estimate`], and a log of another program.
pub fn estimate_for(
    log: &[u8],
    asked: &Asked,
    task: &ModelTask,
    platform: &Platform,
) -> Result<Estimate, Error> {
    let mut reader = read(log)?;
    let replay = replay(&mut reader, platform)?;
    let estimate = replay.estimate(task, platform)?;
    let mut estimate = asked.of(estimate, &replay.header, replay.end.trained())?;
    within_gpu(&mut estimate, platform);
    Ok(estimate)
}
