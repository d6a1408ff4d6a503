//! Host directories bound by their content.
//!
//! ```text
//! HostHandle --walk--> entries --index: unchanged since?--> digests --all known, copy there?--> BoundTree
//!                                  \--no--> read, hashed and copied at once --> <state>/trees/<copy>/root
//! ```
//! Two digests: [`BoundTree::digest`] is of the content, as people and other hosts compare it; [`BoundTree::copy`] covers owners
//! and times besides, since build tools decide by times: a copy shows the times of the host.
//!
//! **What a copy holds is what was hashed**: the bytes that were read are the bytes that are written, or a reflink is made first
//! and then read. **A time stamp alone is never trusted**: a file's digest is kept under its device, inode, size, mtime and ctime, and
//! only of a file that had not changed for a minute when it was read. Copies are written by one draft that is renamed; equal files of
//! the directory's last copy are hard links, which is safe as every copy is a read-only lower layer.
//!
//! **A tenant has a share of the disk for its copies** ([`TreeShare`]): who fills it makes room of what is its own, or is refused.

mod allowance;
mod bounds;
mod entry;
mod error;
mod fill;
mod index;
mod lock;
mod share;
#[cfg(test)]
mod share_tests;
mod store;
mod sweep;
#[cfg(test)]
mod tests;
mod times;
mod upload;
mod upload_draft;
mod upload_sweep;
#[cfg(test)]
mod upload_tests;
mod walk;

pub use bounds::TreeBounds;
pub use error::TreeError;
pub use share::{OwnTree, TreeRelease, TreeShare};
pub use store::{BoundTree, TreeStore};
pub use sweep::StoredTree;
pub use upload::{ManifestPiece, TreeUploads, UploadBounds, UploadError};
