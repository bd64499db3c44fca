//! What tasks do to each other on one GPU, measured.
//!
//! All tasks are started once, one process each, warmed up, and then wait. Any of them run together for a window
//! of a second or two from a common start, while the GPU is read; then they wait again. So a pair takes as long
//! as its window, not as long as two starts of a framework.

mod book;
mod count;
mod draw;
mod host;
mod machine;
mod plan;
mod processes;
mod processors;
mod protocol;
mod resident;
mod samples;
mod session;
mod stop;
mod tasks;
mod window;
mod words;

use crate::{Error, Say};
use book::Book;
use carma_interference::measured::Measured;
use carma_interference::share::Mode;
use machine::Gpu;
pub use plan::Ladder;
use plan::{Phase, Wanted, phases};
use processors::Processors;
use session::Stage;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use tasks::{Task, TaskFile, read_groups};
use window::Timing;

/// Name and text of the helper for Python (`import carma_bench`); it is to lie in the folder given to
/// [`Measurement::run`].
pub const HELPER: (&str, &str) = ("carma_bench.py", include_str!("carma_bench.py"));

/// What to measure, on what, and where the results go.
#[derive(Debug, Clone)]
pub struct Options {
    /// The file of tasks, TOML.
    pub tasks: PathBuf,
    /// Only these tasks of the file; all, if there are none.
    pub only: Vec<String>,
    /// Where the results go. A log beside it grows a line a window; what is in it already is not measured again.
    pub output: PathBuf,
    /// Each task alone, which is always done: where this is all that is asked for, no pairs are measured.
    pub solo: bool,
    /// All pairs; also where nothing at all is asked for.
    pub pairs: bool,
    /// So many random triples.
    pub triples: usize,
    /// So many random quadruples.
    pub quads: usize,
    /// A file of groups, one a line.
    pub groups: Option<PathBuf>,
    /// Each task alone under MPS with these shares of the threads, percent, 1 to 100.
    pub threads: Vec<u8>,
    /// Pairs under MPS with the threads divided so, percent, 1 to 100.
    pub splits: Vec<(u8, u8)>,
    /// How many pairs, drawn at random, for the splits.
    pub split_pairs: usize,
    /// Each task with more and more copies of itself, and nothing else.
    pub ladder: Option<Ladder>,
    /// How the tasks share the GPU; none: as the file says, else by time slices.
    pub sharing: Vec<Mode>,
    /// How often each task runs alone, 2 or more.
    pub solo_rounds: usize,
    /// How often each combination is measured, 1 or more.
    pub repeat: u32,
    /// Of what is drawn and of the order.
    pub seed: u64,
    /// Length of a window, seconds, above 0; `None`: the file's.
    pub window_s: Option<f64>,
    /// All is over after so long, as far as that can be predicted.
    pub budget: Option<Duration>,
    /// Measure again what failed.
    pub retry_failed: bool,
    /// Folder for what the tasks print; `None`: where it goes with everything else.
    pub logs: Option<PathBuf>,
    /// The GPUs: `nvml` or `auto`, or a model such as `virtual:1xH200`.
    pub gpus: String,
    /// Which of them, by index or UUID; `None`: the file's, else the first.
    pub gpu: Option<String>,
    /// Virtual seconds a second; for virtual GPUs only.
    pub speed: Option<u32>,
    /// NVIDIA's control program for MPS.
    pub mps_control: PathBuf,
}

impl Options {
    fn wanted(&self, file: &TaskFile) -> Result<Wanted, Error> {
        let groups = match &self.groups {
            Some(path) => read_groups(path, &file.tasks)?,
            None => Vec::new(),
        };
        let nothing = !self.solo
            && !self.pairs
            && self.triples + self.quads == 0
            && groups.is_empty()
            && self.threads.is_empty()
            && self.splits.is_empty();
        let mut sharing = if self.sharing.is_empty() { file.sharing.clone() } else { self.sharing.clone() };
        if sharing.is_empty() {
            sharing.push(Mode::TimeSlice);
        }
        sharing.dedup();
        Ok(Wanted {
            sharing,
            pairs: self.pairs || nothing,
            triples: self.triples,
            quads: self.quads,
            groups,
            threads: self.threads.clone(),
            splits: self.splits.clone(),
            split_pairs: self.split_pairs,
            ladder: self.ladder.clone(),
            repeat: self.repeat,
            seed: self.seed,
        })
    }
}

