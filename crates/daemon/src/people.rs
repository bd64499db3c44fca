//! Who the users of this machine are: names, groups, authority and limits, from the system's user database.
//!
//! The database may be a directory service that answers slowly or not at all, so answers are kept for a moment, and
//! nobody but the asking request waits for one. An error is no answer: limits of one's own and of groups would be lost. It
//! gives nobody authority either, and refuses only those whose limits are not known without an answer.
//!
//! No error of `getpwuid_r` and `getgrnam_r` is read as "there is none", although their manual pages allow it: glibc answers
//! that without an error, and `ENOENT` is what the client of an LDAP directory tells that is down.

use crate::config::limits::{LimitsConfig, UserLimits};
use nix::unistd::{Gid, Uid, User, getgrouplist};
use std::collections::{BTreeSet, HashMap};
use std::ffi::{CString, c_char, c_int};
use std::io;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The group whose members are operators where the configuration names none.
const OPERATORS: &str = "carma-operators";
/// How long an answer counts.
const FRESH: Duration = Duration::from_secs(10);
/// Room for the entry of a group, bytes: at first, and at most. Members have eight bytes or more each.
const ENTRY: (usize, usize) = (16 << 10, 64 << 20);
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

/// What the user database is asked.
trait Database: Send + Sync {
    /// Name and login group of a user; `None`: there is none.
    fn user(&self, uid: u32) -> io::Result<Option<(String, u32)>>;
    /// Numbers of all groups of a user.
    fn groups_of(&self, name: &str, gid: u32) -> io::Result<Vec<u32>>;
    /// The number of a group by its name or number; `None`: there is none.
    fn group(&self, group: &str) -> io::Result<Option<u32>>;
}

/// The system's (`nsswitch.conf`).
struct System;

impl Database for System {
    fn user(&self, uid: u32) -> io::Result<Option<(String, u32)>> {
        Ok(User::from_uid(Uid::from_raw(uid))?.map(|user| (user.name, user.gid.as_raw())))
    }

    fn groups_of(&self, name: &str, gid: u32) -> io::Result<Vec<u32>> {
        let name = CString::new(name).map_err(io::Error::other)?;
        Ok(getgrouplist(&name, Gid::from_raw(gid))?.into_iter().map(Gid::as_raw).collect())
    }

    fn group(&self, group: &str) -> io::Result<Option<u32>> {
        // No group has such a name.
        let Ok(name) = CString::new(group) else { return Ok(None) };
        #[expect(unsafe_code, reason = "nix gives up at entries of 1 MiB, of any group of the file")]
        let by_name = |entry: *mut _, room: *mut _, size, found: *mut _| {
            // SAFETY: the name ends with a zero, and the rest is as `entry_of` promises.
            unsafe { libc::getgrnam_r(name.as_ptr(), entry, room, size, found) }
        };
        let found = entry_of(by_name)?;
        let (None, Ok(gid)) = (found, group.parse()) else { return Ok(found) };
        by_number(gid)
    }
}

/// The number of a group, if there is one of that number.
fn by_number(gid: u32) -> io::Result<Option<u32>> {
    #[expect(unsafe_code, reason = "nix gives up at entries of 1 MiB, of any group of the file")]
    entry_of(|entry, room, size, found| {
        // SAFETY: as `entry_of` promises.
        unsafe { libc::getgrgid_r(gid, entry, room, size, found) }
    })
}

/// Whether the system's database tells of all groups: `getgrouplist` leaves those of a service out that fails, without an error.
/// May block for as long as the database does.
///
/// # Errors
/// The database's, asked for a number that no group is given: the last service was asked for it, too.
pub(crate) fn tells_groups() -> io::Result<()> {
    const NOBODYS: u32 = u32::MAX - 2;
    by_number(NOBODYS).map(drop)
}

