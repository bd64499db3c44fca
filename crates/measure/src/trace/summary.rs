//! What the rows come to.

use super::rows::{Attempt, Job, LAST_WORDS, Machine, Play, Sample, caveat, counted, words};
use carma_stats::{mean, quantile, sorted};
use serde::Serialize;
use std::collections::BTreeMap;

/// The policy that all are compared with; its jobs had their GPUs to themselves.
pub const BASE: &str = "exclusive";

/// Results of one trace on one machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// Where.
    pub machine: Machine,
    /// Jobs of the trace.
    pub jobs: usize,
    /// Kinds of tasks among them.
    pub kinds: usize,
    /// When the last one comes, seconds.
    pub arrivals_s: f64,
    /// How long each kind runs alone, seconds: the mean of its runs under [`BASE`].
    pub solo_s: BTreeMap<String, f64>,
    /// The policies, [`BASE`] first.
    pub policies: Vec<Policy>,
    /// Plays that were broken off, and why.
    pub cut: Vec<String>,
    /// Jobs that were not completed: which, and why.
    pub failed: Vec<String>,
    /// The same for people: those of one play, kind and reason together, with their number.
    #[serde(skip)]
    pub failed_alike: Vec<String>,
    /// On virtual GPUs: kinds of tasks that do not use them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unmodelled: Vec<String>,
}

/// A policy's plays.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Policy {
    /// As it was asked for.
    pub policy: String,
    /// What each play came to.
    pub plays: Vec<Figures>,
}

/// What one play came to. Times in seconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figures {
    /// Which of the policy's plays.
    pub repeat: u32,
    /// From the first submission to the last end.
    pub makespan_s: f64,
    /// Job completion time, from submission to end, mean of the jobs that completed: failing early is no merit.
    pub jct_s: Option<f64>,
    /// From submission to the first start, mean of the same.
    pub wait_s: Option<f64>,
    /// All attempts of a job together, mean of the same.
    pub run_s: Option<f64>,
    /// From the start of a command to its first step, mean of those that tell of steps.
    pub startup_s: Option<f64>,
    /// Run time over run time alone, start-up and undone attempts included, mean over the jobs.
    pub slowdown: Option<f64>,
    /// The same, 95th percentile.
    pub slowdown_p95: Option<f64>,
    /// Energy of all GPUs by their counters, idle ones included, kJ. `None` where one was not read, or began anew.
    pub energy_kj: Option<f64>,
    /// SM active, mean over time and GPUs, 0 to 1.
    pub smact: Option<f64>,
    /// Jobs on a GPU, mean over time and GPUs.
    pub tenants: f64,
    /// Jobs completed.
    pub completed: usize,
    /// Jobs of the trace.
    pub jobs: usize,
    /// Attempts that were not their job's last.
    pub undone: usize,
    /// Attempts that ended out of GPU memory.
    pub oom: usize,
    /// Those of them that were not the job's own doing.
    pub oom_victims: usize,
    /// Attempts that a fault of another job ended.
    pub fault_victims: usize,
    /// Jobs with a limit of slowdown or of latency.
    pub limited: usize,
    /// Windows in which it was measured whether their limits were kept.
    pub limit_windows: u32,
    /// Those in which one was not.
    pub limit_beyond: u32,
    /// The most of these in a row, of one job.
    pub limit_longest: u32,
    /// From each decision to the running command, and the time of the plans (each taken as the slowest of a hundred), together,
    /// in percent of the makespan. On virtual GPUs nothing: their time runs faster than the daemon does.
    pub overhead_pct: Option<f64>,
}

impl Policy {
    /// Mean, least and greatest of a figure over the plays; `None` where a play lacks it.
    pub fn spread(&self, pick: impl Fn(&Figures) -> Option<f64>) -> Option<[f64; 3]> {
        let values = self.plays.iter().map(pick).collect::<Option<Vec<f64>>>()?;
        let values = sorted(values);
        Some([mean(values.iter().copied())?, *values.first()?, *values.last()?])
    }
}

