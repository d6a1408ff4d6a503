//! Pages of an index: what they link to, and how that is called inside. Pure, but for the list of links.

use std::collections::HashSet;
use std::io::Read as _;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use hyper::header::{self, HeaderMap};
use memchr::{memchr_iter, memmem};
use url::Url;

use super::{Base, Wire};

/// Links outside their index's own path that one sandbox may follow: more than a large project's page has.
/// A fresh page makes room, because it is fetched before its files.
const MAX_LINKS: usize = 20_000;
/// Bytes of such a link.
const MAX_LINK_BYTES: usize = 1_024;
/// Bytes of the part of an address that names a server, user and password included.
const MAX_AUTHORITY_BYTES: usize = 1_024;
/// Beside a file, its metadata: pip derives the address.
const METADATA: &str = ".metadata";
/// Fields of JSON pages that hold links.
const FIELDS: [&[u8]; 2] = [b"\"url\"", b"\"tarball\""];

/// What pages linked to, by place.
#[derive(Debug, Default)]
pub(crate) struct Links(Mutex<HashSet<(usize, String)>>);

impl Links {
    pub(crate) fn learn(&self, found: Vec<(usize, String)>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len().saturating_add(found.len()) > MAX_LINKS {
            known.clear();
        }
        known.extend(found);
    }

    pub(crate) fn holds(&self, index: usize, path: &str) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let has = |path: &str| known.contains(&(index, path.to_owned()));
        has(path) || path.strip_suffix(METADATA).is_some_and(has)
    }
}

/// Whether an answer is a page of an index and no file.
pub(crate) fn is_page(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let kind = kind.unwrap_or("").split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    matches!(kind.as_str(), "text/html" | "application/xhtml+xml" | "application/json")
        || kind.starts_with("application/vnd.pypi.simple.")
        || kind.starts_with("application/vnd.npm.")
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

/// The place that an address leads to: of several on one server the one whose path is nearest.
fn place<'a>(
    bases: &'a [Base],
    wire: Wire,
    host: &str,
    port: u16,
    path: &str,
) -> Option<(usize, &'a Base)> {
    let on = |base: &&Base| {
        let place = &base.place;
        place.wire == wire && place.port == port && place.name.as_str().eq_ignore_ascii_case(host)
    };
    let here = bases.iter().enumerate().filter(|(_, base)| on(base));
    // The first of the nearest: `max_by_key` alone would take the last.
    here.rev().max_by_key(|(_, base)| if base.holds(path) { base.prefix.len() } else { 0 })
}

fn of_url<'a>(bases: &'a [Base], url: &Url) -> Option<(usize, &'a Base)> {
    let wire = match url.scheme() {
        "https" => Wire::Tls,
        "http" => Wire::Plain,
        _ => return None,
    };
    place(bases, wire, url.host_str()?, url.port_or_known_default()?, url.path())
}

/// Path and query, as a request asks for them.
fn asked(url: &Url) -> String {
    match url.query() {
        Some(query) => format!("{}?{query}", url.path()),
        None => url.path().to_owned(),
    }
}

/// Where a redirect leads, as it is called inside; `None` where that is none of the mirror's places.
pub(crate) fn inside(bases: &[Base], base: &Base, path: &str, to: &str) -> Option<String> {
    let url = Url::parse(&base.url(path)).ok()?.join(to).ok()?;
    let (_, place) = of_url(bases, &url)?;
    Some(format!("http://{}{}", place.alias, asked(&url)))
}

/// What a page links to that is no place's own path, with the place that it is at.
pub(crate) fn links(
    bases: &[Base],
    (_, base): (usize, &Base),
    path: &str,
    text: &[u8],
) -> Vec<(usize, String)> {
    let Ok(page) = Url::parse(&base.url(path)) else { return Vec::new() };
    let mut found = Vec::new();
    for link in values(text) {
        if found.len() == MAX_LINKS {
            break;
        }
        let Ok(url) = page.join(&link) else { continue };
        let Some((index, place)) = of_url(bases, &url) else { continue };
        let asked = asked(&url);
        if asked.len() <= MAX_LINK_BYTES && !place.holds(&asked) {
            found.push((index, asked));
        }
    }
    found
}

/// The values of `href` attributes, and of the fields of JSON that hold links.
fn values(text: &[u8]) -> impl Iterator<Item = String> {
    let attributes = memmem::find_iter(text, b"href").filter_map(|at| {
        let rest = skip(text.get(at.saturating_add(4)..)?, b"=")?;
        let quote = *rest.first().filter(|byte| matches!(byte, b'"' | b'\''))?;
        let value = until(rest.get(1..)?, &[quote])?;
        Some(value.replace("&amp;", "&"))
    });
    let fields = FIELDS.into_iter().flat_map(move |field| {
        memmem::find_iter(text, field).filter_map(move |at| {
            let rest = skip(text.get(at.saturating_add(field.len())..)?, b":")?;
            let value = until(rest.strip_prefix(b"\"")?, b"\"")?;
            Some(value.replace("\\/", "/"))
        })
    });
    attributes.chain(fields)
}

/// What follows a sign, with spaces around it.
fn skip<'a>(text: &'a [u8], sign: &[u8]) -> Option<&'a [u8]> {
    Some(text.trim_ascii_start().strip_prefix(sign)?.trim_ascii_start())
}

fn until(text: &[u8], ends: &[u8]) -> Option<String> {
    let head = text.get(..text.len().min(MAX_LINK_BYTES + 1))?;
    let end = head.iter().position(|byte| ends.contains(byte))?;
    String::from_utf8(head.get(..end)?.to_vec()).ok()
}

