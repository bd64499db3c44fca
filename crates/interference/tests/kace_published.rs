//! KACE's published choices, row by row, where the artifact's tables are at hand.

#![allow(clippy::unwrap_used, reason = "a test")]

use carma_interference::kace::predictor::{Kace, Kind, Options};
use carma_interference::kace::protocol::{self, Protocol};
use carma_interference::kace::rules::{RULES, Rule};
use carma_interference::kace::score::{self, Scored};
use carma_interference::kace::{Artifact, Reported};
use std::path::Path;

/// The artifact, or a printed line that it is not there.
fn artifact() -> Option<Artifact> {
    let folder =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/nba556677go__KACE-artifact");
    if folder.is_dir() {
        return Some(Artifact::new(folder));
    }
    eprintln!("skipped: ../shared/data/nba556677go__KACE-artifact is absent");
    None
}

fn reported<'a>(all: &'a [Reported], experiment: &str, model: &str, s: &Scored) -> Option<&'a Reported> {
    all.iter().find(|r| {
        r.experiment == experiment
            && r.model == model
            && r.target == s.target
            && r.n_occur == s.n_occur
            && s.seed.is_none_or(|seed| seed == r.seed)
    })
}

/// Cases, and how many of them are as published.
fn agreement(
    all: &[Reported],
    experiment: &str,
    scored: &[Scored],
    published: impl Fn(&Reported) -> Option<f64>,
) -> (usize, usize) {
    let found: Vec<(f64, f64)> = scored
        .iter()
        .filter_map(|s| Some((s.ratio, published(reported(all, experiment, "KACE", s)?)?)))
        .collect();
    (found.len(), found.iter().filter(|(a, b)| (a - b).abs() < 1e-9).count())
}

fn kace(protocol: &Protocol<'_>, options: Options) -> Vec<Scored> {
    score::evaluate(&Kace::new(protocol.features, options), protocol, 2).unwrap()
}

#[test]
fn linear_regression_chooses_as_published_in_every_case() {
    let Some(artifact) = artifact() else { return };
    let all = artifact.reported().unwrap();
    let pairs = artifact.pairs().unwrap();
    let triples = artifact.triples().unwrap();
    let splits = artifact.splits(&pairs).unwrap();
    for (protocol, experiment, cases) in [
        (protocol::seen(&pairs, &splits), "k2_seen", 910),
        (protocol::unseen("k=2", &pairs).unwrap(), "k2_unseen", 21),
        (protocol::unseen("k=3", &triples).unwrap(), "k3_unseen", 14),
    ] {
        let scored = kace(&protocol, Options::artifact(Kind::Lr));
        assert_eq!(agreement(&all, experiment, &scored, |r| Some(r.ratio)), (cases, cases), "{experiment}");
        for (name, feature, highest) in RULES {
            let column = match name {
                "MEMCAP" => "rule_memcap",
                "SM%" => "rule_sm_pct",
                "MEM%" => "rule_mem_pct",
                "NCU-SM rule" => "rule_ncu_sm_thr",
                _ => "rule_solo_thr",
            };
            let rule = Rule::new(protocol.features, feature, highest).unwrap();
            let scored = score::evaluate(&rule, &protocol, 1).unwrap();
            let (all, same) = agreement(&all, experiment, &scored, |r| r.rules.get(column).copied());
            assert_eq!((all, same), (cases, cases), "{name}, {experiment}");
        }
        let random = agreement(&all, experiment, &score::random(&protocol), |r| {
            r.rules.get("random_over_oracle").copied()
        });
        assert_eq!(random, (cases, cases), "random, {experiment}");
    }
}