impl Summary {
    /// How many jobs there are, of how many kinds: `48 jobs of 26 kinds`.
    #[must_use]
    pub fn counted(&self) -> String {
        counted(self.jobs, self.kinds)
    }

    /// What is to be known of results on virtual GPUs of which some tasks make no use.
    #[must_use]
    pub fn caveat(&self) -> Option<String> {
        caveat(&self.unmodelled, self.machine.speed)
    }

    /// Of plays of one trace on one machine; `None` of none.
    #[must_use]
    pub fn of(plays: &[Play]) -> Option<Self> {
        let first = plays.first()?;
        let solo_s = solo(plays);
        // In the order in which they were played first.
        let mut policies: Vec<Policy> = Vec::new();
        let mut plays: Vec<&Play> = plays.iter().collect();
        plays.sort_by_key(|play| (play.policy != BASE, play.began.clone()));
        let (mut cut, mut failed, mut failed_alike) = (Vec::new(), Vec::new(), Vec::new());
        for play in plays {
            let name = format!("{}, play {}", play.policy, play.repeat);
            if let Some(why) = &play.cut {
                cut.push(format!("{name}: {why}"));
                continue;
            }
            let not_completed = || play.jobs.iter().filter(|job| job.state != "COMPLETED");
            failed.extend(
                not_completed().map(|job| format!("{name}: {} {}: {}", job.kind, job.state, job.reason)),
            );
            failed_alike.extend(alike(not_completed()).into_iter().map(|(job, jobs)| {
                let jobs = if jobs == 1 { String::new() } else { format!(", {jobs} jobs") };
                format!("{name}: {} {}{jobs}: {}", job.kind, job.state, job.reason)
            }));
            let of = figures(play, &solo_s);
            match policies.iter_mut().find(|policy| policy.policy == play.policy) {
                Some(policy) => policy.plays.push(of),
                None => policies.push(Policy { policy: play.policy.clone(), plays: vec![of] }),
            }
        }
        Some(Self {
            machine: first.machine.clone(),
            jobs: first.trace.arrivals.len(),
            kinds: first.trace.kinds.len(),
            arrivals_s: first.trace.arrivals.last().map_or(0.0, |arrival| arrival.at_s),
            solo_s,
            policies,
            cut,
            failed,
            failed_alike,
            unmodelled: if first.machine.is_virtual { first.trace.unmodelled() } else { Vec::new() },
        })
    }

    /// A policy's figures over those of [`BASE`].
    #[must_use]
    pub fn over_base(&self, policy: &Policy, pick: impl Fn(&Figures) -> Option<f64>) -> Option<f64> {
        let base = self.policies.iter().find(|policy| policy.policy == BASE)?;
        let (of, base) = (policy.spread(&pick)?[0], base.spread(&pick)?[0]);
        (base > 0.0).then(|| of / base)
    }
}

/// Of jobs that differ in no more than the numbers that they printed last the first, and how many there are.
fn alike<'a>(jobs: impl Iterator<Item = &'a Job>) -> Vec<(&'a Job, usize)> {
    // Of the reason itself a number counts: an exit code.
    let parts = |reason: &'a str| reason.split_once(LAST_WORDS).unwrap_or((reason, ""));
    let mut groups: Vec<(&Job, usize)> = Vec::new();
    for job in jobs {
        let is = |other: &&'a Job| {
            let (ours, theirs) = (parts(&job.reason), parts(&other.reason));
            (&other.kind, &other.state, theirs.0) == (&job.kind, &job.state, ours.0)
                && words(theirs.1).eq(words(ours.1))
        };
        match groups.iter_mut().find(|(first, _)| is(first)) {
            Some((_, jobs)) => *jobs += 1,
            None => groups.push((job, 1)),
        }
    }
    groups
}

