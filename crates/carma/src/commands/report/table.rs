//! Rows as a table, a line for each GPU and row, and as the files that programs read: CSV and Parquet.

use super::recorded::Recorded;
use carma_api::record::{GpuRow, Readings, Row, TenantRow};
use carma_cli::{Screen, stamp};
use parquet::basic::{Compression, GzipLevel};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::parser::parse_message_type;
use std::error::Error;
use std::sync::Arc;

/// A column with its values.
enum Column {
    Int(Vec<i64>),
    Double(Vec<Option<f64>>),
    Text(Vec<String>),
}

/// The columns by name. Jobs on a GPU are in three of them, separated by blanks, `-` for what is not known.
fn columns(of: &Recorded) -> Vec<(&'static str, Column)> {
    let lines: Vec<(&Row, &GpuRow)> =
        of.rows.iter().flat_map(|row| row.gpus.iter().map(move |gpu| (row, gpu))).collect();
    let int = |value: &dyn Fn(&Row, &GpuRow) -> u64| {
        Column::Int(
            lines.iter().map(|(row, gpu)| i64::try_from(value(row, gpu)).unwrap_or(i64::MAX)).collect(),
        )
    };
    let double = |value: &dyn Fn(&Row, &GpuRow) -> Option<f64>| {
        Column::Double(lines.iter().map(|(row, gpu)| value(row, gpu)).collect())
    };
    let each = |value: &dyn Fn(&TenantRow) -> Option<String>| {
        let words = |gpu: &GpuRow| {
            let words = gpu.tenants.iter().map(|tenant| value(tenant).unwrap_or_else(|| "-".into()));
            words.collect::<Vec<_>>().join(" ")
        };
        Column::Text(lines.iter().map(|(_, gpu)| words(gpu)).collect())
    };
    let uuid = |gpu: &GpuRow| {
        let known = of.gpus.iter().find(|known| known.gpu == gpu.gpu);
        known.map_or_else(String::new, |known| known.uuid.clone())
    };
    let mut columns = vec![
        ("at_ms", int(&|row, _| row.at_ms)),
        ("gpu", int(&|_, gpu| u64::from(gpu.gpu))),
        ("uuid", Column::Text(lines.iter().map(|(_, gpu)| uuid(gpu)).collect())),
        ("span_ms", int(&|_, gpu| gpu.span_ms)),
    ];
    for (at, name) in Readings::NAMES.iter().enumerate() {
        columns.push((name, double(&|_, gpu| gpu.readings.values().get(at).copied().flatten())));
    }
    let number = |value: Option<f64>| value.map(|value| value.to_string());
    columns.extend([
        ("energy_j", double(&|_, gpu| gpu.energy_j)),
        ("jobs", each(&|tenant| Some(tenant.job.to_string()))),
        ("job_memory_mib", each(&|tenant| number(tenant.memory_mib))),
        ("job_activity_share", each(&|tenant| number(tenant.activity_share))),
        ("host_cpu_pct", double(&|row, _| row.host?.cpu_pct)),
        ("host_memory_used_mib", double(&|row, _| row.host?.memory_used_mib)),
    ]);
    columns
}

/// As CSV, with the time as people write it before all else; empty where nothing is known.
///
/// # Errors
/// When a line cannot be written, which memory takes.
pub(super) fn csv(of: &Recorded, screen: &Screen) -> Result<String, Box<dyn Error>> {
    let columns = columns(of);
    let mut out = csv::Writer::from_writer(Vec::new());
    out.write_record(std::iter::once("at").chain(columns.iter().map(|(name, _)| *name)))?;
    let times = of.rows.iter().flat_map(|row| row.gpus.iter().map(|_| row.at_ms));
    for (line, at_ms) in times.enumerate() {
        let value = |(_, column): &(&str, Column)| match column {
            Column::Int(values) => values[line].to_string(),
            Column::Double(values) => values[line].map(|value| value.to_string()).unwrap_or_default(),
            Column::Text(values) => values[line].clone(),
        };
        out.write_record(std::iter::once(stamp(at_ms, screen)).chain(columns.iter().map(value)))?;
    }
    Ok(String::from_utf8(out.into_inner()?)?)
}

