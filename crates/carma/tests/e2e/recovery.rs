//! Out-of-memory and faults, with real processes.

use crate::support::{CARMA, Daemon, Setup, job, one_that_grows_beside, stdout, task, until};
use carma_api::wire::SubmitRequest;
use carma_core::model::SharingMode;

/// Limits of memory and retries as under carma's own policies; the published ones have others.
const CARMAS: &str = "[mps]\ncaps = true\n[recovery]\nmethod = \"graded\"\n";

#[test]
fn a_job_that_outgrows_its_cap_is_retried_and_its_neighbour_is_not_touched() {
    let daemon = Setup::new("virtual:1xA100-40GB")
        .args(&["--policy", "oracle-magm", "--sharing", "mps", "--speed", "20"])
        .config(CARMAS)
        .start();
    let neighbour = daemon.submit(task(&["--memory=5G", "--sm=0.2", "--work=60s"], Some(6)));
    let liar = daemon.submit(task(&["--memory=9G", "--sm=0.2", "--work=5s"], Some(4)));
    let over = daemon.end_of(liar);
    assert_eq!(over.job.state, "COMPLETED", "{}", over.job.reason.text);
    assert!(over.attempts.len() >= 2);
    let verdict = over.attempts[0].verdict.clone().unwrap();
    assert_eq!(verdict.code, "OutOfMemoryRetry");
    assert!(verdict.text.contains("its own cap of 4.0 GiB"), "{}", verdict.text);
    assert_eq!(over.attempts[0].cap_mib, Some(4096));
    assert!(over.attempts[1].cap_mib > Some(4096));
    assert!(daemon.output(liar).contains("CUDA out of memory. Tried to allocate"));
    let over = daemon.end_of(neighbour);
    assert_eq!((over.job.state.as_str(), over.job.attempts), ("COMPLETED", 1));
}

/// A virtual task whose own words are lost: its log says that memory was short, and no more.
fn terse(args: &str, declared_gib: u64) -> SubmitRequest {
    let line = format!(
        "{CARMA} virtual-task {args} 2>/dev/null || {{ echo 'RuntimeError: CUDA error: out of memory' >&2; exit 1; }}"
    );
    SubmitRequest { gpu_memory_mib: Some(declared_gib * 1024), ..job(&["/bin/sh", "-c", &line]) }
}

/// Waits until a job was seen to hold this much.
fn holds(daemon: &Daemon, id: u64, mib: u64) {
    until(&format!("job {id} to hold {mib} MiB"), || {
        let gpus = daemon.gpus().gpus;
        let held =
            gpus.iter().flat_map(|gpu| &gpu.tenants).find(|t| t.job == id).and_then(|t| t.observed_mib);
        (held >= Some(mib)).then_some(())
    });
}

#[test]
fn a_job_that_takes_too_much_between_two_looks_is_no_victim_of_a_gpu_with_room() {
    let daemon = Setup::new("virtual:1xA100-40GB")
        .args(&["--policy", "oracle-magm", "--sharing", "mps"])
        .config(CARMAS)
        .start();
    let neighbour = daemon.submit(task(&["--memory=9G", "--sm=0.2", "--work=200s", "--startup=0s"], Some(9)));
    holds(&daemon, neighbour, 9 * 1024);
    let args = ["--memory=12G", "--sm=0.2", "--work=1s", "--startup=0.3s"];
    let spoken = daemon.submit(SubmitRequest { max_retries: Some(1), ..task(&args, Some(4)) });
    let terse = terse("--memory=12G --sm=0.2 --work=1s --startup=0.3s", 4);
    let terse = daemon.submit(SubmitRequest { max_retries: Some(1), ..terse });
    for id in [spoken, terse] {
        let over = daemon.end_of(id);
        let first = over.attempts[0].verdict.clone().unwrap();
        assert!(first.text.contains("culprit, it reached its own cap of 4.0 GiB"), "{}", first.text);
        assert!(first.text.contains("(retry 1 of 1)"), "{}", first.text);
        assert!(over.attempts[1].cap_mib > Some(4096), "{:#?}", over.attempts);
    }
    // Five gigabytes were not enough for the one that said what it wanted.
    let over = daemon.end_of(spoken);
    assert_eq!(over.job.state, "OUT_OF_MEMORY", "{}", over.job.reason.text);
    assert!(over.job.reason.text.contains("culprit"), "{}", over.job.reason.text);
}

