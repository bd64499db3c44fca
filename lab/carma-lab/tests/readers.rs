//! Every option that names a file, with names that lead to no file: a device that never ends, a pipe that nobody
//! writes to, a file larger than any memory, gzip that unpacks to far more than it is.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failing helper may end the test")]

use flate2::{Compression, write::GzEncoder};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Exit code, then the words of the command line; `@` is the file.
const READERS: &[(i32, &str)] = &[
    (1, "gpumemnet train --family mlp --out w --data @"),
    (1, "dataset clean @"),
    (1, "kace predict --data t.csv --model @"),
    (1, "kace train -o m.json --data @"),
];

fn run(dir: &Path, words: &str, file: &str) -> Output {
    // More memory than this is what a reader without a bound takes; `timeout` ends one that waits.
    let script = "ulimit -v 4000000; exec timeout -k 5 120 \"$@\"";
    Command::new("sh")
        .args(["-c", script, "sh", env!("CARGO_BIN_EXE_carma-lab")])
        .args(words.split(' ').map(|word| if word == "@" { file } else { word }))
        .current_dir(dir)
        .env("HOME", dir)
        .stdin(Stdio::null())
        .output()
        .expect("sh can be run")
}

fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let status = Command::new("mkfifo").arg(dir.path().join("pipe")).status().unwrap();
    assert!(status.success());
    std::fs::File::create(dir.path().join("huge")).unwrap().set_len(1 << 40).unwrap();
    dir
}

#[test]
fn devices_and_pipes_are_refused_by_every_reader() {
    let dir = folder();
    let mut wrong = Vec::new();
    for (code, words) in READERS {
        for (file, kind) in [("/dev/zero", "a device"), ("pipe", "a pipe")] {
            let output = run(dir.path(), words, file);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let named = said.contains(file) && said.contains(&format!("is {kind}, not a regular file"));
            if output.status.code() != Some(*code) || !named {
                wrong.push(format!("{words} with {file}: {:?} {said}", output.status));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_file_of_a_tebibyte_is_refused_by_every_reader() {
    let dir = folder();
    let mut wrong = Vec::new();
    for (code, words) in READERS {
        let output = run(dir.path(), words, "huge");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let bounded = said.contains("has 1024 GiB, at most ") && said.contains("are read of such a file");
        if output.status.code() != Some(*code) || !said.contains("huge") || !bounded {
            wrong.push(format!("{words}: {:?} {said}", output.status));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn gzip_that_unpacks_without_end_is_refused() {
    let dir = folder();
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    for _ in 0..300 {
        packed.write_all(&[b'\n'; 1 << 20]).unwrap();
    }
    std::fs::write(dir.path().join("bomb.gz"), packed.finish().unwrap()).unwrap();
    for words in
        ["dataset clean @", "gpumemnet train --family mlp --out w --data @", "kace train -o m.json --data @"]
    {
        let output = run(dir.path(), words, "bomb.gz");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{words}: {said}");
        assert!(said.contains("bomb.gz: unpacks to more than 256 MiB"), "{words}: {said}");
    }
}
