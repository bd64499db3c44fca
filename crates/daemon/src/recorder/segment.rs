//! Rows on the disk: a ring of files, the oldest of which goes when all together would be larger than they may be.
//!
//! ```text
//! file   00000017.rec: blocks; the first holds the header, the others rows
//! block  length u32 | CRC-32 u32 | begin u64 | end u64 | payload       all little-endian
//! ```
//!
//! A payload is JSON, a line for each row, deflated; its length counts it alone, its sum is over times and payload. Times are
//! the daemon's clock in milliseconds: the rows of a block are of the time after its begin up to its end. Each life of the
//! daemon begins a file of its own and never appends to another, so that a tail that a crash has torn is the end of its
//! file. A file with another version is passed over.

use super::Of;
use carma_api::record::{Fold, RecordedGpu, Row};
use carma_core::units::Millis;
use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use rustix::fs::statvfs;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Version of the files.
const VERSION: u32 = 1;
/// A file is that part of all of them.
const FILES: u64 = 16;
/// A file is at least so large, bytes: below, most of it would be its header.
const SMALLEST: u64 = 64 << 10;
/// Files at most, however small: a daemon that is started again and again makes many.
const MOST_FILES: usize = 256;
/// Part of the disk that they take at most.
const PART_OF_DISK: u64 = 16;
/// Bytes before a payload.
const FRAME: usize = 24;
/// The largest payload that is read, bytes: one of a minute and sixteen GPUs is a hundredth of it.
const LARGEST: u32 = 8 << 20;
/// ... and what it may come to.
const LARGEST_TEXT: u64 = 64 << 20;
/// Rows of one GPU that one answer is made from, so that it takes a moment: no new row is begun after so many, and one that is made of more is cut.
const READ_AT_ONCE: usize = 100_000;
/// ... and that it holds.
const ANSWER: usize = 20_000;

/// What every file begins with.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Header {
    version: u32,
    /// carma's version.
    carma: String,
    journal: String,
    life: String,
    boot: String,
    gpus: Vec<RecordedGpu>,
}

impl Header {
    pub(super) fn new(of: &Of<'_>, gpus: Vec<RecordedGpu>) -> Self {
        Self {
            version: VERSION,
            carma: env!("CARGO_PKG_VERSION").into(),
            journal: of.journal.into(),
            life: of.life.into(),
            boot: of.boot.into(),
            gpus,
        }
    }
}

/// Why the rows cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("what was recorded in {} cannot be read: {why}", dir.display())]
pub struct RecordError {
    dir: PathBuf,
    why: io::Error,
}

/// A block as it is written.
fn block(begin: u64, end: u64, lines: impl Iterator<Item = impl Serialize>) -> io::Result<Vec<u8>> {
    let mut text = DeflateEncoder::new(Vec::new(), Compression::default());
    for line in lines {
        serde_json::to_writer(&mut text, &line)?;
        text.write_all(b"\n")?;
    }
    let payload = text.finish()?;
    let length = u32::try_from(payload.len()).ok().filter(|length| *length <= LARGEST);
    let length = length.ok_or_else(|| io::Error::other("a block is too large"))?;
    let times = [begin.to_le_bytes(), end.to_le_bytes()].concat();
    let head = [length.to_le_bytes(), sum(&times, &payload).to_le_bytes()].concat();
    Ok([head, times, payload].concat())
}

fn sum(times: &[u8], payload: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(times);
    sum.update(payload);
    sum.finalize()
}

/// The files, for the thread that writes them.
pub(super) struct Segments {
    dir: PathBuf,
    header: Header,
    most: u64,
    /// The one that is written: its number and how long it is.
    current: Option<(u64, File, u64)>,
}

/// Files by number, with their sizes.
fn files(dir: &Path) -> io::Result<BTreeMap<u64, (PathBuf, u64)>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_suffix(".rec")?.parse().ok());
        if let (Some(number), Ok(meta)) = (number, entry.metadata())
            && meta.is_file()
        {
            files.insert(number, (entry.path(), meta.len()));
        }
    }
    Ok(files)
}

impl Segments {
    /// Files of at most so many bytes. Nothing is written yet.
    pub(super) fn open(dir: &Path, header: Header, most: u64) -> Self {
        let disk = statvfs(dir).map_or(u64::MAX, |disk| disk.f_blocks.saturating_mul(disk.f_frsize));
        Self { dir: dir.to_owned(), header, most: most.min(disk / PART_OF_DISK), current: None }
    }

