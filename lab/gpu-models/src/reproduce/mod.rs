//! What is published of CARMA and AEGIS against what the simulator says. `carma lab reproduce` prints it.
//!
//! Nothing here is tuned: every simulated number comes from a preset and the built-in GPU models.

mod baselines;
mod crashes;
mod exclusive;
mod headline;
mod successor;

pub use baselines::{Baselines, NotPlayed, Played};
pub use crashes::{Crashes, Precondition};
pub use exclusive::{Exclusive, Times};
pub use headline::{Headline, Totals, Variant};
pub use successor::{Published, Replayed, Simulated, Successor};

use crate::Error;
use crate::traces::{self, CLUSTER, H60, T1, T2, Traces};
use carma_core::policy::Policy;
use carma_hardware::GpuTypes;
use carma_sim::event::Cluster;
use carma_sim::event::outcome::Summary;
use carma_sim::report::seeds::Interval;
use carma_sim::trace::Workload;
use serde::Serialize;
use std::path::Path;

/// Seeds of the start-up times behind every mean.
pub const SEEDS: u64 = 20;
/// Seeds behind the counts of crashes.
pub const CRASH_SEEDS: u64 = 100;
/// The machine that is simulated.
pub const MACHINE: &str = CLUSTER;
/// The tables, in their order.
pub const TABLES: [&str; 5] = ["exclusive", "headline", "successor", "baselines", "crashes"];

/// One table. Where it has a number for each trace, they are T1, T2 and H60.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "table", rename_all = "snake_case")]
pub enum Table {
    /// Exclusive GPUs, first in, first out, without overhead.
    Exclusive {
        /// One row a trace.
        rows: Vec<Exclusive>,
    },
    /// The headline of CARMA's first version.
    Headline(Headline),
    /// AEGIS' policies.
    Successor(Successor),
    /// Policies of others, for which nothing is published on these traces.
    Baselines(Baselines),
    /// Out-of-memory crashes by precondition and by order of arrival.
    Crashes {
        /// One row a precondition.
        rows: Vec<Precondition>,
    },
}

/// What the tables are made with.
#[derive(Debug)]
pub struct Bench {
    traces: Traces,
    cluster: Cluster,
    /// Threads that simulate.
    pub threads: usize,
}

impl Bench {
    /// Reads the traces, from `carma/` in the folder that is named or in `../shared/data` below the folder where the
    /// program was started.
    ///
    /// # Errors
    /// They are not there, or cannot be read.
    pub fn open(named: Option<&Path>) -> Result<Self, Error> {
        let folder = named.unwrap_or(Path::new("../shared/data")).join("carma");
        if !folder.is_dir() {
            return Err(Error(format!("CARMA's traces are not at {}", folder.display())));
        }
        Ok(Self {
            traces: Traces::read(&folder)?,
            cluster: Cluster::parse(CLUSTER, &GpuTypes::built_in()).map_err(|e| Error(e.to_string()))?,
            threads: traces::threads(),
        })
    }

    /// Makes the table of this name.
    ///
    /// # Errors
    /// There is no such table; the trace that it replays is not in the file.
    pub fn table(&self, name: &str) -> Result<Table, Error> {
        Ok(match name {
            "exclusive" => Table::Exclusive { rows: exclusive::rows(self)? },
            "headline" => Table::Headline(headline::table(self)?),
            "successor" => Table::Successor(successor::table(self)?),
            "baselines" => Table::Baselines(baselines::table(self)?),
            "crashes" => Table::Crashes { rows: crashes::rows(self)? },
            _ => return Err(Error(format!("no table `{name}`; there are {}", TABLES.join(", ")))),
        })
    }

    /// One policy on one workload, over seeds.
    fn seeds(&self, workload: &Workload, policy: &Policy, seeds: u64) -> Result<Vec<Summary>, Error> {
        traces::runs(workload, &self.cluster, &traces::seeds(policy, seeds), self.threads)
    }

    /// The three traces that most policies are compared on, each with what exclusive GPUs need for it.
    fn compared(&self) -> Result<[(Workload, Summary); 3], Error> {
        let exclusive = traces::preset("exclusive")?;
        let of = |name| {
            let workload = self.traces.workload(name)?;
            // Nothing is shared, so that no seed matters.
            let alone = first(self.seeds(&workload, &exclusive, 1)?)?;
            Ok((workload, alone))
        };
        Ok([of(T1)?, of(T2)?, of(H60)?])
    }
}

fn first(runs: Vec<Summary>) -> Result<Summary, Error> {
    runs.into_iter().next().ok_or_else(|| Error("nothing was simulated".to_owned()))
}

fn interval(runs: &[Summary], of: fn(&Summary) -> f64) -> Interval {
    Interval::of(runs.iter().map(of))
}

fn mean(runs: &[Summary], of: fn(&Summary) -> f64) -> f64 {
    interval(runs, of).mean
}
