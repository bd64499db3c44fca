//! What an attempt is called: by journal, host, boot, life of the daemon, job and number.
//!
//! A *life* is one run of the daemon, with a random name that nothing else ever bears. The records of the attempts
//! that were decided in a life lie in a directory of that name, so that a journal that was restored or begun
//! anew, another host or another boot finds no record that it could take for its own. A life has a *place*, too, the state
//! directory: a copy of that is another one, and what was started from the first is not the copy's.

use carma_core::model::JobId;
use carma_core::units::Millis;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;

/// One run of the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Life {
    /// The journal's time at which it began; later than all that the journal held then.
    pub started: Millis,
    /// Its name: 128 random bits, hexadecimal. Empty: a daemon of before lives had names (carma before 0.2).
    pub name: String,
    /// The machine: `/etc/machine-id`, or its host name.
    pub host: String,
    /// The boot of the machine: `/proc/sys/kernel/random/boot_id`.
    pub boot: String,
    /// The state directory, by device and inode, so that one which was moved is the same. `None`: of a daemon that kept no
    /// mark of it (carma before 0.2), and counts as of the present one.
    pub place: Option<String>,
}

impl Life {
    /// The life that begins here and now, in a state directory.
    ///
    /// # Errors
    /// When the kernel tells neither its boot nor randomness.
    pub fn begin(started: Millis, place: &str) -> io::Result<Self> {
        let mut bits = [0_u8; 16];
        // Never short for so few bytes once the pool is ready, for which it waits.
        let got = rustix::rand::getrandom(&mut bits[..], rustix::rand::GetRandomFlags::empty())?;
        if got != bits.len() {
            return Err(io::Error::other("the kernel gave too few random bytes"));
        }
        let name = bits.iter().fold(String::new(), |name, byte| name + &format!("{byte:02x}"));
        Ok(Self { started, name, host: host(), boot: boot()?, place: Some(place.to_owned()) })
    }

    /// Of before lives had names. Their processes were of this boot, or their start times do not fit.
    #[must_use]
    pub fn nameless() -> Self {
        let boot = boot().unwrap_or_default();
        Self { started: Millis::ZERO, name: String::new(), host: host(), boot, place: None }
    }

    /// Whether its processes may still live on this machine, and are those of the present life's state directory.
    #[must_use]
    pub fn is_of(&self, here: &Self) -> bool {
        self.host == here.host && self.boot == here.boot && !self.is_elsewhere(here)
    }

    /// Whether it was that of another state directory, of which the present one is a copy.
    #[must_use]
    pub fn is_elsewhere(&self, here: &Self) -> bool {
        self.place.as_ref().zip(here.place.as_ref()).is_some_and(|(was, is)| was != is)
    }
}

/// The part of a life's name that is in names of attempts ([`AttemptId::short`]).
#[must_use]
pub fn short(life: &str) -> &str {
    life.get(..8).unwrap_or(life)
}

impl From<crate::journal::Life> for Life {
    fn from(life: crate::journal::Life) -> Self {
        Self { started: life.started, name: life.life, host: life.host, boot: life.boot, place: None }
    }
}

fn host() -> String {
    let id = fs::read_to_string("/etc/machine-id").unwrap_or_default();
    match id.trim() {
        "" | "uninitialized" => rustix::system::uname().nodename().to_string_lossy().into_owned(),
        id => id.to_owned(),
    }
}

fn boot() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// Identity of an attempt. Claims, fences and exit records bear it, and are believed by no other daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptId {
    /// The journal.
    pub journal: String,
    /// The life in which it was decided.
    pub life: String,
    /// The machine.
    pub host: String,
    /// Its boot.
    pub boot: String,
    /// Number of the job.
    pub job: JobId,
    /// Attempt, from 1.
    pub attempt: u32,
}

impl AttemptId {
    /// Short name, unique on this machine for practical purposes: `JOB.ATTEMPT.LIFE`, the life by its beginning.
    #[must_use]
    pub fn short(&self) -> String {
        format!("{}.{}.{}", self.job, self.attempt, short(&self.life))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lives_have_names_of_their_own() {
        let (a, b) = (Life::begin(Millis(1), "1-2").unwrap(), Life::begin(Millis(1), "1-2").unwrap());
        assert_ne!(a.name, b.name);
        assert_eq!(a.name.len(), 32);
        assert!(a.is_of(&b) && !a.boot.is_empty() && !a.host.is_empty());
        assert!(!a.is_of(&Life { boot: "another".into(), ..b.clone() }));
        let place = |place: Option<&str>| Life { place: place.map(str::to_owned), ..b.clone() };
        assert!(!a.is_of(&place(Some("1-3"))) && place(None).is_of(&a));
    }
}
