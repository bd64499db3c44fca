//! Every option of `carma-lab` that names a file, with names that lead to no file, and gzip that unpacks to far more
//! than it is.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failing helper may end the test")]

#[path = "../../../crates/carma/tests/hostile/mod.rs"]
mod hostile;

use flate2::{Compression, write::GzEncoder};
use hostile::Program;
use std::io::Write;

const LAB: Program = Program {
    binary: env!("CARGO_BIN_EXE_carma-lab"),
    readers: &[
        (1, "gpumemnet train --family mlp --out w --data @"),
        (1, "dataset clean @"),
        (1, "kace predict --data t.csv --model @"),
        (1, "kace train -o m.json --data @"),
        (1, "bound --trace @"),
        (1, "policies --bound @"),
    ],
    files: &[],
    piecewise: &[("--trace", "the line is longer")],
};

#[test]
fn devices_and_pipes_are_refused_by_every_reader() {
    LAB.refuses_devices_and_pipes();
}

#[test]
fn a_file_of_a_tebibyte_is_refused_by_every_reader() {
    LAB.refuses_a_tebibyte();
}

#[test]
fn gzip_that_unpacks_without_end_is_refused() {
    let dir = LAB.folder();
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    for _ in 0..300 {
        packed.write_all(&[b'\n'; 1 << 20]).unwrap();
    }
    std::fs::write(dir.path().join("bomb.gz"), packed.finish().unwrap()).unwrap();
    for words in
        ["dataset clean @", "gpumemnet train --family mlp --out w --data @", "kace train -o m.json --data @"]
    {
        let output = LAB.run(dir.path(), words, "bomb.gz");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{words}: {said}");
        assert!(said.contains("bomb.gz: unpacks to more than 256 MiB"), "{words}: {said}");
    }
}
