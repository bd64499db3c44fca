//! Whether a journal holds what was written to it.
//!
//! At the start of the daemon: the file's structure, the tables, the row about the whole, how many rows there are, the
//! file beside the journal, and (as they are replayed) the inputs after the snapshot. `carma journal check` looks at
//! every row. Nothing here changes anything, and a daemon may be at work meanwhile.

use super::head::Claim;
use super::schema::{self, Meta, SCHEMA, Tally, WITH_SUMS};
use super::{JournalError, head, read, sums, with_ending};
use carma_core::model::{Finished, JobId};
use carma_core::state::State;
use carma_core::units::Millis;
use rusqlite::{Connection, Row};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

/// What is said of a problem at most, lines.
const MOST_LINES: usize = 5;
/// More formats than there will ever be.
const MOST_FORMATS: usize = 1000;

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What the finding is about.
    pub about: &'static str,
    /// Whether it is as it was written.
    pub ok: bool,
    /// What was found.
    pub text: String,
    /// What to do where it cannot be told what the journal holds, so that a repair is no help.
    pub instead: Option<&'static str>,
}

impl Finding {
    /// What failed stands for what is wrong, unless it says nothing of what the journal holds.
    fn failed(about: &'static str, journal: &Path, e: JournalError) -> Self {
        let e = super::or_full(journal, super::NEEDED, e);
        let instead = match &e {
            JournalError::Full { .. } => Some("make room on the disk, then look again"),
            JournalError::TooNew { .. } => Some("a newer carma wrote it: look with that one"),
            _ => None,
        };
        let text = match e {
            JournalError::Damaged(text) => text,
            e => e.to_string(),
        };
        Self { about, ok: false, text, instead }
    }
}

/// Collects findings, and says at most a few lines of each.
pub(super) struct Findings<'a> {
    journal: &'a Path,
    found: Vec<Finding>,
}

impl Findings<'_> {
    /// Enters what was looked at: fine with `text`, unless there are problems.
    fn enter(&mut self, about: &'static str, text: String, problems: Result<Vec<String>, JournalError>) {
        let problems = match problems {
            Ok(problems) => problems,
            Err(e) => return self.found.push(Finding::failed(about, self.journal, e)),
        };
        let more = problems.len().saturating_sub(MOST_LINES);
        let mut said = problems.iter().take(MOST_LINES).cloned().collect::<Vec<_>>().join("; ");
        if more > 0 {
            said += &format!("; and {more} more");
        }
        let ok = problems.is_empty();
        self.found.push(Finding { about, ok, text: if ok { text } else { said }, instead: None });
    }
}

/// The journal as it is at one moment: what a daemon writes later is not seen.
pub(super) struct View {
    /// What the file beside the journal said. It is read before: a daemon at work writes that file after its commits, so
    /// what it says later may be of entries that are not seen here.
    claim: Option<Claim>,
    /// With a transaction that has begun to read.
    db: Connection,
    /// Format of the tables.
    version: usize,
}

impl View {
    pub(super) fn of(journal: &Path) -> Result<Self, JournalError> {
        let failed = super::sql("read");
        let claim = head::read(journal);
        let db = read::open_to_read(journal).map_err(&failed)?;
        db.execute_batch("BEGIN").map_err(&failed)?;
        let version = format_of(&db)?;
        Ok(Self { claim, db, version })
    }
}

/// Looks at everything. `journal`: the file.
#[must_use]
pub fn check(journal: &Path) -> Vec<Finding> {
    match opened(journal) {
        Ok(view) => examine(journal, &view),
        Err(e) => vec![Finding::failed("file", journal, e)],
    }
}

