//! Jobs that are taken off their GPU for a while.

use crate::support::{Daemon, Setup, is_root, job, one_that_grows_beside, stderr, stdout, task, until};
use carma_api::wire::{JobDetail, SubmitRequest};
use carma_core::model::SharingMode;
use fake_cuda::{Fault, Process};
use fake_nvml::{FakeGpu, FakeProcess, State};
use tempfile::TempDir;

const ONE: &str = "virtual:1xA100-40GB";

/// A task that takes turns and would run for so many seconds alone.
fn training(gib: u64, work_s: u64) -> SubmitRequest {
    let (memory, work) = (format!("{gib}G"), work_s.to_string());
    let words = ["--memory", &memory, "--sm", "0.5", "--startup", "0s", "--work", &format!("{work}s")];
    SubmitRequest { sharing: Some(SharingMode::TimeSlice), ..task(&words, Some(gib)) }
}

#[track_caller]
fn carma(daemon: &Daemon, args: &[&str]) -> String {
    let output = daemon.carma(args);
    assert!(output.status.success(), "{args:?}: {}\n{}", stderr(&output), daemon.log());
    stdout(&output)
}

#[track_caller]
fn refused(daemon: &Daemon, args: &[&str]) -> String {
    let output = daemon.carma(args);
    assert!(!output.status.success(), "{args:?}: {}", stdout(&output));
    stderr(&output)
}

/// What a job is seen to hold on the GPU.
fn observed(daemon: &Daemon, id: u64) -> Option<u64> {
    let gpu = daemon.gpus().gpus.remove(0);
    gpu.tenants.iter().find(|tenant| tenant.job == id)?.observed_mib
}

#[track_caller]
fn runs_with(daemon: &Daemon, id: u64, gib: u64) {
    until(&format!("job {id} to hold {gib} GiB; the daemon's log:\n{}", daemon.log()), || {
        // Its memory may be seen before the daemon has heard that it has started.
        let runs = daemon.show(id).job.state == "RUNNING";
        (runs && observed(daemon, id) == Some(gib << 10)).then_some(())
    });
}

fn steps(daemon: &Daemon, id: u64) -> usize {
    daemon.output(id).lines().filter(|line| line.starts_with("step ")).count()
}

#[track_caller]
fn suspended(daemon: &Daemon, id: u64) -> JobDetail {
    // Where it was just started, the look in which it is seen on its GPU may be on its way to the engine.
    until("its suspension to be accepted", || {
        let output = daemon.carma(&["suspend", &id.to_string()]);
        let early = stderr(&output).contains("has used its GPU so far");
        assert!(output.status.success() || early, "{}\n{}", stderr(&output), daemon.log());
        output.status.success().then_some(())
    });
    daemon.in_state(id, "SUSPENDED")
}

#[test]
fn several_jobs_are_suspended_resumed_and_put_back_by_one_command() {
    let daemon = Setup::new(ONE).start();
    let jobs = [training(4, 600), training(4, 600)].map(|training| daemon.submit(training));
    for id in jobs {
        until("its memory to be known", || daemon.show(id).job.memory_peak_mib.filter(|mib| *mib == 4 << 10));
    }
    for (words, said, state) in [
        (&["suspend"][..], "is being suspended", "SUSPENDED"),
        (&["resume", "--job"], "goes on as soon as", "RUNNING"),
        (&["requeue"], "is being put back", "RUNNING"),
    ] {
        let output = daemon.carma(&[words, &["1-2,7-9"]].concat());
        assert_eq!(output.status.code(), Some(1));
        let told = stdout(&output);
        assert!(told.lines().count() == 2 && told.lines().all(|line| line.contains(said)), "{told}");
        assert_eq!(stderr(&output), "carma: there is no job 7; likewise jobs 8-9\n");
        for id in jobs {
            until(state, || (daemon.show(id).job.state == state).then_some(()));
        }
    }
    for id in jobs {
        until("its second attempt", || (daemon.show(id).job.attempts == 2).then_some(()));
    }
}

