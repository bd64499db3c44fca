//! Random input for tests, from a seed. Not shipped.
//!
//! [`check!`] is bolero's, with a seed: all tests with random bytes use it. `CARMA_FUZZ_SEED` is another seed than 1.

mod engine;

pub use bolero;
pub use engine::Seeded;

/// A test with so many random inputs; used as `bolero::check!`. Under libFuzzer (`cargo bolero test`) the fuzzer draws them.
#[cfg(not(fuzzing))]
#[macro_export]
macro_rules! check {
    ($runs:expr) => {
        $crate::bolero::TestTarget::new($crate::Seeded::runs($runs))
    };
}

/// A test of the fuzzer's.
#[cfg(fuzzing)]
#[macro_export]
macro_rules! check {
    ($runs:expr) => {{
        let _ = $runs;
        $crate::bolero::check!()
    }};
}
