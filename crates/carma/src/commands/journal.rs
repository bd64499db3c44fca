//! `carma journal`: looks after the file that all of carma's state comes from.

use super::Context;
use crate::cli::journal::{BackupArgs, CheckArgs, JournalVerb, RepairArgs, StateArgs};
use crate::places::{default_config, own_state};
use carma_api::wire::StatusReply;
use carma_cli::failure::{Failure, GENERAL, NOT_ALLOWED, Outcome};
use carma_cli::{Screen, clean, print, print_json, wrap};
use carma_daemon::config;
use carma_daemon::journal::{self, Finding};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Runs the verb.
pub(crate) fn run(context: &Context, verb: &JournalVerb) -> Outcome {
    match verb {
        JournalVerb::Check(args) => check(context, args),
        JournalVerb::Backup(args) => backup(context, args),
        JournalVerb::Repair(args) => repair(context, args),
    }
}

/// The state directory of the daemon that answers clients; `None`: none does.
fn served(context: &Context) -> Option<PathBuf> {
    let status: StatusReply = context.client().ok()?.get("/v1/status").ok()?;
    Some(status.state_dir.into())
}

/// The state directory that is meant, if we may look into it.
fn state_dir(context: &Context, args: &StateArgs) -> Result<PathBuf, Failure> {
    let dir = match args.state.clone().or_else(|| served(context)) {
        Some(dir) => dir,
        None => {
            let file = default_config();
            let config = if file.exists() {
                config::load(&file).map_err(|e| Failure::usage(e.to_string()))?
            } else {
                config::Config::default()
            };
            config.state_dir.unwrap_or_else(own_state)
        }
    };
    let dir = std::path::absolute(&dir).map_err(|e| Failure::usage(format!("{}: {e}", dir.display())))?;
    match std::fs::read_dir(&dir) {
        Ok(_) => Ok(dir),
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => Err(Failure {
            code: NOT_ALLOWED,
            ..Failure::new(format!("the journal in {} is for root and its owner only", dir.display()))
        }),
        Err(e) => Err(Failure::new(format!("{}: {e}", dir.display()))
            .hint("name the directory of the journal with --state")),
    }
}

fn file_in(dir: &Path) -> PathBuf {
    dir.join("carma.db")
}

fn check(context: &Context, args: &CheckArgs) -> Outcome {
    let dir = state_dir(context, &args.state)?;
    let findings = journal::check(&file_in(&dir));
    let sound = findings.iter().all(|finding| finding.ok);
    if args.json {
        let findings: Vec<_> = findings
            .iter()
            .map(|f| serde_json::json!({"about": f.about, "ok": f.ok, "text": f.text}))
            .collect();
        print_json(&serde_json::json!({
            "version": carma_api::VERSION,
            "state_dir": dir.display().to_string(),
            "ok": sound,
            "findings": findings,
        }))?;
    } else {
        print(&render(&findings, &dir, &Screen::stdout()))?;
    }
    Ok(if sound { 0 } else { GENERAL })
}

fn render(findings: &[Finding], dir: &Path, screen: &Screen) -> String {
    let mut text = format!("{}:\n", clean(&file_in(dir).display().to_string()));
    for finding in findings {
        let state = match (finding.ok, finding.instead) {
            (true, _) => "ok",
            (false, None) => "broken",
            (false, Some(_)) => "unread",
        };
        let mut head = format!("{state:<8}{:<14}", finding.about);
        for line in wrap(&clean(&finding.text), screen, 22) {
            let _ = writeln!(text, "{head:<22}{line}");
            head.clear();
        }
    }
    let _ = if findings.iter().all(|finding| finding.ok) {
        writeln!(text, "the journal holds what was written to it")
    } else if ["carma.db", "carma.db.head"].iter().all(|name| !dir.join(name).exists()) {
        writeln!(text, "nothing says that there ever was one; name the directory of a journal with --state")
    } else if let Some(instead) = findings.iter().find_map(|finding| finding.instead) {
        writeln!(text, "nothing is known to be broken; {instead}")
    } else {
        let dir = dir.display().to_string();
        writeln!(
            text,
            "stop the daemon, then `carma journal repair --state {}` says what can be saved",
            clean(&dir)
        )
    };
    text
}

fn backup(context: &Context, args: &BackupArgs) -> Outcome {
    let dir = state_dir(context, &args.state)?;
    journal::backup(&file_in(&dir), &args.file).map_err(|e| Failure::new(e.to_string()))?;
    let shown = args.file.display().to_string();
    print(&format!("{}: a copy of the journal, checked and on disk\n", clean(&shown)))?;
    Ok(0)
}

fn repair(context: &Context, args: &RepairArgs) -> Outcome {
    let dir = state_dir(context, &args.state)?;
    // What is written is for the owner only, as with the daemon.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let report = journal::repair(&dir, args.accept_loss).map_err(|e| Failure::new(e.to_string()))?;
    let mut text = String::new();
    for (head, lines) in [("lost", &report.lost), ("then", &report.done)] {
        for line in lines {
            let _ = writeln!(text, "{head}: {}", clean(line));
        }
    }
    match &report.saved {
        Some(saved) => {
            let _ = writeln!(text, "repaired; the files as they were are in {}", saved.display());
        }
        None if report.lost.is_empty() && report.done.is_empty() => {
            text.push_str("the journal holds what was written to it; nothing to repair\n");
        }
        None if report.lost.is_empty() => text.push_str("repaired\n"),
        None => {
            print(&text)?;
            return Err(Failure::new("nothing was changed, since this would be lost")
                .hint("a backup may have more; `carma journal repair --accept-loss` goes on without"));
        }
    }
    print(&text)?;
    Ok(0)
}
