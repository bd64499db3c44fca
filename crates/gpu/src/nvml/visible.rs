//! `CUDA_VISIBLE_DEVICES` as a limit on carma itself, e.g. inside another scheduler's allocation.

/// What an entry can name a device by.
pub(super) struct Names<'a> {
    /// Index of the GPU in the driver's order, also for a MIG instance.
    pub(super) gpu: u32,
    /// UUID of the GPU.
    pub(super) gpu_uuid: &'a str,
    /// UUID of the device itself.
    pub(super) uuid: &'a str,
}

/// Splits the value of `CUDA_VISIBLE_DEVICES` into its entries.
#[must_use]
pub fn parse_visible(value: &str) -> Vec<String> {
    value.split(',').map(|entry| entry.trim().to_owned()).collect()
}

/// Which devices the entries leave. `broken` are indices of GPUs that exist but cannot be read:
/// naming one is no mistake.
///
/// CUDA stops at the first entry that names nothing, and silently hides the rest. Here only the
/// customary ends of a list do that (nothing, `-1`, `NoDevFiles`); any other is an error, since a
/// typing mistake must not make GPUs vanish.
pub(super) fn select(entries: &[String], devices: &[Names<'_>], broken: &[u32]) -> Result<Vec<bool>, String> {
    let mut keep = vec![false; devices.len()];
    for entry in entries {
        if matches!(entry.as_str(), "" | "-1" | "NoDevFiles") {
            break;
        }
        let index = entry.parse::<u32>().ok();
        if index.is_some_and(|index| broken.contains(&index)) {
            continue;
        }
        let named = |names: &Names<'_>| match index {
            Some(index) => names.gpu == index,
            None => names.uuid.starts_with(entry) || names.gpu_uuid.starts_with(entry),
        };
        // What an entry may name together: one instance, or one GPU with all its instances.
        let mut matches = devices
            .iter()
            .filter(|names| named(names))
            .map(|names| if names.uuid.starts_with(entry) { names.uuid } else { names.gpu_uuid });
        let limit = entries.join(",");
        let Some(first) = matches.next() else {
            let there: Vec<_> = devices.iter().map(|n| format!("{} {}", n.gpu, n.uuid)).collect();
            return Err(format!(
                "CUDA_VISIBLE_DEVICES=\"{limit}\": \"{entry}\" names no GPU here; there are: {}",
                there.join(", ")
            ));
        };
        if let Some(second) = matches.find(|uuid| *uuid != first) {
            return Err(format!(
                "CUDA_VISIBLE_DEVICES=\"{limit}\": \"{entry}\" is ambiguous: {first} and {second}"
            ));
        }
        for (keep, names) in keep.iter_mut().zip(devices) {
            *keep |= named(names);
        }
    }
    Ok(keep)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two whole GPUs and one in MIG mode; GPU 3 exists and cannot be read.
    fn kept(value: &str) -> Result<String, String> {
        let device = |gpu, gpu_uuid, uuid| Names { gpu, gpu_uuid, uuid };
        let devices = [
            device(0, "GPU-aa11", "GPU-aa11"),
            device(1, "GPU-ab22", "GPU-ab22"),
            device(2, "GPU-cc33", "MIG-dd44"),
            device(2, "GPU-cc33", "MIG-ee55"),
        ];
        let keep = select(&parse_visible(value), &devices, &[3])?;
        Ok(keep.iter().map(|k| if *k { 'x' } else { '.' }).collect())
    }

    #[test]
    fn entries_are_indices_uuids_and_their_beginnings() {
        assert_eq!(kept("1").unwrap(), ".x..");
        assert_eq!(kept("GPU-ab22, 0,0").unwrap(), "xx..");
        assert_eq!(kept("GPU-aa").unwrap(), "x...");
        assert_eq!(kept("MIG-e").unwrap(), "...x");
        assert_eq!(kept("2").unwrap(), "..xx");
        assert_eq!(kept("GPU-cc33").unwrap(), "..xx");
        assert_eq!(kept("0,3").unwrap(), "x...");
    }

    #[test]
    fn the_customary_ends_of_a_list_hide_the_rest() {
        assert_eq!(kept("").unwrap(), "....");
        assert_eq!(kept("-1").unwrap(), "....");
        assert_eq!(kept("NoDevFiles").unwrap(), "....");
        assert_eq!(kept("1,-1,0").unwrap(), ".x..");
    }

    #[test]
    fn an_entry_that_names_nothing_or_too_much_is_an_error() {
        assert!(kept("0,9").unwrap_err().contains("\"9\" names no GPU here"));
        assert!(kept("all").unwrap_err().contains("2 MIG-ee55"));
        assert!(kept("GPU-a").unwrap_err().contains("ambiguous: GPU-aa11 and GPU-ab22"));
        assert!(kept("MIG-").unwrap_err().contains("ambiguous"));
    }
}
