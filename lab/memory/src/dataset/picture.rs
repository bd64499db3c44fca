//! A picture of a data set: its tasks on the two directions in which they differ most (principal components of
//! what is known of them before they run), coloured by the class of their memory. As in GPUMemNet's analysis: if
//! neighbours have the same colour, the features tell the class.

use super::describe::{class, number};
use super::file::Table;
use carma_memory::Error;
use std::fmt::Write as _;

/// Features: none of them is known only after the run.
const FEATURES: [&str; 7] =
    ["batch", "parameters", "activations", "activations x batch", "layers", "bytes a number", "states"];
const SIZE: f64 = 720.0;
const MARGIN: f64 = 46.0;
/// From blue to red, by class; the last for those beyond.
const COLOURS: [&str; 8] =
    ["#3b4cc0", "#6f92f3", "#9dbdff", "#c9d7e8", "#f2c4a8", "#f08a6c", "#d4493e", "#8b0a1a"];
const ROUNDS: usize = 300;

/// A row in the picture.
struct Point {
    features: [f64; FEATURES.len()],
    class: u64,
}

/// Principal components of the features.
#[derive(Debug, Clone, PartialEq)]
struct Components {
    /// Two directions, each of length 1.
    directions: [[f64; FEATURES.len()]; 2],
    /// Share of the variance that each explains.
    shares: [f64; 2],
}

/// Draws tasks that went through, coloured by classes of `width_gb` GB; returns an SVG file.
///
/// # Errors
/// Fewer than three tasks have the columns that the picture is made of.
pub fn picture(table: &Table, width_gb: u64) -> Result<String, Error> {
    let mut points: Vec<Point> = (0..table.rows.len()).filter_map(|at| point(table, at, width_gb)).collect();
    if points.len() < 3 {
        return Err(Error::bad(
            "picture",
            "fewer than three tasks that went through and have `batch_size`, `params`, `activations`, `layer_list` and \
             `process_mib`",
        ));
    }
    standardise(&mut points);
    let components = components(&points);
    Ok(svg(&points, &components, width_gb))
}

fn point(table: &Table, at: usize, width_gb: u64) -> Option<Point> {
    let row = table.row(at);
    let of = |column: &str| number(row.get(column).copied().unwrap_or_default()).filter(|n| *n > 0.0);
    let squeezed = of("alloc_retries").is_some();
    if row.get("status") != Some(&"SUCCESSFUL") || squeezed {
        return None;
    }
    let (batch, params, activations, mib) =
        (of("batch_size")?, of("params")?, of("activations")?, of("process_mib")?);
    let layers = row.get("layer_list").map_or(0, |list| list.split_whitespace().count());
    let bytes = if row.get("precision").is_some_and(|p| p.starts_with("bf16")) { 2.0 } else { 4.0 };
    let states = match row.get("optimizer").copied().unwrap_or_default() {
        "sgd" | "" => 0.0,
        "sgd-momentum" | "rmsprop" | "adagrad" => 1.0,
        _ => 2.0,
    };
    let features = [
        batch.log10(),
        params.log10(),
        activations.log10(),
        (activations * batch).log10(),
        number(&layers.max(1).to_string())?.log10(),
        bytes,
        states,
    ];
    features.iter().all(|f| f.is_finite()).then(|| Point { features, class: class(mib, width_gb) })
}

/// Mean 0 and variance 1 for each feature; features that do not vary become 0.
fn standardise(points: &mut [Point]) {
    #[expect(clippy::cast_precision_loss, reason = "thousands of points")]
    let count = points.len() as f64;
    for f in 0..FEATURES.len() {
        let mean = points.iter().map(|p| p.features[f]).sum::<f64>() / count;
        let variance = points.iter().map(|p| (p.features[f] - mean).powi(2)).sum::<f64>() / count;
        let scale = if variance > 1e-12 { variance.sqrt().recip() } else { 0.0 };
        for point in &mut *points {
            point.features[f] = (point.features[f] - mean) * scale;
        }
    }
}

type Square = [[f64; FEATURES.len()]; FEATURES.len()];

