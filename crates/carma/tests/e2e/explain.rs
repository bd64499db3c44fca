//! `carma explain`: what is said of jobs that wait and run, and that what it promises comes true.

use crate::support::{Daemon, Setup, job, stdout, task, until};
use carma_api::wire::{ExplainReply, SubmitRequest};

fn explained(daemon: &Daemon, id: u64) -> ExplainReply {
    daemon.client().get(&format!("/v1/jobs/{id}/explain")).unwrap()
}

/// The end of one of its processes may end its neighbours: docs/recovery.md.
#[test]
fn a_job_on_several_gpus_is_not_said_to_fail_without_its_neighbours() {
    let daemon = Setup::new("virtual:2xA100-40GB")
        .args(&["--policy", "oracle-magm", "--sharing", "mps"])
        .config("[mps]\ncaps = true\n")
        .start();
    let run = |gpus| SubmitRequest {
        gpus: Some(gpus),
        ..task(&["--memory=2G", "--sm=0.2", "--work=600s", "--startup=0s"], Some(4))
    };
    let said = |id| explained(&daemon, id).running.unwrap().out_of_memory;
    let [one, both] = [1, 2].map(|gpus| daemon.submit(run(gpus)));
    for id in [one, both] {
        daemon.in_state(id, "RUNNING");
    }
    assert!(said(one).contains("hard limit of 4.0 GiB, no neighbour does"), "{}", said(one));
    assert!(said(both).contains("if it has several processes its neighbours may"), "{}", said(both));
}

/// What a job of unknown memory may take and did not is lent to others once its memory has settled.
#[test]
fn where_hard_limits_add_up_to_more_than_the_gpu_a_neighbour_may_fail() {
    let daemon = Setup::new("virtual:1xA100-40GB").start();
    let run = || task(&["--memory=2G", "--sm=0.2", "--work=600s", "--startup=0s", "--progress=bar"], None);
    let both = [run(), run()].map(|run| daemon.submit(run));
    for id in both {
        daemon.in_state(id, "RUNNING");
    }
    let said = explained(&daemon, both[0]).running.unwrap().out_of_memory;
    assert!(said.contains("it fails or a neighbour (hard limits there add up to"), "{said}");
}

#[test]
fn a_job_that_waits_for_a_window_is_told_of_no_end() {
    let config = "policy = 'aegis'\n[sampling]\nwindow = '5min'\n";
    let daemon = Setup::new("virtual:1xA100-40GB").config(config).start();
    let run = || task(&["--memory=5G", "--sm=0.3", "--work=600s", "--startup=0s"], Some(6));
    let first = daemon.submit(run());
    daemon.in_state(first, "RUNNING");
    let second = daemon.submit(run());
    let waiting = until("the first to have been seen active", || {
        explained(&daemon, second)
            .waiting
            .filter(|waiting| waiting.time.as_ref().is_some_and(|time| time.left_s.is_some()))
    });
    let time = waiting.time.unwrap();
    assert_eq!(time.text, format!("job {first} on GPU 0 to have been active for 5 min"));
    assert!(time.left_s.unwrap() <= 300 && waiting.end.is_none(), "{time:?} {:?}", waiting.end);
    let text = stdout(&daemon.carma(&["explain", &second.to_string()]));
    assert!(text.contains("waits for: job 1 on GPU 0 to have been active for 5 min, in about "), "{text}");
}

