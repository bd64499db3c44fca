//! One phase of a measurement: its processes are started, its windows run in order, its processes ended.

mod start;

use super::book::Book;
use super::machine::Gpu;
use super::plan::{ALL, Member, Phase, Window};
use super::processors::Processors;
use super::protocol::News;
use super::resident::{Resident, end_all};
use super::tasks::TaskFile;
use super::window::{self, Timing};
use crate::{Error, Say};
use carma_interference::measured::Combination;
use carma_interference::share::Mode;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A task that was started so often without a good window in between is given up.
const MOST_STARTS: u32 = 3;
/// Time to end processes and to write the results.
const CLEAN_UP: Duration = Duration::from_secs(8);
/// What a window takes beside its length, at first.
const OVERHEAD: f64 = 0.15;

/// What all phases share.
pub(super) struct Stage<'a> {
    pub(super) gpu: &'a mut Gpu,
    pub(super) file: &'a TaskFile,
    pub(super) timing: Timing,
    /// For each member its own, if so wanted.
    pub(super) processors: Option<&'a Processors>,
    /// Everything is over by then.
    pub(super) deadline: Option<Instant>,
    /// A signal came.
    pub(super) stopped: &'a AtomicBool,
    /// Sockets and the helper for Python.
    pub(super) folder: &'a Path,
    /// Output of the tasks.
    pub(super) logs: &'a Path,
    pub(super) retry_failed: bool,
    /// How often each task runs alone, 2 or more.
    pub(super) solo_rounds: usize,
    pub(super) seed: u64,
    /// Hears how far it is.
    pub(super) say: Say<'a>,
}

/// A phase under way.
struct Session<'s, 'a> {
    stage: &'s mut Stage<'a>,
    book: &'s mut Book,
    phase: &'s Phase,
    number: u32,
    began: Instant,
    alive: BTreeMap<Member, Resident>,
    /// Starts since the last good window.
    starts: BTreeMap<Member, u32>,
    /// Why a task is not there.
    lost: BTreeMap<Member, String>,
    /// References measured so far, for their repeats.
    rounds: u32,
    sockets: u32,
    /// What a window takes beside its length, seconds.
    overhead: f64,
    /// What a start took, seconds.
    startup: f64,
}

impl Stage<'_> {
    /// Windows of a phase that are still to be measured.
    pub(super) fn left(&self, book: &Book, phase: &Phase) -> usize {
        let lacking: usize = self.lacking(book, phase).into_iter().map(|(_, times)| times).sum();
        self.todo(book, phase).len() + lacking
    }

    fn todo(&self, book: &Book, phase: &Phase) -> Vec<Window> {
        let done = book.done(self.retry_failed);
        let is_left = |w: &&Window| !done.contains(&w.key(phase.sharing, &self.file.tasks));
        phase.windows.iter().filter(is_left).cloned().collect()
    }

    /// Tasks of a phase that were not alone so often as is wanted, and how often that is: where nothing else is asked for, as
    /// often as was said; else once, for the others to be compared with.
    fn lacking(&self, book: &Book, phase: &Phase) -> Vec<(Window, usize)> {
        let wanted = if phase.windows.is_empty() { self.solo_rounds } else { 1 };
        let lacks = |alone: Window| {
            let task = alone.members.first().map_or("", |m| self.file.tasks[m.task].name.as_str());
            let has = book.references(phase.sharing, task, self.retry_failed);
            (wanted > has).then(|| (alone, wanted - has))
        };
        phase.references().into_iter().filter_map(lacks).collect()
    }

    fn over(&self, needed: Duration) -> bool {
        self.stopped.load(Ordering::Relaxed)
            || self.deadline.is_some_and(|deadline| Instant::now() + needed + CLEAN_UP > deadline)
    }

    /// Measures what is left of a phase, as far as the time allows.
    pub(super) fn measure(&mut self, book: &mut Book, phase: &Phase) -> Result<(), Error> {
        let (todo, lacking) = (self.todo(book, phase), self.lacking(book, phase));
        if self.over(Duration::ZERO) || (todo.is_empty() && lacking.is_empty()) {
            return Ok(());
        }
        let number = book.begin(phase.sharing, self.seed, &self.gpu.info.uuid, self.file.processors_each)?;
        let mut session = Session {
            book,
            phase,
            number,
            began: Instant::now(),
            alive: BTreeMap::new(),
            starts: BTreeMap::new(),
            lost: BTreeMap::new(),
            rounds: 0,
            sockets: 0,
            overhead: OVERHEAD,
            startup: 5.0,
            stage: self,
        };
        let outcome =
            if todo.is_empty() { session.alone(&lacking) } else { session.run(todo, &phase.references()) };
        end_all(std::mem::take(&mut session.alive).into_values().collect());
        if phase.sharing == Mode::Mps {
            self.gpu.end_mps();
        }
        outcome
    }
}

