//! Which machine this is: a session can only be verified as gone where its processes would be seen.

use cofferdam_contracts::canonical::digest_bytes;

/// The inode of the initial pid namespace, a constant of the kernel (`PROC_PID_INIT_INO`).
const INITIAL_PID_NS: &str = "pid:[4026531836]";

/// A stable name of this host: 16 hex digits over its machine id and, inside a container, its pid
/// namespace, since two containers of one machine cannot see each other's processes.
#[must_use]
pub fn host_id() -> String {
    let machine = ["/etc/machine-id", "/var/lib/dbus/machine-id", "/proc/sys/kernel/hostname"]
        .iter()
        .find_map(|path| std::fs::read_to_string(path).ok().filter(|t| !t.trim().is_empty()))
        .unwrap_or_else(|| "unknown".to_owned());
    let namespace = std::fs::read_link("/proc/self/ns/pid")
        .map(|link| link.to_string_lossy().into_owned())
        .unwrap_or_default();
    let scope = if namespace == INITIAL_PID_NS { String::new() } else { namespace };
    digest_bytes(format!("{}\n{scope}", machine.trim()).as_bytes())
        .as_str()
        .chars()
        .take(16)
        .collect()
}
