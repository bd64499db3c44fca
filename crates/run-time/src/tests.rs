use super::*;
use proptest::prelude::*;
use proptest::sample::select;

fn class(user: u64, program: u64, command: u64) -> Class {
    let of_program = user << 32 | program << 16;
    Class {
        user: user << 32,
        program: of_program,
        shared: of_program,
        command: of_program | command,
        length: None,
    }
}

fn ran(seconds: u64) -> Run {
    Run { seconds, cut: false }
}

fn cut(seconds: u64) -> Run {
    Run { seconds, cut: true }
}

fn median(times: &RunTimes, class: Class) -> Option<(u64, RunsOf, u32)> {
    times.forecast(&class, || &[]).map(|f| (f.median_s, f.basis, f.runs))
}

#[test]
fn from_the_very_command_to_all_jobs() {
    let mut times = RunTimes::default();
    assert_eq!(times.forecast(&class(1, 1, 1), || &[]), None);
    for _ in 0..20 {
        times.learn(&class(1, 1, 1), ran(600));
        times.learn(&class(1, 2, 1), ran(30));
        times.learn(&class(2, 1, 1), ran(5));
    }
    assert_eq!(median(&times, class(1, 1, 1)), Some((600, RunsOf::Command, 20)));
    assert_eq!(median(&times, class(1, 1, 9)), Some((600, RunsOf::Program, 20)));
    assert_eq!(
        median(&times, class(1, 9, 1)).map(|(_, level, runs)| (level, runs)),
        Some((RunsOf::User, 32))
    );
    assert_eq!(median(&times, class(9, 1, 1)), Some((30, RunsOf::All, 60)));
}

#[test]
fn one_user_does_not_speak_for_all() {
    let mut times = RunTimes::default();
    for n in 0..2 {
        times.learn(&class(2 + n, 1, 1), ran(18_000));
    }
    for n in 0..200 {
        times.learn(&class(1, 1, n), ran(20));
    }
    // Those of others are kept, and so many of one user's are a guess for another's jobs.
    let of_all = times.forecast(&class(9, 1, 1), || &[]).unwrap();
    assert_eq!((of_all.basis, of_all.runs, of_all.commands, of_all.is_guess()), (RunsOf::All, 64, 4, true));
    assert_eq!((of_all.median_s, of_all.high_s), (20, 20));
    times.learn(&class(4, 1, 1), ran(600));
    let of_all = times.forecast(&class(9, 1, 1), || &[]).unwrap();
    assert!(!of_all.is_guess(), "four users");
    // It is stored.
    let mut again = RunTimes::default();
    for (key, body) in times.changes().unwrap() {
        again.load(&key, &body.unwrap()).unwrap();
    }
    assert_eq!(again.forecast(&class(9, 1, 1), || &[]), Some(of_all));
}

#[test]
fn a_forecast_is_named_after_what_it_comes_from() {
    let mut times = RunTimes::default();
    for n in 0..20 {
        times.learn(&class(2, 1, n), ran(438));
    }
    times.learn(&class(1, 1, 1), ran(36));
    // One run of another program of the user, and twenty-one of all users.
    assert_eq!(median(&times, class(1, 2, 1)).map(|(_, level, runs)| (level, runs)), Some((RunsOf::All, 21)));
    (0..3).for_each(|_| times.learn(&class(1, 1, 1), ran(36)));
    assert_eq!(median(&times, class(1, 2, 1)).map(|(_, level, runs)| (level, runs)), Some((RunsOf::User, 4)));
}

#[test]
fn how_many_commands_it_rests_on_is_told() {
    let mut times = RunTimes::default();
    let of = |times: &RunTimes, class| {
        times.forecast(&class, || &[]).map(|told| (told.basis, told.runs, told.commands, told.is_guess()))
    };
    // Twenty runs of one command say nothing of another one's bounds.
    (0..20).for_each(|_| times.learn(&class(1, 1, 1), ran(326)));
    assert_eq!(of(&times, class(1, 1, 1)), Some((RunsOf::Command, 20, 1, false)));
    assert_eq!(of(&times, class(1, 1, 2)), Some((RunsOf::Program, 20, 1, true)));
    assert_eq!(of(&times, class(1, 2, 1)), Some((RunsOf::User, 20, 1, true)));
    for command in 3..7 {
        times.learn(&class(1, 1, command), ran(100));
        times.learn(&class(1, 1, command), cut(1));
    }
    assert_eq!(of(&times, class(1, 1, 2)), Some((RunsOf::Program, 24, 5, false)));
    let counts = [1, 2, 4, 5].map(|command| runs(class(4, 1, command), 5, Some(60 + command)));
    let counted = times.forecast(&class(4, 1, 3), || &counts).unwrap();
    assert_eq!((counted.runs, counted.commands, counted.counted, counted.is_guess()), (4, 4, true, true));
    // It is stored.
    let mut again = RunTimes::default();
    for (key, body) in times.changes().unwrap() {
        again.load(&key, &body.unwrap()).unwrap();
    }
    assert_eq!(of(&again, class(1, 1, 2)), Some((RunsOf::Program, 24, 5, false)));
}

