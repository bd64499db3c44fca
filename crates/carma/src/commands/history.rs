//! `carma history`: jobs that are over, newest first.

use super::queue::gpu_list;
use super::usage::Unit;
use super::{Context, encoded, unwritten};
use crate::cli::{HistoryArgs, HistoryExportArgs, HistoryVerb};
use carma_api::wire::{JobView, JobsReply, LearnedRuns, MemoryReply};
use carma_cli::failure::{Failure, Outcome};
use carma_cli::{
    Column, Screen, clean, cut_to, print, print_json, short_stamp, span, spared_line, sparing, wrap,
};
use carma_core::units::{MiB, Millis};

/// Lists them.
pub(crate) fn run(context: &Context, args: &HistoryArgs) -> Outcome {
    if let Some(HistoryVerb::Export(args)) = &args.verb {
        return export(context, args);
    }
    let mut path = format!("/v1/history?limit={}", args.limit);
    if let Some(user) = &args.user {
        path += &format!("&user={}", encoded(user));
    }
    if !args.state.is_empty() {
        path += &format!("&state={}", args.state.join(","));
    }
    let all = args.user.is_none() && args.state.is_empty();
    context.listing(&path, args.json, |reply: &JobsReply, screen| {
        let screen = if args.wide { screen.clone().unlimited() } else { screen.clone() };
        if reply.jobs.is_empty() && !all {
            return unwritten(reply.unwritten.as_ref(), reply.now_ms, &screen) + "No such job is over yet.\n";
        }
        render(reply, args.limit, &screen)
    })
}

/// Prints what was learned of memory.
fn export(context: &Context, args: &HistoryExportArgs) -> Outcome {
    let mut client = context.client()?;
    if !args.csv {
        print_json(&client.get("/v1/memory")?)?;
        return Ok(0);
    }
    let reply: MemoryReply = client.get("/v1/memory")?;
    let csv = csv(&reply).map_err(|e| Failure::new(format!("the runs cannot be written as CSV: {e}")))?;
    print(&csv)?;
    Ok(0)
}

fn csv(reply: &MemoryReply) -> Result<String, Box<dyn std::error::Error>> {
    let mut out = csv::Writer::from_writer(Vec::new());
    for run in reply.runs.iter().cloned() {
        // Words of users' own: what they would do to a terminal is no part of the data.
        out.serialize(LearnedRuns {
            command: clean(&run.command).into_owned(),
            framework: clean(&run.framework).into_owned(),
            simulated_by: run.simulated_by.map(|by| clean(&by).into_owned()),
            ..run
        })?;
    }
    Ok(String::from_utf8(out.into_inner()?)?)
}

/// What a narrow screen may go without, the most needed first.
const SPARED: [&str; 10] = ["PEAK", "RUN", "EXIT", "GPU", "WAIT", "USER", "TRIES", "ENERGY", "HOST", "ALONE"];

/// Whether its energy is known of a part of its time only.
fn is_partly_metered(job: &JobView) -> bool {
    job.energy_j.is_some() && job.unmetered_gpu_s.is_some_and(|time| time > 0.0)
}

/// Columns of a name that a screen shows at most: a column of the table each gives way to longer ones.
const LONGEST_NAME: u16 = 32;

fn name(name: &str, screen: &Screen) -> String {
    if screen.width.is_none() { name.to_owned() } else { cut_to(name, LONGEST_NAME) }
}

/// An energy in the unit of its column; what is too little for that is not called nothing.
fn joules_in(unit: Unit, joules: f64) -> String {
    unit.less_than_least(joules).unwrap_or_else(|| unit.text(joules))
}

