//! The original CARMA's `.rad` files: plain text, up to 12 lines, the position decides the meaning.
//!
//! | line (from 1) | content |
//! |---|---|
//! | 1 | comment |
//! | 2 | `conda activate ENV` |
//! | 3 | command; the first line from here on that contains `python` |
//! | 4-6 | model summary, data set, batch size: not needed to run, but to tell its memory |
//! | 7 | mode: `exclusive` in every published file, and ignored by the original |
//! | 8 | number of GPUs |
//! | 9 | measured peak memory, MiB |
//! | 10, 11, 12 | Horus, FakeTensor, GPUMemNet estimates, MiB |
//!
//! Lines 9 to 12 may be missing (the published `gpt2_xl.rad` has eight lines). The environment is
//! activated with `conda run -n ENV` when `ENV` is not `base`. Format: the original
//! CARMA's submitter, as published.

use super::{Described, FileError, ModelOptions};
use crate::wire::SubmitRequest;
use std::path::{Path, PathBuf};

/// Reads a `.rad` file into a submission without directory and environment.
///
/// # Errors
/// File, line and what was expected.
pub fn parse(file: &Path, text: &str) -> Result<Described, FileError> {
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    let fail = |line: usize, what: String| FileError { file: file.to_owned(), line: Some(line), what };
    let conda = match lines.get(1).copied().unwrap_or_default().trim() {
        "" => None,
        line => match line.strip_prefix("conda activate ") {
            Some(env) if !env.trim().is_empty() && !env.trim().contains(char::is_whitespace) => {
                Some(env.trim().to_owned())
            }
            _ => {
                return Err(fail(2, format!("expected `conda activate ENV`, found `{line}`")));
            }
        },
    };
    let command_at = lines
        .iter()
        .enumerate()
        // The comment and the environment may be named after Python, too.
        .skip(2)
        .find(|(_, l)| l.contains("python") && !l.trim_start().starts_with('#'))
        .map(|(at, _)| at)
        .ok_or_else(|| fail(3, "expected the command, a line that contains `python`".into()))?;
    let words = words(lines[command_at])
        .map_err(|what| fail(command_at + 1, format!("the command cannot be split into words: {what}")))?;
    if lines.len() < 8 {
        return Err(fail(
            lines.len() + 1,
            format!("the file ends after {} lines; line 8 must be the number of GPUs", lines.len()),
        ));
    }
    let gpus: u32 = lines[7].trim().parse().ok().filter(|n| *n > 0).ok_or_else(|| {
        fail(8, format!("expected the number of GPUs, 1 or more, found `{}`", lines[7].trim()))
    })?;
    let mib = |at: usize, what: &str| -> Result<Option<u64>, FileError> {
        let word = lines.get(at).copied().unwrap_or_default().trim();
        if word.is_empty() {
            return Ok(None);
        }
        let value: Option<f64> = word.parse().ok().filter(|v: &f64| (0.0..1e9).contains(v));
        value
            .map(|v| (v > 0.0).then(|| v.ceil() as u64))
            .ok_or_else(|| fail(at + 1, format!("expected {what} in MiB, found `{word}`")))
    };
    if let Some(extra) = lines.iter().skip(12).position(|l| !l.trim().is_empty()) {
        return Err(fail(13 + extra, "a .rad file has 12 lines; this one goes on".into()));
    }
    let mut command = match conda.as_deref() {
        None | Some("base") => Vec::new(),
        Some(env) => ["conda", "run", "--no-capture-output", "-n", env].map(String::from).to_vec(),
    };
    command.extend(words);
    let word = |at: usize| lines.get(at).map(|l| l.trim()).filter(|l| !l.is_empty());
    let model = ModelOptions {
        summary: word(3).map(PathBuf::from),
        dataset: word(4).map(str::to_owned),
        batch_size: word(5).and_then(|n| n.parse().ok()).filter(|n| *n > 0),
        ..ModelOptions::default()
    };
    let request = SubmitRequest {
        command,
        name: file.file_stem().map(|s| s.to_string_lossy().into_owned()),
        gpus: Some(gpus),
        measured_mib: mib(8, "the measured peak memory")?,
        horus_mib: mib(9, "the Horus estimate")?,
        faketensor_mib: mib(10, "the FakeTensor estimate")?,
        gpumemnet_mib: mib(11, "the GPUMemNet estimate")?,
        ..SubmitRequest::default()
    };
    Ok(Described { request, model })
}

