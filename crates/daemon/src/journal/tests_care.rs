//! Damage is found and never a panic, repair saves what is left, and crashes are no damage.

use super::tests::{SETTINGS, gpu, submitted, write};
use super::*;
use carma_core::explain::Reason;
use carma_core::input::Action;
use carma_core::model::{GpuId, JobState, Placement, ProcessRef, SharingMode, User};
use carma_core::state::State;
use carma_core::units::MiB;
use rusqlite::types::Value;
use std::collections::BTreeMap;
use std::fs;
use tempfile::TempDir;

/// A state directory as the daemon has it.
fn place() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    for sub in ["run", "logs"] {
        fs::create_dir(dir.path().join(sub)).unwrap();
    }
    let journal = dir.path().join("carma.db");
    (dir, journal)
}

fn opened(path: &Path) -> Journal {
    Journal::open(
        path,
        &Settings { sync: Sync::Full, inputs: 1000, keep: Keep { jobs: 1000, ..SETTINGS.keep }, ..SETTINGS },
    )
    .unwrap()
}

fn stored(env: &str) -> StoredJob {
    let env = BTreeMap::from([("VALUE".to_owned(), env.to_owned())]);
    let request =
        SubmitRequest { command: vec!["x".into()], cwd: "/".into(), env, ..SubmitRequest::default() };
    StoredJob { request, uid: 1, gid: 1, log: "/log".into(), estimate: None }
}

/// Submits a job with its row and environment.
fn submit(journal: &mut Journal, state: &mut State, id: u64, env: &str) {
    let at = state.now() + Millis(1);
    let input = submitted(id);
    state.apply(at, &input).unwrap();
    let jobs = vec![(JobId(id), stored(env))];
    journal.commit(&Batch { inputs: vec![(at, input)], jobs, ..Batch::default() }).unwrap();
}

fn cancel(journal: &mut Journal, state: &mut State, id: u64) {
    let by = User::new(0, "root");
    write(journal, state, [Input::Cancel { job: JobId(id), by }]);
}

/// A journal with some of everything, closed.
fn lived(path: &Path) -> State {
    let (mut journal, mut state) = (opened(path), State::default());
    journal.recover().unwrap();
    write(&mut journal, &mut state, [gpu()]);
    for id in 1..=60 {
        submit(&mut journal, &mut state, id, &"v".repeat(usize::try_from(id * 37 % 900).unwrap()));
    }
    for id in 1..=40 {
        cancel(&mut journal, &mut state, id);
    }
    let row = |n: u64| carma_memory::history::HistoryRow {
        table: carma_memory::history::Table::Context,
        key: n.to_string(),
        body: Some("{}".repeat(20)),
    };
    journal.commit(&Batch { learned: (0..30).map(row).collect(), ..Batch::default() }).unwrap();
    journal.begin_life(journal.latest().unwrap() + Millis(1), "l", "h", "b").unwrap();
    journal.since_snapshot = u64::MAX / 2;
    journal.fold(&state).unwrap();
    for id in 61..=70 {
        submit(&mut journal, &mut state, id, "after the snapshot");
    }
    state
}

/// All that a journal holds, as rows of text.
fn dump(path: &Path) -> rusqlite::Result<Vec<String>> {
    let db = read::open_to_read(path)?;
    let mut lines = Vec::new();
    for table in ["inputs", "snapshots", "environments", "jobs", "history", "memory", "meta", "lives"] {
        let mut query = db.prepare(&format!("SELECT * FROM {table}"))?;
        let columns = query.column_count();
        let mut rows = query.query([])?;
        while let Some(row) = rows.next()? {
            let values = (0..columns).map(|at| row.get::<_, Value>(at)).collect::<Result<Vec<_>, _>>()?;
            lines.push(format!("{table} {values:?}"));
        }
    }
    Ok(lines)
}

fn broken(path: &Path) -> Vec<Finding> {
    check(path).into_iter().filter(|finding| !finding.ok).collect()
}

