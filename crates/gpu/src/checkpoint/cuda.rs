//! The calls of the CUDA driver (`libcuda.so.1`, from r570 on; to another GPU from r580 on), loaded at run time.
//!
//! Structures as in `cuda.h` of CUDA 12.8 and 13.0. Each is of 64 bytes; what is reserved must be zero.

#![expect(unsafe_code, reason = "a C library is called: its functions have no safe wrapper")]

use super::{Checkpoint, CheckpointError, Pair, ProcessState, Uuid};
use libloading::Library;
use std::ffi::{c_int, c_uint};
use std::path::Path;
use std::time::Duration;

/// The name under which every CUDA program asks the dynamic loader for the driver's library.
pub const LIBRARY_NAME: &str = "libcuda.so.1";

/// `CUcheckpointLockArgs`.
#[repr(C)]
struct LockArgs {
    timeout_ms: c_uint,
    reserved0: c_uint,
    reserved1: [u64; 7],
}

/// `CUcheckpointCheckpointArgs` and `CUcheckpointUnlockArgs`.
#[repr(C)]
struct NoArgs {
    reserved: [u64; 8],
}

/// `CUcheckpointGpuPair`: two `CUuuid`.
#[repr(C)]
struct GpuPair {
    old: [u8; 16],
    new: [u8; 16],
}

/// `CUcheckpointRestoreArgs`; in CUDA 12.8 all of it is reserved.
#[repr(C)]
struct RestoreArgs {
    pairs: *mut GpuPair,
    count: c_uint,
    reserved: [u8; 52 - size_of::<*mut GpuPair>()],
    reserved1: u64,
}

const _: () = {
    assert!(size_of::<LockArgs>() == 64 && size_of::<NoArgs>() == 64);
    assert!(size_of::<GpuPair>() == 32 && size_of::<RestoreArgs>() == 64);
};

type Call<Args> = unsafe extern "C" fn(c_int, *mut Args) -> c_int;

/// The driver's calls. See [`open`].
pub struct Cuda {
    init: unsafe extern "C" fn(c_uint) -> c_int,
    version: unsafe extern "C" fn(*mut c_int) -> c_int,
    state: Call<c_int>,
    lock: Call<LockArgs>,
    checkpoint: Call<NoArgs>,
    restore: Call<RestoreArgs>,
    unlock: Call<NoArgs>,
    /// Last: the functions are in it.
    _library: Library,
}

/// Loads the driver's library. Nothing is called yet.
///
/// # Errors
/// In words: no library, or one of a driver that cannot suspend processes.
pub fn open(library: Option<&Path>) -> Result<Cuda, String> {
    let name = library.unwrap_or(Path::new(LIBRARY_NAME));
    // SAFETY: the library is the driver's, whose initialisation every CUDA program runs.
    let library =
        unsafe { Library::new(name) }.map_err(|e| format!("{} cannot be loaded: {e}", name.display()))?;
    macro_rules! symbol {
        ($name:literal) => {
            // SAFETY: the types are those of cuda.h.
            *unsafe { library.get(concat!($name, "\0").as_bytes()) }.map_err(|_| {
                format!("{} has no {}: drivers before r570 cannot suspend processes", name.display(), $name)
            })?
        };
    }
    Ok(Cuda {
        init: symbol!("cuInit"),
        version: symbol!("cuDriverGetVersion"),
        state: symbol!("cuCheckpointProcessGetState"),
        lock: symbol!("cuCheckpointProcessLock"),
        checkpoint: symbol!("cuCheckpointProcessCheckpoint"),
        restore: symbol!("cuCheckpointProcessRestore"),
        unlock: symbol!("cuCheckpointProcessUnlock"),
        _library: library,
    })
}

impl Cuda {
    /// The CUDA version that the driver speaks, e.g. (13, 0). Needs no GPU.
    #[must_use]
    pub fn version(&self) -> Option<(u32, u32)> {
        let mut version = 0;
        // SAFETY: it writes one number.
        let code = unsafe { (self.version)(&raw mut version) };
        let version = u32::try_from(version).ok().filter(|_| code == 0)?;
        Some((version / 1000, version % 1000 / 10))
    }