impl Session<'_, '_> {
    /// Starts all tasks of the phase.
    fn ready(&mut self) -> Result<(), Error> {
        let all: Vec<Member> = self.phase.residents.iter().copied().collect();
        let tasks = if all.len() == 1 { "task starts" } else { "tasks start" };
        self.say(&format!("{}: {} {tasks}", self.phase.sharing, all.len()));
        self.start(&all)?;
        self.say(&format!("{}: ready after {:.0} s", self.phase.sharing, self.began.elapsed().as_secs_f64()));
        Ok(())
    }

    /// Tasks alone, each so often, and nothing else.
    fn alone(&mut self, lacking: &[(Window, usize)]) -> Result<(), Error> {
        self.ready()?;
        let most = lacking.iter().map(|(_, times)| *times).max().unwrap_or(0);
        for round in 0..most {
            let due = lacking.iter().filter(|(_, times)| *times > round);
            let due: Vec<Window> = due.map(|(window, _)| window.clone()).collect();
            self.round(&due, 0)?;
        }
        Ok(())
    }

    fn run(&mut self, todo: Vec<Window>, references: &[Window]) -> Result<(), Error> {
        self.ready()?;
        // At the start, at the end and between, so that drift is seen.
        let total = todo.len();
        // A few windows are over before anything drifts.
        let between = if total > references.len() { self.stage.solo_rounds.saturating_sub(1) } else { 0 };
        let due: BTreeSet<usize> = (1..between).map(|round| total * round / between).collect();
        self.round(references, 0)?;
        for (at, window) in todo.into_iter().enumerate() {
            if due.contains(&at) {
                self.round(references, references.len())?;
            }
            if self.stage.over(self.needs(references.len() + 1)) {
                break;
            }
            self.window(&window)?;
            if (at + 1) % 20 == 0 {
                self.say(&format!(
                    "{}: {} of {total} windows, {:.0} s",
                    self.phase.sharing,
                    at + 1,
                    self.began.elapsed().as_secs_f64()
                ));
            }
        }
        self.round(references, 0)
    }

    fn say(&self, text: &str) {
        (self.stage.say)(text);
    }

    /// What so many windows take.
    fn needs(&self, windows: usize) -> Duration {
        let Timing { settle, window, .. } = self.stage.timing;
        Duration::from_secs_f64((settle + window + self.overhead) * windows as f64)
    }

    /// All tasks alone, as far as the time allows while so many more windows follow.
    fn round(&mut self, references: &[Window], more: usize) -> Result<(), Error> {
        if references.is_empty() || self.stage.over(self.needs(1 + more)) {
            return Ok(());
        }
        let repeat = self.rounds;
        self.rounds += 1;
        for reference in references {
            if self.stage.over(self.needs(1 + more)) {
                break;
            }
            self.window(&Window { repeat, ..reference.clone() })?;
        }
        Ok(())
    }

