//! `kill -9` at any instant: nothing lost, nothing run twice.

use crate::support::{CARMA, Daemon, Setup, job, stdout, task, until};
use carma_api::wire::{SubmitReply, SubmitRequest};
use std::fs::File;
use std::process::Command;

const TWO: &str = "virtual:2xA100-40GB";

#[test]
fn a_running_job_is_adopted_with_its_exit_code() {
    let mut daemon = Setup::new(TWO).args(&["--policy", "exclusive"]).start();
    let go = daemon.dir.path().join("go");
    let wait = format!("while ! [ -e {} ]; do sleep 0.05; done; echo adopted; exit 5", go.display());
    let running = daemon.shell(&wait);
    let end = daemon.dir.path().join("end");
    let ended_meanwhile =
        daemon.shell(&format!("while ! [ -e {} ]; do sleep 0.05; done; exit 6", end.display()));
    let waiting = daemon.shell("exit 0");
    daemon.in_state(running, "RUNNING");
    let pid = until("its pid", || daemon.in_state(ended_meanwhile, "RUNNING").pid);
    daemon.kill();
    std::fs::write(&end, "").unwrap();
    until("it to end", || (!lives(pid)).then_some(()));
    daemon.restart(&[]);
    assert_eq!(daemon.show(running).job.state, "RUNNING");
    let over = daemon.end_of(ended_meanwhile);
    assert_eq!((over.job.state.as_str(), over.job.exit_code), ("FAILED", Some(6)));
    std::fs::write(&go, "").unwrap();
    let over = daemon.end_of(running);
    assert_eq!((over.job.exit_code, over.job.attempts), (Some(5), 1));
    assert!(daemon.output(running).contains("adopted"));
    assert_eq!(daemon.end_of(waiting).job.state, "COMPLETED");
}

#[test]
fn a_virtual_task_keeps_its_memory_and_progress() {
    let mut daemon = Setup::new(TWO).args(&["--policy", "oracle-bf"]).start();
    let id = daemon.submit(task(&["--memory=9G", "--sm=0.3", "--work=4s", "--startup=0s"], Some(10)));
    let used = |d: &Daemon| d.gpus().gpus.iter().filter_map(|g| g.memory_used_mib).sum::<u64>();
    until("the memory to be taken", || (used(&daemon) >= 9 * 1024).then_some(()));
    daemon.kill();
    daemon.restart(&[]);
    until("the memory to be seen again", || (used(&daemon) >= 9 * 1024).then_some(()));
    let over = daemon.end_of(id);
    assert_eq!((over.job.state.as_str(), over.job.attempts), ("COMPLETED", 1));
}

/// Submits jobs that leave a mark each time they run, with a daemon that dies at a point, and
/// restarts it until all are over. However often it died, each ran exactly once.
fn dies_at(point: &str) {
    let mut daemon = Setup::new(TWO).args(&["--policy", "or-rr"]).start();
    let marks = daemon.dir.path().join("marks");
    std::fs::create_dir(&marks).unwrap();
    daemon.kill();
    daemon.restart(&[("CARMA_FAULT", point)]);
    let mut accepted = Vec::new();
    for round in 0..6 {
        let line = format!("echo ran >> {}/$CARMA_JOB_ID; exit {round}", marks.display());
        let answer = carma_api::Client::connect(&daemon.socket())
            .and_then(|mut c| c.post::<SubmitReply>("/v1/jobs", &job(&["/bin/sh", "-c", &line])));
        if let Ok(reply) = answer {
            accepted.push((reply.id, round));
        }
        if round == 3 {
            // Wherever the point is, it is reached by now.
            daemon.wait_dead();
            // A second death at the same point, during recovery or soon after.
            daemon.spawn_again(&[("CARMA_FAULT", point)]);
            // Or none, where it does not come that far in this time.
            std::thread::sleep(std::time::Duration::from_millis(700));
            daemon.kill();
            daemon.restart(&[]);
        }
    }
    for (id, round) in accepted {
        let over = daemon.end_of(id);
        assert_eq!(over.job.exit_code, Some(round), "job {id}: {}", over.job.reason.text);
        let ran = std::fs::read_to_string(marks.join(id.to_string())).unwrap();
        assert_eq!(ran, "ran\n", "job {id} ran exactly once");
    }
    // A job whose acceptance the client never heard of may be there too; it runs like the others.
    until("the queue to be empty", || daemon.queue().jobs.is_empty().then_some(()));
    // What is left of all these lives is the directory of the last, and in it the mark of the state directory.
    let run = daemon.dir.path().join("state/run");
    let entries = |dir: &std::path::Path| -> Vec<std::path::PathBuf> {
        std::fs::read_dir(dir).unwrap().flatten().map(|entry| entry.path()).collect()
    };
    until(&format!("the records to be cleaned up: {:?}", entries(&run)), || {
        let lives = entries(&run);
        (lives.len() == 1 && entries(&lives[0]) == [lives[0].join("place")]).then_some(())
    });
}

