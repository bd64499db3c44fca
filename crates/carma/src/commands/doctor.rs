//! `carma doctor`: what carma needs on this machine, as far as a client can see.

use super::queue::named_gpus;
use super::{Context, now_ms};
use crate::cli::DoctorArgs;
use carma_api::Client;
use carma_api::wire::{ContextProbe, DoneReply, GpuView, GpusReply, StatusReply};
use carma_cli::failure::{Failure, Outcome};
use carma_cli::{Screen, clean, print, print_json, wrap};
use carma_core::reading::{GpuInfo, GpuReading, Health};
use carma_core::units::Millis;
use carma_gpu::checkpoint::cuda;
use carma_gpu::{NvmlOptions, Probe, find_program};
use carma_measure::context::{self, Measured};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use serde::Serialize;
use std::fmt::Write as _;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

/// NVML may hang on a broken GPU, which is what a doctor must be able to say.
const NVML_DEADLINE: Duration = Duration::from_secs(10);
/// A daemon whose time differs by more from ours has another time.
const OTHER_TIME: Millis = Millis::secs(60);
/// NVIDIA's MPS control program.
const MPS_CONTROL: &str = "nvidia-cuda-mps-control";

/// One thing that was looked at.
#[derive(Debug, Serialize)]
struct Finding {
    /// `ok` or `warn`.
    level: &'static str,
    /// Stable word for programs.
    about: &'static str,
    /// What was found.
    text: String,
    /// What to do about it.
    todo: Option<String>,
}

impl Finding {
    fn ok(about: &'static str, text: impl Into<String>) -> Self {
        Self { level: "ok", about, text: text.into(), todo: None }
    }

    fn warn(about: &'static str, text: impl Into<String>, todo: impl Into<String>) -> Self {
        Self { level: "warn", about, text: text.into(), todo: Some(todo.into()) }
    }
}

/// Looks, and says what to do. A warning is no failure: a laptop without a GPU is well.
pub(crate) fn run(context: &Context, args: &DoctorArgs) -> Outcome {
    let (daemon, status) = daemon(&context.socket);
    let mut findings = vec![daemon];
    findings.extend(socket(&context.socket));
    findings.extend(status.as_ref().map(cgroups));
    let is_virtual = status.as_ref().is_some_and(|s| s.gpus.starts_with("virtual:"));
    let gpus = status.as_ref().and_then(|_| {
        Client::connect(&context.socket).and_then(|mut client| client.get::<GpusReply>("/v1/gpus")).ok()
    });
    // One that goes faster has another time by design.
    let in_life = status.as_ref().is_some_and(|status| status.speed == 1);
    findings.extend(gpus.as_ref().filter(|_| in_life).and_then(|gpus| clock(gpus.now_ms, now_ms())));
    let gpus = gpus.filter(|_| !is_virtual);
    let (nvml, has_gpus) = nvml(is_virtual);
    findings.extend([
        nvml,
        mps(has_gpus, gpus.as_ref()),
        suspend(has_gpus, &cuda::open(None)),
        pidfd(),
        systemd(Path::new("/run/systemd/system")),
    ]);
    if args.probe_context {
        findings.extend(contexts(&context.socket, &args.python));
    }
    if args.json {
        print_json(&serde_json::json!({"version": carma_api::VERSION, "findings": findings}))?;
    } else {
        print(&render(&findings, &Screen::stdout()))?;
    }
    Ok(0)
}

fn render(findings: &[Finding], screen: &Screen) -> String {
    let mut text = String::new();
    for finding in findings {
        let todo = finding.todo.as_deref().map(|t| format!("-> {t}"));
        let mut head = finding.level;
        for part in [Some(finding.text.clone()), todo].into_iter().flatten() {
            for line in wrap(&clean(&part), screen, 6) {
                let _ = writeln!(text, "{head:<6}{line}");
                head = "";
            }
        }
    }
    text
}

fn daemon(socket: &Path) -> (Finding, Option<StatusReply>) {
    const ABOUT: &str = "daemon";
    let answer = Client::connect(socket).and_then(|mut client| client.get::<StatusReply>("/v1/status"));
    match answer {
        Ok(status) => {
            let own = env!("CARGO_PKG_VERSION");
            let text = format!(
                "the daemon answers: carma {}, pid {}, policy {}, sharing {}, GPUs {}",
                status.carma, status.pid, status.policy, status.sharing, status.gpus
            );
            let finding = if status.carma == own {
                Finding::ok(ABOUT, text)
            } else {
                Finding::warn(
                    ABOUT,
                    text,
                    format!("this client is carma {own}; restart the daemon with it, jobs go on meanwhile"),
                )
            };
            (finding, Some(status))
        }
        Err(error) => {
            let failure = Failure::from(error);
            let todo = failure.hint.unwrap_or_else(|| "look at the daemon's own output".into());
            (Finding::warn(ABOUT, failure.message.unwrap_or_default(), todo), None)
        }
    }
}

