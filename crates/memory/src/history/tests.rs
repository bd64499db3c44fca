use super::*;
use crate::auto::{self, Question, Settings};
use crate::{MiB, Parts, Tier};
use proptest::prelude::*;

fn place(gpu: &str) -> Place {
    Place { gpu: gpu.into(), framework: "torch 2.11".into(), driver: "580".into() }
}

fn signature(program: &str, batch: u64) -> Signature {
    let command = ["python".to_owned(), program.to_owned(), "--bs".to_owned(), batch.to_string()];
    Signature::of(&Facts { command: &command, gpus: 1, ..Facts::default() })
}

fn estimate(tier: Tier, context: u64, net: u64, upper_net: u64) -> Estimate {
    Estimate {
        need_mib: MiB(context + net),
        use_mib: MiB(context + net),
        upper_mib: MiB(context + upper_net),
        tier,
        source: format!("allocator/{tier}"),
        family: "cnn".into(),
        parts: Some(Parts {
            context_mib: MiB(context),
            allocated_mib: MiB(net),
            reserved_mib: MiB(net),
            workspace_mib: MiB(0),
        }),
        elastic: false,
        reasons: vec![],
    }
}

fn learn(
    history: &mut History,
    signature: &Signature,
    place: &Place,
    outcome: Outcome,
    estimates: &[Estimate],
) {
    history.learn(&Run {
        signature,
        place,
        outcome,
        limit: None,
        completed: false,
        growing: false,
        estimates,
    });
}

fn ask(history: &History, signature: &Signature, place: &Place, estimates: &[Estimate]) -> Option<Estimate> {
    let question =
        Question { signature, place, estimates, declared_mib: None, gpu_mib: MiB(1_000_000), elastic: false };
    auto::answer(history, &question, &Settings::default()).map(|a| a.estimate)
}

#[test]
fn two_runs_give_the_slope_over_the_simulation() {
    let mut history = History::default();
    let h200 = place("H200");
    for (batch, sim, measured) in [(8, 1000, 1600), (16, 2000, 2800)] {
        let outcome = Outcome::Peak(MiB(500 + measured));
        learn(
            &mut history,
            &signature("a.py", batch),
            &h200,
            outcome,
            &[estimate(Tier::Summary, 500, sim, sim)],
        );
    }
    let asked =
        ask(&history, &signature("a.py", 32), &h200, &[estimate(Tier::Summary, 500, 4000, 5200)]).unwrap();
    // 2,800 + 1.2 a simulated MiB.
    assert_eq!((asked.tier, asked.use_mib), (Tier::Scaled, MiB(500 + 2800 + 2400)));
    // Simulations of another front end are not compared with these; a smaller batch takes no more.
    let other =
        ask(&history, &signature("a.py", 12), &h200, &[estimate(Tier::Config, 500, 9000, 9000)]).unwrap();
    assert_eq!((other.tier, other.use_mib), (Tier::Scaled, MiB(500 + 2800)));
    let larger =
        ask(&history, &signature("a.py", 64), &h200, &[estimate(Tier::Config, 500, 9000, 9900)]).unwrap();
    assert_eq!(larger.tier, Tier::Config);
}

#[test]
fn what_could_not_be_read_is_never_exact() {
    let mut history = History::default();
    let h200 = place("H200");
    let command = ["bash".to_owned(), "run.sh".to_owned()];
    let of = |script| Signature::of(&Facts { command: &command, script, ..Facts::default() });
    // Also of what was learned before it was told apart.
    learn(&mut history, &of(None), &h200, Outcome::Peak(MiB(4512)), &[]);
    assert_eq!(ask(&history, &of(None), &h200, &[]).unwrap().tier, Tier::Exact);
    for peak in [4512, 4512, 9000] {
        let asked = ask(&history, &of(Some(UNREAD)), &h200, &[]).unwrap();
        assert_eq!((asked.tier, asked.use_mib, asked.upper_mib), (Tier::Scaled, MiB(4512), MiB(5112)));
        assert!(asked.reasons[0].contains("it took 4000 MiB"), "{asked:?}");
        assert!(asked.reasons[0].contains("its script could not be read"), "{asked:?}");
        learn(&mut history, &of(Some(UNREAD)), &h200, Outcome::Peak(MiB(peak)), &[]);
    }
    assert_eq!(ask(&history, &of(Some(UNREAD)), &h200, &[]).unwrap().use_mib, MiB(9000));
}

