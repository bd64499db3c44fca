use super::*;
use crate::group::{GpuType, MOST_MEMBERS, Member};
use proptest::prelude::*;

const MODES: [Mode; 2] = [Mode::Mps, Mode::TimeSlice];

fn task(name: &str, gract: f64, smact: f64) -> Profile {
    let metrics =
        Metrics { gract_pct: Some(Stat::of(gract)), smact_pct: Some(Stat::of(smact)), ..typical().metrics };
    Profile { name: name.into(), metrics, ..Profile::default() }
}

fn smact(metrics: &Metrics) -> f64 {
    metrics.smact_pct.unwrap().mean
}

/// What a GPU does under these tasks, by the model's progress of each.
fn under(tasks: &[Profile], sharing: Mode) -> Metrics {
    let members: Vec<Member<'_>> = tasks.iter().map(Member::of).collect();
    let group = Group { gpu: &GpuType::named("NVIDIA H200"), sharing, members: &members };
    let progress = SlowdownModel::shipped().expect(&group).unwrap();
    let mut seen = Metrics::default();
    for kind in kinds(sharing) {
        let shares = tasks.iter().zip(&progress).map(|(t, p)| (kind.of)(&t.metrics).unwrap().mean * p);
        let sum: f64 = shares.map(|percent| kind.adds(percent)).sum();
        let share = if kind.overlaps { 1.0 - (-sum).exp() } else { sum };
        (kind.set)(&mut seen, Stat::of((share * 100.0).min(100.0)));
    }
    seen
}

/// So many steps; what is assumed after them.
fn steps(tasks: &[Profile], assumed: &[bool], sharing: Mode, seen: &Metrics, times: usize) -> Vec<Profile> {
    steps_going(tasks, assumed, sharing, (seen, &[]), times)
}

/// The same where it is known how fast tasks go.
fn steps_going(
    tasks: &[Profile],
    assumed: &[bool],
    sharing: Mode,
    (seen, going): (&Metrics, &[Option<Going>]),
    times: usize,
) -> Vec<Profile> {
    let (model, gpu) = (SlowdownModel::shipped(), GpuType::named("NVIDIA H200"));
    let mut tasks = tasks.to_vec();
    for _ in 0..times {
        let members: Vec<Member<'_>> = tasks.iter().map(Member::of).collect();
        let group = Group { gpu: &gpu, sharing, members: &members };
        let refined = refined(&model, &group, assumed, seen, going).unwrap();
        for (task, metrics) in tasks.iter_mut().zip(refined) {
            task.metrics = metrics;
        }
    }
    tasks
}

#[test]
fn who_does_what_is_typical_stays_typical() {
    for sharing in MODES {
        for k in 1..=2 {
            let tasks = vec![typical(); k];
            for after in steps(&tasks, &vec![true; k], sharing, &under(&tasks, sharing), 20) {
                for (name, before, _) in typical().metrics.iter() {
                    let (_, after, _) = after.metrics.iter().find(|(n, ..)| *n == name).unwrap();
                    let off = before.zip(after).map_or(0.0, |(a, b)| (a.mean - b.mean).abs());
                    assert!(off < 1e-6 && before.is_some() == after.is_some(), "{k} {sharing} {name}: {off}");
                }
            }
        }
    }
}

#[test]
fn light_and_heavy_tasks_are_found_so() {
    for sharing in MODES {
        for (gract, percent) in [(20.0, 15.0), (75.0, 60.0)] {
            let real = vec![task("a", gract, percent)];
            let [after] = &steps(&[typical()], &[true], sharing, &under(&real, sharing), 20)[..] else {
                panic!()
            };
            assert!((smact(&after.metrics) - percent).abs() < 0.5, "{sharing} {percent}: {after:?}");
        }
    }
    let real = vec![task("a", 15.0, 12.0); 4];
    let after = steps(&vec![typical(); 4], &[true; 4], Mode::Mps, &under(&real, Mode::Mps), 20);
    assert!(after.iter().all(|task| (10.0..20.0).contains(&smact(&task.metrics))), "{after:?}");
}

#[test]
fn an_idle_gpu_makes_no_task_lighter_than_a_quarter_of_a_typical_one() {
    let idle = [Metrics::default(), under(&[task("a", 0.0, 0.0)], Mode::Mps)];
    let after = idle.map(|seen| smact(&steps(&[typical()], &[true], Mode::Mps, &seen, 50)[0].metrics));
    assert_eq!(after, [33.0, 8.25]);
}

