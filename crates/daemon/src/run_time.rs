//! How long jobs are expected to run, and what their ends teach of it.

use crate::gist::Gist;
use crate::run::pace::Counts;
use carma_api::wire::{LeftView, RunTimeView};
use carma_core::explain::Reason;
use carma_core::model::{Attempt, ExitStatus, Job, JobId, Phase, RunTime};
use carma_core::plan::ended_by;
use carma_core::state::State;
use carma_core::units::{Fraction, Millis};
use carma_interference::rate::tally::Done;
use carma_run_time::news::Heard;
use carma_run_time::{LONGEST_S, Run, RunTimes, Running, left_s};
use std::sync::Arc;

/// Expects and learns.
#[derive(Default)]
pub struct Durations {
    times: RunTimes,
    heard: Heard,
}

/// A job that runs, as others learn from it.
fn teaches(gist: &Gist, job: &Job, done: Millis) -> Running {
    let first = job.placement().is_none_or(|placement| placement.attempt == 1);
    // What is left of a run that was cut in two says nothing of a whole one.
    let count = job.counted_run().filter(|_| first || !gist.saves_its_work);
    Running { class: gist.class, done_s: done.0 / 1000, count_s: count.map(|run| run.0.div_ceil(1000)) }
}

impl Durations {
    /// With what was stored. Rows that are not understood are left out, and the log says so: what was learned must never
    /// keep the daemon from running.
    #[must_use]
    pub fn new(rows: &[(String, String)]) -> Self {
        let mut times = RunTimes::default();
        for (key, body) in rows {
            if let Err(e) = times.load(key, body) {
                tracing::warn!("what was learned of run times as '{key}' is left out: {e}");
            }
        }
        Self { times, ..Self::default() }
    }

    /// Rows that changed since the last time.
    pub fn changes(&mut self) -> Vec<(String, Option<String>)> {
        self.times.changes().unwrap_or_else(|e| {
            tracing::warn!("what was learned of run times cannot be stored: {e}");
            Vec::new()
        })
    }

    /// What the jobs that run say of run times, as far as their gists are known.
    pub fn running(&mut self, state: &State, gist: impl Fn(JobId) -> Option<Arc<Gist>>) -> Vec<Running> {
        let active = state.active();
        self.heard.keep(active);
        let teaches = |job: &Job| Some(teaches(&*gist(job.spec.id)?, job, state.done(job)));
        active.iter().filter_map(|id| state.job(*id)).filter_map(teaches).collect()
    }

    /// Whether jobs that wait are to hear of a running job's own count.
    pub fn is_news(&mut self, job: &Job) -> bool {
        self.heard.is_news(job)
    }

    /// At the start of the daemon: what running jobs counted before is no news.
    pub fn told_before(&mut self, state: &State) {
        for job in state.active_jobs() {
            self.heard.is_news(job);
        }
    }

    /// What is expected of a job. `None`: nothing is known.
    #[must_use]
    pub fn expect(&self, gist: &Gist, running: &[Running]) -> Option<RunTime> {
        let run_time = self.times.forecast(&gist.class, || running)?;
        // No run is longer than its limit.
        let limit_s = gist.time_limit_ms.map_or(u64::MAX, |limit| limit.div_ceil(1000));
        let RunTime { low_s, median_s, high_s, .. } = run_time;
        let [low_s, median_s, high_s] = [low_s, median_s, high_s].map(|seconds| seconds.min(limit_s));
        Some(RunTime { low_s, median_s, high_s, ..run_time })
    }

    /// Learns from an attempt that is over, without the time that it is known to have lost to neighbours.
    pub fn learn(&mut self, gist: &Gist, attempt: &Attempt) {
        let lost = attempt.had.lost(attempt.placement.gpus.len());
        let Some(mut run) = run(attempt, lost) else { return };
        // It may have gone on where an earlier attempt had saved its work: all of it takes longer.
        run.cut |= gist.saves_its_work && attempt.placement.attempt > 1;
        self.times.learn(&gist.class, run);
    }
}

