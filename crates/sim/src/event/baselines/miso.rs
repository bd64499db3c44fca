//! MISO (Li et al., SoCC 2022): a GPU is cut into the MIG instances that suit the jobs on it.
//!
//! Whenever a job comes to or leaves a GPU, the layout and the assignment of jobs to instances are
//! chosen that give the highest sum of predicted speeds, such that each job's memory fits. A new job
//! goes where that sum grows most. Up to seven jobs share a GPU.
//!
//! Our reading:
//!  - Predicted speed is that of the model's law for instances, which stands for MISO's learned
//!    predictor; its exploration under MPS costs nothing here.
//!  - Layouts are all sets of the model's profiles with at most 7 compute and 8 memory slices and as
//!    many of each as the driver allows. (That some orders of creation leave gaps is not modelled.)
//!  - To cut a GPU anew, all its jobs are taken off, and come back after [`RESET`] (published, about),
//!    loading again. Jobs that only swap instances of the same layout restart without the reset. A
//!    layout stays where another promises no more.
//!  - A job alone has the whole GPU, MIG off. A job of several GPUs gets whole GPUs, no instances.
//!  - Jobs come in the order of arrival. The first that finds no room has the GPUs with the fewest jobs
//!    held for it, and others may pass it elsewhere.
//!  - Power limits are not applied between instances (the world's MIG parts know no clock).

use super::BaselineError;
use super::desk::{Desk, LOOKAHEAD};
use crate::event::cluster::Cluster;
use crate::event::scheduler::{Decision, Fate, Left, Scheduler};
use crate::event::world::{GpuIndex, JobIndex, Part, World};
use carma_core::units::{MiB, Millis};
use carma_hardware::{GpuType, MigProfile};
use carma_interference::share::Demand;
use std::collections::BTreeMap;

/// A reset of the MIG layout.
const RESET: Millis = Millis::secs(4);
/// Jobs on a GPU at most.
const MOST: usize = 7;
/// Slices of a whole GPU.
const COMPUTE: u8 = 7;
const MEMORY: u8 = 8;
/// By how much a sum of speeds must be higher to count as higher.
const MORE: f64 = 1e-9;
/// The whole GPU among the kinds of instances.
const WHOLE: usize = 0;

/// Whether all GPUs can be cut.
pub(super) fn check(cluster: &Cluster) -> Result<(), BaselineError> {
    for (index, device) in cluster.devices().iter().enumerate() {
        let why = if device.mig.is_some() {
            "is an instance already"
        } else if device.gpu.mig.is_empty() {
            "has no MIG"
        } else {
            continue;
        };
        return Err(BaselineError::NoMig { gpu: device.gpu.name.to_string(), index, why });
    }
    Ok(())
}

/// A kind of instance.
#[derive(Debug, Clone, Copy)]
struct InstanceKind {
    compute: u8,
    slices: u8,
    most: u8,
    memory: u64,
    part: Option<Part>,
}

/// The kinds of instances of a type of GPU, the whole one first, and the layouts of so many of them.
#[derive(Debug)]
struct Cuts {
    name: std::sync::Arc<str>,
    kinds: Vec<InstanceKind>,
    /// At `k - 1`: layouts of k instances, kinds ascending.
    layouts: Vec<Vec<Vec<usize>>>,
}

impl Cuts {
    fn of(gpu: &GpuType) -> Self {
        let whole =
            InstanceKind { compute: COMPUTE, slices: MEMORY, most: 1, memory: gpu.memory_mib, part: None };
        let instance = |profile: &MigProfile| InstanceKind {
            compute: profile.compute,
            slices: profile.memory_slices,
            most: profile.most,
            memory: profile.memory_mib,
            part: Some(Part {
                sm: f64::from(profile.compute) / f64::from(COMPUTE),
                dram: f64::from(profile.memory_slices) / f64::from(MEMORY),
                memory: MiB(profile.memory_mib),
            }),
        };
        let smaller = gpu.mig.iter().filter(|profile| profile.compute < COMPUTE);
        let kinds: Vec<InstanceKind> = std::iter::once(whole).chain(smaller.map(instance)).collect();
        let mut layouts = vec![Vec::new(); MOST];
        grow(&kinds, &mut Vec::new(), &mut layouts);
        Self { name: std::sync::Arc::clone(&gpu.name), kinds, layouts }
    }
}