fn refusal(path: &Path) -> String {
    let opened = Journal::open(path, &SETTINGS).and_then(|mut journal| journal.recover().map(drop));
    let error = opened.err().unwrap_or_else(|| panic!("it was not refused")).to_string();
    for word in ["carma journal check --state", "carma journal repair --state", "carma.db"] {
        assert!(error.contains(word), "{error}");
    }
    error
}

#[test]
fn every_flipped_byte_is_found_or_harmless() {
    let (_dir, path) = place();
    lived(&path);
    assert_eq!(broken(&path), []);
    let (good, rows) = (fs::read(&path).unwrap(), dump(&path).unwrap());
    let (_flipped, copy) = place();
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = |below: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        usize::try_from(random % below as u64).unwrap()
    };
    let mut found = 0;
    // Half of them in the header and the first pages, which hold the tables' definitions.
    for round in 0..400 {
        let below = if round % 4 == 0 {
            100
        } else if round % 4 == 1 {
            8192
        } else {
            good.len()
        };
        let (at, bit) = (next(below), next(8));
        let mut bytes = good.clone();
        bytes[at] ^= 1 << bit;
        for ending in ["-wal", "-shm", ".head"] {
            let _ = fs::remove_file(with_ending(&copy, ending));
        }
        fs::write(&copy, &bytes).unwrap();
        if !broken(&copy).is_empty() {
            found += 1;
            // The daemon's own look is shorter, and whatever it lets through must not be a panic.
            let _ = Journal::open(&copy, &SETTINGS).and_then(|mut journal| journal.recover());
            continue;
        }
        assert_eq!(dump(&copy).unwrap(), rows, "bit {bit} of byte {at} changes rows and is not found");
        let mut journal = Journal::open(&copy, &SETTINGS).unwrap();
        assert!(journal.recover().is_ok(), "bit {bit} of byte {at}");
        write(&mut journal, &mut State::default(), []);
    }
    assert!(found > 150, "only {found} of 400 flips were found");
}

#[test]
fn a_sound_journal_is_sound_while_it_is_written_to() {
    let (_dir, path) = place();
    let (mut journal, mut state) = (opened(&path), State::default());
    write(&mut journal, &mut state, [gpu()]);
    submit(&mut journal, &mut state, 1, "");
    let view = check::View::of(&path).unwrap();
    submit(&mut journal, &mut state, 2, "");
    assert_eq!(
        head::read(&path).unwrap().next_job,
        3,
        "the file beside the journal is ahead of what is looked at"
    );
    let broken: Vec<Finding> =
        check::examine(&path, &view).into_iter().filter(|finding| !finding.ok).collect();
    assert_eq!(broken, []);
}

#[test]
fn a_flipped_byte_in_what_decides_stops_the_start() {
    for table in ["inputs", "jobs", "environments", "snapshots"] {
        let (_dir, path) = place();
        lived(&path);
        let db = Connection::open(&path).unwrap();
        let column = if table == "jobs" { "spec" } else { "body" };
        // One character, and the row is as well-formed as before.
        db.execute_batch(&format!(
            "UPDATE {table} SET {column} = replace({column}, 'a', 'b') WHERE rowid = (SELECT max(rowid) FROM {table})"
        ))
        .unwrap();
        drop(db);
        assert!(!broken(&path).is_empty(), "{table}");
        let mut journal = match Journal::open(&path, &SETTINGS) {
            Ok(journal) => journal,
            Err(e) => panic!("{table}: {e}"),
        };
        let recovered = journal.recover();
        match table {
            "inputs" => assert!(matches!(recovered, Err(JournalError::Refused { .. })), "{table}"),
            // It is found when it is needed: no job is started from it.
            "jobs" | "environments" => {
                let errors = (41..=70).filter(|id| journal.job(JobId(*id)).is_err()).count();
                assert!(errors >= 1, "{table}");
            }
            _ => assert!(matches!(recovered, Err(JournalError::Refused { .. })), "{table}"),
        }
    }
}

