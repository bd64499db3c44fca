//! Follows a log while a job writes to it: one that carma keeps, by way of the daemon, or a file of the user's.

use carma_api::{Client, ClientError, LogPiece};
use carma_cli::failure::Failure;
use rustix::fs::OFlags;
use std::fs::{File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Bytes that are read at once.
const CHUNK: usize = 64 << 10;
/// Bytes that are asked of the daemon at once.
const LARGE: u64 = 256 << 10;

/// A log that is followed.
#[derive(Debug)]
pub(crate) enum Log {
    /// The daemon hands it out.
    Kept(KeptLog),
    /// A file of the user's.
    File(Follower),
}

impl Log {
    /// From its start, whenever it appears.
    pub(crate) fn new(socket: &Path, id: u64, kept: bool, path: &Path) -> Self {
        if kept { Self::Kept(KeptLog::new(socket, id)) } else { Self::File(Follower::new(path, Owner::Any)) }
    }

    /// Whether the output has begun.
    pub(crate) const fn has_begun(&self) -> bool {
        match self {
            Self::Kept(log) => log.seen,
            Self::File(file) => file.seen,
        }
    }

    /// Copies a piece of what is new to `out`. `pid`: the job's process, which still has a deleted file open.
    ///
    /// # Errors
    /// When `out` takes no more. A log that cannot be read now may be readable later: [`Pumped::failed`].
    pub(crate) fn pump(&mut self, pid: Option<u32>, out: &mut dyn Write) -> io::Result<Pumped> {
        match self {
            Self::Kept(log) => log.pump(out),
            Self::File(file) => file.pump(pid, out),
        }
    }
}

/// A log that carma keeps.
pub(crate) struct KeptLog {
    socket: PathBuf,
    id: u64,
    client: Option<Client>,
    at: u64,
    seen: bool,
}

impl std::fmt::Debug for KeptLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeptLog").field("id", &self.id).field("at", &self.at).finish_non_exhaustive()
    }
}

impl KeptLog {
    /// From its start.
    pub(crate) fn new(socket: &Path, id: u64) -> Self {
        Self { socket: socket.to_owned(), id, client: None, at: 0, seen: false }
    }

    fn piece(&mut self, from: u64, length: u64) -> Result<LogPiece, ClientError> {
        let mut client = self.client.take().map_or_else(|| Client::connect(&self.socket), Ok)?;
        let piece = client.log(self.id, from, length)?;
        self.client = Some(client);
        self.seen = true;
        Ok(piece)
    }

    fn pump(&mut self, out: &mut dyn Write) -> io::Result<Pumped> {
        match self.piece(self.at, LARGE) {
            Ok(piece) => self.take(&piece, out),
            // The log is not there: not yet, or no more.
            Err(ClientError::Refused { status: 404 | 409, .. }) => Ok(Pumped::default()),
            // The daemon may be away or busy for a moment.
            Err(error) => Ok(Pumped { failed: Some(error.into()), ..Pumped::default() }),
        }
    }

    /// Copies a piece that was asked for at [`KeptLog::at`].
    fn take(&mut self, piece: &LogPiece, out: &mut dyn Write) -> io::Result<Pumped> {
        if piece.end < self.at {
            self.at = 0;
            return Ok(Pumped { notice: Some(Notice::Truncated), more: piece.end > 0, failed: None });
        }
        if piece.bytes.is_empty() {
            return Ok(Pumped::default());
        }
        self.at = piece.at + piece.bytes.len() as u64;
        out.write_all(&piece.bytes)?;
        out.flush()?;
        Ok(Pumped { more: self.at < piece.end, ..Pumped::default() })
    }

