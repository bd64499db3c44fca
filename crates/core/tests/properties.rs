//! Properties that hold whatever comes in: random sequences of inputs, sensible and not, under
//! random policies, options, machines and users. [`World::step`] performs one, [`World::verify`]
//! states what must hold after it.

#![allow(clippy::unwrap_used, reason = "a test: it fails where it must")]

use carma_core::explain::{Reason, UserLimit};
use carma_core::input::{Foreign, Observation};
use carma_core::ledger::{Gpu, Reservation, Tenant};
use carma_core::model::{
    Basis, Computed, EndCause, EndLevel, Estimates, Estimator, Exit, ExitStatus, Forecasts, GpuId, Had,
    HostUse, Job, JobId, JobState, NewJob, Phase, Placement, ProcessRef, Profile, QueueKey, Request, RunTime,
    RunsOf, SharingMode, User, UserGone,
};
use carma_core::plan::{Detail, evaluate, plan_in};
use carma_core::policy::{
    Allowance, Allowances, Gate, Line, MemoryScreen, Options, Order, RecoveryMethod, presets,
};
use carma_core::reading::{GpuInfo, GpuKind, Health};
use carma_core::recovery::{Evidence, EvidenceKind, Said};
use carma_core::slowdown::{Class, Company, Outlook, Pace, Question, questions};
use carma_core::units::{Fraction, MiB, Millis};
use carma_core::windows::{Risk, Summary, WindowSummary};
use carma_core::{Action, Input, Plan, State, check, plan};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::collections::{BTreeMap, BTreeSet};

/// Which job an operation is about: one that lives, by position, or any number.
#[derive(Debug, Clone, Copy)]
enum Pick {
    Live(usize),
    Number(u64),
}

/// What the GPU of an observation looks like.
#[derive(Debug, Clone)]
struct Look {
    /// Memory of each tenant in turn; missing ones have no process there.
    tenants: Vec<Option<u64>>,
    stranger: Option<(JobId, Option<u64>)>,
    foreign: Vec<Option<u64>>,
    /// Memory in use beyond the sum; `None`: not told.
    extra: Option<u64>,
    health: Health,
    processes_known: bool,
    activity: [Option<u32>; 3],
    age: u64,
}

#[derive(Debug, Clone)]
enum Op {
    Configure(Box<Options>),
    Inventory(u8),
    Submit(Box<NewJob>, bool),
    Look(u32, Box<Look>),
    LookAtAll(u32),
    Unchanged(Vec<u32>),
    /// Plans and takes the first so many decisions.
    Plan(usize),
    /// Takes decisions of an old plan.
    OldPlan,
    Launch(Pick, Vec<u32>, u32, SharingMode),
    End(Pick, EndLevel),
    CannotSave(Pick),
    Suspend(Pick, u32),
    Unsuspend(Pick, u32),
    Move(Pick, u32, u32),
    Suspended(Pick, bool),
    Resumed(Pick, bool),
    SuspendFailed(Pick, bool),
    SuspendAll,
    SetState(Pick, JobState),
    Started(Pick, bool, SharingMode),
    Exited(Pick, bool, ExitStatus, Option<EvidenceKind>, Never, u32),
    LaunchFailed(Pick, bool),
    NotLaunched(Pick, bool),
    /// Everything that was decided starts as decided.
    StartAll,
    /// All tenants of a GPU die of a fatal fault, one after the other.
    Crash(u32),
    Forecast(Pick, Computed),
    RunTime(Pick, RunTime),
    /// Its first steps were seen, which began so many milliseconds ago.
    Stepped(Pick, u64),
    /// The share of its work that it says is done.
    Counted(Pick, u32),
    Profiled(Pick, Profile),
    /// What the next plan asks is answered: with this progress, or that a job is unknown.
    Predict(bool, u32),
    /// What was not asked for is predicted.
    Outlook(Pick, u32, SharingMode),
    Measure(Pick, bool, u32, u32),
    /// All jobs are measured to be slow, a plan is followed, and those whom it ends exit.
    Slow,
    /// A tenant of a GPU takes all of it within three looks, a plan is followed, and those whom it ends exit.
    Fill(u32, usize),
    Cancel(Pick, u32),
    Hold(Pick, u32),
    Release(Pick, u32),
    Requeue(Pick, u32),
    Drain(u32, u32, bool),
    /// Milliseconds, forward or back.
    Clock(i64),
}

fn memory() -> impl Strategy<Value = MiB> {
    prop_oneof![
        12 => (0u64..16_000).prop_map(MiB),
        6 => (0u64..50_000).prop_map(MiB),
        1 => Just(MiB(u64::MAX)),
        1 => Just(MiB(0)),
    ]
}

fn time() -> impl Strategy<Value = Millis> {
    prop_oneof![
        8 => (0u64..100_000).prop_map(Millis),
        1 => Just(Millis(0)),
        1 => Just(Millis(u64::MAX)),
    ]
}

fn mode() -> impl Strategy<Value = SharingMode> {
    select(vec![SharingMode::Exclusive, SharingMode::TimeSlice, SharingMode::Mps])
}

fn share() -> impl Strategy<Value = Fraction> {
    (0u32..=12_000).prop_map(Fraction)
}

fn gate() -> impl Strategy<Value = Option<Gate>> {
    let risk = || select(vec![Risk::Carma, Risk::Mean, Risk::Ema, Risk::Pattern]);
    prop_oneof![
        4 => Just(None),
        1 => Just(Some(Gate::None)),
        1 => (risk(), share()).prop_map(|(risk, limit)| Some(Gate::Score { risk, limit })),
        1 => (risk(), share(), share(), share()).prop_map(|(risk, smact, smocc, drama)| {
            Some(Gate::Thresholds { risk, smact, smocc, drama })
        }),
    ]
}

fn options() -> impl Strategy<Value = Options> {
    let policy = (
        select(presets::NAMES),
        gate(),
        any::<bool>(),
        proptest::option::of(time()),
        prop_oneof![4 => Just(MiB(512)), 1 => memory()],
    );
    let sharing = prop_oneof![3 => Just(SharingMode::Mps), 2 => mode()];
    let slowdown = proptest::option::weighted(0.3, 10_000u32..40_000);
    let by_gain = proptest::bool::weighted(0.1);
    let blind = proptest::bool::weighted(0.3);
    let allowances = (
        proptest::option::weighted(0.1, 0u32..4),
        proptest::option::weighted(0.1, 0u32..6),
        proptest::option::weighted(0.1, (0u32..2, 0u64..10_000_000, time())),
        (1u32..4, time()),
    );
    let retries = (0u32..3, 0u32..3);
    let flags = [any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()];
    let rest = (sharing, flags, retries, slowdown, by_gain, blind);
    let times = (time(), time(), time(), time(), time(), time());
    (policy, rest, times, allowances).prop_map(
        |(policy, rest, times, (jobs, gpus, quota, (share, half_life)))| {
            let mut options = Options { policy: presets::by_name(policy.0).unwrap(), ..Options::default() };
            options.policy.gate = policy.1.unwrap_or(options.policy.gate);
            options.policy.idle_first = policy.2;
            options.policy.backfill = policy.3;
            options.policy.reserve = policy.4;
            let [caps, mps_multi_user, exclusively, suspends, several] = rest.1;
            options.mps_several_gpus = several;
            (options.sharing, options.caps, options.mps_multi_user) = (rest.0, caps, mps_multi_user);
            (options.suspends, options.moves) = (suspends, suspends);
            if exclusively {
                options.recovery = RecoveryMethod::Exclusive;
            }
            (options.max_retries, options.max_free_retries) = rest.2;
            (options.window, options.startup_patience) = (times.0, times.1);
            (options.kill_grace, options.fault_window) = (times.3, times.4);
            options.mps_cooldown = times.5;
            options.max_slowdown = rest.3.map(Fraction);
            options.policy.blind |= rest.5;
            // User 1001 may have one more of what is limited, user 1002 anything.
            let allow = |more: Option<u32>| {
                let of = |most: Option<u32>| most.zip(more).map(|(most, more)| most + more);
                let gpu_hours = of(quota.map(|quota| quota.0));
                let energy_j = quota.filter(|_| more.is_some()).map(|quota| quota.1);
                Allowance { jobs: of(jobs), gpus: of(gpus), gpu_hours, energy_j, share: 1 }
            };
            options.allowances.for_all = allow(Some(0));
            options.allowances.set(1001, allow(Some(1)));
            options.allowances.set(1002, Allowance { share, ..allow(None) });
            options.quota_period = quota.map_or(options.quota_period, |quota| quota.2);
            options.usage_half_life = half_life;
            options.slowdown_window = Millis(times.2.0.min(4_000));
            if rest.4 {
                let by_both = options.policy.most_jobs.is_some();
                options.policy.order = if by_both { Order::Throughput } else { Order::Speedup };
            }
            // Often the default: with a tiny age nothing would ever start.
            if times.2.0 > 50_000 {
                options.stale_after = times.2;
            }
            options
        },
    )
}

