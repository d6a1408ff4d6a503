//! The calls of the kernel behind an encrypted layer: five of fscrypt, three of the loop driver.
//!
//! Every structure is the kernel's own, byte for byte; a test holds their sizes against the numbers of
//! the calls, which contain them.

#![expect(unsafe_code, reason = "fscrypt and the loop driver are ioctls without a safe wrapper")]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use libc::{c_int, c_ulong};
use zeroize::{Zeroize as _, ZeroizeOnDrop};

/// `_IOR('f', 19, struct fscrypt_policy_v1)`, which takes version 2 as well.
const SET_POLICY: c_ulong = 0x800c_6613;
/// `_IOWR('f', 22, __u8[9])`.
const GET_POLICY: c_ulong = 0xc009_6616;
/// `_IOWR('f', 23, struct fscrypt_add_key_arg)`.
const ADD_KEY: c_ulong = 0xc050_6617;
/// `_IOWR('f', 25, struct fscrypt_remove_key_arg)`: whichever users added it.
const REMOVE_KEY: c_ulong = 0xc040_6619;
/// `_IOWR('f', 26, struct fscrypt_get_key_status_arg)`.
const KEY_STATUS: c_ulong = 0xc080_661a;
const LOOP_CLEAR: c_ulong = 0x4c01;
const LOOP_CONFIGURE: c_ulong = 0x4c0a;
const LOOP_FREE: c_ulong = 0x4c82;

/// Value of `FSCRYPT_KEY_SPEC_TYPE_IDENTIFIER`.
const BY_IDENTIFIER: u32 = 2;
const POLICY_V2: u8 = 2;
const POLICY_V2_BYTES: u64 = 24;
const AES_256_XTS: u8 = 1;
const AES_256_CTS: u8 = 4;
/// `FSCRYPT_POLICY_FLAGS_PAD_32`: names are padded to 32 bytes, so that fewer lengths are told apart.
const PAD_32: u8 = 3;
/// Value of `FSCRYPT_KEY_REMOVAL_STATUS_FLAG_FILES_BUSY`.
const FILES_BUSY: u32 = 1;
/// `LO_FLAGS_AUTOCLEAR`: the last user's end detaches the file.
const AUTOCLEAR: u32 = 4;
/// Somebody may take the device between the two calls that find and configure it.
const LOOP_TRIES: usize = 16;
pub(super) const KEY_BYTES: usize = 64;
const KEY_LENGTH: u32 = 64;

/// The kernel's name of a key, derived from the key.
pub(super) type Identifier = [u8; 16];

#[repr(C)]
#[derive(Default, Clone, Copy)]
struct KeySpec {
    kind: u32,
    reserved: u32,
    identifier: Identifier,
    unused: Identifier,
}

fn spec(identifier: Identifier) -> KeySpec {
    KeySpec { kind: BY_IDENTIFIER, identifier, ..KeySpec::default() }
}

#[repr(C)]
struct AddKey {
    spec: KeySpec,
    raw_size: u32,
    key_id: u32,
    reserved: [u32; 8],
    raw: [u8; KEY_BYTES],
}

impl Drop for AddKey {
    fn drop(&mut self) {
        self.raw.zeroize();
    }
}

impl ZeroizeOnDrop for AddKey {}

#[repr(C)]
struct Policy {
    version: u8,
    contents: u8,
    names: u8,
    flags: u8,
    reserved: [u8; 4],
    identifier: Identifier,
}

#[repr(C)]
struct GetPolicy {
    size: u64,
    policy: Policy,
}

#[repr(C)]
struct RemoveKey {
    spec: KeySpec,
    flags: u32,
    reserved: [u32; 5],
}

#[repr(C)]
struct KeyStatus {
    spec: KeySpec,
    reserved: [u32; 6],
    status: u32,
    flags: u32,
    users: u32,
    out: [u32; 13],
}

#[repr(C)]
struct LoopInfo {
    numbers: [u64; 5],
    number: u32,
    encryption: [u32; 2],
    flags: u32,
    texts: [u8; 160],
    init: [u64; 2],
}

#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

/// Whether a file system has a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyPresence {
    Absent,
    Present,
    /// The key is wiped, and files that somebody still has open keep what was derived from it.
    Incomplete,
}

impl KeyPresence {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Present => "present",
            Self::Incomplete => "incompletely removed",
        }
    }
}

fn call<T>(file: &File, number: c_ulong, argument: &mut T) -> io::Result<()> {
    // SAFETY: every caller gives the structure that belongs to the number, and the kernel reads and
    // writes no more than it; it keeps no pointer to it.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), number, std::ptr::from_mut(argument)) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn call_with(file: &File, number: c_ulong, argument: c_int) -> io::Result<c_int> {
    // SAFETY: the calls that are made this way take an integer or nothing.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), number, argument) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done) }
}

