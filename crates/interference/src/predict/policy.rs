//! Ranking of groups by name of a policy: ours, the rules it is compared with, KACE's.
//!
//! Every policy gives a group one number, the higher the better, from solo profiles alone; one whose
//! features are missing says which.

use crate::group::{Group, Mode, Objective};
use crate::kace::row::{Collocation, MEM_BUSY, MEMCAP, Member as KaceMember, NCU_SM, SM_BUSY, SOLO};
use crate::kace::trained::Trained;
use crate::online::{SlowdownModel, steps_per_s};
use crate::profile::{Metrics, Profile, Stat};
use crate::share::{Demand, Tenant, share};
use std::fmt;

/// Names of the policies, as the command line has them.
pub const NAMES: [&str; 9] = ["online", "share", "kace", "xu", "memcap", "sm", "mem", "random", "oracle"];

/// A policy and what it knows.
#[derive(Debug, Clone)]
pub enum Policy<'a> {
    /// Our learner.
    Online(&'a SlowdownModel),
    /// The law of sharing with the constants of the type of GPU: nothing learned.
    Share,
    /// KACE with a model that `carma lab kace train` wrote.
    Kace(&'a Trained),
    /// The smallest sum of memory (KACE's MEMCAP).
    Memcap,
    /// The highest sum of nvidia-smi's GPU utilisation (KACE's SM%).
    Sm,
    /// The lowest sum of nvidia-smi's memory utilisation (KACE's MEM%).
    Mem,
    /// All alike.
    Random,
}

/// Which feature of which task a policy lacks, or why it cannot answer at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lacks(pub String);

impl fmt::Display for Lacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Lacks {}

/// Mean of nvidia-smi's GPU utilisation, else GRACT, which it counts, percent.
fn busy(m: &Metrics) -> Option<f64> {
    m.gpu_util_pct.or(m.gract_pct).map(|s| s.mean)
}

/// nvidia-smi's memory utilisation, else DRAM activity, percent.
fn memory_busy(m: &Metrics) -> Option<f64> {
    m.mem_util_pct.or(m.drama_pct).map(|s| s.mean)
}

fn needs(profile: &Profile, what: &str, value: Option<f64>, policy: &str) -> Result<f64, Lacks> {
    value.filter(|v| v.is_finite()).ok_or_else(|| {
        Lacks(format!(
            "policy {policy} needs {what} of every task; the profile of `{}` has none: profile it again, or take \
             another policy",
            profile.name
        ))
    })
}

impl Policy<'_> {
    /// Value of a group, higher is better.
    ///
    /// # Errors
    /// A feature is missing, or the group makes no sense.
    pub fn score(&self, group: &Group<'_>, objective: Objective) -> Result<f64, Lacks> {
        let sum = |what: &str, policy: &str, of: fn(&Profile) -> Option<f64>| {
            let values = group.members.iter().map(|m| needs(m.profile, what, of(m.profile), policy));
            values.sum::<Result<f64, Lacks>>()
        };
        match self {
            Self::Online(model) => {
                let forecast = model.predict(group).map_err(|e| Lacks(e.to_string()))?;
                if objective == Objective::Throughput
                    && let Some(task) = forecast.tasks.iter().find(|t| t.rate.is_none())
                {
                    return Err(Lacks(format!("throughput needs a solo rate of `{}`", task.name)));
                }
                Ok(forecast.value(objective))
            }
            Self::Share => {
                let progress = share_progress(group)?;
                Ok(match objective {
                    Objective::WeightedSpeedup => progress.iter().sum(),
                    Objective::MaxMin => progress.into_iter().fold(f64::INFINITY, f64::min),
                    Objective::Throughput => {
                        let rates = group.members.iter().zip(progress).map(|(m, p)| {
                            let rate = m.profile.rate.as_ref().map(|r| r.per_s);
                            Ok(p * needs(m.profile, "a solo rate", rate, "share")?)
                        });
                        rates.sum::<Result<f64, Lacks>>()?
                    }
                })
            }
            Self::Kace(trained) => {
                let row = kace_row(&trained.features, group)?;
                trained.forecast(&row).map_err(|e| Lacks(format!("policy kace: {e}")))
            }
            Self::Memcap => {
                Ok(-sum("memory (`memory_mib`)", "memcap", |p| p.metrics.memory_mib.map(|s| s.mean))?)
            }
            Self::Sm => sum("GPU utilisation (`gpu_util_pct` or `gract_pct`)", "sm", |p| busy(&p.metrics)),
            Self::Mem => {
                let what = "memory utilisation (`mem_util_pct` or `drama_pct`)";
                Ok(-sum(what, "mem", |p| memory_busy(&p.metrics))?)
            }
            Self::Random => Ok(0.0),
        }
    }
}

