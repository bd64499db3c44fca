//! The page of runs of all shapes: it must always be well-formed, whatever comes in.

use super::text::UNKNOWN;
use super::*;
use crate::event::outcome::{End, Stretch, Summary};
use crate::report::example;
use carma_core::units::Millis;

fn shown(runs: &[RunResult]) -> String {
    let notes = ["Interference is modelled.".to_owned()];
    let page = page(&PageInput {
        origin: Origin::Simulated,
        title: "60 jobs on 4 GPUs",
        trace: "trace-60",
        cluster: "4xA100-40GB",
        command: "carma simulate --trace trace-60.csv --cluster 4xA100-40GB --policy exclusive --policy magm",
        date: "2026-03-01 12:00 UTC",
        notes: &notes,
        runs,
        joules: &[],
    });
    well_formed(&page);
    page
}

/// Every tag that is opened is closed in its place, attributes are quoted, and no number is none.
fn well_formed(page: &str) {
    let (head, script) = page.split_once("<script>").unwrap();
    assert_eq!(script.matches("<script").count(), 0);
    let (head, body) = head.split_once("</style></head>").unwrap();
    assert!(head.starts_with("<!doctype html>"));
    let mut open: Vec<&str> = Vec::new();
    for piece in body.split('<').skip(1) {
        let (tag, _) = piece.split_once('>').unwrap_or_else(|| panic!("an open angle bracket: {piece}"));
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        for odd in ["NaN", "inf", "e+", "\"-0\""] {
            let attributes = tag.split_once("aria-label").map_or(tag, |(before, _)| before);
            assert!(!attributes.contains(odd), "{tag}");
        }
        let name = tag.trim_start_matches('/').split([' ', '/', '\n']).next().unwrap();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "closed out of order");
        } else if !tag.ends_with('/') && name != "br" {
            open.push(name);
        }
    }
    assert_eq!(open, ["body"], "left open before the script");
}

fn three() -> Vec<RunResult> {
    example::runs(4, 60, &["exclusive", "magm", "random"], 7)
}

#[test]
fn three_policies_have_all_sections() {
    let page = shown(&three());
    for id in ["figures", "activity", "gantt", "spread", "energy", "ooms"] {
        assert!(page.contains(&format!("<section id=\"{id}\">")), "{id}");
    }
    assert!(page.contains("a model, not a measurement"));
    assert!(page.contains("ended out of memory"));
    assert!(!page.contains("class=\"absent\""));
    assert!(page.len() < 1_000_000, "{} bytes", page.len());
    // To look at it: CARMA_TEST_PAGE=/tmp/page.html cargo test -p carma-sim three_policies
    if let Some(file) = std::env::var_os("CARMA_TEST_PAGE") {
        std::fs::write(file, page).unwrap();
    }
}

#[test]
fn nothing_is_fetched() {
    let page = shown(&three());
    for outside in ["http:", "https:", "url(", "@import", "<link rel=\"style", "src="] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(page.contains("default-src 'none'"));
}

#[test]
fn hostile_names_stay_text() {
    let evil = "</title></svg><script>alert(1)</script>\"'&\u{0}\u{202e}<img src=x onerror=y>";
    let mut runs = three();
    for run in &mut runs {
        run.policy = format!("{} {evil}", run.policy);
        run.sharing = evil.into();
        for job in &mut run.jobs {
            (job.id, job.task, job.user) = (evil.into(), evil.into(), evil.into());
        }
        for oom in &mut run.ooms {
            oom.task = evil.into();
        }
    }
    let notes = [evil.to_owned()];
    let page = page(&PageInput {
        origin: Origin::Simulated,
        title: evil,
        trace: evil,
        cluster: evil,
        command: evil,
        date: evil,
        notes: &notes,
        runs: &runs,
        joules: &[JobEnergy {
            id: evil.into(),
            task: evil.into(),
            user: evil.into(),
            ..JobEnergy::default()
        }],
    });
    well_formed(&page);
    assert_eq!(page.matches("<script").count(), 1);
    assert!(!page.contains("<img") && !page.contains('\0') && !page.contains('\u{202e}'));
}

