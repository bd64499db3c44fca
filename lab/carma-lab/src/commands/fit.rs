//! `carma lab fit`.

use crate::cli::FitArgs;
use carma_cli::failure::{Failure, Outcome};
use carma_cli::{Column, Screen, Table, print, print_json};
use carma_files::replace;
use carma_lab_gpu_models::{Errors, Fit, Part, Places, Target, fit};
use std::fmt::Write as _;
use std::path::Path;

/// Runs the verb.
pub(crate) fn run(args: &FitArgs) -> Outcome {
    let target =
        Target::named(&args.gpu).ok_or_else(|| Failure::usage(format!("`{}` can't be fitted", args.gpu)))?;
    let places = Places { named: args.data.as_deref(), root: Path::new("") };
    let fit = fit(target, places).map_err(|e| {
        Failure::new(e.to_string())
            .hint("--data names the folder with the measurements; docs/research/gpu-models.md says which")
    })?;
    if args.json {
        let mut value = serde_json::json!(fit);
        value["version"] = carma_api::VERSION.into();
        print_json(&value)?;
    } else {
        print(&render(&fit, &Screen::stdout()))?;
    }
    if let Some(file) = &args.output {
        replace(file, fit.model.as_bytes())
            .map_err(|e| Failure::new(format!("cannot write {}: {e}", file.display())))?;
    }
    Ok(0)
}

fn render(fit: &Fit, screen: &Screen) -> String {
    let mut text = format!("Fit of the model {} (a model, not a measurement)\n", fit.gpu);
    for data in &fit.data {
        let _ = writeln!(text, "data  {data}");
    }
    for part in &fit.parts {
        text.push('\n');
        part_text(&mut text, part, screen);
    }
    text
}

fn part_text(text: &mut String, part: &Part, screen: &Screen) {
    let _ = writeln!(text, "{} ({})", part.title, part.unit);
    let mut rows = Table::new(
        vec![
            Column::Right("MEASURED"),
            Column::Right("MODEL"),
            Column::Right("RESIDUAL"),
            Column::Left("ROW"),
        ],
        screen,
    );
    for row in &part.rows {
        let held = if row.held_out { " (held out)" } else { "" };
        rows.row([
            number(row.measured),
            number(row.model),
            format!("{:+.1} %", row.residual() * 100.0),
            format!("{}{held}", row.label),
        ]);
    }
    text.push_str(&rows.render());
    text.push('\n');
    let mut parameters = Table::new(
        vec![
            Column::Left("PARAMETER"),
            Column::Right("BEFORE"),
            Column::Right("VALUE"),
            Column::Right("5-95 %"),
            Column::Left("NOTE"),
        ],
        screen,
    );
    for fitted in &part.parameters {
        let note = match (fitted.identified, part.taken) {
            (false, _) => "not taken: these rows do not identify it",
            (true, false) => "not taken",
            (true, true) => "",
        };
        parameters.row([
            fitted.key.clone(),
            format!("{:.3}", fitted.before),
            format!("{:.3}", fitted.value),
            if fitted.identified { format!("{:.3}..{:.3}", fitted.low, fitted.high) } else { "-".to_owned() },
            note.to_owned(),
        ]);
    }
    text.push_str(&parameters.render());
    text.push('\n');
    let mut errors = Table::new(
        vec![
            Column::Right("ROWS"),
            Column::Right("MAPE"),
            Column::Right("MEDIAN"),
            Column::Right("BIAS"),
            Column::Left("ERROR ON"),
        ],
        screen,
    );
    errors.row(error_row(&part.in_sample, "the rows that were fitted"));
    for held in &part.held_out {
        errors.row(error_row(&held.errors, &held.how));
    }
    text.push_str(&errors.render());
    for note in &part.notes {
        let _ = writeln!(text, "{note}.");
    }
}

fn error_row(errors: &Errors, on: &str) -> [String; 5] {
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    [
        errors.rows.to_string(),
        percent(errors.mape),
        percent(errors.median),
        format!("{:+.1} %", errors.bias * 100.0),
        on.to_owned(),
    ]
}

fn number(value: f64) -> String {
    if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.3}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use carma_lab_gpu_models::{Fitted, FittedRow, HeldOut};

    #[test]
    fn a_fit_reads_well() {
        let errors = Errors { rows: 2, mape: 0.04, median: 0.031, bias: -0.01 };
        let row = |label: &str, model, held_out| FittedRow {
            label: label.into(),
            measured: 200.0,
            model,
            held_out,
        };
        let fitted = |key: &str, identified| Fitted {
            key: key.into(),
            value: 0.5,
            before: 1.0,
            low: 0.4,
            high: 0.62,
            identified,
        };
        let part = Part {
            title: "Power".into(),
            unit: "W".into(),
            parameters: vec![fitted("power.gract", true), fitted("power.tensor", false)],
            taken: true,
            in_sample: errors,
            held_out: vec![HeldOut { how: "leave one trace out".into(), errors }],
            rows: vec![row("one", 210.0, false), row("two", 190.0, true)],
            notes: vec!["A note".into()],
        };
        let fit =
            Fit { gpu: "X".into(), data: vec!["a table".into()], parts: vec![part], model: String::new() };
        let text = render(&fit, &Screen::of_width(None));
        for part in [
            "Fit of the model X (a model, not a measurement)\ndata  a table\n\nPower (W)\nMEASURED  MODEL  RESIDUAL  ROW\n",
            "     200    210    +5.0 %  one\n",
            "     200    190    -5.0 %  two (held out)\n",
            "0.400..0.620",
            "not taken: these rows do not identify it",
            "   2  4.0 %   3.1 %  -1.0 %  leave one trace out\n",
            "A note.\n",
        ] {
            assert!(text.contains(part), "{part}\nis not in\n{text}");
        }
    }
}
