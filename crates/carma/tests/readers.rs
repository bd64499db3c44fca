//! Every option that names a file, with names that lead to no file: a device that never ends, a pipe that nobody
//! writes to, a file larger than any memory.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failing helper may end the test")]

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Exit code, then the words of the command line; `@` is the file.
const READERS: &[(i32, &str)] = &[
    (2, "estimate --gpu H200 --batch-size 1 --summary @"),
    (2, "estimate --gpu H200 --batch-size 1 --hf-config @"),
    (2, "estimate --gpu H200 --batch-size 1 --safetensors @"),
    (2, "estimate --gpu H200 --batch-size 1 --onnx @"),
    (2, "estimate --gpu H200 --batch-size 1 --trace @"),
    (2, "submit --file @"),
    (2, "submit --rad @"),
    (2, "submit --summary @ --batch-size 1 -- true"),
    (2, "submit --trace @ -- true"),
    (2, "run --rad @"),
    (2, "config check @"),
    (2, "serve --config @ --gpus virtual:1xH200"),
    (2, "simulate --cluster 1xH200 --policy exclusive --trace @"),
    (2, "simulate --cluster 1xH200 --policy exclusive --trace t.csv --catalogue @"),
    (2, "simulate --cluster 1xH200 --policy exclusive --trace t.csv --gpu-model @"),
    (2, "trace show @"),
    (2, "trace import philly -o o.csv @"),
    (2, "report -o o.html @"),
    (2, "predict --group a,b --profiles @"),
    (2, "predict --group a,b --profiles p.json --model @"),
    (2, "predict --group a,b --profiles p.json --kace-model @"),
    (2, "predict --group a,b --profiles p.json --measured @"),
    (2, "predict --model m.json --observe @"),
    (2, "bench interference -o b.json --tasks @"),
    (2, "bench interference -o b.json --tasks tasks.toml --groups @"),
];

fn run(dir: &Path, words: &str, file: &str) -> Output {
    // More memory than this is what a reader without a bound takes; `timeout` ends one that waits.
    let script = "ulimit -v 4000000; exec timeout -k 5 120 \"$@\"";
    Command::new("sh")
        .args(["-c", script, "sh", env!("CARGO_BIN_EXE_carma")])
        .args(words.split(' ').map(|word| if word == "@" { file } else { word }))
        .current_dir(dir)
        .env("CARMA_SOCKET", dir.join("none.sock"))
        .env("HOME", dir)
        .stdin(Stdio::null())
        .output()
        .expect("sh can be run")
}

fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write("t.csv", "job,arrival_s,duration_s,gpus\n1,0,10,1\n");
    write("p.json", r#"{"version":1,"tasks":[{"name":"a","rate":1},{"name":"b","rate":2}]}"#);
    write("tasks.toml", "[[task]]\nname = \"a\"\ncommand = [\"true\"]\n");
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
        // Traces and weights are read piece by piece: those say what they found in the first one.
        let piecewise = said.contains("the line is longer")
            || said.contains("NUL byte")
            || words.contains("--safetensors");
        let bounded = said.contains("has 1024 GiB, at most ") && said.contains("are read of such a file");
        if output.status.code() != Some(*code) || !said.contains("huge") || !(bounded || piecewise) {
            wrong.push(format!("{words}: {:?} {said}", output.status));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn an_empty_device_is_an_empty_file() {
    let dir = folder();
    let output = run(dir.path(), "config check @", "/dev/null");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}