#[test]
fn a_job_leaves_its_gpu_to_others_and_goes_on_where_it_was() {
    let daemon = Setup::new(ONE).args(&["--speed", "20"]).start();
    let id = daemon.submit(training(30, 60));
    runs_with(&daemon, id, 30);
    until("its first steps", || (steps(&daemon, id) > 0).then_some(()));
    let told = carma(&daemon, &["suspend", &id.to_string()]);
    assert!(told.contains(&format!("job {id} is being suspended")), "{told}");
    let view = daemon.in_state(id, "SUSPENDED").job;
    assert_eq!((view.reason.code.as_str(), &view.gpus[..]), ("Suspended", &[][..]));
    assert!(view.reason.text.starts_with("suspended by "), "{}", view.reason.text);
    let gpu = daemon.gpus().gpus.remove(0);
    assert!(gpu.tenants.is_empty(), "{gpu:?}");
    until("its memory to be free", || (daemon.gpus().gpus[0].memory_used_mib == Some(0)).then_some(()));
    let table = carma(&daemon, &["queue"]);
    assert!(table.contains("SUSPENDED") && table.contains("0 running, 1 suspended, 0 pending"), "{table}");

    // Its memory is another's now, and it comes back when that one is done.
    let before = steps(&daemon, id);
    let other = daemon.submit(training(30, 60));
    runs_with(&daemon, other, 30);
    carma(&daemon, &["resume", &id.to_string()]);
    let reason = until("its reason", || {
        let job = daemon.show(id).job;
        (job.reason.code == "GpuMemory").then_some(job.reason.text)
    });
    assert!(reason.contains("need 30.0 GiB") && reason.contains(&format!("job {other}")), "{reason}");
    let explained = until("whose end it waits for", || {
        let explained = carma(&daemon, &["explain", &id.to_string()]);
        explained.contains("waits for:").then_some(explained)
    });
    let words = explained.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("place: 1st of 1; suspended jobs that come back go before"), "{explained}");
    assert!(
        words.contains(&format!("waits for: the end of job {other} on GPU 0"))
            && words.contains("GPU JOBS FREE ANSWER"),
        "{explained}"
    );
    // No job overtakes it.
    let later = daemon.submit(training(5, 1));
    let waits = until("the reason of the last one", || {
        let job = daemon.show(later).job;
        (job.state == "PENDING" && job.reason.code != "NotPlannedYet").then_some(job.reason.text)
    });
    assert!(waits.contains(&format!("job {id}")), "{waits}");
    assert_eq!(steps(&daemon, id), before, "it stands still");
    daemon.end_of(other);
    let over = daemon.end_of(id);
    assert_eq!((over.job.state.as_str(), over.attempts.len()), ("COMPLETED", 1), "{}", daemon.log());
    assert!(over.job.suspended_ms.is_some_and(|ms| ms > 0));
    let done = daemon.output(id);
    let took: f64 = done.rsplit(" in ").next().unwrap().split(' ').next().unwrap().parse().unwrap();
    let ran = over.job.ended_ms.unwrap() - over.job.started_ms.unwrap();
    assert!(ran as f64 / 1000.0 > took, "its own clock stood still, too: {done}");
    assert_eq!(daemon.end_of(later).job.state, "COMPLETED");
}

#[test]
fn time_limits_do_not_count_while_a_job_is_suspended() {
    let daemon = Setup::new(ONE).start();
    let mut request = training(5, 3);
    request.time_limit_ms = Some(6_000);
    let id = daemon.submit(request);
    runs_with(&daemon, id, 5);
    suspended(&daemon, id);
    std::thread::sleep(std::time::Duration::from_secs(7));
    assert_eq!(daemon.show(id).job.state, "SUSPENDED");
    // What was asked for is withdrawn by asking for the contrary.
    carma(&daemon, &["resume", "--job", &id.to_string()]);
    assert_eq!(daemon.end_of(id).job.state, "COMPLETED", "{}", daemon.log());
}

#[test]
fn a_suspended_job_can_be_cancelled_and_requeued() {
    let daemon = Setup::new(ONE).start();
    let id = daemon.submit(training(5, 3_600));
    runs_with(&daemon, id, 5);
    let pid = daemon.show(id).pid.unwrap();
    suspended(&daemon, id);
    let again = refused(&daemon, &["suspend", &id.to_string()]);
    assert!(again.contains("suspended already"), "{again}");
    carma(&daemon, &["requeue", &id.to_string()]);
    runs_with(&daemon, id, 5);
    assert_eq!(daemon.show(id).attempts.len(), 2);
    suspended(&daemon, id);
    carma(&daemon, &["cancel", &id.to_string()]);
    assert_eq!(daemon.end_of(id).job.state, "CANCELLED");
    until("its process to be gone", || std::fs::read_link(format!("/proc/{pid}/exe")).is_err().then_some(()));
}

