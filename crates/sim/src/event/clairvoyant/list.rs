//! The list scheduler.

use super::known::{Known, Rates};
use super::{Placement, Rules};
use crate::event::scheduler::{Decision, Fate, Left, Scheduler};
use crate::event::world::{GpuIndex, JobIndex, Terms, World};
use carma_core::units::Millis;
use std::collections::BTreeSet;

/// A GPU as the list sees it.
#[derive(Debug, Clone, Default)]
struct Board {
    /// Classes of its jobs, sorted.
    classes: Vec<u16>,
    /// What their peaks leave of its memory, MiB.
    free: u64,
    /// Value of their progress together.
    worth: f64,
}

/// What is known of a class on a GPU as long as the jobs there stay.
#[derive(Debug, Clone, Copy, Default)]
enum Seen {
    #[default]
    Nothing,
    Closed,
    Open(Open),
}

/// A GPU that would do.
#[derive(Debug, Clone, Copy)]
struct Open {
    gpu: GpuIndex,
    score: f64,
    worth: f64,
}

pub(super) struct ListScheduler<'a> {
    known: &'a Known,
    rates: &'a mut Rates,
    rules: &'a Rules,
    /// Place of each job on the list.
    place: Vec<u32>,
    /// Jobs that wait, by place.
    waiting: BTreeSet<(u32, JobIndex)>,
    board: Vec<Board>,
    on: Vec<Vec<GpuIndex>>,
    /// By GPU, then by class.
    seen: Vec<Seen>,
    news: bool,
    set: Vec<u16>,
    open: Vec<Open>,
}

impl<'a> ListScheduler<'a> {
    pub(super) fn new(known: &'a Known, rates: &'a mut Rates, order: &[u32], rules: &'a Rules) -> Self {
        let jobs = known.jobs().len();
        let mut place = vec![u32::MAX; jobs];
        for (at, job) in (0..).zip(order) {
            if let Some(place) = place.get_mut(*job as usize) {
                *place = at;
            }
        }
        let gpus = 0..known.cluster().len() as u32;
        let board = gpus.map(|gpu| Board { free: known.memory(gpu), ..Board::default() });
        Self {
            known,
            rates,
            rules,
            place,
            waiting: BTreeSet::new(),
            board: board.collect(),
            on: vec![Vec::new(); jobs],
            seen: vec![Seen::Nothing; known.cluster().len() * known.classes().len()],
            news: false,
            set: Vec::new(),
            open: Vec::new(),
        }
    }

    fn value(&self, class: u16) -> f64 {
        let value = self.rules.values.as_ref().and_then(|values| values.get(class as usize));
        value.copied().unwrap_or(1.0)
    }

    /// Looks at one GPU for a job of a class, if it was not looked at yet.
    fn consider(&mut self, class: u16, need: u64, gpu: GpuIndex) -> Option<Open> {
        let at = gpu as usize * self.known.classes().len() + class as usize;
        match self.seen[at] {
            Seen::Open(open) => Some(open),
            Seen::Closed => None,
            Seen::Nothing => {
                let open = self.look(class, need, gpu);
                self.seen[at] = open.map_or(Seen::Closed, Seen::Open);
                open
            }
        }
    }

    /// What was known of a GPU is no longer true.
    fn forget(&mut self, gpu: GpuIndex) {
        let classes = self.known.classes().len();
        self.seen[gpu as usize * classes..][..classes].fill(Seen::Nothing);
    }

    fn look(&mut self, class: u16, need: u64, gpu: GpuIndex) -> Option<Open> {
        let rules = self.rules;
        let (full, before) = {
            let board = &self.board[gpu as usize];
            (need > board.free || board.classes.len() >= rules.most.max(1), board.worth)
        };
        if full {
            return None;
        }
        let at = self.board[gpu as usize].classes.partition_point(|other| *other <= class);
        let mut set = std::mem::take(&mut self.set);
        set.clear();
        set.extend_from_slice(&self.board[gpu as usize].classes);
        set.insert(at, class);
        let after = self.rates.on(self.known, self.known.type_of(gpu), &set);
        let worth: f64 = set.iter().zip(&after.progress).map(|(class, p)| self.value(*class) * p).sum();
        self.set = set;
        let slowest = after.progress.iter().copied().fold(1.0, f64::min);
        let own = after.progress.get(at).copied().unwrap_or(1.0);
        let mine = self.value(class);
        let gain = if mine > 0.0 { (worth - before) / mine } else { 1.0 };
        let company = after.progress.len() > 1;
        if company && (slowest < rules.floor || gain < rules.gain) {
            return None;
        }
        let left = (self.board[gpu as usize].free - need) as f64;
        let score = match rules.placement {
            Placement::Gain => gain,
            Placement::Own => own,
            Placement::Slowest => slowest,
            Placement::Tight => -left,
            Placement::Roomy => left,
        };
        Some(Open { gpu, score, worth })
    }

