//! `carma lab`: hands over to the second binary.

use crate::cli::LabArgs;
use crate::lab;
use carma_cli::failure::{Failure, Outcome};
use std::os::unix::process::CommandExt as _;

/// Runs the verb; it does not come back unless that fails.
pub(crate) fn run(args: &LabArgs) -> Outcome {
    let mut command = lab::command()?;
    let why = command.args(&args.words).exec();
    Err(Failure::new(format!("cannot start {}: {why}", command.get_program().display())))
}
