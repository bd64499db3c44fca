//! What is assumed of tasks that were never seen alone.
//!
//! On a busy GPU a task may never be alone, so that it has no profile. At first it is taken for [`typical`]. What the GPU
//! does under several tasks is about the sum of what each does alone, times its progress: what is more or less than that is
//! divided among those of which something is assumed, in proportion to what is assumed of them (as the expectation
//! maximisation of emission tomography does, Shepp and Vardi 1982). Tasks that were seen in several companies are told
//! apart by that; of those that were always together, only the sum is known. Where tasks take all of a GPU their sum says
//! no more than that, unless it is known how slow they are there: tasks that fill a GPU at .3 of their speed alone would
//! fill three. What one of them wants shows all the same when it comes or leaves: by how much the others are slower
//! ([`weighed`]).

use crate::group::{Group, Member, Mode};
use crate::online::SlowdownModel;
use crate::profile::{Metrics, Profile, Stat};
use std::collections::BTreeMap;

/// A step goes so far: 1 explains what was seen at once, and follows noise.
const STEP: f64 = 0.5;
/// The largest change of one step.
const MOST: f64 = 2.0;
/// So much more than is seen under tasks they are assumed to want at most. Of 1 to 3 the best on sets of our catalogue on an
/// H200 (docs/research/interference.md): less takes a full GPU for a busy one, more lets noise add up.
const HIDDEN: f64 = 1.5;
/// No task is assumed to do less than this share of what a typical one does: an idle phase that was seen once, or a host that
/// held all up, must not let any number of tasks in.
const LEAST: f64 = 0.25;
/// Nor more than this, percent.
const FULL: f64 = 99.0;
/// A task that is slower than this beside others is stopped by something else, and says no more of what the others do.
const SLOWEST: f64 = 0.1;
/// A task that is measured to go faster than expected by this share has neighbours of which too much is assumed.
const OFF: f64 = 0.1;
/// A GPU with so much SM activity, percent, is full: they may want any amount more than is seen.
const SATURATED: f64 = 98.0;
/// Traffic to the GPU of a task whose kernels leave a third of the SMs free, MiB/s: near the median of our catalogue of an H200, 91.
const TRAFFIC: f64 = 80.0;
/// Traffic goes with this power of the SMs that kernels leave free: with it a task weighs as much as the law says that was
/// fitted without traffic, (free SMs)^-.86 (docs/research/gpu-models.md), where the predictor has .56 and, for traffic, .39.
const LAUNCHES: f64 = 0.77;

/// What a task is taken to do of which nothing is known: between the median of the tasks of our catalogue of an H200 (SMACT
/// .64, SMOCC .10, DRAM .12, GRACT .74) and that of CARMA's evaluation on an A100 (SMACT .22, SMOCC .14, DRAM .07), and nearer the
/// lighter ones: a job that is let in for too light is seen at work and told apart within seconds, one that is kept out waits
/// and teaches nothing (docs/research/tried.md).
#[must_use]
pub fn typical() -> Profile {
    let share = |percent| Some(Stat::of(percent));
    let mut metrics = Metrics {
        gract_pct: share(60.0),
        smact_pct: share(33.0),
        smocc_pct: share(10.0),
        drama_pct: share(8.0),
        ..Metrics::default()
    };
    metrics.pcie_rx_mib_s = traffic(&metrics);
    Profile { name: "typical".into(), metrics, ..Profile::default() }
}

/// What is assumed changes notably by so many points of a percentage.
const NOTABLE: f64 = 2.0;

/// What is assumed of a task now, and what that was when it last changed notably.
#[derive(Debug, Clone)]
pub struct Guess {
    profile: Profile,
    told: Metrics,
}

impl From<Profile> for Guess {
    fn from(profile: Profile) -> Self {
        Self { told: profile.metrics, profile }
    }
}

impl Default for Guess {
    fn default() -> Self {
        typical().into()
    }
}

impl Guess {
    /// What is assumed.
    #[must_use]
    pub const fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Something else is assumed; whether that is notably other than what was told before.
    pub fn becomes(&mut self, profile: Profile) -> bool {
        let is_new = !near(&self.told, &profile.metrics);
        if is_new {
            self.told = profile.metrics;
        }
        self.profile = profile;
        is_new
    }
}

