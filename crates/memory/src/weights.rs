//! The envelope of weights: what it is, a version, a header in JSON, numbers, a checksum.
//!
//! Little-endian: 16 bytes of what it is; the version, 32 bits; the length of the header, 32 bits; the
//! header; 32-bit floats; CRC-32 of everything before.

use crate::Error;
use flate2::Crc;

/// Larger files are refused; those in the repository have less than 300 KiB.
const MAX_BYTES: usize = 32 << 20;

/// A kind of weights.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    /// The first bytes.
    pub(crate) magic: &'static [u8; 16],
    /// Raised when features, networks or layout change: older weights mean something else then.
    pub(crate) version: u32,
    /// What makes such files.
    pub(crate) maker: &'static str,
}

impl Kind {
    /// The bytes of a file.
    pub(crate) fn seal(&self, header: &[u8], numbers: impl Iterator<Item = f32>) -> Vec<u8> {
        let mut bytes = self.magic.to_vec();
        bytes.extend_from_slice(&self.version.to_le_bytes());
        bytes.extend_from_slice(&(header.len() as u32).to_le_bytes());
        bytes.extend_from_slice(header);
        for number in numbers {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        let sum = checksum(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Header and numbers of a file.
    ///
    /// # Errors
    /// Another kind or version, damaged or cut off.
    pub(crate) fn open<'a>(&self, place: &str, bytes: &'a [u8]) -> Result<(&'a [u8], Vec<f32>), Error> {
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
        if checksum(body) != u32::from_le_bytes(*sum) {
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

/// CRC-32.
fn checksum(bytes: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc.sum()
}
