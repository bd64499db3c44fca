//! torchinfo: a tree drawn with box characters (or `+` and `|`), columns as its header says.

use super::{Collector, Dialect, Layer, Summary, text};
use crate::Error;

/// Columns that mean something here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Column {
    Input,
    Output,
    Params,
    Kernel,
    Groups,
    MultAdds,
    Trainable,
    Other,
}

const HEADERS: &[(&str, Column)] = &[
    ("Input Shape", Column::Input),
    ("Output Shape", Column::Output),
    ("Param #", Column::Params),
    ("Param %", Column::Other),
    ("Kernel Shape", Column::Kernel),
    ("Groups", Column::Groups),
    ("Mult-Adds", Column::MultAdds),
    ("Trainable", Column::Trainable),
];

/// Deeper trees are not believed.
const MAX_DEPTH: usize = 256;

pub(super) fn parse(input: &str) -> Result<Summary, Error> {
    let mut collector = Collector::new(Dialect::Torchinfo);
    // Without a header: what torchinfo prints by default.
    let mut columns = vec![Column::Output, Column::Params];
    let mut below = false;
    let mut header = false;
    for (number, line) in text::lines(input) {
        let trimmed = line.trim();
        if trimmed.is_empty() || text::ruler(trimmed) {
            continue;
        }
        if trimmed.starts_with("Layer (type") {
            if header {
                collector.doubt(format!("line {number} begins a second table, which was not read"));
                break;
            }
            header = true;
            columns = read_header(trimmed);
        } else if text::total(trimmed, &mut collector.summary.totals) {
            below = true;
        } else if !below {
            match row(number, trimmed, &columns) {
                Some(Row::Layer(layer)) => collector.layer(*layer),
                Some(Row::Weight) => {}
                None => collector.skip(number, trimmed),
            }
        }
    }
    text::compare_params(&mut collector);
    collector.finish()
}

fn read_header(line: &str) -> Vec<Column> {
    let mut found: Vec<(usize, Column)> =
        HEADERS.iter().filter_map(|(name, column)| Some((line.find(name)?, *column))).collect();
    found.sort_by_key(|(at, _)| *at);
    found.into_iter().map(|(_, column)| column).collect()
}

enum Row {
    Layer(Box<Layer>),
    /// A single parameter, printed when weights are shown; its layer has it counted.
    Weight,
}

/// Depth by the drawing: each level is one character and four blanks.
fn drawing(line: &str) -> (usize, &str) {
    let body = line.trim_start_matches(['│', '├', '└', '─', '|', '+', ' ', '\u{a0}']);
    let prefix = &line[..line.len() - body.len()];
    let bars = prefix.chars().filter(|c| matches!(c, '│' | '|')).count();
    let branch = prefix.contains(['├', '└', '+']);
    (bars + usize::from(branch), body)
}

fn row(line: usize, text: &str, columns: &[Column]) -> Option<Row> {
    let (drawn, body) = drawing(text);
    let mut cells = text::cells(body).into_iter().peekable();
    let kind = cells.next()?;
    let (kind, mut colon) = kind.strip_suffix(':').map_or((kind, false), |k| (k, true));
    let mut name = kind.to_owned();
    let mut attribute = String::new();
    let mut depth = drawn;
    // `Conv2d (conv1): 2-1`: the name of the attribute, then depth and index.
    if !colon && let Some(cell) = cells.peek().filter(|c| c.starts_with('(') && !is_value(c)) {
        let held = cell.trim_start_matches('(');
        colon = held.ends_with(':');
        attribute = held.trim_end_matches(':').trim_end_matches(')').to_owned();
        cells.next();
    }
    if colon && let Some(index) = cells.next() {
        let (level, _) = index.split_once('-')?;
        depth = level.parse().ok()?;
        name = format!("{kind}: {index}");
    }
    if !kind.starts_with(|c: char| c.is_alphabetic() || c == '_') || depth > MAX_DEPTH {
        return None;
    }
    let mut layer = Layer { name, kind: kind.to_owned(), attribute, depth, line, ..Layer::default() };
    let mut seen = 0;
    for (cell, column) in cells.zip(columns) {
        seen += 1;
        fill(&mut layer, *column, cell)?;
    }
    if seen == 0 {
        return None;
    }
    if kind == "weight" || kind == "bias" || kind.starts_with("weight_") || kind.starts_with("bias_") {
        return Some(Row::Weight);
    }
    Some(Row::Layer(Box::new(layer)))
}

/// `(recursive)` and `(1,234)` are values, other parentheses names.
fn is_value(cell: &str) -> bool {
    cell == "(recursive)" || text::count(cell).is_some()
}

fn fill(layer: &mut Layer, column: Column, cell: &str) -> Option<()> {
    match column {
        Column::Input => layer.inputs = text::shapes(cell),
        Column::Output => layer.outputs = text::shapes(cell),
        Column::Params => {
            layer.params_known = true;
            if cell == "(recursive)" {
                layer.recursive = true;
            } else if cell != "--" {
                let (params, frozen) = text::count(cell)?;
                layer.params = params;
                if frozen {
                    layer.trainable = Some(false);
                }
            }
        }
        Column::Kernel | Column::Groups => {
            if cell != "--" {
                let key = if column == Column::Kernel { "kernel_size" } else { "groups" };
                layer.attributes.insert(key.to_owned(), cell.to_owned());
            }
        }
        Column::MultAdds => layer.mult_adds = text::count(cell).map(|(n, _)| n),
        Column::Trainable => {
            layer.trainable = match cell {
                "True" => Some(true),
                "False" => Some(false),
                _ => layer.trainable,
            }
        }
        Column::Other => {}
    }
    Some(())
}