/// What the daemon looks at before it starts anything. `Ok(false)`: there is no journal yet.
pub(super) fn at_start(journal: &Path) -> Result<bool, JournalError> {
    let refused = |why: String| JournalError::Refused { journal: journal.to_owned(), why };
    // What a full disk does not let us see is not broken, nor is what a newer carma wrote.
    let unseen = |e: JournalError, what: &str| match super::or_full(journal, super::NEEDED, e) {
        e @ (JournalError::TooNew { .. } | JournalError::Full { .. }) => e,
        e => refused(format!("{what}{e}")),
    };
    if journal.with_added_extension("repaired").exists() {
        return Err(refused("a repair of it was interrupted, and must be completed by another".into()));
    }
    roll_back(journal).map_err(|e| unseen(e, "what was half written cannot be taken back: "))?;
    if !exists(journal).map_err(refused)? {
        return Ok(false);
    }
    let quick = || -> Result<Vec<String>, JournalError> {
        let mut problems = header(journal);
        if !problems.is_empty() {
            return Ok(problems);
        }
        let failed = super::sql("read");
        let View { claim, db, version } = View::of(journal)?;
        problems = integrity(&db, "quick_check").map_err(&failed)?;
        problems.extend(tables(&db, version).map_err(&failed)?);
        if !problems.is_empty() {
            return Ok(problems);
        }
        let meta = if version < WITH_SUMS { None } else { Some(whole(&db)?) };
        if let Some(meta) = &meta {
            problems.extend(counts(&db, meta).map_err(&failed)?);
        }
        problems.extend(beside(journal, claim.as_ref(), meta.as_ref()));
        Ok(problems)
    };
    match quick() {
        Ok(problems) if problems.is_empty() => Ok(true),
        Ok(mut problems) => {
            problems.truncate(MOST_LINES);
            Err(refused(problems.join("; ")))
        }
        Err(e) => Err(unseen(e, "")),
    }
}

/// Takes back a transaction that a crash interrupted while the file was made, before it had a write-ahead log: SQLite
/// does so where it may write, which the look at the file does not.
fn roll_back(journal: &Path) -> Result<(), JournalError> {
    if !journal.exists() || !with_ending(journal, "-journal").exists() {
        return Ok(());
    }
    let failed = super::sql("read");
    let db = Connection::open(journal).map_err(&failed)?;
    db.query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get::<_, i64>(0))
        .map(drop)
        .map_err(failed)
}

/// Whether there is a file with something in it. An error: there is none, and there was one.
fn exists(journal: &Path) -> Result<bool, String> {
    let length = match std::fs::metadata(journal) {
        Ok(meta) => meta.len(),
        Err(e) if e.kind() == ErrorKind::NotFound => 0,
        Err(e) => return Err(e.to_string()),
    };
    if length > 0 {
        return Ok(true);
    }
    if let Some(claim) = head::read(journal) {
        let (seq, jobs) = (claim.seq, claim.next_job.saturating_sub(1));
        return Err(format!("it is empty or missing, and {seq} entries and {jobs} jobs were written to it"));
    }
    match largest_job(journal) {
        0 => Ok(false),
        job => Err(format!(
            "it is empty or missing, and beside it are records or logs of jobs up to number {job}, which would be \
             used again"
        )),
    }
}

/// The largest number of a job that the files beside the journal know of, 0 if none.
pub(super) fn largest_job(journal: &Path) -> u64 {
    let Some(dir) = journal.parent() else { return 0 };
    let number = |name: &std::ffi::OsStr, ending: &str| -> Option<u64> {
        let name = name.to_str()?;
        name.ends_with(ending).then(|| name.split('.').next()?.parse().ok())?
    };
    [("run", ".record"), ("logs", ".log")]
        .into_iter()
        .flat_map(|(sub, ending)| {
            let entries = |dir: &Path| std::fs::read_dir(dir).into_iter().flatten().flatten();
            // The records of each life are in a directory of their own.
            let below = entries(&dir.join(sub)).filter(|e| e.file_type().is_ok_and(|kind| kind.is_dir()));
            let below: Vec<_> = below.flat_map(|life| entries(&life.path())).collect();
            entries(&dir.join(sub)).chain(below).filter_map(move |file| number(&file.file_name(), ending))
        })
        // A file that was put there with the largest number of all must not end all numbering.
        .filter(|job| *job < 1 << 53)
        .max()
        .unwrap_or(0)
}

