//! Files of rows: CSV, or CSV compressed with gzip.

use carma_memory::Error;
use flate2::{Compression, GzBuilder};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// More text than this is no data set of ours.
const MOST_BYTES: u64 = 256 << 20;
/// Longer lines than any data set has.
const MOST_LINE: usize = 1 << 20;
/// More columns than any data set has.
const MOST_COLUMNS: usize = 200;
/// More cells than any data set has: ours have up to half a million. One of two bytes takes fifty of memory.
const MOST_CELLS: usize = 20_000_000;

/// What a file holds, decompressed if it is compressed.
///
/// # Errors
/// The file can't be read, is damaged, or holds more than 256 MiB.
pub fn contents(path: &Path) -> Result<Vec<u8>, Error> {
    Ok(carma_files::read_unpacked(path, MOST_BYTES)?)
}

/// Refuses lines that no data set has, before their cells are taken apart.
pub(crate) fn check_lines(place: &str, bytes: &[u8]) -> Result<(), Error> {
    match carma_files::too_long_line(bytes, MOST_LINE) {
        Some(line) => Err(Error::bad(
            format!("{place}, line {line}"),
            format!("longer than {} KiB; no data set has such a line", MOST_LINE >> 10),
        )),
        None => Ok(()),
    }
}

/// Rows with named cells. All rows have all columns; the order of both is the file's.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Table {
    /// Names of the columns.
    pub columns: Vec<String>,
    /// Cells of the rows, in the order of the columns.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// Reads a file.
    ///
    /// # Errors
    /// The file can't be read, or is no CSV with a line of names; says the line.
    pub fn read(path: &Path) -> Result<Self, Error> {
        Self::parse(&path.display().to_string(), &contents(path)?)
    }

    /// Reads CSV from memory; `place` is for errors.
    ///
    /// # Errors
    /// It is no CSV with a line of names, not UTF-8, or a row has too few or too many cells.
    pub fn parse(place: &str, bytes: &[u8]) -> Result<Self, Error> {
        check_lines(place, bytes)?;
        let bad = |e: csv::Error| Error::bad(place, e.to_string());
        let mut reader = csv::Reader::from_reader(bytes);
        let header = reader.headers().map_err(bad)?;
        if header.len() > MOST_COLUMNS {
            return Err(Error::bad(place, format!("{} columns; at most {MOST_COLUMNS}", header.len())));
        }
        let columns: Vec<String> = header.iter().map(str::to_owned).collect();
        for (at, name) in columns.iter().enumerate() {
            if columns[..at].contains(name) {
                return Err(Error::bad(place, format!("two columns are named `{name}`")));
            }
        }
        let mut rows: Vec<Vec<String>> = Vec::new();
        for record in reader.records() {
            if rows.len() >= MOST_CELLS / columns.len().max(1) {
                return Err(Error::bad(
                    place,
                    format!("more than {MOST_CELLS} cells; no data set is so large"),
                ));
            }
            rows.push(record.map_err(bad)?.iter().map(str::to_owned).collect());
        }
        Ok(Self { columns, rows })
    }

    /// Adds the rows of another table. Columns that only one of them has are empty in the other's rows.
    pub fn append(&mut self, other: Self) {
        for name in &other.columns {
            self.column(name);
        }
        let places: Vec<usize> = other.columns.iter().map(|name| self.column(name)).collect();
        for row in other.rows {
            let mut cells = vec![String::new(); self.columns.len()];
            for (cell, place) in row.into_iter().zip(&places) {
                cells[*place] = cell;
            }
            self.rows.push(cells);
        }
    }

    /// The place of a column, which is added with empty cells if there is none.
    pub fn column(&mut self, name: &str) -> usize {
        if let Some(at) = self.columns.iter().position(|c| c == name) {
            return at;
        }
        self.columns.push(name.to_owned());
        for row in &mut self.rows {
            row.push(String::new());
        }
        self.columns.len() - 1
    }

    /// The cells of a row by their columns.
    #[must_use]
    pub fn row(&self, at: usize) -> BTreeMap<&str, &str> {
        let cells = self.rows.get(at).map(Vec::as_slice).unwrap_or_default();
        self.columns.iter().map(String::as_str).zip(cells.iter().map(String::as_str)).collect()
    }

    /// Writes a file, compressed if its name ends in `.gz`.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let bad = |e: &dyn std::fmt::Display| Error::bad(path.display().to_string(), e.to_string());
        let mut writer = csv::WriterBuilder::new().from_writer(Vec::new());
        writer.write_record(&self.columns).map_err(|e| bad(&e))?;
        for row in &self.rows {
            writer.write_record(row).map_err(|e| bad(&e))?;
        }
        let text = writer.into_inner().map_err(|e| bad(&e))?;
        let mut file = File::create(path).map_err(|e| bad(&e))?;
        if path.extension().is_some_and(|e| e == "gz") {
            // No name and no time within: the same rows make the same file.
            let mut packed = GzBuilder::new().write(file, Compression::best());
            packed.write_all(&text).and_then(|()| packed.finish().map(drop)).map_err(|e| bad(&e))
        } else {
            file.write_all(&text).map_err(|e| bad(&e))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_and_packed_files_hold_the_same() {
        let table = Table {
            columns: vec!["id".into(), "text".into()],
            rows: vec![vec!["1".into(), "a, \"b\"\nc".into()], vec!["2".into(), String::new()]],
        };
        let folder = tempfile::tempdir().unwrap();
        let (plain, packed) = (folder.path().join("t.csv"), folder.path().join("t.csv.gz"));
        table.write(&plain).unwrap();
        table.write(&packed).unwrap();
        assert_eq!(Table::read(&plain).unwrap(), table);
        assert_eq!(Table::read(&packed).unwrap(), table);
        assert_eq!(std::fs::read(&packed).unwrap()[..2], [0x1f, 0x8b]);
        assert_eq!(contents(&packed).unwrap(), std::fs::read(&plain).unwrap());
    }

    #[test]
    fn bad_files_are_refused() {
        let error = |text: &[u8]| Table::parse("f", text).unwrap_err().to_string();
        assert!(error(b"a,b\n1\n").contains("f: "), "too few cells");
        assert!(error(b"a,a\n1,2\n").contains("two columns are named `a`"));
        assert!(error(b"a\n\xff\xfe\n").contains("UTF-8"));
        let many = vec!["x"; 300].join(",");
        assert!(error(many.as_bytes()).contains("300 columns"));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("broken.gz");
        std::fs::write(&path, [0x1f, 0x8b, 8, 0, 1, 2, 3]).unwrap();
        assert!(contents(&path).unwrap_err().to_string().contains("broken.gz"));
        assert!(contents(&folder.path().join("none")).unwrap_err().to_string().contains("none"));
    }

    #[test]
    fn tables_with_other_columns_are_joined() {
        let mut table = Table::parse("a", b"id,x\n1,2\n").unwrap();
        table.append(Table::parse("b", b"y,id\n3,4\n").unwrap());
        assert_eq!(table.columns, ["id", "x", "y"]);
        assert_eq!(table.rows, [["1", "2", ""], ["4", "", "3"]]);
        assert_eq!(table.row(1)["y"], "3");
        assert!(table.row(9).is_empty());
    }
}
