//! Orders about jobs and GPUs: all of them are tried.

use super::Context;
use super::printed::Printed;
use super::signals::{self, INTERRUPTED};
use crate::cli::IdRange;
use carma_api::wire::{
    DoneReply, JobsReply, MOST_AT_ONCE, OrderOutcome, OrdersReply, OrdersRequest, RefusedView,
};
use carma_api::{Client, ClientError, parse};
use carma_cli::clean;
use carma_cli::failure::{Failure, Outcome};
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

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

/// Orders that the daemon takes for several jobs in one request.
const OF_SEVERAL: [&str; 5] = ["cancel", "hold", "release", "suspend", "resume"];
/// HTTP status of an address that the daemon does not know: it is older.
const NO_SUCH_ADDRESS: u16 = 404;

/// HTTP status of a daemon that is busy.
const BUSY: u16 = 503;

/// How long a busy daemon is asked again.
const BUSY_FOR: Duration = Duration::from_secs(10);
/// Between two such requests.
const RETRY: Duration = Duration::from_millis(250);

/// What came of an order.
type Done = Result<String, ClientError>;

/// What came of an order for those that got it, and what kept it from the others.
struct Given {
    done: Vec<(u64, Done)>,
    ended: Option<Ended>,
}

/// What kept an order from those that were left.
struct Ended {
    failure: Failure,
    left: usize,
    /// Whether these may have got it all the same: the answer was lost.
    perhaps: bool,
}

impl Ended {
    fn by(error: ClientError, left: usize) -> Self {
        let perhaps = matches!(error, ClientError::Broken { .. } | ClientError::Silent { .. });
        Self { failure: error.into(), left, perhaps }
    }
}

/// Gives an order for each target, and says what came of it in the order in which they were named.
pub(crate) fn give(context: &Context, target: Target, ranges: &[IdRange], order: &str) -> Outcome {
    let mut client = context.client()?;
    let named = IdRange::all(ranges);
    let mut ids = named.clone();
    // Jobs that are released stand in the queue by when they were: the first that is named first.
    if target == Target::Jobs && ids.len() > 1 && order != "release" {
        match client.get::<JobsReply>("/v1/jobs") {
            // In the order of the queue, as the daemon tells it.
            Ok(live) => {
                let waiting = live.jobs.iter().filter(|job| job.state == "PENDING").map(|job| job.id);
                ids = waiting_first(ids, waiting);
            }
            // It has no turn for a listing now: the order matters more.
            Err(ClientError::Refused { .. }) => {}
            Err(e) => {
                let ended = Ended { perhaps: false, ..Ended::by(e, ids.len()) };
                return Told::of(target).end(Some(ended));
            }
        }
    }
    let stopped = if ids.len() > 1 { signals::stopped_between_requests()? } else { Arc::default() };
    let Given { done, ended } = give_all(&mut client, target, ids, order, &stopped);
    let mut told = Told::of(target);
    for (id, done) in in_order(&named, done) {
        told.add(id, done);
    }
    told.end(ended)
}

/// Gives an order for each in turn, with as few requests as the daemon lets it be. What came of it, as far as it got.
/// `stopped`: no more is asked once it is set.
fn give_all(client: &mut Client, target: Target, ids: Vec<u64>, order: &str, stopped: &AtomicBool) -> Given {
    let mut several = target == Target::Jobs && ids.len() > 1 && OF_SEVERAL.contains(&order);
    let (mut left, mut done) = (VecDeque::from(ids), Vec::new());
    while let Some(next) = left.front().copied() {
        if stopped.load(Ordering::Relaxed) {
            let failure = Failure { code: INTERRUPTED, ..Failure::new("interrupted") };
            return Given { done, ended: Some(Ended { failure, left: left.len(), perhaps: false }) };
        }
        let answer = if several {
            let ids = left.iter().copied().take(MOST_AT_ONCE as usize).collect();
            ask_of_several(client, order, &OrdersRequest { ids })
        } else {
            match ask(client, target, next, order) {
                Err(broken) if !broken.is_refusal() => Err(broken),
                answer => Ok(vec![(next, answer)]),
            }
        };
        match answer {
            Ok(outcomes) => {
                // An answer without any would be asked for again and again.
                left.drain(..outcomes.len().clamp(1, left.len()));
                done.extend(outcomes);
            }
            Err(ClientError::Refused { status: NO_SUCH_ADDRESS, .. }) => several = false,
            Err(error) => return Given { done, ended: Some(Ended::by(error, left.len())) },
        }
    }
    Given { done, ended: None }
}

