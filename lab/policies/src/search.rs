//! A search for good schedules by a clairvoyant list scheduler: many rules and orders at first, then the best of them changed
//! step by step.
//!
//! It is a heuristic: what it finds can be reached, by somebody who knows everything and never takes a job off a GPU; that
//! nothing better exists is not said. Every evaluation is a run of the event engine.
//!
//! The same seed finds the same, whatever the number of threads: the chains do not know of each other.

use crate::figures::late;
use crate::threads::on_threads;
use carma_sim::event::clairvoyant::{Known, Placement, Rates, Rules, play};
use carma_sim::event::outcome::{RunResult, Summary};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use std::sync::Arc;

/// What is to be small.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Objective {
    /// From the first arrival to the last end.
    Makespan,
    /// Mean time from arrival to end.
    Jct,
    /// So much of the makespan and the rest of mean JCT, each over exclusive's.
    Mixed(f64),
    /// Energy of all GPUs from the first arrival to the last end.
    Energy,
    /// [`Self::Makespan`], where no job starts later than on exclusive GPUs by more than [`LATEST`].
    MakespanOnTime,
    /// [`Self::Jct`], where no job starts later than on exclusive GPUs by more than [`LATEST`].
    JctOnTime,
}

/// The most by which a job may start later than on exclusive GPUs where starts are kept, over exclusive's makespan.
pub const LATEST: f64 = 0.1;

impl Objective {
    /// Those that are searched for.
    pub const ALL: [Self; 6] =
        [Self::Makespan, Self::Jct, Self::Mixed(0.5), Self::Energy, Self::MakespanOnTime, Self::JctOnTime];

    /// Its name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Makespan => "makespan",
            Self::Jct => "JCT",
            Self::Mixed(_) => "makespan + JCT",
            Self::Energy => "energy",
            Self::MakespanOnTime => "makespan, on time",
            Self::JctOnTime => "JCT, on time",
        }
    }

    /// The number that is to be small. What does not complete counts for more than anything else.
    #[must_use]
    pub fn of(self, run: &RunResult, exclusive: &RunResult) -> f64 {
        self.value(&run.summary, late(run, exclusive), &exclusive.summary)
    }

    fn value(self, run: &Summary, late: f64, exclusive: &Summary) -> f64 {
        let makespan = ratio(run.makespan_s, exclusive.makespan_s);
        let jct = ratio(run.jct_s.mean, exclusive.jct_s.mean);
        let value = match self {
            Self::Makespan | Self::MakespanOnTime => makespan + 1e-3 * jct,
            Self::Jct | Self::JctOnTime => jct,
            Self::Mixed(part) => part * makespan + (1.0 - part) * jct,
            Self::Energy => ratio(run.energy_j, exclusive.energy_j) + 1e-4 * jct,
        };
        let is_kept = !matches!(self, Self::MakespanOnTime | Self::JctOnTime) || late <= LATEST;
        // What is too late is worse than anything else, and the worse the later.
        let value = value + if is_kept { 0.0 } else { 1e2 * (1.0 + late) };
        value + 1e4 * exclusive.completed.saturating_sub(run.completed) as f64
    }
}

fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 1.0 }
}

/// How much is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Runs of the engine, for each objective.
    pub evaluations: u64,
    /// Of what is drawn.
    pub seed: u64,
    /// Threads that run.
    pub threads: usize,
}

/// A list and the rules that it is played by.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Jobs by their place in the workload.
    pub order: Vec<u32>,
    /// The rules.
    pub rules: Rules,
}

/// The best that was found for one objective.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// What was to be small.
    pub objective: Objective,
    /// How it is done.
    pub plan: Plan,
    /// What comes of it.
    pub run: RunResult,
}

/// Chains of small changes for each objective.
const CHAINS: usize = 8;
/// Of the evaluations, one in so many goes into first tries.
const FIRST: u64 = 5;
/// Change that is accepted with probability 1/e, as a share of the value, at first and at last.
const TEMPERATURE: (f64, f64) = (4e-3, 1e-4);

