//! Running jobs: each under a supervisor process that outlives the daemon.
//!
//! How a launch survives `kill -9` of the daemon at any instant, without ever starting twice:
//!
//! 1. the decision is in the journal before anything is spawned;
//! 2. the supervisor's first act is to *claim* its attempt by creating `JOB.ATTEMPT.record`,
//!    which only one process can; without the claim it starts nothing;
//! 3. its last act is to add the exit to that file;
//! 4. a daemon that restarts and finds no claim for a decided attempt creates the claim itself. If
//!    that works, no supervisor of that attempt can ever start the job, and it may be decided anew.

pub mod adopt;
pub mod launch;
pub mod pace;
pub mod process;
pub mod progress;
pub mod record;
pub mod supervise;
pub mod usage;
pub mod watch;
