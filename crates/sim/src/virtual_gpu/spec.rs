//! Which virtual GPUs to make: `virtual:4xA100-40GB`, `virtual:2xA100-40GB+1xH200`.

use carma_core::units::MiB;
use carma_interference::share::Capacities;
use std::fmt;
use std::str::FromStr;

/// The most virtual GPUs that one host takes.
pub const MOST_GPUS: usize = 4096;

/// What a virtual GPU is a model of.
#[derive(Debug, Clone, PartialEq)]
pub struct VirtualModel {
    /// Name in a specification, e.g. `A100-40GB`.
    pub name: String,
    /// Memory, MiB. All of it can be allocated: the driver's own reserve is not modelled.
    pub memory: MiB,
    /// Power with nothing running, watts.
    pub idle_w: f64,
    /// Power limit, watts: no load draws more.
    pub cap_w: f64,
    /// Capacities of the share law on this GPU.
    pub capacities: Capacities,
}

/// name, memory MiB, idle W, cap W, whether the H200's measured capacities are used.
///
/// Memory is what `nvidia-smi` shows as total. The cap is the board's power limit from NVIDIA's data
/// sheets, except for A100-40GB: the DGX Station that CARMA was measured on, idle at 55 W and on a
/// plateau of 270-280 W when busy. All other idle powers are assumed. H200 uses the capacities that
/// were measured on one, H100 the same (assumed: same architecture), all others the prior.
const MODELS: [(&str, u64, f64, f64, bool); 12] = [
    ("A100-40GB", 40_960, 55.0, 280.0, false),
    ("A100-80GB", 81_920, 60.0, 400.0, false),
    ("H100-80GB", 81_559, 70.0, 700.0, true),
    ("H200", 143_771, 75.0, 700.0, true),
    ("V100-16GB", 16_384, 40.0, 300.0, false),
    ("V100-32GB", 32_768, 40.0, 300.0, false),
    ("L40S", 46_068, 35.0, 350.0, false),
    ("L4", 23_034, 16.0, 72.0, false),
    ("A40", 46_068, 30.0, 300.0, false),
    ("A30", 24_576, 30.0, 165.0, false),
    ("A10", 23_028, 20.0, 150.0, false),
    ("T4", 15_360, 10.0, 70.0, false),
];

/// `CUSTOM-<n>GB` with n from 1 to this: any memory size, 50 W idle, 300 W cap (assumed).
const MOST_CUSTOM_GIB: u64 = 1024;

impl VirtualModel {
    /// The model of a name, upper or lower case; short names (`H100`) where only one fits.
    fn find(name: &str) -> Result<Self, String> {
        let upper = name.to_ascii_uppercase();
        if let Some(size) = upper.strip_prefix("CUSTOM-") {
            let gib = size.strip_suffix("GB").and_then(|n| n.parse::<u64>().ok());
            return match gib {
                Some(gib) if (1..=MOST_CUSTOM_GIB).contains(&gib) => Ok(Self {
                    name: format!("CUSTOM-{gib}GB"),
                    memory: MiB::gib(gib),
                    idle_w: 50.0,
                    cap_w: 300.0,
                    capacities: Capacities::PRIOR,
                }),
                _ => {
                    Err(format!("`{name}`: a custom GPU is CUSTOM-<n>GB with n from 1 to {MOST_CUSTOM_GIB}"))
                }
            };
        }
        let exact = MODELS.iter().find(|(known, ..)| *known == upper);
        let family = format!("{upper}-");
        let mut members = MODELS.iter().filter(|(known, ..)| known.starts_with(&family));
        let found = match (exact, members.next(), members.next()) {
            (Some(model), ..) | (None, Some(model), None) => model,
            (None, Some(one), Some(other)) => {
                return Err(format!("GPU type `{name}` is ambiguous: {} or {}", one.0, other.0));
            }
            (None, None, _) => return Err(format!("unknown GPU type `{name}`")),
        };
        let &(name, memory, idle_w, cap_w, hopper) = found;
        let capacities = if hopper { Capacities::H200 } else { Capacities::PRIOR };
        Ok(Self { name: name.to_owned(), memory: MiB(memory), idle_w, cap_w, capacities })
    }

    /// Power at an activity, watts.
    ///
    /// `idle + (cap - idle) * min(1, 0.2 GRACT + 0.2 SMACT + 1.2 DRAM)`. The three factors were
    /// fitted to the one table there is (H200, two ResNets, k = 1 to 7: within 15 % of each row) and
    /// are assumed for every other type. Clocks, temperature and tensor pipes are not modelled.
    #[must_use]
    pub fn power_w(&self, gract: f64, smact: f64, dram: f64) -> f64 {
        let load = (0.2 * gract + 0.2 * smact + 1.2 * dram).clamp(0.0, 1.0);
        self.idle_w + (self.cap_w - self.idle_w) * load
    }
}

