//! Out-of-memory and faults, with real processes.

use crate::support::{Setup, task, until};

#[test]
fn a_job_that_outgrows_its_cap_is_retried_and_its_neighbour_is_not_touched() {
    let daemon = Setup::new("virtual:1xA100-40GB")
        .args(&["--policy", "oracle-magm", "--sharing", "mps", "--speed", "20"])
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

#[test]
fn without_mps_jobs_share_by_time_slice_and_say_so() {
    let daemon = Setup::new("virtual:1xA100-40GB").args(&["--sharing", "mps"]).start();
    let socket = daemon.virtual_gpus();
    carma_sim::virtual_gpu::control::set_mps(&socket, false).unwrap();
    let id = daemon.submit(task(&["--memory=1G", "--work=1s", "--startup=0s"], Some(2)));
    let over = daemon.end_of(id);
    assert_eq!(over.job.state, "COMPLETED", "{}", over.job.reason.text);
    assert_eq!(over.attempts[0].sharing.to_string(), "time-slice");
    assert!(daemon.log().contains("MPS cannot be had"), "{}", daemon.log());
}
