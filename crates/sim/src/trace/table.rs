//! Tables with a header, one row a line, with the place of every fault.
//!
//! The fields are split here and not by a CSV library because a row never spans lines in any of these
//! formats: with that rule an open quote is a fault of its own line instead of swallowing the rest of
//! the file, and line numbers cannot be off.

use super::error::{TraceError, shown};
use super::lines::{LIMITS, Lines, unzipped};
use carma_core::units::{MiB, Millis};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Times and spans beyond this are mistakes of unit: a hundred years.
const MOST_SECONDS: f64 = 3_155_760_000.0;
/// The most GPUs that a job may ask for.
const MOST_GPUS: f64 = 1_000_000.0;
/// The most memory: an exbibyte.
const MOST_MIB: f64 = (1_u64 << 40) as f64;
/// Longest name of a job, task, user or model.
const LONGEST_NAME: usize = 256;
/// Most columns.
const MOST_COLUMNS: usize = 1000;

/// How fields are set apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Separator {
    /// Commas; fields may be quoted with `"`.
    Comma,
    /// Another character; quotes mean nothing.
    Plain(char),
}

/// What the first line of a table is.
pub(crate) enum Shape {
    /// The names of the columns.
    Header(Separator),
    /// A row already; these are the columns.
    Row(Separator, &'static [&'static str]),
}

/// Where a column stands.
pub(crate) type Column = usize;

/// A table in reading.
pub(crate) struct Table<'a> {
    file: PathBuf,
    lines: Lines<'a>,
    separator: Separator,
    header_line: u64,
    header: Vec<String>,
    used: Vec<bool>,
    fields: Vec<String>,
    /// A first line that turned out to be a row.
    pending: Option<(u64, String)>,
}

impl<'a> Table<'a> {
    /// Reads the header.
    pub(crate) fn new(reader: impl Read + 'a, file: &Path, separator: Separator) -> Result<Self, TraceError> {
        Self::guess(reader, file, |_| Shape::Header(separator))
    }

    /// Reads the first line and lets `shape` say what it is.
    pub(crate) fn guess(
        reader: impl Read + 'a,
        file: &Path,
        shape: impl Fn(&str) -> Shape,
    ) -> Result<Self, TraceError> {
        let mut lines = Lines::new(unzipped(reader, file)?, file, LIMITS);
        let mut header = Vec::new();
        let (number, separator, pending) = loop {
            let Some((number, line)) = lines.next()? else {
                return Err(TraceError::new(file, 0, "is empty; the first line must name the columns"));
            };
            if line.trim().is_empty() {
                continue;
            }
            break match shape(line) {
                Shape::Header(by) => {
                    split(line, by, &mut header).map_err(|what| TraceError::new(file, number, what))?;
                    (number, by, None)
                }
                Shape::Row(by, names) => {
                    header.extend(names.iter().map(|name| (*name).to_owned()));
                    (number, by, Some((number, line.to_owned())))
                }
            };
        };
        let fail = |what: String| Err(TraceError::new(file, number, what));
        if header.len() > MOST_COLUMNS {
            return fail(format!("{} columns; this is no header", header.len()));
        }
        for name in &mut header {
            *name = name.trim().to_lowercase();
        }
        for (i, name) in header.iter().enumerate() {
            if !name.is_empty() && header[..i].contains(name) {
                return fail(format!("the column {} stands twice in the header", shown(name)));
            }
        }
        let used = vec![false; header.len()];
        Ok(Self {
            file: file.to_owned(),
            lines,
            separator,
            header_line: number,
            header,
            used,
            fields: Vec::new(),
            pending,
        })
    }

    /// The column of the first of these names that there is.
    pub(crate) fn column(&mut self, names: &[&str]) -> Option<Column> {
        let at = names.iter().find_map(|name| self.header.iter().position(|h| h == name))?;
        self.used[at] = true;
        Some(at)
    }

    /// Columns without which nothing goes, each with its other names.
    pub(crate) fn require<const N: usize>(&mut self, names: [&[&str]; N]) -> Result<[Column; N], TraceError> {
        let found = names.map(|names| self.column(names));
        let missing: Vec<&str> =
            names.iter().zip(found).filter(|(_, at)| at.is_none()).map(|(n, _)| n[0]).collect();
        if !missing.is_empty() {
            let what = format!(
                "no column {} in the header; found: {}",
                missing.join(", "),
                self.header.iter().map(|h| shown(h)).collect::<Vec<_>>().join(", ")
            );
            return Err(TraceError::new(&self.file, self.header_line, what));
        }
        Ok(found.map(Option::unwrap_or_default))
    }

    /// What nobody asked for, as a sentence.
    pub(crate) fn unused(&self) -> Option<String> {
        let names: Vec<String> =
            self.header.iter().zip(&self.used).filter(|(_, used)| !**used).map(|(h, _)| shown(h)).collect();
        (!names.is_empty())
            .then(|| format!("columns of {} not used: {}", self.file.display(), names.join(", ")))
    }

