//! The model itself: memory, progress, activity and energy of virtual GPUs as a pure function of what
//! happened when. No thread, clock or socket: every call says what the virtual time is.
//!
//! Everything between two events is constant, so a GPU's counters are integrated only when something
//! on it changes or a client reads it. That is why idle virtual GPUs cost nothing.

use carma_gpu::ProcessState;
use carma_hardware::GpuType;
use carma_interference::power::{Power, PowerLaw as _};
use carma_interference::share::{Capacities, Demand, Tenant as Sharer, share_mixed};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A tenant's identity: the connection that it came by. Not its process id, because one process may
/// connect twice.
pub(crate) type TenantId = u64;

/// What a task does to a GPU when it is alone on it, each a share of the peak, 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TaskDemand {
    /// Share of time with a kernel resident (GRACT).
    pub gract: f64,
    /// SM activity (SMACT).
    pub sm: f64,
    /// Warp occupancy (SMOCC).
    pub occupancy: f64,
    /// DRAM activity (DRAMA).
    pub dram: f64,
}

impl From<TaskDemand> for Demand {
    fn from(task: TaskDemand) -> Self {
        let TaskDemand { gract, sm, dram, occupancy: _ } = task;
        Self { gract, sm, dram, ..Self::default() }
    }
}

/// A task that came.
#[derive(Debug, Clone)]
pub(crate) struct Arrival {
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    /// GPUs that it sees, without repeats; its own ordinals index this list.
    pub(crate) gpus: Vec<usize>,
    pub(crate) demand: TaskDemand,
    /// Whether it is a client of its user's virtual MPS.
    pub(crate) mps: bool,
    /// Limit on its share of the SMs, percent; only as an MPS client.
    pub(crate) thread_percent: Option<u8>,
    /// Limit on its memory on each of its GPUs, MiB; only as an MPS client.
    pub(crate) caps: Vec<Option<u64>>,
    /// Memory that it holds on each of its GPUs already (it knew an earlier host), MiB.
    pub(crate) held: Vec<u64>,
    /// Whether it computes, rather than starts up.
    pub(crate) active: bool,
    /// Where it is on its way off its GPUs and back.
    pub(crate) hold: ProcessState,
}

/// What a tenant has to be told.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Notice {
    /// Its progress is now this share of its speed alone.
    Rate(f64),
    /// A fatal fault of an MPS neighbour took its context.
    Fault,
    /// Its MPS client was terminated.
    Terminated,
    /// One of its GPUs is gone.
    Lost(Arc<str>),
    /// It is to stop, or may go on, on these GPUs.
    Hold(ProcessState, Vec<Arc<str>>),
}

/// Why an allocation failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No room.
    OutOfMemory(OutOfMemory),
    /// The tenant's context is gone, or it has no such GPU.
    NoContext,
}

/// The numbers of a failed allocation, MiB.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OutOfMemory {
    /// What the task can see at most: its cap if that refused it, otherwise the GPU.
    pub(crate) total: u64,
    pub(crate) free: u64,
    pub(crate) held: u64,
    pub(crate) capped: bool,
    /// Other processes on the GPU with what they hold.
    pub(crate) others: Vec<(u32, u64)>,
}

/// Integrals over virtual time: seconds of full activity, and joules.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Totals {
    pub(crate) gract_s: f64,
    pub(crate) smact_s: f64,
    pub(crate) smocc_s: f64,
    pub(crate) drama_s: f64,
    pub(crate) energy_j: f64,
}

/// Activity at one instant, shares of the peak, and watts.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Rates {
    pub(crate) gract: f64,
    pub(crate) smact: f64,
    pub(crate) smocc: f64,
    pub(crate) drama: f64,
    pub(crate) power_w: f64,
}

/// What a probe sees of a GPU.
#[derive(Debug, Clone)]
pub(crate) struct Sample {
    /// Virtual time, seconds.
    pub(crate) at: f64,
    pub(crate) lost: Option<Arc<str>>,
    pub(crate) memory_used: u64,
    pub(crate) processes: BTreeMap<u32, u64>,
    pub(crate) rates: Rates,
    pub(crate) totals: Totals,
}

#[derive(Debug)]
struct Gpu {
    uuid: Arc<str>,
    memory_mib: u64,
    /// Power with no process on it, watts.
    empty_w: f64,
    power: Power,
    capacities: Capacities,
    lost: Option<Arc<str>>,
    tenants: BTreeSet<TenantId>,
    /// Progress that this GPU alone would allow each computing tenant.
    allowed: BTreeMap<TenantId, f64>,
    gract: f64,
    /// SM clock under the power limit over the clock without.
    clock: f64,
    rates: Rates,
    since: f64,
    totals: Totals,
}

#[derive(Debug)]
struct Tenant {
    arrival: Arrival,
    /// Its context is gone: it only waits to be told and to leave.
    dead: bool,
    /// Last progress that it was told; `None` while it does not compute.
    rate: Option<f64>,
    /// Where it says that it is.
    holds: ProcessState,
    /// What it held on its GPUs, in their order, while its memory is the host's, MiB.
    saved: Vec<u64>,
}

