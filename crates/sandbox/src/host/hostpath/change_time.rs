//! Which files of a directory of the host changed since a moment.

use std::path::Path;

use rustix::fs::fstat;

use super::{AllowedPaths, HostPath, Links};

impl AllowedPaths {
    /// Whether one of these regular files below a directory that may be given has other content or attributes since
    /// this moment, in ms of this host's wall clock. What is not there, or reached by a link, has not.
    #[must_use]
    pub fn is_changed(&self, dir: &HostPath, files: &[String], since_ms: i64) -> bool {
        let Ok(opened) = self.open(dir, Links::Beneath) else { return false };
        files.iter().any(|file| {
            let found = opened.file(Path::new(file)).ok().and_then(|file| fstat(&file).ok());
            found.is_some_and(|found| {
                let ns = i64::try_from(found.st_ctime_nsec).unwrap_or(0);
                let at_ms = found.st_ctime.saturating_mul(1_000).saturating_add(ns / 1_000_000);
                at_ms > since_ms
            })
        })
    }
}
