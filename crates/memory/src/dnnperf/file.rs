//! Ensembles as files.

use super::net::GraphNet;
use super::nodes::{EDGE, NODE, WHOLE};
use super::{Card, Perf};
use crate::weights::{Format, Stored};
use carma_nn::Rng;

impl Stored for Perf {
    const FORMAT: Format = Format {
        magic: b"carma-dnnperf-g\n",
        version: 1,
        maker: "carma lab gpumemnet train --kind dnnperf",
        cards: "cards",
    };
    type Card = Card;
    type Member = GraphNet;

    fn parts(&self) -> (&Card, &[GraphNet]) {
        (&self.card, &self.members)
    }

    fn of(card: Card, members: Vec<GraphNet>) -> Self {
        Self { card, members }
    }

    fn fresh(card: &Card) -> Result<impl Iterator<Item = GraphNet>, String> {
        let fits = card.node.is_of(NODE) && card.edge.is_of(EDGE) && card.whole.is_of(WHOLE);
        let small = (1..=64).contains(&card.shape.width) && card.shape.rounds <= 8;
        if !fits || !small || !(1..=16).contains(&card.members) || card.rows() > 10_000_000 {
            return Err("its parts do not fit each other".to_owned());
        }
        Ok((0..card.members).map(|_| GraphNet::new(card.shape, &mut Rng::new(0, 0))))
    }

    fn dealt(card: &Card) -> (usize, u64) {
        (card.rows(), card.seed)
    }
}