#[test]
fn what_cannot_be_suspended_is_told_why() {
    let daemon = Setup::new("virtual:2xA100-40GB").start();
    let none = refused(&daemon, &["suspend", "7"]);
    assert!(none.contains("there is no job 7"), "{none}");
    let mps = daemon.submit(SubmitRequest { sharing: Some(SharingMode::Mps), ..training(5, 3_600) });
    runs_with(&daemon, mps, 5);
    let why = refused(&daemon, &["suspend", &mps.to_string()]);
    assert!(why.contains("cannot suspend a client of MPS") && why.contains("--sharing time-slice"), "{why}");
    assert!(refused(&daemon, &["resume", "--job", &mps.to_string()]).contains("not suspended"));
    // There is a GPU of that number, too, and it is not drained.
    let neither = refused(&daemon, &["resume", &mps.to_string()]);
    assert!(
        neither.contains(&format!("job {mps} is RUNNING, not suspended, and GPU {mps} is not drained")),
        "{neither}"
    );
    assert!(carma(&daemon, &["resume", "--gpu", "0"]).contains("GPU 0 was not drained"));
    carma(&daemon, &["cancel", &mps.to_string()]);
    let two = daemon.submit(SubmitRequest { gpus: Some(2), ..training(5, 3_600) });
    daemon.in_state(two, "RUNNING");
    let why = refused(&daemon, &["suspend", &two.to_string()]);
    assert!(why.contains("jobs on several GPUs"), "{why}");
    carma(&daemon, &["cancel", &two.to_string()]);
    // It runs, but not on a GPU: the driver has nothing to take.
    let turns = Some(SharingMode::TimeSlice);
    let cpu = daemon.submit(SubmitRequest { sharing: turns, ..job(&["/bin/sleep", "600"]) });
    daemon.in_state(cpu, "RUNNING");
    until("its GPU to have been looked at", || {
        let why = stderr(&daemon.carma(&["suspend", &cpu.to_string()]));
        why.contains("none of its processes has used its GPU so far").then_some(())
    });
    daemon.in_state(cpu, "RUNNING");
    carma(&daemon, &["cancel", &cpu.to_string()]);
}

#[test]
fn a_daemon_that_is_killed_finds_its_suspended_jobs() {
    let mut daemon = Setup::new(ONE).start();
    let id = daemon.submit(training(5, 20));
    runs_with(&daemon, id, 5);
    suspended(&daemon, id);
    daemon.kill();
    daemon.restart(&[]);
    assert_eq!(daemon.show(id).job.state, "SUSPENDED");
    carma(&daemon, &["resume", &id.to_string()]);
    runs_with(&daemon, id, 5);
    daemon.in_state(id, "RUNNING");
    // Killed on the way out, and on the way back: each is done to its end.
    for (order, state) in [("suspend", "SUSPENDED"), ("resume", "RUNNING")] {
        daemon.kill();
        daemon.restart(&[("CARMA_FAULT", "after-suspension")]);
        // It dies before it has answered.
        daemon.carma(&[order, &id.to_string()]);
        daemon.wait_dead();
        daemon.restart(&[]);
        daemon.in_state(id, state);
    }
    let over = daemon.end_of(id);
    assert_eq!((over.job.state.as_str(), over.attempts.len()), ("COMPLETED", 1), "{}", daemon.log());
}

