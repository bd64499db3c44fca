//! `carma dry-run` and `carma trace-model` on real training scripts, with a Python that has PyTorch:
//! `CARMA_TEST_TORCH_PYTHON`, or `python3`. Without one the tests say so and pass.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// A Python with PyTorch, and what else it has.
fn python() -> Option<&'static str> {
    static FOUND: OnceLock<Option<String>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let python = std::env::var("CARMA_TEST_TORCH_PYTHON").unwrap_or_else(|_| "python3".into());
        has(&python, "torch").then_some(python)
    });
    if found.is_none() {
        println!("SKIPPED: no Python with PyTorch; CARMA_TEST_TORCH_PYTHON names one");
    }
    found.as_deref()
}

fn has(python: &str, module: &str) -> bool {
    Command::new(python)
        .args(["-c", &format!("import {module}")])
        .output()
        .is_ok_and(|out| out.status.success())
}

fn script(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts").join(name).display().to_string()
}

fn carma(args: &[&str], dir: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_carma")).args(args).current_dir(dir).output().unwrap()
}

/// Runs a script of the folder; standard output must be JSON and nothing else.
fn dry_run(python: &str, name: &str, args: &[&str], options: &[&str]) -> (Option<Value>, String, i32) {
    let dir = tempfile::tempdir().unwrap();
    let path = script(name);
    let mut words = vec!["dry-run", "--gpu", "H200", "--json"];
    words.extend_from_slice(options);
    words.extend_from_slice(&["--", python, &path]);
    words.extend_from_slice(args);
    let out = carma(&words, dir.path());
    let stderr = String::from_utf8_lossy(&out.stderr).into_owned();
    let left: Vec<PathBuf> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().path()).collect();
    assert!(left.is_empty(), "{name} left {left:?} behind");
    let value = if out.stdout.is_empty() { None } else { Some(serde_json::from_slice(&out.stdout).unwrap()) };
    (value, stderr, out.status.code().unwrap())
}

/// A run that gives an estimate from a trace.
fn traced(python: &str, name: &str, args: &[&str], options: &[&str]) -> Value {
    let (value, stderr, code) = dry_run(python, name, args, options);
    assert_eq!(code, 0, "{name}: {stderr}");
    let value = value.unwrap();
    let estimate = &value["estimates"][0];
    assert_eq!(estimate["tier"], "trace", "{name}");
    assert!(estimate["need_mib"].as_u64() <= estimate["use_mib"].as_u64(), "{name}");
    assert!(estimate["use_mib"].as_u64() < estimate["upper_mib"].as_u64(), "{name}");
    value
}

fn allocated(value: &Value) -> u64 {
    value["estimates"][0]["parts"]["allocated_mib"].as_u64().unwrap()
}

#[test]
fn a_plain_loop() {
    let Some(python) = python() else { return };
    let value = traced(python, "plain.py", &[], &[]);
    let end = &value["trace"]["end"];
    // Four batches of 64, and the 40 samples that remain of 1000.
    assert_eq!((end["steps"].as_u64(), end["status"].as_str()), (Some(5), Some("complete")));
    assert_eq!(end["batch_sizes"], serde_json::json!([64]));
    // (3*32*9 + 32) + 2*32 + (8192*512 + 512) + (512*10 + 10)
    assert_eq!(end["parameters"], 4_200_906);
    // Weights, gradients, momentum: 48 MiB; two workspaces of 32 MiB on an H200; activations.
    let mib = allocated(&value);
    assert!((112..180).contains(&mib), "{mib}");
}

#[test]
fn evaluation_counts_and_checkpoints_are_not_written() {
    let Some(python) = python() else { return };
    let out = tempfile::tempdir().unwrap();
    let file = out.path().join("best.pt").display().to_string();
    let args = ["--batch-size", "48", "--hidden", "8192", "--out", &file];
    let value = traced(python, "evaluate.py", &args, &[]);
    assert_eq!(value["trace"]["end"]["batch_sizes"], serde_json::json!([48, 192]));
    assert_eq!(value["trace"]["end"]["train_batch_sizes"], serde_json::json!([48]));
    let inference = traced(python, "evaluate.py", &[&args[..], &["--only-evaluate"]].concat(), &[]);
    assert_eq!(inference["trace"]["end"]["steps"], 0);
    assert!(allocated(&inference) < allocated(&value));
    assert!(!Path::new(&file).exists());
}

