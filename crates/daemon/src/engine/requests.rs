//! What clients ask for: submissions and orders.

use super::Engine;
use crate::config::limits::UserLimits;
use crate::gist::Gist;
use crate::journal::StoredJob;
use crate::memory;
use crate::messages::{Answer, Bulk, Order, Peer};
use crate::perform::held;
use crate::quota::{self, Submissions};
use crate::refused::Refused;
use crate::run::cgroup::{HostLimits, MOST_MEMORY};
use crate::run::launch::kept_log;
use crate::run::suspend::host::Host;
use crate::submission::{Submission, new_job, output_file};
use carma_api::wire::{ContextProbe, CopyView, DoneReply, EstimateView, SubmitReply, SubmitRequest};
use carma_api::{MAX_BODY, VERSION};
use carma_core::explain::Reason;
use carma_core::input::{Input, Rejected};
use carma_core::ledger::Gpu;
use carma_core::model::{GpuId, Job, JobId, NewJob, Phase, SuspendStep};
use carma_core::plan::{bars_move, best_place};
use carma_core::state::State;
use carma_core::units::MiB;
use std::sync::Arc;
use std::time::Instant;

/// A submission of which jobs are made, with all that they have in common.
struct Accepted {
    request: SubmitRequest,
    /// What it takes beside its environment, bytes.
    rest: u64,
    gist: Arc<Gist>,
    estimate: Option<EstimateView>,
    /// The first of them.
    new: NewJob,
}

impl Engine {
    /// Works on the first request about several jobs for as long as a part of a turn may take. Its client sends what is left again, so such
    /// requests are served in turn.
    pub(super) fn work_on_bulk(&mut self) {
        // Requests of clients that have disconnected are dropped: no client would learn what was done.
        while self.bulk.pop_front_if(|bulk| bulk.is_given_up()).is_some() {}
        let Some(bulk) = self.bulk.pop_front() else { return };
        match bulk {
            Bulk::Submit(submission, count, peer, answer) => {
                let reply = self.try_submit(*submission, count, &peer);
                self.reply(answer, reply);
            }
            Bulk::Order(order, jobs, peer, answer) => {
                let began = Instant::now();
                let mut outcomes = Vec::new();
                for job in jobs {
                    outcomes.push((job, self.try_order(order(job), &peer)));
                    if began.elapsed() >= self.takes {
                        break;
                    }
                }
                self.defer(answer, outcomes);
            }
        }
    }