/// Gives an order to as many of these jobs as the daemon has time for; again while it has no turn for it.
fn ask_of_several(
    client: &mut Client,
    order: &str,
    request: &OrdersRequest,
) -> Result<Vec<(u64, Done)>, ClientError> {
    let since = Instant::now();
    loop {
        match client.post::<OrdersReply>(&format!("/v1/orders/{order}"), request) {
            Err(ClientError::Refused { status: BUSY, .. }) if since.elapsed() < BUSY_FOR => {
                thread::sleep(RETRY)
            }
            answer => {
                let outcomes = answer?.outcomes.into_iter();
                return Ok(outcomes.map(|outcome| (outcome.id, of_job(outcome))).collect());
            }
        }
    }
}

/// What came of it in the order in which the targets were named.
fn in_order(named: &[u64], mut done: Vec<(u64, Done)>) -> Vec<(u64, Done)> {
    let places: BTreeMap<u64, usize> = named.iter().enumerate().map(|(place, id)| (*id, place)).collect();
    done.sort_by_key(|(id, _)| places.get(id).copied());
    done
}

/// What came of an order for one of several jobs.
fn of_job(outcome: OrderOutcome) -> Done {
    let OrderOutcome { id, text, refused } = outcome;
    match refused {
        None => Ok(line(Target::Jobs, id, &text)),
        Some(RefusedView { status, code }) => Err(ClientError::Refused { status, code, message: text }),
    }
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

/// Lines of refusals: those that differ by the number alone are one.
const TOLD: usize = 20;

/// Refusals that say the same of each.
struct Alike {
    first: Failure,
    /// Of the others.
    ids: Vec<u64>,
}

/// What was done, said at once, and what was refused, said at the end: so that what is left to do is not above a screen of what was done.
struct Told {
    target: Target,
    printed: Printed,
    done: usize,
    /// In the order of the first of each kind.
    refused: Vec<Alike>,
    /// Places of these by what they say.
    kinds: BTreeMap<String, usize>,
}

impl Told {
    fn of(target: Target) -> Self {
        Self { target, printed: Printed::default(), done: 0, refused: Vec::new(), kinds: BTreeMap::new() }
    }

    fn add(&mut self, id: u64, done: Done) {
        match done {
            Ok(done) => {
                self.done += 1;
                self.printed.add(|| writeln!(io::stdout().lock(), "{done}"));
            }
            Err(refusal) => {
                let kind = kind(&refusal, self.target, id);
                match self.kinds.get(&kind).and_then(|place| self.refused.get_mut(*place)) {
                    Some(alike) => alike.ids.push(id),
                    None => {
                        self.kinds.insert(kind, self.refused.len());
                        self.refused.push(Alike { first: refusal.into(), ids: Vec::new() });
                    }
                }
            }
        }
    }

    /// `ended`: what kept the others from it, said last. It gives the exit code, and else the first refusal.
    fn end(self, ended: Option<Ended>) -> Outcome {
        let how = ended.map(|ended| self.ended(ended));
        let code = self.refused.first().map_or(0, |alike| alike.first.code);
        let mut refused = self.refused.into_iter();
        refused.by_ref().take(TOLD).for_each(|alike| alike.told(self.target).tell());
        let more: usize = refused.map(|alike| alike.number()).sum();
        if more > 0 {
            Failure::new(format!("{more} more were refused")).tell();
        }
        match how {
            Some(ended) => Err(ended),
            None => Ok(self.printed.end(code)),
        }
    }

    /// Says how far it got, where it was about several.
    fn ended(&self, Ended { failure, left, perhaps }: Ended) -> Failure {
        let refused: usize = self.refused.iter().map(Alike::number).sum();
        let all = self.done + refused + left;
        if all == 1 {
            return failure;
        }
        let how = if perhaps { "may not have got it" } else { "did not get it" };
        let but = match refused {
            0 => String::new(),
            1 => ", 1 was refused".to_owned(),
            _ => format!(", {refused} were refused"),
        };
        let how_far =
            format!("of {all} {}s {} got the order{but}, {left} {how}", self.target.word(), self.done);
        Failure { message: failure.message.map(|text| format!("{text}; {how_far}")), ..failure }
    }
}

impl Alike {
    const fn number(&self) -> usize {
        1 + self.ids.len()
    }

    /// What was said of the first, and of which others the same was.
    fn told(self, target: Target) -> Failure {
        let Self { first, ids } = self;
        let plural = if ids.len() == 1 { "" } else { "s" };
        let message = first.message.map(|text| match ids.len() {
            0 => text,
            _ => format!("{text}; likewise {}{plural} {}", target.word(), parse::ranges(ids)),
        });
        Failure { message, ..first }
    }
}

/// What a refusal says whatever its number: the text without it where it follows `job` or ends a command (`carma show 3`).
fn kind(refusal: &ClientError, target: Target, id: u64) -> String {
    let text = refusal.to_string().replace(&format!(" {id}`"), " #`");
    let named = format!("{} {id}", target.word());
    let mut parts = text.split(&named);
    let mut kind = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        // `job 3` is no part of `job 31`.
        kind.push_str(if part.starts_with(|c: char| c.is_ascii_digit()) { &named } else { "#" });
        kind.push_str(part);
    }
    kind
}

