//! The journal is the truth: replayed through the core, it gives the identical decisions.

use crate::support::{Daemon, Setup, task};
use carma_core::input::{Action, Input};
use carma_core::state::State;
use carma_core::units::Millis;

#[test]
fn a_recorded_journal_gives_the_identical_actions() {
    let mut daemon = Setup::new("virtual:2xA100-40GB")
        .args(&["--policy", "oracle-magm", "--sharing", "mps", "--speed", "20"])
        .start();
    let mut ids: Vec<u64> = Vec::new();
    for i in 0..8 {
        let memory = format!("--memory={}G", 6 + i % 3 * 4);
        ids.push(daemon.submit(task(&[&memory, "--sm=0.3", "--work=10s"], Some(8))));
    }
    let cancelled = daemon.submit(task(&["--work=900s"], Some(2)));
    daemon.in_state(cancelled, "RUNNING");
    daemon.carma(&["cancel", &cancelled.to_string()]);
    ids.push(cancelled);
    replays(&mut daemon, &ids);
}

#[test]
fn so_does_one_in_which_forecasts_were_computed() {
    let mut daemon = Setup::new("virtual:1xA100-40GB").args(&["--speed", "20"]).start();
    let estimate = carma_api::wire::EstimateView {
        need_mib: 2000,
        use_mib: 2500,
        upper_mib: 3000,
        tier: "summary".into(),
        source: "allocator/summary".into(),
        ..Default::default()
    };
    let mut ids: Vec<u64> = Vec::new();
    for memory in ["2500M", "6G", "2500M", "6G"] {
        // Every other one takes twice what was expected: reservations rise, and neighbours wait.
        let mut request = task(&[&format!("--memory={memory}"), "--sm=0.1", "--work=20s"], None);
        request.estimates = vec![estimate.clone()];
        ids.push(daemon.submit(request));
    }
    ids.iter().for_each(|id| drop(daemon.end_of(*id)));
    ids.push(daemon.submit(task(&["--memory=6G", "--sm=0.1", "--work=20s"], None)));
    assert_eq!(daemon.show(ids[4]).estimate.unwrap().tier, "exact");
    replays(&mut daemon, &ids);
}

/// Waits for the jobs, replays the journal, and requires the identical decisions and ends.
fn replays(daemon: &mut Daemon, ids: &[u64]) {
    let states: Vec<String> = ids.iter().map(|id| daemon.end_of(*id).job.state).collect();
    daemon.kill();

    let db = rusqlite::Connection::open(daemon.dir.path().join("state/carma.db")).unwrap();
    let mut query = db.prepare("SELECT at_ms, body FROM inputs ORDER BY seq").unwrap();
    let rows = query.query_map([], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?))).unwrap();
    let inputs: Vec<(Millis, Input)> = rows
        .map(|row| {
            let (at, body) = row.unwrap();
            (Millis(at.try_into().unwrap()), serde_json::from_str(&body).unwrap())
        })
        .collect();

    let mut state = State::default();
    let mut finished = Vec::new();
    let mut planned: std::vec::IntoIter<Action> = Vec::new().into_iter();
    let mut decisions = 0;
    for (n, (at, input)) in inputs.iter().enumerate() {
        match input {
            Input::Decided(action) => {
                if planned.as_slice().is_empty() {
                    // A launch carries the time at which it and what was decided with it were planned.
                    let together = inputs[n..].iter().map_while(|(_, input)| match input {
                        Input::Decided(action) => Some(&**action),
                        _ => None,
                    });
                    let planned_at = |action: &Action| match action {
                        Action::Launch { placement, .. } => Some(placement.at),
                        _ => None,
                    };
                    let when = together.filter_map(planned_at).next().unwrap_or(*at);
                    planned = carma_core::plan(&state, when).actions.into_iter();
                }
                assert_eq!(planned.next().as_ref(), Some(&**action), "decision {decisions}");
                decisions += 1;
            }
            _ => planned = Vec::new().into_iter(),
        }
        finished.extend(state.apply(*at, input).unwrap().finished);
        assert_eq!(carma_core::check::check(&state), Vec::<String>::new());
    }
    assert!(decisions >= ids.len(), "{decisions}");
    for (id, expected) in ids.iter().zip(states) {
        let over = finished.iter().find(|f| f.job.spec.id.0 == *id).unwrap();
        assert_eq!(over.state.as_str(), expected);
    }
}