    /// Writes a block of rows.
    pub(super) fn write(&mut self, rows: &[Row]) -> io::Result<()> {
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else { return Ok(()) };
        let begin = first.at_ms.saturating_sub(first.span_ms);
        let block = block(begin, last.at_ms, rows.iter())?;
        let written = self.append(begin, &block);
        if written.is_err() {
            // What is behind a torn block would not be found.
            self.current = None;
        }
        written
    }

    fn append(&mut self, begin: u64, block: &[u8]) -> io::Result<()> {
        let size = (self.most / FILES).max(SMALLEST);
        let full = |(_, _, length): &(u64, File, u64)| length + block.len() as u64 > size;
        if self.current.as_ref().is_none_or(full) {
            self.current = None;
            self.current = Some(self.begin(begin)?);
        }
        let current = self.current.as_ref().map(|(number, ..)| *number);
        self.prune(current, block.len() as u64)?;
        if let Some((_, file, length)) = &mut self.current {
            file.write_all(block)?;
            *length += block.len() as u64;
        }
        Ok(())
    }

    /// Begins a file.
    fn begin(&self, at: u64) -> io::Result<(u64, File, u64)> {
        let header = block(at, at, std::iter::once(&self.header))?;
        self.prune(None, header.len() as u64)?;
        let number = files(&self.dir)?.last_key_value().map_or(1, |(last, _)| last + 1);
        let path = self.dir.join(format!("{number:08}.rec"));
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&path)?;
        if let Err(e) = file.write_all(&header) {
            let _ = fs::remove_file(&path);
            return Err(e);
        }
        Ok((number, file, header.len() as u64))
    }

    /// Removes the oldest files until there is room for `more` bytes; never the one that is written.
    fn prune(&self, current: Option<u64>, more: u64) -> io::Result<()> {
        let files = files(&self.dir)?;
        let mut total: u64 = files.values().map(|(_, size)| size).sum();
        let mut count = files.len();
        for (number, (path, size)) in files {
            if Some(number) == current || (total + more <= self.most && count <= MOST_FILES) {
                break;
            }
            fs::remove_file(path)?;
            (total, count) = (total - size, count - 1);
        }
        Ok(())
    }
}

/// Rows of a span of time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Page {
    /// When the oldest row begins that is kept.
    pub first: Option<Millis>,
    /// The GPUs of this time by index: of those that had one after another, the last. Rows of the others are left out.
    pub gpus: Vec<RecordedGpu>,
    /// Rows by time.
    pub rows: Vec<Row>,
    /// There is more after this time.
    pub next: Option<Millis>,
}

/// One file, for a reader.
struct Segment {
    path: PathBuf,
    begin: u64,
    gpus: Vec<RecordedGpu>,
}

/// What is before a payload.
struct Frame {
    length: u32,
    sum: u32,
    times: [u8; 16],
}

impl Frame {
    /// `None`: the file ends here, or what follows is no block.
    fn read(file: &mut impl Read) -> Option<Self> {
        let mut bytes = [0; FRAME];
        file.read_exact(&mut bytes).ok()?;
        let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let (length, sum) = (word(0)?, word(4)?);
        let times = bytes.get(8..)?.try_into().ok()?;
        (length <= LARGEST).then_some(Self { length, sum, times })
    }

    fn time(&self, at: usize) -> u64 {
        let bytes = self.times.get(at * 8..at * 8 + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u64::from_le_bytes)
    }

    /// Whether it is of rows that end after a time. So the header is not.
    fn has_rows_after(&self, since: u64) -> bool {
        self.time(1) > since && self.time(0) != self.time(1)
    }

    /// The lines of the payload that follows; `None`: it is damaged, or the file was torn within it.
    fn lines<T: DeserializeOwned>(&self, file: &mut impl Read) -> Option<Vec<T>> {
        let mut payload = vec![0; self.length as usize];
        file.read_exact(&mut payload).ok()?;
        if sum(&self.times, &payload) != self.sum {
            return None;
        }
        let mut text = Vec::new();
        let read = DeflateDecoder::new(&payload[..]).take(LARGEST_TEXT).read_to_end(&mut text);
        read.ok()?;
        text.split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_slice(line).ok())
            .collect()
    }
}