/// Time that an attempt ran for, without what it was suspended for, seconds.
fn ran_s(attempt: &Attempt) -> f64 {
    let there = attempt.started_s.zip(attempt.ended_s).map_or(0.0, |(from, to)| to - from);
    (there - attempt.suspended_s).max(0.0)
}

/// Time that a job ran for, all attempts together, without what it was suspended for, seconds.
#[must_use]
pub fn run_s(job: &Job) -> f64 {
    job.attempts.iter().map(ran_s).sum()
}

fn solo(plays: &[Play]) -> BTreeMap<String, f64> {
    let mut runs: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for play in plays.iter().filter(|play| play.policy == BASE && play.cut.is_none()) {
        for job in play.jobs.iter().filter(|job| job.state == "COMPLETED" && job.attempts.len() == 1) {
            runs.entry(job.kind.clone()).or_default().push(run_s(job));
        }
    }
    runs.into_iter().filter_map(|(kind, runs)| Some((kind, mean(runs)?))).collect()
}

fn figures(play: &Play, solo_s: &BTreeMap<String, f64>) -> Figures {
    let jobs = &play.jobs;
    let makespan_s = jobs.iter().filter_map(|job| job.ended_s).fold(0.0, f64::max);
    let completed = || jobs.iter().filter(|job| job.state == "COMPLETED");
    let attempts = || jobs.iter().flat_map(|job| &job.attempts);
    let count = |is: &dyn Fn(&Attempt) -> bool| attempts().filter(|attempt| is(attempt)).count();
    let wait = |job: &Job| Some(job.attempts.iter().find_map(|a| a.started_s)? - job.submitted_s);
    // One that ended between two looks at its log told of no step, and the first one known is of an attempt before it.
    let startup = |job: &Job| {
        let startup = job.first_step_s? - job.attempts.last()?.started_s?;
        (startup >= 0.0).then_some(startup)
    };
    let slowdowns = sorted(
        completed()
            .filter_map(|job| Some(run_s(job) / solo_s.get(&job.kind).filter(|s| **s > 0.0)?))
            .collect(),
    );
    let gpu_s: f64 = attempts().map(|a| ran_s(a) * a.gpus.len() as f64).sum();
    let launching: f64 = attempts().filter_map(|a| Some((a.started_s? - a.decided_s).max(0.0))).sum();
    let planning = play.launches as f64 * play.plan_p99_us as f64 / 1e6;
    let is_limited =
        |job: &&Job| play.trace.kinds.iter().any(|kind| kind.name == job.kind && kind.is_limited());
    let kept = || jobs.iter().filter_map(|job| job.limit_kept);
    let is_oom = |a: &Attempt| a.code.starts_with("OutOfMemory");
    Figures {
        repeat: play.repeat,
        makespan_s,
        jct_s: mean(completed().filter_map(|job| Some(job.ended_s? - job.submitted_s))),
        wait_s: mean(completed().filter_map(wait)),
        run_s: mean(completed().map(run_s)),
        startup_s: mean(jobs.iter().filter_map(startup)),
        slowdown: mean(slowdowns.iter().copied()),
        slowdown_p95: quantile(&slowdowns, 0.95),
        energy_kj: energy_j(&play.samples, makespan_s).map(|joules| joules / 1000.0),
        smact: smact(&play.samples, makespan_s),
        tenants: gpu_s / (makespan_s * play.machine.gpus.len() as f64).max(f64::MIN_POSITIVE),
        completed: completed().count(),
        jobs: play.trace.arrivals.len(),
        undone: jobs.iter().map(|job| job.attempts.len().saturating_sub(1)).sum(),
        oom: count(&is_oom),
        oom_victims: count(&|a| is_oom(a) && a.text.contains("victim")),
        fault_victims: count(&|a| a.code == "MpsFaultVictim"),
        limited: jobs.iter().filter(is_limited).count(),
        limit_windows: kept().map(|kept| kept.windows).sum(),
        limit_beyond: kept().map(|kept| kept.beyond).sum(),
        limit_longest: kept().map(|kept| kept.longest).max().unwrap_or(0),
        overhead_pct: (!play.machine.is_virtual && makespan_s > 0.0)
            .then(|| (launching + planning) / makespan_s * 100.0),
    }
}

