//! A file that exists and that nobody else can open before it is written.
//!
//! ```text
//! made, leased --> a reader's open waits --> write_and_release: written, lease given back --> the open returns
//!             \--> dropped: given back with what is in it, which is nothing
//! ```
//! A runtime takes milliseconds to load before it reads its configuration. With this file it loads while its sandbox's
//! root is still being made. A worker that ends gives its leases back: the runtime finds an empty file, and fails.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// `F_SETSIG` of `fcntl(2)`, which the library does not name: the signal of a descriptor's events.
const SET_SIGNAL: libc::c_int = 10;

/// Its lease and its handle.
#[derive(Debug)]
pub(crate) struct FileLease(File);

impl FileLease {
    /// Makes it; `None` where its file system has no leases.
    pub(crate) fn make(path: &Path) -> io::Result<Option<Self>> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        // The kernel tells who has a lease that somebody waits: by SIGIO, which would end this process. Nobody minds SIGURG.
        let leased = set(&file, SET_SIGNAL, libc::SIGURG)
            .and_then(|()| set(&file, libc::F_SETLEASE, libc::F_WRLCK));
        Ok(leased.is_ok().then_some(Self(file)))
    }

    /// Writes it, and lets whoever waits read.
    pub(crate) fn write_and_release(mut self, text: &str) -> io::Result<()> {
        self.0.write_all(text.as_bytes())
    }
}

impl Drop for FileLease {
    fn drop(&mut self) {
        // Not left to the descriptor's end: a child that has not executed its program yet has it, too.
        let _ = set(&self.0, libc::F_SETLEASE, libc::F_UNLCK);
    }
}

fn set(file: &File, what: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let number: RawFd = file.as_raw_fd();
    #[expect(unsafe_code, reason = "leases have no safe wrapper")]
    // SAFETY: both commands take a number, and no memory of this process.
    let done = unsafe { libc::fcntl(number, what, value) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// Reads it in a thread of its own, and is heard when that is done.
    fn reader(path: &Path) -> mpsc::Receiver<String> {
        let (path, (done, heard)) = (path.to_owned(), mpsc::channel());
        thread::spawn(move || done.send(fs::read_to_string(path).unwrap()));
        heard
    }

    /// In memory, where live directories are: not every file system has leases.
    fn place() -> tempfile::TempDir {
        tempfile::tempdir_in("/dev/shm").unwrap()
    }

    #[test]
    fn who_opens_it_waits_for_the_whole_of_it() {
        let dir = place();
        let path = dir.path().join("config.json");
        let unread = FileLease::make(&path).unwrap().unwrap();
        let heard = reader(&path);
        assert!(heard.recv_timeout(Duration::from_millis(100)).is_err(), "it was read before");
        unread.write_and_release(&"whole".repeat(100_000)).unwrap();
        assert_eq!(heard.recv_timeout(Duration::from_secs(10)).unwrap(), "whole".repeat(100_000));
    }

    #[test]
    fn who_waits_for_one_that_is_given_up_finds_nothing() {
        let dir = place();
        let path = dir.path().join("config.json");
        let unread = FileLease::make(&path).unwrap().unwrap();
        let heard = reader(&path);
        drop(unread);
        assert_eq!(heard.recv_timeout(Duration::from_secs(10)).unwrap(), "");
        assert!(FileLease::make(&path).is_err(), "one that is there is not made again");
    }
}