/// Whether two sets of metrics are the same but for noise.
fn near(a: &Metrics, b: &Metrics) -> bool {
    [
        (a.gract_pct, b.gract_pct),
        (a.smact_pct, b.smact_pct),
        (a.smocc_pct, b.smocc_pct),
        (a.drama_pct, b.drama_pct),
    ]
    .into_iter()
    .all(|(a, b)| a.zip(b).is_none_or(|(a, b)| (a.mean - b.mean).abs() < NOTABLE))
}

/// Traffic to the GPU, MiB/s, that goes with this activity: kernels that leave few SMs free are long, and few are launched.
fn traffic(metrics: &Metrics) -> Option<Stat> {
    let free = 1.0 - (metrics.smact_pct?.mean / metrics.gract_pct?.mean).clamp(0.0, 0.98);
    Some(Stat::of(TRAFFIC * (3.0 * free).powf(LAUNCHES)))
}

/// One metric of the activity, and how those of several tasks add up.
struct Kind {
    of: fn(&Metrics) -> Option<Stat>,
    set: fn(&mut Metrics, Stat),
    /// Kernels of several tasks run at the same time, and time in which any does counts once.
    overlaps: bool,
    /// Of it a GPU whose SMs are all busy shows less than its jobs would do.
    fills: bool,
}

impl Kind {
    /// A share in percent as a number that adds up: of what overlaps the logarithms of what each leaves do.
    fn adds(&self, percent: f64) -> f64 {
        let share = percent.clamp(0.0, FULL) / 100.0;
        if self.overlaps { -(1.0 - share).ln() } else { share }
    }
}

const fn kinds(sharing: Mode) -> [Kind; 4] {
    let overlaps = matches!(sharing, Mode::Mps);
    [
        Kind { of: |m| m.gract_pct, set: |m, value| m.gract_pct = Some(value), overlaps, fills: false },
        Kind { of: |m| m.smact_pct, set: |m, value| m.smact_pct = Some(value), overlaps: false, fills: true },
        Kind {
            of: |m| m.smocc_pct,
            set: |m, value| m.smocc_pct = Some(value),
            overlaps: false,
            fills: false,
        },
        Kind {
            of: |m| m.drama_pct,
            set: |m, value| m.drama_pct = Some(value),
            overlaps: false,
            fills: false,
        },
    ]
}

/// How fast a task goes beside others, as a share of its speed alone.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Going {
    /// Measured.
    At(f64),
    /// Its speed alone is not known, but one that it had at some time: it goes no faster than this.
    AtMost(f64),
}

impl Going {
    fn of(self, expected: f64) -> f64 {
        match self {
            Self::At(progress) => progress.clamp(SLOWEST, 1.0),
            Self::AtMost(bound) => expected.min(bound.max(SLOWEST)),
        }
    }
}

