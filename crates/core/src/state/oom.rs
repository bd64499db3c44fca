//! An attempt that ran out of GPU memory, or was ended before it did: what the ledger knows of it, and what follows.
//!
//! Whose fault it was and what the next attempt gets is said by [`crate::recovery`]; here the facts are collected and
//! the verdict is carried out.

use super::blind::a_little_more;
use super::{Applied, State};
use crate::explain::{Filling, Reason};
use crate::input::Rejected;
use crate::ledger::{Gpu, Reservation, Tenant};
use crate::model::{Exit, GpuId, Job, JobId, JobState, Placement};
use crate::recovery::{self, Around, Blame, Floor, Next, OomFacts, Said, Tried};
use crate::units::MiB;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// What a message of a failed allocation says: what was wanted, and the rest.
type Message = (Option<MiB>, Said);

impl State {
    /// What the looks say of a job's end on one of its GPUs, told of now.
    fn around(&self, gpu: &Gpu, tenant: &Tenant) -> Around {
        gpu.recent.around(tenant.job, tenant.placed, self.now, self.options.stale_after)
    }

    /// Memory trace at death: at its cap, or on a GPU that was full.
    pub(super) fn memory_was_full(&self, id: JobId, placement: &Placement) -> bool {
        placement.gpus.iter().filter_map(|g| self.gpu(*g)).any(|gpu| {
            let Some(tenant) = gpu.tenant(id) else {
                return false;
            };
            let at_cap = match (placement.cap, tenant.peak) {
                (Some(cap), Some(peak)) => peak >= cap.percent(98),
                _ => false,
            };
            let around = self.around(gpu, tenant);
            let full = around.held.is_some() && around.used.is_some_and(|u| u >= gpu.info.memory.percent(98));
            at_cap || full
        })
    }

    fn facts_on(&self, gpu: &Gpu, tenant: &Tenant, cap: Option<MiB>, message: Message) -> OomFacts {
        let around = self.around(gpu, tenant);
        // More than was reserved for it when it came, or is by now: what it left over may be a neighbour's since.
        let excess = |t: &Tenant| {
            let given = match t.reservation {
                Reservation::Memory(m) => t.forecast.map_or(m, |forecast| m.min(forecast)),
                Reservation::Whole | Reservation::None => return MiB::ZERO,
            };
            gpu.recent.most_of(t.job, self.now).or(t.observed).unwrap_or_default() - given
        };
        let others = || gpu.tenants.iter().filter(|t| t.job != tenant.job);
        let offender = others().filter(|t| excess(t) > MiB::ZERO).max_by_key(|t| (excess(t), Reverse(t.job)));
        OomFacts {
            peak: tenant.peak,
            held: around.held,
            wanted: message.0,
            said: message.1,
            forecast: tenant.forecast,
            cap,
            lent: cap.filter(|cap| tenant.reservation.memory().is_some_and(|reserved| reserved < *cap)),
            capacity: gpu.info.memory,
            // Where no look was taken around its end, as it was before.
            shared: others().next().is_some() || around.beside || (!around.looks && tenant.shared),
            others: around.others,
            offender: offender.map(|t| t.job),
            foreign: around.foreign.map(|f| (f.pid, f.user)),
        }
    }

    fn oom_facts(&self, id: JobId, placement: &Placement, message: Message) -> Option<OomFacts> {
        let at = placement.gpus.iter().filter_map(|g| {
            let gpu = self.gpu(*g)?;
            gpu.tenant(id).map(|tenant| self.facts_on(gpu, tenant, placement.cap, message))
        });
        let at: Vec<OomFacts> = at.collect();
        // The message numbers GPUs as they are given to the job. One that has numbered them anew is not believed where
        // the memory is another.
        let named = message.1.gpu.and_then(|n| at.get(n as usize)).filter(|facts| facts.may_be_meant());
        // Otherwise, of several, one where it exceeded what it had, or the one with the least left: of unequal GPUs the
        // small one fills first, though the job may hold more on a large one. The first of equals.
        let by_looks = || at.iter().min_by_key(|facts| (!facts.exceeds(), facts.left(), Reverse(facts.peak)));
        named.or_else(by_looks).cloned()
    }

