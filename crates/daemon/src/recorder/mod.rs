//! The recorder: a row a second of every GPU, of the jobs on it and of the host, in files beside the journal.
//!
//! It has a thread of its own. A disk that is full or hangs stops neither the engine nor the sampler: looks that it cannot
//! take are dropped and counted, and where nothing was written there is no row. The files are in [`segment`]; here is what
//! goes into them.

mod host;
mod segment;

use crate::config::RecorderConfig;
use crate::sampler::{Board, Look, Tenants};
use carma_api::record::{Fold, GpuRow, Readings, RecordedGpu, Row, TenantRow};
use carma_core::reading::{GpuInfo, GpuKind, GpuReading, Health};
use carma_core::units::{Fraction, Millis};
use host::Host;
use segment::{Header, Segments};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use segment::{Page, RecordError, read};

/// A row is of so long, on the daemon's clock.
const ROW: Millis = Millis::secs(1);
/// Looks that wait for the thread at most: some seconds.
const WAITING: usize = 64;
/// Rows are written at the latest after so long, in life, ...
const FLUSH: Duration = Duration::from_secs(10);
/// ... or when there are so many: they are compressed together.
const BLOCK: usize = 60;
/// How long the daemon's end waits for the last rows.
const LAST_ROWS: Duration = Duration::from_secs(1);

/// What a look brings.
struct Seen {
    at: Millis,
    looks: Arc<Vec<Look>>,
    tenants: Arc<Tenants>,
}

enum Message {
    Seen(Seen),
    Stop(SyncSender<()>),
}

/// The recorder, for the threads that give it looks and those that read it.
pub struct Recorder {
    dir: PathBuf,
    to_thread: SyncSender<Message>,
    /// Rows that are not on the disk yet.
    unwritten: Arc<Mutex<Vec<Row>>>,
    gpus: Vec<RecordedGpu>,
    dropped: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a recorder needs to know.
#[derive(Debug, Clone)]
pub struct Of<'a> {
    /// Name of the journal.
    pub journal: &'a str,
    /// Name of this life of the daemon.
    pub life: &'a str,
    /// The machine's boot.
    pub boot: &'a str,
    /// The GPUs.
    pub inventory: &'a [GpuInfo],
}

impl Recorder {
    /// Starts the thread; `None`: the configuration wants no rows. What keeps it from starting is no reason not to serve.
    /// `longest`: time that a look stands for at most, on the daemon's clock.
    #[must_use]
    pub fn start(dir: &Path, config: &RecorderConfig, of: &Of<'_>, longest: Millis) -> Option<Arc<Self>> {
        let most = config.bytes();
        if most == 0 {
            return None;
        }
        let gpus: Vec<RecordedGpu> = of.inventory.iter().map(recorded).collect();
        let segments = Segments::open(dir, Header::new(of, gpus.clone()), most);
        let (to_thread, inbox) = mpsc::sync_channel(WAITING);
        let unwritten = Arc::<Mutex<Vec<Row>>>::default();
        let host = Host::default();
        let writer = Writer {
            segments,
            unwritten: unwritten.clone(),
            host,
            gpus: gpus.clone(),
            longest,
            failed: false,
        };
        let thread = std::thread::Builder::new().name("record".into()).spawn(move || writer.run(&inbox));
        thread.map_err(|e| tracing::warn!("GPUs are not recorded, no thread can be had: {e}")).ok()?;
        let dropped = AtomicU64::new(0);
        Some(Arc::new(Self { dir: dir.to_owned(), to_thread, unwritten, gpus, dropped }))
    }

