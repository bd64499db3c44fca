//! Submission, running, ending; bad input.

use crate::support::{CARMA, Setup, job, stderr, stdout, task, until};
use carma_api::ClientError;
use carma_api::wire::{DoneReply, JobsReply, ResourceLimit, SubmitReply, SubmitRequest};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;

const ONE: &str = "virtual:1xA100-40GB";

#[test]
fn run_follows_the_output_and_returns_the_exit_code() {
    let daemon = Setup::new(ONE).start();
    let output = daemon.carma(&["run", "--", "/bin/sh", "-c", "echo one; echo two >&2; exit 7"]);
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    assert!(stdout(&output).contains("one\ntwo\n"), "{}", stdout(&output));
    let killed = daemon.carma(&["run", "--", "/bin/sh", "-c", "kill -9 $$"]);
    assert_eq!(killed.status.code(), Some(137));
    // Also by a signal without a name; one of the command's other processes is no concern of its end.
    let line = "(sh -c 'kill -34 $$' &); sleep 1; echo fine; kill -34 $$";
    let killed = daemon.carma(&["run", "--", "/bin/sh", "-c", line]);
    assert_eq!(killed.status.code(), Some(128 + 34), "{}", stderr(&killed));
    assert!(stdout(&killed).contains("fine"), "{}", stdout(&killed));
}

#[test]
fn run_shows_what_its_own_job_appends_to_a_file() {
    let daemon = Setup::new(ONE).start();
    let file = daemon.dir.path().join("out.txt");
    for word in ["one", "two"] {
        let output = daemon.carma(&["run", "-o", file.to_str().unwrap(), "--", "echo", word]);
        assert_eq!(stdout(&output), format!("{word}\n"), "{}", stderr(&output));
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "one\ntwo\n");
}

#[test]
fn each_job_has_the_file_that_its_number_makes() {
    let daemon = Setup::new(ONE).start();
    let dir = daemon.dir.path();
    let pattern = dir.join("%x-%j.out");
    let pattern = pattern.to_str().unwrap();
    let twice = daemon.carma(&[
        "submit",
        "--repeat=2",
        "-J../t",
        "-o",
        pattern,
        "--",
        "/bin/sh",
        "-c",
        "echo $CARMA_JOB_ID",
    ]);
    assert!(stdout(&twice).contains("_._t-2.out"), "{}{}", stdout(&twice), stderr(&twice));
    for id in [1, 2] {
        assert_eq!(daemon.end_of(id).log, dir.join(format!("_._t-{id}.out")).to_str().unwrap());
        assert_eq!(stdout(&daemon.carma(&["logs", &id.to_string()])), format!("{id}\n"));
    }
    let followed = daemon.carma(&["run", "-J../t", "-o", pattern, "--", "echo", "mine"]);
    assert_eq!(stdout(&followed), "mine\n", "{}", stderr(&followed));
    let refused = daemon.carma(&["submit", "-o", "%A.out", "--", "true"]);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
}