#[test]
fn what_is_known_of_others_stays_and_is_taken_off() {
    for sharing in MODES {
        let known = task("known", 30.0, 25.0);
        let real = under(&[known.clone(), task("a", 25.0, 20.0)], sharing);
        let after = steps(&[known.clone(), typical()], &[false, true], sharing, &real, 20);
        assert_eq!(after[0], known);
        assert!((smact(&after[1].metrics) - 20.0).abs() < 2.0, "{sharing}: {after:?}");
        // All are known: nothing is assumed of them.
        assert_eq!(steps(&after, &[false, false], sharing, &Metrics::default(), 1), after);
    }
}

#[test]
fn what_is_not_seen_or_not_known_of_a_neighbour_is_not_learned() {
    let seen = |smact_pct| Metrics { smact_pct, gpu_util_pct: Some(Stat::of(99.0)), ..Metrics::default() };
    // Before Hopper the driver tells utilisation alone.
    assert_eq!(steps(&[typical()], &[true], Mode::Mps, &seen(None), 5), [typical()]);
    let nan = seen(Some(Stat::of(f64::NAN)));
    assert_eq!(steps(&[typical()], &[true], Mode::Mps, &nan, 5), [typical()]);
    let poor = Profile { name: "poor".into(), metrics: seen(None), ..Profile::default() };
    let both = [poor, typical()];
    assert_eq!(steps(&both, &[false, true], Mode::Mps, &seen(Some(Stat::of(90.0))), 5), both);
}

#[test]
fn a_full_gpu_hides_no_more_than_a_part() {
    for sharing in MODES {
        for k in 2..=4 {
            let full = under(&vec![task("a", 100.0, 100.0); k], sharing);
            let after = steps(&vec![typical(); k], &vec![true; k], sharing, &full, 50);
            let sum: f64 = after.iter().map(|task| smact(&task.metrics)).sum();
            let least = smact(&typical().metrics) * k as f64;
            assert!(sum <= (HIDDEN * smact(&full)).max(least) + 1e-6, "{k} {sharing}: {sum}");
        }
    }
}

/// What five tasks do that fill a GPU together is told by how slow they are there.
#[test]
fn tasks_known_to_be_slow_on_a_full_gpu_want_more_than_it_shows() {
    let sum = |tasks: &[Profile]| tasks.iter().map(|task| smact(&task.metrics)).sum::<f64>();
    let real = vec![task("a", 75.0, 60.0); 5];
    let members: Vec<Member<'_>> = real.iter().map(Member::of).collect();
    let group = Group { gpu: &GpuType::named("NVIDIA H200"), sharing: Mode::Mps, members: &members };
    let progress = SlowdownModel::shipped().expect(&group).unwrap();
    let seen = under(&real, Mode::Mps);
    let after = |going: &[Option<Going>]| {
        sum(&steps_going(&vec![typical(); 5], &[true; 5], Mode::Mps, (&seen, going), 50))
    };
    let bounds: Vec<_> = progress.iter().map(|progress| Some(Going::AtMost(*progress))).collect();
    let (hidden, known) = (after(&[]), after(&bounds));
    assert!((known - 300.0).abs() < 15.0 && hidden < 200.0, "{hidden} {known}");
    // A bound that says nothing changes nothing, and one of those that stand still is no measure of the others.
    assert_eq!(after(&[Some(Going::AtMost(1.0)); 5]), hidden);
    assert!(after(&[Some(Going::AtMost(0.0)), None, None, None, None]).is_finite());
}

/// Nothing of a GPU's activity tells so once it is full.
#[test]
fn a_neighbour_that_is_faster_than_expected_says_that_too_much_is_assumed() {
    let resident = task("resident", 98.0, 91.0);
    let real = vec![resident.clone(), task("a", 98.0, 91.0)];
    let members: Vec<Member<'_>> = real.iter().map(Member::of).collect();
    let gpu = GpuType::named("NVIDIA H200");
    let group = Group { gpu: &gpu, sharing: Mode::Mps, members: &members };
    let truth = SlowdownModel::shipped().expect(&group).unwrap()[0];
    let seen = Metrics {
        smact_pct: Some(Stat::of(99.0)),
        gract_pct: Some(Stat::of(99.0)),
        ..under(&real, Mode::Mps)
    };
    let expected = |going: &[Option<Going>]| {
        let mut heavy = task("a", 99.0, 99.0);
        (heavy.metrics.smocc_pct, heavy.metrics.drama_pct) = (Some(Stat::of(60.0)), Some(Stat::of(60.0)));
        let after = steps_going(&[resident.clone(), heavy], &[false, true], Mode::Mps, (&seen, going), 20);
        let members: Vec<Member<'_>> = after.iter().map(Member::of).collect();
        let group = Group { gpu: &gpu, sharing: Mode::Mps, members: &members };
        SlowdownModel::shipped().expect(&group).unwrap()[0]
    };
    let (unknown, known) = (expected(&[]), expected(&[Some(Going::At(truth)), None]));
    assert!(known > 0.85 * truth && known >= unknown, "{unknown} {known} {truth}");
}