#[test]
fn what_an_earlier_run_saved_stays_and_what_this_run_saved_is_read() {
    let Some(python) = python() else { return };
    let dir = tempfile::tempdir().unwrap();
    for folder in ["out", "pretrained", "kept", "swapped"] {
        std::fs::create_dir(dir.path().join(folder)).unwrap();
    }
    // Checkpoints, and what else the program writes over.
    let saved = [
        "archive.tar.gz",
        "archive.zip",
        "behind.pt",
        "best.pt",
        "chdir.pt",
        "forked.pt",
        "inside.pt",
        "link.pt",
        "model.safetensors",
        "opened.pt",
        "other.pt",
        "packed.pt.gz",
        "replaced.pt",
        "step-1.pt",
        "two.pt",
        "kept/model.pt",
        "swapped/model.pt",
        "swapped/note.txt",
    ];
    let written = ["data.bin", "nested.bin", "child.bin", "left.bin"];
    for name in saved.into_iter().chain(written) {
        std::fs::write(dir.path().join(name), format!("{name} of an earlier run")).unwrap();
    }
    std::fs::write(dir.path().join("broken.gz"), b"\x1f\x8b\x08 no such file").unwrap();
    traced(python, "saves.py", &[&dir.path().display().to_string()], &[]);
    let read = |name: &str| String::from_utf8(std::fs::read(dir.path().join(name)).unwrap()).unwrap();
    for name in saved {
        assert_eq!(read(name), format!("{name} of an earlier run"));
    }
    assert_eq!(written.map(read), ["shorter", "data", "child", "never closed"]);
    assert!(std::fs::read(dir.path().join("broken.gz")).unwrap().starts_with(b"\x1f\x8b\x08 no such file"));
    let mut expected: Vec<&str> = saved[..15].iter().copied().chain(written).collect();
    expected.extend(["broken.gz", "DONE", "kept", "out", "pretrained", "swapped"]);
    expected.sort_unstable();
    assert_eq!(names(dir.path()), expected);
    assert!(names(&dir.path().join("out")).is_empty());
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort_unstable();
    names
}

#[test]
fn however_a_program_ends_what_an_earlier_run_saved_comes_back() {
    let Some(python) = python() else { return };
    for end in ["late", "killed"] {
        let dir = tempfile::tempdir().unwrap();
        let saved = ["best.pt", "final.pt", "forked.pt", "thread.pt"];
        for name in saved {
            std::fs::write(dir.path().join(name), format!("{name} of an earlier run")).unwrap();
        }
        dry_run(python, "ends.py", &[&dir.path().display().to_string(), end], &[]);
        assert_eq!(names(dir.path()), saved, "{end}");
        for name in saved {
            let text = std::fs::read_to_string(dir.path().join(name)).unwrap();
            assert_eq!(text, format!("{name} of an earlier run"), "{end}");
        }
    }
}

#[test]
fn a_file_that_the_program_has_not_made_is_kept() {
    let Some(python) = python() else { return };
    // Here, and where files are in memory.
    for dir in [tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap()] {
        let folder = dir.path().display().to_string();
        let by_itself = |what: &str| {
            let out = Command::new(python).args([&script("older.py"), what, &folder]).output().unwrap();
            assert!(out.status.success(), "{what}: {}", String::from_utf8_lossy(&out.stderr));
        };
        by_itself("before");
        traced(python, "older.py", &["meets", &folder], &[]);
        by_itself("after");
    }
}

#[test]
fn what_is_kept_outlasts_a_full_disk_and_is_nobody_elses() {
    let Some(python) = python() else { return };
    let dir = tempfile::tempdir().unwrap();
    let tracer = concat!(env!("CARGO_MANIFEST_DIR"), "/../memory/src/trace/python");
    let mut command = Command::new(python);
    command
        .arg(script("put_back.py"))
        .arg(dir.path())
        .env("PYTHONPATH", tracer)
        .env("PYTHONDONTWRITEBYTECODE", "1");
    let out = command.output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn distributed_checkpoints_are_not_written() {
    let Some(python) = python() else { return };
    let dir = tempfile::tempdir().unwrap();
    let metadata = dir.path().join("ck/.metadata");
    std::fs::create_dir(dir.path().join("ck")).unwrap();
    std::fs::write(&metadata, "of an earlier run").unwrap();
    traced(python, "distributed_saves.py", &[&dir.path().display().to_string()], &[]);
    assert_eq!(std::fs::read_to_string(metadata).unwrap(), "of an earlier run");
    assert_eq!(
        (names(dir.path()), names(&dir.path().join("ck"))),
        (vec!["ck".into()], vec![".metadata".into()])
    );
}

#[test]
fn what_was_noted_is_missed_and_messages_that_nobody_reads_are_not() {
    let Some(python) = python() else { return };
    let dir = tempfile::tempdir().unwrap();
    let train = |text: &str| std::fs::write(dir.path().join("train.py"), text).unwrap();
    let dry_run = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_carma"));
        command.args(["dry-run", "--gpu", "H200", "--", python, "train.py"]).current_dir(dir.path());
        command
    };
    for name in ["best.pt", "old.log"] {
        std::fs::write(dir.path().join(name), "of an earlier run").unwrap();
    }
    train(
        "import os, torch\n\
         torch.save(torch.ones(8, device='cuda'), 'best.pt')\n\
         os.rename('old.log', 'old.log.1')\n\
         open('old.log', 'w').write('x')\n",
    );
    dry_run().stderr(std::fs::File::create("/dev/full").unwrap()).output().unwrap();
    assert_eq!(std::fs::read_to_string(dir.path().join("best.pt")).unwrap(), "of an earlier run");
    train(
        "import torch\n\
         torch.save(torch.ones(8, device='cuda'), 'best.pt')\n\
         import subprocess, carma_trace_saves\n\
         kept = carma_trace_saves.KEPT[0]\n\
         subprocess.run(['rm', '-r', kept.notes, *kept.folders.values()])\n",
    );
    let out = dry_run().output().unwrap();
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert!(stderr.contains("may still be in .carma-dry-run-*"), "{stderr}");
}

