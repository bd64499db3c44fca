//! Cells of CSV files, plain or gzipped: each error says file, row and column.

use super::Error;
use std::collections::BTreeSet;
use std::path::Path;

/// Larger files are refused; those of the artifact have less than 3 MiB when unpacked.
pub(crate) const MAX_BYTES: u64 = 256 << 20;
/// More columns and rows than any table has. A row of four bytes takes three hundred of memory.
const MOST_COLUMNS: usize = 10_000;
const MOST_ROWS: usize = 2_000_000;
/// A longer line is none of a table's.
const MOST_LINE: usize = 1 << 20;
/// Larger numbers, and smaller ones below 0, are refused: nobody measures them, and sums of their squares overflow.
const MOST: f64 = 1e15;
/// Slower tasks alone are refused: one item in 30 years, and what is divided by it overflows.
const LEAST_ALONE: f64 = 1e-9;

/// A file as rows of text, all as long as the header.
#[derive(Debug)]
pub(crate) struct Cells {
    /// Its name, for errors.
    pub(crate) file: String,
    /// The names of the columns.
    pub(crate) header: Vec<String>,
    /// Row by row.
    rows: Vec<csv::StringRecord>,
}

/// A row of [`Cells`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct CellRow<'a> {
    cells: &'a Cells,
    at: usize,
}

impl Cells {
    /// Reads a file; of `name.gz` and `name` the one that is there.
    pub(crate) fn read(folder: &Path, name: &str) -> Result<Self, Error> {
        Self::find(folder, name)?.whole()
    }

    /// As [`Cells::read`], but rows may be shorter or longer than the header: what is missing is empty.
    pub(crate) fn find(folder: &Path, name: &str) -> Result<Self, Error> {
        let plain = folder.join(name.trim_end_matches(".gz"));
        let packed = folder.join(format!("{}.gz", name.trim_end_matches(".gz")));
        Self::ragged(if packed.is_file() { &packed } else { &plain })
    }

    /// Reads the file at a path.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        Self::ragged(path)?.whole()
    }

    fn ragged(path: &Path) -> Result<Self, Error> {
        let bytes = carma_files::read(path, MAX_BYTES).map_err(|e| {
            let place = path.display().to_string();
            Error::new(place, format!("{}; KACE's tables are described in docs/research/kace.md", e.why))
        })?;
        Self::parse_ragged(&path.display().to_string(), &bytes)
    }

    /// Reads bytes, unpacked first when they are gzip.
    pub(crate) fn parse(file: &str, bytes: &[u8]) -> Result<Self, Error> {
        Self::parse_ragged(file, bytes)?.whole()
    }

    /// Refuses rows that are not as long as the header.
    fn whole(self) -> Result<Self, Error> {
        let columns = self.header.len();
        match self.rows.iter().position(|r| r.len() != columns) {
            None => Ok(self),
            Some(at) => Err(Error::new(
                format!("{}, row {}", self.file, at + 1),
                format!(
                    "{} cells, but the header has {columns}; complete the row or delete it",
                    self.rows[at].len()
                ),
            )),
        }
    }

    /// As [`Cells::parse`], but rows may be shorter or longer than the header.
    pub(crate) fn parse_ragged(file: &str, bytes: &[u8]) -> Result<Self, Error> {
        let text = carma_files::unpack(bytes, MAX_BYTES).map_err(|why| Error::new(file, why.to_string()))?;
        let text = &*text;
        if let Some(line) = carma_files::too_long_line(text, MOST_LINE) {
            let what =
                format!("line {line} is longer than {} KiB, which none of such a table is", MOST_LINE >> 10);
            return Err(Error::new(file, what));
        }
        let mut reader = csv::ReaderBuilder::new().flexible(true).trim(csv::Trim::All).from_reader(text);
        let bad = |e: csv::Error| Error::new(file, format!("is not CSV in UTF-8: {e}"));
        let columns = reader.headers().map_err(bad)?;
        if columns.len() > MOST_COLUMNS {
            return Err(Error::new(file, format!("{} columns; at most {MOST_COLUMNS}", columns.len())));
        }
        let header: Vec<String> = columns.iter().map(str::to_owned).collect();
        let mut seen = BTreeSet::new();
        // Columns without a name can't be asked for; spreadsheets and pandas make them.
        if let Some(twice) = header.iter().find(|name| !name.is_empty() && !seen.insert(name.as_str())) {
            let what = format!("two columns are named `{twice}`; delete or rename one");
            return Err(Error::new(file, what));
        }
        let rows: Vec<_> = reader.records().take(MOST_ROWS + 1).collect::<Result<_, _>>().map_err(bad)?;
        if rows.len() > MOST_ROWS {
            return Err(Error::new(file, format!("more than {MOST_ROWS} rows, which no such table has")));
        }
        Ok(Self { file: file.to_owned(), header, rows })
    }

    /// Its rows.
    pub(crate) fn rows(&self) -> impl Iterator<Item = CellRow<'_>> {
        (0..self.rows.len()).map(|at| CellRow { cells: self, at })
    }

    /// The column of a name.
    pub(crate) fn column(&self, name: &str) -> Result<usize, Error> {
        self.header.iter().position(|c| c == name).ok_or_else(|| {
            let known: Vec<&str> = self.header.iter().take(60).map(String::as_str).collect();
            Error::new(&self.file, format!("no column `{name}`; there are: {}", known.join(", ")))
        })
    }
}

