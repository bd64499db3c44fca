//! What is expected of a job's memory, and what runs teach.

use crate::support::{CARMA, Daemon, Setup, job, stderr, stdout, task, until};
use carma_api::wire::{EstimateView, MemoryReply, PartsView, SubmitRequest};

const ONE: &str = "virtual:1xA100-40GB";

/// What a front end of the client would say.
fn summary(net: u64) -> EstimateView {
    EstimateView {
        need_mib: 450 + net * 8 / 10,
        use_mib: 450 + net,
        upper_mib: 450 + net * 13 / 10,
        tier: "summary".into(),
        source: "allocator/summary".into(),
        family: "cnn".into(),
        parts: Some(PartsView {
            context_mib: 450,
            allocated_mib: net * 8 / 10,
            reserved_mib: net,
            workspace_mib: 0,
        }),
        reasons: vec!["a test says so".into()],
        ..EstimateView::default()
    }
}

fn with_batch(request: SubmitRequest, batch: u64, net: u64) -> SubmitRequest {
    let mut request = SubmitRequest { estimates: vec![summary(net)], ..request };
    request.task.batch_size = Some(batch);
    request
}

fn learned(daemon: &Daemon) -> MemoryReply {
    daemon.client().get("/v1/memory").unwrap()
}

#[test]
fn the_second_run_of_a_command_is_known_and_a_restart_keeps_it() {
    let mut daemon = Setup::new(ONE).args(&["--speed", "20"]).start();
    let run = || task(&["--memory=6G", "--sm=0.3", "--work=10s"], None);
    let first = daemon.submit(run());
    assert_eq!(daemon.show(first).estimate, None);
    assert_eq!(daemon.end_of(first).job.memory_peak_mib, Some(6144));
    let second = daemon.submit(run());
    let estimate = daemon.show(second).estimate.unwrap();
    assert_eq!((estimate.tier.as_str(), estimate.use_mib, estimate.upper_mib), ("exact", 6144, 6452));
    let explained = stdout(&daemon.carma(&["explain", &second.to_string()]));
    assert!(
        explained.contains("(history, tier exact)") && explained.contains("1 run of this command"),
        "{explained}"
    );
    let over = daemon.end_of(second);
    let placed = &over.attempts[0].placed.text;
    assert!(placed.contains("6.3 GiB (earlier runs of the same command, upper bound at 95 %)"), "{placed}");

    daemon.kill();
    daemon.restart(&[]);
    daemon.submit(run());
    let third = daemon.submit(run());
    let estimate = daemon.show(third).estimate.unwrap();
    assert!(estimate.reasons[0].starts_with("2 runs of this command"), "{:?}", estimate.reasons);
    assert!(estimate.reasons[0].contains("Virtual"), "a model's memory is never passed off as a GPU's");
    daemon.end_of(third);
    // From the third run on the margin is small.
    let fourth = daemon.submit(run());
    assert_eq!(daemon.show(fourth).estimate.unwrap().upper_mib, 6267);
}

#[test]
fn another_batch_size_is_scaled_by_what_is_simulated() {
    let daemon = Setup::new(ONE).args(&["--speed", "20"]).start();
    let file = daemon.dir.path().join("memory");
    let run = |batch, net, memory: &str| {
        // One command whose memory depends on the batch size alone, as a script's does.
        std::fs::write(&file, memory).unwrap();
        let line = format!("exec {CARMA} virtual-task --work=8s --memory=$(cat {})", file.display());
        with_batch(job(&["/bin/sh", "-c", &line]), batch, net)
    };
    let first = daemon.submit(run(8, 4000, "5000M"));
    let estimate = daemon.show(first).estimate.unwrap();
    assert_eq!((estimate.tier.as_str(), estimate.use_mib, estimate.upper_mib), ("summary", 4450, 5650));
    assert_eq!(daemon.end_of(first).job.memory_peak_mib, Some(5000));
    let second = daemon.submit(run(16, 8000, "9500M"));
    let estimate = daemon.show(second).estimate.unwrap();
    // 4,550 were seen beside the context for 4,000; 4,000 more are worth 4,600.
    assert_eq!((estimate.tier.as_str(), estimate.use_mib), ("scaled", 450 + 4550 + 4600));
    daemon.end_of(second);
}