#[test]
fn energy_of_a_part_of_the_time_is_no_saving() {
    let runs = three();
    let page = |unmetered_s| {
        let job = JobEnergy {
            id: "7".into(),
            energy_j: 250_700.0,
            alone_j: Some(320_700.0),
            unmetered_s,
            ..JobEnergy::default()
        };
        page(&PageInput {
            origin: Origin::Recorded,
            title: "",
            trace: "",
            cluster: "",
            command: "",
            date: "",
            notes: &[],
            runs: &runs,
            joules: &[job],
        })
    };
    assert!(page(0.0).contains("each over all of its time and by its share"));
    let partly = page(180.0);
    well_formed(&partly);
    assert!(
        !partly.contains("all of its time and") && partly.contains("<td>\u{2265}\u{a0}251</td>"),
        "{partly}"
    );
    assert!(
        partly.contains("of 1 of them no counter tells of a part of their time, 3.00 min on GPUs together")
    );
}

#[test]
fn no_runs_and_no_jobs() {
    assert!(shown(&[]).contains("no runs to show"));
    let page = shown(&example::runs(4, 0, &["exclusive", "magm"], 7));
    assert!(page.contains("class=\"absent\""));
    // Nothing to compare with nothing.
    assert!(!page.contains("% %"));
}

#[test]
fn without_detail_it_says_what_is_missing() {
    let mut runs = three();
    for run in &mut runs {
        run.jobs.clear();
        run.stretches.clear();
        run.ooms.clear();
        run.series.clear();
        run.step_s = 0.0;
    }
    // Activity, tasks, distributions, and the list of crashes.
    assert_eq!(shown(&runs).matches("class=\"absent\"").count(), 4);
}

#[test]
fn one_gpu_and_a_hundred() {
    let one = shown(&example::runs(1, 60, &["magm"], 7));
    assert!(!one.contains("id=\"second\""), "there is nothing to choose from");
    assert!(one.contains("GPU 0") && !one.contains("GPU 1<"));
    let many = shown(&example::runs(100, 300, &["exclusive", "magm"], 7));
    assert!(many.contains("means over all 100 GPUs"));
    assert!(many.contains("The first 32 of 100 GPUs"));
    if let Some(file) = std::env::var_os("CARMA_TEST_PAGE_LARGE") {
        std::fs::write(file, many).unwrap();
    }
}

#[test]
fn what_is_no_number_is_shown_as_unknown() {
    let mut runs = three();
    runs[0].summary.energy_j = f64::NAN;
    runs[1].summary.energy_j = f64::INFINITY;
    runs[1].summary.makespan_s = f64::NAN;
    runs[2].summary.wait_s.mean = f64::NEG_INFINITY;
    runs[2].summary.power_w = -1.0;
    runs[0].series[0].smact[3] = f32::NAN;
    runs[1].series[1].power_w.fill(f32::INFINITY);
    runs[2].step_s = f64::NAN;
    assert!(shown(&runs).contains("<td>–"));
    runs[1].summary = Summary { makespan_s: f64::MAX, energy_j: f64::MAX, ..Summary::default() };
    shown(&runs);
}

#[test]
fn times_beyond_reason_do_no_harm() {
    let mut runs = three();
    runs[0].stretches[0].end = Millis(u64::MAX);
    runs[0].stretches[1].job = u32::MAX;
    runs[0].stretches[2].gpus = vec![u32::MAX, u32::MAX, 0];
    runs[1].jobs[0].end = Some(Millis(u64::MAX));
    runs[1].jobs[0].solo = Millis::ZERO;
    runs[1].jobs[1].last_start = Some(Millis::ZERO);
    runs[2].step_s = 1e300;
    runs[2].stretches[0].how = End::Preempted;
    assert!(shown(&runs).contains("taken back by the policy"));
}

