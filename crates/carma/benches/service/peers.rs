//! carma beside pueue and task-spooler: the same jobs, one client process a job, in the same run.

use crate::daemon::{CARMA, Daemon, ENVIRONMENT, keep, until};
use crate::machine::Summary;
use crate::{GPUS, heading};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Longest that one repeat of a peer may take before it gets fewer jobs.
const LONGEST: Duration = Duration::from_secs(60);
/// Jobs of a peer that needs longer.
const FEWER: u64 = 300;
/// Jobs at once, for those that count jobs rather than memory.
const SLOTS: &str = "8";

/// One way to get jobs run.
trait Way {
    /// Runs `n` jobs; the time from the first submission to the last end.
    fn run(&self, n: u64) -> Duration;
}

/// A shell loop, as a user would write it.
fn shell_loop(n: u64, line: &str, env: &[(&str, &Path)]) {
    let script = format!("i=0; while [ $i -lt {n} ]; do {line} || exit 1; i=$((i+1)); done");
    let mut command = Command::new("/bin/sh");
    command.args(["-c", &script]).env_clear().envs(ENVIRONMENT).envs(env.iter().copied());
    let status = command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).status();
    assert!(status.unwrap().success(), "{line}");
}

/// No queue at all.
struct Bare;

impl Way for Bare {
    fn run(&self, n: u64) -> Duration {
        let started = Instant::now();
        shell_loop(n, "/bin/true", &[]);
        started.elapsed()
    }
}

/// carma, one `carma submit` a job, or all by one.
struct Carma {
    config: &'static str,
    one_command: bool,
}

impl Way for Carma {
    fn run(&self, n: u64) -> Duration {
        let daemon = Daemon::start(GPUS, self.config);
        let submit =
            format!("{CARMA} --socket {} submit --parsable --gpu-memory 1G", daemon.socket().display());
        let started = Instant::now();
        if self.one_command {
            shell_loop(1, &format!("{submit} --repeat {n} -- /bin/true"), &[]);
        } else {
            shell_loop(n, &format!("{submit} -- /bin/true"), &[]);
        }
        daemon.until_over(n);
        let took = started.elapsed();
        daemon.all_completed(n);
        took
    }
}

/// A peer's server, ended when dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// pueue: everything in a state file that is written anew at each change, never synced.
struct Pueue {
    client: PathBuf,
    daemon: PathBuf,
}

impl Pueue {
    fn find() -> Result<Self, String> {
        let find = |name: &str| {
            let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/peers/bin").join(name);
            found(&built.to_string_lossy())
                .or_else(|| found(name))
                .ok_or_else(|| format!("no {name}: cargo install --locked --root target/peers pueue"))
        };
        Ok(Self { client: find("pueue")?, daemon: find("pueued")? })
    }
}

impl Way for Pueue {
    fn run(&self, n: u64) -> Duration {
        let dir = TempDir::new().unwrap();
        let config = dir.path().join("pueue.yml");
        let place = dir.path().display();
        let text = format!(
            "shared:\n  pueue_directory: {place}\n  runtime_directory: {place}\n  use_unix_socket: true\n  \
             unix_socket_path: {place}/s\nclient: {{}}\ndaemon: {{}}\nprofiles: {{}}\n"
        );
        fs::write(&config, text).unwrap();
        let quiet = |program: &Path| {
            let mut command = Command::new(program);
            command.arg("--config").arg(&config).env_clear().envs(ENVIRONMENT).env("HOME", dir.path());
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            command
        };
        let _server = Server(quiet(&self.daemon).spawn().unwrap());
        until("pueued to answer", Duration::from_millis(20), || {
            quiet(&self.client).args(["parallel", SLOTS]).status().unwrap().success()
        });
        let line = format!("{} --config {} add -- /bin/true", self.client.display(), config.display());
        let started = Instant::now();
        shell_loop(n, &line, &[("HOME", dir.path())]);
        until("pueue's jobs to end", Duration::from_millis(20), || {
            let output =
                quiet(&self.client).args(["status", "--json"]).stdout(Stdio::piped()).output().unwrap();
            let reply: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            let tasks = reply["tasks"].as_object().unwrap();
            assert_eq!(tasks.len() as u64, n);
            tasks.values().all(|task| task["status"]["Done"]["result"] == "Success")
        });
        let took = started.elapsed();
        keep(dir);
        took
    }
}

/// task-spooler: keeps nothing on disk but the jobs' outputs.
struct TaskSpooler(PathBuf);

impl TaskSpooler {
    fn find() -> Result<Self, String> {
        found("tsp").map(Self).ok_or_else(|| "no tsp: apt-get install task-spooler".into())
    }
}