#[test]
fn the_daemons_own_deaths_never_count_against_a_job() {
    let mut daemon = Setup::new(TWO).args(&["--policy", "or-rr"]).start();
    let mark = daemon.dir.path().join("mark");
    let line = format!("echo ran >> {}", mark.display());
    let id = daemon.submit(SubmitRequest { hold: true, ..job(&["/bin/sh", "-c", &line]) });
    daemon.kill();
    daemon.restart(&[("CARMA_FAULT", "after-decision")]);
    let _ = daemon.client().post::<carma_api::wire::DoneReply>(&format!("/v1/jobs/{id}/release"), &());
    daemon.wait_dead();
    for _ in 0..6 {
        // It dies again as soon as it decides.
        daemon.spawn_again(&[("CARMA_FAULT", "after-decision")]);
        daemon.wait_dead();
    }
    daemon.restart(&[]);
    let over = daemon.end_of(id);
    assert_eq!(over.job.state, "COMPLETED", "{}", over.job.reason.text);
    assert_eq!(std::fs::read_to_string(mark).unwrap(), "ran\n");
}

#[test]
fn a_stopped_supervisor_can_be_ended() {
    let daemon = Setup::new(TWO).config("[jobs]\nkill-grace = '1s'\n").start();
    let stop = |id: u64| {
        let pid = until("the pid", || daemon.show(id).pid);
        let supervisor = supervisor_of(pid);
        assert!(std::process::Command::new("kill").args(["-STOP", &supervisor]).status().unwrap().success());
        (pid, supervisor)
    };
    let id = daemon.shell("sleep 604");
    let (pid, supervisor) = stop(id);
    // It is stopped again and again.
    let go_on = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    let (flag, name) = (go_on.clone(), supervisor.clone());
    let stopper = std::thread::spawn(move || {
        while flag.load(std::sync::atomic::Ordering::Relaxed) {
            let _ = std::process::Command::new("kill")
                .args(["-STOP", &name])
                .stderr(std::process::Stdio::null())
                .status();
        }
    });
    daemon.carma(&["cancel", &id.to_string()]);
    assert_eq!(daemon.end_of(id).job.state, "CANCELLED");
    go_on.store(false, std::sync::atomic::Ordering::Relaxed);
    stopper.join().unwrap();
    assert!(!lives(pid), "nothing is left of it");
    // A time limit holds, too.
    let limited = SubmitRequest { time_limit_ms: Some(1000), ..job(&["sleep", "605"]) };
    let id = daemon.submit(limited);
    stop(id);
    assert_eq!(daemon.end_of(id).job.state, "TIMEOUT");
}

/// Its supervisor is stopped, so that the end of the command and the signal of the daemon come to it together, the end first.
#[test]
fn what_is_done_before_its_signal_comes_is_not_run_again() {
    let daemon = Setup::new(TWO).start();
    for saves in [false, true] {
        let at = |name: &str| daemon.dir.path().join(format!("{name}-{saves}"));
        let (mark, go) = (at("mark"), at("go"));
        let line = format!(
            "trap 'echo asked' USR1; echo ran >> {}; until [ -e {} ]; do sleep 0.02; done",
            mark.display(),
            go.display()
        );
        let mut request = job(&["/bin/sh", "-c", &line]);
        request.checkpoint_signal = saves.then_some(carma_api::wire::CheckpointSignal::Usr1);
        let id = daemon.submit(request);
        let pid = until("the pid", || daemon.show(id).pid.filter(|_| mark.exists()));
        let supervisor = supervisor_of(pid);
        assert!(std::process::Command::new("kill").args(["-STOP", &supervisor]).status().unwrap().success());
        std::fs::write(&go, "").unwrap();
        until("its end", || (!lives(pid)).then_some(()));
        assert!(daemon.carma(&["requeue", &id.to_string()]).status.success());
        let over = daemon.end_of(id);
        let said = (over.job.state.as_str(), over.job.exit_code, over.attempts.len());
        assert_eq!(said, ("COMPLETED", Some(0), 1), "{}", daemon.log());
        assert_eq!(std::fs::read_to_string(&mark).unwrap(), "ran\n");
    }
}

