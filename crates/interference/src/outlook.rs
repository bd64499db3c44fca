//! Answers to the decision core: what a model says of a job that would join others on a GPU.
//!
//! The daemon and the simulator ask here alike; what they know of a job alone they find each in their own way.

use crate::assumed::{Going, Part, between, refined, typical, weighed};
use crate::group::{BadGroup, GpuType, Group, Member, Mode, TaskForecast};
use crate::kace::trained::Trained;
use crate::online::{Observed, SlowdownModel};
use crate::predict::policy::kace_row;
use crate::profile::{Metrics, Profile, Stat};
use carma_core::ledger::Gpu;
use carma_core::model::{Job, SharingMode};
use carma_core::policy::Order;
use carma_core::slowdown::{Class, Outlook, Pace, Question};
use carma_core::state::State;
use carma_core::units::{Fraction, Millis};

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

/// A job that begins alone loads, compiles and warms up: its first seconds on the GPU are not its profile.
pub const WARM_UP: Millis = Millis::secs(5);
/// Shortest time alone that is a profile.
pub const PROFILE: Millis = Millis::secs(10);
/// Neighbours that begin are given so long before anything is learned of a group.
pub const SETTLING: Millis = Millis::secs(2);
/// Window over which the activity of a GPU is averaged for [`assume`]. Where many short jobs share, the jobs on a GPU seldom
/// stay the same for much longer.
pub const ASSUME_WINDOW: Millis = Millis::secs(2);

/// What is known of commands alone. Jobs of one command do the same.
pub trait Alone {
    /// Whether it is known what a command does on GPUs of this product.
    fn knows(&self, command: u64, gpu: &str) -> bool;
    /// What it does. Its class says with which tasks it learns.
    fn profile(&self, command: u64, gpu: &str) -> Option<Profile>;
    /// What it is assumed to do where that is not known ([`crate::assumed`]). `None`: it was never seen at work.
    fn assumed(&self, _command: u64, _gpu: &str) -> Option<&Profile> {
        None
    }
}

/// How the predictor calls a way of sharing; a job without neighbours counts as time-sliced.
#[must_use]
pub const fn mode(sharing: SharingMode) -> Mode {
    match sharing {
        SharingMode::Mps => Mode::Mps,
        SharingMode::TimeSlice | SharingMode::Exclusive => Mode::TimeSlice,
    }
}

/// Profiles of classes on a GPU, with their limits on threads; `None`: one of them has none.
fn known(classes: &[Class], gpu: &str, alone: &impl Alone) -> Option<Vec<(Profile, Option<f64>)>> {
    let one = |class: &Class| Some((alone.profile(class.command, gpu)?, class.threads.map(f64::from)));
    classes.iter().map(one).collect()
}

/// The same, with what is assumed in place of what is not known.
fn assumed(classes: &[Class], gpu: &str, alone: &impl Alone) -> Vec<(Profile, Option<f64>)> {
    let profile = |class: &Class| {
        let known = alone.profile(class.command, gpu);
        known.or_else(|| alone.assumed(class.command, gpu).cloned()).unwrap_or_else(typical)
    };
    classes.iter().map(|class| (profile(class), class.threads.map(f64::from))).collect()
}

/// While the engine of a task is active so much of the SMs and of the DRAM is: less than by the medians of our catalogue of an H200
/// (.86 and .16, [`crate::assumed::typical`]), since tasks of CARMA's evaluation on an A100 are lighter.
const WHILE_BUSY: (f64, f64) = (2.0 / 3.0, 1.0 / 6.0);

