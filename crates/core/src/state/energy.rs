//! What the energy counter of a GPU says, divided among the jobs that had the GPU.
//!
//! Between two readings the counter goes on by some energy, and that is divided without a remainder:
//!
//! 1. The *floor* is what the GPU draws with nothing on it, for the time between the readings: the least mean power that was
//!    read while no process was there for [`MEASURED`], and at most [`TRUSTED`]. It is divided by time, and among jobs that were there together by
//!    the memory reserved for them. Until such a time was seen there is no floor, and all counts as the rest.
//! 2. The *rest* is divided by time among the jobs that were there, and among jobs that were there together by the activity of
//!    each: SMACT alone times its speed there over its speed alone. A job whose processes have not been seen on the GPU yet
//!    has none. Where it is not known of one of the jobs, they count alike.
//! 3. Of processes that carma did not start no activity is known. Beside jobs their part of both is that of the memory that
//!    they hold; where that is not known, as much as a job's.
//!
//! Energy while no process is there is idle, and so is what is counted between the last reading before a job's end and that end:
//! its account is closed by then. All parts of a GPU add up to what its counter went on by since it was first read.

use crate::ledger::Gpu;
use crate::model::JobId;
use crate::units::{Millis, is_zero};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Least time without a process over which the floor is read, so that clocks have gone down.
const MEASURED: Millis = Millis::secs(10);
/// Readings that are further apart tell nothing of a floor: a clock was put right in between, or the machine slept. They are ten minutes
/// apart at most.
const TRUSTED: Millis = Millis::secs(15 * 60);

/// Where the energy of a GPU went, millijoules. The sum is what its counter went on by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Tally {
    /// When the counter was first read.
    pub since: Millis,
    /// Charged to jobs, and with them to their users.
    pub jobs_mj: u64,
    /// While no job was there.
    pub idle_mj: u64,
    /// The part of processes that carma did not start.
    pub others_mj: u64,
    /// Times that the counter began anew: what it had counted since the reading before is lost.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub resets: u64,
}

impl Tally {
    fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// What the counter went on by.
    #[must_use]
    pub const fn total_mj(&self) -> u64 {
        self.jobs_mj.saturating_add(self.idle_mj).saturating_add(self.others_mj)
    }
}

/// Time by share since the last reading, microseconds: by it the floor and the rest are divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Weight {
    floor: u64,
    rest: u64,
}

impl Weight {
    fn is_none(&self) -> bool {
        *self == Self::default()
    }

    fn add(&mut self, floor: u64, rest: u64) {
        self.floor = self.floor.saturating_add(floor);
        self.rest = self.rest.saturating_add(rest);
    }
}

/// What a job had of a GPU since the last reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Due {
    /// Whose it is.
    pub(super) uid: u32,
    /// Time that it had the GPU.
    pub(super) held: Millis,
    /// Its part of that time.
    pub(super) charged: Millis,
    weight: Weight,
}

/// A job on a GPU, as far as energy goes.
pub(super) struct Load {
    pub(super) job: JobId,
    pub(super) uid: u32,
    /// Memory reserved for it, MiB.
    pub(super) memory: u64,
    /// Its activity, in any unit that is the same for all; `None`: not known.
    pub(super) activity: Option<u64>,
}

/// Processes that carma did not start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Others {
    None,
    /// They hold so much, MiB.
    Memory(u64),
    /// Of one of them it is not known.
    Unknown,
}

impl Others {
    pub(super) fn on(gpu: &Gpu) -> Self {
        match gpu.foreign() {
            [] => Self::None,
            foreign => {
                let memory = foreign.iter().map(|process| Some(process.memory?.0)).sum::<Option<u64>>();
                memory.map_or(Self::Unknown, Self::Memory)
            }
        }
    }
}

/// What a job got of a reading.
pub(super) struct Paid {
    pub(super) job: JobId,
    pub(super) due: Due,
    /// `None`: the counter began anew, and what it had counted is lost.
    pub(super) energy_mj: Option<u64>,
}

