//! A copy of the journal while a daemon may be at work.

use super::{JournalError, check, read, sql};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Writes a copy of the journal to a file that must not be there: one transaction's view, for its owner's eyes only,
/// checked, and on disk afterwards. It is a journal with the same name; put in the place of the journal, it counts as
/// an older copy.
///
/// # Errors
/// When the journal or the copy is not sound, the file is there already, or the disk does not take it. There is no
/// file then.
pub fn backup(journal: &Path, to: &Path) -> Result<(), JournalError> {
    let file = |path: &Path| {
        let path = path.to_owned();
        move |why| JournalError::File { path, why }
    };
    if fs::symlink_metadata(to).is_ok() {
        let why = io::Error::other(
            "there is such a file already, and a backup replaces nothing; give another name",
        );
        return Err(file(to)(why));
    }
    if !journal.is_file() {
        return Err(file(journal)(io::Error::other("there is no journal; name its directory with --state")));
    }
    let dir = to.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !dir.is_dir() {
        let why = format!("there is no directory {}; make it, or give another name", dir.display());
        return Err(file(to)(io::Error::other(why)));
    }
    let aside = to.with_added_extension(format!("{}.part", std::process::id()));
    let written = write(journal, &aside, to).and_then(|()| {
        // Not a rename, which would replace what came there meanwhile.
        fs::hard_link(&aside, to).map_err(file(to))?;
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(file(dir))
    });
    let _ = fs::remove_file(&aside);
    written
}

/// Errors name the file that was asked for, not the one aside.
fn write(journal: &Path, aside: &Path, to: &Path) -> Result<(), JournalError> {
    let file = |why| JournalError::File { path: to.to_owned(), why };
    File::options().write(true).create_new(true).mode(0o600).open(aside).map_err(file)?;
    let failed = sql("copied");
    let db = read::open_to_read(journal).map_err(&failed)?;
    let name = aside.to_str().ok_or_else(|| file(io::Error::other("the name is not UTF-8")))?;
    db.execute("VACUUM INTO ?1", [name]).map_err(&failed)?;
    drop(db);
    File::open(aside).and_then(|copy| copy.sync_all()).map_err(file)?;
    let broken: Vec<String> = check::check(aside)
        .into_iter()
        .filter(|finding| !finding.ok)
        .map(|finding| format!("{}: {}", finding.about, finding.text))
        .collect();
    if broken.is_empty() { Ok(()) } else { Err(JournalError::Damaged(broken.join("; "))) }
}
