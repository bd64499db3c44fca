//! Sizes and durations as users write them, and numbers of jobs and GPUs as they are printed.

use crate::wire::LONGEST_GRACE_MS;
use carma_core::units::{MiB, Millis};

/// Shortest grace: what a program needs to notice a signal.
const SHORTEST_GRACE: Millis = Millis::secs(1);

/// Whether a character that is no control makes a text look like something else, or like another: line and paragraph
/// separators, the marks of bidirectional text (Unicode Standard Annex 9), and what takes no room.
#[must_use]
pub const fn is_deceptive(c: char) -> bool {
    matches!(
        c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
    )
}

/// Numbers of jobs or GPUs as ranges, as commands take them: `1-3,7`.
#[must_use]
pub fn ranges(mut numbers: Vec<u64>) -> String {
    numbers.sort_unstable();
    numbers.dedup();
    let runs = numbers.chunk_by(|a, b| a + 1 == *b);
    let told = runs.filter_map(|run| match run {
        [one] => Some(one.to_string()),
        [first, .., last] => Some(format!("{first}-{last}")),
        [] => None,
    });
    told.collect::<Vec<_>>().join(",")
}

/// Reads a memory size: `20G`, `20GiB`, `512M`, `9.5G`, `1T`. Sizes are binary (`20G` = 20 GiB); a
/// bare number is refused, since its unit would be a guess.
///
/// # Errors
/// Says what was expected.
pub fn memory(text: &str) -> Result<MiB, String> {
    let trimmed = text.trim();
    let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits);
    let hint = || format!("'{text}' is not a size; write e.g. 20G or 512M (binary units)");
    let value: f64 = number.parse().map_err(|_| hint())?;
    let mib_per_unit = match unit.trim().to_ascii_lowercase().as_str() {
        "m" | "mb" | "mib" => 1.0,
        "g" | "gb" | "gib" => 1024.0,
        "t" | "tb" | "tib" => 1024.0 * 1024.0,
        // Nothing is no size in any unit.
        "" if value == 0.0 => 0.0,
        "" => return Err(format!("'{text}' has no unit; write {text}G or {text}M")),
        _ => return Err(hint()),
    };
    let mib = (value * mib_per_unit).ceil();
    if !(1.0..=1e9).contains(&mib) {
        return Err(format!("'{text}' is not a sensible size: give 1M to 953T"));
    }
    Ok(MiB(mib as u64))
}

/// Reads a span of time: `90s`, `10m`, `2h`, `1h30m`, `1d`, or Slurm's `HH:MM:SS`, `MM:SS`,
/// `D-HH:MM:SS`, `D-HH:MM`, `D-HH`. A bare number means minutes, as in Slurm.
///
/// # Errors
/// Says what was expected.
pub fn duration(text: &str) -> Result<Millis, String> {
    let hint = || format!("'{text}' is not a time span; write e.g. 90s, 10m, 2h, 1h30m or 01:30:00");
    let trimmed = text.trim();
    let seconds = if trimmed.contains([':', '-']) {
        clock(trimmed).ok_or_else(hint)?
    } else if let Ok(minutes) = trimmed.parse::<u64>() {
        minutes as f64 * 60.0
    } else {
        suffixed(trimmed).ok_or_else(hint)?
    };
    if seconds < 0.001 {
        return Err(format!("'{text}' is too short: the shortest time is 1ms"));
    }
    if seconds > 1e10 || seconds.is_nan() {
        return Err(format!("'{text}' is too long: the longest time is 115740d"));
    }
    Ok(Millis((seconds * 1000.0).round() as u64))
}

/// Reads an amount of energy: `5 kWh`, `300 Wh`, `18 MJ`, `500 kJ`, `1 GJ`, `900 J`. Returns joules.
///
/// # Errors
/// Says what was expected.
pub fn energy(text: &str) -> Result<u64, String> {
    let hint = || format!("'{text}' is not an amount of energy; write e.g. 5 kWh, 18 MJ or 900 J");
    let trimmed = text.trim();
    let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits);
    let value: f64 = number.parse().map_err(|_| hint())?;
    let joules_per_unit = match unit.trim().to_ascii_lowercase().as_str() {
        "j" => 1.0,
        "kj" => 1e3,
        "mj" => 1e6,
        "gj" => 1e9,
        "wh" => 3.6e3,
        "kwh" => 3.6e6,
        "mwh" => 3.6e9,
        "" => return Err(format!("'{text}' has no unit; write {text} kWh or {text} J")),
        _ => return Err(hint()),
    };
    let joules = (value * joules_per_unit).round();
    if !(0.0..=1e15).contains(&joules) {
        return Err(hint());
    }
    Ok(joules as u64)
}

