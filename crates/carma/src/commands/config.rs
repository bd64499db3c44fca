//! `carma config`: what the daemon's configuration says.

use crate::cli::ConfigCheckArgs;
use crate::places::default_config;
use carma_cli::failure::{Failure, Outcome};
use carma_cli::{clean, print};
use carma_daemon::config;
use carma_daemon::people::People;
use std::fmt::Write as _;

/// Reads the file, and those that it names, as the daemon would.
pub(crate) fn check(args: &ConfigCheckArgs) -> Outcome {
    let file = args.file.clone().unwrap_or_else(default_config);
    if args.file.is_none() && !file.exists() {
        print(&format!("{} does not exist, so everything is at its default\n", file.display()))?;
        return Ok(0);
    }
    let config = config::check(&file).map_err(|mistake| Failure::usage(mistake.to_string()))?;
    let uid = rustix::process::geteuid().as_raw();
    let mut remarks = config.remarks();
    let unknown = People::new(config.operators.as_deref(), config.limits, uid).unknown();
    remarks.extend(unknown);
    let shown = file.display().to_string();
    let mut text: String =
        remarks.iter().map(|line| format!("{}: {}\n", clean(&shown), clean(line))).collect();
    // Those may come: they keep no daemon from its start.
    let none = if remarks.is_empty() { "no mistakes" } else { "no other mistakes" };
    let _ = writeln!(text, "{}: {none}", clean(&shown));
    print(&text)?;
    Ok(0)
}