impl Way for TaskSpooler {
    fn run(&self, n: u64) -> Duration {
        let dir = TempDir::new().unwrap();
        let socket = dir.path().join("s");
        let finished = n.to_string();
        let env = [
            ("TS_SOCKET", socket.as_path()),
            ("TMPDIR", dir.path()),
            ("TS_SLOTS", Path::new(SLOTS)),
            ("TS_MAXFINISHED", Path::new(&finished)),
        ];
        let tsp = |args: &[&str]| {
            let mut command = Command::new(&self.0);
            command.args(args).env_clear().envs(ENVIRONMENT).envs(env).stdin(Stdio::null());
            command.output().unwrap()
        };
        // The first call starts the server.
        tsp(&[]);
        let started = Instant::now();
        shell_loop(n, &format!("{} /bin/true", self.0.display()), &env);
        until("tsp's jobs to end", Duration::from_millis(5), || {
            let list = String::from_utf8_lossy(&tsp(&[]).stdout).into_owned();
            list.lines().filter(|line| line.split_whitespace().nth(1) == Some("finished")).count() as u64 == n
        });
        let took = started.elapsed();
        tsp(&["-K"]);
        keep(dir);
        took
    }
}

/// A program by its path or in `PATH`.
fn found(program: &str) -> Option<PathBuf> {
    let path = Path::new(program);
    if path.is_absolute() {
        return path.canonicalize().ok();
    }
    std::env::split_paths(&std::env::var_os("PATH")?).map(|dir| dir.join(program)).find(|p| p.is_file())
}

fn version(program: &Path, argument: &str) -> String {
    let output = Command::new(program).arg(argument).output();
    let text = output.map(|o| String::from_utf8_lossy(&[o.stdout, o.stderr].concat()).into_owned());
    let text = text.unwrap_or_default();
    // "Task Spooler v1.0.1 - a task queue system for the unix user."
    text.lines().next().and_then(|line| line.split(" - ").next()).unwrap_or_default().to_owned()
}

/// A row of the table: who, what it keeps, how to run it.
type Contender = (&'static str, String, Result<Box<dyn Way>, String>);

/// The table.
pub(crate) fn side_by_side(n: u64, repeats: usize) {
    heading(&format!(
        "Side by side: {n} x /bin/true, one client process a job from a shell loop; {repeats} repeats, jobs/s"
    ));
    let carma =
        |config, one_command| -> Result<Box<dyn Way>, String> { Ok(Box::new(Carma { config, one_command })) };
    let tsp = TaskSpooler::find();
    let pueue = Pueue::find();
    let tsp_name = tsp.as_ref().map_or_else(|_| "tsp".to_owned(), |t| version(&t.0, "-V"));
    let pueue_name = pueue.as_ref().map_or_else(|_| "pueue".to_owned(), |p| version(&p.client, "--version"));
    let contenders: Vec<Contender> = vec![
        ("shell loop, no queue", "the floor".into(), Ok(Box::new(Bare))),
        ("carma submit", "every accepted job synced to disk".into(), carma("", false)),
        (
            "carma submit, sync = normal",
            "on disk, synced now and then".into(),
            carma("[journal]\nsync = 'normal'\n", false),
        ),
        ("carma submit --repeat, one process", "every accepted job synced to disk".into(), carma("", true)),
        ("tsp", format!("nothing on disk but outputs; {tsp_name}"), tsp.map(|t| Box::new(t) as Box<dyn Way>)),
        (
            "pueue add",
            format!("whole state rewritten, not synced; {pueue_name}"),
            pueue.map(|p| Box::new(p) as Box<dyn Way>),
        ),
    ];
    println!("  {:<36} {:>7} {:>7} {:>7}  {:>8}  durability", "", "median", "min", "max", "to carma");
    let mut reference: Option<f64> = None;
    let mut rows = Vec::new();
    for (name, keeps, way) in contenders {
        let way = match way {
            Ok(way) => way,
            Err(why) => {
                rows.push((name, keeps, Err(why)));
                continue;
            }
        };
        let mut jobs = n;
        let mut times = Vec::new();
        while times.len() < repeats {
            let took = way.run(jobs);
            if took > LONGEST && jobs > FEWER {
                jobs = FEWER;
                times.clear();
                continue;
            }
            times.push(jobs as f64 / took.as_secs_f64());
        }
        let rates = Summary::of(times);
        if name == "carma submit" {
            reference = Some(rates.median());
        }
        rows.push((name, keeps, Ok((rates, jobs))));
    }
    for (name, keeps, measured) in rows {
        match measured {
            Err(why) => println!("  {name:<36} skipped: {why}"),
            Ok((rates, jobs)) => {
                let ratio = reference.map_or(0.0, |r| rates.median() / r);
                let fewer = if jobs < n { format!("; {jobs} jobs only") } else { String::new() };
                let (median, least, most) = (rates.median(), rates.at(0.0), rates.at(1.0));
                println!(
                    "  {name:<36} {median:>7.0} {least:>7.0} {most:>7.0}  {ratio:>7.2}x  {keeps}{fewer}"
                );
            }
        }
    }
    println!(
        "  tsp and pueue run {SLOTS} at once; carma as many as fit the 8 GPUs' memory. pueue starts each by a shell."
    );
    println!("  tsp and pueue have no way to submit one command many times by one client process.");
}
