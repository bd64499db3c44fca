//! What is checked of a submission before the core sees it, and the job that the core gets.

use crate::config::limits::UserLimits;
use crate::gist::Gist;
use crate::quota;
use crate::refused::Refused;
use carma_api::wire::SubmitRequest;
use carma_api::{output, parse};
use carma_core::model::{Forecasts, JobId, NewJob, Request, SharingMode, User};
use carma_core::units::{Fraction, MiB, Millis};
use carma_memory::command::Command;
use std::collections::BTreeMap;
use std::io;

/// Longest path that the kernel takes, bytes (`PATH_MAX`, its end not counted).
const LONGEST_PATH: usize = 4095;

/// Longest argument that the kernel takes, bytes (`MAX_ARG_STRLEN`, its end not counted).
const LONGEST_ARGUMENT: usize = (128 << 10) - 1;
/// What may be submitted beside the environment, as JSON, bytes: about what the kernel takes of arguments.
const LARGEST_REST: u64 = 2 << 20;
/// More memory than any GPU will have for long, MiB: what is said to take more is a mistake of units.
const LARGEST_MEMORY: u64 = 16 << 20;
/// Longest name of a job, bytes.
const LONGEST_NAME: usize = 200;

/// Values of a submission (words, variables, what was estimated), about: each takes memory of its own, however short it is.
/// Lists of files that a shell makes have some ten thousand.
const MOST_VALUES: usize = 32_768;

/// A submission that was found to be in order, as far as that can be said without the state.
pub struct Submission {
    request: SubmitRequest,
    bytes: u64,
    rest: u64,
    gist: Gist,
}

impl Submission {
    /// Reads and checks one of this user. It takes time in proportion to its size.
    ///
    /// # Errors
    /// 400 for what is not understood or cannot be, 403 for what the user may never have.
    pub fn read(body: &[u8], uid: u32, limits: &UserLimits) -> Result<Self, Refused> {
        let bad = |text: String| Refused::new(400, "bad_request", text);
        if values(body) > MOST_VALUES {
            return Err(bad(format!(
                "the submission has more than {MOST_VALUES} words and variables: give the job's arguments in a file, or unset what it does not need"
            )));
        }
        let request = serde_json::from_slice(body)
            .map_err(|e| bad(format!("the submission is not understood: {e}")))?;
        Self::check(request, uid, limits)
    }

    /// Checks one that was read. It takes time in proportion to its size, too.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn check(request: SubmitRequest, uid: u32, limits: &UserLimits) -> Result<Self, Refused> {
        let bytes = size(&request);
        let rest = bytes.saturating_sub(size(&request.env));
        check_request(&request, rest)?;
        quota::may_ever(&request, limits)?;
        let gist = Gist::of(&request, uid);
        Ok(Self { request, bytes, rest, gist })
    }

    /// What is submitted.
    #[must_use]
    pub const fn request(&self) -> &SubmitRequest {
        &self.request
    }

    /// What it takes as JSON, bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What it takes beside its environment, as the journal has it, bytes.
    #[must_use]
    pub const fn rest(&self) -> u64 {
        self.rest
    }

    /// Gives up what is known of it but what forecasts need.
    #[must_use]
    pub fn into_parts(self) -> (SubmitRequest, Gist) {
        (self.request, self.gist)
    }
}

/// How many values a text in JSON has, about: the commas outside of its strings.
fn values(json: &[u8]) -> usize {
    let (mut quoted, mut escaped, mut commas) = (false, false, 0);
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = quoted,
            b'"' => quoted = !quoted,
            b',' if !quoted => commas += 1,
            _ => {}
        }
    }
    commas
}

/// Bytes that something takes as JSON.
fn size(value: &impl serde::Serialize) -> u64 {
    struct Count(u64);
    impl io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len() as u64;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // What cannot be written as JSON is written nowhere.
    serde_json::to_writer(&mut count, value).map_or(0, |()| count.0)
}

