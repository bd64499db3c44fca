use super::*;
use crate::report::example;

#[test]
fn show() {
    let runs = example::runs(4, 60, &["exclusive", "magm", "random"], 7);
    let notes = vec![
        "Interference between jobs is modelled from measurements of pairs on an A100.".to_owned(),
        "Start-up times are drawn with the seed.".to_owned(),
    ];
    let page = page(&PageInput {
        title: "Trace of 60 jobs on 4 GPUs",
        trace: "trace-60",
        cluster: "4xA100-40GB",
        command: "carma simulate --trace trace-60.csv --cluster 4xA100-40GB --policy exclusive --policy magm --policy random --html out.html",
        date: "2026-03-01 12:00",
        notes: &notes,
        runs: &runs,
    });
    std::fs::write("/tmp/page.html", &page).unwrap();
    eprintln!("{} bytes", page.len());
}
