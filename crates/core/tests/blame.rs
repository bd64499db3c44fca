//! Who is blamed for an out-of-memory, against what really happened.
//!
//! A small machine with one GPU: jobs, some under a cap, and processes that are not ours allocate and free at any
//! millisecond; the driver refuses what does not fit; ten looks a second show what is held then, as the sampler does;
//! the core gives its verdict. The truth is what the driver refused and why.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test: it fails where it must")]

use carma_core::explain::Reason;
use carma_core::input::{Foreign, Observation};
use carma_core::model::{
    Exit, ExitStatus, Floor, Forecasts, GpuId, JobId, NewJob, Placement, ProcessRef, Profile, Request,
    SharingMode, User,
};
use carma_core::policy::{Options, presets};
use carma_core::reading::{GpuInfo, GpuKind, Health};
use carma_core::recovery::{Blame, scan};
use carma_core::units::{MiB, Millis};
use carma_core::windows::WindowSummary;
use carma_core::{Action, Input, State, check};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::fmt::Write;

const CAPACITY: u64 = 40_960;
/// Between two looks, milliseconds.
const LOOK: u64 = 100;
/// The clock when the trace begins.
const EPOCH: u64 = 1_000_000;
/// The job whose death is judged; its neighbours come before it.
const JOB: JobId = JobId(9);
const PID: u32 = 9000;

/// What a message of a failed allocation says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Words {
    /// All numbers, the driver showing the GPU's total unless the cap refused.
    Numbers,
    /// The same, the driver showing the cap as the total in any case.
    CapAsTotal,
    /// What was wanted.
    Wanted,
    /// That memory was short.
    Terse,
}

/// The memory of others becomes this, as far as it fits.
#[derive(Debug, Clone)]
struct Change {
    at: u64,
    /// A job or a process that is not ours.
    who: usize,
    mib: u64,
}

/// A trace: what each job wants when.
#[derive(Debug, Clone)]
struct Trace {
    /// Forecasts of the neighbours that are jobs.
    neighbours: Vec<u64>,
    foreign: usize,
    changes: Vec<Change>,
    forecast: Option<u64>,
    /// Whether the forecast is a cap that the driver enforces.
    capped: bool,
    /// When the job comes.
    comes: u64,
    /// Pause and size of each allocation, over and over.
    steps: Vec<(u64, u64)>,
    /// How long after its start its process is taken for a stranger's.
    unknown_for: u64,
    /// From the failure to the end of the process.
    lingers: u64,
    /// When the first look is.
    phase: u64,
    words: Words,
}

fn trace() -> impl Strategy<Value = Trace> {
    let change = (
        0u64..3_000,
        0usize..5,
        prop_oneof![
            4 => 0u64..16_000,
            2 => 10_000u64..40_000,
            1 => Just(0u64),
            2 => Just(u64::MAX),
        ],
    );
    let change = change.prop_map(|(at, who, mib)| Change { at, who, mib });
    let words = select(vec![Words::Numbers, Words::CapAsTotal, Words::Wanted, Words::Terse]);
    let times = (500u64..2_000, 0u64..40, 0u64..30, 0u64..LOOK);
    let job = (proptest::option::weighted(0.85, 1_000u64..14_000), any::<bool>());
    let steps = vec((1u64..250, prop_oneof![200u64..3_000, 200u64..10_000]), 1..6);
    (vec(1_000u64..12_000, 0..3), 0usize..3, vec(change, 0..8), job, steps, times, words).prop_map(
        |(neighbours, foreign, mut changes, (forecast, capped), steps, times, words)| {
            changes.sort_by_key(|c| c.at);
            let (comes, unknown_for, lingers, phase) = times;
            Trace {
                neighbours,
                foreign,
                changes,
                forecast,
                capped: capped && forecast.is_some(),
                comes,
                steps,
                unknown_for,
                lingers,
                phase,
                words,
            }
        },
    )
}

/// What really happened at the failure.
#[derive(Debug, Clone)]
struct Truth {
    /// What the GPU had left.
    free: u64,
    wanted: u64,
    held: u64,
    /// What the others held.
    others: u64,
    /// The processes that were not ours, with their memory.
    foreign: Vec<(u32, u64)>,
    /// The others' memory in the three looks around it.
    looks: Vec<u64>,
}

impl Truth {
    fn had_room(&self) -> bool {
        self.free >= self.wanted
    }

    /// Whether it wanted no more than was reserved for it, and did not get it.
    fn is_victim(&self, trace: &Trace) -> bool {
        !self.had_room() && trace.forecast.is_some_and(|f| self.held + self.wanted <= f)
    }

