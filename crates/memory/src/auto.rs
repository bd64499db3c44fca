//! The estimator *auto*: whichever knowledge is best, in this order. Runs of the same command; runs of
//! the same program, scaled; the best front end, corrected by how far it is off as a rule; the user's
//! number. With none of these there is no answer, and the job gets a GPU alone until it has been seen.

use crate::estimate::times;
use crate::history::{Ask, History, Margins, Place, Signature, Told};
use crate::{Estimate, MiB, ModelTask, Tier};

/// How sure a bound has to be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Probability with which `upper` should hold, where there are enough runs to tell.
    pub coverage: f64,
    /// Margins on what runs of the same program say.
    pub margins: Margins,
}

impl Default for Settings {
    fn default() -> Self {
        Self { coverage: 0.95, margins: Margins::default() }
    }
}

/// What is asked.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// What will run.
    pub signature: &'a Signature,
    /// GPU and framework that it is asked for.
    pub place: &'a Place,
    /// Answers of the front ends that could give one.
    pub estimates: &'a [Estimate],
    /// What the user says.
    pub declared_mib: Option<MiB>,
    /// Memory of such a GPU.
    pub gpu_mib: MiB,
    /// The peak has no bound that could be told beforehand, see [`is_elastic`].
    pub elastic: bool,
}

/// The answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The numbers.
    pub estimate: Estimate,
    /// `use` is what is likely and not what is possible: only a hard limit bounds it. Not so once runs
    /// of the same program have shown it.
    pub elastic: bool,
    /// The largest peak of runs of the very command there.
    pub peak: Option<MiB>,
}

/// Whether a task may take any amount above what it needs: `cudnn.benchmark` tries algorithms with
/// workspaces of any size, and several GPUs gather and reduce in buffers that no front end sees.
#[must_use]
pub fn is_elastic(task: &ModelTask) -> bool {
    task.cudnn_benchmark || task.gpus > 1
}

/// A cut-off run had so much and wanted more; it is not known how much more.
const BEYOND_CUT_OFF: f64 = 0.10;
const BEYOND_CUT_OFF_LEAST: MiB = MiB(256);

/// What goes on top of the memory with which a run stood still while it made steps: as much as a job gets while another of its
/// command is at work whose memory has settled (docs/policies.md).
const BEYOND_SETTLED: f64 = 0.50;
const BEYOND_SETTLED_LEAST: MiB = MiB(1024);

/// Below this share of a GPU a lower bound alone says nothing: a job of which nothing is known is never given less.
const TELLING: f64 = 1.0 / 8.0;

/// The best that is known. `None`: nothing is, so the job should have a GPU alone.
#[must_use]
pub fn answer(history: &History, question: &Question<'_>, settings: &Settings) -> Option<Answer> {
    let ask = Ask { signature: question.signature, place: question.place, estimates: question.estimates };
    let best = question.estimates.iter().min_by_key(|e| e.tier);
    let context = history.context_for(question.place, question.signature.user, question.estimates);
    let mut at_least = history.at_least(&ask);
    // What takes a share of each GPU takes another amount on another type, which no scaling knows.
    let shares = best.is_some_and(|e| e.tier == Tier::Share);
    let told = history.tell(&ask, &settings.margins).filter(|told| !shares || told.tier == Tier::Exact);
    let peak = told.as_ref().and_then(|told| told.peak);
    let enough = told.as_ref().and_then(|told| told.enough);
    let unbound = question.elastic || best.is_some_and(|estimate| estimate.elastic);
    let mut elastic = unbound && told.is_none();
    let estimate = match (told, best, question.declared_mib) {
        (Some(told), ..) => from_runs(&told, best, context),
        // A share is of whichever GPU the job gets: bytes that were measured on one say nothing of it on another.
        (None, Some(estimate), _) if shares => estimate.clone(),
        (None, Some(estimate), _) => corrected(history, &ask, estimate, context, settings.coverage),
        (None, None, said) => {
            // What the user says of an edited program is not overruled by what it took before.
            at_least = history.own_at_least(&ask);
            match (said, at_least) {
                // What it had is known, and what is declared is not what it cannot run below.
                (Some(mib), Some(had)) if had > mib => {
                    Estimate { tier: Tier::Scaled, need_mib: had, ..declared(mib) }
                }
                (Some(mib), _) => declared(mib),
                (None, Some(had)) if had > times(question.gpu_mib, TELLING) => {
                    elastic = true;
                    match history.settled(&ask).filter(|settled| *settled >= had) {
                        Some(settled) => stood_still(settled, question.gpu_mib),
                        None => cut_off(had, question.gpu_mib),
                    }
                }
                (None, _) => return None,
            }
        }
    };
    Some(Answer { estimate: above(estimate, at_least, enough), elastic, peak })
}

