//! Made-up runs for tests, with the shape of real ones: GPUs that fill up, jobs that slow each other
//! down, some that run out of memory. No model stands behind the numbers.

use super::outcome::{End, GpuSeries, JobOutcome, Oom, RunResult, Spread, Stretch, Summary};
use carma_core::units::{MiB, Millis};

/// Name, mean minutes alone, GiB, SM activity.
const TASKS: [(&str, f64, f64, f32); 8] = [
    ("resnet18-cifar10-b128", 12.0, 2.1, 0.16),
    ("mobilenet_v2-cifar10-b64", 9.0, 1.8, 0.12),
    ("efficientnet_b0-cifar100-b128", 17.0, 3.4, 0.21),
    ("resnet50-imagenet-b64", 38.0, 9.6, 0.52),
    ("vgg16-imagenet-b64", 41.0, 12.4, 0.61),
    ("bert_base-wikitext-b16", 47.0, 18.2, 0.58),
    ("xlnet_base-wikitext-b8", 66.0, 22.9, 0.66),
    ("gpt2_large-wikitext-b8", 92.0, 31.0, 0.86),
];
const GPU_GIB: f64 = 40.0;
const STEP_S: f64 = 60.0;

/// A generator of the congruential kind (Knuth's constants): the same numbers on every machine.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// One run for each policy name: `exclusive` shares nothing, any other puts up to three jobs on a GPU,
/// `random` without looking at its memory.
pub(crate) fn runs(gpus: u32, jobs: u32, policies: &[&str], seed: u64) -> Vec<RunResult> {
    policies.iter().map(|policy| run(gpus, jobs, policy, seed)).collect()
}

fn millis(s: f64) -> Millis {
    Millis((s * 1000.0).round() as u64)
}

fn run(gpus: u32, n: u32, policy: &str, seed: u64) -> RunResult {
    let mut dice = Dice(seed);
    let (most, blind) = match policy {
        "exclusive" => (1, false),
        "random" => (3, true),
        _ => (3, false),
    };
    let mut arrival = 0.0;
    let mut queue: Vec<(u32, f64, f64)> = Vec::new();
    let mut outcomes = Vec::new();
    let mut kinds = Vec::new();
    for j in 0..n {
        if j > 0 {
            arrival += -(1.0 - dice.next()).ln() * 80.0 * 4.0 / f64::from(gpus);
        }
        // Light tasks are the many.
        let kind = if dice.next() < 0.65 {
            (dice.next() * 3.0) as usize
        } else {
            3 + (dice.next() * dice.next().sqrt() * 5.0) as usize
        };
        let solo = TASKS[kind].1 * 60.0 * (0.6 + 0.8 * dice.next());
        let wide = if kind > 5 && gpus > 1 { 2 } else { 1 };
        queue.push((j, arrival, solo));
        kinds.push(kind);
        outcomes.push(JobOutcome {
            id: format!("job-{j:03}"),
            task: TASKS[kind].0.into(),
            user: ["alice", "bob", "carol"][(j % 3) as usize].into(),
            gpus: wide,
            arrival: millis(arrival),
            first_start: None,
            last_start: None,
            end: None,
            exec: Millis::ZERO,
            solo: millis(solo),
            attempts: 0,
            ooms: 0,
        });
    }
    let mut stretches: Vec<Stretch> = Vec::new();
    let mut ooms = Vec::new();
    let mut now = 0.0;
    while !queue.is_empty() {
        // First come, first served; the head waits until its GPUs are there.
        let (j, ready, solo) = queue[0];
        now = f64::max(now, ready);
        let kind = kinds[j as usize];
        let again = outcomes[j as usize].ooms > 0;
        let on = |g: u32| stretches.iter().filter(move |s| s.gpus.contains(&g) && s.end.0 > millis(now).0);
        let used = |g: u32| on(g).map(|s| TASKS[kinds[s.job as usize]].2).sum::<f64>();
        let mut able: Vec<u32> = (0..gpus)
            .filter(|g| {
                let count = on(*g).count();
                // A job that ran out of memory gets GPUs of its own.
                count < if again { 1 } else { most } && (blind || used(*g) + TASKS[kind].2 <= GPU_GIB)
            })
            .collect();
        able.sort_by_key(|g| on(*g).count());
        let wide = outcomes[j as usize].gpus as usize;
        if able.len() < wide {
            let next = stretches.iter().map(|s| s.end.0).filter(|e| *e > millis(now).0).min();
            now = next.map_or(now + 60.0, |ms| ms as f64 / 1000.0);
            continue;
        }
        queue.remove(0);
        able.truncate(wide);
        let neighbours = able.iter().map(|g| on(*g).count()).max().unwrap_or(0);
        let short = able.iter().copied().find(|g| used(*g) + TASKS[kind].2 > GPU_GIB);
        let free = short.map_or(0.0, |g| GPU_GIB - used(g));
        let took = match short {
            Some(_) => 45.0 + 60.0 * dice.next(),
            None => solo * (1.0 + neighbours as f64 * (0.05 + 0.35 * f64::from(TASKS[kind].3) * dice.next())),
        };
        let job = &mut outcomes[j as usize];
        job.attempts += 1;
        job.first_start.get_or_insert(millis(now));
        job.last_start = Some(millis(now));
        job.exec = job.exec + millis(took);
        if let Some(gpu) = short {
            job.ooms += 1;
            ooms.push(Oom {
                at: millis(now + took),
                job: j,
                task: job.task.clone(),
                gpu,
                wanted: MiB((TASKS[kind].2 * 1024.0) as u64),
                free: MiB((free.max(0.0) * 1024.0) as u64),
                lost: millis(took),
            });
            queue.push((j, now + took, solo));
            queue.sort_by(|a, b| a.1.total_cmp(&b.1));
        } else {
            job.end = Some(millis(now + took));
        }
        stretches.push(Stretch {
            job: j,
            attempt: job.attempts,
            gpus: able,
            start: millis(now),
            end: millis(now + took),
            how: if short.is_some() { End::OutOfMemory } else { End::Completed },
            shared: neighbours > 0,
        });
    }
    ooms.sort_by_key(|o: &Oom| o.at);
    let series = (0..gpus).map(|g| activity(g, &stretches, &kinds, &mut dice)).collect::<Vec<_>>();
    let summary = summary(&outcomes, &stretches, &series, &ooms);
    RunResult {
        policy: policy.into(),
        precondition: "5.0 GiB free".to_owned(),
        sharing: if most == 1 { "time-slice" } else { "mps" }.into(),
        seed,
        summary,
        events: u64::from(n) * 4,
        jobs: outcomes,
        stretches,
        ooms,
        step_s: STEP_S,
        series,
    }
}