#[test]
fn a_job_waits_and_what_would_let_it_start_does() {
    let config = "policy = 'carma'\nsharing = 'time-slice'\n[sampling]\nwindow = '3s'\n";
    let daemon = Setup::new("virtual:1xA100-40GB").config(config).start();
    let run = |memory: &str, declared| task(&[memory, "--sm=0.1", "--work=600s"], Some(declared));
    let first = daemon.submit(run("--memory=20G", 24));
    daemon.in_state(first, "RUNNING");
    let second = daemon.submit(run("--memory=5G", 38));
    let third = daemon.submit(SubmitRequest { exclusive: true, ..run("--memory=5G", 6) });
    let reply = until("a word on what would help", || {
        let reply = explained(&daemon, second);
        (!reply.sooner.is_empty()).then_some(reply)
    });
    let waiting = reply.waiting.unwrap();
    assert_eq!((waiting.place, waiting.of, waiting.order.as_str(), waiting.due_ms), (1, 2, "arrival", None));
    assert!(waiting.why.contains("overtaken for 30 min at most"), "{}", waiting.why);
    let end = waiting.end.unwrap();
    assert_eq!((end.job, end.gpus, end.starts_on), (first, vec![0], vec![0]));
    let gpu = &reply.gpus[0];
    assert_eq!(
        (gpu.fits, gpu.cause.as_str(), gpu.jobs.as_slice()),
        (false, "too little memory", &[first][..])
    );
    assert_eq!(gpu.need_mib, Some(38 * 1024 + 512));
    let free = gpu.free_mib.unwrap();
    let help = &reply.sooner[0];
    assert_eq!((help.code.as_str(), help.gpus.as_slice()), ("GpuMemory", &[0][..]), "{help:?}");
    let gib = (free - 512) / 1024;
    assert!(help.text.contains(&format!("--gpu-memory {gib}G (not 38.0 GiB): on GPU 0")), "{help:?}");
    let text = stdout(&daemon.carma(&["explain", &second.to_string()]));
    for part in [
        "place:",
        "1st of 2",
        "waits for: the end of job 1 on GPU 0",
        "It would start now:",
        "too little memory",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // The one without neighbours is told so, and what is told comes true.
    let alone = explained(&daemon, third);
    assert_eq!(alone.gpus[0].cause, "in use");
    assert!(alone.sooner.iter().any(|help| help.code == "Sharing"), "{:?}", alone.sooner);
    let again = daemon.submit(run("--memory=5G", gib));
    daemon.in_state(again, "RUNNING");

    // Both that run are told of each other.
    let reply = explained(&daemon, first);
    let running = reply.running.unwrap();
    assert_eq!((reply.waiting, reply.gpus.len(), reply.sooner.len()), (None, 0, 0));
    assert_eq!((running.placed.as_str(), running.neighbours[0].job), ("the GPU was idle", again));
    assert!(
        running.out_of_memory.contains("no hard limit") && running.out_of_memory.contains("0 of 5"),
        "{running:?}"
    );
    let text = stdout(&daemon.carma(&["explain", &again.to_string()]));
    for part in ["on GPU 0 (time-slice)", "free beside 1 other", "Beside it", "not measured yet"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    daemon.carma(&["drain", "0"]);
    let drained = explained(&daemon, third);
    assert_eq!(drained.gpus[0].brief.split(" by ").next(), Some("drained"));
    daemon.carma(&["cancel", &first.to_string(), &again.to_string()]);
    daemon.end_of(again);
    daemon.end_of(first);
    let resumed = until("that the GPU's use would help", || {
        explained(&daemon, second).sooner.into_iter().find(|help| help.code == "Resume")
    });
    assert!(resumed.text.starts_with("`carma resume --gpu 0` (drained by "), "{resumed:?}");
    // What is over has neither.
    let over = explained(&daemon, first);
    assert_eq!((over.waiting, over.running, over.job.state.as_str()), (None, None, "CANCELLED"));
}

#[test]
fn the_shortest_goes_first_and_every_job_knows_its_bound() {
    let daemon = Setup::new("virtual:1xA100-40GB").args(&["--policy", "adaptive"]).start();
    let runs = |limit_ms| SubmitRequest { time_limit_ms: Some(limit_ms), ..job(&["sleep", "600"]) };
    let first = daemon.submit(SubmitRequest { exclusive: true, ..runs(3_600_000) });
    daemon.in_state(first, "RUNNING");
    let long = daemon.submit(SubmitRequest { gpu_memory_mib: Some(1024), ..runs(7_200_000) });
    let short = daemon.submit(SubmitRequest { gpu_memory_mib: Some(1024), ..runs(60_000) });
    let [long, short] = [long, short].map(|id| explained(&daemon, id));
    let [of_long, of_short] = [&long, &short].map(|reply| reply.waiting.clone().unwrap());
    assert_eq!((of_short.place, of_long.place, of_long.order.as_str()), (1, 2, "shortest"));
    assert!(of_short.why.contains("1 min on 1 GPU (its time limit)"), "{}", of_short.why);
    // Without sharing, all in the order of submission: after an hour, and after three.
    assert!(of_long.due_ms.unwrap() < of_short.due_ms.unwrap() && !of_long.overdue);
    assert_eq!(long.gpus[0].brief, format!("job {first} has it alone"));
    let text = stdout(&daemon.carma(&["explain", &long.job.id.to_string()]));
    assert!(
        text.contains("2nd of 2; shortest first: 2 h on 1 GPU")
            && text.contains("if run times are as expected"),
        "{text}"
    );
}