/// The same where the profiles of some tell utilisation alone: their kernels are taken to fill as many SMs, and to use as much
/// DRAM, as those of most tasks that are as busy. `None`: none of them does, or it does not matter.
fn filled(known: &[(Profile, Option<f64>)], sharing: Mode) -> Option<Vec<(Profile, Option<f64>)>> {
    let lacks = |(profile, _): &(Profile, Option<f64>)| {
        let m = &profile.metrics;
        m.gract_pct.is_none() && m.smact_pct.is_none() && m.gpu_util_pct.is_some()
    };
    // Taking turns goes by time alone.
    if sharing != Mode::Mps || !known.iter().any(lacks) {
        return None;
    }
    let fill = |one: &(Profile, Option<f64>)| {
        let (mut profile, threads_pct) = one.clone();
        if lacks(one) {
            let m = &mut profile.metrics;
            let busy = |part: f64| Some(Stat::of(m.gpu_util_pct?.mean * part));
            (m.smact_pct, m.drama_pct) = (busy(WHILE_BUSY.0), busy(WHILE_BUSY.1));
        }
        (profile, threads_pct)
    };
    Some(known.iter().map(fill).collect())
}

/// With an assumption among them nothing is sure: the bound is no more than this share of what is expected.
const UNSURE: f64 = 0.5;

fn members(known: &[(Profile, Option<f64>)]) -> Vec<Member<'_>> {
    known.iter().map(|(profile, threads_pct)| Member { profile, threads_pct: *threads_pct }).collect()
}

/// The models that are asked.
#[derive(Debug, Clone, Copy)]
pub struct Models<'a> {
    /// Of each job's progress.
    pub slowdowns: &'a SlowdownModel,
    /// Of what a group gets done, for a policy that goes by that.
    pub kace: Option<&'a Trained>,
}

/// What is otherwise since answers were made.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct News {
    /// The model has learned: no answer holds.
    pub model: bool,
    /// Commands of which more is known now, or something else is assumed: no answer with one of them holds.
    pub commands: BTreeSet<u64>,
}

impl News {
    /// Whether nothing is otherwise.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.model && self.commands.is_empty()
    }

    /// And these.
    pub fn add(&mut self, news: Self) {
        self.model |= news.model;
        self.commands.extend(news.commands);
    }

    fn is_of(&self, class: &Class) -> bool {
        self.model || self.commands.contains(&class.command)
    }

    fn concerns(&self, told: &Outlook) -> bool {
        self.is_of(&told.newcomer) || told.there.classes.iter().any(|class| self.is_of(class))
    }
}

/// What was answered, to be forgotten when a model or a profile changes: jobs of few commands on GPUs of few types
/// make few groups, however many jobs wait.
#[derive(Debug, Default)]
pub struct Answered {
    /// By product name of the GPU; by way of sharing, whether KACE is asked, and number and limit of each member.
    /// Each with how often there had been news.
    groups: BTreeMap<String, BTreeMap<Kind, (u64, Foretold)>>,
    /// How often there was news.
    times: u64,
    /// When there was news of a command last, by that count.
    changed: BTreeMap<u64, u64>,
}

/// Groups that are kept. Users choose commands, and neighbours change: beyond these all are forgotten.
const MOST_GROUPS: usize = 100_000;

type Kind = (Mode, Asked, Vec<Class>);

/// What is asked of a group beside what is expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Asked {
    throughput: bool,
    bounds: bool,
}

/// What is predicted of a group.
#[derive(Debug)]
struct Foretold {
    /// Expected progress of each member, and its lower bound; `None`: more than the model takes together.
    tasks: Option<Vec<Pace>>,
    /// Sum of the expected progress.
    sum: Fraction,
    /// What they get done by KACE, where that was asked; else members of which too little is known.
    throughput: Option<Result<i64, Vec<usize>>>,
}

impl Answered {
    /// Forgets what does not hold any more.
    pub fn forget(&mut self, news: &News) {
        // Jobs without neighbours make news, and no groups.
        if news.model || self.changed.len() >= MOST_GROUPS {
            *self = Self::default();
            return;
        }
        self.times += 1;
        self.changed.extend(news.commands.iter().map(|command| (*command, self.times)));
    }

