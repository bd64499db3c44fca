//! Files that are written from the code, which tests compare with what the code says now. Not shipped.
//!
//! `CARMA_BLESS=1` writes them instead; with `CI=true` nothing is ever written.

use std::fmt::Write as _;
use std::path::Path;

/// Whether files that differ are to be written.
#[must_use]
pub fn wanted() -> bool {
    let set = |name: &str| std::env::var(name).is_ok_and(|v| !matches!(v.as_str(), "" | "0" | "false"));
    set("CARMA_BLESS") && !set("CI")
}

/// Compares with a file of the repository, or writes it.
///
/// # Panics
/// When the file says something else, or cannot be written.
#[allow(clippy::panic, reason = "a test fails by panicking")]
pub fn agrees(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name);
    if wanted()
        && let Err(e) = std::fs::write(&path, text)
    {
        panic!("{}: cannot be written: {e}", path.display());
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(there == text, "{name} is not what the code says: CARMA_BLESS=1 writes it");
}

/// Words in lines of at most `width` bytes, the first with `first` before it and the others with `then`. A word that is
/// longer has a line of its own.
#[must_use]
pub fn wrapped(first: &str, then: &str, text: &str, width: usize) -> String {
    let (mut lines, mut line, mut empty) = (String::new(), first.to_owned(), true);
    for word in text.split_whitespace() {
        if !empty && line.len() + 1 + word.len() > width {
            let _ = writeln!(lines, "{line}");
            (line, empty) = (then.to_owned(), true);
        }
        let _ = write!(line, "{}{word}", if empty { "" } else { " " });
        empty = false;
    }
    let _ = writeln!(lines, "{line}");
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_wrapped() {
        assert_eq!(wrapped("- ", "  ", "one two three", 9), "- one two\n  three\n");
        assert_eq!(wrapped("# ", "# ", "longer-than-it one", 8), "# longer-than-it\n# one\n");
        assert_eq!(wrapped("# ", "# ", "", 8), "# \n");
    }

    #[test]
    #[should_panic(expected = "no-such-file is not what the code says")]
    fn another_text_is_refused() {
        assert!(!wanted(), "CARMA_BLESS is set: this test would write a file");
        agrees("no-such-file", "text");
    }
}
