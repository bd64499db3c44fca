//! What `%` stands for in the name of a job's output file, in the words of Slurm's sbatch.

use crate::parse::is_deceptive;

/// What may follow a percent sign.
const ALLOWED: &str = "%j (the job's number), %x (its name), %u (its user) and %% (a percent sign)";

/// What a file name is filled in with.
#[derive(Debug, Clone, Copy)]
pub struct Filling<'a> {
    /// The job's number.
    pub id: u64,
    /// Its name.
    pub name: &'a str,
    /// Its user's name.
    pub user: &'a str,
}

/// A piece of a pattern.
enum Piece {
    Char(char),
    Number,
    Name,
    User,
}

/// Takes a pattern apart.
fn pieces(pattern: &str) -> impl Iterator<Item = Result<Piece, String>> + '_ {
    let mut chars = pattern.chars();
    std::iter::from_fn(move || {
        let piece = match chars.next()? {
            '%' => match chars.next() {
                Some('%') => Ok(Piece::Char('%')),
                Some('j') => Ok(Piece::Number),
                Some('x') => Ok(Piece::Name),
                Some('u') => Ok(Piece::User),
                other => {
                    let shown = other.map(|c| c.escape_debug().to_string()).unwrap_or_default();
                    Err(format!(
                        "'%{shown}' in the name of the output file stands for nothing; there are {ALLOWED}"
                    ))
                }
            },
            c => Ok(Piece::Char(c)),
        };
        Some(piece)
    })
}

/// Checks that each percent sign of a pattern stands for something.
///
/// # Errors
/// Says which does not, and what there is.
pub fn check(pattern: &str) -> Result<(), String> {
    pieces(pattern).try_for_each(|piece| piece.map(drop))
}

/// Whether two jobs of one name and user would write to different files.
#[must_use]
pub fn tells_jobs_apart(pattern: &str) -> bool {
    pieces(pattern).any(|piece| matches!(piece, Ok(Piece::Number)))
}

/// The file of a pattern that is the same for all jobs; `None` where a job is needed to tell.
#[must_use]
pub fn same_for_all(pattern: &str) -> Option<String> {
    pieces(pattern).map(|piece| if let Ok(Piece::Char(c)) = piece { Some(c) } else { None }).collect()
}

/// A path, as a pattern that stands for just that path.
#[must_use]
pub fn literal(path: &str) -> String {
    path.replace('%', "%%")
}

/// The file of a job. Whatever the job and its user are called, each name stays within one part of the path.
///
/// # Errors
/// As [`check`].
pub fn fill(pattern: &str, with: Filling<'_>) -> Result<String, String> {
    let mut path = String::with_capacity(pattern.len());
    for piece in pieces(pattern) {
        match piece? {
            Piece::Char(c) => path.push(c),
            Piece::Number => path.push_str(&with.id.to_string()),
            Piece::Name => path.extend(part(with.name)),
            Piece::User => path.extend(part(with.user)),
        }
    }
    Ok(path)
}

/// A name as it may stand in a file's: no part of a path, neither `.` nor `..` nor hidden, and nothing that moves text on a
/// terminal.
fn part(name: &str) -> impl Iterator<Item = char> + '_ {
    name.chars().enumerate().map(|(at, c)| {
        if c == '/' || (at == 0 && c == '.') || c.is_control() || is_deceptive(c) { '_' } else { c }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pattern: &str, name: &str) -> String {
        fill(pattern, Filling { id: 12, name, user: "alice" }).unwrap()
    }

    #[test]
    fn the_words_of_sbatch() {
        assert_eq!(of("/home/a/slurm-%j.out", "t.py"), "/home/a/slurm-12.out");
        assert_eq!(of("/logs/%u/%x-%j.log", "t.py"), "/logs/alice/t.py-12.log");
        assert_eq!(of("/logs/100%%j", "t.py"), "/logs/100%j");
        assert_eq!(of(&literal("/a/50%j/%"), "t.py"), "/a/50%j/%");
    }

    #[test]
    fn a_name_leads_to_no_other_directory() {
        for (name, file) in [
            ("..", "/logs/_./out"),
            (".", "/logs/_/out"),
            ("../../etc/passwd", "/logs/_._.._etc_passwd/out"),
            ("/etc", "/logs/_etc/out"),
            ("a\nb\u{1b}[2J\0c\u{202e}", "/logs/a_b_[2J_c_/out"),
            // What a name brings along is not filled in.
            ("%j", "/logs/%j/out"),
            ("größe 1", "/logs/größe 1/out"),
        ] {
            assert_eq!(of("/logs/%x/out", name), file, "{name:?}");
        }
    }

    #[test]
    fn what_stands_for_nothing_is_refused() {
        for (pattern, shown) in
            [("/a/%A_%a.out", "'%A'"), ("/a/%4j", "'%4'"), ("/a/100%", "'%'"), ("/a/%\n", "'%\\n'")]
        {
            let why = check(pattern).unwrap_err();
            assert!(why.starts_with(shown) && why.contains("%j (the job's number)"), "{why}");
        }
        assert!(check("/a/%j-%x-%u-%%").is_ok());
    }

    #[test]
    fn which_files_are_the_same_for_all() {
        assert_eq!(same_for_all("/a/100%%").as_deref(), Some("/a/100%"));
        assert_eq!(same_for_all("/a/%x"), None);
        assert!(tells_jobs_apart("/a/%x-%j") && !tells_jobs_apart("/a/%x-%u-%%j"));
    }
}