    /// The forecast of these classes; what is not known of them is assumed.
    fn of(
        &mut self,
        models: Models<'_>,
        gpu: &str,
        sharing: Mode,
        classes: Vec<Class>,
        bounds: bool,
        alone: &impl Alone,
    ) -> Option<&Foretold> {
        let key = (sharing, Asked { throughput: models.kace.is_some(), bounds }, classes);
        if self.groups.values().map(BTreeMap::len).sum::<usize>() >= MOST_GROUPS {
            *self = Self::default();
        }
        if !self.groups.contains_key(gpu) {
            self.groups.insert(gpu.to_owned(), BTreeMap::new());
        }
        let (times, changed) = (self.times, &self.changed);
        let foretell = |classes: &[Class]| {
            let sure = classes.iter().all(|class| alone.knows(class.command, gpu));
            let asked: Vec<bool> = classes.iter().map(|class| class.asked).collect();
            let known = assumed(classes, gpu, alone);
            let forecast = Foretold::of(models, gpu, sharing, &known, &asked, bounds);
            (times, if sure { forecast } else { forecast.unsure() })
        };
        let holds = |told: u64, classes: &[Class]| {
            classes.iter().all(|class| changed.get(&class.command).is_none_or(|at| *at <= told))
        };
        match self.groups.get_mut(gpu)?.entry(key) {
            Entry::Occupied(mut entry) => {
                if !holds(entry.get().0, &entry.key().2) {
                    let now = foretell(&entry.key().2);
                    entry.insert(now);
                }
                Some(&entry.into_mut().1)
            }
            Entry::Vacant(entry) => {
                let now = foretell(&entry.key().2);
                Some(&entry.insert(now).1)
            }
        }
    }
}

impl Foretold {
    /// The same where something is assumed.
    fn unsure(mut self) -> Self {
        for pace in self.tasks.iter_mut().flatten() {
            let most = Fraction::from_f64(pace.expected.to_f64() * UNSURE).unwrap_or_default();
            pace.lower = pace.lower.map(|lower| lower.min(most));
        }
        self
    }

    fn of(
        models: Models<'_>,
        gpu: &str,
        sharing: Mode,
        known: &[(Profile, Option<f64>)],
        asked: &[bool],
        bounds: bool,
    ) -> Self {
        let gpu = &GpuType::named(gpu);
        let filled = filled(known, sharing);
        let group_of = |members| Group { gpu, sharing, members };
        let members = &members(known);
        let likely = filled.as_deref().map(self::members);
        let group = group_of(likely.as_ref().unwrap_or(members));
        let fraction = |progress: f64| Fraction::from_f64(progress).unwrap_or(Fraction(0));
        let bounded = |task: &TaskForecast| Pace {
            expected: fraction(task.progress.expected),
            lower: Some(fraction(task.progress.lower)),
        };
        let expected = |progress: &f64| Pace { expected: fraction(*progress), lower: None };
        let mut tasks: Option<Vec<Pace>> = if bounds {
            models.slowdowns.predict(&group).ok().map(|told| told.tasks.iter().map(bounded).collect())
        } else {
            models.slowdowns.expect(&group).ok().map(|told| told.iter().map(expected).collect())
        };
        // The bound must also hold where their kernels fill all SMs.
        if bounds && filled.is_some() {
            let worst = models.slowdowns.predict(&group_of(members)).ok();
            for (pace, worst) in tasks.iter_mut().flatten().zip(worst.iter().flat_map(|told| &told.tasks)) {
                pace.lower = pace.lower.map(|lower| lower.min(fraction(worst.progress.lower)));
            }
        }
        // What fewer threads cost a job whose user asked for them is no neighbour's doing.
        let likely = group.members;
        for (at, pace) in
            tasks.iter_mut().flatten().enumerate().filter(|(at, _)| asked.get(*at) == Some(&true))
        {
            let own = models.slowdowns.expect(&group_of(&likely[at..=at])).ok();
            let Some(own) = own.and_then(|own| own.first().copied()).filter(|own| *own > 0.0) else {
                continue;
            };
            let of_own = |pace: Fraction| fraction((pace.to_f64() / own).min(1.0));
            *pace = Pace { expected: of_own(pace.expected), lower: pace.lower.map(of_own) };
        }
        let sum = tasks.iter().flatten().map(|pace: &Pace| pace.expected.0).fold(0, u32::saturating_add);
        Self {
            tasks,
            sum: Fraction(sum),
            throughput: models.kace.map(|kace| throughput(kace, gpu, sharing, members)),
        }
    }
}

