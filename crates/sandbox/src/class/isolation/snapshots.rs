//! Whether files and memory of a class's sandboxes are kept, and how another begins with them.

use std::io::{self, Write};

use crate::class::memory_support::MemorySupport;
use crate::host::traces::Traces;
use crate::spec::facts::HostFacts;

/// Kept files and memory. Without more a class keeps neither.
pub(crate) trait Snapshots: Sync {
    /// Whether all that a sandbox writes can be kept and put into another sandbox: it lies in a layer of this host as soon as
    /// it is written, or a kernel of ours hands it out. Another kernel may hold written pages back, and a provider has layers of
    /// its own.
    fn keeps_files(&self) -> bool {
        false
    }

    /// Whether that layer lies in a machine: its agent is asked for the files, and its init is given them.
    fn has_layer_inside(&self) -> bool {
        false
    }

    /// Whether its kernel writes itself and all processes to a file on this host, and begins another sandbox with it.
    /// `None`: it cannot.
    fn kept_memory(&self, _facts: &HostFacts) -> Option<MemorySupport> {
        None
    }

    /// Has the kernel of a sandbox write itself, in at most so many bytes. Its agent sleeps. `_members` are its
    /// processes. Whatever comes of it, the sandbox is over. Blocking.
    fn store_memory(
        &self,
        _traces: &Traces,
        _members: &[u32],
        _out: &mut dyn Write,
        _most: u64,
    ) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
