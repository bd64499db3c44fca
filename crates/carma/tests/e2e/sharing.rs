//! Who shares with whom, and who waits for what reason.

use crate::support::{CARMA, Setup, job, stdout, task, until};
use std::process::{Command, Stdio};

const TWO: &str = "virtual:2xA100-40GB";

#[test]
fn four_share_two_gpus_under_oracle_bf() {
    let daemon = Setup::new(TWO).args(&["--policy", "oracle-bf"]).start();
    for _ in 0..4 {
        daemon.submit(task(&["--memory=9G", "--sm=0.3", "--work=60s"], Some(10)));
    }
    until("all four to run", || {
        let queue = daemon.queue();
        queue.jobs.iter().all(|j| j.state == "RUNNING").then_some(())
    });
    let tenants: Vec<usize> = daemon.gpus().gpus.iter().map(|g| g.tenants.len()).collect();
    assert_eq!(tenants.iter().sum::<usize>(), 4);
    assert!(tenants.iter().all(|n| *n >= 1), "idle GPUs are taken first: {tenants:?}");
    until("the memory to be seen", || {
        let used: u64 = daemon.gpus().gpus.iter().filter_map(|g| g.memory_used_mib).sum();
        (used >= 4 * 9 * 1024).then_some(())
    });
}

#[test]
fn for_energy_the_second_gpu_stays_idle() {
    let daemon = Setup::new(TWO).config("[queue]\nobjective = 'energy'\n").start();
    assert_eq!(daemon.status().policy, "adaptive:energy");
    assert!(daemon.log().contains("with policy adaptive:energy"), "{}", daemon.log());
    let ids = [(); 2].map(|()| daemon.submit(task(&["--memory=9G", "--sm=0.3", "--work=60s"], Some(10))));
    ids.iter().for_each(|id| drop(daemon.in_state(*id, "RUNNING")));
    let tenants: Vec<usize> = daemon.gpus().gpus.iter().map(|gpu| gpu.tenants.len()).collect();
    assert_eq!(tenants, [2, 0]);
}

#[test]
fn two_run_and_two_wait_under_exclusive() {
    let daemon = Setup::new(TWO).args(&["--policy", "exclusive"]).start();
    for _ in 0..4 {
        daemon.submit(task(&["--memory=9G", "--sm=0.3", "--work=60s"], Some(10)));
    }
    until("two to run", || {
        (daemon.queue().jobs.iter().filter(|j| j.state == "RUNNING").count() == 2).then_some(())
    });
    let queue = daemon.queue();
    let waiting: Vec<_> = queue.jobs.iter().filter(|j| j.state == "PENDING").collect();
    assert_eq!(waiting.len(), 2);
    assert_eq!(waiting[0].reason.code, "Resources", "{}", waiting[0].reason.text);
    assert_eq!(waiting[1].reason.code, "Priority", "{}", waiting[1].reason.text);
    let json = stdout(&daemon.carma(&["queue", "--json"]));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["version"], 1);
    assert_eq!(json["jobs"].as_array().unwrap().len(), 4);
}

#[test]
fn a_process_that_carma_did_not_start_is_counted_and_named() {
    let daemon = Setup::new("virtual:1xA100-40GB").args(&["--policy", "oracle-magm"]).start();
    let mut foreign = Command::new(CARMA)
        .args(["virtual-task", "--memory=20G", "--sm=0.1", "--work=600s", "--startup=0s"])
        .env("CARMA_VIRTUAL_GPUS", daemon.virtual_gpus())
        .env("CUDA_VISIBLE_DEVICES", &daemon.gpus().gpus[0].uuid)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let seen = until("the foreign process to be seen", || {
        let gpu = daemon.gpus().gpus.remove(0);
        gpu.foreign.first().cloned().filter(|f| f.memory_mib == Some(20 * 1024))
    });
    assert_eq!(seen.pid, foreign.id());
    let id = daemon.submit(task(&["--memory=25G", "--work=1s"], Some(30)));
    let reason = until("a reason that names it", || {
        let reason = daemon.show(id).job.reason;
        (reason.code == "GpuMemory").then_some(reason.text)
    });
    assert!(reason.contains(&format!("pid {}", foreign.id())) && reason.contains("not ours"), "{reason}");
    assert!(reason.contains("need 30.0 GiB (declared) + 2.0 GiB guard"), "{reason}");
    foreign.kill().unwrap();
    foreign.wait().unwrap();
    assert_eq!(daemon.end_of(id).job.state, "COMPLETED");
}

