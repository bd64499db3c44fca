//! Counts over time, and the rate that they amount to.
//!
//! A task may count several things at once: bars inside bars, training and evaluation, steps of several processes.
//! Each is a stream of its own. The rate is that of one stream, the one that tells most:
//!
//! - heartbeats before printed counts, printed counts before averages that the task prints, these before activity;
//! - work before evaluation, and that before loading and the like;
//! - of those that were under way for about as long, the finer one.
//!
//! A count that falls back has started anew (the bar of the next epoch): a new segment, whose beginning adds neither
//! work nor time. Time in which another count of the same source went on while this one stood still (evaluation
//! between two steps of training) is left out too. Time in which nothing went on is not. A count that falls and is then
//! back above where it was did not start anew: two counters share a name, and the lower one is left out.
//!
//! # The count of the task's work
//!
//! What a count is says [`Rate::counts_like`]: its source, its unit, the words before it, and its length where it has no words. A rate is a
//! part of one of the same count only. Once one was measured as that of the work, it stays that (the caller hands it in as `own`) until
//! another takes its place (`is_superseded`). Until then others are preparations, evaluations and the like, and so are
//! those whose words say so ([`Measured::is_work`]).

mod done;

pub use done::Done;

use done::overlap;

use super::beat::Beat;
use super::latency::{Latencies, P99, Told};
use super::printed::Report;
use super::{Kind, Said};
use crate::profile::{Bar, Rate, RateSource};
use std::cmp::Ordering;
use std::collections::VecDeque;
use std::fmt;

/// Unit of a count of passes over the data.
pub(super) const EPOCHS: &str = "epochs";
/// Most streams that are kept; the one that has been silent longest makes room.
const MOST_STREAMS: usize = 24;
/// Most marks of a stream.
const MOST_MARKS: usize = 1024;
/// Marks that are left of the last [`LOOK_BACK_S`], and of the time before, when there are too many; together they leave room for others.
const NEAR_MARKS: f64 = 768.0;
const FAR_MARKS: f64 = 128.0;
/// Time back that rates are taken over, seconds.
const LOOK_BACK_S: f64 = 600.0;
/// Marks closer than this are one, seconds: nothing here needs a finer clock, and a flood needs no memory.
const RESOLUTION_S: f64 = 0.01;
/// So many sightings in a row below the highest count are a new start; fewer are other processes that lag behind.
const BELOW: u8 = 3;
/// After so many rises below the count that it fell from, a counter has a pace of its own.
const RISES: u8 = 2;
/// A rise by more than so many times the one before is a jump to another counter.
const JUMP: f64 = 10.0;
/// The same where a counter rises in one go to just the count that it fell from: as one does that is printed twice an
/// epoch, and as two do of which one stands still.
const EQUAL_JUMP: f64 = 2.0;
/// Advances, or averages, that are few: fewer than this.
const FEW: usize = 3;
/// Streams that were under way for at least this share of the longest compete by fineness.
const ABOUT_AS_LONG: f64 = 0.5;
/// A count that goes on is gone for good when it has been silent for so long, and for longer than it was under way, seconds.
const GONE_S: f64 = 600.0;
/// Marks by which it is told how long a task is silent between two counts, where there are fewer of late.
const FEW_MARKS: usize = 16;
/// A task stands still when it is silent for so many times as long as between two of its counts, and for twice as long as ever of late.
const STILL: f64 = 10.0;
/// And for so long, seconds.
const STILL_S: f64 = 15.0;
/// Pieces of a window whose rates give its variation.
const PIECES: usize = 10;

/// How far a rate can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Quality {
    /// One or two advances, or averages of the task's own: the order of magnitude.
    Poor,
    /// Three advances or more.
    Fair,
    /// Ten advances or more over two seconds or more.
    Good,
}

impl fmt::Display for Quality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Poor => "poor",
            Self::Fair => "fair",
            Self::Good => "good",
        })
    }
}

