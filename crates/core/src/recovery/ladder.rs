//! The retry ladder: what the next attempt of a job gets, whether it is charged, and when there is none.
//!
//! One pure function, [`next_attempt`]. It is told whose fault the failure was ([`super::blame()`]) and changes nothing.

use super::blame::{Blame, OomFacts};
use crate::policy::{Options, RecoveryMethod, unknown_need};
use crate::units::{MiB, Millis};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Steps of the retry ladder never rise by more than this.
const MAX_STEP: MiB = MiB(8192);
/// The last of them, percent of a GPU: what follows is a GPU alone.
const LAST_STEP: u64 = 75;
/// What an attempt loses that had its GPUs for so long is too much for another guess.
const MUCH: Millis = Millis::secs(300);

/// What the next attempt needs after an out-of-memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Floor {
    /// This much memory on each GPU.
    Memory(MiB),
    /// A GPU alone, without a cap.
    ExclusiveGpu,
}

impl fmt::Display for Floor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(m) => write!(f, "at least {m}"),
            Self::ExclusiveGpu => f.write_str("a GPU of its own"),
        }
    }
}

/// A job that ran out of GPU memory: what it has behind it, what it may have, and which GPUs there are for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tried {
    /// What the attempt that failed was to get at least.
    pub floor: Option<Floor>,
    /// Retries charged to it before.
    pub charged: u32,
    /// Times it was put back without charge before.
    pub free: u32,
    /// How long the attempt had its GPUs.
    pub ran: Millis,
    /// How many may be charged.
    pub max_charged: u32,
    /// Memory that a GPU must have in all to be worth another attempt, by all that is known of the job.
    pub least: MiB,
    /// The most memory that each of as many GPUs as it asks for has. `None`: there are too few.
    pub most: Option<MiB>,
}

impl Tried {
    /// Whether there are GPUs enough for it of at least this size.
    fn fits(&self, least: MiB) -> bool {
        self.most >= Some(least)
    }
}

/// What comes after an out-of-memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Another attempt.
    Retry {
        /// What it gets; `None`: what any job gets of which no more is known.
        floor: Option<Floor>,
        /// Whether it is charged to the job.
        charged: bool,
    },
    /// No other attempt.
    GiveUp(GiveUp),
}

/// Why there is no other attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GiveUp {
    /// All retries that it may have are charged: so many.
    RetriesUsed(u32),
    /// It needs a larger GPU than there is.
    NoLargerGpu,
    /// A GPU alone is the last step, and it was taken.
    HadOwnGpu,
}

impl fmt::Display for GiveUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RetriesUsed(0) => "retries are off for it",
            Self::RetriesUsed(1) => "its only retry is used",
            Self::RetriesUsed(n) => return write!(f, "all {n} retries are used"),
            Self::NoLargerGpu => "there is no larger GPU to try",
            Self::HadOwnGpu => "it had a GPU of its own already",
        })
    }
}

