//! The runs that one profile takes, and what the reader should know of them.

use super::kernels;
use super::machine::{Chosen, Machine};
use super::watch::{Request, Watched, watch};
use super::{Interrupts, Options};
use crate::{Error, Say};
use carma_core::reading::GpuInfo;
use carma_gpu::SharingRequest;
use carma_interference::profile::{Profile, Rate, RateSource};
use carma_interference::solo::{NoProfile, Options as Solo};
use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;

/// A task on its way to a profile.
pub struct Profiler<'a> {
    options: &'a Options,
    machine: Machine,
    chosen: Chosen,
    dir: &'a Path,
    say: Say<'a>,
}

impl<'a> Profiler<'a> {
    /// Opens the GPUs and chooses one. `dir`: a short path to a folder of our own, for sockets. `say` is told what the
    /// user should know meanwhile.
    ///
    /// # Errors
    /// GPUs that cannot be read; a name that fits none or several of them; a GPU that others use
    /// ([`FailureKind::Busy`](crate::FailureKind)).
    pub fn open(options: &'a Options, dir: &'a Path, say: Say<'a>) -> Result<Self, Error> {
        let mut machine = Machine::open(&options.gpus, dir)?;
        if options.kernels.is_some() && machine.is_virtual() {
            return Err(Error::usage("--kernels: virtual GPUs run no kernels"));
        }
        let chosen = machine.choose(&options.socket, options.gpu.as_deref(), options.shared_ok)?;
        if chosen.open_to_daemon {
            let index = chosen.gpu.index;
            say(&format!(
                "the carma daemon may start a job on GPU {index} meanwhile; `carma drain {index}` keeps it off"
            ));
        }
        Ok(Self { options, machine, chosen, dir, say })
    }

    /// The GPU that was chosen.
    pub const fn gpu(&self) -> &GpuInfo {
        &self.chosen.gpu
    }

    /// Whether it is a model.
    pub const fn is_virtual(&self) -> bool {
        self.machine.is_virtual()
    }

    /// Runs the command as often as is wanted, on the calling thread: should that end, so do its commands. Ends early with
    /// the [`Interrupts`], and what is then returned means nothing. What the first run measured is returned also where a later
    /// one fails, with what that failed of: MPS or Nsight Compute, or the command.
    ///
    /// # Errors
    /// A command that cannot be started, that did not use the GPU or not for long enough.
    pub fn run(&mut self, interrupts: &Interrupts) -> Result<(Profile, Option<Error>), Error> {
        let watched = self.once(Vec::new(), interrupts)?;
        let mut profile = self.profile(&self.options.name, &watched)?;
        drop(watched);
        profile.gpu = Some(self.chosen.gpu.name.clone());
        profile.class.clone_from(&self.options.class);
        let more = self.more(&mut profile, interrupts);
        self.machine.sharing.shutdown(&[]);
        Ok((profile, more.err()))
    }

    /// Adds what further runs tell.
    fn more(&mut self, profile: &mut Profile, interrupts: &Interrupts) -> Result<(), Error> {
        // Each once, in the order given.
        let mut done = BTreeSet::new();
        for pct in self.options.rates_by_threads.iter().filter(|pct| done.insert(**pct)) {
            if interrupts.count() > 0 {
                break;
            }
            self.with_threads(*pct, profile, interrupts)?;
        }
        if let Some(wanted) = &self.options.kernels
            && interrupts.count() == 0
        {
            (self.say)(&format!("running the command again under {}", wanted.ncu.display()));
            let mut env = self.machine.env.clone();
            env.push(("CUDA_VISIBLE_DEVICES".into(), self.chosen.gpu.uuid.to_string()));
            let summary = kernels::measure(wanted, self.options, &env, self.dir, interrupts)?;
            let with = Profile { kernels: Some(summary.kernels), ..profile.clone() };
            // A file with a number out of its range could not be read again.
            if let (Ok(()), Err(why)) = (profile.check(), with.check()) {
                profile.remarks.push(format!("what Nsight Compute said of its kernels is left out: {why}"));
                return Ok(());
            }
            profile.kernels = with.kernels;
            let left_out = match summary.left_out {
                0 => String::new(),
                n => format!(", {n} more were left out because they have no duration"),
            };
            profile.remarks.push(format!("kernels: {} launches{left_out}", summary.launches));
        }
        Ok(())
    }

    fn once(&mut self, env: Vec<(String, String)>, interrupts: &Interrupts) -> Result<Watched, Error> {
        let options = self.options;
        let request = Request {
            command: &options.command,
            env,
            dir: self.dir,
            options: Solo { warm_up_s: options.warm_up_s, window_s: options.window_s, ..Solo::default() },
            patience_s: options.patience_s,
            grace: options.grace,
            keep_running: options.keep_running,
            outlets: options.outlets,
            interrupts,
        };
        watch(&mut self.machine, &self.chosen, &request)
    }

