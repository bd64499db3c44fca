//! `carma lab gpumemnet`: trains, writes weights, reads them back, compares, refuses.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, its helpers too"
)]

use serde_json::Value;
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Output};

fn carma(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_carma-lab")).current_dir(folder).args(args).output().unwrap()
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A small data set whose memory follows a rule.
fn write_data(path: &Path) {
    let mut text = String::from(
        "id,family,batch_size,optimizer,status,cap_mib,reserved_mib,context_mib,params,layer_list\n",
    );
    for i in 0..90_u64 {
        let (width, batch) = (128 << (i % 4), 64 * (1 + (i * 7) % 31));
        let params = width * width;
        let mib = 4 + ((20 * params + 8 * batch * width) >> 20);
        let status = if i % 9 == 4 { "OOM" } else { "SUCCESSFUL" };
        writeln!(
            text,
            "t{i},mlp,{batch},adam,{status},{mib},{mib},400,{params},Linear:{width}:{params} ReLU:{width}:0"
        )
        .unwrap();
    }
    std::fs::write(path, text).unwrap();
}

#[test]
fn trains_and_reads_its_weights_back() {
    let dir = tempfile::tempdir().unwrap();
    write_data(&dir.path().join("d.csv"));
    let train = |out: &str| {
        carma(dir.path(), &["gpumemnet", "train", "--data", "d.csv", "--epochs", "3", "--out", out, "--json"])
    };
    let made = json(&train("a.net"));
    assert_eq!(made["version"], 1);
    assert_eq!(
        (made["data"][0]["rows"].as_u64(), made["data"][0]["lower_bounds"].as_u64()),
        (Some(90), Some(10))
    );
    assert_eq!(made["rows"].as_array().unwrap().len(), 3, "a row for each width of classes");
    json(&train("b.net"));
    let read = |name: &str| std::fs::read(dir.path().join(name)).unwrap();
    assert_eq!(read("a.net"), read("b.net"), "the same seed gives the same bytes");

    // An empty folder: nothing to compare with, said so.
    std::fs::create_dir(dir.path().join("none")).unwrap();
    let eval = |file: &str| {
        carma(dir.path(), &["gpumemnet", "eval", "--stored", "--data", "none", "--weights", file, "--json"])
    };
    let report = json(&eval("a.net"));
    let skipped = report["skipped"].to_string();
    assert!(skipped.contains("authors' weights") && skipped.contains("mlp_data_step1.csv"), "{skipped}");
    assert_eq!(report["retrained"], false);

    let mut newer = read("a.net");
    newer[16] = 77;
    std::fs::write(dir.path().join("newer.net"), newer).unwrap();
    let refused = eval("newer.net");
    assert!(!refused.status.success() && stderr(&refused).contains("version 77"), "{}", stderr(&refused));
}

#[test]
fn trains_the_folds_when_asked_for_a_comparison() {
    let dir = tempfile::tempdir().unwrap();
    // Our own measurements are found below the folder where it is started; others' are not in this one.
    let others = dir.path().display().to_string();
    let args = [
        "--data",
        &others,
        "--family",
        "mlp",
        "--ensemble",
        "mlp",
        "--epochs",
        "1",
        "--folds",
        "2",
        "--json",
    ];
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let report = json(&carma(&root, &[&["gpumemnet", "eval"], &args[..]].concat()));
    assert_eq!(report["retrained"], true);
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 3, "a row for each width of classes: {rows:?}");
    for row in rows {
        assert_eq!((&row["data"], &row["weights"]), (&"dataset-mlp.csv".into(), &"retrained".into()));
        assert_eq!(row["folds"], 2);
        assert!(row["under"]["mean"].as_f64().is_some_and(|u| (0.0..1.0).contains(&u)));
    }
    let skipped = report["skipped"].to_string();
    assert!(skipped.contains("mlp_data_step1.csv") && skipped.contains("mlp_data_step2.csv"), "{skipped}");
}

#[test]
fn refuses_what_makes_no_sense() {
    let dir = tempfile::tempdir().unwrap();
    write_data(&dir.path().join("d.csv"));
    for (args, word) in [
        (&["--family", "cnn", "--data", "d.csv"][..], "not cnn"),
        (&["--data", "d.csv", "--data", "d.csv"], "one --data"),
        (&["--data", "no.csv"], "no.csv"),
        (&["--kind", "dnnperf", "--classes", "8", "--data", "d.csv"], "none of --classes"),
    ] {
        let output = carma(dir.path(), &[&["gpumemnet", "train", "--out", "x.net"], args].concat());
        assert!(!output.status.success() && stderr(&output).contains(word), "{word}: {}", stderr(&output));
        assert!(!dir.path().join("x.net").exists());
    }
}

#[test]
fn a_question_gets_an_answer_or_a_reason() {
    let question = r#"{"ensemble":"mlp","model":{"family":"mlp","layers":[{"kind":"linear","activations":8,"params":72},
        {"kind":{"function":6},"activations":8,"params":0}],"params":72,"printed_params":null},"task":{"mode":"train",
        "batch_size":8,"seq_len":null,"samples":null,"optimizer":"adam","precision":"fp32","attention":"sdpa",
        "gradient_checkpointing":false,"lora":null,"channels_last":false,"cudnn_benchmark":false,"gpus":1,
        "parallel":"none"}}"#;
    let ask = |folder: &Path, question: &str| {
        let mut child = Command::new(env!("CARGO_BIN_EXE_carma-lab"))
            .args(["gpumemnet", "ask", "--weights"])
            .arg(folder)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), question.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    };
    let refused = json(&ask(Path::new("/nowhere"), question));
    assert!(refused["refused"]["place"].as_str().unwrap().contains("mlp4mlp.ckpt"), "{refused}");
    let nonsense = ask(Path::new("/nowhere"), "{}");
    assert_eq!(nonsense.status.code(), Some(2), "{}", stderr(&nonsense));
    let weights = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/gpumemnet/weights");
    if !weights.is_dir() {
        eprintln!("skipped: ../shared/data/gpumemnet/weights is absent");
        return;
    }
    // The first class of the authors' perceptrons.
    assert_eq!(json(&ask(&weights, question))["estimate"]["use_mib"], 2000);
}