/// A rate over a window.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// The rate, and what was counted.
    pub rate: Rate,
    /// First and last count that it comes from, seconds on the caller's clock.
    pub span_s: (f64, f64),
    /// Time that it covers, without new starts and asides, seconds.
    pub live_s: f64,
    /// Work done in that time.
    pub counted: f64,
    /// How often the count was seen to rise.
    pub advances: usize,
    /// Time that passed between two counts, the middle one and the longest, seconds; the longest may be at the window's end.
    pub gaps_s: (f64, f64),
    /// Coefficient of variation over tenths of the window.
    pub cv: Option<f64>,
    /// Whether it is an average that the task printed, rather than counted here.
    pub is_average: bool,
    /// Whether the task says that it loads or prepares otherwise: its work is still to come.
    pub prepares: bool,
    /// Whether it is of the task's work: neither preparations, nor an evaluation once it has counted its work, nor another count than that
    /// which was asked for, unless it has taken its place.
    pub is_work: bool,
    /// How far it can be trusted.
    pub quality: Quality,
}

/// The latest count of a stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Latest {
    /// Where it comes from.
    pub source: RateSource,
    /// What is counted.
    pub unit: String,
    /// Words that came with it.
    pub label: String,
    /// The count.
    pub count: f64,
    /// How many there are to be.
    pub total: Option<f64>,
    /// When it last rose, seconds on the caller's clock.
    pub at_s: f64,
}

/// A moment at which a count had risen.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Mark {
    at_s: f64,
    /// Work since the stream began, over all segments.
    done: f64,
    /// Time that counts, since the stream began.
    live_s: f64,
}

/// What a stream did in some time.
#[derive(Debug, Clone, Copy, Default)]
struct Since {
    done: f64,
    live_s: f64,
}

/// Where a count stood before it fell.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Fallen {
    count: f64,
    mark: Mark,
    /// How often it has risen since, without being back.
    rises: u8,
}

#[derive(Debug, Clone)]
struct Stream {
    source: RateSource,
    key: String,
    unit: String,
    label: String,
    /// Of a bar without words, how many there were to be when it began.
    length: Option<f64>,
    kind: Kind,
    marks: VecDeque<Mark>,
    /// Averages that the task printed: time, items a second.
    averages: VecDeque<(f64, f64)>,
    /// Highest count of this segment.
    top: Option<f64>,
    /// The latest rise.
    rise: f64,
    fallen: Option<Fallen>,
    total: Option<f64>,
    /// Sightings in a row below it.
    below: u8,
    seen_s: f64,
}

/// What a task has counted so far.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    streams: Vec<Stream>,
    latencies: Latencies,
}

impl Tally {
    /// Nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A heartbeat. `writer` names the process (or the file) that it comes from: several processes may count the same
    /// steps one by one, which must not be added up. Those that give counts give the same ones.
    pub fn beat(&mut self, at_s: f64, writer: &str, beat: &Beat) {
        match beat {
            Beat::Step => self.steps(at_s, writer, 1),
            Beat::Latency(told) => self.latency(at_s, *told),
            Beat::Count(said) => {
                let at = self.stream(at_s, RateSource::Heartbeat, format!("count {}", said.unit), said);
                self.count(at, at_s, said.count, said.total);
            }
        }
    }

    /// A server says how long a request took, or what its own 99th percentile is.
    pub fn latency(&mut self, at_s: f64, told: Told) {
        self.latencies.add(at_s, told);
    }

    /// The 99th percentile of what it said from one time to another, seconds.
    #[must_use]
    pub fn p99(&self, from_s: f64, to_s: f64) -> Option<P99> {
        self.latencies.p99(from_s, to_s)
    }

    /// Several steps at once, as [`Beat::Step`] so many times.
    pub fn steps(&mut self, at_s: f64, writer: &str, steps: u64) {
        let said = Said { unit: "steps".into(), count: None, total: None, per_s: None, label: String::new() };
        let at = self.stream(at_s, RateSource::Heartbeat, format!("{writer} steps"), &said);
        let count = self.streams[at].top.unwrap_or(0.0) + steps as f64;
        self.count(at, at_s, Some(count), None);
    }

    /// What the task printed.
    pub fn printed(&mut self, report: &Report) {
        let said = &report.said;
        let at = self.stream(report.at_s, RateSource::Printed, self.key(said), said);
        if let Some(per_s) = said.per_s.filter(|per_s| per_s.is_finite() && *per_s > 0.0) {
            push_bounded(&mut self.streams[at].averages, (report.at_s, per_s));
        }
        self.count(at, report.at_s, said.count, said.total);
    }

