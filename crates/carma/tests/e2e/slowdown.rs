//! How fast jobs go beside each other: predicted, limited, measured; evictions.

use crate::support::{CARMA, Daemon, Setup, job, stderr, stdout, task, until};
use carma_api::wire::{CheckpointSignal, JobDetail, SubmitRequest};

/// Ten times as fast as life, short windows.
fn start(gpus: &'static str) -> Daemon {
    start_with(gpus, "suspend = true\n")
}

/// The same with more settings of jobs.
fn start_with(gpus: &'static str, jobs: &str) -> Daemon {
    Setup::new(gpus)
        .args(&["--policy", "oracle-magm", "--sharing", "time-slice", "--speed", "10"])
        .config(&format!("[sampling]\nwindow = '3s'\n[jobs]\nslowdown-window = '8s'\n{jobs}"))
        .start()
}

fn profiled(daemon: &Daemon, id: u64) -> JobDetail {
    until(&format!("job {id} to be seen alone; the daemon's log:\n{}", daemon.log()), || {
        let detail = daemon.show(id);
        detail.rate.as_ref().is_some_and(|rate| rate.alone_per_s.is_some()).then_some(detail)
    })
}

#[test]
fn progress_beside_a_neighbour_is_measured_against_the_rate_alone() {
    let daemon = start("virtual:1xA100-40GB");
    let first = daemon
        .submit(task(&["--memory=5G", "--sm=0.9", "--gract=1", "--work=3000s", "--progress=bar"], Some(6)));
    let alone = profiled(&daemon, first).rate.unwrap();
    assert_eq!(alone.source.as_deref(), Some("printed progress"));
    let per_s = alone.alone_per_s.unwrap();
    // A virtual task takes ten steps a second.
    assert!((8.0..=12.0).contains(&per_s), "{per_s}");
    let beat = ["--memory=5G", "--sm=0.9", "--gract=1", "--work=3000s", "--progress=datagrams"];
    let second = daemon.submit(task(&beat, Some(6)));
    let slowed = until("its progress to be measured", || {
        let detail = daemon.show(first);
        detail.job.progress_pct.filter(|pct| *pct < 90).map(|_| detail)
    });
    // Both fill the GPU's time: each gets half.
    assert!((35..=65).contains(&slowed.job.progress_pct.unwrap()), "{:?}", slowed.job.progress_pct);
    let text = stdout(&daemon.carma(&["show", &first.to_string()]));
    assert!(text.contains("it/s by printed progress; 0.") && text.contains("measured"), "{text}");
    // The other was never alone: how fast it would be is not known, how fast it is comes from its heartbeats.
    let rate = until("heartbeats to be counted", || daemon.show(second).rate.filter(|r| r.per_s.is_some()));
    assert_eq!((rate.source.as_deref(), rate.alone_per_s), (Some("heartbeat"), None));
}

#[test]
fn nobody_joins_where_a_limit_would_be_exceeded() {
    let daemon = start("virtual:1xA100-40GB");
    // Both neighbours are seen alone first.
    let heavy = ["--memory=5G", "--sm=0.9", "--gract=1", "--work=40s", "--progress=bar"];
    let light = ["--memory=5G", "--sm=0.02", "--gract=0.02", "--work=40s", "--progress=bar"];
    for neighbour in [heavy, light] {
        let id = daemon.submit(task(&neighbour, Some(6)));
        profiled(&daemon, id);
        daemon.end_of(id);
    }
    let mut limited =
        task(&["--memory=5G", "--sm=0.8", "--gract=0.9", "--work=3000s", "--progress=bar"], Some(6));
    limited.max_slowdown_pct = Some(130);
    let limited = daemon.submit(limited);
    // Nothing is predicted of it before it was seen alone.
    let early = daemon.submit(task(&light, Some(6)));
    daemon.in_state(limited, "RUNNING");
    profiled(&daemon, limited);
    assert_eq!(daemon.in_state(early, "RUNNING").job.state, "RUNNING");
    let placed = daemon.show(early).attempts[0].placed.text.clone();
    assert!(placed.contains("predicted progress") && placed.contains(&format!("job {limited} ")), "{placed}");
    daemon.end_of(early);

    let harmful = daemon.submit(task(&heavy, Some(6)));
    let reason = until("a reason that names the limit", || {
        let reason = daemon.show(harmful).job.reason;
        (reason.code == "MaxSlowdown" && reason.text.contains("would go slower")).then_some(reason.text)
    });
    assert!(reason.contains(&format!("job {limited} ")) && reason.contains("its limit is 1.30"), "{reason}");
    stdout(&daemon.carma(&["cancel", &harmful.to_string()]));
    // Of a process that carma did not start nothing is predicted.
    let unknown = daemon.submit(task(&["--memory=4G", "--sm=0.1", "--work=10s"], Some(6)));
    until("a reason that says so", || {
        let text = daemon.show(unknown).job.reason.text;
        text.contains(&format!("job {unknown} has not been seen alone yet")).then_some(())
    });
    let text = stdout(&daemon.carma(&["show", &limited.to_string()]));
    assert!(text.contains("limit 1.30"), "{text}");

    // What the daemon goes by is what any user may ask, of finished jobs too.
    let pair = [&limited.to_string(), &harmful.to_string()];
    let json = stdout(&daemon.carma(&["predict", pair[0], pair[1], "--json"]));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["version"], &json["sharing"]), (&1.into(), &"time-slice".into()), "{json}");
    let progress = json["tasks"][0]["progress"]["expected"].as_f64().unwrap();
    assert!((0.3..0.7).contains(&progress), "{json}");
    let ranked = stdout(&daemon.carma(&[
        "predict",
        "--target",
        pair[0],
        "--candidates",
        &format!("{harmful},{early}"),
    ]));
    let lines: Vec<&str> = ranked.lines().collect();
    assert!(
        lines[1].starts_with(&format!(" {early} ")) || lines[1].starts_with(&early.to_string()),
        "{ranked}"
    );
    let refused = daemon.carma(&["predict", pair[0], &unknown.to_string()]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains(&format!("job {unknown} was not seen alone")), "{}", stderr(&refused));
    let missing = daemon.carma(&["predict", pair[0], "4711"]);
    assert!(stderr(&missing).contains("there is no job 4711"), "{}", stderr(&missing));
}

