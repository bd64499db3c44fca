//! `carma lab policies`: all tables on traces that take no time, and the page in docs/research.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test")]

use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn carma(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_carma-lab"))
        .current_dir(folder)
        .arg("policies")
        .args(args)
        .output()
        .unwrap()
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Six tasks that arrive at once on four GPUs.
fn write_traces(folder: &Path) {
    fs::create_dir(folder).unwrap();
    fs::write(
        folder.join("workloads.csv"),
        "rad,class,gpus,measured_mib,solo_runtime_s,solo_smact_mean,solo_source\nsmall,light,1,900,100,0.1,made up\n\
         ten,medium,1,2000,600,0.5,made up\nlarge,heavy,1,30000,900,0.9,made up\n",
    )
    .unwrap();
    let mut arrivals = String::from("trace,seq,arrival_s,task\n");
    for trace in ["philly_trace-t1", "philly_trace-t2", "philly_heavy-60-tasks", "philly_mix-90-tasks"] {
        for (seq, task) in (1..).zip(["ten", "large", "large", "ten", "ten", "small"]) {
            writeln!(arrivals, "{trace},{seq},0.0,{task}").unwrap();
        }
    }
    fs::write(folder.join("philly_evaluation_arrivals.csv"), arrivals).unwrap();
}

#[test]
fn every_table_is_made() {
    let dir = tempfile::tempdir().unwrap();
    write_traces(&dir.path().join("carma"));
    let page = stdout(&carma(dir.path(), &["--data=.", "--quick", "--evaluations=30"]));
    let titles: Vec<&str> =
        page.lines().filter_map(|line| line.strip_prefix("## ")?.split('.').next()).collect();
    assert_eq!(titles, ["1", "2", "3", "4", "5"]);
    assert!(
        page.contains("A quick try, no result")
            && page.contains("Poisson arrivals, as Philly's are not there"),
        "{page}"
    );
    assert!(!page.contains("NaN") && !page.contains("inf"), "{page}");
    for name in ["exclusive", "carma", "kace", "gandiva", "tgs", "*search: JCT*", "*LB*"] {
        let rows = page.lines().filter(|line| line.starts_with(&format!("| {name} | "))).count();
        assert!(rows >= 2, "{name}: {page}");
    }
    let (_, objectives) = page.split_once("## 4.").unwrap();
    let (objectives, gaps) = objectives.split_once("## 5.").unwrap();
    assert_eq!(
        gaps.lines().filter(|line| line.starts_with("| adaptive, nothing declared | ")).count(),
        6,
        "{gaps}"
    );
    for name in ["jct", "makespan", "energy", "fair"] {
        let rows = objectives.lines().filter(|line| line.split(" | ").nth(1) == Some(name)).count();
        assert_eq!(rows, 8, "{name}: {page}");
    }
    // Exclusive is what all are compared with.
    assert!(
        page.contains("| exclusive | 1.000 | 1.000 | 1.000 | 1.000 | 1.000 | 1.000 | 1.000 | 0.0 | 0.0 % |"),
        "{page}"
    );
}

/// A search that is read stands in the columns as it was made.
#[test]
fn bound_and_search_are_read_from_a_file() {
    let dir = tempfile::tempdir().unwrap();
    write_traces(&dir.path().join("carma"));
    let args = ["bound", "--data=.", "--evaluations=20", "--json"];
    let made =
        Command::new(env!("CARGO_BIN_EXE_carma-lab")).current_dir(dir.path()).args(args).output().unwrap();
    fs::write(dir.path().join("bound.json"), stdout(&made)).unwrap();
    let args = ["--data=.", "--quick", "--only=traces", "--bound=bound.json", "--json"];
    let reply: Value = serde_json::from_str(&stdout(&carma(dir.path(), &args))).unwrap();
    let tables = &reply["tables"]["traces"];
    let made: Value = serde_json::from_str(&stdout(&made)).unwrap();
    assert_eq!(tables["bound"], made["report"]);
    assert_eq!(reply["tables"].as_object().unwrap().len(), 1);
    assert_eq!(tables["policies"][1]["sharing"], "time-slice");
    fs::write(dir.path().join("bound.json"), "{}").unwrap();
    let output = carma(dir.path(), &args);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(1) && said.contains("not what `carma lab bound --json` prints"),
        "{said}"
    );
}

#[test]
fn without_the_traces_it_is_said_where_they_should_be() {
    let dir = tempfile::tempdir().unwrap();
    let output = carma(dir.path(), &["--data=x"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(1)
            && said.contains("CARMA's traces are not at x/carma\nhint: --data names"),
        "{said}"
    );
}

/// Rows of policies that do not change with carma's own.
#[test]
fn the_page_says_what_the_command_prints() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    if !root.join("../shared/data/carma").is_dir() {
        eprintln!("skipped: ../shared/data/carma is not there");
        return;
    }
    let page = fs::read_to_string(root.join("docs/research/policies.md")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let bound = dir.path().join("bound.json");
    fs::write(&bound, r#"{"report": {"cluster": "", "evaluations": 0, "seed": 1, "cases": []}}"#).unwrap();
    let said = stdout(&carma(&root, &["--only=traces", &format!("--bound={}", bound.display())]));
    let mut rows = 0;
    for line in said
        .lines()
        .filter(|line| ["| exclusive |", "| magm |", "| gandiva |"].iter().any(|it| line.starts_with(it)))
    {
        // Without the last three columns, which are over a search's.
        let row = line.strip_suffix("- | - | - |").unwrap();
        assert!(page.contains(row), "docs/research/policies.md lacks {row}");
        rows += 1;
    }
    assert_eq!(rows, 6);
}
