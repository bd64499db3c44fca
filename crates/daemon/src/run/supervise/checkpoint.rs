//! The directory in which a job saves its work: made, and removed where nothing is left in it, with the user's rights.

use super::command::NotStarted;
use super::user::User;
use crate::run::order::{CheckpointDir, Order};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

/// The variable that names it to the job.
pub(super) const DIRECTORY: &str = "CARMA_CHECKPOINT_DIR";

/// How long the removal of an empty directory is waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// What the job gets.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Prepared {
    /// It wants no directory.
    Nothing,
    /// This directory, which is there.
    At(String),
    /// It goes on without one.
    Without {
        /// What its log is to say.
        why: String,
    },
}

/// Makes the directory. A job runs without one of its own, since it may save elsewhere.
///
/// # Errors
/// A directory that the user has named and that cannot be had: the command would save nothing, or save it where it is not
/// looked for.
pub(super) fn prepare(order: &Order, user: &User) -> Result<Prepared, NotStarted> {
    let without = |why: String| {
        let hint = "the job runs without CARMA_CHECKPOINT_DIR; --checkpoint-dir names another place";
        Ok(Prepared::Without { why: format!("{why}; {hint}") })
    };
    let Some(dir) = &order.checkpoint else { return Ok(Prepared::Nothing) };
    let Some(path) = dir.path() else {
        return without("no directory to save its work in: neither HOME nor XDG_STATE_HOME is set".into());
    };
    let Err(error) = user.act(|| make(path)) else {
        return Ok(Prepared::At(path.display().to_string()));
    };
    // Of what a path may hold, a line break would make two lines of one.
    let shown = path.display().to_string().escape_debug().to_string();
    match dir {
        CheckpointDir::Named(_) => {
            Err(NotStarted::by(&format!("its checkpoint directory {shown} cannot be used"), error))
        }
        CheckpointDir::Own(_) | CheckpointDir::Homeless => {
            without(format!("the directory {shown} to save its work in cannot be used ({error})"))
        }
    }
}

/// Makes the directory and those above it, for the user alone; one that is there stays as it is.
fn make(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    Ok(accessat(CWD, path, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS)?)
}

/// Removes a directory of the job's own that it has left empty. One that the user has named stays.
pub(super) fn tidy_up(order: &Order) {
    let Some(CheckpointDir::Own(path)) = order.checkpoint.clone() else { return };
    let (owner, (tell, done)) = (order.user, mpsc::channel());
    // The file system may hang. The end of the job is on disk by now, and is told when this process ends.
    let remove = move || {
        let _ = User::find(owner).and_then(|user| user.act(|| std::fs::remove_dir(&path)));
        let _ = tell.send(());
    };
    if std::thread::Builder::new().name("tidy up".into()).spawn(remove).is_ok() {
        let _ = done.recv_timeout(PATIENCE);
    }
}
