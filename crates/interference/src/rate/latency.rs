//! How long requests take, as a server says it: one at a time, or as a percentile of its own.
//!
//! Heartbeats are `latency 12.3ms` or `p99 12.3ms`; what is read of the output is in [`read`]. [`Latencies`] keeps them over time in bounded
//! memory.

use super::line::number;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// Shortest and longest time that is believed, milliseconds: a hundredth, and an hour.
const SHORTEST_MS: f64 = 0.01;
const LONGEST_MS: f64 = 3_600_000.0;
/// Two times closer than this are one: 2 % from bin to bin.
const GROWTH: f64 = 1.02;
/// Lengths that are told apart of one second, the longest: a percentile of no more than a hundred times as many requests is exact.
const MOST_BINS: usize = 128;
/// Seconds that are kept.
const KEPT: usize = 900;

/// What a server said of its latency.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Told {
    /// Milliseconds.
    pub ms: f64,
    /// Whether it is its own 99th percentile of many requests, and not one of them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_p99: bool,
}

fn believed(ms: f64) -> Option<f64> {
    (ms.is_finite() && (0.0..=LONGEST_MS).contains(&ms)).then_some(ms.max(SHORTEST_MS))
}

/// Reads a datagram: `latency` or `p99`, a number and a unit. `None`: something else.
#[must_use]
pub fn datagram(text: &str) -> Option<Told> {
    let (is_p99, rest) = match text.strip_prefix("p99") {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix("latency")?),
    };
    let (ms, rest) = amount(rest.starts_with([' ', '=', ':']).then_some(rest)?, None)?;
    rest.trim().is_empty().then_some(Told { ms, is_p99 })
}

/// Reads a line of output: `latency 12.3 ms`, `latency=0.0123s`, `latency_ms=12.3`, `"p99_latency_ms": 12.3`, `p99: 12.3ms`, in any case
/// and anywhere in the line, the first that is one. A word needs a unit, before the number or after it. What a server says
/// of its own 99th percentile goes before what it says of one request; its mean, median and other percentiles are passed over.
#[must_use]
pub fn read(line: &str) -> Option<Told> {
    let text = line.to_ascii_lowercase();
    let mut single = None;
    let mut at = 0;
    while let Some(found) = text.get(at..)?.find(|c: char| c.is_ascii_alphabetic()) {
        let start = at + found;
        let rest = text.get(start..)?;
        let end = rest
            .find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')))
            .unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        at = start + end;
        // Part of a longer word, of an address for instance.
        let begins = !text
            .get(..start)?
            .ends_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/'));
        let Some(key) = Key::of(word).filter(|_| begins) else { continue };
        let Some((ms, _)) = amount(after, key.unit) else { continue };
        if key.is_p99 {
            return Some(Told { ms, is_p99: true });
        }
        single = single.or(Some(Told { ms, is_p99: false }));
    }
    single
}

/// A word that says what the number after it is.
struct Key {
    is_p99: bool,
    /// Milliseconds in the unit that the word names.
    unit: Option<f64>,
}

impl Key {
    fn of(word: &str) -> Option<Self> {
        let mut parts: Vec<&str> = word.split(['_', '-', '.']).collect();
        let unit = parts.last().and_then(|last| unit(last)).filter(|_| parts.len() > 1);
        if unit.is_some() {
            parts.pop();
        }
        let is_p99 = parts.contains(&"p99");
        let others = parts
            .iter()
            .all(|part| matches!(*part, "latency" | "p99" | "request" | "response" | "inference" | "e2e"));
        (others && (is_p99 || parts.contains(&"latency"))).then_some(Self { is_p99, unit })
    }
}

/// Milliseconds in a unit.
fn unit(word: &str) -> Option<f64> {
    match word {
        "us" | "µs" => Some(0.001),
        "ms" => Some(1.0),
        "s" | "sec" => Some(1000.0),
        _ => None,
    }
}