/// The two largest eigenvectors of the correlations, by power iteration and deflation.
fn components(points: &[Point]) -> Components {
    let mut matrix: Square = [[0.0; FEATURES.len()]; FEATURES.len()];
    #[expect(clippy::cast_precision_loss, reason = "thousands of points")]
    let count = points.len() as f64;
    for point in points {
        for (i, row) in matrix.iter_mut().enumerate() {
            for (j, cell) in row.iter_mut().enumerate() {
                *cell += point.features[i] * point.features[j] / count;
            }
        }
    }
    let total: f64 = (0..FEATURES.len()).map(|i| matrix[i][i]).sum();
    let mut found = Components { directions: [[0.0; FEATURES.len()]; 2], shares: [0.0; 2] };
    for k in 0..2 {
        let (direction, value) = largest(&matrix);
        for (i, row) in matrix.iter_mut().enumerate() {
            for (j, cell) in row.iter_mut().enumerate() {
                *cell -= value * direction[i] * direction[j];
            }
        }
        found.directions[k] = direction;
        found.shares[k] = if total > 0.0 { (value / total).clamp(0.0, 1.0) } else { 0.0 };
    }
    found
}

/// The eigenvector of the largest eigenvalue, its largest number positive, and the value.
fn largest(matrix: &Square) -> ([f64; FEATURES.len()], f64) {
    // A start that is not orthogonal to any direction of data that people have.
    let mut vector = [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4];
    let mut value = 0.0;
    for _ in 0..ROUNDS {
        let mut next = [0.0; FEATURES.len()];
        for (cell, row) in next.iter_mut().zip(matrix) {
            *cell = row.iter().zip(&vector).map(|(a, b)| a * b).sum();
        }
        value = next.iter().map(|x| x * x).sum::<f64>().sqrt();
        if value < 1e-12 {
            return ([0.0; FEATURES.len()], 0.0);
        }
        vector = next.map(|x| x / value);
    }
    let top = vector.into_iter().fold(0.0, |a: f64, b| if b.abs() > a.abs() { b } else { a });
    (vector.map(|x| if top < 0.0 { -x } else { x }), value)
}