/// Else each that came would make all look lighter, and let one more come.
#[test]
fn a_full_gpu_says_of_nobody_that_it_is_light() {
    let full =
        Metrics { smact_pct: Some(Stat::of(99.0)), gract_pct: Some(Stat::of(98.0)), ..Metrics::default() };
    for sharing in MODES {
        for k in 2..=8 {
            for heavy in [None, Some(task("heavy", 95.0, 90.0))] {
                let mut tasks = vec![typical(); k];
                let mut assumed = vec![true; k];
                if let Some(heavy) = heavy {
                    (tasks[0], assumed[0]) = (heavy, false);
                }
                for (before, after) in tasks.iter().zip(steps(&tasks, &assumed, sharing, &full, 50)) {
                    let (before, after) = (smact(&before.metrics), smact(&after.metrics));
                    assert!(after >= before, "{k} {sharing}: {after} after {before}");
                }
            }
        }
    }
}

#[test]
fn several_companies_tell_tasks_apart() {
    for sharing in MODES {
        let real = [task("light", 12.0, 11.0), task("middle", 30.0, 25.0), task("heavy", 60.0, 50.0)];
        let mut told = [typical(), typical(), typical()];
        for _ in 0..30 {
            for pair in [[0, 1], [1, 2], [0, 2]] {
                let of = |tasks: &[Profile]| pair.map(|at| tasks[at].clone());
                let after = steps(&of(&told), &[true; 2], sharing, &under(&of(&real), sharing), 1);
                pair.iter().zip(after).for_each(|(at, task)| told[*at] = task);
            }
        }
        for (told, real) in told.iter().zip(&real) {
            let (told, smact) = (smact(&told.metrics), smact(&real.metrics));
            assert!((told - smact).abs() < 5.0, "{} {sharing}: {told} for {smact}", real.name);
        }
    }
}

#[test]
fn of_more_than_the_model_takes_nothing_is_said() {
    let tasks = vec![typical(); MOST_MEMBERS + 1];
    let members: Vec<Member<'_>> = tasks.iter().map(Member::of).collect();
    let group = Group { gpu: &GpuType::named("h200"), sharing: Mode::Mps, members: &members };
    let assumed = vec![true; tasks.len()];
    assert_eq!(refined(&SlowdownModel::shipped(), &group, &assumed, &typical().metrics, &[]), None);
}

fn metrics() -> impl Strategy<Value = Metrics> {
    let stat = || proptest::option::of((0.0..105.0).prop_map(Stat::of));
    (stat(), stat(), stat(), stat()).prop_map(|(gract_pct, smact_pct, smocc_pct, drama_pct)| Metrics {
        gract_pct,
        smact_pct,
        smocc_pct,
        drama_pct,
        ..Metrics::default()
    })
}

