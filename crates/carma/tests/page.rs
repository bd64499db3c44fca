//! `carma report`, and its page in a real browser.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, its helpers too"
)]

use carma_sim::event::outcome;
use carma_sim::report::json::SimulateReply;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

#[path = "../../sim/src/report/example.rs"]
mod example;

/// What ends up in the page if a name is not escaped.
const HOSTILE: &str =
    "</title></text><script>document.title='owned'</script><img src=x onerror=alert(1)>\"'&";

/// Runs `carma report` on a document.
fn report(dir: &Path, document: &str) -> Output {
    let file = dir.join("in.json");
    fs::write(&file, document).unwrap();
    Command::new(env!("CARGO_BIN_EXE_carma"))
        .arg("report")
        .arg(&file)
        .arg("-o")
        .arg(dir.join("out.html"))
        .output()
        .unwrap()
}

fn document(detail: bool) -> String {
    let mut runs = example::runs(4, 60, &["exclusive", "magm", "random"], 7);
    for run in &mut runs {
        run.jobs[0].id = HOSTILE.into();
        run.jobs[1].task = HOSTILE.into();
    }
    let reply = SimulateReply::new(HOSTILE, "4xA100-40GB", vec![HOSTILE.into()], &runs, detail);
    serde_json::to_string(&reply).unwrap()
}

/// The browser, if there is one that starts: some distributions have only a note where to get it.
fn browser() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let starts =
        |file: &PathBuf| Command::new(file).arg("--version").output().is_ok_and(|out| out.status.success());
    std::env::split_paths(&path).flat_map(|dir| names.map(|name| dir.join(name))).find(starts)
}

/// The page's elements after its script ran, and what the browser had to say.
fn opened(chromium: &Path, dir: &TempDir, size: &str) -> (String, String) {
    let out = Command::new(chromium)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
        .args(["--enable-logging=stderr", "--dump-dom", size])
        .arg(format!("--user-data-dir={}", dir.path().join("profile").display()))
        .arg(format!("file://{}", dir.path().join("out.html").display()))
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    (String::from_utf8(out.stdout).unwrap(), String::from_utf8_lossy(&out.stderr).into_owned())
}

/// The part of the document with this id.
fn section<'a>(dom: &'a str, id: &str) -> &'a str {
    let from = dom.find(&format!("<section id=\"{id}\">")).unwrap_or_else(|| panic!("no section {id}"));
    let rest = &dom[from..];
    &rest[..rest.find("</section>").unwrap()]
}

#[test]
fn the_page_opens_in_a_browser() {
    let Some(chromium) = browser() else {
        eprintln!("skipped: no chromium");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let out = report(dir.path(), &document(true));
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let (dom, said) = opened(&chromium, &dir, "--window-size=1400,4000");
    // Errors of scripts, and what the content policy stopped, are said on the console.
    let console: Vec<&str> = said.lines().filter(|l| l.contains("CONSOLE")).collect();
    assert!(console.is_empty(), "{console:#?}");
    for id in ["activity", "gantt", "spread", "energy"] {
        assert!(section(&dom, id).contains("<svg class=\"plot\""), "{id} has no drawing");
    }
    for id in ["figures", "ooms"] {
        assert!(section(&dom, id).contains("<table>"), "{id} has no table");
    }
    assert_eq!(section(&dom, "activity").matches("<svg class=\"plot\"").count(), 4, "one for each GPU");
    assert_eq!(section(&dom, "gantt").matches("<svg class=\"plot\"").count(), 3, "one for each policy");
    // The script ran: without it the choice is hidden.
    assert!(section(&dom, "activity").contains("<p class=\"choice\"><label>"), "the script did not run");
    assert_eq!(dom.matches("<script").count(), 1, "a name became a script");
    assert!(!dom.contains("<img"), "a name became an element");
    assert!(!dom.contains("<title>owned"));
}

#[test]
fn without_detail_the_page_says_what_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let out = report(dir.path(), &document(false));
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let page = fs::read_to_string(dir.path().join("out.html")).unwrap();
    for id in ["activity", "gantt", "spread"] {
        assert!(section(&page, id).contains("class=\"absent\""), "{id}");
        assert!(section(&page, id).contains("--detail"), "{id}");
    }
    assert!(section(&page, "energy").contains("<svg"));
}

#[test]
fn a_broken_document_is_refused_and_writes_nothing() {
    for (document, word) in [
        ("", "EOF"),
        ("{\"version\": 1,", "line 1"),
        ("[]", "carma simulate --json"),
        ("{\"version\": 9, \"simulated\": true}", "version"),
        ("{\"version\": 1, \"jobs\": []}", "carma simulate --json"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let out = report(dir.path(), document);
        let said = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(2), "{document}: {said}");
        assert!(said.contains("in.json") && said.contains(word), "{document}: {said}");
        assert!(!dir.path().join("out.html").exists());
    }
    let dir = tempfile::tempdir().unwrap();
    let out = Command::new(env!("CARGO_BIN_EXE_carma"))
        .args(["report", "no-such-file.json", "-o"])
        .arg(dir.path().join("out.html"))
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(2));
    assert!(String::from_utf8(out.stderr).unwrap().contains("no-such-file.json"));
}

#[test]
fn a_page_goes_where_is_said_else_to_a_file_of_the_usual_name() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("in.json"), document(false)).unwrap();
    for (options, file) in [
        (&[][..], "carma-report.html"),
        (&["--html"], "carma-report.html"),
        (&["--html", "a.html"], "a.html"),
        (&["--html", "-o", "b.html"], "b.html"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_carma"));
        let out = command.args(["report", "in.json"]).args(options).current_dir(dir.path()).output().unwrap();
        assert_eq!(String::from_utf8(out.stdout).unwrap(), format!("{file}\n"), "{options:?}");
        assert!(fs::read_to_string(dir.path().join(file)).unwrap().starts_with("<!doctype html>"));
        fs::remove_file(dir.path().join(file)).unwrap();
    }
    for options in [["--html", "-"], ["-o", "-"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_carma"));
        let out = command.args(["report", "in.json"]).args(options).current_dir(dir.path()).output().unwrap();
        assert_eq!(out.status.code(), Some(2));
        assert!(String::from_utf8(out.stderr).unwrap().contains("`-` is no name of a file"));
        assert!(!dir.path().join("-").exists());
    }
}
