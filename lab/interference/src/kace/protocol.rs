//! Who may learn from what, and what is asked of them.
//!
//! *Seen*: every workload may be in the training rows, the pair may not. *Unseen*: no row with the target's model
//! and task, of whatever batch, is in the training rows.

use super::table::{Collocation, Name, Table};
use super::{Error, PairSplit};

/// A list of splits.
#[derive(Debug, Clone)]
pub struct Protocol<'a> {
    /// E.g. `unseen k=3`.
    pub name: String,
    /// Names of the features of all rows.
    pub features: &'a [String],
    /// What is learned and what is asked.
    pub splits: Vec<Split<'a>>,
}

/// One division into rows to learn from and cases to decide.
#[derive(Debug, Clone)]
pub struct Split<'a> {
    /// Number of times that a workload was to be seen, where that is limited.
    pub n_occur: Option<u32>,
    /// Seed of the division, where there are several.
    pub seed: Option<u32>,
    /// To learn from, in an order that matters to KACE's own inner division.
    pub train: Vec<&'a Collocation>,
    /// To decide.
    pub cases: Vec<Case<'a>>,
}

/// A target and the collocations to choose from: all hold it.
#[derive(Debug, Clone)]
pub struct Case<'a> {
    /// The task that partners are sought for.
    pub target: &'a str,
    /// At least two.
    pub test: Vec<&'a Collocation>,
}

impl Protocol<'_> {
    /// Number of cases in all splits.
    #[must_use]
    pub fn cases(&self) -> usize {
        self.splits.iter().map(|s| s.cases.len()).sum()
    }

    /// Mean number of rows to learn from.
    #[must_use]
    pub fn mean_train(&self) -> f64 {
        self.splits.iter().map(|s| s.train.len() as f64).sum::<f64>() / self.splits.len().max(1) as f64
    }
}

/// The cases of these targets. With a single row there is nothing to decide, and the artifact's normalisation has no
/// deviation: its logs have no such case either.
fn cases<'a>(targets: &[&'a str], test: &[&'a Collocation]) -> Vec<Case<'a>> {
    let of = |target: &&'a str| Case {
        target,
        test: test.iter().copied().filter(|row| row.has(target)).collect(),
    };
    targets.iter().map(of).filter(|case| case.test.len() > 1).collect()
}

/// Seen pairs: a split each of the published divisions; targets are all workloads that two or more of
/// its test rows hold.
#[must_use]
pub fn seen<'a>(pairs: &'a Table, splits: &[PairSplit]) -> Protocol<'a> {
    let targets = pairs.workloads();
    let of = |split: &PairSplit| {
        let rows = |at: &[usize]| at.iter().filter_map(|i| pairs.rows.get(*i)).collect::<Vec<&Collocation>>();
        Split {
            n_occur: Some(split.n_occur),
            seed: Some(split.seed),
            train: rows(&split.train),
            cases: cases(&targets, &rows(&split.test)),
        }
    };
    Protocol {
        name: format!("seen k={}", pairs.k),
        features: &pairs.features,
        splits: splits.iter().map(of).collect(),
    }
}

/// Unseen: a split each target; all rows with its model and task, of whatever batch, are taken out of what is
/// learned from, and all rows with the target are asked.
///
/// # Errors
/// A workload whose name is not `model_batchN-task`.
pub fn unseen<'a>(name: &str, table: &'a Table) -> Result<Protocol<'a>, Error> {
    unseen_from(name, table, table)
}

/// As [`unseen`], but learns from collocations of another size, e.g. pairs, without the target's model and task.
///
/// # Errors
/// As there, or the tables have other features.
pub fn unseen_from<'a>(name: &str, train: &'a Table, test: &'a Table) -> Result<Protocol<'a>, Error> {
    same_features(train, test)?;
    let mut splits = Vec::new();
    for target in test.workloads() {
        let own = named(test, target)?;
        let mut rows = Vec::new();
        for row in &train.rows {
            let mut akin = false;
            for member in &row.members {
                akin |= own.is_akin(&named(train, &member.workload)?);
            }
            if !akin {
                rows.push(row);
            }
        }
        let all: Vec<&Collocation> = test.rows.iter().collect();
        let asked = cases(&[target], &all);
        if !asked.is_empty() {
            splits.push(Split { n_occur: None, seed: None, train: rows, cases: asked });
        }
    }
    Ok(Protocol { name: name.to_owned(), features: &test.features, splits })
}

/// One training for all: learns from the rows of `train` for which `learn` says yes, and asks about those of `test`
/// for which `ask` does, for every target for which `target` does.
///
/// # Errors
/// The tables have other features, or nothing is left to learn from.
pub fn fixed<'a>(
    name: &str,
    (train, learn): (&'a Table, impl Fn(&Collocation) -> bool),
    (test, ask): (&'a Table, impl Fn(&Collocation) -> bool),
    target: impl Fn(&str) -> bool,
) -> Result<Protocol<'a>, Error> {
    same_features(train, test)?;
    let rows: Vec<&Collocation> = train.rows.iter().filter(|r| learn(r)).collect();
    if rows.is_empty() {
        return Err(Error::new(&train.source, format!("no row to learn from for `{name}`")));
    }
    let asked: Vec<&Collocation> = test.rows.iter().filter(|r| ask(r)).collect();
    let targets: Vec<&str> = test.workloads().into_iter().filter(|w| target(w)).collect();
    let split = Split { n_occur: None, seed: None, train: rows, cases: cases(&targets, &asked) };
    Ok(Protocol { name: name.to_owned(), features: &test.features, splits: vec![split] })
}