fn open(path: &Path) -> io::Result<BufReader<File>> {
    File::options().read(true).custom_flags(libc::O_NOFOLLOW).open(path).map(BufReader::new)
}

impl Segment {
    /// `None`: it is none, or of another version.
    fn of(path: &Path) -> Option<Self> {
        let mut file = open(path).ok()?;
        let frame = Frame::read(&mut file)?;
        let header = frame.lines::<Header>(&mut file)?.pop()?;
        (header.version == VERSION).then(|| Self {
            path: path.to_owned(),
            begin: frame.time(0),
            gpus: header.gpus,
        })
    }

    /// Whether rows of a span of time may be in it.
    fn reaches_into(&self, since: Millis, until: Millis) -> bool {
        let Ok(mut file) = open(&self.path) else { return false };
        while let Some(frame) = Frame::read(&mut file) {
            if frame.has_rows_after(since.0) {
                return frame.time(0) < until.0;
            }
            if file.seek_relative(i64::from(frame.length)).is_err() {
                break;
            }
        }
        false
    }
}

/// GPUs of several times, the latest time first, by index. An index is the GPU's that had it last, and a GPU has its last index.
fn by_index<'a>(latest_first: impl Iterator<Item = &'a RecordedGpu>) -> Vec<RecordedGpu> {
    let mut gpus: Vec<RecordedGpu> = Vec::new();
    for gpu in latest_first {
        if !gpus.iter().any(|later| later.gpu == gpu.gpu || later.uuid == gpu.uuid) {
            gpus.push(gpu.clone());
        }
    }
    gpus.sort_by_key(|gpu| gpu.gpu);
    gpus
}

/// What is being put together.
struct Answer {
    since: u64,
    until: u64,
    step: u64,
    /// Rows from here on are known from elsewhere.
    known: u64,
    /// GPUs that it tells of.
    gpus: Vec<RecordedGpu>,
    fold: Fold,
    bucket: u64,
    rows: Vec<Row>,
    /// Rows of one GPU that were read, and that are in `rows`.
    read: usize,
    made: usize,
}

impl Answer {
    /// Takes a row of these GPUs. `false`: it is enough, and the row is not in it.
    fn take(&mut self, mut row: Row, of: &[RecordedGpu]) -> bool {
        if row.at_ms <= self.since || row.at_ms > self.until {
            return true;
        }
        // An index means nothing beyond its own time.
        row.gpus.retain_mut(|row| {
            let gpu = of.iter().find(|gpu| gpu.gpu == row.gpu);
            let told = gpu.and_then(|gpu| self.gpus.iter().find(|told| told.uuid == gpu.uuid));
            told.map(|told| row.gpu = told.gpu).is_some()
        });
        // A row that ends with a bucket is in it.
        let bucket = row.at_ms.div_ceil(self.step);
        if bucket != self.bucket {
            self.end_bucket();
            if self.read >= READ_AT_ONCE || self.made >= ANSWER {
                return false;
            }
            self.bucket = bucket;
        } else if self.read >= 2 * READ_AT_ONCE {
            // The rest of it is in the next answer.
            self.cut_bucket(self.fold.latest_ms());
            return false;
        }
        self.read += row.gpus.len().max(1);
        self.fold.add(&row);
        true
    }

    fn end_bucket(&mut self) {
        // Of rows that are not put together each keeps its own end.
        let end = if self.step > 1 { self.bucket.saturating_mul(self.step) } else { self.fold.latest_ms() };
        self.cut_bucket(end);
    }

    fn cut_bucket(&mut self, end: u64) {
        if let Some(row) = self.fold.take(end) {
            self.made += row.gpus.len().max(1);
            self.rows.push(row);
        }
    }
}

