//! The table of figures: one row for each policy, with the change against the first under each figure.

use super::text::{Short, UNKNOWN, Unit, decimals, energy_unit, fixed, largest, time_unit};
use super::{block, open};
use crate::event::outcome::{RunResult, Summary};
use std::fmt::Write as _;

/// What a reader wants of a figure.
#[derive(Clone, Copy, PartialEq)]
enum Wanted {
    Less,
    More,
    /// Neither is better as such.
    Either,
}

struct Column {
    group: &'static str,
    name: &'static str,
    value: fn(&Summary) -> f64,
    kind: Kind,
    wanted: Wanted,
}

/// Whether two runs may be compared: they are of as many jobs. Means over the jobs that completed are no better than sums: where others were
/// there, those did not have the GPUs to themselves.
const fn alike(base: &Summary, run: &Summary) -> bool {
    base.jobs == run.jobs
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Time,
    Energy,
    Count,
    GiB,
    /// A plain number with so many decimals.
    Plain(usize),
}

/// What is measured in seconds, joules or MiB, or is a share: the tables of the field in their order.
const COLUMNS: [Column; 18] = {
    use Kind::{Count, Energy, GiB, Plain, Time};
    use Wanted::{Either, Less, More};
    const fn column(
        group: &'static str,
        name: &'static str,
        kind: Kind,
        wanted: Wanted,
        value: fn(&Summary) -> f64,
    ) -> Column {
        Column { group, name, value, kind, wanted }
    }
    [
        column("", "Makespan", Time, Less, |s| s.makespan_s),
        column("Wait", "mean", Time, Less, |s| s.wait_s.mean),
        column("Wait", "median", Time, Less, |s| s.wait_s.median),
        column("Wait", "p95", Time, Less, |s| s.wait_s.p95),
        column("Exec", "mean", Time, Less, |s| s.exec_s.mean),
        column("JCT", "mean", Time, Less, |s| s.jct_s.mean),
        column("JCT", "p95", Time, Less, |s| s.jct_s.p95),
        column("Slowdown", "mean", Plain(2), Less, |s| s.slowdown.mean),
        column("Slowdown", "p95", Plain(2), Less, |s| s.slowdown.p95),
        column("", "OOM crashes", Count, Less, |s| s.oom as f64),
        column("", "Energy", Energy, Less, |s| s.energy_j),
        column("Mean of all GPUs", "SMACT", Plain(3), More, |s| s.smact),
        column("Mean of all GPUs", "SMOCC", Plain(3), More, |s| s.smocc),
        column("Mean of all GPUs", "memory", GiB, Either, |s| s.memory_mib),
        column("", "Jobs per GPU", Plain(2), Either, |s| s.jobs_per_gpu),
        column("Fairness", "wait", Plain(2), More, |s| s.fairness_wait),
        column("Fairness", "slowdown", Plain(2), More, |s| s.fairness_slowdown),
        column("", "Not completed", Count, Less, |s| s.not_completed as f64),
    ]
};