/// What an attempt says of its job's run time. `None`: it never ran.
fn run(attempt: &Attempt, lost: Millis) -> Option<Run> {
    let ran = attempt.ended.since(attempt.started? + attempt.suspended);
    let exit = attempt.exit.as_ref().filter(|exit| exit.not_started.is_none())?;
    // Whatever else ended it, it had not come to its end: one that has saved its work to be moved also ends with code 0.
    let cut = exit.status != ExitStatus::Code(0) || attempt.verdict != Reason::Completed;
    Some(Run { seconds: ran.since(lost).0.div_ceil(1000), cut })
}

/// A forecast as it travels.
#[must_use]
pub fn to_view(run_time: &RunTime, source: String) -> RunTimeView {
    let RunTime { low_s, median_s, high_s, .. } = *run_time;
    RunTimeView { low_s, median_s, high_s, guess: run_time.is_guess(), source }
}

/// How long a job still has to run, and by what that is known. `counts`: how far jobs are by their own counts. `source`: what its forecast rests on,
/// for who asks.
#[must_use]
pub fn left(
    source: impl Fn(&RunTime) -> String,
    state: &State,
    job: &Job,
    counts: &Counts,
    now: Millis,
) -> Option<LeftView> {
    let expected = expected_left(source, state, job, counts, now);
    let Some(by) = ended_by(state, job) else { return expected };
    let left_s = by.since(now).0.div_ceil(1000);
    let told = LeftView { left_s, counted: false, source: "the time that it is given to end".to_owned() };
    Some(expected.filter(|expected| expected.left_s < left_s).unwrap_or(told))
}

/// The same of one that is not being ended.
fn expected_left(
    source: impl Fn(&RunTime) -> String,
    state: &State,
    job: &Job,
    counts: &Counts,
    now: Millis,
) -> Option<LeftView> {
    let (done, lost) = (counts.done.get(&job.spec.id), counts.lost.get(&job.spec.id));
    let started = match &job.phase {
        // While it is suspended, time stands still.
        Phase::Running { started, halt, .. } => Some(*started + halt.until(now)),
        // It runs for all of its time from when it starts.
        Phase::Pending | Phase::Held { .. } | Phase::Launching { .. } => None,
        Phase::Judging { .. } => return None,
    };
    let elapsed = started.map_or(Millis::ZERO, |started| now.since(started));
    // Of one that is not heard any more, as long as it can be where its count would be.
    let last = lost.copied().flatten().and_then(|done| done.left_unheard_s(now.as_secs_f64()));
    let still = counts.still.get(&job.spec.id).copied();
    // Of one that stands still it is not known when it goes on: what was left when it last counted.
    let told_s = |done: &Done| if still.is_some() { done.at_s } else { now.as_secs_f64() };
    let by_count = started.and(done).and_then(|done| done.left_s(told_s(done)));
    let by_count = by_count.or(last.filter(|left| *left > 0.0));
    let by_count = by_count.or_else(|| started.and_then(|_| left_of_counted(state, job, done)));
    // What runs of a few other commands took is no time to tell: one `true` would leave a training of days a second.
    let forecast = job.spec.run_time.as_ref().filter(|forecast| !forecast.is_guess());
    let (left_s, source) = match (by_count, forecast) {
        (Some(left), _) if lost.is_some() => {
            (left.round() as u64, "its own count, up to when its supervisor was killed".to_owned())
        }
        (Some(left), _) => match still {
            Some(still) => (left.round() as u64, format!("its own count, which has not risen for {still}")),
            None => (left.round() as u64, "its own count".to_owned()),
        },
        (None, Some(forecast)) => {
            let (quantiles, ran_s) = ([forecast.low_s, forecast.median_s, forecast.high_s], elapsed.0 / 1000);
            let left = beside(left_s(quantiles, ran_s), job.measured.map(|measured| measured.progress));
            let source = source(forecast);
            let source = if ran_s > forecast.high_s {
                format!("what it has taken, which is longer than {source}")
            } else {
                source
            };
            (left, source)
        }
        (None, None) => return None,
    };
    let limit = job.spec.request.time_limit.map(|limit| limit.since(elapsed).0.div_ceil(1000));
    // A job may count whatever it likes.
    let left_s = left_s.min(limit.unwrap_or(LONGEST_S)).min(LONGEST_S);
    Some(LeftView { left_s, counted: by_count.is_some() && lost.is_none() && still.is_none(), source })
}

