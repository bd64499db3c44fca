//! `[limits]`: what one user may have, with overrides for users and groups.

use super::keys::{Key, Kind, Section, Value, section};
use super::{Mistake, Size};
use carma_api::parse;
use carma_core::policy::Allowance;
use carma_core::units::MiB;
use serde::{Deserialize, Deserializer, de};
use std::collections::BTreeMap;
use std::fmt;

/// Jobs that one user may have waiting.
const PENDING_JOBS: u32 = 10_000;
/// Environment of one job: the largest that were seen are below 64 KiB.
const ENVIRONMENT: MiB = MiB(1);
/// Environments of all live jobs of a user, each stored once, and the rest of their submissions.
const ENVIRONMENT_TOTAL: MiB = MiB(64);
/// A job's log.
const LOG_SIZE: MiB = MiB::gib(1);
/// Priorities, lowest and highest.
const PRIORITY: (i32, i32) = (-1000, 0);

/// Shares that make sense: with more, a user of a share of 1 would hardly get anything.
const SHARES: std::ops::RangeInclusive<u32> = 1..=1000;

/// An amount of energy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Joules(pub u64);

/// A limit, or the word `none`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Most<T> {
    /// So much.
    At(T),
    /// No limit.
    Unlimited,
}

impl<T> Most<T> {
    fn at(self) -> Option<T> {
        match self {
            Self::At(value) => Some(value),
            Self::Unlimited => None,
        }
    }
}

impl<'de> Deserialize<'de> for Most<u32> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Most<u32>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number from 0 to 4294967295, or \"none\"")
            }
            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Self::Value, E> {
                u32::try_from(value)
                    .map(Most::At)
                    .map_err(|_| E::invalid_value(de::Unexpected::Signed(value), &self))
            }
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Self::Value, E> {
                u32::try_from(value)
                    .map(Most::At)
                    .map_err(|_| E::invalid_value(de::Unexpected::Unsigned(value), &self))
            }
            fn visit_str<E: de::Error>(self, value: &str) -> Result<Self::Value, E> {
                match value {
                    "none" => Ok(Most::Unlimited),
                    other => Err(E::invalid_value(de::Unexpected::Str(other), &self)),
                }
            }
        }
        from.deserialize_any(Visitor)
    }
}

impl<'de> Deserialize<'de> for Most<Joules> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Most<Joules>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of joules, an amount of energy (\"5 kWh\", \"18 MJ\"), or \"none\"")
            }
            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Self::Value, E> {
                let joules = u64::try_from(value);
                joules
                    .map(|joules| Most::At(Joules(joules)))
                    .map_err(|_| E::invalid_value(de::Unexpected::Signed(value), &self))
            }
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Self::Value, E> {
                Ok(Most::At(Joules(value)))
            }
            fn visit_str<E: de::Error>(self, value: &str) -> Result<Self::Value, E> {
                match value {
                    "none" => Ok(Most::Unlimited),
                    other => parse::energy(other).map(|joules| Most::At(Joules(joules))).map_err(E::custom),
                }
            }
        }
        from.deserialize_any(Visitor)
    }
}

impl<'de> Deserialize<'de> for Most<MiB> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        if text == "none" {
            return Ok(Self::Unlimited);
        }
        Size::try_from(text).map(|Size(mib)| Self::At(mib)).map_err(de::Error::custom)
    }
}