/// Energy of all GPUs from 0 to `end_s`, between readings in proportion to time; `None` where a counter was not read, or began
/// anew: those of virtual GPUs do with their daemon, and what it took to come back was not read.
fn energy_j(samples: &[Sample], end_s: f64) -> Option<f64> {
    let fell = |pair: &[Sample]| {
        let mut gpus = pair[0].gpus.iter().zip(&pair[1].gpus);
        gpus.any(|(before, after)| before.energy_j.zip(after.energy_j).is_some_and(|(was, is)| is < was))
    };
    if samples.windows(2).any(fell) {
        return None;
    }
    let totals: Vec<(f64, f64)> = samples
        .iter()
        .filter_map(|sample| {
            let joules = sample.gpus.iter().map(|gpu| gpu.energy_j).collect::<Option<Vec<f64>>>()?;
            (!joules.is_empty()).then(|| (sample.at_s, joules.iter().sum()))
        })
        .collect();
    Some(at(&totals, end_s)? - at(&totals, 0.0)?)
}

/// A curve's value; before its first and after its last point, theirs.
fn at(curve: &[(f64, f64)], when: f64) -> Option<f64> {
    let after = curve.partition_point(|(t, _)| *t <= when);
    let (first, last) = (curve.first()?, curve.last()?);
    let (before, next) = match (after.checked_sub(1).and_then(|i| curve.get(i)), curve.get(after)) {
        (Some(before), Some(next)) => (before, next),
        (None, _) => return Some(first.1),
        (_, None) => return Some(last.1),
    };
    let share = (when - before.0) / (next.0 - before.0).max(f64::MIN_POSITIVE);
    Some(before.1 + (next.1 - before.1) * share)
}

/// Mean SMACT from 0 to `end_s` over all GPUs: each reading is of the time since the one before.
fn smact(samples: &[Sample], end_s: f64) -> Option<f64> {
    let (mut sum, mut weight) = (0.0, 0.0);
    for pair in samples.windows(2) {
        let span = pair[1].at_s.min(end_s) - pair[0].at_s.max(0.0);
        for share in pair[1].gpus.iter().filter_map(|gpu| gpu.smact).filter(|_| span > 0.0) {
            sum += share * span;
            weight += span;
        }
    }
    (weight > 0.0).then(|| sum / weight)
}

#[cfg(test)]
mod tests {
    use super::super::rows::{Arrival, GpuSample, Kind, Trace};
    use super::*;
    use carma_api::wire::LimitKeptView;

    fn job(kind: &str, submitted: f64, attempts: &[(f64, f64, &str)]) -> Job {
        let attempt = |(from, to, code): &(f64, f64, &str)| Attempt {
            decided_s: from - 0.1,
            started_s: Some(*from),
            ended_s: Some(*to),
            gpus: vec![0],
            code: (*code).into(),
            text: if *code == "OutOfMemoryRetry" { "victim, job 1".into() } else { String::new() },
            ..Attempt::default()
        };
        Job {
            kind: kind.into(),
            submitted_s: submitted,
            state: "COMPLETED".into(),
            ended_s: attempts.last().map(|a| a.1),
            first_step_s: attempts.last().map(|a| a.0 + 2.0),
            attempts: attempts.iter().map(attempt).collect(),
            ..Job::default()
        }
    }

