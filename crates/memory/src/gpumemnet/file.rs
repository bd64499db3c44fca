//! Ensembles as files.

use super::features::{FeatureSet, Features};
use super::net::Member;
use super::network::{Card, Network};
use super::outlook::Head;
use super::{Ensemble, Family, Layer, ModelLayers};
use crate::ModelTask;
use crate::weights::{Format, Stored};
use carma_nn::Rng;

impl Stored for Network {
    const FORMAT: Format = Format {
        magic: b"carma-gpumemnet\n",
        version: 1,
        maker: "carma lab gpumemnet train",
        cards: "networks",
    };
    type Card = Card;
    type Member = Member;

    fn parts(&self) -> (&Card, &[Member]) {
        (&self.card, &self.members)
    }

    fn of(card: Card, members: Vec<Member>) -> Self {
        Self { card, members }
    }

    fn fresh(card: &Card) -> Result<impl Iterator<Item = Member>, String> {
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
            m.believable()
                && m.whole == whole
                && m.out == out
                && (m.width > 0) == attends
                && m.token == tokens
        });
        if !fits || card.members.is_empty() || card.members.len() > 64 || card.trained_on.rows > 10_000_000 {
            return Err("its networks have shapes that do not fit its features".to_owned());
        }
        Ok(card.members.iter().map(|shape| Member::new(shape, &mut Rng::new(0, 0))))
    }

    fn dealt(card: &Card) -> (usize, u64) {
        (card.trained_on.rows, card.seed)
    }
}

/// How many features of the whole and of a token there are.
fn expected(set: FeatureSet, ensemble: Ensemble, family: Family) -> (usize, usize) {
    let layer = Layer { kind: super::LayerKind::Linear, activations: 1, params: 1 };
    let Features { whole, tokens } =
        set.of(ensemble, family, &ModelLayers::new(family, vec![layer]), &ModelTask::default());
    (whole.len(), tokens.first().map_or(0, |(t, _)| t.len()))
}
