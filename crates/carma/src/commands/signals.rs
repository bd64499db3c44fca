//! Signals that ask a command to end.

use carma_cli::failure::Failure;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::Poll;
use tokio::runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Number of calls of [`catch`]: the latest handler decides what a signal means.
static CAUGHT: AtomicU32 = AtomicU32::new(0);

/// Number of handlers that were set so far.
pub(crate) fn times_caught() -> u32 {
    CAUGHT.load(Ordering::SeqCst)
}

/// From now on SIGINT, SIGTERM and these more end nothing by themselves: `heard` is told of each, until it returns
/// false. Those of the latter that this process was started to ignore (`nohup`) stay ignored.
///
/// # Errors
/// When the system gives no more threads or descriptors.
pub(crate) fn catch(more: &[SignalKind], mut heard: impl FnMut() -> bool + Send + 'static) -> io::Result<()> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    // Caught before this returns, or a signal right after a submission would leave the job behind.
    let mut caught = {
        let _inside = runtime.enter();
        let more = more.iter().copied().filter(|kind| !is_ignored(*kind));
        let kinds = [SignalKind::interrupt(), SignalKind::terminate()].into_iter().chain(more);
        kinds.map(signal).collect::<io::Result<Vec<_>>>()?
    };
    CAUGHT.fetch_add(1, Ordering::SeqCst);
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        runtime.block_on(async {
            loop {
                std::future::poll_fn(|context| {
                    let ready = |signal: &mut Signal| signal.poll_recv(context).is_ready();
                    if caught.iter_mut().any(ready) { Poll::Ready(()) } else { Poll::Pending }
                })
                .await;
                if !heard() {
                    break;
                }
            }
        });
    })?;
    Ok(())
}

/// Exit code of a command that was interrupted, as a shell shows SIGINT.
pub(crate) const INTERRUPTED: u8 = 130;

/// Set by the first signal that asks this command to end, a terminal's that goes away among them: its tasks must not be
/// left behind.
///
/// # Errors
/// When the system gives no more threads or descriptors.
pub(crate) fn stopped() -> Result<Arc<AtomicBool>, Failure> {
    stopped_or(|| {})
}

/// The same for a command that sends one request after the other: it looks at this between two, and says what was done so far. The second
/// signal ends it at once, in case the daemon does not answer.
///
/// # Errors
/// When the system gives no more threads or descriptors.
pub(crate) fn stopped_between_requests() -> Result<Arc<AtomicBool>, Failure> {
    stopped_or(|| std::process::exit(INTERRUPTED.into()))
}

/// `again`: what each further signal does.
fn stopped_or(again: fn()) -> Result<Arc<AtomicBool>, Failure> {
    let stopped = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&stopped);
    let heard = move || {
        if set.swap(true, Ordering::Relaxed) {
            again();
        }
        true
    };
    catch(&[SignalKind::hangup()], heard)
        .map_err(|e| Failure::new(format!("cannot watch for signals: {e}")))?;
    Ok(stopped)
}

/// Whether this process ignores the signal.
fn is_ignored(kind: SignalKind) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    u32::try_from(kind.as_raw_value() - 1).is_ok_and(|bit| mask.checked_shr(bit).unwrap_or(0) & 1 == 1)
}
