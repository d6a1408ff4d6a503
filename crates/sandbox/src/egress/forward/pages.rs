//! Pages of an index: how what they name is called inside. Pure.

use std::io::Read as _;

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use hyper::header::{self, HeaderMap};
use memchr::memchr2_iter;
use url::Url;

use super::char_encoding;
use super::site::{MirrorBase, MirrorSite};
use crate::egress::policy::Wire;

/// Bytes of a link.
pub(super) const MAX_LINK_BYTES: usize = 1_024;
/// Bytes of the part of an address that names a server, user and password included.
const MAX_AUTHORITY_BYTES: usize = 1_024;
/// Slashes that some readers skip before an authority.
const MAX_SLASHES: usize = 16;
/// How a page is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Page {
    Html,
    Json,
}

/// The page of an index that an answer is; `None`: a file.
pub(crate) fn page(headers: &HeaderMap) -> Option<Page> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let kind = kind.unwrap_or("").split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    match kind.as_str() {
        "text/html" | "application/xhtml+xml" => Some(Page::Html),
        "application/json" => Some(Page::Json),
        kind if kind.starts_with("application/vnd.npm.") => Some(Page::Json),
        kind if kind.starts_with("application/vnd.pypi.simple.") => {
            Some(if kind.ends_with("html") { Page::Html } else { Page::Json })
        }
        _ => None,
    }
}

/// Whether an answer is several parts of a page or file.
pub(crate) fn is_of_parts(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).map(|value| value.as_bytes());
    kind.and_then(|kind| kind.get(..10))
        .is_some_and(|kind| kind.eq_ignore_ascii_case(b"multipart/"))
}

/// A page's text, although it was asked for as it is. `None`: it is packed in a way that is not known, or
/// too long.
pub(crate) fn decoded(headers: &HeaderMap, body: Bytes, most: usize) -> Option<Vec<u8>> {
    match headers.get(header::CONTENT_ENCODING).map(|value| value.as_bytes()) {
        None | Some(b"identity") => Some(body.into()),
        Some(b"gzip") => {
            let mut text = Vec::new();
            let limit = u64::try_from(most).ok()?.saturating_add(1);
            MultiGzDecoder::new(&*body).take(limit).read_to_end(&mut text).ok()?;
            (text.len() <= most).then_some(text)
        }
        Some(_) => None,
    }
}

/// The site that an address leads to: of several on one server the one whose path is nearest.
fn place<'a>(
    bases: &'a [MirrorBase],
    wire: Wire,
    host: &str,
    port: u16,
    path: &str,
) -> Option<MirrorSite<'a>> {
    let on = |base: &&MirrorBase| {
        let place = &base.place;
        place.wire == wire && place.port == port && place.name.as_str().eq_ignore_ascii_case(host)
    };
    let here = bases.iter().enumerate().filter(|(_, base)| on(base));
    // The first of the nearest: `max_by_key` alone would take the last.
    let nearest =
        here.rev().max_by_key(|(_, base)| if base.holds(path) { base.prefix.len() } else { 0 });
    nearest.map(|(index, base)| MirrorSite { index, base })
}

pub(super) fn of_url<'a>(bases: &'a [MirrorBase], url: &Url) -> Option<MirrorSite<'a>> {
    let wire = match url.scheme() {
        "https" => Wire::Tls,
        "http" => Wire::Plain,
        _ => return None,
    };
    place(bases, wire, url.host_str()?, url.port_or_known_default()?, url.path())
}

/// Path and query, as a request asks for them.
pub(super) fn asked(url: &Url) -> String {
    match url.query() {
        Some(query) => format!("{}?{query}", url.path()),
        None => url.path().to_owned(),
    }
}