/// What the core cannot know to be wrong. `rest`: what it takes beside its environment.
fn check_request(request: &SubmitRequest, rest: u64) -> Result<(), Refused> {
    let bad = |text: String| Err(Refused::new(400, "bad_request", text));
    if request.command.first().is_none_or(String::is_empty) {
        return bad(
            "the job has no command; write it after `--`, e.g. carma submit -- python train.py".into()
        );
    }
    let strings = request.command.iter().chain(request.env.keys()).chain(request.env.values());
    if strings.chain([&request.cwd]).any(|s| s.contains('\0')) {
        return bad("the command, the directory or the environment contains a NUL byte".into());
    }
    if request.env.keys().any(|key| key.is_empty() || key.contains('=')) {
        return bad("the name of an environment variable is empty or contains '='".into());
    }
    let paths = [
        ("working directory", Some(&request.cwd)),
        ("output file", request.output.as_ref()),
        ("checkpoint directory", request.checkpoint_dir.as_ref()),
    ];
    for (what, path) in paths {
        if let Some(bytes) = path.map(String::len).filter(|bytes| *bytes > LONGEST_PATH) {
            return bad(format!(
                "the path of the {what} has {bytes} bytes, and {LONGEST_PATH} are the most that the system takes; give a shorter one"
            ));
        }
    }
    if !request.cwd.starts_with('/') {
        return bad(format!("the working directory must be absolute, not '{}'", request.cwd));
    }
    if let Some(output) = &request.output
        && (!output.starts_with('/') || output.contains('\0'))
    {
        return bad(format!("the output file must be an absolute path, not '{output}'"));
    }
    if let Some(pattern) = &request.output {
        output::check(pattern).or_else(bad)?;
    }
    if let Some(grace) = request.grace_ms {
        parse::check_grace(Millis(grace)).or_else(bad)?;
        if request.checkpoint_signal.is_none() {
            return bad("a grace is the time to save the work after a signal; say which, \
                 e.g. --checkpoint-signal USR1, or leave --grace out"
                .into());
        }
    }
    if let Some(dir) = &request.checkpoint_dir
        && (!dir.starts_with('/') || dir.contains('\0'))
    {
        return bad(format!("the checkpoint directory must be an absolute path, not '{dir}'"));
    }
    if let Some(pct) = request.max_slowdown_pct.filter(|pct| !(100..=100_000).contains(pct)) {
        return bad(format!(
            "a slowdown of at most {:.2} cannot be kept; give 1 (nothing may slow it down) to 1000",
            f64::from(pct) / 100.0
        ));
    }
    if let Some(us) = request.latency_us {
        parse::check_latency(us).or_else(bad)?;
    }
    check_sharing(request).or_else(bad)?;
    if request.name.as_ref().is_some_and(|n| n.len() > LONGEST_NAME) {
        return bad(format!("the name is longer than {LONGEST_NAME} bytes"));
    }
    let mut arguments = request.command.iter().map(String::len).enumerate();
    if let Some((at, bytes)) = arguments.find(|(_, bytes)| *bytes > LONGEST_ARGUMENT) {
        return bad(format!(
            "word {} of the command has {bytes} bytes, and {LONGEST_ARGUMENT} are the most that the system takes; \
             give it in a file",
            at + 1
        ));
    }
    // The kernel takes name and value as one word.
    let bytes_of = |(name, value): (&'_ String, &'_ String)| name.len() + 1 + value.len();
    if let Some(variable) = request.env.iter().find(|variable| bytes_of(*variable) > LONGEST_ARGUMENT) {
        let name: String = variable.0.chars().take(80).collect();
        return bad(format!(
            "the environment variable {name} has {} bytes with its name, and {LONGEST_ARGUMENT} are the most that the \
             system takes; unset it, or give its value in a file",
            bytes_of(variable)
        ));
    }
    if request.time_limit_ms == Some(0) {
        return bad("a time limit of 0 leaves the job no time; give a longer one, or none".into());
    }
    let estimates = [
        ("measured_mib", request.measured_mib),
        ("horus_mib", request.horus_mib),
        ("faketensor_mib", request.faketensor_mib),
        ("gpumemnet_mib", request.gpumemnet_mib),
    ];
    for (key, mib) in estimates {
        if let Some(mib) = mib.filter(|mib| *mib > LARGEST_MEMORY) {
            return bad(format!("{key} is {mib}, and no GPU has more than {LARGEST_MEMORY} MiB"));
        }
    }
    if rest > LARGEST_REST {
        return bad(format!(
            "the job takes {} KiB beside its environment, and {} are allowed: shorten its command, or give \
             arguments in a file",
            rest.div_ceil(1024),
            LARGEST_REST / 1024
        ));
    }
    Ok(())
}

