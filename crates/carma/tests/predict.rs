//! `carma predict` as users and programs call it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failing helper may end the test")]

use carma_interference::online::VERSION;
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Output};

const PROFILES: &str = r#"{"version":1,"gpu":"NVIDIA H200","tasks":[
{"name":"heavy","rate":{"per_s":31.4,"unit":"steps","source":"heartbeat"},"metrics":{"gract_pct":100,"smact_pct":83,"smocc_pct":40,"drama_pct":45,"memory_mib":7627},
 "rate_by_threads_pct":{"10":4,"30":12,"50":20,"80":30,"100":31.4}},
{"name":"light","rate":487,"metrics":{"gract_pct":36,"smact_pct":16,"smocc_pct":2,"drama_pct":2,"memory_mib":904},
 "rate_by_threads_pct":{"10":300,"30":480,"100":487}},
{"name":"smi","rate":10,"metrics":{"gpu_util_pct":95,"mem_util_pct":20,"memory_mib":4000}},
{"name":"bare"}]}"#;

const MEASURED: &str = r#"{"version":1,"machine":{"gpu":"NVIDIA H200","gpu_memory_mib":143771,"cpus":16},
"tasks":[{"name":"heavy"},{"name":"light"}],"sessions":[],
"profiles":{"version":1,"gpu":"NVIDIA H200","tasks":[{"name":"heavy","rate":31.4,"metrics":{"gract_pct":100,"smact_pct":83}},
{"name":"light","rate":487,"metrics":{"gract_pct":36,"smact_pct":16}}]},
"combinations":[
{"members":["heavy","light"],"sharing":"mps","rates":[9.4,480.0],"progress":[0.3,0.98],"window_s":1.5},
{"members":["heavy","light"],"sharing":"mps","rates":[9.5,0.0],"progress":[0.3,0.0],"window_s":1.5},
{"members":["heavy","heavy"],"sharing":"mps","failed":"heavy ended","window_s":1.5}],"left":0}"#;

struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("p.json"), PROFILES).unwrap();
        std::fs::write(dir.path().join("m.json"), MEASURED).unwrap();
        Self(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn run(&self, arguments: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_carma"));
        command.arg("predict").current_dir(self.0.path()).args(arguments.split_whitespace());
        command.output().unwrap()
    }

    fn json(&self, arguments: &str) -> Value {
        let output = self.run(&format!("{arguments} --json"));
        assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Exit code 2, and what was said.
    fn refused(&self, arguments: &str) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

#[test]
fn a_group_is_forecast_task_by_task() {
    let files = Files::new();
    for sharing in ["mps", "time-slice"] {
        let reply =
            files.json(&format!("--profiles p.json --group heavy,light,bare --gpu H200 --sharing {sharing}"));
        assert_eq!((&reply["version"], &reply["gpu"]), (&Value::from(1), &Value::from("H200")));
        let tasks = reply["tasks"].as_array().unwrap();
        assert_eq!(tasks.len(), 3);
        let mut sum = 0.0;
        for task in tasks {
            let of = |key: &str| task["progress"][key].as_f64().unwrap();
            assert!(
                0.0 < of("lower") && of("lower") <= of("expected") && of("expected") <= of("upper"),
                "{task}"
            );
            assert!((task["slowdown"].as_f64().unwrap() * of("expected") - 1.0).abs() < 1e-9);
            assert!(task["prior"].as_f64().unwrap() <= 1.0);
            sum += of("expected");
        }
        assert!((reply["sum"].as_f64().unwrap() - sum).abs() < 1e-9);
        assert!(tasks[0]["rate"]["expected"].as_f64().unwrap() < 31.4);
        assert!(tasks[2]["rate"].is_null());
        assert!(reply["reasons"].to_string().contains("bare: nothing is known of its activity"), "{reply}");
    }
    let text = String::from_utf8(files.run("--profiles p.json --group heavy,light").stdout).unwrap();
    assert!(text.contains("TASK") && text.contains("90 % BOUNDS") && text.contains("\nsum "), "{text}");
}

#[test]
fn what_is_not_read_of_a_profile_is_said() {
    let files = Files::new();
    let slip = PROFILES.replace("\"gract_pct\":36", "\"gr_act_pct\":36");
    std::fs::write(files.path("slip.json"), format!("\u{feff}{slip}")).unwrap();
    let said = |arguments: &str| {
        let output = files.run(arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let note = "note: task `light`: not read: metric `gr_act_pct`, which this carma does not know\n";
    assert_eq!(said("--profiles slip.json --group heavy,light --json"), note);
    assert_eq!(said("--profiles slip.json --target heavy --candidates light,smi+light"), note);
    // Of tasks that were not asked about nothing is said.
    assert_eq!(said("--profiles slip.json --group heavy,smi"), "");
    std::fs::write(files.path("nan.json"), PROFILES.replace("\"gract_pct\":36", "\"gract_pct\":NaN"))
        .unwrap();
    let refused = files.refused("--profiles nan.json --group heavy,light");
    assert!(
        refused.contains("nan.json: ") && refused.contains("task `light`: metrics.gract_pct: "),
        "{refused}"
    );
}

#[cfg(unix)]
#[test]
fn a_file_without_end_is_refused() {
    let refused = Files::new().refused("--profiles /dev/zero --group a,b");
    assert!(refused.contains("/dev/zero: is a device, not a regular file"), "{refused}");
}

#[test]
fn partners_are_ranked_by_every_policy_that_can() {
    let files = Files::new();
    let order = |arguments: &str| -> Vec<String> {
        let reply = files.json(&format!("--profiles p.json --target heavy {arguments}"));
        let scores: Vec<f64> =
            reply["candidates"].as_array().unwrap().iter().map(|c| c["score"].as_f64().unwrap()).collect();
        assert!(scores.windows(2).all(|w| w[0] >= w[1]), "{scores:?}");
        let names = reply["candidates"].as_array().unwrap().iter();
        names.map(|c| c["candidate"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(order("--candidates smi,light,heavy")[0], "light");
    assert_eq!(order("--candidates smi,light --policy share")[0], "light");
    assert_eq!(order("--candidates smi,light --policy memcap")[0], "light");
    assert_eq!(order("--candidates smi,light --policy kace")[0], "light");
    assert_eq!(order("--candidates light,smi --policy sm")[0], "smi");
    assert_eq!(order("--candidates smi,light --policy random"), ["smi", "light"]);
    assert_eq!(order("--candidates light --policy oracle --measured m.json"), ["light"]);
    assert_eq!(order("--candidates light+smi,light --objective min")[0], "light");
    let missing = |policy: &str| {
        files.refused(&format!("--profiles p.json --target heavy --candidates bare --policy {policy}"))
    };
    assert!(
        missing("memcap")
            .contains("needs memory (`memory_mib`) of every task; the profile of `bare` has none")
    );
    assert!(missing("oracle").contains("--measured FILE"));
    assert!(
        missing("kace").contains("policy kace needs `sm%` of every task; the profile of `bare` has none")
    );
    assert!(missing("xu").contains("carma lab kace eval"));
}

#[test]
fn each_task_is_told_of_by_every_policy_that_knows_it() {
    let files = Files::new();
    for policy in ["online", "share", "oracle --measured m.json"] {
        let asked = format!("--profiles p.json --group light,heavy --policy {policy}");
        let reply = files.json(&asked);
        let tasks = reply["tasks"].as_array().unwrap();
        let names: Vec<&str> = tasks.iter().map(|task| task["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["light", "heavy"], "{reply}");
        let progress: Vec<f64> =
            tasks.iter().map(|task| task["progress"]["expected"].as_f64().unwrap()).collect();
        assert!((reply["sum"].as_f64().unwrap() - progress[0] - progress[1]).abs() < 1e-9, "{reply}");
        assert!((reply["min"].as_f64().unwrap() - progress[0].min(progress[1])).abs() < 1e-9, "{reply}");
        // The same in another order.
        let turned = files.json(&format!("--profiles p.json --group heavy,light --policy {policy}"));
        let again = turned["tasks"][0]["progress"]["expected"].as_f64().unwrap();
        assert!((again - progress[1]).abs() < 1e-3, "{turned} {reply}");
        let text = String::from_utf8(files.run(&asked).stdout).unwrap();
        assert!(text.contains("PROGRESS") && text.contains(&format!("{:.2}", progress[1])), "{text}");
    }
    let text =
        String::from_utf8(files.run("--profiles p.json --group heavy,smi --policy kace").stdout).unwrap();
    assert!(text.starts_with("kace of this group: "), "{text}");
}

#[test]
fn threads_are_told_or_looked_for() {
    let files = Files::new();
    let reply = files.json("--profiles p.json --group heavy,light --threads heavy=80,light=20");
    assert_eq!(reply["tasks"][0]["threads_pct"], 80.0);
    assert!(reply["tasks"][0]["progress"]["expected"].as_f64().unwrap() > 0.8, "{reply}");
    let best = files.json("--profiles p.json --group heavy,light --threads best --objective min");
    assert!(best["min"].as_f64().unwrap() > 0.6, "{best}");
    // The table says what the best is, also where it is none at all.
    let said = |more: &str| {
        let asked = format!("--profiles p.json --group {more}");
        String::from_utf8(files.run(&asked).stdout).unwrap()
    };
    let split = said("heavy,heavy --threads best");
    assert!(split.contains("THREADS") && !split.contains("best: no limits"), "{split}");
    let none = said("light,light --threads best");
    assert!(!none.contains("THREADS") && none.contains("\nbest: no limits; no split"), "{none}");
    assert!(!said("light,light").contains("best"));
    for (threads, said) in [
        ("heavy=50,dark=50", "`dark` is not in --group"),
        ("heavy", "expected NAME=PERCENT"),
        ("heavy=150", "a thread percentage of 150"),
    ] {
        let error = files.refused(&format!("--profiles p.json --group heavy,light --threads {threads}"));
        assert!(error.contains(said), "{error}");
    }
    let error =
        files.refused("--profiles p.json --group heavy,light --threads heavy=50 --sharing time-slice");
    assert!(error.contains("only MPS"), "{error}");
}

#[test]
fn what_was_measured_is_learned_and_kept() {
    let files = Files::new();
    let progress = |model: &str| {
        let reply = files.json(&format!("--profiles p.json --group heavy,light {model}"));
        reply["tasks"][0]["progress"]["expected"].as_f64().unwrap()
    };
    let before = progress("");
    let learned = files.json("--observe m.json --model mine.json");
    assert_eq!(learned["learned"], 2);
    let skipped = learned["skipped"].to_string();
    assert!(
        skipped.contains("heavy ended") && skipped.contains("a progress of 0 is no progress"),
        "{skipped}"
    );
    let after = progress("--model mine.json");
    assert!((after - 0.3).abs() < (before - 0.3).abs(), "{before} {after}");
    assert_eq!(learned["known"], 0);
    // The same again teaches nothing; a window that came since does.
    let kept = std::fs::read(files.path("mine.json")).unwrap();
    let again = files.json("--observe m.json --model mine.json");
    assert_eq!((&again["learned"], &again["known"]), (&Value::from(0), &Value::from(2)));
    assert_eq!(std::fs::read(files.path("mine.json")).unwrap(), kept);
    let third =
        r#"{"members":["light","light"],"sharing":"mps","rates":[470.0,470.0],"window_s":1.5}],"left""#;
    std::fs::write(files.path("grown.json"), MEASURED.replace("],\"left\"", &format!(",{third}"))).unwrap();
    let grown = String::from_utf8(files.run("--observe grown.json --model mine.json").stdout).unwrap();
    assert!(
        grown.starts_with("learned from 1 windows; mine.json has it\n2 more windows were known already\n")
    );
    files.json("--observe m.json --model types.json --no-classes");
    assert!(!std::fs::read_to_string(files.path("types.json")).unwrap().contains("heavy"));
    let text = std::fs::read_to_string(files.path("mine.json")).unwrap();
    std::fs::write(
        files.path("old.json"),
        text.replacen(&format!("\"version\":{VERSION}"), "\"version\":99", 1),
    )
    .unwrap();
    let error = files.refused("--profiles p.json --group heavy --model old.json");
    assert!(
        error.contains("old.json")
            && error.contains(&format!("version 99, this program works with version {VERSION}")),
        "{error}"
    );
    // A file of measurements holds profiles too.
    let reply = files.json("--profiles m.json --group heavy,light");
    assert!(!reply["reasons"].to_string().contains("nothing is known of its activity"), "{reply}");
    let error = files.refused("--profiles mine.json --group heavy");
    assert!(error.contains("mine.json: not a file of solo profiles"), "{error}");
    assert!(files.refused("--profiles p.json --group heavy,dark").contains("no task is named `dark`"));
}

#[test]
fn a_log_that_is_torn_inside_a_character_is_read() {
    let files = Files::new();
    let machine = r#""machine":{"gpu":"NVIDIA H200","gpu_memory_mib":1,"cpus":1}"#;
    let line = |rest: &str| format!(r#"{{"line":"combination","members":["heavy"],"rates":[31.0],{rest}}}"#);
    let log = format!(
        "{{\"line\":\"header\",\"version\":1,{machine},\"tasks\":[{{\"name\":\"heavy\"}}]}}\n{}\n{}",
        line(r#""window_s":1.5"#),
        line(r#""remarks":["für""#)
    );
    let end = log.find('ü').unwrap() + 1;
    std::fs::write(files.path("torn.jsonl"), &log.as_bytes()[..end]).unwrap();
    let reply = files.json("--profiles torn.jsonl --group heavy");
    assert_eq!(reply["tasks"][0]["name"], "heavy");
    // Of any other file it is a mistake.
    std::fs::write(files.path("bad.json"), b"{\"version\": 1,\n\"gpu\": \"\xff\"}").unwrap();
    assert!(files.refused("--profiles bad.json --group heavy").contains("bad.json"), "it is named");
}

#[test]
fn what_was_measured_on_another_gpu_is_said() {
    let files = Files::new();
    let said = |arguments: &str| files.json(arguments)["reasons"].to_string();
    assert!(!said("--profiles p.json --group heavy,light").contains("another type"));
    let other = said("--profiles p.json --group heavy,light --gpu V100");
    assert!(other.contains("heavy: it was measured on another type of GPU (NVIDIA H200)"), "{other}");
    // Of one task the file may say otherwise.
    let one =
        PROFILES.replace("{\"name\":\"heavy\",", "{\"name\":\"heavy\",\"gpu\":\"Tesla V100-SXM2-16GB\",");
    std::fs::write(files.path("one.json"), one).unwrap();
    let one = said("--profiles one.json --group heavy,light");
    assert!(one.contains("heavy: it was measured on another type of GPU (Tesla V100-SXM2-16GB)"), "{one}");
    assert!(!one.contains("light: it was measured"), "{one}");
}

#[test]
fn what_a_virtual_gpu_teaches_is_no_measurement() {
    let files = Files::new();
    std::fs::write(files.path("v.json"), MEASURED.replace("NVIDIA H200", "Virtual H200")).unwrap();
    for (arguments, told) in [
        ("--observe v.json --model mine.json", true),
        ("--observe v.json --model own.json --from-nothing", false),
        ("--observe m.json --model real.json", false),
    ] {
        let output = files.run(arguments);
        assert!(output.status.success(), "{arguments}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said.contains("v.json: measured on a virtual GPU"), told, "{said}");
    }
}

#[test]
fn a_broken_file_of_measurements_is_no_file_of_profiles() {
    let files = Files::new();
    let log = r#"{ "line": "header", "version": 1, "machine": {"gpu": "NVIDIA H200", "gpu_memory_mib": 1, "cpus": 1}, "tasks": [{"name": "heavy"}] }"#;
    for (text, said) in [
        (MEASURED.replace("[9.4,480.0]", "[9.4]"), "`rates` has 1 values for 2 members"),
        (MEASURED.replace("\"version\":1,\"machine\"", "\"version\":7,\"machine\""), "version 7"),
        (MEASURED.replace("\"machine\"", "\"engine\""), "missing field `machine`"),
        (format!("{log}\nnonsense\n"), "line 2: not a line of measurements"),
    ] {
        std::fs::write(files.path("broken.json"), text).unwrap();
        let error = files.refused("--profiles broken.json --group heavy,light");
        assert!(error.contains("broken.json: ") && error.contains(said), "{error}");
    }
    // Without end, and no file at all.
    let error = files.refused("--profiles /dev/zero --group heavy");
    assert!(error.contains("/dev/zero: is a device, not a regular file"), "{error}");
    assert!(files.refused("--profiles . --group heavy").contains("is a directory"));
}

#[test]
fn tasks_of_one_name_get_their_percentages_in_order() {
    let files = Files::new();
    let pcts = |arguments: &str| -> Vec<Value> {
        let reply = files.json(&format!("--profiles p.json {arguments}"));
        reply["tasks"].as_array().unwrap().iter().map(|task| task["threads_pct"].clone()).collect()
    };
    let group = "--group heavy,light,heavy --threads";
    assert_eq!(pcts(&format!("{group} heavy=60,light=10,heavy=30")), [60.0, 10.0, 30.0]);
    assert_eq!(
        pcts(&format!("{group} heavy=60,heavy=30 --policy share")),
        [60.0.into(), Value::Null, 30.0.into()]
    );
    assert_eq!(pcts(&format!("{group} heavy=40")), [40.0.into(), Value::Null, 40.0.into()]);
    for (threads, said) in [
        ("heavy=1,heavy=2,heavy=3", "3 percentages for `heavy`, which is in --group 2 times"),
        ("light=10,light=20", "2 percentages for `light`, which is in --group 1 times"),
        ("heavy=60,heavy=101", "a thread percentage of 101"),
    ] {
        let error = files.refused(&format!("--profiles p.json {group} {threads}"));
        assert!(error.contains(said), "{error}");
    }
    for policy in ["share", "memcap", "random", "kace"] {
        let error =
            files.refused(&format!("--profiles p.json --group heavy,light --threads best --policy {policy}"));
        assert!(error.contains(&format!("only policy online looks for a split, not {policy}")), "{error}");
    }
}

#[test]
fn a_ranking_checks_groups_as_a_forecast_does() {
    let files = Files::new();
    let many = vec!["light"; 58].join("+");
    for policy in ["online", "share", "memcap", "random", "sm"] {
        let error =
            files.refused(&format!("--profiles p.json --target heavy --candidates {many} --policy {policy}"));
        assert!(error.contains("a group has 59 members, expected 1 to 48"), "{error}");
    }
}

#[test]
fn rates_are_shown_with_their_units_and_figures_that_count() {
    let files = Files::new();
    let profiles = r#"{"version":1,"gpu":"NVIDIA H200","tasks":[
        {"name":"slow","rate":{"per_s":0.00021,"unit":"epochs"}},{"name":"huge","rate":4.2e9},{"name":"absurd","rate":1e308},
        {"name":"plain","rate":{"per_s":36.2,"unit":"it"}}]}"#;
    std::fs::write(files.path("u.json"), profiles).unwrap();
    for (task, shown) in [("slow", " 2.100e-4 epochs/s "), ("huge", " 4.200e9/s "), ("plain", " 36.20 it/s ")]
    {
        let text = String::from_utf8(files.run(&format!("--profiles u.json --group {task}")).stdout).unwrap();
        assert!(text.contains(shown), "{text}");
    }
    let text = String::from_utf8(files.run("--profiles u.json --group absurd").stdout).unwrap();
    assert!(text.lines().next().is_some_and(|line| line.len() < 100), "{text}");
    assert_eq!(files.json("--profiles u.json --group slow")["tasks"][0]["rate"]["unit"], "epochs");
    let scores =
        files.run("--profiles u.json --target slow --candidates slow --policy online --objective rate");
    let scores = String::from_utf8(scores.stdout).unwrap();
    assert!(!scores.contains(" 0.000 ") && scores.contains("e-4 "), "{scores}");
}

#[test]
fn names_do_not_reach_the_terminal_raw() {
    let files = Files::new();
    let evil = r"\u001b]52;c;x\u0007\nfake";
    let write =
        |name: &str, text: &str| std::fs::write(files.path(name), text.replace("EVIL", evil)).unwrap();
    write("e.json", r#"{"version":1,"gpu":"EVIL","tasks":[{"name":"EVIL"},{"name":"b"}]}"#);
    write("m2.json", &MEASURED.replace("heavy", "EVIL"));
    let group = "\u{1b}]52;c;x\u{7}\nfake,b";
    let mut command = Command::new(env!("CARGO_BIN_EXE_carma"));
    command.current_dir(files.0.path()).args(["predict", "--profiles", "e.json", "--group", group]);
    for output in [command.output().unwrap(), files.run("--observe m2.json --model e.model")] {
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
        assert!(text.contains(r"\u{1b}]52") && !text.contains("\nfake"), "{text:?}");
    }
}

#[test]
fn a_new_model_begins_with_what_comes_with_carma_and_cold_windows_teach_nothing() {
    let files = Files::new();
    let solo = |at: f64, rate: f64| {
        format!(r#"{{"members":["light"],"sharing":"mps","rates":[{rate}],"at_s":{at},"window_s":1.5}}"#)
    };
    let cold = [solo(0.0, 20.0), solo(30.0, 480.0), solo(40.0, 490.0)].join(",");
    let text = MEASURED.replace("\"combinations\":[", &format!("\"combinations\":[{cold},"));
    std::fs::write(files.path("cold.json"), text).unwrap();
    let said = files.json("--observe cold.json --model cold.model");
    assert_eq!(said["learned"], 0, "{said}");
    assert!(said["skipped"].to_string().contains("light had not warmed up"), "{said}");

    // With nothing learned from the file, it is the model that `predict` goes by without one, or none.
    let expected = |model: &str| {
        let reply = files.json(&format!("--profiles p.json --group heavy,light {model}"));
        reply["tasks"][0]["progress"]["expected"].as_f64().unwrap()
    };
    let usual = expected("");
    assert!((expected("--model cold.model") - usual).abs() < 1e-12);
    files.json("--observe cold.json --model bare.model --from-nothing");
    assert!((expected("--model bare.model") - usual).abs() > 1e-3);
}

#[test]
fn two_that_learn_at_once_lose_nothing() {
    let files = Files::new();
    for n in 0..8 {
        let one = MEASURED
            .replace("[9.4,480.0]", &format!("[9.{n}01,480.0]"))
            .replace("[9.5,0.0]", &format!("[9.{n}02,0.0]"));
        std::fs::write(files.path(&format!("m{n}.json")), one).unwrap();
    }
    std::thread::scope(|scope| {
        let learn = |n: i32| files.json(&format!("--observe m{n}.json --model mine.json"));
        for n in 0..8 {
            scope.spawn(move || assert_eq!(learn(n)["learned"], 2));
        }
    });
    for n in 0..8 {
        assert_eq!(files.json(&format!("--observe m{n}.json --model mine.json"))["known"], 2, "{n}");
    }
    let left = std::fs::read_dir(files.0.path()).unwrap();
    let left = left.filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().contains("mine"));
    assert_eq!(left.count(), 1, "no lock is left behind");
}