#[test]
fn what_is_missing_is_told_and_nothing_starts_empty() {
    type Damage = fn(&Path);
    type Case<'a> = (&'a dyn Fn(&Path), &'a str);
    let run = |query: &'static str| {
        move |path: &Path| Connection::open(path).unwrap().execute_batch(query).unwrap()
    };
    let gone = run("DELETE FROM inputs WHERE seq = (SELECT max(seq) FROM inputs)");
    let middle = run("DELETE FROM inputs WHERE seq = (SELECT max(seq) - 3 FROM inputs)");
    let all = run("DELETE FROM inputs; DELETE FROM snapshots;");
    let jobs = run("DELETE FROM jobs WHERE id = 65");
    let ends = run("DELETE FROM history WHERE id = 7");
    let environments =
        run("DELETE FROM environments WHERE id = (SELECT environment FROM jobs WHERE id = 66)");
    let row = run("DELETE FROM meta");
    let table = run("DROP TABLE memory");
    let damages: [Case; 11] = [
        (&gone, "is missing"),
        (&middle, "are missing"),
        (&all, "are missing"),
        (&jobs, "jobs has"),
        (&ends, "history has 39 rows of 40"),
        (&environments, "the environment of job"),
        (&row, "the row about the whole"),
        (&table, "table memory memory is not as"),
        (&((|path| fs::write(path, "").unwrap()) as Damage), "it is empty or missing"),
        (&((|path| fs::remove_file(path).unwrap()) as Damage), "it is empty or missing"),
        (
            &((|path| fs::write(path, "x".repeat(5000)).unwrap()) as Damage),
            "its header is not that of a journal",
        ),
    ];
    for (damage, words) in damages {
        let (_dir, path) = place();
        lived(&path);
        damage(&path);
        let error = refusal(&path);
        assert!(error.contains(words), "expected {words}: {error}");
        assert!(!broken(&path).is_empty(), "{words}");
    }
}

#[test]
fn a_journal_that_lost_its_last_part_or_is_an_older_copy_is_refused() {
    let (_dir, path) = place();
    let mut journal = opened(&path);
    let mut state = State::default();
    write(&mut journal, &mut state, [gpu()]);
    submit(&mut journal, &mut state, 1, "a");
    journal.tend().unwrap();
    let (_older, copy) = place();
    backup(&path, &copy).unwrap();
    submit(&mut journal, &mut state, 2, "b");
    journal.head.write(&journal.db, &journal.meta).unwrap();
    // The write-ahead log is cut off while no daemon runs: the last one was killed.
    let (_killed, cut) = place();
    fs::copy(&path, &cut).unwrap();
    fs::copy(head::path_of(&path), head::path_of(&cut)).unwrap();
    let wal = fs::read(path.with_file_name("carma.db-wal")).unwrap();
    fs::write(cut.with_file_name("carma.db-wal"), &wal).unwrap();
    assert_eq!(broken(&cut), [], "killed, and nothing is wrong");
    fs::write(cut.with_file_name("carma.db-wal"), &wal[..wal.len() - 5000]).unwrap();
    let error = refusal(&cut);
    assert!(error.contains("job 1") && error.contains("job 2") && error.contains("--accept-loss"), "{error}");
    drop(journal);
    // An older copy in its place.
    fs::copy(&copy, &path).unwrap();
    assert!(refusal(&path).contains("older copy"));
    // Another journal in its place.
    let (_else, other) = place();
    lived(&other);
    fs::copy(&other, &path).unwrap();
    assert!(refusal(&path).contains("another journal"));
}

#[test]
fn an_older_copy_is_accepted_with_new_numbers_and_nothing_runs_again() {
    let (dir, path) = place();
    let mut journal = opened(&path);
    let mut state = State::default();
    write(&mut journal, &mut state, [gpu()]);
    submit(&mut journal, &mut state, 1, "a");
    let older = dir.path().join("older.db");
    backup(&path, &older).unwrap();
    cancel(&mut journal, &mut state, 1);
    submit(&mut journal, &mut state, 2, "b");
    let id = journal.id().to_owned();
    drop(journal);
    fs::write(dir.path().join("logs/4.log"), "").unwrap();
    fs::copy(&older, &path).unwrap();
    let asked = repair(dir.path(), false).unwrap();
    assert!(asked.saved.is_none() && asked.lost[0].starts_with("entries 3 to 4"), "{asked:?}");
    refusal(&path);
    let done = repair(dir.path(), true).unwrap();
    let saved = done.saved.clone().unwrap();
    assert!(saved.join("carma.db").exists(), "{done:?}");
    assert!(done.done.iter().any(|line| line.contains("jobs 1 are held")), "{done:?}");
    assert_eq!(broken(&path), []);
    let mut journal = opened(&path);
    assert_eq!((journal.id(), journal.next_job()), (&*id, JobId(5)), "above the log");
    let state = journal.recover().unwrap();
    assert_eq!(state.jobs().len(), 1);
    assert!(state.queue().is_empty(), "it may have run");
    assert_eq!(repair(dir.path(), true).unwrap(), Repair::default(), "once is enough");
}

