//! What journals hold keeps its shape: names that serde writes outlive the names in the code.
#![allow(clippy::unwrap_used, reason = "a test: it fails where it must")]

use carma_core::explain::Reason;
use carma_core::model::{EndCause, JobId};
use carma_core::units::Fraction;

#[test]
fn an_eviction_is_written_as_undone() {
    let (job, slowdown, limit, apart) = (JobId(1), Fraction(20_000), Fraction(13_000), vec![JobId(2)]);
    let written = r#"{"undone":{"job":1,"slowdown":20000,"limit":13000,"apart":[2]}}"#;
    let cause = EndCause::Evicted { job, slowdown, limit, apart: apart.clone() };
    assert_eq!(serde_json::to_string(&cause).unwrap(), written);
    assert_eq!(serde_json::from_str::<EndCause>(written).unwrap(), cause);
    let reason = Reason::Evicted { job, slowdown, limit, apart };
    assert_eq!(serde_json::to_string(&reason).unwrap(), written);
    assert_eq!(serde_json::from_str::<Reason>(written).unwrap(), reason);
}
