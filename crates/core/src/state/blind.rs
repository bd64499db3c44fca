//! Jobs of whose memory nothing is known: how much each needs free, and how much it gets, where the policy gives such jobs a part of
//! what is free ([`crate::policy::Policy::blind`]).

use super::{Peak, State};
use crate::model::{Job, SharingMode};
use crate::policy::{NeedSource, unknown_need};
use crate::recovery::Floor;
use crate::units::{MiB, Millis};
use std::cell::OnceCell;
use std::collections::BTreeMap;

/// The least that jobs get of whose own memory nothing is known.
const LEAST: MiB = MiB::gib(8);
/// GPUs from this size on are large: an unknown job is given half of one at most, unless many commands took more.
const LARGE: MiB = MiB::gib(64);

/// A job that has waited for so many times its expected run tries with what most commands took, in place of what is enough for any: else it
/// would wait for days beside a resident that leaves it more than it ever takes. Of 2 and 8, and of nine in ten, three in four and half of
/// the commands, the fewest run out of memory with these (docs/research/tried.md).
const LONG_WAIT: u64 = 8;

/// How much a job gets of whose memory nothing is known: the same in a plan for all of a command that have waited as long for their run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Blind {
    /// Under MPS a hard limit keeps it to what it gets.
    caps: bool,
    /// Jobs among which what is free of a GPU is divided.
    among: u64,
    /// Enough for most jobs, by what no command exceeded lately; `None`: too few have run.
    usual: Option<MiB>,
    /// What a quarter of the latest commands exceeded or met; `None`: too few are known.
    often: Option<MiB>,
    /// Enough by what jobs take that are like it.
    alike: Option<Alike>,
    /// Half more than the most that it held itself before others drove it off a GPU: it may have been about to take more.
    held: MiB,
}

/// What jobs that are like it say.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Alike {
    /// One of its command is at work, and takes this.
    Command(MiB),
    /// This is enough by jobs of its program with other arguments.
    Program(MiB),
    /// One of its command ran out of memory, and is given this since.
    Failed(MiB),
}

impl Alike {
    fn enough(self) -> MiB {
        match self {
            Self::Command(taken) => taken.percent(150).max(MiB::gib(2)),
            Self::Program(enough) | Self::Failed(enough) => enough,
        }
    }

    /// What it takes as well, however much that is of a GPU.
    fn taken(self) -> MiB {
        match self {
            Self::Command(taken) => a_little_more(taken),
            Self::Failed(given) => given,
            Self::Program(_) => MiB::ZERO,
        }
    }

    const fn source(self) -> NeedSource {
        match self {
            Self::Command(_) => NeedSource::AtWork,
            Self::Failed(_) => NeedSource::Failed,
            Self::Program(_) => NeedSource::Program,
        }
    }
}

/// What commands and programs were seen to take.
#[derive(Default)]
struct Taken {
    /// The most by command, of those at work.
    commands: BTreeMap<u64, MiB>,
    /// The most by command of each program, of those at work and of the latest that ran.
    programs: BTreeMap<u64, BTreeMap<u64, MiB>>,
    /// By command, what those are given that ran out of memory.
    failed: BTreeMap<u64, Floor>,
}

impl Taken {
    fn of(state: &State) -> Self {
        let mut taken = Self { failed: state.floors_of_commands(), ..Self::default() };
        for peak in state.ran_lately() {
            taken.add_to_program(*peak);
        }
        for (job, memory) in state.peaks_at_work() {
            let (command, program) = (job.spec.command_key, job.spec.program_key);
            let most = taken.commands.entry(command).or_default();
            *most = memory.max(*most);
            let user = Some(job.spec.user.uid);
            taken.add_to_program(Peak { command, program, memory, user });
        }
        taken
    }

    fn add_to_program(&mut self, peak: Peak) {
        let Some(program) = peak.program else { return };
        let most = self.programs.entry(program).or_default().entry(peak.command).or_default();
        *most = peak.memory.max(*most);
    }