/// Code 0 after a signal that it handles or ignores may mean that it ended as it was asked to.
#[test]
fn what_need_not_end_by_the_signal_goes_back_though_it_exits_with_0() {
    let daemon = Setup::new(TWO).start();
    let [told, mark] = ["told", "mark"].map(|name| daemon.dir.path().join(name).display().to_string());
    let handles = format!("trap 'echo > {told}; exit 0' TERM; echo > {mark}; while :; do sleep 0.02; done");
    // What is beside it in its process group shows that the signal was passed on.
    let beside =
        format!("trap 'echo > {told}; exit' TERM; echo > {told}.ready; while :; do sleep 0.02; done");
    let ignores = format!(
        "({beside})& until [ -e {told}.ready ]; do sleep 0.02; done; trap '' TERM; echo > {mark}; \
         until [ -e {told} ]; do sleep 0.02; done"
    );
    for line in [handles, ignores] {
        let id = daemon.shell(&format!("[ $CARMA_RESTART = 1 ] && exit 0; {line}"));
        until("it to run", || std::fs::remove_file(&mark).ok());
        assert!(daemon.carma(&["requeue", &id.to_string()]).status.success());
        let over = daemon.end_of(id);
        let codes: Vec<_> = over.attempts.iter().map(|attempt| attempt.exit_code).collect();
        let said = (over.job.state.as_str(), &codes[..]);
        assert_eq!(said, ("COMPLETED", &[Some(0), Some(0)][..]), "{}", daemon.log());
        std::fs::remove_file(&told).unwrap();
    }
}

#[test]
fn what_a_job_leaves_behind_ends_with_it_though_its_supervisor_was_killed() {
    let daemon = Setup::new(TWO).config("[jobs]\nkill-grace = '1s'\n").start();
    if !daemon.log().contains("each job has a cgroup") {
        eprintln!("SKIPPED: jobs have no cgroups here: {}", daemon.log());
        return;
    }
    let child = daemon.dir.path().join("child");
    let id =
        daemon.shell(&format!("setsid sh -c 'echo $$ > {}; exec sleep 606' & sleep 607", child.display()));
    let hidden =
        until("the hidden child", || std::fs::read_to_string(&child).ok().filter(|t| t.ends_with('\n')));
    let pid = until("the pid", || daemon.show(id).pid);
    assert!(std::process::Command::new("kill").args(["-9", &supervisor_of(pid)]).status().unwrap().success());
    until("the daemon to notice", || daemon.log().contains("unsupervised").then_some(()));
    daemon.carma(&["cancel", &id.to_string()]);
    assert_eq!(daemon.end_of(id).job.state, "CANCELLED");
    let hidden: u32 = hidden.trim().parse().unwrap();
    until("the hidden child to be gone", || (!lives(hidden)).then_some(()));
}

#[test]
fn a_cancel_that_comes_while_a_job_is_launched_wins() {
    // The launch is held up for two seconds before the supervisor is spawned.
    let mut daemon = Setup::new(TWO).args(&["--policy", "or-rr"]).start();
    let mark = daemon.dir.path().join("mark");
    daemon.kill();
    daemon.restart(&[("CARMA_FAULT", "hold-launch")]);
    let id = daemon.shell(&format!("echo ran >> {}", mark.display()));
    until("the decision", || (daemon.show(id).job.reason.code == "Launching").then_some(()));
    daemon.carma(&["cancel", &id.to_string()]);
    let over = daemon.end_of(id);
    assert_eq!(over.job.state, "CANCELLED");
    // Nothing tells of a launch that does not come: longer than it is held up.
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert!(!mark.exists(), "it started after it was cancelled");
}

/// Whether a process is there, and no zombie that the machine's first process has not reaped yet.
fn lives(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// The parent of a job's first process.
fn supervisor_of(pid: u32) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(')').next().unwrap().split_whitespace().nth(1).unwrap().to_owned()
}

#[test]
fn killed_before_the_commit() {
    dies_at("before-commit");
}

#[test]
fn killed_between_decision_and_spawn() {
    dies_at("after-decision");
}

#[test]
fn killed_between_spawn_and_record() {
    dies_at("after-spawn");
}

#[test]
fn killed_between_exit_and_record() {
    dies_at("after-exit");
}

