//! Slurm's accounting: the output of `sacct --parsable2`, separated by `|`, with a header. GPUs are
//! counted in `AllocTRES`, else `ReqTRES`. Jobs that failed or were cancelled while running are kept:
//! they occupied their GPUs.

use super::{Clock, Draft, Imported, Jobs, given};
use crate::trace::error::TraceError;
use crate::trace::table::{Column, Separator, Table, TableRow};
use carma_core::units::Millis;
use std::io::Read;
use std::path::Path;

pub(super) fn import(reader: impl Read, file: &Path) -> Result<Imported, TraceError> {
    let mut table = Table::new(reader, file, Separator::Plain('|'))?;
    let [id, submit] = table.require([&["jobid"], &["submit"]])?;
    let [user, start, end, raw, elapsed, state, allocated, requested] =
        ["user", "start", "end", "elapsedraw", "elapsed", "state", "alloctres", "reqtres"]
            .map(|name| table.column(&[name]));
    if allocated.or(requested).is_none() {
        table.require([&["alloctres"]])?;
    }
    if elapsed.or(raw).is_none() && start.and(end).is_none() {
        table.require([&["elapsedraw"]])?;
    }
    let unused = table.unused();
    let (mut jobs, mut clock) = (Jobs::default(), Clock::default());
    while let Some(row) = table.next()? {
        let name = given(&row, id, row.name(id)?, "the job's number")?;
        // Steps (`123.batch`) are parts of a job that has a row of its own.
        if name.contains('.') {
            continue;
        }
        let gpus = match tres(&row, allocated)? {
            0 => tres(&row, requested)?,
            n => n,
        };
        if gpus == 0 {
            jobs.skip("uses no GPU");
            continue;
        }
        let state = row.text(state).and_then(|state| state.split_whitespace().next()).unwrap_or_default();
        if ["PENDING", "RUNNING", "SUSPENDED", "REQUEUED", "RESIZING"].contains(&state) {
            jobs.skip("is not over");
            continue;
        }
        let bounds = [start, end].map(|column| column.map(|column| clock.time(&row, column)));
        let [started, ended] = bounds.map(|time| time.transpose().map(Option::flatten));
        let (started, ended) = (started?, ended?);
        let duration = match (row.seconds(raw)?, spell(&row, elapsed)?) {
            (Some(duration), _) | (None, Some(duration)) => duration,
            _ => match started.zip(ended) {
                Some((from, to)) => Millis(u64::try_from(to.saturating_sub(from)).unwrap_or_default()),
                None => Millis::ZERO,
            },
        };
        if duration == Millis::ZERO {
            jobs.skip("never ran");
            continue;
        }
        let draft = Draft {
            at: given(&row, submit, clock.time(&row, submit)?, "the time of submission")?,
            id: Some(name),
            user: row.name(user)?.unwrap_or_default(),
            gpus,
            duration,
            ..Draft::default()
        };
        jobs.add(&row, &draft);
    }
    let (trace, mut notes) = jobs.finish(file)?;
    notes.extend(clock.note());
    notes.push(
        "no GPU memory and no activity in this source; draw tasks from a catalogue, or they are assumed"
            .into(),
    );
    notes.extend(unused);
    Ok(Imported { trace, catalogue: None, notes })
}

/// GPUs in a list of trackable resources: `cpu=8,gres/gpu=2,gres/gpu:a100=2,mem=64G`. The untyped entry
/// is the sum of the typed ones, where Slurm is set up to count both.
fn tres(row: &TableRow<'_>, column: Option<Column>) -> Result<u32, TraceError> {
    let (Some(text), Some(column)) = (row.text(column), column) else { return Ok(0) };
    let bad = || row.bad(column, "resources like cpu=8,gres/gpu=2");
    let (mut untyped, mut typed) = (0, 0_u32);
    for entry in text.split(',').map(str::trim) {
        let (name, number) = entry.split_once('=').ok_or_else(bad)?;
        let gpus = name == "gres/gpu";
        if !gpus && !name.starts_with("gres/gpu:") {
            continue;
        }
        let number: u32 = number.parse().ok().filter(|n| *n <= 1_000_000).ok_or_else(bad)?;
        if gpus {
            untyped = number;
        } else {
            typed = typed.saturating_add(number);
        }
    }
    Ok(if untyped > 0 { untyped } else { typed })
}

/// A span as Slurm spells it: `[DD-]HH:MM:SS`, `MM:SS`, with or without a fraction.
fn spell(row: &TableRow<'_>, column: Option<Column>) -> Result<Option<Millis>, TraceError> {
    let (Some(text), Some(column)) = (row.text(column), column) else { return Ok(None) };
    if ["unknown", "none", "invalid"].iter().any(|none| text.eq_ignore_ascii_case(none)) {
        return Ok(None);
    }
    let parsed = || {
        let (days, clock) = text.split_once('-').unwrap_or(("0", text));
        let days: u64 = days.parse().ok().filter(|days| *days <= 36_525)?;
        let mut seconds = 0_u64;
        let mut parts = 0;
        for part in clock.split(':') {
            let whole = part.split_once('.').map_or(part, |(whole, _)| whole);
            let value: u64 = whole.parse().ok().filter(|value| *value <= 1_000_000)?;
            seconds = seconds.checked_mul(60)?.checked_add(value)?;
            parts += 1;
        }
        (2..=3).contains(&parts).then(|| Millis::secs(days * 86_400 + seconds))
    };
    parsed().map(Some).ok_or_else(|| row.bad(column, "a span like 1-02:03:04"))
}