    /// PyTorch prints hundredths of a GiB: on the edge of a limit its message cannot tell.
    fn is_on_edge(&self, trace: &Trace) -> bool {
        let close = |a: u64, b: u64| a.abs_diff(b) <= 32;
        let limit = trace.forecast.unwrap_or(u64::MAX / 2);
        close(self.held + self.wanted, limit)
            || close(self.free, self.wanted)
            || (trace.capped && close(self.held + self.free, limit))
    }

    /// Whether the looks show what others held, at least as an interval.
    fn was_seen(&self) -> bool {
        let (least, most) = (self.looks.iter().min(), self.looks.iter().max());
        least.is_some_and(|m| *m <= self.others) && most.is_some_and(|m| *m >= self.others)
    }

    /// Whether they show it without doubt.
    fn was_steady(&self) -> bool {
        self.looks.iter().all(|m| *m == self.others)
    }
}

struct World<'a> {
    trace: &'a Trace,
    state: State,
    others: Vec<u64>,
    held: u64,
    alive: bool,
}

fn user() -> User {
    User::new(1000, "alice")
}

impl<'a> World<'a> {
    fn new(trace: &'a Trace) -> Self {
        let others = vec![0; trace.neighbours.len() + trace.foreign];
        let mut world = Self { trace, state: State::default(), others, held: 0, alive: false };
        let options = Options { policy: presets::by_name("oracle-bf").unwrap(), ..Options::default() };
        world.feed(0, Input::Configured(Box::new(options)));
        world.feed(
            0,
            Input::Inventory(vec![GpuInfo {
                uuid: "GPU-0".into(),
                index: 0,
                name: "random".into(),
                memory: MiB(CAPACITY),
                kind: GpuKind::Virtual,
                has_activity: true,
                no_mps: None,
            }]),
        );
        for (id, forecast) in (1..).map(JobId).zip(&trace.neighbours) {
            assert!(world.place(0, id, Some(*forecast), false), "neighbours fit by their forecasts");
        }
        world
    }

    fn feed(&mut self, at: u64, input: Input) -> bool {
        let taken = self.state.apply(Millis(EPOCH + at), &input).is_ok();
        assert_eq!(check::check(&self.state), Vec::<String>::new());
        taken
    }

    /// Submits and starts a job; `false`: there is no room by what is reserved.
    fn place(&mut self, at: u64, id: JobId, forecast: Option<u64>, capped: bool) -> bool {
        let sharing = if capped { SharingMode::Mps } else { SharingMode::TimeSlice };
        self.feed(
            at,
            Input::Submitted(Box::new(NewJob {
                id,
                user: user(),
                name: "job".into(),
                command_key: id.0,
                program_key: None,
                request: Request { sharing: Some(sharing), ..Request::of(1) },
                profile: Profile::default(),
                run_time: None,
                forecasts: Forecasts { declared: forecast.map(MiB), ..Forecasts::default() },
                hold: false,
            })),
        );
        let placement = Placement {
            attempt: 1,
            gpus: vec![GpuId(0)],
            sharing,
            cap: forecast.filter(|_| capped).map(MiB),
            floor: None,
            thread_percent: None,
            part: None,
            at: Millis(EPOCH + at),
            reason: Reason::NotPlannedYet,
        };
        let supervisor = ProcessRef { pid: 1, start_ticks: 1 };
        self.feed(at, Input::Decided(Box::new(Action::Launch { job: id, placement })))
            && self.feed(
                at,
                Input::Started { job: id, attempt: 1, supervisor, child: None, sharing, note: None },
            )
    }

    fn others(&self) -> u64 {
        self.others.iter().sum()
    }

    fn free(&self) -> u64 {
        CAPACITY - self.others() - self.held
    }

    fn foreign(&self) -> Vec<(u32, u64)> {
        let pids = (4711..).zip(&self.others[self.trace.neighbours.len()..]);
        pids.filter(|(_, mib)| **mib > 0).map(|(pid, mib)| (pid, *mib)).collect()
    }

    fn look(&mut self, at: u64) {
        let mut jobs: Vec<(JobId, Option<MiB>)> = (1..)
            .map(JobId)
            .zip(&self.others[..self.trace.neighbours.len()])
            .filter(|(_, mib)| **mib > 0)
            .map(|(id, mib)| (id, Some(MiB(*mib))))
            .collect();
        let mut foreign = self.foreign();
        if self.alive && self.held > 0 {
            if at < self.trace.comes + self.trace.unknown_for {
                foreign.push((PID, self.held));
            } else {
                jobs.push((JOB, Some(MiB(self.held))));
            }
        }
        let stranger = |(pid, mib): (u32, u64)| Foreign { pid, user: None, memory: Some(MiB(mib)) };
        let seen = Box::new(Observation {
            at: Millis(EPOCH + at),
            health: Health::Ok,
            used: Some(MiB(CAPACITY - self.free())),
            jobs,
            foreign: foreign.into_iter().map(stranger).collect(),
            processes_known: true,
            window: WindowSummary::default(),
            energy_mj: None,
        });
        assert!(self.feed(at, Input::Observed { gpu: GpuId(0), seen }));
    }

