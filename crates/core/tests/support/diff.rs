//! A small line diff for failing scenarios.

use std::fmt::Write;

/// Lines of context shown around a change.
const CONTEXT: usize = 3;

/// The differences between two texts: `-` only in `old`, `+` only in `new`.
pub(crate) fn lines(old: &str, new: &str) -> String {
    let (a, b): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    // common[i][j]: length of the longest common subsequence of a[i..] and b[j..].
    let mut common = vec![vec![0usize; b.len() + 1]; a.len() + 1];
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            common[i][j] =
                if a[i] == b[j] { common[i + 1][j + 1] + 1 } else { common[i + 1][j].max(common[i][j + 1]) };
        }
    }
    let (mut i, mut j) = (0, 0);
    let mut marked: Vec<(char, &str)> = Vec::new();
    while i < a.len() || j < b.len() {
        if i < a.len() && j < b.len() && a[i] == b[j] {
            marked.push((' ', a[i]));
            (i, j) = (i + 1, j + 1);
        } else if j == b.len() || (i < a.len() && common[i + 1][j] >= common[i][j + 1]) {
            marked.push(('-', a[i]));
            i += 1;
        } else {
            marked.push(('+', b[j]));
            j += 1;
        }
    }
    let near_change = |at: usize| {
        let from = at.saturating_sub(CONTEXT);
        let to = (at + CONTEXT + 1).min(marked.len());
        marked[from..to].iter().any(|(mark, _)| *mark != ' ')
    };
    let mut text = String::new();
    let mut skipped = false;
    for (at, (mark, line)) in marked.iter().enumerate() {
        if near_change(at) {
            if std::mem::take(&mut skipped) {
                text.push_str("  ...\n");
            }
            let _ = writeln!(text, "{mark} {line}");
        } else {
            skipped = true;
        }
    }
    text
}
