//! Tables of measured collocations, one row a collocation, in the artifact's format.
//!
//! Columns: `workload1` to `workloadK`; `w1throughput` to `wKthroughput`, items/s together; and for each feature
//! `F` of a task alone `w1F` to `wKF`. The artifact's features are [`SOLO`] (items/s alone), [`SM_BUSY`],
//! [`MEM_BUSY`] (`nvidia-smi`), [`MEMCAP`] (GB), and what Nsight Compute says of the kernels, weighted by duration:
//! `_Threads`, [`NCU_SM`], `_DRAM Throughput`, `_Memory Throughput`, `_Registers`, `_Static Shared Memory`. Other
//! features may be added, with names that do not begin with a digit, or left out. `idx1`... are not read.

use super::Error;
use super::cells::Cells;
use std::path::Path;

pub use carma_interference::kace::row::{Collocation, MEM_BUSY, MEMCAP, Member, NCU_SM, SM_BUSY, SOLO};

/// Most members of a collocation: MPS has 48 clients.
const MOST: usize = 48;

/// Member and feature of a column `w2sm%`: all digits behind the `w` are the member's, so no feature's name begins with
/// one. `None`: a column of another kind.
fn of_member(column: &str) -> Option<(usize, &str)> {
    let rest = column.strip_prefix('w')?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (member, feature) = rest.split_at_checked(digits)?;
    let fine = !member.starts_with('0') && !feature.is_empty();
    fine.then(|| Some((member.parse().ok()?, feature))).flatten()
}

/// Measured collocations of `k` tasks.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// File that they come from.
    pub source: String,
    /// Members of each.
    pub k: usize,
    /// Names of the features, in the order of [`Member::features`].
    pub features: Vec<String>,
    /// In the file's order.
    pub rows: Vec<Collocation>,
}

/// What a workload's name says: `family_batchN-task`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name<'a> {
    /// The model.
    pub family: &'a str,
    /// `train` or `inf`.
    pub task: &'a str,
    /// Batch size.
    pub batch: u32,
}

impl<'a> Name<'a> {
    /// Reads a name; `None` if it has another form.
    #[must_use]
    pub fn of(workload: &'a str) -> Option<Self> {
        let (family, rest) = workload.rsplit_once("_batch")?;
        let (batch, task) = rest.split_once('-')?;
        Some(Self { family, task, batch: batch.parse().ok()? })
    }

    /// Of one model and task, whatever the batch.
    #[must_use]
    pub fn is_akin(&self, other: &Self) -> bool {
        (self.family, self.task) == (other.family, other.task)
    }
}

impl Table {
    /// Reads a file, plain or gzipped.
    ///
    /// # Errors
    /// It can't be read; a column is missing or there twice, a row too short or too long, a cell empty, no number or
    /// above 1e15, a throughput below 0, a throughput alone below 1e-9. Says which row and column.
    pub fn read(path: &Path) -> Result<Self, Error> {
        Self::of(&Cells::open(path)?)
    }

    /// Reads collocations that were perhaps not measured: the columns of their throughput may be absent, and it is 0
    /// then. For [`carma_interference::kace::trained::Trained::predict`].
    ///
    /// # Errors
    /// As [`Table::read`].
    pub fn read_candidates(path: &Path) -> Result<Self, Error> {
        Self::build(&Cells::open(path)?, false)
    }

    /// The same from bytes.
    ///
    /// # Errors
    /// As [`Table::read`].
    pub fn parse(name: &str, bytes: &[u8]) -> Result<Self, Error> {
        Self::of(&Cells::parse(name, bytes)?)
    }

    pub(super) fn of(cells: &Cells) -> Result<Self, Error> {
        Self::build(cells, true)
    }

