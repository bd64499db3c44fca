//! The user whose job it is: becoming one for a while, in this thread alone, or for good.

use super::command::NotStarted;
use crate::people;
use carma_process::progress::Owner;
use nix::unistd::{Gid, Uid, getgrouplist};
use std::ffi::{CStr, CString};
use std::io;

/// Launches in a row that are given up because the database may not have told all groups: two minutes of pauses. Then the job
/// runs with those that it told. Where a service is named that is not set up, no later launch would do better.
const WAITS_FOR_GROUPS: usize = 6;

/// A user with all groups; `None`: we are not root, and stay who we are.
#[derive(Debug, Clone)]
pub(super) struct User(Option<Identity>);

#[derive(Debug, Clone)]
struct Identity {
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
    /// Login name; `None`: the database knows no such user.
    name: Option<String>,
    /// Login shell; empty where the system knows none.
    shell: String,
}

impl User {
    /// Looks a user up. The system's user database may be far away, which is this job's affair alone.
    pub(super) fn find(owner: Option<Owner>) -> io::Result<Self> {
        let Some(owner) = owner else { return Ok(Self(None)) };
        Identity::find(owner, &System).map(|identity| Self(Some(identity)))
    }

    /// Looks the user of a job up that is to start now, after so many launches in a row of which nothing came. `name`: what that user was
    /// called when the job was submitted.
    pub(super) fn told(owner: Option<Owner>, name: &str, not_launched: usize) -> Result<Self, NotStarted> {
        let Some(owner) = owner else { return Ok(Self(None)) };
        Identity::told(owner, name, not_launched, &System).map(|identity| Self(Some(identity)))
    }

    /// The login shell, by the user database or, where we stay who we are, by that of ours; empty where it knows none.
    pub(super) fn shell(&self) -> io::Result<String> {
        match &self.0 {
            Some(identity) => Ok(identity.shell.clone()),
            None => Ok(System.user(Uid::current())?.map_or_else(String::new, |(_, shell)| shell)),
        }
    }

    /// User and group, if there is a user to become.
    pub(super) fn ids(&self) -> Option<(u32, u32)> {
        self.0.as_ref().map(|identity| (identity.uid.as_raw(), identity.gid.as_raw()))
    }

    /// Acts with the user's rights, in this thread alone. The real user id stays root's, so that the user cannot signal
    /// us meanwhile.
    pub(super) fn act<T>(&self, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.enter()?;
        let result = act();
        self.leave()?;
        result
    }

    /// Takes the user's rights in this thread, until [`User::leave`].
    pub(super) fn enter(&self) -> io::Result<()> {
        use rustix::process::{Gid, Uid};
        use rustix::thread::{set_thread_res_gid, set_thread_res_uid};
        let Some(identity) = &self.0 else { return Ok(()) };
        identity.set_groups(&identity.groups)?;
        set_thread_res_gid(None, Gid::from_raw(identity.gid.as_raw()), None)?;
        set_thread_res_uid(None, Uid::from_raw(identity.uid.as_raw()), None)?;
        Ok(())
    }

    /// Takes root's rights back in this thread.
    pub(super) fn leave(&self) -> io::Result<()> {
        use rustix::process::{Gid, Uid};
        use rustix::thread::{set_thread_res_gid, set_thread_res_uid};
        let Some(identity) = &self.0 else { return Ok(()) };
        set_thread_res_uid(None, Uid::ROOT, None)?;
        set_thread_res_gid(None, Gid::ROOT, None)?;
        identity.set_groups(&[])
    }

    /// Becomes the user for good: in the child that is to run the command.
    pub(super) fn become_for_good(&self) -> io::Result<()> {
        let Some(identity) = &self.0 else { return Ok(()) };
        identity.set_groups(&identity.groups)?;
        nix::unistd::setgid(identity.gid)?;
        Ok(nix::unistd::setuid(identity.uid)?)
    }
}

/// What a supervisor asks the user database.
trait Database {
    /// Name and login shell of a user; `None`: there is none.
    fn user(&self, uid: Uid) -> io::Result<Option<(String, String)>>;
    /// All groups of a user, and that one; fewer where a service fails.
    fn groups_of(&self, name: &CStr, gid: Gid) -> io::Result<Vec<Gid>>;
    /// An error where that list may be short.
    fn tells_groups(&self) -> io::Result<()>;
}

/// The system's.
struct System;

impl Database for System {
    fn user(&self, uid: Uid) -> io::Result<Option<(String, String)>> {
        let user = nix::unistd::User::from_uid(uid)?;
        Ok(user.map(|user| (user.name, user.shell.to_string_lossy().into_owned())))
    }

    fn groups_of(&self, name: &CStr, gid: Gid) -> io::Result<Vec<Gid>> {
        Ok(getgrouplist(name, gid)?)
    }

    fn tells_groups(&self) -> io::Result<()> {
        people::tells_groups()
    }
}

impl Identity {
    /// Sets the groups of this thread. Root needs none to do what it may, and cannot set them in a namespace of one user
    /// (`unshare -r`, Apptainer's `--fakeroot`), where there is no other user to become.
    fn set_groups(&self, groups: &[Gid]) -> io::Result<()> {
        let groups: Vec<_> = groups.iter().map(|gid| rustix::process::Gid::from_raw(gid.as_raw())).collect();
        match rustix::thread::set_thread_groups(&groups) {
            Err(rustix::io::Errno::PERM) if self.uid.is_root() => Ok(()),
            set => Ok(set?),
        }
    }

