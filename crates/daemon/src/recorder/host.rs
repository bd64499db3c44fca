//! The machine's processors and memory, from `/proc`.

use carma_api::record::HostRow;
use std::fs;

/// Remembers the processors' times between looks.
#[derive(Debug, Default)]
pub(super) struct Host {
    /// Ticks at work, and in all.
    last: Option<(u64, u64)>,
}

impl Host {
    /// What they do now; the processors' part is of the time since the last look. `None`: nothing is known.
    pub(super) fn look(&mut self) -> Option<HostRow> {
        let now = fs::read_to_string("/proc/stat").ok().and_then(|text| ticks(&text));
        let then = std::mem::replace(&mut self.last, now);
        let cpu_pct = now.zip(then).and_then(|((busy, all), (busy_then, all_then))| {
            let all = all.checked_sub(all_then).filter(|all| *all > 0)?;
            Some((busy.saturating_sub(busy_then) as f64 / all as f64 * 1000.0).round() / 10.0)
        });
        let memory_used_mib = fs::read_to_string("/proc/meminfo").ok().and_then(|text| used_mib(&text));
        let row = HostRow { cpu_pct, memory_used_mib };
        (row != HostRow::default()).then_some(row)
    }
}

/// Ticks at work and in all, from `/proc/stat` (proc(5)): of user, nice, system, idle, iowait, irq, softirq and steal, idle
/// and iowait are no work. The guests' are in the user's.
fn ticks(stat: &str) -> Option<(u64, u64)> {
    let fields = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
    let fields: Vec<u64> = fields.take(8).map(|field| field.parse().ok()).collect::<Option<_>>()?;
    let all = fields.iter().fold(0, |sum: u64, ticks| sum.saturating_add(*ticks));
    Some((all.saturating_sub(*fields.get(3)?).saturating_sub(*fields.get(4)?), all))
}

/// Memory that is not available, MiB.
fn used_mib(meminfo: &str) -> Option<f64> {
    let kib = |name: &str| -> Option<u64> {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let used = kib("MemTotal:")?.saturating_sub(kib("MemAvailable:")?);
    Some((used as f64 / 1024.0).round())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_proc() {
        assert_eq!(ticks("cpu  10 1 5 80 4 0 0 0 7 0\ncpu0 1"), Some((16, 100)));
        assert_eq!((ticks("intr 1"), ticks("cpu  1 2 x"), ticks("cpu  1 2 3")), (None, None, None));
        let text = "MemTotal:  2097152 kB\nMemFree: 1 kB\nMemAvailable: 1048576 kB\n";
        assert_eq!((used_mib(text), used_mib("MemTotal: 5 kB")), (Some(1024.0), None));
    }
}