#[test]
fn a_job_moves_to_another_gpu_and_goes_on_where_it_was() {
    let daemon = Setup::new("virtual:2xA100-40GB+1xH200").args(&["--speed", "5"]).start();
    let id = daemon.submit(training(20, 60));
    runs_with(&daemon, id, 20);
    until("its first steps", || (steps(&daemon, id) > 0).then_some(()));
    for (gpu, words) in [("0", "it is on that GPU"), ("2", "one type only"), ("9", "there is no GPU 9")] {
        let why = refused(&daemon, &["move", &id.to_string(), gpu]);
        assert!(why.contains(words), "{why}");
    }
    let told = carma(&daemon, &["move", &id.to_string(), "1"]);
    assert!(told.contains(&format!("job {id} moves to GPU 1")), "{told}");
    let on = |gpu: usize| {
        until(&format!("job {id} to run on GPU {gpu}; the daemon's log:\n{}", daemon.log()), || {
            let there = daemon.gpus().gpus[gpu].tenants.first()?.observed_mib == Some(20 << 10);
            (there && daemon.show(id).job.state == "RUNNING").then_some(())
        });
        let job = daemon.show(id).job;
        assert_eq!(job.gpus, [u32::try_from(gpu).unwrap()]);
        let from = format!("moved here from GPU {} by ", 1 - gpu);
        assert!(job.reason.code == "Moved" && job.reason.text.starts_with(&from), "{:?}", job.reason);
        let explained = carma(&daemon, &["explain", &id.to_string()]);
        assert!(explained.contains(&from), "{explained}");
    };
    on(1);
    carma(&daemon, &["drain", "--move", "1"]);
    on(0);
    let nowhere = carma(&daemon, &["drain", "--move", "0"]);
    assert!(
        nowhere.contains(&format!("job {id} runs on until it ends ("))
            && nowhere.contains("(the other GPU of its type is drained)"),
        "{nowhere}"
    );
    carma(&daemon, &["resume", "--gpu", "0,1"]);
    let over = daemon.end_of(id);
    assert_eq!((over.job.state.as_str(), over.attempts.len()), ("COMPLETED", 1), "{}", daemon.log());
}

/// Two jobs take turns beside a GPU that comes to be usable, and none waits: the one that costs less to move has it.
#[test]
fn a_job_moves_by_itself_to_a_gpu_that_stays_idle() {
    let daemon = Setup::new("virtual:2xA100-40GB").args(&["--speed", "20"]).start();
    carma(&daemon, &["drain", "1"]);
    let stays = daemon.submit(training(20, 1200));
    runs_with(&daemon, stays, 20);
    let moves = daemon.submit(training(5, 1200));
    runs_with(&daemon, moves, 5);
    let both = [stays, moves].map(|id| daemon.show(id).job.gpus);
    assert_eq!(both, [vec![0], vec![0]]);
    carma(&daemon, &["resume", "--gpu", "1"]);
    until(&format!("job {moves} to be on GPU 1; the daemon's log:\n{}", daemon.log()), || {
        let job = daemon.show(moves).job;
        (job.state == "RUNNING" && job.gpus == [1]).then_some(())
    });
    let told = carma(&daemon, &["explain", &moves.to_string()]);
    assert!(told.contains("moved here from GPU 0 by carma"), "{told}");
    let before = steps(&daemon, moves);
    until("it to go on", || (steps(&daemon, moves) > before).then_some(()));
    assert_eq!((daemon.show(stays).job.gpus, daemon.show(moves).job.attempts), (vec![0], 1));
}

/// A span as tables write it: `45s`, `1m05s`; seconds.
fn seconds(span: &str) -> u64 {
    let span = span.trim_end_matches('s');
    let (minutes, seconds) = span.split_once('m').unwrap_or(("0", span));
    minutes.parse::<u64>().unwrap() * 60 + seconds.parse::<u64>().unwrap()
}