/// How far the tenants of a GPU are charged, and what they are to pay for.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Meter {
    /// Time is charged up to here.
    pub(super) until: Millis,
    /// When its energy counter was read last, and what it said, millijoules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    read: Option<(Millis, u64)>,
    /// What jobs are to pay for since.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    due: BTreeMap<JobId, Due>,
    /// The same of processes that carma did not start.
    #[serde(default, skip_serializing_if = "Weight::is_none")]
    others: Weight,
    /// The same of jobs that are over.
    #[serde(default, skip_serializing_if = "Weight::is_none")]
    over: Weight,
    /// Time without a process, microseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    idle_us: u64,
    /// Power with nothing on the GPU, milliwatts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    floor_mw: Option<u64>,
    /// Where the energy went.
    #[serde(default, skip_serializing_if = "Tally::is_none")]
    pub(super) tally: Tally,
}

impl Meter {
    /// One that charges from a time on.
    pub(super) fn from(now: Millis) -> Self {
        Self { until: now, ..Self::default() }
    }

    /// Whether it was ever read: else nothing can be divided.
    pub(super) const fn is_read(&self) -> bool {
        self.read.is_some()
    }

    /// Power with nothing on the GPU, milliwatts, if such a time was seen.
    pub(super) const fn floor_mw(&self) -> Option<u64> {
        self.floor_mw
    }

    /// These were there for a span that ends now.
    pub(super) fn passed(&mut self, span: Millis, loads: &[Load], others: Others) {
        let us = span.0.saturating_mul(1000);
        if loads.is_empty() {
            match others {
                Others::None => self.idle_us = self.idle_us.saturating_add(us),
                Others::Memory(_) | Others::Unknown => self.others.add(us, us),
            }
            return;
        }
        let memory: Vec<u64> = loads.iter().map(|load| load.memory).collect();
        let of_others = match others {
            Others::None => 0,
            Others::Memory(held) => {
                divide(us, &[held, memory.iter().fold(0, |sum, m| sum.saturating_add(*m))])[0]
            }
            Others::Unknown => us / (loads.len() as u64 + 1),
        };
        self.others.add(of_others, of_others);
        let us = us - of_others;
        let floors = divide(us, &memory);
        let active: Option<Vec<u64>> = loads.iter().map(|load| load.activity).collect();
        let rests = match active {
            // None computes yet.
            Some(active) if active.iter().all(|activity| *activity == 0) => floors.clone(),
            Some(active) => divide(us, &active),
            None => {
                let there = |load: &Load| u64::from(load.activity != Some(0));
                divide(us, &loads.iter().map(there).collect::<Vec<_>>())
            }
        };
        for ((load, floor), rest) in loads.iter().zip(floors).zip(rests) {
            self.due.entry(load.job).or_default().weight.add(floor, rest);
        }
    }

    /// A job's time, beside [`Meter::passed`].
    pub(super) fn owes(&mut self, job: JobId, uid: u32, held: Millis, charged: Millis) {
        let due = self.due.entry(job).or_default();
        due.uid = uid;
        due.held = due.held + held;
        due.charged = due.charged + charged;
    }

    /// A job leaves: what is counted from the last reading on is not charged to it. Returns what it had since then.
    pub(super) fn leave(&mut self, job: JobId) -> Option<Due> {
        let due = self.due.remove(&job)?;
        self.over.add(due.weight.floor, due.weight.rest);
        Some(due)
    }

