//! Names of GPUs, as NVML, `nvidia-smi`, carma and people write them.
//!
//! A product's name is cut into words. Some say nothing that matters: the maker, the line, the plug. Two keys
//! are made of the others. The *type's* tells apart what has other memory (`A100-40GB`, `H100 NVL`), the
//! *chip's* does not (`A100`, `H100`). Where the two leave out different words, that is because what was
//! learned is stored under the chip's name, so that it must stay what it was.

/// What a word tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Word {
    /// Neither type nor chip.
    Nothing,
    /// Of a name, the type: `40GB`.
    Type,
    /// Of a name, the chip only.
    Chip,
    /// Both: `A100`.
    Both,
}

impl Word {
    fn of(word: &str) -> Self {
        // What is between a beginning and an end that a word may have.
        let number = |begin: &str, end: &str| {
            let digits = word.strip_prefix(begin)?.strip_suffix(end)?;
            digits.bytes().all(|b| b.is_ascii_digit()).then_some(digits)
        };
        match word {
            "" | "NVIDIA" | "TESLA" | "GEFORCE" | "VIRTUAL" | "GPU" | "PCIE" => Self::Nothing,
            "NVL" | "SIMULATED" => Self::Type,
            "QUADRO" | "PCI" | "E" | "GENERATION" => Self::Chip,
            _ if number("SXM", "").is_some() || number("HBM", "").is_some() => Self::Nothing,
            _ if number("HBM", "E").is_some_and(|digits| !digits.is_empty()) => Self::Chip,
            _ if number("", "GB").is_some_and(|digits| !digits.is_empty()) => Self::Type,
            _ => Self::Both,
        }
    }
}

/// The words of a name in capitals, `""` among them.
fn words(upper: &str) -> impl Iterator<Item = &str> {
    upper.split(|c: char| !c.is_ascii_alphanumeric())
}

/// What all names of a type have in common: `A10040GB` of `NVIDIA A100-SXM4-40GB` and of `a100-40gb`.
#[must_use]
pub fn type_key(name: &str) -> String {
    let upper = name.to_uppercase();
    words(&upper).filter(|word| matches!(Word::of(word), Word::Type | Word::Both)).collect()
}

/// The chip's name: `A100` of `NVIDIA A100-SXM4-40GB`; `UNKNOWN` of a name that says nothing. One of `known` where
/// that is among the words, whatever else is.
#[must_use]
pub fn chip<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let upper = name.to_uppercase();
    if let Some(known) = known.into_iter().find(|known| words(&upper).any(|word| word == *known)) {
        return known.to_owned();
    }
    let telling: Vec<&str> =
        words(&upper).filter(|word| matches!(Word::of(word), Word::Chip | Word::Both)).collect();
    if telling.is_empty() { "UNKNOWN".to_owned() } else { telling.join("-") }
}