    /// What is enough for a job, where one of its command is at work.
    fn of_command(&self, job: &Job, largest: MiB) -> Option<Alike> {
        let command = &job.spec.command_key;
        let at_work = self.commands.get(command).copied().map(Alike::Command);
        let failed = self.failed.get(command).map(|floor| match floor {
            Floor::Memory(given) => *given,
            Floor::ExclusiveGpu => largest,
        });
        let failed = failed.filter(|given| at_work.is_none_or(|at_work| at_work.enough() < *given));
        failed.map(Alike::Failed).or(at_work)
    }

    /// What is enough for a job by others of its program, which may be less than what is enough for most (`usual`).
    fn of_program(&self, job: &Job, usual: Option<MiB>) -> Option<Alike> {
        let commands = self.programs.get(&job.spec.program_key?)?;
        let others = || commands.iter().filter(|(command, _)| **command != job.spec.command_key);
        let (number, most) = (others().count() as u64, others().map(|(_, memory)| *memory).max()?);
        // One says too little; of more, what is enough was measured on runs of models in several sizes (docs/research/tried.md).
        let enough = (number > 1).then(|| most.percent(200 + 400 / number).max(LEAST))?;
        let usual = usual.filter(|usual| enough_for_most(most) <= *usual);
        Some(Alike::Program(usual.map_or(enough, |usual| enough.min(usual))))
    }
}

/// What jobs get in a plan of whose memory nothing is known.
pub(crate) struct Blinds<'a> {
    state: &'a State,
    now: Millis,
    usual: Blind,
    /// Enough for nine of ten commands, where that is less than what is enough for any.
    of_most: Option<MiB>,
    /// Memory of the largest GPU.
    largest: MiB,
    /// Found where it is asked for.
    taken: OnceCell<Taken>,
}

impl<'a> Blinds<'a> {
    /// `None`: the policy gives such jobs GPUs of their own.
    pub(crate) fn of(state: &'a State, now: Millis) -> Option<Self> {
        if !state.options().policy.blind {
            return None;
        }
        let present = || state.gpus().iter().filter(|gpu| gpu.present);
        let gpus = present().count().max(1);
        let largest = present().map(|gpu| gpu.info.memory).max().unwrap_or_default();
        let usual = state.usual_memory().map(enough_for_most);
        let of_most = state.memory_of_most().map(|most| a_little_more(most).max(LEAST));
        let of_most = of_most.filter(|of_most| usual.is_some_and(|usual| *of_most < usual));
        // Those that a limit of their user keeps out take nothing from the others.
        let may_start = |(uid, waiting): (u32, usize)| {
            let (jobs, gpus) = state.allowed_more(uid);
            waiting.min(jobs.min(gpus) as usize)
        };
        let among = state.queue().blind().map(may_start).sum::<usize>().div_ceil(gpus).max(1) as u64;
        let often = state.memory_taken_often();
        let caps = state.options().caps;
        let usual = Blind { caps, among, usual, often, alike: None, held: MiB::ZERO };
        Some(Self { state, now, usual, of_most, largest, taken: OnceCell::new() })
    }

    /// When a job of which nothing is known has waited for long, and tries with less, if that is still to come.
    pub(crate) fn tries_with_less_at(&self, job: &Job) -> Option<Millis> {
        let at = waited_long_at(job);
        self.of_most.filter(|_| at > self.now && self.state.may_retry(job)).map(|_| at)
    }

    /// What a job gets: less where jobs that are like it say so. Without a hard limit nothing would keep it to that.
    pub(crate) fn of_job(&self, job: &Job, sharing: SharingMode) -> Blind {
        let held = job.least_capacity();
        let held = held.percent(150).min(self.largest.percent(80)).max(held);
        // What others take is a guess, of which one without another try would die.
        let of_most = self.of_most.filter(|_| waited_long_at(job) <= self.now);
        let usual = of_most.or(self.usual.usual).filter(|_| self.state.may_retry(job));
        let blind = Blind { held, usual, ..self.usual };
        let taken = self.taken.get_or_init(|| Taken::of(self.state));
        if !blind.is_capped(sharing) {
            return Blind { alike: taken.of_command(job, self.largest), ..blind };
        }
        let of_program = || taken.of_program(job, usual).filter(|_| self.state.may_retry(job));
        Blind { alike: taken.of_command(job, self.largest).or_else(of_program), ..blind }
    }
}

