//! Which windows to measure, in which order, with which processes resident.

use super::draw::draw;
use super::tasks::Task;
use carma_interference::measured::Combination;
use carma_interference::share::Mode;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64;
use std::collections::BTreeSet;

/// No limit on the threads.
pub(super) const ALL: u8 = 100;

/// A process in a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Member {
    /// Index in the file.
    pub(super) task: usize,
    /// Which of its copies.
    pub(super) copy: usize,
    /// Limit on its threads, percent.
    pub(super) pct: u8,
}

impl Member {
    const fn of(task: usize) -> Self {
        Self { task, copy: 0, pct: ALL }
    }
}

/// A window to measure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Window {
    /// In the order of the file; of a split in the order of its percentages.
    pub(super) members: Vec<Member>,
    /// From 0.
    pub(super) repeat: u32,
}

impl Window {
    /// By what a window is known in the log: names and percentages, and the repeat.
    pub(super) fn key(&self, sharing: Mode, tasks: &[Task]) -> Key {
        let members = self.members.iter().map(|m| (tasks[m.task].name.clone(), m.pct));
        Key::new(sharing, members.collect(), self.repeat)
    }
}

/// What tells windows apart.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key(Mode, Vec<(String, u8)>, u32);

impl Key {
    fn new(sharing: Mode, mut members: Vec<(String, u8)>, repeat: u32) -> Self {
        members.sort();
        Self(sharing, members, repeat)
    }

    /// Of a window that was measured.
    pub(super) fn of(window: &Combination) -> Self {
        let pct = |at: usize| window.threads_pct.get(at).copied().unwrap_or(ALL);
        let members = window.members.iter().enumerate().map(|(at, name)| (name.clone(), pct(at)));
        Self::new(window.sharing, members.collect(), window.repeat)
    }
}

/// Processes that are resident together, and the windows that they are measured in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Phase {
    pub(super) sharing: Mode,
    pub(super) residents: BTreeSet<Member>,
    /// In random order; the windows of tasks alone without limits are not among them.
    pub(super) windows: Vec<Window>,
}

impl Phase {
    /// The tasks alone without limits, one window each.
    pub(super) fn references(&self) -> Vec<Window> {
        let free = self.residents.iter().filter(|m| m.pct == ALL && m.copy == 0);
        free.map(|m| Window { members: vec![*m], repeat: 0 }).collect()
    }
}

/// Copies of one task together, more and more of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ladder {
    /// How many at a time, 2 and more; of a task as many as it has copies. One alone is always measured.
    pub counts: Vec<usize>,
    /// Whether these numbers were asked for.
    pub asked: bool,
    /// How they share the GPU.
    pub sharing: Vec<Mode>,
    /// Under MPS also with the threads divided equally between them.
    pub threads: bool,
}

impl Ladder {
    /// Whether copies are to run together.
    pub(super) fn wants_copies(&self) -> bool {
        self.asked && (self.threads || !self.sharing.is_empty())
    }
}

/// What to measure.
#[derive(Debug, Clone, Default)]
pub(super) struct Wanted {
    pub(super) sharing: Vec<Mode>,
    pub(super) pairs: bool,
    pub(super) triples: usize,
    pub(super) quads: usize,
    pub(super) groups: Vec<Vec<usize>>,
    pub(super) threads: Vec<u8>,
    pub(super) splits: Vec<(u8, u8)>,
    pub(super) split_pairs: usize,
    /// These in place of all others.
    pub(super) ladder: Option<Ladder>,
    pub(super) repeat: u32,
    pub(super) seed: u64,
}

/// The phases, in order: each sharing mode, then the limits on threads.
pub(super) fn phases(tasks: &[Task], wanted: &Wanted) -> Vec<Phase> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let n = tasks.len();
    if wanted.pairs {
        for (a, task) in tasks.iter().enumerate() {
            groups.extend((a..n).filter(|&b| a != b || task.copies > 1).map(|b| vec![a, b]));
        }
    }
    groups.extend(draw(n, 3, wanted.triples, wanted.seed));
    groups.extend(draw(n, 4, wanted.quads, wanted.seed));
    for group in &wanted.groups {
        let mut group = group.clone();
        group.sort_unstable();
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    let limits = !wanted.threads.is_empty() || !wanted.splits.is_empty();
    let mut phases = Vec::new();
    // Limits alone ask for no other windows.
    if !(limits && groups.is_empty()) {
        for &sharing in &wanted.sharing {
            let residents = tasks.iter().enumerate().flat_map(|(task, of)| {
                // A second copy only where something asks for it.
                let times = groups.iter().map(|g| g.iter().filter(|&&t| t == task).count());
                let times = times.max().unwrap_or(1).clamp(1, of.copies);
                (0..times).map(move |copy| Member { copy, ..Member::of(task) })
            });
            let windows = groups.iter().map(|group| copies(group));
            phases.push(Phase { sharing, residents: residents.collect(), windows: windows.collect() });
        }
    }
    phases.extend(limited(n, wanted));
    if let Some(ladder) = &wanted.ladder {
        phases = ladders(tasks, ladder);
    }
    for (number, phase) in phases.iter_mut().enumerate() {
        let mut windows = Vec::new();
        for repeat in 0..wanted.repeat.max(1) {
            windows.extend(phase.windows.iter().map(|w| Window { repeat, ..w.clone() }));
        }
        windows.shuffle(&mut Pcg64::seed_from_u64(wanted.seed.wrapping_add(number as u64)));
        phase.windows = windows;
    }
    phases
}