#[test]
fn what_was_under_way_is_ended_for_good_whatever_was_to_become_of_it() {
    let by = || User::new(0, "root");
    let (job, attempt) = (JobId(1), 1);
    let leaves = vec![
        Input::Suspend { job, by: by() },
        Input::Decided(Box::new(Action::Suspend { job, attempt, cause: None })),
    ];
    let suspended: Vec<Input> =
        leaves.iter().cloned().chain([Input::Suspended { job, attempt, host: MiB::gib(1) }]).collect();
    let requeued = vec![Input::Requeue { job, by: by() }];
    let cases = [
        (Vec::new(), JobState::Failed),
        (leaves, JobState::Cancelled),
        (suspended, JobState::Failed),
        (requeued, JobState::Cancelled),
    ];
    for (what, state_at_end) in cases {
        let (dir, path) = place();
        let (mut journal, mut state) = (opened(&path), State::default());
        write(&mut journal, &mut state, [gpu()]);
        submit(&mut journal, &mut state, job.0, "a");
        let (sharing, supervisor) = (SharingMode::TimeSlice, ProcessRef { pid: 1, start_ticks: 1 });
        let placement = Placement {
            attempt,
            gpus: vec![GpuId(0)],
            sharing,
            cap: None,
            part: None,
            floor: None,
            thread_percent: None,
            at: state.now(),
            reason: Reason::NotPlannedYet,
        };
        let started = Input::Started { job, attempt, supervisor, child: None, sharing, note: None };
        write(
            &mut journal,
            &mut state,
            [Input::Decided(Box::new(Action::Launch { job, placement })), started],
        );
        // The last entry is lost.
        write(&mut journal, &mut state, what.into_iter().chain([Input::Tick]));
        drop(journal);
        let cut = "DELETE FROM inputs WHERE seq = (SELECT max(seq) FROM inputs)";
        Connection::open(&path).unwrap().execute_batch(cut).unwrap();
        let done = repair(dir.path(), true).unwrap();
        assert!(done.done.iter().any(|line| line.starts_with("jobs 1 are ended, since")), "{done:?}");
        assert_eq!(broken(&path), []);
        assert_eq!(opened(&path).recover().unwrap().jobs().len(), 0, "nothing runs again");
        let db = read::open_to_read(&path).unwrap();
        let told: String = db.query_row("SELECT state FROM history", [], |row| row.get(0)).unwrap();
        assert_eq!(told, state_at_end.as_str());
    }
}

#[test]
fn a_repair_saves_what_can_be_read() {
    let (dir, path) = place();
    let state = lived(&path);
    // The root page of the history is lost, and with it most of that.
    let root: u64 = Connection::open(&path)
        .unwrap()
        .query_row("SELECT rootpage FROM sqlite_schema WHERE name = 'history'", [], |row| row.get(0))
        .unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let at = usize::try_from((root - 1) * 4096).unwrap();
    bytes[at..at + 4096].fill(0xa5);
    bytes[3] = b'?';
    fs::write(&path, &bytes).unwrap();
    refusal(&path);
    let asked = repair(dir.path(), false).unwrap();
    assert!(asked.lost.iter().any(|line| line.contains("history")) && asked.saved.is_none(), "{asked:?}");
    assert_eq!(fs::read(&path).unwrap(), bytes, "nothing was changed");
    let done = repair(dir.path(), true).unwrap();
    assert_eq!(fs::read(done.saved.unwrap().join("carma.db")).unwrap(), bytes);
    assert_eq!(broken(&path), []);
    let mut journal = opened(&path);
    assert_eq!(journal.recover().unwrap(), state, "no entry was lost");
    assert_eq!(journal.next_job(), JobId(71));
    assert_eq!(journal.learned().unwrap().len(), 30);
    assert_eq!(journal.lives().unwrap().len(), 1);
    for id in 41..=70 {
        assert!(journal.job(JobId(id)).unwrap().is_some());
    }
}