    fn find(Owner { uid, gid }: Owner, database: &impl Database) -> io::Result<Self> {
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        let (groups, name, shell) = match database.user(uid)? {
            Some((name, shell)) => {
                let c_name = CString::new(&*name).map_err(io::Error::other)?;
                (database.groups_of(&c_name, gid)?, Some(name), shell)
            }
            None => (vec![gid], None, String::new()),
        };
        Ok(Self { uid, gid, groups, name, shell })
    }

    /// An outage of the database is no fault of the job's: it goes back into the queue, and is tried again after a pause.
    fn told(
        owner: Owner,
        name: &str,
        not_launched: usize,
        database: &impl Database,
    ) -> Result<Self, NotStarted> {
        let identity = Self::find(owner, database).map_err(|e| NotStarted::untold("who its user is", &e))?;
        // Asked for in the same breath as what is taken on. A user without a name was called by the number. Root is root.
        let is_same = match &identity.name {
            Some(now) => now == name,
            None => owner.uid.to_string() == name,
        };
        if !is_same && !identity.uid.is_root() {
            return Err(NotStarted::user_gone(name, owner.uid, identity.name));
        }
        // What root may does not go by its groups.
        if !identity.uid.is_root()
            && let Err(e) = database.tells_groups()
        {
            if not_launched < WAITS_FOR_GROUPS {
                return Err(NotStarted::untold("all groups of its user", &e));
            }
            complain!(
                "carma supervisor: user {} may lack groups that the user database does not tell: {e}",
                owner.uid
            );
        }
        Ok(identity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory service: whether users are told, and whether groups are.
    struct Directory(bool, bool);

    fn answer(fine: bool) -> io::Result<()> {
        if fine { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ECONNREFUSED)) }
    }

    impl Database for Directory {
        fn user(&self, uid: Uid) -> io::Result<Option<(String, String)>> {
            let entry = (uid.as_raw() <= 7).then(|| ("bob".into(), "/bin/sh".into()));
            answer(self.0).map(|()| entry)
        }

        fn groups_of(&self, _: &CStr, gid: Gid) -> io::Result<Vec<Gid>> {
            // As `getgrouplist` does.
            Ok(if self.1 { vec![gid, Gid::from_raw(71)] } else { vec![gid] })
        }

        fn tells_groups(&self) -> io::Result<()> {
            answer(self.1)
        }
    }

    #[test]
    fn a_job_waits_for_a_user_database_that_does_not_answer() {
        let bob = Owner { uid: 7, gid: 70 };
        let groups = |identity: Identity| identity.groups.into_iter().map(Gid::as_raw).collect::<Vec<_>>();
        assert_eq!(groups(Identity::told(bob, "bob", 0, &Directory(true, true)).unwrap()), [70, 71]);
        for not_launched in [0, 100] {
            let NotStarted { why, machine, .. } =
                Identity::told(bob, "bob", not_launched, &Directory(false, true)).unwrap_err();
            assert!(machine && why.contains("who its user is"), "{why}");
        }
        // A list without the groups of the service that is down.
        for not_launched in 0..WAITS_FOR_GROUPS {
            let NotStarted { why, machine, .. } =
                Identity::told(bob, "bob", not_launched, &Directory(true, false)).unwrap_err();
            assert!(machine && why.contains("all groups of its user"), "{why}");
        }
        assert_eq!(
            groups(Identity::told(bob, "bob", WAITS_FOR_GROUPS, &Directory(true, false)).unwrap()),
            [70]
        );
        let root = Owner { uid: 0, gid: 0 };
        assert_eq!(groups(Identity::told(root, "operator", 0, &Directory(true, false)).unwrap()), [0]);
        let nobody = Owner { uid: 8, gid: 80 };
        assert_eq!(groups(Identity::told(nobody, "8", 0, &Directory(true, true)).unwrap()), [80]);
    }

    /// `userdel` and `useradd`, while a job waits.
    #[test]
    fn a_job_does_not_become_who_has_the_number_of_its_user_by_now() {
        let told = |uid, name| Identity::told(Owner { uid, gid: 70 }, name, 0, &Directory(true, true));
        let gone = |uid, name| {
            let NotStarted { machine, user_gone, .. } = told(uid, name).unwrap_err();
            assert!(!machine, "no pause brings its user back");
            user_gone.unwrap().now
        };
        assert!(told(7, "bob").is_ok());
        assert_eq!(gone(7, "alice"), Some("bob".into()));
        // Nobody had the number when it was submitted, and somebody has now.
        assert_eq!(gone(7, "7"), Some("bob".into()));
        assert_eq!(gone(8, "alice"), None);
        assert!(told(8, "8").is_ok(), "in a container, say");
    }

    #[test]
    fn the_database_of_this_machine_is_asked() {
        let root = System.user(Uid::from_raw(0)).unwrap();
        assert_eq!(root.unwrap().0, "root");
        assert!(System.groups_of(c"root", Gid::from_raw(0)).unwrap().contains(&Gid::from_raw(0)));
    }
}
