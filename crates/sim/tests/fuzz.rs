//! Whatever a file holds, reading it ends in a value or in an error that names the file: never in a
//! panic. Runs as tests on random input from a seed, and under libFuzzer with `cargo bolero test`.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use bolero::TypeGenerator;
use carma_seeded::check;
use carma_sim::trace::draw::Mix;
use carma_sim::trace::import::{Format, import};
use carma_sim::trace::{Catalogue, Trace, TraceError, Workload, read, write};
use flate2::{Compression, write::GzEncoder};
use std::io::Write as _;
use std::path::Path;

const ITERATIONS: usize = 2000;

/// Fields that have a meaning somewhere, or are just outside of one.
const WORDS: &[&str] = &[
    "",
    " ",
    "0",
    "1",
    "2",
    "8",
    "-1",
    "0.5",
    "1e3",
    "1e300",
    "-0",
    "NaN",
    "inf",
    "1000001",
    "99999999999999999999",
    "task",
    "light",
    "medium",
    "heavy",
    "0:0.3;0.02:1",
    "10:0.2;50:0.8;100:1",
    "5:",
    ";;",
    "900;400",
    "LS",
    "ann",
    "2017-10-09 07:01:55",
    "2024-01-02T03:04:05",
    "9999-12-31 23:59:59",
    "-9999-01-01 00:00:00",
    "Unknown",
    "None",
    "10:00",
    "1-02:03:04",
    "99999-99:99:99",
    "::",
    "-",
    "gres/gpu=2",
    "gres/gpu:a100=1,cpu=3",
    "gres/gpu=",
    "=",
    "COMPLETED",
    "CANCELLED by 7",
    "LM (batch size 5)",
    "A3C",
    "123.batch",
    "\"",
    "\"a,\"\"b\"\"\"",
    "\"open",
    "é数",
    "\u{feff}",
    "\0",
    "\r",
    "\t",
    "|",
];

/// Rows under a header, mostly right, and one sort of damage.
#[derive(Debug, Clone, TypeGenerator)]
struct File {
    /// One a row; what each byte does to its field, [`File::bytes`] says.
    rows: Vec<Vec<u8>>,
    /// Whether it is gzipped.
    zipped: bool,
    damage: Damage,
}

#[derive(Debug, Clone, TypeGenerator)]
enum Damage {
    None,
    /// Rows of any number of fields.
    Ragged,
    /// A byte at a place of the header.
    Header(u8, u8),
    /// Any bytes after the last row.
    Rest(Vec<u8>),
    /// So many bytes lost at the end.
    Cut(u8),
}

impl File {
    /// `columns` are separated names, each with a value that is right for it, `arrival_s=0.5`;
    /// `#` is the number of the row.
    fn bytes(&self, columns: &str, separator: &str) -> Vec<u8> {
        let columns: Vec<(&str, &str)> = columns
            .split(separator)
            .map(|column| column.split_once('=').unwrap_or((column, column)))
            .collect();
        let header: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
        let mut text = header.join(separator).into_bytes();
        if let Damage::Header(at, new) = self.damage
            && let Some(byte) = text.get_mut(usize::from(at))
        {
            *byte = new;
        }
        for (number, row) in ["1", "2", "3", "4"].iter().zip(&self.rows) {
            text.push(b'\n');
            let length = if matches!(self.damage, Damage::Ragged) {
                row.len().min(2 * columns.len())
            } else {
                columns.len()
            };
            // Mostly what is right, so that rows get as far as the end.
            let fields: Vec<&str> = (0..length)
                .map(|i| match (row.get(i).copied().unwrap_or_default(), columns.get(i)) {
                    (0..=251, Some((_, "#"))) => number,
                    (0..=251, Some((_, right))) => right,
                    (any, _) => WORDS[usize::from(any).wrapping_mul(31) % WORDS.len()],
                })
                .collect();
            text.extend(fields.join(separator).as_bytes());
        }
        text.push(b'\n');
        if let Damage::Rest(rest) = &self.damage {
            text.extend(rest);
        }
        if self.zipped {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(&text).unwrap();
            text = encoder.finish().unwrap();
        }
        if let Damage::Cut(lost) = self.damage {
            text.truncate(text.len().saturating_sub(usize::from(lost)));
        }
        text
    }
}

/// Rows with fields of a header, whole files of random bytes, and a value or an error of each.
fn fuzz(
    columns: &str,
    separator: &str,
    read: impl Fn(&[u8]) -> Result<(), TraceError> + std::panic::RefUnwindSafe,
) {
    let judge = |bytes: &[u8]| {
        if let Err(error) = read(bytes) {
            let said = error.to_string();
            assert!(!said.is_empty() && !said.chars().any(char::is_control), "{said:?}");
        }
    };
    check!(ITERATIONS).with_type::<File>().for_each(|file| judge(&file.bytes(columns, separator)));
    check!(ITERATIONS).with_type::<Vec<u8>>().for_each(|bytes| judge(bytes));
}