#[test]
fn a_job_that_exceeds_its_estimate_gets_more_at_once_and_no_neighbour() {
    let daemon = Setup::new(ONE).args(&["--sharing", "time-slice", "--speed", "4"]).start();
    let args = ["--memory=12G", "--sm=0.2", "--work=100s", "--startup=1s"];
    let small = daemon.submit(with_batch(task(&args, None), 8, 4000));
    daemon.in_state(small, "RUNNING");
    let placed = daemon.show(small).job.memory_reserved_mib;
    assert_eq!(placed, Some(5650));
    let reserved = until("the reservation to follow", || {
        let gpus = daemon.gpus();
        gpus.gpus[0].tenants.first().and_then(|t| t.reserved_mib).filter(|m| *m > 12 * 1024)
    });
    // What was seen and a tenth.
    assert!(reserved >= 12 * 1024 + 1228, "{reserved}");
    let neighbour = daemon.submit(task(&["--memory=2G", "--sm=0.2", "--work=5s"], Some(3)));
    let reason = until("a reason", || {
        let reason = daemon.show(neighbour).job.reason;
        (reason.code != "NotPlannedYet").then_some(reason)
    });
    assert_eq!(reason.code, "RisingNeighbour", "{}", reason.text);
    assert!(
        reason.text.contains(&format!("job {small} holds 12.0 GiB where 5.5 GiB was expected")),
        "{}",
        reason.text
    );
    // Its memory stands still, so after a window the neighbour may come.
    let over = daemon.end_of(neighbour);
    assert_eq!(over.job.state, "COMPLETED");
    assert!(over.attempts[0].placed.text.contains("shared"), "{}", over.attempts[0].placed.text);
    let still = daemon.show(small);
    assert_eq!((still.job.state.as_str(), still.job.attempts), ("RUNNING", 1));
}

#[test]
fn what_an_estimate_did_not_need_goes_back_after_the_first_minute() {
    let daemon = Setup::new(ONE).args(&["--speed", "20"]).start();
    let args = ["--memory=6G", "--sm=0.2", "--work=400s", "--startup=1s"];
    let wide = daemon.submit(with_batch(task(&args, None), 8, 20_000));
    daemon.in_state(wide, "RUNNING");
    // It holds less than it could run with by the estimate, so carma waits longer than usual.
    until("the surplus to be released", || {
        let job = daemon.show(wide).job;
        assert_eq!(job.ended_ms, None, "released in vain");
        job.memory_reserved_mib.filter(|m| *m < 7000)
    });
    let needs = daemon.show(wide);
    let started = needs.job.started_ms.unwrap();
    let now = daemon.queue().now_ms;
    assert!(now - started >= 300_000, "released after {} ms", now - started);
    daemon.carma(&["cancel", &wide.to_string()]);
}

#[test]
fn running_out_of_memory_is_remembered_as_a_lower_bound() {
    let daemon = Setup::new(ONE).args(&["--sharing", "mps", "--speed", "20"]).start();
    let run = || with_batch(task(&["--memory=9G", "--sm=0.2", "--work=5s"], None), 8, 2000);
    let liar = daemon.submit(run());
    let over = daemon.end_of(liar);
    assert_eq!(over.job.state, "COMPLETED", "{}", over.job.reason.text);
    assert!(over.attempts.len() >= 2 && over.attempts[0].cap_mib == Some(3050), "{:#?}", over.attempts);
    let runs = learned(&daemon).runs;
    assert_eq!(runs.len(), 1);
    assert_eq!(runs[0].max_mib, Some(9216));
    assert!(runs[0].at_least_mib >= Some(3050) && runs[0].at_least_mib < Some(9216), "{runs:?}");
    // It is not told twice.
    let again = daemon.end_of(daemon.submit(run()));
    assert_eq!((again.job.state.as_str(), again.job.attempts), ("COMPLETED", 1));
}

