//! What a CUDA context takes on this machine's GPUs. PyTorch opens one in a process of its own; NVML says what that
//! process holds, PyTorch how much of it are tensors.

use crate::Error;
use carma_core::reading::{GpuInfo, GpuReading};
use carma_core::units::{MiB, Millis};
use carma_gpu::Probe;
use serde::Deserialize;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Shipped inside the binary.
const SCRIPT: &str = include_str!("probe_context.py");
/// Importing PyTorch from a cold disk takes a while.
const PATIENCE: Duration = Duration::from_secs(180);

/// What the script prints.
#[derive(Debug, Deserialize)]
struct Said {
    torch: Option<String>,
    reserved: Option<u64>,
    error: Option<String>,
}

/// A context that was measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measured {
    /// Its size.
    pub context: MiB,
    /// `torch 2.11`.
    pub framework: String,
}

/// Measures the context on one GPU. `python`: an interpreter that has PyTorch.
///
/// # Errors
/// Why it cannot be measured: no such interpreter, no PyTorch, a GPU of which NVML does not tell the processes.
pub fn measure(probe: &mut dyn Probe, gpu: &GpuInfo, python: &Path) -> Result<Measured, Error> {
    context(probe, gpu, python).map_err(Error::new)
}

fn context(probe: &mut dyn Probe, gpu: &GpuInfo, python: &Path) -> Result<Measured, String> {
    let before = reading(probe, gpu)?;
    let mut child = Command::new(python)
        .args(["-c", SCRIPT])
        .env("CUDA_VISIBLE_DEVICES", &*gpu.uuid)
        // Clients of MPS share a context; a plain one is asked for.
        .env_remove("CUDA_MPS_PIPE_DIRECTORY")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| format!("{} cannot be started: {e}", python.display()))?;
    let (sender, lines) = mpsc::channel();
    if let Some(out) = child.stdout.take() {
        std::thread::spawn(move || {
            let mut line = String::new();
            let read = BufReader::new(out).read_line(&mut line);
            let _ = sender.send(read.map(|_| line));
        });
    }
    let line = lines.recv_timeout(PATIENCE);
    // While it waits for its line, its memory stands still.
    let after = reading(probe, gpu);
    if let Some(mut stdin) = child.stdin.take() {
        let _ = stdin.write_all(b"\n");
    }
    if line.is_err() {
        let _ = child.kill();
    }
    let _ = child.wait();
    let line = line.map_err(|_| format!("{} gave no answer for {PATIENCE:?}", python.display()))?;
    let line = line.map_err(|e| format!("{} cannot be read: {e}", python.display()))?;
    let said: Said = serde_json::from_str(&line)
        .map_err(|_| format!("{} ended without an answer; does it run at all?", python.display()))?;
    if let Some(error) = said.error {
        return Err(error);
    }
    let (Some(version), Some(reserved)) = (said.torch, said.reserved) else {
        return Err("the probe's answer is incomplete".into());
    };
    let held = held(child.id(), &before, &after?)?;
    let tensors = MiB(reserved.div_ceil(1 << 20));
    let framework = version.split('.').take(2).collect::<Vec<_>>().join(".");
    Ok(Measured { context: held - tensors, framework: format!("torch {framework}") })
}

fn reading(probe: &mut dyn Probe, gpu: &GpuInfo) -> Result<GpuReading, String> {
    let snapshot = probe.tick(Millis::ZERO);
    snapshot
        .gpus
        .into_iter()
        .find(|reading| reading.uuid == gpu.uuid)
        .ok_or_else(|| format!("GPU {} is not there any more", gpu.index))
}

/// What the process holds: as NVML says of its pid; in a container, where pids are others, of the one
/// process that is new.
fn held(pid: u32, before: &GpuReading, after: &GpuReading) -> Result<MiB, String> {
    let processes = after.processes.as_deref().ok_or("NVML does not list the GPU's processes")?;
    let old: Vec<u32> = before.processes.iter().flatten().map(|p| p.pid).collect();
    let new: Vec<_> = processes.iter().filter(|p| !old.contains(&p.pid)).collect();
    let own = processes.iter().find(|p| p.pid == pid);
    let memory = match (own, &new[..]) {
        (Some(own), _) => own.memory,
        (None, [one]) => one.memory,
        (None, []) => {
            return Err("NVML does not see the probe's process; run it outside the container".into());
        }
        (None, several) => {
            return Err(format!("{} processes came to the GPU meanwhile; try again", several.len()));
        }
    };
    memory.ok_or_else(|| "NVML does not say how much the probe's process holds".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use carma_core::reading::{Activity, GpuKind, Health, ProcessReading, Snapshot};
    use std::os::unix::fs::PermissionsExt;

    /// A GPU on which a process appears at the second look.
    struct Appears {
        inventory: Vec<GpuInfo>,
        looks: u32,
    }

    impl Probe for Appears {
        fn inventory(&self) -> &[GpuInfo] {
            &self.inventory
        }

        fn tick(&mut self, at: Millis) -> Snapshot {
            self.looks += 1;
            let here = ProcessReading { pid: 1, memory: Some(MiB(900)) };
            let probe = ProcessReading { pid: 4_000_000, memory: Some(MiB(650)) };
            let processes = if self.looks == 1 { vec![here] } else { vec![here, probe] };
            let gpu = GpuReading {
                uuid: "GPU-a".into(),
                health: Health::Ok,
                memory_used: Some(MiB(2000)),
                activity: Activity::default(),
                power_mw: None,
                sm_clock_mhz: None,
                memory_clock_mhz: None,
                energy_mj: None,
                processes: Some(processes),
            };
            Snapshot { at, gpus: vec![gpu] }
        }
    }

    fn measured(python: &str) -> Result<Measured, Error> {
        let gpu = GpuInfo {
            uuid: "GPU-a".into(),
            index: 0,
            name: "H200".into(),
            memory: MiB::gib(141),
            kind: GpuKind::Whole,
            has_activity: true,
            no_mps: None,
        };
        let mut probe = Appears { inventory: vec![gpu.clone()], looks: 0 };
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("python");
        std::fs::write(&program, format!("#!/bin/sh\n{python}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        measure(&mut probe, &gpu, &program)
    }

    #[test]
    fn a_context_is_what_the_process_holds_less_its_tensors() {
        let said = "echo '{\"torch\": \"2.11.0+cu130\", \"reserved\": 90177536}'; read x";
        let measured = measured(said).unwrap();
        assert_eq!(measured, Measured { context: MiB(650 - 86), framework: "torch 2.11".into() });
    }

    #[test]
    fn why_it_cannot_be_measured() {
        let error = |python| measured(python).unwrap_err().message;
        let none = error("echo '{\"error\": \"PyTorch cannot be imported: No module named torch\"}'");
        assert!(none.contains("No module named torch"), "{none}");
        assert!(error("exit 1").contains("without an answer"));
        assert!(error("echo '{\"torch\": \"2.1\"}'").contains("incomplete"));
    }
}
