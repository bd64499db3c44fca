//! `carma report`: the page of a simulation, from what `carma simulate --json` printed, or of what the daemon recorded.

mod recorded;
mod run;
mod table;

use super::Context;
use super::queue::named_gpus;
use super::trace::keep_apart;
use super::usage::Unit;
use crate::cli::ReportArgs;
use carma_api::VERSION;
use carma_api::record::RecordReply;
use carma_cli::failure::{Failure, Outcome};
use carma_cli::{Column, Screen, blocks, clean, print, print_json, shell_line, span, stamp, wrap};
use carma_core::units::{MiB, Millis};
use carma_files::{Why, replace};
use carma_sim::event::outcome::RunResult;
use carma_sim::report::html::{Origin, PageInput, page};
use carma_sim::report::json::SimulateReply;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned, civil};
use recorded::{Recorded, Wanted};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

/// The largest document that is read, in bytes. Three policies with a hundred thousand jobs each come to
/// a fifth of it, detail and indentation included.
const LARGEST: u64 = 1 << 30;

/// A clock so far from that of this process is another one.
const OTHER_TIME_MS: u64 = 60_000;

/// The page where no name is given.
const PAGE: &str = "carma-report.html";
/// The same of rows as Parquet.
const ROWS: &str = "carma-report.parquet";

/// Runs the verb.
pub(crate) fn run(context: &Context, args: &ReportArgs) -> Outcome {
    let named = |option: &Option<Option<PathBuf>>| matches!(option, Some(Some(_)));
    if args.output.is_some() && (named(&args.html) || named(&args.parquet)) {
        return Err(Failure::usage("two files are named for what is written once: leave out --output"));
    }
    let given =
        [args.output.as_ref(), args.html.iter().flatten().next(), args.parquet.iter().flatten().next()];
    if given.into_iter().flatten().any(|file| file.as_os_str() == "-") {
        return Err(Failure::usage("`-` is no name of a file").hint(
            "text, --csv and --json go to the standard output without -o; pages and Parquet need a file",
        ));
    }
    match &args.file {
        Some(file) => of_simulation(file, args),
        None => of_daemon(context, args),
    }
}

/// A point in time as people write it: RFC 3339, or a date or a date and a time here. Unix milliseconds.
pub(crate) fn moment(text: &str) -> Result<u64, String> {
    let here = |time: civil::DateTime| time.to_zoned(TimeZone::system()).map(|zoned| zoned.timestamp());
    let at = text.parse::<Timestamp>().or_else(|_| text.parse::<civil::DateTime>().and_then(here)).map_err(
        |_| format!("'{text}' is no time; write 2026-03-01, '2026-03-01 14:30' or 2026-03-01T14:30:00+01:00"),
    )?;
    u64::try_from(at.as_millisecond()).map_err(|_| format!("'{text}' is before 1970"))
}

/// Of what the daemon recorded.
fn of_daemon(context: &Context, args: &ReportArgs) -> Outcome {
    let table = args.csv || args.json || args.parquet.is_some();
    let recorded = recorded::fetch(
        context,
        Wanted {
            last: args.last,
            since: args.since,
            until: args.until,
            step: args.step.or(table.then_some(Millis::secs(1))),
            jobs: !table,
        },
    )?;
    let screen = Screen::stdout();
    if recorded.rows.is_empty() && !args.json {
        return Err(Failure::new("nothing was recorded in that time").hint(
            "the daemon keeps as much as `size` of `[recorder]` says; `carma report --last 1d --json` says from when on",
        ));
    }
    if args.csv {
        let text = table::csv(&recorded, &screen)
            .map_err(|e| Failure::new(format!("the rows cannot be written as CSV: {e}")))?;
        return put(args.output.as_deref(), &text);
    }
    if let Some(name) = &args.parquet {
        let bytes = table::parquet(&recorded)
            .map_err(|e| Failure::new(format!("the rows cannot be written as Parquet: {e}")))?;
        let file = named(name.as_ref(), args, ROWS);
        let shown = clean(&file.display().to_string()).into_owned();
        replace(&file, &bytes).map_err(|e| Failure::new(format!("cannot write {shown}: {e}")))?;
        print(&format!("{shown}\n"))?;
        return Ok(0);
    }
    if args.json {
        let reply = document(recorded);
        let value = serde_json::to_value(&reply).map_err(|e| Failure::new(e.to_string()))?;
        return match &args.output {
            Some(_) => put(args.output.as_deref(), &value.to_string()),
            None => print_json(&value).map(|()| 0),
        };
    }
    let run = run::recorded(&recorded);
    let (exclusive, more) = run::exclusive(&recorded, &run);
    let unit = unit_of(&run, exclusive.as_ref());
    let said = predicted_of(&recorded, &run).filter(|_| args.html.is_some());
    let remarks = said.into_iter().chain(remarks_of(&recorded, &run, unit)).chain(more);
    let notes: Vec<String> = recorded.notes.iter().cloned().chain(remarks).collect();
    let Some(page) = &args.html else {
        let text = summary(&recorded, &run, exclusive.as_ref(), unit, &notes, &screen);
        return put(args.output.as_deref(), &text);
    };
    let text = page_of(&recorded, run, exclusive, &notes, &screen);
    put_page(&named(page.as_ref(), args, PAGE), &text)
}

