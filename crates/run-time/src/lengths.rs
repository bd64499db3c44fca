//! Runs of one command that differ in their number of steps or epochs.

use super::{Kept, LONGEST_S, Length, Run};

/// Takes those runs out that differ from a job of this length in it alone, and scales their times by it.
pub(crate) fn take_scaled(runs: &mut Vec<(Kept, f64)>, length: Length) -> Vec<(Kept, f64)> {
    let of = |kept: &Kept| kept.length.filter(|l| l.of == length.of && l.n > 0).map(|l| l.n);
    let mut alike: Vec<(Kept, f64)> = runs.extract_if(.., |(kept, _)| of(kept).is_some()).collect();
    let ended = alike.iter().filter(|(kept, _)| !kept.run.cut);
    let start_up_s = start_up_s(ended.filter_map(|(kept, _)| Some((of(kept)?, kept.run.seconds))).collect());
    for (kept, _) in &mut alike {
        let times = of(kept).map_or(1.0, |n| length.n as f64 / n as f64);
        let seconds = kept.run.seconds as f64;
        let start_up_s = start_up_s.min(seconds);
        let seconds = (start_up_s + (seconds - start_up_s) * times).round() as u64;
        kept.run = Run { seconds: seconds.clamp(1, LONGEST_S), ..kept.run };
    }
    alike
}

/// What runs take however long they are, seconds: where the line through the shortest and the longest of them begins. Runs of one length do
/// not tell; then it is 0. `runs`: iterations, seconds.
fn start_up_s(mut runs: Vec<(u64, u64)>) -> f64 {
    runs.sort_unstable();
    let Some(((least, _), (most, _))) = runs.first().copied().zip(runs.last().copied()) else { return 0.0 };
    if least == most {
        return 0.0;
    }
    let median = |n: u64| {
        let of = runs.iter().filter(|run| run.0 == n).map(|run| run.1 as f64);
        carma_stats::median(of).unwrap_or_default()
    };
    let (short_s, long_s) = (median(least), median(most));
    let per_iteration = ((long_s - short_s) / (most - least) as f64).max(0.0);
    (short_s - per_iteration * least as f64).max(0.0)
}
