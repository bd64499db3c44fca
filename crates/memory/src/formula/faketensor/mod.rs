//! The peak of live tensors under PyTorch's `FakeTensorMode`, raw and corrected.
//!
//! The number counts activations, gradients and temporaries of one forward and backward pass. It leaves
//! out weights, optimizer, library workspaces, the allocator's segments and the CUDA context, and so is
//! nearly always under: by 45 % on average on the timm set.
//!
//! The correction is a linear function of what is known beside it, and where the model has a name as
//! timm gives them, of its family. It was fitted by least relative absolute deviations (the median
//! runs, not the outliers of `cudnn.benchmark`, decide) on half of the models of the timm set that
//! GPUMemNet published (1,017 models in 5 batch sizes on an A100-40GB, training in 32 bits). Its bound
//! is the 95 % quantile of measured over corrected of models that a fit had not seen. Running a model under
//! `FakeTensorMode` is not part of this: the number is given.

use super::answer;
use crate::{Error, Estimate, MiB, Platform};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// CUDA context in the measurements of the fit, MiB: part of the constant.
const CONTEXT_OF_FIT_MIB: f64 = 1429.0;
/// Constant part that a family's factor leaves alone, MiB.
pub const FIXED_MIB: f64 = 1400.0;

/// What is known of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Inputs<'a> {
    /// Name of the model as in timm; empty where unknown.
    pub model: &'a str,
    /// Samples a step.
    pub batch: u64,
    /// Peak under `FakeTensorMode`, MiB.
    pub peak_mib: f64,
    /// What is alive after the forward pass, MiB.
    pub after_forward_mib: Option<f64>,
    /// Weights in 32 bits, MiB.
    pub weights_mib: Option<f64>,
}

/// Which numbers a correction takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Terms {
    /// The peak.
    Peak,
    /// Peak and weights.
    PeakWeights,
    /// Peak, state after the forward pass, weights, batch, and roots of peak and weights.
    All,
}

/// A fitted correction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Correction {
    /// What it takes.
    pub terms: Terms,
    /// Coefficients in the order of [`Terms`], the constant first.
    pub coefficients: Vec<f64>,
    /// Factors by the letters that names begin with: `resnet` for `resnet50d`.
    pub families: BTreeMap<String, f64>,
    /// Factors by what stands before the first underscore: `resnet50d`. Applied after the former.
    pub series: BTreeMap<String, f64>,
    /// Bound over estimate.
    pub upper: f64,
}

/// The corrections that carma ships, for what may be known.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Corrections {
    /// From the peak alone.
    pub peak: Correction,
    /// From peak and weights.
    pub peak_weights: Correction,
    /// From everything but the model's name.
    pub all: Correction,
    /// From everything.
    pub named: Correction,
}

impl Terms {
    /// Values that the coefficients multiply; `None` where one is not known.
    #[must_use]
    pub fn values(self, x: &Inputs<'_>) -> Option<Vec<f64>> {
        let peak = x.peak_mib;
        Some(match self {
            Self::Peak => vec![1.0, peak],
            Self::PeakWeights => vec![1.0, peak, x.weights_mib?],
            Self::All => {
                let weights = x.weights_mib?;
                vec![1.0, peak, x.after_forward_mib?, weights, x.batch as f64, peak.sqrt(), weights.sqrt()]
            }
        })
    }
}

/// Letters at the beginning of a name.
#[must_use]
pub fn family(model: &str) -> &str {
    let end = model.find(|c: char| !c.is_ascii_lowercase()).unwrap_or(model.len());
    &model[..end]
}

/// What stands before the first underscore.
#[must_use]
pub fn series(model: &str) -> &str {
    model.split('_').next().unwrap_or(model)
}

impl Correction {
    /// Corrected peak as measured in the campaign of the fit, MiB; `None` where a number is missing.
    #[must_use]
    pub fn mib(&self, x: &Inputs<'_>) -> Option<f64> {
        let values = self.terms.values(x)?;
        let linear: f64 = values.iter().zip(&self.coefficients).map(|(v, c)| v * c).sum();
        let mut over = (linear - FIXED_MIB).max(0.0);
        for (table, key) in [(&self.families, family(x.model)), (&self.series, series(x.model))] {
            over *= table.get(key).copied().unwrap_or(1.0);
        }
        Some(FIXED_MIB + over)
    }

    /// Whether the model's family was seen by the fit.
    #[must_use]
    pub fn knows(&self, model: &str) -> bool {
        self.families.contains_key(family(model))
    }
}

impl Corrections {
    /// What `carma` ships: fitted on the half of the timm set that [`crate::bench`] does not test on.
    ///
    /// # Errors
    /// None unless the shipped file was damaged.
    pub fn shipped() -> Result<Self, Error> {
        serde_json::from_str(include_str!("timm.json"))
            .map_err(|e| Error::bad("formula/faketensor/timm.json of carma", e.to_string()))
    }

