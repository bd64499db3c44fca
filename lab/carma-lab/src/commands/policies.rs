//! `carma lab policies`: where policies stand, as in docs/research/policies.md.

use super::machine;
use crate::cli::policies::PoliciesArgs;
use carma_cli::failure::{Failure, Outcome};
use carma_cli::{print, print_json};
use carma_lab_policies::compare::{self, Load, Philly, Row, Size, TABLES, Traces};
use carma_lab_policies::figures::NAMES;
use carma_lab_policies::gaps::{self, Gaps};
use carma_lab_policies::limits::{Report, SHARING, case};
use carma_lab_policies::objectives::{Case, objectives};
use carma_lab_policies::search::{Budget, Objective};
use carma_lab_policies::traces::{self, MACHINE, Named};
use serde::Deserialize;
use std::fmt::Write as _;
use std::path::Path;

/// Runs of the simulator for each objective of a search, unless said.
const EVALUATIONS: u64 = 20_000;
const QUICK: u64 = 100;

/// Runs the verb.
pub(crate) fn run(args: &PoliciesArgs) -> Outcome {
    let threads = args.threads.unwrap_or_else(machine::threads);
    let size = if args.quick { Size::quick(threads, args.seed) } else { Size::whole(threads, args.seed) };
    let read = args.bound.as_deref().map(read).transpose()?;
    let data = args.data.as_deref().unwrap_or(Path::new("../shared/data"));
    let catalogue = traces::catalogue(Some(data)).map_err(|e| {
        Failure::new(e.to_string())
            .hint("--data names a folder with the data of others; CARMA's traces are in `carma/` there")
    })?;
    let failed = |e: carma_lab_policies::Error| Failure::new(e.to_string());
    if !args.json {
        print(&head(size, args.quick))?;
    }
    let mut reply = serde_json::Map::new();
    for name in TABLES.into_iter().filter(|name| args.only.as_deref().is_none_or(|only| only == *name)) {
        let (text, value) = match name {
            "traces" => {
                let named = traces::published(Some(data)).map_err(failed)?;
                let limits = read.clone().map_or_else(|| limits(args, &named, threads), Ok)?;
                let tables = compare::carma(&named, size).map_err(failed)?;
                (published(&tables, &limits), serde_json::json!({"policies": tables, "bound": limits}))
            }
            "synthetic" => {
                let tables = compare::synthetic(&catalogue, size).map_err(failed)?;
                (synthetic(&tables, size), serde_json::json!(tables))
            }
            "gaps" => {
                let tables = gaps::gaps(&catalogue, size).map_err(failed)?;
                (of_gaps(&tables), serde_json::json!(tables))
            }
            "objectives" => {
                let named = traces::published(Some(data)).map_err(failed)?;
                let cases = objectives(&named, &catalogue, size).map_err(failed)?;
                (of_objectives(&cases, size), serde_json::json!(cases))
            }
            _ => {
                let tables = compare::philly(data, &catalogue, size).map_err(failed)?;
                (philly(&tables, size), serde_json::json!(tables))
            }
        };
        if args.json {
            reply.insert(name.to_owned(), value);
        } else {
            // Each is printed when it is there.
            print(&text)?;
        }
    }
    if args.json {
        print_json(&serde_json::json!({"version": carma_api::VERSION, "tables": reply}))?;
    }
    Ok(0)
}

/// Reads what `carma lab bound --json` printed.
fn read(file: &Path) -> Result<Report, Failure> {
    #[derive(Deserialize)]
    struct Reply {
        report: Report,
    }
    const LARGEST: u64 = 16 << 20;
    let wrong = |why: String| Failure::new(format!("{}: {why}", file.display()));
    let text = carma_files::read_text(file, LARGEST).map_err(|e| wrong(e.why.to_string()))?;
    let reply: Reply = serde_json::from_str(&text)
        .map_err(|e| wrong(format!("not what `carma lab bound --json` prints: {e}")))?;
    Ok(reply.report)
}

/// Bounds and searches on CARMA's traces.
fn limits(args: &PoliciesArgs, named: &[Named], threads: usize) -> Result<Report, Failure> {
    let evaluations = args.evaluations.unwrap_or(if args.quick { QUICK } else { EVALUATIONS });
    let budget = Budget { evaluations, seed: args.seed, threads };
    let cluster = traces::cluster(MACHINE).map_err(|e| Failure::new(e.to_string()))?;
    let mut report = Report { cluster: MACHINE.to_owned(), evaluations, seed: args.seed, cases: Vec::new() };
    for mode in SHARING {
        for it in named {
            let case = case(it, &cluster, mode, &budget).map_err(|e| Failure::new(e.to_string()))?;
            report.cases.push(case);
        }
    }
    Ok(report)
}

