//! The checks of the programs in `bench/`, which are in Python and stand beside them (`test_*.py`): `CARMA_TEST_PYTHON`, or
//! `python3`. Without one they say so and pass.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::Command;

#[test]
fn programs_of_the_bench_do_as_they_say() {
    let python = std::env::var("CARMA_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
    if !Command::new(&python).arg("--version").output().is_ok_and(|out| out.status.success()) {
        println!("SKIPPED: no Python; CARMA_TEST_PYTHON names one");
        return;
    }
    let bench = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench");
    for folder in ["", "trust", "h200"] {
        let folder = bench.join(folder);
        let run = Command::new(&python)
            .args(["-B", "-m", "unittest", "discover", "-s"])
            .arg(&folder)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&run.stderr);
        assert!(run.status.success() && !said.contains("Ran 0 tests"), "{}: {said}", folder.display());
    }
}
