//! Traces and catalogues: what is read, what is refused and how it is said.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use carma_core::model::Estimator;
use carma_core::units::{MiB, Millis};
use carma_sim::trace::draw::{Mix, assign};
use carma_sim::trace::import::{Format, Imported, import, import_file};
use carma_sim::trace::synthesize::{Arrivals, Synthesis, synthesize};
use carma_sim::trace::{Catalogue, Trace, TraceError, Weight, Workload, read, write};
use flate2::{Compression, write::GzEncoder};
use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file of the shared data, or a printed line that it is not there.
fn shared(name: &str) -> Option<PathBuf> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data").join(name);
    if !file.is_file() {
        eprintln!("skipped: ../shared/data/{name} is absent");
        return None;
    }
    Some(file)
}

fn parse(text: impl AsRef<[u8]>) -> Result<Trace, TraceError> {
    read::trace(text.as_ref(), Path::new("t.csv"), None)
}

fn refused(text: impl AsRef<[u8]>) -> String {
    parse(text).unwrap_err().to_string()
}

fn tasks(text: &str) -> Catalogue {
    Catalogue::read(text.as_bytes(), Path::new("c.csv")).unwrap()
}

fn gz(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn every_column_is_read_in_any_order() {
    let trace = parse(
        "user,gpus,SMACT,job,arrival_s,task,duration_s,memory_mib,gract,smocc,drama,tensor,pcie,cpu,colour\n\
         ann,2,0.5,j1,1.0005,bert,60.25,900.2,1,0.2,0.3,0.4,0.1,0.7,red\n\
         ,,,,1.5,,,,,,,,,,\n",
    )
    .unwrap();
    assert_eq!(trace.name, "t");
    let job = &trace.jobs[0];
    assert_eq!((job.line, &*job.id, job.arrival, job.task.as_deref()), (2, "j1", Millis(1001), Some("bert")));
    assert_eq!((job.duration, job.gpus, &*job.user), (Some(Millis(60_250)), Some(2), "ann"));
    assert_eq!(job.memory, Some(MiB(901)));
    let fields = [1.0, 0.5, 0.2, 0.3, 0.4, 0.1, 0.7].map(Some);
    assert_eq!(job.activity.fields(), fields);
    let job = &trace.jobs[1];
    assert_eq!((job.line, &*job.id, job.task.as_deref(), job.gpus), (3, "2", None, None));
    assert_eq!(trace.notes, ["columns of t.csv not used: `colour`"]);
}

#[test]
fn several_traces_in_a_file_need_a_name() {
    let text = "trace,seq,arrival_s\na,1,0\nb,1,5\na,2,7\n";
    assert_eq!(refused(text), "t.csv: holds several traces; choose one with --trace-name: `a`, `b`");
    let chosen = |name| read::trace(text.as_bytes(), Path::new("t.csv"), Some(name));
    let trace = chosen("a").unwrap();
    assert_eq!((trace.name.as_str(), trace.jobs.len()), ("a", 2));
    assert_eq!(chosen("c").unwrap_err().to_string(), "t.csv: holds no trace `c`; it holds `a`, `b`");
    assert_eq!(parse("trace,arrival_s\nonly,0\n").unwrap().name, "only");
    let none = read::trace("arrival_s\n0\n".as_bytes(), Path::new("t.csv"), Some("a")).unwrap_err();
    assert_eq!(none.to_string(), "t.csv: has no column `trace` to find `a` in; leave the name out");
}

#[test]
fn jobs_are_sorted_and_ties_keep_their_order() {
    let trace = parse("job,arrival_s\nc,5\na,1\nd,5\nb,1\na,1\n").unwrap();
    let ids: Vec<&str> = trace.jobs.iter().map(|j| &*j.id).collect();
    assert_eq!(ids, ["a", "b", "a", "c", "d"], "ids may repeat");
    assert_eq!(trace.notes, ["the jobs of t.csv were not in the order of arrival; they were sorted"]);
}

#[test]
fn line_ends_marks_and_quotes() {
    let trace = parse("\u{feff}job,arrival_s,task\r\n\"a,\"\"b\"\"\",0,x\r\n\r\nc,1,y\r\n").unwrap();
    assert_eq!((&*trace.jobs[0].id, trace.jobs[0].line), ("a,\"b\"", 2));
    assert_eq!((&*trace.jobs[1].id, trace.jobs[1].line), ("c", 4));
    assert_eq!(
        refused("job,arrival_s\n\"a,0\n"),
        "t.csv:2: field 1 opens a quote that this line does not close"
    );
}

#[test]
fn faults_are_named_with_their_line() {
    let cases = [
        ("", "t.csv: is empty; the first line must name the columns"),
        ("\n \n", "t.csv: is empty; the first line must name the columns"),
        ("job,arrival_s\n", "t.csv: has a header and no job"),
        ("id,when\n1,2\n", "t.csv:1: no column arrival_s in the header; found: `id`, `when`"),
        ("job,arrival_s,job\n", "t.csv:1: the column `job` stands twice in the header"),
        ("job,arrival_s\n1,-1\n", "t.csv:2: arrival_s: expected seconds, from 0 to 100 years, found `-1`"),
        ("job,arrival_s\n1,NaN\n", "t.csv:2: arrival_s: expected seconds, from 0 to 100 years, found `NaN`"),
        ("job,arrival_s\n1,inf\n", "t.csv:2: arrival_s: expected seconds, from 0 to 100 years, found `inf`"),
        (
            "job,arrival_s\n1,1e300\n",
            "t.csv:2: arrival_s: expected seconds, from 0 to 100 years, found `1e300`",
        ),
        (
            "job,arrival_s\n1,noon\n",
            "t.csv:2: arrival_s: expected seconds, from 0 to 100 years, found `noon`",
        ),
        ("job,arrival_s\n1,\n", "t.csv:2: arrival_s: expected seconds since the beginning, found ``"),
        (
            "arrival_s,duration_s\n0,0\n",
            "t.csv:2: duration_s: expected a run time of at least 1 ms, in seconds, found `0`",
        ),
        (
            "arrival_s,gpus\n0,0\n",
            "t.csv:2: gpus: expected a number of GPUs, at least 1; remove jobs that use none, found `0`",
        ),
        (
            "arrival_s,gpus\n0,1000001\n",
            "t.csv:2: gpus: expected a number of GPUs, a whole number up to 1000000, found `1000001`",
        ),
        (
            "arrival_s,gpus\n0,1.5\n",
            "t.csv:2: gpus: expected a number of GPUs, a whole number up to 1000000, found `1.5`",
        ),
        (
            "arrival_s,smact\n0,89\n",
            "t.csv:2: smact: expected a share from 0 to 1; divide percentages by 100, found `89`",
        ),
        (
            "arrival_s,memory_mib\n0,-1\n",
            "t.csv:2: memory_mib: expected memory in MiB, from 0 on, found `-1`",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(refused(text), expected);
    }
    let count = refused("job,arrival_s\n1,2\n1,2,3\n");
    assert!(count.starts_with("t.csv:3: 3 fields where the header has 2"), "{count}");
    let long = format!("job,arrival_s\n{},0\n", "x".repeat(300));
    assert!(refused(long).starts_with("t.csv:2: job: expected a name of at most 256 bytes, found `xxx"));
    let trap = refused("job,arrival_s\n1,\x1b[2J\n");
    assert!(!trap.contains('\x1b'), "a message must not carry the file's control characters: {trap:?}");
}

#[test]
fn files_that_cannot_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("none.csv");
    let said = read::trace_file(&missing, None).unwrap_err().to_string();
    assert_eq!(
        said,
        format!("{}: cannot be read: No such file or directory (os error 2)", missing.display())
    );
    let said = read::trace_file(dir.path(), None).unwrap_err().to_string();
    assert_eq!(said, format!("{}: is a directory; name a file in it", dir.path().display()));
}

#[test]
fn gzip_is_told_by_its_first_bytes() {
    let mut text = String::from("job,arrival_s\n");
    for i in 0..5000 {
        text.push_str(&format!("{i},{i}.{}\n", i % 997));
    }
    let packed = gz(text.as_bytes());
    assert_eq!(parse(&packed).unwrap().jobs.len(), 5000);
    // Two members, as `cat a.gz b.gz` makes them.
    let both = [gz(b"job,arrival_s\n1,0\n"), gz(b"2,3\n")].concat();
    assert_eq!(parse(both).unwrap().jobs.len(), 2);
    for cut in [2, 5, 12, packed.len() / 2, packed.len() - 1] {
        let said = refused(&packed[..cut]);
        assert!(said.contains("ends too early") || said.contains("cannot be read"), "cut at {cut}: {said}");
    }
    let mut damaged = packed;
    let middle = damaged.len() / 2;
    damaged[middle] ^= 0x55;
    assert!(parse(damaged).is_err());
}

#[test]
fn a_gzip_bomb_is_refused_in_little_memory() {
    // 64 MiB of one letter in 64 KiB: refused at the first line's first MiB.
    let bomb = gz(&vec![b'a'; 64 << 20]);
    assert!(bomb.len() < 100_000);
    assert!(refused(&bomb).starts_with("t.csv:1: the line is longer than 1024 KiB"));
}

const TASKS: &str = "task,model,class,gpus,duration_s,memory_mib,smact,smocc,drama,cpu\n\
    small,S,light,1,100,500,0.1,0.05,0.02,0.5\n\
    small2,S,light,1,150,600,0.3,0.15,,\n\
    big,B,heavy,2,3600,30000;12000,0.9,0.3,0.2,\n\
    odd,O,heavy,,,,,,,\n";

#[test]
fn the_trace_goes_before_the_catalogue() {
    let catalogue = tasks(TASKS);
    let trace = parse(
        "job,arrival_s,task,duration_s,gpus,user,memory_mib,smact\n\
         1,0,small,,,ann,,\n\
         2,1,small,50,2,ben,,\n\
         3,2,small,,,ann,700,\n\
         4,3,small,,,,700,\n\
         5,4,small,,,,,0.2\n\
         6,5,big,,,,,\n",
    )
    .unwrap();
    let work = Workload::resolve(&trace, Some(&catalogue)).unwrap();
    assert_eq!(work.users.iter().map(|u| &**u).collect::<Vec<_>>(), ["ann", "ben", "-"]);
    assert_eq!(work.jobs.iter().map(|j| j.user).collect::<Vec<_>>(), [0, 1, 0, 2, 2, 2]);
    let [one, two, three, four, five, six] = work.jobs.as_slice() else { panic!() };
    assert!(Arc::ptr_eq(&one.task, &two.task), "run time and GPUs belong to the job");
    assert_eq!((two.duration, two.gpus), (Millis::secs(50), 2));
    assert_eq!((one.duration, one.gpus), (Millis::secs(100), 1));
    assert!(Arc::ptr_eq(&three.task, &four.task), "equal overrides share");
    assert_eq!(three.task.memory, [MiB(700)]);
    assert_eq!(five.task.activity.smact, Some(0.2));
    assert_eq!((six.gpus, six.task.memory.clone()), (2, vec![MiB(30_000), MiB(12_000)]));
}

#[test]
fn memory_counts_as_measured_where_nobody_forecasts_any() {
    let trace = parse("arrival_s,task\n0,small\n1,big\n").unwrap();
    let measured = |work: &Workload| {
        work.jobs.iter().map(|job| job.task.forecasts.estimates.of(Estimator::Measured)).collect::<Vec<_>>()
    };
    let work = Workload::resolve(&trace, Some(&tasks(TASKS))).unwrap();
    assert_eq!(measured(&work), [Some(MiB(500)), Some(MiB(30_000))], "of several GPUs the most");
    assert!(work.notes.iter().any(|note| note.starts_with("no forecast of GPU memory is given; ")));
    // A catalogue that forecasts the memory of one says that nothing is known of the other's.
    let forecast = tasks(
        "task,duration_s,memory_mib,smact,smocc,drama,measured_mib\nsmall,9,500,.1,.1,.1,480\nbig,9,30000,.1,.1,.1,\n",
    );
    let work = Workload::resolve(&trace, Some(&forecast)).unwrap();
    assert_eq!((measured(&work), work.notes.len()), (vec![Some(MiB(480)), None], 0));
    assert!(Arc::ptr_eq(&work.jobs[0].task, &forecast.tasks["small"]), "nothing changed, nothing copied");
}

#[test]
fn every_assumption_is_one_sentence() {
    let catalogue = tasks(TASKS);
    let trace =
        parse("arrival_s,task,duration_s,gpus\n0,small2,,\n1,odd,10,\n2,odd,20,\n3,big,,4\n").unwrap();
    let work = Workload::resolve(&trace, Some(&catalogue)).unwrap();
    let odd = &work.jobs[1].task;
    assert_eq!(odd.activity.smact, Some(0.9), "of the heavy one");
    assert_eq!(odd.memory, []);
    assert_eq!(work.jobs[0].task.activity.drama, Some(0.02));
    assert_eq!(work.jobs[3].task.memory, [MiB(30_000)]);
    assert_eq!(
        work.notes,
        [
            "GPU memory is listed for another number of GPUs; the largest is taken for each (1 job, 1 task: big)",
            "GPU memory is not known; none is assumed, and policies that choose by free memory cannot tell GPUs apart (2 jobs, 1 task: odd)",
            "cpu is not known; assumed 0.50, the mean of 1 light task (1 job, 1 task: small2)",
            "cpu is not known; assumed 0.50, the mean of the catalogue's 1 task (3 jobs, 2 tasks: big, odd)",
            "drama is not known; assumed 0.02, the mean of 1 light task (1 job, 1 task: small2)",
            "drama is not known; assumed 0.20, the mean of 1 heavy task (2 jobs, 1 task: odd)",
            "no forecast of GPU memory is given; policies are told what the jobs take, as if earlier runs had been measured (2 jobs, 2 tasks: big, small2)",
            "smact is not known; assumed 0.90, the mean of 1 heavy task (2 jobs, 1 task: odd)",
            "smocc is not known; assumed 0.30, the mean of 1 heavy task (2 jobs, 1 task: odd)",
        ]
    );
    let bare = parse("arrival_s,duration_s\n0,10\n1,20\n").unwrap();
    let work = Workload::resolve(&bare, None).unwrap();
    assert!(Arc::ptr_eq(&work.jobs[0].task, &work.jobs[1].task));
    assert_eq!(work.jobs[0].task.activity.smocc, Some(0.25));
    assert_eq!(work.jobs[0].task.activity.tensor, None);
    assert_eq!(
        work.notes,
        [
            "GPU memory is not known; none is assumed, and policies that choose by free memory cannot tell GPUs apart (2 jobs)",
            "drama is not known, nor of any like task; assumed 0.25 (2 jobs)",
            "smact is not known, nor of any like task; assumed 0.50 (2 jobs)",
            "smocc is not known, nor of any like task; assumed 0.25 (2 jobs)",
        ]
    );
}

#[test]
fn what_cannot_be_resolved() {
    let catalogue = tasks(TASKS);
    let said = |text: &str, catalogue: Option<&Catalogue>| {
        Workload::resolve(&parse(text).unwrap(), catalogue).unwrap_err().to_string()
    };
    assert_eq!(
        said("job,arrival_s,task\n7,0,smal\n", Some(&catalogue)),
        "t.csv:2: job `7`: the catalogue has no task `smal`; the nearest are small, small2, big"
    );
    assert_eq!(
        said("job,arrival_s,task\n7,0,odd\n", Some(&catalogue)),
        "t.csv:2: job `7` has no run time: the task `odd` has none in the catalogue either; add it there"
    );
    assert_eq!(
        said("job,arrival_s,task\n7,0,odd\n", None),
        "t.csv:2: job `7` has no run time: give it a duration_s, or name a catalogue with the task `odd` (--catalogue, or as NAME.tasks.csv beside the trace NAME.csv)"
    );
    assert_eq!(
        said("job,arrival_s\n7,0\n", None),
        "t.csv:2: job `7` has no run time: give it a duration_s, or a task of the catalogue"
    );
}

#[test]
fn faults_of_catalogues() {
    let refused = |text: &str| Catalogue::read(text.as_bytes(), Path::new("c.csv")).unwrap_err().to_string();
    let cases = [
        ("name\nx\n", "c.csv:1: no column task in the header; found: `name`"),
        ("task\n", "c.csv: has a header and no task"),
        ("task,gpus\n,1\n", "c.csv:2: task: expected the name of the task, found ``"),
        ("task\nx\nx\n", "c.csv:3: the task `x` stands twice in the catalogue"),
        ("task,class\nx,huge\n", "c.csv:2: class: expected light, medium or heavy, found `huge`"),
        (
            "task,memory_mib\nx,5;y\n",
            "c.csv:2: memory_mib: expected MiB, or a list of MiB for each GPU, `900;400`, found `5;y`",
        ),
        ("task,memory_mib\nx,5;6\n", "c.csv:2: memory_mib lists 2 GPUs, and gpus says 1"),
        ("task,lucid_score\nx,3\n", "c.csv:2: lucid_score: expected 0, 1 or 2, found `3`"),
    ];
    for (text, expected) in cases {
        assert_eq!(refused(text), expected);
    }
    assert!(refused("task,mps_curve\nx,50:1;20:1\n").contains("percent ascending"));
    assert!(refused("task,memory_over_time\nx,0:2\n").contains("both shares from 0 to 1"));
}

#[test]
fn what_is_written_is_read_again() {
    let catalogue = tasks(
        "task,model,class,gpus,duration_s,memory_mib,gract,smact,smocc,drama,tensor,pcie,cpu,startup_s,\
         memory_over_time,mps_curve,lucid_score,measured_mib,horus_mib,faketensor_mib,gpumemnet_mib,declared_mib,\
         allocator_mib,gpumemnet_published_transformer_mib\n\
         \"a,b\",\"Model \"\"x\"\"\",medium,2,10.5,900;400,1,0.123456789,.2,.3,.4,.5,.6,2.25,\
         0:0.3;0.02:1,10:0.2;50:0.8;100:1,2,1,2,3,4,5,6,7\n\
         plain,,,,,,,,,,,,,,,,,,,,,,,\n",
    );
    let task = &catalogue.tasks["a,b"];
    assert_eq!(task.weight, Some(Weight::Medium));
    assert_eq!(task.memory_over_time, [(0.0, 0.3), (0.02, 1.0)]);
    let sources = task.forecasts.estimates.iter().map(|(_, mib)| mib.0);
    assert_eq!(
        (task.forecasts.declared, sources.collect::<Vec<_>>()),
        (Some(MiB(5)), vec![1, 2, 3, 4, 6, 7])
    );
    let mut text = Vec::new();
    write::catalogue(&catalogue, &mut text).unwrap();
    assert_eq!(Catalogue::read(text.as_slice(), Path::new("c.csv")).unwrap(), catalogue);

    let trace =
        parse("job,arrival_s,task,duration_s,user,smact\n1,0.5,\"a,b\",1.001,ann,0.25\n2,3,,,,\n").unwrap();
    let mut text = Vec::new();
    write::trace(&trace, &mut text).unwrap();
    assert_eq!(
        String::from_utf8(text.clone()).unwrap(),
        "job,arrival_s,task,duration_s,user,smact\n1,0.5,\"a,b\",1.001,ann,0.25\n2,3,,,,\n"
    );
    assert_eq!(parse(&text).unwrap(), trace);
}

#[test]
fn the_carma_evaluation_is_read_as_published() {
    let (Some(arrivals), Some(workloads)) =
        (shared("carma/philly_evaluation_arrivals.csv"), shared("carma/workloads.csv"))
    else {
        return;
    };
    let said = read::trace_file(&arrivals, None).unwrap_err().to_string();
    assert!(
        said.ends_with(
            "`philly_heavy-60-tasks`, `philly_mix-90-tasks`, `philly_trace-t1`, `philly_trace-t2`"
        ),
        "{said}"
    );
    let catalogue = Catalogue::read_file(&workloads).unwrap();
    assert_eq!(catalogue.tasks.len(), 52);
    let xlnet = &catalogue.tasks["xlnet_large_cased_2"];
    assert_eq!((xlnet.duration, xlnet.gpus), (Some(Millis(3_524_400)), 2));
    let large = &catalogue.tasks["BERT_large"];
    assert_eq!((large.memory.clone(), large.duration), (vec![MiB(12_622)], Some(Millis(2_717_190))));
    assert_eq!(catalogue.tasks["efficientNet_cifar100_20e_1"].duration, Some(Millis(1_053_860)));
    let own = |start: &str| catalogue.notes.iter().find(|n| n.starts_with(start)).cloned();
    assert_eq!(
        own("no run time measured"),
        Some("no run time measured; time of an epoch x epochs taken: xlnet_large_cased_2".into())
    );
    for (name, jobs, span) in [
        ("philly_trace-t1", 60, 13_767),
        ("philly_trace-t2", 60, 18_601),
        ("philly_mix-90-tasks", 90, 12_514),
        ("philly_heavy-60-tasks", 60, 8_966),
    ] {
        let trace = read::trace_file(&arrivals, Some(name)).unwrap();
        assert_eq!((trace.name.as_str(), trace.jobs.len()), (name, jobs));
        assert_eq!(trace.jobs.last().unwrap().arrival, Millis::secs(span));
        let work = Workload::resolve(&trace, Some(&catalogue)).unwrap();
        assert!(work.jobs.iter().all(|job| job.task.activity.smact.is_some()));
        assert_eq!(work.users.len(), 1);
    }
}

fn imported(format: Format, text: &str) -> Result<Imported, TraceError> {
    import(format, text.as_bytes(), Path::new("log.csv"))
}

/// Arrival, GPUs, run time and user of each job.
fn rows(trace: &Trace) -> Vec<(u64, u32, u64, &str)> {
    let row = |j: &carma_sim::trace::TraceJob| (j.arrival.0, j.gpus.unwrap(), j.duration.unwrap().0);
    trace.jobs.iter().map(|j| (row(j).0, row(j).1, row(j).2, &*j.user)).collect()
}

#[test]
fn philly_jobs() {
    let made = imported(
        Format::Philly,
        "timestamp,duration,num_gpus,gpu_time,cluster\n\
         2017-10-09 07:01:55,66.0,1,66.0,11cb48\n\
         2017-10-09 06:13:03,2951.5,8,1,6214e9\n\
         2017-10-09 08:00:00,0,1,1,6214e9\n\
         2017-10-09 08:00:00,5,0,1,6214e9\n",
    )
    .unwrap();
    assert_eq!(rows(&made.trace), [(0, 8, 2_951_500, "6214e9"), (2_932_000, 1, 66_000, "11cb48")]);
    assert_eq!((made.trace.name.as_str(), made.trace.jobs[0].line), ("log", 3));
    assert_eq!(made.notes[..2], ["1 job left out: has no run time", "1 job left out: uses no GPU"]);
    assert!(made.catalogue.is_none());
    let said = |row: &str| {
        let text = format!("timestamp,duration,num_gpus\n{row}\n");
        imported(Format::Philly, &text).unwrap_err().to_string()
    };
    assert_eq!(
        said("yesterday,1,1"),
        "log.csv:2: timestamp: expected a time like 2020-06-09 18:41:01, found `yesterday`"
    );
    assert_eq!(
        said("2017-10-09 07:01:55,-1,1"),
        "log.csv:2: duration: expected seconds, from 0 to 100 years, found `-1`"
    );
    assert_eq!(
        said("2017-10-09 07:01:55,,1"),
        "log.csv:2: duration: expected a run time in seconds, found ``"
    );
    assert_eq!(
        said("2017-10-09 07:01:55,0,1"),
        "log.csv: holds no job to import (1 job left out: has no run time)"
    );
    let far = said("2017-10-09 07:01:55,1,1\n0017-10-09 07:01:55,1,1");
    assert!(far.starts_with("log.csv:2: came more than a hundred years"), "{far}");
}

#[test]
fn alibaba_pods() {
    let made = imported(
        Format::AlibabaOpenb,
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n\
         p0,1,1,1,460,,LS,Running,100,250,110\n\
         p1,1,1,0,0,,BE,Running,100,250,110\n\
         p2,1,1,1,1000,,BE,Pending,100,250,\n\
         p3,1,1,8,1000,,BE,Failed,160.5,190,170\n",
    )
    .unwrap();
    assert_eq!(rows(&made.trace), [(0, 1, 140_000, "LS"), (60_500, 8, 20_000, "BE")]);
    assert_eq!(made.trace.jobs[0].activity.smact, Some(0.46));
    assert_eq!(&*made.trace.jobs[1].id, "p3");
    assert_eq!(made.notes[..2], ["1 job left out: uses no GPU", "1 job left out: was never scheduled"]);
}

#[test]
fn helios_jobs() {
    let made = imported(
        Format::Helios,
        "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n\
         11,uA,vc1,4,16,1,FAILED,2020-06-09 18:41:27,2020-06-09 18:41:30,2020-06-09 18:45:39,249,3\n\
         12,uB,vc1,0,16,1,COMPLETED,2020-06-09 18:41:28,,,10,0\n\
         13,uB,vc1,1,1,1,CANCELLED,2020-06-09 18:41:29,None,None,0,5\n\
         10,uB,vc1,1,1,1,COMPLETED,2020-06-09 18:41:00,,,36848,0\n",
    )
    .unwrap();
    assert_eq!(rows(&made.trace), [(0, 1, 36_848_000, "uB"), (27_000, 4, 249_000, "uA")]);
    assert_eq!(made.notes[..2], ["1 job left out: has no run time", "1 job left out: uses no GPU"]);
}

#[test]
fn lucid_jobs_bring_a_catalogue() {
    let head = "job_id,user,vc,jobname,gpu_num,cpu_num,state,submit_time,duration,dataset,model,batchsize,amp,speed,gpu_util,gmem_util,gmem\n";
    let made = imported(
        Format::Lucid,
        &format!(
            "{head}1,uA,vc,j,1,4,COMPLETED,2020-09-01 00:00:10,100,CIFAR-10,ResNet18,32,0,9,50.5,20,1800\n\
             2,uB,vc,j,2,4,COMPLETED,2020-09-01 00:00:00,200,CIFAR-10,ResNet18,32,1,9,40,20,1500\n\
             3,uB,vc,j,1,4,COMPLETED,2020-09-01 00:00:20,300,CIFAR-10,ResNet18,32,0,9,50.5,20,1900\n"
        ),
    )
    .unwrap();
    assert_eq!(
        rows(&made.trace),
        [(0, 2, 200_000, "uB"), (10_000, 1, 100_000, "uA"), (20_000, 1, 300_000, "uB")]
    );
    let catalogue = made.catalogue.unwrap();
    let names: Vec<&str> = catalogue.tasks.keys().map(|name| &**name).collect();
    assert_eq!(names, ["ResNet18/CIFAR-10/32", "ResNet18/CIFAR-10/32/amp"]);
    let task = &catalogue.tasks["ResNet18/CIFAR-10/32"];
    assert_eq!((task.memory.clone(), task.activity.gract), (vec![MiB(1800)], Some(0.505)));
    assert_eq!(made.trace.jobs[1].memory, None, "as its task says");
    assert_eq!(made.trace.jobs[2].memory, Some(MiB(1900)), "unlike its task");
    let relative = format!(
        "{head}1,u,v,j,1,4,C,86400.5,100,D,M,32,0,9,5,2,18\n2,u,v,j,1,4,C,86401,100,D,M,32,0,9,5,2,18\n"
    );
    assert_eq!(imported(Format::Lucid, &relative).unwrap().trace.jobs[1].arrival, Millis(500));
}

#[test]
fn slurm_accounting() {
    let made = imported(
        Format::SlurmSacct,
        "JobID|JobName|User|Submit|Start|End|Elapsed|State|AllocTRES|ReqTRES\n\
         100|a \"quoted|ann|2024-01-02T03:04:05|2024-01-02T03:05:00|2024-01-03T03:05:01|1-00:00:01|COMPLETED|cpu=8,gres/gpu=2,gres/gpu:a100=2|x=1\n\
         100.batch|batch||2024-01-02T03:05:00|2024-01-02T03:05:00|2024-01-03T03:05:01|1-00:00:01|COMPLETED|cpu=8,gres/gpu=2|\n\
         101|cpu|ann|2024-01-02T03:04:06|2024-01-02T03:05:00|2024-01-02T03:05:01|00:00:01|COMPLETED|cpu=8|cpu=8\n\
         102_3|b|ben|2024-01-02T03:04:07|2024-01-02T03:05:00|2024-01-02T03:15:00|10:00|CANCELLED by 1000|cpu=1,gres/gpu:h100=1,gres/gpu:a100=3|\n\
         103|c|ben|2024-01-02T03:04:07|Unknown|Unknown|00:00:00|PENDING||gres/gpu=1\n\
         104|c|ben|2024-01-02T03:04:07|None|2024-01-02T04:00:00|00:00:00|CANCELLED by 7||gres/gpu=1\n",
    )
    .unwrap();
    assert_eq!(rows(&made.trace), [(0, 2, 86_401_000, "ann"), (2000, 4, 600_000, "ben")]);
    assert_eq!(&*made.trace.jobs[1].id, "102_3");
    assert_eq!(
        made.notes[..3],
        ["1 job left out: is not over", "1 job left out: never ran", "1 job left out: uses no GPU"]
    );
    let bare = imported(
        Format::SlurmSacct,
        "JobID|Submit|Start|End|ReqTRES\n1|2024-01-02T00:00:00|2024-01-02T00:00:10|2024-01-02T00:01:10|gres/gpu=1\n",
    );
    let bare = bare.unwrap();
    assert_eq!(rows(&bare.trace), [(0, 1, 60_000, "")]);
    assert!(bare.notes.iter().any(|note| note.contains("bear no zone")), "{:?}", bare.notes);
    // One hour apart, over a change of the clock; as `%FT%T%z` writes it, and with a colon or a Z.
    for [first, second] in [
        ["2026-03-29T01:30:00+0100", "2026-03-29T03:30:00+0200"],
        ["2026-03-29 01:30:00+01:00", "2026-03-29T01:30:00Z"],
    ] {
        let text =
            format!("JobID|Submit|ElapsedRaw|ReqTRES\n1|{first}|60|gres/gpu=1\n2|{second}|60|gres/gpu=1\n");
        let made = imported(Format::SlurmSacct, &text).unwrap();
        assert_eq!(rows(&made.trace), [(0, 1, 60_000, ""), (3_600_000, 1, 60_000, "")]);
        assert!(!made.notes.iter().any(|note| note.contains("bear no zone")), "{:?}", made.notes);
    }
    let said = |text: &str| imported(Format::SlurmSacct, text).unwrap_err().to_string();
    assert_eq!(
        said(
            "JobID|Submit|ElapsedRaw|ReqTRES\n1|2024-01-02T00:00:00|9|gres/gpu=1\n2|2024-01-02T00:00:00Z|9|gres/gpu=1\n"
        ),
        "log.csv:3: submit: expected a time as those before it: all with an offset from UTC, or none, found `2024-01-02T00:00:00Z`"
    );
    assert_eq!(
        said("JobID|Submit|ElapsedRaw\n"),
        "log.csv:1: no column alltres in the header; found: `jobid`, `submit`, `elapsedraw`"
            .replace("alltres", "alloctres")
    );
    assert_eq!(
        said("JobID|Submit|Elapsed|ReqTRES\n1|2024-01-02T00:00:00|soon|gres/gpu=1\n"),
        "log.csv:2: elapsed: expected a span like 1-02:03:04, found `soon`"
    );
    assert_eq!(
        said("JobID|Submit|Elapsed|ReqTRES\n1|2024-01-02T00:00:00|10:00|gres/gpu=many\n"),
        "log.csv:2: reqtres: expected resources like cpu=8,gres/gpu=2, found `gres/gpu=many`"
    );
}

const THROUGHPUTS: &str = r#"{"k80": {}, "v100": {
    "('LM (batch size 5)', 1)": {"null": 100.0, "('A3C', 1)": [1, 2]},
    "('LM (batch size 5)', 2)": {"null": 200.0}, "('A3C', 1)": {"null": 0.0}}}"#;

