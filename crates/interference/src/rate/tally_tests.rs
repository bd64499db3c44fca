use super::*;
use crate::rate::printed::Printed;

fn told(text: &[(f64, &str)]) -> Tally {
    let (mut printed, mut tally) = (Printed::new(), Tally::new());
    for (at, text) in text {
        let mut reports = Vec::new();
        printed.feed(*at, text.as_bytes(), &mut reports);
        reports.iter().for_each(|report| tally.printed(report));
    }
    tally
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-9 * b.abs().max(1.0)
}

#[test]
fn counts_go_before_averages() {
    // The bar says 36 it/s; in truth it does 10.
    let lines: Vec<(f64, String)> = (0..100)
        .map(|i| (f64::from(i) * 0.1, format!("\r 4%|# | {i}/1000 [00:12<00:15, 36.2it/s]\r")))
        .collect();
    let lines: Vec<(f64, &str)> = lines.iter().map(|(at, line)| (*at, line.as_str())).collect();
    let rate = told(&lines).best(2.0, 8.0).unwrap();
    assert!(near(rate.rate.per_s, 10.0), "{rate:?}");
    assert_eq!((rate.rate.unit.as_deref(), rate.rate.source), (Some("it"), Some(RateSource::Printed)));
    assert_eq!((rate.quality, rate.is_average), (Quality::Good, false));
    assert!(rate.cv.unwrap() < 1e-6);
}

#[test]
fn a_bar_that_starts_anew_takes_no_work_back() {
    // Epochs of 50 steps at 10/s with 3 s in between, of which nothing is printed.
    let mut lines = Vec::new();
    for epoch in 0..4 {
        for step in 0..=50 {
            let at = f64::from(epoch) * 8.0 + f64::from(step) * 0.1;
            lines.push((at, format!("{step}/50 [00:01<00:04, 9it/s]\r")));
        }
    }
    let lines: Vec<(f64, &str)> = lines.iter().map(|(at, line)| (*at, line.as_str())).collect();
    let rate = told(&lines).best(0.0, 29.0).unwrap();
    assert!(near(rate.rate.per_s, 10.0), "{rate:?}");
    assert!(near(rate.counted, 200.0));
}

#[test]
fn evaluation_in_between_is_left_out_and_nested_bars_lose() {
    // Training 10/s, interrupted for 5 s by an evaluation of 20/s; an outer bar counts epochs.
    let mut lines = vec![(0.0, "Epochs:  0%| | 0/5 [00:00<?, ?it/s]\r".to_owned())];
    for step in 0..=100 {
        let at = f64::from(step) * 0.1 + if step > 50 { 5.0 } else { 0.0 };
        lines.push((at, format!(" 5%|# | {step}/1000 [00:01<00:04, 9it/s]\r")));
    }
    for step in 0..=98 {
        lines.push((
            5.05 + f64::from(step) * 0.05,
            format!("Evaluating: 5%|# | {step}/98 [00:01<00:04, 9it/s]\r"),
        ));
    }
    lines.push((14.5, "Epochs:  20%|## | 1/5 [00:10<00:40, 10s/it]\r".to_owned()));
    lines.sort_by(|a, b| a.0.total_cmp(&b.0));
    let lines: Vec<(f64, &str)> = lines.iter().map(|(at, line)| (*at, line.as_str())).collect();
    let tally = told(&lines);
    let rate = tally.best(0.0, 15.0).unwrap();
    assert!((rate.rate.per_s - 10.0).abs() < 0.2, "{rate:?}");
    assert!((rate.counted - 100.0).abs() < 1e-9);
    assert_eq!(tally.latest().len(), 3);
}

