//! The graphs of carma's data sets have the parameters that PyTorch counted when they were measured.

use carma_lab_memory::dataset::contents;
use carma_lab_memory::dnnperf::{Cells, graph};
use std::path::Path;

#[test]
fn every_row_has_its_parameters() {
    for family in ["mlp", "cnn", "transformer"] {
        let file = format!("../../bench/h200/results/dataset-{family}.csv.gz");
        let bytes = contents(&Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
        let mut rows = 0;
        for row in csv::Reader::from_reader(bytes.as_slice()).deserialize::<Cells>() {
            let row = row.unwrap();
            let counted: u64 = row["params"].parse().unwrap();
            assert_eq!(graph(&row).unwrap().parameters(), counted, "{}", row["id"]);
            rows += 1;
        }
        assert!(rows >= 3000, "{family}: {rows} rows");
    }
}
