//! Random numbers: one stream a seed, the same everywhere.

use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64;

/// A stream of random numbers.
pub struct Rng(Pcg64);

impl Rng {
    /// The stream of a seed and of what it is for; different purposes never share numbers.
    pub fn new(seed: u64, purpose: u64) -> Self {
        // SplitMix64's finalizer spreads neighbouring seeds.
        let mut z = seed.wrapping_add(purpose.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self(Pcg64::seed_from_u64(z ^ (z >> 31)))
    }

    /// Uniform between `-bound` and `bound`.
    pub fn around_zero(&mut self, bound: f32) -> f32 {
        let unit: f32 = self.0.random();
        (2.0 * unit - 1.0) * bound
    }

    /// So many of these.
    pub fn uniform(&mut self, n: usize, bound: f32) -> Vec<f32> {
        (0..n).map(|_| self.around_zero(bound)).collect()
    }

    /// A whole number below `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        if n == 0 { 0 } else { self.0.random_range(0..n) }
    }

    /// Fisher and Yates.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for i in (1..list.len()).rev() {
            let j = self.0.random_range(0..=i);
            list.swap(i, j);
        }
    }
}
