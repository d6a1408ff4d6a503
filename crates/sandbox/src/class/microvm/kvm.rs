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

/// The group that may use the device, for a machine that does.
pub(super) fn group(accel: &Accel) -> Option<u32> {
    match accel {
        Accel::Kvm => Some(fs::metadata(DEVICE).map_or(0, |found| found.gid())),
        Accel::Software { .. } => None,
    }
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
