//! What was published: from the artifact's logs, case by case, or as means where the logs were not kept here.

use super::super::Reported;
use super::super::score::Scored;

/// Names of this crate's policies in the logs: a model, or a column beside KACE's.
const NAMES: [(&str, Source); 11] = [
    ("KACE LR", Source::Model("KACE")),
    ("KACE RF", Source::Model("RF")),
    ("KACE NN", Source::Model("NN")),
    ("Xu et al. (offline only)", Source::Model("hotcloud")),
    ("best rule (hindsight)", Source::Best(&["rule_memcap", "rule_sm_pct", "rule_mem_pct"])),
    ("MEMCAP", Source::Best(&["rule_memcap"])),
    ("SM%", Source::Best(&["rule_sm_pct"])),
    ("MEM%", Source::Best(&["rule_mem_pct"])),
    ("NCU-SM rule", Source::Best(&["rule_ncu_sm_thr"])),
    ("solo-throughput rule", Source::Best(&["rule_solo_thr"])),
    ("random", Source::Best(&["random_over_oracle"])),
];

enum Source {
    Model(&'static str),
    Best(&'static [&'static str]),
}

/// Means of experiments whose cases are not in the logs at hand, percent: experiment, policy, mean. From the
/// artifact's logs as well.
const MEANS: &[(&str, &str, f64)] = &[
    ("k4_batch4", "KACE LR", 82.7),
    ("k4_batch4", "MEMCAP", 60.8),
    ("k4_batch4", "SM%", 19.8),
    ("k4_batch4", "MEM%", 85.0),
    ("k4_batch4", "random", 39.7),
    ("k4_batch4", "NCU-SM rule", 80.2),
    ("k4_batch4", "solo-throughput rule", 65.3),
    ("k4_batch2_only", "KACE LR", 47.9),
    ("k4_batch2_only", "MEMCAP", 55.0),
    ("k4_batch2_only", "SM%", 23.2),
    ("k4_batch2_only", "MEM%", 62.2),
    ("k4_batch2_only", "random", 42.4),
    ("k4_batch2_only", "NCU-SM rule", 93.8),
    ("k2_gpt2", "KACE LR", 93.7),
    ("k2_gpt2", "MEMCAP", 75.2),
    ("k2_gpt2", "SM%", 28.5),
    ("k2_gpt2", "MEM%", 84.4),
    ("k2_gpt2", "random", 50.8),
    ("k2_gpt2", "NCU-SM rule", 96.2),
];

/// What the logs say of one case; `None`: nothing.
pub(super) fn of_case(logs: &[Reported], experiment: &str, policy: &str, case: &Scored) -> Option<f64> {
    let (_, source) = NAMES.iter().find(|(name, _)| *name == policy)?;
    let model = match source {
        Source::Model(model) => model,
        Source::Best(_) => "KACE",
    };
    let line = logs.iter().find(|r| {
        r.experiment == experiment
            && r.model == model
            && r.target == case.target
            && r.n_occur == case.n_occur
            && case.seed.is_none_or(|seed| seed == r.seed)
    })?;
    match source {
        Source::Model(_) => Some(line.ratio),
        Source::Best(columns) => columns
            .iter()
            .map(|c| line.rules.get(*c).copied())
            .collect::<Option<Vec<f64>>>()?
            .into_iter()
            .reduce(f64::max),
    }
}

/// The published mean of an experiment whose cases are not in the logs, percent.
pub(super) fn mean_pct(experiment: &str, policy: &str) -> Option<f64> {
    MEANS.iter().find(|(e, p, _)| (*e, *p) == (experiment, policy)).map(|(.., pct)| *pct)
}
