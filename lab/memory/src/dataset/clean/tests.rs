use super::*;

const COLUMNS: [&str; 16] = [
    "id",
    "family",
    "batch_size",
    "widths",
    "precision",
    "cap_mib",
    "status",
    "reason",
    "params",
    "allocated_mib",
    "reserved_mib",
    "process_mib",
    "context_mib",
    "steps_mib",
    "alloc_retries",
    "residue_mib",
];

/// A row that nothing is wrong with, and what is to be different.
fn row(id: &str, changes: &[(&str, &str)]) -> Vec<String> {
    COLUMNS
        .iter()
        .map(|column| {
            let changed = changes.iter().find(|(c, _)| c == column).map(|(_, value)| *value);
            let usual = match *column {
                "id" | "widths" => id,
                "family" => "mlp",
                "batch_size" => "64",
                "precision" => "fp32",
                "cap_mib" => "65536",
                "status" => "SUCCESSFUL",
                "params" => "1000000",
                "allocated_mib" => "90.5",
                "reserved_mib" => "120",
                "process_mib" => "870",
                "context_mib" => "750",
                "steps_mib" => "100 120 120",
                "alloc_retries" | "residue_mib" => "0",
                _ => "",
            };
            changed.unwrap_or(usual).to_owned()
        })
        .collect()
}

fn table(rows: Vec<Vec<String>>) -> Table {
    Table { columns: COLUMNS.map(str::to_owned).to_vec(), rows }
}

#[test]
fn every_kind_of_bad_row_is_dropped_with_its_reason() {
    let cases: &[(&[(&str, &str)], &str)] = &[
        (&[("status", "FAILED"), ("reason", "a fault")], "the run failed: a fault"),
        (&[("status", "DONE")], "the status is `DONE`"),
        (&[("params", "")], "params is empty"),
        (&[("reserved_mib", "-2")], "reserved_mib is `-2`"),
        (&[("allocated_mib", "nan")], "allocated_mib is `nan`"),
        (&[("batch_size", "0")], "batches of 0"),
        (&[("allocated_mib", "121")], "121 MiB allocated, but only 120 reserved"),
        (&[("reserved_mib", "121")], "multiples of 2 MiB"),
        (&[("cap_mib", "100")], "120 MiB reserved under a cap of 100"),
        (&[("residue_mib", "4")], "an earlier run"),
        (&[("process_mib", "700")], "700 MiB in the process, 750 of it context"),
        (&[("context_mib", "1400"), ("process_mib", "1520")], "a context of 1400 MiB"),
        (&[("status", "OOM"), ("cap_mib", "")], "out of memory, but no cap"),
        (&[("steps_mib", "120")], "after 1 of 3 steps"),
        (&[("allocated_mib", "2")], "did not train"),
        (&[("id", "")], "no id"),
    ];
    let mut rows: Vec<Vec<String>> = (0..20).map(|n| row(&format!("good-{n:02}"), &[])).collect();
    rows.extend(cases.iter().enumerate().map(|(n, (changes, _))| row(&format!("bad-{n:02}"), changes)));
    let cleaned = clean(table(rows), &Table::default()).unwrap();
    assert_eq!(cleaned.table.rows.len(), 20);
    assert_eq!(cleaned.dropped.len(), cases.len());
    for (dropped, (changes, reason)) in cleaned.dropped.iter().zip(cases) {
        assert!(dropped.reason.contains(reason), "{changes:?}: {dropped:?}");
    }
}

#[test]
fn the_same_twice_is_kept_once() {
    let cleaned = clean(
        table(vec![
            row("a", &[]),
            row("a", &[("widths", "other")]),
            row("b", &[("widths", "a"), ("cap_mib", "300"), ("reserved_mib", "122")]),
            row("c", &[]),
        ]),
        &Table::default(),
    )
    .unwrap();
    let ids: Vec<&str> = cleaned.table.rows.iter().map(|r| r[0].as_str()).collect();
    assert_eq!(ids, ["a", "c"]);
    assert_eq!(cleaned.dropped[0].reason, "the id is there twice");
    assert_eq!(cleaned.dropped[1].reason, "the same configuration is there under another id");
}