/// What a job gets after an out-of-memory.
///
/// A retry is charged unless a neighbour was to blame. Then one without a forecast comes back as it came, since what it held when others
/// took the memory says little of what it takes; but if carma had lent these what it lacked, that is kept for it ([`kept`]). Else the floor rises: to what was seen to be needed, then step by step
/// (a ladder by the size of the GPU), then to a GPU alone. A GPU alone comes at once where the method says so, where the job was harmed too
/// often, with the last of several retries, where the attempt ran for long (under `adaptive`), and where no GPU has the memory of the next step. A job that was alone on a
/// GPU and filled it gets a larger one, also with its last retry used: that is progress, and ends with the largest GPU. Beyond its last retry it has that
/// GPU alone, and before that, where nothing was forecast, no less than a job of which nothing is known.
pub(crate) fn next_attempt(facts: &OomFacts, blame: &Blame, tried: &Tried, rules: &Options) -> Next {
    let filled_gpu = matches!(blame, Blame::WholeGpu { .. });
    let charged = blame.is_own_fault();
    if charged && tried.charged >= tried.max_charged && !(filled_gpu && tried.max_charged > 0) {
        return Next::GiveUp(GiveUp::RetriesUsed(tried.max_charged));
    }
    let larger = facts.capacity + MiB(1);
    let least = if filled_gpu { tried.least.max(larger) } else { tried.least };
    // It may not ask for more than there are GPUs for: it would wait for ever.
    if !tried.fits(least) {
        return Next::GiveUp(GiveUp::NoLargerGpu);
    }
    if !charged && facts.forecast.is_none() && tried.floor.is_none() && !goes_alone(tried, rules) {
        let kept = kept(facts, blame).map(|kept| match tried.fits(kept.max(least)) {
            true => Floor::Memory(kept),
            false => Floor::ExclusiveGpu,
        });
        return Next::Retry { floor: kept, charged };
    }
    // A hard limit of hardly more than what it filled would stop it again.
    let half_more = Some(facts.capacity.percent(150)).filter(|more| rules.policy.blind && tried.fits(*more));
    let unknown = tried.most.filter(|_| rules.policy.blind && facts.forecast.is_none()).map(unknown_need);
    let floor = if filled_gpu {
        Some(Floor::Memory(half_more.unwrap_or(larger).max(unknown.unwrap_or_default())))
    } else {
        step(facts, blame, tried, rules)
    };
    // The last of several retries is no place for another guess, nor is one beyond the last or a run that would lose as much once more. What
    // exceeded a forecast for the first time is close to it.
    let is_beyond = tried.charged >= tried.max_charged;
    let last = is_beyond || (tried.max_charged > 1 && tried.charged + 1 >= tried.max_charged);
    let is_close = tried.charged == 0 && facts.forecast.is_some();
    let lost_much = rules.policy.blind && tried.ran >= MUCH && !is_close && !filled_gpu;
    let guesses = !(charged && (last || lost_much));
    match floor {
        None => Next::GiveUp(GiveUp::HadOwnGpu),
        Some(Floor::Memory(guess)) if guesses && tried.fits(guess.max(least)) => {
            Next::Retry { floor: Some(Floor::Memory(guess)), charged }
        }
        Some(_) => Next::Retry { floor: Some(Floor::ExclusiveGpu), charged },
    }
}

/// What a job gets that was put back for its neighbours' sake: what it had, and a GPU alone if it happens again and
/// again. It is charged nothing.
pub(crate) fn after_neighbours(floor: Option<Floor>, free: u32, rules: &Options) -> Option<Floor> {
    if is_harmed_often(free, rules) { Some(Floor::ExclusiveGpu) } else { floor }
}

/// What a job gets that was put back since its memory grew on a GPU that was about to run full: what it was seen to hold
/// and as much again as a job takes that grows, or a GPU alone where none has that, or if it happens again and again. One
/// that was far from what it was `given` gets that once more: others took the memory. It is charged nothing.
pub(crate) fn after_growth(
    peak: Option<MiB>,
    given: Option<MiB>,
    tried: &Tried,
    rules: &Options,
) -> Option<Floor> {
    if goes_alone(tried, rules) {
        return Some(Floor::ExclusiveGpu);
    }
    let Some(wants) = peak.map(|peak| peak + rules.growing_margin(peak)) else { return tried.floor };
    if given.is_some_and(|given| wants <= given) {
        return tried.floor;
    }
    let floor = tried.floor.max(Some(Floor::Memory(wants)));
    if tried.fits(wants.max(tried.least)) { floor } else { Some(Floor::ExclusiveGpu) }
}

/// Whether a job was put back without charge as often as it may be.
const fn is_harmed_often(free: u32, rules: &Options) -> bool {
    free >= rules.max_free_retries
}

/// Whether a job that others harmed gets a GPU alone, whatever it takes.
fn goes_alone(tried: &Tried, rules: &Options) -> bool {
    rules.recovery == RecoveryMethod::Exclusive || is_harmed_often(tried.free, rules)
}

