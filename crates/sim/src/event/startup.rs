//! How long a job loads before it touches its GPUs.

use crate::trace::WorkJob;
use rand::SeedableRng;
use rand::Rng;
use rand_pcg::Pcg64;

/// Time from dispatch to the first GPU activity: quantile and seconds. Published of 50 tasks on an
/// A100 (successor of CARMA, section f.4): median 8.2, p90 10.6, p95 20.6, largest 55.5. The smallest
/// is not published: 5 s assumed.
const QUANTILES: [(f64, f64); 5] = [(0.0, 5.0), (0.5, 8.2), (0.9, 10.6), (0.95, 20.6), (1.0, 55.5)];

/// Start-up of an attempt, milliseconds: the task's own where it is known, otherwise drawn. The draw
/// depends on seed, job and attempt alone, so that every policy meets the same one. Never more than
/// half of the run time.
pub(super) fn startup(seed: u64, job: u32, attempt: u32, it: &WorkJob) -> u64 {
    let known = it.task.startup.map(|startup| startup.0);
    let startup = known.unwrap_or_else(|| (drawn(seed, job, attempt) * 1000.0).round() as u64);
    startup.min(it.duration.0 / 2)
}

fn drawn(seed: u64, job: u32, attempt: u32) -> f64 {
    let stream = (u64::from(job) << 32) | u64::from(attempt);
    let mut random = Pcg64::seed_from_u64(seed ^ stream.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    // 53 random bits: [0, 1).
    let u = (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
    for pair in QUANTILES.windows(2) {
        let [(q0, s0), (q1, s1)] = [pair[0], pair[1]];
        if u < q1 {
            return s0 + (s1 - s0) * (u - q0) / (q1 - q0);
        }
    }
    QUANTILES[4].1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_follow_the_published_quantiles() {
        let mut draws: Vec<f64> = (0..20_000).map(|job| drawn(7, job, 1)).collect();
        draws.sort_by(f64::total_cmp);
        for (q, seconds) in &QUANTILES[1..4] {
            let at = draws[(q * 20_000.0) as usize];
            assert!((at / seconds - 1.0).abs() < 0.06, "quantile {q}: {at:.1} s");
        }
        assert!(draws.iter().all(|s| (5.0..=55.5).contains(s)));
    }

    #[test]
    fn a_draw_depends_on_seed_job_and_attempt() {
        assert_eq!(drawn(1, 2, 3).to_bits(), drawn(1, 2, 3).to_bits());
        assert_ne!(drawn(1, 2, 3).to_bits(), drawn(2, 2, 3).to_bits());
        assert_ne!(drawn(1, 2, 3).to_bits(), drawn(1, 2, 4).to_bits());
    }
}