    /// The next row that is not blank.
    pub(crate) fn next(&mut self) -> Result<Option<TableRow<'_>>, TraceError> {
        let pending = self.pending.take();
        let number = loop {
            let next = match &pending {
                Some((number, line)) => Some((*number, line.as_str())),
                None => self.lines.next()?,
            };
            let Some((number, line)) = next else { return Ok(None) };
            if !line.trim().is_empty() {
                self.fields.clear();
                split(line, self.separator, &mut self.fields)
                    .map_err(|what| TraceError::new(&self.file, number, what))?;
                break number;
            }
        };
        if self.fields.len() != self.header.len() {
            let what = format!(
                "{} fields where the header has {}; a field with a separator in it needs quotes, or the line is cut off",
                self.fields.len(),
                self.header.len()
            );
            return Err(TraceError::new(&self.file, number, what));
        }
        Ok(Some(TableRow { file: &self.file, line: number, header: &self.header, fields: &self.fields }))
    }
}

/// One row.
#[derive(Clone, Copy)]
pub(crate) struct TableRow<'t> {
    file: &'t Path,
    /// Line in the file, from 1.
    pub(crate) line: u64,
    header: &'t [String],
    fields: &'t [String],
}

impl<'t> TableRow<'t> {
    /// A fault of this row.
    pub(crate) fn fail(&self, what: impl Into<String>) -> TraceError {
        TraceError::new(self.file, self.line, what)
    }

    /// A fault of one field: what was expected there.
    pub(crate) fn bad(&self, column: Column, expected: &str) -> TraceError {
        let found = self.fields.get(column).map_or("", String::as_str);
        self.fail(format!(
            "{}: expected {expected}, found {}",
            self.header.get(column).map_or("", String::as_str),
            shown(found)
        ))
    }

    /// A field, trimmed; empty is as good as absent.
    pub(crate) fn text(&self, column: impl Into<Option<Column>>) -> Option<&'t str> {
        let text = self.fields.get(column.into()?)?.trim();
        (!text.is_empty()).then_some(text)
    }

    /// A name of a user or a thing.
    pub(crate) fn name(&self, column: impl Into<Option<Column>>) -> Result<Option<&'t str>, TraceError> {
        let column = column.into();
        match (self.text(column), column) {
            (Some(name), Some(column)) if name.len() > LONGEST_NAME => {
                Err(self.bad(column, &format!("a name of at most {LONGEST_NAME} bytes")))
            }
            (name, _) => Ok(name),
        }
    }

    /// A number between two bounds; not-a-number and infinity are none.
    pub(crate) fn number(
        &self,
        column: impl Into<Option<Column>>,
        range: std::ops::RangeInclusive<f64>,
        expected: &str,
    ) -> Result<Option<f64>, TraceError> {
        let column = column.into();
        let (Some(text), Some(column)) = (self.text(column), column) else { return Ok(None) };
        match text.parse::<f64>() {
            Ok(value) if range.contains(&value) => Ok(Some(value)),
            _ => Err(self.bad(column, expected)),
        }
    }

    /// Seconds, rounded to milliseconds.
    pub(crate) fn seconds(&self, column: impl Into<Option<Column>>) -> Result<Option<Millis>, TraceError> {
        let expected = "seconds, from 0 to 100 years";
        Ok(self.number(column, 0.0..=MOST_SECONDS, expected)?.map(millis))
    }

    /// A run time: seconds, more than none.
    pub(crate) fn duration(&self, column: impl Into<Option<Column>>) -> Result<Option<Millis>, TraceError> {
        let column = column.into();
        match (self.seconds(column)?, column) {
            (Some(Millis::ZERO), Some(column)) => {
                Err(self.bad(column, "a run time of at least 1 ms, in seconds"))
            }
            (duration, _) => Ok(duration),
        }
    }

    /// A number of GPUs, none included.
    pub(crate) fn count(&self, column: impl Into<Option<Column>>) -> Result<Option<u32>, TraceError> {
        let column = column.into();
        let expected = "a number of GPUs, a whole number up to 1000000";
        match (self.number(column, 0.0..=MOST_GPUS, expected)?, column) {
            (Some(n), Some(column)) if n.fract() != 0.0 => Err(self.bad(column, expected)),
            (n, _) => Ok(n.map(|n| n as u32)),
        }
    }

    /// A number of GPUs, at least one.
    pub(crate) fn gpus(&self, column: impl Into<Option<Column>>) -> Result<Option<u32>, TraceError> {
        let column = column.into();
        match (self.count(column)?, column) {
            (Some(0), Some(column)) => {
                Err(self.bad(column, "a number of GPUs, at least 1; remove jobs that use none"))
            }
            (n, _) => Ok(n),
        }
    }

    /// Memory in MiB, rounded up.
    pub(crate) fn mib(&self, column: impl Into<Option<Column>>) -> Result<Option<MiB>, TraceError> {
        self.mib_from(0.0, column.into(), "memory in MiB, from 0 on")
    }

    /// An amount of memory that is not nothing.
    pub(crate) fn some_mib(&self, column: impl Into<Option<Column>>) -> Result<Option<MiB>, TraceError> {
        let expected = "memory in MiB, from 1 on; leave it empty if none is declared";
        self.mib_from(1.0, column.into(), expected)
    }

    fn mib_from(
        &self,
        least: f64,
        column: Option<Column>,
        expected: &str,
    ) -> Result<Option<MiB>, TraceError> {
        let value = self.number(column, least..=MOST_MIB, expected)?;
        Ok(value.map(|v| MiB(v.ceil() as u64)))
    }

    /// A percentage of the SMs' threads.
    pub(crate) fn percent(&self, column: impl Into<Option<Column>>) -> Result<Option<u8>, TraceError> {
        let column = column.into();
        let expected = "a percentage of the SMs' threads, a whole number from 1 to 100";
        match (self.number(column, 1.0..=100.0, expected)?, column) {
            (Some(n), Some(column)) if n.fract() != 0.0 => Err(self.bad(column, expected)),
            (n, _) => Ok(n.map(|n| n as u8)),
        }
    }

    /// A share of the whole.
    pub(crate) fn share(&self, column: impl Into<Option<Column>>) -> Result<Option<f64>, TraceError> {
        self.number(column, 0.0..=1.0, "a share from 0 to 1; divide percentages by 100")
    }

    /// A list of pairs, `x:y;x:y`, both in their ranges, the first ascending.
    pub(crate) fn pairs(
        &self,
        column: impl Into<Option<Column>>,
        x: std::ops::RangeInclusive<f64>,
        y: std::ops::RangeInclusive<f64>,
        expected: &str,
    ) -> Result<Vec<(f64, f64)>, TraceError> {
        let column = column.into();
        let (Some(text), Some(column)) = (self.text(column), column) else { return Ok(Vec::new()) };
        let mut pairs: Vec<(f64, f64)> = Vec::new();
        for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
            let pair = part
                .split_once(':')
                .and_then(|(a, b)| Some((a.trim().parse::<f64>().ok()?, b.trim().parse::<f64>().ok()?)));
            match pair {
                Some((a, b))
                    if x.contains(&a) && y.contains(&b) && pairs.last().is_none_or(|(last, _)| *last < a) =>
                {
                    pairs.push((a, b));
                }
                _ => return Err(self.bad(column, expected)),
            }
        }
        Ok(pairs)
    }
}