    /// Answers: once it is on disk, if it is to be done.
    pub(super) fn reply<T: Send + 'static>(&mut self, answer: Answer<T>, reply: Result<T, Refused>) {
        match reply {
            Ok(reply) => self.defer(answer, reply),
            Err(refused) => drop(answer.send(Err(refused))),
        }
    }

    /// Accepts up to `count` copies of a job, until the time is up or one is refused. If the first is refused, the whole request is.
    pub(super) fn try_submit(
        &mut self,
        submission: Submission,
        count: u32,
        peer: &Peer,
    ) -> Result<SubmitReply, Refused> {
        if let Some(uid) = self.parts.only_uid
            && peer.user.uid != uid
        {
            let text = format!("this carma runs as user {uid} and takes that user's jobs only");
            return Err(Refused::new(403, "not_allowed", text));
        }
        self.check_host_limits(submission.request())?;
        // As many bytes as one request could bring otherwise: for each copy there is one more of them until all are on disk.
        let most = (MAX_BODY as u64 / submission.bytes().max(1)).clamp(1, u64::from(count));
        let began = Instant::now();
        let rest = submission.rest();
        let (mut request, gist) = submission.into_parts();
        let may = self.may_submit((&request, rest), peer);
        let id = may.map(|()| self.next_job())?;
        let new = new_job(id, &request, peer.user.clone(), &gist);
        // Before any forecast, for clients that ask again and again.
        self.state.check_request(&new)?;
        self.log_of(&request, &new)?;
        self.allow(peer.user.uid, &peer.limits);
        let most_log = peer.limits.log_size.map(|most| most.0);
        request.log_limit_mib = request.log_limit_mib.into_iter().chain(most_log).min();
        let gist = Arc::new(self.parts.memory.counted(gist));
        let gpus = self.state.gpus().iter().filter(|gpu| gpu.present).map(|gpu| &gpu.info);
        let mut expected = self.parts.memory.expect(&gist, gpus);
        if let Some(expected) = expected.as_mut().filter(|_| self.state.options().policy.goes_by_runs()) {
            expected.name_declared(request.gpu_memory_mib.map(MiB));
        }
        let running = self.running();
        // Of a copy the same is expected: a submission teaches nothing.
        let new = NewJob {
            forecasts: memory::forecasts(&request, &gist, expected.as_ref()),
            profile: self.parts.slowdowns.known(&self.state, new.command_key, None),
            run_time: self.parts.durations.expect(&gist, &running),
            ..new
        };
        let estimate = expected.map(|expected| expected.view);
        let job = Accepted { request, rest, gist, estimate, new };
        let log = self.accept(&job, id, peer)?;
        let mut copies = Vec::new();
        while 1 + (copies.len() as u64) < most && began.elapsed() < self.takes {
            // The client asks again for what is left, and is told why no more are taken.
            if self.may_submit((&job.request, rest), peer).is_err() {
                break;
            }
            let id = self.next_job();
            match self.accept(&job, id, peer) {
                Ok(log) => copies.push(CopyView { id: id.0, log }),
                Err(_) => break,
            }
        }
        let unbounded = self.state.job(id).and_then(|job| self.state.unbounded(job));
        let Accepted { request, estimate, .. } = job;
        let log_kept = request.output.is_none();
        Ok(SubmitReply { version: VERSION, id: id.0, log, log_kept, estimate, unbounded, copies })
    }

    fn may_submit(&self, (request, rest): (&SubmitRequest, u64), peer: &Peer) -> Result<(), Refused> {
        let uid = peer.user.uid;
        quota::may_now((request, rest), uid, &peer.limits, self.state.usage(uid), &self.submissions)
    }

    /// The number of the next job. Above what the journal knows to be used, too: after a repair it may know of more than the state does.
    fn next_job(&self) -> JobId {
        self.state.next_id().max(self.parts.journal.next_job())
    }

    /// Where a job's output goes.
    fn log_of(&self, request: &SubmitRequest, new: &NewJob) -> Result<String, Refused> {
        match &request.output {
            Some(pattern) => output_file(pattern, new),
            None => Ok(kept_log(&self.parts.log_dir, new.id).display().to_string()),
        }
    }

    /// Takes one job. Returns where its output goes.
    fn accept(&mut self, job: &Accepted, id: JobId, peer: &Peer) -> Result<String, Refused> {
        let new = NewJob { id, ..job.new.clone() };
        let log = self.log_of(&job.request, &new)?;
        self.try_apply(Input::Submitted(Box::new(new)))?;
        let uid = peer.user.uid;
        self.parts.memory.await_news(id, job.gist.clone());
        self.submissions.add(id, uid, &job.request.env, job.rest);
        self.submitted.insert(id, Instant::now());
        let (request, estimate) = (job.request.clone(), job.estimate.clone());
        self.batch.jobs.push((id, StoredJob { request, uid, gid: peer.gid, log: log.clone(), estimate }));
        Ok(log)
    }

    /// Limits on the host must hold: what cannot be enforced is refused.
    fn check_host_limits(&self, request: &SubmitRequest) -> Result<(), Refused> {
        let bad = |text: &str| Err(Refused::new(400, "bad_request", text));
        if request.host_memory_mib.is_some_and(|mib| mib > MOST_MEMORY.0) {
            return bad(&format!(
                "--mem is more than a limit in bytes can be, which is {} MiB; leave it out to have no limit",
                MOST_MEMORY.0
            ));
        }
        if request.host_memory_mib == Some(0)
            || request.host_cpu_pct == Some(0)
            || request.host_processes == Some(0)
        {
            return bad("a limit of nothing would let nothing run; leave --mem, --cpus or --pids out");
        }
        for controller in HostLimits::from(request.host_limits()).needs() {
            let name = controller.name();
            let why = match &self.parts.hierarchy {
                Ok(hierarchy) if hierarchy.has(controller) => continue,
                Ok(hierarchy) => format!("{} has no controller '{name}'", hierarchy.dir().display()),
                Err(why) => why.clone(),
            };
            let text = format!(
                "this carma cannot limit what a job takes of the host: {why}; leave --mem, --cpus and --pids out, or see `carma doctor`"
            );
            return Err(Refused::new(400, "bad_request", text));
        }
        Ok(())
    }

    /// Tells the core what a user may have at once, where that is news.
    fn allow(&mut self, uid: u32, limits: &UserLimits) {
        if self.state.options().allowances.of(uid) != limits.allowance() {
            let mut options = self.state.options().clone();
            options.allowances.set(uid, limits.allowance());
            self.apply(Input::Configured(Box::new(options)));
        }
    }

    /// Finds out what the submissions of live jobs take.
    pub(super) fn count_submissions(&mut self) {
        self.submissions = Submissions::default();
        let Some(oldest) = self.state.jobs().keys().next() else { return };
        let found = match self.parts.journal.environments(*oldest) {
            Ok(found) => found,
            Err(e) => {
                return tracing::warn!("{e}; environments and commands of earlier jobs count for no limit");
            }
        };
        for environment in found {
            for (job, uid, rest) in environment.jobs.iter().filter(|(job, ..)| self.state.job(*job).is_some())
            {
                self.submissions.add(*job, *uid, &environment.env, *rest);
            }
        }
    }

    pub(super) fn context(&mut self, probe: &ContextProbe, peer: &Peer) -> Result<DoneReply, Refused> {
        if !self.state.is_admin(&peer.user) {
            let text =
                "only root, an operator or the user that carma runs as may say what a CUDA context takes";
            return Err(Refused::new(403, "not_allowed", text));
        }
        let gpu = self.gpu_by_index(probe.gpu)?;
        let Some(gpu) = self.state.gpu(gpu) else { return Err(Rejected::NoSuchGpu.into()) };
        if !self.parts.memory.probe(&gpu.info, &probe.framework, probe.context_mib) {
            let text = format!("a CUDA context of {} MiB cannot be; measure again", probe.context_mib);
            return Err(Refused::new(400, "bad_request", text));
        }
        self.batch.learned.extend(self.parts.memory.changes());
        let text = format!("a CUDA context on {} takes {} MiB from now on", gpu.info.name, probe.context_mib);
        Ok(DoneReply { version: VERSION, id: probe.gpu.into(), text })
    }

    pub(super) fn try_order(&mut self, order: Order, peer: &Peer) -> Result<DoneReply, Refused> {
        let by = peer.user.clone();
        // Before the driver and the host are asked: what these say of a job is for those who may.
        if let Order::Suspend(id) | Order::Move(id, _) = order
            && let Some(job) = self.state.job(id)
        {
            self.state.allowed(job, &by)?;
        }
        // There is nothing to journal then. Who may not hold it is refused below.
        if let Order::Hold(id) = order
            && self.state.is_held(id, &by) == Ok(true)
        {
            return Ok(DoneReply { version: VERSION, id: id.0, text: format!("job {id} is held already") });
        }
        let (input, id, text) = match order {
            Order::Cancel(job) => (Input::Cancel { job, by }, job.0, format!("job {job} is being cancelled")),
            Order::Hold(job) => (Input::Hold { job, by }, job.0, format!("job {job} is held")),
            Order::Release(job) => (Input::Release { job, by }, job.0, format!("job {job} is released")),
            Order::Requeue(job) => {
                let runs = self.state.job(job).filter(|job| matches!(job.phase, Phase::Running { .. }));
                let runs = runs.filter(|job| job.suspension().is_none());
                let asks = runs.map(|job| &job.spec.request).and_then(|asks| Some((asks.save_grace?, asks)));
                let text = match asks {
                    Some((grace, asks)) => {
                        let within = if asks.time_limit.is_some() { " within its time limit" } else { "" };
                        format!(
                            "job {job} is asked to save its work, for which it has {grace}{within}, and is then put back into the queue"
                        )
                    }
                    None => format!("job {job} is being put back into the queue"),
                };
                (Input::Requeue { job, by }, job.0, text)
            }
            Order::Suspend(job) => {
                self.check_suspension(job)?;
                (Input::Suspend { job, by }, job.0, format!("job {job} is being suspended"))
            }
            Order::Unsuspend(job) => (Input::Unsuspend { job, by }, job.0, self.told_of_return(job)),
            Order::Move(job, index) => {
                let gpu = self.check_move(job, index)?;
                if index.is_none() && self.left(job) == Some(gpu) {
                    (Input::Unsuspend { job, by }, job.0, self.told_of_return(job))
                } else {
                    let index = self.state.gpu(gpu).map_or(0, |gpu| gpu.info.index);
                    (Input::Move { job, gpu, by }, job.0, format!("job {job} moves to GPU {index}"))
                }
            }
            Order::Drain(index) => {
                let text = format!("GPU {index} is drained: its jobs go on, no new ones come");
                (Input::Drain { gpu: self.gpu_by_index(index)?, by }, index.into(), text)
            }
            Order::Resume(index) => {
                let gpu = self.gpu_by_index(index)?;
                let drained = self.state.gpu(gpu).is_some_and(|gpu| gpu.drained_by.is_some());
                let text = if drained { "is in use again" } else { "was not drained" };
                (Input::Resume { gpu, by }, index.into(), format!("GPU {index} {text}"))
            }
        };
        match self.try_apply(input) {
            Err(Rejected::NoSuchJob(job)) => Err(self.no_such_job(job)),
            Err(rejected) => Err(rejected.into()),
            Ok(()) => Ok(DoneReply { version: VERSION, id, text }),
        }
    }

    /// What is said of a job that is to come back.
    fn told_of_return(&self, id: JobId) -> String {
        match self.left(id).and_then(|home| self.state.gpu(home)) {
            None => format!("job {id} goes on as soon as its GPU has room"),
            Some(home) if home.present => {
                format!("job {id} goes on as soon as GPU {}, which it left, has room", home.info.index)
            }
            Some(gone) => format!(
                "job {id} cannot go on where it was: once GPU {}, it is no longer in this machine. \
                 `carma move {id}` has it go on on another GPU of that type that has room for it",
                gone.info.index
            ),
        }
    }

    /// The GPU that a suspended job left.
    fn left(&self, id: JobId) -> Option<GpuId> {
        let off = self.state.job(id)?.suspension().filter(|suspension| suspension.is_off())?;
        off.home.first().copied()
    }

    /// Whether a job can be suspended as far as the driver and the host's memory go. One that is off its GPU has what it takes of
    /// the host already.
    pub(super) fn check_suspension(&self, id: JobId) -> Result<(), Refused> {
        let conflict = |text: String| Err(Refused::new(409, "conflict", text));
        let suspender = &self.parts.performer.suspender;
        let driver = match &suspender.driver {
            Ok(driver) => driver,
            Err(why) => {
                return conflict(format!("jobs cannot be suspended here: {why}; see `carma doctor`"));
            }
        };
        if let Some(job) = self.state.job(id)
            && State::bars_suspension(job).is_none()
            && self.state.has_yet_to_use_gpus(job)
        {
            return conflict(format!(
                "job {id} cannot be suspended yet: none of its processes has used its GPU so far; \
                 `carma requeue {id}` puts it back into the queue"
            ));
        }
        let running = self.state.job(id).filter(|job| driver.takes_host_memory() && !job.is_off());
        let Some((job, placement)) = running.and_then(|job| Some((job, job.placement()?))) else {
            return Ok(());
        };
        let leaving = |job: &&Job| {
            let step = job.suspension().map(|suspension| suspension.step);
            job.spec.id != id && matches!(step, Some(SuspendStep::Asked | SuspendStep::Suspending))
        };
        let others = self.state.halted_jobs().filter(leaving);
        let promised = others.map(|job| held(&self.state, job)).sum();
        let group =
            self.parts.hierarchy.as_ref().ok().map(|h| h.group(&self.parts.lives.short(id, placement)));
        let Some(host) = Host::now() else {
            return conflict("the memory of this machine cannot be read (/proc/meminfo)".into());
        };
        host.has_room(held(&self.state, job), promised, group.as_ref())
            .or_else(|why| conflict(format!("job {id} cannot be suspended: {why}")))
    }

    /// The GPU that a job moves to, and whether it can as far as the driver, the host and that GPU's memory go. What the
    /// state refuses anyway passes.
    pub(super) fn check_move(&self, id: JobId, index: Option<u32>) -> Result<GpuId, Refused> {
        self.check_suspension(id)?;
        let conflict = |text: String| Err(Refused::new(409, "conflict", text));
        if self.state.has_mig() {
            return conflict(
                "jobs cannot be moved here: this machine has GPUs in MIG mode, beside which moves are untried"
                    .into(),
            );
        }
        if self.parts.performer.suspender.driver.as_ref().is_ok_and(|driver| !driver.moves()) {
            return conflict("jobs cannot be moved here: that needs a driver of r580 or newer".into());
        }
        let now = self.parts.clock.now();
        let wanted = index.map(|index| self.gpu_by_index(index)).transpose()?;
        let Some((job, placement)) = self.state.job(id).and_then(|job| Some((job, job.placement()?))) else {
            return Ok(wanted.unwrap_or(GpuId(0)));
        };
        if let Some(to) = wanted {
            let there = placement.gpus.contains(&to) && !job.is_off();
            // That it cannot go there at all says more than what it would need there.
            if there || !self.may_move_to(job, to) {
                return Ok(to);
            }
            return match bars_move(&self.state, now, job, to) {
                Some(reason) => conflict(format!("job {id} cannot move: {reason}")),
                None => Ok(to),
            };
        }
        match best_place(&self.state, now, job) {
            Ok(to) => Ok(to),
            Err(bars) => conflict(match State::bars_suspension(job) {
                Some(why) => format!("job {id} cannot move: {why}"),
                None => format!("job {id} cannot move: {}", self.nowhere(job, bars.as_deref())),
            }),
        }
    }

    /// Whether a GPU is of the type of the one that a job is on, or left, and not drained. What it has is another matter.
    fn may_move_to(&self, job: &Job, to: GpuId) -> bool {
        let Some((from, to)) = self.from(job).zip(self.state.gpu(to)) else { return true };
        from.info.is_like(&to.info) && to.drained_by.is_none()
    }

    /// The GPU that a job is on, or left.
    fn from(&self, job: &Job) -> Option<&Gpu> {
        let home = job.suspension().filter(|suspension| suspension.is_off()).map(|of| &of.home);
        let gpus = home.or_else(|| job.placement().map(|placement| &placement.gpus))?;
        self.state.gpu(*gpus.first()?)
    }

    /// Why there is no GPU that a job could move to. `bars`: what those say that are not drained.
    fn nowhere(&self, job: &Job, bars: Option<&Reason>) -> String {
        let from = self.from(job);
        let others = self.state.gpus().iter().filter(|gpu| gpu.present);
        let others: Vec<&Gpu> = others
            .filter(|gpu| {
                from.is_some_and(|from| from.info.is_like(&gpu.info) && gpu.info.uuid != from.info.uuid)
            })
            .collect();
        let drained = others.iter().filter(|gpu| gpu.drained_by.is_some()).count();
        match (others.len(), drained) {
            (0, _) => "there is no other GPU of its type".to_owned(),
            (1, 1) => "the other GPU of its type is drained".to_owned(),
            (all, drained) if all == drained => "all other GPUs of its type are drained".to_owned(),
            (_, drained) => {
                let which = if drained == 0 { "" } else { " that is not drained" };
                match bars {
                    Some(bars) => format!("no other GPU of its type{which} would do: {bars}"),
                    None => format!("no other GPU of its type{which} would do"),
                }
            }
        }
    }

    fn no_such_job(&self, job: JobId) -> Refused {
        let next = self.state.next_id();
        // What cannot be read is shown no better.
        if job < next && self.parts.journal.has_job(job).unwrap_or(true) {
            let text = format!("job {job} is over already; see `carma show {job}`");
            return Refused::new(409, "conflict", text);
        }
        Refused::no_such_job(job, next)
    }

    fn gpu_by_index(&self, index: u32) -> Result<GpuId, Refused> {
        let at = self.state.gpus().iter().position(|g| g.present && g.info.index == index);
        at.and_then(|at| u32::try_from(at).ok()).map(GpuId).ok_or_else(|| {
            Refused::new(404, "not_found", format!("there is no GPU {index}; see `carma gpus`"))
        })
    }
}