/// The next step, whatever GPUs there are and however many retries are left. `None`: there is none after a GPU alone.
fn step(facts: &OomFacts, blame: &Blame, tried: &Tried, rules: &Options) -> Option<Floor> {
    let own = blame.is_own_fault();
    let harmed_often = is_harmed_often(tried.free, rules);
    if tried.floor == Some(Floor::ExclusiveGpu) {
        // Nothing more to give. Only a foreign process can have filled it; bounded all the same.
        return (!own && !harmed_often).then_some(Floor::ExclusiveGpu);
    }
    if rules.recovery == RecoveryMethod::Exclusive || (!own && harmed_often) {
        return Some(Floor::ExclusiveGpu);
    }
    if !own {
        let seen = facts.reached().max(facts.forecast).unwrap_or_default();
        return Some(Floor::Memory(seen.min(facts.capacity)));
    }
    if tried.charged == 0 {
        return first_floor(facts, blame, rules);
    }
    let too_little = tried.floor.max(given(facts, blame).max(facts.reached()).map(Floor::Memory));
    let next = next_floor(too_little, facts.capacity);
    match too_little {
        // On a large GPU a job that grows would climb many steps of 8 GiB.
        Some(Floor::Memory(memory)) if rules.policy.blind => {
            let half_more = memory.percent(150);
            let is_step = half_more <= facts.capacity.percent(LAST_STEP);
            next.max(Some(if is_step { Floor::Memory(half_more) } else { Floor::ExclusiveGpu }))
        }
        _ => next,
    }
}

/// Steps of the graded retry on a GPU of this capacity: 25, 50 and 75 %, with steps between so that
/// none rises by more than 8 GiB. On 40,960 MiB: 10,240, 18,432, 20,480, 28,672, 30,720 (AEGIS).
fn ladder(capacity: MiB) -> Vec<MiB> {
    let mut steps: Vec<MiB> = Vec::new();
    for percent in [25, 50, LAST_STEP] {
        let anchor = capacity.percent(percent);
        while let Some(&last) = steps.last() {
            if anchor - last <= MAX_STEP {
                break;
            }
            steps.push(last + MAX_STEP);
        }
        steps.push(anchor);
    }
    steps.dedup();
    steps
}

/// The first step above `needed`, else a GPU alone. `None` when a GPU alone was tried already.
fn next_floor(needed: Option<Floor>, capacity: MiB) -> Option<Floor> {
    let needed = match needed {
        Some(Floor::ExclusiveGpu) => return None,
        Some(Floor::Memory(m)) => m,
        None => MiB::ZERO,
    };
    Some(ladder(capacity).into_iter().find(|step| *step > needed).map_or(Floor::ExclusiveGpu, Floor::Memory))
}

/// Floor of the first retry: what the job was seen to want plus a margin, if that is more than it was
/// given; otherwise the next step of the ladder. Where its cap was no forecast's, what it wanted when it met the cap says
/// little of what it takes in all: the margin is that of a job that grows, and it gets no less than a job of which nothing
/// is known, since others of its kind were no measure for it.
fn first_floor(facts: &OomFacts, blame: &Blame, rules: &Options) -> Option<Floor> {
    let given = given(facts, blame).unwrap_or_default();
    if let Some(reached) = facts.reached() {
        let was_guess = facts.forecast.is_none() && matches!(blame, Blame::OwnCap { .. });
        let (margin, least) = if was_guess {
            (rules.growing_margin(reached), unknown_need(facts.capacity))
        } else {
            (rules.margin(reached), MiB::ZERO)
        };
        let seen = reached + margin;
        let floor = if seen > given && seen < facts.capacity.percent(LAST_STEP) {
            Some(Floor::Memory(seen))
        } else {
            next_floor(Some(Floor::Memory(given.max(reached))), facts.capacity)
        };
        return floor.max(Some(Floor::Memory(least)));
    }
    next_floor(Some(Floor::Memory(given)), facts.capacity)
}

/// What a job of which nothing is known keeps after it was denied what it was given and had not taken when its memory settled: had that
/// not been lent to others, it would not have failed, and it fails again where it is. Where a process that is not carma's filled the GPU it would
/// have lacked that in any case.
pub(crate) fn kept(facts: &OomFacts, blame: &Blame) -> Option<MiB> {
    let is_ours = matches!(blame, Blame::Neighbour { pid: None, .. });
    let lent = facts.lent.filter(|_| is_ours && facts.forecast.is_none())?;
    Some(lent.max(facts.reached().unwrap_or_default()).min(facts.capacity))
}