#[test]
fn one_run_of_the_command_counts_for_more_than_all_else_and_of_the_program_does_not() {
    let mut times = RunTimes::default();
    for _ in 0..30 {
        times.learn(&class(1, 1, 1), ran(10));
    }
    times.learn(&class(1, 1, 2), ran(5000));
    assert_eq!(median(&times, class(1, 1, 2)), Some((5000, RunsOf::Command, 1)));
    times.learn(&class(1, 3, 1), ran(5000));
    assert_eq!(median(&times, class(1, 3, 2)), Some((10, RunsOf::User, 32)));
}

/// A command of a program at this number of epochs.
fn epochs(n: u64) -> Class {
    class(1, 1, n).of_length("--model a --epochs", n)
}

#[test]
fn a_run_of_another_length_says_how_long_this_one_takes() {
    let of = |times: &RunTimes, class| {
        times.forecast(&class, || &[]).map(|f| (f.median_s, f.basis, f.runs, f.scaled, f.is_guess()))
    };
    let mut times = RunTimes::default();
    // Other models of the program.
    (10..14).for_each(|command| times.learn(&class(1, 1, command), ran(500)));
    times.learn(&epochs(1), ran(60));
    assert_eq!(of(&times, epochs(100)), Some((6000, RunsOf::Program, 1, true, true)));
    assert_eq!(of(&times, epochs(1)), Some((60, RunsOf::Command, 1, false, false)));
    let other = class(1, 1, 9).of_length("--model b --epochs", 100);
    assert_eq!(of(&times, other).map(|it| (it.0, it.3)), Some((500, false)));
    // Two lengths say what it takes to start: 20 s, and 40 s an epoch.
    times.learn(&epochs(3), ran(140));
    assert_eq!(of(&times, epochs(100)), Some((4020, RunsOf::Program, 2, true, false)));
    // One that was cut off takes longer.
    times.learn(&epochs(2), cut(300));
    let cut_off = times.forecast(&epochs(100), || &[]).unwrap();
    assert_eq!((cut_off.median_s, cut_off.high_s), (4020, 14_020));
    // Without an effect there is none.
    let mut same = RunTimes::default();
    [(1, 60), (50, 55)].into_iter().for_each(|(n, s)| same.learn(&epochs(n), ran(s)));
    assert_eq!(of(&same, epochs(100)).map(|it| it.0), Some(55));
    // What a running job counts is scaled, too.
    let counts = [runs(epochs(1), 5, Some(30))];
    let counted = RunTimes::default().forecast(&epochs(10), || &counts).unwrap();
    assert_eq!((counted.median_s, counted.counted, counted.scaled), (300, true, true));
    // It is stored.
    let mut again = RunTimes::default();
    for (key, body) in times.changes().unwrap() {
        again.load(&key, &body.unwrap()).unwrap();
    }
    assert_eq!(of(&again, epochs(100)), of(&times, epochs(100)));
}

/// The class of a user's job that runs what others run, too.
fn shared(user: u64) -> Class {
    class(user, 1, 1).shared_as("train --epochs 3")
}

#[test]
fn what_others_ran_of_the_very_same_says_more_than_other_programs() {
    let mut times = RunTimes::default();
    (0..20).for_each(|_| times.learn(&class(1, 2, 1), ran(10)));
    times.learn(&shared(2), ran(700));
    assert_eq!(median(&times, class(1, 1, 1)).map(|(s, ..)| s), Some(10));
    assert_eq!(
        times.forecast(&shared(1), || &[]).map(|f| (f.high_s, f.basis, f.runs)),
        Some((700, RunsOf::Shared, 1))
    );
    times.learn(&shared(3), ran(700));
    assert_eq!(median(&times, shared(1)), Some((700, RunsOf::Shared, 2)));
    // An own run says more.
    times.learn(&shared(1), ran(500));
    assert_eq!(median(&times, shared(1)), Some((500, RunsOf::Command, 1)));
}

