use super::*;
use crate::rate::beat::Beat;

fn look(at_s: f64, smact: f64, memory: f64) -> Look {
    let metrics = Metrics {
        smact_pct: Some(Stat::of(smact)),
        memory_mib: Some(Stat::of(memory)),
        power_w: Some(Stat::of(300.0)),
        ..Metrics::default()
    };
    Look { at_s, metrics, trouble: None }
}

/// Looks ten times a second at what `of` says, with a beat each; returns when it was over.
fn watch(recorder: &mut Recorder, tally: &mut Tally, seconds: f64, of: impl Fn(f64) -> Option<Look>) -> f64 {
    let mut at = 0.0;
    for tick in 0..(seconds * 10.0) as u32 {
        at = f64::from(tick) * 0.1;
        let Some(look) = of(at) else { continue };
        recorder.look(look);
        if let Some((unit, done)) = recorder.work() {
            tally.activity(at, unit, done);
        }
        if recorder.phase() == Phase::Over {
            break;
        }
    }
    at
}

fn new(options: Options) -> (Recorder, Tally) {
    (Recorder::new(options, 0.0), Tally::new())
}

#[test]
fn it_waits_for_activity_and_for_steadiness() {
    let (mut recorder, mut tally) = new(Options::default());
    // 5 s of loading, 10 s of growing activity and memory, then steady.
    let end = watch(&mut recorder, &mut tally, 200.0, |at| {
        let smact = if at < 5.0 { 0.0 } else { (at - 5.0).min(10.0) * 4.0 };
        Some(look(at, smact, 1000.0 + (at.min(15.0)) * 100.0))
    });
    assert!((36.0..42.0).contains(&end), "{end}");
    let profile = recorder.profile("a", &tally).unwrap();
    assert_eq!(profile.remarks, Vec::<String>::new());
    let smact = profile.metrics.smact_pct.unwrap();
    assert!((smact.mean - 40.0).abs() < 1.0 && smact.cv.unwrap() < 0.05, "{smact:?}");
    assert_eq!(profile.metrics.memory_mib, Some(Stat::of(2500.0)));
    assert!((profile.watched_s.unwrap() - 20.0).abs() < 0.2);
    let rate = profile.rate.clone().unwrap();
    assert_eq!((rate.source, rate.unit.as_deref()), (Some(RateSource::Activity), Some("SM-seconds")));
    assert!((rate.per_s - 0.4).abs() < 0.01, "{rate:?}");
    assert!(profile.memory_over_time.len() > 10 && profile.memory_over_time.len() <= MOST_POINTS);
    profile.check().unwrap();
}

#[test]
fn a_steady_start_up_is_not_in_the_window() {
    // 20 s at 2 %, then ten steps a second at 60 %.
    let watched = |options: Options| {
        let (mut recorder, mut tally) = new(options);
        let mut at = 0.0;
        for tick in 0..2000 {
            at = f64::from(tick) * 0.1;
            let works = at >= 20.0;
            if works {
                tally.beat(at, "7", &Beat::Step);
            }
            recorder.look(look(at, if works { 60.0 } else { 2.0 }, 4000.0));
            if let Some(first) = tally.began_s() {
                recorder.counted(first);
            }
            if recorder.phase() == Phase::Over {
                break;
            }
        }
        (at, recorder.profile("a", &tally).unwrap())
    };
    let (end, profile) = watched(Options::default());
    assert!((45.0..47.0).contains(&end), "{end}");
    assert_eq!(profile.remarks, Vec::<String>::new());
    assert!((profile.metrics.smact_pct.unwrap().mean - 60.0).abs() < 1e-9, "{profile:?}");
    assert!((profile.rate.unwrap().per_s - 10.0).abs() < 1e-6);
    // As it was told to: the reader hears of it.
    let (end, profile) = watched(Options { warm_up_s: Some(10.0), ..Options::default() });
    assert!((30.0..31.0).contains(&end), "{end}");
    assert!(profile.remarks[0].contains("first counted 10.0 s into the window"), "{:?}", profile.remarks);
}