    /// Copies what is there now, and not what a busy job adds meanwhile.
    ///
    /// # Errors
    /// What the daemon refuses, as `refused` tells it, or `out`.
    pub(crate) fn print(
        &mut self,
        out: &mut dyn Write,
        refused: impl Fn(ClientError) -> Failure,
    ) -> Result<(), Failure> {
        let mut end = None;
        loop {
            let piece = self.piece(self.at, LARGE).map_err(&refused)?;
            let end = *end.get_or_insert(piece.end);
            let left = usize::try_from(end.saturating_sub(piece.at)).unwrap_or(usize::MAX);
            let bytes = piece.bytes.get(..left).unwrap_or(&piece.bytes);
            if bytes.is_empty() {
                break;
            }
            out.write_all(bytes)?;
            self.at = piece.at + bytes.len() as u64;
        }
        Ok(out.flush()?)
    }

    /// Whether what was printed of it was nothing, from its start.
    pub(crate) const fn is_empty(&self) -> bool {
        self.at == 0
    }

    /// Goes to where the last `lines` lines begin.
    ///
    /// # Errors
    /// What the daemon refuses.
    pub(crate) fn seek_tail(&mut self, lines: u64) -> Result<(), ClientError> {
        let length = self.piece(u64::MAX, 1)?.end;
        self.at = start_of_tail(length, lines, |from, most| self.piece(from, most))?;
        Ok(())
    }
}

/// What has been seen of a log, and what comes next. The file may not exist yet, may be cut short by
/// its owner, replaced, or deleted: an open file is read on.
#[derive(Debug)]
pub(crate) struct Follower {
    path: PathBuf,
    owner: Owner,
    file: Option<File>,
    at: u64,
    /// Something was read: a file may be there before the job that writes to it.
    seen: bool,
}

/// What came of a look at a log.
#[derive(Debug, Default)]
pub(crate) struct Pumped {
    pub(crate) notice: Option<Notice>,
    /// There is more already. Not all is copied at once: a job may print faster than its reader takes it, who is still to be
    /// heard.
    pub(crate) more: bool,
    /// Why it could not be read now. There may be more, so this is no end of the log.
    pub(crate) failed: Option<Failure>,
}

/// Something about the log that its reader should know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notice {
    /// It got shorter and is shown again from its start.
    Truncated,
    /// Another file took its place.
    Replaced,
}

impl Follower {
    /// Begins at the start of the file, whenever it appears.
    pub(crate) fn new(path: &Path, owner: Owner) -> Self {
        Self { path: path.to_owned(), owner, file: None, at: 0, seen: false }
    }

    /// Goes on with a file that is open, at an offset.
    pub(crate) fn resume(path: &Path, owner: Owner, file: File, at: u64) -> Self {
        Self { path: path.to_owned(), owner, file: Some(file), at, seen: false }
    }

    /// Begins with what comes after what a file holds now; `None`: there is no file yet.
    pub(crate) fn of_news(path: &Path) -> Option<Self> {
        let file = open_log(path, None, Owner::Any).ok()?;
        let end = file.metadata().ok()?.len();
        Some(Self::resume(path, Owner::Any, file, end))
    }

    /// Copies a piece of what is new to `out`. `pid`: the job's process, which still has a deleted log open.
    ///
    /// # Errors
    /// When `out` takes no more. A log that cannot be read now may be readable later: [`Pumped::failed`].
    pub(crate) fn pump(&mut self, pid: Option<u32>, out: &mut dyn Write) -> io::Result<Pumped> {
        if self.file.is_none() {
            self.file = open_log(&self.path, pid, self.owner).ok();
        }
        let mut notice = None;
        if let Some(meta) = self.meta()
            && meta.len() < self.at
        {
            self.at = 0;
            notice = Some(Notice::Truncated);
        }
        let mut pumped = self.drain(out)?;
        if !pumped.more
            && pumped.failed.is_none()
            && self.is_replaced()
            && let Ok(file) = open_log(&self.path, None, self.owner)
        {
            (self.file, self.at) = (Some(file), 0);
            notice = Some(Notice::Replaced);
            pumped = self.drain(out)?;
        }
        Ok(Pumped { notice, ..pumped })
    }

    fn meta(&self) -> Option<Metadata> {
        self.file.as_ref()?.metadata().ok()
    }

