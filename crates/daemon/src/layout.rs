//! The directories of the daemon: the state directory, which is the daemon's alone, and the runtime directory, where
//! jobs find the sockets that they need.

use crate::error::{ServeError, path_error};
use carma_core::state::State;
use rustix::fs::{FlockOperation, flock, statfs};
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Bytes of a socket's path (`sockaddr_un`), its end not counted.
const LONGEST_SOCKET: usize = 107;

/// What carma and MPS add to the runtime directory at most: `/mps/UID/pipe` and a name of MPS's own, or
/// `/pace/JOB.ATTEMPT/` and a name that is put aside while the socket is made.
const LONGEST_NAME: usize = 47;

/// What carma keeps in the state directory beside the journal's files.
const OWN_NAMES: &[&str] = &["lock", "reserve", "run", "logs", "recorder", "repair.tmp"];

/// Permissions of a shared directory: all users may write to it, or it is sticky, as `/tmp`.
const OF_ALL: u32 = STICKY | 0o002;
/// A directory where many users keep something.
const STICKY: u32 = 0o1000;

/// How often, and after what time, something that a killed daemon may have left is looked at again.
pub(crate) const RETRIES: u32 = 10;
/// See [`RETRIES`].
pub(crate) const RETRY: Duration = Duration::from_millis(50);

/// The directories of the daemon.
pub(crate) struct Layout {
    /// Records of attempts.
    pub(crate) run: PathBuf,
    /// Whether that was there before.
    pub(crate) run_was_there: bool,
    /// Logs that carma makes.
    pub(crate) logs: PathBuf,
    /// The journal.
    pub(crate) journal: PathBuf,
    /// What is recorded of the GPUs.
    pub(crate) recorder: PathBuf,
    /// What users reach: they may pass through it, and list nothing.
    pub(crate) runtime: PathBuf,
    /// Sockets and heartbeat files of jobs.
    pub(crate) pace: PathBuf,
    /// Pipes of MPS.
    pub(crate) mps: PathBuf,
    /// The state directory by device and inode: one that was moved is the same, a copy is not.
    pub(crate) place: String,
    /// Socket of virtual GPUs.
    pub(crate) virtual_gpus: PathBuf,
    /// Held as long as the daemon lives.
    _lock: File,
}

impl Layout {
    /// Makes the directories and takes the lock. `state_dir` is absolute.
    pub(crate) fn prepare(state_dir: &Path, as_root: bool) -> Result<Self, ServeError> {
        refuse_file_system(state_dir)?;
        make_own(state_dir)?;
        refuse_foreign(state_dir)?;
        own_dir(state_dir, 0o700)?;
        close_files(state_dir)?;
        let lock = lock(state_dir)?;
        let place = place(state_dir).map_err(path_error("cannot look at", state_dir))?;
        let run = state_dir.join("run");
        // What cannot be told now must not count as gone: running jobs would be given up.
        let run_was_there = run.try_exists().map_err(path_error("cannot look for", &run))?;
        own_dir(&run, 0o700)?;
        let logs = state_dir.join("logs");
        own_dir(&logs, 0o700)?;
        let recorder = state_dir.join("recorder");
        own_dir(&recorder, 0o700)?;
        let runtime = runtime(state_dir, &place, as_root)?;
        let (pace, mps) = (runtime.join("pace"), runtime.join("mps"));
        own_dir(&pace, 0o711)?;
        own_dir(&mps, 0o711)?;
        Ok(Self {
            run,
            run_was_there,
            logs,
            journal: state_dir.join("carma.db"),
            recorder,
            virtual_gpus: runtime.join("virtual-gpus.sock"),
            runtime,
            pace,
            mps,
            place,
            _lock: lock,
        })
    }

    /// Refuses to go on where the directory of the records was deleted and jobs were under way: without their records
    /// they would be started again, and they may still run.
    pub(crate) fn has_records_of(&self, state: &State) -> Result<(), ServeError> {
        if self.run_was_there || state.active().is_empty() {
            return Ok(());
        }
        let _ = fs::remove_dir(&self.run);
        let jobs: Vec<String> = state.active().iter().map(ToString::to_string).collect();
        Err(path_error("cannot go on without", &self.run)(io::Error::other(format!(
            "the records of attempts were in it, it was deleted, and what became of job {} cannot be found out; put it \
             back, or have these jobs end as failed, and those that wait held, by `carma journal repair --accept-loss`",
            jobs.join(", ")
        ))))
    }