    /// What was seen as a profile, with what the reader should know of it.
    fn profile(&self, name: &str, watched: &Watched) -> Result<Profile, Error> {
        let mut profile = watched
            .recorder
            .profile(name, watched.meter.tally())
            .map_err(|why| self.failure(&why, watched))?;
        if let Some(status) = watched.ended.filter(|status| !status.success()) {
            profile.remarks.push(format!("the command {}", ending(status)));
        }
        if watched.killed {
            profile.remarks.push(format!(
                "the command did not end within {} s of SIGTERM and was killed",
                self.options.grace.as_secs_f64()
            ));
        }
        if !self.chosen.users.is_empty() {
            profile
                .remarks
                .push(format!("not alone: the GPU was in use by {}", self.chosen.users.join(", ")));
        }
        if !watched.others.is_empty() && self.chosen.users.is_empty() {
            let pids: Vec<String> = watched.others.iter().take(8).map(ToString::to_string).collect();
            profile
                .remarks
                .push(format!("not alone: other processes came to the GPU: pid {}", pids.join(", ")));
        }
        if !self.chosen.gpu.has_activity {
            profile.remarks.push(
                "this GPU does not tell SMACT, SMOCC and DRAMA (NVML's GPM needs Hopper or newer, and permission)".into(),
            );
        }
        if watched.unread > 0 {
            profile.remarks.push(format!(
                "it printed faster than that can be read: {:.1} MB were passed over",
                watched.unread as f64 / 1e6
            ));
        }
        match watched.meter.refused() {
            (0, 0) => {}
            (garbage, strangers) => profile.remarks.push(format!(
                "{garbage} heartbeats made no sense and {strangers} came from other users; none of them counts"
            )),
        }
        Ok(profile)
    }

    fn failure(&self, why: &NoProfile, watched: &Watched) -> Error {
        let gpu = self.chosen.gpu.index;
        let end = watched.ended.map_or_else(String::new, |status| format!("; it {}", ending(status)));
        let failure = Error::new(format!("no profile: {why}{end}"));
        match why {
            NoProfile::NeverUsed { .. } if watched.ended.is_some_and(|status| !status.success()) => {
                failure.hint("what it printed is above")
            }
            NoProfile::NeverUsed { .. } => failure.hint(format!(
                "it was given GPU {gpu} by CUDA_VISIBLE_DEVICES: does it choose another, or fall back to the CPU? A command that takes longer to begin needs --patience"
            )),
            NoProfile::TooShort { .. } => failure.hint("give it more to do (more steps, more epochs), or shorten --warmup"),
            NoProfile::Blind(_) => failure.hint("`carma doctor` may say why"),
        }
    }

    /// Adds the rate under MPS with a share of the threads.
    fn with_threads(&mut self, pct: u8, profile: &mut Profile, interrupts: &Interrupts) -> Result<(), Error> {
        let request = SharingRequest {
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            gpus: vec![self.chosen.gpu.uuid.clone()],
            cap: None,
            thread_percent: Some(pct),
        };
        let grant = self.machine.sharing.prepare(&request).map_err(|e| {
            Error::new(format!("--rates-by-threads: {e}"))
                .hint("`carma doctor` says whether MPS can be had here")
        })?;
        (self.say)(&format!("running the command again with {pct} % of the threads"));
        let watched = self.once(grant.env, interrupts)?;
        if watched.interrupted {
            return Ok(());
        }
        let limited = self
            .profile(&profile.name, &watched)
            .map_err(|e| Error { message: format!("with {pct} % of the threads: {}", e.message), ..e })?;
        let same = |a: &Rate, b: &Rate| a.source == b.source && a.unit == b.unit;
        match (&limited.rate, &profile.rate) {
            (Some(rate), Some(alone)) if same(rate, alone) => {
                if rate.source == Some(RateSource::Activity) && profile.rate_by_threads_pct.is_empty() {
                    profile.remarks.push(
                        "its rates by threads are activity, which a limit lowers by itself; a heartbeat gives its speed".into(),
                    );
                }
                profile.rate_by_threads_pct.insert(pct, rate.per_s);
            }
            _ => profile.remarks.push(format!(
                "with {pct} % of the threads it told no rate that could be compared, so there is none"
            )),
        }
        profile
            .remarks
            .extend(limited.remarks.iter().map(|remark| format!("with {pct} % of the threads: {remark}")));
        Ok(())
    }
}

/// How a command ended, in words.
fn ending(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with exit code {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}
