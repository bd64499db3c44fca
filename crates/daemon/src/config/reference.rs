//! `docs/reference/configuration.md` and `packaging/carma.toml`, as the code says them. `CARMA_BLESS=1` writes them.

use super::keys::{Key, Section, Value};
use super::*;
use carma_bless::{agrees, wrapped};
use std::fmt::Write as _;

const SECTIONS: [Section; 11] = [
    Config::SECTION,
    GateConfig::SECTION,
    MemoryConfig::SECTION,
    SamplingConfig::SECTION,
    QueueConfig::SECTION,
    RecoveryConfig::SECTION,
    MpsConfig::SECTION,
    JobsConfig::SECTION,
    LimitsConfig::SECTION,
    JournalConfig::SECTION,
    RecorderConfig::SECTION,
];

impl Key {
    fn name(&self) -> String {
        self.field.replace('_', "-")
    }
}

/// A word of the page: one that names another page leads there.
fn linked(word: &str) -> String {
    match word.split_once("docs/").and_then(|(before, rest)| Some((before, rest.split_once(".md")?))) {
        Some((before, (name, after))) => format!("{before}[{name}](../{name}.md){after}"),
        None => word.to_owned(),
    }
}

fn page() -> String {
    let mut page = String::from(
        "# Configuration\n\n\
         Written from the code (`crates/daemon/src/config`) by a test: `CARMA_BLESS=1 cargo nextest run -p carma-daemon \
         reference`.\n\n\
         `carma serve` reads `/etc/carma/carma.toml` as root and `~/.config/carma/carma.toml` as a user\n\
         (`$XDG_CONFIG_HOME/carma/carma.toml` where that is set), or the file that `--config` names. Every key is optional,\n\
         and a key that carma does not know is refused. Options of `carma serve` go before the file. `carma config check`\n\
         says what is wrong with a file; a change counts after a restart of the daemon, which leaves jobs alone.\n\
         `packaging/carma.toml` is a file with every key, commented out.\n\n\
         Sizes are binary (`\"20G\"` is 20 GiB): `M`, `G`, `T`. Times are written `\"500ms\"`, `\"30s\"`, `\"5m\"`, \
         `\"2h\"`.\n",
    );
    for section in SECTIONS {
        let title = match section.name {
            "" => "Before the first section".to_owned(),
            name => format!("`[{name}]`"),
        };
        let _ = write!(page, "\n## {title}\n\n");
        if !section.name.is_empty() {
            let _ = writeln!(page, "{}", wrapped("", "", section.about, 120));
        }
        page.push_str("| key | type | default | meaning |\n|---|---|---|---|\n");
        for key in section.keys {
            let default = match key.value {
                Value::Is(value) => format!("`{value}`"),
                Value::Example(_) => "see there".to_owned(),
            };
            let meaning: Vec<String> = key.meaning.split_whitespace().map(linked).collect();
            let _ = writeln!(page, "| `{}` | {} | {default} | {} |", key.name(), key.kind, meaning.join(" "));
        }
    }
    page
}

fn packaged() -> String {
    let mut file = String::from(
        "# Configuration of the daemon: /etc/carma/carma.toml for the system's, ~/.config/carma/carma.toml for a\n\
         # user's own. Every key is here, commented out, with its default. `carma config check FILE` says what is\n\
         # wrong with a file, by name and line. docs/reference/configuration.md has the same as a page.\n",
    );
    for section in SECTIONS {
        if !section.name.is_empty() {
            let _ = write!(file, "\n\n{}[{}]\n", wrapped("# ", "# ", section.about, 108), section.name);
        }
        for key in section.keys {
            let (Value::Is(value) | Value::Example(value)) = key.value;
            let _ = write!(file, "\n{}#{} = {value}\n", wrapped("# ", "# ", key.meaning, 108), key.name());
        }
        if section.name == "limits" {
            file.push_str(
                "\n#[limits.user.alice]\n#gpus = 4\n\n#[limits.group.students]\n#pending-jobs = 100\n#gpus = 1\n",
            );
        }
    }
    file
}

