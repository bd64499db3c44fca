//! What a command starts: behind a shell, variables and programs that only start another.

use super::{Command, launcher, stem};
use std::collections::BTreeMap;

type Env = BTreeMap<String, String>;

/// A program that starts another, its options that take the next word, and how many words of its own come before the other.
type Wrapper = (&'static str, &'static [&'static str], usize);

const WRAPPERS: &[Wrapper] = &[
    ("exec", &["-a"], 0),
    ("nohup", &[], 0),
    ("setsid", &[], 0),
    ("env", &["-u", "--unset", "-C", "--chdir"], 0),
    ("nice", &["-n", "--adjustment"], 0),
    ("ionice", &["-c", "-n", "--class", "--classdata"], 0),
    ("stdbuf", &["-i", "-o", "-e", "--input", "--output", "--error"], 0),
    ("time", &["-f", "-o", "--format", "--output"], 0),
    ("timeout", &["-k", "-s", "--kill-after", "--signal"], 1),
    ("taskset", &[], 1),
    (
        "numactl",
        &[
            "-m",
            "-N",
            "-C",
            "-p",
            "-i",
            "--membind",
            "--cpunodebind",
            "--physcpubind",
            "--preferred",
            "--interleave",
        ],
        0,
    ),
    // Words of a shell before a command.
    ("then", &[], 0),
    ("else", &[], 0),
    ("do", &[], 0),
    ("!", &[], 0),
    ("{", &[], 0),
];

/// The words of the program that a command starts, and its environment. Of a line for a shell: the first launcher of several
/// processes, else the first Python or server of language models, else the whole line.
pub(super) fn started(command: &[String], env: &Env) -> (Vec<String>, Env) {
    let mut env = env.clone();
    let words = unwrapped(command, &mut env);
    let line = match words {
        [shell, option, line, ..] if is_shell(shell) && runs_a_line(option) => line,
        _ => return (flat(words), env),
    };
    let mut first = None;
    for part in parts(line) {
        let mut own = env.clone();
        match unwrapped(&part, &mut own) {
            [export, variables @ ..] if export == "export" => {
                env.extend(variables.iter().filter_map(|word| assignment(word)));
            }
            words => {
                let here = Command { words: flat(words), env: own, script: Vec::new() };
                if launcher::launcher(&here).is_some() {
                    return (here.words, here.env);
                }
                let program = here.program();
                if program.starts_with("python")
                    || program.ends_with(".py")
                    || matches!(program, "vllm" | "sglang")
                {
                    first.get_or_insert((here.words, here.env));
                }
            }
        }
    }
    first.unwrap_or_else(|| {
        let words = flat(unwrapped(&parts(line).concat(), &mut env));
        (words, env)
    })
}

/// Words within words as well, without quotes.
fn flat(words: &[String]) -> Vec<String> {
    let words = words.iter().flat_map(|word| word.split_whitespace());
    words.map(|word| word.trim_matches(['\'', '"']).to_owned()).collect()
}

fn is_shell(word: &str) -> bool {
    matches!(stem(word), "sh" | "bash" | "dash" | "zsh")
}

/// `-c`, `-lc`, `-ec`.
fn runs_a_line(option: &str) -> bool {
    option.strip_prefix('-').is_some_and(|letters| {
        letters.ends_with('c') && letters.bytes().all(|letter| letter.is_ascii_alphabetic())
    })
}

fn assignment(word: &str) -> Option<(String, String)> {
    let (key, value) = word.split_once('=')?;
    let is_name = !key.is_empty()
        && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && !key.as_bytes()[0].is_ascii_digit();
    is_name.then(|| (key.to_owned(), value.trim_matches(['\'', '"']).to_owned()))
}

/// The words from the program on, with the variables before it.
pub(super) fn unwrapped<'a>(mut words: &'a [String], env: &mut Env) -> &'a [String] {
    while let Some((word, mut rest)) = words.split_first() {
        let name = stem(word);
        if let Some((key, value)) = assignment(word) {
            env.insert(key, value);
        } else if let Some((_, valued, own)) = WRAPPERS.iter().find(|(wrapper, ..)| *wrapper == name) {
            while let Some(option) = rest.first().filter(|word| word.starts_with('-')) {
                let value = rest.get(1).filter(|_| valued.contains(&option.as_str()));
                if name == "env" {
                    environment(option, value, env);
                }
                rest = &rest[if value.is_some() { 2 } else { 1 }..];
            }
            rest = rest.get(*own..).unwrap_or_default();
        } else if matches!(name, "conda" | "mamba" | "micromamba" | "uv" | "poetry" | "pdm")
            && rest.first().is_some_and(|word| word == "run")
        {
            // A program that starts another in an environment of packages.
            rest = &rest[1..];
            while let Some(option) = rest.first().filter(|word| word.starts_with('-')) {
                let takes = matches!(option.as_str(), "-n" | "-p" | "--name" | "--prefix");
                rest = rest.get(if takes { 2 } else { 1 }..).unwrap_or_default();
            }
        } else {
            break;
        }
        words = rest;
    }
    words
}

