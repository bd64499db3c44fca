//! The policies of AEGIS, CARMA's successor. Its traces are not public: T1 and T2 stand in for them.

use super::{Bench, SEEDS, mean};
use crate::Error;
use crate::traces::preset;
use serde::Serialize;

/// The table, and how loaded the replayed traces are.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Successor {
    /// The policies.
    pub rows: Vec<Replayed>,
    /// Mean wait under exclusive, seconds, for each trace.
    pub exclusive_wait_s: [f64; 3],
}

/// One policy.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Replayed {
    /// As the paper calls it.
    pub policy: &'static str,
    /// As carma calls it.
    pub preset: &'static str,
    /// As published.
    pub published: Published,
    /// As simulated.
    pub simulated: Simulated,
}

/// Published: geometric means over three traces, exclusive = 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Published {
    /// From the first arrival to the last end.
    pub makespan: f64,
    /// Mean wait.
    pub wait: f64,
    /// Mean time on GPUs.
    pub run: f64,
    /// Attempts out of memory on the traces from Philly, Saturn and Venus; `None`: not published.
    pub oom: [Option<u32>; 3],
}

/// Simulated, for each trace, exclusive = 1.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Simulated {
    /// From the first arrival to the last end.
    pub makespan: [f64; 3],
    /// Geometric mean of makespan over T1 and T2.
    pub makespan_geomean: f64,
    /// Mean wait.
    pub wait: [f64; 3],
    /// Mean time on GPUs.
    pub run: [f64; 3],
    /// Mean of attempts out of memory.
    pub oom: [f64; 3],
}

/// Makespan, wait, time on GPUs; attempts out of memory.
type Figures = ([f64; 3], [Option<u32>; 3]);

const PUBLISHED: [(&str, &str, Figures); 11] = [
    ("AEGIS + true peak", "aegis-oracle", ([0.712, 0.442, 1.79], [Some(0), Some(0), Some(0)])),
    ("AEGIS, no estimator", "aegis", ([0.730, 0.494, 1.55], [Some(3), Some(3), Some(6)])),
    ("AEGIS + Horus formula", "aegis-est:horus", ([0.733, 0.520, 1.45], [Some(1), Some(2), Some(0)])),
    ("AEGIS + GPUMemNet", "aegis-est:gpumemnet", ([0.737, 0.510, 1.58], [Some(0), Some(1), Some(0)])),
    ("AEGIS + FakeTensor", "aegis-est:faketensor", ([0.794, 0.543, 1.48], [Some(0), Some(0), Some(0)])),
    ("OR-LUG", "or-lug", ([0.755, 0.449, 1.68], [Some(3), Some(5), None])),
    ("OR-RR, no gate", "or-rr", ([0.776, 0.501, 1.69], [Some(8), Some(7), None])),
    ("MAGM, no gate", "magm", ([0.732, 0.473, 1.82], [Some(6), Some(6), None])),
    ("LUG, no gate", "lug", ([0.770, 0.476, 1.74], [Some(7), Some(6), None])),
    ("Lucid", "lucid", ([0.865, 0.745, 1.09], [Some(0), Some(0), Some(0)])),
    ("Horus", "horus", ([0.924, 0.852, 1.03], [Some(0), Some(1), Some(0)])),
];

pub(super) fn table(bench: &Bench) -> Result<Successor, Error> {
    let compared = bench.compared()?;
    let mut rows = Vec::new();
    for (policy, name, ([makespan, wait, run], oom)) in PUBLISHED {
        let mut simulated = Simulated::default();
        for (at, (workload, alone)) in compared.iter().enumerate() {
            let runs = bench.seeds(workload, &preset(name)?, SEEDS)?;
            simulated.makespan[at] = mean(&runs, |s| s.makespan_s) / alone.makespan_s;
            simulated.wait[at] = mean(&runs, |s| s.wait_s.mean) / alone.wait_s.mean;
            simulated.run[at] = mean(&runs, |s| s.exec_s.mean) / alone.exec_s.mean;
            simulated.oom[at] = mean(&runs, |s| s.oom as f64);
        }
        simulated.makespan_geomean = (simulated.makespan[0] * simulated.makespan[1]).sqrt();
        let published = Published { makespan, wait, run, oom };
        rows.push(Replayed { policy, preset: name, published, simulated });
    }
    Ok(Successor { rows, exclusive_wait_s: compared.map(|(_, alone)| alone.wait_s.mean) })
}
