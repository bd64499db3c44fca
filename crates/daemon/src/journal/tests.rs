use super::schema::SCHEMA;
use super::write::SNAPSHOT_EVERY;
use super::*;
use carma_core::model::{Forecasts, NewJob, Request, User};
use carma_core::state::State;
use carma_memory::history::Table;
use std::collections::BTreeMap;

pub(super) const SETTINGS: Settings = Settings {
    sync: Sync::Normal,
    inputs: 100,
    keep: Keep { jobs: 10, bytes: 64 << 20 },
    environments: 5,
    reserve: 0,
};

pub(crate) fn submitted(id: u64) -> Input {
    Input::Submitted(Box::new(NewJob {
        id: JobId(id),
        user: User::new(1, "a"),
        name: "j".into(),
        command_key: 7,
        program_key: None,
        request: Request::of(1),
        forecasts: Forecasts::default(),
        profile: carma_core::model::Profile::default(),
        run_time: None,
        hold: false,
    }))
}

pub(crate) fn gpu() -> Input {
    Input::Inventory(vec![carma_core::reading::GpuInfo {
        uuid: "GPU-a".into(),
        index: 0,
        name: "x".into(),
        memory: carma_core::units::MiB::gib(40),
        kind: carma_core::reading::GpuKind::Virtual,
        has_activity: true,
        no_mps: None,
    }])
}

fn open(dir: &tempfile::TempDir) -> Journal {
    Journal::open(&dir.path().join("j.db"), &SETTINGS).unwrap()
}

pub(super) fn write(journal: &mut Journal, state: &mut State, inputs: impl IntoIterator<Item = Input>) {
    let mut batch = Batch::default();
    for input in inputs {
        let at = state.now() + Millis(1);
        if let Input::Submitted(new) = &input {
            let request = SubmitRequest { command: vec!["x".into()], ..SubmitRequest::default() };
            let stored = StoredJob { request, uid: 1, gid: 1, log: "/log".into(), estimate: None };
            batch.jobs.push((new.id, stored));
        }
        batch.finished.extend(state.apply(at, &input).unwrap().finished);
        batch.inputs.push((at, input));
    }
    journal.commit(&batch).unwrap();
}

#[test]
fn old_inputs_are_folded_and_nothing_changes() {
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, mut state) = (open(&dir), State::default());
    write(&mut journal, &mut state, [gpu(), submitted(1)]);
    for _ in 0..2 {
        write(&mut journal, &mut state, (0..SNAPSHOT_EVERY).map(|_| Input::Tick));
        journal.fold(&state).unwrap();
    }
    write(&mut journal, &mut state, [submitted(2)]);
    drop(journal);
    let mut journal = open(&dir);
    assert_eq!(journal.recover().unwrap(), state);
    let inputs: u64 = journal.db.query_row("SELECT count(*) FROM inputs", [], |r| r.get(0)).unwrap();
    assert!(inputs <= SNAPSHOT_EVERY + 101, "{inputs} inputs are left");
}

/// Nor its log, which goes with it.
#[test]
fn one_user_costs_another_no_history() {
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, mut state) = (open(&dir), State::default());
    write(&mut journal, &mut state, [gpu()]);
    let mut end = |journal: &mut Journal, uid: u32, count: usize| {
        for _ in 0..count {
            let id = state.next_id();
            let Input::Submitted(mut new) = submitted(id.0) else { unreachable!() };
            new.user = User::new(uid, "u");
            let cancel = Input::Cancel { job: id, by: User::new(0, "root") };
            write(journal, &mut state, [Input::Submitted(new), cancel]);
        }
        journal.snapshot(&state).unwrap();
        let mut rows = journal.db.prepare("SELECT id FROM history ORDER BY id").unwrap();
        let ids = rows.query_map([], |row| row.get(0)).unwrap();
        ids.collect::<Result<Vec<u64>, _>>().unwrap()
    };
    assert_eq!(end(&mut journal, 1, 2), [1, 2]);
    // Ten are kept.
    assert_eq!(end(&mut journal, 2, 28), [1, 2, 23, 24, 25, 26, 27, 28, 29, 30]);
    assert_eq!(end(&mut journal, 3, 3), [1, 2, 26, 27, 28, 29, 30, 31, 32, 33]);
    let all = end(&mut journal, 1, 9);
    assert_eq!(all, [28, 29, 30, 31, 32, 33, 39, 40, 41, 42]);
    assert!(all.iter().all(|id| journal.job(JobId(*id)).unwrap().is_some()));
    assert_eq!(journal.job(JobId(27)).unwrap(), None);
}

