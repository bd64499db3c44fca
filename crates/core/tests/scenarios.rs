//! Scenarios: scripts against the real state and plan, whose output is reviewed as text.
//!
//! Each `scenarios/NAME.txt` is played and must print what `scenarios/NAME.out` holds.
//! `CARMA_BLESS=1 cargo test -p carma-core --test scenarios` accepts the new output, which then
//! wants reading; with `CI=true` nothing is ever accepted. The language: `support/script.rs`.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test: it reads scripts from files, which the core does not, and fails where it must"
)]

#[path = "support/diff.rs"]
mod diff;
#[path = "support/script.rs"]
mod script;

use std::path::{Path, PathBuf};

fn scripts() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let mut found: Vec<PathBuf> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "txt"))
        .collect();
    found.sort();
    found
}

#[test]
fn every_scenario_prints_what_was_reviewed() {
    let bless = carma_bless::wanted();
    let scripts = scripts();
    assert!(!scripts.is_empty(), "no scenario was found");
    let mut failures = Vec::new();
    for path in scripts {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).unwrap();
        let printed = match script::play(&text) {
            Ok(printed) => printed,
            Err(error) => {
                failures.push(format!("{name}.txt:{error}"));
                continue;
            }
        };
        let expected_at = path.with_extension("out");
        let expected = std::fs::read_to_string(&expected_at).unwrap_or_default();
        if printed == expected {
            continue;
        }
        if bless {
            std::fs::write(&expected_at, &printed).unwrap();
        } else {
            let diff = diff::lines(&expected, &printed);
            failures.push(format!(
                "{name}: - expected in {name}.out, + printed now (CARMA_BLESS=1 accepts it)\n{diff}"
            ));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

#[test]
fn a_script_that_makes_no_sense_is_refused_by_line() {
    for (text, wanted) in [
        ("gpus 1x40G\nfrobnicate", "2: no such command: frobnicate"),
        ("gpus 40", "1: "),
        ("policy oracle-rr", "1: there is no policy oracle-rr"),
        ("gpus 1x40G\nstart 7", "2: job 7 has no placement"),
    ] {
        let error = script::play(text).unwrap_err();
        assert!(error.starts_with(wanted), "{text:?} gave {error:?}");
    }
}