#[test]
fn an_evaluation_that_is_slowed_down_does_not_become_the_work() {
    // Passes of training (15 s) and of validation (10 s) in turn, as bars without names. The second validation takes 30 s, and then the
    // training goes at a tenth.
    let mut lines = Vec::new();
    let mut pass = |from: f64, steps: i32, of: i32, step_s: f64| {
        let said =
            |step| (from + f64::from(step) * step_s, format!(" 5%|# | {step}/{of} [00:01<00:04, 9it/s]\r"));
        lines.extend((0..=steps).map(said));
    };
    pass(0.0, 150, 150, 0.1);
    pass(15.0, 50, 50, 0.2);
    pass(25.0, 150, 150, 0.1);
    pass(40.0, 50, 50, 0.6);
    pass(70.0, 20, 150, 1.0);
    let until = |at: f64| {
        let lines = lines.iter().filter(|(said, _)| *said <= at);
        told(&lines.map(|(at, line)| (*at, line.as_str())).collect::<Vec<_>>())
    };
    let own = until(15.0).best(0.0, 15.0).unwrap().rate;
    assert!(near(own.per_s, 10.0), "{own:?}");
    let beside = |from, to| until(to).best_between(from, to, f64::INFINITY, Some(&own)).unwrap();
    assert!(!beside(40.5, 68.0).is_work);
    let after = beside(40.5, 76.0);
    assert!(after.is_work && after.rate.counts_like(&own) && near(after.rate.per_s, 1.0), "{after:?}");
}

#[test]
fn a_stage_that_was_tried_before_becomes_the_work() {
    // Two stages are tried for 15 s and for 10 s, and then run: of the first 150 steps, of the second 5,000, or passes of 50.
    let run = |steps: i32, of: i32, passes: i32| {
        let mut lines = Vec::new();
        let mut pass = |from: f64, steps: i32, of: i32| {
            let at = |step| from + f64::from(step) * 0.2;
            lines.extend((0..=steps).map(|step| (at(step), format!(" 5%|# | {step}/{of} [00:01<00:04]\r"))));
        };
        pass(0.0, 75, 75);
        pass(15.0, 50, of);
        pass(25.0, 75, 75);
        for again in 0..passes {
            pass(40.0 + 10.0 * f64::from(again), steps, of);
        }
        let tally = told(&lines.iter().map(|(at, line)| (*at, line.as_str())).collect::<Vec<_>>());
        let own = tally.best(0.0, 15.0).unwrap().rate;
        let becomes = |to| {
            let lines: Vec<_> = lines.iter().filter(|(at, _)| *at <= to).collect();
            let tally = told(&lines.iter().map(|(at, line)| (*at, line.as_str())).collect::<Vec<_>>());
            tally.best_between(to - 8.0, to, f64::INFINITY, Some(&own)).unwrap().is_work
        };
        (50..120).step_by(5).map(f64::from).find(|to| becomes(*to))
    };
    assert_eq!(run(400, 5000, 1), Some(75.0));
    assert_eq!(run(50, 50, 8), Some(60.0));
}

#[test]
fn evaluations_in_a_row_do_not_become_the_work() {
    // A training of 60 s, and then so many sets one after the other, as bars without names.
    for (sets, step_s) in [(1, 0.1), (2, 0.1), (3, 0.04), (2, 0.4)] {
        let (mut lines, mut at) = (Vec::new(), 0.0);
        let mut pass = |at: f64, steps: i32, step_s: f64| {
            let said =
                |step| (at + f64::from(step) * step_s, format!(" 5%|# | {step}/{steps} [00:01<00:04]\r"));
            lines.extend((0..=steps).map(said));
            at + f64::from(steps) * step_s + 0.1
        };
        for _ in 0..3 {
            at = pass(at, 150, 0.4);
            at = (0..sets).fold(at, |at, _| pass(at, 50, step_s));
        }
        let until = |to: f64| {
            let lines = lines.iter().filter(|(said, _)| *said <= to);
            told(&lines.map(|(at, line)| (*at, line.as_str())).collect::<Vec<_>>())
        };
        let own = until(60.0).best(0.0, 60.0).unwrap().rate;
        let wrong = (130..(2.0 * at) as i32).map(|half| f64::from(half) / 2.0).find(|to| {
            let found = until(*to).best_between(to - 5.0, *to, f64::INFINITY, Some(&own));
            found.is_some_and(|found| found.is_work && !found.rate.counts_like(&own))
        });
        assert_eq!(wrong, None, "{sets} of {step_s} s a step");
    }
}