    fn play(policy: &str, jobs: Vec<Job>) -> Play {
        let sample = |at_s: f64, energy: f64, smact: f64| Sample {
            at_s,
            gpus: vec![GpuSample { smact: Some(smact), energy_j: Some(energy), ..GpuSample::default() }],
        };
        let arrivals =
            jobs.iter().map(|job| Arrival { at_s: job.submitted_s, kind: job.kind.clone() }).collect();
        Play {
            version: super::super::rows::VERSION,
            policy: policy.into(),
            repeat: 1,
            began: String::new(),
            carma: String::new(),
            machine: Machine { gpus: vec!["one".into()], ..Machine::default() },
            trace: Trace { kinds: Vec::new(), arrivals },
            conditions: None,
            cut: None,
            jobs,
            samples: vec![sample(-10.0, 500.0, 0.9), sample(10.0, 1500.0, 0.2), sample(30.0, 3500.0, 0.8)],
            plan_p99_us: 0,
            launches: 2,
            kills: 0,
        }
    }

    #[test]
    fn figures_follow_their_definitions() {
        let done = "Completed";
        let base = play(
            "exclusive",
            vec![job("a", 0.0, &[(1.0, 11.0, done)]), job("a", 0.0, &[(11.0, 19.0, done)])],
        );
        let shared = play(
            "adaptive",
            vec![
                job("a", 0.0, &[(1.0, 5.0, "OutOfMemoryRetry"), (6.0, 20.0, done)]),
                job("a", 2.0, &[(3.0, 12.0, done)]),
            ],
        );
        let summary = Summary::of(&[shared, base]).unwrap();
        assert_eq!(summary.solo_s["a"], 9.0);
        let [base, policy] = &summary.policies[..] else { panic!("two policies") };
        assert_eq!((base.policy.as_str(), policy.policy.as_str()), ("exclusive", "adaptive"));
        let of = &policy.plays[0];
        assert_eq!((of.makespan_s, of.jct_s, of.wait_s, of.run_s), (20.0, Some(15.0), Some(1.0), Some(13.5)));
        assert_eq!((of.oom, of.oom_victims, of.undone, of.completed), (1, 1, 1, 2));
        assert_eq!(of.slowdown, Some(1.5));
        assert!((of.slowdown_p95.unwrap() - 1.95).abs() < 1e-9);
        assert_eq!(of.startup_s, Some(2.0));
        // 1000 J at 0 and 2500 J at 20; half of the time at .2, half at .8.
        assert_eq!((of.energy_kj, of.smact), (Some(1.5), Some(0.5)));
        assert!((of.overhead_pct.unwrap() - 1.5).abs() < 1e-9);
        assert!((summary.over_base(policy, |f| Some(f.makespan_s)).unwrap() - 20.0 / 19.0).abs() < 1e-9);
    }

    /// The last attempt ended between two looks at its log.
    #[test]
    fn a_first_step_of_an_earlier_attempt_is_no_start_up() {
        let retried = &[(1.0, 5.0, "OutOfMemoryRetry"), (6.0, 6.1, "Completed")];
        let again = Job { first_step_s: Some(3.0), ..job("a", 0.0, retried) };
        let play = play("adaptive", vec![again, job("a", 2.0, &[(3.0, 12.0, "Completed")])]);
        assert_eq!(Summary::of(&[play]).unwrap().policies[0].plays[0].startup_s, Some(2.0));
    }

    /// `--kill-daemon` on virtual GPUs, whose counters are the daemon's.
    #[test]
    fn of_a_counter_that_began_anew_there_is_no_energy() {
        let jobs = || vec![job("a", 0.0, &[(1.0, 20.0, "Completed")])];
        let two = |energy: [[f64; 2]; 3]| {
            let mut play = play("adaptive", jobs());
            for (sample, joules) in play.samples.iter_mut().zip(energy) {
                let one = sample.gpus[0];
                let of = |joules| GpuSample { energy_j: Some(joules), ..one };
                sample.gpus = joules.map(of).into();
            }
            Summary::of(&[play]).unwrap().policies[0].plays[0].energy_kj
        };
        assert_eq!(two([[0.0, 500.0], [500.0, 1000.0], [1500.0, 2000.0]]), Some(1.5));
        assert_eq!(two([[0.0, 500.0], [500.0, 1000.0], [400.0, 300.0]]), None);
        // Of one of them, though there is more in all.
        assert_eq!(two([[0.0, 500.0], [500.0, 1000.0], [5000.0, 300.0]]), None);
    }

