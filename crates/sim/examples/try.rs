use carma_core::model::SharingMode;
use carma_core::policy::presets;
use carma_sim::event::{Cluster, Setup, simulate};
use carma_sim::trace::{self, Workload};
use std::path::Path;
use std::time::Instant;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let t = trace::read::trace_file(
        Path::new("../shared/data/carma/philly_evaluation_arrivals.csv"),
        Some(&a[1]),
    )
    .unwrap();
    let c = trace::Catalogue::read_file(Path::new("../shared/data/carma/workloads.csv")).unwrap();
    let w = Workload::resolve(&t, Some(&c)).unwrap();
    for n in &w.notes {
        println!("note {n}");
    }
    let cl = Cluster::parse("4xA100-40GB", &carma_sim::gpu_model::GpuModels::built_in()).unwrap();
    let mut base = None;
    for p in &a[2..] {
        let s = Setup::new(presets::by_name(p).unwrap(), SharingMode::Mps, None, 1);
        let t0 = Instant::now();
        let r = simulate(&w, &cl, &s, &|_| ());
        let dt = t0.elapsed();
        let m = &r.summary;
        let b = *base.get_or_insert((m.makespan_s, m.energy_j, m.smact, m.wait_s.mean, m.exec_s.mean));
        println!(
            "{p:16} mk {:.0} ({:.3}) wait {:.0} ({:.3}) exec {:.0} ({:.3}) jct {:.0} oom {} E {:.2e} ({:.3}) smact {:.3} ({:.3}) act {:.3} {:.3} {:.3} {:.0}W {:.1}GB jpg {:.2} done {} ev {} {:?} {:.2} Mev/s",
            m.makespan_s,
            m.makespan_s / b.0,
            m.wait_s.mean / 1.0,
            m.wait_s.mean / b.3,
            m.exec_s.mean,
            m.exec_s.mean / b.4,
            m.jct_s.mean,
            m.oom,
            m.energy_j,
            m.energy_j / b.1,
            m.smact,
            m.smact / b.2,
            m.active.smact,
            m.active.smocc,
            m.active.drama,
            m.active.power_w,
            m.active.memory_mib / 1000.,
            m.jobs_per_gpu,
            m.completed,
            r.events,
            dt,
            r.events as f64 / dt.as_secs_f64() / 1e6
        );
    }
}
