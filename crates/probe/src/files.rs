//! Files of the kernel and devices, one line each.

use super::attempt::ProbeAttempt;
use super::entry::{Probe, Run};
use super::table::paths;

/// Masked, absent, or refused: in no case a byte or a name.
const EMPTY: &[&str] = &["nothing", "ENOENT", "EACCES", "EPERM", "ENOTDIR"];
const CLOSED: &[&str] = &["EROFS", "ENOENT", "EACCES", "EPERM", "ENOTDIR", "EISDIR"];
const ABSENT: &[&str] = &["ENOENT", "ENOTDIR"];
const REFUSED: &[&str] = &["EACCES", "EPERM"];

/// What tells of the host's kernel, its devices and its memory.
pub const READ: &[Probe] = paths!(Read, "read", EMPTY, [
    "/proc/buddyinfo" "/proc/config.gz" "/proc/interrupts" "/proc/iomem" "/proc/ioports"
    "/proc/kallsyms" "/proc/key-users" "/proc/kpagecgroup" "/proc/kpagecount" "/proc/kpageflags"
    "/proc/latency_stats" "/proc/lock_stat" "/proc/pagetypeinfo" "/proc/sched_debug"
    "/proc/slabinfo" "/proc/timer_stats" "/proc/vmallocinfo" "/proc/vmcore"
    "/sys/fs/cgroup/devices/devices.list" "/sys/fs/cgroup/release_agent"
    "/sys/kernel/btf/vmlinux" "/sys/kernel/vmcoreinfo" "/sys/kernel/debug/sched/debug"
    "/sys/kernel/tracing/README" "/sys/kernel/security/lsm"
]);

pub const LISTED: &[Probe] = paths!(List, "list", EMPTY, [
    "/proc/acpi" "/proc/asound" "/sys/devices/virtual/powercap" "/sys/fs/ext4" "/sys/fs/pstore"
    "/sys/kernel/slab" "/sys/kernel/config" "/proc/driver/nvidia"
]);

/// What the agent's own directory tells: it is not dumpable.
pub const AGENT: &[Probe] = paths!(Open, "open", REFUSED, [
    "/proc/1/auxv" "/proc/1/cwd" "/proc/1/exe" "/proc/1/maps" "/proc/1/ns/mnt" "/proc/1/pagemap"
    "/proc/1/smaps"
]);

/// Those that refuse when they are read.
pub const AGENT_READ: &[Probe] = paths!(Read, "read", REFUSED, [
    "/proc/1/io" "/proc/1/stack" "/proc/1/syscall"
]);

/// Settings of the whole host.
pub const WRITE: &[Probe] = paths!(Write, "write", CLOSED, [
    "/proc/irq/default_smp_affinity"
    "/proc/sys/fs/aio-max-nr" "/proc/sys/fs/file-max" "/proc/sys/fs/inotify/max_user_instances"
    "/proc/sys/fs/inotify/max_user_watches" "/proc/sys/fs/lease-break-time"
    "/proc/sys/fs/leases-enable" "/proc/sys/fs/mqueue/msg_max" "/proc/sys/fs/nr_open"
    "/proc/sys/fs/pipe-max-size" "/proc/sys/fs/protected_hardlinks"
    "/proc/sys/fs/protected_symlinks" "/proc/sys/fs/suid_dumpable"
    "/proc/sys/kernel/cad_pid" "/proc/sys/kernel/core_uses_pid" "/proc/sys/kernel/domainname"
    "/proc/sys/kernel/dmesg_restrict" "/proc/sys/kernel/hostname" "/proc/sys/kernel/hotplug"
    "/proc/sys/kernel/kexec_load_disabled" "/proc/sys/kernel/keys/maxkeys"
    "/proc/sys/kernel/kptr_restrict" "/proc/sys/kernel/modules_disabled"
    "/proc/sys/kernel/msgmax" "/proc/sys/kernel/ns_last_pid" "/proc/sys/kernel/panic"
    "/proc/sys/kernel/panic_on_oops" "/proc/sys/kernel/perf_event_paranoid"
    "/proc/sys/kernel/pid_max" "/proc/sys/kernel/poweroff_cmd" "/proc/sys/kernel/printk"
    "/proc/sys/kernel/randomize_va_space" "/proc/sys/kernel/shmmax" "/proc/sys/kernel/sysrq"
    "/proc/sys/kernel/threads-max" "/proc/sys/kernel/unprivileged_bpf_disabled"
    "/proc/sys/kernel/usermodehelper/bset" "/proc/sys/kernel/yama/ptrace_scope"
    "/proc/sys/net/core/bpf_jit_enable" "/proc/sys/net/core/somaxconn"
    "/proc/sys/net/ipv4/conf/all/forwarding" "/proc/sys/net/ipv4/ping_group_range"
    "/proc/sys/user/max_user_namespaces" "/proc/sys/vm/compact_memory"
    "/proc/sys/vm/mmap_min_addr" "/proc/sys/vm/nr_hugepages"
    "/proc/sys/vm/oom_kill_allocating_task" "/proc/sys/vm/overcommit_memory"
    "/proc/sys/vm/panic_on_oom" "/proc/sys/vm/swappiness"
    "/sys/bus/pci/rescan" "/sys/bus/platform/drivers_probe" "/sys/devices/system/cpu/cpu1/online"
    "/sys/devices/system/memory/probe" "/sys/fs/cgroup/cgroup.procs"
    "/sys/fs/cgroup/cgroup.subtree_control" "/sys/fs/cgroup/devices/devices.allow"
    "/sys/fs/cgroup/memory/memory.limit_in_bytes" "/sys/fs/cgroup/pids/pids.max"
    "/sys/kernel/debug/tracing/tracing_on" "/sys/kernel/kexec_crash_size"
    "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages" "/sys/kernel/mm/ksm/run"
    "/sys/kernel/mm/transparent_hugepage/enabled" "/sys/kernel/profiling"
    "/sys/kernel/rcu_expedited" "/sys/kernel/reboot/mode" "/sys/module/kernel/parameters/panic"
    "/sys/power/disk" "/sys/power/wake_lock"
]);