/// Memory that is not enough: what it had been given and, where it was not seen to exceed that, what its failure proves
/// to be too little.
fn given(facts: &OomFacts, blame: &Blame) -> Option<MiB> {
    let given = facts.forecast.max(facts.cap);
    let proven = match blame {
        Blame::OwnCap { .. } | Blame::OwnForecast { .. } if facts.reached() <= given => facts.proven(),
        _ => None,
    };
    given.max(proven)
}

#[cfg(test)]
mod tests {
    use super::super::around::Span;
    use super::super::blame;
    use super::*;
    use crate::policy::presets;
    use crate::spec::JobId;

    const CAPACITY: MiB = MiB(40_960);
    const ALONE: Floor = Floor::ExclusiveGpu;

    const fn memory(mib: u64) -> Floor {
        Floor::Memory(MiB(mib))
    }

    const fn retry(floor: Floor, charged: bool) -> Next {
        Next::Retry { floor: Some(floor), charged }
    }

    /// 9,000 MiB held and 2,000 wanted of 10,240 that were expected, beside others: its own fault.
    fn facts() -> OomFacts {
        OomFacts {
            peak: Some(MiB(9_000)),
            held: Some(MiB(9_000)),
            wanted: Some(MiB(2_000)),
            forecast: Some(MiB(10_240)),
            capacity: CAPACITY,
            shared: true,
            others: Some(Span { least: MiB(12_000), most: MiB(13_000) }),
            ..OomFacts::default()
        }
    }

    /// Nothing of it was seen, and the others were not looked at.
    fn blind() -> OomFacts {
        OomFacts { peak: None, held: None, wanted: None, others: None, ..facts() }
    }

    /// Nothing was forecast, and 10,240 MiB were its part.
    fn guessed() -> OomFacts {
        OomFacts { forecast: None, cap: Some(MiB(10_240)), ..facts() }
    }

    /// Nothing was forecast, and of 24,000 MiB that were its part others were lent what it had not taken.
    fn lent() -> OomFacts {
        OomFacts { forecast: None, cap: Some(MiB(24_000)), lent: Some(MiB(24_000)), ..facts() }
    }

    const OWN_CAP: Blame = Blame::OwnCap { cap: MiB(10_240) };
    const OWN: Blame = Blame::OwnForecast { wanted: MiB(11_000), forecast: MiB(10_240) };
    const FILLED: Blame = Blame::WholeGpu { capacity: CAPACITY };
    const VICTIM: Blame = Blame::Neighbour { job: Some(JobId(3)), pid: None, user: None };

    /// The first failure of a job for one GPU, on a machine with two of these.
    fn tried() -> Tried {
        Tried {
            floor: None,
            ran: Millis::ZERO,
            charged: 0,
            free: 0,
            max_charged: 5,
            least: MiB(9_000),
            most: Some(CAPACITY),
        }
    }