/// What is forgotten goes also while a job waits that is older.
#[test]
fn a_job_that_never_ends_keeps_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, mut state) = (open(&dir), State::default());
    write(&mut journal, &mut state, [gpu(), submitted(1)]);
    for id in 2..=40 {
        let cancel = Input::Cancel { job: JobId(id), by: User::new(0, "root") };
        write(&mut journal, &mut state, [submitted(id), cancel]);
    }
    write(&mut journal, &mut state, [submitted(41)]);
    // Not yet known to the state of which the snapshot is.
    let request = SubmitRequest::default();
    let later = StoredJob { request, uid: 1, gid: 1, log: String::new(), estimate: None };
    journal.commit(&Batch { jobs: vec![(JobId(42), later)], ..Batch::default() }).unwrap();
    journal.snapshot(&state).unwrap();
    let (known, over) = Journal::reader(&journal.path).unwrap().known().unwrap();
    assert_eq!(over.jobs, 10);
    assert_eq!(known, [1].into_iter().chain(31..=42).collect());
    drop(journal);
    let mut journal = open(&dir);
    assert_eq!(journal.recover().unwrap(), state);
}

/// In bytes, too: a command may have megabytes. Without a snapshot, which may take long to come.
#[test]
fn one_user_s_long_commands_fill_no_disk_and_cost_another_no_history() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("j.db");
    let settings = |mib: u64| Settings { keep: Keep { jobs: 1000, bytes: mib << 20 }, ..SETTINGS };
    let (mut journal, mut state) = (Journal::open(&path, &settings(4)).unwrap(), State::default());
    write(&mut journal, &mut state, [gpu(), submitted(1)]);
    let ids = |journal: &Journal, table: &str| {
        let mut rows = journal.db.prepare(&format!("SELECT id FROM {table} ORDER BY id")).unwrap();
        let ids = rows.query_map([], |row| row.get(0)).unwrap();
        ids.collect::<Result<Vec<u64>, _>>().unwrap()
    };
    let sweep = |journal: &mut Journal| {
        journal.swept = Instant::now().checked_sub(Duration::from_secs(2)).unwrap();
        assert_eq!(journal.due(), Some(Duration::ZERO));
        journal.tend().unwrap();
    };
    for id in 2..=40 {
        let uid = if id == 2 { 1 } else { 2 };
        let Input::Submitted(mut new) = submitted(id) else { unreachable!() };
        new.user = User::new(uid, format!("u{uid}"));
        let request = SubmitRequest { command: vec!["x".repeat(1_000_000)], ..SubmitRequest::default() };
        let stored = StoredJob { request, uid, gid: 1, log: "/log".into(), estimate: None };
        let mut batch = Batch { jobs: vec![(JobId(id), stored)], ..Batch::default() };
        let cancel = Input::Cancel { job: JobId(id), by: User::new(0, "root") };
        for input in [Input::Submitted(new), cancel] {
            let at = state.now() + Millis(1);
            batch.finished.extend(state.apply(at, &input).unwrap().finished);
            batch.inputs.push((at, input));
        }
        journal.commit(&batch).unwrap();
    }
    sweep(&mut journal);
    assert_eq!(ids(&journal, "history"), [2, 38, 39, 40]);
    assert_eq!(ids(&journal, "jobs"), [1, 2, 38, 39, 40]);
    drop(journal);
    // The file is whole, and a new limit counts at once.
    let mut journal = Journal::open(&path, &settings(2)).unwrap();
    assert_eq!(journal.recover().unwrap(), state);
    sweep(&mut journal);
    assert_eq!(ids(&journal, "jobs"), [1, 2, 40]);
    let over = |user: Option<&str>, states: &[&str]| -> Vec<u64> {
        let states = states.iter().map(|state| (*state).to_owned()).collect();
        let which = Which { user: user.map(str::to_owned), states };
        let found = Journal::reader(&path).unwrap().history(Millis::ZERO, 10, &which).unwrap();
        found.iter().map(|over| over.job.spec.id.0).collect()
    };
    assert_eq!(
        (over(None, &[]), over(Some("u1"), &[]), over(Some("u"), &[])),
        (vec![40, 2], vec![2], vec![])
    );
    assert_eq!((over(Some("u2"), &["CANCELLED"]), over(Some("u2"), &["FAILED"])), (vec![40], vec![]));
    assert_eq!(over(None, &["FAILED", "CANCELLED"]), [40, 2]);
    drop(journal);
    let bad: Vec<_> = check(&path).into_iter().filter(|finding| !finding.ok).collect();
    assert!(bad.is_empty(), "{bad:?}");
}