    /// Plays the trace until the job is dead and was looked at once more. `None`: it did not die of memory.
    fn play(&mut self) -> Option<(Truth, Reason)> {
        let trace = self.trace;
        let mut changes = trace.changes.iter().peekable();
        let mut steps = trace.steps.iter().cycle();
        let mut next_step = trace.comes + steps.next()?.0;
        let mut step = trace.steps[0].1;
        let mut looks = Vec::new();
        let mut truth: Option<Truth> = None;
        let mut gone: Option<u64> = None;
        for at in 0..6_000 {
            while let Some(change) = changes.next_if(|c| c.at <= at) {
                if change.who < self.others.len() {
                    let most = self.others[change.who] + self.free();
                    self.others[change.who] = change.mib.min(most);
                }
            }
            if at == trace.comes {
                if !self.place(at, JOB, trace.forecast, trace.capped) {
                    return None;
                }
                self.alive = true;
            }
            if self.alive && truth.is_none() && at >= next_step {
                let cap = trace.forecast.filter(|_| trace.capped).unwrap_or(u64::MAX);
                if self.held + step > cap || step > self.free() {
                    truth = Some(Truth {
                        free: self.free(),
                        wanted: step,
                        held: self.held,
                        others: self.others(),
                        foreign: self.foreign(),
                        looks: Vec::new(),
                    });
                    gone = Some(at + trace.lingers);
                } else {
                    self.held += step;
                    let (pause, size) = steps.next()?;
                    (next_step, step) = (at + pause, *size);
                }
            }
            if gone == Some(at) {
                (self.alive, self.held) = (false, 0);
            }
            if at % LOOK == trace.phase {
                self.look(at);
                looks.push(self.others());
                if let (Some(mut truth), Some(gone)) = (truth.clone(), gone)
                    && gone <= at
                {
                    // Those that the core has of the job's time: the situation when it came, and what came then.
                    let since = (at - trace.comes.min(at)) / LOOK + 2;
                    let last = looks.len().saturating_sub(usize::try_from(since.min(3)).ok()?);
                    truth.looks = looks[last..].to_vec();
                    let verdict = self.exit(at + 5, &truth)?;
                    return Some((truth, verdict));
                }
            }
        }
        None
    }

    fn exit(&mut self, at: u64, truth: &Truth) -> Option<Reason> {
        let exit = Exit { evidence: scan(&self.message(truth)), ..Exit::of(ExitStatus::Code(1)) };
        assert!(self.feed(at, Input::Exited { job: JOB, attempt: 1, exit }));
        // One that is over for good has left the state: it was alone.
        Some(self.state.job(JOB)?.past.last()?.verdict.clone())
    }

    fn message(&self, truth: &Truth) -> String {
        let size = |mib: u64| {
            if mib < 1024 { format!("{mib}.00 MiB") } else { format!("{:.2} GiB", mib as f64 / 1024.0) }
        };
        let cap = self.trace.forecast.filter(|_| self.trace.capped);
        let over = cap.filter(|cap| truth.held + truth.wanted > *cap);
        let mut text = "torch.OutOfMemoryError: CUDA out of memory.".to_owned();
        if self.trace.words == Words::Terse {
            return text;
        }
        let _ = write!(text, " Tried to allocate {}.", size(truth.wanted));
        let shown = match self.trace.words {
            Words::Numbers => over,
            Words::CapAsTotal => cap,
            Words::Wanted | Words::Terse => return text,
        };
        let (total, free) = match shown {
            Some(cap) => (cap, truth.free.min(cap - truth.held)),
            None => (CAPACITY, truth.free),
        };
        let _ = write!(
            text,
            " GPU 0 has a total capacity of {} of which {} is free. Process 4711 has 39.00 GiB memory in use. Including \
             non-PyTorch memory, this process has {} memory in use.",
            size(total),
            size(free),
            size(truth.held),
        );
        text
    }
}