    /// Removes what is empty of the runtime directory.
    pub(crate) fn leave(&self) {
        for dir in [&self.pace, &self.mps, &self.runtime] {
            let _ = fs::remove_dir(dir);
        }
    }
}

/// Refuses a state directory that no daemon would start in, as far as that shows before anything is made. Not all can be seen by one who is
/// not the daemon's user, and what belongs to whom is asked for root's only.
pub(crate) fn check_state_dir(state_dir: &Path) -> Result<(), ServeError> {
    refuse_file_system(state_dir)?;
    match fs::metadata(state_dir) {
        Ok(_) => {
            if rustix::process::geteuid().is_root() {
                refuse_others(state_dir)?;
            }
            match fs::read_dir(state_dir) {
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Ok(()),
                Ok(_) | Err(_) => refuse_foreign(state_dir),
            }
        }
        Err(_) => Ok(()),
    }
}

/// Makes a directory that is ours, with a mode, and those above it.
fn own_dir(path: &Path, mode: u32) -> Result<(), ServeError> {
    make_own(path)?;
    fs::set_permissions(path, Permissions::from_mode(mode))
        .map_err(path_error("cannot set the permissions of", path))
}

/// Makes a directory, and those above it, and refuses one that belongs to another user.
fn make_own(path: &Path) -> Result<(), ServeError> {
    fs::create_dir_all(path).map_err(path_error("cannot create", path))?;
    refuse_others(path)
}

/// Refuses a directory that belongs to another user.
fn refuse_others(path: &Path) -> Result<(), ServeError> {
    let owner = fs::metadata(path).map_err(path_error("cannot look at", path))?.uid();
    if owner != rustix::process::geteuid().as_raw() {
        let why = format!("it belongs to user {owner}, who could change what carma keeps in it");
        return Err(path_error("cannot use", path)(io::Error::other(why)));
    }
    Ok(())
}

/// Refuses a directory that is not carma's alone, before anything in it is changed: it will be closed to all others.
fn refuse_foreign(state_dir: &Path) -> Result<(), ServeError> {
    let refused = |why: String| Err(path_error("cannot keep the state in", state_dir)(io::Error::other(why)));
    let mode = fs::metadata(state_dir).map_err(path_error("cannot look at", state_dir))?.mode();
    let (mut journal, mut foreign) = (false, None);
    for entry in fs::read_dir(state_dir).map_err(path_error("cannot list", state_dir))? {
        let name = entry.map_err(path_error("cannot list", state_dir))?.file_name();
        journal |= name == "carma.db" || name == "carma.db.head";
        // The root of a file system has a `lost+found`, which no user made.
        if !is_own(&name) && name != "lost+found" {
            foreign.get_or_insert(name);
        }
    }
    if mode & OF_ALL != 0 {
        let shared = mode & STICKY != 0 || foreign.is_some();
        let close = if shared { "" } else { ", or run `chmod 700` on this one if no other user needs it" };
        return refused(format!(
            "all users may write to it (mode {:04o}), and carma would close it to them; name a directory of carma's \
             own with --state{close}",
            mode & 0o7777
        ));
    }
    match foreign {
        Some(name) if !journal => refused(format!(
            "it has no journal of carma's (carma.db) and holds other files, such as {}, which carma would close to \
             other users; name an empty directory, or one that is not there yet, with --state",
            Path::new(&name).display()
        )),
        _ => Ok(()),
    }
}

/// Whether carma gives this name to what it keeps in the state directory.
fn is_own(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    OWN_NAMES.contains(&&*name) || name.starts_with("carma.db") || name.starts_with("damaged-")
}

/// Takes from others what they may do with carma's files: an older carma left them readable.
fn close_files(state_dir: &Path) -> Result<(), ServeError> {
    for entry in fs::read_dir(state_dir).map_err(path_error("cannot list", state_dir))?.flatten() {
        if !is_own(&entry.file_name()) {
            continue;
        }
        let path = entry.path();
        let Ok(meta) = fs::symlink_metadata(&path) else { continue };
        if meta.is_file() && meta.mode() & 0o077 != 0 {
            fs::set_permissions(&path, Permissions::from_mode(0o600))
                .map_err(path_error("cannot set the permissions of", &path))?;
        }
    }
    Ok(())
}

/// Takes the lock that only one daemon or repair can hold.
pub(crate) fn lock(state_dir: &Path) -> Result<File, ServeError> {
    let path = state_dir.join("lock");
    let lock = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&path)
        .map_err(path_error("cannot open", &path))?;
    // A child that a killed daemon had not quite started holds it for a moment.
    let free = (0..RETRIES).any(|at| {
        std::thread::sleep(if at > 0 { RETRY } else { Duration::ZERO });
        flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()
    });
    if free {
        return Ok(lock);
    }
    Err(ServeError::InUse(format!(
        "another carma daemon uses {}; stop it, or give this one a directory of its own with --state",
        state_dir.display()
    )))
}