    #[test]
    fn every_step_of_the_ladder() {
        let graded = Options::default();
        let exclusive = Options { recovery: RecoveryMethod::Exclusive, ..Options::default() };
        let aegis = Options { policy: presets::by_name("aegis").unwrap(), ..Options::default() };
        let at = |charged, floor| Tried { charged, floor: Some(floor), ..tried() };
        let harmed = |free, floor| Tried { free, floor, ..tried() };
        let large = || Tried { most: Some(MiB::gib(80)), ..tried() };
        let small = |least| Tried { least, most: Some(MiB(16_384)), ..tried() };
        let give_up = Next::GiveUp;
        let table = [
            // The first retry gets what was seen to be wanted, plus 10 %.
            ("seen", facts(), OWN, tried(), &graded, retry(memory(12_100), true)),
            ("not seen", blind(), OWN, tried(), &graded, retry(memory(18_432), true)),
            // 40 % where the cap that it met was no forecast's, but its part of what was free, and what an unknown job gets at least.
            ("a guess", guessed(), OWN_CAP, tried(), &graded, retry(memory(32_768), true)),
            (
                "a guess on a large GPU",
                OomFacts {
                    capacity: MiB::gib(80),
                    peak: Some(MiB(24_000)),
                    cap: Some(MiB(25_000)),
                    ..guessed()
                },
                OWN_CAP,
                Tried { most: Some(MiB::gib(80)), ..tried() },
                &graded,
                retry(memory(33_600), true),
            ),
            (
                "a forecast's cap",
                OomFacts { forecast: Some(MiB(10_240)), ..guessed() },
                OWN_CAP,
                tried(),
                &graded,
                retry(memory(12_100), true),
            ),
            // The others climb from what they were given.
            ("second", facts(), OWN, at(1, memory(12_100)), &graded, retry(memory(18_432), true)),
            // Each step is half more at least.
            ("third", facts(), OWN, at(2, memory(18_432)), &graded, retry(memory(27_648), true)),
            ("third, as published", facts(), OWN, at(2, memory(18_432)), &aegis, retry(memory(20_480), true)),
            (
                "second on a large GPU",
                OomFacts { capacity: MiB::gib(141), ..facts() },
                OWN,
                Tried { most: Some(MiB::gib(141)), ..at(1, memory(46_000)) },
                &graded,
                retry(memory(69_000), true),
            ),
            (
                "third on a large GPU",
                OomFacts { capacity: MiB::gib(141), ..facts() },
                OWN,
                Tried { most: Some(MiB::gib(141)), ..at(2, memory(72_500)) },
                &graded,
                retry(ALONE, true),
            ),
            ("above the top", facts(), OWN, at(2, memory(30_720)), &graded, retry(ALONE, true)),
            // A GPU alone: by method, with the last of several retries, where no GPU has that much.
            ("by method", facts(), OWN, tried(), &exclusive, retry(ALONE, true)),
            ("the last", facts(), OWN, at(4, memory(28_672)), &graded, retry(ALONE, true)),
            (
                "after five minutes",
                facts(),
                OWN,
                Tried { ran: MUCH, ..at(1, memory(12_100)) },
                &graded,
                retry(ALONE, true),
            ),
            (
                "a guess after five minutes",
                guessed(),
                OWN_CAP,
                Tried { ran: MUCH, ..tried() },
                &graded,
                retry(ALONE, true),
            ),
            (
                "a forecast after five minutes",
                facts(),
                OWN,
                Tried { ran: MUCH, ..tried() },
                &graded,
                retry(memory(12_100), true),
            ),
            (
                "after five minutes, as published",
                facts(),
                OWN,
                Tried { ran: MUCH, ..at(1, memory(12_100)) },
                &aegis,
                retry(memory(18_432), true),
            ),
            (
                "a victim after five minutes",
                facts(),
                VICTIM,
                Tried { ran: MUCH, ..tried() },
                &graded,
                retry(memory(11_000), false),
            ),
            (
                "filled after five minutes",
                facts(),
                FILLED,
                Tried { ran: MUCH, ..large() },
                &graded,
                retry(memory(61_440), true),
            ),
            (
                "an only one",
                facts(),
                OWN,
                Tried { max_charged: 1, ..tried() },
                &graded,
                retry(memory(12_100), true),
            ),
            ("too few so large", blind(), OWN, small(MiB(9_000)), &graded, retry(ALONE, true)),
            ("after a GPU alone", facts(), OWN, at(1, ALONE), &graded, give_up(GiveUp::HadOwnGpu)),
            // No retry left.
            ("used", facts(), OWN, at(5, memory(30_720)), &graded, give_up(GiveUp::RetriesUsed(5))),
            (
                "off",
                facts(),
                OWN,
                Tried { max_charged: 0, ..tried() },
                &graded,
                give_up(GiveUp::RetriesUsed(0)),
            ),
            ("too large", facts(), OWN, small(MiB(20_000)), &graded, give_up(GiveUp::NoLargerGpu)),
            (
                "too many",
                facts(),
                OWN,
                Tried { most: None, ..tried() },
                &graded,
                give_up(GiveUp::NoLargerGpu),
            ),
            // A GPU that it had alone and filled: only a larger one does, also after the last retry; half more of it, where there is one.
            ("filled", facts(), FILLED, large(), &graded, retry(memory(61_440), true)),
            (
                "filled, hardly a larger one",
                facts(),
                FILLED,
                Tried { most: Some(MiB::gib(48)), ..tried() },
                &graded,
                retry(memory(40_961), true),
            ),
            ("filled, as published", facts(), FILLED, large(), &aegis, retry(memory(40_961), true)),
            ("filled, by method", facts(), FILLED, large(), &exclusive, retry(memory(61_440), true)),
            (
                "filled, the last",
                facts(),
                FILLED,
                Tried { charged: 4, ..large() },
                &graded,
                retry(ALONE, true),
            ),
            ("filled, used", facts(), FILLED, Tried { charged: 5, ..large() }, &graded, retry(ALONE, true)),
            (
                "filled, its only one used",
                facts(),
                FILLED,
                Tried { charged: 1, max_charged: 1, ..large() },
                &graded,
                retry(ALONE, true),
            ),
            // No less than an unknown job gets on the larger GPU.
            (
                "filled, nothing forecast",
                OomFacts { forecast: None, capacity: MiB::gib(16), ..facts() },
                Blame::WholeGpu { capacity: MiB::gib(16) },
                Tried { most: Some(MiB::gib(144)), ..tried() },
                &graded,
                retry(memory(36_864), true),
            ),
            (
                "filled, alone before",
                facts(),
                FILLED,
                Tried { charged: 1, floor: Some(ALONE), ..large() },
                &graded,
                retry(memory(61_440), true),
            ),
            ("filled the largest", facts(), FILLED, tried(), &graded, give_up(GiveUp::NoLargerGpu)),
            (
                "filled, off",
                facts(),
                FILLED,
                Tried { max_charged: 0, ..large() },
                &graded,
                give_up(GiveUp::RetriesUsed(0)),
            ),
            // A victim is not charged, however many retries it has used, and gets what it was to have.
            ("victim", facts(), VICTIM, tried(), &graded, retry(memory(11_000), false)),
            ("victim, used", facts(), VICTIM, at(5, memory(12_100)), &graded, retry(memory(11_000), false)),
            ("victim, not seen", blind(), VICTIM, tried(), &graded, retry(memory(10_240), false)),
            ("victim again", facts(), VICTIM, harmed(2, None), &graded, retry(memory(11_000), false)),
            // As it came, where nothing was forecast: what it held says little.
            (
                "victim, unknown",
                guessed(),
                VICTIM,
                tried(),
                &graded,
                Next::Retry { floor: None, charged: false },
            ),
            (
                "victim, unknown, floor",
                guessed(),
                VICTIM,
                at(1, memory(32_768)),
                &graded,
                retry(memory(11_000), false),
            ),
            // What it was given was lent to others: it is kept for it now.
            ("victim, lent", lent(), VICTIM, tried(), &graded, retry(memory(24_000), false)),
            (
                "victim, lent, after five minutes",
                lent(),
                VICTIM,
                Tried { ran: MUCH, ..tried() },
                &graded,
                retry(memory(24_000), false),
            ),
            (
                "victim, lent, too few so large",
                lent(),
                VICTIM,
                small(MiB(9_000)),
                &graded,
                retry(ALONE, false),
            ),
            (
                "victim of another's process, lent",
                lent(),
                Blame::Neighbour { job: None, pid: Some(4711), user: None },
                tried(),
                &graded,
                Next::Retry { floor: None, charged: false },
            ),
            ("victim, lent, too often", lent(), VICTIM, harmed(3, None), &graded, retry(ALONE, false)),
            ("victim, unknown, by method", guessed(), VICTIM, tried(), &exclusive, retry(ALONE, false)),
            ("victim, unknown, too often", guessed(), VICTIM, harmed(3, None), &graded, retry(ALONE, false)),
            ("victim too often", facts(), VICTIM, harmed(3, None), &graded, retry(ALONE, false)),
            ("victim alone", facts(), VICTIM, harmed(2, Some(ALONE)), &graded, retry(ALONE, false)),
            (
                "victim alone too often",
                facts(),
                VICTIM,
                harmed(3, Some(ALONE)),
                &graded,
                give_up(GiveUp::HadOwnGpu),
            ),
            // A job that cannot be judged is charged.
            (
                "contention",
                facts(),
                Blame::Contention { peak: None },
                tried(),
                &graded,
                retry(memory(12_100), true),
            ),
        ];
        for (name, facts, blame, tried, rules, expected) in table {
            assert_eq!(next_attempt(&facts, &blame, &tried, rules), expected, "{name}");
        }
    }

