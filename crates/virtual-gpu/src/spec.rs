//! Which virtual GPUs to make: `virtual:4xA100-40GB`, `virtual:2xA100-40GB+1xH200`, `virtual:2xV100-16GB@no-activity`.

use carma_hardware::{GpuType, GpuTypes};
use std::fmt;
use std::str::FromStr;

/// The most virtual GPUs that one host takes.
pub const MOST_GPUS: usize = 4096;

/// What stands behind the type of GPUs that tell no activity.
const NO_ACTIVITY: &str = "no-activity";

/// A list of virtual GPUs in order. Parsed from `virtual:<count>x<type>[+<count>x<type>...]`; a type
/// alone means one. MIG instances stand after a `/`: `1xA100-40GB/7x1g.5gb`, and `@no-activity` at the end of what lacks
/// fine-grain activity: `4xA100-40GB@no-activity`. Prints back in a form that reads the same.
#[derive(Debug, Clone, PartialEq)]
pub struct VirtualSpec {
    parts: Vec<(usize, VirtualGpu)>,
}

/// One virtual GPU.
#[derive(Debug, Clone, PartialEq)]
pub struct VirtualGpu {
    /// What it is.
    pub model: GpuType,
    /// Whether it tells fine-grain activity (GRACT, SMACT, SMOCC, DRAMA). Without, as NVML on GPUs before Hopper: utilisation,
    /// memory and power alone.
    pub has_activity: bool,
}

/// What is wrong with a specification, and what would be right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "virtual GPUs `{spec}`: {why}. Write virtual:<count>x<type>, several joined by `+`, MIG instances after `/` (1xA100-40GB/7x1g.5gb), `@no-activity` at the end for utilisation, memory and power alone (4xA100-40GB@no-activity); types: {}",
    known_types()
)]
pub struct SpecError {
    /// The specification as given.
    pub spec: String,
    /// The part that is wrong, and why.
    pub why: String,
}

/// Names of the types, separated by commas.
#[must_use]
pub fn known_types() -> String {
    GpuTypes::built_in().names()
}

impl VirtualSpec {
    /// Number of GPUs.
    #[must_use]
    pub fn count(&self) -> usize {
        self.parts.iter().map(|(count, _)| count).sum()
    }

    /// Each GPU, in order.
    #[must_use]
    pub fn gpus(&self) -> Vec<VirtualGpu> {
        self.parts.iter().flat_map(|(count, gpu)| std::iter::repeat_n(gpu.clone(), *count)).collect()
    }
}

impl FromStr for VirtualSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let wrong = |why: String| SpecError { spec: text.chars().take(200).collect(), why };
        let list = text
            .trim()
            .strip_prefix("virtual:")
            .ok_or_else(|| wrong("it does not begin with `virtual:`".to_owned()))?;
        let types = GpuTypes::built_in();
        let mut parts = Vec::new();
        let mut total = 0_usize;
        for part in list.split('+') {
            let (part, has_activity) = match part.split_once('@') {
                Some((part, word)) if word.trim().eq_ignore_ascii_case(NO_ACTIVITY) => (part, false),
                Some((_, word)) => return Err(wrong(format!("`@{word}` is not `@{NO_ACTIVITY}`"))),
                None => (part, true),
            };
            let (whole, slices) = match part.split_once('/') {
                Some((whole, slices)) => (whole, Some(slices)),
                None => (part, None),
            };
            let (count, name) = counted(whole).map_err(wrong)?;
            let gpu = types.find(name).map_err(wrong)?;
            let device = |model| VirtualGpu { model, has_activity };
            let mut devices = vec![(1, device(gpu.clone()))];
            if let Some(slices) = slices {
                devices.clear();
                for slice in slices.split(',') {
                    let (n, profile) = counted(slice).map_err(wrong)?;
                    devices.push((n, device(types.find(&format!("{name}/{profile}")).map_err(wrong)?)));
                }
                gpu.holds(devices.iter().map(|(n, slice)| (*n, &*slice.model.name))).map_err(wrong)?;
            }
            total += count * devices.iter().map(|(n, _)| n).sum::<usize>();
            if total > MOST_GPUS {
                return Err(wrong(format!("more than {MOST_GPUS} GPUs")));
            }
            match &mut devices[..] {
                [(n, _)] => {
                    *n *= count;
                    parts.append(&mut devices);
                }
                _ => parts.extend(std::iter::repeat_n(devices, count).flatten()),
            }
        }
        Ok(Self { parts })
    }
}

