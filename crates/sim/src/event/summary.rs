//! The figures of a run.

use super::engine::Account;
use super::outcome::{ActiveMeans, GpuSeries, Spread, Summary, jain};
use super::world::World;
use crate::trace::Workload;

const S: f64 = 1000.0;

pub(super) fn summary(workload: &Workload, ledger: &[Account], world: &World, end: u64) -> Summary {
    let begin = workload.jobs.first().map_or(0, |job| job.arrival.0);
    let span_ms = (end - begin) as f64;
    let mut wait = Vec::new();
    let mut exec = Vec::new();
    let mut jct = Vec::new();
    let mut slowdown = Vec::new();
    let users = workload.users.len();
    let (mut user_wait, mut user_slow) = (vec![(0.0, 0u64); users], vec![(0.0, 0u64); users]);
    let mut s = Summary { jobs: workload.jobs.len() as u64, ..Summary::default() };
    let (mut oom_wait, mut recovered) = (0.0, 0u64);
    for (job, account) in workload.jobs.iter().zip(ledger) {
        s.oom += u64::from(account.ooms);
        s.oom_jobs += u64::from(account.ooms > 0);
        s.oom_lost_gpu_s += account.oom_exec as f64 / S * f64::from(job.gpus);
        s.preemptions += u64::from(account.preemptions);
        s.evictions += u64::from(account.evictions);
        s.growth_guard += u64::from(account.growth_guard);
        let (Some(done), Some(started)) = (account.end, account.last_start) else {
            s.not_completed += 1;
            continue;
        };
        s.completed += 1;
        let arrival = job.arrival.0;
        // A job that was taken off and went on has one start that counts: its first since it failed.
        let waited = (done - arrival).saturating_sub(account.last_exec) as f64;
        let waited = if account.preemptions == 0 { (started - arrival) as f64 } else { waited };
        let turnaround = (done - arrival) as f64;
        wait.push(waited / S);
        exec.push(account.exec as f64 / S);
        jct.push(turnaround / S);
        let solo = job.duration.0.max(1) as f64;
        slowdown.push(account.last_exec as f64 / solo);
        if let Some(failed) = account.first_oom {
            oom_wait += started.saturating_sub(failed) as f64 / S;
            recovered += 1;
        }
        if let (Some(w), Some(v)) =
            (user_wait.get_mut(job.user as usize), user_slow.get_mut(job.user as usize))
        {
            *w = (w.0 + waited / S, w.1 + 1);
            *v = (v.0 + turnaround / solo, v.1 + 1);
        }
    }
    s.makespan_s = span_ms / S;
    s.wait_s = Spread::of(wait);
    s.exec_s = Spread::of(exec);
    s.jct_s = Spread::of(jct);
    s.slowdown = Spread::of(slowdown);
    s.oom_wait_s = if recovered > 0 { oom_wait / recovered as f64 } else { 0.0 };
    s.users = user_wait.iter().filter(|(_, n)| *n > 0).count() as u64;
    s.fairness_wait = jain(&user_wait);
    s.fairness_slowdown = jain(&user_slow);
    totals(&mut s, world, span_ms);
    s
}

fn totals(s: &mut Summary, world: &World, span_ms: f64) {
    let sum = |f: fn(&super::world::Totals) -> f64| world.gpus.iter().map(|gpu| f(&gpu.totals)).sum::<f64>();
    let gpu_time = span_ms * world.gpus.len() as f64;
    let busy = sum(|t| t.busy);
    let per = |value: f64, time: f64| if time > 0.0 { value / time } else { 0.0 };
    let energy = sum(|t| t.power);
    s.energy_j = energy / S;
    s.energy_per_job_j = per(energy / S, s.completed as f64);
    s.smact = per(sum(|t| t.smact), gpu_time);
    s.smocc = per(sum(|t| t.smocc), gpu_time);
    s.drama = per(sum(|t| t.drama), gpu_time);
    s.memory_mib = per(sum(|t| t.memory), gpu_time);
    s.power_w = per(energy, gpu_time);
    s.active = ActiveMeans {
        smact: per(sum(|t| t.active[0]), busy),
        smocc: per(sum(|t| t.active[1]), busy),
        drama: per(sum(|t| t.active[2]), busy),
        memory_mib: per(sum(|t| t.active[3]), busy),
        power_w: per(sum(|t| t.active[4]), busy),
    };
    s.jobs_per_gpu = per(sum(|t| t.tenants), busy);
    s.busy = per(busy, gpu_time);
}

/// Points that a curve over the whole run has at most.
const MOST_STEPS: f64 = 600.0;

/// Levels of each GPU as means over equal steps. The step is whole seconds.
pub(super) fn series(world: &World, wanted: bool, end: u64) -> (f64, Vec<GpuSeries>) {
    if !wanted || end == 0 {
        return (0.0, Vec::new());
    }
    let step_ms = ((end as f64 / S / MOST_STEPS).ceil().max(1.0) * S) as u64;
    let steps = end.div_ceil(step_ms) as usize;
    let curves = world.gpus.iter().map(|gpu| {
        let mut sums = vec![[0.0_f64; 3]; steps];
        let idle = [0.0, 0.0, gpu.empty_w()];
        let starts = std::iter::once((0, idle))
            .chain(gpu.points.iter().map(|p| (p.at, [p.smact, p.memory, p.power].map(f64::from))));
        let ends = gpu.points.iter().map(|p| p.at).chain([end]);
        for ((from, levels), to) in starts.zip(ends) {
            let (mut at, to) = (from, to.min(end));
            while at < to {
                let bin = (at / step_ms) as usize;
                let until = to.min((bin as u64 + 1) * step_ms);
                for (sum, level) in sums[bin].iter_mut().zip(levels) {
                    *sum += level * (until - at) as f64;
                }
                at = until;
            }
        }
        let mut curve = GpuSeries::default();
        for (bin, sums) in sums.iter().enumerate() {
            let width = (end - bin as u64 * step_ms).min(step_ms) as f64;
            let [smact, memory, power] = sums.map(|sum| (sum / width) as f32);
            curve.smact.push(smact);
            curve.memory_mib.push(memory);
            curve.power_w.push(power);
        }
        curve
    });
    (step_ms as f64 / S, curves.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jain_is_one_when_all_are_alike_and_one_over_n_when_one_has_all() {
        assert_eq!(jain(&[(10.0, 1), (20.0, 2)]), 1.0);
        assert_eq!(jain(&[(4.0, 1), (0.0, 1), (0.0, 1), (0.0, 1)]), 0.25);
        assert_eq!(jain(&[(0.0, 1)]), 1.0);
        assert_eq!(jain(&[]), 1.0);
    }

    #[test]
    fn a_spread_interpolates() {
        let s = Spread::of(vec![4.0, 1.0, 3.0, 2.0]);
        assert_eq!((s.mean, s.median, s.max), (2.5, 2.5, 4.0));
        assert!((s.p95 - 3.85).abs() < 1e-12);
    }
}
