//! The daemon's clock: wall time at the start, steady from there, and never behind the journal.

use carma_core::units::Millis;
use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Wall time now, Unix.
fn wall_time() -> Millis {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Millis(u64::try_from(wall.as_millis()).unwrap_or(u64::MAX))
}

/// Milliseconds that cannot jump. Wall time is read once; after that the kernel's boot-time clock
/// counts, so that a clock set back or forth moves no deadline.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    base: Millis,
    started: Duration,
    speed: u32,
}

fn boot_time() -> Duration {
    let t = clock_gettime(ClockId::Boottime);
    Duration::new(t.tv_sec.unsigned_abs(), u32::try_from(t.tv_nsec).unwrap_or(0))
}

impl Clock {
    /// Starts at wall time, or at `not_before` (the last time in the journal) if that is later.
    /// `speed` above 1 is for virtual GPUs only: the daemon's time then runs that much faster.
    #[must_use]
    pub fn start(not_before: Millis, speed: u32) -> Self {
        Self { base: wall_time().max(not_before), started: boot_time(), speed: speed.max(1) }
    }

    /// The time now, on the journal's clock.
    #[must_use]
    pub fn now(&self) -> Millis {
        let elapsed = boot_time().saturating_sub(self.started).as_millis();
        self.base + Millis(u64::try_from(elapsed).unwrap_or(u64::MAX).saturating_mul(u64::from(self.speed)))
    }

    /// How far it is ahead of wall time.
    #[must_use]
    pub fn ahead(&self) -> Millis {
        self.now().since(wall_time())
    }

    /// What it showed, or will show, that many seconds after the machine's boot; in seconds.
    #[must_use]
    pub fn at_boot_s(&self, boot_s: f64) -> f64 {
        self.base.as_secs_f64() + (boot_s - self.started.as_secs_f64()) * f64::from(self.speed)
    }

    /// How long to sleep in life until the clock shows `at`.
    #[must_use]
    pub fn until(&self, at: Millis) -> Duration {
        let virtual_ms = at.since(self.now()).0;
        // Rounded up, so that the time is reached when a sleeper wakes.
        Duration::from_millis(virtual_ms.div_ceil(u64::from(self.speed)))
    }
}

/// A time for people.
pub(crate) fn utc(at: Millis) -> String {
    let known = i64::try_from(at.0).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    known.map_or_else(|| format!("{} ms", at.0), |at| at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_starts_behind_the_journal() {
        let future = Millis(u64::from(u32::MAX) * 1000 * 10);
        let clock = Clock::start(future, 1);
        assert!(clock.now() >= future);
        assert_eq!(clock.until(future), Duration::ZERO);
        assert!(clock.ahead() > Millis::secs(3600));
        assert!(Clock::start(Millis::ZERO, 1).ahead() < Millis::secs(60));
    }
}