    fn is_replaced(&self) -> bool {
        match (self.meta(), std::fs::metadata(&self.path)) {
            (Some(ours), Ok(theirs)) => {
                theirs.is_file() && (ours.dev(), ours.ino()) != (theirs.dev(), theirs.ino())
            }
            _ => false,
        }
    }

    /// Copies the next chunk.
    fn drain(&mut self, out: &mut dyn Write) -> io::Result<Pumped> {
        let Some(file) = &self.file else { return Ok(Pumped::default()) };
        let mut chunk = vec![0; CHUNK];
        let length = match file.read_at(&mut chunk, self.at) {
            Ok(length) => length,
            // A disk or server may be away for a moment.
            Err(error) => {
                let text = format!("the log cannot be read: {}: {error}", self.path.display());
                return Ok(Pumped { failed: Some(Failure::new(text)), ..Pumped::default() });
            }
        };
        out.write_all(&chunk[..length])?;
        out.flush()?;
        self.at += length as u64;
        self.seen |= length > 0;
        Ok(Pumped { more: length == CHUNK, ..Pumped::default() })
    }
}

/// Opens a log, or the log that a process still has as its standard output after it was deleted.
///
/// # Errors
/// When there is neither.
pub(crate) fn open_log(path: &Path, pid: Option<u32>, owner: Owner) -> io::Result<File> {
    let error = match open_regular(path, owner) {
        Ok(file) => return Ok(file),
        Err(error) => error,
    };
    match pid {
        Some(pid) if error.kind() == io::ErrorKind::NotFound => {
            open_regular(Path::new(&format!("/proc/{pid}/fd/1")), owner).map_err(|_| error)
        }
        _ => Err(error),
    }
}

/// Opens a file, but nothing that could block or take output away from its reader; and as root none that the job's user does not own: a link
/// in its place would have root print what that user may not read.
fn open_regular(path: &Path, owner: Owner) -> io::Result<File> {
    let refused = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
    if !std::fs::metadata(path)?.is_file() {
        return Err(refused("not a regular file".into()));
    }
    // It may be another one by now.
    let file = File::options().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(refused("not a regular file".into()));
    }
    match owner {
        Owner::Only(uid) if meta.uid() != uid => Err(refused(format!(
            "it belongs to user {} and not to the job's, {uid}: read it as that user, e.g. with `sudo -u`",
            meta.uid()
        ))),
        Owner::Only(_) | Owner::Any => Ok(file),
    }
}

/// Which user must own a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The kernel says whether the reader may.
    Any,
    /// Root may read everything, and is to read what is this user's.
    Only(u32),
}

impl Owner {
    /// Of a job's log.
    ///
    /// # Errors
    /// The reader is root, and the name of the job's user does not exist any more.
    pub(crate) fn of(user: &str) -> Result<Self, Failure> {
        if !rustix::process::geteuid().is_root() {
            return Ok(Self::Any);
        }
        let uid = nix::unistd::User::from_name(user).ok().flatten().map(|user| user.uid.as_raw());
        let uid = uid.or_else(|| user.parse().ok());
        let none = || Failure::new(format!("there is no user {user}, whose log it is: read the file itself"));
        uid.map(Self::Only).ok_or_else(none)
    }
}

/// Where the last `lines` lines of a file begin.
///
/// # Errors
/// When it cannot be read.
pub(crate) fn tail_start(file: &File, lines: u64) -> io::Result<u64> {
    let length = file.metadata()?.len();
    start_of_tail(length, lines, |at, most| {
        let mut bytes = vec![0; most as usize];
        file.read_exact_at(&mut bytes, at)?;
        Ok::<_, io::Error>(LogPiece { at, end: length, bytes: bytes.into() })
    })
}