/// What is predicted if the newcomer joins those that are there. `None`: there is no such GPU.
#[must_use]
pub fn answer(
    models: Models<'_>,
    state: &State,
    asked: &Question,
    alone: &impl Alone,
    answered: &mut Answered,
) -> Option<Outlook> {
    let gpu = state.gpu(asked.there.kind)?.info.name.as_str();
    let mut outlook = Outlook {
        there: asked.there.clone(),
        newcomer: asked.newcomer,
        paces: Vec::new(),
        joins: Pace::default(),
        unknown: Vec::new(),
        seen_beside: false,
        before: Fraction(0),
        throughput: None,
    };
    let there = &asked.there.classes;
    let all = asked.there.with(asked.newcomer).classes;
    outlook.unknown = all.iter().copied().filter(|class| !alone.knows(class.command, gpu)).collect();
    let mut unknown = outlook.unknown.iter();
    outlook.seen_beside =
        !outlook.unknown.is_empty() && unknown.all(|class| alone.assumed(class.command, gpu).is_some());
    let sharing = mode(asked.there.sharing);
    let by_throughput = state.options().policy.order == Order::Throughput;
    if by_throughput && !outlook.unknown.is_empty() {
        return Some(outlook);
    }
    let models = Models { kace: models.kace.filter(|_| by_throughput), ..models };
    // More than the model takes together: nothing is predicted.
    let unknown = |outlook: Outlook| {
        Some(Outlook { unknown: vec![asked.newcomer], seen_beside: false, paces: Vec::new(), ..outlook })
    };
    let before = answered.of(models, gpu, sharing, there.clone(), false, alone).map(|forecast| forecast.sum);
    let forecast = answered.of(models, gpu, sharing, all.clone(), asked.bounds, alone);
    let (Some(before), Some(forecast)) = (before, forecast) else { return unknown(outlook) };
    if by_throughput {
        match &forecast.throughput {
            Some(Ok(sum)) => outlook.throughput = Some(*sum),
            Some(Err(at)) if !at.is_empty() => {
                outlook.unknown = at.iter().filter_map(|at| all.get(*at).copied()).collect();
                return Some(outlook);
            }
            Some(Err(_)) | None => return unknown(outlook),
        }
    }
    let Some(tasks) = &forecast.tasks else { return unknown(outlook) };
    let pace = |class: &Class| {
        all.binary_search(class).ok().and_then(|at| tasks.get(at)).copied().unwrap_or_default()
    };
    outlook.paces = there.iter().map(pace).collect();
    outlook.joins = pace(&asked.newcomer);
    outlook.before = before;
    Some(outlook)
}

/// What is answered now, where that is another answer, to what was asked of companies that are still there and the news concerns.
pub fn again(
    models: Models<'_>,
    state: &State,
    alone: &impl Alone,
    answered: &mut Answered,
    news: &News,
) -> Vec<Outlook> {
    let answer = |told: &Outlook| {
        let bounds = told.joins.lower.is_some();
        let asked = Question { there: told.there.clone(), newcomer: told.newcomer, bounds };
        self::answer(models, state, &asked, alone, answered).filter(|now| now != told)
    };
    state.outlooks_there().filter(|told| news.concerns(told)).filter_map(answer).collect()
}

