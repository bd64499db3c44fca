//! A GPU that falls off, a full disk.

use crate::support::{Setup, is_root, job, task, until};
use carma_api::ClientError;
use carma_api::wire::SubmitReply;
use carma_virtual_gpu::control;
use std::process::Command;

#[test]
fn a_gpu_that_disappears() {
    let daemon = Setup::new("virtual:2xA100-40GB").start();
    let id = daemon.submit(task(&["--memory=2G", "--work=600s", "--startup=0s"], Some(3)));
    daemon.in_state(id, "RUNNING");
    until("its memory", || daemon.gpus().gpus[0].tenants.first()?.observed_mib);
    let socket = daemon.virtual_gpus();
    control::drop_gpu(&socket, "0").unwrap();
    let over = daemon.end_of(id);
    assert_eq!((over.job.state.as_str(), over.job.reason.code.as_str()), ("FAILED", "GpuLost"));
    until("the GPU to be shown as lost", || (daemon.gpus().gpus[0].status == "lost").then_some(()));
    let next = daemon.end_of(daemon.submit(task(&["--memory=2G", "--work=1s", "--startup=0s"], Some(3))));
    assert_eq!((next.job.state.as_str(), next.job.gpus), ("COMPLETED", vec![1]));
    control::restore_gpu(&socket, "0").unwrap();
    until("the GPU to be back", || (daemon.gpus().gpus[0].status == "ok").then_some(()));
}

/// A small file system that is unmounted when dropped.
struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    fn mount(at: &std::path::Path) -> Option<Self> {
        std::fs::create_dir_all(at).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=2m", "carma-small"])
            .arg(at)
            .output()
            .is_ok_and(|o| o.status.success());
        mounted.then(|| Self(at.to_owned()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

#[test]
fn a_full_disk_loses_nothing() {
    if !is_root() {
        eprintln!("SKIPPED: mounting a small file system needs root");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(&dir.path().join("disk")) else {
        eprintln!("SKIPPED: this environment does not allow to mount a tmpfs");
        return;
    };
    let mut setup = Setup::new("virtual:1xA100-40GB");
    setup.state = Some(disk.0.join("state"));
    let daemon = setup.start();
    let before = daemon.shell("sleep 1; exit 3");
    daemon.in_state(before, "RUNNING");
    let filler = disk.0.join("filler");
    let fill = || {
        let _ = std::fs::write(&filler, vec![b'x'; 3 << 20]);
        assert!(std::fs::metadata(&filler).unwrap().len() > 0);
    };
    fill();
    // What is small may still find room, and then nothing stands in the way for a moment: the large one is sent until all say so.
    let (refused, told) = until("a submission to be refused, and all who are asked to say so", || {
        let mut large = job(&["/bin/true"]);
        large.env.insert("FILL".into(), "y".repeat(100_000));
        let refused = match daemon.client().post::<SubmitReply>("/v1/jobs", &large) {
            Err(ClientError::Refused { status: 507, message, .. }) => message,
            Err(other) => panic!("{other}"),
            Ok(_) => return None,
        };
        let told = daemon.queue().unwritten?;
        (daemon.gpus().unwritten.is_some() && daemon.status().unwritten.is_some()).then_some((refused, told))
    });
    assert!(refused.contains("nothing was accepted"), "{refused}");
    // Not the GPU is to blame for what waits now.
    for told in [&refused, &format!("{}. {}", told.why, told.advice)] {
        assert!(told.contains("disk is full") && told.contains("make room"), "{told}");
    }
    std::fs::remove_file(&filler).unwrap();
    let over = daemon.end_of(before);
    assert_eq!(over.job.exit_code, Some(3), "{}", over.job.reason.text);
    assert_eq!(daemon.end_of(daemon.shell("exit 0")).job.state, "COMPLETED");
    assert_eq!(daemon.queue().unwritten, None);
    drop(daemon);
    drop(disk);
}
