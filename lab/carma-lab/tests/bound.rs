//! `carma lab bound`: what can be computed by hand, the same numbers whatever the threads, and the page in docs/research.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test")]

use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn carma(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_carma-lab"))
        .current_dir(folder)
        .arg("bound")
        .args(args)
        .output()
        .unwrap()
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Tasks that fill a GPU for ten minutes, and light ones of five.
fn write(folder: &Path) {
    let catalogue = "task,gpus,duration_s,memory_mib,startup_s,gract,smact,steps_per_s\n\
                     full,1,600,30000,0,1,1,0\nlight,1,300,1000,0,0.2,0.2,0\n";
    fs::write(folder.join("tasks.csv"), catalogue).unwrap();
    fs::write(folder.join("trace.csv"), "id,arrival_s,task\na,0,full\nb,0,full\nc,0,light\nd,60,light\n")
        .unwrap();
}

/// The full ones take ten minutes each on the one GPU, and nothing fits beside two of them.
#[test]
fn two_tasks_that_fill_a_gpu_take_their_time() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    let args = ["--trace=trace.csv", "--catalogue=tasks.csv", "--cluster=1xCUSTOM-40GB", "--evaluations=200"];
    let page = stdout(&carma(dir.path(), &args));
    assert!(
        page.starts_with("# Bounds and clairvoyant searches\n\nWritten by `carma lab bound`, "),
        "{page}"
    );
    assert!(page.contains("## mps\n") && page.contains("## time-slice\n") && !page.contains("NaN"), "{page}");
    let json = |more: &[&str]| -> Value {
        let args = [&args[..], &["--json", "--sharing=time-slice"], more].concat();
        let mut reply: Value = serde_json::from_str(&stdout(&carma(dir.path(), &args))).unwrap();
        let case = &mut reply["report"]["cases"][0];
        (case["search_s"], case["bound_s"]) = (0.into(), 0.into());
        reply
    };
    let reply = json(&["--threads=1"]);
    assert_eq!(reply, json(&["--threads=3"]));
    let case = &reply["report"]["cases"][0];
    let exclusive = 600.0 + 600.0 + 300.0 + 300.0;
    // Light tasks use a fifth of the GPU's time at least.
    let least = (1200.0 + 0.2 * 600.0) / exclusive;
    let (bound, found) = (&case["bound"]["makespan"], &case["searched"][0]["figures"]["makespan"]);
    let (bound, found) = (bound.as_f64().unwrap(), found.as_f64().unwrap());
    assert!(bound > least - 1e-3 && bound <= found && found < 1.0, "{least} {bound} {found}");
    assert_eq!((&case["sharing"], &case["jobs"]), (&"time-slice".into(), &4.into()));
}

#[test]
fn what_can_not_be_bounded_is_searched_nevertheless() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    let args =
        ["--trace=trace.csv", "--catalogue=tasks.csv", "--cluster=1xCUSTOM-40GB+1xH200", "--evaluations=20"];
    let page = stdout(&carma(dir.path(), &args));
    assert!(
        page.contains("no bound, as there is a bound for whole GPUs of one type only")
            && page.contains("| - / "),
        "{page}"
    );
}

#[test]
fn mistakes_are_told() {
    let dir = tempfile::tempdir().unwrap();
    for (args, code, part) in [
        (vec![], 1, "CARMA's traces are not at ../shared/data/carma\nhint: --data names"),
        (vec!["--cluster=4xNONE"], 1, "CARMA's traces are not at"),
        (vec!["--evaluations=0"], 2, "evaluations"),
        (vec!["--sharing=exclusive"], 2, "possible values: mps, time-slice"),
        (vec!["--catalogue=x.csv"], 2, "--trace"),
    ] {
        let output = carma(dir.path(), &args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(code) && said.contains(part), "{args:?}: {said}");
    }
}

/// The bounds of makespans do not depend on how much is searched.
#[test]
fn the_page_says_what_the_command_prints() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    if !root.join("../shared/data/carma").is_dir() {
        eprintln!("skipped: ../shared/data/carma is not there");
        return;
    }
    let page = fs::read_to_string(root.join("docs/research/bounds.md")).unwrap();
    let bounds = |text: &str| -> Vec<String> {
        let (_, table) = text.split_once("\n## time-slice\n").unwrap();
        let row = table.lines().find(|line| line.starts_with("| makespan |")).unwrap();
        row.split('|')
            .filter_map(|cell| cell.split_once(" / "))
            .map(|(bound, _)| bound.trim().to_owned())
            .collect()
    };
    let said = stdout(&carma(&root, &["--sharing=time-slice", "--evaluations=40"]));
    assert_eq!(bounds(&said), bounds(&page));
    assert_eq!(bounds(&page).len(), 5);
}
