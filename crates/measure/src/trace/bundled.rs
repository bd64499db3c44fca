//! The tasks that come with carma.

use crate::Error;
use std::path::{Path, PathBuf};

/// Where they lie, in the folder of results: commands are learned by their names, which must be the same in every call.
pub(super) const FOLDER: &str = "tasks";

/// The file of tasks first, then what they run. Most are those of the measurements in bench/h200, in one place.
const FILES: [(&str, &str); 6] = [
    ("tasks.toml", include_str!("tasks.toml")),
    ("carma_tasks.py", include_str!("carma_tasks.py")),
    ("interference_tasks.py", include_str!("../../../../bench/h200/interference_tasks.py")),
    ("heavier_tasks.py", include_str!("../../../../bench/h200/heavier_tasks.py")),
    ("new_tasks.py", include_str!("../../../../bench/h200/new_tasks.py")),
    ("later_tasks.py", include_str!("../../../../bench/h200/later_tasks.py")),
];

/// Writes them below a folder of results; the file of tasks.
///
/// # Errors
/// A file that cannot be written.
pub fn bundled(results: &Path) -> Result<PathBuf, Error> {
    let folder = results.join(FOLDER);
    let failed = |path: &Path, e: std::io::Error| Error::new(format!("cannot write {}: {e}", path.display()));
    std::fs::create_dir_all(&folder).map_err(|e| failed(&folder, e))?;
    for (name, text) in FILES {
        let path = folder.join(name);
        carma_files::replace(&path, text.as_bytes()).map_err(|e| failed(&path, e))?;
    }
    Ok(folder.join(FILES[0].0))
}

#[cfg(test)]
mod tests {
    use super::super::tasks::{Here, TaskFile};
    use super::*;

    #[test]
    fn the_tasks_can_be_read_and_rehearsed() {
        let dir = tempfile::tempdir().unwrap();
        let file = TaskFile::read(&bundled(dir.path()).unwrap(), &[], &[]).unwrap();
        assert!(file.tasks.len() >= 16 && file.tasks.iter().filter(|task| task.gpus == 2).count() == 2);
        let here = Here { gpus: 2, memory_mib: None, is_virtual: true, work: 0.5 };
        let played = file.played(&here, &|line| panic!("{line}")).unwrap();
        assert!(played.iter().all(|task| task.memory_mib.is_some() && task.solo_s.is_some()));
        assert!(played.iter().all(|task| task.kind.command[1] == "virtual-task"));
        assert!(played[0].kind.command.contains(&"--work=11.5s".to_owned()), "{:?}", played[0]);
    }
}
