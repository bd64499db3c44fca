//! The host's thread: one epoll loop over the listener, a wake-up and the clients. It has no timer and
//! sleeps until a client says something.

use super::physics::{Arrival, Notice, OutOfMemory, Physics, Refusal, Sample, TaskDemand};
use super::protocol::{
    CheckpointCall, ClientMessage, GpuNote, HostMessage, Lines, MOST_LINE, ProcessNote, VERSION, line,
};
use super::{MOST_GPUS, StartError};
use carma_core::reading::GpuInfo;
use carma_gpu::ProcessState;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// What the host's thread, the probes and the daemon's calls share.
#[derive(Debug)]
pub(super) struct Shared {
    physics: Mutex<Physics>,
    start: Instant,
    speed: f64,
    wake: OwnedFd,
    stop: AtomicBool,
    mps_available: AtomicBool,
}

impl Shared {
    pub(super) fn new(physics: Physics, speed: f64) -> std::io::Result<Self> {
        Ok(Self {
            physics: Mutex::new(physics),
            start: Instant::now(),
            speed,
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            stop: AtomicBool::new(false),
            mps_available: AtomicBool::new(true),
        })
    }

    pub(super) const fn speed(&self) -> f64 {
        self.speed
    }

    pub(super) fn mps_available(&self) -> bool {
        self.mps_available.load(Ordering::Relaxed)
    }

    pub(super) fn knows(&self, gpu: &str) -> bool {
        self.lock().0.find(gpu).is_some()
    }

    pub(super) fn sample(&self) -> Vec<Sample> {
        let (mut physics, now) = self.lock();
        physics.sample(now)
    }

    pub(super) fn clients(&self, uid: u32, pids: &[u32]) -> Vec<u32> {
        let (physics, _) = self.lock();
        physics.clients(uid, pids)
    }

    pub(super) fn terminate(&self, uid: u32, pids: &[u32]) -> usize {
        let (mut physics, now) = self.lock();
        let count = physics.terminate(now, uid, pids);
        self.wake_for(&physics);
        count
    }

    pub(super) fn drop_gpu(&self, gpu: &str) -> Result<(), ()> {
        let (mut physics, now) = self.lock();
        let at = physics.find(gpu).ok_or(())?;
        physics.drop_gpu(now, at, "the virtual GPU was dropped by fault injection");
        self.wake_for(&physics);
        Ok(())
    }

