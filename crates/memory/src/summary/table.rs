//! torchsummary: `Conv2d-1   [-1, 64, 112, 112]   9,408`, a container behind its contents.

use super::{Collector, Dialect, Layer, Summary, text};
use crate::Error;

pub(super) fn parse(input: &str) -> Result<Summary, Error> {
    let mut collector = Collector::new(Dialect::Torchsummary);
    let mut inside = false;
    let mut below = false;
    for (number, line) in text::lines(input) {
        let trimmed = line.trim();
        if trimmed.is_empty() || text::ruler(trimmed) {
            continue;
        }
        if trimmed.starts_with("Layer (type)") {
            // A second table in the same text would double the model.
            if inside {
                collector.doubt(format!("line {number} begins a second table, which was not read"));
                break;
            }
            inside = true;
        } else if text::total(trimmed, &mut collector.summary.totals) {
            below = true;
        } else if inside && !below {
            match row(number, trimmed) {
                Some(layer) => collector.layer(layer),
                None => collector.skip(number, trimmed),
            }
        }
    }
    text::compare_params(&mut collector);
    collector.finish()
}

fn row(line: usize, text: &str) -> Option<Layer> {
    let cells = text::cells(text);
    let (name, rest) = cells.split_first()?;
    let (params, shapes) = rest.split_last()?;
    let (params, _) = text::count(params)?;
    let (kind, index) = name.rsplit_once('-')?;
    if kind.is_empty() || index.parse::<u32>().is_err() {
        return None;
    }
    Some(Layer {
        name: (*name).to_owned(),
        kind: kind.to_owned(),
        depth: 1,
        outputs: text::shapes(shapes.first()?),
        params,
        params_known: true,
        line,
        ..Layer::default()
    })
}