#[test]
fn jobs_that_wait_learn_from_the_first_run() {
    let daemon = Setup::new(ONE).args(&["--policy", "carma", "--speed", "20"]).start();
    let run = || task(&["--memory=6G", "--sm=0.1", "--work=30s"], None);
    let ids: Vec<u64> = (0..4).map(|_| daemon.submit(run())).collect();
    // Nothing is known, so the first has the GPU alone and the others wait.
    assert_eq!(daemon.show(ids[3]).estimate, None);
    let waiting = until("the first to end", || {
        let over = daemon.show(ids[0]).job.ended_ms.is_some();
        over.then(|| daemon.show(ids[3]))
    });
    assert_eq!(waiting.estimate.unwrap().tier, "exact");
    for id in &ids[1..] {
        let over = daemon.end_of(*id);
        assert!(over.attempts[0].placed.text.contains("earlier runs of the same command"), "{over:#?}");
    }
    let shared = daemon.end_of(ids[3]).attempts[0].placed.text.clone();
    assert!(shared.contains("shared"), "{shared}");
}

#[test]
fn what_was_learned_can_be_exported() {
    let daemon = Setup::new(ONE).args(&["--speed", "20"]).start();
    daemon.end_of(daemon.submit(with_batch(task(&["--memory=3G", "--work=8s"], None), 8, 2500)));
    let json = daemon.carma(&["history", "export", "--json"]);
    let reply: MemoryReply = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(
        (reply.runs[0].batch_size, reply.runs[0].max_mib, reply.runs[0].runs),
        (Some(8), Some(3072), 1)
    );
    assert_eq!(reply.runs[0].simulated_mib, Some(2500));
    assert!(reply.ratios.iter().any(|r| r.group == "allocator/summary" && r.runs == 1), "{:?}", reply.ratios);
    let csv = stdout(&daemon.carma(&["history", "export", "--csv"]));
    let lines: Vec<&str> = csv.lines().collect();
    assert!(lines[0].starts_with("uid,command,batch_size,gpu,") && lines.len() == 2, "{csv}");
    assert!(lines[1].contains(",8,Virtual A100-40GB,"), "{csv}");
    // The list of jobs is what it was.
    assert!(stdout(&daemon.carma(&["history"])).contains("COMPLETED"));
    let nobody = daemon.carma(&["history", "export", "--json", "--csv"]);
    assert_eq!(nobody.status.code(), Some(2), "{}", stderr(&nobody));
}

#[test]
fn a_database_of_the_version_before_opens() {
    let mut daemon = Setup::new(ONE).args(&["--speed", "20"]).start();
    let old = daemon.end_of(daemon.submit(task(&["--memory=2G", "--work=5s"], Some(3))));
    daemon.kill();
    let db = rusqlite::Connection::open(daemon.dir.path().join("state/carma.db")).unwrap();
    db.execute_batch("DROP TABLE memory; DROP TABLE meta; DROP TABLE lives; PRAGMA user_version = 1;")
        .unwrap();
    for (table, column) in [
        ("inputs", "sum"),
        ("snapshots", "sum"),
        ("environments", "sum"),
        ("history", "sum"),
        ("jobs", "sum"),
        ("jobs", "estimate_sum"),
        ("jobs", "estimate"),
    ] {
        db.execute_batch(&format!("ALTER TABLE {table} DROP COLUMN {column}")).unwrap();
    }
    drop(db);
    std::fs::remove_file(daemon.dir.path().join("state/carma.db.head")).unwrap();
    daemon.restart(&[]);
    assert_eq!(daemon.show(old.job.id).job.state, "COMPLETED");
    assert!(learned(&daemon).runs.is_empty());
    let new = daemon.submit(task(&["--memory=2G", "--work=5s"], Some(3)));
    assert_eq!(daemon.end_of(new).job.state, "COMPLETED");
    assert_eq!(learned(&daemon).runs.len(), 1);
    assert!(!daemon.log().contains("panicked"), "{}", daemon.log());
}