/// A measurement that is planned; nothing runs yet.
pub struct Measurement {
    options: Options,
    began: Instant,
    file: TaskFile,
    phases: Vec<Phase>,
    processors: Option<Processors>,
}

impl Measurement {
    /// Reads the tasks and plans their windows. The budget counts from here.
    ///
    /// # Errors
    /// What is wrong in a file, a task that is not there, more processors than there are.
    pub fn plan(options: Options) -> Result<Self, Error> {
        let began = Instant::now();
        let file = TaskFile::read(&options.tasks, &options.only)?;
        let phases = phases(&file.tasks, &options.wanted(&file)?);
        if let Some(ladder) = options.ladder.as_ref().filter(|ladder| ladder.wants_copies()) {
            let any = phases.iter().any(|phase| !phase.windows.is_empty());
            if !any {
                let counts: Vec<String> = ladder.counts.iter().map(ToString::to_string).collect();
                return Err(Error::usage(format!(
                    "{}: no task may run {} at a time; `copies` says how many may",
                    options.tasks.display(),
                    counts.join(", ")
                )));
            }
        }
        let most = phases.iter().flat_map(|phase| &phase.windows).map(|w| w.members.len()).max().unwrap_or(1);
        let divided = file.processors_each.map(|each| Processors::divided(each, most)).transpose();
        let processors = divided.map_err(|e| Error::usage(format!("{}: {e}", options.tasks.display())))?;
        Ok(Self { options, began, file, phases, processors })
    }

    /// Measures what is not in the log yet, until all is done, the budget is used up or `stopped` is set, and writes the
    /// results. `folder` is a short path to a folder of our own with the [`HELPER`] in it; it is also where sockets go.
    ///
    /// # Errors
    /// No such GPU, a log of other measurements, MPS that cannot be had, a file that cannot be written. What was measured
    /// until then is written nevertheless.
    pub fn run(&self, folder: &Path, stopped: &AtomicBool, say: Say<'_>) -> Result<Measured, Error> {
        let (options, file) = (&self.options, &self.file);
        let which = options.gpu.clone().or_else(|| file.gpu.as_ref().map(ToString::to_string));
        let mut gpu = Gpu::open(options, which.as_deref(), folder)?;
        warn_of_others(&mut gpu, say);
        let notes: Vec<_> = file.tasks.iter().map(Task::note).collect();
        let mut book = Book::open(&options.output, &gpu.machine, &notes)?;
        let logs = options.logs.clone().unwrap_or_else(|| folder.to_owned());
        std::fs::create_dir_all(&logs)
            .map_err(|e| Error::usage(format!("--logs {}: {e}", logs.display())))?;
        let mut stage = Stage {
            timing: Timing {
                settle: file.settle_s,
                window: options.window_s.unwrap_or(file.window_s),
                answer: file.answer_s,
            },
            gpu: &mut gpu,
            file,
            processors: self.processors.as_ref(),
            deadline: options.budget.and_then(|budget| self.began.checked_add(budget)),
            stopped,
            folder,
            logs: &logs,
            retry_failed: options.retry_failed,
            solo_rounds: options.solo_rounds,
            seed: options.seed,
            say,
        };
        let mut outcome = Ok(());
        for phase in &self.phases {
            outcome = stage.measure(&mut book, phase);
            if outcome.is_err() {
                break;
            }
        }
        // What was measured before something failed is not lost.
        let left: usize = self.phases.iter().map(|phase| stage.left(&book, phase)).sum();
        let measured = book.finish(left)?;
        outcome?;
        Ok(measured)
    }
}

/// Others on the GPU would be measured along.
fn warn_of_others(gpu: &mut Gpu, say: Say<'_>) {
    let there = gpu.read().and_then(|r| r.processes).unwrap_or_default();
    let others = there.iter().filter(|p| !gpu.is_own_process(p.pid));
    let others: Vec<String> = others.map(|p| p.pid.to_string()).collect();
    if !others.is_empty() {
        say(&format!(
            "warning: processes {} use {} already; what they do is measured along",
            others.join(", "),
            gpu.info.name
        ));
    }
}
