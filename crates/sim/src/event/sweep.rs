//! Grids over a policy's numbers: `gate.smact=0.5..0.9:0.05`.

use carma_core::policy::{Gate, MemoryScreen, Options, Order, Pack, Progress};
use carma_core::units::{Fraction, MiB, Millis};

/// Values of one axis, and points of a grid, at most.
const MOST_POINTS: usize = 10_000;

/// One axis of a grid.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// What is varied; one of [`KEYS`].
    pub key: &'static str,
    /// The values, ascending.
    pub values: Vec<f64>,
}

/// What can be varied, with its unit.
pub const KEYS: &[(&str, &str)] = &[
    ("gate.smact", "share, 0 to 1"),
    ("gate.smocc", "share, 0 to 1"),
    ("gate.drama", "share, 0 to 1"),
    ("memory.floor", "MiB"),
    ("memory.guard", "MiB"),
    ("memory.reserve", "MiB"),
    ("progress.floor", "share of its speed that a job keeps that joins others, as predicted, 0 to 1"),
    ("progress.gain", "speeds of single jobs that a newcomer adds, as predicted"),
    ("bound", "bound on a job's wait, over its wait if nobody shared"),
    ("slack", "added to it for jobs that take turns and whose run times are estimates"),
    ("most-jobs", "jobs on one GPU"),
    ("pack.sum", "score, or share for horus"),
    ("backfill", "seconds"),
    ("window", "seconds"),
    ("margin", "percent"),
    ("max-retries", "retries"),
    ("suspend", "1: jobs are suspended for others where they can be; 0: ended"),
    ("max-slowdown", "by how much neighbours may slow every job down"),
];

impl Axis {
    /// Reads `KEY=FROM..TO:STEP`, or `KEY=VALUE[,VALUE...]`.
    ///
    /// # Errors
    /// Says what is wrong and what would be right.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = |why: String| format!("sweep `{text}`: {why}; write KEY=FROM..TO:STEP or KEY=A,B,C");
        let (key, values) = text.split_once('=').ok_or_else(|| wrong("there is no `=`".into()))?;
        let known = KEYS.iter().find(|(known, _)| *known == key.trim());
        let Some((key, _)) = known else {
            let keys: Vec<&str> = KEYS.iter().map(|(key, _)| *key).collect();
            return Err(wrong(format!("`{}` is none of {}", key.trim(), keys.join(", "))));
        };
        let number = |text: &str| {
            let value = text.trim().parse::<f64>().ok().filter(|v| v.is_finite() && *v >= 0.0);
            value.ok_or_else(|| wrong(format!("`{}` is not a number from 0 on", text.trim())))
        };
        let values = match values.split_once("..") {
            None => values.split(',').map(number).collect::<Result<Vec<f64>, String>>()?,
            Some((from, rest)) => {
                let (to, step) = rest.split_once(':').ok_or_else(|| wrong("the range has no step".into()))?;
                let (from, to, step) = (number(from)?, number(to)?, number(step)?);
                if step <= 0.0 || to < from {
                    return Err(wrong("the range must rise by a step above 0".into()));
                }
                let steps = (to - from) / step;
                if steps > MOST_POINTS as f64 {
                    return Err(wrong(format!("more than {MOST_POINTS} values")));
                }
                // The end belongs to it, however the step is rounded; digits beyond the step's are noise.
                (0..=(steps + 1e-9).floor() as u32)
                    .map(|i| ((from + f64::from(i) * step) * 1e9).round() / 1e9)
                    .collect()
            }
        };
        Ok(Self { key, values })
    }
}

