//! The thread that hears the command: its heartbeats and its log. It tells the daemon what it heard, keeps the log
//! short, and at the end looks for what the log says of a failure. With the user's rights, and apart from the main
//! thread: a log on a file system that hangs keeps nothing else waiting.

use super::log::Opened;
use super::user::User;

use crate::run::order::Order;
use crate::run::pace::{News, SOCKET};
use carma_core::recovery::{Evidence, last_line, scan};
use carma_process::progress::{Event, Heartbeats, Output, Prints};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::time::{ClockId, clock_gettime};
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long the log may take to be read at the end.
const PATIENCE: Duration = Duration::from_secs(5);
/// Events kept while no daemon takes them.
const BACKLOG: usize = 1000;
/// Events of one message.
const MESSAGE: usize = 100;
/// Looks at a log in which a task counts, for each sign of life. A count is as old as the look that saw it, which of a training of seconds between two evaluations is
/// a notable part: at one look a second a speed came out 12 % too low (docs/research/h200-limits.md).
const LOOKS: u32 = 4;
/// Between two looks at a log that grows fast.
const FAST: Duration = Duration::from_millis(50);
/// Shortest time between two looks, where the daemon's clock goes faster than life.
const SHORTEST: Duration = Duration::from_millis(10);

/// Makes the places where heartbeats arrive. A job goes on without, by what it prints: where none can be made, the log says why.
pub(super) fn heartbeats(order: &Order) -> Option<Heartbeats> {
    let dir = place(order);
    let made = own(&dir, order.user.map(|user| user.gid))
        .map_err(|e| format!("{}: {e}", dir.display()))
        .and_then(|()| Heartbeats::open(&dir, order.user).map_err(|e| e.to_string()));
    match made {
        Ok(heartbeats) => Some(heartbeats),
        Err(why) => {
            complain!("carma supervisor of job {}: its heartbeats cannot be heard: {why}", order.id.job);
            None
        }
    }
}

fn place(order: &Order) -> PathBuf {
    order.pace.join(format!("{}.{}", order.id.job, order.id.attempt))
}

/// A directory of our own. The user may enter it by way of the group, find there what is the job's, and change nothing in it.
fn own(dir: &Path, gid: Option<u32>) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            let there = std::fs::symlink_metadata(dir)?;
            if !there.is_dir() || there.uid() != rustix::process::geteuid().as_raw() {
                return Err(io::Error::other("something else is there"));
            }
        }
        made => made?,
    }
    if let Some(gid) = gid {
        std::os::unix::fs::lchown(dir, None, Some(gid))?;
        std::fs::set_permissions(dir, std::os::unix::fs::PermissionsExt::from_mode(0o710))?;
    }
    Ok(())
}

/// The thread, from outside.
pub(super) struct Listener {
    /// Until it begins.
    thread: Option<Thread>,
    begun: Option<Begun>,
    place: PathBuf,
}

/// What the log says of a command that failed.
#[derive(Default)]
pub(super) struct Said {
    pub(super) evidence: Option<Evidence>,
    pub(super) last_line: Option<String>,
}

impl Said {
    fn of(tail: &str) -> Self {
        Self { evidence: scan(tail), last_line: last_line(tail) }
    }
}

struct Begun {
    /// Closed to have it end; after a byte, if the command failed.
    stop: OwnedFd,
    said: mpsc::Receiver<Said>,
}

impl Listener {
    /// Of the command that was just started.
    pub(super) fn new(order: &Order, user: User, log: Opened, heartbeats: Option<Heartbeats>) -> Self {
        let thread = Thread {
            name: order.id.short(),
            socket: order.pace.join(SOCKET),
            daemon: None,
            alive: alive(order),
            user,
            log,
            heartbeats,
            prints: Prints::default(),
            events: Vec::new(),
            pass: None,
        };
        Self { thread: Some(thread), begun: None, place: place(order) }
    }