    /// Whether processes come back on another GPU, too: since CUDA 13.0.
    #[must_use]
    pub fn moves(&self) -> bool {
        self.version().is_some_and(|version| version >= (13, 0))
    }

    /// Attaches this process to the driver, which every call needs; it takes some seconds where GPUs sleep.
    ///
    /// # Errors
    /// In words: no GPU, or a driver that does not fit to its library.
    pub fn init(&self) -> Result<(), String> {
        // SAFETY: flags must be zero.
        match unsafe { (self.init)(0) } {
            0 => Ok(()),
            code => Err(format!("cuInit: {}", told(code))),
        }
    }

    fn call<Args>(
        name: &'static str,
        call: Call<Args>,
        pid: u32,
        args: &mut Args,
    ) -> Result<(), CheckpointError> {
        let fail = |code, why| Err(CheckpointError { call: name, pid, code, why });
        let Ok(number) = c_int::try_from(pid) else { return fail(None, "there is no such process".into()) };
        // SAFETY: the driver reads and writes the structure, which has the size that it expects.
        match unsafe { call(number, args) } {
            0 => Ok(()),
            code => fail(Some(code), told(code)),
        }
    }
}

/// What the driver's answer means here.
fn told(code: c_int) -> String {
    let meaning = match code {
        1 => {
            "invalid value: no CUDA process, GPUs that do not fit, or GPU memory shared with another process (CUDA IPC), which \
             drivers before r610 do not restore"
        }
        2 => "out of memory",
        3 => "not initialised: it does not use a GPU",
        100 => "no GPU",
        304 => "operating system error: the rights of root or of its own user are needed",
        400 => "invalid handle",
        401 => "not in the state for that",
        600 => "not ready within the time given",
        800 => "not permitted",
        801 => {
            "not supported: an MPS client, managed memory (cudaMallocManaged), or memory that another process shares"
        }
        803 => "the library does not fit to the driver",
        999 => "unknown error",
        _ => return format!("CUDA error {code}"),
    };
    format!("{meaning} (CUDA error {code})")
}

impl Checkpoint for Cuda {
    fn state(&self, pid: u32) -> Result<ProcessState, CheckpointError> {
        let mut state = -1;
        Self::call("state", self.state, pid, &mut state)?;
        Ok(match state {
            0 => ProcessState::Running,
            1 => ProcessState::Locked,
            2 => ProcessState::Checkpointed,
            // Of later drivers: checkpointing and restoring.
            4 | 5 => ProcessState::Between,
            _ => ProcessState::Failed,
        })
    }

    fn lock(&self, pid: u32, timeout: Duration) -> Result<(), CheckpointError> {
        // Zero would be no limit.
        let timeout_ms = c_uint::try_from(timeout.as_millis()).unwrap_or(c_uint::MAX).max(1);
        Self::call("lock", self.lock, pid, &mut LockArgs { timeout_ms, reserved0: 0, reserved1: [0; 7] })
    }

    fn checkpoint(&self, pid: u32) -> Result<(), CheckpointError> {
        Self::call("checkpoint", self.checkpoint, pid, &mut NoArgs { reserved: [0; 8] })
    }

    fn restore(&self, pid: u32, pairs: &[Pair]) -> Result<(), CheckpointError> {
        let uuid = |text: &str| {
            let none =
                |e: super::NotAGpu| CheckpointError { call: "restore", pid, code: None, why: e.to_string() };
            text.parse::<Uuid>().map(|uuid| uuid.0).map_err(none)
        };
        let pairs = pairs.iter().map(|pair| Ok(GpuPair { old: uuid(&pair.from)?, new: uuid(&pair.to)? }));
        let mut pairs: Vec<GpuPair> = pairs.collect::<Result<_, _>>()?;
        let mut args = RestoreArgs {
            pairs: if pairs.is_empty() { std::ptr::null_mut() } else { pairs.as_mut_ptr() },
            count: c_uint::try_from(pairs.len()).unwrap_or(c_uint::MAX),
            reserved: [0; 52 - size_of::<*mut GpuPair>()],
            reserved1: 0,
        };
        Self::call("restore", self.restore, pid, &mut args)
    }

    fn unlock(&self, pid: u32) -> Result<(), CheckpointError> {
        Self::call("unlock", self.unlock, pid, &mut NoArgs { reserved: [0; 8] })
    }
}
