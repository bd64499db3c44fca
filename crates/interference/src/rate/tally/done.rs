//! How much of all its work a task has done, by its own counts: `step 300/1000`, bars, epochs.

use super::{Kind, Mark, RateSource, Stream, Tally};

/// Marks from which a pace can be told.
const PACED: usize = 3;
/// So many steps a task may be silent for and be taken to go on as it did.
const STEPS: f64 = 3.0;
/// Seconds of them after neighbours came or went, from which the new pace can.
const ANEW_S: f64 = 5.0;

/// How far a task is by its own count.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Done {
    /// Share of all its work that is done, 0 to 1.
    pub share: f64,
    /// Share that it does in a second, over the later half of the time in which it counted, or since its neighbours changed; `None`: not
    /// known yet.
    pub per_s: Option<f64>,
    /// When the count last rose, seconds on the caller's clock; later by the time that the task has stood still since.
    pub at_s: f64,
    /// Time that it has counted for, seconds.
    pub took_s: f64,
    /// It goes on so long after its count last rose, as far as it is known, seconds: its longest silence of late, or a few steps.
    pub goes_on_s: f64,
}

impl Done {
    /// Whether it goes on for longer after its count was at its end than that took: what it counted was not all that it does.
    #[must_use]
    pub fn is_past(&self, now_s: f64) -> bool {
        self.share >= 1.0 && now_s - self.at_s > self.took_s
    }

    /// What is left at a time, seconds. While it counts nothing for longer than it has of late it may do nothing, and no less is left.
    #[must_use]
    pub fn left_s(&self, now_s: f64) -> Option<f64> {
        self.left_after_s((now_s - self.at_s).min(self.goes_on_s))
    }

    /// The same of one that cannot be heard, if it goes on as it did.
    #[must_use]
    pub fn left_unheard_s(&self, now_s: f64) -> Option<f64> {
        self.left_after_s(now_s - self.at_s)
    }

    /// So long after its count last rose.
    fn left_after_s(&self, since_s: f64) -> Option<f64> {
        let left = (1.0 - self.share) / self.per_s? - since_s.max(0.0);
        left.is_finite().then(|| left.max(0.0))
    }
}

impl Tally {
    /// How far the task is, where it says how much there is to do: heartbeats before what it prints. A bar that starts
    /// anew is one pass of many, and counts where the task also says which pass of how many it is (`Epoch 3/10`). `None`:
    /// it gives no total, or does not say of what.
    ///
    /// `still`: times in which the task was made to stand still, from and to on the caller's clock, in order and apart. They say
    /// nothing of its pace. `changed_s`: when those beside it last came or went: what it counted before went at another one.
    #[must_use]
    pub fn done(&self, still: &[(f64, f64)], changed_s: Option<f64>) -> Option<Done> {
        let times = Times { still, changed_s };
        [RateSource::Heartbeat, RateSource::Printed].into_iter().find_map(|source| {
            let all = || self.streams.iter().filter(|s| s.source == source && s.kind == Kind::Work);
            let whole: Vec<Whole<'_>> = all().filter_map(Whole::of).collect();
            let latest = |a: &&Whole<'_>, b: &&Whole<'_>| a.last.at_s.total_cmp(&b.last.at_s);
            let epochs = whole.iter().filter(|w| w.is_epochs()).max_by(latest);
            let Some(epochs) = epochs else {
                // The one that has gone on for longest; what is finished was a preparation, if another is not.
                let single = |w: &&Whole<'_>| !w.starts_anew() && !w.is_of_an_epoch();
                let open = whole.iter().filter(single).filter(|w| w.count < w.total);
                let first = |a: &&Whole<'_>, b: &&Whole<'_>| b.first.at_s.total_cmp(&a.first.at_s);
                // It was all that there is, unless another has gone on since: the training of the next epoch, after a validation.
                let newest = all().filter_map(|s| Some(s.marks.back()?.at_s)).fold(0.0, f64::max);
                let finished =
                    || whole.iter().filter(single).filter(|w| w.last.at_s >= newest).max_by(latest);
                let main = open.max_by(first).or_else(finished)?;
                return Some(main.done(main.count / main.total, 1.0 / main.total, &times));
            };
            let inner = whole.iter().filter(|w| !w.is_epochs()).max_by(latest);
            // An epoch that is named has begun; that it is over shows by the next.
            let over = (epochs.count - 1.0).max(0.0);
            Some(match inner {
                Some(inner) if inner.is_of_all(epochs) => {
                    inner.done(inner.count / inner.total, 1.0 / inner.total, &times)
                }
                Some(inner) => inner.done(
                    (over + inner.count / inner.total) / epochs.total,
                    1.0 / (inner.total * epochs.total),
                    &times,
                ),
                None => epochs.done(over / epochs.total, 1.0 / epochs.total, &times),
            })
        })
    }
}