impl Tenant {
    fn computes(&self) -> bool {
        self.arrival.active && !self.dead && self.arrival.hold == ProcessState::Running
    }

    fn held_on(&self, gpu: usize) -> u64 {
        let slot = self.arrival.gpus.iter().position(|&g| g == gpu);
        slot.and_then(|slot| self.arrival.held.get(slot)).copied().unwrap_or(0)
    }
}

/// All virtual GPUs of a host and the processes on them.
#[derive(Debug)]
pub(crate) struct Physics {
    gpus: Vec<Gpu>,
    tenants: BTreeMap<TenantId, Tenant>,
    outbox: Vec<(TenantId, Notice)>,
    now: f64,
}

impl Physics {
    pub(crate) fn new(gpus: impl IntoIterator<Item = (Arc<str>, GpuType)>) -> Self {
        let gpus = gpus.into_iter().map(|(uuid, gpu)| {
            let rates = Rates { power_w: gpu.empty_w, ..Rates::default() };
            Gpu {
                uuid,
                memory_mib: gpu.memory_mib,
                empty_w: gpu.empty_w,
                power: gpu.power,
                capacities: gpu.capacities,
                lost: None,
                tenants: BTreeSet::new(),
                allowed: BTreeMap::new(),
                gract: 0.0,
                clock: 1.0,
                rates,
                since: 0.0,
                totals: Totals::default(),
            }
        });
        Self { gpus: gpus.collect(), tenants: BTreeMap::new(), outbox: Vec::new(), now: 0.0 }
    }

