//! Whether the host's processor runs machines: by booting one, because hosts that are machines
//! themselves may have the device and no use of it.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use cofferdam_contracts::canonical::digest_bytes;

use crate::host::live;
use crate::spec::machine::Accel;

const DEVICE: &str = "/dev/kvm";
/// What was found holds until the host starts anew, which empties this directory.
pub(super) const CACHE: &str = "/run/cofferdam-kvm";
const WORKS: &str = "works";

/// Whom a device of this mode lets read and write it, of all users.
const FOR_ALL: u32 = 0o006;

/// The group that may use the device, for a machine that does and has no other way.
pub(super) fn group(accel: &Accel) -> Option<u32> {
    match accel {
        Accel::Kvm => fs::metadata(DEVICE).ok().and_then(|found| needed(found.mode(), found.gid())),
        Accel::Software { .. } => None,
    }
}

/// Never root's: with it the emulator would have the files that root shares with its group. Pure.
fn needed(mode: u32, gid: u32) -> Option<u32> {
    let is_open = mode & FOR_ALL == FOR_ALL;
    (gid != 0 && !is_open).then_some(gid)
}

/// Whether there is what could be tried.
pub(super) fn device() -> Result<(), String> {
    if Path::new(DEVICE).exists() { Ok(()) } else { Err(format!("{DEVICE} does not exist")) }
}

/// Whether this boots a machine with the host's processor; `what` tells it from others.
pub(super) fn shown(what: &str, boot: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    device()?;
    let name = digest_bytes(what.as_bytes());
    let cache = PathBuf::from(CACHE);
    let place = cache.join(format!("kvm-{name}"));
    let said = fs::read_to_string(&place).unwrap_or_else(|_| {
        let said = match boot() {
            Ok(()) => WORKS.to_owned(),
            Err(why) => format!("a machine did not boot with KVM: {why}"),
        };
        // Where it cannot be kept it is found out again.
        let draft = cache.join(format!(".kvm-{}", std::process::id()));
        let _ = live::private_dir(&cache)
            .and_then(|()| fs::write(&draft, &said))
            .and_then(|()| fs::rename(&draft, &place));
        said
    });
    if said == WORKS { Ok(()) } else { Err(said) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a3l_an_emulator_is_in_the_devices_group_alone_and_never_in_roots() {
        let of = [(0o20660, 104), (0o20666, 104), (0o20660, 0), (0o20666, 0), (0o20600, 104)];
        assert_eq!(
            of.map(|(mode, gid)| needed(mode, gid)),
            [Some(104), None, None, None, Some(104)]
        );
    }
}