/// A list of virtual GPUs in order. Parsed from `virtual:<count>x<type>[+<count>x<type>...]`; a type
/// alone means one. Prints back in that form.
#[derive(Debug, Clone, PartialEq)]
pub struct VirtualSpec {
    parts: Vec<(usize, VirtualModel)>,
}

/// What is wrong with a specification, and what would be right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "virtual GPUs `{spec}`: {why}. Write virtual:<count>x<type>, several joined by `+`; types: {}",
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
    let mut names: Vec<&str> = MODELS.iter().map(|(name, ..)| *name).collect();
    names.push("CUSTOM-<n>GB");
    names.join(", ")
}

impl VirtualSpec {
    /// Number of GPUs.
    #[must_use]
    pub fn count(&self) -> usize {
        self.parts.iter().map(|(count, _)| count).sum()
    }

    /// One model a GPU, in order.
    #[must_use]
    pub fn models(&self) -> Vec<VirtualModel> {
        self.parts.iter().flat_map(|(count, model)| std::iter::repeat_n(model.clone(), *count)).collect()
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
        let mut parts = Vec::new();
        let mut total = 0_usize;
        for part in list.split('+') {
            let part = part.trim();
            if part.is_empty() {
                return Err(wrong("a part is empty".to_owned()));
            }
            let (count, name) = match part.split_once(['x', 'X']) {
                // A type alone; none of them contains an x.
                None if part.starts_with(|c: char| c.is_ascii_digit()) => {
                    return Err(wrong(format!("`{part}` lacks an `x` between count and type")));
                }
                None => (1, part),
                Some((count, name)) => {
                    let count = count.trim().parse::<usize>().ok().filter(|n| (1..=MOST_GPUS).contains(n));
                    let count = count.ok_or_else(|| {
                        wrong(format!("in `{part}` the count is no whole number from 1 to {MOST_GPUS}"))
                    })?;
                    (count, name.trim())
                }
            };
            total += count;
            if total > MOST_GPUS {
                return Err(wrong(format!("more than {MOST_GPUS} GPUs")));
            }
            parts.push((count, VirtualModel::find(name).map_err(wrong)?));
        }
        Ok(Self { parts })
    }
}

impl fmt::Display for VirtualSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("virtual:")?;
        for (i, (count, model)) in self.parts.iter().enumerate() {
            write!(f, "{}{count}x{}", if i > 0 { "+" } else { "" }, model.name)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<VirtualSpec, String> {
        text.parse::<VirtualSpec>().map_err(|e| e.why)
    }

    #[test]
    fn lists_are_read_in_order() {
        let spec = parse("virtual:2xA100-40GB+1xH200").unwrap();
        let memory: Vec<u64> = spec.models().iter().map(|m| m.memory.0).collect();
        assert_eq!(memory, [40_960, 40_960, 143_771]);
        assert_eq!(spec.count(), 3);
        assert_eq!(
            parse("virtual: 3 x a100-80gb + h100").unwrap().to_string(),
            "virtual:3xA100-80GB+1xH100-80GB"
        );
        assert_eq!(parse("virtual:2xcustom-24GB").unwrap().models()[0].memory, MiB::gib(24));
        assert_eq!(parse("virtual:4096xT4").unwrap().count(), 4096);
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
        let model = VirtualModel::find("h200").unwrap();
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
            let law = model.power_w(gract, smact, dram);
            assert!((law / watts - 1.0).abs() < 0.15, "law {law:.0} W, measured {watts} W");
        }
        assert_eq!(model.power_w(1.0, 1.0, 1.0), 700.0);
    }

    proptest! {
        #[test]
        fn no_text_breaks_it(text in ".{0,60}") {
            let _ = text.parse::<VirtualSpec>();
            let _ = format!("virtual:{text}").parse::<VirtualSpec>();
        }

        #[test]
        fn what_is_printed_reads_back(parts in prop::collection::vec((1..50_usize, 0..MODELS.len()), 1..6)) {
            let text: Vec<String> = parts.iter().map(|(n, at)| format!("{n}x{}", MODELS[*at].0)).collect();
            let text = format!("virtual:{}", text.join("+"));
            let spec = text.parse::<VirtualSpec>().unwrap();
            prop_assert_eq!(spec.to_string(), text);
        }
    }
}
