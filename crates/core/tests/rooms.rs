//! The rooms of the crate stand on each other: the docs of `lib.rs` list them from bottom to top, and no room uses one
//! above it. With that there is no circle either.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test: it reads the crate's source, which the core does not, and fails where it must"
)]

use std::path::{Path, PathBuf};

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Rooms in the order of the docs: lines like ``//! 7. `policy`: ...``.
fn listed(lib: &str) -> Vec<String> {
    let entry = |line: &str| {
        let (number, rest) = line.strip_prefix("//! ")?.split_once(". `")?;
        number.parse::<usize>().ok()?;
        Some(rest.split_once('`')?.0.to_owned())
    };
    lib.lines().filter_map(entry).collect()
}

/// Modules that `lib.rs` declares.
fn declared(lib: &str) -> Vec<String> {
    let module = |line: &str| {
        let line = line.strip_prefix("pub ").unwrap_or(line);
        Some(line.strip_prefix("mod ")?.strip_suffix(';')?.to_owned())
    };
    lib.lines().filter_map(module).collect()
}

fn files_under(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files_under(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// Names that follow `prefix` in a line of code; an empty one where something else than a name follows.
fn names_after<'a>(line: &'a str, prefix: &'a str) -> impl Iterator<Item = &'a str> {
    let code = line.split_once("//").map_or(line, |(code, _)| code);
    code.match_indices(prefix).map(move |(at, _)| {
        let rest = &code[at + prefix.len()..];
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        &rest[..end]
    })
}

/// What is wrong with one line of a room, in words.
fn faults(rooms: &[String], room: usize, line: &str) -> Vec<String> {
    let at = |name: &str| rooms.iter().position(|room| room == name);
    let mut faults = Vec::new();
    for name in names_after(line, "crate::") {
        match at(name) {
            Some(used) if used > room => {
                faults.push(format!("{} uses {name}, which is above it", rooms[room]))
            }
            Some(_) => {}
            // `crate::{a, b}` and what the root shows again hide which room is meant.
            None => faults.push(format!("{} uses crate::{name} without naming its room", rooms[room])),
        }
    }
    for name in names_after(line, "super::") {
        if at(name).is_some_and(|used| used != room) {
            faults.push(format!("{} uses super::{name}; say crate::{name}", rooms[room]));
        }
    }
    faults
}

#[test]
fn every_module_is_in_the_list_once() {
    let lib = std::fs::read_to_string(src().join("lib.rs")).unwrap();
    let (mut rooms, mut modules) = (listed(&lib), declared(&lib));
    rooms.sort();
    modules.sort();
    assert_eq!(rooms, modules, "the list in the docs of lib.rs, and its modules");
}

#[test]
fn no_room_uses_one_above_it() {
    let rooms = listed(&std::fs::read_to_string(src().join("lib.rs")).unwrap());
    let mut found = Vec::new();
    let mut files = Vec::new();
    files_under(&src(), &mut files);
    files.sort();
    let mut arrows = 0;
    for path in files {
        let within = path.strip_prefix(src()).unwrap();
        let first = within.components().next().unwrap().as_os_str().to_string_lossy().into_owned();
        let name = first.strip_suffix(".rs").unwrap_or(&first);
        if name == "lib" {
            continue;
        }
        let room = rooms.iter().position(|room| room == name).unwrap();
        for (number, line) in (1..).zip(std::fs::read_to_string(&path).unwrap().lines()) {
            arrows += names_after(line, "crate::").count();
            for fault in faults(&rooms, room, line) {
                found.push(format!("src/{}:{number}: {fault}", within.display()));
            }
        }
    }
    assert!(arrows > 100, "only {arrows} paths between rooms were found: are they written otherwise now?");
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn an_arrow_that_goes_up_is_found() {
    let rooms = ["low", "high"].map(str::to_owned);
    assert_eq!(faults(&rooms, 1, "use crate::low::Thing;"), Vec::<String>::new());
    assert_eq!(faults(&rooms, 0, "    let x = crate::low::f(); // not crate::high::f"), Vec::<String>::new());
    for wrong in
        ["use crate::high::Thing;", "use crate::{high, low};", "use crate::Thing;", "use super::high::Thing;"]
    {
        assert_eq!(faults(&rooms, 0, wrong).len(), 1, "{wrong}");
    }
}