#[test]
fn epochs_serve_where_nothing_finer_is_printed() {
    let tally =
        told(&[(0.0, "Epoch 1/10\n"), (5.0, "Epoch 2/10\n"), (10.0, "Epoch 3/10\n"), (15.0, "Epoch 4/10\n")]);
    let rate = tally.best(4.0, 16.0).unwrap();
    assert!(near(rate.rate.per_s, 0.2), "{rate:?}");
    assert_eq!(rate.quality, Quality::Poor);
    // A window with one mark inside reaches back to the one before.
    assert!(near(tally.best(8.0, 13.0).unwrap().rate.per_s, 0.2));
    assert_eq!(tally.best(20.0, 25.0), None);
}

#[test]
fn averages_serve_where_nothing_is_counted() {
    let tally = told(&[(1.0, "812.0 samples/s\n"), (2.0, "820.0 samples/s\n"), (3.0, "10.0 samples/s\n")]);
    let rate = tally.best(0.0, 5.0).unwrap();
    assert_eq!((rate.rate.per_s, rate.is_average, rate.quality), (812.0, true, Quality::Poor));
    assert_eq!(rate.rate.unit.as_deref(), Some("samples"));
}

#[test]
fn the_average_of_a_task_that_counts_is_not_its_rate() {
    // Its start-up took 23 s.
    let mut lines = vec![(24.0, "step 1/1320 0.1 it/s\n")];
    assert_eq!((told(&lines).best(0.0, 30.0), told(&lines).counts()), (None, Some(RateSource::Printed)));
    lines.extend([(25.0, "step 40/1320 1.6 it/s\n"), (26.0, "step 79/1320 3.0 it/s\n")]);
    let rate = told(&lines).best(24.0, 26.0).unwrap();
    assert!(near(rate.rate.per_s, 39.0) && !rate.is_average, "{rate:?}");
}

#[test]
fn heartbeats_go_before_print_and_processes_are_not_added_up() {
    let mut tally = told(&[(0.0, "step 1/9\n"), (1.0, "step 2/9\n"), (2.0, "step 3/9\n")]);
    for i in 0..20 {
        for writer in ["7", "8"] {
            tally.beat(f64::from(i) * 0.1, writer, &Beat::Step);
        }
    }
    let rate = tally.best(0.0, 2.0).unwrap();
    assert_eq!(rate.rate.source, Some(RateSource::Heartbeat));
    assert!(near(rate.rate.per_s, 10.0), "{rate:?}");
}

#[test]
fn ranks_that_lag_do_not_start_anew() {
    let mut tally = Tally::new();
    let said = |count: u32| Said {
        unit: "it".into(),
        count: Some(f64::from(count)),
        total: None,
        per_s: None,
        label: String::new(),
    };
    for i in 10..60 {
        for (lag, delay) in [(0, 0.0), (1, 0.01), (2, 0.02)] {
            let at_s = f64::from(i) * 0.1 + delay;
            tally.printed(&Report { at_s, said: said(i - lag) });
        }
    }
    let rate = tally.best(0.0, 6.0).unwrap();
    assert!(near(rate.rate.per_s, 10.0) && near(rate.counted, 49.0), "{rate:?}");
}

#[test]
fn what_is_stuck_slows_down() {
    let mut tally = Tally::new();
    for i in 0..=10 {
        tally.activity(f64::from(i), "SM-seconds", f64::from(i) * 0.5);
    }
    assert!(near(tally.best(0.0, 10.5).unwrap().rate.per_s, 0.5));
    let stuck = tally.best(0.0, 22.0).unwrap().rate.per_s;
    assert!(near(stuck, 5.0 / 20.0), "{stuck}");
}

