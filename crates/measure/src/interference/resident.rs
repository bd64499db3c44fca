//! One resident process: started, warmed up, let run for a window, ended.

use super::plan::Member;
use super::protocol::{ENV_BENCH, News, Order, listen};
use super::stop::{Go, Stopped};
use super::tasks::Hold;
use super::words::last_words;
use crate::child::end_with_us;
use carma_process::progress::Meter;
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::File;
use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How to start a process.
pub(super) struct Launch<'a> {
    pub(super) member: Member,
    pub(super) name: String,
    pub(super) command: &'a [String],
    pub(super) cwd: &'a Path,
    pub(super) hold: Hold,
    pub(super) env: Vec<(String, String)>,
    /// A folder of its own.
    pub(super) folder: PathBuf,
    /// Where its output goes.
    pub(super) output: PathBuf,
}

/// A running process.
pub(super) struct Resident {
    pub(super) member: Member,
    /// As people know it: `name`, `name#1`, `name@25%`.
    pub(super) name: String,
    pub(super) started: Instant,
    /// Memory that its tensors hold, MiB, by its own word.
    pub(super) memory_mib: Option<u64>,
    child: Child,
    output: PathBuf,
    news: Receiver<News>,
    orders: Orders,
    closing: Arc<AtomicBool>,
}

/// Where orders go.
enum Orders {
    /// To the task itself, once it has connected.
    Task(Arc<Mutex<Option<UnixStream>>>),
    /// To the thread that stops and continues it.
    Thread(Option<Sender<Go>>),
}

impl Resident {
    /// Starts a process in a group of its own.
    ///
    /// # Errors
    /// Why it cannot be started.
    pub(super) fn start(launch: Launch<'_>) -> Result<Self, String> {
        let Launch { member, name, command, cwd, env, hold, folder, output } = launch;
        let io = |what: &Path, e: std::io::Error| format!("{}: {e}", what.display());
        std::fs::create_dir_all(&folder).map_err(|e| io(&folder, e))?;
        let log = File::options().create(true).append(true).open(&output).map_err(|e| io(&output, e))?;
        let errors = log.try_clone().map_err(|e| io(&output, e))?;
        let (program, words) = command.split_first().ok_or("it has no command")?;
        let mut start = Command::new(program);
        start.args(words).current_dir(cwd).stdin(Stdio::null()).stdout(log).stderr(errors).process_group(0);
        // Left over from the process that started us; a task gets ours or none.
        for variable in [
            "CUDA_MPS_PIPE_DIRECTORY",
            "CUDA_MPS_LOG_DIRECTORY",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
            ENV_BENCH,
        ] {
            start.env_remove(variable);
        }
        start.envs(env);
        end_with_us(&mut start);
        let cannot = |e| format!("{program} cannot be started in {}: {e}", cwd.display());
        let (sender, news) = channel();
        let closing = Arc::new(AtomicBool::new(false));
        let (child, orders) = match hold {
            Hold::Pace => {
                let socket = folder.join("bench");
                let listener = UnixListener::bind(&socket).map_err(|e| io(&socket, e))?;
                listener.set_nonblocking(true).map_err(|e| io(&socket, e))?;
                let child = start.env(ENV_BENCH, &socket).spawn().map_err(cannot)?;
                let stream = Arc::new(Mutex::new(None));
                let (shared, end) = (Arc::clone(&stream), Arc::clone(&closing));
                thread(&name, sender, move |news| listen(&listener, &shared, &end, news))?;
                (child, Orders::Task(stream))
            }
            Hold::Stop => {
                let meter = Meter::open(&folder, None).map_err(|e| e.to_string())?;
                let child = start.envs(meter.env()).spawn().map_err(cannot)?;
                let (orders, ordered) = channel();
                let stopped =
                    Stopped::new(meter, &output, Pid::from_child(&child)).map_err(|e| io(&output, e))?;
                thread(&name, sender, move |news| stopped.serve(&ordered, news))?;
                (child, Orders::Thread(Some(orders)))
            }
        };
        Ok(Self {
            member,
            name,
            started: Instant::now(),
            memory_mib: None,
            child,
            output,
            news,
            orders,
            closing,
        })
    }

    /// Its process group.
    pub(super) fn group(&self) -> u32 {
        self.child.id()
    }

    /// Lets it warm up.
    pub(super) fn warm(&self) {
        self.order(&Order::Warm(1));
    }

    /// Lets it run between two times of `CLOCK_MONOTONIC`, and be counted from `from_s` on.
    pub(super) fn go(&self, start_s: f64, from_s: f64, until_s: f64) {
        match &self.orders {
            Orders::Task(_) => self.order(&Order::Go { from_s: start_s, until_s }),
            // Should the thread have ended, its news say so.
            Orders::Thread(orders) => {
                let _ = orders.as_ref().map(|orders| orders.send(Go { start_s, from_s, until_s }));
            }
        }
    }