#[test]
fn what_a_newer_carma_wrote_is_never_rewritten() {
    let (dir, path) = place();
    lived(&path);
    let newer = |version: u32| {
        let db = Connection::open(&path).unwrap();
        db.pragma_update(None, "user_version", version).unwrap();
        drop(db);
        fs::read(&path).unwrap()
    };
    for records in [true, false] {
        let bytes = newer(4);
        let [finding] = &*broken(&path) else { panic!("one finding") };
        assert!(finding.text.contains("format 4") && finding.instead.is_some(), "{finding:?}");
        for accept_loss in [false, true] {
            let error = repair(dir.path(), accept_loss).unwrap_err().to_string();
            assert!(error.contains("format 4") && error.contains("newer carma"), "{error}");
            assert_eq!(fs::read(&path).unwrap(), bytes, "nothing was changed");
        }
        if records {
            // Damage beside it changes nothing of that.
            fs::remove_dir(dir.path().join("run")).unwrap();
            let mut bytes = bytes;
            bytes[3] = b'?';
            fs::write(&path, &bytes).unwrap();
            assert!(repair(dir.path(), true).unwrap_err().to_string().contains("format 4"));
            bytes[3] = b'i';
            fs::write(&path, &bytes).unwrap();
            Connection::open(&path).unwrap().execute_batch("CREATE TABLE newer (a)").unwrap();
        }
    }
    // A flipped bit in the number itself is damage, where all tables are known.
    newer(3 + (1 << 20));
    assert!(repair(dir.path(), true).is_err(), "a table that is not known");
    Connection::open(&path).unwrap().execute_batch("DROP TABLE newer").unwrap();
    assert!(refusal(&path).contains("its header says format"));
    repair(dir.path(), true).unwrap();
    assert_eq!(broken(&path), []);
}

#[test]
fn a_broken_snapshot_is_replaced_by_the_entries_before_it() {
    for all_entries in [true, false] {
        let (dir, path) = place();
        let state = lived(&path);
        let db = Connection::open(&path).unwrap();
        db.execute_batch("UPDATE snapshots SET body = '{}'").unwrap();
        if !all_entries {
            db.execute_batch("DELETE FROM inputs WHERE seq < 50").unwrap();
        }
        drop(db);
        refusal(&path);
        let done = repair(dir.path(), true).unwrap();
        assert!(done.saved.is_some(), "{done:?}");
        assert_eq!(broken(&path), []);
        let mut journal = opened(&path);
        if all_entries {
            assert_eq!(journal.recover().unwrap(), state);
            continue;
        }
        // Nothing tells the state any more. What is known of jobs is said, and no number is used again.
        assert!(done.lost.iter().any(|line| line.starts_with("what became of jobs 41, 42,")), "{done:?}");
        assert_eq!(journal.recover().unwrap().jobs().len(), 0);
        assert_eq!(journal.next_job(), JobId(71));
    }
}

#[test]
fn an_interrupted_repair_is_completed() {
    let (dir, path) = place();
    let state = lived(&path);
    let repaired = path.with_added_extension("repaired");
    fs::rename(&path, &repaired).unwrap();
    assert!(refusal(&path).contains("interrupted"));
    repair(dir.path(), false).unwrap();
    assert!(!repaired.exists());
    assert_eq!(opened(&path).recover().unwrap(), state);
}

