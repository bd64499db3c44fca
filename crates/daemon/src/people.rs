//! Who the users of this machine are: names, groups, authority and limits, from the system's user database.
//!
//! The database may be a directory service that answers slowly or not at all. So answers are cached, and a look-up delays
//! requests of that user alone, for [`PATIENCE`] at most. A timeout counts as an error. After an error the cached limits hold,
//! since the user's own limits and those of groups would be lost without them; it makes no user an operator, and only users
//! whose limits are neither cached nor known without the database are refused.
//!
//! No error of `getpwuid_r` and `getgrnam_r` is read as "there is none", although their manual pages allow it: glibc answers
//! that without an error, and `ENOENT` is what the client of an LDAP directory tells that is down.

use crate::config::limits::{LimitsConfig, UserLimits};
use nix::unistd::{Gid, Uid, User, getgrouplist};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{CString, c_char, c_int};
use std::io;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, watch};

/// The group whose members are operators where the configuration names none.
const OPERATORS: &str = "carma-operators";
/// How long an answer counts.
const FRESH: Duration = Duration::from_secs(10);
/// Room for the entry of a group, bytes: at first, and at most. Members have eight bytes or more each.
const ENTRY: (usize, usize) = (16 << 10, 64 << 20);
/// Users remembered, and asked for, at most.
const REMEMBERED: usize = 4096;
/// How long an answer is waited for.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Users that the database is asked for at a time: if it hangs, the other threads that may block go on with the journal.
const AT_A_TIME: usize = 32;

/// A user as carma sees one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Person {
    /// Login name; the number where there is none.
    pub name: Arc<str>,
    /// Login group; `None`: the database knows no such user.
    pub gid: Option<u32>,
    /// May do what root may, by membership in the operators' group. Root is not asked for.
    pub operator: bool,
    /// What the user may have.
    pub limits: UserLimits,
}

/// What the user database is asked.
trait Database: Send + Sync {
    /// Name and login group of a user; `None`: there is none.
    fn user(&self, uid: u32) -> io::Result<Option<(String, u32)>>;
    /// Whether there is a user of this name.
    fn has(&self, name: &str) -> io::Result<bool>;
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

    fn has(&self, name: &str) -> io::Result<bool> {
        Ok(!name.contains('\0') && User::from_name(name)?.is_some())
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

/// A look-up under way: one for each user, however many requests wait for it.
#[derive(Clone)]
struct Asked {
    since: Instant,
    /// Who it is, once that is known; closed without, if it will not be.
    answer: watch::Receiver<Option<Person>>,
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
    /// Look-ups under way for requests.
    asked: Mutex<HashMap<u32, Asked>>,
    turns: Arc<Semaphore>,
    patience: Duration,
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
            asked: Mutex::default(),
            turns: Arc::new(Semaphore::new(AT_A_TIME)),
            patience: PATIENCE,
            told: Mutex::default(),
        }
    }

    /// Whether the operators' group exists; says which it is. For a word at the start.
    #[must_use]
    pub fn operators(&self) -> Option<(&str, bool)> {
        self.operators.as_deref().map(|group| (group, matches!(self.database.group(group), Ok(Some(_)))))
    }

    /// What the configuration says of users and groups that the database does not know, in words. Where it answers with an
    /// error, nothing is said. May block for as long as it does.
    #[must_use]
    pub fn unknown(&self) -> Vec<String> {
        let has_user = |name: &str| match (self.database.has(name), name.parse()) {
            (Ok(false), Ok(uid)) => self.database.user(uid).map(|user| user.is_some()),
            (found, _) => found,
        };
        let of_users = self.limits.user.keys().filter(|name| matches!(has_user(name), Ok(false)));
        let of_groups = self.limits.group.keys();
        let of_groups = of_groups.filter(|group| matches!(self.database.group(group), Ok(None)));
        let unknown = |kind: &str, name: &String| {
            format!("limits.{kind}.{name}: there is no {kind} {name}, so these limits are nobody's")
        };
        let of_users = of_users.map(|name| unknown("user", name));
        of_users.chain(of_groups.map(|name| unknown("group", name))).collect()
    }

    /// What was found out of a user a moment ago; never blocks.
    #[must_use]
    pub fn known(&self, uid: u32) -> Option<Person> {
        self.remembered().get(&uid).filter(|(at, _)| at.elapsed() < FRESH).map(|(_, person)| person.clone())
    }