/// Searches for each of the objectives. `values`: what a unit of progress of each class is worth, for rules that go by it.
#[must_use]
pub fn search(
    known: &Known,
    exclusive: &RunResult,
    objectives: &[Objective],
    values: Option<&Arc<[f64]>>,
    budget: &Budget,
) -> Vec<Found> {
    let first = (budget.evaluations / FIRST).max(1);
    let tries =
        (0..CHAINS as u64).map(|chain| first / CHAINS as u64 + u64::from(chain < first % CHAINS as u64));
    let tries: Vec<u64> = tries.collect();
    let drawn: Vec<Vec<Scored>> = on_threads(budget.threads, CHAINS, Rates::default, |chain, rates| {
        let mut random = Random::new(budget.seed, chain as u64);
        let one = |at: u64| {
            // The first of all are the rules as they come, in the order of run time.
            let plan = if at == 0 && chain == 0 { usual(known) } else { draw(known, values, &mut random) };
            let run = play(known, rates, &plan.order, &plan.rules);
            Scored { plan, late: late(&run, exclusive), summary: run.summary }
        };
        (0..tries[chain]).map(one).collect()
    });
    let drawn: Vec<Scored> = drawn.into_iter().flatten().collect();
    let left = budget.evaluations.saturating_sub(first);
    let chains: Vec<(usize, usize)> = (0..objectives.len())
        .flat_map(|objective| (0..CHAINS).map(move |chain| (objective, chain)))
        .collect();
    let ends = on_threads(budget.threads, chains.len(), Rates::default, |at, rates| {
        let (which, chain) = chains[at];
        let objective = objectives[which];
        let mut ranked: Vec<(f64, usize)> = (0..)
            .zip(&drawn)
            .map(|(at, it): (usize, _)| (objective.value(&it.summary, it.late, &exclusive.summary), at))
            .collect();
        ranked.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let begin = &drawn[ranked[chain.min(ranked.len() - 1)].1].plan;
        let mut random = Random::new(budget.seed, (CHAINS + at) as u64);
        let steps = left / CHAINS as u64;
        anneal(known, exclusive, objective, values, begin.clone(), steps, rates, &mut random)
    });
    let mut rates = Rates::default();
    let best = (0..).zip(objectives).filter_map(|(which, objective): (usize, _)| {
        let mine = chains.iter().zip(&ends).filter(|((of, _), _)| *of == which).map(|(_, end)| end);
        let (_, plan) = mine.reduce(|a, b| if b.0 < a.0 { b } else { a })?;
        let run = play(known, &mut rates, &plan.order, &plan.rules);
        Some(Found { objective: *objective, plan: plan.clone(), run })
    });
    best.collect()
}

struct Scored {
    plan: Plan,
    summary: Summary,
    /// See [`late`].
    late: f64,
}

/// A simulated annealing from one plan. Returns the best that it met.
#[expect(clippy::too_many_arguments, reason = "all of them are the search's own")]
fn anneal(
    known: &Known,
    exclusive: &RunResult,
    objective: Objective,
    values: Option<&Arc<[f64]>>,
    begin: Plan,
    steps: u64,
    rates: &mut Rates,
    random: &mut Random,
) -> (f64, Plan) {
    let mut value = |plan: &Plan| objective.of(&play(known, rates, &plan.order, &plan.rules), exclusive);
    let mut at = begin;
    let mut here = value(&at);
    let mut best = (here, at.clone());
    for step in 0..steps {
        let part = step as f64 / steps as f64;
        let temperature = TEMPERATURE.0 * (TEMPERATURE.1 / TEMPERATURE.0).powf(part);
        let mut next = at.clone();
        change(&mut next, values, random);
        let there = value(&next);
        if there <= here || random.unit() < ((here - there) / (temperature * here)).exp() {
            (at, here) = (next, there);
            if here < best.0 {
                best = (here, at.clone());
            }
        }
        // Three quarters on the way it goes on from the best.
        if step == steps / 4 * 3 {
            (here, at) = best.clone();
        }
    }
    best
}

