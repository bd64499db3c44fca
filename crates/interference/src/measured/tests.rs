use super::*;

fn window(members: &[&str], sharing: Mode, session: u32, rates: &[f64]) -> Combination {
    Combination {
        members: members.iter().map(ToString::to_string).collect(),
        sharing,
        session,
        rates: rates.to_vec(),
        window_s: 1.5,
        ..Combination::default()
    }
}

fn log(combinations: Vec<Combination>) -> Log {
    let task = |name: &str| TaskNote { name: name.into(), ..TaskNote::default() };
    Log {
        machine: Machine { gpu: "NVIDIA H200".into(), cpus: 16, ..Machine::default() },
        tasks: vec![task("a"), task("b")],
        sessions: Vec::new(),
        combinations,
        whole: 0,
    }
}

#[test]
fn progress_is_over_the_solo_of_the_same_session_and_sharing() {
    use Mode::{Mps, TimeSlice};
    let half = Combination { threads_pct: vec![50], ..window(&["a"], Mps, 1, &[18.0]) };
    let log = log(vec![
        window(&["a"], TimeSlice, 0, &[10.0]),
        window(&["a"], TimeSlice, 0, &[14.0]),
        window(&["b"], TimeSlice, 0, &[4.0]),
        window(&["a", "b"], TimeSlice, 0, &[6.0, 2.0]),
        window(&["a"], Mps, 1, &[20.0]),
        window(&["a", "a"], Mps, 1, &[15.0, 5.0]),
        // No solo in this session: that of the others is taken.
        window(&["a"], TimeSlice, 2, &[24.0]),
        window(&["a", "b"], TimeSlice, 2, &[12.0, 1.0]),
        // Alone under MPS b was never measured.
        window(&["a", "b"], Mps, 1, &[12.0, 1.0]),
        half,
    ]);
    let measured = log.assemble(3);
    let progress: Vec<&[f64]> = measured.combinations.iter().map(|w| &w.progress[..]).collect();
    assert_eq!(progress[3], [0.5, 0.5]);
    assert_eq!(progress[5], [0.75, 0.25]);
    assert_eq!(progress[7], [0.5, 0.25]);
    assert_eq!(progress[8], [] as [f64; 0]);
    assert_eq!(measured.combinations[5].total(), Some(1.0));
    let a = measured.profiles.task("a").unwrap();
    assert_eq!(a.rate.as_ref().unwrap().per_s, 14.0, "the median of plain processes, all sessions");
    assert_eq!(a.curve(), [(50.0, 0.9), (100.0, 1.0)]);
    assert_eq!(measured.left, 3);
    let again = Measured::read(&serde_json::to_string(&measured).unwrap()).unwrap();
    assert_eq!(again, measured);
    let drifts = Solos::of(&log.combinations).drifts();
    assert_eq!(drifts.len(), 1);
    assert!((drifts[0].spread - 4.0 / 12.0).abs() < 1e-12);
}

#[test]
fn a_profile_is_of_windows_in_which_the_task_was_warm() {
    let solo = |at_s: f64, rate: f64, smact: f64| {
        let activity = Metrics { smact_pct: Some(crate::profile::Stat::of(smact)), ..Metrics::default() };
        Combination { at_s, activity, ..window(&["a"], Mode::TimeSlice, 0, &[rate]) }
    };
    let of = |windows: Vec<Combination>| log(windows).assemble(0).profiles.task("a").unwrap().clone();
    let a = of(vec![solo(1.0, 1.0, 8.0), solo(60.0, 10.0, 80.0), solo(90.0, 10.0, 80.0)]);
    let smact = |profile: &crate::profile::Profile| profile.metrics.smact_pct.unwrap().mean;
    assert_eq!((smact(&a), a.rate.as_ref().unwrap().per_s, a.watched_s), (80.0, 10.0, Some(3.0)));
    // One that was slow later was warm.
    let slow = of(vec![solo(1.0, 10.0, 80.0), solo(60.0, 1.0, 8.0), solo(90.0, 10.0, 80.0)]);
    assert_eq!(smact(&slow), 56.0);
}

#[test]
fn what_makes_no_sense_is_named() {
    let read = |change: &dyn Fn(&mut Measured)| {
        let mut measured = log(vec![window(&["a", "b"], Mode::Mps, 0, &[1.0, 2.0])]).assemble(0);
        change(&mut measured);
        Measured::read(&serde_json::to_string(&measured).unwrap()).unwrap_err().to_string()
    };
    for (said, error) in [
        ("version 9", read(&|m| m.version = 9)),
        ("two tasks are named `a`", read(&|m| m.tasks[1].name = "a".into())),
        ("a + c): no task is named `c`", read(&|m| m.combinations[0].members[1] = "c".into())),
        ("`rates` has 1 values for 2 members", read(&|m| m.combinations[0].rates.truncate(1))),
        ("`rates` has -1", read(&|m| m.combinations[0].rates[0] = -1.0)),
        ("neither `rates` nor `failed`", read(&|m| m.combinations[0].rates.clear())),
        ("`threads_pct` has 0", read(&|m| m.combinations[0].threads_pct = vec![0, 100])),
        ("no members", read(&|m| m.combinations[0].members.clear())),
    ] {
        assert!(error.contains(said), "{error}");
    }
    assert!(Measured::read("{}").unwrap_err().to_string().contains("carma bench interference"));
}

