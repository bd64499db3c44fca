//! `carma report`: the page of a simulation, from what `carma simulate --json` printed.

use crate::cli::ReportArgs;
use crate::failure::{Failure, Outcome};
use crate::output::{clean, shell_line};
use carma_sim::report::html::{PageInput, page};
use carma_sim::report::json::SimulateReply;
use jiff::Zoned;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

/// The largest document that is read, in bytes. Three policies with a hundred thousand jobs each come to
/// a fifth of it, detail and indentation included.
const LARGEST: u64 = 1 << 30;

/// Runs the verb.
pub(crate) fn run(args: &ReportArgs) -> Outcome {
    let name = source_name(&args.file);
    let bytes = read(&args.file).map_err(|e| Failure::new(format!("cannot read {name}: {e}")))?;
    if bytes.len() as u64 > LARGEST {
        return Err(Failure::usage(format!("{name} is larger than {} GiB", LARGEST >> 30))
            .hint("simulate fewer jobs, or without --detail"));
    }
    let reply = SimulateReply::read(&bytes).map_err(|e| {
        Failure::usage(format!("{name}: {e}")).hint("carma report reads what `carma simulate --json` prints")
    })?;
    let mut notes = reply.notes.clone();
    notes.extend(remarks(&reply));
    let runs = reply.runs();
    let text = page(&PageInput {
        title: &format!("{} on {}", reply.trace, reply.cluster),
        trace: &reply.trace,
        cluster: &reply.cluster,
        command: reply.command.as_deref().unwrap_or_default(),
        date: &now(),
        notes: &notes,
        runs: &runs,
    });
    write_page(&args.output, &text)?;
    Ok(0)
}

/// What the page cannot show as it stands in the document.
fn remarks(reply: &SimulateReply) -> Vec<String> {
    let mut remarks = Vec::new();
    let without = reply.rows.iter().filter(|row| row.detail.is_none()).count();
    if without > 0 {
        remarks.push(format!(
            "{} of the {} policies come without jobs and activity: those are missing from the drawings. \
             `carma simulate --json --detail` writes them.",
            without,
            reply.rows.len()
        ));
    }
    if let Some(row) = reply.rows.iter().find(|row| row.seeds > 1) {
        remarks.push(format!(
            "Figures are means of {} runs with seeds from {} on; drawings show one of them.",
            row.seeds, row.seed
        ));
    }
    remarks
}

/// The time, as a page shows it.
pub(crate) fn now() -> String {
    Zoned::now().strftime("%Y-%m-%d %H:%M %Z").to_string()
}

/// Writes a page so that nobody sees half of one: beside the file first, then under its name. What is
/// no ordinary file, such as /dev/stdout, is written to as it is.
///
/// # Errors
/// When it cannot be written; the file is then as it was.
pub(crate) fn write_page(path: &Path, text: &str) -> Result<(), Failure> {
    let name = clean(&path.display().to_string()).into_owned();
    replace(path, text.as_bytes()).map_err(|e| Failure::new(format!("cannot write {name}: {e}")))
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let there = match fs::metadata(path) {
        Ok(there) => Some(there),
        Err(e) if e.kind() == ErrorKind::NotFound => None,
        Err(e) => return Err(e),
    };
    if there.as_ref().is_some_and(fs::Metadata::is_dir) {
        return Err(io::Error::new(ErrorKind::IsADirectory, "it is a directory"));
    }
    if there.as_ref().is_some_and(|there| !there.is_file()) {
        return OpenOptions::new().write(true).open(path)?.write_all(bytes);
    }
    // A link stays one: what it leads to is replaced.
    let path = if there.is_some() { fs::canonicalize(path)? } else { path.to_owned() };
    let (beside, mut file) = create_beside(&path)?;
    let written = file
        .write_all(bytes)
        .and_then(|()| there.map_or(Ok(()), |there| file.set_permissions(there.permissions())))
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&beside, &path));
    if written.is_err() {
        // The first error is the one to tell.
        let _ = fs::remove_file(&beside);
    }
    written
}

/// A new file in the same folder, since only there it can take the place of the other.
fn create_beside(path: &Path) -> io::Result<(PathBuf, File)> {
    let name = path.file_name().ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "it names no file"))?;
    for n in 0..100 {
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}-{n}.tmp", std::process::id()));
        let beside = path.with_file_name(hidden);
        match OpenOptions::new().write(true).create_new(true).open(&beside) {
            Ok(file) => return Ok((beside, file)),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
    }
    Err(io::Error::new(ErrorKind::AlreadyExists, "its folder is full of left-over temporary files"))
}

fn source_name(file: &Path) -> String {
    if file == Path::new("-") {
        return "standard input".into();
    }
    shell_line(&[file.display().to_string()])
}

/// All of it, up to one byte more than is allowed.
fn read(file: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if file == Path::new("-") {
        io::stdin().lock().take(LARGEST + 1).read_to_end(&mut bytes)?;
    } else {
        File::open(file)?.take(LARGEST + 1).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        let mut names: Vec<_> =
            entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_page_is_there_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("out.html");
        replace(&file, b"one").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        replace(&file, b"two").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"two");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
        let link = dir.path().join("link.html");
        symlink(&file, &link).unwrap();
        replace(&link, b"three").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"three");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(names(dir.path()), ["link.html", "out.html"]);
    }

    #[test]
    fn what_cannot_be_written_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        assert!(replace(&dir.path().join("no/such/out.html"), b"x").is_err());
        assert!(replace(dir.path(), b"x").is_err());
        replace(Path::new("/dev/null"), b"x").unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
        assert!(names(dir.path()).is_empty());
    }
}
