//! What the dialects share: finding out which it is, shapes, numbers, the lines below a table.

use super::{Collector, Dialect, Shape, Totals};

/// Longer lines are cut: no layer needs more.
const MAX_LINE: usize = 4096;
/// Dimensions and shapes of one layer that are kept.
const MAX_DIMS: usize = 16;

/// Lines with their numbers from 1, cut to a bearable length.
pub(super) fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(i, line)| {
        let mut end = line.len().min(MAX_LINE);
        while !line.is_char_boundary(end) {
            end -= 1;
        }
        (i + 1, line[..end].trim_end())
    })
}

/// Which tool printed this: by the header, or for trees by the first line that looks like one.
pub(super) fn detect(text: &str) -> Option<Dialect> {
    let mut tree = false;
    for (_, line) in lines(text) {
        let line = line.trim();
        if line.starts_with("Layer (type") {
            let depth = line.starts_with("Layer (type:") || line.starts_with("Layer (type (");
            return Some(if depth { Dialect::Torchinfo } else { Dialect::Torchsummary });
        }
        if line.starts_with("├─") || line.starts_with("└─") {
            return Some(Dialect::Torchinfo);
        }
        tree |= super::repr::looks_like(line);
        if line.starts_with('(') && line.contains("): ") && tree {
            return Some(Dialect::Modelsummary);
        }
    }
    tree.then_some(Dialect::Modelsummary)
}

/// `1,234` and `(1,234)`: the number and whether it stood in parentheses.
pub(super) fn count(token: &str) -> Option<(u64, bool)> {
    let inner = token.strip_prefix('(').and_then(|t| t.strip_suffix(')'));
    let digits: String = inner.unwrap_or(token).chars().filter(|c| *c != ',').collect();
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    Some((digits.parse().ok()?, inner.is_some()))
}

/// Splits at blanks, but leaves what stands in brackets together.
pub(super) fn cells(text: &str) -> Vec<&str> {
    let mut cells = Vec::new();
    let mut start = None;
    let mut open = 0_usize;
    for (i, c) in text.char_indices() {
        match c {
            '[' | '{' => open += 1,
            ']' | '}' => open = open.saturating_sub(1),
            _ => {}
        }
        if c.is_whitespace() && open == 0 {
            if let Some(from) = start.take() {
                cells.push(&text[from..i]);
            }
        } else if start.is_none() {
            start = Some(i);
        }
    }
    if let Some(from) = start {
        cells.push(&text[from..]);
    }
    cells
}

/// `[-1, 64, 7, 7]`, or several in one bracket; anything else is no shape.
pub(super) fn shapes(cell: &str) -> Vec<Shape> {
    let mut found: Vec<Shape> = Vec::new();
    let mut current: Option<Shape> = None;
    let mut number = String::new();
    let flush = |number: &mut String, current: &mut Option<Shape>| {
        if let (Some(shape), Ok(n)) = (current.as_mut(), number.parse::<i64>())
            && shape.len() < MAX_DIMS
        {
            shape.push(n);
        }
        number.clear();
    };
    for c in cell.chars() {
        match c {
            '[' | '(' => {
                number.clear();
                current = Some(Vec::new());
            }
            ']' | ')' => {
                flush(&mut number, &mut current);
                if let Some(shape) = current.take()
                    && !shape.is_empty()
                    && found.len() < MAX_DIMS
                {
                    found.push(shape);
                }
            }
            '0'..='9' | '-' if number.len() < 20 => number.push(c),
            _ => flush(&mut number, &mut current),
        }
    }
    found
}

/// The numbers of `(3, 3)` or `3`.
pub(super) fn numbers(value: &str) -> Vec<u64> {
    value
        .split(|c: char| !c.is_ascii_digit())
        .filter(|t| !t.is_empty())
        .filter_map(|t| t.parse().ok())
        .take(MAX_DIMS)
        .collect()
}

/// The first of them.
pub(super) fn first_number(value: &str) -> Option<u64> {
    value.split(|c: char| !c.is_ascii_digit()).find(|t| !t.is_empty())?.parse().ok()
}

/// A line below the table; whether it was one.
pub(super) fn total(line: &str, totals: &mut Totals) -> bool {
    let Some((key, value)) = line.split_once(':') else { return false };
    let value = value.trim();
    let whole = || count(value).map(|(n, _)| n);
    let real = || value.parse::<f64>().ok().filter(|v| v.is_finite());
    match key.trim() {
        "Total params" => totals.params = totals.params.or_else(whole),
        "Trainable params" => totals.trainable = totals.trainable.or_else(whole),
        "Non-trainable params" => totals.frozen = totals.frozen.or_else(whole),
        "Input size (MB)" => totals.input_mb = real(),
        "Forward/backward pass size (MB)" => totals.activations_mb = real(),
        key => {
            return key.starts_with("Total mult-adds")
                || key.starts_with("Params size")
                || key.starts_with("Estimated Total Size");
        }
    }
    true
}

/// A ruler: `=====` or `-----`.
pub(super) fn ruler(line: &str) -> bool {
    let line = line.trim();
    line.len() >= 5 && (line.bytes().all(|b| b == b'=') || line.bytes().all(|b| b == b'-'))
}

/// Ends in a value or lists a doubt when the sum of the layers is not what stands below.
pub(super) fn compare_params(collector: &mut Collector) {
    let sum = collector
        .summary
        .layers
        .iter()
        .filter(|l| !l.recursive)
        .try_fold(0_u64, |n, l| n.checked_add(l.params));
    match (sum, collector.summary.totals.params) {
        (_, None) => collector.doubt("the totals are missing; is the text complete?"),
        (Some(sum), Some(total)) if sum == total => {}
        (Some(sum), Some(total)) => {
            collector.doubt(format!("the layers have {sum} parameters, the last lines say {total}"));
        }
        (None, Some(_)) => collector.doubt("the number of parameters overflows"),
    }
}
