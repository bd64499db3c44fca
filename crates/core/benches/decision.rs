//! How long a decision takes, and what a queued job weighs.
//!
//! `cargo bench -p carma-core --bench decision`. Plain timing, no statistics library: every plan is
//! made on a state that differs from the one before (other jobs ended, other memory seen), and the
//! percentiles are over those plans. Targets: p99 below 5 ms with 10,000 pending jobs and 8 GPUs,
//! below 50 ms with 100,000 and 1,000. Arguments: `--quick` makes fewer plans; names of policies leave out the others.
#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a benchmark reads the clock and the machine's name; a failure may end it"
)]

use carma_core::input::{Foreign, Observation};
use carma_core::model::{
    Estimates, Estimator, Exit, ExitStatus, Forecasts, GpuId, Job, JobId, NewJob, Phase, Placement,
    ProcessRef, Request, SharingMode, User,
};
use carma_core::policy::{Options, presets};
use carma_core::reading::{GpuInfo, GpuKind, Health};
use carma_core::slowdown::{Outlook, Pace, Question, questions};
use carma_core::units::{Fraction, MiB, Millis};
use carma_core::windows::{Summary, WindowSummary};
use carma_core::{Action, Input, State, plan};
use std::hint::black_box;
use std::time::{Duration, Instant, SystemTime};

/// A small generator: the same jobs in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// Times of one kind of call.
#[derive(Default)]
struct Times(Vec<Duration>);

impl Times {
    fn measure<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = black_box(call());
        self.0.push(start.elapsed());
        result
    }

    fn line(&mut self, what: &str) {
        self.0.sort_unstable();
        let at = |q: f64| {
            let index = ((self.0.len() as f64 * q).ceil() as usize).clamp(1, self.0.len()) - 1;
            self.0[index].as_secs_f64() * 1000.0
        };
        println!(
            "  {what:<46} min {:>8.4}  p50 {:>9.4}  p99 {:>9.4}  max {:>9.4} ms  ({} calls)",
            at(0.0),
            at(0.50),
            at(0.99),
            at(1.0),
            self.0.len()
        );
    }
}

struct Bench {
    /// Whether anything is known of the memory of jobs; else each is of a command of its own, too.
    known: bool,
    state: State,
    now: Millis,
    random: Random,
    apply: Times,
}

fn user(n: u64) -> User {
    User::new(1000 + u32::try_from(n).unwrap(), format!("user{n}"))
}

impl Bench {
    fn new(policy: &str, gpus: u32, known: bool) -> Self {
        let mut bench = Self {
            known,
            state: State::default(),
            now: Millis::secs(1_000_000),
            random: Random(0x9e37_79b9_7f4a_7c15),
            apply: Times::default(),
        };
        let mut options = Options { policy: presets::by_name(policy).unwrap(), ..Options::default() };
        if !known {
            // As a daemon has it with real GPUs: each gets a part of what is free, which is a hard limit.
            (options.sharing, options.caps) = (SharingMode::Mps, true);
        }
        if options.policy.backfill.is_some() {
            // The worst case: nobody has waited so long that the rest needs no look.
            options.policy.backfill = Some(Millis(u64::MAX));
        }
        bench.feed(Input::Configured(Box::new(options)));
        let devices = (0..gpus)
            .map(|index| GpuInfo {
                uuid: format!("GPU-{index:08}").into(),
                index,
                name: "benchmark".into(),
                memory: MiB::gib(if index % 4 == 3 { 80 } else { 40 }),
                kind: GpuKind::Virtual,
                has_activity: true,
                no_mps: None,
            })
            .collect();
        bench.feed(Input::Inventory(devices));
        bench.look_at_all();
        bench
    }

    fn feed(&mut self, input: Input) {
        let (state, now) = (&mut self.state, self.now);
        self.apply.measure(|| state.apply(now, &input)).unwrap();
    }

