//! The anchors of a page of HTML: `href` of `<a>` tags, as a browser reads tags. What stands in comments,
//! scripts, texts and other attributes, where others than the index may have written it, is none. Pure.

use super::char_encoding::attribute;

/// Elements whose content is text up to their own end tag.
const TEXTS: [&[u8]; 11] = [
    b"script",
    b"style",
    b"textarea",
    b"title",
    b"xmp",
    b"iframe",
    b"noembed",
    b"noframes",
    b"noscript",
    b"template",
    b"plaintext",
];

/// The addresses of the page's anchors, `most` at most. What is not closed ends the page.
pub(super) fn hrefs(text: &[u8], most: usize) -> Vec<String> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(open) = find(text, at, b"<") {
        let rest = text.get(open + 1..).unwrap_or_default();
        let end = match rest {
            [b'!', b'-', b'-', inner @ ..] if inner.starts_with(b">") => Some(open + 5),
            [b'!', b'-', b'-', inner @ ..] if inner.starts_with(b"->") => Some(open + 6),
            [b'!', b'-', b'-', ..] => find(text, open + 4, b"-->").map(|end| end + 3),
            [b'!' | b'?', ..] => find(text, open + 2, b">").map(|end| end + 1),
            [b'/', letter, ..] if letter.is_ascii_alphabetic() => {
                tag(text, open + 2).map(|tag| tag.end)
            }
            [letter, ..] if letter.is_ascii_alphabetic() => match tag(text, open + 1) {
                Some(tag) => {
                    if tag.name == b"a"
                        && let Some(href) = tag.href
                    {
                        found.push(href);
                        if found.len() == most {
                            return found;
                        }
                    }
                    match TEXTS.contains(&&*tag.name) {
                        true => closed(text, tag.end, &tag.name),
                        false => Some(tag.end),
                    }
                }
                None => None,
            },
            _ => Some(open + 1),
        };
        let Some(end) = end else { break };
        at = end;
    }
    found
}

fn find(text: &[u8], from: usize, what: &[u8]) -> Option<usize> {
    memchr::memmem::find(text.get(from..)?, what)?.checked_add(from)
}

/// Where the end tag of an element of text begins.
fn closed(text: &[u8], mut from: usize, name: &[u8]) -> Option<usize> {
    loop {
        let at = find(text, from, b"</")?;
        let behind = text.get(at + 2..)?;
        let (head, tail) = behind.split_at_checked(name.len())?;
        let ends =
            tail.first().is_some_and(|b| b.is_ascii_whitespace() || matches!(b, b'/' | b'>'));
        if head.eq_ignore_ascii_case(name) && ends {
            return Some(at);
        }
        from = at + 2;
    }
}

struct Tag {
    name: Vec<u8>,
    href: Option<String>,
    /// Behind its `>`.
    end: usize,
}

/// The tag whose name begins here. `None`: it is not closed.
fn tag(text: &[u8], from: usize) -> Option<Tag> {
    let ends = |b: &u8| b.is_ascii_whitespace() || matches!(b, b'/' | b'>');
    let word = |at: usize, ends: &dyn Fn(&u8) -> bool| {
        let length = text.get(at..)?.iter().position(ends)?;
        Some((text.get(at..at + length)?, at + length))
    };
    let (name, mut at) = word(from, &ends)?;
    let mut href = None;
    loop {
        (_, at) = word(at, &|b| !(b.is_ascii_whitespace() || *b == b'/'))?;
        if text.get(at) == Some(&b'>') {
            return Some(Tag { name: name.to_ascii_lowercase(), href, end: at + 1 });
        }
        // An equals sign at the beginning belongs to the name.
        let (_, after) = word(at + 1, &|b| ends(b) || *b == b'=')?;
        let key = text.get(at..after)?;
        (_, at) = word(after, &|b| !b.is_ascii_whitespace())?;
        if text.get(at) != Some(&b'=') {
            continue;
        }
        (_, at) = word(at + 1, &|b| !b.is_ascii_whitespace())?;
        let value = match text.get(at)? {
            quote @ (b'"' | b'\'') => {
                let (value, end) = word(at + 1, &|b| b == quote)?;
                at = end + 1;
                value
            }
            _ => {
                let (value, end) = word(at, &|b| b.is_ascii_whitespace() || *b == b'>')?;
                at = end;
                value
            }
        };
        if href.is_none() && key.eq_ignore_ascii_case(b"href") {
            href = Some(std::str::from_utf8(value).map(attribute).unwrap_or_default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s9_a_page_of_html_teaches_by_its_anchors_alone() {
        for (page, expected) in [
            (
                "<a href=\"/x?a=1&amp;b\">x</a><A\nHREF = '/y'>y</A><a class=q href=/z>z</a>",
                "/x?a=1&b /y /z",
            ),
            (
                "<a data-yanked=\"<a href='/p'>\" href=/q>href=\"/r\" <b href=/s><link href=/t>",
                "/q",
            ),
            ("<!-- <a href=/p> --><script>'<a href=/p>'</script x><a href=/q>", "/q"),
            ("<!--><a href=/q><title><a href=/p></titles></title><a href=/r>", "/q /r"),
            ("<abbr href=/p><a xhref=/p><a href=/q href=/p>", "/q"),
            ("<a data-x='>' href=/q></a href=/p>< a href=/p>", "/q"),
            ("<style><a href=/p>", ""),
            ("<a href=\"/p", ""),
            ("<a href=/q>1 < 2 <", "/q"),
        ] {
            assert_eq!(hrefs(page.as_bytes(), 9).join(" "), expected, "{page}");
        }
        assert_eq!(hrefs(b"<a href=1><a href=2><a href=3>", 2).len(), 2);
    }
}
