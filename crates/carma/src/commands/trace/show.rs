//! `carma trace show`: a trace in numbers.

use super::{bad, catalogue_of};
use crate::cli::TraceShowArgs;
use carma_cli::failure::Outcome;
use carma_cli::{Block, Column, Screen, Table, print, print_json, wrap};
use carma_sim::trace::summary::{Group, Summary};
use carma_sim::trace::{Workload, read};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Describes it.
pub(crate) fn run(args: &TraceShowArgs) -> Outcome {
    let trace = read::trace_file(&args.file, args.trace_name.as_deref()).map_err(bad)?;
    let catalogue = catalogue_of(&args.file, args.catalogue.as_deref())?;
    let summary = Summary::of(&trace, catalogue.as_ref());
    // What a simulation would assume. Without a catalogue a trace may well be incomplete, and can still
    // be described.
    let notes = match (Workload::resolve(&trace, catalogue.as_ref()), &catalogue) {
        (Ok(work), _) => work.notes,
        (Err(error), Some(_)) => return Err(bad(error)),
        (Err(error), None) => {
            let mut notes = trace.notes;
            notes.push(format!("cannot be simulated without a catalogue: {error}"));
            notes
        }
    };
    if args.json {
        print_json(&machine(&summary, &notes))?;
    } else {
        print(&render(&summary, &notes, &Screen::stdout()))?;
    }
    Ok(0)
}

fn machine(summary: &Summary, notes: &[String]) -> Value {
    let group = |key: &str, name: Value, group: &Group| json!({ key: name, "jobs": group.jobs, "gpu_hours": group.gpu_hours });
    json!({
        "version": 1,
        "name": summary.name,
        "jobs": summary.all.jobs,
        "jobs_without_duration": summary.without_duration,
        "tasks": summary.tasks,
        "users": summary.users,
        "span_s": summary.span.as_secs_f64(),
        "gap_mean_s": summary.gap_mean_s,
        "gap_median_s": summary.gap_median_s,
        "gap_p95_s": summary.gap_p95_s,
        "gpu_hours": summary.all.gpu_hours,
        "by_class": summary.by_class.iter().map(|(name, g)| group("class", json!(name), g)).collect::<Vec<_>>(),
        "by_gpus": summary.by_gpus.iter().map(|(gpus, g)| group("gpus", json!(gpus), g)).collect::<Vec<_>>(),
        "notes": notes,
    })
}