/// A daemon that hangs after an error of its own would be of no use, nor started again.
#[test]
fn a_panic_ends_the_daemon_and_costs_no_job() {
    let mut daemon = Setup::new(TWO).env("CARMA_FAULT", "panic-after-exit").start();
    let id = daemon.shell("exit 3");
    daemon.wait_dead();
    assert!(daemon.log().contains("panicked") && daemon.log().contains("jobs go on"), "{}", daemon.log());
    daemon.restart(&[]);
    assert_eq!(daemon.end_of(id).job.exit_code, Some(3));
}

#[test]
fn killed_again_and_again_under_load() {
    let mut daemon = Setup::new(TWO).args(&["--policy", "or-rr"]).start();
    let marks = daemon.dir.path().join("marks");
    std::fs::create_dir(&marks).unwrap();
    let mut accepted = Vec::new();
    for round in 0..5_u64 {
        for _ in 0..10 {
            let line = format!("echo ran >> {}/$CARMA_JOB_ID; sleep 0.0{round}", marks.display());
            accepted.push(daemon.shell(&line));
        }
        std::thread::sleep(std::time::Duration::from_millis(37 * round));
        daemon.kill();
        daemon.restart(&[]);
    }
    for id in accepted {
        assert_eq!(daemon.end_of(id).job.state, "COMPLETED");
        assert_eq!(std::fs::read_to_string(marks.join(id.to_string())).unwrap(), "ran\n");
    }
}

#[test]
fn a_killed_supervisor_does_not_take_the_command_with_it() {
    let daemon = Setup::new(TWO).start();
    let done = daemon.dir.path().join("done");
    let id = daemon.shell(&format!("echo before; sleep 1; echo after; touch {}", done.display()));
    let pid = until("the pid", || daemon.show(id).pid);
    let supervisor = supervisor_of(pid);
    assert!(std::process::Command::new("kill").args(["-9", &supervisor]).status().unwrap().success());
    let over = daemon.end_of(id);
    assert!(done.exists(), "the command went on to its end");
    assert_eq!((over.job.state.as_str(), over.job.reason.code.as_str()), ("FAILED", "ExitUnknown"));
    assert_eq!(daemon.output(id), "before\nafter\n");
}

#[test]
fn a_job_whose_supervisor_was_killed_is_told_so_and_can_be_cancelled() {
    let mut daemon = Setup::new(TWO).start();
    let id = daemon.shell("sleep 603");
    let pid = until("the pid", || daemon.show(id).pid);
    let supervisor = supervisor_of(pid);
    let explained = |daemon: &Daemon| stdout(&daemon.carma(&["explain", &id.to_string()]));
    assert!(!explained(&daemon).contains("supervisor"));
    assert!(std::process::Command::new("kill").args(["-9", &supervisor]).status().unwrap().success());
    until("the daemon to notice", || daemon.log().contains("unsupervised").then_some(()));
    let killed =
        "its supervisor was killed; what it prints is not followed, and its exit code will not be known";
    assert!(explained(&daemon).contains(killed), "{}", explained(&daemon));
    daemon.kill();
    daemon.restart(&[]);
    assert!(explained(&daemon).contains(killed), "{}", explained(&daemon));
    daemon.carma(&["cancel", &id.to_string()]);
    assert_eq!(daemon.end_of(id).job.state, "CANCELLED");
}

#[test]
fn two_daemons_on_one_state_directory() {
    let daemon = Setup::new(TWO).start();
    let second = std::process::Command::new(CARMA)
        .arg("--socket")
        .arg(daemon.dir.path().join("other"))
        .args(["serve", "--gpus", TWO, "--state"])
        .arg(daemon.dir.path().join("state"))
        .output()
        .unwrap();
    assert!(!second.status.success());
    let text = crate::support::stderr(&second);
    assert!(text.contains("another carma daemon uses") && text.contains("--state"), "{text}");
    assert_eq!(daemon.end_of(daemon.shell("exit 0")).job.state, "COMPLETED");
}

