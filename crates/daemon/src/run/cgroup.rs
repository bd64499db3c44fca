//! A cgroup (version 2) for each attempt: the kill that nothing escapes, which processes belong to a job, limits on the host's
//! memory, processors and processes, and what was taken of them (kernel documentation, `cgroup-v2.rst`).
//!
//! Three ways to a place for them, see [`Hierarchy::prepare`]. Where none is open, processes are tracked by session and
//! ancestry, as far as that goes, and there are no limits.

use super::identity::{AttemptId, Life, short};
use super::lives::Lives;
use carma_api::wire::HostLimitsView;
use carma_core::model::{HostUse, JobId};
use carma_core::units::{MiB, Millis};
use carma_process::process;
use nix::unistd::{ForkResult, Pid};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Period of `cpu.max`, microseconds: the kernel's default.
const CPU_PERIOD_US: u64 = 100_000;
/// The most that a limit of memory can be, which the kernel takes in bytes.
pub const MOST_MEMORY: MiB = MiB(u64::MAX >> 20);
/// How often, and after what time, a group that its last process has just left is removed again: for a second.
const REMOVALS: u32 = 20;
const REMOVAL: Duration = Duration::from_millis(5);
/// The same on a thread that is not waited for, where processes may be stuck in the kernel: for half a minute.
const PATIENT_REMOVALS: u32 = 110;
/// A flag of `clone3` (`linux/sched.h`); the libc crate has it as a `c_int`, which it does not fit.
const CLONE_INTO_CGROUP: u64 = 1 << 33;

/// Limits on what a job takes of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct HostLimits {
    /// Memory of all its processes together.
    pub memory: Option<MiB>,
    /// Processors, percent of one.
    pub cpu_pct: Option<u32>,
    /// Processes and threads.
    pub processes: Option<u32>,
}

impl From<HostLimitsView> for HostLimits {
    fn from(limits: HostLimitsView) -> Self {
        Self { memory: limits.memory_mib.map(MiB), cpu_pct: limits.cpu_pct, processes: limits.processes }
    }
}

/// A controller that a limit needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Controller {
    /// `memory`.
    Memory,
    /// `cpu`.
    Cpu,
    /// `pids`.
    Pids,
}

impl Controller {
    /// All that carma uses.
    pub const ALL: [Self; 3] = [Self::Memory, Self::Cpu, Self::Pids];

    /// The kernel's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::Pids => "pids",
        }
    }
}

impl HostLimits {
    /// The controllers that these limits need.
    pub fn needs(self) -> impl Iterator<Item = Controller> {
        let wanted = [self.memory.is_some(), self.cpu_pct.is_some(), self.processes.is_some()];
        Controller::ALL
            .into_iter()
            .zip(wanted)
            .filter(|(_, wanted)| *wanted)
            .map(|(controller, _)| controller)
    }
}

/// What the group of a daemon is called where it is not the service manager's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    /// By journal and state directory: a daemon on a copy of that has another, and ends nothing in this one.
    present: String,
    /// By the journal alone, as before (carma before 0.2).
    before: String,
    /// The lives whose attempts may have groups there.
    lives: Vec<String>,
}

impl Names {
    /// Those of a daemon on this journal.
    #[must_use]
    pub fn of(journal: &str, lives: &Lives) -> Self {
        let before = format!("carma-{}", short(journal));
        let Life { place, .. } = lives.present();
        let present = place.as_ref().map_or_else(|| before.clone(), |place| format!("{before}-{place}"));
        Self { present, before, lives: lives.unmarked() }
    }
}

/// Where the groups of attempts are.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Base {
    /// Directory of the group.
    dir: PathBuf,
    /// The same as `/proc/PID/cgroup` names it.
    name: String,
}

/// Where the groups of all attempts are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    base: Base,
    /// Where those of an older carma are that may go on, and of which lives they are: others there are none of ours.
    earlier: Option<(Base, Vec<String>)>,
    /// Controllers that the groups have.
    controllers: Vec<String>,
}