#[test]
fn time_in_which_a_job_was_suspended_is_no_time_that_it_ran() {
    let daemon = Setup::new("virtual:2xA100-40GB").args(&["--speed", "10"]).start();
    let id = daemon.submit(training(8, 120));
    runs_with(&daemon, id, 8);
    // By its own count: what is left goes by what it did in a second.
    let left_s = |what: &str| {
        until(&format!("a count {what}"), || daemon.show(id).job.left.filter(|left| left.counted)).left_s
    };
    until("a quarter to be done", || daemon.show(id).job.done_pct.filter(|pct| *pct >= 25));
    suspended(&daemon, id);
    let off_for =
        |most: u64| until("time to go by", || daemon.show(id).job.suspended_ms.filter(|ms| *ms > most));
    // Its last count may be on the way still.
    off_for(10_000);
    let before = left_s("while it is suspended");
    off_for(70_000);
    assert!(left_s("a minute later").abs_diff(before) <= 1, "{before}: {:?}", daemon.show(id).job.left);
    let shown = carma(&daemon, &["show", &id.to_string()]);
    for words in ["none while it is suspended; it left GPU 0\n", "none reserved, peak 8.0 GiB"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    let explained = carma(&daemon, &["explain", &id.to_string()]);
    assert!(explained.contains("SUSPENDED for 1 min "), "{explained}");
    assert!(explained.contains(" s, it left GPU 0; policy"), "{explained}");
    carma(&daemon, &["move", &id.to_string(), "1"]);
    until("it to run on GPU 1", || {
        let job = daemon.show(id).job;
        (job.state == "RUNNING" && job.gpus == [1]).then_some(())
    });
    let after = left_s("after the move");
    assert!(after <= before + 5, "{after} s left, {before} before it was suspended");

    let over = daemon.end_of(id);
    let shown = carma(&daemon, &["show", &id.to_string()]);
    for words in ["placed:  at its start: GPU 0 ", "moved since to GPU 1", "GiB were reserved, peak 8.0 GiB"]
    {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    let (off, attempt) = (over.job.suspended_ms.unwrap(), &over.attempts[0]);
    let ran: u64 = attempt.spells.iter().map(|spell| spell.until_ms.unwrap() - spell.from_ms).sum();
    let gpus: Vec<&[u32]> = attempt.spells.iter().map(|spell| &spell.gpus[..]).collect();
    assert_eq!((gpus, attempt.suspended_ms), (vec![&[0][..], &[1]], Some(off)));
    let whole = attempt.ended_ms.unwrap() - attempt.started_ms.unwrap();
    assert_eq!(ran + off, whole, "{attempt:?}");

    let page = daemon.dir.path().join("page.html");
    carma(&daemon, &["report", "--last", "1h", &format!("--html={}", page.display())]);
    let page = std::fs::read_to_string(page).unwrap();
    for words in [
        format!("<title>{id} · "),
        "suspended or moved, goes on later".to_owned(),
        "suspended or moved: no bar until it goes on".to_owned(),
        "\nGPU 0 · attempt 1\n".to_owned(),
        "\nGPU 1 · attempt 1\n".to_owned(),
    ] {
        assert!(page.contains(&words), "{words}");
    }
    // 120 s of work and its start; what it was suspended for counts in no time but that from its submission to its end.
    let text = carma(&daemon, &["report", "--last", "1h"]);
    let row = |name: &str| -> Vec<String> {
        let line = text.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("{text}"));
        line.split("  ").map(|cell| cell.trim().to_owned()).filter(|cell| !cell.is_empty()).collect()
    };
    let (run, alone) = (row("as it ran"), row("exclusive, simulated"));
    assert!(seconds(&run[1]) + 2 >= whole / 1000, "{text}");
    assert!(seconds(&alone[1]).abs_diff(ran / 1000) <= 5, "{text}");
    assert!(run[4].parse::<f64>().unwrap() < 1.1, "{text}");
}

// --- by the policy ---------------------------------------------------------------------------

#[test]
fn a_job_that_grows_is_suspended_before_the_gpu_is_full_and_loses_nothing() {
    let daemon = Setup::new(ONE).args(&["--sharing", "time-slice", "--speed", "2"]).start();
    // It has settled when the other comes, and takes no more.
    let older = ["--memory=4G", "--sm=0.2", "--work=40s", "--startup=0s"];
    let (older, younger) = one_that_grows_beside(&daemon, &older);
    let reason = until(&format!("a suspension; the daemon's log:\n{}", daemon.log()), || {
        let job = daemon.show(younger).job;
        (job.state == "SUSPENDED" && job.reason.code == "SetAside").then_some(job.reason.text)
    });
    assert!(
        reason.starts_with("suspended by carma: growth guard: GPU 0 was about to run full, "),
        "{reason}"
    );
    assert!(reason.contains("waits for room: GpuMemory(need 39.5 GiB"), "{reason}");
    for verb in ["show", "explain"] {
        let text = carma(&daemon, &[verb, &younger.to_string()]);
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("GPU 0 was about to run full"), "{verb}: {text}");
    }
    for id in [older, younger] {
        let over = daemon.end_of(id);
        assert_eq!(
            (over.job.state.as_str(), over.job.attempts),
            ("COMPLETED", 1),
            "{}",
            over.job.reason.text
        );
    }
    assert!(!daemon.output(younger).contains("out of memory"), "{}", daemon.output(younger));
}

