//! The log: opened with the user's rights or, in carma's own directory, for the user; read as it grows; kept short.

use super::user::User;
use crate::run::order::Log;
use nix::sys::stat::{Mode, umask};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::{File, Metadata, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::Path;

/// Bytes of the log's end that are searched for evidence.
const TAIL: u64 = 64 << 10;
/// Bytes of a log that are read at a time: what is written faster is skipped.
const PIECE: u64 = 64 << 10;
/// Space is given back in blocks of file systems; the line that says so fills one.
const BLOCK: u64 = 4096;

/// The open log.
#[derive(Debug)]
pub(super) struct Opened {
    /// To which the command appends.
    file: File,
    /// The same file without appending, where carma may cut it.
    cutter: Option<Cutter>,
    /// Whether it can be read: devices and pipes are the user's to read.
    readable: bool,
    /// Where this attempt began in it.
    start: u64,
    /// Up to where its progress was read.
    read: u64,
    /// That may be in the middle of a line.
    torn: bool,
}

/// Bytes of the note that says what was cut out, whatever their number: a later one takes the place of an earlier one.
const NOTE: u64 = 80;

/// Keeps a log from growing beyond its limit: the middle goes, head and tail stay.
#[derive(Debug)]
struct Cutter {
    file: File,
    limit: u64,
    /// Where what was cut out ends; it begins at [`Cutter::head`].
    cut: u64,
}

impl Opened {
    /// Opens it for appending.
    pub(super) fn open(log: &Log, user: &User, mask: Option<u32>, attempt: u32) -> io::Result<Self> {
        let mut options = File::options();
        options.read(true).append(true).mode(0o600);
        let (mut was_linked, users) = (false, user.ids());
        let (file, cutter) = match log {
            Log::Kept { path, limit } => {
                // No user may enter the directory, so nothing but carma's own files is in it.
                options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
                let mut file = options.clone().create(true).open(path)?;
                let mut meta = file.metadata()?;
                let owner = users.map_or_else(|| rustix::process::geteuid().as_raw(), |(uid, _)| uid);
                if meta.is_file() && meta.nlink() > 1 && meta.uid() == owner {
                    // Its user has made a link to it while an earlier attempt ran, and keeps it there. What else is linked to is
                    // written by nobody here.
                    std::fs::remove_file(path)?;
                    file = options.clone().create_new(true).open(path)?;
                    meta = file.metadata()?;
                    was_linked = true;
                }
                if !meta.is_file() || meta.nlink() != 1 {
                    return Err(io::Error::other("it is not a file of carma's"));
                }
                if let Some((uid, gid)) = users
                    && meta.uid() != uid
                {
                    fchown(&file, Some(uid), Some(gid))?;
                }
                (file, Some(Cutter::open(path, *limit)?))
            }
            // As a shell's redirection makes it: by the mask of the session, where one came along.
            Log::Users(path) => {
                let before = umask(Mode::from_bits_truncate(mask.unwrap_or(0o077) & 0o777));
                let file = user.act(|| options.create(true).mode(0o666).open(path));
                umask(before);
                (file?, None)
            }
        };
        let meta = file.metadata()?;
        let start = meta.len();
        let mut opened = Self { file, cutter, readable: meta.is_file(), start, read: start, torn: false };
        if was_linked {
            opened.say("the log so far is where its user has made a link to it; carma keeps it no more");
        }
        if attempt > 1 {
            opened.say(&format!("attempt {attempt}"));
        }
        Ok(opened)
    }

    /// What the command writes to.
    pub(super) const fn file(&self) -> &File {
        &self.file
    }

    /// Says something to the user in it.
    pub(super) fn say(&mut self, text: &str) {
        // A log that takes nothing must not keep the job from running, nor must a pipe that is full and that nobody reads.
        let mut file = [PollFd::new(&self.file, PollFlags::OUT)];
        if poll(&mut file, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0) {
            let _ = writeln!(self.file, "--- carma: {text} ---");
        }
        self.start = self.file.metadata().map_or(self.start, |meta| meta.len());
        self.read = self.start;
    }

    /// What it has grown by since the last look; of much, the end, from the beginning of a line. And whether it follows what came before.
    pub(super) fn grown(&mut self) -> (bool, Vec<u8>) {
        let Some(end) = self.length() else { return (true, Vec::new()) };
        let follows = end >= self.read && end - self.read <= PIECE;
        if end < self.read {
            // It was cut off: what is written now is new.
            self.read = end;
        }
        let from = self.read.max(end.saturating_sub(PIECE));
        let mut bytes = self.piece(from, end);
        self.read = from + bytes.len() as u64;
        self.torn |= !follows && from > 0;
        if self.torn {
            let line_end = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            self.torn = line_end.is_none();
            bytes.drain(..line_end.map_or(bytes.len(), |at| at + 1));
        }
        (follows, bytes)
    }

    /// The end of what this attempt wrote.
    pub(super) fn tail(&self) -> String {
        let Some(end) = self.length() else { return String::new() };
        let bytes = self.piece(self.start.max(end.saturating_sub(TAIL)), end);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn length(&self) -> Option<u64> {
        self.readable.then(|| self.file.metadata().ok().map(|meta| meta.len()))?
    }

    fn piece(&self, from: u64, end: u64) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(end.saturating_sub(from)).unwrap_or(0)];
        let length = self.file.read_at(&mut bytes, from).unwrap_or(0);
        bytes.truncate(length);
        bytes
    }

    /// Cuts the middle out of a log that has become too long. Returns whether it may soon be so again.
    pub(super) fn cut(&mut self) -> bool {
        let Some(cutter) = &mut self.cutter else { return false };
        let Ok(meta) = cutter.file.metadata() else { return false };
        cutter.cut(&meta);
        meta.len().saturating_sub(cutter.cut) > cutter.limit / 4
    }
}