/// Reads rows that end after `since` and not after `until`, made into rows of `step`. `unwritten`: the latest rows, which may
/// be on the disk already, each with the GPUs that were there.
///
/// # Errors
/// When the directory cannot be read. What is damaged in it is passed over.
pub fn read(
    dir: &Path,
    since: Millis,
    until: Millis,
    step: Millis,
    unwritten: Vec<(&[RecordedGpu], Row)>,
) -> Result<Page, RecordError> {
    let files = files(dir).map_err(|why| RecordError { dir: dir.to_owned(), why })?;
    let segments: Vec<Segment> = files.values().filter_map(|(path, _)| Segment::of(path)).collect();
    let first = segments.first().map(|segment| segment.begin);
    let first = first.or_else(|| unwritten.first().map(|(_, row)| row.at_ms.saturating_sub(row.span_ms)));
    let begins: Vec<u64> = segments.iter().skip(1).map(|segment| segment.begin).chain([u64::MAX]).collect();
    let there = |(segment, next): &(Segment, u64)| {
        *next > since.0 && segment.begin < until.0 && segment.reaches_into(since, until)
    };
    let segments: Vec<Segment> =
        segments.into_iter().zip(begins).filter(there).map(|(segment, _)| segment).collect();
    let in_span = |row: &Row| row.at_ms > since.0 && row.at_ms <= until.0;
    let latest = unwritten.iter().rev().find(|(_, row)| in_span(row)).map_or(&[][..], |(gpus, _)| gpus);
    let written = segments.iter().rev().flat_map(|segment| &segment.gpus);
    let mut answer = Answer {
        since: since.0,
        until: until.0,
        step: step.0.max(1),
        known: unwritten.first().map_or(u64::MAX, |(_, row)| row.at_ms),
        gpus: by_index(latest.iter().chain(written)),
        fold: Fold::default(),
        bucket: 0,
        rows: Vec::new(),
        read: 0,
        made: 0,
    };
    let mut whole = true;
    for segment in &segments {
        // One that has gone in the meantime was the oldest.
        whole = whole
            && open(&segment.path).map_or(true, |mut file| read_segment(&mut file, segment, &mut answer));
    }
    whole = whole && unwritten.into_iter().all(|(gpus, row)| answer.take(row, gpus));
    if whole {
        answer.end_bucket();
    }
    let next = (!whole).then(|| answer.rows.last().map_or(since, |row| Millis(row.at_ms)));
    Ok(Page { first: first.map(Millis), gpus: answer.gpus, rows: answer.rows, next })
}

