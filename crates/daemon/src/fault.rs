//! Named points at which a test can kill the daemon, as `kill -9` would, or have the thread that comes by hang
//! or panic (`hang-` or `panic-` before the name).

/// Name of the variable that holds a point's name.
const VARIABLE: &str = "CARMA_FAULT";

/// Where the daemon can be made to die.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// Inputs are applied, and not yet in the journal.
    BeforeCommit,
    /// A launch is decided and in the journal, and its supervisor not yet spawned.
    AfterDecision,
    /// The supervisor is spawned, and that not yet in the journal.
    AfterSpawn,
    /// A job has ended, and that is not yet in the journal.
    AfterExit,
    /// That a job leaves its GPU or comes back is in the journal, and nothing is done about it yet.
    AfterSuspension,
    /// That a job is told to end, or to save its work, is in the journal, and it has not been told.
    AfterEnding,
    /// A launch is about to spawn a supervisor: it is held up here for two seconds, rather than the daemon killed.
    HoldLaunch,
}

impl Point {
    const fn name(self) -> &'static str {
        match self {
            Self::BeforeCommit => "before-commit",
            Self::AfterDecision => "after-decision",
            Self::AfterSpawn => "after-spawn",
            Self::AfterExit => "after-exit",
            Self::AfterSuspension => "after-suspension",
            Self::AfterEnding => "after-ending",
            Self::HoldLaunch => "hold-launch",
        }
    }
}

/// Dies, hangs or panics here, without any clean-up, if a test asked for it.
pub fn inject(point: Point) {
    let asked = std::env::var(VARIABLE).unwrap_or_default();
    match asked.strip_suffix(point.name()) {
        Some("") if point == Point::HoldLaunch => std::thread::sleep(std::time::Duration::from_secs(2)),
        Some("") => {
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        }
        #[expect(clippy::panic, reason = "a test asked for it")]
        Some("panic-") => panic!("{VARIABLE}={asked}"),
        Some("hang-") => loop {
            std::thread::park();
        },
        _ => {}
    }
}