fn user(uid: u32) -> User {
    User { operator: uid == 1002, ..User::new(uid, format!("user-{uid}")) }
}

fn computed() -> impl Strategy<Value = Computed> {
    let basis = prop_oneof![Just(Basis::Exact), Just(Basis::Trace), Just(Basis::Summary), Just(Basis::Share)];
    (memory(), memory(), basis, any::<bool>(), memory()).prop_map(|(need, more, basis, elastic, of)| {
        let (need, more) = (MiB(need.0 % 45_000), MiB(more.0 % 45_000));
        // A share is of some GPU, be it one of no memory.
        let of_gpu = (basis == Basis::Share).then_some(of);
        Computed { need, likely: need + more, upper: need + more, basis, coverage: 95, elastic, of_gpu }
    })
}

fn run_time() -> impl Strategy<Value = RunTime> {
    let basis = prop_oneof![Just(RunsOf::Command), Just(RunsOf::User)];
    let length = prop_oneof![0u64..120, 0u64..10_000];
    (basis, 0u32..40, length).prop_map(|(basis, runs, low_s)| RunTime {
        low_s,
        median_s: low_s * 2,
        high_s: low_s * 5,
        basis,
        runs,
        commands: runs / 3,
        counted: low_s % 2 == 1,
        scaled: false,
        exact: false,
    })
}

fn profile(key: u64) -> Profile {
    Profile {
        gpu_util: (key != 3).then(|| Fraction::percent(35 * key as u32)),
        smact: (key != 2).then(|| Fraction::percent(20 * key as u32)),
        power_mw: (key != 1).then_some(250_000),
        score: u8::try_from(key).ok().filter(|score| *score < 3),
        latency_us: u32::try_from(key * 1000).ok().filter(|us| *us > 0),
    }
}

/// On the heap, as what is made of it: a strategy has all of its parts within it, and a test's stack is small.
fn new_job() -> BoxedStrategy<NewJob> {
    let maybe = || proptest::option::weighted(0.3, memory());
    let computed = proptest::option::weighted(0.3, computed());
    let forecasts = (maybe(), maybe(), maybe(), maybe(), computed).prop_map(|(d, m, h, g, c)| Forecasts {
        declared: d.map(|m| MiB(m.0 % 45_000)),
        estimates: Estimates::by(|estimator| match estimator {
            Estimator::Measured => m,
            Estimator::Horus | Estimator::Faketensor => h,
            Estimator::Gpumemnet | Estimator::Allocator => g,
            _ => None,
        }),
        computed: c,
    });
    let request = (
        prop_oneof![6 => Just(1u32), 2 => 2u32..4, 1 => Just(0), 1 => Just(u32::MAX)],
        proptest::bool::weighted(0.2),
        proptest::option::weighted(0.3, mode()),
        proptest::option::weighted(0.2, any::<u8>()),
        proptest::option::weighted(0.3, time()),
        -2i32..3,
        proptest::option::weighted(0.3, 0u32..3),
        proptest::option::weighted(0.3, (0u32..30_000).prop_map(Fraction)),
        (proptest::option::weighted(0.1, any::<u32>()), proptest::option::weighted(0.3, time())),
    )
        .prop_map(|request| {
            let (gpus, exclusive, sharing, thread_percent, time_limit, priority, ..) = request;
            let (.., max_retries, max_slowdown, (latency_us, save_grace)) = request;
            Request {
                gpus,
                exclusive,
                sharing,
                thread_percent,
                time_limit,
                priority,
                max_retries,
                max_slowdown,
                latency_us,
                save_grace,
            }
        });
    let run_time = proptest::option::weighted(0.5, run_time());
    (forecasts, request, 1000u32..1003, 0u64..4, run_time, proptest::bool::weighted(0.1))
        .prop_map(|(forecasts, request, uid, command_key, run_time, hold)| NewJob {
            id: JobId(0),
            user: user(uid),
            name: "job".into(),
            command_key,
            program_key: (command_key < 3).then_some(uid.into()),
            request,
            forecasts,
            profile: profile(command_key),
            run_time,
            hold,
        })
        .boxed()
}

/// A job that has room beside others.
fn small_job() -> BoxedStrategy<Op> {
    (new_job(), 1u32..3)
        .prop_map(|(job, gpus)| {
            let (time_limit, sharing) = (None, None);
            let request = Request { gpus, exclusive: false, time_limit, sharing, ..job.request };
            let forecasts = Forecasts { declared: Some(MiB(4000)), ..Forecasts::default() };
            Op::Submit(Box::new(NewJob { request, forecasts, hold: false, ..job }), true)
        })
        .boxed()
}

fn look() -> impl Strategy<Value = Look> {
    let held = || proptest::option::weighted(0.9, 0u64..45_000);
    let health = prop_oneof![
        12 => Just(Health::Ok),
        1 => Just(Health::Lost("lost".into())),
        1 => Just(Health::Unreadable("slow".into())),
    ];
    let rarely = |of| proptest::option::weighted(0.1, of);
    let level = || proptest::option::weighted(0.9, 0u32..11_000);
    (
        vec(held(), 0..4),
        rarely((1u64..30, held()).prop_map(|(id, m)| (JobId(id), m)).boxed()),
        prop_oneof![4 => Just(vec![]), 1 => vec(held(), 1..3)],
        proptest::option::weighted(0.95, prop_oneof![4 => Just(0u64), 1 => 0u64..50_000]),
        health,
        proptest::bool::weighted(0.95),
        [level(), level(), level()],
        prop_oneof![4 => Just(0u64), 1 => 0u64..20_000],
    )
        .prop_map(|(tenants, stranger, foreign, extra, health, processes_known, activity, age)| Look {
            tenants,
            stranger,
            foreign,
            extra,
            health,
            processes_known,
            activity,
            age,
        })
}

/// The rest of a message, as a function of its first number: sometimes nothing, sometimes nonsense.
fn said(wanted: Option<MiB>) -> Said {
    let Some(MiB(n)) = wanted else { return Said::default() };
    let size = |of: u64| (!(n / of).is_multiple_of(4)).then_some(MiB(n.wrapping_mul(of) % 50_000));
    match n % 3 {
        0 => Said::default(),
        1 => Said { gpu: Some(0), total: Some(MiB::gib(40)), free: size(7), held: size(11), allowed: None },
        _ => Said {
            gpu: u32::try_from(n / 3 % 4).ok(),
            total: size(5),
            free: size(7),
            held: size(11),
            allowed: size(13),
        },
    }
}

fn evidence() -> impl Strategy<Value = Option<EvidenceKind>> {
    proptest::option::weighted(
        0.8,
        prop_oneof![
            4 => proptest::option::of((0u64..50_000).prop_map(MiB))
                .prop_map(|wanted| EvidenceKind::GpuOutOfMemory { wanted, said: said(wanted) }),
            1 => Just(EvidenceKind::HostOutOfMemory),
            4 => Just(EvidenceKind::FatalGpuFault),
            1 => Just(EvidenceKind::GpuLost),
            1 => Just(EvidenceKind::MpsClientTerminated),
            1 => Just(EvidenceKind::OwnError),
        ],
    )
}

/// Whether the command ran at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Never {
    Ran,
    ByItself,
    ByTheMachine,
}

fn never() -> impl Strategy<Value = Never> {
    prop_oneof![8 => Just(Never::Ran), 1 => Just(Never::ByItself), 1 => Just(Never::ByTheMachine)]
}

fn status() -> impl Strategy<Value = ExitStatus> {
    prop_oneof![
        5 => Just(ExitStatus::Code(1)),
        2 => Just(ExitStatus::Code(0)),
        1 => any::<i32>().prop_map(ExitStatus::Code),
        1 => (1i32..32).prop_map(ExitStatus::Signal),
        1 => Just(ExitStatus::Unknown),
    ]
}