/// A number after its name, with its unit behind it unless the name had one. Milliseconds, and what follows.
fn amount(after: &str, of_name: Option<f64>) -> Option<(f64, &str)> {
    let text = after.trim_start_matches(['"', '\'']);
    let text = text.trim_start_matches([' ', '\t', '=', ':', '"', '\'']);
    let text = text.strip_prefix("is ").unwrap_or(text);
    // No more than a mark and blanks between them.
    if after.len() - text.len() > 8 {
        return None;
    }
    let (value, rest) = number(text)?;
    let blank = rest.trim_start_matches([' ', '\t']);
    let end = blank.find(|c: char| !(c.is_ascii_alphabetic() || c == 'µ')).unwrap_or(blank.len());
    let (word, behind) = blank.split_at(end);
    let (factor, rest) = match (unit(word), of_name) {
        (Some(factor), None) => (factor, behind),
        (_, Some(factor)) => (factor, rest),
        (None, None) => return None,
    };
    Some((believed(value * factor)?, rest))
}

/// Latencies over time: how many of each length in each second, to 2 %.
#[derive(Debug, Clone, Default)]
pub struct Latencies {
    seconds: VecDeque<Second>,
}

#[derive(Debug, Clone, Default)]
struct Second {
    at: i64,
    /// How many requests were about so long.
    requests: BTreeMap<u16, u32>,
    /// The highest percentile of the server's own.
    p99: Option<u16>,
}

/// The 99th percentile over a span.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct P99 {
    /// Milliseconds.
    pub ms: f64,
    /// Requests that it is of; `None`: it is the highest that the server gave itself.
    pub requests: Option<u64>,
}

impl P99 {
    /// Whether it is of enough requests to say anything.
    #[must_use]
    pub fn is_enough(&self) -> bool {
        self.requests.is_none_or(|requests| requests >= REQUESTS)
    }
}

/// Requests of which a percentile is taken at least.
const REQUESTS: u64 = 20;

impl Latencies {
    /// One more, at a time in seconds on the caller's clock, which must not run backwards by more than what is kept.
    pub fn add(&mut self, at_s: f64, told: Told) {
        let Some(ms) = believed(told.ms).filter(|_| at_s.is_finite()) else { return };
        // No more than a thousand of them, from the shortest to the longest.
        let bin = ((ms / SHORTEST_MS).ln() / GROWTH.ln()).round().clamp(0.0, f64::from(u16::MAX)) as u16;
        let second = at_s.floor() as i64;
        let last = self.seconds.back().map_or(i64::MIN, |second| second.at);
        if second > last {
            self.seconds.push_back(Second { at: second, ..Second::default() });
            if self.seconds.len() > KEPT {
                self.seconds.pop_front();
            }
        }
        match self.seconds.back_mut() {
            Some(second) if told.is_p99 => second.p99 = second.p99.max(Some(bin)),
            Some(second) => {
                let count = second.requests.entry(bin).or_default();
                *count = count.saturating_add(1);
                if second.requests.len() > MOST_BINS
                    && let Some((_, shortest)) = second.requests.pop_first()
                    && let Some(mut next) = second.requests.first_entry()
                {
                    *next.get_mut() = next.get().saturating_add(shortest);
                }
            }
            None => {}
        }
    }