#[test]
fn the_page_and_the_packaged_file_are_what_the_code_says() {
    agrees("docs/reference/configuration.md", &page());
    agrees("packaging/carma.toml", &packaged());
}

/// The packaged file with its keys live: those with a default alone, or all.
fn live(all: bool) -> String {
    let mut text = String::new();
    for section in SECTIONS {
        if !section.name.is_empty() {
            let _ = writeln!(text, "[{}]", section.name);
        }
        for key in section.keys {
            match key.value {
                Value::Is(value) => drop(writeln!(text, "{} = {value}", key.name())),
                Value::Example(value) if all => drop(writeln!(text, "{} = {value}", key.name())),
                Value::Example(_) => {}
            }
        }
    }
    text
}

#[test]
fn the_packaged_file_is_read_with_its_keys_commented_out_and_live() {
    let all = packaged().replace("\n#", "\n").replace("\n ", "\n# ");
    // No policy takes all keys: a gate excludes an objective and limits of progress.
    let with_gate = |text: &str| {
        let text = text.replace("\"adaptive\"", "\"carma\"").replace("\nobjective", "\n#objective");
        text.replace("\nfloor", "\n#floor").replace("\ngain", "\n#gain")
    };
    for text in [packaged(), with_gate(&all), with_gate(&live(true)), live(false)] {
        let config: Config = toml::from_str(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        config.options(0).unwrap();
    }
}

#[test]
fn the_defaults_are_those_of_a_daemon_without_a_file() {
    let none = Config::default();
    let said: Config = toml::from_str(&live(false)).unwrap();
    // The control program of MPS, the samples a second and the GPUs have their defaults in `serve`.
    let settings = |config: &Config| {
        let journal = crate::journal::Settings::from(&config.journal);
        let memory = crate::memory::settings(&config.memory);
        let chain = crate::memory::chain(&config.memory);
        let limits = config.limits.for_all_users();
        format!("{:#?}\n{journal:#?}\n{memory:#?}\n{chain:#?}\n{limits:#?}", config.options(0).unwrap())
    };
    assert_eq!(settings(&none), settings(&said));
}

/// The names that serde answers an unknown one with.
fn expected(text: &str) -> Vec<String> {
    let error = toml::from_str::<Config>(text).unwrap_err().to_string();
    let list = error.split_once("expected ").unwrap_or_else(|| panic!("{text}: {error}")).1;
    list.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn every_key_that_is_read_is_named_and_no_other() {
    let sections: Vec<&str> = SECTIONS.iter().map(|s| s.name).filter(|name| !name.is_empty()).collect();
    for section in SECTIONS {
        let mut named: Vec<String> = section.keys.iter().map(Key::name).collect();
        match section.name {
            "" => named.extend(sections.iter().map(|name| (*name).to_owned())),
            "limits" => named.extend(["user".to_owned(), "group".to_owned()]),
            _ => {}
        }
        let header = if section.name.is_empty() { String::new() } else { format!("[{}]\n", section.name) };
        assert_eq!(expected(&format!("{header}no-such-key = 1")), named, "[{}]", section.name);
    }
}

#[test]
fn words_that_may_be_written_are_named() {
    let words = SECTIONS.into_iter().flat_map(|s| s.keys.iter().map(move |key| (s.name, key)));
    let words = words.filter(|(_, key)| key.kind.starts_with("`\""));
    let mut seen = 0;
    for (section, key) in words {
        let header = if section.is_empty() { String::new() } else { format!("[{section}]\n") };
        let mut known = expected(&format!("{header}{} = 'no-such-word'", key.name()));
        let mut named: Vec<String> =
            key.kind.split('`').skip(1).step_by(2).map(|word| word.trim_matches('"').to_owned()).collect();
        known.sort();
        named.sort();
        assert_eq!(known, named, "[{section}] {}", key.name());
        seen += 1;
    }
    assert!(seen >= 5, "{seen}");
}
