//! The public text of no reason gives a user's own words away.

use super::public::public_status;
use super::{Aside, Eviction, Filling, Holder, Narrowed, NoGpu, Objection, Reason, Refusal, UserLimit};
use crate::policy::{GateVerdict, NeedSource, Order, Pack};
use crate::progress::Predicted;
use crate::recovery::{Blame, Evidence, EvidenceKind, Floor};
use crate::spec::{JobId, SharingMode};
use crate::units::{Fraction, MiB, Millis};
use serde_json::Value;
use std::sync::Arc;

const SECRET: &str = "password-of-the-db";

/// One of each, with everything in it that can be.
fn all() -> Vec<Reason> {
    let text = || "text".to_owned();
    let (job, gpus, m) = (JobId(7), vec![1, 2], MiB(900));
    let holders = vec![
        Holder::Job { job, memory: m, has: Some(m), untouched_for: None },
        Holder::Foreign { pid: 9, user: Some("bob".into()), memory: Some(m) },
    ];
    let refusals = vec![
        Refusal::Gone,
        Refusal::Unhealthy { why: text() },
        Refusal::Drained { by: "root".into() },
        Refusal::Stale { age: None },
        Refusal::Busy { holders: holders.clone() },
        Refusal::Exclusive { job },
        Refusal::TooSmall { memory: m },
        Refusal::Slice,
        Refusal::Memory { free: m, holders },
        Refusal::Starting { job, active_for: None, window: Millis(1) },
        Refusal::Rising { job, holds: m, forecast: m, window: Millis(1) },
        Refusal::Gate(GateVerdict::Open),
        Refusal::Full { most: 1 },
        Refusal::Pack { rule: Pack::Any, load: None, newcomer: None },
        Refusal::Progress(Objection::Slowdown {
            job,
            expected: Fraction(1),
            upper: Fraction(2),
            limit: Fraction(3),
        }),
        Refusal::Progress(Objection::Unpredicted { job: None, limited: None }),
        Refusal::Progress(Objection::Unprofiled { job: None }),
        Refusal::Progress(Objection::Uncontrolled),
        Refusal::Progress(Objection::Apart { job }),
        Refusal::Progress(Objection::Floor { job, expected: Fraction(1), floor: Fraction(2), unsure: false }),
        Refusal::Progress(Objection::TooSlow { job, measured: Fraction(1), least: Fraction(2) }),
        Refusal::Progress(Objection::Unmeasured { job }),
        Refusal::Progress(Objection::WholeRun { job, whole: Fraction(1), least: Fraction(2), unsure: true }),
        Refusal::Progress(Objection::Gain { gain: Fraction(1), least: Fraction(2) }),
        Refusal::Progress(Objection::Bad),
        Refusal::Held { job },
        Refusal::MpsCooldown { left: Millis(1) },
    ];
    let no_gpu = refusals.into_iter().map(|refusal| Reason::NoGpu {
        gpus: 1,
        need: Some(m),
        guard: m,
        source: None,
        detail: Arc::new(NoGpu { fitting: 0, refusals: vec![(0, refusal)], ..NoGpu::default() }),
    });
    let neighbour = Blame::Neighbour { job: None, pid: Some(1), user: Some("bob".into()) };
    let mut reasons = vec![
        Reason::PlacedIdle { gpus: gpus.clone(), need: Some(m), source: None },
        Reason::PlacedShared {
            gpus,
            need: Some(m),
            source: Some(NeedSource::Declared),
            fullest: Some(0),
            free: m,
            neighbours: 1,
            smact: Some(Fraction(1)),
            order: Order::Magm,
            candidates: 3,
            sharing: SharingMode::Mps,
            predicted: vec![Predicted { job, expected: Fraction(1), lower: None }],
            over: vec![job],
            threads: Some(Narrowed {
                percent: 50,
                job,
                limit: Fraction(1),
                upper: Some(Fraction(1)),
                keeps: Some(Fraction(1)),
            }),
            floor: Some(Fraction(1)),
        },
        Reason::Behind { job, overtaken_for: None },
        Reason::Later { last: job },
        Reason::UserLimit { user: "bob".into(), limit: UserLimit::Gpus { wanted: 1, used: 2, most: 2 } },
        Reason::UserLimit {
            user: "bob".into(),
            limit: UserLimit::GpuHours { used: Millis::secs(7000), most: 1, left: Millis::secs(60) },
        },
        Reason::UserLimit {
            user: "bob".into(),
            limit: UserLimit::Energy { used_j: 7_300_000, most_j: 7_200_000, left: Millis::secs(60) },
        },
        Reason::Held { by: "bob".into(), operator: false },
        Reason::Held { by: "bob".into(), operator: true },
        Reason::UserGone { user: "bob".into(), uid: 1001, now: Some("eve".into()) },
        Reason::UserGone { user: "bob".into(), uid: 1001, now: None },
        Reason::Pause { error: text(), until: Millis(1) },
        Reason::Launching,
        Reason::NotPlannedYet,
        Reason::Judging,
        Reason::Completed,
        Reason::CommandFailed {
            status: text(),
            evidence: Some(Evidence { kind: EvidenceKind::OwnError, line: text() }),
        },
        Reason::NotStarted { why: text() },
        Reason::LaunchFailed { error: text() },
        Reason::NotLaunched { why: text() },
        Reason::HostMemoryLimit { limit: Some(m), peak: Some(m), killed: 2 },
        Reason::HostMemoryLimit { limit: None, peak: None, killed: 1 },
        Reason::ExitUnknown,
        Reason::Cancelled { by: "bob".into() },
        Reason::RequeuedByUser { by: "bob".into() },
        Reason::Evicted(Eviction {
            job,
            slowdown: Fraction(1),
            limit: Fraction(1),
            apart: vec![job],
            together: None,
        }),
        Reason::GrowthGuard {
            filling: Filling { gpu: 1, memory: m, free: m, left: m, held: m, exceeded: Some(m) },
            next: Some(Floor::Memory(m)),
        },
        Reason::MadeRoom { job },
        Reason::SetAside {
            cause: Aside::Evicted {
                job,
                slowdown: Fraction(1),
                limit: Fraction(1),
                by_policy: false,
                together: None,
            },
            waits: Some(Box::new(Reason::NotResumed { why: text(), until: Millis(1) })),
        },
        Reason::SetAside { cause: Aside::Room { job }, waits: None },
        Reason::Suspended { by: "bob".into(), host: m },
        Reason::Ending { why: Box::new(Reason::Stuck { why: text() }) },
        Reason::Moving { off: true },
        Reason::Moved { by: "bob".into(), from: 1 },
        Reason::RunsOn { why: text() },
        Reason::NotResumed { why: text(), until: Millis(1) },
        Reason::Stuck { why: text() },
        Reason::TimeLimit { limit: Millis(1) },
        Reason::OutOfMemoryRetry {
            blame: neighbour.clone(),
            next: Some(Floor::Memory(m)),
            retries: 1,
            max_retries: 2,
        },
        Reason::OutOfMemoryFinal { blame: neighbour, why: "text".into() },
        Reason::HostOutOfMemory { line: text() },
        Reason::FaultVictim { culprit: Some(job), line: text() },
        Reason::FaultVictim { culprit: None, line: text() },
        Reason::FaultSuspect { line: text(), others: vec![job], because: "text".into() },
        Reason::FaultCulprit { line: text(), victims: vec![job], because: "text".into() },
        Reason::GpuLost { line: text() },
    ];
    reasons.extend(no_gpu);
    reasons
}

