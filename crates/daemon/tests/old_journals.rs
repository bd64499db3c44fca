//! Journals that earlier versions wrote load for ever. A file here is never changed; a format that
//! changes gets a new one beside it.

use carma_core::input::Input;
use carma_core::model::JobState;
use carma_core::state::State;
use carma_core::units::Millis;

#[test]
fn a_journal_of_version_1_gives_the_same_ends() {
    let mut state = State::default();
    let mut ends = Vec::new();
    for line in include_str!("data/journal-v1.jsonl").lines() {
        let (at, body) = line.split_once('\t').unwrap();
        let input: Input = serde_json::from_str(body).unwrap();
        let applied = state.apply(Millis(at.parse().unwrap()), &input).unwrap();
        ends.extend(applied.finished.into_iter().map(|f| (f.job.spec.id.0, f.state)));
        assert_eq!(carma_core::check::check(&state), Vec::<String>::new());
    }
    ends.sort_unstable();
    let states: Vec<JobState> = ends.iter().map(|(_, state)| *state).collect();
    use JobState::{Completed, Failed, Timeout};
    assert_eq!(states, [Completed, Completed, Failed, Completed, Timeout, Failed]);
}
