//! File names as text, whatever bytes they have.
//!
//! ```text
//! encoded := each byte that is not UTF-8 as %80 to %FF; a `%` as %25 where what follows it would be read
//!            as one of these; everything else as it is
//! ```
//! A name of plain text stays what it is, but for one that holds `%25` or `%80` to `%FF` itself. The way
//! back is exact, so two names are never taken for each other.

use std::fmt::Write as _;

/// The text of a name or of a path.
#[must_use]
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        let mut rest = chunk.valid();
        while let Some((before, after)) = rest.split_once('%') {
            text.push_str(before);
            text.push_str(if code(after.as_bytes()).is_some() { "%25" } else { "%" });
            rest = after;
        }
        text.push_str(rest);
        for byte in chunk.invalid() {
            // Writing to a text does not fail.
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

/// The bytes of such a text.
#[must_use]
pub fn decode(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        match code(after).filter(|_| *first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    bytes
}

/// Whether a text is the encoded one of other bytes than its own.
#[must_use]
pub fn is_encoded(text: &str) -> bool {
    text.split('%').skip(1).any(|after| code(after.as_bytes()).is_some())
}

/// The byte of two digits behind a `%`, if they are written as this module writes them.
fn code(after: &[u8]) -> Option<u8> {
    let (high, low) = (digit(*after.first()?)?, digit(*after.get(1)?)?);
    let byte = high * 16 + low;
    (byte >= 0x80 || byte == b'%').then_some(byte)
}

fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m8_a_name_is_the_same_after_the_way_there_and_back() {
        let all: Vec<Vec<u8>> = vec![
            b"\xff".into(),
            b"plain.txt".into(),
            "caf\u{e9}/\u{1f980}".into(),
            b"100%".into(),
            b"%FF".into(),
            b"%25".into(),
            b"%2525FF".into(),
            b"%\xff%F\xff%2\xff5".into(),
            b"a%20b%c3%C3".into(),
            b"new\nline\x1b[2K".into(),
            (1..=255).collect(),
        ];
        let mut texts = std::collections::BTreeSet::new();
        for name in &all {
            let text = encode(name);
            assert_eq!(decode(&text), *name, "{text}");
            assert_eq!(is_encoded(&text), text.as_bytes() != name.as_slice(), "{text}");
            assert!(texts.insert(text));
        }
        assert_eq!(encode(b"\xff"), "%FF");
        assert_eq!(encode(b"%FF"), "%25FF");
        assert_eq!(encode(b"a%20b 100%"), "a%20b 100%");
    }

    #[test]
    fn m8_every_text_of_four_pieces_has_names_of_its_own() {
        let pieces: [&[u8]; 7] = [b"%", b"F", b"2", b"5", b"\xff", b"a", b"\x80"];
        let mut texts = std::collections::HashMap::new();
        for index in 0..pieces.len().pow(4) {
            let at = |place: u32| pieces[index / pieces.len().pow(place) % pieces.len()];
            let name = [at(0), at(1), at(2), at(3)].concat();
            let text = encode(&name);
            assert_eq!(decode(&text), name);
            assert_eq!(texts.entry(text).or_insert_with(|| name.clone()), &name);
        }
    }
}