#[test]
fn a_job_that_is_denied_what_was_reserved_for_it_is_a_victim_even_if_its_log_says_little() {
    let daemon = Setup::new("virtual:1xA100-40GB").args(&["--policy", "oracle-magm"]).start();
    let args =
        ["--memory=20G", "--sm=0.2", "--work=200s", "--startup=0s", "--grow-to=34G", "--grow-after=6s"];
    let greedy =
        daemon.submit(SubmitRequest { sharing: Some(SharingMode::TimeSlice), ..task(&args, Some(20)) });
    holds(&daemon, greedy, 20 * 1024);
    let victim = terse("--memory=6G --sm=0.2 --work=30s --startup=0s --grow-to=9G --grow-after=11s", 10);
    let victim = daemon.submit(SubmitRequest { sharing: Some(SharingMode::TimeSlice), ..victim });
    holds(&daemon, victim, 6 * 1024);
    let verdict = until("its first attempt to end", || daemon.show(victim).attempts[0].verdict.clone());
    // 40 of 40 GiB are in use, 34 of them by a job that was to take 20.
    assert!(verdict.text.contains(&format!("victim, job {greedy} took more")), "{}", verdict.text);
    assert!(verdict.text.contains("not charged"), "{}", verdict.text);
}

#[test]
fn a_job_that_grows_goes_back_before_the_gpu_is_full_and_the_older_one_stays() {
    let daemon = Setup::new("virtual:1xA100-40GB")
        .args(&["--sharing", "time-slice", "--speed", "2"])
        .config("[jobs]\nsuspend = false\n")
        .start();
    // It takes some more at its end, when the younger one would have had all that there is.
    let older =
        ["--memory=4G", "--sm=0.2", "--work=40s", "--startup=0s", "--grow-to=4200M", "--grow-after=38s"];
    let (older, younger) = one_that_grows_beside(&daemon, &older);
    let first = until("the younger one to go back", || {
        let attempt = daemon.show(younger).attempts.into_iter().next()?;
        attempt.verdict.clone().map(|verdict| (attempt, verdict))
    });
    let (attempt, verdict) = first;
    assert_eq!(verdict.code, "GrowthGuard", "{}", verdict.text);
    assert!(verdict.text.contains("GPU 0 was about to run full, "), "{}", verdict.text);
    assert!(verdict.text.contains(" of 40.0 GiB free"), "{}", verdict.text);
    assert!(verdict.text.contains("requeued without charge, with a GPU of its own"), "{}", verdict.text);
    assert!(attempt.memory_peak_mib > Some(30 * 1024), "{attempt:?}");
    assert!(attempt.placed.code == "PlacedShared", "{}", attempt.placed.text);
    for verb in ["show", "explain"] {
        let text = stdout(&daemon.carma(&[verb, &younger.to_string()]));
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("GPU 0 was about to run full"), "{verb}: {text}");
    }
    let over = daemon.end_of(older);
    assert_eq!((over.job.state.as_str(), over.job.attempts), ("COMPLETED", 1), "{}", over.job.reason.text);
    assert_eq!(over.job.memory_peak_mib, Some(4200));
    let over = daemon.end_of(younger);
    assert_eq!((over.job.state.as_str(), over.job.attempts), ("COMPLETED", 2), "{}", over.job.reason.text);
    assert_eq!(over.job.memory_peak_mib, Some(38 * 1024));
    assert!(!daemon.output(younger).contains("out of memory"), "{}", daemon.output(younger));
}

#[test]
fn a_job_that_runs_again_has_no_exit_code_yet() {
    // Under MPS it is first disconnected from the server: it may end by that, with 1, before the signal.
    let daemon = Setup::new("virtual:1xA100-40GB").args(&["--sharing", "time-slice"]).start();
    let id = daemon.submit(task(&["--memory=1G", "--work=200s", "--startup=0s"], Some(2)));
    daemon.in_state(id, "RUNNING");
    daemon.carma(&["requeue", &id.to_string()]);
    let again = until("its second run", || {
        let detail = daemon.show(id);
        (detail.job.state == "RUNNING" && detail.attempts.len() == 2).then_some(detail)
    });
    assert_eq!((again.job.exit_code, again.attempts[0].exit_code), (None, Some(143)));
    let row = daemon.queue().jobs.into_iter().find(|job| job.id == id).unwrap();
    assert_eq!(row.exit_code, None);
}

#[test]
fn a_gpu_that_is_had_exclusively_has_nothing_free() {
    let daemon = Setup::new("virtual:2xA100-40GB").start();
    let args = ["--memory=2G", "--work=200s", "--startup=0s"];
    let id = daemon.submit(SubmitRequest { exclusive: true, ..task(&args, Some(2)) });
    holds(&daemon, id, 2 * 1024);
    let gpus = daemon.gpus().gpus;
    let (taken, other): (Vec<_>, Vec<_>) = gpus.iter().partition(|gpu| !gpu.tenants.is_empty());
    assert_eq!(taken[0].memory_free_for_placement_mib, Some(0));
    assert!(taken[0].tenants[0].exclusive && taken[0].tenants[0].job == id);
    assert!(other[0].memory_free_for_placement_mib > Some(30 * 1024));
    let table = crate::support::stdout(&daemon.carma(&["gpus"]));
    assert!(table.contains("0 MiB") && table.contains(&format!("{id} (2.0 GiB, exclusive")), "{table}");
}