impl Hierarchy {
    /// Makes the place: beside the daemon, where its manager gave it a subtree (`Delegate=yes` and
    /// `DelegateSubgroup=daemon`, systemd 254 and later); at the top, as root; below the daemon's own group where a user
    /// may write there (then without limits: the kernel gives no controllers to groups below one with processes).
    /// `names` tell the daemons of one machine apart.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub fn prepare(as_root: bool, names: &Names) -> Result<Self, String> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").map_err(|e| e.to_string())?;
        let mount = mount_point(&mounts)
            .ok_or("no cgroup v2 hierarchy is mounted (mount -t cgroup2 none /sys/fs/cgroup)")?;
        let own = fs::read_to_string("/proc/self/cgroup").map_err(|e| e.to_string())?;
        let own = own_group(&own).ok_or("the daemon is in no cgroup v2")?.to_owned();
        Self::prepare_at(&mount, &own, as_root, names)
    }

    fn prepare_at(mount: &Path, own: &str, as_root: bool, names: &Names) -> Result<Self, String> {
        let in_subgroup = own.strip_suffix("/daemon").filter(|parent| !parent.is_empty());
        let (parent, leaf) = match in_subgroup {
            Some(parent) => (parent, "jobs"),
            None if as_root => ("", &*names.present),
            None => (own.trim_end_matches('/'), &*names.present),
        };
        let parent_dir = mount.join(parent.trim_start_matches('/'));
        let below = |leaf: &str| Base { dir: parent_dir.join(leaf), name: format!("{parent}/{leaf}") };
        let Base { dir: base, name } = below(leaf);
        let earlier = (in_subgroup.is_none() && !names.lives.is_empty() && names.before != names.present)
            .then(|| (below(&names.before), names.lives.clone()))
            .filter(|(base, _)| base.dir.is_dir());
        make(&base).map_err(|e| {
            let dir = base.display();
            format!(
                "{dir} cannot be made ({e}); the daemon's manager gives it no subtree (systemd: Delegate=yes)"
            )
        })?;
        // What is not there to be had is left out; the groups show what they got.
        for dir in [&parent_dir, &base] {
            for controller in Controller::ALL {
                let _ = fs::write(dir.join("cgroup.subtree_control"), format!("+{}", controller.name()));
            }
        }
        let given = fs::read_to_string(base.join("cgroup.subtree_control")).unwrap_or_default();
        let controllers = given.split_whitespace().map(str::to_owned).collect();
        if !base.join("cgroup.kill").exists() {
            return Err(format!("the kernel has no cgroup.kill (Linux 5.14) in {}", base.display()));
        }
        Ok(Self { base: Base { dir: base, name }, earlier, controllers })
    }

    /// Directory of the groups.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.base.dir
    }

    /// Controllers that the groups have.
    #[must_use]
    pub fn controllers(&self) -> &[String] {
        &self.controllers
    }

    /// Whether limits of this kind hold.
    #[must_use]
    pub fn has(&self, controller: Controller) -> bool {
        self.controllers.iter().any(|name| name == controller.name())
    }

    /// The group of an attempt, by its short name. It may not exist.
    #[must_use]
    pub fn group(&self, short: &str) -> Group {
        let earlier = self.earlier.as_ref().map(|(base, _)| base.dir.join(short)).filter(|dir| dir.is_dir());
        Group { dir: earlier.unwrap_or_else(|| self.base.dir.join(short)) }
    }

    /// The job whose group a process is in.
    #[must_use]
    pub fn job_of(&self, pid: u32) -> Option<JobId> {
        let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        self.job_in(own_group(&text)?)
    }

    fn job_in(&self, group: &str) -> Option<JobId> {
        let earlier = || {
            let (base, lives) = self.earlier.as_ref()?;
            attempt_in(group, &base.name).filter(|attempt| is_of(attempt, lives))
        };
        let attempt = attempt_in(group, &self.base.name).or_else(earlier)?;
        attempt.split('.').next()?.parse().ok().map(JobId)
    }

    /// Ends and removes the groups of attempts that are over.
    pub fn sweep(&self, live: &[String]) {
        let mut left = sweep(&self.base.dir, |name| !live.iter().any(|live| live == name));
        if let Some((base, lives)) = &self.earlier {
            left.extend(sweep(&base.dir, |name| is_of(name, lives) && !live.iter().any(|live| live == name)));
            // Once it is empty.
            let _ = fs::remove_dir(&base.dir);
        }
        remove_later(left);
    }
}

/// Ends and removes groups of attempts, by their names. Those that cannot be removed at once are returned.
fn sweep(base: &Path, is_over: impl Fn(&str) -> bool) -> Vec<Group> {
    let mut left = Vec::new();
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_group = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_group && name.to_str().is_none_or(&is_over) {
            let group = Group { dir: entry.path() };
            if group.is_populated() {
                tracing::warn!("what job {} left running is ended", name.display());
                let _ = group.kill();
            }
            if !group.is_removed() {
                left.push(group);
            }
        }
    }
    left
}

