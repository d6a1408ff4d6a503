//! `multipart/form-data`, read piece by piece: a file is as large as it is, and never in memory as a whole.

use bytes::{Buf as _, Bytes, BytesMut};

/// Bytes of one part's headers, and before the first boundary.
const MAX_HEAD: usize = 8 * 1024;
/// What ends them.
const HEAD_END: &[u8] = b"\r\n\r\n";

/// What comes out of a body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// A part begins: its field and its file name.
    Part { name: String, file: Option<String> },
    /// Bytes of it.
    Bytes(Bytes),
    /// It is whole.
    End,
}

/// Why a body is not one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MultipartError {
    #[error("the body ends within a part")]
    Cut,
    #[error("the headers of a part are too long")]
    Head,
    #[error("no boundary within the first {MAX_HEAD} bytes")]
    Start,
    #[error("a part has no Content-Disposition with a name")]
    Name,
    #[error("a boundary is followed by something else")]
    Boundary,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Before the first boundary.
    Start,
    /// Behind a boundary.
    Boundary,
    Head,
    Body,
    Over,
}

/// A reader of one body.
#[derive(Debug)]
pub(crate) struct Parts {
    /// With the two dashes and the line break before it.
    mark: Vec<u8>,
    buffer: BytesMut,
    at: Stage,
}

/// The boundary of a content type; `None` where it is another type.
pub(crate) fn boundary(kind: &str) -> Option<String> {
    let (essence, parameters) = kind.split_once(';')?;
    if !essence.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    let value = parameters.split(';').find_map(|parameter| {
        let (name, value) = parameter.trim().split_once('=')?;
        name.eq_ignore_ascii_case("boundary").then(|| value.trim_matches('"').to_owned())
    })?;
    // RFC 2046: 1 to 70 characters.
    (1..=70).contains(&value.len()).then_some(value)
}

impl Parts {
    pub(crate) fn new(boundary: &str) -> Self {
        // As if a line had ended before the body: the first boundary is then like any other.
        let buffer = BytesMut::from(&b"\r\n"[..]);
        Self { mark: format!("\r\n--{boundary}").into_bytes(), buffer, at: Stage::Start }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if self.at != Stage::Over {
            self.buffer.extend_from_slice(bytes);
        }
    }

    /// Whether the closing boundary came.
    pub(crate) fn is_over(&self) -> bool {
        self.at == Stage::Over
    }

    /// The next piece; `None` until more bytes come.
    pub(crate) fn next(&mut self) -> Result<Option<Piece>, MultipartError> {
        loop {
            match self.at {
                Stage::Over => return Ok(None),
                Stage::Start => match find(&self.buffer, &self.mark) {
                    Some(found) if found <= MAX_HEAD => {
                        self.buffer.advance(found + self.mark.len());
                        self.at = Stage::Boundary;
                    }
                    // The same bound however the body is cut on its way.
                    None if self.buffer.len() <= MAX_HEAD + self.mark.len() => return Ok(None),
                    _ => return Err(MultipartError::Start),
                },
                Stage::Boundary => match self.buffer.get(..2) {
                    None => return Ok(None),
                    Some(b"--") => self.at = Stage::Over,
                    Some(b"\r\n") => {
                        self.buffer.advance(2);
                        self.at = Stage::Head;
                    }
                    Some(_) => return Err(MultipartError::Boundary),
                },
                Stage::Head => match find(&self.buffer, HEAD_END) {
                    Some(found) if found <= MAX_HEAD => {
                        let head = self.buffer.split_to(found);
                        self.buffer.advance(HEAD_END.len());
                        self.at = Stage::Body;
                        return part(&head).map(Some);
                    }
                    None if self.buffer.len() <= MAX_HEAD + HEAD_END.len() => return Ok(None),
                    _ => return Err(MultipartError::Head),
                },
                Stage::Body => return Ok(self.body()),
            }
        }
    }

    fn body(&mut self) -> Option<Piece> {
        if let Some(found) = find(&self.buffer, &self.mark) {
            if found > 0 {
                return Some(Piece::Bytes(self.buffer.split_to(found).freeze()));
            }
            self.buffer.advance(self.mark.len());
            self.at = Stage::Boundary;
            return Some(Piece::End);
        }
        // The last bytes may be the beginning of a boundary.
        let sure = self.buffer.len().checked_sub(self.mark.len()).filter(|sure| *sure > 0)?;
        Some(Piece::Bytes(self.buffer.split_to(sure).freeze()))
    }
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

fn part(head: &[u8]) -> Result<Piece, MultipartError> {
    let text = String::from_utf8_lossy(head);
    let value = text.split("\r\n").find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim().eq_ignore_ascii_case("content-disposition").then(|| value.to_owned())
    });
    let value = value.ok_or(MultipartError::Name)?;
    let (mut name, mut file) = (None, None);
    for parameter in parameters(&value) {
        let Some((key, value)) = parameter.trim().split_once('=') else { continue };
        match key.trim().to_ascii_lowercase().as_str() {
            "name" => name = Some(unquoted(value)),
            "filename" => file = Some(unquoted(value)),
            _ => {}
        }
    }
    Ok(Piece::Part { name: name.ok_or(MultipartError::Name)?, file })
}