/// A job with a limit that runs, and one beside it that does more than was to be expected: its command is light the first time
/// and heavy afterwards. It saves its work when it is asked to.
fn limited_and_deceiver(daemon: &Daemon) -> (u64, u64) {
    let flag = daemon.dir.path().join("seen");
    let line = format!(
        "if [ -e {0} ]; then trap 'kill $!; wait; echo saved; exit 0' USR1; \
         {CARMA} virtual-task --memory=5G --sm=0.9 --gract=1 --work=3000s --progress=bar & wait; \
         else touch {0}; exec {CARMA} virtual-task --memory=5G --sm=0.02 --gract=0.02 --work=40s --progress=bar; fi",
        flag.display()
    );
    let deceiver = || {
        let mut request = job(&["/bin/bash", "-c", &line]);
        request.gpu_memory_mib = Some(6 << 10);
        request.checkpoint_signal = Some(CheckpointSignal::Usr1);
        request.grace_ms = Some(3_600_000);
        request
    };
    let first = daemon.submit(deceiver());
    profiled(daemon, first);
    daemon.end_of(first);
    let mut limited =
        task(&["--memory=5G", "--sm=0.8", "--gract=0.9", "--work=3000s", "--progress=bar"], Some(6));
    limited.max_slowdown_pct = Some(130);
    let limited = daemon.submit(limited);
    profiled(daemon, limited);
    (limited, daemon.submit(deceiver()))
}

#[test]
fn who_slows_a_job_beyond_its_limit_is_suspended_until_it_can_be_elsewhere_or_alone() {
    let daemon = start("virtual:1xA100-40GB");
    let (limited, second) = limited_and_deceiver(&daemon);
    let text = until(&format!("a suspension; the daemon's log:\n{}", daemon.log()), || {
        let job = daemon.show(second).job;
        (job.state == "SUSPENDED" && job.reason.code == "SetAside").then_some(job.reason.text)
    });
    assert!(text.contains(&format!("suspended by carma: job {limited} was slowed down by ")), "{text}");
    assert!(
        text.contains(&format!("beside job {limited} a limit of slowdown was exceeded before")),
        "{text}"
    );
    let kept = daemon.show(limited).job;
    assert_eq!(kept.state, "RUNNING");
    // Two windows beyond it, and the neighbour went.
    let counts = kept.limit_kept.map(|kept| (kept.beyond, kept.longest));
    assert_eq!(counts, Some((2, 2)), "{:?}", kept.limit_kept);
    let shown = stdout(&daemon.carma(&["show", &limited.to_string()]));
    assert!(shown.contains("exceeded in 2 of ") && shown.contains("2 in a row"), "{shown}");
    daemon.carma(&["cancel", &limited.to_string()]);
    let back = daemon.in_state(second, "RUNNING");
    assert_eq!(back.job.attempts, 1, "{}", daemon.log());
    assert!(!daemon.output(second).contains("saved"));
}

