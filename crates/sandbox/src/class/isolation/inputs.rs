//! How a sandbox of a class sees what it is given of the host.

use cofferdam_contracts::sandbox::AccessMode;

use crate::class::input_mounts::{Medium, MountRefusal};

/// How a configuration shows the host's `/usr`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShowsHost {
    /// Not at all: it is in the root before the runtime starts ([`super::HostLayout::apart`]).
    InRoot,
    /// Overlays among the mounts of the configuration.
    Overlays,
    /// Binds: another kernel stands between the task and the host's files.
    Binds,
}

/// What a sandbox of a class is given of the host, and by what medium.
pub(crate) trait InputMounts: Sync {
    /// How the directories of the host are shown in a sandbox of `envRef: host`.
    fn shows_host(&self) -> ShowsHost {
        ShowsHost::Binds
    }

    /// Whether a path of the host is given with this access.
    fn gives(&self, access: AccessMode) -> Result<(), MountRefusal>;

    /// How what is given gets in. By default a runtime of this host binds each place.
    fn medium(&self) -> Medium {
        Medium::Runtime
    }
}
