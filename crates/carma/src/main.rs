//! carma, the binary: the command line over the daemon, the simulator and the GPUs.

mod cli;
mod commands;
mod lab;
mod places;

use clap::FromArgMatches;
use std::process::ExitCode;

fn main() -> ExitCode {
    // Supervisors of jobs are this binary, re-executed. They come before everything else: they must
    // not depend on the command line's parser, and there may be hundreds of them.
    if std::env::args_os().nth(1).is_some_and(|word| word == carma_daemon::supervise::ARGUMENT) {
        return carma_daemon::supervise::main();
    }
    // So are the processes that call the driver to suspend jobs.
    if std::env::args_os().nth(1).is_some_and(|word| word == carma_daemon::suspend::ARGUMENT) {
        return carma_daemon::suspend::main();
    }
    let cli = match cli::matches().and_then(|matches| cli::Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    match commands::dispatch(cli) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => failure.report(),
    }
}