#[test]
fn counts_that_come_late_do_not_cost_the_window() {
    // Counts from `first` on, ten a second; over at `end`.
    let watched = |first: f64, end: f64, smact: &dyn Fn(f64) -> f64| {
        let (mut recorder, mut tally) = new(Options::default());
        for tick in 0..(end * 10.0) as u32 {
            let at = f64::from(tick) * 0.1;
            if at >= first {
                tally.beat(at, "7", &Beat::Step);
            }
            recorder.look(look(at, smact(at), 4000.0));
            if let Some(first) = tally.began_s() {
                recorder.counted(first);
            }
        }
        recorder.end(end);
        recorder.profile("a", &tally).unwrap()
    };
    // Block-buffered output, which comes with the end.
    let profile = watched(19.0, 20.0, &|_| 60.0);
    assert!((13.5..14.5).contains(&profile.watched_s.unwrap()), "{profile:?}");
    assert!((profile.rate.unwrap().per_s - 10.0).abs() < 1e-6);
    assert!(profile.remarks[0].starts_with("the task ended 13.9 s into the window"), "{:?}", profile.remarks);
    assert!(profile.remarks[1].contains("first counted 13.0 s into the window"), "{:?}", profile.remarks);
    assert_eq!(profile.remarks.len(), 2, "{:?}", profile.remarks);
    // Then it saves a checkpoint for a while.
    let saves = watched(19.0, 28.0, &|at| if at < 20.0 { 60.0 } else { 0.0 });
    assert_eq!((saves.watched_s, saves.metrics.smact_pct), (profile.watched_s, profile.metrics.smact_pct));
    // Of a start-up, and work that is longer and not steady, it is the work.
    let work = |at: f64| if at < 16.0 { 2.0 } else { [20.0, 50.0, 80.0][(at / 2.0) as usize % 3] };
    let profile = watched(16.0, 31.0, &work);
    assert!(profile.metrics.smact_pct.unwrap().mean > 40.0, "{profile:?}");
    assert!(profile.remarks[0].contains("14.9 s after its first count: "), "{:?}", profile.remarks);
}

#[test]
fn a_gpu_that_tells_no_activity_is_used_once_the_command_has_memory_on_it() {
    let silent = |at_s: f64, memory: Option<f64>| {
        let metrics =
            Metrics { memory_mib: memory.map(Stat::of), power_w: Some(Stat::of(70.0)), ..Metrics::default() };
        Look { at_s, metrics, trouble: None }
    };
    let (mut recorder, mut tally) = new(Options::default());
    // It loads for 8 s, then takes its memory until 15 s.
    let end = watch(&mut recorder, &mut tally, 200.0, |at| {
        Some(silent(at, Some(if at < 8.0 { 0.0 } else { 500.0 + 100.0 * (at.min(15.0) - 8.0) })))
    });
    assert!((38.0..44.0).contains(&end), "{end}");
    for tick in 80..(end * 10.0) as u32 {
        tally.beat(f64::from(tick) * 0.1, "7", &Beat::Step);
    }
    let profile = recorder.profile("a", &tally).unwrap();
    assert_eq!(profile.remarks.len(), 1, "{:?}", profile.remarks);
    assert!(profile.remarks[0].contains("tells no activity"), "{:?}", profile.remarks);
    assert_eq!(profile.metrics.memory_mib, Some(Stat::of(1200.0)));
    assert!((profile.rate.unwrap().per_s - 10.0).abs() < 1e-6);
    // What holds no more than the driver's own rounding has not used it.
    let (mut recorder, mut tally) = new(Options::default());
    watch(&mut recorder, &mut tally, 20.0, |at| Some(silent(at, Some(if at < 5.0 { 0.0 } else { 2.0 }))));
    assert!(!recorder.was_active());
    recorder.end(20.0);
    assert!(matches!(recorder.profile("a", &tally), Err(NoProfile::NeverUsed { .. })));
    // Where activity is told, memory says nothing of it.
    let (mut recorder, mut tally) = new(Options::default());
    watch(&mut recorder, &mut tally, 20.0, |at| Some(look(at, 0.0, 4000.0)));
    assert!(!recorder.was_active());
}

#[test]
fn a_context_is_no_beginning() {
    let (mut recorder, mut tally) = new(Options::default());
    // A context at 1 s, two minutes of reading data, then work.
    let end = watch(&mut recorder, &mut tally, 300.0, |at| {
        let smact = if (1.0..1.5).contains(&at) {
            3.0
        } else if at < 120.0 {
            0.0
        } else {
            70.0
        };
        Some(look(at, smact, 600.0))
    });
    assert!((145.0..148.0).contains(&end), "{end}");
    let profile = recorder.profile("a", &tally).unwrap();
    assert_eq!(
        (profile.metrics.smact_pct.unwrap().mean.round(), profile.remarks),
        (70.0, Vec::<String>::new())
    );
    // Nothing follows.
    let (mut recorder, mut tally) = new(Options::default());
    let end =
        watch(&mut recorder, &mut tally, 600.0, |at| Some(look(at, if at < 1.0 { 3.0 } else { 0.0 }, 600.0)));
    assert!((300.0..400.0).contains(&end), "{end}");
    assert!(matches!(recorder.profile("a", &tally), Err(NoProfile::TooShort { active_s }) if active_s < 1.0));
}

