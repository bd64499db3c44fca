//! Policies as they are asked for: a preset, what it is told, how jobs share.

use crate::Error;
use carma_core::model::Estimator;
use carma_core::model::SharingMode;
use carma_core::policy::{ForecastSource, MemoryScreen, Order, presets};

/// A policy to play: `adaptive`, `adaptive+history`, `or-magm@time-slice`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wanted {
    /// As it was written.
    pub label: String,
    /// The preset.
    pub(super) name: String,
    /// The daemon has seen the trace once.
    pub(super) history: bool,
    /// How jobs share; `None`: as all others.
    pub(super) sharing: Option<SharingMode>,
    /// What of a job's memory carma is told.
    pub(super) told: Told,
}

/// What carma is told of the memory of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Told {
    /// Nothing.
    Nothing,
    /// What its owner declares.
    Declared,
    /// What was measured: the oracle.
    Measured,
}

impl std::str::FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (rest, sharing) = match text.split_once('@') {
            None => (text, None),
            Some((rest, "mps")) => (rest, Some(SharingMode::Mps)),
            Some((rest, "time-slice")) => (rest, Some(SharingMode::TimeSlice)),
            Some((_, other)) => {
                return Err(format!(
                    "'{}' is no way of sharing; write @mps or @time-slice",
                    other.escape_debug()
                ));
            }
        };
        let mut parts = rest.split('+');
        let name = parts.next().unwrap_or_default();
        let policy = presets::by_name(name).ok_or_else(|| {
            format!("no policy is called '{}'; there are: {}", name.escape_debug(), presets::NAMES.join(", "))
        })?;
        let mut told = match policy.memory {
            MemoryScreen::Forecast { source: ForecastSource::By(Estimator::Measured), .. } => Told::Measured,
            MemoryScreen::Forecast { source: ForecastSource::By(_), .. } => {
                return Err(format!(
                    "{name} goes by estimates of models that are described, and the tasks of a bench are commands; \
                     `carma simulate` plays it"
                ));
            }
            _ => Told::Nothing,
        };
        let mut history = false;
        for part in parts {
            match part {
                "history" => history = true,
                "declared" if told == Told::Nothing => told = Told::Declared,
                "declared" => return Err(format!("{name} is told what was measured already")),
                other => {
                    return Err(format!(
                        "'+{}' is unknown; +history plays with what an earlier play taught, +declared tells what memory \
                         each task needs",
                        other.escape_debug()
                    ));
                }
            }
        }
        if policy.order == Order::Exclusive && (history || sharing.is_some()) {
            return Err(format!(
                "{} is {name}, whose jobs share no GPU and come in their order: write {name}",
                text.escape_debug()
            ));
        }
        Ok(Self { label: text.to_owned(), name: name.to_owned(), history, sharing, told })
    }
}

impl Wanted {
    /// The play that teaches this one: the same without history.
    pub(super) fn teacher(&self) -> Self {
        Self { label: self.label.replacen("+history", "", 1), history: false, ..self.clone() }
    }
}

/// One play that is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Planned {
    pub(super) policy: Wanted,
    /// From 1.
    pub(super) repeat: u32,
}

impl std::fmt::Display for Planned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, play {}", self.policy.label, self.repeat)
    }
}

/// The order of the plays: every policy once, then again, beginning with another each time, so that drift of the machine hits
/// all alike. What history rests on comes right before it.
pub(super) fn order(policies: &[Wanted], repeats: u32) -> Result<Vec<Planned>, Error> {
    // A policy, and the same with history.
    let mut groups: Vec<Vec<Wanted>> = Vec::new();
    for policy in policies {
        let teacher = policy.teacher();
        let at = groups.iter().position(|group| group.first() == Some(&teacher));
        let group = match at {
            Some(at) => &mut groups[at],
            None => {
                groups.push(vec![teacher]);
                let last = groups.len() - 1;
                &mut groups[last]
            }
        };
        if policy.history && !group.contains(policy) {
            group.push(policy.clone());
        }
    }
    if groups.is_empty() {
        return Err(Error::usage("no policy is named").hint("--policy exclusive --policy adaptive, say"));
    }
    let mut plays = Vec::new();
    for repeat in 0..repeats {
        let first = repeat as usize % groups.len();
        let turned = groups.iter().cycle().skip(first).take(groups.len());
        plays.extend(turned.flatten().map(|policy| Planned { policy: policy.clone(), repeat: repeat + 1 }));
    }
    Ok(plays)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(text: &str) -> Wanted {
        text.parse().unwrap()
    }

    #[test]
    fn policies_are_read() {
        let history = wanted("adaptive+history");
        assert!(history.history && history.told == Told::Nothing && history.name == "adaptive");
        assert_eq!(history.teacher(), wanted("adaptive"));
        assert_eq!(wanted("oracle-magm").told, Told::Measured);
        assert_eq!(wanted("lucid").told, Told::Measured);
        let all = wanted("adaptive:makespan+declared+history@time-slice");
        assert_eq!((all.told, all.sharing), (Told::Declared, Some(SharingMode::TimeSlice)));
        assert_eq!(all.teacher().label, "adaptive:makespan+declared@time-slice");
        for (text, part) in [
            ("fifo", "no policy is called 'fifo'"),
            ("", "no policy is called ''"),
            ("../x", "no policy"),
            ("adaptive+fast", "'+fast' is unknown"),
            ("adaptive+", "'+' is unknown"),
            ("adaptive@mig", "no way of sharing"),
            ("oracle-ff+declared", "measured already"),
            ("est-magm:horus", "estimates"),
            ("exclusive@mps", "exclusive@mps is exclusive"),
            ("exclusive@time-slice", "share no GPU"),
            ("exclusive+history", "write exclusive"),
        ] {
            let why = text.parse::<Wanted>().unwrap_err();
            assert!(why.contains(part), "{text}: {why}");
        }
    }

    #[test]
    fn plays_are_interleaved_and_history_follows_its_teacher() {
        let policies = ["exclusive", "adaptive+history", "or-magm"].map(wanted);
        let labels = |repeats| -> Vec<String> {
            let plays = order(&policies, repeats).unwrap();
            plays.iter().map(|p| format!("{}{}", p.policy.label, p.repeat)).collect()
        };
        assert_eq!(
            labels(2),
            [
                "exclusive1",
                "adaptive1",
                "adaptive+history1",
                "or-magm1",
                "adaptive2",
                "adaptive+history2",
                "or-magm2",
                "exclusive2"
            ]
        );
        assert!(order(&[], 1).is_err());
    }
}