    /// How much the GPU has done for the task so far: the integral of an activity over time, e.g. SM-seconds.
    pub fn activity(&mut self, at_s: f64, unit: &str, done: f64) {
        let said =
            Said { unit: unit.to_owned(), count: None, total: None, per_s: None, label: String::new() };
        let at = self.stream(at_s, RateSource::Activity, unit.to_owned(), &said);
        self.count(at, at_s, Some(done), None);
    }

    /// Key of a printed count. A bar may tell its length at its end only, as in Keras' first epoch: it is the one that came to there.
    fn key(&self, said: &Said) -> String {
        let length = said.total.filter(|_| said.label.is_empty());
        let open = length.map(|length| (length, said.key_of_any_length()));
        let is = |s: &Stream, length| s.total.or(s.top).is_some_and(|known| Bar::are_alike(known, length));
        let has = |(length, key): &(f64, String)| {
            self.streams.iter().any(|s| s.source == RateSource::Printed && s.key == *key && is(s, *length))
        };
        open.filter(has).map_or_else(|| said.key(), |(_, key)| key)
    }

    /// Index of the stream, made if need be.
    fn stream(&mut self, at_s: f64, source: RateSource, key: String, said: &Said) -> usize {
        if let Some(at) = self.streams.iter().position(|s| s.source == source && s.key == key) {
            self.streams[at].seen_s = at_s;
            return at;
        }
        if self.streams.len() >= MOST_STREAMS {
            let oldest =
                self.streams.iter().enumerate().min_by(|(_, a), (_, b)| a.seen_s.total_cmp(&b.seen_s));
            if let Some((at, _)) = oldest {
                self.streams.swap_remove(at);
            }
        }
        self.streams.push(Stream {
            source,
            key,
            unit: said.unit.clone(),
            label: said.label.clone(),
            length: said.total.filter(|_| said.label.is_empty()),
            kind: said.kind(),
            marks: VecDeque::new(),
            averages: VecDeque::new(),
            top: None,
            rise: 0.0,
            fallen: None,
            total: None,
            below: 0,
            seen_s: at_s,
        });
        self.streams.len() - 1
    }

    fn count(&mut self, at: usize, at_s: f64, count: Option<f64>, total: Option<f64>) {
        let Some(count) = count.filter(|count| count.is_finite() && *count >= 0.0 && at_s.is_finite()) else {
            return;
        };
        let last = self.streams[at].marks.back().copied();
        // A clock that stands still or runs backwards gives no time.
        let at_s = last.map_or(at_s, |last| at_s.max(last.at_s));
        let stream = &self.streams[at];
        let back = stream.top.and_then(|top| stream.back(top, count));
        let since = back.map(|fallen| fallen.mark).or(last);
        let elsewhere = since.map_or(0.0, |since| self.elsewhere(at, since.at_s, at_s));
        let stream = &mut self.streams[at];
        stream.total = total.or(stream.total);
        match (stream.top, last) {
            (Some(top), Some(last)) if count > top => {
                let (base, since) = back.map_or((top, last), |fallen| (fallen.count, fallen.mark));
                let live_s = since.live_s + (at_s - since.at_s - elsewhere).max(0.0);
                let mark = Mark {
                    at_s,
                    done: last.done.max(since.done + (count - base)),
                    live_s: last.live_s.max(live_s),
                };
                if back.is_some() {
                    stream.forget_falls(since);
                }
                stream.rise = count - base;
                match &mut stream.fallen {
                    Some(fallen) if count < fallen.count => fallen.rises = fallen.rises.saturating_add(1),
                    fallen => *fallen = None,
                }
                stream.top = Some(count);
                stream.below = 0;
                stream.mark(mark);
            }
            (Some(top), Some(_)) if count == top => stream.below = 0,
            (Some(top), Some(last)) => {
                stream.below = stream.below.saturating_add(1);
                if count * 2.0 <= top || stream.below >= BELOW {
                    stream.fall(top, last);
                    stream.top = Some(count);
                    stream.below = 0;
                    // Where the time from here on begins.
                    stream.mark(Mark { at_s, ..last });
                }
            }
            _ => {
                stream.top = Some(count);
                stream.mark(Mark { at_s, done: 0.0, live_s: 0.0 });
            }
        }
    }

