//! Weights as files.

use super::net::GraphNet;
use super::nodes::{EDGE, NODE, WHOLE};
use super::{Card, Perf};
use crate::gpumemnet::folds;
use crate::{Error, weights};
use carma_nn::{Module as _, Rng};
use serde::{Deserialize, Serialize};
use std::path::Path;

const KIND: weights::Kind = weights::Kind {
    magic: b"carma-dnnperf-g\n",
    version: 1,
    maker: "carma lab gpumemnet train --kind dnnperf",
};
/// Folds of a file at most.
const MAX_FOLDS: usize = 20;

/// A network that never saw the tasks in `test`.
#[derive(Debug, Clone, PartialEq)]
pub struct Fold {
    /// Places of its test tasks.
    pub test: Vec<usize>,
    /// The network.
    pub perf: Perf,
}

/// An ensemble trained on all tasks, and those of the folds that tell how good it is.
#[derive(Debug, Clone, PartialEq)]
pub struct Bundle {
    /// Trained on everything: the one to ask.
    pub whole: Option<Perf>,
    /// One a fold.
    pub folds: Vec<Fold>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    folds: usize,
    /// Of the folds, then of all tasks.
    cards: Vec<Card>,
}

impl Bundle {
    /// Any of its ensembles: the data is the same for all.
    #[must_use]
    pub fn any(&self) -> Option<&Perf> {
        self.whole.as_ref().or_else(|| self.folds.first().map(|f| &f.perf))
    }

    /// The bytes of a file.
    #[must_use]
    pub fn write(&self) -> Vec<u8> {
        let all: Vec<&Perf> = self.folds.iter().map(|f| &f.perf).chain(&self.whole).collect();
        let header = Header { folds: self.folds.len(), cards: all.iter().map(|p| p.card.clone()).collect() };
        // A card holds numbers and names only; writing one can't fail.
        let header = serde_json::to_vec(&header).unwrap_or_default();
        KIND.seal(&header, all.iter().flat_map(|p| &p.members).flat_map(|m| m.clone().save()))
    }

    /// Reads a file.
    ///
    /// # Errors
    /// It can't be read, is of another kind or version, or damaged.
    pub fn read_file(path: &Path) -> Result<Self, Error> {
        let place = path.display().to_string();
        let bytes = carma_files::read(path, carma_files::MOST)?;
        Self::read(&place, &bytes)
    }

    /// As [`Bundle::read_file`], from its bytes.
    ///
    /// # Errors
    /// As there.
    pub fn read(place: &str, bytes: &[u8]) -> Result<Self, Error> {
        let (header, numbers) = KIND.open(place, bytes)?;
        let bad = |what: &str| Error::bad(place, what);
        let header: Header = serde_json::from_slice(header)
            .map_err(|e| Error::bad(place, format!("its header is not understood: {e}")))?;
        if header.folds > MAX_FOLDS || header.cards.len() < header.folds {
            return Err(bad("its folds do not fit its networks"));
        }
        let (mut at, mut all) = (0, Vec::with_capacity(header.cards.len()));
        for card in header.cards {
            let fits = card.node.is_of(NODE) && card.edge.is_of(EDGE) && card.whole.is_of(WHOLE);
            let small = (1..=64).contains(&card.shape.width) && card.shape.rounds <= 8;
            if !fits || !small || !(1..=16).contains(&card.members) || card.rows() > 10_000_000 {
                return Err(bad("its parts do not fit each other"));
            }
            let mut members = Vec::with_capacity(card.members);
            for _ in 0..card.members {
                let mut member = GraphNet::new(card.shape, &mut Rng::new(0, 0));
                let rest = numbers.get(at..).unwrap_or_default();
                at += member.load(rest).ok_or_else(|| bad("fewer numbers than its networks have"))?;
                members.push(member);
            }
            all.push(Perf { card, members });
        }
        if at != numbers.len() {
            return Err(bad("more numbers than its networks have"));
        }
        let last = all.split_off(header.folds);
        let tests = all.first().map(|p| folds(p.card.rows(), header.folds, p.card.seed)).unwrap_or_default();
        let folds = tests.into_iter().zip(all).map(|(test, perf)| Fold { test, perf }).collect();
        Ok(Self { whole: last.into_iter().next(), folds })
    }
}