#[test]
fn marks_close_to_each_other_have_labels_of_their_own() {
    let mut run = three().remove(0);
    let job = run.jobs.iter().position(|job| job.end.is_some() && job.solo > Millis::ZERO).unwrap();
    let start = run.jobs[job].arrival;
    run.jobs[job].solo = Millis::secs(100);
    let id = u32::try_from(job).unwrap();
    let mut stretch = run.stretches[0].clone();
    (stretch.job, stretch.start, stretch.end) = (id, start, start + Millis::secs(118));
    stretch.how = End::Completed;
    run.stretches = vec![stretch];
    for (_, other) in run.jobs.iter_mut().enumerate().filter(|(at, _)| *at != job) {
        other.end = None;
    }
    let page = shown(&[run]);
    let (_, chart) = page.split_once("Cumulative distribution: Slowdown").unwrap();
    for label in ["1.00", "1.05", "1.10", "1.15", "1.20"] {
        assert!(chart.contains(&format!(">{label}<")), "{label}");
    }
}

#[test]
fn jobs_without_a_time_alone_are_no_part_of_the_slowdowns() {
    let mut runs = three();
    runs.truncate(1);
    for job in &mut runs[0].jobs {
        job.end = job.end.or(Some(job.arrival));
    }
    let remarks = |page: &str| {
        let (_, section) = page.split_once("Cumulative distribution: Slowdown").unwrap();
        let (section, _) = section.split_once("</section>").unwrap();
        (section.contains("never completed"), section.contains("without 1 job whose time alone"))
    };
    let all = remarks(&shown(&runs));
    runs[0].jobs[0].solo = Millis::ZERO;
    assert_eq!([all, remarks(&shown(&runs))], [(false, false), (false, true)]);
}

#[test]
fn what_a_user_puts_back_into_the_queue_the_policy_did_not_take() {
    let mut runs = three();
    runs[0].stretches[0].how = End::Requeued;
    let page = shown(&runs);
    assert!(page.contains("put back into the queue by its user"));
    assert!(!page.contains("taken back by the policy"));
}

#[test]
fn a_job_that_was_suspended_has_a_gap() {
    let mut runs = three();
    assert!(!shown(&runs).contains("suspended"));
    let first = runs[0].stretches[0].clone();
    runs[0].stretches[0].how = End::Suspended;
    runs[0].stretches.push(Stretch {
        gpus: vec![3],
        start: first.end + Millis::secs(200),
        end: first.end + Millis::secs(300),
        ..first
    });
    let page = shown(&runs);
    for words in [
        "suspended or moved: no bar until it goes on",
        ": suspended or moved, goes on later",
        "class=\"still\"",
    ] {
        assert!(page.contains(words), "{words}");
    }
}

#[test]
fn runs_of_unlike_jobs_are_not_compared() {
    let mut runs = example::runs(4, 60, &["magm", "exclusive"], 7);
    let changes = |page: &str| page.matches("<small class=\"").count() + page.matches("<small>±0").count();
    let page = shown(&runs);
    assert!(changes(&page) > 0 && !page.contains("no change is told"));
    assert!(page.contains("Second line: change against"));
    runs[1].summary.jobs = 20;
    let page = shown(&runs);
    assert!(page.contains("no change is told") && changes(&page) == 0);
    assert!(!page.contains("Second line"), "no row has one");
}

#[test]
fn dates_in_the_heading_are_not_broken() {
    let words = super::whole_words("2026-11-30T16:28:34+00:00 to my-trace.csv");
    assert_eq!(words, "<span>2026-11-30T16:28:34+00:00</span> to <span>my-trace.csv</span>");
    let long = "x-".repeat(20);
    assert_eq!(super::whole_words(&long), long);
}

#[test]
fn very_many_bars_are_cut_to_the_busiest_time() {
    let mut runs = example::runs(2, 60, &["magm"], 7);
    let all = runs[0].stretches.clone();
    let long = all.iter().map(|s| s.end.0).max().unwrap();
    for round in 1..100 {
        runs[0].stretches.extend(all.iter().cloned().map(|mut s| {
            s.start.0 += round * long;
            s.end.0 += round * long;
            s
        }));
    }
    let page = shown(&runs);
    assert!(page.contains("this is the busiest time"));
    assert!(page.matches("<rect class=\"bar").count() <= 2000);
    // All at once.
    for stretch in &mut runs[0].stretches {
        stretch.start = Millis::ZERO;
    }
    let page = shown(&runs);
    assert!(page.matches("<rect class=\"bar").count() <= 2000);
}