    /// Longest time within (`from`, `to`) that another stream of the same source was under way.
    fn elsewhere(&self, at: usize, from: f64, to: f64) -> f64 {
        let source = self.streams[at].source;
        let others = self.streams.iter().enumerate().filter(|(i, s)| *i != at && s.source == source);
        others
            .map(|(_, other)| {
                let inside = |mark: &&Mark| mark.at_s > from && mark.at_s < to;
                // Marks are in order, and those looked for are the newest.
                let mut inside = other.marks.iter().rev().take_while(|m| m.at_s > from).filter(inside);
                let last = inside.next();
                let first = inside.last();
                first.zip(last).map_or(0.0, |(first, last)| last.at_s - first.at_s)
            })
            .fold(0.0, f64::max)
    }

    /// The best rate over a window, by the order above. `None`: nothing was counted in it.
    #[must_use]
    pub fn best(&self, from_s: f64, to_s: f64) -> Option<Measured> {
        self.best_between(from_s, to_s, f64::INFINITY, None)
    }

    /// The same without silences of more than `pause_s` seconds. `own`: a rate of the count of the task's work as far as is known, which
    /// goes before others of its source.
    #[must_use]
    pub fn best_between(&self, from_s: f64, to_s: f64, pause_s: f64, own: Option<&Rate>) -> Option<Measured> {
        [RateSource::Heartbeat, RateSource::Printed, RateSource::Activity]
            .into_iter()
            .find_map(|source| self.between(source, from_s, to_s, pause_s, own))
    }

    /// Whether `other` takes the place of `own` as the count of the task's work: that is gone for good, or it is at its end and the other
    /// has gone on since for longer than its last pass took. Bars of evaluation come between those of training, and are
    /// shorter; what was a preparation does not begin anew. Neighbours may make one longer than that, so one that came before, and took
    /// less time in all, must have gone on for twice as long as both, or for longer than that and more than one pass.
    fn is_superseded(&self, own: &Rate, other: &Rate, now_s: f64) -> bool {
        let of = |count| self.streams.iter().filter(move |s| s.is(count));
        let Some(last) = of(own).max_by(|a, b| a.seen_s.total_cmp(&b.seen_s)) else { return true };
        let live_s = of(own).map(|s| s.since(f64::NEG_INFINITY).live_s).fold(0.0, f64::max);
        let others_s = |at_s: f64| of(other).map(|s| s.since(at_s).live_s).sum::<f64>();
        let takes_over = |end: &Mark| {
            let since_s = others_s(end.at_s);
            let before_s = others_s(f64::NEG_INFINITY) - since_s;
            let needs_s = if before_s > 0.0 && before_s < live_s {
                2.0 * last.pass_s().max(before_s)
            } else {
                last.pass_s()
            };
            let is_longer = since_s > last.pass_s();
            since_s > needs_s || is_longer && of(other).any(|s| s.is_in_second_pass_since(end.at_s))
        };
        let end = last.marks.back().filter(|_| last.is_over());
        now_s - last.seen_s > live_s.max(GONE_S) || end.is_some_and(takes_over)
    }

    /// Since when nothing that the task counts itself has risen, seconds on the caller's clock. `None`: the count `own`, or the last one that
    /// rose, is at its end, so that its silence tells nothing; or nothing was counted.
    #[must_use]
    pub fn silent_since_s(&self, own: Option<&Rate>) -> Option<f64> {
        let counts = || self.streams.iter().filter(|s| s.source != RateSource::Activity);
        let rose = |s: &Stream| Some(s.marks.back()?.at_s);
        let last = |a: &&Stream, b: &&Stream| rose(a).partial_cmp(&rose(b)).unwrap_or(Ordering::Equal);
        let latest = counts().max_by(last)?;
        let main = counts().filter(|s| own.is_some_and(|own| s.is(own))).max_by(last);
        if main.unwrap_or(latest).is_over() { None } else { rose(latest) }
    }

    /// For how long a task that stands still has counted nothing, seconds. `None`: its silences go as far, or its count is at its end, or too
    /// few were counted. `still`: times in which it was made to stand still, as in [`Self::done`].
    #[must_use]
    pub fn stands_still_s(&self, still: &[(f64, f64)], now_s: f64) -> Option<f64> {
        let since_s = self.silent_since_s(None)?;
        let silent_s = now_s - since_s - overlap(still, since_s, now_s);
        if silent_s < STILL_S {
            return None;
        }
        let counts = self.streams.iter().filter(|s| s.source != RateSource::Activity);
        let latest = counts.filter(|s| s.marks.back().is_some_and(|mark| mark.at_s >= since_s));
        let gaps = latest.filter_map(|stream| stream.gaps_of_late_s(still));
        let (mean_s, longest_s) = gaps.max_by(|a, b| a.1.total_cmp(&b.1))?;
        (silent_s >= (STILL * mean_s).max(2.0 * longest_s)).then_some(silent_s)
    }