#[test]
fn gavel_jobs_need_the_table_of_throughputs() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("jobs.csv");
    let run = |text: &str| import(Format::Gavel, text.as_bytes(), &file);
    let head = "virtual_cluster,job_type,total_steps,arrival_s,scale_factor\n";
    let text = format!(
        "{head}vc,LM (batch size 5),1000,3.0,1\nvc,LM (batch size 5),1000,5,2\nvc,LM (batch size 5),1000,6,4\nvc,LM (batch size 5),1000,6,0\n"
    );
    let said = run(&text).unwrap_err().to_string();
    assert!(
        said.contains("jobs.csv: needs Gavel's table of throughputs beside it, simulation_thr"),
        "{said}"
    );
    std::fs::write(dir.path().join("simulation_throughputs.json.gz"), gz(THROUGHPUTS.as_bytes())).unwrap();
    let made = run(&text).unwrap();
    assert_eq!(rows(&made.trace), [(0, 1, 10_000, "vc"), (2000, 2, 5000, "vc"), (3000, 4, 10_000, "vc")]);
    assert!(made.notes.iter().any(|n| n.starts_with("1 job of 1 type ask")), "{:?}", made.notes);
    assert_eq!(made.catalogue.unwrap().tasks.len(), 1);
    let said = run(&format!("{head}vc,A3C,1000,3,1\n")).unwrap_err().to_string();
    assert!(
        said.ends_with("jobs.csv:2: `A3C` has no throughput on a V100 in simulation_throughputs.json.gz"),
        "{said}"
    );
    // Gavel's own files: seven fields, later nine.
    let seven = "LM (batch size 5)\tcd x && run\t--steps\t1\t1000\t11.000000\t2\n";
    assert_eq!(rows(&run(seven).unwrap().trace), [(0, 2, 5000, "")]);
    let nine = "LM (batch size 5)\tcd x && run\t--steps\t1\t1000\t2\t1\t-1.0\t11.000000\n";
    assert_eq!(rows(&run(&nine.repeat(2)).unwrap().trace), [(0, 2, 5000, ""), (0, 2, 5000, "")]);
    let eight = run("a\tb\tc\td\te\tf\tg\th\n").unwrap_err().to_string();
    assert!(eight.contains("jobs.csv:1: 8 fields where the header has 9"), "{eight}");
}

