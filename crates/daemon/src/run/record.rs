//! The file by which a supervisor tells the daemon what became of its attempt, now or after a restart.

use super::identity::AttemptId;
use carma_core::model::{EndLevel, Exit, JobId, ProcessRef};
use carma_core::units::Millis;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Longest record that is read, bytes: what a supervisor writes is far below it.
const LONGEST: u64 = 1 << 20;
/// Longest reason for not starting that is written, characters: one names paths of the user's, of any length.
const LONGEST_REASON: usize = 600;

/// The process that claimed an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Claim {
    /// This supervisor.
    Supervisor(ProcessRef),
    /// A daemon that made sure that no supervisor ever will.
    Fenced,
}

/// What a record file says, one line each, in the order in which it happened.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Entry {
    /// Whose record it is. Absent in those of carma before 0.2.
    Id(AttemptId),
    Claim(Claim),
    /// Written by that process itself, before it becomes the command.
    Child(ProcessRef),
    Exit(Exit),
}

/// What is known of an attempt that was claimed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// By which process.
    pub claim: Claim,
    /// Its first process. Without one, and with its supervisor gone, nothing of it ever ran; but for records of carma
    /// before 0.2 ([`Record::tells_of_child`]).
    pub child: Option<ProcessRef>,
    /// Whether the process would be here if there had been one.
    pub tells_of_child: bool,
    /// How it ended.
    pub exit: Option<Exit>,
}

/// The record of one attempt: one file, since file systems take their time over files that come and
/// go, and a job of a millisecond would wait for that.
#[derive(Debug, Clone)]
pub struct Records {
    file: PathBuf,
    /// `None`: of carma before 0.2.
    id: Option<AttemptId>,
}

impl Records {
    /// The record of an attempt, in the directory of its life.
    #[must_use]
    pub fn new(dir: &Path, id: AttemptId) -> Self {
        let file = dir.join(format!("{}.{}.record", id.job, id.attempt));
        Self { file, id: Some(id) }
    }

    /// The record of an attempt that carma before 0.2 decided.
    #[must_use]
    pub fn nameless(dir: &Path, job: JobId, attempt: u32) -> Self {
        Self { file: dir.join(format!("{job}.{attempt}.record")), id: None }
    }

    /// The file beside it that says which processes of the attempt are being suspended.
    #[must_use]
    pub fn book(&self) -> PathBuf {
        self.file.with_extension("suspend")
    }

    /// The file beside it that says that the attempt was told to end, or to save its work. `None`: to be told so twice does no harm.
    fn told(&self, level: EndLevel) -> Option<PathBuf> {
        match level {
            EndLevel::Checkpoint => Some(self.file.with_extension("told-save")),
            EndLevel::Terminate => Some(self.file.with_extension("told-end")),
            EndLevel::Kill | EndLevel::Abandon => None,
        }
    }

    /// Notes that it was told. Where that fails, a daemon that starts anew tells it once more.
    pub fn note_told(&self, level: EndLevel) {
        let _ = self.told(level).map(File::create);
    }

    /// Whether it was told, as far as that matters.
    #[must_use]
    pub fn was_told(&self, level: EndLevel) -> bool {
        self.told(level).is_some_and(|file| file.exists())
    }