/// Plays a trace to the verdict on the job. `None`: there is none to judge.
fn judge(trace: &Trace) -> Option<(Truth, Blame, State)> {
    let mut world = World::new(trace);
    let (truth, verdict) = world.play()?;
    match verdict {
        Reason::OutOfMemoryRetry { blame, .. } => Some((truth, blame, world.state)),
        other => panic!("a job that may be retried five times is not: {other}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, max_global_rejects: 100_000, ..ProptestConfig::default() })]

    #[test]
    fn nobody_is_blamed_for_a_gpu_that_had_room(trace in trace()) {
        let Some((truth, blame, state)) = judge(&trace) else { return Ok(()) };
        let numbers = matches!(trace.words, Words::Numbers | Words::CapAsTotal);
        // What came and went between two looks can only be known from numbers.
        if (numbers || truth.was_seen()) && !truth.is_on_edge(&trace) {
            let neighbour = matches!(blame, Blame::Neighbour { .. });
            prop_assert!(!(neighbour && truth.had_room()), "{} on a GPU with room: {:?}", blame, truth);
            let culprit = matches!(blame, Blame::OwnCap { .. } | Blame::OwnForecast { .. } | Blame::WholeGpu { .. });
            prop_assert!(!(culprit && truth.is_victim(&trace)), "{} was the victim: {:?}", blame, truth);
        }
        if let Blame::Neighbour { pid: Some(pid), .. } = &blame {
            prop_assert!(truth.foreign.iter().any(|(p, _)| p == pid) || !truth.was_seen(), "{} was not there", pid);
            prop_assert!(*pid != PID, "its own process is named");
        }
        // What cannot be known is charged, and asks for more.
        let job = state.job(JOB).unwrap();
        let given = trace.forecast.unwrap_or_default();
        if blame.is_own_fault() {
            prop_assert_eq!((job.charged_retries, job.free_retries), (1, 0));
            let raised = match job.floor {
                Some(Floor::Memory(m)) => m.0 > given,
                Some(Floor::ExclusiveGpu) => true,
                None => false,
            };
            prop_assert!(raised, "{:?} after {}", job.floor, given);
        } else {
            prop_assert_eq!((job.charged_retries, job.free_retries), (0, 1));
        }
    }
}

/// Never to blame a neighbour would be easy. Victims are recognised where it can be known, culprits too, and
/// unknown stays the exception.
#[test]
fn victims_and_culprits_are_recognised() {
    #[derive(Default, Debug)]
    struct Count {
        all: usize,
        right: usize,
        unknown: usize,
        wrong: usize,
    }
    let mut runner = TestRunner::deterministic();
    let strategy = trace();
    // By whether the message has numbers, and whether the job was a victim.
    let mut counts: [[Count; 2]; 2] = Default::default();
    let mut steady = Count::default();
    for _ in 0..20_000 {
        let trace = strategy.new_tree(&mut runner).unwrap().current();
        let Some((truth, blame, _)) = judge(&trace) else { continue };
        if trace.forecast.is_none() || truth.is_on_edge(&trace) {
            continue;
        }
        let numbers = matches!(trace.words, Words::Numbers | Words::CapAsTotal);
        let victim = truth.is_victim(&trace);
        let count = |count: &mut Count| {
            count.all += 1;
            match blame {
                Blame::Unknown { .. } => count.unknown += 1,
                Blame::Neighbour { .. } if victim => count.right += 1,
                Blame::OwnCap { .. } | Blame::OwnForecast { .. } | Blame::WholeGpu { .. } if !victim => {
                    count.right += 1;
                }
                _ => count.wrong += 1,
            }
        };
        count(&mut counts[usize::from(numbers)][usize::from(victim)]);
        if numbers && victim && truth.was_steady() {
            count(&mut steady);
        }
    }
    let [[terse_own, terse_victim], [own, victim]] = &counts;
    println!(
        "no numbers: own {terse_own:?}, victims {terse_victim:?}\nnumbers: own {own:?}, victims {victim:?}, steady {steady:?}"
    );
    for count in [terse_own, terse_victim, own, victim] {
        assert!(count.all >= 100, "too few to say anything: {counts:?}");
    }
    assert_eq!(own.wrong + victim.wrong, 0, "with numbers nobody is blamed wrongly: {counts:?}");
    assert!(victim.right * 100 >= victim.all * 90, "{victim:?}");
    assert!(own.right * 100 >= own.all * 95, "{own:?}");
    assert_eq!(steady.right, steady.all);
    assert!(terse_victim.right * 100 >= terse_victim.all * 60, "{terse_victim:?}");
    assert!(terse_own.right * 100 >= terse_own.all * 95, "{terse_own:?}");
    assert!(
        (terse_own.wrong + terse_victim.wrong) * 100 <= (terse_own.all + terse_victim.all) * 2,
        "{counts:?}"
    );
}