#[test]
fn an_urgent_job_has_others_suspended_for_as_long_as_it_runs() {
    let daemon = Setup::new(ONE).args(&["--speed", "20"]).start();
    let id = daemon.submit(training(30, 100));
    runs_with(&daemon, id, 30);
    until("its first steps", || (steps(&daemon, id) > 0).then_some(()));
    let urgent = daemon.submit(SubmitRequest { priority: 1, ..training(30, 20) });
    let reason = until("a suspension", || {
        let job = daemon.show(id).job;
        (job.state == "SUSPENDED").then_some(job.reason.text)
    });
    assert!(reason.starts_with(&format!("suspended by carma: it makes room for job {urgent}")), "{reason}");
    let over = daemon.end_of(urgent);
    assert_eq!((over.job.state.as_str(), over.job.attempts), ("COMPLETED", 1), "{}", daemon.log());
    let over = daemon.end_of(id);
    assert_eq!((over.job.state.as_str(), over.job.attempts), ("COMPLETED", 1), "{}", daemon.log());
    assert!(over.job.suspended_ms.is_some_and(|ms| ms > 0));
}

#[test]
fn a_job_on_two_gpus_that_is_over_its_bound_has_room_made_for_it() {
    let daemon = Setup::new("virtual:2xA100-40GB").args(&["--speed", "20"]).start();
    // Before jobs have ended an expected run time is a time limit; then also what others took.
    let limited = |gib, work_s, limit_s: u64| SubmitRequest {
        time_limit_ms: Some(limit_s * 1000),
        ..training(gib, work_s)
    };
    let first = daemon.submit(limited(30, 300, 360));
    let second = daemon.submit(limited(30, 400, 450));
    let wide = daemon.submit(SubmitRequest { gpus: Some(2), ..limited(20, 20, 60) });
    let long = daemon.submit(limited(30, 700, 18_000));
    for id in [first, second] {
        assert_eq!(daemon.end_of(id).job.state, "COMPLETED");
    }
    let over = daemon.end_of(wide);
    assert_eq!((over.job.state.as_str(), over.job.attempts), ("COMPLETED", 1), "{}", daemon.log());
    let held = daemon.show(long).job;
    assert!(held.started_ms.is_some_and(|at| Some(at) < over.job.started_ms), "{held:?}");
    let over = daemon.end_of(long);
    assert_eq!((over.job.state.as_str(), over.job.attempts), ("COMPLETED", 1), "{}", daemon.log());
    assert!(over.job.suspended_ms.is_some_and(|ms| ms > 0), "{}", daemon.log());
}

/// Three H200 with these processes on the first.
fn gpus(processes: Vec<FakeProcess>) -> Vec<FakeGpu> {
    let uuid = |last: char| format!("GPU-00000000-0000-0000-0000-00000000000{last}");
    let [second, third] = ['b', 'c'].map(|last| FakeGpu { uuid: uuid(last), ..FakeGpu::default() });
    vec![FakeGpu { uuid: uuid('a'), processes, ..FakeGpu::default() }, second, third]
}

/// A machine with three H200, of which carma may use two, and their driver, none of it real.
struct Machine {
    library: TempDir,
    daemon: Daemon,
    id: u64,
    pid: u32,
}

impl Machine {
    /// With a job that the driver believes to hold 4 GiB.
    fn start() -> Self {
        let library = tempfile::tempdir().unwrap();
        fake_nvml::stage(library.path(), &State::of(gpus(Vec::new()))).unwrap();
        fake_cuda::stage(library.path(), &fake_cuda::State::default()).unwrap();
        let setup = Setup::new("nvml").env("LD_LIBRARY_PATH", library.path().to_str().unwrap());
        let daemon = setup.env("CUDA_VISIBLE_DEVICES", "0,1").start();
        let mut machine = Self { library, daemon, id: 0, pid: 0 };
        machine.id = machine
            .daemon
            .submit(SubmitRequest { gpu_memory_mib: Some(8 << 10), ..job(&["/bin/sleep", "604"]) });
        machine.sees_it();
        machine
    }