#[test]
fn of_what_users_share_each_counts_once() {
    let mut times = RunTimes::default();
    for user in 2..5 {
        times.learn(&shared(user), ran(600));
    }
    (0..1000).for_each(|_| times.learn(&shared(9), ran(1)));
    (0..1000).for_each(|_| times.learn(&shared(9), cut(90_000)));
    let (median_s, basis, _) = median(&times, shared(1)).unwrap();
    assert_eq!((median_s, basis), (600, RunsOf::Shared));
    let kept = &times.classes[&(RunsOf::Shared, shared(1).shared)].runs;
    assert_eq!(kept.iter().filter(|kept| !kept.run.cut && kept.by != 9 << 32).count(), 3);
    // Nor do runs that are cut off, or go on, outweigh the others' ends.
    let mut times = RunTimes::default();
    (0..60).for_each(|_| times.learn(&class(8, 3, 1), ran(600)));
    for user in 2..5 {
        times.learn(&shared(user), ran(600));
    }
    (0..16).for_each(|_| times.learn(&shared(9), cut(7200)));
    assert_eq!(median(&times, shared(1)), Some((600, RunsOf::Shared, 3)));
    let endless = vec![runs(shared(9), 7200, None); 50];
    assert_eq!(times.forecast(&shared(1), || &endless).map(|f| f.median_s), Some(600));
    // And what others' jobs count is not heard of.
    let mut none = RunTimes::default();
    none.learn(&shared(2), cut(5));
    let counts = [runs(shared(2), 5, Some(200))];
    assert_eq!(none.forecast(&shared(1), || &counts), None);
}

fn runs(class: Class, done_s: u64, count_s: Option<u64>) -> Running {
    Running { class, done_s, count_s }
}

#[test]
fn until_a_run_is_over_running_jobs_counts_say_how_long_it_takes() {
    let mut times = RunTimes::default();
    let running = [runs(class(1, 1, 1), 20, Some(200)), runs(class(1, 1, 1), 10, Some(220))];
    let of = |times: &RunTimes, class| {
        times.forecast(&class, || &running).map(|f| (f.median_s, f.basis, f.runs, f.counted))
    };
    assert_eq!(of(&times, class(1, 1, 1)), Some((200, RunsOf::Command, 2, true)));
    assert_eq!(of(&times, class(1, 1, 2)), Some((200, RunsOf::Program, 2, true)));
    // Other programs and other users learn nothing from what a job says of itself: those that run for days are at work most of the time.
    assert_eq!(of(&times, class(1, 2, 1)), None);
    assert_eq!(of(&times, class(2, 1, 1)), None);
    // A job that has run for longer than its count says counts something else.
    let refuted = [runs(class(4, 4, 4), 528, Some(60))];
    assert_eq!(times.forecast(&class(4, 4, 4), || &refuted), None);
    // It takes at least as long as one that was cut off.
    times.learn(&class(1, 1, 1), cut(210));
    assert_eq!(of(&times, class(1, 1, 1)), Some((220, RunsOf::Command, 2, true)));
    // Once one is over, it says more than counts do: of its command, and of those that nothing nearer is known of.
    times.learn(&class(1, 1, 1), ran(300));
    assert_eq!(of(&times, class(1, 1, 1)), Some((300, RunsOf::Command, 1, false)));
    assert_eq!(of(&times, class(2, 1, 1)), Some((300, RunsOf::All, 1, false)));
}

#[test]
fn jobs_that_run_now_take_at_least_as_long_as_they_have() {
    let mut times = RunTimes::default();
    let short = class(1, 1, 1);
    (0..4).for_each(|_| times.learn(&short, ran(60)));
    let median = |running: &[Running], class: Class| times.forecast(&class, || running).map(|f| f.median_s);
    assert_eq!(median(&[], short), Some(60));
    // Those that have run for less say nothing yet.
    let others = [runs(class(1, 2, 1), 50, None); 12];
    assert_eq!(median(&others, class(1, 3, 1)), Some(60));
    // Most of the user's jobs are longer: the four that are over were the short ones.
    let others = [runs(class(1, 2, 1), 3000, None); 12];
    assert_eq!(median(&others, class(1, 3, 1)), Some(3000));
    // What is known of the command itself says more.
    assert_eq!(median(&others, short), Some(60));
    // Once the first ends are forgotten, the latest stand for all jobs.
    let mut full = RunTimes::default();
    (0..KEPT_OF_ALL).for_each(|_| full.learn(&short, ran(60)));
    assert_eq!(full.forecast(&class(1, 3, 1), || &others).map(|f| f.median_s), Some(60));
    // Nothing came to its end, and nothing counts.
    assert_eq!(RunTimes::default().forecast(&short, || &others), None);
    let endless = [runs(short, u64::MAX, Some(u64::MAX))];
    assert_eq!(RunTimes::default().forecast(&short, || &endless).map(|f| f.high_s), Some(LONGEST_S));
}