/// That what it says of sharing does not contradict itself: of two such wishes one would be dropped without a word.
/// Alone and time-sliced agree: such a job takes turns with no other, and is outside of MPS either way.
fn check_sharing(request: &SubmitRequest) -> Result<(), String> {
    if request.exclusive && request.sharing == Some(SharingMode::Mps) {
        return Err("--exclusive asks for GPUs without neighbours, and --sharing mps for some under MPS; \
             leave one of them out"
            .to_owned());
    }
    let other =
        request.sharing.filter(|mode| *mode != SharingMode::Mps).map(|mode| format!("--sharing {mode}"));
    let outside = if request.exclusive { Some("--exclusive".to_owned()) } else { other };
    match (request.thread_pct, outside) {
        (Some(_), Some(outside)) => Err(format!(
            "--mps-threads is a share of the threads under MPS, and {outside} keeps the job out of MPS; \
             leave one of them out"
        )),
        _ => Ok(()),
    }
}

/// What a job is called that was given no name: its script, else its program. Many a user's jobs are all `python`.
fn name_of(command: &[String]) -> String {
    let none = BTreeMap::new();
    let of = Command::new(command, &none);
    let path = of.file().or(command.first().map(String::as_str)).unwrap_or_default();
    path.rsplit('/').next().unwrap_or(path).to_owned()
}

/// The job of a submission, of which nothing is forecast yet.
pub(crate) fn new_job(id: JobId, request: &SubmitRequest, user: User, gist: &Gist) -> NewJob {
    let name: String = request.name.clone().unwrap_or_else(|| name_of(&request.command));
    let mut name: String = name.chars().map(|c| if moves_text(c) { ' ' } else { c }).collect();
    // It is in every snapshot and listing.
    name.truncate(name.floor_char_boundary(LONGEST_NAME));
    NewJob {
        id,
        // An owner's authority is asked for again with each order.
        user: User { operator: false, ..user },
        name: name.into(),
        command_key: gist.command_key,
        program_key: gist.program_key,
        request: Request {
            gpus: request.gpus.unwrap_or(1),
            exclusive: request.exclusive,
            sharing: request.sharing,
            thread_percent: request.thread_pct,
            time_limit: request.time_limit_ms.map(Millis),
            priority: request.priority,
            max_retries: request.max_retries,
            max_slowdown: request.max_slowdown_pct.map(Fraction::percent),
            latency_us: request.latency_us,
            save_grace: request.save_grace_ms().map(Millis),
        },
        profile: carma_core::model::Profile::default(),
        run_time: None,
        forecasts: Forecasts { declared: request.gpu_memory_mib.map(MiB), ..Forecasts::default() },
        hold: request.hold,
    }
}

/// The file that a job's user named for its output, with what stands for the job filled in.
///
/// # Errors
/// 400 where that is no path that the system takes.
pub(crate) fn output_file(pattern: &str, job: &NewJob) -> Result<String, Refused> {
    let bad = |text: String| Refused::new(400, "bad_request", text);
    let filling = output::Filling { id: job.id.0, name: &job.name, user: &job.user.name };
    let path = output::fill(pattern, filling).map_err(bad)?;
    // A short pattern may make a long path of a name.
    if path.len() > LONGEST_PATH {
        return Err(bad(format!(
            "the path of the output file has {} bytes with its names filled in, and {LONGEST_PATH} are the most that the \
             system takes; give a shorter one",
            path.len()
        )));
    }
    Ok(path)
}

/// Whether a character ends lines, turns text round or is not seen, so that a name in a listing would look like something
/// else, or like another's.
fn moves_text(c: char) -> bool {
    c.is_control() || parse::is_deceptive(c)
}

