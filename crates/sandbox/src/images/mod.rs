//! Images: what a sandbox's root file system is made of, when it is not the host's.
//!
//! ```text
//! import (OCI layout, docker save) --\
//! pull   (a registry)            -----> blobs, checked by digest --> root, checked by diff id --> name
//! build  (steps, in our sandboxes) --/
//!
//! <state>/images/blobs/<sha256>   manifests, configurations, layers as they came
//! <state>/images/roots/<chain>    a root file system: one lower directory of a sandbox
//! <state>/images/names/<sha256>   a name: the digest of its manifest, and where it came from
//! <state>/images/drafts/<random>  what is being written; nothing reads it
//! <state>/pulled/<tenant>/images   a store for images of a tenant's services, see `tenant_images`
//! ```
//! A root is named by the OCI *chain id* of its layers. It is one directory, not a stack of layers:
//! one `lowerdir` whatever the image's depth (mount options are one page), no whiteout devices or
//! `trusted.*` attributes, which some file systems refuse, and one digest before and after a task.
//! What two roots have in common is shared by hard links when one was made from the other.
//!
//! **Nothing is named before every byte of it was checked**: blobs against their digest, layers
//! against their diff id, entries against the rules of `unpack`. **A root is never changed once it
//! has its name**, and never taken away while a sandbox holds it.

pub(crate) mod blob;
pub(crate) mod chain;
mod draft;
pub(crate) mod error;
#[cfg(test)]
mod fuzz;
mod import;
mod layer;
mod lock;
pub(crate) mod manifest;
pub(crate) mod name;
mod names;
mod pull;
mod remove;
pub(crate) mod resolve;
mod root;
pub(crate) mod store;
mod tenant_images;
mod unpack;

pub use error::ImageError;
pub use name::ImageName;
pub use resolve::ImageRoot;
pub use store::{ImageRecord, Images, StoreBounds};
pub use tenant_images::{ServiceRoot, ServiceRoots, TenantImages, pin};

pub(crate) use resolve::{RootGuard, SCHEME, hold, hold_root};