    /// Claims the attempt. `None`: another has, or its life is over and its directory gone; either way nothing of
    /// it may be started.
    ///
    /// # Errors
    /// When the directory cannot be written.
    pub fn claim(&self, claim: &Claim) -> io::Result<Option<Claimed>> {
        // Written aside and linked, so that the claim appears whole or not at all.
        let aside = self.file.with_added_extension(std::process::id().to_string());
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(true).mode(0o600);
        let mut file = match options.open(&aside) {
            Ok(file) => file,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        let mut text = match &self.id {
            Some(id) => line(&Entry::Id(id.clone()))?,
            None => Vec::new(),
        };
        text.extend(line(&Entry::Claim(*claim))?);
        let linked = file.write_all(&text).and_then(|()| fs::hard_link(&aside, &self.file));
        let _ = fs::remove_file(&aside);
        match linked {
            Ok(()) => Ok(Some(Claimed { file, end: text.len() as u64 })),
            Err(e) if matches!(e.kind(), ErrorKind::AlreadyExists | ErrorKind::NotFound) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// What the record says; `None`: no process has claimed the attempt.
    ///
    /// # Errors
    /// When it cannot be read now (out of descriptors, say), or is another attempt's.
    pub fn read(&self) -> io::Result<Option<Record>> {
        let file = match File::options().read(true).custom_flags(libc::O_NOFOLLOW).open(&self.file) {
            Ok(file) => file,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        let mut text = Vec::new();
        file.take(LONGEST).read_to_end(&mut text)?;
        text.truncate(whole_lines(&text));
        let (mut id, mut claim) = (None, None);
        let (mut child, mut exit) = (None, None);
        for entry in entries(&text) {
            match entry {
                Entry::Id(found) => id = id.or(Some(found)),
                Entry::Claim(found) => claim = claim.or(Some(found)),
                Entry::Child(found) => child = child.or(Some(found)),
                Entry::Exit(found) => exit = exit.or(Some(found)),
            }
        }
        if id != self.id {
            let text = format!("{} is the record of another attempt or damaged", self.file.display());
            return Err(io::Error::new(ErrorKind::InvalidData, text));
        }
        let Some(claim) = claim else {
            let text = format!("{} is damaged: it does not say who claimed it", self.file.display());
            return Err(io::Error::new(ErrorKind::InvalidData, text));
        };
        Ok(Some(Record { claim, child, tells_of_child: self.id.is_some(), exit }))
    }

    /// How long ago its last line was written, by the machine's clock: of an attempt that is over, its end.
    ///
    /// # Errors
    /// When it cannot be read now.
    pub fn age(&self) -> io::Result<Millis> {
        let age = fs::symlink_metadata(&self.file)?.modified()?.elapsed().unwrap_or_default();
        Ok(Millis(u64::try_from(age.as_millis()).unwrap_or(u64::MAX)))
    }

    /// The end of an attempt that was claimed, in its open file.
    #[cfg(test)]
    pub(crate) fn write_end(&self, exit: &Exit) -> File {
        let mut file = File::options().append(true).open(&self.file).unwrap();
        file.write_all(&line(&Entry::Exit(exit.clone())).unwrap()).unwrap();
        file
    }

    /// Removes the file, once the journal has it.
    pub fn remove(&self) {
        let _ = fs::remove_file(&self.file);
        let _ = fs::remove_file(self.book());
        for file in
            [EndLevel::Checkpoint, EndLevel::Terminate].into_iter().filter_map(|level| self.told(level))
        {
            let _ = fs::remove_file(file);
        }
    }
}

/// The open record, for the process that claimed the attempt. It stays open, so that no lack of descriptors can keep the end
/// from being written.
#[derive(Debug)]
pub struct Claimed {
    file: File,
    /// Where the next entry goes; what a full disk cut off lies behind it.
    end: u64,
}

impl Claimed {
    /// Records the job's first process: called by that process itself, in a copy of its supervisor's memory, before it
    /// becomes the command.
    ///
    /// # Errors
    /// When the disk does not take it: the command must not be started then.
    pub fn write_child(&mut self, child: ProcessRef) -> io::Result<()> {
        self.add(&Entry::Child(child))
    }

    /// Another handle of the same record, for the process that is to be the command.
    ///
    /// # Errors
    /// When the machine has no descriptor for it.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { file: self.file.try_clone()?, end: self.end })
    }

    /// Goes on after what the command's process has written: that process, if it has.
    ///
    /// # Errors
    /// When the record cannot be read.
    pub fn catch_up(&mut self) -> io::Result<Option<ProcessRef>> {
        let length = self.file.metadata()?.len().min(LONGEST);
        let mut text = vec![0; usize::try_from(length).unwrap_or(0)];
        let read = self.file.read_at(&mut text, 0)?;
        text.truncate(read);
        text.truncate(whole_lines(&text));
        self.end = self.end.max(text.len() as u64);
        Ok(entries(&text).find_map(|entry| if let Entry::Child(child) = entry { Some(child) } else { None }))
    }

    /// Leaves the exit record. May be tried again after a failure. A long reason is shortened: an entry that is not
    /// read whole does not count, and the attempt would seem to have no end.
    ///
    /// # Errors
    /// When the disk does not take it.
    pub fn write_exit(&mut self, exit: &Exit) -> io::Result<()> {
        let not_started = exit.not_started.as_deref().map(shortened);
        self.add(&Entry::Exit(Exit { not_started, ..exit.clone() }))
    }

    fn add(&mut self, entry: &Entry) -> io::Result<()> {
        let text = line(entry)?;
        self.file.write_all_at(&text, self.end)?;
        self.end += text.len() as u64;
        Ok(())
    }
}

/// Of a long reason the beginning, which says what failed, and the end, which says how.
fn shortened(reason: &str) -> String {
    let half = LONGEST_REASON / 2;
    let start = reason.char_indices().nth(half);
    let end = reason.char_indices().nth_back(half - 1);
    match (start, end) {
        (Some((start, _)), Some((end, _))) if start < end => {
            let (start, end) = (reason.get(..start), reason.get(end..));
            format!("{} ... {}", start.unwrap_or_default(), end.unwrap_or_default())
        }
        _ => reason.to_owned(),
    }
}

fn line(entry: &Entry) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(entry).map_err(io::Error::other)?;
    line.push(b'\n');
    Ok(line)
}

/// The entries of whole lines.
fn entries(text: &[u8]) -> impl Iterator<Item = Entry> {
    text.split(|b| *b == b'\n').filter_map(|line| serde_json::from_slice(line).ok())
}

/// Bytes up to the last end of a line: an entry counts once its line is whole.
fn whole_lines(text: &[u8]) -> usize {
    text.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use carma_core::model::ExitStatus;

    const ME: ProcessRef = ProcessRef { pid: 1, start_ticks: 2 };

    fn id() -> AttemptId {
        let text = |text: &str| text.to_owned();
        AttemptId {
            journal: text("j"),
            life: text("l"),
            host: text("h"),
            boot: text("b"),
            job: JobId(7),
            attempt: 1,
        }
    }

    #[test]
    fn an_attempt_is_claimed_once() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::new(dir.path(), id());
        assert_eq!(records.read().unwrap(), None);
        assert!(records.claim(&Claim::Fenced).unwrap().is_some());
        assert!(records.claim(&Claim::Supervisor(ME)).unwrap().is_none());
        assert_eq!(records.read().unwrap().unwrap().claim, Claim::Fenced);
        records.remove();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn nobody_claims_in_a_life_that_is_over() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::new(&dir.path().join("gone"), id());
        assert!(records.claim(&Claim::Supervisor(ME)).unwrap().is_none());
        assert_eq!(records.read().unwrap(), None);
    }

    #[test]
    fn an_entry_counts_once_it_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::new(dir.path(), id());
        let child = ProcessRef { pid: 3, start_ticks: 4 };
        let exit = Exit::of(ExitStatus::Code(0));
        let mut claimed = records.claim(&Claim::Supervisor(ME)).unwrap().unwrap();
        // Written through another handle, as the command's process does.
        claimed.try_clone().unwrap().write_child(child).unwrap();
        assert_eq!(claimed.catch_up().unwrap(), Some(child));
        // The disk was full in the middle of the exit record.
        let whole = fs::read(&records.file).unwrap();
        let cut = line(&Entry::Exit(exit.clone())).unwrap();
        fs::write(&records.file, [&whole[..], &cut[..cut.len() - 1]].concat()).unwrap();
        assert_eq!(records.read().unwrap().unwrap().exit, None);
        claimed.write_exit(&exit).unwrap();
        let expected = Record {
            claim: Claim::Supervisor(ME),
            child: Some(child),
            tells_of_child: true,
            exit: Some(exit),
        };
        assert_eq!(records.read().unwrap(), Some(expected));
    }

