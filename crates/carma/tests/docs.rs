//! What the pages of docs/ and README.md say is so: quoted results are what the commands print, quoted messages are in the
//! code, and the pages that list codes and routes list all of them.
//!
//! A block after the line `<!-- run -->` is a session: each line that begins with `$ ` is run by `sh`, and what follows must
//! be what it prints. After `<!-- run: COMMAND -->` the whole block is what COMMAND prints. `<!-- serve -->` stands before a
//! session that begins with `carma serve`: that daemon stays for the rest of the page, and commands that only look are
//! asked again until they say what is quoted. `…` stands for any text in a line, and alone on a line for any lines.
//! Blanks count as one.
//!
//! `<!-- from: PAGE -->` stands before a table whose every line is one of PAGE, which a program writes.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, its helpers too"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// All files below a folder whose names end so.
fn files(folder: &Path, end: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, end));
        } else if path.to_string_lossy().ends_with(end) {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn page(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap()
}

/// A quoted session: where it stands, whether it is a daemon's, and commands with what they print.
#[derive(Debug)]
struct Session {
    line: usize,
    serves: bool,
    commands: Vec<(String, Vec<String>)>,
}

fn sessions(text: &str) -> Vec<Session> {
    let mut lines = text.lines().enumerate();
    let mut found = Vec::new();
    while let Some((at, line)) = lines.next() {
        let Some(asked) = line.strip_prefix("<!-- ").and_then(|l| l.strip_suffix(" -->")) else { continue };
        let (what, command) = match asked.split_once(": ") {
            Some((what, command)) => (what, Some(command)),
            None => (asked, None),
        };
        if !matches!(what, "run" | "serve") {
            continue;
        }
        assert!(lines.next().is_some_and(|(_, l)| l.starts_with("```")), "line {}: no block follows", at + 1);
        let block = lines.by_ref().map(|(_, l)| l).take_while(|l| *l != "```");
        let mut commands: Vec<(String, Vec<String>)> =
            command.map(|command| (command.to_owned(), Vec::new())).into_iter().collect();
        for line in block {
            match line.strip_prefix("$ ") {
                Some(new) if command.is_none() => commands.push((new.to_owned(), Vec::new())),
                _ => match commands.last_mut() {
                    Some((last, printed)) if printed.is_empty() && last.ends_with('\\') => {
                        last.push('\n');
                        last.push_str(line);
                    }
                    Some((_, printed)) => printed.push(line.to_owned()),
                    None => panic!("line {}: the block does not begin with a command", at + 2),
                },
            }
        }
        assert!(!commands.is_empty(), "line {}: an empty block", at + 2);
        found.push(Session { line: at + 2, serves: what == "serve", commands });
    }
    found
}

fn words(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Whether a line is as quoted.
fn is_line(quoted: &str, printed: &str) -> bool {
    let (quoted, printed) = (words(quoted), words(printed));
    let mut parts = quoted.split('…');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = printed.strip_prefix(first) else { return false };
    let Some(mut last) = parts.next() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(last) else { return false };
        rest = &rest[at + last.len()..];
        last = part;
    }
    rest.ends_with(last)
}

/// Whether lines are as quoted.
fn is_text(quoted: &[String], printed: &[&str]) -> bool {
    match quoted {
        [] => printed.is_empty(),
        [first, rest @ ..] if first.trim() == "…" => {
            (0..=printed.len()).any(|skipped| is_text(rest, &printed[skipped..]))
        }
        [first, rest @ ..] => match printed {
            [line, more @ ..] => is_line(first, line) && is_text(rest, more),
            [] => false,
        },
    }
}

/// Where commands of a page run: a folder of its own with the examples in it, and perhaps a daemon.
struct Place {
    dir: TempDir,
    daemon: Option<Child>,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["examples", "bench", "packaging"] {
            std::os::unix::fs::symlink(root().join(name), dir.path().join(name)).unwrap();
        }
        Self { dir, daemon: None }
    }

    fn shell(&self, line: &str) -> Command {
        let bin = Path::new(env!("CARGO_BIN_EXE_carma")).parent().unwrap();
        let mut command = Command::new("sh");
        command
            .env_clear()
            .env("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin", bin.display()))
            .env("HOME", self.dir.path())
            .env("CARMA_SOCKET", self.dir.path().join("s"))
            .current_dir(self.dir.path())
            .args(["-c", line])
            .stdin(Stdio::null());
        command
    }

    fn output(&self, line: &str) -> String {
        let output = self.shell(&format!("exec 2>&1\n{line}\n")).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs a command until it prints what is quoted: once, or as long as a daemon may take, if it only looks.
    fn says(&self, line: &str, quoted: &[String]) -> Result<(), String> {
        const LOOKS: [&str; 6] = ["queue", "gpus", "show", "explain", "history", "doctor"];
        let verb = line.strip_prefix("carma ").and_then(|l| l.split(' ').next()).unwrap_or_default();
        let looks = LOOKS.contains(&verb) || line.starts_with("curl ") && !line.contains(" -X ");
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            let printed = self.output(line);
            let lines: Vec<&str> = printed.lines().filter(|l| !l.trim().is_empty()).collect();
            let wanted: Vec<String> = quoted.iter().filter(|l| !l.trim().is_empty()).cloned().collect();
            if is_text(&wanted, &lines) {
                return Ok(());
            }
            if self.daemon.is_none() || !looks || Instant::now() > until {
                return Err(format!("$ {line}\n--- quoted\n{}\n--- printed\n{printed}", quoted.join("\n")));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Starts a daemon by its line, and waits until it answers.
    fn serve(&mut self, line: &str, quoted: &[String]) -> Result<(), String> {
        let log = self.dir.path().join("serve.log");
        let state = self.dir.path().join("state");
        let line = format!("exec {line} --state {} 2>{}", state.display(), log.display());
        self.daemon = Some(self.shell(&line).stdout(Stdio::null()).spawn().unwrap());
        let until = Instant::now() + Duration::from_secs(60);
        while !self.output("carma queue").contains("No jobs") {
            let printed = fs::read_to_string(&log).unwrap_or_default();
            if Instant::now() > until {
                return Err(format!("$ {line}\nno daemon answers:\n{printed}"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let printed = fs::read_to_string(&log).unwrap();
        match is_text(quoted, &printed.lines().collect::<Vec<_>>()) {
            true => Ok(()),
            false => Err(format!("$ {line}\n--- quoted\n{}\n--- printed\n{printed}", quoted.join("\n"))),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            // Jobs would go on without their daemon.
            let until = Instant::now() + Duration::from_secs(30);
            while !self.output("carma queue").contains("No jobs") && Instant::now() < until {
                self.output("carma cancel 1-50");
                std::thread::sleep(Duration::from_millis(100));
            }
            self.output(&format!("kill {}", daemon.id()));
            let _ = daemon.wait();
        }
    }
}

#[test]
fn quoted_results_are_what_commands_print() {
    let mut pages = files(&root().join("docs"), ".md");
    pages.push(root().join("README.md"));
    let results: Vec<(usize, Vec<String>)> = std::thread::scope(|scope| {
        let running: Vec<_> = pages.iter().map(|path| scope.spawn(move || quotes_of(path))).collect();
        running.into_iter().map(|page| page.join().unwrap()).collect()
    });
    let wrong: Vec<&str> = results.iter().flat_map(|(_, wrong)| wrong).map(String::as_str).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    let commands: usize = results.iter().map(|(commands, _)| commands).sum();
    assert!(commands >= 60, "only {commands} commands were found: is the marker still `<!-- run -->`?");
}

/// How many commands a page quotes, and those that print something else.
fn quotes_of(path: &Path) -> (usize, Vec<String>) {
    let (mut commands, mut wrong, mut place) = (0, Vec::new(), None);
    for session in sessions(&fs::read_to_string(path).unwrap()) {
        let place = place.get_or_insert_with(Place::new);
        for (i, (line, quoted)) in session.commands.iter().enumerate() {
            let result = match session.serves && i == 0 {
                true => place.serve(line, quoted),
                false => place.says(line, quoted),
            };
            commands += 1;
            let at = format!("{}:{}", path.strip_prefix(root()).unwrap().display(), session.line);
            wrong.extend(result.err().map(|error| format!("{at}: {error}")));
        }
    }
    (commands, wrong)
}

#[test]
fn tables_from_other_pages_are_what_those_say() {
    let mut found = 0;
    for path in files(&root().join("docs"), ".md") {
        let text = fs::read_to_string(&path).unwrap();
        for quoted in text.split("\n<!-- from: ").skip(1) {
            let (from, rest) = quoted.split_once(" -->\n").expect("the mark has an end");
            let source = page(from);
            let rows: BTreeSet<&str> = source.lines().collect();
            let table: Vec<&str> = rest.lines().take_while(|line| line.starts_with('|')).collect();
            assert!(table.len() > 2, "{}: no table follows `from: {from}`", path.display());
            for line in table {
                assert!(rows.contains(line), "{}: {from} has no line\n{line}", path.display());
            }
            found += 1;
        }
    }
    assert!(found > 0, "is the mark still `<!-- from: PAGE -->`?");
}

#[test]
fn quotes_with_gaps() {
    let is = |quoted: &str, printed: &str| {
        let quoted: Vec<String> = quoted.lines().map(str::to_owned).collect();
        is_text(&quoted, &printed.lines().collect::<Vec<_>>())
    };
    assert!(is("a  b\nc", "a b\nc"));
    assert!(is("took … s, … MiB", "took 3.4 s, 20 MiB"));
    assert!(is("a\n…\nz", "a\nb\nc\nz") && is("a\n…", "a"));
    assert!(!is("a\n…\nz", "a\nb") && !is("a … b", "a b c") && !is("a", "a\nb") && !is("…x", "xy"));
}

/// Sources of the program: all but tests of their own.
fn sources(folder: &str) -> Vec<String> {
    let read = |path: &PathBuf| fs::read_to_string(path).unwrap();
    files(&root().join(folder), ".rs").iter().filter(|p| !p.ends_with("tests.rs")).map(read).collect()
}

/// What stands between two marks, each time.
fn between<'a>(text: &'a str, from: &'a str, to: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(from).skip(1).filter_map(move |rest| rest.split(to).next())
}

/// The part of a page below a heading.
fn section<'a>(text: &'a str, heading: &str) -> &'a str {
    let rest =
        text.split_once(&format!("\n## {heading}\n")).unwrap_or_else(|| panic!("no section {heading}")).1;
    rest.split("\n## ").next().unwrap()
}

/// What stands in code at the beginning of the rows of a section's tables.
fn entries(section: &str) -> BTreeSet<String> {
    let rows: Vec<&str> = section.lines().filter_map(|l| l.strip_prefix("| `")?.split('`').next()).collect();
    let set: BTreeSet<String> = rows.iter().map(|row| (*row).to_owned()).collect();
    assert_eq!(rows.len(), set.len(), "an entry stands twice: {rows:?}");
    set
}

#[test]
fn every_code_has_an_entry_and_no_entry_is_dead() {
    let text = page("docs/reference/exit-codes-and-reasons.md");
    let set = |words: Vec<&str>| words.into_iter().map(str::to_owned).collect::<BTreeSet<_>>();
    let is_word = |w: &&str| !w.is_empty() && w.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');

    let states = page("crates/core/src/model/job.rs");
    let states: Vec<&str> = between(&states, "=> \"", "\"")
        .filter(|w| w.bytes().all(|b| b.is_ascii_uppercase() || b == b'_'))
        .collect();
    assert_eq!(entries(section(&text, "States")), set(states));

    let reasons = page("crates/core/src/explain/code.rs");
    let reasons: Vec<&str> = between(&reasons, "\"", "\"").step_by(2).filter(is_word).collect();
    assert!(reasons.len() > 30, "{reasons:?}");
    assert_eq!(entries(section(&text, "Reasons")), set(reasons));

    // `Refused::new(404, "not_found", ...)`, and `(404, "not_found")` where the core's are translated.
    let mut errors = BTreeSet::new();
    for source in sources("crates/daemon/src").iter().map(|source| words(source)) {
        for (at, _) in source.match_indices(", \"") {
            let status = source[..at].rsplit([' ', '(']).next().unwrap_or_default();
            let word = source[at + 3..].split('"').next().unwrap_or_default();
            if matches!(status.parse(), Ok(400..600)) && is_word(&word) {
                errors.insert(word.to_owned());
            }
        }
    }
    assert!(errors.contains("not_found") && errors.contains("busy"), "{errors:?}");
    assert_eq!(entries(section(&text, "Errors of the daemon")), errors);

    let failures = page("crates/cli/src/failure.rs");
    let mut codes: BTreeSet<String> = between(&failures, "pub const ", ";")
        .filter_map(|c| Some(c.split_once(": u8 = ")?.1.to_owned()))
        .collect();
    assert!(codes.contains("69"), "{codes:?}");
    codes.insert("0".into());
    for source in sources("crates/daemon/src") {
        for name in between(&source, "process::exit(", ")") {
            codes.extend(between(&source, &format!("const {name}: i32 = "), ";").map(str::to_owned));
        }
    }
    assert!(codes.contains("74"), "{codes:?}");
    assert_eq!(entries(section(&text, "Exit codes")), codes);
}

#[test]
fn every_route_has_a_section() {
    let router = page("crates/daemon/src/http/mod.rs");
    let mut routes = BTreeSet::new();
    for route in between(&router, ".route(\"", "\n") {
        let (path, handlers) = route.split_once('"').unwrap();
        for method in ["get", "post"].into_iter().filter(|m| handlers.contains(&format!("{m}("))) {
            routes.insert(format!("{} {path}", method.to_uppercase()));
        }
    }
    assert!(routes.len() > 10, "{routes:?}");
    let text = page("docs/reference/http-api.md");
    let named: BTreeSet<String> =
        text.lines().filter_map(|l| Some(l.strip_prefix("## `")?.strip_suffix('`')?.to_owned())).collect();
    assert_eq!(named, routes);
}

#[test]
fn messages_that_troubleshooting_quotes_are_in_the_code() {
    let mut code = String::new();
    for source in sources("crates") {
        // A string that goes on in the next line.
        let lines: Vec<&str> = source.split("\\\n").map(str::trim_start).collect();
        code.push_str(&lines.join("").replace("\\\"", "\""));
    }
    let text = page("docs/troubleshooting.md");
    let headings: Vec<&str> = text.lines().filter_map(|l| l.strip_prefix("### ")).collect();
    let quoted: Vec<&str> = headings.iter().flat_map(|h| between(h, "`", "`").step_by(2)).collect();
    assert!(quoted.len() > 15, "{quoted:?}");
    for message in quoted {
        for piece in message.split('…').map(str::trim).filter(|piece| piece.len() > 2) {
            assert!(code.contains(piece), "`{message}`: `{piece}` is not in the code");
        }
    }
}

/// What stands before ` = ` where a line sets a key, and whether the value is one of TOML.
fn key_set(line: &str) -> Option<&str> {
    let (key, value) = line.split_once(" = ")?;
    let is_key = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c);
    let is_value = value.starts_with(['"', '[', '{', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9'])
        || ["true", "false"].iter().any(|word| value.starts_with(word));
    // `[mps] caps = true` names the table, too.
    let key = key.rsplit_once("] ").map_or(key, |(_, key)| key);
    (is_value && key.chars().all(is_key)).then_some(key)
}

#[test]
fn keys_that_pages_set_are_those_of_the_configuration() {
    let reference = page("docs/reference/configuration.md");
    let keys: BTreeSet<&str> =
        reference.lines().filter_map(|l| l.strip_prefix("| `")?.split('`').next()).collect();
    let (mut others, mut set) = (BTreeSet::new(), Vec::new());
    for path in files(&root().join("docs"), ".md") {
        let text = fs::read_to_string(&path).unwrap();
        let mut prose = String::new();
        for (at, part) in text.split("\n```").enumerate() {
            if at % 2 == 0 {
                prose += part;
                continue;
            }
            let Some(block) = part.strip_prefix("toml\n") else { continue };
            let found = block.lines().filter_map(key_set).map(str::to_owned);
            // A job, or tasks of a bench: keys of their own.
            if block.lines().any(|line| line.starts_with("command = ")) {
                others.extend(found);
            } else {
                set.extend(found.map(|key| (path.clone(), key)));
            }
        }
        let code = prose.split('`').skip(1).step_by(2);
        set.extend(code.filter_map(key_set).map(|key| (path.clone(), key.to_owned())));
    }
    assert!(set.len() > 10, "{set:?}");
    for (path, key) in set {
        let known = keys.contains(key.as_str()) || others.contains(&key);
        let path = path.display();
        assert!(known, "{path}: `{key}` is no key of the configuration, nor of a file of jobs or tasks");
    }
}