/// What an option of `env` takes from the environment.
fn environment(option: &str, value: Option<&String>, env: &mut Env) {
    let joined = option.strip_prefix("--unset=").or_else(|| option.strip_prefix("-u"));
    match option {
        "-" | "-i" | "--ignore-environment" => env.clear(),
        "-u" | "--unset" => drop(value.and_then(|name| env.remove(name))),
        _ => drop(joined.and_then(|name| env.remove(name))),
    }
}

/// The commands of a line for a shell, each as its words. Quotes hold words together; what is in `$()` is not looked into.
fn parts(line: &str) -> Vec<Vec<String>> {
    let (mut parts, mut words, mut word) = (Vec::new(), Vec::new(), String::new());
    let (mut quote, mut signs) = (None, line.chars().peekable());
    while let Some(sign) = signs.next() {
        match (quote, sign) {
            (Some(open), _) if open == sign => quote = None,
            (None, '"' | '\'') => quote = Some(sign),
            // A comment: an apostrophe in it opens no quote.
            (None, '#') if word.is_empty() => while signs.next_if(|sign| *sign != '\n').is_some() {},
            // A line that goes on in the next.
            (None, '\\') if signs.next_if_eq(&'\n').is_some() => {}
            (None, ';' | '&' | '|' | '\n' | ' ' | '\t' | '(' | ')') => {
                words.extend(Some(std::mem::take(&mut word)).filter(|word| !word.is_empty()));
                if !matches!(sign, ' ' | '\t') {
                    parts.push(std::mem::take(&mut words));
                }
            }
            _ => word.push(sign),
        }
    }
    words.extend(Some(word).filter(|word| !word.is_empty()));
    parts.push(words);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &[&str]) -> (String, Env) {
        let words: Vec<String> = words.iter().map(ToString::to_string).collect();
        let (words, env) = started(&words, &[("A".to_owned(), "0".to_owned())].into());
        (words.join(" "), env)
    }

    #[test]
    fn programs_behind_others() {
        for (line, program) in [
            ("nice -n 5 torchrun t.py -n 3", "torchrun t.py -n 3"),
            ("nice -5 torchrun t.py", "torchrun t.py"),
            ("timeout -k 5 3600 torchrun t.py", "torchrun t.py"),
            ("timeout --signal=INT 3600 nohup python t.py", "python t.py"),
            ("/usr/bin/time -v numactl -N 0 --membind=0 python t.py", "python t.py"),
            ("stdbuf -oL ionice -c 2 -n0 taskset -c 0-3 python t.py", "python t.py"),
            ("env -u A B=1 exec conda run -n x python t.py", "python t.py"),
            ("timeout", ""),
            ("conda run -n", ""),
        ] {
            assert_eq!(of(&line.split(' ').collect::<Vec<_>>()).0, program, "{line}");
        }
    }

    #[test]
    fn lines_for_a_shell() {
        for (line, program) in [
            ("cd /w && torchrun -n 4 t.py | tee log", "torchrun -n 4 t.py"),
            ("python prep.py; torchrun -n 4 t.py", "torchrun -n 4 t.py"),
            ("set -e\nmodule load x\nexec python t.py \\\n --a 'b c;d'", "python t.py --a b c;d"),
            ("if true; then (nice python t.py); fi", "python t.py"),
            ("./train -n 3", "./train -n 3"),
            ("A=1 B='x y' python t.py", "python t.py"),
            ("cd /w; vllm serve m && echo", "vllm serve m"),
            ("# it's all\npython t.py # it's\necho", "python t.py"),
            ("echo a#b '# it' $#; python t.py", "python t.py"),
            ("# not python\n./train -n 3", "./train -n 3"),
        ] {
            for option in ["-c", "-lc", "-ec"] {
                assert_eq!(of(&["bash", option, line]).0, program, "{line}");
            }
        }
        assert_eq!(of(&["nice", "/bin/sh", "-c", "python t.py"]).0, "python t.py");
        assert_eq!(of(&["bash", "run.sh", "-c"]).0, "bash run.sh -c");
    }

    #[test]
    fn the_environment_of_what_is_started() {
        let variable = |words: &[&str]| of(words).1.get("A").cloned().unwrap_or_default();
        let line = |line: &str| variable(&["sh", "-c", line]);
        assert_eq!(variable(&["env", "-u", "B", "A=2", "python", "t.py"]), "2");
        assert_eq!(variable(&["env", "-uA", "python", "t.py"]), "");
        assert_eq!(variable(&["env", "-i", "python", "t.py"]), "");
        assert_eq!(line("export B=1 A='.2'; python t.py"), ".2");
        assert_eq!(line("export A=1 && A=3 nice python t.py"), "3");
        // Of another command of the line.
        assert_eq!(line("A=3 echo x; python t.py"), "0");
    }
}
