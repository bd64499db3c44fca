//! The folder with KACE's published tables.

use super::Error;
use super::cells::Cells;
use super::partition::{self, Curves, DividedPair};
use super::table::Table;
use carma_interference::share::Demand;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Numbers by workload.
pub type ByWorkload = BTreeMap<String, Vec<f64>>;

/// A copy of KACE's artifact: `orig/` as published, and what was derived from it.
#[derive(Debug, Clone)]
pub struct Artifact {
    folder: PathBuf,
}

/// One of the 45 published divisions of the pairs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PairSplit {
    /// Pairs were added while a member had been seen fewer times.
    pub n_occur: u32,
    /// Seed of the shuffle.
    pub seed: u32,
    /// Rows to learn from, in the order in which they were drawn: KACE's own inner division depends on it.
    pub train: Vec<usize>,
    /// The others, in shuffled order.
    pub test: Vec<usize>,
}

/// One line of the published results.
#[derive(Debug, Clone, PartialEq)]
pub struct Reported {
    /// `k2_seen`, `k2_unseen`, `k3_unseen`, `k4_unseen`.
    pub experiment: String,
    /// Of the split, where there are several.
    pub n_occur: Option<u32>,
    /// Seed of the split.
    pub seed: u32,
    /// `KACE`, `RF`, `NN`, `AutoML`, `hotcloud` (Xu et al.).
    pub model: String,
    /// The task that a partner is sought for.
    pub target: String,
    /// Sum of throughput of the choice over the best.
    pub ratio: f64,
    /// The best sum of throughput.
    pub oracle: f64,
    /// Ratios of random choice and the rules, by their column's name.
    pub rules: BTreeMap<String, f64>,
}

