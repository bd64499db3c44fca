//! Host CPU and memory of a group of processes, from `/proc`.

use std::collections::BTreeMap;
use std::fs;

/// What a task takes of the host.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Host {
    /// CPU since the last look, 100 for one core; `None` at the first.
    pub cpu_pct: Option<f64>,
    /// Memory: the anonymous pages of all its processes, and the mapped files and shared memory of the one that has
    /// most of them, since they are the same ones in all.
    pub memory_mib: f64,
}

/// Remembers CPU times between looks.
#[derive(Debug, Default)]
pub struct Usage {
    /// By pid: start time, CPU time, clock ticks.
    seen: BTreeMap<u32, (u64, u64)>,
    last_s: Option<f64>,
}

impl Usage {
    /// Looks at these processes. `at_s`: when, seconds of any clock.
    pub fn look(&mut self, at_s: f64, pids: &[u32]) -> Host {
        let now: BTreeMap<u32, (u64, u64)> =
            pids.iter().filter_map(|pid| Some((*pid, cpu(&text(*pid, "stat")?)?))).collect();
        let ticks: u64 = now
            .iter()
            .map(|(pid, (start, ticks))| match self.seen.get(pid) {
                Some((before, earlier)) if before == start => ticks.saturating_sub(*earlier),
                // It has come since the last look.
                _ => *ticks,
            })
            .sum();
        let per_second = rustix::param::clock_ticks_per_second().max(1) as f64;
        let span = self.last_s.map(|last| at_s - last).filter(|span| *span > 0.0);
        let cpu_pct = span.map(|span| ticks as f64 / per_second / span * 100.0);
        self.last_s = Some(at_s);
        self.seen = now;
        let memory = pids
            .iter()
            .filter_map(|pid| text(*pid, "status"))
            .map(|text| resident(&text))
            .fold((0, 0), |(own, shared), (a, s)| (own + a, s.max(shared)));
        Host { cpu_pct, memory_mib: (memory.0 + memory.1) as f64 / 1024.0 }
    }
}

/// A file of the kernel's about a process, whose name in it need not be text. `status` lists groups, and may be longer than
/// [`crate::process::kernel_file`] reads.
fn text(pid: u32, file: &str) -> Option<String> {
    let bytes = fs::read(format!("/proc/{pid}/{file}")).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Start time and CPU time (user and system) from `/proc/PID/stat`.
fn cpu(stat: &str) -> Option<(u64, u64)> {
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some((number(19)?, number(11)?.saturating_add(number(12)?)))
}

/// Anonymous, and file and shared memory from `/proc/PID/status`, KiB.
fn resident(status: &str) -> (u64, u64) {
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    (field("RssAnon:"), field("RssFile:").saturating_add(field("RssShmem:")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_proc() {
        let stat = "42 (a) R 1 (b) S 7 8 9 0 -1 0 0 0 0 0 250 50 0 0 20 0 1 0 12345 0 0";
        assert_eq!(cpu(stat), Some((12345, 300)));
        assert_eq!(cpu("nonsense"), None);
        assert_eq!(
            resident("VmRSS:\t 900 kB\nRssAnon:\t 500 kB\nRssFile:\t 300 kB\nRssShmem:\t 7 kB\n"),
            (500, 307)
        );
    }

    #[test]
    fn it_sees_this_process_work() {
        let mut usage = Usage::default();
        let me = [std::process::id()];
        let first = usage.look(0.0, &me);
        assert_eq!(first.cpu_pct, None);
        assert!(first.memory_mib > 0.1);
        let mut sum = 0_u64;
        let start = std::time::Instant::now();
        while start.elapsed().as_millis() < 60 {
            sum = sum.wrapping_mul(31).wrapping_add(7);
        }
        std::hint::black_box(sum);
        // It worked for some ticks; how long that took is said by the caller.
        assert!(usage.look(1.0, &me).cpu_pct.is_some_and(|pct| pct > 0.0));
        assert_eq!(usage.look(2.0, &[]).memory_mib, 0.0);
    }
}
