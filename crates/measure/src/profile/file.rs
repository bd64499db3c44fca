//! The file of profiles: checked before a run, added to after it.

use crate::Error;
use carma_files::{Lock, replace};
use carma_interference::profile::{Profile, Profiles, VERSION};
use std::io::ErrorKind;
use std::path::Path;

/// Says before a long run what would fail after it.
///
/// # Errors
/// A directory that is not there, a file that would be lost or cannot be added to.
pub fn check(path: &Path, append: bool) -> Result<(), Error> {
    let folder =
        path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    if !folder.is_dir() {
        return Err(Error::usage(format!(
            "cannot write {}: there is no directory {}",
            path.display(),
            folder.display()
        )));
    }
    match read(path)? {
        Some(profiles) if !append && !profiles.tasks.is_empty() => Err(Error::usage(format!(
            "{} exists, with {} tasks in it; --append adds to them, or choose another name",
            path.display(),
            profiles.tasks.len()
        ))),
        _ => Ok(()),
    }
}

/// Adds the profile to the file, in place of one of that name; makes the file if there is none. Several programs may do
/// so at once.
///
/// # Errors
/// A file that is not one of profiles, or cannot be written; a profile with numbers that no command would read again. The file is
/// then as it was.
pub fn save(path: &Path, profile: &Profile) -> Result<(), Error> {
    let failed = |e: std::io::Error| Error::new(format!("cannot write {}: {e}", path.display()));
    profile.check().map_err(|e| {
        Error::new(format!("{}: the profile is not written: {e}", path.display()))
            .hint("profile it again; if it stays so, its counters cannot be trusted here")
    })?;
    let _held = Lock::hold(path).map_err(failed)?;
    let mut profiles = read(path)?.unwrap_or_else(|| Profiles {
        version: VERSION,
        gpu: profile.gpu.clone(),
        tasks: Vec::new(),
    });
    profiles.version = VERSION;
    match profiles.tasks.iter_mut().find(|task| task.name == profile.name) {
        Some(known) => *known = profile.clone(),
        None => profiles.tasks.push(profile.clone()),
    }
    let mut text = serde_json::to_vec_pretty(&profiles).map_err(|e| Error::new(e.to_string()))?;
    text.push(b'\n');
    replace(path, &text).map_err(failed)
}

/// What the file holds; `None`: it is not there, or is a pipe or the like.
fn read(path: &Path) -> Result<Option<Profiles>, Error> {
    let failed = |why: String| Error::usage(format!("{}: {why}", path.display()));
    match std::fs::metadata(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(failed(e.to_string())),
        Ok(meta) if meta.is_dir() => return Err(failed("it is a directory".to_owned())),
        Ok(meta) if !meta.is_file() => return Ok(None),
        Ok(meta) if meta.len() == 0 => return Ok(None),
        Ok(_) => {}
    }
    let text = carma_files::read_text(path, carma_files::MOST).map_err(|e| failed(e.why.to_string()))?;
    Profiles::read(&text).map(Some).map_err(|e| failed(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn profile(name: &str, watched_s: f64) -> Profile {
        Profile {
            name: name.into(),
            gpu: Some("Virtual H200".into()),
            watched_s: Some(watched_s),
            ..Profile::default()
        }
    }

    #[test]
    fn profiles_that_are_added_at_once_are_all_there() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("p.json");
        std::thread::scope(|scope| {
            for name in ["a", "b", "c", "d"] {
                let file = &file;
                scope.spawn(move || {
                    for n in 0..10 {
                        save(file, &profile(&format!("{name}{n}"), 1.0)).unwrap();
                    }
                });
            }
        });
        assert_eq!(read(&file).unwrap().unwrap().tasks.len(), 40);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left behind");
    }

    #[test]
    fn a_task_is_added_or_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("p.json");
        check(&file, false).unwrap();
        for (name, watched) in [("a", 1.0), ("b", 2.0), ("a", 3.0)] {
            save(&file, &profile(name, watched)).unwrap();
        }
        // A link to the file stays one.
        let link = dir.path().join("link.json");
        std::os::unix::fs::symlink("p.json", &link).unwrap();
        save(&link, &profile("a", 3.0)).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        fs::remove_file(&link).unwrap();
        let profiles = read(&file).unwrap().unwrap();
        let seen: Vec<_> = profiles.tasks.iter().map(|task| (task.name.as_str(), task.watched_s)).collect();
        assert_eq!(seen, [("a", Some(3.0)), ("b", Some(2.0))]);
        let refused = check(&file, false).unwrap_err();
        assert!(refused.message.contains("2 tasks in it; --append"));
        check(&file, true).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn what_could_not_be_read_again_is_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("p.json");
        save(&file, &profile("a", 1.0)).unwrap();
        let before = fs::read_to_string(&file).unwrap();
        let mut bad = profile("b", 1.0);
        bad.metrics.smact_pct = Some(carma_interference::profile::Stat::of(250.0));
        let refused = save(&file, &bad).unwrap_err().message;
        assert!(refused.contains("the profile is not written: task `b`: smact_pct is 250"), "{refused}");
        assert_eq!(fs::read_to_string(&file).unwrap(), before);
    }

    #[test]
    fn what_cannot_be_written_is_said_and_stays_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("notes.txt");
        fs::write(&file, "my notes").unwrap();
        for append in [false, true] {
            let refused = check(&file, append).unwrap_err().message;
            assert!(refused.contains("notes.txt: not a file of solo profiles"), "{refused}");
        }
        assert!(save(&file, &profile("a", 1.0)).is_err());
        assert_eq!(fs::read_to_string(&file).unwrap(), "my notes");
        let refused = check(&dir.path().join("absent/p.json"), false).unwrap_err().message;
        assert!(refused.contains("there is no directory"), "{refused}");
        assert!(check(dir.path(), true).unwrap_err().message.contains("it is a directory"));
        // A full disk.
        let full = save(Path::new("/dev/full"), &profile("a", 1.0)).unwrap_err().message;
        assert!(full.contains("cannot write /dev/full: No space left"), "{full}");
    }
}
