//! Numbers of bytes for people.

const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/// Some of all bytes, in the unit that fits all of them: `1.2 of 4.0 GiB`.
#[must_use]
pub fn of(some: u64, all: u64) -> String {
    let (size, unit) = fitting(all);
    format!("{} of {} {unit}", count(some, size), count(all, size))
}

/// Bytes in the unit that fits them: `4.0 GiB`.
#[must_use]
pub fn alone(bytes: u64) -> String {
    let (size, unit) = fitting(bytes);
    format!("{} {unit}", count(bytes, size))
}

/// The largest unit that is not larger than this, and its size.
fn fitting(bytes: u64) -> (u64, &'static str) {
    let mut size: u64 = 1;
    let mut unit = UNITS[0];
    for larger in &UNITS[1..] {
        let Some(next) = size.checked_mul(1024).filter(|next| *next <= bytes) else {
            break;
        };
        (size, unit) = (next, larger);
    }
    (size, unit)
}

fn count(bytes: u64, size: u64) -> String {
    if size == 1 {
        return bytes.to_string();
    }
    let tenths = u128::from(bytes) * 10 / u128::from(size);
    format!("{}.{}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_is_that_of_the_whole_and_nothing_is_rounded_up() {
        assert_eq!(of(0, 1023), "0 of 1023 B");
        assert_eq!(of(100, 1024), "0.0 of 1.0 KiB");
        assert_eq!(of((1 << 30) - 1, 1 << 30), "0.9 of 1.0 GiB");
        assert_eq!(of(4_402_341_478, 10_522_669_875), "4.0 of 9.7 GiB");
        assert_eq!(of(u64::MAX, u64::MAX), "16383.9 of 16383.9 PiB");
        assert_eq!([alone(1023), alone(1536)], ["1023 B", "1.5 KiB"]);
    }
}