#[test]
fn who_slows_a_job_beyond_its_limit_is_evicted() {
    let daemon = start_with("virtual:1xA100-40GB", "suspend = false\n");
    let (limited, second) = limited_and_deceiver(&daemon);
    let evicted = until(&format!("an eviction; the daemon's log:\n{}", daemon.log()), || {
        let detail = daemon.show(second);
        let verdict = detail.attempts.first()?.verdict.clone()?;
        Some((detail, verdict))
    });
    let (detail, verdict) = evicted;
    assert_eq!(verdict.code, "Evicted", "{}", verdict.text);
    assert!(verdict.text.contains(&format!("job {limited} was slowed down by")), "{}", verdict.text);
    assert_eq!(detail.job.state, "PENDING");
    let explained = stdout(&daemon.carma(&["explain", &limited.to_string()]));
    assert!(explained.contains(&format!("evicted:  job {second} at ")), "{explained}");
    assert_eq!(detail.attempts[0].exit_code, Some(0), "{}", daemon.log());
    assert!(daemon.output(second).ends_with("saved\n"), "{}", daemon.log());
    let reason = until("it to be kept apart", || {
        let text = daemon.show(second).job.reason.text;
        text.contains("a limit of slowdown was exceeded before").then_some(text)
    });
    assert!(reason.contains(&format!("beside job {limited}")), "{reason}");
    // The job with the limit goes on as before.
    assert_eq!(daemon.show(limited).job.state, "RUNNING");
}

#[test]
fn what_was_learned_survives_a_restart() {
    let mut daemon = start("virtual:1xA100-40GB");
    let busy = ["--memory=5G", "--sm=0.9", "--gract=1", "--work=250s", "--progress=bar"];
    let id = daemon.submit(task(&busy, Some(6)));
    profiled(&daemon, id);
    let told = |daemon: &Daemon| -> carma_api::wire::SlowdownsReply {
        daemon.client().get(&format!("/v1/slowdowns?jobs={id}")).unwrap()
    };
    // CPU time needs two looks at the host, which are a second of life apart.
    until("its profile to say what it takes of the host", || {
        let metrics = &told(&daemon).profiles["tasks"][0]["metrics"];
        let seen = |name: &str| metrics[name]["mean"].as_f64();
        seen("cpu_pct").zip(seen("host_memory_mib")).filter(|(_, mib)| *mib > 0.5)
    });
    daemon.end_of(id);
    daemon.kill();
    daemon.restart(&[]);
    let reply = told(&daemon);
    assert_eq!(reply.unknown, Vec::<u64>::new());
    let task = &reply.profiles["tasks"][0];
    assert_eq!(task["name"], id.to_string());
    assert!((7.0..=13.0).contains(&task["rate"]["per_s"].as_f64().unwrap()), "{task}");
    assert!((80.0..=100.0).contains(&task["metrics"]["smact_pct"]["mean"].as_f64().unwrap()), "{task}");
}

/// As a user types it: a first run to be known by, then two more at once.
#[test]
fn a_second_run_of_a_command_shares_where_profiles_decide() {
    let play = |policy: &'static str, why: &'static str| {
        let daemon = Setup::new("virtual:1xA100-40GB").args(&["--speed", "20", "--policy", policy]).start();
        let run = || {
            let line =
                ["submit", "--json", "--", CARMA, "virtual-task", "--memory=4G", "--sm=0.2", "--gract=0.25"];
            let output = daemon.carma(&[&line[..], &["--work=60s", "--startup=1s"]].concat());
            assert!(output.status.success(), "{}", stderr(&output));
            serde_json::from_slice::<carma_api::wire::SubmitReply>(&output.stdout).unwrap().id
        };
        let first = run();
        let alone = daemon.end_of(first).attempts[0].placed.text.clone();
        assert!(alone.contains("idle"), "{policy}: {alone}");
        let (second, third) = (run(), run());
        assert!(daemon.end_of(second).attempts[0].placed.text.contains("idle"), "{policy}");
        let shared = &daemon.end_of(third).attempts[0].placed.text;
        assert!(shared.contains("shared") && shared.contains(why), "{policy}: {shared}");
    };
    std::thread::scope(|scope| {
        let runs =
            [("lucid", "(measured)"), ("horus", "(measured)"), ("kace", "earlier runs of the same command")];
        let runs = runs.map(|(policy, why)| scope.spawn(move || play(policy, why)));
        assert_eq!(runs.map(|run| run.join().is_err()), [false; 3]);
    });
}