#[cfg(test)]
mod tests {
    use super::*;
    use carma_api::wire::{CheckpointSignal, EstimateView};

    #[test]
    fn a_name_that_comes_from_the_command_is_as_short_as_one_that_is_given() {
        let command = vec![format!("/bin/{}", "é".repeat(1 << 20))];
        let request = SubmitRequest { command, cwd: "/".into(), ..Default::default() };
        let user = User { uid: 7, name: "u".into(), operator: false };
        let job = new_job(JobId(1), &request, user, &Gist::of(&request, 7));
        assert_eq!(&*job.name, "é".repeat(100));
        let request = SubmitRequest { name: Some("me\u{200b}me\u{feff}\u{202e}".into()), ..request };
        let user = User { uid: 7, name: "u".into(), operator: false };
        assert_eq!(&*new_job(JobId(1), &request, user, &Gist::of(&request, 7)).name, "me me  ");
    }

    #[test]
    fn the_output_file_of_a_job() {
        let user = User { uid: 7, name: "u".into(), operator: false };
        let command = vec!["../up/../train.py".into()];
        let request = SubmitRequest { command, cwd: "/".into(), ..Default::default() };
        let job = new_job(JobId(12), &request, user.clone(), &Gist::of(&request, 7));
        assert_eq!(output_file("/l/%u/%x-%j", &job).ok().unwrap(), "/l/u/train.py-12");
        let request = SubmitRequest { name: Some("/".repeat(200)), ..request };
        let long = new_job(JobId(12), &request, user, &Gist::of(&request, 7));
        assert_eq!(output_file("/%x", &long).ok().unwrap(), format!("/{}", "_".repeat(200)));
        let refused = output_file(&format!("/{}", "%x".repeat(30)), &long).unwrap_err();
        assert!(refused.text.contains("has 6001 bytes"), "{}", refused.text);
    }