/// What was read can be resolved or not, and what is written of it is read again.
fn used(trace: &Trace, catalogue: Option<&Catalogue>) {
    if let Err(error) = Workload::resolve(trace, catalogue) {
        assert!(!error.to_string().is_empty());
    }
    let mut text = Vec::new();
    write::trace(trace, &mut text).unwrap();
    let again = read::trace(text.as_slice(), Path::new("again.csv"), None).unwrap();
    assert_eq!(again.jobs.len(), trace.jobs.len());
}

#[test]
fn traces() {
    let header = "trace=,job=7,arrival_s=0.5,task=task,duration_s=8,gpus=2,user=ann,memory_mib=900,gract=0.5,smact=1,\
        smocc=0,drama=0.1,tensor=,pcie=,cpu=0.3";
    let catalogue = Catalogue::read("task,duration_s\ntask,5\n".as_bytes(), Path::new("c.csv")).unwrap();
    fuzz(header, ",", |bytes| {
        let trace = read::trace(bytes, Path::new("t.csv"), None)?;
        used(&trace, Some(&catalogue));
        used(&trace, None);
        Ok(())
    });
    fuzz("arrival_s=5,trace=task", ",", |bytes| {
        read::trace(bytes, Path::new("t.csv"), Some("task")).map(|t| used(&t, None))
    });
}

#[test]
fn catalogues() {
    let header = "task=#,model=M,class=heavy,gpus=1,duration_s=,memory_mib=900,gract=1,smact=,cpu=0.5,startup_s=3,\
        memory_over_time=0:0.3;0.02:1,mps_curve=10:0.2;50:0.8,lucid_score=2,declared_mib=,measured_mib=5,epochs=3,\
        readme_et_min_per_epoch=2.5";
    fuzz(header, ",", |bytes| {
        let catalogue = Catalogue::read(bytes, Path::new("c.csv"))?;
        let mut text = Vec::new();
        write::catalogue(&catalogue, &mut text).unwrap();
        let again = Catalogue::read(text.as_slice(), Path::new("again.csv")).unwrap();
        assert_eq!(again.tasks.len(), catalogue.tasks.len());
        Ok(())
    });
}

fn importer(format: Format, header: &str, separator: &str) {
    let dir = tempfile::tempdir().unwrap();
    let throughputs =
        r#"{"v100": {"('LM (batch size 5)', 1)": {"null": 100.0}, "('A3C', 1)": {"null": 1e-300}}}"#;
    std::fs::write(dir.path().join("simulation_throughputs.json"), throughputs).unwrap();
    let file = dir.path().join("log.csv");
    fuzz(header, separator, |bytes| {
        let made = import(format, bytes, &file)?;
        used(&made.trace, made.catalogue.as_ref());
        Ok(())
    });
}

#[test]
fn philly() {
    importer(
        Format::Philly,
        "timestamp=2017-10-09 07:01:55,duration=66.0,num_gpus=1,gpu_time=66,cluster=11cb48",
        ",",
    );
}

#[test]
fn openb() {
    let header = "name=p,num_gpu=1,gpu_milli=460,qos=LS,creation_time=1,deletion_time=100,scheduled_time=5";
    importer(Format::AlibabaOpenb, header, ",");
}

#[test]
fn gavel() {
    importer(
        Format::Gavel,
        "virtual_cluster=vc,job_type=LM (batch size 5),total_steps=1000,arrival_s=5,scale_factor=1",
        ",",
    );
    importer(Format::Gavel, "LM (batch size 5)\tcmd\t-n\t1\t1000\t1\t1\t-1\t5", "\t");
}

#[test]
fn gavel_throughputs() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("log.csv");
    let job = b"job_type,total_steps,arrival_s,scale_factor\nA3C,1,0,1\n";
    fuzz(r#"{"v100": {"('A3C', 1)": {"null": 7.5, "x": [1, 2]}}, "k80": {}}"#, ",", |bytes| {
        std::fs::write(dir.path().join("simulation_throughputs.json"), bytes).unwrap();
        import(Format::Gavel, job.as_slice(), &file).map(|_| ())
    });
}

#[test]
fn helios() {
    importer(
        Format::Helios,
        "job_id=1,user=u,vc=v,gpu_num=2,submit_time=2020-06-09 18:41:01,duration=7",
        ",",
    );
}

#[test]
fn lucid() {
    let header = "job_id=1,user=u,gpu_num=1,submit_time=2020-06-09 18:41:01,duration=9,dataset=D,model=M,batchsize=32,amp=1,\
        gpu_util=55.5,gmem=1800";
    importer(Format::Lucid, header, ",");
}

#[test]
fn sacct() {
    let header = "JobID=1|User=u|Submit=2024-01-02T03:04:05|Start=2024-01-02T03:04:05|End=2024-01-02T03:05:05|\
        Elapsed=1-02:03:04|ElapsedRaw=|State=COMPLETED|AllocTRES=cpu=8,gres/gpu=2|ReqTRES=";
    importer(Format::SlurmSacct, header, "|");
}

#[test]
fn mixes() {
    check!(ITERATIONS).with_type::<String>().for_each(|text| {
        let _ = Mix::parse(text);
    });
}
