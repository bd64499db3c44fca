//! Random input from a seed. bolero's own engine draws a new seed for each run of a test.

use bolero::bolero_engine::{Failure, Input, panic, rng::Recommended, shrink};
use bolero::generator::bolero_generator::driver::{self, Options};
use bolero::{Engine, Test, TypeGenerator};
use rand_xoshiro::rand_core::impls::{next_u32_via_fill, next_u64_via_fill};
use rand_xoshiro::rand_core::{RngCore, SeedableRng};
use std::time::{Duration, Instant};

/// Input as [`check!`](crate::check) gives it to a test.
///
/// `make test` draws from one seed, so that a test fails when the code has changed and not by luck. `CARMA_FUZZ_SEED` is another;
/// `bench/trust/fuzz.sh` chooses one at random and prints it.
#[derive(Debug)]
pub struct Seeded {
    seed: u64,
    limit: Limit,
}

/// When it has been enough.
#[derive(Debug, Clone, Copy)]
enum Limit {
    Runs(usize),
    Time(Duration),
}

impl Seeded {
    /// So many inputs.
    #[must_use]
    pub fn runs(runs: usize) -> Self {
        let seed = std::env::var("CARMA_FUZZ_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
        Self { seed, limit: Limit::Runs(runs) }
    }

    /// As many as there is time for.
    #[must_use]
    pub fn time(time: Duration) -> Self {
        Self { limit: Limit::Time(time), ..Self::runs(0) }
    }
}

impl<T: Test> Engine<T> for Seeded
where
    T::Value: std::fmt::Debug,
{
    type Output = ();

    #[allow(clippy::panic, reason = "a test fails by panicking")]
    fn run(self, mut test: T, options: Options) {
        panic::set_hook();
        let began = Instant::now();
        let mut seeds = Recommended::seed_from_u64(self.seed);
        for run in 0.. {
            let enough = match self.limit {
                Limit::Runs(runs) => run == runs,
                Limit::Time(time) => began.elapsed() >= time,
            };
            if enough {
                return;
            }
            let random = Recommended::from_rng(&mut seeds);
            // A panic is said once, with the smallest input that causes it.
            panic::forward_panic(false);
            let result = test.test(&mut Drawn::new(random.clone(), &options));
            if let Err(error) = result {
                let mut drawn = Vec::new();
                let _ = test.generate_value(&mut Drawn::new(
                    Recorder { random: random.clone(), drawn: &mut drawn },
                    &options,
                ));
                let failure = test.shrink(Record(drawn), None, &options).unwrap_or_else(|| Failure {
                    error,
                    input: test.generate_value(&mut Drawn::new(random, &options)),
                    seed: None,
                });
                panic::forward_panic(true);
                panic!("run {run} with CARMA_FUZZ_SEED={}:\n{failure:#}", self.seed);
            }
            panic::forward_panic(true);
        }
    }
}

/// What is drawn from random numbers.
struct Drawn<R: RngCore> {
    driver: driver::Rng<R>,
    bytes: Vec<u8>,
}

impl<R: RngCore> Drawn<R> {
    fn new(random: R, options: &Options) -> Self {
        Self { driver: driver::Rng::new(random, options), bytes: Vec::new() }
    }
}

impl<R: RngCore + std::panic::RefUnwindSafe, Output> Input<Output> for Drawn<R> {
    type Driver = driver::Rng<R>;

    fn with_slice<F: FnMut(&[u8]) -> Output>(&mut self, f: &mut F) -> Output {
        self.bytes.mutate(&mut self.driver);
        f(&self.bytes)
    }

    fn with_driver<F: FnMut(&mut Self::Driver) -> Output>(&mut self, f: &mut F) -> Output {
        f(&mut self.driver)
    }
}

/// Random numbers that are written down, for shrinking.
struct Recorder<'a> {
    random: Recommended,
    drawn: &'a mut Vec<u8>,
}

impl RngCore for Recorder<'_> {
    fn next_u32(&mut self) -> u32 {
        next_u32_via_fill(self)
    }

    fn next_u64(&mut self) -> u64 {
        next_u64_via_fill(self)
    }

    fn fill_bytes(&mut self, bytes: &mut [u8]) {
        self.random.fill_bytes(bytes);
        self.drawn.extend_from_slice(bytes);
    }
}

/// What was written down; what follows it is zeros.
struct Record(Vec<u8>);

struct Replayed<'a>(&'a [u8]);

impl RngCore for Replayed<'_> {
    fn next_u32(&mut self) -> u32 {
        next_u32_via_fill(self)
    }

    fn next_u64(&mut self) -> u64 {
        next_u64_via_fill(self)
    }

    fn fill_bytes(&mut self, bytes: &mut [u8]) {
        let (now, later) = self.0.split_at(bytes.len().min(self.0.len()));
        bytes.fill(0);
        bytes[..now.len()].copy_from_slice(now);
        self.0 = later;
    }
}

impl AsRef<Vec<u8>> for Record {
    fn as_ref(&self) -> &Vec<u8> {
        &self.0
    }
}

impl AsMut<Vec<u8>> for Record {
    fn as_mut(&mut self) -> &mut Vec<u8> {
        &mut self.0
    }
}

impl shrink::Input for Record {
    type Driver<'d> = driver::Rng<Replayed<'d>>;

    fn driver(&self, len: usize, options: &Options) -> Self::Driver<'_> {
        driver::Rng::new(Replayed(&self.0[..len]), options)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Seeded, check};
    use bolero::TestTarget;

    fn drawn(seed: u64) -> Vec<Vec<u8>> {
        let all = std::sync::Mutex::new(Vec::new());
        let engine = Seeded { seed, ..Seeded::runs(50) };
        TestTarget::new(engine)
            .with_type::<Vec<u8>>()
            .for_each(|bytes| all.lock().unwrap().push(bytes.clone()));
        all.into_inner().unwrap()
    }

    #[test]
    fn a_seed_gives_the_same_inputs_and_another_others() {
        assert_eq!(drawn(7), drawn(7));
        assert_ne!(drawn(7), drawn(8));
        let different: std::collections::BTreeSet<_> = drawn(7).into_iter().collect();
        assert!(different.len() > 25, "{different:?}");
    }

    #[test]
    #[should_panic(expected = "with CARMA_FUZZ_SEED=")]
    fn what_fails_is_named_by_its_seed() {
        check!(1000).with_type::<Vec<u8>>().for_each(|bytes| assert!(bytes.len() < 8, "too long"));
    }

    #[test]
    fn what_fails_is_made_small() {
        let said = std::panic::catch_unwind(|| {
            check!(1000).with_type::<Vec<u8>>().for_each(|bytes| assert!(bytes.len() < 8, "too long"));
        })
        .unwrap_err();
        let said = said.downcast_ref::<String>().unwrap();
        assert!(said.contains("too long") && said.matches("    0,\n").count() == 8, "{said}");
    }
}