/// Where the last `lines` lines of a log of this length begin. Reads backwards, a chunk at a time. `read` gives the first piece from
/// an offset on, of so many bytes at most: beyond the offset, and shorter, where there is a hole; empty where nothing follows.
fn start_of_tail<E>(
    length: u64,
    lines: u64,
    mut read: impl FnMut(u64, u64) -> Result<LogPiece, E>,
) -> Result<u64, E> {
    if lines == 0 {
        return Ok(length);
    }
    // The newline at the very end closes the last line and begins none.
    let mut end = length.saturating_sub(1);
    let mut newlines = 0;
    while end > 0 {
        let start = end.saturating_sub(CHUNK as u64);
        let (mut pieces, mut from) = (Vec::new(), start);
        while from < end {
            let LogPiece { at, mut bytes, .. } = read(from, end - from)?;
            // What is beyond was looked at before.
            bytes.truncate(usize::try_from(end.saturating_sub(at)).unwrap_or(usize::MAX));
            if bytes.is_empty() {
                break;
            }
            from = at + bytes.len() as u64;
            pieces.push((at, bytes));
        }
        for (at, bytes) in pieces.iter().rev() {
            for (i, _) in bytes.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n') {
                newlines += 1;
                if newlines == lines {
                    return Ok(at + i as u64 + 1);
                }
            }
        }
        end = if pieces.is_empty() { end_before(start, &mut read)? } else { start };
    }
    Ok(0)
}