fn activity(gpu: u32, stretches: &[Stretch], kinds: &[usize], dice: &mut Dice) -> GpuSeries {
    let end = stretches.iter().map(|s| s.end.0).max().unwrap_or(0) as f64 / 1000.0;
    let mut series = GpuSeries::default();
    for step in 0..(end / STEP_S).ceil() as u64 {
        let at = (step as f64 + 0.5) * STEP_S * 1000.0;
        let there = stretches
            .iter()
            .filter(|s| s.gpus.contains(&gpu) && (s.start.0 as f64) <= at && at < s.end.0 as f64)
            .map(|s| TASKS[kinds[s.job as usize]]);
        let (mut idle, mut gib) = (1.0, 0.0);
        for task in there {
            idle *= 1.0 - task.3;
            gib += task.2;
        }
        let smact = (1.0 - idle) * (0.94 + 0.06 * dice.next() as f32);
        series.smact.push(smact);
        series.memory_mib.push((gib.min(GPU_GIB) * 1024.0) as f32);
        series.power_w.push(52.0 + 290.0 * smact.powf(0.8));
    }
    series
}

fn spread(mut values: Vec<f64>) -> Spread {
    if values.is_empty() {
        return Spread::default();
    }
    values.sort_by(f64::total_cmp);
    let at = |q: f64| values[((values.len() - 1) as f64 * q).round() as usize];
    Spread {
        mean: values.iter().sum::<f64>() / values.len() as f64,
        median: at(0.5),
        p95: at(0.95),
        max: at(1.0),
    }
}

fn summary(jobs: &[JobOutcome], stretches: &[Stretch], series: &[GpuSeries], ooms: &[Oom]) -> Summary {
    let s = Millis::as_secs_f64;
    let of = |f: &dyn Fn(&JobOutcome) -> f64| spread(jobs.iter().map(f).collect());
    let wait = |j: &JobOutcome| s(j.last_start.unwrap_or_default()) - s(j.arrival);
    let makespan_s = stretches.iter().map(|x| s(x.end)).fold(0.0, f64::max);
    let mean = |pick: fn(&GpuSeries) -> &Vec<f32>| {
        let all: Vec<f64> = series.iter().flat_map(pick).map(|v| f64::from(*v)).collect();
        if all.is_empty() { 0.0 } else { all.iter().sum::<f64>() / all.len() as f64 }
    };
    let (smact, power_w) = (mean(|g| &g.smact), mean(|g| &g.power_w));
    let energy_j = power_w * makespan_s * series.len() as f64;
    let on_gpus = stretches.iter().map(|x| (s(x.end) - s(x.start)) * x.gpus.len() as f64).sum::<f64>();
    let gpu_s = makespan_s * series.len() as f64;
    Summary {
        jobs: jobs.len() as u64,
        completed: jobs.iter().filter(|j| j.end.is_some()).count() as u64,
        makespan_s,
        wait_s: of(&wait),
        exec_s: of(&|j| s(j.exec)),
        jct_s: of(&|j| s(j.end.unwrap_or_default()) - s(j.arrival)),
        slowdown: of(&|j| (s(j.end.unwrap_or_default()) - s(j.last_start.unwrap_or_default())) / s(j.solo)),
        oom: ooms.len() as u64,
        oom_jobs: jobs.iter().filter(|j| j.ooms > 0).count() as u64,
        oom_lost_gpu_s: ooms.iter().map(|o| s(o.lost)).sum(),
        oom_wait_s: if ooms.is_empty() { 0.0 } else { 412.0 },
        energy_j,
        energy_per_job_j: if jobs.is_empty() { 0.0 } else { energy_j / jobs.len() as f64 },
        smact,
        smocc: smact * 0.55,
        drama: smact * 0.4,
        memory_mib: mean(|g| &g.memory_mib),
        power_w,
        jobs_per_gpu: if gpu_s > 0.0 { on_gpus / gpu_s } else { 0.0 },
        busy: 0.9,
        fairness_wait: 0.93,
        fairness_slowdown: 0.97,
        users: 3,
        ..Summary::default()
    }
}