#[test]
fn a_crash_at_any_commit_is_no_damage() {
    for sync in [Sync::Full, Sync::Normal] {
        let (_dir, path) = place();
        let mut journal = Journal::open(&path, &Settings { sync, ..SETTINGS }).unwrap();
        let mut state = State::default();
        for id in 0..40 {
            match id {
                0 => write(&mut journal, &mut state, [gpu()]),
                _ => submit(&mut journal, &mut state, id, &"e".repeat(3000)),
            }
            journal.tend().unwrap();
            // What a killed daemon leaves, and what a power cut leaves that took the side file's last writes or all
            // of it.
            let (_killed, copy) = place();
            for ending in ["", "-wal", ".head"] {
                let name = |path: &Path| path.with_file_name(format!("carma.db{ending}"));
                fs::copy(name(&path), name(&copy)).unwrap();
            }
            for head in [None, Some(""), Some("carma-jour")] {
                if let Some(text) = head {
                    fs::write(head::path_of(&copy), text).unwrap();
                }
                assert_eq!(broken(&copy), [], "after job {id}");
            }
            assert_eq!(Journal::open(&copy, &SETTINGS).unwrap().recover().unwrap(), state, "after job {id}");
        }
    }
}

#[test]
fn with_normal_sync_a_power_cut_may_take_the_write_ahead_log_and_is_no_damage() {
    let (_dir, path) = place();
    let mut journal = Journal::open(&path, &SETTINGS).unwrap();
    let mut state = State::default();
    write(&mut journal, &mut state, [gpu()]);
    submit(&mut journal, &mut state, 1, "a");
    journal.tend().unwrap();
    for id in 2..=5 {
        submit(&mut journal, &mut state, id, "b");
        journal.tend().unwrap();
    }
    let (_cut, copy) = place();
    fs::copy(&path, &copy).unwrap();
    fs::copy(head::path_of(&path), head::path_of(&copy)).unwrap();
    assert_eq!(broken(&copy), [], "what was claimed is what was on disk");
    let recovered = Journal::open(&copy, &SETTINGS).unwrap().recover().unwrap();
    assert!(recovered.jobs().len() < 5);
}

#[test]
fn a_journal_that_is_not_there_any_more_takes_nothing() {
    let (dir, path) = place();
    let mut journal = opened(&path);
    journal.anchor(&dir.path().join("run")).unwrap();
    let batch = || Batch { inputs: vec![(Millis(1), gpu())], ..Batch::default() };
    journal.commit(&batch()).unwrap();
    fs::remove_dir(dir.path().join("run")).unwrap();
    let error = journal.commit(&batch()).unwrap_err();
    assert!(matches!(&error, JournalError::Gone(path) if path.ends_with("run")), "{error}");
    fs::create_dir(dir.path().join("run")).unwrap();
    let (_dir, path) = place();
    let mut journal = opened(&path);
    journal.commit(&batch()).unwrap();
    fs::rename(&path, path.with_extension("old")).unwrap();
    fs::write(&path, "").unwrap();
    assert!(matches!(journal.commit(&batch()), Err(JournalError::Gone(_))));
    assert!(matches!(journal.tend(), Err(JournalError::Gone(_))));
}

#[test]
fn a_crash_while_the_journal_is_made_is_no_damage() {
    let (_dir, path) = place();
    let mut db = rusqlite::Connection::open(&path).unwrap();
    // No room in memory, so that half of the transaction is in the file.
    db.pragma_update(None, "cache_size", 1).unwrap();
    let tx = db.transaction().unwrap();
    tx.execute_batch("CREATE TABLE t (x); WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 999) INSERT INTO t SELECT randomblob(999) FROM n").unwrap();
    let (_cut, copy) = place();
    fs::copy(&path, &copy).unwrap();
    fs::copy(path.with_extension("db-journal"), copy.with_extension("db-journal")).unwrap();
    assert!(fs::metadata(&copy).unwrap().len() > 100_000);
    opened(&copy).commit(&Batch { inputs: vec![(Millis(1), gpu())], ..Batch::default() }).unwrap();
    assert_eq!(broken(&copy), []);
}

#[test]
fn a_look_that_fails_does_not_end_the_daemon() {
    let (_dir, path) = place();
    drop(opened(&path));
    let anchor = Anchor::of(&path).unwrap();
    for errno in [libc::EIO, libc::ENOMEM, libc::EINTR, libc::EACCES] {
        assert!(anchor.holds_by(Err(std::io::Error::from_raw_os_error(errno))), "{errno}");
    }
    for errno in [libc::ENOENT, libc::ENOTDIR] {
        assert!(!anchor.holds_by(Err(std::io::Error::from_raw_os_error(errno))), "{errno}");
    }
}