    /// Over the whole seconds from one time to another; `None`: nothing was said then.
    #[must_use]
    pub fn p99(&self, from_s: f64, to_s: f64) -> Option<P99> {
        let ms = |bin: u16| SHORTEST_MS * GROWTH.powi(i32::from(bin));
        let within = || self.seconds.iter().filter(|second| (from_s..to_s).contains(&(second.at as f64)));
        if let Some(highest) = within().filter_map(|second| second.p99).max() {
            return Some(P99 { ms: ms(highest), requests: None });
        }
        let mut all: BTreeMap<u16, u64> = BTreeMap::new();
        for (bin, count) in within().flat_map(|second| &second.requests) {
            *all.entry(*bin).or_default() += u64::from(*count);
        }
        let requests: u64 = all.values().sum();
        // Of so many the slowest hundredth, at least one.
        let beyond = requests / 100;
        let mut seen = 0;
        for (bin, count) in all.iter().rev() {
            seen += count;
            if seen > beyond {
                return Some(P99 { ms: ms(*bin), requests: Some(requests) });
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn one(ms: f64) -> Told {
        Told { ms, is_p99: false }
    }

    #[test]
    fn what_servers_print() {
        for (line, ms) in [
            ("latency 12.5 ms", 12.5),
            ("latency=0.0125s", 12.5),
            ("request done, Latency: 12.5ms, batch 4", 12.5),
            ("latency_ms=12.5", 12.5),
            ("{\"p99_latency_ms\": 12.5, \"qps\": 80}", 12.5),
            ("latency 3 ms p99: 12.5 ms", 12.5),
            ("p99 is 12.5 ms", 12.5),
            ("inference_latency_us=12500", 12.5),
            ("P99=12,500 us", 12.5),
        ] {
            let told = read(line).unwrap_or_else(|| panic!("{line}"));
            assert!((told.ms - ms).abs() < 1e-9, "{line}: {told:?}");
            assert_eq!(told.is_p99, line.to_lowercase().contains("p99"), "{line}");
        }
        for line in [
            "latency 12.5",
            "low latency mode 3 ms",
            "latency nan ms",
            "latency -3 ms",
            "p50 latency_p50_ms=3",
            "mean_latency_ms=3",
            "p95: 3 ms",
            "took 12 ms",
            "see http://x/latency/12 ms",
            "latency 99999999 s",
            "latency of the first 3 ms",
            "step 3/100  10.0 it/s",
            "",
        ] {
            assert_eq!(read(line), None, "{line}");
        }
    }

    #[test]
    fn heartbeats() {
        for text in ["latency 12.5ms", "latency=12.5 ms", "latency: 0.0125 s"] {
            assert_eq!(datagram(text), Some(one(12.5)), "{text}");
        }
        assert_eq!(datagram("p99 12.5ms"), Some(Told { ms: 12.5, is_p99: true }));
        for text in [
            "p99",
            "p99.9 5ms",
            "latency",
            "latency 5",
            "latency 5ms and more",
            "5",
            "latencyx 5ms",
            "latency -5ms",
        ] {
            assert_eq!(datagram(text), None, "{text}");
        }
    }

    #[test]
    fn a_hundredth_may_be_slower() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.p99(0.0, 10.0), None);
        for n in 0..1000 {
            latencies.add(f64::from(n) / 100.0, one(if n % 100 == 7 { 80.0 } else { 10.0 }));
        }
        let p99 = latencies.p99(0.0, 10.0).unwrap();
        assert_eq!((p99.requests, p99.is_enough()), (Some(1000), true));
        assert!((9.8..10.2).contains(&p99.ms), "{p99:?}");
        latencies.add(9.99, one(80.0));
        let p99 = latencies.p99(0.0, 10.0).unwrap();
        assert!((78.0..82.0).contains(&p99.ms), "{p99:?}");
        assert_eq!(latencies.p99(3.0, 4.0).unwrap().requests, Some(100));
        // The server knows better, and says it seldom.
        latencies.add(9.99, Told { ms: 30.0, is_p99: true });
        let p99 = latencies.p99(0.0, 10.0).unwrap();
        assert!((29.0..31.0).contains(&p99.ms) && p99.is_enough(), "{p99:?}");
        assert_eq!(latencies.p99(20.0, 30.0), None);
    }

    #[test]
    fn a_job_that_sends_all_lengths_takes_no_more_memory() {
        let mut latencies = Latencies::default();
        for n in 0..10_000 {
            latencies.add(0.5, one(0.01 * 1.002_f64.powi(n % 5_000)));
        }
        assert_eq!(latencies.seconds[0].requests.len(), MOST_BINS);
        let p99 = latencies.p99(0.0, 1.0).unwrap();
        let exact = 0.01 * 1.002_f64.powi(4_950);
        assert!((p99.ms / exact - 1.0).abs() < 0.02 && p99.requests == Some(10_000), "{p99:?}");
    }

    #[test]
    fn few_requests_and_many_seconds() {
        let mut latencies = Latencies::default();
        latencies.add(0.0, one(5.0));
        latencies.add(0.5, one(7.0));
        let p99 = latencies.p99(0.0, 1.0).unwrap();
        assert!((6.8..7.2).contains(&p99.ms) && !p99.is_enough());
        for n in 0..10_000 {
            latencies.add(f64::from(n), one(f64::from(n)));
        }
        for bad in [f64::NAN, f64::INFINITY, -1.0] {
            latencies.add(10_000.0, one(bad));
        }
        assert_eq!(latencies.seconds.len(), KEPT);
        assert_eq!(latencies.p99(0.0, 1e9).unwrap().requests, Some(KEPT as u64));
    }
}
