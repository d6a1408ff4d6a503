//! What the host tells the init of a virtual machine, before the agent is there.
//!
//! ```text
//! guest  GREETING   the port, or the stream in its place, is open: a machine is stored, or given to a sandbox, here
//! host   Setup      one line of JSON; after a warm-up the guest begins anew
//! guest  CLOCK      what time is it? Up to [`CLOCK_ASKS`] times, until an answer came quickly
//! host   a line     milliseconds since the epoch, as they are when the question is read
//! guest  FILES      where [`Setup::is_filled`]: the files, once
//! host   a stream   of [`crate::upper`], which says itself where it ends
//! guest  READY      or one line that says what failed, and the end
//!        HTTP/2     the agent, from here on
//! ```
//! A machine that is a sandbox's already, and was stored asleep, is told less:
//! ```text
//! host   WAKE          of [`crate::sleep`]
//! guest  AWAKE         the init has the stream
//! host   RestoreSetup  one line of JSON
//! guest  CLOCK         as above, then READY and the agent
//! ```
//! The machine's one disk has two partitions, each an EROFS image: [`Setup::lowers`] directories of
//! the root file system, named by their number, and the given trees, named by theirs.

use serde::{Deserialize, Serialize};

/// How the kernel calls the init of a machine.
pub const INIT: &str = "/init";
/// First argument of the init's child, which becomes the agent.
pub const ENTER: &str = "enter";
/// First argument of that child's own, which becomes the agent of nobody.
pub const REHEARSAL: &str = "rehearse";
/// Name of the port.
pub const PORT: &str = "cofferdam";
/// Where the host listens for a machine without a port: the number of its stream.
pub const STREAM: u32 = 5_000;
/// What the guest says first.
pub const GREETING: &str = "cofferdam-machine 1\n";
/// What it says when everything is in its place.
pub const READY: &str = "ready\n";
/// How it asks for the time. A setup that carried it would be as old as the machine took to come to life.
pub const CLOCK: &str = "clock\n";
/// How it asks for the files that it begins with.
pub const FILES: &str = "files\n";
/// How often it asks at most.
pub const CLOCK_ASKS: usize = 8;
/// Bytes of a [`Setup`]: as many as of any other request.
pub const MAX_SETUP_BYTES: usize = crate::wire::MAX_REQUEST_BYTES;
/// Bytes of the host's randomness: the size of the kernel's own seed.
pub const SEED_BYTES: usize = 32;
/// Directory of the kernel modules in the initial file system, in the order of their loading.
pub const MODULES: &str = "/modules";

/// What makes a machine the one of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setup {
    /// It is for nobody: everything is done once in a process that ends, so that an emulator has
    /// translated the code by the time when a sandbox waits for it.
    pub is_rehearsal: bool,
    /// It begins with files, for which it asks.
    pub is_filled: bool,
    /// Fresh randomness of the host: machines that were stored once have nothing else in which they
    /// differ.
    pub seed: [u8; SEED_BYTES],
    /// Bytes that the sandbox may use, the writable layer included.
    pub mem_bytes: u64,
    /// Its processes, the agent included.
    pub pids: u64,
    /// Open files of one process at its start.
    pub nofile_soft: u64,
    /// And as many as it may raise that to.
    pub nofile: u64,
    /// Size of the writable layer.
    pub disk_mb: u64,
    /// Directories of the first partition, `0` being the uppermost.
    pub lowers: u32,
    /// What the task is shown besides, in order.
    pub trees: Vec<Tree>,
    /// The target of a tree that is shown once more, and where.
    pub again: Option<(String, String)>,
}

/// What a machine that was stored with its sandbox is told before anything in it goes on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RestoreSetup {
    /// Fresh randomness of the host: its generator is where it was when it was stored.
    pub seed: [u8; SEED_BYTES],
}

/// A file or directory of a partition, and where the task finds it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tree {
    /// Absolute path on the machine's disk: `/first/...` or `/second/...`.
    pub source: String,
    /// Absolute path in the sandbox at which the task finds it.
    pub target: String,
    /// Changes go to the writable layer; without, there are none.
    pub writable: bool,
    /// Where those changes are shown, to be read, when it is writable.
    pub changes: Option<String>,
}