/// Adds all legal layouts that continue this one.
fn grow(kinds: &[InstanceKind], layout: &mut Vec<usize>, layouts: &mut [Vec<Vec<usize>>]) {
    if let Some(at) = layout.len().checked_sub(1) {
        match layouts.get_mut(at) {
            Some(of_this_many) => of_this_many.push(layout.clone()),
            None => return,
        }
    }
    let sum = |of: fn(&InstanceKind) -> u8| layout.iter().map(|kind| of(&kinds[*kind])).sum::<u8>();
    let (compute, slices) = (sum(|kind| kind.compute), sum(|kind| kind.slices));
    for next in layout.last().copied().unwrap_or(WHOLE)..kinds.len() {
        let kind = &kinds[next];
        let so_many = layout.iter().filter(|kind| **kind == next).count();
        if compute + kind.compute <= COMPUTE
            && slices + kind.slices <= MEMORY
            && so_many < usize::from(kind.most)
        {
            layout.push(next);
            grow(kinds, layout, layouts);
            layout.pop();
        }
    }
}

/// How a job does in each kind of instance; `None`: its memory does not fit.
type Speeds = Vec<Option<f64>>;

fn speeds(cuts: &Cuts, demand: &Demand, need: u64) -> Speeds {
    let speed =
        |kind: &InstanceKind| (need <= kind.memory).then(|| kind.part.map_or(1.0, |part| part.speed(demand)));
    cuts.kinds.iter().map(speed).collect()
}

/// The best assignment of jobs to the instances of a layout with at least as many: its sum of speeds,
/// and the place in the layout for each job. By dynamic programming over sets of jobs.
fn assign(layout: &[usize], jobs: &[Speeds]) -> Option<(f64, Vec<usize>)> {
    let all = (1_usize << jobs.len()) - 1;
    // Best sum for a set of jobs on the first instances, and the job that got the last one.
    type Best = Option<(f64, Option<usize>)>;
    let mut best: Vec<Vec<Best>> = vec![vec![None; all + 1]; layout.len() + 1];
    best[0][0] = Some((0.0, None));
    for (at, kind) in layout.iter().enumerate() {
        for set in 0..=all {
            let Some((sum, _)) = best[at][set] else { continue };
            let mut offer = |set: usize, sum: f64, job: Option<usize>| {
                if best[at + 1][set].is_none_or(|(known, _)| sum > known + MORE) {
                    best[at + 1][set] = Some((sum, job));
                }
            };
            offer(set, sum, None);
            for (job, speeds) in jobs.iter().enumerate() {
                if let (0, Some(speed)) = (set & (1 << job), speeds[*kind]) {
                    offer(set | (1 << job), sum + speed, Some(job));
                }
            }
        }
    }
    let (sum, _) = best[layout.len()][all]?;
    let (mut places, mut set) = (vec![0; jobs.len()], all);
    for at in (0..layout.len()).rev() {
        if let Some((_, Some(job))) = best[at + 1][set] {
            places[job] = at;
            set &= !(1 << job);
        }
    }
    Some((sum, places))
}

/// How one GPU is cut, and for which jobs.
#[derive(Debug)]
struct Cut {
    /// Kinds of its instances.
    layout: Vec<usize>,
    /// Its jobs, in the order in which they came.
    members: Vec<JobIndex>,
    /// Place in the layout of each job, as cut.
    places: BTreeMap<JobIndex, usize>,
    /// Until when it is being cut.
    ready: Millis,
    /// Whether its jobs changed since it was cut.
    stale: bool,
    /// The best sum of speeds for its jobs.
    sum: f64,
}

/// A cut that could be made.
struct Plan {
    sum: f64,
    layout: Vec<usize>,
    /// For each job, in the order asked for.
    places: Vec<usize>,
}

pub(super) struct Miso {
    desk: Desk,
    cuts: Vec<Cuts>,
    /// Position in `cuts` of each GPU's type.
    type_of: Vec<usize>,
    gpus: Vec<Cut>,
    /// GPUs of each job that has some. One that is not on the board waits for them to be cut.
    homes: BTreeMap<JobIndex, Vec<GpuIndex>>,
    /// The first job without room, and the GPUs that are held for it.
    held: Option<(JobIndex, Vec<GpuIndex>)>,
    /// Whether jobs came or went since the last look at those that wait.
    news: bool,
    now: Millis,
}

