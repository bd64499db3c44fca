//! Logs of traced runs: what the reader takes and refuses, and what a replay says.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use carma_memory::alloc::Event;
use carma_memory::trace::{Replay, Status, estimate, read, replay};
use carma_memory::{Error, MIB, MiB, ModelTask, Platform, Tier};
use flate2::{Compression, write::GzEncoder};
use std::io::Write as _;

fn platform() -> Platform {
    Platform::lookup("A100-40GB", (2, 11)).unwrap()
}

const HEAD: &str = r#"{"format":"carma-trace","version":1,"torch":"2.11.0","what":"train.py"}"#;
const COUNTED: &str = r#"{"format":"carma-trace","version":1,"ids":"counted"}"#;
const END: &str = r#"{"end":{"status":"complete","steps":3,"backwards":3,"model":"ResNet"}}"#;

fn log(head: &str, lines: &[&str]) -> String {
    [&[head], lines].concat().join("\n") + "\n"
}

fn compress(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

fn play(log: &[u8]) -> Result<Replay, Error> {
    replay(&mut read(log)?, &platform())
}

#[test]
fn named_and_counted_storages_are_the_same_run() {
    let named =
        log(HEAD, &["m forward", "a 7 4194304", "a 9 100", "w 0", "f 7", "a 7 600", "c 3000000", "f 9", END]);
    let counted =
        log(COUNTED, &["m forward", "a 4194304", "a 100", "w 0", "f 1", "a 600", "c 3000000", "f 1", END]);
    let (a, b) = (play(named.as_bytes()).unwrap(), play(counted.as_bytes()).unwrap());
    assert_eq!(a.peak, b.peak);
    assert_eq!((a.events, a.convolution_bytes), (8, 3_000_000));
    // The workspace fits behind the first storage in its 20 MiB segment; the small ones share 2 MiB.
    assert_eq!(a.peak.max_reserved, 22 * MIB);
    assert_eq!(a.peak.allocated, 8_519_680 + 1024);
    assert_eq!(play(&compress(&named)).unwrap(), a);
    // Lines of other systems, and a last line without its end.
    assert_eq!(play(named.replace('\n', "\r\n").trim_end().as_bytes()).unwrap(), a);
}

#[test]
fn a_replay_becomes_an_estimate() {
    let text = log(COUNTED, &["a 104857600", "m backward", "w 0", "w 1", "a 209715200", "c 52428800", END]);
    let task = ModelTask::default();
    let e = estimate(text.as_bytes(), &task, &platform()).unwrap();
    assert_eq!((e.tier, e.source.as_str(), e.family.as_str()), (Tier::Trace, "allocator/trace", "resnet"));
    assert_eq!(e.use_mib, MiB(524 + 100 + 200 + 20 + 50));
    assert!(e.need_mib < e.use_mib && e.upper_mib > e.use_mib);
    assert!(e.reasons.iter().any(|r| r.contains("during backward")), "{:?}", e.reasons);
    // On a newer GPU only the workspaces differ: 32 MiB each instead of 8.1.
    let h200 = Platform::lookup("H200", (2, 11)).unwrap();
    let there = estimate(text.as_bytes(), &task, &h200).unwrap();
    assert_eq!(there.parts.unwrap().reserved_mib, MiB(100 + 200 + 64));
}

#[test]
fn a_log_that_was_cut_off_says_so() {
    let whole = log(HEAD, &["a 1 104857600", "a 2 1048576", "f 1", END]);
    let line = whole.find("f 1").unwrap();
    // A line that was cut in the middle might mean something else: it is left out.
    let cut = play(&whole.as_bytes()[..line + 2]).unwrap();
    assert_eq!((cut.end.status, cut.events), (Status::Partial, 2));
    assert_eq!(cut.peak.allocated, 101 * MIB);
    let e = cut.estimate(&ModelTask::default(), &platform()).unwrap();
    assert!(e.reasons.iter().any(|r| r.contains("cut off")), "{:?}", e.reasons);
    // Nothing but a part of the first forward pass: good for a lower bound.
    assert!(e.upper_mib >= e.use_mib + MiB(101), "{e:?}");
    assert!(e.reasons.iter().any(|r| r.contains("lower bound")), "{:?}", e.reasons);
    assert!(e.reasons.iter().all(|r| !r.contains("inference")), "{:?}", e.reasons);
    let many: Vec<String> = (0..5000).map(|i| format!("a {i} {}", 512 + i * 37 % 9999)).collect();
    let lines: Vec<&str> = many.iter().map(String::as_str).collect();
    let packed = compress(&log(HEAD, &lines));
    let half = play(&packed[..packed.len() / 2]).unwrap();
    assert!(half.end.status == Status::Partial && half.events > 100, "{}", half.events);
}

#[test]
fn a_log_without_an_end_says_what_it_is_good_for() {
    let step = ["m forward", "a 209715200", "m backward", "a 104857600", "f 0", "f 1", "m step"];
    let after = |steps: usize| {
        let mut lines = vec!["a 104857600"];
        (0..steps).for_each(|_| lines.extend(step));
        lines.extend(["m forward", "a 1048576"]);
        // The last line is cut: `f 1` of `f 164131`.
        let text = log(COUNTED, &lines) + "f 1";
        let run = play(text.as_bytes()).unwrap();
        let estimate = run.estimate(&ModelTask::default(), &platform()).unwrap();
        (run.end.steps, run.end.backwards, estimate)
    };
    let mut bounds = Vec::new();
    for steps in [0, 1, 3] {
        let (seen, backwards, estimate) = after(steps);
        assert_eq!((seen, backwards), (steps as u64, steps as u64));
        let said = format!("the log was cut off after {steps} optimizer steps");
        assert!(estimate.reasons.iter().any(|r| r.contains(&said)), "{:?}", estimate.reasons);
        assert_eq!(estimate.reasons.iter().filter(|r| r.starts_with("bound: ")).count(), 1);
        let beside = estimate.use_mib - platform().context_mib;
        bounds.push((estimate.upper_mib - platform().context_mib - MiB(64)).0 * 100 / beside.0);
    }
    assert!(
        bounds[0] >= 200 && (125..135).contains(&bounds[1]) && (112..120).contains(&bounds[2]),
        "{bounds:?}"
    );
    // A server that was stopped: its memory had long stopped rising.
    let mut lines = vec!["a 104857600"];
    (0..50).for_each(|_| lines.extend(["a 1048576", "f 0"]));
    let server = estimate(log(COUNTED, &lines).as_bytes(), &ModelTask::default(), &platform()).unwrap();
    assert!(server.reasons.iter().any(|r| r.contains("had stopped rising")), "{:?}", server.reasons);
}

/// A step whose weights take 64 MiB, and so many bytes more that stay.
fn steps(count: usize, kept: impl Fn(usize) -> u64) -> Vec<String> {
    let mut lines = vec!["a 67108864".to_owned()];
    for step in 0..count {
        // Steps end without what the next one takes for a while.
        let step = [
            "m forward".into(),
            format!("a {}", kept(step)),
            "a 33554432".into(),
            "f 0".into(),
            "m step".into(),
        ];
        lines.extend(step);
    }
    lines.extend(["m forward".to_owned(), END.to_owned()]);
    lines
}

fn of_steps(head: &str, lines: &[String]) -> carma_memory::Estimate {
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    estimate(log(head, &lines).as_bytes(), &ModelTask::default(), &platform()).unwrap()
}

#[test]
fn memory_that_rises_to_the_end_has_no_bound() {
    let beside = |e: &carma_memory::Estimate| (e.upper_mib - e.use_mib, e.use_mib - platform().context_mib);
    for (bytes, said) in [(8 << 20, "by 8.0 MiB a step"), (1 << 20, "by 1.0 MiB a step")] {
        let rising = of_steps(COUNTED, &steps(12, |_| bytes));
        assert!(rising.elastic && rising.reasons.iter().any(|r| r.contains(said)), "{rising:?}");
        let (above, held) = beside(&rising);
        assert!(above >= held, "{rising:?}");
    }
    // A list of losses, what is freed again, a buffer that is full, and too few steps to tell.
    let steady =
        [steps(12, |_| 512), steps(12, |step| if step < 9 { 8 << 20 } else { 0 }), steps(3, |_| 8 << 20)];
    for lines in steady {
        let steady = of_steps(COUNTED, &lines);
        assert!(!steady.elastic && beside(&steady).0 < MiB(100), "{steady:?}");
    }
}

#[test]
fn what_asks_for_free_memory_has_no_bound() {
    let asking = END.replace("\"steps\"", "\"asks_free\":true,\"steps\"");
    let of = |end: &str| of_steps(COUNTED, &["a 104857600".to_owned(), end.to_owned()]);
    let (asks, plain) = (of(&asking), of(END));
    assert!(asks.elastic && asks.upper_mib >= asks.use_mib + MiB(100), "{asks:?}");
    assert!(!plain.elastic && plain.upper_mib < asks.upper_mib, "{plain:?}");
}

#[test]
fn no_estimate_is_beyond_the_gpu() {
    let total = platform().gpu.total_mib;
    let gib = |gib: u64| format!("a {}", gib << 30);
    // What is cached goes back before the GPU is full.
    let cached = of_steps(COUNTED, &[gib(30), "f 0".into(), gib(31), END.into()]);
    assert_eq!(cached.use_mib, platform().context(cached_uses()) + MiB::gib(31));
    assert!(cached.upper_mib <= total, "{cached:?}");
    // Tensors alone are more than there is.
    let beyond = of_steps(COUNTED, &[gib(30), gib(30), END.into()]);
    assert_eq!((beyond.need_mib, beyond.use_mib, beyond.upper_mib), (total, total, total));
    assert!(beyond.reasons.iter().any(|r| r.contains("runs out of memory")), "{beyond:?}");
    // Of several GPUs a log has what is on any.
    let two = COUNTED.replace("}", ",\"options\":{\"gpus\":2}}");
    let both = play(log(&two, &[&gib(30), "f 0", &gib(31), END]).as_bytes()).unwrap();
    assert_eq!(both.peak.max_reserved, 61 << 30);
}

/// A log of tensors alone, with the steps that its last line tells.
fn cached_uses() -> carma_memory::Uses {
    carma_memory::Uses { backward: true, products: [false, false] }
}

#[test]
fn a_share_of_the_gpu_bounds_a_process() {
    let with = |conf: &str, lines: &[&str]| {
        let alloc = carma_memory::alloc::Settings::parse(conf).unwrap();
        let platform = Platform { alloc, ..platform() };
        let known = carma_memory::estimators::Known {
            trace: Some(log(COUNTED, lines).into_bytes()),
            ..Default::default()
        };
        let answers = carma_memory::estimators::run("allocator", &known, &ModelTask::default(), &platform);
        answers.unwrap().remove(0).result.unwrap()
    };
    let tenth = platform().gpu.total_mib.0 / 10;
    let lines = ["a 3221225472", "f 0", "a 4096000000", END];
    let plain = with("", &lines);
    let share = with("per_process_memory_fraction:0.1", &lines);
    let context = share.parts.unwrap().context_mib;
    assert!(plain.use_mib.0 > context.0 + tenth, "{plain:?}");
    assert!(share.use_mib < plain.use_mib && share.upper_mib.0 <= context.0 + tenth, "{share:?}");
    assert!(share.reasons.iter().all(|r| !r.contains("run out of memory")), "{share:?}");
    let short = with("per_process_memory_fraction:0.05", &lines);
    assert!(
        short.reasons.iter().any(|r| r.contains("per_process_memory_fraction it will run out")),
        "{short:?}"
    );
}

#[test]
fn expandable_segments_of_blocks_that_are_not_split_have_no_bound() {
    let of = |conf: &str| {
        let alloc = carma_memory::alloc::Settings::parse(conf).unwrap();
        let text = log(COUNTED, &["a 104857600", END]);
        estimate(text.as_bytes(), &ModelTask::default(), &Platform { alloc, ..platform() }).unwrap()
    };
    let both = of("expandable_segments:True,max_split_size_mb:128");
    assert!(both.elastic && both.upper_mib >= both.use_mib + MiB(100), "{both:?}");
    assert!(both.reasons.iter().any(|r| r.contains("set one of the two")), "{both:?}");
    for one in [
        "expandable_segments:True",
        "max_split_size_mb:128",
        "expandable_segments:False,max_split_size_mb:128",
    ] {
        assert!(!of(one).elastic, "{one}");
    }
}

#[test]
fn failed_and_empty_runs_have_no_estimate() {
    let failed = log(
        HEAD,
        &["a 1 104857600", r#"{"end":{"status":"failed","reason":"ImportError: flash_attn at train.py:3"}}"#],
    );
    let error = estimate(failed.as_bytes(), &ModelTask::default(), &platform()).unwrap_err().to_string();
    assert!(error.contains("flash_attn at train.py:3"), "{error}");
    let empty = log(HEAD, &[END]);
    assert!(estimate(empty.as_bytes(), &ModelTask::default(), &platform()).is_err());
}

#[test]
fn what_is_no_log_is_refused_with_its_line() {
    for (text, said) in [
        (String::new(), "line 1"),
        ("\n".into(), "line 1"),
        ("a 1 2\n".into(), "line 1"),
        ("{}\n".into(), "line 1"),
        (r#"{"format":"other","version":1}"#.into(), "line 1"),
        (HEAD.replace("\"version\":1", "\"version\":3"), "version 3"),
        (log(HEAD, &["a 1 512", "hello"]), "line 3"),
        (log(HEAD, &["a 1 512", "a 1 512"]), "in use"),
        (log(HEAD, &["a 1 18446744073709551615"]), "no GPU holds"),
        (log(HEAD, &["a 1 99999999999999999999999"]), "line 2"),
        (log(COUNTED, &["a 512", "f 1"]), "line 3"),
        (log(HEAD, &["{\"end\":3}"]), "line 2"),
        (format!("{HEAD}\n{}", "a".repeat(100_000)), "longer than"),
    ] {
        let error = play(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(said), "{said:?} is not in {error:?}");
    }
    let sum: Vec<String> = (0..20_000).map(|i| format!("a {i} {}", 1_u64 << 50)).collect();
    let lines: Vec<&str> = sum.iter().map(String::as_str).collect();
    // Each alone might pass, together they would overflow.
    assert!(play(log(HEAD, &lines).as_bytes()).unwrap_err().to_string().contains("together"));
    let again = ["a 1 1125899906842624", "f 1", "e"].repeat(20_000);
    assert!(play(log(HEAD, &again).as_bytes()).unwrap_err().to_string().contains("together"));
}

#[test]
fn empty_cache_gives_free_segments_back() {
    let text = log(COUNTED, &["a 104857600", "a 209715200", "f 1", "e", "a 52428800", END]);
    let run = play(text.as_bytes()).unwrap();
    assert_eq!((run.peak.max_reserved, run.peak.reserved), (300 * MIB, 250 * MIB));
    let mut reader = read(text.as_bytes()).unwrap();
    let mut events = Vec::new();
    while let Some(event) = reader.next_event().unwrap() {
        events.push(event);
    }
    assert_eq!(events[3], Event::EmptyCache);
}

mod hostile {
    use super::*;
    use carma_seeded::check;

    #[test]
    fn no_bytes_make_it_panic() {
        check!(5000).for_each(|bytes: &[u8]| {
            let _ = estimate(bytes, &ModelTask::default(), &platform());
            let mut after = HEAD.as_bytes().to_vec();
            after.push(b'\n');
            after.extend_from_slice(bytes);
            let _ = estimate(&after, &ModelTask::default(), &platform());
            let mut packed = vec![0x1f, 0x8b, 8, 0];
            packed.extend_from_slice(bytes);
            let _ = estimate(&packed, &ModelTask::default(), &platform());
        });
    }

    #[test]
    fn no_sequence_of_events_makes_it_panic() {
        check!(2000).with_type::<Vec<(u8, u8, u64)>>().for_each(|events| {
            let mut text = format!("{HEAD}\n");
            for (kind, id, size) in events {
                match kind % 6 {
                    0 | 1 => text.push_str(&format!("a {id} {}\n", size >> (id % 48))),
                    2 => text.push_str(&format!("f {id}\n")),
                    3 => text.push_str(&format!("w {id}\n")),
                    4 => text.push_str(&format!("c {size}\n")),
                    _ => text.push_str("e\n"),
                }
            }
            if let Ok(run) = play(text.as_bytes()) {
                let peak = run.peak;
                assert!(peak.allocated <= peak.reserved && peak.max_allocated <= peak.max_reserved);
                let _ = run.estimate(&ModelTask::default(), &platform());
            }
        });
    }
}