fn head(size: Size, quick: bool) -> String {
    format!(
        "# Policies\n\n\
         Written by `carma lab policies`, carma {}, {}, {} threads of {}. Seed {}.{}\n\
         Everything is simulated (docs/simulation.md), over exclusive GPUs, first in, first out, = 1, and geometric means where\n\
         there are several traces; p95 slowdown over the time alone. OOM: mean number of attempts out of memory. Later: the most by\n\
         which a job first started later than on exclusive GPUs, over exclusive's makespan, the worst of all traces. Worst JCT: the highest mean JCT of a trace over exclusive's.\n\n",
        env!("CARGO_PKG_VERSION"),
        machine::today(),
        size.threads,
        machine::processor(),
        size.seed,
        if quick { " **A quick try, no result.**" } else { "" },
    )
}

fn titles() -> String {
    format!("policy | {} | OOM | later | worst JCT", NAMES.join(" | "))
}

fn rule(columns: usize) -> String {
    format!("|{}\n", "---|".repeat(columns))
}

/// The cells of a row: name, figures, out-of-memory, the latest start.
fn cells(row: &Row) -> String {
    let figures = row.figures.values().map(|value| format!("{value:.3}")).join(" | ");
    let lost = if row.lost > 0 { format!(" ({} jobs lost)", row.lost) } else { String::new() };
    format!(
        "{}{lost} | {figures} | {:.1} | {:.1} % | {:.3}",
        row.policy,
        row.oom,
        100.0 * row.later,
        row.worst_jct
    )
}

fn published(tables: &[Traces], limits: &Report) -> String {
    let mut text = format!(
        "## 1. CARMA's traces\n\n\
         T1, T2, H60 and M90 on {MACHINE}. The last columns: makespan and mean JCT over what the clairvoyant searches for each reached\n\
         (docs/research/bounds.md; {} runs of the simulator, seed {}), and mean JCT over the best of those that keep starts within 10 % of\n\
         exclusive's makespan. AntMan, TGS and MISO weigh jobs, hold kernels back or cut GPUs, which\n\
         neither the bound nor the search knows. Policies that go by run times learn them from the jobs of a trace that are over;\n\
         the last rows are `adaptive` told each job's own, told wrong (progress by 30 %, run times by a factor of 2, memory by a quarter, up\n\
         or down by the toss of a coin for each task), told what running jobs count of their steps, as in life, and told nothing of memory and\n\
         activity before a job of the task has run.\n",
        limits.evaluations, limits.seed
    );
    for table in tables {
        let _ = write!(
            text,
            "\n### {}\n\n| {} | makespan / search | JCT / search | JCT / on time |\n",
            table.sharing,
            titles()
        );
        text += &rule(14);
        let searched = |objective: Objective| limits.searched(&table.sharing, objective.name());
        let [makespan, jct, on_time] =
            [Objective::Makespan, Objective::Jct, Objective::JctOnTime].map(searched);
        for row in &table.rows {
            let over = |of: f64, best: Option<f64>| {
                best.map_or_else(|| "-".to_owned(), |best| format!("{:.2}", of / best))
            };
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} |",
                cells(row),
                over(row.figures.makespan, makespan.map(|it| it.makespan)),
                over(row.figures.jct, jct.map(|it| it.jct)),
                over(row.figures.jct, on_time.map(|it| it.jct)),
            );
        }
        for objective in Objective::ALL {
            if let Some(it) = searched(objective) {
                let figures = it.values().map(|value| format!("{value:.3}")).join(" | ");
                let name = objective.name();
                let later = 100.0 * limits.later(&table.sharing, name);
                let _ = writeln!(text, "| *search: {name}* | {figures} | 0.0 | {later:.1} % | | | | |");
            }
        }
        if let Some(bound) = limits.bound(&table.sharing) {
            let _ = writeln!(
                text,
                "| *LB* | {:.3} | {:.3} | | | | {:.3} | | | | | | | |",
                bound.makespan, bound.jct, bound.energy
            );
        }
    }
    text.push('\n');
    text
}

fn synthetic(tables: &[Load], size: Size) -> String {
    let traces: usize = tables
        .iter()
        .filter(|it| tables.first().is_some_and(|first| it.cluster == first.cluster))
        .map(|it| it.traces)
        .sum();
    let mut text = format!(
        "## 2. Made-up traces, by load\n\n\
         {traces} traces of {} jobs for each cluster (`carma trace synthesize`: Poisson arrivals, mixes 65/27/8 and 83/17 in equal numbers), MPS.\n\
         Load: GPU time that the jobs take alone over the GPUs' time from the first arrival to the last.\n",
        size.jobs
    );
    let mut cluster = "";
    for table in tables {
        if table.cluster != cluster {
            cluster = &table.cluster;
            let _ = write!(text, "\n### {cluster}\n\n| load | {} |\n", titles());
            text += &rule(12);
        }
        for row in &table.rows {
            let _ = writeln!(text, "| {:.1} | {} |", table.load, cells(row));
        }
    }
    text.push('\n');
    text
}

