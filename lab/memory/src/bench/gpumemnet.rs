//! GPUMemNet's cross-validation: on its authors' two MLP sets and on our own measurements.
//!
//! The networks of the folds come with carma: each was trained on the other folds from a fresh start, and is asked
//! here about the tasks that it did not see. `carma lab gpumemnet eval` trains such networks anew.

use super::{Data, Outcome, Target, Test};
use crate::compare::{self, Asked, Request, ScoreRow};
use carma_memory::gpumemnet::{Ensemble, shipped};

/// The published sets, and the accuracy in classes of 1 GB that is asked for there.
const SETS: [&str; 2] = ["mlp_data_step1.csv", "mlp_data_step2.csv"];
const TARGET: f64 = 0.97;
const NAME: &str = "gpumemnet, clean 3-fold";

fn figures(row: &ScoreRow) -> Outcome {
    let percent = |v: f64| format!("{:.1} %", v * 100.0);
    let figure = |name: &str, value: String| (name.to_owned(), value);
    let mut figures = vec![
        figure("tasks", row.tasks.to_string()),
        figure("right class", format!("{} +- {}", percent(row.accuracy.mean), percent(row.accuracy.sd))),
        figure("class too low", percent(row.under.mean)),
        figure("upper covers", percent(row.covered.mean)),
    ];
    if row.lower_bounds > 0 {
        let text = format!("{} of {}", percent(row.bounds_met), row.lower_bounds);
        figures.push(figure("class not below that of a run out of memory", text));
    }
    Outcome::Figures { figures }
}

/// A line for each set, ensemble and width of classes that was published for it.
#[must_use]
pub fn tests(data: &Data) -> Vec<Test> {
    let report = shipped().map(|own| {
        let request = Request {
            shared: data.shared.clone(),
            own: data.own.clone(),
            bundles: own.iter().map(|(_, bundle)| bundle).collect(),
            ensembles: Ensemble::ALL.to_vec(),
            dnnperf: Asked::No,
            ..Request::default()
        };
        compare::run(&request, &|_, _| {})
    });
    let report = match report {
        Ok(report) => report,
        Err(e) => return vec![Test::skipped(NAME, "gpumemnet", e.to_string())],
    };
    let mut tests = Vec::new();
    for row in report.rows.iter().filter(|row| row.weights == compare::Weights::Stored) {
        let published = SETS.contains(&row.data.as_str());
        let width = if published { 1000 } else { 8000 };
        if row.width_mib != width && (published || row.width_mib != 1000) {
            continue;
        }
        let mut targets = Vec::new();
        if published {
            targets.push(Target::new("right class >= 97 %", row.accuracy.mean >= TARGET));
        }
        tests.push(Test {
            name: format!("{NAME}, {}, classes of {} GB", row.data, row.width_mib / 1000),
            estimator: if row.ensemble == "mlp" { "gpumemnet" } else { "gpumemnet-transformer" }.to_owned(),
            outcome: figures(row),
            targets,
            pairs: Vec::new(),
        });
    }
    let missing = report.skipped.iter().filter(|why| why.contains(".csv"));
    tests.extend(missing.map(|why| Test::skipped(NAME, "gpumemnet", why.as_str())));
    tests
}