#[test]
fn what_cannot_be_put_back_is_named_with_its_place() {
    let Some(python) = python() else { return };
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("out")).unwrap();
    let file = dir.path().join("out/best.pt");
    std::fs::write(&file, "of an earlier run").unwrap();
    std::fs::write(
        dir.path().join("train.py"),
        "import os, shutil, torch\n\
         torch.save(torch.ones(8, device='cuda'), 'out/best.pt')\n\
         shutil.rmtree('out')\n\
         open('out', 'w').write('x')\n\
         os.rename('old.log', 'old.log.1')\n\
         open('old.log', 'w').write('x')\n",
    )
    .unwrap();
    std::fs::write(dir.path().join("old.log"), "of an earlier run").unwrap();
    let out = carma(&["dry-run", "--gpu", "H200", "--", python, "train.py"], dir.path());
    let stderr = String::from_utf8_lossy(&out.stderr).into_owned();
    let said = |start: &str| stderr.lines().find_map(|line| line.strip_prefix(start)).unwrap_or_default();
    let kept = said(&format!("carma: {} could not be put back ", file.display()));
    let kept = kept.rsplit_once(": it is ").unwrap_or_else(|| panic!("{stderr}")).1;
    assert_eq!(std::fs::read_to_string(kept).unwrap(), "of an earlier run");
    std::fs::remove_dir_all(Path::new(kept).parent().unwrap()).unwrap();
    assert!(
        said(&format!("carma: {0}.1 is what the program renamed", dir.path().join("old.log").display()))
            .len()
            > 1,
        "{stderr}"
    );
    assert_eq!(std::fs::read_to_string(dir.path().join("old.log.1")).unwrap(), "of an earlier run");
}

/// A folder with `best.pt` of an earlier run and a program, and a dry run of it with temporary files of its own.
struct Trained(tempfile::TempDir);

impl Trained {
    fn new(program: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["w", "t"] {
            std::fs::create_dir(dir.path().join(folder)).unwrap();
        }
        std::fs::write(dir.path().join("w/best.pt"), "of an earlier run").unwrap();
        std::fs::write(dir.path().join("w/train.py"), program).unwrap();
        Self(dir)
    }

    fn best(&self) -> String {
        std::fs::read_to_string(self.0.path().join("w/best.pt")).unwrap()
    }

    /// What it prints, what it says, and its exit code.
    fn dry_run(&self, python: &str) -> (String, String, i32) {
        let out = Command::new(env!("CARGO_BIN_EXE_carma"))
            .args(["dry-run", "--gpu", "H200", "--json", "--", "env", "-C", "w", python, "train.py"])
            .current_dir(self.0.path())
            .env("TMPDIR", self.0.path().join("t"))
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (text(&out.stdout), text(&out.stderr), out.status.code().unwrap())
    }
}

const WORKER: &str = "import concurrent.futures, multiprocessing, os, shutil, signal, subprocess, sys, torch\n\
     def worker(rank, times=5):\n    \
         device = 'cuda' if torch.cuda.is_available() else 'cpu'\n    \
         model = torch.nn.Linear(2048, 2048).to(device)\n    \
         optimizer = torch.optim.SGD(model.parameters(), lr=1)\n    \
         for _ in range(times):\n        \
             model(torch.ones(2, 2048, device=device)).sum().backward()\n        \
             optimizer.step()\n        \
             torch.save(model.state_dict(), os.path.abspath('best.pt'))\n\
     if __name__ == '__main__':\n    \
         x = torch.ones(1024, 1024, device='cuda')\n    ";

#[test]
fn the_first_worker_is_traced_and_another_python_is_refused() {
    let Some(python) = python() else { return };
    for start in [
        "torch.multiprocessing.spawn(worker, args=(9,), nprocs=2)",
        "while not torch.multiprocessing.spawn(worker, args=(9,), nprocs=2, join=False).join(): pass",
        "torch.multiprocessing.start_processes(worker, nprocs=1, start_method='forkserver')",
    ] {
        let trained = Trained::new(&format!("{WORKER}{start}\n"));
        let (out, stderr, code) = trained.dry_run(python);
        assert_eq!((code, trained.best().as_str()), (0, "of an earlier run"), "{start}: {stderr}");
        let value: Value = serde_json::from_str(&out).unwrap();
        assert!(value["trace"]["end"]["steps"].as_u64().unwrap() >= 3, "{start}: {value}");
    }
    for (start, named) in [
        ("multiprocessing.get_context('spawn').Process(target=worker, args=(0,)).start()", "`spawn`"),
        (
            "with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context('forkserver')) as e: \
             e.submit(worker, 0).result()",
            "`forkserver`",
        ),
        ("open('tr.py', 'w'); subprocess.run([sys.executable, '-u', 'tr.py'])", "(tr.py)"),
        ("open('tr.py', 'w'); os.system('cd .; A=1 python3 -um tr > log')", "(-m tr)"),
        (
            "open('tr.py', 'w'); subprocess.run(['python3', '-m', 'torch.distributed.run', 'tr.py'])",
            "(tr.py)",
        ),
    ] {
        let trained = Trained::new(&format!("{WORKER}{start}\n"));
        let (_, stderr, code) = trained.dry_run(python);
        assert_eq!((code, trained.best().as_str()), (1, "of an earlier run"), "{start}: {stderr}");
        assert!(stderr.contains(named) && stderr.contains("cannot follow"), "{start}: {stderr}");
    }
}

