//! The language of the scenarios: one command a line, `#` starts a comment.
//!
//! ```text
//! gpus 2x40G [1x80G:no-mps]    the devices, read once as idle; on some MPS cannot be had; 2x10G:mig are MIG instances
//! inventory 0 2:1              only these of them are still in the machine, the second of them now with index 1
//! policy NAME                  a preset
//! option KEY=VALUE ...         user_jobs=1 user_gpus=2 user_gpu_hours=3 share=bob:3 quota_period=24h window=30s sharing=mps backfill=none|30m recovery=exclusive ...
//! at 12s                       the clock; GPUs that are not named by `blind` are read again, unchanged
//! blind GPU ... / sighted      these GPUs are not read any more / all are read again
//! submit ID [mem=10G] [measured=..] [horus=..] [faketensor=..] [gpumemnet=..] [gpus=N]
//!        [computed=BASIS:NEED:UPPER[:elastic]] [exclusive] [hold] [sharing=MODE] [user=NAME] [priority=N] [time=2h] [cmd=NAME]
//!        [retries=N] [threads=PERCENT] [score=N] [util=.5] [smact=.5] [power_w=300] [slowdown=1.3]
//!        [within_ms=20] [latency_ms=8] [save=2m] [runs=10m, or 5m..8h: the median, and what nine of ten take]; every estimator is a key
//! learn ID [computed=..] [measured=..] [runs=2h] [score=N] [util=.5] [smact=.5] [power_w=300] [latency_ms=8]
//!                              what earlier runs tell of a job: of its memory, how long it takes, what it does alone
//! observe GPU [job1=9G] [used=9G] [energy_j=400] [smact=.3] [smocc=.2] [drama=.1] [foreign=PID:USER:9G]
//!        [processes=?] [lost="why"] [unreadable="why"]      `?` is unknown; not named is none or 0
//! plan                         plan, take its decisions, print them and why the others wait
//! predict ID GPU 1=.9:.8 ... [unknown=ID ...] [seen] [without=ID ...] [before=1.0] [all=1500] [as=MODE] [with=PERCENT]
//!                              progress of each if job ID joined that GPU: expected and lower bound; what all get done; the
//!                              newcomer with so much of the threads; some of those who are there being over
//! asked                        what the next plan wants to have predicted
//! measure ID .6 [over=20s]     its progress beside its neighbours, as measured
//! stepped ID [ago=3s]          its first steps were seen; the first began so long ago
//! counts ID .4                 it says that so much of its work is done
//! explain ID                   what each GPU says to a pending job
//! answers ID                   the same in few words, with memory and predicted progress, beside GPUs that are held
//! sooner ID [took=9G]          what would let it start now; `took`: what runs of its command took
//! spared ID                    why nobody leaves although it is measured below what the policy keeps it at
//! start ID ... [as=MODE]       the supervisor runs
//! exit ID [code=N | signal=N | unknown] [log="..."] [last-line="..."] [not-started="..." [user-gone=NAME: whose its user's number is now; nobody]]
//! launch-fails ID error="..." [permanent]
//! cannot-save ID why="..."       it was to save its work and could not be asked to
//! cancel|hold|release|requeue|suspend|unsuspend ID by=USER      eve@alice is eve, who has the number that was alice's
//! move ID GPU by=USER
//! can-move ID GPU              prints what bars it
//! best-move ID                 prints the GPU that it had best move to
//! suspended ID [host=9G]       it has left its GPUs
//! resumed ID                   it runs again
//! suspend-fails ID why="..." [stuck]
//! restart                      the state as a daemon that starts anew reads it
//! drain|resume GPU by=USER
//! show                         GPUs with their ledger, and jobs
//! usage                        what users have had
//! joules                       where the energy of GPUs went, and what jobs that have GPUs took
//! each WORD ... / end          plays the lines between for each word, from a fresh state, `$` being
//!                              the word; only commands that print something are shown
//! reset                        a fresh state
//! ```
//! Every input goes through `State::apply`, and `check` must be silent after each.

use carma_core::explain::Eviction;
use carma_core::input::{Foreign, Observation};
use carma_core::ledger::{Gpu, Reservation};
use carma_core::model::{
    Basis, Computed, EndCause, EndLevel, Estimates, Estimator, Exit, ExitStatus, Finished, Forecasts, GpuId,
    HostUse, Job, JobId, JobState, NewJob, Phase, Placement, ProcessRef, Profile, Request, RunTime, RunsOf,
    SharingMode, User, UserGone,
};
use carma_core::plan::{answers, bars_move, best_place, evaluate, plan, sooner, spared};
use carma_core::policy::{Allowance, Options, Order, RecoveryMethod, presets};
use carma_core::reading::{GpuInfo, GpuKind, Health};
use carma_core::slowdown::{Class, Company, Outlook, Pace, questions};
use carma_core::units::{Fraction, MiB, Millis};
use carma_core::windows::{Summary, WindowSummary};
use carma_core::{Action, Input, State, check, recovery};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;

type Outcome<T> = Result<T, String>;

/// Plays a script and returns what it prints, each command above its effect.
pub(crate) fn play(text: &str) -> Outcome<String> {
    let mut stage = Stage::default();
    let mut lines = (1..).zip(text.lines());
    while let Some((number, line)) = lines.next() {
        let command = line.trim();
        stage.echo(line);
        if let Some(words) = command.strip_prefix("each ") {
            let block: Vec<(u32, &str)> =
                lines.by_ref().take_while(|(_, line)| line.trim() != "end").collect();
            for word in words.split_whitespace() {
                stage.each(word, &block)?;
            }
            stage = Stage { out: stage.out, ..Stage::default() };
            continue;
        }
        if let Err(error) = stage.perform(command) {
            return Err(format!("{number}: {error}\n{}", stage.last_lines()));
        }
    }
    Ok(stage.out)
}

