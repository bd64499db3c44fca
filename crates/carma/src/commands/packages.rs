//! The packages of a command's Python, by its files: nothing is run.

use super::dry_run;
use carma_memory::command::Command;
use std::fs;
use std::path::{Path, PathBuf};

/// Largest file of PyTorch's version that is looked at, bytes.
const MOST_VERSION: u64 = 4 << 20;

/// Folders of packages; none: its Python is not found.
#[derive(Debug, Default)]
pub(crate) struct Installed(Vec<PathBuf>);

impl Installed {
    /// Of the Python of a command that starts in this folder.
    pub(crate) fn of(command: &Command, folder: &Path) -> Self {
        Self::found(command, folder).unwrap_or_default()
    }

    fn found(command: &Command, folder: &Path) -> Option<Self> {
        let mut env = command.env().clone();
        let mut python = command.python();
        if let Some(packages) = command.packages() {
            dry_run::enter(packages, &mut env, folder).ok()?;
            python = python.or(Some("python"));
        }
        let program = dry_run::find(python?, &env, folder)?;
        let prefix = program.parent()?.parent()?;
        let mut folders = packages_below(prefix);
        if prefix == Path::new("/usr") {
            // What is installed beside the system's own.
            folders.extend(packages_below(Path::new("/usr/local")));
        }
        if let Some(home) = env.get("HOME")
            && !prefix.join("pyvenv.cfg").exists()
        {
            folders.extend(packages_below(&Path::new(home).join(".local")));
        }
        Some(Self(folders))
    }

    /// Whether this package is there, and no link to one elsewhere.
    pub(crate) fn has(&self, package: &str) -> bool {
        // One that is linked from elsewhere is its user's to edit.
        let is_in = |folder: &Path, file: &Path| {
            let real = fs::canonicalize(folder).ok().zip(fs::canonicalize(file).ok());
            real.is_some_and(|(folder, file)| file.starts_with(folder))
        };
        let is_there = |folder: &PathBuf| {
            let package = folder.join(package);
            let module = package.with_extension("py");
            package.is_dir() && is_in(folder, &package) || module.is_file() && is_in(folder, &module)
        };
        self.0.iter().any(is_there)
    }

    /// PyTorch's version: `torch 2.11`.
    pub(crate) fn torch(&self) -> Option<String> {
        self.0.iter().find_map(|folder| {
            let text = carma_files::read_text(&folder.join("torch/version.py"), MOST_VERSION).ok()?;
            let line = text.lines().find(|line| line.starts_with("__version__"))?;
            let version = line.split('\'').nth(1)?;
            let (major, rest) = version.split_once('.')?;
            let minor: String = rest.chars().take_while(char::is_ascii_digit).collect();
            Some(format!("torch {major}.{minor}"))
        })
    }
}

/// Folders of packages of the Pythons that lie here.
fn packages_below(prefix: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(prefix.join("lib")) else { return Vec::new() };
    let names = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut pythons: Vec<PathBuf> = names
        .filter(|path| path.file_name().and_then(|n| n.to_str()).is_some_and(|n| n.starts_with("python3")))
        .collect();
    pythons.sort();
    // Those of Debian's own Python have another name.
    pythons
        .iter()
        .flat_map(|python| ["site-packages", "dist-packages"].map(|name| python.join(name)))
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn they_lie_beside_the_python_that_is_started() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        for (venv, version) in
            [("a", "2.10.1"), ("exp/venv", "2.11.0+cu130"), ("exp/.venv", "2.9.0"), ("c/envs/x", "2.8.0")]
        {
            let package = at(venv).join("lib/python3.12/site-packages/torch");
            fs::create_dir_all(&package).unwrap();
            fs::create_dir_all(at(venv).join("bin")).unwrap();
            fs::write(at(venv).join("bin/python"), "").unwrap();
            let text = format!("debug = False\n__version__ = '{version}'\n");
            fs::write(package.join("version.py"), text).unwrap();
        }
        fs::create_dir_all(at("c/bin")).unwrap();
        fs::write(at("c/bin/conda"), "").unwrap();
        fs::write(at("a/lib/python3.12/site-packages/six.py"), "").unwrap();
        let of = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(ToString::to_string).collect();
            let path = format!("/nowhere:{}:{}", at("a/bin").display(), at("c/bin").display());
            let command = Command::new(&words, &BTreeMap::from([("PATH".to_owned(), path)]));
            Installed::of(&command, &dir.path().join(command.folder().unwrap()))
        };
        for (line, torch) in [
            ("python t.py", Some("2.10")),
            ("a/bin/python t.py", Some("2.10")),
            ("cd exp && venv/bin/python t.py > log", Some("2.11")),
            ("cd exp && uv run python t.py", Some("2.9")),
            ("cd exp && uv run t.py", Some("2.9")),
            ("conda run -n x python t.py", Some("2.8")),
            ("conda run -n absent python t.py", None),
            ("sleep 1", None),
        ] {
            let torch = torch.map(|version| format!("torch {version}"));
            assert_eq!(of(&["sh", "-c", line]).torch(), torch, "{line}");
            if !line.contains('&') {
                assert_eq!(of(&line.split(' ').collect::<Vec<_>>()).torch(), torch, "{line}");
            }
        }
        let installed = of(&["python", "t.py"]);
        fs::create_dir_all(at("src/linked")).unwrap();
        std::os::unix::fs::symlink(at("src/linked"), at("a/lib/python3.12/site-packages/linked")).unwrap();
        assert!(!installed.has("linked"));
        assert!(installed.has("torch") && installed.has("six") && !installed.has("pk"));
        assert!(!of(&["sleep", "1"]).has("torch"));
    }
}
