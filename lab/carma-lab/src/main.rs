//! carma-lab, the binary: data sets, training, benches and fits. `carma lab` runs it.

mod cli;
mod commands;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    match commands::dispatch(cli::Cli::parse()) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => failure.report(),
    }
}