#[test]
fn another_gpu_pays_its_own_context() {
    let mut history = History::default();
    let (a100, h200) = (place("A100"), place("H200"));
    assert!(history.probe(&a100, MiB(524)) && history.probe(&h200, MiB(700)));
    learn(&mut history, &signature("a.py", 8), &a100, Outcome::Peak(MiB(4524)), &[]);
    let asked = ask(&history, &signature("a.py", 8), &h200, &[]).unwrap();
    assert_eq!((asked.tier, asked.use_mib, asked.upper_mib), (Tier::Scaled, MiB(4700), MiB(5300)));
}

#[test]
fn contexts_are_learned_from_exact_front_ends() {
    let mut history = History::default();
    let a100 = place("A100");
    for (i, sim) in [3000_u64, 1200, 800].into_iter().enumerate() {
        assert_eq!(history.context(&a100, 0), None);
        let signature = signature(&format!("{i}.py"), 8);
        learn(
            &mut history,
            &signature,
            &a100,
            Outcome::Peak(MiB(1429 + sim)),
            &[estimate(Tier::Trace, 524, sim, sim)],
        );
    }
    assert_eq!(history.context(&a100, 0), Some(MiB(1429)));
    // Of a framework that was not named: the largest here; elsewhere nothing.
    assert_eq!(history.context(&Place { framework: "unknown".into(), ..a100.clone() }, 0), Some(MiB(1429)));
    assert_eq!(history.context(&place("A10"), 0), None);
    let asked =
        ask(&history, &signature("new.py", 8), &a100, &[estimate(Tier::Trace, 524, 2000, 2060)]).unwrap();
    assert_eq!((asked.use_mib, asked.upper_mib), (MiB(3429), MiB(3489)));
}

fn signature_of(user: u32, program: &str) -> Signature {
    let command = ["python".to_owned(), program.to_owned()];
    Signature::of(&Facts { user, command: &command, gpus: 1, ..Facts::default() })
}

#[test]
fn what_a_user_makes_up_changes_nothing_for_others() {
    let (mut history, h200) = (History::default(), place("H200"));
    let asked = |history: &History, user: u32, tier: Tier| {
        ask(history, &signature_of(user, "new.py"), &h200, &[estimate(tier, 500, 4000, 5000)])
    };
    let tiers = [Tier::Summary, Tier::Trace];
    let before = tiers.map(|tier| asked(&history, 1, tier));
    for i in 0..30 {
        // Ten times and twice too much, and a context of 60 MiB.
        let made_up = [estimate(Tier::Trace, 0, 940, 940), estimate(Tier::Summary, 0, 2000, 10_000)];
        let s = signature_of(2, &format!("{i}.py"));
        learn(&mut history, &s, &h200, Outcome::Peak(MiB(1000)), &made_up);
    }
    assert_eq!(tiers.map(|tier| asked(&history, 1, tier)), before);
    let theirs = tiers.map(|tier| asked(&history, 2, tier));
    assert!(theirs[0] != before[0] && theirs[1] != before[1], "{theirs:?}");
    // A probe is everybody's.
    assert!(history.probe(&h200, MiB(700)));
    assert_eq!((history.context(&h200, 1), history.context(&h200, 2)), (Some(MiB(700)), Some(MiB(700))));
}

#[test]
fn runs_that_are_about_something_else_correct_nothing() {
    let (mut history, h200) = (History::default(), place("H200"));
    for i in 0..25 {
        let s = signature(&format!("{i}.py"), 8);
        let e = estimate(Tier::Summary, 500, 90_000, 100_000);
        learn(&mut history, &s, &h200, Outcome::Peak(MiB(1500)), &[e]);
    }
    assert_eq!(history.groups().count(), 0);
    // One program counts three times, whatever its batch size.
    for batch in 1..=30 {
        let e = estimate(Tier::Summary, 500, 1000, 1300);
        learn(&mut history, &signature("one.py", batch), &h200, Outcome::Peak(MiB(1600)), &[e]);
    }
    assert!(history.groups().all(|(.., group)| group.len() == 3));
}