fn philly(tables: &[Philly], size: Size) -> String {
    let (jobs, recorded) = tables.first().map_or((0, true), |it| (it.jobs, it.recorded));
    let whose = if recorded {
        "Philly's arrivals of the days from day 30 of the trace on (`petuum__adaptdl/philly.csv.gz`)"
    } else {
        "Poisson arrivals, as Philly's are not there, as many in as long"
    };
    let mut text = format!(
        "## 3. Days of Philly\n\n\
         {jobs} jobs in {} days: {whose},\n\
         each job a task of CARMA's catalogue drawn at 65/27/8. A100-40GB, MPS. Seconds: of the one run, on one of {} threads.\n",
        size.days, size.threads
    );
    for table in tables {
        let _ = write!(
            text,
            "\n### {}\n\nMean JCT on exclusive GPUs: {:.0} s.\n\n| {} | seconds |\n",
            table.cluster,
            table.exclusive_jct_s,
            titles()
        );
        text += &rule(12);
        for (row, seconds) in &table.rows {
            let _ = writeln!(text, "| {} | {seconds:.1} |", cells(row));
        }
    }
    text
}

fn of_objectives(cases: &[Case], size: Size) -> String {
    let traces = cases.last().map_or(0, |it| it.traces);
    let mut text = format!(
        "\n## 4. Objectives\n\n\
         `adaptive` after each objective (`adaptive` is `adaptive:jct`), on {MACHINE} under MPS, all traces played by four users, half of the jobs the first one's.\n\
         True run times, but where it says learned. Loads: {traces} traces each of {} jobs as in section 2. Bursts: as many, of which one user submits half at once, and\n\
         three others a quarter, a sixth and a twelfth 30, 90 and 120 minutes later. Energy: of all GPUs from the first arrival to the last end, idle ones with what\n\
         they draw idle. Energy busy: of GPUs while jobs are on them alone, which is what can be saved where idle ones are switched off or given to others. Evenness: Jain's index over\n\
         users of the work that each gets done in an hour in which own jobs and another user's wait; 1: all as much (means; -: no two waited). Spread: a user's mean JCT over run time alone, largest over smallest.\n\n\
         | traces | objective | makespan | mean JCT | p95 slowdown | energy | energy busy | evenness | spread |\n",
        size.jobs
    );
    text += &rule(9);
    for case in cases {
        let learned = if case.true_run_times { "" } else { ", learned" };
        for row in &case.rows {
            let evenness = row.evenness.map_or_else(|| "-".to_owned(), |it| format!("{it:.3}"));
            let _ = writeln!(
                text,
                "| {}{learned} | {} | {:.3} | {:.3} | {:.3} | {:.3} | {:.3} | {evenness} | {:.2} |",
                case.what,
                row.objective,
                row.makespan,
                row.jct,
                row.slowdown_p95,
                row.energy,
                row.energy_busy,
                row.spread
            );
        }
    }
    text
}

fn of_gaps(tables: &[Gaps]) -> String {
    let (traces, shapes) = tables.first().map_or((0, &[][..]), |it| (it.traces, &*it.shapes));
    let shapes: Vec<String> =
        shapes.iter().map(|it| format!("{} jobs {} s apart", it.jobs, it.gap_s)).collect();
    let shapes = shapes.join(", ");
    let mut text = format!(
        "\n## 5. Made-up traces, by gap\n\n\
         {traces} traces, as many of each: {shapes} in the mean (`carma trace synthesize --seed`, from 9101 on for each). Run times are learned where nothing else is\n\
         said. Nothing was chosen on these. Most OOM: attempts out of memory in the worst trace. The second table: the makespan of `adaptive` over that of `gandiva` or `or-magm`,\n\
         whichever is better, by trace.\n"
    );
    for table in tables {
        let _ = write!(text, "\n### {}, {}\n\n| {} | most OOM |\n", table.cluster, table.sharing, titles());
        text += &rule(12);
        for row in &table.rows {
            let _ = writeln!(text, "| {} | {} |", cells(row), row.most_oom);
        }
        text += "\n| jobs | gap | over the better: mean | worst |\n";
        text += &rule(4);
        for it in &table.shapes {
            let _ = writeln!(text, "| {} | {} s | {:.3} | {:.3} |", it.jobs, it.gap_s, it.mean, it.worst);
        }
    }
    text
}
