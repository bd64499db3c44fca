//! Something that is kept of commands: stored beside the journal, and bounded.

use super::{Beside, MOST_PROFILES, Stored};
use carma_core::units::Millis;
use carma_interference::profile::Profile;
use carma_memory::history::oldest_of_most;
use std::collections::{BTreeMap, BTreeSet};

/// Command, and product name of the GPU.
pub(super) type Key = (u64, String);

/// By command and GPU, and what of it is to be stored. Beyond [`MOST_PROFILES`] of them, of the user who has the most, the one
/// used least lately is forgotten.
pub(super) struct Rows<T> {
    kept: BTreeMap<Key, Kept<T>>,
    changed: BTreeSet<Key>,
    forgotten: Vec<Key>,
}

struct Kept<T> {
    what: T,
    beside: Beside,
}

/// A command that is seen again and again is stored so often for that, by days of the clock.
pub(super) const STORED_EVERY: Millis = Millis::secs(86_400);

impl<T> Default for Rows<T> {
    fn default() -> Self {
        Self { kept: BTreeMap::new(), changed: BTreeSet::new(), forgotten: Vec::new() }
    }
}

impl<T> Rows<T> {
    /// What is kept of a command.
    pub(super) fn get(&self, key: &Key) -> Option<&T> {
        self.kept.get(key).map(|kept| &kept.what)
    }

    /// Whether anything is kept of a command, on any type of GPU.
    pub(super) fn has_command(&self, command: u64) -> bool {
        self.kept.range((command, String::new())..).next().is_some_and(|((of, _), _)| *of == command)
    }

    /// All that is kept.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Key, &T)> {
        self.kept.iter().map(|(key, kept)| (key, &kept.what))
    }

    /// What was stored.
    pub(super) fn restore(&mut self, key: Key, what: T, beside: Beside) {
        self.make_room(&key, beside.uid);
        self.kept.insert(key, Kept { what, beside });
    }

    /// What is kept of a command that is seen now; `new`, if that is nothing.
    pub(super) fn used(
        &mut self,
        now: Millis,
        key: &Key,
        uid: Option<u32>,
        new: impl FnOnce() -> T,
    ) -> &mut T {
        self.make_room(key, uid);
        let beside = Beside { uid, used: now };
        let kept = self.kept.entry(key.clone()).or_insert_with(|| Kept { what: new(), beside });
        // What is stored says that it was used this day.
        let is_news = now.0 / STORED_EVERY.0 != kept.beside.used.0 / STORED_EVERY.0;
        if is_news {
            self.changed.insert(key.clone());
        }
        kept.beside = beside;
        &mut kept.what
    }

    /// It is to be stored anew.
    pub(super) fn changed(&mut self, key: Key) {
        self.changed.insert(key);
    }

    /// Nothing is to be kept of the command.
    pub(super) fn forget(&mut self, key: &Key) {
        if self.kept.remove(key).is_some() {
            self.changed.remove(key);
            self.forgotten.push(key.clone());
        }
    }

    /// What was forgotten since [`Self::changes`] were asked for.
    pub(super) fn forgotten(&self) -> &[Key] {
        &self.forgotten
    }

    /// Rows that changed since the last time, as profiles; `None`: one that is forgotten.
    pub(super) fn changes(
        &mut self,
        profile: fn(&T) -> &Profile,
    ) -> impl Iterator<Item = (Key, Option<Stored<'_>>)> {
        let forgotten = std::mem::take(&mut self.forgotten).into_iter().map(|key| (key, None));
        let changed = std::mem::take(&mut self.changed);
        let kept = &self.kept;
        forgotten.chain(changed.into_iter().map(move |key| {
            let kept = kept.get(&key);
            (key, kept.map(|kept| Stored { profile: profile(&kept.what), beside: kept.beside }))
        }))
    }

    /// Forgets a command if there is no room for this one. Returns which.
    pub(super) fn make_room(&mut self, key: &Key, by: Option<u32>) -> Option<Key> {
        if self.kept.len() < MOST_PROFILES || self.kept.contains_key(key) {
            return None;
        }
        let all = || self.kept.iter().map(|(key, kept)| (kept.beside.uid, kept.beside.used, key));
        let oldest = oldest_of_most(all, by).cloned()?;
        self.forget(&oldest);
        Some(oldest)
    }
}
