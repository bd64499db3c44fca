//! Tells the service manager how the daemon is: systemd's protocol `sd_notify(3)`, one datagram a message
//! to the socket that `NOTIFY_SOCKET` names.
//!
//! The watchdog is a real one: `WATCHDOG=1` comes from the engine's own loop and from nowhere else, so that
//! a daemon whose owner of the state hangs is started anew, though its other threads may live. The
//! variables never reach a job or its supervisor: both get environments of their own.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The way to the service manager; none where there is no service manager.
#[derive(Debug, Clone, Default)]
pub struct Notify(Option<Arc<(UnixDatagram, SocketAddr)>>);

impl Notify {
    /// As the environment says.
    ///
    /// # Errors
    /// When `NOTIFY_SOCKET` is set and leads nowhere.
    pub fn from_env() -> io::Result<Self> {
        std::env::var_os("NOTIFY_SOCKET").map_or(Ok(Self::default()), |name| Self::to(&name))
    }

    fn to(name: &OsStr) -> io::Result<Self> {
        let address = match name.as_bytes() {
            [] => return Ok(Self::default()),
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            _ => SocketAddr::from_pathname(name)?,
        };
        let socket = UnixDatagram::unbound()?;
        // A service manager that does not read must not hold the daemon up.
        socket.set_nonblocking(true)?;
        Ok(Self(Some(Arc::new((socket, address)))))
    }

    /// Clients can connect.
    pub fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={}", status.replace('\n', " ")));
    }

    /// The daemon is about to end.
    pub fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=stopping; running jobs go on");
    }

    fn send(&self, message: &str) {
        let Some((socket, address)) = self.0.as_deref() else { return };
        if let Err(e) = socket.send_to_addr(message.as_bytes(), address) {
            tracing::debug!("the service manager was not told {message:?}: {e}");
        }
    }
}

/// Pings of one thread's loop.
#[derive(Debug)]
pub struct Watchdog {
    notify: Notify,
    /// Half of what the service manager waits for; `None`: it does not wait.
    every: Option<Duration>,
    last: Option<Instant>,
}

impl Watchdog {
    /// As the environment says: `WATCHDOG_USEC`, unless `WATCHDOG_PID` names another process.
    #[must_use]
    pub fn from_env(notify: Notify) -> Self {
        Self::new(notify, std::env::var_os("WATCHDOG_USEC"), std::env::var_os("WATCHDOG_PID"))
    }

    fn new(notify: Notify, period: Option<OsString>, pid: Option<OsString>) -> Self {
        let number = |text: OsString| text.to_str()?.parse::<u64>().ok();
        let ours = pid.is_none_or(|pid| number(pid) == Some(u64::from(std::process::id())));
        let period = period.and_then(number).filter(|us| *us > 0 && ours && notify.0.is_some());
        Self { notify, every: period.map(|us| Duration::from_micros(us) / 2), last: None }
    }

    /// How long the loop may wait before it has to call [`Watchdog::alive`]; `None`: as long as it likes.
    #[must_use]
    pub fn patience(&self) -> Option<Duration> {
        let every = self.every?;
        Some(self.last.map_or(Duration::ZERO, |last| every.saturating_sub(last.elapsed())))
    }

    /// The loop has come round: says so if it is time.
    pub fn alive(&mut self) {
        if self.patience().is_some_and(|patience| patience.is_zero()) {
            self.last = Some(Instant::now());
            self.notify.send("WATCHDOG=1");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(socket: &UnixDatagram) -> Option<String> {
        let mut buffer = [0; 256];
        let length = socket.recv(&mut buffer).ok()?;
        Some(String::from_utf8_lossy(&buffer[..length]).into_owned())
    }

    fn listen(address: &SocketAddr) -> UnixDatagram {
        let socket = UnixDatagram::bind_addr(address).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket
    }

    #[test]
    fn messages_arrive_at_sockets_with_and_without_a_path() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let name = format!("carma-test-{}", std::process::id());
        for (address, variable) in [
            (SocketAddr::from_pathname(&path).unwrap(), path.clone().into_os_string()),
            (SocketAddr::from_abstract_name(&name).unwrap(), format!("@{name}").into()),
        ] {
            let socket = listen(&address);
            let notify = Notify::to(&variable).unwrap();
            notify.ready("serving 4 GPUs\nMAINPID=1");
            notify.stopping();
            assert_eq!(read(&socket).unwrap(), "READY=1\nSTATUS=serving 4 GPUs MAINPID=1");
            assert!(read(&socket).unwrap().starts_with("STOPPING=1\n"));
            assert_eq!(read(&socket), None);
        }
    }

    #[test]
    fn nobody_needs_to_listen() {
        Notify::default().ready("x");
        let dir = tempfile::tempdir().unwrap();
        Notify::to(dir.path().join("none").as_os_str()).unwrap().ready("x");
        assert!(Notify::to(OsStr::new(&"/x".repeat(100))).is_err());
    }

    #[test]
    fn a_loop_that_comes_round_pings_at_half_the_period() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let socket = listen(&SocketAddr::from_pathname(&path).unwrap());
        let notify = Notify::to(path.as_os_str()).unwrap();
        // A period that no test outlasts: the second ping is not due.
        let mut watchdog = Watchdog::new(notify.clone(), Some("7200000000".into()), None);
        assert_eq!(watchdog.patience(), Some(Duration::ZERO));
        watchdog.alive();
        watchdog.alive();
        assert_eq!(read(&socket).as_deref(), Some("WATCHDOG=1"));
        assert_eq!(read(&socket), None);
        let patience = watchdog.patience().unwrap();
        assert!(patience > Duration::ZERO && patience <= Duration::from_secs(3600), "{patience:?}");
        // One so short that it is always due.
        let mut watchdog = Watchdog::new(notify.clone(), Some("1".into()), None);
        watchdog.alive();
        std::thread::sleep(Duration::from_millis(1));
        watchdog.alive();
        assert_eq!((read(&socket).is_some(), read(&socket).is_some()), (true, true));
        for (period, pid) in [(None, None), (Some("0"), None), (Some("x"), None), (Some("9"), Some("1"))] {
            let of = |text: Option<&str>| text.map(OsString::from);
            let mut silent = Watchdog::new(notify.clone(), of(period), of(pid));
            assert_eq!(silent.patience(), None);
            silent.alive();
        }
        assert_eq!(read(&socket), None);
    }
}