/// Removes groups on a thread of its own: neither the engine nor the watcher waits for them.
fn remove_later(groups: Vec<Group>) {
    if groups.is_empty() {
        return;
    }
    let remove = move || {
        for group in groups {
            if !group.remove_within(PATIENT_REMOVALS) {
                let dir = group.dir.display();
                tracing::warn!(
                    "the cgroup {dir} cannot be removed, and is left until a later look: a process may be stuck in it"
                );
            }
        }
    };
    // Without a thread a later sweep comes to them.
    if let Err(e) = std::thread::Builder::new().name("remove cgroups".into()).spawn(remove) {
        tracing::warn!("cgroups of jobs that are over stay for the present: no thread can be had ({e})");
    }
}

/// The attempt whose group, or a group below that, this is.
fn attempt_in<'a>(group: &'a str, base: &str) -> Option<&'a str> {
    group.strip_prefix(base)?.strip_prefix('/')?.split('/').next()
}

/// Whether an attempt, by its short name, is of one of these lives.
fn is_of(attempt: &str, lives: &[String]) -> bool {
    attempt.rsplit('.').next().is_some_and(|life| lives.iter().any(|known| known == life))
}

/// The path of the version 2 hierarchy in `/proc/PID/cgroup`.
fn own_group(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix("0::"))
}

/// Where version 2 is mounted, by `/proc/self/mountinfo` (proc(5)).
fn mount_point(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (fields, kind) = line.split_once(" - ")?;
        let point = fields.split(' ').nth(4)?;
        kind.starts_with("cgroup2 ").then(|| PathBuf::from(point))
    })
}

fn make(dir: &Path) -> io::Result<()> {
    match fs::create_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// The cgroup of one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    dir: PathBuf,
}

impl Group {
    /// Makes the group of an attempt below `base`, with its limits.
    ///
    /// # Errors
    /// When the kernel refuses the group, or one of the limits: they must hold.
    pub fn create(base: &Path, id: &AttemptId, limits: HostLimits) -> io::Result<Self> {
        let group = Self { dir: base.join(id.short()) };
        make(&group.dir)?;
        if let Some(memory) = limits.memory {
            group.write("memory.max", &(memory.min(MOST_MEMORY).0 << 20).to_string())?;
            // All of the job ends, rather than a part of it that the rest waits for; and it ends rather than swaps.
            let _ = group.write("memory.oom.group", "1");
            let _ = group.write("memory.swap.max", "0");
        }
        if let Some(percent) = limits.cpu_pct {
            let quota = u64::from(percent) * CPU_PERIOD_US / 100;
            group.write("cpu.max", &format!("{quota} {CPU_PERIOD_US}"))?;
        }
        if let Some(processes) = limits.processes {
            group.write("pids.max", &processes.to_string())?;
        }
        Ok(group)
    }

    fn write(&self, file: &str, text: &str) -> io::Result<()> {
        let path = self.dir.join(file);
        let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
        File::options().write(true).open(&path).and_then(|mut f| f.write_all(text.as_bytes())).map_err(named)
    }

    fn read(&self, file: &str) -> Option<String> {
        process::kernel_file(&self.dir.join(file)).ok()
    }

