//! `carma serve`: the daemon.

use super::stream::say;
use crate::cli::{LogFormat, ServeArgs};
use crate::places::{asked_before, default_config, own_socket, own_state};
use carma_cli::failure::{Failure, Outcome};
use carma_daemon::config::{self, Config};
use carma_daemon::{ServeError, ServeOptions};
use carma_measure::service::end_with_owner;
use std::io::IsTerminal;
use std::path::PathBuf;
use tracing_subscriber::EnvFilter;

/// Runs the daemon until it is told to stop. `socket`: as given on the command line or in the
/// environment. Flags win over the configuration file.
pub(crate) fn run(socket: Option<PathBuf>, args: &ServeArgs) -> Outcome {
    let filter = EnvFilter::try_from_env("CARMA_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // A line that the log does not take is lost: a disk that is full, a reader that is gone. To say so would fail, too, with a panic.
    let log = log.log_internal_errors(false);
    // Not into a file or the system's journal.
    let log = log.with_ansi(std::io::stderr().is_terminal());
    match args.log_format {
        LogFormat::Text => log.with_target(false).init(),
        LogFormat::Json => log.json().init(),
    }
    let file = args.config.clone().or_else(|| Some(default_config()).filter(|file| file.exists()));
    let mut config = match file {
        Some(file) => config::load(&file).map_err(|e| Failure::usage(e.to_string()))?,
        None => Config::default(),
    };
    config.policy = args.policy.clone().or(config.policy);
    config.sharing = args.sharing.or(config.sharing);
    config.options(0).map_err(|mistake| Failure::usage(mistake.what))?;
    let options = ServeOptions {
        socket: socket.or_else(|| config.socket.clone()).unwrap_or_else(own_socket),
        state_dir: args.state.clone().or_else(|| config.state_dir.clone()).unwrap_or_else(own_state),
        gpus: args.gpus.clone().or_else(|| config.gpus.clone()).unwrap_or_else(|| "auto".into()),
        speed: args.speed.unwrap_or(1),
        config,
    };
    let system = asked_before(&options.socket).filter(|_| options.socket == own_socket());
    if let Some(system) = system {
        say(&format!(
            "clients ask the daemon at {} unless they are told otherwise: set CARMA_SOCKET={} for them",
            system.display(),
            options.socket.display()
        ));
    }
    if args.until_eof {
        end_with_owner(options.socket.clone())
            .map_err(|e| Failure::new(format!("cannot wait for the end of standard input: {e}")))?;
    }
    carma_daemon::serve(&options).map_err(|e| match e {
        ServeError::Config(what) => Failure::usage(what),
        e => Failure::new(e.to_string()),
    })?;
    Ok(0)
}