    /// GPUs for a job; empty: it waits.
    fn place(&mut self, job: JobIndex) -> bool {
        let it = self.known.jobs()[job as usize];
        let (class, need) = (it.class as u16, self.known.classes()[it.class].need.0);
        let mut open = std::mem::take(&mut self.open);
        open.clear();
        for gpu in 0..self.board.len() as u32 {
            // Idle GPUs are alike, but for their type and number.
            open.extend(self.consider(class, need, gpu));
        }
        let wanted = it.gpus as usize;
        let enough = open.len() >= wanted;
        if enough {
            if wanted == 1 {
                let best = open.iter().copied().reduce(|a, b| if b.score > a.score { b } else { a });
                open.clear();
                open.extend(best);
            } else {
                open.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.gpu.cmp(&b.gpu)));
                open.truncate(wanted);
            }
            for Open { gpu, worth, .. } in &open {
                self.forget(*gpu);
                let board = &mut self.board[*gpu as usize];
                let at = board.classes.partition_point(|other| *other <= class);
                board.classes.insert(at, class);
                board.free -= need;
                board.worth = *worth;
            }
            self.on[job as usize] = open.iter().map(|open| open.gpu).collect();
        }
        self.open = open;
        enough
    }
}

impl Scheduler for ListScheduler<'_> {
    fn came(&mut self, _now: Millis, job: JobIndex, _world: &World) -> Fate {
        if !self.known.jobs()[job as usize].fits {
            return Fate::Lost;
        }
        self.waiting.insert((self.place[job as usize], job));
        self.news = true;
        Fate::Goes
    }

    fn left(&mut self, _now: Millis, job: JobIndex, how: Left, _world: &World) -> Fate {
        let it = self.known.jobs()[job as usize];
        let (class, need) = (it.class as u16, self.known.classes()[it.class].need.0);
        for gpu in std::mem::take(&mut self.on[job as usize]) {
            self.forget(gpu);
            let kind = self.known.type_of(gpu);
            let board = &mut self.board[gpu as usize];
            if let Ok(at) = board.classes.binary_search(&class) {
                board.classes.remove(at);
            }
            board.free += need;
            let classes = std::mem::take(&mut board.classes);
            let now = self.rates.on(self.known, kind, &classes);
            let worth = classes.iter().zip(&now.progress).map(|(class, p)| self.value(*class) * p).sum();
            let board = &mut self.board[gpu as usize];
            (board.classes, board.worth) = (classes, worth);
        }
        self.news = true;
        match how {
            Left::Completed => Fate::Goes,
            // The peaks of all fit, so this can't be.
            Left::OutOfMemory(_) => Fate::Lost,
        }
    }

    fn changed(&mut self, _now: Millis, _gpu: GpuIndex, _world: &World) {}

    fn decide(&mut self, _now: Millis, _world: &World) -> Vec<Decision> {
        if !std::mem::take(&mut self.news) {
            return Vec::new();
        }
        let mut decisions = Vec::new();
        let waiting: Vec<(u32, JobIndex)> = self.waiting.iter().copied().collect();
        let mut passed = 0;
        for (place, job) in waiting {
            if self.place(job) {
                self.waiting.remove(&(place, job));
                let gpus = self.on[job as usize].clone();
                let terms = Terms::plain(self.known.setup().options.sharing);
                decisions.push(Decision::Start { job, gpus, terms });
            } else if passed >= self.rules.passed {
                break;
            } else {
                passed += 1;
            }
        }
        decisions
    }

    fn wake(&self) -> Option<Millis> {
        None
    }
}