/// Where a redirect from a path leads, by alias or own name; `None` where that is none of the mirror's sites.
pub(crate) fn inside(
    bases: &[MirrorBase],
    base: &MirrorBase,
    path: &str,
    to: &str,
    is_aliased: bool,
) -> Option<String> {
    let url = Url::parse(&base.url(path)).ok()?.join(to).ok()?;
    let place = of_url(bases, &url)?.base;
    Some(match is_aliased {
        true => format!("http://{}{}", place.alias, asked(&url)),
        // Without the user and password that the index may have written.
        false => place.url(&asked(&url)),
    })
}

/// The page with each address at one of the sites called by its alias. Users and passwords in addresses
/// are taken out, wherever they lead and however the page writes them. `wire`: what the page came by.
pub(crate) fn rewritten(bases: &[MirrorBase], wire: Wire, kind: Page, text: &[u8]) -> Vec<u8> {
    let text = &*char_encoding::plain(kind, text);
    let mut out = Vec::with_capacity(text.len());
    let mut done = 0;
    for at in memchr2_iter(b':', b'/', text) {
        let Some(found) = address(text, at, wire).filter(|found| found.authority.start >= done)
        else {
            continue;
        };
        let authority = text.get(found.authority.clone()).unwrap_or_default();
        let host = match authority.iter().rposition(|byte| *byte == b'@') {
            Some(at) if found.may_hold_user(authority, at) => authority.get(at + 1..),
            _ => Some(authority),
        };
        let host = host.unwrap_or_default();
        let after = text.get(found.authority.end..).unwrap_or_default();
        let known = found.wire.and_then(|wire| alias(bases, wire, host, after));
        let known = known.filter(|_| found.start >= done && found.is_whole);
        match known {
            Some(alias) => {
                out.extend_from_slice(text.get(done..found.start).unwrap_or_default());
                let scheme = text.get(found.start..found.authority.start).unwrap_or_default();
                let named = scheme.iter().position(|byte| *byte == b':');
                if let Some(colon) = named {
                    out.extend_from_slice(b"http");
                    out.extend_from_slice(scheme.get(colon..).unwrap_or_default());
                } else {
                    out.extend_from_slice(scheme);
                }
                out.extend_from_slice(alias.as_bytes());
            }
            None => {
                let before = text.get(done..found.authority.start).unwrap_or_default();
                out.extend_from_slice(before);
                out.extend_from_slice(host);
            }
        }
        done = found.authority.end;
    }
    out.extend_from_slice(text.get(done..).unwrap_or_default());
    out
}

/// An address in a text.
struct Address {
    start: usize,
    /// `None`: a scheme that the forwarder does not carry.
    wire: Option<Wire>,
    /// Whether two slashes lead to its authority, as every reader of addresses takes it.
    is_whole: bool,
    authority: std::ops::Range<usize>,
}

impl Address {
    /// Whether what stands before this `@` is a user: of another scheme (`ssh://git@host`) only a password
    /// makes it worth taking out, and `//@name` is no address at all.
    fn may_hold_user(&self, authority: &[u8], at: usize) -> bool {
        let user = authority.get(..at).unwrap_or_default();
        !user.is_empty() && (self.wire.is_some() || user.contains(&b':'))
    }
}

