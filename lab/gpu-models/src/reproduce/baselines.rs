//! Policies of others, for which the papers print no numbers on these traces.

use super::{Bench, SEEDS, mean};
use crate::{Error, traces};
use carma_core::model::SharingMode;
use carma_sim::event::Setup;
use carma_sim::event::baselines::{Baseline, NOT_TASK_LEVEL};
use serde::Serialize;

/// The table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Baselines {
    /// What is played.
    pub played: Vec<Played>,
    /// What is not.
    pub not_played: Vec<NotPlayed>,
}

/// One baseline, for each trace; exclusive = 1 but for the slowdown.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Played {
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub about: &'static str,
    /// From the first arrival to the last end.
    pub makespan: [f64; 3],
    /// Mean wait.
    pub wait: [f64; 3],
    /// Mean time from arrival to end.
    pub jct: [f64; 3],
    /// Mean slowdown.
    pub slowdown: [f64; 3],
}

/// A system that cannot be played with tasks as the unit.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NotPlayed {
    /// Its name.
    pub name: &'static str,
    /// What it does, and what playing it would take.
    pub needed: &'static str,
}

pub(super) fn table(bench: &Bench) -> Result<Baselines, Error> {
    let compared = bench.compared()?;
    let mut played = Vec::new();
    for baseline in Baseline::ALL {
        let mut row = Played { name: baseline.name(), about: baseline.about(), ..Played::default() };
        for (at, (workload, alone)) in compared.iter().enumerate() {
            let setups: Vec<Setup> =
                (1..=SEEDS).map(|seed| Setup::for_baseline(baseline, SharingMode::Mps, seed)).collect();
            let runs = traces::runs(workload, &bench.cluster, &setups, bench.threads)?;
            row.makespan[at] = mean(&runs, |s| s.makespan_s) / alone.makespan_s;
            row.wait[at] = mean(&runs, |s| s.wait_s.mean) / alone.wait_s.mean;
            row.jct[at] = mean(&runs, |s| s.jct_s.mean) / alone.jct_s.mean;
            row.slowdown[at] = mean(&runs, |s| s.slowdown.mean);
        }
        played.push(row);
    }
    let not_played = NOT_TASK_LEVEL.iter().map(|(name, needed)| NotPlayed { name, needed }).collect();
    Ok(Baselines { played, not_played })
}
