//! What a host needs to make machines: a kernel with its modules, our initial file system, a program
//! that makes them, and whether the hardware helps.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_guest::setup;

use super::cpio::Archive;
use super::{elf, trial};
use crate::host::base;
use crate::host::guest::AGENT_PATH;
use crate::host::runtime::{self, Runtime};
use crate::spec::machine::{Accel, Machine};

/// Where a kernel is looked for: first what `scripts/setup` unpacked, then what the host boots.
const PLACES: [&str; 2] = ["/var/lib/cofferdam/kernel", "/"];
const MODULE_DIRS: [&str; 2] = ["lib/modules", "usr/lib/modules"];
/// In the order of their loading.
pub(super) const MODULES: [&str; 8] = [
    "virtio_ring",
    "virtio",
    "virtio_mmio",
    "virtio_console",
    "virtio_blk",
    "libcrc32c",
    "erofs",
    "overlay",
];
/// Of a machine whose monitor has devices on PCI, and no port.
pub(super) const STREAM_MODULES: [&str; 13] = [
    "virtio_ring",
    "virtio",
    "virtio_mmio",
    "virtio_pci_legacy_dev",
    "virtio_pci_modern_dev",
    "virtio_pci",
    "vsock",
    "vmw_vsock_virtio_transport_common",
    "vmw_vsock_virtio_transport",
    "virtio_blk",
    "libcrc32c",
    "erofs",
    "overlay",
];
const QEMU: &str = "qemu-system-x86_64";
/// What holds it on the host, besides its own filter: both come with every Debian system.
const LAUNCHERS: [&str; 2] = ["unshare", "setpriv"];
const REMEDY_KERNEL: &str = "scripts/setup --microvm, which unpacks Debian's cloud kernel beside the \
                             host's own, or apt-get install linux-image-cloud-amd64";
const REMEDY_QEMU: &str =
    "apt-get install --no-install-recommends qemu-system-x86, or scripts/setup --microvm";

/// How a kernel is given to what starts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// As its distribution packs it.
    Packed,
    /// As an ELF file.
    Plain,
}