    /// Who a user is, for a request, in a runtime of tokio. After [`PATIENCE`] what was known before counts, as with an error
    /// of the database; `None`: nothing was.
    pub async fn who(self: &Arc<Self>, uid: u32) -> Option<Person> {
        if let Some(person) = self.known(uid) {
            return Some(person);
        }
        let Asked { since, mut answer } = self.asked(uid)?;
        // The time counts from the first request of this look-up, so that later ones of the same outage do not wait again.
        let left = self.patience.saturating_sub(since.elapsed());
        match tokio::time::timeout(left, answer.wait_for(Option::is_some)).await {
            Ok(Ok(person)) => person.clone(),
            Ok(Err(_)) | Err(_) => self.meanwhile(uid),
        }
    }

    /// The look-up of a user that is under way, or a new one; `None`: too many are.
    fn asked(self: &Arc<Self>, uid: u32) -> Option<Asked> {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = asked.get(&uid) {
            return Some(found.clone());
        }
        if asked.len() >= REMEMBERED && !self.is_unlimited(uid) {
            return None;
        }
        let (tell, answer) = watch::channel(None);
        let new = Asked { since: Instant::now(), answer };
        asked.insert(uid, new.clone());
        let people = self.clone();
        tokio::spawn(async move {
            // Root waits for no turn.
            let turn = async { people.turns.clone().acquire_owned().await.ok() };
            let turn = if people.is_unlimited(uid) { None } else { turn.await };
            let database = people.clone();
            let found = tokio::task::spawn_blocking(move || database.look_up(uid)).await;
            drop(turn);
            people.asked.lock().unwrap_or_else(PoisonError::into_inner).remove(&uid);
            if let Ok(Ok(person)) = found {
                tell.send_replace(Some(person));
            }
        });
        Some(new)
    }

    /// Whether a user needs no answer for what is allowed: root, and whom the daemon runs as.
    fn is_unlimited(&self, uid: u32) -> bool {
        uid == 0 || uid == self.me
    }

    /// What counts of a user while the database does not answer. Limits go on as they were. Authority does not: it may be the
    /// answer that somebody has it no longer.
    fn meanwhile(&self, uid: u32) -> Option<Person> {
        let before = self.remembered().get(&uid).map(|(_, person)| person.clone());
        before.filter(|person| !person.operator).or_else(|| {
            let name = uid.to_string();
            let limits = self.limits.of(uid, &name, &[], true);
            self.is_unlimited(uid).then(|| Person { name: name.into(), gid: None, operator: false, limits })
        })
    }

    fn remembered(&self) -> MutexGuard<'_, HashMap<u32, (Instant, Person)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of users, one after the other, as far as the database tells it in that time: those of whom it does not are
    /// missing.
    #[must_use]
    pub fn look_up_all(
        self: &Arc<Self>,
        uids: BTreeSet<u32>,
        patience: Duration,
    ) -> BTreeMap<u32, io::Result<Person>> {
        let until = Instant::now() + patience;
        let (tell, told) = mpsc::channel();
        let people = self.clone();
        // Without a thread nothing is told.
        let _ = std::thread::Builder::new().name("users".into()).spawn(move || {
            // Until nobody listens any more.
            uids.into_iter().all(|uid| tell.send((uid, people.look_up(uid))).is_ok())
        });
        let left = || until.saturating_duration_since(Instant::now());
        std::iter::from_fn(|| told.recv_timeout(left()).ok()).collect()
    }

    /// What is known of a user. May block for as long as the user database does.
    ///
    /// # Errors
    /// When the user database answers with an error, and the limits of the user are not known without it.
    pub fn look_up(&self, uid: u32) -> io::Result<Person> {
        if let Some(person) = self.known(uid) {
            return Ok(person);
        }
        let person = match self.ask(uid) {
            Ok(person) => person,
            Err(e) => return self.meanwhile(uid).ok_or(e),
        };
        let mut known = self.remembered();
        if known.len() >= REMEMBERED {
            known.retain(|_, (at, _)| at.elapsed() < FRESH);
        }
        if known.len() < REMEMBERED {
            known.insert(uid, (Instant::now(), person.clone()));
        }
        Ok(person)
    }

