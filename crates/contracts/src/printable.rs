//! Text of others on a terminal or a page: what would act, hide or reorder is shown instead.
//!
//! Control characters (C0, DEL, C1), characters that change the direction of what surrounds them, and
//! those without a width become visible escapes: `\x1b`, `\u{202e}`. **Every table, prompt, status line,
//! error and page passes through here.** JSON has escapes of its own: [`json`].

use std::borrow::Cow;
use std::fmt::Write;

/// One line: a newline and a tab are escaped too.
#[must_use]
pub fn line(text: &str) -> Cow<'_, str> {
    escaped(text, is_hazard)
}

/// Many lines: newlines and tabs stay, since the layout is made for them.
#[must_use]
pub fn block(text: &str) -> Cow<'_, str> {
    escaped(text, |c| is_hazard(c) && !matches!(c, '\n' | '\t'))
}

/// Bytes of a program, for a terminal: as [`block`], and what is not UTF-8 byte by byte.
#[must_use]
pub fn bytes(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        out.push_str(&block(chunk.valid()));
        for byte in chunk.invalid() {
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    out
}

/// JSON text as it was serialized, with the same value and nothing that acts: `\u202e`.
#[must_use]
pub fn json(text: &str) -> Cow<'_, str> {
    let hazard = |c: char| is_hazard(c) && !matches!(c, '\n' | '\t' | '\r');
    if !text.contains(hazard) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if hazard(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

fn escaped(text: &str, hazard: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&hazard) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        let _ = match c {
            c if !hazard(c) => write!(out, "{c}"),
            '\n' => write!(out, "\\n"),
            '\r' => write!(out, "\\r"),
            '\t' => write!(out, "\\t"),
            c if u32::from(c) < 0x100 => write!(out, "\\x{:02x}", u32::from(c)),
            c => write!(out, "\\u{{{:x}}}", u32::from(c)),
        };
    }
    Cow::Owned(out)
}

/// What a terminal or a page would not show as a mark of its own.
fn is_hazard(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_control();
    }
    c.is_control()
        || matches!(u32::from(c),
            // soft hyphen, joiners and marks without a glyph
            0xad | 0x34f | 0x61c | 0x115f | 0x1160 | 0x17b4 | 0x17b5 | 0x180b..=0x180f
            // zero width, marks of direction, separators of lines and paragraphs, embeddings, isolates
            | 0x200b..=0x200f | 0x2028..=0x202e | 0x2060..=0x206f | 0x3164
            // variation selectors, byte order mark, fillers, annotations, object replacement
            | 0xfe00..=0xfe0f | 0xfeff | 0xffa0 | 0xfff0..=0xfffc
            // invisible letters, musical marks, tags and more variation selectors
            | 0x1bca0..=0x1bca3 | 0x1d173..=0x1d17a | 0xe0000..=0xe0fff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn h9_what_acts_hides_or_reorders_is_shown() {
        for (text, shown) in [
            ("plain, ünïcödé 日本 🎉", "plain, ünïcödé 日本 🎉"),
            ("a\u{1b}[2K\rb", "a\\x1b[2K\\rb"),
            ("a\nforged-row ok", "a\\nforged-row ok"),
            ("\u{7f}\u{9b}31m\u{85}", "\\x7f\\x9b31m\\x85"),
            ("x\u{202e}gpj\u{2066}", "x\\u{202e}gpj\\u{2066}"),
            ("a\u{200b}b\u{feff}\u{e0041}", "a\\u{200b}b\\u{feff}\\u{e0041}"),
            ("\u{2028}\u{2029}\0", "\\u{2028}\\u{2029}\\x00"),
        ] {
            assert_eq!(line(text), shown);
        }
        assert_eq!(block("a\n\tb\u{1b}]52;c;x\u{7}"), "a\n\tb\\x1b]52;c;x\\x07");
        assert_eq!(bytes(b"ok\xff\xfe\x1b\n"), "ok\\xff\\xfe\\x1b\n");
    }

    #[test]
    fn h9_json_keeps_its_value() {
        let value = serde_json::json!({"a\u{202e}": "x\u{9b}\u{7f}\u{e0041}\u{1b}\n"});
        let text = value.to_string();
        let shown = json(&text);
        assert!(!shown.chars().any(is_hazard), "{shown}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
        assert!(matches!(json("{\n  \"a\": 1\n}"), Cow::Borrowed(_)));
    }
}
