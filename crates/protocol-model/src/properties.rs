//! What must hold.

use crate::{ATTEMPTS, End, Job, Outcome, Over, Phase, Protocol, State, Supervisor};
use stateright::{Model, Property};

/// The properties, by name.
pub const NAMES: [&str; 9] =
    [ONE_AT_A_TIME, ONCE, DONE, TRUE_END, NOT_WITHOUT_START, NOT_AFTER_CANCEL, NO_CHARGE, FENCE, NOT_STUCK];

const ONE_AT_A_TIME: &str = "no two commands of a job run at the same time";
const ONCE: &str = "no command of an attempt is started twice";
const DONE: &str = "no job runs again that was done before it was asked to end";
const TRUE_END: &str = "an end that was recorded is the end that is told";
const NOT_WITHOUT_START: &str = "no job is completed or failed without having been started";
const NOT_AFTER_CANCEL: &str = "no command starts after its job's cancel was answered";
const NO_CHARGE: &str = "no death is charged to a job";
const FENCE: &str = "no supervisor can claim an attempt that is over";
const NOT_STUCK: &str = "no job is stuck";

impl Protocol {
    pub(crate) fn all_properties() -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_AT_A_TIME, |_, s: &State| {
                (0..s.journal.len()).all(|job| {
                    let of = |key: &&crate::Key| key.job == job && key.life >= s.ghost.since;
                    s.runs.keys().filter(of).filter(|key| s.runs[*key].has_command()).count() <= 1
                })
            }),
            Property::always(ONCE, |_, s: &State| s.ghost.starts.iter().flatten().all(|starts| *starts <= 1)),
            Property::always(DONE, |_, s: &State| {
                s.ghost.written.iter().zip(&s.ghost.starts).all(|(written, starts)| {
                    let done = written.iter().position(|written| *written == Some((End::Zero, false)));
                    done.is_none_or(|at| starts.iter().skip(at + 1).all(|starts| *starts == 0))
                })
            }),
            Property::always(TRUE_END, |_, s: &State| {
                s.journal.iter().zip(&s.ghost.written).all(|(job, written)| is_true(job, written))
            }),
            Property::always(NOT_WITHOUT_START, |_, s: &State| {
                s.journal.iter().zip(&s.ghost.starts).all(|(job, starts)| {
                    let ran = matches!(job.phase, Phase::Done(Outcome::Completed | Outcome::Failed));
                    !ran || starts.iter().any(|starts| *starts > 0)
                })
            }),
            Property::always(NOT_AFTER_CANCEL, |_, s: &State| !s.ghost.late_start),
            Property::always(NO_CHARGE, |_, s: &State| s.journal.iter().all(|job| job.charges == 0)),
            Property::always(FENCE, |_, s: &State| {
                s.runs.iter().all(|(key, run)| {
                    let may = run.supervisor == Supervisor::Spawned
                        && s.directories & (1 << key.life) != 0
                        && !s.records.contains_key(key);
                    !(may && s.over(*key).is_some())
                })
            }),
            Property::always(NOT_STUCK, |model: &Self, s: &State| {
                let mut actions = Vec::new();
                model.actions(s, &mut actions);
                // More attempts than the model has would come next.
                let ended = |job: &Job| match job.phase {
                    Phase::Done(_) => true,
                    Phase::Pending => usize::from(job.attempt) == ATTEMPTS,
                    _ => false,
                };
                !actions.is_empty() || s.journal.iter().all(ended)
            }),
            // What must be possible, so that nothing holds for want of anything happening.
            Property::sometimes("a job is completed in the last life", |model: &Self, s: &State| {
                s.daemon.life == model.lives
                    && s.journal.iter().all(|job| job.phase == Phase::Done(Outcome::Completed))
            }),
            Property::sometimes("a second attempt runs", |_, s: &State| {
                s.ghost.starts.iter().any(|s| s[1] > 0)
            }),
        ]
    }
}

/// What is told of each attempt that is over, and what of the job if its last attempt decided it.
fn is_true(job: &Job, written: &[Option<(End, bool)>; ATTEMPTS]) -> bool {
    let attempts = job.over.iter().zip(written).all(|(over, written)| match (over, written) {
        (Some(over), Some((end, _))) => *over == Over::Exited(*end),
        _ => true,
    });
    let last = written.get(usize::from(job.attempt).wrapping_sub(1)).copied().flatten();
    attempts
        && match (job.phase, last) {
            (Phase::Done(Outcome::Completed), Some((end, _))) => end == End::Zero,
            (Phase::Done(Outcome::Failed), Some((end, _))) => end == End::Other,
            _ => true,
        }
}