fn op() -> BoxedStrategy<Op> {
    let pick = || {
        prop_oneof![
            9 => (0usize..20).prop_map(Pick::Live),
            1 => (0u64..30).prop_map(Pick::Number),
        ]
    };
    let uid = || select(vec![1000u32, 1001, 1002, 0]);
    let right = || proptest::bool::weighted(0.9);
    let level = || select(vec![EndLevel::Checkpoint, EndLevel::Terminate, EndLevel::Kill, EndLevel::Abandon]);
    let state = select(vec![JobState::Pending, JobState::Running, JobState::Failed, JobState::Cancelled]);
    let clock = prop_oneof![
        8 => 0i64..40_000,
        1 => 0i64..10_000_000,
        1 => -10_000_000i64..0,
    ];
    prop_oneof![
        1 => options().prop_map(|o| Op::Configure(Box::new(o))),
        1 => any::<u8>().prop_map(Op::Inventory),
        10 => (new_job(), right()).prop_map(|(job, fresh)| Op::Submit(Box::new(job), fresh)),
        8 => (0u32..5, look()).prop_map(|(gpu, look)| Op::Look(gpu, Box::new(look))),
        6 => (0u32..8_000).prop_map(Op::LookAtAll),
        3 => vec(0u32..5, 0..5).prop_map(Op::Unchanged),
        14 => (0usize..30).prop_map(Op::Plan),
        2 => Just(Op::OldPlan),
        2 => (pick(), vec(0u32..5, 0..3), 0u32..4, mode())
            .prop_map(|(job, gpus, attempt, mode)| Op::Launch(job, gpus, attempt, mode)),
        1 => (pick(), level()).prop_map(|(job, level)| Op::End(job, level)),
        1 => pick().prop_map(Op::CannotSave),
        1 => (pick(), uid()).prop_map(|(job, by)| Op::Suspend(job, by)),
        1 => (pick(), uid()).prop_map(|(job, by)| Op::Unsuspend(job, by)),
        1 => (pick(), 0u32..5, uid()).prop_map(|(job, gpu, by)| Op::Move(job, gpu, by)),
        1 => (pick(), right()).prop_map(|(job, ok)| Op::Suspended(job, ok)),
        1 => (pick(), right()).prop_map(|(job, ok)| Op::Resumed(job, ok)),
        1 => (pick(), any::<bool>()).prop_map(|(job, stuck)| Op::SuspendFailed(job, stuck)),
        1 => Just(Op::SuspendAll),
        1 => (pick(), state).prop_map(|(job, state)| Op::SetState(job, state)),
        8 => (pick(), right(), mode()).prop_map(|(job, ok, mode)| Op::Started(job, ok, mode)),
        8 => (pick(), right(), status(), evidence(), never(), prop_oneof![9 => Just(0u32), 1 => 1u32..5])
            .prop_map(|(job, ok, status, kind, never, kills)| Op::Exited(job, ok, status, kind, never, kills)),
        2 => (pick(), any::<bool>()).prop_map(|(job, again)| Op::LaunchFailed(job, again)),
        2 => (pick(), any::<bool>()).prop_map(|(job, pause)| Op::NotLaunched(job, pause)),
        6 => Just(Op::StartAll),
        2 => (0u32..5).prop_map(Op::Crash),
        2 => (pick(), computed()).prop_map(|(job, computed)| Op::Forecast(job, computed)),
        1 => (pick(), run_time()).prop_map(|(job, run_time)| Op::RunTime(job, run_time)),
        2 => (pick(), 0_u64..100_000).prop_map(|(job, ago)| Op::Stepped(job, ago)),
        4 => (pick(), 0u32..12_000).prop_map(|(job, share)| Op::Counted(job, share)),
        2 => (pick(), 0u64..4).prop_map(|(job, key)| Op::Profiled(job, profile(key))),
        8 => (proptest::bool::weighted(0.2), 0u32..12_000).prop_map(|(unknown, p)| Op::Predict(unknown, p)),
        1 => (pick(), 0u32..5, mode()).prop_map(|(job, gpu, mode)| Op::Outlook(job, gpu, mode)),
        6 => Just(Op::Slow),
        6 => (0u32..5, 0usize..4).prop_map(|(gpu, tenant)| Op::Fill(gpu, tenant)),
        4 => (pick(), right(), 0u32..12_000, 0u32..20_000)
            .prop_map(|(job, ok, p, over)| Op::Measure(job, ok, p, over)),
        2 => (pick(), uid()).prop_map(|(job, by)| Op::Cancel(job, by)),
        1 => (pick(), uid()).prop_map(|(job, by)| Op::Hold(job, by)),
        1 => (pick(), uid()).prop_map(|(job, by)| Op::Release(job, by)),
        2 => (pick(), uid()).prop_map(|(job, by)| Op::Requeue(job, by)),
        1 => (0u32..5, uid(), any::<bool>()).prop_map(|(gpu, by, to)| Op::Drain(gpu, by, to)),
        8 => clock.prop_map(Op::Clock),
    ]
    .boxed()
}

/// A look that tells everything: these tenants, and no more.
fn seen(tenants: Vec<Option<u64>>) -> Look {
    Look {
        tenants,
        stranger: None,
        foreign: vec![],
        extra: Some(0),
        health: Health::Ok,
        processes_known: true,
        activity: [Some(2_000); 3],
        age: 0,
    }
}

/// Shares of all users together at most: one each, and three of user 1002.
const MOST_SHARES: u64 = 6;

/// GPUs that a job is launched on.
fn targets(action: &Action) -> &[GpuId] {
    match action {
        Action::Launch { placement, .. } => &placement.gpus,
        Action::Resume { gpus, .. } => gpus,
        Action::End { .. } | Action::Suspend { .. } | Action::SetState { .. } => &[],
    }
}

/// A state, the inputs that made it, and what was seen on the way.
struct World {
    state: State,
    clock: Millis,
    devices: Vec<GpuInfo>,
    /// Accepted inputs with the plans made between them.
    journal: Vec<(Millis, Input)>,
    plans: Vec<(usize, Plan)>,
    /// Milliseconds in which a GPU had tenants, of all GPUs.
    taken: u64,
    /// Energy counters of GPUs: when they were read, what they said, what they went on by in all.
    counters: BTreeMap<GpuId, (Millis, u64, u64)>,
    /// What jobs had that are over.
    over: Had,
    accepted: BTreeSet<JobId>,
    finished: BTreeSet<JobId>,
    launched: BTreeSet<(JobId, u32)>,
    old_plan: Vec<Action>,
    /// Why jobs ended.
    ends: BTreeSet<&'static str>,
}

type Check = Result<(), TestCaseError>;

impl World {
    fn new(sizes: &[u64], options: Options) -> Self {
        let devices = (0..)
            .zip(sizes)
            .map(|(index, gib)| GpuInfo {
                uuid: format!("GPU-{index}").into(),
                index,
                name: "random".into(),
                memory: MiB::gib(*gib),
                kind: GpuKind::Virtual,
                has_activity: true,
                no_mps: None,
            })
            .collect();
        let mut world = Self {
            state: State::default(),
            clock: Millis::secs(1_000_000),
            devices,
            journal: Vec::new(),
            plans: Vec::new(),
            taken: 0,
            counters: BTreeMap::new(),
            over: Had::default(),
            accepted: BTreeSet::new(),
            finished: BTreeSet::new(),
            launched: BTreeSet::new(),
            old_plan: Vec::new(),
            ends: BTreeSet::new(),
        };
        world.feed(Input::Configured(Box::new(options))).unwrap();
        world.feed(Input::Inventory(world.devices.clone())).unwrap();
        world
    }

    /// Applies one input and keeps the books. Says whether it was accepted.
    fn feed(&mut self, input: Input) -> Result<bool, TestCaseError> {
        let before = self.state.clone();
        let applied = match self.state.apply(self.clock, &input) {
            Ok(applied) => applied,
            Err(refused) => {
                prop_assert_eq!(&self.state, &before, "refused, yet changed: {}", refused);
                prop_assert!(!refused.to_string().is_empty());
                return Ok(false);
            }
        };
        prop_assert!(self.state.now() >= before.now(), "time went back");
        let taken = before.gpus().iter().filter(|gpu| !gpu.tenants.is_empty()).count() as u64;
        self.taken += taken * self.state.now().since(before.now()).0;
        if let Input::Observed { gpu, seen } = &input
            && let Some(says) = seen.energy_mj
        {
            let now = self.state.now();
            let (at, said, sum) = self.counters.entry(*gpu).or_insert((now, says, 0));
            // One that goes back began anew. Of two readings of one instant the first counts.
            if says < *said || now > *at {
                *sum += says.saturating_sub(*said);
                (*at, *said) = (now, says);
            }
        }
        if let Input::Submitted(new) = &input {
            prop_assert!(self.accepted.insert(new.id), "number {} was reused", new.id);
        }
        if let Input::Decided(action) = &input
            && let Action::Launch { job, placement } = &**action
        {
            let first = self.launched.insert((*job, placement.attempt));
            prop_assert!(first, "job {} attempt {} twice", job, placement.attempt);
            let phase = before.job(*job).map(|j| j.phase.clone());
            prop_assert_eq!(phase, Some(Phase::Pending), "launched while not pending");
        }
        if let Input::Exited { job, exit, .. } = &input {
            let ran = exit.not_started.is_none() && exit.status == ExitStatus::Code(0);
            let again = self.state.job(*job).is_some();
            prop_assert!(!(ran && exit.asked == Some(false) && again), "job {} is done, and runs again", job);
        }
        for finished in applied.finished {
            let id = finished.job.spec.id;
            self.over = finished.job.past.iter().fold(self.over, |sum, attempt| sum.with(attempt.had));
            prop_assert!(self.finished.insert(id), "job {} ended twice", id);
            let live = [JobState::Pending, JobState::Running, JobState::Suspended];
            prop_assert!(!live.contains(&finished.state));
            self.ends.insert(finished.reason.code());
            readable(&finished.reason)?;
        }
        self.journal.push((self.clock, input));
        Ok(true)
    }

