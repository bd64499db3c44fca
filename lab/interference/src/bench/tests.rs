use super::*;
use crate::kace::{Artifact, protocol, score};
use carma_interference::group::Mode;
use carma_interference::measured::Measured;

/// The data beside this repository, if it is there.
fn here() -> Data {
    Data::in_repository(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
}

#[test]
fn what_is_absent_is_said() {
    let data = Data { shared: "/nonexistent".into(), h200: "/nonexistent".into(), threads: 1 };
    let lines = run(&data, None);
    assert!(lines.iter().all(|l| l.value.is_none() && l.note.starts_with("skipped: ")), "{lines:?}");
    assert!(PARTS.iter().all(|part| lines.iter().any(|l| l.part == *part)), "{lines:?}");
    assert!(run(&data, Some("lucid")).iter().all(|l| l.part == "lucid"));
}

const MEASURED: &str = r#"{"version":1,"machine":{"gpu":"NVIDIA H200","gpu_memory_mib":1,"cpus":1},
"tasks":[{"name":"a","family":"f"},{"name":"b"}],"sessions":[],
"profiles":{"version":1,"tasks":[{"name":"a","rate":2.0},{"name":"b","rate":4.0}]},
"combinations":[
{"members":["a"],"rates":[2.0],"progress":[1.0]},
{"members":["b","a"],"sharing":"mps","rates":[1.0,1.0],"progress":[0.25,0.5]},
{"members":["a","b"],"sharing":"mps","rates":[1.2,3.0],"progress":[0.6,0.75]},
{"members":["a","b"],"sharing":"mps","threads_pct":[30,70],"rates":[1.0,2.0],"progress":[0.5,0.5]},
{"members":["a","b"],"rates":[1.0,0.0],"progress":[0.5,0.0]},
{"members":["a","b"],"failed":"b ended"}],"left":0}"#;

#[test]
fn repeats_of_a_combination_are_one_row_and_what_failed_is_none() {
    let set = super::measured::of_measured(&Measured::read(MEASURED).unwrap());
    assert_eq!(set.families, ["f", "b"]);
    let [split, plain] = &set.rows[..] else { panic!("{:?}", set.rows) };
    assert_eq!((plain.tasks.as_slice(), plain.sharing, plain.threads.len()), (&[0, 1][..], Mode::Mps, 0));
    assert!(plain.progress.iter().zip([0.55, 0.5]).all(|(a, b)| (a - b).abs() < 1e-12), "{plain:?}");
    assert_eq!(split.threads, [30.0, 70.0]);
    let mut bad = set;
    bad.rows[0].progress[1] = f64::NAN;
    assert!(bad.checked("file").unwrap_err().to_string().contains("a + b: progress"));
}

/// Two sessions, of which the second disagrees about which partner of `a` is best.
const TWICE: &str = r#"{"version":1,"machine":{"gpu":"NVIDIA H200","gpu_memory_mib":143771,"driver":"580","cpus":16},
"tasks":[{"name":"a"},{"name":"b"},{"name":"c"}],"sessions":[],
"profiles":{"version":1,"tasks":[
{"name":"a","rate":10,"metrics":{"smact_pct":50}},
{"name":"b","rate":10,"metrics":{"smact_pct":40}},
{"name":"c","rate":10,"metrics":{"smact_pct":90}}]},
"combinations":[
{"members":["a"],"rates":[10.0]},{"members":["b"],"rates":[10.0]},{"members":["c"],"rates":[10.0]},
{"members":["a","b"],"rates":[8.0,8.0]},
{"members":["a","c"],"rates":[5.0,5.0]},
{"members":["a"],"rates":[20.0],"session":1},{"members":["b"],"rates":[20.0],"session":1},
{"members":["c"],"rates":[20.0],"session":1},
{"members":["b","a"],"rates":[8.0,8.0],"session":1},
{"members":["a","c"],"rates":[10.0,10.0],"session":1}],"left":0}"#;

#[test]
fn a_session_is_told_by_another() {
    let set = super::measured::of_measured(&Measured::read(TWICE).unwrap());
    let sums = |rows: &[super::set::Together]| rows.iter().map(super::set::Together::sum).collect::<Vec<_>>();
    // Progress is of the session's own rate alone; the row is the mean of both.
    assert_eq!(set.sessions.iter().map(|rows| sums(rows)).collect::<Vec<_>>(), [[1.6, 1.0], [0.8, 1.0]]);
    assert!(sums(&set.rows).iter().zip([1.2, 1.0]).all(|(a, b)| (a - b).abs() < 1e-12), "{:?}", set.rows);
    let (errors, chosen) = set.measured_again().unwrap();
    // .8 for .4 and .4 for .8, two members each; .5 for .5.
    let mean = errors.mean().unwrap();
    assert!((mean.mean - (1.0 + 1.0 + 0.5 + 0.5) / 8.0).abs() < 1e-12 && mean.n == 8, "{mean:?}");
    // Only `a` has a choice: b for c by the first session, c for b by the second.
    let mean = chosen.mean().unwrap();
    assert!((mean.mean - (0.8 + 1.0 / 1.6) / 2.0).abs() < 1e-12 && mean.n == 2, "{mean:?}");
    // Who always takes c has the worst of the first session and the best of the second.
    let folds = set.folds(1);
    let c =
        set.select_in_sessions(&folds, |_, row| f64::from(u8::from(row.tasks.contains(&2)))).mean().unwrap();
    assert!((c.mean - (1.0 / 1.6 + 1.0) / 2.0).abs() < 1e-12 && c.n == 2, "{c:?}");
    let once = super::measured::of_measured(&Measured::read(MEASURED).unwrap());
    assert!(once.measured_again().is_none());
}

/// The published divisions with 41 pairs, without the rest of the bench.
#[test]
fn kaces_own_divisions() {
    let data = here();
    let folder = data.shared.join("nba556677go__KACE-artifact");
    if !folder.is_dir() {
        println!("skipped: {} is not here", folder.display());
        return;
    }
    let artifact = Artifact::new(folder);
    let pairs = artifact.pairs().unwrap();
    let mut splits = artifact.splits(&pairs).unwrap();
    splits.retain(|s| s.n_occur == 3);
    let protocol = protocol::seen(&pairs, &splits);
    let columns = kace::Columns::of(&pairs, true).unwrap();
    let online = kace::Online { columns: &columns, gpu: kace::gpu() };
    let scored = score::evaluate(&online, &protocol, 2).unwrap();
    assert_eq!(scored.len(), 105);
    let mean = score::mean_of(&scored);
    assert!(mean > 0.935, "{mean}, KACE 0.906");
}

/// The parts that take seconds: their numbers are in, and those with a target keep it.
#[test]
fn parts_with_data_keep_their_targets() {
    let data = here();
    for part in ["splits", "lucid", "igniter"] {
        for line in run(&data, Some(part)) {
            if line.value.is_none() {
                println!("{part}: {}", line.note);
                assert!(!data.shared.is_dir(), "{line:?}");
                continue;
            }
            assert!(line.target.as_ref().is_none_or(|t| t.holds), "{line:?}");
        }
    }
}

#[test]
fn our_own_records_are_scored() {
    let lines = run(&here(), Some("h200"));
    assert!(lines.iter().any(|l| l.who == "ours" && l.value.is_some()), "{lines:?}");
}
