//! Names, shapes and types of the weights in safetensors files, read from their headers alone.
//!
//! Format (safetensors' README): 8 bytes with the header's length, little endian; the header, a JSON object
//! from names to `{dtype, shape, data_offsets}`; the data. Several files have an index,
//! `model.safetensors.index.json`, that says which name is in which file.

use super::parse::printable;
use crate::Error;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::io::Read;
use std::path::Path;

/// Longest header that is read, bytes: the limit of the format's own library.
pub const MOST_HEADER: u64 = 100_000_000;
/// Most tensors of a model: each needs some 60 bytes of header.
const MOST_TENSORS: usize = 2_000_000;
/// Most files of a model.
const MOST_FILES: usize = 4096;

/// A tensor in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weight {
    /// As in the model: `bert.encoder.layer.0.attention.self.query.weight`.
    pub name: String,
    /// `F32`, `BF16`, ...
    pub dtype: String,
    /// Its dimensions, outermost first.
    pub shape: Vec<u64>,
    /// Bytes in the file.
    pub bytes: u64,
}

impl Weight {
    /// Number of elements. The reader refuses shapes for which this would overflow.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }
}

/// The weights of a model, from one header or from those of several files.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Weights {
    /// In the order of the header.
    pub tensors: Vec<Weight>,
    /// Bytes of all tensors, as the index says where the headers were not read.
    pub bytes: u64,
    /// Only an index was read: names without shapes.
    pub names_only: Vec<String>,
}

impl Weights {
    /// Reads a header, or an index, from the beginning of a file or from all of it.
    ///
    /// # Errors
    /// Neither of the two, a header that is cut, too long, or contradicts itself.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        match bytes.iter().find(|b| !b.is_ascii_whitespace()) {
            // The length of a header that begins with `{` would be 123 times something with 7 more bytes: a
            // real one has zeros up there.
            Some(b'{') if bytes.get(7) != Some(&0) => index(bytes),
            _ => {
                let length = header_length(bytes, None)?;
                let end = 8 + length as usize;
                let header = bytes.get(8..end).ok_or_else(|| cut(bytes.len() as u64, length))?;
                header_json(header, None)
            }
        }
    }

    /// Reads the header of a file, an index and the headers of its files, or what a folder holds. Nothing
    /// but headers is read.
    ///
    /// # Errors
    /// As [`Weights::parse`]; files that can't be read.
    pub fn open(path: &Path) -> Result<Self, Error> {
        if path.is_dir() {
            let one = path.join("model.safetensors");
            let several = path.join("model.safetensors.index.json");
            return Self::open(if several.is_file() { &several } else { &one });
        }
        if path.extension().is_some_and(|e| e == "json") {
            return open_index(path, &carma_files::read(path, MOST_HEADER)?);
        }
        open_one(path)
    }

    /// Elements of all tensors.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.tensors.iter().fold(0, |sum, t| sum.saturating_add(t.elements()))
    }

    /// Shape of the tensor whose name ends so.
    pub(super) fn shape(&self, end: &str) -> Option<&[u64]> {
        self.find(end).map(|w| w.shape.as_slice())
    }

    pub(super) fn find(&self, end: &str) -> Option<&Weight> {
        self.tensors
            .iter()
            .find(|w| w.name.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')))
    }
}

fn cut(found: u64, length: u64) -> Error {
    Error::bad(
        "safetensors header",
        format!("cut: a header of {length} bytes is announced, the file has {found} bytes in all"),
    )
}

/// The announced length, checked against the limit and the file.
fn header_length(bytes: &[u8], file_size: Option<u64>) -> Result<u64, Error> {
    let Some(first) = bytes.first_chunk::<8>() else {
        return Err(Error::bad(
            "safetensors header",
            format!("expected 8 bytes with its length, found {} bytes", bytes.len()),
        ));
    };
    let length = u64::from_le_bytes(*first);
    if length > MOST_HEADER {
        return Err(Error::bad(
            "safetensors header",
            format!(
                "a length of {length} bytes is announced, the limit is {MOST_HEADER}; is this a safetensors file?"
            ),
        ));
    }
    if length < 2 {
        return Err(Error::bad("safetensors header", format!("a length of {length} bytes holds no JSON")));
    }
    match file_size {
        Some(size) if length.checked_add(8).is_none_or(|end| end > size) => Err(cut(size, length)),
        _ => Ok(length),
    }
}

