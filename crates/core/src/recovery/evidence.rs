//! What the tail of a log says about a failure.
//!
//! Only consulted when a command failed. Wordings: PyTorch, TensorFlow, JAX, CUDA, cuDNN and MPS as
//! they print them; fault wordings measured on an H200 (reference notes, faults under MPS).

use crate::units::MiB;
use serde::{Deserialize, Serialize};

/// Kind of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EvidenceKind {
    /// The GPU's memory (or the job's cap) was exhausted.
    GpuOutOfMemory {
        /// What the failing allocation wanted, where the message says so.
        wanted: Option<MiB>,
    },
    /// The host's memory was exhausted.
    HostOutOfMemory,
    /// A fault that ends every MPS client on the GPU.
    FatalGpuFault,
    /// An error of the GPU that may be the job's own or, under MPS, the echo of a neighbour's fault:
    /// cuDNN and cuBLAS report the end of their context in words of their own.
    GpuError,
    /// The GPU is gone.
    GpuLost,
    /// carma ended the MPS client (or someone did through the control daemon).
    MpsClientTerminated,
    /// A Python error of the job's own, device-side asserts included: they are contained.
    OwnError,
}

/// A line of the log that tells why a job failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// What it means.
    pub kind: EvidenceKind,
    /// The line, shortened.
    pub line: String,
}

/// Longest line kept, in characters.
const LINE_LIMIT: usize = 240;

const GPU_OOM: &[&str] = &[
    "torch.OutOfMemoryError",
    "torch.cuda.OutOfMemoryError",
    "CUDA out of memory",
    "HIP out of memory",
    "CUDA error: out of memory",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "cudaErrorMemoryAllocation",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "ResourceExhaustedError",
    "RESOURCE_EXHAUSTED: Out of memory",
    "RESOURCE_EXHAUSTED: Failed to allocate",
    "OOM when allocating tensor",
    "NCCL WARN Cuda failure 'out of memory'",
];

const HOST_OOM: &[&str] = &[
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "Cannot allocate memory",
    "std::bad_alloc",
];

const FATAL_FAULT: &[&str] = &[
    "an illegal memory access was encountered",
    "CUDA_ERROR_ILLEGAL_ADDRESS",
    "cudaErrorIllegalAddress",
    "unspecified launch failure",
    "an illegal instruction was encountered",
    "cudaErrorMpsRpcFailure",
    "the remote procedural call between the MPS server and the MPS client failed",
    "CUDA_ERROR_MPS_RPC_FAILURE",
    "uncorrectable ECC error encountered",
];

const GPU_ERROR: &[&str] = &[
    "CUDNN_STATUS_EXECUTION_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR",
    "CUBLAS_STATUS_EXECUTION_FAILED",
    "CUBLAS_STATUS_INTERNAL_ERROR",
    "CUDA error: unknown error",
    "CUDA_ERROR_UNKNOWN",
];

const GPU_LOST: &[&str] = &[
    "GPU is lost",
    "has fallen off the bus",
    "GPU requires reset",
    "CUDA-capable device(s) is/are busy or unavailable",
    "no CUDA-capable device is detected",
];

const TERMINATED: &[&str] =
    &["cudaErrorMpsClientTerminated", "MPS client terminated", "CUDA_ERROR_MPS_CLIENT_TERMINATED"];

const CONTAINED: &[&str] = &["device-side assert triggered"];

const TRACEBACK: &str = "Traceback (most recent call last)";
const CHAINED: &str = "During handling of the above exception";

/// Tracebacks of launchers, which only report that a child of theirs failed.
const LAUNCHER_ERRORS: &[&str] = &["ChildFailedError", "ProcessExitedException", "CalledProcessError"];

