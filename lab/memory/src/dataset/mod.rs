//! Data sets of measured memory: random models ([`generate`]), the scripts that measure them on a GPU
//! ([`SCRIPTS`]), and the check of what came out. docs/research/datasets.md describes the files.

mod clean;
mod describe;
mod file;
mod generate;
mod picture;

pub use clean::{Cleaned, Dropped, clean};
pub use describe::{Class, Description, describe};
pub(crate) use file::check_lines;
pub use file::{Table, contents};
pub use generate::generate;
pub use picture::picture;

/// The Python files that measure, by name. They belong into one folder; `measure.py` is the one to start.
pub const SCRIPTS: [(&str, &str); 3] = [
    ("measure.py", include_str!("python/measure.py")),
    ("worker.py", include_str!("python/worker.py")),
    ("families.py", include_str!("python/families.py")),
];
