//! Trees of modules as PyTorch prints them; modelsummary adds `, 1,234 params` behind each.

use super::{Collector, Dialect, Layer, MAX_LAYERS, Summary, text};
use crate::Error;
use std::collections::BTreeMap;

/// Deeper trees are not believed.
const MAX_DEPTH: usize = 256;

/// Whether a line may begin such a tree: `Name(`, or `(name): Name(`.
pub(super) fn looks_like(line: &str) -> bool {
    head(line).is_some_and(|h| h.rest.is_empty() || h.rest.ends_with(')') || h.rest.ends_with("params"))
}

struct Head<'a> {
    attribute: &'a str,
    repeat: usize,
    kind: &'a str,
    /// Behind the opening parenthesis.
    rest: &'a str,
}

fn head(line: &str) -> Option<Head<'_>> {
    let (attribute, body) = match line.strip_prefix('(') {
        Some(line) => line.split_once("): ")?,
        None => ("", line),
    };
    // `(0-11): 12 x BertLayer(`: printed once for equal neighbours.
    let (repeat, body) = match body.split_once(" x ") {
        Some((n, rest)) if !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()) => (n.parse().ok()?, rest),
        _ => (1, body),
    };
    let (kind, rest) = body.split_once('(')?;
    let word = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
    if kind.is_empty() || kind.starts_with(|c: char| c.is_ascii_digit()) || !kind.chars().all(word) {
        return None;
    }
    if attribute.contains(['(', ')', ' ']) {
        return None;
    }
    Some(Head { attribute, repeat, kind, rest })
}

/// What is open while reading.
struct Open {
    /// Its entry among the layers.
    at: usize,
    repeat: usize,
}

pub(super) fn parse(input: &str) -> Result<Summary, Error> {
    let mut collector = Collector::new(Dialect::Modelsummary);
    let mut open: Vec<Open> = Vec::new();
    let mut started = false;
    for (number, line) in text::lines(input) {
        let trimmed = line.trim();
        if trimmed.is_empty() || text::ruler(trimmed) || collector.full {
            continue;
        }
        if text::total(trimmed, &mut collector.summary.totals) {
            continue;
        }
        if let Some(rest) = trimmed.strip_prefix(')')
            && let Some(params) = behind(rest)
        {
            close(&mut collector, &mut open, params, number);
            continue;
        }
        if started && open.is_empty() {
            collector.skip(number, trimmed);
            continue;
        }
        match head(trimmed) {
            Some(h) if open.len() < MAX_DEPTH && (!h.attribute.is_empty() || open.is_empty()) => {
                started |= enter(&mut collector, &mut open, &h, number);
            }
            // Before the tree there may be other text: a prompt, a log.
            _ if !started => {}
            // Arguments of a module that holds others stand on a line of their own.
            _ if trimmed.contains('=') && !trimmed.starts_with('(') => {
                let layer = open.last().and_then(|o| collector.summary.layers.get_mut(o.at));
                if let Some(layer) = layer.filter(|l| l.attributes.is_empty()) {
                    layer.attributes = arguments(trimmed);
                }
            }
            _ => collector.skip(number, trimmed),
        }
    }
    if !open.is_empty() {
        collector.doubt(format!("the text ends inside {} open modules", open.len()));
    }
    collector.finish()
}

/// `, 1,234 params` or nothing: the outer `None` is another text.
fn behind(rest: &str) -> Option<Option<u64>> {
    let rest = rest.trim();
    if rest.is_empty() {
        return Some(None);
    }
    let token = rest.strip_prefix(',')?.trim().strip_suffix("params")?.trim();
    Some(Some(text::count(token)?.0))
}

fn path(collector: &Collector, open: &[Open], attribute: &str) -> String {
    // The root has no name of its own.
    let parent = open.last().map_or("", |o| collector.summary.layers[o.at].name.as_str());
    if open.len() <= 1 || parent.is_empty() { attribute.to_owned() } else { format!("{parent}.{attribute}") }
}

fn enter(collector: &mut Collector, open: &mut Vec<Open>, head: &Head<'_>, line: usize) -> bool {
    let name = path(collector, open, head.attribute);
    // Names grow with depth; a hostile tree must not make them grow without bound.
    let name: String = name.chars().take(256).collect();
    let mut layer = Layer {
        name,
        kind: head.kind.to_owned(),
        attribute: head.attribute.to_owned(),
        depth: open.len(),
        line,
        ..Layer::default()
    };
    let at = collector.summary.layers.len();
    let rest = head.rest.trim();
    let closed = rest.rfind(')').and_then(|end| Some((end, behind(&rest[end + 1..])?)));
    match closed {
        Some((end, params)) => {
            layer.attributes = arguments(&rest[..end]);
            settle(&mut layer, params);
            collector.layer(layer);
            repeat(collector, at, head.repeat);
        }
        None => {
            layer.attributes = arguments(rest);
            collector.layer(layer);
            open.push(Open { at, repeat: head.repeat });
        }
    }
    true
}

fn close(collector: &mut Collector, open: &mut Vec<Open>, params: Option<u64>, line: usize) {
    let Some(Open { at, repeat: times }) = open.pop() else {
        collector.skip(line, ")");
        return;
    };
    if let Some(layer) = collector.summary.layers.get_mut(at) {
        settle(layer, params);
    }
    repeat(collector, at, times);
}

fn settle(layer: &mut Layer, params: Option<u64>) {
    if let Some(params) = params {
        layer.params = params;
        layer.params_known = true;
    }
}

/// Copies entry `at` and all behind it, so that they stand there `times` times.
fn repeat(collector: &mut Collector, at: usize, times: usize) {
    let Some(first) = collector.summary.layers.get(at..).map(<[Layer]>::to_vec) else { return };
    if first.is_empty() || times <= 1 {
        return;
    }
    let fits = (MAX_LAYERS - collector.summary.layers.len().min(MAX_LAYERS)) / first.len();
    if times - 1 > fits {
        collector.full = true;
    }
    let old = first[0].name.clone();
    let stem = old.strip_suffix(&first[0].attribute).unwrap_or("").to_owned();
    let start = text::first_number(&first[0].attribute).unwrap_or(0);
    for copy in 0..times.min(fits + 1) {
        let new = format!("{stem}{}", start.saturating_add(copy as u64));
        for (i, layer) in first.iter().enumerate() {
            let name =
                layer.name.strip_prefix(&old).map_or_else(|| layer.name.clone(), |r| format!("{new}{r}"));
            let mut layer = Layer { name, ..layer.clone() };
            if i == 0 {
                layer.attribute = start.saturating_add(copy as u64).to_string();
            }
            if copy == 0 {
                collector.summary.layers[at + i] = layer;
            } else {
                collector.layer(layer);
            }
        }
    }
}

/// `768, 3072, bias=True, kernel_size=(3, 3)`: by name, or by position from 0.
fn arguments(text: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut depth = 0_usize;
    let mut start = 0;
    let mut position = 0;
    let mut add = |piece: &str| {
        let piece = piece.trim();
        if piece.is_empty() || found.len() >= 32 {
            return;
        }
        match piece.split_once('=') {
            Some((key, value)) if key.chars().all(|c| c.is_alphanumeric() || c == '_') => {
                found.insert(key.to_owned(), value.trim().to_owned());
            }
            _ => {
                found.insert(position.to_string(), piece.to_owned());
                position += 1;
            }
        }
    };
    for (i, c) in text.char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                add(&text[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    add(&text[start..]);
    found
}
