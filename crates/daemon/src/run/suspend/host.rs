//! Whether the host has the memory that a suspended job takes: what is on a GPU goes to the job's own processes, and so
//! counts for its cgroup.

use crate::run::cgroup::Group;
use carma_core::units::MiB;
use carma_process::process;
use std::path::Path;

/// Of the host's memory, percent of it are left to others.
const RESERVE_PERCENT: u64 = 5;
/// But no less than this.
const RESERVE_LEAST: MiB = MiB::gib(2);

/// The host's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Host {
    total: MiB,
    available: MiB,
}

impl Host {
    /// Now. `None`: the kernel does not say.
    #[must_use]
    pub fn now() -> Option<Self> {
        Self::read(&process::kernel_file(Path::new("/proc/meminfo")).ok()?)
    }

    fn read(text: &str) -> Option<Self> {
        let kib = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            line.trim().strip_suffix(" kB")?.parse::<u64>().ok()
        };
        Some(Self { total: MiB(kib("MemTotal")? / 1024), available: MiB(kib("MemAvailable")? / 1024) })
    }

    /// Whether so much can be had, where others are about to take `promised`.
    ///
    /// # Errors
    /// In words, with numbers.
    pub fn has_room(self, need: MiB, promised: MiB, group: Option<&Group>) -> Result<(), String> {
        let reserve = self.total.percent(RESERVE_PERCENT).max(RESERVE_LEAST);
        let free = self.available - promised - reserve;
        if need > free {
            let others = if promised.is_zero() {
                String::new()
            } else {
                format!(", {promised} go to others that are being suspended")
            };
            return Err(format!(
                "its {need} of GPU memory would go to the host's, of which {} are available{others} and {reserve} are kept free",
                self.available
            ));
        }
        match group.and_then(Group::room) {
            Some((room, limit)) if need > room => Err(format!(
                "its {need} of GPU memory would go to the host's, and its cgroup has room for {room} more (limit {limit}; --mem)"
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_memory_must_do() {
        let text = "MemTotal:       131072000 kB\nMemFree:  1 kB\nMemAvailable:   62914560 kB\n";
        let host = Host::read(text).unwrap();
        assert_eq!(host, Host { total: MiB(128_000), available: MiB(61_440) });
        assert_eq!(host.has_room(MiB::gib(50), MiB::ZERO, None), Ok(()));
        let none = host.has_room(MiB::gib(50), MiB::gib(10), None).unwrap_err();
        assert!(
            none.contains("its 50.0 GiB") && none.contains("60.0 GiB are available, 10.0 GiB go"),
            "{none}"
        );
        assert!(host.has_room(MiB::gib(54), MiB::ZERO, None).is_err());
        assert_eq!(Host::read("MemTotal: 1 kB\n"), None);
        assert!(Host::now().is_some());
    }
}