fn render(summary: &Summary, notes: &[String], screen: &Screen) -> String {
    let mut block = Block::default();
    block.line("trace", &summary.name);
    block.line("jobs", summary.all.jobs.to_string());
    block.line("tasks", summary.tasks.to_string()).line("users", summary.users.to_string());
    block.line("span", summary.span.to_string());
    if let (Some(mean), Some(median), Some(p95)) =
        (summary.gap_mean_s, summary.gap_median_s, summary.gap_p95_s)
    {
        block.line("gaps", format!("mean {mean:.1} s, median {median:.1} s, 95 % up to {p95:.1} s"));
    }
    let known = summary.all.jobs - summary.without_duration;
    // Of minutes a tenth of an hour says nothing, in whichever row they stand.
    let groups =
        summary.by_class.iter().map(|(_, group)| group).chain(summary.by_gpus.iter().map(|(_, group)| group));
    let least =
        groups.map(|group| group.gpu_hours).filter(|hours| *hours > 0.0).fold(f64::INFINITY, f64::min);
    let decimals = if least < 0.1 { 3 } else { 1 };
    let hours = |group: &Group| format!("{:.decimals$}", group.gpu_hours);
    block.line(
        "load",
        match summary.without_duration {
            0 => format!("{} GPU-hours", hours(&summary.all)),
            _ if known == 0 => "unknown: no job has a run time".to_owned(),
            _ => format!("{} GPU-hours of the {known} jobs with a run time", hours(&summary.all)),
        },
    );
    let mut text = block.render(screen);
    let mut table = |title: &'static str, rows: Vec<(String, &Group)>| {
        let columns = vec![
            Column::Left(title),
            Column::Right("JOBS"),
            Column::Right("SHARE"),
            Column::Right("GPU-HOURS"),
        ];
        let mut table = Table::new(columns, screen);
        for (name, group) in rows {
            let share = 100.0 * group.jobs as f64 / summary.all.jobs.max(1) as f64;
            let hours = if known == 0 { "-".to_owned() } else { hours(group) };
            table.row([name, group.jobs.to_string(), format!("{share:.1} %"), hours]);
        }
        let _ = write!(text, "\n{}", table.render());
    };
    table("CLASS", summary.by_class.iter().map(|(class, group)| ((*class).to_owned(), group)).collect());
    table(
        "GPUS",
        summary
            .by_gpus
            .iter()
            .map(|(gpus, group)| (gpus.map_or("unknown".to_owned(), |n| n.to_string()), group))
            .collect(),
    );
    if !notes.is_empty() {
        text.push('\n');
    }
    for note in notes {
        let note = carma_cli::clean(note);
        for (i, line) in wrap(&note, screen, 6).iter().enumerate() {
            let _ = writeln!(text, "{}{line}", if i == 0 { "note: " } else { "      " });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn described(catalogue: Option<&str>) -> (Summary, Vec<String>) {
        let csv = "job,arrival_s,task,gpus,user\n1,0,light1,,ann\n2,181,heavy1,,ben\n3,214,heavy1,4,ann\n";
        let trace = read::trace(csv.as_bytes(), Path::new("t.csv"), None).unwrap();
        let catalogue = catalogue
            .map(|csv| carma_sim::trace::Catalogue::read(csv.as_bytes(), Path::new("c.csv")).unwrap());
        let notes =
            Workload::resolve(&trace, catalogue.as_ref()).map_or_else(|e| vec![e.to_string()], |w| w.notes);
        (Summary::of(&trace, catalogue.as_ref()), notes)
    }

    const TASKS: &str = "task,class,gpus,duration_s,memory_mib,smact,smocc,drama\n\
        light1,light,1,600,900,0.2,0.1,0.1\nheavy1,heavy,2,7200,20000,0.9,,0.2\n";

    #[test]
    fn with_its_catalogue() {
        let (summary, notes) = described(Some(TASKS));
        insta::assert_snapshot!(render(&summary, &notes, &Screen::of_width(Some(80))), @r"
        trace: t
        jobs:  3
        tasks: 2
        users: 2
        span:  3 min 34 s
        gaps:  mean 107.0 s, median 107.0 s, 95 % up to 181.0 s
        load:  12.2 GPU-hours

        CLASS  JOBS   SHARE  GPU-HOURS
        light     1  33.3 %        0.2
        heavy     2  66.7 %       12.0

        GPUS  JOBS   SHARE  GPU-HOURS
        1        1  33.3 %        0.2
        2        1  33.3 %        4.0
        4        1  33.3 %        8.0

        note: no forecast of GPU memory is given; policies are told what the jobs take,
              as if earlier runs had been measured (3 jobs, 2 tasks: heavy1, light1)
        note: smocc is not known; assumed 0.10, the mean of the catalogue's 1 task (2
              jobs, 1 task: heavy1)
        ");
        let json = machine(&summary, &notes);
        assert_eq!(
            (&json["version"], &json["span_s"], &json["users"]),
            (&json!(1), &json!(214.0), &json!(2))
        );
        assert_eq!(json["by_class"][1], json!({ "class": "heavy", "jobs": 2, "gpu_hours": 12.0 }));
        assert_eq!(json["by_gpus"][2], json!({ "gpus": 4, "jobs": 1, "gpu_hours": 8.0 }));
    }

    #[test]
    fn a_class_of_minutes_beside_one_of_hours() {
        let minutes = TASKS.replace("light,1,600", "light,1,60");
        let (summary, notes) = described(Some(&minutes));
        let text = render(&summary, &notes, &Screen::of_width(None));
        assert!(text.contains("     0.017\n") && text.contains("    12.000\n"), "{text}");
    }

    #[test]
    fn without_run_times() {
        let (summary, notes) = described(None);
        insta::assert_snapshot!(render(&summary, &notes, &Screen::of_width(None)), @r"
        trace: t
        jobs:  3
        tasks: 2
        users: 2
        span:  3 min 34 s
        gaps:  mean 107.0 s, median 107.0 s, 95 % up to 181.0 s
        load:  unknown: no job has a run time

        CLASS    JOBS    SHARE  GPU-HOURS
        unknown     3  100.0 %          -

        GPUS     JOBS   SHARE  GPU-HOURS
        4           1  33.3 %          -
        unknown     2  66.7 %          -

        note: t.csv:2: job `1` has no run time: give it a duration_s, or name a catalogue with the task `light1` (--catalogue, or as NAME.tasks.csv beside the trace NAME.csv)
        ");
    }
}