    /// Starts the thread. Without one the job goes on unheard.
    pub(super) fn begin(&mut self) {
        let Some(mut thread) = self.thread.take() else { return };
        let (tell, said) = mpsc::channel();
        let pipe = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC);
        self.begun = pipe.ok().and_then(|(stopped, stop)| {
            let run = move || drop(tell.send(thread.run(&stopped)));
            std::thread::Builder::new().name("listen".into()).stack_size(256 << 10).spawn(run).ok()?;
            Some(Begun { stop, said })
        });
    }

    /// The command is over: what the log says of its failure, if it failed. A log that cannot be read in time says
    /// nothing.
    pub(super) fn finish(mut self, failed: bool) -> Said {
        if failed {
            self.begin();
        }
        let said = self.begun.take().and_then(|Begun { stop, said }| {
            if failed {
                let _ = rustix::io::write(&stop, &[1]);
            }
            drop(stop);
            said.recv_timeout(if failed { PATIENCE } else { Duration::from_millis(200) }).ok()
        });
        let _ = std::fs::remove_dir_all(&self.place);
        said.unwrap_or_default()
    }
}

/// Between two signs of life.
pub(super) fn alive(order: &Order) -> Duration {
    Duration::from_millis(order.alive_ms)
}

struct Thread {
    name: String,
    socket: PathBuf,
    daemon: Option<UnixDatagram>,
    /// Longest time between two messages to the daemon, which takes a supervisor that says nothing to have heard nothing.
    alive: Duration,
    user: User,
    log: Opened,
    heartbeats: Option<Heartbeats>,
    prints: Prints,
    events: Vec<Event>,
    /// The last of those that are told that says which epoch it is.
    pass: Option<Event>,
}

impl Thread {
    fn run(&mut self, stopped: &OwnedFd) -> Said {
        // carma's own files need no rights of the user's; but nothing here needs root's.
        if let Err(e) = self.user.enter() {
            complain!("carma supervisor of {}: it is not heard: {e}", self.name);
            return Said::default();
        }
        let quick = (self.alive / LOOKS).max(SHORTEST);
        let (mut next, mut told) = (Instant::now() + self.alive, Instant::now());
        loop {
            let left = next.saturating_duration_since(Instant::now());
            let (over, beat) = self.wait(stopped, left);
            if over {
                self.hear();
                if !self.events.is_empty() {
                    self.tell();
                }
                let failed = rustix::io::read(stopped, &mut [0; 1]).is_ok_and(|length| length > 0);
                return if failed { Said::of(&self.log.tail()) } else { Said::default() };
            }
            if beat {
                self.hear();
                // A flood of heartbeats is taken in by the batch.
                std::thread::sleep(Duration::from_millis(2));
            }
            if Instant::now() >= next {
                self.hear();
                self.read();
                let counts = !self.events.is_empty();
                if counts || told.elapsed() >= self.alive {
                    self.tell();
                    told = Instant::now();
                }
                let look = if counts { quick } else { self.alive };
                next = Instant::now() + if self.log.cut() { FAST.min(look) } else { look };
            }
        }
    }

    /// Waits for heartbeats, the end or the time: whether it is over, and whether heartbeats are there.
    fn wait(&self, stopped: &OwnedFd, left: Duration) -> (bool, bool) {
        let left = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(1),
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        let mut fds = vec![PollFd::new(stopped, PollFlags::IN)];
        fds.extend(self.heartbeats.as_ref().map(|beats| PollFd::new(beats, PollFlags::IN)));
        if poll(&mut fds, Some(&left)).is_err() {
            std::thread::sleep(Duration::from_millis(10));
            return (false, false);
        }
        let ready = |at: usize| fds.get(at).is_some_and(|fd| !fd.revents().is_empty());
        (ready(0), ready(1))
    }

    fn hear(&mut self) {
        let now = boot_s();
        if let Some(heartbeats) = &mut self.heartbeats {
            heartbeats.poll(now, &mut self.events);
        }
        self.prints.settle(now, &mut self.events);
    }

    fn read(&mut self) {
        let (follows, bytes) = self.log.grown();
        if !follows {
            self.prints.tear(Output::Standard);
        }
        self.prints.feed(boot_s(), Output::Standard, &bytes, &mut self.events);
    }

