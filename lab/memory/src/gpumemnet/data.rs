//! Measured tasks: carma's own data sets, and the authors' MLP sets.

use carma_memory::gpumemnet::{Family, Fingerprint, Layer, LayerKind, Measured, ModelLayers, Sample};
use carma_memory::{Attention, Error, ModelTask};
use csv::StringRecord;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::path::Path;

/// Layers of one model beyond this are refused: no data set here has a tenth of it.
const MAX_LAYERS: usize = 20_000;
/// Context of the authors' campaign, MiB: measured less simulated.
const AUTHORS_CONTEXT_MIB: u64 = 1429;

/// A set of measured tasks of one family.
#[derive(Debug, Clone, PartialEq)]
pub struct Data {
    /// File it came from, without folders.
    pub name: String,
    /// Family of all its models.
    pub family: Family,
    /// CUDA context in its measurements, MiB.
    pub context_mib: u64,
    /// The tasks, in the file's order.
    pub samples: Vec<Sample>,
    /// Rows that say nothing about memory (skipped, failed otherwise).
    pub skipped: usize,
}

impl Data {
    /// What to compare with the data that a network was trained on.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        let mut text = String::new();
        for s in &self.samples {
            text.push_str(&format!("{} {:?}\n", s.id, s.measured));
        }
        let lower_bounds = self.samples.iter().filter(|s| matches!(s.measured, Measured::AtLeast(_)));
        Fingerprint {
            name: self.name.clone(),
            rows: self.samples.len(),
            lower_bounds: lower_bounds.count(),
            checksum: crc32fast::hash(text.as_bytes()),
        }
    }

    /// Reads a CSV file, compressed or not: carma's (docs/research/datasets.md) or the authors' MLP sets, told apart by their columns.
    ///
    /// # Errors
    /// The file can't be read, or a row is not as it should be; says which and why.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let bytes = crate::dataset::contents(path)?;
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        Self::parse(name.trim_end_matches(".gz"), &bytes)
    }

    /// As [`Data::read`], from a file's bytes.
    ///
    /// # Errors
    /// As there.
    pub fn parse(name: &str, bytes: &[u8]) -> Result<Self, Error> {
        crate::dataset::check_lines(name, bytes)?;
        let mut reader = csv::ReaderBuilder::new().from_reader(bytes);
        let columns = reader.headers().map_err(|e| Error::bad(name, e.to_string()))?.clone();
        let columns: BTreeMap<&str, usize> = columns.iter().enumerate().map(|(i, c)| (c, i)).collect();
        let authors = columns.contains_key("Activations-Params");
        if !authors && !columns.contains_key("reserved_mib") {
            return Err(Error::bad(
                name,
                "neither a column `reserved_mib` (carma's data sets) nor `Activations-Params` (GPUMemNet's)",
            ));
        }
        let (mut rows, mut skipped, mut contexts) = (Vec::new(), 0, Vec::new());
        for (at, record) in reader.records().enumerate() {
            let place = format!("{name}, line {}", at + 2);
            let record = record.map_err(|e| Error::bad(&place, e.to_string()))?;
            let row = Row { columns: &columns, record: &record, place: &place };
            let sample = if authors { authors_row(&row)? } else { own_row(&row, &mut contexts)? };
            match sample {
                Some(sample) => rows.push(sample),
                None => skipped += 1,
            }
        }
        let family = rows.first().map(|s| s.model.family);
        let family = family.ok_or_else(|| Error::bad(name, "no measured task in it"))?;
        if let Some(other) = rows.iter().find(|s| s.model.family != family) {
            let why = format!("`{}` is of the family {}, others of {family}", other.id, other.model.family);
            return Err(Error::bad(name, format!("{why}: one family a file")));
        }
        contexts.sort_unstable();
        let context_mib = carma_stats::high_median(&contexts).unwrap_or(AUTHORS_CONTEXT_MIB);
        // Kept apart until here, because the context is known only now.
        let samples = rows
            .into_iter()
            .map(|mut s| {
                if !authors {
                    s.measured = match s.measured {
                        Measured::Peak(mib) => Measured::Peak(mib + context_mib),
                        Measured::AtLeast(mib) => Measured::AtLeast(mib + context_mib),
                    };
                }
                s
            })
            .collect();
        Ok(Self { name: name.to_owned(), family, context_mib, samples, skipped })
    }
}

struct Row<'a> {
    columns: &'a BTreeMap<&'a str, usize>,
    record: &'a StringRecord,
    place: &'a str,
}