/// A directory outside the state directory for what users must reach. The same after a restart, since jobs keep the
/// names. In memory where there is such a file system: on a disk, a heartbeat file costs a task half a millisecond a
/// step.
fn runtime(state_dir: &Path, place: &str, as_root: bool) -> Result<PathBuf, ServeError> {
    if let Some(dir) = in_memory(place, as_root) {
        return Ok(dir);
    }
    let mut beside = state_dir.as_os_str().to_owned();
    beside.push(".run");
    let dir = PathBuf::from(beside);
    if dir.as_os_str().len() + LONGEST_NAME > LONGEST_SOCKET {
        let why = format!(
            "paths of sockets have at most {LONGEST_SOCKET} bytes, and sockets of jobs are to go there; \
             choose a state directory with a name that is {} bytes shorter, with --state",
            dir.as_os_str().len() + LONGEST_NAME - LONGEST_SOCKET
        );
        return Err(path_error("cannot use", &dir)(io::Error::other(why)));
    }
    make_searchable(&dir).map_err(path_error("cannot use", &dir))?;
    Ok(dir)
}

/// Root's is in `/run`: of `/dev/shm` logind removes what belongs to a user when that user logs out (`RemoveIPC=`).
/// `None`: there is no such file system, or something else was put in its place.
fn in_memory(place: &str, as_root: bool) -> Option<PathBuf> {
    let uid = rustix::process::geteuid().as_raw();
    let dir = Path::new(if as_root { "/run" } else { "/dev/shm" }).join(format!("carma-{uid}-{place}"));
    make_searchable(&dir).ok()?;
    Some(dir)
}

/// Device and inode, which name the state directory, and are short.
fn place(state_dir: &Path) -> io::Result<String> {
    let state = fs::metadata(state_dir)?;
    Ok(format!("{:x}-{:x}", state.dev(), state.ino()))
}

/// A directory of ours that others may pass through.
fn make_searchable(dir: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o711).create(dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        Ok(()) | Err(_) => {}
    }
    let found = fs::symlink_metadata(dir)?;
    if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other("something else was put in its place; remove it"));
    }
    fs::set_permissions(dir, Permissions::from_mode(0o711))
}

/// Makes the directory of the client socket, and those above it, so that all users come through a root daemon's.
pub(crate) fn make_socket_dir(dir: &Path, as_root: bool) -> io::Result<()> {
    let missing: Vec<&Path> = dir.ancestors().take_while(|dir| !dir.exists()).collect();
    let mode = if as_root { 0o755 } else { 0o700 };
    for dir in missing.into_iter().rev() {
        match fs::create_dir(dir) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            // The umask is for files that no other user needs.
            made => made.and_then(|()| fs::set_permissions(dir, Permissions::from_mode(mode)))?,
        }
    }
    Ok(())
}