    fn build(cells: &Cells, measured: bool) -> Result<Self, Error> {
        let k = (1..=MOST + 1).take_while(|i| cells.header.contains(&format!("workload{i}"))).count();
        if k == 0 || k > MOST {
            let what = format!("columns workload1, workload2... name the members: 1 to {MOST}, not {k}");
            return Err(Error::new(&cells.file, what));
        }
        let features: Vec<String> = cells
            .header
            .iter()
            .filter_map(|c| of_member(c))
            .filter(|(member, f)| *member == 1 && *f != "throughput")
            .map(|(_, f)| f.to_owned())
            .collect();
        // A member that has columns, but none with its name, was not left out on purpose.
        for column in &cells.header {
            let named = column.strip_prefix("workload").and_then(|n| n.parse().ok());
            let known = |f: &str| f == "throughput" || features.iter().any(|known| known == f);
            let member =
                named.or_else(|| of_member(column).filter(|(_, f)| known(f)).map(|(member, _)| member));
            if member.is_some_and(|member| (k + 1..=MOST).contains(&member)) {
                let what = format!(
                    "no column `workload{}`, but a column `{column}`; add the one or delete the other",
                    k + 1
                );
                return Err(Error::new(&cells.file, what));
            }
        }
        let mut columns = Vec::with_capacity(k);
        for i in 1..=k {
            let name = cells.column(&format!("workload{i}"))?;
            let throughput = match cells.column(&format!("w{i}throughput")) {
                Err(_) if !measured => None,
                column => Some(column?),
            };
            let features: Vec<usize> =
                features.iter().map(|f| cells.column(&format!("w{i}{f}"))).collect::<Result<_, _>>()?;
            columns.push((name, throughput, features));
        }
        let mut rows = Vec::new();
        for row in cells.rows() {
            let mut members = Vec::with_capacity(k);
            for (name, throughput, at) in &columns {
                let values = at.iter().zip(&features);
                members.push(Member {
                    workload: row.text(*name)?.to_owned(),
                    throughput: throughput.map_or(Ok(0.0), |c| row.positive(c, false))?,
                    features: values
                        .map(|(c, f)| if f == SOLO { row.alone(*c) } else { row.positive(*c, false) })
                        .collect::<Result<_, _>>()?,
                });
            }
            rows.push(Collocation { members });
        }
        if rows.is_empty() {
            return Err(Error::new(&cells.file, "holds no collocation"));
        }
        Ok(Self { source: cells.file.clone(), k, features, rows })
    }

    /// Index of a feature in [`Member::features`].
    ///
    /// # Errors
    /// There is none of that name; the message names those that there are.
    pub fn feature(&self, name: &str) -> Result<usize, Error> {
        self.features.iter().position(|f| f == name).ok_or_else(|| {
            Error::new(&self.source, format!("no feature `{name}`; there are: {}", self.features.join(", ")))
        })
    }

    /// The same with these features in this order, e.g. those that a model was trained with.
    ///
    /// # Errors
    /// One is missing.
    pub fn with_features(&self, features: &[String]) -> Result<Self, Error> {
        let at: Vec<usize> = features.iter().map(|f| self.feature(f)).collect::<Result<_, _>>()?;
        let member =
            |m: &Member| Member { features: at.iter().map(|i| m.features[*i]).collect(), ..m.clone() };
        let row = |r: &Collocation| Collocation { members: r.members.iter().map(member).collect() };
        Ok(Self { features: features.to_vec(), rows: self.rows.iter().map(row).collect(), ..self.clone() })
    }