    /// The driver gets to know the job's present process.
    fn sees_it(&mut self) {
        let old = self.pid;
        self.pid = until("the job's pid", || self.daemon.show(self.id).pid.filter(|pid| *pid != old));
        self.cuda(|state| {
            state.processes.insert(self.pid, Process::default());
        });
        self.nvml(true);
        until("it to be seen", || observed(&self.daemon, self.id));
    }

    fn nvml(&self, there: bool) {
        let process = FakeProcess { pid: self.pid, used_mib: Some(4 << 10), ..FakeProcess::default() };
        let processes = there.then_some(process).into_iter().collect();
        fake_nvml::set_state(self.library.path(), &State::of(gpus(processes))).unwrap();
    }

    /// The job's process is on this GPU.
    fn nvml_on(&self, gpu: usize) {
        let mut gpus = gpus(Vec::new());
        let process = FakeProcess { pid: self.pid, used_mib: Some(4 << 10), ..FakeProcess::default() };
        gpus[gpu].processes.push(process);
        fake_nvml::set_state(self.library.path(), &State::of(gpus)).unwrap();
    }

    fn cuda(&self, change: impl FnOnce(&mut fake_cuda::State)) -> fake_cuda::State {
        fake_cuda::change(self.library.path(), change).unwrap()
    }

    fn fault(&self, function: &str, fault: Fault) {
        self.cuda(|state| {
            state.faults.insert(format!("cuCheckpointProcess{function}"), fault);
        });
    }

    fn state(&self) -> i32 {
        self.cuda(|_| ()).processes[&self.pid].state
    }

    #[track_caller]
    fn failed(&self, words: &str) {
        until(&format!("'{words}' in the log:\n{}", self.daemon.log()), || {
            self.daemon.log().contains(words).then_some(())
        });
    }
}

#[test]
fn a_drivers_errors_leave_a_job_where_it_was() {
    let machine = Machine::start();
    let (daemon, id) = (&machine.daemon, machine.id.to_string());
    let once = |code| Fault { code: Some(code), times: 1, ..Fault::default() };
    for (function, code, words) in
        [("Lock", 600, "not ready within the time given"), ("Checkpoint", 2, "out of memory")]
    {
        machine.fault(function, once(code));
        carma(daemon, &["suspend", &id]);
        machine.failed(words);
        assert_eq!((daemon.in_state(machine.id, "RUNNING").job.gpus, machine.state()), (vec![0], 0));
    }
    // Its caller dies with what it had begun: that is undone.
    machine
        .fault("Checkpoint", Fault { kills_caller: true, takes_effect: true, times: 1, ..Fault::default() });
    carma(daemon, &["suspend", &id]);
    machine.failed("the process that calls the driver ended with signal: 9");
    until("it to run on", || (machine.state() == 0).then_some(()));
    daemon.in_state(machine.id, "RUNNING");

    // It dies before it has touched anybody, and so does the one that would undo it: there is nothing to undo.
    let dies = Fault { kills_caller: true, times: 2, ..Fault::default() };
    machine.cuda(|state| {
        state.faults.insert("cuInit".into(), dies);
    });
    carma(daemon, &["suspend", &id]);
    machine.failed("; then the process that calls the driver ended with signal: 9");
    until("it to run on", || (daemon.show(machine.id).job.reason.code == "NotSuspended").then_some(()));
    assert_eq!(daemon.in_state(machine.id, "RUNNING").attempts.len(), 1);

    carma(daemon, &["suspend", &id]);
    let view = daemon.in_state(machine.id, "SUSPENDED").job;
    machine.nvml(false);
    assert!(view.reason.text.contains("4.0 GiB of its memory are in the host's"), "{}", view.reason.text);
    // The GPU has no room for it: it stays, and is tried again.
    machine.fault("Restore", once(2));
    carma(daemon, &["resume", &id]);
    let reason = until("the reason", || {
        let reason = daemon.show(machine.id).job.reason;
        (reason.code == "NotResumed").then_some(reason.text)
    });
    assert!(reason.contains("out of memory") && machine.state() == 2, "{reason}");
    // The caller dies on the way back: what is missing is done.
    machine.fault("Unlock", Fault { kills_caller: true, times: 1, ..once(0) });
    carma(daemon, &["resume", &id]);
    daemon.in_state(machine.id, "RUNNING");
    assert_eq!((machine.state(), daemon.show(machine.id).attempts.len()), (0, 1));
    machine.nvml(true);
}