#[test]
fn one_user_fills_no_others_groups() {
    let (mut history, h200) = (History::default(), place("H200"));
    let run = |history: &mut History, user: u32, family: &str| {
        let e = Estimate { family: family.into(), ..estimate(Tier::Trace, 500, 1000, 1300) };
        let there = place(family);
        learn(history, &signature_of(user, family), &there, Outcome::Peak(MiB(1600)), &[e]);
    };
    run(&mut history, 1, "first");
    for i in 0..2 * GROUPS {
        run(&mut history, 2, &i.to_string());
    }
    run(&mut history, 3, "late");
    assert_eq!((history.groups.len(), history.contexts.len()), (GROUPS, GROUPS));
    let of = |user| history.groups().filter(|(of, ..)| *of == user).count();
    assert_eq!((of(1), of(2), of(3)), (3, GROUPS - 6, 3));
    assert!(history.contexts().any(|(user, ..)| user == Some(1)));
    assert!(history.probe(&h200, MiB(700)));
    // What went is deleted, and comes back nowhere.
    let mut again = History::default();
    for row in history.changes().unwrap() {
        again.load(&row).unwrap();
    }
    assert_eq!((&again.groups, &again.contexts), (&history.groups, &history.contexts));
}

#[test]
fn what_older_versions_learned_of_all_users_for_all_goes() {
    let mut history = History::default();
    let sample = r#"{"at":9,"key":1,"of_use":100,"of_upper":90}"#;
    let probed = r#"{"probed_mib":530,"candidates":[60,60,60]}"#;
    let learned = r#"{"probed_mib":null,"candidates":[60,60,60]}"#;
    for (table, key, body) in [
        (Table::Ratio, "allocator/summary|cnn#000", sample),
        (Table::Context, "A100|580|torch 2.11", learned),
        (Table::Context, "H200|580|torch 2.11", probed),
    ] {
        history.load(&HistoryRow { table, key: key.into(), body: Some(body.into()) }).unwrap();
    }
    assert_eq!((history.groups().count(), history.contexts().count()), (0, 1));
    assert_eq!(history.context(&place("H200"), 1), Some(MiB(530)));
    let gone = history.changes().unwrap();
    assert!(gone.len() == 2 && gone.iter().all(|row| row.body.is_none()), "{gone:?}");
}

#[test]
fn growing_and_varying_runs_get_wide_bounds() {
    let mut history = History::default();
    let (s, h200) = (signature("a.py", 8), place("H200"));
    history.learn(&Run {
        signature: &s,
        place: &h200,
        outcome: Outcome::Peak(MiB(10_500)),
        limit: None,
        completed: false,
        growing: true,
        estimates: &[estimate(Tier::Summary, 500, 9000, 9000)],
    });
    let asked = ask(&history, &s, &h200, &[estimate(Tier::Summary, 500, 9000, 9000)]).unwrap();
    assert_eq!((asked.tier, asked.upper_mib), (Tier::Exact, MiB(14_500)));
    let b = signature("b.py", 8);
    for mib in [8000, 10_000, 9000, 9500] {
        learn(&mut history, &b, &h200, Outcome::Peak(MiB(mib)), &[]);
    }
    assert_eq!(ask(&history, &b, &h200, &[]).unwrap().upper_mib, MiB(12_000));
    // A run that found its work done, first or among the others, is no measure of them.
    for (script, peaks) in [("c.py", [600, 16_000, 15_200, 16_000]), ("d.py", [16_000, 600, 16_000, 15_200])]
    {
        let done = signature(script, 8);
        for mib in peaks {
            learn(&mut history, &done, &h200, Outcome::Peak(MiB(mib)), &[]);
        }
        assert_eq!(ask(&history, &done, &h200, &[]).unwrap().upper_mib, MiB(18_400), "{script}");
    }
    // Of those that took most of it the spread counts.
    let half = signature("e.py", 8);
    for mib in [8000, 16_000] {
        learn(&mut history, &half, &h200, Outcome::Peak(MiB(mib)), &[]);
    }
    assert_eq!(ask(&history, &half, &h200, &[]).unwrap().upper_mib, MiB(24_000));
}