/// Brings what is assumed of some members closer to what the GPU did under all of them, `seen`. `assumed` says of whom
/// something is assumed, by position. Their new metrics, by position; those of other members, and metrics that were not seen
/// or that another member's profile lacks, are as before. `going`: how fast the members go, by position, where it is known.
/// `None`: nothing is predicted of the group.
#[must_use]
pub fn refined(
    model: &SlowdownModel,
    group: &Group<'_>,
    assumed: &[bool],
    seen: &Metrics,
    going: &[Option<Going>],
) -> Option<Vec<Metrics>> {
    let expected = model.expect(group).ok()?;
    let going = |at: usize| going.get(at).copied().flatten();
    let with = |expected: &dyn Fn(usize) -> f64| -> Vec<f64> {
        let progress = |at: usize| going(at).map_or(expected(at), |going| going.of(expected(at)));
        (0..assumed.len()).map(progress).collect()
    };
    // Where those of whom nothing is assumed are measured to be faster than expected, too much is assumed of the others, which then are
    // faster than expected, too.
    let slower: Vec<f64> = (0..assumed.len())
        .filter(|at| !assumed[*at])
        .filter_map(|at| match going(at) {
            Some(measured @ Going::At(_)) => Some((expected[at] / measured.of(1.0)).min(1.0)),
            _ => None,
        })
        .collect();
    let slower = if slower.is_empty() { 1.0 } else { slower.iter().sum::<f64>() / slower.len() as f64 };
    let progress = with(&|at| (expected[at] / slower.max(SLOWEST)).min(1.0));
    let hidden = with(&|_| 1.0 / HIDDEN);
    let is_full = seen.smact_pct.is_some_and(|smact| smact.mean >= SATURATED);
    let mut metrics: Vec<Metrics> = group.members.iter().map(|member| member.profile.metrics).collect();
    let typical = typical().metrics;
    for kind in kinds(group.sharing) {
        let (Some(seen), Some(typical)) = ((kind.of)(seen), (kind.of)(&typical)) else { continue };
        let mean = |(metrics, assumed): (&Metrics, &bool)| match (kind.of)(metrics) {
            Some(stat) => Some(stat.mean),
            None => assumed.then_some(typical.mean),
        };
        let Some(means) = metrics.iter().zip(assumed).map(mean).collect::<Option<Vec<f64>>>() else {
            continue;
        };
        // What those of which something is assumed, or is not, do at these shares of their speed alone.
        let sum = |wanted: bool, speed: &[f64]| -> f64 {
            let all = means.iter().zip(speed).zip(assumed);
            all.filter(|(_, assumed)| **assumed == wanted)
                .map(|((mean, speed), _)| kind.adds(mean * speed))
                .sum()
        };
        // So many times what is assumed would explain what was seen.
        let ratio = |speed: &[f64]| {
            (kind.adds(seen.mean) - sum(false, speed)) / sum(true, speed).max(f64::MIN_POSITIVE)
        };
        let mut step = ratio(&progress).clamp(1.0 / MOST, MOST);
        // A GPU that is full shows no more, whatever they would do if they were let: neither that they would do more, nor, of its SMs, that
        // they do less than the capacity that the model believes in, unless one is measured to leave more.
        if step > 1.0 {
            step = step.min(ratio(&hidden)).max(1.0);
        } else if is_full && kind.fills && slower > 1.0 - OFF {
            continue;
        }
        if !step.is_finite() {
            continue;
        }
        let step = step.powf(STEP);
        for ((metrics, mean), _) in
            metrics.iter_mut().zip(&means).zip(assumed).filter(|(_, assumed)| **assumed)
        {
            (kind.set)(metrics, Stat::of(kept(mean * step, typical.mean)));
        }
    }
    for (metrics, _) in metrics.iter_mut().zip(assumed).filter(|(_, assumed)| **assumed) {
        metrics.pcie_rx_mib_s = traffic(metrics);
    }
    Some(metrics)
}

/// How fast a task goes after some came to its group or left it, over its speed before.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SpeedRatio {
    /// That ratio.
    pub ratio: f64,
    /// The variance of its logarithm that comes from counting.
    pub variance: f64,
}

/// What a task has to do with a change of its group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Part {
    /// It was there before, and is after it; how its speed changed, where that was measured.
    Stayed(Option<SpeedRatio>),
    /// It was there before.
    Left,
    /// It is there after it.
    Came,
}

/// A task wants this factor more or less than assumed, one standard deviation, before it is seen what it costs others.
const PRIOR: f64 = 2.0;
/// What the model says of a ratio of speeds is off by this share, one standard deviation, and so is what tasks do by themselves from one
/// stretch of seconds to the next. With .07 to .12 what followed from one change foretold the next less well, in plays on an H200 (docs/research/h200.md).
const MODEL_OFF: f64 = 0.2;
/// Factors that are tried: from a quarter to four times what is assumed, in steps of an eighth of an octave.
const FACTORS: std::ops::RangeInclusive<i32> = -16..=16;

