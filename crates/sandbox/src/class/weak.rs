//! What a host could not enforce though nobody asked for it, class by class.

use cofferdam_contracts::session::HardwareIsolation;

use crate::host::ceiling::Tcp;
use crate::spec::class::Class;
use crate::spec::facts::HostFacts;

/// What holds a container's root in place of a user namespace.
pub(crate) const NO_USER_NAMESPACE: &str = "the task's root is the host's root, held by 8 \
    capabilities, no_new_privs, a read-only /usr and the system call filter";

/// What is said where a sandbox's user namespace is the host's root's.
pub(crate) const NOT_OWNED: &str = "inotify instances, signals, timers and message queues of a sandbox are counted for the host's root, \
    too: runc without CAP_SYS_RESOURCE";

impl HostFacts {
    /// What this host could not enforce in the class `container` though nobody asked for it, in words.
    #[must_use]
    pub fn weak(&self) -> Vec<String> {
        self.weak_in(Class::Container)
    }

    /// Whether the processor keeps sandboxes of a class apart from this host.
    #[must_use]
    pub fn hardware_isolation(&self, class: Class) -> HardwareIsolation {
        super::of(class).profile.hardware(self)
    }

    /// The same for any class.
    #[must_use]
    pub fn weak_in(&self, class: Class) -> Vec<String> {
        let profile = super::of(class).profile;
        let mut weak = profile.weak(self);
        if !profile.shares_weaknesses() {
            return weak;
        }
        if class.is_on_host_kernel() && self.ceilings.tcp == Tcp::Uncounted {
            weak.push(
                "buffers of TCP connections are outside the memory limit: this kernel's cgroups of version 1 have none \
                 for them"
                    .into(),
            );
        }
        if class.is_on_host_kernel() && self.ceilings.has_large_sockets() {
            weak.push(format!(
                "unread queues of sockets are outside the memory limit, and this host lets each hold {} KiB \
                 (net.core.rmem_default)",
                self.ceilings.socket_bytes / 1024
            ));
        }
        if self.swap {
            weak.push(
                "swap is on: the writable layer may reach the swap device unencrypted".into(),
            );
        }
        if !self.private_mounts {
            weak.push(
                "no private mount namespace: mounts of a killed worker stay until the next start"
                    .into(),
            );
        }
        weak
    }
}
