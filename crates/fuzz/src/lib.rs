//! Tries a reader with hostile bytes: damaged samples for a while, then large inputs. Not shipped.
//!
//! `tests/readers.rs` lists every reader of carma. As a test each gets 3,000 damaged samples, the same each time, and inputs of a
//! mebibyte; `bench/trust/fuzz.sh` gives it a minute of others and 64 MiB and makes a table of what it took. What decides are the
//! variables `CARMA_FUZZ_SECONDS`, `CARMA_FUZZ_SEED`, `CARMA_FUZZ_MIB` and `CARMA_FUZZ_RSS_MIB`.

use bolero::TypeGenerator;
use carma_seeded::Seeded;
use flate2::{Compression, write::GzEncoder};
use std::cell::{Cell, RefCell};
use std::io::{self, Write};
use std::panic::RefUnwindSafe;
use std::time::{Duration, Instant};

/// Damage to a sample.
#[derive(Debug, Clone, TypeGenerator)]
enum Damage {
    /// One byte becomes another.
    Byte(u32, u8),
    /// A digit of a number becomes what numbers are made of.
    Numeral(u32, u8),
    /// It ends here.
    Cut(u32),
    /// Bytes come in between.
    Insert(u32, Vec<u8>),
    /// A piece of it comes again, somewhere else.
    Repeat(u32, u8, u32),
    /// A piece of it is gone.
    Remove(u32, u8),
}

/// What a reader is given.
#[derive(Debug, Clone, TypeGenerator)]
struct Input {
    /// Which sample; the last is empty.
    sample: u8,
    damage: Vec<Damage>,
    /// Whether gzip is laid around it, where the reader unpacks.
    packed: bool,
}

/// A reader under test.
#[derive(Debug)]
pub struct Reader<'a> {
    name: &'a str,
    samples: Vec<Vec<u8>>,
    unpacks: bool,
}

/// What was seen of a reader.
#[derive(Debug, Default)]
struct Seen {
    runs: Cell<u64>,
    slowest: Cell<Duration>,
    what: RefCell<String>,
}

/// The reader of that name.
#[must_use]
pub const fn reader(name: &str) -> Reader<'_> {
    Reader { name, samples: Vec::new(), unpacks: false }
}

