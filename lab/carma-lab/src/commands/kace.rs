//! `carma lab kace`: trains KACE, and repeats what its artifact did.

use crate::cli::kace::{KaceEvalArgs, KacePredictArgs, KaceTrainArgs, KaceVerb, Splits};
use carma_cli::failure::{Failure, Outcome};
use carma_cli::{Column, Screen, Table, print, print_json};
use carma_files::replace;
use carma_hardware::GpuType;
use carma_interference::kace::features::Target;
use carma_interference::kace::trained::Trained;
use carma_lab_interference::kace::eval::{self, Percent, Report, Request};
use carma_lab_interference::kace::features::measured;
use carma_lab_interference::kace::table::{self, Collocation};
use carma_lab_interference::kace::trainer::{Kace, Options};
use carma_lab_interference::kace::{Artifact, Error};
use carma_lab_interference::own::{Chosen, Own};
use carma_sim::gpu::Law;
use indicatif::ProgressBar;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;

/// The artifact's GPU.
const GPU: &str = "V100-32GB";

/// Most that is read of a model; `carma predict --kace-model` has the same limit.
const MOST_BYTES: u64 = 256 << 20;

/// Runs the verb.
pub(crate) fn run(verb: &KaceVerb) -> Outcome {
    match verb {
        KaceVerb::Train(args) => run_train(args),
        KaceVerb::Predict(args) => run_predict(args),
        KaceVerb::Eval(args) => run_eval(args),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn failure(error: Error) -> Failure {
    Failure::new(error.to_string())
}

fn run_train(args: &KaceTrainArgs) -> Outcome {
    let began = Instant::now();
    let own = if args.data.is_file() && Own::is_meant(&args.data).map_err(failure)? {
        Some(Own::read(&args.data, args.sharing).map_err(failure)?)
    } else {
        None
    };
    let table = if let Some(own) = &own {
        Ok(own.table.clone())
    } else if args.data.is_dir() {
        let artifact = Artifact::new(&args.data);
        match args.members {
            2 => artifact.pairs(),
            3 => artifact.triples(),
            _ => artifact.quadruples(),
        }
    } else {
        table::Table::read(&args.data)
    }
    .map_err(failure)?;
    let base = match args.splits {
        Splits::Artifact => Options::artifact(args.model),
        _ => Options::honest(args.model),
    };
    let options = Options { aggregation: args.percentages, target: args.target, seed: args.seed, ..base };
    let rows: Vec<&Collocation> = table.rows.iter().collect();
    let learn = if args.features.is_empty() { &table.features } else { &args.features };
    let kace = Kace::new(&table.features, options).learning(learn).map_err(failure)?;
    let trained = kace.train(&rows).map_err(failure)?;
    let choices = own.map_or(Ok(Vec::new()), |own| own.choices(learn, options)).map_err(failure)?;
    let name = table.source.rsplit('/').next().unwrap_or_default();
    let text = trained.write(name).map_err(failure)?;
    if text.len() as u64 > MOST_BYTES {
        let what = format!("the model has more than {} MiB: learn from fewer rows", MOST_BYTES >> 20);
        return Err(Failure::new(what));
    }
    // What was written is what will be read.
    Trained::read(&args.out.display().to_string(), &text).map_err(failure)?;
    let explained = explained(&kace, &trained, &rows).map_err(failure)?;
    replace(&args.out, text.as_bytes())
        .map_err(|e| Failure::new(format!("cannot write {}: {e}", args.out.display())))?;
    let took = began.elapsed().as_secs_f64();
    if args.json {
        print_json(&serde_json::json!({
            "version": carma_api::VERSION,
            "data": name,
            "members": table.k,
            "rows": table.rows.len(),
            "learned_from": trained.rows,
            "features": trained.features,
            "r2_on_its_own_rows": explained,
            "train_s": took,
            "bytes": text.len(),
            "family_held_out_pct_of_best": choices,
        }))?;
        return Ok(0);
    }
    let unit = unit(args.target);
    let sizes = if choices.is_empty() { table.k.to_string() } else { format!("up to {}", table.k) };
    print(&format!(
        "{name}: {} collocations of {sizes}, {} features\nlearned from {}; explains {:.1} % of the variance of summed \
         {unit} on the rows of the table (no test: it learned from them)\ntrained in {took:.1} s; {} has {} KiB\n",
        table.rows.len(),
        trained.features.len(),
        trained.rows,
        100.0 * explained,
        args.out.display(),
        text.len().div_ceil(1024)
    ))?;
    print_choices(&choices)?;
    Ok(0)
}

/// Choices of partners for tasks of families that it had not learned from.
fn print_choices(choices: &[Chosen]) -> Result<(), Failure> {
    let Some(first) = choices.first() else { return Ok(()) };
    let mut columns = vec![Column::Right("TASKS"), Column::Left("BEST BY")];
    columns.extend(first.percent.iter().map(|(name, _)| Column::Right(name)));
    let screen = Screen::stdout();
    let mut table = Table::new(columns, &screen);
    for line in choices {
        let mut row = vec![line.k.to_string(), line.objective.to_owned()];
        row.extend(line.percent.iter().map(|(_, percent)| format!("{percent:.1}")));
        table.row(row);
    }
    let head = "\npartners for a task whose family is in nothing that was learned from, percent of the best; power was measured\n";
    print(&format!("{head}{}", table.render()))?;
    Ok(())
}

const fn unit(target: Target) -> &'static str {
    match target {
        Target::SumThroughput => "items/s",
        Target::SumProgress => "progress",
    }
}

/// A model's text.
fn read(path: &Path) -> Result<String, Failure> {
    carma_files::read_text(path, MOST_BYTES)
        .map_err(|e| Failure::new(e.to_string()).hint("a model is what `carma lab kace train` writes"))
}

fn run_predict(args: &KacePredictArgs) -> Outcome {
    let place = args.model.display().to_string();
    let text = read(&args.model)?;
    let trained = Trained::read(&place, &text).map_err(failure)?;
    let table = table::Table::read_candidates(&args.data).map_err(failure)?;
    let table = table.with_features(&trained.features).map_err(failure)?;
    let wanted = |row: &&Collocation| args.target.as_ref().is_none_or(|t| row.has(t));
    let mut predicted: Vec<(Vec<&str>, f64)> = table
        .rows
        .iter()
        .filter(wanted)
        .map(|r| Ok((r.members.iter().map(|m| m.workload.as_str()).collect(), trained.forecast(r)?)))
        .collect::<Result<_, Error>>()
        .map_err(|e| failure(Error::new(&place, e.to_string())))?;
    if predicted.is_empty() {
        let target = args.target.as_deref().unwrap_or_default();
        return Err(Failure::new(format!("no collocation with `{target}` in {}", args.data.display())));
    }
    predicted.sort_by(|a, b| b.1.total_cmp(&a.1));
    let unit = unit(trained.target);
    if args.json {
        let rows: Vec<_> = predicted
            .iter()
            .map(|(workloads, sum)| serde_json::json!({ "workloads": workloads, "predicted_sum": sum }))
            .collect();
        print_json(
            &serde_json::json!({ "version": carma_api::VERSION, "unit": unit, "collocations": rows }),
        )?;
        return Ok(0);
    }
    let screen = Screen::stdout();
    let mut table = Table::new(vec![Column::Right("PREDICTED SUM"), Column::Left("COLLOCATION")], &screen);
    for (workloads, sum) in predicted {
        table.row([format!("{sum:.2} {unit}"), workloads.join(" + ")]);
    }
    print(&table.render())?;
    Ok(0)
}

/// R2 on the rows of the table.
fn explained(kace: &Kace, trained: &Trained, rows: &[&Collocation]) -> Result<f64, Error> {
    let targets =
        rows.iter().map(|r| measured(trained.target, &kace.features, r)).collect::<Result<Vec<f64>, _>>()?;
    let mean = targets.iter().sum::<f64>() / targets.len().max(1) as f64;
    let total: f64 = targets.iter().map(|t| (t - mean) * (t - mean)).sum();
    let left: f64 =
        rows.iter().zip(&targets).map(|(r, t)| (trained.predict(&kace.shown(r)) - t).powi(2)).sum();
    if !left.is_finite() {
        let what = "what was learned predicts numbers that are not finite on the table's own rows; look for cells that \
                    are far from all others";
        return Err(Error::new("training", what));
    }
    Ok(if total > 0.0 { 1.0 - left / total } else { 0.0 })
}

fn run_eval(args: &KaceEvalArgs) -> Outcome {
    if !args.data.is_dir() {
        let what = format!("{} is no folder", args.data.display());
        return Err(Failure::usage(what).hint(
            "give the folder of KACE's artifact with --data; docs/research/kace.md says which tables it holds",
        ));
    }
    let began = Instant::now();
    let artifact = Artifact::new(&args.data);
    let power = Law::from(&GpuType::find(GPU).map_err(Failure::new)?).power;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let request = Request {
        artifact: &artifact,
        power,
        threads: args.threads.map_or(cores, usize::from),
        as_artifact: args.splits != Splits::Honest,
        honest: args.splits != Splits::Artifact,
    };
    let bar = ProgressBar::new(0);
    let report = eval::run(&request, &|done, of| {
        bar.set_length(of as u64);
        bar.set_position(done as u64);
    })
    .map_err(failure)?;
    bar.finish_and_clear();
    if args.json {
        let mut value = serde_json::json!({
            "version": carma_api::VERSION,
            "data": args.data.file_name().map(|n| n.to_string_lossy()),
            "unit": "sum of throughput of the choice, percent of the best choice's; 95 % bootstrap interval clustered by target",
            "power_model": GPU,
            "took_s": began.elapsed().as_secs_f64(),
        });
        if let (Some(to), Ok(serde_json::Value::Object(from))) =
            (value.as_object_mut(), serde_json::to_value(&report))
        {
            to.extend(from);
        }
        print_json(&value)?;
    } else {
        print(&render(&report, &Screen::stdout()))?;
    }
    Ok(0)
}

fn range(pct: &Percent) -> String {
    format!("{:.1} to {:.1}", pct.ci95_pct.0, pct.ci95_pct.1)
}

fn one(pct: Option<f64>) -> String {
    pct.map_or_else(|| "-".to_owned(), |p| format!("{p:.1}"))
}

fn render(report: &Report, screen: &Screen) -> String {
    let mut text = String::from(
        "Sum of throughput of the chosen collocation, percent of the best one's, mean over targets; 95 % intervals by \
         bootstrap over targets.\nSAME AS LOGGED: choices worth the same as in the artifact's logs (of what draws, by \
         its first seed).\n",
    );
    for experiment in &report.experiments {
        let _ = writeln!(
            text,
            "\n{}: {} collocations, learned from {:.0}, {} targets, {} choices",
            experiment.name, experiment.rows, experiment.learned_from, experiment.targets, experiment.cases
        );
        let mut table = Table::new(
            vec![
                Column::Left("POLICY"),
                Column::Right("HERE"),
                Column::Right("95 %"),
                Column::Right("PUBLISHED"),
                Column::Right("DIFFERENCE"),
                Column::Right("SAME AS LOGGED"),
                Column::Right("BY SEED"),
            ],
            screen,
        );
        for policy in &experiment.policies {
            let seeds = policy.by_seed_pct.iter();
            let (low, high) =
                seeds.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), p| (low.min(*p), high.max(*p)));
            table.row([
                policy.policy.clone(),
                one(Some(policy.pct.mean_pct)),
                range(&policy.pct),
                one(policy.published_pct),
                policy
                    .difference_points
                    .map_or_else(|| "-".to_owned(), |d| format!("{:+.1}", (d * 10.0).round() / 10.0 + 0.0)),
                policy.same_as_logged.map_or_else(|| "-".to_owned(), |(of, same)| format!("{same} of {of}")),
                if policy.by_seed_pct.len() > 1 { format!("{low:.1} to {high:.1}") } else { "-".to_owned() },
            ]);
        }
        text.push_str(&table.render());
    }
    text.push_str(&sizes(report, screen));
    for halves in &report.random_halves {
        let (low, middle, high) = halves.percentiles_pct;
        let _ = writeln!(
            text,
            "\n{}: linear regression on {} random halves of the table: {middle:.1} (95 %: {low:.1} to {high:.1}); \
             published {}",
            halves.id,
            halves.halves,
            one(halves.published_pct)
        );
    }
    text.push_str("\nThreads divided between two tasks under MPS, percent of the best measured division\n");
    let mut table = Table::new(
        vec![
            Column::Left("OBJECTIVE"),
            Column::Left("CHOICE"),
            Column::Right("PAIRS"),
            Column::Right("WORTH"),
            Column::Right("95 %"),
        ],
        screen,
    );
    for divided in &report.divided {
        for choice in &divided.choices {
            let modelled = if divided.modelled_power { " (power modelled)" } else { "" };
            table.row([
                format!("{}{modelled}", divided.objective),
                choice.choice.to_owned(),
                format!("{} of {}", divided.usable, divided.pairs),
                one(Some(choice.pct.mean_pct)),
                range(&choice.pct),
            ]);
        }
    }
    text.push_str(&table.render());
    text
}

/// Seen pairs by size of the training set.
fn sizes(report: &Report, screen: &Screen) -> String {
    let mut text = String::from("\nSeen pairs by number of training pairs: here (published)\n");
    let mut table = Table::new(
        vec![
            Column::Right("PAIRS"),
            Column::Left("POLICY"),
            Column::Right("HERE"),
            Column::Right("PUBLISHED"),
        ],
        screen,
    );
    for size in &report.by_training_pairs {
        for (policy, pct, published) in &size.policies {
            if policy.starts_with("KACE") || policy.starts_with("Xu") {
                table.row([
                    format!("{:.0}", size.learned_from),
                    policy.clone(),
                    one(Some(*pct)),
                    one(*published),
                ]);
            }
        }
    }
    text.push_str(&table.render());
    text
}