/// The address whose scheme ends at this colon, or that begins with this slash and names no scheme; JSON may
/// write its slashes as `\/`, and some readers take a backslash for one.
fn address(text: &[u8], at: usize, page: Wire) -> Option<Address> {
    let (head, tail) = text.split_at_checked(at)?;
    let colon = usize::from(tail.first() == Some(&b':'));
    let is_slash = |byte: &&u8| matches!(byte, b'/' | b'\\');
    let run = tail.get(colon..)?.iter().take(MAX_SLASHES).take_while(is_slash).count();
    let slashes = tail.get(colon..)?.get(..run)?;
    let is_whole = matches!(slashes, b"//" | b"\\/\\/" | b"/\\/" | b"\\//");
    let (start, wire) = if colon == 1 {
        let ends = |scheme: &[u8]| {
            let from = head.len().checked_sub(scheme.len())?;
            head.get(from..)?.eq_ignore_ascii_case(scheme).then_some(from)
        };
        match (ends(b"https"), ends(b"http")) {
            (Some(start), _) => (start, Some(Wire::Tls)),
            (None, Some(start)) => (start, Some(Wire::Plain)),
            (None, None) if is_whole => (at, None),
            (None, None) => return None,
        }
    } else {
        // JSON writes the first slash behind a backslash, which is where the address begins.
        let start = if head.last() == Some(&b'\\') { at.checked_sub(1)? } else { at };
        let before = start.checked_sub(1).and_then(|at| text.get(at));
        let begins =
            before.is_none_or(|byte| byte.is_ascii_whitespace() || b"\"'<>=(,;".contains(byte));
        let slashes = slashes.iter().filter(|byte| **byte == b'/').count();
        if !begins || slashes != 2 {
            return None;
        }
        (start, Some(page))
    };
    let from = at.checked_add(colon)?.checked_add(run)?;
    let length = authority(text.get(from..)?);
    let is_whole = is_whole || colon == 0;
    Some(Address { start, wire, is_whole, authority: from..from.checked_add(length)? })
}

/// Bytes of an authority, with a password that was written with the characters which end one.
fn authority(rest: &[u8]) -> usize {
    let rest = rest.get(..rest.len().min(MAX_AUTHORITY_BYTES)).unwrap_or(rest);
    let ends_text =
        |byte: &u8| matches!(byte, b'"' | b'\'' | b'<' | b'>') || byte.is_ascii_whitespace();
    let ends = |byte: &u8| matches!(byte, b'/' | b'\\' | b'?' | b'#' | b'&') || ends_text(byte);
    let length = rest.iter().position(ends).unwrap_or(rest.len());
    let plain = rest.get(..length).unwrap_or_default();
    let port = plain.iter().rposition(|byte| *byte == b':').and_then(|at| plain.get(at + 1..));
    let is_password =
        !plain.contains(&b'@') && port.is_some_and(|port| !port.iter().all(u8::is_ascii_digit));
    if !is_password {
        return length;
    }
    let word = rest.iter().position(ends_text).unwrap_or(rest.len());
    let at = rest.get(..word).and_then(|word| word.iter().rposition(|byte| *byte == b'@'));
    let Some(at) = at else { return length };
    let host = rest.get(at..).unwrap_or_default();
    at + host.iter().position(ends).unwrap_or(host.len())
}