    fn id(&self, pick: Pick) -> JobId {
        match pick {
            Pick::Number(n) => JobId(n),
            Pick::Live(at) => {
                let count = self.state.jobs().len().max(1);
                let id = self.state.jobs().keys().nth(at % count).copied();
                id.unwrap_or(JobId(1))
            }
        }
    }

    /// A job and its current attempt, or one beside it.
    fn attempt(&self, pick: Pick, right: bool) -> (JobId, u32) {
        let id = self.id(pick);
        let placement = self.state.job(id).and_then(Job::placement);
        let attempt = placement.map_or(1, |p| p.attempt);
        (id, if right { attempt } else { attempt + 1 })
    }

    fn outlook(&self, asked: Question, unknown: bool, progress: u32) -> Outlook {
        let pace =
            Pace { expected: Fraction(progress), lower: asked.bounds.then_some(Fraction(progress / 2)) };
        Outlook {
            paces: if unknown { vec![] } else { vec![pace; asked.there.classes.len()] },
            joins: pace,
            unknown: if unknown { vec![asked.newcomer] } else { vec![] },
            seen_beside: unknown && progress % 2 == 1,
            there: asked.there,
            newcomer: asked.newcomer,
            before: Fraction::ONE,
            throughput: (!unknown).then_some(i64::from(progress) - 3000),
        }
    }

    fn observation(&self, gpu: u32, look: &Look) -> Observation {
        let tenants = self.state.gpu(GpuId(gpu)).map_or(&[][..], |g| &g.tenants);
        let mut jobs: Vec<(JobId, Option<MiB>)> =
            tenants.iter().zip(&look.tenants).map(|(t, held)| (t.job, held.map(MiB))).collect();
        jobs.extend(look.stranger.map(|(id, held)| (id, held.map(MiB))));
        let foreign: Vec<Foreign> = (9000..)
            .zip(&look.foreign)
            .map(|(pid, held)| Foreign { pid, user: None, memory: held.map(MiB) })
            .collect();
        let sum: MiB =
            jobs.iter().map(|(_, held)| *held).chain(foreign.iter().map(|f| f.memory)).flatten().sum();
        let summary = |level: Option<u32>| {
            level.map(|l| Summary {
                samples: 10,
                mean: Fraction(l),
                median: Fraction(l),
                p95: Fraction(l),
                ema: Fraction(l),
                ema_half: Fraction(l),
                ..Summary::default()
            })
        };
        Observation {
            at: Millis(self.clock.0.saturating_sub(look.age)),
            health: look.health.clone(),
            used: look.extra.map(|extra| sum + MiB(extra)),
            jobs,
            foreign,
            processes_known: look.processes_known,
            window: WindowSummary {
                smact: summary(look.activity[0]),
                smocc: summary(look.activity[1]),
                drama: summary(look.activity[2]),
            },
            // A counter that is not always read, and that goes back now and then.
            energy_mj: (look.age % 3 != 1).then_some(self.clock.0 % 1_000_000 * 400),
        }
    }

    fn look(&mut self, gpu: u32, look: &Look) -> Check {
        let seen = Box::new(self.observation(gpu, look));
        self.feed(Input::Observed { gpu: GpuId(gpu), seen }).map(drop)
    }