    /// Measures a window and notes what came of it.
    fn window(&mut self, window: &Window) -> Result<(), Error> {
        self.look_after(window)?;
        self.make_room(window)?;
        let began = Instant::now();
        let at_s = (began.duration_since(self.began).as_secs_f64() * 1000.0).round() / 1000.0;
        let lost: Vec<String> = window
            .members
            .iter()
            .filter(|member| !self.alive.contains_key(member))
            .map(|member| {
                let why = self.lost.get(member).map_or("there was no time to start it", String::as_str);
                format!("{} is not there: {why}", self.name(*member))
            })
            .collect();
        let timing = self.stage.timing;
        let mut measured = if lost.is_empty() {
            // In the window's order; a map hands out each of its values once.
            let mut taken: Vec<(Member, Resident)> =
                window.members.iter().filter_map(|member| self.alive.remove_entry(member)).collect();
            let mut members: Vec<&mut Resident> = taken.iter_mut().map(|(_, resident)| resident).collect();
            let (measured, gone) = window::run(self.stage.gpu, &mut members, timing, self.stage.processors);
            let mut dead = Vec::new();
            for (at, (member, resident)) in taken.into_iter().enumerate() {
                match gone.iter().find(|(index, _)| *index == at) {
                    Some((_, why)) => {
                        self.lost.insert(member, why.clone());
                        dead.push(resident);
                    }
                    None => {
                        self.alive.insert(member, resident);
                    }
                }
            }
            end_all(dead);
            measured
        } else {
            Combination { failed: Some(lost.join("; ")), ..Combination::default() }
        };
        let tasks = &self.stage.file.tasks;
        measured.members = window.members.iter().map(|m| tasks[m.task].name.clone()).collect();
        if window.members.iter().any(|member| member.pct < ALL) {
            measured.threads_pct = window.members.iter().map(|member| member.pct).collect();
        }
        (measured.sharing, measured.session) = (self.phase.sharing, self.number);
        (measured.repeat, measured.at_s) = (window.repeat, at_s);
        if let Some(why) = &measured.failed {
            self.say(&format!("{} {}: {why}", self.phase.sharing, measured.members.join(" + ")));
        } else {
            for member in &window.members {
                self.starts.remove(member);
            }
            let took = began.elapsed().as_secs_f64() - timing.settle - timing.window;
            self.overhead += (took.max(0.0) - self.overhead) * 0.2;
        }
        self.book.add(measured)
    }

    /// Notices tasks that died while idle (under MPS a fault of one takes all), and starts them again; further copies once a window wants them:
    /// they may have died since there is no room for so many.
    fn look_after(&mut self, window: &Window) -> Result<(), Error> {
        let members: Vec<Member> = self.alive.keys().copied().collect();
        for member in members {
            let news = self.alive.get_mut(&member).and_then(|resident| resident.hear(Duration::ZERO));
            if let Some(News::Gone(why)) = news {
                self.say(&format!("{} ended while it was idle: {why}", self.name(member)));
                self.lost.insert(member, why);
                end_all(self.alive.remove(&member).into_iter().collect());
            }
        }
        let again = |member: &&Member| self.starts.get(member).is_none_or(|starts| *starts < MOST_STARTS);
        let missing: Vec<Member> = self
            .phase
            .residents
            .iter()
            .filter(|m| !self.alive.contains_key(m))
            .filter(|m| m.copy == 0 || window.members.contains(m))
            .filter(again)
            .copied()
            .collect();
        // A start that would use up the time left is not worth it.
        let needed = Duration::from_secs_f64(self.startup);
        if !missing.is_empty() && !self.stage.over(needed + self.needs(1)) {
            self.start(&missing)?;
        }
        Ok(())
    }

    /// Ends copies that a window does not want where others that it wants are not there: of several that have no room together any may
    /// have died, and the others keep its memory.
    fn make_room(&mut self, window: &Window) -> Result<(), Error> {
        let missing: Vec<Member> =
            window.members.iter().filter(|member| !self.alive.contains_key(member)).copied().collect();
        let is_in_the_way = |other: &&Member| {
            missing.iter().any(|member| member.task == other.task) && !window.members.contains(other)
        };
        let others: Vec<Member> = self.alive.keys().filter(is_in_the_way).copied().collect();
        if others.is_empty() || self.stage.over(Duration::from_secs_f64(self.startup) + self.needs(1)) {
            return Ok(());
        }
        for member in &others {
            self.say(&format!(
                "{} makes room: not all copies that were started are there",
                self.name(*member)
            ));
            self.lost.insert(*member, "it made room for other copies".into());
        }
        end_all(others.iter().filter_map(|member| self.alive.remove(member)).collect());
        self.start(&missing)
    }

    fn name(&self, member: Member) -> String {
        let mut name = self.stage.file.tasks[member.task].name.clone();
        if member.copy > 0 {
            name = format!("{name}#{}", member.copy + 1);
        }
        if member.pct < ALL { format!("{name}@{}%", member.pct) } else { name }
    }
}
