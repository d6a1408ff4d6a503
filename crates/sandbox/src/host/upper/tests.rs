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
    // To the kernel this number means that an owner stays as it is. Behind the name stand how many there are, mode and owner.
    let mut nobodys = stream.clone();
    nobodys[name + 12..name + 16].copy_from_slice(&u32::MAX.to_le_bytes());
    for first in [0, FIRST] {
        let to = tempfile::tempdir().unwrap();
        let refused = unpack(to.path(), first, &mut nobodys.as_slice()).unwrap_err();
        assert!(refused.to_string().contains("an owner without a number"), "{refused}");
    }
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
    // The first byte of an entry is its kind: 9 is none, and an end stands in no directory.
    for (at, byte) in [(8, 9), (8, 0), (0, b'C')] {
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

/// A directory of this many levels, made by descriptors: no path is as long.
fn deep(at: &Path, levels: usize) {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY;
    let mut dir = rustix::fs::open(at, flags, Mode::empty()).unwrap();
    for _ in 0..levels {
        rustix::fs::mkdirat(&dir, "d", Mode::RWXU).unwrap();
        dir = rustix::fs::openat(&dir, "d", flags, Mode::empty()).unwrap();
    }
    rustix::fs::openat(
        &dir,
        "file",
        rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY,
        Mode::RUSR,
    )
    .unwrap();
}

#[test]
fn a3f7_a_tree_of_any_depth_comes_back_without_recursion() {
    // In memory, as a layer is.
    let dir = || tempfile::tempdir_in("/dev/shm").unwrap();
    let (from, to) = (dir(), dir());
    let (upper, again) = (from.path().join("upper"), to.path().join("upper"));
    fs::create_dir(&upper).unwrap();
    fs::create_dir(&again).unwrap();
    // A path to the last one has 40,000 bytes; the kernel takes 4,095.
    deep(&upper, 20_000);
    let small = std::thread::Builder::new().stack_size(256 * 1024);
    let (source, target) = (upper.clone(), again.clone());
    let done = small.spawn(move || {
        let stream = packed(&source).unwrap();
        unpack(&target, FIRST, &mut stream.as_slice()).unwrap();
        let mut passed = Vec::new();
        pass(&mut stream.as_slice(), &mut passed, 1 << 30).unwrap();
        assert!(passed == stream && packed(&target).unwrap() == stream);
        stream.len()
    });
    let size = done.unwrap().join().unwrap();
    assert!(size < 20_000 * 64, "{size}");
    cofferdam_guest::removal::remove_tree(&upper).unwrap();
    cofferdam_guest::removal::remove_tree(&again).unwrap();
}

#[test]
fn a3f5_names_are_as_long_in_a_stream_as_they_are_in_the_tree() {
    let from = tempfile::tempdir().unwrap();
    // A path of nearly 4,000 bytes, with many names of one file at its end.
    let mut at = from.path().to_owned();
    for n in 0..15 {
        at.push(format!("{n:0>250}"));
    }
    fs::create_dir_all(&at).unwrap();
    fs::write(at.join("file"), "once").unwrap();
    let names = 3_000;
    for n in 0..names {
        fs::hard_link(at.join("file"), at.join(format!("n{n}"))).unwrap();
    }
    let stream = packed(from.path()).unwrap();
    assert!(stream.len() < 10_000 + names * 16, "{}", stream.len());
    let to = tempfile::tempdir().unwrap();
    unpack(to.path(), FIRST, &mut stream.as_slice()).unwrap();
    let again = to.path().join(at.strip_prefix(from.path()).unwrap());
    let found = fs::metadata(again.join("n2999")).unwrap();
    assert_eq!(found.nlink(), 3_001, "the place that they had meanwhile is gone");
    assert_eq!(fs::read_dir(to.path()).unwrap().count(), 1);
}

#[test]
fn a3f8_what_the_writer_writes_at_its_bounds_is_read() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = from.path().join("n".repeat(255));
    fs::write(&file, "x").unwrap();
    symlink("t".repeat(4_095), from.path().join("link")).unwrap();
    let no = rustix::fs::XattrFlags::empty();
    let set = |name: &str, value: &[u8]| rustix::fs::setxattr(&file, name, value, no);
    if set("user.a", b"").is_err() {
        return not_run("attributes of files", "this file system keeps none of users");
    }
    // As many as there is room for, one of them as long as the kernel takes.
    let long = set("user.long", &[7; 64 * 1024]).is_ok();
    let many = (0..5_000).take_while(|n| set(&format!("user.{n}"), b"v").is_ok()).count();
    let stream = packed(from.path()).unwrap();
    unpack(to.path(), FIRST, &mut stream.as_slice()).unwrap();
    assert!(packed(to.path()).unwrap() == stream, "{many} attributes, a long one: {long}");
    // The next one is refused where it is written, not where it is read.
    assert!(set(&format!("user.{}", "n".repeat(251)), b"").is_err());
}

