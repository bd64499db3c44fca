use super::*;
use crate::group::{GpuType, Member};
use crate::profile::{Metrics, Profile, Rate, Stat};
use proptest::prelude::*;

fn task(name: &str, gract: f64, smact: f64) -> Profile {
    Profile {
        name: name.into(),
        rate: Some(Rate {
            per_s: 10.0,
            source: Some(crate::profile::RateSource::Heartbeat),
            ..Rate::default()
        }),
        metrics: Metrics {
            gract_pct: Some(Stat::of(gract)),
            smact_pct: Some(Stat::of(smact)),
            ..Metrics::default()
        },
        ..Profile::default()
    }
}

fn progress(model: &SlowdownModel, gpu: &GpuType, sharing: Mode, members: &[Member<'_>]) -> Vec<f64> {
    let forecast = model.predict(&Group { gpu, sharing, members }).unwrap();
    forecast.tasks.iter().map(|t| t.progress.expected).collect()
}

#[test]
fn tasks_that_fill_the_gpu_divide_it() {
    let gpu = GpuType::named("unheard of");
    let full = task("full", 100.0, 100.0);
    for (sharing, total) in [(Mode::TimeSlice, 1.0), (Mode::Mps, 1.15)] {
        let p = progress(&SlowdownModel::new(), &gpu, sharing, &[Member::of(&full); 2]);
        assert!((p[0] - p[1]).abs() < 1e-9);
        assert!((p[0] + p[1] - total).abs() < 0.02, "{sharing}: {p:?}");
    }
    let alone = progress(&SlowdownModel::new(), &gpu, Mode::Mps, &[Member::of(&full)]);
    assert!((alone[0] - 1.0).abs() < 1e-9);
}

#[test]
fn a_light_task_waits_and_a_learned_one_is_known() {
    let gpu = GpuType::named("H200");
    let (heavy, light) = (task("heavy", 100.0, 85.0), task("light", 36.0, 15.0));
    let members = [Member::of(&heavy), Member::of(&light)];
    let group = Group { gpu: &gpu, sharing: Mode::TimeSlice, members: &members };
    let mut model = SlowdownModel::new();
    let before = model.predict(&group).unwrap();
    // One H200 gave 0.65 and 0.65 (bench/h200/results/collocation-time-slice.json): the light one waits for each answer,
    // which these numbers do not tell.
    let held = |p: f64, b: &crate::group::Bounded| (b.lower..=b.upper).contains(&p);
    assert!((before.tasks[0].progress.expected - 0.65).abs() < 0.15, "{before:?}");
    assert!(before.tasks[1].progress.expected < 0.95 && held(0.7, &before.tasks[1].progress), "{before:?}");
    for _ in 0..6 {
        model.observe(&group, &Observed::Rates(vec![Some(5.2), Some(9.9)])).unwrap();
    }
    let after = model.predict(&group).unwrap();
    assert!((after.tasks[0].progress.expected - 0.52).abs() < 0.05, "{after:?}");
    assert!((after.tasks[1].progress.expected - 0.99).abs() < 0.05, "{after:?}");
    let width = |f: &Forecast| f.tasks[1].progress.upper / f.tasks[1].progress.lower;
    assert!(width(&after) < width(&before));
    assert!((after.tasks[1].prior - before.tasks[1].prior).abs() < 1e-12);
    assert_eq!(after.tasks[1].observations, 6);
}

#[test]
fn leaving_sms_free_costs_little_beside_a_task_that_leaves_none() {
    let gpu = GpuType::named("H200");
    // One H200 under MPS: `gpt2_decode` kept 0.71 beside `gnn`, `mlp_tabular` 0.88; `gpt2_decode` 0.33 beside `gemm`.
    let (gnn, mut gemm) = (task("gnn", 100.0, 90.0), task("gemm", 100.0, 97.0));
    gemm.metrics.tensor_pct = Some(Stat::of(94.0));
    for model in [SlowdownModel::new(), SlowdownModel::shipped()] {
        for (light, other, least) in [
            (task("gpt2_decode", 18.0, 1.8), &gnn, 0.4),
            (task("mlp_tabular", 17.0, 3.2), &gnn, 0.4),
            (task("gpt2_decode", 18.0, 1.8), &gemm, 0.05),
        ] {
            let p = progress(&model, &gpu, Mode::Mps, &[Member::of(&light), Member::of(other)]);
            assert!(p[0] > least && p[0] < 0.95, "{} beside {}: {p:?}", light.name, other.name);
        }
        // Of two that both fill the SMs, the one that fills them more wins.
        let p = progress(&model, &gpu, Mode::Mps, &[Member::of(&gnn), Member::of(&gemm)]);
        assert!(p[1] > 2.0 * p[0], "{p:?}");
    }
}

#[test]
fn an_unsound_solo_rate_is_found_out_and_learned() {
    let gpu = GpuType::named("V100");
    let (a, mut b) = (task("a", 97.0, 97.0), task("b", 50.0, 50.0));
    // Its program became four times as fast since it was profiled.
    b.rate = Some(Rate { per_s: 2.5, ..Rate::default() });
    let members = [Member::of(&a), Member::of(&b)];
    let group = Group { gpu: &gpu, sharing: Mode::Mps, members: &members };
    let mut model = SlowdownModel::new();
    for _ in 0..8 {
        model.observe(&group, &Observed::Rates(vec![Some(7.0), Some(8.0)])).unwrap();
    }
    let forecast = model.predict(&group).unwrap();
    let b = &forecast.tasks[1];
    assert!((b.rate.unwrap().expected - 8.0).abs() < 0.6, "{b:?}");
    assert!(b.progress.expected < 1.1, "{b:?}");
    assert!(
        forecast.reasons.iter().any(|r| r.contains("contradict its solo rate")),
        "{:?}",
        forecast.reasons
    );
}

#[test]
fn a_task_that_never_ran_alone_has_its_solo_rate_learned() {
    let gpu = GpuType::named("H200");
    let (a, mut b) = (task("a", 97.0, 97.0), task("b", 97.0, 97.0));
    b.rate = None;
    let members = [Member::of(&a), Member::of(&b)];
    let group = Group { gpu: &gpu, sharing: Mode::TimeSlice, members: &members };
    let mut model = SlowdownModel::new();
    assert_eq!(model.predict(&group).unwrap().tasks[1].rate, None);
    model.observe(&group, &Observed::Rates(vec![Some(4.6), Some(23.0)])).unwrap();
    let alone = [Member::of(&b)];
    let alone = model.predict(&Group { members: &alone, ..group }).unwrap();
    let rate = alone.tasks[0].rate.unwrap();
    assert!((rate.expected - 50.0).abs() < 4.0, "{rate:?}");
    assert!(rate.lower < 46.0 && rate.upper > 54.0, "{rate:?}");
}

#[test]
fn what_is_missing_widens_bounds_and_is_said() {
    let gpu = GpuType::named("H200");
    let whole = task("whole", 90.0, 80.0);
    let bare = Profile { name: "bare".into(), ..Profile::default() };
    let mut smi = bare.clone();
    smi.name = "smi".into();
    smi.metrics.gpu_util_pct = Some(Stat::of(90.0));
    let mut smact = bare.clone();
    smact.name = "smact".into();
    smact.metrics.smact_pct = Some(Stat::of(80.0));
    let model = SlowdownModel::new();
    let width = |profile: &Profile| {
        let members = [Member::of(&whole), Member::of(profile)];
        let forecast = model.predict(&Group { gpu: &gpu, sharing: Mode::Mps, members: &members }).unwrap();
        let p = forecast.tasks[1].progress;
        (p.upper.min(1.0) / p.lower, forecast.reasons.join("\n"))
    };
    let known = width(&whole).0;
    for (profile, said) in [
        (&smi, "only nvidia-smi"),
        (&smact, "engine time is guessed"),
        (&bare, "nothing is known of its activity"),
    ] {
        let (width, reasons) = width(profile);
        assert!(width > known, "{}: {width} {known}", profile.name);
        assert!(reasons.contains(said), "{reasons}");
    }
    let other = GpuType::named("RTX 5090");
    let members = [Member::of(&whole)];
    let forecast = model.predict(&Group { gpu: &other, sharing: Mode::Mps, members: &members }).unwrap();
    assert!(
        forecast.reasons.iter().any(|r| r.contains("RTX-5090 was never measured")),
        "{:?}",
        forecast.reasons
    );
}

#[test]
fn a_profile_of_another_type_is_doubted_and_said() {
    let gpu = GpuType::named("H200");
    let (other, mut own) = (task("other", 90.0, 80.0), task("own", 90.0, 80.0));
    let forecast = |own: &Profile| {
        let members = [Member::of(own), Member::of(&other)];
        let group = Group { gpu: &gpu, sharing: Mode::Mps, members: &members };
        SlowdownModel::new().predict(&group).unwrap()
    };
    let width = |own: &Profile| {
        let task = forecast(own).tasks.remove(0);
        (task.progress.upper / task.progress.lower, task.rate.unwrap())
    };
    let unsaid = forecast(&own);
    for product in ["NVIDIA H200", "Virtual H200"] {
        own.gpu = Some(product.into());
        assert_eq!(forecast(&own), unsaid);
    }
    let (progress, rate) = width(&own);
    own.gpu = Some("Tesla V100-SXM2-16GB".into());
    let (wider, elsewhere) = width(&own);
    assert!(wider > progress, "{wider} {progress}");
    assert!(elsewhere.upper / elsewhere.lower > 1.1 * rate.upper / rate.lower, "{elsewhere:?} {rate:?}");
    let features = Features::of(&own, None, Mode::Mps, &gpu);
    assert_eq!(features.rate.map(|(_, sd)| sd), Some(features::FROM_ELSEWHERE));
    let said = forecast(&own).reasons.join("\n");
    assert!(said.contains("own: it was measured on another type of GPU (Tesla V100-SXM2-16GB)"), "{said}");
}

/// Windows of a pair: its tasks, how far they got, how often.
type Windows = ([&'static str; 2], [f64; 2], usize);

/// A model that was taught these windows in so many calls.
fn taught(calls: &[&[Windows]]) -> SlowdownModel {
    let gpu = GpuType::named("H200");
    let mut model = SlowdownModel::shipped();
    for windows in calls {
        let tasks: Vec<[Profile; 2]> =
            windows.iter().map(|(names, ..)| names.map(|name| task(name, 90.0, 60.0))).collect();
        let members: Vec<[Member<'_>; 2]> =
            tasks.iter().map(|pair| [0, 1].map(|i| Member::of(&pair[i]))).collect();
        let mut observations = Vec::new();
        for ((_, progress, times), members) in windows.iter().zip(&members) {
            let group = Group { gpu: &gpu, sharing: Mode::Mps, members };
            let observed = Observed::Progress(progress.map(Some).to_vec());
            observations.extend((0..*times).map(|_| (group, observed.clone())));
        }
        model.teach(&observations).unwrap();
    }
    model
}

#[test]
fn what_was_learned_of_a_class_outlasts_the_rows_that_are_kept() {
    let (known, others) = ((["a", "b"], [0.25, 0.98], 40), (["c", "d"], [0.6, 0.6], 210));
    let new = (["a", "e"], [0.6, 0.6], 1);
    let gpu = GpuType::named("H200");
    let (a, b) = (task("a", 90.0, 60.0), task("b", 90.0, 60.0));
    let members = [Member::of(&a), Member::of(&b)];
    let told = |model: &SlowdownModel| {
        let forecast = model.predict(&Group { gpu: &gpu, sharing: Mode::Mps, members: &members }).unwrap();
        forecast.tasks.iter().map(|task| (task.progress.expected, task.observations)).collect::<Vec<_>>()
    };
    let once = told(&taught(&[&[known, others, new]]));
    assert!((once[0].0 - 0.25).abs() < 0.03 && once[0].1 == 41, "{once:?}");
    for calls in
        [&[&[known, others][..], &[new]][..], &[&[others, known], &[new]], &[&[new], &[known], &[others]]]
    {
        let told = told(&taught(calls));
        for (told, once) in told.iter().zip(&once) {
            assert!((told.0 - once.0).abs() < 0.02 && told.1 == once.1, "{calls:?}: {told:?} {once:?}");
        }
    }
}

#[test]
fn a_file_brings_back_the_model_and_others_are_refused() {
    let gpu = GpuType::named("H200");
    let (a, b) = (task("a", 97.0, 90.0), task("b", 40.0, 20.0));
    let members = [Member::of(&a), Member::of(&b)];
    let group = Group { gpu: &gpu, sharing: Mode::Mps, members: &members };
    let mut model = SlowdownModel::new();
    model.observe(&group, &Observed::Progress(vec![Some(0.8), None])).unwrap();
    assert_eq!(model.observations(&group), 1);
    let text = model.to_json().unwrap();
    let again = SlowdownModel::read(&text).unwrap();
    assert_eq!(again.predict(&group).unwrap(), model.predict(&group).unwrap());
    let error = |text: &str| SlowdownModel::read(text).unwrap_err().to_string();
    let other = text.replacen(&format!("\"version\":{VERSION}"), "\"version\":99", 1);
    let said = format!("version 99, this program works with version {VERSION}");
    assert!(error(&other).contains(&said), "{}", error(&other));
    assert!(error("{}").contains("not a model of interference"));
    let broken = text.replacen("\"cov\":[[", "\"cov\":[[-", 1);
    assert!(error(&broken).contains("H200/mps"), "{}", error(&broken));
}

#[test]
fn a_class_costs_less_than_a_kibibyte() {
    assert!(size_of::<domain::Class>() < 1024, "{}", size_of::<domain::Class>());
    let gpu = GpuType::named("H200");
    let mut model = SlowdownModel::new();
    let names: Vec<String> = (0..50).map(|i| format!("task {i}")).collect();
    for pair in names.windows(2) {
        let (a, b) = (task(&pair[0], 97.0, 90.0), task(&pair[1], 40.0, 20.0));
        let members = [Member::of(&a), Member::of(&b)];
        model
            .observe(
                &Group { gpu: &gpu, sharing: Mode::Mps, members: &members },
                &Observed::Progress(vec![Some(0.8), Some(0.6)]),
            )
            .unwrap();
    }
    let domain = model.domains.values().next().unwrap();
    assert_eq!(domain.classes.len(), 50);
}

#[test]
fn nonsense_that_was_observed_is_skipped_and_named() {
    let gpu = GpuType::named("H200");
    let a = task("a", 97.0, 90.0);
    let members = [Member::of(&a), Member::of(&a)];
    let group = Group { gpu: &gpu, sharing: Mode::Mps, members: &members };
    let mut model = SlowdownModel::new();
    for bad in [f64::NAN, 0.0, -1.0, f64::INFINITY] {
        let learned = model.observe(&group, &Observed::Rates(vec![Some(bad), None])).unwrap();
        assert_eq!((learned.used, learned.skipped.len()), (0, 1));
    }
    assert_eq!(model, SlowdownModel::new());
    assert!(model.observe(&group, &Observed::Rates(vec![])).unwrap_err().to_string().contains("0 values"));
    let none = Group { members: &[], ..group };
    assert!(model.predict(&none).unwrap_err().to_string().contains("0 members"));
    let much = [Member { threads_pct: Some(150.0), ..members[0] }];
    let much = Group { members: &much, ..group };
    assert!(model.predict(&much).unwrap_err().to_string().contains("thread percentage of 150"));
}

fn any_task(name: &'static str) -> impl Strategy<Value = Profile> {
    let pct = || prop::option::of(0.0..=100.0_f64);
    (pct(), pct(), pct(), pct(), pct(), prop::option::of(1.0..1e5_f64), prop::option::of(1e-3..1e5_f64))
        .prop_map(move |(gract, smact, smocc, dram, util, memory, rate)| Profile {
            name: name.into(),
            rate: rate.map(|per_s| Rate { per_s, ..Rate::default() }),
            metrics: Metrics {
                gract_pct: gract.map(Stat::of),
                smact_pct: smact.map(Stat::of),
                smocc_pct: smocc.map(Stat::of),
                drama_pct: dram.map(Stat::of),
                gpu_util_pct: util.map(Stat::of),
                memory_mib: memory.map(Stat::of),
                ..Metrics::default()
            },
            ..Profile::default()
        })
}

fn any_mode() -> impl Strategy<Value = Mode> {
    prop_oneof![Just(Mode::TimeSlice), Just(Mode::Mps)]
}

proptest! {
    #[test]
    fn the_prior_is_a_share_that_no_newcomer_raises_in_any_order(
        sharing in any_mode(), product in prop_oneof![Just("H200"), Just("V100"), Just("other")],
        tasks in (any_task("a"), any_task("b"), any_task("c"), any_task("d")),
    ) {
        let gpu = GpuType { power: None, ..GpuType::named(product) };
        let tasks = [tasks.0, tasks.1, tasks.2, tasks.3];
        let members: Vec<Member<'_>> = tasks.iter().map(Member::of).collect();
        let prior = |members: &[Member<'_>]| -> Vec<f64> {
            let forecast = SlowdownModel::new().predict(&Group { gpu: &gpu, sharing, members }).unwrap();
            forecast.tasks.iter().map(|t| t.prior).collect()
        };
        let mut before = prior(&members[..1]);
        for k in 2..=4 {
            let after = prior(&members[..k]);
            prop_assert!(after.iter().all(|p| *p > 0.0 && *p <= 1.0), "{after:?}");
            for (a, b) in after.iter().zip(&before) {
                prop_assert!(*a <= b + 1e-6, "{after:?} {before:?}");
            }
            before = after;
        }
        let mut turned = members.clone();
        turned.reverse();
        let again = prior(&turned);
        for (a, b) in again.iter().rev().zip(&before) {
            prop_assert!((a - b).abs() < 1e-5, "{again:?} {before:?}");
        }
    }

    #[test]
    fn whatever_is_observed_the_state_stays_sound(
        sharing in any_mode(), threads in prop::option::of(1.0..=100.0_f64),
        tasks in (any_task("a"), any_task("b"), any_task("c")),
        observed in prop::collection::vec((any::<bool>(), 0..4_usize, any::<f64>(), 1e-9..1e9_f64, 0.01..1.2_f64), 1..25),
    ) {
        let gpu = GpuType::named("H200");
        let members = [Member { threads_pct: threads, ..Member::of(&tasks.0) }, Member::of(&tasks.1), Member::of(&tasks.2)];
        let mut model = SlowdownModel::new();
        for (rates, k, wild, large, sane) in observed {
            let members = &members[..k.clamp(1, 3)];
            let values: Vec<Option<f64>> = [Some(wild), Some(large), Some(sane)].into_iter().take(members.len()).collect();
            let observed = if rates { Observed::Rates(values) } else { Observed::Progress(values) };
            let group = Group { gpu: &gpu, sharing, members };
            model.observe(&group, &observed).unwrap();
            let forecast = model.predict(&group).unwrap();
            for t in &forecast.tasks {
                let p = t.progress;
                prop_assert!(p.expected > 0.0 && p.expected <= MOST && p.lower <= p.expected && p.expected <= p.upper, "{t:?}");
            }
            prop_assert!(model.domains.values().all(Domain::is_sound));
        }
        let again = SlowdownModel::read(&model.to_json().unwrap()).unwrap();
        prop_assert_eq!(again.domains.len(), model.domains.len());
    }
}

#[test]
fn a_class_that_is_forgotten_does_not_come_back() {
    let gpu = GpuType::named("H200");
    let (gone, kept, other) = (task("gone", 60.0, 30.0), task("kept", 80.0, 50.0), task("other", 50.0, 20.0));
    let mut model = SlowdownModel::new();
    let see = |model: &mut SlowdownModel, pair: [&Profile; 2]| {
        let members = pair.map(Member::of);
        let group = Group { gpu: &gpu, sharing: Mode::Mps, members: &members };
        for _ in 0..20 {
            model.observe(&group, &Observed::Progress(vec![Some(0.7), Some(0.8)])).unwrap();
        }
    };
    see(&mut model, [&gone, &kept]);
    see(&mut model, [&kept, &other]);
    model.forget("gone");
    // It is fitted anew to the last rows meanwhile.
    see(&mut model, [&kept, &other]);
    see(&mut model, [&kept, &other]);
    let classes = || model.domains.values().flat_map(|domain| domain.classes.keys());
    assert!(classes().any(|class| class == "kept") && classes().all(|class| class != "gone"));
    assert!(!model.to_json().unwrap().contains("gone"));
}

#[test]
fn old_files_still_load_and_nothing_known_leaves_no_trace() {
    let shipped = include_str!("../../models/shipped.json");
    let mut model = SlowdownModel::read(shipped).unwrap();
    assert_eq!(model.to_json().unwrap(), shipped.trim_end());
    assert!(!model.knows(7));
    model.remember(7);
    model.forget_all_classes();
    let again = SlowdownModel::read(&model.to_json().unwrap()).unwrap();
    assert!(again.knows(7) && !again.knows(8));
    assert_eq!(again, model);
}
