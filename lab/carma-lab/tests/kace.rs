//! `carma lab kace`: trains on a user's table, writes a model, refuses what is wrong, says where.

#![allow(clippy::unwrap_used, reason = "a test")]

use serde_json::Value;
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Output};

fn carma(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_carma-lab")).current_dir(folder).args(args).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Pairs whose throughput follows from what is known of each.
fn write_table(path: &Path) {
    let mut text = String::from(
        "workload1,workload2,w1throughput,w2throughput,w1sm%,w2sm%,w1exclusive_throughput,w2exclusive_throughput\n",
    );
    for i in 0..40 {
        let (a, b) = (f64::from(i % 7) + 1.0, f64::from(i % 11) + 1.0);
        let row = (0.5 * a, 0.5 * b, 10.0 * a, 8.0 * b);
        writeln!(text, "a{i}_batch2-inf,b{i}_batch2-inf,{},{},{},{},{a},{b}", row.0, row.1, row.2, row.3)
            .unwrap();
    }
    std::fs::write(path, text).unwrap();
}

#[test]
fn trains_on_a_users_table() {
    let dir = tempfile::tempdir().unwrap();
    write_table(&dir.path().join("t.csv"));
    for model in ["lr", "rf", "nn"] {
        let args = ["kace", "train", "--data", "t.csv", "-o", "m.json", "--model", model, "--json"];
        let made = carma(dir.path(), &args);
        assert!(made.status.success(), "{}", stderr(&made));
        let made: Value = serde_json::from_slice(&made.stdout).unwrap();
        assert_eq!(
            (&made["version"], &made["rows"], &made["learned_from"]),
            (&1.into(), &40.into(), &40.into())
        );
        assert!(made["r2_on_its_own_rows"].as_f64().unwrap() > 0.9, "{model}: {made}");
        let file: Value = serde_json::from_slice(&std::fs::read(dir.path().join("m.json")).unwrap()).unwrap();
        assert_eq!(
            (&file["version"], &file["format"], &file["learned_from"]),
            (&1.into(), &"carma-kace".into(), &"t.csv".into())
        );
    }
}

#[test]
fn predicts_with_its_model_and_refuses_others() {
    let dir = tempfile::tempdir().unwrap();
    write_table(&dir.path().join("t.csv"));
    assert!(carma(dir.path(), &["kace", "train", "--data", "t.csv", "-o", "m.json"]).status.success());
    // Columns in another order, throughput not measured.
    let table = "w1exclusive_throughput,w2exclusive_throughput,workload1,workload2,w1sm%,w2sm%\n\
        2,3,a,b,20,24\n7,9,a,c,70,72\n1,1,b,c,10,8\n";
    std::fs::write(dir.path().join("c.csv"), table).unwrap();
    let args = ["kace", "predict", "--model", "m.json", "--data", "c.csv", "--target", "a", "--json"];
    let predicted = carma(dir.path(), &args);
    assert!(predicted.status.success(), "{}", stderr(&predicted));
    let predicted: Value = serde_json::from_slice(&predicted.stdout).unwrap();
    let rows = predicted["collocations"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[0]["workloads"], serde_json::json!(["a", "c"]));
    assert!((rows[0]["predicted_sum"].as_f64().unwrap() - 8.0).abs() < 0.1, "{predicted}");
    let model = std::fs::read_to_string(dir.path().join("m.json")).unwrap();
    std::fs::write(dir.path().join("m.json"), model.replacen("\"version\":1", "\"version\":7", 1)).unwrap();
    let refused = carma(dir.path(), &args);
    assert_eq!(refused.status.code(), Some(1));
    let said = stderr(&refused);
    assert!(
        said.contains("m.json: a model of version 7, this carma reads version 1; train it again"),
        "{said}"
    );
}

#[test]
fn a_model_with_senseless_weights_gives_no_null() {
    let dir = tempfile::tempdir().unwrap();
    write_table(&dir.path().join("t.csv"));
    assert!(carma(dir.path(), &["kace", "train", "--data", "t.csv", "-o", "m.json"]).status.success());
    let mut model: Value =
        serde_json::from_slice(&std::fs::read(dir.path().join("m.json")).unwrap()).unwrap();
    model["trained"]["target_scale"] = serde_json::json!({"mean": [1.7e308], "deviation": [1.7e308]});
    std::fs::write(dir.path().join("m.json"), model.to_string()).unwrap();
    let refused = carma(dir.path(), &["kace", "predict", "--model", "m.json", "--data", "t.csv", "--json"]);
    assert_eq!((refused.status.code(), refused.stdout.len()), (Some(1), 0));
    let said = stderr(&refused);
    assert!(said.contains("m.json: a") && said.contains("no finite number"), "{said}");
}

#[cfg(unix)]
#[test]
fn what_never_ends_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    write_table(&dir.path().join("t.csv"));
    for (args, said) in [
        (
            ["kace", "predict", "--model", "/dev/zero", "--data", "t.csv"],
            "/dev/zero: is a device, not a regular file",
        ),
        (
            ["kace", "train", "-o", "m.json", "--data", "/dev/zero"],
            "/dev/zero: is a device, not a regular file",
        ),
    ] {
        let refused = carma(dir.path(), &args);
        assert_eq!(refused.status.code(), Some(1));
        assert!(stderr(&refused).contains(said), "{}", stderr(&refused));
    }
}

#[test]
fn defaults_are_said_once() {
    let help = carma(Path::new("."), &["kace", "train", "--help"]);
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    assert_eq!(help.matches("[default: honest]").count(), 1, "{help}");
}

#[test]
fn says_which_cell_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let table = "workload1,workload2,w1throughput,w2throughput,w1sm%,w2sm%\na,b,1,2,3,4\na,c,1,2,,4\n";
    std::fs::write(dir.path().join("t.csv"), table).unwrap();
    let refused = carma(dir.path(), &["kace", "train", "--data", "t.csv", "-o", "m.json"]);
    assert_eq!(refused.status.code(), Some(1));
    let said = stderr(&refused);
    assert!(said.contains("t.csv, row 2, column `w1sm%`: empty; fill it in, or delete the row"), "{said}");
    assert!(!dir.path().join("m.json").exists());
}

#[test]
fn eval_says_what_is_absent() {
    let dir = tempfile::tempdir().unwrap();
    let none = carma(dir.path(), &["kace", "eval", "--data", "nowhere"]);
    assert_eq!(none.status.code(), Some(2));
    assert!(stderr(&none).contains("nowhere is no folder"), "{}", stderr(&none));
    let empty = carma(dir.path(), &["kace", "eval", "--data", "."]);
    assert_eq!(empty.status.code(), Some(1));
    assert!(stderr(&empty).contains("kace_reported_results.csv"), "{}", stderr(&empty));
}
