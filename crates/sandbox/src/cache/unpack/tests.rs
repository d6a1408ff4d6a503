use std::io::{Seek as _, Write as _};
use std::os::unix::fs::MetadataExt as _;

use tar::Builder;

use super::*;
use crate::cache::bounds::Bounds;

const ROOM: Bounds = Bounds { bytes: 100, entries: 6 };

/// A header that says what our packer never would.
fn head(kind: EntryType, name: &[u8], link: &str, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.as_mut_bytes()[..name.len()].copy_from_slice(name);
    header.as_mut_bytes()[157..157 + link.len()].copy_from_slice(link.as_bytes());
    header.set_entry_type(kind);
    header.set_mode(0o7755);
    header.set_uid(7);
    header.set_gid(8);
    header.set_mtime(1_000);
    header.set_size(size);
    header.set_cksum();
    header
}

/// Kind, name, target and bytes.
type Sent<'a> = (EntryType, &'a [u8], &'a str, &'a [u8]);

fn tar(entries: &[Sent<'_>]) -> File {
    let mut builder = Builder::new(Vec::new());
    for (kind, name, link, bytes) in entries {
        let size = u64::try_from(bytes.len()).unwrap();
        builder.append(&head(*kind, name, link, size), *bytes).unwrap();
    }
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&builder.into_inner().unwrap()).unwrap();
    file.rewind().unwrap();
    file
}

const DIR: EntryType = EntryType::Directory;
const FILE: EntryType = EntryType::Regular;
const LINK: EntryType = EntryType::Symlink;

#[test]
fn a_tree_comes_out_with_its_owners_and_without_set_user_id() {
    let root = tempfile::tempdir().unwrap();
    let long = [b'n'; 200];
    let whole = tar(&[
        (DIR, b"./", "", b""),
        (DIR, b"d/", "", b""),
        (FILE, b"d/.wh.f", "", b"12345"),
        (LINK, b"out", "/etc/shadow", b""),
        (EntryType::GNULongName, b"long", "", &long),
        (FILE, b"cut", "", b"x"),
    ]);
    let mut usage = Usage::new(ROOM);
    unpack(root.path(), whole, &mut usage).unwrap();
    assert_eq!(usage.left(), Bounds { bytes: 94, entries: 2 });
    let meta = |name: &str| fs::symlink_metadata(root.path().join(name)).unwrap();
    for name in ["", "d", "d/.wh.f", "out"] {
        assert_eq!((meta(name).uid(), meta(name).gid()), (7, 8), "{name}");
    }
    assert_eq!((meta("").mode() & 0o7777, meta("d").mode() & 0o7777), (0o1755, 0o1755));
    assert_eq!((meta("d/.wh.f").mode() & 0o7777, meta("d/.wh.f").mtime()), (0o755, 1_000));
    assert_eq!(fs::read_link(root.path().join("out")).unwrap(), Path::new("/etc/shadow"));
    assert!(meta(&"n".repeat(200)).is_file());
}

#[test]
fn what_leads_out_of_the_directory_or_is_no_plain_thing_is_refused() {
    let twice: &[u8] = &[b'n'; 5_000];
    let cases: [(&str, &[Sent<'_>]); 12] = [
        ("leads out", &[(FILE, b"../x", "", b"x")]),
        ("leads out", &[(FILE, b"/tmp/x", "", b"x")]),
        ("leads out", &[(DIR, b"d/", "", b""), (FILE, b"d/../../x", "", b"x")]),
        ("no directory", &[(LINK, b"l", "/tmp", b""), (FILE, b"l/x", "", b"x")]),
        ("no directory", &[(FILE, b"d/x", "", b"x")]),
        ("exists", &[(LINK, b"l", "/tmp/x", b""), (FILE, b"l", "", b"x")]),
        ("exists", &[(LINK, b"l", "/tmp", b""), (DIR, b"l", "", b"")]),
        ("of a kind", &[(FILE, b"a", "", b"x"), (EntryType::Link, b"b", "a", b"")]),
        ("of a kind", &[(EntryType::Fifo, b"p", "", b"")]),
        ("of a kind", &[(EntryType::Char, b"c", "", b"")]),
        ("too long", &[(EntryType::GNULongName, b"n", "", twice), (FILE, b"n", "", b"")]),
        ("a link to nothing", &[(LINK, b"l", "", b"")]),
    ];
    for (why, entries) in cases {
        let root = tempfile::tempdir().unwrap();
        let error = unpack(root.path(), tar(entries), &mut Usage::new(ROOM)).unwrap_err();
        let said = cofferdam_contracts::error::error_chain(&error);
        assert!(said.contains(why), "{entries:?}: {said}");
    }
}

#[test]
fn more_than_the_bounds_is_refused_whatever_was_announced() {
    let many: Vec<Vec<u8>> = (0..7).map(|n| format!("{n}").into_bytes()).collect();
    let many: Vec<_> = many.iter().map(|n| (FILE, n.as_slice(), "", b"".as_slice())).collect();
    let root = tempfile::tempdir().unwrap();
    let error = unpack(root.path(), tar(&many), &mut Usage::new(ROOM)).unwrap_err();
    assert!(error.to_string().contains("entries"), "{error}");
    assert!(error.to_string().ends_with(&format!("bound of {}", ROOM.entries)), "{error}");
    let root = tempfile::tempdir().unwrap();
    let large = tar(&[(FILE, b"a", "", &[7; 60]), (FILE, b"b", "", &[7; 41])]);
    let error = unpack(root.path(), large, &mut Usage::new(ROOM)).unwrap_err();
    assert!(error.to_string().contains("bytes"), "{error}");
    assert!(error.to_string().ends_with(&format!("bound of {}", ROOM.bytes)), "{error}");
}