#[test]
fn run_hears_its_user_while_the_job_prints_faster_than_can_be_read() {
    let daemon = Setup::new(ONE).start();
    let line = "while :; do head -c 1000000 /dev/zero; sleep .01; done";
    let mut command = Command::new(CARMA);
    command.arg("--socket").arg(daemon.socket()).args(["run", "--", "/bin/sh", "-c", line]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut out = child.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut buffer = [0; 64 << 10];
        while out.read(&mut buffer).unwrap() > 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    until("the job to print", || (daemon.client().log(1, 8_000_000, 1).ok()?.end > 8_000_000).then_some(()));
    let interrupt = || kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    interrupt();
    assert_eq!(daemon.end_of(1).job.state, "CANCELLED");
    // There is much to read still.
    interrupt();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    reader.join().unwrap();
}

#[test]
fn a_log_that_its_job_shortens_is_followed_from_its_start() {
    let daemon = Setup::new(ONE).start();
    let line = "echo hello-world-one; sleep 1; : > /dev/stdout; echo x; sleep 1; echo z";
    let output = daemon.carma(&["run", "--", "/bin/sh", "-c", line]);
    assert!(stdout(&output).ends_with("hello-world-one\nx\nz\n"), "{}", stdout(&output));
    assert!(stderr(&output).contains("the log was cut short"), "{}", stderr(&output));
}

#[test]
fn submit_wait_logs_and_history() {
    let daemon = Setup::new(ONE).start();
    let output = daemon.carma(&["submit", "--name", "hello", "--", "echo", "hi"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(
        stdout(&output).contains("job 1") && stdout(&output).contains("carma logs 1"),
        "{}",
        stdout(&output)
    );
    assert_eq!(daemon.carma(&["wait", "1"]).status.code(), Some(0));
    assert_eq!(stdout(&daemon.carma(&["logs", "1"])), "hi\n");
    let history = stdout(&daemon.carma(&["history"]));
    assert!(history.contains("hello") && history.contains("COMPLETED"), "{history}");
    let show = stdout(&daemon.carma(&["show", "1"]));
    assert!(show.contains("echo hi"), "{show}");
}

#[test]
fn commands_that_cannot_run_say_why() {
    let daemon = Setup::new(ONE).start();
    let over = daemon.end_of(daemon.submit(job(&["/no/such/program"])));
    assert_eq!(over.job.state, "FAILED");
    assert_eq!(over.job.reason.code, "NotStarted");
    assert!(over.job.reason.text.contains("/no/such/program"), "{}", over.job.reason.text);

    let mut gone = job(&["/bin/true"]);
    gone.cwd = "/no/such/directory".into();
    let over = daemon.end_of(daemon.submit(gone));
    assert!(over.job.reason.text.contains("/no/such/directory is gone"), "{}", over.job.reason.text);

    let mut output = job(&["/bin/true"]);
    output.output = Some("/no/such/directory/log".into());
    let over = daemon.end_of(daemon.submit(output));
    assert!(over.job.reason.text.contains("log file /no/such/directory/log"), "{}", over.job.reason.text);

    // Of a long path the error is told, too, and the job is launched once.
    let mut long = job(&["/bin/true"]);
    long.output = Some(format!("/{}", "\u{1}".repeat(4000)));
    let over = daemon.end_of(daemon.submit(long));
    let text = &over.job.reason.text;
    assert_eq!((over.job.reason.code.as_str(), over.attempts.len()), ("NotStarted", 1), "{text}");
    assert!(
        text.contains("its log file /") && text.contains("cannot be opened: File name too long"),
        "{text}"
    );
    let mut longer = job(&["/bin/true"]);
    longer.output = Some(format!("/{}", "x".repeat(3_000_000)));
    let refused = daemon.client().post::<SubmitReply>("/v1/jobs", &longer).unwrap_err().to_string();
    assert!(refused.contains("output file has 3000001 bytes, and 4095"), "{refused}");
}

#[test]
fn what_no_gpu_can_give_is_refused_with_the_numbers() {
    let daemon = Setup::new("virtual:2xA100-40GB").start();
    let mut client = daemon.client();
    let mut refused = |change: fn(&mut carma_api::wire::SubmitRequest)| {
        let mut request = job(&["/bin/true"]);
        change(&mut request);
        match client.post::<SubmitReply>("/v1/jobs", &request) {
            Err(ClientError::Refused { status: 400, message, .. }) => message,
            other => panic!("not refused: {other:?}"),
        }
    };
    let text = refused(|r| r.gpus = Some(3));
    assert!(text.contains("3 GPUs") && text.contains("has 2"), "{text}");
    let text = refused(|r| r.gpu_memory_mib = Some(50 * 1024));
    assert!(text.contains("50.0 GiB") && text.contains("40.0 GiB"), "{text}");
    refused(|r| r.gpus = Some(0));
    refused(|r| r.command = vec![]);
    refused(|r| r.cwd = "relative".into());
    assert!(daemon.queue().jobs.is_empty());
}

#[test]
fn a_job_that_waits_again_does_not_run() {
    let daemon = Setup::new(ONE).start();
    let id = daemon.shell("sleep 600");
    daemon.in_state(id, "RUNNING");
    assert!(daemon.carma(&["drain", "0"]).status.success());
    assert!(daemon.carma(&["requeue", &id.to_string()]).status.success());
    daemon.in_state(id, "PENDING");
    // It waits for longer than it has run.
    std::thread::sleep(Duration::from_secs(4));
    assert!(daemon.carma(&["cancel", &id.to_string()]).status.success());
    let over = daemon.end_of(id);
    let history: JobsReply = serde_json::from_str(&stdout(&daemon.carma(&["history", "--json"]))).unwrap();
    let row = &history.jobs[0];
    assert_eq!(row.ran_until_ms, over.attempts[0].ended_ms);
    let (ended, ran_until) = (row.ended_ms.unwrap(), row.ran_until_ms.unwrap());
    assert!(ended - ran_until >= 4000, "{row:?}");
    let ran = ran_until - row.started_ms.unwrap();
    assert_eq!(row.waited_ms, Some(ended - row.submitted_ms - ran), "{row:?}");
}

#[test]
fn a_job_that_was_submitted_held_is_not_held_when_it_is_submitted_again() {
    let daemon = Setup::new(ONE).start();
    let first = daemon.submit(SubmitRequest { hold: true, ..job(&["/bin/true"]) });
    daemon.carma(&["release", &first.to_string()]);
    daemon.end_of(first);
    assert!(daemon.carma(&["requeue", &first.to_string()]).status.success());
    assert_eq!(daemon.end_of(first + 1).job.state, "COMPLETED");
}

#[test]
fn hold_release_cancel() {
    let daemon = Setup::new(ONE).start();
    let mut held = job(&["/bin/true"]);
    held.hold = true;
    let id = daemon.submit(held);
    assert_eq!(daemon.show(id).job.reason.code, "Held");
    let done: DoneReply = daemon.client().post(&format!("/v1/jobs/{id}/release"), &()).unwrap();
    assert_eq!(done.id, id);
    assert_eq!(daemon.end_of(id).job.state, "COMPLETED");

    let running = daemon.shell("sleep 600");
    daemon.in_state(running, "RUNNING");
    assert!(daemon.carma(&["cancel", &running.to_string()]).status.success());
    let over = daemon.end_of(running);
    assert_eq!((over.job.state.as_str(), over.job.exit_code), ("CANCELLED", Some(143)));
    let again = daemon.carma(&["cancel", &running.to_string()]);
    assert!(!again.status.success() && stderr(&again).contains("over already"), "{}", stderr(&again));
}

/// More than the daemon takes in one turn.
#[test]
fn many_jobs_are_submitted_and_cancelled_in_order_and_none_starts_meanwhile() {
    let daemon = Setup::new(ONE).start();
    let running = daemon.shell("sleep 600");
    daemon.in_state(running, "RUNNING");
    let output =
        daemon.carma(&["submit", "--repeat", "3000", "--exclusive", "--parsable", "--", "/bin/true"]);
    let lines = |output: &std::process::Output| -> Vec<String> {
        String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
    };
    assert_eq!(lines(&output), (2..=3001).map(|id: u32| id.to_string()).collect::<Vec<_>>());
    let output = daemon.carma(&["cancel", "2001-3001,1-2001,5000"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).ends_with("there is no job 5000\n"), "{}", stderr(&output));
    let said = (2001..=3001).chain(1..=2000).map(|id| format!("job {id} is being cancelled"));
    assert_eq!(lines(&output), said.collect::<Vec<_>>());
    daemon.end_of(running);
    for id in [2, 1500, 3001] {
        let over = daemon.end_of(id);
        assert_eq!((over.job.state.as_str(), over.job.attempts), ("CANCELLED", 0), "{id}");
    }
    // What is said of each alike is said once, by orders of one request and of many.
    for (order, jobs) in [("cancel", "1-3001,5000-5009"), ("suspend", "3-7,5000-5009")] {
        let output = daemon.carma(&[order, jobs]);
        assert_eq!((output.status.code(), lines(&output).len()), (Some(1), 0));
        let (first, others) = if order == "cancel" { (1, "2-3001") } else { (3, "4-7") };
        let told = format!(
            "carma: job {first} is over already; see `carma show {first}`; likewise jobs {others}\n\
             carma: there is no job 5000; likewise jobs 5001-5009\n"
        );
        assert_eq!(stderr(&output), told);
    }
}

/// It is live when the order comes, and over when its turn does.
#[test]
fn a_job_that_ends_just_then_is_submitted_again() {
    let daemon = Setup::new(ONE).start();
    let mut client = daemon.client();
    for after in (0..300).map(|at| Duration::from_micros(100 * (at % 150))) {
        let id = daemon.submit(job(&["/bin/true"]));
        std::thread::sleep(after);
        let done: Result<DoneReply, _> = client.post(&format!("/v1/jobs/{id}/requeue"), &());
        let said = done.map_or_else(|refused| refused.to_string(), |done| done.text);
        // It may not have started yet.
        let told = ["is submitted again", "is being put back", "is PENDING: it is in the queue already"];
        assert!(told.iter().any(|told| said.contains(told)), "{said}");
        until("the GPU to be idle", || daemon.queue().jobs.is_empty().then_some(()));
    }
}

#[test]
fn released_jobs_stand_in_the_queue_in_the_order_of_their_numbers() {
    let daemon = Setup::new(ONE).start();
    daemon.carma(&["drain", "0"]);
    daemon.carma(&["submit", "--hold", "--repeat", "3000", "--", "/bin/true"]);
    assert!(daemon.carma(&["release", "1-3000"]).status.success());
    let waiting: Vec<u64> = daemon.queue().jobs.iter().map(|job| job.id).collect();
    assert_eq!(waiting, (1..=3000).collect::<Vec<_>>());
    assert!(daemon.carma(&["cancel", "1-3000"]).status.success());
}

#[test]
fn a_job_that_ignores_the_polite_signal_is_killed_with_its_children() {
    let daemon = Setup::new(ONE).config("[jobs]\nkill-grace = '300ms'\n").start();
    let mark = daemon.dir.path().join("child");
    let id = daemon.shell(&format!(
        "trap '' TERM; (trap '' TERM; echo $$ > {0}; exec sleep 601) & echo started; while :; do sleep 1; done",
        mark.display()
    ));
    until("the job to have started", || mark.exists().then_some(()));
    daemon.carma(&["cancel", &id.to_string()]);
    let over = daemon.end_of(id);
    assert_eq!((over.job.state.as_str(), over.job.exit_code), ("CANCELLED", Some(137)));
    until("the sleeping child to be gone", || {
        let left = std::process::Command::new("pgrep").args(["-f", "sleep 601"]).output().unwrap();
        left.stdout.is_empty().then_some(())
    });
}

#[test]
fn what_a_command_leaves_behind_is_ended() {
    let daemon = Setup::new(ONE).start();
    let id = daemon.shell("setsid sleep 602 & sleep 0.2");
    assert_eq!(daemon.end_of(id).job.state, "COMPLETED");
    until("the background process to be gone", || {
        let left = std::process::Command::new("pgrep").args(["-f", "sleep 602"]).output().unwrap();
        left.stdout.is_empty().then_some(())
    });
}

#[test]
fn time_limit_and_priority() {
    let daemon = Setup::new(ONE).start();
    let mut limited = job(&["/bin/sleep", "600"]);
    limited.time_limit_ms = Some(500);
    limited.exclusive = true;
    let first = daemon.submit(limited);
    daemon.in_state(first, "RUNNING");
    let low = daemon.shell("date +%s%N");
    let mut high = job(&["/bin/sh", "-c", "date +%s%N"]);
    high.priority = 5;
    let high = daemon.submit(high);
    let over = daemon.end_of(first);
    assert_eq!(over.job.state, "TIMEOUT");
    daemon.end_of(low);
    daemon.end_of(high);
    let time = |id| daemon.output(id).trim().parse::<u128>().unwrap();
    assert!(time(high) < time(low), "the higher priority runs first");
}

#[test]
fn a_deleted_log_is_still_readable_while_the_job_runs() {
    let daemon = Setup::new(ONE).start();
    let log = daemon.dir.path().join("own.log");
    let output = Some(log.display().to_string());
    let id = daemon.submit(SubmitRequest { output, ..job(&["/bin/sh", "-c", "echo precious; sleep 600"]) });
    daemon.in_state(id, "RUNNING");
    until("output", || std::fs::read_to_string(&log).ok().filter(|t| !t.is_empty()));
    std::fs::remove_file(&log).unwrap();
    let output = daemon.carma(&["logs", &id.to_string()]);
    assert!(stdout(&output).contains("precious"), "{}{}", stdout(&output), stderr(&output));
    daemon.carma(&["cancel", &id.to_string()]);
    daemon.end_of(id);
    let output = daemon.carma(&["logs", &id.to_string()]);
    assert!(!output.status.success() && stderr(&output).contains("log"), "{}", stderr(&output));
}

/// `ulimit -n 0` in the session: no fault of the machine's, which would be tried again for ever.
#[test]
fn a_job_that_its_own_limit_keeps_from_starting_fails() {
    let daemon = Setup::new(ONE).start();
    let mut limited = job(&["/bin/echo", "hi"]);
    limited.session.limits.insert("nofile".into(), ResourceLimit { soft: Some(0), hard: None });
    let over = daemon.end_of(daemon.submit(limited));
    assert_eq!((&*over.job.state, over.attempts.len()), ("FAILED", 1), "{over:?}");
}

#[test]
fn a_job_that_was_never_started_has_no_output_for_a_reason() {
    let daemon = Setup::new(ONE).start();
    let own = daemon.dir.path().join("own.log").display().to_string();
    let gone = SubmitRequest { cwd: "/nowhere/at/all".into(), ..job(&["true"]) };
    for request in [gone.clone(), SubmitRequest { output: Some(own), ..gone }] {
        let id = daemon.submit(request).to_string();
        daemon.end_of(id.parse().unwrap());
        for args in [&["logs", &id][..], &["logs", "-n3", &id], &["logs", "-f", &id]] {
            let output = daemon.carma(args);
            let why = format!("job {id} has no output: FAILED, the command was not started: its directory");
            assert!(!output.status.success() && stderr(&output).contains(&why), "{}", stderr(&output));
        }
    }
    let silent = daemon.submit(job(&["true"]));
    daemon.end_of(silent);
    assert!(daemon.carma(&["logs", &silent.to_string()]).status.success());
}

#[test]
fn rubbish_on_the_socket_harms_nobody() {
    let daemon = Setup::new(ONE).start();
    let mut stream = UnixStream::connect(daemon.socket()).unwrap();
    let garbage: Vec<u8> = (0..1 << 20).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    // The daemon may close the connection before everything is written.
    let _ = stream.write_all(&garbage);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    drop(stream);
    // A client that leaves in the middle of its request.
    let mut half = UnixStream::connect(daemon.socket()).unwrap();
    half.write_all(b"POST /v1/jobs HTTP/1.1\r\nhost: c\r\ncontent-length: 100\r\n\r\n{\"comm").unwrap();
    drop(half);
    // A body that is too large, and one that is no job.
    let mut client = daemon.client();
    let huge = "x".repeat(5 << 20);
    assert!(client.post::<SubmitReply>("/v1/jobs", &huge).is_err());
    let unknown = serde_json::json!({"command": ["true"], "cwd": "/", "gpu_memroy_mib": 5});
    match daemon.client().post::<SubmitReply>("/v1/jobs", &unknown) {
        Err(ClientError::Refused { status: 400, message, .. }) => {
            assert!(message.contains("gpu_memroy_mib"), "{message}");
        }
        other => panic!("not refused: {other:?}"),
    }
    assert_eq!(daemon.end_of(daemon.shell("exit 0")).job.state, "COMPLETED");
    assert!(!daemon.log().contains("panicked"), "{}", daemon.log());
}

#[test]
fn twenty_clients_at_once() {
    let daemon = Setup::new("virtual:2xA100-40GB").args(&["--policy", "or-rr"]).start();
    let ids: Vec<u64> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..20)
            .map(|_| scope.spawn(|| (0..5).map(|_| daemon.shell("exit 0")).collect::<Vec<_>>()))
            .collect();
        clients.into_iter().flat_map(|c| c.join().unwrap()).collect()
    });
    let mut unique = ids.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), 100, "every job has a number of its own");
    for id in ids {
        assert_eq!(daemon.end_of(id).job.state, "COMPLETED");
    }
}