    /// Forks this process, the child into the group (`clone3` with `CLONE_INTO_CGROUP`, Linux 5.7).
    ///
    /// Entering by `cgroup.procs` instead takes 10 ms and more when no process has entered any group for a while
    /// (`bench/trust/enter_cgroup.py`): the kernel waits for an RCU grace period, and no process of the machine can fork
    /// meanwhile.
    ///
    /// # Errors
    /// When the machine has no process, or this process may not enter.
    ///
    /// # Safety
    /// This process must have one thread: locks that others hold would stay locked in the child, and the C library is
    /// not told of this fork.
    #[expect(unsafe_code, reason = "clone3 has no wrapper; without shared memory it is a fork")]
    pub unsafe fn fork(&self) -> io::Result<ForkResult> {
        let mut options = File::options();
        let dir = options.read(true).custom_flags(libc::O_DIRECTORY | libc::O_PATH).open(&self.dir)?;
        // SAFETY: the structure is of numbers, for which zero is a value.
        let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
        args.flags = CLONE_INTO_CGROUP;
        args.exit_signal = u64::from(libc::SIGCHLD.unsigned_abs());
        args.cgroup = u64::from(dir.as_raw_fd().unsigned_abs());
        // SAFETY: the kernel reads the structure, whose size it is told; the child gets a copy of all memory.
        let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of_val(&args)) };
        match pid {
            0 => Ok(ForkResult::Child),
            pid if pid > 0 => i32::try_from(pid)
                .map(|pid| ForkResult::Parent { child: Pid::from_raw(pid) })
                .map_err(io::Error::other),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Its directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The memory that it and the groups above it may still take, and the limit that this comes from. `None`: none of them
    /// has one that can be read.
    #[must_use]
    pub fn room(&self) -> Option<(MiB, MiB)> {
        let bytes = |dir: &Path, file: &str| {
            process::kernel_file(&dir.join(file)).ok().and_then(|text| text.trim().parse::<u64>().ok())
        };
        let room = |dir: &Path| {
            let (most, now) = (bytes(dir, "memory.max")?, bytes(dir, "memory.current")?);
            Some((MiB(most.saturating_sub(now) >> 20), MiB(most >> 20)))
        };
        self.dir.ancestors().filter_map(room).min()
    }

    /// Kills every process in it, however it hides: nothing can fork its way out.
    ///
    /// # Errors
    /// When there is no such group.
    pub fn kill(&self) -> io::Result<()> {
        self.write("cgroup.kill", "1")
    }

    /// Has all that is in it stand still, until it is killed.
    ///
    /// # Errors
    /// When there is no such group.
    pub fn freeze(&self) -> io::Result<()> {
        self.write("cgroup.freeze", "1")
    }

    /// Whether any process is left in it, zombies aside.
    #[must_use]
    pub fn is_populated(&self) -> bool {
        self.read("cgroup.events").is_some_and(|text| field(&text, "populated") == Some(1))
    }

    /// The processes in it and below.
    #[must_use]
    pub fn pids(&self) -> Vec<u32> {
        let mut pids = Vec::new();
        for dir in groups_from(&self.dir) {
            let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
            pids.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()));
        }
        pids
    }

    /// What was taken so far.
    #[must_use]
    pub fn usage(&self) -> HostUse {
        let mib = |file: &str| Some(MiB(self.read(file)?.trim().parse::<u64>().ok()?.div_ceil(1 << 20)));
        let number = |file: &str| self.read(file)?.trim().parse().ok();
        HostUse {
            memory_peak: mib("memory.peak"),
            memory_limit: mib("memory.max"),
            cpu: self.read("cpu.stat").and_then(|text| Some(Millis(field(&text, "usage_usec")? / 1000))),
            processes_peak: number("pids.peak"),
            oom_kills: self
                .read("memory.events")
                .and_then(|text| u32::try_from(field(&text, "oom_kill")?).ok())
                .unwrap_or(0),
        }
    }

    /// Removes it, once it is empty, and waits for that for a moment.
    pub fn remove(&self) {
        self.remove_within(REMOVALS);
    }

    /// Removes it, now or on a thread of its own.
    pub fn remove_soon(&self) {
        if !self.is_removed() {
            remove_later(vec![self.clone()]);
        }
    }

    fn remove_within(&self, removals: u32) -> bool {
        (0..removals).any(|at| {
            std::thread::sleep(REMOVAL * at);
            self.is_removed()
        })
    }

    /// Tries once to remove it. A process that was just killed is in it for a moment.
    fn is_removed(&self) -> bool {
        let removed = |dir: &Path| match fs::remove_dir(dir) {
            Ok(()) => true,
            Err(e) => e.kind() == io::ErrorKind::NotFound,
        };
        if removed(&self.dir) {
            return true;
        }
        // Groups that a user made below go first, the deepest of them before those that they are in.
        groups_from(&self.dir).iter().rev().all(|dir| removed(dir))
    }
}

/// A group and all that are below it, each before those that are in it.
fn groups_from(dir: &Path) -> Vec<PathBuf> {
    let mut dirs = vec![dir.to_owned()];
    let mut at = 0;
    while let Some(dir) = dirs.get(at) {
        let below = fs::read_dir(dir).into_iter().flatten().flatten();
        let below = below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let below: Vec<PathBuf> = below.map(|entry| entry.path()).collect();
        dirs.extend(below);
        at += 1;
    }
    dirs
}

