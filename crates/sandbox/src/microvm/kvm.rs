//! Whether the host's processor runs machines: by booting one, because hosts that are machines
//! themselves may have the device and no use of it.

use std::fs;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_guest::setup::GREETING;

use super::machine::{Accel, Machine};
use super::qemu::{self, Wanted};
use crate::live;
use crate::runtime::Runtime;

const DEVICE: &str = "/dev/kvm";
/// What was found holds until the host starts anew, which empties this directory.
const CACHE: &str = "/run/cofferdam-kvm";
/// A machine on real hardware is there after 0.3 s.
const PROBE_MS: u64 = 5_000;
const PROBE_MB: u64 = 192;
const WORKS: &str = "works";
/// Characters of an emulator's last words.
const MAX_WORDS: usize = 200;

/// The group that may use the device, for a machine that does.
pub(super) fn group(accel: &Accel) -> Option<u32> {
    match accel {
        Accel::Kvm => Some(fs::metadata(DEVICE).map_or(0, |found| found.gid())),
        Accel::Software { .. } => None,
    }
}

/// What works here, remembered until the host's next start.
pub(super) fn probe(machine: &Machine, qemu: &Runtime) -> Accel {
    if !Path::new(DEVICE).exists() {
        return Accel::Software { why: format!("there is no {DEVICE}") };
    }
    let name = digest_bytes(format!("{} {}", qemu.version, machine.release).as_bytes());
    let cache = PathBuf::from(CACHE);
    let place = cache.join(format!("kvm-{name}"));
    let said = fs::read_to_string(&place).unwrap_or_else(|_| {
        let said = match boot(machine, qemu) {
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
    if said == WORKS { Accel::Kvm } else { Accel::Software { why: said } }
}

fn boot(machine: &Machine, qemu: &Runtime) -> Result<(), String> {
    let words = |error: io::Error| error.to_string();
    let (mut ours, theirs) = UnixStream::pair().map_err(words)?;
    ours.set_read_timeout(Some(Duration::from_millis(PROBE_MS))).map_err(words)?;
    // Nobody reads the disk before the greeting, so a server that only introduces itself would do;
    // the emulator wants one all the same.
    let disk = super::serve_empty().map_err(words)?;
    let wanted = Wanted {
        machine,
        qemu,
        groups: &[],
        mem_mb: PROBE_MB,
        cpus: 1,
        id: "probe",
        dir: Path::new("/nonexistent"),
    };
    let mut command = qemu::command(&wanted).into_std();
    command.env_clear().stdin(OwnedFd::from(theirs)).stdout(disk).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(words)?;
    drop(command);
    let mut heard = vec![0; GREETING.len()];
    let said = ours.read_exact(&mut heard);
    let ended = child.kill().and_then(|()| child.wait());
    if let Err(error) = ended {
        tracing::warn!(%error, "a machine of a probe was not ended");
    }
    match said {
        Ok(()) if heard == GREETING.as_bytes() => Ok(()),
        Ok(()) => Err("it said something else".to_owned()),
        Err(error) => {
            let mut log = String::new();
            let read = child.stderr.take().map(|mut pipe| pipe.read_to_string(&mut log));
            let line = log.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
            let line: String = line.trim().chars().take(MAX_WORDS).collect();
            match read {
                Some(Ok(_)) if !line.is_empty() => Err(line),
                _ => Err(error.to_string()),
            }
        }
    }
}
