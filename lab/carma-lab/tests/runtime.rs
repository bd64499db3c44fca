//! `carma lab runtime-bench` on a trace whose answers are known, and without any.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test")]

use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn bench(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_carma-lab"));
    command.current_dir(folder).arg("runtime-bench").args(args).output().unwrap()
}

/// Two users whose jobs take ten seconds and an hour, and whose last job is now and then a short failure.
fn helios(folder: &Path) -> String {
    let mut log = String::from("job_id,user,gpu_num,submit_time,duration\n");
    for job in 0..400 {
        let (user, usual) = [("ann", 10), ("ben", 3600)][job % 2];
        let took = if job % 20 > 17 { 2 } else { usual };
        let (day, hour) = (1 + job / 24, job % 24);
        let (month, day) = (1 + day / 28, 1 + day % 28);
        writeln!(log, "{job},{user},1,2020-{month:02}-{day:02} {hour:02}:00:00,{took}").unwrap();
    }
    fs::write(folder.join("cluster_log.csv"), log).unwrap();
    "--trace=cluster_log.csv".into()
}

#[test]
fn a_trace_of_ones_own_is_scored() {
    let dir = tempfile::tempdir().unwrap();
    let trace = helios(dir.path());
    let reply = bench(dir.path(), &[&trace, "--format=helios", "--json"]);
    assert!(reply.status.success(), "{}", String::from_utf8_lossy(&reply.stderr));
    let reply: Value = serde_json::from_slice(&reply.stdout).unwrap();
    let results = reply["tests"][0]["results"].as_array().unwrap();
    assert_eq!(results[0]["method"], "history");
    let held_out = &results[0]["held_out"];
    assert_eq!((held_out["jobs"].as_u64(), held_out["factor"].as_f64()), (Some(200), Some(1.0)));
    // A tenth is short, and a job after a short one is forecast as its user's others are.
    assert_eq!(held_out["within_two"].as_f64(), Some(0.9));
    assert_eq!(results[2]["method"], "the user's last job");
    assert_eq!(results[2]["held_out"]["within_two"].as_f64(), Some(0.8));
    let page = bench(dir.path(), &[&trace, "--format=helios", "--markdown", "--check"]);
    let text = String::from_utf8_lossy(&page.stdout).into_owned();
    assert!(text.contains("| later | the user's last job | 200 |"), "{text}");
    assert_eq!(page.status.success(), text.contains("No baseline reaches"), "{text}");
}

#[test]
fn without_a_trace_it_says_what_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let reply = bench(dir.path(), &["--data", "."]);
    let error = String::from_utf8_lossy(&reply.stderr).into_owned();
    assert!(reply.status.code() == Some(1) && error.contains("philly.csv.gz"), "{error}");
    fs::create_dir_all(dir.path().join("alibaba__clusterdata")).unwrap();
    let openb = "alibaba__clusterdata/gpu-v2023_openb_pod_list_default.csv.gz";
    fs::write(dir.path().join(openb), "name,qos\nx,LS\n").unwrap();
    let reply = bench(dir.path(), &["--data", "."]);
    let error = String::from_utf8_lossy(&reply.stderr).into_owned();
    assert!(reply.status.code() == Some(1) && error.contains("openb_pod_list_default.csv.gz: "), "{error}");
}
