//! Sent files that go: those that no manifest names, once their manifests were not used for a while, and that no copy has.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use cofferdam_contracts::id::Digest;

use super::lock::alone;
use super::store::TreeStore;
use super::sweep::idle_of;
use super::upload::{MODE, TreeUploads, file_of, parsed, stored_name};

/// A part that grew in this time is being sent.
const GROWS: Duration = Duration::from_secs(3_600);

impl TreeUploads {
    /// Those of all tenants of a state directory.
    ///
    /// # Errors
    /// They cannot be listed.
    pub fn all_of(store: &TreeStore) -> io::Result<Vec<Self>> {
        let names = match fs::read_dir(Self::all(store)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            names => names?,
        };
        let paths: Vec<_> = names.map(|found| Ok(found?.path())).collect::<io::Result<_>>()?;
        // Beside each one lies its lock.
        let dirs = paths.into_iter().filter(|path| path.extension().is_none());
        Ok(dirs.map(|dir| Self { dir, store: store.clone() }).collect())
    }

    /// Removes manifests that were not used for so long, the oldest whole ones beyond `kept`, and then the files that no manifest
    /// names and no copy has: those are hard links, which count for the tenant's quota while a run needs them. A client that comes
    /// back to one sends what lacks.
    ///
    /// # Errors
    /// The kernel keeps a part of it, or a manifest cannot be read.
    pub fn sweep(&self, idle: Duration, kept: usize) -> io::Result<()> {
        let _alone = alone(&self.dir)?;
        let mut manifests = Vec::new();
        for name in self.names("open-")?.into_iter().chain(self.names("whole-")?) {
            let path = self.dir.join(&name);
            let Ok(found) = fs::symlink_metadata(&path) else { continue };
            manifests.push((idle_of(&found), name.starts_with("whole-"), path));
        }
        manifests.sort();
        let (mut named, mut whole) = (BTreeSet::new(), 0_usize);
        for (unused, is_whole, path) in manifests {
            whole += usize::from(is_whole);
            let is_beyond = is_whole && whole > kept && unused >= GROWS;
            if unused >= idle || is_beyond {
                fs::remove_file(&path)?;
                continue;
            }
            if path.extension().is_none() {
                let text = fs::read(&path)?;
                let entries = parsed(&text).map_err(io::Error::other)?;
                for entry in &entries {
                    let Some((sha256, _)) = file_of(entry) else { continue };
                    named.extend([MODE, entry.mode].map(|mode| stored_name(sha256, mode)));
                }
            }
        }
        for name in self.names("copy-")? {
            let copy = self.marked(name.trim_start_matches("copy-"));
            if !copy.is_some_and(|(copy, _)| self.store.dir.join(copy.as_str()).exists()) {
                fs::remove_file(self.dir.join(&name))?;
            }
        }
        for name in self.names("")? {
            let stored = name.strip_suffix(".part").unwrap_or(&name);
            let sha256 = stored.split('.').next().unwrap_or(stored);
            if Digest::parse(sha256).is_err() || named.contains(stored) {
                continue;
            }
            let path = self.dir.join(name);
            if fs::symlink_metadata(&path)?.nlink() == 1 {
                fs::remove_file(path)?;
            }
        }
        Ok(())
    }
}