/// Whether the daemon's jobs have cgroups, and what is missing.
fn cgroups(status: &StatusReply) -> Finding {
    const ABOUT: &str = "cgroups";
    let cgroups = &status.cgroups;
    let Some(dir) = &cgroups.dir else {
        let why = cgroups.why_not.as_deref().unwrap_or("the daemon does not say why");
        let todo = "jobs are tracked by session and descent, and --mem, --cpus, --pids are refused; packaging/carma.service shows what systemd is to give";
        return Finding::warn(ABOUT, format!("jobs have no cgroups of their own: {why}"), todo);
    };
    let missing: Vec<&str> = ["memory", "cpu", "pids"]
        .into_iter()
        .filter(|c| !cgroups.controllers.iter().any(|h| h == c))
        .collect();
    let text = format!("each job has a cgroup of its own in {dir}");
    if missing.is_empty() {
        return Finding::ok(ABOUT, format!("{text}, with limits of memory, processors and processes"));
    }
    let todo = "--mem, --cpus and --pids need them: mount cgroup v2 with all controllers (systemd.unified_cgroup_hierarchy=1)";
    Finding::warn(ABOUT, format!("{text}, but without the controllers {}", missing.join(", ")), todo)
}

/// Says nothing of a socket that is not there: that the daemon does not answer says it all.
fn socket(path: &Path) -> Option<Finding> {
    const ABOUT: &str = "socket";
    let meta = std::fs::metadata(path).ok()?;
    let shown = path.display();
    if !meta.file_type().is_socket() {
        let todo = format!("remove {shown}, or choose another place with --socket");
        return Some(Finding::warn(ABOUT, format!("{shown} is not a socket"), todo));
    }
    let mode = meta.permissions().mode() & 0o777;
    Some(Finding::ok(ABOUT, format!("socket {shown}, mode {mode:03o}, owner uid {}", meta.uid())))
}

/// Whether the daemon's time is the machine's, both in ms since 1970; says nothing where it is.
fn clock(daemon_ms: u64, here_ms: u64) -> Option<Finding> {
    const ABOUT: &str = "clock";
    let apart = Millis(daemon_ms.abs_diff(here_ms));
    if apart <= OTHER_TIME {
        return None;
    }
    let (way, todo) = if daemon_ms > here_ms {
        let todo = "set the clock if it is wrong (see timedatectl); else the journal was written while it was, and times of jobs stay ahead until it has caught up: a daemon with a new directory (carma serve --state DIR) begins with the time of now";
        ("ahead of", todo)
    } else {
        ("behind", "restart the daemon, which reads the clock at its start; jobs go on meanwhile")
    };
    Some(Finding::warn(ABOUT, format!("the daemon's time is {apart} {way} this machine's clock"), todo))
}

/// Measures the CUDA context on one GPU of each type, and tells the daemon.
fn contexts(socket: &Path, python: &Path) -> Vec<Finding> {
    const ABOUT: &str = "context";
    let options = NvmlOptions { open_deadline: NVML_DEADLINE, ..NvmlOptions::default() };
    let mut nvml = match carma_gpu::nvml::open(&options) {
        Ok(nvml) => nvml,
        Err(error) => {
            let todo = "a context can only be measured where a GPU is";
            return vec![Finding::warn(ABOUT, format!("no CUDA context was measured: {error}"), todo)];
        }
    };
    let mut gpus: Vec<GpuInfo> = nvml.inventory().to_vec();
    gpus.sort_by(|a, b| (&a.name, a.index).cmp(&(&b.name, b.index)));
    gpus.dedup_by(|a, b| a.name == b.name);
    let mut findings = Vec::new();
    for gpu in gpus {
        findings.push(match context::measure(&mut nvml, &gpu, python) {
            Ok(measured) => {
                let text = format!(
                    "a CUDA context of {} on {} takes {} MiB",
                    measured.framework, gpu.name, measured.context.0
                );
                match tell(socket, &gpu, &measured) {
                    Ok(()) => Finding::ok(ABOUT, format!("{text}; the daemon reckons with that")),
                    Err(why) => {
                        let todo = "run this as root (or whom carma runs as) while the daemon runs";
                        Finding::warn(ABOUT, format!("{text}, but the daemon was not told: {why}"), todo)
                    }
                }
            }
            Err(why) => {
                let todo = "name a Python with PyTorch: carma doctor --probe-context --python PROGRAM";
                Finding::warn(ABOUT, format!("no CUDA context was measured on {}: {why}", gpu.name), todo)
            }
        });
    }
    findings
}