#[test]
fn what_grew_in_an_older_edition_costs_no_margin_once_the_present_one_has_shown_its_peak() {
    let (mut history, h200) = (History::default(), place("H200"));
    let edition = |content| Signature { content, ..signature("a.py", 8) };
    let mut learn = |content, growing| {
        history.learn(&Run {
            signature: &edition(content),
            place: &h200,
            outcome: Outcome::Peak(MiB(5000)),
            limit: None,
            completed: true,
            growing,
            estimates: &[],
        });
        [1, 2, 3].map(|content| ask(&history, &edition(content), &h200, &[]).unwrap().upper_mib)
    };
    let [leaks, edited, _] = learn(1, true);
    assert!(leaks > MiB(6500) && edited > MiB(6500));
    learn(2, false);
    learn(2, false);
    let [leaks, mended, other] = learn(2, false);
    assert_eq!(mended, MiB(5100));
    assert!(leaks > MiB(6500) && other > MiB(6500));
}

#[test]
fn a_run_within_the_context_has_a_bound_above_it() {
    let mut history = History::default();
    let (s, h200) = (signature("a.py", 8), place("H200"));
    assert!(history.probe(&h200, MiB(700)));
    learn(&mut history, &s, &h200, Outcome::Peak(MiB(600)), &[]);
    let asked = ask(&history, &s, &h200, &[]).unwrap();
    assert_eq!((asked.tier, asked.use_mib, asked.upper_mib), (Tier::Exact, MiB(600), MiB(630)));
}

#[test]
fn what_is_stored_comes_back() {
    let mut history = History::default();
    for i in 0..30 {
        let s = signature(&format!("{i}.py"), 8);
        let e = [estimate(Tier::Trace, 500, 1000, 1100)];
        learn(&mut history, &s, &place("H200"), Outcome::Peak(MiB(1500 + i)), &e);
        learn(&mut history, &s, &place("H200"), Outcome::AtLeast(MiB(1400)), &e);
    }
    let rows = history.changes().unwrap();
    assert!(history.changes().unwrap().is_empty(), "nothing changed since");
    let mut again = History::default();
    for row in &rows {
        again.load(row).unwrap();
    }
    assert_eq!(again.programs, history.programs);
    assert_eq!((&again.groups, &again.contexts), (&history.groups, &history.contexts));
    assert_eq!((&again.by_use, again.updates), (&history.by_use, history.updates));
    for table in [Table::Program, Table::Ratio, Table::Context] {
        assert_eq!(Table::parse(table.as_str()), Some(table));
        let row = HistoryRow { table, key: "x y".into(), body: Some("{".into()) };
        assert!(again.load(&row).is_err());
    }
}

#[test]
fn memory_is_bounded_and_the_least_used_goes() {
    let mut history = History::default();
    let h200 = place("H200");
    let first = signature("first.py", 8);
    learn(&mut history, &first, &h200, Outcome::Peak(MiB(1000)), &[]);
    for i in 0..PROGRAMS + 10 {
        if i % 1000 == 0 {
            learn(&mut history, &first, &h200, Outcome::Peak(MiB(1000)), &[]);
        }
        learn(&mut history, &signature(&format!("{i}.py"), 8), &h200, Outcome::Peak(MiB(1000)), &[]);
    }
    assert_eq!((history.programs.len(), history.by_use.len()), (PROGRAMS, PROGRAMS));
    assert!(ask(&history, &first, &h200, &[]).is_some());
    assert!(ask(&history, &signature("0.py", 8), &h200, &[]).is_none());
    let gone = history.changes().unwrap().into_iter().filter(|row| row.body.is_none()).count();
    assert_eq!(gone, 11);
    for batch in 1..100 {
        learn(&mut history, &signature("many.py", batch), &h200, Outcome::Peak(MiB(1000)), &[]);
    }
    let most = history.programs().map(|(_, p)| p.anchors.len()).max().unwrap();
    assert_eq!(most, 32);
}