    /// Tells the daemon what was heard; what it cannot take now is kept for the next time, the latest of it.
    fn tell(&mut self) {
        if self.daemon.is_none() {
            self.daemon = self.connect().ok();
            if self.daemon.is_some() {
                // Another daemon has not heard it, and would take the bar of an epoch for the whole training.
                self.events.splice(0..0, self.pass.take());
            }
        }
        let mut told = 0;
        while let Some(daemon) = &self.daemon {
            let events = self.events.get(told..).unwrap_or_default();
            let events = events.get(..MESSAGE).unwrap_or(events);
            let news = News { attempt: self.name.clone(), at_s: boot_s(), events: events.to_vec() };
            let Ok(text) = serde_json::to_vec(&news) else { break };
            match daemon.send(&text) {
                Ok(_) => told += events.len(),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                // Another daemon will have another socket.
                Err(_) => self.daemon = None,
            }
            if told >= self.events.len() {
                break;
            }
        }
        let over = self.events.len().saturating_sub(BACKLOG).max(told);
        let mut gone = self.events.drain(..over);
        self.pass = gone.rfind(Event::is_pass_of).or(self.pass.take());
    }

    /// The socket is the daemon's alone, so this takes its rights for a moment.
    fn connect(&self) -> io::Result<UnixDatagram> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        self.user.leave()?;
        let connected = socket.connect(&self.socket);
        self.user.enter()?;
        connected.map(|()| socket)
    }
}

/// Seconds since the machine's boot: the clock that supervisors and the daemon share.
fn boot_s() -> f64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::order::Log;
    use carma_interference::rate::tally::Tally;

    /// What a daemon at this socket has counted.
    fn heard(socket: &UnixDatagram) -> (usize, Tally) {
        socket.set_nonblocking(true).unwrap();
        let (mut buffer, mut events, mut tally) = (vec![0; 64 << 10], 0, Tally::new());
        while let Ok(length) = socket.recv(&mut buffer) {
            let news: News = serde_json::from_slice(&buffer[..length]).unwrap();
            events += news.events.len();
            news.events.into_iter().for_each(|event| event.count(&mut tally));
        }
        (events, tally)
    }

    #[test]
    fn a_daemon_that_starts_anew_hears_which_epoch_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let user = User::find(None).unwrap();
        let log = Log::Kept { path: dir.path().join("1.log"), limit: 1 << 20 };
        let mut thread = Thread {
            name: "1.1".into(),
            socket: dir.path().join(SOCKET),
            daemon: None,
            alive: Duration::from_secs(1),
            log: Opened::open(&log, &user, None, 1).unwrap(),
            user,
            heartbeats: None,
            prints: Prints::default(),
            events: Vec::new(),
            pass: None,
        };
        let mut at_s = 0.0;
        let mut tell = |text: &str| {
            at_s += 1.0;
            thread.prints.feed(at_s, Output::Standard, text.as_bytes(), &mut thread.events);
            thread.tell();
        };
        let first = UnixDatagram::bind(dir.path().join(SOCKET)).unwrap();
        tell("Epoch 2/100\n938/938 [=====]\nEpoch 3/100\n");
        tell("10/938 [>....]\n");
        let (events, tally) = heard(&first);
        assert_eq!((events, tally.done(&[], None).unwrap().share), (4, (2.0 + 10.0 / 938.0) / 100.0));
        // While there is none what it says is kept, and which epoch it is too.
        drop(first);
        std::fs::remove_file(dir.path().join(SOCKET)).unwrap();
        for step in 11..300 {
            tell(&format!("{step}/938 [=>...]\n"));
        }
        for step in [800, 900] {
            let socket = UnixDatagram::bind(dir.path().join(SOCKET)).unwrap();
            // The first finds that the socket of before is gone.
            tell("700/938 [==>..]\n");
            tell(&format!("{step}/938 [===>.]\n"));
            let share = heard(&socket).1.done(&[], None).unwrap().share;
            assert!((share - (2.0 + f64::from(step) / 938.0) / 100.0).abs() < 1e-9, "{share}");
            std::fs::remove_file(dir.path().join(SOCKET)).unwrap();
        }
    }
}