/// Whatever a driver may say.
fn anything() -> impl Strategy<Value = Metrics> {
    let stat = || proptest::option::of(any::<f64>().prop_map(Stat::of));
    (stat(), stat(), metrics()).prop_map(|(gract_pct, smact_pct, rest)| Metrics {
        gract_pct,
        smact_pct,
        ..rest
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn values_stay_finite_and_within_bounds(
        members in prop::collection::vec((metrics(), any::<bool>()), 1..6),
        seen in anything(),
        mps: bool,
    ) {
        let sharing = if mps { Mode::Mps } else { Mode::TimeSlice };
        let task = |metrics| Profile { name: "a".into(), metrics, ..Profile::default() };
        let tasks: Vec<Profile> = members.iter().map(|(metrics, _)| task(*metrics)).collect();
        let assumed: Vec<bool> = members.iter().map(|(_, assumed)| *assumed).collect();
        let after = steps(&tasks, &assumed, sharing, &seen, 2);
        prop_assert_eq!(&steps(&tasks, &assumed, sharing, &seen, 2), &after);
        for ((before, after), assumed) in tasks.iter().zip(&after).zip(assumed) {
            prop_assert!(after.check().is_ok(), "{after:?}");
            prop_assert!(assumed || before == after);
            for kind in kinds(sharing) {
                let [before, after, typical] =
                    [before, after, &typical()].map(|of| (kind.of)(&of.metrics).map(|stat| stat.mean));
                let (Some(after), Some(typical)) = (after, typical) else { continue };
                prop_assert!(before == Some(after) || (LEAST * typical..=FULL).contains(&after), "{after}");
            }
        }
    }
}

#[test]
fn kernels_that_fill_more_of_the_sms_are_taken_to_be_fewer() {
    let traffic_of = |smact| traffic(&task("a", 60.0, smact).metrics).unwrap().mean;
    assert!((traffic_of(40.0) - TRAFFIC).abs() < 1e-9);
    // A tenth of the SMs is free, not a third: a task weighs 3.3^.86 times as much, of which traffic is the part that the shipped
    // exponents, .56 of free SMs and .39 of traffic, leave.
    let times = (TRAFFIC / traffic_of(54.0)).powf(0.39) * (10.0_f64 / 3.0).powf(0.56);
    assert!((times / (10.0_f64 / 3.0).powf(0.86) - 1.0).abs() < 0.01, "{times}");
    // Counters near the end are noise.
    assert_eq!(traffic_of(59.0), traffic_of(60.0));
    // One that is assumed gets it with its activity.
    let after = steps(&[typical()], &[true], Mode::Mps, &task("seen", 60.0, 55.0).metrics, 20);
    assert!(after[0].metrics.pcie_rx_mib_s.unwrap().mean < 0.6 * TRAFFIC, "{:?}", after[0].metrics);
}

#[test]
fn little_by_little_is_notable_at_last() {
    let mut guess = Guess::default();
    let changes: Vec<bool> =
        [34.0, 34.9, 35.1, 36.0, 31.0].map(|smact| guess.becomes(task("a", 60.0, smact))).into();
    assert_eq!(changes, [false, false, true, false, true]);
    assert_eq!(smact(&guess.profile().metrics), 31.0);
}

#[test]
fn of_what_may_be_or_not_only_what_holds_either_way_is_taken() {
    let of = |smact: f64| task("a", 60.0, smact).metrics;
    let middle = |before: f64, with: f64, without: f64| {
        let one_way = between(&of(before), &of(without), &of(with));
        assert_eq!(one_way, between(&of(before), &of(with), &of(without)));
        smact(&one_way)
    };
    // Both say more, or both less: the nearer. They contradict each other: as it was.
    assert_eq!((middle(40.0, 50.0, 70.0), middle(40.0, 10.0, 30.0)), (50.0, 30.0));
    assert_eq!((middle(40.0, 20.0, 60.0), middle(40.0, 40.0, 40.0)), (40.0, 40.0));
    // What one of them does not know stays.
    let unseen = Metrics { smact_pct: None, ..of(0.0) };
    assert_eq!(smact(&between(&of(40.0), &of(60.0), &unseen)), 40.0);
}

/// What is assumed after a task has come to others or left them, `times` times; `real`: all tasks as they are, the last of which comes.
fn after_changes(real: &[Profile], assumed: &[Profile], part: Part, times: usize) -> Vec<Profile> {
    let (model, gpu) = (SlowdownModel::shipped(), GpuType::named("NVIDIA H200"));
    let progress = |tasks: &[Profile]| {
        let members: Vec<Member<'_>> = tasks.iter().map(Member::of).collect();
        model.expect(&Group { gpu: &gpu, sharing: Mode::Mps, members: &members }).unwrap()
    };
    let (with, without) = (progress(real), progress(&real[..real.len() - 1]));
    let stayed = without.iter().zip(&with).map(|(without, with)| match part {
        Part::Left => without / with,
        _ => with / without,
    });
    let stayed = stayed.map(|ratio| Part::Stayed(Some(SpeedRatio { ratio, variance: 0.001 })));
    let parts: Vec<Part> = stayed.chain([part]).collect();
    let mut tasks = assumed.to_vec();
    for _ in 0..times {
        let members: Vec<Member<'_>> = tasks.iter().map(Member::of).collect();
        let all = Group { gpu: &gpu, sharing: Mode::Mps, members: &members };
        let Some(metrics) = weighed(&model, &all, &parts, &vec![true; parts.len()]) else { break };
        for (task, metrics) in tasks.iter_mut().zip(metrics) {
            task.metrics = metrics;
        }
    }
    tasks
}

#[test]
fn what_a_newcomer_costs_and_what_one_that_leaves_gives_back_tells_what_it_does() {
    // The GPU is full with it and without it, so that its activity tells nothing.
    let there = || [task("a", 90.0, 80.0), task("b", 80.0, 60.0), task("c", 80.0, 50.0)];
    for part in [Part::Came, Part::Left] {
        for (gract, percent) in [(25.0, 10.0), (90.0, 75.0)] {
            let real: Vec<Profile> = there().into_iter().chain([task("new", gract, percent)]).collect();
            let assumed: Vec<Profile> = there().into_iter().chain([typical()]).collect();
            let after = after_changes(&real, &assumed, part, 10);
            let (before, found) = (smact(&typical().metrics), smact(&after[3].metrics));
            assert!((found - percent).abs() < 0.5 * (before - percent).abs(), "{part:?} {percent}: {found}");
            assert_eq!(&after[..3], &assumed[..3], "those that stay are as they were");
        }
    }
}

#[test]
fn a_change_that_tells_nothing_changes_nothing() {
    let assumed = vec![task("light", 15.0, 5.0), typical()];
    // As expected.
    assert_eq!(after_changes(&assumed, &assumed, Part::Came, 1), assumed);
    let (model, gpu) = (SlowdownModel::shipped(), GpuType::named("NVIDIA H200"));
    let members: Vec<Member<'_>> = assumed.iter().map(Member::of).collect();
    let all = Group { gpu: &gpu, sharing: Mode::Mps, members: &members };
    // Nothing was measured, or nothing is assumed of the one that came.
    assert_eq!(weighed(&model, &all, &[Part::Stayed(None), Part::Came], &[true; 2]), None);
    let seen = Some(SpeedRatio { ratio: 0.5, variance: 0.01 });
    let known = weighed(&model, &all, &[Part::Stayed(seen), Part::Came], &[true, false]);
    assert!(known.is_none_or(|metrics| metrics.iter().zip(&assumed).all(|(m, a)| *m == a.metrics)));
    // Hardly sure, hardly otherwise.
    let unsure = Some(SpeedRatio { ratio: 0.8, variance: 4.0 });
    let after = weighed(&model, &all, &[Part::Stayed(unsure), Part::Came], &[true; 2]);
    let after = after.map_or(33.0, |metrics| smact(&metrics[1]));
    assert!((30.0..40.0).contains(&after), "{after}");
}

proptest! {
    /// Whatever was counted, what is assumed stays within its bounds.
    #[test]
    fn a_change_leaves_what_is_assumed_within_bounds(
        (tasks, ratios) in (1..6_usize).prop_flat_map(|k| (
            prop::collection::vec((1.0..100.0_f64, 0.0..1.0_f64), k),
            prop::collection::vec((1e-6..1e6_f64, 0.0..10.0_f64, 0..4_u8), k),
        )),
    ) {
        let (model, gpu) = (SlowdownModel::shipped(), GpuType::named("NVIDIA H200"));
        let tasks: Vec<Profile> = tasks.iter().map(|(g, s)| task("t", *g, g * s)).collect();
        let members: Vec<Member<'_>> = tasks.iter().map(Member::of).collect();
        let parts: Vec<Part> = ratios.iter().map(|(ratio, variance, part)| match part {
            0 => Part::Came,
            1 => Part::Left,
            2 => Part::Stayed(None),
            _ => Part::Stayed(Some(SpeedRatio { ratio: *ratio, variance: *variance })),
        }).collect();
        for sharing in MODES {
            let all = Group { gpu: &gpu, sharing, members: &members };
            let meant = vec![true; parts.len()];
            for (metrics, part) in weighed(&model, &all, &parts, &meant).unwrap_or_default().iter().zip(&parts) {
                let bound = LEAST * smact(&typical().metrics);
                let within = (bound..=FULL).contains(&smact(metrics)) || matches!(part, Part::Stayed(_));
                prop_assert!(within, "{part:?} {metrics:?}");
            }
        }
    }
}