#[test]
fn silence_counts_at_either_end_of_a_window() {
    let steps = |times: &mut dyn Iterator<Item = f64>| {
        let mut tally = Tally::new();
        for (i, at_s) in times.enumerate() {
            tally.beat(at_s, "7", &beat(i as f64));
        }
        tally
    };
    let twenty = |from: f64, to: f64| {
        (0..).map(move |i| from + f64::from(i) * 0.05).take_while(move |at| *at <= to + 1e-9)
    };
    // 20/s, then nothing from 1.6 to 12 s: whatever window it is asked for.
    let tally = steps(&mut twenty(0.0, 1.6).chain(twenty(12.0, 20.0)));
    for (from, to, steps) in [(1.5, 11.9, 2.0), (1.5, 14.0, 43.0), (1.7, 14.0, 40.0), (3.0, 18.0, 120.0)] {
        let rate = tally.best(from, to).unwrap().rate.per_s;
        let expected = steps / (to - from);
        assert!((rate / expected - 1.0).abs() < 0.1, "{from} to {to}: {rate}, not {expected}");
    }
    // Nothing is held against it for when it had not begun, or an evaluation went on.
    assert!(near(steps(&mut twenty(12.0, 20.0)).best(0.0, 20.0).unwrap().rate.per_s, 20.0));
    let mut lines: Vec<(f64, String)> = twenty(0.0, 1.6)
        .chain(twenty(12.0, 20.0))
        .enumerate()
        .map(|(i, at)| (at, format!("step {i}/1000\n")))
        .collect();
    lines.extend([(4.0, "val step 1/9\n".to_owned()), (8.0, "val step 2/9\n".to_owned())]);
    lines.sort_by(|a, b| a.0.total_cmp(&b.0));
    let lines: Vec<(f64, &str)> = lines.iter().map(|(at, line)| (*at, line.as_str())).collect();
    let rate = told(&lines).best(1.7, 15.0).unwrap();
    assert!(near(rate.rate.per_s, 20.0), "{rate:?}");
    // Nor for the time before the next epoch.
    let mut tally = Tally::new();
    for (i, at_s) in twenty(0.0, 1.6).enumerate().chain(twenty(12.0, 20.0).enumerate()) {
        tally.beat(at_s, "7", &beat(i as f64));
    }
    let rate = tally.best(1.7, 15.0).unwrap().rate.per_s;
    assert!(near(rate, 20.0), "{rate}");
}

fn beat(count: f64) -> Beat {
    Beat::Count(Said {
        unit: "steps".into(),
        count: Some(count),
        total: None,
        per_s: None,
        label: String::new(),
    })
}

/// The rate of counts that come ten times a second.
#[track_caller]
fn per_s(counts: impl IntoIterator<Item = f64>) -> f64 {
    let mut tally = Tally::new();
    let mut now_s = 0.0;
    for count in counts {
        tally.beat(now_s, "7", &beat(count));
        now_s += 0.1;
    }
    // Which of two counters is meant cannot be told at their very first counts.
    tally.best(0.1, now_s).unwrap().rate.per_s
}

#[test]
fn two_counters_of_one_name_are_not_added_up() {
    let hundred = || (0..100).map(f64::from);
    // Half of what comes is the other's, which stands still or goes on.
    for (what, counts) in [
        ("still", hundred().flat_map(|i| [900.0 + i, 10.0]).collect::<Vec<_>>()),
        ("the lower first", hundred().flat_map(|i| [10.0, 900.0 + i]).collect()),
        ("both", hundred().flat_map(|i| [900.0 + i, 10.0 + i]).collect()),
        ("three", hundred().flat_map(|i| [900.0 + 1.5 * i, 400.0 + i, 10.0 + i]).collect()),
    ] {
        let rate = per_s(counts.clone());
        assert!((4.0..6.0).contains(&rate), "{what}: {rate}");
    }
    let one_in_ten = (0..200).map(|i| if i % 10 == 9 { 10.0 } else { f64::from(i) });
    let rate = per_s(one_in_ten);
    assert!((8.0..10.5).contains(&rate), "{rate}");
    // The lower one comes more often.
    let seldom = (0..200).map(|i| if i % 5 == 0 { 900.0 + f64::from(i / 5) } else { f64::from(i) });
    let rate = per_s(seldom);
    assert!((2.0..11.0).contains(&rate), "{rate}");
    // In bursts, and not as low.
    let bursts = (0..200).map(|i| if i / 5 % 2 == 0 { 900.0 } else { 600.0 } + f64::from(i));
    let rate = per_s(bursts);
    assert!((8.0..10.5).contains(&rate), "{rate}");
}