impl Miso {
    pub(super) fn new(desk: Desk, cluster: &Cluster) -> Self {
        let mut cuts: Vec<Cuts> = Vec::new();
        let mut type_of = Vec::new();
        for device in cluster.devices() {
            let known = cuts.iter().position(|cuts| cuts.name == device.gpu.name);
            type_of.push(known.unwrap_or(cuts.len()));
            if known.is_none() {
                cuts.push(Cuts::of(&device.gpu));
            }
        }
        let uncut = || Cut {
            layout: vec![WHOLE],
            members: Vec::new(),
            places: BTreeMap::new(),
            ready: Millis::ZERO,
            stale: false,
            sum: 0.0,
        };
        Self {
            gpus: cluster.devices().iter().map(|_| uncut()).collect(),
            desk,
            cuts,
            type_of,
            homes: BTreeMap::new(),
            held: None,
            news: false,
            now: Millis::ZERO,
        }
    }

    fn cuts(&self, gpu: GpuIndex) -> &Cuts {
        &self.cuts[self.type_of[gpu as usize]]
    }

    fn speeds(&self, gpu: GpuIndex, jobs: &[JobIndex]) -> Vec<Speeds> {
        let of = |job: &JobIndex| {
            let profile = self.desk.profile(*job);
            speeds(self.cuts(gpu), &profile.tenant.demand, profile.need)
        };
        jobs.iter().map(of).collect()
    }

    /// Whether no instance will do: a job of several GPUs, or one that must be alone.
    fn needs_whole(&self, job: JobIndex) -> bool {
        self.desk.profile(job).gpus > 1 || self.desk.is_alone(job)
    }

    /// The best cut of a GPU for these jobs; `None`: they don't fit.
    fn best(&self, gpu: GpuIndex, jobs: &[JobIndex]) -> Option<Plan> {
        if jobs.len() > 1 && jobs.iter().any(|job| self.needs_whole(*job)) {
            return None;
        }
        let layouts = self.cuts(gpu).layouts.get(jobs.len().checked_sub(1)?)?;
        let speeds = self.speeds(gpu, jobs);
        let mut best: Option<Plan> = None;
        for layout in layouts {
            if let Some((sum, places)) = assign(layout, &speeds)
                && best.as_ref().is_none_or(|best| sum > best.sum + MORE)
            {
                best = Some(Plan { sum, layout: layout.clone(), places });
            }
            // Nothing is better for one job than the whole, which comes first.
            if jobs.len() == 1 {
                break;
            }
        }
        best
    }

    /// The cut that leaves every job where it is and puts newcomers into instances that are free.
    fn kept(&self, gpu: GpuIndex) -> Option<Plan> {
        let cut = &self.gpus[gpu as usize];
        if cut.layout != [WHOLE] && cut.members.iter().any(|job| self.needs_whole(*job)) {
            return None;
        }
        let speeds = self.speeds(gpu, &cut.members);
        let free: Vec<usize> = (0..cut.layout.len())
            .filter(|place| !cut.members.iter().any(|job| cut.places.get(job) == Some(place)))
            .collect();
        let kinds: Vec<usize> = free.iter().map(|place| cut.layout[*place]).collect();
        let newcomers: Vec<usize> =
            (0..cut.members.len()).filter(|at| !cut.places.contains_key(&cut.members[*at])).collect();
        let new_speeds: Vec<Speeds> = newcomers.iter().map(|at| speeds[*at].clone()).collect();
        let (mut sum, new_places) = assign(&kinds, &new_speeds)?;
        let mut places = Vec::with_capacity(cut.members.len());
        for (at, job) in cut.members.iter().enumerate() {
            let place = match cut.places.get(job) {
                Some(place) => {
                    sum += speeds[at][cut.layout[*place]]?;
                    *place
                }
                None => free[new_places[newcomers.iter().position(|new| *new == at)?]],
            };
            places.push(place);
        }
        Some(Plan { sum, layout: cut.layout.clone(), places })
    }

