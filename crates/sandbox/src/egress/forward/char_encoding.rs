//! Ways in which a page may write a character, undone where that changes nothing but the look of it: an
//! address is found however it is written. Pure.

use std::borrow::Cow;

use super::pages::Page;

/// Digits of a reference, zeros in front included.
const MAX_DIGITS: usize = 12;
/// Names of characters that addresses are made of.
const NAMES: [(&[u8], u8); 12] = [
    (b"commat;", b'@'),
    (b"colon;", b':'),
    (b"sol;", b'/'),
    (b"bsol;", b'\\'),
    (b"period;", b'.'),
    (b"lowbar;", b'_'),
    (b"percnt;", b'%'),
    (b"num;", b'#'),
    (b"quest;", b'?'),
    (b"equals;", b'='),
    (b"dollar;", b'$'),
    (b"excl;", b'!'),
];

/// The page with references to characters of addresses as those characters.
pub(super) fn plain(kind: Page, text: &[u8]) -> Cow<'_, [u8]> {
    match kind {
        Page::Html => replaced(text, b'&', reference),
        Page::Json => replaced(text, b'\\', escape),
    }
}

/// Reads what stands behind a sign: what it means, if that is one character of an address, and its length.
type Read = fn(&[u8]) -> (Option<u8>, usize);

fn replaced(text: &[u8], sign: u8, read: Read) -> Cow<'_, [u8]> {
    let mut out = Vec::new();
    let mut done = 0;
    let mut at = 0;
    while let Some(found) = memchr::memchr(sign, text.get(at..).unwrap_or_default()) {
        let from = at.saturating_add(found);
        let behind = from.saturating_add(1);
        let (means, length) = read(text.get(behind..).unwrap_or_default());
        at = behind.saturating_add(length);
        if let Some(byte) = means {
            out.extend_from_slice(text.get(done..from).unwrap_or_default());
            out.push(byte);
            done = at;
        }
    }
    if done == 0 {
        return Cow::Borrowed(text);
    }
    out.extend_from_slice(text.get(done..).unwrap_or_default());
    Cow::Owned(out)
}

/// What follows `&`. Signs of HTML itself stay as they are written.
fn reference(rest: &[u8]) -> (Option<u8>, usize) {
    let Some(digits) = rest.strip_prefix(b"#") else {
        let named = NAMES.iter().find(|(name, _)| rest.starts_with(name));
        return named.map_or((None, 0), |(name, byte)| (Some(*byte), name.len()));
    };
    let (digits, radix, before) = match digits.first() {
        Some(b'x' | b'X') => (digits.get(1..).unwrap_or_default(), 16, 2),
        _ => (digits, 10, 1),
    };
    let is_digit = |byte: &&u8| char::from(**byte).is_digit(radix);
    let length = digits.iter().take(MAX_DIGITS).take_while(is_digit).count();
    let Some(byte) = number(digits.get(..length), radix) else { return (None, 0) };
    let ends = usize::from(digits.get(length) == Some(&b';'));
    (is_of_addresses(byte).then_some(byte), before + length + ends)
}

/// What follows a backslash in JSON.
fn escape(rest: &[u8]) -> (Option<u8>, usize) {
    match rest.first() {
        Some(b'u') => match number(rest.get(1..5), 16) {
            Some(byte) => (is_of_addresses(byte).then_some(byte), 5),
            None => (None, 1),
        },
        // A slash, or a backslash that begins no other escape.
        _ => (None, 1),
    }
}

fn number(digits: Option<&[u8]>, radix: u32) -> Option<u8> {
    let digits = std::str::from_utf8(digits?).ok()?;
    u8::try_from(u32::from_str_radix(digits, radix).ok()?).ok()
}

const fn is_of_addresses(byte: u8) -> bool {
    byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\'' | b'<' | b'>' | b'&' | b'\\' | b'`')
}

/// The text of an attribute.
pub(super) fn attribute(text: &str) -> String {
    let mut text = String::from_utf8_lossy(&plain(Page::Html, text.as_bytes())).into_owned();
    for (written, means) in [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&amp;", "&")] {
        text = text.replace(written, means);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s11_a_character_of_an_address_is_itself_however_it_is_written() {
        for (kind, text, expected) in [
            (Page::Html, "u&#64;h u&#x40;h u&#0064h &commat; &#x2F;", "u@h u@h u@h @ /"),
            (
                Page::Html,
                "&amp;#64; &lt; &#60; &#34; &#38;#64; &bogus; &# &#x &#99999999999999;",
                "",
            ),
            (
                Page::Json,
                r"u\u0040h \u003a\u002F \/ \\u0040 \u0022 \u00e9 \ud83d\ude00 \u004",
                r"u@h :/ \/ \\u0040 \u0022 \u00e9 \ud83d\ude00 \u004",
            ),
            (Page::Json, r"\", ""),
        ] {
            let expected = if expected.is_empty() { text } else { expected };
            assert_eq!(String::from_utf8_lossy(&plain(kind, text.as_bytes())), expected);
        }
        assert_eq!(attribute("a?x=1&amp;y=2&#38;z&lt;"), "a?x=1&y=2&#38;z<");
    }
}