    #[test]
    fn an_end_with_a_long_reason_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::new(dir.path(), id());
        let mut claimed = records.claim(&Claim::Supervisor(ME)).unwrap().unwrap();
        // Control characters take six bytes each.
        let why = format!("its log file /é{} cannot be opened: File name too long", "\u{1}".repeat(2 << 20));
        let exit = Exit { not_started: Some(why), ..Exit::of(ExitStatus::Code(127)) };
        claimed.write_exit(&exit).unwrap();
        let read = records.read().unwrap().unwrap().exit.unwrap();
        let why = read.not_started.unwrap();
        assert!(
            why.starts_with("its log file /é\u{1}") && why.ends_with("opened: File name too long"),
            "{why}"
        );
        assert_eq!((why.chars().count(), read.status), (605, ExitStatus::Code(127)));
        for reason in ["", "é", &"é".repeat(600)] {
            assert_eq!(shortened(reason), reason);
        }
    }

    #[test]
    fn the_record_of_another_is_not_believed() {
        let dir = tempfile::tempdir().unwrap();
        let other = Records::new(dir.path(), AttemptId { boot: "before".into(), ..id() });
        other.claim(&Claim::Supervisor(ME)).unwrap().unwrap();
        let error = Records::new(dir.path(), id()).read().unwrap_err();
        assert!(error.to_string().contains("another attempt"), "{error}");
        // Nor one without a name, and the other way round.
        assert!(Records::nameless(dir.path(), JobId(7), 1).read().is_err());
    }

    #[test]
    fn records_of_before_lives_had_names() {
        let dir = tempfile::tempdir().unwrap();
        let text = "{\"claim\":{\"supervisor\":{\"pid\":1,\"start_ticks\":2}}}\n{\"exit\":{\"status\":{\"code\":3},\"evidence\":null,\"not_started\":null}}\n";
        fs::write(dir.path().join("7.1.record"), text).unwrap();
        let record = Records::nameless(dir.path(), JobId(7), 1).read().unwrap().unwrap();
        assert_eq!(record.exit, Some(Exit::of(ExitStatus::Code(3))));
        assert!(!record.tells_of_child);
    }
}