#[test]
fn the_public_traces_at_hand() {
    let mut expected = vec![
        (Format::Philly, "petuum__adaptdl/philly.csv.gz", 82_247),
        (Format::Gavel, "stanford-futuredata__gavel/philly_derived_msr_seed0.csv.gz", 15_264),
    ];
    // 8,152 pods, of which 1,088 use no GPU and 861 that do were never scheduled.
    expected.push((
        Format::AlibabaOpenb,
        "alibaba__clusterdata/gpu-v2023_openb_pod_list_default.csv.gz",
        6203,
    ));
    for (format, name, jobs) in expected {
        let Some(file) = shared(name) else { continue };
        let made = import_file(format, &file).unwrap();
        assert_eq!(made.trace.jobs.len(), jobs, "{name}: {:?}", made.notes);
        assert_eq!(made.trace.jobs[0].arrival, Millis::ZERO);
        assert!(made.trace.jobs.is_sorted_by_key(|job| job.arrival));
        let work = Workload::resolve(&made.trace, made.catalogue.as_ref()).unwrap();
        let kinds: BTreeSet<_> = work.jobs.iter().map(|job| Arc::as_ptr(&job.task)).collect();
        assert!(kinds.len() <= 30, "{name}: {} kinds", kinds.len());
        // What is written is read again, all 82,247 of them.
        let mut text = Vec::new();
        write::trace(&made.trace, &mut text).unwrap();
        let again = parse(&text).unwrap();
        assert_eq!(rows(&again), rows(&made.trace), "{name}");
    }
}

