use super::*;
use std::collections::BTreeSet;
use std::path::Path;

#[test]
fn the_seed_decides() {
    for family in Family::ALL {
        assert_eq!(generate(family, 20, 7), generate(family, 20, 7));
        assert_ne!(generate(family, 20, 7), generate(family, 20, 8));
        // A longer set begins with the shorter one.
        assert_eq!(generate(family, 30, 7).rows[..20], generate(family, 20, 7).rows);
        assert_eq!(Family::named(family.as_str()), Some(family));
    }
    assert_eq!(Family::named("rnn"), None);
}

#[test]
fn rows_are_within_their_limits() {
    for family in Family::ALL {
        let table = generate(family, 400, 3);
        let (mut sizes, mut arches, mut capped) = (Vec::new(), BTreeSet::new(), 0);
        for at in 0..table.rows.len() {
            let row = table.row(at);
            let number = |column: &str| row[column].parse::<u64>().unwrap();
            assert!(number("batch_size") >= 2, "{row:?}");
            if !row["samples"].is_empty() {
                // Batch norm refuses a last batch of one.
                assert!(number("samples") % number("batch_size") >= 2, "{row:?}");
            }
            assert!((128..=CAP_MIB).contains(&number("cap_mib")), "{row:?}");
            capped += usize::from(number("cap_mib") < CAP_MIB);
            sizes.push(number("predicted_mib"));
            arches.insert(row["arch"]);
            if family == Family::Transformer {
                assert_eq!(number("embedding") % number("heads"), 0, "{row:?}");
                assert_eq!(number("heads") % number("kv_heads"), 0, "{row:?}");
            }
            if family == Family::Cnn {
                let halved =
                    row["blocks"].split('-').filter(|w| *w == "p" || w.ends_with("s2") || w.starts_with('t'));
                assert!(number("image") >> halved.count() >= 1, "{row:?}");
            }
        }
        let small = sizes.iter().filter(|mib| **mib < 2_000).count();
        let large = sizes.iter().filter(|mib| **mib > 8_000).count();
        assert!(small > 40 && large > 40, "{family:?}: {small} small, {large} large");
        assert!((20..90).contains(&capped), "{family:?}: {capped} capped");
        assert!(arches.len() >= 4, "{arches:?}");
    }
}

/// What was measured on an H200 can be drawn again.
#[test]
fn the_committed_sets_are_those_of_seed_1() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/h200/results");
    for family in Family::ALL {
        let measured = Table::read(&folder.join(format!("dataset-{}.csv.gz", family.as_str()))).unwrap();
        assert!(measured.rows.len() >= 3_000);
        let drawn = generate(family, 3_300, 1);
        for at in (0..measured.rows.len()).step_by(7) {
            let row = measured.row(at);
            let number: usize = row["id"].rsplit('-').next().unwrap().parse().unwrap();
            for (column, cell) in drawn.row(number - 1) {
                assert_eq!(row[column], cell, "{column} of {}", row["id"]);
            }
        }
    }
}