/// Only runs that were cut off are known: how much more it takes is unknown.
fn cut_off(had: MiB, gpu: MiB) -> Estimate {
    let reason = format!(
        "a run of it that had {had} was cut off and none reached its peak, so it may take the whole GPU"
    );
    by_cut_off(had, gpu.max(had), reason)
}

/// A run that was cut off made steps, and its memory stood still.
fn stood_still(settled: MiB, gpu: MiB) -> Estimate {
    let beyond = settled + times(settled, BEYOND_SETTLED).max(BEYOND_SETTLED_LEAST);
    let reason = format!(
        "a run of it made its steps with {settled} when it was cut off and none reached its peak: half more, should it take more later"
    );
    by_cut_off(settled, beyond.min(gpu).max(settled), reason)
}

fn by_cut_off(had: MiB, upper: MiB, reason: String) -> Estimate {
    Estimate {
        need_mib: had,
        use_mib: had,
        upper_mib: upper,
        tier: Tier::Scaled,
        source: "history".to_owned(),
        family: "unknown".to_owned(),
        parts: None,
        elastic: true,
        reasons: vec![reason],
    }
}

/// What runs of the same program say.
fn from_runs(told: &Told, best: Option<&Estimate>, context: MiB) -> Estimate {
    let net = told.use_mib - context;
    // Runs show what a task takes when memory is free. How far it could be squeezed, a simulation
    // knows; without one, not at all.
    let squeezed = best.and_then(|e| {
        let parts = e.parts.filter(|p| !p.reserved_mib.is_zero())?;
        Some(parts.allocated_mib.min(parts.reserved_mib).0 as f64 / parts.reserved_mib.0 as f64)
    });
    let need_net = squeezed.map_or(net, |share| times(net, share));
    Estimate {
        need_mib: told.use_mib.min(context + need_net),
        use_mib: told.use_mib,
        upper_mib: told.use_mib + told.margin_mib,
        tier: told.tier,
        source: "history".to_owned(),
        family: best.map_or_else(|| "unknown".to_owned(), |e| e.family.clone()),
        parts: None,
        elastic: false,
        reasons: vec![
            told.reason.clone(),
            format!(
                "bound: {:.0} % above it",
                told.margin_mib.0 as f64 * 100.0 / told.use_mib.0.max(1) as f64
            ),
        ],
    }
}

/// What a front end says, with the context of this GPU, moved by how far it is off as a rule.
fn corrected(history: &History, ask: &Ask<'_>, estimate: &Estimate, context: MiB, coverage: f64) -> Estimate {
    let mut new = estimate.clone();
    // Without parts, context and tensors cannot be told apart: the ratio is one of totals.
    let (old_base, base) =
        estimate.parts.map_or((MiB::ZERO, MiB::ZERO), |parts| (parts.context_mib, context));
    if let Some(parts) = &mut new.parts
        && parts.context_mib != context
    {
        parts.context_mib = context;
        new.reasons.push(format!("CUDA context {} MiB as learned on {}", context.0, ask.place.gpu));
    }
    let scaled = |mib: MiB, by: f64| base + times(mib - old_base, by);
    let correction = history.correction(estimate, ask.place, ask.signature.user, coverage);
    let middle = correction.middle.unwrap_or(1.0);
    new.need_mib = scaled(estimate.need_mib, middle.min(1.0));
    new.use_mib = scaled(estimate.use_mib, middle);
    if let Some(middle) = correction.middle {
        new.reasons.push(format!("corrected by history: runs like it took {middle:.2} times as much"));
    }
    new.upper_mib = match correction.upper {
        Some((factor, runs)) => {
            new.reasons.push(format!(
                "bound at {:.0} % by {runs} runs like it, {factor:.2} of the front end's",
                coverage * 100.0
            ));
            scaled(estimate.upper_mib, factor)
        }
        // Too few runs for a bound of their own. They may widen the front end's, not narrow it.
        None => scaled(estimate.upper_mib, middle.max(1.0)),
    };
    new.upper_mib = new.upper_mib.max(new.use_mib);
    new
}