/// Writes a page and says where it is.
fn put_page(file: &Path, text: &str) -> Outcome {
    write_page(file, text)?;
    print(&format!("{}\n", clean(&file.display().to_string())))?;
    Ok(0)
}

/// The file that is to be written: as the option says, else `-o`, else the usual one.
fn named(given: Option<&PathBuf>, args: &ReportArgs, usual: &str) -> PathBuf {
    given.or(args.output.as_ref()).cloned().unwrap_or_else(|| PathBuf::from(usual))
}

/// To a file, or to the standard output.
fn put(file: Option<&Path>, text: &str) -> Outcome {
    match file {
        Some(file) => write_page(file, text)?,
        None => print(text)?,
    }
    Ok(0)
}

/// All rows as one answer of the daemon.
fn document(of: Recorded) -> RecordReply {
    RecordReply {
        version: VERSION,
        now_ms: of.now_ms,
        first_ms: of.first_ms,
        gpus: of.gpus,
        rows: of.rows,
        next_ms: None,
        dropped_looks: of.dropped_looks,
    }
}

fn is_virtual(of: &Recorded) -> bool {
    of.gpus.iter().any(|gpu| gpu.kind == "virtual")
}

/// The GPUs, in words.
fn gpus(of: &Recorded) -> String {
    let mut kinds: Vec<(&str, u32)> = Vec::new();
    for gpu in &of.gpus {
        match kinds.iter_mut().find(|(name, _)| *name == gpu.name) {
            Some((_, count)) => *count += 1,
            None => kinds.push((&gpu.name, 1)),
        }
    }
    kinds.iter().map(|(name, count)| format!("{count} x {name}")).collect::<Vec<_>>().join(", ")
}

/// One unit of energy for all rows and notes, so that they can be compared.
fn unit_of(run: &RunResult, exclusive: Option<&RunResult>) -> Unit {
    let energies = [Some(run), exclusive].into_iter().flatten().map(|run| run.summary.energy_j);
    Unit::of(energies.filter(|energy| energy.is_finite()).fold(0.0, f64::max))
}

/// Of how many jobs it is not measured how fast they went. `None`: of none.
fn predicted_of(of: &Recorded, run: &RunResult) -> Option<String> {
    let guessed = run::guessed(of, run);
    (guessed.jobs > 0).then(|| {
        format!(
            "Of {} of the {} jobs that completed the speed beside others is only predicted for more than a tenth of their time: \
             what rests on that may be far off; mean slowdown is {:.2} at most, as where jobs take turns",
            guessed.jobs, run.summary.completed, guessed.slowdown_at_most
        )
    })
}