impl Artifact {
    /// The copy in that folder; nothing is read yet.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    pub(super) fn cells(&self, name: &str) -> Result<Cells, Error> {
        Cells::read(&self.folder, name)
    }

    fn table(&self, name: &str, k: usize) -> Result<Table, Error> {
        let table = Table::of(&self.cells(name)?)?;
        if table.k != k {
            return Err(Error::new(table.source, format!("collocations of {}, expected {k}", table.k)));
        }
        Ok(table)
    }

    /// 181 pairs of 21 workloads under MPS, all threads for everyone.
    ///
    /// # Errors
    /// As [`Table::read`]; so below.
    pub fn pairs(&self) -> Result<Table, Error> {
        self.table("orig/comb2_MPS100_kernel_labels_targetMPS100.csv", 2)
    }

    /// 400 triples of 14 workloads (batch 2 and 8).
    ///
    /// # Errors
    /// As [`Table::read`].
    pub fn triples(&self) -> Result<Table, Error> {
        self.table("orig/comb3_total_labels_batch2-8_targetMPS100.csv", 3)
    }

    /// 1,107 quadruples of 14 workloads (batch 2 and 8).
    ///
    /// # Errors
    /// As [`Table::read`].
    pub fn quadruples(&self) -> Result<Table, Error> {
        self.table("orig/comb4_0907_total_labels_batch2-8_targetMPS100.csv", 4)
    }

    /// 881 quadruples that hold a workload of batch 4.
    ///
    /// # Errors
    /// As [`Table::read`].
    pub fn quadruples_batch4(&self) -> Result<Table, Error> {
        self.table("orig/comb4_0909_testbatch4_total_labels_targetMPS100.csv", 4)
    }

    /// 257 pairs, some with generation by GPT2-XL.
    ///
    /// # Errors
    /// As [`Table::read`].
    pub fn pairs_gpt2(&self) -> Result<Table, Error> {
        self.table("orig/comb2_0912_autoregression_gpt2xl_labels_targetMPS100.csv", 2)
    }

    /// Features of Xu et al. (HotCloud 2019) and their values by workload, alone.
    ///
    /// # Errors
    /// The files are absent or wrong.
    pub fn solo_hotcloud(&self) -> Result<(Vec<String>, ByWorkload), Error> {
        const KERNELS: [&str; 6] = [
            "PCIe read bandwidth",
            "PCIe write bandwidth",
            "Long_Kernel",
            "ave_Kernel_Length",
            "long/short_Ratio",
            "avg_Thread",
        ];
        // Column, and its name beside the others: the `%` makes it a mean in collocations.
        const SYSTEM: [(&str, &str); 4] =
            [("sm%", "sm%"), ("mem%", "mem%"), ("AvgCPU", "CPU%"), ("AvgMem", "MainMem%")];
        let system = self.cells("orig/hotcloud_baseline_labels.csv")?;
        let system = by_workload(&system, &SYSTEM.map(|(column, _)| column))?;
        let kernels = self.cells("ncu_solo_features_hotcloud.csv")?;
        let mut all = by_workload(&kernels, &KERNELS)?;
        all.retain(|workload, _| system.contains_key(workload));
        for (workload, values) in &mut all {
            values.extend(system.get(workload).into_iter().flatten());
        }
        let names =
            KERNELS.iter().map(|k| format!("_{k}")).chain(SYSTEM.iter().map(|(_, n)| (*n).to_owned()));
        Ok((names.collect(), all))
    }

    /// The 45 divisions of `pairs`.
    ///
    /// # Errors
    /// The file is absent or wrong, or names a pair that is not in `pairs`.
    pub fn splits(&self, pairs: &Table) -> Result<Vec<PairSplit>, Error> {
        read_splits(&self.cells("kace_pair_splits.csv")?, pairs)
    }

    /// Pairs under MPS with divided threads (campaign A, May 2024: solo throughput is sound there).
    ///
    /// # Errors
    /// The file is absent or wrong.
    pub fn divided_pairs(&self) -> Result<Vec<DividedPair>, Error> {
        partition::read_pairs(&self.cells("colocations_tidy.csv")?)
    }

    /// Speed alone by thread percentage: 10, 20... 100.
    ///
    /// # Errors
    /// The file is absent or wrong.
    pub fn solo_curves(&self) -> Result<Curves, Error> {
        // Its last rows have one value alone, and no more cells.
        partition::read_curves(&Cells::find(&self.folder, "orig/solo_mps_curve_baseline_steps_stage2.csv")?)
    }

    /// By workload what it does to the GPU alone: time with any kernel resident by `nvidia-smi` (0 to 1) as GRACT,
    /// and that time's share with DRAM busy by Nsight Compute as DRAM active.
    ///
    /// # Errors
    /// A file is absent or wrong.
    pub fn solo_activity(&self) -> Result<BTreeMap<String, Demand>, Error> {
        let busy = by_workload(&self.cells("orig/baseline_labels_util.csv")?, &["sm%"])?;
        let mut all = BTreeMap::new();
        for (workload, dram) in by_workload(&self.cells("ncu_solo_features.csv")?, &["DRAM Throughput"])? {
            if let (Some([busy]), [dram]) = (busy.get(&workload).map(Vec::as_slice), &dram[..]) {
                let gract = busy / 100.0;
                all.insert(workload, Demand { gract, dram: gract * dram / 100.0, ..Demand::default() });
            }
        }
        Ok(all)
    }

    /// What was published, line by line.
    ///
    /// # Errors
    /// The file is absent or wrong.
    pub fn reported(&self) -> Result<Vec<Reported>, Error> {
        read_reported(&self.cells("kace_reported_results.csv")?)
    }
}

/// Columns of numbers by the workload in the column `Type`.
fn by_workload(cells: &Cells, columns: &[&str]) -> Result<ByWorkload, Error> {
    let name = cells.column("Type")?;
    let columns: Vec<usize> = columns.iter().map(|c| cells.column(c)).collect::<Result<_, _>>()?;
    let mut all = BTreeMap::new();
    for row in cells.rows() {
        let values = columns.iter().map(|c| row.number(*c)).collect::<Result<Vec<f64>, _>>()?;
        all.insert(row.text(name)?.to_owned(), values);
    }
    Ok(all)
}

