//! What people read of a measurement.

use carma_cli::{Column, Screen, Table, clean};
use carma_interference::measured::{Combination, Measured, Solos};
use carma_interference::profile::Stat;
use carma_interference::share::Mode;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

/// Pairs shown at either end.
const SHOWN: usize = 5;

/// What is not measured yet, in a line.
pub(super) fn left(measured: &Measured) -> Option<String> {
    let (are, them) = if measured.left == 1 { ("window is", "it") } else { ("windows are", "them") };
    let line = || format!("{} {are} left: the same command goes on with {them}\n", measured.left);
    (measured.left > 0).then(line)
}

pub(super) fn render(measured: &Measured, output: &Path, screen: &Screen) -> String {
    let mut text = format!(
        "{}, {} tasks, {} windows in {} sessions\n",
        measured.machine.gpu,
        measured.tasks.len(),
        measured.combinations.len(),
        measured.sessions.len()
    );
    if measured.machine.gpu.starts_with("Virtual") {
        text.push_str("Virtual GPUs are a model, not a measurement.\n");
    }
    let _ = write!(text, "\n{}", alone(measured, screen));
    for sharing in [Mode::TimeSlice, Mode::Mps] {
        let pairs = pairs(measured, sharing, screen);
        if !pairs.is_empty() {
            let _ = write!(text, "\nPairs under {sharing}, least and most work together\n{pairs}");
        }
    }
    if measured.combinations.iter().any(|w| w.k() > 1 || w.is_split()) {
        let _ = write!(text, "\n{}", sums(measured, screen));
    }
    let failed: Vec<&Combination> = measured.combinations.iter().filter(|w| w.failed.is_some()).collect();
    if !failed.is_empty() {
        let windows = if failed.len() == 1 { "window" } else { "windows" };
        let _ = writeln!(text, "\n{} {windows} failed", failed.len());
        for window in failed.iter().take(SHOWN) {
            let why = window.failed.as_deref().unwrap_or_default();
            let why: String = why.chars().take(200).collect();
            let members = window.members.join(" + ");
            let _ = writeln!(text, "  {} {}: {}", window.sharing, clean(&members), clean(&why));
        }
    }
    let _ = writeln!(text, "\nThe results are in {}", output.display());
    text.extend(left(measured));
    text
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.digits$}"))
}

fn alone(measured: &Measured, screen: &Screen) -> String {
    let solos = Solos::of(&measured.combinations);
    let mut drift: BTreeMap<String, f64> = BTreeMap::new();
    for one in solos.drifts() {
        let most = drift.entry(one.task).or_default();
        *most = most.max(one.spread);
    }
    let columns = vec![
        Column::Left("TASK"),
        Column::Right("STEPS/S"),
        Column::Right("MPS"),
        Column::Right("DRIFT%"),
        Column::Right("GRACT%"),
        Column::Right("SMACT%"),
        Column::Right("SMOCC%"),
        Column::Right("DRAM%"),
        Column::Right("TENSOR%"),
        Column::Right("CPU%"),
        Column::Right("MIB"),
        Column::Right("W"),
    ];
    let mut table = Table::new(columns, screen);
    for profile in &measured.profiles.tasks {
        let metrics = &profile.metrics;
        let mean = |stat: Option<Stat>, digits| number(stat.map(|s| s.mean), digits);
        let rate = |mode| solos.overall(&profile.name, mode);
        table.row([
            profile.name.clone(),
            number(rate(Mode::TimeSlice), 1),
            number(rate(Mode::Mps), 1),
            number(drift.get(&profile.name).map(|d| d * 100.0), 1),
            mean(metrics.gract_pct, 0),
            mean(metrics.smact_pct, 0),
            mean(metrics.smocc_pct, 0),
            mean(metrics.drama_pct, 0),
            mean(metrics.tensor_pct, 0),
            mean(metrics.cpu_pct, 0),
            mean(metrics.memory_mib, 0),
            mean(metrics.power_w, 0),
        ]);
    }
    table.render()
}

fn pairs(measured: &Measured, sharing: Mode, screen: &Screen) -> String {
    let of = |w: &&Combination| w.k() == 2 && w.sharing == sharing && !w.is_split();
    let mut pairs: Vec<(f64, &Combination)> =
        measured.combinations.iter().filter(of).filter_map(|w| Some((w.total()?, w))).collect();
    if pairs.is_empty() {
        return String::new();
    }
    pairs.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let columns =
        vec![Column::Left("PAIR"), Column::Right("PROGRESS"), Column::Right("SUM"), Column::Right("W")];
    let mut table = Table::new(columns, screen);
    let n = pairs.len();
    for (at, (total, window)) in pairs.iter().enumerate() {
        if at < SHOWN || at + SHOWN >= n {
            let progress: Vec<String> = window.progress.iter().map(|p| format!("{p:.2}")).collect();
            table.row([
                window.members.join(" + "),
                progress.join(" "),
                format!("{total:.2}"),
                number(window.power_w, 0),
            ]);
        }
    }
    table.render()
}

fn sums(measured: &Measured, screen: &Screen) -> String {
    let mut groups: BTreeMap<(Mode, bool, usize), Vec<&Combination>> = BTreeMap::new();
    for window in measured.combinations.iter().filter(|w| w.total().is_some() && (w.k() > 1 || w.is_split()))
    {
        groups.entry((window.sharing, window.is_split(), window.k())).or_default().push(window);
    }
    let columns = vec![
        Column::Left("SHARING"),
        Column::Right("TASKS"),
        Column::Right("WINDOWS"),
        Column::Right("MEAN SUM"),
        Column::Right("MIN"),
        Column::Right("MAX"),
        Column::Right("W"),
    ];
    let mut table = Table::new(columns, screen);
    for ((sharing, split, k), windows) in groups {
        let totals: Vec<f64> = windows.iter().filter_map(|w| w.total()).collect();
        let watts: Vec<f64> = windows.iter().filter_map(|w| w.power_w).collect();
        let mean =
            |values: &[f64]| (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64);
        table.row([
            if split { format!("{sharing}, threads limited") } else { sharing.to_string() },
            k.to_string(),
            windows.len().to_string(),
            number(mean(&totals), 2),
            number(totals.iter().copied().reduce(f64::min), 2),
            number(totals.iter().copied().reduce(f64::max), 2),
            number(mean(&watts), 0),
        ]);
    }
    table.render()
}