#[test]
fn work_of_others_than_the_first_process_leaves_no_bound_and_what_it_starts_is_named() {
    let Some(python) = python() else { return };
    let dry_run = |body: &str| {
        let (out, stderr, code) = Trained::new(&format!("{WORKER}{body}\n")).dry_run(python);
        assert_eq!(code, 0, "{body}: {stderr}");
        let value: Value = serde_json::from_str(&out).unwrap();
        let reasons = value["estimates"][0]["reasons"].to_string();
        (!reasons.contains("bound: 100 %: other processes"), out.contains("this is inference"), stderr)
    };
    let fork = "multiprocessing.get_context('fork').Process(target=worker, args=(0, 1)).start()";
    let (is_bound, is_inference, stderr) = dry_run(fork);
    assert!(!is_bound && !is_inference && !stderr.contains("started"), "{stderr}");
    let others = "subprocess.run([sys.executable, '-c', '1'])\n    \
                  subprocess.run([sys.executable, '-m', 'json.tool', '-h'])\n    \
                  os.system('cp best.pt a && rm a 2>&1 | cat > b')";
    let (is_bound, is_inference, stderr) = dry_run(others);
    assert!(is_bound && is_inference, "{stderr}");
    let named = Path::new(python).file_name().unwrap().to_str().unwrap();
    let said = format!("the program started `{named}`, `cp`, `rm`, `cat`: what they did is not put back");
    assert!(stderr.contains(&said), "{stderr}");
    let (is_bound, ..) = dry_run("open('run.sh', 'w'); subprocess.run(['sh', 'run.sh'])");
    assert!(!is_bound);
}