fn declared(mib: MiB) -> Estimate {
    Estimate {
        need_mib: mib,
        use_mib: mib,
        upper_mib: mib,
        tier: Tier::Declared,
        source: "user".to_owned(),
        family: "unknown".to_owned(),
        parts: None,
        elastic: false,
        reasons: vec!["the user says so".to_owned()],
    }
}

/// Never below what runs that were cut off had. `enough`: with which one reached its end.
fn above(mut estimate: Estimate, at_least: Option<MiB>, enough: Option<MiB>) -> Estimate {
    let Some(had) = at_least else { return estimate };
    let beyond = had + BEYOND_CUT_OFF_LEAST.max(times(had, BEYOND_CUT_OFF));
    let beyond = enough.filter(|enough| *enough > had).map_or(beyond, |enough| beyond.min(enough));
    if estimate.upper_mib < beyond {
        estimate.reasons.push(format!("a run that had {had} was cut off, so it takes more than that"));
    }
    estimate.need_mib = estimate.need_mib.max(had.min(estimate.use_mib));
    estimate.use_mib = estimate.use_mib.max(had);
    estimate.upper_mib = estimate.upper_mib.max(beyond);
    estimate
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Parts;
    use crate::history::{Facts, Outcome, Run};

    fn signature(line: &str) -> Signature {
        let command: Vec<String> = line.split(' ').map(str::to_owned).collect();
        Signature::of(&Facts { command: &command, gpus: 1, ..Facts::default() })
    }

    fn place() -> Place {
        Place { gpu: "H200".into(), framework: "unknown".into(), driver: "1".into() }
    }

    fn summary(net: u64) -> Estimate {
        Estimate {
            need_mib: MiB(500 + net * 8 / 10),
            use_mib: MiB(500 + net),
            upper_mib: MiB(500 + net * 13 / 10),
            tier: Tier::Summary,
            source: "allocator/summary".into(),
            family: "cnn".into(),
            parts: Some(Parts {
                context_mib: MiB(500),
                allocated_mib: MiB(net * 8 / 10),
                reserved_mib: MiB(net),
                workspace_mib: MiB(0),
            }),
            elastic: false,
            reasons: vec![],
        }
    }

    fn ask(history: &History, line: &str, estimates: &[Estimate], declared: Option<u64>) -> Option<Estimate> {
        let question = Question {
            signature: &signature(line),
            place: &place(),
            estimates,
            declared_mib: declared.map(MiB),
            gpu_mib: MiB(141_000),
            elastic: false,
        };
        answer(history, &question, &Settings::default()).map(|a| a.estimate)
    }

    fn learn(history: &mut History, line: &str, outcome: Outcome, estimates: &[Estimate]) {
        let (signature, place) = (signature(line), place());
        history.learn(&Run {
            signature: &signature,
            place: &place,
            outcome,
            limit: None,
            completed: false,
            growing: false,
            estimates,
        });
    }

    #[test]
    fn the_order_of_knowledge() {
        let mut history = History::default();
        assert_eq!(ask(&history, "t.py --bs 8", &[], None), None);
        let declared = ask(&history, "t.py --bs 8", &[], Some(9000)).unwrap();
        assert_eq!((declared.tier, declared.upper_mib), (Tier::Declared, MiB(9000)));
        let front = ask(&history, "t.py --bs 8", &[summary(4000)], Some(9000)).unwrap();
        assert_eq!((front.tier, front.use_mib, front.upper_mib), (Tier::Summary, MiB(4500), MiB(5700)));
        learn(&mut history, "t.py --bs 8", Outcome::Peak(MiB(5000)), &[summary(4000)]);
        let exact = ask(&history, "t.py --bs 8", &[summary(4000)], Some(9000)).unwrap();
        assert_eq!((exact.tier, exact.use_mib, exact.upper_mib), (Tier::Exact, MiB(5000), MiB(5250)));
        // 4,500 were measured beside the context for 4,000; 4,000 more of simulation are 4,600 more.
        let scaled = ask(&history, "t.py --bs 16", &[summary(8000)], None).unwrap();
        assert_eq!((scaled.tier, scaled.use_mib), (Tier::Scaled, MiB(500 + 4500 + 4600)));
        learn(&mut history, "t.py --bs 8", Outcome::Peak(MiB(5000)), &[]);
        learn(&mut history, "t.py --bs 8", Outcome::Peak(MiB(5000)), &[]);
        assert_eq!(ask(&history, "t.py --bs 8", &[], None).unwrap().upper_mib, MiB(5100));
    }

    #[test]
    fn a_cut_off_run_is_a_lower_bound() {
        let mut history = History::default();
        learn(&mut history, "t.py --bs 8", Outcome::AtLeast(MiB(20_000)), &[summary(4000)]);
        // Nothing is measured: it gets what it had and may have all; the front end is lifted.
        let alone = ask(&history, "t.py --bs 8", &[], None).unwrap();
        assert_eq!((alone.tier, alone.need_mib, alone.use_mib), (Tier::Scaled, MiB(20_012), MiB(20_012)));
        assert!(alone.elastic && alone.upper_mib == MiB(141_000), "{alone:?}");
        // What the user says counts where it is more.
        let of = |mib| ask(&history, "t.py --bs 8", &[], Some(mib)).unwrap();
        assert_eq!((of(30_000).tier, of(30_000).upper_mib), (Tier::Declared, MiB(30_000)));
        assert_eq!((of(9_000).tier, of(9_000).upper_mib), (Tier::Scaled, MiB(22_014)));
        // And where it is less, it is not what the job cannot run below.
        assert_eq!(of(9_000).need_mib, MiB(20_012));
        // Less than what a job of which nothing is known has in any case says nothing.
        learn(&mut history, "early.py", Outcome::AtLeast(MiB(500)), &[]);
        assert_eq!(ask(&history, "early.py", &[], None), None);
        let lifted = ask(&history, "t.py --bs 8", &[summary(4000)], None).unwrap();
        assert_eq!((lifted.tier, lifted.upper_mib), (Tier::Summary, MiB(22_000)));
        // A larger batch takes no less; a smaller one may.
        assert!(ask(&history, "t.py --bs 16", &[summary(8000)], None).unwrap().upper_mib >= MiB(22_000));
        assert_eq!(ask(&history, "t.py --bs 4", &[summary(2000)], None).unwrap().upper_mib, MiB(3100));
    }

    #[test]
    fn a_run_that_was_cut_off_when_it_stood_still_does_not_ask_for_the_whole_gpu() {
        let mut history = History::default();
        let upper = |history: &History| ask(history, "t.py --bs 8", &[], None).map(|e| e.upper_mib);
        learn(&mut history, "t.py --bs 8", Outcome::AtLeast(MiB(30_000)), &[]);
        learn(&mut history, "t.py --bs 8", Outcome::Settled(MiB(38_000)), &[]);
        let alone = ask(&history, "t.py --bs 8", &[], None).unwrap();
        assert_eq!((alone.use_mib, alone.upper_mib, alone.elastic), (MiB(38_000), MiB(57_000), true));
        assert!(alone.reasons[0].contains("made its steps with 37.1 GiB"), "{:?}", alone.reasons);
        // What was cut off below that says nothing new, another batch is another task, and no GPU has more than all.
        learn(&mut history, "t.py --bs 8", Outcome::AtLeast(MiB(20_000)), &[]);
        assert_eq!(upper(&history), Some(MiB(57_000)));
        assert_eq!(ask(&history, "t.py --bs 16", &[], None).unwrap().upper_mib, MiB(141_000));
        learn(&mut history, "t.py --bs 8", Outcome::Settled(MiB(120_000)), &[]);
        assert_eq!(upper(&history), Some(MiB(141_000)));
        // One that had as much and wanted more is no smaller for it.
        learn(&mut history, "u.py", Outcome::Settled(MiB(38_000)), &[]);
        learn(&mut history, "u.py", Outcome::AtLeast(MiB(38_000)), &[]);
        assert_eq!(ask(&history, "u.py", &[], None).unwrap().upper_mib, MiB(141_000));
        learn(&mut history, "u.py", Outcome::Settled(MiB(37_000)), &[]);
        assert_eq!(ask(&history, "u.py", &[], None).unwrap().upper_mib, MiB(141_000));
        // A peak is worth more.
        learn(&mut history, "t.py --bs 8", Outcome::Peak(MiB(121_000)), &[]);
        assert_eq!(upper(&history), Some(MiB(132_000)));
    }

    #[test]
    fn many_runs_narrow_the_bound_of_a_program_never_seen() {
        let mut history = History::default();
        for i in 0..40 {
            let line = format!("other{i}.py");
            learn(&mut history, &line, Outcome::Peak(MiB(500 + 1000 + i)), &[summary(1000)]);
        }
        let estimate = ask(&history, "new.py", &[summary(10_000)], None).unwrap();
        assert_eq!(estimate.tier, Tier::Summary);
        assert!((10_500..10_900).contains(&estimate.upper_mib.0), "{estimate:?}");
        assert!(estimate.reasons.iter().any(|r| r.contains("bound at 95 %")), "{estimate:?}");
    }

    #[test]
    fn a_share_of_the_gpu_goes_before_runs_on_another_type() {
        let mut history = History::default();
        let share = Estimate {
            tier: Tier::Share,
            source: "share/vllm".into(),
            parts: None,
            use_mib: MiB(60_000),
            upper_mib: MiB(62_000),
            ..summary(1000)
        };
        learn(&mut history, "vllm serve m", Outcome::Peak(MiB(36_000)), std::slice::from_ref(&share));
        let on = |gpu: &str| {
            let question = Question {
                signature: &signature("vllm serve m"),
                place: &Place { gpu: gpu.into(), ..place() },
                // A configuration says less than it takes.
                estimates: &[summary(4000), share.clone()],
                declared_mib: None,
                gpu_mib: MiB(141_000),
                elastic: false,
            };
            answer(&history, &question, &Settings::default()).unwrap().estimate
        };
        assert_eq!((on("H200").tier, on("H200").use_mib), (Tier::Exact, MiB(36_000)));
        assert_eq!(on("B200").tier, Tier::Share);
        // Of the largest type, as the client sends it, they took less; that is no error of the share.
        for i in 0..30 {
            let line = format!("vllm serve m{i}");
            learn(&mut history, &line, Outcome::Peak(MiB(36_000)), std::slice::from_ref(&share));
        }
        assert_eq!(history.groups().count(), 0);
        for i in 0..30 {
            let other = Estimate { tier: Tier::Formula, ..share.clone() };
            learn(&mut history, &format!("other{i}.py"), Outcome::Peak(MiB(36_000)), &[other]);
        }
        assert!(history.groups().count() > 0);
        assert_eq!(ask(&history, "vllm serve new", std::slice::from_ref(&share), None), Some(share));
    }

    #[test]
    fn elastic_until_it_was_seen() {
        let mut history = History::default();
        let (signature, place, estimates) = (signature("b.py"), place(), [summary(1000)]);
        let question = Question {
            signature: &signature,
            place: &place,
            estimates: &estimates,
            declared_mib: None,
            gpu_mib: MiB(141_000),
            elastic: true,
        };
        assert!(answer(&history, &question, &Settings::default()).unwrap().elastic);
        learn(&mut history, "b.py", Outcome::Peak(MiB(30_000)), &estimates);
        assert!(!answer(&history, &question, &Settings::default()).unwrap().elastic);
    }
}