/// Does something for each and says what was done, and then what was refused. Neither a refusal nor a closed standard output stops the others.
pub(crate) fn each<T>(target: Target, all: Vec<(u64, T)>, mut one: impl FnMut(T) -> Done) -> Outcome {
    let (mut told, mut left) = (Told::of(target), all.len());
    for (id, item) in all {
        match one(item) {
            Err(broken) if !broken.is_refusal() => return told.end(Some(Ended::by(broken, left))),
            done => told.add(id, done),
        }
        left -= 1;
    }
    told.end(None)
}

/// Gives one order; returns what was done.
pub(crate) fn ask(client: &mut Client, target: Target, id: u64, order: &str) -> Result<String, ClientError> {
    let path = format!("/v1/{}/{id}/{order}", target.path());
    let done: DoneReply = client.post(&path, &serde_json::json!({}))?;
    Ok(line(target, id, &done.text))
}

/// What was done, and to what.
pub(crate) fn line(target: Target, id: u64, text: &str) -> String {
    let subject = format!("{} {id}", target.word());
    let text = clean(text);
    if text.contains(&subject) { text.into_owned() } else { format!("{subject}: {text}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Read};
    use std::os::unix::net::UnixListener;

    #[test]
    fn what_waits_goes_first_from_the_end_of_the_queue() {
        // Shortest first: 9 is at the head, and 5 is held. 2 and 8 run.
        assert_eq!(waiting_first((1..=9).collect(), [9, 3, 5].into_iter()), [5, 3, 9, 1, 2, 4, 6, 7, 8]);
        assert_eq!(waiting_first(vec![7, 4], [].into_iter()), [7, 4]);
    }

    #[test]
    fn what_came_of_it_is_told_as_it_was_asked() {
        let done = |id: u64| (id, Ok(format!("job {id} is held")));
        let refused = ClientError::Refused { status: 404, code: "x".into(), message: "no".into() };
        let all = vec![done(9), done(7), (8, Err(refused))];
        let told: Vec<String> = in_order(&[5, 7, 8, 9], all)
            .into_iter()
            .map(|(_, done)| done.unwrap_or_else(|e| e.to_string()))
            .collect();
        assert_eq!(told, ["job 7 is held", "no", "job 9 is held"]);
    }

    /// Answers of a daemon, one a request, in turn; and what it was asked.
    fn asked(answers: &'static [(&'static str, &'static str)], ids: &[u64]) -> (Vec<String>, Given) {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let daemon = std::thread::spawn(move || {
            let mut stream = BufReader::new(listener.accept().unwrap().0);
            let mut asked = Vec::new();
            for (status, body) in answers {
                let (mut first, mut length) = (String::new(), 0);
                stream.read_line(&mut first).unwrap();
                loop {
                    let mut line = String::new();
                    stream.read_line(&mut line).unwrap();
                    if let Some(of_body) = line.strip_prefix("content-length: ") {
                        length = of_body.trim().parse().unwrap();
                    }
                    if line.trim().is_empty() {
                        break;
                    }
                }
                let mut sent = vec![0; length];
                stream.read_exact(&mut sent).unwrap();
                let path = first.split(' ').nth(1).unwrap();
                asked.push(format!("{path} {}", String::from_utf8(sent).unwrap()));
                let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
                stream.get_mut().write_all(answer.as_bytes()).unwrap();
            }
            asked
        });
        let mut client = Client::connect(&socket).unwrap();
        let given = give_all(&mut client, Target::Jobs, ids.to_vec(), "hold", &AtomicBool::new(false));
        drop(client);
        (daemon.join().unwrap(), given)
    }

    /// What came of it, and last what kept it from the others.
    fn texts(Given { done, ended }: Given) -> Vec<String> {
        let done =
            done.into_iter().map(|(id, done)| format!("{id}: {}", done.unwrap_or_else(|e| e.to_string())));
        let ended = ended.map(|Ended { failure, left, perhaps }| {
            format!("{}: {left} left, perhaps {perhaps}", failure.message.unwrap_or_default())
        });
        done.chain(ended).collect()
    }

    #[test]
    fn what_there_was_no_time_for_is_asked_again() {
        let answers = &[
            (
                "200 OK",
                r#"{"version":1,"outcomes":[{"id":3,"text":"job 3 is held"},
                    {"id":1,"text":"no","refused":{"status":404,"code":"not_found"}}]}"#,
            ),
            ("503 X", r#"{"version":1,"code":"busy","error":"16 requests of yours are worked on"}"#),
            ("200 OK", r#"{"version":1,"outcomes":[{"id":2,"text":"job 2 is held"}]}"#),
            ("507 X", r#"{"version":1,"code":"internal","error":"the disk is full"}"#),
        ];
        let (asked, given) = asked(answers, &[3, 1, 2, 5, 4]);
        let path = "/v1/orders/hold";
        let lists =
            ["[3,1,2,5,4]", "[2,5,4]", "[2,5,4]", "[5,4]"].map(|ids| format!("{path} {{\"ids\":{ids}}}"));
        assert_eq!(asked, lists);
        let ended = "the disk is full: 2 left, perhaps false";
        assert_eq!(texts(given), ["3: job 3 is held", "1: no", "2: job 2 is held", ended]);
    }

    #[test]
    fn what_was_done_before_an_interruption_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let _listener = UnixListener::bind(&socket).unwrap();
        let mut client = Client::connect(&socket).unwrap();
        let given = give_all(&mut client, Target::Jobs, vec![1, 2, 3], "cancel", &AtomicBool::new(true));
        assert_eq!(given.ended.as_ref().map(|ended| ended.failure.code), Some(INTERRUPTED));
        assert_eq!(texts(given), ["interrupted: 3 left, perhaps false"]);
    }

    #[test]
    fn an_older_daemon_is_asked_for_each_job() {
        let answers = &[
            ("404 X", r#"{"version":1,"code":"not_found","error":"there is no such address"}"#),
            ("200 OK", r#"{"version":1,"id":2,"text":"job 2 is held"}"#),
            ("409 X", r#"{"version":1,"code":"conflict","error":"no"}"#),
        ];
        let (asked, given) = asked(answers, &[2, 1]);
        assert_eq!(asked[1..], ["/v1/jobs/2/hold {}", "/v1/jobs/1/hold {}"]);
        assert_eq!(texts(given), ["2: job 2 is held", "1: no"]);
    }

    fn refused(text: &str) -> ClientError {
        ClientError::Refused { status: 409, code: "conflict".into(), message: text.into() }
    }

    #[test]
    fn refusals_that_differ_by_the_number_alone_are_one() {
        let mut told = Told::of(Target::Jobs);
        for id in [3, 31, 4, 5, 9] {
            told.add(id, Err(refused(&format!("job {id} is over already; see `carma show {id}`"))));
        }
        // A number that is another's, or no job's, stays.
        told.add(1, Err(refused("job 1 waits for job 11")));
        told.add(2, Err(refused("job 2 waits for job 11")));
        told.add(6, Err(refused("job 6 needs 6 GiB")));
        told.add(7, Err(refused("job 7 needs 7 GiB")));
        let told: Vec<_> =
            told.refused.into_iter().map(|alike| alike.told(Target::Jobs).message.unwrap()).collect();
        let alike = [
            "job 3 is over already; see `carma show 3`; likewise jobs 4-5,9,31",
            "job 1 waits for job 11; likewise job 2",
            "job 6 needs 6 GiB",
            "job 7 needs 7 GiB",
        ];
        assert_eq!(told, alike);
    }

    #[test]
    fn a_break_is_told_with_how_far_it_got() {
        let mut told = Told::of(Target::Gpus);
        told.done = 12;
        let how = |told: &Told, left, perhaps| {
            told.ended(Ended { failure: Failure::new("x"), left, perhaps }).message.unwrap()
        };
        assert_eq!(how(&told, 3, true), "x; of 15 GPUs 12 got the order, 3 may not have got it");
        told.add(3, Err(refused("no")));
        assert_eq!(how(&told, 1, false), "x; of 14 GPUs 12 got the order, 1 was refused, 1 did not get it");
        assert_eq!(how(&Told::of(Target::Jobs), 1, true), "x");
    }

    #[test]
    fn the_answer_says_what_it_is_about() {
        assert_eq!(line(Target::Jobs, 3, "held"), "job 3: held");
        assert_eq!(line(Target::Jobs, 3, "job 3 is held"), "job 3 is held");
        assert_eq!(line(Target::Gpus, 0, "drained"), "GPU 0: drained");
    }
}
