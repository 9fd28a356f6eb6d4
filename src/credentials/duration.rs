//! Lengths of time as Go writes them: `12h`, `1h30m`, `1.5s`, `0`.

use std::time::Duration;

const UNITS: [(&str, f64); 8] = [
    ("ns", 1e-9),
    ("us", 1e-6),
    ("µs", 1e-6),
    ("μs", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("m", 60.0),
    ("h", 3600.0),
];

/// Reads what Go's `time.ParseDuration` reads, except that what is below zero is no length of time. `None`: it is none.
pub fn read(text: &str) -> Option<Duration> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    match rest {
        "" => return None,
        "0" => return Some(Duration::ZERO),
        _ => {}
    }
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let (number, after) = split(rest, |c| c.is_ascii_digit() || c == '.')?;
        let (unit, after) = split(after, |c| !c.is_ascii_digit() && c != '.')?;
        let (_, size) = UNITS.iter().find(|(name, _)| *name == unit)?;
        seconds += number.parse::<f64>().ok()? * size;
        rest = after;
    }
    Duration::try_from_secs_f64(seconds).ok()
}

/// The beginning of the text whose characters are all so, and the rest. `None`: there is no such beginning.
fn split(text: &str, is_so: impl Fn(char) -> bool) -> Option<(&str, &str)> {
    let end = text.find(|c| !is_so(c)).unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_of_time_is_read_as_go_reads_it() {
        for (text, seconds) in [
            ("0", Some(0.0)),
            ("0s", Some(0.0)),
            ("12h", Some(43_200.0)),
            ("12h0m0s", Some(43_200.0)),
            ("1h30m", Some(5_400.0)),
            ("1.5s", Some(1.5)),
            ("+1s", Some(1.0)),
            (".5m", Some(30.0)),
            ("250ms", Some(0.25)),
            ("", None),
            ("10", None),
            ("-5s", None),
            ("5 s", None),
            ("1d", None),
            ("h", None),
            (".s", None),
            ("1.2.3s", None),
            ("1s2", None),
        ] {
            assert_eq!(read(text), seconds.map(Duration::from_secs_f64), "{text:?}");
        }
    }
}