/// One small change of an order, or now and then of the rules.
fn change(plan: &mut Plan, values: Option<&Arc<[f64]>>, random: &mut Random) {
    let jobs = plan.order.len() as u64;
    if jobs < 2 || random.unit() < 0.1 {
        return turn(&mut plan.rules, values, random);
    }
    for _ in 0..=random.below(2) {
        let from = random.below(jobs) as usize;
        // Half of the moves are short.
        let to = if random.unit() < 0.5 {
            let far = 1 + random.below(4) as usize;
            if random.unit() < 0.5 { from.saturating_sub(far) } else { (from + far).min(jobs as usize - 1) }
        } else {
            random.below(jobs) as usize
        };
        if random.unit() < 0.5 {
            plan.order.swap(from, to);
        } else {
            let job = plan.order.remove(from);
            plan.order.insert(to, job);
        }
    }
}

const FLOORS: [f64; 10] = [0.0, 0.2, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8];
const GAINS: [f64; 8] = [-0.2, 0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.45];
const MOST: [usize; 6] = [2, 3, 4, 5, 6, 8];
const PASSED: [usize; 6] = [0, 1, 2, 4, 8, usize::MAX];

fn turn(rules: &mut Rules, values: Option<&Arc<[f64]>>, random: &mut Random) {
    match random.below(6) {
        0 => rules.floor = (rules.floor + 0.1 * (random.unit() - 0.5)).clamp(0.0, 1.0),
        1 => rules.gain = (rules.gain + 0.1 * (random.unit() - 0.5)).clamp(-1.0, 1.0),
        2 => rules.most = *random.of(&MOST),
        3 => rules.placement = *random.of(&Placement::ALL),
        4 => rules.passed = *random.of(&PASSED),
        _ => rules.values = if rules.values.is_some() { None } else { values.cloned() },
    }
}

/// Orders to begin with: what jobs are sorted by, ascending.
type Key = fn(&Known, usize) -> f64;

const KEYS: [Key; 8] = [
    |known, job| known.jobs()[job].arrival.0 as f64,
    |known, job| known.jobs()[job].solo.0 as f64,
    |known, job| known.jobs()[job].solo.0 as f64 * f64::from(known.jobs()[job].gpus),
    |known, job| area(known, job),
    |known, job| -(known.jobs()[job].solo.0 as f64),
    |known, job| -area(known, job),
    |known, job| -(known.classes()[known.jobs()[job].class].need.0 as f64),
    |known, job| (known.jobs()[job].arrival.0 + 2 * known.jobs()[job].solo.0) as f64,
];

/// Time of SMs that a job takes.
fn area(known: &Known, job: usize) -> f64 {
    let it = known.jobs()[job];
    it.solo.0 as f64 * f64::from(it.gpus) * known.classes()[it.class].tenant.demand.sm
}

fn sorted(known: &Known, key: Key) -> Vec<u32> {
    let mut jobs: Vec<u32> = (0..known.jobs().len() as u32).collect();
    jobs.sort_by(|a, b| key(known, *a as usize).total_cmp(&key(known, *b as usize)).then(a.cmp(b)));
    jobs
}

fn usual(known: &Known) -> Plan {
    Plan { order: sorted(known, KEYS[1]), rules: Rules::default() }
}

fn draw(known: &Known, values: Option<&Arc<[f64]>>, random: &mut Random) -> Plan {
    let order = sorted(known, *random.of(&KEYS));
    let rules = Rules {
        floor: *random.of(&FLOORS),
        gain: *random.of(&GAINS),
        most: *random.of(&MOST),
        placement: *random.of(&Placement::ALL),
        passed: if random.unit() < 0.7 { usize::MAX } else { *random.of(&PASSED) },
        values: values.filter(|_| random.unit() < 0.5).cloned(),
    };
    Plan { order, rules }
}

/// Numbers from a seed, the same on every machine.
struct Random(Pcg64);

impl Random {
    fn new(seed: u64, stream: u64) -> Self {
        Self(Pcg64::seed_from_u64(seed ^ stream.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15)))
    }

    fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn below(&mut self, count: u64) -> u64 {
        (self.unit() * count as f64) as u64
    }

    fn of<'a, T>(&mut self, values: &'a [T]) -> &'a T {
        &values[self.below(values.len() as u64) as usize]
    }
}