#[test]
fn mixes() {
    assert!(Mix::parse("65/27/8").is_ok());
    assert_eq!(Mix::parse("83/17"), Mix::parse("0/83/17"));
    assert_eq!(Mix::parse("65/27/9").unwrap_err(), "the percentages 65/27/9 make 101, not 100");
    for wrong in ["", "100", "a/b/c", "-1/100/1", "25/25/25/25", "300/0/0"] {
        assert!(Mix::parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn drawn_tasks_take_the_place_of_the_jobs_own() {
    let catalogue =
        tasks("task,class,gpus,duration_s\nl1,light,1,10\nl2,light,1,20\nm,medium,1,100\nh,heavy,2,1000\n");
    let mut trace =
        parse(format!("arrival_s,duration_s,gpus,memory_mib,smact\n{}", "0,5,8,1,0.1\n".repeat(1000)))
            .unwrap();
    assign(&mut trace, &catalogue, Mix::parse("65/27/8").unwrap(), 7).unwrap();
    let work = Workload::resolve(&trace, Some(&catalogue)).unwrap();
    let count = |name: &str| work.jobs.iter().filter(|job| &*job.task.name == name).count();
    let [light1, light2, medium, heavy] = ["l1", "l2", "m", "h"].map(count);
    assert!((600..700).contains(&(light1 + light2)) && (290..370).contains(&light1), "{light1} {light2}");
    assert!((230..310).contains(&medium) && (55..105).contains(&heavy), "{medium} {heavy}");
    assert!(work.jobs.iter().all(|job| job.task.memory.is_empty()));
    assert!(work.jobs.iter().any(|job| (job.gpus, job.duration) == (2, Millis::secs(1000))));
    let mut again = parse("arrival_s\n0\n0\n0\n0\n0\n0\n").unwrap();
    assign(&mut again, &catalogue, Mix::parse("65/27/8").unwrap(), 7).unwrap();
    let kinds = |trace: &Trace| trace.jobs.iter().take(6).map(|j| j.task.clone()).collect::<Vec<_>>();
    assert_eq!(kinds(&again), kinds(&trace), "the same seed draws the same");
    let light = tasks("task,class,duration_s\nl1,light,10\nbad,heavy,\n");
    let said = |mix| assign(&mut again, &light, Mix::parse(mix).unwrap(), 7).unwrap_err().to_string();
    let mut said = said;
    assert_eq!(
        said("50/50/0"),
        "the mix asks for 50 % medium tasks, and the catalogue has none of class medium"
    );
    assert_eq!(said("50/0/50"), "the task bad has no run time in the catalogue, and cannot be drawn");
}

#[test]
fn the_same_seed_makes_the_same_bytes() {
    let catalogue = tasks("task,class,gpus,duration_s\nl,light,1,10\nm,medium,1,100\nh,heavy,2,1000\n");
    let make = |arrivals, users, seed| {
        let what = Synthesis {
            jobs: 6,
            mix: Mix::parse("50/30/20").unwrap(),
            arrivals,
            mean_gap: Millis::secs(100),
            users,
            seed,
        };
        let mut text = Vec::new();
        write::trace(&synthesize(&catalogue, &what).unwrap(), &mut text).unwrap();
        String::from_utf8(text).unwrap()
    };
    let bytes = |arrivals| make(arrivals, 2, 1);
    insta::assert_snapshot!(bytes(Arrivals::Poisson), @r"
    job,arrival_s,task,user
    1,0,h,u2
    2,177.037,m,u1
    3,308.229,l,u1
    4,524.027,m,u1
    5,596.133,h,u1
    6,607.809,l,u2
    ");
    insta::assert_snapshot!(bytes(Arrivals::Bursty), @r"
    job,arrival_s,task,user
    1,0,h,u2
    2,69.252,m,u1
    3,107.314,l,u1
    4,131.57,m,u1
    5,242.734,h,u1
    6,343.822,l,u2
    ");
    insta::assert_snapshot!(bytes(Arrivals::Uniform), @r"
    job,arrival_s,task,user
    1,0,h,u2
    2,165.946,m,u1
    3,312.086,l,u1
    4,488.974,m,u1
    5,591.727,h,u1
    6,613.767,l,u2
    ");
    insta::assert_snapshot!(bytes(Arrivals::Batch), @r"
    job,arrival_s,task,user
    1,0,h,u2
    2,0,m,u1
    3,0,l,u1
    4,0,m,u1
    5,0,h,u1
    6,0,l,u2
    ");
    let column = |text: String, at: usize| {
        text.lines().map(|l| l.split(',').nth(at).unwrap().to_owned()).collect::<Vec<_>>()
    };
    for at in 0..3 {
        let other = make(Arrivals::Poisson, 9, 1);
        assert_eq!(column(other, at), column(bytes(Arrivals::Poisson), at), "users change nothing else");
    }
    assert_ne!(make(Arrivals::Poisson, 1, 2), make(Arrivals::Poisson, 1, 1));
}

#[test]
fn gaps_have_the_mean_and_the_spread_that_they_should() {
    let catalogue = tasks("task,class,duration_s\nm,medium,10\n");
    for (arrivals, spread) in [
        (Arrivals::Poisson, 1.0),
        (Arrivals::Uniform, 0.577),
        (Arrivals::Bursty, 2.9),
        (Arrivals::Batch, 0.0),
    ] {
        let what = Synthesis {
            jobs: 200_000,
            mix: Mix::parse("0/100/0").unwrap(),
            arrivals,
            mean_gap: Millis::secs(150),
            users: 3,
            seed: 5,
        };
        let trace = synthesize(&catalogue, &what).unwrap();
        let gaps: Vec<f64> =
            trace.jobs.windows(2).map(|w| (w[1].arrival.0 - w[0].arrival.0) as f64 / 150_000.0).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let wanted = if arrivals == Arrivals::Batch { 0.0 } else { 1.0 };
        assert!((mean - wanted).abs() < 0.05, "{arrivals:?}: mean {mean}");
        let deviation = (gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64).sqrt();
        assert!((deviation - spread).abs() < 0.2, "{arrivals:?}: deviation {deviation}");
    }
}