#[test]
fn contexts_are_told_by_the_administrator_only() {
    let daemon = Setup::new(ONE).start();
    let probe = |mib: u64| serde_json::json!({"gpu": 0, "framework": "torch 2.11", "context_mib": mib});
    let mut client = daemon.client();
    let done: carma_api::wire::DoneReply = client.post("/v1/memory/contexts", &probe(530)).unwrap();
    assert!(done.text.contains("530 MiB"), "{}", done.text);
    let absurd = client.post::<carma_api::wire::DoneReply>("/v1/memory/contexts", &probe(1 << 40));
    assert!(absurd.unwrap_err().to_string().contains("cannot be"));
    let contexts = learned(&daemon).contexts;
    assert_eq!((contexts[0].mib, contexts[0].probed), (Some(530), true));
    assert_eq!(contexts[0].framework, "torch 2.11");
    // An estimate by hand takes the type of the GPU and the context from the daemon.
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config.json");
    std::fs::write(&config, r#"{"model_type": "bert", "num_hidden_layers": 2, "torch_dtype": "bfloat16"}"#)
        .unwrap();
    let asked = ["estimate", "--json", "--seq-len", "128", "--hf-config", config.to_str().unwrap()];
    let json: serde_json::Value = serde_json::from_str(&stdout(&daemon.carma(&asked))).unwrap();
    assert_eq!((&json["gpu"], &json["context_mib"]), (&"A100-40GB".into(), &530.into()), "{json}");
    let reasons = json["estimates"][0]["reasons"].to_string();
    assert!(
        reasons.contains("measured it on this machine") && reasons.contains("--precision bf16"),
        "{reasons}"
    );
    let doctor = stdout(&daemon.carma(&["doctor", "--probe-context"]));
    assert!(doctor.contains("context"), "{doctor}");
}

/// A task of the original without numbers of its own, and its summary where the original keeps them.
fn rad_without_numbers(daemon: &Daemon, task: &str, summary: &str, text: &str, batch: u64) -> String {
    let (tasks, summaries) = (daemon.dir.path().join("tasks"), daemon.dir.path().join("summaries"));
    std::fs::create_dir_all(&tasks).unwrap();
    std::fs::create_dir_all(&summaries).unwrap();
    std::fs::write(summaries.join(summary), text).unwrap();
    let rad = tasks.join(task);
    let lines = format!("# c\n\npython3 --version\n{summary}\ncifar100\n{batch}\nexclusive\n1\n");
    std::fs::write(&rad, lines).unwrap();
    rad.display().to_string()
}

#[test]
fn a_rad_file_without_numbers_is_estimated_from_its_summary() {
    if !carma_memory::estimators::names().any(|name| name == "allocator") {
        eprintln!("SKIPPED: this build has no estimator `allocator`");
        return;
    }
    let daemon = Setup::new(ONE).start();
    let submit = |rad: &str| {
        let output = daemon.carma(&["submit", "--hold", "--json", "--rad", rad]);
        assert!(output.status.success() && output.stderr.is_empty(), "{}", stderr(&output));
        let reply: carma_api::wire::SubmitReply = serde_json::from_slice(&output.stdout).unwrap();
        daemon.show(reply.id)
    };
    let text = include_str!("data/small_cnn.model");
    let of_batch = |batch| {
        let rad = rad_without_numbers(&daemon, &format!("{batch}.rad"), "small.model", text, batch);
        let detail = submit(&rad);
        assert!(!detail.forecasts_mib.contains_key("measured"), "{:?}", detail.forecasts_mib);
        detail.estimate.unwrap()
    };
    let (small, large) = (of_batch(32), of_batch(512));
    assert_eq!((small.tier.as_str(), small.source.as_str()), ("summary", "allocator/summary"));
    assert!(
        small.upper_mib > small.use_mib && large.use_mib > 4 * (small.use_mib - 524),
        "{small:?} {large:?}"
    );
    assert!(!large.elastic && !large.reasons.is_empty());

    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/carma");
    let Ok(rad) = std::fs::read_to_string(folder.join("tasks/resnet.rad")) else {
        eprintln!("SKIPPED: the original's .rad files are not at {}", folder.display());
        return;
    };
    let summary = std::fs::read_to_string(folder.join("summaries/resnet50_32.model")).unwrap();
    let lines: Vec<&str> = rad.lines().collect();
    let measured: u64 = lines[8].trim().parse().unwrap();
    let batch = lines[5].trim().parse().unwrap();
    let rad = rad_without_numbers(&daemon, "resnet.rad", lines[3].trim(), &summary, batch);
    let estimate = submit(&rad).estimate.unwrap();
    let off = estimate.use_mib as f64 / measured as f64;
    assert!((0.7..1.4).contains(&off) && estimate.upper_mib >= measured, "{measured} {estimate:?}");
}

#[test]
fn a_policy_goes_by_the_estimator_that_it_names() {
    let daemon = Setup::new(ONE)
        .args(&["--speed", "20", "--policy", "est-magm:allocator", "--sharing", "time-slice"])
        .start();
    let summary = daemon.dir.path().join("small.model");
    std::fs::write(&summary, include_str!("data/small_cnn.model")).unwrap();
    let submit = |described: bool| {
        let mut line = vec!["submit", "--json"];
        if described {
            line.extend(["--batch-size", "32", "--summary", summary.to_str().unwrap()]);
        }
        line.extend(["--", CARMA, "virtual-task", "--memory=1G", "--sm=0.2", "--work=60s", "--startup=1s"]);
        let output = daemon.carma(&line);
        assert!(output.status.success(), "{}", stderr(&output));
        serde_json::from_slice::<carma_api::wire::SubmitReply>(&output.stdout).unwrap().id
    };
    let first = submit(true);
    daemon.in_state(first, "RUNNING");
    let second = submit(true);
    let unknown = submit(false);
    let detail = daemon.end_of(second);
    let known = &detail.forecasts_mib;
    for estimator in ["allocator", "horus", "gpumemnet", "faketensor", "faketensor-raw", "dnnperf", "quick"] {
        assert!(known.contains_key(estimator), "{estimator}: {known:?}");
    }
    let bound = detail.estimate.as_ref().unwrap().upper_mib;
    assert_eq!((detail.job.state.as_str(), known["allocator"]), ("COMPLETED", bound));
    let placed = &detail.attempts[0].placed.text;
    assert!(placed.contains("shared") && placed.contains("estimated by the allocator model"), "{placed}");
    // What it says nothing of gets a GPU alone, until a run has been measured: for the oracle.
    let alone = daemon.end_of(unknown);
    assert!(alone.attempts[0].placed.text.contains("idle"), "{}", alone.attempts[0].placed.text);
}

#[test]
fn the_oracle_goes_by_what_was_measured_of_the_command() {
    let daemon = Setup::new(ONE).args(&["--speed", "20", "--policy", "oracle-magm"]).start();
    let run = |declared| {
        let mut request = task(&["--memory=6G", "--sm=0.2", "--work=40s", "--startup=1s"], None);
        request.gpu_memory_mib = declared;
        daemon.submit(request)
    };
    // Declared too large: beside another there is no room for it.
    let first = run(Some(37 * 1024));
    assert!(!daemon.show(first).forecasts_mib.contains_key("measured"));
    // It waits, and hears of it.
    let waits = run(Some(37 * 1024));
    let over = daemon.end_of(waits);
    assert_eq!(over.forecasts_mib["measured"], 6144);
    let (one, other) = (run(Some(37 * 1024)), run(None));
    for id in [one, other] {
        assert_eq!(daemon.end_of(id).forecasts_mib["measured"], 6144);
    }
    let placed = &daemon.show(other).attempts[0].placed.text;
    assert!(placed.contains("shared") && placed.contains("6.0 GiB (measured)"), "{placed}");
}

#[test]
fn a_task_of_two_gpus_is_not_estimated_as_if_on_one() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/carma");
    let rad = folder.join("tasks/gpt2_large_2.rad");
    if !rad.exists() {
        eprintln!("SKIPPED: the original's .rad files are not at {}", folder.display());
        return;
    }
    let daemon = Setup::new("virtual:2xA100-40GB").start();
    let rad = rad.display().to_string();
    let output = daemon.carma(&["submit", "--hold", "--json", "--seq-len", "512", "--rad", &rad]);
    assert!(output.status.success(), "{}", stderr(&output));
    let reply: carma_api::wire::SubmitReply = serde_json::from_slice(&output.stdout).unwrap();
    let estimate = daemon.show(reply.id).estimate.unwrap();
    let reasons = estimate.reasons.join("\n");
    // The text is of DataParallel: each GPU has half of the batch, the first gathers.
    assert!(reasons.contains("several GPUs") && !reasons.contains("the task one GPU"), "{reasons}");
    let off = estimate.use_mib as f64 / 28_356.0;
    assert!((0.8..1.25).contains(&off) && estimate.upper_mib >= 28_356, "{estimate:?}");
}