#[test]
fn a_job_of_unknown_need_keeps_its_gpu_until_it_has_settled() {
    let config = "policy = 'carma'\n[sampling]\nwindow = '3s'\n";
    let daemon = Setup::new("virtual:1xA100-40GB").config(config).start();
    let first = daemon.submit(task(&["--memory=5G", "--sm=0.2", "--work=300s", "--startup=0s"], None));
    daemon.in_state(first, "RUNNING");
    let second = daemon.submit(task(&["--memory=5G", "--sm=0.2", "--work=1s"], Some(6)));
    assert_eq!(daemon.in_state(second, "PENDING").job.state, "PENDING");
    // Once the first has been seen for a window, what it takes is known.
    let over = daemon.end_of(second);
    assert_eq!(over.job.state, "COMPLETED");
    assert_eq!(over.attempts[0].placed.code, "PlacedShared");
    let reserved = daemon.gpus().gpus[0].tenants[0].reserved_mib;
    assert!(reserved.is_some_and(|m| (5 * 1024..7 * 1024).contains(&m)), "{reserved:?}");
}

#[test]
fn jobs_see_their_gpus_and_an_outer_limit_of_several() {
    let daemon = Setup::new("virtual:4xA100-40GB").start();
    let mut two = job(&["/bin/sh", "-c", "echo $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER $CARMA_JOB_ID"]);
    two.gpus = Some(2);
    let id = daemon.submit(two);
    let over = daemon.end_of(id);
    assert_eq!(over.job.gpus, [0, 1]);
    assert_eq!(
        daemon.output(id),
        format!("GPU-virtual-a100-40gb-0,GPU-virtual-a100-40gb-1 PCI_BUS_ID {id}\n")
    );
}

/// What NVML tells before Hopper is enough for the default policy: utilisation, memory, power.
#[test]
fn jobs_that_declare_nothing_share_gpus_that_tell_no_activity() {
    let daemon = Setup::new("virtual:2xA100-40GB@no-activity").args(&["--speed", "20"]).start();
    let submit = |n: u64| {
        let words = [format!("--memory={}M", 1500 + 900 * n), format!("--sm=0.{}", 2 + n % 4)];
        let words = words.each_ref().map(String::as_str);
        daemon.submit(task(&[words[0], words[1], "--gract=0.95", "--work=120s"], None))
    };
    let ids: Vec<u64> = (0..8).map(submit).collect();
    until("four to run on two GPUs", || {
        (daemon.queue().jobs.iter().filter(|j| j.state == "RUNNING").count() >= 4).then_some(())
    });
    let gpus = stdout(&daemon.carma(&["gpus"]));
    assert!(gpus.contains("UTIL") && gpus.contains("so not shown: SMACT, SMOCC, DRAMA"), "{gpus}");
    for id in ids {
        let detail = daemon.end_of(id);
        assert_eq!((detail.job.state.as_str(), detail.attempts.len()), ("COMPLETED", 1), "{detail:?}");
    }
    // A command that is seen alone is known by its utilisation.
    let alone = submit(0);
    until("it to be profiled", || daemon.show(alone).rate.filter(|rate| rate.alone_per_s.is_some()));
    let json = stdout(&daemon.carma(&["predict", &alone.to_string(), "--json"]));
    assert!(json.contains("no SM activity"), "{json}");
    daemon.carma(&["cancel", &alone.to_string()]);
}

#[test]
fn variables_of_mps_in_the_submitters_environment_do_not_reach_the_job() {
    let daemon = Setup::new("virtual:1xA100-40GB").start();
    let of_mps = [
        "CUDA_MPS_PIPE_DIRECTORY",
        "CUDA_MPS_LOG_DIRECTORY",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
        "CUDA_MPS_CLIENT_PRIORITY",
        "CUDA_MPS_ANYTHING",
        "CARMA_VIRTUAL_MPS",
    ];
    for mode in ["exclusive", "time-slice", "mps"] {
        let mut request = job(&["/usr/bin/env"]);
        request.env.extend(of_mps.map(|variable| (variable.to_owned(), "the-users".to_owned())));
        request.sharing = Some(serde_json::from_value(mode.into()).unwrap());
        let id = daemon.submit(request);
        assert_eq!(daemon.end_of(id).job.state, "COMPLETED");
        let output = daemon.output(id);
        assert!(!output.contains("the-users"), "{mode}: {output}");
        assert_eq!(output.contains("CARMA_VIRTUAL_MPS=1"), mode == "mps", "{output}");
    }
}
