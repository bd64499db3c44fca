//! `carma lab gpumemnet`: trains GPUMemNet's networks and compares them.

use crate::cli::gpumemnet::{Design, GpumemnetAskArgs, GpumemnetEvalArgs, GpumemnetTrainArgs, GpumemnetVerb};
use carma_cli::failure::{Failure, Outcome};
use carma_cli::{Column, Screen, Table, print, print_json};
use carma_lab_memory::compare::{self, Asked, Report, Request, ScoreRow, Spread, Training, Weights};
use carma_lab_memory::gpumemnet::{Data, Folder, Options, cross_validate, train};
use carma_lab_memory::{bench, dnnperf};
use carma_memory::dnnperf as product_dnnperf;
use carma_memory::gpumemnet::{
    Answer, AuthorsNetworks as _, Bundle, Ensemble, FeatureSet, Head, Question, shipped,
};
use indicatif::{ProgressBar, ProgressStyle};
use std::fmt::Write as _;
use std::time::Instant;

/// Runs the verb.
pub(crate) fn run(verb: &GpumemnetVerb) -> Outcome {
    match verb {
        GpumemnetVerb::Train(args) => run_train(args),
        GpumemnetVerb::Eval(args) => run_eval(args),
        GpumemnetVerb::Ask(args) => run_ask(args),
    }
}

fn failure(error: carma_memory::Error) -> Failure {
    Failure::new(error.to_string())
}

fn run_ask(args: &GpumemnetAskArgs) -> Outcome {
    let question: Question = serde_json::from_reader(std::io::stdin().lock())
        .map_err(|e| Failure::usage(format!("standard input: {e}")))?;
    let estimate = Folder(args.weights.clone()).estimate(question.ensemble, &question.model, &question.task);
    print_json(&serde_json::json!(Answer::from(estimate)))?;
    Ok(0)
}

/// What a training made.
struct Made {
    heading: String,
    data: serde_json::Value,
    rows: Vec<ScoreRow>,
    bytes: Vec<u8>,
}

fn run_train(args: &GpumemnetTrainArgs) -> Outcome {
    let began = Instant::now();
    let made = match args.kind {
        Design::Gpumemnet(ensemble) => train_ensemble(args, ensemble)?,
        Design::Dnnperf => train_graphs(args)?,
    };
    let took = began.elapsed();
    std::fs::write(&args.out, &made.bytes)
        .map_err(|e| Failure::new(format!("cannot write {}: {e}", args.out.display())))?;
    if args.json {
        print_json(&serde_json::json!({
            "version": carma_api::VERSION,
            "data": made.data,
            "rows": made.rows,
            "train_s": took.as_secs_f64(),
            "bytes": made.bytes.len(),
        }))?;
        return Ok(0);
    }
    let mut text = format!("{}\n\n{}", made.heading, table(&made.rows, &Screen::stdout()));
    let _ = writeln!(
        text,
        "\ntrained in {:.0} s; {} has {} KiB",
        took.as_secs_f64(),
        args.out.display(),
        made.bytes.len().div_ceil(1024)
    );
    print(&text)?;
    Ok(0)
}

fn train_ensemble(args: &GpumemnetTrainArgs, ensemble: Ensemble) -> Result<Made, Failure> {
    let [file] = &args.data[..] else {
        return Err(Failure::usage("GPUMemNet's ensembles learn from one file: give one --data"));
    };
    let data = Data::read(file).map_err(failure)?;
    if let Some(family) = args.family
        && family != data.family
    {
        let what = format!("{}: tasks of the family {}, not {family}", file.display(), data.family);
        return Err(Failure::usage(what));
    }
    let mut options = Options::new(ensemble, args.seed);
    if let Some(epochs) = args.epochs {
        options.epochs = epochs as usize;
    }
    if args.published_features {
        options.features = FeatureSet::Published;
    }
    if let Some(gb) = args.classes {
        let width_mib = gb * 1000;
        let most = data.samples.iter().map(|s| s.measured.mib()).max().unwrap_or(0);
        let count = usize::try_from(most.div_ceil(width_mib)).unwrap_or(usize::MAX).max(2);
        if count > 512 {
            let what = format!("{count} classes of {gb} GB up to {most} MiB; at most 512 are learned");
            return Err(Failure::usage(what).hint("choose wider classes"));
        }
        options.head = Head::Classes { width_mib, count };
    }
    let folds = cross_validate(&data, &options, usize::from(args.folds)).map_err(failure)?;
    let rows = compare::rows_of_folds(&data, &folds, Weights::Retrained);
    let whole = if args.folds_only { None } else { Some(train(&data, &options, &folds).map_err(failure)?) };
    let print = data.fingerprint();
    Ok(Made {
        heading: format!(
            "{}: {} tasks, {} of them lower bounds, {} left out",
            print.name, print.rows, print.lower_bounds, data.skipped
        ),
        data: serde_json::json!([print]),
        rows,
        bytes: Bundle { whole, folds }.write(),
    })
}

fn train_graphs(args: &GpumemnetTrainArgs) -> Result<Made, Failure> {
    if args.classes.is_some() || args.published_features || args.epochs.is_some() || args.family.is_some() {
        let what = "dnnperf takes none of --classes, --published-features, --epochs, --family";
        return Err(Failure::usage(what));
    }
    let graphs = dnnperf::read(&args.data).map_err(failure)?;
    let folds =
        dnnperf::cross_validate(&graphs, usize::from(args.folds), args.seed, None).map_err(failure)?;
    let rows = compare::rows_of_graphs(&graphs, &folds, Weights::Retrained);
    let whole = if args.folds_only {
        None
    } else {
        Some(dnnperf::train(&graphs, &folds, args.seed, None).map_err(failure)?)
    };
    Ok(Made {
        heading: format!("{} graphs of {} data sets", graphs.len(), graphs.files().len()),
        data: serde_json::json!(graphs.files()),
        rows,
        bytes: product_dnnperf::Bundle { whole, folds }.write(),
    })
}