/// What a reader should know of what was recorded. Figures of GPUs are of the same rows and the same time as those of the run.
fn remarks_of(of: &Recorded, run: &RunResult, unit: Unit) -> Vec<String> {
    let mut remarks = Vec::new();
    let busy = run::busy(&of.jobs, of.span);
    let time = if busy == of.span {
        "the time of the report"
    } else {
        "the time from the first arrival to the last end"
    };
    // The span begins where a drawn row does, which may be before the first look.
    let since = busy.since.max(of.first_ms.unwrap_or(0));
    let whole = busy.until.saturating_sub(since) as f64;
    // What is said of several GPUs is said once.
    let mut gaps: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for gpu in &of.gpus {
        let rows = run::rows_of(of.finest(), busy).iter().flat_map(|row| &row.gpus);
        let rows = rows.filter(|row| row.gpu == gpu.gpu);
        let read: f64 = rows.map(|row| row.span_ms as f64).sum();
        // Rows end at looks, and a moment at either end is always missing.
        if read < whole * 0.98 - 2000.0 {
            let percent = read / whole * 100.0;
            gaps.entry(format!("{percent:.0}")).or_default().push(gpu.gpu);
        }
    }
    remarks.extend(gaps.into_iter().map(|(percent, gpus)| {
        let were = if gpus.len() == 1 { "was" } else { "were" };
        format!(
            "{} {were} read for {percent} % of {time}; the rest is a gap, and counts in no mean",
            named_gpus(&gpus)
        )
    }));
    let before = of.jobs.iter().filter(|job| job.row.submitted_ms < of.span.since).count();
    if before > 0 {
        remarks.push(format!(
            "{before} jobs were submitted before: they count from the beginning of the report on"
        ));
    }
    let (mut jobs, mut hidden, mut unmetered) = (0.0, 0, 0.0);
    for job in of.jobs.iter().filter(|job| !job.attempts.is_empty()) {
        jobs += job.row.energy_j.unwrap_or(0.0);
        hidden += u64::from(job.row.energy_j.is_none());
        unmetered += job.row.unmetered_gpu_s.filter(|_| job.row.energy_j.is_some()).unwrap_or(0.0);
    }
    // Not a number where it is not known.
    let counted = run.summary.energy_j;
    if counted > 0.0 {
        let unknown = match hidden {
            0 => String::new(),
            n => format!("; {n} more jobs are other users', or their counters were not read"),
        };
        // Without these words the jobs may seem to have taken more than the GPUs.
        let anew = match run::counters_anew(of, busy) {
            (gpus, _) if gpus.is_empty() => String::new(),
            (gpus, missing) => {
                let rows = match missing {
                    0 => String::new(),
                    missing => format!(", with up to {} of rows missing there", Millis(missing)),
                };
                format!(" without what was not read before counters began anew ({}{rows})", named_gpus(&gpus))
            }
        };
        let partly = if unmetered > 0.0 {
            format!(" but for {} on GPUs that no counter tells of", Millis((unmetered * 1000.0) as u64))
        } else {
            String::new()
        };
        remarks.push(format!(
            "the energy counters went on by {} in {time}{anew}; the jobs took {} over all of their own time{partly}{unknown}. \
             What was idle: carma usage",
            unit.text(counted),
            unit.text(jobs)
        ));
    }
    remarks
}

fn page_of(
    of: &Recorded,
    run: RunResult,
    exclusive: Option<RunResult>,
    notes: &[String],
    screen: &Screen,
) -> String {
    let title = format!("{} to {}", stamp(of.span.since, screen), stamp(of.span.until, screen));
    let runs: Vec<RunResult> = [Some(run), exclusive].into_iter().flatten().collect();
    let words: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    page(&PageInput {
        origin: if is_virtual(of) { Origin::RecordedVirtual } else { Origin::Recorded },
        title: &title,
        trace: "",
        cluster: &gpus(of),
        command: &format!("carma {}", shell_line(&words)),
        date: &written(of.now_ms),
        notes,
        runs: &runs,
        joules: &run::joules(of),
    })
}

