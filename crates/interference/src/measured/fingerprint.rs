//! Which window is which: so that one is not learned from twice.

use super::{Measured, Session};
use fnv::FnvHasher;
use std::collections::BTreeMap;
use std::hash::Hasher as _;

impl Measured {
    /// One number for each window, in the order of `combinations`: the same wherever and by whatever version of carma
    /// it is made, since it is stored. It follows the session (GPU, beginning, number), time, sharing, members, limits
    /// and rates, and `gpu`, the type that is learned of. It does not follow `progress`: that changes while a
    /// measurement goes on. Windows that differ in nothing of this are one window.
    #[must_use]
    pub fn fingerprints(&self, gpu: &str) -> Vec<u64> {
        let sessions: BTreeMap<u32, &Session> = self.sessions.iter().map(|s| (s.number, s)).collect();
        let windows = self.combinations.iter().map(|window| {
            let mut hash = Fnv::default();
            hash.text(gpu);
            // Files that were written by hand have no sessions.
            if let Some(session) = sessions.get(&window.session) {
                hash.text(session.gpu_uuid.as_deref().unwrap_or_default()).text(&session.began);
            }
            hash.number(u64::from(window.session)).number(u64::from(window.repeat));
            hash.number(window.at_s.to_bits()).text(&window.sharing.to_string());
            hash.number(window.members.len() as u64);
            for name in &window.members {
                hash.text(name);
            }
            hash.number(window.threads_pct.len() as u64);
            for pct in &window.threads_pct {
                hash.number(u64::from(*pct));
            }
            hash.number(window.rates.len() as u64);
            for rate in &window.rates {
                hash.number(rate.to_bits());
            }
            hash.0.finish()
        });
        windows.collect()
    }
}

/// FNV-1a over parts that are kept apart.
#[derive(Default)]
struct Fnv(FnvHasher);

impl Fnv {
    fn text(&mut self, text: &str) -> &mut Self {
        self.number(text.len() as u64).0.write(text.as_bytes());
        self
    }

    fn number(&mut self, number: u64) -> &mut Self {
        self.0.write(&number.to_le_bytes());
        self
    }
}
