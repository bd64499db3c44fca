//! Files in directories that belong to users, handled by root.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, lchown};
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