fn svg(points: &[Point], components: &Components, width_gb: u64) -> String {
    let project = |k: usize, p: &Point| -> f64 {
        p.features.iter().zip(&components.directions[k]).map(|(a, b)| a * b).sum()
    };
    let places: Vec<(f64, f64, u64)> =
        points.iter().map(|p| (project(0, p), project(1, p), p.class)).collect();
    let (x, y) = (Scale::of(places.iter().map(|p| p.0)), Scale::of(places.iter().map(|p| p.1)));
    let mut out = String::new();
    let _ = write!(
        out,
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" font-family="sans-serif" font-size="12">
<rect width="{w}" height="{h}" fill="#ffffff"/>
"##,
        w = SIZE + 150.0,
        h = SIZE
    );
    for (k, (axis, share)) in ["first", "second"].iter().zip(components.shares).enumerate() {
        let text =
            format!("{axis} component ({:.0} %): {}", share * 100.0, loadings(&components.directions[k]));
        let _ = match k {
            0 => writeln!(out, r#"<text x="{MARGIN}" y="{}">{text}</text>"#, SIZE - 14.0),
            _ => writeln!(
                out,
                r#"<text transform="translate(16 {}) rotate(-90)">{text}</text>"#,
                SIZE - MARGIN
            ),
        };
    }
    let most = places.iter().map(|p| p.2).max().unwrap_or(0);
    let shown = |class: u64| usize::try_from(class).unwrap_or(usize::MAX).min(COLOURS.len() - 1);
    for (group, colour) in COLOURS.iter().enumerate() {
        let members: Vec<_> = places.iter().filter(|p| shown(p.2) == group).collect();
        if members.is_empty() {
            continue;
        }
        let _ = writeln!(out, r#"<g fill="{}" fill-opacity="0.55">"#, colour);
        for (a, b, _) in &members {
            let _ = writeln!(
                out,
                r#"<circle cx="{:.1}" cy="{:.1}" r="2.2"/>"#,
                MARGIN + x.share(*a) * (SIZE - 2.0 * MARGIN),
                SIZE - MARGIN - y.share(*b) * (SIZE - 2.0 * MARGIN)
            );
        }
        out.push_str("</g>\n");
        let from = group as u64 * width_gb;
        let range = if group == COLOURS.len() - 1 && most >= COLOURS.len() as u64 {
            format!("over {from} GB")
        } else {
            format!("{from} to {} GB", from + width_gb)
        };
        #[expect(clippy::cast_precision_loss, reason = "eight groups")]
        let top = MARGIN + 20.0 * group as f64;
        let _ = writeln!(
            out,
            r#"<circle cx="{}" cy="{}" r="5" fill="{}"/><text x="{}" y="{}">{range}: {}</text>"#,
            SIZE + 4.0,
            top,
            COLOURS[group],
            SIZE + 15.0,
            top + 4.0,
            members.len()
        );
    }
    out.push_str("</svg>\n");
    out
}

/// The features that a direction is mostly made of.
fn loadings(direction: &[f64; FEATURES.len()]) -> String {
    let mut parts: Vec<(f64, &str)> = direction.iter().copied().zip(FEATURES).collect();
    parts.sort_by(|a, b| b.0.abs().total_cmp(&a.0.abs()));
    parts[..3].iter().map(|(weight, name)| format!("{weight:+.2} {name}")).collect::<Vec<_>>().join(", ")
}

/// From values to shares of a range.
struct Scale {
    low: f64,
    high: f64,
}

impl Scale {
    fn of(values: impl Iterator<Item = f64> + Clone) -> Self {
        Self {
            low: values.clone().fold(f64::INFINITY, f64::min),
            high: values.fold(f64::NEG_INFINITY, f64::max),
        }
    }

    fn share(&self, value: f64) -> f64 {
        if self.high > self.low { (value - self.low) / (self.high - self.low) } else { 0.5 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: usize) -> Table {
        let mut text = String::from(
            "id,status,batch_size,params,activations,layer_list,process_mib,precision,optimizer\n",
        );
        for i in 1..=rows {
            let _ = writeln!(
                text,
                "r{i},SUCCESSFUL,{},{},{},A B C,{},fp32,adam",
                i * 2,
                i * i * 50,
                i * 30,
                i * 900
            );
        }
        Table::parse("t", text.as_bytes()).unwrap()
    }

    #[test]
    fn every_task_is_a_point_and_every_class_a_colour() {
        let text = picture(&table(20), 8).unwrap();
        let dots = text.matches(r#"r="2.2""#).count();
        assert_eq!(dots, 20);
        // 900 to 18,000 MiB: three classes of 8 GB.
        for (legend, there) in [
            ("0 to 8 GB: 8", true),
            ("8 to 16 GB: 9", true),
            ("16 to 24 GB: 3", true),
            ("24 to 32 GB", false),
        ] {
            assert_eq!(text.contains(legend), there, "{legend} in {text}");
        }
        assert!(text.starts_with("<svg") && text.ends_with("</svg>\n"));
        assert!(picture(&table(2), 8).unwrap_err().to_string().contains("fewer than three"));
    }

    #[test]
    fn components_of_a_known_cloud() {
        // Two features that go together, one on its own with less variance, four that do not vary.
        let mut points: Vec<Point> = (0..100_i32)
            .map(|i| {
                let (a, b) = (f64::from(i % 10), f64::from(i / 10));
                Point { features: [a, 2.0 * a + 1.0, b, 0.0, 0.0, 7.0, 7.0], class: 0 }
            })
            .collect();
        standardise(&mut points);
        let found = components(&points);
        let half = 0.5_f64.sqrt();
        for (got, want) in found.directions[0].iter().zip([half, half, 0.0, 0.0, 0.0, 0.0, 0.0]) {
            assert!((got - want).abs() < 1e-6, "{found:?}");
        }
        assert!((found.directions[1][2] - 1.0).abs() < 1e-6, "{found:?}");
        assert!((found.shares[0] - 2.0 / 3.0).abs() < 1e-6 && (found.shares[1] - 1.0 / 3.0).abs() < 1e-6);
    }

    #[test]
    fn numbers_beyond_sense_leave_a_picture_without_nan() {
        let text = "id,status,batch_size,params,activations,layer_list,process_mib\n\
            a,SUCCESSFUL,1e300,1e300,1e300,,1e308\nb,SUCCESSFUL,nan,inf,-1,,5\nc,SUCCESSFUL,1,1,1,,1\nd,SUCCESSFUL,2,1,1,,1\n\
            e,SUCCESSFUL,1e200,1e80,1e90,,1e308\n";
        let text = picture(&Table::parse("t", text.as_bytes()).unwrap(), 1).unwrap();
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    }
}