#[test]
fn one_user_drives_out_no_others_programs() {
    let (mut history, h200) = (History::default(), place("H200"));
    let first = signature_of(1, "first.py");
    learn(&mut history, &first, &h200, Outcome::Peak(MiB(1000)), &[]);
    for i in 0..PROGRAMS + 10 {
        learn(&mut history, &signature_of(2, &format!("{i}.py")), &h200, Outcome::Peak(MiB(1000)), &[]);
    }
    assert_eq!((history.programs.len(), history.by_use.len()), (PROGRAMS, PROGRAMS));
    assert!(ask(&history, &first, &h200, &[]).is_some());
    assert!(ask(&history, &signature_of(2, "0.py"), &h200, &[]).is_none());
}

#[test]
fn an_update_takes_less_than_a_millisecond() {
    let mut history = History::default();
    let h200 = place("H200");
    for i in 0..PROGRAMS as u64 {
        let e = [estimate(Tier::Trace, 500, 1000, 1100), estimate(Tier::Summary, 500, 900, 1300)];
        learn(&mut history, &signature(&format!("{i}.py"), 8), &h200, Outcome::Peak(MiB(1500 + i % 100)), &e);
    }
    drop(history.changes());
    let mut times = Vec::new();
    for i in 0..200 {
        let e = [estimate(Tier::Trace, 500, 1000, 1100), estimate(Tier::Summary, 500, 900, 1300)];
        let s = signature(&format!("n{i}.py"), 8);
        let started = std::time::Instant::now();
        learn(&mut history, &s, &h200, Outcome::Peak(MiB(1600)), &e);
        let rows = history.changes().unwrap();
        times.push(started.elapsed());
        assert!(!rows.is_empty());
    }
    times.sort();
    println!("history update: median {:?}, slowest {:?}", times[100], times[199]);
    // Debug builds are slower; the median is not disturbed by other work on the machine.
    let limit = if cfg!(debug_assertions) { 5 } else { 1 };
    assert!(times[100].as_millis() < limit, "{:?}", times[100]);
}

/// A generator of numbers that are the same in each run (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Sum of uniforms, close to a normal distribution.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }
}

#[test]
fn the_conformal_bound_covers_what_it_says() {
    // Coverage of split conformal prediction is on average over sets of runs: many sets.
    let mut numbers = Numbers(7);
    let (mut covered, mut asked) = (0_u32, 0_u32);
    let mut width = 0.0;
    for _ in 0..40 {
        let mut history = History::default();
        let h200 = place("H200");
        for i in 0..150_u64 {
            let sim = 1000 + (numbers.uniform() * 20_000.0) as u64;
            let measured = 500 + (sim as f64 * 1.1 * (0.12 * numbers.normal()).exp()) as u64;
            let e = [estimate(Tier::Summary, 500, sim, sim * 13 / 10)];
            let s = signature(&format!("{i}.py"), 8);
            if i >= 60 {
                let bound = ask(&history, &s, &h200, &e).unwrap();
                assert_eq!(bound.tier, Tier::Summary);
                asked += 1;
                covered += u32::from(bound.upper_mib >= MiB(measured));
                width += bound.upper_mib.0 as f64 / measured as f64;
            }
            learn(&mut history, &s, &h200, Outcome::Peak(MiB(measured)), &e);
        }
    }
    let share = f64::from(covered) / f64::from(asked);
    println!("coverage {share:.4} of {asked}, mean width {:.3}", width / f64::from(asked));
    assert!((0.94..0.97).contains(&share), "{share}");
}

/// Something that happens to a history.
#[derive(Debug, Clone)]
struct Happening {
    program: u8,
    batch: u64,
    gpu: bool,
    mib: u64,
    cut_off: bool,
    simulated: bool,
}

fn happening() -> impl Strategy<Value = Happening> {
    (0_u8..3, 0_u32..4, any::<bool>(), 600_u64..40_000, any::<bool>(), any::<bool>()).prop_map(
        |(program, batch, gpu, mib, cut_off, simulated)| Happening {
            program,
            batch: 8 << batch,
            gpu,
            mib,
            cut_off,
            simulated,
        },
    )
}

impl Happening {
    fn parts(&self) -> (Signature, Place, Vec<Estimate>) {
        let net = 100 * self.batch * (u64::from(self.program) + 1);
        let estimates = self.simulated.then(|| estimate(Tier::Summary, 500, net, net * 13 / 10));
        let gpu = if self.gpu { "H200" } else { "A100" };
        let signature = signature(&format!("{}.py", self.program), self.batch);
        (signature, place(gpu), estimates.into_iter().collect())
    }

