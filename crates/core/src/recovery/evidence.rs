//! What the tail of a log says about a failure.
//!
//! Only consulted when a command failed. Wordings: PyTorch, TensorFlow, JAX, ONNX Runtime, TensorRT, vLLM, CUDA.jl, CUDA, cuDNN and
//! MPS as they print them, and CUDA's own words for an error as programs without a framework print them; fault wordings measured on an H200 (docs/research/h200-first-run.md, bench/h200/results/faults-*.json).

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
        /// What else the message says of memory.
        #[serde(default, skip_serializing_if = "Said::is_empty")]
        said: Said,
    },
    /// The host's memory was exhausted.
    HostOutOfMemory,
    /// A fault that ends every MPS client on the GPU.
    FatalGpuFault,
    /// An error of the GPU that may be the job's own or, under MPS, the echo of a neighbour's fault:
    /// cuDNN and cuBLAS report the end of their context in words of their own.
    GpuError,
    /// The MPS server took the process on no more: as a rule since it is being torn down after a fault of another client.
    MpsRefused,
    /// The GPU is gone.
    GpuLost,
    /// carma ended the MPS client (or someone did through the control daemon).
    MpsClientTerminated,
    /// A Python error of the job's own, device-side asserts included: they are contained.
    OwnError,
}

/// The numbers in a message of a failed allocation. They come from the job's own log, so that a job may say what it
/// likes: see [`crate::recovery::blame()`] for what that can change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Said {
    /// Which of the GPUs that the job sees.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// Memory of that GPU, or the job's cap where the driver enforces one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<MiB>,
    /// Of that, free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free: Option<MiB>,
    /// What the process held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<MiB>,
    /// A limit that the job set itself (`per_process_memory_fraction`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed: Option<MiB>,
}

impl Said {
    /// Whether the message said nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
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
    // ONNX Runtime.
    "Failed to allocate memory for requested buffer of size",
    // TensorRT.
    "Requested amount of GPU memory",
    // CUDA.jl.
    "Out of GPU memory",
    // vLLM, at its start: others hold too much, or nothing is left for the cache.
    "is less than desired GPU memory utilization",
    "No available memory for the cache blocks",
];

/// `cudaGetErrorString` of a failed allocation, and how libraries write the same.
const OUT_OF_MEMORY: &[&str] = &["out of memory", "out_of_memory", "outofmemory"];
/// In the same line, in lower case: the memory is a GPU's.
const OF_GPU: &[&str] =
    &["cuda", "gpu", "cumem", "cublas", "cudnn", "cufft", "nccl", "device", ".cu:", ".cu(", ".cu,", ".cu "];

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
    // PyTorch's, when no kernel of cuDNN runs any more: seen of a victim of another client's fault on an H200.
    "unable to find an engine to execute this computation",
    // The same of its attention, `Expected mha_graph.execute(...).is_good() to be true`.
    ".is_good() to be true, but got false",
    "CUDA error: unknown error",
    "CUDA_ERROR_UNKNOWN",
];