    /// Gives it a look; never waits.
    pub fn offer(&self, at: Millis, looks: &Arc<Vec<Look>>, board: &Board) {
        let seen = Seen { at, looks: looks.clone(), tenants: board.tenants() };
        if let Err(TrySendError::Full(_)) = self.to_thread.try_send(Message::Seen(seen)) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Has the last rows written, if the disk takes them in time.
    pub fn stop(&self) {
        let (done, is_done) = mpsc::sync_channel(1);
        if self.to_thread.try_send(Message::Stop(done)).is_ok() {
            let _ = is_done.recv_timeout(LAST_ROWS);
        }
    }

    /// Looks that were not taken since the start.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Rows that end after `since` and not after `until`, made into rows of `step` from multiples of it on. May block for
    /// as long as the disk does, and reads a part where there is much.
    ///
    /// # Errors
    /// When the directory cannot be read. What is damaged in it is passed over.
    pub fn read(&self, since: Millis, until: Millis, step: Millis) -> Result<Page, RecordError> {
        let last = lock(&self.unwritten).iter().map(|row| (&*self.gpus, row.clone())).collect();
        read(&self.dir, since, until, step, last)
    }
}

fn recorded(gpu: &GpuInfo) -> RecordedGpu {
    RecordedGpu {
        gpu: gpu.index,
        uuid: gpu.uuid.to_string(),
        name: gpu.name.clone(),
        kind: match gpu.kind {
            GpuKind::Whole => "gpu",
            GpuKind::Mig { .. } => "mig",
            GpuKind::Virtual => "virtual",
        }
        .to_owned(),
        memory_mib: gpu.memory.0,
    }
}

/// The thread.
struct Writer {
    segments: Segments,
    unwritten: Arc<Mutex<Vec<Row>>>,
    host: Host,
    gpus: Vec<RecordedGpu>,
    /// Time that a look stands for at most.
    longest: Millis,
    /// The disk did not take the last block, and that was said.
    failed: bool,
}

impl Writer {
    fn run(mut self, inbox: &Receiver<Message>) {
        let mut fold = Fold::default();
        let mut last: Option<Millis> = None;
        let mut written = Instant::now();
        loop {
            match inbox.recv_timeout(FLUSH) {
                Ok(Message::Seen(seen)) => {
                    if last.is_some_and(|last| last.0 / ROW.0 < seen.at.0 / ROW.0) {
                        self.end_row(&mut fold);
                    }
                    // What was between looks that are far apart was not seen.
                    let span = last.map(|last| seen.at.since(last)).filter(|span| *span <= self.longest);
                    if let Some(span) = span {
                        fold.add(&row(&self.gpus, &seen, span));
                    }
                    last = Some(seen.at);
                }
                Ok(Message::Stop(done)) => {
                    self.end_row(&mut fold);
                    self.write();
                    let _ = done.send(());
                    return;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if lock(&self.unwritten).len() >= BLOCK || written.elapsed() >= FLUSH {
                self.write();
                written = Instant::now();
            }
        }
    }

    fn end_row(&mut self, fold: &mut Fold) {
        if let Some(row) = fold.take(fold.latest_ms()) {
            lock(&self.unwritten).push(Row { host: self.host.look(), ..row });
        }
    }

    /// Rows that the disk does not take are lost: there will be a gap.
    fn write(&mut self) {
        let rows = lock(&self.unwritten).clone();
        if rows.is_empty() {
            return;
        }
        match self.segments.write(&rows) {
            Ok(()) => self.failed = false,
            Err(e) if !std::mem::replace(&mut self.failed, true) => {
                tracing::warn!("GPUs are not recorded: {e}; trying again, and there will be a gap");
            }
            Err(_) => {}
        }
        // Not before they are on the disk: readers look here first.
        lock(&self.unwritten).clear();
    }
}

/// What a look says of the time since the one before it.
fn row(gpus: &[RecordedGpu], seen: &Seen, span: Millis) -> Row {
    let read = seen.looks.iter().filter(|look| look.reading.health == Health::Ok);
    let gpu = |look: &Look| {
        let index = gpus.iter().find(|gpu| *gpu.uuid == *look.reading.uuid)?.gpu;
        let on_it = seen.tenants.0.get(&look.reading.uuid);
        let tenants = on_it.into_iter().flatten().map(|placed| TenantRow {
            job: placed.job.0,
            uid: placed.uid,
            span_ms: span.0,
            memory_mib: look
                .seen
                .jobs
                .iter()
                .find(|(seen, _)| *seen == placed.job)
                .and_then(|(_, memory)| Some(memory.as_ref()?.0 as f64)),
            activity_share: placed.share.map(Fraction::to_f64),
        });
        Some(GpuRow {
            gpu: index,
            span_ms: span.0,
            readings: readings(&look.reading),
            energy_j: look.reading.energy_mj.map(|mj| mj as f64 / 1000.0),
            busy_ms: None,
            tenants: tenants.collect(),
        })
    };
    Row { at_ms: seen.at.0, span_ms: span.0, host: None, gpus: read.filter_map(gpu).collect() }
}

fn readings(reading: &GpuReading) -> Readings {
    let activity = &reading.activity;
    let share = |value: Option<Fraction>| value.map(Fraction::to_f64);
    Readings {
        memory_used_mib: reading.memory_used.map(|memory| memory.0 as f64),
        smact: share(activity.smact),
        smocc: share(activity.smocc),
        drama: share(activity.drama),
        gract: share(activity.gract),
        tensor: share(activity.tensor),
        fp64: share(activity.fp64),
        fp32: share(activity.fp32),
        fp16: share(activity.fp16),
        gpu_util: share(activity.gpu_util),
        mem_util: share(activity.mem_util),
        pcie_tx_mib_s: activity.pcie_tx_mib_s.map(f64::from),
        pcie_rx_mib_s: activity.pcie_rx_mib_s.map(f64::from),
        sm_clock_mhz: reading.sm_clock_mhz.map(f64::from),
        memory_clock_mhz: reading.memory_clock_mhz.map(f64::from),
        power_w: reading.power_mw.map(|mw| f64::from(mw) / 1000.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Size;
    use crate::sampler::Placed;
    use carma_core::input::Observation;
    use carma_core::model::JobId;
    use carma_core::units::MiB;
    use carma_core::windows::WindowSummary;
    use std::collections::BTreeMap;

    fn gpu() -> GpuInfo {
        GpuInfo {
            uuid: "GPU-0".into(),
            index: 3,
            name: "NVIDIA H200".into(),
            memory: MiB(143_771),
            kind: GpuKind::Whole,
            has_activity: true,
            no_mps: None,
        }
    }

    fn look(at: Millis, smact: Option<u32>) -> Arc<Vec<Look>> {
        let mut reading = GpuReading::empty("GPU-0".into(), Health::Ok);
        (reading.activity.smact, reading.energy_mj) = (smact.map(Fraction::percent), Some(at.0 * 200));
        let seen = Observation {
            at,
            health: Health::Ok,
            used: None,
            jobs: vec![(JobId(7), Some(MiB(512)))],
            foreign: vec![],
            processes_known: true,
            window: WindowSummary::default(),
            energy_mj: reading.energy_mj,
        };
        Arc::new(vec![Look { seen, reading }])
    }

    #[test]
    fn looks_become_rows_and_gaps_stay_gaps() {
        let dir = tempfile::tempdir().unwrap();
        let config = RecorderConfig { size: Some(Size(MiB(8))), ..RecorderConfig::default() };
        let of = Of { journal: "j", life: "l", boot: "b", inventory: &[gpu()] };
        let recorder = Recorder::start(dir.path(), &config, &of, Millis::secs(2)).unwrap();
        let board = Board::default();
        let tenants = BTreeMap::from([(
            "GPU-0".into(),
            vec![Placed { job: JobId(7), uid: 1000, share: Some(Fraction::ONE) }],
        )]);
        board.set_tenants(Tenants(tenants));
        // Ten looks a second for three seconds, none for ten, and then again; SMACT is not read in the end.
        let from = |start: u64, smact: Option<u32>| {
            for at in (0..=30).map(|n| Millis(start + n * 100)) {
                recorder.offer(at, &look(at, smact), &board);
            }
        };
        from(1_000_000, Some(50));
        from(1_013_000, None);
        recorder.stop();
        assert_eq!(recorder.dropped(), 0);
        let page = recorder.read(Millis(1_000_000), Millis(2_000_000), Millis(1)).unwrap();
        let at: Vec<u64> = page.rows.iter().map(|row| row.at_ms).collect();
        assert_eq!(
            at,
            [1_000_900, 1_001_900, 1_002_900, 1_003_000, 1_013_900, 1_014_900, 1_015_900, 1_016_000]
        );
        let first = &page.rows[0].gpus[0];
        assert_eq!((first.gpu, first.span_ms, first.readings.smact), (3, 900, Some(0.5)));
        assert_eq!((first.energy_j, first.readings.drama), (Some(200_180.0), None));
        let tenant =
            TenantRow { job: 7, uid: 1000, span_ms: 900, memory_mib: Some(512.0), activity_share: Some(1.0) };
        assert_eq!(first.tenants, [tenant]);
        assert_eq!(page.rows[5].gpus[0].readings.smact, None);
        assert!(page.rows[0].host.unwrap().memory_used_mib.unwrap() > 1.0);
        assert_eq!((page.first, page.next, page.gpus.len()), (Some(Millis(1_000_000)), None, 1));
        // Rows of ten seconds; what was not seen is not in them.
        let page = recorder.read(Millis(1_000_000), Millis(2_000_000), Millis::secs(10)).unwrap();
        let spans: Vec<_> = page.rows.iter().map(|row| (row.at_ms, row.span_ms)).collect();
        assert_eq!(spans, [(1_010_000, 3000), (1_020_000, 3000)]);
    }

    #[test]
    fn nothing_is_recorded_where_that_is_not_wanted() {
        let dir = tempfile::tempdir().unwrap();
        let config = RecorderConfig { enabled: Some(false), ..RecorderConfig::default() };
        let of = Of { journal: "j", life: "l", boot: "b", inventory: &[] };
        assert!(Recorder::start(dir.path(), &config, &of, Millis::secs(2)).is_none());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