/// Brings what is assumed of tasks that came to a group, or left it, closer to what that cost or brought the others. `all`: those before
/// and after the change, with the part of each; `meant`: of whom something is assumed that may be otherwise, by position. Takes the factor on the activity of
/// those that came, and its inverse for those that left, that is likeliest, given [`PRIOR`], what was measured and how sure that is. The
/// new metrics, by position. `None`: nothing is predicted of the group, nothing was measured, or nothing follows.
#[must_use]
pub fn weighed(
    model: &SlowdownModel,
    all: &Group<'_>,
    parts: &[Part],
    meant: &[bool],
) -> Option<Vec<Metrics>> {
    let by = |factor: f64| -> Vec<Profile> {
        let of = |((member, part), meant): ((&Member<'_>, &Part), &bool)| {
            let mut profile = member.profile.clone();
            match part {
                Part::Came if *meant => profile.metrics = times(&profile.metrics, factor, all.sharing),
                Part::Left if *meant => {
                    profile.metrics = times(&profile.metrics, factor.recip(), all.sharing)
                }
                _ => {}
            }
            profile
        };
        all.members.iter().zip(parts).zip(meant).map(of).collect()
    };
    let measured: Vec<(usize, SpeedRatio)> = (0..parts.len())
        .filter_map(|at| match parts[at] {
            Part::Stayed(Some(ratio)) => Some((at, ratio)),
            _ => None,
        })
        .collect();
    if measured.is_empty() {
        return None;
    }
    let unlikely = |step: i32| -> Option<f64> {
        let factor = (f64::from(step) / 8.0).exp2();
        let profiles = by(factor);
        // Progress by position; of those that are not there, none.
        let progress = |absent: Part| -> Option<BTreeMap<usize, f64>> {
            let there = || (0..parts.len()).filter(|at| parts[*at] != absent);
            let members: Vec<Member<'_>> =
                there().map(|at| Member { profile: &profiles[at], ..all.members[at] }).collect();
            let progress = model.expect(&Group { members: &members, ..*all }).ok()?;
            Some(there().zip(progress).collect())
        };
        let (before, after) = (progress(Part::Came)?, progress(Part::Left)?);
        let off = |(at, seen): &(usize, SpeedRatio)| {
            let off = (after[at] / before[at] / seen.ratio).ln();
            off * off / (seen.variance + MODEL_OFF * MODEL_OFF)
        };
        Some(measured.iter().map(off).sum::<f64>() + (factor.ln() / PRIOR.ln()).powi(2))
    };
    let tried = FACTORS.filter_map(|step| Some((step, unlikely(step)?)));
    let (step, _) = tried.min_by(|a, b| a.1.total_cmp(&b.1))?;
    let metrics = || by((f64::from(step) / 8.0).exp2()).into_iter().map(|profile| profile.metrics).collect();
    (step != 0).then(metrics)
}

/// What is assumed of a task that does this many times as much.
fn times(metrics: &Metrics, factor: f64, sharing: Mode) -> Metrics {
    let (mut scaled, typical) = (*metrics, typical().metrics);
    for kind in kinds(sharing) {
        let (Some(stat), Some(typical)) = ((kind.of)(metrics), (kind.of)(&typical)) else { continue };
        (kind.set)(&mut scaled, Stat::of(kept(stat.mean * factor, typical.mean)));
    }
    scaled.pcie_rx_mib_s = traffic(&scaled);
    scaled
}

/// What is assumed in percent, within bounds.
fn kept(percent: f64, typical: f64) -> f64 {
    percent.clamp(LEAST * typical, FULL)
}

/// Of three sets of metrics, metric by metric, the middle one; where one of them lacks a metric, the first.
pub(crate) fn between(before: &Metrics, one: &Metrics, other: &Metrics) -> Metrics {
    let mut middle = *before;
    // Which are there does not depend on how tasks share.
    for kind in kinds(Mode::TimeSlice) {
        let all = [before, one, other].map(|metrics| (kind.of)(metrics).map(|stat| stat.mean));
        if let [Some(before), Some(one), Some(other)] = all {
            (kind.set)(&mut middle, Stat::of(before.clamp(one.min(other), one.max(other))));
        }
    }
    middle.pcie_rx_mib_s = traffic(&middle);
    middle
}

#[cfg(test)]
mod tests;
