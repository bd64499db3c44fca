//! Whatever a file holds, reading it ends in a value or in an error that names the file: never in a
//! panic. Runs as tests on random input, and under libFuzzer with `cargo bolero test`.

use bolero::{TypeGenerator, check};
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

/// Rows under a header that may be damaged.
#[derive(Debug, Clone, TypeGenerator)]
struct File {
    /// Position and byte to write into the header; position beyond it: none.
    damage: (u8, u8),
    rows: Vec<Vec<u8>>,
    /// Written after all else, as they are.
    rest: Vec<u8>,
    /// Columns that a row gets beyond its header's, or lacks.
    ragged: bool,
    zipped: bool,
    /// Bytes cut off at the end.
    cut: u8,
}

impl File {
    fn bytes(&self, header: &str, separator: &str) -> Vec<u8> {
        let mut text = header.as_bytes().to_vec();
        if let Some(byte) = text.get_mut(usize::from(self.damage.0)) {
            *byte = self.damage.1;
        }
        let columns = header.split(separator).count();
        for row in self.rows.iter().take(50) {
            text.push(b'\n');
            let length = if self.ragged { row.len().min(2 * columns) } else { columns };
            let fields: Vec<&str> = (0..length)
                .map(|i| WORDS[usize::from(row.get(i).copied().unwrap_or_default()) % WORDS.len()])
                .collect();
            text.extend(fields.join(separator).as_bytes());
        }
        text.push(b'\n');
        text.extend(&self.rest);
        if self.zipped {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(&text).unwrap();
            text = encoder.finish().unwrap();
            text.truncate(text.len() - usize::from(self.cut).min(text.len()));
        }
        text
    }
}

/// Rows with fields of a header, whole files of random bytes, and a value or an error of each.
fn fuzz(
    header: &str,
    separator: &str,
    read: impl Fn(&[u8]) -> Result<(), TraceError> + std::panic::RefUnwindSafe,
) {
    let judge = |bytes: &[u8]| {
        if let Err(error) = read(bytes) {
            let said = error.to_string();
            assert!(!said.is_empty() && !said.chars().any(char::is_control), "{said:?}");
        }
    };
    check!()
        .with_iterations(ITERATIONS)
        .with_type::<File>()
        .for_each(|file| judge(&file.bytes(header, separator)));
    check!().with_iterations(ITERATIONS).with_type::<Vec<u8>>().for_each(|bytes| judge(bytes));
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
    let header =
        "trace,job,arrival_s,task,duration_s,gpus,user,memory_mib,gract,smact,smocc,drama,tensor,pcie,cpu";
    let catalogue = Catalogue::read("task,duration_s\ntask,5\n".as_bytes(), Path::new("c.csv")).unwrap();
    fuzz(header, ",", |bytes| {
        let trace = read::trace(bytes, Path::new("t.csv"), None)?;
        used(&trace, Some(&catalogue));
        used(&trace, None);
        Ok(())
    });
    fuzz("arrival_s", ",", |bytes| {
        read::trace(bytes, Path::new("t.csv"), Some("task")).map(|t| used(&t, None))
    });
}

#[test]
fn catalogues() {
    let header = "task,model,class,gpus,duration_s,memory_mib,gract,smact,cpu,startup_s,memory_over_time,mps_curve,\
        lucid_score,declared_mib,measured_mib,epochs,readme_et_min_per_epoch";
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
    importer(Format::Philly, "timestamp,duration,num_gpus,gpu_time,cluster", ",");
}

#[test]
fn openb() {
    let header = "name,num_gpu,gpu_milli,qos,creation_time,deletion_time,scheduled_time";
    importer(Format::AlibabaOpenb, header, ",");
}

#[test]
fn gavel() {
    importer(Format::Gavel, "virtual_cluster,job_type,total_steps,arrival_s,scale_factor", ",");
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
    importer(Format::Helios, "job_id,user,vc,gpu_num,submit_time,duration", ",");
}

#[test]
fn lucid() {
    let header = "job_id,user,gpu_num,submit_time,duration,dataset,model,batchsize,amp,gpu_util,gmem";
    importer(Format::Lucid, header, ",");
}

#[test]
fn sacct() {
    let header = "JobID|User|Submit|Start|End|Elapsed|ElapsedRaw|State|AllocTRES|ReqTRES";
    importer(Format::SlurmSacct, header, "|");
}

#[test]
fn mixes() {
    check!().with_iterations(ITERATIONS).with_type::<String>().for_each(|text| {
        let _ = Mix::parse(text);
    });
}
