//! `docs/reference/commands.md`, as the parser says it. `CARMA_BLESS=1` writes it.

use super::{ALSO, Cli, GROUPS};
use carma_bless::{agrees, wrapped};
use clap::{Arg, Command, CommandFactory};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Width of the page's lines.
const WIDTH: usize = 120;

/// An argument or option: how it is written, and what its help says.
fn item(arg: &Arg) -> String {
    let mut text = match arg.get_short() {
        Some(short) => format!("`-{short}, {arg}`"),
        None => format!("`{arg}`"),
    };
    for alias in arg.get_visible_aliases().unwrap_or_default() {
        let _ = write!(text, ", `--{alias}`");
    }
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let _ = write!(text, ": {help}");
    if arg.get_action().takes_values() {
        let defaults: Vec<_> = arg.get_default_values().iter().map(|v| v.to_string_lossy()).collect();
        if !defaults.is_empty() && !arg.is_hide_default_value_set() {
            let _ = write!(text, " [default: `{}`]", defaults.join(" "));
        }
        let values = arg.get_possible_values();
        let values: Vec<String> = values.iter().map(|v| format!("`{}`", v.get_name())).collect();
        if !values.is_empty() {
            let _ = write!(text, " [one of {}]", values.join(", "));
        }
    }
    if let Some(variable) = arg.get_env() {
        let _ = write!(text, " [environment: `{}`]", variable.to_string_lossy());
    }
    wrapped("- ", "  ", &text, WIDTH)
}

/// The groups of a verb's options by their headings, in the order of the help. Those of every verb are left out.
fn groups(verb: &Command) -> Vec<(String, String)> {
    let mut groups: Vec<(String, String)> = Vec::new();
    let shown = |a: &&Arg| !a.is_hide_set() && !a.is_global_set() && a.get_id() != "help";
    let (first, then): (Vec<_>, Vec<_>) = verb.get_arguments().filter(shown).partition(|a| a.is_positional());
    for arg in first.into_iter().chain(then) {
        let heading = match arg.get_help_heading() {
            _ if arg.is_positional() => "Arguments",
            Some(heading) => heading,
            None => "Options",
        };
        match groups.iter_mut().find(|(name, _)| name == heading) {
            Some((_, items)) => items.push_str(&item(arg)),
            None => groups.push((heading.to_owned(), item(arg))),
        }
    }
    groups
}

/// A verb and the verbs in it.
fn all(verb: &Command) -> Vec<&Command> {
    let inner = verb.get_subcommands().filter(|inner| inner.get_name() != "help");
    std::iter::once(verb).chain(inner.flat_map(all)).collect()
}

fn anchor(heading: &str) -> String {
    heading.to_lowercase().replace(' ', "-")
}

fn page() -> String {
    let mut carma = Cli::command();
    carma.build();
    let verbs = || GROUPS.into_iter().flat_map(|(_, verbs)| verbs).chain(&ALSO);
    // Groups of options that several verbs have stand once.
    let mut seen: BTreeMap<(String, String), usize> = BTreeMap::new();
    for verb in all(&carma) {
        groups(verb).into_iter().for_each(|group| *seen.entry(group).or_default() += 1);
    }
    let common: Vec<&(String, String)> = seen
        .iter()
        .filter(|(group, times)| **times > 1 && group.0 != "Options" && group.0 != "Arguments")
        .map(|(group, _)| group)
        .collect();

    let mut page = String::from(
        "# Commands\n\n\
         Written from the parser of the command line (`crates/carma/src/cli.rs`) by a test:\n\
         `CARMA_BLESS=1 cargo nextest run -p carma --bin carma reference`.\n\n\
         `carma VERB --help` says the same in a terminal. Every verb takes\n\n",
    );
    for arg in carma.get_arguments().filter(|a| a.is_global_set()) {
        page.push_str(&item(arg));
    }
    page.push_str("- `-h, --help`: Print help\n\n");
    page.push_str(&wrapped(
        "",
        "",
        &format!(
            "{} The [list of exit codes](exit-codes-and-reasons.md) has them all.",
            carma.get_after_help().map(ToString::to_string).unwrap_or_default()
        ),
        WIDTH,
    ));
    page.push_str("\n| for | verbs |\n|---|---|\n");
    for (heading, verbs) in GROUPS.into_iter().chain([("Also", &ALSO[..])]) {
        let links: Vec<String> = verbs.iter().map(|verb| format!("[{verb}](#carma-{verb})")).collect();
        let _ = writeln!(page, "| {heading} | {} |", links.join(", "));
    }
    for verb in verbs().flat_map(|verb| all(carma.find_subcommand(verb).unwrap())) {
        let name = verb.get_bin_name().unwrap();
        let level = if name.split(' ').count() > 2 { "###" } else { "##" };
        let about = verb.get_about().map(ToString::to_string).unwrap_or_default();
        let usage = verb.clone().render_usage().to_string();
        let usage: Vec<&str> = usage.trim_start_matches("Usage:").lines().map(str::trim).collect();
        let _ = write!(page, "\n{level} {name}\n\n{about}.\n\n```text\n{}\n```\n", usage.join("\n"));
        for (heading, items) in groups(verb) {
            match common.iter().any(|group| group.0 == heading && group.1 == items) {
                true => drop(write!(page, "\n{heading}: [below](#{}).\n", anchor(&heading))),
                false => drop(write!(page, "\n{heading}:\n\n{items}")),
            }
        }
        if let Some(after) = verb.get_after_help() {
            let _ = write!(page, "\n{}", wrapped("", "", &after.to_string(), WIDTH));
        }
    }
    page.push_str("\n## Options of several verbs\n");
    for (heading, items) in common {
        let _ = write!(page, "\n### {heading}\n\n{items}");
    }
    page
}

#[test]
fn the_page_is_what_the_parser_says() {
    agrees("docs/reference/commands.md", &page());
}