    /// The best rate of one source.
    #[must_use]
    pub fn of(&self, source: RateSource, from_s: f64, to_s: f64) -> Option<Measured> {
        self.between(source, from_s, to_s, f64::INFINITY, None)
    }

    fn between(
        &self,
        source: RateSource,
        from_s: f64,
        to_s: f64,
        pause_s: f64,
        own: Option<&Rate>,
    ) -> Option<Measured> {
        let streams = || self.streams.iter().filter(|s| s.source == source);
        let counted: Vec<(&Stream, Measured)> =
            streams().filter_map(|s| Some((s, self.counted(s, from_s, to_s, pause_s)?))).collect();
        let main = counted.iter().map(|(s, _)| s.kind).min();
        let is_own = |m: &Measured| own.is_some_and(|own| own.counts_like(&m.rate));
        let pick = |all: bool| {
            let counted = || {
                let of_kind = counted.iter().filter(|(s, _)| Some(s.kind) == main);
                of_kind.map(|(_, m)| m).filter(move |m| all || is_own(m))
            };
            let longest = counted().map(|m| m.live_s).fold(0.0, f64::max);
            counted().filter(|m| m.live_s >= ABOUT_AS_LONG * longest).max_by(|a, b| {
                (a.advances, a.counted).partial_cmp(&(b.advances, b.counted)).unwrap_or(Ordering::Equal)
            })
        };
        let best = pick(true);
        let goes_on = |own| best.is_some_and(|best| !self.is_superseded(own, &best.rate, to_s));
        let best = own.filter(|own| goes_on(own)).and_then(|_| pick(false)).or(best);
        // An average that is printed beside a count may hold the start-up: the first one of a training does. The counts tell, once there are more.
        let finer = |s: &Stream| s.kind == Kind::Work && s.unit != EPOCHS && s.has_counted(from_s, to_s);
        let averaged = streams().filter(|s| s.top.is_none() && !streams().any(finer));
        let averaged = averaged.filter_map(|s| Some((s.kind, s.averaged(from_s, to_s)?)));
        let averaged = averaged.min_by_key(|(kind, _)| *kind);
        // Nor do a few epochs tell more, or an evaluation.
        let tells = |(kind, averaged): &(Kind, Measured)| {
            best.is_none_or(|best| {
                let few = best.advances < FEW || (is_epochs(best) && best.advances < averaged.advances);
                averaged.advances >= FEW && (few || Some(*kind) < main)
            })
        };
        let found = averaged.filter(tells).map(|(_, averaged)| averaged).or_else(|| best.cloned())?;
        let is = |own: &Rate| own.counts_like(&found.rate) || self.is_superseded(own, &found.rate, to_s);
        let evaluates = found.rate.aside && self.began_s().is_some();
        let is_work = own.is_none_or(is) && !found.prepares && !evaluates;
        Some(Measured { is_work, ..found })
    }

    /// The rate of a stream from its counts.
    fn counted(&self, stream: &Stream, from_s: f64, to_s: f64, pause_s: f64) -> Option<Measured> {
        let others = || self.streams.iter().filter(|s| s.source == stream.source && s.key != stream.key);
        stream.counted(from_s, to_s, pause_s, |after, until| {
            others().any(|other| {
                let marks = &other.marks;
                let next = marks.partition_point(|mark| mark.at_s <= after);
                marks.get(next).is_some_and(|mark| mark.at_s <= until)
            })
        })
    }

    /// Where the task has counted anything itself, the best of these.
    #[must_use]
    pub fn counts(&self) -> Option<RateSource> {
        let own = self.streams.iter().filter(|s| s.source != RateSource::Activity && s.top.is_some());
        own.map(|s| s.source).min()
    }