#[test]
fn what_is_a_lower_bound_stays() {
    let cleaned = clean(
        table(vec![
            // Ended before its first step; its context had not grown to that of the others.
            row(
                "oom",
                &[
                    ("status", "OOM"),
                    ("cap_mib", "128"),
                    ("steps_mib", ""),
                    ("process_mib", "800"),
                    ("context_mib", "680"),
                ],
            ),
            row("squeezed", &[("cap_mib", "128"), ("alloc_retries", "3")]),
        ]),
        &Table::default(),
    )
    .unwrap();
    assert_eq!((cleaned.table.rows.len(), cleaned.dropped.len()), (2, 0));
    let row = cleaned.table.row(0);
    assert_eq!((row["id"], row["status"], row["context_mib"]), ("oom", "OOM", "680"));
}

#[test]
fn contexts_are_those_of_a_fresh_process() {
    let mut rows: Vec<_> = (0..9)
        .map(|n| {
            let (context, process) = ((742 + 10 * n).to_string(), (862 + 10 * n).to_string());
            row(&format!("r{n}"), &[("context_mib", &context), ("process_mib", &process)])
        })
        .collect();
    // Another kind has its own.
    rows.push(row("x", &[("precision", "bf16"), ("context_mib", "760"), ("process_mib", "880")]));
    let once = clean(table(rows), &Table::default()).unwrap();
    for at in 0..9 {
        let row = once.table.row(at);
        assert_eq!((row["context_mib"], row["process_mib"]), ("742", "862"), "{row:?}");
        assert_eq!(row["worker_context_mib"], (742 + 10 * at).to_string());
        assert_eq!(row["worker_process_mib"], (862 + 10 * at).to_string());
    }
    assert_eq!(once.table.row(9)["context_mib"], "760");
    // Runs in processes of their own know better, of their kind.
    let alone = table(["730", "734", "736"].map(|c| row(c, &[("context_mib", c)])).to_vec());
    let better = clean(once.table.clone(), &alone).unwrap();
    assert_eq!((better.table.row(3)["context_mib"], better.table.row(3)["process_mib"]), ("734", "854"));
    assert_eq!(better.table.row(9)["context_mib"], "760");
    // What is clean stays as it is.
    let twice = clean(once.table.clone(), &Table::default()).unwrap();
    assert_eq!((twice.table, twice.dropped), (once.table, vec![]));
}

#[test]
fn inference_and_adapters_hold_no_gradients() {
    let mut base = table(vec![
        row("a", &[("params", "15000000")]),
        row("b", &[("params", "15000000")]),
        row("c", &[("params", "15000000")]),
    ]);
    for (column, values) in [("mode", ["train", "infer", "train"]), ("lora_rank", ["", "", "16"])] {
        let at = base.column(column);
        for (row, value) in base.rows.iter_mut().zip(values) {
            row[at] = value.to_owned();
        }
    }
    let cleaned = clean(base, &Table::default()).unwrap();
    let ids: Vec<&str> = cleaned.table.rows.iter().map(|r| r[0].as_str()).collect();
    // 15 million parameters take 57 MiB; with their gradients 114, more than the 90.5 that were allocated.
    assert_eq!(ids, ["b", "c"]);
}

#[test]
fn other_files_are_refused() {
    let error =
        clean(Table::parse("f", b"id,family\n1,2\n").unwrap(), &Table::default()).unwrap_err().to_string();
    assert!(error.contains("no column `batch_size`"), "{error}");
}

/// Whatever a file holds: no panic, and every row is kept or dropped.
#[test]
fn any_bytes() {
    carma_seeded::check!(3000).with_type::<Vec<u8>>().for_each(|bytes| {
        let mut text = COLUMNS.join(",").into_bytes();
        text.push(b'\n');
        text.extend(bytes);
        if let Ok(table) = Table::parse("any", &text) {
            let rows = table.rows.len();
            let cleaned = clean(table, &Table::default()).unwrap();
            assert_eq!(cleaned.table.rows.len() + cleaned.dropped.len(), rows);
            let _ = super::super::describe(&cleaned.table);
            let _ = super::super::picture(&cleaned.table, 8);
        }
    });
}
