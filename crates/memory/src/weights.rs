//! Trained networks as files: small, versioned, and refused with a reason when they do not fit.
//!
//! Little-endian: 16 bytes of what it is; the version, 32 bits; the length of the header, 32 bits; the
//! header, JSON; 32-bit floats; CRC-32 of everything before.

use crate::Error;
use carma_nn::{Module, Rng};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Larger files are refused; those in the repository have less than 300 KiB.
const MAX_BYTES: usize = 32 << 20;
/// Folds of a file at most.
const MAX_FOLDS: usize = 20;

/// An ensemble of networks that is kept in files.
pub trait Stored: Sized {
    /// What its files are.
    const FORMAT: Format;
    /// Everything about it but its numbers.
    type Card: Clone + Serialize + DeserializeOwned;
    /// One of its networks.
    type Member: Module + Clone;

    /// Its card and its networks.
    fn parts(&self) -> (&Self::Card, &[Self::Member]);

    /// Of its parts.
    fn of(card: Self::Card, members: Vec<Self::Member>) -> Self;

    /// Networks of a card, whose numbers are still to be read.
    ///
    /// # Errors
    /// The card is not one of this carma, or asks for more than any has.
    fn fresh(card: &Self::Card) -> Result<impl Iterator<Item = Self::Member>, String>;

    /// How many tasks it was trained on, and the seed by which they were dealt to folds.
    fn dealt(card: &Self::Card) -> (usize, u64);
}

/// Ensembles of one training: that of all tasks, and those of the folds that tell how good such an ensemble is.
#[derive(Debug, Clone, PartialEq)]
pub struct Bundle<N> {
    /// Trained on everything: the one to ask. Absent where only the cross-validation is of interest.
    pub whole: Option<N>,
    /// One a fold.
    pub folds: Vec<Fold<N>>,
}

/// One fold of a cross-validation: an ensemble that never saw the tasks in `test`.
#[derive(Debug, Clone, PartialEq)]
pub struct Fold<N> {
    /// Places of its test tasks in the data.
    pub test: Vec<usize>,
    /// The ensemble.
    pub network: N,
}

/// Places of the test tasks of each fold; every task is in just one.
#[must_use]
pub fn folds(tasks: usize, folds: usize, seed: u64) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..tasks).collect();
    Rng::new(seed, 1).shuffle(&mut order);
    let folds = folds.max(1);
    (0..folds).map(|f| order.iter().copied().skip(f).step_by(folds).collect()).collect()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Header<C> {
    /// Folds that the tasks were dealt to.
    folds: usize,
    /// One an ensemble: those of the folds, then that of all tasks.
    #[serde(alias = "cards")]
    networks: Vec<C>,
}

impl<N: Stored> Bundle<N> {
    /// Any of its ensembles: the data is the same for all.
    #[must_use]
    pub fn any(&self) -> Option<&N> {
        self.whole.as_ref().or_else(|| self.folds.first().map(|f| &f.network))
    }