#[test]
fn what_was_saved_comes_back_where_the_directory_of_the_program_is_gone() {
    let Some(python) = python() else { return };
    for gone in ["os.rename(here, here + '2')", "shutil.rmtree(here)"] {
        let trained = Trained::new(&format!(
            "{WORKER}here = os.getcwd(); worker(0, 1); {gone}; os.chdir('/'); worker(0)"
        ));
        let (_, stderr, code) = trained.dry_run(python);
        assert_eq!((code, trained.best().as_str()), (0, "of an earlier run"), "{gone}: {stderr}");
    }
    // Nothing can be put back by a Python that is gone.
    let trained = Trained::new(&format!("{WORKER}os.remove('python'); worker(0)"));
    let mine = trained.0.path().join("w/python");
    std::fs::write(&mine, format!("#!/bin/sh\nexec {python} \"$@\"\n")).unwrap();
    std::fs::set_permissions(&mine, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let (_, stderr, code) = trained.dry_run("./python");
    assert_eq!(code, 1, "{stderr}");
    assert!(stderr.contains("was not put back: cannot start"), "{stderr}");
    // The next dry run says so, too.
    let (_, later, _) = trained.dry_run("/nonexistent/python");
    assert!(later.contains("a dry run was killed before it had put back"), "{later}");
    let by_hand = stderr.lines().find_map(|line| line.strip_prefix("hint: to put it back: ")).unwrap();
    let by_hand = by_hand.replacen("python3", python, 1);
    assert!(Command::new("sh").args(["-c", &by_hand]).status().unwrap().success());
    assert_eq!(trained.best(), "of an earlier run");
    let (_, later, _) = trained.dry_run("/nonexistent/python");
    assert!(!later.contains("put back"), "{later}");
}

#[test]
fn a_program_that_ends_its_process_is_told_as_such() {
    let Some(python) = python() else { return };
    for (end, said) in [
        ("os._exit(7)", "the program ended itself (os._exit, exit status: 7)"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "the program was killed by signal 9"),
    ] {
        let trained = Trained::new(&format!("{WORKER}torch.save(1, 'best.pt'); {end}\n"));
        let (_, stderr, code) = trained.dry_run(python);
        assert!(code == 1 && stderr.contains(said) && !stderr.contains("--python"), "{stderr}");
        assert_eq!(trained.best(), "of an earlier run");
    }
}

/// By way of a link, or from another folder in the place of that in which files are kept.
#[test]
fn what_another_user_has_put_in_the_way_is_not_followed() {
    let Some(python) = python() else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    for folder in ["home", "runs/exp1"] {
        std::fs::create_dir_all(path(folder)).unwrap();
    }
    for file in ["runs/exp1/.profile", "runs/exp1/a.pt", "best.pt"] {
        std::fs::write(path(file), "of an earlier run").unwrap();
    }
    let train = |text: &str| {
        let text = format!(
            "import os, shutil, subprocess, torch, carma_trace_saves\nx = torch.ones(8, device='cuda')\n{text}"
        );
        std::fs::write(path("train.py"), text).unwrap();
        let out = carma(&["dry-run", "--gpu", "H200", "--", python, "train.py"], dir.path());
        String::from_utf8(out.stderr).unwrap()
    };
    let kept = |stderr: &str, file: &str| {
        let said = format!("carma: {} could not be put back ", path(file).display());
        let line = stderr.lines().find(|line| line.starts_with(&said)).unwrap_or_else(|| panic!("{stderr}"));
        PathBuf::from(line.rsplit_once(": it is ").unwrap().1)
    };
    let stderr = train(
        "shutil.rmtree('runs/exp1')\n\
         os.makedirs('runs/exp1')\n\
         torch.save(x, 'runs/exp1/a.pt')\n\
         subprocess.run('mv runs/exp1 runs/gone; ln -s ../home runs/exp1', shell=True, check=True)\n",
    );
    for file in ["runs/exp1/.profile", "runs/exp1/a.pt"] {
        assert_eq!(std::fs::read_to_string(kept(&stderr, file)).unwrap(), "of an earlier run");
    }
    assert!(names(&path("home")).is_empty() && path("runs/exp1").is_symlink());
    std::fs::remove_dir_all(kept(&stderr, "runs/exp1/a.pt").parent().unwrap()).unwrap();

    let stderr = train(
        "torch.save(x, 'best.pt')\n\
         for folder in carma_trace_saves.KEPT[0].folders.values():\n    \
             files = os.listdir(folder)\n    \
             subprocess.run(['mv', folder, folder + '.moved'], check=True)\n    \
             subprocess.run(['mkdir', folder], check=True)\n    \
             for file in files:\n        \
                 subprocess.run('printf forged > ' + os.path.join(folder, file), shell=True, check=True)\n",
    );
    assert_ne!(std::fs::read_to_string(path("best.pt")).unwrap(), "forged");
    let forged = kept(&stderr, "best.pt");
    let folder = forged.parent().unwrap();
    let moved = PathBuf::from(format!("{}.moved", folder.display()));
    assert_eq!(
        std::fs::read_to_string(moved.join(forged.file_name().unwrap())).unwrap(),
        "of an earlier run"
    );
    for folder in [folder, &moved] {
        std::fs::remove_dir_all(folder).unwrap();
    }
}

#[test]
fn what_is_saved_takes_nothing_and_what_is_loaded_does() {
    let Some(python) = python() else { return };
    let dir = tempfile::tempdir().unwrap();
    let earlier = dir.path().join("earlier.pt").display().to_string();
    let made = Command::new(python)
        .args([
            "-c",
            "import sys, torch\n\
             whole = torch.ones(4096, 4096)\n\
             torch.save({'whole': whole, 'part': whole[0], 'step': torch.tensor(7)}, sys.argv[1])",
            &earlier,
        ])
        .status()
        .unwrap();
    assert!(made.success());
    let mine = dir.path().join("mine.pt").display().to_string();
    let value = traced(python, "loads.py", &[&earlier, &mine], &[]);
    // The weight, its gradient, what was saved here and what was saved earlier; the workspaces.
    let mib = allocated(&value);
    assert!((112 + 64..112 + 64 + 80).contains(&mib), "{mib}");
}

#[test]
fn mixed_precision_with_a_scaler_and_accumulated_gradients() {
    let Some(python) = python() else { return };
    let value = traced(python, "amp.py", &[], &[]);
    let end = &value["trace"]["end"];
    assert!(end["steps"].as_u64().unwrap() >= 3, "{end}");
    // Every fourth batch steps.
    assert!(end["backwards"].as_u64().unwrap() >= 12, "{end}");
}

#[test]
fn failures_are_told_with_the_line_of_the_script() {
    let Some(python) = python() else { return };
    for (name, said) in [
        ("extension.py", "No module named 'my_cuda_kernels' at extension.py:3"),
        ("crash.py", "at crash.py:10"),
        ("exits.py", "exit code 3"),
        ("reexec.py", "starts another in its place, which a dry run cannot follow at reexec.py:9"),
        ("cpu_only.py", "put nothing on a GPU"),
        ("absent.py", "absent.py"),
    ] {
        let (value, stderr, code) = dry_run(python, name, &[], &[]);
        assert_eq!((value, code), (None, 1), "{name}: {stderr}");
        let last: Vec<&str> = stderr.lines().filter(|l| l.starts_with("carma: the program failed")).collect();
        assert!(last.len() == 1 && last[0].contains(said), "{name}: {stderr}");
    }
}

#[test]
fn a_failed_run_falls_back_to_what_else_is_known() {
    let Some(python) = python() else { return };
    let dir = tempfile::tempdir().unwrap();
    let summary = dir.path().join("model.txt");
    std::fs::write(
        &summary,
        "----------------------------------------------------------------\n\
         \x20       Layer (type)               Output Shape         Param #\n\
         ================================================================\n\
         \x20           Linear-1                 [-1, 4096]       4,198,400\n\
         \x20             ReLU-2                 [-1, 4096]               0\n\
         \x20           Linear-3                   [-1, 10]          40,970\n\
         ================================================================\n\
         Total params: 4,239,370\n",
    )
    .unwrap();
    let summary = summary.display().to_string();
    let (value, stderr, code) =
        dry_run(python, "extension.py", &[], &["--summary", &summary, "--batch-size", "32"]);
    assert_eq!(code, 0, "{stderr}");
    assert!(stderr.contains("my_cuda_kernels"), "{stderr}");
    let value = value.unwrap();
    assert_eq!(value["estimates"][0]["tier"], "summary", "{value}");
    assert!(value["trace_failed"].as_str().unwrap().contains("extension.py:3"));
}

#[test]
fn a_program_without_end_is_stopped_and_its_estimate_is_partial() {
    let Some(python) = python() else { return };
    let value = traced(python, "endless.py", &[], &["--timeout", "10"]);
    assert_eq!(value["trace"]["end"]["status"], "partial");
    let reasons = value["estimates"][0]["reasons"].to_string();
    assert!(reasons.contains("incomplete") && reasons.contains("10 s"), "{reasons}");
}

/// What is said of the bound.
fn bound(value: &Value) -> String {
    let reasons = value["estimates"][0]["reasons"].as_array().unwrap();
    let bounds: Vec<&str> =
        reasons.iter().filter_map(Value::as_str).filter(|r| r.starts_with("bound: ")).collect();
    assert_eq!(bounds.len(), 1, "{value}");
    bounds[0].to_owned()
}

#[test]
fn an_estimate_of_a_command_is_a_dry_run() {
    let Some(python) = python() else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = script("plain.py");
    let out = carma(&["estimate", "--gpu", "H200", "--json", "--", python, &path], dir.path());
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let value: Value = serde_json::from_slice(&out.stdout).unwrap();
    let by_name = traced(python, "plain.py", &[], &[]);
    assert_eq!(value["estimates"], by_name["estimates"]);
    assert_eq!(
        (&value["estimates"][0]["estimator"], &value["trace"]["end"]["steps"]),
        (&"auto".into(), &5.into())
    );
    // Beside it, any estimator that the trace or a description can answer.
    let out = carma(&["estimate", "--gpu", "H200", "--estimator", "all", "--", python, &path], dir.path());
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(text.contains("allocator/trace") && text.contains("gpumemnet"), "{text}");
}

#[test]
fn compilers_and_sharding_widen_the_bound() {
    let Some(python) = python() else { return };
    let compiled = traced(python, "compiled.py", &[], &[]);
    assert_eq!(compiled["trace"]["end"]["compiled"], true);
    assert!(bound(&compiled).starts_with("bound: 40 %: the program is compiled"), "{}", bound(&compiled));
    // As torchrun would start it.
    let dir = tempfile::tempdir().unwrap();
    let path = script("sharded.py");
    let words = ["estimate", "--gpu", "H200", "--json", "--python", python, "--"];
    let launcher = ["torchrun", "--nproc-per-node", "2", &path];
    let out = carma(&[&words[..], &launcher].concat(), dir.path());
    let stderr = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{stderr}");
    let value: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!((&value["task"]["gpus"], &value["task"]["parallel"]), (&2.into(), &"zero3".into()));
    assert_eq!(value["trace"]["end"]["sharded"], true);
    assert!(bound(&value).starts_with("bound: 40 %: "), "{}", bound(&value));
    let reasons = value["estimates"][0]["reasons"].to_string();
    assert!(reasons.contains("FSDP FULL_SHARD over 2 processes of torchrun"), "{reasons}");
    assert!(reasons.contains("the trace is of one that keeps all"), "{reasons}");
}

#[test]
fn an_interrupted_run_says_what_it_saw_and_a_killed_one_leaves_a_log() {
    let Some(python) = python() else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = script("endless.py");
    let start = |log: &str| {
        let words = ["dry-run", "--gpu", "H200", "--json", "-o", log, "--", python, &path];
        let child = Command::new(env!("CARGO_BIN_EXE_carma"))
            .args(words)
            .current_dir(dir.path())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // The log is written in pieces: once there is one with an allocation, the program runs.
        let log = dir.path().join(log);
        let allocates = |text: Vec<u8>| text.windows(3).any(|start| start == b"\na ");
        while !std::fs::read(&log).is_ok_and(allocates) {
            assert!(Path::new(&format!("/proc/{}", child.id())).exists());
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        child
    };
    let signal = |pid: u32, name: &str| {
        assert!(
            Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status().unwrap().success()
        );
    };
    let child = start("interrupted.log");
    signal(child.id(), "INT");
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(130), "{}", String::from_utf8_lossy(&out.stderr));
    let value: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(value["trace"]["end"]["status"], "partial");
    assert!(value["estimates"][0]["reasons"].to_string().contains("the trace is incomplete"));

    let child = start("killed.log");
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id())).unwrap();
    signal(children.trim().parse().unwrap(), "KILL");
    let out = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(0), "{stderr}");
    let again = carma(&["estimate", "--gpu", "H200", "--trace", "killed.log"], dir.path());
    let text = String::from_utf8_lossy(&again.stdout).into_owned();
    assert!(
        text.contains("incomplete") && text.contains("cut off after 0 optimizer steps"),
        "{text}{stderr}"
    );
}