/// The one of these that is meant by the name of a model: its name in upper or lower case, or the beginning of it
/// up to a `-` where only one has that.
///
/// # Errors
/// An unknown or ambiguous name.
pub(crate) fn pick<'a, T>(all: &'a [T], name: &str, name_of: impl Fn(&T) -> &str) -> Result<&'a T, String> {
    if let Some(exact) = all.iter().find(|one| name_of(one).eq_ignore_ascii_case(name)) {
        return Ok(exact);
    }
    let family = format!("{}-", name.to_ascii_uppercase());
    let mut members = all.iter().filter(|one| name_of(one).to_ascii_uppercase().starts_with(&family));
    match (members.next(), members.next()) {
        (Some(one), None) => Ok(one),
        (Some(one), Some(other)) => {
            Err(format!("GPU type `{name}` is ambiguous: {} or {}", name_of(one), name_of(other)))
        }
        (None, _) => Err(format!("unknown GPU type `{name}`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Facts, predicted};

    /// Product, type in the table, chip, whether the predictor has measurements of that.
    #[test]
    fn names_of_products_are_known() {
        for (product, of_type, of_chip, measured) in [
            ("NVIDIA H200", Some("H200"), "H200", true),
            ("h200", Some("H200"), "H200", true),
            ("Virtual H200", Some("H200"), "H200", true),
            ("NVIDIA A100-SXM4-40GB", Some("A100-40GB"), "A100", true),
            ("NVIDIA A100-PCIE-40GB", Some("A100-40GB"), "A100", true),
            ("Virtual A100-40GB", Some("A100-40GB"), "A100", true),
            ("a100-40gb", Some("A100-40GB"), "A100", true),
            ("A100", Some("A100-40GB"), "A100", true),
            ("NVIDIA A100 80GB PCIe", Some("A100-80GB"), "A100", true),
            ("Tesla V100-SXM2-16GB", Some("V100-16GB"), "V100", true),
            ("Tesla V100-SXM2-32GB", Some("V100-32GB"), "V100", true),
            ("V100", Some("V100-16GB"), "V100", true),
            ("NVIDIA H100 80GB HBM3", Some("H100-80GB"), "H100", false),
            ("NVIDIA H100 PCIe", Some("H100-80GB"), "H100", false),
            ("h100", Some("H100-80GB"), "H100", false),
            ("NVIDIA H100 NVL", None, "H100", false),
            ("NVIDIA H100 80GB HBM2e", Some("H100-80GB"), "H100-HBM2E", false),
            ("Tesla T4", Some("T4"), "T4", false),
            ("NVIDIA L40S", Some("L40S"), "L40S", false),
            ("NVIDIA L40", Some("L40S"), "L40", false),
            ("NVIDIA A10G", Some("A10"), "A10G", false),
            ("Tesla P100-SXM2-16GB", Some("P100-16GB"), "P100", false),
            ("NVIDIA RTX A6000", Some("RTX-A6000"), "RTX-A6000", false),
            ("NVIDIA RTX 6000 Ada Generation", Some("RTX6000-Ada"), "RTX-6000-ADA-GENERATION", false),
            ("NVIDIA GeForce RTX 2080 Ti", Some("RTX-2080Ti"), "RTX-2080-TI", false),
            ("NVIDIA GeForce RTX 3090", Some("RTX-3090"), "RTX-3090", false),
            ("NVIDIA Graphics Device", None, "GRAPHICS-DEVICE", false),
            ("Quadro RTX 8000", None, "QUADRO-RTX-8000", false),
            ("Simulated H200", None, "H200", true),
            ("A100X", None, "A100X", false),
            ("H2000", None, "H2000", false),
            ("Voodoo 2", None, "VOODOO-2", false),
            ("GB", None, "GB", false),
            ("NVIDIA GPU 80GB", None, "UNKNOWN", false),
            ("", None, "UNKNOWN", false),
        ] {
            assert_eq!(Facts::of_product(product).map(|facts| &*facts.name), of_type, "{product}");
            let (chip, prediction) = predicted(product);
            assert_eq!((chip.as_str(), prediction.is_some()), (of_chip, measured), "{product}");
        }
    }

    /// The simulator's own names are stricter: nobody simulates by accident.
    #[test]
    fn a_model_is_meant_by_its_name_or_the_beginning_of_one() {
        let all = ["A100-40GB", "A100-80GB", "H100-80GB", "T4"];
        for (name, picked) in [
            ("t4", Ok("T4")),
            ("h100", Ok("H100-80GB")),
            ("a100-80gb", Ok("A100-80GB")),
            ("a100", Err("GPU type `a100` is ambiguous: A100-40GB or A100-80GB")),
            ("A1", Err("unknown GPU type `A1`")),
            ("NVIDIA T4", Err("unknown GPU type `NVIDIA T4`")),
            ("", Err("unknown GPU type ``")),
        ] {
            assert_eq!(pick(&all, name, |one| one).copied(), picked.map_err(str::to_owned), "{name}");
        }
    }
}
