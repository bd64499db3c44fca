//! A virtual task that `carma bench interference` starts and pauses, by the protocol of its Python helper
//! (`docs/measuring-interference.md`): it computes only between the times that it is told, and says when
//! each of its steps was finished.

use super::{REACHED, STEPS_PER_SECOND};
use crate::protocol::Lines;
use rustix::time::{ClockId, clock_gettime};
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Environment variable with the socket of the tool.
pub(super) const ENV_BENCH: &str = "CARMA_BENCH";

/// What the tool says.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Order {
    Warm(IgnoredAny),
    Go { from_s: f64, until_s: f64 },
    Quit(IgnoredAny),
}

/// The connection to the tool, and the window under way.
pub(super) struct Pace {
    stream: UnixStream,
    lines: Lines,
    greeted: bool,
    window: Option<(Instant, Instant)>,
    /// Work at which the next step is finished, seconds when alone.
    next_step: f64,
    /// When steps were finished, microseconds after the window's start.
    times_us: Vec<i64>,
}

impl Pace {
    pub(super) fn connect(path: &Path) -> std::io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        let (next_step, times_us) = (0.0, Vec::new());
        Ok(Self { stream, lines: Lines::default(), greeted: false, window: None, next_step, times_us })
    }

    pub(super) const fn stream(&self) -> &UnixStream {
        &self.stream
    }

    fn say(&mut self, what: &str) {
        // Should the tool be gone, reading says so.
        let _ = self.stream.write_all(what.as_bytes());
    }

    /// Says once that the task is loaded.
    pub(super) fn greet(&mut self) {
        if !std::mem::replace(&mut self.greeted, true) {
            self.say(&format!("{{\"hello\": 1, \"pid\": {}}}\n", std::process::id()));
        }
    }

    /// Whether the task computes at this time.
    pub(super) fn runs(&self, now: Instant) -> bool {
        self.window.is_some_and(|(from, _)| now >= from)
    }

    /// When the next thing is due by itself: the start of a window.
    pub(super) fn starts(&self) -> Option<Instant> {
        self.window.map(|(from, _)| from)
    }

    /// Work at which the next step is finished.
    pub(super) const fn next_step(&self) -> f64 {
        self.next_step
    }

    /// A window begins at this much work.
    pub(super) fn begin(&mut self, work: f64) {
        self.times_us.clear();
        self.next_step = work + 1.0 / STEPS_PER_SECOND;
    }

    /// Work went from `before` to `after` at an even pace from `since` to `now`.
    pub(super) fn count(&mut self, (before, since): (f64, Instant), (after, now): (f64, Instant)) {
        let Some((from, _)) = self.window else { return };
        // Sums of floats don't meet exactly; the task takes this close for there.
        while self.next_step <= after + REACHED * after.max(1.0) && after > before {
            let part = ((self.next_step - before) / (after - before)).clamp(0.0, 1.0);
            let at = since + now.saturating_duration_since(since).mul_f64(part);
            let us = at.saturating_duration_since(from).as_micros();
            self.times_us.push(i64::try_from(us).unwrap_or(i64::MAX));
            self.next_step += 1.0 / STEPS_PER_SECOND;
        }
    }

    /// Ends the window with the first step that was finished after its end. Whether it is over.
    pub(super) fn end(&mut self) -> bool {
        let Some((from, until)) = self.window else { return false };
        let length = until.saturating_duration_since(from).as_micros();
        if self.times_us.last().is_none_or(|last| u128::from(last.unsigned_abs()) < length) {
            return false;
        }
        self.window = None;
        let times: Vec<String> = self.times_us.iter().map(ToString::to_string).collect();
        self.say(&format!("{{\"times_us\": [{}]}}\n", times.join(",")));
        true
    }

    /// Takes in what the tool said. `false`: the task shall end.
    pub(super) fn listen(&mut self) -> bool {
        let mut buffer = [0; 4096];
        match self.stream.read(&mut buffer) {
            Ok(n) if n > 0 => self.lines.push(&buffer[..n]),
            _ => return false,
        }
        while let Ok(Some(line)) = self.lines.next() {
            match serde_json::from_slice::<Order>(&line) {
                Ok(Order::Warm(_)) => self.say("{\"ready\": 1}\n"),
                Ok(Order::Go { from_s, until_s }) => self.window = Some((instant(from_s), instant(until_s))),
                Ok(Order::Quit(_)) | Err(_) => return false,
            }
        }
        true
    }
}

/// A time of `CLOCK_MONOTONIC`, which is what [`Instant`] measures.
fn instant(seconds: f64) -> Instant {
    let now = Instant::now();
    let clock = clock_gettime(ClockId::Monotonic);
    let ahead = seconds - (clock.tv_sec as f64 + clock.tv_nsec as f64 / 1e9);
    let span = Duration::try_from_secs_f64(ahead.abs()).unwrap_or_default();
    if ahead >= 0.0 { now.checked_add(span) } else { now.checked_sub(span) }.unwrap_or(now)
}
