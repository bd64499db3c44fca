//! Numbers of GPU types stand in this crate's files and nowhere else.
#![allow(clippy::unwrap_used)]

use carma_hardware::{Facts, names};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Types that no file is about, whose numbers have no place in the sources either.
const OTHERS: [&str; 8] = ["A800", "H800", "H20", "B100", "B200", "GH200", "GB200", "MI300X"];

/// Lines after a type's name in which a number belongs to it.
const NEAR: usize = 4;

/// Crates of tests: what a stand-in for a driver shows is no fact.
const NOT_SHIPPED: [&str; 3] = ["fake-nvml", "fuzz", "protocol-model"];

/// Where there may be one: file, part of the line, reason.
const ALLOWED: [(&str, &str, &str); 2] = [
    (
        "memory/src/formula/faketensor/mod.rs",
        "CONTEXT_OF_FIT_MIB: f64 = 1429.0",
        "belongs to the constants of the fit, which stay as they are if the context is measured again",
    ),
    (
        "memory/src/activity.rs",
        "MEASURED: &str = \"H200\"",
        "the type that twenty constants were fitted on as a whole, of which the SMs are one",
    ),
];

/// One line of code: its literals, and the rest of it. No comments.
#[derive(Debug, Default)]
struct Line {
    literals: Vec<String>,
    code: String,
}

/// Cuts Rust into lines without comments and without what comes after the first `#[cfg(test)] mod`. Raw strings with
/// quotes in them and character literals of a quote are taken for what they look like; both are rare enough.
fn lines(source: &str) -> Vec<Line> {
    #[derive(PartialEq)]
    enum In {
        Code,
        Literal,
        Comment(u32),
    }
    let tests =
        ["mod tests {", "pub(crate) mod tests {"].map(|of| source.find(&format!("#[cfg(test)]\n{of}")));
    let source = tests.into_iter().flatten().min().map_or(source, |end| &source[..end]);
    let mut state = In::Code;
    let mut literal = String::new();
    source
        .lines()
        .map(|text| {
            let mut line = Line::default();
            let mut chars = text.chars().peekable();
            while let Some(c) = chars.next() {
                let next = chars.peek().copied();
                match (&mut state, c, next) {
                    (In::Comment(depth), '*', Some('/')) => {
                        chars.next();
                        *depth -= 1;
                        if *depth == 0 {
                            state = In::Code;
                        }
                    }
                    (In::Comment(depth), '/', Some('*')) => {
                        chars.next();
                        *depth += 1;
                    }
                    (In::Comment(_), ..) => {}
                    (In::Code, '/', Some('/')) => break,
                    (In::Code, '/', Some('*')) => {
                        chars.next();
                        state = In::Comment(1);
                    }
                    (In::Code, '\'', Some('"')) => {
                        chars.next();
                    }
                    (In::Code, '"', _) => state = In::Literal,
                    (In::Code, ..) => line.code.push(c),
                    (In::Literal, '\\', Some(_)) => {
                        chars.next();
                    }
                    (In::Literal, '"', _) => {
                        line.literals.push(std::mem::take(&mut literal));
                        state = In::Code;
                        line.code.push(' ');
                    }
                    (In::Literal, ..) => literal.push(c),
                }
            }
            if state == In::Literal {
                literal.push(' ');
            }
            line
        })
        .collect()
}

/// The numbers of a line of code, without `_` and type.
fn numbers(code: &str) -> impl Iterator<Item = f64> {
    // A dot between digits is part of a number, in `x.0.y` it is not one worth a thought.
    let words = code.split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '.')));
    words.filter(|word| word.starts_with(|c: char| c.is_ascii_digit())).filter_map(|word| {
        let digits: String = word.chars().filter(|c| *c != '_').collect();
        let end = digits.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(digits.len());
        digits[..end].trim_end_matches('.').parse().ok()
    })
}

/// A number that may be a fact of a type: not an index, a count or a share in plain tenths.
fn telling(number: f64) -> bool {
    number >= 16.0 || (number * 10.0).fract() > 1e-9
}

/// What is looked for.
struct Wanted {
    /// Words of product names that mean a chip or a type.
    words: Vec<String>,
    /// Numbers that are nothing but a fact of a type.
    numbers: Vec<f64>,
}

