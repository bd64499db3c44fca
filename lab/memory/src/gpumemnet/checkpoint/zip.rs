//! The part of the zip format that `torch.save` uses: stored files, listed in a central directory.

use carma_memory::Error;
use std::collections::BTreeMap;
use std::ops::Range;

/// More files than this are refused. The published checkpoints have about 1,000.
const MAX_FILES: usize = 20_000;
const END: [u8; 4] = *b"PK\x05\x06";
const CENTRAL: [u8; 4] = *b"PK\x01\x02";
const LOCAL: [u8; 4] = *b"PK\x03\x04";

/// An archive in memory.
pub(super) struct Archive<'a> {
    bytes: &'a [u8],
    files: BTreeMap<String, Range<usize>>,
}

fn bad(what: impl Into<String>) -> Error {
    Error::bad("checkpoint", what)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<usize> {
    bytes.get(at..)?.first_chunk().map(|b| usize::from(u16::from_le_bytes(*b)))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|b| u32::from_le_bytes(*b))
}

impl<'a> Archive<'a> {
    /// Reads the directory, and checks every file against its checksum. Files may not overlap, so that
    /// this takes no longer than reading the archive.
    pub(super) fn open(bytes: &'a [u8]) -> Result<Self, Error> {
        // The end record stands last, before a comment of at most 64 KiB.
        let from = bytes.len().saturating_sub(22 + 65_535);
        let end = (from..bytes.len().saturating_sub(21))
            .rev()
            .find(|at| bytes[*at..].starts_with(&END))
            .ok_or_else(|| bad("not a zip archive, or its end is cut off"))?;
        let cut = || bad("the directory of the archive is cut off or damaged");
        let count = u16_at(bytes, end + 10).ok_or_else(cut)?;
        if count > MAX_FILES {
            return Err(bad(format!("{count} files in it; at most {MAX_FILES} are read")));
        }
        let mut at = u32_at(bytes, end + 16).ok_or_else(cut)? as usize;
        let mut files = BTreeMap::new();
        let mut total = 0_usize;
        for _ in 0..count {
            let head = bytes.get(at..).filter(|b| b.starts_with(&CENTRAL)).ok_or_else(cut)?;
            let name_len = u16_at(head, 28).ok_or_else(cut)?;
            let skip = u16_at(head, 30).zip(u16_at(head, 32)).map(|(a, b)| a + b).ok_or_else(cut)?;
            let name = head.get(46..46 + name_len).ok_or_else(cut)?;
            let name = std::str::from_utf8(name).map_err(|_| bad("a file name that is not UTF-8"))?;
            let method = u16_at(head, 10).ok_or_else(cut)?;
            if method != 0 {
                return Err(bad(format!("`{name}` is compressed (method {method}); torch.save stores")));
            }
            let crc = u32_at(head, 16).ok_or_else(cut)?;
            let size = u32_at(head, 24).ok_or_else(cut)? as usize;
            let local = u32_at(head, 42).ok_or_else(cut)? as usize;
            let range = data(bytes, local, size)
                .ok_or_else(|| bad(format!("`{name}` lies outside of the file or has no header")))?;
            total = total.saturating_add(size);
            if total > bytes.len() {
                return Err(bad(format!("`{name}` shares bytes with another file")));
            }
            if crc32fast::hash(&bytes[range.clone()]) != crc {
                return Err(bad(format!("`{name}` is damaged: its checksum is wrong")));
            }
            if files.insert(name.to_owned(), range).is_some() {
                return Err(bad(format!("`{name}` is in it twice")));
            }
            at += 46 + name_len + skip;
        }
        Ok(Self { bytes, files })
    }

    /// Names of the files.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// A file's bytes.
    pub(super) fn file(&self, name: &str) -> Option<&'a [u8]> {
        self.files.get(name).map(|range| &self.bytes[range.clone()])
    }
}

/// Where a file's bytes are, given its local header.
fn data(bytes: &[u8], local: usize, size: usize) -> Option<Range<usize>> {
    let head = bytes.get(local..).filter(|b| b.starts_with(&LOCAL))?;
    let from = local + 30 + u16_at(head, 26)? + u16_at(head, 28)?;
    let to = from.checked_add(size)?;
    (to <= bytes.len()).then_some(from..to)
}
