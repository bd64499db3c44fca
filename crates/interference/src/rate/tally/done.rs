//! How much of all its work a task has done, by its own counts: `step 300/1000`, bars, epochs.

use super::{Mark, RateSource, Stream, Tally};

/// Marks from which a pace can be told.
const PACED: usize = 3;

/// How far a task is by its own count.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Done {
    /// Share of all its work that is done, 0 to 1.
    pub share: f64,
    /// Share that it does in a second, over the later half of the time that it has counted; `None`: not known yet.
    pub per_s: Option<f64>,
    /// When the count last rose, seconds on the caller's clock.
    pub at_s: f64,
}

impl Done {
    /// What is left at a time if it goes on as it did, seconds.
    #[must_use]
    pub fn left_s(&self, now_s: f64) -> Option<f64> {
        let left = (1.0 - self.share) / self.per_s? - (now_s - self.at_s).max(0.0);
        left.is_finite().then(|| left.max(0.0))
    }
}

impl Tally {
    /// How far the task is, where it says how much there is to do: heartbeats before what it prints. A bar that starts
    /// anew is one pass of many, and counts where the task also says which pass of how many it is (`Epoch 3/10`). `None`:
    /// it gives no total, or does not say of what.
    #[must_use]
    pub fn done(&self) -> Option<Done> {
        [RateSource::Heartbeat, RateSource::Printed].into_iter().find_map(|source| {
            let all = || self.streams.iter().filter(|s| s.source == source && !s.aside);
            let whole: Vec<Whole<'_>> = all().filter_map(Whole::of).collect();
            let latest = |a: &&Whole<'_>, b: &&Whole<'_>| a.last.at_s.total_cmp(&b.last.at_s);
            let epochs = whole.iter().filter(|w| w.is_epochs()).max_by(latest);
            let Some(epochs) = epochs else {
                // The one that has gone on for longest; what is finished was a preparation, if another is not.
                let single = |w: &&Whole<'_>| !w.starts_anew() && !w.is_of_an_epoch();
                let open = whole.iter().filter(single).filter(|w| w.count < w.total);
                let first = |a: &&Whole<'_>, b: &&Whole<'_>| b.first.at_s.total_cmp(&a.first.at_s);
                let main = open.max_by(first).or_else(|| whole.iter().filter(single).max_by(latest))?;
                return Some(main.done(main.count / main.total, 1.0 / main.total));
            };
            let inner = whole.iter().filter(|w| !w.is_epochs()).max_by(latest);
            // An epoch that is named has begun; that it is over shows by the next.
            let over = (epochs.count - 1.0).max(0.0);
            Some(match inner {
                Some(inner) if inner.is_of_all(epochs) => {
                    inner.done(inner.count / inner.total, 1.0 / inner.total)
                }
                Some(inner) => inner.done(
                    (over + inner.count / inner.total) / epochs.total,
                    1.0 / (inner.total * epochs.total),
                ),
                None => epochs.done(over / epochs.total, 1.0 / epochs.total),
            })
        })
    }
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
        self.stream.unit == "epochs"
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
    fn done(&self, share: f64, unit: f64) -> Done {
        let marks = &self.stream.marks;
        let middle = f64::midpoint(self.first.at_s, self.last.at_s);
        let from = marks.iter().rfind(|mark| mark.at_s <= middle).unwrap_or(&self.first);
        let took = self.last.at_s - from.at_s;
        let paced = marks.len() >= PACED && took > 0.0 && self.last.done > from.done;
        Done {
            share: share.clamp(0.0, 1.0),
            per_s: paced.then(|| (self.last.done - from.done) * unit / took),
            at_s: self.last.at_s,
        }
    }
}

#[cfg(test)]
mod tests {
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
        let told = tally.done()?;
        let left = told.left_s(now).map(|left| (left * 10.0).round() / 10.0);
        Some(((told.share * 1000.0).round() / 1000.0, left))
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
    fn heartbeats_go_first() {
        let mut tally = Tally::new();
        let said = |count: f64, total| super::super::Said {
            unit: "steps".into(),
            count: Some(count),
            total,
            per_s: None,
            label: String::new(),
        };
        for i in 0..10 {
            let at = f64::from(i);
            tally.beat(at, "", &super::super::Beat::Count(said(at, Some(90.0))));
            tally.printed(&super::super::Report { at_s: at, said: said(at, Some(10.0)) });
        }
        let told = tally.done().unwrap();
        assert_eq!((told.share, told.left_s(9.0)), (0.1, Some(81.0)));
        assert_eq!(Done { per_s: Some(0.0), ..told }.left_s(9.0), None);
    }
}