/// What is known of the time in which a task counted.
struct Times<'a> {
    /// In these times it was made to stand still.
    still: &'a [(f64, f64)],
    /// When those beside it last came or went.
    changed_s: Option<f64>,
}

/// A stream that says how many there are to be.
struct Whole<'a> {
    stream: &'a Stream,
    count: f64,
    total: f64,
    first: Mark,
    last: Mark,
}

impl<'a> Whole<'a> {
    fn of(stream: &'a Stream) -> Option<Self> {
        let (count, total) = (stream.top?, stream.total.filter(|total| total.is_finite() && *total > 0.0)?);
        let (first, last) = (*stream.marks.front()?, *stream.marks.back()?);
        Some(Self { stream, count: count.min(total), total, first, last })
    }

    fn is_epochs(&self) -> bool {
        self.stream.unit == super::EPOCHS
    }

    /// It has counted more than it stands at.
    fn starts_anew(&self) -> bool {
        self.last.done > self.count
    }

    /// A bar that is named after an epoch: `Epoch 3:  45%|`. One of all epochs is named in the plural.
    fn is_of_an_epoch(&self) -> bool {
        self.stream.label.split(' ').any(|word| word == "epoch")
    }

    /// Whether it counts through all epochs, as `Epoch 3/10, step 250/1000` does: it is where such a count is in this epoch.
    /// In the first epoch that cannot be told, and it is taken for one of the epoch.
    fn is_of_all(&self, epochs: &Self) -> bool {
        let (share, epoch) = (self.count / self.total, 1.0 / epochs.total);
        let within = ((epochs.count - 1.0) * epoch - 0.5 * epoch)..=((epochs.count + 0.5) * epoch);
        epochs.count > 1.0 && !self.starts_anew() && within.contains(&share)
    }

    /// `unit`: the share of all work that one count is.
    fn done(&self, share: f64, unit: f64, times: &Times<'_>) -> Done {
        let (marks, still) = (&self.stream.marks, times.still);
        let ran = |from: f64, to: f64| to - from - overlap(still, from, to);
        let half = ran(self.first.at_s, self.last.at_s) / 2.0;
        let from = marks.iter().rposition(|mark| ran(self.first.at_s, mark.at_s) <= half).unwrap_or(0);
        let since =
            times.changed_s.and_then(|changed_s| marks.iter().position(|mark| mark.at_s >= changed_s));
        let is_enough = |since: &usize| {
            let begun = marks.get(*since).map(|mark| ran(mark.at_s, self.last.at_s));
            marks.len() - since >= PACED && begun.is_some_and(|told_s| told_s >= ANEW_S)
        };
        let from = since.filter(is_enough).map_or(from, |since| since.max(from));
        let later = || marks.range(from..).zip(marks.range(from + 1..));
        // A step in which it was made to stand still took longer than just that: to be stopped, and to go on.
        let undisturbed = later().filter(|(a, b)| overlap(still, a.at_s, b.at_s) == 0.0);
        let pace = |(did, took): (f64, f64)| (did > 0.0 && took > 0.0).then(|| did * unit / took);
        let sum = |(did, took), (a, b): (&Mark, &Mark)| (did + b.done - a.done, took + ran(a.at_s, b.at_s));
        let per_s = pace(undisturbed.fold((0.0, 0.0), sum)).or_else(|| pace(later().fold((0.0, 0.0), sum)));
        let gaps = self.stream.gaps_of_late_s(still);
        Done {
            share: share.clamp(0.0, 1.0),
            per_s: per_s.filter(|_| marks.len() >= PACED),
            took_s: ran(self.first.at_s, self.last.at_s),
            at_s: self.last.at_s + overlap(still, self.last.at_s, f64::INFINITY),
            goes_on_s: gaps.map_or(0.0, |(mean_s, longest_s)| longest_s.max(STEPS * mean_s)),
        }
    }
}

