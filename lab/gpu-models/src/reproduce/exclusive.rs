//! Exclusive GPUs, first in, first out, without overhead: what the simulator has to say to the minute.

use super::{Bench, first};
use crate::Error;
use crate::traces::{H60, M90, T1, T2, preset};
use serde::Serialize;

/// One trace.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Exclusive {
    /// The trace's short name.
    pub trace: &'static str,
    /// Computed apart from carma, in round numbers, from tasks' times alone and their arrivals.
    pub closed_form: Times,
    /// As simulated.
    pub simulated: Times,
}

/// How long the jobs of a trace take.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Times {
    /// From the first arrival to the last end, hours.
    pub makespan_h: f64,
    /// Mean wait, minutes.
    pub wait_min: f64,
    /// Mean time on GPUs, minutes.
    pub run_min: f64,
    /// Mean time from arrival to end, minutes.
    pub jct_min: f64,
}

/// Makespan in hours; wait, run and completion in minutes.
const CLOSED_FORM: [(&str, &str, [f64; 4]); 4] = [
    (T1, "T1", [7.21, 112.0, 24.3, 136.0]),
    (T2, "T2", [8.68, 76.0, 28.7, 104.0]),
    (H60, "H60", [9.73, 205.0, 34.2, 239.0]),
    (M90, "M90", [11.04, 166.0, 24.0, 190.0]),
];

pub(super) fn rows(bench: &Bench) -> Result<Vec<Exclusive>, Error> {
    let policy = preset("exclusive")?;
    let mut rows = Vec::new();
    for (name, trace, [makespan_h, wait_min, run_min, jct_min]) in CLOSED_FORM {
        let s = first(bench.seeds(&bench.traces.workload(name)?, &policy, 1)?)?;
        let simulated = Times {
            makespan_h: s.makespan_s / 3600.0,
            wait_min: s.wait_s.mean / 60.0,
            run_min: s.exec_s.mean / 60.0,
            jct_min: s.jct_s.mean / 60.0,
        };
        let closed_form = Times { makespan_h, wait_min, run_min, jct_min };
        rows.push(Exclusive { trace, closed_form, simulated });
    }
    Ok(rows)
}