impl Wanted {
    fn new() -> Self {
        let mut words: Vec<String> = OTHERS.map(str::to_owned).to_vec();
        let mut numbers = Vec::new();
        for facts in Facts::all() {
            for product in &facts.nvml {
                let chip = names::chip(product, []);
                let numbered = |word: &&str| word.bytes().any(|b| b.is_ascii_digit()) && word.len() > 1;
                words.extend(chip.split('-').filter(numbered).map(str::to_owned));
            }
            // Whole GiB mean many things, 143,771 MiB mean one.
            numbers.extend((facts.memory_mib % 1024 != 0).then_some(facts.memory_mib as f64));
        }
        numbers.push(carma_hardware::Unmeasured::get().eager_mib.value);
        Self { words, numbers }
    }

    /// Numbers of the lines (from 1) with such a constant, and what is wrong there.
    fn search(&self, source: &str) -> Vec<(usize, String)> {
        let lines = lines(source);
        let mut found = Vec::new();
        for (at, line) in lines.iter().enumerate() {
            if let Some(number) = numbers(&line.code).find(|number| self.numbers.contains(number)) {
                found.push((at + 1, format!("{number} is a fact of a GPU type")));
            }
            let named = line.literals.iter().find_map(|literal| {
                let upper = literal.to_uppercase();
                let mut words = upper.split(|c: char| !c.is_ascii_alphanumeric());
                words.find(|word| self.words.iter().any(|wanted| wanted == word)).map(str::to_owned)
            });
            let near =
                || lines[at..].iter().take(NEAR).find_map(|line| numbers(&line.code).find(|n| telling(*n)));
            if let Some((name, number)) = named.and_then(|name| Some((name, near()?))) {
                found.push((at + 1, format!("`{name}` with the number {number} next to it")));
            }
        }
        found
    }
}

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() {
            if name != "tests" {
                sources(&path, into);
            }
        } else if name.ends_with(".rs") && name != "tests.rs" {
            into.push(path);
        }
    }
}

#[test]
fn no_other_crate_has_numbers_of_gpu_types() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut files = Vec::new();
    for entry in std::fs::read_dir(crates).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if name != "hardware" && !NOT_SHIPPED.contains(&name) && path.join("src").is_dir() {
            sources(&path.join("src"), &mut files);
        }
    }
    files.sort();
    assert!(files.len() > 200, "only {} files were looked at", files.len());
    let wanted = Wanted::new();
    let mut used = [false; ALLOWED.len()];
    let mut report = String::new();
    for path in &files {
        let text = std::fs::read_to_string(path).unwrap();
        let file = path.strip_prefix(crates).unwrap().to_str().unwrap();
        for (number, why) in wanted.search(&text) {
            let line = text.lines().nth(number - 1).unwrap();
            let allowed = ALLOWED.iter().position(|(of, part, _)| file == *of && line.contains(part));
            match allowed {
                Some(at) => used[at] = true,
                None => writeln!(report, "crates/{file}:{number}: {why}: {}", line.trim()).unwrap(),
            }
        }
    }
    for ((file, part, reason), used) in ALLOWED.iter().zip(used) {
        if !used {
            writeln!(report, "crates/{file}: `{part}` is allowed ({reason}) and not there any more").unwrap();
        }
    }
    assert!(
        report.is_empty(),
        "put it into crates/hardware/gpus/*.toml, or say why not in ALLOWED:\n{report}"
    );
}

#[test]
fn constants_are_found_and_other_text_is_not() {
    let wanted = Wanted::new();
    for (source, hits) in [
        ("const X: u64 = 143_771;", 1),
        ("const X: f64 = 1429.0;", 1),
        ("row(\"H200\", 758)", 1),
        ("row(\n    \"NVIDIA A100-SXM4-40GB\",\n    &[],\n    524,\n)", 1),
        ("(\"V100\", Capacities { mps_sm: 1.15, ..x })", 1),
        ("(\"B200\", 192_000.0)", 1),
        ("// \"H200\" has 143771 MiB\nlet x = 1;", 0),
        ("/* row(\"H200\", 758) */", 0),
        ("hint(\"say --gpu H200 or another type\")", 0),
        ("find(\"H200\").nth(2)", 0),
        ("row(\"RTX\", 758)", 0),
        ("row(\"L4X\", 758)", 0),
        ("let x = 40_960;", 0),
        ("let x = 1;\n#[cfg(test)]\nmod tests {\n    row(\"H200\", 758)\n}", 0),
    ] {
        assert_eq!(wanted.search(source).len(), hits, "{source}: {:?}", wanted.search(source));
    }
}