/// What KACE says that they get done together, in thousandths.
///
/// # Errors
/// Positions of those whose profiles lack a feature that the model wants; none where the model's answer is no number.
fn throughput(
    kace: &Trained,
    gpu: &GpuType,
    sharing: Mode,
    members: &[Member<'_>],
) -> Result<i64, Vec<usize>> {
    let row = |members: &[Member<'_>]| kace_row(&kace.features, &Group { gpu, sharing, members });
    let lacking: Vec<usize> = (0..members.len()).filter(|at| row(&members[*at..=*at]).is_err()).collect();
    let row = row(members).map_err(|_| lacking)?;
    let sum = kace.forecast(&row).map_err(|_| Vec::new())?;
    // Far beyond any rate, and far from the ends of the integers.
    Ok((sum * 1000.0).clamp(-1e18, 1e18) as i64)
}

/// A model that is off by more than this is notably off: what it said does not hold.
const NOTABLE: f64 = 0.05;

/// No neighbour makes a job faster: a measured progress above this is of a speed alone that is none, and teaches nothing.
const MOST: f64 = 1.2;

/// Jobs that share a GPU, and what was measured of them.
struct Seen {
    known: Vec<(Profile, Option<f64>)>,
    gpu: GpuType,
    sharing: Mode,
}

/// Jobs that share a GPU.
#[derive(Clone, Copy)]
pub struct Together<'a> {
    gpu: &'a str,
    jobs: &'a [&'a Job],
    sharing: Mode,
}