/// Progress by the law of sharing as the simulator has it ([`crate::share`]).
///
/// # Errors
/// A task whose GPU or SM activity is not known.
pub fn share_progress(group: &Group<'_>) -> Result<Vec<f64>, Lacks> {
    let part = |stat: Option<Stat>| stat.map_or(0.0, |s| s.mean / 100.0);
    let tenants = group.members.iter().map(|m| {
        let metrics = &m.profile.metrics;
        let what = "GPU utilisation or SM activity";
        let any = busy(metrics).or(metrics.smact_pct.map(|s| s.mean));
        let gract = needs(m.profile, what, any, "share")? / 100.0;
        let demand = Demand {
            gract,
            // Where only nvidia-smi's number is known it stands for SMs as well.
            sm: metrics.smact_pct.map_or(gract, |s| s.mean / 100.0),
            dram: part(metrics.drama_pct),
            tensor: part(metrics.tensor_pct),
            pcie: 0.0,
        };
        let steps_per_s = m.profile.rate.as_ref().and_then(steps_per_s);
        let tenant = Tenant { steps_per_s, ..Tenant::new(demand) };
        Ok(match m.threads_pct {
            Some(pct) if group.sharing == Mode::Mps && pct < 100.0 => {
                tenant.with_threads(pct, &m.profile.curve())
            }
            _ => tenant,
        })
    });
    let tenants: Vec<Tenant> = tenants.collect::<Result<_, Lacks>>()?;
    Ok(share(group.sharing, &tenants, &group.gpu.capacities).progress)
}

/// A group as a row of KACE's tables with these features. Throughput together is not known: 0.
///
/// # Errors
/// A feature that the profile of a task lacks, or that profiles do not have.
pub fn kace_row(features: &[String], group: &Group<'_>) -> Result<Collocation, Lacks> {
    let one = |profile: &Profile, name: &str| {
        let m = &profile.metrics;
        let kernels = profile.kernels;
        let value = match name {
            SOLO => profile.rate.as_ref().map(|r| r.per_s),
            SM_BUSY => busy(m),
            MEM_BUSY => memory_busy(m),
            MEMCAP => m.memory_mib.map(|s| s.mean / 1024.0),
            NCU_SM => kernels.map(|k| k.sm_throughput_pct),
            "_Threads" => kernels.map(|k| k.threads),
            "_DRAM Throughput" => kernels.map(|k| k.dram_throughput_pct),
            "_Memory Throughput" => kernels.map(|k| k.memory_throughput_pct),
            "_Registers" => kernels.map(|k| k.registers),
            "_Static Shared Memory" => kernels.map(|k| k.static_shared_memory),
            _ => {
                return Err(Lacks(format!(
                    "the model wants `{name}`, which solo profiles do not hold; train one on other features"
                )));
            }
        };
        let hint = if name.starts_with('_') { " (`carma profile --kernels`)" } else { "" };
        needs(profile, &format!("`{name}`{hint}"), value, "kace")
    };
    let members = group.members.iter().map(|m| {
        let values = features.iter().map(|name| one(m.profile, name)).collect::<Result<Vec<f64>, Lacks>>()?;
        Ok(KaceMember { workload: m.profile.name.clone(), throughput: 0.0, features: values })
    });
    Ok(Collocation { members: members.collect::<Result<_, Lacks>>()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::{GpuType, Member};
    use crate::kace::features::{Aggregation, Normalisation, Scale, Target};
    use crate::kace::linear::Linear;
    use crate::kace::trained::Regression;
    use crate::profile::Profiles;

    #[test]
    fn a_score_of_kace_is_a_number_or_refused() {
        let mut trained = Trained {
            features: vec![SM_BUSY.to_owned()],
            aggregation: Aggregation::Artifact,
            target: Target::SumThroughput,
            normalisation: Normalisation::Honest,
            rows: 3,
            scale: Scale { mean: vec![50.0], deviation: vec![10.0] },
            target_scale: Scale { mean: vec![7.0], deviation: vec![2.0] },
            model: Regression::Lr(Linear { intercept: 0.0, weights: vec![0.5] }),
        };
        let profiles = r#"{"version": 1, "tasks": [{"name": "a", "metrics": {"gpu_util_pct": 90}}]}"#;
        let profiles = Profiles::read(profiles).unwrap();
        let members = [Member::of(&profiles.tasks[0])];
        let group = Group { gpu: &GpuType::named("H200"), sharing: Mode::Mps, members: &members };
        assert_eq!(Policy::Kace(&trained).score(&group, Objective::Throughput), Ok(11.0));
        (trained.target_scale.mean, trained.target_scale.deviation) = (vec![f64::MAX], vec![f64::MAX]);
        let error = Policy::Kace(&trained).score(&group, Objective::Throughput).unwrap_err().to_string();
        assert!(error.contains("policy kace: a: ") && error.contains("no finite number"), "{error}");
    }
}