#[test]
fn what_was_cut_off_is_a_lower_bound() {
    let mut times = RunTimes::default();
    times.learn(&class(1, 1, 1), cut(50));
    // It is known that it takes longer than that, and no more.
    assert_eq!(times.forecast(&class(1, 1, 1), || &[]), None);
    for _ in 0..4 {
        times.learn(&class(1, 1, 1), ran(100));
    }
    let before = times.forecast(&class(1, 1, 1), || &[]).unwrap();
    assert_eq!((before.low_s, before.median_s, before.runs), (100, 100, 4));
    // Taken for ends, these would halve the forecast.
    for _ in 0..12 {
        times.learn(&class(1, 1, 1), cut(40));
    }
    assert_eq!(times.forecast(&class(1, 1, 1), || &[]).unwrap().median_s, 100);
    for _ in 0..12 {
        times.learn(&class(1, 1, 1), cut(400));
    }
    assert_eq!(times.forecast(&class(1, 1, 1), || &[]).unwrap().median_s, 400);
}

#[test]
fn failures_at_once_change_nothing() {
    let mut times = RunTimes::default();
    (0..20).for_each(|_| times.learn(&class(1, 2, 1), ran(7)));
    times.learn(&class(1, 1, 1), ran(300));
    let before = times.forecast(&class(1, 1, 1), || &[]).unwrap();
    (0..100).for_each(|_| times.learn(&class(1, 1, 1), cut(1)));
    assert_eq!(times.forecast(&class(1, 1, 1), || &[]).unwrap(), before);
    let runs = &times.classes[&(RunsOf::Command, class(1, 1, 1).command)].runs;
    assert_eq!((runs.len(), runs[0].run), (KEPT / 2 + 1, ran(300)));
}

#[test]
fn the_latest_runs_count_most() {
    let mut times = RunTimes::default();
    (0..20).for_each(|_| times.learn(&class(1, 1, 1), ran(100)));
    (0..12).for_each(|_| times.learn(&class(1, 1, 1), ran(900)));
    assert_eq!(times.forecast(&class(1, 1, 1), || &[]).unwrap().median_s, 900);
}

#[test]
fn what_is_stored_comes_back_and_what_is_not_understood_is_refused() {
    let mut times = RunTimes::default();
    for n in 1..50 {
        times.learn(&class(n % 3, n % 5, n), if n % 7 == 0 { cut(n) } else { ran(n * n) });
    }
    times.learn(&class(1, 1, 1), ran(0));
    times.learn(&class(1, 1, 1).shared_as("train"), ran(40));
    let rows = times.changes().unwrap();
    assert!(times.changes().unwrap().is_empty());
    let mut again = RunTimes::default();
    for (key, body) in &rows {
        again.load(key, body.as_deref().unwrap()).unwrap();
    }
    assert_eq!(again.classes, times.classes);
    assert_eq!(again.by_use, times.by_use);
    for (key, body) in [("user/1", "["), ("other/1", "{}"), ("user/x", "{}"), ("user", "{}")] {
        assert!(again.load(key, body).is_err(), "{key} {body}");
    }
    // A class whose wider one was lost, and one of all jobs in which none came to its end.
    let mut part = RunTimes::default();
    let own = class(1, 1, 1);
    part.load(&name((RunsOf::Command, own.command)), "{\"runs\":[{\"s\":9}],\"used\":1}").unwrap();
    part.load("all/0", "{\"runs\":[{\"s\":50,\"cut\":true}],\"used\":1}").unwrap();
    assert_eq!(median(&part, own), Some((9, RunsOf::Command, 1)));
    // Twice the same row, and a class with more runs than are kept.
    let many: Vec<String> = (1..100).map(|s| format!("{{\"s\":{s}}}")).collect();
    let body = format!("{{\"runs\":[{}],\"used\":7}}", many.join(","));
    again.load("user/0000000000000007", &body).unwrap();
    again.load("user/0000000000000007", &body).unwrap();
    let runs = &again.classes[&(RunsOf::User, 7)].runs;
    assert_eq!((runs.len(), runs[0].run.seconds), (KEPT, 68));
    assert_eq!(listed(&again), again.classes.len());
}

fn listed(times: &RunTimes) -> usize {
    times.by_use.values().map(BTreeSet::len).sum()
}