    fn happen(&self, history: &mut History) {
        let (signature, place, estimates) = self.parts();
        let outcome =
            if self.cut_off { Outcome::AtLeast(MiB(self.mib)) } else { Outcome::Peak(MiB(self.mib)) };
        learn(history, &signature, &place, outcome, &estimates);
    }
}

proptest! {
    #[test]
    fn a_cut_off_run_never_lowers_a_bound(
        before in proptest::collection::vec(happening(), 0..20),
        mut cut_off in happening(),
        asked in happening(),
    ) {
        let mut history = History::default();
        before.iter().for_each(|h| h.happen(&mut history));
        let (signature, place, estimates) = asked.parts();
        let first = ask(&history, &signature, &place, &estimates);
        cut_off.cut_off = true;
        cut_off.happen(&mut history);
        let then = ask(&history, &signature, &place, &estimates);
        prop_assert_eq!(first.is_some(), then.is_some(), "an out-of-memory is no measurement");
        if let (Some(first), Some(then)) = (first, then) {
            prop_assert!(then.upper_mib >= first.upper_mib, "{:?} -> {:?}", first, then);
            prop_assert!(then.use_mib >= first.use_mib && then.tier == first.tier);
        }
    }

    #[test]
    fn bounds_hold_for_what_was_seen(
        runs in proptest::collection::vec(happening(), 1..30),
    ) {
        let mut history = History::default();
        for (i, run) in runs.iter().enumerate() {
            run.happen(&mut history);
            for seen in &runs[..=i] {
                let (signature, place, estimates) = seen.parts();
                if let Some(bound) = ask(&history, &signature, &place, &estimates) {
                    prop_assert!(bound.need_mib <= bound.use_mib && bound.use_mib <= bound.upper_mib, "{bound:?}");
                    prop_assert!(bound.upper_mib.0 >= seen.mib, "{seen:?} is above {bound:?}");
                }
                if !seen.cut_off {
                    let bound = ask(&history, &signature, &place, &estimates);
                    prop_assert_eq!(bound.map(|b| b.tier), Some(Tier::Exact));
                }
            }
        }
    }

    #[test]
    fn the_order_of_runs_does_not_move_a_bound_of_exact_repeats(
        mut mibs in proptest::collection::vec(600_u64..40_000, 1..10),
    ) {
        let (s, h200) = (signature("a.py", 8), place("H200"));
        let bound = |mibs: &[u64]| {
            let mut history = History::default();
            mibs.iter().for_each(|mib| learn(&mut history, &s, &h200, Outcome::Peak(MiB(*mib)), &[]));
            ask(&history, &s, &h200, &[]).map(|b| (b.use_mib, b.upper_mib))
        };
        let before = bound(&mibs);
        mibs.reverse();
        prop_assert_eq!(before, bound(&mibs));
    }

    #[test]
    fn any_row_is_read_without_harm(table in 0_u8..3, key in "\\PC{0,40}", body in "\\PC{0,120}") {
        let table = [Table::Program, Table::Ratio, Table::Context][usize::from(table)];
        let _ = History::default().load(&HistoryRow { table, key, body: Some(body) });
    }
}

/// A run with a hard limit, MiB.
fn learn_within(
    history: &mut History,
    (signature, place): (&Signature, &Place),
    outcome: Outcome,
    limit: u64,
    completed: bool,
) {
    let limit = Some(MiB(limit));
    history.learn(&Run { signature, place, outcome, limit, completed, growing: false, estimates: &[] });
}