/// Ends a log that carma keeps: its user can open it no more, nor link to it, and it is cut once more. Until then it belongs
/// to the user, who reaches it through `/proc` as long as a process of the job has it open. One that the user has linked to
/// stays the user's: root's it would be in a place of the user's, and count against nobody's quota.
pub(super) fn close(log: &Log, as_root: bool) {
    let Log::Kept { path, limit } = log else { return };
    let closed = Cutter::open(path, *limit).and_then(|mut cutter| {
        if as_root {
            let users = cutter.file.metadata()?;
            fchown(&cutter.file, Some(0), Some(0))?;
            // Afterwards: its owner could take this back.
            cutter.file.set_permissions(Permissions::from_mode(0o600))?;
            // Last: from here on the user can make no link.
            if cutter.file.metadata()?.nlink() > 1 {
                fchown(&cutter.file, Some(users.uid()), Some(users.gid()))?;
            }
        }
        cutter.cut(&cutter.file.metadata()?);
        Ok(())
    });
    if let Err(e) = closed
        && e.kind() != io::ErrorKind::NotFound
    {
        complain!("carma supervisor: the log {} stays open to its user: {e}", path.display());
    }
}

/// Cuts a log that carma keeps, where it takes far more than its limit: a process outside of its job may hold it open, and its
/// supervisor may be gone. Returns whether it did.
///
/// # Errors
/// When it cannot be opened or looked at.
pub fn shorten(path: &Path, limit: u64) -> io::Result<bool> {
    let mut cutter = Cutter::open(path, limit)?;
    let meta = cutter.file.metadata()?;
    let long = on_disk(&meta) > cutter.limit.saturating_mul(2);
    if long {
        cutter.cut(&meta);
    }
    Ok(long)
}

