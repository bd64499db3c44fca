//! Whether the job's command could enter its directory and write its output now, as the user who submits it.
//!
//! Nothing of it is certain: an earlier job may make the directory, and the job may run when it is there. So these are warnings.

use carma_api::output;
use carma_api::wire::SubmitRequest;
use carma_cli::failure::Failure;
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;
use std::io::ErrorKind;
use std::path::Path;

/// Warns of jobs that would fail at their start, were they started now. What is said of one is not said again of the next.
pub(crate) fn warn<'a>(requests: impl IntoIterator<Item = &'a SubmitRequest>) {
    let mut told = Vec::new();
    for warning in requests.into_iter().flat_map(warnings) {
        if !told.contains(&warning.message) {
            warning.tell();
            told.push(warning.message);
        }
    }
}

fn warnings(request: &SubmitRequest) -> impl Iterator<Item = Failure> {
    let dir = bars_entry(Path::new(&request.cwd)).map(|why| {
        warning(&format!("its directory {} cannot be entered: {why}", request.cwd))
            .hint("make the directory before the job starts, or name another one with --chdir")
    });
    let output = request.output.as_deref().and_then(|file| {
        let why = bars_output(file)?;
        let hint = "carma makes no directories for it; name another file with --output, or leave it out and carma keeps the output";
        Some(warning(&format!("its output cannot be written to {file}: {why}")).hint(hint))
    });
    dir.into_iter().chain(output)
}

fn warning(what: &str) -> Failure {
    Failure::new(format!("warning: the job will fail when it starts, unless this changes before: {what}"))
}

/// What keeps this user from entering a directory: the first part of its path that does.
fn bars_entry(dir: &Path) -> Option<String> {
    let mut parts: Vec<&Path> = dir.ancestors().collect();
    parts.reverse();
    parts.into_iter().find_map(|part| {
        let shown = part.display();
        match part.metadata() {
            Ok(meta) if !meta.is_dir() => Some(format!("{shown} is not a directory")),
            Ok(_) => allows(part, Access::EXEC_OK).err().map(|_| format!("you may not enter {shown}")),
            Err(e) if e.kind() == ErrorKind::NotFound => Some(format!("there is no {shown}")),
            Err(e) => Some(format!("{shown}: {e}")),
        }
    })
}

/// What keeps this user from writing to the file of a pattern, as far as its path is the same for all jobs: a directory with the job's
/// number in its name cannot be there yet.
fn bars_output(pattern: &str) -> Option<String> {
    let parts: Vec<&str> = pattern.split('/').collect();
    let known: Vec<String> = parts.iter().map_while(|part| output::same_for_all(part)).collect();
    let path = Path::new("/").join(known.join("/"));
    match parts.len() - known.len() {
        0 => bars_file(&path),
        1 => bars_entry(&path).or_else(|| bars_new(&path)),
        _ => bars_entry(&path),
    }
}

fn bars_file(file: &Path) -> Option<String> {
    let dir = file.parent()?;
    bars_entry(dir).or_else(|| match file.metadata() {
        Ok(meta) if meta.is_dir() => Some("it is a directory".to_owned()),
        Ok(_) => allows(file, Access::WRITE_OK).err().map(|_| "you may not write to it".to_owned()),
        Err(e) if e.kind() == ErrorKind::NotFound => bars_new(dir),
        Err(e) => Some(e.to_string()),
    })
}

/// What keeps this user from making a file in a directory that can be entered.
fn bars_new(dir: &Path) -> Option<String> {
    allows(dir, Access::WRITE_OK).err().map(|_| format!("you may not make files in {}", dir.display()))
}

/// Of the effective user, as whom a job would be submitted.
fn allows(path: &Path, access: Access) -> Result<(), Errno> {
    accessat(CWD, path, access, AtFlags::EACCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn told(cwd: &Path, output: Option<&str>) -> Vec<String> {
        let request = SubmitRequest {
            cwd: cwd.to_str().unwrap().to_owned(),
            output: output.map(|name| format!("{}/{name}", output::literal(cwd.to_str().unwrap()))),
            ..SubmitRequest::default()
        };
        let begin = "warning: the job will fail when it starts, unless this changes before: ";
        let texts = warnings(&request).map(|warning| warning.message.unwrap());
        texts.map(|text| text.strip_prefix(begin).unwrap().to_owned()).collect()
    }

    #[test]
    fn what_is_there_is_not_warned_of() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        fs::create_dir(dir.join("50%j")).unwrap();
        fs::write(dir.join("old"), "").unwrap();
        for output in [None, Some("old"), Some("new"), Some("%x-%j.out"), Some("50%%j/%j"), Some("%j/out")] {
            assert_eq!(told(dir, output), Vec::<String>::new(), "{output:?}");
        }
        assert!(bars_output("/dev/null").is_none());
    }

    #[test]
    fn the_first_part_that_is_wrong_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        fs::write(dir.join("file"), "").unwrap();
        let shown = dir.display();
        let enters = |path: &str, why: &str| {
            assert_eq!(
                told(&dir.join(path), None),
                [format!("its directory {shown}/{path} cannot be entered: {why}")]
            );
        };
        enters("a/b", &format!("there is no {shown}/a"));
        enters("file", &format!("{shown}/file is not a directory"));
        enters("file/b", &format!("{shown}/file is not a directory"));
        let writes = |name: &str, why: &str| {
            let all = [format!("its output cannot be written to {shown}/{name}: {why}")];
            assert_eq!(told(dir, Some(name)), all);
        };
        writes("a/out", &format!("there is no {shown}/a"));
        writes("a/%j.out", &format!("there is no {shown}/a"));
        writes("a/%j/out", &format!("there is no {shown}/a"));
        writes("file/out", &format!("{shown}/file is not a directory"));
        fs::create_dir(dir.join("sub")).unwrap();
        writes("sub", "it is a directory");
    }
}