/// As a Parquet file: times in milliseconds of UTC, doubles that are null where nothing is known.
///
/// # Errors
/// When it cannot be put together, which memory takes.
pub(super) fn parquet(of: &Recorded) -> Result<Vec<u8>, ParquetError> {
    let columns = columns(of);
    let field = |(name, column): &(&str, Column)| match column {
        Column::Int(_) if *name == "at_ms" => format!("REQUIRED INT64 {name} (TIMESTAMP(MILLIS,true));"),
        Column::Int(_) => format!("REQUIRED INT64 {name};"),
        Column::Double(_) => format!("OPTIONAL DOUBLE {name};"),
        Column::Text(_) => format!("REQUIRED BYTE_ARRAY {name} (STRING);"),
    };
    let fields: String = columns.iter().map(field).collect();
    let schema = Arc::new(parse_message_type(&format!("message carma {{ {fields} }}"))?);
    let properties = WriterProperties::builder().set_compression(Compression::GZIP(GzipLevel::default()));
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties.build()))?;
    let mut group = writer.next_row_group()?;
    for (_, column) in columns {
        let Some(mut out) = group.next_column()? else { break };
        fill(&mut out, column)?;
        out.close()?;
    }
    group.close()?;
    writer.into_inner()
}

fn fill(out: &mut SerializedColumnWriter<'_>, column: Column) -> Result<(), ParquetError> {
    match column {
        Column::Int(values) => out.typed::<Int64Type>().write_batch(&values, None, None)?,
        Column::Double(values) => {
            let known: Vec<i16> = values.iter().map(|value| i16::from(value.is_some())).collect();
            let values: Vec<f64> = values.into_iter().flatten().collect();
            out.typed::<DoubleType>().write_batch(&values, Some(&known), None)?
        }
        Column::Text(values) => {
            let values: Vec<ByteArray> = values.into_iter().map(|text| text.into_bytes().into()).collect();
            out.typed::<ByteArrayType>().write_batch(&values, None, None)?
        }
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::run::tests::recorded_run;
    use super::*;
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::Field;

    #[test]
    fn both_say_the_same() {
        let mut of = recorded_run(vec![]);
        of.rows.truncate(2);
        of.rows[1].gpus[0].tenants.clear();
        of.rows[1].gpus[0].readings.smact = None;
        let text = csv(&of, &Screen::of_width(None)).unwrap();
        let mut lines = text.lines();
        assert!(lines.next().unwrap().starts_with("at,at_ms,gpu,uuid,span_ms,memory_used_mib,smact,"));
        let first = lines.next().unwrap();
        assert!(
            first.starts_with("2025-10-09T08:55:10+00:00,1760000110000,0,") && first.contains(",0.6,"),
            "{first}"
        );
        assert!(first.ends_with(",2000,1,-,0.5,,"), "{first}");

        let bytes = parquet(&of).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        let reader = SerializedFileReader::new(file.reopen().unwrap()).unwrap();
        let rows: Vec<_> = reader.get_row_iter(None).unwrap().map(Result::unwrap).collect();
        assert_eq!(rows.len(), 2);
        let get = |row: usize, name: &str| {
            rows[row].get_column_iter().find(|(column, _)| *column == name).unwrap().1.clone()
        };
        assert_eq!((get(0, "smact"), get(1, "smact")), (Field::Double(0.6), Field::Null));
        assert_eq!(get(0, "at_ms"), Field::TimestampMillis(1_760_000_110_000));
        assert_eq!((get(0, "jobs"), get(1, "jobs")), (Field::Str("1".into()), Field::Str(String::new())));
    }
}
