//! Arguments of `carma journal`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `carma journal`.
#[derive(Debug, Subcommand)]
pub(crate) enum JournalVerb {
    /// Say whether the journal holds what was written to it; the daemon may run meanwhile
    Check(CheckArgs),
    /// Write a copy of the journal to a new file; the daemon may run meanwhile
    Backup(BackupArgs),
    /// Put a damaged journal aside and save what can be read of it; no daemon may run
    Repair(RepairArgs),
}

/// Where the journal is.
#[derive(Debug, Args)]
pub(crate) struct StateArgs {
    /// Directory of the journal and the logs [default: that of the daemon that answers at the socket, else of the one that `carma serve` would start]
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
}

/// `carma journal check`.
#[derive(Debug, Args)]
#[command(after_help = "Exit code 1: something is broken. Nothing is changed.")]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) state: StateArgs,
    /// Print the findings as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `carma journal backup`.
#[derive(Debug, Args)]
#[command(
    after_help = "The copy holds all users' commands and environments; only its owner may read it. Put in the place of the journal, it counts as an older copy: the daemon refuses it until `carma journal repair --accept-loss`."
)]
pub(crate) struct BackupArgs {
    /// The copy; there must be no such file
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) state: StateArgs,
}

/// `carma journal repair`.
#[derive(Debug, Args)]
#[command(
    after_help = "The damaged files are kept in a directory `damaged-...` beside the journal. Where entries are lost, jobs that wait are held, since they may have run; numbers of jobs are never used again."
)]
pub(crate) struct RepairArgs {
    #[command(flatten)]
    pub(crate) state: StateArgs,
    /// Go on although something is lost; without this, repair says what would be lost and changes nothing
    #[arg(long)]
    pub(crate) accept_loss: bool,
}
