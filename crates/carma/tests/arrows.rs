//! The arrows between crates run one way: a crate depends on crates that come before it here, and nothing that is shipped
//! depends on the laboratory (docs/architecture.md).

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// From bottom to top.
const ORDER: [&str; 29] = [
    "carma-bless",
    "carma-seeded",
    "carma-core",
    "carma-hardware",
    "carma-files",
    "carma-stats",
    "carma-run-time",
    "carma-nn",
    "carma-api",
    "carma-cli",
    "carma-interference",
    "carma-process",
    "carma-memory",
    "fake-cuda",
    "fake-nvml",
    "carma-gpu",
    "carma-virtual-gpu",
    "carma-sim",
    "carma-daemon",
    "carma-protocol-model",
    "carma-measure",
    "carma",
    "carma-lab-memory",
    "carma-lab-interference",
    "carma-lab-gpu-models",
    "carma-lab-run-time",
    "carma-lab-policies",
    "carma-lab",
    "carma-fuzz",
];

/// What a crate may not depend on, nor anything that it depends on.
const CLOSED: [(&str, &[&str]); 11] = [
    ("carma-bless", &["carma-"]),
    ("carma-seeded", &["carma-"]),
    ("carma-core", &["carma-"]),
    ("carma-hardware", &["carma-"]),
    ("carma-files", &["carma-"]),
    ("carma-stats", &["carma-"]),
    ("carma-process", &["carma-gpu", "carma-virtual-gpu"]),
    ("carma-daemon", &["carma-sim", "carma-lab", "carma-cli"]),
    ("carma-sim", &["carma-virtual-gpu", "carma-daemon"]),
    ("carma-measure", &["carma-daemon", "carma-cli"]),
    ("carma-lab", &["carma-daemon"]),
];

/// The workspace's crates that each crate names: for its users, and for its tests alone.
fn arrows() -> BTreeMap<String, (BTreeSet<String>, BTreeSet<String>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut arrows = BTreeMap::new();
    for folder in ["crates", "lab"] {
        for entry in std::fs::read_dir(root.join(folder)).unwrap() {
            let Ok(text) = std::fs::read_to_string(entry.unwrap().path().join("Cargo.toml")) else {
                continue;
            };
            let manifest: toml::Table = text.parse().unwrap();
            let named = |part: &str| -> BTreeSet<String> {
                let names = manifest.get(part).and_then(toml::Value::as_table).into_iter().flatten();
                names.map(|(name, _)| name.clone()).filter(|name| ORDER.contains(&name.as_str())).collect()
            };
            let name = manifest["package"]["name"].as_str().unwrap().to_owned();
            arrows.insert(name, (named("dependencies"), named("dev-dependencies")));
        }
    }
    arrows
}

#[test]
fn crates_depend_on_crates_below_them() {
    let arrows = arrows();
    let place = |name: &str| ORDER.iter().position(|known| *known == name);
    for (name, (uses, tests_use)) in &arrows {
        let Some(mine) = place(name) else { panic!("{name} has no place in this test's order") };
        for other in uses.iter().chain(tests_use) {
            assert!(place(other) < Some(mine), "{name} depends on {other}, which is above it");
        }
    }
}

#[test]
fn nothing_that_is_shipped_depends_on_the_laboratory_and_closed_rooms_stay_closed() {
    let arrows = arrows();
    let all_of = |name: &str| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![name.to_owned()]);
        while let Some(next) = open.pop() {
            for other in arrows.get(&next).map(|(uses, _)| uses).into_iter().flatten() {
                if seen.insert(other.clone()) {
                    open.push(other.clone());
                }
            }
        }
        seen
    };
    for other in all_of("carma") {
        assert!(!other.starts_with("carma-lab"), "carma depends on {other}");
    }
    for (name, banned) in CLOSED {
        for other in all_of(name) {
            assert!(!banned.iter().any(|start| other.starts_with(start)), "{name} depends on {other}");
        }
    }
}

/// Top-level modules that each module of a crate names with `crate::`, tests left out.
fn modules(src: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let mut open = vec![src.to_owned()];
    let mut files: Vec<(PathBuf, String)> = Vec::new();
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            files.push((path, text));
        }
    }
    // Files of modules that are compiled for tests alone.
    let mut tests: BTreeSet<PathBuf> = BTreeSet::new();
    for (path, text) in &files {
        let root = path.file_stem().is_some_and(|stem| stem == "mod" || stem == "lib" || stem == "main");
        let folder = if root { path.parent().unwrap().to_owned() } else { path.with_extension("") };
        for declared in text.split("#[cfg(test)]\nmod ").skip(1) {
            let name = declared.split([';', ' ']).next().unwrap_or_default();
            tests.insert(folder.join(name).with_extension("rs"));
        }
    }
    let mut named: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (path, text) in &files {
        let name = path.strip_prefix(src).unwrap().to_string_lossy().into_owned();
        let top = name.split(['/', '.']).next().unwrap_or_default().to_owned();
        if tests.contains(path) || name.contains("tests") || matches!(&*top, "lib" | "main") {
            continue;
        }
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        let uses = named.entry(top.clone()).or_default();
        for line in lines {
            for part in line.split("crate::").skip(1) {
                // `use crate::{a, b}` would hide what it names; a module's name stands alone here.
                let word: String = part.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                uses.insert(word);
            }
        }
        uses.remove(&top);
    }
    let known: BTreeSet<String> = named.keys().cloned().collect();
    named.values_mut().for_each(|uses| uses.retain(|name| known.contains(name)));
    named
}

#[test]
fn modules_of_a_crate_use_each_other_one_way() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut circles = Vec::new();
    for folder in ["crates", "lab"] {
        for entry in std::fs::read_dir(root.join(folder)).unwrap() {
            let src = entry.unwrap().path().join("src");
            if !src.is_dir() {
                continue;
            }
            let named = modules(&src);
            for start in named.keys() {
                let (mut seen, mut open) = (BTreeSet::new(), vec![start]);
                while let Some(next) = open.pop() {
                    open.extend(named.get(next).into_iter().flatten().filter(|other| seen.insert(*other)));
                }
                if seen.contains(start) {
                    circles.push(format!("{}: {start}", src.display()));
                }
            }
        }
    }
    assert!(circles.is_empty(), "modules that lead back to themselves:\n{}", circles.join("\n"));
}
