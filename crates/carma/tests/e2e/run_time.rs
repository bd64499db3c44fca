//! How long jobs are expected to run, and how far they are.

use crate::support::{Setup, stdout, task, until};
use carma_api::wire::SubmitRequest;
use carma_core::input::Input;
use carma_core::state::State;
use carma_core::units::Millis;
use std::path::Path;

const ONE: &str = "virtual:1xA100-40GB";

#[test]
fn earlier_runs_say_how_long_the_next_will_take_and_a_restart_keeps_it() {
    let mut daemon = Setup::new(ONE).args(&["--speed", "20"]).start();
    let run = |work: &str| task(&["--memory=2G", "--sm=0.3", work], None);
    let first = daemon.submit(run("--work=40s"));
    assert_eq!((daemon.show(first).job.run_time, daemon.show(first).job.left), (None, None));
    daemon.end_of(first);
    let held = |work: &str| SubmitRequest { hold: true, ..run(work) };
    let second = daemon.submit(held("--work=40s"));
    let job = daemon.show(second).job;
    let expected = job.run_time.unwrap();
    assert!(expected.median_s >= 40 && expected.source == "1 run of this command", "{expected:?}");
    let left = job.left.unwrap();
    assert_eq!((left.left_s, left.counted, &left.source), (expected.median_s, false, &expected.source));
    // Another argument is another command of the same program; a limit ends it whatever was expected.
    let limited = SubmitRequest { time_limit_ms: Some(15_000), ..held("--work=41s") };
    let other = daemon.show(daemon.submit(limited)).job.run_time.unwrap();
    assert_eq!((other.median_s, other.high_s), (15, 15));
    assert_eq!(other.source, "1 run of this program with other arguments");

    // A run that is cut off does not make the next one shorter.
    daemon.carma(&["release", &second.to_string()]);
    daemon.in_state(second, "RUNNING");
    daemon.carma(&["cancel", &second.to_string()]);
    daemon.end_of(second);
    let third = daemon.submit(held("--work=40s"));
    let after = daemon.show(third).job.run_time.unwrap();
    assert_eq!((after.median_s, &after.source), (expected.median_s, &expected.source));

    daemon.kill();
    daemon.restart(&[]);
    let again = daemon.submit(held("--work=40s"));
    assert_eq!(daemon.show(again).job.run_time.unwrap(), after);
    let explained = stdout(&daemon.carma(&["explain", &again.to_string()]));
    assert!(explained.contains("alone on its GPUs (1 run of this command)"), "{explained}");
    // What another run teaches is told to those that wait.
    daemon.end_of(daemon.submit(run("--work=40s")));
    until("the news of a second run", || {
        let source = daemon.show(again).job.run_time?.source;
        (source == "2 runs of this command").then_some(())
    });
}

#[test]
fn a_job_of_which_nothing_is_known_hears_what_others_took() {
    let daemon = Setup::new(ONE).start();
    let alone = |command: &[&str]| SubmitRequest {
        command: command.iter().map(|word| (*word).to_owned()).collect(),
        exclusive: true,
        ..task(&["--memory=1G"], None)
    };
    let first = daemon.submit(alone(&["sleep", "1"]));
    let second = daemon.submit(alone(&["sleep", "60"]));
    let third = daemon.submit(alone(&["true"]));
    assert_eq!(daemon.show(third).job.run_time, None);
    daemon.end_of(first);
    let source = until("a forecast", || Some(daemon.show(third).job.run_time?.source));
    assert_eq!(
        (source.as_str(), daemon.show(third).job.state.as_str()),
        ("1 run of other programs of this user", "PENDING")
    );
    daemon.in_state(second, "RUNNING");
}

#[test]
fn a_job_that_counts_says_how_far_it_is() {
    let daemon = Setup::new(ONE).start();
    let line = "i=0; while [ $i -lt 1000 ]; do i=$((i+1)); echo \"step $i/1000\"; sleep 0.05; done";
    let id = daemon.shell(line);
    let job = until("its count to be heard", || {
        let job = daemon.show(id).job;
        let left = job.left.clone().filter(|left| left.counted)?;
        assert_eq!(left.source, "its own count");
        Some(job)
    });
    assert!(job.done_pct.unwrap() < 100, "{job:?}");
    let listed = stdout(&daemon.carma(&["queue"]));
    assert!(listed.contains("DONE") && listed.contains("LEFT") && listed.contains(" %"), "{listed}");
    let shown = stdout(&daemon.carma(&["show", &id.to_string()]));
    assert!(shown.contains("% done (by its own count)"), "{shown}");
}