#[derive(Deserialize)]
struct Entry<'a> {
    #[serde(borrow)]
    dtype: Cow<'a, str>,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// Entries in their order; the metadata is skipped.
struct Entries<'a>(Vec<(Cow<'a, str>, Entry<'a>)>);

impl<'de> Deserialize<'de> for Entries<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Walk;
        impl<'de> Visitor<'de> for Walk {
            type Value = Entries<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object from names to {dtype, shape, data_offsets}")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(Name(name)) = map.next_key()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    }
                    if entries.len() == MOST_TENSORS {
                        return Err(serde::de::Error::custom("more than 2,000,000 tensors"));
                    }
                    entries.push((name, map.next_value()?));
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Walk)
    }
}

/// A key, borrowed where it has no escapes.
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

fn header_json(json: &[u8], data_bytes: Option<u64>) -> Result<Weights, Error> {
    let Entries(entries) = serde_json::from_slice(json)
        .map_err(|e| Error::bad("safetensors header", printable(&e.to_string())))?;
    let mut weights = Weights::default();
    weights.tensors.reserve(entries.len());
    for (name, entry) in entries {
        weights.bytes += push(&mut weights.tensors, &name, entry, data_bytes)?;
    }
    Ok(weights)
}

/// Checks an entry and keeps it; its bytes.
fn push(
    tensors: &mut Vec<Weight>,
    name: &str,
    entry: Entry<'_>,
    data_bytes: Option<u64>,
) -> Result<u64, Error> {
    let place = || format!("safetensors header, {}", short(name));
    let Entry { dtype, shape, data_offsets: (from, to) } = entry;
    let bytes = to.checked_sub(from).ok_or_else(|| {
        Error::bad(place(), format!("data_offsets [{from}, {to}]: it ends before it begins"))
    })?;
    if let Some(size) = data_bytes.filter(|size| to > *size) {
        return Err(Error::bad(
            place(),
            format!("data_offsets [{from}, {to}], but the file has {size} bytes of data: is it cut?"),
        ));
    }
    let elements = shape.iter().try_fold(1_u64, |n, d| n.checked_mul(*d));
    let Some(elements) = elements.filter(|n| *n <= 1 << 44) else {
        return Err(Error::Absurd { layer: short(name), what: format!("shape {shape:?}") });
    };
    // A type that this version does not know is believed.
    let expected = bits(&dtype).map(|bits| elements.saturating_mul(bits).div_ceil(8));
    if expected.is_some_and(|expected| expected != bytes) || bytes > 1 << 48 {
        return Err(Error::bad(
            place(),
            format!("shape {shape:?} of {} does not fit into {bytes} bytes of data", short(&dtype)),
        ));
    }
    tensors.push(Weight { name: name.to_owned(), dtype: dtype.into_owned(), shape, bytes });
    Ok(bytes)
}

/// Names come from the file: they are shown without control characters and not by the megabyte.
fn short(name: &str) -> String {
    printable(name).chars().take(100).collect()
}

fn bits(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "F4" | "I4" | "U4" => 4,
        "F6_E2M3" | "F6_E3M2" => 6,
        "BOOL" | "U8" | "I8" | "F8_E5M2" | "F8_E4M3" | "F8_E8M0" | "F8_E4M3FNUZ" | "F8_E5M2FNUZ" => 8,
        "I16" | "U16" | "F16" | "BF16" => 16,
        "I32" | "U32" | "F32" => 32,
        "I64" | "U64" | "F64" | "C64" => 64,
        _ => return None,
    })
}

#[derive(Deserialize)]
struct IndexFile {
    #[serde(default)]
    metadata: Option<IndexMetadata>,
    weight_map: Map,
}

#[derive(Deserialize)]
struct IndexMetadata {
    // Written as a float by some tools.
    #[serde(default)]
    total_size: Option<f64>,
}

