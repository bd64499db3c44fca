//! `carma config`: what the daemon's configuration says.

use crate::cli::ConfigCheckArgs;
use crate::places::default_config;
use carma_cli::failure::{Failure, Outcome};
use carma_cli::{clean, print};

/// Reads the file, and those that it names, as the daemon would.
pub(crate) fn check(args: &ConfigCheckArgs) -> Outcome {
    let file = args.file.clone().unwrap_or_else(default_config);
    if args.file.is_none() && !file.exists() {
        print(&format!("{} does not exist, so everything is at its default\n", file.display()))?;
        return Ok(0);
    }
    match carma_daemon::config::check(&file) {
        Ok(()) => {
            print(&format!("{}: no mistakes\n", clean(&file.display().to_string())))?;
            Ok(0)
        }
        Err(mistake) => Err(Failure::usage(mistake.to_string())),
    }
}