    pub(super) fn restore_gpu(&self, gpu: &str) -> Result<(), ()> {
        let (mut physics, now) = self.lock();
        let at = physics.find(gpu).ok_or(())?;
        physics.restore_gpu(now, at);
        self.wake_for(&physics);
        Ok(())
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    /// The model and the virtual time. A panic elsewhere while it was locked leaves it usable: every
    /// change is complete or harmless.
    fn lock(&self) -> (MutexGuard<'_, Physics>, f64) {
        let physics = self.physics.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.start.elapsed().as_secs_f64() * self.speed;
        (physics, now)
    }

    fn wake_for(&self, physics: &Physics) {
        if physics.has_notices() {
            self.wake();
        }
    }

    fn wake(&self) {
        // Fails only when the counter is full, and then the thread is being woken already.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

const LISTENER: u64 = 0;
const WAKE: u64 = 1;
const FIRST_CLIENT: u64 = 2;

/// A client that leaves this much unread is cut off, bytes.
const MOST_UNREAD: usize = 1 << 20;

/// Clients of one user at most. The host's own user and root may have more: they have other ways to use its descriptors up.
const MOST_OF_USER: usize = 512;
/// Clients of all other users together.
const MOST_OF_USERS: usize = 4096;
/// Clients that are let in before the others are served again.
const MOST_AT_ONCE: usize = 64;

/// How long the listener rests when the process has no file descriptor left for a client.
const REST: rustix::time::Timespec = rustix::time::Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

#[derive(Debug)]
struct Client {
    stream: UnixStream,
    pid: u32,
    uid: u32,
    lines: Lines,
    output: Vec<u8>,
    /// The newest rate that waits until the output is empty: older ones are of no use.
    rate: Option<f64>,
    /// Whether it said `hello`.
    task: bool,
    /// Whether the version of its first message was looked at.
    greeted: bool,
    /// No more is read, and it is closed once the output is gone.
    closing: bool,
    /// Whether the poll waits until it can be written to.
    waits: bool,
}

/// The host's thread before it runs.
#[derive(Debug)]
pub(super) struct Host {
    shared: Arc<Shared>,
    inventory: Arc<[GpuInfo]>,
    epoll: OwnedFd,
    listener: UnixListener,
    clients: BTreeMap<u64, Client>,
    next: u64,
    own_uid: u32,
    resting: bool,
    /// Users of whom a client was turned away: that is told once.
    turned_away: BTreeSet<u32>,
}

/// Whether one more client of a user is served beside those of these users: any user could take all descriptors of the daemon.
fn has_room(uid: u32, own: u32, there: impl Iterator<Item = u32>) -> bool {
    let is_bound = |uid: u32| uid != 0 && uid != own;
    let (mut of_user, mut of_users) = (0, 0);
    for other in there.filter(|other| is_bound(*other)) {
        of_user += usize::from(other == uid);
        of_users += 1;
    }
    !is_bound(uid) || (of_user < MOST_OF_USER && of_users < MOST_OF_USERS)
}

impl Host {
    pub(super) fn listen(
        socket: &Path,
        shared: Arc<Shared>,
        inventory: Arc<[GpuInfo]>,
    ) -> Result<Self, StartError> {
        let failed = |why: String| StartError::Socket { socket: socket.to_owned(), why };
        match std::fs::symlink_metadata(socket) {
            Ok(found) if !found.file_type().is_socket() => {
                return Err(failed("something that is not a socket is there".to_owned()));
            }
            Ok(_) => {
                if UnixStream::connect(socket).is_ok() {
                    return Err(StartError::InUse(socket.to_owned()));
                }
                std::fs::remove_file(socket)
                    .map_err(|e| failed(format!("cannot remove the old socket: {e}")))?;
            }
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(failed(e.to_string())),
        }
        let listener = UnixListener::bind(socket).map_err(|e| failed(e.to_string()))?;
        let system = |what: &str, e: rustix::io::Errno| StartError::System(format!("{what}: {e}"));
        let prepare = || -> std::io::Result<()> {
            listener.set_nonblocking(true)?;
            // Jobs of every user connect.
            std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o666))
        };
        prepare().map_err(|e| failed(e.to_string()))?;
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(|e| system("epoll_create", e))?;
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)
            .and_then(|()| epoll::add(&epoll, &shared.wake, EventData::new_u64(WAKE), EventFlags::IN))
            .map_err(|e| system("epoll_ctl", e))?;
        Ok(Self {
            shared,
            inventory,
            epoll,
            listener,
            clients: BTreeMap::new(),
            next: FIRST_CLIENT,
            own_uid: rustix::process::geteuid().as_raw(),
            resting: false,
            turned_away: BTreeSet::new(),
        })
    }

