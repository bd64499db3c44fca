//! What may happen in a state, and what comes of it.

use crate::{
    ATTEMPTS, Action, Command, Daemon, End, Ghost, Job, Key, Mutation, Outcome, Over, Phase, Protocol,
    Record, Run, State, Supervisor, Watch, Written,
};
use stateright::{Model, Property};
use std::collections::BTreeMap;

const KILLS: usize = 0;
const MACHINE: usize = 1;
const CANCELS: usize = 2;
const REQUEUES: usize = 3;
const WATCHES: usize = 4;
const RESTORES: usize = 5;

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let journal = vec![Job::NEW; self.jobs];
        vec![State {
            daemon: Daemon::dead(0, &journal),
            directories: 0,
            records: BTreeMap::new(),
            runs: BTreeMap::new(),
            boot: 0,
            left: [
                self.supervisor_kills,
                self.machine_deaths,
                self.cancels,
                self.requeues,
                self.watch_failures,
                self.restores,
            ],
            ghost: Ghost::new(self.jobs, 1),
            journal,
        }]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        if s.daemon.alive {
            for job in 0..self.jobs {
                self.daemon_actions(s, job, actions);
            }
            self.sweeps(s, actions);
            if s.daemon.life < self.lives {
                actions.push(Action::DaemonDies);
            }
        } else if s.daemon.life < self.lives {
            actions.push(Action::Live);
            if s.left[RESTORES] > 0 && s.daemon.life > 0 {
                actions.push(Action::Restore);
            }
        }
        if s.left[MACHINE] > 0 && s.daemon.life < self.lives && s.daemon.life > 0 {
            actions.extend([Action::MachineDies(false), Action::MachineDies(true)]);
        }
        for (&key, run) in &s.runs {
            self.process_actions(s, key, run, actions);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut s = last.clone();
        match action {
            Action::Live => {
                let life = s.daemon.life + 1;
                s.directories |= 1 << life;
                s.daemon = Daemon::dead(life, &s.journal);
                s.daemon.alive = true;
                for (watch, job) in s.daemon.watch.iter_mut().zip(&s.journal) {
                    *watch = if job.is_under_way() { Watch::Adopting } else { Watch::Idle };
                }
            }
            Action::Decide(job) => {
                let view = &mut s.daemon.view[job];
                view.phase = Phase::Launching;
                view.attempt += 1;
                view.life = s.daemon.life;
                s.daemon.to_spawn[job] |= 1 << view.attempt;
                s.daemon.watch[job] = Watch::Launching;
                s.daemon.told[job] = false;
                if !self.is(Mutation::DecideWithoutCommit) {
                    s.journal[job] = s.daemon.view[job];
                }
            }
            Action::Spawn(job, attempt) => {
                self.spawn(&mut s, job, attempt, Watch::Supervisor);
            }
            Action::WatchFails(job, attempt) => {
                s.left[WATCHES] -= 1;
                self.spawn(&mut s, job, attempt, Watch::Adopting);
                if self.is(Mutation::NotFencedAfterSpawn) && s.daemon.watch[job] == Watch::Adopting {
                    self.not_launched(&mut s, job);
                }
            }
            Action::Claim(key) => {
                let there = s.directories & (1 << key.life) != 0;
                let free = !s.records.contains_key(&key) || self.is(Mutation::ClaimOverwrites);
                let claimed = there && free;
                if claimed {
                    let record = Record::Claimed { command: false, exit: None, boot: s.boot };
                    s.records.insert(key, record);
                }
                s.runs.get_mut(&key)?.supervisor =
                    if claimed { Supervisor::Claimed } else { Supervisor::Gone };
            }
            Action::StartCommand(key) => self.start_command(&mut s, key)?,
            Action::RecordCommand(key) => {
                if let Some(Record::Claimed { command, .. }) = s.records.get_mut(&key) {
                    *command = true;
                }
            }
            Action::Hello(job) => {
                let key = s.key(job);
                s.runs.get_mut(&key)?.hello = false;
                s.daemon.view[job].phase = Phase::Running;
                s.commit(job);
            }
            Action::Forward(key) => {
                let run = s.runs.get_mut(&key)?;
                run.signal = false;
                if let Command::Alive(signalled) = &mut run.command {
                    *signalled = true;
                }
            }
            Action::Exit(key, end) => {
                let run = s.runs.get_mut(&key)?;
                if let Command::Alive(signalled) = run.command {
                    run.command = Command::Ended(end, signalled);
                }
            }
            Action::Record(key) => {
                let run = s.runs.get_mut(&key)?;
                run.supervisor = Supervisor::Gone;
                if let Command::Ended(end, signalled) = run.command
                    && let Some(Record::Claimed { exit, .. }) = s.records.get_mut(&key)
                {
                    *exit = Some(Written::Ended(end, signalled));
                    if key.life >= s.ghost.since {
                        s.ghost.written[key.job][usize::from(key.attempt) - 1] = Some((end, signalled));
                    }
                }
            }
            Action::See(job) => s.daemon.watch[job] = Watch::SawDead,
            Action::Reread(job) => self.reread(&mut s, job),
            Action::SeeOrphan(job) => s.exited(job, End::Unknown, false),
            Action::Adopt(job) => self.adopt(&mut s, job),
            Action::Open(job) => self.open(&mut s, job),
            Action::RemoveRecord(key) => drop(s.records.remove(&key)),
            Action::Sweep(life) => {
                s.directories &= !(1 << life);
                s.records.retain(|key, _| key.life != life);
            }
            Action::Cancel(job) => {
                s.left[CANCELS] -= 1;
                let view = &mut s.daemon.view[job];
                view.cancel = true;
                if view.phase == Phase::Pending {
                    view.phase = Phase::Done(Outcome::Cancelled);
                    s.ghost.answered[job] = true;
                }
                s.ghost.answered[job] |= self.is(Mutation::AnswerBeforeEnd);
                s.daemon.told[job] = false;
                s.commit(job);
            }
            Action::Requeue(job) => {
                s.left[REQUEUES] -= 1;
                s.daemon.view[job].requeue = true;
                s.daemon.told[job] = false;
                s.commit(job);
            }
            Action::EndAttempt(job) => self.end_attempt(&mut s, job),
            Action::KillSupervisor(key) => {
                s.left[KILLS] -= 1;
                s.runs.get_mut(&key)?.supervisor = Supervisor::Gone;
            }
            Action::DaemonDies => s.daemon_dies(),
            Action::MachineDies(lost) => {
                s.left[MACHINE] -= 1;
                s.boot += 1;
                s.daemon_dies();
                for run in s.runs.values_mut() {
                    run.supervisor = Supervisor::Gone;
                    if let Command::Alive(signalled) = run.command {
                        run.command = Command::Ended(End::Unknown, signalled);
                    }
                }
                if lost {
                    s.records.clear();
                    s.ghost.written.iter_mut().for_each(|written| *written = [None; ATTEMPTS]);
                }
            }
            Action::Restore => {
                s.left[RESTORES] -= 1;
                s.journal = vec![Job::NEW; self.jobs];
                s.daemon = Daemon::dead(s.daemon.life, &s.journal);
                s.ghost = Ghost::new(self.jobs, s.daemon.life + 1);
            }
        }
        s.forget_the_dead();
        Some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        Self::all_properties()
    }
}

