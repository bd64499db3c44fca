//! KACE's tables as data sets, and our predictor as a scorer of its protocols.

use super::set::{Set, Together};
use crate::kace::protocol::{Case, is_sound};
use crate::kace::score::{Fitted, Scorer};
use crate::kace::table::{Collocation, MEM_BUSY, MEMCAP, Name, SM_BUSY, SOLO, Table};
use crate::kace::{Artifact, Error};
use carma_interference::group::{GpuType, Group, Member, Mode};
use carma_interference::online::{Observed, SlowdownModel};
use carma_interference::profile::{Kernels, Metrics, Profile, Rate, Stat};
use std::collections::BTreeMap;

/// The V100 as a GPU that nobody has measured: nothing that was fitted to these rows goes in.
pub(crate) fn gpu() -> GpuType {
    GpuType::named("unmeasured Volta 32GB")
}

/// Columns of a table that make a profile.
pub(crate) struct Columns {
    solo: usize,
    sm: usize,
    mem: usize,
    memcap: usize,
    kernels: [usize; 6],
    /// Whether Nsight Compute's features are used.
    nsight: bool,
}

impl Columns {
    pub(crate) fn of(table: &Table, nsight: bool) -> Result<Self, Error> {
        let kernel = |name: &str| table.feature(name);
        Ok(Self {
            solo: table.feature(SOLO)?,
            sm: table.feature(SM_BUSY)?,
            mem: table.feature(MEM_BUSY)?,
            memcap: table.feature(MEMCAP)?,
            kernels: [
                kernel("_Threads")?,
                kernel("_Compute (SM) Throughput")?,
                kernel("_DRAM Throughput")?,
                kernel("_Memory Throughput")?,
                kernel("_Registers")?,
                kernel("_Static Shared Memory")?,
            ],
            nsight,
        })
    }

    /// nvidia-smi's numbers, the rate alone, and what Nsight Compute saw.
    pub(crate) fn profile(&self, workload: &str, features: &[f64]) -> Profile {
        let at = |column: usize| features.get(column).copied().unwrap_or(f64::NAN);
        let positive = |value: f64| Some(value).filter(|v| v.is_finite() && *v > 0.0);
        let [threads, sm, dram, memory, registers, shared] = self.kernels.map(at);
        Profile {
            name: workload.to_owned(),
            // Where it was measured is not known: the learner may doubt it.
            rate: positive(at(self.solo)).map(|per_s| Rate {
                per_s,
                unit: Some("items".into()),
                ..Rate::default()
            }),
            metrics: Metrics {
                gpu_util_pct: positive(at(self.sm)).map(Stat::of),
                mem_util_pct: positive(at(self.mem)).map(Stat::of),
                memory_mib: positive(at(self.memcap)).map(|gb| Stat::of(gb * 1024.0)),
                ..Metrics::default()
            },
            kernels: self.nsight.then_some(Kernels {
                threads,
                sm_throughput_pct: sm,
                dram_throughput_pct: dram,
                memory_throughput_pct: memory,
                registers,
                static_shared_memory: shared,
            }),
            ..Profile::default()
        }
    }
}

/// Our predictor on KACE's protocols: learns from the training rows at once, and scores by predicted sum of throughput.
pub(crate) struct Online<'a> {
    pub columns: &'a Columns,
    pub gpu: GpuType,
}

struct OnlineFitted<'a> {
    online: &'a Online<'a>,
    model: SlowdownModel,
}

impl Online<'_> {
    fn profiles(&self, row: &Collocation) -> Vec<Profile> {
        row.members.iter().map(|m| self.columns.profile(&m.workload, &m.features)).collect()
    }
}

impl Scorer for Online<'_> {
    fn fit<'s>(&'s self, train: &[&Collocation]) -> Result<Box<dyn Fitted + 's>, Error> {
        let profiles: Vec<Vec<Profile>> = train.iter().map(|row| self.profiles(row)).collect();
        let members: Vec<Vec<Member<'_>>> =
            profiles.iter().map(|profiles| profiles.iter().map(Member::of).collect()).collect();
        let rows: Vec<(Group<'_>, Observed)> = train
            .iter()
            .zip(&members)
            .map(|(row, members)| {
                let rates = row.members.iter().map(|m| Some(m.throughput)).collect();
                (Group { gpu: &self.gpu, sharing: Mode::Mps, members }, Observed::Rates(rates))
            })
            .collect();
        let mut model = SlowdownModel::new();
        model.teach(&rows).map_err(|e| Error::new("the training rows", e.to_string()))?;
        Ok(Box::new(OnlineFitted { online: self, model }))
    }
}

impl Fitted for OnlineFitted<'_> {
    fn scores(&self, case: &Case<'_>) -> Result<Vec<f64>, Error> {
        let score = |row: &&Collocation| {
            let profiles = self.online.profiles(row);
            let members: Vec<Member<'_>> = profiles.iter().map(Member::of).collect();
            let group = Group { gpu: &self.online.gpu, sharing: Mode::Mps, members: &members };
            let bad =
                |e: carma_interference::group::BadGroup| Error::new(row.key().join(" + "), e.to_string());
            let forecast = self.model.predict(&group).map_err(bad)?;
            Ok(forecast.value(carma_interference::group::Objective::Throughput))
        };
        case.test.iter().map(score).collect()
    }
}

/// A table's rows of sound workloads, as progress over the solo rate.
pub(crate) fn sound_set(table: &Table, nsight: bool) -> Result<Set, Error> {
    let columns = Columns::of(table, nsight)?;
    let mut index: BTreeMap<&str, usize> = BTreeMap::new();
    let mut set =
        Set { gpu: gpu(), tasks: Vec::new(), families: Vec::new(), rows: Vec::new(), sessions: Vec::new() };
    for row in &table.rows {
        if !row.members.iter().all(|m| is_sound(&m.workload)) {
            continue;
        }
        let mut tasks = Vec::new();
        for m in &row.members {
            let at = *index.entry(&m.workload).or_insert_with(|| {
                set.tasks.push(columns.profile(&m.workload, &m.features));
                let name = Name::of(&m.workload);
                set.families.push(name.map_or(m.workload.clone(), |n| format!("{}-{}", n.family, n.task)));
                set.tasks.len() - 1
            });
            tasks.push(at);
        }
        let progress = row.members.iter().map(|m| m.throughput / m.features[columns.solo]).collect();
        set.rows.push(Together { tasks, sharing: Mode::Mps, threads: Vec::new(), progress });
    }
    set.checked(&table.source)
}

/// The tables of pairs, triples and quadruples.
pub(crate) struct Tables {
    pub pairs: Table,
    pub triples: Table,
    pub quadruples: Table,
}

impl Tables {
    pub(crate) fn read(artifact: &Artifact) -> Result<Self, Error> {
        Ok(Self {
            pairs: artifact.pairs()?,
            triples: artifact.triples()?,
            quadruples: artifact.quadruples()?,
        })
    }
}
