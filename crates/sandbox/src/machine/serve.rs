//! Serving a machine's disk.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as Socket;
use std::sync::Arc;
use std::thread;

use super::disk::{CurrentDisk, Disk, Reader};
use super::erofs::Image;
use super::{nbd, tree};

/// The host's end of a machine's disk: a thread that serves it until the emulator ends.
pub(crate) fn serve(disk: &Arc<CurrentDisk>) -> io::Result<OwnedFd> {
    let (ours, theirs) = Socket::pair()?;
    let reader = Reader::new(Arc::clone(disk));
    thread::Builder::new().name("machine-disk".to_owned()).spawn(move || {
        if let Err(error) = nbd::serve(ours, reader) {
            tracing::debug!(%error, "a machine's disk ended");
        }
    })?;
    Ok(theirs.into())
}

/// A disk with what a root needs at least, for nobody.
pub(crate) fn empty() -> io::Result<Arc<CurrentDisk>> {
    let points = ["dev", "proc", "sys"].map(|name| (name.to_owned(), tree::directory([])));
    let first = tree::directory([("0".to_owned(), tree::directory(points))]);
    let parts = [first, tree::directory([])].map(|root| Image::of(root).map(Arc::new));
    let [first, second] = parts;
    Ok(CurrentDisk::new(Arc::new(Disk::new(first?, second?)?)))
}
