//! One policy, once: a daemon of its own, the jobs at their times, and what became of them.

use super::policies::{Planned, Told};
use super::rows::{
    Attempt, Conditions, Job, LAST_WORDS, Play, Said, Sample, Trace, VERSION, fingerprint, words,
};
use super::tasks::Played;
use super::watch::{self, Gpus};
use crate::service::{Service, Setup, cancel_all, tail};
use crate::{Error, Say};
use carma_api::Client;
use carma_api::wire::{
    AttemptView, JobDetail, JobView, JobsReply, LaunchStats, StatusReply, SubmitReply, SubmitRequest,
};
use carma_core::model::SharingMode;
use carma_interference::rate::printed::Printed;
use carma_interference::rate::tally::Tally;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Between two looks at the jobs, real GPUs; at the GPUs every second one.
const LOOK: Duration = Duration::from_millis(200);
/// The same on virtual GPUs, where time runs faster.
const FAST_LOOK: Duration = Duration::from_millis(40);
/// How long what the play before left on the GPUs may take to go; others have less.
const LEAVING: Duration = Duration::from_secs(20);
const STAYING: Duration = Duration::from_secs(3);
/// How long cancelled jobs may take to end.
const ENDING: Duration = Duration::from_secs(40);
/// Most reasons that are kept of a job.
const MOST_SAID: usize = 200;
/// Up to this number of reasons also those are kept that differ from the last one in words alone; the rest is for new codes.
const MOST_REWORDED: usize = 50;
/// In a daemon's state: by it jobs are found that run on.
const JOURNAL: &str = "carma.db";
/// Why a play ended that had no more time.
pub(super) const USED_UP: &str = "the budget was used up";
/// What is kept of what a failed job printed, bytes.
const MOST_LAST_WORDS: u64 = 600;

/// What all plays share.
pub(super) struct Stage<'a> {
    pub(super) carma: &'a Path,
    pub(super) gpus: &'a mut Gpus,
    /// As `carma serve --gpus` has them.
    pub(super) spec: &'a str,
    pub(super) trace: &'a Trace,
    pub(super) tasks: &'a [Played],
    /// Peaks that were measured, MiB by kind, for policies that have to know them.
    pub(super) peaks: BTreeMap<String, u64>,
    /// How jobs share where the policy does not say.
    pub(super) sharing: SharingMode,
    /// The daemon's configuration.
    pub(super) config: &'a Path,
    /// Its fingerprint.
    pub(super) config_is: String,
    /// Sockets: a short path.
    pub(super) sockets: &'a Path,
    /// States and logs.
    pub(super) results: &'a Path,
    /// Plays are over by then: what it takes to clean up is kept.
    pub(super) deadline: Option<Instant>,
    /// How long the whole call may take.
    pub(super) budget: Option<Duration>,
    /// What of that had passed before the first play.
    pub(super) planning: Duration,
    /// The longest that a play may take, seconds of the daemon's clock.
    pub(super) longest_s: f64,
    /// When the daemon is killed and started again, a share of the jobs submitted.
    pub(super) kill_after: Option<f64>,
    pub(super) stopped: &'a AtomicBool,
    /// From SIGTERM to SIGKILL, on the clock of the wall.
    pub(super) grace: Duration,
    pub(super) say: Say<'a>,
    /// Whether this call has played before.
    pub(super) has_played: bool,
}

/// A job that was submitted.
struct Submitted {
    id: u64,
    told_mib: Option<u64>,
    log: Log,
    /// Times are Unix seconds of the daemon's clock.
    said: Vec<Said>,
}

/// What a job prints, read for its first step.
struct Log {
    path: PathBuf,
    file: Option<File>,
    printed: Printed,
    tally: Tally,
    /// The attempt that is listened to.
    attempt: u32,
    first_step_ms: Option<f64>,
}