/// Puts the secret into one string after the other, wherever the reason still is one then. Names of users and
/// words of an enumeration are no texts.
fn marked(reason: &Reason) -> Reason {
    fn leaves(value: &Value, at: &str, found: &mut Vec<String>) {
        match value {
            Value::String(_) => found.push(at.to_owned()),
            Value::Array(items) => {
                items.iter().enumerate().for_each(|(i, v)| leaves(v, &format!("{at}/{i}"), found));
            }
            Value::Object(map) => map.iter().for_each(|(k, v)| leaves(v, &format!("{at}/{k}"), found)),
            _ => {}
        }
    }
    let mut value = serde_json::to_value(reason).unwrap();
    let mut found = Vec::new();
    leaves(&value, "", &mut found);
    for at in found.iter().filter(|at| !["/by", "/user", "/now"].iter().any(|name| at.ends_with(name))) {
        let mut with = value.clone();
        *with.pointer_mut(at).unwrap() = Value::String(SECRET.into());
        if serde_json::from_value::<Reason>(with.clone()).is_ok() {
            value = with;
        }
    }
    serde_json::from_value(value).unwrap()
}

#[test]
fn the_public_text_of_no_reason_has_a_word_that_is_a_users_own() {
    let mut hidden = 0;
    for reason in all() {
        let marked = marked(&reason);
        let public = marked.public_text();
        assert!(!public.is_empty() && !public.contains(SECRET), "{marked:?}: {public}");
        hidden += usize::from(marked.to_string().contains(SECRET));
    }
    // The markers do arrive where the full text shows them.
    assert_eq!(hidden, 18, "reasons whose full text has a text of its own");
}

