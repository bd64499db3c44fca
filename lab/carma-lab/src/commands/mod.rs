//! One file for each verb.

mod bound;
mod dataset;
mod estimate_bench;
mod fit;
mod gpumemnet;
mod interference_bench;
mod kace;
mod machine;
mod policies;
mod reproduce;
mod runtime_bench;

use crate::cli::{Cli, Verb};
use carma_cli::failure::Outcome;

/// Runs the verb and returns its exit code.
///
/// # Errors
/// What the verb fails of. A standard output that its reader closed counts as success.
pub(crate) fn dispatch(cli: Cli) -> Outcome {
    let outcome = match cli.verb {
        Verb::EstimateBench(args) => estimate_bench::run(&args),
        Verb::Gpumemnet(verb) => gpumemnet::run(&verb),
        Verb::Dataset(verb) => dataset::run(&verb),
        Verb::InterferenceBench(args) => interference_bench::run(&args),
        Verb::Kace(verb) => kace::run(&verb),
        Verb::RuntimeBench(args) => runtime_bench::run(&args),
        Verb::Fit(args) => fit::run(&args),
        Verb::Reproduce(args) => reproduce::run(&args),
        Verb::Bound(args) => bound::run(&args),
        Verb::Policies(args) => policies::run(&args),
    };
    match outcome {
        Err(failure) if failure.is_closed_pipe() => Ok(failure.code),
        outcome => outcome,
    }
}