/// What it came to, for a terminal.
fn summary(
    of: &Recorded,
    run: &RunResult,
    exclusive: Option<&RunResult>,
    unit: Unit,
    notes: &[String],
    screen: &Screen,
) -> String {
    let mut text = String::new();
    if is_virtual(of) {
        text.push_str("Virtual GPUs: a model, not a measurement\n");
    }
    let head = format!(
        "{} to {}, {}: {} jobs, {} completed.",
        stamp(of.span.since, screen),
        stamp(of.span.until, screen),
        gpus(of),
        run.summary.jobs,
        run.summary.completed
    );
    let lines = |text: &str| wrap(text, screen, 0).join("\n");
    let _ = writeln!(text, "{}\n", lines(&clean(&head)));
    use Column::{Left, Right};
    let known =
        |value: f64, text: &dyn Fn(f64) -> String| if value.is_finite() { text(value) } else { "-".into() };
    let time = |value: f64| known(value, &|s| span(Millis((s * 1000.0) as u64)));
    let share = |value: f64| known(value, &|v| format!("{v:.2}"));
    let columns = vec![
        Left("RUN"),
        Right("MAKESPAN"),
        Right("WAIT"),
        Right("JCT"),
        Right("SLOWDOWN"),
        Right("OOM"),
        Right("ENERGY"),
        Right("SMACT"),
        Right("MEMORY"),
        Right("POWER"),
        Right("JOBS/GPU"),
    ];
    let mut rows = Vec::new();
    let predicted = predicted_of(of, run);
    for (n, run) in [Some(run), exclusive].into_iter().flatten().enumerate() {
        let s = &run.summary;
        let about = |rests: bool, text: String| match rests && predicted.is_some() && text != "-" {
            true => format!("~{text}"),
            false => text,
        };
        // Of exclusive GPUs all that has to do with how long jobs run.
        let of_model = n > 0;
        rows.push(vec![
            run.policy.clone(),
            about(of_model, time(s.makespan_s)),
            about(of_model, time(s.wait_s.mean)),
            about(of_model, time(s.jct_s.mean)),
            about(!of_model, share(s.slowdown.mean)),
            s.oom.to_string(),
            about(of_model, known(s.energy_j, &|joules| unit.text(joules))),
            share(s.smact),
            known(s.memory_mib, &|mib| MiB(mib as u64).to_string()),
            known(s.power_w, &|w| format!("{w:.0} W")),
            share(s.jobs_per_gpu),
        ]);
    }
    text.push_str(&blocks(&columns, &rows, screen));
    let explained = "WAIT, JCT and SLOWDOWN are means over the jobs that completed, SMACT, MEMORY and POWER over time and GPUs. \
         --html makes a page of it, --csv and --json print the rows, --parquet writes them.";
    let _ = writeln!(text, "{}", lines(explained));
    if let Some(predicted) = predicted {
        let _ = writeln!(text, "{}", lines(&format!("{predicted} (~).")));
    }
    for note in notes {
        for (i, line) in wrap(&clean(&format!("note: {note}")), screen, 6).into_iter().enumerate() {
            let _ = writeln!(text, "{}{line}", if i == 0 { "" } else { "      " });
        }
    }
    text
}

/// Of what `carma simulate --json` printed.
fn of_simulation(file: &Path, args: &ReportArgs) -> Outcome {
    let output = named(args.html.as_ref().and_then(Option::as_ref), args, PAGE);
    let option = if args.output.is_some() { "--output" } else { "--html" };
    keep_apart(option, &output, [file])?;
    let name = source_name(file);
    let bytes = read(file).map_err(|why| match why {
        Why::TooLarge { .. } | Why::Longer { .. } => {
            Failure::usage(format!("{name}: {why}")).hint("simulate fewer jobs, or without --detail")
        }
        Why::Io(why) => Failure::new(format!("cannot read {name}: {why}")),
        why => Failure::usage(format!("{name}: {why}")),
    })?;
    let reply = SimulateReply::read(&bytes).map_err(|e| {
        Failure::usage(format!("{name}: {e}")).hint("carma report reads what `carma simulate --json` prints")
    })?;
    let mut notes = reply.notes.clone();
    notes.extend(remarks(&reply));
    let runs = reply.runs();
    let text = page(&PageInput {
        origin: Origin::Simulated,
        title: &format!("{} on {}", reply.trace, reply.cluster),
        trace: &reply.trace,
        cluster: &reply.cluster,
        command: reply.command.as_deref().unwrap_or_default(),
        date: &now(),
        notes: &notes,
        runs: &runs,
        joules: &[],
    });
    put_page(&output, &text)
}