    #[test]
    fn who_is_put_back_for_its_neighbours_keeps_its_floor_until_it_was_too_often() {
        let rules = Options::default();
        assert_eq!(after_neighbours(None, 2, &rules), None);
        assert_eq!(after_neighbours(Some(memory(5)), 2, &rules), Some(memory(5)));
        assert_eq!(after_neighbours(Some(memory(5)), 3, &rules), Some(ALONE));
    }

    #[test]
    fn who_grew_gets_what_it_held_and_two_fifths_or_a_gpu_alone() {
        let rules = Options::default();
        let after = |peak: u64, given: Option<u64>, tried: &Tried| {
            after_growth(Some(MiB(peak)), given.map(MiB), tried, &rules)
        };
        assert_eq!(after(20_000, None, &tried()), Some(memory(28_000)));
        // More than any GPU has, and once too often.
        assert_eq!(after(30_000, None, &tried()), Some(ALONE));
        assert_eq!(after(20_000, None, &Tried { free: 3, ..tried() }), Some(ALONE));
        // Far from what it was given: others took the memory.
        assert_eq!(after(20_000, Some(28_000), &tried()), None);
        assert_eq!(after(20_000, Some(27_999), &tried()), Some(memory(28_000)));
        // A floor never falls.
        let higher = Tried { floor: Some(memory(30_000)), ..tried() };
        assert_eq!(after(20_000, None, &higher), Some(memory(30_000)));
        assert_eq!(after(20_000, Some(30_000), &higher), Some(memory(30_000)));
        assert_eq!(after_growth(None, None, &higher, &rules), Some(memory(30_000)));
        let exclusive = Options { recovery: RecoveryMethod::Exclusive, ..rules };
        assert_eq!(after_growth(Some(MiB(1)), None, &tried(), &exclusive), Some(ALONE));
    }