#[test]
fn more_names_of_a_file_than_it_says_are_refused() {
    let from = tempfile::tempdir().unwrap();
    fs::write(from.path().join("a"), "x").unwrap();
    for name in ["b", "c"] {
        fs::hard_link(from.path().join("a"), from.path().join(name)).unwrap();
    }
    let stream = packed(from.path()).unwrap();
    let at = stream.windows(5).position(|part| part == [b'a', 3, 0, 0, 0]).unwrap() + 1;
    for said in [0, 1, 2] {
        let mut forged = stream.clone();
        forged[at] = said;
        let to = tempfile::tempdir().unwrap();
        let refused = unpack(to.path(), FIRST, &mut forged.as_slice()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData, "{said}: {refused}");
    }
}

/// A stream as it was written before version 2.
struct First(Vec<u8>);

impl First {
    fn entry(&mut self, kind: u8, path: &str, mode: u32, owner: u32) -> &mut Self {
        self.0.push(kind);
        self.text(path);
        for number in [mode, owner, owner] {
            self.0.extend(number.to_le_bytes());
        }
        self.0.extend(1_000_000_i64.to_le_bytes());
        self.0.extend(7_u32.to_le_bytes());
        self.0.extend(0_u16.to_le_bytes());
        self
    }

    fn text(&mut self, text: &str) {
        self.0.extend(u16::try_from(text.len()).unwrap().to_le_bytes());
        self.0.extend(text.as_bytes());
    }

    fn wide(&mut self, number: u64) {
        self.0.extend(number.to_le_bytes());
    }
}

#[test]
fn a_stream_from_before_version_2_is_read() {
    let mut old = First(b"cfdlyr01".to_vec());
    old.entry(1, "", 0o755, 0).entry(1, "d", 0o500, 1_000);
    old.entry(2, "d/f", 0o640, 1_000);
    old.wide(0);
    old.0.extend(5_u32.to_le_bytes());
    old.0.extend(b"hello");
    old.wide(u64::MAX);
    old.wide(5);
    old.entry(4, "d/same", 0, 0).text("d/f");
    old.entry(3, "link", 0o777, 0).text("../nowhere");
    old.0.push(0);
    old.wide(5);
    let mut passed = Vec::new();
    pass(&mut old.0.as_slice(), &mut passed, 1 << 20).unwrap();
    assert!(passed == old.0);
    let to = tempfile::tempdir().unwrap();
    unpack(to.path(), FIRST, &mut old.0.as_slice()).unwrap();
    let of = |name: &str| fs::symlink_metadata(to.path().join(name)).unwrap();
    assert_eq!(fs::read(to.path().join("d/f")).unwrap(), b"hello");
    assert_eq!((of("d/f").ino(), of("d/f").uid()), (of("d/same").ino(), FIRST + 1_000));
    assert_eq!((of("d").mode() & 0o7777, of("d").mtime()), (0o500, 1_000_000));
    assert_eq!(fs::read_link(to.path().join("link")).unwrap(), Path::new("../nowhere"));
    for size in 0..old.0.len() {
        let to = tempfile::tempdir().unwrap();
        assert!(unpack(to.path(), FIRST, &mut &old.0[..size]).is_err(), "{size}");
    }
    // A kind of the newer form is none of this one.
    let mut forged = old.0.clone();
    forged[8] = 8;
    assert!(pass(&mut forged.as_slice(), &mut Vec::new(), 1 << 20).is_err());
}