#[test]
fn what_no_look_can_see_gets_the_limit_with_which_a_run_ended() {
    let (h200, job) = (place("H200"), signature("managed", 8));
    let run = |history: &mut History, outcome, limit| {
        learn_within(history, (&job, &h200), outcome, limit, false);
    };
    let upper = |history: &History| ask(history, &job, &h200, &[]).unwrap().upper_mib;
    let mut history = History::default();
    // 4 GiB of managed memory in a part of 35,942 MiB: the driver counts 516 for the process.
    run(&mut history, Outcome::Peak(MiB(516)), 35_942);
    assert_eq!(upper(&history), MiB(542));
    // With the bound by what was seen it is out of memory; it gets what it ended with, also when that is learned again.
    run(&mut history, Outcome::AtLeast(MiB(542)), 542);
    assert_eq!(upper(&history), MiB(35_942));
    run(&mut history, Outcome::Peak(MiB(518)), 35_942);
    let told = ask(&history, &job, &h200, &[]).unwrap();
    assert_eq!((told.use_mib, told.upper_mib), (MiB(542), MiB(35_942)));
    assert!(told.reasons[0].contains("managed memory is not"), "{:?}", told.reasons);
    // Stored and read back.
    let mut again = History::default();
    history.changes().unwrap().iter().for_each(|row| again.load(row).unwrap());
    assert_eq!(upper(&again), MiB(35_942));
    // Where more was seen than any limit that was met, peaks are the measure.
    run(&mut history, Outcome::Peak(MiB(5_000)), 35_942);
    assert!(upper(&history) < MiB(9_600), "{}", upper(&history).0);
    // A limit that was too small once is not enough.
    run(&mut history, Outcome::AtLeast(MiB(35_942)), 35_942);
    assert!(upper(&history) > MiB(35_942));
}

#[test]
fn an_older_edition_is_no_lower_bound_of_one_that_was_measured() {
    let command = ["python".to_owned(), "a.py".to_owned()];
    let of = |script| Signature::of(&Facts { command: &command, script: Some(script), ..Facts::default() });
    let (h200, old, new) = (place("H200"), of("1"), of("2"));
    let mut history = History::default();
    learn(&mut history, &old, &h200, Outcome::AtLeast(MiB(40_000)), &[]);
    // Not seen yet, it may take as much; a declaration is not overruled.
    let front = [estimate(Tier::Trace, 500, 2500, 2700)];
    assert!(ask(&history, &new, &h200, &front).unwrap().upper_mib > MiB(43_900));
    assert_eq!(ask(&history, &new, &h200, &[]), None);
    learn(&mut history, &new, &h200, Outcome::Peak(MiB(3_000)), &[]);
    for estimates in [&front[..], &[]] {
        let seen = ask(&history, &new, &h200, estimates).unwrap();
        assert_eq!((seen.tier, seen.use_mib, seen.upper_mib), (Tier::Exact, MiB(3_000), MiB(3_150)));
    }
    // Of its own it holds, and what was measured stays what it was.
    learn(&mut history, &new, &h200, Outcome::AtLeast(MiB(5_000)), &[]);
    let question = Question {
        signature: &new,
        place: &h200,
        estimates: &[],
        declared_mib: None,
        gpu_mib: MiB(1_000_000),
        elastic: false,
    };
    let answer = auto::answer(&history, &question, &Settings::default()).unwrap();
    assert_eq!((answer.estimate.use_mib, answer.estimate.upper_mib), (MiB(5_000), MiB(5_500)));
    assert_eq!(answer.peak, Some(MiB(3_000)));
    assert!(ask(&history, &old, &h200, &front).unwrap().use_mib > MiB(39_900));
}

#[test]
fn a_limit_at_which_a_run_completed_is_enough() {
    let (h200, job) = (place("H200"), signature("tight.py", 8));
    let run = |history: &mut History, outcome, limit, completed| {
        learn_within(history, (&job, &h200), outcome, limit, completed);
    };
    for seen in [4_040, 4_000] {
        let mut history = History::default();
        run(&mut history, Outcome::AtLeast(MiB(seen)), 4_040, true);
        let told = ask(&history, &job, &h200, &[]).unwrap();
        assert_eq!((told.tier, told.upper_mib), (Tier::Exact, MiB(4_040)));
        assert!(told.reasons[0].contains("ended well with a limit of 4040 MiB"), "{:?}", told.reasons);
        // Not once one was cut off there.
        run(&mut history, Outcome::AtLeast(MiB(4_040)), 4_040, false);
        assert_eq!(ask(&history, &job, &h200, &[]), None);
        run(&mut history, Outcome::Peak(MiB(4_100)), 6_000, true);
        assert_eq!(ask(&history, &job, &h200, &[]).unwrap().use_mib, MiB(4_100));
    }
}