/// Where to look further for what comes before an offset at which a hole ends: 0 where nothing does, else at most a chunk beyond the end
/// of what does. A hole may be of terabytes, so its beginning is looked for in steps that double, and then by halves.
fn end_before<E>(offset: u64, read: &mut impl FnMut(u64, u64) -> Result<LogPiece, E>) -> Result<u64, E> {
    let mut has_data =
        |from: u64, until: u64| read(from, 1).map(|piece| !piece.bytes.is_empty() && piece.at < until);
    let (mut low, mut step) = (offset, CHUNK as u64);
    while !has_data(low, offset)? {
        if low == 0 {
            return Ok(0);
        }
        low = low.saturating_sub(step);
        step *= 2;
    }
    let mut high = offset;
    while high - low > CHUNK as u64 {
        let middle = low.midpoint(high);
        if has_data(middle, high)? {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok(high)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn pump(follower: &mut Follower) -> (String, Option<Notice>) {
        let mut out = Vec::new();
        let notice = follower.pump(None, &mut out).unwrap().notice;
        (String::from_utf8(out).unwrap(), notice)
    }

    #[test]
    fn a_log_that_appears_grows_shrinks_and_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("7.log");
        let mut follower = Follower::new(&path, Owner::Any);
        assert!(Follower::of_news(&path).is_none());
        assert_eq!(pump(&mut follower), (String::new(), None));
        fs::write(&path, "one\n").unwrap();
        assert_eq!(pump(&mut follower), ("one\n".into(), None));
        fs::write(&path, "one\ntwo").unwrap();
        assert_eq!(pump(&mut follower).0, "two");
        fs::write(&path, "x").unwrap();
        assert_eq!(pump(&mut follower), ("x".into(), Some(Notice::Truncated)));
        let mut writer = fs::OpenOptions::new().append(true).open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        writer.write_all(b"still here").unwrap();
        assert_eq!(pump(&mut follower), ("still here".into(), None));
        fs::write(&path, "new").unwrap();
        assert_eq!(pump(&mut follower), ("new".into(), Some(Notice::Replaced)));
    }

    #[test]
    fn what_a_file_held_before_is_not_shown() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("7.log");
        fs::write(&path, "another job's\n").unwrap();
        let mut log = Log::File(Follower::of_news(&path).unwrap());
        let mut look = || {
            let mut out = Vec::new();
            log.pump(None, &mut out).unwrap();
            (String::from_utf8(out).unwrap(), log.has_begun())
        };
        assert_eq!(look(), (String::new(), false));
        fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"its own\n").unwrap();
        assert_eq!(look(), ("its own\n".into(), true));
    }

    #[test]
    fn much_is_copied_piece_by_piece() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("7.log");
        fs::write(&path, vec![b'x'; 2 * CHUNK + 1]).unwrap();
        let mut follower = Follower::new(&path, Owner::Any);
        let mut look = || {
            let mut out = Vec::new();
            let pumped = follower.pump(None, &mut out).unwrap();
            (out.len(), pumped.notice, pumped.more)
        };
        assert_eq!(look(), (CHUNK, None, true));
        // What is left of it comes before what took its place.
        fs::remove_file(&path).unwrap();
        fs::write(&path, "new").unwrap();
        assert_eq!(look(), (CHUNK, None, true));
        assert_eq!(look(), (1 + 3, Some(Notice::Replaced), false));

        let mut kept = KeptLog::new(&path, 7);
        let mut look = |at, end, length| {
            let piece = LogPiece { at, end, bytes: vec![b'x'; length].into() };
            kept.take(&piece, &mut Vec::new()).unwrap().more
        };
        assert!(look(0, 500, 256) && !look(256, 500, 244) && !look(500, 500, 0));
        assert!(look(600, 900, 100), "something was cut out");
        assert!(!look(700, 900, 0), "the rest is a hole");
        let shorter = LogPiece { at: 4, end: 4, bytes: Vec::new().into() };
        let pumped = kept.take(&shorter, &mut Vec::new()).unwrap();
        assert_eq!((pumped.notice, pumped.more, kept.at), (Some(Notice::Truncated), true, 0));
    }

    #[test]
    fn a_log_that_cannot_be_read_has_not_ended() {
        let dir = tempfile::tempdir().unwrap();
        // No daemon listens there.
        let pumped = KeptLog::new(&dir.path().join("s"), 7).pump(&mut Vec::new()).unwrap();
        assert_eq!(pumped.failed.map(|failure| failure.code), Some(carma_cli::failure::NO_DAEMON));
        // A directory opens and gives no bytes, as a file does whose server is away.
        let mut follower = Follower::resume(dir.path(), Owner::Any, File::open(dir.path()).unwrap(), 0);
        let failed = follower.pump(None, &mut Vec::new()).unwrap().failed;
        assert!(failed.unwrap().message.unwrap().contains("cannot be read"));
        let absent =
            Follower::new(&dir.path().join("7.log"), Owner::Any).pump(None, &mut Vec::new()).unwrap();
        assert!(absent.failed.is_none(), "there is no log");
    }

    #[test]
    fn a_deleted_log_is_read_through_the_job() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("7.log");
        let log = File::create(&path).unwrap();
        let mut child = std::process::Command::new("sh")
            .args(["-c", "echo deep; read x"])
            .stdin(std::process::Stdio::piped())
            .stdout(log)
            .spawn()
            .unwrap();
        while fs::read(&path).unwrap().is_empty() {
            std::thread::yield_now();
        }
        fs::remove_file(&path).unwrap();
        let mut follower = Follower::new(&path, Owner::Any);
        let mut out = Vec::new();
        follower.pump(Some(child.id()), &mut out).unwrap();
        assert_eq!(out, b"deep\n");
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(open_log(&path, Some(child.id()), Owner::Any).is_err());
    }

    /// `ln -s /etc/shadow out.txt`, where root reads the log of another.
    #[test]
    fn root_reads_what_is_the_jobs_users() {
        let dir = tempfile::tempdir().unwrap();
        let (own, link) = (dir.path().join("own"), dir.path().join("link"));
        fs::write(&own, "mine").unwrap();
        std::os::unix::fs::symlink(&own, &link).unwrap();
        let me = rustix::process::geteuid().as_raw();
        for path in [&own, &link] {
            assert!(open_log(path, None, Owner::Only(me)).is_ok());
            let error = open_log(path, None, Owner::Only(me + 1)).unwrap_err().to_string();
            assert!(error.contains(&format!("belongs to user {me} and not to the job's")), "{error}");
        }
    }

    #[test]
    fn nothing_is_read_from_pipes_and_devices() {
        assert_eq!(
            open_log(Path::new("/dev/null"), None, Owner::Any).unwrap_err().to_string(),
            "not a regular file"
        );
    }

    #[test]
    fn the_last_lines() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let start = |text: &str, lines: u64| {
            fs::write(file.path(), text).unwrap();
            let at = tail_start(&File::open(file.path()).unwrap(), lines).unwrap();
            text[at as usize..].to_owned()
        };
        assert_eq!(start("a\nb\nc\n", 1), "c\n");
        assert_eq!(start("a\nb\nc", 1), "c");
        assert_eq!(start("a\nb\nc\n", 2), "b\nc\n");
        assert_eq!(start("a\nb\nc\n", 3), "a\nb\nc\n");
        assert_eq!(start("a\nb\nc\n", 9), "a\nb\nc\n");
        assert_eq!(start("a\nb\nc\n", 0), "");
        assert_eq!(start("\n\n", 1), "\n");
        assert_eq!(start("", 5), "");
        let long = "x".repeat(CHUNK - 1) + "\nlast\n";
        assert_eq!(start(&long, 1), "last\n");
        let longer = "x\n".repeat(CHUNK * 2);
        assert_eq!(start(&longer, 70_000), "x\n".repeat(70_000));
    }

    #[test]
    fn the_last_lines_of_a_log_of_which_a_part_was_cut_out() {
        let line = |n: u64| format!("{n:>39}\n");
        // Data, a hole, data: pieces are given as the daemon gives them.
        let check = |head: u64, hole: u64, tail: u64| {
            let (before, after): (String, String) =
                ((0..head).map(line).collect(), (head..head + tail).map(line).collect());
            let (gap, length) = (before.len() as u64, before.len() as u64 + hole + after.len() as u64);
            let read = |from: u64, most: u64| {
                let (at, data) = if from < gap {
                    (from, &before[from as usize..])
                } else {
                    let at = from.max(gap + hole);
                    (at, &after[(at - gap - hole) as usize..])
                };
                let bytes = data.as_bytes()[..data.len().min(most as usize)].to_vec();
                Ok::<_, io::Error>(LogPiece { at, end: length, bytes: bytes.into() })
            };
            for lines in [1, tail - 1, tail, tail + 1, tail + head / 2] {
                let at = start_of_tail(length, lines, read).unwrap();
                let first = head + tail - lines;
                let expected = first * 40 + if first >= head { hole } else { 0 };
                // What begins where the hole ends may as well begin before it.
                assert!(at == expected || at + hole == expected, "{lines} of {head}, {hole}, {tail}: {at}");
            }
        };
        check(3000, 10 << 20, 14_369);
        check(3000, 4096, 20);
        check(3000, 4096, 3000);
    }

    #[test]
    fn the_last_lines_of_a_log_with_a_hole_of_a_terabyte_take_few_looks() {
        let (hole, line) = (1 << 40, "a line\n");
        // Lines before the hole, and after it.
        for (before, after) in [(5000, 0), (5000, 2), (0, 3), (0, 0)] {
            let (before, after) = (line.repeat(before), line.repeat(after));
            let gap = before.len() as u64;
            let length = gap + hole + after.len() as u64;
            let mut looks = 0;
            let read = |from: u64, most: u64| {
                looks += 1;
                assert!(looks < 200, "at {from}");
                let (at, data) = match from.checked_sub(gap) {
                    None => (from, &before[from as usize..]),
                    Some(beyond) => (from.max(gap + hole), &after[beyond.saturating_sub(hole) as usize..]),
                };
                let bytes = data.as_bytes()[..data.len().min(most as usize)].to_vec();
                Ok::<_, io::Error>(LogPiece { at, end: length, bytes: bytes.into() })
            };
            let found = start_of_tail(length, 5, read).unwrap();
            // The hole is in the first line after it, or a line of its own.
            let beyond = after.lines().count().max(1);
            assert_eq!(found, gap.saturating_sub(((5 - beyond) * line.len()) as u64));
        }
    }
}