/// Refuses a place for the client socket where something else is, which is never deleted.
pub(crate) fn check_socket(socket: &Path) -> Result<(), ServeError> {
    let refused = |why: String| Err(path_error("cannot listen at", socket)(io::Error::other(why)));
    let length = socket.as_os_str().len();
    if length > LONGEST_SOCKET {
        return refused(format!(
            "paths of sockets have at most {LONGEST_SOCKET} bytes, and this has {length}; choose a shorter one with --socket"
        ));
    }
    if let Some(dir) = socket.parent() {
        refuse_no_directory(dir)?;
    }
    match fs::symlink_metadata(socket) {
        Ok(meta) if !meta.file_type().is_socket() => refused(
            "something that is not a socket is there, and carma does not delete it; choose another place with --socket"
                .to_owned(),
        ),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// What a file system is to the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileSystem {
    /// Locks hold for all users who can write to it.
    Local,
    /// Locks may hold for this machine or this mount only.
    Shared(&'static str),
    /// The kernel's own: users keep no files there.
    Kernel(&'static str),
}

/// Tells file systems apart by `f_type` of statfs(2). The numbers are those of linux/magic.h and of the modules
/// that are not in the kernel.
const fn file_system(f_type: u64) -> FileSystem {
    // The kernel gives some of them as negative numbers of 32 bits.
    let number = f_type & 0xffff_ffff;
    match number {
        0x9fa0 => return FileSystem::Kernel("proc"),
        0x6265_6572 => return FileSystem::Kernel("sysfs"),
        0x0027_e0eb | 0x6367_7270 => return FileSystem::Kernel("a file system of cgroups"),
        _ => {}
    }
    FileSystem::Shared(match number {
        0x6969 => "NFS",
        0x517b => "SMB",
        0xff53_4d42 => "CIFS",
        0xfe53_4d42 => "SMB2",
        0x564c => "NCP",
        0x5346_414f | 0x6b41_4653 => "AFS",
        0x7375_7245 => "Coda",
        0x0102_1997 => "9p",
        0x0bd0_0bd0 => "Lustre",
        0x4750_4653 => "GPFS",
        0x00c3_6400 => "Ceph",
        0x1983_0326 => "BeeGFS",
        0x2003_0528 => "OrangeFS",
        0xaad7_aaea => "PanFS",
        0x7461_636f => "OCFS2",
        0x0116_1970 => "GFS2",
        0x6573_5546 => "FUSE",
        0x786f_4256 | 0xbacb_acbc => "a folder shared with a virtual machine",
        _ => return FileSystem::Local,
    })
}

/// What a path is on that may be about to be made, and the part of it that is there; a mount point is.
fn found_on(path: &Path) -> Result<Option<(&Path, FileSystem)>, ServeError> {
    let Some(there) = path.ancestors().find(|dir| dir.exists()) else { return Ok(None) };
    let found = statfs(there).map_err(|e| path_error("cannot look at", there)(e.into()))?;
    #[expect(clippy::cast_sign_loss, reason = "a bit pattern; its type differs between architectures")]
    let file_system = file_system(found.f_type as u64);
    Ok(Some((there, file_system)))
}

/// Refuses a directory that is not there and cannot be made.
fn refuse_no_directory(path: &Path) -> Result<(), ServeError> {
    match found_on(path)? {
        Some((_, FileSystem::Kernel(name))) => {
            let why = format!("it is on {name}, where no directory can be made for it");
            Err(path_error("cannot create", path)(io::Error::other(why)))
        }
        Some((there, _)) if !there.is_dir() => {
            let why = format!("{} is not a directory", there.display());
            Err(path_error("cannot create", path)(io::Error::other(why)))
        }
        Some(_) | None => Ok(()),
    }
}

/// Refuses a state directory where none can be, or where two daemons could write one journal.
fn refuse_file_system(state_dir: &Path) -> Result<(), ServeError> {
    refuse_no_directory(state_dir)?;
    match found_on(state_dir)?.map_or(FileSystem::Local, |(_, file_system)| file_system) {
        FileSystem::Local | FileSystem::Kernel(_) => Ok(()),
        FileSystem::Shared(name) => {
            let why = format!(
                "it is on {name}, where a lock may hold for one machine or one mount only: two daemons could write \
                 the same journal, and would destroy it; give a directory on a local disk with --state"
            );
            Err(path_error("cannot keep the journal in", state_dir)(io::Error::other(why)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_where_locks_do_not_hold_are_known() {
        for (f_type, name) in [
            (0x6969, "NFS"),
            (0xff53_4d42, "CIFS"),
            (0xffff_ffff_ff53_4d42, "CIFS"),
            (0xfe53_4d42, "SMB2"),
            (0x5346_414f, "AFS"),
            (0x6b41_4653, "AFS"),
            (0x7375_7245, "Coda"),
            (0x0102_1997, "9p"),
            (0x0bd0_0bd0, "Lustre"),
            (0x4750_4653, "GPFS"),
            (0x00c3_6400, "Ceph"),
            (0x1983_0326, "BeeGFS"),
            (0x7461_636f, "OCFS2"),
            (0x0116_1970, "GFS2"),
            (0x6573_5546, "FUSE"),
        ] {
            assert_eq!(file_system(f_type), FileSystem::Shared(name), "{f_type:x}");
        }
        // ext4, xfs, btrfs, tmpfs, zfs, overlayfs, f2fs, and negative ones of 32 bits.
        for f_type in [
            0xef53,
            0x5846_5342,
            0x9123_683e,
            0xffff_ffff_9123_683e,
            0x0102_1994,
            0x2fc1_2fc1,
            0x794c_7630,
            0xf2f5_2010,
        ] {
            assert_eq!(file_system(f_type), FileSystem::Local, "{f_type:x}");
        }
    }

    #[test]
    fn what_would_be_refused_is_refused_before_anything_is_made() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("file"), "").unwrap();
        fs::create_dir(path("shared")).unwrap();
        fs::set_permissions(path("shared"), Permissions::from_mode(0o1777)).unwrap();
        fs::create_dir(path("full")).unwrap();
        fs::write(path("full/thesis.tex"), "").unwrap();
        for (state_dir, why) in [
            (path("shared"), "all users may write to it (mode 1777)"),
            (path("full"), "holds other files, such as thesis.tex"),
            (path("file"), "is not a directory"),
            (path("file/state"), "is not a directory"),
            (PathBuf::from("/proc/carma"), "it is on proc"),
        ] {
            let checked = check_state_dir(&state_dir).unwrap_err().to_string();
            assert!(checked.contains(why), "{checked}");
            let as_root = rustix::process::geteuid().is_root();
            assert_eq!(Layout::prepare(&state_dir, as_root).err().unwrap().to_string(), checked);
        }
        check_state_dir(&path("new/state")).unwrap();
        assert!(!path("new").exists());
        let error = check_socket(&path("file/s.sock")).unwrap_err().to_string();
        assert!(error.contains("is not a directory"), "{error}");
    }

    #[test]
    fn the_runtime_directory_stays_the_same_and_outside() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        let as_root = rustix::process::geteuid().is_root();
        let layout = Layout::prepare(&state, as_root).unwrap();
        // A daemon that was killed may have left things for a directory that had this inode before.
        fs::remove_dir_all(&layout.runtime).unwrap();
        drop(layout);
        let layout = Layout::prepare(&state, as_root).unwrap();
        assert!(!layout.runtime.starts_with(&state), "{}", layout.runtime.display());
        assert_eq!(fs::metadata(&state).unwrap().mode() & 0o777, 0o700);
        assert_eq!(fs::metadata(&layout.runtime).unwrap().mode() & 0o777, 0o711);
        let before = layout.runtime.clone();
        layout.leave();
        assert!(!before.exists());
        drop(layout);
        let again = Layout::prepare(&state, as_root).unwrap();
        assert_eq!(again.runtime, before);
        assert!(again.run_was_there);
        again.leave();
    }

    #[test]
    fn what_is_not_carmas_is_not_closed() {
        let dir = tempfile::tempdir().unwrap();
        let as_root = rustix::process::geteuid().is_root();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        let set = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        let state = dir.path().join("state");
        let program = state.join("program");
        fs::create_dir(&state).unwrap();
        fs::write(&program, "precious").unwrap();
        set(&program, 0o755);
        for (open, wanted) in [(0o755, "such as program"), (0o1777, "mode 1777"), (0o757, "mode 0757")] {
            set(&state, open);
            let error = Layout::prepare(&state, as_root).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(wanted) && error.contains("--state"), "{error}");
            assert!(!error.contains("chmod"), "files of others are in it: {error}");
            assert_eq!((mode(&state), mode(&program)), (open, 0o755));
            assert_eq!(fs::read_dir(&state).unwrap().count(), 1, "nothing was made");
        }
        // A directory with a journal is closed, but for other files in it.
        set(&state, 0o755);
        fs::write(state.join("carma.db"), "").unwrap();
        set(&state.join("carma.db"), 0o644);
        Layout::prepare(&state, as_root).unwrap().leave();
        let modes = [&*state, &program, &state.join("carma.db")].map(mode);
        assert_eq!(modes, [0o700, 0o755, 0o600]);
        // So is one that a first start left without a journal.
        fs::remove_file(&program).unwrap();
        fs::remove_file(state.join("carma.db")).unwrap();
        fs::create_dir(state.join("lost+found")).unwrap();
        Layout::prepare(&state, as_root).unwrap().leave();
        // `chmod` is advised only for a directory that is empty and not sticky.
        for (open, advised) in [(0o757, true), (0o1777, false)] {
            set(&state, open);
            let error = Layout::prepare(&state, as_root).map(|_| ()).unwrap_err().to_string();
            assert_eq!(error.contains("chmod 700"), advised, "{error}");
        }
    }

    #[test]
    fn a_path_that_sockets_cannot_have_is_refused_in_words() {
        let dir = tempfile::tempdir().unwrap();
        let long = dir.path().join("x".repeat(100));
        let error = check_socket(&long).unwrap_err().to_string();
        assert!(error.contains("107 bytes") && error.contains("--socket"), "{error}");
        let file = dir.path().join("file");
        fs::write(&file, "precious").unwrap();
        let error = check_socket(&file).unwrap_err().to_string();
        assert!(error.contains("not a socket") && error.contains("--socket"), "{error}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    }
}
