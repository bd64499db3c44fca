//! Where the daemon's socket and configuration are, for clients and for the daemon.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// Socket of the daemon that root runs for everyone.
const SYSTEM: &str = "/run/carma/carma.sock";

/// Where a client looks when it is not told: at the system's daemon if there is one, else at the
/// user's own.
pub(crate) fn default_socket() -> PathBuf {
    of_two(Path::new(SYSTEM), own_socket())
}

/// A socket that a killed daemon has left hides no daemon of the user's.
fn of_two(system: &Path, own: PathBuf) -> PathBuf {
    if !system.exists() || (own != system && own.exists() && is_left(system)) {
        return own;
    }
    system.to_owned()
}

/// Whether no process listens at a socket.
fn is_left(socket: &Path) -> bool {
    UnixStream::connect(socket).is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused)
}

/// The system's socket, where clients go there and not to a daemon at this one.
pub(crate) fn asked_before(own: &Path) -> Option<&'static Path> {
    let system = Path::new(SYSTEM);
    (own != system && system.exists() && !is_left(system)).then_some(system)
}

/// Where a daemon listens when it is not told: at the system's place as root, else at the user's.
/// Not [`default_socket`], which would lead a user's daemon to the system's socket.
pub(crate) fn own_socket() -> PathBuf {
    own_socket_of(
        rustix::process::geteuid().is_root(),
        std::env::var_os("XDG_RUNTIME_DIR"),
        std::env::var_os("HOME"),
    )
}

fn own_socket_of(root: bool, runtime_dir: Option<OsString>, home: Option<OsString>) -> PathBuf {
    if root {
        return SYSTEM.into();
    }
    match (absolute(runtime_dir), absolute(home)) {
        (Some(dir), _) => dir.join("carma/carma.sock"),
        (None, Some(home)) => home.join(".local/state/carma/carma.sock"),
        (None, None) => SYSTEM.into(),
    }
}

/// The configuration file that a daemon reads when it is not told, if it is there.
pub(crate) fn default_config() -> PathBuf {
    default_config_of(
        rustix::process::geteuid().is_root(),
        std::env::var_os("XDG_CONFIG_HOME"),
        std::env::var_os("HOME"),
    )
}

fn default_config_of(root: bool, config_home: Option<OsString>, home: Option<OsString>) -> PathBuf {
    let user =
        if root { None } else { absolute(config_home).or_else(|| Some(absolute(home)?.join(".config"))) };
    user.unwrap_or_else(|| "/etc".into()).join("carma/carma.toml")
}

/// Where a daemon keeps its state when it is not told.
pub(crate) fn own_state() -> PathBuf {
    own_state_of(
        rustix::process::geteuid().is_root(),
        std::env::var_os("XDG_STATE_HOME"),
        std::env::var_os("HOME"),
    )
}

fn own_state_of(root: bool, state_home: Option<OsString>, home: Option<OsString>) -> PathBuf {
    let user =
        if root { None } else { absolute(state_home).or_else(|| Some(absolute(home)?.join(".local/state"))) };
    user.unwrap_or_else(|| "/var/lib".into()).join("carma")
}

/// A directory from the environment. The XDG specification says to ignore relative ones.
fn absolute(dir: Option<OsString>) -> Option<PathBuf> {
    dir.map(PathBuf::from).filter(|d| d.is_absolute())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everyone_has_a_place() {
        let of = |root, runtime: Option<&str>, home: Option<&str>| {
            own_socket_of(root, runtime.map(OsString::from), home.map(OsString::from))
        };
        let (run, home) = (Some("/run/user/1"), Some("/home/a"));
        assert_eq!(of(true, run, home), Path::new("/run/carma/carma.sock"));
        assert_eq!(of(false, run, home), Path::new("/run/user/1/carma/carma.sock"));
        assert_eq!(of(false, None, home), Path::new("/home/a/.local/state/carma/carma.sock"));
        assert_eq!(of(false, Some(""), home), Path::new("/home/a/.local/state/carma/carma.sock"));
        assert_eq!(of(false, None, None), Path::new("/run/carma/carma.sock"));
    }

    #[test]
    fn a_socket_that_a_killed_daemon_left_hides_no_daemon() {
        use std::os::unix::net::UnixListener;
        let dir = tempfile::tempdir().unwrap();
        let (system, own) = (dir.path().join("system"), dir.path().join("own"));
        let asked = || of_two(&system, own.clone());
        assert_eq!(asked(), own);
        let serves = UnixListener::bind(&system).unwrap();
        assert_eq!(asked(), system);
        drop(UnixListener::bind(&own).unwrap());
        assert_eq!(asked(), system, "the system's answers");
        drop(serves);
        assert_eq!(asked(), own);
        std::fs::remove_file(&own).unwrap();
        assert_eq!(asked(), system, "which the error is to name");
    }

    #[test]
    fn everyone_has_a_state() {
        let home = || Some(OsString::from("/home/a"));
        assert_eq!(own_state_of(true, None, home()), Path::new("/var/lib/carma"));
        assert_eq!(own_state_of(false, None, home()), Path::new("/home/a/.local/state/carma"));
        assert_eq!(own_state_of(false, Some("/s".into()), home()), Path::new("/s/carma"));
    }

    #[test]
    fn everyone_has_a_configuration() {
        let of = |root, config: Option<&str>, home: Option<&str>| {
            default_config_of(root, config.map(OsString::from), home.map(OsString::from))
        };
        assert_eq!(of(true, Some("/c"), Some("/root")), Path::new("/etc/carma/carma.toml"));
        assert_eq!(of(false, Some("/c"), Some("/home/a")), Path::new("/c/carma/carma.toml"));
        assert_eq!(of(false, None, Some("/home/a")), Path::new("/home/a/.config/carma/carma.toml"));
        assert_eq!(of(false, None, None), Path::new("/etc/carma/carma.toml"));
    }
}
