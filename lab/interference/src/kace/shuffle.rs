//! NumPy's old random permutation, with which scikit-learn divides rows: KACE learns from 80 % of its training
//! rows, and which 80 % decides its choices.
//!
//! MT19937 (Matsumoto and Nishimura, 1998), Fisher and Yates from the end, whole numbers by masking and trying
//! again.

const N: usize = 624;
const M: usize = 397;

struct Mt19937 {
    state: [u32; N],
    at: usize,
}

impl Mt19937 {
    fn new(seed: u32) -> Self {
        let mut state = [0; N];
        state[0] = seed;
        for i in 1..N {
            let last = state[i - 1];
            state[i] = 1_812_433_253_u32.wrapping_mul(last ^ (last >> 30)).wrapping_add(i as u32);
        }
        Self { state, at: N }
    }

    fn next(&mut self) -> u32 {
        if self.at == N {
            for i in 0..N {
                let y = (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % N] & 0x7fff_ffff);
                let odd = if y & 1 == 1 { 0x9908_b0df } else { 0 };
                self.state[i] = self.state[(i + M) % N] ^ (y >> 1) ^ odd;
            }
            self.at = 0;
        }
        let mut y = self.state[self.at];
        self.at += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^ (y >> 18)
    }

    /// 0 to `most`, both included.
    fn up_to(&mut self, most: u32) -> u32 {
        if most == 0 {
            return 0;
        }
        let mask = u32::MAX >> most.leading_zeros();
        loop {
            let value = self.next() & mask;
            if value <= most {
                return value;
            }
        }
    }
}

/// `numpy.random.RandomState(seed).permutation(n)`.
fn permutation(seed: u32, n: usize) -> Vec<usize> {
    let mut rng = Mt19937::new(seed);
    let mut order: Vec<usize> = (0..n).collect();
    for i in (1..n).rev() {
        order.swap(i, rng.up_to(i as u32) as usize);
    }
    order
}

/// Which of `n` rows `sklearn.model_selection.train_test_split(test_size=0.2, random_state=seed)` keeps to learn
/// from, in its order.
pub(super) fn four_fifths(seed: u32, n: usize) -> Vec<usize> {
    let order = permutation(seed, n);
    let held_out = n.div_ceil(5);
    order[held_out.min(n)..].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_permutations_are_numpys() {
        // RandomState(5489) is the seed of the original's test: its 1st and 10,000th number.
        let mut rng = Mt19937::new(5489);
        assert_eq!(rng.next(), 3_499_211_612);
        assert_eq!((0..9999).map(|_| rng.next()).last(), Some(4_123_659_995));
        assert_eq!(permutation(30, 12), [0, 6, 9, 8, 1, 3, 10, 2, 7, 4, 11, 5]);
        assert_eq!(four_fifths(30, 41).len(), 32);
        assert_eq!(four_fifths(30, 5).len(), 4);
        assert!(four_fifths(30, 1).is_empty() && four_fifths(30, 0).is_empty());
    }
}
