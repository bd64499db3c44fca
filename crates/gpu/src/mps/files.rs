//! Files in directories that belong to users, handled by root.

use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, lchown};
use std::path::Path;

/// A directory with this owner and mode. The parent must be ours alone.
pub(super) fn make_dir(path: &Path, (uid, gid): (u32, u32), mode: u32) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    let found = fs::symlink_metadata(path)?;
    if !found.is_dir() {
        return Err(io::Error::other("something else has that name: remove it"));
    }
    if (found.uid(), found.gid()) != (uid, gid) {
        lchown(path, Some(uid), Some(gid))?;
    }
    // The creation mode is subject to our umask.
    fs::set_permissions(path, Permissions::from_mode(mode))
}

/// The last 8 KiB of a log. Its directory is the user's, so root opens no link, pipe or file of
/// another there, and passes on no control character.
pub(super) fn read_tail(path: &Path, uid: u32) -> io::Result<String> {
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let mut file = fs::OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    let found = file.metadata()?;
    if !found.is_file() || found.uid() != uid {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    file.seek(SeekFrom::Start(found.len().saturating_sub(8 << 10)))?;
    let mut bytes = Vec::new();
    file.take(8 << 10).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes)
        .chars()
        .map(|c| if c.is_control() && c != '\n' { ' ' } else { c })
        .collect())
}
