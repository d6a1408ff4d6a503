//! Bytes of large artifacts beside the database: sealed, named by the digest of what they hold, streamed in and out.
//!
//! ```text
//! ObjectWriter --pieces, each sealed--> parts/ID --the row commits--> kept/AA/SHA256.ID
//! kept/AA/SHA256.ID --any range of it--> ObjectReader
//! ```
//! This crate knows files and keys; rows are the ledger's, and the key of an object, sealed for its tenant, is in its row
//! (decision 0170). **An object is never in memory as a whole. A file without a row is garbage: its key was in memory alone. Bytes
//! that are cut, moved, altered, of another object or of another tenant do not open.**
//!
//! # Floors
//! A line imports only from those below it; what imports each other in a circle stands on one line.
//! ```text
//! reader writer
//! store
//! sweep
//! location reserve seal
//! error
//! ```

mod error;
mod location;
mod reader;
mod reserve;
mod seal;
mod store;
mod sweep;
mod writer;

pub use error::StoreError;
pub use reader::{ObjectHead, ObjectReader, ObjectStream};
pub use reserve::bytes_left;
pub use seal::ObjectKey;
pub use store::Store;
pub use sweep::Leftovers;
pub use writer::{ObjectDraft, ObjectWriter};
