//! Names within the cluster.

/// The database, and the superuser of its cluster: the ledger is somebody else, see [`LEDGER`].
pub(super) const NAME: &str = "cofferdam";
/// Who the ledger is.
pub(super) const LEDGER: &str = "ledger";
