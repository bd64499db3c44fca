//! Readers of the journal: few at a time, since each takes descriptors, and on threads that may block.

use super::Failure;
use super::connections::{TURN, Turns, blocking};
use crate::journal::{Journal, Reader};
use crate::refused::Refused;
use axum::Extension;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Long listings that are made at a time: each takes memory in proportion to what it lists.
const LISTINGS: usize = 2;

/// A user's turn of a long listing. An answer that bears one is told in it: what its client does not read takes memory.
#[derive(Clone)]
pub(super) struct Listed {
    _turn: Arc<OwnedSemaphorePermit>,
}

/// The turn of a long listing, given back when nothing works on it any more.
#[derive(Clone)]
pub(super) struct Listing {
    own: Listed,
    /// Of all users, who wait for no client.
    _all: Arc<OwnedSemaphorePermit>,
}

impl Listing {
    /// It is made.
    pub(super) fn over(self) -> Extension<Listed> {
        Extension(self.own)
    }
}

/// The readers, reused.
pub struct Readers {
    path: PathBuf,
    free: Mutex<Vec<Reader>>,
    places: Arc<Semaphore>,
    listings: Arc<Semaphore>,
}

fn busy(what: &str) -> Failure {
    Refused::new(503, "busy", format!("{what}: ask again in a moment")).into()
}

async fn turn(of: &Arc<Semaphore>, what: &str) -> Result<OwnedSemaphorePermit, Failure> {
    match timeout(TURN, of.clone().acquire_owned()).await {
        Ok(Ok(permit)) => Ok(permit),
        Ok(Err(_)) | Err(_) => Err(busy(what)),
    }
}

impl Readers {
    /// At most so many of this journal.
    #[must_use]
    pub fn new(path: PathBuf, most: usize) -> Self {
        Self {
            path,
            free: Mutex::default(),
            places: Arc::new(Semaphore::new(most)),
            listings: Arc::new(Semaphore::new(LISTINGS)),
        }
    }

    /// Reads something, on a thread of its own, when it is its turn.
    pub(super) async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Reader) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let place = turn(&self.places, "the journal is being read for others").await?;
        let this = self.clone();
        let done = blocking(move || {
            // Given back when the work is done, also when no client waits for it any more.
            let _place = place;
            let free = || this.free.lock().unwrap_or_else(PoisonError::into_inner);
            let reader = free().pop();
            let reader = match reader {
                Some(reader) => reader,
                None => Journal::reader(&this.path)?,
            };
            // A reader that failed is not used again.
            let done = work(&reader)?;
            free().push(reader);
            Ok(done)
        });
        done.await?
    }

    /// The turn of a long listing: one for each user at a time, few for all. What works on another thread takes it along.
    pub(super) async fn listing(&self, turns: &Turns) -> Result<Listing, Failure> {
        let own = turn(&turns.listings, "another long listing of yours is being made or read").await?;
        let all = turn(&self.listings, "long listings are being made for others").await?;
        Ok(Listing { own: Listed { _turn: Arc::new(own) }, _all: Arc::new(all) })
    }
}