    #[test]
    fn the_ladder_is_the_published_one() {
        let steps = [10_240, 18_432, 20_480, 28_672, 30_720].map(MiB).to_vec();
        assert_eq!(ladder(MiB(40_960)), steps);
        for pair in ladder(MiB(143_771)).windows(2) {
            assert!(pair[1] - pair[0] <= MAX_STEP && pair[1] > pair[0]);
        }
    }

    #[test]
    fn floors_rise_to_a_gpu_alone_and_stop() {
        let mut floor = None;
        let mut seen = Vec::new();
        while let Some(next) = next_floor(floor, MiB(40_960)) {
            seen.push(next);
            floor = Some(next);
        }
        assert_eq!(seen.len(), 6);
        assert_eq!(seen.last(), Some(&ALONE));
    }

    #[test]
    fn the_first_retry_gets_what_was_seen() {
        let first = |facts: &OomFacts| first_floor(facts, &blame(facts), &Options::default());
        assert_eq!(first(&facts()), Some(memory(12_100)));
        // Nothing seen: the ladder above what it was given, and above what others left it without avail.
        assert_eq!(first(&blind()), Some(memory(18_432)));
        let roomy = OomFacts { others: Some(Span { least: MiB(21_000), most: MiB(21_000) }), ..blind() };
        assert_eq!(first(&roomy), Some(memory(20_480)));
        let capped = OomFacts { cap: Some(MiB(10_240)), ..roomy };
        assert_eq!(first(&capped), Some(memory(18_432)));
    }
}