    fn step(&mut self, op: &Op) -> Check {
        let input = match op {
            Op::Configure(options) => Input::Configured(options.clone()),
            Op::Inventory(mask) => Input::Inventory(
                (0u32..)
                    .zip(&self.devices)
                    .filter(|(i, _)| mask & (1 << i) != 0)
                    .map(|(_, d)| d.clone())
                    .collect(),
            ),
            Op::Submit(job, fresh) => {
                let mut job = job.clone();
                let next = self.state.next_id();
                job.id = if *fresh { next } else { JobId(next.0 / 2) };
                Input::Submitted(job)
            }
            Op::Look(gpu, look) => return self.look(*gpu, look),
            Op::LookAtAll(held) => {
                for gpu in 0..u32::try_from(self.state.gpus().len()).unwrap() {
                    self.look(gpu, &seen(vec![Some(u64::from(*held)); 4]))?;
                }
                return Ok(());
            }
            Op::StartAll => {
                let launching: Vec<JobId> = self.state.active().iter().copied().collect();
                for id in launching {
                    let at = self.state.jobs().keys().position(|j| *j == id);
                    let mode = self.state.job(id).and_then(Job::placement).map(|p| p.sharing);
                    if let (Some(at), Some(mode)) = (at, mode) {
                        self.step(&Op::Started(Pick::Live(at), true, mode))?;
                    }
                }
                return Ok(());
            }
            Op::Crash(gpu) => {
                let tenants = self.state.gpu(GpuId(*gpu)).map(|g| g.tenants.clone());
                for tenant in tenants.unwrap_or_default() {
                    let job = Pick::Number(tenant.job.0);
                    let kind = Some(EvidenceKind::FatalGpuFault);
                    self.step(&Op::Exited(job, true, ExitStatus::Code(1), kind, Never::Ran, 0))?;
                }
                return Ok(());
            }
            Op::Slow => {
                let over = self.state.options().slowdown_window;
                self.clock = self.clock.max(self.state.now()) + over;
                self.feed(Input::Tick)?;
                for id in self.state.active().clone() {
                    let (job, attempt) = self.attempt(Pick::Number(id.0), true);
                    for _ in 0..2 {
                        self.feed(Input::Measured {
                            job,
                            attempt,
                            progress: Fraction(1),
                            over,
                            at_most: false,
                            loading: false,
                        })?;
                    }
                }
                return self.follow_ends();
            }
            Op::Fill(gpu, which) => {
                let Some(there) = self.state.gpu(GpuId(*gpu)) else { return Ok(()) };
                let (memory, count) = (there.info.memory.0, there.tenants.len());
                self.clock = self.clock.max(self.state.now());
                for share in [5, 3, 2] {
                    self.clock = self.clock + Millis(100);
                    let held = |at| if at == which % count.max(1) { memory * 2 / share } else { 1000 };
                    let tenants: Vec<_> = (0..count).map(|at| Some(held(at))).collect();
                    self.look(*gpu, &seen(tenants))?;
                }
                return self.follow_ends();
            }
            Op::Unchanged(gpus) => Input::Unchanged(gpus.iter().copied().map(GpuId).collect()),
            Op::Plan(count) => return self.follow_plan(*count),
            Op::OldPlan => {
                for action in self.old_plan.clone() {
                    self.feed(Input::Decided(Box::new(action)))?;
                }
                return Ok(());
            }
            Op::Launch(job, gpus, attempt, sharing) => Input::Decided(Box::new(Action::Launch {
                job: self.id(*job),
                placement: Placement {
                    attempt: *attempt,
                    gpus: gpus.iter().copied().map(GpuId).collect(),
                    sharing: *sharing,
                    cap: None,
                    floor: None,
                    thread_percent: None,
                    part: None,
                    at: self.clock,
                    reason: Reason::NotPlannedYet,
                },
            })),
            Op::End(pick, level) => {
                let (job, attempt) = self.attempt(*pick, true);
                Input::Decided(Box::new(Action::End {
                    job,
                    attempt,
                    level: *level,
                    cause: EndCause::TimeLimit(Millis(1)),
                }))
            }
            Op::CannotSave(pick) => {
                let (job, attempt) = self.attempt(*pick, true);
                Input::CannotSave { job, attempt, why: "no process of it catches SIGUSR1".into() }
            }
            Op::Suspend(pick, by) => Input::Suspend { job: self.id(*pick), by: user(*by) },
            Op::Unsuspend(pick, by) => Input::Unsuspend { job: self.id(*pick), by: user(*by) },
            Op::Move(pick, gpu, by) => Input::Move { job: self.id(*pick), gpu: GpuId(*gpu), by: user(*by) },
            Op::Suspended(pick, right) => {
                let (job, attempt) = self.attempt(*pick, *right);
                Input::Suspended { job, attempt, host: MiB::gib(1) }
            }
            Op::Resumed(pick, right) => {
                let (job, attempt) = self.attempt(*pick, *right);
                Input::Resumed { job, attempt }
            }
            Op::SuspendFailed(pick, stuck) => {
                let (job, attempt) = self.attempt(*pick, true);
                Input::SuspendFailed { job, attempt, why: "no".into(), stuck: *stuck }
            }
            Op::SuspendAll => {
                for id in self.state.active().clone() {
                    self.feed(Input::Suspend { job: id, by: user(0) })?;
                }
                self.follow_plan(usize::MAX)?;
                for id in self.state.active().clone() {
                    self.step(&Op::Suspended(Pick::Number(id.0), true))?;
                    self.feed(Input::Unsuspend { job: id, by: user(0) })?;
                }
                return Ok(());
            }
            Op::SetState(job, state) => Input::Decided(Box::new(Action::SetState {
                job: self.id(*job),
                state: *state,
                reason: Reason::Judging,
            })),
            Op::Started(pick, right, sharing) => {
                let (job, attempt) = self.attempt(*pick, *right);
                let planned = self.state.job(job).and_then(Job::placement);
                Input::Started {
                    job,
                    attempt,
                    supervisor: ProcessRef { pid: 1, start_ticks: 1 },
                    child: None,
                    // An exclusive placement is never started otherwise, nor the other way round.
                    sharing: match (planned.map(|p| p.sharing), *sharing) {
                        (Some(SharingMode::Mps), SharingMode::TimeSlice) => SharingMode::TimeSlice,
                        (planned, other) => planned.unwrap_or(other),
                    },
                    note: None,
                }
            }
            Op::Exited(pick, right, status, kind, never, oom_kills) => {
                let (job, attempt) = self.attempt(*pick, *right);
                Input::Exited {
                    job,
                    attempt,
                    exit: Exit {
                        status: *status,
                        evidence: kind.map(|kind| Evidence { kind, line: "a line".into() }),
                        last_line: None,
                        not_started: (*never != Never::Ran).then(|| "no such file".into()),
                        machine: *never == Never::ByTheMachine,
                        user_gone: (*never == Never::ByItself && *oom_kills > 0)
                            .then(|| Box::new(UserGone { now: None })),
                        // Of some it is known.
                        asked: (*oom_kills > 0).then_some(oom_kills.is_multiple_of(2)),
                        host: HostUse { oom_kills: *oom_kills, ..HostUse::default() },
                        ended: None,
                    },
                }
            }
            Op::NotLaunched(pick, pause) => {
                let (job, attempt) = self.attempt(*pick, true);
                Input::NotLaunched { job, attempt, why: "no".into(), pause: *pause }
            }
            Op::LaunchFailed(pick, transient) => {
                let (job, attempt) = self.attempt(*pick, true);
                Input::LaunchFailed { job, attempt, error: "no".into(), transient: *transient }
            }
            Op::Forecast(job, computed) => Input::Forecast {
                job: self.id(*job),
                computed: *computed,
                measured: computed.basis.is_measured().then_some(computed.likely),
            },
            Op::RunTime(job, run_time) => Input::RunTime { job: self.id(*job), run_time: *run_time },
            Op::Stepped(job, ago) => {
                let (job, attempt) = self.attempt(*job, true);
                Input::Stepped { job, attempt, ago: Millis(*ago) }
            }
            Op::Counted(job, share) => {
                let (job, attempt) = self.attempt(*job, true);
                Input::Counted { job, attempt, share: Fraction(*share) }
            }
            Op::Profiled(job, profile) => Input::Profiled { job: self.id(*job), profile: *profile },
            Op::Predict(unknown, progress) => Input::Predicted(
                questions(&self.state).into_iter().map(|q| self.outlook(q, *unknown, *progress)).collect(),
            ),
            Op::Outlook(job, gpu, sharing) => {
                // Of a company that need not be there, as any class may be asked for.
                let class = |command| Class { command, threads: None, asked: false };
                let there =
                    Company { kind: GpuId(*gpu), sharing: *sharing, classes: vec![class(1), class(2)] };
                let question = Question { newcomer: class(self.id(*job).0), there, bounds: true };
                Input::Predicted(vec![self.outlook(question, false, 9000)])
            }
            Op::Measure(job, right, progress, over) => {
                let (job, attempt) = self.attempt(*job, *right);
                let over = Millis(u64::from(*over));
                Input::Measured {
                    job,
                    attempt,
                    progress: Fraction(*progress),
                    over,
                    at_most: *progress % 2 == 1,
                    loading: *progress % 5 == 1,
                }
            }
            Op::Cancel(job, by) => Input::Cancel { job: self.id(*job), by: user(*by) },
            Op::Hold(job, by) => Input::Hold { job: self.id(*job), by: user(*by) },
            Op::Release(job, by) => Input::Release { job: self.id(*job), by: user(*by) },
            Op::Requeue(job, by) => Input::Requeue { job: self.id(*job), by: user(*by) },
            Op::Drain(gpu, by, true) => Input::Drain { gpu: GpuId(*gpu), by: user(*by) },
            Op::Drain(gpu, by, false) => Input::Resume { gpu: GpuId(*gpu), by: user(*by) },
            Op::Clock(ms) => {
                self.clock = Millis(self.clock.0.saturating_add_signed(*ms));
                Input::Tick
            }
        };
        self.feed(input).map(drop)
    }

    /// Follows a plan, and those that are to end do.
    fn follow_ends(&mut self) -> Check {
        self.follow_plan(usize::MAX)?;
        for id in self.state.active().clone() {
            let ending = |job: &Job| matches!(job.phase, Phase::Running { ending: Some(_), .. });
            if self.state.job(id).is_some_and(ending) {
                let killed = ExitStatus::Signal(15);
                self.step(&Op::Exited(Pick::Number(id.0), true, killed, None, Never::Ran, 0))?;
            }
        }
        Ok(())
    }

    /// Users of jobs that wait beyond the bound on their start.
    fn overdue(&self) -> BTreeSet<u32> {
        let now = self.clock.max(self.state.now());
        let jobs = self.state.queue().jobs().map(|(_, job)| job);
        jobs.filter(|job| self.state.is_overdue(job, now)).map(|job| job.spec.user.uid).collect()
    }

    fn follow_plan(&mut self, count: usize) -> Check {
        let made = plan(&self.state, self.clock);
        self.plans.push((self.journal.len(), made.clone()));
        self.old_plan = made.actions.clone();
        // Verdicts change who waits, and without patience a neighbour counts as started at once.
        let verdicts = made.actions.iter().any(|a| matches!(a, Action::SetState { .. }));
        let patience = self.state.options().startup_patience > Millis::ZERO;
        // A plan may want to be asked again at once, for a job that waits for what is predicted beside one that it placed.
        let whole = made.wake.is_none_or(|at| at > self.clock.max(self.state.now()));
        let settled = made.actions.len() <= count && !verdicts && patience && whole;
        let taken: BTreeSet<GpuId> = made.actions.iter().flat_map(targets).copied().collect();
        // Where predictions decide, which say anything here, or limits, a job that was placed may make room beside it for one
        // before it; and one that is overdue or urgent keeps the GPUs with the least to do, which are others once this plan is done.
        let options = self.state.options();
        let limited = self.state.jobs().values().any(|job| job.spec.request.is_limited());
        let predicted = options.policy.goes_by_predictions() || options.max_slowdown.is_some() || limited;
        let urgent = self.state.queue().iter().any(QueueKey::is_urgent);
        let keeps = predicted && (urgent || !self.overdue().is_empty());
        let running = self.state.active_jobs();
        let ends: BTreeMap<JobId, Millis> =
            running.map(|job| (job.spec.id, self.state.ends_in(job))).collect();
        for action in made.actions.into_iter().take(count) {
            if let Action::Launch { job, placement } = &action {
                self.has_room(*job, placement)?;
                self.keeps_floor(*job, placement, &ends)?;
            }
            if let Action::End { job, level, cause, .. } = &action {
                self.is_asked_in_turn(*job, *level, cause)?;
            }
            let text = format!("{action:?}");
            let taken = self.feed(Input::Decided(Box::new(action)))?;
            prop_assert!(taken, "the state refuses its own plan: {}", text);
        }
        // What a plan remembers of failed searches must not hide a place.
        if settled {
            let again = plan(&self.state, self.clock);
            let missed = |a: &Action| match targets(a) {
                [] => false,
                gpus => !predicted || (!keeps && !gpus.iter().any(|gpu| taken.contains(gpu))),
            };
            prop_assert!(!again.actions.iter().any(missed), "a place was missed: {:?}", again.actions);
        }
        Ok(())
    }

