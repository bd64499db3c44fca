//! What the daemon ran becomes a trace, and the trace is simulated.

use crate::support::{Setup, stdout, task};
use serde_json::Value;

#[test]
fn the_daemons_history_is_replayed() {
    let daemon = Setup::new("virtual:1xA100-40GB").args(&["--policy", "exclusive", "--speed", "40"]).start();
    // Long enough to be alone at work for a whole window.
    let jobs: Vec<u64> = (0..2)
        .map(|_| daemon.submit(task(&["--memory=6G", "--sm=0.4", "--dram=0.2", "--work=90s"], Some(8))))
        .collect();
    for job in jobs {
        assert_eq!(daemon.end_of(job).job.state, "COMPLETED");
    }
    let file = daemon.dir.path().join("week.csv");
    let file = file.to_str().unwrap();
    let said = stdout(&daemon.carma(&["trace", "export-history", "--last", "7d", "-o", file]));
    assert!(said.contains("virtual"), "{said}");
    assert!(!said.contains("activity is known of jobs"), "both had the GPU for themselves: {said}");
    let shown: Value =
        serde_json::from_str(&stdout(&daemon.carma(&["trace", "show", file, "--json"]))).unwrap();
    assert_eq!(shown["jobs"], 2);
    let catalogue = std::fs::read_to_string(daemon.dir.path().join("week.tasks.csv")).unwrap();
    let smact = catalogue.lines().next().unwrap().split(',').position(|column| column == "smact").unwrap();
    let seen: f64 = catalogue.lines().nth(1).unwrap().split(',').nth(smact).unwrap().parse().unwrap();
    assert!((seen - 0.4).abs() < 0.05, "{catalogue}");
    let run = ["simulate", "--trace", file, "--cluster", "1xA100-40GB", "--json"];
    let run = [&run[..], &["--policy", "exclusive", "--policy", "oracle-magm"]].concat();
    let reply: Value = serde_json::from_str(&stdout(&daemon.carma(&run))).unwrap();
    // As it was: one after the other. With sharing: at once.
    assert_eq!(reply["rows"][0]["completed"], 2);
    assert!(reply["rows"][0]["makespan_s"].as_f64().unwrap() > 170.0, "{}", reply["rows"][0]);
    let shared = reply["rows"][1]["normalised"]["makespan"].as_f64().unwrap();
    assert!((0.4..0.7).contains(&shared), "{shared}");
}
