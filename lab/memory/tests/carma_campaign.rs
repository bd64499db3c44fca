//! The campaign's tasks from their summary texts.

use carma_lab_memory::bench::{Data, Outcome, carma_campaign};
use std::path::Path;

#[test]
fn tasks_of_the_campaign() {
    for test in
        carma_campaign::tests(&Data::of_repository(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))))
    {
        if let Outcome::Skipped { reason } = &test.outcome {
            println!("skipped: {}: {reason}", test.name);
            assert!(reason.contains("is not there"), "{reason}");
            continue;
        }
        println!("{test:?}");
        for target in &test.targets {
            assert!(target.holds, "{}: {} does not hold: {:?}", test.name, target.text, test.outcome);
        }
    }
}