/// The file's first bytes: those that are the same in each journal, and that SQLite does not look at as closely.
pub(super) fn header(journal: &Path) -> Vec<String> {
    let mut bytes = [0_u8; 100];
    if let Err(e) = File::open(journal).and_then(|mut file| file.read_exact(&mut bytes)) {
        return vec![format!("its header cannot be read: {e}")];
    }
    let fixed: [(usize, &[u8]); 3] = [(0, b"SQLite format 3\0"), (16, &[0x10, 0x00]), (20, &[0, 64, 32, 32])];
    let mut wrong: Vec<usize> = fixed
        .into_iter()
        .filter(|(at, expected)| bytes[*at..*at + expected.len()] != **expected)
        .map(|(at, _)| at)
        .collect();
    // Format of the tables and encoding. They are 0 until the first tables come out of the write-ahead log.
    for (at, expected) in [(44, [0, 0, 0, 4]), (56, [0, 0, 0, 1])] {
        if bytes[at..at + 4] != expected && bytes[at..at + 4] != [0; 4] {
            wrong.push(at);
        }
    }
    // How it is written and read: by a rollback journal or a write-ahead log.
    wrong.extend([18, 19].into_iter().filter(|at| !matches!(bytes[*at], 1 | 2)));
    if wrong.is_empty() {
        return Vec::new();
    }
    let places: Vec<String> = wrong.iter().map(ToString::to_string).collect();
    vec![format!("its header is not that of a journal (at byte {})", places.join(", "))]
}

/// Puts the bytes right that [`header`] looks at. Returns whether one was wrong.
pub(super) fn mend_header(bytes: &mut [u8; 100]) -> bool {
    let before = *bytes;
    bytes[..16].copy_from_slice(b"SQLite format 3\0");
    bytes[16..24].copy_from_slice(&[0x10, 0x00, 2, 2, 0, 64, 32, 32]);
    bytes[44..48].copy_from_slice(&[0, 0, 0, 4]);
    bytes[56..60].copy_from_slice(&[0, 0, 0, 1]);
    *bytes != before
}

/// SQLite's own look at the structure: `quick_check` or `integrity_check`.
fn integrity(db: &Connection, which: &str) -> rusqlite::Result<Vec<String>> {
    let mut query = db.prepare(&format!("PRAGMA {which}(20)"))?;
    let rows = query.query_map([], |row| row.get::<_, String>(0))?;
    let lines: Vec<String> = rows.collect::<Result<_, _>>()?;
    Ok(lines.into_iter().filter(|line| line != "ok").map(|line| line.replace('\n', " ")).collect())
}

/// The definitions of tables and indexes, without blanks: dropping a column leaves other blanks than there were.
fn definitions(db: &Connection) -> rusqlite::Result<BTreeMap<String, String>> {
    let mut query = db.prepare(
        "SELECT type || ' ' || name || ' ' || tbl_name, sql FROM sqlite_schema WHERE sql IS NOT NULL",
    )?;
    let rows = query.query_map([], |row| {
        let text: String = row.get(1)?;
        Ok((row.get(0)?, text.split_whitespace().collect::<String>()))
    })?;
    rows.collect()
}

/// The definitions of a version.
fn defined_by(version: usize) -> rusqlite::Result<BTreeMap<String, String>> {
    let fresh = Connection::open_in_memory()?;
    for step in SCHEMA.iter().take(version) {
        fresh.execute_batch(step)?;
    }
    definitions(&fresh)
}

