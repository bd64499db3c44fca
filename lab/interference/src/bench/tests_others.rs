//! Lucid, iGniter, Gavel; and what cannot be scored.

use super::baselines;
use super::others;
use super::set::Errors;
use super::{Data, Line, MAPE, errors_lines};
use crate::kace::Error;

pub(super) fn lucid(data: &Data) -> Result<Vec<Line>, Error> {
    const PART: &str = "lucid";
    let set = others::lucid(&data.shared.join("S-Lab-System-Group__Lucid"))?;
    let label = format!("slowdown of {} pairs, family held out", set.rows.len());
    let [error, covered] = errors_lines(PART, &label, "ours", &set.cold(&set.folds(data.threads)), 1);
    let mut lines = vec![error.at_most(8.5), covered];
    lines.push(Line::new(PART, &label, "mean of the others", MAPE).of(&baselines::constant_errors(&set), 1));
    let label = "slowdown, nothing learned";
    lines.push(Line::new(PART, label, "ours", MAPE).of(&set.prior().error, 1));
    lines.push(Line::new(PART, label, "share law", MAPE).of(&baselines::share_errors(&set), 1));
    let after = set.online(50, 5);
    lines.extend(errors_lines(PART, "slowdown, after 50 observations", "ours", &after, 5));
    Ok(lines)
}

pub(super) fn igniter(data: &Data) -> Result<Vec<Line>, Error> {
    const PART: &str = "igniter";
    let set = others::igniter(&data.shared.join("icloud-ecnu__igniter"))?;
    let label = format!("speed of {} partitioned pairs", set.rows.len());
    let mut lines = Vec::new();
    let prior: Errors = set.prior();
    lines.extend(errors_lines(PART, &format!("{label}, nothing learned"), "ours", &prior, 1));
    let cold = set.cold(&set.folds(data.threads));
    lines.extend(errors_lines(PART, &format!("{label}, family held out"), "ours", &cold, 1));
    lines.extend(errors_lines(
        PART,
        &format!("{label}, after 50 observations"),
        "ours",
        &set.online(50, 5),
        5,
    ));
    Ok(lines)
}

/// Nothing is known of Gavel's jobs but their rates alone: what the learner makes of names only.
pub(super) fn gavel(data: &Data) -> Result<Vec<Line>, Error> {
    const PART: &str = "gavel";
    let mut lines = Vec::new();
    for worker in ["v100", "p100", "k80"] {
        let set = others::gavel(&data.shared.join("stanford-futuredata__gavel"), worker)?;
        let label = format!("slowdown of {} pairs on {worker}, no features", set.rows.len());
        let half = set.rows.len() / 2;
        lines.push(
            Line::new(PART, &label, "mean of the others", MAPE).of(&baselines::constant_errors(&set), 1),
        );
        for observations in [50, half] {
            let label = format!("{label}, after {observations} observations");
            lines.extend(errors_lines(PART, &label, "ours", &set.online(observations, 3), 3));
        }
    }
    let skipped = [
        ("MISO", "its rows have neither names nor rates alone: iteration times are normalised by job"),
        ("gpu-lets", "it publishes utilisation alone and fitted constants, no pair that was measured"),
    ];
    for (name, why) in skipped {
        lines.push(Line::new(PART, name, "-", "").note(format!("skipped: {why}")));
    }
    Ok(lines)
}
