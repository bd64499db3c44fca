//! The exported C functions.

use crate::{Fault, State, with};
use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const SUCCESS: c_int = 0;
const INVALID_VALUE: c_int = 1;
const NOT_INITIALISED: c_int = 3;
const ILLEGAL_STATE: c_int = 401;
const NOT_SUPPORTED: c_int = 801;
const UNKNOWN: c_int = 999;

static INITIALISED: AtomicBool = AtomicBool::new(false);

/// The state file lies beside this library.
fn state_path() -> Option<PathBuf> {
    let address = state_path as fn() -> Option<PathBuf> as *const c_void;
    // SAFETY: dladdr only looks the address up, and its strings live as long as this library.
    let name = unsafe {
        let mut found: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(address, &raw mut found) == 0 || found.dli_fname.is_null() {
            return None;
        }
        CStr::from_ptr(found.dli_fname)
    };
    Some(Path::new(OsStr::from_bytes(name.to_bytes())).with_file_name(crate::STATE_NAME))
}

/// One call: its fault, if it has one, and its effect.
fn call(name: &str, pid: c_int, effect: impl FnOnce(&mut State, u32) -> c_int) -> c_int {
    let Ok(number) = u32::try_from(pid) else { return INVALID_VALUE };
    let Some(path) = state_path() else { return UNKNOWN };
    if !INITIALISED.load(Ordering::Acquire) {
        return NOT_INITIALISED;
    }
    let begin = |state: &mut State| {
        state.calls.push((name.to_owned(), number));
        let concerned = |fault: &&mut Fault| fault.pid.is_none_or(|pid| pid == number);
        let Some(fault) = state.faults.get_mut(name).filter(concerned) else {
            return (Fault::default(), effect(state, number));
        };
        let told = fault.clone();
        if fault.times > 0 {
            fault.times -= 1;
            if fault.times == 0 {
                state.faults.remove(name);
            }
        }
        let code = if told.code.is_none() || told.takes_effect { effect(state, number) } else { SUCCESS };
        (told, code)
    };
    let Ok((fault, code)) = with(&path, begin) else { return UNKNOWN };
    std::thread::sleep(Duration::from_millis(fault.hang_ms));
    // SAFETY: kill takes numbers; tests name processes of their own.
    unsafe {
        if fault.kills_process {
            libc::kill(pid, libc::SIGKILL);
        }
        if fault.kills_caller {
            libc::kill(libc::getpid(), libc::SIGKILL);
        }
    }
    fault.code.unwrap_or(code)
}

/// From one state of a process to another.
fn change(name: &str, pid: c_int, from: c_int, to: c_int) -> c_int {
    call(name, pid, |state, pid| {
        let Some(process) = state.processes.get_mut(&pid) else { return INVALID_VALUE };
        if process.mps {
            return NOT_SUPPORTED;
        }
        if process.state != from {
            return ILLEGAL_STATE;
        }
        process.state = to;
        SUCCESS
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuInit(flags: c_uint) -> c_int {
    if flags != 0 {
        return INVALID_VALUE;
    }
    INITIALISED.store(true, Ordering::Release);
    call("cuInit", 0, |_, _| SUCCESS)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> c_int {
    let Some(path) = state_path() else { return UNKNOWN };
    let Ok(told) = with(&path, |state| state.version) else { return UNKNOWN };
    // SAFETY: the caller gives a place for a number.
    unsafe { *version = if told == 0 { 13_000 } else { told } };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCheckpointProcessGetState(pid: c_int, state: *mut c_int) -> c_int {
    call("cuCheckpointProcessGetState", pid, |known, pid| {
        let Some(process) = known.processes.get(&pid) else { return INVALID_VALUE };
        // SAFETY: the caller gives a place for a number.
        unsafe { *state = process.state };
        SUCCESS
    })
}

/// `CUcheckpointLockArgs`, in words of 32 bits.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuCheckpointProcessLock(pid: c_int, args: *const [u32; 16]) -> c_int {
    // SAFETY: the caller gives the structure.
    let words = unsafe { *args };
    if words[1..].iter().any(|word| *word != 0) {
        return INVALID_VALUE;
    }
    change("cuCheckpointProcessLock", pid, 0, 1)
}

/// `CUcheckpointCheckpointArgs`.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuCheckpointProcessCheckpoint(pid: c_int, args: *const [u64; 8]) -> c_int {
    // SAFETY: the caller gives the structure.
    if unsafe { *args }.iter().any(|word| *word != 0) {
        return INVALID_VALUE;
    }
    change("cuCheckpointProcessCheckpoint", pid, 1, 2)
}

/// `CUcheckpointRestoreArgs`.
#[repr(C)]
struct Restore {
    pairs: *const [[u8; 16]; 2],
    count: c_uint,
    reserved: [c_char; 44],
    reserved1: u64,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCheckpointProcessRestore(pid: c_int, args: *const Restore) -> c_int {
    // SAFETY: the caller gives the structure, and as many pairs as it says.
    let pairs = unsafe {
        let args = &*args;
        if args.reserved.iter().any(|byte| *byte != 0) || args.reserved1 != 0 {
            return INVALID_VALUE;
        }
        if args.pairs.is_null() {
            &[][..]
        } else {
            std::slice::from_raw_parts(args.pairs, args.count as usize)
        }
    };
    let hex = |uuid: &[u8; 16]| uuid.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let pairs: Vec<_> = pairs.iter().map(|[old, new]| (hex(old), hex(new))).collect();
    call("cuCheckpointProcessRestore", pid, |state, pid| {
        let Some(process) = state.processes.get_mut(&pid) else { return INVALID_VALUE };
        if process.state != 2 {
            return ILLEGAL_STATE;
        }
        process.state = 1;
        process.pairs = pairs;
        SUCCESS
    })
}

/// `CUcheckpointUnlockArgs`.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuCheckpointProcessUnlock(pid: c_int, args: *const [u64; 8]) -> c_int {
    // SAFETY: the caller gives the structure.
    if unsafe { *args }.iter().any(|word| *word != 0) {
        return INVALID_VALUE;
    }
    change("cuCheckpointProcessUnlock", pid, 1, 0)
}
