//! The server's messages: one file and one older one, both bounded.
//!
//! The server appends to a descriptor that it got at birth, so the file is copied and cut, not
//! renamed; no collector process is needed.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cofferdam_ambient::clock;

use super::error::ClusterError;

/// Ten thousand lines or more. With the older file: 8 MB.
const MAX_BYTES: u64 = 4 << 20;
/// A server that fails fifty times a second writes 1 MB in this time.
const PERIOD: Duration = Duration::from_secs(120);

/// Opens `home/log` for appending, cut if it is too long.
pub(super) fn open(home: &Path) -> Result<File, ClusterError> {
    let path = home.join("log");
    bound(&path).map_err(ClusterError::io("shorten", &path))?;
    let opened = OpenOptions::new().append(true).create(true).mode(0o600).open(&path);
    opened.map_err(ClusterError::io("open", &path))
}

/// Keeps the log short for as long as the task lives.
pub(super) async fn bound_size(home: PathBuf) {
    let path = home.join("log");
    loop {
        clock::sleep(PERIOD).await;
        // a full disk is for the server to report; the next round tries again
        let _ = bound(&path);
    }
}

fn bound(path: &Path) -> io::Result<()> {
    match path.metadata() {
        Ok(meta) if meta.len() > MAX_BYTES => {
            fs::copy(path, path.with_extension("old"))?;
            OpenOptions::new().write(true).open(path)?.set_len(0)
        }
        _ => Ok(()),
    }
}