/// The keys of `[limits]`, of `[limits.user.NAME]` and of `[limits.group.NAME]`, with their meaning, once.
macro_rules! limits {
    ($(#[$($attribute:tt)+])* pub struct $name:ident $section:literal $($rest:tt)*) => {
        section! {
            $(#[$($attribute)+])*
            pub struct $name $section {
                /// Jobs that wait or are held.
                pub pending_jobs: Most<u32> = Is("10000"),
                /// Jobs that run at once: more wait.
                pub running_jobs: Most<u32> = Is("\"none\""),
                /// GPUs of all of them, one that two of them share counted twice: more wait.
                pub gpus: Most<u32> = Is("\"none\""),
                /// GPU-hours in each `queue.quota-period`, those on shared GPUs in part (docs/fairness.md): beyond, jobs
                /// wait for the next one. Those that run go on.
                pub gpu_hours: Most<u32> = Is("\"none\""),
                /// Energy of the GPUs in each such period, as far as their counters tell: beyond, jobs wait.
                pub energy: Most<Joules> = Is("\"none\""),
                /// How much of the GPUs is the user's where several users wait, over what is another's, under the policy
                /// `adaptive`; 1 to 1000.
                pub share: u32 = Is("1"),
                /// Environment of one job.
                pub environment: Most<MiB> = Is("\"1M\""),
                /// Environments of all jobs that are not over, equal ones counted once, and what else was submitted with
                /// each: command, paths, estimates.
                pub environment_total: Most<MiB> = Is("\"64M\""),
                /// Log of one job: beyond, the middle is cut out.
                pub log_size: Most<MiB> = Is("\"1G\""),
                /// The lowest that `--priority` may say.
                pub priority_min: i32 = Is("-1000"),
                /// The highest that `--priority` may say; above 0 a job goes before those of all others.
                pub priority_max: i32 = Is("0"),
            } $($rest)*
        }
    };
}

limits! {
    /// Changes to the limits of the users whom the section is about.
    #[derive(Copy, PartialEq, Eq)]
    pub struct LimitSet "limits"
}

limits! {
    /// What one user may have; `"none"`: no limit. `[limits.user.NAME]` has the same keys for one user,
    /// `[limits.group.NAME]` for the members of a group, by name or number: what is said of a user goes before what is said of a group, and
    /// of several groups the more generous number counts. Root, operators and the user whom the daemon runs as have no
    /// limits but those of their own `[limits.user.NAME]`.
    pub struct LimitsConfig "limits" and {
        /// Overrides for users, by name or number.
        pub user: BTreeMap<String, LimitSet>,
        /// Overrides for members of groups, by name or number.
        pub group: BTreeMap<String, LimitSet>,
    }
}

/// What one user may have. `None`: no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UserLimits {
    /// Jobs that wait or are held.
    pub pending_jobs: Option<u32>,
    /// Jobs that run at once.
    pub running_jobs: Option<u32>,
    /// GPUs of all of them.
    pub gpus: Option<u32>,
    /// GPU-hours in a quota period.
    pub gpu_hours: Option<u32>,
    /// Energy in a quota period.
    pub energy: Option<Joules>,
    /// Share where several wait.
    pub share: u32,
    /// Environment of one job.
    pub environment: Option<MiB>,
    /// Environments of all jobs that are not over, and what else was submitted with them.
    pub environment_total: Option<MiB>,
    /// Log of one job.
    pub log_size: Option<MiB>,
    /// Lowest priority.
    pub priority_min: i32,
    /// Highest priority.
    pub priority_max: i32,
}

impl Default for UserLimits {
    fn default() -> Self {
        Self {
            pending_jobs: Some(PENDING_JOBS),
            running_jobs: None,
            gpus: None,
            gpu_hours: None,
            energy: None,
            share: 1,
            environment: Some(ENVIRONMENT),
            environment_total: Some(ENVIRONMENT_TOTAL),
            log_size: Some(LOG_SIZE),
            priority_min: PRIORITY.0,
            priority_max: PRIORITY.1,
        }
    }
}

impl UserLimits {
    /// What root and operators have.
    pub const NONE: Self = Self {
        pending_jobs: None,
        running_jobs: None,
        gpus: None,
        gpu_hours: None,
        energy: None,
        share: 1,
        environment: None,
        environment_total: None,
        log_size: None,
        priority_min: i32::MIN,
        priority_max: i32::MAX,
    };

    /// The part that placements must keep.
    #[must_use]
    pub fn allowance(&self) -> Allowance {
        Allowance {
            jobs: self.running_jobs,
            gpus: self.gpus,
            gpu_hours: self.gpu_hours,
            energy_j: self.energy.map(|energy| energy.0),
            share: self.share,
        }
    }

    fn with(self, set: &LimitSet) -> Self {
        fn over<T>(base: Option<T>, set: Option<Most<T>>) -> Option<T> {
            set.map_or(base, Most::at)
        }
        Self {
            pending_jobs: over(self.pending_jobs, set.pending_jobs),
            running_jobs: over(self.running_jobs, set.running_jobs),
            gpus: over(self.gpus, set.gpus),
            gpu_hours: over(self.gpu_hours, set.gpu_hours),
            energy: over(self.energy, set.energy),
            share: set.share.unwrap_or(self.share),
            environment: over(self.environment, set.environment),
            environment_total: over(self.environment_total, set.environment_total),
            log_size: over(self.log_size, set.log_size),
            priority_min: set.priority_min.unwrap_or(self.priority_min),
            priority_max: set.priority_max.unwrap_or(self.priority_max),
        }
    }
}

impl LimitSet {
    /// Of each limit the more generous one.
    fn or_more(self, other: &Self) -> Self {
        fn least(a: Option<i32>, b: Option<i32>) -> Option<i32> {
            a.into_iter().chain(b).min()
        }
        Self {
            pending_jobs: self.pending_jobs.max(other.pending_jobs),
            running_jobs: self.running_jobs.max(other.running_jobs),
            gpus: self.gpus.max(other.gpus),
            gpu_hours: self.gpu_hours.max(other.gpu_hours),
            energy: self.energy.max(other.energy),
            share: self.share.max(other.share),
            environment: self.environment.max(other.environment),
            environment_total: self.environment_total.max(other.environment_total),
            log_size: self.log_size.max(other.log_size),
            priority_min: least(self.priority_min, other.priority_min),
            priority_max: self.priority_max.max(other.priority_max),
        }
    }

    fn check(&self, at: &[&str], base: &UserLimits) -> Result<(), Mistake> {
        let whose = at.join(".");
        let mistake = |key: &str, text: String| Err(Mistake::new(&[at, &[key]].concat(), text));
        let limits = base.with(self);
        if limits.priority_min > limits.priority_max {
            let (min, max) = (limits.priority_min, limits.priority_max);
            let text = format!("{whose}: priority-min {min} is above priority-max {max}");
            let key = if self.priority_min.is_some() { "priority-min" } else { "priority-max" };
            return mistake(key, text);
        }
        if let Some(share) = self.share.filter(|share| !SHARES.contains(share)) {
            let (least, most) = (SHARES.start(), SHARES.end());
            return mistake("share", format!("{whose}: share {share} is not a share from {least} to {most}"));
        }
        Ok(())
    }
}

impl LimitsConfig {
    const fn for_all(&self) -> LimitSet {
        LimitSet {
            pending_jobs: self.pending_jobs,
            running_jobs: self.running_jobs,
            gpus: self.gpus,
            gpu_hours: self.gpu_hours,
            energy: self.energy,
            share: self.share,
            environment: self.environment,
            environment_total: self.environment_total,
            log_size: self.log_size,
            priority_min: self.priority_min,
            priority_max: self.priority_max,
        }
    }

    /// What holds for users who are named nowhere.
    #[must_use]
    pub fn for_all_users(&self) -> UserLimits {
        UserLimits::default().with(&self.for_all())
    }

    /// What holds for a user: what is said of the user beats what is said of a group; of several groups the more
    /// generous word counts. `exempt`: root, an operator, or whom the daemon runs as, who have no limits but those of
    /// their own section.
    #[must_use]
    pub fn of(&self, uid: u32, name: &str, groups: &[String], exempt: bool) -> UserLimits {
        let own = self.user.get(name).or_else(|| self.user.get(&uid.to_string()));
        let own = own.copied().unwrap_or_default();
        if exempt {
            return UserLimits::NONE.with(&own);
        }
        let of_groups = groups.iter().filter_map(|group| self.group.get(group));
        let of_groups = of_groups.fold(LimitSet::default(), LimitSet::or_more);
        self.for_all_users().with(&of_groups).with(&own)
    }

    /// What makes no sense.
    ///
    /// # Errors
    /// The first value that makes no sense.
    pub fn check(&self) -> Result<(), Mistake> {
        self.for_all().check(&["limits"], &UserLimits::default())?;
        let base = self.for_all_users();
        for (name, set) in &self.user {
            set.check(&["limits", "user", name], &base)?;
        }
        for (name, set) in &self.group {
            set.check(&["limits", "group", name], &base)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> LimitsConfig {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn users_beat_groups_and_the_more_generous_group_counts() {
        let limits = parse(
            "pending-jobs = 5\ngpus = 2\n[user.alice]\ngpus = 'none'\n[group.students]\npending-jobs = 3\npriority-max = 2\n\
             [group.course]\npending-jobs = 9\nlog-size = '2G'\n[group.poor]\npending-jobs = 0\ngpus = 1",
        );
        let groups = ["students".to_owned(), "course".to_owned()];
        let bob = limits.of(7, "bob", &groups, false);
        assert_eq!((bob.pending_jobs, bob.gpus, bob.log_size), (Some(9), Some(2), Some(MiB::gib(2))));
        assert_eq!((bob.priority_min, bob.priority_max), (-1000, 2));
        let alice = limits.of(8, "alice", &["poor".to_owned()], false);
        assert_eq!((alice.pending_jobs, alice.gpus), (Some(0), None));
        let limits = parse(
            "share = 2\ngpu-hours = 10\n[user.alice]\nenergy = 'none'\n[group.paying]\nshare = 3\nenergy = '5 kWh'\n\
             [group.course]\nshare = 1\nenergy = 9\ngpu-hours = 'none'",
        );
        let groups = ["paying".to_owned(), "course".to_owned()];
        let bob = limits.of(7, "bob", &groups, false).allowance();
        assert_eq!((bob.share, bob.gpu_hours, bob.energy_j), (3, None, Some(18_000_000)));
        let alice = limits.of(8, "alice", &["course".to_owned()], false).allowance();
        assert_eq!((alice.share, alice.energy_j), (1, None));
        let carol = limits.of(9, "carol", &[], false).allowance();
        assert_eq!((carol.share, carol.gpu_hours), (2, Some(10)));
        let limits = parse("pending-jobs = 5");
        assert_eq!(limits.of(9, "carol", &[], false).pending_jobs, Some(5));
        assert_eq!(limits.of(0, "root", &groups, true), UserLimits::NONE);
        // By number, where the name has no section.
        let limits = parse("[user.9]\ngpus = 1\n[user.8]\ngpus = 2\n[user.alice]\ngpus = 3");
        assert_eq!(limits.of(9, "carol", &[], false).gpus, Some(1));
        assert_eq!(limits.of(8, "alice", &[], false).gpus, Some(3));
    }

    #[test]
    fn mistakes_are_named() {
        for (text, wanted) in [
            ("gpus = -1", "invalid value: integer `-1`, expected a number from 0 to 4294967295, or \"none\""),
            ("gpus = 'many'", "expected a number from 0"),
            ("environment = 1000", "expected a string"),
            ("environment = '1'", "has no unit"),
            ("energy = '5'", "write 5 kWh or 5 J"),
            ("energy = 'much'", "not an amount of energy"),
            ("energy = -1", "expected a number of joules"),
            ("[user.a]\ngpu = 1", "unknown field `gpu`"),
        ] {
            let error = toml::from_str::<LimitsConfig>(text).unwrap_err().to_string();
            assert!(error.contains(wanted), "{text}: {error}");
        }
        for (text, at, wanted) in [
            ("priority-min = 1", "limits.priority-min", "limits: priority-min 1 is above priority-max 0"),
            (
                "[user.a]\nshare = 0",
                "limits.user.a.share",
                "limits.user.a: share 0 is not a share from 1 to 1000",
            ),
            (
                "[group.a]\npriority-max = -2000",
                "limits.group.a.priority-max",
                "limits.group.a: priority-min",
            ),
        ] {
            let mistake = parse(text).check().unwrap_err();
            assert!(mistake.at.join(".") == at && mistake.what.starts_with(wanted), "{mistake:?}");
        }
    }
}