    /// Most memory seen of a job on each of its GPUs.
    fn peaks(&self, id: JobId, placement: &Placement) -> impl Iterator<Item = MiB> {
        placement.gpus.iter().filter_map(move |g| self.gpu(*g)?.tenant(id)?.peak)
    }

    /// Out-of-memory retries that a job may have.
    fn most_retries(&self, job: &Job) -> u32 {
        job.spec.request.max_retries.unwrap_or(self.options.max_retries)
    }

    /// Whether another attempt follows where a job runs out of memory by its own fault.
    pub(super) fn may_retry(&self, job: &Job) -> bool {
        job.charged_retries < self.most_retries(job)
    }

    /// What jobs are given that ran out of memory by their own doing, and run again or are about to.
    fn floors(&self) -> impl Iterator<Item = (&Job, Floor)> {
        let active = self.active_jobs();
        let recovering = self.queue().jobs().take_while(|(key, _)| key.recovery.0).map(|(_, job)| job);
        let failed = active.chain(recovering).filter(|job| job.charged_retries > 0);
        failed.filter_map(|job| Some((job, job.floor?)))
    }

    /// The most of these by command.
    pub(super) fn floors_of_commands(&self) -> BTreeMap<u64, Floor> {
        let mut floors = BTreeMap::new();
        for (job, floor) in self.floors() {
            let most = floors.entry(job.spec.command_key).or_insert(floor);
            *most = floor.max(*most);
        }
        floors
    }

    /// The most of these of one command.
    pub(super) fn floor_of_command(&self, command: u64) -> Option<Floor> {
        self.floors().filter(|(job, _)| job.spec.command_key == command).map(|(_, floor)| floor).max()
    }

    /// What jobs of a command that are at work take, with a little more.
    fn at_work(&self, command: u64) -> Option<Floor> {
        let of_command = self.peaks_at_work().filter(|(job, _)| job.spec.command_key == command);
        of_command.map(|(_, peak)| Floor::Memory(a_little_more(peak))).max()
    }

    /// Whether there are as many GPUs as a job wants with so much: else it would wait for ever. Others of its command may have larger ones, or fewer.
    fn could_have(&self, job: &Job, floor: Floor) -> bool {
        let Floor::Memory(floor) = floor else { return true };
        self.most_memory(job) >= Some(floor.max(self.least_capacity(job)))
    }

    /// What was too little for one of a command is for those of it that wait for another attempt, and will be for those that run of which
    /// nothing else is said: their memory rises late.
    fn raise_floors(&mut self, command: u64, floor: Floor) {
        let recovering = self.queue().jobs().take_while(|(key, _)| key.recovery.0).map(|(_, job)| job);
        let lower = recovering.filter(|job| {
            job.spec.command_key == command
                && job.charged_retries > 0
                && job.floor < Some(floor)
                && self.could_have(job, floor)
        });
        for id in lower.map(|job| job.spec.id).collect::<Vec<_>>() {
            let _ = self.update(id, |job| job.floor = Some(floor));
        }
        let Floor::Memory(floor) = floor else { return };
        let running = self.active_jobs();
        let running = running.filter(|job| job.spec.command_key == command && self.said(job).is_zero());
        let placed: Vec<(JobId, GpuId)> = running
            .filter_map(|job| Some((job.spec.id, &job.placement()?.gpus)))
            .flat_map(|(id, gpus)| gpus.iter().map(move |gpu| (id, *gpu)))
            .collect();
        for (id, gpu) in placed {
            let _ = self.change_gpu(gpu, |gpu, _| gpu.assure(id, floor));
        }
    }