#[test]
fn environments_are_stored_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(&dir);
    let env = BTreeMap::from([("A".to_owned(), "b".repeat(1000))]);
    let request = SubmitRequest { command: vec!["x".into()], env, ..SubmitRequest::default() };
    let job = |n: u64| {
        (JobId(n), StoredJob { request: request.clone(), uid: 1, gid: 1, log: n.to_string(), estimate: None })
    };
    journal.commit(&Batch { jobs: (1..=50).map(job).collect(), ..Batch::default() }).unwrap();
    let rows: u64 = journal.db.query_row("SELECT count(*) FROM environments", [], |r| r.get(0)).unwrap();
    assert_eq!(rows, 1);
    assert_eq!(journal.job(JobId(50)).unwrap(), Some(job(50).1));
    assert_eq!(journal.job(JobId(51)).unwrap(), None);
}

#[test]
fn what_was_learned_is_written_with_the_batch_that_taught_it() {
    let dir = tempfile::tempdir().unwrap();
    let row = |key: &str, body: Option<&str>| HistoryRow {
        table: Table::Context,
        key: key.into(),
        body: body.map(str::to_owned),
    };
    let mut journal = open(&dir);
    let learned = vec![row("a", Some("1")), row("b", Some("2"))];
    journal.commit(&Batch { learned, ..Batch::default() }).unwrap();
    let learned = vec![row("a", None), row("b", Some("3"))];
    journal.commit(&Batch { learned, ..Batch::default() }).unwrap();
    // A batch that does not go through takes what it taught with it.
    let again = |n: u64| {
        let request = SubmitRequest::default();
        (JobId(n), StoredJob { request, uid: 1, gid: 1, log: String::new(), estimate: None })
    };
    let failing =
        Batch { jobs: vec![again(1), again(1)], learned: vec![row("c", Some("4"))], ..Batch::default() };
    assert!(journal.commit(&failing).is_err());
    drop(journal);
    assert_eq!(open(&dir).learned().unwrap(), [row("b", Some("3"))]);
}

#[test]
fn a_file_of_the_first_version_opens() {
    let dir = tempfile::tempdir().unwrap();
    let db = Connection::open(dir.path().join("j.db")).unwrap();
    db.execute_batch(&format!("{} PRAGMA user_version = 1;", SCHEMA[0])).unwrap();
    db.execute_batch(
        "INSERT INTO environments VALUES (1, 0, '{}');
         INSERT INTO jobs VALUES (1, 1, 1, 1, '/log', '{\"command\":[\"x\"],\"cwd\":\"/\"}');",
    )
    .unwrap();
    drop(db);
    let mut journal = open(&dir);
    assert_eq!(journal.job(JobId(1)).unwrap().unwrap().request.command, ["x"]);
    assert!(journal.learned().unwrap().is_empty());
    let learned = vec![HistoryRow { table: Table::Ratio, key: "k".into(), body: Some("{}".into()) }];
    journal.commit(&Batch { learned, ..Batch::default() }).unwrap();
    assert_eq!(journal.learned().unwrap().len(), 1);
}

#[test]
fn a_damaged_or_newer_file_is_refused_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(&dir);
    journal
        .db
        .execute(
            "INSERT INTO inputs VALUES (1, 5, '{\"no_such_input\": 1}', ?1)",
            [sums::input(1, Millis(5), "{\"no_such_input\": 1}")],
        )
        .unwrap();
    let error = journal.recover().unwrap_err().to_string();
    assert!(error.contains("entry 1") && error.contains("no_such_input"), "{error}");
    journal.db.execute_batch("PRAGMA user_version = 99").unwrap();
    drop(journal);
    let error = Journal::open(&dir.path().join("j.db"), &SETTINGS).err().unwrap().to_string();
    assert!(error.contains("format 99"), "{error}");
}

#[test]
fn lives_begin_later_than_all_that_was() {
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, mut state) = (open(&dir), State::default());
    let id = journal.id().to_owned();
    assert_eq!(id.len(), 32, "{id}");
    write(&mut journal, &mut state, [gpu(), submitted(1)]);
    let at = journal.latest().unwrap();
    assert_eq!(at, state.now());
    assert!(matches!(journal.begin_life(at, "a", "h", "b"), Err(JournalError::NotLater { .. })));
    journal.begin_life(at + Millis(1), "a", "h", "b").unwrap();
    assert!(journal.begin_life(at + Millis(1), "b", "h", "b").is_err());
    journal.begin_life(at + Millis(2), "b", "h", "b").unwrap();
    drop(journal);
    let mut journal = open(&dir);
    assert_eq!(journal.id(), id, "it keeps its name");
    let names = |journal: &Journal| journal.lives().unwrap().into_iter().map(|l| l.life).collect::<Vec<_>>();
    assert_eq!(names(&journal), ["a", "b"]);
    journal.forget_lives(at + Millis(2)).unwrap();
    assert_eq!(names(&journal), ["b"]);
}
