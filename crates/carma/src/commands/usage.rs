//! `carma usage`: what users have had of the GPUs.

use super::{Context, encoded};
use crate::cli::UsageArgs;
use carma_api::wire::{MeteredView, UsageReply, UsageView};
use carma_cli::failure::Outcome;
use carma_cli::{Column, Screen, span, spared_line, sparing, stamp, wrap};
use carma_core::units::Millis;

/// Lists accounts.
pub(crate) fn run(context: &Context, args: &UsageArgs) -> Outcome {
    let path = match &args.user {
        Some(user) => format!("/v1/usage?user={}", encoded(user)),
        None => "/v1/usage".to_owned(),
    };
    context.listing(&path, args.json, render)
}

/// GPU time, in hours.
fn hours(gpu_s: f64) -> String {
    format!("{:.2} h", gpu_s / 3600.0)
}

pub(super) fn energy(joules: f64) -> String {
    match joules {
        ..1e3 => format!("{joules:.0} J"),
        1e3..3.6e5 => format!("{:.1} kJ", joules / 1e3),
        _ => format!("{:.2} kWh", joules / 3.6e6),
    }
}

/// The unit of a sum and its parts, with so many digits that a reader can add them up.
#[derive(Clone, Copy)]
pub(super) struct Unit {
    name: &'static str,
    joules: f64,
    digits: usize,
}

impl Unit {
    /// The one for a sum of so many joules.
    pub(super) const fn of(joules: f64) -> Self {
        match joules {
            ..1e4 => Self { name: "J", joules: 1.0, digits: 0 },
            1e4..3.6e6 => Self { name: "kJ", joules: 1e3, digits: 1 },
            _ => Self { name: "kWh", joules: 3.6e6, digits: 3 },
        }
    }

    /// What it says of less than it can tell from nothing.
    pub(super) fn less_than_least(self, joules: f64) -> Option<String> {
        let Self { name, joules: one, digits } = self;
        let least = 0.1_f64.powi(digits as i32);
        (joules > 0.0 && joules / one < least / 2.0).then(|| format!("< {least:.digits$} {name}"))
    }

    pub(super) fn text(self, joules: f64) -> String {
        let Self { name, joules: one, digits } = self;
        format!("{:.digits$} {name}", joules / one)
    }
}

/// What the counters of these GPUs have counted.
pub(super) fn counted(gpus: &[MeteredView]) -> f64 {
    gpus.iter().map(|gpu| gpu.counter_j).sum()
}

/// Where the energy of GPUs went, in a line; `None`: no counter was read.
pub(super) fn metered(gpus: &[MeteredView], unit: Unit, screen: &Screen) -> Option<String> {
    let since = gpus.iter().map(|gpu| gpu.since_ms).min()?;
    let sum = |part: fn(&MeteredView) -> f64| gpus.iter().map(part).sum::<f64>();
    let energy = |joules: f64| unit.text(joules);
    let mut text = format!(
        "Energy since {}: {}, of it {} by jobs, {} idle",
        stamp(since, screen),
        energy(counted(gpus)),
        energy(sum(|gpu| gpu.jobs_j)),
        energy(sum(|gpu| gpu.idle_j)),
    );
    let others = sum(|gpu| gpu.others_j);
    if others > 0.0 {
        text.push_str(&format!(", {} not started by carma", energy(others)));
    }
    let resets: u64 = gpus.iter().map(|gpu| gpu.resets).sum();
    if resets > 0 {
        text.push_str(&format!(
            "; counters began anew {resets} time{}, and what was not read before that is missing",
            if resets == 1 { "" } else { "s" }
        ));
    }
    text.push_str(".\n");
    Some(text)
}

/// What is left of an amount.
fn left(most: Option<f64>, used: f64, text: fn(f64) -> String) -> Option<String> {
    most.map(|most| text((most - used).max(0.0)))
}

fn row(user: &UsageView, alone: bool, unit: Unit) -> Vec<String> {
    let dash = || "-".to_owned();
    let per_hour = user.progress_gpu_s / user.held_gpu_s;
    let left = [
        left(user.quota_gpu_s, user.period_gpu_s, hours),
        left(user.quota_energy_j, user.period_energy_j, energy),
    ];
    let left: Vec<String> = left.into_iter().flatten().collect();
    let over_alone = user.energy_alone_j.zip(user.energy_alone_of_j).map(|(alone, took)| took / alone);
    let mut row = vec![
        user.user.clone(),
        user.running.to_string(),
        user.waiting.to_string(),
        hours(user.held_gpu_s),
        hours(user.charged_gpu_s),
        hours(user.progress_gpu_s),
        if user.held_gpu_s > 0.0 { format!("{per_hour:.2}") } else { dash() },
        user.energy_j.map_or_else(dash, |joules| unit.text(joules)),
    ];
    if alone {
        row.push(over_alone.map_or_else(dash, |share| format!("{share:.2}")));
    }
    row.extend([
        user.share.to_string(),
        hours(user.lately_gpu_s),
        if left.is_empty() { dash() } else { left.join(", ") },
    ]);
    row
}

