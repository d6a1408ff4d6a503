use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use cofferdam_guest::upper::NOBODY;
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

use super::*;
use crate::not_run::not_run;

const FIRST: u32 = 200_000;

fn packed(upper: &Path) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    pack(upper, FIRST, &mut out, &|| true).map(|()| out)
}

/// A layer with all that a layer may have; `None` where this process may not make it.
fn layer() -> Option<tempfile::TempDir> {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    if mknodat(CWD, at("gone"), FileType::CharacterDevice, Mode::empty(), makedev(0, 0)).is_err() {
        return None;
    }
    fs::create_dir_all(at("d/e")).unwrap();
    fs::write(at("d/f"), b"hello").unwrap();
    fs::hard_link(at("d/f"), at("d/e/same")).unwrap();
    symlink("../nowhere", at("d/link")).unwrap();
    fs::write(dir.path().join(std::ffi::OsStr::from_bytes(b"\xff\xfe")), b"odd").unwrap();
    let holes = File::create(at("holes")).unwrap();
    holes.set_len(1 << 40).unwrap();
    std::os::unix::fs::FileExt::write_at(&holes, b"x", 5 << 30).unwrap();
    mknodat(CWD, at("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    mknodat(CWD, at("sock"), FileType::Socket, Mode::RUSR, 0).unwrap();
    for (name, uid) in [("d", 0), ("d/f", 1_000), ("d/link", 1_000), ("d/e", 1_000)] {
        std::os::unix::fs::lchown(at(name), Some(FIRST + uid), Some(FIRST + uid)).unwrap();
    }
    chown(at("holes"), Some(5), Some(5)).unwrap();
    fs::set_permissions(at("d/f"), fs::Permissions::from_mode(0o4751)).unwrap();
    fs::set_permissions(at("d/e"), fs::Permissions::from_mode(0o500)).unwrap();
    let old = SystemTime::UNIX_EPOCH + Duration::new(1_000_000, 7);
    File::open(at("d/f")).unwrap().set_modified(old).unwrap();
    File::open(at("d")).unwrap().set_modified(old).unwrap();
    let opaque = rustix::fs::XattrFlags::empty();
    rustix::fs::lsetxattr(at("d"), "trusted.overlay.opaque", b"y", opaque).unwrap();
    Some(dir)
}

#[test]
fn a_layer_comes_back_as_it_was_under_other_ids() {
    let Some(from) = layer() else {
        return not_run("a layer with deleted files", "this process makes no device nodes");
    };
    let stream = packed(from.path()).unwrap();
    assert!(stream.len() < 1 << 20, "holes are not written: {}", stream.len());
    let to = tempfile::tempdir().unwrap();
    unpack(to.path(), 300_000, &mut stream.as_slice()).unwrap();
    let at = |name: &str| to.path().join(name);
    let of = |name: &str| fs::symlink_metadata(at(name)).unwrap();
    assert_eq!(fs::read(at("d/f")).unwrap(), b"hello");
    assert_eq!(of("d/f").ino(), of("d/e/same").ino());
    assert_eq!((of("d/f").uid(), of("d/f").mode() & 0o7777), (301_000, 0o4751));
    assert_eq!((of("d/e").uid(), of("d/e").mode() & 0o7777), (301_000, 0o500));
    assert_eq!((of("d").mtime(), of("d/f").mtime_nsec()), (1_000_000, 7));
    assert_eq!(fs::read_link(at("d/link")).unwrap(), Path::new("../nowhere"));
    assert_eq!(of("d/link").uid(), 301_000);
    assert_eq!((of("holes").len(), of("holes").uid()), (1 << 40, 300_000 + NOBODY));
    assert!(of("holes").blocks() < 1_000);
    assert!(of("pipe").file_type().is_fifo() && of("sock").file_type().is_socket());
    assert!(of("gone").file_type().is_char_device() && of("gone").rdev() == 0);
    assert_eq!(fs::read(to.path().join(std::ffi::OsStr::from_bytes(b"\xff\xfe"))).unwrap(), b"odd");
    let mut opaque = [0; 8];
    let size = rustix::fs::lgetxattr(at("d"), "trusted.overlay.opaque", &mut opaque[..]).unwrap();
    assert_eq!(&opaque[..size], b"y");
    let mut again = Vec::new();
    pack(to.path(), 300_000, &mut again, &|| true).unwrap();
    assert!(again == stream, "the same layer is the same stream");
}

#[test]
fn a_stream_that_is_cut_off_or_leads_out_of_the_layer_is_refused() {
    let from = tempfile::tempdir().unwrap();
    fs::write(from.path().join("file"), b"bytes").unwrap();
    symlink("/", from.path().join("link")).unwrap();
    let stream = packed(from.path()).unwrap();
    for size in 0..stream.len() {
        let to = tempfile::tempdir().unwrap();
        assert!(unpack(to.path(), FIRST, &mut &stream[..size]).is_err(), "{size}");
    }
    let name = stream.windows(4).position(|part| part == b"file").unwrap();
    for bad in [b"../x", b"a/..", b"/abc", b"li\0k"] {
        let mut forged = stream.clone();
        forged[name..name + 4].copy_from_slice(bad);
        let to = tempfile::tempdir().unwrap();
        let refused = unpack(to.path(), FIRST, &mut forged.as_slice()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData, "{refused}");
    }
    // To the kernel this number means that an owner stays as it is. The name's entry says its mode, then its owner.
    let mut nobodys = stream.clone();
    nobodys[name + 8..name + 12].copy_from_slice(&u32::MAX.to_le_bytes());
    for first in [0, FIRST] {
        let to = tempfile::tempdir().unwrap();
        let refused = unpack(to.path(), first, &mut nobodys.as_slice()).unwrap_err();
        assert!(refused.to_string().contains("an owner without a number"), "{refused}");
    }
    // A link of the stream's own is not followed by what comes after it.
    let mut through = stream.clone();
    let link = stream.windows(4).rposition(|part| part == b"link").unwrap();
    through[name..name + 4].copy_from_slice(b"li/k");
    through[link..link + 4].copy_from_slice(b"lino");
    let to = tempfile::tempdir().unwrap();
    assert!(unpack(to.path(), FIRST, &mut through.as_slice()).is_err());
}

#[test]
fn packing_ends_once_the_sandbox_does_and_says_what_it_cannot_keep() {
    let from = tempfile::tempdir().unwrap();
    fs::write(from.path().join("file"), b"bytes").unwrap();
    let stopped = pack(from.path(), FIRST, &mut Vec::new(), &|| false).unwrap_err();
    assert!(stopped.to_string().contains("ends"), "{stopped}");
    let device = from.path().join("null");
    if mknodat(CWD, &device, FileType::CharacterDevice, Mode::RUSR, makedev(1, 3)).is_ok() {
        let refused = packed(from.path()).unwrap_err().to_string();
        assert_eq!(refused, "/null: it is a device");
    }
}

#[test]
fn a_stream_of_somebody_else_is_passed_on_whole_and_nothing_else_is() {
    let from = tempfile::tempdir().unwrap();
    fs::write(from.path().join("file"), vec![7; 300_000]).unwrap();
    symlink("/", from.path().join("link")).unwrap();
    let stream = packed(from.path()).unwrap();
    let passed = |stream: &[u8], most| {
        let (mut from, mut out) = (stream, Vec::new());
        pass(&mut from, &mut out, most).map(|()| (out, from.len()))
    };
    let size = u64::try_from(stream.len()).unwrap();
    let more = [stream.as_slice(), b"behind its end"].concat();
    assert_eq!(passed(&more, size).unwrap(), (stream.clone(), 14));
    let refused = passed(&stream, size - 1).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::FileTooLarge, "{refused}");
    for cut in [0, 7, 8, 20, stream.len() / 2, stream.len() - 1] {
        assert!(passed(&stream[..cut], size).is_err(), "{cut}");
    }
    let name = stream.windows(4).position(|part| part == b"file").unwrap();
    for bad in [b"../x", b"a/..", b"/abc", b"li\0k"] {
        let mut forged = stream.clone();
        forged[name..name + 4].copy_from_slice(bad);
        let refused = passed(&forged, size).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData, "{refused}");
    }
    // The first byte of an entry is its kind: 9 is none, and a second root is refused.
    for (at, byte) in [(8, 9), (8, 2), (0, b'C')] {
        let mut forged = stream.clone();
        forged[at] = byte;
        assert!(passed(&forged, size).is_err(), "{at}");
    }
}

#[test]
fn an_owner_whom_only_a_machine_can_have_is_refused_by_name_elsewhere() {
    let from = tempfile::tempdir().unwrap();
    fs::write(from.path().join("file"), b"bytes").unwrap();
    if chown(from.path().join("file"), Some(70_000), None).is_err() {
        return not_run("an owner of its own", "this process gives no file away");
    }
    let mut stream = Vec::new();
    pack(from.path(), 0, &mut stream, &|| true).unwrap();
    let to = tempfile::tempdir().unwrap();
    unpack(to.path(), 0, &mut stream.as_slice()).unwrap();
    assert_eq!(fs::metadata(to.path().join("file")).unwrap().uid(), 70_000);
    let to = tempfile::tempdir().unwrap();
    let refused = unpack(to.path(), FIRST, &mut stream.as_slice()).unwrap_err().to_string();
    assert!(refused.contains("the owner 70000"), "{refused}");
}
