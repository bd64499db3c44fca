//! Tasks that tests of the simulator share.

use carma_core::units::MiB;
use carma_sim::trace::{Activity, CatalogueTask};
use std::sync::Arc;

/// A task of so much memory that keeps this share of a GPU busy.
pub(crate) fn task(name: &str, gib: u64, level: f64) -> Arc<CatalogueTask> {
    let activity = Activity {
        gract: Some(level),
        smact: Some(level),
        smocc: Some(level / 2.0),
        drama: Some(level / 3.0),
        ..Activity::default()
    };
    let memory = vec![MiB::gib(gib)];
    Arc::new(CatalogueTask { name: name.into(), memory, activity, ..CatalogueTask::default() })
}
