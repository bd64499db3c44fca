//! A forecast for people.

use carma_cli::{Column, Screen, Table, clean, figure, wrap};
use carma_interference::group::{Forecast, Member};
use std::fmt::Write as _;

/// A group, task by task.
pub(super) fn group(forecast: &Forecast, members: &[Member<'_>], screen: &Screen) -> String {
    let split = members.iter().any(|m| m.threads_pct.is_some());
    let mut columns = vec![Column::Left("TASK")];
    if split {
        columns.push(Column::Right("THREADS"));
    }
    columns.extend([
        Column::Right("PROGRESS"),
        Column::Right("90 % BOUNDS"),
        Column::Right("SLOWDOWN"),
        Column::Right("PRIOR"),
        Column::Right("RATE"),
        Column::Left("OBSERVED"),
    ]);
    let mut table = Table::new(columns, screen);
    for (task, member) in forecast.tasks.iter().zip(members) {
        let p = task.progress;
        let mut row = vec![task.name.clone()];
        if split {
            row.push(member.threads_pct.map_or_else(|| "-".to_owned(), |pct| format!("{pct:.0} %")));
        }
        row.extend([
            format!("{:.2}", p.expected),
            format!("{:.2}-{:.2}", p.lower, p.upper),
            format!("{:.2}", task.slowdown),
            format!("{:.2}", task.prior),
            task.rate.map_or_else(|| "-".to_owned(), |r| rate(r.expected, unit(member))),
            task.observations.to_string(),
        ]);
        table.row(row);
    }
    let mut text = table.render();
    let _ =
        writeln!(text, "\nsum {:.2} of {}, least {:.2}", forecast.sum, forecast.tasks.len(), forecast.min);
    for reason in &forecast.reasons {
        for line in wrap(&format!("- {}", clean(reason)), screen, 2) {
            let _ = writeln!(text, "{line}");
        }
    }
    text
}

/// A group, task by task, of which nothing but progress is said.
pub(super) fn progress(progress: &[f64], members: &[Member<'_>], screen: &Screen) -> String {
    let columns = vec![Column::Left("TASK"), Column::Right("PROGRESS"), Column::Right("SLOWDOWN")];
    let mut table = Table::new(columns, screen);
    for (member, progress) in members.iter().zip(progress) {
        let slowdown = if *progress > 0.0 { format!("{:.2}", 1.0 / progress) } else { "-".to_owned() };
        table.row([member.profile.name.clone(), format!("{progress:.2}"), slowdown]);
    }
    format!("{}\n", table.render())
}

/// What the rate of a task counts, where its profile says it.
pub(super) fn unit<'a>(member: &Member<'a>) -> Option<&'a str> {
    member.profile.rate.as_ref()?.unit.as_deref().filter(|unit| !unit.trim().is_empty())
}

fn rate(per_s: f64, unit: Option<&str>) -> String {
    let blank = if unit.is_some() { " " } else { "" };
    format!("{}{blank}{}/s", figure(per_s), unit.unwrap_or_default())
}
