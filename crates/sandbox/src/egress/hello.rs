//! The first message of TLS, as far as it says who is asked for. Pure, and bounded by its input.

/// The largest client hello that is read: two full records, several times what clients send with
/// post-quantum keys.
pub(crate) const MAX_HELLO_BYTES: usize = 2 * (16 * 1024 + 5);

const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
/// Encrypted client hello, and the outer form that its drafts used.
const HIDDEN: [u16; 2] = [0xfe0d, 0xffce];

/// What the bytes so far are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Hello {
    /// The beginning of one, perhaps.
    Partial,
    /// Bytes that cannot begin a TLS client hello.
    NotTls,
    /// A complete hello.
    Whole {
        /// Whom it asks for.
        name: Option<String>,
        /// Whether it carries an encrypted hello.
        hidden: bool,
    },
}

/// Looks at the first bytes of a connection.
pub(crate) fn look(bytes: &[u8]) -> Hello {
    let mut message = Vec::new();
    let mut records = Cursor(bytes);
    loop {
        match whole(&message) {
            Hello::Partial => {}
            done => return done,
        }
        let Some(kind) = records.u8() else { return Hello::Partial };
        let Some(major) = records.u8() else { return plausible(kind == HANDSHAKE) };
        if kind != HANDSHAKE || major != 3 {
            return Hello::NotTls;
        }
        let Some(length) = records.skip(1).and_then(|()| records.u16()) else {
            return Hello::Partial;
        };
        // A record without content, or beyond the protocol's bound, is nobody's first.
        if length == 0 || length > 16 * 1024 {
            return Hello::NotTls;
        }
        let room = usize::from(length).min(records.0.len());
        let Some(part) = records.take(room) else { return Hello::Partial };
        message.extend_from_slice(part);
        if room < usize::from(length) {
            return whole(&message);
        }
    }
}

fn plausible(so_far: bool) -> Hello {
    if so_far { Hello::Partial } else { Hello::NotTls }
}

fn whole(message: &[u8]) -> Hello {
    let mut message = Cursor(message);
    let Some(kind) = message.u8() else { return Hello::Partial };
    if kind != CLIENT_HELLO {
        return Hello::NotTls;
    }
    let (Some(high), Some(low)) = (message.u8(), message.u16()) else { return Hello::Partial };
    let length = (usize::from(high) << 16) | usize::from(low);
    if length > MAX_HELLO_BYTES {
        return Hello::NotTls;
    }
    match message.take(length) {
        None => Hello::Partial,
        Some(body) => read(body).unwrap_or(Hello::NotTls),
    }
}

fn read(body: &[u8]) -> Option<Hello> {
    let mut body = Cursor(body);
    // Version and random.
    body.skip(34)?;
    let session = body.u8()?;
    body.skip(usize::from(session))?;
    let suites = body.u16()?;
    body.skip(usize::from(suites))?;
    let compression = body.u8()?;
    body.skip(usize::from(compression))?;
    let (mut name, mut hidden) = (None, false);
    if body.0.is_empty() {
        return Some(Hello::Whole { name, hidden });
    }
    let length = body.u16()?;
    let mut extensions = Cursor(body.take(usize::from(length))?);
    while !extensions.0.is_empty() {
        let kind = extensions.u16()?;
        let length = extensions.u16()?;
        let content = extensions.take(usize::from(length))?;
        hidden |= HIDDEN.contains(&kind);
        if kind == SERVER_NAME {
            // Two of them would let the server read another one than we do.
            if name.is_some() {
                return None;
            }
            name = Some(server_name(content)?);
        }
    }
    body.0.is_empty().then_some(Hello::Whole { name, hidden })
}

/// A list of exactly one host name.
fn server_name(content: &[u8]) -> Option<String> {
    let mut content = Cursor(content);
    let length = content.u16()?;
    let mut list = Cursor(content.take(usize::from(length))?);
    let kind = list.u8()?;
    let length = list.u16()?;
    let name = list.take(usize::from(length))?;
    let single = kind == 0 && list.0.is_empty() && content.0.is_empty() && !name.is_empty();
    single.then(|| String::from_utf8(name.to_vec()).ok()).flatten()
}

struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn skip(&mut self, count: usize) -> Option<()> {
        self.take(count).map(|_| ())
    }

    fn u8(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(self.take(2)?.try_into().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extension(kind: u16, content: &[u8]) -> Vec<u8> {
        let length = u16::try_from(content.len()).unwrap();
        [&kind.to_be_bytes(), &length.to_be_bytes(), content].concat()
    }

    fn sni(name: &str) -> Vec<u8> {
        let length = u16::try_from(name.len()).unwrap();
        let entry = [&[0][..], &length.to_be_bytes(), name.as_bytes()].concat();
        let whole = [&(length + 3).to_be_bytes()[..], &entry].concat();
        extension(SERVER_NAME, &whole)
    }

    fn hello(extensions: &[u8], cut: usize) -> Vec<u8> {
        let length = u16::try_from(extensions.len()).unwrap();
        let body = [
            &[3, 3][..],
            &[7; 32],
            &[0],
            &[0, 2, 0x13, 1],
            &[1, 0],
            &length.to_be_bytes(),
            extensions,
        ]
        .concat();
        let size = u16::try_from(body.len()).unwrap();
        let message = [&[CLIENT_HELLO, 0][..], &size.to_be_bytes(), &body].concat();
        let (first, second) = message.split_at(cut);
        let record = |part: &[u8]| {
            let size = u16::try_from(part.len()).unwrap();
            [&[HANDSHAKE, 3, 1][..], &size.to_be_bytes(), part].concat()
        };
        [record(first), record(second)].concat()
    }

    #[test]
    fn the_name_is_found_across_records_and_every_prefix_is_partial() {
        let bytes = hello(&[extension(0x0a0a, &[]), sni("a.example")].concat(), 20);
        let whole = Hello::Whole { name: Some("a.example".into()), hidden: false };
        assert_eq!(look(&bytes), whole);
        for length in 0..bytes.len() {
            assert_eq!(look(&bytes[..length]), Hello::Partial, "{length}");
        }
        assert_eq!(look(&[&bytes[..], b"early data"].concat()), whole);
    }

    #[test]
    fn hidden_doubled_and_absent_names_are_seen() {
        let hidden = hello(&[sni("a.example"), extension(0xfe0d, &[0; 8])].concat(), 5);
        assert_eq!(look(&hidden), Hello::Whole { name: Some("a.example".into()), hidden: true });
        assert_eq!(look(&hello(&[], 5)), Hello::Whole { name: None, hidden: false });
        let doubled = hello(&[sni("a.example"), sni("b.example")].concat(), 5);
        assert_eq!(look(&doubled), Hello::NotTls);
    }

    #[test]
    fn what_is_not_tls_is_known_at_once() {
        for bytes in [&b"GET / HTTP/1.1"[..], b"SSH-2.0-x", &[22, 9], &[22, 3, 1, 0, 0], &[0x80, 9]]
        {
            assert_eq!(look(bytes), Hello::NotTls, "{bytes:?}");
        }
        assert_eq!(look(&[22, 3, 1, 0, 4, 2, 0, 0, 0]), Hello::NotTls);
    }
}