/// Tells the daemon, which may count its GPUs otherwise.
fn tell(socket: &Path, gpu: &GpuInfo, measured: &Measured) -> Result<(), String> {
    let mut client = Client::connect(socket).map_err(|e| e.to_string())?;
    let known: GpusReply = client.get("/v1/gpus").map_err(|e| e.to_string())?;
    let index = known.gpus.iter().find(|g| g.uuid == *gpu.uuid).map(|g| g.index);
    let index = index.ok_or("it does not have this GPU")?;
    let probe =
        ContextProbe { gpu: index, framework: measured.framework.clone(), context_mib: measured.context.0 };
    client.post::<DoneReply>("/v1/memory/contexts", &probe).map(|_| ()).map_err(|e| e.to_string())
}

/// Also returns whether there are GPUs.
fn nvml(is_virtual: bool) -> (Finding, bool) {
    const ABOUT: &str = "nvml";
    let options = NvmlOptions { open_deadline: NVML_DEADLINE, ..NvmlOptions::default() };
    match carma_gpu::nvml::open(&options) {
        Ok(mut probe) => {
            let readings = probe.tick(Millis::ZERO).gpus;
            let gpus: Vec<String> =
                probe.inventory().iter().map(|g| format!("GPU {} {}", g.index, g.name)).collect();
            let text = format!("NVIDIA driver {}: {}", probe.driver_version(), gpus.join(", "));
            let silent = without_processes(probe.inventory(), &readings);
            let finding = if !silent.is_empty() {
                let text = format!(
                    "{text}; the driver does not tell which processes are on {}",
                    named_gpus(&silent)
                );
                let todo = "jobs that want such a GPU alone never start; a newer driver may tell, and nvidia-smi shows whether it does";
                Finding::warn(ABOUT, text, todo)
            } else if probe.inventory().iter().all(|g| g.has_activity) {
                Finding::ok(ABOUT, text)
            } else {
                let todo = "some have no SM and DRAM activity (GPM needs Hopper or newer); policies with a gate do not share them";
                Finding::warn(ABOUT, text, todo)
            };
            (finding, !probe.inventory().is_empty())
        }
        Err(error) if is_virtual => {
            (Finding::ok(ABOUT, format!("no NVIDIA GPU, and the daemon's are virtual: {error}")), false)
        }
        Err(error) => {
            let todo = "without one, `carma serve --gpus virtual:4xA100-40GB` shows carma on a model";
            (Finding::warn(ABOUT, error.to_string(), todo), false)
        }
    }
}

/// The GPUs that can be read, but for their processes.
fn without_processes(gpus: &[GpuInfo], readings: &[GpuReading]) -> Vec<u32> {
    let silent = |reading: &GpuReading| reading.health == Health::Ok && reading.processes.is_none();
    gpus.iter().zip(readings).filter(|(_, reading)| silent(reading)).map(|(gpu, _)| gpu.index).collect()
}

/// Whether GPUs can be shared by MPS. `gpus`: what the daemon says of them, whose `PATH` may be another than ours.
fn mps(has_gpus: bool, gpus: Option<&GpusReply>) -> Finding {
    const ABOUT: &str = "mps";
    if let Some(reply) = gpus.filter(|reply| !reply.gpus.is_empty()) {
        let without = |gpu: &GpuView| Some(format!("GPU {}: {}", gpu.index, gpu.no_mps.as_ref()?));
        let without: Vec<String> = reply.gpus.iter().filter_map(without).collect();
        return if without.is_empty() {
            Finding::ok(ABOUT, "the daemon can share GPUs by MPS")
        } else {
            let todo = "jobs take turns there; docs/sharing.md says what MPS needs";
            Finding::warn(
                ABOUT,
                format!("the daemon cannot share all GPUs by MPS: {}", without.join("; ")),
                todo,
            )
        };
    }
    match find_program(Path::new(MPS_CONTROL)) {
        Some(program) => Finding::ok(ABOUT, format!("MPS control program: {}", program.display())),
        None if has_gpus => Finding::warn(
            ABOUT,
            format!("{MPS_CONTROL} is not on PATH, so GPUs are shared by time-slicing only"),
            "install it with the driver (it is in the driver's utilities or compute package)",
        ),
        None => Finding::ok(ABOUT, format!("{MPS_CONTROL} is not on PATH; without GPUs it is not needed")),
    }
}