fn kind_of(line: &str) -> Option<EvidenceKind> {
    let has = |words: &[&str]| words.iter().any(|w| line.contains(w));
    // Order: the specific before the general, since one line may carry both ("CUDA error: ...").
    if has(TERMINATED) {
        Some(EvidenceKind::MpsClientTerminated)
    } else if has(FATAL_FAULT) {
        Some(EvidenceKind::FatalGpuFault)
    } else if has(GPU_LOST) {
        Some(EvidenceKind::GpuLost)
    } else if has(GPU_OOM) {
        Some(EvidenceKind::GpuOutOfMemory { wanted: wanted(line) })
    } else if has(HOST_OOM) || line.trim() == "MemoryError" || line.starts_with("MemoryError:") {
        Some(EvidenceKind::HostOutOfMemory)
    } else if has(CONTAINED) {
        Some(EvidenceKind::OwnError)
    } else if has(GPU_ERROR) {
        Some(EvidenceKind::GpuError)
    } else {
        None
    }
}

/// The size in PyTorch's "Tried to allocate 2.00 GiB" and JAX's "trying to allocate 1024 bytes".
fn wanted(line: &str) -> Option<MiB> {
    let rest = line.split_once("ried to allocate ");
    let rest = rest.or_else(|| line.split_once("rying to allocate "))?.1;
    let digits = |c: char| c.is_ascii_digit() || c == '.';
    let (number, rest) = rest.split_at(rest.find(|c| !digits(c))?);
    let number: f64 = number.parse().ok()?;
    let unit = rest.trim_start().split(|c: char| !c.is_alphanumeric()).next()?;
    let mib = match unit {
        "bytes" => number / f64::from(1 << 20),
        "KiB" => number / 1024.0,
        "MiB" => number,
        "GiB" => number * 1024.0,
        _ => return None,
    };
    (mib.is_finite() && (0.0..1e9).contains(&mib)).then(|| MiB(mib.ceil() as u64))
}

/// Finds what ended the job: the last telling line, since errors that were caught and survived come
/// earlier. A traceback that a launcher printed about its child, or that arose while the real error
/// was being handled, does not hide what came before it.
#[must_use]
pub fn scan(tail: &str) -> Option<Evidence> {
    let mut found: Option<Evidence> = None;
    let mut chained = false;
    // Whether a traceback began since `found`.
    let mut fresh = true;
    let mut lines = tail.lines().peekable();
    while let Some(line) = lines.next() {
        if line.contains(CHAINED) {
            chained = true;
        } else if let Some(kind) = kind_of(line) {
            // Further messages of the same failure (a fault often follows an error report) do not
            // replace an out-of-memory that the same traceback chain began with.
            let keep = chained && found.as_ref().is_some_and(|e| e.kind != EvidenceKind::OwnError);
            // Nor do the hints that follow a message and name the same error again.
            let hint = !fresh && found.as_ref().is_some_and(|e| same_kind(e.kind, kind));
            fresh = false;
            if !keep && !hint {
                found = Some(Evidence { kind, line: shorten(line) });
            }
        } else if line.contains(TRACEBACK) {
            fresh = true;
            // The exception is the first line after the frames, which are indented.
            let mut exception = "";
            while let Some(next) = lines.peek() {
                let frame = next.starts_with(' ') || next.starts_with('\t') || next.is_empty();
                if !frame {
                    exception = next;
                    break;
                }
                lines.next();
            }
            let launcher = LAUNCHER_ERRORS.iter().any(|w| exception.contains(w));
            let about_earlier = found.is_some() && (chained || launcher);
            if kind_of(exception).is_none() && !about_earlier {
                let line = if exception.is_empty() { line } else { exception };
                found = Some(Evidence { kind: EvidenceKind::OwnError, line: shorten(line) });
            }
            if kind_of(exception).is_none() {
                chained = false;
            }
        }
    }
    found
}

/// Whether two kinds are the same but for what they measured.
fn same_kind(a: EvidenceKind, b: EvidenceKind) -> bool {
    std::mem::discriminant(&a) == std::mem::discriminant(&b)
}

