//! What carma and a task say to each other.
//!
//! A task talks over a Unix socket of its own (`CARMA_BENCH`), one JSON object a line:
//!
//! | who | says | when |
//! |---|---|---|
//! | task | `{"hello": 1, "pid": 7}` | its model is built; 1 is the version of this protocol |
//! | carma | `{"warm": 1}` | its turn to warm up |
//! | task | `{"ready": 1, "memory_mib": 700}` | it has, and is idle; what its tensors hold, if it knows |
//! | carma | `{"go": {"from_s": 12.5, "until_s": 14.8}}` | do steps between these times of `CLOCK_MONOTONIC` |
//! | task | `{"times_us": [2100, 4150]}` | the window is over, it is idle: when each step was finished, after `from_s` |
//! | carma | `{"quit": 1}` | the end |

use super::count::Counted;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Mutex, PoisonError};

/// Where the socket's path is found.
pub(super) const ENV_BENCH: &str = "CARMA_BENCH";
/// Version of the protocol.
const PROTOCOL: u32 = 1;
/// Longest line that a task may send, bytes: some millions of steps.
const MOST_LINE: u64 = 32 << 20;

/// What a task says. Unknown keys are ignored.
#[derive(Debug, Deserialize)]
struct Said {
    #[serde(default)]
    hello: Option<u32>,
    #[serde(default)]
    ready: Option<u32>,
    #[serde(default)]
    memory_mib: Option<u64>,
    #[serde(default)]
    times_us: Option<Vec<i64>>,
}

/// What is said to a task.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Order {
    Warm(u32),
    Go { from_s: f64, until_s: f64 },
    Quit(u32),
}

/// What came of a task.
#[derive(Debug, PartialEq)]
pub(super) enum News {
    /// It is loaded, and waits for its turn to warm up.
    Hello,
    /// It is warm and idle; memory that its tensors hold, MiB, if it says so.
    Ready(Option<u64>),
    /// When it finished its steps, seconds after the start.
    Times(Vec<f64>),
    /// What was counted of a program that is stopped and continued, or why nothing was.
    Counted(Result<Counted, String>),
    /// It says nothing more, and why.
    Gone(String),
}

/// Reads a task's lines until it closes; returns why there are no more.
pub(super) fn listen(
    listener: &UnixListener,
    shared: &Mutex<Option<UnixStream>>,
    closing: &AtomicBool,
    news: &Sender<News>,
) -> String {
    let tenth = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    let stream = loop {
        if closing.load(Ordering::Relaxed) {
            return "it was told to end".into();
        }
        let _ = poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&tenth));
        if let Ok((stream, _)) = listener.accept() {
            break stream;
        }
    };
    let write = match stream.set_nonblocking(false).and_then(|()| stream.try_clone()) {
        Ok(write) => write,
        Err(e) => return format!("its connection cannot be used: {e}"),
    };
    *shared.lock().unwrap_or_else(PoisonError::into_inner) = Some(write);
    let mut reader = BufReader::new(stream);
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut reader).take(MOST_LINE).read_until(b'\n', &mut line) {
            Ok(_) if line.ends_with(b"\n") => {}
            Ok(n) if n as u64 == MOST_LINE => {
                return format!("it sent a line of more than {MOST_LINE} bytes");
            }
            _ => return "it closed its connection".into(),
        }
        match understand(&line) {
            Ok(heard) => {
                if news.send(heard).is_err() {
                    return String::new();
                }
            }
            Err(why) => return why,
        }
    }
}

fn understand(line: &[u8]) -> Result<News, String> {
    let said: Said = serde_json::from_slice(line).map_err(|e| format!("it sent what is no message: {e}"))?;
    match said {
        Said { hello: Some(PROTOCOL), .. } => Ok(News::Hello),
        Said { hello: Some(other), .. } => {
            Err(format!("it speaks version {other} of the protocol, carma speaks {PROTOCOL}"))
        }
        Said { ready: Some(_), memory_mib, .. } => Ok(News::Ready(memory_mib)),
        Said { times_us: Some(times), .. } => {
            Ok(News::Times(times.into_iter().map(|us| us as f64 / 1e6).collect()))
        }
        _ => Err("it sent a message without `hello`, `ready` or `times_us`".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_understood_or_named() {
        let said = |line: &str| understand(line.as_bytes());
        assert_eq!(said(r#"{"hello": 1, "pid": 3}"#), Ok(News::Hello));
        assert_eq!(said(r#"{"ready": 1}"#), Ok(News::Ready(None)));
        assert_eq!(said(r#"{"ready": 1, "memory_mib": 700}"#), Ok(News::Ready(Some(700))));
        assert_eq!(said(r#"{"times_us": [500, 1500000]}"#), Ok(News::Times(vec![0.0005, 1.5])));
        assert!(said(r#"{"hello": 2}"#).unwrap_err().contains("version 2"));
        assert!(said("{}").unwrap_err().contains("without `hello`"));
        assert!(said("nonsense").unwrap_err().contains("no message"));
        assert!(said(r#"{"times_us": ["x"]}"#).is_err());
    }

    #[test]
    fn orders_are_what_the_helper_reads() {
        let line = |order: &Order| serde_json::to_string(order).unwrap();
        assert_eq!(line(&Order::Warm(1)), r#"{"warm":1}"#);
        assert_eq!(line(&Order::Quit(1)), r#"{"quit":1}"#);
        assert_eq!(line(&Order::Go { from_s: 1.5, until_s: 2.0 }), r#"{"go":{"from_s":1.5,"until_s":2.0}}"#);
    }
}