/// The page with each address at one of the places called by its alias. Users and passwords in addresses
/// are taken out, wherever they lead.
pub(crate) fn rewritten(bases: &[Base], text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut done = 0;
    for colon in memchr_iter(b':', text) {
        let Some(found) = address(text, colon).filter(|found| found.start >= done) else {
            continue;
        };
        let authority = text.get(found.authority.clone()).unwrap_or_default();
        let host = authority.rsplit(|byte| *byte == b'@').next().unwrap_or_default();
        out.extend_from_slice(text.get(done..found.start).unwrap_or_default());
        let after = text.get(found.authority.end..).unwrap_or_default();
        match alias(bases, found.wire, host, after) {
            Some(alias) => {
                out.extend_from_slice(b"http");
                out.extend_from_slice(text.get(colon..found.authority.start).unwrap_or_default());
                out.extend_from_slice(alias.as_bytes());
            }
            None => {
                out.extend_from_slice(
                    text.get(found.start..found.authority.start).unwrap_or_default(),
                );
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
    wire: Wire,
    authority: std::ops::Range<usize>,
}

/// The address whose scheme ends at this colon; JSON may write its slashes as `\/`.
fn address(text: &[u8], colon: usize) -> Option<Address> {
    let (head, tail) = text.split_at_checked(colon)?;
    let ends = |scheme: &[u8]| {
        let from = head.len().checked_sub(scheme.len())?;
        head.get(from..)?.eq_ignore_ascii_case(scheme).then_some(from)
    };
    let (start, wire) = match (ends(b"https"), ends(b"http")) {
        (Some(start), _) => (start, Wire::Tls),
        (None, Some(start)) => (start, Wire::Plain),
        (None, None) => return None,
    };
    let slashes =
        [&b"://"[..], &b":\\/\\/"[..]].into_iter().find(|slashes| tail.starts_with(slashes))?;
    let from = colon.checked_add(slashes.len())?;
    let rest = text.get(from..)?;
    let is_end = |byte: &u8| {
        matches!(byte, b'/' | b'\\' | b'"' | b'\'' | b'<' | b'>' | b'?' | b'#' | b'&')
            || byte.is_ascii_whitespace()
    };
    let length = rest.iter().take(MAX_AUTHORITY_BYTES).position(is_end);
    let length = length.unwrap_or(rest.len().min(MAX_AUTHORITY_BYTES));
    Some(Address { start, wire, authority: from..from.checked_add(length)? })
}

fn alias(bases: &[Base], wire: Wire, host: &[u8], after: &[u8]) -> Option<String> {
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
    let (_, base) = place(bases, wire, name, port, &path)?;
    Some(base.alias.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::super::mirror::Origin;
    use super::super::super::policy::Name;
    use super::*;

    fn base(alias: &str, host: &str, port: u16, prefix: &str) -> Base {
        let name = |text: &str| Name::parse(text).unwrap();
        let place = Origin { name: name(host), port, wire: Wire::Tls };
        Base {
            alias: name(alias),
            place,
            prefix: prefix.into(),
            is_index: true,
            credentials: None,
            account: None,
        }
    }

    fn bases() -> Vec<Base> {
        vec![
            base("pip-0.m.internal", "index.example", 443, "/api/pypi/simple/"),
            base("pip-1.m.internal", "files.example", 8443, "/"),
            base("pip-2.m.internal", "index.example", 443, "/other/simple/"),
        ]
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
            let out = String::from_utf8(rewritten(&bases(), text.as_bytes())).unwrap();
            assert_eq!(out, expected);
        }
    }

    #[test]
    fn h4_what_a_page_links_to_may_be_fetched_and_nothing_beside_it() {
        let all = bases();
        let html = b"<a href='../../packages/a-1.whl#sha256=0'>a</a> <a href=\"/b.whl?x=1&amp;y=2\">b</a> \
                     <a href=\"https://index.example/api/pypi/simple/c/\"> <a href = \"https://evil.example/d\">";
        let found = links(&all, (0, &all[0]), "/api/pypi/simple/a/", html);
        assert_eq!(
            found,
            [(0, "/api/pypi/packages/a-1.whl".to_owned()), (0, "/b.whl?x=1&y=2".to_owned())]
        );
        let json = br#"{"files": [{"url": "\/p\/e.whl"}], "dist": {"tarball": "https://index.example/f.tgz"}}"#;
        let found = links(&all, (0, &all[0]), "/api/pypi/simple/a/", json);
        assert_eq!(found, [(0, "/p/e.whl".to_owned()), (0, "/f.tgz".to_owned())]);
        let links = Links::default();
        links.learn(found);
        assert!(links.holds(0, "/p/e.whl") && links.holds(0, "/p/e.whl.metadata"));
        assert!(!links.holds(1, "/p/e.whl") && !links.holds(0, "/p/g.whl"));
    }

    #[test]
    fn h4_a_redirect_stays_among_the_places_of_its_mirror() {
        let all = bases();
        let to = |to: &str| inside(&all, &all[0], "/api/pypi/simple/A", to);
        assert_eq!(to("a/").as_deref(), Some("http://pip-0.m.internal/api/pypi/simple/a/"));
        assert_eq!(
            to("https://files.example:8443/x?y").as_deref(),
            Some("http://pip-1.m.internal/x?y")
        );
        assert_eq!(to("https://elsewhere.example/"), None);
        assert_eq!(to("http://index.example/"), None);
    }
}