impl<'a> Together<'a> {
    /// Jobs that are on this GPU.
    #[must_use]
    pub fn of(state: &State, gpu: &'a Gpu, jobs: &'a [&'a Job]) -> Self {
        Self { gpu: &gpu.info.name, jobs, sharing: mode(state.sharing_among(jobs)) }
    }

    fn classes(&self) -> Vec<Class> {
        self.jobs.iter().map(|job| job.class()).collect()
    }
}

impl Seen {
    /// `None`: what one of them does alone is not known.
    fn of(there: Together<'_>, alone: &impl Alone) -> Option<Self> {
        let Together { gpu, jobs: _, sharing } = there;
        let known = known(&there.classes(), gpu, alone)?;
        // It is learned from what is assumed when it is predicted.
        let known = filled(&known, sharing).unwrap_or(known);
        Some(Self { known, gpu: GpuType::named(gpu), sharing })
    }
}

/// Whether the model is notably off of what was measured: then it is worth to learn from, and what it said before does not
/// hold. `None`: what one of them does alone is not known.
pub fn is_off(
    model: &SlowdownModel,
    there: Together<'_>,
    progress: &[Option<f64>],
    alone: &impl Alone,
) -> Option<bool> {
    let seen = Seen::of(there, alone)?;
    let members = &members(&seen.known);
    let told = model.expect(&Group { gpu: &seen.gpu, sharing: seen.sharing, members }).ok();
    let off = |told: Vec<f64>| {
        told.iter().zip(progress).any(|(told, seen)| seen.is_some_and(|seen| (told - seen).abs() > NOTABLE))
    };
    Some(told.is_none_or(off))
}

/// Learns from jobs that share a GPU; `progress` of each, where it was measured. `None`: what one of them does alone
/// is not known.
///
/// # Errors
/// What the model refuses to learn from.
pub fn observe(
    model: &mut SlowdownModel,
    there: Together<'_>,
    progress: Vec<Option<f64>>,
    alone: &impl Alone,
) -> Option<Result<(), BadGroup>> {
    let seen = Seen::of(there, alone)?;
    let members = &members(&seen.known);
    let group = Group { gpu: &seen.gpu, sharing: seen.sharing, members };
    let progress: Vec<Option<f64>> =
        progress.into_iter().map(|progress| progress.filter(|progress| *progress <= MOST)).collect();
    if progress.iter().all(Option::is_none) {
        return None;
    }
    Some(model.observe(&group, &Observed::Progress(progress)).map(drop))
}

/// What is assumed of those jobs' commands of which nothing is known, once the GPU was seen to do this under all of them; of
/// those that it tells something of. `going`: how fast a job goes beside the others, where that is known.
#[must_use]
pub fn assume(
    model: &SlowdownModel,
    there: Together<'_>,
    seen: &Metrics,
    going: &impl Fn(&Job) -> Option<Going>,
    alone: &impl Alone,
) -> BTreeMap<u64, Profile> {
    let name = there.gpu;
    let classes = there.classes();
    let guesses: Vec<bool> = classes.iter().map(|class| !alone.knows(class.command, name)).collect();
    let before = assumed(&classes, name, alone);
    let members = &members(&before);
    let group = Group { gpu: &GpuType::named(name), sharing: there.sharing, members };
    let going: Vec<Option<Going>> = there.jobs.iter().map(|job| going(job)).collect();
    let after = refined(model, &group, &guesses, seen, &going).unwrap_or_default();
    let all = classes.iter().zip(&before).zip(after);
    let changed = all.filter(|((_, (before, _)), after)| before.metrics != *after);
    changed
        .map(|((class, (before, _)), metrics)| (class.command, Profile { metrics, ..before.clone() }))
        .collect()
}

/// The same where it is not known of some whether they are at work: `all` of them, and those of `there` surely are. What follows
/// whether they are or not, which is the middle of what was assumed before and of what either would make of it.
#[must_use]
pub fn assume_either(
    model: &SlowdownModel,
    there: Together<'_>,
    all: Together<'_>,
    seen: &Metrics,
    going: &impl Fn(&Job) -> Option<Going>,
    alone: &impl Alone,
) -> BTreeMap<u64, Profile> {
    let mut follows = assume(model, there, seen, going, alone);
    let with = assume(model, all, seen, going, alone);
    follows.retain(|command, profile| {
        let Some(with) = with.get(command) else { return false };
        let before =
            alone.assumed(*command, there.gpu).map_or_else(|| typical().metrics, |profile| profile.metrics);
        let middle = between(&before, &profile.metrics, &with.metrics);
        profile.metrics = middle;
        middle != before
    });
    follows
}

/// What is assumed of the commands of jobs that came to a GPU or left it, of which nothing is known, by how much slower or faster the rest
/// went since. `jobs`: all before and after the change, with the part of each in it, under MPS: the speeds of jobs that take turns say more of how often
/// these wait (docs/research/interference.md, "never-alone").
#[must_use]
pub fn assume_by_change(
    model: &SlowdownModel,
    gpu: &str,
    jobs: &[(Class, Part)],
    alone: &impl Alone,
) -> BTreeMap<u64, Profile> {
    let (classes, parts): (Vec<Class>, Vec<Part>) = jobs.iter().copied().unzip();
    let moves = |part: &Part| !matches!(part, Part::Stayed(_));
    // What is assumed of jobs of one command is the same: where one of them stayed, or one came as another left, the others' speed says little.
    let is_meant = |(class, part): &(Class, Part)| {
        let of_command = jobs.iter().filter(|(other, _)| other.command == class.command);
        moves(part)
            && !alone.knows(class.command, gpu)
            && of_command.into_iter().all(|(_, other)| other == part)
    };
    let meant: Vec<bool> = jobs.iter().map(is_meant).collect();
    if !meant.contains(&true) {
        return BTreeMap::new();
    }
    let before = assumed(&classes, gpu, alone);
    let all = Group { gpu: &GpuType::named(gpu), sharing: Mode::Mps, members: &members(&before) };
    let after = weighed(model, &all, &parts, &meant).unwrap_or_default();
    let all = classes.iter().zip(&before).zip(after).zip(meant).filter(|(_, meant)| *meant);
    all.map(|(((class, (before, _)), metrics), _)| (class.command, Profile { metrics, ..before.clone() }))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy(of: f64, what: fn(&mut Metrics) -> &mut Option<Stat>) -> (Profile, Option<f64>) {
        let mut profile = Profile { name: "a".into(), ..Profile::default() };
        *what(&mut profile.metrics) = Some(Stat::of(of));
        (profile, None)
    }

    fn foretold(known: &[(Profile, Option<f64>)], sharing: Mode) -> Vec<(f64, f64)> {
        let model = SlowdownModel::shipped();
        let models = Models { slowdowns: &model, kace: None };
        let told = Foretold::of(models, "NVIDIA A100-SXM4-40GB", sharing, known, &[], true).tasks.unwrap();
        told.iter().map(|pace| (pace.expected.to_f64(), pace.lower.unwrap().to_f64())).collect()
    }

    /// Trainings keep `nvidia-smi` near 100 %, and most leave more than half of the SMs to others.
    #[test]
    fn utilisation_alone_keeps_nobody_apart_under_mps_and_promises_nothing() {
        let two = [(); 2].map(|()| busy(95.0, |m| &mut m.gpu_util_pct));
        let told = foretold(&two, Mode::Mps);
        assert!(told.iter().all(|(expected, lower)| *expected > 0.8 && *lower < 0.7 * expected), "{told:?}");
        let light = foretold(&[two[0].clone(), busy(10.0, |m| &mut m.gpu_util_pct)], Mode::Mps);
        assert!(light[0].0 > told[0].0, "{light:?} {told:?}");
        // What tells more is taken as it is.
        assert_eq!(filled(&[busy(95.0, |m| &mut m.smact_pct)], Mode::Mps), None);
    }

    #[test]
    fn who_takes_turns_is_known_by_utilisation() {
        let two = [(); 2].map(|()| busy(95.0, |m| &mut m.gpu_util_pct));
        let told = foretold(&two, Mode::TimeSlice);
        assert_eq!(filled(&two, Mode::TimeSlice), None);
        assert!(told.iter().all(|(expected, _)| (0.4..0.6).contains(expected)), "{told:?}");
    }

    struct Known(BTreeMap<u64, f64>);

    impl Alone for Known {
        fn knows(&self, command: u64, _: &str) -> bool {
            self.0.contains_key(&command)
        }

        fn profile(&self, command: u64, _: &str) -> Option<Profile> {
            self.0.get(&command).map(|smact| busy(*smact, |m| &mut m.smact_pct).0)
        }
    }

    #[test]
    fn what_was_answered_of_others_holds_when_there_is_news_of_a_command() {
        const GPU: &str = "NVIDIA A100-SXM4-40GB";
        let model = SlowdownModel::shipped();
        let models = Models { slowdowns: &model, kace: None };
        let class = |command| Class { command, threads: None, asked: false };
        let pairs = [[1, 2], [1, 3], [2, 3]];
        let of = |answered: &mut Answered, known: &Known| {
            pairs.map(|pair| {
                let classes = pair.map(class).to_vec();
                answered.of(models, GPU, Mode::Mps, classes, false, known).unwrap().sum
            })
        };
        let (mut answered, mut known) = (Answered::default(), Known([(1, 90.0), (2, 30.0)].into()));
        let before = of(&mut answered, &known);
        // Without news of it what is known better now changes no answer.
        known.0.extend([(1, 20.0), (3, 90.0)]);
        assert_eq!(of(&mut answered, &known), before);

        answered.forget(&News { commands: [1].into(), ..News::default() });
        let (fresh, now) = (of(&mut Answered::default(), &known), of(&mut answered, &known));
        assert_eq!((now[0], now[1], now[2]), (fresh[0], fresh[1], before[2]));
        assert!(now[0] > before[0] && fresh[2] < before[2], "{before:?} {fresh:?}");

        answered.forget(&News { model: true, ..News::default() });
        assert_eq!(of(&mut answered, &known), fresh);
    }
}