    pub(super) fn run(mut self) {
        let mut events = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 64];
        loop {
            let timeout = self.resting.then_some(&REST);
            let count = match epoll::wait(&self.epoll, &mut events[..], timeout) {
                Ok(count) => count,
                Err(rustix::io::Errno::INTR) => continue,
                Err(e) => {
                    tracing::error!("virtual GPUs: epoll_wait: {e}; their host ends");
                    return;
                }
            };
            if self.resting {
                self.listen_again(true);
            }
            for event in &events[..count] {
                let (id, flags) = (event.data.u64(), event.flags);
                match id {
                    LISTENER => self.accept(),
                    WAKE => {
                        let _ = rustix::io::read(&self.shared.wake, &mut [0_u8; 8]);
                    }
                    id => self.serve(id, flags),
                }
            }
            if self.shared.stop.load(Ordering::Acquire) {
                return;
            }
            self.deliver();
        }
    }

    fn accept(&mut self) {
        for _ in 0..MOST_AT_ONCE {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {
                    continue;
                }
                Err(e) => {
                    // Out of file descriptors, most likely. The listener would report ready for ever.
                    tracing::warn!("virtual GPUs: cannot accept a client: {e}; trying again in 0.1 s");
                    self.listen_again(false);
                    return;
                }
            };
            if let Err(e) = self.admit(stream) {
                tracing::warn!("virtual GPUs: cannot serve a client: {e}");
            }
        }
    }

    fn listen_again(&mut self, on: bool) {
        let flags = if on { EventFlags::IN } else { EventFlags::empty() };
        self.resting = !on;
        if let Err(e) = epoll::modify(&self.epoll, &self.listener, EventData::new_u64(LISTENER), flags) {
            tracing::error!("virtual GPUs: epoll_ctl: {e}");
        }
    }

    fn admit(&mut self, stream: UnixStream) -> std::io::Result<()> {
        stream.set_nonblocking(true)?;
        // By nix: a peer in another pid namespace has pid 0, which rustix's type cannot hold.
        let peer = nix::sys::socket::getsockopt(&stream, nix::sys::socket::sockopt::PeerCredentials)?;
        let uid = peer.uid();
        if !has_room(uid, self.own_uid, self.clients.values().map(|client| client.uid)) {
            if self.turned_away.insert(uid) {
                tracing::warn!(
                    "virtual GPUs: a client of uid {uid} is turned away: {MOST_OF_USER} of one user and {MOST_OF_USERS} of all are served; told once for each user"
                );
            }
            return Ok(());
        }
        let id = self.next;
        self.next += 1;
        epoll::add(&self.epoll, &stream, EventData::new_u64(id), EventFlags::IN)?;
        let client = Client {
            stream,
            pid: u32::try_from(peer.pid()).unwrap_or(0),
            uid,
            lines: Lines::default(),
            output: Vec::new(),
            rate: None,
            task: false,
            greeted: false,
            closing: false,
            waits: false,
        };
        self.clients.insert(id, client);
        Ok(())
    }

    /// Reads what a client said, answers, and closes it where that is the end.
    fn serve(&mut self, id: u64, flags: EventFlags) {
        if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) && !self.read(id) {
            self.close(id);
            return;
        }
        self.flush(id);
    }

    /// Returns whether the client is still there.
    fn read(&mut self, id: u64) -> bool {
        // One buffer's worth an event keeps a talkative client from starving the others.
        let mut buffer = [0; 64 * 1024];
        let Some(client) = self.clients.get_mut(&id) else {
            return true;
        };
        match client.stream.read(&mut buffer) {
            Ok(0) => return false,
            // What follows an error is read, so that the end is seen, and ignored.
            Ok(_) if client.closing => return true,
            Ok(n) => client.lines.push(&buffer[..n]),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                return true;
            }
            Err(_) => return false,
        }
        loop {
            let Some(client) = self.clients.get_mut(&id).filter(|client| !client.closing) else {
                return true;
            };
            let outcome = match client.lines.next() {
                Ok(None) => return true,
                Ok(Some(line)) => self.handle(id, &line),
                Err(()) => Err(format!("a line is longer than {MOST_LINE} bytes")),
            };
            if let Err(message) = outcome {
                tracing::debug!("virtual GPUs: client {id}: {message}");
                self.shared_leave(id);
                self.send(id, &HostMessage::Error { message });
                if let Some(client) = self.clients.get_mut(&id) {
                    client.closing = true;
                }
            }
        }
    }

    /// Carries out one message. An error is the client's last answer.
    fn handle(&mut self, id: u64, bytes: &[u8]) -> Result<(), String> {
        let Some(client) = self.clients.get_mut(&id) else {
            return Ok(());
        };
        if !client.greeted {
            check_version(bytes)?;
            client.greeted = true;
        }
        let (pid, uid, task) = (client.pid, client.uid, client.task);
        let message: ClientMessage =
            serde_json::from_slice(bytes).map_err(|e| format!("unreadable message: {e}"))?;
        match message {
            ClientMessage::Hello {
                gpus,
                demand,
                mps,
                thread_percent,
                caps_mib,
                held_mib,
                active,
                hold,
                ..
            } => {
                if task {
                    return Err("a second `hello`".to_owned());
                }
                let gpus = self.visible(&gpus)?;
                let demand = checked(demand)?;
                let notes = gpus.iter().filter_map(|&gpu| self.inventory.get(gpu)).map(note).collect();
                let arrival = Arrival {
                    pid,
                    uid,
                    gpus,
                    demand,
                    mps,
                    thread_percent,
                    caps: caps_mib,
                    held: held_mib,
                    active,
                    hold: hold.unwrap_or(ProcessState::Running),
                };
                let speed = self.shared.speed;
                self.send(id, &HostMessage::Welcome { v: VERSION, speed, gpus: notes });
                let (mut physics, now) = self.shared.lock();
                physics.join(now, id, arrival);
                drop(physics);
                if let Some(client) = self.clients.get_mut(&id) {
                    client.task = true;
                }
            }
            ClientMessage::Alloc { .. }
            | ClientMessage::Active { .. }
            | ClientMessage::Fault
            | ClientMessage::Holds { .. }
                if !task =>
            {
                return Err("a task says `hello` first".to_owned());
            }
            ClientMessage::Alloc { id: request, gpu, mib } => {
                let outcome = self.shared.lock().0.alloc(id, gpu, mib);
                let answer = match outcome {
                    Ok(held_mib) => HostMessage::Allocated { id: request, held_mib },
                    Err(Refusal::OutOfMemory(refused)) => out_of_memory(request, refused),
                    Err(Refusal::NoContext) => {
                        return Err(format!("there is no context on GPU {gpu}"));
                    }
                };
                self.send(id, &answer);
            }
            ClientMessage::Active { active } => {
                let (mut physics, now) = self.shared.lock();
                physics.set_active(now, id, active);
            }
            ClientMessage::Fault => {
                let (mut physics, now) = self.shared.lock();
                physics.fault(now, id);
            }
            ClientMessage::Holds { state } => self.shared.lock().0.set_holds(id, state),
            ClientMessage::Checkpoint { call, pid, pairs, .. } => {
                self.may_control(uid)?;
                let answer = self.checkpoint(call, pid, &pairs)?;
                self.send(id, &answer);
            }
            ClientMessage::Drop { gpu, .. } => {
                self.may_control(uid)?;
                self.shared.drop_gpu(&gpu).map_err(|()| format!("there is no virtual GPU `{gpu}`"))?;
                self.send(id, &HostMessage::Done);
            }
            ClientMessage::Restore { gpu, .. } => {
                self.may_control(uid)?;
                self.shared.restore_gpu(&gpu).map_err(|()| format!("there is no virtual GPU `{gpu}`"))?;
                self.send(id, &HostMessage::Done);
            }
            ClientMessage::Mps { available, .. } => {
                self.may_control(uid)?;
                self.shared.mps_available.store(available, Ordering::Relaxed);
                self.send(id, &HostMessage::Done);
            }
        }
        Ok(())
    }

    /// One of the driver's checkpoint calls.
    fn checkpoint(
        &self,
        call: CheckpointCall,
        pid: u32,
        pairs: &[(String, String)],
    ) -> Result<HostMessage, String> {
        use ProcessState::{Checkpointed, Locked, Running};
        let (mut physics, now) = self.shared.lock();
        let step = match call {
            CheckpointCall::State => return Ok(HostMessage::State { state: physics.holds(pid)? }),
            CheckpointCall::Lock => (Running, Locked),
            CheckpointCall::Checkpoint => (Locked, Checkpointed),
            CheckpointCall::Restore => (Checkpointed, Locked),
            CheckpointCall::Unlock => (Locked, Running),
        };
        let find = |name: &String| {
            physics.find(name).ok_or_else(|| format!("there is no virtual GPU `{}`", name.escape_debug()))
        };
        let pairs = pairs.iter().map(|(from, to)| Ok((find(from)?, find(to)?)));
        let pairs: Vec<(usize, usize)> = pairs.collect::<Result<_, String>>()?;
        physics.hold(now, pid, step, &pairs)?;
        Ok(HostMessage::Done)
    }

    fn may_control(&self, uid: u32) -> Result<(), String> {
        if uid == 0 || uid == self.own_uid {
            return Ok(());
        }
        Err(format!("user {uid} may not control the virtual GPUs of user {}", self.own_uid))
    }

    fn visible(&self, names: &[String]) -> Result<Vec<usize>, String> {
        if names.is_empty() || names.len() > MOST_GPUS {
            return Err(format!("a task uses 1 to {MOST_GPUS} GPUs, not {}", names.len()));
        }
        let (physics, _) = self.shared.lock();
        let mut seen = BTreeSet::new();
        let mut gpus = Vec::with_capacity(names.len());
        for name in names {
            let gpu = physics.find(name).ok_or_else(|| {
                let name: String = name.chars().take(80).collect();
                format!("there is no virtual GPU `{name}`")
            })?;
            if !seen.insert(gpu) {
                let uuid = physics.uuid(gpu).unwrap_or_default();
                return Err(format!("GPU {uuid} is named twice"));
            }
            gpus.push(gpu);
        }
        Ok(gpus)
    }

    /// Hands what the model has to say to the clients that it concerns.
    fn deliver(&mut self) {
        let notices = self.shared.lock().0.take_notices();
        let mut concerned = BTreeSet::new();
        for (id, notice) in notices {
            let message = match notice {
                Notice::Rate(rate) => {
                    if let Some(client) = self.clients.get_mut(&id) {
                        client.rate = Some(rate);
                    }
                    concerned.insert(id);
                    continue;
                }
                Notice::Fault => HostMessage::Fault,
                Notice::Terminated => HostMessage::Terminated,
                Notice::Lost(gpu) => HostMessage::Lost { gpu: gpu.to_string() },
                Notice::Hold(state, gpus) => {
                    // What it was told of its pace is of no use any more.
                    if let Some(client) = self.clients.get_mut(&id) {
                        client.rate = None;
                    }
                    HostMessage::Hold { state, gpus: gpus.iter().map(ToString::to_string).collect() }
                }
            };
            self.send(id, &message);
            concerned.insert(id);
        }
        for id in concerned {
            self.flush(id);
        }
    }

    fn send(&mut self, id: u64, message: &HostMessage) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.output.extend_from_slice(&line(message));
        }
    }

    /// Writes what can be written now.
    fn flush(&mut self, id: u64) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        if client.output.is_empty()
            && let Some(progress) = client.rate.take()
        {
            client.output = line(&HostMessage::Rate { progress });
        }
        let mut gone = false;
        let mut written = 0;
        while written < client.output.len() {
            match client.stream.write(&client.output[written..]) {
                Ok(n) => written += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(_) => {
                    gone = true;
                    break;
                }
            }
            if written == client.output.len()
                && let Some(progress) = client.rate.take()
            {
                client.output.extend_from_slice(&line(&HostMessage::Rate { progress }));
            }
        }
        client.output.drain(..written);
        let unread = client.output.len();
        if gone || unread > MOST_UNREAD || (client.closing && unread == 0) {
            self.close(id);
            return;
        }
        if client.waits != (unread > 0) {
            client.waits = unread > 0;
            let flags = if client.waits { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
            if epoll::modify(&self.epoll, &client.stream, EventData::new_u64(id), flags).is_err() {
                self.close(id);
            }
        }
    }

    fn close(&mut self, id: u64) {
        self.shared_leave(id);
        // Closing the socket takes it out of the epoll set.
        self.clients.remove(&id);
    }

    fn shared_leave(&mut self, id: u64) {
        if let Some(client) = self.clients.get_mut(&id)
            && std::mem::take(&mut client.task)
        {
            let (mut physics, now) = self.shared.lock();
            physics.leave(now, id);
        }
    }
}