/// Whether the driver can take processes off their GPUs and put them back.
fn suspend(has_gpus: bool, driver: &Result<cuda::Cuda, String>) -> Finding {
    const ABOUT: &str = "suspend";
    match driver {
        Ok(driver) if driver.moves() => {
            Finding::ok(ABOUT, "the driver can suspend jobs and bring them back, also on another GPU")
        }
        Ok(_) => {
            Finding::ok(ABOUT, "the driver can suspend jobs and bring them back, but not move them (r580)")
        }
        Err(why) if has_gpus => Finding::warn(
            ABOUT,
            format!("jobs cannot be suspended: {why}"),
            "install a driver of r570 or newer with its CUDA library; jobs can save their work before they are requeued (--checkpoint-signal)",
        ),
        Err(_) => Finding::ok(ABOUT, format!("no {}; without GPUs it is not needed", cuda::LIBRARY_NAME)),
    }
}

fn pidfd() -> Finding {
    const ABOUT: &str = "kernel";
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    match pidfd_open(getpid(), PidfdFlags::empty()) {
        Ok(_) => Finding::ok(ABOUT, format!("Linux {release} with pidfd")),
        Err(error) => Finding::warn(
            ABOUT,
            format!("Linux {release} without pidfd: {error}"),
            "carma needs Linux 5.4 or newer, and a container that allows pidfd_open",
        ),
    }
}

fn systemd(runtime: &Path) -> Finding {
    const ABOUT: &str = "systemd";
    if runtime.is_dir() {
        Finding::ok(ABOUT, "systemd runs here and can keep the daemon up")
    } else {
        Finding::warn(
            ABOUT,
            "no systemd here",
            "start `carma serve` at boot by other means; jobs outlive a daemon that is restarted",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whether_gpus_are_shared_by_mps_is_what_the_daemon_says() {
        let of = |no_mps: [Option<&str>; 2]| {
            let gpu = |(index, no_mps): (u32, Option<&str>)| GpuView {
                no_mps: no_mps.map(str::to_owned),
                ..crate::commands::gpus::tests::gpu(index)
            };
            let gpus = (0..).zip(no_mps).map(gpu).collect();
            mps(true, Some(&GpusReply { version: 1, now_ms: 0, window_ms: 0, gpus, unwritten: None }))
        };
        assert_eq!(of([None, None]).level, "ok");
        let some = of([None, Some("its control program is not on PATH")]);
        assert_eq!(some.level, "warn");
        assert!(some.text.ends_with("by MPS: GPU 1: its control program is not on PATH"), "{}", some.text);
    }

    #[test]
    fn gpus_that_do_not_tell_their_processes_are_named() {
        let gpu = |index: u32| GpuInfo {
            uuid: format!("GPU-{index}").into(),
            index,
            name: "NVIDIA A100-SXM4-40GB".into(),
            memory: carma_core::units::MiB(40_960),
            kind: carma_core::reading::GpuKind::Whole,
            has_activity: false,
            no_mps: None,
        };
        let reading = |health, processes| GpuReading { processes, ..GpuReading::empty("GPU".into(), health) };
        let readings = [
            reading(Health::Ok, Some(vec![])),
            reading(Health::Ok, None),
            reading(Health::Lost("it fell off the bus".into()), None),
        ];
        assert_eq!(without_processes(&[gpu(0), gpu(1), gpu(2)], &readings), [1]);
    }

    #[test]
    fn what_to_do_stands_below() {
        let findings = [Finding::ok("a", "fine"), Finding::warn("b", "it is not as it should be", "mend it")];
        insta::assert_snapshot!(render(&findings, &Screen::of_width(Some(28))), @r"
        ok    fine
        warn  it is not as it should
              be
              -> mend it
        ");
    }

    #[test]
    fn a_daemon_of_another_time_is_told_of() {
        let found =
            |daemon_s: u64, here_s: u64| clock(daemon_s * 1000, here_s * 1000).map(|found| found.text);
        assert_eq!(found(1000, 1050), None);
        assert_eq!(
            found(10_000, 3000).as_deref(),
            Some("the daemon's time is 1 h 56 min ahead of this machine's clock")
        );
        assert_eq!(
            found(3000, 3120).as_deref(),
            Some("the daemon's time is 2 min behind this machine's clock")
        );
    }

    #[test]
    fn a_driver_that_cannot_suspend_matters_where_gpus_are() {
        let none = cuda::open(Some(Path::new("/nowhere/libcuda.so.1")));
        assert_eq!((suspend(true, &none).level, suspend(false, &none).level), ("warn", "ok"));
    }

    #[test]
    fn a_file_in_the_sockets_place() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(socket(file.path()).unwrap().level, "warn");
        assert!(socket(Path::new("/nowhere/at/all")).is_none());
        assert_eq!(systemd(Path::new("/nowhere/at/all")).level, "warn");
    }
}
