//! Times and spans, as people read them in columns.

use crate::Screen;
use carma_core::units::Millis;
use jiff::Timestamp;

/// A span in few characters: `0s`, `42s`, `3m20s`, `2h05m`, `3d04h`.
pub fn span(span: Millis) -> String {
    let s = span.0 / 1000;
    match s {
        0..=59 => format!("{s}s"),
        60..=3599 => format!("{}m{:02}s", s / 60, s % 60),
        3600..=86_399 => format!("{}h{:02}m", s / 3600, s % 3600 / 60),
        _ => format!("{}d{:02}h", s / 86_400, s % 86_400 / 3600),
    }
}

/// A point in time (Unix milliseconds) that is near `now_ms`, as a clock shows it; one that is half a day away or more in
/// full, as [`stamp`] does.
pub fn time_of_day(unix_ms: u64, now_ms: u64, screen: &Screen) -> String {
    const HALF_A_DAY_MS: u64 = 12 * 3600 * 1000;
    let near = i64::try_from(unix_ms).ok().filter(|_| unix_ms.abs_diff(now_ms) < HALF_A_DAY_MS);
    near.and_then(|ms| Timestamp::from_millisecond(ms).ok()).map_or_else(
        || stamp(unix_ms, screen),
        |t| t.to_zoned(screen.zone.clone()).strftime("%H:%M:%S").to_string(),
    )
}

/// A point in time (Unix milliseconds) to the second, RFC 3339 with the offset of the time zone.
pub fn stamp(unix_ms: u64, screen: &Screen) -> String {
    i64::try_from(unix_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok()).map_or_else(
        || format!("{unix_ms} ms after 1970"),
        |t| t.to_zoned(screen.zone.clone()).strftime("%Y-%m-%dT%H:%M:%S%:z").to_string(),
    )
}

/// The same in few characters where there is a screen, to the minute; of another year, or so, the day alone.
pub fn short_stamp(unix_ms: u64, now_ms: u64, screen: &Screen) -> String {
    const A_YEAR_MS: u64 = 360 * 24 * 3600 * 1000;
    let format = if unix_ms.abs_diff(now_ms) < A_YEAR_MS { "%m-%d %H:%M" } else { "%Y-%m-%d" };
    let at = i64::try_from(unix_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    match at.filter(|_| screen.width.is_some()) {
        Some(at) => at.to_zoned(screen.zone.clone()).strftime(format).to_string(),
        None => stamp(unix_ms, screen),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans() {
        let of = |s: u64| span(Millis::secs(s));
        assert_eq!(span(Millis(850)), "0s");
        assert_eq!([of(42), of(200), of(7500), of(273_600)], ["42s", "3m20s", "2h05m", "3d04h"]);
        assert_eq!(span(Millis(u64::MAX)), "213503982334d14h");
    }

    #[test]
    fn times_of_the_day() {
        let utc = Screen::of_width(None);
        let at = |ms| time_of_day(ms, 1_760_000_000_000, &utc);
        assert_eq!(
            (at(1_760_000_060_999).as_str(), at(1_759_999_940_000).as_str()),
            ("08:54:20", "08:52:20")
        );
        assert_eq!(at(1_760_086_400_000), "2025-10-10T08:53:20+00:00");
        assert_eq!(at(u64::MAX), stamp(u64::MAX, &utc));
    }

    #[test]
    fn short_stamps() {
        let (at, screen) = (1_760_000_000_000, Screen::of_width(Some(80)));
        let of = |now| short_stamp(at, now, &screen);
        assert_eq!([of(at), of(at + 400 * 86_400_000)], ["10-09 08:53", "2025-10-09"]);
        assert_eq!(short_stamp(at, at, &Screen::of_width(None)), stamp(at, &screen));
    }

    #[test]
    fn stamps() {
        let utc = Screen::of_width(None);
        assert_eq!(stamp(1_760_000_000_123, &utc), "2025-10-09T08:53:20+00:00");
        assert_eq!(stamp(u64::MAX, &utc), "18446744073709551615 ms after 1970");
        let mut there = utc;
        there.zone = jiff::tz::TimeZone::fixed(jiff::tz::offset(2));
        assert_eq!(stamp(1_760_000_000_123, &there), "2025-10-09T10:53:20+02:00");
    }
}