#[test]
fn a_log_with_a_torn_end_is_read_up_to_there() {
    let whole = log(vec![window(&["a"], Mode::TimeSlice, 0, &[1.0])]);
    let header =
        Line::Header { version: VERSION, machine: whole.machine.clone(), tasks: whole.tasks.clone() };
    let combination = Line::Combination(Box::new(whole.combinations[0].clone()));
    let line = |line: &Line| serde_json::to_string(line).unwrap();
    let text = format!("{}\n{}\n", line(&header), line(&combination));
    let torn = format!("{text}{}", &line(&combination)[..20]);
    let read = read_log(&torn).unwrap().unwrap();
    assert_eq!(read, Log { whole: text.len(), ..whole });
    assert_eq!(read_log("").unwrap(), None);
    // A torn header is no other file, and another file is no torn header.
    for end in 0..text.find('\n').unwrap() {
        assert_eq!(read_log(&format!("\n{}", &text[..end])).unwrap(), None, "{end}");
    }
    let cut = |text: &str| [text.as_bytes(), &[0xc3]].concat();
    assert_eq!(text_of(cut(r#"{"line":"header","machine":{"gpu":"#)).unwrap(), "");
    for other in ["notes", "{\"line\":\"heap\"", "\n \n[1, 2"] {
        assert!(read_log(other).unwrap_err().to_string().contains("it has no end"), "{other:?}");
        assert!(text_of(cut(other)).is_err(), "{other:?}");
    }
    // Other programs space it otherwise.
    let spaced = text.replace(r#"{"line":"#, r#"{ "line" : "#);
    assert_eq!(Measured::read(&spaced).unwrap(), Measured::read(&text).unwrap());
    let error = |text: &str| read_log(text).unwrap_err().to_string();
    assert!(error(&format!("{}\n", line(&combination))).contains("line 1: the header is missing"));
    assert!(error(&format!("{text}{}\n", line(&header))).contains("line 3: a second header"));
    assert!(error(&format!("{text}nonsense\n")).contains("line 3"));
}

#[test]
fn a_broken_file_of_measurements_is_still_meant_as_one() {
    for meant in [
        r#"{"version": 1, "tasks": [{"name": "a"}], "combinations": 7}"#,
        r#"{"combinations": [], "combinations": []}"#,
        "{ \"line\" : \"header\" }\n{}",
    ] {
        assert!(Measured::is_meant(meant) && Measured::read(meant).is_err(), "{meant}");
    }
    for other in [
        r#"{"version": 1, "tasks": [{"name": "combinations"}]}"#,
        r#"["combinations"]"#,
        "\"combinations\"",
        "",
    ] {
        assert!(!Measured::is_meant(other), "{other}");
    }
}

#[test]
fn a_window_is_known_again_while_the_file_grows() {
    let at = |at_s: f64, window: Combination| Combination { at_s, ..window };
    let pair = || at(3.0, window(&["a", "b"], Mode::Mps, 0, &[1.0, 2.0]));
    let mut begun = log(vec![pair()]);
    begun.sessions.push(Session {
        number: 0,
        began: "2026-11-21T16:00:00Z".into(),
        sharing: Mode::Mps,
        carma: "0.1.0".into(),
        seed: 1,
        gpu_uuid: Some("GPU-1".into()),
        processors_each: None,
    });
    let mut grown = begun.clone();
    grown.combinations.push(at(1.0, window(&["a"], Mode::Mps, 0, &[2.0])));
    grown.combinations.push(at(2.0, window(&["b"], Mode::Mps, 0, &[2.0])));
    let (early, late) = (begun.assemble(5), grown.assemble(0));
    assert_ne!(early.combinations[0].progress, late.combinations[0].progress);
    let known = early.fingerprints("H200")[0];
    assert_eq!(late.fingerprints("H200")[0], known);
    let again = Measured::read(&serde_json::to_string(&late).unwrap()).unwrap();
    assert_eq!(again.fingerprints("H200"), late.fingerprints("H200"));
    // Stored in model files: it must not change.
    assert_eq!(log(vec![pair()]).assemble(0).fingerprints("H200"), [7_704_432_698_243_385_690]);

    let mut others = vec![known, early.fingerprints("A100")[0]];
    let changes: [&dyn Fn(&mut Measured); 8] = [
        &|m| m.sessions[0].gpu_uuid = None,
        &|m| m.sessions[0].began.push('x'),
        &|m| m.combinations[0].at_s = 4.0,
        &|m| m.combinations[0].sharing = Mode::TimeSlice,
        &|m| m.combinations[0].members.swap(0, 1),
        &|m| m.combinations[0].threads_pct = vec![50, 50],
        &|m| m.combinations[0].repeat = 1,
        &|m| m.combinations[0].rates[0] = 1.5,
    ];
    for change in changes {
        let mut other = early.clone();
        change(&mut other);
        others.push(other.fingerprints("H200")[0]);
    }
    let count = others.len();
    others.sort_unstable();
    others.dedup();
    assert_eq!(others.len(), count);
}
