//! Every order of events is tried; and what each mutation breaks is found.

#![allow(clippy::panic, reason = "a failing helper may end the test")]

use carma_protocol_model::{Mutation, NAMES, Protocol, State};
use stateright::{Checker, Model};
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Instant;

/// One job, three lives, two attempts, and everything that can die dying once.
fn one_job() -> Protocol {
    Protocol {
        supervisor_kills: 1,
        machine_deaths: 1,
        cancels: 1,
        requeues: 1,
        watch_failures: 1,
        ..Protocol::new(1)
    }
}

fn holds(name: &str, protocol: Protocol) {
    let began = Instant::now();
    let checker = protocol.checker().threads(2).spawn_dfs().join();
    println!(
        "{name}: {} states, {} steps, {:.1} s",
        checker.unique_state_count(),
        checker.state_count(),
        began.elapsed().as_secs_f64()
    );
    checker.assert_properties();
}

#[test]
fn one_job_whatever_dies() {
    holds("one job", one_job());
}

#[test]
fn one_job_and_another_journal() {
    // What the old journal's processes still do multiplies with what the new one's do.
    holds("another journal", Protocol { restores: 1, supervisor_kills: 1, ..Protocol::new(1) });
    holds(
        "another journal, a cancel",
        Protocol { restores: 1, supervisor_kills: 1, cancels: 1, ..Protocol::new(1) },
    );
    holds("another journal, a requeue", Protocol { restores: 1, requeues: 1, ..Protocol::new(1) });
}

#[test]
fn two_jobs_and_three_lives() {
    holds("two jobs", Protocol::new(2));
    holds("two jobs, a supervisor killed", Protocol { lives: 2, supervisor_kills: 1, ..Protocol::new(2) });
}

#[test]
fn two_jobs_of_which_one_is_cancelled() {
    holds("two jobs, a cancel", Protocol { lives: 2, cancels: 1, ..Protocol::new(2) });
}

fn print_of(state: &State) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    hasher.finish()
}

/// Each order of events ends: no state comes again. So a state in which nothing can happen is where each ends.
#[test]
fn nothing_goes_round_in_circles() {
    let model = one_job();
    let (mut open, mut closed) = (HashSet::new(), HashSet::new());
    let mut stack: Vec<_> = model.init_states().into_iter().map(|state| (state, false)).collect();
    while let Some((state, left)) = stack.pop() {
        let print = print_of(&state);
        if left {
            open.remove(&print);
            closed.insert(print);
            continue;
        }
        if closed.contains(&print) {
            continue;
        }
        assert!(open.insert(print), "a state comes again: {state:?}");
        let next = model.next_states(&state);
        stack.push((state, true));
        for state in next {
            let print = print_of(&state);
            assert!(!open.contains(&print), "a state comes again: {state:?}");
            if !closed.contains(&print) {
                stack.push((state, false));
            }
        }
    }
    println!("{} states, none twice on a way", closed.len());
}

/// Checks that a mutation breaks one of the properties, and prints a way to it.
fn breaks(mutation: Mutation, property: &'static str, protocol: Protocol) {
    assert!(NAMES.contains(&property), "{property}");
    let protocol = Protocol { mutation: Some(mutation), ..protocol };
    let checker = protocol.checker().spawn_bfs().join();
    let Some(path) = checker.discovery(property) else {
        panic!("{mutation:?} does not break: {property}");
    };
    println!("{mutation:?} breaks: {property}");
    for action in path.into_actions() {
        println!("    {action:?}");
    }
}

const TWICE: &str = "no two commands of a job run at the same time";
const ONCE: &str = "no command of an attempt is started twice";
const DONE: &str = "no job runs again that was done before it was asked to end";
const TRUE_END: &str = "an end that was recorded is the end that is told";
const STARTED: &str = "no job is completed or failed without having been started";
const AFTER_CANCEL: &str = "no command starts after its job's cancel was answered";
const CHARGE: &str = "no death is charged to a job";
const FENCE: &str = "no supervisor can claim an attempt that is over";
const STUCK: &str = "no job is stuck";

#[test]
fn without_a_fence() {
    breaks(Mutation::NoFence, TWICE, Protocol::new(1));
    breaks(Mutation::NoFence, FENCE, Protocol::new(1));
}

#[test]
fn when_decided_without_the_journal() {
    breaks(Mutation::DecideWithoutCommit, TWICE, Protocol::new(1));
    breaks(Mutation::DecideWithoutCommit, ONCE, Protocol::new(1));
}

#[test]
fn when_the_record_of_another_life_is_believed() {
    breaks(Mutation::BelieveAnotherLife, STARTED, Protocol { restores: 1, ..Protocol::new(1) });
}

#[test]
fn when_the_fence_alone_is_removed() {
    breaks(Mutation::RemoveFenceAlone, TWICE, Protocol::new(1));
    breaks(Mutation::RemoveFenceAlone, FENCE, Protocol::new(1));
}

#[test]
fn when_a_directory_is_removed_too_early() {
    breaks(Mutation::SweepUnderWay, TWICE, Protocol::new(1));
    breaks(Mutation::SweepUnderWay, TRUE_END, Protocol::new(1));
}

#[test]
fn when_the_record_is_read_once() {
    breaks(Mutation::ReadOnce, TRUE_END, Protocol::new(1));
}

#[test]
fn when_another_boots_process_is_believed() {
    breaks(Mutation::BelieveAnotherBoot, STUCK, Protocol { machine_deaths: 1, ..Protocol::new(1) });
}

#[test]
fn when_a_failure_after_the_spawn_is_not_fenced() {
    breaks(Mutation::NotFencedAfterSpawn, TWICE, Protocol { watch_failures: 1, ..Protocol::new(1) });
}

#[test]
fn when_a_claim_without_a_command_counts_as_an_end() {
    breaks(Mutation::UnknownWithoutCommand, STARTED, Protocol { supervisor_kills: 1, ..Protocol::new(1) });
}

#[test]
fn when_a_command_runs_before_it_is_recorded() {
    breaks(Mutation::LetGoBeforeRecorded, TWICE, Protocol { supervisor_kills: 1, ..Protocol::new(1) });
}

#[test]
fn when_a_cancel_is_answered_too_early() {
    breaks(Mutation::AnswerBeforeEnd, AFTER_CANCEL, Protocol { cancels: 1, ..Protocol::new(1) });
}

#[test]
fn when_the_supervisor_does_not_look_at_its_signals() {
    breaks(Mutation::IgnoreSignal, AFTER_CANCEL, Protocol { cancels: 1, ..Protocol::new(1) });
}

#[test]
fn when_a_death_is_charged() {
    breaks(Mutation::ChargeDeaths, CHARGE, Protocol::new(1));
}

#[test]
fn when_a_claim_overwrites() {
    breaks(Mutation::ClaimOverwrites, TWICE, Protocol::new(1));
}

#[test]
fn when_an_end_that_was_decided_counts_as_asked_for() {
    breaks(Mutation::DecidedIsAsked, DONE, Protocol { requeues: 1, ..Protocol::new(1) });
}
