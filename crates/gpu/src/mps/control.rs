//! Questions and orders to one control daemon, through NVIDIA's control program.

use super::exec::{self, Output, become_user};
use super::{Mps, Seat, error};
use crate::sharing::SharingError;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// What a health check finds.
pub(super) enum Daemon {
    /// It answers, with these servers.
    Up(Vec<u32>),
    /// There is none; what the control program said.
    Down(String),
}

impl Mps {
    /// Runs the control program as the seat's user.
    fn run(
        &self,
        seat: &Seat,
        args: &[&str],
        input: &str,
        deadline: Instant,
    ) -> Result<Output, SharingError> {
        let control = &self.options.control;
        let asked = if input.is_empty() { args.join(" ") } else { input.trim_end().to_owned() };
        let failed = |why| error(format!("MPS for {seat}: {} ({asked})", control.display()), why);
        let mut command = Command::new(control);
        // Nothing of carma's own environment: the daemon is the user's, who may read it.
        command.env_clear().args(args).current_dir("/");
        for keep in ["PATH", "LD_LIBRARY_PATH"] {
            command.envs(std::env::var_os(keep).map(|value| (keep, value)));
        }
        command.env("CUDA_MPS_PIPE_DIRECTORY", &seat.pipe).env("CUDA_MPS_LOG_DIRECTORY", &seat.log);
        if !self.options.gpus.is_empty() {
            command.env("CUDA_VISIBLE_DEVICES", self.options.gpus.join(","));
        }
        become_user(&mut command, seat.uid, seat.gid)
            .map_err(|e| failed(format!("groups of uid {}: {e}", seat.uid)))?;
        exec::run(command, input, deadline).map_err(|e| match e.kind() {
            io::ErrorKind::TimedOut => failed(format!(
                "no answer within {:.1} s. The daemon hangs; its logs are in {}. To restart it, kill it \
                 (every job that shares a GPU through it dies too)",
                self.options.timeout.as_secs_f64(),
                seat.log.display()
            )),
            io::ErrorKind::NotFound => failed(
                "no such program. It comes with the NVIDIA driver (on Debian and Ubuntu in \
                 nvidia-compute-utils): install it, put it on carma's PATH, or tell carma its path"
                    .to_owned(),
            ),
            _ => failed(e.to_string()),
        })
    }

    /// The health check: a list of servers is the cheapest question there is.
    pub(super) fn servers(&self, seat: &Seat, deadline: Instant) -> Result<Daemon, SharingError> {
        let out = self.run(seat, &[], "get_server_list\n", deadline)?;
        if !out.ok {
            return Ok(Daemon::Down(out.text));
        }
        self.requests(seat).has_answered();
        Ok(Daemon::Up(numbers(&out.text)))
    }

    fn clients(&self, seat: &Seat, server: u32, deadline: Instant) -> Result<Vec<u32>, SharingError> {
        let out = self.run(seat, &[], &format!("get_client_list {server}\n"), deadline)?;
        // A server that has just ended has no clients.
        Ok(if out.ok { numbers(&out.text) } else { Vec::new() })
    }

    pub(super) fn start(&self, seat: &Seat, deadline: Instant) -> Result<(), SharingError> {
        let args: &[&str] = if self.options.multi_user { &["-d", "-multiuser-server"] } else { &["-d"] };
        let out = self.run(seat, args, "", deadline)?;
        loop {
            let why = match self.servers(seat, deadline)? {
                Daemon::Up(_) => return Ok(()),
                // It leaves its launcher before it listens.
                Daemon::Down(_) if out.ok && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(20));
                    continue;
                }
                Daemon::Down(why) => why,
            };
            let said = if out.text.is_empty() { why } else { out.text };
            return Err(error(format!("starting MPS for {seat}"), format!("{said}. {}", self.advice(seat))));
        }
    }

    /// What to look at after a failed start.
    fn advice(&self, seat: &Seat) -> String {
        let closed = |dir: &&Path| {
            let open = |m: fs::Metadata| m.mode() & 0o001 != 0 || m.uid() == seat.uid;
            seat.uid != 0 && !fs::metadata(dir).is_ok_and(open)
        };
        match self.options.dir.ancestors().find(closed) {
            Some(dir) => format!("Users cannot pass through {}: `chmod o+x` it", dir.display()),
            None => format!("See the logs in {}", seat.log.display()),
        }
    }

    /// Quits a daemon unless it has a client. Whether it had none.
    pub(super) fn quit_idle(&self, seat: &Seat, deadline: Instant) -> Result<bool, SharingError> {
        let Daemon::Up(servers) = self.servers(seat, deadline)? else {
            return Ok(false);
        };
        for server in servers {
            if !self.clients(seat, server, deadline)?.is_empty() {
                return Ok(false);
            }
        }
        // Should a client come in between: `quit` without a time limit waits for its end.
        Ok(self.run(seat, &[], "quit\n", deadline)?.ok)
    }

    /// Which of these processes are clients, each with its server.
    pub(super) fn clients_among(
        &self,
        seat: &Seat,
        pids: &[u32],
        deadline: Instant,
    ) -> Result<Vec<(u32, u32)>, SharingError> {
        let Daemon::Up(servers) = self.servers(seat, deadline)? else {
            return Ok(Vec::new());
        };
        let mut found = Vec::new();
        for server in servers {
            let clients = self.clients(seat, server, deadline)?;
            found.extend(clients.into_iter().filter(|pid| pids.contains(pid)).map(|pid| (server, pid)));
        }
        Ok(found)
    }

    pub(super) fn terminate(
        &self,
        seat: &Seat,
        pids: &[u32],
        deadline: Instant,
    ) -> Result<usize, SharingError> {
        let clients = self.clients_among(seat, pids, deadline)?;
        for (server, pid) in &clients {
            let said = self.run(seat, &[], &format!("terminate_client {server} {pid}\n"), deadline)?.text;
            // The exit status is 0 whatever happens; the answer is a CUDA error number.
            if numbers(&said) != [0] {
                // Most likely it ended by itself; the signal that follows settles it.
                tracing::warn!(daemon = %seat, server, pid, said, "MPS did not terminate a client");
            }
        }
        Ok(clients.len())
    }
}

/// Ids, one a line; anything else is talk.
fn numbers(text: &str) -> Vec<u32> {
    text.lines().filter_map(|line| line.trim().parse().ok()).collect()
}