/// How much of these times lies between two times.
pub(super) fn overlap(times: &[(f64, f64)], from: f64, to: f64) -> f64 {
    times.iter().map(|(begin, end)| (end.min(to) - begin.max(from)).max(0.0)).sum()
}

#[cfg(test)]
mod tests {
    use super::super::{Beat, Report, Said};
    use super::*;
    use crate::rate::printed::Printed;

    /// What is counted after these lines, one a second, and what is left by then.
    fn after(lines: impl IntoIterator<Item = String>) -> Option<(f64, Option<f64>)> {
        let (mut printed, mut tally, mut now) = (Printed::new(), Tally::new(), 0.0);
        for line in lines {
            now += 1.0;
            let mut reports = Vec::new();
            printed.feed(now, format!("{line}\n").as_bytes(), &mut reports);
            reports.iter().for_each(|report| tally.printed(report));
        }
        let told = tally.done(&[], None)?;
        let left = told.left_s(now).map(|left| (left * 10.0).round() / 10.0);
        Some(((told.share * 1000.0).round() / 1000.0, left))
    }

    fn said(count: f64, total: f64) -> Said {
        let (count, total) = (Some(count), Some(total));
        Said { unit: "steps".into(), count, total, per_s: None, label: String::new() }
    }

    fn bar(count: u32, total: u32) -> String {
        format!(" 5%|# | {count}/{total} [00:01<00:04, 9it/s]")
    }

    #[test]
    fn one_count_of_all() {
        assert_eq!(
            after((1..=30).map(|i| format!("step {}/1000 loss 2.1", i * 10))),
            Some((0.3, Some(70.0)))
        );
        assert_eq!(after((0..=30).map(|i| bar(i, 100))), Some((0.3, Some(70.0))));
        // A single look has no pace, and no total is no whole.
        assert_eq!(after([bar(7, 100)]), Some((0.07, None)));
        assert_eq!(after((0..9).map(|i| format!("step {i} loss 2"))), None);
        assert_eq!(after((0..=9).map(|i| bar(i, 9))), Some((1.0, Some(0.0))));
    }

    #[test]
    fn it_goes_by_the_later_half() {
        // 1 a second, then a neighbour comes and it is 1 in two seconds.
        let fast = (0..=20).map(|i| bar(i, 100));
        let slow = (41..=100).map(|i| bar(i / 2, 100));
        let (share, left) = after(fast.chain(slow)).unwrap();
        assert_eq!((share, left), (0.5, Some(100.0)));
    }

    #[test]
    fn it_goes_by_what_it_counted_since_its_neighbours_changed() {
        let mut tally = Tally::new();
        // 1 in two seconds until a neighbour leaves at 100 s, then 1 a second.
        let slow = (0..=50_u32).map(|i| (f64::from(i) * 2.0, i));
        let fast = (1..=10_u32).map(|i| (100.0 + f64::from(i), 50 + i));
        for (at_s, count) in slow.chain(fast) {
            tally.printed(&Report { at_s, said: said(f64::from(count), 100.0) });
        }
        let left = |changed_s| tally.done(&[], changed_s).unwrap().left_s(110.0).map(f64::round);
        assert_eq!(
            [left(Some(100.0)), left(Some(104.0)), left(Some(0.0))],
            [Some(40.0), Some(40.0), left(None)]
        );
        assert!(left(None) > Some(60.0));
        // Too little is told since then.
        assert_eq!(left(Some(106.0)), left(None));
    }

