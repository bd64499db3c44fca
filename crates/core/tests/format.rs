//! What journals hold keeps its shape: names that serde writes outlive the names in the code.
#![allow(clippy::unwrap_used, reason = "a test: it fails where it must")]

use carma_core::explain::{Eviction, Objection, Reason, Refusal};
use carma_core::input::Ignored;
use carma_core::ledger::{Reservation, Tenant};
use carma_core::model::{
    Basis, Computed, EndCause, EndLevel, Ending, Estimates, Estimator, Exit, Forecasts, JobId, NewJob,
    Request, RunTime, RunsOf,
};
use carma_core::policy::{Allowance, ForecastSource, NeedSource, Options};
use carma_core::units::{Fraction, MiB, Millis};
use carma_core::{Input, State};

#[test]
fn an_eviction_is_written_as_undone() {
    let (job, slowdown, limit, apart) = (JobId(1), Fraction(20_000), Fraction(13_000), vec![JobId(2)]);
    let written = r#"{"undone":{"job":1,"slowdown":20000,"limit":13000,"apart":[2]}}"#;
    let eviction = Eviction { job, slowdown, limit, apart, together: None };
    let cause = EndCause::Evicted(eviction.clone());
    assert_eq!(serde_json::to_string(&cause).unwrap(), written);
    assert_eq!(serde_json::from_str::<EndCause>(written).unwrap(), cause);
    let reason = Reason::Evicted(eviction);
    assert_eq!(serde_json::to_string(&reason).unwrap(), written);
    assert_eq!(serde_json::from_str::<Reason>(written).unwrap(), reason);
}