/// The format of a journal.
///
/// # Errors
/// [`JournalError::TooNew`] where a newer carma wrote it.
pub(super) fn format_of(db: &Connection) -> Result<usize, JournalError> {
    let failed = super::sql("read");
    let (found, known) = (schema::version(db).map_err(&failed)?, SCHEMA.len());
    if found <= known {
        return Ok(found);
    }
    // Formats are counted one by one: where the tables are ours and the number is like that, the header is damaged.
    let damaged =
        found > MOST_FORMATS && definitions(db).map_err(&failed)? == defined_by(known).map_err(&failed)?;
    Err(if damaged {
        JournalError::Damaged(format!(
            "its header says format {found}, and its tables are those of format {known}"
        ))
    } else {
        JournalError::TooNew { found, known }
    })
}

/// Whether the tables are those of a version.
fn tables(db: &Connection, version: usize) -> rusqlite::Result<Vec<String>> {
    let (expected, mut found) = (defined_by(version)?, definitions(db)?);
    let missing = expected.into_iter().filter(|(name, text)| found.remove(name).as_ref() != Some(text));
    Ok(missing.map(|(name, _)| format!("{name} is not as format {version} defines it")).collect())
}

/// The row about the whole.
pub(super) fn whole(db: &Connection) -> Result<Meta, JournalError> {
    Meta::read(db).map_err(super::sql("read"))?.ok_or_else(|| {
        JournalError::Damaged("the row about the whole is missing or not what was written".into())
    })
}

/// Whether there are as many rows as were written, and the same ones.
fn counts(db: &Connection, meta: &Meta) -> rusqlite::Result<Vec<String>> {
    let mut problems = Vec::new();
    let (first, last, rows): (Option<i64>, Option<i64>, i64) =
        db.query_row("SELECT min(seq), max(seq), count(*) FROM inputs", [], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })?;
    let oldest: Option<i64> = db.query_row("SELECT min(seq) FROM snapshots", [], |row| row.get(0))?;
    let newest: Option<i64> = db.query_row("SELECT max(seq) FROM snapshots", [], |row| row.get(0))?;
    let before_first = first.map_or_else(|| newest.unwrap_or(0), |first| first - 1);
    let end = last.or(newest).unwrap_or(0).max(newest.unwrap_or(0));
    // A replay begins at the oldest snapshot, or at nothing.
    if before_first > oldest.unwrap_or(0) {
        problems.push(read::missing(oldest.unwrap_or(0) + 1, before_first));
    }
    if let (Some(first), Some(last)) = (first, last)
        && last - first + 1 != rows
    {
        problems.push(format!("of the entries {first} to {last}, {} are missing", last - first + 1 - rows));
    }
    if end < meta.seq {
        problems.push(read::missing(end + 1, meta.seq));
    }
    if end > meta.seq {
        problems.push(format!("there are entries up to {end}, and {} were written", meta.seq));
    }
    for (table, expected) in [("jobs", meta.jobs), ("history", meta.ended)] {
        let found = Tally::of(db, table)?;
        if found.rows != expected.rows {
            problems.push(format!("{table} has {} rows of {}", found.rows, expected.rows));
        } else if found != expected {
            problems.push(format!("rows of {table} are not those that were written"));
        }
    }
    Ok(problems)
}

/// Whether the journal goes as far as the file beside it said, and is the same one.
fn beside(journal: &Path, claim: Option<&Claim>, meta: Option<&Meta>) -> Option<String> {
    let claim = claim?;
    let path = head::path_of(journal);
    let Some(meta) = meta.filter(|meta| meta.id == claim.id) else {
        return Some(format!(
            "it is another journal than the one that was here, {} of {} entries and jobs up to {}; \
             {} names that one",
            claim.id,
            claim.seq,
            claim.next_job.saturating_sub(1),
            path.display()
        ));
    };
    (meta.seq < claim.seq || meta.next_job < claim.next_job).then(|| {
        format!(
            "it ends with entry {} and job {}, and entry {} and job {} were written: it is an older copy, or its last \
             part (the file that ends in -wal) was deleted or cut off. Numbers of jobs would be used again, and jobs \
             that ran might run again. Put the newer file back, or go on with this one by --accept-loss",
            meta.seq,
            meta.next_job.saturating_sub(1),
            claim.seq,
            claim.next_job.saturating_sub(1)
        )
    })
}