    #[test]
    fn a_job_is_called_by_its_script() {
        let called = |line: &str| name_of(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        for (line, name) in [
            ("python3 -u /home/u/train.py --lr .1", "train.py"),
            ("torchrun --nproc-per-node 2 train.py", "train.py"),
            ("bash run.sh", "run.sh"),
            ("./bin/train --x", "train"),
            ("/usr/bin/sleep 5", "sleep"),
            ("sh -c true", "sh"),
            ("python3 -c pass", "python3"),
        ] {
            assert_eq!(called(line), name, "{line}");
        }
    }

    #[test]
    fn nonsense_is_refused_before_the_journal() {
        let good = SubmitRequest { command: vec!["true".into()], cwd: "/".into(), ..Default::default() };
        let check = |request: &SubmitRequest| Submission::check(request.clone(), 7, &UserLimits::NONE);
        assert!(check(&good).is_ok());
        let saves = SubmitRequest { checkpoint_signal: Some(CheckpointSignal::Usr1), ..good.clone() };
        assert!(check(&saves).is_ok());
        let long = SubmitRequest { output: Some(format!("/{}", "x".repeat(4094))), ..good.clone() };
        assert!(check(&long).is_ok());
        let most = [("A".to_owned(), "x".repeat((128 << 10) - 3))].into();
        assert!(check(&SubmitRequest { env: most, ..good.clone() }).is_ok());
        for bad in [
            SubmitRequest { command: vec![], ..good.clone() },
            SubmitRequest { command: vec!["a\0b".into()], ..good.clone() },
            SubmitRequest { cwd: "relative".into(), ..good.clone() },
            SubmitRequest { env: [("A=B".to_owned(), String::new())].into(), ..good.clone() },
            SubmitRequest { output: Some("x".into()), ..good.clone() },
            SubmitRequest { output: Some("/x/%A.out".into()), ..good.clone() },
            SubmitRequest { checkpoint_dir: Some("x".into()), ..good.clone() },
            SubmitRequest { checkpoint_dir: Some("/a\0b".into()), ..good.clone() },
            SubmitRequest { cwd: format!("/{}", "x".repeat(4095)), ..good.clone() },
            SubmitRequest { output: Some(format!("/{}", "x".repeat(3_000_000))), ..good.clone() },
            SubmitRequest { checkpoint_dir: Some(format!("/{}", "\u{1}".repeat(190_000))), ..good.clone() },
            SubmitRequest { command: vec!["true".into(), "x".repeat(128 << 10)], ..good.clone() },
            SubmitRequest { command: vec!["x".repeat(100_000); 30], ..good.clone() },
            SubmitRequest { env: [("A".to_owned(), "x".repeat((128 << 10) - 2))].into(), ..good.clone() },
            SubmitRequest { time_limit_ms: Some(0), ..good.clone() },
            SubmitRequest { measured_mib: Some(40 << 20), ..good.clone() },
            SubmitRequest { gpumemnet_mib: Some(u64::MAX), ..good.clone() },
            SubmitRequest {
                estimates: vec![EstimateView { reasons: vec!["x".repeat(3 << 20)], ..Default::default() }],
                ..good.clone()
            },
            SubmitRequest { grace_ms: Some(60_000), ..good.clone() },
            SubmitRequest { grace_ms: Some(3_600_001), ..saves.clone() },
            SubmitRequest { grace_ms: Some(0), ..saves.clone() },
        ] {
            assert_eq!(check(&bad).err().unwrap().status, 400);
        }
    }

    #[test]
    fn wishes_that_contradict_each_other_are_refused() {
        use SharingMode::{Exclusive, Mps, TimeSlice};
        let said = |exclusive, sharing, thread_pct| {
            let wish = SubmitRequest { exclusive, sharing, thread_pct, ..Default::default() };
            check_sharing(&wish).err().unwrap_or_default()
        };
        for (exclusive, sharing, threads) in [
            (false, None, Some(50)),
            (false, Some(Mps), Some(50)),
            (true, None, None),
            (true, Some(Exclusive), None),
            (true, Some(TimeSlice), None),
            (false, Some(TimeSlice), None),
        ] {
            assert_eq!(said(exclusive, sharing, threads), "");
        }
        assert!(said(true, Some(Mps), None).starts_with("--exclusive asks"));
        for (exclusive, sharing, other) in [
            (false, Some(TimeSlice), "--sharing time-slice keeps"),
            (false, Some(Exclusive), "--sharing exclusive keeps"),
            (true, None, "--exclusive keeps"),
        ] {
            let text = said(exclusive, sharing, Some(50));
            assert!(text.starts_with("--mps-threads is") && text.contains(other), "{text}");
        }
    }

    #[test]
    fn very_many_words_are_refused_before_they_are_read() {
        let read = |body: &str| Submission::read(body.as_bytes(), 7, &UserLimits::NONE).err().map(|e| e.text);
        let of = |words: usize| format!(r#"{{"cwd":"/","command":["x"{}]}}"#, r#","x""#.repeat(words - 1));
        assert_eq!(read(&of(MOST_VALUES)), None);
        let many = "more than 32768 words and variables";
        assert!(read(&of(200_000)).is_some_and(|text| text.contains(many)));
        let reasons = format!(r#"{{"estimates":[{{"reasons":[1{}]}}]}}"#, ",1".repeat(100_001));
        assert!(read(&reasons).is_some_and(|text| text.contains(many)));
        // Commas of a word are none of these, whatever else is in it.
        let commas = format!(r#"{{"cwd":"/","command":["\\\"{}\\"]}}"#, ",".repeat(100_001));
        assert_eq!(read(&commas), None);
    }

    #[test]
    fn a_submission_is_as_large_as_the_journal_has_it() {
        let env = [("A".to_owned(), "\u{1}\"".repeat(9))].into();
        let command = vec!["é\n".repeat(1000); 3];
        let request = SubmitRequest { command, cwd: "/".into(), env, ..Default::default() };
        let alone = SubmitRequest { env: Default::default(), ..request.clone() };
        let stored = serde_json::to_vec(&alone).unwrap().len() as u64;
        // `{}` is there in place of the environment.
        assert_eq!(Submission::check(request, 7, &UserLimits::NONE).ok().unwrap().rest(), stored - 2);
    }
}