    #[test]
    fn it_stands_still_and_goes_on() {
        let mut tally = Tally::new();
        let mut step = |at_s: f64, count: f64| {
            tally.printed(&Report { at_s, said: said(count, 100.0) });
            tally.clone()
        };
        (0..=20).for_each(|i| drop(step(f64::from(i), f64::from(i))));
        let left = |tally: &Tally, still: &[(f64, f64)], now_s: f64| {
            tally.done(still, None).unwrap().left_s(now_s).map(f64::round)
        };
        // It is told to stop in the middle of a step, and has left two seconds later: what is left stays as it is.
        let tally = step(20.0, 20.0);
        for now in [22.0, 60.0, 150.0] {
            assert_eq!(left(&tally, &[(22.0, now)], now), Some(78.0), "{now}");
        }
        let still = [(22.0, 150.0)];
        assert_eq!(left(&tally, &still, 151.0), Some(77.0));
        // The step that it was stopped in says nothing, and the next ones are as those before.
        for i in 21..=60_u32 {
            let at_s = f64::from(i) + 131.5;
            let tally = step(at_s, f64::from(i));
            assert_eq!(left(&tally, &still, at_s), Some(f64::from(100 - i)), "{i}");
        }
        // Each step is one in which it was stopped: then that is what there is.
        let mut slow = Tally::new();
        for (at_s, count) in [(0.0, 0.0), (100.0, 1.0), (200.0, 2.0)] {
            slow.printed(&Report { at_s, said: said(count, 10.0) });
        }
        assert_eq!(left(&slow, &[(10.0, 60.0), (110.0, 160.0)], 200.0), Some(400.0));
    }

    #[test]
    fn epochs_and_their_bars() {
        let epoch =
            |e: u32| (0..=10).map(move |i| format!("Epoch {e}/5:  45%|# | {i}/10 [00:01<00:04, 9it/s]"));
        // Two and a half of five epochs: 33 lines a pass of 11 s, at 6 of 11 of the third.
        let lines = epoch(1).chain(epoch(2)).chain(epoch(3).take(6));
        let (share, left) = after(lines).unwrap();
        assert_eq!(share, 0.5);
        assert!((25.0..=29.0).contains(&left.unwrap()), "{left:?}");
        // Keras prints the epoch on a line of its own.
        let keras = |e: u32| {
            std::iter::once(format!("Epoch {e}/4"))
                .chain((1..=8).map(|i| format!("{i}/8 [==>...] - ETA: 5s - loss: 0.3")))
        };
        assert_eq!(after(keras(1).chain(keras(2))).unwrap().0, 0.5);
        // Epochs alone: the one that is named has begun.
        assert_eq!(after((1..=3).map(|e| format!("Epoch {e}/10 loss 2.0"))), Some((0.2, Some(8.0))));
    }

    #[test]
    fn a_count_through_all_epochs_is_the_whole() {
        let lines = (1..=300).map(|i| format!("Epoch {}/10 step {i}/1000 loss 2", 1 + (i - 1) / 100));
        assert_eq!(after(lines).unwrap().0, 0.3);
    }

    #[test]
    fn passes_of_unknown_number_are_not_the_whole() {
        let pass = || (0..=10).map(|i| bar(i, 10));
        assert_eq!(after(pass().chain(pass().take(5))), None);
        assert_eq!(after((0..5).map(|i| format!("Epoch 0:  45%|# | {i}/10 [00:01<00:04, 9it/s]"))), None);
        // Nor is the validation that came between two of them, nor after it the next one.
        let validation = || (0..=4).map(|i| bar(i, 4));
        assert_eq!(after(pass().chain(validation()).chain(pass().take(5))), None);
        assert_eq!(after(pass().chain(validation()).chain(pass()).chain(validation().take(2))), None);
        // What comes before a single pass is: a preparation.
        assert_eq!(after(validation().chain(pass().take(6))).unwrap().0, 0.5);
        // Unless a bar of all of them stands beside it.
        let outer = |e: u32| std::iter::once(format!("Epochs:  5%|# | {e}/4 [00:01<00:04, 9it/s]"));
        let lines = outer(0).chain(pass()).chain(outer(1)).chain(pass()).chain(outer(2));
        assert_eq!(after(lines).unwrap().0, 0.5);
    }