    /// Gives waiting jobs GPUs.
    fn admit(&mut self) {
        let waiting = self.desk.waiting.iter().copied().filter(|job| !self.homes.contains_key(job));
        let waiting: Vec<JobIndex> = waiting.take(LOOKAHEAD).collect();
        // Whether a job finds an instance is a matter of memory alone, and GPUs only fill up here.
        let mut too_much = u64::MAX;
        for job in waiting {
            let need = self.desk.profile(job).need;
            let whole = self.needs_whole(job);
            let is_held = self.held.as_ref().is_some_and(|(who, _)| *who == job);
            if !whole && !is_held && need >= too_much {
                continue;
            }
            let open = |gpu: &GpuIndex| {
                let for_another = |(who, gpus): &(JobIndex, Vec<GpuIndex>)| *who != job && gpus.contains(gpu);
                need <= self.desk.memory(*gpu) && !self.held.as_ref().is_some_and(for_another)
            };
            let empty = |gpu: &GpuIndex| self.gpus[*gpu as usize].members.is_empty();
            let gpus = if whole {
                self.desk.pick(job, self.desk.gpus().filter(|gpu| open(gpu) && empty(gpu)))
            } else {
                self.best_home(job, self.desk.gpus().filter(open)).map(|gpu| vec![gpu])
            };
            if let Some(gpus) = gpus {
                for gpu in &gpus {
                    self.gpus[*gpu as usize].members.push(job);
                    self.members_changed(*gpu);
                }
                self.homes.insert(job, gpus);
                if self.held.take_if(|(who, _)| *who == job).is_some() {
                    too_much = u64::MAX;
                }
                continue;
            }
            if !whole {
                too_much = need;
            }
            if self.held.is_none() {
                let fewest = self.by_members(self.desk.gpus().filter(open));
                self.held = self.desk.pick(job, fewest).map(|gpus| (job, gpus));
            }
        }
    }

    /// The GPU whose sum of speeds grows most by a job; of equals the one with the fewest jobs.
    fn best_home(&self, job: JobIndex, open: impl Iterator<Item = GpuIndex>) -> Option<GpuIndex> {
        let mut best: Option<(f64, GpuIndex)> = None;
        for gpu in self.by_members(open) {
            let cut = &self.gpus[gpu as usize];
            let mut jobs = cut.members.clone();
            jobs.push(job);
            let Some(plan) = self.best(gpu, &jobs) else { continue };
            let gain = plan.sum - cut.sum;
            if best.is_none_or(|(most, _)| gain > most + MORE) {
                best = Some((gain, gpu));
            }
            // No GPU gains more than 1: without the newcomer, the cut would do for the jobs that are there.
            if gain >= 1.0 - MORE {
                break;
            }
        }
        best.map(|(_, gpu)| gpu)
    }

    /// GPUs, those with the fewest jobs first.
    fn by_members(&self, gpus: impl Iterator<Item = GpuIndex>) -> Vec<GpuIndex> {
        let mut ranked: Vec<(usize, GpuIndex)> =
            gpus.map(|gpu| (self.gpus[gpu as usize].members.len(), gpu)).collect();
        ranked.sort_unstable();
        ranked.into_iter().map(|(_, gpu)| gpu).collect()
    }

    fn members_changed(&mut self, gpu: GpuIndex) {
        let sum = self.best(gpu, &self.gpus[gpu as usize].members).map_or(0.0, |plan| plan.sum);
        let cut = &mut self.gpus[gpu as usize];
        cut.stale = true;
        cut.sum = sum;
        let members = &cut.members;
        cut.places.retain(|job, _| members.contains(job));
    }

    /// Cuts a GPU anew where that promises more than the present cut.
    fn recut(&mut self, gpu: GpuIndex, decisions: &mut Vec<Decision>) {
        let cut = &mut self.gpus[gpu as usize];
        cut.stale = false;
        let members = cut.members.clone();
        let Some(best) = self.best(gpu, &members) else { return };
        let kept = self.kept(gpu).filter(|kept| kept.sum + MORE >= best.sum);
        let (plan, anew) = kept.map_or((best, true), |kept| (kept, false));
        let cut = &mut self.gpus[gpu as usize];
        if anew {
            let reset = plan.layout != cut.layout;
            for (job, place) in members.iter().zip(&plan.places) {
                let before = cut.places.get(job).map(|place| cut.layout[*place]);
                let moves = reset || before.is_some_and(|kind| kind != plan.layout[*place]);
                if moves && !self.desk.on[*job as usize].is_empty() {
                    decisions.push(self.desk.preempt(*job));
                }
            }
            // Where it is being cut already, the new layout costs no more.
            if reset && cut.ready <= self.now {
                cut.ready = self.now + RESET;
            }
        }
        cut.layout = plan.layout;
        cut.places = members.into_iter().zip(plan.places).collect();
    }