#[test]
fn rad_and_toml_files() {
    let daemon = Setup::new(ONE).start();
    let rad = daemon.dir.path().join("task.rad");
    let text = "# c\n\npython3 --version\nm\nd\n32\nexclusive\n1\n788\n2231.6\n53.9\n8000\n";
    std::fs::write(&rad, text).unwrap();
    let output = daemon.carma(&["submit", "--rad", rad.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    let detail = daemon.end_of(1);
    assert_eq!(detail.forecasts_mib.get("measured"), Some(&788));
    assert_eq!(detail.forecasts_mib.get("gpumemnet"), Some(&8000));

    std::fs::write(&rad, text.replace("\n1\n788", "\nmany\n788")).unwrap();
    let output = daemon.carma(&["submit", "--rad", rad.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("task.rad:8: expected the number of GPUs"), "{}", stderr(&output));

    let toml = daemon.dir.path().join("job.toml");
    std::fs::write(&toml, "command = ['/bin/echo', 'from toml']\ngpu-memory = '2G'\n").unwrap();
    let output = daemon.carma(&["submit", "--parsable", "--file", toml.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    let id: u64 = stdout(&output).trim().parse().unwrap();
    assert_eq!(daemon.end_of(id).forecasts_mib.get("declared"), Some(&2048));
}

#[test]
fn the_original_tasks_are_accepted() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/carma/tasks");
    let Ok(entries) = std::fs::read_dir(&folder) else {
        eprintln!("SKIPPED: the original's .rad files are not at {}", folder.display());
        return;
    };
    let daemon = Setup::new("virtual:4xA100-40GB").start();
    for entry in entries {
        let file = entry.unwrap().path();
        let output = daemon.carma(&["submit", "--hold", "--rad", file.to_str().unwrap()]);
        assert!(output.status.success(), "{}: {}", file.display(), stderr(&output));
    }
    assert_eq!(daemon.queue().jobs.len(), 52);
}

#[test]
fn an_unreachable_daemon_is_exit_code_69() {
    let output = std::process::Command::new(crate::support::CARMA)
        .args(["--socket", "/no/such/socket", "queue"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(69));
    assert!(stderr(&output).contains("carma serve"), "{}", stderr(&output));
}

#[test]
fn a_drained_gpu_takes_no_new_jobs() {
    let daemon = Setup::new(ONE).start();
    assert!(daemon.carma(&["drain", "0"]).status.success());
    let id = daemon.submit(task(&["--memory=1G", "--work=1s", "--startup=0s"], Some(1)));
    until("the reason to say so", || (daemon.show(id).job.reason.code == "GpuDrained").then_some(()));
    assert!(daemon.carma(&["resume", "0"]).status.success());
    assert_eq!(daemon.end_of(id).job.state, "COMPLETED");
}
