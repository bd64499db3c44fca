//! The datagram socket for heartbeats.

use super::event::Event;
use super::{LONGEST_SOCKET, MeterError, Owner};
use carma_interference::rate::beat::{self, Beat};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use std::collections::BTreeMap;
use std::io::IoSliceMut;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

/// Most datagrams of one call.
const MOST: usize = 4096;

#[derive(Debug)]
pub(super) struct ProgressSocket {
    socket: UnixDatagram,
    path: PathBuf,
    /// Users whose heartbeats count.
    welcome: [u32; 2],
    pub(super) garbage: u64,
    pub(super) strangers: u64,
}

impl ProgressSocket {
    pub(super) fn bind(path: &Path, owner: Option<Owner>) -> Result<Self, MeterError> {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        // Two more for the name under which it is made.
        if path.as_os_str().len() + 2 > LONGEST_SOCKET {
            return Err(MeterError::TooLong(path));
        }
        // Made aside and put in place: a task that runs already, of an earlier daemon, finds one or the other.
        let aside = path.with_extension("n");
        let _ = std::fs::remove_file(&aside);
        let make = || {
            let socket = UnixDatagram::bind(&aside)?;
            socket.set_nonblocking(true)?;
            setsockopt(&socket, sockopt::PassCred, &true)?;
            // By its name: no other process may put another thing there, see `Meter::open`.
            std::fs::set_permissions(&aside, std::fs::Permissions::from_mode(0o600))?;
            if let Some(owner) = owner {
                std::os::unix::fs::lchown(&aside, Some(owner.uid), Some(owner.gid))?;
            }
            std::fs::rename(&aside, &path)?;
            Ok(socket)
        };
        let me = rustix::process::geteuid().as_raw();
        match make() {
            Ok(socket) => Ok(Self {
                socket,
                path,
                welcome: [me, owner.map_or(me, |owner| owner.uid)],
                garbage: 0,
                strangers: 0,
            }),
            Err(why) => Err(MeterError::Path { path, why }),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn read(&mut self, at_s: f64, events: &mut Vec<Event>) {
        // Steps of one process are added up first, so that a flood costs little.
        let mut steps: BTreeMap<i32, u64> = BTreeMap::new();
        for _ in 0..MOST {
            // One byte more than a heartbeat has: what is longer shows.
            let mut buffer = [0_u8; beat::LONGEST + 1];
            // Room for the sender's identity and nothing else: file descriptors that come along are not taken.
            let mut space = nix::cmsg_space!(nix::sys::socket::UnixCredentials);
            let (length, sender) = {
                let mut parts = [IoSliceMut::new(&mut buffer)];
                let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
                match recvmsg::<()>(self.socket.as_raw_fd(), &mut parts, Some(&mut space), flags) {
                    Ok(message) => {
                        let sender = message.cmsgs().ok().and_then(|mut all| {
                            all.find_map(|one| match one {
                                ControlMessageOwned::ScmCredentials(who) => Some((who.pid(), who.uid())),
                                _ => None,
                            })
                        });
                        (message.bytes, sender)
                    }
                    Err(nix::errno::Errno::EINTR) => continue,
                    Err(_) => break,
                }
            };
            if sender.is_some_and(|(_, uid)| !self.welcome.contains(&uid)) {
                self.strangers += 1;
                continue;
            }
            let pid = sender.map_or(0, |(pid, _)| pid);
            match beat::datagram(&buffer[..length.min(buffer.len())]) {
                Some(Beat::Step) => *steps.entry(pid).or_default() += 1,
                Some(Beat::Latency(told)) => events.push(Event::Latency { at_s, told }),
                Some(Beat::Count(said)) => events.push(Event::Count { at_s, source: String::new(), said }),
                None => self.garbage += 1,
            }
        }
        for (pid, steps) in steps {
            events.push(Event::Steps { at_s, source: pid.to_string(), steps });
        }
    }
}

impl AsFd for ProgressSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for ProgressSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
