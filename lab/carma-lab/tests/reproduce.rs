//! `carma lab reproduce`: what can be computed by hand, what the page in docs/research says, and what is said without
//! the traces.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test")]

use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn carma(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_carma-lab")).current_dir(folder).args(args).output().unwrap()
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Five tasks of ten minutes that arrive at once on four GPUs: the fifth waits for ten minutes.
fn write_traces(folder: &Path) {
    fs::create_dir(folder).unwrap();
    fs::write(
        folder.join("workloads.csv"),
        "rad,gpus,measured_mib,solo_runtime_s,solo_smact_mean,solo_source\nten,1,2000,600,0.5,made up\n",
    )
    .unwrap();
    let mut arrivals = String::from("trace,seq,arrival_s,task\n");
    for trace in ["philly_trace-t1", "philly_trace-t2", "philly_heavy-60-tasks", "philly_mix-90-tasks"] {
        for seq in 1..=5 {
            writeln!(arrivals, "{trace},{seq},0.0,ten").unwrap();
        }
    }
    fs::write(folder.join("philly_evaluation_arrivals.csv"), arrivals).unwrap();
}

#[test]
fn five_tasks_on_four_gpus_take_twice_as_long_as_one() {
    let dir = tempfile::tempdir().unwrap();
    write_traces(&dir.path().join("carma"));
    let args = ["reproduce", "--data", ".", "--only", "exclusive"];
    let page = stdout(&carma(dir.path(), &args));
    assert!(
        page.starts_with("# Published against simulated\n\nWritten by `carma lab reproduce`, "),
        "{page}"
    );
    let row = "| T1 | 7.21 | 0.33 | 112 | 2.0 | 24.3 | 10.0 | 136 | 12.0 |\n";
    assert!(page.contains(row) && !page.contains("## 2."), "{page}");
    let reply: Value =
        serde_json::from_str(&stdout(&carma(dir.path(), &[&args[..], &["--json"]].concat()))).unwrap();
    let table = &reply["tables"][0];
    assert_eq!((&table["table"], &reply["tables"][1]), (&"exclusive".into(), &Value::Null));
    for row in table["rows"].as_array().unwrap() {
        assert_eq!(
            (&row["simulated"]["wait_min"], &row["simulated"]["run_min"]),
            (&2.0.into(), &10.0.into())
        );
    }
}

/// All tables, on traces that take no time.
#[test]
fn every_table_is_made() {
    let dir = tempfile::tempdir().unwrap();
    write_traces(&dir.path().join("carma"));
    let page = stdout(&carma(dir.path(), &["reproduce", "--data", "."]));
    let titles: Vec<&str> =
        page.lines().filter_map(|line| line.strip_prefix("## ")?.split('.').next()).collect();
    assert_eq!(titles, ["1", "2", "3", "3b", "4"]);
    assert!(!page.contains("NaN"), "{page}");
}

#[test]
fn the_page_says_what_the_command_prints() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    if !root.join("../shared/data/carma").is_dir() {
        eprintln!("skipped: ../shared/data/carma is not there");
        return;
    }
    let page = fs::read_to_string(root.join("docs/research/reproduction.md")).unwrap();
    // The others take a minute and more.
    for table in ["exclusive", "headline"] {
        let said = stdout(&carma(&root, &["reproduce", "--only", table]));
        // What is before it says when and where it was made.
        let (_, section) = said.split_once("\n## ").unwrap();
        assert!(page.contains(section), "docs/research/reproduction.md has another table than\n{section}");
    }
}

#[test]
fn without_the_traces_it_is_said_where_they_should_be() {
    let dir = tempfile::tempdir().unwrap();
    for (args, place) in
        [(vec!["reproduce"], "../shared/data/carma"), (vec!["reproduce", "--data", "x"], "x/carma")]
    {
        let output = carma(dir.path(), &args);
        assert_eq!(output.status.code(), Some(1));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(&format!("CARMA's traces are not at {place}\nhint: --data names")), "{said}");
    }
}
