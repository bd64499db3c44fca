//! What `GET /v1/slowdowns` is answered with, before it is JSON.

use carma_api::VERSION;
use carma_api::wire::SlowdownsReply;
use carma_core::model::SharingMode;
use carma_interference::online::SlowdownModel;
use carma_interference::profile::Profiles;

/// What is known of jobs alone, and what was learned of slowdowns, as it was when it was asked for.
#[derive(Debug, PartialEq)]
pub struct Told {
    /// Product name of the GPUs that the profiles are of.
    pub(super) gpu: String,
    /// How jobs share GPUs where they do not say.
    pub(super) sharing: SharingMode,
    /// One task a job, named by its number.
    pub(super) profiles: Profiles,
    /// Jobs that were not seen alone on that type yet.
    pub(super) unknown: Vec<u64>,
    /// What predictions of those jobs go by.
    pub(super) model: SlowdownModel,
}

impl Told {
    /// As it travels. A model of several types of GPU and ways of sharing is tens of thousands of numbers, each of which becomes an
    /// object: the engine has others make them.
    #[must_use]
    pub fn reply(self) -> SlowdownsReply {
        SlowdownsReply {
            version: VERSION,
            gpu: self.gpu,
            sharing: Some(self.sharing),
            profiles: serde_json::to_value(&self.profiles).unwrap_or_default(),
            unknown: self.unknown,
            model: serde_json::to_value(&self.model).unwrap_or_default(),
        }
    }
}