    #[test]
    fn limits_are_counted_and_suspended_time_is_no_run_time() {
        let mut play = play(
            "adaptive",
            vec![job("a", 0.0, &[(1.0, 11.0, "Completed")]), job("b", 0.0, &[(1.0, 5.0, "Completed")])],
        );
        play.jobs[0].attempts[0].suspended_s = 4.0;
        play.trace.kinds = vec![Kind { name: "a".into(), max_slowdown_pct: Some(150), ..Kind::default() }];
        play.jobs[0].limit_kept =
            Some(LimitKeptView { windows: 5, beyond: 2, longest: 2, least_progress_pct: 60 });
        let summary = Summary::of(&[play]).unwrap();
        let of = &summary.policies[0].plays[0];
        assert_eq!((of.run_s, of.makespan_s, of.tenants), (Some(5.0), 11.0, 10.0 / 11.0));
        assert_eq!((of.limited, of.limit_windows, of.limit_beyond, of.limit_longest), (1, 5, 2, 2));
    }

    #[test]
    fn jobs_that_failed_improve_no_mean() {
        let mut of = play(
            "adaptive",
            vec![job("a", 0.0, &[(1.0, 11.0, "Completed")]), job("a", 0.0, &[(0.0, 2.0, "Failed")])],
        );
        of.jobs[1].state = "FAILED".into();
        let figures =
            |play: &Play| Summary::of(std::slice::from_ref(play)).unwrap().policies[0].plays[0].clone();
        let means = |of: Figures| (of.jct_s, of.wait_s, of.run_s, of.completed);
        assert_eq!(means(figures(&of)), (Some(11.0), Some(1.0), Some(10.0), 1));
        // The makespan is that of all.
        of.jobs[1].ended_s = Some(15.0);
        assert_eq!(figures(&of).makespan_s, 15.0);
        of.jobs[0].state = "FAILED".into();
        assert_eq!(means(figures(&of)), (None, None, None, 0));
    }

    #[test]
    fn jobs_that_failed_alike_are_one_line() {
        let jobs = ["a", "b", "a", "a", "a"].map(|kind| job(kind, 0.0, &[(1.0, 11.0, "Failed")]));
        let mut of = play("adaptive", jobs.into());
        for (at, job) in of.jobs.iter_mut().enumerate() {
            job.state = "FAILED".into();
            job.reason = format!("the command failed: exit code 2; its last words: pid {at}");
        }
        of.jobs[3].reason = "the command failed: exit code 3".into();
        of.jobs[4].reason = "the command failed: exit code 4".into();
        let summary = Summary::of(&[of]).unwrap();
        assert_eq!(summary.failed.len(), 5);
        assert_eq!(
            summary.failed_alike,
            [
                "adaptive, play 1: a FAILED, 2 jobs: the command failed: exit code 2; its last words: pid 0",
                "adaptive, play 1: b FAILED: the command failed: exit code 2; its last words: pid 1",
                "adaptive, play 1: a FAILED: the command failed: exit code 3",
                "adaptive, play 1: a FAILED: the command failed: exit code 4",
            ]
        );
    }

    #[test]
    fn a_play_that_was_cut_counts_for_nothing() {
        let cut = Play { cut: Some("the budget was used up".into()), ..play("exclusive", Vec::new()) };
        let summary = Summary::of(&[cut]).unwrap();
        assert!(summary.policies.is_empty() && summary.cut[0].contains("budget"));
        assert!(Summary::of(&[]).is_none());
    }
}