    /// All workloads, sorted.
    #[must_use]
    pub fn workloads(&self) -> Vec<&str> {
        let mut all: Vec<&str> =
            self.rows.iter().flat_map(|r| &r.members).map(|m| m.workload.as_str()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Without the collocations that hold a workload whose name `drop` says yes to.
    #[must_use]
    pub fn without(&self, drop: impl Fn(&str) -> bool) -> Self {
        let rows = self.rows.iter().filter(|r| !r.members.iter().any(|m| drop(&m.workload)));
        Self { rows: rows.cloned().collect(), ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "workload1,workload2,w1throughput,w2throughput,w1sm%,w2sm%,w1exclusive_throughput,w2exclusive_throughput";

    #[test]
    fn every_wrong_cell_is_named() {
        for (row, said) in [
            ("a,b,1,2,3,4,5,", "row 1, column `w2exclusive_throughput`: empty"),
            ("a,b,1,2,nan,4,5,6", "row 1, column `w1sm%`: `nan` is no finite number"),
            ("a,b,1,-2,3,4,5,6", "row 1, column `w2throughput`: -2: must be 0 or more"),
            ("a,b,1,2,3,4,0,6", "row 1, column `w1exclusive_throughput`: 0: must be more than 0"),
            ("a,,1,2,3,4,5,6", "row 1, column `workload2`: empty"),
            (
                "a,b,1,2,3,4,5e-324,6",
                "row 1, column `w1exclusive_throughput`: 5e-324: throughput alone must be",
            ),
            (
                "a,b,1,2,3,4,5,9e-10",
                "row 1, column `w2exclusive_throughput`: 9e-10: throughput alone must be",
            ),
            ("a,b,1e308,2,3,4,5,6", "row 1, column `w1throughput`: `1e308` is outside -1e15 to 1e15"),
            ("a,b,1,2,3,1.1e15,5,6", "row 1, column `w2sm%`: `1.1e15` is outside -1e15 to 1e15"),
            ("a,b,1,2,3", "row 1: 5 cells, but the header has 8"),
            ("a,b,1,2,3,4,5,6\na,b,x,2,3,4,5,6", "row 2, column `w1throughput`: `x` is no finite number"),
        ] {
            let error =
                Table::parse("t.csv", format!("{HEADER}\n{row}\n").as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with("t.csv") && error.contains(said), "{error}");
        }
        for (text, said) in [
            ("a,b\n1,2\n", "columns workload1, workload2... name the members"),
            ("workload1,workload2,w1throughput\na,b,1\n", "no column `w2throughput`"),
            ("workload1,w1throughput\n", "holds no collocation"),
            (
                "workload1,w1throughput,w2throughput\na,1,2\n",
                "no column `workload2`, but a column `w2throughput`",
            ),
            ("workload1,w1throughput,w1sm%,w2sm%\na,1,2,3\n", "no column `workload2`, but a column `w2sm%`"),
            ("workload1,workload3,w1throughput\na,c,1\n", "no column `workload2`, but a column `workload3`"),
            (
                "workload1,w1throughput,w10throughput\na,1,2\n",
                "no column `workload2`, but a column `w10throughput`",
            ),
            ("workload1,w1throughput,w1throughput\na,1,2\n", "two columns are named `w1throughput`"),
        ] {
            let error = Table::parse("t.csv", text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn ten_members_and_more_are_read() {
        for k in [9, 10, 11, 48] {
            let each = |column: &dyn Fn(usize) -> String| (1..=k).map(column).collect::<Vec<_>>().join(",");
            let header = [
                each(&|i| format!("workload{i}")),
                each(&|i| format!("w{i}throughput")),
                each(&|i| format!("w{i}sm%")),
            ];
            let row = [each(&|i| format!("t{i}")), each(&|i| i.to_string()), each(&|i| (2 * i).to_string())];
            // Columns without a name, and those of no member, say nothing.
            let text = format!("{},,,w2024note,w01sm%\n{},,,,\n", header.join(","), row.join(","));
            let table = Table::parse("t.csv", text.as_bytes()).unwrap();
            assert_eq!((table.k, table.features.as_slice()), (k, ["sm%".to_owned()].as_slice()));
            let last = &table.rows[0].members[k - 1];
            assert_eq!((last.throughput, last.features.as_slice()), (k as f64, [2.0 * k as f64].as_slice()));
        }
    }

    #[cfg(unix)]
    #[test]
    fn what_never_ends_is_not_read_to_its_end() {
        let error = Table::read(Path::new("/dev/zero")).unwrap_err().to_string();
        assert!(error.contains("/dev/zero: is a device, not a regular file"), "{error}");
    }

    #[test]
    fn columns_are_put_in_the_order_that_a_model_knows() {
        let table = Table::parse("t.csv", format!("{HEADER}\na,b,1,2,3,4,5,6\n").as_bytes()).unwrap();
        assert_eq!(table.features, ["sm%", "exclusive_throughput"]);
        let turned = table.with_features(&[SOLO.to_owned()]).unwrap();
        assert_eq!(turned.rows[0].members[1].features, [6.0]);
        assert!(
            table
                .with_features(&[MEMCAP.to_owned()])
                .unwrap_err()
                .to_string()
                .contains("no feature `memcap`")
        );
        let cells = Cells::parse("t.csv", b"workload1,workload2,w1sm%,w2sm%\na,b,3,4\n").unwrap();
        assert_eq!(Table::build(&cells, false).unwrap().rows[0].sum(), 0.0);
        assert!(Table::of(&cells).is_err());
    }
}