#[test]
fn a_submission_that_knows_nothing_says_what_follows() {
    let daemon = Setup::new(ONE).start();
    let submit = |words: &[&str]| {
        let output = daemon.carma(&[&["submit", "--hold"], words].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        (stdout(&output), stderr(&output))
    };
    let (told, _) = submit(&["--", "true"]);
    let line = told.lines().nth(1).unwrap_or_default();
    assert!(line.starts_with("memory: not known, so it gets a part of a GPU"), "{told}");
    assert!(line.contains("--dry-run or --gpu-memory"), "{told}");
    for (words, lines) in [
        (&["--gpu-memory", "2G", "--", "true"][..], 1),
        (&["--exclusive", "--", "true"], 1),
        (&["--parsable", "--", "true"], 1),
    ] {
        let (told, errors) = submit(words);
        assert_eq!((told.lines().count(), errors.as_str()), (lines, ""), "{words:?}: {told}");
    }
    // Time-sliced there is no limit, a policy may want a GPU for it, and one that asks for no forecast says nothing.
    for (args, follows) in [
        (["--sharing", "time-slice"], Some("so it gets what is free of a GPU until")),
        (["--policy", "carma"], Some("so it waits for a GPU without other jobs")),
        (["--policy", "or-magm"], None),
    ] {
        let other = Setup::new(ONE).args(&args).start();
        let told = stdout(&other.carma(&["submit", "--hold", "--", "true"]));
        let line = told.lines().nth(1);
        assert_eq!(line.is_some(), follows.is_some(), "{args:?}: {told}");
        assert!(line.is_none_or(|line| line.contains(follows.unwrap_or_default())), "{args:?}: {told}");
    }
}

#[test]
fn a_program_that_takes_a_share_gets_that_of_each_type() {
    let daemon = Setup::new("virtual:1xA100-40GB+1xH200").start();
    let config = daemon.dir.path().join("config.json");
    let text = r#"{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 128, "vocab_size": 1000, "max_position_embeddings": 128}"#;
    std::fs::write(&config, text).unwrap();
    let submit = |words: &[&str]| {
        let output = daemon.carma(&[&["submit", "--json"], words].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        let reply: carma_api::wire::SubmitReply = serde_json::from_slice(&output.stdout).unwrap();
        reply.id
    };
    let config = config.display().to_string();
    let model = ["--hf-config", &config, "--batch-size", "1", "--hold", "--"];
    let server = ["vllm", "serve", "m", "--gpu-memory-utilization", "0.5"];
    let estimate = daemon.show(submit(&[&model[..], &server].concat())).estimate.unwrap();
    // Not what the configuration says of a model of a few MiB.
    assert_eq!((estimate.source.as_str(), estimate.tier.as_str()), ("share/vllm", "share"));
    assert_eq!((estimate.use_mib, estimate.of_gpu_mib), (71_886, Some(143_771)));
    // A script that takes three quarters of its GPU: of the first, the smaller one.
    let script = daemon.dir.path().join("train.py");
    std::fs::write(&script, "import jax\nimport time\ntime.sleep(600)\n").unwrap();
    let line = format!("exec sleep 600; python {}", script.display());
    let running = submit(&["--wrap", &line]);
    until("the job runs", || (daemon.show(running).job.state == "RUNNING").then_some(()));
    let reserved = daemon.show(running).job.memory_reserved_mib.unwrap();
    // 77 % of 40,960 MiB and what a context takes; on the larger one it would be more than this GPU has.
    assert!((31_000..33_000).contains(&reserved), "{reserved}");
}

#[test]
fn a_trace_of_another_command_is_not_believed() {
    let daemon = Setup::new(ONE).start();
    let log = daemon.dir.path().join("t.log");
    let head =
        r#"{"format":"carma-trace","version":1,"ids":"counted","what":"train.py","command":["train.py"]}"#;
    let end = r#"{"end":{"status":"complete","steps":3,"backwards":3,"batch_sizes":[8]}}"#;
    std::fs::write(&log, format!("{head}\na 1073741824\n{end}\n")).unwrap();
    let log = log.display().to_string();
    let submit =
        |words: &[&str]| daemon.carma(&[&["submit", "--hold", "--json", "--trace", &log], words].concat());
    let estimate = |output: &std::process::Output| {
        let reply: carma_api::wire::SubmitReply = serde_json::from_slice(&output.stdout).unwrap();
        reply.estimate
    };
    let same = estimate(&submit(&["--", "python", "train.py"])).unwrap();
    assert_eq!((same.tier.as_str(), same.use_mib), ("trace", 524 + 1024));
    let other = submit(&["--batch-size", "256", "--", "python", "other.py"]);
    assert_eq!(estimate(&other), None);
    assert!(stderr(&other).contains("it is of `train.py`, not of `other.py`"), "{}", stderr(&other));
    let larger = estimate(&submit(&["--batch-size", "16", "--", "python", "train.py"])).unwrap();
    assert_eq!(larger.use_mib, 524 + 2048);
    assert!(larger.reasons.iter().any(|r| r.contains("a batch of 8, not of 16")), "{:?}", larger.reasons);
}

#[test]
fn a_dry_run_goes_before_a_submission() {
    let python = std::env::var("CARMA_TEST_TORCH_PYTHON").unwrap_or_else(|_| "python3".into());
    let found = std::process::Command::new(&python).args(["-c", "import torch"]).output();
    if !found.is_ok_and(|out| out.status.success()) {
        eprintln!("SKIPPED: no Python with PyTorch; CARMA_TEST_TORCH_PYTHON names one");
        return;
    }
    let daemon = Setup::new(ONE).start();
    let dir = daemon.dir.path().join("work");
    std::fs::create_dir(&dir).unwrap();
    let text = "import os, torch\nassert os.environ['WIDTH']\nm = torch.nn.Linear(int(os.environ['WIDTH']), 4096).cuda()\n\
                o = torch.optim.SGD(m.parameters(), lr=1)\nfor _ in range(5):\n    \
                m(torch.randn(8, 4096, device='cuda')).sum().backward()\n    o.step()\n";
    std::fs::write(dir.join("train.py"), text).unwrap();
    let folder = dir.display().to_string();
    // In the job's directory and environment.
    let submit = |words: &[&str], width: &str| {
        let width = format!("WIDTH={width}");
        let start = ["submit", "--hold", "-D", &folder, "--env", &width];
        daemon.carma(&[&start[..], words, &["--", &python, "train.py"]].concat())
    };
    let output = submit(&["--dry-run"], "4096");
    assert!(output.status.success(), "{}", stderr(&output));
    let told = stdout(&output);
    assert!(told.contains("(allocator/trace, tier trace)"), "{told}");
    assert!(stderr(&output).contains("dry run: 4 optimizer steps in "), "{}", stderr(&output));
    let quiet = submit(&["--dry-run", "--parsable"], "4096");
    assert_eq!((stdout(&quiet).as_str(), stderr(&quiet).as_str()), ("2\n", ""));
    // What fails is not submitted, unless it is to be.
    let failed = submit(&["--dry-run"], "100");
    assert_eq!((failed.status.code(), stdout(&failed).as_str()), (Some(1), ""));
    let why = stderr(&failed);
    assert!(
        why.contains("at train.py:6; nothing was submitted") && why.contains("hint: mend the command"),
        "{why}"
    );
    let tried = submit(&["--dry-run=try"], "100");
    assert!(tried.status.success() && stdout(&tried).starts_with("job 3 submitted"), "{}", stderr(&tried));
}