impl Reader<'_> {
    /// Adds an input that it reads. Random bytes rarely get past the first word of a format.
    #[must_use]
    pub fn sample(mut self, bytes: impl AsRef<[u8]>) -> Self {
        self.samples.push(bytes.as_ref().to_vec());
        self
    }

    /// Says that it unpacks gzip.
    #[must_use]
    pub const fn unpacks(mut self) -> Self {
        self.unpacks = true;
        self
    }

    /// Runs it. Prints what it took, as a line of words separated by tabs.
    ///
    /// # Panics
    /// When the reader does, or when it takes more memory than a large input may cost.
    pub fn reads(self, read: impl Fn(&[u8]) + RefUnwindSafe) {
        let draws = match variable("CARMA_FUZZ_SECONDS", 0) {
            0 => Seeded::runs(3000),
            seconds => Seeded::time(Duration::from_secs(seconds)),
        };
        let mib = variable("CARMA_FUZZ_MIB", 1);
        let before = peak_mib();
        let seen = Seen::default();
        // Cells are safe here: a run that panics ends the test.
        let timed = std::panic::AssertUnwindSafe(|what: &str, bytes: &[u8]| {
            let began = Instant::now();
            read(bytes);
            let took = began.elapsed();
            seen.runs.set(seen.runs.get() + 1);
            if took > seen.slowest.get() {
                seen.slowest.set(took);
                *seen.what.borrow_mut() = format!("{what}, {} bytes", bytes.len());
            }
        });
        bolero::TestTarget::new(draws)
            .with_type::<Input>()
            .for_each(|input| timed("damaged sample", &self.damaged(input)));
        self.large((mib << 20) as usize, &|what, bytes| {
            if std::env::var_os("CARMA_FUZZ_VERBOSE").is_some() {
                eprintln!("{}: {what} ({} MiB so far)", self.name, peak_mib());
            }
            timed(what, bytes);
        });
        let peak = peak_mib();
        println!(
            "FUZZ\t{}\t{}\t{peak}\t{:.3}\t{}",
            self.name,
            seen.runs.get(),
            seen.slowest.get().as_secs_f64(),
            seen.what.borrow()
        );
        // The largest factor that is in order: small values that become entries of trees and tables.
        let most = variable("CARMA_FUZZ_RSS_MIB", 64 + 64 * mib);
        assert!(
            peak.saturating_sub(before) <= most,
            "{} took {} MiB, at most {most} are in order for inputs of {mib} MiB",
            self.name,
            peak - before
        );
    }

    fn damaged(&self, input: &Input) -> Vec<u8> {
        const NUMERALS: &[u8] = b"0123456789-+.eE";
        let mut bytes = self
            .samples
            .get(usize::from(input.sample) % (self.samples.len() + 1))
            .cloned()
            .unwrap_or_default();
        for damage in &input.damage {
            let length = bytes.len();
            let place = |at: u32| at as usize % (length + 1);
            match damage {
                Damage::Byte(at, byte) if place(*at) < length => bytes[place(*at)] = *byte,
                Damage::Numeral(at, byte) => {
                    let digit = (place(*at)..length).find(|i| bytes[*i].is_ascii_digit());
                    if let Some(digit) = digit {
                        bytes[digit] = NUMERALS[usize::from(*byte) % NUMERALS.len()];
                    }
                }
                Damage::Cut(at) => bytes.truncate(place(*at)),
                Damage::Insert(at, more) => drop(bytes.splice(place(*at)..place(*at), more.iter().copied())),
                Damage::Repeat(at, long, to) => {
                    let end = (place(*at) + usize::from(*long)).min(length);
                    let piece = bytes[place(*at)..end].to_vec();
                    bytes.splice(place(*to)..place(*to), piece);
                }
                Damage::Remove(at, long) => {
                    let end = (place(*at) + usize::from(*long)).min(length);
                    bytes.drain(place(*at)..end);
                }
                Damage::Byte(..) => {}
            }
        }
        if self.unpacks && input.packed { packed(&bytes, 1) } else { bytes }
    }

    /// Large inputs: one value without end, one without a bottom, many small ones, samples many times over.
    fn large(&self, size: usize, read: &dyn Fn(&str, &[u8])) {
        let of = |piece: &[u8]| piece.iter().copied().cycle().take(size).collect::<Vec<u8>>();
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let noise = |_| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random as u8
        };
        read("random bytes", &(0..size).map(noise).collect::<Vec<u8>>());
        for (what, piece) in [
            ("zeros", &b"\0"[..]),
            ("one long line", b"a"),
            ("one long number", b"7"),
            ("spaces", b" "),
            ("quotes", b"\""),
            ("line ends", b"\n"),
            ("short rows", b"1,2\n"),
            ("commas", b","),
            ("deep lists", b"["),
            ("deep objects", b"{\"a\":"),
            ("deep parentheses", b"("),
            ("deep tables", b"[a.a]\n"),
            ("dotted keys", b"a."),
            ("protobuf in protobuf", b"\x3a\xff\xff\xff\x1f"),
        ] {
            read(what, &of(piece));
        }
        for (what, begin, piece, end) in [
            ("a list of numbers", "[", "0,", "0]"),
            ("a list of lists", "[", "[],", "[]]"),
            ("a value of a deep list", "a = ", "[", ""),
            ("an object of one key", "{", "\"a\":0,", "\"a\":0}"),
        ] {
            read(what, &[begin.as_bytes(), &of(piece.as_bytes()), end.as_bytes()].concat());
        }
        let mut keys = b"{".to_vec();
        let mut lines = Vec::new();
        for n in 0.. {
            if keys.len() >= size {
                break;
            }
            keys.extend_from_slice(format!("\"{n:x}\":{n},").as_bytes());
            lines.extend_from_slice(format!("k{n} = {n}\n").as_bytes());
        }
        keys.extend_from_slice(b"\"\":0}");
        read("an object of many keys", &keys);
        lines.truncate(size);
        read("lines of many keys", &lines);
        for sample in self.samples.iter().filter(|sample| !sample.is_empty()) {
            read("a sample over and over", &of(sample));
            read("a sample and zeros", &[sample.as_slice(), &vec![0; size]].concat());
            // What stands in the middle is what a format has many of: rows, layers, entries.
            let lines: Vec<&[u8]> = sample.split_inclusive(|b| *b == b'\n').collect();
            if let [begin @ .., last] = lines.as_slice()
                && let Some(row) = begin.last()
            {
                read("a sample with a row over and over", &[&begin.concat(), &of(row), *last].concat());
            }
        }
        if self.unpacks {
            for (what, byte) in [("gzip of line ends", b'\n'), ("gzip of one line", b'a')] {
                read(what, &packed(&vec![byte; 1 << 20], 16 * (size >> 20).max(1)));
            }
        }
    }
}

/// Gzip of a piece so many times over.
fn packed(piece: &[u8], times: usize) -> Vec<u8> {
    let mut out = GzEncoder::new(Vec::new(), Compression::fast());
    // A vector takes whatever is written to it.
    let _: io::Result<()> = (0..times).try_for_each(|_| out.write_all(piece));
    out.finish().unwrap_or_default()
}

fn variable(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// The most memory that this process has had, MiB.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) >> 10
}
