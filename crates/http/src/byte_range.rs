//! The byte range that a request asks for: one, as a tail or a resumed download needs it.

/// What a `Range` header names of a body whose size is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByteRange {
    /// All of it: no range, several ranges, a malformed one, or a unit other than bytes.
    Whole,
    /// A part of it with at least one byte.
    Part {
        /// The first byte, counted from 0.
        from: u64,
        /// The byte behind the last.
        to: u64,
    },
    /// A range in which the body has no byte.
    Beyond,
}

impl ByteRange {
    /// Reads the value of a header for a body of `size` bytes: `bytes=A-B`, `bytes=A-` or `bytes=-N`. Pure.
    #[must_use]
    pub fn of(header: &str, size: u64) -> Self {
        let Some((from, to)) =
            header.strip_prefix("bytes=").and_then(|range| range.split_once('-'))
        else {
            return Self::Whole;
        };
        let (from, to) = match (from.trim().parse::<u64>(), to.trim().parse::<u64>()) {
            (Ok(from), Ok(to)) if from <= to => (from, to.saturating_add(1).min(size)),
            (Ok(from), Err(_)) if to.trim().is_empty() => (from, size),
            (Err(_), Ok(last)) if from.trim().is_empty() => (size.saturating_sub(last), size),
            _ => return Self::Whole,
        };
        if from >= to { Self::Beyond } else { Self::Part { from, to } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_within_the_body() {
        let part = |from, to| ByteRange::Part { from, to };
        for (header, wanted) in [
            ("bytes=0-3", part(0, 4)),
            ("bytes=5-", part(5, 10)),
            ("bytes=-4", part(6, 10)),
            ("bytes=-40", part(0, 10)),
            ("bytes=8-99", part(8, 10)),
            ("bytes=0-18446744073709551615", part(0, 10)),
            ("bytes=10-", ByteRange::Beyond),
            ("bytes=-0", ByteRange::Beyond),
            ("bytes=3-1", ByteRange::Whole),
            ("bytes=0-1,3-4", ByteRange::Whole),
            ("bytes=-", ByteRange::Whole),
            ("bytes=-1-2", ByteRange::Whole),
            ("lines=1-2", ByteRange::Whole),
        ] {
            assert_eq!(ByteRange::of(header, 10), wanted, "{header}");
        }
        assert_eq!(ByteRange::of("bytes=-4", 0), ByteRange::Beyond);
    }
}