    #[test]
    fn what_is_no_work_does_not_count() {
        let load = (0..=3).map(|i| format!("Loading checkpoint shards: 5%|# | {i}/3 [00:02<00:00, 1.2it/s]"));
        assert_eq!(after(load.clone()), None);
        let prepare = (0..=5).map(|i| format!("Tokenizing: 5%|# | {i}/5 [00:02<00:00, 1.2it/s]"));
        let lines = load.chain(prepare).chain((0..=4).map(|i| bar(i, 16)));
        assert_eq!(after(lines).unwrap().0, 0.25);
    }

    #[test]
    fn it_goes_on_for_as_long_as_it_was_silent_before() {
        let mut tally = Tally::new();
        let mut at_s = 0.0;
        for count in 0..=20 {
            at_s += if count == 3 { 10.0 } else { 1.0 };
            tally.printed(&Report { at_s, said: said(f64::from(count), 100.0) });
        }
        let left_s = |after_s: f64| tally.done(&[], None).unwrap().left_s(at_s + after_s).unwrap().round();
        assert_eq!([0.0, 8.0, 10.0, 3000.0].map(left_s), [80.0, 72.0, 70.0, 70.0]);
        let stands_still = |still: &[(f64, f64)], after_s: f64| tally.stands_still_s(still, at_s + after_s);
        let told = [10.0, 19.0, 20.0, 3000.0].map(|after_s| stands_still(&[], after_s));
        assert_eq!(told, [None, None, Some(20.0), Some(3000.0)]);
        // While it is suspended it is made to.
        let off = [(at_s + 5.0, at_s + 500.0)];
        let told = [400.0, 514.0, 515.0].map(|after_s| stands_still(&off, after_s));
        assert_eq!(told, [None, None, Some(20.0)]);
        // At its end it has nothing more to tell; of two counts it is not known how long it takes between them.
        let mut few = Tally::new();
        few.printed(&Report { at_s: 0.0, said: said(1.0, 3.0) });
        few.printed(&Report { at_s: 1.0, said: said(2.0, 3.0) });
        assert_eq!(few.stands_still_s(&[], 900.0), None);
        few.printed(&Report { at_s: 2.0, said: said(3.0, 3.0) });
        assert_eq!(few.stands_still_s(&[], 900.0), None);
    }

    #[test]
    fn of_a_long_run_the_silences_of_late_count() {
        let mut tally = Tally::new();
        for second in 0..20_000 {
            tally.steps(f64::from(second), "a", 1);
        }
        assert_eq!([20_013.0, 20_020.0].map(|now_s| tally.stands_still_s(&[], now_s)), [None, Some(21.0)]);
    }

    #[test]
    fn heartbeats_go_first() {
        let mut tally = Tally::new();
        for i in 0..10 {
            let at = f64::from(i);
            tally.beat(at, "", &Beat::Count(said(at, 90.0)));
            tally.printed(&Report { at_s: at, said: said(at, 10.0) });
        }
        let told = tally.done(&[], None).unwrap();
        assert_eq!((told.share, told.left_s(9.0)), (0.1, Some(81.0)));
        assert_eq!(Done { per_s: Some(0.0), ..told }.left_s(9.0), None);
        // It goes on for a few steps without a word, and if it cannot be heard for as long as it takes.
        assert_eq!([11.0, 12.0, 60.0].map(|now_s| told.left_s(now_s)), [79.0, 78.0, 78.0].map(Some));
        assert_eq!([60.0, 160.0].map(|now_s| told.left_unheard_s(now_s)), [30.0, 0.0].map(Some));
        // It goes on after it has counted all that there is: saving what it made, or serving it.
        let over = Done { share: 1.0, ..told };
        assert_eq!([9.0, 18.0, 18.1].map(|now_s| over.is_past(now_s)), [false, false, true]);
        assert!(!told.is_past(60.0));
    }
}