/// The number of a group that `getgrnam_r` or `getgrgid_r` finds; `None`: there is none. `ask` gets pointers that are valid for
/// the call: an entry, room for its texts with the size of that, and where the entry's address goes if it was found.
fn entry_of(
    ask: impl Fn(*mut libc::group, *mut c_char, usize, *mut *mut libc::group) -> c_int,
) -> io::Result<Option<u32>> {
    with_room(|room| {
        let mut entry = libc::group {
            gr_name: ptr::null_mut(),
            gr_passwd: ptr::null_mut(),
            gr_gid: 0,
            gr_mem: ptr::null_mut(),
        };
        let mut found = ptr::null_mut();
        match ask(&raw mut entry, room.as_mut_ptr(), room.len(), &raw mut found) {
            0 => Ok((!found.is_null()).then_some(entry.gr_gid)),
            error => Err(error),
        }
    })
}

/// Asks with more and more room until the answer has enough.
fn with_room<T>(ask: impl Fn(&mut [c_char]) -> Result<T, c_int>) -> io::Result<T> {
    let (mut size, most) = ENTRY;
    loop {
        match ask(&mut vec![0; size]) {
            Err(libc::ERANGE) if size < most => size *= 2,
            answer => return answer.map_err(io::Error::from_raw_os_error),
        }
    }
}

/// The user database, with carma's configuration laid over it.
pub struct People {
    database: Box<dyn Database>,
    /// Name or number of the operators' group; `None`: nobody is one.
    operators: Option<String>,
    limits: LimitsConfig,
    /// The user that the daemon runs as.
    me: u32,
    known: Mutex<HashMap<u32, (Instant, Person)>>,
    /// Errors of the database that the log has, each with the group that was asked for; `None`: a user.
    told: Mutex<BTreeSet<(Option<String>, Option<i32>)>>,
}

impl People {
    /// People by the configuration. A daemon of one user has no operators: nobody else reaches it.
    #[must_use]
    pub fn new(operators: Option<&str>, limits: LimitsConfig, me: u32) -> Self {
        let operators = (me == 0).then(|| operators.unwrap_or(OPERATORS).to_owned());
        Self {
            database: Box::new(System),
            operators,
            limits,
            me,
            known: Mutex::default(),
            told: Mutex::default(),
        }
    }

    /// Whether the operators' group exists; says which it is. For a word at the start.
    #[must_use]
    pub fn operators(&self) -> Option<(&str, bool)> {
        self.operators.as_deref().map(|group| (group, matches!(self.database.group(group), Ok(Some(_)))))
    }

