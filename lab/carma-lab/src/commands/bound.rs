//! `carma lab bound`: what no schedule can be better than, and what a clairvoyant search finds.

use super::machine;
use crate::cli::policies::BoundArgs;
use carma_cli::failure::{Failure, Outcome};
use carma_cli::{print, print_json};
use carma_core::model::SharingMode;
use carma_lab_policies::figures::NAMES;
use carma_lab_policies::limits::{Case, Limits, Report, SHARING, case};
use carma_lab_policies::search::{Budget, LATEST, Objective};
use carma_lab_policies::traces::{self, MACHINE, Named};
use std::fmt::Write as _;

/// Runs the verb.
pub(crate) fn run(args: &BoundArgs) -> Outcome {
    let workloads = workloads(args)?;
    let spec = args.cluster.as_deref().unwrap_or(MACHINE);
    let cluster = traces::cluster(spec).map_err(|e| Failure::usage(e.to_string()))?;
    let threads = args.threads.unwrap_or_else(machine::threads);
    let budget = Budget { evaluations: args.evaluations, seed: args.seed, threads };
    let modes: Vec<SharingMode> =
        SHARING.into_iter().filter(|mode| args.sharing.is_none_or(|only| only == *mode)).collect();
    if !args.json {
        print(&head(spec, &budget))?;
    }
    let mut report = Report {
        cluster: spec.to_owned(),
        evaluations: args.evaluations,
        seed: args.seed,
        cases: Vec::new(),
    };
    for mode in modes {
        for it in &workloads {
            let case = case(it, &cluster, mode, &budget).map_err(|e| Failure::new(e.to_string()))?;
            report.cases.push(case);
        }
        if !args.json {
            print(&table(&report, mode))?;
        }
    }
    if args.json {
        print_json(&serde_json::json!({"version": carma_api::VERSION, "report": report}))?;
    } else {
        print(&foot(&report))?;
    }
    Ok(0)
}

fn workloads(args: &BoundArgs) -> Result<Vec<Named>, Failure> {
    let failed = |e: carma_lab_policies::Error| Failure::new(e.to_string());
    if let Some(trace) = &args.trace {
        return Ok(vec![traces::own(trace, args.catalogue.as_deref()).map_err(failed)?]);
    }
    traces::published(args.data.as_deref()).map_err(|e| {
        failed(e).hint("--data names a folder with the data of others; CARMA's traces are in `carma/` there")
    })
}

fn head(spec: &str, budget: &Budget) -> String {
    format!(
        "# Bounds and clairvoyant searches\n\n\
         Written by `carma lab bound`, carma {}, {}, {} threads of {}. {spec}; seed {} of the start-up times and of the\n\
         search, {} runs of the simulator for each objective. Over exclusive GPUs, first in, first out, = 1; p95 slowdown\n\
         over the time alone. Models, not measurements (docs/simulation.md). LB: no schedule in which every job\n\
         completes at its first attempt is below it. Search: reached by a list scheduler that knows run times, memory and\n\
         rates and never takes a job off a GPU. Later: the most by which a job starts later than on exclusive GPUs, over exclusive's\n\
         makespan, the worst of all traces; on time: found among schedules in which that is {:.0} % at most.\n\
         docs/research/bounds.md says how all are made.\n\n",
        env!("CARGO_PKG_VERSION"),
        machine::today(),
        budget.threads,
        machine::processor(),
        budget.seed,
        budget.evaluations,
        100.0 * LATEST,
    )
}

fn table(report: &Report, mode: SharingMode) -> String {
    let sharing = mode.to_string();
    let cases: Vec<&Case> = report.of(&sharing).collect();
    let several = cases.len() > 1;
    let mut text = format!("## {sharing}\n\n| LB / search |");
    for case in &cases {
        let _ = write!(text, " {} |", case.trace);
    }
    if several {
        text.push_str(" geometric mean |");
    }
    let _ = writeln!(text, "\n|---|{}", "---|".repeat(cases.len() + usize::from(several)));
    // Which of the bound's, and which of the figures.
    type Kind = (Objective, fn(&Limits) -> f64, usize);
    let kinds: [Kind; 3] = [
        (Objective::Makespan, |l| l.makespan, 0),
        (Objective::Jct, |l| l.jct, 1),
        (Objective::Energy, |l| l.energy, 5),
    ];
    for (objective, of, figure) in kinds {
        let cell = |bound: Option<f64>, found: Option<f64>| {
            let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |v| format!("{v:.3}"));
            format!(" {} / {} |", number(bound), number(found))
        };
        let _ = write!(text, "| {} |", objective.name());
        for case in &cases {
            let found = case.searched.iter().find(|it| it.objective == objective.name());
            text.push_str(&cell(case.bound.as_ref().map(of), found.map(|it| it.figures.values()[figure])));
        }
        if several {
            let found = report.searched(&sharing, objective.name()).map(|it| it.values()[figure]);
            text.push_str(&cell(report.bound(&sharing).as_ref().map(of), found));
        }
        text.push('\n');
    }
    let which = if several { ", geometric means" } else { "" };
    let _ = writeln!(
        text,
        "\n| search for{which} | {} | later |\n|---|{}",
        NAMES.join(" | "),
        "---|".repeat(NAMES.len() + 1)
    );
    for objective in Objective::ALL {
        if let Some(figures) = report.searched(&sharing, objective.name()) {
            let cells = figures.values().map(|value| format!("{value:.3}")).join(" | ");
            let later = 100.0 * report.later(&sharing, objective.name());
            let _ = writeln!(text, "| {} | {cells} | {later:.1} % |", objective.name());
        }
    }
    text.push('\n');
    text
}

fn foot(report: &Report) -> String {
    let mut text = String::new();
    let runs: u64 = report.cases.iter().map(|case| case.evaluations).sum();
    let seconds: f64 = report.cases.iter().map(|case| case.search_s).sum();
    let bounds: f64 = report.cases.iter().map(|case| case.bound_s).sum();
    let _ = writeln!(
        text,
        "{runs} runs of the simulator in {seconds:.0} s, {:.0} a second; the bounds took {bounds:.0} s.",
        runs as f64 / seconds.max(1e-9)
    );
    let lower = report.cases.iter().filter_map(|case| Some((case.bound?.values(), case.bound_any?.values())));
    let lower =
        lower.flat_map(|(first, any)| first.into_iter().zip(any).map(|(first, any)| 1.0 - any / first));
    if let Some(most) = lower.reduce(f64::max) {
        let _ = writeln!(
            text,
            "Where jobs lose attempts (out of memory), the one that completes draws another start-up: bounds that hold whatever\n\
             is drawn are lower by {:.1} % at most.",
            100.0 * most
        );
    }
    for case in &report.cases {
        if let Some(why) = &case.no_bound {
            let _ = writeln!(text, "{}, {}: no bound, as {why}.", case.trace, case.sharing);
        }
    }
    text
}
