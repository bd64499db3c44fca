//! Which window is which: so that one is not learned from twice.

use super::{Measured, Session};
use std::collections::BTreeMap;

impl Measured {
    /// One number for each window, in the order of `combinations`: the same wherever and by whatever version of carma
    /// it is made, since it is stored. It follows the session (GPU, beginning, number), time, sharing, members, limits
    /// and rates, and `gpu`, the type that is learned of. It does not follow `progress`: that changes while a
    /// measurement goes on. Windows that differ in nothing of this are one window.
    #[must_use]
    pub fn fingerprints(&self, gpu: &str) -> Vec<u64> {
        let sessions: BTreeMap<u32, &Session> = self.sessions.iter().map(|s| (s.number, s)).collect();
        let windows = self.combinations.iter().map(|window| {
            let mut hash = Fnv::new();
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
            hash.0
        });
        windows.collect()
    }
}

/// FNV-1a over parts that are kept apart.
struct Fnv(u64);

impl Fnv {
    const fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn byte(&mut self, byte: u8) {
        self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }

    fn text(&mut self, text: &str) -> &mut Self {
        self.number(text.len() as u64);
        text.bytes().for_each(|byte| self.byte(byte));
        self
    }

    fn number(&mut self, number: u64) -> &mut Self {
        number.to_le_bytes().into_iter().for_each(|byte| self.byte(byte));
        self
    }
}