/// `4xA100-40GB`, `7x1g.5gb`; a name alone means one.
fn counted(part: &str) -> Result<(usize, &str), String> {
    let part = part.trim();
    match part.split_once(['x', 'X']) {
        None if part.is_empty() => Err("a part is empty".to_owned()),
        // No name contains an x, and only those of MIG profiles begin with a digit: 1g.5gb.
        None if part.starts_with(|c: char| c.is_ascii_digit()) && !part.contains('.') => {
            Err(format!("`{part}` lacks an `x` between count and type"))
        }
        None => Ok((1, part)),
        Some((count, name)) => {
            let count = count.trim().parse::<usize>().ok().filter(|n| (1..=MOST_GPUS).contains(n));
            let count = count
                .ok_or_else(|| format!("in `{part}` the count is no whole number from 1 to {MOST_GPUS}"))?;
            Ok((count, name.trim()))
        }
    }
}

impl fmt::Display for VirtualSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("virtual:")?;
        for (i, (count, gpu)) in self.parts.iter().enumerate() {
            write!(f, "{}{count}x{}", if i > 0 { "+" } else { "" }, gpu.model.name)?;
            if !gpu.has_activity {
                write!(f, "@{NO_ACTIVITY}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use carma_interference::power::PowerLaw as _;
    use carma_interference::share::Demand;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<VirtualSpec, String> {
        text.parse::<VirtualSpec>().map_err(|e| e.why)
    }

    #[test]
    fn lists_are_read_in_order() {
        let spec = parse("virtual:2xA100-40GB+1xH200").unwrap();
        let memory: Vec<u64> = spec.gpus().iter().map(|gpu| gpu.model.memory_mib).collect();
        assert_eq!(memory, [40_960, 40_960, 143_771]);
        assert_eq!(spec.count(), 3);
        assert_eq!(
            parse("virtual: 3 x a100-80gb + h100").unwrap().to_string(),
            "virtual:3xA100-80GB+1xH100-80GB"
        );
        assert_eq!(parse("virtual:2xcustom-24GB").unwrap().gpus()[0].model.memory_mib, 24 * 1024);
        assert_eq!(parse("virtual:4096xT4").unwrap().count(), 4096);
    }

    #[test]
    fn a_gpu_can_be_cut_into_instances() {
        let names = |text: &str| -> Vec<String> {
            parse(text).unwrap().gpus().iter().map(|gpu| gpu.model.name.to_string()).collect()
        };
        assert_eq!(names("virtual:1xA100-40GB/7x1g.5gb"), ["A100-40GB/1g.5gb"; 7]);
        assert_eq!(names("virtual:A100-40GB/1G.5GB"), ["A100-40GB/1g.5gb"]);
        let mixed =
            ["A100-40GB/3g.20gb", "A100-40GB/2g.10gb", "A100-40GB/3g.20gb", "A100-40GB/2g.10gb", "T4"];
        assert_eq!(names("virtual:2xA100-40GB/1x3g.20gb, 2g.10gb+T4"), mixed);
        for text in ["virtual:2xA100-40GB/3g.20gb,2g.10gb+T4", "virtual:1xA100-40GB/7x1g.5gb"] {
            let spec = text.parse::<VirtualSpec>().unwrap();
            assert_eq!(spec.to_string().parse::<VirtualSpec>().unwrap().gpus(), spec.gpus());
        }
    }

    #[test]
    fn a_gpu_can_lack_activity() {
        let spec = parse("virtual:2xa100-40gb@no-activity + H200+A100-40GB/2x3g.20gb@No-Activity").unwrap();
        assert_eq!(
            spec.gpus().iter().map(|gpu| gpu.has_activity).collect::<Vec<_>>(),
            [false, false, true, false, false]
        );
        let printed = "virtual:2xA100-40GB@no-activity+1xH200+2xA100-40GB/3g.20gb@no-activity";
        assert_eq!(spec.to_string(), printed);
        assert_eq!(parse(printed).unwrap().gpus(), spec.gpus());
    }

    #[test]
    fn errors_name_the_bad_part_and_list_the_types() {
        for (text, part) in [
            ("4xA100-40GB", "virtual:"),
            ("virtual:", "empty"),
            ("virtual:2xA100-40GB+", "empty"),
            ("virtual:0xH200", "`0xH200`"),
            ("virtual:-1xH200", "`-1xH200`"),
            ("virtual:4097xH200", "`4097xH200`"),
            ("virtual:4096xH200+1xT4", "more than 4096"),
            ("virtual:2xB200", "`B200`"),
            ("virtual:2xA100", "A100-40GB or A100-80GB"),
            ("virtual:4A100-40GB", "`4A100-40GB`"),
            ("virtual:1xCUSTOM-0GB", "CUSTOM-0GB"),
            ("virtual:1xCUSTOM-1025GB", "CUSTOM-1025GB"),
            ("virtual:1xA100-40GB/8x1g.5gb", "holds at most 7 of 1g.5gb"),
            ("virtual:1xA100-40GB/5g.5gb", "has no such MIG profile"),
            ("virtual:1xA100-40GB/", "empty"),
            ("virtual:1xT4/1g.5gb", "it has: none"),
            ("virtual:700xA100-40GB/7x1g.5gb", "more than 4096"),
            ("virtual:2xT4@", "`@` is not"),
            ("virtual:2xT4@activity", "`@activity` is not `@no-activity`"),
            ("virtual:2xT4@no-activity@no-activity", "is not"),
            ("virtual:@no-activity", "empty"),
        ] {
            let why = parse(text).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
        let error = "virtual:2xB200".parse::<VirtualSpec>().unwrap_err().to_string();
        assert!(error.contains("A100-40GB, A100-80GB") && error.contains("CUSTOM-<n>GB"), "{error}");
    }

    /// Rows of the H200 table, each within 15 %.
    #[test]
    fn power_agrees_with_the_h200_table() {
        let power = GpuType::find("h200").unwrap().power;
        let drawn = |gract, sm, dram| power.drawn_w(&Demand { gract, sm, dram, ..Demand::default() });
        for (gract, smact, dram, watts) in [
            (0.397, 0.224, 0.046, 212.0),
            (0.997, 0.495, 0.098, 320.0),
            (0.999, 0.533, 0.108, 341.0),
            (0.713, 0.446, 0.107, 306.0),
            (0.999, 0.897, 0.267, 523.0),
            (1.0, 0.967, 0.326, 559.0),
            (0.759, 0.575, 0.233, 426.0),
            (1.0, 0.963, 0.476, 676.0),
            (0.707, 0.545, 0.220, 407.0),
            (0.999, 0.727, 0.288, 493.0),
        ] {
            let said = drawn(gract, smact, dram);
            assert!((said / watts - 1.0).abs() < 0.15, "law {said:.0} W, measured {watts} W");
        }
        assert_eq!(drawn(1.0, 1.0, 1.0), 700.0);
    }

    proptest! {
        #[test]
        fn no_text_breaks_it(text in ".{0,60}") {
            let _ = text.parse::<VirtualSpec>();
            let _ = format!("virtual:{text}").parse::<VirtualSpec>();
        }

        #[test]
        fn what_is_printed_reads_back(parts in prop::collection::vec((1..50_usize, 0..12_usize, any::<bool>()), 1..6)) {
            let types = GpuTypes::built_in();
            let names: Vec<_> = types.iter().map(|gpu| gpu.name.clone()).collect();
            let text: Vec<String> = parts
                .iter()
                .map(|(n, at, plain)| format!("{n}x{}{}", names[*at], if *plain { "@no-activity" } else { "" }))
                .collect();
            let text = format!("virtual:{}", text.join("+"));
            let spec = text.parse::<VirtualSpec>().unwrap();
            prop_assert_eq!(spec.to_string(), text);
        }
    }
}
