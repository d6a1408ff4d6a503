//! What a task finds in its sandbox.

use cofferdam_contracts::sandbox::AccessMode;

use crate::host::hostpath::HostPath;

/// Something that the task finds in its sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// A file.
    Bytes {
        /// Absolute, inside.
        path: String,
        /// Its content.
        bytes: Vec<u8>,
        /// Its permissions, at most 0777.
        mode: u32,
    },
    /// A file or directory of the host, inside an allowed root.
    Host {
        /// Absolute, inside.
        path: String,
        /// Absolute, on the host.
        source: HostPath,
        /// Read-only or copy-on-write.
        access: AccessMode,
    },
}