    fn submit(&mut self, count: usize) {
        for _ in 0..count {
            let id = self.state.next_id();
            let r = &mut self.random;
            let memory = MiB(1024 + r.below(36 * 1024));
            let command = r.below(5_000);
            let known = |r: &mut Random| self.known && r.below(2) == 0;
            let new = NewJob {
                id,
                user: user(r.below(50)),
                name: "train".into(),
                command_key: if self.known { command } else { id.0 },
                program_key: None,
                request: Request {
                    gpus: match r.below(20) {
                        0 => 4,
                        1 | 2 => 2,
                        _ => 1,
                    },
                    exclusive: r.below(50) == 0,
                    sharing: None,
                    thread_percent: None,
                    time_limit: (r.below(3) == 0).then(|| Millis::secs(3600)),
                    priority: i32::try_from(r.below(3)).unwrap(),
                    max_retries: None,
                    max_slowdown: None,
                    latency_us: None,
                    save_grace: None,
                },
                // Some declared, some measured, some both, some unknown.
                profile: carma_core::model::Profile::default(),
                run_time: None,
                forecasts: Forecasts {
                    declared: known(r).then_some(memory),
                    estimates: Estimates::default()
                        .with(Estimator::Measured, known(r).then_some(MiB(memory.0 * 9 / 10))),
                    ..Forecasts::default()
                },
                hold: false,
            };
            self.feed(Input::Submitted(Box::new(new)));
        }
    }

    fn look(&mut self, gpu: u32) {
        let r = &mut self.random;
        let held = |r: &mut Random| MiB(512 + r.below(6_000));
        let tenants = self.state.gpu(GpuId(gpu)).unwrap().tenants.iter();
        let jobs: Vec<(JobId, Option<MiB>)> = tenants.map(|t| (t.job, Some(held(r)))).collect();
        let foreign: Vec<Foreign> = (r.below(20) == 0)
            .then(|| Foreign { pid: 4711, user: None, memory: Some(held(r)) })
            .into_iter()
            .collect();
        let used = jobs.iter().map(|(_, m)| *m).chain(foreign.iter().map(|f| f.memory)).flatten().sum();
        let steady = |level: u32| {
            let level = Fraction(level);
            Some(Summary {
                samples: 300,
                mean: level,
                median: level,
                p95: level,
                ema: level,
                ema_half: level,
                ..Summary::default()
            })
        };
        let activity = u32::try_from(r.below(9_000)).unwrap();
        let seen = Box::new(Observation {
            at: self.now,
            health: Health::Ok,
            used: Some(used),
            jobs,
            foreign,
            processes_known: true,
            window: WindowSummary {
                smact: steady(activity),
                smocc: steady(activity / 2),
                drama: steady(activity / 3),
            },
            energy_mj: Some(self.now.0 * 300),
        });
        self.feed(Input::Observed { gpu: GpuId(gpu), seen });
    }

    fn look_at_all(&mut self) {
        for gpu in 0..u32::try_from(self.state.gpus().len()).unwrap() {
            self.look(gpu);
        }
    }

    /// Answers what the next plan wants to know, as often as it asks: everybody slows everybody down a little.
    fn answer(&mut self) {
        loop {
            let asked = questions(&self.state);
            if asked.is_empty() {
                return;
            }
            let pace = |n: usize| {
                let expected = Fraction(u32::try_from(10_000 / (7 + 3 * n) * 10).unwrap());
                Pace { expected, lower: None }
            };
            let answer = |asked: Question| {
                let there = asked.there.classes.len();
                Outlook {
                    paces: vec![pace(there + 1); there],
                    joins: pace(there + 1),
                    unknown: Vec::new(),
                    seen_beside: false,
                    before: Fraction(pace(there).expected.0 * u32::try_from(there).unwrap()),
                    throughput: None,
                    there: asked.there,
                    newcomer: asked.newcomer,
                }
            };
            self.feed(Input::Predicted(asked.into_iter().map(answer).collect()));
        }
    }

    fn placement(&self, id: JobId) -> Option<Placement> {
        self.state.job(id).and_then(Job::placement).cloned()
    }

    /// Takes the decisions of a plan and starts what it launches.
    fn follow(&mut self, actions: Vec<Action>) {
        for action in actions {
            let launched = match &action {
                Action::Launch { job, .. } => Some(*job),
                _ => None,
            };
            self.feed(Input::Decided(Box::new(action)));
            let Some((job, placement)) = launched.and_then(|j| Some((j, self.placement(j)?))) else {
                continue;
            };
            self.feed(Input::Started {
                job,
                attempt: placement.attempt,
                supervisor: ProcessRef { pid: 1, start_ticks: 1 },
                child: None,
                sharing: placement.sharing,
                note: None,
            });
        }
    }