/// The parameters of a header's value: a semicolon within quotes separates nothing.
fn parameters(value: &str) -> Vec<String> {
    let (mut found, mut quoted, mut last) = (vec![String::new()], false, ' ');
    for c in value.chars() {
        if c == '"' && last != '\\' {
            quoted = !quoted;
        }
        if c == ';' && !quoted {
            found.push(String::new());
        } else if let Some(parameter) = found.last_mut() {
            parameter.push(c);
        }
        last = c;
    }
    found
}

/// A quoted value as browsers write it: a quote inside as `%22` or behind a backslash.
fn unquoted(value: &str) -> String {
    let inner = value.trim().trim_matches('"');
    inner.replace("\\\"", "\"").replace("\\\\", "\\").replace("%22", "\"")
}

#[cfg(test)]
mod tests {
    use cofferdam_hostile::fuzz;

    use super::*;

    const BODY: &[u8] = b"--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a;b.txt\"\r\nContent-Type: text/plain\r\n\r\none\r\n--xtwo\r\n--x\r\ncontent-disposition: form-data; name=file\r\n\r\n\r\n--x--\r\n";

    /// A part: its field, its file name and its bytes.
    type Part = (String, Option<String>, Vec<u8>);

    fn read(body: &[u8], step: usize) -> Result<Vec<Part>, MultipartError> {
        let mut parts = Parts::new("x");
        let mut found: Vec<Part> = Vec::new();
        for piece in body.chunks(step) {
            parts.push(piece);
            while let Some(piece) = parts.next()? {
                match piece {
                    Piece::Part { name, file } => found.push((name, file, Vec::new())),
                    Piece::Bytes(bytes) => found.last_mut().unwrap().2.extend_from_slice(&bytes),
                    Piece::End => {}
                }
            }
        }
        if parts.is_over() { Ok(found) } else { Err(MultipartError::Cut) }
    }

    #[test]
    fn parts_survive_any_cut() {
        // `--xtwo` begins as the boundary does, and is one to a reader that is strict.
        assert_eq!(read(BODY, 7), Err(MultipartError::Boundary));
        let body = String::from_utf8_lossy(BODY).replace("\r\n--xtwo", "\r\n--two");
        for step in 1..body.len() {
            let found = read(body.as_bytes(), step).unwrap();
            assert_eq!(
                found[0],
                ("file".into(), Some("a;b.txt".into()), b"one\r\n--two".to_vec()),
                "{step}"
            );
            assert_eq!(found[1], ("file".into(), None, Vec::new()), "{step}");
        }
    }

    #[test]
    fn a_malformed_body_is_an_error() {
        assert_eq!(read(b"--x\r\n\r\n\r\n", 3), Err(MultipartError::Name));
        assert_eq!(read(b"nothing", 3), Err(MultipartError::Cut));
        assert_eq!(read(b"--xzz", 9), Err(MultipartError::Boundary));
        let long = [b"--x\r\n".as_slice(), &vec![b'a'; MAX_HEAD + 8]].concat();
        assert_eq!(read(&long, 4_096), Err(MultipartError::Head));
        assert_eq!(read(&vec![b'a'; MAX_HEAD + 8], 4_096), Err(MultipartError::Start));
        let of = |kind| boundary(kind);
        assert_eq!(of("multipart/form-data; boundary=\"a b\""), Some("a b".into()));
        for bad in
            ["multipart/form-data", "multipart/form-data; boundary=", "text/plain; boundary=x"]
        {
            assert_eq!(of(bad), None, "{bad}");
        }
    }

    /// However a body is cut on its way, it has the same parts, and no more is held of it than came.
    #[test]
    fn fuzz_a_form_with_files_is_read_however_it_is_cut() {
        fuzz!("multipart", |bytes: &[u8]| {
            let whole = read(bytes, bytes.len().max(1));
            for step in [5, 64] {
                assert_eq!(read(bytes, step), whole, "{step}");
            }
            if let Ok(parts) = whole {
                let kept: usize = parts.iter().map(|(_, _, bytes)| bytes.len()).sum();
                assert!(kept <= bytes.len());
            }
        });
    }
}