/// A number in a file of `name number` lines.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> AttemptId {
        AttemptId {
            journal: "j".into(),
            life: "0123456789abcdef".into(),
            host: "h".into(),
            boot: "b".into(),
            job: JobId(7),
            attempt: 2,
        }
    }

    /// A daemon, or a container runtime, of a user's own within a job.
    #[test]
    fn groups_within_groups_of_a_job_are_removed_with_it() {
        let base = tempfile::tempdir().unwrap();
        let group = Group { dir: base.path().join("7.2") };
        for below in ["a/b/c", "a/d", "e"] {
            fs::create_dir_all(group.dir.join(below)).unwrap();
        }
        assert!(group.is_removed() && group.is_removed());
        // What a process is in stays; a file stands for one here.
        fs::create_dir_all(group.dir.join("a/b")).unwrap();
        fs::write(group.dir.join("a/process"), "").unwrap();
        assert!(!group.is_removed());
        assert!(group.dir.join("a").is_dir());
    }

    #[test]
    fn where_it_is_mounted() {
        let mounts = "24 30 0:22 / /sys rw,nosuid - sysfs sysfs rw\n\
                      35 24 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      36 24 0:31 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw\n";
        assert_eq!(mount_point(mounts), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(
            own_group("9:name=systemd:/\n0::/system.slice/carma.service\n"),
            Some("/system.slice/carma.service")
        );
    }

    #[test]
    fn groups_name_their_jobs() {
        let base = |name: &str| Base { dir: PathBuf::new(), name: name.to_owned() };
        let earlier = Some((base("/carma-1f"), vec!["01234567".to_owned()]));
        let here = Hierarchy { base: base("/carma-1f-1-2"), earlier, controllers: Vec::new() };
        for (group, job) in [
            ("/carma-1f-1-2/7.2.89abcdef", Some(7)),
            ("/carma-1f-1-2/7.2.89abcdef/below", Some(7)),
            ("/carma-1f-1-3/7.2.89abcdef", None),
            ("/carma-1f/7.2.01234567/below", Some(7)),
            ("/carma-1f/7.2.89abcdef", None),
            ("/carma-1fx/7.2.01234567", None),
            ("/user.slice/7.2.01234567", None),
        ] {
            assert_eq!(here.job_in(group), job.map(JobId), "{group}");
        }
    }

    /// Directories in place of a hierarchy. A daemon on a copy of a state directory, made by an older carma or not.
    #[test]
    fn groups_of_another_state_directory_are_left_alone() {
        let mount = tempfile::tempdir().unwrap();
        let make = |base: &str, group: &str| {
            let dir = mount.path().join(base);
            fs::create_dir_all(dir.join(group)).unwrap();
            fs::write(dir.join("cgroup.kill"), "").unwrap();
        };
        let names = |place: &str, lives: &[&str]| Names {
            present: format!("carma-1f-{place}"),
            before: "carma-1f".into(),
            lives: lives.iter().map(ToString::to_string).collect(),
        };
        make("carma-1f-1-2", "1.1.aaaaaaaa");
        make("carma-1f-1-2", "2.1.aaaaaaaa");
        make("carma-1f-1-3", "1.1.bbbbbbbb");
        make("carma-1f", "1.1.cccccccc");
        make("carma-1f", "2.1.cccccccc");
        make("carma-1f", "1.1.dddddddd");
        let left = |base: &str| {
            let dirs = fs::read_dir(mount.path().join(base)).unwrap().flatten();
            let mut names: Vec<_> =
                dirs.filter(|e| e.path().is_dir()).map(|e| e.file_name().into_string().unwrap()).collect();
            names.sort();
            names
        };
        let at = |names: &Names| Hierarchy::prepare_at(mount.path(), "/x", true, names).unwrap();
        let copy = at(&names("1-3", &[]));
        copy.sweep(&[]);
        assert!(left("carma-1f-1-3").is_empty());
        assert_eq!(left("carma-1f-1-2"), ["1.1.aaaaaaaa", "2.1.aaaaaaaa"]);
        let first = at(&names("1-2", &["cccccccc"]));
        assert!(first.group("1.1.cccccccc").dir.ends_with("carma-1f/1.1.cccccccc"), "as it was made");
        assert!(first.group("1.1.aaaaaaaa").dir.ends_with("carma-1f-1-2/1.1.aaaaaaaa"));
        first.sweep(&["1.1.aaaaaaaa".into(), "1.1.cccccccc".into()]);
        assert_eq!(left("carma-1f-1-2"), ["1.1.aaaaaaaa"]);
        assert_eq!(
            left("carma-1f"),
            ["1.1.cccccccc", "1.1.dddddddd"],
            "one of a life that is not ours stays"
        );
    }

    #[test]
    fn limits_and_what_was_taken() {
        // A directory in place of a hierarchy: what the kernel would read and write.
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join(id().short());
        fs::create_dir(&dir).unwrap();
        for file in ["memory.max", "memory.oom.group", "memory.swap.max", "cpu.max", "pids.max"] {
            fs::write(dir.join(file), "").unwrap();
        }
        let limits = HostLimits { memory: Some(MiB(1024)), cpu_pct: Some(450), processes: Some(64) };
        let group = Group::create(base.path(), &id(), limits).unwrap();
        let read = |file: &str| fs::read_to_string(dir.join(file)).unwrap();
        assert_eq!((read("memory.max"), read("memory.oom.group")), ("1073741824".into(), "1".into()));
        assert_eq!((read("cpu.max"), read("pids.max")), ("450000 100000".into(), "64".into()));
        for (file, text) in [
            ("memory.peak", "1073741824\n"),
            ("memory.events", "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 1\n"),
            ("cpu.stat", "usage_usec 2500000\nuser_usec 2000000\n"),
            ("pids.peak", "17\n"),
        ] {
            fs::write(dir.join(file), text).unwrap();
        }
        let expected = HostUse {
            memory_peak: Some(MiB(1024)),
            memory_limit: Some(MiB(1024)),
            cpu: Some(Millis(2500)),
            processes_peak: Some(17),
            oom_kills: 2,
        };
        assert_eq!(group.usage(), expected);
        // One of more than any machine has, of a job that an older carma took.
        let much = HostLimits { memory: Some(MiB(1 << 44)), ..limits };
        Group::create(base.path(), &id(), much).unwrap();
        assert!(read("memory.max").starts_with("18446744073708503040"), "{}", read("memory.max"));
        // A limit that the kernel does not take is no limit.
        fs::remove_file(dir.join("pids.max")).unwrap();
        let error = Group::create(base.path(), &id(), limits).unwrap_err().to_string();
        assert!(error.contains("pids.max"), "{error}");
    }

    /// A thread that sweeps, or watches, goes on while it cannot be removed: here it is the one that makes it possible.
    #[test]
    fn nobody_waits_for_a_group_that_cannot_be_removed() {
        let mount = tempfile::tempdir().unwrap();
        let base = mount.path().join("carma-1f");
        fs::create_dir(&base).unwrap();
        fs::write(base.join("cgroup.kill"), "").unwrap();
        let names = Names { present: "carma-1f".into(), before: "carma-1f".into(), lives: Vec::new() };
        let hierarchy = Hierarchy::prepare_at(mount.path(), "/x", true, &names).unwrap();
        for sweeps in [true, false] {
            let group = Group::create(&base, &id(), HostLimits::default()).unwrap();
            fs::create_dir(group.dir.join("below")).unwrap();
            fs::write(group.dir.join("stuck"), "").unwrap();
            if sweeps {
                hierarchy.sweep(&[])
            } else {
                group.remove_soon()
            }
            assert!(group.dir.exists());
            fs::remove_file(group.dir.join("stuck")).unwrap();
            let is_gone = (0..8000).any(|_| {
                std::thread::sleep(Duration::from_millis(5));
                !group.dir.exists()
            });
            assert!(is_gone, "nobody came back to it");
        }
    }

    #[test]
    fn nothing_escapes_a_group() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: making a cgroup at the top needs root");
            return;
        }
        let names = Names { present: "carma-test".into(), before: "carma-test".into(), lives: Vec::new() };
        let hierarchy = match Hierarchy::prepare(true, &names) {
            Ok(hierarchy) => hierarchy,
            Err(why) => return eprintln!("SKIPPED: {why}"),
        };
        let group = Group::create(hierarchy.dir(), &id(), HostLimits::default()).unwrap();
        let mut child = std::process::Command::new("sh")
            .args(["-c", "read go; setsid sleep 600 & setsid sleep 600 & wait"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // In one call: the kernel reads a number from each.
        group.write("cgroup.procs", &child.id().to_string()).unwrap();
        drop(child.stdin.take());
        while group.pids().len() < 3 {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(
            group.pids().into_iter().map(|pid| hierarchy.job_of(pid)).collect::<Vec<_>>(),
            [Some(JobId(7)); 3]
        );
        group.kill().unwrap();
        child.wait().unwrap();
        while group.is_populated() {
            std::thread::sleep(Duration::from_millis(5));
        }
        hierarchy.sweep(&[]);
        while group.dir.exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
        fs::remove_dir(hierarchy.dir()).unwrap();
    }
}
