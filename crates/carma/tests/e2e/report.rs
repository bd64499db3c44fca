//! `carma report --last`: what ran, from the rows that the daemon keeps.

use crate::support::{Daemon, Setup, stderr, stdout, task, until};
use crate::users::{ready, submit_as};
use carma_api::record::RecordReply;
use std::fs;
use std::os::unix::fs::PermissionsExt;

const CONFIG: &str = "policy = 'or-magm'\n[gate]\nenabled = false\n[sampling]\nwindow = '1s'\n";

fn record(daemon: &Daemon, user: &str) -> RecordReply {
    let output = daemon.carma_as(user, &["report", "--last", "1h", "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_str(&stdout(&output)).unwrap()
}

#[test]
fn what_ran_is_reported_and_outlives_the_daemon() {
    let mut daemon = Setup::new("virtual:2xA100-40GB").config(CONFIG).args(&["--speed", "10"]).start();
    let work = |work: &str| task(&["--memory=4G", work, "--sm=0.4"], Some(6));
    let ids: Vec<u64> =
        ["--work=20s", "--work=30s", "--work=30s"].map(|time| daemon.submit(work(time))).to_vec();
    ids.iter().for_each(|id| drop(daemon.end_of(*id)));
    // Its last rows are written when it is killed politely; after a crash those of some seconds are lost.
    let before = record(&daemon, "root");
    let jobs = |reply: &RecordReply| -> Vec<u64> {
        let tenants = reply.rows.iter().flat_map(|row| &row.gpus).flat_map(|gpu| &gpu.tenants);
        let mut jobs: Vec<u64> = tenants.map(|tenant| tenant.job).collect();
        jobs.sort_unstable();
        jobs.dedup();
        jobs
    };
    assert_eq!(jobs(&before), ids);
    assert!(before.rows.windows(2).all(|pair| pair[0].at_ms < pair[1].at_ms));
    let state = daemon.dir.path().join("state/recorder");
    assert_eq!(fs::metadata(&state).unwrap().permissions().mode() & 0o777, 0o700);

    rustix::process::kill_process(
        rustix::process::Pid::from_raw(daemon.pid().cast_signed()).unwrap(),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    daemon.wait_dead();
    let file = fs::read_dir(&state).unwrap().next().unwrap().unwrap();
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    daemon.restart(&[]);
    let after = record(&daemon, "root");
    assert_eq!(jobs(&after), ids);
    assert!(after.rows.len() >= before.rows.len(), "{} {}", after.rows.len(), before.rows.len());

    let page = daemon.dir.path().join("page.html");
    let html = format!("--html={}", page.display());
    let output = daemon.carma(&["report", "--last", "1h", &html]);
    assert!(output.status.success(), "{}", stderr(&output));
    let page = fs::read_to_string(page).unwrap();
    for words in
        ["Virtual GPUs:", "or-magm, as it ran", "exclusive, simulated", "Energy of jobs", "3 of 1 user"]
    {
        assert!(page.contains(words), "{words}");
    }
    let text = stdout(&daemon.carma(&["report", "--last", "1h"]));
    assert!(text.contains("3 jobs, 3 completed") && text.contains("as it ran"), "{text}");
    let csv = stdout(&daemon.carma(&["report", "--last", "1h", "--csv", "--step", "10s"]));
    assert!(
        csv.starts_with("at,at_ms,gpu,uuid,span_ms,memory_used_mib,smact,") && csv.lines().count() > 4,
        "{csv}"
    );
    // A time in which nothing was.
    let output = daemon.carma(&["report", "--since", "2020-01-01", "--until", "2020-01-02"]);
    assert!(
        !output.status.success() && stderr(&output).contains("nothing was recorded"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn what_another_users_job_does_is_not_told() {
    if !ready() {
        return;
    }
    let daemon = Setup::new("virtual:1xA100-40GB").config(CONFIG).start();
    let carma = daemon.binary_for_all();
    let words = ["--", carma.to_str().unwrap(), "virtual-task", "--memory", "4G", "--work", "600s"];
    let job = submit_as(&daemon, "carma-alice", &words);
    daemon.in_state(job, "RUNNING");
    let shares = |user: &str| -> Vec<Option<f64>> {
        let reply = record(&daemon, user);
        let tenants = reply.rows.iter().flat_map(|row| &row.gpus).flat_map(|gpu| &gpu.tenants);
        tenants.filter(|tenant| tenant.job == job).map(|tenant| tenant.activity_share).collect()
    };
    let of_alice = until("rows of the job", || Some(shares("carma-alice")).filter(|shares| shares.len() > 1));
    assert!(of_alice.iter().all(Option::is_some), "{of_alice:?}");
    let of_bob = shares("carma-bob");
    assert!(of_bob.len() >= of_alice.len() && of_bob.iter().all(Option::is_none), "{of_bob:?}");
}

#[test]
fn nothing_is_recorded_where_that_is_not_wanted() {
    let daemon = Setup::new("virtual:1xA100-40GB").config("[recorder]\nenabled = false\n").start();
    let output = daemon.carma(&["report", "--last", "1h"]);
    assert!(!output.status.success() && stderr(&output).contains("records nothing"), "{}", stderr(&output));
}
