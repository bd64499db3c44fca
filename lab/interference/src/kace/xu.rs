//! Xu et al. with their features in KACE's place: a baseline.

use super::protocol::Case;
use super::score::{Fitted, Scorer};
use super::table::{Collocation, Member};
use super::trainer::{Kace, Options};
use super::{Artifact, Error};
use carma_interference::kace::trained::Trained;
use std::collections::BTreeMap;

/// Xu et al. (HotCloud 2019) as KACE's artifact rebuilt them: a random forest on PCIe bandwidths, kernel lengths,
/// threads and utilisations. **For comparison offline only**: kernel length as a predictor of placement is covered
/// by US patent 11113093; nothing in carma places tasks by it.
#[derive(Debug, Clone)]
pub struct XuOffline {
    solo: BTreeMap<String, Vec<f64>>,
    kace: Kace,
}

impl XuOffline {
    /// From the artifact's solo profiles of Xu et al.'s features.
    ///
    /// # Errors
    /// Their files are absent or wrong.
    pub fn new(artifact: &Artifact, options: Options) -> Result<Self, Error> {
        let (features, solo) = artifact.solo_hotcloud()?;
        Ok(Self { solo, kace: Kace::new(&features, options) })
    }

    fn row(&self, row: &Collocation) -> Result<Collocation, Error> {
        let member = |m: &Member| {
            let features = self.solo.get(&m.workload).cloned().ok_or_else(|| {
                Error::new(
                    &m.workload,
                    "no solo profile with the features of Xu et al. in ncu_solo_features_hotcloud.csv",
                )
            })?;
            Ok(Member { features, ..m.clone() })
        };
        Ok(Collocation { members: row.members.iter().map(member).collect::<Result<_, Error>>()? })
    }
}

struct XuFitted<'s> {
    xu: &'s XuOffline,
    trained: Trained,
}

impl Scorer for XuOffline {
    fn fit<'s>(&'s self, train: &[&Collocation]) -> Result<Box<dyn Fitted + 's>, Error> {
        let rows: Vec<Collocation> = train.iter().map(|r| self.row(r)).collect::<Result<_, _>>()?;
        let trained = self.kace.train(&rows.iter().collect::<Vec<_>>())?;
        Ok(Box::new(XuFitted { xu: self, trained }))
    }
}

impl Fitted for XuFitted<'_> {
    fn scores(&self, case: &Case<'_>) -> Result<Vec<f64>, Error> {
        let rows: Vec<Collocation> = case.test.iter().map(|r| self.xu.row(r)).collect::<Result<_, _>>()?;
        self.trained.scores(&Case { target: case.target, test: rows.iter().collect() })
    }
}
