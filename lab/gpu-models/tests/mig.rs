//! MIG instances by the law against measured ones.

#![allow(clippy::unwrap_used, clippy::panic)]

use carma_hardware::GpuType;
use carma_interference::share::{Demand, Mode, Scratch, Tenant};
use carma_lab_gpu_models::data;
use carma_sim::gpu::Law;
use std::path::Path;

fn alone(gpu: &GpuType, gract: f64, sm: f64, dram: f64) -> f64 {
    let task = Tenant::new(Demand { gract, sm, dram, ..Demand::default() });
    let (mut scratch, mut progress) = (Scratch::default(), Vec::new());
    Law::from(gpu).run(Mode::TimeSlice, &[task], &mut scratch, &mut progress);
    progress[0]
}

/// MISO's solo latencies on A100 instances (SoCC 2022): progress on 1g to 4g relative to 7g, with
/// nvidia-smi's utilisation for GRACT and the exponent found on the H200 for SMACT. Nothing is
/// fitted to these rows.
#[test]
fn slices_agree_with_misos_latencies() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let Some(rows) = data::shared(&root).and_then(|shared| data::miso_slices(&shared)) else {
        println!("skipped: ../shared/data/boringlee24__socc22-miso is not there");
        return;
    };
    let whole = GpuType::find("A100-40GB").unwrap();
    let mut all = Vec::new();
    for (profile, most_error) in [("1g.5gb", 0.30), ("2g.10gb", 0.20), ("3g.20gb", 0.20), ("4g.20gb", 0.15)] {
        let slice = whole.slice(profile).unwrap();
        let errors: Vec<f64> = rows
            .iter()
            .filter(|row| row.slice == profile)
            .map(|row| {
                let smact = row.util_sm.powf(1.0 / whole.gract_exponent);
                alone(&slice, row.util_sm, smact, row.util_mem) / row.progress - 1.0
            })
            .collect();
        let mean = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / errors.len() as f64;
        let (mape, bias) = (mean(&mut errors.iter().map(|e| e.abs())), mean(&mut errors.iter().copied()));
        println!(
            "{profile}: {} tasks, MAPE {:.1} %, bias {:+.1} %",
            errors.len(),
            mape * 100.0,
            bias * 100.0
        );
        assert!(errors.len() > 20 && mape < most_error, "{profile}: {mape}");
        all.extend(errors.iter().map(|e| e.abs()));
    }
    let mape = all.iter().sum::<f64>() / all.len() as f64;
    println!("all: {} rows, MAPE {:.1} %", all.len(), mape * 100.0);
    assert!(mape < 0.20);
}
