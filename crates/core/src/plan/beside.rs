//! Who is on a GPU while a plan is made, and what is predicted of them if one more joins.
//!
//! What follows from a prediction is the policy's and the limits' ([`super::slot`]).

use crate::ledger::Gpu;
use crate::model::{GpuId, Job, JobId, SharingMode};
use crate::progress::{Class, Company, Outlook, Pace, Predicted};
use crate::state::State;
use std::collections::BTreeMap;

/// Those who are on a GPU, those that this plan has placed there among them.
pub(super) struct Beside<'a> {
    state: &'a State,
    members: Vec<(JobId, Class)>,
    /// As a newcomer would find them that takes turns, and one under MPS.
    modes: [Mode<'a>; 2],
}

struct Mode<'a> {
    company: Company,
    outlooks: Option<&'a BTreeMap<Class, Outlook>>,
}

const fn at(sharing: SharingMode) -> usize {
    match sharing {
        SharingMode::Exclusive | SharingMode::TimeSlice => 0,
        SharingMode::Mps => 1,
    }
}

impl<'a> Beside<'a> {
    pub(super) fn new(state: &'a State, id: GpuId, gpu: &Gpu) -> Self {
        let members = gpu.tenants.iter().filter_map(|t| Some((t.job, state.job(t.job)?.class())));
        let mode = |sharing| {
            let company = state.company(id, gpu, sharing);
            Mode { outlooks: state.outlooks_of(&company), company }
        };
        Self {
            state,
            members: members.collect(),
            modes: [mode(SharingMode::TimeSlice), mode(SharingMode::Mps)],
        }
    }

    /// A job is placed here.
    pub(super) fn join(&mut self, job: JobId, class: Class, sharing: SharingMode) {
        self.members.push((job, class));
        let others_take_turns = sharing != SharingMode::Mps;
        for mode in &mut self.modes {
            mode.company = mode.company.with(class);
            if others_take_turns {
                mode.company.sharing = SharingMode::TimeSlice;
            }
            mode.outlooks = self.state.outlooks_of(&mode.company);
        }
    }

    /// Who is there, for one who would share in this way.
    pub(super) fn company(&self, sharing: SharingMode) -> &Company {
        &self.modes[at(sharing)].company
    }

    /// What is predicted if a job of this class joins.
    pub(super) fn outlook(&self, class: Class, sharing: SharingMode) -> Option<&'a Outlook> {
        self.modes[at(sharing)].outlooks?.get(&class)
    }

    /// The job of this class: the newcomer, or one that is there.
    pub(super) fn who(&self, newcomer: &Job, class: Class) -> JobId {
        let there = || self.members.iter().find(|(_, of)| *of == class).map(|(job, _)| *job);
        Some(newcomer.spec.id)
            .filter(|_| newcomer.class() == class)
            .or_else(there)
            .unwrap_or(newcomer.spec.id)
    }

    /// What is predicted of each job if one joins, by job number.
    pub(super) fn predicted(&self, newcomer: JobId, outlook: &Outlook) -> Vec<Predicted> {
        let there = self.members.iter().filter_map(|(job, class)| Some((*job, outlook.of(*class)?)));
        let all = there.chain([(newcomer, outlook.joins)]);
        let mut tasks: Vec<Predicted> =
            all.map(|(job, Pace { expected, lower })| Predicted { job, expected, lower }).collect();
        tasks.sort_by_key(|task| task.job);
        tasks
    }
}
