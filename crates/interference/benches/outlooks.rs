//! Time until a plan knows all that it wants to know of slowdowns: `cargo bench -p carma-interference --bench outlooks`.
//!
//! 64 GPUs with a job on each, and more and more jobs that wait, all with a limit of slowdown: questions of the core and answers of
//! the shipped model follow each other until nothing is asked; then a plan is made with them. Jobs are of twenty commands.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a benchmark reads the clock and the machine's name; a failure may end it"
)]

#[path = "../../memory/benches/timing/mod.rs"]
mod timing;

use carma_core::input::Observation;
use carma_core::model::{Forecasts, GpuId, JobId, NewJob, ProcessRef, Profile as Sharing, Request, User};
use carma_core::policy::{Options, presets};
use carma_core::reading::{GpuInfo, GpuKind, Health};
use carma_core::slowdown::questions;
use carma_core::units::{Fraction, MiB, Millis};
use carma_core::windows::{Summary, WindowSummary};
use carma_core::{Action, Input, State, plan};
use carma_interference::online::SlowdownModel;
use carma_interference::outlook::{Alone, Answered, Models, answer};
use carma_interference::profile::{Metrics, Profile, Rate, RateSource, Stat};

const GPUS: u32 = 64;
const COMMANDS: u64 = 20;
const REPEATS: usize = 3;

fn main() {
    timing::header(REPEATS);
    let model = SlowdownModel::shipped();
    for jobs in [125, 250, 500, 1000, 2000] {
        let begun = busy(jobs);
        let mut asked = 0;
        let mut known = begun.clone();
        ask(&mut known, &model);
        let planned = timing::median(REPEATS, || {
            std::hint::black_box(plan(std::hint::black_box(&known), now()));
        });
        let took = timing::median(REPEATS, || {
            let mut state = begun.clone();
            asked = ask(&mut state, &model);
            std::hint::black_box(state);
        });
        let micros = took.as_secs_f64() * 1e6;
        println!(
            "{jobs} jobs on {GPUS} GPUs: {asked} questions, {:.1} ms, {:.2} us each; then a plan takes {:.1} ms",
            micros / 1e3,
            micros / f64::from(asked),
            planned.as_secs_f64() * 1e3
        );
    }
}

struct Tasks(Vec<Profile>);

impl Alone for Tasks {
    fn knows(&self, command: u64, _: &str) -> bool {
        (command as usize) < self.0.len()
    }

    fn profile(&self, command: u64, _: &str) -> Option<Profile> {
        self.0.get(command as usize).cloned()
    }
}

/// Asks until all is known. How many questions there were.
fn ask(state: &mut State, model: &SlowdownModel) -> u32 {
    let alone = Tasks((0..COMMANDS).map(task).collect());
    let mut answered = Answered::default();
    let models = Models { slowdowns: model, kace: None };
    let mut count = 0;
    loop {
        let asked = questions(state);
        if asked.is_empty() {
            return count;
        }
        count += asked.len() as u32;
        let answers = asked.iter().filter_map(|asked| answer(models, state, asked, &alone, &mut answered));
        let answers = answers.collect();
        state.apply(now(), &Input::Predicted(answers)).unwrap();
    }
}

const fn now() -> Millis {
    Millis::secs(1_000_100)
}

/// A job on each GPU, and so many that wait.
fn busy(waiting: usize) -> State {
    let mut state = State::default();
    let feed = |state: &mut State, input: Input| state.apply(now(), &input).unwrap();
    let options = Options {
        policy: presets::by_name("carma").unwrap(),
        max_slowdown: Some(Fraction::from_f64(1.01).unwrap()),
        ..Options::default()
    };
    feed(&mut state, Input::Configured(Box::new(options)));
    let info = |index| GpuInfo {
        uuid: format!("GPU-{index:08}").into(),
        index,
        name: "NVIDIA H200".into(),
        memory: MiB::gib(140),
        kind: GpuKind::Virtual,
        has_activity: true,
        no_mps: None,
    };
    feed(&mut state, Input::Inventory((0..GPUS).map(info).collect()));
    for gpu in 0..GPUS {
        let quiet = Some(Summary { samples: 300, ..Summary::default() });
        let seen = Observation {
            at: now(),
            health: Health::Ok,
            used: Some(MiB(0)),
            jobs: Vec::new(),
            foreign: Vec::new(),
            processes_known: true,
            window: WindowSummary { smact: quiet, smocc: quiet, drama: quiet },
            energy_mj: None,
        };
        feed(&mut state, Input::Observed { gpu: GpuId(gpu), seen: Box::new(seen) });
    }
    let submit = |state: &mut State, count: usize| {
        for _ in 0..count {
            let id = state.next_id();
            state.apply(now(), &Input::Submitted(Box::new(new(id)))).unwrap();
        }
    };
    submit(&mut state, GPUS as usize);
    // One a plan and GPU.
    for action in plan(&state, now()).actions {
        let launched = match &action {
            Action::Launch { job, .. } => Some(*job),
            _ => None,
        };
        feed(&mut state, Input::Decided(Box::new(action)));
        let placement = launched.and_then(|job| Some((job, state.job(job)?.placement()?.clone())));
        let Some((job, placement)) = placement else { continue };
        let supervisor = ProcessRef { pid: 1, start_ticks: 1 };
        let (attempt, sharing) = (placement.attempt, placement.sharing);
        feed(&mut state, Input::Started { job, attempt, supervisor, child: None, sharing, note: None });
    }
    assert_eq!(state.active().len(), GPUS as usize, "each GPU has a job");
    submit(&mut state, waiting);
    state
}

fn new(id: JobId) -> NewJob {
    NewJob {
        id,
        user: User::new(1000, "user"),
        name: "train".into(),
        command_key: id.0 % COMMANDS,
        program_key: None,
        request: Request::of(1),
        profile: Sharing::default(),
        run_time: None,
        forecasts: Forecasts { declared: Some(MiB(4096)), ..Forecasts::default() },
        hold: false,
    }
}

fn task(i: u64) -> Profile {
    let part = i as f64 / COMMANDS as f64;
    Profile {
        name: format!("task {i}"),
        class: Some(format!("task {i}")),
        rate: Some(Rate { per_s: 10.0, source: Some(RateSource::Heartbeat), ..Rate::default() }),
        metrics: Metrics {
            gract_pct: Some(Stat::of(30.0 + 70.0 * part)),
            smact_pct: Some(Stat::of(10.0 + 80.0 * part)),
            drama_pct: Some(Stat::of(40.0 * part)),
            tensor_pct: Some(Stat::of(20.0 * part)),
            ..Metrics::default()
        },
        ..Profile::default()
    }
}
