//! The rules and the allocator's model on GPUMemNet's multi-layer perceptrons.

use carma_lab_memory::bench::{Data, Outcome, mlp};
use std::path::Path;

#[test]
fn six_thousand_perceptrons() {
    for test in mlp::tests(&Data::of_repository(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")))) {
        if let Outcome::Skipped { reason } = &test.outcome {
            eprintln!("skipped: {}: {reason}", test.name);
            continue;
        }
        println!("{test:?}");
        for target in &test.targets {
            assert!(target.holds, "{}: {} does not hold: {:?}", test.name, target.text, test.outcome);
        }
    }
}