    /// It was read. Returns what jobs pay.
    pub(super) fn read(&mut self, energy_mj: u64, now: Millis) -> Vec<Paid> {
        let Some((then, counted)) = self.read else {
            self.read = Some((now, energy_mj));
            self.tally.since = now;
            return Vec::new();
        };
        let span = now.since(then);
        if span == Millis::ZERO && energy_mj >= counted {
            // Two readings of one instant: what it went on by in between is divided with what follows.
            return Vec::new();
        }
        self.read = Some((now, energy_mj));
        let (due, others, over) =
            (std::mem::take(&mut self.due), std::mem::take(&mut self.others), std::mem::take(&mut self.over));
        let idle_us = std::mem::take(&mut self.idle_us);
        // A counter that goes back began anew.
        let Some(delta) = energy_mj.checked_sub(counted) else {
            self.tally.resets = self.tally.resets.saturating_add(1);
            return due.into_iter().map(|(job, due)| Paid { job, due, energy_mj: None }).collect();
        };
        let alone = due.is_empty() && others == Weight::default() && over == Weight::default();
        if alone && (MEASURED..=TRUSTED).contains(&span) {
            let mw = u64::try_from(u128::from(delta) * 1000 / u128::from(span.0)).unwrap_or(u64::MAX);
            self.floor_mw = Some(self.floor_mw.map_or(mw, |before| before.min(mw)));
        }
        let floor = self.floor_mw.map_or(0, |mw| {
            u64::try_from(u128::from(mw) * u128::from(span.0) / 1000).unwrap_or(u64::MAX).min(delta)
        });
        let weights = || due.values().map(|due| due.weight).chain([others, over]);
        let floors: Vec<u64> = weights().map(|weight| weight.floor).chain([idle_us]).collect();
        let busy = weights().any(|weight| weight.rest > 0);
        // Nothing above the floor is drawn while no process is there, once that is known.
        let idle = if self.floor_mw.is_some() && busy { 0 } else { idle_us };
        let rests: Vec<u64> = weights().map(|weight| weight.rest).chain([idle]).collect();
        let parts = divide(floor, &floors).into_iter().zip(divide(delta - floor, &rests));
        let mut parts = parts.map(|(floor, rest)| floor.saturating_add(rest));
        let mut paid = Vec::new();
        for (job, due) in due {
            let energy_mj = parts.next().unwrap_or_default();
            self.tally.jobs_mj = self.tally.jobs_mj.saturating_add(energy_mj);
            paid.push(Paid { job, due, energy_mj: Some(energy_mj) });
        }
        self.tally.others_mj = self.tally.others_mj.saturating_add(parts.next().unwrap_or_default());
        self.tally.idle_mj = parts.fold(self.tally.idle_mj, u64::saturating_add);
        paid
    }
}

