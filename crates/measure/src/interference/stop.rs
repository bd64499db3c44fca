//! Programs that know nothing of carma: held idle by SIGSTOP, counted by their heartbeats or by what they print.
//!
//! Work that was launched on the GPU when the signal comes is still done. Counts are read on a clock that stands
//! still while the program does, so that a pause is no time in which nothing was done.

use super::count::Counted;
use super::protocol::News;
use super::window::monotonic;
use carma_interference::profile::RateSource;
use carma_process::progress::{Meter, Output};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::time::Duration;

/// How long a program runs on after it has first told of progress, before it is held, seconds.
const WARM_S: f64 = 1.0;
/// Advances of its count that show that it is under way.
const WARM_ADVANCES: usize = 3;
/// Between two looks at what it printed.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };

/// What it is told: run from, count from, until; seconds of `CLOCK_MONOTONIC`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Go {
    pub(super) start_s: f64,
    pub(super) from_s: f64,
    pub(super) until_s: f64,
}

/// A program that is stopped and continued.
pub(super) struct Stopped {
    meter: Meter,
    /// What it prints.
    output: File,
    group: Pid,
    /// Time that it has run for up to `since`, seconds.
    ran_s: f64,
    /// When it last went on; `None`: it is stopped.
    since: Option<f64>,
}

impl Stopped {
    /// Of a process group that runs. Both its outputs go to one file.
    pub(super) fn new(meter: Meter, output: &Path, group: Pid) -> std::io::Result<Self> {
        Ok(Self { meter, output: File::open(output)?, group, ran_s: 0.0, since: Some(monotonic()) })
    }

    /// Holds and lets go as told, until the sender is gone. Returns why it ends.
    pub(super) fn serve(mut self, orders: &Receiver<Go>, news: &Sender<News>) -> String {
        let mut warm = None;
        while warm.is_none_or(|at| self.clock() < at) {
            match orders.try_recv() {
                Err(TryRecvError::Empty) => {}
                _ => return "it was told to end".into(),
            }
            self.look();
            let now = self.clock();
            let told = self.meter.tally().best(0.0, now).filter(|rate| !rate.is_average);
            if warm.is_none() && told.is_some_and(|rate| rate.advances >= WARM_ADVANCES) {
                // The turn to warm up is not asked for: it has been at work since it was started.
                if news.send(News::Hello).is_err() {
                    return String::new();
                }
                warm = Some(now + WARM_S);
            }
        }
        self.stop();
        let mut answer = News::Ready(None);
        loop {
            if news.send(answer).is_err() {
                return String::new();
            }
            let go = loop {
                // A second at most, so that nothing it left in the socket stays there for long.
                match orders.recv_timeout(Duration::from_secs(1)) {
                    Ok(go) => break go,
                    Err(RecvTimeoutError::Timeout) => self.look(),
                    Err(RecvTimeoutError::Disconnected) => return "it was told to end".into(),
                }
            };
            answer = News::Counted(self.window(go));
        }
    }

    fn window(&mut self, go: Go) -> Result<Counted, String> {
        let wait = go.start_s - monotonic();
        if wait > 0.0 {
            std::thread::sleep(Duration::from_secs_f64(wait));
        }
        let start = self.ran_s;
        let began = monotonic();
        self.signal(Signal::CONT);
        self.since = Some(began);
        while monotonic() < go.until_s {
            self.look();
        }
        self.stop();
        let (from, until) = (start + (go.from_s - began), start + (go.until_s - began));
        let told = self.meter.tally().best(from, until);
        // A count before the start was among other neighbours.
        match told.filter(|told| !told.is_average && told.span_s.0 >= start) {
            Some(told) => {
                let per_s = told.rate.per_s;
                let source = told.rate.source.unwrap_or(RateSource::Printed);
                Ok(Counted { steps: per_s * (until - from), per_s, source })
            }
            None => {
                Err("it told of no two steps in the window; longer windows, heartbeats (CARMA_PROGRESS) or \
                         carma_bench count finer"
                    .into())
            }
        }
    }

    /// Time that it has run for, seconds.
    fn clock(&self) -> f64 {
        self.ran_s + self.since.map_or(0.0, |since| (monotonic() - since).max(0.0))
    }

    fn stop(&mut self) {
        self.signal(Signal::STOP);
        self.ran_s = self.clock();
        self.since = None;
        // What it told before the signal.
        self.look();
    }

    fn signal(&self, signal: Signal) {
        // That it is gone shows by its exit.
        let _ = kill_process_group(self.group, signal);
    }

    /// Takes in what it told; waits a few milliseconds for heartbeats.
    fn look(&mut self) {
        let wait = if self.since.is_some() { Some(&LOOK) } else { Some(&Timespec { tv_sec: 0, tv_nsec: 0 }) };
        let _ = poll(&mut [PollFd::new(&self.meter.as_fd(), PollFlags::IN)], wait);
        let now = self.clock();
        let mut buffer = [0; 16 << 10];
        while let Ok(n @ 1..) = self.output.read(&mut buffer) {
            self.meter.feed(now, Output::Standard, &buffer[..n]);
        }
        self.meter.poll(now);
    }
}
