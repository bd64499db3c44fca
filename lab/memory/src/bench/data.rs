//! Where the measurements lie.

use std::path::{Path, PathBuf};

/// Folders with measurements.
#[derive(Debug, Clone)]
pub struct Data {
    /// Other people's data, used in place: the folder with `gpumemnet/` and `carma/`.
    pub shared: Option<PathBuf>,
    /// What was measured for this repository: `bench/h200/results`.
    pub own: Option<PathBuf>,
}

impl Data {
    /// Below the folder where the program was started, which should be the repository's root; `shared` where it is
    /// given.
    #[must_use]
    pub fn find(shared: Option<&Path>) -> Self {
        let here = Self::of_repository(Path::new(""));
        Self { shared: shared.map(Path::to_owned).or(here.shared), own: here.own }
    }

    /// In and beside a repository.
    #[must_use]
    pub fn of_repository(root: &Path) -> Self {
        let folder = |name: &str| Some(root.join(name)).filter(|path| path.is_dir());
        Self { shared: folder("../shared/data"), own: folder("bench/h200/results") }
    }

    /// A file or folder of other people's data.
    ///
    /// # Errors
    /// It is not there; the text says where it was looked for.
    pub fn shared(&self, path: &str) -> Result<PathBuf, String> {
        there(self.shared.as_deref(), path, "../shared/data")
    }

    /// A file or folder of our own.
    ///
    /// # Errors
    /// It is not there; the text says where it was looked for.
    pub fn own(&self, path: &str) -> Result<PathBuf, String> {
        there(self.own.as_deref(), path, "bench/h200/results")
    }
}

fn there(folder: Option<&Path>, path: &str, usual: &str) -> Result<PathBuf, String> {
    folder
        .map(|folder| folder.join(path))
        .filter(|path| path.exists())
        .ok_or_else(|| format!("{usual}/{path} is not there"))
}