/// Seconds to milliseconds, rounded. The caller has checked the range.
pub(crate) fn millis(seconds: f64) -> Millis {
    Millis((seconds * 1000.0).round().clamp(0.0, MOST_SECONDS * 1000.0) as u64)
}

/// Splits a line into fields by RFC 4180, or by a plain separator.
fn split(line: &str, separator: Separator, fields: &mut Vec<String>) -> Result<(), String> {
    let mut rest = match separator {
        Separator::Plain(c) => {
            fields.extend(line.split(c).map(str::to_owned));
            return Ok(());
        }
        Separator::Comma => line,
    };
    loop {
        let field = fields.len() + 1;
        let Some(quoted) = rest.strip_prefix('"') else {
            let (text, more) = rest.split_once(',').map_or((rest, None), |(text, more)| (text, Some(more)));
            fields.push(text.to_owned());
            match more {
                Some(more) => rest = more,
                None => return Ok(()),
            }
            continue;
        };
        let mut text = String::new();
        rest = quoted;
        loop {
            let Some((part, more)) = rest.split_once('"') else {
                return Err(format!("field {field} opens a quote that this line does not close"));
            };
            text.push_str(part);
            rest = more;
            // A doubled quote is a quote.
            let Some(more) = rest.strip_prefix('"') else { break };
            text.push('"');
            rest = more;
        }
        fields.push(text);
        if rest.is_empty() {
            return Ok(());
        }
        let Some(more) = rest.strip_prefix(',') else {
            return Err(format!("field {field} goes on after its closing quote; write a quote as two"));
        };
        rest = more;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(line: &str) -> Result<Vec<String>, String> {
        let mut fields = Vec::new();
        split(line, Separator::Comma, &mut fields).map(|()| fields)
    }

    #[test]
    fn quotes_are_those_of_rfc_4180() {
        assert_eq!(fields(r#"a,"b,""c""",,d"#).unwrap(), ["a", "b,\"c\"", "", "d"]);
        assert_eq!(fields("a,").unwrap(), ["a", ""]);
        assert_eq!(fields(r#""""#).unwrap(), [""]);
        assert_eq!(fields(r#"a"b"#).unwrap(), ["a\"b"], "a quote inside is one");
        assert!(fields(r#"a,"b"#).unwrap_err().starts_with("field 2 opens a quote"));
        assert!(fields(r#""a"b,c"#).unwrap_err().starts_with("field 1 goes on"));
        let mut plain = Vec::new();
        split("a|\"b|c", Separator::Plain('|'), &mut plain).unwrap();
        assert_eq!(plain, ["a", "\"b", "c"]);
    }
}
