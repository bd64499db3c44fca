//! How many steps a task did in a window, from the times at which it finished them.

use carma_interference::profile::RateSource;

/// Steps in a window.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Counted {
    /// With fractions at both edges.
    pub(super) steps: f64,
    /// A second.
    pub(super) per_s: f64,
    /// Whether the task counts its steps, or what it prints is read.
    pub(super) source: RateSource,
}

/// Counts. `times_s`: when each step was finished, seconds since the task began with the first; ascending.
/// Steps follow each other without a gap, so that one that crosses an edge counts by its part.
///
/// The rate is up to the last step that was finished in the window, if that is not before its middle: a step
/// still under way at the end is finished faster than it began, because the others stop then.
///
/// # Errors
/// Times that run backwards.
pub(super) fn count(times_s: &[f64], from: f64, until: f64) -> Result<Counted, String> {
    let mut before = 0.0;
    for (number, &time) in times_s.iter().enumerate() {
        if time.is_nan() || time < before {
            return Err(format!(
                "its counter ran backwards: step {} at {before} s, step {} at {time} s",
                number,
                number + 1
            ));
        }
        before = time;
    }
    let within = |until: f64| {
        let mut steps = 0.0;
        let mut start = 0.0_f64;
        for &end in times_s {
            let part = end.min(until) - start.max(from);
            if end > start {
                steps += part.max(0.0) / (end - start);
            } else if (from..until).contains(&end) {
                // Several were seen finished at once.
                steps += 1.0;
            }
            start = end;
        }
        steps
    };
    let last = times_s.iter().rev().copied().find(|time| *time <= until).unwrap_or(0.0);
    let end = if last - from >= (until - from) / 2.0 { last } else { until };
    Ok(Counted { steps: within(until), per_s: within(end) / (end - from), source: RateSource::Heartbeat })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(every: f64, until: f64) -> Vec<f64> {
        let mut times = Vec::new();
        while times.last().is_none_or(|last| *last < until) {
            times.push(every * (times.len() + 1) as f64);
        }
        times
    }

    #[test]
    fn steady_steps_give_their_rate_wherever_the_window_lies() {
        for every in [0.001, 0.03, 0.25, 0.4] {
            for from in [0.0, 0.31, 0.77] {
                let counted = count(&steps(every, from + 1.5), from, from + 1.5).unwrap();
                assert!((counted.per_s * every - 1.0).abs() < 1e-6, "{every} {from} {counted:?}");
                assert!((counted.steps * every - 1.5).abs() < 1e-6, "{every} {from} {counted:?}");
            }
        }
    }

    #[test]
    fn a_step_longer_than_the_window_counts_by_its_part() {
        let counted = count(&[4.0], 0.5, 1.5).unwrap();
        assert_eq!((counted.steps, counted.per_s), (0.25, 0.25));
        assert_eq!(count(&[], 0.5, 1.5).unwrap().per_s, 0.0);
    }

    #[test]
    fn a_last_step_that_the_others_left_alone_does_not_count_for_the_rate() {
        // A second each while the others run, until 3.5; then four times as fast.
        let counted = count(&[1.0, 2.0, 3.0, 3.625], 0.5, 3.5).unwrap();
        assert_eq!(counted.per_s, 1.0);
    }

    #[test]
    fn a_counter_that_runs_backwards_is_named() {
        assert!(count(&[0.1, 0.3, 0.2], 0.0, 1.0).unwrap_err().contains("step 2 at 0.3 s, step 3 at 0.2 s"));
        assert!(count(&[f64::NAN], 0.0, 1.0).is_err());
        assert!(count(&[-1.0], 0.0, 1.0).is_err());
        // Seen at once is not backwards.
        assert_eq!(count(&[0.5, 0.5, 1.0], 0.0, 1.0).unwrap().steps, 3.0);
    }
}
