//! What a git server says of its branches and tags: hostile bytes, read within bounds.
//!
//! ```text
//! GET URL/info/refs?service=git-upload-pack, Git-Protocol: version=2
//!   -> `version 2` and what it can do: POST URL/git-upload-pack, `ls-refs` for the names that are wanted -> their lines
//!   -> else the older answer: every name that it has
//! ```
//! Both are packets: four hex digits that count themselves and what follows; `0000` to `0002` stand alone. Of all names those that are
//! wanted are kept, so an answer takes no more memory than its bytes.

use super::{GitId, GitRef, GitRefs, ObjectFormat};

/// Bytes of an answer: the older one has some 60 for each of 100,000 names.
pub const MAX_ADVERT: usize = 8 * 1024 * 1024;
/// Digits that a packet begins with.
const LENGTH: usize = 4;
/// What the line of an annotated tag's commit ends with.
const PEELED: &str = "^{}";

/// A first answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RefAdvert {
    /// The server is asked for names.
    Asked(ObjectFormat),
    /// The wanted names that it has.
    Listed(GitRefs),
}

/// Why an answer is not one of a git server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdvertError {
    /// Not packets at all: a web page, or files of a repository.
    #[error("it does not answer by git's smart protocol")]
    Protocol,
    /// It says why it gives none.
    #[error("the server says: {0:?}")]
    Refused(String),
    /// The server can only be asked in a way that is not known here.
    #[error("the server cannot list its names (`ls-refs`)")]
    Incapable,
}

/// Packets of an answer: `None` is one that stands alone.
struct Packets<'a>(&'a [u8]);

impl<'a> Iterator for Packets<'a> {
    type Item = Result<Option<&'a str>, AdvertError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let taken = self.packet();
        if taken.is_err() {
            self.0 = &[];
        }
        Some(taken)
    }
}

impl<'a> Packets<'a> {
    fn packet(&mut self) -> Result<Option<&'a str>, AdvertError> {
        let digits = self.0.get(..LENGTH).ok_or(AdvertError::Protocol)?;
        let digits = std::str::from_utf8(digits).map_err(|_| AdvertError::Protocol)?;
        let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        let length = usize::from_str_radix(digits, 16).ok().filter(|_| is_hex);
        let length = length.ok_or(AdvertError::Protocol)?;
        let (whole, rest) = match length {
            0..=2 => (LENGTH, None),
            3 => return Err(AdvertError::Protocol),
            _ => (length, self.0.get(LENGTH..length)),
        };
        if length > 2 && rest.is_none() {
            return Err(AdvertError::Protocol);
        }
        self.0 = self.0.get(whole..).unwrap_or_default();
        let Some(bytes) = rest else { return Ok(None) };
        // A name that is not UTF-8 is none that a recipe can write.
        let text = std::str::from_utf8(bytes).unwrap_or_default();
        let text = text.strip_suffix('\n').unwrap_or(text);
        match text.strip_prefix("ERR ") {
            Some(why) => Err(AdvertError::Refused(why.chars().take(200).collect())),
            None => Ok(Some(text)),
        }
    }
}

/// Wanted names that lines told, with the commits of annotated tags in their place.
struct RefList<'a> {
    wanted: &'a [String],
    refs: GitRefs,
    peeled: GitRefs,
}

impl<'a> RefList<'a> {
    fn of(wanted: &'a [String]) -> Self {
        Self { wanted, refs: GitRefs::new(), peeled: GitRefs::new() }
    }

    fn add(&mut self, id: &str, name: &str) -> Result<(), AdvertError> {
        let (plain, is_peeled) = match name.strip_suffix(PEELED) {
            Some(plain) => (plain, true),
            None => (name, false),
        };
        if !self.wanted.iter().any(|wanted| wanted == plain) {
            return Ok(());
        }
        let id = GitId::parse(id).map_err(|_| AdvertError::Protocol)?;
        let to = if is_peeled { &mut self.peeled } else { &mut self.refs };
        to.insert(plain.to_owned(), id);
        Ok(())
    }

    fn end(self) -> GitRefs {
        let mut refs = self.refs;
        refs.extend(self.peeled);
        refs
    }
}

/// Reads the answer to `info/refs`.
///
/// # Errors
/// [`AdvertError`].
pub fn advert(bytes: &[u8], name: &GitRef) -> Result<RefAdvert, AdvertError> {
    let wanted = name.full_names();
    let mut packets = Packets(bytes).peekable();
    if let Some(Ok(Some(service))) = packets.peek()
        && service.starts_with("# service=")
    {
        packets.next();
        if packets.next() != Some(Ok(None)) {
            return Err(AdvertError::Protocol);
        }
    }
    let Some(first) = packets.next().transpose()?.flatten() else {
        return Err(AdvertError::Protocol);
    };
    if first == "version 2" {
        return capabilities(packets);
    }
    let mut list = RefList::of(&wanted);
    // Behind the first name, after a NUL, stands what the server can do. An empty repository has a line without a name.
    let first = first.split('\0').next().unwrap_or_default();
    let lines = std::iter::once(Ok(Some(first))).chain(packets);
    for line in lines {
        let Some(line) = line? else { break };
        if line == "version 1" || line.starts_with("shallow ") {
            continue;
        }
        let (id, name) = line.split_once(' ').ok_or(AdvertError::Protocol)?;
        list.add(id, name)?;
    }
    Ok(RefAdvert::Listed(list.end()))
}