/// As carma 0.1 wrote them, when each estimator was a field of its own.
#[test]
fn forecasts_read_and_write_as_they_did_by_field() {
    let computed = Computed {
        need: MiB(1),
        likely: MiB(2),
        upper: MiB(3),
        basis: Basis::Exact,
        coverage: 95,
        elastic: false,
        of_gpu: None,
    };
    let number = |estimator: Estimator| MiB(10 + estimator as u64);
    let then = |estimator: &Estimator| *estimator <= Estimator::Gpumemnet;
    let all = Forecasts {
        declared: Some(MiB(9)),
        estimates: Estimates::by(|estimator| then(&estimator).then(|| number(estimator))),
        computed: Some(computed),
    };
    let written = concat!(
        r#"{"declared":9,"measured":10,"horus":11,"faketensor":12,"gpumemnet":13,"#,
        r#""computed":{"need":1,"likely":2,"upper":3,"basis":"exact","coverage":95}}"#
    );
    assert_eq!(serde_json::to_string(&all).unwrap(), written);
    assert_eq!(serde_json::from_str::<Forecasts>(written).unwrap(), all);
    assert_eq!(serde_json::from_value::<Forecasts>(serde_json::to_value(all).unwrap()).unwrap(), all);
    for estimator in Estimator::ALL {
        let one = Forecasts {
            estimates: Estimates::default().with(estimator, Some(number(estimator))),
            ..Forecasts::default()
        };
        let written = format!(r#"{{"{}":{}}}"#, estimator.name(), number(estimator).0);
        assert_eq!(serde_json::to_string(&one).unwrap(), written);
        assert_eq!(serde_json::from_str::<Forecasts>(&written).unwrap(), one);
    }
    assert_eq!(serde_json::to_string(&Forecasts::default()).unwrap(), "{}");
    // Nothing, nothing known, in any order, and what a later carma may add.
    for (text, expected) in [
        ("{}", Forecasts::default()),
        (r#"{"horus":null,"computed":null,"declared":null}"#, Forecasts::default()),
        (
            r#"{"computed":null,"oracle":{"a":[1]},"declared":9}"#,
            Forecasts { declared: Some(MiB(9)), ..Forecasts::default() },
        ),
    ] {
        assert_eq!(serde_json::from_str::<Forecasts>(text).unwrap(), expected, "{text}");
    }
    for wrong in [r#"{"horus":1,"horus":2}"#, r#"{"declared":1,"declared":1}"#, r#"{"horus":"1"}"#, "7"] {
        serde_json::from_str::<Forecasts>(wrong).unwrap_err();
    }
}

/// Journals and programs have them among the other refusals.
#[test]
fn what_progress_has_against_a_job_is_written_as_a_refusal() {
    let (job, low, high) = (JobId(7), Fraction(4000), Fraction(5000));
    for (objection, written) in [
        (
            Objection::Slowdown { job, expected: low, upper: high, limit: low },
            r#"{"slowdown":{"job":7,"expected":4000,"upper":5000,"limit":4000}}"#,
        ),
        (
            Objection::Unpredicted { job: None, limited: Some(job) },
            r#"{"unforeseen":{"job":null,"limited":7}}"#,
        ),
        (Objection::Unprofiled { job: Some(job) }, r#"{"unprofiled":{"job":7}}"#),
        (Objection::Uncontrolled, r#""uncontrolled""#),
        (Objection::Apart { job }, r#"{"apart":{"job":7}}"#),
        (
            Objection::Floor { job, expected: low, floor: high, unsure: false },
            r#"{"floor":{"job":7,"expected":4000,"floor":5000}}"#,
        ),
        (
            Objection::TooSlow { job, measured: low, least: high },
            r#"{"too_slow":{"job":7,"measured":4000,"least":5000}}"#,
        ),
        (Objection::Unmeasured { job }, r#"{"unmeasured":{"job":7}}"#),
        (
            Objection::WholeRun { job, whole: low, least: high, unsure: true },
            r#"{"whole_run":{"job":7,"whole":4000,"least":5000,"unsure":true}}"#,
        ),
        (Objection::Gain { gain: low, least: high }, r#"{"gain":{"gain":4000,"least":5000}}"#),
        (Objection::Bad, r#""bad""#),
    ] {
        let refusal = Refusal::Progress(objection);
        assert_eq!(serde_json::to_string(&refusal).unwrap(), written);
        assert_eq!(serde_json::from_str::<Refusal>(written).unwrap(), refusal);
    }
}

/// Names of carma 0.1 for what is called otherwise since.
#[test]
fn predictions_and_reservations_are_written_as_they_were() {
    let input = Input::Foreseen(Ignored);
    let written = r#"{"foreseen":[{"newcomer":3,"gpu":0,"sharing":"mps","tasks":[],"before":10000}]}"#;
    assert_eq!(serde_json::to_string(&input).unwrap(), r#"{"foreseen":[]}"#);
    assert_eq!(serde_json::from_str::<Input>(written).unwrap(), input);

    let refusal = Refusal::Progress(Objection::Unpredicted { job: Some(JobId(7)), limited: None });
    let written = r#"{"unforeseen":{"job":7}}"#;
    assert_eq!(serde_json::to_string(&refusal).unwrap(), written);
    assert_eq!(serde_json::from_str::<Refusal>(written).unwrap(), refusal);
    assert_eq!(
        refusal.to_string(),
        "a job limits its slowdown or latency, and job 7 has not been seen alone yet (half a minute of work on a GPU of its own is enough)"
    );

    let written = concat!(
        r#"{"job":1,"promise":{"memory":1024},"forecast":1024,"exclusive":false,"observed":null,"peak":null,"#,
        r#""placed":5,"active_since":null,"settled":false,"shared":false}"#
    );
    let tenant: Tenant = serde_json::from_str(written).unwrap();
    assert_eq!(tenant.reservation, Reservation::Memory(MiB(1024)));
    assert_eq!(serde_json::to_string(&tenant).unwrap(), written);
}

/// A job that an earlier carma accepted has no forecast of its run time; where nothing is known, none is written.
#[test]
fn jobs_without_a_run_time_read_and_write_as_they_did() {
    let written = concat!(
        r#"{"id":1,"user":{"uid":1,"name":"a"},"name":"j","command_key":7,"request":{"gpus":1,"priority":0},"#,
        r#""forecasts":{}}"#
    );
    let mut job: NewJob = serde_json::from_str(written).unwrap();
    assert_eq!((job.run_time, serde_json::to_string(&job).unwrap().as_str()), (None, written));
    let run_time = RunTime {
        low_s: 1,
        median_s: 2,
        high_s: 3,
        basis: RunsOf::Program,
        runs: 4,
        commands: 0,
        counted: false,
        scaled: false,
        exact: false,
    };
    job.run_time = Some(run_time);
    let with = r#""run_time":{"low_s":1,"median_s":2,"high_s":3,"basis":"program","runs":4}"#;
    let text = serde_json::to_string(&job).unwrap();
    assert!(text.contains(with), "{text}");
    assert_eq!(serde_json::from_str::<NewJob>(&text).unwrap(), job);
    let text = serde_json::to_string(&Input::RunTime { job: JobId(1), run_time }).unwrap();
    assert_eq!(text, format!(r#"{{"run_time":{{"job":1,{with}}}}}"#));
}

/// A job that an earlier carma accepted is not asked to save its work, and an end that it decided waits for none.
#[test]
fn jobs_that_are_not_asked_to_save_read_and_write_as_they_did() {
    let written = r#"{"gpus":1,"priority":0}"#;
    let mut request: Request = serde_json::from_str(written).unwrap();
    assert_eq!((request.save_grace, serde_json::to_string(&request).unwrap().as_str()), (None, written));
    request.save_grace = Some(Millis::secs(120));
    let text = serde_json::to_string(&request).unwrap();
    assert_eq!(text, r#"{"gpus":1,"priority":0,"save_grace":120000}"#);
    assert_eq!(serde_json::from_str::<Request>(&text).unwrap(), request);

    let written = r#"{"cause":{"requeued":{"by":"a"}},"sent":["terminate",7]}"#;
    let mut ending: Ending = serde_json::from_str(written).unwrap();
    assert_eq!((ending.cannot_save, serde_json::to_string(&ending).unwrap().as_str()), (false, written));
    ending.sent = Some((EndLevel::Checkpoint, Millis(7)));
    ending.cannot_save = true;
    let written = r#"{"cause":{"requeued":{"by":"a"}},"sent":["checkpoint",7],"cannot_save":true}"#;
    assert_eq!(serde_json::to_string(&ending).unwrap(), written);
    assert_eq!(serde_json::from_str::<Ending>(written).unwrap(), ending);

    let input = Input::CannotSave { job: JobId(1), attempt: 2, why: "no".into() };
    let written = r#"{"cannot_save":{"job":1,"attempt":2,"why":"no"}}"#;
    assert_eq!(serde_json::to_string(&input).unwrap(), written);
    assert_eq!(serde_json::from_str::<Input>(written).unwrap(), input);
}

/// Supervisors from before carma recorded it do not tell whether the command was asked to end, and journals of theirs neither.
#[test]
fn ends_of_which_it_is_not_known_whether_they_were_asked_for_read_and_write_as_they_did() {
    let written = r#"{"status":{"code":0},"evidence":null,"not_started":null}"#;
    let mut exit: Exit = serde_json::from_str(written).unwrap();
    assert_eq!((exit.asked, serde_json::to_string(&exit).unwrap().as_str()), (None, written));
    exit.asked = Some(false);
    let written = r#"{"status":{"code":0},"evidence":null,"not_started":null,"asked":false}"#;
    assert_eq!(serde_json::to_string(&exit).unwrap(), written);
    assert_eq!(serde_json::from_str::<Exit>(written).unwrap(), exit);
}

/// Sources of forecasts had names of their own before any estimator could be one.
#[test]
fn policies_and_reasons_name_estimators_as_they_did() {
    for (source, written) in [
        (ForecastSource::Best, "best"),
        (ForecastSource::By(Estimator::Measured), "measured"),
        (ForecastSource::By(Estimator::Horus), "horus"),
        (ForecastSource::By(Estimator::Faketensor), "faketensor"),
        (ForecastSource::By(Estimator::Gpumemnet), "gpumemnet"),
        (ForecastSource::By(Estimator::Allocator), "allocator"),
        (ForecastSource::By(Estimator::GpumemnetTransformer), "gpumemnet-transformer"),
    ] {
        assert_eq!(serde_json::to_string(&source).unwrap(), format!("\"{written}\""));
        assert_eq!(serde_json::from_str::<ForecastSource>(&format!("\"{written}\"")).unwrap(), source);
    }
    serde_json::from_str::<ForecastSource>("\"oracle\"").unwrap_err();
    for (source, written) in [
        (NeedSource::Declared, r#""declared""#),
        (NeedSource::By(Estimator::Measured), r#""measured""#),
        (NeedSource::By(Estimator::Horus), r#""horus""#),
        (NeedSource::By(Estimator::Faketensor), r#""faketensor""#),
        (NeedSource::By(Estimator::Gpumemnet), r#""gpumemnet""#),
        (NeedSource::By(Estimator::Allocator), r#""allocator""#),
        (
            NeedSource::Computed { basis: Basis::Exact, coverage: 95 },
            r#"{"computed":{"basis":"exact","coverage":95}}"#,
        ),
        (NeedSource::OutOfMemory, r#""out_of_memory""#),
        (NeedSource::Held, r#""held""#),
        (NeedSource::PolicyFloor, r#""policy_floor""#),
    ] {
        assert_eq!(serde_json::to_string(&source).unwrap(), written);
        assert_eq!(serde_json::from_str::<NeedSource>(written).unwrap(), source);
    }
}

/// Before carma told the policies named `oracle` what it had measured.
#[test]
fn forecasts_from_runs_are_read_as_they_were() {
    let written = concat!(
        r#"{"forecast":{"job":1,"computed":{"need":1,"likely":2,"upper":3,"basis":"exact","#,
        r#""coverage":95}}}"#
    );
    let input: Input = serde_json::from_str(written).unwrap();
    assert!(matches!(&input, Input::Forecast { measured: None, .. }), "{input:?}");
    assert_eq!(serde_json::to_string(&input).unwrap(), written);
}

/// A state and options from before there were accounts, shares and quotas.
#[test]
fn states_without_accounts_are_read() {
    let mut written = serde_json::to_value(State::default()).unwrap();
    let keys = written.as_object_mut().unwrap();
    for key in ["accounts", "shadows", "weights"] {
        assert!(!keys.contains_key(key), "{key} is written where there is nothing to say");
    }
    // One shadow for all users.
    keys.insert("shadow".into(), serde_json::json!({"free": {"100": 2}, "last": 7}));
    assert_eq!(serde_json::from_value::<State>(written).unwrap(), State::default());
    let options = serde_json::to_value(Options::default()).unwrap();
    for key in ["usage_half_life", "quota_period", "allowances"] {
        assert!(options.get(key).is_none(), "{key}");
    }
    let allowance = Allowance { jobs: Some(3), ..Allowance::default() };
    assert_eq!(serde_json::to_string(&allowance).unwrap(), r#"{"jobs":3}"#);
    assert_eq!(serde_json::from_str::<Allowance>(r#"{"jobs":3}"#).unwrap(), allowance);
}
