//! What machines of the class `microvm` are started from.

use std::path::PathBuf;

/// How its processor is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Accel {
    /// By the host's own: a machine was booted so.
    Kvm,
    /// In software, about ten times slower.
    Software {
        /// Why KVM is not used.
        why: String,
    },
}

/// Everything that a machine is started from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// The kernel's image.
    pub kernel: PathBuf,
    /// Release of that kernel, as `uname -r` prints it in the machine.
    pub release: String,
    /// The initial file system, ours.
    pub initrd: PathBuf,
    /// KVM or software.
    pub accel: Accel,
    /// The rate of the host's time stamp counter, where it can be told.
    pub(crate) tsc_khz: Option<u64>,
    pub(crate) unshare: PathBuf,
    pub(crate) setpriv: PathBuf,
}
