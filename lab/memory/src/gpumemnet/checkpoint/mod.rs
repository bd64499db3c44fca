//! A safe reader for PyTorch (Lightning) checkpoints: a zip archive with a pickle and raw tensors.
//!
//! Unpickling in Python runs whatever the file asks for. This reader has no such power: a small pickle
//! machine knows the few names that a checkpoint of plain tensors needs (`OrderedDict`,
//! `_rebuild_tensor_v2`, `FloatStorage`, `LongStorage`) and refuses every other by name; "calling" one of
//! those builds a value of ours. Sizes are bounded, and nothing is inflated: `torch.save` stores.

mod pickle;
mod zip;

use carma_memory::Error;
use std::collections::BTreeMap;

/// Larger files are refused. The published ones have less than 1 MiB.
pub const MAX_BYTES: usize = 64 << 20;

/// Tensors by name, as in `state_dict`. Integers (counters of batches) are left out.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Tensors(BTreeMap<String, Tensor>);

/// A tensor of 32-bit floats, in row-major order.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// Its dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Its elements, row by row.
    pub data: Vec<f32>,
}

impl Tensors {
    /// The tensor of that name.
    ///
    /// # Errors
    /// It is not there.
    pub fn get(&self, name: &str) -> Result<&Tensor, Error> {
        self.0.get(name).ok_or_else(|| Error::bad(name, "the checkpoint has no such tensor"))
    }

    /// Whether there is such a tensor.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Names and tensors.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.0.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }
}

/// Reads the `state_dict` of a checkpoint.
///
/// # Errors
/// Not such a file, too large, compressed, damaged, or it asks for a name that is not allowed. Says which.
pub fn read(bytes: &[u8]) -> Result<Tensors, Error> {
    if bytes.len() > MAX_BYTES {
        let mib = bytes.len() >> 20;
        return Err(Error::bad("checkpoint", format!("{mib} MiB; at most {} are read", MAX_BYTES >> 20)));
    }
    let archive = zip::Archive::open(bytes)?;
    let root = archive
        .names()
        .find_map(|n| n.strip_suffix("data.pkl").filter(|r| r.is_empty() || r.ends_with('/')))
        .ok_or_else(|| Error::bad("checkpoint", "no `data.pkl` in it: torch.save did not write this"))?;
    if let Some(order) = archive.file(&format!("{root}byteorder"))
        && order != b"little"
    {
        return Err(Error::bad("checkpoint", "its numbers are big-endian; save it on a common machine"));
    }
    let machine = pickle::run(archive.file(&format!("{root}data.pkl")).unwrap_or_default())?;
    let mut tensors = BTreeMap::new();
    let mut total = 0_usize;
    for (name, spec) in machine.state_dict()? {
        if !spec.float {
            continue;
        }
        let file = format!("{root}data/{}", spec.storage);
        let storage = archive
            .file(&file)
            .ok_or_else(|| Error::bad(&name, format!("its storage `{file}` is not in the archive")))?;
        let tensor = cut(&name, &spec, storage)?;
        // Tensors may share a storage; a thousand views of a large one must not become a thousand copies.
        total += tensor.data.len();
        if total > MAX_BYTES / 4 {
            return Err(Error::bad(&name, "the tensors are larger than the file"));
        }
        tensors.insert(name, tensor);
    }
    Ok(Tensors(tensors))
}

/// A tensor out of its storage; only row-major ones, which is how parameters are saved.
fn cut(name: &str, spec: &pickle::Spec, storage: &[u8]) -> Result<Tensor, Error> {
    let mut elements = 1_usize;
    for (size, stride) in spec.shape.iter().zip(&spec.stride).rev() {
        if *size != 1 && *stride != elements {
            return Err(Error::bad(name, format!("strides {:?} are not row-major", spec.stride)));
        }
        elements = elements
            .checked_mul(*size)
            .filter(|n| *n <= MAX_BYTES)
            .ok_or_else(|| Error::bad(name, format!("shape {:?} is larger than any file", spec.shape)))?;
    }
    let range =
        spec.offset.checked_mul(4).zip(spec.offset.checked_add(elements).and_then(|e| e.checked_mul(4)));
    let raw = range
        .and_then(|(from, to)| storage.get(from..to))
        .ok_or_else(|| Error::bad(name, format!("its storage is too short for shape {:?}", spec.shape)))?;
    let data = raw.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    Ok(Tensor { shape: spec.shape.clone(), data })
}

#[cfg(test)]
mod tests;
