//! Roots: file systems, made from layers, under the chain id of those layers.

use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, BufReader, Read};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, lchown};
use std::path::{Path, PathBuf};

use cofferdam_contracts::id::Digest;
use flate2::read::MultiGzDecoder;

use super::blob::{Blobs, HashReader};
use super::chain::{chains, empty};
use super::draft::Drafts;
use super::error::{ImageError, at};
use super::manifest::Descriptor;
use super::store::StoreBounds;
use super::unpack;
use crate::host::tenant_root::TenantRoot;

const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Headers and padding of a tar beside its files' bytes: at most this much for each entry.
const TAR_OVERHEAD: u64 = 4_096;

/// The root file systems of a store.
#[derive(Debug, Clone)]
pub(crate) struct ImageRoots {
    dir: PathBuf,
    blobs: Blobs,
    drafts: Drafts,
    bounds: StoreBounds,
}

impl ImageRoots {
    /// Those of a store.
    pub fn of(store: &Path, blobs: Blobs, drafts: Drafts, bounds: StoreBounds) -> Self {
        Self { dir: store.join("roots"), blobs, drafts, bounds }
    }

    pub fn path(&self, chain: &Digest) -> PathBuf {
        self.dir.join(chain.as_str())
    }

    /// Makes the root of these layers, whose blobs are here, unless it is there. Two workers may do
    /// so at once: whoever moves first wins.
    pub fn make(&self, layers: &[Descriptor], diff_ids: &[Digest]) -> Result<PathBuf, ImageError> {
        let chains = chains(diff_ids);
        let whole = chains.last().cloned().unwrap_or_else(empty);
        let done = self.path(&whole);
        if done.is_dir() {
            return Ok(done);
        }
        // The longest part that is there already is not unpacked again.
        let below = chains.iter().rposition(|chain| self.path(chain).is_dir());
        let draft = self.drafts.draft();
        let root = draft.path();
        match below.and_then(|index| chains.get(index)) {
            Some(chain) => clone(&self.path(chain), root)?,
            None => {
                DirBuilder::new().mode(0o755).create(root).map_err(at(root))?;
                fs::set_permissions(root, Permissions::from_mode(0o755)).map_err(at(root))?;
            }
        }
        let skipped = below.map_or(0, |index| index + 1);
        let (mut bounds, mut room) = (self.bounds, self.tar_limit());
        for (layer, diff) in layers.iter().zip(diff_ids).skip(skipped) {
            let (taken, left) = self.layer(root, layer, diff, &bounds, room)?;
            if bounds.of_all_layers {
                room = left;
                bounds.layer_bytes = bounds.layer_bytes.saturating_sub(taken.bytes);
                bounds.layer_entries = bounds.layer_entries.saturating_sub(taken.entries);
            }
        }
        let tree = TenantRoot::open(root, 0).map_err(at(root))?;
        if let Some(name) = tree.displaced().map_err(at(root))? {
            let why =
                "is in the place of a directory that every sandbox has: no sandbox begins with it";
            return Err(ImageError::Hostile { path: name.to_owned(), why });
        }
        // Named only when it is on the disk: a name that survives a power cut must mean all of it.
        let dir = fs::File::open(root).map_err(at(root))?;
        rustix::fs::syncfs(&dir).map_err(|error| at(root)(error.into()))?;
        match fs::rename(root, &done) {
            Err(error) if !done.is_dir() => Err(at(&done)(error)),
            _ => Ok(done),
        }
    }

    /// Applies a layer whose tar has at most `room` bytes; gives what it took, and what is left of that.
    fn layer(
        &self,
        root: &Path,
        layer: &Descriptor,
        diff: &Digest,
        bounds: &StoreBounds,
        room: u64,
    ) -> Result<(unpack::LayerSize, u64), ImageError> {
        let path = self.blobs.path(&layer.digest()?);
        let mut tar = HashReader::new(open(&path)?, room);
        let applied = unpack::apply(root, &mut tar, bounds);
        let taken =
            applied.map_err(|error| if tar.is_over() { self.too_large() } else { error })?;
        let broken = |error: io::Error| match error.kind() {
            io::ErrorKind::FileTooLarge => self.too_large(),
            _ => ImageError::malformed("a layer", error.to_string()),
        };
        // Whatever follows the last entry counts as well.
        io::copy(&mut tar, &mut io::sink()).map_err(broken)?;
        let left = tar.room();
        let found = tar.finish().map_err(broken)?;
        match found == *diff {
            true => Ok((taken, left)),
            false => Err(ImageError::Digest { what: "a layer", wanted: diff.clone(), found }),
        }
    }

    fn tar_limit(&self) -> u64 {
        let overhead = self.bounds.layer_entries.saturating_mul(TAR_OVERHEAD);
        self.bounds.layer_bytes.saturating_add(overhead)
    }

    fn too_large(&self) -> ImageError {
        ImageError::TooLarge { what: "a layer's tar", limit: self.tar_limit() }
    }
}

/// Opens a tar, compressed or not: what it is shows in its first bytes, whatever it is called.
pub(crate) fn open(path: &Path) -> Result<Box<dyn Read>, ImageError> {
    let file = fs::File::open(path).map_err(at(path))?;
    let mut magic = Vec::new();
    (&file).take(4).read_to_end(&mut magic).map_err(at(path))?;
    io::Seek::rewind(&mut &file).map_err(at(path))?;
    if magic == ZSTD {
        return Err(ImageError::malformed(
            "a layer",
            "it is compressed with zstd, which this version does not read: push it with gzip",
        ));
    }
    let file = BufReader::with_capacity(256 * 1024, file);
    Ok(match magic.starts_with(&GZIP) {
        true => Box::new(MultiGzDecoder::new(file)),
        false => Box::new(file),
    })
}

/// The same tree in another place: directories anew, everything else as hard links.
fn clone(from: &Path, to: &Path) -> Result<(), ImageError> {
    let mut open = vec![(from.to_owned(), to.to_owned())];
    while let Some((from, to)) = open.pop() {
        let found = fs::symlink_metadata(&from).map_err(at(&from))?;
        DirBuilder::new().mode(0o700).create(&to).map_err(at(&to))?;
        lchown(&to, Some(found.uid()), Some(found.gid())).map_err(at(&to))?;
        for entry in fs::read_dir(&from).map_err(at(&from))? {
            let entry = entry.map_err(at(&from))?;
            let (source, target) = (entry.path(), to.join(entry.file_name()));
            match entry.file_type().map_err(at(&source))?.is_dir() {
                true => open.push((source, target)),
                false => fs::hard_link(&source, &target).map_err(at(&target))?,
            }
        }
        fs::set_permissions(&to, Permissions::from_mode(found.mode() & 0o7777)).map_err(at(&to))?;
    }
    Ok(())
}