#[test]
fn many_policies_have_limits() {
    let names: Vec<String> = (0..50).map(|i| format!("magm gate.smact={i}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let page = shown(&example::runs(2, 20, &names, 7));
    assert!(page.contains("The first 8 of 50 policies are drawn"));
    assert!(page.contains("and 42 more"));
    assert!(page.len() < 1_000_000, "{} bytes", page.len());
    let one = example::runs(1, 3, &["magm"], 7).remove(0);
    let run = |seed: u64| RunResult { seed, ..one.clone() };
    let page = shown(&(0..1200).map(run).collect::<Vec<_>>());
    assert!(page.contains("The first 1000 of 1200 runs are shown"));
}

#[test]
fn equal_policies_are_told_apart() {
    let mut runs = example::runs(1, 5, &["magm", "magm", "magm"], 7);
    runs[1].sharing = "time-slice".into();
    runs[2].seed = 8;
    assert_eq!(names(&runs), ["magm mps seed 7", "magm time-slice", "magm mps seed 8"]);
}

#[test]
fn changes_have_signs_and_do_not_need_colour() {
    let page = shown(&three());
    assert!(page.contains("<small class=\"good\">−"));
    assert!(page.contains("<small class=\"bad\">+"));
    assert!(page.contains("<small>±0"));
    // A first one that is next to nothing.
    let mut runs = three();
    runs[0].summary.wait_s.mean = 0.006;
    assert!(shown(&runs).contains(&format!("<small>{UNKNOWN}</small>")));
}

#[test]
fn a_run_without_a_job_that_ran_claims_nothing() {
    let mut runs = example::runs(2, 1, &["exclusive", "magm"], 7);
    for run in &mut runs {
        run.summary = Summary {
            jobs: 1,
            not_completed: 1,
            fairness_wait: 1.0,
            fairness_slowdown: 1.0,
            ..Summary::default()
        };
        (run.series, run.stretches, run.ooms) = (Vec::new(), Vec::new(), Vec::new());
        for job in &mut run.jobs {
            (job.attempts, job.first_start, job.last_start, job.end) = (0, None, None, None);
        }
    }
    let page = shown(&runs);
    assert!(page.matches(NOTHING_RAN).count() == 3 && !page.contains("holds no activity"));
    let (_, figures) = page.split_once("id=\"figures\"").unwrap();
    let (figures, _) = figures.split_once("</table>").unwrap();
    assert!(!figures.contains(">1.00") && !figures.contains(">0.00") && figures.contains(UNKNOWN));
}

#[test]
fn of_a_recording_jobs_that_still_wait_are_not_taken_for_lost() {
    let mut runs = three();
    runs[0].jobs[0].end = None;
    let section = |origin| {
        let mut out = String::new();
        super::spread::section(&mut out, &runs, &["a", "b", "c"].map(str::to_owned), origin);
        out
    };
    assert!(section(Origin::Simulated).contains("jobs never completed (up to 1 job)"));
    let recorded = section(Origin::Recorded);
    assert!(!recorded.contains("never completed") && recorded.contains("that completed.</p>"), "{recorded}");
}

#[test]
fn all_is_done_only_where_it_is() {
    let mut runs = example::runs(2, 10, &["exclusive"], 7);
    assert!(shown(&runs).contains(">all done at "));
    runs[0].jobs[3].end = None;
    let page = shown(&runs);
    assert!(page.contains(">last end at ") && !page.contains("all done"));
    let last = runs[0].stretches.len() - 1;
    runs[0].stretches[last].how = End::Running;
    let page = shown(&runs);
    assert!(page.contains(": jobs go on<") && !page.contains("all done"));
}