#[test]
fn few_words_have_none_of_a_users_own_either() {
    for reason in all() {
        let marked = marked(&reason);
        let Reason::NoGpu { detail, .. } = &marked else {
            assert!(marked.chosen_for().is_none_or(|text| !text.contains(SECRET)), "{marked:?}");
            continue;
        };
        for (_, refusal) in &detail.refusals {
            let brief = refusal.public().brief();
            assert!(!brief.is_empty() && !brief.contains(SECRET), "{brief}");
            // On a screen of 80 columns the answer has some forty.
            assert!(brief.chars().count() <= 60, "{brief}");
        }
    }
}

/// Does not compile when a variant is new, and fails when [`all`] does not have it.
#[test]
fn every_reason_is_tried() {
    let number = |reason: &Reason| match reason {
        Reason::PlacedIdle { .. } => 0,
        Reason::PlacedShared { .. } => 1,
        Reason::NoGpu { .. } => 2,
        Reason::Behind { .. } => 3,
        Reason::UserLimit { .. } => 4,
        Reason::Held { .. } => 5,
        Reason::Pause { .. } => 6,
        Reason::Launching => 7,
        Reason::NotPlannedYet => 8,
        Reason::Judging => 9,
        Reason::Completed => 10,
        Reason::CommandFailed { .. } => 11,
        Reason::NotStarted { .. } => 12,
        Reason::LaunchFailed { .. } => 13,
        Reason::ExitUnknown => 14,
        Reason::Cancelled { .. } => 15,
        Reason::RequeuedByUser { .. } => 16,
        Reason::Evicted(_) => 17,
        Reason::TimeLimit { .. } => 18,
        Reason::OutOfMemoryRetry { .. } => 19,
        Reason::OutOfMemoryFinal { .. } => 20,
        Reason::HostOutOfMemory { .. } => 21,
        Reason::FaultVictim { .. } => 22,
        Reason::FaultCulprit { .. } => 23,
        Reason::GpuLost { .. } => 24,
        Reason::NotLaunched { .. } => 25,
        Reason::HostMemoryLimit { .. } => 26,
        Reason::Later { .. } => 27,
        Reason::GrowthGuard { .. } => 28,
        Reason::Suspended { .. } => 29,
        Reason::Moving { .. } => 30,
        Reason::NotResumed { .. } => 31,
        Reason::Stuck { .. } => 32,
        Reason::RunsOn { .. } => 33,
        Reason::MadeRoom { .. } => 34,
        Reason::SetAside { .. } => 35,
        Reason::Moved { .. } => 36,
        Reason::FaultSuspect { .. } => 37,
        Reason::Ending { .. } => 38,
        Reason::UserGone { .. } => 39,
    };
    let tried: std::collections::BTreeSet<usize> = all().iter().map(number).collect();
    assert_eq!(tried.into_iter().collect::<Vec<_>>(), (0..40).collect::<Vec<_>>());
}

#[test]
fn an_exit_status_is_public_and_nothing_that_looks_like_one() {
    for text in ["exit code 1", "exit code -1", "signal 9 (SIGKILL)", "signal 64", "exit status unknown"] {
        assert_eq!(public_status(text), Some(text));
    }
    for text in
        ["exit code 1; log: x", "exit code", "signal 9 (secret)", "signal 9 (A) b", "exit code 99999999999"]
    {
        assert_eq!(public_status(text), None, "{text}");
    }
}

/// A user's own numbers are private; other users learn only that a quota is used up, which is why GPUs may be idle.
#[test]
fn quotas_are_told_with_numbers_to_their_user_alone() {
    let limit = UserLimit::Energy { used_j: 7_380_000, most_j: 7_200_000, left: Millis::secs(3600) };
    let reason = Reason::UserLimit { user: "bob".into(), limit };
    let own = "UserLimit(bob has used 2.0 of 2.0 kWh in this period; the next one begins in 1 h)";
    assert_eq!(reason.to_string(), own);
    let public = "UserLimit(bob has used up a quota; the next period begins in 1 h)";
    assert_eq!(reason.public_text(), public);
}