/// `false`: it is enough.
fn read_segment(file: &mut BufReader<File>, segment: &Segment, answer: &mut Answer) -> bool {
    while let Some(frame) = Frame::read(file) {
        if !frame.has_rows_after(answer.since) {
            if file.seek_relative(i64::from(frame.length)).is_err() {
                break;
            }
            continue;
        }
        if frame.time(0) >= answer.until {
            break;
        }
        let Some(rows) = frame.lines::<Row>(file) else { break };
        let known = answer.known;
        if !rows.into_iter().filter(|row| row.at_ms < known).all(|row| answer.take(row, &segment.gpus)) {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use carma_api::record::{GpuRow, Readings};

    fn header() -> Header {
        let gpu = RecordedGpu { gpu: 0, uuid: "GPU-0".into(), ..RecordedGpu::default() };
        Header::new(&Of { journal: "j", life: "l", boot: "b", inventory: &[] }, vec![gpu])
    }

    fn row(second: u64) -> Row {
        // What compresses badly.
        let value = |n: u64| {
            Some((second.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(n as u32) % 100_000) as f64)
        };
        let readings =
            Readings { smact: value(1), drama: value(9), power_w: value(21), ..Readings::default() };
        let gpu = GpuRow { gpu: 0, span_ms: 1000, readings, ..GpuRow::default() };
        Row { at_ms: second * 1000, span_ms: 1000, host: None, gpus: vec![gpu] }
    }

    fn rows(from: u64, until: u64) -> Vec<Row> {
        (from..until).map(row).collect()
    }

    fn seconds(dir: &Path, since: u64, until: u64) -> Vec<u64> {
        let page = read(dir, Millis(since * 1000), Millis(until * 1000), Millis(1), vec![]).unwrap();
        assert_eq!(page.next, None);
        page.rows.iter().map(|row| row.at_ms / 1000).collect()
    }

    #[test]
    fn a_torn_tail_is_the_end_of_its_file_and_of_no_other() {
        let dir = tempfile::tempdir().unwrap();
        for life in 0..3 {
            let mut segments = Segments::open(dir.path(), header(), 1 << 30);
            for block in 0..5 {
                let from = life * 100 + block * 10 + 1;
                segments.write(&rows(from, from + 10)).unwrap();
            }
        }
        let all: Vec<u64> = (0..3).flat_map(|life| life * 100 + 1..life * 100 + 51).collect();
        assert_eq!(seconds(dir.path(), 0, 1000), all);
        assert_eq!(seconds(dir.path(), 118, 122), [119, 120, 121, 122]);
        assert_eq!(seconds(dir.path(), 60, 99), [0; 0]);
        // Rows that are about to be written count once.
        let gpus = header().gpus;
        let unwritten = rows(245, 253).into_iter().map(|row| (&*gpus, row)).collect();
        let page = read(dir.path(), Millis(0), Millis(1 << 40), Millis(1), unwritten).unwrap();
        let of_all: Vec<u64> = page.rows.iter().map(|row| row.at_ms / 1000).collect();
        assert_eq!(of_all, all.iter().copied().chain([251, 252]).collect::<Vec<_>>());
        let middle = dir.path().join("00000002.rec");
        let whole = fs::read(&middle).unwrap();
        for cut in (0..whole.len()).step_by(7) {
            fs::write(&middle, &whole[..cut]).unwrap();
            let left = seconds(dir.path(), 0, 1000);
            assert!(left.len() >= 100 && left.len() < 150 && left.is_sorted(), "{cut}: {left:?}");
        }
        for at in (0..whole.len()).step_by(11) {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            fs::write(&middle, damaged).unwrap();
            assert!(seconds(dir.path(), 0, 1000).len() < 150, "{at}");
        }
        // Other files are nothing to it.
        fs::write(dir.path().join("note.txt"), "x").unwrap();
        fs::write(dir.path().join("00000009.rec"), "x").unwrap();
        fs::write(&middle, whole).unwrap();
        assert_eq!(seconds(dir.path(), 0, 1000), all);
    }

    #[test]
    fn the_oldest_go_when_there_is_no_room() {
        let dir = tempfile::tempdir().unwrap();
        let most = FILES * SMALLEST;
        let mut segments = Segments::open(dir.path(), header(), most);
        for block in 0..1500 {
            segments.write(&rows(block * 60 + 1, block * 60 + 61)).unwrap();
            if block % 100 == 99 {
                let total: u64 = files(dir.path()).unwrap().values().map(|(_, size)| size).sum();
                assert!(total <= most, "{total}");
            }
        }
        let files = files(dir.path()).unwrap();
        assert!(files.len() > 8 && *files.keys().next().unwrap() > 1, "{files:?}");
        let page = read(dir.path(), Millis(0), Millis(u64::MAX), Millis::secs(60), vec![]).unwrap();
        assert!(page.first.unwrap() > Millis(0) && page.rows.last().unwrap().at_ms == 90_000_000);
        assert!(page.rows.iter().all(|row| row.span_ms == 60_000));
        // A daemon that begins again and again leaves no end of files.
        for life in 0..MOST_FILES as u64 + 20 {
            let from = 100_000 + life * 10;
            Segments::open(dir.path(), header(), 1 << 30).write(&rows(from, from + 1)).unwrap();
        }
        assert_eq!(super::files(dir.path()).unwrap().len(), MOST_FILES);
    }

    #[test]
    fn an_index_is_the_gpus_that_had_it_last_in_the_time_that_is_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let gpu = |gpu, uuid: &str| RecordedGpu { gpu, uuid: uuid.into(), ..RecordedGpu::default() };
        let lives = [
            (1, vec![gpu(0, "virtual-0"), gpu(1, "virtual-1")]),
            (100, vec![gpu(0, "GPU-a"), gpu(1, "GPU-b")]),
            (200, vec![gpu(0, "GPU-b")]),
        ];
        // Each GPU has a power of its own.
        let powers = BTreeMap::from([("virtual-0", 1.0), ("virtual-1", 2.0), ("GPU-a", 3.0), ("GPU-b", 4.0)]);
        let row = |gpus: &[RecordedGpu], second: u64| {
            let one = |gpu: &RecordedGpu| {
                let readings = Readings { power_w: powers.get(&*gpu.uuid).copied(), ..Readings::default() };
                GpuRow { gpu: gpu.gpu, span_ms: 1000, readings, ..GpuRow::default() }
            };
            let gpus = gpus.iter().map(one).collect();
            Row { at_ms: second * 1000, span_ms: 1000, host: None, gpus }
        };
        for (from, gpus) in &lives[..2] {
            let header = Header { gpus: gpus.clone(), ..header() };
            let rows: Vec<Row> = (*from..from + 10).map(|second| row(gpus, second)).collect();
            Segments::open(dir.path(), header, 1 << 30).write(&rows).unwrap();
        }
        // The last life has written nothing yet.
        let told = |since: u64, until: u64| {
            let (from, gpus) = &lives[2];
            let unwritten = (*from..from + 10).map(|second| (&**gpus, row(gpus, second))).collect();
            let time = |second: u64| Millis(second * 1000);
            let page = read(dir.path(), time(since), time(until), Millis(1), unwritten).unwrap();
            let gpus: Vec<(u32, String)> = page.gpus.into_iter().map(|gpu| (gpu.gpu, gpu.uuid)).collect();
            for row in page.rows.iter().flat_map(|row| &row.gpus) {
                let (_, uuid) = gpus.iter().find(|(index, _)| *index == row.gpu).unwrap();
                assert_eq!(row.readings.power_w, powers.get(&**uuid).copied(), "{uuid}");
            }
            let rows = page.rows.iter().map(|row| row.gpus.len()).sum::<usize>();
            (gpus.into_iter().map(|(_, uuid)| uuid).collect::<Vec<_>>(), rows)
        };
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(told(0, 50), (names(&["virtual-0", "virtual-1"]), 20));
        // A time in which nothing was, and with what came after it.
        assert_eq!(told(50, 90), (vec![], 0));
        assert_eq!(told(50, 150), (names(&["GPU-a", "GPU-b"]), 20));
        assert_eq!(told(0, 150), (names(&["GPU-a", "GPU-b"]), 20));
        // The second became the first.
        assert_eq!(told(50, 300), (names(&["GPU-b"]), 20));
        assert_eq!(told(150, 300), (names(&["GPU-b"]), 10));
    }

    #[test]
    fn much_is_told_in_parts() {
        let dir = tempfile::tempdir().unwrap();
        let mut segments = Segments::open(dir.path(), header(), 1 << 30);
        let count = ANSWER as u64 * 2 + 500;
        for from in (1..=count).step_by(500) {
            segments.write(&rows(from, (from + 500).min(count + 1))).unwrap();
        }
        let (mut since, mut told, mut parts) = (Millis(0), Vec::new(), 0);
        loop {
            let page = read(dir.path(), since, Millis(u64::MAX), Millis(1), vec![]).unwrap();
            told.extend(page.rows.iter().map(|row| row.at_ms / 1000));
            parts += 1;
            match page.next {
                Some(next) => since = next,
                None => break,
            }
        }
        assert_eq!((parts, told), (3, (1..=count).collect()));
    }

    /// Else one question, which any user may ask, would read all that is kept.
    #[test]
    fn a_row_of_very_much_is_told_in_parts_too() {
        let dir = tempfile::tempdir().unwrap();
        let (gpus, count) = (header().gpus, 2 * READ_AT_ONCE as u64 + 300);
        for step in [Millis(u64::MAX), Millis::secs(count)] {
            let ask = |since: u64| {
                let rows = (since + 1..=count).map(|second| (&*gpus, row(second))).collect();
                let page = read(dir.path(), Millis(since * 1000), Millis(u64::MAX), step, rows).unwrap();
                let [row] = &page.rows[..] else { panic!("{} rows", page.rows.len()) };
                (row.at_ms, row.span_ms, page.next)
            };
            let end = 2_000 * READ_AT_ONCE as u64;
            assert_eq!(ask(0), (end, end, Some(Millis(end))));
            assert_eq!(ask(end / 1000), (step.0, 300_000, None));
        }
    }

    #[test]
    fn a_disk_that_takes_nothing_loses_rows_and_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let mut segments = Segments::open(dir.path(), header(), 1 << 30);
        segments.write(&rows(1, 3)).unwrap();
        let moved = dir.path().with_extension("away");
        fs::rename(dir.path(), &moved).unwrap();
        assert!(segments.write(&rows(3, 5)).is_err());
        assert!(read(dir.path(), Millis(0), Millis(1 << 40), Millis(1), vec![]).is_err());
        fs::rename(&moved, dir.path()).unwrap();
        segments.write(&rows(5, 7)).unwrap();
        assert_eq!(seconds(dir.path(), 0, 100), [1, 2, 5, 6]);
    }
}
