//! The user whose job it is: becoming one for a while, in this thread alone, or for good.

use carma_process::progress::Owner;
use nix::unistd::{Gid, Uid, getgrouplist};
use std::ffi::CString;
use std::io;

/// A user with all groups; `None`: we are not root, and stay who we are.
#[derive(Debug, Clone)]
pub(super) struct User(Option<Identity>);

#[derive(Debug, Clone)]
struct Identity {
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
    /// Login shell; empty where the system knows none.
    shell: String,
}

impl User {
    /// Looks a user up. The system's user database may be far away, which is this job's affair alone.
    pub(super) fn find(owner: Option<Owner>) -> io::Result<Self> {
        let Some(Owner { uid, gid }) = owner else { return Ok(Self(None)) };
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        let (groups, shell) = match nix::unistd::User::from_uid(uid)? {
            Some(user) => {
                let name = CString::new(user.name).map_err(io::Error::other)?;
                (getgrouplist(&name, gid)?, user.shell.to_string_lossy().into_owned())
            }
            None => (vec![gid], String::new()),
        };
        Ok(Self(Some(Identity { uid, gid, groups, shell })))
    }

    /// The login shell, by the user database or, where we stay who we are, by that of ours.
    pub(super) fn shell(&self) -> String {
        match &self.0 {
            Some(identity) => identity.shell.clone(),
            None => match nix::unistd::User::from_uid(Uid::current()) {
                Ok(Some(user)) => user.shell.to_string_lossy().into_owned(),
                Ok(None) | Err(_) => String::new(),
            },
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
        use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
        let Some(identity) = &self.0 else { return Ok(()) };
        let groups: Vec<Gid> = identity.groups.iter().map(|gid| Gid::from_raw(gid.as_raw())).collect();
        set_thread_groups(&groups)?;
        set_thread_res_gid(None, Gid::from_raw(identity.gid.as_raw()), None)?;
        set_thread_res_uid(None, Uid::from_raw(identity.uid.as_raw()), None)?;
        Ok(())
    }

    /// Takes root's rights back in this thread.
    pub(super) fn leave(&self) -> io::Result<()> {
        use rustix::process::{Gid, Uid};
        use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
        if self.0.is_none() {
            return Ok(());
        }
        set_thread_res_uid(None, Uid::ROOT, None)?;
        set_thread_res_gid(None, Gid::ROOT, None)?;
        set_thread_groups(&[])?;
        Ok(())
    }

    /// Becomes the user for good: in the child that is to run the command.
    pub(super) fn become_for_good(&self) -> nix::Result<()> {
        let Some(identity) = &self.0 else { return Ok(()) };
        nix::unistd::setgroups(&identity.groups)?;
        nix::unistd::setgid(identity.gid)?;
        nix::unistd::setuid(identity.uid)
    }
}