#[test]
fn a_job_that_fits_no_gpu_ends_as_out_of_memory() {
    let daemon = Setup::new("virtual:1xA100-40GB").args(&["--policy", "or-magm", "--speed", "20"]).start();
    let id = daemon.submit(task(&["--memory=60G", "--work=5s"], None));
    let over = daemon.end_of(id);
    assert_eq!(over.job.state, "OUT_OF_MEMORY");
    assert!(over.job.reason.text.contains("alone on a GPU of 40.0 GiB"), "{}", over.job.reason.text);
    assert_eq!(over.job.attempts, 1, "there is no larger GPU to try");
}

#[test]
fn a_traceback_is_not_retried() {
    let daemon = Setup::new("virtual:1xA100-40GB").start();
    let id = daemon.shell(
        "printf 'Traceback (most recent call last):\\n  File \"t.py\", line 1\\nKeyError: x\\n' >&2; exit 1",
    );
    let over = daemon.end_of(id);
    assert_eq!((over.job.state.as_str(), over.job.attempts), ("FAILED", 1));
    assert!(over.job.reason.text.contains("KeyError: x"), "{}", over.job.reason.text);
}

#[test]
fn a_fatal_fault_under_mps_requeues_the_victims() {
    let daemon = Setup::new("virtual:1xA100-40GB")
        .args(&["--policy", "oracle-magm", "--sharing", "mps", "--speed", "10"])
        .start();
    let healthy: Vec<u64> = (0..2)
        .map(|_| daemon.submit(task(&["--memory=3G", "--sm=0.2", "--work=60s", "--startup=0s"], Some(4))))
        .collect();
    for id in &healthy {
        daemon.in_state(*id, "RUNNING");
    }
    let args = ["--memory=3G", "--sm=0.2", "--work=60s", "--startup=0s", "--fault-after=3s"];
    let culprit = daemon.submit(task(&args, Some(4)));
    let over = daemon.end_of(culprit);
    assert_eq!(over.job.state, "FAILED", "{}", over.job.reason.text);
    // Outside MPS only its own fault can end it: there it fails.
    let codes: Vec<String> =
        over.attempts.iter().map(|a| format!("{} {}", a.sharing, a.verdict.clone().unwrap().code)).collect();
    assert_eq!(codes, ["mps MpsFaultSuspect", "time-slice NonZeroExit"]);
    for id in &healthy {
        let over = daemon.end_of(*id);
        assert_eq!(over.job.state, "COMPLETED", "{}", over.job.reason.text);
        assert_eq!(over.attempts.len(), 2, "ended by the fault, then run again: {:#?}", over.attempts);
        assert_eq!(over.attempts[0].verdict.clone().unwrap().code, "MpsFaultVictim");
    }
    // The command that faulted does not share by MPS any more.
    let again = daemon.submit(task(&args, Some(4)));
    let detail = until("its second run", || Some(daemon.show(again)).filter(|d| !d.attempts.is_empty()));
    assert_eq!(detail.attempts[0].sharing.to_string(), "time-slice");
}

/// Kernels of one wait for those of another: one after the other they would end in a fault for all clients around.
#[test]
fn processes_that_share_mps_with_others_are_stopped_and_killed_at_once_where_there_are_several() {
    let daemon =
        Setup::new("virtual:1xA100-40GB").args(&["--policy", "oracle-magm", "--sharing", "mps"]).start();
    let file = daemon.dir.path().join("told");
    let told = |tasks: &[&str]| {
        let _ = std::fs::remove_file(&file);
        let tasks = tasks.join(" & ");
        // The tasks may be told, and over, before the shell is.
        let line = format!("trap 'touch {}; exit 143' TERM; {tasks} & wait; sleep 1", file.display());
        let id =
            daemon.submit(SubmitRequest { gpu_memory_mib: Some(4096), ..job(&["/bin/sh", "-c", &line]) });
        holds(&daemon, id, 1024 * tasks.matches("virtual-task").count() as u64);
        assert!(daemon.carma(&["cancel", &id.to_string()]).status.success());
        let over = daemon.end_of(id);
        assert_eq!(over.job.state, "CANCELLED", "{}", over.job.reason.text);
        (file.exists(), over.job.exit_code)
    };
    let task = format!("{CARMA} virtual-task --memory=1G --sm=0.2 --work=600s --startup=0s");
    assert!(told(&[&task]).0, "one that computes alone is asked");
    assert_eq!(told(&[&task, &task]), (false, Some(137)));
}

#[test]
fn without_mps_jobs_share_by_time_slice_and_say_so() {
    let daemon = Setup::new("virtual:1xA100-40GB").args(&["--sharing", "mps"]).start();
    let socket = daemon.virtual_gpus();
    carma_virtual_gpu::control::set_mps(&socket, false).unwrap();
    let id = daemon.submit(task(&["--memory=1G", "--work=1s", "--startup=0s"], Some(2)));
    let over = daemon.end_of(id);
    assert_eq!(over.job.state, "COMPLETED", "{}", over.job.reason.text);
    assert_eq!(over.attempts[0].sharing.to_string(), "time-slice");
    assert!(daemon.log().contains("MPS cannot be had"), "{}", daemon.log());
}