impl Machine {
    /// One with these modules; it is said to have KVM, which is to be shown.
    pub(super) fn prepared(
        state: &Path,
        guest: &Path,
        modules: &[&'static str],
        form: Form,
    ) -> Result<Self, Absent> {
        let [unshare, setpriv] = LAUNCHERS.map(runtime::search);
        let (Some(unshare), Some(setpriv)) = (unshare, setpriv) else {
            return Err((
                format!("{} were not found", LAUNCHERS.join(" and ")),
                "apt-get install util-linux",
            ));
        };
        let kernel = Kernel::find(modules)?;
        let (image, initrd) = kernel.prepare(state, guest, form).map_err(|error| {
            (format!("the machine's kernel could not be prepared: {error}"), REMEDY_KERNEL)
        })?;
        Ok(Self {
            kernel: image,
            release: kernel.release,
            initrd,
            accel: Accel::Kvm,
            tsc_khz: tsc_khz(),
            unshare,
            setpriv,
        })
    }
}

/// Why a host makes no machines, and what would change that.
pub(crate) type Absent = (String, &'static str);

/// Looks for all of it, and writes the initial file system below `state`. The first time after the
/// host's start a machine is booted to see whether KVM works.
pub(super) fn detect(state: &Path, guest: &Path) -> Result<(Machine, Runtime), Absent> {
    let mut qemu =
        runtime::named(QEMU).ok_or_else(|| (format!("{QEMU} was not found"), REMEDY_QEMU))?;
    let mut machine = Machine::prepared(state, guest, &MODULES, Form::Packed)?;
    machine.accel = trial::probe(&machine, &qemu);
    qemu.version = match &machine.accel {
        Accel::Kvm => format!("{}, Linux {}, KVM", qemu.version, machine.release),
        Accel::Software { why } => {
            format!("{}, Linux {}, emulated in software: {why}", qemu.version, machine.release)
        }
    };
    Ok((machine, qemu))
}

/// From the kernel's own word, where it has one; else from the processor's. In a virtual host the
/// clock does not change its rate, on hardware the rate is the one in the processor's name.
fn tsc_khz() -> Option<u64> {
    if let Ok(text) = fs::read_to_string("/sys/devices/system/cpu/cpu0/tsc_freq_khz") {
        return text.trim().parse().ok();
    }
    rate(&fs::read_to_string("/proc/cpuinfo").ok()?)
}

fn rate(cpuinfo: &str) -> Option<u64> {
    let value = |key: &str| {
        let line = cpuinfo.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(':')?.1.trim())
    };
    let (text, digits) = match value("flags")?.split(' ').any(|flag| flag == "hypervisor") {
        true => (value("cpu MHz")?, 3),
        false => (value("model name")?.rsplit_once("@ ")?.1.strip_suffix("GHz")?, 6),
    };
    // A decimal number of MHz or GHz, in kHz.
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let part: String = part.chars().chain("000000".chars()).take(digits).collect();
    format!("{whole}{part}").parse().ok()
}

struct Kernel {
    image: PathBuf,
    release: String,
    modules: Vec<PathBuf>,
}

impl Kernel {
    fn find(wanted: &[&'static str]) -> Result<Self, Absent> {
        let mut why = "no kernel was found".to_owned();
        for place in PLACES.map(Path::new) {
            let boot = fs::read_dir(place.join("boot")).into_iter().flatten().flatten();
            let mut releases: Vec<String> = boot
                .filter_map(|entry| entry.file_name().into_string().ok())
                .filter_map(|name| Some(name.strip_prefix("vmlinuz-")?.to_owned()))
                .collect();
            // A kernel for clouds is the smallest; else the last of the names.
            releases.sort_by_key(|release| (release.contains("cloud"), release.clone()));
            for release in releases.into_iter().rev() {
                match modules(place, &release, wanted) {
                    Ok(modules) => {
                        let image = place.join("boot").join(format!("vmlinuz-{release}"));
                        return Ok(Self { image, release, modules });
                    }
                    Err(missing) => why = format!("the kernel {release} has no module {missing}"),
                }
            }
        }
        Err((why, REMEDY_KERNEL))
    }

    /// The image that an unprivileged emulator can read, and the initial file system.
    fn prepare(&self, state: &Path, guest: &Path, form: Form) -> io::Result<(PathBuf, PathBuf)> {
        let found = fs::metadata(&self.image)?;
        let agent = guest.join(AGENT_PATH.trim_start_matches('/'));
        let (length, time) = (found.len(), found.mtime());
        let said = format!("{guest:?} {:?} {length} {time} {form:?}", self.modules);
        let dir = state.join("microvm");
        fs::create_dir_all(&dir)?;
        let dir = base::place(&dir, digest_bytes(said.as_bytes()).as_str(), |at| {
            let mut archive = Archive::default();
            for name in ["dev", setup::MODULES.trim_start_matches('/')] {
                archive.directory(name);
            }
            archive.device("dev/console", 5, 1);
            archive.device("dev/null", 1, 3);
            for (number, module) in self.modules.iter().enumerate() {
                let name = module.file_name().unwrap_or_default().to_string_lossy();
                let to = setup::MODULES.trim_start_matches('/');
                archive.file(&format!("{to}/{number:02}-{name}"), 0o444, &fs::read(module)?);
            }
            archive.file(setup::INIT.trim_start_matches('/'), 0o555, &fs::read(&agent)?);
            write(&at.join("initrd"), &archive.finish())?;
            match form {
                Form::Plain => write(&at.join("kernel"), &elf::unpacked(fs::read(&self.image)?)?),
                // A kernel that only root may read is one that the emulator may not.
                Form::Packed if found.mode() & 0o004 == 0 => {
                    write(&at.join("kernel"), &fs::read(&self.image)?)
                }
                Form::Packed => Ok(()),
            }
        });
        let dir = dir.map_err(io::Error::other)?;
        let copy = dir.join("kernel");
        let image = if copy.exists() { copy } else { self.image.clone() };
        Ok((image, dir.join("initrd")))
    }
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    fs::write(path, bytes)?;
    fs::set_permissions(path, Permissions::from_mode(0o444))
}

/// The files of the modules that the kernel does not have built in; or the one that is missing.
fn modules(
    place: &Path,
    release: &str,
    wanted: &[&'static str],
) -> Result<Vec<PathBuf>, &'static str> {
    let dirs = MODULE_DIRS.map(|dir| place.join(dir).join(release));
    let dir = dirs.iter().find(|dir| dir.is_dir()).ok_or("at all")?;
    let builtin = fs::read_to_string(dir.join("modules.builtin")).unwrap_or_default();
    let mut found = Vec::new();
    for name in wanted.iter().copied() {
        let file = format!("{name}.ko");
        if builtin.lines().any(|line| line.rsplit('/').next() == Some(&file)) {
            continue;
        }
        found.push(search(&dir.join("kernel"), &file).ok_or(name)?);
    }
    Ok(found)
}

/// Directories of a kernel's modules: a few hundred.
const MAX_DIRS: usize = 10_000;

fn search(root: &Path, file: &str) -> Option<PathBuf> {
    let mut open = vec![root.to_owned()];
    for _ in 0..MAX_DIRS {
        let dir = open.pop()?;
        let candidate = dir.join(file);
        if candidate.is_file() {
            return Some(candidate);
        }
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        open.extend(entries.filter(|e| e.file_type().is_ok_and(|k| k.is_dir())).map(|e| e.path()));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_of_the_clock_is_read_from_either_kind_of_host() {
        let virtual_host = "model name\t: X\ncpu MHz\t\t: 2596.144\nflags\t\t: fpu hypervisor lm\n";
        assert_eq!(rate(virtual_host), Some(2_596_144));
        let hardware = "model name\t: X CPU @ 2.60GHz\ncpu MHz\t\t: 800.1\nflags\t\t: fpu lm\n";
        assert_eq!(rate(hardware), Some(2_600_000));
        assert_eq!(rate("model name\t: X\nflags\t\t: fpu\n"), None);
    }
}