/// Text that says something: a name, a line for the shell.
///
/// # Errors
/// Where there is nothing but blanks.
pub fn filled(text: &str) -> Result<String, &'static str> {
    if text.trim().is_empty() { Err("expected some text") } else { Ok(text.to_owned()) }
}

/// Reads a slowdown, `1.3` for 1.3 times the time alone. Returns percent.
///
/// # Errors
/// Says what was expected.
pub fn slowdown(text: &str) -> Result<u32, String> {
    match text.trim().parse::<f64>() {
        Ok(factor) if (1.0..=1000.0).contains(&factor) => Ok((factor * 100.0).round() as u32),
        _ => Err(format!("'{text}' is not a slowdown; write a factor from 1 to 1000, e.g. 1.3")),
    }
}

/// Shortest and longest latency that a job may ask for, microseconds.
const LATENCIES: std::ops::RangeInclusive<u32> = 100..=3_600_000_000;

/// Reads what a latency is to stay within: `20ms`, `500us`, `1.5s`. Microseconds.
///
/// # Errors
/// Says what was expected.
pub fn latency(text: &str) -> Result<u32, String> {
    let hint = || format!("'{text}' is not a latency; write e.g. 20ms, 500us or 1.5s");
    let trimmed = text.trim();
    let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits);
    let factor = match unit.trim() {
        "us" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        _ => return Err(hint()),
    };
    let us = number.parse::<f64>().map_err(|_| hint())? * factor;
    let us = if us.is_finite() { us.round().clamp(0.0, f64::from(u32::MAX)) as u32 } else { 0 };
    check_latency(us).map_err(|_| hint() + "; from 100us to 3600s")?;
    Ok(us)
}

/// Whether a job may ask for such a latency, microseconds.
///
/// # Errors
/// Says what was expected.
pub fn check_latency(us: u32) -> Result<(), String> {
    if LATENCIES.contains(&us) {
        return Ok(());
    }
    Err(format!("a latency of {us} us cannot be kept; give 100us to 3600s"))
}

/// Reads how long a job may take to save its work, as [`duration`] does: at least a second and at most an hour.
///
/// # Errors
/// Says what was expected.
pub fn grace(text: &str) -> Result<Millis, String> {
    let grace = duration(text)?;
    check_grace(grace)?;
    Ok(grace)
}

/// Whether a job may take so long to save its work.
///
/// # Errors
/// Says what was expected.
pub fn check_grace(grace: Millis) -> Result<(), String> {
    if (SHORTEST_GRACE..=Millis(LONGEST_GRACE_MS)).contains(&grace) {
        return Ok(());
    }
    Err(format!("a grace of {grace} makes no sense; give a job 1s to 1h to save its work, e.g. 2m"))
}

fn clock(text: &str) -> Option<f64> {
    let (days, rest) = match text.split_once('-') {
        Some((days, rest)) => (Some(days.parse::<u32>().ok()?), rest),
        None => (None, text),
    };
    let parts: Vec<u32> = rest.split(':').map(str::parse).collect::<Result<_, _>>().ok()?;
    // After days the first is hours, as in Slurm.
    let (h, m, s) = match (days, &parts[..]) {
        (_, &[h, m, s]) => (h, m, s),
        (Some(_), &[h, m]) => (h, m, 0),
        (Some(_), &[h]) => (h, 0, 0),
        (None, &[m, s]) => (0, m, s),
        _ => return None,
    };
    Some(f64::from(days.unwrap_or(0)) * 86_400.0 + f64::from(h) * 3600.0 + f64::from(m) * 60.0 + f64::from(s))
}

fn suffixed(text: &str) -> Option<f64> {
    let mut total = 0.0;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(digits);
        let letters = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        let seconds = match unit {
            "ms" => 0.001,
            "s" | "sec" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            _ => return None,
        };
        total += number.parse::<f64>().ok()? * seconds;
        rest = tail;
    }
    Some(total)
}