    /// What is placed beside others fits into what is free, reservations and foreign processes counted.
    fn has_room(&self, job: JobId, placement: &Placement) -> Check {
        let policy = &self.state.options().policy;
        let (MemoryScreen::Forecast { guard, .. }, Reason::PlacedShared { .. }) =
            (policy.memory, &placement.reason)
        else {
            return Ok(());
        };
        let job = self.state.job(job).unwrap();
        for gpu in placement.gpus.iter().filter_map(|g| self.state.gpu(*g)) {
            // Of unknown memory: it gets no more than is free, and where there are hard limits no more than that.
            if let Some(part) = placement.part {
                prop_assert!(gpu.free(policy.reserve).is_some_and(|free| part <= free));
                let capped = placement.sharing == SharingMode::Mps && self.state.options().caps;
                prop_assert_eq!(placement.cap, capped.then_some(part));
                continue;
            }
            let Reservation::Memory(reserved) = self.state.reservation_on(job, gpu.info.memory) else {
                return Err(TestCaseError::fail("shared without a forecast"));
            };
            let free = gpu.free(policy.reserve);
            prop_assert!(free >= Some(reserved + guard), "{:?} < {}", free, reserved);
        }
        Ok(())
    }

    /// Where progress counts, who joins others was predicted to leave each of them, and to keep, what must be left, and to add
    /// what must be added unless it is overdue. Who starts up for part of its run may keep less while it works, and those who
    /// will be over by then do not count.
    /// `ends`: of the jobs that ran when the plan was made; it expects no end of those that it places.
    fn keeps_floor(&self, job: JobId, placement: &Placement, ends: &BTreeMap<JobId, Millis>) -> Check {
        let Some(rule) = self.state.options().policy.progress else { return Ok(()) };
        let job = self.state.job(job).unwrap();
        let overdue = self.state.is_overdue(job, self.clock.max(self.state.now()));
        // It may be given fewer threads than it asked for.
        let joins = Class { threads: placement.thread_percent.or(job.class().threads), ..job.class() };
        let start = self.state.startup(job);
        let starts = start.takes > Millis::ZERO;
        prop_assert!(start.share.0 <= 5_000 && (start.share.0 > 0) == starts);
        for gpu in placement.gpus.iter().filter_map(|id| self.state.gpu(*id)) {
            let of = |stays: &dyn Fn(&Job) -> bool| {
                let there = gpu.tenants.iter().filter_map(|tenant| self.state.job(tenant.job));
                let mut classes: Vec<Class> = there.filter(|job| stays(job)).map(Job::class).collect();
                classes.sort_unstable();
                classes
            };
            let now = of(&|_| true);
            let is_over = |ends_in: &Millis| starts && *ends_in <= start.others_over_by();
            let at_work = of(&|job| !ends.get(&job.spec.id).is_some_and(is_over));
            let kind = |outlook: &Outlook| self.state.gpu(outlook.there.kind).unwrap().info.name.as_str();
            let keeps = |classes: &Vec<Class>, outlook: &Outlook| {
                (&outlook.there.classes, outlook.newcomer, kind(outlook))
                    == (classes, joins, gpu.info.name.as_str())
                    && outlook.joins.expected >= if starts { rule.dip() } else { rule.floor }
                    && outlook.joins_over_run(start.share) >= rule.floor
                    && (starts || outlook.paces.iter().all(|pace| pace.expected >= rule.dip()))
                    && (overdue || outlook.gain_over_run(start.share) >= rule.gain)
            };
            let kept = |classes: &Vec<Class>| {
                classes.is_empty() || self.state.outlooks().any(|outlook| keeps(classes, outlook))
            };
            // Where it is not predicted what they do then, all who are there now count.
            prop_assert!(
                kept(&at_work) || kept(&now),
                "job {} joins {:?} unasked: {:?}",
                job.spec.id,
                at_work,
                placement
            );
        }
        Ok(())
    }

    // --- what must hold ------------------------------------------------------------------------

    fn verify(&self) -> Check {
        let broken = check::check(&self.state);
        prop_assert!(broken.is_empty(), "{}", broken.join("; "));
        let live: BTreeSet<JobId> = self.state.jobs().keys().copied().collect();
        prop_assert!(live.is_disjoint(&self.finished), "a job is over and alive");
        self.accounted()?;
        let known: BTreeSet<JobId> = live.union(&self.finished).copied().collect();
        prop_assert_eq!(&known, &self.accepted, "a job was lost");

        let made = plan(&self.state, self.clock);
        prop_assert_eq!(&made, &plan(&self.state, self.clock), "not a function");
        let brief = plan_in(&self.state, self.clock, Detail::Actions);
        prop_assert_eq!(&made.actions, &brief.actions, "the detail changes what is done");
        prop_assert_eq!(made.wake, brief.wake, "the detail changes when to look again");
        let now = self.state.now();
        if self.clock <= now {
            prop_assert_eq!(&made, &plan(&self.state, now), "an earlier time changes the plan");
        }
        self.targets(&made)?;
        self.in_turn(&made)?;
        self.is_guarded(&made)?;
        self.allowed(&made)?;
        self.wakes(&made)?;
        for (id, reason) in &made.waiting {
            readable(reason)?;
            let job = self.state.job(*id).unwrap();
            readable(&evaluate(&self.state, self.clock, job))?;
            let (at, bound) = (self.clock.max(now), self.state.bound_on_start(job, self.clock.max(now)));
            prop_assert_eq!(
                self.state.is_overdue(job, at),
                bound.is_some_and(|bound| bound <= at),
                "{:?}",
                bound
            );
            // Where its user waits, and the same others. A user's clock tells milliseconds, each as long as there are shares.
            // Clocks reach some hundred years.
            let in_time = |bound: &Millis| bound.since(at) < Millis(1 << 43);
            if let Some(bound) = bound.filter(|_| !job.spec.hold).filter(in_time) {
                let by = bound + Millis(MOST_SHARES);
                prop_assert!(self.state.is_overdue(job, by), "not overdue at its bound {}", bound.0);
                prop_assert!(
                    bound.since(at) < Millis(MOST_SHARES)
                        || !self.state.is_overdue(job, Millis(bound.0 - MOST_SHARES)),
                    "overdue before its bound"
                );
            }
        }
        let text = serde_json::to_string(&self.state).unwrap();
        let mut loaded: State = serde_json::from_str(&text).unwrap();
        loaded.rebuild();
        prop_assert_eq!(&loaded, &self.state, "stored and loaded, yet different");
        prop_assert_eq!(&made, &plan(&loaded, self.clock));
        Ok(())
    }

    /// Launches go to GPUs that are there, in use, healthy and freshly read; each job once.
    fn targets(&self, made: &Plan) -> Check {
        let now = self.clock.max(self.state.now());
        let mut jobs = BTreeSet::new();
        for action in &made.actions {
            let Action::Launch { job, placement } = action else {
                continue;
            };
            prop_assert!(jobs.insert(*job), "job {} twice in one plan", job);
            let live = self.state.job(*job).unwrap();
            prop_assert_eq!(&live.phase, &Phase::Pending);
            prop_assert_eq!(placement.attempt, live.attempts + 1);
            let gpus: BTreeSet<GpuId> = placement.gpus.iter().copied().collect();
            prop_assert_eq!(gpus.len(), placement.gpus.len(), "one GPU twice");
            prop_assert_eq!(gpus.len(), live.spec.request.gpus as usize);
            for id in gpus {
                let gpu = self.state.gpu(id).unwrap();
                prop_assert!(gpu.present && gpu.drained_by.is_none());
                let seen = gpu.seen.as_ref().unwrap();
                prop_assert_eq!(&seen.health, &Health::Ok);
                prop_assert!(now.since(seen.at) <= self.state.options().stale_after);
                prop_assert!(seen.used.is_some());
                if live.spec.request.exclusive {
                    prop_assert!(gpu.tenants.is_empty() && seen.foreign.is_empty());
                }
            }
            readable(&placement.reason)?;
        }
        Ok(())
    }

    /// What a user has had in the present period, as the latest plan saw it.
    fn of_period(&self, uid: u32) -> (Millis, u64) {
        let now = self.clock.max(self.state.now());
        let accounts = self.state.accounts_at(now);
        accounts.get(&uid).map_or((Millis::ZERO, 0), |account| account.of_period(now, self.state.options()))
    }

