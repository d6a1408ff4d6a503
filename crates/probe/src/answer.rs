//! What a probe saw, in words that can be compared.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::path::Path;

use nix::errno::Errno;

pub const DONE: &str = "done";
pub const NOTHING: &str = "nothing";

/// The name of what went wrong, such as `EPERM`.
pub fn failed(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(number) => format!("{:?}", Errno::from_raw(number)),
        None => format!("{:?}", error.kind()),
    }
}

/// `done`, or why not.
pub fn said<T, E: Into<io::Error>>(result: Result<T, E>) -> String {
    match result {
        Ok(_) => DONE.to_owned(),
        Err(error) => failed(&error.into()),
    }
}

/// Opens for writing and writes nothing.
pub fn open_write(path: &str) -> String {
    said(OpenOptions::new().write(true).open(path))
}

pub fn open_read(path: &str) -> String {
    said(File::open(path))
}

/// Opens what waits when it is read, or keeps what it gives from others; a masked file is `/dev/null`.
pub fn open_masked(path: &str) -> String {
    use std::os::linux::fs::MetadataExt as _;
    match File::open(path).and_then(|file| file.metadata()) {
        Ok(found) if found.st_rdev() == rustix::fs::makedev(1, 3) => NOTHING.to_owned(),
        opened => said(opened),
    }
}

/// Whether a byte can be read: masked files are there and empty.
pub fn read_any(path: &str) -> String {
    let mut byte = [0];
    match File::open(path).and_then(|mut file| file.read(&mut byte)) {
        Ok(0) => NOTHING.to_owned(),
        Ok(_) => "bytes".to_owned(),
        Err(error) => failed(&error),
    }
}

/// The names in a directory, in order.
pub fn names(path: &str) -> String {
    let mut names: Vec<String> = match fs::read_dir(path) {
        Ok(entries) => entries
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect(),
        Err(error) => return failed(&error),
    };
    names.sort_unstable();
    if names.is_empty() { NOTHING.to_owned() } else { names.join(" ") }
}

/// The first of these that is there.
pub fn first_present<'a>(paths: impl IntoIterator<Item = &'a str>) -> String {
    let mut paths = paths.into_iter();
    // Not `exists`, which takes a refusal for absence: what is refused is there.
    let found = paths.find(|path| match fs::symlink_metadata(Path::new(path)) {
        Ok(_) => true,
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    });
    found.unwrap_or(NOTHING).to_owned()
}

/// A field of this process's own status.
pub fn status(field: &str) -> String {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    text.lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
        .map_or_else(|| "absent".to_owned(), |value| value.trim().to_owned())
}
