//! The value of a secret while a process holds it.

use std::fmt;

use zeroize::Zeroizing;

/// Bytes of the shortest value: a shorter one would be found by chance wherever it is looked for.
pub const MIN_VALUE_BYTES: usize = 8;
/// Bytes of the longest value: what servers take in one header.
pub const MAX_VALUE_BYTES: usize = 8 * 1024;

/// A value, without a way to print, copy or write it. Its memory is zeroed when it is dropped.
pub struct SecretValue(Zeroizing<Vec<u8>>);

/// Why bytes cannot be a secret. The bytes themselves are not repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// Too few or too many.
    #[error("a secret has {MIN_VALUE_BYTES} to {MAX_VALUE_BYTES} bytes")]
    Length,
    /// It could not stand in a header.
    #[error(
        "a secret is printable ASCII without a space at either end, so that a header can hold it"
    )]
    Text,
}

impl SecretValue {
    /// Takes the bytes over; refused ones are zeroed.
    ///
    /// # Errors
    /// [`ValueError`]: its length, or a byte that no header holds.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, ValueError> {
        let bytes = Zeroizing::new(bytes);
        if !(MIN_VALUE_BYTES..=MAX_VALUE_BYTES).contains(&bytes.len()) {
            return Err(ValueError::Length);
        }
        let plain = bytes.iter().all(|b| *b == b' ' || b.is_ascii_graphic());
        if !plain || bytes.first() == Some(&b' ') || bytes.last() == Some(&b' ') {
            return Err(ValueError::Text);
        }
        Ok(Self(bytes))
    }

    /// The bytes, for a header or for sealing.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretValue")
    }
}

/// A secret that was opened.
#[derive(Debug)]
pub struct OpenSecret {
    /// Which version it is.
    pub version: u32,
    /// Opened bytes, zeroed when dropped and never printed.
    pub value: SecretValue,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_fits_a_header_and_is_not_printed() {
        let parse = |text: &str| SecretValue::parse(text.as_bytes().to_vec());
        let value = parse("hunter2 hunter2").unwrap();
        assert_eq!(format!("{value:?}"), "SecretValue");
        assert_eq!(value.expose(), b"hunter2 hunter2");
        for (text, why) in [
            ("short", ValueError::Length),
            ("two\nlines here", ValueError::Text),
            (" leading-space", ValueError::Text),
            ("trailing-space ", ValueError::Text),
            ("umlaut-\u{e4}\u{e4}", ValueError::Text),
        ] {
            assert_eq!(parse(text).unwrap_err(), why, "{text}");
        }
        assert_eq!(parse(&"x".repeat(8 * 1024 + 1)).unwrap_err(), ValueError::Length);
    }
}
