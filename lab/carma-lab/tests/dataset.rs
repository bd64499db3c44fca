//! `carma lab dataset`: makes rows, has them measured by workers that misbehave, checks and draws them. Measuring needs
//! Python (`CARMA_TEST_PYTHON`, or `python3`), a rehearsal of it PyTorch (`CARMA_TEST_TORCH_PYTHON`): without them
//! those tests say so and pass.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test fails by panicking, its helpers too"
)]

use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn carma(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_carma-lab"))
        .current_dir(folder)
        .env("FAKE_MARKS", folder)
        .args(args)
        .output()
        .unwrap()
}

/// `rows.csv` of the folder, measured into `out.csv`.
fn measure(folder: &Path, python: &str, options: &[&str]) -> Output {
    carma(
        folder,
        &[&["dataset", "measure", "rows.csv", "-o", "out.csv", "--python", python], options].concat(),
    )
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn good(output: &Output) -> String {
    assert!(output.status.success(), "{}", stderr(output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A Python that can import a module, or a line that says there is none.
fn python(variable: &str, module: &str) -> Option<String> {
    let python = std::env::var(variable).unwrap_or_else(|_| "python3".into());
    let there = Command::new(&python)
        .args(["-c", &format!("import {module}")])
        .output()
        .is_ok_and(|output| output.status.success());
    if !there {
        eprintln!("skipped: {python} has no {module} ({variable} names another Python)");
    }
    there.then_some(python)
}

/// Cells by id and column.
fn read(path: &Path) -> BTreeMap<String, BTreeMap<String, String>> {
    let table = carma_lab_memory::dataset::Table::read(path).unwrap();
    (0..table.rows.len())
        .map(|at| {
            let row = table.row(at);
            (row["id"].to_owned(), row.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect())
        })
        .collect()
}

#[test]
fn generates_the_same_rows_from_the_same_seed() {
    let dir = tempfile::tempdir().unwrap();
    for (family, columns) in [("mlp", "widths"), ("cnn", "blocks"), ("transformer", "kv_heads")] {
        let make = |name: &str, seed: &str| {
            good(&carma(
                dir.path(),
                &["dataset", "generate", "--family", family, "--count", "25", "--seed", seed, "-o", name],
            ));
            read(&dir.path().join(name))
        };
        let (a, b, c) = (make("a.csv", "4"), make("b.csv.gz", "4"), make("c.csv", "5"));
        assert_eq!(a.len(), 25);
        assert!(a.values().all(|row| row.contains_key(columns)));
        assert_eq!(a, b);
        assert_ne!(a, c);
    }
    let refused = carma(dir.path(), &["dataset", "generate", "--family", "rnn", "--count", "1", "-o", "x"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("rnn"));
}

#[test]
fn measures_with_workers_that_misbehave_and_goes_on_where_it_stopped() {
    let Some(python) = python("CARMA_TEST_PYTHON", "json") else { return };
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("fake.py");
    fs::write(&script, include_str!("scripts/fake_worker.py")).unwrap();
    let acts = [
        ("a", ""),
        ("b", "die once"),
        ("c", "die"),
        ("d", "full once"),
        ("e", "nonsense"),
        ("f", "poisoned"),
        ("g", ""),
        ("h", "slow"),
    ];
    let rows: String = acts.iter().map(|(id, act)| format!("{id},mlp,\"1\n2\",1000,{act}\n")).collect();
    fs::write(dir.path().join("rows.csv"), format!("id,family,note,predicted_mib,act\n{rows}")).unwrap();
    let worker = format!("{python} {}", script.display());
    let run = || measure(dir.path(), &python, &["--workers", "2", "--worker-command", &worker]);
    good(&run());
    let out = dir.path().join("out.csv");
    let found = read(&out);
    assert_eq!(found.len(), acts.len());
    for id in ["a", "b", "d", "g", "h"] {
        assert_eq!(found[id]["status"], "SUCCESSFUL", "{id}");
        assert_eq!((found[id]["reserved_mib"].as_str(), found[id]["note"].as_str()), ("2", "1\n2"));
    }
    for (id, why) in [
        ("c", "the worker died: a fake worker dies, as it was told (3 times)"),
        ("e", "(3 times)"),
        ("f", "a fault"),
    ] {
        assert_eq!(found[id]["status"], "FAILED", "{id}");
        assert!(found[id]["reason"].contains(why), "{:?}", found[id]);
    }
    let tries = |id: &str| fs::read(dir.path().join(id)).unwrap().len();
    assert_eq!((tries("a"), tries("b"), tries("c"), tries("d")), (1, 2, 3, 2));

    // Nothing is left to do.
    let whole = fs::read(&out).unwrap();
    let again = run();
    good(&again);
    assert!(stderr(&again).contains("8 rows are in out.csv already; 0 to go"), "{}", stderr(&again));
    assert_eq!(fs::read(&out).unwrap(), whole);

    // Cut off within the last row, as by a power failure: that row is measured again, the others are not.
    fs::write(&out, &whole[..whole.len() - 4]).unwrap();
    good(&run());
    assert_eq!(read(&out).len(), acts.len());
    assert_eq!(tries("a"), 1);

    // Rows of another shape do not go into the same file.
    fs::write(dir.path().join("rows.csv"), "id,family\nz,mlp\n").unwrap();
    let other = run();
    assert_eq!(other.status.code(), Some(2));
    assert!(stderr(&other).contains("its columns are not those"), "{}", stderr(&other));
}

#[test]
fn stops_in_time_and_says_what_is_left() {
    let Some(python) = python("CARMA_TEST_PYTHON", "json") else { return };
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("fake.py");
    fs::write(&script, include_str!("scripts/fake_worker.py")).unwrap();
    let rows: String = (0..60).map(|n| format!("r{n},mlp,slow\n")).collect();
    fs::write(dir.path().join("rows.csv"), format!("id,family,act\n{rows}")).unwrap();
    let worker = format!("{python} {}", script.display());
    let output =
        measure(dir.path(), &python, &["--workers", "1", "--budget", "2", "--worker-command", &worker]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("the same command goes on with them"), "{}", stderr(&output));
    let done = read(&dir.path().join("out.csv")).len();
    assert!((1..60).contains(&done), "{done} rows");
}

#[test]
fn refuses_what_cannot_be_measured() {
    let dir = tempfile::tempdir().unwrap();
    for (text, word) in [
        ("a,b\n1,2\n", "no column `id`"),
        ("id,family\n1,model\n", "`model`"),
        ("id,family\n1\n", "rows.csv"),
    ] {
        fs::write(dir.path().join("rows.csv"), text).unwrap();
        let output = carma(dir.path(), &["dataset", "measure", "rows.csv", "-o", "out.csv"]);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(stderr(&output).contains(word), "{text}: {}", stderr(&output));
    }
    fs::write(dir.path().join("rows.csv"), "id,family\n1,mlp\n").unwrap();
    let output =
        carma(dir.path(), &["dataset", "measure", "rows.csv", "-o", "o.csv", "--python", "/no/python"]);
    assert!(stderr(&output).contains("cannot start /no/python"), "{}", stderr(&output));
}

/// The whole way on shapes: rows of every family are built and trained, no memory is measured.
#[test]
fn a_rehearsal_trains_every_family() {
    let Some(python) = python("CARMA_TEST_TORCH_PYTHON", "torch") else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut all = carma_lab_memory::dataset::Table::default();
    for family in ["mlp", "cnn", "transformer"] {
        let args = ["dataset", "generate", "--family", family, "--count", "6", "--seed", "11", "-o", "g.csv"];
        good(&carma(dir.path(), &args));
        all.append(carma_lab_memory::dataset::Table::read(&dir.path().join("g.csv")).unwrap());
    }
    all.write(&dir.path().join("rows.csv")).unwrap();
    good(&measure(dir.path(), &python, &["--workers", "1", "--rehearse", "meta"]));
    let found = read(&dir.path().join("out.csv"));
    assert_eq!(found.len(), 18);
    for (id, row) in &found {
        assert_eq!(row["status"], "SUCCESSFUL", "{id}: {row:?}");
        assert!(
            row["params"].parse::<u64>().unwrap() > 0 && row["layer_list"].contains(':'),
            "{id}: {row:?}"
        );
        let steps = row["steps_mib"].split_whitespace().count();
        assert_eq!(steps, if row["samples"].is_empty() { 3 } else { 4 }, "{id}: {row:?}");
    }
}

#[test]
fn cleans_describes_and_draws() {
    let dir = tempfile::tempdir().unwrap();
    let mut text = String::from(
        "id,family,batch_size,optimizer,precision,cap_mib,status,params,activations,allocated_mib,reserved_mib,\
         process_mib,context_mib,steps_mib,alloc_retries,layer_list\n",
    );
    for n in 1..=30 {
        let (batch, mib) = (n * 8, 100 + n * 20);
        text.push_str(&format!(
            "t{n:02},mlp,{batch},adam,fp32,65536,SUCCESSFUL,1000000,{},90,{mib},{},{},1 2 3,0,Linear:4:20\n",
            n * 100,
            mib + 742 + n,
            742 + n
        ));
    }
    text.push_str("bad,mlp,7,adam,fp32,65536,SUCCESSFUL,1000000,5,300,200,950,750,1 2 3,0,Linear:4:20\n");
    fs::write(dir.path().join("in.csv"), text).unwrap();
    let args = [
        "dataset",
        "clean",
        "in.csv",
        "--out",
        "out.csv.gz",
        "--picture",
        "p.svg",
        "--class-gb",
        "1",
        "--json",
    ];
    let found: Value = serde_json::from_str(&good(&carma(dir.path(), &args))).unwrap();
    assert_eq!((&found["version"], &found["rows"]), (&1.into(), &30.into()));
    assert_eq!(found["dropped"][0]["id"], "bad");
    assert_eq!(found["context_mib"], serde_json::json!([743.0, 743.0]));
    let out = read(&dir.path().join("out.csv.gz"));
    assert_eq!((out.len(), out["t30"]["process_mib"].as_str()), (30, "1443"));
    let picture = fs::read_to_string(dir.path().join("p.svg")).unwrap();
    assert_eq!(picture.matches("r=\"2.2\"").count(), 30);

    let shown = good(&carma(dir.path(), &["dataset", "clean", "in.csv"]));
    for part in [
        "30 tasks (30 mlp), 1 left out\n",
        "classes of 1 GB, from GB: tasks: 0: 7, 1: 23\n",
        "bad       300 MiB allocated, but only 200 reserved\n",
    ] {
        assert!(shown.contains(part), "{part}\nis not in\n{shown}");
    }
    let refused = carma(dir.path(), &["dataset", "clean", "in.csv", "--picture", "p.png"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains(".svg"));
    let refused = carma(dir.path(), &["dataset", "clean", "none.csv"]);
    assert!(stderr(&refused).contains("none.csv"), "{}", stderr(&refused));
}
