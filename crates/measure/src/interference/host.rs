//! The host during a window: how fast its processors are just then, and how much of them others take.
//!
//! Tasks that are bound by launches go as fast as the host lets them, and the processors of a virtual machine are not
//! always equally fast. A window that was measured while the host was slow should be known as such.

use std::fs;
use std::hint::black_box;
use std::time::Instant;

/// Steps of the loop that is timed: about two milliseconds.
const STEPS: u64 = 2_000_000;

/// Times a fixed loop now and then.
#[derive(Debug, Default)]
pub(super) struct Host {
    /// Seconds of each loop.
    loops: Vec<f64>,
    /// Ticks of all processors when the window began: all, stolen.
    before: Option<(u64, u64)>,
}

impl Host {
    /// At the beginning of a window.
    pub(super) fn begin() -> Self {
        Self { loops: Vec::new(), before: ticks() }
    }

    /// Times the loop once.
    pub(super) fn look(&mut self) {
        let began = Instant::now();
        let mut x = 1_u64;
        for _ in 0..STEPS {
            // Each step waits for the one before: nothing but the clock of the processor counts.
            x = black_box(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        }
        self.loops.push(began.elapsed().as_secs_f64());
    }

    /// Millions of steps a second, by the median loop: one that was interrupted tells nothing.
    pub(super) fn speed(&self) -> Option<f64> {
        let mut loops = self.loops.clone();
        loops.sort_by(f64::total_cmp);
        let median = loops.get(loops.len() / 2).copied().filter(|seconds| *seconds > 0.0)?;
        Some(STEPS as f64 / median / 1e6)
    }

    /// Share of the processors' time that the hypervisor gave to others since the beginning, percent.
    pub(super) fn stolen_pct(&self) -> Option<f64> {
        let (all, stolen) = self.before?;
        let (all_now, stolen_now) = ticks()?;
        let span = all_now.checked_sub(all).filter(|span| *span > 0)?;
        Some(stolen_now.saturating_sub(stolen) as f64 / span as f64 * 100.0)
    }
}

fn ticks() -> Option<(u64, u64)> {
    parse(&fs::read_to_string("/proc/stat").ok()?)
}

/// The first line of `/proc/stat` (proc(5)): user, nice, system, idle, iowait, irq, softirq, steal.
fn parse(stat: &str) -> Option<(u64, u64)> {
    let fields = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().take(8);
    let fields: Vec<u64> = fields.map(|word| word.parse().ok()).collect::<Option<_>>()?;
    Some((fields.iter().sum(), *fields.get(7)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_of_stat_is_read() {
        assert_eq!(parse("cpu  10 0 5 80 1 0 1 3 7 0\ncpu0 1 2"), Some((100, 3)));
        for bad in ["", "cpu 1 2", "cpu  1 2 3 4 5 6 7 x", "intr 1 2 3 4 5 6 7 8"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_host_has_a_speed() {
        let mut host = Host::begin();
        assert_eq!(host.speed(), None);
        host.look();
        assert!(host.speed().unwrap() > 1.0);
    }
}
