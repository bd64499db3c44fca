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
fn a_bar_that_starts_anew_is_not_work_undone() {
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
