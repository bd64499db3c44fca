//! What a command prints: passed on as it comes, and read for its progress.

use super::interrupts::Bell;
use carma_process::progress::Output;
use std::io::{self, Read, Write};
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Most bytes of output that wait to be read for progress. What comes meanwhile is passed on unread: neither may the
/// memory grow nor the command wait, which would then go slower than it does.
const MOST_WAITING: usize = 512 << 10;
/// Most bytes of a piece.
const PIECE: usize = 16 << 10;
/// Bytes that a piece takes besides its text.
const OVERHEAD: usize = 64;
/// Most bytes that are still read of a line once too much waits.
const MOST_REST: usize = 4 << 10;

/// Opens the place where output goes on to.
pub type Outlet = fn() -> Box<dyn Write + Send>;

/// Where the output of a command goes on to. One that takes no more is no reason to stop the command.
#[derive(Debug, Clone, Copy)]
pub struct Outlets {
    /// Its standard output.
    pub standard: Outlet,
    /// Its standard error.
    pub error: Outlet,
}

/// What a task printed, and when.
pub(super) struct Piece {
    pub(super) at: Instant,
    pub(super) output: Output,
    /// Empty: the stream is at its end.
    pub(super) bytes: Vec<u8>,
}

/// The output of a command, piece by piece.
pub(super) struct Passed {
    pieces: Receiver<Piece>,
    waiting: Arc<Waiting>,
}

impl Passed {
    /// Passes on what the command prints, from now on.
    pub(super) fn of(child: &mut Child, outlets: Outlets, bell: &Bell) -> Self {
        let (sender, pieces) = channel();
        let waiting = Arc::new(Waiting::default());
        let to_us = |output| ToUs::new(output, sender.clone(), Arc::clone(&waiting));
        if let Some(out) = child.stdout.take() {
            pass(out, (outlets.standard)(), to_us(Output::Standard), bell.clone());
        }
        if let Some(err) = child.stderr.take() {
            pass(err, (outlets.error)(), to_us(Output::Error), bell.clone());
        }
        Self { pieces, waiting }
    }

    /// The next piece, which is waited for as long as this.
    pub(super) fn next(&self, wait: Duration) -> Option<Piece> {
        let piece =
            if wait.is_zero() { self.pieces.try_recv().ok() } else { self.pieces.recv_timeout(wait).ok() }?;
        self.waiting.bytes.fetch_sub(piece.bytes.len() + OVERHEAD, Ordering::AcqRel);
        Some(piece)
    }

    /// Bytes that were not read because they came too fast.
    pub(super) fn unread(&self) -> u64 {
        self.waiting.unread.load(Ordering::Acquire)
    }
}

/// Output on its way from the threads that pass it on to the one that reads it.
#[derive(Debug, Default)]
struct Waiting {
    bytes: AtomicUsize,
    unread: AtomicU64,
}

/// What becomes of a stream's next bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Course {
    /// They are read.
    Read,
    /// So many more, until the line ends: half a number is another number.
    ReadLine(usize),
    /// They are passed over until a line begins when there is room.
    PassOver,
}

/// Where one stream's output goes to be read for progress.
struct ToUs {
    output: Output,
    pieces: Sender<Piece>,
    waiting: Arc<Waiting>,
    course: Course,
}

impl ToUs {
    const fn new(output: Output, pieces: Sender<Piece>, waiting: Arc<Waiting>) -> Self {
        Self { output, pieces, waiting, course: Course::Read }
    }

