//! How long a job loads before it touches its GPUs, and how long it takes off them and back where it is suspended.

use crate::trace::WorkJob;
use carma_core::units::MiB;
use carma_hardware::Startup;
use rand::Rng;
use rand::SeedableRng;
use rand_pcg::Pcg64;

/// Start-up of an attempt, milliseconds: the task's own where it is known, otherwise drawn. The draw
/// depends on seed, job and attempt alone, so that every policy meets the same one. Never more than
/// half of the run time.
pub(super) fn startup(seed: u64, job: u32, attempt: u32, it: &WorkJob, usual: &Startup) -> u64 {
    let startup = match it.task.startup {
        Some(known) => known.0,
        None => (usual.at(uniform(seed, job, attempt)) * 1000.0).round() as u64,
    };
    startup.min(it.duration.0 / 2)
}

/// GPU memory that the driver brings to the host in a second, and back: medians on two H100 and an H200 (docs/research/h200.md).
const OUT_MIB_PER_S: u64 = 1434;
const BACK_MIB_PER_S: u64 = 4096;

/// How long a job of so much GPU memory takes off its GPUs, milliseconds.
pub(super) const fn off_gpus(memory: MiB) -> u64 {
    memory.0 * 1000 / OUT_MIB_PER_S
}

/// How long it takes back, milliseconds.
pub(super) const fn onto_gpus(memory: MiB) -> u64 {
    memory.0 * 1000 / BACK_MIB_PER_S
}

/// A number from 0 to 1, the same for the same arguments on every machine.
fn uniform(seed: u64, job: u32, attempt: u32) -> f64 {
    let stream = (u64::from(job) << 32) | u64::from(attempt);
    let mut random = Pcg64::seed_from_u64(seed ^ stream.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_uniform() {
        let mut draws: Vec<f64> = (0..20_000).map(|job| uniform(7, job, 1)).collect();
        draws.sort_by(f64::total_cmp);
        for q in [0.0, 0.1, 0.5, 0.9] {
            assert!((draws[(q * 20_000.0) as usize] - q).abs() < 0.02, "quantile {q}");
        }
    }

    #[test]
    fn a_draw_depends_on_seed_job_and_attempt() {
        assert_eq!(uniform(1, 2, 3).to_bits(), uniform(1, 2, 3).to_bits());
        assert_ne!(uniform(1, 2, 3).to_bits(), uniform(2, 2, 3).to_bits());
        assert_ne!(uniform(1, 2, 3).to_bits(), uniform(1, 2, 4).to_bits());
    }
}