    /// The one that uses most of what is known.
    #[must_use]
    pub fn best(&self, x: &Inputs<'_>) -> (&Correction, &'static str) {
        match (x.weights_mib, x.after_forward_mib) {
            (Some(_), Some(_)) if self.named.knows(x.model) => {
                (&self.named, "peak, state after the forward pass, weights, batch and family")
            }
            (Some(_), Some(_)) => (&self.all, "peak, state after the forward pass, weights and batch"),
            (Some(_), None) => (&self.peak_weights, "peak and weights"),
            (None, _) => (&self.peak, "peak"),
        }
    }
}

/// Refuses numbers that no run has.
fn check(x: &Inputs<'_>) -> Result<(), Error> {
    let numbers =
        [("peak", Some(x.peak_mib)), ("after_forward", x.after_forward_mib), ("weights", x.weights_mib)];
    for (name, value) in numbers {
        if value.is_some_and(|v| !(0.0..=1e9).contains(&v)) {
            return Err(Error::bad(
                format!("faketensor, {name}"),
                format!("expected MiB between 0 and 1e9, found {value:?}"),
            ));
        }
    }
    Ok(())
}

/// The number as it is: for comparison. It bounds nothing, as it is nearly always under.
///
/// # Errors
/// A number that no run has.
pub fn raw(x: &Inputs<'_>, platform: &Platform) -> Result<Estimate, Error> {
    check(x)?;
    let (upper, _) = super::no_bound(platform);
    let reasons = vec![
        "peak of live tensors under FakeTensorMode: no weights, optimizer, workspaces, segments or context"
            .to_owned(),
        "bound: all of the GPU, as the number is nearly always under (by 45 % on average on 1,017 models)"
            .to_owned(),
    ];
    Ok(answer("faketensor/raw", "unknown", MiB(x.peak_mib.ceil() as u64), upper, reasons))
}

/// The corrected number, with the platform's context instead of the fit's.
///
/// # Errors
/// A number that no run has.
pub fn corrected(x: &Inputs<'_>, platform: &Platform) -> Result<Estimate, Error> {
    check(x)?;
    let corrections = Corrections::shipped()?;
    let (correction, from) = corrections.best(x);
    let fitted = correction.mib(x).ok_or_else(|| Error::Missing {
        estimator: "faketensor",
        what: "the peak under FakeTensorMode".to_owned(),
    })?;
    let context = platform.context_mib.0 as f64;
    let held = (fitted - CONTEXT_OF_FIT_MIB).max(x.peak_mib);
    let upper = context + (held + CONTEXT_OF_FIT_MIB) * correction.upper - CONTEXT_OF_FIT_MIB;
    let reasons = vec![
        format!(
            "corrected from {from}: {fitted:.0} MiB on the A100-40GB of the fit, of which {CONTEXT_OF_FIT_MIB} are context"
        ),
        format!("CUDA context {} MiB ({})", platform.context_mib.0, platform.context_source),
        "fitted on training of image models in 32 bits; another optimizer or precision is not accounted for"
            .to_owned(),
        format!(
            "bound: {:.2} times, as 95 % of the runs that the fit had not seen stayed below",
            correction.upper
        ),
    ];
    Ok(answer(
        "faketensor",
        family(x.model),
        MiB((context + held).ceil() as u64),
        MiB(upper.ceil() as u64),
        reasons,
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn names() {
        assert_eq!((family("resnet50d.a1"), series("vit_base_patch16")), ("resnet", "vit"));
        assert_eq!((family(""), series("")), ("", ""));
        assert_eq!((family("Ünder"), family("été")), ("", ""));
    }

    #[test]
    fn more_knowledge_is_used_and_nonsense_refused() {
        let platform = Platform::lookup("A100-40GB", (2, 6)).unwrap();
        let x = Inputs {
            model: "resnet50",
            batch: 32,
            peak_mib: 2673.0,
            after_forward_mib: None,
            weights_mib: None,
        };
        let from = |x: &Inputs<'_>| corrected(x, &platform).unwrap().reasons[0].clone();
        assert!(from(&x).starts_with("corrected from peak:"));
        let more = Inputs { weights_mib: Some(97.5), ..x };
        assert!(from(&more).starts_with("corrected from peak and weights:"));
        let all = Inputs { after_forward_mib: Some(2600.0), ..more };
        assert!(from(&all).contains("family"));
        assert!(from(&Inputs { model: "zebra", ..all }).contains("and batch:"));
        let e = corrected(&all, &platform).unwrap();
        assert!(e.upper_mib > e.use_mib && e.use_mib > MiB(3000));
        for peak_mib in [f64::NAN, -1.0, f64::INFINITY] {
            assert!(corrected(&Inputs { peak_mib, ..x }, &platform).is_err());
            assert!(raw(&Inputs { peak_mib, ..x }, &platform).is_err());
        }
    }
}
