//! One line for each act and each refusal in the daemon's log, for people and for programs.

use crate::support::{Setup, stderr, until};
use crate::users::{ready, submit_as};
use std::collections::BTreeMap;

/// Lines of the audit, each as its fields.
fn lines(log: &str) -> Vec<BTreeMap<String, String>> {
    let field = |value: &serde_json::Value| match value.as_str() {
        Some(text) => text.to_owned(),
        None => value.to_string(),
    };
    log.lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .inspect(|line| {
            for key in ["timestamp", "level", "target", "fields"] {
                assert!(line.get(key).is_some(), "no {key}: {line}");
            }
        })
        .filter(|line| line["target"] == "audit")
        .map(|line| line["fields"].as_object().unwrap().iter().map(|(k, v)| (k.clone(), field(v))).collect())
        .collect()
}

#[test]
fn every_act_and_every_refusal_is_a_line_that_says_who_and_what() {
    if !ready() {
        return;
    }
    let mut daemon = Setup::new("virtual:1xA100-40GB").args(&["--log-format", "json"]).start();
    let id = submit_as(&daemon, "carma-alice", &["--", "sleep", "600"]);
    daemon.in_state(id, "RUNNING");
    let number = id.to_string();
    let refused = daemon.carma_as("carma-bob", &["cancel", &number]);
    assert_eq!(refused.status.code(), Some(77), "{}", stderr(&refused));
    let refused = daemon.carma_as("carma-bob", &["submit", "--priority", "9", "--", "true"]);
    assert_eq!(refused.status.code(), Some(77), "{}", stderr(&refused));
    assert!(daemon.carma(&["drain", "0"]).status.success());
    assert!(daemon.carma(&["resume", "0"]).status.success());
    let held = submit_as(&daemon, "carma-bob", &["--hold", "--", "false"]);
    assert!(daemon.carma_as("carma-bob", &["release", &held.to_string()]).status.success());
    // One line for all of them, and one for those that are not there.
    let copies = daemon.carma_as("carma-bob", &["submit", "--hold", "--repeat", "3", "--", "false"]);
    assert!(copies.status.success(), "{}", stderr(&copies));
    let (first, last) = (held + 1, held + 3);
    let several = daemon.carma_as("carma-bob", &["cancel", &format!("{first}-{last},9001-9500")]);
    assert_eq!(several.status.code(), Some(1), "{}", stderr(&several));
    // What runs when a daemon starts is told as found, not as started again.
    daemon.kill();
    daemon.restart(&[]);
    assert!(daemon.carma_as("carma-alice", &["cancel", &number]).status.success());
    daemon.end_of(id);
    daemon.end_of(held);

    let log = until("the last line", || Some(daemon.log()).filter(|log| log.matches("\"end\"").count() == 5));
    let lines = lines(&log);
    let (alice, bob) = (uid_of("carma-alice"), uid_of("carma-bob"));
    let (held, several) = (held.to_string(), format!("{first}-{last}"));
    let count = |fields: &[(&str, &str)]| {
        let matches = |line: &&BTreeMap<String, String>| {
            fields.iter().all(|(key, value)| line.get(*key).is_some_and(|found| found == value))
        };
        lines.iter().filter(matches).count()
    };
    for fields in [
        vec![
            ("act", "submit"),
            ("uid", &alice),
            ("user", "carma-alice"),
            ("job", &number),
            ("outcome", "done"),
        ],
        vec![("act", "cancel"), ("uid", &bob), ("job", &number), ("outcome", "refused"), ("status", "403")],
        vec![("act", "submit"), ("uid", &bob), ("outcome", "refused"), ("code", "not_allowed")],
        vec![("act", "drain"), ("uid", "0"), ("gpu", "0"), ("outcome", "done")],
        vec![("act", "resume"), ("uid", "0"), ("gpu", "0"), ("outcome", "done")],
        vec![("act", "release"), ("uid", &bob), ("job", &held), ("outcome", "done")],
        vec![("act", "cancel"), ("uid", &alice), ("job", &number), ("outcome", "done")],
        vec![("act", "submit"), ("uid", &bob), ("jobs", &several), ("outcome", "done")],
        vec![("act", "cancel"), ("uid", &bob), ("jobs", &several), ("outcome", "done")],
        vec![
            ("act", "cancel"),
            ("uid", &bob),
            ("jobs", "9001-9500"),
            ("outcome", "refused"),
            ("status", "404"),
        ],
        vec![("act", "launch"), ("uid", &alice), ("job", &number), ("attempt", "1"), ("outcome", "started")],
        vec![("act", "adopt"), ("uid", &alice), ("job", &number), ("outcome", "found running")],
        vec![("act", "exit"), ("uid", &alice), ("job", &number), ("outcome", "signal 15 (SIGTERM)")],
        vec![
            ("act", "end"),
            ("uid", &alice),
            ("job", &number),
            ("outcome", "CANCELLED"),
            ("code", "Cancelled"),
        ],
        vec![("act", "exit"), ("uid", &bob), ("job", &held), ("outcome", "exit code 1")],
        vec![("act", "end"), ("uid", &bob), ("job", &held), ("outcome", "FAILED"), ("code", "NonZeroExit")],
    ] {
        assert_eq!(count(&fields), 1, "{fields:?} in {lines:#?}");
    }
    // Who asks is a process, too.
    let asked = ["submit", "cancel", "drain", "resume", "release"];
    for line in lines.iter().filter(|line| asked.contains(&line["act"].as_str())) {
        assert!(line["pid"].parse::<u32>().is_ok_and(|pid| pid > 0), "{line:?}");
    }
}

fn uid_of(user: &str) -> String {
    let output = std::process::Command::new("id").args(["-u", user]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}