/// Gives a file system a key. Our copies of it are overwritten.
pub(super) fn add_key(fs: &File, mut raw: [u8; KEY_BYTES]) -> io::Result<Identifier> {
    let spec = spec(Identifier::default());
    let mut argument = AddKey { spec, raw_size: KEY_LENGTH, key_id: 0, reserved: [0; 8], raw };
    raw.zeroize();
    call(fs, ADD_KEY, &mut argument)?;
    Ok(argument.spec.identifier)
}

/// Has everything below an empty directory encrypted, contents and names.
pub(super) fn set_policy(dir: &File, identifier: Identifier) -> io::Result<()> {
    let mut policy = Policy {
        version: POLICY_V2,
        contents: AES_256_XTS,
        names: AES_256_CTS,
        flags: PAD_32,
        reserved: [0; 4],
        identifier,
    };
    call(dir, SET_POLICY, &mut policy)
}

/// The key that a directory is encrypted with; readable without the key.
pub(super) fn key_of(dir: &File) -> io::Result<Identifier> {
    let policy = Policy {
        version: 0,
        contents: 0,
        names: 0,
        flags: 0,
        reserved: [0; 4],
        identifier: Identifier::default(),
    };
    let mut argument = GetPolicy { size: POLICY_V2_BYTES, policy };
    call(dir, GET_POLICY, &mut argument)?;
    if argument.policy.version != POLICY_V2 {
        return Err(io::Error::other("the directory has a policy that is not ours"));
    }
    Ok(argument.policy.identifier)
}

pub(super) fn key_status(fs: &File, identifier: Identifier) -> io::Result<KeyPresence> {
    let spec = spec(identifier);
    let mut argument =
        KeyStatus { spec, reserved: [0; 6], status: 0, flags: 0, users: 0, out: [0; 13] };
    call(fs, KEY_STATUS, &mut argument)?;
    match argument.status {
        1 => Ok(KeyPresence::Absent),
        2 => Ok(KeyPresence::Present),
        3 => Ok(KeyPresence::Incomplete),
        other => Err(io::Error::other(format!("the kernel gave the key's status as {other}"))),
    }
}

/// Wipes a key and locks every file of it that nobody has open. Whether some stayed unlocked.
pub(super) fn remove_key(fs: &File, identifier: Identifier) -> io::Result<bool> {
    let mut argument = RemoveKey { spec: spec(identifier), flags: 0, reserved: [0; 5] };
    call(fs, REMOVE_KEY, &mut argument)?;
    Ok(argument.flags & FILES_BUSY != 0)
}

/// A free loop device with this file behind it, until its last user goes.
pub(super) fn attach(image: &File) -> io::Result<(PathBuf, File)> {
    let control = OpenOptions::new().read(true).write(true).open(super::CONTROL)?;
    let fd = u32::try_from(image.as_raw_fd()).map_err(io::Error::other)?;
    let mut tries = LOOP_TRIES;
    loop {
        let number = call_with(&control, LOOP_FREE, 0)?;
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let device = open(&path)?;
        let info = LoopInfo {
            numbers: [0; 5],
            number: 0,
            encryption: [0; 2],
            flags: AUTOCLEAR,
            texts: [0; 160],
            init: [0; 2],
        };
        let mut config = LoopConfig { fd, block_size: 0, info, reserved: [0; 8] };
        tries = tries.saturating_sub(1);
        match call(&device, LOOP_CONFIGURE, &mut config) {
            Ok(()) => return Ok((path, device)),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && tries > 0 => {}
            Err(error) => return Err(error),
        }
    }
}

/// Takes the file away from a loop device, at once or when its last user goes.
pub(super) fn detach(device: &Path) -> io::Result<()> {
    call_with(&open(device)?, LOOP_CLEAR, 0).map(drop)
}

fn open(device: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).open(device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structures_have_the_sizes_that_the_calls_name() {
        let named = |number: c_ulong| usize::try_from((number >> 16) & 0x3fff).unwrap();
        assert_eq!(size_of::<AddKey>() - KEY_BYTES, named(ADD_KEY));
        assert_eq!(usize::try_from(KEY_LENGTH).unwrap(), KEY_BYTES);
        assert_eq!(size_of::<RemoveKey>(), named(REMOVE_KEY));
        assert_eq!(size_of::<KeyStatus>(), named(KEY_STATUS));
        assert_eq!(size_of::<Policy>(), usize::try_from(POLICY_V2_BYTES).unwrap());
        assert_eq!((size_of::<LoopInfo>(), size_of::<LoopConfig>()), (232, 304));
    }
}