/// Splits a command into words by the shell's rules for blanks, quotes and backslashes, and by no
/// other: nothing is expanded, no shell is involved.
///
/// # Errors
/// On an open quote, a trailing backslash or an operator that would need a shell.
pub fn words(line: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote: Option<char> = None;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(q), _) if c == q => quote = None,
            (Some('"') | None, '\\') => {
                let next = chars.next().ok_or("it ends in a backslash")?;
                let word = word.get_or_insert_default();
                // Between double quotes it stands for itself before all others.
                if quote.is_some() && !matches!(next, '$' | '`' | '"' | '\\' | '\n') {
                    word.push(c);
                }
                word.push(next);
            }
            (Some(_), _) => word.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (None, '|' | '&' | ';' | '<' | '>' | '`') => {
                return Err(format!("`{c}` needs a shell; submit with --wrap instead"));
            }
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    if let Some(q) = quote {
        return Err(format!("a {q} is never closed"));
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "# comment\nconda activate tf\npython /x/resnet.py --batch_size 32 --name 'a b'\nr.model\ncifar100\n32\nexclusive\n1\n788\n2231.6129\n53.99452972\n8000";

    fn at(text: &str) -> Result<SubmitRequest, FileError> {
        parse(Path::new("job.rad"), text).map(|job| job.request)
    }

    #[test]
    fn what_tells_its_memory() {
        let model = |text: &str| parse(Path::new("job.rad"), text).unwrap().model;
        let found = model(GOOD);
        assert_eq!(found.summary.as_deref(), Some(Path::new("r.model")));
        assert_eq!((found.dataset.as_deref(), found.batch_size), (Some("cifar100"), Some(32)));
        let odd = model(&GOOD.replace("r.model\ncifar100\n32", "\n\nmany"));
        assert_eq!(odd, ModelOptions::default());
    }

    #[test]
    fn the_twelve_lines_are_mapped() {
        let job = at(GOOD).unwrap();
        assert_eq!(
            job.command,
            [
                "conda",
                "run",
                "--no-capture-output",
                "-n",
                "tf",
                "python",
                "/x/resnet.py",
                "--batch_size",
                "32",
                "--name",
                "a b"
            ]
        );
        assert_eq!(job.gpus, Some(1));
        assert_eq!(job.name.as_deref(), Some("job"));
        let estimates = [job.measured_mib, job.horus_mib, job.faketensor_mib, job.gpumemnet_mib];
        assert_eq!(estimates, [Some(788), Some(2232), Some(54), Some(8000)]);
        assert!(!job.exclusive, "the original ignores line 7");
    }

    #[test]
    fn comment_and_environment_may_name_python() {
        let text =
            GOOD.replace("# comment", "runs under python 3.10").replace("activate tf", "activate python310");
        let command = at(&text).unwrap().command;
        assert_eq!(command[4..7], ["python310", "python", "/x/resnet.py"]);
        let none = text.replace("python /x", "sh /x");
        assert_eq!(at(&none).unwrap_err().line, Some(3));
    }

    #[test]
    fn backslashes_are_the_shells() {
        let line = r#"a "C:\data\new" "\$x \`y\` \" \\ \n" 'C:\data' C:\data "#;
        let expected = ["a", r"C:\data\new", r#"$x `y` " \ \n"#, r"C:\data", "C:data"];
        assert_eq!(words(line).unwrap(), expected);
        assert!(words(r#"a "b\"#).is_err());
    }

    #[test]
    fn eight_lines_are_enough_and_seven_are_not() {
        let eight: Vec<&str> = GOOD.lines().take(8).collect();
        assert_eq!(at(&eight.join("\n")).unwrap().measured_mib, None);
        let error = at(&eight[..7].join("\n")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "job.rad:8: the file ends after 7 lines; line 8 must be the number of GPUs"
        );
    }

    #[test]
    fn bad_lines_are_named() {
        let broken = |line: usize, text: &str| {
            let mut lines: Vec<&str> = GOOD.lines().collect();
            lines[line - 1] = text;
            at(&lines.join("\n")).unwrap_err()
        };
        assert_eq!(broken(8, "one").line, Some(8));
        assert_eq!(broken(8, "0").line, Some(8));
        assert_eq!(broken(9, "many").line, Some(9));
        assert_eq!(broken(12, "-5").line, Some(12));
        assert_eq!(broken(2, "rm -rf /").line, Some(2));
        assert_eq!(broken(3, "python 'x").line, Some(3));
        assert_eq!(broken(3, "python x; rm y").line, Some(3));
        assert_eq!(broken(3, "echo no").line, Some(3));
        assert_eq!(at("").unwrap_err().line, Some(3));
    }
}
