//! Times and durations in tables and in JSON.

use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use serde_json::Value;
use std::time::{Duration, SystemTime};

/// Formats a time like `2026-11-22 03:10:12`.
pub(crate) fn local_time(time: SystemTime) -> String {
    let time = Timestamp::try_from(time).map(|time| Zoned::new(time, TimeZone::system()));
    time.map_or("-".into(), |time| time.strftime("%Y-%m-%d %H:%M:%S").to_string())
}

/// Formats a time by RFC 3339; null for years that it does not allow.
pub(crate) fn time_value(time: Option<SystemTime>) -> Value {
    let time = time.and_then(|time| Timestamp::try_from(time).ok());
    time.map_or(Value::Null, |time| Value::String(time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()))
}

/// Formats a duration in its two largest units: `45 s`, `3 min 20 s`, `2 h 5 min`, `4 d 3 h`.
pub(crate) fn about(time: Duration) -> String {
    let seconds = time.as_secs_f64().round() as u64;
    match (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0, seconds) => format!("{seconds} s"),
        (0, 0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (0, hours, minutes, _) => format!("{hours} h {minutes} min"),
        (days, hours, _, _) => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_two_units() {
        for (seconds, text) in [
            (0.4, "0 s"),
            (59.6, "1 min 0 s"),
            (200.0, "3 min 20 s"),
            (7_530.0, "2 h 5 min"),
            (356_400.0, "4 d 3 h"),
        ] {
            assert_eq!(about(Duration::from_secs_f64(seconds)), text);
        }
    }
}
