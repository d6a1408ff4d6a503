//! Extended attributes of a layer's files: which are kept, and ids in their values.

use std::io;
use std::path::Path;

use rustix::fs::{XattrFlags, lgetxattr, llistxattr, lsetxattr};
use rustix::io::Errno;

use super::{MAX_NAME, MAX_VALUE, inside, outside, wrong};

/// Of an overlay: a directory that hides what the layers below have in it; one that was renamed; a file whose bytes are
/// in a layer below.
const OVERLAYS: &[u8] = b"trusted.overlay.";
const KEPT_OF_OVERLAY: [&[u8]; 2] = [b"trusted.overlay.opaque", b"trusted.overlay.redirect"];
const METACOPY: &[u8] = b"trusted.overlay.metacopy";
const USERS: &[u8] = b"user.";
const CAPABILITY: &[u8] = b"security.capability";
const ACLS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

/// Bytes of a capability with the id of a user namespace's root, which are the last four.
const CAPABILITY_WITH_ROOT: usize = 24;
/// An access list: a version of four bytes, then entries of tag, permissions and id.
const ACL_HEAD: usize = 4;
const ACL_ENTRY: usize = 8;
/// Tags of entries that name a user and a group.
const ACL_NAMED: [u16; 2] = [0x02, 0x08];

/// Names of the attributes that belong to the file, in order.
pub(super) fn names(path: &Path) -> io::Result<Vec<Vec<u8>>> {
    let mut names = vec![0; MAX_VALUE];
    let size = match llistxattr(path, names.as_mut_slice()) {
        Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        size => size?,
    };
    let mut kept = Vec::new();
    for name in names.get(..size).unwrap_or_default().split(|byte| *byte == 0) {
        if name == METACOPY {
            return Err(io::Error::other("its bytes are in a layer below"));
        }
        if is_kept(name) {
            kept.push(name.to_vec());
        }
    }
    kept.sort_unstable();
    Ok(kept)
}

/// The value of one of them, with the ids of the sandbox in it.
pub(super) fn value(path: &Path, name: &[u8], first: u32) -> io::Result<Vec<u8>> {
    let mut value = vec![0; MAX_VALUE];
    let size = lgetxattr(path, name, value.as_mut_slice())?;
    value.truncate(size);
    shift(name, &mut value, |id| Ok(inside(id, first)))?;
    Ok(value)
}

/// Gives a file an attribute back.
pub(super) fn write(path: &Path, name: &[u8], mut value: Vec<u8>, first: u32) -> io::Result<()> {
    shift(name, &mut value, |id| outside(id, first))?;
    Ok(lsetxattr(path, name, &value, XattrFlags::empty())?)
}

/// Refuses a name that no stream has.
pub(super) fn check(name: &[u8]) -> io::Result<()> {
    match is_kept(name) && name.len() <= MAX_NAME && !name.contains(&0) {
        true => Ok(()),
        false => Err(wrong("an attribute that is not kept")),
    }
}

fn is_kept(name: &[u8]) -> bool {
    match name.starts_with(OVERLAYS) {
        true => KEPT_OF_OVERLAY.contains(&name),
        false => name.starts_with(USERS) || name == CAPABILITY || ACLS.contains(&name),
    }
}

/// Changes the ids in a value.
fn shift(name: &[u8], value: &mut [u8], change: impl Fn(u32) -> io::Result<u32>) -> io::Result<()> {
    if name == CAPABILITY && value.len() == CAPABILITY_WITH_ROOT {
        let at = CAPABILITY_WITH_ROOT.saturating_sub(4);
        return each(value.get_mut(at..).unwrap_or_default(), change);
    }
    if !ACLS.contains(&name) {
        return Ok(());
    }
    for entry in value.get_mut(ACL_HEAD..).unwrap_or_default().chunks_exact_mut(ACL_ENTRY) {
        let (head, id) = entry.split_at_mut(4);
        let tag = head.first_chunk::<2>().map(|tag| u16::from_le_bytes(*tag));
        if tag.is_some_and(|tag| ACL_NAMED.contains(&tag)) {
            each(id, &change)?;
        }
    }
    Ok(())
}

fn each(bytes: &mut [u8], change: impl Fn(u32) -> io::Result<u32>) -> io::Result<()> {
    let Some(id) = bytes.first_chunk_mut::<4>() else { return Ok(()) };
    *id = change(u32::from_le_bytes(*id))?.to_le_bytes();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_access_lists_and_capabilities_are_those_inside() {
        let acl: Vec<u8> = [
            2u32.to_le_bytes().as_slice(),
            &[1, 0, 6, 0, 0xff, 0xff, 0xff, 0xff],
            &[2, 0, 4, 0],
            &101_000u32.to_le_bytes(),
        ]
        .concat();
        let mut shifted = acl.clone();
        shift(ACLS[0], &mut shifted, |id| Ok(inside(id, 100_000))).unwrap();
        assert_eq!(shifted[16..], 1_000u32.to_le_bytes());
        assert_eq!(shifted[..16], acl[..16]);
        shift(ACLS[0], &mut shifted, |id| outside(id, 100_000)).unwrap();
        assert_eq!(shifted, acl);
        let mut capability = vec![0; 24];
        capability[20..].copy_from_slice(&100_000u32.to_le_bytes());
        shift(CAPABILITY, &mut capability, |id| Ok(inside(id, 100_000))).unwrap();
        assert_eq!(capability, vec![0; 24]);
    }

    #[test]
    fn what_only_the_host_says_of_a_file_is_not_kept() {
        for name in ["trusted.overlay.origin", "trusted.x", "security.selinux", "security.ima"] {
            assert!(!is_kept(name.as_bytes()), "{name}");
        }
        for name in ["user.x", "trusted.overlay.opaque", "security.capability"] {
            assert!(is_kept(name.as_bytes()), "{name}");
        }
    }
}