    /// The latest counts, best source first, then the newest.
    #[must_use]
    pub fn latest(&self) -> Vec<Latest> {
        let mut latest: Vec<Latest> = self
            .streams
            .iter()
            .filter_map(|s| {
                Some(Latest {
                    source: s.source,
                    unit: s.unit.clone(),
                    label: s.label.clone(),
                    count: s.top?,
                    total: s.total,
                    at_s: s.marks.back()?.at_s,
                })
            })
            .collect();
        latest.sort_by(|a, b| a.source.cmp(&b.source).then(b.at_s.total_cmp(&a.at_s)));
        latest
    }

    /// When the task first counted something itself, seconds on the caller's clock.
    #[must_use]
    pub fn began_s(&self) -> Option<f64> {
        let own = self.streams.iter().filter(|s| s.source != RateSource::Activity && s.kind == Kind::Work);
        own.filter(|s| s.marks.len() > 1)
            .filter_map(|s| s.marks.front())
            .map(|m| m.at_s)
            .min_by(f64::total_cmp)
    }
}

fn is_epochs(measured: &Measured) -> bool {
    measured.rate.unit.as_deref() == Some(EPOCHS)
}

impl Stream {
    /// Whether it is the count that this is a rate of.
    fn is(&self, count: &Rate) -> bool {
        count.counts_like(&self.rate(0.0))
    }

    /// Work that it did after this time, and time that it went on, without new starts and asides, seconds.
    fn since(&self, at_s: f64) -> Since {
        let before = self.marks.partition_point(|mark| mark.at_s <= at_s).saturating_sub(1);
        let ends = self.marks.get(before).zip(self.marks.back());
        ends.map_or(Since::default(), |(a, b)| Since { done: b.done - a.done, live_s: b.live_s - a.live_s })
    }

    /// Whether it has counted more after this time than there is in one pass.
    fn is_in_second_pass_since(&self, at_s: f64) -> bool {
        self.total.is_some_and(|total| self.since(at_s).done > total)
    }

    /// How long it went on since it last started anew, seconds.
    fn pass_s(&self) -> f64 {
        let Some((last, top)) = self.marks.back().zip(self.top) else { return 0.0 };
        let before = self.marks.partition_point(|mark| mark.done <= last.done - top).saturating_sub(1);
        self.marks.get(before).map_or(0.0, |began| last.live_s - began.live_s)
    }

    /// Whether its count rose, or began, in this time.
    fn has_counted(&self, from_s: f64, to_s: f64) -> bool {
        let since = self.marks.partition_point(|mark| mark.at_s < from_s);
        self.marks.get(since).is_some_and(|mark| mark.at_s <= to_s)
    }

    /// Time between two marks of late, the mean and the longest, seconds, without times in which the task was made to stand still. `None`:
    /// there are fewer than two gaps.
    fn gaps_of_late_s(&self, still: &[(f64, f64)]) -> Option<(f64, f64)> {
        let last_s = self.marks.back()?.at_s;
        let older = |(ago, mark): &(usize, &Mark)| *ago >= FEW_MARKS && last_s - mark.at_s > LOOK_BACK_S;
        let from =
            self.marks.iter().rev().enumerate().find(older).map_or(0, |(ago, _)| self.marks.len() - ago);
        let gap_s = |(a, b): (&Mark, &Mark)| b.at_s - a.at_s - overlap(still, a.at_s, b.at_s);
        let gaps: Vec<f64> = self.marks.range(from..).zip(self.marks.range(from + 1..)).map(gap_s).collect();
        let longest_s = gaps.iter().copied().fold(0.0, f64::max);
        (gaps.len() >= 2).then(|| (gaps.iter().sum::<f64>() / gaps.len() as f64, longest_s))
    }

    /// Whether it has counted all that there is.
    fn is_over(&self) -> bool {
        self.top.zip(self.total).is_some_and(|(top, total)| top >= total)
    }

    /// What it fell from, if a rise from `top` to `count` leads back there rather than on.
    fn back(&self, top: f64, count: f64) -> Option<Fallen> {
        let fallen = self.fallen.filter(|fallen| count > top && count >= fallen.count)?;
        let most = if fallen.rises >= RISES {
            JUMP * self.rise
        } else if count > fallen.count {
            0.0
        } else {
            EQUAL_JUMP * self.rise
        };
        (count - top > most).then_some(fallen)
    }

