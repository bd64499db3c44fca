//! Says what carma reads out of a program's output: `python train.py 2>&1 | progress`.

use carma_interference::rate::printed::{Printed, Report};
use carma_interference::rate::tally::Tally;
use std::io::Read;
use std::time::Instant;

fn main() -> std::io::Result<()> {
    let (start, mut input) = (Instant::now(), std::io::stdin().lock());
    let (mut printed, mut tally) = (Printed::new(), Tally::new());
    let mut buffer = [0; 16 << 10];
    let mut last = Vec::new();
    loop {
        let length = input.read(&mut buffer)?;
        let mut reports: Vec<Report> = Vec::new();
        printed.feed(start.elapsed().as_secs_f64(), &buffer[..length], &mut reports);
        if length == 0 {
            printed.finish(&mut reports);
        }
        for report in reports {
            tally.printed(&report);
            // One line a counter, the newest.
            let said = report.said;
            let line = (said.unit.clone(), said.label.clone(), said.total);
            last.retain(|(known, _)| *known != line);
            last.push((line, said));
        }
        if length == 0 {
            break;
        }
    }
    for (_, said) in &last {
        println!("{said:?}");
    }
    match tally.best(0.0, start.elapsed().as_secs_f64()) {
        Some(best) => println!("{best:?}"),
        None => println!("no rate"),
    }
    Ok(())
}