impl Protocol {
    fn daemon_actions(&self, s: &State, job: usize, actions: &mut Vec<Action>) {
        let (view, watch) = (&s.daemon.view[job], s.daemon.watch[job]);
        let run = s.runs.get(&s.key(job));
        if view.phase == Phase::Pending && usize::from(view.attempt) < ATTEMPTS {
            actions.push(Action::Decide(job));
        }
        for attempt in (1..=ATTEMPTS as u8).filter(|attempt| s.daemon.to_spawn[job] & (1 << attempt) != 0) {
            actions.push(Action::Spawn(job, attempt));
            if s.left[WATCHES] > 0 {
                actions.push(Action::WatchFails(job, attempt));
            }
        }
        let dead = run.is_none_or(|run| run.supervisor == Supervisor::Gone);
        match watch {
            Watch::Adopting => actions.push(Action::Adopt(job)),
            Watch::SawClaim => actions.push(Action::Open(job)),
            Watch::Supervisor if dead => actions.push(Action::See(job)),
            Watch::SawDead => actions.push(Action::Reread(job)),
            Watch::Orphan if !run.is_some_and(Run::has_command) => actions.push(Action::SeeOrphan(job)),
            _ => {}
        }
        if view.phase == Phase::Launching && watch == Watch::Supervisor && run.is_some_and(|run| run.hello) {
            actions.push(Action::Hello(job));
        }
        if s.left[CANCELS] > 0 && !view.cancel && !matches!(view.phase, Phase::Done(_)) {
            actions.push(Action::Cancel(job));
        }
        if s.left[REQUEUES] > 0 && view.is_under_way() && !view.requeue && !view.cancel {
            actions.push(Action::Requeue(job));
        }
        // A life that has just begun looks first.
        let looked = matches!(watch, Watch::Launching | Watch::Supervisor | Watch::Orphan);
        if view.is_under_way() && (view.cancel || view.requeue) && !s.daemon.told[job] && looked {
            actions.push(Action::EndAttempt(job));
        }
    }