/// All points of the grid that the axes span, the last axis fastest; one empty point without axes.
///
/// # Errors
/// The grid is too large.
pub fn grid(axes: &[Axis]) -> Result<Vec<Vec<(&'static str, f64)>>, String> {
    let mut points = vec![Vec::new()];
    for axis in axes {
        if points.len().saturating_mul(axis.values.len()) > MOST_POINTS {
            return Err(format!("the sweeps span more than {MOST_POINTS} points"));
        }
        let with = |point: &Vec<_>, value: f64| point.iter().copied().chain([(axis.key, value)]).collect();
        points = points.iter().flat_map(|p| axis.values.iter().map(move |v| with(p, *v))).collect();
    }
    Ok(points)
}

/// Why a number of a policy can't be set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SetError {
    /// The policy has no such number, e.g. no gate.
    #[error("{0}")]
    Lacks(String),
    /// It has one, and can't have this value.
    #[error("{0}")]
    Value(String),
}

/// Sets one number of a policy.
///
/// # Errors
/// [`SetError`].
pub fn set(options: &mut Options, key: &str, value: f64) -> Result<(), SetError> {
    let policy = &mut options.policy;
    let none = |what: &str| {
        Err(SetError::Lacks(format!("policy `{}` has no {what}, so {key} can't be varied", policy.name)))
    };
    let wrong = |expected: &str| SetError::Value(format!("{key}={value}: {expected}"));
    let fraction = || Fraction::from_f64(value).ok_or_else(|| wrong("not a share"));
    let share =
        || fraction().and_then(|of| if value <= 1.0 { Ok(of) } else { Err(wrong("expected 0 to 1")) });
    let whole =
        || if value.fract() == 0.0 { Ok(value as u32) } else { Err(wrong("expected a whole number")) };
    let mib = MiB(value.round() as u64);
    let seconds = Millis((value * 1000.0).round() as u64);
    match (key, &mut policy.gate, &mut policy.memory, &mut policy.pack) {
        ("gate.smact", Gate::Thresholds { smact, .. }, ..) => *smact = share()?,
        ("gate.smact", Gate::Score { limit, .. }, ..) => *limit = share()?,
        ("gate.smocc", Gate::Thresholds { smocc, .. }, ..) => *smocc = share()?,
        ("gate.drama", Gate::Thresholds { drama, .. }, ..) => *drama = share()?,
        ("gate.smact" | "gate.smocc" | "gate.drama", ..) => return none("such gate"),
        ("memory.floor", _, MemoryScreen::Floor(floor), _) => *floor = mib,
        ("memory.floor", ..) => return none("floor of memory"),
        ("memory.guard", _, MemoryScreen::Forecast { guard, .. }, _) => *guard = mib,
        ("memory.guard", ..) => return none("guard on a forecast"),
        ("progress.floor" | "progress.gain", ..) => match &mut policy.progress {
            Some(Progress { floor, .. }) if key == "progress.floor" => *floor = share()?,
            Some(Progress { gain, .. }) => *gain = share()?,
            None => return none("rule on predicted progress"),
        },
        ("bound", ..) if value == 0.0 => return Err(wrong("expected more than 0")),
        ("bound", ..) if policy.line.is_by_length() => policy.bound = fraction()?,
        ("slack", ..) if policy.line.is_by_length() => policy.slack = fraction()?,
        ("bound" | "slack", ..) => return none("bound on the wait"),
        ("memory.reserve", ..) => policy.reserve = mib,
        ("most-jobs", ..) if policy.order == Order::Exclusive => return none("neighbours"),
        ("most-jobs", ..) if value < 1.0 => return Err(wrong("expected 1 or more")),
        ("most-jobs", ..) => policy.most_jobs = Some(whole()?),
        ("pack.sum", _, _, Pack::Scores { sum }) => *sum = whole()?,
        ("pack.sum", _, _, Pack::Utilisation { sum }) => *sum = fraction()?,
        ("pack.sum", ..) => return none("rule on which jobs go together"),
        ("backfill", ..) => policy.backfill = (value > 0.0).then_some(seconds),
        ("window", ..) => options.window = seconds.max(Millis::secs(1)),
        ("margin", ..) => options.margin_percent = whole()?.into(),
        ("max-retries", ..) => options.max_retries = whole()?,
        ("suspend", ..) if value > 1.0 => return Err(wrong("expected 0 or 1")),
        ("suspend", ..) => options.suspends = whole()? == 1,
        ("max-slowdown", ..) if policy.order == Order::Exclusive => return none("neighbours"),
        ("max-slowdown", ..) => {
            let factor =
                (1.0..=1000.0).contains(&value).then(|| Fraction::percent((value * 100.0).round() as u32));
            options.max_slowdown = Some(factor.ok_or_else(|| wrong("expected 1 to 1000"))?);
        }
        _ => return Err(SetError::Lacks(format!("`{key}` can't be varied"))),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use carma_core::policy::presets;
    use proptest::prelude::*;

    #[test]
    fn a_range_includes_its_end() {
        let axis = Axis::parse("gate.smact=0.5..0.9:0.05").unwrap();
        assert_eq!(axis.values, [0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9]);
        assert_eq!(Axis::parse("memory.floor=1024, 5120").unwrap().values, [1024.0, 5120.0]);
    }

    #[test]
    fn a_grid_spans_its_axes() {
        let axes = ["gate.smact=0.5,0.6", "window=10,20,30"].map(|a| Axis::parse(a).unwrap());
        let points = grid(&axes).unwrap();
        assert_eq!(points.len(), 6);
        assert_eq!(points[1], [("gate.smact", 0.5), ("window", 20.0)]);
        assert_eq!(grid(&[]).unwrap(), [Vec::new()]);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, part) in [
            ("gate.smact", "no `=`"),
            ("gate.sm=1..2:1", "`gate.sm` is none of"),
            ("gate.smact=0.5..0.9", "no step"),
            ("gate.smact=0.9..0.5:0.1", "rise"),
            ("gate.smact=0.5..0.9:0", "rise"),
            ("window=-1..3:1", "`-1`"),
            ("window=0..1e9:1", "more than"),
            ("window=nan", "`nan`"),
        ] {
            let why = Axis::parse(text).unwrap_err();
            assert!(why.contains(part), "{why}");
        }
        let mut options = Options { policy: presets::by_name("or-rr").unwrap(), ..Options::default() };
        let lacks = set(&mut options, "gate.smact", 0.5).unwrap_err();
        assert!(matches!(&lacks, SetError::Lacks(why) if why.contains("no such gate")), "{lacks}");
        let mut by_length = Options { policy: presets::by_name("adaptive").unwrap(), ..Options::default() };
        for (key, value) in [
            ("progress.floor", 2.0),
            ("progress.gain", 1.1),
            ("bound", 0.0),
            ("most-jobs", 1.5),
            ("suspend", 0.5),
            ("suspend", 2.0),
        ] {
            let wrong = set(&mut by_length, key, value).unwrap_err();
            assert!(matches!(&wrong, SetError::Value(why) if why.contains("expected")), "{wrong}");
        }
        let wrong = set(&mut options, "most-jobs", 0.0).unwrap_err();
        assert_eq!(wrong, SetError::Value("most-jobs=0: expected 1 or more".into()));
        let wide = vec![Axis::parse("window=1..200:1").unwrap(); 2];
        assert!(grid(&wide).is_err());
    }

    proptest! {
        #[test]
        fn no_text_breaks_it(text in ".{0,40}", key in 0..KEYS.len(), rest in "[0-9.,:eE+-]{0,20}") {
            let _ = Axis::parse(&text);
            if let Ok(axis) = Axis::parse(&format!("{}={rest}", KEYS[key].0)) {
                for name in presets::NAMES {
                    let mut options = Options { policy: presets::by_name(name).unwrap(), ..Options::default() };
                    for value in &axis.values {
                        let _ = set(&mut options, axis.key, *value);
                    }
                }
            }
        }
    }
}