/// `/run` may be full.
#[test]
fn what_a_job_prints_counts_where_no_heartbeats_can_be_heard() {
    let daemon = Setup::new(ONE).start();
    // In the place of the job's directory.
    std::fs::write(Path::new(&daemon.status().runtime_dir).join("pace/1.1"), "").unwrap();
    let line =
        "i=0; while [ $i -lt 1000 ]; do i=$((i+1)); echo \"step $i/1000 $CARMA_PROGRESS\"; sleep 0.05; done";
    let id = daemon.shell(line);
    until("its count to be read", || daemon.show(id).job.done_pct);
    let printed = daemon.output(id);
    assert!(!printed.contains("pace"), "{printed}");
    assert!(daemon.log().contains("heartbeats cannot be heard"), "{}", daemon.log());
}

/// Its supervisor may not have made its place there yet: that waits for the user database.
#[test]
fn a_daemon_that_stops_leaves_the_place_where_a_job_that_starts_is_heard() {
    let mut daemon = Setup::new(ONE).start();
    let id = daemon.shell("sleep 600");
    daemon.in_state(id, "RUNNING");
    let pace = Path::new(&daemon.status().runtime_dir).join("pace");
    std::fs::remove_dir_all(pace.join("1.1")).unwrap();
    daemon.stop();
    assert!(pace.is_dir());
    daemon.restart(&[]);
    daemon.carma(&["cancel", &id.to_string()]);
    daemon.end_of(id);
    daemon.stop();
    assert!(!pace.exists(), "nothing is left behind");
}

/// The core of the daemon goes by the count: half a minute of work, of which nothing else is known.
#[test]
fn a_count_says_when_a_running_job_ends() {
    let mut daemon = Setup::new(ONE).args(&["--speed", "20"]).start();
    let counts = || task(&["--memory=2G", "--sm=0.3", "--work=30s", "--startup=4s"], None);
    let mut alone = counts();
    alone.exclusive = true;
    let (job, waits) = (daemon.submit(alone.clone()), daemon.submit(alone));
    // One that waits is told what the one that runs counts.
    until("told", || {
        let told = daemon.show(waits).job.run_time?;
        (told.source == "1 running job's count of this command").then_some(())?;
        // The first counts are of few steps.
        assert!((15..=60).contains(&told.median_s), "{told:?}");
        Some(())
    });
    daemon.end_of(job);
    let told = daemon.show(waits).job.run_time.expect("a run is over");
    assert_eq!(told.source, "1 run of this command");
    daemon.end_of(waits);
    daemon.kill();
    let db = rusqlite::Connection::open(daemon.dir.path().join("state/carma.db")).unwrap();
    let mut query = db.prepare("SELECT at_ms, body FROM inputs ORDER BY seq").unwrap();
    let rows = query.query_map([], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?))).unwrap();
    let mut state = State::default();
    let (mut shares, mut runs, mut first, mut apart) = (Vec::new(), Vec::new(), None, 0);
    for (at, body) in rows.map(Result::unwrap) {
        let (at, input) = (Millis(at.try_into().unwrap()), serde_json::from_str(&body).unwrap());
        state.apply(at, &input).unwrap();
        if let Input::Counted { job: of, attempt: 1, share } = input
            && of.0 == job
        {
            shares.push(share.0);
            runs.extend(state.job(of).unwrap().counted.unwrap().run);
            let first = *first.get_or_insert(at);
            apart += usize::from(at.since(first) >= Millis::secs(3));
        }
    }
    // The first says nothing yet, nor those within three seconds of it.
    assert!(shares.len() >= 4 && shares.is_sorted(), "{shares:?}");
    assert_eq!(runs.len(), apart);
    let last = runs[runs.len() - 1].0;
    assert!((30_000..=40_000).contains(&last), "{runs:?}");
}
