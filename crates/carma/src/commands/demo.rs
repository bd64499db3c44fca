//! `carma demo`: a short mix of tasks on virtual GPUs, placed exclusively and by the default policy, side by side.
//!
//! Everything is real but the GPUs: the daemon, its supervisors and the tasks are processes of this
//! machine. The GPUs are a model, time runs faster, and the table says so.

use carma_cli::failure::{Failure, Outcome};

use super::signals;
use super::unmeasured;
use carma_api::Client;
use carma_api::wire::{GpusReply, JobDetail, JobView, JobsReply, SubmitReply, SubmitRequest};
use carma_cli::{Column, Screen, Table, wrap};
use carma_measure::service::{Service, Setup, cancel_all};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The GPUs of the demo.
const GPUS: &str = "virtual:4xA100-40GB";
/// Virtual seconds a second.
const SPEED: u32 = 60;
/// Longest that a run may take, in life.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long cancelled tasks may take to end.
const ENDING: Duration = Duration::from_secs(10);

/// A task of the mix.
struct Task {
    name: &'static str,
    /// Arrival, virtual seconds after the first.
    at_s: u32,
    /// What it takes, GiB.
    takes_gib: f64,
    /// SM activity alone.
    sm: f64,
    /// DRAM activity alone.
    dram: f64,
    /// Work alone, virtual seconds.
    work_s: u32,
}

const fn task(name: &'static str, at_s: u32, takes_gib: f64, sm: f64, dram: f64, work_s: u32) -> Task {
    Task { name, at_s, takes_gib, sm, dram, work_s }
}

/// Light, medium and heavy tasks with the memory and activity that such trainings show on an A100
/// (workload table of the CARMA evaluation), shortened. No owner says how much memory a task takes.
const MIX: &[Task] = &[
    task("efficientnet", 0, 8.2, 0.46, 0.33, 240),
    task("resnet18-cifar", 5, 0.8, 0.12, 0.05, 150),
    task("bert-base", 10, 19.4, 0.75, 0.14, 300),
    task("mobilenet-cifar", 15, 0.7, 0.08, 0.04, 150),
    task("resnet34-cifar", 20, 1.1, 0.22, 0.08, 200),
    task("maskrcnn", 30, 17.5, 0.40, 0.22, 240),
    task("inception", 40, 5.2, 0.60, 0.29, 240),
    task("resnet18-cifar", 50, 0.8, 0.12, 0.05, 150),
    task("vgg16", 60, 8.4, 0.64, 0.40, 210),
    task("xception", 70, 8.6, 0.62, 0.36, 210),
    task("resnet34-cifar", 80, 1.1, 0.22, 0.08, 200),
    task("mobilenet-cifar", 90, 0.7, 0.08, 0.04, 150),
    task("unet", 100, 9.1, 0.45, 0.30, 210),
    task("resnet50", 110, 6.3, 0.58, 0.31, 240),
    task("efficientnet-cifar", 120, 0.9, 0.14, 0.05, 180),
    task("resnet18-cifar", 130, 0.8, 0.12, 0.05, 150),
];

/// Start-up that every task goes through, virtual seconds.
const STARTUP_S: u32 = 8;

/// Runs the demo.
pub(crate) fn run() -> Outcome {
    let stopped = signals::stopped()?;
    let dir = tempdir()?;
    let bars = MultiProgress::new();
    let title = bars.add(ProgressBar::new_spinner().with_style(style("{msg}")?));
    title.set_message(format!(
        "{} tasks on {GPUS}, time runs {SPEED} times faster. Virtual GPUs are a model, not a measurement.",
        MIX.len()
    ));
    title.tick();
    let outcome = std::thread::scope(|scope| {
        let runs = [("exclusive", "exclusive", "time-slice"), ("adaptive", "adaptive", "mps")].map(
            |(label, policy, sharing)| {
                let (dir, bars, stopped) = (dir.join(label), &bars, &*stopped);
                scope.spawn(move || play(label, policy, sharing, &dir, bars, stopped))
            },
        );
        runs.map(|run| run.join().unwrap_or_else(|_| Err(Failure::new("a run of the demo broke off"))))
    });
    title.finish_and_clear();
    if stopped.load(Ordering::Relaxed) {
        let _ = std::fs::remove_dir_all(&dir);
        return Err(Failure::new("interrupted; the tasks were cancelled"));
    }
    // The directories hold the daemons' logs; they are of use only when something went wrong.
    let [exclusive, adaptive] = match outcome {
        [Ok(a), Ok(b)] => [a, b],
        [Err(e), _] | [_, Err(e)] => {
            return Err(e.hint(format!("the daemons' logs are in {}", dir.display())));
        }
    };
    let _ = std::fs::remove_dir_all(&dir);
    print(&exclusive, &adaptive)?;
    Ok(0)
}