#[test]
fn one_user_drives_out_no_other() {
    let mut times = RunTimes::default();
    let of = |user: &str, n: usize| Class::of(user, &format!("{n}.py"), "--epochs 3");
    times.learn(&of("a", 0), ran(100));
    (0..CLASSES).for_each(|n| times.learn(&of("b", n), ran(5)));
    let basis = |times: &RunTimes, class: &Class| times.forecast(class, || &[]).map(|told| told.basis);
    assert_eq!(basis(&times, &of("a", 0)), Some(RunsOf::Command));
    assert_eq!(basis(&times, &of("b", 0)), Some(RunsOf::User));
    assert_eq!((times.classes.len(), listed(&times)), (CLASSES, CLASSES));
    // Likewise after a start.
    let mut again = RunTimes::default();
    for (key, body) in times.changes().unwrap().iter().filter_map(|(key, body)| Some((key, body.as_ref()?))) {
        again.load(key, body).unwrap();
    }
    (0..CLASSES).for_each(|n| again.learn(&of("b", CLASSES + n), ran(5)));
    assert_eq!(basis(&again, &of("a", 0)), Some(RunsOf::Command));
}

#[test]
fn the_classes_are_bounded() {
    let mut times = RunTimes::default();
    for n in 0..CLASSES as u64 {
        times.learn(&class(1, n, 1), ran(5));
    }
    assert_eq!((times.classes.len(), listed(&times)), (CLASSES, CLASSES));
    assert!(times.classes.contains_key(&(RunsOf::User, 1 << 32)), "a class in use is kept");
    assert!(!times.classes.contains_key(&(RunsOf::Program, class(1, 0, 1).program)));
    let gone = times.changes().unwrap().into_iter().filter(|(_, body)| body.is_none()).count();
    assert!(gone > 0);
}

#[test]
fn levels_that_say_the_same_count_once() {
    let of = |class: Class| levels(&class).map(|(level, _)| level).collect::<Vec<_>>();
    assert_eq!(of(Class::of("alice", "train.py", "--epochs 3").shared_as("train.py --epochs 3")), LEVELS);
    let unshared = of(Class::of("alice", "train.py", "--epochs 3"));
    assert_eq!(unshared, LEVELS.into_iter().filter(|level| *level != RunsOf::Shared).collect::<Vec<_>>());
    assert_eq!(of(Class::of("alice", "train.py", "")), [RunsOf::Program, RunsOf::User, RunsOf::All]);
    assert_eq!(of(Class::of("", "", "")), [RunsOf::User, RunsOf::All]);
    assert_ne!(Class::of("a", "bc", ""), Class::of("ab", "c", ""));
}

proptest! {
    /// Rows of a database that something else wrote, or damaged.
    #[test]
    fn whatever_is_stored_is_read_or_refused(
        rows in proptest::collection::vec(
            (select(vec!["command/1", "shared/1", "program/1", "user/1", "all/0", "all/1", ""]), any::<[u64; 4]>(), any::<bool>(), ".{0,8}"),
            0..8,
        ),
    ) {
        let mut times = RunTimes::default();
        for (key, [a, b, c, used], cut, text) in rows {
            let body = format!("{{\"runs\":[{{\"s\":{a},\"cut\":{cut}}},{{\"s\":{}}},{{\"s\":{}}}],\"used\":{used}}}", b % 100, c % 9);
            let _ = times.load(key, &body);
            let _ = times.load(key, &text);
            let _ = times.load(&text, &body);
        }
        let class = Class { command: 1, shared: 1, program: 1, user: 1, length: None };
        if let Some(forecast) = times.forecast(&class, || &[]) {
            prop_assert!(forecast.low_s <= forecast.median_s && forecast.median_s <= forecast.high_s);
            prop_assert!(forecast.high_s <= LONGEST_S);
        }
        times.learn(&class, ran(5));
        prop_assert!(times.forecast(&class, || &[]).is_some());
        times.changes().unwrap();
    }

    #[test]
    fn quantiles_are_in_order_and_among_the_runs(
        runs in proptest::collection::vec((0_u64..4, 0_u64..3, 1_u64..100_000, any::<bool>()), 1..200),
        asked in (0_u64..4, 0_u64..3),
    ) {
        let mut times = RunTimes::default();
        for (user, program, seconds, cut) in &runs {
            times.learn(&class(*user, *program, 1), Run { seconds: *seconds, cut: *cut });
        }
        if let Some(forecast) = times.forecast(&class(asked.0, asked.1, 1), || &[]) {
            prop_assert!(forecast.low_s <= forecast.median_s && forecast.median_s <= forecast.high_s);
            for quantile in [forecast.low_s, forecast.median_s, forecast.high_s] {
                prop_assert!(runs.iter().any(|run| run.2 == quantile));
            }
        } else {
            prop_assert!(runs.iter().all(|run| run.3));
        }
    }
}