fn alias(bases: &[MirrorBase], wire: Wire, host: &[u8], after: &[u8]) -> Option<String> {
    let host = std::str::from_utf8(host).ok()?;
    let usual = if wire == Wire::Tls { 443 } else { 80 };
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) => (name, port.parse().ok()?),
        None => (host, usual),
    };
    let is_end = |byte: &u8| b"\"'<>?# \t\r\n".contains(byte);
    // Only as far as a link is read: a page without any end is not read again for each of its addresses.
    let near = after.get(..after.len().min(MAX_LINK_BYTES)).unwrap_or_default();
    let path = near.split(is_end).next().unwrap_or_default();
    let path = String::from_utf8_lossy(path).replace("\\/", "/");
    let base = place(bases, wire, name, port, &path)?.base;
    Some(base.alias.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::IndexKind;
    use super::super::site::tests::base;
    use super::*;

    fn bases() -> Vec<MirrorBase> {
        let pip = Some(IndexKind::Pip);
        vec![
            base(("pip-0.m.internal", "index.example", 443), "/api/pypi/simple/", pip),
            base(("pip-1.m.internal", "files.example", 8443), "/", None),
            base(("pip-2.m.internal", "index.example", 443), "/other/simple/", pip),
        ]
    }

    fn told(kind: Page, text: &str) -> String {
        String::from_utf8(rewritten(&bases(), Wire::Tls, kind, text.as_bytes())).unwrap()
    }

    #[test]
    fn h4_addresses_are_called_by_their_alias_and_lose_their_passwords() {
        for (text, expected) in [
            (
                "<a href=\"https://files.example:8443/a.whl#sha256=1\">",
                "<a href=\"http://pip-1.m.internal/a.whl#sha256=1\">",
            ),
            ("'HTTPS://user:s3cret@INDEX.example/x'", "'http://pip-0.m.internal/x'"),
            ("https://index.example:443/other/simple/x", "http://pip-2.m.internal/other/simple/x"),
            (
                r#"{"url":"https:\/\/u@index.example\/api\/x"}"#,
                r#"{"url":"http:\/\/pip-0.m.internal\/api\/x"}"#,
            ),
            ("https://u:s3cret@elsewhere.example/x", "https://elsewhere.example/x"),
            ("http://index.example/x", "http://index.example/x"),
            ("https://index.example.evil.example/", "https://index.example.evil.example/"),
            ("https://files.example/x", "https://files.example/x"),
            ("a: b, https:/x, ://y, https://", "a: b, https:/x, ://y, https://"),
        ] {
            let kind = if text.starts_with('{') { Page::Json } else { Page::Html };
            assert_eq!(told(kind, text), expected);
        }
    }

    #[test]
    fn s11_a_password_is_taken_out_however_the_address_is_written() {
        for text in [
            "<a href=\"//u:s3cret@index.example/api/x\">",
            "<a href=//u:s3cret@elsewhere.example/x>",
            "<a href='https://u:s3cret&#64;index.example/x'>",
            "<a href='https&colon;&sol;&#x2f;u&#58s3cret&commat;index.example/x'>",
            "https:\\\\u:s3cret@elsewhere.example/x",
            "https:u:s3cret@elsewhere.example/x https:/s3cret@elsewhere.example/",
            "https://u:a/b/s3cret@elsewhere.example/x",
            "https://u:p@s3cret@elsewhere.example/x",
            "ssh://u:s3cret@elsewhere.example/x",
            "url=//s3cret@elsewhere.example/",
        ] {
            let out = told(Page::Html, text);
            assert!(!out.contains("s3cret") && out.contains('.'), "{text}: {out}");
        }
        for text in [
            r#"{"a":"https:\u002F\/u\u003as3cret\u0040index.example/x"}"#,
            r#"{"a":"\/\/u:s3cret@index.example\/x"}"#,
            r#"{"a": "//u:s3cret@index.example/x"}"#,
        ] {
            let out = told(Page::Json, text);
            assert!(!out.contains("s3cret") && out.contains("pip-0.m.internal"), "{text}: {out}");
            serde_json::from_str::<serde_json::Value>(&out).unwrap();
        }
        for same in [
            "<a href=\"//files.example/x\">",
            "//@flow a//b@c ssh://git@host.example/x 12:30 a@b https://x.example:8080/a@b",
        ] {
            assert_eq!(told(Page::Html, same), same);
        }
        assert_eq!(told(Page::Html, "'//index.example/x'"), "'//pip-0.m.internal/x'");
    }

    #[test]
    fn h4_a_redirect_stays_among_the_places_of_its_mirror() {
        let all = bases();
        let to = |to: &str| inside(&all, &all[0], "/api/pypi/simple/A", to, true);
        assert_eq!(to("a/").as_deref(), Some("http://pip-0.m.internal/api/pypi/simple/a/"));
        assert_eq!(
            to("https://files.example:8443/x?y").as_deref(),
            Some("http://pip-1.m.internal/x?y")
        );
        assert_eq!(to("https://elsewhere.example/"), None);
        assert_eq!(to("http://index.example/"), None);
        let own = |to: &str| inside(&all, &all[0], "/api/pypi/simple/A", to, false);
        assert_eq!(
            own("https://u:s3cret@files.example:8443/x?y").as_deref(),
            Some("https://files.example:8443/x?y")
        );
        assert_eq!(own("https://elsewhere.example/"), None);
    }
}