/// Goes through a table and collects what is wrong with its rows. Returns how many there are.
fn each(
    db: &Connection,
    query: &str,
    mut row: impl FnMut(&Row<'_>) -> rusqlite::Result<Option<String>>,
) -> Result<(u64, Vec<String>), JournalError> {
    let mut walk = || -> rusqlite::Result<(u64, Vec<String>)> {
        let (mut count, mut problems) = (0, Vec::new());
        let mut query = db.prepare(query)?;
        let mut rows = query.query([])?;
        while let Some(next) = rows.next()? {
            count += 1;
            problems.extend(row(next)?);
        }
        Ok((count, problems))
    };
    walk().map_err(super::sql("read"))
}

/// Opens it to look at everything. An error: that cannot be.
fn opened(journal: &Path) -> Result<View, JournalError> {
    let broken = JournalError::Damaged;
    if !exists(journal).map_err(broken)? {
        return Err(broken(format!("there is no journal at {}", journal.display())));
    }
    let wrong = header(journal);
    if !wrong.is_empty() {
        return Err(broken(wrong.join("; ")));
    }
    View::of(journal)
}

/// Looks at everything in an open journal.
pub(super) fn examine(journal: &Path, View { claim, db, version }: &View) -> Vec<Finding> {
    let mut findings = Findings { journal, found: Vec::new() };
    let read = super::sql("read");
    let pages = db.query_row("PRAGMA page_count", [], |row| row.get::<_, i64>(0));
    let structure = integrity(db, "integrity_check").map_err(&read);
    let size = pages.as_ref().map_or(0, |pages| pages * 4);
    findings.enter("file", format!("{size} KiB, format {version}"), pages.map_err(&read).and(structure));
    let definitions = tables(db, *version).map_err(&read);
    let readable = definitions.as_ref().is_ok_and(Vec::is_empty);
    findings.enter("tables", "as this format defines them".into(), definitions);
    if !readable {
        return findings.found;
    }
    if *version < WITH_SUMS {
        let text = format!("format {version} has no sums; this carma adds them when it serves this journal");
        findings.enter("sums", text, Ok(beside(journal, claim.as_ref(), None).into_iter().collect()));
        return findings.found;
    }
    let meta = whole(db);
    let (text, problems) = match &meta {
        Ok(meta) => (
            format!(
                "journal {}, {} entries, jobs up to {}",
                meta.id,
                meta.seq,
                meta.next_job.saturating_sub(1)
            ),
            counts(db, meta).map_err(&read).map(|mut problems| {
                problems.extend(beside(journal, claim.as_ref(), Some(meta)));
                problems
            }),
        ),
        Err(e) => (String::new(), Ok(vec![e.to_string()])),
    };
    findings.enter("whole", text, problems);
    rows(db, &mut findings);
    if let Ok(meta) = meta {
        replayed(db, &meta, &mut findings);
    }
    findings.found
}

/// Looks at the rows of all tables.
fn rows(db: &Connection, findings: &mut Findings<'_>) {
    let numbered = |table: &str, sum: fn(i64, Millis, &str) -> i64| {
        each(db, &format!("SELECT seq, at_ms, body, sum FROM {table} ORDER BY seq"), |row| {
            let (seq, at, body): (i64, u64, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
            Ok((sum(seq, Millis(at), &body) != row.get::<_, i64>(3)?)
                .then(|| format!("{seq} is not what was written")))
        })
    };
    let mut enter = |about, rows: Result<(u64, Vec<String>), JournalError>| {
        let count = rows.as_ref().map_or(0, |(count, _)| *count);
        findings.enter(about, format!("{count} rows"), rows.map(|(_, problems)| problems));
    };
    enter("inputs", numbered("inputs", sums::input));
    enter("snapshots", numbered("snapshots", sums::snapshot));
    let differs = |id: &dyn std::fmt::Display, sum: i64, found: i64| {
        (sum != found).then(|| format!("{id} is not what was written"))
    };
    enter(
        "environments",
        each(db, "SELECT id, hash, body, sum FROM environments", |row| {
            let id: i64 = row.get(0)?;
            let sum = sums::environment(id, row.get(1)?, &row.get::<_, String>(2)?);
            Ok(differs(&id, sum, row.get(3)?))
        }),
    );
    let query = "SELECT id, uid, gid, environment, log, spec, sum, estimate, estimate_sum FROM jobs";
    enter(
        "jobs",
        each(db, query, |row| {
            let (id, log, spec): (u64, String, String) = (row.get(0)?, row.get(4)?, row.get(5)?);
            let sum = sums::job(id, row.get(1)?, row.get(2)?, row.get(3)?, &log, &spec);
            let estimate: Option<String> = row.get(7)?;
            let of_estimate = sums::estimate(id, estimate.as_deref());
            Ok(differs(&id, sum, row.get(6)?).or(differs(&id, of_estimate, row.get(8)?)))
        }),
    );
    enter(
        "history",
        each(db, "SELECT id, uid, ended_ms, state, body, sum FROM history", |row| {
            let (id, state, body): (u64, String, String) = (row.get(0)?, row.get(3)?, row.get(4)?);
            let sum = sums::ended(id, row.get(1)?, Millis(row.get(2)?), &state, &body);
            let unread = || {
                let error = serde_json::from_str::<Finished>(&body).err()?;
                Some(format!("{id} is not understood: {error}"))
            };
            Ok(differs(&id, sum, row.get(5)?).or_else(unread))
        }),
    );
    enter(
        "memory",
        each(db, "SELECT kind, key, body, sum FROM memory", |row| {
            let (kind, key, body): (String, String, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
            Ok(differs(&key, sums::learned(&kind, &key, &body), row.get(3)?))
        }),
    );
    enter(
        "lives",
        each(db, "SELECT started_ms, life, host, boot, sum FROM lives", |row| {
            let (life, host, boot): (String, String, String) = (row.get(1)?, row.get(2)?, row.get(3)?);
            let sum = sums::life(Millis(row.get(0)?), &life, &host, &boot);
            Ok(differs(&life, sum, row.get(4)?))
        }),
    );
}

/// Replays the inputs, and looks whether the state makes sense and what it needs is there.
fn replayed(db: &Connection, meta: &Meta, findings: &mut Findings<'_>) {
    let (text, problems) = match read::replay(db, meta.seq) {
        Ok((state, inputs)) => {
            let text = format!("{} jobs that are not over, after {inputs} entries", state.jobs().len());
            (
                text,
                needed(db, &state).map(|mut problems| {
                    problems.extend(carma_core::check::check(&state));
                    problems
                }),
            )
        }
        Err(e) => (String::new(), Err(e)),
    };
    findings.enter("replay", text, problems);
}

/// What jobs that are not over need and that is not there.
pub(super) fn needed(db: &Connection, state: &State) -> Result<Vec<String>, JournalError> {
    let mut there: BTreeMap<JobId, bool> = BTreeMap::new();
    let query = "SELECT jobs.id, environments.id IS NOT NULL FROM jobs LEFT JOIN environments ON environments.id = environment";
    each(db, query, |row| {
        there.insert(JobId(row.get(0)?), row.get(1)?);
        Ok(None)
    })?;
    let missing = state.jobs().keys().filter_map(|job| match there.get(job) {
        Some(true) => None,
        Some(false) => Some(format!("the environment of job {job} is missing")),
        None => Some(format!("what was submitted as job {job} is missing")),
    });
    Ok(missing.collect())
}