impl Cutter {
    /// Of a log in a directory that no user may enter.
    fn open(path: &Path, limit: u64) -> io::Result<Self> {
        let file =
            File::options().write(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("it is not a file of carma's"));
        }
        Ok(Self { file, limit: limit.max(4 * BLOCK), cut: 0 })
    }

    /// Bytes of the beginning that stay.
    const fn head(&self) -> u64 {
        self.limit / 2 / BLOCK * BLOCK
    }

    fn cut(&mut self, meta: &Metadata) {
        let length = meta.len();
        // The command may shorten its output, and write into what was cut out: then that begins anew.
        if length < self.cut || on_disk(meta) > self.limit.saturating_mul(2) {
            self.cut = 0;
        }
        let kept = self.limit - self.head();
        let to = length.saturating_sub(kept) / BLOCK * BLOCK;
        // The note has its place before the hole, in a block of text.
        let from = self.cut.max(self.head() + BLOCK);
        // In pieces worth the call.
        if length > self.limit && to >= from + (kept / 8).max(BLOCK) {
            let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            if fallocate(&self.file, mode, from, to - from).is_err() {
                return;
            }
            self.cut = to;
            let (hole, note) = (self.head() + BLOCK, NOTE as usize - 1);
            let text = format!("\n--- carma: {} bytes of the log were cut out here ", to - hole + NOTE);
            let line = format!("{text:-<note$}\n");
            let _ = self.file.write_all_at(line.as_bytes(), hole - NOTE);
        }
        self.free_beyond_end();
    }

    /// Frees what the command set aside beyond the end (`fallocate --keep-size`), where no hole can be made. File systems
    /// set some aside by themselves, about as much as there is: that is left alone.
    fn free_beyond_end(&self) {
        let Ok(meta) = self.file.metadata() else { return };
        let data = if self.cut > 0 {
            self.head() + BLOCK + (meta.len().saturating_sub(self.cut))
        } else {
            meta.len()
        };
        if on_disk(&meta) > self.limit.saturating_mul(2).saturating_add(data) {
            // What is written in this moment is lost: of such a command only.
            let _ = self.file.set_len(meta.len());
        }
    }
}

/// Bytes that a file takes on the disk, holes not counted.
fn on_disk(meta: &Metadata) -> u64 {
    meta.blocks().saturating_mul(512)
}

#[cfg(test)]
mod tests {
    use super::*;
    use carma_process::progress::Owner;
    use std::io::Read;

    const LIMIT: u64 = 64 * BLOCK;

    /// A log that carma keeps, written by the user who runs the test.
    fn kept(path: &Path) -> Opened {
        let log = Log::Kept { path: path.to_owned(), limit: LIMIT };
        Opened::open(&log, &User::find(None).unwrap(), None, 1).unwrap()
    }

