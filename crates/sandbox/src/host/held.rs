//! The layer of a sandbox that runs, as its worker reaches it.
//!
//! ```text
//! made: mounted at its place --set_apart--> held by a descriptor; nothing of the sandbox is mounted on its host any more
//!                                              \--give_up--> the end of its processes is the end of its layer
//! ```
//! A container has mounts of its own. Those that it was made from would stay in the table of its worker, and **each start copies
//! and reads that table, and each wipe reads it**: five mounts of each of 600 sandboxes made a start take 2.6 times as long.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::host::ended::FileSystem;
use crate::host::traces::Traces;
use crate::host::{idrange, live, mounts};

/// Where the layer of one sandbox is reached.
#[derive(Debug, Clone, Default)]
pub(crate) struct HeldLayer(Arc<Mutex<Option<Apart>>>);

/// A layer that is mounted nowhere.
#[derive(Debug, Clone)]
pub(crate) struct Apart {
    tree: Arc<OwnedFd>,
    /// File systems that lay on it.
    pub over: Vec<FileSystem>,
}

impl Apart {
    /// Its root, for as long as this lives.
    pub(crate) fn path(&self) -> PathBuf {
        path_of(&self.tree, "")
    }
}

/// A path below a tree by its descriptor, for as long as that is open.
pub(crate) fn path_of(tree: &OwnedFd, below: &str) -> PathBuf {
    let below = if below.is_empty() { "." } else { below };
    PathBuf::from(format!("/proc/self/fd/{}", tree.as_raw_fd())).join(below)
}

impl HeldLayer {
    /// Takes the mounts of a sandbox that is up off their places, where its layer lies in memory; what a request names of the host
    /// stays. Nobody reads files at its place meanwhile. Blocking, for as long as the kernel waits for its processors.
    ///
    /// # Errors
    /// They stay as they are, or some of them: nothing is lost by that.
    pub(crate) fn set_apart(&self, traces: &Traces) -> io::Result<()> {
        let Traces { layer, root, .. } = traces;
        let mut apart = self.lock();
        if apart.is_some() || !live::is_memory(layer) {
            return Ok(());
        }
        let over = mounts::mounted_below(root)?;
        let over = over.iter().filter_map(|point| FileSystem::of(point).ok()).collect();
        let tree = Arc::new(idrange::copy(layer)?);
        *apart = Some(Apart { tree, over });
        for point in [root, layer] {
            mounts::detach(point)?;
        }
        Ok(())
    }

    /// It, where it is apart.
    pub(crate) fn apart(&self) -> Option<Apart> {
        self.lock().clone()
    }

    /// A descriptor of it, mounted nowhere; `None`: it does not lie in memory.
    pub(crate) fn tree(&self, place: &Path) -> io::Result<Option<OwnedFd>> {
        match &*self.lock() {
            Some(apart) => apart.tree.try_clone().map(Some),
            None if !live::is_memory(place) => Ok(None),
            None => idrange::copy(place).map(Some),
        }
    }

    /// Reaches a path below the layer that is mounted at a place, while `reached` runs. Nothing sets it apart meanwhile.
    pub(crate) fn at<T>(&self, place: &Path, below: &str, reached: impl FnOnce(&Path) -> T) -> T {
        match self.apart() {
            Some(apart) => reached(&path_of(&apart.tree, below)),
            None => reached(&place.join(below)),
        }
    }

    /// Holds it no more.
    pub(crate) fn give_up(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> MutexGuard<'_, Option<Apart>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
