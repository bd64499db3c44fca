//! The checkpoint calls of a `libcuda.so` for tests: suspending is tried where there is no GPU.
//!
//! All that it knows is in one JSON file ([`State`]), `fake-cuda.json` beside the library file, which a call reads and
//! writes as one: several processes may call. A test can let a call fail, hang, kill its caller or the process that it is
//! about. [`stage`] makes a folder with both.

#![expect(unsafe_code, reason = "a C library is imitated: exported symbols and pointers from the caller")]

mod abi;

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// The name under which every CUDA program asks the dynamic loader for the library.
pub const LIBRARY_NAME: &str = "libcuda.so.1";

/// The name of the state file beside the library.
pub const STATE_NAME: &str = "fake-cuda.json";

/// Processes that use CUDA, and what goes wrong.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct State {
    /// `cuDriverGetVersion`; 0: 13000.
    pub version: i32,
    /// By pid.
    pub processes: BTreeMap<u32, Process>,
    /// By the exact symbol.
    pub faults: BTreeMap<String, Fault>,
    /// Every call that was made, with its pid.
    pub calls: Vec<(String, u32)>,
}

/// A process that uses CUDA.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Process {
    /// `CUprocessState`: 0 running, 1 locked, 2 checkpointed, 3 failed.
    pub state: i32,
    /// The pairs of the last restore, as hexadecimal digits.
    pub pairs: Vec<(String, String)>,
    /// It is an MPS client: it cannot be locked.
    pub mps: bool,
}

/// How a function misbehaves. It hangs first, then kills, then answers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Fault {
    /// The only process concerned; `null`: all.
    pub pid: Option<u32>,
    /// The `CUresult` to return, e.g. 2 out of memory, 600 not ready, 999 unknown.
    #[serde(rename = "return")]
    pub code: Option<i32>,
    /// Milliseconds to hang.
    pub hang_ms: u64,
    /// Whether the process dies that the call is about.
    pub kills_process: bool,
    /// Whether the caller dies.
    pub kills_caller: bool,
    /// Whether the call has its effect all the same, before anything goes wrong.
    pub takes_effect: bool,
    /// How many calls are concerned from now on; 0: all.
    pub times: u32,
}

/// The library that cargo built together with the running program.
///
/// # Errors
/// When it does not lie in the target folder: the program was moved, or built otherwise.
pub fn built_library() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    // cargo builds a dependency's library into `deps`, where a test's binary lies too.
    program
        .ancestors()
        .skip(1)
        .take(2)
        .flat_map(|folder| [folder.to_owned(), folder.join("deps")])
        .filter(|folder| folder.ends_with("deps"))
        .map(|folder| folder.join("libfake_cuda.so"))
        .find(|library| library.is_file())
        .ok_or_else(|| {
            let what = format!("no deps/libfake_cuda.so near {}", program.display());
            Error::new(ErrorKind::NotFound, what)
        })
}

/// Puts a copy of the library, named [`LIBRARY_NAME`], and its state file into `folder`. Returns the library's path.
///
/// # Errors
/// When the library was not built or the folder cannot be written.
pub fn stage(folder: &Path, state: &State) -> Result<PathBuf> {
    let library = folder.join(LIBRARY_NAME);
    std::fs::copy(built_library()?, &library)?;
    std::fs::write(folder.join(STATE_NAME), "{}")?;
    change(folder, |now| *now = state.clone())?;
    Ok(library)
}

/// Changes, as one, the state of the library staged in `folder`, and returns what it was before.
///
/// # Errors
/// When the folder cannot be read or written.
pub fn change(folder: &Path, change: impl FnOnce(&mut State)) -> Result<State> {
    with(&folder.join(STATE_NAME), |state| {
        let before = state.clone();
        change(state);
        before
    })
}

/// Reads and writes the state file under a lock.
fn with<T>(path: &Path, change: impl FnOnce(&mut State) -> T) -> Result<T> {
    let mut file = File::options().read(true).write(true).open(path)?;
    file.lock()?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let mut state = serde_json::from_str(&text).map_err(Error::other)?;
    let result = change(&mut state);
    file.seek(SeekFrom::Start(0))?;
    file.set_len(0)?;
    file.write_all(&serde_json::to_vec_pretty(&state).map_err(Error::other)?)?;
    Ok(result)
}