#[test]
fn what_falls_short_never_reads_like_what_is_asked_for() {
    let text = |kept, floor| {
        Refusal::Progress(Objection::Floor {
            job: JobId(7),
            expected: Fraction(kept),
            floor: Fraction(floor),
            unsure: false,
        })
        .to_string()
    };
    assert_eq!(text(4996, 5000), "job 7 would keep 0.49 of its speed, and the policy asks for 0.50");
    assert_eq!(text(4860, 5000), "job 7 would keep 0.49 of its speed, and the policy asks for 0.50");
    assert_eq!(text(2, 5000), "job 7 would keep 0.00 of its speed, and the policy asks for 0.50");
    let whole = Refusal::Progress(Objection::WholeRun {
        job: JobId(7),
        whole: Fraction(5999),
        least: Fraction(6000),
        unsure: true,
    });
    assert!(
        whole.to_string().starts_with("job 7 would keep 0.59 of its speed over its whole run")
            && whole.to_string().ends_with("asks for 0.60 with a command that was never seen alone"),
        "{whole}"
    );
}

#[test]
fn of_gpus_that_are_gone_it_says_how_many_are_left() {
    let text = |gpus, fitting, refusals: &[(u32, Refusal)]| {
        let detail = Arc::new(NoGpu { fitting, refusals: refusals.to_vec(), ..NoGpu::default() });
        Reason::NoGpu { gpus, need: None, guard: MiB::ZERO, source: None, detail }.to_string()
    };
    let busy = Refusal::Busy { holders: vec![] };
    let cannot = "it cannot start until there are more";
    assert_eq!(
        text(4, 1, &[(1, Refusal::Gone), (2, busy.clone()), (3, Refusal::Gone)]),
        format!("GpuUnavailable(it asks for 4 GPUs, and 2 are left in this machine: {cannot})")
    );
    assert!(text(2, 1, &[(1, Refusal::Gone)]).contains("and 1 is left in"));
    assert!(!text(2, 1, &[(1, Refusal::Gone), (2, busy)]).contains("left"));
    assert_eq!(text(1, 0, &[(1, Refusal::Gone)]), "GpuUnavailable(once GPU 1: no longer in this machine)");
}

#[test]
fn rounding_does_not_hide_that_memory_is_missing() {
    let text = |free| {
        let refusals = vec![(0, Refusal::Memory { free: MiB(free), holders: vec![] })];
        let detail = Arc::new(NoGpu { fitting: 0, refusals, ..NoGpu::default() });
        let (need, guard) = (Some(MiB(32_768)), MiB(512));
        Reason::NoGpu { gpus: 1, need, guard, source: None, detail }.to_string()
    };
    assert_eq!(text(32_750), "GpuMemory(need 32256 MiB + 512 MiB guard; best is GPU 0 with 32750 MiB free)");
    assert_eq!(text(32_700), "GpuMemory(need 31.5 GiB + 512 MiB guard; best is GPU 0 with 31.9 GiB free)");
}

#[test]
fn what_is_reserved_is_told_from_what_a_job_has() {
    let holder = |has, untouched_for| Holder::Job { job: JobId(1), memory: MiB(22_733), has, untouched_for };
    let text = |has| holder(has, None).to_string();
    assert_eq!(text(Some(MiB(17_408))), "22.2 GiB reserved for job 1 (it has 17.0 GiB)");
    assert_eq!(text(None), "22.2 GiB reserved for job 1");
    assert_eq!(text(Some(MiB(22_733))), "22.2 GiB held by job 1");
    assert_eq!(
        holder(None, Some(Millis::secs(40))).to_string(),
        "22.2 GiB reserved for job 1, which has not touched the GPU for 40 s"
    );
    // As an earlier carma wrote it.
    let written = r#"{"job":{"job":1,"memory":22733}}"#;
    let holder: Holder = serde_json::from_str(written).unwrap();
    assert_eq!(serde_json::to_string(&holder).unwrap(), written);
}

#[test]
fn a_retry_beyond_the_last_says_why_there_is_one() {
    let blame = Blame::WholeGpu { capacity: MiB::gib(16) };
    let retry = |retries, max_retries| {
        Reason::OutOfMemoryRetry { blame: blame.clone(), next: None, retries, max_retries }.to_string()
    };
    assert!(retry(1, 1).ends_with("retried (retry 1 of 1)"), "{}", retry(1, 1));
    let only = "retried (beyond its only retry, since there is a larger GPU)";
    assert!(retry(2, 1).ends_with(only), "{}", retry(2, 1));
    assert!(retry(6, 5).ends_with("retried (beyond its 5 retries, since there is a larger GPU)"));
}
