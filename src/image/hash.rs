//! A number that is made from a name: the same in every process, on every node and in every version of this program.

/// FNV-1a: what the standard library hashes with may change with its version.
#[must_use]
pub fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Leases and labels on the nodes are named by it: another number would leave the old ones behind.
    #[test]
    fn the_numbers_are_those_of_the_published_test_vectors() {
        for (text, expected) in [
            ("", 0xcbf2_9ce4_8422_2325),
            ("a", 0xaf63_dc4c_8601_ec8c),
            ("foobar", 0x8594_4171_f739_67e8),
        ] {
            assert_eq!(hash(text), expected, "{text}");
        }
    }
}