/// Why a job is to leave its GPUs.
fn why(cause: &EndCause) -> String {
    match cause {
        EndCause::Cancelled { by } => format!("cancelled by {by}"),
        EndCause::TimeLimit(limit) => format!("over its time limit of {limit}"),
        EndCause::Requeued { by } => format!("put back into the queue by {by}"),
        EndCause::GrowthGuard(filling) => filling.to_string(),
        EndCause::Room { job } => format!("it makes room for job {job}"),
        EndCause::Spread { to } => format!("GPU {} is idle, and it moves there", to.0),
        EndCause::Stuck { why } => format!("it is stuck: {why}"),
        EndCause::Evicted(Eviction { job, together: Some(together), .. }) => {
            format!("with job {job} and others it does {together} together of what one does alone")
        }
        EndCause::Evicted(Eviction { job, slowdown, limit, apart, together: None }) => {
            let whose = if apart.is_empty() { "the policy's" } else { "its" };
            format!("job {job} is slowed down by {slowdown}, {whose} limit is {limit}")
        }
    }
}

struct Stage {
    state: State,
    options: Options,
    clock: Millis,
    devices: Vec<GpuInfo>,
    blind: BTreeSet<GpuId>,
    /// User names in order of appearance; root is 0, the others 1001 and up.
    users: Vec<String>,
    out: String,
}

impl Default for Stage {
    /// Scripts begin under the policy `carma`, time-sliced.
    fn default() -> Self {
        let options =
            Options { policy: presets::carma(), sharing: SharingMode::TimeSlice, ..Options::default() };
        let mut state = State::default();
        // A configuration is taken in any state.
        let _ = state.apply(Millis::ZERO, &Input::Configured(Box::new(options.clone())));
        Self {
            state,
            options,
            clock: Millis::ZERO,
            devices: Vec::new(),
            blind: BTreeSet::new(),
            users: Vec::new(),
            out: String::new(),
        }
    }
}

/// The words behind a command: `key=value` pairs, flags, and bare words.
struct Words {
    bare: Vec<String>,
    pairs: Vec<(String, String)>,
}

impl Words {
    fn split(line: &str) -> Outcome<(String, Self)> {
        let mut words: Vec<String> = vec![String::new()];
        let mut quoted = false;
        let mut chars = line.chars();
        while let Some(c) = chars.next() {
            let last = words.last_mut().ok_or("no word")?;
            match c {
                '"' => quoted = !quoted,
                '\\' if quoted => match chars.next() {
                    Some('n') => last.push('\n'),
                    Some(other) => last.push(other),
                    None => return Err("the line ends within an escape".into()),
                },
                '#' if !quoted => break,
                ' ' if !quoted => words.push(String::new()),
                other => last.push(other),
            }
        }
        if quoted {
            return Err("a quote is not closed".into());
        }
        let mut words = words.into_iter().filter(|w| !w.is_empty());
        let command = words.next().ok_or("no command")?;
        let (mut bare, mut pairs) = (Vec::new(), Vec::new());
        for word in words {
            match word.split_once('=') {
                Some((key, value)) => pairs.push((key.to_owned(), value.to_owned())),
                None => bare.push(word),
            }
        }
        Ok((command, Self { bare, pairs }))
    }

    /// Takes a pair, so that [`Words::done`] finds what nobody took.
    fn take(&mut self, key: &str) -> Option<String> {
        let at = self.pairs.iter().position(|(k, _)| k == key)?;
        Some(self.pairs.remove(at).1)
    }

    fn take_as<T>(&mut self, key: &str, read: impl FnOnce(&str) -> Outcome<T>) -> Outcome<Option<T>> {
        self.take(key).map(|value| read(&value).map_err(|e| format!("{key}: {e}"))).transpose()
    }

    fn flag(&mut self, name: &str) -> bool {
        let before = self.bare.len();
        self.bare.retain(|w| w != name);
        self.bare.len() < before
    }

    fn first(&mut self) -> Outcome<String> {
        if self.bare.is_empty() {
            return Err("a number is missing".into());
        }
        Ok(self.bare.remove(0))
    }

    fn job(&mut self) -> Outcome<JobId> {
        Ok(JobId(number(&self.first()?)?))
    }

    fn gpu(&mut self) -> Outcome<GpuId> {
        let word = self.first()?;
        Ok(GpuId(number(&word)?))
    }

    fn done(self) -> Outcome<()> {
        let left: Vec<String> = self.bare.into_iter().chain(self.pairs.into_iter().map(|(k, _)| k)).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("not understood: {}", left.join(" "))) }
    }
}

fn number<T: std::str::FromStr>(text: &str) -> Outcome<T> {
    text.parse().map_err(|_| format!("no number: {text}"))
}

fn memory(text: &str) -> Outcome<MiB> {
    if let Some(gib) = text.strip_suffix('G') {
        let gib: f64 = number(gib)?;
        return Ok(MiB((gib * 1024.0).round() as u64));
    }
    let mib = text.strip_suffix('M').ok_or("memory is written 10G or 512M")?;
    Ok(MiB(number(mib)?))
}

fn profile(words: &mut Words) -> Outcome<Profile> {
    Ok(Profile {
        gpu_util: words.take_as("util", share)?,
        smact: words.take_as("smact", share)?,
        power_mw: words.take_as("power_w", number::<u32>)?.map(|watts| watts * 1000),
        score: words.take_as("score", number)?,
        latency_us: words.take_as("latency_ms", number::<u32>)?.map(|ms| ms * 1000),
    })
}

/// Runs that all took so long, or of which half took at most one time and nine of ten another, `5m..8h`.
fn run_time(text: &str) -> Outcome<RunTime> {
    let (median, high) = text.split_once("..").unwrap_or((text, text));
    let [median_s, high_s] = [span(median)?, span(high)?].map(|time| time.0 / 1000);
    Ok(RunTime { high_s, ..RunTime::of(median_s, RunsOf::Command) })
}

/// `BASIS:NEED:UPPER`, and a fourth word: `elastic`, or the memory of the GPU that a share is one of.
fn computed(text: &str) -> Outcome<Computed> {
    let words: Vec<&str> = text.split(':').collect();
    let [basis, need, upper, rest @ ..] = &words[..] else {
        return Err("a computed forecast is written summary:8G:12G".into());
    };
    let basis = match *basis {
        "exact" => Basis::Exact,
        "scaled" => Basis::Scaled,
        "share" => Basis::Share,
        "trace" => Basis::Trace,
        "summary" => Basis::Summary,
        _ => return Err(format!("no basis: {basis}")),
    };
    let (need, upper) = (memory(need)?, memory(upper)?);
    // What the same command took, and else what it may take.
    let likely = if basis == Basis::Exact { need } else { upper };
    let elastic = rest == ["elastic"];
    let of_gpu = rest.first().filter(|_| basis == Basis::Share).map(|word| memory(word)).transpose()?;
    Ok(Computed { need, likely, upper, basis, coverage: 95, elastic, of_gpu })
}

