//! What a trace looks like in a few numbers.

use super::{Catalogue, Trace};
use carma_core::units::Millis;
use std::collections::{BTreeMap, BTreeSet};

/// Jobs that have something in common.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Group {
    /// How many.
    pub jobs: u64,
    /// GPUs times run time of those whose run time is known, hours.
    pub gpu_hours: f64,
}

/// A trace in numbers. What a job does not say is taken from its task in the catalogue.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Summary {
    /// Name of the trace.
    pub name: String,
    /// All jobs.
    pub all: Group,
    /// Jobs whose run time neither trace nor catalogue says.
    pub without_duration: u64,
    /// Number of users; jobs without one count as one more.
    pub users: u64,
    /// Number of tasks named.
    pub tasks: u64,
    /// From the first arrival to the last.
    pub span: Millis,
    /// Mean of the gaps between arrivals, seconds; `None`: there is one job only.
    pub gap_mean_s: Option<f64>,
    /// Their median, seconds.
    pub gap_median_s: Option<f64>,
    /// The smallest gap that at least 95 % do not exceed, seconds.
    pub gap_p95_s: Option<f64>,
    /// By class: `light`, `medium`, `heavy`, and `unknown` where no catalogue says; empty ones are left out.
    pub by_class: Vec<(&'static str, Group)>,
    /// By number of GPUs; `None`, the last, of tasks that no catalogue describes. Those count as one.
    pub by_gpus: Vec<(Option<u32>, Group)>,
}

impl Summary {
    /// Describes a trace, whose jobs are in the order of arrival.
    #[must_use]
    pub fn of(trace: &Trace, catalogue: Option<&Catalogue>) -> Self {
        let mut summary = Self { name: trace.name.clone(), ..Self::default() };
        let mut by_class: BTreeMap<_, Group> = BTreeMap::new();
        let mut by_gpus: BTreeMap<_, Group> = BTreeMap::new();
        let (mut users, mut tasks) = (BTreeSet::new(), BTreeSet::new());
        for job in &trace.jobs {
            let task = job.task.as_ref().and_then(|name| catalogue?.tasks.get(name));
            // A task that is not known may say how many; without one it is one GPU, as when it is simulated.
            let other = if job.task.is_none() { Some(1) } else { task.map(|task| task.gpus.max(1)) };
            let gpus = job.gpus.or(other);
            let duration = job.duration.or_else(|| task?.duration);
            summary.without_duration += u64::from(duration.is_none());
            let hours = duration.map_or(0.0, |d| d.0 as f64 / 3_600_000.0) * f64::from(gpus.unwrap_or(1));
            let weight = task.and_then(|task| task.weight);
            // `None` sorts first and is to be shown last.
            let class = by_class.entry((weight.is_none(), weight)).or_default();
            let alike = by_gpus.entry((gpus.is_none(), gpus)).or_default();
            for group in [&mut summary.all, class, alike] {
                group.jobs += 1;
                group.gpu_hours += hours;
            }
            users.insert(&job.user);
            tasks.extend(&job.task);
        }
        summary.by_class = by_class
            .into_iter()
            .map(|((_, weight), group)| (weight.map_or("unknown", super::Weight::as_str), group))
            .collect();
        summary.by_gpus = by_gpus.into_iter().map(|((_, gpus), group)| (gpus, group)).collect();
        summary.users = users.len() as u64;
        summary.tasks = tasks.len() as u64;
        let mut gaps: Vec<u64> =
            trace.jobs.windows(2).map(|pair| pair[1].arrival.since(pair[0].arrival).0).collect();
        summary.span = Millis(gaps.iter().sum());
        gaps.sort_unstable();
        let seconds = |ms: f64| ms / 1000.0;
        if let (n @ 1.., Some(middle)) = (gaps.len(), gaps.get(gaps.len() / 2)) {
            summary.gap_mean_s = Some(seconds(summary.span.0 as f64 / n as f64));
            let below = gaps[(n - 1) / 2];
            summary.gap_median_s = Some(seconds((below + middle) as f64 / 2.0));
            summary.gap_p95_s = carma_stats::nearest_rank(&gaps, 95).map(|ms| seconds(ms as f64));
        }
        summary
    }
}

#[cfg(test)]
mod tests {
    use super::super::read;
    use super::*;
    use std::path::Path;

    #[test]
    fn gaps_and_groups() {
        let csv = "arrival_s,task,duration_s,gpus,user\n0,a,3600,,x\n1,a,,4,x\n3,b,,,\n13,,1800,,y\n";
        let trace = read::trace(csv.as_bytes(), Path::new("t.csv"), None).unwrap();
        let tasks = "task,class,gpus,duration_s\na,heavy,2,7200\nb,light,,\n";
        let catalogue = Catalogue::read(tasks.as_bytes(), Path::new("c.csv")).unwrap();
        let summary = Summary::of(&trace, Some(&catalogue));
        assert_eq!((summary.users, summary.tasks, summary.without_duration), (3, 2, 1));
        assert_eq!(summary.span, Millis::secs(13));
        let gaps = [summary.gap_mean_s, summary.gap_median_s, summary.gap_p95_s];
        assert_eq!(gaps, [Some(13.0 / 3.0), Some(2.0), Some(10.0)]);
        let group = |jobs, gpu_hours| Group { jobs, gpu_hours };
        assert_eq!(
            summary.by_class,
            [("light", group(1, 0.0)), ("heavy", group(2, 10.0)), ("unknown", group(1, 0.5))]
        );
        assert_eq!(
            summary.by_gpus,
            [(Some(1), group(2, 0.5)), (Some(2), group(1, 2.0)), (Some(4), group(1, 8.0)),]
        );
        // Of a task without its catalogue it is not known.
        assert_eq!(Summary::of(&trace, None).by_gpus.last().unwrap(), &(None, group(2, 1.0)));
        let one = Trace { jobs: trace.jobs[..1].to_vec(), ..trace };
        assert_eq!(Summary::of(&one, None).gap_mean_s, None);
    }
}