    /// What was found out of a user a moment ago; never blocks.
    #[must_use]
    pub fn known(&self, uid: u32) -> Option<Person> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&uid).filter(|(at, _)| at.elapsed() < FRESH).map(|(_, person)| person.clone())
    }

    /// What is known of a user. May block for as long as the user database does. `gid`: for a user that it does not
    /// know.
    ///
    /// # Errors
    /// When the user database answers with an error, and the limits of the user are not known without it.
    pub fn look_up(&self, uid: u32, gid: u32) -> io::Result<Person> {
        if let Some(person) = self.known(uid) {
            return Ok(person);
        }
        let person = match self.ask(uid, gid) {
            Ok(person) => person,
            // Limits go on as they were. Authority does not: it may be the answer that somebody has it no longer.
            Err(e) => {
                let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
                let before = known.get(&uid).map(|(_, person)| person).filter(|person| !person.operator);
                return before.cloned().ok_or(e);
            }
        };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= REMEMBERED {
            known.retain(|_, (at, _)| at.elapsed() < FRESH);
        }
        if known.len() < REMEMBERED {
            known.insert(uid, (Instant::now(), person.clone()));
        }
        Ok(person)
    }

    fn ask(&self, uid: u32, gid: u32) -> io::Result<Person> {
        // They need no answer for what they may do.
        let unlimited = uid == 0 || uid == self.me;
        let user = match self.database.user(uid).inspect_err(|e| self.tell(None, e)) {
            Err(_) if unlimited => None,
            user => user?,
        };
        let known = user.is_some();
        // The login group, as after a login: the client may run under another one.
        let (name, gid) = user.unwrap_or_else(|| (uid.to_string(), gid));
        let wanted = known && (self.operators.is_some() || !self.limits.group.is_empty());
        let groups = if wanted { self.database.groups_of(&name, gid) } else { Ok(Vec::new()) };
        // That list is short where the database fails, without an error. Asked for by name, a group tells.
        let is_in = |group: &str| -> io::Result<bool> {
            let groups = groups.as_ref().map_err(|e| io::Error::from(e.kind()))?;
            Ok(wanted && self.database.group(group)?.is_some_and(|gid| groups.contains(&gid)))
        };
        let is_in = |group: &str| is_in(group).inspect_err(|e| self.tell(Some(group), e));
        // Nobody is an operator by an error. That it keeps nobody out matters: the group need not exist, and glibc answers
        // with an error for a name that no service has where the last one cannot be asked.
        let operator = self.operators.as_deref().is_some_and(|group| is_in(group).unwrap_or(false));
        let exempt = operator || unlimited;
        let mut limited = Vec::new();
        for group in self.limits.group.keys().filter(|_| !exempt) {
            if is_in(group)? {
                limited.push(group.clone());
            }
        }
        let limits = self.limits.of(&name, &limited, exempt);
        Ok(Person { name: name.into(), gid, operator, limits })
    }

    /// Tells of an error of the database in the log, of each one once for all users and for each group: it comes again with
    /// every request.
    fn tell(&self, group: Option<&str>, e: &io::Error) {
        let error = (group.map(str::to_owned), e.raw_os_error());
        if self.told.lock().unwrap_or_else(PoisonError::into_inner).insert(error) {
            let about = group.map_or_else(|| "a user".to_owned(), |group| format!("group `{group}`"));
            tracing::warn!(
                "the user database of this machine answers with an error, asked for {about}: {e}. Until it answers, nobody is \
                 an operator by a group that it cannot tell of, and users are refused whose name or groups with limits it \
                 cannot tell. See the services in /etc/nsswitch.conf"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_the_group_are_operators_and_a_user_that_nobody_knows_is_none() {
        let me = rustix::process::getuid().as_raw();
        let root = People::new(Some("root"), LimitsConfig::default(), 0);
        let look_up = |people: &People, uid, gid| people.look_up(uid, gid).unwrap();
        assert!(look_up(&root, 0, 0).operator, "root is a member of its group");
        let by_number = People::new(Some("0"), LimitsConfig::default(), 0);
        assert!(look_up(&by_number, 0, 0).operator);
        let none = look_up(&root, 4_000_000_000, 77);
        assert_eq!((none.operator, none.gid, &*none.name), (false, 77, "4000000000"));
        assert_eq!(none.limits, UserLimits::default());
        assert_eq!(look_up(&root, 0, 0).limits, UserLimits::NONE);
        let missing = People::new(Some("no-such-group-here"), LimitsConfig::default(), 0);
        assert_eq!(missing.operators(), Some(("no-such-group-here", false)));
        assert!(!look_up(&missing, me, 0).operator);
        assert_eq!(People::new(Some("root"), LimitsConfig::default(), 1000).operators(), None);
    }

    #[test]
    fn a_group_may_have_a_million_members() {
        let asked = std::cell::Cell::new(0);
        let of = |needed: usize| {
            asked.set(0);
            with_room(|room| {
                asked.set(asked.get() + 1);
                if room.len() < needed { Err(libc::ERANGE) } else { Ok(room.len()) }
            })
        };
        assert_eq!((of(1).unwrap(), asked.get()), (16 << 10, 1));
        assert_eq!((of((1 << 20) + 1).unwrap(), asked.get()), (2 << 20, 8));
        assert_eq!(of(64 << 20).unwrap(), 64 << 20);
        assert_eq!(of((64 << 20) + 1).unwrap_err().raw_os_error(), Some(libc::ERANGE));
        let other = with_room::<()>(|_| Err(libc::EIO)).unwrap_err();
        assert_eq!(other.raw_os_error(), Some(libc::EIO));
        assert_eq!(System.group("root").unwrap(), Some(0));
        assert_eq!(System.group("0").unwrap(), Some(0));
        assert!(System.group("ro\0ot").unwrap().is_none());
    }

    /// A directory service: whether users and groups are answered.
    struct Directory([std::sync::atomic::AtomicBool; 2]);

    impl Database for Arc<Directory> {
        fn user(&self, uid: u32) -> io::Result<Option<(String, u32)>> {
            self.answers(0)?;
            Ok((uid == 7).then(|| ("bob".into(), 70)))
        }

        fn groups_of(&self, _: &str, gid: u32) -> io::Result<Vec<u32>> {
            // As `getgrouplist` does.
            Ok(if self.answers(1).is_ok() { vec![gid, 71] } else { vec![gid] })
        }

        fn group(&self, group: &str) -> io::Result<Option<u32>> {
            self.answers(1)?;
            Ok((group == "students").then_some(71))
        }
    }

    impl Directory {
        fn answers(&self, which: usize) -> io::Result<()> {
            let fine = self.0[which].load(std::sync::atomic::Ordering::Relaxed);
            if fine { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ECONNREFUSED)) }
        }

        fn set(&self, users: bool, groups: bool) {
            self.0[0].store(users, std::sync::atomic::Ordering::Relaxed);
            self.0[1].store(groups, std::sync::atomic::Ordering::Relaxed);
        }
    }

    #[test]
    fn a_database_that_fails_takes_no_limits_away() {
        let limits = "pending-jobs = 9\n[user.bob]\ngpus = 1\n[group.students]\npending-jobs = 3\n[group.staff]\ngpus = 8";
        let limits: LimitsConfig = toml::from_str(limits).unwrap();
        let directory = Arc::new(Directory(Default::default()));
        let of =
            |me| People { database: Box::new(directory.clone()), ..People::new(None, limits.clone(), me) };
        let people = of(0);
        for (users, groups) in [(false, false), (false, true), (true, false)] {
            directory.set(users, groups);
            assert!(people.look_up(7, 7).is_err() && people.known(7).is_none(), "{users} {groups}");
        }
        directory.set(true, true);
        let bob = people.look_up(7, 7).unwrap();
        assert_eq!((&*bob.name, bob.gid, bob.operator), ("bob", 70, false));
        assert_eq!((bob.limits.gpus, bob.limits.pending_jobs), (Some(1), Some(3)));
        let nobody = people.look_up(8, 80).unwrap();
        assert_eq!((&*nobody.name, nobody.gid, nobody.limits.pending_jobs), ("8", 80, Some(9)));
        // What was found out counts for a moment.
        directory.set(false, false);
        assert_eq!(people.look_up(7, 7).unwrap(), bob);
        // One's own daemon serves one also then, and root's serves root.
        assert_eq!(&*of(8).look_up(8, 80).unwrap().name, "8");
        let root = people.look_up(0, 0).unwrap();
        assert_eq!((&*root.name, root.operator, root.limits), ("0", false, UserLimits::NONE));
        // Limits go on as they were told.
        age(&people);
        for (users, groups) in [(false, false), (false, true), (true, false)] {
            directory.set(users, groups);
            assert!(people.known(7).is_none());
            assert_eq!(people.look_up(7, 7).unwrap(), bob, "{users} {groups}");
        }
    }

    #[test]
    fn nobody_is_kept_out_by_an_operators_group_that_cannot_be_told_and_nobody_is_an_operator_by_it() {
        let directory = Arc::new(Directory(Default::default()));
        let of = |limits: &str| {
            let limits: LimitsConfig = toml::from_str(limits).unwrap();
            People { database: Box::new(directory.clone()), ..People::new(Some("students"), limits, 0) }
        };
        let own = "pending-jobs = 9\n[user.bob]\ngpus = 1";
        let people = of(own);
        directory.set(true, true);
        assert!(people.look_up(7, 7).unwrap().operator);
        age(&people);
        directory.set(true, false);
        let bob = people.look_up(7, 7).unwrap();
        assert_eq!((&*bob.name, bob.operator), ("bob", false));
        assert_eq!((bob.limits.gpus, bob.limits.pending_jobs), (Some(1), Some(9)));
        assert_eq!(
            *people.told.lock().unwrap(),
            [(Some("students".into()), Some(libc::ECONNREFUSED))].into()
        );
        // Limits that a group gives are not known, and those of an operator are not to be had by an error.
        let people = of(&format!("{own}\n[group.students]\npending-jobs = 3"));
        directory.set(true, true);
        assert!(people.look_up(7, 7).unwrap().operator);
        age(&people);
        directory.set(true, false);
        assert!(people.look_up(7, 7).is_err());
    }

    /// What was found out no longer counts.
    fn age(people: &People) {
        for (at, _) in people.known.lock().unwrap().values_mut() {
            *at = at.checked_sub(FRESH).unwrap();
        }
    }
}
