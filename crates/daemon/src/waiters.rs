//! Clients that wait for the end of a job.

use carma_core::model::JobId;
use std::collections::BTreeMap;
use tokio::sync::oneshot;

/// Entries below which dead ones are not looked for.
const FEW: usize = 64;

/// Clients that wait for jobs. Those that went away are swept out, at a cost that each newcomer bears a little of:
/// what is kept is at most twice what lives.
#[derive(Default)]
pub struct Waiters {
    of: BTreeMap<JobId, Vec<oneshot::Sender<()>>>,
    count: usize,
    sweep_at: usize,
}

impl Waiters {
    /// A client waits for a job.
    pub fn add(&mut self, job: JobId, waiter: oneshot::Sender<()>) {
        if self.count >= self.sweep_at.max(FEW) {
            self.sweep();
        }
        self.of.entry(job).or_default().push(waiter);
        self.count += 1;
    }

    /// The job is over.
    pub fn tell(&mut self, job: JobId) {
        let waiters = self.of.remove(&job).unwrap_or_default();
        self.count -= waiters.len();
        for waiter in waiters {
            let _ = waiter.send(());
        }
    }

    /// Entries, dead ones included.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Whether no client waits.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn sweep(&mut self) {
        self.of.retain(|_, waiters| {
            waiters.retain(|waiter| !waiter.is_closed());
            !waiters.is_empty()
        });
        self.count = self.of.values().map(Vec::len).sum();
        self.sweep_at = self.count * 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_went_away_are_forgotten_and_the_others_are_told() {
        let mut waiters = Waiters::default();
        let mut live = Vec::new();
        for n in 0..20_000 {
            let (sender, receiver) = oneshot::channel();
            waiters.add(JobId(n % 500), sender);
            if n % 200 == 0 {
                live.push((n % 500, receiver));
            }
            assert!(
                waiters.len() <= 2 * live.len() + FEW + 1,
                "{} entries for {}",
                waiters.len(),
                live.len()
            );
        }
        waiters.tell(JobId(200));
        for (job, receiver) in &mut live {
            assert_eq!(receiver.try_recv().is_ok(), *job == 200);
        }
        for n in 0..500 {
            waiters.tell(JobId(n));
        }
        assert!(waiters.is_empty());
    }
}