    /// Ends some running jobs.
    fn end_some(&mut self, count: usize) {
        let running: Vec<JobId> = self.state.active().iter().copied().collect();
        for _ in 0..count.min(running.len()) {
            let at = usize::try_from(self.random.below(running.len() as u64)).unwrap();
            let id = running[at];
            let running = matches!(self.state.job(id).map(|j| &j.phase), Some(Phase::Running { .. }));
            let Some(placement) = self.placement(id).filter(|_| running) else {
                continue;
            };
            self.feed(Input::Exited {
                job: id,
                attempt: placement.attempt,
                exit: Exit::of(ExitStatus::Code(0)),
            });
        }
    }
}

fn resident_kib() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    line.and_then(|l| l.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// The first plan fills an empty machine; the rest are made as jobs end and memory moves.
fn decisions(policy: &str, known: bool, pending: usize, gpus: u32, rounds: usize) {
    println!(
        "{policy}: {pending} pending jobs{}, {gpus} GPUs",
        if known { "" } else { " of unknown memory" }
    );
    let mut bench = Bench::new(policy, gpus, known);
    bench.submit(pending);
    bench.apply = Times::default();
    let (mut first, mut times, mut quiet) = (Times::default(), Times::default(), Times::default());
    let filled = first.measure(|| plan(&bench.state, bench.now));
    let launched = filled.actions.len();
    bench.follow(filled.actions);
    let mut launches = 0;
    for _ in 0..rounds {
        bench.now = bench.now + Millis::secs(35);
        bench.end_some(1 + gpus as usize / 50);
        bench.look_at_all();
        let lacking = pending.saturating_sub(bench.state.queue().len());
        bench.submit(lacking);
        bench.answer();
        let made = times.measure(|| plan(&bench.state, bench.now));
        launches += made.actions.len();
        bench.follow(made.actions);
        // Right after it nothing is left to place: the commonest plan of all.
        quiet.measure(|| plan(&bench.state, bench.now));
    }
    first.line(&format!("plan, empty machine ({launched} launches)"));
    times.line(&format!("plan, jobs ended ({} launches in the mean)", launches / rounds));
    quiet.line("plan, nothing to place");
    bench.apply.line("apply, all inputs");
}

fn memory(pending: usize) {
    let mut bench = Bench::new("carma", 1_000, true);
    bench.apply.0.reserve(pending * 2);
    let before = resident_kib();
    bench.submit(pending);
    let queued = resident_kib().saturating_sub(before);
    let made = plan(&bench.state, bench.now);
    println!(
        "memory: {pending} queued jobs take {:.1} MiB, {} bytes each; with one plan at hand {:.1} MiB; whole process {:.1} MiB",
        queued as f64 / 1024.0,
        queued * 1024 / pending as u64,
        resident_kib().saturating_sub(before) as f64 / 1024.0,
        resident_kib() as f64 / 1024.0,
    );
    black_box((made, bench.state));
}

fn main() {
    const POLICIES: [&str; 4] = ["adaptive", "carma", "oracle-bf", "or-magm"];
    let args: Vec<String> = std::env::args().collect();
    let quick = args.iter().any(|a| a == "--quick");
    let named = |policy: &&str| args.iter().any(|a| a == policy);
    let all = !POLICIES.iter().any(named);
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|l| l.strip_prefix("model name"));
    let days = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs() / 86_400;
    println!(
        "machine: {}, {} core(s); {}; profile {}",
        model.map_or("unknown", |m| m.trim_start_matches([' ', '\t', ':'])),
        std::thread::available_parallelism().map_or(0, usize::from),
        date(days),
        if cfg!(debug_assertions) { "debug" } else { "release" },
    );
    memory(100_000);
    for policy in POLICIES.into_iter().filter(|policy| all || named(policy)) {
        for known in [true, false].into_iter().filter(|known| *known || policy == "adaptive") {
            decisions(policy, known, 10_000, 8, if quick { 50 } else { 500 });
            decisions(policy, known, 100_000, 1_000, if quick { 20 } else { 200 });
        }
    }
}

/// Date of a day since the Unix epoch (the usual civil calendar arithmetic).
fn date(days: u64) -> String {
    let z = days + 719_468;
    let era = z / 146_097;
    let doe = z % 146_097;
    let yoe = (doe - doe / 1_460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let (day, month) = (doy - (153 * mp + 2) / 5 + 1, if mp < 10 { mp + 3 } else { mp - 9 });
    let year = yoe + era * 400 + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02}")
}