fn run_eval(args: &GpumemnetEvalArgs) -> Outcome {
    let found = bench::Data::find(args.data.as_deref());
    let given: Vec<Bundle> =
        args.weights.iter().map(|f| Bundle::read_file(f)).collect::<Result<_, _>>().map_err(failure)?;
    let own = shipped().map_err(failure)?;
    let began = Instant::now();
    let bar = ProgressBar::new(0);
    let style = ProgressStyle::with_template("{bar:40} {percent} % trained, {eta} left")
        .map_err(|e| Failure::new(e.to_string()))?;
    bar.set_style(style);
    let (ensembles, asked) = match args.ensemble {
        None => (Ensemble::ALL.to_vec(), Asked::Stored),
        Some(Design::Gpumemnet(ensemble)) => (vec![ensemble], Asked::No),
        Some(Design::Dnnperf) => (Vec::new(), Asked::LikeOthers),
    };
    let report = compare::run(
        &Request {
            shared: found.shared,
            own: found.own,
            bundles: own.iter().map(|(_, bundle)| bundle).filter(|_| args.stored).chain(&given).collect(),
            graphs: vec![product_dnnperf::shipped().map_err(failure)?],
            train: (!args.stored).then_some(Training {
                seed: args.seed,
                folds: usize::from(args.folds),
                epochs: args.epochs.map(|n| n as usize),
            }),
            family: args.family,
            ensembles,
            dnnperf: asked,
        },
        &|done, of| {
            bar.set_length(of);
            bar.set_position(done);
        },
    );
    bar.finish_and_clear();
    if args.json {
        let mut value = serde_json::json!(report);
        value["version"] = carma_api::VERSION.into();
        value["coverage"] = compare::COVERAGE.into();
        value["retrained"] = (!args.stored).into();
        value["took_s"] = began.elapsed().as_secs_f64().into();
        print_json(&value)?;
    } else {
        print(&render(&report, !args.stored, &Screen::stdout()))?;
    }
    Ok(0)
}

fn render(report: &Report, retrained: bool, screen: &Screen) -> String {
    let mut text = String::from(if retrained {
        "Networks of the folds trained just now; each asked about the tasks that it did not see.\n\n"
    } else {
        "Stored networks of the folds, not trained again; each asked about the tasks that it did not see.\n\n"
    });
    text.push_str(&table(&report.rows, screen));
    if report.rows.iter().any(|r| r.weights == Weights::Published) {
        text.push_str(
            "\npublished: the authors' weights, on all tasks at once. They were trained on part of the MLP sets, so \
             their figures there are no clean test; their context is that of an A100 in eager mode.\n",
        );
    }
    if !report.authors.is_empty() {
        text.push_str(
            "\nThe authors' own cross-validation (folds 2 and 3 are tested on tasks of fold 1's training)\n",
        );
        let mut rows = Table::new(
            vec![
                Column::Left("FAMILY"),
                Column::Left("ENSEMBLE"),
                Column::Right("ACCURACY"),
                Column::Right("FOLD 1"),
                Column::Right("UNDER"),
            ],
            screen,
        );
        for row in &report.authors {
            rows.row([
                row.family.to_string(),
                row.ensemble.to_string(),
                percent(row.accuracy),
                format!("{:.1} %", row.first * 100.0),
                percent(row.under),
            ]);
        }
        text.push_str(&rows.render());
    }
    if !report.reproduced.is_empty() {
        let same = report.reproduced.iter().filter(|r| r.published_mib == r.here_mib).count();
        let _ = writeln!(
            text,
            "\nThe authors' real models by their MLP ensembles: {same} of {} answers as in their table",
            report.reproduced.len()
        );
        for row in report.reproduced.iter().filter(|r| r.published_mib != r.here_mib) {
            let _ = writeln!(
                text,
                "  {}: {} MiB here, {} there, measured {}",
                row.task, row.here_mib, row.published_mib, row.measured_mib
            );
        }
    }
    for line in &report.skipped {
        let _ = writeln!(text, "skipped: {line}");
    }
    text
}

fn percent(spread: Spread) -> String {
    format!("{:.1} ± {:.1} %", spread.mean * 100.0, spread.sd * 100.0)
}

fn table(rows: &[ScoreRow], screen: &Screen) -> String {
    let mut table = Table::new(
        vec![
            Column::Left("DATA"),
            Column::Left("ENSEMBLE"),
            Column::Left("WEIGHTS"),
            Column::Right("CLASS"),
            Column::Right("TASKS"),
            Column::Right("ACCURACY"),
            Column::Right("UNDER"),
            Column::Right("UPPER COVERS"),
            Column::Right("UPPER/TRUE"),
            Column::Right("MRE"),
            Column::Right("BOUNDS MET"),
        ],
        screen,
    );
    for row in rows {
        let weights = match row.weights {
            Weights::Stored => "ours",
            Weights::Retrained => "ours, new",
            Weights::Published => "published",
        };
        let bounds = match row.lower_bounds {
            0 => "-".to_owned(),
            n => format!("{:.1} % of {n}", row.bounds_met * 100.0),
        };
        table.row([
            row.data.clone(),
            row.ensemble.clone(),
            weights.to_owned(),
            format!("{} GB", row.width_mib / 1000),
            row.tasks.to_string(),
            percent(row.accuracy),
            percent(row.under),
            percent(row.covered),
            format!("{:.2}", row.upper_ratio.mean),
            format!("{:.1} %", row.mre.mean * 100.0),
            bounds,
        ]);
    }
    table.render()
}