    /// Remembers where it fell from.
    fn fall(&mut self, top: f64, mark: Mark) {
        let known = self.fallen.is_some_and(|fallen| fallen.count > top && fallen.rises < RISES);
        // One that was at its end does start anew.
        let was_over = self.total.is_some_and(|total| top >= total);
        if was_over {
            self.fallen = None;
        } else if !known {
            self.fallen = Some(Fallen { count: top, mark, rises: 0 });
        }
    }

    /// It did not start anew after this mark.
    fn forget_falls(&mut self, since: Mark) {
        while self.marks.back().is_some_and(|mark| mark.at_s > since.at_s && mark.done <= since.done) {
            self.marks.pop_back();
        }
    }

    fn mark(&mut self, mark: Mark) {
        let len = self.marks.len();
        // The first mark of a stream stays, and so does one at which a segment ended.
        if len >= 2
            && let (Some(last), Some(before)) = (self.marks.get(len - 1).copied(), self.marks.get(len - 2))
            && mark.at_s - before.at_s < RESOLUTION_S
            && mark.done > last.done
            && last.done > before.done
        {
            self.marks.pop_back();
        }
        if self.marks.len() >= MOST_MARKS {
            self.thin(mark.at_s);
        }
        self.marks.push_back(mark);
    }

    /// Makes room. The marks that are left are evenly spaced, those of the far past more widely: else what lies between them would pass for
    /// silences of the task. The first stays.
    fn thin(&mut self, now_s: f64) {
        let Some(first_s) = self.marks.front().map(|mark| mark.at_s) else { return };
        let near_s = first_s.max(now_s - LOOK_BACK_S);
        let near_gap_s = (now_s - near_s) / NEAR_MARKS;
        let far_gap_s = ((near_s - first_s) / FAR_MARKS).max(near_gap_s);
        let mut kept_s = f64::NEG_INFINITY;
        let mut next: VecDeque<f64> = self.marks.iter().skip(1).map(|mark| mark.at_s).collect();
        self.marks.retain(|mark| {
            let gap_s = if mark.at_s < near_s { far_gap_s } else { near_gap_s };
            let next_s = next.pop_front().unwrap_or(f64::INFINITY);
            let keeps = mark.at_s - kept_s >= gap_s || next_s - kept_s > 2.0 * gap_s;
            if keeps {
                kept_s = mark.at_s;
            }
            keeps
        });
    }

    /// The rate from counts, without silences of more than `pause_s` seconds. `rose`: whether another stream of this source rose after the one time and by the other.
    fn counted(
        &self,
        from_s: f64,
        to_s: f64,
        pause_s: f64,
        rose: impl Fn(f64, f64) -> bool,
    ) -> Option<Measured> {
        let end = self.marks.iter().rposition(|m| m.at_s <= to_s)?;
        let inside = self.marks.partition_point(|m| m.at_s < from_s);
        // Slow counters, of epochs say, may have begun a little earlier.
        let start = if inside < end {
            inside
        } else {
            let before = inside.checked_sub(1)?;
            if inside > end || from_s - self.marks[before].at_s > to_s - from_s {
                return None;
            } else {
                before
            }
        };
        // What came with the first count at one moment was done before.
        let at_once = |mark: &&Mark| mark.at_s - self.marks[start].at_s <= RESOLUTION_S;
        let burst = self.marks.range(start..end).take_while(at_once).count();
        let start = start + burst.saturating_sub(1);
        let (first, last) = (self.marks[start], self.marks[end]);
        let steps = (start..end).map(|i| (self.marks[i], self.marks[i + 1]));
        // What was counted over a pause may have been done in it.
        let (paused, steps): (Vec<_>, Vec<_>) = steps.partition(|(a, b)| b.live_s - a.live_s > pause_s);
        let of_pauses = |of: fn(&Mark) -> f64| paused.iter().map(|(a, b)| of(b) - of(a)).sum::<f64>();
        let counted = last.done - first.done - of_pauses(|mark| mark.done);
        // Lines of one burst came at one moment: that they are many says nothing of time.
        let mut gaps: Vec<f64> = Vec::new();
        let mut gap_s = 0.0;
        for (a, b) in &steps {
            gap_s += b.live_s - a.live_s;
            if gap_s > RESOLUTION_S && b.done > a.done {
                gaps.push(std::mem::take(&mut gap_s));
            }
        }
        let advances = gaps.len();
        let longest = steps.iter().map(|(a, b)| b.at_s - a.at_s).fold(0.0, f64::max);
        // It has been silent for longer than ever, and nothing else went on: it is stuck, not between two marks.
        let stuck = |from: f64, to: f64, most: f64| {
            let all = (to - from).min(most);
            let silent = all - 2.0 * longest;
            if all <= pause_s && silent > 0.0 && !rose(from, to) { silent } else { 0.0 }
        };
        let at_end = stuck(last.at_s, to_s, f64::INFINITY);
        // The same at the beginning, if it was under way before: not while it started anew, say.
        let before = start.checked_sub(1).map(|before| self.marks[before]);
        let at_start = before.map_or(0.0, |before| stuck(from_s, first.at_s, first.live_s - before.live_s));
        let moving_s = last.live_s - first.live_s - of_pauses(|mark| mark.live_s);
        if counted <= 0.0 || moving_s < RESOLUTION_S {
            return None;
        }
        let live_s = moving_s + at_start + at_end;
        let silent_s = if at_end > 0.0 { to_s - last.at_s } else { 0.0 };
        let gaps_s = (
            carma_stats::median(gaps.clone()).unwrap_or_default(),
            gaps.into_iter().fold(silent_s, f64::max),
        );
        let quality = match advances {
            0..=2 => Quality::Poor,
            3..=9 => Quality::Fair,
            _ if live_s < 2.0 => Quality::Fair,
            _ => Quality::Good,
        };
        let rate = self.rate(counted / live_s);
        let span_s = (first.at_s, last.at_s);
        let cv = self.variation(start, end);
        Some(Measured {
            rate,
            span_s,
            live_s,
            counted,
            advances,
            gaps_s,
            cv,
            is_average: false,
            prepares: self.kind == Kind::Preparing,
            is_work: self.kind == Kind::Work,
            quality,
        })
    }

