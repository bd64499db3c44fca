//! Running jobs: each under a supervisor process that outlives the daemon.
//!
//! How a launch survives `kill -9` of the daemon at any instant, without ever starting twice:
//!
//! 1. each run of the daemon is a *life* with a random name and a directory of records of that name;
//! 2. the decision is in the journal before anything is spawned;
//! 3. the supervisor's first act is to *claim* its attempt by creating `LIFE/JOB.ATTEMPT.record`,
//!    which only one process can; without the claim it starts nothing;
//! 4. it says in the record that it is about to start the command, what it started, and at last how that ended;
//! 5. a daemon that finds no claim for a decided attempt creates the claim itself, a *fence*. If
//!    that works, no supervisor of that attempt can ever start the job, and it may be decided anew;
//! 6. the directory of a life goes when nothing of that life is under way, and with it every later claim.

pub mod adopt;
pub mod cgroup;
pub mod checkpoint;
pub mod identity;
pub mod launch;
pub mod lives;
pub mod order;
pub mod pace;
pub mod record;
pub mod supervise;
pub mod suspend;
pub mod watch;