fn tempdir() -> Result<PathBuf, Failure> {
    let dir = std::env::temp_dir().join(format!("carma-demo-{}", std::process::id()));
    std::fs::create_dir(&dir).map_err(|e| Failure::new(format!("cannot create {}: {e}", dir.display())))?;
    Ok(dir)
}

fn style(template: &str) -> Result<ProgressStyle, Failure> {
    ProgressStyle::with_template(template).map_err(|e| Failure::new(e.to_string()))
}

/// What a run came to.
struct Run {
    makespan_s: f64,
    mean_wait_s: f64,
    mean_slowdown: f64,
    out_of_memory: usize,
    completed: usize,
    energy_kj: f64,
    /// The tasks that ran out of memory, with all attempts.
    recovered: Vec<JobDetail>,
}

fn play(
    label: &'static str,
    policy: &str,
    sharing: &str,
    dir: &Path,
    bars: &MultiProgress,
    stopped: &AtomicBool,
) -> Result<Run, Failure> {
    let bar = bars.add(ProgressBar::new(MIX.len() as u64).with_style(
        style("{prefix:>10} [{bar:40.cyan/blue}] {pos:>2}/{len} done  {msg}")?.progress_chars("=> "),
    ));
    bar.set_prefix(label);
    let (_service, mut client) = start(policy, sharing, dir)?;
    let before = energy_j(&mut client)?;
    let started = Instant::now();
    let mut ids = Vec::new();
    for task in MIX {
        let due = Duration::from_secs_f64(f64::from(task.at_s) / f64::from(SPEED));
        while started.elapsed() < due {
            update(&mut client, &bar)?;
            if stopped.load(Ordering::Relaxed) {
                return Err(cancel(&mut client));
            }
            std::thread::sleep(Duration::from_millis(50).min(due.saturating_sub(started.elapsed())));
        }
        let reply: SubmitReply = client.post("/v1/jobs", &request(task)?)?;
        ids.push(reply.id);
    }
    while !update(&mut client, &bar)? {
        if stopped.load(Ordering::Relaxed) {
            return Err(cancel(&mut client));
        }
        if started.elapsed() > PATIENCE {
            return Err(Failure::new(format!("the {label} run did not end within {} s", PATIENCE.as_secs())));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let energy_kj = (energy_j(&mut client)? - before) / 1000.0;
    bar.finish();
    let details: Vec<JobDetail> =
        ids.iter().map(|id| client.get(&format!("/v1/jobs/{id}"))).collect::<Result<_, _>>()?;
    Ok(summarise(details, energy_kj))
}

fn start(policy: &str, sharing: &str, dir: &Path) -> Result<(Service, Client), Failure> {
    std::fs::create_dir(dir)
        .map_err(|e| Failure::new(format!("cannot create the run's directory {}: {e}", dir.display())))?;
    let setup = Setup {
        carma: Path::new("/proc/self/exe"),
        socket: dir.join("carma.sock"),
        state: dir.join("state"),
        log: dir.join("daemon.log"),
        gpus: GPUS,
        speed: SPEED,
        policy,
        sharing,
        config: None,
    };
    // Its log is gone with the folder.
    Service::start(&setup).map_err(|e| Failure { hint: None, ..unmeasured(e) })
}

fn request(task: &Task) -> Result<SubmitRequest, Failure> {
    let exe = std::env::current_exe().map_err(|e| Failure::new(format!("cannot find this program: {e}")))?;
    let words = [
        "virtual-task".to_owned(),
        format!("--memory={:.0}M", task.takes_gib * 1024.0),
        format!("--sm={}", task.sm),
        format!("--dram={}", task.dram),
        format!("--work={}s", task.work_s),
        format!("--startup={STARTUP_S}s"),
    ];
    Ok(SubmitRequest {
        command: std::iter::once(exe.display().to_string()).chain(words).collect(),
        cwd: "/".into(),
        name: Some(task.name.to_owned()),
        ..SubmitRequest::default()
    })
}

/// Moves the bar; `true` once every task is over.
fn update(client: &mut Client, bar: &ProgressBar) -> Result<bool, Failure> {
    let live: JobsReply = client.get("/v1/jobs")?;
    let over: JobsReply = client.get("/v1/history?limit=1000")?;
    let running = live.jobs.iter().filter(|j| j.state == "RUNNING").count();
    let recovering = live.jobs.iter().filter(|j| j.attempts > 0 && j.state == "PENDING").count();
    let retried = live.jobs.iter().chain(&over.jobs).filter(|j| j.attempts > 1).count() + recovering;
    let oom = if retried > 0 { format!(", {retried} recovered from OOM") } else { String::new() };
    bar.set_position(over.jobs.len() as u64);
    bar.set_message(format!("{running} running, {} waiting{oom}", live.jobs.len() - running));
    Ok(over.jobs.len() >= MIX.len())
}

/// Ends a run that was interrupted.
fn cancel(client: &mut Client) -> Failure {
    cancel_all(client, ENDING).map_or_else(unmeasured, |()| Failure::new("interrupted"))
}

fn energy_j(client: &mut Client) -> Result<f64, Failure> {
    let reply: GpusReply = client.get("/v1/gpus")?;
    Ok(reply.gpus.iter().filter_map(|g| g.energy_j).sum())
}

fn summarise(details: Vec<JobDetail>, energy_kj: f64) -> Run {
    let seconds = |ms: u64| ms as f64 / 1000.0;
    let n = details.len().max(1) as f64;
    let rows = || details.iter().map(|d| &d.job);
    let first = rows().map(|j| j.submitted_ms).min().unwrap_or(0);
    let last = rows().filter_map(|j| j.ended_ms).max().unwrap_or(first);
    let wait = |j: &JobView| seconds(j.started_ms.unwrap_or(last).saturating_sub(j.submitted_ms));
    let ran = |j: &JobView| j.ended_ms.zip(j.started_ms).map(|(e, s)| seconds(e.saturating_sub(s)));
    let slowdowns: Vec<f64> = rows()
        .zip(MIX)
        .filter_map(|(job, task)| Some(ran(job)? / f64::from(task.work_s + STARTUP_S)))
        .collect();
    let out_of_memory = |d: &JobDetail| {
        let verdicts = d.attempts.iter().filter_map(|a| a.verdict.as_ref());
        verdicts.filter(|v| v.code.starts_with("OutOfMemory")).count()
    };
    Run {
        makespan_s: seconds(last - first),
        mean_wait_s: rows().map(wait).sum::<f64>() / n,
        mean_slowdown: slowdowns.iter().sum::<f64>() / slowdowns.len().max(1) as f64,
        out_of_memory: details.iter().map(out_of_memory).sum(),
        completed: rows().filter(|j| j.state == "COMPLETED").count(),
        energy_kj,
        recovered: details.into_iter().filter(|d| out_of_memory(d) > 0).collect(),
    }
}

fn print(exclusive: &Run, adaptive: &Run) -> Result<(), Failure> {
    let screen = Screen::stdout();
    let columns = vec![
        Column::Left(""),
        Column::Right("EXCLUSIVE"),
        Column::Right("ADAPTIVE"),
        Column::Right("CHANGE"),
    ];
    let mut table = Table::new(columns, &screen);
    let mut row = |name: &str, unit: &str, digits: usize, pick: fn(&Run) -> f64| {
        let (a, b) = (pick(exclusive), pick(adaptive));
        let change = if a > 0.0 { format!("{:+.0} %", (b / a - 1.0) * 100.0) } else { "-".into() };
        let cell = |v: f64| format!("{v:.digits$} {unit}").trim_end().to_owned();
        table.row([name.to_owned(), cell(a), cell(b), change]);
    };
    row("makespan", "min", 1, |r| r.makespan_s / 60.0);
    row("mean wait", "min", 1, |r| r.mean_wait_s / 60.0);
    row("mean slowdown while running", "x", 2, |r| r.mean_slowdown);
    row("tasks completed", "", 0, |r| r.completed as f64);
    row("out-of-memory", "", 0, |r| r.out_of_memory as f64);
    row("GPU energy", "kJ", 0, |r| r.energy_kj);
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", table.render().trim_end())?;
    writeln!(
        out,
        "\nNo task said how much memory it needs. adaptive: the default policy, under MPS. Minutes are virtual:\n\
         {GPUS} is a model whose time ran {SPEED} times faster; the daemon, its supervisors and the tasks\n\
         were real processes."
    )?;
    for detail in &adaptive.recovered {
        writeln!(out, "\nHow job {} ({}) came back from out-of-memory:", detail.job.id, detail.job.name)?;
        for attempt in &detail.attempts {
            let texts = [Some(&attempt.placed), attempt.verdict.as_ref()];
            for (i, reason) in texts.into_iter().flatten().enumerate() {
                let label = if i == 0 { format!("  attempt {}", attempt.attempt) } else { " ".repeat(11) };
                writeln!(out, "{label}  {}", wrap(&reason.text, &screen, 13).join(&format!("\n{:13}", "")))?;
            }
        }
    }
    Ok(())
}
