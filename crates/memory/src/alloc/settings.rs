//! `PYTORCH_ALLOC_CONF` (formerly `PYTORCH_CUDA_ALLOC_CONF`).

use crate::{Error, MIB};
use std::collections::BTreeMap;

/// Settings of the caching allocator that change what it reserves.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Settings {
    /// Blocks of at least so many bytes are never split (`max_split_size_mb`).
    pub max_split_size: Option<u64>,
    /// Segments grow page by page (`expandable_segments:True`).
    pub expandable_segments: bool,
    /// Requests are rounded up to a power of two divided by this, by the request's size in MiB
    /// (`roundup_power2_divisions`); the entry at or below the size applies.
    pub roundup_power2_divisions: BTreeMap<u64, u64>,
    /// Share of the capacity above which unused blocks are given back
    /// (`garbage_collection_threshold`).
    pub garbage_collection_threshold: Option<f64>,
    /// Share of the GPU's memory that the allocator may hold (`per_process_memory_fraction`).
    pub memory_fraction: Option<f64>,
    /// Another allocator is named (`backend:cudaMallocAsync`): the model does not hold for it.
    pub foreign_backend: Option<String>,
    /// Keys that are none of PyTorch's, as far as this version knows.
    pub unknown: Vec<String>,
}

/// Keys of PyTorch's that change nothing here: they are about the host's memory, or about time.
const IRRELEVANT: &[&str] = &[
    "graph_capture_record_stream_reuse",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_use_background_threads",
    "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
];

impl Settings {
    /// Whether PyTorch finds no block again that it has: those of `max_split_size` and more are not split, and an expandable
    /// segment is one block.
    #[must_use]
    pub fn grows_without_end(&self) -> bool {
        self.expandable_segments && self.max_split_size.is_some()
    }

    /// The value of the environment variable that counts, of an environment: the newer name goes before the older one.
    #[must_use]
    pub fn variable<T>(get: impl Fn(&str) -> Option<T>) -> Option<T> {
        get("PYTORCH_ALLOC_CONF").or_else(|| get("PYTORCH_CUDA_ALLOC_CONF"))
    }

    /// Reads the value of the environment variable.
    ///
    /// # Errors
    /// A known key with a value that PyTorch would refuse.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut settings = Self::default();
        for (key, value) in pairs(text) {
            let bad = |what: &str| {
                Error::bad(format!("PYTORCH_ALLOC_CONF, {key}"), format!("{what}, found `{value}`"))
            };
            match key.as_str() {
                "max_split_size_mb" => {
                    let mb: u64 = value.parse().map_err(|_| bad("expected a number of MiB"))?;
                    // PyTorch refuses to leave blocks of 20 MiB and less unsplit.
                    if mb <= 20 {
                        return Err(bad("expected more than 20 MiB"));
                    }
                    settings.max_split_size =
                        Some(mb.checked_mul(MIB).ok_or_else(|| bad("expected a number of MiB"))?);
                }
                "expandable_segments" => {
                    settings.expandable_segments =
                        boolean(&value).ok_or_else(|| bad("expected True or False"))?
                }
                "garbage_collection_threshold" => {
                    settings.garbage_collection_threshold =
                        Some(share(&value).ok_or_else(|| bad("expected a number between 0 and 1"))?)
                }
                "per_process_memory_fraction" => {
                    settings.memory_fraction =
                        Some(share(&value).ok_or_else(|| bad("expected a number above 0, and at most 1"))?)
                }
                "roundup_power2_divisions" => {
                    settings.roundup_power2_divisions = divisions(&value)
                        .ok_or_else(|| bad("expected a power of two, or a list as [256:1,512:2,>:4]"))?;
                }
                "backend" if value == "native" => {}
                "backend" => settings.foreign_backend = Some(value),
                key if IRRELEVANT.contains(&key) => {}
                _ => settings.unknown.push(key),
            }
        }
        Ok(settings)
    }
}

/// `key:value` pairs, separated by commas outside brackets.
fn pairs(text: &str) -> Vec<(String, String)> {
    let mut depth = 0_i32;
    text.split(|c| {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        c == ',' && depth <= 0
    })
    .filter(|pair| !pair.trim().is_empty())
    .map(|pair| {
        let (key, value) = pair.split_once(':').unwrap_or((pair, ""));
        (key.trim().to_owned(), value.trim().to_owned())
    })
    .collect()
}

fn boolean(value: &str) -> Option<bool> {
    match value {
        "True" | "true" => Some(true),
        "False" | "false" => Some(false),
        _ => None,
    }
}

fn share(value: &str) -> Option<f64> {
    value.parse().ok().filter(|v| (0.0..=1.0).contains(v) && *v > 0.0)
}

/// One number for all sizes, or a list of `size:divisions` with `>` for what is larger.
fn divisions(value: &str) -> Option<BTreeMap<u64, u64>> {
    let power = |text: &str| text.trim().parse().ok().filter(|n: &u64| n.is_power_of_two());
    let Some(list) = value.strip_prefix('[').and_then(|v| v.strip_suffix(']')) else {
        return Some([(0, power(value)?)].into());
    };
    let mut map = BTreeMap::new();
    let mut last: u64 = 0;
    for entry in list.split(',') {
        let (size, n) = entry.split_once(':')?;
        let n = power(n)?;
        if size.trim() == ">" {
            map.insert(last.checked_mul(2)?.max(1), n);
        } else {
            last = power(size)?;
            // The list names sizes; those below the first take its value.
            let at = if map.is_empty() { 0 } else { last };
            map.insert(at, n);
        }
    }
    Some(map)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn reads_what_people_set() {
        let s = Settings::parse(
            "expandable_segments:True,max_split_size_mb:512, garbage_collection_threshold:0.8",
        )
        .unwrap();
        assert!(s.expandable_segments);
        assert_eq!(s.max_split_size, Some(512 * MIB));
        assert_eq!(s.garbage_collection_threshold, Some(0.8));
        let s = Settings::parse(
            "roundup_power2_divisions:[256:1,512:2,1024:4,>:8],backend:cudaMallocAsync,\
             pinned_use_background_threads:True,expandable_segment:True",
        )
        .unwrap();
        assert_eq!(s.roundup_power2_divisions, [(0, 1), (512, 2), (1024, 4), (2048, 8)].into());
        assert_eq!(s.foreign_backend.as_deref(), Some("cudaMallocAsync"));
        assert_eq!(s.unknown, ["expandable_segment"]);
        assert!(!s.expandable_segments);
        assert_eq!(Settings::parse("").unwrap(), Settings::default());
    }

    #[test]
    fn refuses_what_pytorch_refuses() {
        for text in [
            "max_split_size_mb:20",
            "max_split_size_mb:x",
            "expandable_segments:maybe",
            "garbage_collection_threshold:1.5",
            "per_process_memory_fraction:0",
            "per_process_memory_fraction:1.01",
            "per_process_memory_fraction:NaN",
            "roundup_power2_divisions:3",
        ] {
            assert!(Settings::parse(text).is_err(), "{text}");
        }
    }
}