#[test]
fn a_backup_is_a_journal_and_replaces_nothing() {
    use std::os::unix::fs::PermissionsExt;
    let (dir, path) = place();
    let state = lived(&path);
    let to = dir.path().join("copy.db");
    backup(&path, &to).unwrap();
    assert_eq!(fs::metadata(&to).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(broken(&to), []);
    assert_eq!(dump(&to).unwrap(), dump(&path).unwrap());
    assert_eq!(opened(&to).recover().unwrap(), state);
    let error = backup(&path, &to).unwrap_err().to_string();
    assert!(error.contains("replaces nothing"), "{error}");
    // Of a damaged one there is none.
    Connection::open(&path).unwrap().execute_batch("UPDATE jobs SET log = 'no' WHERE id = 70").unwrap();
    let to = dir.path().join("other.db");
    let error = backup(&path, &to).unwrap_err().to_string();
    assert!(error.contains("70 is not what was written") && !to.exists(), "{error}");
    assert_eq!(
        fs::read_dir(dir.path())
            .unwrap()
            .flatten()
            .filter(|e| e.file_name().to_string_lossy().contains("part"))
            .count(),
        0
    );
}

#[test]
fn environments_of_jobs_that_are_over_give_their_space_back() {
    let (_dir, path) = place();
    let mut journal = opened(&path);
    let mut state = journal.recover().unwrap();
    write(&mut journal, &mut state, [gpu()]);
    let large = |id: u64| format!("{id}").repeat((2 << 20) / id.to_string().len());
    for id in 1..=30 {
        submit(&mut journal, &mut state, id, &large(id));
    }
    let full = fs::metadata(&path).unwrap().len();
    assert!(full > 50 << 20, "{full}");
    for id in 1..=29 {
        cancel(&mut journal, &mut state, id);
    }
    for _ in 0..200 {
        journal.swept = Instant::now().checked_sub(Duration::from_secs(10)).unwrap();
        journal.tend().unwrap();
        if !journal.shrinking && !journal.environments.has_doomed() {
            break;
        }
    }
    let left = fs::metadata(&path).unwrap().len();
    assert!(left < 20 << 20, "{left} of {full} bytes are left");
    assert!(matches!(journal.job(JobId(1)), Err(JournalError::NoEnvironment(JobId(1)))));
    assert!(journal.job(JobId(29)).unwrap().is_some(), "the latest are kept for requeue");
    assert_eq!(journal.job(JobId(30)).unwrap().unwrap().request.env["VALUE"], large(30), "it still waits");
    drop(journal);
    assert_eq!(broken(&path), []);
    // An environment's number is not used again: job 1 must not get another's.
    let mut journal = opened(&path);
    let mut state = journal.recover().unwrap();
    submit(&mut journal, &mut state, 31, "new");
    assert!(matches!(journal.job(JobId(1)), Err(JournalError::NoEnvironment(JobId(1)))));
}

#[test]
fn an_old_file_that_is_mostly_free_is_made_smaller_at_the_start() {
    let (_dir, path) = place();
    let db = Connection::open(&path).unwrap();
    for step in schema::SCHEMA {
        db.execute_batch(step).unwrap();
    }
    let version = schema::SCHEMA.len();
    db.execute_batch(&format!(
        "PRAGMA user_version = {version}; PRAGMA journal_mode = WAL;
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 60)
         INSERT INTO environments (id, hash, body) SELECT i, i, hex(zeroblob(500000)) FROM n;
         DELETE FROM environments;"
    ))
    .unwrap();
    Meta::count(&db, None).unwrap().write(&db).unwrap();
    drop(db);
    let before = fs::metadata(&path).unwrap().len();
    assert!(before > 50 << 20, "{before}");
    drop(opened(&path));
    let after = fs::metadata(&path).unwrap().len();
    assert!(after < 1 << 20, "{after}");
    assert_eq!(broken(&path), []);
}