    fn rate(&self, per_s: f64) -> Rate {
        let (unit, source) = (Some(self.unit.clone()), Some(self.source));
        let bar = Bar { label: self.label.clone(), total: self.length, iterations: None };
        let bar = (self.source == RateSource::Printed).then_some(bar);
        Rate { per_s, unit, source, aside: self.kind != Kind::Work, bar, pauses: None }
    }

    /// Coefficient of variation of the rate between about [`PIECES`] marks.
    fn variation(&self, start: usize, end: usize) -> Option<f64> {
        let pieces = PIECES.min((end - start) / 2);
        if pieces < 3 {
            return None;
        }
        let at = |piece: usize| self.marks[start + (end - start) * piece / pieces];
        let rates: Vec<f64> = (0..pieces)
            .filter_map(|piece| {
                let (a, b) = (at(piece), at(piece + 1));
                (b.live_s > a.live_s).then(|| (b.done - a.done) / (b.live_s - a.live_s))
            })
            .collect();
        crate::profile::Stat::from_values(&rates).and_then(|stat| stat.cv)
    }

    /// The median of the averages that it printed.
    fn averaged(&self, from_s: f64, to_s: f64) -> Option<Measured> {
        let mut inside: Vec<f64> =
            self.averages.iter().filter(|(at, _)| (from_s..=to_s).contains(at)).map(|(_, v)| *v).collect();
        let times = || self.averages.iter().map(|(at, _)| *at).filter(|at| (from_s..=to_s).contains(at));
        inside.sort_by(f64::total_cmp);
        let per_s = carma_stats::high_median(&inside)?;
        let span_s = (times().fold(to_s, f64::min), times().fold(from_s, f64::max));
        Some(Measured {
            rate: self.rate(per_s),
            span_s,
            live_s: span_s.1 - span_s.0,
            counted: 0.0,
            advances: inside.len(),
            gaps_s: (0.0, 0.0),
            cv: None,
            is_average: true,
            prepares: self.kind == Kind::Preparing,
            is_work: self.kind == Kind::Work,
            quality: Quality::Poor,
        })
    }
}

fn push_bounded(queue: &mut VecDeque<(f64, f64)>, item: (f64, f64)) {
    if queue.len() >= MOST_MARKS {
        queue.pop_front();
    }
    queue.push_back(item);
}

#[cfg(test)]
#[path = "tally_tests.rs"]
mod tests;