#[test]
fn a_counter_that_starts_anew_goes_on_counting() {
    // However often an epoch is told of, and wherever it ends.
    for (epochs, rate) in [
        (vec![vec![25.0, 50.0]; 20], 250.0),
        (vec![vec![0.0, 50.0]; 20], 500.0),
        (vec![vec![0.0, 10.0, 20.0, 30.0]; 20], 100.0),
        ((0..20).map(|n| (0..20 + n).map(f64::from).collect()).collect(), 10.0),
        ((0..20).map(|n| (0..40 - n).map(f64::from).collect()).collect(), 10.0),
    ] {
        let measured = per_s(epochs.concat());
        assert!(near(measured, rate), "{:?}: {measured}", epochs[0]);
    }
    let mut tally = Tally::new();
    for i in 0..60 {
        let said = Said {
            unit: "it".into(),
            count: Some(f64::from(i % 2 + 1)),
            total: Some(2.0),
            per_s: None,
            label: "epoch".into(),
        };
        tally.printed(&Report { at_s: f64::from(i) * 0.1, said });
    }
    let rate = tally.best(0.0, 6.0).unwrap().rate.per_s;
    assert!(near(rate, 10.0), "{rate}");
}

#[test]
fn a_flood_takes_no_more_memory() {
    let mut tally = Tally::new();
    for i in 0..200_000_u32 {
        tally.beat(f64::from(i) * 1e-4, "7", &Beat::Step);
        if i % 100 == 0 {
            tally.beat(f64::from(i) * 1e-4, &format!("{i}"), &Beat::Step);
        }
    }
    assert!(tally.streams.len() <= MOST_STREAMS);
    assert!(tally.streams.iter().all(|s| s.marks.len() <= MOST_MARKS));
    let rate = tally.best(10.0, 20.0).unwrap().rate.per_s;
    assert!((rate / 1e4 - 1.0).abs() < 0.01, "{rate}");
}

#[test]
fn garbage_counts_for_nothing() {
    let mut tally = Tally::new();
    let said = |count: f64| Said {
        unit: "it".into(),
        count: Some(count),
        total: None,
        per_s: Some(f64::NAN),
        label: String::new(),
    };
    for (at_s, count) in
        [(0.0, f64::NAN), (1.0, -5.0), (f64::NAN, 1.0), (2.0, f64::INFINITY), (3.0, 7.0), (1.0, 8.0)]
    {
        tally.printed(&Report { at_s, said: said(count) });
    }
    assert_eq!(tally.best(0.0, 10.0), None);
}

#[test]
fn pauses_are_left_out_where_that_is_asked_for() {
    // Ten seconds of 10/s, ten of silence, three times; the count goes on.
    let mut lines = Vec::new();
    for step in 0..300 {
        let at = f64::from(step) * 0.1 + f64::from(step / 100) * 10.0;
        lines.push((at, format!("training: 5%|# | {step}/1000 [00:01<00:04, 9it/s]\r")));
    }
    let lines: Vec<(f64, &str)> = lines.iter().map(|(at, line)| (*at, line.as_str())).collect();
    let tally = told(&lines);
    let all = tally.best(0.0, 50.0).unwrap();
    assert!((all.rate.per_s - 6.0).abs() < 0.1, "{all:?}");
    assert!((all.gaps_s.0 - 0.1).abs() < 0.01 && (all.gaps_s.1 - 10.1).abs() < 0.01, "{all:?}");
    let works = |from, to| {
        tally.best_between(from, to, 3.0, None).map(|rate| (rate.rate.per_s * 10.0).round() / 10.0)
    };
    for (from, to) in [(0.0, 50.0), (5.0, 18.0), (15.0, 28.0), (0.0, 60.0)] {
        assert_eq!(works(from, to), Some(10.0), "{from} to {to}");
    }
    // Shorter silences count.
    assert_eq!(works(5.0, 12.0), Some(7.2));
    assert!(!all.rate.aside);
}