    #[test]
    fn of_a_log_that_is_too_long_head_and_tail_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("1.log");
        let mut opened = kept(&path);
        let limit = LIMIT;
        let mut writer = opened.file().try_clone().unwrap();
        for line in 0..200_000 {
            writeln!(writer, "line {line:09}").unwrap();
            if line % 1000 == 0 {
                opened.cut();
            }
        }
        opened.cut();
        let meta = std::fs::metadata(&path).unwrap();
        assert_eq!(meta.len(), 200_000 * 15);
        assert!(meta.blocks() * 512 <= limit + limit / 2, "{} bytes are on the disk", meta.blocks() * 512);
        let mut text = String::new();
        File::open(&path).unwrap().read_to_string(&mut text).unwrap();
        assert!(text.starts_with("line 000000000\n") && text.ends_with("line 000199999\n"));
        let said = text.lines().find(|line| line.starts_with("--- carma:")).unwrap();
        let cut: u64 = said.split(' ').find_map(|word| word.parse().ok()).unwrap();
        let zeros = text.bytes().filter(|byte| *byte == 0).count() as u64;
        assert_eq!(cut, zeros + NOTE, "{said}");
        assert_eq!(said.len() as u64 + 2, NOTE, "it is no longer than a line of a screen: {said}");
        assert!(opened.tail().ends_with("line 000199999\n"));
    }

    #[test]
    fn a_full_pipe_that_nobody_reads_keeps_no_attempt_from_starting() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        nix::unistd::mkfifo(&path, Mode::from_bits_truncate(0o600)).unwrap();
        let log = Log::Users(path.clone());
        let open = |attempt| Opened::open(&log, &User::find(None).unwrap(), None, attempt).unwrap();
        let said = |text: &str| {
            let mut file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap();
            let mut bytes = vec![0; 1 << 20];
            let length = file.read(&mut bytes).unwrap();
            assert_eq!(String::from_utf8_lossy(&bytes[..length]).matches(text).count(), 1);
        };
        let first = open(1);
        open(2);
        said("--- carma: attempt 2 ---\n");
        let mut full = File::options().write(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap();
        while full.write(&[b'x'; 4096]).is_ok() {}
        // It would wait for ever.
        open(3);
        drop(first);
    }

    #[test]
    fn a_command_that_changes_its_log_does_not_get_around_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("1.log");
        let mut opened = kept(&path);
        let limit = LIMIT;
        let mut appends = opened.file().try_clone().unwrap();
        // As through /dev/stdout, which opens it anew.
        let places = File::options().write(true).open(&path).unwrap();
        let mut held = |what: &str| {
            for _ in 0..3 {
                opened.cut();
            }
            let held = on_disk(&std::fs::metadata(&path).unwrap());
            assert!(held <= 2 * limit + BLOCK, "{what}: {held} bytes are on the disk");
        };
        let much = vec![b'x'; 16 * limit as usize];
        places.set_len(1 << 36).unwrap();
        held("lengthened");
        places.set_len(0).unwrap();
        held("shortened");
        appends.write_all(&much).unwrap();
        held("written after that");
        places.set_len(0).unwrap();
        appends.write_all(&much[..15 * limit as usize]).unwrap();
        held("shortened and written in one go");
        places.set_len(1 << 36).unwrap();
        held("lengthened again");
        places.write_all_at(&much, 4 * limit).unwrap();
        held("written into what was cut out");
        fallocate(&places, FallocateFlags::KEEP_SIZE, 1 << 36, 64 * limit).unwrap();
        held("set aside beyond the end");
        places.set_len(0).unwrap();
        fallocate(&places, FallocateFlags::KEEP_SIZE, 0, 64 * limit).unwrap();
        held("set aside in an empty one");
    }

    #[test]
    fn a_log_that_is_over_is_closed_to_its_user_and_can_be_cut() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("1.log");
        let log = Log::Kept { path: path.clone(), limit: LIMIT };
        let owner = rustix::process::geteuid().is_root().then_some(Owner { uid: 65534, gid: 65534 });
        let user = User::find(owner).unwrap();
        let uid = || std::fs::metadata(&path).unwrap().uid();
        let taken = || on_disk(&std::fs::metadata(&path).unwrap());
        let opened = Opened::open(&log, &user, None, 1).unwrap();
        let users = uid();
        let mut held = opened.file().try_clone().unwrap();
        let much = vec![b'x'; 8 * LIMIT as usize];
        held.write_all(&much).unwrap();
        drop(opened);
        close(&log, owner.is_some());
        assert!(taken() <= 2 * LIMIT, "{} bytes are on the disk", taken());
        // A descriptor that a process outside of the job keeps.
        held.write_all(&much).unwrap();
        assert!(shorten(&path, LIMIT).unwrap());
        assert!(taken() <= 2 * LIMIT, "{} bytes are on the disk", taken());
        assert!(!shorten(&path, LIMIT).unwrap() && !shorten(&path, u64::MAX).unwrap());
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 16 * LIMIT);
        if owner.is_some() {
            assert_eq!((users, uid()), (65534, 0));
        }
        // The next attempt appends to it.
        Opened::open(&log, &user, None, 2).unwrap();
        assert_eq!(uid(), users);
    }

    #[test]
    fn what_its_user_made_of_a_log_does_not_outlast_it() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let user = User::find(Some(Owner { uid: 65534, gid: 65534 })).unwrap();
        for (name, linked, owner) in [("1.log", false, 0), ("2.log", true, 65534)] {
            let path = dir.path().join(name);
            let log = Log::Kept { path: path.clone(), limit: LIMIT };
            drop(Opened::open(&log, &user, None, 1).unwrap());
            std::fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
            if linked {
                std::fs::hard_link(&path, dir.path().join("mine")).unwrap();
            }
            close(&log, true);
            let meta = std::fs::metadata(&path).unwrap();
            assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o777), (owner, owner, 0o600), "{name}");
        }
    }

    #[test]
    fn a_link_in_place_of_a_log_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("1.log");
        std::os::unix::fs::symlink(dir.path().join("elsewhere"), &path).unwrap();
        let log = Log::Kept { path: path.clone(), limit: 1 << 20 };
        let nobody = User::find(None).unwrap();
        assert!(Opened::open(&log, &nobody, None, 1).is_err());
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(Opened::open(&log, &nobody, None, 1).is_err());
    }

    #[test]
    fn what_is_skipped_of_a_log_tears_no_line() {
        let dir = tempfile::tempdir().unwrap();
        let mut opened = kept(&dir.path().join("1.log"));
        let mut writer = opened.file().try_clone().unwrap();
        let mut grows = |text: &str| {
            writer.write_all(text.as_bytes()).unwrap();
            let (follows, bytes) = opened.grown();
            (follows, String::from_utf8(bytes).unwrap())
        };
        assert_eq!(grows("step 1"), (true, "step 1".into()));
        assert_eq!(grows("0\nstep 1"), (true, "0\nstep 1".into()));
        let much = "1/1000 [\r".repeat(10_000);
        let (follows, read) = grows(&format!("{much}450/1000"));
        assert!(!follows && read.starts_with("1/1000 [\r") && read.ends_with("[\r450/1000"));
        assert_eq!(grows(" [\n"), (true, " [\n".into()));
        // A line that is longer than what is read at once.
        assert_eq!(grows(&"x".repeat(100_000)), (false, String::new()));
        assert_eq!(grows("step 7"), (true, String::new()));
        assert_eq!(grows("8\nstep 79\n"), (true, "step 79\n".into()));
        opened.file().set_len(3).unwrap();
        assert_eq!(opened.grown(), (false, Vec::new()));
        writeln!(writer, "9\nstep 80").unwrap();
        assert_eq!(opened.grown(), (true, b"step 80\n".to_vec()));
        opened.file().set_len(0).unwrap();
        assert_eq!(opened.grown(), (false, Vec::new()));
        writeln!(writer, "step 81").unwrap();
        assert_eq!(opened.grown(), (true, b"step 81\n".to_vec()));
    }

    #[test]
    fn a_log_that_its_user_has_linked_to_is_left_there_and_another_begun() {
        let dir = tempfile::tempdir().unwrap();
        let (path, mine) = (dir.path().join("1.log"), dir.path().join("mine"));
        let log = Log::Kept { path: path.clone(), limit: LIMIT };
        let owner = rustix::process::geteuid().is_root().then_some(Owner { uid: 65534, gid: 65534 });
        let user = User::find(owner).unwrap();
        writeln!(Opened::open(&log, &user, None, 1).unwrap().file, "first").unwrap();
        std::fs::hard_link(&path, &mine).unwrap();
        close(&log, owner.is_some());
        let second = Opened::open(&log, &user, None, 2).unwrap();
        writeln!(second.file(), "second").unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains("has made a link") && text.ends_with("attempt 2 ---\nsecond\n"), "{text}");
        assert_eq!(std::fs::read_to_string(&mine).unwrap(), "first\n");
        let meta = std::fs::metadata(&path).unwrap();
        assert_eq!((meta.nlink(), meta.mode() & 0o777), (1, 0o600));
        if owner.is_none() {
            return;
        }
        assert_eq!(meta.uid(), 65534);
        // Of another's file, root's even, nothing is removed or written.
        for other in [0, 65533] {
            std::fs::remove_file(&path).unwrap();
            std::fs::write(&path, "x").unwrap();
            std::os::unix::fs::chown(&path, Some(other), Some(other)).unwrap();
            let link = dir.path().join(other.to_string());
            std::fs::hard_link(&path, &link).unwrap();
            let refused = Opened::open(&log, &user, None, 2).unwrap_err().to_string();
            assert!(refused.contains("not a file of carma's"), "{refused}");
            assert_eq!(std::fs::read_to_string(&link).unwrap(), "x");
        }
    }
}