impl Stage<'_> {
    /// Where the state of a policy's plays with this number is.
    pub(super) fn state(&self, planned: &Planned) -> PathBuf {
        let teacher = Planned { policy: planned.policy.teacher(), repeat: planned.repeat };
        self.results.join("state").join(teacher.stem())
    }

    /// A file that is there while that state is one of a play that was over, and of nothing since.
    pub(super) fn taught(&self, planned: &Planned) -> PathBuf {
        let mut name = self.state(planned).into_os_string();
        name.push(".taught");
        name.into()
    }

    /// Removes a state that nothing goes on from; of jobs that failed what they printed may be kept.
    pub(super) fn discard(&self, planned: &Planned, keeps_logs: bool) {
        let state = self.state(planned);
        if !keeps_logs {
            let _ = std::fs::remove_dir_all(&state);
        }
        for entry in std::fs::read_dir(&state).into_iter().flatten().flatten() {
            if entry.file_name() != "logs" {
                let _ = std::fs::remove_file(entry.path()).or_else(|_| std::fs::remove_dir_all(entry.path()));
            }
        }
        // Where nothing is kept.
        for folder in [state.join("logs"), state, self.results.join("state")] {
            let _ = std::fs::remove_dir(folder);
        }
    }

    /// Plays a policy.
    ///
    /// # Errors
    /// A daemon that does not start or ends, GPUs that others use. A play that is broken off is no error but says so.
    pub(super) fn play(&mut self, planned: &Planned) -> Result<Play, Error> {
        let state = self.state(planned);
        unused(&state)?;
        let logs = self.results.join("daemons");
        std::fs::create_dir_all(&logs).map_err(|e| cannot_make(&logs, &e))?;
        let sharing = planned.policy.sharing.unwrap_or(self.sharing).to_string();
        let setup = Setup {
            carma: self.carma,
            socket: self.sockets.join("s"),
            state,
            log: logs.join(format!("{}.log", planned.stem())),
            gpus: self.spec,
            speed: self.gpus.machine.speed,
            policy: &planned.policy.name,
            sharing: &sharing,
            config: Some(self.config),
        };
        self.prepare(planned, &setup)?;
        let began = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let (service, client) = Service::start(&setup).inspect_err(|_| self.discard(planned, true))?;
        let mut running = Running {
            stage: self,
            planned,
            setup: &setup,
            service: Some(service),
            client,
            jobs: Vec::new(),
            samples: Vec::new(),
            clock: (0, Instant::now()),
            kills: 0,
            before_kill: LaunchStats::default(),
        };
        let outcome = running.run();
        if let Ok(Some(why)) = &outcome {
            running.say_that_it_ends(why);
        }
        let ended = running.end();
        let (service, jobs, samples, kills) = (running.service, running.jobs, running.samples, running.kills);
        drop(service);
        let have_ended = ended.is_ok();
        let (cut, (details, launches)) = match outcome.and_then(|cut| Ok((cut, ended?))) {
            Ok(all) => all,
            Err(e) => {
                // They outlive a daemon that dies, and could not be found without its state.
                if !have_ended {
                    end_jobs(&setup)
                        .map_err(|second| Error { message: format!("{e}; {second}"), ..second })?;
                }
                // What the jobs printed says most.
                self.discard(planned, true);
                let hint =
                    e.hint.clone().unwrap_or_else(|| format!("its daemon wrote to {}", setup.log.display()));
                return Err(e.hint(hint));
            }
        };
        let mut play = Play {
            version: VERSION,
            policy: planned.policy.label.clone(),
            repeat: planned.repeat,
            began,
            carma: env!("CARGO_PKG_VERSION").to_owned(),
            machine: self.gpus.machine.clone(),
            trace: self.trace.clone(),
            conditions: Some(self.conditions(planned)),
            cut,
            jobs: Vec::new(),
            samples: Vec::new(),
            plan_p99_us: launches.plan_p99_us,
            launches: launches.count,
            kills,
        };
        let first = details.iter().map(|d| d.job.submitted_ms).min().unwrap_or(0);
        let since = |ms: f64| (ms - first as f64) / 1000.0;
        let kinds = self.trace.arrivals.iter().map(|arrival| &arrival.kind);
        play.jobs =
            kinds.zip(&jobs).zip(&details).map(|((kind, job), of)| row(kind, job, of, since)).collect();
        play.samples = samples.into_iter().map(|s| Sample { at_s: since(s.at_s * 1000.0), ..s }).collect();
        Ok(play)
    }

    /// Makes an empty state directory, or keeps that of a play which this one goes on from.
    fn prepare(&self, planned: &Planned, setup: &Setup<'_>) -> Result<(), Error> {
        let (state, taught) = (&setup.state, self.taught(planned));
        if !planned.policy.history && state.exists() {
            // A bench and its daemon that were both killed left their jobs running.
            if state.join(JOURNAL).exists() && !taught.exists() {
                end_jobs(setup)?;
            }
            std::fs::remove_dir_all(state).map_err(|e| cannot_make(state, &e))?;
        }
        match std::fs::remove_file(&taught) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(cannot_make(&taught, &e)),
            _ => {}
        }
        std::fs::create_dir_all(state).map_err(|e| cannot_make(state, &e))
    }

    /// What a play depends on besides policy, tasks and GPUs.
    pub(super) fn conditions(&self, planned: &Planned) -> Conditions {
        let env = self.tasks.iter().filter(|task| !task.env.is_empty()).map(|task| {
            let lines: Vec<String> = task.env.iter().map(|(key, value)| format!("{key}={value}")).collect();
            (task.kind.name.clone(), fingerprint(lines.join("\0").as_bytes()))
        });
        let memory = self.tasks.iter().filter_map(|task| Some((task.kind.name.clone(), task.memory_mib?)));
        Conditions {
            sharing: self.sharing.to_string(),
            config: self.config_is.clone(),
            kill_after: self.kill_after,
            env: env.collect(),
            memory_mib: (planned.policy.told != Told::Nothing).then(|| memory.collect()),
        }
    }

    /// What carma is told of a job's memory, MiB.
    pub(super) fn told(&self, told: Told, task: &Played) -> Option<u64> {
        match told {
            Told::Nothing => None,
            Told::Declared | Told::Measured => {
                task.memory_mib.or_else(|| self.peaks.get(&task.kind.name).copied())
            }
        }
    }
}