/// Names and their files.
struct Map(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Map {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Walk;
        impl<'de> Visitor<'de> for Walk {
            type Value = Map;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object from names to file names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    if entries.len() == MOST_TENSORS {
                        return Err(serde::de::Error::custom("more than 2,000,000 tensors"));
                    }
                    entries.push(entry);
                }
                Ok(Map(entries))
            }
        }
        deserializer.deserialize_map(Walk)
    }
}

fn read_index(bytes: &[u8]) -> Result<IndexFile, Error> {
    if bytes.len() as u64 > MOST_HEADER {
        return Err(Error::bad(
            "safetensors index",
            format!("{} bytes; the limit is {MOST_HEADER}", bytes.len()),
        ));
    }
    let is_other = |why: &str| {
        let what =
            format!("{why}; expected an object with `weight_map`, as model.safetensors.index.json has");
        Error::bad("safetensors index", what)
    };
    // What is read by fields could be a list of them, too.
    if bytes.iter().find(|b| !b.is_ascii_whitespace()) != Some(&b'{') {
        return Err(is_other("it is no JSON object"));
    }
    serde_json::from_slice(bytes).map_err(|e| is_other(&printable(&e.to_string())))
}

/// An index alone: names and the total.
fn index(bytes: &[u8]) -> Result<Weights, Error> {
    let IndexFile { metadata, weight_map: Map(entries) } = read_index(bytes)?;
    let total = metadata.and_then(|m| m.total_size).unwrap_or(0.0);
    if !(0.0..=(1_u64 << 48) as f64).contains(&total) {
        return Err(Error::bad(
            "safetensors index, total_size",
            format!("{total} bytes: no model has as many"),
        ));
    }
    Ok(Weights {
        tensors: Vec::new(),
        bytes: total as u64,
        names_only: entries.into_iter().map(|(name, _)| name).collect(),
    })
}

/// An index that was read from `path`, and the headers of its files.
fn open_index(path: &Path, bytes: &[u8]) -> Result<Weights, Error> {
    let place = || format!("{}, safetensors index", path.display());
    let named = |error| match error {
        Error::Bad { what, .. } => Error::bad(place(), what),
        other => other,
    };
    let IndexFile { weight_map: Map(entries), .. } = read_index(bytes).map_err(named)?;
    let files: BTreeSet<&str> = entries.iter().map(|(_, file)| file.as_str()).collect();
    if files.len() > MOST_FILES {
        return Err(Error::bad(place(), format!("{} files; the limit is {MOST_FILES}", files.len())));
    }
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut all = Weights::default();
    for name in files {
        // A name, not a way to somewhere else.
        if name.is_empty() || name.contains(['/', '\\', '\0']) || name.starts_with('.') {
            return Err(Error::bad(place(), format!("`{}` is no name of a file beside it", short(name))));
        }
        let one = open_one(&folder.join(name))?;
        all.bytes = all.bytes.saturating_add(one.bytes);
        all.tensors.extend(one.tensors);
        if all.tensors.len() > MOST_TENSORS {
            return Err(Error::bad(place(), "more than 2,000,000 tensors"));
        }
    }
    Ok(all)
}

fn open_one(path: &Path) -> Result<Weights, Error> {
    let in_file = |e: Error| match e {
        Error::Bad { place, what } => Error::bad(format!("{}, {place}", path.display()), what),
        other => other,
    };
    let fail = |e: &std::io::Error| Error::bad(path.display().to_string(), format!("cannot be read: {e}"));
    let mut file = carma_files::open(path)?;
    let size = file.metadata().map_err(|e| fail(&e))?.len();
    let mut first = Vec::with_capacity(8);
    file.by_ref().take(8).read_to_end(&mut first).map_err(|e| fail(&e))?;
    let length = header_length(&first, Some(size)).map_err(in_file)?;
    let mut header = Vec::new();
    file.take(length).read_to_end(&mut header).map_err(|e| fail(&e))?;
    header_json(&header, Some(size - 8 - length)).map_err(in_file)
}
