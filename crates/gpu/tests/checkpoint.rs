//! Suspending against a fake CUDA driver, loaded as the real one would be.

#![allow(clippy::unwrap_used, clippy::panic, reason = "in a test a panic is the report")]

use carma_gpu::checkpoint::cuda::{self, Cuda};
use carma_gpu::checkpoint::steps::{resume, suspend, suspend_again, undo};
use carma_gpu::checkpoint::{Checkpoint, ProcessState, swap};
use fake_cuda::{Fault, Process, State};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Duration;
use tempfile::TempDir;

const LOCK: Duration = Duration::from_secs(5);
const A: &str = "GPU-00000000-0000-0000-0000-00000000000a";
const B: &str = "GPU-00000000-0000-0000-0000-00000000000b";

/// Processes that the driver believes to use CUDA.
struct Machine {
    folder: TempDir,
    children: Vec<Child>,
    pids: Vec<u32>,
    cuda: Cuda,
}

impl Machine {
    fn with(processes: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let children: Vec<Child> =
            (0..processes).map(|_| Command::new("sleep").arg("600").spawn().unwrap()).collect();
        let pids: Vec<u32> = children.iter().map(Child::id).collect();
        let known = pids.iter().map(|pid| (*pid, Process::default())).collect();
        let state = State { processes: known, ..State::default() };
        let cuda = cuda::open(Some(&fake_cuda::stage(folder.path(), &state).unwrap())).unwrap();
        cuda.init().unwrap();
        Self { folder, children, pids, cuda }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        fake_cuda::change(self.folder.path(), change).unwrap();
    }

    fn fault(&self, function: &str, fault: Fault) {
        self.change(|state| {
            state.faults.insert(function.to_owned(), fault);
        });
    }

    fn mend(&self) {
        self.change(|state| state.faults.clear());
    }

