//! The descriptors of this process, and what they are for.
//!
//! Clients must never take those that a launch, an exit record or the journal needs: running out there ends other
//! people's jobs.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::sync::OnceLock;

/// Descriptors wanted where the hard limit allows any number: tables of the kernel grow with the highest one.
const ENOUGH: u64 = 1 << 20;
/// Connections at most, however many descriptors there are.
const MOST_CONNECTIONS: usize = 4096;
/// Connections at least: below, no user could work.
const LEAST_CONNECTIONS: usize = 8;

static INHERITED: OnceLock<Option<u64>> = OnceLock::new();

/// The soft limit of open files that the daemon was started with; `None`: there was none. Jobs get this one: programs
/// that use `select` or walk all descriptors suffer from a high one.
#[must_use]
pub fn inherited_nofile() -> Option<u64> {
    *INHERITED.get_or_init(|| getrlimit(Resource::Nofile).current)
}

/// Raises the soft limit of open files to the hard one, and remembers the former.
pub fn raise_nofile() -> Descriptors {
    let former = inherited_nofile();
    let hard = getrlimit(Resource::Nofile).maximum;
    let wanted = hard.unwrap_or(ENOUGH).min(ENOUGH).max(former.unwrap_or(ENOUGH));
    // Refused: the former one stays, and the budget is made from what there is.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: hard });
    let now = getrlimit(Resource::Nofile).current.unwrap_or(ENOUGH);
    Descriptors::of(now)
}

/// How descriptors are divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptors {
    /// How many there are.
    pub all: u64,
    /// Connections of clients at most: a quarter.
    pub connections: usize,
    /// Of those, kept for root and the user that the daemon runs as.
    pub kept: usize,
    /// Connections of one user.
    pub per_user: usize,
    /// Connections of root, and of the user that the daemon runs as.
    pub per_admin: usize,
    /// Readers of the journal at a time; each takes two or three descriptors.
    pub readers: usize,
}

impl Descriptors {
    /// The division of so many.
    #[must_use]
    pub fn of(all: u64) -> Self {
        let quarter = usize::try_from(all / 4).unwrap_or(usize::MAX);
        let connections = quarter.clamp(LEAST_CONNECTIONS, MOST_CONNECTIONS);
        let per_user = (connections / 8).max(4);
        let readers = usize::try_from(all / 64).unwrap_or(usize::MAX).clamp(1, 8);
        let kept = (connections / 16).max(2);
        Self { all, connections, kept, per_user, per_admin: connections / 2, readers }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_descriptors_are_left_for_jobs() {
        for all in [64, 256, 1024, 20_000, 1 << 20] {
            let d = Descriptors::of(all);
            // Refusals hold a few for a moment; the journal's writer has three.
            let clients = d.connections + d.readers * 3;
            assert!(clients as u64 <= all / 2, "{d:?}");
            assert!(d.per_user + d.kept < d.connections && d.per_admin >= d.per_user, "{d:?}");
            assert!(d.connections - d.kept >= d.per_user, "{d:?}");
        }
        assert_eq!(Descriptors::of(1 << 20).connections, 4096);
    }

    #[test]
    fn the_former_limit_is_remembered() {
        let before = getrlimit(Resource::Nofile).current;
        let budget = raise_nofile();
        assert_eq!(inherited_nofile(), before);
        assert!(budget.all >= before.unwrap_or(0));
    }
}