fn span(text: &str) -> Outcome<Millis> {
    let units = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000)];
    for (unit, ms) in units {
        if let Some(n) = text.strip_suffix(unit)
            && let Ok(n) = n.parse::<f64>()
        {
            return Ok(Millis((n * f64::from(ms)).round() as u64));
        }
    }
    Err(format!("a time is written 30s, 2m, 1h or 500ms: {text}"))
}

fn share(text: &str) -> Outcome<Fraction> {
    Fraction::from_f64(number(text)?).ok_or_else(|| format!("no share: {text}"))
}

fn sharing(text: &str) -> Outcome<SharingMode> {
    match text {
        "exclusive" => Ok(SharingMode::Exclusive),
        "time-slice" => Ok(SharingMode::TimeSlice),
        "mps" => Ok(SharingMode::Mps),
        _ => Err(format!("no sharing mode: {text}")),
    }
}

/// A steady load: every statistic has the same value.
fn steady(level: Fraction) -> Summary {
    Summary {
        samples: 300,
        mean: level,
        median: level,
        p95: level,
        ema: level,
        ema_half: level,
        cv: Fraction(0),
        slope_micro_per_s: 0,
    }
}

fn unless_unknown<T>(text: &str, read: impl FnOnce(&str) -> Outcome<T>) -> Outcome<Option<T>> {
    if text == "?" { Ok(None) } else { read(text).map(Some) }
}