fn render(reply: &JobsReply, limit: u32, screen: &Screen) -> String {
    let standing = unwritten(reply.unwritten.as_ref(), reply.now_ms, screen);
    if reply.jobs.is_empty() {
        return standing + "No job is over yet. `carma queue` shows those that run or wait.\n";
    }
    use Column::{Left, Right, State};
    let mut columns = vec![
        Left("END"),
        Right("ID"),
        Left("NAME"),
        Left("USER"),
        State("STATE"),
        Right("EXIT"),
        Left("GPU"),
        Right("WAIT"),
        Right("RUN"),
        Right("PEAK"),
    ];
    // Where no cgroup tells, a column would say nothing.
    let hosts = reply.jobs.iter().any(|job| job.host_memory_peak_mib.is_some());
    if hosts {
        columns.push(Right("HOST"));
    }
    let energies = reply.jobs.iter().any(|job| job.energy_j.is_some());
    let alone = reply.jobs.iter().any(|job| job.energy_alone_j.is_some());
    if energies {
        columns.push(Right("ENERGY"));
    }
    if alone {
        columns.push(Right("ALONE"));
    }
    columns.extend([Right("TRIES"), Left("REASON")]);
    // One unit, so that rows compare.
    let joules = |job: &JobView| job.energy_j.into_iter().chain(job.energy_alone_j).fold(0.0, f64::max);
    let unit = Unit::of(reply.jobs.iter().map(joules).fold(0.0, f64::max));
    let dash = || "-".to_owned();
    let mut rows = Vec::new();
    for job in &reply.jobs {
        let between = |from: Option<u64>, to: Option<u64>| {
            from.zip(to).map_or_else(dash, |(from, to)| span(Millis(to).since(Millis(from))))
        };
        // A daemon that does not tell it tells at least when the last attempt began.
        let waited = job.waited_ms.map_or_else(
            || between(Some(job.submitted_ms), job.started_ms.or(job.ended_ms)),
            |waited| span(Millis(waited)),
        );
        // Such a daemon tells of the last attempt alone.
        let until = || job.ran_until().map(|end| end.saturating_sub(job.suspended_ms.unwrap_or(0)));
        let ran = job.ran_ms.filter(|ran| *ran > 0);
        let ran = ran.map_or_else(|| between(job.started_ms, until()), |ran| span(Millis(ran)));
        let mut row = vec![
            job.ended_ms.map_or_else(dash, |t| short_stamp(t, reply.now_ms, screen)),
            job.id.to_string(),
            name(&job.name, screen),
            job.user.clone(),
            job.state.clone(),
            job.exit_code.map_or_else(dash, |c| c.to_string()),
            gpu_list(&job.gpus),
            waited,
            ran,
            job.memory_peak_mib.map_or_else(dash, |m| MiB(m).to_string()),
        ];
        if hosts {
            row.push(job.host_memory_peak_mib.map_or_else(dash, |m| MiB(m).to_string()));
        }
        if energies {
            // It is not to look as if what was not metered had been saved.
            let least = if is_partly_metered(job) { "≥ " } else { "" };
            row.push(job.energy_j.map_or_else(dash, |joules| format!("{least}{}", joules_in(unit, joules))));
        }
        if alone {
            row.push(job.energy_alone_j.map_or_else(dash, |joules| joules_in(unit, joules)));
        }
        row.extend([
            job.attempts.to_string(),
            // It would say so again.
            if job.state == "COMPLETED" { String::new() } else { job.reason.text.clone() },
        ]);
        rows.push(row);
    }
    let (table, spared) = sparing(&columns, &rows, &SPARED, Some(2), screen);
    let mut text = standing + &table;
    for line in spared_line(&spared).iter().flat_map(|line| wrap(line, screen, 0)) {
        text.push_str(&format!("{line}\n"));
    }
    let mut notes = Vec::new();
    if alone && !spared.contains(&"ALONE") {
        notes.push("ALONE: energy that the same progress would have taken alone, as forecast.");
    }
    if reply.jobs.iter().any(is_partly_metered) && !spared.contains(&"ENERGY") {
        notes.push(
            "≥: of a part of its time no counter tells; ALONE is for all of it. carma show ID says how long that was.",
        );
    }
    for line in notes.iter().flat_map(|note| wrap(note, screen, 0)) {
        text.push_str(&format!("{line}\n"));
    }
    if u32::try_from(reply.jobs.len()).is_ok_and(|n| n == limit) {
        text.push_str(&format!("The latest {limit}; --limit N shows more.\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::queue::tests::job;
    use super::*;

    #[test]
    fn words_of_users_do_nothing_to_a_terminal() {
        let run = serde_json::json!({
            "uid": 1, "command": "t.py \u{1b}[2J", "batch_size": null, "gpu": "H200", "framework": "torch",
            "driver": "580", "runs": 1, "max_mib": 5, "min_mib": 5, "at_least_mib": null, "growing": false,
            "context_mib": 500, "simulated_by": null, "simulated_mib": null,
        });
        let reply = serde_json::json!({ "version": 1, "runs": [run], "ratios": [], "contexts": [] });
        let csv = csv(&serde_json::from_value(reply).unwrap()).unwrap();
        assert!(csv.contains("t.py \\u{1b}[2J,") && !csv.contains('\u{1b}'), "{csv}");
    }

    #[test]
    fn finished_jobs() {
        let mut done = job(7, "COMPLETED", "Completed", "completed");
        (done.exit_code, done.memory_peak_mib, done.attempts) = (Some(0), Some(9318), 2);
        (done.energy_j, done.energy_alone_j) = (Some(12_345.6), Some(15_000.0));
        let mut failed = job(
            6,
            "OUT_OF_MEMORY",
            "OutOfMemory",
            "out of GPU memory: culprit, it was alone on a GPU of 40.0 GiB and does not fit; no larger GPU",
        );
        (failed.exit_code, failed.attempts) = (Some(1), 4);
        (failed.ran_until_ms, failed.waited_ms, failed.ran_ms) =
            (Some(1_760_000_070_000), Some(90_000), Some(20_000));
        let mut cancelled = job(5, "CANCELLED", "Cancelled", "cancelled by alice");
        (cancelled.started_ms, cancelled.gpus) = (None, vec![]);
        let reply = JobsReply { version: 1, now_ms: 0, jobs: vec![done, failed, cancelled], unwritten: None };
        insta::assert_snapshot!(render(&reply, 3, &Screen::of_width(None)), @r"
        END                        ID  NAME    USER   STATE          EXIT  GPU   WAIT  RUN     PEAK   ENERGY    ALONE  TRIES  REASON
        2025-10-09T08:55:00+00:00   7  train7  alice  COMPLETED         0  0    1m00s  40s  9.1 GiB  12.3 kJ  15.0 kJ      2
        2025-10-09T08:55:00+00:00   6  train6  alice  OUT_OF_MEMORY     1  0    1m30s  20s        -        -        -      4  out of GPU memory: culprit, it was alone on a GPU of 40.0 GiB and does not fit; no larger GPU
        2025-10-09T08:55:00+00:00   5  train5  alice  CANCELLED         -  -    1m40s    -        -        -        -      0  cancelled by alice
        ALONE: energy that the same progress would have taken alone, as forecast.
        The latest 3; --limit N shows more.
        ");
        // On a screen what is most needed, in lines that fit.
        let narrow = render(&reply, 50, &Screen::of_width(Some(80)));
        assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
        assert!(narrow.contains("\n2025-10-09   7") && narrow.contains("REASON"), "{narrow}");
        assert!(narrow.contains("Not shown, as this screen is narrow: "), "{narrow}");
        // One long name takes no columns from all.
        let mut long = reply.clone();
        long.jobs[1].name = "x".repeat(200);
        assert!(render(&long, 50, &Screen::of_width(Some(150))).contains(&format!("{}…", "x".repeat(31))));
        assert!(render(&long, 50, &Screen::of_width(None)).contains(&"x".repeat(200)));
        let spared =
            |reply: &JobsReply| render(reply, 50, &Screen::of_width(Some(150))).contains("Not shown");
        assert!(!spared(&reply) && !spared(&long));
        // Of energies of all sizes the column has one unit.
        let mut sizes = reply.clone();
        (sizes.jobs[1].energy_j, sizes.jobs[2].energy_j) = (Some(7.2e6), Some(40.0));
        let told = render(&sizes, 50, &Screen::of_width(None));
        for energy in ["  0.003 kWh  0.004 kWh  ", "  2.000 kWh  ", "  < 0.001 kWh  "] {
            assert!(told.contains(energy), "{energy}: {told}");
        }
        // What no counter told of is no saving.
        let mut partly = reply.clone();
        partly.jobs[0].unmetered_gpu_s = Some(12.5);
        let told = render(&partly, 50, &Screen::of_width(None));
        assert!(
            told.contains("  ≥ 12.3 kJ  15.0 kJ  ") && told.contains("\n≥: of a part of its time"),
            "{told}"
        );
        assert!(!narrow.contains('≥'), "{narrow}");
        let empty = JobsReply { jobs: vec![], ..reply };
        assert!(render(&empty, 3, &Screen::of_width(None)).contains("carma queue"));
    }
}