#[test]
fn a_copy_of_a_state_directory_leaves_its_jobs_alone_and_a_moved_one_goes_on() {
    let mut daemon = Setup::new(TWO).args(&["--policy", "exclusive"]).start();
    let at = |name: &str| daemon.dir.path().join(name);
    let (go, state, copy, moved) = (at("go"), at("state"), at("copy"), at("moved"));
    let wait = format!("while ! [ -e {} ]; do sleep 0.05; done; exit 5", go.display());
    let before = daemon.shell(&wait);
    daemon.in_state(before, "RUNNING");
    // So that nothing is written meanwhile.
    daemon.kill();
    assert!(Command::new("cp").arg("-a").args([&state, &copy]).status().unwrap().success());
    daemon.restart(&[]);
    let after = daemon.shell(&wait);
    daemon.in_state(after, "RUNNING");
    let mut setup = Setup::new(TWO).args(&["--policy", "exclusive"]);
    setup.state = Some(copy);
    let second = setup.start();
    let over = second.end_of(before);
    assert_eq!((over.job.state.as_str(), over.job.reason.code.as_str()), ("FAILED", "ExitUnknown"));
    assert!(second.log().contains("is a copy of another state directory"), "{}", second.log());
    // It runs jobs of its own, and ends none of the first one's when it goes.
    assert_eq!(second.end_of(second.shell("exit 0")).job.state, "COMPLETED");
    drop(second);
    let waits = daemon.shell("echo done");
    daemon.kill();
    std::fs::rename(&state, &moved).unwrap();
    daemon.restart_at(moved);
    for id in [before, after] {
        assert_eq!(daemon.show(id).job.state, "RUNNING", "{}", daemon.log());
    }
    std::fs::write(&go, "").unwrap();
    for id in [before, after] {
        assert_eq!(daemon.end_of(id).job.exit_code, Some(5), "{}", daemon.log());
    }
    // Its log was to be where the directory is no more.
    assert_eq!(daemon.end_of(waits).job.state, "COMPLETED");
    assert_eq!(daemon.output(waits), "done\n");
}

/// As a power loss leaves it: the journal was on the disk, the record's bytes were not.
#[test]
fn a_job_whose_record_was_left_empty_does_not_keep_its_gpu() {
    let mut daemon = Setup::new("virtual:1xA100-40GB").args(&["--policy", "exclusive"]).start();
    let id = daemon.shell("sleep 608");
    let pid = until("its pid", || daemon.in_state(id, "RUNNING").pid);
    daemon.kill();
    for pid in [supervisor_of(pid), pid.to_string()] {
        assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
    }
    until("it to be gone", || (!lives(pid)).then_some(()));
    for life in std::fs::read_dir(daemon.dir.path().join("state/run")).unwrap().flatten() {
        std::fs::write(life.path().join(format!("{id}.1.record")), "").unwrap();
    }
    daemon.restart(&[]);
    let over = daemon.end_of(id);
    assert_eq!((over.job.state.as_str(), over.job.reason.code.as_str()), ("FAILED", "ExitUnknown"));
    assert_eq!(daemon.end_of(daemon.shell("exit 0")).job.state, "COMPLETED");
}

#[test]
fn a_polite_stop_leaves_jobs_running() {
    let mut daemon = Setup::new(TWO).start();
    let go = daemon.dir.path().join("go");
    let id = daemon.shell(&format!("while ! [ -e {} ]; do sleep 0.05; done; exit 9", go.display()));
    daemon.in_state(id, "RUNNING");
    let pid = daemon.pid().to_string();
    assert!(std::process::Command::new("kill").arg(&pid).status().unwrap().success());
    daemon.wait_dead();
    daemon.restart(&[]);
    std::fs::write(&go, "").unwrap();
    assert_eq!(daemon.end_of(id).job.exit_code, Some(9));
}

#[test]
fn who_watches_the_gpus_sees_the_daemon_go_and_come_back() {
    let mut daemon = Setup::new(TWO).start();
    let (out, err) = (daemon.dir.path().join("out"), daemon.dir.path().join("err"));
    let mut watch = Command::new(CARMA)
        .arg("--socket")
        .arg(daemon.socket())
        .args(["gpus", "--watch", "100ms"])
        .stdout(File::create(&out).unwrap())
        .stderr(File::create(&err).unwrap())
        .spawn()
        .unwrap();
    let tables = || std::fs::read_to_string(&out).unwrap().matches("GPU  NAME").count();
    until("a second table", || (tables() > 1).then_some(()));
    daemon.kill();
    let said = || std::fs::read_to_string(&err).unwrap();
    until("it to be missed", || said().contains("Trying again until Ctrl-C").then_some(()));
    let before = tables();
    daemon.restart(&[]);
    until("tables again", || (tables() > before).then_some(()));
    assert!(watch.try_wait().unwrap().is_none());
    assert_eq!(said().lines().count(), 1, "it says so once: {}", said());
    watch.kill().unwrap();
    watch.wait().unwrap();
}
