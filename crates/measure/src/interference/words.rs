//! What a task printed before it ended.

use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// What a task printed last: from its last error on, or its last lines.
pub(super) fn last_words(output: &Path) -> Option<String> {
    const MOST: usize = 400;
    const TAIL: u64 = 8 << 10;
    let mut file = carma_files::open(output).ok()?;
    let from = file.metadata().ok()?.len().saturating_sub(TAIL);
    file.seek(SeekFrom::Start(from)).ok()?;
    let mut bytes = Vec::new();
    file.take(TAIL).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let is_error = |line: &&str| line.contains("Error:") || line.contains("error:");
    let begin = lines.iter().rposition(is_error).unwrap_or(lines.len().saturating_sub(3));
    let words: String = lines[begin..].join(" | ").chars().take(MOST).collect();
    (!words.is_empty()).then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_words_are_the_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let words = |text: &str| {
            std::fs::write(file.path(), text).unwrap();
            last_words(file.path())
        };
        let error = "RuntimeError: CUDA error: out of luck";
        let long = format!("Traceback\n  main()\n{error}\nFor debugging\nconsider\nsomething\n\n");
        assert_eq!(words(&long).unwrap(), format!("{error} | For debugging | consider | something"));
        assert_eq!(words("a\nb\nc\nd\n").unwrap(), "b | c | d");
        assert_eq!(words("\n"), None);
    }
}