/// Learns from quadruples of batches 2 and 8, asks about those with a task of batch 4.
///
/// # Errors
/// As [`fixed`].
pub fn batch4<'a>(train: &'a Table, test: &'a Table) -> Result<Protocol<'a>, Error> {
    let four = |w: &str| Name::of(w).is_some_and(|n| n.batch == 4);
    fixed("k=4, train batch 2 and 8, test batch 4", (train, |_| true), (test, |_| true), four)
}

/// Learns from quadruples of batch 2 alone, asks for partners of tasks of batch 8.
///
/// # Errors
/// As [`fixed`].
pub fn batch2_only(table: &Table) -> Result<Protocol<'_>, Error> {
    let batch = |w: &str, n: u32| Name::of(w).is_some_and(|name| name.batch == n);
    let all_two = |row: &Collocation| row.members.iter().all(|m| batch(&m.workload, 2));
    fixed("k=4, train batch 2 alone", (table, all_two), (table, |row| !all_two(row)), |w| batch(w, 8))
}

/// Whether a workload's solo throughput belongs to its collocations: wav2vec2 and whisper were changed between
/// the artifact's campaigns, and their solo throughput was not measured again.
#[must_use]
pub fn is_sound(workload: &str) -> bool {
    !workload.starts_with("wav2vec2") && !workload.starts_with("whisper")
}

fn named<'a>(table: &Table, workload: &'a str) -> Result<Name<'a>, Error> {
    Name::of(workload).ok_or_else(|| {
        let what = format!("`{workload}`: expected a name as model_batchN-task, e.g. bert_batch8-train");
        Error::new(&table.source, what)
    })
}

fn same_features(a: &Table, b: &Table) -> Result<(), Error> {
    if a.features == b.features {
        return Ok(());
    }
    let what = format!(
        "features {}; expected those of {}: {}",
        b.features.join(", "),
        a.source,
        a.features.join(", ")
    );
    Err(Error::new(&b.source, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let text = "workload1,workload2,w1throughput,w2throughput,w1sm%,w2sm%\n\
            a_batch2-inf,b_batch2-train,1,2,3,4\n\
            a_batch8-inf,b_batch2-train,1,3,3,4\n\
            a_batch2-train,b_batch2-train,1,1,3,4\n\
            b_batch8-train,a_batch2-inf,5,1,4,3\n\
            b_batch8-train,c_batch8-inf,4,2,4,3\n\
            c_batch8-inf,a_batch8-inf,4,2,4,3\n";
        Table::parse("t.csv", text.as_bytes()).unwrap()
    }

    #[test]
    fn the_targets_model_and_task_are_not_learned_from() {
        let table = table();
        let protocol = unseen("unseen", &table).unwrap();
        let a = protocol.splits.iter().find(|s| s.cases[0].target == "a_batch2-inf").unwrap();
        assert_eq!(a.train, [&table.rows[2], &table.rows[4]]);
        assert_eq!(a.cases[0].test, [&table.rows[0], &table.rows[3]]);
        let b = protocol.splits.iter().find(|s| s.cases[0].target == "b_batch8-train").unwrap();
        assert_eq!(b.train, [&table.rows[5]]);
        // One row alone holds a_batch2-train.
        assert_eq!(protocol.cases(), 5);
    }

    #[test]
    fn batches_are_kept_apart() {
        let table = table();
        let protocol = batch2_only(&table).unwrap();
        assert_eq!(protocol.splits[0].train, [&table.rows[0], &table.rows[2]]);
        let targets: Vec<&str> = protocol.splits[0].cases.iter().map(|c| c.target).collect();
        assert_eq!(targets, ["a_batch8-inf", "b_batch8-train", "c_batch8-inf"]);
    }

    #[test]
    fn seen_asks_about_what_is_left() {
        let table = table();
        let split = PairSplit { n_occur: 2, seed: 10, train: vec![2, 0, 3], test: vec![1, 5, 4] };
        let protocol = seen(&table, &[split]);
        let targets: Vec<&str> = protocol.splits[0].cases.iter().map(|c| c.target).collect();
        assert_eq!(targets, ["a_batch8-inf", "c_batch8-inf"]);
        assert_eq!(protocol.splits[0].train[0], &table.rows[2]);
    }

    #[test]
    fn names_of_another_form_are_refused() {
        assert_eq!(Name::of("gpt2-xl_batch20-inf").unwrap().family, "gpt2-xl");
        let text = "workload1,workload2,w1throughput,w2throughput\nx,y,1,2\n";
        let error = unseen("u", &Table::parse("t.csv", text.as_bytes()).unwrap()).unwrap_err();
        assert!(error.to_string().contains("model_batchN-task"), "{error}");
    }
}