    /// The GPU that an entry of `CUDA_VISIBLE_DEVICES` names: a UUID, the unique beginning of one, or
    /// an index.
    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        let name = name.trim();
        if let Ok(index) = name.parse::<usize>() {
            return (index < self.gpus.len()).then_some(index);
        }
        if let Some(exact) = self.gpus.iter().position(|gpu| &*gpu.uuid == name) {
            return Some(exact);
        }
        let mut begins =
            (0..self.gpus.len()).filter(|&i| !name.is_empty() && self.gpus[i].uuid.starts_with(name));
        match (begins.next(), begins.next()) {
            (Some(only), None) => Some(only),
            _ => None,
        }
    }

    pub(crate) fn uuid(&self, gpu: usize) -> Option<Arc<str>> {
        self.gpus.get(gpu).map(|gpu| Arc::clone(&gpu.uuid))
    }

    /// A tenant comes. What it says it holds is believed: it held it under an earlier host.
    pub(crate) fn join(&mut self, now: f64, id: TenantId, mut arrival: Arrival) {
        arrival.gpus.retain(|&gpu| gpu < self.gpus.len());
        arrival.held.resize(arrival.gpus.len(), 0);
        arrival.caps.resize(arrival.gpus.len(), None);
        for (&gpu, held) in arrival.gpus.iter().zip(&mut arrival.held) {
            *held = (*held).min(self.gpus[gpu].memory_mib);
        }
        let gpus = arrival.gpus.clone();
        // Whose memory is the host's has nothing to lose.
        let there = || gpus.iter().filter(|_| arrival.hold != ProcessState::Checkpointed);
        let lost = there().find(|&&gpu| self.gpus[gpu].lost.is_some());
        if let Some(&gpu) = lost {
            arrival.held.fill(0);
            self.outbox.push((id, Notice::Lost(Arc::clone(&self.gpus[gpu].uuid))));
        }
        let holds = arrival.hold;
        let off = holds == ProcessState::Checkpointed;
        let saved = if off { std::mem::replace(&mut arrival.held, vec![0; gpus.len()]) } else { Vec::new() };
        self.tenants.insert(id, Tenant { arrival, dead: lost.is_some(), rate: None, holds, saved });
        for &gpu in gpus.iter().filter(|_| !off) {
            self.gpus[gpu].tenants.insert(id);
        }
        self.refresh(now, &gpus);
    }

    /// A tenant is gone, and its memory free.
    pub(crate) fn leave(&mut self, now: f64, id: TenantId) {
        let Some(tenant) = self.tenants.remove(&id) else {
            return;
        };
        for &gpu in &tenant.arrival.gpus {
            self.gpus[gpu].tenants.remove(&id);
        }
        self.refresh(now, &tenant.arrival.gpus);
    }

    /// Gives memory on the `ordinal`-th of the tenant's GPUs. Returns what it then holds there, MiB.
    pub(crate) fn alloc(&mut self, id: TenantId, ordinal: usize, mib: u64) -> Result<u64, Refusal> {
        let Some(tenant) = self.tenants.get(&id) else {
            return Err(Refusal::NoContext);
        };
        let (Some(&gpu), false) = (tenant.arrival.gpus.get(ordinal), tenant.dead) else {
            return Err(Refusal::NoContext);
        };
        let held = tenant.arrival.held[ordinal];
        let cap = tenant.arrival.caps[ordinal].filter(|_| tenant.arrival.mps);
        let others = |physics: &Self| {
            let processes = physics.tenants_on(gpu).filter(|(other, _)| *other != id);
            let mut by_pid = BTreeMap::<u32, u64>::new();
            for (_, other) in processes {
                let held = other.held_on(gpu);
                if held > 0 {
                    *by_pid.entry(other.arrival.pid).or_default() += held;
                }
            }
            by_pid.into_iter().take(MOST_OTHERS).collect()
        };
        let memory = self.gpus[gpu].memory_mib;
        let free = memory.saturating_sub(self.memory_used(gpu));
        let refuse = |total, free, capped| {
            let others = if capped { Vec::new() } else { others(self) };
            Err(Refusal::OutOfMemory(OutOfMemory { total, free, held, capped, others }))
        };
        let wanted = held.saturating_add(mib);
        match cap {
            Some(cap) if wanted > cap => {
                return refuse(cap, cap.saturating_sub(held).min(free), true);
            }
            _ if mib > free => return refuse(memory, free, false),
            _ => {}
        }
        if let Some(tenant) = self.tenants.get_mut(&id) {
            tenant.arrival.held[ordinal] = wanted;
        }
        Ok(wanted)
    }

    /// A tenant begins or stops to compute.
    pub(crate) fn set_active(&mut self, now: f64, id: TenantId, active: bool) {
        let Some(tenant) = self.tenants.get_mut(&id) else {
            return;
        };
        tenant.arrival.active = active;
        if !active {
            tenant.rate = None;
        }
        let gpus = tenant.arrival.gpus.clone();
        self.refresh(now, &gpus);
    }

    /// A tenant has a fatal fault. Under MPS every client of the same user on its GPUs loses its
    /// context with it, starting or computing; others and plain processes do not (measured on an
    /// H200 for one user; with one daemon per user, another user's clients belong to another server).
    pub(crate) fn fault(&mut self, now: f64, id: TenantId) {
        let Some(culprit) = self.tenants.get(&id) else {
            return;
        };
        let (uid, mps, gpus) = (culprit.arrival.uid, culprit.arrival.mps, culprit.arrival.gpus.clone());
        let near: BTreeSet<TenantId> =
            gpus.iter().flat_map(|&gpu| self.gpus[gpu].tenants.iter().copied()).collect();
        let victims: Vec<TenantId> = near
            .into_iter()
            .filter(|&other| {
                let same_server = |other: &Tenant| mps && other.arrival.mps && other.arrival.uid == uid;
                other != id && self.tenants.get(&other).is_some_and(|other| !other.dead && same_server(other))
            })
            .collect();
        self.kill(now, &[id], None);
        self.kill(now, &victims, Some(&Notice::Fault));
    }

    /// Which of these processes are clients of this user's MPS server: a process on several GPUs is one.
    pub(crate) fn clients(&self, uid: u32, pids: &[u32]) -> Vec<u32> {
        let found: BTreeSet<u32> = self.clients_of(uid, pids).map(|(_, tenant)| tenant.arrival.pid).collect();
        found.into_iter().collect()
    }

    fn clients_of<'a>(
        &'a self,
        uid: u32,
        pids: &'a [u32],
    ) -> impl Iterator<Item = (TenantId, &'a Tenant)> + 'a {
        self.tenants.iter().map(|(&id, tenant)| (id, tenant)).filter(move |(_, tenant)| {
            let arrival = &tenant.arrival;
            arrival.mps && arrival.uid == uid && !tenant.dead && pids.contains(&arrival.pid)
        })
    }

    /// Terminates the MPS clients of a user among these processes. Returns how many there were.
    pub(crate) fn terminate(&mut self, now: f64, uid: u32, pids: &[u32]) -> usize {
        let clients: Vec<TenantId> = self.clients_of(uid, pids).map(|(id, _)| id).collect();
        self.kill(now, &clients, Some(&Notice::Terminated));
        clients.len()
    }

    /// Where a process is on its way off its GPUs and back.
    pub(crate) fn holds(&self, pid: u32) -> Result<ProcessState, String> {
        let mut states = self.tenants_of(pid).map(|(_, tenant)| {
            if tenant.holds == tenant.arrival.hold { tenant.holds } else { ProcessState::Between }
        });
        let first = states.next().ok_or_else(|| NO_CONTEXT.to_owned())?;
        Ok(if states.all(|state| state == first) { first } else { ProcessState::Between })
    }

    /// A tenant says where it is.
    pub(crate) fn set_holds(&mut self, id: TenantId, state: ProcessState) {
        if let Some(tenant) = self.tenants.get_mut(&id) {
            tenant.holds = state;
        }
    }

    /// Takes a process a step further off its GPUs or back, on others where `pairs` say so.
    ///
    /// # Errors
    /// In words; nothing has changed then.
    pub(crate) fn hold(
        &mut self,
        now: f64,
        pid: u32,
        (from, to): (ProcessState, ProcessState),
        pairs: &[(usize, usize)],
    ) -> Result<(), String> {
        if self.tenants_of(pid).any(|(_, tenant)| tenant.arrival.mps) {
            return Err("not supported: an MPS client".to_owned());
        }
        // A process that does not answer when it is to be locked is let go again.
        let unlocks = to == ProcessState::Running;
        let locked = || self.tenants_of(pid).all(|(_, tenant)| tenant.arrival.hold == from);
        if self.holds(pid)? != from && !(unlocks && locked()) {
            return Err("not in the state for that".to_owned());
        }
        let goes = |gpu: usize| pairs.iter().find(|(old, _)| *old == gpu).map_or(gpu, |(_, new)| *new);
        let back = (from, to) == (ProcessState::Checkpointed, ProcessState::Locked);
        let mut wanted: BTreeMap<usize, u64> = BTreeMap::new();
        for (_, tenant) in self.tenants_of(pid).filter(|_| back) {
            for (&gpu, saved) in tenant.arrival.gpus.iter().zip(&tenant.saved) {
                *wanted.entry(goes(gpu)).or_default() += saved;
            }
        }
        for (&gpu, &mib) in &wanted {
            let target = self.gpus.get(gpu).filter(|target| target.lost.is_none());
            let memory = target.ok_or("invalid value: no such GPU")?.memory_mib;
            if mib > memory.saturating_sub(self.memory_used(gpu)) {
                return Err("out of memory".to_owned());
            }
        }
        let ids: Vec<TenantId> = self.tenants_of(pid).map(|(id, _)| id).collect();
        let mut touched = Vec::new();
        for id in ids {
            let Some(tenant) = self.tenants.get_mut(&id) else { continue };
            let arrival = &mut tenant.arrival;
            arrival.hold = to;
            tenant.rate = None;
            touched.extend_from_slice(&arrival.gpus);
            if back {
                arrival.gpus = arrival.gpus.iter().map(|gpu| goes(*gpu)).collect();
                arrival.held = std::mem::take(&mut tenant.saved);
                touched.extend_from_slice(&arrival.gpus);
            } else if to == ProcessState::Checkpointed {
                let none = vec![0; arrival.held.len()];
                tenant.saved = std::mem::replace(&mut arrival.held, none);
            }
            let gpus = arrival.gpus.clone();
            for &gpu in &gpus {
                if to == ProcessState::Checkpointed {
                    self.gpus[gpu].tenants.remove(&id);
                } else {
                    self.gpus[gpu].tenants.insert(id);
                }
            }
            let uuids = gpus.iter().map(|gpu| Arc::clone(&self.gpus[*gpu].uuid)).collect();
            self.outbox.push((id, Notice::Hold(to, uuids)));
        }
        self.refresh(now, &touched);
        Ok(())
    }

    /// A GPU falls off the bus: it reads as lost, and everyone on it loses its context.
    pub(crate) fn drop_gpu(&mut self, now: f64, gpu: usize, why: &str) {
        let now = self.advance_clock(now);
        let Some(target) = self.gpus.get_mut(gpu) else {
            return;
        };
        target.advance(now);
        target.lost = Some(why.into());
        let uuid = Arc::clone(&target.uuid);
        let tenants: Vec<TenantId> = target.tenants.iter().copied().collect();
        for id in &tenants {
            if let Some(tenant) = self.tenants.get_mut(id) {
                for (&at, held) in tenant.arrival.gpus.iter().zip(&mut tenant.arrival.held) {
                    if at == gpu {
                        *held = 0;
                    }
                }
            }
        }
        self.kill(now, &tenants, Some(&Notice::Lost(uuid)));
    }

    /// A lost GPU comes back, empty.
    pub(crate) fn restore_gpu(&mut self, now: f64, gpu: usize) {
        let now = self.advance_clock(now);
        if let Some(target) = self.gpus.get_mut(gpu) {
            // The time that it was away is not counted.
            target.advance(now);
            target.lost = None;
        }
        self.refresh(now, &[gpu]);
    }

    /// What there is to tell, in order.
    pub(crate) fn take_notices(&mut self) -> Vec<(TenantId, Notice)> {
        std::mem::take(&mut self.outbox)
    }

    /// Whether there is anything to tell.
    pub(crate) fn has_notices(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Reads every GPU, in order.
    pub(crate) fn sample(&mut self, now: f64) -> Vec<Sample> {
        let now = self.advance_clock(now);
        (0..self.gpus.len())
            .map(|at| {
                self.gpus[at].advance(now);
                let mut processes = BTreeMap::<u32, u64>::new();
                for (_, tenant) in self.tenants_on(at) {
                    let held = tenant.held_on(at);
                    if held > 0 {
                        *processes.entry(tenant.arrival.pid).or_default() += held;
                    }
                }
                let gpu = &self.gpus[at];
                Sample {
                    at: now,
                    lost: gpu.lost.clone(),
                    memory_used: self.memory_used(at).min(gpu.memory_mib),
                    processes,
                    rates: gpu.rates,
                    totals: gpu.totals,
                }
            })
            .collect()
    }

    /// The living tenants of a process.
    fn tenants_of(&self, pid: u32) -> impl Iterator<Item = (TenantId, &Tenant)> {
        let of = move |(_, tenant): &(&TenantId, &Tenant)| tenant.arrival.pid == pid && !tenant.dead;
        self.tenants.iter().filter(of).map(|(id, tenant)| (*id, tenant))
    }

    fn tenants_on(&self, gpu: usize) -> impl Iterator<Item = (TenantId, &Tenant)> {
        self.gpus[gpu].tenants.iter().filter_map(|&id| self.tenants.get(&id).map(|tenant| (id, tenant)))
    }

    fn memory_used(&self, gpu: usize) -> u64 {
        self.tenants_on(gpu).map(|(_, tenant)| tenant.held_on(gpu)).fold(0, u64::saturating_add)
    }

    /// Takes the contexts of tenants, tells them so, and lets the others have their share. Their
    /// memory stays until they leave: the process ends by itself.
    fn kill(&mut self, now: f64, ids: &[TenantId], notice: Option<&Notice>) {
        let mut touched = Vec::new();
        for id in ids {
            let Some(tenant) = self.tenants.get_mut(id).filter(|tenant| !tenant.dead) else {
                continue;
            };
            tenant.dead = true;
            touched.extend_from_slice(&tenant.arrival.gpus);
            if let Some(notice) = notice {
                self.outbox.push((*id, notice.clone()));
            }
        }
        self.refresh(now, &touched);
    }

    fn advance_clock(&mut self, now: f64) -> f64 {
        self.now = self.now.max(now);
        self.now
    }

    /// Applies the share law where the set of computing tenants may have changed, and brings the
    /// counters of every GPU that this reaches up to now first.
    fn refresh(&mut self, now: f64, touched: &[usize]) {
        let now = self.advance_clock(now);
        let mut reached: BTreeSet<usize> =
            touched.iter().copied().filter(|&gpu| gpu < self.gpus.len()).collect();
        let mut concerned = BTreeSet::new();
        for &gpu in &reached {
            let (allowed, gract, clock) = self.share_law(gpu);
            concerned.extend(allowed.keys().copied());
            self.gpus[gpu].allowed = allowed;
            self.gpus[gpu].gract = gract;
            self.gpus[gpu].clock = clock;
        }
        for id in concerned {
            let Some(tenant) = self.tenants.get_mut(&id) else {
                continue;
            };
            // Workers on several GPUs wait for each other after every step: the slowest sets the pace.
            let allowed = |gpu: &usize| self.gpus[*gpu].allowed.get(&id).copied().unwrap_or(1.0);
            let rate = tenant.arrival.gpus.iter().map(allowed).fold(1.0, f64::min);
            if tenant.rate.is_none_or(|old| (old - rate).abs() > 1e-12) {
                tenant.rate = Some(rate);
                self.outbox.push((id, Notice::Rate(rate)));
                reached.extend(tenant.arrival.gpus.iter().copied());
            }
        }
        for gpu in reached {
            self.gpus[gpu].advance(now);
            self.gpus[gpu].rates = self.rates(gpu);
        }
    }

    /// What one GPU allows its computing tenants, its GRACT with them, and its clock.
    fn share_law(&self, gpu: usize) -> (BTreeMap<TenantId, f64>, f64, f64) {
        // The MPS clients of one user share one server; everyone else has the engine in turns.
        let mut servers: BTreeMap<u32, Vec<(TenantId, Sharer)>> = BTreeMap::new();
        let mut groups: Vec<Vec<(TenantId, Sharer)>> = Vec::new();
        for (id, tenant) in self.tenants_on(gpu).filter(|(_, tenant)| tenant.computes()) {
            let mut sharer = Sharer::new(tenant.arrival.demand.into());
            if tenant.arrival.mps {
                sharer.sm_cap = tenant.arrival.thread_percent.map(|percent| f64::from(percent) / 100.0);
                servers.entry(tenant.arrival.uid).or_default().push((id, sharer));
            } else {
                groups.push(vec![(id, sharer)]);
            }
        }
        groups.extend(servers.into_values());
        let sharers: Vec<Vec<Sharer>> =
            groups.iter().map(|group| group.iter().map(|(_, sharer)| *sharer).collect()).collect();
        let outcome = share_mixed(&sharers, &self.gpus[gpu].capacities);
        let power = &self.gpus[gpu].power;
        let clock = power.clock(&outcome.used);
        let tenants = groups.iter().flatten().zip(outcome.progress.into_iter().flatten());
        let allowed =
            tenants.map(|((id, sharer), progress)| (*id, progress / power.longer(&sharer.demand, clock)));
        (allowed.collect(), outcome.used.gract, clock)
    }

    fn rates(&self, at: usize) -> Rates {
        let gpu = &self.gpus[at];
        let mut rates = Rates::default();
        let (mut wanted, mut had) = (0.0, 0.0);
        let mut dram_at_full_clock = 0.0;
        for (id, tenant) in self.tenants_on(at).filter(|(_, tenant)| tenant.computes()) {
            let TaskDemand { gract, sm, occupancy, dram } = tenant.arrival.demand;
            let rate = tenant.rate.unwrap_or(0.0);
            // Under a lower clock kernels are resident for longer, and so count for longer.
            let longer = gpu.power.longer(&tenant.arrival.demand.into(), gpu.clock);
            rates.smact += sm * rate * longer;
            rates.smocc += occupancy * rate * longer;
            rates.drama += dram * rate;
            dram_at_full_clock += dram * rate * longer;
            had += gract * rate;
            wanted += gract * gpu.allowed.get(&id).copied().unwrap_or(rate);
        }
        // The law's GRACT is for the progress that this GPU allows; tenants that another GPU holds
        // back leave it idle for longer.
        rates.gract = if wanted > 0.0 { gpu.gract * (had / wanted).min(1.0) } else { 0.0 };
        for value in [&mut rates.gract, &mut rates.smact, &mut rates.smocc, &mut rates.drama] {
            *value = value.clamp(0.0, 1.0);
        }
        rates.gract = rates.gract.max(rates.smact);
        rates.power_w = if gpu.tenants.is_empty() {
            gpu.empty_w
        } else {
            let Rates { gract, smact, .. } = rates;
            gpu.power.drawn_w(&Demand { gract, sm: smact, dram: dram_at_full_clock, ..Demand::default() })
        };
        rates
    }
}

/// What the driver says of a process that it does not know.
pub(crate) const NO_CONTEXT: &str = "not initialised: it does not use a GPU";

/// Most other processes named in a failed allocation.
const MOST_OTHERS: usize = 16;

impl Gpu {
    fn advance(&mut self, now: f64) {
        let span = (now - self.since).max(0.0);
        self.since = self.since.max(now);
        // A GPU that is off the bus counts nothing.
        if self.lost.is_some() {
            return;
        }
        self.totals.gract_s += self.rates.gract * span;
        self.totals.smact_s += self.rates.smact * span;
        self.totals.smocc_s += self.rates.smocc * span;
        self.totals.drama_s += self.rates.drama * span;
        self.totals.energy_j += self.rates.power_w * span;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::VirtualSpec;
    use proptest::prelude::*;

    fn physics(spec: &str) -> Physics {
        let gpus = spec.parse::<VirtualSpec>().unwrap().gpus().into_iter();
        Physics::new(gpus.enumerate().map(|(i, gpu)| (format!("GPU-virtual-{i}").into(), gpu.model)))
    }

    fn demand(sm: f64) -> TaskDemand {
        TaskDemand { gract: sm, sm, occupancy: sm / 2.0, dram: sm / 4.0 }
    }

    fn arrival(gpus: &[usize], sm: f64) -> Arrival {
        Arrival {
            pid: 7,
            uid: 1000,
            gpus: gpus.to_vec(),
            demand: demand(sm),
            mps: false,
            thread_percent: None,
            caps: Vec::new(),
            held: Vec::new(),
            active: true,
            hold: ProcessState::Running,
        }
    }

    fn rate(physics: &Physics, id: TenantId) -> f64 {
        physics.tenants[&id].rate.unwrap()
    }

    // A custom GPU time-slices without loss, which makes round numbers.
    #[test]
    fn two_full_tasks_halve_and_recover() {
        let mut p = physics("virtual:1xCUSTOM-40GB");
        p.join(0.0, 1, arrival(&[0], 1.0));
        p.join(10.0, 2, arrival(&[0], 1.0));
        assert_eq!(rate(&p, 1), 0.5);
        p.leave(20.0, 2);
        let rates: Vec<_> = p.take_notices().into_iter().filter(|(id, _)| *id == 1).map(|(_, n)| n).collect();
        assert_eq!(rates, [Notice::Rate(1.0), Notice::Rate(0.5), Notice::Rate(1.0)]);
    }

    #[test]
    fn a_starting_task_uses_memory_and_nothing_else() {
        let mut p = physics("virtual:1xA100-40GB");
        p.join(0.0, 1, Arrival { active: false, ..arrival(&[0], 1.0) });
        assert_eq!(p.alloc(1, 0, 9000), Ok(9000));
        let sample = &p.sample(5.0)[0];
        assert_eq!((sample.memory_used, sample.rates.gract), (9000, 0.0));
        assert_eq!(sample.processes[&7], 9000);
        assert!((sample.totals.energy_j - 5.0 * 55.0).abs() < 1e-9);
        p.set_active(5.0, 1, true);
        assert_eq!(p.take_notices(), [(1, Notice::Rate(1.0))]);
    }

    #[test]
    fn refusals_carry_the_numbers() {
        let mut p = physics("virtual:1xA100-40GB");
        p.join(0.0, 1, arrival(&[0], 0.5));
        p.join(0.0, 2, Arrival { pid: 8, mps: true, caps: vec![Some(3000)], ..arrival(&[0], 0.5) });
        assert_eq!(p.alloc(1, 0, 38_000), Ok(38_000));
        assert_eq!(
            p.alloc(2, 0, 2961),
            Err(Refusal::OutOfMemory(OutOfMemory {
                total: 40_960,
                free: 2960,
                held: 0,
                capped: false,
                others: vec![(7, 38_000)],
            }))
        );
        assert_eq!(p.alloc(2, 0, 2900), Ok(2900));
        let Err(Refusal::OutOfMemory(refused)) = p.alloc(2, 0, 200) else { panic!() };
        assert_eq!((refused.total, refused.free, refused.capped), (3000, 60, true));
        assert_eq!(p.alloc(2, 1, 1), Err(Refusal::NoContext));
        assert!(matches!(p.alloc(1, 0, u64::MAX), Err(Refusal::OutOfMemory(_))));
    }

    #[test]
    fn a_cap_binds_mps_clients_only() {
        let mut p = physics("virtual:1xA100-40GB");
        p.join(0.0, 1, Arrival { caps: vec![Some(3000)], ..arrival(&[0], 0.5) });
        assert_eq!(p.alloc(1, 0, 4000), Ok(4000));
    }

    #[test]
    fn mps_packs_what_time_slicing_serialises() {
        for (mps, expected) in [(false, 0.5), (true, 1.0)] {
            let mut p = physics("virtual:1xCUSTOM-40GB");
            let task =
                Arrival { demand: TaskDemand { gract: 1.0, ..demand(0.4) }, mps, ..arrival(&[0], 0.4) };
            p.join(0.0, 1, task.clone());
            p.join(0.0, 2, task);
            assert_eq!(rate(&p, 1), expected, "mps {mps}");
        }
    }

    #[test]
    fn users_share_by_time_slice_and_a_users_own_clients_by_mps() {
        let mut p = physics("virtual:1xCUSTOM-40GB");
        let task =
            Arrival { mps: true, demand: TaskDemand { gract: 1.0, ..demand(0.4) }, ..arrival(&[0], 0.4) };
        p.join(0.0, 1, task.clone());
        p.join(0.0, 2, task.clone());
        p.join(0.0, 3, Arrival { uid: 1001, ..task });
        assert_eq!([rate(&p, 1), rate(&p, 2), rate(&p, 3)], [0.5; 3]);
    }

    #[test]
    fn the_slowest_gpu_sets_the_pace_of_a_job_on_two() {
        let mut p = physics("virtual:2xCUSTOM-40GB");
        p.join(0.0, 1, arrival(&[0, 1], 1.0));
        p.join(0.0, 2, arrival(&[1], 1.0));
        assert_eq!(rate(&p, 1), 0.5);
        let samples = p.sample(1.0);
        assert!((samples[0].rates.smact - 0.5).abs() < 1e-9, "the free GPU waits as well");
        assert!((samples[0].rates.gract - 0.5).abs() < 1e-9);
    }

    #[test]
    fn a_fault_reaches_mps_neighbours_of_the_same_user_and_nobody_else() {
        let mut p = physics("virtual:2xA100-40GB");
        let client = Arrival { mps: true, ..arrival(&[0], 0.2) };
        p.join(0.0, 1, client.clone());
        p.join(0.0, 2, client.clone());
        p.join(0.0, 3, Arrival { uid: 1001, ..client.clone() });
        p.join(0.0, 4, Arrival { mps: false, ..client.clone() });
        p.join(0.0, 5, Arrival { gpus: vec![1], ..client.clone() });
        p.join(0.0, 6, Arrival { active: false, ..client });
        p.take_notices();
        p.fault(1.0, 1);
        let faults: Vec<_> =
            p.take_notices().into_iter().filter(|(_, n)| *n == Notice::Fault).map(|(id, _)| id).collect();
        assert_eq!(faults, [2, 6]);
        assert_eq!(p.alloc(2, 0, 1), Err(Refusal::NoContext));
        // A plain process takes no other with it.
        p.fault(2.0, 4);
        assert!(p.take_notices().iter().all(|(_, n)| *n != Notice::Fault));
    }

    #[test]
    fn terminating_is_by_user_and_pid() {
        let mut p = physics("virtual:1xA100-40GB");
        let client = Arrival { mps: true, ..arrival(&[0], 0.2) };
        p.join(0.0, 1, client.clone());
        p.join(0.0, 2, Arrival { pid: 8, ..client.clone() });
        p.join(0.0, 3, Arrival { mps: false, ..client });
        assert_eq!(p.terminate(1.0, 1001, &[7, 8]), 0);
        assert_eq!(p.terminate(1.0, 1000, &[7]), 1);
        assert_eq!(p.terminate(1.0, 1000, &[7]), 0, "only once");
        assert!(p.take_notices().contains(&(1, Notice::Terminated)));
    }

    #[test]
    fn a_dropped_gpu_takes_its_tenants_and_stops_counting() {
        let mut p = physics("virtual:2xA100-40GB");
        p.join(0.0, 1, arrival(&[0, 1], 0.5));
        p.join(0.0, 2, arrival(&[1], 0.5));
        p.alloc(1, 0, 100).unwrap();
        p.alloc(1, 1, 100).unwrap();
        p.take_notices();
        p.drop_gpu(10.0, 0, "test");
        assert_eq!(p.take_notices()[0], (1, Notice::Lost("GPU-virtual-0".into())));
        let (before, after) = (p.sample(10.0), p.sample(20.0));
        assert_eq!(before[0].totals, after[0].totals);
        assert!(before[0].totals.energy_j > 10.0 * 55.0, "what it used until then counts");
        assert!(after[0].lost.is_some() && after[1].lost.is_none());
        p.join(20.0, 3, arrival(&[0], 0.5));
        assert!(matches!(p.take_notices()[..], [(3, Notice::Lost(_))]));
        p.restore_gpu(30.0, 0);
        assert_eq!(p.sample(30.0)[0].memory_used, 0);
        p.join(30.0, 4, arrival(&[0], 0.5));
        assert_eq!(p.alloc(4, 0, 5), Ok(5));
    }

    #[test]
    fn devices_are_found_as_cuda_finds_them() {
        let p = physics("virtual:3xA100-40GB");
        assert_eq!(p.find("2"), Some(2));
        assert_eq!(p.find(" GPU-virtual-1"), Some(1));
        assert_eq!((p.find("GPU-virtual-"), p.find("3"), p.find(""), p.find("-1")), (None, None, None, None));
    }

    #[derive(Debug, Clone)]
    enum Event {
        Join(Arrival),
        Leave(usize),
        Alloc(usize, usize, u64),
        Active(usize, bool),
        Fault(usize),
        Terminate(u32),
        Drop(usize),
        Restore(usize),
    }

    fn any_event() -> impl Strategy<Value = Event> {
        let any_arrival = (
            prop::sample::subsequence(vec![0, 1, 2], 1..=3),
            0.0..=1.0_f64,
            any::<bool>(),
            0..3_u32,
            any::<bool>(),
            prop::option::of(1..=100_u8),
            0..50_000_u64,
        )
            .prop_map(|(gpus, sm, mps, uid, active, thread_percent, held)| Arrival {
                mps,
                uid,
                active,
                thread_percent,
                caps: vec![Some(20_000)],
                held: vec![held],
                ..arrival(&gpus, sm)
            });
        prop_oneof![
            4 => any_arrival.prop_map(Event::Join),
            2 => (0..20_usize).prop_map(Event::Leave),
            4 => (0..20_usize, 0..4_usize, 0..50_000_u64).prop_map(|(t, o, m)| Event::Alloc(t, o, m)),
            1 => (0..20_usize, any::<bool>()).prop_map(|(t, a)| Event::Active(t, a)),
            1 => (0..20_usize).prop_map(Event::Fault),
            1 => (0..3_u32).prop_map(Event::Terminate),
            1 => (0..4_usize).prop_map(Event::Drop),
            1 => (0..4_usize).prop_map(Event::Restore),
        ]
    }

    proptest! {
        /// Whatever happens: power between idle and cap, activity a share, energy the integral of
        /// power, and every process that computes was told the progress that the counters use.
        #[test]
        fn the_books_balance(events in prop::collection::vec((0.0..10.0_f64, any_event()), 1..40)) {
            let mut p = physics("virtual:2xA100-40GB+1xH200");
            let (mut now, mut next) = (0.0, 0_u64);
            let mut expected = [0.0; 3];
            let mut told = BTreeMap::new();
            for (span, event) in events {
                for (sum, sample) in expected.iter_mut().zip(p.sample(now)) {
                    *sum += if sample.lost.is_some() { 0.0 } else { sample.rates.power_w * span };
                }
                now += span;
                match event {
                    Event::Join(arrival) => { p.join(now, next, arrival); next += 1; }
                    Event::Leave(t) => p.leave(now, t as u64),
                    Event::Alloc(t, ordinal, mib) => {
                        let before = p.sample(now);
                        if p.alloc(t as u64, ordinal, mib).is_err() {
                            let after = p.sample(now);
                            prop_assert!(before.iter().zip(&after).all(|(a, b)| a.memory_used == b.memory_used));
                        }
                    }
                    Event::Active(t, active) => p.set_active(now, t as u64, active),
                    Event::Fault(t) => p.fault(now, t as u64),
                    Event::Terminate(uid) => { p.terminate(now, uid, &[7]); }
                    Event::Drop(gpu) => p.drop_gpu(now, gpu, "test"),
                    Event::Restore(gpu) => p.restore_gpu(now, gpu),
                }
                for (id, notice) in p.take_notices() {
                    if let Notice::Rate(rate) = notice { told.insert(id, rate); }
                }
                for (&id, tenant) in p.tenants.iter().filter(|(_, tenant)| tenant.computes()) {
                    prop_assert_eq!(tenant.rate, told.get(&id).copied());
                    prop_assert!(tenant.rate.is_some_and(|rate| rate > 0.0 && rate <= 1.0));
                }
                for (sample, gpu) in p.sample(now).iter().zip(&expected) {
                    let Rates { gract, smact, smocc, drama, power_w } = sample.rates;
                    prop_assert!([gract, smact, smocc, drama].iter().all(|v| (0.0..=1.0).contains(v)));
                    prop_assert!((55.0..=700.0).contains(&power_w));
                    prop_assert!((sample.totals.energy_j - gpu).abs() < 1e-6 * gpu.max(1.0));
                }
            }
        }
    }
}
