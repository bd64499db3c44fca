//! What a process inherits and passes on: open descriptors and ignored signals.

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use rustix::fd::{BorrowedFd, RawFd};
use rustix::io::{Errno, FdFlags, fcntl_getfd, fcntl_setfd};
use std::fs;
use std::io;

/// Marks all descriptors of this process from this number on to be closed in the programs that it runs (`FD_CLOEXEC`).
///
/// # Errors
/// When neither close_range(2) nor `/proc/self/fd` can be had. The latter takes a descriptor for a moment.
pub fn close_at_exec(first: RawFd) -> io::Result<()> {
    const CLOSE_RANGE_CLOEXEC: libc::c_uint = 4;
    #[expect(
        unsafe_code,
        reason = "close_range has no safe wrapper here; numbers go in and no memory is touched"
    )]
    let result =
        unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, CLOSE_RANGE_CLOEXEC) };
    // Linux has the call since 5.9 and the flag since 5.11, and a container may forbid what its runtime does not know.
    if result == 0 { Ok(()) } else { close_each_at_exec(first) }
}

/// Sets signals to their defaults: this process may have been started with some of them ignored.
///
/// # Errors
/// For signals of which the kernel does not allow it: SIGKILL and SIGSTOP.
pub fn set_to_default(signals: impl IntoIterator<Item = Signal>) -> nix::Result<()> {
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    signals.into_iter().try_for_each(|signal| {
        #[expect(unsafe_code, reason = "no handler is installed")]
        unsafe { sigaction(signal, &default) }.map(drop)
    })
}

fn close_each_at_exec(first: RawFd) -> io::Result<()> {
    for entry in fs::read_dir("/proc/self/fd")? {
        let name = entry?.file_name();
        let Some(number) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        if number < first {
            continue;
        }
        #[expect(
            unsafe_code,
            reason = "a number of the kernel's list; one that is closed by now is an error of the calls"
        )]
        // SAFETY: not -1, and used for these two calls only.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        match fcntl_getfd(fd).and_then(|flags| fcntl_setfd(fd, flags | FdFlags::CLOEXEC)) {
            Ok(()) | Err(Errno::BADF) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::{AsFd, AsRawFd, OwnedFd};

    /// Has the kernel answer close_range of this thread with an error, as one without it does. As long as the thread lives.
    #[expect(unsafe_code, reason = "a filter of system calls has no safe wrapper here")]
    fn refuse_close_range(errno: libc::c_int) {
        let statement =
            |code: u32, jt, jf, k| libc::sock_filter { code: code.try_into().unwrap(), jt, jf, k };
        let mut filter = [
            // The number of the call.
            statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
            statement(
                libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
                0,
                1,
                libc::SYS_close_range.try_into().unwrap(),
            ),
            statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | errno.unsigned_abs()),
            statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
        // SAFETY: both concern this thread alone, and the filter lives as long as the call.
        let set = unsafe {
            assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
        };
        assert_eq!(set, 0, "{}", io::Error::last_os_error());
    }

    /// Ubuntu 20.04, Debian 11, and containers under an older profile.
    #[test]
    fn descriptors_are_marked_where_close_range_is_not_to_be_had() {
        let marked = |errno: Option<libc::c_int>| {
            let marked = move || {
                if let Some(errno) = errno {
                    refuse_close_range(errno);
                }
                let open = || -> [OwnedFd; 2] { [(); 2].map(|()| rustix::io::dup(io::stderr()).unwrap()) };
                let [below, first] = open();
                let [above, _] = open();
                close_at_exec(first.as_raw_fd()).unwrap();
                [below, first, above].map(|fd| fcntl_getfd(fd.as_fd()).unwrap().contains(FdFlags::CLOEXEC))
            };
            std::thread::spawn(marked).join().unwrap()
        };
        for errno in [Some(libc::ENOSYS), Some(libc::EINVAL), Some(libc::EPERM), None] {
            assert_eq!(marked(errno), [false, true, true], "{errno:?}");
        }
    }
}