    /// Hands over what came, or as much of it as is to be read. `false`: the receiver is gone.
    fn give(&mut self, bytes: &[u8]) -> bool {
        let has_room = self.waiting.bytes.load(Ordering::Acquire) < MOST_WAITING;
        let line_end = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r')).map(|at| at + 1);
        let (line, rest) = bytes.split_at(line_end.unwrap_or(bytes.len()));
        let given = match self.course {
            Course::Read | Course::ReadLine(_) if has_room => {
                self.course = Course::Read;
                bytes
            }
            Course::Read | Course::ReadLine(_) => {
                let most = if let Course::ReadLine(most) = self.course { most } else { MOST_REST };
                let line = line.get(..most).unwrap_or(line);
                let left = most - line.len();
                self.course =
                    if line_end.is_some() || left == 0 { Course::PassOver } else { Course::ReadLine(left) };
                line
            }
            Course::PassOver if has_room && line_end.is_some() => {
                self.course = Course::Read;
                rest
            }
            Course::PassOver => &[],
        };
        self.waiting.unread.fetch_add((bytes.len() - given.len()) as u64, Ordering::AcqRel);
        given.is_empty() || self.send(given)
    }

    /// The stream is at its end.
    fn end(&self) {
        self.send(&[]);
    }

    fn send(&self, bytes: &[u8]) -> bool {
        let piece = Piece { at: Instant::now(), output: self.output, bytes: bytes.to_vec() };
        self.waiting.bytes.fetch_add(bytes.len() + OVERHEAD, Ordering::AcqRel);
        self.pieces.send(piece).is_ok()
    }
}

/// Copies a stream as it comes, on a thread of its own that ends with the stream. It is not waited for: something that
/// the command left behind may hold the stream open.
fn pass(
    mut from: impl Read + Send + 'static,
    mut to: impl Write + Send + 'static,
    mut to_us: ToUs,
    bell: Bell,
) {
    let copy = move || {
        let mut buffer = vec![0; PIECE];
        let mut open = true;
        loop {
            let length = match from.read(&mut buffer) {
                Ok(length) => length,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => 0,
            };
            let bytes = buffer.get(..length).unwrap_or_default();
            // A reader of ours that went away (`| head`) is no reason to stop the command.
            open = open && to.write_all(bytes).and_then(|()| to.flush()).is_ok();
            if length == 0 {
                to_us.end();
                bell.ring();
                return;
            }
            let listened = to_us.give(bytes);
            bell.ring();
            if !listened && !open {
                return;
            }
        }
    };
    // Without a thread the command sees a closed stream.
    let _ = std::thread::Builder::new().name("output".into()).spawn(copy);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_read_in_whole_lines_and_takes_no_more_memory() {
        let (sender, pieces) = channel();
        let waiting = Arc::new(Waiting::default());
        let mut to_us = ToUs::new(Output::Standard, sender, Arc::clone(&waiting));
        let text: String = (100_000..400_000).map(|i| format!("step {i}\n")).collect();
        let mut read = String::new();
        let mut take = |most: usize| {
            for piece in pieces.try_iter().take(most) {
                waiting.bytes.fetch_sub(piece.bytes.len() + OVERHEAD, Ordering::AcqRel);
                read += std::str::from_utf8(&piece.bytes).unwrap();
            }
        };
        // Cut at any place, and read less often than it comes.
        for (i, bytes) in text.as_bytes().chunks(1009).enumerate() {
            assert!(to_us.give(bytes));
            assert!(waiting.bytes.load(Ordering::Acquire) < MOST_WAITING + MOST_REST + PIECE);
            if i % 4 == 0 {
                take(1);
            }
        }
        take(usize::MAX);
        assert!(read.lines().all(|line| line.len() == 11 && line.starts_with("step ")));
        let unread = waiting.unread.load(Ordering::Acquire);
        assert!(unread > 0 && unread + read.len() as u64 == text.len() as u64, "{unread}");
        assert!(read.lines().count() > 75_000, "{}", read.lines().count());
        // A flood without lines.
        for _ in 0..10_000 {
            assert!(to_us.give(b"7777777777777777777777777777777777777777777777777777777777777777"));
        }
        assert!(waiting.bytes.load(Ordering::Acquire) < MOST_WAITING + MOST_REST * OVERHEAD);
        for piece in pieces.try_iter() {
            waiting.bytes.fetch_sub(piece.bytes.len() + OVERHEAD, Ordering::AcqRel);
        }
        assert!(to_us.give(b"777\rstep 5\n"));
        assert_eq!(pieces.try_recv().unwrap().bytes, b"step 5\n");
    }
}
