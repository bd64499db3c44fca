//! `carma predict --observe`: learns from a file of measurements.

use super::{bad, read, read_measured};
use crate::cli::predict::PredictArgs;
use carma_cli::failure::{Failure, Outcome};
use carma_cli::{clean, print, print_json};
use carma_files::{Lock, replace};
use carma_interference::group::{GpuType, Group, Member};
use carma_interference::measured::{Measured, Warm};
use carma_interference::online::{Observed, SlowdownModel};
use carma_interference::profile::Profile;
use serde_json::json;
use std::fmt::Write as _;
use std::path::Path;

/// How names of virtual GPUs begin.
const VIRTUAL: &str = "Virtual ";

/// `--observe`: learns and keeps.
pub(super) fn run(args: &PredictArgs, file: &Path) -> Outcome {
    let Some(path) = &args.model else {
        return Err(Failure::usage("--observe needs --model FILE to keep what is learned"));
    };
    let measured = Measured::read(&read_measured(file)?).map_err(|e| bad(file, &e))?;
    if measured.machine.gpu.starts_with(VIRTUAL) && !args.from_nothing {
        eprintln!(
            "note: {}: measured on a virtual GPU; what {} learns from it is of a model, not of real GPUs of that type. Keep it in a \
             model of its own, with --from-nothing",
            clean(&file.display().to_string()),
            clean(&path.display().to_string())
        );
    }
    // Until it is written: of two at once one would overwrite what the other learned.
    let lock = Lock::hold(path).map_err(|e| {
        Failure::new(format!("{}: cannot be locked while it is changed: {e}", path.display()))
    })?;
    let mut model = if path.exists() {
        SlowdownModel::read(&read(path)?).map_err(|e| bad(path, &e))?
    } else if args.from_nothing {
        SlowdownModel::new()
    } else {
        // As the daemon begins.
        SlowdownModel::shipped()
    };
    let warm = Warm::of(&measured.combinations);
    let gpu = GpuType::named(args.gpu.as_deref().unwrap_or(&measured.machine.gpu));
    let (mut learned, mut known, mut skipped) = (0_u32, 0_u32, Vec::new());
    let windows = measured.combinations.iter().zip(measured.fingerprints(&gpu.name));
    let mut news = Vec::new();
    for (window, fingerprint) in windows.filter(|(w, _)| w.k() > 1) {
        if model.knows(fingerprint) {
            known += 1;
            continue;
        }
        let named = window.members.join(" + ");
        if let Some(why) = &window.failed {
            skipped.push(format!("{named}: {why}"));
            continue;
        }
        if let Some(task) = warm.cold(window).next() {
            skipped.push(format!("{named}: {task} had not warmed up"));
            continue;
        }
        let profiles: Result<Vec<&Profile>, _> =
            window.members.iter().map(|name| measured.profiles.task(name)).collect();
        let profiles = match profiles {
            Ok(profiles) => profiles,
            Err(e) => {
                skipped.push(format!("{named}: {e}"));
                continue;
            }
        };
        let members: Vec<Member<'_>> = profiles
            .iter()
            .enumerate()
            .map(|(i, profile)| Member {
                threads_pct: window.threads_pct.get(i).map(|pct| f64::from(*pct)),
                ..Member::of(profile)
            })
            .collect();
        let some = |values: &[f64]| values.iter().map(|v| Some(*v)).collect();
        let observed = if window.progress.is_empty() {
            Observed::Rates(some(&window.rates))
        } else {
            Observed::Progress(some(&window.progress))
        };
        let group = Group { gpu: &gpu, sharing: window.sharing, members: &members };
        if let Err(e) = group.check() {
            skipped.push(format!("{named}: {e}"));
            continue;
        }
        news.push((named, window.sharing, members, observed, fingerprint));
    }
    // All at once: what is learned does not depend on their order.
    let groups: Vec<(Group<'_>, Observed)> = news
        .iter()
        .map(|(_, sharing, members, observed, _)| {
            (Group { gpu: &gpu, sharing: *sharing, members }, observed.clone())
        })
        .collect();
    let all = model.teach(&groups).map_err(|e| bad(file, &e))?;
    for ((named, .., fingerprint), of) in news.iter().zip(all) {
        if of.used > 0 {
            learned += 1;
            model.remember(*fingerprint);
        }
        skipped.extend(of.skipped.into_iter().map(|why| format!("{named}: {why}")));
    }
    if args.no_classes {
        model.forget_all_classes();
    }
    let text = model.to_json().map_err(|e| Failure::new(e.to_string()))?;
    replace(path, text.as_bytes())
        .map_err(|e| Failure::new(format!("{}: cannot be written: {e}", path.display())))?;
    drop(lock);
    if args.json {
        let version = carma_api::VERSION;
        let said = json!({"version": version, "learned": learned, "known": known, "skipped": skipped, "model": path});
        print_json(&said)?;
    } else {
        let name = path.display().to_string();
        let mut text = format!("learned from {learned} windows; {} has it\n", clean(&name));
        if known > 0 {
            let _ = writeln!(text, "{known} more windows were known already");
        }
        for why in &skipped {
            let _ = writeln!(text, "skipped: {}", clean(why));
        }
        print(&text)?;
    }
    Ok(0)
}
