//! Commands that end with this process.

use rustix::process::Signal;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Has the kernel kill the command should this process be killed, of which it would otherwise know nothing. It does so
/// when the *thread* that starts the command ends: here the main thread, which lives as long as the process. What the
/// command itself started is not reached by it.
pub(crate) fn end_with_us(command: &mut Command) {
    let us = rustix::process::getpid();
    let ask = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // Killed before that call.
        if rustix::process::getppid() == Some(us) { Ok(()) } else { Err(rustix::io::Errno::SRCH.into()) }
    };
    #[expect(unsafe_code, reason = "the closure makes two system calls and takes no memory: safe after fork")]
    unsafe {
        command.pre_exec(ask);
    }
}