#[test]
fn a_run_that_goes_on_is_known_while_it_runs() {
    let daemon = Setup::new("virtual:1xA100-40GB").args(&["--speed", "20", "--policy", "horus"]).start();
    let run = |work: &str, sm: &str| {
        let gract = sm.replace("--sm", "--gract");
        daemon.submit(task(&["--memory=4G", sm, &gract, work, "--startup=1s"], Some(5)))
    };
    let known = run("--work=30s", "--sm=0.2");
    daemon.end_of(known);
    // Nothing is known of the first, which has the GPU alone until it has been watched.
    let first = run("--work=400s", "--sm=0.5");
    daemon.in_state(first, "RUNNING");
    let second = run("--work=30s", "--sm=0.2");
    let reason = until("a reason", || {
        let reason = daemon.show(second).job.reason;
        (reason.code != "NotPlannedYet").then_some(reason)
    });
    assert!(["GpuBusy", "StartingNeighbour"].contains(&reason.code.as_str()), "{}", reason.text);
    let over = daemon.end_of(second);
    assert!(over.attempts[0].placed.text.contains("shared"), "{}", over.attempts[0].placed.text);
    assert_eq!(daemon.show(first).job.state, "RUNNING");
    daemon.carma(&["cancel", &first.to_string()]);
}

#[test]
fn light_commands_that_were_never_alone_share_one_gpu() {
    let daemon = Setup::new("virtual:1xA100-40GB").args(&["--speed", "20", "--policy", "adaptive"]).start();
    // Eight commands, each new; as many typical ones would keep less than half of their speed.
    let jobs: Vec<u64> = (0..8)
        .map(|n| {
            let work = format!("--work={}s", 3000 + n);
            let light = ["--memory=2G", "--sm=0.04", "--gract=0.05", "--startup=1s", "--progress=bar", &work];
            daemon.submit(task(&light, Some(3)))
        })
        .collect();
    for id in &jobs {
        daemon.in_state(*id, "RUNNING");
    }
    let ids: Vec<String> = jobs.iter().map(u64::to_string).collect();
    let told: carma_api::wire::SlowdownsReply =
        daemon.client().get(&format!("/v1/slowdowns?jobs={}", ids.join(","))).unwrap();
    // The first may have had the GPU for itself for long enough.
    assert!(told.unknown.len() >= 7, "{:?}", told.unknown);
}

/// A server under MPS: no job joins it before its latency alone is known; then only a job that is predicted to leave it within its
/// target; and a job that turns out to exceed that is evicted.
#[test]
fn a_server_keeps_its_latency() {
    let daemon = Setup::new("virtual:1xA100-40GB")
        .args(&["--speed", "10"])
        .config("[sampling]\nwindow = '3s'\n[jobs]\nslowdown-window = '8s'\n")
        .start();
    let server = |latency_us| SubmitRequest {
        latency_us: Some(latency_us),
        ..task(
            &["--memory=5G", "--sm=0.8", "--gract=0.9", "--work=3000s", "--startup=0s", "--latency=8ms"],
            Some(6),
        )
    };
    // At first it is light; the second time it is heavy.
    let flag = daemon.dir.path().join("seen");
    let line = format!(
        "if [ -e {0} ]; then exec {CARMA} virtual-task --memory=5G --sm=0.9 --gract=1 --work=3000s; \
         else touch {0}; exec {CARMA} virtual-task --memory=5G --sm=0.02 --gract=0.02 --work=40s; fi",
        flag.display()
    );
    let heavier = || {
        let mut request = job(&["/bin/bash", "-c", &line]);
        request.gpu_memory_mib = Some(6 << 10);
        request
    };
    let first = daemon.submit(heavier());
    daemon.end_of(first);
    let refused = daemon.carma(&["submit", "--latency", "20", "--", "true"]);
    assert!(stderr(&refused).contains("write e.g. 20ms"), "{}", stderr(&refused));

    let id = daemon.submit(server(10_000));
    daemon.in_state(id, "RUNNING");
    let second = daemon.submit(heavier());
    let alone = until("its latency alone", || daemon.show(id).job.latency_alone_ms);
    assert!((7.5..8.6).contains(&alone), "{alone}");
    let detail = daemon.show(id);
    assert_eq!(
        (detail.job.max_latency_ms, detail.job.max_slowdown_pct.map(|pct| pct > 110)),
        (Some(10.0), Some(true))
    );
    let text = stdout(&daemon.carma(&["show", &id.to_string()]));
    assert!(
        text.contains("latency:") && text.contains("at most 10 ms; ") && text.contains(" alone"),
        "{text}"
    );
    let verdict = until(&format!("an eviction; the daemon's log:\n{}", daemon.log()), || {
        daemon.show(second).attempts.first()?.verdict.clone()
    });
    assert_eq!(verdict.code, "Evicted", "{}", verdict.text);
    assert!(verdict.text.contains(&format!("job {id} was slowed down by")), "{}", verdict.text);
    assert_eq!(daemon.show(id).job.state, "RUNNING");
}
