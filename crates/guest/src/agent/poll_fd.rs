//! A descriptor of any kind, which tells when it can be read or written.
//!
//! The agent of the product waits by `poll` (the sandbox crate's `build.rs` says why). There a call that finds nothing has to go
//! through the runtime, which asks for the next notice only then; its own type for any descriptor does not do that.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use tokio::net::UnixStream;

/// Takes it over, within a runtime. Whatever it is, the runtime only waits for it: it is read and written by the calls that its
/// owner makes within [`UnixStream::try_io`].
pub fn polled(owned: OwnedFd) -> io::Result<UnixStream> {
    fcntl_setfl(&owned, fcntl_getfl(&owned)? | OFlags::NONBLOCK)?;
    UnixStream::from_std(owned.into())
}