/// FNV-1a: the key only has to differ for different names.
fn command_key(name: &str) -> u64 {
    name.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

impl Stage {
    fn say(&mut self, text: impl AsRef<str>) {
        for line in text.as_ref().lines() {
            let _ = writeln!(self.out, "    {line}");
        }
    }

    /// Applies one input. A refusal is printed; a broken invariant ends the scenario.
    fn apply(&mut self, input: &Input) -> Outcome<bool> {
        let before = self.state.clone();
        match self.state.apply(self.clock, input) {
            Ok(applied) => {
                for finished in &applied.finished {
                    self.say(over(finished));
                }
            }
            Err(refused) => {
                if self.state != before {
                    return Err(format!("a refused input changed the state: {refused}"));
                }
                self.say(format!("refused: {refused}"));
                return Ok(false);
            }
        }
        let broken = check::check(&self.state);
        if broken.is_empty() { Ok(true) } else { Err(format!("broken: {}", broken.join("; "))) }
    }

    fn user(&mut self, name: &str) -> User {
        // `eve@alice` has the number that was alice's.
        let (name, number) = name.split_once('@').unwrap_or((name, name));
        let uid = if name == "root" {
            0
        } else {
            let at = self.users.iter().position(|n| n == number);
            let at = at.unwrap_or_else(|| {
                self.users.push(number.to_owned());
                self.users.len() - 1
            });
            1001 + u32::try_from(at).unwrap_or(0)
        };
        User::new(uid, name)
    }

    /// What was printed last, to see what a script ran into.
    fn last_lines(&self) -> String {
        let lines: Vec<&str> = self.out.lines().collect();
        lines[lines.len().saturating_sub(12)..].join("\n")
    }

    fn echo(&mut self, line: &str) {
        self.out.push_str(line.trim_end());
        self.out.push('\n');
    }

    /// Plays a block from the start, with one word put in. Commands without effect are not shown.
    fn each(&mut self, word: &str, block: &[(u32, &str)]) -> Outcome<()> {
        *self = Self { out: std::mem::take(&mut self.out), ..Self::default() };
        self.echo(&format!("\n== {word}"));
        for (number, line) in block {
            let line = line.replace('$', word);
            let before = self.out.len();
            self.perform(line.trim()).map_err(|error| format!("{number}: with {word}: {error}"))?;
            if self.out.len() > before {
                self.out.insert_str(before, &format!("{line}\n"));
            }
        }
        Ok(())
    }

    fn perform(&mut self, line: &str) -> Outcome<()> {
        if line.is_empty() || line.starts_with('#') {
            return Ok(());
        }
        let (command, mut words) = Words::split(line)?;
        match command.as_str() {
            "gpus" => self.gpus(&mut words)?,
            "inventory" => self.inventory(&mut words)?,
            "policy" => {
                let name = words.first()?;
                let policy = presets::by_name(&name);
                self.options.policy = policy.ok_or(format!("there is no policy {name}"))?;
                self.configure()?;
            }
            "option" => self.option(&mut words)?,
            "at" => self.at(&mut words)?,
            "blind" => {
                while !words.bare.is_empty() {
                    let gpu = words.gpu()?;
                    self.blind.insert(gpu);
                }
            }
            "sighted" => {
                self.blind.clear();
                self.refresh()?;
            }
            "submit" => self.submit(&mut words)?,
            "observe" => self.observe(&mut words)?,
            "plan" => self.plan()?,
            "learn" => self.learn(&mut words)?,
            "predict" => self.predict(&mut words)?,
            "asked" => self.asked(),
            "measure" => self.measure(&mut words)?,
            "stepped" => {
                let job = words.job()?;
                let ago = words.take_as("ago", span)?.unwrap_or_default();
                let attempt = self.placement(job)?.attempt;
                self.apply(&Input::Stepped { job, attempt, ago })?;
            }
            "counts" => {
                let (job, share) = (words.job()?, share(&words.first()?)?);
                let attempt = self.placement(job)?.attempt;
                self.apply(&Input::Counted { job, attempt, share })?;
            }
            "explain" => self.explain(&mut words)?,
            "answers" => self.answers(&mut words)?,
            "sooner" => self.sooner(&mut words)?,
            "spared" => {
                let id = words.job()?;
                let why = self.state.job(id).and_then(|job| spared(&self.state, job));
                self.say(
                    why.map_or_else(|| format!("job {id}: nobody is"), |why| format!("job {id}: {why:?}")),
                );
            }
            "start" => self.start(&mut words)?,
            "exit" => self.exit(&mut words)?,
            "launch-fails" => self.launch_fails(&mut words)?,
            "cancel" | "hold" | "release" | "requeue" | "suspend" | "unsuspend" => {
                self.ask(&command, &mut words)?
            }
            "drain" | "resume" => {
                let gpu = words.gpu()?;
                let by = words.take("by").ok_or("by=USER is missing")?;
                let by = self.user(&by);
                self.apply(&if command == "drain" {
                    Input::Drain { gpu, by }
                } else {
                    Input::Resume { gpu, by }
                })?;
            }
            "cannot-save" => {
                let job = words.job()?;
                let attempt = self.placement(job)?.attempt;
                let why = words.take("why").ok_or("why=\"...\" is missing")?;
                self.apply(&Input::CannotSave { job, attempt, why })?;
            }
            "move" => {
                let job = words.job()?;
                let gpu = words.gpu()?;
                let by = words.take("by").ok_or("by=USER is missing")?;
                let by = self.user(&by);
                self.apply(&Input::Move { job, gpu, by })?;
            }
            "can-move" => {
                let job = words.job()?;
                let to = words.gpu()?;
                let mover = self.state.job(job).ok_or("there is no such job")?;
                match bars_move(&self.state, self.clock, mover, to) {
                    None => self.say(format!("job {job} could move to GPU {}", to.0)),
                    Some(reason) => self.say(format!("job {job} could not move to GPU {}: {reason}", to.0)),
                }
            }
            "best-move" => {
                let job = words.job()?;
                let mover = self.state.job(job).ok_or("there is no such job")?;
                match best_place(&self.state, self.clock, mover) {
                    Ok(to) if mover.is_off() && mover.placement().is_some_and(|on| on.gpus.contains(&to)) => {
                        self.say(format!("job {job} had best come back to GPU {}", to.0));
                    }
                    Ok(to) => self.say(format!("job {job} had best move to GPU {}", to.0)),
                    Err(None) => self.say(format!("job {job} could move to no GPU")),
                    Err(Some(reason)) => self.say(format!("job {job} could move to no GPU: {reason}")),
                }
            }
            "suspended" => {
                let job = words.job()?;
                let attempt = self.placement(job)?.attempt;
                let host = words.take_as("host", memory)?.unwrap_or_default();
                self.apply(&Input::Suspended { job, attempt, host })?;
            }
            "resumed" => {
                let job = words.job()?;
                let attempt = self.placement(job)?.attempt;
                self.apply(&Input::Resumed { job, attempt })?;
            }
            "suspend-fails" => {
                let job = words.job()?;
                let attempt = self.placement(job)?.attempt;
                let why = words.take("why").ok_or("why=\"...\" is missing")?;
                let stuck = words.flag("stuck") || self.state.is_last_try(job);
                self.apply(&Input::SuspendFailed { job, attempt, why, stuck })?;
            }
            "restart" => self.restart()?,
            "show" => self.show(),
            "usage" => self.usage(),
            "joules" => self.joules(),
            "reset" => {
                *self = Self { out: std::mem::take(&mut self.out), ..Self::default() };
            }
            other => return Err(format!("no such command: {other}")),
        }
        words.done()
    }

    // --- the machine ---------------------------------------------------------------------------

    fn gpus(&mut self, words: &mut Words) -> Outcome<()> {
        self.devices.clear();
        for word in words.bare.drain(..) {
            let (word, no_mps) = match word.strip_suffix(":no-mps") {
                Some(word) => (word.to_owned(), Some("the script says so".into())),
                None => (word, None),
            };
            let (word, kind) = match word.strip_suffix(":mig") {
                Some(word) => {
                    (word.to_owned(), GpuKind::Mig { parent: "GPU-m".into(), profile: "1g.10gb".into() })
                }
                None => (word, GpuKind::Virtual),
            };
            let (count, size) = word.split_once('x').ok_or("GPUs are written 2x40G or 2x40G:no-mps")?;
            for _ in 0..number::<u32>(count)? {
                let index = u32::try_from(self.devices.len()).unwrap_or(0);
                self.devices.push(GpuInfo {
                    uuid: format!("GPU-{index}").into(),
                    index,
                    name: "scripted".into(),
                    memory: memory(size)?,
                    kind: kind.clone(),
                    has_activity: true,
                    no_mps: no_mps.clone(),
                });
            }
        }
        self.apply(&Input::Inventory(self.devices.clone()))?;
        for id in 0..u32::try_from(self.devices.len()).unwrap_or(0) {
            let line = format!("observe {id}");
            let (_, mut words) = Words::split(&line)?;
            self.observe(&mut words)?;
        }
        Ok(())
    }

    fn inventory(&mut self, words: &mut Words) -> Outcome<()> {
        let mut left = Vec::new();
        while !words.bare.is_empty() {
            let word = words.first()?;
            let (at, index) = word.split_once(':').unzip();
            let at: usize = number(at.unwrap_or(&word))?;
            let device = self.devices.get(at).ok_or("no such GPU")?;
            let index = index.map(number).transpose()?.unwrap_or(device.index);
            left.push(GpuInfo { index, ..device.clone() });
        }
        self.apply(&Input::Inventory(left)).map(drop)
    }

    fn configure(&mut self) -> Outcome<()> {
        self.apply(&Input::Configured(Box::new(self.options.clone()))).map(drop)
    }

    fn option(&mut self, words: &mut Words) -> Outcome<()> {
        let yes = |text: &str| match text {
            "yes" => Ok(true),
            "no" => Ok(false),
            _ => Err(format!("yes or no, not {text}")),
        };
        for (key, value) in words.pairs.drain(..) {
            let v = value.as_str();
            if key == "share" {
                let (user, share) = v.split_once(':').ok_or("a share is written share=bob:3")?;
                let uid = self.user(user).uid;
                let allowance = self.options.allowances.of(uid);
                self.options.allowances.set(uid, Allowance { share: number(share)?, ..allowance });
                continue;
            }
            let o = &mut self.options;
            match key.as_str() {
                "window" => o.window = span(v)?,
                "sharing" => o.sharing = sharing(v)?,
                "suspends" => (o.suspends, o.moves) = (yes(v)?, yes(v)?),
                "user_jobs" => o.allowances.for_all.jobs = Some(number(v)?),
                "user_gpus" => o.allowances.for_all.gpus = Some(number(v)?),
                "user_gpu_hours" => o.allowances.for_all.gpu_hours = Some(number(v)?),
                "user_energy_j" => o.allowances.for_all.energy_j = Some(number(v)?),
                "quota_period" => o.quota_period = span(v)?,
                "usage_half_life" => o.usage_half_life = span(v)?,
                "caps" => o.caps = yes(v)?,
                "max_slowdown" => o.max_slowdown = Some(share(v)?),
                "slowdown_window" => o.slowdown_window = span(v)?,
                "order" if v == "throughput" => o.policy.order = Order::Throughput,
                "order" if v == "speedup" => o.policy.order = Order::Speedup,
                "startup_patience" => o.startup_patience = span(v)?,
                "stale_after" => o.stale_after = span(v)?,
                "kill_grace" => o.kill_grace = span(v)?,
                "fault_window" => o.fault_window = span(v)?,
                "mps_cooldown" => o.mps_cooldown = span(v)?,
                "mps_multi_user" => o.mps_multi_user = yes(v)?,
                "mps_several_gpus" => o.mps_several_gpus = yes(v)?,
                "max_retries" => o.max_retries = number(v)?,
                "max_free_retries" => o.max_free_retries = number(v)?,
                "recovery" => {
                    o.recovery = match v {
                        "graded" => RecoveryMethod::Graded,
                        "exclusive" => RecoveryMethod::Exclusive,
                        _ => return Err(format!("no recovery method: {v}")),
                    }
                }
                "backfill" => {
                    o.policy.backfill = if v == "none" { None } else { Some(span(v)?) };
                }
                "idle_first" => o.policy.idle_first = yes(v)?,
                "reserve" => o.policy.reserve = memory(v)?,
                _ => return Err(format!("no such option: {key}")),
            }
        }
        self.configure()
    }

    fn at(&mut self, words: &mut Words) -> Outcome<()> {
        self.clock = span(&words.first()?)?;
        self.apply(&Input::Tick)?;
        self.refresh()
    }

    fn refresh(&mut self) -> Outcome<()> {
        let seen = (0..)
            .map(GpuId)
            .zip(self.state.gpus())
            .filter(|(id, gpu)| gpu.present && !self.blind.contains(id))
            .map(|(id, _)| id)
            .collect();
        self.apply(&Input::Unchanged(seen)).map(drop)
    }

    fn observe(&mut self, words: &mut Words) -> Outcome<()> {
        let gpu = words.gpu()?;
        let mut window = WindowSummary::default();
        for (name, slot) in
            [("smact", &mut window.smact), ("smocc", &mut window.smocc), ("drama", &mut window.drama)]
        {
            *slot = match words.take(name) {
                Some(text) => unless_unknown(&text, share)?.map(steady),
                None => Some(steady(Fraction(0))),
            };
        }
        let health = match (words.take("lost"), words.take("unreadable")) {
            (Some(why), _) => Health::Lost(why),
            (None, Some(why)) => Health::Unreadable(why),
            (None, None) => Health::Ok,
        };
        let mut foreign = Vec::new();
        while let Some(text) = words.take("foreign") {
            let parts: Vec<&str> = text.split(':').collect();
            let [pid, user, held] = parts[..] else {
                return Err("a foreign process is written PID:USER:9G".into());
            };
            foreign.push(Foreign {
                pid: number(pid)?,
                user: (user != "?").then(|| user.into()),
                memory: unless_unknown(held, memory)?,
            });
        }
        let processes_known = words.take("processes").is_none_or(|v| v != "?");
        let used = words.take("used");
        let energy_mj = words.take_as("energy_j", number::<u64>)?.map(|joules| joules * 1000);
        let mut jobs = Vec::new();
        for (key, value) in std::mem::take(&mut words.pairs) {
            let id = key.strip_prefix("job").ok_or(format!("not understood: {key}"))?;
            jobs.push((JobId(number(id)?), unless_unknown(&value, memory)?));
        }
        let sum: MiB = jobs.iter().map(|(_, m)| *m).chain(foreign.iter().map(|f| f.memory)).flatten().sum();
        let used = match used {
            Some(text) => unless_unknown(&text, memory)?,
            None => (health == Health::Ok).then_some(sum),
        };
        let seen = Box::new(Observation {
            at: self.clock,
            processes_known: processes_known && health == Health::Ok,
            health,
            used,
            jobs,
            foreign,
            window,
            energy_mj,
        });
        self.apply(&Input::Observed { gpu, seen }).map(drop)
    }

    // --- jobs ----------------------------------------------------------------------------------

    fn submit(&mut self, words: &mut Words) -> Outcome<()> {
        let id = words.job()?;
        let user = words.take("user").unwrap_or("alice".into());
        let name = words.take("cmd").unwrap_or(format!("job-{id}"));
        let mut estimates = Estimates::default();
        for estimator in Estimator::ALL {
            estimates = estimates.with(estimator, words.take_as(estimator.name(), memory)?);
        }
        let new = NewJob {
            id,
            user: self.user(&user),
            name: name.as_str().into(),
            command_key: command_key(&name),
            program_key: words.take("prog").map(|program| command_key(&program)),
            request: Request {
                gpus: words.take_as("gpus", number)?.unwrap_or(1),
                exclusive: words.flag("exclusive"),
                sharing: words.take_as("sharing", sharing)?,
                thread_percent: words.take_as("threads", number)?,
                time_limit: words.take_as("time", span)?,
                priority: words.take_as("priority", number)?.unwrap_or(0),
                max_retries: words.take_as("retries", number)?,
                max_slowdown: words.take_as("slowdown", share)?,
                latency_us: words.take_as("within_ms", number::<u32>)?.map(|ms| ms * 1000),
                save_grace: words.take_as("save", span)?,
            },
            profile: profile(words)?,
            run_time: words.take_as("runs", run_time)?,
            forecasts: Forecasts {
                declared: words.take_as("mem", memory)?,
                estimates,
                computed: words.take_as("computed", computed)?,
            },
            hold: words.flag("hold"),
        };
        self.apply(&Input::Submitted(Box::new(new))).map(drop)
    }

    fn learn(&mut self, words: &mut Words) -> Outcome<()> {
        let job = words.job()?;
        if let Some(computed) = words.take_as("computed", computed)? {
            let measured = words.take_as("measured", memory)?;
            self.apply(&Input::Forecast { job, computed, measured })?;
        }
        if let Some(run_time) = words.take_as("runs", run_time)? {
            self.apply(&Input::RunTime { job, run_time })?;
        }
        match profile(words)? {
            known if known != Profile::default() => {
                self.apply(&Input::Profiled { job, profile: known }).map(drop)
            }
            _ => Ok(()),
        }
    }

    fn predict(&mut self, words: &mut Words) -> Outcome<()> {
        let (newcomer, id) = (words.job()?, words.gpu()?);
        let class = |id: JobId| self.state.job(id).map(Job::class).ok_or(format!("there is no job {id}"));
        let mut unknown = Vec::new();
        while let Some(id) = words.take("unknown") {
            unknown.push(class(JobId(number(&id)?))?);
        }
        let seen_beside = words.flag("seen");
        let mut over = Vec::new();
        while let Some(id) = words.take("without") {
            over.push(JobId(number(&id)?));
        }
        let throughput = words.take_as("all", number)?;
        let threads = words.take_as("with", number)?;
        let before = words.take_as("before", share)?.unwrap_or(Fraction::ONE);
        let sharing = words.take_as("as", sharing)?.unwrap_or(self.options.sharing);
        let mut paces = BTreeMap::new();
        for (job, progress) in words.pairs.drain(..) {
            let (expected, lower) = progress.split_once(':').ok_or("progress is written 1=.9:.8")?;
            let pace = Pace { expected: share(expected)?, lower: Some(share(lower)?) };
            paces.insert(class(JobId(number(&job)?))?, pace);
        }
        let tenants = self.state.gpu(id).map_or(&[][..], |gpu| &gpu.tenants);
        let there = tenants.iter().map(|tenant| tenant.job).filter(|job| !over.contains(job));
        let mut classes = there.map(class).collect::<Result<Vec<_>, _>>()?;
        classes.sort_unstable();
        let newcomer = class(newcomer)?;
        let joins = paces.get(&newcomer).copied().unwrap_or_default();
        let newcomer = Class { threads: threads.or(newcomer.threads), ..newcomer };
        let paces = if unknown.is_empty() || !paces.is_empty() {
            classes.iter().map(|class| paces.get(class).copied().unwrap_or_default()).collect()
        } else {
            Vec::new()
        };
        let there = Company { kind: GpuId(0), sharing, classes };
        let outlook = Outlook { there, newcomer, paces, joins, unknown, seen_beside, before, throughput };
        self.apply(&Input::Predicted(vec![outlook])).map(drop)
    }

    fn asked(&mut self) {
        for asked in questions(&self.state) {
            // The first job of a class stands for it.
            let name = |class: &Class| {
                let like = |with: Option<u8>| {
                    let like = |job: &&Arc<Job>| job.class() == Class { threads: with, ..*class };
                    self.state.jobs().values().find(like).map(|job| job.spec.id)
                };
                match (like(class.threads), like(None), class.threads) {
                    (Some(job), _, _) => job.to_string(),
                    (None, Some(job), Some(percent)) => format!("{job} with {percent} % of the threads"),
                    (None, _, _) => "?".to_owned(),
                }
            };
            let there: Vec<String> = asked.there.classes.iter().map(name).collect();
            let (newcomer, sharing) = (name(&asked.newcomer), asked.there.sharing);
            self.say(format!("a job like {newcomer} beside those like {} by {sharing}", there.join(", ")));
        }
    }

    fn measure(&mut self, words: &mut Words) -> Outcome<()> {
        let job = words.job()?;
        let progress = share(&words.first()?)?;
        let over = words.take_as("over", span)?.unwrap_or(Millis::secs(20));
        let attempt = self.placement(job)?.attempt;
        self.apply(&Input::Measured { job, attempt, progress, over, at_most: false, loading: false })
            .map(drop)
    }

    fn placement(&self, id: JobId) -> Outcome<Placement> {
        let placement = self.state.job(id).and_then(Job::placement);
        placement.cloned().ok_or(format!("job {id} has no placement"))
    }

    fn start(&mut self, words: &mut Words) -> Outcome<()> {
        let mode = words.take_as("as", sharing)?;
        while !words.bare.is_empty() {
            let job = words.job()?;
            let placement = self.placement(job)?;
            let pid = u32::try_from(1000 + job.0 * 10).unwrap_or(0) + placement.attempt;
            self.apply(&Input::Started {
                job,
                attempt: placement.attempt,
                supervisor: ProcessRef { pid, start_ticks: 1 },
                child: None,
                sharing: mode.unwrap_or(placement.sharing),
                note: None,
            })?;
        }
        Ok(())
    }

    fn exit(&mut self, words: &mut Words) -> Outcome<()> {
        let job = words.job()?;
        let attempt = self.placement(job)?.attempt;
        let code = words.take_as("code", number)?;
        let signal = words.take_as("signal", number)?;
        let status = match (words.flag("unknown"), signal) {
            (true, _) => ExitStatus::Unknown,
            (false, Some(signal)) => ExitStatus::Signal(signal),
            (false, None) => ExitStatus::Code(code.unwrap_or(0)),
        };
        let exit = Exit {
            status,
            evidence: words.take("log").and_then(|log| recovery::scan(&log)),
            last_line: words.take("last-line").map(Into::into),
            not_started: words.take("not-started"),
            machine: words.flag("machine"),
            user_gone: words
                .take("user-gone")
                .map(|now| Box::new(UserGone { now: (now != "nobody").then(|| now.into()) })),
            asked: match (words.flag("asked"), words.flag("unasked")) {
                (false, false) => None,
                (asked, _) => Some(asked),
            },
            host: HostUse {
                oom_kills: words.take_as("oom-kills", number)?.map_or(0, i32::unsigned_abs),
                memory_limit: words.take_as("host-limit", memory)?,
                ..HostUse::default()
            },
            ended: None,
        };
        let past = self.past(job);
        self.apply(&Input::Exited { job, attempt, exit })?;
        self.say_if_back(job, past);
        Ok(())
    }

    fn launch_fails(&mut self, words: &mut Words) -> Outcome<()> {
        let job = words.job()?;
        let attempt = self.placement(job)?.attempt;
        if let Some(why) = words.take("why") {
            let past = self.past(job);
            self.apply(&Input::NotLaunched { job, attempt, why, pause: words.flag("pause") })?;
            self.say_if_back(job, past);
            return Ok(());
        }
        let input = Input::LaunchFailed {
            job,
            attempt: self.placement(job)?.attempt,
            error: words.take("error").ok_or("error=\"...\" is missing")?,
            transient: !words.flag("permanent"),
        };
        let past = self.past(job);
        self.apply(&input)?;
        self.say_if_back(job, past);
        Ok(())
    }

    fn past(&self, job: JobId) -> usize {
        self.state.job(job).map_or(0, |j| j.past.len())
    }

    /// Says what became of an attempt that is over while its job lives on.
    fn say_if_back(&mut self, id: JobId, before: usize) {
        let Some(job) = self.state.job(id) else {
            return;
        };
        let text = match (job.past.get(before), &job.phase) {
            (Some(attempt), _) => format!("job {id} is {} again: {}", job.state(), attempt.verdict),
            (None, _) => return,
        };
        self.say(text);
    }

    fn ask(&mut self, command: &str, words: &mut Words) -> Outcome<()> {
        let job = words.job()?;
        let by = words.take("by").ok_or("by=USER is missing")?;
        let by = self.user(&by);
        self.apply(&match command {
            "cancel" => Input::Cancel { job, by },
            "hold" => Input::Hold { job, by },
            "release" => Input::Release { job, by },
            "suspend" => Input::Suspend { job, by },
            "unsuspend" => Input::Unsuspend { job, by },
            _ => Input::Requeue { job, by },
        })
        .map(drop)
    }

    /// What a daemon finds when it starts anew: the state as it was stored.
    fn restart(&mut self) -> Outcome<()> {
        let text = serde_json::to_string(&self.state).map_err(|e| e.to_string())?;
        let mut state: State = serde_json::from_str(&text).map_err(|e| e.to_string())?;
        state.rebuild();
        if state != self.state {
            return Err("the state is another one after it was stored".into());
        }
        self.state = state;
        Ok(())
    }

    // --- decisions -----------------------------------------------------------------------------

    fn plan(&mut self) -> Outcome<()> {
        let made = plan(&self.state, self.clock);
        let idle = made.actions.is_empty() && made.waiting.is_empty();
        for action in made.actions {
            // The end of a job is told when it is applied.
            let ends = matches!(&action, Action::SetState { state, .. } if *state != JobState::Pending);
            if !ends {
                let text = self.action(&action);
                self.say(text);
            }
            self.apply(&Input::Decided(Box::new(action)))?;
        }
        for (job, reason) in made.waiting {
            self.say(format!("job {job} waits: {reason}"));
        }
        if let Some(wake) = made.wake {
            self.say(format!("to be looked at again at {}", clock(wake)));
        }
        if idle && made.wake.is_none() {
            self.say("nothing to do");
        }
        Ok(())
    }

    fn action(&self, action: &Action) -> String {
        match action {
            Action::Launch { job, placement } => {
                let mut text = format!("job {job} starts");
                if placement.attempt > 1 {
                    let _ = write!(text, " (attempt {})", placement.attempt);
                }
                let _ = write!(text, " on {} ", self.names(&placement.gpus));
                let _ = write!(text, "[{}", placement.sharing);
                if let Some(cap) = placement.cap {
                    let _ = write!(text, ", cap {cap}");
                }
                if let Some(percent) = placement.thread_percent {
                    let _ = write!(text, ", {percent} % of the threads");
                }
                let _ = write!(text, "]: {}", placement.reason);
                text
            }
            Action::End { job, level, cause, .. } => {
                let how = match level {
                    EndLevel::Checkpoint => "asked to save its work",
                    EndLevel::Terminate => "asked to end",
                    EndLevel::Kill => "killed",
                    EndLevel::Abandon => "killed with its supervisor",
                };
                format!("job {job} is {how}: {}", why(cause))
            }
            Action::Suspend { job, cause: None, .. } => format!("job {job} leaves its GPU"),
            Action::Suspend { job, cause: Some(cause), .. } => {
                format!("job {job} is suspended: {}", why(cause))
            }
            Action::Resume { job, gpus, .. } => {
                format!("job {job} is put back on {}", self.names(gpus))
            }
            Action::SetState { job, state, reason } => {
                format!("job {job} becomes {state}: {reason}")
            }
        }
    }

    fn names(&self, gpus: &[GpuId]) -> String {
        let names: Vec<String> = gpus
            .iter()
            .map(|id| self.state.gpu(*id).map_or("?".into(), |g| g.info.index.to_string()))
            .collect();
        format!("GPU {}", names.join("+"))
    }

    fn explain(&mut self, words: &mut Words) -> Outcome<()> {
        let id = words.job()?;
        let job = self.state.job(id).ok_or(format!("there is no job {id}"))?;
        let reason = evaluate(&self.state, self.clock, job);
        let mut text = format!("{reason}\n");
        if let carma_core::explain::Reason::NoGpu { detail, .. } = &reason {
            for (index, refusal) in &detail.refusals {
                let _ = writeln!(text, "  GPU {index}: {refusal}");
            }
        }
        self.say(text);
        Ok(())
    }

    fn answers(&mut self, words: &mut Words) -> Outcome<()> {
        let id = words.job()?;
        let job = self.state.job(id).ok_or(format!("there is no job {id}"))?;
        let memory = |mib: Option<MiB>| mib.map_or_else(|| "?".to_owned(), |m| m.to_string());
        for answer in answers(&self.state, self.clock, job) {
            let word = answer.refusal.map_or_else(|| "would do".to_owned(), |refusal| refusal.brief());
            let mut text =
                format!("GPU {}: {}/{}; {word}", answer.gpu, memory(answer.free), memory(answer.need));
            for task in &answer.predicted {
                let _ = write!(text, "; job {} {}", task.job, task.expected);
            }
            if let Some(gain) = answer.gain {
                let _ = write!(text, "; gain {gain}");
            }
            self.say(text);
        }
        Ok(())
    }

    fn sooner(&mut self, words: &mut Words) -> Outcome<()> {
        let id = words.job()?;
        let job = self.state.job(id).ok_or(format!("there is no job {id}"))?;
        let ends: Vec<JobId> = self.state.active().iter().copied().collect();
        let took = words.take_as("took", memory)?.unwrap_or_default();
        let found = sooner(&self.state, self.clock, job, &ends, took);
        if found.is_empty() {
            self.say("nothing");
        }
        for help in found {
            self.say(help.to_string());
        }
        Ok(())
    }

    // --- listings ------------------------------------------------------------------------------

    fn usage(&mut self) {
        let tenths = |time: Millis| format!("{}.{} h", time.0 / 3_600_000, time.0 / 360_000 % 10);
        for account in self.state.accounts_at(self.clock).into_values() {
            let (in_period, _) = account.of_period(self.clock, &self.options);
            self.say(format!(
                "{}: held {}, charged {}, progress {}, {} J ({} unmetered), lately {}, this period {}",
                account.name,
                tenths(account.held),
                tenths(account.charged),
                tenths(account.progress()),
                account.energy_mj / 1000,
                tenths(account.unmetered),
                tenths(account.decayed_at(self.clock, &self.options)),
                tenths(in_period),
            ));
        }
    }

    fn joules(&mut self) {
        let joules = |mj: u64| format!("{}.{} J", mj / 1000, mj / 100 % 10);
        let metered = self.state.metered_at(self.clock, &BTreeMap::new());
        for (gpu, tally) in &metered.gpus {
            self.say(format!(
                "GPU {}: {}: jobs {}, idle {}, others {}",
                gpu.0,
                joules(tally.total_mj()),
                joules(tally.jobs_mj),
                joules(tally.idle_mj),
                joules(tally.others_mj),
            ));
        }
        for (id, had) in &metered.jobs {
            let Some(job) = self.state.job(*id) else { continue };
            let alone =
                job.spec.profile.power_mw.map(|power| format!(", alone {}", joules(had.alone_mj(power))));
            let took = had.energy_mj().map_or_else(|| "unknown".to_owned(), joules);
            self.say(format!("job {id}: {took}{}", alone.unwrap_or_default()));
        }
    }

    fn show(&mut self) {
        let reserve = self.options.policy.reserve;
        let gpus: Vec<String> = self.state.gpus().iter().map(|g| gpu(g, reserve)).collect();
        let mut states: BTreeMap<JobId, String> = BTreeMap::new();
        for (id, job) in self.state.jobs() {
            states.insert(*id, self.job(job));
        }
        for text in gpus.into_iter().chain(states.into_values()) {
            self.say(text);
        }
    }

    fn job(&self, job: &Job) -> String {
        let mut text = format!("job {} {}", job.spec.id, job.state());
        match &job.phase {
            Phase::Pending => {}
            Phase::Held { by, operator: _, gone } => {
                let _ = write!(text, ", held by {by}");
                if let Some(gone) = gone {
                    let _ =
                        write!(text, ", since its number is {}'s", gone.now.as_deref().unwrap_or("nobody"));
                }
            }
            Phase::Launching { placement, ending } => {
                let _ = write!(text, ", starting on {}", self.names(&placement.gpus));
                if ending.is_some() {
                    text.push_str(", to be ended");
                }
            }
            Phase::Running { placement, ending, .. } => {
                let was = if job.is_off() { "was " } else { "" };
                let _ = write!(text, " {was}on {}", self.names(&placement.gpus));
                let _ = write!(text, " [{}]", placement.sharing);
                if let Some(reason) = State::reason_of_suspension(job) {
                    let _ = write!(text, ", {reason}");
                }
                match ending.as_ref().map(|ending| ending.sent) {
                    Some(Some((EndLevel::Checkpoint, _))) => text.push_str(", saving its work"),
                    Some(_) => text.push_str(", being ended"),
                    None => {}
                }
                if let Some(relief) = job.relief {
                    let _ = write!(
                        text,
                        ", relieved of job {} at {} (slowed down by {}, limit {})",
                        relief.evicted,
                        clock(relief.at),
                        relief.slowdown,
                        relief.limit
                    );
                }
                match job.restarts() {
                    0 => {}
                    restarts => drop(write!(text, ", restart {restarts}")),
                }
            }
            Phase::Judging { .. } => text.push_str(", its fault is being judged"),
        }
        if let Some(floor) = job.floor {
            let _ = write!(text, ", needs {floor}");
        }
        let _ = write!(text, ", retries {} charged, {} free", job.charged_retries, job.free_retries);
        text
    }
}

fn clock(at: Millis) -> String {
    if at.0.is_multiple_of(1000) { format!("{} s", at.0 / 1000) } else { format!("{} ms", at.0) }
}

fn over(finished: &Finished) -> String {
    let Finished { job, state, reason, exit, .. } = finished;
    let mut text = format!("job {} is over: {state}", job.spec.id);
    // Completed says it all.
    if *state != JobState::Completed {
        let _ = write!(text, ", {reason}");
    }
    if let Some(code) = exit.and_then(ExitStatus::shell_code)
        && code != 0
    {
        let _ = write!(text, " [{code}]");
    }
    text
}

fn gpu(gpu: &Gpu, reserve: MiB) -> String {
    let mut text = format!("GPU {} {}:", gpu.info.index, gpu.info.memory);
    match gpu.free(reserve) {
        Some(free) => {
            let _ = write!(text, " {free} free");
        }
        None => text.push_str(" free memory unknown"),
    }
    if gpu.foreign_memory() > MiB::ZERO {
        let _ = write!(text, ", {} not ours", gpu.foreign_memory());
    }
    if !gpu.present {
        text.push_str(", gone");
    }
    if let Some(by) = &gpu.drained_by {
        let _ = write!(text, ", drained by {by}");
    }
    for tenant in &gpu.tenants {
        let reservation = match tenant.reservation {
            Reservation::Memory(m) => format!("{m} reserved"),
            Reservation::Whole => "all reserved".into(),
            Reservation::None => "nothing reserved".into(),
        };
        let seen = tenant.observed.map_or("nothing seen".into(), |m| format!("{m} seen"));
        let _ = write!(text, "\n  job {}: {reservation}, {seen}", tenant.job);
        text.push_str(match (tenant.active_since, tenant.settled) {
            (_, true) => ", settled",
            (Some(_), false) => ", starting: active",
            (None, false) => ", starting: no activity yet",
        });
    }
    text
}
