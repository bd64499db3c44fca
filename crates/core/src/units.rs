//! Units in the type: a number never travels without saying what it counts.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub};

/// Whether a number is zero: what is, stored rows leave out (`skip_serializing_if`).
pub(crate) fn is_zero<N: Default + PartialEq>(number: &N) -> bool {
    *number == N::default()
}

/// Memory in mebibytes (2^20 bytes).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MiB(pub u64);

impl MiB {
    /// Whether it is nothing.
    #[must_use]
    pub const fn is_zero(&self) -> bool {
        self.0 == 0
    }

    /// No memory.
    pub const ZERO: Self = Self(0);

    /// `gib` gibibytes.
    #[must_use]
    pub const fn gib(gib: u64) -> Self {
        Self(gib * 1024)
    }

    /// Bytes, rounded up to whole mebibytes.
    #[must_use]
    pub const fn from_bytes(bytes: u64) -> Self {
        Self(bytes.div_ceil(1 << 20))
    }

    /// Whether this and another amount differ, and rounding hides it: they are then told exactly.
    #[must_use]
    pub fn only_looks_like(self, other: Self) -> bool {
        self != other && self.to_string() == other.to_string()
    }

    /// As text; `exact`: in mebibytes, whatever its size.
    #[must_use]
    pub fn text(self, exact: bool) -> String {
        if exact { format!("{} MiB", self.0) } else { self.to_string() }
    }

    /// `percent` % of this, rounded down.
    #[must_use]
    pub const fn percent(self, percent: u64) -> Self {
        Self(self.0.saturating_mul(percent) / 100)
    }

    /// As this is to `of`, so is the result to `to`; rounded up. Of nothing: this itself.
    #[must_use]
    pub fn in_proportion(self, to: Self, of: Self) -> Self {
        if of.is_zero() {
            return self;
        }
        let scaled = (u128::from(self.0) * u128::from(to.0)).div_ceil(u128::from(of.0));
        Self(u64::try_from(scaled).unwrap_or(u64::MAX))
    }
}

impl Add for MiB {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for MiB {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for MiB {
    type Output = Self;
    /// Saturating: memory is never negative.
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Sum for MiB {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::ZERO, Add::add)
    }
}

impl fmt::Display for MiB {
    /// `512 MiB` below one gibibyte, `12.3 GiB` from there on.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 1024 {
            write!(f, "{} MiB", self.0)
        } else {
            let tenths = (u128::from(self.0) * 10 + 512) / 1024;
            write!(f, "{}.{} GiB", tenths / 10, tenths % 10)
        }
    }
}

/// A point in time (milliseconds since the Unix epoch) or a span, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Millis(pub u64);

impl Millis {
    /// Whether it is none.
    #[must_use]
    pub const fn is_zero(&self) -> bool {
        self.0 == 0
    }

    /// No time.
    pub const ZERO: Self = Self(0);

    /// `s` seconds.
    #[must_use]
    pub const fn secs(s: u64) -> Self {
        Self(s * 1000)
    }

    /// The same in seconds.
    #[must_use]
    pub const fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1000.0
    }

    /// The span since `earlier`, zero if that lies in the future.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }

    /// How long work of this span takes at this share of its speed. A speed of zero counts as one basis point.
    #[must_use]
    pub fn at_speed(self, speed: Fraction) -> Self {
        let takes = u128::from(self.0) * u128::from(Fraction::ONE.0) / u128::from(speed.0.max(1));
        Self(u64::try_from(takes).unwrap_or(u64::MAX))
    }
}

impl Add for Millis {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl fmt::Display for Millis {
    /// A span as people say it: `850 ms`, `12 s`, `3 min 20 s`, `30 min`, `2 h 5 min`, `3 d 4 h`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = self.0 / 1000;
        let (big, unit, small, small_unit) = match s {
            0 if self.0 > 0 => return write!(f, "{} ms", self.0),
            0..=59 => return write!(f, "{s} s"),
            60..=3599 => (s / 60, "min", s % 60, "s"),
            3600..=86_399 => (s / 3600, "h", s % 3600 / 60, "min"),
            _ => (s / 86_400, "d", s % 86_400 / 3600, "h"),
        };
        write!(f, "{big} {unit}")?;
        if small > 0 {
            write!(f, " {small} {small_unit}")?;
        }
        Ok(())
    }
}

/// A share between 0 and 1 in basis points (1/10,000), so that the core compares integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fraction(pub u32);

impl Fraction {
    /// Nothing.
    pub const ZERO: Self = Self(0);

    /// All of it.
    pub const ONE: Self = Self(10_000);

    /// `percent` / 100.
    #[must_use]
    pub const fn percent(percent: u32) -> Self {
        Self(percent * 100)
    }

    /// From a ratio; not-a-number and negative values are no reading.
    #[must_use]
    pub fn from_f64(value: f64) -> Option<Self> {
        (value.is_finite() && value >= 0.0).then(|| Self((value * 10_000.0).round().min(1e9) as u32))
    }

    /// As a ratio.
    #[must_use]
    pub fn to_f64(self) -> f64 {
        f64::from(self.0) / 10_000.0
    }
}

impl fmt::Display for Fraction {
    /// Two decimals, as the papers write activity: `0.65`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2}", self.to_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_read_as_people_write_them() {
        assert_eq!(MiB(512).to_string(), "512 MiB");
        assert_eq!(MiB(12_595).to_string(), "12.3 GiB");
        assert!(MiB(12_595).only_looks_like(MiB(12_600)) && !MiB(12_595).only_looks_like(MiB(12_595)));
        assert_eq!(MiB(12_595).text(true), "12595 MiB");
        assert_eq!(Millis(850).to_string(), "850 ms");
        assert_eq!(Millis::secs(200).to_string(), "3 min 20 s");
        assert_eq!(Millis::secs(1800).to_string(), "30 min");
        assert_eq!(Millis(0).to_string(), "0 s");
        assert_eq!(Fraction::percent(65).to_string(), "0.65");
    }

    #[test]
    fn nonsense_is_no_reading() {
        assert_eq!(Fraction::from_f64(f64::NAN), None);
        assert_eq!(Fraction::from_f64(-0.1), None);
        assert_eq!(MiB(3) - MiB(5), MiB::ZERO);
    }
}