/// A task that occurs twice takes its second copy.
fn copies(group: &[usize]) -> Window {
    let mut members: Vec<Member> = Vec::new();
    for &task in group {
        let copy = members.iter().filter(|m| m.task == task).count();
        members.push(Member { copy, ..Member::of(task) });
    }
    Window { members, repeat: 0 }
}

/// Each task alone, and with more and more copies of itself, in phases of its own, so that no other takes memory meanwhile.
fn ladders(tasks: &[Task], ladder: &Ladder) -> Vec<Phase> {
    let mut phases = Vec::new();
    for (task, of) in tasks.iter().enumerate() {
        let counts: BTreeSet<usize> =
            ladder.counts.iter().copied().filter(|count| (2..=of.copies).contains(count)).collect();
        let members = |count: usize, pct: u8| {
            (0..count).map(move |copy| Member { task, copy, pct }).collect::<Vec<_>>()
        };
        let window = |count: usize, pct: u8| Window { members: members(count, pct), repeat: 0 };
        for sharing in [Mode::TimeSlice, Mode::Mps] {
            let climbed = if ladder.sharing.contains(&sharing) { counts.clone() } else { BTreeSet::new() };
            // What all are compared with is one alone without MPS.
            if climbed.is_empty() && sharing == Mode::Mps {
                continue;
            }
            let most = climbed.last().copied().unwrap_or(1);
            let windows = climbed.iter().map(|count| window(*count, ALL)).collect();
            phases.push(Phase { sharing, residents: members(most, ALL).into_iter().collect(), windows });
        }
        for &count in counts.iter().filter(|_| ladder.threads) {
            let pct = u8::try_from(100 / count).unwrap_or(1).max(1);
            let residents = members(count, pct).into_iter().collect();
            phases.push(Phase { sharing: Mode::Mps, residents, windows: vec![window(count, pct)] });
        }
    }
    phases
}