    fn ask(&self, uid: u32) -> io::Result<Person> {
        let unlimited = self.is_unlimited(uid);
        let user = match self.database.user(uid).inspect_err(|e| self.tell(None, e)) {
            Err(_) if unlimited => None,
            user => user?,
        };
        // The login group, as after a login: the client may run under another one.
        let (name, gid) = user.map_or_else(|| (uid.to_string(), None), |(name, gid)| (name, Some(gid)));
        let groups_count = !unlimited && (self.operators.is_some() || !self.limits.group.is_empty());
        let of_groups = gid.filter(|_| groups_count);
        let groups = of_groups.map_or(Ok(Vec::new()), |gid| self.database.groups_of(&name, gid));
        // That list is short where the database fails, without an error. Asked for by name, a group tells.
        let is_in = |group: &str| -> io::Result<bool> {
            let groups = groups.as_ref().map_err(|e| io::Error::from(e.kind()))?;
            Ok(of_groups.is_some() && self.database.group(group)?.is_some_and(|gid| groups.contains(&gid)))
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
        let limits = self.limits.of(uid, &name, &limited, exempt);
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
        let look_up = |people: &People, uid| people.look_up(uid).unwrap();
        let (_, gid) = System.user(1).unwrap().expect("a user of every Linux, `daemon` or `bin`");
        let by_number = People::new(Some(&gid.to_string()), LimitsConfig::default(), 0);
        assert!(look_up(&by_number, 1).operator, "a member of its group");
        let none = look_up(&root, 4_000_000_000);
        assert_eq!((none.operator, none.gid, &*none.name), (false, None, "4000000000"));
        assert_eq!(none.limits, UserLimits::default());
        assert_eq!(look_up(&root, 0).limits, UserLimits::NONE);
        let missing = People::new(Some("no-such-group-here"), LimitsConfig::default(), 0);
        assert_eq!(missing.operators(), Some(("no-such-group-here", false)));
        assert!(!look_up(&missing, me).operator);
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

    /// A directory service: whether users and groups are answered; whether it hangs, asked for groups.
    #[derive(Default)]
    struct Directory(
        [std::sync::atomic::AtomicBool; 2],
        std::sync::RwLock<()>,
        std::sync::atomic::AtomicUsize,
    );

    impl Database for Arc<Directory> {
        fn user(&self, uid: u32) -> io::Result<Option<(String, u32)>> {
            self.answers(0)?;
            Ok((uid == 7).then(|| ("bob".into(), 70)))
        }

        fn has(&self, name: &str) -> io::Result<bool> {
            self.answers(0).map(|()| name == "bob")
        }

        fn groups_of(&self, _: &str, gid: u32) -> io::Result<Vec<u32>> {
            self.2.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            drop(self.1.read());
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
    fn limits_of_whom_nobody_knows_are_told() {
        let limits = "[user.bob]\ngpus = 1\n[user.bbo]\ngpus = 1\n[user.7]\ngpus = 1\n[user.8]\ngpus = 1\n\
                      [group.students]\ngpus = 1\n[group.pupils]\ngpus = 1";
        let directory = Arc::new(Directory::default());
        let limits = toml::from_str(limits).unwrap();
        let people = People { database: Box::new(directory.clone()), ..People::new(None, limits, 0) };
        assert!(people.unknown().is_empty(), "a database that does not answer says nothing of them");
        directory.set(true, true);
        let about: Vec<String> = people.unknown();
        let about: Vec<&str> = about.iter().filter_map(|line| line.split(':').next()).collect();
        assert_eq!(about, ["limits.user.8", "limits.user.bbo", "limits.group.pupils"]);
    }

    #[test]
    fn a_database_that_fails_takes_no_limits_away() {
        let limits = "pending-jobs = 9\n[user.bob]\ngpus = 1\n[group.students]\npending-jobs = 3\n[group.staff]\ngpus = 8";
        let limits: LimitsConfig = toml::from_str(limits).unwrap();
        let directory = Arc::new(Directory::default());
        let of =
            |me| People { database: Box::new(directory.clone()), ..People::new(None, limits.clone(), me) };
        let people = of(0);
        for (users, groups) in [(false, false), (false, true), (true, false)] {
            directory.set(users, groups);
            assert!(people.look_up(7).is_err() && people.known(7).is_none(), "{users} {groups}");
        }
        directory.set(true, true);
        let bob = people.look_up(7).unwrap();
        assert_eq!((&*bob.name, bob.gid, bob.operator), ("bob", Some(70), false));
        assert_eq!((bob.limits.gpus, bob.limits.pending_jobs), (Some(1), Some(3)));
        let nobody = people.look_up(8).unwrap();
        assert_eq!((&*nobody.name, nobody.gid, nobody.limits.pending_jobs), ("8", None, Some(9)));
        // What was found out counts for a moment.
        directory.set(false, false);
        assert_eq!(people.look_up(7).unwrap(), bob);
        // One's own daemon serves one also then, and root's serves root.
        assert_eq!(&*of(8).look_up(8).unwrap().name, "8");
        let root = people.look_up(0).unwrap();
        assert_eq!((&*root.name, root.operator, root.limits), ("0", false, UserLimits::NONE));
        // Limits go on as they were told.
        age(&people);
        for (users, groups) in [(false, false), (false, true), (true, false)] {
            directory.set(users, groups);
            assert!(people.known(7).is_none());
            assert_eq!(people.look_up(7).unwrap(), bob, "{users} {groups}");
        }
    }

    #[test]
    fn nobody_is_kept_out_by_an_operators_group_that_cannot_be_told_and_nobody_is_an_operator_by_it() {
        let directory = Arc::new(Directory::default());
        let of = |limits: &str| {
            let limits: LimitsConfig = toml::from_str(limits).unwrap();
            People { database: Box::new(directory.clone()), ..People::new(Some("students"), limits, 0) }
        };
        let own = "pending-jobs = 9\n[user.bob]\ngpus = 1";
        let people = of(own);
        directory.set(true, true);
        assert!(people.look_up(7).unwrap().operator);
        age(&people);
        directory.set(true, false);
        let bob = people.look_up(7).unwrap();
        assert_eq!((&*bob.name, bob.operator), ("bob", false));
        assert_eq!((bob.limits.gpus, bob.limits.pending_jobs), (Some(1), Some(9)));
        assert_eq!(
            *people.told.lock().unwrap(),
            [(Some("students".into()), Some(libc::ECONNREFUSED))].into()
        );
        // Limits that a group gives are not known, and those of an operator are not to be had by an error.
        let people = of(&format!("{own}\n[group.students]\npending-jobs = 3"));
        directory.set(true, true);
        assert!(people.look_up(7).unwrap().operator);
        age(&people);
        directory.set(true, false);
        assert!(people.look_up(7).is_err());
    }

    #[test]
    fn a_database_that_hangs_keeps_root_and_those_who_are_known_from_nothing() {
        let limits = toml::from_str("pending-jobs = 9\n[group.students]\npending-jobs = 3").unwrap();
        let directory = Arc::new(Directory::default());
        directory.set(true, true);
        let people = Arc::new(People {
            database: Box::new(directory.clone()),
            patience: Duration::from_millis(50),
            ..People::new(Some("staff"), limits, 0)
        });
        let asked = || directory.2.load(std::sync::atomic::Ordering::Relaxed);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let who = |uid| runtime.block_on(people.who(uid));
        let bob = who(7).unwrap();
        assert_eq!((bob.limits.pending_jobs, asked()), (Some(3), 1));
        age(&people);
        let hangs = directory.1.write().unwrap();
        // Nobody asks for root's groups.
        assert_eq!(who(0).unwrap().limits, UserLimits::NONE);
        // Of the others, one look-up is under way for all requests.
        for _ in 0..9 {
            assert_eq!(who(7).unwrap(), bob);
        }
        assert_eq!(asked(), 2);
        people.remembered().clear();
        assert_eq!(who(7), None);
        // A start waits a moment, for those whom it is told of.
        let told = people.look_up_all([0, 7, 8].into(), people.patience);
        assert_eq!(told.into_keys().collect::<Vec<_>>(), [0]);
        drop(hangs);
        let told = people.look_up_all([0, 7, 8].into(), Duration::from_secs(600));
        assert_eq!(told.into_keys().collect::<Vec<_>>(), [0, 7, 8]);
        assert_eq!(who(7), Some(bob));
    }

    /// What was found out no longer counts.
    fn age(people: &People) {
        for (at, _) in people.known.lock().unwrap().values_mut() {
            *at = at.checked_sub(FRESH).unwrap();
        }
    }
}