    /// What the daemon may clear away. Where no process can come to it any more, nobody can tell whether it was
    /// cleared away: it then stays.
    fn sweeps(&self, s: &State, actions: &mut Vec<Action>) {
        for (&key, record) in s.records.iter().filter(|(key, _)| s.is_open(key.life)) {
            let over = s.over(key).is_some();
            let fence = *record == Record::Fence;
            if over && (!fence || self.is(Mutation::RemoveFenceAlone)) {
                actions.push(Action::RemoveRecord(key));
            }
        }
        for life in (1..s.daemon.life).filter(|life| s.directories & (1 << life) != 0) {
            let needed = s.journal.iter().any(|job| job.is_under_way() && job.life == life);
            if (!needed && s.is_open(life)) || self.is(Mutation::SweepUnderWay) {
                actions.push(Action::Sweep(life));
            }
        }
    }

    fn process_actions(&self, s: &State, key: Key, run: &Run, actions: &mut Vec<Action>) {
        match run.supervisor {
            Supervisor::Spawned => actions.push(Action::Claim(key)),
            Supervisor::Claimed => actions.push(Action::StartCommand(key)),
            Supervisor::Started => {
                let late = matches!(s.records.get(&key), Some(Record::Claimed { command: false, .. }));
                if late && self.is(Mutation::LetGoBeforeRecorded) {
                    actions.push(Action::RecordCommand(key));
                } else if matches!(run.command, Command::Ended(..)) {
                    actions.push(Action::Record(key));
                } else if run.signal {
                    actions.push(Action::Forward(key));
                }
            }
            Supervisor::Gone => {}
        }
        if run.supervisor != Supervisor::Gone && s.left[KILLS] > 0 {
            actions.push(Action::KillSupervisor(key));
        }
        match run.command {
            Command::Alive(false) => {
                actions.extend([Action::Exit(key, End::Zero), Action::Exit(key, End::Other)]);
            }
            // It may end by the signal, or have a way of its own to end in order.
            Command::Alive(true) => {
                actions.extend([Action::Exit(key, End::Zero), Action::Exit(key, End::Signalled)]);
            }
            _ => {}
        }
    }

    fn spawn(&self, s: &mut State, job: usize, attempt: u8, watch: Watch) {
        s.daemon.to_spawn[job] &= !(1 << attempt);
        let key = Key { life: s.daemon.life, job, attempt };
        let run =
            Run { supervisor: Supervisor::Spawned, signal: false, command: Command::None, hello: false };
        s.runs.insert(key, run);
        // It may have been fenced in the meantime, and be over.
        if s.daemon.watch[job] == Watch::Launching && s.daemon.view[job].attempt == attempt {
            s.daemon.watch[job] = watch;
        }
    }

