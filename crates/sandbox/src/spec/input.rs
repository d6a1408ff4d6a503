//! What a task finds in its sandbox.

use cofferdam_contracts::sandbox::AccessMode;

use crate::host::hostpath::HostPath;

/// Something that the task finds in its sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// A file whose content the caller gives.
    Bytes {
        /// Absolute path inside the sandbox.
        path: String,
        /// Whole content of the file.
        bytes: Vec<u8>,
        /// Its permissions, at most 0777.
        mode: u32,
    },
    /// A file or directory of the host, inside an allowed root.
    Host {
        /// Absolute path inside the sandbox.
        path: String,
        /// Absolute, on the host.
        source: HostPath,
        /// Read-only or copy-on-write.
        access: AccessMode,
    },
}
