//! Lengths of time as people and batch systems write them.

use std::time::Duration;

/// A century, as an upper limit.
const LONGEST_S: f64 = 100.0 * 365.25 * 86400.0;

/// The units with their names, longest first.
pub(crate) const UNITS: [(u64, &[&str]); 4] = [
    (86400, &["d", "day", "days"]),
    (3600, &["h", "hour", "hours"]),
    (60, &["min", "minute", "minutes", "m"]),
    (1, &["s", "second", "seconds"]),
];

/// Reads `90 s`, `1.5 h`, `2h 30min`, `1 day`, and Slurm's `02:30:00` and `1-12:00:00`, to the millisecond.
pub fn parse_time(text: &str) -> Option<Duration> {
    let seconds = match text.contains(':') {
        true => parse_clock(text.trim()).filter(|_| text.matches(':').count() == 2)?.as_secs_f64(),
        false => by_units(text)?,
    };
    if !(seconds > 0.0 && seconds <= LONGEST_S) {
        return None;
    }
    // A positive time shorter than 1 ms becomes 1 ms.
    Some(Duration::from_millis((seconds * 1e3).round().max(1.0) as u64))
}

fn by_units(text: &str) -> Option<f64> {
    let mut rest = text.trim();
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let unit_at = rest.find(|c: char| c.is_ascii_alphabetic())?;
        let (number, behind) = rest.split_at(unit_at);
        let end = behind.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(behind.len());
        let (unit, after) = behind.split_at(end);
        let (size, _) = UNITS.iter().find(|(_, words)| words.contains(&unit))?;
        let number = number.trim();
        // Refuses signs, exponents and names such as `inf`.
        if !number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
            return None;
        }
        seconds += number.parse::<f64>().ok()? * *size as f64;
        rest = after.trim_start();
    }
    Some(seconds)
}

/// Reads `[days-][[hours:]minutes:]seconds`, as batch systems print times; `None` for any other text.
pub fn parse_clock(text: &str) -> Option<Duration> {
    let (days, clock) = text.split_once('-').unwrap_or(("0", text));
    let whole = |field: &str| field.parse::<u32>().ok().map(u64::from);
    let fields: Vec<u64> = clock.split(':').map(whole).collect::<Option<_>>()?;
    // With more fields, the sum could overflow.
    let days = whole(days).filter(|_| fields.len() <= 3)?;
    let seconds = fields.iter().fold(0, |seconds, field| seconds * 60 + field);
    Some(Duration::from_secs(days * 86400 + seconds))
}

/// Writes the time in its largest whole unit, as [`parse_time`] reads it: `90 min`, `2 h`, `0.25 s`.
pub fn format_time(time: Duration) -> String {
    let millis = time.as_millis() as u64;
    let whole = |(seconds, words): &(u64, &[&'static str])| {
        let size = seconds * 1000;
        (millis >= size && millis.is_multiple_of(size)).then(|| (millis / size, words[0]))
    };
    match UNITS.iter().find_map(whole) {
        Some((number, unit)) => format!("{number} {unit}"),
        None => format!("{} s", time.as_secs_f64()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_read_and_show() {
        for (text, seconds, shown) in [
            ("90 s", 90.0, "90 s"),
            (" 90minutes", 5400.0, "90 min"),
            ("8m", 480.0, "8 min"),
            ("1.5 h", 5400.0, "90 min"),
            ("2h30min", 9000.0, "150 min"),
            ("1 day 12 h", 129_600.0, "36 h"),
            ("2 days", 172_800.0, "2 d"),
            ("0.25 s", 0.25, "0.25 s"),
            ("02:30:05", 9005.0, "9005 s"),
            ("1-12:00:00", 129_600.0, "36 h"),
        ] {
            let time = parse_time(text).unwrap();
            assert_eq!(time, Duration::from_secs_f64(seconds), "{text}");
            assert_eq!(format_time(time), shown);
        }
        for text in [
            "",
            "10",
            "min",
            "0 s",
            "-1 h",
            "+1 h",
            "nan h",
            "inf s",
            "1e3 h",
            "1.2.3 h",
            "3 fortnights",
            "00:00:00",
            "10:00",
            "1:2:3:4",
            "1:1:1:1:1:1:1:1:1:1:1:1:1:1:1",
            "-1:00:00",
            "h 3",
            "999999999 d",
            "5 steps",
        ] {
            assert_eq!(parse_time(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_reads_or_is_an_error(text: String) {
            let _ = parse_time(&text);
        }

        #[test]
        fn times_round_trip(millis in 1_u64..1 << 40) {
            let time = Duration::from_millis(millis);
            prop_assert_eq!(parse_time(&format_time(time)).unwrap(), time);
        }
    }
}