    fn start_command(&self, s: &mut State, key: Key) -> Option<()> {
        let run = s.runs.get_mut(&key)?;
        if run.signal && !self.is(Mutation::IgnoreSignal) {
            run.supervisor = Supervisor::Gone;
            if let Some(Record::Claimed { exit, .. }) = s.records.get_mut(&key) {
                *exit = Some(Written::NotStarted);
            }
            return Some(());
        }
        run.supervisor = Supervisor::Started;
        run.command = Command::Alive(false);
        run.hello = s.daemon.alive && s.daemon.life == key.life;
        if let Some(Record::Claimed { command, .. }) = s.records.get_mut(&key) {
            *command = !self.is(Mutation::LetGoBeforeRecorded);
        }
        if key.life >= s.ghost.since {
            s.ghost.starts[key.job][usize::from(key.attempt) - 1] += 1;
            s.ghost.late_start |= s.ghost.answered[key.job];
        }
        Some(())
    }

    /// The record of the attempt that is under way.
    fn record(&self, s: &State, job: usize) -> Option<Record> {
        let key = s.key(job);
        if self.is(Mutation::BelieveAnotherLife) {
            let of = |other: &Key| other.job == key.job && other.attempt == key.attempt;
            return s.records.iter().find(|(other, _)| of(other)).map(|(_, record)| *record);
        }
        s.records.get(&key).copied()
    }

    fn adopt(&self, s: &mut State, job: usize) {
        match self.record(s, job) {
            Some(Record::Claimed { exit: Some(exit), .. }) => self.ended(s, job, exit),
            Some(Record::Claimed { exit: None, .. }) => s.daemon.watch[job] = Watch::SawClaim,
            Some(Record::Fence) => self.not_launched(s, job),
            None => self.fence(s, job),
        }
    }

    /// For an attempt that nobody has claimed: nobody will. A directory that is gone does as well.
    fn fence(&self, s: &mut State, job: usize) {
        let key = s.key(job);
        if s.directories & (1 << key.life) != 0 && !self.is(Mutation::NoFence) {
            s.records.insert(key, Record::Fence);
        }
        self.not_launched(s, job);
    }

    fn open(&self, s: &mut State, job: usize) {
        let record = self.record(s, job);
        if let Some(Record::Claimed { boot, .. }) = record
            && boot != s.boot
            && self.is(Mutation::BelieveAnotherBoot)
        {
            s.daemon.watch[job] = Watch::Stranger;
            return;
        }
        let lives = s.runs.get(&s.key(job)).is_some_and(|run| run.supervisor != Supervisor::Gone);
        if !lives {
            s.daemon.watch[job] = Watch::SawDead;
            if self.is(Mutation::ReadOnce) {
                self.dead(s, job, record);
            }
            return;
        }
        s.daemon.watch[job] = Watch::Supervisor;
        if let Some(Record::Claimed { command: true, .. }) = record {
            s.daemon.view[job].phase = Phase::Running;
            s.commit(job);
        }
    }

    fn reread(&self, s: &mut State, job: usize) {
        match self.record(s, job) {
            None => self.fence(s, job),
            Some(Record::Fence) => self.not_launched(s, job),
            Some(Record::Claimed { exit: Some(exit), .. }) => self.ended(s, job, exit),
            claimed => self.dead(s, job, claimed),
        }
    }

    /// Claimed, without an exit, and the supervisor is dead.
    fn dead(&self, s: &mut State, job: usize, record: Option<Record>) {
        let started = matches!(record, Some(Record::Claimed { command: true, .. }));
        if !started && !self.is(Mutation::UnknownWithoutCommand) {
            // The command is let go only once it stands in the record: there was none. The record stays in
            // the way, as a fence.
            self.not_launched(s, job);
        } else if started && s.runs.get(&s.key(job)).is_some_and(Run::has_command) {
            s.daemon.watch[job] = Watch::Orphan;
            s.daemon.view[job].phase = Phase::Running;
            s.commit(job);
        } else {
            s.exited(job, End::Unknown, false);
        }
    }

    fn end_attempt(&self, s: &mut State, job: usize) {
        let key = s.key(job);
        s.daemon.told[job] = true;
        if s.daemon.view[job].cancel {
            s.ghost.answered[job] = true;
        }
        if s.daemon.watch[job] != Watch::Orphan && self.record(s, job).is_none() {
            return self.fence(s, job);
        }
        let Some(run) = s.runs.get_mut(&key) else { return };
        // The supervisor passes it on; without one the daemon signals the command.
        if run.supervisor != Supervisor::Gone {
            run.signal = true;
        } else if let Command::Alive(signalled) = &mut run.command {
            *signalled = true;
        }
    }