fn cannot_make(what: &Path, e: &std::io::Error) -> Error {
    Error::new(format!("cannot make {}: {e}", what.display()))
}

/// Waits until no daemon uses a state: that of a bench that was killed ends a little later.
fn unused(state: &Path) -> Result<(), Error> {
    let Ok(lock) = File::open(state.join("lock")) else { return Ok(()) };
    let until = Instant::now() + ENDING;
    while let Err(std::fs::TryLockError::WouldBlock) = lock.try_lock() {
        if Instant::now() > until {
            return Err(Error::busy(format!("a daemon uses {}", state.display()))
                .hint("it is of an earlier bench: end it, or name another --output"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Starts a daemon on a state once more, so that the jobs of one that is gone end.
fn end_jobs(setup: &Setup<'_>) -> Result<(), Error> {
    let ended = Service::start(setup).and_then(|(_service, mut client)| cancel_all(&mut client, ENDING));
    ended.map_err(|e| {
        Error::new(format!("jobs of a daemon that is gone may run on: {e}")).hint(format!(
            "what is known of them is kept in {}, and {} is the daemon's log; the next call tries to cancel them again",
            setup.state.display(),
            setup.log.display()
        ))
    })
}

impl Planned {
    /// Of the names of its files.
    pub(super) fn stem(&self) -> String {
        super::rows::file_name(&self.policy.label, self.repeat).trim_end_matches(".json").to_owned()
    }
}

/// A play under way.
struct Running<'r, 'a> {
    stage: &'r mut Stage<'a>,
    planned: &'r Planned,
    setup: &'r Setup<'r>,
    service: Option<Service>,
    client: Client,
    jobs: Vec<Submitted>,
    /// Times are Unix seconds of the daemon's clock.
    samples: Vec<Sample>,
    /// The daemon's clock, ms, at an instant.
    clock: (u64, Instant),
    kills: u32,
    /// What the daemon that was killed had launched.
    before_kill: LaunchStats,
}

impl Running<'_, '_> {
    /// The daemon's clock, ms.
    fn now_ms(&self) -> f64 {
        let passed = self.clock.1.elapsed().as_secs_f64() * f64::from(self.setup.speed);
        self.clock.0 as f64 + passed * 1000.0
    }

    /// Submits, watches and waits. Returns why it was broken off.
    fn run(&mut self) -> Result<Option<String>, Error> {
        let patience = if self.stage.has_played { LEAVING } else { STAYING };
        self.clock = (watch::free(&mut self.client, patience)?, Instant::now());
        self.stage.has_played = true;
        let begin_ms = self.now_ms();
        let fast = self.stage.gpus.machine.is_virtual;
        let mut looks = 0_u64;
        loop {
            if let Some(why) = self.over((self.now_ms() - begin_ms) / 1000.0) {
                return Ok(Some(why));
            }
            let next = self.submit_due(begin_ms)?;
            if fast || looks.is_multiple_of(2) {
                let at_s = self.now_ms() / 1000.0;
                let sample = self.stage.gpus.sample(&mut self.client, at_s)?;
                self.samples.push(sample);
            }
            looks += 1;
            let live: JobsReply = self.ask("/v1/jobs")?;
            self.listen(&live);
            if next.is_none() && live.jobs.is_empty() {
                let at_s = self.now_ms() / 1000.0;
                let sample = self.stage.gpus.sample(&mut self.client, at_s)?;
                self.samples.push(sample);
                return Ok(None);
            }
            self.kill_when_due()?;
            let due = next.map_or(f64::INFINITY, |at_ms| {
                (at_ms - self.now_ms()).max(0.0) / 1000.0 / f64::from(self.setup.speed)
            });
            let pause = if fast { FAST_LOOK } else { LOOK };
            std::thread::sleep(pause.min(Duration::try_from_secs_f64(due).unwrap_or(pause)));
        }
    }

    fn over(&self, passed_s: f64) -> Option<String> {
        if self.stage.stopped.load(Ordering::Relaxed) {
            return Some("it was interrupted".into());
        }
        if self.stage.deadline.is_some_and(|deadline| Instant::now() > deadline) {
            return Some(USED_UP.into());
        }
        let of = if self.stage.gpus.machine.is_virtual { " of the trace" } else { "" };
        (passed_s > self.stage.longest_s)
            .then(|| format!("it was not over after {:.0} s{of} (--longest)", self.stage.longest_s))
    }

    /// Submits what is due; when the next one is, ms of the daemon's clock.
    fn submit_due(&mut self, begin_ms: f64) -> Result<Option<f64>, Error> {
        while let Some(arrival) = self.stage.trace.arrivals.get(self.jobs.len()) {
            let due = begin_ms + arrival.at_s * 1000.0;
            if due > self.now_ms() {
                return Ok(Some(due));
            }
            let task = self.stage.tasks.iter().find(|task| task.kind.name == arrival.kind);
            let task = task.ok_or_else(|| Error::new(format!("no task is named {}", arrival.kind)))?;
            let told = self.planned.policy.told;
            let told_mib = self.stage.told(told, task);
            let request = request(self.stage.carma, task, told, told_mib);
            let reply: SubmitReply = self
                .client
                .post("/v1/jobs", &request)
                .map_err(|e| Error::new(format!("the daemon did not take the task {}: {e}", arrival.kind)))?;
            self.jobs.push(Submitted {
                id: reply.id,
                told_mib,
                log: Log::new(reply.log.into()),
                said: Vec::new(),
            });
        }
        Ok(None)
    }

    /// Reads what running jobs printed, and the reasons of all jobs' states.
    fn listen(&mut self, live: &JobsReply) {
        let now_ms = self.now_ms();
        let views: BTreeMap<u64, &JobView> = live.jobs.iter().map(|view| (view.id, view)).collect();
        for job in &mut self.jobs {
            if let Some(view) = views.get(&job.id) {
                job.log.read(view.attempts, now_ms);
                job.hear(view, live.now_ms);
            }
        }
    }

    /// Kills the daemon once, if that is asked for, and starts it again.
    fn kill_when_due(&mut self) -> Result<(), Error> {
        let of = self.stage.trace.arrivals.len() as f64;
        let is_due = self.stage.kill_after.is_some_and(|share| self.jobs.len() as f64 >= share * of);
        if self.kills > 0 || !is_due {
            return Ok(());
        }
        self.before_kill = self.ask::<StatusReply>("/v1/status")?.launches;
        if let Some(service) = self.service.take() {
            service.kill();
        }
        let (service, client) = Service::start(self.setup)?;
        self.kills += 1;
        (self.service, self.client) = (Some(service), client);
        self.clock = (watch::read(&mut self.client)?.now_ms, Instant::now());
        Ok(())
    }

    fn ask<T: serde::de::DeserializeOwned>(&mut self, path: &str) -> Result<T, Error> {
        self.client.get(path).map_err(|e| Error::new(e.to_string()))
    }

    /// Says what it waits for, as long as a job does not hear SIGTERM.
    fn say_that_it_ends(&mut self, why: &str) {
        // What cannot be asked is told by what comes next.
        let Ok(live) = self.ask::<JobsReply>("/v1/jobs") else { return };
        if let Some(line) = ending(live.jobs.len(), self.stage.grace) {
            (self.stage.say)(&format!("{}: {why}; {line}", self.planned));
        }
    }

    /// Ends what still runs, and the daemon; what it says of the jobs.
    fn end(&mut self) -> Result<(Vec<JobDetail>, LaunchStats), Error> {
        cancel_all(&mut self.client, ENDING)?;
        let ids: Vec<u64> = self.jobs.iter().map(|job| job.id).collect();
        let details = ids.iter().map(|id| self.ask(&format!("/v1/jobs/{id}"))).collect::<Result<_, _>>()?;
        let status: StatusReply = self.ask("/v1/status")?;
        self.service = None;
        Ok((details, together(&self.before_kill, status.launches)))
    }
}

/// What is done to so many jobs that are live; `None` of none.
fn ending(jobs: usize, grace: Duration) -> Option<String> {
    let s = if jobs == 1 { "" } else { "s" };
    (jobs > 0).then(|| format!("ending {jobs} job{s}, up to {} s", grace.as_secs_f64().ceil().max(1.0)))
}

/// What two daemons launched one after the other. Of percentiles the larger one.
fn together(before: &LaunchStats, after: LaunchStats) -> LaunchStats {
    LaunchStats {
        count: before.count + after.count,
        submit_to_spawn_p50_us: before.submit_to_spawn_p50_us.max(after.submit_to_spawn_p50_us),
        submit_to_spawn_p99_us: before.submit_to_spawn_p99_us.max(after.submit_to_spawn_p99_us),
        plan_p99_us: before.plan_p99_us.max(after.plan_p99_us),
    }
}

/// What is submitted of a task.
fn request(carma: &Path, task: &Played, told: Told, told_mib: Option<u64>) -> SubmitRequest {
    // What this process shares GPUs by is none of theirs.
    let ours = |name: &str| name.starts_with("CUDA_") || name.starts_with("CARMA_");
    let mut env: BTreeMap<String, String> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| !ours(name))
        .collect();
    env.extend(task.env.clone());
    let mut command = task.kind.command.clone();
    if let Some(program) = command.first_mut().filter(|_| task.is_modelled) {
        *program = carma.display().to_string();
    }
    SubmitRequest {
        command,
        cwd: task.cwd.display().to_string(),
        env,
        name: Some(task.kind.name.clone()),
        gpus: Some(task.kind.gpus),
        gpu_memory_mib: told_mib.filter(|_| told == Told::Declared),
        measured_mib: told_mib.filter(|_| told == Told::Measured),
        max_slowdown_pct: task.kind.max_slowdown_pct,
        latency_us: task.kind.latency_us,
        ..SubmitRequest::default()
    }
}

impl Submitted {
    /// Keeps the reason of its state where the state or the reason has changed in more than numbers.
    fn hear(&mut self, view: &JobView, now_ms: u64) {
        let most = match self.said.last() {
            Some(last) if (&last.state, &last.code) != (&view.state, &view.reason.code) => MOST_SAID,
            Some(last) if words(&last.text).eq(words(&view.reason.text)) => 0,
            Some(_) => MOST_REWORDED,
            None => MOST_SAID,
        };
        if self.said.len() < most {
            self.said.push(Said {
                at_s: now_ms as f64 / 1000.0,
                state: view.state.clone(),
                code: view.reason.code.clone(),
                text: view.reason.text.clone(),
            });
        }
    }
}

impl Log {
    fn new(path: PathBuf) -> Self {
        Self {
            path,
            file: None,
            printed: Printed::new(),
            tally: Tally::new(),
            attempt: 0,
            first_step_ms: None,
        }
    }

    /// Reads on. What is there when a further attempt is first seen is what those before it printed.
    fn read(&mut self, attempt: u32, now_ms: f64) {
        if self.file.is_none() {
            self.file = carma_files::open(&self.path).ok();
        }
        let Some(file) = &mut self.file else { return };
        if attempt != self.attempt {
            (self.attempt, self.first_step_ms) = (attempt, None);
            (self.printed, self.tally) = (Printed::new(), Tally::new());
            if attempt > 1 {
                let _ = file.seek(SeekFrom::End(0));
            }
        }
        let mut buffer = [0; 16 << 10];
        let mut reports = Vec::new();
        while let Ok(n @ 1..) = file.read(&mut buffer) {
            // The first step is all that is asked for.
            if self.first_step_ms.is_none() {
                self.printed.feed(now_ms / 1000.0, &buffer[..n], &mut reports);
            }
        }
        if self.first_step_ms.is_none() {
            self.printed.settle(now_ms / 1000.0, &mut reports);
            reports.iter().for_each(|report| self.tally.printed(report));
            // Neither a bar that tells of loading.
            self.first_step_ms = self.tally.began_s().map(|at_s| at_s * 1000.0);
        }
    }
}

/// The last lines of a log's end, of which one byte more was read than is shown: where there is as much, it begins in the middle of a line,
/// and `...` stands for what that lacks.
fn last_words(end: &str) -> String {
    let torn = end.len() as u64 > MOST_LAST_WORDS;
    let lines = end.lines().map(str::trim).enumerate().filter(|(_, line)| !line.is_empty());
    let lines: Vec<(usize, &str)> = lines.collect();
    let last = lines[lines.len().saturating_sub(3)..].iter().map(|(at, line)| match at {
        0 if torn => format!("...{}", line.split_once(' ').map_or(*line, |(_, rest)| rest)),
        _ => (*line).to_owned(),
    });
    last.collect::<Vec<_>>().join(" | ")
}

fn row(kind: &str, job: &Submitted, detail: &JobDetail, since: impl Fn(f64) -> f64) -> Job {
    let view = &detail.job;
    let at = |ms: u64| since(ms as f64);
    let mut reason = view.reason.text.clone();
    if view.state != "COMPLETED" && view.ended_ms.is_some() {
        let last = last_words(&tail(&job.log.path, MOST_LAST_WORDS + 1));
        if !last.is_empty() {
            reason.push_str(LAST_WORDS);
            reason.push_str(&last);
        }
    }
    let attempt = |a: &AttemptView| Attempt {
        decided_s: at(a.decided_ms),
        started_s: a.started_ms.map(at),
        ended_s: a.ended_ms.map(at),
        suspended_s: a.suspended_ms.unwrap_or(0) as f64 / 1000.0,
        gpus: a.gpus.clone(),
        sharing: a.sharing.to_string(),
        cap_mib: a.cap_mib,
        code: a.verdict.as_ref().map(|v| v.code.clone()).unwrap_or_default(),
        text: a.verdict.as_ref().map(|v| v.text.clone()).unwrap_or_default(),
    };
    Job {
        kind: kind.to_owned(),
        submitted_s: at(view.submitted_ms),
        told_mib: job.told_mib,
        state: view.state.clone(),
        reason,
        ended_s: view.ended_ms.map(at),
        peak_mib: view.memory_peak_mib,
        limit_kept: view.limit_kept,
        latency_alone_ms: view.latency_alone_ms,
        first_step_s: job.log.first_step_ms.map(&since),
        attempts: detail.attempts.iter().map(attempt).collect(),
        said: job.said.iter().map(|said| Said { at_s: since(said.at_s * 1000.0), ..said.clone() }).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_words_that_are_torn_say_so() {
        assert_eq!((last_words(""), last_words(" \n\n")), (String::new(), String::new()));
        assert_eq!(last_words("one\n\ntwo\n three \nfour\n"), "two | three | four");
        let line = "x".repeat(600);
        assert_eq!(
            last_words(&format!("ask.py\", line 1 {}\nMemoryError", &line[..590])),
            format!("...line 1 {} | MemoryError", &line[..590])
        );
        assert_eq!(last_words(&format!("{line}y")), format!("...{line}y"));
        // It is told from the beginning of a line on.
        assert_eq!(last_words(&format!("\n{line}")), line);
    }

    #[test]
    fn the_first_step_is_of_the_last_attempts_work() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = Log::new(dir.path().join("1.log"));
        let mut file = File::create(&log.path).unwrap();
        let mut at = |attempt, now_ms, text: &str| {
            std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
            log.read(attempt, now_ms);
            log.first_step_ms
        };
        let loading = "Loading checkpoint shards:   0%| | 0/3\rLoading checkpoint shards:  33%|# | 1/3\r";
        assert_eq!(at(1, 3_000.0, loading), None);
        assert_eq!(at(1, 30_000.0, "\nstep 1/100\n"), None);
        assert_eq!(at(1, 31_000.0, "step 2/100\n"), Some(30_000.0));
        assert_eq!(at(1, 32_000.0, "step 3/100\n"), Some(30_000.0));
        // What it printed before it ended is seen with the next attempt.
        assert_eq!(at(2, 33_000.0, "step 4/100\nstep 5/100\n--- carma: attempt 2 ---\n"), None);
        assert_eq!(at(2, 34_000.0, loading), None);
        at(2, 60_000.0, "\nstep 1/100\n");
        assert_eq!(at(2, 61_000.0, "step 2/100\n"), Some(60_000.0));
    }

    #[test]
    fn how_long_jobs_may_take_to_end_is_said() {
        assert_eq!(ending(0, Duration::from_secs(10)), None);
        assert_eq!(ending(2, Duration::from_secs(10)).unwrap(), "ending 2 jobs, up to 10 s");
        // Of virtual time that passes fast.
        assert_eq!(ending(1, Duration::from_millis(160)).unwrap(), "ending 1 job, up to 1 s");
    }

    #[test]
    fn what_a_daemon_launched_before_it_was_killed_counts() {
        let of = |count, us| LaunchStats {
            count,
            submit_to_spawn_p50_us: us,
            submit_to_spawn_p99_us: us,
            plan_p99_us: us,
        };
        assert_eq!(together(&of(20, 300), of(5, 100)), of(25, 300));
        assert_eq!(together(&LaunchStats::default(), of(5, 100)), of(5, 100));
    }
}
