//! Rows as CSV: a line for each GPU and row.

use super::recorded::Recorded;
use carma_api::record::Readings;
use carma_cli::Screen;
use carma_cli::stamp;
use std::error::Error;

/// All of it. Jobs on a GPU are in three columns, separated by blanks, `-` for what is not known.
///
/// # Errors
/// When a line cannot be written, which memory takes.
pub(super) fn csv(of: &Recorded, screen: &Screen) -> Result<String, Box<dyn Error>> {
    let mut out = ::csv::Writer::from_writer(Vec::new());
    let head = ["at", "at_ms", "gpu", "uuid", "span_ms"].into_iter().chain(Readings::NAMES.iter().copied());
    let tail =
        ["energy_j", "jobs", "job_memory_mib", "job_activity_share", "host_cpu_pct", "host_memory_used_mib"];
    out.write_record(head.chain(tail))?;
    let number = |value: Option<f64>| value.map(|value| value.to_string()).unwrap_or_default();
    for row in &of.rows {
        let host = row.host.unwrap_or_default();
        for gpu in &row.gpus {
            let uuid = of.gpus.iter().find(|known| known.gpu == gpu.gpu).map_or("", |known| &known.uuid);
            let each = |value: &dyn Fn(usize) -> Option<String>| {
                let words = (0..gpu.tenants.len()).map(|at| value(at).unwrap_or_else(|| "-".into()));
                words.collect::<Vec<_>>().join(" ")
            };
            let known = |value: Option<f64>| value.map(|value| value.to_string());
            let mut line = vec![
                stamp(row.at_ms, screen),
                row.at_ms.to_string(),
                gpu.gpu.to_string(),
                uuid.to_owned(),
                gpu.span_ms.to_string(),
            ];
            line.extend(gpu.readings.values().into_iter().map(number));
            line.extend([
                number(gpu.energy_j),
                each(&|at| Some(gpu.tenants[at].job.to_string())),
                each(&|at| known(gpu.tenants[at].memory_mib)),
                each(&|at| known(gpu.tenants[at].activity_share)),
                number(host.cpu_pct),
                number(host.memory_used_mib),
            ]);
            out.write_record(line)?;
        }
    }
    Ok(String::from_utf8(out.into_inner()?)?)
}
