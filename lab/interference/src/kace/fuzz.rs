//! Whatever a table or a model file holds, reading it ends in a value or in an error that names the file; what was read
//! can be used. Runs as tests on random input from a seed, and under libFuzzer with `cargo bolero test`.

use super::cells::Cells;
use super::table::{Collocation, Table};
use super::trainer::{Kace, Options, RegressionKind};
use super::{Error, artifact, partition, protocol, score};
use bolero::TypeGenerator;
use carma_interference::kace::trained::Trained;
use carma_seeded::check;

const ITERATIONS: usize = 2000;

/// Cells that have a meaning somewhere, or are just outside of one.
const WORDS: &[&str] = &[
    "",
    "0",
    "1",
    "2",
    "10",
    "100",
    "0.5",
    "1e300",
    "1e-300",
    "-1",
    "-0",
    "nan",
    "inf",
    "1e999",
    "256",
    "99999999999",
    "a_batch2-inf",
    "a_batch8-inf",
    "b_batch2-train",
    "_batch-",
    "x",
    "A_1",
    "A_",
    "B_1",
    "\"",
    "\"a,b",
    "é",
    "\0",
    " ",
];

/// Headers of all the tables.
const HEADERS: &[&str] = &[
    "workload1,workload2,w1throughput,w2throughput,w1sm%,w2sm%,w1exclusive_throughput,w2exclusive_throughput",
    "n_occur,seed,workload1,workload2,in_train",
    "campaign,coloc_id,slot,workload,mps_active_thread_pct,throughput,solo_throughput_100",
    "workload,10,20,30,40,50,60,70,80,90,100",
    "experiment,n_occur,seed,model,target_workload,pred_over_oracle,random_over_oracle,rule_ncu_sm_thr,\
     rule_solo_thr,rule_sm_pct,rule_mem_pct,rule_memcap,oracle_throughput_sum",
    "Type,sm%,mem%",
];

/// Rows of right and wrong cells under a header.
#[derive(Debug, Clone, TypeGenerator)]
struct File {
    header: u8,
    rows: Vec<Vec<u8>>,
    cut: u8,
}

impl File {
    fn text(&self) -> String {
        let header = HEADERS[usize::from(self.header) % HEADERS.len()];
        let columns = header.split(',').count();
        let mut text = format!("{header}\n");
        for row in self.rows.iter().take(20) {
            // Mostly as long as the header.
            let length = if row.first().is_some_and(|b| *b > 240) { row.len() } else { columns };
            let cell = |i: usize| WORDS[usize::from(row.get(i).copied().unwrap_or(2)) % WORDS.len()];
            text.push_str(&(0..length).map(cell).collect::<Vec<_>>().join(","));
            text.push('\n');
        }
        let keep = text.len() - usize::from(self.cut).saturating_sub(200).min(text.len());
        text.chars().take(keep).collect()
    }
}

fn named(error: &Error) {
    assert!(!error.place.is_empty() && !error.what.is_empty(), "{error:?}");
}

#[test]
fn any_table_is_read_or_refused() {
    check!(ITERATIONS).with_type::<File>().for_each(|file| {
        let text = file.text();
        let pairs = Table::parse(
            "pairs",
            b"workload1,workload2,w1throughput,w2throughput\na_batch2-inf,b_batch2-train,1,2\n",
        );
        let (Ok(cells), Ok(pairs)) = (Cells::parse("f.csv", text.as_bytes()), pairs) else { return };
        let _ = artifact::read_splits(&cells, &pairs).map_err(|e| named(&e));
        let _ = artifact::read_reported(&cells).map_err(|e| named(&e));
        let _ = partition::read_curves(&cells).map_err(|e| named(&e));
        if let Ok(divided) = partition::read_pairs(&cells) {
            let curves =
                divided.iter().flat_map(|p| p.workloads.clone()).map(|w| (w, vec![(50.0, 0.5)])).collect();
            for pair in divided {
                let _ = (pair.is_usable(), pair.worth(&curves, &partition::Objective::MaxMin));
            }
        }
        let Ok(table) = Table::of(&cells).map_err(|e| named(&e)) else { return };
        let rows: Vec<&Collocation> = table.rows.iter().collect();
        let kace = Kace::new(&table.features, Options::artifact(RegressionKind::Lr));
        if let Ok(trained) = kace.train(&rows) {
            let _ = trained.predict(&table.rows[0]);
        }
        if let Ok(protocol) = protocol::unseen("any", &table) {
            let _ = score::evaluate(&kace, &protocol, 1);
        }
    });
}

#[test]
fn any_bytes_are_read_or_refused() {
    check!(ITERATIONS).for_each(|bytes: &[u8]| {
        let _ = Table::parse("f.csv", bytes);
        let mut packed = vec![0x1f, 0x8b];
        packed.extend_from_slice(bytes);
        let _ = Table::parse("f.csv", &packed);
    });
}

#[test]
fn any_change_of_a_model_file_is_refused_or_answers() {
    let text =
        "workload1,workload2,w1throughput,w2throughput,w1sm%,w2sm%\na,b,1,2,3,4\na,c,3,4,5,6\nb,c,4,2,6,6\n";
    let Ok(table) = Table::parse("t", text.as_bytes()) else { panic!("the table is right") };
    let rows: Vec<&Collocation> = table.rows.iter().collect();
    let options = Options {
        search: super::forest::Search { candidates: 1, trial_budget: 1, most_trees: 2 },
        ..Options::honest(RegressionKind::Rf)
    };
    let whole: Vec<String> = [options, Options::honest(RegressionKind::Lr)]
        .into_iter()
        .filter_map(|o| Kace::new(&table.features, o).train(&rows).ok()?.write("t").ok())
        .collect();
    assert_eq!(whole.len(), 2);
    check!(ITERATIONS).with_type::<(bool, u16, u8, u16, u8)>().for_each(|(which, at, byte, more, other)| {
        let mut bytes = whole[usize::from(*which)].clone().into_bytes();
        let length = bytes.len();
        bytes[usize::from(*at) % length] = *byte;
        bytes[usize::from(*more) % length] = b'0' + other % 10;
        let Ok(text) = String::from_utf8(bytes) else { return };
        if let Ok(trained) = Trained::read("m.json", &text) {
            let _ = trained.predict(&table.rows[0]);
        }
    });
}