    fn tried(&self, job: &Job, placement: &Placement) -> Tried {
        let everywhere = self.peaks(job.spec.id, placement).min().unwrap_or_default();
        Tried {
            floor: job.floor,
            ran: self.now.since(placement.at),
            charged: job.charged_retries,
            free: job.free_retries,
            max_charged: self.most_retries(job),
            least: self.least_capacity(job).max(everywhere),
            most: self.most_memory(job),
        }
    }

    /// It was ended before it could run its GPU full.
    pub(super) fn outgrew(&mut self, id: JobId, exit: &Exit, filling: Filling) -> Result<(), Rejected> {
        let job = self.get(id)?;
        let Some(placement) = job.placement() else { return Err(Rejected::NoSuchJob(id)) };
        // What it exceeded says no more of what it wants.
        let given = placement.part.filter(|_| filling.exceeded.is_none());
        let (peak, tried) = (self.peaks(id, placement).max(), self.tried(job, placement));
        let next = recovery::after_growth(peak, given, &tried, &self.options);
        self.leave(id, Some(exit.clone()), Reason::GrowthGuard { filling, next });
        self.enqueue(id, |job| {
            job.floor = next;
            job.free_retries += 1;
        });
        Ok(())
    }

    /// What is to blame. A cap that was all that a GPU has to give says as much as a GPU alone: where there is a larger one, that is
    /// the next to try, and not the same for the half GiB that the policy keeps back.
    fn blame(&self, facts: &OomFacts, tried: &Tried) -> Blame {
        let blame = recovery::blame(facts);
        let all = |cap: MiB| cap + self.options.policy.reserve >= facts.capacity;
        match blame {
            Blame::OwnCap { cap } if all(cap) && !facts.shared && tried.most > Some(facts.capacity) => {
                Blame::WholeGpu { capacity: facts.capacity }
            }
            blame => blame,
        }
    }

    pub(super) fn out_of_memory(
        &mut self,
        id: JobId,
        placement: &Placement,
        exit: &Exit,
        message: Message,
        applied: &mut Applied,
    ) -> Result<(), Rejected> {
        let job = self.get(id)?;
        let Some(facts) = self.oom_facts(id, placement, message) else {
            return Err(Rejected::StaleAttempt { job: id, attempt: placement.attempt });
        };
        let tried = self.tried(job, placement);
        let blame = self.blame(&facts, &tried);
        let (charged_before, max_retries) = (tried.charged, tried.max_charged);
        match recovery::next_attempt(&facts, &blame, &tried, &self.options) {
            Next::Retry { floor, charged } => {
                let retries = charged_before + u32::from(charged);
                // What was too little for others of its command is for this one.
                let alike = |(other, _): &(&Job, Floor)| {
                    other.spec.command_key == job.spec.command_key && other.spec.id != id
                };
                let command = job.spec.command_key;
                let others = self.floors().filter(alike).map(|(_, floor)| floor).max();
                let others = others.max(self.at_work(command)).filter(|floor| self.could_have(job, *floor));
                // One that filled a whole GPU needs a larger one, which a GPU of its own is not.
                let filled = matches!(blame, Blame::WholeGpu { .. });
                let counts = charged && self.options.policy.blind && !filled;
                let floor = if counts { floor.max(others) } else { floor };
                // Those of its command that run take it as late: they keep what of that others have not been lent yet.
                let kept = recovery::kept(&facts, &blame).map(Floor::Memory);
                let verdict = Reason::OutOfMemoryRetry { blame, next: floor, retries, max_retries };
                self.leave(id, Some(exit.clone()), verdict);
                self.enqueue(id, |job| {
                    job.floor = floor;
                    job.charged_retries = retries;
                    job.free_retries += u32::from(!charged);
                });
                if let Some(floor) = floor.filter(|_| counts).or(kept) {
                    self.raise_floors(command, floor);
                }
            }
            Next::GiveUp(why) => {
                let reason = Reason::OutOfMemoryFinal { blame, why: why.to_string().into() };
                self.leave(id, Some(exit.clone()), reason.clone());
                self.finish(id, JobState::OutOfMemory, reason, Some(exit.status), applied);
            }
        }
        Ok(())
    }
}