/// Tasks alone with a limit, and pairs with the threads divided between them. One set of processes a
/// percentage is resident; percentages that occur in one split are resident together.
fn limited(n: usize, wanted: &Wanted) -> Vec<Phase> {
    let mut rounds: Vec<BTreeSet<u8>> = Vec::new();
    for &(p, q) in &wanted.splits {
        let together = BTreeSet::from([p, q]);
        if !rounds.contains(&together) {
            rounds.push(together);
        }
    }
    for &pct in &wanted.threads {
        if rounds.iter().all(|round| !round.contains(&pct)) {
            match rounds.iter_mut().find(|round| round.len() == 1) {
                Some(round) => drop(round.insert(pct)),
                None => rounds.push(BTreeSet::from([pct])),
            }
        }
    }
    let pairs =
        if wanted.splits.is_empty() { Vec::new() } else { draw(n, 2, wanted.split_pairs, wanted.seed) };
    let mut alone = BTreeSet::new();
    let mut done = BTreeSet::new();
    let phase = |round: BTreeSet<u8>| {
        let mut windows = Vec::new();
        for &pct in round.iter().filter(|pct| wanted.threads.contains(pct) && **pct != ALL) {
            if alone.insert(pct) {
                windows.extend((0..n).map(|task| vec![Member { pct, ..Member::of(task) }]));
            }
        }
        for &(p, q) in &wanted.splits {
            if BTreeSet::from([p, q]) != round && !(round.contains(&p) && round.contains(&q)) {
                continue;
            }
            if done.insert((p, q)) {
                let of = |&(a, b): &(usize, usize)| {
                    vec![Member { pct: p, ..Member::of(a) }, Member { pct: q, ..Member::of(b) }]
                };
                windows.extend(pairs.iter().map(|pair| of(&(pair[0], pair[1]))));
            }
        }
        let residents =
            round.iter().flat_map(|&pct| (0..n).map(move |task| Member { pct, ..Member::of(task) }));
        Phase {
            sharing: Mode::Mps,
            residents: residents.collect(),
            windows: windows.into_iter().map(|members| Window { members, repeat: 0 }).collect(),
        }
    };
    rounds.into_iter().map(phase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tasks(n: usize, copies: usize) -> Vec<Task> {
        let task = |i: usize| format!("[[task]]\nname = 't{i}'\ncommand = ['true']\ncopies = {copies}\n");
        let text: String = (0..n).map(task).collect();
        toml::from_str::<super::super::tasks::TaskFile>(&text).unwrap().tasks
    }

    fn wanted() -> Wanted {
        Wanted {
            sharing: vec![Mode::TimeSlice, Mode::Mps],
            pairs: true,
            repeat: 1,
            seed: 7,
            ..Wanted::default()
        }
    }

    #[test]
    fn all_pairs_once_in_each_mode() {
        let phases = phases(&tasks(12, 1), &wanted());
        assert_eq!(phases.len(), 2);
        for phase in &phases {
            assert_eq!(phase.windows.len(), 66);
            assert_eq!(phase.residents.len(), 12);
            assert_eq!(phase.references().len(), 12);
            let distinct: BTreeSet<_> = phase.windows.iter().map(|w| w.members.clone()).collect();
            assert_eq!(distinct.len(), 66);
        }
        assert_ne!(phases[0].windows, phases[1].windows, "the order is random");
        let twice = super::phases(&tasks(3, 2), &Wanted { repeat: 2, ..wanted() });
        assert_eq!((twice[0].windows.len(), twice[0].residents.len()), (12, 6));
        assert!(twice[0].windows.iter().all(|w| w.members[0] != w.members[1]));
    }

    #[test]
    fn limits_have_their_own_processes() {
        let wanted = Wanted {
            pairs: false,
            threads: vec![25, 50, 75, 100],
            splits: vec![(50, 50), (25, 75), (75, 25)],
            split_pairs: 5,
            ..wanted()
        };
        let phases = phases(&tasks(6, 1), &wanted);
        assert_eq!(phases.len(), 2);
        let of = |phase: &Phase| {
            let alone = phase.windows.iter().filter(|w| w.members.len() == 1).count();
            (phase.residents.len(), alone, phase.windows.len() - alone, phase.references().len())
        };
        // 50 % and no limit together: 6 alone with 50 %, 5 pairs; 6 references.
        assert_eq!(of(&phases[0]), (12, 6, 5, 6));
        assert_eq!(of(&phases[1]), (12, 12, 10, 0));
        for window in phases.iter().flat_map(|p| &p.windows).filter(|w| w.members.len() == 2) {
            assert_eq!(window.members.iter().map(|m| u32::from(m.pct)).sum::<u32>(), 100);
        }
    }

    #[test]
    fn a_ladder_has_processes_of_one_task_at_a_time() {
        let mut tasks = tasks(2, 4);
        tasks[1].copies = 1;
        let ladder = Ladder {
            counts: vec![4, 2, 7],
            sharing: vec![Mode::TimeSlice, Mode::Mps],
            threads: true,
            asked: true,
        };
        let phases = phases(&tasks, &Wanted { ladder: Some(ladder), ..wanted() });
        let of = |phase: &Phase| {
            let mut counts: Vec<usize> = phase.windows.iter().map(|w| w.members.len()).collect();
            counts.sort_unstable();
            let pcts: BTreeSet<u8> = phase.residents.iter().map(|m| m.pct).collect();
            (phase.sharing, phase.residents.len(), counts, pcts.into_iter().collect::<Vec<_>>())
        };
        let found: Vec<_> = phases.iter().map(of).collect();
        let expected = [
            (Mode::TimeSlice, 4, vec![2, 4], vec![100]),
            (Mode::Mps, 4, vec![2, 4], vec![100]),
            (Mode::Mps, 2, vec![2], vec![50]),
            (Mode::Mps, 4, vec![4], vec![25]),
            (Mode::TimeSlice, 1, vec![], vec![100]),
        ];
        assert_eq!(found, expected);
        assert_eq!(phases[4].references().len(), 1);
        let ladder = Ladder { counts: vec![3], sharing: vec![Mode::Mps], threads: false, asked: true };
        let phases = super::phases(&tasks[..1], &Wanted { ladder: Some(ladder), ..wanted() });
        let found: Vec<_> = phases.iter().map(of).collect();
        assert_eq!(found, [(Mode::TimeSlice, 1, vec![], vec![100]), (Mode::Mps, 3, vec![3], vec![100])]);
    }

    #[test]
    fn keys_do_not_depend_on_the_order_of_members() {
        let tasks = tasks(3, 1);
        let window = |a: Member, b: Member| Window { members: vec![a, b], repeat: 0 };
        let (a, b) = (Member { pct: 25, ..Member::of(0) }, Member { pct: 75, ..Member::of(1) });
        let key = window(a, b).key(Mode::Mps, &tasks);
        assert_eq!(key, window(b, a).key(Mode::Mps, &tasks));
        let measured = Combination {
            members: vec!["t1".into(), "t0".into()],
            threads_pct: vec![75, 25],
            sharing: Mode::Mps,
            ..Combination::default()
        };
        assert_eq!(key, Key::of(&measured));
        assert_ne!(key, Key::of(&Combination { threads_pct: vec![25, 75], ..measured }));
    }
}