fn capabilities<'a>(
    packets: impl Iterator<Item = Result<Option<&'a str>, AdvertError>>,
) -> Result<RefAdvert, AdvertError> {
    let (mut format, mut can_list) = (ObjectFormat::Sha1, false);
    for line in packets {
        let Some(line) = line? else { break };
        match line.split_once('=') {
            Some(("object-format", "sha256")) => format = ObjectFormat::Sha256,
            Some(("ls-refs", _)) => can_list = true,
            _ => can_list |= line == "ls-refs",
        }
    }
    match can_list {
        true => Ok(RefAdvert::Asked(format)),
        false => Err(AdvertError::Incapable),
    }
}

/// The question for what a name may stand for.
#[must_use]
pub fn ls_refs(name: &GitRef, format: ObjectFormat) -> String {
    let packet = |text: &str| format!("{:04x}{text}\n", LENGTH + text.len() + 1);
    let mut body = packet("command=ls-refs");
    if format == ObjectFormat::Sha256 {
        body += &packet("object-format=sha256");
    }
    body += "0001";
    body += &packet("peel");
    for full in name.full_names() {
        body += &packet(&format!("ref-prefix {full}"));
    }
    body + "0000"
}

/// Reads the answer to [`ls_refs`].
///
/// # Errors
/// [`AdvertError`].
pub fn listed(bytes: &[u8], name: &GitRef) -> Result<GitRefs, AdvertError> {
    let wanted = name.full_names();
    let mut list = RefList::of(&wanted);
    for line in Packets(bytes) {
        let Some(line) = line? else { break };
        let mut words = line.split(' ');
        let (Some(id), Some(full)) = (words.next(), words.next()) else {
            return Err(AdvertError::Protocol);
        };
        if id == "unborn" {
            continue;
        }
        list.add(id, full)?;
        if let Some(peeled) = words.find_map(|word| word.strip_prefix("peeled:")) {
            list.add(peeled, &format!("{full}{PEELED}"))?;
        }
    }
    Ok(list.end())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packets(lines: &[&str]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for line in lines {
            match line.is_empty() {
                true => bytes.extend_from_slice(b"0000"),
                false => bytes.extend(format!("{:04x}{line}\n", line.len() + 5).into_bytes()),
            }
        }
        bytes
    }

    fn name(text: &str) -> GitRef {
        GitRef::parse(text).unwrap()
    }

    fn id(digit: &str) -> GitId {
        GitId::parse(&digit.repeat(40)).unwrap()
    }

    #[test]
    fn the_older_answer_lists_all_and_a_tag_is_its_commit() {
        let [a, b, c] = ["a", "b", "c"].map(|digit| digit.repeat(40));
        let bytes = packets(&[
            "# service=git-upload-pack",
            "",
            &format!("{a} HEAD\0multi_ack symref=HEAD:refs/heads/main"),
            &format!("{a} refs/heads/main"),
            &format!("{b} refs/tags/v1"),
            &format!("{c} refs/tags/v1^{{}}"),
            "",
        ]);
        let of = |text: &str| match advert(&bytes, &name(text)) {
            Ok(RefAdvert::Listed(refs)) => name(text).commit_in(&refs).ok(),
            other => panic!("{other:?}"),
        };
        assert_eq!(of("HEAD"), Some(id("a")));
        assert_eq!(of("main"), Some(id("a")));
        assert_eq!(of("v1"), Some(id("c")));
        assert_eq!(of("other"), None);
        let empty = packets(&[
            "# service=git-upload-pack",
            "",
            &format!("{} capabilities^{{}}\0multi_ack", "0".repeat(40)),
            "",
        ]);
        assert_eq!(advert(&empty, &name("main")), Ok(RefAdvert::Listed(GitRefs::new())));
    }

    #[test]
    fn a_newer_server_is_asked_for_the_names_alone() {
        let can = |lines: &[&str]| {
            advert(&packets(&[&["version 2"][..], lines, &[""]].concat()), &name("main"))
        };
        assert_eq!(can(&["ls-refs=unborn", "fetch"]), Ok(RefAdvert::Asked(ObjectFormat::Sha1)));
        let wide = can(&["object-format=sha256", "ls-refs"]);
        assert_eq!(wide, Ok(RefAdvert::Asked(ObjectFormat::Sha256)));
        assert_eq!(can(&["fetch"]), Err(AdvertError::Incapable));
        assert_eq!(
            ls_refs(&name("v1"), ObjectFormat::Sha1),
            "0014command=ls-refs\n00010009peel\n001dref-prefix refs/heads/v1\n001cref-prefix refs/tags/v1\n0000"
        );
        let [a, b] = ["a", "b"].map(|digit| digit.repeat(40));
        let answer = packets(&[
            "unborn HEAD symref-target:refs/heads/main",
            &format!("{a} refs/tags/v1 peeled:{b}"),
            &format!("{a} refs/tags/v10"),
            "",
        ]);
        let refs = listed(&answer, &name("v1")).unwrap();
        assert_eq!((refs.len(), name("v1").commit_in(&refs)), (1, Ok(id("b"))));
    }

    #[test]
    fn what_is_no_answer_is_refused() {
        let page = b"<!doctype html><title>Sign in</title>".as_slice();
        let cases: [&[u8]; 8] = [
            b"",
            page,
            b"0003",
            b"00",
            b"ffff",
            b"0005",
            b"+008",
            b"001e# service=git-upload-pack\n",
        ];
        for bytes in cases {
            assert_eq!(advert(bytes, &name("main")), Err(AdvertError::Protocol), "{bytes:?}");
        }
        let refused = advert(&packets(&["ERR access denied"]), &name("main"));
        assert_eq!(refused, Err(AdvertError::Refused("access denied".to_owned())));
        let short = packets(&["abc refs/heads/main", ""]);
        assert_eq!(listed(&short, &name("main")), Err(AdvertError::Protocol));
    }
}
