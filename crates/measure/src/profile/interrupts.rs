//! How a run is told to end early.

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// How often the user has wanted to stop. The first time ends the command, the second kills it.
#[derive(Debug, Clone)]
pub struct Interrupts {
    count: Arc<AtomicU32>,
    bell: Bell,
}

impl Interrupts {
    /// Not wanted yet.
    ///
    /// # Errors
    /// The system gives no more descriptors.
    pub fn new() -> io::Result<Self> {
        Ok(Self { count: Arc::default(), bell: Bell::new()? })
    }

    /// The user wants to stop; from any thread.
    pub fn interrupt(&self) {
        self.count.fetch_add(1, Ordering::AcqRel);
        self.bell.ring();
    }

    /// How often that was so far.
    pub fn count(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    /// Rung with each, and by whatever else a run waits for.
    pub(super) const fn bell(&self) -> &Bell {
        &self.bell
    }
}

/// Wakes the thread that polls it.
#[derive(Debug, Clone)]
pub(super) struct Bell(Arc<OwnedFd>);

impl Bell {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    pub(super) fn ring(&self) {
        // Fails only when it rings already.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }

    pub(super) fn hush(&self) {
        let _ = rustix::io::read(&*self.0, &mut [0_u8; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
