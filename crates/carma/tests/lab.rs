//! `carma lab` hands over to the second binary: beside carma, else on the PATH; and says how to get it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

/// carma alone in a folder, so that only what a test puts beside it is there.
fn alone(dir: &Path) -> Command {
    let carma = dir.join("carma");
    fs::hard_link(env!("CARGO_BIN_EXE_carma"), &carma)
        .or_else(|_| fs::copy(env!("CARGO_BIN_EXE_carma"), &carma).map(drop))
        .unwrap();
    let mut command = Command::new(carma);
    command.env("PATH", "/usr/bin:/bin");
    command
}

fn script(file: &Path, text: &str) {
    fs::write(file, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn words_and_the_exit_code_go_through() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut carma = alone(dir.path());
    script(&dir.path().join("carma-lab"), "echo \"$#: $@\"; exit 7");
    let output = carma.args(["lab", "kace", "eval", "--json", "-x", "--help"]).output().unwrap();
    assert_eq!(texts(&output), ("5: kace eval --json -x --help\n".into(), String::new()));
    assert_eq!(output.status.code(), Some(7));
}

#[test]
fn it_is_found_on_the_path_and_its_absence_is_explained() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let absent = alone(dir.path()).arg("lab").output().unwrap();
    let (_, said) = texts(&absent);
    assert_eq!(absent.status.code(), Some(1));
    assert!(said.contains("neither beside carma nor on the PATH") && said.contains("cargo build"), "{said}");
    let elsewhere = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    script(&elsewhere.path().join("carma-lab"), "echo here");
    fs::remove_file(dir.path().join("carma")).unwrap();
    let output = alone(dir.path()).arg("lab").env("PATH", elsewhere.path()).output().unwrap();
    assert_eq!(texts(&output).0, "here\n");
}

#[test]
fn the_authors_networks_are_asked_there() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut carma = alone(dir.path());
    let estimate = r#"{"estimate":{"need_mib":8000,"use_mib":16000,"upper_mib":16000,"tier":"formula","source":"s","family":"mlp","reasons":["class 1"]}}"#;
    let lab = format!("cat > {}/asked; echo \"$@\" >> {0}/asked; echo '{estimate}'", dir.path().display());
    script(&dir.path().join("carma-lab"), &lab);
    let summary = dir.path().join("m.txt");
    fs::write(&summary, SUMMARY).unwrap();
    let words = ["estimate", "--gpu", "H200", "--batch-size", "8", "--estimator", "gpumemnet-published"];
    carma.args(words).arg("--summary").arg(&summary).args(["--gpumemnet-weights", "/w", "--json"]);
    let (said, errors) = texts(&carma.output().unwrap());
    assert!(said.contains("\"use_mib\": 16000") && said.contains("class 1"), "{said}{errors}");
    let asked = fs::read_to_string(dir.path().join("asked")).unwrap();
    assert!(
        asked.contains("gpumemnet ask --weights /w") && asked.contains("\"ensemble\":\"mlp\""),
        "{asked}"
    );
    // One that breaks is no answer, and is named.
    script(&dir.path().join("carma-lab"), "echo nonsense");
    let (_, errors) = texts(&carma.output().unwrap());
    assert!(errors.contains("carma-lab: its answer is not understood"), "{errors}");
}

const SUMMARY: &str = "\
----------------------------------------------------------------
        Layer (type)               Output Shape         Param #
================================================================
            Linear-1                 [-1, 2048]       4,196,352
              ReLU-2                 [-1, 2048]               0
            Linear-3                   [-1, 10]          20,490
================================================================
Total params: 4,216,842
----------------------------------------------------------------
";
