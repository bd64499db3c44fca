//! What a job waits for that comes by time alone, whatever ends.

use super::{NoGpu, Reason, Refusal};
use crate::units::Millis;

/// What comes by time alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Soon {
    /// What, after "waits for".
    pub what: String,
    /// How long that takes from now on; `None`: that is not known.
    pub left: Option<Millis>,
}

impl Reason {
    /// What a job with this reason waits for, where that comes by time alone. What is looked at afterwards may keep it out still.
    #[must_use]
    pub fn soon(&self, now: Millis) -> Option<Soon> {
        match self {
            Self::NoGpu { gpus, detail, .. } if detail.too_few_left(*gpus).is_none() => detail.soon(),
            Self::Pause { until, .. } => {
                Some(Soon { what: "the next try to start it".to_owned(), left: Some(until.since(now)) })
            }
            _ => None,
        }
    }
}

impl NoGpu {
    fn soon(&self) -> Option<Soon> {
        let (index, refusal) = self.closest()?;
        match refusal {
            Refusal::Starting { job, active_for, window } => Some(Soon {
                what: match active_for {
                    Some(_) => format!("job {job} on GPU {index} to have been active for {window}"),
                    None => {
                        format!("job {job} on GPU {index} to have been active for {window}, as it is not yet")
                    }
                },
                left: active_for.map(|active| window.since(active)),
            }),
            Refusal::Rising { job, window, forecast: _, holds: _ } => Some(Soon {
                what: format!("the memory of job {job} on GPU {index} to have stood still for {window}"),
                left: None,
            }),
            Refusal::MpsCooldown { left } => {
                Some(Soon { what: format!("the MPS server of GPU {index}"), left: Some(*left) })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::JobId;
    use std::sync::Arc;

    fn soon(refusals: Vec<(u32, Refusal)>) -> Option<(String, Option<u64>)> {
        let detail = Arc::new(NoGpu { refusals, ..NoGpu::default() });
        let reason = Reason::NoGpu { gpus: 1, need: None, guard: crate::units::MiB(0), source: None, detail };
        reason.soon(Millis::secs(100)).map(|soon| (soon.what, soon.left.map(|left| left.0 / 1000)))
    }

    #[test]
    fn what_comes_by_time_alone() {
        let window = Millis::secs(30);
        let starting = |active_for| Refusal::Starting { job: JobId(1), active_for, window };
        let told = soon(vec![(0, Refusal::Gone), (1, starting(Some(Millis::secs(24))))]).unwrap();
        assert_eq!(told, ("job 1 on GPU 1 to have been active for 30 s".to_owned(), Some(6)));
        let told = soon(vec![(1, starting(None))]).unwrap();
        assert!(told.0.ends_with("active for 30 s, as it is not yet") && told.1.is_none(), "{told:?}");
        let rising = Refusal::Rising {
            job: JobId(2),
            holds: crate::units::MiB(9),
            forecast: crate::units::MiB(8),
            window,
        };
        assert_eq!(
            soon(vec![(0, rising)]),
            Some(("the memory of job 2 on GPU 0 to have stood still for 30 s".to_owned(), None))
        );
        let cooling = Refusal::MpsCooldown { left: Millis::secs(4) };
        assert_eq!(soon(vec![(0, cooling)]), Some(("the MPS server of GPU 0".to_owned(), Some(4))));
        let pause = Reason::Pause { error: String::new(), until: Millis::secs(103) };
        assert_eq!(pause.soon(Millis::secs(100)).unwrap().left, Some(Millis::secs(3)));
        // An end, or more memory, is what such a job waits for.
        assert_eq!(soon(vec![(0, Refusal::Exclusive { job: JobId(1) })]), None);
        assert_eq!(soon(vec![]), None);
    }
}