    fn states(&self) -> Vec<i32> {
        let state = fake_cuda::change(self.folder.path(), |_| ()).unwrap();
        self.pids.iter().map(|pid| state.processes[pid].state).collect()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn fails(code: i32, pid: u32) -> Fault {
    Fault { code: Some(code), pid: Some(pid), ..Fault::default() }
}

#[test]
fn all_processes_of_a_job_go_and_come_back() {
    let machine = Machine::with(3);
    suspend(&machine.cuda, &machine.pids, LOCK).unwrap();
    assert_eq!(machine.states(), [2, 2, 2]);
    let calls = fake_cuda::change(machine.folder.path(), |_| ()).unwrap().calls;
    let locks = calls.iter().rposition(|(call, _)| call.ends_with("Lock")).unwrap();
    let first = calls.iter().position(|(call, _)| call.ends_with("Checkpoint")).unwrap();
    assert!(locks < first, "nothing is taken of one that another still works with: {calls:?}");
    resume(&machine.cuda, &machine.pids, &[]).unwrap();
    assert_eq!(machine.states(), [0, 0, 0]);
    // Doing it again is no fault.
    resume(&machine.cuda, &machine.pids, &[]).unwrap();
    suspend(&machine.cuda, &machine.pids, LOCK).unwrap();
    suspend(&machine.cuda, &machine.pids, LOCK).unwrap();
    assert_eq!(machine.states(), [2, 2, 2]);
}

#[test]
fn where_one_cannot_go_all_stay() {
    let machine = Machine::with(3);
    for (function, code) in [("cuCheckpointProcessLock", 600), ("cuCheckpointProcessCheckpoint", 2)] {
        machine.fault(function, fails(code, machine.pids[1]));
        let failed = suspend(&machine.cuda, &machine.pids, LOCK).unwrap_err();
        assert_eq!((machine.states(), failed.stuck), (vec![0, 0, 0], None));
        assert!(failed.why.contains(&format!("process {}", machine.pids[1])), "{}", failed.why);
        machine.mend();
    }
    machine.change(|state| state.processes.get_mut(&machine.pids[2]).unwrap().mps = true);
    let failed = suspend(&machine.cuda, &machine.pids, LOCK).unwrap_err();
    assert!(failed.why.contains("MPS client") && failed.stuck.is_none(), "{failed:?}");
    assert_eq!(machine.states(), [0, 0, 0]);
    // A process that does not use CUDA is told before anything is done to the others.
    let with_me = [machine.pids[0], std::process::id()];
    let failed = suspend(&machine.cuda, &with_me, LOCK).unwrap_err();
    assert!(failed.why.starts_with("state of process") && failed.stuck.is_none(), "{failed:?}");
    assert_eq!(machine.states(), [0, 0, 0]);
}

#[test]
fn where_one_cannot_come_back_all_stay_suspended() {
    let machine = Machine::with(2);
    suspend(&machine.cuda, &machine.pids, LOCK).unwrap();
    machine.fault("cuCheckpointProcessRestore", fails(2, machine.pids[1]));
    let failed = resume(&machine.cuda, &machine.pids, &[]).unwrap_err();
    assert!(failed.why.contains("out of memory") && failed.stuck.is_none(), "{failed:?}");
    assert_eq!(machine.states(), [2, 2]);
    machine.mend();
    resume(&machine.cuda, &machine.pids, &[]).unwrap();
    assert_eq!(machine.states(), [0, 0]);
}

#[test]
fn what_cannot_be_undone_is_said() {
    let machine = Machine::with(2);
    machine.fault("cuCheckpointProcessCheckpoint", fails(999, machine.pids[1]));
    machine.fault("cuCheckpointProcessRestore", fails(999, machine.pids[0]));
    let failed = suspend(&machine.cuda, &machine.pids, LOCK).unwrap_err();
    assert!(failed.stuck.is_some_and(|stuck| stuck.contains("restore")));
    machine.mend();
    machine.change(|state| {
        for process in state.processes.values_mut() {
            process.state = 2;
        }
    });
    machine.fault("cuCheckpointProcessUnlock", fails(999, machine.pids[0]));
    assert!(resume(&machine.cuda, &machine.pids, &[]).unwrap_err().stuck.is_some());
    machine.mend();
    machine.change(|state| state.processes.get_mut(&machine.pids[0]).unwrap().state = 3);
    let failed = suspend(&machine.cuda, &machine.pids, LOCK).unwrap_err();
    assert!(failed.why.contains("failed") && failed.stuck.is_some(), "{failed:?}");
}

#[test]
fn what_was_cut_off_is_done_to_its_end() {
    let machine = Machine::with(3);
    for states in [[0, 1, 2], [1, 1, 1], [2, 2, 1]] {
        for end in [true, false] {
            machine.change(|state| {
                for (pid, at) in machine.pids.iter().zip(states) {
                    state.processes.get_mut(pid).unwrap().state = at;
                }
            });
            if end {
                suspend(&machine.cuda, &machine.pids, LOCK).unwrap();
                assert_eq!(machine.states(), [2, 2, 2]);
            } else {
                resume(&machine.cuda, &machine.pids, &[]).unwrap();
                assert_eq!(machine.states(), [0, 0, 0]);
            }
        }
    }
}

#[test]
fn where_nobody_tells_of_one_that_was_taken_off_before_it_is_not_said_to_run() {
    let machine = Machine::with(2);
    machine.change(|state| state.processes.get_mut(&machine.pids[0]).unwrap().state = 2);
    for pid in &machine.pids {
        machine.fault("cuCheckpointProcessGetState", fails(999, *pid));
        let failed = suspend_again(&machine.cuda, &machine.pids, &machine.pids, LOCK).unwrap_err();
        assert!(failed.stuck.is_some(), "{failed:?}");
        assert_eq!(machine.states()[0], if *pid == machine.pids[0] { 2 } else { 0 }, "what can go on does");
    }
    // Where nothing was done before, there is nothing to undo.
    let failed = suspend(&machine.cuda, &machine.pids, LOCK).unwrap_err();
    assert!(failed.stuck.is_none(), "{failed:?}");
}

/// A task that never answered, of a daemon that was killed: its process is named in the book and was not touched.
#[test]
fn one_that_uses_no_gpu_has_nothing_to_bring_back() {
    let machine = Machine::with(2);
    let [locked, unused] = machine.pids[..] else { panic!("two") };
    machine.change(|state| state.processes.get_mut(&locked).unwrap().state = 1);
    machine.fault("cuCheckpointProcessGetState", fails(3, unused));
    let failed = suspend_again(&machine.cuda, &machine.pids, &machine.pids, LOCK).unwrap_err();
    assert!(failed.why.contains("not initialised") && failed.stuck.is_none(), "{failed:?}");
    assert_eq!(machine.states(), [0, 0], "the other one goes on");
    machine.change(|state| state.processes.get_mut(&locked).unwrap().state = 2);
    undo(&machine.cuda, &machine.pids).unwrap();
    assert_eq!(machine.states(), [0, 0]);
    machine.fault("cuCheckpointProcessGetState", fails(999, unused));
    assert!(undo(&machine.cuda, &machine.pids).unwrap_err().stuck.is_some());
}

#[test]
fn a_process_that_ends_meanwhile_is_no_failure() {
    let machine = Machine::with(2);
    let dies = Fault { kills_process: true, code: Some(999), pid: Some(machine.pids[0]), ..Fault::default() };
    machine.fault("cuCheckpointProcessCheckpoint", Fault { hang_ms: 0, ..dies });
    // The kernel may take a moment to end it, so that the call is told as failed: all run on then.
    if suspend(&machine.cuda, &machine.pids, LOCK).is_ok() {
        assert_eq!(machine.states()[1], 2);
    } else {
        assert_eq!(machine.states()[1], 0);
    }
    machine.mend();
    while std::fs::read_link(format!("/proc/{}/exe", machine.pids[0])).is_ok() {
        std::thread::sleep(Duration::from_millis(5));
    }
    suspend(&machine.cuda, &machine.pids, LOCK).unwrap();
    assert_eq!(machine.states()[1], 2);
}

#[test]
fn a_process_comes_back_on_another_gpu() {
    let machine = Machine::with(1);
    suspend(&machine.cuda, &machine.pids, LOCK).unwrap();
    resume(&machine.cuda, &machine.pids, &swap([A, B], A, B)).unwrap();
    let state = fake_cuda::change(machine.folder.path(), |_| ()).unwrap();
    let hex = |uuid: &str| uuid.trim_start_matches("GPU-").replace('-', "");
    let pairs = &state.processes[&machine.pids[0]].pairs;
    assert_eq!(*pairs, [(hex(A), hex(B)), (hex(B), hex(A))]);
    assert_eq!((machine.cuda.version(), machine.cuda.moves()), (Some((13, 0)), true));
    suspend(&machine.cuda, &machine.pids, LOCK).unwrap();
    let failed = resume(&machine.cuda, &machine.pids, &swap([A, "MIG-1"], A, A)).unwrap_err();
    assert!(
        failed.why.contains("'MIG-1' is not the UUID of a whole GPU") && failed.stuck.is_none(),
        "{failed:?}"
    );
    machine.change(|state| state.version = 12_080);
    assert!(!machine.cuda.moves());
}

#[test]
fn a_library_that_cannot_do_it_says_so() {
    let nowhere = cuda::open(Some(&PathBuf::from("/nowhere/libcuda.so.1"))).err().unwrap();
    assert!(nowhere.contains("/nowhere/libcuda.so.1 cannot be loaded"), "{nowhere}");
    let machine = Machine::with(1);
    assert_eq!(machine.cuda.state(machine.pids[0]), Ok(ProcessState::Running));
    assert!(machine.cuda.unlock(machine.pids[0]).unwrap_err().why.contains("not in the state"));
    assert_eq!(machine.cuda.lock(u32::MAX, LOCK).unwrap_err().code, None);
}