const MPS_REFUSED: &[&str] = &[
    "cudaErrorMpsConnectionFailed",
    "MPS client failed to connect to the MPS control daemon or the MPS server",
    "cudaErrorMpsServerNotReady",
    "MPS server is not ready to accept new MPS client requests",
    "cudaErrorMpsMaxClientsReached",
    "the hardware resources required to create MPS client have been exhausted",
    "cudaErrorMpsMaxConnectionsReached",
    "the hardware resources required to support device connections have been exhausted",
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
const LAUNCHER_ERRORS: &[&str] = &[
    "ChildFailedError",
    "ProcessExitedException",
    "CalledProcessError",
    "Engine core initialization failed",
];

/// Whether a line is CUDA's report of a failed allocation, as programs without a framework print it: `cudaMalloc failed: out of memory`,
/// `GPUassert: out of memory a.cu 7`, `Cuda Error in allocate: 2 (out of memory)`, `error: out of memory`. Advice (`if you run out of memory`) and
/// what compilers and language runtimes say of the host's memory is none.
fn reports_out_of_memory(line: &str) -> bool {
    let line = first_bytes(line, MESSAGE_LIMIT).to_ascii_lowercase();
    OUT_OF_MEMORY.iter().any(|words| {
        line.match_indices(words).any(|(at, _)| {
            let (before, after) = (line[..at].trim_end(), &line[at + words.len()..]);
            // An error's text begins after a mark or the word error; within a sentence it is none.
            let is_text = before.ends_with("error") || !before.ends_with(char::is_alphanumeric);
            let of_gpu = OF_GPU.iter().any(|word| line.contains(word));
            let bare = !after.contains(char::is_alphanumeric)
                && matches!(before.trim_end_matches([':', ' ']), "" | "error");
            is_text && (of_gpu || bare)
        })
    })
}

fn kind_of(line: &str) -> Option<EvidenceKind> {
    let has = |words: &[&str]| words.iter().any(|w| line.contains(w));
    // Order: the specific before the general, since one line may carry both ("CUDA error: ...").
    if has(TERMINATED) {
        Some(EvidenceKind::MpsClientTerminated)
    } else if has(FATAL_FAULT) {
        Some(EvidenceKind::FatalGpuFault)
    } else if has(MPS_REFUSED) {
        Some(EvidenceKind::MpsRefused)
    } else if has(GPU_LOST) {
        Some(EvidenceKind::GpuLost)
    } else if has(GPU_OOM) || reports_out_of_memory(line) {
        Some(EvidenceKind::GpuOutOfMemory { wanted: wanted(line), said: said(line) })
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
    size_at_start(rest.or_else(|| line.split_once("rying to allocate "))?.1)
}

/// PyTorch's other numbers. From 2.1 on: "GPU 0 has a total capacity of 39.49 GiB of which 1.20 GiB is free. Process 7
/// has 9.00 GiB memory in use. Including non-PyTorch memory, this process has 29.30 GiB memory in use. 30.00 GiB
/// allowed; Of the allocated memory ..."; before: "(GPU 0; 39.59 GiB total capacity; 30.00 GiB already allocated;
/// 1.50 GiB free; 32.00 GiB allowed; 31.00 GiB reserved in total by PyTorch)". What it says of other processes is not
/// read: no word of a job may name another.
fn said(line: &str) -> Said {
    // A job may print anything; its real message fits into this many bytes.
    let line = first_bytes(line, MESSAGE_LIMIT);
    let after = |words: &str| line.split_once(words).and_then(|(_, rest)| size_at_start(rest));
    let before = |words: &str| line.split_once(words).and_then(|(rest, _)| size_at_end(rest));
    // 2.1 wrote "capacty".
    let total = after("has a total capacity of ").or_else(|| after("has a total capacty of "));
    let gpu = match (line.split_once(" has a total capac"), line.split_once("(GPU ")) {
        (Some((rest, _)), _) => rest.rsplit_once("GPU ").and_then(|(_, n)| n.parse().ok()),
        (None, Some((_, rest))) => rest.split_once(';').and_then(|(n, _)| n.parse().ok()),
        (None, None) => None,
    };
    Said {
        gpu,
        total: total.or_else(|| before(" total capacity;")),
        free: before(" is free.").or_else(|| before(" free;")),
        // Without the context, in the old words: it held that at least.
        held: after("this process has ").or_else(|| before(" reserved in total by PyTorch")),
        allowed: before(" allowed;"),
    }
}

/// Longest message that numbers are looked for in, bytes.
const MESSAGE_LIMIT: usize = 16 * 1024;
/// No GPU has more memory: what is said beyond that is not said.
const MOST_MIB: f64 = 1e9;

fn first_bytes(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// A size as the frameworks print it, at the beginning of a text.
fn size_at_start(text: &str) -> Option<MiB> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, rest) = text.split_at(end);
    mib(number, rest.trim_start().split(|c: char| !c.is_alphanumeric()).next()?)
}

/// The same at the end of a text.
fn size_at_end(text: &str) -> Option<MiB> {
    let (rest, unit) = text.rsplit_once(' ')?;
    mib(rest.rsplit(' ').next()?, unit)
}

fn mib(number: &str, unit: &str) -> Option<MiB> {
    // No sign, no exponent, no `inf`.
    let digits = number.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let number: f64 = number.parse().ok().filter(|_| digits)?;
    let mib = match unit {
        "bytes" => number / f64::from(1 << 20),
        "KiB" => number / 1024.0,
        "MiB" => number,
        "GiB" => number * 1024.0,
        _ => return None,
    };
    (mib.is_finite() && (0.0..MOST_MIB).contains(&mib)).then(|| MiB(mib.ceil() as u64))
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

/// The last line of a log that is not empty, as a reason shows it.
#[must_use]
pub fn last_line(tail: &str) -> Option<String> {
    // A bar that was drawn over is one line with its later states.
    let last = tail.split(['\n', '\r']).rev().map(str::trim).find(|line| !line.is_empty())?;
    Some(shorten(last))
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
    fn the_last_line_is_the_last_that_says_something() {
        assert_eq!(last_line(""), None);
        assert_eq!(last_line(" \n\r\n"), None);
        let python = "python3: can't open file 'trian.py': [Errno 2] No such file or directory";
        assert_eq!(last_line(&format!("hello\n{python}\n\n")).as_deref(), Some(python));
        assert_eq!(last_line("10%\r20%\rno space left").as_deref(), Some("no space left"));
    }

    #[test]
    fn frameworks_are_told_apart() {
        let oom = |wanted| Some(EvidenceKind::GpuOutOfMemory { wanted, said: Said::default() });
        assert!(matches!(kind(PYTORCH), Some(EvidenceKind::GpuOutOfMemory { wanted: Some(MiB(2560)), .. })));
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
        let victim = "Traceback (most recent call last):\nRuntimeError: FIND was unable to find an engine to execute this computation";
        assert_eq!(kind(victim), Some(EvidenceKind::GpuError));
        let victim = "Traceback (most recent call last):\nRuntimeError: Expected mha_graph.execute(handle, variant_pack, workspace_ptr.get()).is_good() to be true, but got false.  (Could this error message be improved?";
        assert_eq!(kind(victim), Some(EvidenceKind::GpuError));
        let refused = "Traceback (most recent call last):\nRuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might have already set an error? Error 807: MPS server is not ready to accept new MPS client requests";
        assert_eq!(kind(refused), Some(EvidenceKind::MpsRefused));
    }

    #[test]
    fn programs_without_a_framework_report_it_in_the_words_of_cuda() {
        for line in [
            "cudaMallocManaged: out of memory",
            "GPUassert: out of memory main.cu 41",
            "CUDA Error: out of memory",
            "CUDA error 2 [kernels.cu, 118]: out of memory",
            "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 8192.00 MiB on device 0: cudaMalloc failed: out of memory",
            "Cuda Error in allocate: 2 (out of memory)",
            "cudaMalloc d_A returned error out of memory (code 2), line(164)",
            "terminate called after throwing an instance of 'thrust::system::system_error': what(): out of memory: cudaErrorMemoryAllocation",
            "  what():  std::bad_alloc: out_of_memory: CUDA error at: cuda_memory_resource.hpp",
            "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 4,294,967,296 bytes (allocated so far: 0 bytes).",
            "Out of memory error on GPU 0. Cannot allocate 1.953125GB memory on GPU 0",
            "main.cu:12: out of memory",
            "error: out of memory",
            "out of memory",
        ] {
            assert!(matches!(kind(line), Some(EvidenceKind::GpuOutOfMemory { .. })), "{line}");
        }
        for line in [
            "If you run out of memory, reduce the batch size of each GPU",
            "the GPU runs out of memory with more than 64 images",
            "cc1plus: out of memory allocating 65536 bytes after a total of 1 bytes",
            "LLVM ERROR: out of memory",
            "fatal error: runtime: out of memory",
            "FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory",
            "java.lang.OutOfMemoryError: Java heap space",
        ] {
            assert_eq!(kind(line), None, "{line}");
        }
    }

    #[test]
    fn a_server_that_fails_since_its_engine_did_is_out_of_memory() {
        // As vLLM prints it: the engine's traceback in the log, then the main process's own.
        let tail = "ERROR 06-30 13:53:19 [core.py:515] ValueError: Free memory on device (31.44/47.38 GiB) on startup is less than desired GPU memory utilization (0.95, 45.01 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.\nTraceback (most recent call last):\n  File \"vllm\", line 8\nRuntimeError: Engine core initialization failed. See root cause above.\n";
        assert!(matches!(kind(tail), Some(EvidenceKind::GpuOutOfMemory { .. })));
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

    fn numbers(line: &str) -> Said {
        match kind(line) {
            Some(EvidenceKind::GpuOutOfMemory { said, .. }) => said,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_numbers_of_pytorch_are_read_in_the_words_of_all_its_versions() {
        let new = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 39.50 GiB of which 1.20 GiB is free. Process 1234 has 9.00 GiB memory in use. Including non-PyTorch memory, this process has 29.30 GiB memory in use. 30.00 GiB allowed; Of the allocated memory 28.86 GiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated.";
        let expected = Said {
            gpu: Some(1),
            total: Some(MiB(40_448)),
            free: Some(MiB(1229)),
            held: Some(MiB(30_004)),
            allowed: Some(MiB::gib(30)),
        };
        assert_eq!(numbers(new), expected);
        assert_eq!(numbers(&new.replace("capacity", "capacty")), expected);
        let old = "RuntimeError: CUDA out of memory. Tried to allocate 10.84 GiB (GPU 2; 23.65 GiB total capacity; 1.06 GiB already allocated; 10.26 GiB free; 12.00 GiB allowed; 12.53 GiB reserved in total by PyTorch)";
        let expected = Said {
            gpu: Some(2),
            total: Some(MiB(24_218)),
            free: Some(MiB(10_507)),
            held: Some(MiB(12_831)),
            allowed: Some(MiB::gib(12)),
        };
        assert_eq!(numbers(old), expected);
        let full = numbers(
            "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 8.00 GiB of which 0 bytes is free.",
        );
        assert_eq!((full.free, full.held, full.allowed), (Some(MiB(0)), None, None));
    }

    #[test]
    fn numbers_that_make_no_sense_are_not_numbers() {
        for line in [
            "CUDA out of memory. GPU 99999999999 has a total capacity of 1e9 GiB of which -3 GiB is free.",
            "CUDA out of memory. GPU x has a total capacity of 99999999999999999999 GiB of which .GiB is free.",
            "CUDA out of memory. is free. allowed; this process has  total capacity;  free; has a total capacity of ",
            "CUDA out of memory. this process has 7.0.0 GiB of which \u{661} GiB is free.",
        ] {
            assert_eq!(numbers(line), Said::default(), "{line}");
        }
        // What follows an endless line is not looked for.
        let long = format!(
            "CUDA out of memory. {} this process has 1.00 GiB memory",
            "\u{fc}".repeat(MESSAGE_LIMIT)
        );
        assert_eq!(numbers(&long), Said::default());
    }

    proptest! {
        #[test]
        fn any_message_is_read_without_harm(
            words in prop::collection::vec(prop::sample::select(vec![
                "GPU ", "0", "7.5 GiB", " has a total capacity of ", " of which ", " is free.", "this process has ",
                " allowed;", "(GPU ", ";", " total capacity;", " free;", "99999999999 bytes", "\u{fc}", ".", " ",
            ]), 0..40),
        ) {
            let line = format!("CUDA out of memory{}", words.concat());
            let said = numbers(&line);
            for size in [said.total, said.free, said.held, said.allowed].into_iter().flatten() {
                prop_assert!(size.0 <= MOST_MIB as u64);
            }
            let text = serde_json::to_string(&said).unwrap();
            prop_assert_eq!(serde_json::from_str::<Said>(&text).unwrap(), said);
        }

        #[test]
        fn any_text_is_read_without_harm(tail in "\\PC{0,400}(\n\\PC{0,80}){0,20}") {
            if let Some(evidence) = scan(&tail) {
                prop_assert!(evidence.line.chars().count() <= LINE_LIMIT + 3);
            }
        }
    }
}