#[test]
fn the_example_of_the_manual_reads() {
    let manual = include_str!("../../../docs/profiling.md");
    let (_, rest) = manual.split_once("```json\n").unwrap();
    let profiles = crate::profile::Profiles::read(rest.split_once("```").unwrap().0).unwrap();
    assert_eq!(profiles.tasks[0].rate.as_ref().unwrap().source, Some(RateSource::Printed));
}

#[test]
fn what_never_settles_is_measured_and_said() {
    let (mut recorder, mut tally) = new(Options { most_warm_up_s: 30.0, ..Options::default() });
    let end = watch(&mut recorder, &mut tally, 200.0, |at| {
        Some(look(at, if at % 7.0 < 3.5 { 80.0 } else { 5.0 }, 1000.0))
    });
    assert!((end - 50.0).abs() < 1.0, "{end}");
    let profile = recorder.profile("a", &tally).unwrap();
    assert!(profile.remarks[0].contains("not steady after 30 s"), "{:?}", profile.remarks);
    assert!(profile.metrics.smact_pct.unwrap().cv.unwrap() > 0.5);
}

#[test]
fn heartbeats_give_the_rate() {
    let (mut recorder, mut tally) =
        new(Options { warm_up_s: Some(1.0), window_s: 5.0, ..Options::default() });
    for tick in 0..70 {
        let at = f64::from(tick) * 0.1;
        tally.beat(at, "7", &Beat::Step);
        recorder.look(look(at, 30.0, 500.0));
    }
    let rate = recorder.profile("a", &tally).unwrap().rate.unwrap();
    assert_eq!(rate.source, Some(RateSource::Heartbeat));
    assert!((rate.per_s - 10.0).abs() < 1e-6, "{rate:?}");
}

#[test]
fn a_task_that_ends_early_gives_what_there_was() {
    let options = Options { warm_up_s: Some(2.0), ..Options::default() };
    let (mut recorder, mut tally) = new(options);
    watch(&mut recorder, &mut tally, 12.0, |at| Some(look(at, if at < 9.0 { 50.0 } else { 0.0 }, 700.0)));
    recorder.end(12.0);
    let profile = recorder.profile("a", &tally).unwrap();
    assert!(profile.remarks[0].contains("ended 6.9 s into the window of 20.0 s"), "{:?}", profile.remarks);
    assert!((profile.metrics.smact_pct.unwrap().mean - 50.0).abs() < 1e-9, "its idle end is left out");

    // Still in its warm-up.
    let (mut recorder, mut tally) = new(Options::default());
    watch(&mut recorder, &mut tally, 5.0, |at| Some(look(at, 50.0, 700.0)));
    recorder.end(5.0);
    let profile = recorder.profile("a", &tally).unwrap();
    assert!(profile.remarks[0].contains("warm-up included"), "{:?}", profile.remarks);

    let (mut recorder, mut tally) = new(Options::default());
    watch(&mut recorder, &mut tally, 1.0, |at| Some(look(at, 50.0, 700.0)));
    recorder.end(1.0);
    let error = recorder.profile("a", &tally).unwrap_err().to_string();
    assert!(error.contains("for 0.9 s only"), "{error}");
}

#[test]
fn gaps_and_nonsense_are_said_and_do_not_count() {
    let options = Options { warm_up_s: Some(0.0), window_s: 10.0, ..Options::default() };
    let (mut recorder, mut tally) = new(options);
    watch(&mut recorder, &mut tally, 20.0, |at| {
        if (3.0..5.0).contains(&at) {
            return None;
        }
        if (6.0..7.0).contains(&at) {
            return Some(Look { at_s: at, trouble: Some("NVML does not answer".into()), ..Look::default() });
        }
        Some(look(at, if at % 0.7 < 0.1 { f64::NAN } else { 40.0 }, f64::NAN))
    });
    let profile = recorder.profile("a", &tally).unwrap();
    let said = profile.remarks.join("; ");
    assert!(said.contains("no readings for 3.") && said.contains("NVML does not answer"), "{said}");
    assert_eq!(profile.metrics.smact_pct.unwrap().mean, 40.0);
    assert_eq!(profile.metrics.memory_mib, None);
    profile.check().unwrap();
}

#[test]
fn a_gpu_that_is_never_used_or_never_read() {
    let (mut recorder, mut tally) = new(Options::default());
    watch(&mut recorder, &mut tally, 5.0, |at| Some(look(at, 0.0, 0.0)));
    recorder.end(5.0);
    assert_eq!(recorder.profile("a", &tally), Err(NoProfile::NeverUsed { watched_s: 5.0 }));
    let (mut recorder, mut tally) = new(Options::default());
    watch(&mut recorder, &mut tally, 5.0, |at| {
        Some(Look { at_s: at, trouble: Some("GPU is lost".into()), ..Look::default() })
    });
    recorder.end(5.0);
    assert_eq!(recorder.profile("a", &tally), Err(NoProfile::Blind("GPU is lost".into())));
}