impl<'a> CellRow<'a> {
    /// File, row (1 is the first under the header) and column.
    pub(crate) fn place(&self, column: usize) -> String {
        let name = self.cells.header.get(column).map_or("", String::as_str);
        format!("{}, row {}, column `{name}`", self.cells.file, self.at + 1)
    }

    /// The text of a cell; it may be empty.
    pub(crate) fn maybe(&self, column: usize) -> Option<&'a str> {
        self.cells.rows[self.at].get(column).filter(|cell| !cell.is_empty())
    }

    /// The text of a cell.
    pub(crate) fn text(&self, column: usize) -> Result<&'a str, Error> {
        self.maybe(column)
            .ok_or_else(|| Error::new(self.place(column), "empty; fill it in, or delete the row"))
    }

    /// A number.
    pub(crate) fn number(&self, column: usize) -> Result<f64, Error> {
        let text = self.text(column)?;
        let bad = |what: String| {
            let text: String = text.chars().take(40).collect();
            Err(Error::new(
                self.place(column),
                format!("`{text}` is {what}; measure it again, or delete the row"),
            ))
        };
        match text.parse::<f64>() {
            Ok(number) if !number.is_finite() => bad("no finite number".to_owned()),
            Ok(number) if number.abs() > MOST => bad(format!("outside -{MOST:e} to {MOST:e}")),
            Ok(number) => Ok(number),
            Err(_) => bad("no finite number".to_owned()),
        }
    }

    /// A number of 0 or more; `above`: of more than 0.
    pub(crate) fn positive(&self, column: usize, above: bool) -> Result<f64, Error> {
        let number = self.number(column)?;
        if number < 0.0 || (above && number == 0.0) {
            let what = format!(
                "{number}: must be {}; measure it again, or delete the row",
                if above { "more than 0" } else { "0 or more" }
            );
            return Err(Error::new(self.place(column), what));
        }
        Ok(number)
    }

    /// Throughput alone, which others are divided by.
    pub(crate) fn alone(&self, column: usize) -> Result<f64, Error> {
        let number = self.positive(column, true)?;
        if number < LEAST_ALONE {
            let what = format!(
                "{number:e}: throughput alone must be {LEAST_ALONE:e} or more; measure it again, or delete the row"
            );
            return Err(Error::new(self.place(column), what));
        }
        Ok(number)
    }

    /// A whole number of 0 or more.
    pub(crate) fn whole(&self, column: usize) -> Result<u32, Error> {
        let text = self.text(column)?;
        text.parse().map_err(|_| {
            let text: String = text.chars().take(40).collect();
            Error::new(self.place(column), format!("`{text}` is no whole number of 0 or more"))
        })
    }
}
