//! Numbers of bytes for people.

const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/// Some of all bytes, in the unit that fits all of them: `1.2 of 4.0 GiB`.
#[must_use]
pub fn of(some: u64, all: u64) -> String {
    let mut size: u64 = 1;
    let mut unit = UNITS[0];
    for larger in &UNITS[1..] {
        let Some(next) = size.checked_mul(1024).filter(|next| *next <= all) else {
            break;
        };
        (size, unit) = (next, larger);
    }
    if size == 1 {
        return format!("{some} of {all} {unit}");
    }
    let tenths = |bytes: u64| {
        let tenths = u128::from(bytes) * 10 / u128::from(size);
        format!("{}.{}", tenths / 10, tenths % 10)
    };
    format!("{} of {} {unit}", tenths(some), tenths(all))
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
    }
}
