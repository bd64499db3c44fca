//! `carma trace synthesize`: a trace from an arrival process and a mix of tasks.

use super::{bad, keep_apart, report, save_drawn_from, save_trace};
use crate::cli::TraceSynthesizeArgs;
use carma_cli::failure::{Failure, Outcome};
use carma_cli::print;
use carma_sim::trace::Catalogue;
use carma_sim::trace::draw::Mix;
use carma_sim::trace::synthesize::{Arrivals, Synthesis, synthesize};

/// Makes it.
pub(crate) fn run(args: &TraceSynthesizeArgs) -> Outcome {
    let what = Synthesis {
        jobs: args.jobs,
        mix: Mix::parse(&args.mix).map_err(|why| Failure::usage(format!("--mix: {why}")))?,
        arrivals: Arrivals::parse(&args.arrivals)
            .ok_or_else(|| Failure::usage(format!("--arrivals: no process is called {}", args.arrivals)))?,
        mean_gap: args.mean_gap,
        users: args.users,
        seed: args.seed,
    };
    keep_apart("--output", &args.output, [args.catalogue.as_path()])?;
    let catalogue = Catalogue::read_file(&args.catalogue).map_err(bad)?;
    let trace = synthesize(&catalogue, &what).map_err(bad)?;
    save_trace(&trace, &args.output)?;
    let tasks = save_drawn_from(&catalogue, &args.catalogue, &args.output)?;
    print(&report(&trace, &args.output, Some(&tasks), &[]))?;
    Ok(0)
}