/// Devices that lead to a driver. Left out are those that do something when they are opened (watchdogs).
pub const DEVICES: &[Probe] = paths!(Open, "open", ABSENT, [
    "/dev/autofs" "/dev/btrfs-control" "/dev/bus/usb/001/001" "/dev/cpu/0/msr"
    "/dev/cpu_dma_latency" "/dev/cuse" "/dev/dm-0" "/dev/dma_heap/system" "/dev/dri/card0"
    "/dev/fb0" "/dev/hidraw0" "/dev/hpet" "/dev/hwrng" "/dev/input/event0"
    "/dev/kmem" "/dev/loop0" "/dev/mcelog" "/dev/nbd0" "/dev/nvidia0" "/dev/nvme0"
    "/dev/nvram" "/dev/port" "/dev/ppp" "/dev/ram0" "/dev/rfkill" "/dev/rtc0" "/dev/sda"
    "/dev/sev" "/dev/sgx_enclave" "/dev/snd/control" "/dev/sr0" "/dev/tty1" "/dev/udmabuf" "/dev/uhid" "/dev/uinput" "/dev/userfaultfd" "/dev/vcs"
    "/dev/vda" "/dev/vfio/vfio" "/dev/vga_arbiter" "/dev/vhost-net" "/dev/vhost-vsock"
    "/dev/video0"
]);

const fn kind(id: &'static str, tries: &'static str, kind: &'static str) -> Probe {
    Probe { id, tries, expected: &["EPERM"], run: Run::Way(ProbeAttempt::Mount(kind)) }
}

/// Kinds of file systems, each with a parser or a door of its own in the kernel.
pub const MOUNTS: &[Probe] = &[
    kind("mount.kind-bpf", "mount a bpf", "bpf"),
    kind("mount.kind-cgroup", "mount a cgroup", "cgroup"),
    kind("mount.kind-cgroup2", "mount a cgroup2", "cgroup2"),
    kind("mount.kind-debugfs", "mount a debugfs", "debugfs"),
    kind("mount.kind-devpts", "mount a devpts", "devpts"),
    kind("mount.kind-devtmpfs", "mount a devtmpfs", "devtmpfs"),
    kind("mount.kind-ext4", "mount an ext4", "ext4"),
    kind("mount.kind-fuse", "mount a fuse", "fuse"),
    kind("mount.kind-mqueue", "mount an mqueue", "mqueue"),
    kind("mount.kind-overlay", "mount an overlay", "overlay"),
    kind("mount.kind-ramfs", "mount a ramfs", "ramfs"),
    kind("mount.kind-securityfs", "mount a securityfs", "securityfs"),
    kind("mount.kind-sysfs", "mount a sysfs", "sysfs"),
    kind("mount.kind-tracefs", "mount a tracefs", "tracefs"),
];
