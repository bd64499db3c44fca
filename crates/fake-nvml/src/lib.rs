//! A `libnvidia-ml.so` for tests: the real NVML path runs where there is no GPU.
//!
//! It answers from one JSON file ([`State`]), read anew at every call, so that a test can starve
//! memory, hang a call, drop a GPU off the bus or refuse permission while the program under test
//! runs. The file is the one that the environment variable `FAKE_NVML_STATE` names or, without it,
//! `fake-nvml.json` beside the library file. [`stage`] makes a folder with both: each such copy is
//! a library of its own to the dynamic loader, so tests in one process don't meet.

#![expect(unsafe_code, reason = "a C library is imitated: exported symbols and pointers from the caller")]

mod abi;
pub mod state;

pub use state::{FakeGpm, FakeGpu, FakeMig, FakeProcess, Fault, State};

use std::io::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};

/// The name under which every NVML client asks the dynamic loader for the library.
pub const LIBRARY_NAME: &str = "libnvidia-ml.so.1";

/// The name of the state file beside the library.
pub const STATE_NAME: &str = "fake-nvml.json";

/// The library that cargo built together with the running program (a test, an example or a
/// binary of a package that depends on this crate).
///
/// # Errors
/// When it does not lie in the target folder: the program was moved, or built otherwise.
pub fn built_library() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    // cargo builds a dependency's library into `deps`, where a test's binary lies too, and copies
    // only what was asked for by name one folder up: there may lie an older one.
    program
        .ancestors()
        .skip(1)
        .take(2)
        .flat_map(|folder| [folder.to_owned(), folder.join("deps")])
        .filter(|folder| folder.ends_with("deps"))
        .map(|folder| folder.join("libfake_nvml.so"))
        .find(|library| library.is_file())
        .ok_or_else(|| {
            let what = format!("no deps/libfake_nvml.so near {}", program.display());
            Error::new(ErrorKind::NotFound, what)
        })
}

/// Puts a copy of the library, named [`LIBRARY_NAME`], and its state file into `folder`. Returns
/// the library's path: for a probe's options, or its folder for `LD_LIBRARY_PATH`. Later states
/// go to the same place with [`set_state`].
///
/// # Errors
/// When the library was not built or the folder cannot be written.
pub fn stage(folder: &Path, state: &State) -> Result<PathBuf> {
    let library = folder.join(LIBRARY_NAME);
    std::fs::copy(built_library()?, &library)?;
    set_state(folder, state)?;
    Ok(library)
}

/// Replaces, atomically, the state of the library staged in `folder`.
///
/// # Errors
/// When the folder cannot be written.
pub fn set_state(folder: &Path, state: &State) -> Result<()> {
    state.write(&folder.join(STATE_NAME))
}