fn check_version(bytes: &[u8]) -> Result<(), String> {
    #[derive(serde::Deserialize)]
    struct Versioned {
        v: Option<u64>,
    }
    let Versioned { v } = serde_json::from_slice(bytes).map_err(|e| format!("unreadable message: {e}"))?;
    match v {
        Some(v) if v == u64::from(VERSION) => Ok(()),
        Some(v) => Err(format!("it speaks version {v} of the protocol, this host speaks {VERSION}")),
        None => Err(format!("the first message lacks the version (`\"v\":{VERSION}`)")),
    }
}

fn checked(demand: TaskDemand) -> Result<TaskDemand, String> {
    let TaskDemand { gract, sm, occupancy, dram } = demand;
    for (name, value) in [("gract", gract), ("sm", sm), ("occupancy", occupancy), ("dram", dram)] {
        if !(0.0..=1.0).contains(&value) {
            return Err(format!("demand `{name}` is {value}, not a share from 0 to 1"));
        }
    }
    // A unit is active only while the engine is.
    Ok(TaskDemand { gract: gract.max(sm).max(dram), ..demand })
}

fn note(gpu: &GpuInfo) -> GpuNote {
    GpuNote { uuid: gpu.uuid.to_string(), name: gpu.name.clone(), memory_mib: gpu.memory.0 }
}

fn out_of_memory(id: u64, refused: OutOfMemory) -> HostMessage {
    let OutOfMemory { total, free, held, capped, others } = refused;
    HostMessage::OutOfMemory {
        id,
        total_mib: total,
        free_mib: free,
        held_mib: held,
        capped,
        others: others.into_iter().map(|(pid, mib)| ProcessNote { pid, mib }).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_user_takes_all_places() {
        let room = |uid, there: &[(u32, usize)]| {
            let there = there.iter().flat_map(|(uid, count)| std::iter::repeat_n(*uid, *count));
            has_room(uid, 7, there)
        };
        assert!(room(1, &[(1, MOST_OF_USER - 1)]));
        assert!(!room(1, &[(1, MOST_OF_USER)]));
        assert!(room(2, &[(1, MOST_OF_USER)]));
        assert!(!room(2, &[(1, MOST_OF_USERS)]));
        // Root and the user of the host are not bound, and take no place of others.
        let full = [(1, MOST_OF_USERS), (0, MOST_OF_USERS), (7, MOST_OF_USERS)];
        assert!(room(0, &full) && room(7, &full));
        assert!(room(2, &full[1..]));
    }
}