/// Writes the section.
pub(super) fn section(out: &mut String, runs: &[RunResult], names: &[String]) {
    open(out, "figures", "Figures by policy");
    // That all jobs completed is what one expects, and not worth a column.
    let incomplete = runs.iter().any(|r| r.summary.not_completed > 0);
    let shown: Vec<&Column> = COLUMNS.iter().take(COLUMNS.len() - usize::from(!incomplete)).collect();
    let told: Vec<Summary> = runs.iter().map(|run| run.summary.told()).collect();
    let units: Vec<Unit> = shown.iter().map(|c| unit(c, &shown, &told)).collect();
    let most: Vec<f64> = shown.iter().map(|c| largest(told.iter().map(c.value))).collect();
    out.push_str("<div class=\"wide\"><table><thead>");
    headings(out, &shown, &units);
    out.push_str("</thead><tbody>");
    for (i, ((run, of), name)) in runs.iter().zip(&told).zip(names).enumerate() {
        let _ = write!(
            out,
            "<tr><th scope=\"row\">{} {}<small>{}</small></th>",
            block(i),
            Short(name, 60),
            Short(&run.sharing, 30)
        );
        for ((column, unit), most) in shown.iter().zip(&units).zip(&most) {
            let value = (column.value)(of);
            let _ = write!(out, "<td>{}", shown_as(column, *unit, *most, value));
            if i > 0
                && let Some(base) = told.first()
                && alike(base, of)
            {
                out.push_str(&change(column, (column.value)(base), value));
            }
            out.push_str("</td>");
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
    if let (Some(first), true) = (names.first(), runs.len() > 1) {
        let compared = told.iter().skip(1).filter(|run| alike(&told[0], run)).count();
        out.push_str("<p class=\"remark\">");
        if compared > 0 {
            let _ = write!(
                out,
                "Second line: change against {}; <strong>bold: better</strong>, regular: worse or neither. ",
                Short(first, 60)
            );
        }
        let _ = writeln!(
            out,
            "Wait: from arrival to the start of the attempt that completed; of a simulated job that was taken off and went on, all \
             time off its GPUs. JCT: from arrival to the end. \
             Slowdown: run time over the run time alone. Fairness: Jain’s index over users, 1 is even.{}</p>",
            match told.len() - 1 - compared {
                0 => "",
                _ if compared == 0 => " The runs are not of as many jobs, so no change is told.",
                _ => " Where a run is not of as many jobs, no change is told.",
            }
        );
    }
    out.push_str("</section>\n");
}

fn headings(out: &mut String, shown: &[&Column], units: &[Unit]) {
    out.push_str("<tr class=\"group\"><th class=\"text\"></th>");
    let mut i = 0;
    while let Some(column) = shown.get(i) {
        let wide = shown[i..].iter().take_while(|c| c.group == column.group).count();
        let wide = if column.group.is_empty() { 1 } else { wide };
        match column.group {
            "" => out.push_str("<th></th>"),
            group => {
                let _ = write!(out, "<th colspan=\"{wide}\"><span>{group}</span></th>");
            }
        }
        i += wide;
    }
    out.push_str("</tr><tr><th class=\"text\" scope=\"col\">Policy</th>");
    for (column, unit) in shown.iter().zip(units) {
        let _ = write!(out, "<th scope=\"col\">{}", column.name.replacen(' ', "<br>", 1));
        if !unit.name.is_empty() {
            let _ = write!(out, "<br>{}", unit.name);
        }
        out.push_str("</th>");
    }
    out.push_str("</tr>");
}

/// The unit of a column. Times of one group share that of its first column, the mean, so that they can
/// be compared from left to right.
fn unit(column: &Column, shown: &[&Column], told: &[Summary]) -> Unit {
    let lead = match column.group {
        "" => column,
        group => shown.iter().find(|c| c.group == group).copied().unwrap_or(column),
    };
    let most = |c: &Column| largest(told.iter().map(c.value));
    match column.kind {
        Kind::Time => time_unit(most(lead)),
        Kind::Energy => energy_unit(most(column)),
        Kind::GiB => Unit { name: "GiB", size: 1024.0 },
        Kind::Count | Kind::Plain(_) => Unit { name: "", size: 1.0 },
    }
}

/// A value of a column, all with the decimals that suit the largest.
fn shown_as(column: &Column, unit: Unit, most: f64, value: f64) -> String {
    match column.kind {
        Kind::Count => fixed(value, 0),
        Kind::Plain(decimals) => fixed(value, decimals),
        Kind::Time | Kind::Energy | Kind::GiB => fixed(unit.of(value), decimals(unit.of(most))),
    }
}

/// The change against the first policy: percent with sign, of counts the difference.
fn change(column: &Column, base: f64, value: f64) -> String {
    let better = match column.wanted {
        Wanted::Less => Some(value < base),
        Wanted::More => Some(value > base),
        Wanted::Either => None,
    };
    let (text, same) = if column.kind == Kind::Count {
        let difference = value - base;
        let sign = if difference > 0.0 { "+" } else { "" };
        if difference == 0.0 {
            ("±0".into(), true)
        } else {
            (format!("{sign}{}", fixed(difference, 0)), false)
        }
    } else {
        let percent = (value / base - 1.0) * 100.0;
        // A hundredfold: the first is next to nothing, a wait of milliseconds, and the change says nothing.
        if !percent.is_finite() || percent > 9_900.0 {
            (UNKNOWN.into(), true)
        } else {
            let decimals = usize::from(percent.abs() < 9.95);
            let text = fixed(percent, decimals);
            let none = !text.contains(|c: char| ('1'..='9').contains(&c));
            match (none, percent > 0.0) {
                (true, _) => ("±0 %".into(), true),
                (_, true) => (format!("+{text} %"), false),
                _ => (format!("{text} %"), false),
            }
        }
    };
    let class = match (same, better) {
        (false, Some(true)) => " class=\"good\"",
        (false, Some(false)) => " class=\"bad\"",
        _ => "",
    };
    format!("<small{class}>{}</small>", text.replace(' ', "\u{202f}"))
}
