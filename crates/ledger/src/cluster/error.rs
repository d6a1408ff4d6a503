//! What can go wrong with the embedded database, each with its remedy.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::statvfs::statvfs;

/// A new cluster takes about 46 MB; below this much free space a failure is called "disk full".
const ROOM_BYTES: u64 = 64 << 20;

/// Why the embedded database could not be started or stopped. The texts are for the person at the
/// terminal: each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// No server binaries on this machine.
    #[error(
        "no PostgreSQL server found (looked in {}{}): run `apt-get install postgresql`, \
         or give a database with DATABASE_URL", list(.searched), attempt(.fetch)
    )]
    NoServer {
        /// The directories that were looked at.
        searched: Vec<PathBuf>,
        /// Why none could be fetched, where that was tried.
        fetch: Option<String>,
    },
    /// Server binaries that do not run.
    #[error("the PostgreSQL server {} does not run: {detail}", .program.display())]
    BrokenServer {
        /// The program that was tried.
        program: PathBuf,
        /// What it said.
        detail: String,
    },
    /// The files were written by a version whose binaries are gone.
    #[error(
        "the database in {} was written by PostgreSQL {need}, and this machine has {have:?}: run \
         `apt-get install postgresql-{need}`, or move the directory away to begin anew",
        .data.display()
    )]
    Version {
        /// The data directory.
        data: PathBuf,
        /// Its major version.
        need: u32,
        /// The major versions installed.
        have: Vec<u32>,
    },
    /// Root may not run the server itself, and there is nobody to run it as.
    #[error(
        "PostgreSQL does not run as root, and this machine has none of the users {0:?}: run \
         `adduser --system --group postgres`, or start cofferdam as an ordinary user"
    )]
    NoAccount(&'static [&'static str]),
    /// The database's files belong to somebody else.
    #[error(
        "{} belongs to user id {owner}, who cannot be the database's user here: give it back with \
         chown, or choose another state directory with --state", .path.display()
    )]
    Owner {
        /// The file or directory.
        path: PathBuf,
        /// User id that owns the path now.
        owner: u32,
    },
    /// The unprivileged user cannot enter the directory.
    #[error(
        "the user {user} that runs the database cannot enter {}: run `chmod o+x` on the directories \
         above it, or choose another state directory with --state", .path.display()
    )]
    Unreachable {
        /// Home directory of the database, which `user` cannot enter.
        path: PathBuf,
        /// The database's user.
        user: String,
    },
    /// The file system has no room.
    #[error("no space for the database in {}: {free_mb} MB free, it needs {} MB",
        .path.display(), ROOM_BYTES >> 20)]
    DiskFull {
        /// Path of the file concerned.
        path: PathBuf,
        /// Free space there.
        free_mb: u64,
    },
    /// A file operation.
    #[error("cannot {what} {}: {source}", .path.display())]
    Io {
        /// What was tried, as a verb.
        what: &'static str,
        /// File or directory that the operation failed on.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// A server program failed.
    #[error("{program} failed ({status}): {detail}")]
    Program {
        /// Name of the program: `initdb` or `postgres`.
        program: &'static str,
        /// Its exit status.
        status: String,
        /// The end of what it said.
        detail: String,
    },
    /// The server runs, and refuses its own client.
    #[error(
        "the database in {} refuses connections ({code}): {detail}; if an older cofferdam runs on it, \
         stop that first", .data.display()
    )]
    Refused {
        /// The data directory.
        data: PathBuf,
        /// SQLSTATE that the server answered with, five characters.
        code: String,
        /// Message that the server sent with the SQLSTATE.
        detail: String,
    },
    /// A bounded wait ran out.
    #[error("waited {}s for {what} ({})", .waited.as_secs(), .path.display())]
    Timeout {
        /// What was awaited.
        what: &'static str,
        /// Path of the file concerned.
        path: PathBuf,
        /// Bound of the wait that ran out.
        waited: Duration,
    },
}

impl ClusterError {
    /// Turns an IO error on `path` into ours; a full disk is called by its name.
    pub(super) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::DiskFull { path: path.to_owned(), free_mb: free_bytes(path) >> 20 }
            }
            _ => Self::Io { what, path: path.to_owned(), source },
        }
    }

    /// Refuses to begin where a new cluster would not fit: a server that runs out of space half-way
    /// leaves shared memory behind.
    pub(super) fn room(home: &Path) -> Result<(), Self> {
        match free_bytes(home) {
            free if free < ROOM_BYTES => {
                Err(Self::DiskFull { path: home.to_owned(), free_mb: free >> 20 })
            }
            _ => Ok(()),
        }
    }

    /// A program's failure in `home`: a full disk first, as the program's own words are free text.
    pub(super) fn program(
        program: &'static str,
        home: &Path,
        status: impl ToString,
        said: &[u8],
    ) -> Self {
        let detail = tail(said);
        let failed = Self::Program { program, status: status.to_string(), detail };
        Self::room(home).err().unwrap_or(failed)
    }
}

/// The last 2,000 bytes, enough for every message that initdb ends with.
pub(super) fn tail(said: &[u8]) -> String {
    let from = said.len().saturating_sub(2000);
    String::from_utf8_lossy(said.get(from..).unwrap_or_default()).trim().to_owned()
}

/// Free space for unprivileged users; a file system that cannot say is taken to have room.
fn free_bytes(path: &Path) -> u64 {
    let here = path.ancestors().find_map(|dir| statvfs(dir).ok());
    here.map_or(u64::MAX, |fs| fs.blocks_available().saturating_mul(fs.fragment_size()))
}

fn attempt(fetch: &Option<String>) -> String {
    fetch.as_ref().map(|why| format!("; fetching one failed: {why}")).unwrap_or_default()
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}
