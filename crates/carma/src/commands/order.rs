//! Orders about jobs and GPUs: one request each, all of them tried.

use super::Context;
use super::printed::Printed;
use crate::cli::IdRange;
use carma_api::wire::{DoneReply, JobsReply};
use carma_api::{Client, ClientError};
use carma_cli::clean;
use carma_cli::failure::{Failure, Outcome};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{self, Write};

/// What an order is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// Numbers of jobs.
    Jobs,
    /// Indices or UUIDs of GPUs.
    Gpus,
}

impl Target {
    const fn path(self) -> &'static str {
        match self {
            Self::Jobs => "jobs",
            Self::Gpus => "gpus",
        }
    }

    const fn word(self) -> &'static str {
        match self {
            Self::Jobs => "job",
            Self::Gpus => "GPU",
        }
    }
}

/// Gives an order for each target.
pub(crate) fn give(context: &Context, target: Target, ranges: &[IdRange], order: &str) -> Outcome {
    let mut client = context.client()?;
    let mut ids = IdRange::all(ranges);
    if target == Target::Jobs && ids.len() > 1 {
        match client.get::<JobsReply>("/v1/jobs") {
            // In the order of the queue, as the daemon tells it.
            Ok(live) => {
                let waiting = live.jobs.iter().filter(|job| job.state == "PENDING").map(|job| job.id);
                ids = waiting_first(ids, waiting);
            }
            // It has no turn for a listing now: the order matters more.
            Err(ClientError::Refused { .. }) => {}
            Err(e) => return Err(e.into()),
        }
    }
    each(ids, |id| ask(&mut client, target, id, order))
}

/// Jobs that wait before those that run, and of those the last to come first: by what one leaves, none starts that is about to get the
/// same order. Else `carma cancel 1-60` would start most of those that it cancels.
fn waiting_first(ids: Vec<u64>, waiting: impl Iterator<Item = u64>) -> Vec<u64> {
    let places: BTreeMap<u64, usize> = waiting.enumerate().map(|(place, id)| (id, place)).collect();
    let (mut first, then): (Vec<_>, Vec<_>) = ids.into_iter().partition(|id| places.contains_key(id));
    first.sort_by_key(|id| Reverse(places.get(id)));
    first.extend(then);
    first
}

/// Refusals that are told one by one: of a range that is larger than what there is, many are the same.
const TOLD: usize = 20;

/// Does something for each and says what was done, and then what was refused. Neither a refusal nor a closed standard output stops the others; the exit
/// code is that of the first refusal.
pub(crate) fn each<T>(
    all: impl IntoIterator<Item = T>,
    mut one: impl FnMut(T) -> Result<String, ClientError>,
) -> Outcome {
    let (mut refused, mut printed, mut broken) = (Vec::new(), Printed::default(), None);
    for item in all {
        match one(item) {
            Ok(done) => printed.add(|| writeln!(io::stdout().lock(), "{done}")),
            Err(refusal @ ClientError::Refused { .. }) => refused.push(Failure::from(refusal)),
            Err(other) => {
                broken = Some(other);
                break;
            }
        }
    }
    // Last, so that what is left to do is not above a screen of what was done.
    refused.iter().take(TOLD).for_each(Failure::tell);
    if refused.len() > TOLD {
        Failure::new(format!("{} more were refused", refused.len() - TOLD)).tell();
    }
    match broken {
        Some(broken) => Err(broken.into()),
        None => Ok(printed.end(refused.first().map_or(0, |first| first.code))),
    }
}

/// Gives one order; returns what was done.
pub(crate) fn ask(client: &mut Client, target: Target, id: u64, order: &str) -> Result<String, ClientError> {
    let path = format!("/v1/{}/{id}/{order}", target.path());
    let done: DoneReply = client.post(&path, &serde_json::json!({}))?;
    Ok(line(target, id, &done))
}

/// What was done, and to what.
pub(crate) fn line(target: Target, id: u64, done: &DoneReply) -> String {
    let subject = format!("{} {id}", target.word());
    let text = clean(&done.text);
    if text.contains(&subject) { text.into_owned() } else { format!("{subject}: {text}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_goes_first_from_the_end_of_the_queue() {
        // Shortest first: 9 is at the head, and 5 is held. 2 and 8 run.
        assert_eq!(waiting_first((1..=9).collect(), [9, 3, 5].into_iter()), [5, 3, 9, 1, 2, 4, 6, 7, 8]);
        assert_eq!(waiting_first(vec![7, 4], [].into_iter()), [7, 4]);
    }

    #[test]
    fn the_answer_says_what_it_is_about() {
        let done = |text: &str| DoneReply { version: 1, id: 3, text: text.into() };
        assert_eq!(line(Target::Jobs, 3, &done("held")), "job 3: held");
        assert_eq!(line(Target::Jobs, 3, &done("job 3 is held")), "job 3 is held");
        assert_eq!(line(Target::Gpus, 0, &done("drained")), "GPU 0: drained");
    }
}