    /// What all users are charged is the time in which GPUs had tenants, and no part of an account is more than the whole.
    fn accounted(&self) -> Check {
        let (now, options) = (self.state.now(), self.state.options());
        let accounts = self.state.accounts_at(now);
        let charged: u64 = accounts.values().map(|account| account.charged.0).sum();
        prop_assert_eq!(charged, self.taken);
        for account in accounts.values() {
            let whole = account.charged;
            prop_assert!(whole <= account.held && account.progress() <= account.held, "{:?}", account);
            prop_assert!(account.unmetered <= whole && account.of_period(now, options).0 <= whole);
            prop_assert!(account.decayed_at(now, options) <= whole, "{:?}", account);
        }
        // To the millijoule: what counters went on by is in the GPUs' sums, and the jobs' part of those is in the jobs' own
        // and in their users'.
        let metered = self.state.metered_at(now, &BTreeMap::new());
        let past = self.state.jobs().values().flat_map(|job| &job.past).map(|attempt| attempt.had);
        let had = past.chain(metered.jobs.values().copied()).fold(self.over, Had::with);
        let of_gpus: u64 = metered.gpus.values().map(|tally| tally.jobs_mj).sum();
        let of_users: u64 = accounts.values().map(|account| account.energy_mj).sum();
        prop_assert_eq!((had.energy_mj, of_gpus), (of_users, of_users));
        prop_assert_eq!(had.held.0, accounts.values().map(|account| account.held.0).sum::<u64>());
        prop_assert!(had.unmetered <= had.held && had.progress() <= had.held, "{:?}", had);
        for (gpu, tally) in &metered.gpus {
            prop_assert_eq!(tally.total_mj(), self.counters[gpu].2, "{:?}", tally);
        }
        Ok(())
    }