    fn ended(&self, s: &mut State, job: usize, exit: Written) {
        match exit {
            Written::NotStarted => s.not_launched(job),
            Written::Ended(end, signalled) => {
                s.exited(job, end, signalled || self.is(Mutation::DecidedIsAsked));
            }
        }
    }

    fn not_launched(&self, s: &mut State, job: usize) {
        if self.is(Mutation::ChargeDeaths) {
            s.daemon.view[job].charges += 1;
        }
        s.not_launched(job);
    }
}

impl State {
    /// The attempt of a job that is under way.
    fn key(&self, job: usize) -> Key {
        let view = &self.daemon.view[job];
        Key { life: view.life, job, attempt: view.attempt }
    }

    /// What the journal says of the end of an attempt.
    pub(crate) fn over(&self, key: Key) -> Option<Over> {
        let known = key.life >= self.ghost.since;
        known.then(|| self.journal[key.job].over[usize::from(key.attempt) - 1]).flatten()
    }

    fn commit(&mut self, job: usize) {
        self.journal[job] = self.daemon.view[job];
    }

    /// Of a supervisor that is dead without a command nothing is left that can be seen.
    fn forget_the_dead(&mut self) {
        for run in self.runs.values_mut().filter(|run| run.supervisor == Supervisor::Gone) {
            run.signal = false;
        }
        self.runs.retain(|_, run| run.supervisor != Supervisor::Gone || run.has_command() || run.hello);
    }

    /// Whether a supervisor may still come to the records of a life.
    fn is_open(&self, life: u8) -> bool {
        let lives = |(key, run): (&Key, &Run)| key.life == life && run.supervisor != Supervisor::Gone;
        let may_be_spawned = self.daemon.life == life && self.daemon.to_spawn.iter().any(|bits| *bits != 0);
        may_be_spawned || self.runs.iter().any(lives)
    }

    fn daemon_dies(&mut self) {
        self.daemon = Daemon::dead(self.daemon.life, &self.journal);
        self.runs.values_mut().for_each(|run| run.hello = false);
    }

    /// Input `NotLaunched`: back to the queue, without a charge; or cancelled.
    fn not_launched(&mut self, job: usize) {
        let view = &mut self.daemon.view[job];
        view.over[usize::from(view.attempt) - 1] = Some(Over::NotLaunched);
        view.phase = if view.cancel { Phase::Done(Outcome::Cancelled) } else { Phase::Pending };
        view.requeue = false;
        self.daemon.watch[job] = Watch::Idle;
        self.commit(job);
    }

    /// Input `Exited`.
    fn exited(&mut self, job: usize, end: End, signalled: bool) {
        let view = &mut self.daemon.view[job];
        view.over[usize::from(view.attempt) - 1] = Some(Over::Exited(end));
        // What ended by itself before it was asked to has ended by itself.
        let by_request = signalled || matches!(end, End::Signalled | End::Unknown);
        view.phase = match end {
            // Its user has given it up.
            _ if view.cancel => Phase::Done(Outcome::Cancelled),
            End::Zero if !(view.requeue && by_request) => Phase::Done(Outcome::Completed),
            _ if view.requeue => Phase::Pending,
            _ => Phase::Done(Outcome::Failed),
        };
        view.requeue = false;
        self.daemon.watch[job] = Watch::Idle;
        self.commit(job);
    }
}

impl Daemon {
    fn dead(life: u8, journal: &[Job]) -> Self {
        let jobs = journal.len();
        Self {
            alive: false,
            life,
            view: journal.to_vec(),
            watch: vec![Watch::Idle; jobs],
            to_spawn: vec![0; jobs],
            told: vec![false; jobs],
        }
    }
}

impl Run {
    /// Whether its command runs.
    #[must_use]
    pub const fn has_command(&self) -> bool {
        matches!(self.command, Command::Alive(_))
    }
}

impl Ghost {
    fn new(jobs: usize, since: u8) -> Self {
        Self {
            since,
            starts: vec![[0; ATTEMPTS]; jobs],
            written: vec![[None; ATTEMPTS]; jobs],
            answered: vec![false; jobs],
            late_start: false,
        }
    }
}