/// What is left by the count that the journal knows, seconds, where the pace is not known: a daemon that has just started hears the
/// count of a job go on some time later, and what earlier runs took must not stand beside how far this one is.
fn left_of_counted(state: &State, job: &Job, done: Option<&Done>) -> Option<f64> {
    let run = job.counted_run()?;
    let left = match (done, job.counted) {
        (Some(done), Some(counted)) => {
            // It may have begun where an earlier attempt had saved its work, and has started up first.
            let share = (1.0 - done.share) / (1.0 - counted.first.to_f64());
            Millis((run.since(counted.by_then).0 as f64 * share.clamp(0.0, 1.0)) as u64)
        }
        // It takes longer than it counted: that is not what is left.
        _ => Some(run.since(state.done(job))).filter(|left| *left > Millis::ZERO)?,
    };
    let left = beside(left.0.div_ceil(1000), job.measured.map(|measured| measured.progress));
    Some(left as f64)
}

/// The time that work takes beside neighbours. What stands still is not counted on to do so for ever.
fn beside(alone_s: u64, progress: Option<Fraction>) -> u64 {
    let progress =
        progress.map_or(Fraction::ONE, |progress| progress.clamp(Fraction::percent(10), Fraction::ONE));
    alone_s.saturating_mul(u64::from(Fraction::ONE.0)) / u64::from(progress.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use carma_api::wire::SubmitRequest;
    use carma_core::model::{Exit, RunsOf};

    fn request(line: &str) -> SubmitRequest {
        let command = line.split_whitespace().map(str::to_owned).collect();
        SubmitRequest { command, cwd: "/w".into(), ..SubmitRequest::default() }
    }

    #[test]
    fn arguments_that_matter() {
        let class = |request: &SubmitRequest, uid| Gist::of(request, uid).class;
        let of = |line: &str| class(&request(line), 7);
        let one = of("python train.py --model a --epochs 3 -b 32 --seed 1");
        assert_eq!(of("python train.py --model a --seed 2 --epochs 3 -b 32 --lr 0.1"), one);
        for other in ["--epochs 4 -b 32", "--epochs 3 -b 64", "--epochs 3 -b 32 --amp"] {
            let other = of(&format!("python train.py --model a {other}"));
            assert_eq!((other.program, other.user), (one.program, one.user));
            assert_ne!(other.command, one.command);
        }
        // What runs another's words is no program.
        for words in ["python -c pass", "make a", "docker run a"] {
            let of = of(words);
            assert_eq!((of.program, of.user), (of.user, one.user), "{words}");
            assert_ne!(of.command, of.program);
        }
        let elsewhere = class(&SubmitRequest { cwd: "/x".into(), ..request("python train.py") }, 7);
        assert_ne!(elsewhere.program, one.program);
        let others = class(&request("python train.py --model a --epochs 3 -b 32 --seed 1"), 8);
        assert!(others.user != one.user && others.program != one.program && others.command != one.command);
    }

    #[test]
    fn users_share_what_runs_the_same_bytes() {
        let of = |line: &str, cwd: &str, script: Option<&str>, uid| {
            let mut request = SubmitRequest { cwd: cwd.into(), ..request(line) };
            request.task.script = script.map(str::to_owned);
            Gist::of(&request, uid).class
        };
        let bytes = Some("5ca1ab1e");
        let one = of("python train.py --model a --seed 1", "/home/a", bytes, 7);
        let two = of("/opt/bin/python /home/b/src/train.py --model a --seed 2", "/", bytes, 8);
        assert!(one.shared == two.shared && one.learns_from(&two) && one.program != two.program);
        for other in [
            of("python train.py --model a", "/home/b", Some("0ddba11"), 8),
            of("python train.py --model b", "/home/b", bytes, 8),
            of("python train.py --model a --epochs 9", "/home/b", bytes, 8),
            of("python train.py --model a -b 32", "/home/b", bytes, 8),
        ] {
            assert!(other.shared != one.shared && !one.learns_from(&other));
        }
        // Whose text nobody read, and what runs other words, is the user's own.
        for (line, script) in [
            ("python train.py --model a", None),
            ("python train.py --model a", Some(carma_memory::history::UNREAD)),
            ("python -c pass", bytes),
        ] {
            let own = of(line, "/home/a", script, 7);
            assert_eq!(own.shared, own.program, "{line} {script:?}");
            assert!(!of(line, "/home/a", script, 8).learns_from(&own));
        }
    }

    #[test]
    fn what_ends_say() {
        let attempt = |status, started| Attempt {
            exit: Some(Exit::of(status)),
            ..crate::view::tests::attempt(started, Millis::secs(100))
        };
        let began = Some(Millis::secs(10));
        let done = attempt(ExitStatus::Code(0), began);
        assert_eq!(run(&done, Millis(0)), Some(Run { seconds: 90, cut: false }));
        assert_eq!(run(&done, Millis(30_500)), Some(Run { seconds: 60, cut: false }));
        assert_eq!(run(&done, Millis::secs(999)), Some(Run { seconds: 0, cut: false }));
        for cut in [ExitStatus::Code(1), ExitStatus::Signal(15), ExitStatus::Unknown] {
            assert_eq!(run(&attempt(cut, began), Millis(0)), Some(Run { seconds: 90, cut: true }));
        }
        assert_eq!(run(&attempt(ExitStatus::Code(0), None), Millis(0)), None);
        let saved = Attempt { verdict: Reason::RequeuedByUser { by: "a".into() }, ..done };
        assert_eq!(run(&saved, Millis(0)), Some(Run { seconds: 90, cut: true }));
        let mut never = attempt(ExitStatus::Code(127), began);
        never.exit.as_mut().unwrap().not_started = Some("no such file".into());
        assert_eq!(run(&never, Millis(0)), None);
    }

    #[test]
    fn until_the_pace_is_known_again_the_journal_says_what_is_left() {
        use crate::view::tests::{gpu, new_job, seen};
        use carma_core::input::{Action, Input};
        use carma_core::model::{GpuId, NewJob, ProcessRef, SharingMode};
        use carma_core::slowdown::Counted;
        let at = Millis::secs(60);
        let mut state = State::default();
        let run_time = RunTime { low_s: 50, high_s: 60, ..RunTime::of(55, RunsOf::Command) };
        let new = NewJob { run_time: Some(run_time), ..new_job(1) };
        for input in [
            Input::Inventory(vec![gpu(0)]),
            Input::Observed { gpu: GpuId(0), seen: Box::new(seen(at)) },
            Input::Submitted(Box::new(new)),
        ] {
            state.apply(at, &input).unwrap();
        }
        for action in carma_core::plan(&state, at).actions {
            let Action::Launch { job, .. } = action else { continue };
            state.apply(at, &Input::Decided(Box::new(action))).unwrap();
            let supervisor = ProcessRef { pid: 1, start_ticks: 1 };
            let (sharing, child, note) = (SharingMode::TimeSlice, None, None);
            state.apply(at, &Input::Started { job, attempt: 1, supervisor, child, sharing, note }).unwrap();
        }
        let mut job = state.job(JobId(1)).unwrap().clone();
        let said = |job: &Job, share: Option<f64>| {
            let done =
                share.map(|share| Done { share, per_s: None, at_s: 60.0, took_s: 0.0, goes_on_s: 0.0 });
            let counts =
                Counts { done: done.map(|done| (JobId(1), done)).into_iter().collect(), ..Counts::default() };
            left(RunTime::to_string, &state, job, &counts, at).map(|left| (left.left_s, left.counted))
        };
        assert_eq!(said(&job, None), Some((55, false)));
        // It counted to the end of half an hour.
        let run = Some(Millis::secs(1800));
        job.counted = Some(Counted { first: Fraction::percent(2), by_then: Millis::ZERO, run });
        assert_eq!(said(&job, Some(0.25)), Some((1378, true)));
        assert_eq!(said(&job, None), Some((1800, true)));
        // It goes on from a checkpoint at 60 %, and was 100 s old then.
        let (first, by_then) = (Fraction::percent(60), Millis::secs(100));
        job.counted = Some(Counted { first, by_then, run: Some(Millis::secs(500)) });
        assert_eq!(said(&job, Some(0.8)), Some((200, true)));
        job.counted = Some(Counted { run: None, first: Fraction::percent(2), by_then: Millis::ZERO });
        assert_eq!(said(&job, Some(0.02)), Some((55, false)), "it was told once");
        // Its supervisor was killed when it had counted a tenth, 10 s ago; it goes on.
        let (share, per_s, took_s) = (0.1, Some(0.01), 9.0);
        let lost = |at_s| {
            let done = Done { share, per_s, at_s, took_s, goes_on_s: 3.0 };
            let counts = Counts { lost: [(JobId(1), Some(done))].into(), ..Counts::default() };
            let left = left(RunTime::to_string, &state, &job, &counts, at).unwrap();
            (left.left_s, left.counted, left.source)
        };
        let (left_s, counted, source) = lost(50.0);
        assert_eq!((left_s, counted), (80, false));
        assert!(source.contains("up to when its supervisor was killed"), "{source}");
        // It would be over by then: its count says nothing any more.
        assert_eq!(lost(-60.0).0, 55);
        // It is heard, and has counted nothing for 50 s: as much is left as when it last did.
        let done = Done { share, per_s, at_s: 10.0, took_s, goes_on_s: 3.0 };
        let silent = |still: Option<Millis>| {
            let (done, still) = ([(JobId(1), done)].into(), still.map(|still| (JobId(1), still)));
            let counts = Counts { done, still: still.into_iter().collect(), ..Counts::default() };
            let left = left(RunTime::to_string, &state, &job, &counts, at).unwrap();
            (left.left_s, left.counted, left.source)
        };
        assert_eq!(silent(None), (87, true, "its own count".into()));
        let source = "its own count, which has not risen for 50 s".to_owned();
        assert_eq!(silent(Some(Millis::secs(50))), (90, false, source));
        // What it counted before a restart of the daemon is no news after it.
        for (at, percent) in [(70, 2), (170, 10), (270, 20)] {
            let share = Fraction::percent(percent);
            let counted = Input::Counted { job: JobId(1), attempt: 1, share };
            state.apply(Millis::secs(at), &counted).unwrap();
        }
        let counting = state.job(JobId(1)).unwrap();
        assert!(Durations::default().is_news(counting));
        let mut started = Durations::default();
        started.told_before(&state);
        assert!(!started.is_news(counting));
    }

    #[test]
    fn neighbours_make_it_longer() {
        assert_eq!(beside(600, None), 600);
        assert_eq!(beside(600, Some(Fraction::percent(50))), 1200);
        assert_eq!(beside(600, Some(Fraction(0))), 6000);
        assert_eq!(beside(u64::MAX, Some(Fraction(0))), u64::MAX / 1000);
    }

    #[test]
    fn rows_that_make_no_sense_are_left_out() {
        let rows = [("user/1", "{"), ("x", "{}"), ("all/0", "{\"runs\":[{\"s\":50}],\"used\":1}")];
        let rows = rows.map(|(key, body)| (key.to_owned(), body.to_owned()));
        let durations = Durations::new(&rows);
        let expected = durations.expect(&Gist::of(&request("a"), 3), &[]).unwrap();
        assert_eq!((expected.median_s, expected.basis, expected.runs), (50, RunsOf::All, 1));
        let limited = SubmitRequest { time_limit_ms: Some(20_000), ..request("a") };
        assert_eq!(durations.expect(&Gist::of(&limited, 3), &[]).unwrap().high_s, 20);
    }
}