impl Row<'_> {
    fn cell(&self, column: &str) -> &str {
        self.columns.get(column).and_then(|i| self.record.get(*i)).unwrap_or_default().trim()
    }

    fn bad(&self, column: &str, what: &str) -> Error {
        Error::bad(self.place, format!("{column}: `{}` {what}", clip(self.cell(column))))
    }

    fn number(&self, column: &str) -> Result<Option<u64>, Error> {
        let cell = self.cell(column);
        if cell.is_empty() {
            return Ok(None);
        }
        match cell.parse::<f64>() {
            Ok(n) if (0.0..1e15).contains(&n) => Ok(Some(n.ceil() as u64)),
            _ => Err(self.bad(column, "is no number from 0 to 10^15")),
        }
    }

    fn required(&self, column: &str) -> Result<u64, Error> {
        self.number(column)?.ok_or_else(|| self.bad(column, "is empty"))
    }

    /// One of the words of an enumeration.
    fn word<T: DeserializeOwned + Default>(&self, column: &str) -> Result<T, Error> {
        let cell = self.cell(column);
        if cell.is_empty() {
            return Ok(T::default());
        }
        serde_json::from_value(cell.into()).map_err(|_| self.bad(column, "is not known here"))
    }
}

fn clip(cell: &str) -> String {
    cell.chars().take(60).collect()
}

fn authors_row(row: &Row<'_>) -> Result<Option<Sample>, Error> {
    let mut layers = Vec::new();
    for item in row.cell("Activations-Params").split('(').skip(1) {
        let mut parts = item.split(')').next().unwrap_or_default().split(',');
        let word = parts.next().unwrap_or_default().trim().trim_matches(['\'', '"']);
        let mut number = || parts.next().and_then(|n| n.trim().parse::<u64>().ok());
        let (Some(activations), Some(params)) = (number(), number()) else {
            return Err(row.bad("Activations-Params", "has an entry that is not (kind, activations, params)"));
        };
        layers.push(Layer { kind: LayerKind::of(word), activations, params });
    }
    if layers.is_empty() || layers.len() > MAX_LAYERS {
        return Err(row.bad("Activations-Params", "lists no layers, or too many"));
    }
    let mut model = ModelLayers::new(Family::Mlp, layers);
    model.params = row.required("Total Parameters")?;
    let task = ModelTask { batch_size: row.required("Batch Size")?, ..ModelTask::default() };
    let measured = Measured::Peak(row.required("Max GPU Memory (MiB)")?);
    Ok(Some(Sample { id: row.cell("Filename").to_owned(), model, task, measured }))
}

/// Measured without its context, which is added when the median of all is known.
fn own_row(row: &Row<'_>, contexts: &mut Vec<u64>) -> Result<Option<Sample>, Error> {
    let oom = match row.cell("status") {
        "SUCCESSFUL" => false,
        "OOM" => true,
        _ => return Ok(None),
    };
    if row.cell("layer_list").is_empty() {
        return Ok(None);
    }
    let family = Family::named(row.cell("family"))
        .ok_or_else(|| row.bad("family", "is none of mlp, cnn, transformer"))?;
    let layers = own_layers(row)?;
    let mut model = ModelLayers::new(family, layers);
    if let Some(params) = row.number("params")? {
        model.params = params;
    }
    let task = ModelTask {
        batch_size: row.required("batch_size")?,
        seq_len: row.number("seq_len")?,
        samples: row.number("samples")?,
        mode: row.word("mode")?,
        optimizer: row.word("optimizer")?,
        precision: row.word("precision")?,
        attention: row.word::<Attention>("attention")?,
        gradient_checkpointing: matches!(row.cell("gradient_checkpointing"), "true" | "True" | "1"),
        ..ModelTask::default()
    };
    if let Some(context) = row.number("context_mib")? {
        contexts.push(context);
    }
    let reserved = row.number("reserved_mib")?.unwrap_or(0);
    let measured = if oom {
        // It asked for more than its cap allowed.
        Measured::AtLeast(row.number("cap_mib")?.unwrap_or(0).max(reserved))
    } else if row.number("alloc_retries")?.unwrap_or(0) > 0 {
        // It gave memory back to stay below its cap: free, it would have taken more.
        Measured::AtLeast(reserved)
    } else {
        Measured::Peak(reserved)
    };
    Ok(Some(Sample { id: row.cell("id").to_owned(), model, task, measured }))
}

/// `Linear:512:262656x3 ReLU:512:0`: kind, activations a sample, parameters, how often in a row.
fn own_layers(row: &Row<'_>) -> Result<Vec<Layer>, Error> {
    let bad =
        || row.bad("layer_list", "has a word that is not kind:activations:params or with xTIMES behind it");
    let mut layers = Vec::new();
    for word in row.cell("layer_list").split_whitespace() {
        let mut parts = word.split(':');
        let (Some(kind), Some(activations), Some(rest), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(bad());
        };
        let (params, times) = rest.split_once('x').unwrap_or((rest, "1"));
        let number = |text: &str| text.parse::<u64>().map_err(|_| bad());
        let (activations, params, times) = (number(activations)?, number(params)?, number(times)?);
        if times > (MAX_LAYERS - layers.len()) as u64 {
            return Err(row.bad("layer_list", "lists too many layers"));
        }
        let layer = Layer { kind: LayerKind::of(kind), activations, params };
        // Reshaping and the like: a summary does not tell them from containers.
        if layer.kind == LayerKind::Other && params == 0 {
            continue;
        }
        layers.extend(std::iter::repeat_n(layer, times as usize));
    }
    Ok(layers)
}