fn shorten(line: &str) -> String {
    let line: String = line.trim().chars().filter(|c| !c.is_control()).collect();
    match line.char_indices().nth(LINE_LIMIT) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PYTORCH: &str = "Traceback (most recent call last):\n  File \"train.py\", line 40, in <module>\n    loss.backward()\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 39.49 GiB of which 1.20 GiB is free.\n";

    fn kind(tail: &str) -> Option<EvidenceKind> {
        scan(tail).map(|e| e.kind)
    }

    #[test]
    fn frameworks_are_told_apart() {
        let oom = |wanted| Some(EvidenceKind::GpuOutOfMemory { wanted });
        assert_eq!(kind(PYTORCH), oom(Some(MiB(2560))));
        assert_eq!(
            kind(
                "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes."
            ),
            oom(Some(MiB::gib(16)))
        );
        assert_eq!(
            kind(
                "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with shape[64,56,56,256]"
            ),
            oom(None)
        );
        assert_eq!(kind("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), oom(None));
        assert_eq!(
            kind(
                "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"
            ),
            Some(EvidenceKind::HostOutOfMemory)
        );
        assert_eq!(
            kind("torch.AcceleratorError: CUDA error: an illegal memory access was encountered"),
            Some(EvidenceKind::FatalGpuFault)
        );
        assert_eq!(
            kind("RuntimeError: CUDA error: device-side assert triggered"),
            Some(EvidenceKind::OwnError)
        );
    }

    #[test]
    fn hints_that_follow_do_not_replace_the_message() {
        // As PyTorch 2.11 prints it.
        let tail = "Traceback (most recent call last):\n  File \"t.py\", line 3\ntorch.AcceleratorError: CUDA error: an illegal memory access was encountered\nSearch for `cudaErrorIllegalAddress' in https://docs.nvidia.com/ for more information.\n";
        let evidence = scan(tail).unwrap();
        assert_eq!(evidence.kind, EvidenceKind::FatalGpuFault);
        assert!(evidence.line.starts_with("torch.AcceleratorError"), "{}", evidence.line);
        assert_eq!(
            kind("RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED_CUDART"),
            Some(EvidenceKind::GpuError)
        );
    }

    #[test]
    fn a_path_or_a_word_is_not_an_out_of_memory() {
        assert_eq!(kind("python /home/ROOM/OOM/train.py\nloading classroom data\nunsuccessful run"), None);
        let bug = "Traceback (most recent call last):\n  File \"/ROOM/OOM.py\", line 1\nKeyError: 'OOM'\n";
        assert_eq!(kind(bug), Some(EvidenceKind::OwnError));
    }

    #[test]
    fn an_out_of_memory_that_was_survived_is_not_the_cause() {
        let tail = format!(
            "{PYTORCH}caught, halving the batch\nTraceback (most recent call last):\n  File \"a.py\", line 3\nKeyError: 'x'\n"
        );
        assert_eq!(kind(&tail), Some(EvidenceKind::OwnError));
    }

    #[test]
    fn what_follows_in_the_same_failure_does_not_hide_it() {
        let chained = format!(
            "{PYTORCH}\nDuring handling of the above exception, another exception occurred:\n\nTraceback (most recent call last):\n  File \"a.py\", line 3\nNameError: name 'x'\n"
        );
        assert!(matches!(kind(&chained), Some(EvidenceKind::GpuOutOfMemory { .. })));
        let launcher = format!(
            "{PYTORCH}Traceback (most recent call last):\n  File \"torchrun\", line 8\ntorch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
        );
        assert!(matches!(kind(&launcher), Some(EvidenceKind::GpuOutOfMemory { .. })));
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_harm(tail in "\\PC{0,400}(\n\\PC{0,80}){0,20}") {
            if let Some(evidence) = scan(&tail) {
                prop_assert!(evidence.line.chars().count() <= LINE_LIMIT + 3);
            }
        }
    }
}