/// Divides an amount in proportion to weights, so that the parts add up to it: what does not divide evenly goes to the
/// largest remainders, of equal ones to the first. Weights of 0 are all alike.
fn divide(amount: u64, weights: &[u64]) -> Vec<u64> {
    let sum: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
    if sum == 0 && !weights.is_empty() {
        return divide(amount, &vec![1; weights.len()]);
    }
    let mut parts = vec![0; weights.len()];
    let exact = |weight: &u64| u128::from(amount) * u128::from(*weight);
    let mut left = amount;
    for (part, weight) in parts.iter_mut().zip(weights) {
        *part = u64::try_from(exact(weight) / sum).unwrap_or(u64::MAX);
        left -= *part;
    }
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by_key(|at| std::cmp::Reverse(exact(&weights[*at]) % sum));
    for at in order.into_iter().take(usize::try_from(left).unwrap_or(usize::MAX)) {
        parts[at] += 1;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn load(job: u64, memory: u64, activity: Option<u64>) -> Load {
        Load { job: JobId(job), uid: 1, memory, activity }
    }

    fn energies(paid: &[Paid]) -> Vec<Option<u64>> {
        paid.iter().map(|paid| paid.energy_mj).collect()
    }

    const MINUTE: Millis = Millis::secs(60);

    fn at(minutes: u64) -> Millis {
        Millis(MINUTE.0 * minutes)
    }

    /// A counter of a GPU that was read idle for a minute, at 100 W.
    fn idle() -> Meter {
        let mut counter = Meter::default();
        counter.read(0, at(0));
        counter.passed(MINUTE, &[], Others::None);
        counter.read(6_000_000, at(1));
        counter
    }

    #[test]
    fn the_floor_goes_by_memory_and_the_rest_by_activity() {
        let mut counter = idle();
        assert_eq!((counter.tally.idle_mj, counter.floor_mw), (6_000_000, Some(100_000)));
        // 400 W for a minute: 6 kJ of floor, 18 kJ above it.
        counter.passed(MINUTE, &[load(1, 3000, Some(20)), load(2, 1000, Some(70))], Others::None);
        let paid = counter.read(30_000_000, at(2));
        assert_eq!(energies(&paid), [Some(4_500_000 + 4_000_000), Some(1_500_000 + 14_000_000)]);
        // Of one it is not known: alike. One that has not begun has its part of the floor alone.
        counter.passed(MINUTE, &[load(1, 1, Some(20)), load(2, 1, None), load(3, 1, Some(0))], Others::None);
        let paid = counter.read(54_000_000, at(3));
        assert_eq!(energies(&paid), [Some(11_000_000), Some(11_000_000), Some(2_000_000)]);
        // None computes: all of it goes as the floor does.
        counter.passed(MINUTE, &[load(1, 1, Some(0)), load(2, 3, Some(0))], Others::None);
        assert_eq!(energies(&counter.read(78_000_000, at(4))), [Some(6_000_000), Some(18_000_000)]);
        assert_eq!(counter.tally.total_mj(), 78_000_000);
    }

    #[test]
    fn strangers_have_the_part_of_their_memory() {
        let mut counter = idle();
        counter.passed(MINUTE, &[load(1, 900, Some(5))], Others::Memory(300));
        assert_eq!(energies(&counter.read(30_000_000, at(2))), [Some(18_000_000)]);
        assert_eq!(counter.tally.others_mj, 6_000_000);
        counter.passed(MINUTE, &[load(1, 900, Some(5))], Others::Unknown);
        assert_eq!(energies(&counter.read(54_000_000, at(3))), [Some(12_000_000)]);
        // A desktop of a few MiB costs a job next to nothing; alone, all is its.
        counter.passed(MINUTE, &[], Others::Memory(4));
        assert!(counter.read(60_000_000, at(4)).is_empty());
        assert_eq!((counter.tally.others_mj, counter.tally.idle_mj), (24_000_000, 6_000_000));
    }

    #[test]
    fn what_comes_after_the_last_reading_of_a_job_is_idle() {
        let mut counter = idle();
        counter.passed(MINUTE, &[load(1, 1, Some(1)), load(2, 1, Some(1))], Others::None);
        assert!(counter.leave(JobId(1)).is_some());
        counter.passed(MINUTE, &[load(2, 1, Some(1))], Others::None);
        // Three of four minutes of jobs are the second's.
        assert_eq!(energies(&counter.read(54_000_000, at(3))), [Some(36_000_000)]);
        assert_eq!(counter.tally.idle_mj, 6_000_000 + 12_000_000);
    }

    #[test]
    fn without_a_floor_all_goes_by_time() {
        let mut counter = Meter::default();
        counter.read(0, at(0));
        counter.passed(MINUTE, &[], Others::None);
        counter.passed(MINUTE, &[load(1, 1, Some(1))], Others::None);
        assert_eq!(energies(&counter.read(12_000, at(2))), [Some(6_000)]);
        assert_eq!(counter.floor_mw, None);
    }

    /// A machine that booted in 1970 and was told the time, say.
    #[test]
    fn a_clock_that_was_put_right_is_no_time_without_power() {
        let mut counter = idle();
        counter.passed(MINUTE, &[], Others::None);
        counter.read(12_000_000, at(60 * 24 * 365));
        assert_eq!(counter.floor_mw, Some(100_000));
    }

    #[test]
    fn a_counter_that_begins_anew_charges_nobody() {
        let mut counter = idle();
        counter.owes(JobId(1), 7, MINUTE, MINUTE);
        counter.passed(MINUTE, &[load(1, 1, None)], Others::None);
        let paid = counter.read(5, at(2));
        assert_eq!((energies(&paid), paid[0].due.held, paid[0].due.uid), (vec![None], MINUTE, 7));
        assert_eq!((counter.tally.total_mj(), counter.tally.resets), (6_000_000, 1));
        // Nor do two readings of one instant lose anything.
        assert!(counter.read(1005, at(2)).is_empty());
        counter.passed(MINUTE, &[load(1, 1, None)], Others::None);
        assert_eq!(energies(&counter.read(2005, at(3))), [Some(2000)]);
    }

    proptest! {
        #[test]
        fn parts_add_up(amount: u64, weights in proptest::collection::vec(0..u64::MAX, 1..9)) {
            let parts = divide(amount, &weights);
            prop_assert_eq!(parts.iter().map(|part| u128::from(*part)).sum::<u128>(), u128::from(amount));
            let sum: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
            for (part, weight) in parts.iter().zip(&weights) {
                let exact = (u128::from(amount) * u128::from(*weight)).checked_div(sum);
                prop_assert!(exact.is_none_or(|exact| u128::from(*part).abs_diff(exact) <= 1));
            }
        }
    }
}