    /// Starts the jobs whose GPUs are cut.
    fn start(&mut self, decisions: &mut Vec<Decision>) {
        let ready = |gpu: &GpuIndex| self.gpus[*gpu as usize].ready <= self.now;
        let homeless = self.homes.iter().filter(|(job, _)| self.desk.on[**job as usize].is_empty());
        let go: Vec<(JobIndex, Vec<GpuIndex>)> = homeless
            .filter(|(_, gpus)| gpus.iter().all(ready))
            .map(|(job, gpus)| (*job, gpus.clone()))
            .collect();
        for (job, gpus) in go {
            let mut terms = self.desk.terms(1.0);
            terms.part = gpus.first().and_then(|gpu| {
                let cut = &self.gpus[*gpu as usize];
                let kind = cut.places.get(&job).map_or(WHOLE, |place| cut.layout[*place]);
                self.cuts(*gpu).kinds[kind].part
            });
            decisions.push(self.desk.start(job, gpus, terms));
        }
    }
}

impl Scheduler for Miso {
    fn came(&mut self, _now: Millis, job: JobIndex, _world: &World) -> Fate {
        self.news = true;
        self.desk.came(job)
    }

    fn left(&mut self, _now: Millis, job: JobIndex, how: Left, _world: &World) -> Fate {
        let fate = self.desk.left(job, how);
        for gpu in self.homes.remove(&job).unwrap_or_default() {
            self.gpus[gpu as usize].members.retain(|member| *member != job);
            self.members_changed(gpu);
        }
        self.news = true;
        fate
    }

    fn changed(&mut self, _now: Millis, _gpu: GpuIndex, _world: &World) {}

    fn decide(&mut self, now: Millis, _world: &World) -> Vec<Decision> {
        self.now = now;
        let mut decisions = Vec::new();
        if std::mem::take(&mut self.news) {
            self.admit();
            for gpu in self.desk.gpus() {
                if self.gpus[gpu as usize].stale {
                    self.recut(gpu, &mut decisions);
                }
            }
        }
        self.start(&mut decisions);
        decisions
    }

    fn wake(&self) -> Option<Millis> {
        let cutting = self.gpus.iter().filter(|cut| cut.ready > self.now && !cut.members.is_empty());
        cutting.map(|cut| cut.ready).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cuts() -> Cuts {
        Cuts::of(&GpuType::find("A100-40GB").unwrap())
    }

    #[test]
    fn layouts_are_those_that_the_slices_allow() {
        let cuts = cuts();
        let sizes = |layout: &Vec<usize>| {
            let mut sizes: Vec<u8> = layout.iter().map(|kind| cuts.kinds[*kind].compute).collect();
            sizes.sort_unstable();
            sizes
        };
        let two: Vec<Vec<u8>> = cuts.layouts[1].iter().map(sizes).collect();
        assert!(two.contains(&vec![3, 4]) && two.contains(&vec![3, 3]) && !two.contains(&vec![4, 4]));
        // 3g and 3g take all memory slices.
        assert!(!cuts.layouts[2].iter().map(sizes).any(|sizes| sizes == [1, 3, 3]));
        // Seven times 1g, one of them perhaps with two memory slices.
        assert_eq!(cuts.layouts[6].iter().map(sizes).collect::<Vec<_>>(), [vec![1; 7], vec![1; 7]]);
        assert_eq!(cuts.layouts[0][0], [WHOLE]);
    }

    #[test]
    fn who_needs_more_gets_more() {
        let cuts = cuts();
        let job = |gract: f64, sm: f64, gib: u64| {
            speeds(&cuts, &Demand { gract, sm, ..Demand::default() }, gib * 1024)
        };
        // In 3g and 4g their kernels take 0.2 * 7/3 of the time, and 0.3 * 7/4: no longer than alone.
        let jobs = [job(0.5, 0.2, 1), job(0.6, 0.3, 1)];
        let best = cuts.layouts[1].iter().filter_map(|layout| Some((assign(layout, &jobs)?, layout)));
        let ((sum, places), layout) = best.max_by(|a, b| a.0.0.total_cmp(&b.0.0)).unwrap();
        assert!((sum - 2.0).abs() < 1e-9 && cuts.kinds[layout[places[1]]].compute == 4, "{sum}");
        // 15 GiB fit into 3g and 4g only.
        assert!(job(0.5, 0.2, 15).iter().flatten().count() == 3);
        let ones = vec![cuts.kinds.iter().position(|kind| kind.compute == 1).unwrap(); 2];
        assert_eq!(assign(&ones, &[job(0.5, 0.1, 15), job(0.5, 0.1, 1)]), None);
    }
}