    /// Nobody gets more at once than is allowed, and who is told so has as much as that.
    fn allowed(&self, made: &Plan) -> Check {
        let allowances = &self.state.options().allowances;
        let mut has: BTreeMap<u32, (u32, u32)> = BTreeMap::new();
        for job in self.state.jobs().values() {
            let has = has.entry(job.spec.user.uid).or_default();
            if let Some(placed) = job.placement().filter(|_| !job.is_off()) {
                *has = (has.0 + 1, has.1 + placed.gpus.len() as u32);
            }
        }
        for action in &made.actions {
            if let Action::Launch { job, .. } | Action::Resume { job, .. } = action {
                let uid = self.state.job(*job).unwrap().spec.user.uid;
                let has = has.entry(uid).or_default();
                *has = (has.0 + 1, has.1 + targets(action).len() as u32);
                let may = allowances.of(uid);
                prop_assert!(may.jobs.is_none_or(|most| has.0 <= most), "user {} runs {:?}", uid, has);
                prop_assert!(may.gpus.is_none_or(|most| has.1 <= most), "user {} runs {:?}", uid, has);
                let (spent, spent_mj) = self.of_period(uid);
                let hours = |most: u32| Millis::secs(u64::from(most) * 3600);
                prop_assert!(
                    may.gpu_hours.is_none_or(|most| spent < hours(most)),
                    "user {} had {}",
                    uid,
                    spent
                );
                prop_assert!(may.energy_j.is_none_or(|most| spent_mj / 1000 < most), "user {}", uid);
            }
        }
        for (id, reason) in &made.waiting {
            let uid = self.state.job(*id).unwrap().spec.user.uid;
            let (may, has) = (allowances.of(uid), has.get(&uid).copied().unwrap_or_default());
            match reason {
                Reason::UserLimit { limit: UserLimit::Jobs { most }, .. } => {
                    prop_assert!(may.jobs == Some(*most) && has.0 >= *most);
                }
                Reason::UserLimit { limit: UserLimit::Gpus { wanted, used, most }, .. } => {
                    prop_assert!(may.gpus == Some(*most) && *used <= has.1 && used + wanted > *most);
                }
                Reason::UserLimit { limit: UserLimit::GpuHours { used, most, .. }, .. } => {
                    prop_assert!(may.gpu_hours == Some(*most) && *used == self.of_period(uid).0);
                }
                Reason::UserLimit { limit: UserLimit::Energy { used_j, most_j, .. }, .. } => {
                    prop_assert!(may.energy_j == Some(*most_j) && *used_j >= *most_j);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Who is looked at and who waits: every job of the queue, once. Under strict FIFO nobody
    /// overtakes a job that does not fit; recovered and paused jobs stand aside.
    fn in_turn(&self, made: &Plan) -> Check {
        let launched: BTreeSet<JobId> = made
            .actions
            .iter()
            .filter_map(|a| match a {
                Action::Launch { job, .. } => Some(*job),
                _ => None,
            })
            .collect();
        let off = |id: &JobId| self.state.job(*id).is_some_and(Job::is_off);
        let mut all: Vec<JobId> = made.waiting.iter().map(|(id, _)| *id).filter(|id| !off(id)).collect();
        all.extend(&launched);
        all.sort_unstable();
        let mut queued: Vec<JobId> = self.state.queue().iter().map(|key| key.id).collect();
        queued.sort_unstable();
        prop_assert_eq!(all, queued, "a queued job is neither placed nor told why not");
        let policy = &self.state.options().policy;
        if policy.backfill.is_some() || policy.line != Line::Arrival {
            return Ok(());
        }
        let now = self.clock.max(self.state.now());
        // Who waits for jobs of the same user keeps no other user waiting.
        let limited: BTreeSet<JobId> = made
            .waiting
            .iter()
            .filter(|(_, reason)| matches!(reason, Reason::UserLimit { .. }))
            .map(|(id, _)| *id)
            .collect();
        let own: BTreeSet<JobId> = made
            .waiting
            .iter()
            .filter(|(_, reason)| matches!(reason, Reason::Behind { job, .. } if limited.contains(job)))
            .map(|(id, _)| *id)
            .chain(limited.iter().copied())
            .collect();
        let mut stopped = false;
        for key in self.state.queue().iter() {
            let job = self.state.job(key.id).unwrap();
            let paused = job.not_before.is_some_and(|until| until > now);
            if !key.recovery.0 && !paused && !own.contains(&key.id) {
                let starts = launched.contains(&key.id);
                prop_assert!(!(stopped && starts), "job {} overtakes", key.id);
                stopped |= !starts;
            }
        }
        Ok(())
    }

    /// A job is asked to save its work once, first, and only where that is of use to it; never is it killed without having
    /// been asked to end.
    fn is_asked_in_turn(&self, id: JobId, level: EndLevel, cause: &EndCause) -> Check {
        let job = self.state.job(id).unwrap();
        let sent = job.ending().and_then(|ending| ending.sent);
        let runs = matches!(job.phase, Phase::Running { .. });
        let saves = runs && cause.saves() && job.spec.request.save_grace.is_some();
        match level {
            EndLevel::Checkpoint => prop_assert!(saves && sent.is_none(), "job {} is asked to save", id),
            EndLevel::Terminate => match sent {
                None => prop_assert!(!saves, "job {} is not asked to save", id),
                Some((before, at)) => {
                    prop_assert_eq!(before, EndLevel::Checkpoint);
                    let now = self.clock.max(self.state.now());
                    let asked = job.ending().is_some_and(|ending| !ending.cannot_save);
                    let saved = job.spec.request.save_grace.is_none_or(|grace| now.since(at) >= grace);
                    let ran = match &job.phase {
                        Phase::Running { started, halt, .. } => now.since(*started + halt.until(now)),
                        _ => Millis::ZERO,
                    };
                    let over = job.spec.request.time_limit.is_some_and(|limit| ran >= limit);
                    prop_assert!(!asked || !cause.saves() || saved || over);
                }
            },
            EndLevel::Kill | EndLevel::Abandon => {
                // What stands still, or is in no state in which it could end, is not asked.
                let asked = sent.is_some_and(|(before, _)| before >= EndLevel::Terminate);
                let stuck = matches!(cause, EndCause::Stuck { .. });
                prop_assert!(asked || stuck || job.is_off());
            }
        }
        Ok(())
    }

    /// The growth guard ends no job that keeps to what it was given, one on a GPU at a time, and the first only for what it
    /// took beyond that.
    fn is_guarded(&self, made: &Plan) -> Check {
        let mut ended: BTreeSet<JobId> = BTreeSet::new();
        for action in &made.actions {
            let Action::End { job: id, level, cause, .. } = action else { continue };
            let job = self.state.job(*id).unwrap();
            let placement = job.placement().unwrap();
            let tells = job.ending().is_none_or(|ending| ending.sent.is_none());
            if let (EndCause::GrowthGuard(filling), true) = (cause, tells) {
                prop_assert!(self.state.options().policy.blind && *level == EndLevel::Terminate);
                prop_assert!(placement.cap.is_none(), "job {} had a limit", id);
                let on = |gpu: &&Gpu| gpu.info.index == filling.gpu;
                let gpu = placement.gpus.iter().filter_map(|id| self.state.gpu(*id)).find(on).unwrap();
                let tenant = gpu.tenant(*id).unwrap();
                let held = tenant.observed.unwrap();
                let fits = matches!(tenant.reservation, Reservation::Memory(m) if tenant.peak <= Some(m));
                prop_assert!(!(tenant.settled && fits), "job {} keeps to its reservation", id);
                prop_assert!(tenant.forecast.is_none_or(|said| held > said), "job {} keeps its word", id);
                prop_assert_eq!(filling.exceeded.is_some_and(|given| held <= given), false);
                prop_assert_eq!((filling.held, filling.memory), (held, gpu.info.memory));
                let came = |t: &Tenant| (t.placed, t.job);
                let first = gpu.tenants.iter().map(came).min();
                prop_assert!(
                    gpu.tenants.len() > 1 && (filling.exceeded.is_some() || first < Some(came(tenant)))
                );
                let leaves =
                    |t: &Tenant| ended.contains(&t.job) || self.state.job(t.job).unwrap().ending().is_some();
                prop_assert!(!gpu.tenants.iter().any(leaves), "two leave GPU {}", filling.gpu);
            }
            ended.insert(*id);
        }
        Ok(())
    }

    /// Where nothing is to be done now, nothing becomes due before the time the plan names.
    fn wakes(&self, made: &Plan) -> Check {
        // Overdue jobs of several users stand in the order of clocks that go at different speeds.
        if !made.actions.is_empty() || self.overdue().len() > 1 {
            return Ok(());
        }
        let now = self.clock.max(self.state.now());
        let until = made.wake.unwrap_or(now + Millis::secs(86_400 * 365));
        for t in [now.0 + 1, now.0.midpoint(until.0), until.0.saturating_sub(1)] {
            if t < until.0 {
                let later = plan(&self.state, Millis(t));
                prop_assert_eq!(&later.actions, &vec![], "due before {}", until.0);
            }
        }
        Ok(())
    }

    /// The journal of inputs, through JSON, gives the same states and the same plans.
    fn replay(&self) -> Check {
        let text = serde_json::to_string(&self.journal).unwrap();
        let journal: Vec<(Millis, Input)> = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(&journal, &self.journal);
        let mut plans: BTreeMap<usize, Vec<&Plan>> = BTreeMap::new();
        for (at, made) in &self.plans {
            plans.entry(*at).or_default().push(made);
        }
        let mut state = State::default();
        // The same without any forecast of run time, which counts only where the shortest job goes first.
        let mut untimed = State::default();
        let mut clock = Millis::ZERO;
        for (index, (at, input)) in journal.iter().enumerate() {
            clock = *at;
            state.apply(*at, input).unwrap();
            let input = match input.clone() {
                Input::Submitted(new) => Input::Submitted(Box::new(NewJob { run_time: None, ..*new })),
                Input::RunTime { .. } => Input::Tick,
                input => input,
            };
            untimed.apply(*at, &input).unwrap();
            // Plans made after a refused input that moved the clock are not repeatable from here.
            for made in plans.get(&(index + 1)).into_iter().flatten() {
                prop_assert_eq!(&plan(&state, clock), *made);
                if state.options().policy.line == Line::Arrival {
                    prop_assert_eq!(&plan(&untimed, clock), *made);
                }
            }
        }
        prop_assert_eq!(&state, &self.state);
        prop_assert_eq!(plan(&state, clock), plan(&self.state, clock));
        Ok(())
    }
}

/// A reason says something, and survives storage.
fn readable(reason: &Reason) -> Check {
    prop_assert!(!reason.to_string().is_empty() && !reason.code().is_empty());
    let text = serde_json::to_string(reason).unwrap();
    prop_assert_eq!(&serde_json::from_str::<Reason>(&text).unwrap(), reason);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn whatever_comes_in_the_invariants_hold(
        sizes in vec(select(vec![16u64, 40, 80]), 1..5),
        options in options(),
        ops in vec(op(), 1..120),
    ) {
        let mut world = World::new(&sizes, options);
        for op in &ops {
            world.step(op)?;
            world.verify()?;
        }
        world.replay()?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Few random runs have the default policy, and in fewer do jobs share under it: here GPUs are looked at, questions answered and
    /// plans followed after each input.
    #[test]
    fn whatever_comes_in_the_default_policy_keeps_its_floor(
        sizes in vec(select(vec![40u64, 80]), 1..4),
        (sharing, suspends) in (select(vec![SharingMode::Mps, SharingMode::TimeSlice]), any::<bool>()),
        ran in vec(small_job(), 0..5),
        ops in vec((prop_oneof![op(), small_job()], select(vec![4_000u32, 4_999, 5_000, 5_999, 6_000, 10_000])), 1..40),
    ) {
        let mut world = World::new(&sizes, Options { sharing, suspends, moves: suspends, caps: true, ..Options::default() });
        prop_assert!(world.state.options().policy.progress.is_some());
        // Of those that ran before it is known how long they start up.
        let (job, code) = (Pick::Live(0), ExitStatus::Code(0));
        for op in ran {
            let exit = Op::Exited(job, true, code, None, Never::Ran, 0);
            for op in [Op::LookAtAll(0), op, Op::Plan(1), Op::StartAll, Op::Clock(20_000), Op::Stepped(job, 0), exit] {
                world.step(&op)?;
            }
        }
        for (op, progress) in ops {
            if matches!(op, Op::Configure(_)) {
                continue;
            }
            for op in [op, Op::LookAtAll(1000), Op::Predict(false, progress), Op::Plan(30), Op::StartAll] {
                world.step(&op)?;
            }
            world.verify()?;
        }
        world.replay()?;
    }
}

/// Runs of random inputs would prove little if they never got anywhere: together they must meet
/// every kind of reason.
#[test]
fn the_random_runs_reach_every_kind_of_end() {
    let mut runner = TestRunner::deterministic();
    let run = (options(), vec(op(), 100..120));
    let mut met: BTreeSet<&'static str> = BTreeSet::new();
    for n in 0..4000 {
        let (mut options, ops) = run.new_tree(&mut runner).unwrap().current();
        // Few of the random machines put several jobs of one MPS server together: every other one is made to.
        if n % 2 == 0 {
            options.policy = presets::by_name("carma").unwrap();
            options.policy.gate = Gate::None;
            (options.sharing, options.mps_multi_user) = (SharingMode::Mps, true);
            options.allowances = Allowances::default();
        }
        // And few suspend jobs by themselves, and fewer hear that these have left their GPUs.
        let sets_aside = n % 4 == 1;
        if sets_aside {
            options.policy = presets::by_name("adaptive").unwrap();
            (options.sharing, options.suspends, options.moves) = (SharingMode::TimeSlice, true, true);
            options.allowances = Allowances::default();
        }
        let mut world = World::new(&[40, 40, 80], options);
        for op in &ops {
            world.step(op).unwrap();
            let leaves = world
                .state
                .jobs()
                .values()
                .find(|job| sets_aside && job.suspension().is_some_and(|s| s.cause.is_some()));
            if let Some(id) = leaves.map(|job| job.spec.id.0) {
                world.step(&Op::Suspended(Pick::Number(id), true)).unwrap();
            }
            let state = &world.state;
            met.extend(plan(state, world.clock).waiting.iter().map(|(_, r)| r.code()));
            for job in state.jobs().values() {
                met.extend(job.past.last().map(|a| a.verdict.code()));
                met.extend(job.placement().map(|p| p.reason.code()));
                met.extend(State::reason_of_suspension(job).map(|reason| reason.code()));
            }
        }
        met.extend(world.ends);
    }
    for code in [
        "PlacedIdle",
        "PlacedShared",
        "GpuMemory",
        "MetricMissing",
        "GpuBusy",
        "StartingNeighbour",
        "GpuUnavailable",
        "GpuDrained",
        "MpsCooldown",
        "Resources",
        "Priority",
        "LaunchPause",
        "UserLimit",
        "JudgingFault",
        "Completed",
        "NonZeroExit",
        "NotStarted",
        "NotLaunched",
        "LaunchFailed",
        "ExitUnknown",
        "Cancelled",
        "Requeued",
        "TimeLimit",
        "MaxSlowdown",
        "Evicted",
        "GrowthGuard",
        "Suspended",
        "SetAside",
        "MadeRoom",
        "NotResumed",
        "Stuck",
        "OutOfMemoryRetry",
        "OutOfMemory",
        "HostOutOfMemory",
        "HostMemoryLimit",
        "MpsFaultVictim",
        "MpsFaultSuspect",
        "MpsFault",
        "GpuLost",
    ] {
        assert!(met.contains(code), "never met {code}; met {met:?}");
    }
}