#[test]
fn thinning_makes_no_pauses() {
    for (per_s, seconds) in [(50, 100), (10, 600), (50, 3600)] {
        let mut tally = Tally::new();
        let mut worst = (0.0_f64, f64::INFINITY, 0.0_f64);
        for i in 0..=per_s * seconds {
            let at_s = f64::from(i) / f64::from(per_s);
            tally.beat(at_s, "7", &Beat::Step);
            if i % (per_s * 7) == 0 && at_s > 20.0 {
                let all = tally.best_between((at_s - 600.0).max(1.0), at_s, 3.0, None).unwrap();
                let short = tally.best_between(at_s - 15.0, at_s, 3.0, None).unwrap();
                let rates = [all.rate.per_s, short.rate.per_s].map(|rate| rate / f64::from(per_s));
                worst.0 = worst.0.max(all.gaps_s.1);
                worst.1 = worst.1.min(rates[0]).min(rates[1]);
                worst.2 = worst.2.max(rates[0]).max(rates[1]);
            }
        }
        assert!(worst.0 < 2.0 && worst.1 > 0.98 && worst.2 < 1.02, "{per_s}/s, {seconds} s: {worst:?}");
        assert!(tally.streams[0].marks.len() <= MOST_MARKS);
        // What it did since its beginning is known, too.
        let whole = tally.best(0.0, f64::from(seconds)).unwrap();
        assert!(near(whole.counted, f64::from(per_s * seconds)), "{whole:?}");
    }
}

#[test]
fn what_counted_before_does_not_silence_averages() {
    let averages = || (0..30).map(|i| (20.0 + f64::from(i) * 2.0, "throughput: 812.3 samples/s\n"));
    let rate = |before: &[(f64, &'static str)], from: f64| {
        let lines: Vec<(f64, &str)> = before.iter().copied().chain(averages()).collect();
        let rate = told(&lines).best(from, 60.0)?;
        Some((rate.rate.per_s, rate.is_average))
    };
    // It builds an extension, loads, or counted once upon a time.
    let ninja = [
        (1.0, "[1/3] /usr/local/cuda/bin/nvcc -c a.cu -o a.cuda.o\n"),
        (5.0, "[2/3] c++ -MMD -MF b.o.d -c b.cpp -o b.o\n"),
        (9.0, "[3/3] c++ a.cuda.o b.o -shared -o x.so\n"),
    ];
    let load = [(1.0, "Loading: 1/3 [00:01<00:04, 9it/s]\n"), (9.0, "Loading: 3/3 [00:01<00:04, 9it/s]\n")];
    assert_eq!(rate(&ninja, 0.0), Some((812.3, true)));
    assert_eq!(rate(&load, 0.0), Some((812.3, true)));
    assert_eq!(rate(&[(1.0, "step 1/9\n"), (2.0, "step 2/9\n")], 15.0), Some((812.3, true)));
    // Beside counts of its own it may hold the start-up.
    assert_eq!(rate(&[(21.0, "step 1/9\n")], 15.0), None);
}

#[test]
fn averages_go_before_epochs_that_are_few() {
    // Three lines an epoch of 20 s.
    let lines: Vec<(f64, String)> =
        (0..30).map(|i| (f64::from(i) * 6.7, format!("Epoch {} | 812.3 samples/s\n", 1 + i / 3))).collect();
    let lines: Vec<(f64, &str)> = lines.iter().map(|(at, line)| (*at, line.as_str())).collect();
    for (from, to) in [(0.0, 15.0), (0.0, 60.0), (10.0, 31.0), (0.0, 200.0)] {
        let rate = told(&lines).best(from, to).unwrap();
        assert_eq!((rate.rate.per_s, rate.is_average), (812.3, true), "{from} to {to}");
    }
}

#[test]
fn lines_of_one_burst_are_one_advance() {
    let mut tally = Tally::new();
    for i in 0..270 {
        tally.beat(f64::from(i / 90) * 9.0, "7", &beat(f64::from(i)));
    }
    let rate = tally.best(0.0, 20.0).unwrap();
    assert_eq!((rate.advances, rate.gaps_s), (2, (9.0, 9.0)), "{rate:?}");
    // A flood has as many as can be told apart.
    let mut tally = Tally::new();
    (0..10_000).for_each(|i| tally.beat(f64::from(i) * 1e-3, "7", &Beat::Step));
    let rate = tally.best(0.0, 10.0).unwrap();
    assert!((100..=1000).contains(&rate.advances) && near(rate.rate.per_s, 1000.0), "{rate:?}");
}