/// Processors as users write them, `4` or `0.5`; returns percent of one.
///
/// # Errors
/// What was expected.
pub fn cpus(text: &str) -> Result<u32, String> {
    let wrong = || format!("'{text}' is no number of processors; write 4 or 0.5");
    let number: f64 = text.parse().map_err(|_| wrong())?;
    // 1 % of one is the least that the kernel takes.
    if !(0.01..=100_000.0).contains(&number) {
        return Err(wrong());
    }
    Ok((number * 100.0).round() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_follow_each_other_are_a_range() {
        assert_eq!(ranges(vec![9, 2, 1, 3, 7, 10, 3]), "1-3,7,9-10");
        assert_eq!(ranges(vec![u64::MAX - 1, u64::MAX]), format!("{}-{}", u64::MAX - 1, u64::MAX));
        assert_eq!(ranges(Vec::new()), "");
    }
    use crate::wire::CheckpointSignal;

    #[test]
    fn sizes() {
        assert_eq!(memory("20G"), Ok(MiB(20_480)));
        assert_eq!(memory("9.5g"), Ok(MiB(9_728)));
        assert_eq!(memory("512MiB"), Ok(MiB(512)));
        for bad in ["", "G", "20", "-3G", "1e9G", "20X", "NaNG", "0M", "99999999T", "1.2.3G"] {
            assert!(memory(bad).is_err(), "{bad}");
        }
        assert!(memory("20").unwrap_err().contains("20G"));
        assert!(memory("0").unwrap_err().contains("give 1M"));
    }

    #[test]
    fn slowdowns_are_factors_from_one() {
        assert_eq!(slowdown("1.3"), Ok(130));
        assert_eq!(slowdown(" 2 "), Ok(200));
        for bad in ["0.9", "-1", "nan", "inf", "1001", "30%", ""] {
            assert!(slowdown(bad).unwrap_err().contains("not a slowdown"), "{bad}");
        }
    }

    #[test]
    fn a_grace_is_a_second_to_an_hour() {
        assert_eq!(grace("2m"), Ok(Millis::secs(120)));
        assert_eq!(grace("1h"), Ok(Millis::secs(3600)));
        for bad in ["0s", "999ms", "3601s", "1d", "soon", ""] {
            assert!(grace(bad).is_err(), "{bad}");
        }
        assert!(grace("2h").unwrap_err().contains("1h"));
    }

    #[test]
    fn signals_with_and_without_their_prefix() {
        for text in ["USR1", "SIGUSR1", "usr1", " SigUsr1 "] {
            assert_eq!(text.parse(), Ok(CheckpointSignal::Usr1), "{text}");
        }
        for bad in ["", "SIG", "KILL", "STOP", "10", "SEGV", "SIGSIGUSR1", "CHLD", "usr1\n\u{1b}[2J"] {
            let error = bad.parse::<CheckpointSignal>().unwrap_err();
            assert!(error.contains("USR1, USR2, HUP, INT or TERM") && !error.contains('\u{1b}'), "{error}");
        }
        let written = serde_json::to_string(&CheckpointSignal::Hup).unwrap();
        assert_eq!(written, "\"SIGHUP\"");
        assert_eq!(serde_json::from_str::<CheckpointSignal>(&written).unwrap(), CheckpointSignal::Hup);
    }

    #[test]
    fn spans() {
        assert_eq!(duration("90s"), Ok(Millis::secs(90)));
        for long in ["99999999h", "99999999999999"] {
            let why = duration(long).unwrap_err();
            assert!(why.ends_with("is too long: the longest time is 115740d"), "{why}");
        }
        for short in ["0s", "0", "0.1ms"] {
            let why = duration(short).unwrap_err();
            assert!(why.ends_with("is too short: the shortest time is 1ms"), "{why}");
        }
        assert_eq!(duration("1h30m"), Ok(Millis::secs(5400)));
        assert_eq!(duration("10"), Ok(Millis::secs(600)));
        assert_eq!(duration("1-02:00:00"), Ok(Millis::secs(93_600)));
        assert_eq!(duration("1-12:00"), Ok(Millis::secs(129_600)));
        assert_eq!(duration("1-12"), Ok(Millis::secs(129_600)));
        assert_eq!(duration("12:00"), Ok(Millis::secs(720)));
        for bad in [
            "",
            "h",
            "-1s",
            "-1:00",
            "1-",
            "1-2h",
            "1-1:2:3:4",
            "1y",
            "1:2:3:4",
            "99999999999999999999",
            "0s",
            "NaNs",
        ] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
