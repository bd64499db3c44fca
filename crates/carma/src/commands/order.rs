//! Orders about jobs and GPUs: one request each, all of them tried.

use super::Context;
use super::printed::Printed;
use crate::cli::IdRange;
use carma_api::wire::DoneReply;
use carma_api::{Client, ClientError};
use carma_cli::clean;
use carma_cli::failure::{Failure, Outcome};
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
    each(IdRange::all(ranges), |id| ask(&mut client, target, id, order))
}

/// Refusals that are told one by one: of a range that is larger than what there is, many are the same.
const TOLD: usize = 20;

/// Does something for each and says what was done. Neither a refusal nor a closed standard output stops the others; the exit
/// code is that of the first refusal.
pub(crate) fn each<T>(
    all: impl IntoIterator<Item = T>,
    mut one: impl FnMut(T) -> Result<String, ClientError>,
) -> Outcome {
    let (mut code, mut refused, mut printed) = (0, 0, Printed::default());
    for item in all {
        match one(item) {
            Ok(done) => printed.add(|| writeln!(io::stdout().lock(), "{done}")),
            Err(refusal @ ClientError::Refused { .. }) => {
                let failure = Failure::from(refusal);
                refused += 1;
                if refused <= TOLD {
                    failure.tell();
                }
                code = if code == 0 { failure.code } else { code };
            }
            Err(other) => return Err(other.into()),
        }
    }
    if refused > TOLD {
        Failure::new(format!("{} more were refused", refused - TOLD)).tell();
    }
    Ok(printed.end(code))
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
    fn the_answer_says_what_it_is_about() {
        let done = |text: &str| DoneReply { version: 1, id: 3, text: text.into() };
        assert_eq!(line(Target::Jobs, 3, &done("held")), "job 3: held");
        assert_eq!(line(Target::Jobs, 3, &done("job 3 is held")), "job 3 is held");
        assert_eq!(line(Target::Gpus, 0, &done("drained")), "GPU 0: drained");
    }
}
