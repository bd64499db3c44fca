//! Who the users of this machine are: names, groups, authority and limits, from the system's user database.
//!
//! The database may be a directory service that answers slowly or not at all, so answers are kept for a moment, and
//! nobody but the asking request waits for one.

use crate::config::limits::{LimitsConfig, UserLimits};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The group whose members are operators where the configuration names none.
const OPERATORS: &str = "carma-operators";
/// How long an answer counts.
const FRESH: Duration = Duration::from_secs(10);
/// Users remembered at most.
const REMEMBERED: usize = 4096;

/// A user as carma sees one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Person {
    /// Login name; the number where there is none.
    pub name: Arc<str>,
    /// Primary group.
    pub gid: u32,
    /// May do what root may, by membership in the operators' group.
    pub operator: bool,
    /// What the user may have.
    pub limits: UserLimits,
}

/// The user database, with carma's configuration laid over it.
pub struct People {
    /// Name or number of the operators' group; `None`: nobody is one.
    operators: Option<String>,
    limits: LimitsConfig,
    /// The user that the daemon runs as.
    me: u32,
    known: Mutex<HashMap<u32, (Instant, Person)>>,
}

impl People {
    /// People by the configuration. A daemon of one user has no operators: nobody else reaches it.
    #[must_use]
    pub fn new(operators: Option<&str>, limits: LimitsConfig, me: u32) -> Self {
        let operators = (me == 0).then(|| operators.unwrap_or(OPERATORS).to_owned());
        Self { operators, limits, me, known: Mutex::default() }
    }

    /// Whether the operators' group exists; says which it is. For a word at the start.
    #[must_use]
    pub fn operators(&self) -> Option<(&str, bool)> {
        self.operators.as_deref().map(|group| (group, group_id(group).is_some()))
    }

    /// What was found out of a user a moment ago; never blocks.
    #[must_use]
    pub fn known(&self, uid: u32) -> Option<Person> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&uid).filter(|(at, _)| at.elapsed() < FRESH).map(|(_, person)| person.clone())
    }

    /// What is known of a user. May block for as long as the user database does. `gid`: for a user that it does not
    /// know.
    #[must_use]
    pub fn look_up(&self, uid: u32, gid: u32) -> Person {
        if let Some(person) = self.known(uid) {
            return person;
        }
        let person = self.ask(uid, gid);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= REMEMBERED {
            known.retain(|_, (at, _)| at.elapsed() < FRESH);
        }
        if known.len() < REMEMBERED {
            known.insert(uid, (Instant::now(), person.clone()));
        }
        person
    }

    fn ask(&self, uid: u32, gid: u32) -> Person {
        let user = uzers::get_user_by_uid(uid);
        let name: Arc<str> =
            user.as_ref().map_or_else(|| uid.to_string().into(), |u| u.name().to_string_lossy().into());
        // The login group, as after a login: the client may run under another one.
        let gid = user.as_ref().map_or(gid, uzers::User::primary_group_id);
        let wanted = self.operators.is_some() || !self.limits.group.is_empty();
        let groups = match &user {
            Some(user) if wanted => uzers::get_user_groups(user.name(), gid).unwrap_or_default(),
            _ => Vec::new(),
        };
        let operator = self
            .operators
            .as_deref()
            .and_then(group_id)
            .is_some_and(|operators| groups.iter().any(|group| group.gid() == operators));
        let exempt = operator || uid == 0 || uid == self.me;
        let groups: Vec<String> = groups.iter().map(|g| g.name().to_string_lossy().into_owned()).collect();
        let limits = self.limits.of(&name, &groups, exempt);
        Person { name, gid, operator, limits }
    }
}

/// The number of a group by its name or number, if there is such a group.
fn group_id(group: &str) -> Option<u32> {
    let by_name = uzers::get_group_by_name(group);
    let by_number = || uzers::get_group_by_gid(group.parse().ok()?);
    by_name.or_else(by_number).map(|group| group.gid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_the_group_are_operators_and_a_user_that_nobody_knows_is_none() {
        let me = rustix::process::getuid().as_raw();
        let root = People::new(Some("root"), LimitsConfig::default(), 0);
        assert!(root.look_up(0, 0).operator, "root is a member of its group");
        let by_number = People::new(Some("0"), LimitsConfig::default(), 0);
        assert!(by_number.look_up(0, 0).operator);
        let none = root.look_up(4_000_000_000, 77);
        assert_eq!((none.operator, none.gid, &*none.name), (false, 77, "4000000000"));
        assert_eq!(none.limits, UserLimits::default());
        assert_eq!(root.look_up(0, 0).limits, UserLimits::NONE);
        let missing = People::new(Some("no-such-group-here"), LimitsConfig::default(), 0);
        assert_eq!(missing.operators(), Some(("no-such-group-here", false)));
        assert!(!missing.look_up(me, 0).operator);
        assert_eq!(People::new(Some("root"), LimitsConfig::default(), 1000).operators(), None);
    }
}