    /// The bytes of a file.
    #[must_use]
    pub fn write(&self) -> Vec<u8> {
        let all: Vec<_> = self.folds.iter().map(|f| &f.network).chain(&self.whole).map(N::parts).collect();
        let cards: Vec<&N::Card> = all.iter().map(|(card, _)| *card).collect();
        // A card holds numbers and names only; writing one can't fail.
        let cards = serde_json::to_string(&cards).unwrap_or_default();
        let header = format!(r#"{{"folds":{},"{}":{cards}}}"#, self.folds.len(), N::FORMAT.cards);
        let members = all.iter().flat_map(|(_, members)| *members);
        N::FORMAT.seal(header.as_bytes(), members.flat_map(|member| member.clone().save()))
    }

    /// Reads a file.
    ///
    /// # Errors
    /// It can't be read, is of another kind or version, or damaged; says which, and what to do.
    pub fn read_file(path: &Path) -> Result<Self, Error> {
        let bytes = carma_files::read(path, carma_files::MOST)?;
        Self::read(&path.display().to_string(), &bytes)
    }

    /// As [`Bundle::read_file`], from its bytes.
    ///
    /// # Errors
    /// As there.
    pub fn read(place: &str, bytes: &[u8]) -> Result<Self, Error> {
        let (header, numbers) = N::FORMAT.open(place, bytes)?;
        Self::of_parts(header, &numbers).map_err(|what| Error::bad(place, what))
    }

    fn of_parts(header: &[u8], numbers: &[f32]) -> Result<Self, String> {
        let header: Header<N::Card> =
            serde_json::from_slice(header).map_err(|e| format!("its header is not understood: {e}"))?;
        if header.folds > MAX_FOLDS || header.networks.len() < header.folds {
            return Err(format!("{} folds, {} networks", header.folds, header.networks.len()));
        }
        let mut rest = numbers;
        let mut networks = Vec::with_capacity(header.networks.len());
        for card in header.networks {
            let mut members = Vec::new();
            // One after the other: a file that asks for more than it has numbers for ends at the first.
            for mut member in N::fresh(&card)? {
                let used = member.load(rest).ok_or("fewer numbers than its networks have")?;
                rest = rest.get(used..).unwrap_or_default();
                members.push(member);
            }
            networks.push(N::of(card, members));
        }
        if !rest.is_empty() {
            return Err(format!("{} numbers, {} of them belong to no network", numbers.len(), rest.len()));
        }
        let whole = networks.split_off(header.folds).into_iter().next();
        let (tasks, seed) = networks.first().map(|network| N::dealt(network.parts().0)).unwrap_or_default();
        let tests = folds(tasks, header.folds, seed).into_iter();
        let folds = tests.zip(networks).map(|(test, network)| Fold { test, network }).collect();
        Ok(Self { whole, folds })
    }
}

/// What a kind of files is known by.
#[derive(Debug, Clone, Copy)]
pub struct Format {
    /// The first bytes.
    pub magic: &'static [u8; 16],
    /// Raised when features, networks or layout change: older weights mean something else then.
    pub version: u32,
    /// What makes such files.
    pub maker: &'static str,
    /// The header's key of the cards, as it is written; both kinds' are read.
    pub cards: &'static str,
}

impl Format {
    /// The bytes of a file.
    fn seal(&self, header: &[u8], numbers: impl Iterator<Item = f32>) -> Vec<u8> {
        let mut bytes = self.magic.to_vec();
        bytes.extend_from_slice(&self.version.to_le_bytes());
        bytes.extend_from_slice(&(header.len() as u32).to_le_bytes());
        bytes.extend_from_slice(header);
        for number in numbers {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        let sum = crc32fast::hash(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Header and numbers of a file.
    ///
    /// # Errors
    /// Another kind or version, damaged or cut off.
    fn open<'a>(&self, place: &str, bytes: &'a [u8]) -> Result<(&'a [u8], Vec<f32>), Error> {
        let bad = |what: String| Error::bad(place, what);
        let cut = || bad("cut off".to_owned());
        if bytes.len() > MAX_BYTES {
            return Err(bad(format!(
                "{} MiB; weights have less than {}",
                bytes.len() >> 20,
                MAX_BYTES >> 20
            )));
        }
        let rest = bytes
            .strip_prefix(self.magic)
            .ok_or_else(|| bad(format!("no weights of `{}`: the first bytes differ", self.maker)))?;
        let version = rest.first_chunk().map(|b| u32::from_le_bytes(*b)).ok_or_else(cut)?;
        if version != self.version {
            return Err(bad(format!(
                "weights of version {version}, this carma reads version {}; train them again with `{}`",
                self.version, self.maker
            )));
        }
        let (body, sum) = bytes.split_last_chunk().ok_or_else(cut)?;
        if crc32fast::hash(body) != u32::from_le_bytes(*sum) {
            return Err(bad("damaged or cut off: its checksum is wrong".to_owned()));
        }
        let body = body.get(self.magic.len() + 4..).ok_or_else(cut)?;
        let len = body.first_chunk().map(|b| u32::from_le_bytes(*b)).ok_or_else(cut)? as usize;
        let header = body.get(4..).and_then(|b| b.get(..len)).ok_or_else(cut)?;
        let numbers = body.get(4 + len..).ok_or_else(cut)?;
        let numbers: Vec<f32> =
            numbers.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        if numbers.iter().any(|n| !n.is_finite()) {
            return Err(bad("a number in it is not finite".to_owned()));
        }
        Ok((header, numbers))
    }
}