/// What the page cannot show as it stands in the document.
fn remarks(reply: &SimulateReply) -> Vec<String> {
    let mut remarks = Vec::new();
    let without = reply.rows.iter().filter(|row| row.detail.is_none()).count();
    if without > 0 {
        remarks.push(format!(
            "{} of the {} policies come without jobs and activity: those are missing from the drawings. \
             `carma simulate --json --detail` writes them.",
            without,
            reply.rows.len()
        ));
    }
    if let Some(row) = reply.rows.iter().find(|row| row.seeds > 1) {
        remarks.push(format!(
            "Figures are means of {} runs with seeds from {} on; drawings show one of them.",
            row.seeds, row.seed
        ));
    }
    remarks
}

/// The time, as a page shows it.
pub(crate) fn now() -> String {
    Zoned::now().strftime("%Y-%m-%d %H:%M %Z").to_string()
}

/// The same of a page of what a daemon recorded, whose time may be another one.
fn written(daemon_ms: u64) -> String {
    let here = u64::try_from(Timestamp::now().as_millisecond()).unwrap_or(daemon_ms);
    let is_other = here.abs_diff(daemon_ms) > OTHER_TIME_MS;
    let why =
        if is_other { "; the daemon has another time, as `--speed` of virtual GPUs makes it" } else { "" };
    format!("{}{why}", now())
}

/// Writes a page whole: a reader never sees half of one.
///
/// # Errors
/// When it cannot be written; the file is then as it was.
pub(crate) fn write_page(path: &Path, text: &str) -> Result<(), Failure> {
    let name = clean(&path.display().to_string()).into_owned();
    replace(path, text.as_bytes()).map_err(|e| Failure::new(format!("cannot write {name}: {e}")))
}

fn source_name(file: &Path) -> String {
    if file == Path::new("-") {
        return "standard input".into();
    }
    shell_line(&[file.display().to_string()])
}

fn read(file: &Path) -> Result<Vec<u8>, Why> {
    if file == Path::new("-") {
        return carma_files::read_stream(io::stdin().lock(), LARGEST);
    }
    carma_files::read(file, LARGEST).map_err(|e| e.why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use carma_api::record::RecordedGpu;

    #[test]
    fn what_is_not_known_is_a_dash() {
        let of = run::tests::recorded_run(vec![]);
        let run = run::recorded(&of);
        let text = summary(&of, &run, None, unit_of(&run, None), &[], &Screen::of_width(None));
        let row = text.lines().find(|line| line.contains("as it ran")).unwrap();
        let row = row.split_whitespace().collect::<Vec<_>>().join(" ");
        // Nothing ran, and no memory was read.
        assert_eq!(row, "adaptive, as it ran - - - - 0 118.0 kJ 0.60 - 200 W 1.00");
    }

    #[test]
    fn it_fits_a_terminal_and_says_once_what_holds_for_several_gpus() {
        let mut of = run::tests::recorded_run(vec![]);
        of.gpus.push(RecordedGpu { gpu: 1, ..of.gpus[0].clone() });
        for row in &mut of.rows {
            let second = carma_api::record::GpuRow { gpu: 1, ..row.gpus[0].clone() };
            row.gpus.push(second);
        }
        let run = run::recorded(&of);
        let unit = unit_of(&run, None);
        let notes = remarks_of(&of, &run, unit);
        assert!(notes[0].starts_with("GPUs 0,1 were read for 90 % of the time of the report; "), "{notes:?}");
        let text = summary(&of, &run, Some(&run), unit, &notes, &Screen::of_width(Some(80)));
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("JOBS/GPU") && text.contains("POWER"), "{text}");
    }

    #[test]
    fn notes_tell_energy_in_the_unit_of_the_table() {
        let mut run = run::recorded(&run::tests::recorded_run(vec![]));
        run.summary.energy_j = 500_000.0;
        let notes = |exclusive: Option<&RunResult>| {
            let of = run::tests::recorded_run(vec![]);
            remarks_of(&of, &run, unit_of(&run, exclusive)).join("; ")
        };
        assert!(notes(None).contains(" went on by 500.0 kJ in "), "{}", notes(None));
        let mut exclusive = run.clone();
        exclusive.summary.energy_j = 7.2e6;
        assert!(notes(Some(&exclusive)).contains(" went on by 0.139 kWh in "), "{}", notes(Some(&exclusive)));
    }
}