    /// A failure shows in the news: the other side has gone.
    fn order(&self, order: &Order) {
        let Orders::Task(stream) = &self.orders else { return };
        let mut stream = stream.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stream) = stream.as_mut()
            && let Ok(mut line) = serde_json::to_vec(order)
        {
            line.push(b'\n');
            let _ = stream.write_all(&line);
        }
    }

    /// The next news within this time. The end of a process that never connected is news, too.
    pub(super) fn hear(&mut self, patience: Duration) -> Option<News> {
        match self.news.recv_timeout(patience) {
            Ok(News::Gone(why)) => Some(News::Gone(self.end_of_it(&why))),
            Ok(news) => Some(news),
            Err(RecvTimeoutError::Timeout) => {
                let ended = self.child.try_wait().is_ok_and(|status| status.is_some());
                ended.then(|| News::Gone(self.end_of_it("it ended")))
            }
            Err(RecvTimeoutError::Disconnected) => Some(News::Gone(self.end_of_it("it ended"))),
        }
    }

    /// How it ended, with its last words.
    fn end_of_it(&mut self, why: &str) -> String {
        // Its socket closes a moment before its process is gone.
        let until = Instant::now() + Duration::from_secs(2);
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break Some(status),
                Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(10)),
                _ => break None,
            }
        };
        let mut text = status.map_or_else(|| why.to_owned(), |status| format!("it ended with {status}"));
        if let Some(words) = last_words(&self.output) {
            text = format!("{text}; its last words: {words}");
        }
        text
    }

    /// Asks it to end.
    fn quit(&mut self) {
        self.closing.store(true, Ordering::Relaxed);
        self.order(&Order::Quit(1));
        if let Orders::Thread(orders) = &mut self.orders {
            // One that knows nothing of carma has nothing to say good-bye to; its thread ends with its orders.
            orders.take();
            self.signal(Signal::TERM);
            self.signal(Signal::CONT);
        }
    }

    fn signal(&self, signal: Signal) {
        let _ = kill_process_group(Pid::from_child(&self.child), signal);
    }
}

impl Drop for Resident {
    /// It is not left behind, whatever went wrong here: [`end_all`] ends it more gently.
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            self.signal(Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

/// Ends processes: asked, then terminated, then killed, all at once.
pub(super) fn end_all(mut residents: Vec<Resident>) {
    for resident in &mut residents {
        resident.quit();
    }
    for signal in [Some(Signal::TERM), Some(Signal::KILL), None] {
        let until = Instant::now() + Duration::from_secs(5);
        loop {
            residents.retain_mut(|resident| {
                let ended = resident.child.try_wait().is_ok_and(|status| status.is_some());
                if ended {
                    // What it left behind in its group.
                    resident.signal(Signal::KILL);
                }
                !ended
            });
            if residents.is_empty() {
                return;
            }
            if Instant::now() >= until {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        if let Some(signal) = signal {
            residents.iter().for_each(|resident| resident.signal(signal));
        }
    }
}

/// Runs what hears a task; the last news are that it is gone, and why.
fn thread(
    name: &str,
    news: Sender<News>,
    run: impl FnOnce(&Sender<News>) -> String + Send + 'static,
) -> Result<(), String> {
    let thread = std::thread::Builder::new().name(format!("bench-{name}"));
    let spawned = thread.spawn(move || {
        let why = run(&news);
        let _ = news.send(News::Gone(why));
    });
    spawned.map(drop).map_err(|e| format!("no thread for {name}: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeps(folder: &Path) -> Resident {
        let launch = Launch {
            member: Member { task: 0, copy: 0, pct: 100 },
            name: "sleeps".into(),
            command: &["sleep".to_owned(), "600".to_owned()],
            cwd: folder,
            hold: Hold::Stop,
            env: Vec::new(),
            folder: folder.join("its"),
            output: folder.join("log"),
        };
        Resident::start(launch).unwrap()
    }

    #[test]
    fn one_that_is_forgotten_does_not_run_on() {
        let dir = tempfile::tempdir().unwrap();
        let resident = sleeps(dir.path());
        let process = PathBuf::from(format!("/proc/{}", resident.group()));
        assert!(process.exists());
        drop(resident);
        assert!(!process.exists());
    }

    #[test]
    fn it_ends_with_the_thread_that_started_it_which_is_the_bench() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().to_owned();
        let mut resident = std::thread::spawn(move || sleeps(&folder)).join().unwrap();
        let news = (0..200).find_map(|_| resident.hear(Duration::from_millis(50)));
        assert!(matches!(&news, Some(News::Gone(why)) if why.contains("signal: 9")), "{news:?}");
    }
}