pub(super) fn read_splits(cells: &Cells, pairs: &Table) -> Result<Vec<PairSplit>, Error> {
    let [n_occur, seed, first, second, in_train] =
        ["n_occur", "seed", "workload1", "workload2", "in_train"].map(|name| cells.column(name));
    let (n_occur, seed, first, second, in_train) = (n_occur?, seed?, first?, second?, in_train?);
    let index: BTreeMap<Vec<&str>, usize> =
        pairs.rows.iter().enumerate().map(|(i, r)| (r.key(), i)).collect();
    let mut splits: Vec<PairSplit> = Vec::new();
    for row in cells.rows() {
        let (n, s) = (row.whole(n_occur)?, row.whole(seed)?);
        let mut key = vec![row.text(first)?, row.text(second)?];
        key.sort_unstable();
        let at = *index.get(&key).ok_or_else(|| {
            Error::new(row.place(first), format!("the pair {} is not in {}", key.join(" and "), pairs.source))
        })?;
        let split = match splits.iter().position(|x| (x.n_occur, x.seed) == (n, s)) {
            Some(i) => i,
            None => {
                splits.push(PairSplit { n_occur: n, seed: s, train: Vec::new(), test: Vec::new() });
                splits.len() - 1
            }
        };
        match row.text(in_train)? {
            "1" => splits[split].train.push(at),
            "0" => splits[split].test.push(at),
            other => {
                let other: String = other.chars().take(40).collect();
                return Err(Error::new(row.place(in_train), format!("`{other}`: expected 0 or 1")));
            }
        }
    }
    if splits.is_empty() {
        return Err(Error::new(&cells.file, "holds no split"));
    }
    Ok(splits)
}

pub(super) fn read_reported(cells: &Cells) -> Result<Vec<Reported>, Error> {
    const RULES: [&str; 6] = [
        "random_over_oracle",
        "rule_ncu_sm_thr",
        "rule_solo_thr",
        "rule_sm_pct",
        "rule_mem_pct",
        "rule_memcap",
    ];
    let rules: Vec<(&str, usize)> =
        RULES.iter().map(|name| Ok((*name, cells.column(name)?))).collect::<Result<_, Error>>()?;
    let column = |name| cells.column(name);
    let (experiment, n_occur, seed) = (column("experiment")?, column("n_occur")?, column("seed")?);
    let (model, target) = (column("model")?, column("target_workload")?);
    let (ratio, oracle) = (column("pred_over_oracle")?, column("oracle_throughput_sum")?);
    let line = |row: super::cells::CellRow<'_>| {
        let mut found = BTreeMap::new();
        for (name, at) in &rules {
            // Xu et al. have no features for the rules.
            if row.maybe(*at).is_some() {
                found.insert((*name).to_owned(), row.number(*at)?);
            }
        }
        Ok(Reported {
            experiment: row.text(experiment)?.to_owned(),
            n_occur: row.maybe(n_occur).map(|_| row.whole(n_occur)).transpose()?,
            seed: row.whole(seed)?,
            model: row.text(model)?.to_owned(),
            target: row.text(target)?.to_owned(),
            ratio: row.positive(ratio, false)?,
            oracle: row.positive(oracle, true)?,
            rules: found,
        })
    };
    cells.rows().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs() -> Table {
        let text = "workload1,workload2,w1throughput,w2throughput,w1sm%,w2sm%\na,b,1,2,3,4\nb,b,1,1,4,4\n";
        Table::parse("pairs.csv", text.as_bytes()).unwrap()
    }

    fn splits(text: &str) -> Result<Vec<PairSplit>, Error> {
        read_splits(&Cells::parse("splits.csv", text.as_bytes())?, &pairs())
    }

    #[test]
    fn splits_keep_their_order() {
        let text = "n_occur,seed,workload1,workload2,in_train\n2,10,b,b,1\n2,10,b,a,1\n2,20,a,b,0\n";
        let read = splits(text).unwrap();
        assert_eq!(read[0], PairSplit { n_occur: 2, seed: 10, train: vec![1, 0], test: vec![] });
        assert_eq!(read[1], PairSplit { n_occur: 2, seed: 20, train: vec![], test: vec![0] });
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, said) in [
            ("n_occur,seed,workload1,workload2\n", "no column `in_train`"),
            (
                "n_occur,seed,workload1,workload2,in_train\n2,10,a,c,1\n",
                "row 1, column `workload1`: the pair a and c",
            ),
            ("n_occur,seed,workload1,workload2,in_train\n2,10,a,b,2\n", "`2`: expected 0 or 1"),
            (
                "n_occur,seed,workload1,workload2,in_train\n2,x,a,b,1\n",
                "column `seed`: `x` is no whole number",
            ),
            ("n_occur,seed,workload1,workload2,in_train\n2,10,a,b\n", "row 1: 4 cells, but the header has 5"),
            ("n_occur,seed,workload1,workload2,in_train\n", "holds no split"),
        ] {
            let error = splits(text).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
        let absent = Artifact::new("/nowhere").pairs().unwrap_err().to_string();
        assert!(absent.contains("comb2_MPS100") && absent.contains("cannot be read"), "{absent}");
    }
}
