//! Weights as files: small, versioned, and refused with a reason when they do not fit.

use super::features::{FeatureSet, Features};
use super::fold::{Fold, folds};
use super::net::Member;
use super::network::{Card, Network};
use super::outlook::Head;
use super::{Ensemble, Family, Layer, Model};
use crate::{Error, Task, weights};
use carma_nn::{Module, Rng};
use serde::{Deserialize, Serialize};
use std::path::Path;

const KIND: weights::Kind =
    weights::Kind { magic: b"carma-gpumemnet\n", version: 1, maker: "carma lab gpumemnet train" };
/// Folds of a file at most.
const MAX_FOLDS: usize = 20;

/// A network trained on all tasks, and those of the folds that tell how good such a network is.
#[derive(Debug, Clone, PartialEq)]
pub struct Bundle {
    /// Trained on everything: the one to ask. Absent where only the cross-validation is of interest.
    pub whole: Option<Network>,
    /// One a fold.
    pub folds: Vec<Fold>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    /// Folds that the tasks were dealt to.
    folds: usize,
    /// One a network: those of the folds, then that of all tasks.
    networks: Vec<Card>,
}

impl Bundle {
    /// Any of its networks: family, ensemble and data are the same for all.
    #[must_use]
    pub fn any(&self) -> Option<&Network> {
        self.whole.as_ref().or_else(|| self.folds.first().map(|f| &f.network))
    }

    /// The bytes of a file.
    #[must_use]
    pub fn write(&self) -> Vec<u8> {
        let networks: Vec<&Network> = self.folds.iter().map(|f| &f.network).chain(&self.whole).collect();
        let cards = networks.iter().map(|n| n.card.clone()).collect();
        // A card holds numbers and names only; writing one can't fail.
        let header =
            serde_json::to_vec(&Header { folds: self.folds.len(), networks: cards }).unwrap_or_default();
        let numbers = networks.iter().flat_map(|n| &n.members).flat_map(|m| m.clone().save());
        KIND.seal(&header, numbers)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// It can't be read, is of another version, or damaged; says which, and what to do.
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
        let bad = |what: String| Error::bad(place, what);
        let (header, numbers) = KIND.open(place, bytes)?;
        let header: Header =
            serde_json::from_slice(header).map_err(|e| bad(format!("its header is not understood: {e}")))?;
        if header.folds > MAX_FOLDS || header.networks.len() < header.folds {
            return Err(bad(format!("{} folds, {} networks", header.folds, header.networks.len())));
        }
        let mut at = 0;
        let mut networks = Vec::with_capacity(header.networks.len());
        for card in header.networks {
            networks.push(network(card, &numbers, &mut at).map_err(bad)?);
        }
        if at != numbers.len() {
            return Err(bad(format!("{} numbers, {at} of them belong to a network", numbers.len())));
        }
        let last = networks.split_off(header.folds);
        let seed = networks.first().map_or(0, |n| n.card.seed);
        let rows = networks.first().map_or(0, |n| n.card.trained_on.rows);
        let tests = folds(rows, header.folds, seed);
        let folds = tests.into_iter().zip(networks).map(|(test, network)| Fold { test, network }).collect();
        Ok(Self { whole: last.into_iter().next(), folds })
    }
}

/// A network of its card and the next numbers.
fn network(card: Card, numbers: &[f32], at: &mut usize) -> Result<Network, String> {
    let (whole, tokens) = expected(card.features, card.ensemble, card.family);
    if !card.whole.is_of(whole) || !card.tokens.is_of(tokens) {
        return Err("its features are not those of this carma".to_owned());
    }
    let (whole, tokens) = (card.whole.active(), card.tokens.active());
    let out = match card.head {
        Head::Logistic => 2,
        Head::Classes { count, width_mib } if width_mib > 0 => count,
        Head::Classes { .. } => return Err("classes of 0 MiB".to_owned()),
    };
    let attends = card.ensemble == Ensemble::Transformer;
    let fits = card.members.iter().all(|m| {
        m.believable() && m.whole == whole && m.out == out && (m.width > 0) == attends && m.token == tokens
    });
    if !fits || card.members.is_empty() || card.members.len() > 64 || card.trained_on.rows > 10_000_000 {
        return Err("its networks have shapes that do not fit its features".to_owned());
    }
    let mut members = Vec::with_capacity(card.members.len());
    for shape in &card.members {
        let mut member = Member::new(shape, &mut Rng::new(0, 0));
        let part = numbers.get(*at..).unwrap_or_default();
        *at += member.load(part).ok_or("fewer numbers than its networks have")?;
        members.push(member);
    }
    Ok(Network { card, members })
}

/// How many features of the whole and of a token there are.
fn expected(set: FeatureSet, ensemble: Ensemble, family: Family) -> (usize, usize) {
    let layer = Layer { kind: super::Kind::Linear, activations: 1, params: 1 };
    let Features { whole, tokens } =
        set.of(ensemble, family, &Model::new(family, vec![layer]), &Task::default());
    (whole.len(), tokens.first().map_or(0, |(t, _)| t.len()))
}
