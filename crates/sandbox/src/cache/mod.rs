//! The dependency cache of a state directory: what a build phase left, for the next task to begin with.
//!
//! ```text
//! plan  --CachePlan-->  identify (lock files, root, build command) --BaseRequest (key)-->
//!    open: BaseLookup::Base   each directory is an overlay: the base below, the task's own layer above
//!          nothing            each directory is one of the layer; the build fills it, then
//!                             promote: copy to drafts/ -> manifest -> one rename to bases/<key>
//!
//! <state>/cache/bases/<key>/manifest.json   what the base is: key, digests, sizes
//! <state>/cache/bases/<key>/layer/<n>       its directories, in their order
//! <state>/cache/drafts/<random>             what is being written or taken away; nothing reads it
//! <state>/cache/flights/<key>               held by the one who builds it, while the others wait
//! <state>/cache/lock                        held, shared, by whoever writes a draft
//! ```
//! **A base is whole or not there.** It gets its name in one rename, after everything of it is on the
//! disk; of two that are promoted at once the first one stays. **A base is never changed**: a task has
//! it only below an overlay, `nosuid,nodev`; promotion happens before the task's own command starts and
//! copies, so that nothing in a sandbox holds a file of it. **A build is hostile**: the copy follows no
//! link, takes regular files, directories and symbolic links and nothing else, drops set-user-id bits and
//! attributes, and is bounded in entries, bytes and depth.
//! Out of a machine it comes as a tar, by the agent, and is unpacked as somebody's who lies; in gVisor the agent
//! says whether there is a pipe or socket, which the host does not see. **A base that does not have the digest on
//! record is no base**, and it is taken away. The key begins with the tenant: see the contracts.

mod bounds;
mod copy;
mod error;
mod flight;
#[cfg(test)]
mod fuzz;
mod identity;
mod inside;
mod store;
mod unpack;

pub use bounds::Bounds as CacheBounds;
pub use error::CacheError;
pub use flight::{Flight, FlightOutcome};
pub use identity::BaseRequest;
pub use store::{BaseLookup, BaseMark, CacheBase, Caches, Promotion, Removal};

pub(crate) use identity::{identify, input_digest};
pub(crate) use inside::{look as look_inside, promote as promote_inside};