/// What a narrow screen may go without, the most needed first.
const SPARED: [&str; 9] =
    ["HELD", "ENERGY", "RUN", "WAIT", "LATELY", "PROGRESS", "SHARE", "A HELD HOUR", "OF ALONE"];

fn render(reply: &UsageReply, screen: &Screen) -> String {
    use Column::{Left, Right};
    let (mut text, mut below, mut hidden) = (String::new(), Vec::new(), Vec::new());
    let alone = reply.users.iter().any(|user| user.energy_alone_j.is_some());
    let taken: f64 = reply.users.iter().filter_map(|user| user.energy_j).sum();
    let unit = Unit::of(taken.max(counted(&reply.gpus)));
    if reply.users.is_empty() {
        text.push_str("You have had no GPU yet.\n");
    } else {
        let mut columns = vec![
            Left("USER"),
            Right("RUN"),
            Right("WAIT"),
            Right("HELD"),
            Right("CHARGED"),
            Right("PROGRESS"),
            Right("A HELD HOUR"),
            Right("ENERGY"),
        ];
        if alone {
            columns.push(Right("OF ALONE"));
        }
        columns.extend([Right("SHARE"), Right("LATELY"), Left("QUOTA LEFT")]);
        let rows: Vec<Vec<String>> = reply.users.iter().map(|user| row(user, alone, unit)).collect();
        let (table, spared) = sparing(&columns, &rows, &SPARED, None, screen);
        text.push_str(&table);
        below.extend(spared_line(&spared));
        hidden = spared;
    }
    if let Some(others) = &reply.others {
        below.push(format!(
            "{} other user{}: {} running, {} waiting, held {}, charged {}, progress {}.",
            others.users,
            if others.users == 1 { "" } else { "s" },
            others.running,
            others.waiting,
            hours(others.held_gpu_s),
            hours(others.charged_gpu_s),
            hours(others.progress_gpu_s),
        ));
    }
    if !reply.users.is_empty() {
        below.extend(explained(reply, alone, &hidden, unit, screen));
    }
    for line in below.iter().flat_map(|line| wrap(line.trim_end(), screen, 0)) {
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// What is to be known of the columns that are shown.
fn explained(reply: &UsageReply, alone: bool, hidden: &[&str], unit: Unit, screen: &Screen) -> Vec<String> {
    let mut first = "GPU-hours: a shared GPU's are charged in equal parts.".to_owned();
    if !hidden.contains(&"LATELY") {
        let half_life = span(Millis(reply.half_life_s.saturating_mul(1000)));
        first.push_str(&format!(" LATELY halves every {half_life}."));
    }
    let mut lines = vec![first];
    // Parts are charged where GPUs are shared.
    if reply.users.iter().any(|user| user.charged_gpu_s < user.held_gpu_s) && !hidden.contains(&"PROGRESS") {
        lines.push(
            "PROGRESS beside others: by the speed as measured, else as predicted, which may be too high."
                .to_owned(),
        );
    }
    if alone && !hidden.contains(&"OF ALONE") {
        lines.push(
            "OF ALONE: energy over what the same progress alone would have taken, of attempts that are over and whose power alone is known."
                .to_owned(),
        );
    }
    lines.extend(metered(&reply.gpus, unit, screen));
    // What is nothing in hours as they are written here is not worth a line.
    let is_some = |seconds: f64| hours(seconds) != hours(0.0);
    let unmetered =
        reply.users.iter().filter(|user| user.energy_j.is_some() && is_some(user.unmetered_gpu_s));
    let names: Vec<String> =
        unmetered.map(|user| format!("{} ({})", user.user, hours(user.unmetered_gpu_s))).collect();
    if !names.is_empty() {
        lines.push(format!("Energy without time that no counter tells of: {}.", names.join(", ")));
    }
    if reply.users.iter().any(|user| user.quota_gpu_s.is_some() || user.quota_energy_j.is_some()) {
        lines.push(format!(
            "Quotas are for {}; the next period begins at {}.",
            span(Millis(reply.period_ends_ms.saturating_sub(reply.period_begins_ms))),
            stamp(reply.period_ends_ms, screen)
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use carma_api::wire::OthersView;

    #[test]
    fn accounts() {
        let alice = UsageView {
            user: "alice".into(),
            uid: 1001,
            running: 2,
            waiting: 14,
            held_gpu_s: 450_000.0,
            charged_gpu_s: 300_000.0,
            progress_gpu_s: 390_000.0,
            energy_j: Some(1.1e8),
            unmetered_gpu_s: 7200.0,
            energy_alone_j: Some(1.2e8),
            energy_alone_of_j: Some(9e7),
            share: 3,
            lately_gpu_s: 123_456.0,
            period_gpu_s: 300_000.0,
            period_energy_j: 1.1e8,
            quota_gpu_s: Some(360_000.0),
            quota_energy_j: Some(1.0e8),
        };
        let bob = UsageView { user: "bob".into(), uid: 1002, share: 1, waiting: 1, ..UsageView::default() };
        let reply = UsageReply {
            version: 1,
            now_ms: 1_760_000_000_000,
            half_life_s: 604_800,
            period_begins_ms: 1_757_376_000_000,
            period_ends_ms: 1_759_968_000_000,
            users: vec![alice, bob],
            others: None,
            gpus: vec![MeteredView {
                gpu: 0,
                since_ms: 1_750_000_000_000,
                counter_j: 1.3e8,
                jobs_j: 1.1e8,
                idle_j: 1.9e7,
                others_j: 1e6,
                resets: 1,
            }],
        };
        insta::assert_snapshot!(render(&reply, &Screen::of_width(None)), @r"
        USER   RUN  WAIT      HELD  CHARGED  PROGRESS  A HELD HOUR      ENERGY  OF ALONE  SHARE   LATELY  QUOTA LEFT
        alice    2    14  125.00 h  83.33 h  108.33 h         0.87  30.556 kWh      0.75      3  34.29 h  16.67 h, 0 J
        bob      0     1    0.00 h   0.00 h    0.00 h            -           -         -      1   0.00 h  -
        GPU-hours: a shared GPU's are charged in equal parts. LATELY halves every 7d00h.
        PROGRESS beside others: by the speed as measured, else as predicted, which may be too high.
        OF ALONE: energy over what the same progress alone would have taken, of attempts that are over and whose power alone is known.
        Energy since 2025-06-15T15:06:40+00:00: 36.111 kWh, of it 30.556 kWh by jobs, 5.278 kWh idle, 0.278 kWh not started by carma; counters began anew 1 time, and what was not read before that is missing.
        Energy without time that no counter tells of: alice (2.00 h).
        Quotas are for 30d00h; the next period begins at 2025-10-09T00:00:00+00:00.
        ");
        let narrow = render(&reply, &Screen::of_width(Some(80)));
        assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
        assert!(narrow.contains("CHARGED") && narrow.contains("16.67 h, 0 J"), "{narrow}");
        assert!(narrow.contains("Not shown, as this screen is narrow: "), "{narrow}");
        // What is not shown is not explained.
        for width in [None, Some(80), Some(60)] {
            let text = render(&reply, &Screen::of_width(width));
            let titles = text.lines().next().unwrap();
            assert_eq!(titles.contains("LATELY"), text.contains("LATELY halves"), "{text}");
            assert_eq!(titles.contains("OF ALONE"), text.contains("OF ALONE: "), "{text}");
        }
        let mut seconds = reply.clone();
        seconds.users[0].unmetered_gpu_s = 17.0;
        let text = render(&seconds, &Screen::of_width(None));
        assert!(!text.contains("Energy without time"), "0.00 h is none: {text}");
        let others = OthersView { users: 2, running: 1, held_gpu_s: 3600.0, ..OthersView::default() };
        let reply = UsageReply { users: vec![], others: Some(others), gpus: vec![], ..reply };
        insta::assert_snapshot!(render(&reply, &Screen::of_width(None)), @r"
        You have had no GPU yet.
        2 other users: 1 running, 0 waiting, held 1.00 h, charged 0.00 h, progress 0.00 h.
        ");
    }

    #[test]
    fn what_adds_up_has_one_unit() {
        let user = |joules| UsageView { energy_j: Some(joules), ..UsageView::default() };
        let reply = UsageReply {
            version: 1,
            now_ms: 0,
            half_life_s: 604_800,
            period_begins_ms: 0,
            period_ends_ms: 0,
            users: [900.0, 52_340.0, 300_000.0].map(user).to_vec(),
            others: None,
            gpus: vec![MeteredView {
                gpu: 0,
                since_ms: 0,
                counter_j: 370_000.0,
                jobs_j: 353_240.0,
                idle_j: 16_760.0,
                others_j: 0.0,
                resets: 0,
            }],
        };
        let text = render(&reply, &Screen::of_width(None));
        for words in
            ["   0.9 kJ ", "  52.3 kJ ", " 300.0 kJ ", ": 370.0 kJ, of it 353.2 kJ by jobs, 16.8 kJ idle."]
        {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert_eq!([9_999.4, 1e4, 3.6e6].map(|j| Unit::of(j).text(j)), ["9999 J", "10.0 kJ", "1.000 kWh"]);
    }

    #[test]
    fn names_in_addresses() {
        assert_eq!(encoded("carma-alice.2_x"), "carma-alice.2_x");
        assert_eq!(encoded("a&b=c d/\u{e9}"), "a%26b%3Dc%20d%2F%C3%A9");
    }
}