#[test]
fn a_trace_is_believed_for_what_it_was_made_with() {
    let dir = tempfile::tempdir().unwrap();
    let head = r#"{"format":"carma-trace","version":1,"ids":"counted","what":"train.py --bs 8","command":["train.py","--bs","8"]}"#;
    let end = r#"{"end":{"status":"complete","steps":3,"backwards":3}}"#;
    std::fs::write(dir.path().join("t.log"), format!("{head}\na 1073741824\na 1073741824\nf 0\n{end}\n"))
        .unwrap();
    let run = |command: &str| {
        let words = ["estimate", "--gpu", "H200", "--json", "--trace", "t.log", "--"];
        let out = carma(&[&words[..], &command.split(' ').collect::<Vec<_>>()].concat(), dir.path());
        let value: Option<Value> = serde_json::from_slice(&out.stdout).ok();
        (value, String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let upper = |value: &Value| value["estimates"][0]["upper_mib"].as_u64().unwrap();
    let same = run("python train.py --bs 8 --epochs 9").0.unwrap();
    assert_eq!(same["estimates"][0]["use_mib"], 628 + 2048);
    let larger = run("python train.py --bs 16").0.unwrap();
    assert_eq!(larger["estimates"][0]["use_mib"], 628 + 4096);
    let other = run("python train.py --bs 8 --model big").0.unwrap();
    assert!(upper(&other) > upper(&same) && bound(&other).contains("other arguments"), "{other}");
    // Logs that do not tell of which edition they are count for any.
    std::fs::write(dir.path().join("train.py"), "x").unwrap();
    let edited = run("python train.py --bs 8").0.unwrap();
    assert_eq!(upper(&edited), upper(&same));
    let head = head.replace("\"what\"", "\"edition\":\"0\",\"what\"");
    std::fs::write(dir.path().join("t.log"), format!("{head}\na 1073741824\na 1073741824\nf 0\n{end}\n"))
        .unwrap();
    let edited = run("python train.py --bs 8").0.unwrap();
    assert!(upper(&edited) > upper(&same) && bound(&edited).contains("edited since"), "{edited}");
    let (none, stderr) = run("python other.py");
    assert!(none.is_none() && stderr.contains("it is of `train.py --bs 8`, not of `other.py`"), "{stderr}");
}

#[test]
fn a_trace_tells_of_which_edition_it_is() {
    let Some(python) = python() else { return };
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(script("plain.py"), dir.path().join("t.py")).unwrap();
    std::fs::write(dir.path().join("c.yaml"), "width: 1024").unwrap();
    let estimate = |options: &[&str]| -> Value {
        let words = [
            &["estimate", "--gpu", "H200", "--json"],
            options,
            &["--", python, "t.py", "--config", "c.yaml"],
        ];
        let out = carma(&words.concat(), dir.path());
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        serde_json::from_slice(&out.stdout).unwrap()
    };
    let made = estimate(&["-o", "t.gz"]);
    let given = || estimate(&["--trace", "t.gz"]);
    assert_eq!(given()["estimates"], made["estimates"]);
    std::fs::write(dir.path().join("c.yaml"), "width: 32768").unwrap();
    assert!(bound(&given()).contains("edited since"), "{}", given());
    std::fs::write(dir.path().join("c.yaml"), "width: 1024").unwrap();
    assert_eq!(given()["estimates"], made["estimates"]);
}

#[test]
fn programs_that_take_a_share_are_named_without_being_run() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("jax_train.py"), "import jax\n").unwrap();
    std::fs::write(dir.path().join("tf_train.py"), "import tensorflow as tf\n").unwrap();
    let config = r#"{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 128, "vocab_size": 1000, "max_position_embeddings": 128}"#;
    std::fs::write(dir.path().join("config.json"), config).unwrap();
    let run = |words: &[&str]| {
        let out = carma(&[&["estimate", "--gpu", "H200"], words].concat(), dir.path());
        (String::from_utf8_lossy(&out.stdout).into_owned(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    // 92 % of 143,771 MiB, whatever the configuration says of its weights.
    let (vllm, _) = run(&["--hf-config", "config.json", "--batch-size", "1", "--", "vllm", "serve", "m"]);
    assert!(vllm.contains("132270") && vllm.contains("share/vllm"), "{vllm}");
    let (half, _) = run(&["--", "vllm", "serve", "m", "--gpu-memory-utilization", "0.5"]);
    assert!(half.contains("71886"), "{half}");
    let (jax, _) = run(&["--", "python", "jax_train.py"]);
    assert!(jax.contains("share/jax") && jax.contains("JAX takes 75 % of each GPU"), "{jax}");
    let (grows, stderr) =
        run(&["--", "env", "XLA_PYTHON_CLIENT_PREALLOCATE=false", "python", "jax_train.py"]);
    assert!(grows.is_empty() && stderr.contains("JAX allocates as it goes"), "{stderr}");
    let (tf, _) = run(&["--", "python", "tf_train.py"]);
    let (_, nothing) = run(&[]);
    assert!(nothing.contains("nothing says what the model is") && nothing.contains("--trace"), "{nothing}");
    assert!(tf.contains("share/tensorflow") && tf.contains("143771"), "{tf}");
}

#[test]
fn llmem_knows_the_attention_of_a_llama() {
    let dir = tempfile::tempdir().unwrap();
    let config = r#"{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 1000, "max_position_embeddings": 128}"#;
    std::fs::write(dir.path().join("config.json"), config).unwrap();
    let run = |more: &[&str]| {
        let words = [
            "estimate",
            "--gpu",
            "H200",
            "--estimator",
            "llmem",
            "--hf-config",
            "config.json",
            "--seq-len",
            "64",
        ];
        let out = carma(&[&words[..], more].concat(), dir.path());
        assert!(out.status.success(), "{more:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).into_owned()
    };
    // The kernel changes nothing of the memory: LLMem counts one output a block.
    let memory = |more: &[&str]| run(more).split("ALONE").next().unwrap_or_default().to_owned();
    let fused = memory(&["--precision", "bf16"]);
    assert_eq!(memory(&["--precision", "bf16", "--attention", "eager"]), fused);
    assert!(run(&["--precision", "fp32"]).contains("llmem"));
}

#[test]
fn the_trainer_of_transformers() {
    let Some(python) = python() else { return };
    if !has(python, "transformers, accelerate") {
        println!("SKIPPED: {python} has no transformers and accelerate");
        return;
    }
    let value = traced(python, "hf_trainer.py", &[], &[]);
    let end = &value["trace"]["end"];
    assert_eq!(end["model"], "BertForSequenceClassification");
    assert!(end["steps"].as_u64().unwrap() >= 3, "{end}");
    assert_eq!(value["estimates"][0]["family"], "bert");
}

#[test]
fn lightning() {
    let Some(python) = python() else { return };
    if !has(python, "lightning") && !has(python, "pytorch_lightning") {
        println!("SKIPPED: {python} has no lightning");
        return;
    }
    let value = traced(python, "lightning_fit.py", &[], &[]);
    assert!(value["trace"]["end"]["steps"].as_u64().unwrap() >= 3);
}

#[test]
fn a_function_that_makes_a_model() {
    let Some(python) = python() else { return };
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(
        dir.path().join("net.py"),
        "import torch\n\
         def make():\n    return torch.nn.Linear(4096, 4096), torch.zeros(1, 4096)\n\
         def with_loss():\n    model = torch.nn.Linear(64, 10)\n    \
         batch = torch.zeros(1, 64), torch.zeros(1, dtype=torch.long)\n    \
         return model, batch, torch.nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=1)\n\
         def broken():\n    raise ValueError('no such data set')\n",
    )
    .unwrap();
    let run = |args: &[&str]| {
        let start = ["trace-model", "--gpu", "A100-40GB", "--python", python, "--batch-size", "8", "--json"];
        carma(&[&start[..], args].concat(), dir.path())
    };
    let value = |out: Output| -> Value {
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        serde_json::from_slice(&out.stdout).unwrap()
    };
    // 64 MiB of weights: with gradients, Adam's two states and its temporary list five times that.
    let adam = allocated(&value(run(&["--entry", "net:make"])));
    assert!((320..345).contains(&adam), "{adam}");
    let momentum = allocated(&value(run(&["--entry", "net:make", "--optimizer", "sgd-momentum"])));
    assert!((192..215).contains(&momentum), "{momentum}");
    let inference = allocated(&value(run(&["--entry", "net:make", "--inference", "-o", "kept.gz"])));
    assert!((64..80).contains(&inference), "{inference}");
    let bf16 = allocated(&value(run(&["--entry", "net:make", "--precision", "bf16"])));
    assert!((160..185).contains(&bf16), "{bf16}");
    let named = value(run(&["--entry", "net:with_loss"]));
    assert_eq!(named["trace"]["end"]["steps"], 3);
    // The log was kept, and can be estimated from again.
    let log = std::fs::read(dir.path().join("kept.gz")).unwrap();
    assert_eq!(log[..2], [0x1f, 0x8b]);

    let failed = run(&["--entry", "net:broken"]);
    let stderr = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert_eq!(failed.status.code(), Some(1));
    assert!(stderr.contains("ValueError: no such data set at net.py:9"), "{stderr}");
    assert_eq!(run(&["--entry", "net"]).status.code(), Some(2));
    assert_eq!(run(&["--entry", "net:make", "--lora", "8"]).status.code(), Some(2));
    let refused = run(&["--entry", "net:make", "--optimizer", "adam8bit"]);
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(2) && stderr.contains("adam8bit cannot be traced"), "{stderr}");
}

#[test]
fn the_batch_size_is_read_from_the_command() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("t.py"), "print(1)\n").unwrap();
    let bert = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/bert-base").display().to_string();
    // The dry run fails, so that what describes the model counts.
    let estimate = |verb: &str, options: &str, command: &str| {
        let line =
            format!("{verb} --gpu H200 --json --hf-config {bert} --seq-len 512 --python /nonexistent/python");
        let words =
            [&line, options, "--", command].map(|words| words.split_whitespace()).into_iter().flatten();
        let out = carma(&words.collect::<Vec<_>>(), dir.path());
        let value = serde_json::from_slice::<Value>(&out.stdout).ok();
        (value.map(|value| value["estimates"].clone()), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let (said, _) = estimate("estimate", "--batch-size 32", "python3 t.py");
    assert!(said.as_ref().unwrap()[0]["upper_mib"].as_u64().unwrap() > 20_000, "{said:?}");
    for verb in ["estimate", "dry-run"] {
        assert_eq!(estimate(verb, "", "python3 t.py --batch-size 32").0, said, "{verb}");
        assert_eq!(estimate(verb, "--batch-size 32", "python3 t.py --batch-size 1").0, said, "{verb}");
        let (none, stderr) = estimate(verb, "", "python3 t.py");
        assert!(none.is_none() && stderr.contains("give --batch-size"), "{stderr}");
    }
}

#[test]
fn without_pytorch_it_says_so() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("train.py"), "print(1)\n").unwrap();
    let run = |python: &str| {
        let out =
            carma(&["dry-run", "--gpu", "H200", "--python", python, "--", "python", "train.py"], dir.path());
        assert_eq!(out.status.code(), Some(1));
        String::from_utf8_lossy(&out.stderr).into_owned()
    };
    let stderr = run("/nonexistent/python");
    assert!(
        stderr.contains("cannot start /nonexistent/python") && stderr.contains("hint: --python"),
        "{stderr}"
    );
    // An interpreter without any packages.
    if Command::new("python3").arg("--version").output().is_ok() {
        let bare = dir.path().join("bare");
        std::fs::write(&bare, "#!/bin/sh\nexec python3 -I -S \"$@\"\n").unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&bare, mode).unwrap();
        let stderr = run(bare.to_str().unwrap());
        assert!(stderr.contains("PyTorch") && stderr.contains("hint: "), "{stderr}");
    }
    let out = carma(&["dry-run", "--gpu", "H200", "--", "bash", "train.sh"], dir.path());
    assert_eq!(out.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&out.stderr).contains("no Python program"));
}