#[test]
fn the_driver_is_told_of_every_gpu_where_a_job_moves() {
    let machine = Machine::start();
    let (daemon, id) = (&machine.daemon, machine.id.to_string());
    machine.cuda(|state| state.version = 12_080);
    let why = refused(daemon, &["move", &id]);
    assert!(why.contains("needs a driver of r580 or newer"), "{why}");
    machine.cuda(|state| state.version = 13_000);
    carma(daemon, &["move", &id, "1"]);
    until("it to run there", || {
        let job = daemon.show(machine.id).job;
        (job.state == "RUNNING" && job.gpus == [1]).then_some(())
    });
    let pairs = machine.cuda(|_| ()).processes[&machine.pid].pairs.clone();
    let uuid = |last: char| format!("{:0>32}", last);
    let swapped = [('a', 'b'), ('b', 'a'), ('c', 'c')].map(|(from, to)| (uuid(from), uuid(to)));
    assert_eq!((pairs.as_slice(), machine.state()), (&swapped[..], 0));
    machine.nvml_on(1);
    until("it to be seen there", || machine.daemon.gpus().gpus[1].tenants[0].observed_mib);
    // Where the driver refuses, it goes back at once, and says why.
    machine.fault("Restore", Fault { code: Some(1), times: 1, ..Fault::default() });
    carma(daemon, &["move", &id, "0"]);
    let reason = until("the reason", || {
        let job = daemon.show(machine.id).job;
        (job.state == "RUNNING" && job.reason.code == "NotSuspended").then_some(job.reason.text)
    });
    assert!(reason.contains("runs on: restore of process") && machine.state() == 0, "{reason}");
    assert_eq!(daemon.show(machine.id).job.gpus, [1]);
}

#[test]
fn a_driver_that_hangs_is_given_up_and_the_job_is_not_lost() {
    let mut machine = Machine::start();
    machine.fault("Lock", Fault { hang_ms: 600_000, takes_effect: true, times: 1, ..Fault::default() });
    carma(&machine.daemon, &["suspend", &machine.id.to_string()]);
    machine.failed("the driver has not answered within");
    until("it to run on", || (machine.state() == 0).then_some(()));
    assert_eq!(machine.daemon.in_state(machine.id, "RUNNING").attempts.len(), 1);
    // One that can be brought neither here nor there begins anew.
    machine.fault("Checkpoint", Fault { code: Some(999), ..Fault::default() });
    machine.fault("Unlock", Fault { code: Some(999), ..Fault::default() });
    carma(&machine.daemon, &["suspend", &machine.id.to_string()]);
    machine.sees_it();
    let detail = machine.daemon.in_state(machine.id, "RUNNING");
    assert_eq!(detail.attempts[0].verdict.as_ref().unwrap().code, "Stuck", "{detail:?}");
}

#[test]
fn a_job_with_a_limit_of_host_memory_is_not_suspended_beyond_it() {
    if !is_root() {
        eprintln!("skipped: cgroups with limits need root");
        return;
    }
    let mut machine = Machine::start();
    let status = machine.daemon.status();
    if !status.cgroups.controllers.iter().any(|controller| controller == "memory") {
        eprintln!("skipped: no memory controller here");
        return;
    }
    carma(&machine.daemon, &["cancel", &machine.id.to_string()]);
    let request = SubmitRequest {
        gpu_memory_mib: Some(8 << 10),
        host_memory_mib: Some(1 << 10),
        ..job(&["/bin/sleep", "605"])
    };
    machine.id = machine.daemon.submit(request);
    machine.sees_it();
    let why = refused(&machine.daemon, &["suspend", &machine.id.to_string()]);
    assert!(
        why.contains("its 4.0 GiB of GPU memory would go to the host's, and its cgroup has room"),
        "{why}"
    );
}
