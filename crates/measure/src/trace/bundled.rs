//! The tasks that come with carma.

use super::tasks::TaskFile;
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

/// Those of them that are meant to fail: they can be added to any file's tasks.
const FAILING: [&str; 2] = ["out_of_memory", "illegal_address"];

/// Adds those of the tasks that are meant to fail which `names` has and the file has not; they are written below a folder of results.
pub(super) fn lend(file: &mut TaskFile, names: &[String], results: &Path) -> Result<(), Error> {
    let lacking = |name: &&str| !file.has(name) && names.iter().any(|asked| asked == name);
    let lent: Vec<&str> = FAILING.into_iter().filter(lacking).collect();
    if !lent.is_empty() {
        let ours = TaskFile::read(&bundled(results)?)?;
        for name in lent {
            file.borrow(&ours, name);
        }
    }
    Ok(())
}

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
    use super::super::tasks::Here;
    use super::*;

    #[test]
    fn tasks_that_are_meant_to_fail_join_those_of_a_user() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mine.toml");
        let own = "env = { A = '1' }\n[[task]]\nname = 'mine'\ncommand = ['true']\n\
                   [[task]]\nname = 'illegal_address'\ncommand = ['false']\n";
        std::fs::write(&path, own).unwrap();
        let mut file = TaskFile::read(&path).unwrap();
        let names = FAILING.map(str::to_owned);
        lend(&mut file, &names, &dir.path().join("out")).unwrap();
        file.choose(&["mine".to_owned()], &names).unwrap();
        let here = Here { gpus: 1, memory_mib: None, is_virtual: false, work: 1.0 };
        for task in &mut file.tasks {
            task.modules.clear();
        }
        let played = file.played(&here, &|line| panic!("{line}")).unwrap();
        let of: Vec<_> = played.iter().map(|task| task.kind.name.as_str()).collect();
        // The file's own goes first.
        assert_eq!(of, ["mine", "illegal_address", "out_of_memory"]);
        assert_eq!(played[1].kind.command, ["false"]);
        let lent = &played[2];
        assert!(lent.cwd.join(&lent.kind.command[1]).is_file(), "{lent:?}");
        assert_eq!((lent.env["A"].as_str(), lent.env["OMP_NUM_THREADS"].as_str()), ("1", "1"));
        // Where none is asked for, nothing is written; others are not lent.
        let mut file = TaskFile::read(&path).unwrap();
        lend(&mut file, &["resnet50".to_owned()], &dir.path().join("none")).unwrap();
        assert!(!dir.path().join("none").exists());
        let why = file.choose(&[], &["resnet50".to_owned()]).unwrap_err().message;
        assert!(why.contains("mine.toml: no task is named `resnet50`"), "{why}");
    }

    #[test]
    fn the_tasks_can_be_read_and_rehearsed() {
        let dir = tempfile::tempdir().unwrap();
        let file = TaskFile::read(&bundled(dir.path()).unwrap()).unwrap();
        assert!(file.tasks.len() >= 16 && file.tasks.iter().filter(|task| task.gpus == 2).count() == 2);
        let here = Here { gpus: 2, memory_mib: None, is_virtual: true, work: 0.5 };
        let played = file.played(&here, &|line| panic!("{line}")).unwrap();
        assert!(played.iter().all(|task| task.memory_mib.is_some() && task.solo_s.is_some()));
        assert!(played.iter().all(|task| task.kind.command[1] == "virtual-task"));
        assert!(played[0].kind.command.contains(&"--work=11.5s".to_owned()), "{:?}", played[0]);
    }
}