/// When a job that waits has waited for long, by its expected run.
fn waited_long_at(job: &Job) -> Millis {
    let run = Millis::secs(job.spec.run_s());
    job.queued + Millis(run.0.saturating_mul(LONG_WAIT))
}

/// What a job takes of which another of its command is the measure.
pub(super) fn a_little_more(taken: MiB) -> MiB {
    taken.percent(103)
}

/// A command that has not run may take more than any that has: what of that is enough was tried on made-up traces
/// (docs/research/tried.md).
fn enough_for_most(most: MiB) -> MiB {
    most.percent(250).max(LEAST)
}

impl Blind {
    /// Whether a hard limit keeps a job to its part, so that others may start at once.
    pub(crate) fn is_capped(self, sharing: SharingMode) -> bool {
        self.caps && sharing == SharingMode::Mps
    }

    /// Where the number comes from.
    pub(crate) fn source(self, sharing: SharingMode) -> NeedSource {
        self.counting(sharing).map_or(NeedSource::Part, Alike::source)
    }

    /// What jobs that are like it say, where a hard limit keeps it to that.
    fn counting(self, sharing: SharingMode) -> Option<Alike> {
        self.alike.filter(|_| self.is_capped(sharing))
    }

    /// Whether nothing is known, not even of jobs that are like it.
    pub(crate) const fn is_unknown(self) -> bool {
        self.alike.is_none()
    }

    /// As if no job like it were known that takes less than most commands.
    pub(crate) fn unknown(self) -> Self {
        let more = |alike: &Alike| self.usual.is_some_and(|usual| alike.enough() > usual);
        Self { alike: self.alike.filter(more), ..self }
    }

    /// What is enough where nothing is known of it or of those that are like it. On a large GPU that is little of it, and too little where
    /// many commands take more.
    fn unknown_on(self, memory: MiB) -> MiB {
        let often = self.often.filter(|_| memory >= LARGE).map_or(MiB::ZERO, a_little_more);
        unknown_need(memory).max(often.min(memory.percent(95)))
    }

    /// Without so much free it waits.
    pub(crate) fn least_on(self, memory: MiB, sharing: SharingMode) -> MiB {
        let unknown = self.unknown_on(memory);
        // What other commands took is a guess, and a large GPU has room for a generous one.
        let guess = |enough: MiB| enough.max(MiB(memory.0 / 8));
        let enough = match self.counting(sharing) {
            Some(alike @ Alike::Program(_)) => guess(alike.enough()),
            Some(alike) => alike.enough(),
            None => self.usual.map_or(unknown, guess),
        };
        let enough = enough.min(unknown);
        // That much others of its command take, or lacked, whether or not anything keeps it to that.
        let taken = self.alike.map_or(MiB::ZERO, Alike::taken).min(memory.percent(95));
        enough.max(taken).max(self.held)
    }

    /// What it gets of so much that is free: all of it where nothing limits it, until its memory has settled.
    pub(crate) fn part(self, free: MiB, memory: MiB, sharing: SharingMode) -> MiB {
        if !self.is_capped(sharing) {
            return free;
        }
        // Where many take more than others would leave it, an idle GPU is its own until its memory has settled.
        let is_idle = free >= memory.percent(90);
        if is_idle && self.is_unknown() && self.unknown_on(memory) > unknown_need(memory) {
            return free;
        }
        // Else never all of a large GPU: another may come while its memory settles.
        let most = MiB(free.0 / self.among).min(memory.percent(50));
        let part = most.max(self.least_on(memory, sharing)).min(free);
        // What is left may be what it lacks, and is too little for another of which as little is known.
        if self.is_unknown() && free - part < LEAST { free } else { part }
    }
}
